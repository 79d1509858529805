//! Chains: several requests of an EP with one doorbell.

use super::fast;
use super::post::{Checked, send_flags, too_many};
use super::request::{self, Read, Send, SendInvalidate, Write};
use super::{Ep, EpInner, RequestKind};
use crate::Subtype;
use crate::datapath::{Chain, Outgoing, Path, PostSends, Queues, Segment, WrInfo, verbs::refused, with_path};
use crate::device::{QueueLmrs, Use};
use crate::error::PostError;
use crate::lmr::PoolMemory;
use crate::queue_pair::{LastPool, Request, Requests};
use crate::types::{CompletionFlags, Destination, DtoOp, EpState, LmrTriplet, MAX_IOV, RmrTriplet};
use rxe_fallback::{SendFlags, SendOp, Sge};
use std::sync::Arc;

/// A request of a chain ([`Ep::chain`]), made from a [`Request`](crate::Request) of any operation but
/// a datagram, of memory that is of no pool, or of bytes ([`Inline`](crate::Inline)).
// Plain fields, not a `RequestKind`: the compiler copies such an enum by loads that overlap several
// stores just before them. The processor cannot forward those stores, and each load waits for them.
#[derive(Clone, Copy, Debug)]
pub struct ChainRequest<'a> {
    operation: Operation,
    flags: CompletionFlags,
    /// An RMR context or immediate data.
    word: u32,
    cookie: u64,
    iov: &'a [LmrTriplet],
    /// The bytes to copy. The segments are not used then.
    inline: Option<&'a [u8]>,
    remote: RmrTriplet,
    /// Those of an atomic operation.
    operands: [u64; 2],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operation {
    Send,
    SendInvalidate,
    Write,
    WriteImmediate,
    Read,
    FetchAdd,
    CompareSwap,
    /// Refused: chains have none.
    Datagram,
}

impl<'a> ChainRequest<'a> {
    #[inline(always)]
    pub(super) fn new(kind: RequestKind, iov: &'a [LmrTriplet], cookie: u64, flags: CompletionFlags) -> Self {
        let none = RmrTriplet::default();
        let (operation, remote, word, operands) = match kind {
            RequestKind::Send => (Operation::Send, none, 0, [0; 2]),
            RequestKind::SendInvalidate(context) => (Operation::SendInvalidate, none, context, [0; 2]),
            RequestKind::Write(to) => (Operation::Write, to, 0, [0; 2]),
            RequestKind::WriteImmediate(to, immediate) => (Operation::WriteImmediate, to, immediate, [0; 2]),
            RequestKind::Read(from) => (Operation::Read, from, 0, [0; 2]),
            RequestKind::FetchAdd(at, add) => (Operation::FetchAdd, at, 0, [add, 0]),
            RequestKind::CompareSwap(at, compare, swap) => (Operation::CompareSwap, at, 0, [compare, swap]),
            RequestKind::SendUd(_) => (Operation::Datagram, none, 0, [0; 2]),
        };
        Self { operation, flags, word, cookie, iov, inline: None, remote, operands }
    }

    #[inline(always)]
    pub(super) fn inline(kind: RequestKind, bytes: &'a [u8], cookie: u64, flags: CompletionFlags) -> Self {
        Self { inline: Some(bytes), ..Self::new(kind, &[], cookie, flags) }
    }

    fn kind(&self) -> RequestKind {
        let Self { operation, word, remote, operands, .. } = *self;
        match operation {
            Operation::Send => RequestKind::Send,
            Operation::SendInvalidate => RequestKind::SendInvalidate(word),
            Operation::Write => RequestKind::Write(remote),
            Operation::WriteImmediate => RequestKind::WriteImmediate(remote, word),
            Operation::Read => RequestKind::Read(remote),
            Operation::FetchAdd => RequestKind::FetchAdd(remote, operands[0]),
            Operation::CompareSwap => RequestKind::CompareSwap(remote, operands[0], operands[1]),
            Operation::Datagram => RequestKind::SendUd(Destination { token: 0, qpn: 0 }),
        }
    }
}

/// Why a chain was refused, and which of its requests is the reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("request {request} of the chain: {error}")]
pub struct ChainError {
    /// The number of the request, from 0 on.
    pub request: usize,
    /// The error of that request, as of a single post.
    #[source]
    pub error: PostError,
}

impl From<ChainError> for crate::Error {
    fn from(refused: ChainError) -> Self {
        let (ty, sub) = refused.error.parts();
        Self::new(ty, sub, refused.to_string())
    }
}

/// The request of a chain that is of a pool's memory.
#[derive(Clone, Copy)]
pub(crate) struct PoolSend<'a> {
    pub(crate) kind: RequestKind,
    pub(crate) memory: &'a PoolMemory,
    /// Offset and length.
    pub(crate) bytes: (usize, usize),
    pub(crate) info: WrInfo,
    pub(crate) flags: CompletionFlags,
}

/// The requests of a chain: some, one of a pool's memory, and some behind it.
#[derive(Clone, Copy, Default)]
pub(crate) struct Links<'a> {
    pub(crate) before: &'a [ChainRequest<'a>],
    pub(crate) pool: Option<&'a PoolSend<'a>>,
    pub(crate) after: &'a [ChainRequest<'a>],
}

impl<'a> Links<'a> {
    /// `POOL`: there may be others than `before`.
    #[inline(always)]
    fn len<const POOL: bool>(&self) -> usize {
        let rest = if POOL { usize::from(self.pool.is_some()) + self.after.len() } else { 0 };
        self.before.len() + rest
    }

    /// As [`Links::len`].
    #[inline(always)]
    fn get<const POOL: bool>(&self, n: usize) -> Option<Link<'a>> {
        match self.before.get(n) {
            Some(request) => Some(Link::Request(request)),
            None if POOL => match (self.pool, n - self.before.len()) {
                (Some(send), 0) => Some(Link::Pool(send)),
                (pool, n) => self.after.get(n - usize::from(pool.is_some())).map(Link::Request),
            },
            None => None,
        }
    }
}

/// Why a chain was refused, and how many of its requests are posted nevertheless: those before one
/// that the device library has refused.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stopped {
    pub(crate) error: ChainError,
    pub(crate) posted: usize,
}

impl From<ChainError> for Stopped {
    fn from(error: ChainError) -> Self {
        Self { error, posted: 0 }
    }
}

impl Ep {
    /// The largest number of requests in a chain.
    pub const MAX_CHAIN: usize = 32;
    /// The largest number of segments of all requests of a chain together.
    pub const MAX_CHAIN_SEGMENTS: usize = 128;

    /// Posts these requests, in this order, with one doorbell: for example what a storage target
    /// answers with, an RDMA Write of the data and then a Send with the status.
    ///
    /// Each request is treated as if it were posted alone: it has its own completion, cookie and
    /// flags, and needs its own place in the EP's queue. Either all requests are posted or none. A
    /// chain without requests does nothing. A chain saves doorbells, not instructions of the
    /// processor. `post_after` and `post_between` of a pool's request post a chain with it.
    ///
    /// ```no_run
    /// # use doorbell::*;
    /// # fn answer(ep: &mut Ep, data: LmrTriplet, status: [u8; 16], client: RmrTriplet) -> Result<()> {
    /// ep.chain(&[
    ///     Request::write(&data).to(client).suppress().into(),
    ///     Request::send_inline(&status).cookie(2).into(),
    /// ])?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The number of the first request that is refused, and its error as of a single post:
    /// [`PostError::Full`] for the first request that has no place in the queue, or that follows
    /// [`Ep::MAX_CHAIN`] others; [`PostError::TooManySegments`] also for more than
    /// [`Ep::MAX_CHAIN_SEGMENTS`] segments up to that request, of which inline bytes are one.
    ///
    /// Only if a device driven by standard verbs refuses a request that has passed all checks
    /// ([`PostError::Device`]), the requests before it are posted.
    ///
    /// # References
    /// dat_ep_post_rdma_write(3DAT), dat_ep_post_send(3DAT), R60; ibv_post_send(3).
    pub fn chain(&mut self, requests: &[ChainRequest<'_>]) -> Result<(), ChainError> {
        let links = Links { before: requests, ..Links::default() };
        self.inner.chain::<false>(links).map_err(|stopped| stopped.error)
    }
}

/// A request of a chain, with what all have.
#[derive(Clone, Copy)]
enum Link<'a> {
    Request(&'a ChainRequest<'a>),
    Pool(&'a PoolSend<'a>),
}

impl<'a> Link<'a> {
    fn flags(&self) -> CompletionFlags {
        match self {
            Self::Request(request) => request.flags,
            Self::Pool(send) => send.flags,
        }
    }

    /// Adds the request to the chain if it needs no other check than those of [`fast`]. Returns its
    /// operation and its length. `last`: it ends the chain.
    #[inline(always)]
    fn add_known<P: Path>(
        self,
        chain: &mut impl Chain<'a, Segment = P::Segment>,
        Known { lmrs, pool, most_inline, invalidates }: Known<'_>,
        last: bool,
    ) -> Option<(DtoOp, u32)> {
        match self {
            Self::Request(request @ ChainRequest { inline: Some(bytes), .. }) => match request.operation {
                Operation::Send => request.copy_known(chain, (bytes, most_inline), Send, last),
                Operation::SendInvalidate if invalidates => {
                    request.copy_known(chain, (bytes, most_inline), SendInvalidate(request.word), last)
                }
                _ => None,
            },
            Self::Request(request) => match request.operation {
                Operation::Send => request.add_known(chain, lmrs, Send, last),
                Operation::SendInvalidate if invalidates => {
                    request.add_known(chain, lmrs, SendInvalidate(request.word), last)
                }
                Operation::Write => request.add_known(chain, lmrs, Write(request.remote), last),
                Operation::Read => request.add_known(chain, lmrs, Read(request.remote), last),
                _ => None,
            },
            Self::Pool(PoolSend { kind, memory, bytes, info, flags }) => {
                matches!(kind, RequestKind::Send).then_some(())?;
                let (segment, length) = fast::last_pool::<P>(pool, memory, *bytes, info)?;
                fast::takes::<true>(*flags).then_some(())?;
                let request = || Request::new(info, *flags, DtoOp::Send, length);
                let added = chain.add_fast(request, SendOp::Send, segment, link_flags(*flags, true, last));
                added.then_some((DtoOp::Send, length))
            }
        }
    }
}

impl<'a> ChainRequest<'a> {
    /// [`Link::add_known`] for a request of one segment, whose operation this is.
    #[inline(always)]
    fn add_known<S: Segment, O: request::Operation>(
        &self,
        chain: &mut impl Chain<'a, Segment = S>,
        lmrs: &QueueLmrs,
        op: O,
        last: bool,
    ) -> Option<(DtoOp, u32)> {
        let Self { iov, cookie, flags, .. } = *self;
        let ([segment], length) = lmrs.segments(<&[_; 1]>::try_from(iov).ok()?, O::DIRECTION)?;
        let fits = fast::takes::<true>(flags) && op.fits(length);
        let request = || Request::new(&WrInfo { cookie, ..WrInfo::default() }, flags, O::OP, length);
        let added = fits && chain.add_fast(request, op.verb(), segment, link_flags(flags, O::SOLICITS, last));
        added.then_some((O::OP, length))
    }

    /// [`Link::add_known`] for a Send of these bytes.
    #[inline(always)]
    fn copy_known<O: request::Operation>(
        &self,
        chain: &mut impl Chain<'a>,
        (bytes, most): (&'a [u8], u32),
        op: O,
        last: bool,
    ) -> Option<(DtoOp, u32)> {
        let Self { cookie, flags, .. } = *self;
        // True for 1 to `most`, which is 0 while the queue is closed.
        let fits = bytes.len().wrapping_sub(1) < most as usize && fast::takes::<true>(flags);
        let length = bytes.len() as u32;
        let request = || Request::new(&WrInfo { cookie, ..WrInfo::default() }, flags, O::OP, length);
        let added = fits && chain.copy_fast(request, op.verb(), bytes, link_flags(flags, O::SOLICITS, last));
        added.then_some((O::OP, length))
    }
}

/// The flags of a request for the device. A suppressed request before the end of a chain is not
/// signalled: the completion of a later one, at the latest of the last, ends it as well. If it fails,
/// it has a completion of its own.
#[inline(always)]
fn link_flags(given: CompletionFlags, solicits: bool, last: bool) -> SendFlags {
    let mut flags = send_flags(given, solicits);
    flags.set(SendFlags::SIGNALLED, last || !given.contains(CompletionFlags::SUPPRESS));
    flags
}

/// What the queue still takes of a chain.
#[derive(Clone, Copy)]
struct Left {
    max_iov: usize,
    max_inline: usize,
    room: usize,
    segments: usize,
}

/// What [`Link::add_known`] knows of the queue and the device.
#[derive(Clone, Copy)]
struct Known<'a> {
    lmrs: &'a QueueLmrs,
    pool: LastPool,
    most_inline: u32,
    /// The device can send with invalidation.
    invalidates: bool,
}

impl Left {
    fn new(requests: &Requests) -> Self {
        Self {
            max_iov: requests.max_iov,
            max_inline: requests.qp.caps().max_inline as usize,
            room: requests.ring.room(),
            segments: Ep::MAX_CHAIN_SEGMENTS,
        }
    }
}

impl Requests {
    /// Behind requests that are not signalled, of a chain that was not posted whole: posts one whose
    /// completion ends them, in the place of the one that was refused. If this is refused as well,
    /// they keep their places until a later request completes.
    #[cold]
    fn end_chain(&mut self) {
        let (request, op) = (Request::end_of_chain(), SendOp::Write { remote_addr: 0, rkey: 0 });
        let end = Outgoing { request, op, sges: &[], flags: SendFlags::SIGNALLED, to: None };
        if self.queue.push(&end).is_ok() {
            self.ring.count();
        }
    }
}

impl EpInner {
    /// Posts the requests with one doorbell. `POOL`: there may be others than `before`.
    pub(crate) fn chain<const POOL: bool>(self: &Arc<Self>, links: Links<'_>) -> Result<(), Stopped> {
        let count = links.len::<POOL>();
        let Some(first) = links.get::<POOL>(0) else { return Ok(()) };
        let mut state = self.state();
        if state != EpState::Connected {
            state = self.takes_requests(first.flags()).map_err(|error| ChainError { request: 0, error })?;
        }
        let mut locked = self.pair.requests.lock();
        if locked.ring.room() < count {
            drop(locked);
            // Finished suppressed requests free their places in the ring here.
            let _ = self.request_evd.harvest_now();
            locked = self.pair.requests.lock();
        }
        let mut left = Left::new(&locked);
        if state == EpState::Disconnected {
            drop(locked);
            return Ok(self.flush_chain::<POOL>(links, left)?);
        }
        let mut pushed = [(DtoOp::Send, 0); Ep::MAX_CHAIN];
        let most = left.room.min(pushed.len());
        let mut all_known = true;
        let invalidates = self.device.attr.remote_invalidate;
        let Requests { queue, lmrs, last_pool: pool, most_inline, .. } = &mut *locked;
        let known = Known { lmrs, pool: *pool, most_inline: *most_inline, invalidates };
        let posted = with_path!(queue.path(), P => {
            let Some(queue) = P::send_queue(queue) else { return Ok(()) };
            queue.chain(|chain| {
                let mut n = 0;
                while let Some(link) = links.get::<POOL>(n) {
                    let easy = n < most && left.segments > 0;
                    let last = n + 1 == count;
                    let added = match if easy { link.add_known::<P>(chain, known, last) } else { None } {
                        Some(added) => {
                            left.segments -= 1;
                            added
                        }
                        None => {
                            all_known = false;
                            self.add_checked((n, link), last, &mut left, chain)?
                        }
                    };
                    if let Some(place) = pushed.get_mut(n) {
                        *place = added;
                    }
                    n += 1;
                }
                Ok::<(), ChainError>(())
            })
        })?;
        let done = posted.map_or_else(|(refused, _)| refused, |()| count);
        for (op, length) in &pushed[..done] {
            locked.count(*op, *length);
        }
        if let Err((request, reason)) = posted {
            let suppresses = |link: Link<'_>| link.flags().contains(CompletionFlags::SUPPRESS);
            if request.checked_sub(1).and_then(|last| links.get::<POOL>(last)).is_some_and(suppresses) {
                locked.end_chain();
            }
            let error = ChainError { request, error: refused(reason) };
            return Err(Stopped { error, posted: request });
        }
        if all_known {
            return Ok(());
        }
        let longest = self.device.attr.max_message_size;
        // An empty segment was not checked.
        let pool = match links.pool {
            Some(PoolSend { bytes: (_, 1..), info, .. }) => Some(LastPool { number: info.pool, longest }),
            _ => None,
        };
        self.pair.open_requests(&mut locked, longest, pool);
        Ok(())
    }

    /// On a DISCONNECTED EP: makes all checks of each request, and then flushes all.
    #[cold]
    fn flush_chain<const POOL: bool>(
        self: &Arc<Self>,
        links: Links<'_>,
        left: Left,
    ) -> Result<(), ChainError> {
        let requests = || (0..).map_while(|n| Some((n, links.get::<POOL>(n)?)));
        let mut sges = [Sge::default(); MAX_IOV];
        let mut unchecked = left;
        for request in requests() {
            self.check_link(request, &mut unchecked, &mut sges)?;
        }
        let mut unflushed = left;
        for request in requests() {
            let checked = self.check_link(request, &mut unflushed, &mut sges)?;
            self.flush(checked.request);
        }
        Ok(())
    }

    /// Adds request `n` to the chain after all checks. Returns its operation and its length.
    #[cold]
    #[inline(never)]
    fn add_checked<'a>(
        &self,
        (n, link): (usize, Link<'a>),
        last: bool,
        left: &mut Left,
        chain: &mut impl Chain<'a>,
    ) -> Result<(DtoOp, u32), ChainError> {
        let mut sges = [Sge::default(); MAX_IOV];
        let Checked { request, verb, solicits, segments } = self.check_link((n, link), left, &mut sges)?;
        let flags = link_flags(request.flags(), solicits, last);
        let added = match link {
            Link::Request(ChainRequest { inline: Some(bytes), .. }) => {
                chain.copy(request, verb, bytes, flags)
            }
            _ => chain.add(&Outgoing { request, op: verb, sges: &sges[..segments], flags, to: None }),
        };
        added.map_err(|reason| ChainError { request: n, error: refused(reason) })?;
        Ok((request.op, request.length))
    }

    /// Makes all checks of request `n` of a chain, and writes its segments to `sges`.
    #[inline(never)]
    fn check_link(
        &self,
        (n, link): (usize, Link<'_>),
        left: &mut Left,
        sges: &mut [Sge; MAX_IOV],
    ) -> Result<Checked, ChainError> {
        let mut check = || {
            self.takes_requests(link.flags())?;
            let full = PostError::Full(Subtype::ResourceCredits);
            if n >= Ep::MAX_CHAIN {
                return Err(full);
            }
            let (kind, info, segments) = match link {
                Link::Request(request) => {
                    let info = WrInfo { cookie: request.cookie, ..WrInfo::default() };
                    let segments = request.inline.map_or(request.iov.len(), |_| 1);
                    (request.kind(), info, segments)
                }
                Link::Pool(send) => (send.kind, send.info, usize::from(send.bytes.1 > 0)),
            };
            let most = left.max_iov.min(MAX_IOV).min(left.segments);
            if segments > most {
                return Err(too_many(segments, most));
            }
            let (pz, direction) = (self.pz(), kind.direction());
            let found = match link {
                Link::Request(ChainRequest { inline: Some(bytes), .. }) => {
                    // The bytes as a segment: checks of the length are the same.
                    let len = u32::try_from(bytes.len()).map_err(|_| PostError::Length)?;
                    sges[0] = Sge { len, ..Sge::default() };
                    if bytes.len() > left.max_inline {
                        let most = left.max_inline as u32;
                        return Err(PostError::TooLongInline { given: bytes.len(), most });
                    }
                    1
                }
                Link::Request(request) => {
                    let using = Use { pz: pz.number, direction };
                    self.device.lmrs.check_all(request.iov, using, sges)?
                }
                Link::Pool(send) => {
                    if segments > 0 {
                        sges[0] = send.memory.segment(0, send.bytes, &pz, direction)?;
                    }
                    segments
                }
            };
            let checked = self.checked(kind, &mut sges[..found], &info, link.flags())?;
            if n >= left.room {
                return Err(full);
            }
            left.segments -= checked.segments;
            Ok(checked)
        };
        check().map_err(|error| ChainError { request: n, error })
    }
}
