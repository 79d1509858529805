#![expect(unsafe_code, reason = "objects are freed, and verbs objects go back to libmlx5")]
//! The end of objects.
//!
//! The control lock is held during all of this, but for what is in no table.

use core::{fmt, ptr};
use std::sync::atomic::Ordering::Relaxed;

use doorbell_sys::ibv_cq;

use crate::{
    extended_cq,
    objects::{Cq, Qp},
    report::{self, Class},
};

/// Frees an object that is in no table any more and that no other thread uses.
pub(super) fn free<T>(object: &'static T) {
    // SAFETY: objects are made by `leak`, and are freed once, when their verbs object is gone.
    drop(unsafe { Box::from_raw(ptr::from_ref(object).cast_mut()) });
}

/// Leaves a CQ to libmlx5. A second call for the same CQ does nothing.
pub(super) fn leave_cq(cq: &'static Cq, why: &dyn fmt::Display) {
    if !cq.left.swap(true, Relaxed) {
        let raw = cq.raw.get();
        // SAFETY: the CQ was not left before, so it is in the table, and alive: its destruction
        // removes it under the control lock, which the caller holds.
        unsafe {
            cq.context.objects.give_up::<ibv_cq>(raw);
            extended_cq::restore(raw, cq);
        }
        report::left(Class::Cq, format_args!("CQ {raw:p}"), why);
        // The object is not freed: a poll of another thread may hold its lock.
    }
}

/// Removes the completions of a QP that has stopped for good or was reset.
pub(super) fn clean(qp: &Qp) {
    for cq in qp.cqs() {
        if let Some(direct) = &mut cq.state.lock().direct {
            direct.clean(qp.number, |completion| {
                if let (Some(srq), Some(slot)) = (qp.srq(), completion.slot()) {
                    // A slot of a faulty device that is not in use stays so.
                    let _ = srq.direct.lock().complete(slot);
                }
            });
        }
    }
}

/// Ends a QP that is in no table of addresses any more. The control lock is held.
pub(super) fn forget(qp: &'static Qp) {
    // SAFETY: a QP is freed under the control lock.
    let current = unsafe { qp.context.qps.get(qp.number) };
    // Otherwise the number was given out again, and the new QP's thread has cleaned the CQs.
    if current.is_some_and(|current| ptr::eq(current, qp)) {
        clean(qp);
        qp.context.qps.set(qp.number, None);
    }
    // A thread that has found the QP by its number holds the lock of one of its CQs.
    qp.cqs().for_each(|cq| cq.state.lock().qps.forget());
    if let Some(srq) = qp.srq() {
        srq.qps.fetch_sub(1, Relaxed);
    }
    free(qp);
}
