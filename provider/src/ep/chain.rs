//! Chains: several requests of an EP with one doorbell.

mod ones;

use super::post::{Checked, too_many};
use super::{Ep, EpInner, RequestKind};
use crate::Subtype;
use crate::datapath::{Outgoing, Record, WrInfo, verbs::refused};
use crate::device::Use;
use crate::error::{Direction, PostError};
use crate::lmr::PoolMemory;
use crate::queue_pair::{LastPool, Request};
use crate::types::{CompletionFlags, EpState, LmrTriplet, MAX_IOV, RmrTriplet};
use rxe_fallback::{SendFlags, SendOp, Sge};
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
        self.inner.post_chain(requests, None)
    }
}

/// Requests of a chain that were checked, with room for this many requests and segments.
struct Plan<const REQUESTS: usize, const SEGMENTS: usize> {
    checked: [Checked; REQUESTS],
    count: usize,
    /// The segments of all requests, one behind the other.
    sges: [Sge; SEGMENTS],
    used: usize,
}

impl<const REQUESTS: usize, const SEGMENTS: usize> Plan<REQUESTS, SEGMENTS> {
    fn new() -> Self {
        let (checked, sges) = ([Checked::NOTHING; REQUESTS], [Sge::default(); SEGMENTS]);
        Self { checked, count: 0, sges, used: 0 }
    }

    /// Checks a request of `segments` segments and adds it. `check` checks and writes the segments,
    /// and returns how many remain.
    fn add(
        &mut self,
        ep: &EpInner,
        (kind, segments): (RequestKind, usize),
        (info, flags): (&WrInfo, CompletionFlags),
        max_iov: usize,
        check: impl FnOnce(Direction, &mut [Sge]) -> Result<usize, PostError>,
    ) -> Result<(), PostError> {
        let place = self.checked.get_mut(self.count).ok_or(PostError::Full(Subtype::ResourceCredits))?;
        let left = &mut self.sges[self.used..];
        let most = max_iov.min(MAX_IOV).min(left.len());
        if segments > most {
            return Err(too_many(segments, most));
        }
        let n = check(kind.direction(), left)?;
        *place = ep.checked(kind, &mut left[..n], info, flags)?;
        self.used += place.segments;
        self.count += 1;
        Ok(())
    }

    /// The requests for the device; the first has this position.
    fn outgoing(&self, first: u64) -> [Outgoing<'_>; REQUESTS] {
        let mut sges = &self.sges[..];
        let mut requests = self.checked.iter().zip(first..);
        array::from_fn(|_| match requests.next() {
            Some((checked, seq)) => {
                let record = Record { seq, request: checked.request };
                let (own, rest) = sges.split_at(checked.segments);
                sges = rest;
                Outgoing { record, op: checked.verb, sges: own, flags: checked.send_flags(), to: None }
            }
            None => {
                let record = Record { seq: 0, request: Request::NONE };
                Outgoing { record, op: SendOp::Send, sges: &[], flags: SendFlags::empty(), to: None }
            }
        })
    }
}

impl EpInner {
    /// Posts the requests, and `last` behind them, with one doorbell.
    #[inline]
    pub(crate) fn post_chain(
        self: &Arc<Self>,
        requests: &[ChainRequest<'_>],
        last: Option<PoolSend<'_>>,
    ) -> Result<(), ChainError> {
        if self.pair.post_ones(requests, last.as_ref())? {
            Ok(())
        } else {
            self.post_checked_chain(requests, last)
        }
    }

    /// As [`EpInner::post_chain`], for all chains and on both paths.
    fn post_checked_chain(
        self: &Arc<Self>,
        requests: &[ChainRequest<'_>],
        last: Option<PoolSend<'_>>,
    ) -> Result<(), ChainError> {
        let own = requests.iter().map(|request| request.iov.len()).fold(0, usize::saturating_add);
        // Most chains are short, and small arrays are cleared in less time.
        if requests.len() < 4 && own < 8 {
            self.post_chain_in::<4, 8>(requests, last)
        } else {
            self.post_chain_in::<{ Ep::MAX_CHAIN }, { Ep::MAX_CHAIN_SEGMENTS }>(requests, last)
        }
    }

    /// As [`EpInner::post_chain`], for chains of up to this many requests and segments.
    #[inline(never)]
    fn post_chain_in<const REQUESTS: usize, const SEGMENTS: usize>(
        self: &Arc<Self>,
        requests: &[ChainRequest<'_>],
        last: Option<PoolSend<'_>>,
    ) -> Result<(), ChainError> {
        let refused_at = |request| move |error| ChainError { request, error };
        let (pz, max_iov) = (self.pz(), self.pair.requests.lock().max_iov);
        let mut state = EpState::Connected;
        let mut plan = Plan::<REQUESTS, SEGMENTS>::new();
        for (n, request) in requests.iter().enumerate() {
            let ChainRequest { iov, cookie, flags, .. } = *request;
            state = self.takes_requests(flags).map_err(refused_at(n))?;
            let info = WrInfo { cookie, ..WrInfo::default() };
            plan.add(self, (request.kind(), iov.len()), (&info, flags), max_iov, |direction, sges| {
                self.device.lmrs.check_all(iov, Use { pz: pz.number, direction }, sges)
            })
            .map_err(refused_at(n))?;
        }
        if let Some(PoolSend { memory, bytes, info, flags }) = last {
            let n = requests.len();
            state = self.takes_requests(flags).map_err(refused_at(n))?;
            let segments = usize::from(bytes.1 > 0);
            plan.add(self, (RequestKind::Send, segments), (&info, flags), max_iov, |direction, sges| {
                for sge in &mut sges[..segments] {
                    *sge = memory.segment(0, bytes, &pz, direction)?;
                }
                Ok(segments)
            })
            .map_err(refused_at(n))?;
        }
        self.submit_chain(state, &plan)?;
        let longest = self.device.attr.max_message_size;
        // An empty segment was not checked.
        let pool = match last {
            Some(PoolSend { bytes: (_, 1..), info, .. }) => Some(LastPool { number: info.pool, longest }),
            _ => None,
        };
        self.pair.open_requests(longest, pool);
        Ok(())
    }

    /// Adds checked requests to the ring and passes them to the device. On a DISCONNECTED EP, they
    /// are flushed instead.
    fn submit_chain<const REQUESTS: usize, const SEGMENTS: usize>(
        self: &Arc<Self>,
        state: EpState,
        plan: &Plan<REQUESTS, SEGMENTS>,
    ) -> Result<(), ChainError> {
        let checked = &plan.checked[..plan.count];
        let mut requests = self.pair.requests.lock();
        if requests.ring.room() < checked.len() {
            drop(requests);
            // Finished suppressed requests free their places in the ring here.
            let _ = self.request_evd.harvest_now();
            requests = self.pair.requests.lock();
            let room = requests.ring.room();
            if room < checked.len() {
                let error = PostError::Full(Subtype::ResourceCredits);
                return Err(ChainError { request: room, error });
            }
        }
        if state == EpState::Disconnected {
            drop(requests);
            checked.iter().for_each(|checked| self.flush(checked.request));
            return Ok(());
        }
        let outgoing = plan.outgoing(requests.ring.end());
        let posted = requests.queue.post_list::<REQUESTS>(&outgoing[..checked.len()]);
        let done = match posted {
            Ok(()) => checked.len(),
            Err((done, _)) => done,
        };
        for Checked { request, .. } in &checked[..done] {
            requests.posted.add(request.op, request.length.into());
            requests.add(*request);
        }
        posted.map_err(|(request, reason)| ChainError { request, error: refused(reason) })
    }
}
