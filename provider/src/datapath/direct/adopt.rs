#![expect(unsafe_code, reason = "verbs queues are handed over to mlx5-direct")]
//! Turns verbs objects into queues that this provider drives. All obligations that [`mlx5_direct`]
//! puts on its callers are met in this module.

use crate::datapath::request::Request;
use crate::{Error, Result, ReturnType, Subtype, fork};
use mlx5_direct::queue_mem::SqCaps;
use mlx5_direct::wr::AddressVector;
use mlx5_direct::{DepthError, DvError, LayoutError, dv};
use rxe_fallback::{Ah, Context, Cq, Pd, Qp, QpInit, Srq};
use std::ops::{Deref, DerefMut};

/// A queue that this provider drives, and the verbs object that owns its memory.
#[derive(Debug)]
pub(super) struct Adopted<Q, V> {
    // Dropped first: the queue lies in the memory of the verbs object.
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

/// Lets forks hold the lock of [`mlx5_direct`] that all send queues share.
pub(crate) fn share() {
    fork::share(fork::Part::SendRegisters, || vec![Box::new(mlx5_direct::sq::hold_registers())], || {});
}

/// Loads libmlx5, so that libibverbs need not load all drivers where every device is an mlx5.
pub(crate) fn load_driver() {
    if let Err(error) = dv::load_driver() {
        tracing::debug!(%error, "libibverbs loads the drivers of all devices");
    }
}

/// The reason why the direct path cannot drive this device's queues, or `None`.
pub(crate) fn unsupported_reason(context: &Context) -> Option<String> {
    // libmlx5 turns signatures on if this variable exists, and the direct path writes no
    // signatures. libmlx5 reads the variable in programs with privileges, too.
    if std::env::var_os("MLX5_SRQ_SIGNATURE").is_some() {
        return Some("MLX5_SRQ_SIGNATURE is set: unset it".to_owned());
    }
    supported(context).err().map(|error| error.to_string())
}

/// Creates a QP whose received payload is always written to its buffer.
pub(crate) fn create_qp(pd: &Pd, init: &QpInit<'_>) -> Result<Qp, rxe_fallback::Error> {
    qp(pd, init)
}

/// Whether the direct path can drive this device's queues. The error is the reason if not.
fn supported(context: &Context) -> Result<(), DvError> {
    // SAFETY: `context` is open as long as the reference lives.
    unsafe { dv::supported(context.as_raw()) }
}

/// Takes over an SRQ to which nothing was posted.
pub(super) fn srq(verbs: Srq, depth: u32) -> Result<Adopted<mlx5_direct::Srq, Srq>> {
    // SAFETY: `verbs` lives as long as `Adopted`, which no code here takes apart. `verbs` was moved
    // in, and no other clone posts: QPs hold their clones only to keep the SRQ alive. CQs that
    // receive from the SRQ are taken over too, by `cq`. Buffers come from LMRs, whose contract
    // covers what the device does to posted memory. An LMR that is freed while posted has a dead
    // key, with which the device writes nothing.
    let queue = unsafe { mlx5_direct::Srq::from_verbs(verbs.as_raw(), Some(depth)) };
    Ok(Adopted { queue: queue.map_err(|e| refused(Subtype::ResourceSrq, &e))?, verbs })
}

/// Takes over a new CQ.
pub(super) fn cq(verbs: Cq) -> Result<Adopted<mlx5_direct::Cq, Cq>> {
    // SAFETY: `verbs` lives as long as `Adopted`. `verbs` was moved in. Its clones go to QPs as
    // their CQs, and QPs neither poll, arm nor resize their CQs. The queues of these QPs are
    // driven here as well: their SRQ by `srq`, the others by `send_queue` and `receive_queue`.
    let queue = unsafe { mlx5_direct::Cq::from_verbs(verbs.as_raw()) };
    Ok(Adopted { queue: queue.map_err(|e| refused(Subtype::ResourceTevd, &e))?, verbs })
}

/// Takes over the send queue of a QP to which nothing was posted.
pub(super) fn send_queue(verbs: Qp) -> Result<Adopted<mlx5_direct::Sq<Request>, Qp>> {
    let caps = verbs.caps();
    let caps = SqCaps {
        max_requests: caps.max_send_wr,
        max_segments: caps.max_send_sge,
        max_inline: caps.max_inline,
        signal_all: false,
    };
    // SAFETY: `verbs` lives as long as `Adopted`. The clones of `verbs` change and query the QP's
    // state: on the direct path, `SendQueue` posts here and nowhere else. The send CQ was taken
    // over by `cq`. An IA has a context of its own, in which all QPs are created by this provider
    // and driven here, so every queue that rings the register belongs to mlx5-direct. Memory that
    // requests name is covered as in `srq`. `caps` is what the creation gave, and `signal_all` was
    // not asked for.
    let queue = unsafe { mlx5_direct::Sq::from_verbs_with(verbs.as_raw(), caps) };
    let queue = queue.map_err(|e| refused(Subtype::ResourceTep, &e))?;
    Ok(Adopted { queue: queue.with_cookies_of()?, verbs })
}

/// Takes over the receive queue of a QP to which nothing was posted.
pub(super) fn receive_queue(verbs: Qp) -> Result<Adopted<mlx5_direct::Rq, Qp>> {
    // SAFETY: as in `send_queue`, with `RecvQueue` and the receive CQ.
    let queue = unsafe { mlx5_direct::Rq::from_verbs_with(verbs.as_raw(), verbs.caps().max_recv_wr) };
    Ok(Adopted { queue: queue.map_err(|e| refused(Subtype::ResourceTep, &e))?, verbs })
}

/// The path of an address handle, as requests carry it.
pub(super) fn path_of(ah: &Ah) -> Result<AddressVector, DvError> {
    // SAFETY: the handle is alive as long as the reference.
    unsafe { AddressVector::from_verbs(ah.as_raw()) }
}

/// Creates a QP whose received payload is always written to its buffer.
fn qp(pd: &Pd, init: &QpInit<'_>) -> Result<Qp, rxe_fallback::Error> {
    // SAFETY: the function creates a QP of that PD with these attributes, through libmlx5 instead
    // of libibverbs.
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
