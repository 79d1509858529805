#![expect(unsafe_code, reason = "calls into libmlx5 and libibverbs, and structs they fill")]
//! libmlx5: its functions and their structs, and what verbs programs pass to queues.
//!
//! libmlx5 is loaded at run time, so that a program also runs on a host without libmlx5. The
//! structs that libmlx5 fills are declared here by hand, and a test compares them with the
//! installed header. They are larger than the library's own, so that a newer library that writes
//! more fields stays inside them.
//!
//! # References
//!
//! `mlx5dv_init_obj(3)`, `ibv_get_cq_event(3)`, `ibv_modify_qp(3)`; rdma-core
//! `providers/mlx5/mlx5.c`.

use core::{
    ffi::{CStr, c_int, c_void},
    mem::{transmute, zeroed},
    ptr,
};
use std::{
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd},
    sync::atomic::{
        AtomicPtr,
        Ordering::{Acquire, Relaxed, Release},
    },
};

use doorbell_sys::{
    ibv_comp_channel, ibv_context, ibv_device, ibv_pd, ibv_qp, ibv_qp_attr, ibv_qp_attr_mask,
    ibv_qp_init_attr, ibv_qp_init_attr_ex, ibv_qp_init_attr_mask, ibv_qp_state, ibv_sge,
};

use crate::error::{DepthError, LayoutError};

mod objects;
mod recv_wrs;
mod send_wrs;

pub use recv_wrs::{RecvWr, RecvWrs};
pub use send_wrs::{InlineSges, SendWr, SendWrs};
pub(crate) use send_wrs::{PlainSend, ctrl_flags};

/// The structs of `infiniband/mlx5dv.h`, each followed by room for fields that newer versions add.
#[doc(hidden)]
pub mod abi {
    #![allow(missing_docs)]
    use core::ffi::c_void;

    #[repr(C)]
    pub struct DvSrq {
        pub buf: *mut c_void,
        pub dbrec: *mut u32,
        pub stride: u32,
        pub head: u32,
        pub tail: u32,
        pub comp_mask: u64,
        pub srqn: u32,
        pub room: [u64; 32],
    }

    #[repr(C)]
    pub struct DvCq {
        pub buf: *mut c_void,
        pub dbrec: *mut u32,
        pub cqe_cnt: u32,
        pub cqe_size: u32,
        pub cq_uar: *mut c_void,
        pub cqn: u32,
        pub comp_mask: u64,
        pub room: [u64; 32],
    }

    #[repr(C)]
    pub struct DvQueue {
        pub buf: *mut c_void,
        pub wqe_cnt: u32,
        pub stride: u32,
    }

    #[repr(C)]
    pub struct DvBlueFlame {
        pub reg: *mut c_void,
        pub size: u32,
    }

    #[repr(C)]
    pub struct DvQp {
        pub dbrec: *mut u32,
        pub sq: DvQueue,
        pub rq: DvQueue,
        pub bf: DvBlueFlame,
        pub comp_mask: u64,
        pub room: [u64; 64],
    }

    #[repr(C)]
    pub struct DvAh {
        pub av: *mut c_void,
        pub comp_mask: u64,
        pub room: [u64; 32],
    }

    #[repr(C)]
    pub struct DvPair {
        pub object: *mut c_void,
        pub out: *mut c_void,
    }

    #[repr(C)]
    pub struct DvObj {
        pub qp: DvPair,
        pub cq: DvPair,
        pub srq: DvPair,
        pub rwq: DvPair,
        pub dm: DvPair,
        pub ah: DvPair,
        pub room: [u64; 64],
    }

    #[repr(C)]
    pub struct DvContext {
        pub version: u8,
        pub flags: u64,
        pub comp_mask: u64,
        pub room: [u64; 128],
    }

    #[repr(C)]
    pub struct DvQpInit {
        pub comp_mask: u64,
        pub create_flags: u32,
        pub room: [u64; 32],
    }

    pub const QP_INIT_MASK_CREATE_FLAGS: u64 = 1 << 0;
    pub const QP_CREATE_DISABLE_SCATTER_TO_CQE: u32 = 1 << 3;
    pub const OBJ_QP: u64 = 1 << 0;
    pub const OBJ_CQ: u64 = 1 << 1;
    pub const OBJ_SRQ: u64 = 1 << 2;
    pub const OBJ_AH: u64 = 1 << 5;
    pub const SRQ_MASK_SRQN: u64 = 1 << 0;
    pub const CONTEXT_FLAGS_CQE_V1: u64 = 1 << 0;
}

/// Why a verbs object could not be taken over.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DvError {
    /// libmlx5 is not installed or lacks a function: use the verbs data path.
    #[error("cannot load libmlx5 (package ibverbs-providers or rdma-core): {0}")]
    Library(String),
    /// The object belongs to another driver: use the verbs data path.
    #[error("not an mlx5 device: use the verbs data path")]
    NotMlx5,
    /// A library call failed.
    #[error("{call}: {source}")]
    Call {
        /// Name of the call.
        call: &'static str,
        /// The error that the call returned.
        source: io::Error,
    },
    /// This crate cannot drive the queue.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// The requested depth does not fit the ring.
    #[error(transparent)]
    Depth(#[from] DepthError),
}

/// How the completion entries of a context name their object: see
/// [`RecvCqe::srqn_or_user_index`](crate::cqe::RecvCqe::srqn_or_user_index).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CqeVersion {
    /// The field holds the SRQ number; look the QP up by its number.
    V0,
    /// The field holds the user index of the QP or SRQ.
    V1,
}

/// The functions of libmlx5 that this crate calls.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Lib {
    pub(crate) init_obj: unsafe extern "C" fn(*mut abi::DvObj, u64) -> c_int,
    is_supported: unsafe extern "C" fn(*mut ibv_device) -> bool,
    query_device: unsafe extern "C" fn(*mut ibv_context, *mut abi::DvContext) -> c_int,
    create_qp:
        unsafe extern "C" fn(*mut ibv_context, *mut ibv_qp_init_attr_ex, *mut abi::DvQpInit) -> *mut ibv_qp,
}

/// Those that were found, in the order of [`Lib`]; null before.
static FOUND: [AtomicPtr<c_void>; 4] = [const { AtomicPtr::new(ptr::null_mut()) }; 4];

/// Threads that come here at the same time each look the functions up, with the same result. No
/// thread waits for another, which may be missing in the child of a fork. A failure is not kept:
/// memory or descriptors may be short now and available later.
fn lib() -> Result<Lib, DvError> {
    if FOUND[3].load(Acquire).is_null() {
        load()?;
    }
    let found = FOUND.each_ref().map(|found| found.load(Relaxed));
    // SAFETY: functions with the signatures of mlx5dv.h, in the order of the fields: `load` has
    // stored all before the last one.
    Ok(unsafe { transmute::<[*mut c_void; 4], Lib>(found) })
}

fn load() -> Result<(), DvError> {
    // SAFETY: C strings. libmlx5's initialisers only register a verbs driver, as they do when
    // libibverbs loads it. The library stays loaded.
    unsafe {
        let library = libc::dlopen(c"libmlx5.so.1".as_ptr(), libc::RTLD_LAZY | libc::RTLD_LOCAL);
        if library.is_null() {
            return Err(missing());
        }
        // A preloaded library may stand before two functions and drive queues itself;
        // `libdoorbell-verbs.so` then learns that this crate takes the queue.
        let names = [
            (libc::RTLD_DEFAULT, c"mlx5dv_init_obj"),
            (library, c"mlx5dv_is_supported"),
            (library, c"mlx5dv_query_device"),
            (libc::RTLD_DEFAULT, c"mlx5dv_create_qp"),
        ];
        for (found, (first, name)) in FOUND.iter().zip(names) {
            let mut function = libc::dlsym(first, name.as_ptr());
            if function.is_null() {
                function = libc::dlsym(library, name.as_ptr());
            }
            if function.is_null() {
                return Err(missing());
            }
            found.store(function, Release);
        }
    }
    Ok(())
}

/// What the dynamic linker says.
fn missing() -> DvError {
    let mut text = String::new();
    // SAFETY: null or a C string, which is this thread's until it calls the dynamic linker again.
    unsafe {
        let error = libc::dlerror();
        if !error.is_null() {
            let error = CStr::from_ptr(error).to_str().unwrap_or_default();
            // Memory may be what is missing.
            if text.try_reserve(error.len()).is_ok() {
                text.push_str(error);
            }
        }
    }
    DvError::Library(text)
}

pub(crate) fn checked(call: &'static str, rc: c_int) -> Result<(), DvError> {
    match rc {
        0 => Ok(()),
        // Some verbs return -1 and set errno; others return the error number.
        -1 => Err(DvError::Call { call, source: io::Error::last_os_error() }),
        n => Err(DvError::Call { call, source: io::Error::from_raw_os_error(n.abs()) }),
    }
}

/// The scatter or gather list of a work request; empty without a pointer or with a negative count.
///
/// # Safety
///
/// Null, or `count` entries that stay valid and unchanged for `'a`.
#[inline(always)]
unsafe fn sges<'a>(list: *const ibv_sge, count: c_int) -> &'a [ibv_sge] {
    let len = usize::try_from(count).unwrap_or(0);
    if len == 0 || list.is_null() {
        return &[];
    }
    // SAFETY: valid entries by contract.
    unsafe { core::slice::from_raw_parts(list, len) }
}

pub(crate) fn require<T>(ptr: *mut T, what: &'static str) -> Result<*mut T, DvError> {
    if ptr.is_null() { Err(LayoutError::Pointer { what }.into()) } else { Ok(ptr) }
}

/// The functions, if libmlx5 drives the device of this context.
///
/// # Safety
///
/// A live context, or null.
pub(crate) unsafe fn lib_for(context: *mut ibv_context) -> Result<Lib, DvError> {
    let lib = lib()?;
    let context = require(context, "verbs context")?;
    // SAFETY: the caller passes a live context, which points to its live device.
    if unsafe { (lib.is_supported)((*context).device) } { Ok(lib) } else { Err(DvError::NotMlx5) }
}

/// Loads libmlx5, which registers its driver with libibverbs. Call it before the program's first
/// ibv_get_device_list(3): that call loads the drivers of all makers of devices, which takes a
/// millisecond, unless the drivers that are loaded already drive every device.
///
/// # Errors
///
/// [`DvError::Library`].
///
/// # References
///
/// rdma-core, libibverbs/init.c, `ibverbs_get_device_list`.
pub fn load_driver() -> Result<(), DvError> {
    lib().map(|_| ())
}

/// Checks that libmlx5 is installed and drives this device; the error says what is missing.
///
/// # Errors
///
/// [`DvError::Library`] or [`DvError::NotMlx5`].
///
/// # Safety
///
/// `context` is an open verbs context, as the `*mut ibv_context` of any crate that declares that
/// type.
pub unsafe fn supported<T>(context: *mut T) -> Result<(), DvError> {
    // SAFETY: the caller keeps the contract of this function.
    unsafe { lib_for(context.cast()) }.map(|_| ())
}

/// Which CQE version the context uses.
///
/// # Errors
///
/// As [`supported`], and [`DvError::Call`] for `mlx5dv_query_device`.
///
/// # Safety
///
/// `context` is an open verbs context, as the `*mut ibv_context` of any crate that declares that
/// type.
pub unsafe fn cqe_version<T>(context: *mut T) -> Result<CqeVersion, DvError> {
    let context: *mut ibv_context = context.cast();
    // SAFETY: the caller keeps the contract of this function.
    let lib = unsafe { lib_for(context) }?;
    // SAFETY: integers only, for which zero is a value.
    let mut out: abi::DvContext = unsafe { zeroed() };
    // SAFETY: a live context and a struct at least as large as the library's; comp_mask 0 asks for
    // the base fields.
    checked("mlx5dv_query_device", unsafe { (lib.query_device)(context, &mut out) })?;
    Ok(if out.flags & abi::CONTEXT_FLAGS_CQE_V1 != 0 { CqeVersion::V1 } else { CqeVersion::V0 })
}

/// Moves a QP to the error state, the first step of [`teardown`](crate::teardown).
///
/// # Errors
///
/// The error of `ibv_modify_qp`.
///
/// # Safety
///
/// `qp` is a live QP, as the `*mut ibv_qp` of any crate that declares that type.
pub unsafe fn qp_to_error<T>(qp: *mut T) -> io::Result<()> {
    // SAFETY: integers only, for which zero is a value.
    let mut attr: ibv_qp_attr = unsafe { zeroed() };
    attr.qp_state = ibv_qp_state::IBV_QPS_ERR;
    // SAFETY: a live QP by contract; the call reads only the state from the attributes.
    match unsafe {
        doorbell_sys::ibv_modify_qp(qp.cast(), &mut attr, ibv_qp_attr_mask::IBV_QP_STATE.0 as c_int)
    } {
        0 => Ok(()),
        n => Err(io::Error::from_raw_os_error(n.abs())),
    }
}

/// Creates a QP as `ibv_create_qp` does, with scatter to CQE off: the device writes every payload
/// to its buffer. Returns null if the library refuses (`errno` says why) or does not drive this
/// device. The result is a `struct ibv_qp *`.
///
/// # Safety
///
/// As for `ibv_create_qp`: a live `struct ibv_pd`, and attributes that name live objects of the
/// same context. `init` points to a `struct ibv_qp_init_attr`; the function writes its `cap`.
///
/// # References
///
/// `mlx5dv_create_qp(3)`, `MLX5DV_QP_CREATE_DISABLE_SCATTER_TO_CQE`.
pub unsafe fn create_qp_without_scatter<T, I>(pd: *mut T, init: *mut I) -> *mut c_void {
    let (pd, init): (*mut ibv_pd, *mut ibv_qp_init_attr) = (pd.cast(), init.cast());
    // SAFETY: a live PD by contract; it points to its live context.
    let context = unsafe { (*pd).context };
    // SAFETY: as above.
    let Ok(lib) = (unsafe { lib_for(context) }) else {
        return ptr::null_mut();
    };
    // SAFETY: integers and pointers only, for which zero is a value.
    let (mut extended, mut dv): (ibv_qp_init_attr_ex, abi::DvQpInit) = unsafe { (zeroed(), zeroed()) };
    // SAFETY: valid attributes by contract; nobody else uses them during the call.
    let init = unsafe { &mut *init };
    extended.qp_context = init.qp_context;
    extended.send_cq = init.send_cq;
    extended.recv_cq = init.recv_cq;
    extended.srq = init.srq;
    extended.cap = init.cap;
    extended.qp_type = init.qp_type;
    extended.sq_sig_all = init.sq_sig_all;
    extended.comp_mask = ibv_qp_init_attr_mask::IBV_QP_INIT_ATTR_PD.0;
    extended.pd = pd;
    dv.comp_mask = abi::QP_INIT_MASK_CREATE_FLAGS;
    dv.create_flags = abi::QP_CREATE_DISABLE_SCATTER_TO_CQE;
    // SAFETY: a live context, whole attributes, and a struct at least as large as the library's.
    let qp = unsafe { (lib.create_qp)(context, &mut extended, &mut dv) };
    init.cap = extended.cap;
    qp.cast()
}

/// A completion event channel, made by `ibv_create_comp_channel`, to which armed CQs report events.
///
/// The descriptor becomes readable when an armed CQ has an event ([`AsFd`] for `poll` and friends).
#[derive(Debug)]
pub struct EventChannel {
    channel: *mut ibv_comp_channel,
}

// SAFETY: libibverbs' channel functions are thread-safe.
unsafe impl Send for EventChannel {}

impl EventChannel {
    /// Wraps a channel; the caller still destroys it.
    ///
    /// # Safety
    ///
    /// `channel` is a live channel, as the `*mut ibv_comp_channel` of any crate that declares that
    /// type, and outlives the value.
    pub unsafe fn from_verbs<T>(channel: *mut T) -> Self {
        Self { channel: channel.cast() }
    }

    /// Reads one event, acknowledges it, and returns the CQ's user context (`cq_context` of
    /// `ibv_create_cq`). Waits for an event unless the descriptor is non-blocking. Call
    /// [`Cq::event_received`](crate::Cq::event_received) afterwards.
    ///
    /// # Errors
    ///
    /// The error of `ibv_get_cq_event`; [`WouldBlock`](io::ErrorKind::WouldBlock) on a non-blocking
    /// descriptor.
    pub fn read_event(&self) -> io::Result<*mut c_void> {
        let (mut cq, mut context) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: a live channel by the contract of `from_verbs`; both out parameters are local
        // variables.
        if unsafe { doorbell_sys::ibv_get_cq_event(self.channel, &mut cq, &mut context) } != 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: `cq` came from the call above and is live, since destroying a CQ waits for this
        // acknowledgement.
        unsafe { doorbell_sys::ibv_ack_cq_events(cq, 1) };
        Ok(context)
    }
}

impl AsFd for EventChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: a live channel by the contract of `from_verbs`; its descriptor is open as long as
        // the channel lives.
        unsafe { BorrowedFd::borrow_raw((*self.channel).fd) }
    }
}

impl AsRawFd for EventChannel {
    fn as_raw_fd(&self) -> std::os::fd::RawFd {
        self.as_fd().as_raw_fd()
    }
}
