//! Send queues, and receive queues of EPs without an SRQ, on the verbs path.

use crate::Result;
use crate::datapath::WrId;
use crate::datapath::fast::{Chain, PostReceives, PostSends};
use crate::datapath::request::{Outgoing, Request};
use crate::datapath::ring::Ring;
use rxe_fallback::{MwKind, PostError as Refusal, Qp, SendFlags, SendList, SendOp, SendWr, Sge, UdDest};

/// The send queue of a QP, with the requests that the device has. A completion names a request by
/// its position in their ring.
#[derive(Debug)]
pub(crate) struct VerbsSends {
    qp: Qp,
    requests: Ring<Request>,
}

/// The receive queue of a QP.
#[derive(Debug)]
pub(crate) struct VerbsReceives {
    qp: Qp,
}

/// Requests that are posted with one call.
pub(crate) struct VerbsChain<'a, 'b> {
    list: SendList<'a, 'b>,
    requests: &'a mut Ring<Request>,
}

impl VerbsSends {
    /// The queue of a new QP, for this number of requests.
    ///
    /// # Errors
    /// No memory for the table of requests.
    pub(crate) fn new(qp: &Qp, requests: usize) -> Result<Self> {
        Ok(Self { qp: qp.clone(), requests: Ring::of_requests(requests)? })
    }

    pub(crate) fn push(&mut self, request: &Outgoing<'_>) -> Result<(), Refusal> {
        let Outgoing { request, op, sges, flags, to } = *request;
        let wr_id = next(&self.requests);
        match op {
            SendOp::BindMw(bind) if bind.mw.kind() == MwKind::Type1 => {
                bind.mw.bind(&self.qp, wr_id, &bind, flags)?;
            }
            _ => {
                let ud = to.map(|(ah, qpn, qkey)| UdDest { ah, qpn, qkey });
                self.qp.post_send(&SendWr { wr_id, op, sges, flags, inline: None, ud })?;
            }
        }
        self.requests.push(request);
        Ok(())
    }

    pub(crate) fn copy(
        &mut self,
        request: Request,
        op: SendOp<'_>,
        bytes: &[u8],
        flags: SendFlags,
    ) -> Result<(), Refusal> {
        let inline = (!bytes.is_empty()).then_some(bytes);
        let wr_id = next(&self.requests);
        self.qp.post_send(&SendWr { wr_id, op, sges: &[], flags, inline, ud: None })?;
        self.requests.push(request);
        Ok(())
    }

    #[inline(always)]
    pub(crate) fn complete(&mut self, named: u64) -> Option<(Request, u32)> {
        let before = named.wrapping_sub(self.requests.first());
        Some((self.requests.take(named)?, before as u32 + 1))
    }

    pub(crate) fn release_oldest(&mut self) -> Option<Request> {
        self.requests.take_first()
    }

    pub(crate) fn len(&self) -> u32 {
        self.requests.len() as u32
    }

    pub(crate) fn reset(&mut self) {
        self.requests.clear();
    }
}

/// The ID of the next request.
#[inline(always)]
fn next(requests: &Ring<Request>) -> u64 {
    WrId::Request(requests.end()).pack()
}

impl PostSends for VerbsSends {
    type Segment = Sge;
    type Chain<'a, 'b> = VerbsChain<'a, 'b>;

    #[inline(always)]
    fn push_fast<const N: usize>(
        &mut self,
        request: Request,
        op: SendOp<'static>,
        segments: [Sge; N],
        flags: SendFlags,
    ) -> bool {
        let posted = self.qp.post_send_few(next(&self.requests), op, &segments, flags).is_ok();
        if posted {
            self.requests.push(request);
        }
        posted
    }

    #[inline(always)]
    fn push_any<const N: usize>(
        &mut self,
        request: Request,
        op: SendOp<'static>,
        segments: [Sge; N],
        flags: SendFlags,
    ) -> bool {
        self.push_fast(request, op, segments, flags)
    }

    #[inline(always)]
    fn copy_fast<const ANY: bool>(&mut self, _: Request, _: &[u8], _: SendFlags) -> bool {
        false
    }

    #[inline(always)]
    fn copy_long_fast(&mut self, _: Request, _: &[u8], _: SendFlags) -> bool {
        false
    }

    fn copy_any(&mut self, request: Request, bytes: &[u8], flags: SendFlags) -> bool {
        self.copy(request, SendOp::Send, bytes, flags).is_ok()
    }

    #[inline(always)]
    fn complete_if<E>(&mut self, named: u64, accept: impl FnOnce(&Request) -> Option<E>) -> Option<(E, u32)> {
        let before = named.wrapping_sub(self.requests.first());
        let accepted = accept(self.requests.get(named)?)?;
        let requests = before as u32 + 1;
        self.requests.pass(requests);
        Some((accepted, requests))
    }

    fn chain<'b, E>(
        &mut self,
        add: impl FnOnce(&mut VerbsChain<'_, 'b>) -> Result<(), E>,
    ) -> Result<Result<(), (usize, Refusal)>, E> {
        let Self { qp, requests } = self;
        let mut chain = VerbsChain { list: SendList::new(qp), requests };
        let added = add(&mut chain);
        let VerbsChain { list, requests } = &mut chain;
        let posted = if added.is_ok() { list.post() } else { Ok(()) };
        let done = match (&added, &posted) {
            (Err(_), _) => 0,
            (_, Err(stopped)) => stopped.index,
            _ => list.len(),
        };
        requests.take_back((list.len() - done) as u32);
        added.map(|()| posted.map_err(|stopped| (stopped.index, stopped.reason)))
    }
}

impl<'b> Chain<'b> for VerbsChain<'_, 'b> {
    type Segment = Sge;

    #[inline(always)]
    fn add_fast(
        &mut self,
        request: impl Fn() -> Request,
        op: SendOp<'static>,
        segment: Sge,
        flags: SendFlags,
    ) -> bool {
        self.add(&Outgoing { request: request(), op, sges: &[segment], flags, to: None }).is_ok()
    }

    fn add(&mut self, request: &Outgoing<'_>) -> Result<(), Refusal> {
        let Outgoing { request, op, sges, flags, .. } = *request;
        self.list.push(&SendWr { flags, ..SendWr::new(next(self.requests), op, sges) })?;
        self.requests.push(request);
        Ok(())
    }

    #[inline(always)]
    fn copy_fast(
        &mut self,
        request: impl Fn() -> Request,
        op: SendOp<'static>,
        bytes: &'b [u8],
        flags: SendFlags,
    ) -> bool {
        self.copy(request(), op, bytes, flags).is_ok()
    }

    fn copy(
        &mut self,
        request: Request,
        op: SendOp<'static>,
        bytes: &'b [u8],
        flags: SendFlags,
    ) -> Result<(), Refusal> {
        let wr = SendWr { flags, ..SendWr::new(next(self.requests), op, &[]) };
        if bytes.is_empty() { self.list.push(&wr) } else { self.list.push_inline(&wr, bytes) }?;
        self.requests.push(request);
        Ok(())
    }
}

impl VerbsReceives {
    /// The queue of a new QP.
    pub(crate) fn new(qp: &Qp) -> Self {
        Self { qp: qp.clone() }
    }

    pub(crate) fn push(&mut self, sges: &[Sge]) -> Result<(), Refusal> {
        // The consumer of a UD EP must leave 40 bytes in front of the message.
        self.qp.post_recv_raw(WrId::Recv(0).pack(), sges)
    }
}

impl PostReceives for VerbsReceives {
    type Segment = Sge;

    #[inline(always)]
    fn push_fast<const N: usize>(&mut self, segments: [Sge; N]) -> bool {
        self.qp.post_recv_raw(WrId::Recv(0).pack(), &segments).is_ok()
    }
}
