//! A request as an EP hands it to its send queue.

use rxe_fallback::{Ah, SendFlags, SendOp, Sge};

/// A request in the terms of the transport.
#[derive(Clone, Copy)]
pub(crate) struct Outgoing<'a> {
    /// The position in the EP's stream of requests.
    pub(crate) seq: u64,
    pub(crate) op: SendOp<'a>,
    pub(crate) sges: &'a [Sge],
    pub(crate) flags: SendFlags,
    /// The destination of a datagram: address handle, QP number and queue key.
    pub(crate) to: Option<(&'a Ah, u32, u32)>,
}
