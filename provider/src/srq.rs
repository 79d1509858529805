//! SRQs: queues of posted receive buffers, shared by many EPs. This file has the object and its
//! control calls: query, resize, close.
//!
//! [`Srq`] is what the program owns, with the half that posts ([`SrqPoster`]). [`SrqInner`] is
//! shared with the EPs on the SRQ and with the tables of the device. Completions need
//! [`SharedRecv`] only.

mod attached;
mod builder;
mod low_watermark;
mod post;

use attached::Attached;
pub use builder::SrqBuilder;

use crate::datapath::SrqPoster;
use crate::defaults::Defaults;
use crate::device::{Class, Device, Member, QueueLmrs};
use crate::evd::EvdInner;
use crate::event_data::{AsyncEvent, AsyncKind, AsyncObject, reason};
use crate::pz::PzInner;
use crate::shared_recv::SharedRecv;
use crate::sync::{Mutex, rank};
use crate::types::{EpId, SrqId, SrqState};
use crate::{Error, Refused, Result, Subtype};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// A shared receive queue (`DAT_SRQ_HANDLE`).
///
/// One thread at a time posts, as `&mut self` requires. Other threads may reap completions at the
/// same time. Dropping an `Srq` frees it once no EP uses it.
#[derive(Debug)]
pub struct Srq {
    #[doc(hidden)]
    pub inner: Arc<SrqInner>,
    poster: SrqPoster,
    /// Never closed: an SRQ of a closed IA finds no LMR.
    lmrs: QueueLmrs,
}

/// The answer to a query (`DAT_SRQ_PARAM`). Exact whenever no message is half received (R36-R38).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SrqParam {
    /// Operational, unless the device has reported an error of the SRQ.
    pub state: SrqState,
    /// The depth.
    pub depth: u32,
    /// The largest number of segments in one buffer.
    pub segments: u32,
    /// The value last set, whether or not its event has been raised (R45).
    pub low_watermark: u32,
    /// The number of buffers that an EP could take now.
    pub available: u32,
    /// The number of occupied entries: available, taken by an EP, or completed but not reaped.
    pub outstanding: u32,
}

/// The object behind an [`Srq`].
#[derive(Debug)]
pub struct SrqInner {
    pub(crate) id: SrqId,
    pub(crate) device: Arc<Device>,
    defaults: Arc<Defaults>,
    pub(crate) pz: Arc<PzInner>,
    /// The part of the SRQ that completions need.
    pub(crate) recv: Arc<SharedRecv>,
    pub(crate) context: AtomicU64,
    max_iov: u32,
    live: AtomicBool,
    failed: AtomicBool,
    /// The EPs that use the SRQ. The lock also orders a free and an attach (R31).
    eps: Mutex<{ rank::TIES }, Attached>,
    low: Mutex<{ rank::LOW }, LowWatermark>,
}

#[derive(Debug, Default)]
struct LowWatermark {
    value: u32,
    /// The device has been asked for an event that it has not raised yet.
    armed: bool,
}

impl Srq {
    /// The ID that names the SRQ in events.
    pub fn id(&self) -> SrqId {
        self.inner.id
    }

    /// Sets the consumer's context, which asynchronous events carry. The initial value is 0.
    pub fn set_context(&self, context: u64) {
        self.inner.context.store(context, Ordering::Relaxed);
    }

    /// Returns the SRQ's properties and counts. Harvests the EVDs of all EPs first, so that both
    /// counts are exact.
    ///
    /// # Errors
    /// INVALID_HANDLE after the IA was closed (R47).
    ///
    /// # References
    /// dat_srq_query(3DAT).
    pub fn query(&self) -> Result<SrqParam> {
        let inner = &self.inner;
        inner.check()?;
        inner.harvest()?;
        let counts = self.poster.counts();
        Ok(SrqParam {
            state: inner.state(),
            depth: counts.depth,
            segments: inner.max_iov,
            low_watermark: inner.low.lock().unwrap().value,
            available: counts.available,
            outstanding: counts.outstanding,
        })
    }

    /// Changes the depth, up or down, to exactly `depth`. Every posted buffer stays posted.
    ///
    /// # Errors
    /// INVALID_PARAMETER (ARG2) for a depth below 1 or over the IA's limit (R102). INVALID_STATE
    /// for a depth below the outstanding count (R97) or below the low watermark (R100).
    /// INSUFFICIENT_RESOURCES from the device; the depth then stays unchanged (R103). On a device
    /// that cannot resize an SRQ, by standard verbs, also for more than four times the depth at
    /// creation, if that is more than 4,095.
    ///
    /// # References
    /// dat_srq_resize(3DAT).
    pub fn resize(&mut self, depth: u32) -> Result<()> {
        let inner = &self.inner;
        inner.check()?;
        let most = inner.device.attr.max_srq_depth;
        if depth < 1 || depth > most {
            return Err(Error::arg(2, format!("the depth of an SRQ is 1 to {most} here, not {depth}")));
        }
        inner.harvest()?;
        let counts = self.poster.counts();
        if depth < counts.outstanding {
            return Err(Error::state(
                Subtype::None,
                format!(
                    "{} entries are outstanding: a depth of {depth} does not hold them",
                    counts.outstanding
                ),
            ));
        }
        let low = inner.low.lock().unwrap().value;
        if depth < low {
            return Err(Error::state(Subtype::None, format!("the low watermark is {low}: lower that first")));
        }
        inner.eps.lock().unwrap().make_room(&inner.recv, depth).map_err(|e| {
            let text = format!("the EPs' receive queues have no room for {depth} entries: {e}");
            Error::resources(Subtype::ResourceMemory, text)
        })?;
        self.poster.resize(&inner.recv.path, depth)?;
        // For an EVD that another thread has attached since, with the former depth.
        let _ = inner.eps.lock().unwrap().make_room(&inner.recv, depth);
        Ok(())
    }

    /// Arms one event for the first time that fewer than `value` buffers are available. 0 disarms
    /// the event.
    ///
    /// The event is [`AsyncKind::Notice`] with this SRQ and [`reason::SRQ_LOW_WATERMARK`] on the
    /// asynchronous EVD. If fewer buffers are available already, the call itself queues the event
    /// (R110).
    ///
    /// # Errors
    /// INVALID_PARAMETER (ARG2) for a value over the depth (R118). On an error the
    /// setting stays unchanged (R119).
    ///
    /// # References
    /// dat_srq_set_lw(3DAT), errata E1 and E3.
    pub fn set_low_watermark(&mut self, value: u32) -> Result<()> {
        let inner = &self.inner;
        inner.check()?;
        let depth = inner.recv.path.depth();
        if value > depth {
            return Err(Error::arg(2, format!("the low watermark is 0 to {depth} here, not {value}")));
        }
        inner.arm_low(value, &self.poster)
    }

    /// Frees the SRQ. Posted buffers are dropped without a completion (R26); the device no longer
    /// writes to them (R29).
    ///
    /// # Errors
    /// INVALID_STATE (SRQ_IN_USE) while an EP uses the SRQ, in whatever state the EP is (R24, R25).
    /// The error returns the SRQ.
    ///
    /// # References
    /// dat_srq_free(3DAT).
    #[expect(
        clippy::result_large_err,
        reason = "the SRQ comes back, and its state is kept flat for the sake of posts"
    )]
    pub fn close(self) -> Result<(), Refused<Self>> {
        if let Err(error) = self.inner.shut() {
            return Err(Refused { object: self, error });
        }
        // The drop of `self` closes the SRQ, since no EP uses it.
        Ok(())
    }
}

impl Drop for Srq {
    fn drop(&mut self) {
        // EPs may still use the SRQ; then it is freed with the last of those EPs.
        if !self.inner.device.is_inherited()
            && self.inner.eps.lock().is_ok_and(|attached| !attached.has_eps())
        {
            self.inner.close();
        }
    }
}

impl crate::fork::Inherit for SrqInner {
    fn disown(&self) {
        self.live.store(false, Ordering::Release);
    }
}

impl Member for SrqInner {
    fn ia_closed(self: Arc<Self>) {
        self.close();
    }

    fn device_event(self: Arc<Self>, kind: rxe_fallback::AsyncKind) {
        match kind {
            rxe_fallback::AsyncKind::SrqLimitReached => self.limit_reached(),
            _ => self.device_failed(),
        }
    }
}

impl Drop for SrqInner {
    fn drop(&mut self) {
        self.close();
    }
}

impl SrqInner {
    pub(crate) fn check(&self) -> Result<()> {
        if self.live.load(Ordering::Acquire) {
            Ok(())
        } else {
            Err(Error::handle(Subtype::InvalidHandleSrq, "SRQ"))
        }
    }

    /// Checks that the SRQ is live and belongs to the IA of this device (R130).
    pub(crate) fn check_for(&self, device: &Arc<Device>) -> Result<()> {
        self.check()?;
        if Arc::ptr_eq(&self.device, device) {
            Ok(())
        } else {
            Err(Error::handle(Subtype::InvalidHandleSrq, "SRQ"))
        }
    }

    fn state(&self) -> SrqState {
        if self.failed.load(Ordering::Acquire) { SrqState::Error } else { SrqState::Operational }
    }

    /// Shuts the SRQ: no EP uses the SRQ, and no EP can attach any more (R31).
    ///
    /// # Errors
    /// As [`Srq::close`].
    pub fn shut(&self) -> Result<()> {
        self.check()?;
        self.eps.lock().unwrap().shut()
    }

    /// Attaches an EP, and makes room in the CQ of its receive EVD (R31, R145).
    pub(crate) fn attach(&self, evd: &Arc<EvdInner>) -> Result<()> {
        let mut attached = self.eps.lock().unwrap();
        if attached.is_shut() || !self.live.load(Ordering::Acquire) {
            return Err(Error::state(Subtype::InvalidStateSrqShutdown, "the SRQ is being freed"));
        }
        attached.attach(&self.recv, evd, self.device.attr.max_eps_per_srq)
    }

    /// Detaches an EP with this receive EVD.
    pub(crate) fn detach(&self, evd: &Arc<EvdInner>) {
        self.eps.lock().unwrap().detach(&self.recv, evd);
    }

    /// Harvests the receive EVDs of all EPs.
    pub(crate) fn harvest(&self) -> Result<()> {
        // The lock is released first.
        let evds = self.eps.lock().unwrap().evds()?;
        evds.iter().try_for_each(|evd| evd.harvest_now())
    }

    /// Records that an EP has stopped taking buffers and that its completions are harvested. True
    /// if the device may have lost a buffer with it: the caller then calls
    /// [`SrqInner::flush_lost`] when it holds no lock.
    pub(crate) fn ep_drained(&self, ep: EpId) -> bool {
        self.recv.path.ep_drained(ep.0)
    }

    /// Flushes the buffers that the device lost with ended EPs.
    pub(crate) fn flush_lost(&self) {
        // A thread that is completing an entry holds the lock of its EVD, so wait for those locks.
        // A thread that completes an entry later sees that there are suspects, and looks for lost
        // entries itself.
        self.eps.lock().unwrap().synchronize();
        while let Some(lost) = self.recv.path.next_lost() {
            self.recv.flush_lost(&self.device, lost);
        }
    }

    fn notice(&self, reason: u32) {
        let event = AsyncEvent {
            kind: AsyncKind::Notice,
            object: AsyncObject::Srq(self.id),
            context: self.context.load(Ordering::Relaxed),
            reason,
        };
        self.device.push_async_of(|| self.live.load(Ordering::Acquire), event);
    }

    /// The device has reported an error of the SRQ (R9).
    pub(crate) fn device_failed(&self) {
        self.failed.store(true, Ordering::Release);
        self.notice(reason::SRQ_TRANSFER_TO_ERROR);
    }

    pub(crate) fn close(&self) {
        if !self.live.swap(false, Ordering::AcqRel) {
            return;
        }
        self.device.finish_telling();
        self.device.registry.remove(Class::Srq, self.id.0);
        self.pz.leave();
    }
}
