//! EPs: the object, its state and its queries. The modules below create and modify EPs and post to
//! them; [`crate::conn`] connects and disconnects them.
//!
//! [`Ep`] is what a program owns. [`EpInner`] is shared with the tables of the device, with timers
//! and with events. A modify may replace the [`EpInner`]; [`EpCell`] always refers to the present
//! one.

mod builder;
mod chain;
mod checks;
mod compose;
mod control;
mod fast;
mod flush;
mod make;
mod marks;
mod modify;
mod operations;
mod post;
mod recv;
mod request;
pub(crate) mod ud_state;
mod window;

pub use builder::EpBuilder;
pub use chain::{ChainError, ChainRequest};
pub(crate) use chain::{Links, PoolSend};
pub(crate) use compose::sealed::NoPool;
pub use compose::{Inline, OfRmr, Op, Request, Segments, op};
pub(crate) use control::Control;
pub use modify::EpChange;
pub(crate) use request::PoolBytes;
pub use request::{Operation, Read, RequestKind, Send, Write};
pub(crate) use window::{Bind, WindowRequest};

use self::ud_state::UdState;
use crate::datapath::Lost;
use crate::defaults::Defaults;
use crate::device::{Class, CmHandler, Device, Member, ReservedTimers, Source, Timer};
use crate::evd::EvdInner;
use crate::event_data::ConnectionEventKind;
use crate::pz::PzInner;
use crate::queue_pair::{Credit, QpOwner, QueuePair, RecvHooks};
use crate::srq::SrqInner;
use crate::sync::{Mutex, rank};
use crate::types::{EpId, EpState};
use crate::{ConnectionAttr, Counters, EpAttr, EpCounter, Error, Evd, Result, RetryAttr, SrqId, Subtype};
use rxe_fallback::{AsyncKind, CmEvent, Pd, Qp};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

/// An endpoint (`DAT_EP_HANDLE`): one end of a reliable connection. With
/// [`ServiceType::Ud`](crate::ServiceType::Ud), an endpoint for datagrams to and from any number of
/// other endpoints.
///
/// One thread at a time posts, as `&mut self` requires.
///
/// Dropping an `Ep` ends its connection and frees it. **The drop also discards the completions that
/// were not reaped** (R172): the consumer does not learn which requests and receives succeeded,
/// failed or were flushed. The SRQ entries of those completions are free again, and buffers of a
/// [`RecvPool`](crate::RecvPool) or [`SendPool`](crate::SendPool) return to their pool. To see
/// every completion:
///
/// 1. Build the EP with [`EpBuilder::tell_drained`].
/// 2. Call [`Ep::disconnect`], or see the connection end, and wait for
///    [`Event::Drained`](crate::Event::Drained) on the connect EVD. It comes once for every connection
///    that has ended or did not come up.
/// 3. Reap what is in the EP's other EVDs, and drop the EP.
///
/// Posted requests that have not completed may not reach the peer, not even Sends that were posted
/// long before. To have them done first, end the connection with
/// [`CloseFlags::Graceful`](crate::CloseFlags::Graceful), and drop
/// the EP after [`Event::Disconnected`](crate::Event::Disconnected).
pub struct Ep {
    #[doc(hidden)]
    pub inner: Arc<EpInner>,
}

impl std::fmt::Debug for Ep {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (id, state) = (self.inner.id, self.inner.state());
        f.debug_struct("Ep").field("id", &id).field("state", &state).finish_non_exhaustive()
    }
}

/// The EVDs of a new EP. Each is optional (R134).
#[derive(Clone, Copy, Debug, Default)]
pub struct EpEvds<'a> {
    /// Receive completions. Without this EVD, messages are received and discarded (R87).
    pub recv: Option<&'a Evd>,
    /// Request completions.
    pub request: Option<&'a Evd>,
    /// Connection events.
    pub connect: Option<&'a Evd>,
}

/// The answer to a query (`DAT_EP_PARAM`).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct EpParam {
    /// State.
    pub state: EpState,
    /// Local address and port; known once the EP is connecting.
    pub local: Option<SocketAddr>,
    /// The peer's address and port; known once the EP is connecting.
    pub remote: Option<SocketAddr>,
    /// The SRQ that the EP takes buffers from (R159).
    pub srq: Option<SrqId>,
    /// The EP's attributes. Queue sizes are the real sizes (R139).
    pub attr: EpAttr,
}

/// Receives that an EP holds (`dat_ep_recv_query`). A value is `None` when it cannot be known at this
/// moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecvCounts {
    /// The number of buffers held.
    pub buffers: Option<u32>,
    /// The number of completions that the held buffers can still cause.
    pub span: Option<u32>,
}

/// The answer of [`Ep::status`] (`dat_ep_get_status`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EpStatus {
    /// State.
    pub state: EpState,
    /// The number of receives that the EP holds. Buffers on an SRQ do not count (R173).
    pub receives: usize,
    /// The number of requests that have not completed.
    pub requests: usize,
}

/// The object behind an [`Ep`].
#[derive(Debug)]
pub struct EpInner {
    pub(crate) id: EpId,
    /// The device of the IA.
    pub device: Arc<Device>,
    pub(crate) defaults: Arc<Defaults>,
    /// The cell through which service points and connection requests find the EP.
    pub(crate) cell: Arc<EpCell>,
    /// The number of connection attempts so far. Written under the lock of `control`.
    attempt: AtomicU64,
    /// The part of the EP that posts and completions need.
    pub pair: Arc<QueuePair>,
    pub(crate) recv_evd: Arc<EvdInner>,
    pub(crate) request_evd: Arc<EvdInner>,
    connect_evd: Mutex<{ rank::CONNECT_EVD }, Option<Arc<EvdInner>>>,
    /// The SRQ from which it receives.
    pub srq: Option<Arc<SrqInner>>,
    /// Held by the thread that completes what an ended connection has left, and by a reset. No
    /// agent runs under it.
    pub(crate) ending: Mutex<{ rank::ENDING }, ()>,
    pub(crate) control: Mutex<{ rank::CONTROL }, Control>,
    pub(crate) live: AtomicBool,
    /// An accept failed, and the device did not return the QP to its state before. Each call that
    /// needs the QP tries that again first.
    pub(crate) must_start_over: AtomicBool,
    state: AtomicU8,
    pz: Mutex<{ rank::TABLE }, Arc<PzInner>>,
    pub(crate) attr: Mutex<{ rank::TABLE }, EpAttr>,
    /// `Some` for an EP of service type UD.
    pub(crate) ud: Option<Box<UdState>>,
    /// Room in the CQs that is released with the EP.
    room: Room,
    /// Memory reserved for the timers that the EP sets on the progress thread.
    _timers: ReservedTimers,
}

/// Refers to an EP, also after [`Ep::modify`] has recreated it. Service points and connection
/// requests keep an `EpCell`. Dropping the [`Ep`] empties the cell.
#[derive(Debug, Default)]
pub(crate) struct EpCell(Mutex<{ rank::TABLE }, Weak<EpInner>>);

impl EpCell {
    /// Returns the current EP, or `None` if it is gone.
    pub(crate) fn get(&self) -> Option<Arc<EpInner>> {
        self.0.lock().unwrap().upgrade()
    }

    /// Makes the cell refer to `ep`. The caller holds the old EP's `control`.
    fn set(&self, ep: &Arc<EpInner>) {
        *self.0.lock().unwrap() = Arc::downgrade(ep);
    }

    /// Calls `f` under the lock of the EP's `control`, so that no thread recreates the EP
    /// meanwhile. `None` if the EP is gone.
    pub(crate) fn with<T>(&self, f: impl FnOnce(&Arc<EpInner>, &mut Control) -> T) -> Option<T> {
        loop {
            let ep = self.get()?;
            let mut control = ep.control.lock().unwrap();
            let now = self.get()?;
            // If the two differ, the EP was recreated while this thread waited for the lock.
            if Arc::ptr_eq(&now, &ep) {
                return Some(f(&ep, &mut control));
            }
        }
    }

    /// Releases the EP from an RSP or a request: an EP in state `from` becomes UNCONNECTED.
    pub(crate) fn release(&self, from: EpState) {
        self.with(|ep, _| {
            if ep.state() == from {
                ep.set_state(EpState::Unconnected);
            }
        });
    }
}

#[derive(Clone, Copy, Debug)]
struct Room {
    recv: u32,
    request: u32,
}

impl Ep {
    /// The ID that names the EP in events.
    pub fn id(&self) -> EpId {
        self.inner.id
    }

    /// Sets the consumer's context, which this EP's events carry. The initial value is 0.
    pub fn set_context(&self, context: u64) {
        self.inner.pair.context.store(context, Ordering::Relaxed);
    }

    /// Returns the EP's state.
    pub fn state(&self) -> EpState {
        self.inner.state()
    }

    /// Returns the EP's properties.
    ///
    /// # Errors
    /// INVALID_HANDLE after the IA was closed.
    ///
    /// # References
    /// dat_ep_query(3DAT).
    pub fn query(&self) -> Result<EpParam> {
        self.inner.check()?;
        let control = self.inner.control.lock().unwrap();
        Ok(EpParam {
            state: self.inner.state(),
            local: control.local,
            remote: control.remote,
            srq: self.inner.srq.as_ref().map(|srq| srq.id),
            attr: self.inner.attr.lock().unwrap().clone(),
        })
    }

    /// Returns the attributes with which the device drives the connection: its retries, and the
    /// numbers of RDMA Reads that both sides have agreed on.
    ///
    /// # Errors
    /// INVALID_STATE unless a connection is up or about to be confirmed; INVALID_HANDLE after the
    /// IA was closed.
    ///
    /// # References
    /// ibv_query_qp(3).
    pub fn connection(&self) -> Result<ConnectionAttr> {
        let inner = &self.inner;
        inner.check()?;
        let state = inner.state();
        if !state.has_connection() {
            return Err(Error::state(state.subtype(), "the EP has no connection"));
        }
        inner.device.connection(&inner.qp()).map_err(|e| Error::verb(Subtype::ResourceTep, e))
    }

    /// Returns the state, and the numbers of receives and requests in progress.
    ///
    /// # Errors
    /// INVALID_HANDLE after the IA was closed.
    ///
    /// # References
    /// dat_ep_get_status(3DAT).
    pub fn status(&self) -> Result<EpStatus> {
        let inner = &self.inner;
        inner.check()?;
        inner.recv_evd.harvest_now()?;
        inner.request_evd.harvest_now()?;
        let receives = inner.pair.receives.lock().ring.len();
        let requests = inner.pair.requests.lock().ring.len();
        Ok(EpStatus { state: inner.state(), receives, requests })
    }

    /// Returns the number of receives that the EP holds. The count is exact on an EP without an
    /// SRQ. On an SRQ EP both counts are 0 while the EP can hold no buffer, and unknown otherwise:
    /// an in-order device shows a buffer only when the buffer completes.
    ///
    /// # Errors
    /// INVALID_HANDLE after the IA was closed (R209).
    ///
    /// # References
    /// dat_ep_recv_query(3DAT), R194-R210.
    pub fn recv_query(&self) -> Result<RecvCounts> {
        self.inner.check()?;
        self.inner.recv_evd.harvest_now()?;
        Ok(self.inner.recv_counts())
    }

    /// Sets both high watermarks; `None` turns a watermark off.
    ///
    /// Exceeding `soft` raises one event per setting
    /// ([`AsyncKind::Notice`](crate::AsyncKind::Notice),
    /// [`EP_SOFT_HIGH_WATERMARK`](crate::reason::EP_SOFT_HIGH_WATERMARK)). Exceeding `hard` breaks
    /// the connection. Both happen within milliseconds, even if no thread looks at the receive EVD.
    /// In mode SOLICITED_WAIT, both happen with the next solicited or failed receive on that EVD,
    /// or when a thread looks at that EVD.
    ///
    /// A watermark of 0 is exceeded by the next receive of an SRQ EP. While such a watermark is
    /// set, receives on that EVD wake a thread of the provider, at most once every two
    /// milliseconds.
    ///
    /// # Errors
    /// INVALID_HANDLE after the IA was closed.
    ///
    /// # References
    /// dat_ep_set_watermark(3DAT), R211-R229.
    pub fn set_watermark(&mut self, soft: Option<u32>, hard: Option<u32>) -> Result<()> {
        self.inner.check()?;
        self.inner.recv_evd.harvest_now()?;
        let mut control = self.inner.control.lock().unwrap();
        control.set_marks(soft, hard);
        self.inner.pair.receives.lock().close();
        self.inner.watch_marks(&control);
        drop(control);
        if self.inner.is_ud() || !self.inner.state().is_before_connection() {
            self.inner.recv_evd.watch_and_look();
        }
        self.inner.check_marks();
        Ok(())
    }

    /// Returns the EP's counters. Messages that have arrived and are not reaped are included.
    ///
    /// # Errors
    /// INVALID_HANDLE after the IA was closed.
    pub fn counters(&self) -> Result<Counters<EpCounter>> {
        self.take_counters(&[])
    }

    /// Returns the counters, and resets those in `reset` to 0.
    ///
    /// # Errors
    /// As [`Ep::counters`].
    pub fn take_counters(&self, reset: &[EpCounter]) -> Result<Counters<EpCounter>> {
        self.inner.check()?;
        self.inner.recv_evd.harvest_now()?;
        Ok(self.inner.read_counts(reset))
    }
}

impl Member for EpInner {
    fn ia_closed(self: Arc<Self>) {
        self.close();
    }

    fn device_event(self: Arc<Self>, kind: AsyncKind) {
        // Read late, the event may be about a life of the QP that a reset has ended. A reset may
        // also come after the check of the QP, so the life is read first.
        let life = self.pair.life();
        match kind {
            AsyncKind::QpLastWqeReached
            | AsyncKind::QpFatal
            | AsyncKind::QpRequestError
            | AsyncKind::QpAccessError
                if !self.may_be_in_error() => {}
            AsyncKind::QpLastWqeReached => self.last_wqe(life),
            AsyncKind::QpFatal | AsyncKind::QpRequestError | AsyncKind::QpAccessError => {
                self.failed_in(Some(life));
            }
            AsyncKind::CommunicationEstablished => self.message_before_confirmation(),
            _ => {}
        }
    }

    fn buffer_lost(self: Arc<Self>, lost: Lost) {
        if let Some(srq) = &self.srq {
            let credit = Credit::Srq(srq.recv.clone(), lost.entry);
            self.recv_evd.put_flushed(
                &self.pair,
                lost.info.cookie_and_owner(),
                self.pair.receive_op(),
                credit,
            );
        }
    }

    fn finish_sends(self: Arc<Self>) {
        if self.is_ud() {
            self.let_datagrams_out();
        }
    }
}

impl CmHandler for EpInner {
    fn on_cm(self: Arc<Self>, event: &mut CmEvent) {
        Self::on_cm(&self, event);
    }

    fn is_ud(&self) -> bool {
        Self::is_ud(self)
    }
}

impl Source for EpInner {
    fn due(self: Arc<Self>, timer: Timer) {
        match timer {
            Timer::GiveUp(token) if self.is_ud() => {
                self.resolve_failed(token, ConnectionEventKind::TimedOut);
            }
            Timer::GiveUp(attempt) => self.connect_timed_out(attempt),
            Timer::LateAcksExpired(attempt) => self.late_acks_expired(attempt),
            Timer::FinishRequests => {
                if let Err(error) = self.request_evd.harvest_now() {
                    tracing::error!(%error, "cannot harvest an EVD");
                }
                self.finish_graceful();
            }
            Timer::Drain(since) => self.drain_step(since),
            Timer::Rearm => {}
        }
    }
}

impl QpOwner for EpInner {
    fn on_received(self: Arc<Self>) {
        self.confirmed_by_message();
        self.took_one();
    }

    fn on_failed(self: Arc<Self>, life: u64) {
        self.completed_in_failure(life);
    }

    fn exists(&self) -> bool {
        Self::exists(self)
    }
}

impl crate::fork::Inherit for EpInner {
    fn disown(&self) {
        self.live.store(false, Ordering::Release);
    }
}

impl EpInner {
    pub(crate) fn check(&self) -> Result<()> {
        if self.live.load(Ordering::Acquire) {
            Ok(())
        } else {
            Err(Error::handle(Subtype::InvalidHandleEp, "EP"))
        }
    }

    /// Whether the program still has the EP, which a modify may have recreated.
    pub(crate) fn exists(&self) -> bool {
        self.cell.get().is_some_and(|ep| ep.live.load(Ordering::Acquire))
    }

    pub(crate) fn state(&self) -> EpState {
        EpState::from_u8(self.state.load(Ordering::Acquire))
    }

    pub(crate) fn set_state(&self, state: EpState) {
        let unconfirmed = state == EpState::CompletionPending;
        if unconfirmed {
            self.pair.set_hook(RecvHooks::UNCONFIRMED, true);
        }
        self.state.store(state as u8, Ordering::Release);
        if !unconfirmed {
            self.pair.set_hook(RecvHooks::UNCONFIRMED | RecvHooks::ANSWERABLE, false);
        }
        if state == EpState::Connected {
            self.pair.allow_fast_requests();
        } else {
            self.pair.stop_fast_requests();
        }
    }

    pub(crate) fn qp(&self) -> Arc<Qp> {
        self.pair.qp()
    }

    /// The number of connection attempts so far.
    pub(crate) fn attempt(&self) -> u64 {
        self.attempt.load(Ordering::Acquire)
    }

    /// Starts another connection attempt. The caller holds the lock of `control`.
    pub(crate) fn next_attempt(&self) -> u64 {
        self.attempt.fetch_add(1, Ordering::AcqRel) + 1
    }

    /// The EVD of the EP's connection events.
    pub(crate) fn connect_evd(&self) -> Option<Arc<EvdInner>> {
        self.connect_evd.lock().unwrap().clone()
    }

    pub(super) fn pz(&self) -> Arc<PzInner> {
        self.pz.lock().unwrap().clone()
    }

    pub(crate) fn pz_number(&self) -> u32 {
        self.pz.lock().unwrap().number
    }

    /// The protection domain of the EP's QP.
    pub(crate) fn pd(&self) -> Pd {
        self.pz.lock().unwrap().pd.clone()
    }

    pub(crate) fn retry(&self) -> RetryAttr {
        self.attr.lock().unwrap().retry
    }

    pub(crate) fn rdma_reads(&self) -> (u8, u8) {
        let attr = self.attr.lock().unwrap();
        (attr.rdma_reads_in.clamp(0, 255) as u8, attr.rdma_reads_out.clamp(0, 255) as u8)
    }

    /// Removes the EP from every table that refers to it. The QP is destroyed with its last
    /// reference.
    pub(crate) fn detach(&self) {
        self.device.rkeys.ep_gone(self.id);
        let qp = self.qp();
        let holds = self.srq.is_some() || !self.device.pools.is_empty();
        self.recv_evd.unregister(qp.num(), self.id, holds);
        self.request_evd.unregister(qp.num(), self.id, holds);
        self.recv_evd.detach(self.id, self.room.recv);
        self.request_evd.detach(self.id, self.room.request);
        self.room.give_back(&qp, &self.recv_evd, &self.request_evd);
        if let Some(evd) = self.connect_evd() {
            evd.detach(self.id, 0);
        }
        if let Some(srq) = &self.srq {
            srq.detach(&self.recv_evd);
        }
        self.pz.lock().unwrap().leave();
        self.device.registry.remove(Class::Ep, self.id.0);
    }

    fn read_counts(&self, reset: &[EpCounter]) -> Counters<EpCounter> {
        let posted = self.pair.work_counts();
        self.control.lock().unwrap().calls.read(&posted, &self.pair.received, reset)
    }
}
