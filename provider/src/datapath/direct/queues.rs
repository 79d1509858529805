//! Send queues, and receive queues of EPs without an SRQ, on the direct path.
//!
//! Only the holder of the lock of the EP's requests uses the send queue, and only the holder of the
//! lock of its receives uses the receive queue. The send queue has the [`Request`] of each request
//! that it has posted.

use super::adopt::{self, Adopted};
use crate::Result;
use crate::datapath::fast::{Chain, PostReceives, PostSends};
use crate::datapath::request::{Outgoing, Request};
use crate::types::MAX_IOV;
use mlx5_direct::srq::PostError;
use mlx5_direct::wqe::KeyedSeg;
use mlx5_direct::wr::{Bind, Data, Inline, Landing, MAX_BIND_BYTES, Remote, Wr};
use mlx5_direct::{DataSeg, SendError, Sq};
use rxe_fallback::{BindMw, Mw, MwKind, PostError as Refusal, Qp, SendFlags, SendOp, Sge};

/// The send queue of a QP.
#[derive(Debug)]
pub(crate) struct DirectSends {
    queue: Adopted<Sq<Request>, Qp>,
}

/// The receive queue of a QP.
#[derive(Debug)]
pub(crate) struct DirectReceives {
    queue: Adopted<mlx5_direct::Rq, Qp>,
}

/// The segments in the device's format.
fn encode<'a>(sges: &[Sge], into: &'a mut [DataSeg]) -> Result<&'a [DataSeg], Refusal> {
    let too_many = Refusal::TooManySegments { given: sges.len(), max: into.len() };
    let into = into.get_mut(..sges.len()).ok_or(too_many)?;
    for (to, from) in into.iter_mut().zip(sges) {
        *to = DataSeg::new(from.addr, from.len, from.lkey);
    }
    Ok(into)
}

#[inline(always)]
fn with_flags<D: Data>(mut wr: Wr<D>, flags: SendFlags) -> Wr<D> {
    if flags.contains(SendFlags::SIGNALLED) {
        wr = wr.signalled();
    }
    if flags.contains(SendFlags::SOLICITED) {
        wr = wr.solicited();
    }
    if flags.contains(SendFlags::FENCE) {
        wr = wr.fenced();
    }
    wr
}

/// The request for the device, if it is a Send, an RDMA Write or an RDMA Read.
#[inline(always)]
fn wr_of<D: Landing>(op: SendOp<'static>, data: D) -> Option<Wr<D>> {
    let remote = |addr, rkey| Remote { addr, rkey };
    match op {
        SendOp::Send => Some(Wr::send(data)),
        SendOp::Write { remote_addr, rkey } => Some(Wr::write(remote(remote_addr, rkey), data)),
        SendOp::Read { remote_addr, rkey } => Some(Wr::read(remote(remote_addr, rkey), data)),
        _ => None,
    }
}

/// The number of bytes that a Send can carry in one block of 64 bytes, behind a control segment of
/// 16 and a length of 4.
const MOST_IN_BLOCK: usize = 44;

const NO_SEGMENT: DataSeg = DataSeg::new(0, 0, 0);

/// What takes requests: a queue, which rings for each, or a chain.
trait Taker {
    fn take<D: Data>(&mut self, wr: Wr<D>, cookie: Request) -> Result<(), SendError>;
}

impl Taker for Sq<Request> {
    fn take<D: Data>(&mut self, wr: Wr<D>, cookie: Request) -> Result<(), SendError> {
        self.post(wr, cookie)
    }
}

impl Taker for mlx5_direct::Chain<'_, Request> {
    fn take<D: Data>(&mut self, wr: Wr<D>, cookie: Request) -> Result<(), SendError> {
        self.push(wr, cookie)
    }
}

impl Chain for mlx5_direct::Chain<'_, Request> {
    type Segment = KeyedSeg;

    /// The request is made again if the queue has to look for room. It would be in memory if both
    /// calls used the same one, and the first would wait until that was stored.
    #[inline(always)]
    fn add_fast(
        &mut self,
        request: impl Fn() -> Request,
        op: SendOp<'static>,
        segment: KeyedSeg,
        flags: SendFlags,
    ) -> bool {
        let Some(wr) = wr_of(op, [segment]) else { return false };
        let wr = with_flags(wr, flags);
        self.push_in_span(&wr, request()) || self.push(wr, request()).is_ok()
    }

    fn add(&mut self, request: &Outgoing<'_>) -> Result<(), Refusal> {
        put(self, request)
    }
}

/// Passes a request on, except a bind.
fn put(to: &mut impl Taker, request: &Outgoing<'_>) -> Result<(), Refusal> {
    // Few segments are the common case, so only few are cleared.
    match request.sges.len() {
        ..=1 => put_from(to, request, &mut [NO_SEGMENT]),
        2..=4 => put_from(to, request, &mut [NO_SEGMENT; 4]),
        _ => put_from(to, request, &mut [NO_SEGMENT; MAX_IOV]),
    }
}

/// As [`put`]. `segments` has room for the request's segments.
fn put_from(to: &mut impl Taker, request: &Outgoing<'_>, segments: &mut [DataSeg]) -> Result<(), Refusal> {
    let data = encode(request.sges, segments)?;
    let remote = |addr, rkey| Remote { addr, rkey };
    match request.op {
        SendOp::Send => put_wr(to, Wr::send(data), request),
        SendOp::SendImm(imm) => put_wr(to, Wr::send_imm(imm, data), request),
        SendOp::SendInvalidate(rkey) => put_wr(to, Wr::send_inval(rkey, data), request),
        SendOp::Write { remote_addr, rkey } => {
            put_wr(to, Wr::write(remote(remote_addr, rkey), data), request)
        }
        SendOp::WriteImm { remote_addr, rkey, imm } => {
            put_wr(to, Wr::write_imm(remote(remote_addr, rkey), imm, data), request)
        }
        SendOp::Read { remote_addr, rkey } => put_wr(to, Wr::read(remote(remote_addr, rkey), data), request),
        SendOp::CmpSwap { remote_addr, rkey, compare, swap } => {
            let result = data.first().copied().unwrap_or(NO_SEGMENT);
            put_wr(to, Wr::compare_swap(remote(remote_addr, rkey), compare, swap, result), request)
        }
        SendOp::FetchAdd { remote_addr, rkey, add } => {
            let result = data.first().copied().unwrap_or(NO_SEGMENT);
            put_wr(to, Wr::fetch_add(remote(remote_addr, rkey), add, result), request)
        }
        SendOp::LocalInv(rkey) => put_wr(to, Wr::local_inval(rkey), request),
        _ => Err(Refusal::Refused(libc::EOPNOTSUPP)),
    }
}

fn put_wr<D: Data>(to: &mut impl Taker, mut wr: Wr<D>, request: &Outgoing<'_>) -> Result<(), Refusal> {
    let Outgoing { request: kept, flags, to: peer, .. } = *request;
    wr = with_flags(wr, flags);
    if let Some((ah, qpn, qkey)) = peer {
        let path = adopt::path_of(ah).map_err(|_| Refusal::Refused(libc::EINVAL))?;
        wr = wr.to(&path, qpn, qkey);
    }
    let given = request.sges.len();
    to.take(wr, kept).map_err(|error| match error {
        SendError::Full => Refusal::Full,
        SendError::TooLong => Refusal::TooManySegments { given, max: given.saturating_sub(1) },
    })
}

impl DirectSends {
    /// Takes over the send queue of a new QP.
    ///
    /// # Errors
    /// No memory for the queue's table.
    pub(crate) fn new(qp: &Qp) -> Result<Self> {
        Ok(Self { queue: adopt::send_queue(qp.clone())? })
    }

    pub(crate) fn find_room(&mut self) {
        self.queue.find_span();
    }

    /// Posts one request.
    pub(crate) fn push(&mut self, request: &Outgoing<'_>) -> Result<(), Refusal> {
        match request.op {
            SendOp::BindMw(bind) => self.bind(&bind, request),
            _ => put(&mut *self.queue, request),
        }
    }

    /// Posts a Send or an RDMA Write of these bytes.
    pub(crate) fn copy(
        &mut self,
        request: Request,
        op: SendOp<'_>,
        bytes: &[u8],
        flags: SendFlags,
    ) -> Result<(), Refusal> {
        let wr = match op {
            SendOp::Send => Wr::send(Inline(bytes)),
            SendOp::Write { remote_addr, rkey } => {
                Wr::write(Remote { addr: remote_addr, rkey }, Inline(bytes))
            }
            _ => return Err(Refusal::InlineMisplaced),
        };
        self.queue.post(with_flags(wr, flags), request).map_err(|error| match error {
            SendError::Full => Refusal::Full,
            SendError::TooLong => Refusal::InlineTooLong { given: bytes.len(), max: MOST_IN_BLOCK },
        })
    }

    /// Binds a window. The device does not choose the new key of a window of type 1, so this
    /// function chooses the next key.
    fn bind(&mut self, bind: &BindMw<'_>, request: &Outgoing<'_>) -> Result<(), Refusal> {
        if bind.len > MAX_BIND_BYTES {
            return Err(Refusal::Refused(libc::EOPNOTSUPP));
        }
        let type2 = bind.mw.kind() == MwKind::Type2;
        let rkey = bind.mw.rkey();
        let new_rkey = if type2 { bind.rkey } else { Mw::next_rkey(rkey) };
        let (lkey, addr, len) = (bind.mr.lkey(), bind.addr, bind.len);
        let window = Bind { rkey, new_rkey, type2, lkey, addr, len, access: bind.access.bits() };
        put_wr(&mut *self.queue, Wr::bind(window), request)?;
        if !type2 {
            bind.mw.set_rkey(new_rkey);
        }
        Ok(())
    }

    /// Releases the request that a completion names, and all before it. Returns it, and how many
    /// they are; `None` if it is not posted.
    #[inline(always)]
    pub(crate) fn complete(&mut self, counter: u16) -> Option<(Request, u32)> {
        self.queue.complete(counter).ok().map(|released| (released.cookie, released.requests))
    }

    /// Releases the oldest request without a completion.
    pub(crate) fn release_oldest(&mut self) -> Option<Request> {
        self.queue.release_oldest()
    }

    /// The number of requests that the device has.
    pub(crate) fn len(&self) -> u32 {
        self.queue.posted()
    }

    /// Starts again after the QP was reset.
    pub(crate) fn reset(&mut self) {
        self.queue.reset();
    }
}

impl PostSends for DirectSends {
    type Segment = KeyedSeg;
    type Chain<'a> = mlx5_direct::Chain<'a, Request>;

    /// Returns false also if the request needs more than one block, or if the queue has to look for
    /// room first.
    #[inline(always)]
    fn push_fast<const N: usize>(
        &mut self,
        request: Request,
        op: SendOp<'static>,
        segments: [KeyedSeg; N],
        flags: SendFlags,
    ) -> bool {
        let Some(wr) = wr_of(op, segments) else { return false };
        self.queue.post_in_span(&with_flags(wr, flags), request)
    }

    #[inline(always)]
    fn copy_fast(&mut self, request: Request, bytes: &[u8], flags: SendFlags) -> bool {
        bytes.len() <= MOST_IN_BLOCK
            && self.queue.post_in_span(&with_flags(Wr::send(Inline(bytes)), flags), request)
    }

    #[inline(always)]
    fn complete_oldest<E>(&mut self, named: u64, event: impl FnOnce(&Request) -> E) -> Option<E> {
        // Without a copy of the request: no test is then left of whether `op` is an operation.
        self.queue.complete_oldest(named as u16, |request| request.is_plain().then(|| event(request)))
    }

    #[inline(always)]
    fn chain<E>(
        &mut self,
        add: impl FnOnce(&mut mlx5_direct::Chain<'_, Request>) -> Result<(), E>,
    ) -> Result<Result<(), (usize, Refusal)>, E> {
        // Without `ring`, a chain takes its requests back.
        let mut chain = self.queue.chain();
        add(&mut chain)?;
        chain.ring_now();
        Ok(Ok(()))
    }
}

impl PostReceives for DirectReceives {
    type Segment = KeyedSeg;

    #[inline(always)]
    fn push_fast<const N: usize>(&mut self, segments: [KeyedSeg; N]) -> bool {
        self.queue.post_few(segments, 0).is_ok()
    }
}

impl DirectReceives {
    /// Takes over the receive queue of a new QP.
    ///
    /// # Errors
    /// No memory for the queue's table.
    pub(crate) fn new(qp: &Qp) -> Result<Self> {
        Ok(Self { queue: adopt::receive_queue(qp.clone())? })
    }

    pub(crate) fn push(&mut self, sges: &[Sge]) -> Result<(), Refusal> {
        let mut segments = [NO_SEGMENT; MAX_IOV];
        let data = encode(sges, &mut segments)?;
        self.queue.post(data, 0).map_err(|error| match error {
            PostError::Full => Refusal::Full,
            PostError::TooManySegments => {
                Refusal::TooManySegments { given: sges.len(), max: self.queue.max_segments() as usize }
            }
        })
    }

    /// Releases the receive that a completion names. False if it is not posted.
    #[inline(always)]
    pub(crate) fn complete(&mut self, slot: u16) -> bool {
        self.queue.complete(slot).is_ok()
    }

    /// Starts again after the QP was reset.
    pub(crate) fn reset(&mut self) {
        self.queue.reset();
    }
}
