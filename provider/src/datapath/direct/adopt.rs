#![expect(unsafe_code, reason = "verbs queues are handed over to mlx5-direct")]
//! Where verbs objects become queues that are driven here: the promises that [`mlx5_direct`] asks for, in one place.

use crate::{Error, Result, ReturnType, Subtype};
use mlx5_direct::{DepthError, DvError, LayoutError, dv};
use rxe_fallback::{Context, Cq, Pd, Qp, QpInit, Srq};
use std::ops::{Deref, DerefMut};

/// A queue that is driven here, and the verbs object whose memory it is; they go together.
#[derive(Debug)]
pub(super) struct Adopted<Q, V> {
    // Goes first: it lies in the memory of the other.
    queue: Q,
    verbs: V,
}

impl<Q, V> Adopted<Q, V> {
    pub(super) fn verbs(&self) -> &V {
        &self.verbs
    }
}

impl<Q, V> Deref for Adopted<Q, V> {
    type Target = Q;

    fn deref(&self) -> &Q {
        &self.queue
    }
}

impl<Q, V> DerefMut for Adopted<Q, V> {
    fn deref_mut(&mut self) -> &mut Q {
        &mut self.queue
    }
}

/// Why this device's queues cannot be driven here.
pub(crate) fn unsupported_reason(context: &Context) -> Option<String> {
    // libmlx5 turns signatures on when this variable exists; nobody here writes them.
    if std::env::var_os("MLX5_SRQ_SIGNATURE").is_some() {
        return Some("MLX5_SRQ_SIGNATURE is set: unset it".to_owned());
    }
    supported(context).err().map(|error| error.to_string())
}

/// Creates a QP that receives from a direct SRQ.
pub(crate) fn create_qp(pd: &Pd, init: &QpInit<'_>) -> Result<Qp, rxe_fallback::Error> {
    qp(pd, init)
}

/// Whether this device's queues can be driven here; the error says why not.
fn supported(context: &Context) -> Result<(), DvError> {
    // SAFETY: `context` is open as long as the reference lives.
    unsafe { dv::supported(context.as_raw()) }
}

/// Takes an SRQ over to which nothing was posted yet.
pub(super) fn srq(verbs: Srq, depth: u32) -> Result<Adopted<mlx5_direct::Srq, Srq>> {
    // SAFETY: `verbs` lives as long as `Adopted`, which nothing here takes apart. It was moved in, and no other clone posts:
    // QPs hold theirs to stay alive only. CQs that receive from it are taken over too, by `cq`. Buffers come from
    // LMRs, whose contract covers what the device does to posted memory; one that is freed while posted has a dead
    // key, with which the device writes nothing.
    let queue = unsafe { mlx5_direct::Srq::from_verbs(verbs.as_raw(), Some(depth)) };
    Ok(Adopted { queue: queue.map_err(|e| refused(Subtype::ResourceSrq, &e))?, verbs })
}

/// Takes a new CQ over for receives from such an SRQ.
pub(super) fn cq(verbs: Cq) -> Result<Adopted<mlx5_direct::Cq, Cq>> {
    // SAFETY: `verbs` lives as long as `Adopted`. It was moved in, and clones go to QPs as their receive CQ, which neither poll, arm
    // nor resize it, and never as their send CQ.
    let queue = unsafe { mlx5_direct::Cq::from_verbs(verbs.as_raw()) };
    Ok(Adopted { queue: queue.map_err(|e| refused(Subtype::ResourceTevd, &e))?, verbs })
}

/// Creates a QP whose received payload is always in its buffer.
fn qp(pd: &Pd, init: &QpInit<'_>) -> Result<Qp, rxe_fallback::Error> {
    // SAFETY: the function creates a QP of that PD with these attributes, through libmlx5 instead of libibverbs.
    unsafe { Qp::create_with(pd, init, |pd, init| dv::create_qp_without_scatter(pd, init)) }
}

fn refused(sub: Subtype, error: &DvError) -> Error {
    if matches!(error, DvError::Layout(LayoutError::NoMemory) | DvError::Depth(DepthError::NoMemory)) {
        return Error::resources(sub, "no memory for the tables that go with a queue of the device");
    }
    let text =
        format!("the direct data path cannot take this queue over ({error}): set DOORBELL_DATAPATH=verbs");
    Error::new(ReturnType::InsufficientResources, sub, text)
}
