//! A request as an EP hands it to its send queue, and what is kept of it until it completes.

use super::WrInfo;
use crate::event_data::Owner;
use crate::types::{CompletionFlags, DtoOp};
use bitflags::bitflags;
use rxe_fallback::{Ah, SendFlags, SendOp, Sge};

/// A request in the terms of the transport.
#[derive(Clone, Copy)]
pub(crate) struct Outgoing<'a> {
    /// What is kept of it until it completes.
    pub(crate) request: Request,
    pub(crate) op: SendOp<'a>,
    pub(crate) sges: &'a [Sge],
    pub(crate) flags: SendFlags,
    /// The destination of a datagram: address handle, QP number and queue key.
    pub(crate) to: Option<(&'a Ah, u32, u32)>,
}

/// A request that is posted and not completed.
#[derive(Clone, Copy, Debug)]
// Two fields of a Send of no pool are 0 and are written together.
#[repr(C)]
pub struct Request {
    /// As given with the work request.
    pub cookie: u64,
    /// The number of the pool that the buffer belongs to; 0 for none. Of a bind, that of the RMR.
    number: u32,
    /// What it does.
    pub op: DtoOp,
    /// The number of bytes to move. Of a bind, which of its RMR's requests it is.
    pub length: u32,
    state: RequestState,
}

impl Default for Request {
    fn default() -> Self {
        Self::NONE
    }
}

bitflags! {
    /// The completion flags of a request, and what else there is to know of it.
    #[derive(Clone, Copy, Debug)]
    struct RequestState: u32 {
        /// As [`CompletionFlags::SUPPRESS`].
        const SUPPRESS = CompletionFlags::SUPPRESS.bits();
        /// No event, even if it fails: the request is not the program's.
        const SILENT = 1 << 29;
        /// The device does not have the request.
        const NOT_ON_DEVICE = 1 << 30;
        /// A bind, or an operation of the extension.
        const SPECIAL = 1 << 31;
        /// What makes a completion other than plain.
        const NOT_PLAIN = Self::SUPPRESS.bits() | Self::SPECIAL.bits();
        const _ = !0;
    }
}

impl Request {
    pub(crate) const NONE: Self =
        Self { cookie: 0, number: 0, op: DtoOp::Send, length: 0, state: RequestState::NOT_ON_DEVICE };

    /// A request for the device.
    #[inline(always)]
    pub(crate) fn new(info: &WrInfo, flags: CompletionFlags, op: DtoOp, length: u32) -> Self {
        let WrInfo { cookie, pool, .. } = *info;
        let mut state = RequestState::from_bits_retain(flags.bits());
        if op == DtoOp::RmrBind || op.is_extension() {
            state |= RequestState::SPECIAL;
        }
        Self { cookie, number: pool, op, length, state }
    }

    /// An RDMA Write of no bytes, whose completion ends the requests before it.
    pub(crate) fn end_of_chain() -> Self {
        let mut request = Self::new(&WrInfo::default(), CompletionFlags::SUPPRESS, DtoOp::RdmaWrite, 0);
        request.state |= RequestState::SILENT;
        request
    }

    /// A bind of the RMR of this number. `serial` comes back as the length of the completion.
    pub(crate) fn bind(rmr: u32, cookie: u64, flags: CompletionFlags, serial: u32) -> Self {
        let info = WrInfo { cookie, ..WrInfo::default() };
        Self { number: rmr, ..Self::new(&info, flags, DtoOp::RmrBind, serial) }
    }

    /// The completion flags.
    pub(crate) fn flags(&self) -> CompletionFlags {
        CompletionFlags::from_bits_truncate(self.state.bits())
    }

    /// Whether the end of the request is an event.
    #[inline(always)]
    pub(crate) fn has_event(&self, failed: bool) -> bool {
        let without = if failed { RequestState::SILENT } else { RequestState::SUPPRESS };
        !self.state.contains(without)
    }

    /// The device has the request. Otherwise the request waits behind requests that the device has,
    /// and is flushed after them.
    pub(crate) fn is_on_device(&self) -> bool {
        !self.state.contains(RequestState::NOT_ON_DEVICE)
    }

    /// Records that the device does not get the request.
    pub(crate) fn keep_off_device(&mut self) {
        self.state |= RequestState::NOT_ON_DEVICE;
    }

    /// Whether the request has an event, the event has no effect when the consumer takes it, and
    /// the operation is not of the extension.
    #[inline(always)]
    pub(crate) fn is_plain(&self) -> bool {
        !self.state.intersects(RequestState::NOT_PLAIN)
    }

    /// Who has posted the request.
    pub(crate) fn owner(&self) -> Owner {
        if self.op == DtoOp::RmrBind { Owner::Bind(self.number) } else { Owner::of_pool(self.number) }
    }

    /// The pool that the buffer of a plain request belongs to; 0 for none.
    #[inline(always)]
    pub(crate) fn plain_pool(&self) -> u32 {
        self.number
    }
}
