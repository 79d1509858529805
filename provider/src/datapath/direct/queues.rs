//! Send queues, and receive queues of EPs without an SRQ, on the direct path.
//!
//! Only the holder of the lock of the EP's requests uses the send queue, and only the holder of the
//! lock of its receives uses the receive queue. The send queue has the [`Request`] of each request
//! that it has posted.

use super::adopt::{self, Adopted};
use crate::Result;
use crate::datapath::request::{Outgoing, Request};
use crate::types::MAX_IOV;
use mlx5_direct::srq::PostError;
use mlx5_direct::wqe::KeyedSeg;
use mlx5_direct::wr::{Bind, Data, Inline, MAX_BIND_BYTES, Remote, Wr};
use mlx5_direct::{Chain, DataSeg, SendError, Sq};
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

/// The number of bytes that a Send can carry in one block of 64 bytes, behind a control segment of
/// 16 and a length of 4.
pub(crate) const MOST_IN_BLOCK: usize = 44;

const NO_SEGMENT: DataSeg = DataSeg::new(0, 0, 0);

/// Sends and RDMA Writes of one segment that one doorbell hands to the device
/// ([`DirectSends::ones`]). Without [`Ones::ring`], the queue takes them back.
pub(crate) struct Ones<'a> {
    chain: Chain<'a, Request>,
}

impl Ones<'_> {
    /// Writes a request. Returns false if the queue does not take it.
    #[inline(always)]
    pub(crate) fn push(
        &mut self,
        request: impl Fn() -> Request,
        op: SendOp<'_>,
        segment: KeyedSeg,
        flags: SendFlags,
    ) -> bool {
        match op {
            SendOp::Send => self.push_wr(with_flags(Wr::send([segment]), flags), request),
            SendOp::Write { remote_addr, rkey } => {
                let remote = Remote { addr: remote_addr, rkey };
                self.push_wr(with_flags(Wr::write(remote, [segment]), flags), request)
            }
            _ => false,
        }
    }

    /// The request is made again for the general way. It would be in memory if both ways used the
    /// same one, and the first would wait until that was stored.
    #[inline(always)]
    fn push_wr<D: Data>(&mut self, wr: Wr<D>, request: impl Fn() -> Request) -> bool {
        self.chain.push_in_span(&wr, request()) || self.chain.push(wr, request()).is_ok()
    }

    /// Hands the requests to the device.
    #[inline(always)]
    pub(crate) fn ring(&mut self) {
        self.chain.ring_now();
    }
}

/// What takes requests: a queue, which rings for each, or a chain.
trait Taker {
    fn take<D: Data>(&mut self, wr: Wr<D>, cookie: Request) -> Result<(), SendError>;
}

impl Taker for Sq<Request> {
    fn take<D: Data>(&mut self, wr: Wr<D>, cookie: Request) -> Result<(), SendError> {
        self.post(wr, cookie)
    }
}

impl Taker for Chain<'_, Request> {
    fn take<D: Data>(&mut self, wr: Wr<D>, cookie: Request) -> Result<(), SendError> {
        self.push(wr, cookie)
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
    let Outgoing { record, flags, to: peer, .. } = *request;
    wr = with_flags(wr, flags);
    if let Some((ah, qpn, qkey)) = peer {
        let path = adopt::path_of(ah).map_err(|_| Refusal::Refused(libc::EINVAL))?;
        wr = wr.to(&path, qpn, qkey);
    }
    let given = request.sges.len();
    to.take(wr, record.request).map_err(|error| match error {
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

    /// Posts a request of one segment: a Send, RDMA Write or RDMA Read, with SIGNALLED and
    /// SOLICITED at most. Returns false without posting if the queue has to look for room first
    /// ([`DirectSends::find_room`]).
    #[inline(always)]
    pub(crate) fn post_one(&mut self, request: Request, op: SendOp<'_>, sge: Sge, flags: SendFlags) -> bool {
        let data = DataSeg::new(sge.addr, sge.len, sge.lkey);
        let remote = |addr, rkey| Remote { addr, rkey };
        let wr = match op {
            SendOp::Send => Wr::send(data),
            SendOp::Write { remote_addr, rkey } => Wr::write(remote(remote_addr, rkey), data),
            SendOp::Read { remote_addr, rkey } => Wr::read(remote(remote_addr, rkey), data),
            _ => return false,
        };
        self.queue.post_in_span(&with_flags(wr, flags), request)
    }

    /// As [`DirectSends::post_one`], for a Send of one to four segments, none of them empty. Also
    /// returns false if it needs more than one block.
    #[inline(always)]
    pub(crate) fn post_send<const N: usize>(&mut self, request: Request, segments: [KeyedSeg; N]) -> bool {
        self.queue.post_in_span(&with_flags(Wr::send(segments), SendFlags::SIGNALLED), request)
    }

    /// As [`DirectSends::post_send`], for an RDMA Write, or with `READ` for an RDMA Read, of one segment.
    /// `remote` is an address and an rkey.
    #[inline(always)]
    pub(crate) fn post_rdma<const READ: bool>(
        &mut self,
        request: Request,
        segment: KeyedSeg,
        (addr, rkey): (u64, u32),
    ) -> bool {
        let remote = Remote { addr, rkey };
        let wr = if READ { Wr::read(remote, [segment]) } else { Wr::write(remote, [segment]) };
        self.queue.post_in_span(&with_flags(wr, SendFlags::SIGNALLED), request)
    }

    /// As [`DirectSends::post_one`], for a Send or an RDMA Write of several segments. Also returns
    /// false if it needs more than one block.
    #[inline(always)]
    pub(crate) fn post_few<const N: usize>(
        &mut self,
        request: Request,
        op: SendOp<'_>,
        sges: [Sge; N],
        flags: SendFlags,
    ) -> bool {
        let data = sges.map(|sge| DataSeg::new(sge.addr, sge.len, sge.lkey));
        let wr = match op {
            SendOp::Send => Wr::send(data),
            SendOp::Write { remote_addr, rkey } => Wr::write(Remote { addr: remote_addr, rkey }, data),
            _ => return false,
        };
        self.queue.post_in_span(&with_flags(wr, flags), request)
    }

    /// Looks for room for [`DirectSends::post_one`].
    pub(crate) fn find_room(&mut self) {
        self.queue.find_span();
    }

    /// Posts one request.
    pub(crate) fn post(&mut self, request: &Outgoing<'_>) -> Result<(), Refusal> {
        match request.op {
            SendOp::BindMw(bind) => self.bind(&bind, request),
            _ => put(&mut *self.queue, request),
        }
    }

    /// Posts a Send or an RDMA Write of these bytes.
    pub(crate) fn post_inline(
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

    /// Posts a Send of at most [`MOST_IN_BLOCK`] bytes, with SIGNALLED and SOLICITED at most.
    /// Returns false without posting if the queue does not take it.
    #[inline(always)]
    pub(crate) fn post_block(&mut self, request: Request, bytes: &[u8], flags: SendFlags) -> bool {
        let wr = with_flags(Wr::send(Inline(bytes)), flags);
        self.queue.post_in_span(&wr, request) || {
            self.queue.find_span();
            self.queue.post_in_span(&wr, request)
        }
    }

    /// Starts requests of one segment that are rung together.
    #[inline(always)]
    pub(crate) fn ones(&mut self) -> Ones<'_> {
        Ones { chain: self.queue.chain() }
    }

    /// Posts all requests with one doorbell, or none. None is about a window.
    ///
    /// # Errors
    /// The number of the request that was refused.
    pub(crate) fn post_list(&mut self, requests: &[Outgoing<'_>]) -> Result<(), (usize, Refusal)> {
        // Without `ring`, a chain takes its requests back.
        let mut chain = self.queue.chain();
        for (n, request) in requests.iter().enumerate() {
            put(&mut chain, request).map_err(|reason| (n, reason))?;
        }
        chain.ring();
        Ok(())
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

    /// Releases the oldest request, if it is plain, and a completion names it, and returns what
    /// `event` makes of it. Otherwise returns `None`, and nothing has changed.
    #[inline(always)]
    pub(crate) fn complete_oldest<E>(
        &mut self,
        counter: u16,
        event: impl FnOnce(&Request) -> E,
    ) -> Option<E> {
        // Without a copy of the request: no test is then left of whether `op` is an operation.
        self.queue.complete_oldest(counter, |request| request.is_plain().then(|| event(request)))
    }

    /// Releases the oldest request without a completion.
    pub(crate) fn release_oldest(&mut self) -> Option<Request> {
        self.queue.release_oldest()
    }

    /// The number of requests that the device has.
    pub(crate) fn posted(&self) -> u32 {
        self.queue.posted()
    }

    /// Starts again after the QP was reset.
    pub(crate) fn reset(&mut self) {
        self.queue.reset();
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

    pub(crate) fn post(&mut self, sges: &[Sge]) -> Result<(), Refusal> {
        let mut segments = [NO_SEGMENT; MAX_IOV];
        let data = encode(sges, &mut segments)?;
        self.queue.post(data, 0).map_err(|error| match error {
            PostError::Full => Refusal::Full,
            PostError::TooManySegments => {
                Refusal::TooManySegments { given: sges.len(), max: self.queue.max_segments() as usize }
            }
        })
    }

    /// Posts a receive of a number of segments that the compiler knows. False if the queue does not
    /// take it.
    #[inline(always)]
    pub(crate) fn post_few<const N: usize>(&mut self, segments: [KeyedSeg; N]) -> bool {
        self.queue.post_few(segments, 0).is_ok()
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
