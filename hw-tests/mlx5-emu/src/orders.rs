//! [`crate::control`] for programs with a preloaded device, which find `mlx5_emu_control` with
//! dlsym(3).
#![expect(unsafe_code, reason = "a function that C programs find by name")]

use std::ffi::{CStr, c_char};

use crate::control;
use crate::device::{self};
use crate::host::complaints;
use crate::objects::ObjectKind;
use crate::objects::faults;

/// Carries out an order or returns a count. Orders: `port up`, `port down`, `fatal`, `remove`, `srq
/// error` and `cq error` (all that are in use break), `reuse qpn` (the next QP gets the number of
/// the one that was destroyed last), `no faults`, `release` (the held-back completions of the fault
/// `late`), `step` (as [`control::step`]), `ready` (waits until the device's thread has its
/// descriptors), `fault RULES` (in the form of `MLX5_EMU_FAULTS`), and `count
/// pd|mr|cq|qp|srq|ah|uar|complaint`. Returns the count for `count`, 0 for the other orders, and -1
/// for an unknown order.
///
/// # Safety
/// `order` points to a string with a NUL.
#[unsafe(no_mangle)]
unsafe extern "C" fn mlx5_emu_control(order: *const c_char) -> i64 {
    // SAFETY: the caller's promise.
    let order = unsafe { CStr::from_ptr(order) };
    std::panic::catch_unwind(|| order.to_str().ok().and_then(obey)).ok().flatten().unwrap_or(-1)
}

fn obey(order: &str) -> Option<i64> {
    match order {
        "port up" => control::set_port(true),
        "port down" => control::set_port(false),
        "fatal" => control::fatal_error(),
        "remove" => control::remove_device(),
        "srq error" => device::lock().card.break_srqs(),
        "cq error" => device::lock().card.break_cqs(),
        "reuse qpn" => device::lock().card.qps.use_again(),
        "no faults" => control::no_faults(),
        "release" => control::release_late(),
        "step" => control::step(),
        "ready" => crate::program::helper::wait_until_ready(),
        _ => {
            return match order.split_once(' ')? {
                ("count", kind) => count(kind),
                ("fault", rules) => inject(rules),
                _ => None,
            };
        }
    }
    Some(0)
}

fn inject(rules: &str) -> Option<i64> {
    for rule in rules.split(';') {
        control::inject(faults::parse(rule).ok()?);
    }
    Some(0)
}

/// Objects of this kind in all contexts of the process.
fn count(kind: &str) -> Option<i64> {
    if kind == "complaint" {
        return i64::try_from(complaints::complaint_count()).ok();
    }
    let kind = match kind {
        "pd" => ObjectKind::Pd,
        "mr" => ObjectKind::Mr,
        "cq" => ObjectKind::Cq,
        "qp" => ObjectKind::Qp,
        "srq" => ObjectKind::Srq,
        "ah" => ObjectKind::Ah,
        "uar" => ObjectKind::Uar,
        _ => return None,
    };
    if !device::exists() {
        return Some(0);
    }
    let device = device::lock();
    let objects = device.card.contexts.iter().flat_map(|(_, context)| context.handles.values());
    i64::try_from(objects.filter(|(k, _)| *k == kind).count()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_are_obeyed_or_refused() {
        let order = |text: &CStr| {
            // SAFETY: a string with a NUL.
            unsafe { mlx5_emu_control(text.as_ptr()) }
        };
        assert_eq!(order(c"count mr"), 0);
        assert_eq!(order(c"fault drop*2;cmd.create_srq=12"), 0);
        assert_eq!(order(c"no faults"), 0);
        for wrong in [c"", c"count", c"count sheep", c"fault nonsense", c"port sideways"] {
            assert_eq!(order(wrong), -1, "{wrong:?}");
        }
    }
}
