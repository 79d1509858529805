#![expect(unsafe_code, reason = "memory that the holder of a lock uses between two calls")]
//! What an extended CQ keeps for `ibv_start_poll` to `ibv_end_poll`: the completion that the
//! readers read, and libmlx5's functions.

use core::{cell::UnsafeCell, ffi::c_int};

use biased_lock::{BiasedMutex, Guard};
use doorbell_sys::{ibv_cq_ex, ibv_poll_cq_attr, ibv_wc_opcode};
use mlx5_direct::cqe::RawCqe;

/// What a thread has from start to end.
pub(crate) struct Session {
    open: UnsafeCell<Open>,
    /// Held from start to end.
    pub(crate) lock: BiasedMutex<()>,
    pub(crate) original: Functions,
}

// SAFETY: `open` is used only by the thread that holds `lock`.
unsafe impl Sync for Session {}

pub(crate) struct Open {
    /// Of the session's lock. Dropped before it, as the first field of the session.
    pub(crate) guard: Option<Guard<'static, ()>>,
    pub(crate) current: Current,
}

/// The completion that the readers read.
pub(crate) struct Current {
    pub(crate) entry: RawCqe,
    /// What a change of a key was.
    pub(crate) change: ibv_wc_opcode::Type,
}

impl Session {
    /// The session of a CQ, which has libmlx5's functions.
    pub(crate) fn new(cq: &ibv_cq_ex) -> Self {
        let current = Current { entry: RawCqe::from_bytes(&[0; 64]), change: 0 };
        Self {
            open: UnsafeCell::new(Open { guard: None, current }),
            lock: BiasedMutex::new(()),
            original: Functions::of(cq),
        }
    }

    /// What this thread has in its session.
    ///
    /// # Safety
    ///
    /// This thread holds the lock. One reference at a time.
    #[inline(always)]
    #[expect(clippy::mut_from_ref, reason = "one thread at a time, and one reference, by contract")]
    pub(crate) unsafe fn open(&self) -> &mut Open {
        // SAFETY: only the thread that holds the lock uses the value, by contract.
        unsafe { &mut *self.open.get() }
    }
}

macro_rules! functions {
    ($($field:ident: fn($($arg:ty),*) $(-> $result:ty)?;)*) => {
        /// Function pointers of an extended CQ.
        #[derive(Clone, Copy, Debug)]
        pub(crate) struct Functions {
            $(pub(crate) $field: Option<unsafe extern "C" fn(*mut ibv_cq_ex $(, $arg)*) $(-> $result)?>,)*
        }

        impl Functions {
            /// Those that a CQ has.
            pub(crate) fn of(cq: &ibv_cq_ex) -> Self {
                Self { $($field: cq.$field,)* }
            }

            /// Puts all back.
            pub(crate) fn restore(&self, cq: &mut ibv_cq_ex) {
                $(cq.$field = self.$field;)*
            }

            /// Replaces those that libmlx5 has set.
            pub(crate) fn replace(&self, cq: &mut ibv_cq_ex) {
                $(if cq.$field.is_some() {
                    cq.$field = self.$field;
                })*
            }
        }
    };
}

functions! {
    start_poll: fn(*mut ibv_poll_cq_attr) -> c_int;
    next_poll: fn() -> c_int;
    end_poll: fn();
    read_opcode: fn() -> ibv_wc_opcode::Type;
    read_vendor_err: fn() -> u32;
    read_byte_len: fn() -> u32;
    read_imm_data: fn() -> u32;
    read_qp_num: fn() -> u32;
    read_src_qp: fn() -> u32;
    read_wc_flags: fn() -> u32;
    read_slid: fn() -> u32;
    read_sl: fn() -> u8;
    read_dlid_path_bits: fn() -> u8;
    read_completion_ts: fn() -> u64;
    read_cvlan: fn() -> u16;
    read_flow_tag: fn() -> u32;
}
