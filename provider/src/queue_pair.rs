//! Queue pairs: the part of an EP that its posts and its completions need.
//!
//! An EVD finds the [`QueuePair`] of a completion by the QP number. The queue pair decides what the
//! completion means: which work request is done, which event the consumer gets, and what is
//! released when the consumer takes that event ([`Credit`]). The EVD knows nothing else of EPs. If
//! a completion has effects beyond its own event, the EVD tells the EP through [`QpOwner`];
//! ordinary completions have no such effects.
//!
//! Posts write to the rings ([`Requests`], [`Receives`]) under the locks of the rings. Completions
//! are looked up under the lock of the EVD, which is taken before the locks of the rings.

mod last_pool;
mod reap;
mod receives;

pub(crate) use self::last_pool::LastPool;
pub use self::receives::Receives;
pub(crate) use self::receives::{PrePosted, Receive};
pub use crate::datapath::Request;
pub(crate) use crate::datapath::Ring;

use crate::counters::{Posted, Received, ReceivedAs};
use crate::datapath::{Completion, Path, PostSends, SendQueue, WrId, WrInfo, entries::CompletedUpTo};
use crate::device::QueueLmrs;
use crate::event_data::{DtoCompletion, DtoFields, Owner};
use crate::shared_recv::SharedRecv;
use crate::sync::{BiasedMutex, rank};
use crate::types::{CompletionFlags, DtoOp, DtoStatus, EpId};
use bitflags::bitflags;
use rxe_fallback::Qp;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};

/// The calls that an EVD makes to the EP of a queue pair, without holding the lock of the EVD.
/// Ordinary completions need no such call.
pub(crate) trait QpOwner: Send + Sync {
    /// A receive has completed while the queue pair had a [`RecvHooks`] set.
    fn on_received(self: Arc<Self>);
    /// A work request has failed or was flushed, in this life of the queue pair.
    fn on_failed(self: Arc<Self>, life: u64);
    /// Whether the program still has the EP.
    fn exists(&self) -> bool;
}

bitflags! {
    /// Reasons why a receive may have effects beyond its own completion.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) struct RecvHooks: u8 {
        /// The next receive of this SRQ EP exceeds a high watermark.
        const MARKED = 1;
        /// The connection is accepted but not confirmed: a message confirms it.
        const UNCONFIRMED = 2;
        /// The receives are datagrams.
        const DATAGRAMS = 4;
        /// A message has come before the confirmation. Set only beside [`Self::UNCONFIRMED`].
        const ANSWERABLE = 8;
    }
}

/// The ring of posted requests.
#[derive(Debug)]
pub struct Requests {
    pub(crate) qp: Arc<Qp>,
    pub(crate) queue: SendQueue,
    pub(crate) ring: Ring<Request>,
    pub(crate) max_iov: usize,
    /// Closed unless the EP is connected.
    pub(crate) lmrs: QueueLmrs,
    /// The pool of the last Send from one. None while `lmrs` is closed.
    pub(crate) last_pool: LastPool,
    /// The most bytes of a Send whose bytes are copied by a fast function. 0 while `lmrs` is closed.
    pub(crate) most_inline: u32,
    pub(crate) posted: Posted,
    /// The device may still execute requests that are in the ring no more.
    pub(crate) unstopped: bool,
}

impl Requests {
    /// Takes the request that a completion names out of the ring, with all earlier requests. `None`
    /// if it is not in the ring.
    #[inline(always)]
    fn complete(&mut self, named: u64) -> Option<Request> {
        let (request, requests) = self.queue.complete(named)?;
        self.ring.pass(requests);
        Some(request)
    }

    /// As [`Requests::complete`], if the request is plain. Returns what `event` makes of it;
    /// otherwise `None`, and nothing has changed.
    #[inline(always)]
    fn complete_plain<P: Path, E>(&mut self, named: u64, event: impl FnOnce(&Request) -> E) -> Option<E> {
        let plain = |request: &Request| request.is_plain().then(|| event(request));
        let (event, requests) = P::send_queue(&mut self.queue)?.complete_if(named, plain)?;
        self.ring.pass(requests);
        Some(event)
    }

    /// As [`Requests::complete`], if the request is suppressed, so that its success has no event.
    /// Otherwise returns false, and nothing has changed.
    #[inline(always)]
    fn complete_suppressed<P: Path>(&mut self, named: u64) -> bool {
        let Some(queue) = P::send_queue(&mut self.queue) else { return false };
        let suppressed = |request: &Request| (!request.has_event(false)).then_some(());
        let Some(((), requests)) = queue.complete_if(named, suppressed) else { return false };
        self.ring.pass(requests);
        true
    }

    /// Takes the oldest request out of the ring, for a device that does not complete it any more.
    pub(crate) fn take_first(&mut self) -> Option<Request> {
        // Those that the device does not have stand behind those that the send queue has.
        if let Some(request) = self.queue.release_oldest() {
            self.ring.pass(1);
            return Some(request);
        }
        self.ring.take_first()
    }
}

/// The resource that is released when the consumer takes an event.
#[derive(Debug)]
pub(crate) enum Credit {
    /// An entry of the SRQ with this number. EPs of this EVD receive from the SRQ.
    Entry {
        srq: u32,
        entry: u32,
    },
    /// An entry of an SRQ that may have no EP on this EVD any more.
    Srq(Arc<SharedRecv>, u32),
    /// A place in the ring of requests.
    Request(Arc<QueuePair>),
    Nothing,
}

impl Credit {
    /// Releases the resource. `srq` finds SRQs by their numbers.
    #[inline]
    pub(crate) fn release<'a>(self, srq: impl FnOnce(u32) -> Option<&'a Arc<SharedRecv>>) {
        match self {
            Credit::Entry { srq: number, entry } => {
                if let Some(srq) = srq(number) {
                    srq.path.release(entry);
                }
            }
            Credit::Srq(srq, entry) => srq.path.release(entry),
            Credit::Request(pair) => pair.request_reaped(),
            Credit::Nothing => {}
        }
    }
}

/// The result of a completion.
#[derive(Debug)]
pub(crate) struct Completed {
    /// The event.
    pub(crate) dto: DtoCompletion,
    /// The resource that is released when the event is taken.
    pub(crate) credit: Credit,
    /// The event may wake a waiter.
    pub(crate) notify: bool,
    /// The queue pair has a [`RecvHooks`] set and this is a receive: tell the owner.
    pub(crate) hooked: bool,
}

/// An EP's queue pair; see the module.
// In this order, so that the first cache line has all that a plain message needs.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct QueuePair {
    /// The EP's ID in events.
    pub(crate) ep: EpId,
    /// The consumer's context of the EP.
    pub context: AtomicU64,
    /// [`RecvHooks`].
    hooks: AtomicU8,
    /// Counts of received messages. Written under the lock of the receive EVD.
    pub(crate) received: Received,
    /// The SRQ that receives come from.
    pub srq: Option<Arc<SharedRecv>>,
    /// The youngest post to the SRQ that this EP has completed; used to find lost buffers (verbs
    /// path).
    pub(crate) completed_up_to: Arc<CompletedUpTo>,
    recv_flags: AtomicU32,
    request_flags: AtomicU32,
    datagrams: bool,
    /// How often the QP was reset for another use.
    life: AtomicU64,
    /// The number of the EP's PZ.
    pz: u32,
    /// Whether a request that was checked may let the next ones be fast: while the EP is connected.
    fast_requests: AtomicBool,
    /// The send queue, and the requests in it.
    pub requests: BiasedMutex<{ rank::REQUESTS }, Requests>,
    /// The receive queue, and the receives in it, of an EP without an SRQ.
    pub receives: BiasedMutex<{ rank::RECEIVES }, Receives>,
    owner: OnceLock<Weak<dyn QpOwner>>,
}

impl std::fmt::Debug for dyn QpOwner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("QpOwner")
    }
}

/// How the completions of a queue pair notify.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Modes {
    pub(crate) recv: CompletionFlags,
    pub(crate) request: CompletionFlags,
}

/// The offset of a queue pair in the allocation of its `Arc`, behind the two counts.
const IN_ARC: usize = (2 * size_of::<usize>()).next_multiple_of(align_of::<QueuePair>());

impl QueuePair {
    /// Creates a queue pair of this EP. It receives from `srq` if that is `Some`.
    pub(crate) fn new(
        ep: EpId,
        pz: u32,
        srq: Option<Arc<SharedRecv>>,
        hooks: RecvHooks,
        modes: Modes,
        (requests, receives): (Requests, Receives),
    ) -> Self {
        Self {
            ep,
            context: AtomicU64::new(0),
            srq,
            received: Received::default(),
            completed_up_to: Arc::default(),
            hooks: AtomicU8::new(hooks.bits()),
            recv_flags: AtomicU32::new(modes.recv.bits()),
            request_flags: AtomicU32::new(modes.request.bits()),
            datagrams: hooks.contains(RecvHooks::DATAGRAMS),
            life: AtomicU64::new(0),
            pz,
            fast_requests: AtomicBool::new(false),
            requests: BiasedMutex::new(requests),
            receives: BiasedMutex::new(receives),
            owner: OnceLock::new(),
        }
    }

    /// Sets the EP that is told of the effects of completions. Called once.
    pub(crate) fn set_owner(&self, owner: Weak<dyn QpOwner>) {
        let _ = self.owner.set(owner);
    }

    /// Returns the EP, or `None` if it is gone.
    pub(crate) fn owner(&self) -> Option<Arc<dyn QpOwner>> {
        self.owner.get()?.upgrade()
    }

    /// The number of the QP's life. Completions belong to the life in which they are harvested.
    pub(crate) fn life(&self) -> u64 {
        self.life.load(Ordering::Acquire)
    }

    /// Begins another life of a QP whose completions have all been harvested.
    pub(crate) fn begin_life(&self) {
        self.life.fetch_add(1, Ordering::AcqRel);
    }

    /// The consumer's context of the EP.
    #[inline(always)]
    pub fn context(&self) -> u64 {
        self.context.load(Ordering::Relaxed)
    }

    pub(crate) fn qp(&self) -> Arc<Qp> {
        self.requests.lock().qp.clone()
    }

    pub(crate) fn is_ud(&self) -> bool {
        self.datagrams
    }

    /// Whether a receive may have effects beyond its own completion.
    #[inline]
    pub(crate) fn watches_receives(&self) -> bool {
        self.hooks.load(Ordering::Acquire) != 0
    }

    pub(crate) fn set_hook(&self, hook: RecvHooks, on: bool) {
        if on {
            self.hooks.fetch_or(hook.bits(), Ordering::AcqRel);
        } else {
            self.hooks.fetch_and(!hook.bits(), Ordering::AcqRel);
        }
    }

    /// Records a message, if the connection is not confirmed yet.
    fn message_came(&self) {
        let (unconfirmed, answerable) = (RecvHooks::UNCONFIRMED.bits(), RecvHooks::ANSWERABLE.bits());
        let mark = |hooks: u8| (hooks & unconfirmed != 0).then_some(hooks | answerable);
        // Fails if the connection was confirmed meanwhile.
        let _ = self.hooks.fetch_update(Ordering::AcqRel, Ordering::Acquire, mark);
    }

    /// Whether a message has come before the confirmation. A consumer may see the message just
    /// before the message has confirmed the connection.
    pub(crate) fn is_answerable(&self) -> bool {
        self.hooks.load(Ordering::Acquire) & RecvHooks::ANSWERABLE.bits() != 0
    }

    /// Whether the next receive exceeds a high watermark. On an EP without an SRQ, a post may
    /// exceed one.
    pub(crate) fn is_marked(&self) -> bool {
        self.hooks.load(Ordering::Acquire) & RecvHooks::MARKED.bits() != 0
    }

    /// How receives notify.
    pub(crate) fn recv_flags(&self) -> CompletionFlags {
        CompletionFlags::from_bits_retain(self.recv_flags.load(Ordering::Relaxed))
    }

    /// How requests notify.
    pub(crate) fn request_flags(&self) -> CompletionFlags {
        CompletionFlags::from_bits_retain(self.request_flags.load(Ordering::Relaxed))
    }

    /// From now on, a request can make [`QueuePair::open_requests`] let the next ones be posted
    /// without the slow function.
    pub(crate) fn allow_fast_requests(&self) {
        self.fast_requests.store(true, Ordering::SeqCst);
    }

    /// All requests and receives take the slow functions from now on.
    pub(crate) fn stop_fast_requests(&self) {
        if self.fast_requests.swap(false, Ordering::SeqCst) {
            let mut requests = self.requests.lock();
            requests.lmrs.close();
            requests.last_pool = LastPool::default();
            requests.most_inline = 0;
            drop(requests);
            self.receives.lock().close();
        }
    }

    /// After a request that was checked: lets the next requests of up to `longest` bytes be posted
    /// without the slow function, and remembers the pool if the request was from one.
    /// `requests` are those of this queue pair.
    pub(crate) fn open_requests(&self, requests: &mut Requests, longest: u32, pool: Option<LastPool>) {
        // Read under the lock: `stop_fast_requests` closes the LMRs after it has changed the value.
        if self.fast_requests.load(Ordering::SeqCst) && requests.max_iov > 0 {
            requests.lmrs.open(longest);
            requests.last_pool = pool.unwrap_or(requests.last_pool);
            requests.most_inline = requests.qp.caps().max_inline.min(longest);
        }
    }

    pub(crate) fn set_modes(&self, modes: Modes) {
        self.recv_flags.store(modes.recv.bits(), Ordering::Relaxed);
        self.request_flags.store(modes.request.bits(), Ordering::Relaxed);
    }

    /// The operation of a receive whose message is not known yet.
    pub(crate) fn receive_op(&self) -> DtoOp {
        if self.datagrams { DtoOp::ReceiveUd } else { DtoOp::Receive }
    }

    /// The PZ that must contain the buffers of receives. `None` with an SRQ, whose posts were
    /// checked against the SRQ's own PZ.
    fn receive_pz(&self) -> Option<u32> {
        self.srq.is_none().then_some(self.pz)
    }

    /// Removes the completed work request from its ring, or from the SRQ. Returns `None` for a
    /// completion without a posted work request, and for a suppressed completion. The caller holds
    /// the lock of the EVD.
    ///
    /// `lmrs_live` says whether these LMRs exist, and are in the given PZ if there is one.
    pub(crate) fn complete(
        self: &Arc<Self>,
        completion: &Completion,
        lmrs_live: impl FnOnce(&[u32], Option<u32>) -> bool,
    ) -> Option<Completed> {
        let failed = completion.status != DtoStatus::Success;
        match completion.wr_id {
            WrId::Srq { entry, .. } => {
                let srq = self.srq.as_ref()?;
                let info = srq.path.complete(entry, Some(&self.completed_up_to))?;
                let hooked = self.watches_receives();
                let notify = failed || !self.recv_flags().contains(CompletionFlags::SOLICITED_WAIT);
                let dto = self.received(completion, info, lmrs_live);
                Some(Completed { dto, credit: Credit::Entry { srq: srq.number, entry }, notify, hooked })
            }
            WrId::Recv(slot) => {
                let receive = self.receive_done(slot)?;
                let hooked = self.watches_receives();
                let quiet = self.recv_flags().contains(CompletionFlags::SOLICITED_WAIT)
                    || receive.flags().contains(CompletionFlags::UNSIGNALLED);
                let dto = self.received(completion, receive.info, lmrs_live);
                Some(Completed { dto, credit: Credit::Nothing, notify: failed || !quiet, hooked })
            }
            WrId::Request(named) => {
                let mut requests = self.requests.lock();
                let request = requests.complete(named)?;
                if !request.has_event(failed) {
                    return None;
                }
                requests.ring.hold_place();
                drop(requests);
                Some(self.request_event(&request, completion.status))
            }
        }
    }

    /// Builds the event of a completed request, which keeps the request's place in the ring.
    fn request_event(self: &Arc<Self>, request: &Request, status: DtoStatus) -> Completed {
        let failed = status != DtoStatus::Success;
        let dto = DtoCompletion::new(DtoFields {
            ep: self.ep,
            ep_context: self.context(),
            cookie: request.cookie,
            owner: request.owner(),
            status,
            length: if failed { 0 } else { request.length },
            op: request.op,
            immediate: None,
            invalidated: None,
        });
        let notify = failed || !request.flags().contains(CompletionFlags::UNSIGNALLED);
        Completed { dto, credit: Credit::Request(self.clone()), notify, hooked: false }
    }

    /// Builds the event of a completed receive, and counts the message.
    fn received(
        &self,
        completion: &Completion,
        info: WrInfo,
        lmrs_live: impl FnOnce(&[u32], Option<u32>) -> bool,
    ) -> DtoCompletion {
        let status = match completion.status {
            // rxe reports the same status for three cases: a message that is too long, memory that
            // is no longer registered (R270), and memory in another PZ than the EP's. The last case
            // occurs if the EP's PZ was changed after the post.
            DtoStatus::LocalLength if !lmrs_live(&info.lmrs, self.receive_pz()) => DtoStatus::LocalProtection,
            status => status,
        };
        let success = status == DtoStatus::Success;
        let op = match completion.op {
            DtoOp::ReceiveImmediate if success && self.datagrams => DtoOp::ReceiveUdImmediate,
            op if success && !self.datagrams => op,
            _ => self.receive_op(),
        };
        if success {
            self.received.add(ReceivedAs::of(op), completion.length);
            self.message_came();
        }
        DtoCompletion::new(DtoFields {
            ep: self.ep,
            ep_context: self.context(),
            cookie: info.cookie,
            owner: match Owner::of_pool(info.pool) {
                Owner::Program if self.datagrams && completion.source_qpn != 0 => {
                    Owner::Datagram(completion.source_qpn)
                }
                owner => owner,
            },
            status,
            length: if success { completion.length } else { 0 },
            op,
            immediate: completion.immediate.filter(|_| success),
            invalidated: completion.invalidated.filter(|_| success),
        })
    }

    /// Builds the event of a work request that no device completes.
    pub(crate) fn flushed(&self, cookie: u64, owner: Owner, op: DtoOp) -> DtoCompletion {
        DtoCompletion::new(DtoFields {
            ep: self.ep,
            ep_context: self.context(),
            cookie,
            owner,
            status: DtoStatus::Flushed,
            length: 0,
            op,
            immediate: None,
            invalidated: None,
        })
    }

    /// The position before which all requests are done.
    pub(crate) fn first_request(&self) -> u64 {
        self.requests.lock().ring.first()
    }

    /// Whether the device may still execute the request at this position.
    pub(crate) fn may_execute(&self, position: u64) -> bool {
        let requests = self.requests.lock();
        requests.unstopped || requests.ring.first() <= position
    }

    /// Releases the place of a completed request whose event was taken or dropped.
    pub(crate) fn request_reaped(&self) {
        self.requests.lock().ring.free_place();
    }

    /// Completes the oldest receive of an EP without an SRQ. `slot` is the slot that the
    /// completion names.
    fn receive_done(&self, slot: u16) -> Option<Receive> {
        self.receives.lock().complete(slot)
    }

    /// Whether the device has completed everything, as far as harvested completions show.
    pub(crate) fn is_drained(&self) -> bool {
        let receives = self.receives.lock();
        let drained = receives.ring.front().is_none_or(|receive| !receive.is_on_device());
        drop(receives);
        drained && self.requests_drained()
    }

    /// Whether the device has completed all requests.
    pub(crate) fn requests_drained(&self) -> bool {
        self.requests.lock().queue.len() == 0
    }

    /// The counts of work requests posted so far.
    pub(crate) fn work_counts(&self) -> Posted {
        let mut posted = self.requests.lock().posted.clone();
        let receives = self.receives.lock();
        posted.set(DtoOp::Receive, receives.posts, receives.bytes);
        posted
    }

    /// Continues the counts of the queue pair that this queue pair replaces.
    pub(crate) fn follow_counts(&self, before: &Self) {
        self.received.follow(&before.received);
        let posted = before.requests.lock().posted.clone();
        self.requests.lock().posted = posted;
        let old = before.receives.lock();
        let (posts, bytes) = (old.posts, old.bytes);
        drop(old);
        let mut new = self.receives.lock();
        (new.posts, new.bytes) = (posts, bytes);
    }

    /// Drops work requests that never completed, and starts both queues again. Call only after the
    /// QP was reset and its completions were harvested.
    pub(crate) fn forget_pending(&self) {
        let mut requests = self.requests.lock();
        requests.queue.reset();
        requests.ring.clear();
        let mut receives = self.receives.lock();
        receives.queue.reset();
        receives.ring.clear();
        receives.preposted = PrePosted::default();
    }

    /// Takes all work requests off their queues, which the device has stopped. Calls `drop_one` for
    /// each with its owner and cookie.
    pub(crate) fn abandon_pending(&self, drop_one: impl Fn(Owner, u64)) {
        let mut receives = self.receives.lock();
        while let Some(receive) = receives.ring.take_first() {
            drop_one(Owner::of_pool(receive.info.pool), receive.info.cookie);
        }
        drop(receives);
        let mut requests = self.requests.lock();
        while let Some(request) = requests.take_first() {
            drop_one(request.owner(), request.cookie);
        }
    }

    /// Drops the pre-posted segments. From the start of a connection the device may use the
    /// receives, so they stay in this queue.
    pub(crate) fn drop_preposted(&self) {
        self.receives.lock().preposted = PrePosted::default();
    }
}
