#![expect(unsafe_code, reason = "memory that the holder of a lock uses between two calls")]
//! What a QP keeps for `ibv_wr_start` to `ibv_wr_complete`: the requests of a batch, and libmlx5's
//! functions.

use core::{cell::UnsafeCell, ffi::c_int, ffi::c_void};
use std::{collections::TryReserveError, sync::OnceLock};

use biased_lock::{BiasedMutex, Guard};
use doorbell_sys::{ibv_ah, ibv_data_buf, ibv_mw, ibv_mw_bind_info, ibv_qp, ibv_qp_ex, ibv_sge};
use mlx5_direct::{Sq, sq::Staged};

use crate::real;

/// What a thread has from start to complete or abort.
pub(crate) struct Batch {
    open: UnsafeCell<Open>,
    /// Held from start to complete or abort.
    pub(crate) lock: BiasedMutex<()>,
    /// libmlx5's functions, if the QP has extended operations.
    pub(crate) original: OnceLock<Functions>,
}

// SAFETY: `open` is used only by the thread that holds `lock`.
unsafe impl Sync for Batch {}
// SAFETY: the guard inside `open` is there only while a thread is in a batch, and that thread takes
// it out.
unsafe impl Send for Batch {}

struct Open {
    /// Of the batch's lock. Dropped before it, as the first field of the batch.
    guard: Option<Guard<'static, ()>>,
    /// `None` without extended operations.
    staged: Option<Staged>,
}

impl Batch {
    /// The batch of a QP with this send queue.
    ///
    /// # Errors
    ///
    /// There is no memory.
    ///
    /// # Safety
    ///
    /// A live QP.
    pub(crate) unsafe fn new(raw: *mut ibv_qp, sq: Option<&Sq>) -> Result<Self, TryReserveError> {
        // SAFETY: passed on to the caller.
        let staged = match (unsafe { extended(raw) }, sq) {
            (None, _) => None,
            (Some(_), Some(sq)) => Some(Staged::new(sq)?),
            (Some(_), None) => Some(Staged::without_queue()?),
        };
        let open = UnsafeCell::new(Open { guard: None, staged });
        Ok(Self { open, lock: BiasedMutex::new(()), original: OnceLock::new() })
    }

    /// Begins a batch without requests.
    ///
    /// # Safety
    ///
    /// The guard is that of this batch, of a live QP that has extended operations.
    #[inline(always)]
    pub(crate) unsafe fn begin(&self, guard: Guard<'static, ()>) {
        // SAFETY: this thread holds the lock. No guard is overwritten: the lock was free.
        unsafe {
            (&raw mut (*self.open.get()).guard).write(Some(guard));
            self.staged().clear();
        }
    }

    /// The requests of this thread's batch.
    ///
    /// # Safety
    ///
    /// This thread is in the batch, of a QP that has extended operations. One reference at a time.
    #[inline(always)]
    #[expect(clippy::mut_from_ref, reason = "one thread at a time, and one reference, by contract")]
    pub(crate) unsafe fn staged(&self) -> &mut Staged {
        // SAFETY: this thread holds the lock since `begin`, by contract, so no other thread is here; a
        // QP with extended operations has requests.
        unsafe { (*self.open.get()).staged.as_mut().unwrap_unchecked() }
    }

    /// Ends this thread's batch.
    ///
    /// # Safety
    ///
    /// This thread is in the batch.
    #[inline(always)]
    pub(crate) unsafe fn end(&self) {
        // SAFETY: this thread holds the lock; the guard is moved out before it is dropped.
        drop(unsafe { (*self.open.get()).guard.take() });
    }
}

macro_rules! functions {
    ($($field:ident: fn($($arg:ty),*) $(-> $result:ty)?;)*) => {
        /// Function pointers of an extended QP.
        #[derive(Clone, Copy, Debug)]
        pub(crate) struct Functions {
            $(pub(crate) $field: Option<unsafe extern "C" fn(*mut ibv_qp_ex $(, $arg)*) $(-> $result)?>,)*
        }

        impl Functions {
            /// Those that a QP has.
            pub(crate) fn of(qp: &ibv_qp_ex) -> Self {
                Self { $($field: qp.$field,)* }
            }

            /// Puts all back.
            pub(crate) fn restore(&self, qp: &mut ibv_qp_ex) {
                $(qp.$field = self.$field;)*
            }

            /// Replaces those that libmlx5 has set.
            pub(crate) fn replace(&self, qp: &mut ibv_qp_ex) {
                $(if qp.$field.is_some() {
                    qp.$field = self.$field;
                })*
            }
        }
    };
}

functions! {
    wr_start: fn();
    wr_complete: fn() -> c_int;
    wr_abort: fn();
    wr_send: fn();
    wr_send_imm: fn(u32);
    wr_send_inv: fn(u32);
    wr_rdma_read: fn(u32, u64);
    wr_rdma_write: fn(u32, u64);
    wr_rdma_write_imm: fn(u32, u64, u32);
    wr_atomic_cmp_swp: fn(u32, u64, u64, u64);
    wr_atomic_fetch_add: fn(u32, u64, u64);
    wr_local_inv: fn(u32);
    wr_bind_mw: fn(*mut ibv_mw, u32, *const ibv_mw_bind_info);
    wr_set_ud_addr: fn(*mut ibv_ah, u32, u32);
    wr_set_xrc_srqn: fn(u32);
    wr_set_sge: fn(u32, u64, u32);
    wr_set_sge_list: fn(usize, *const ibv_sge);
    wr_set_inline_data: fn(*mut c_void, usize);
    wr_set_inline_data_list: fn(usize, *const ibv_data_buf);
}

/// The extended part of a QP, if it was created with one.
///
/// # Safety
///
/// A live QP.
pub(crate) unsafe fn extended<'a>(raw: *mut ibv_qp) -> Option<&'a mut ibv_qp_ex> {
    let convert = real::ibv_qp_to_qp_ex()?;
    // SAFETY: live by contract; null if the QP has no extended part.
    unsafe { convert(raw).as_mut() }
}
