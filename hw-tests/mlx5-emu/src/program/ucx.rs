//! UCX: the engine runs in the program's progress loop.
//!
//! The transports rc_mlx5 and ud_mlx5 of UCX ring doorbells and read CQs themselves, so no hook on
//! libmlx5 runs the engine. Such a program polls all the time, and the helper thread needs a core
//! of its own to serve it. But every program of UCX polls through a worker, and a worker calls any
//! function that is registered with it. This module therefore stands in front of the two public
//! functions that create and destroy a worker, and registers the engine with each new one.
#![expect(unsafe_code, reason = "C entry points with raw pointers, functions of libuct")]

use std::collections::HashMap;
use std::sync::{LazyLock, Mutex, PoisonError};

use libc::{c_int, c_uint, c_void};

use crate::host::sys;

/// `ucs_status_t`, a packed enumeration.
type Status = i8;
const OK: Status = 0;
const NO_RESOURCE: Status = -2;
/// `UCS_CALLBACKQ_FLAG_FAST`: call the function in every round.
const FAST: c_uint = 1;

type Callback = extern "C" fn(*mut c_void) -> c_uint;
type Create = unsafe extern "C" fn(*mut c_void, c_uint, *mut *mut c_void) -> Status;
type Destroy = unsafe extern "C" fn(*mut c_void);
type Register = unsafe extern "C" fn(*mut c_void, Callback, *mut c_void, c_uint, *mut c_int);
type Unregister = unsafe extern "C" fn(*mut c_void, *mut c_int);

/// The number of our registration with each worker, by the worker's address.
static REGISTRATIONS: LazyLock<Mutex<HashMap<usize, c_int>>> = LazyLock::new(Mutex::default);

/// The lock of the registrations, for a thread that forks.
pub(crate) fn hold() -> impl Sized + 'static {
    REGISTRATIONS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A function of libuct with the given type.
macro_rules! of_libuct {
    ($name:literal as $type:ty) => {{
        let found = sys::of_loaded(c"libuct.so.0", $name);
        // SAFETY: libuct's function of this name has this type in all versions 1.x.
        (!found.is_null()).then(|| unsafe { std::mem::transmute::<*mut c_void, $type>(found) })
    }};
}

extern "C" fn progress(_: *mut c_void) -> c_uint {
    crate::program::hooks::driver_polls();
    0
}

/// UCX's function: creates a worker.
///
/// # Safety
/// As the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uct_worker_create(
    context: *mut c_void,
    thread_mode: c_uint,
    worker: *mut *mut c_void,
) -> Status {
    let Some(create) = of_libuct!(c"uct_worker_create" as Create) else { return NO_RESOURCE };
    // SAFETY: arguments are handed on unchanged.
    let status = unsafe { create(context, thread_mode, worker) };
    if status == OK
        && crate::host::config::ucx_workers()
        && let Some(register) = of_libuct!(c"uct_worker_progress_register_safe" as Register)
    {
        let mut id = -1;
        // SAFETY: the call above stored the new worker. The callback lives as long as the program.
        let worker = unsafe {
            register(*worker, progress, std::ptr::null_mut(), FAST, &raw mut id);
            *worker
        };
        REGISTRATIONS.lock().unwrap_or_else(PoisonError::into_inner).insert(worker.addr(), id);
    }
    status
}

/// UCX's function: destroys a worker.
///
/// # Safety
/// As the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uct_worker_destroy(worker: *mut c_void) {
    let id = REGISTRATIONS.lock().unwrap_or_else(PoisonError::into_inner).remove(&worker.addr());
    if let Some(mut id) = id
        && let Some(unregister) = of_libuct!(c"uct_worker_progress_unregister_safe" as Unregister)
    {
        // SAFETY: the worker lives until the call below, and the number is of a registration with
        // it.
        unsafe { unregister(worker, &raw mut id) };
    }
    if let Some(destroy) = of_libuct!(c"uct_worker_destroy" as Destroy) {
        // SAFETY: the argument is handed on unchanged.
        unsafe { destroy(worker) };
    }
}
