//! Chains: several requests of an EP with one doorbell.

use super::post::{Checked, send_flags, too_many};
use super::{Ep, EpInner, RequestKind};
use crate::Subtype;
use crate::datapath::{Chain, Outgoing, PostSends, Queues, WrInfo, verbs::refused, with_path};
use crate::device::Use;
use crate::error::PostError;
use crate::lmr::PoolMemory;
use crate::queue_pair::LastPool;
use crate::types::{CompletionFlags, DtoOp, EpState, LmrTriplet, MAX_IOV, RmrTriplet};
use rxe_fallback::Sge;
use std::array;
use std::sync::Arc;

/// A request of a chain ([`Ep::chain`]): what one call of a post takes. Each constructor has the
/// arguments of the post of the same name.
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
}

impl<'a> ChainRequest<'a> {
    /// As [`Ep::post_send`].
    #[inline]
    pub fn send(iov: &'a [LmrTriplet], cookie: u64, flags: CompletionFlags) -> Self {
        let (operation, remote) = (Operation::Send, RmrTriplet::default());
        Self { operation, flags, word: 0, cookie, iov, remote, operands: [0; 2] }
    }

    /// As [`Ep::post_send_with_invalidate`].
    #[inline]
    pub fn send_with_invalidate(
        iov: &'a [LmrTriplet],
        cookie: u64,
        rmr_context: u32,
        flags: CompletionFlags,
    ) -> Self {
        let operation = Operation::SendInvalidate;
        Self { operation, word: rmr_context, ..Self::send(iov, cookie, flags) }
    }

    /// As [`Ep::post_rdma_write`].
    #[inline]
    pub fn rdma_write(
        iov: &'a [LmrTriplet],
        cookie: u64,
        remote: RmrTriplet,
        flags: CompletionFlags,
    ) -> Self {
        Self { operation: Operation::Write, remote, ..Self::send(iov, cookie, flags) }
    }

    /// As [`Ep::post_rdma_write_immediate`].
    #[inline]
    pub fn rdma_write_immediate(
        iov: &'a [LmrTriplet],
        cookie: u64,
        remote: RmrTriplet,
        immediate: u32,
        flags: CompletionFlags,
    ) -> Self {
        let operation = Operation::WriteImmediate;
        Self { operation, word: immediate, remote, ..Self::send(iov, cookie, flags) }
    }

    /// As [`Ep::post_rdma_read`].
    #[inline]
    pub fn rdma_read(iov: &'a [LmrTriplet], cookie: u64, remote: RmrTriplet, flags: CompletionFlags) -> Self {
        Self { operation: Operation::Read, remote, ..Self::send(iov, cookie, flags) }
    }

    /// As [`Ep::post_fetch_and_add`].
    #[inline]
    pub fn fetch_and_add(
        local: &'a LmrTriplet,
        cookie: u64,
        remote: RmrTriplet,
        add: u64,
        flags: CompletionFlags,
    ) -> Self {
        let operation = Operation::FetchAdd;
        Self { operation, remote, operands: [add, 0], ..Self::send(array::from_ref(local), cookie, flags) }
    }

    /// As [`Ep::post_compare_and_swap`].
    #[inline]
    pub fn compare_and_swap(
        local: &'a LmrTriplet,
        cookie: u64,
        remote: RmrTriplet,
        compare: u64,
        swap: u64,
        flags: CompletionFlags,
    ) -> Self {
        let (operation, operands) = (Operation::CompareSwap, [compare, swap]);
        Self { operation, remote, operands, ..Self::send(array::from_ref(local), cookie, flags) }
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

/// The last request of a chain: a Send from a pool's memory.
#[derive(Clone, Copy)]
pub(crate) struct PoolSend<'a> {
    pub(crate) memory: &'a PoolMemory,
    /// Offset and length.
    pub(crate) bytes: (usize, usize),
    pub(crate) info: WrInfo,
    pub(crate) flags: CompletionFlags,
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
    /// processor. [`SendPool::send_after`](crate::SendPool::send_after) posts a chain that ends
    /// with a buffer of a pool.
    ///
    /// ```no_run
    /// # use doorbell::*;
    /// # fn answer(ep: &mut Ep, data: LmrTriplet, status: LmrTriplet, client: RmrTriplet) -> Result<()> {
    /// ep.chain(&[
    ///     ChainRequest::rdma_write(&[data], 1, client, CompletionFlags::SUPPRESS),
    ///     ChainRequest::send(&[status], 2, CompletionFlags::empty()),
    /// ])?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The number of the first request that is refused, and its error as of a single post:
    /// [`PostError::Full`] for the first request that has no place in the queue, or that follows
    /// [`Ep::MAX_CHAIN`] others; [`PostError::TooManySegments`] also for more than
    /// [`Ep::MAX_CHAIN_SEGMENTS`] segments up to that request.
    ///
    /// Only if a device driven by standard verbs refuses a request that has passed all checks
    /// ([`PostError::Device`]), the requests before it are posted.
    ///
    /// # References
    /// dat_ep_post_rdma_write(3DAT), dat_ep_post_send(3DAT), R60; ibv_post_send(3).
    pub fn chain(&mut self, requests: &[ChainRequest<'_>]) -> Result<(), ChainError> {
        self.inner.chain_slow(requests, None)
    }
}

/// A request of a chain, with what all have.
#[derive(Clone, Copy)]
enum Link<'a> {
    Request(&'a ChainRequest<'a>),
    Pool(&'a PoolSend<'a>),
}

impl Link<'_> {
    fn flags(&self) -> CompletionFlags {
        match self {
            Self::Request(request) => request.flags,
            Self::Pool(send) => send.flags,
        }
    }
}

/// What the queue takes of a chain.
struct Limits {
    max_iov: usize,
    room: usize,
}

impl EpInner {
    /// Posts the requests, and `last` behind them, with one doorbell.
    pub(crate) fn chain_slow(
        self: &Arc<Self>,
        requests: &[ChainRequest<'_>],
        last: Option<PoolSend<'_>>,
    ) -> Result<(), ChainError> {
        let links = || requests.iter().map(Link::Request).chain(last.as_ref().map(Link::Pool));
        let Some(first) = links().next() else { return Ok(()) };
        let state = self.takes_requests(first.flags());
        let state = state.map_err(|error| ChainError { request: 0, error })?;
        let mut locked = self.pair.requests.lock();
        if locked.ring.room() < requests.len() + usize::from(last.is_some()) {
            drop(locked);
            // Finished suppressed requests free their places in the ring here.
            let _ = self.request_evd.harvest_now();
            locked = self.pair.requests.lock();
        }
        let limits = Limits { max_iov: locked.max_iov, room: locked.ring.room() };
        if state == EpState::Disconnected {
            drop(locked);
            self.check_links(links(), &limits, |_, _| Ok(()))?;
            return self.check_links(links(), &limits, |checked, _| {
                self.flush(checked.request);
                Ok(())
            });
        }
        let mut pushed = [(DtoOp::Send, 0); Ep::MAX_CHAIN];
        let mut places = pushed.iter_mut();
        let posted = with_path!(locked.queue.path(), P => {
            let Some(queue) = P::send_queue(&mut locked.queue) else { return Ok(()) };
            queue.chain(|chain| {
                self.check_links(links(), &limits, |checked, sges| {
                    let Checked { request, verb, solicits, .. } = *checked;
                    let flags = send_flags(request.flags(), solicits);
                    chain.add(&Outgoing { request, op: verb, sges, flags, to: None })?;
                    if let Some(place) = places.next() {
                        *place = (request.op, request.length);
                    }
                    Ok(())
                })
            })
        })?;
        let left = places.len();
        let done = posted.map_or_else(|(refused, _)| refused, |()| pushed.len() - left);
        for (op, length) in &pushed[..done] {
            locked.count(*op, *length);
        }
        posted.map_err(|(request, reason)| ChainError { request, error: refused(reason) })?;
        let longest = self.device.attr.max_message_size;
        // An empty segment was not checked.
        let pool = match last {
            Some(PoolSend { bytes: (_, 1..), info, .. }) => Some(LastPool { number: info.pool, longest }),
            _ => None,
        };
        self.pair.open_requests(&mut locked, longest, pool);
        Ok(())
    }

    /// Makes all checks of each request in turn, and calls `each` with what has passed them.
    fn check_links<'a>(
        &self,
        links: impl Iterator<Item = Link<'a>>,
        limits: &Limits,
        mut each: impl FnMut(&Checked, &[Sge]) -> Result<(), rxe_fallback::PostError>,
    ) -> Result<(), ChainError> {
        let pz = self.pz();
        let mut sges = [Sge::default(); MAX_IOV];
        let mut left = Ep::MAX_CHAIN_SEGMENTS;
        for (n, link) in links.enumerate() {
            let mut check = || {
                self.takes_requests(link.flags())?;
                let full = PostError::Full(Subtype::ResourceCredits);
                if n >= Ep::MAX_CHAIN {
                    return Err(full);
                }
                let (kind, info, segments) = match link {
                    Link::Request(request) => {
                        let info = WrInfo { cookie: request.cookie, ..WrInfo::default() };
                        (request.kind(), info, request.iov.len())
                    }
                    Link::Pool(send) => (RequestKind::Send, send.info, usize::from(send.bytes.1 > 0)),
                };
                let most = limits.max_iov.min(MAX_IOV).min(left);
                if segments > most {
                    return Err(too_many(segments, most));
                }
                let direction = kind.direction();
                let found = match link {
                    Link::Request(request) => {
                        let using = Use { pz: pz.number, direction };
                        self.device.lmrs.check_all(request.iov, using, &mut sges)?
                    }
                    Link::Pool(send) => {
                        if segments > 0 {
                            sges[0] = send.memory.segment(0, send.bytes, &pz, direction)?;
                        }
                        segments
                    }
                };
                let checked = self.checked(kind, &mut sges[..found], &info, link.flags())?;
                if n >= limits.room {
                    return Err(full);
                }
                left -= checked.segments;
                each(&checked, &sges[..checked.segments]).map_err(refused)
            };
            check().map_err(|error| ChainError { request: n, error })?;
        }
        Ok(())
    }
}
