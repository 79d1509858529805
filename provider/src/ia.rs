//! IAs: queries, and closing all objects of a device.

mod create;
mod open;

pub use open::IaBuilder;

use crate::defaults::Defaults;
use crate::device::{AsyncSink, Class, Device};
use crate::evd::EvdInner;
use crate::event_data::AsyncEvent;
use crate::types::{CloseFlags, EvdFlags, EvdId, LmrTriplet};
use crate::{Counters, Error, Evd, IaAttr, IaCounter, PortCounters, ProviderAttr, Refused, Result, Subtype};
use std::net::IpAddr;
use std::sync::{Arc, Weak};

/// An interface adapter (`DAT_IA_HANDLE`): an open device.
///
/// Dropping an `Ia` closes it abruptly, which ends and frees all objects: service points first, then
/// EPs, SRQs, EVDs, RMRs, LMRs, PZs and CNOs (R274). Objects that the program still holds are then
/// stale (R275). [`Ia::close`] refuses to do that.
#[derive(Debug)]
pub struct Ia {
    #[doc(hidden)]
    pub device: Arc<Device>,
    pub(crate) defaults: Arc<Defaults>,
    async_evd: Evd,
}

/// Asynchronous events go to an EVD of the program while it exists.
struct Redirected {
    to: Weak<EvdInner>,
    own: Arc<EvdInner>,
}

impl Redirected {
    fn evd(&self) -> Arc<EvdInner> {
        self.to.upgrade().filter(|evd| evd.check().is_ok()).unwrap_or_else(|| self.own.clone())
    }
}

impl AsyncSink for Redirected {
    fn put_async(&self, event: AsyncEvent) {
        self.evd().put_async(event);
    }

    fn announce_async(&self) {
        self.evd().announce_async();
    }
}

impl Ia {
    /// The attributes of the device.
    pub fn attributes(&self) -> &IaAttr {
        &self.device.attr
    }

    /// The attributes of the provider on this device.
    pub fn provider_attributes(&self) -> &ProviderAttr {
        &self.device.provider_attr
    }

    /// The address that peers connect to.
    pub fn address(&self) -> IpAddr {
        self.device.attr.address
    }

    /// The EVD of asynchronous events with which the IA was opened.
    pub fn async_evd(&self) -> &Evd {
        &self.async_evd
    }

    /// Sends asynchronous events to this EVD of the IA from now on, so that a program can have all its
    /// events in one place. Those that are queued in [`Ia::async_evd`] stay there, and it gets further
    /// ones once the other EVD is freed.
    ///
    /// ```no_run
    /// # use doorbell::{Evd, EvdFlags, Ia};
    /// # fn main() -> doorbell::Result<()> {
    /// let ia = Ia::open("mlx5_0")?;
    /// let events = Evd::new(&ia, 1024, EvdFlags::CR | EvdFlags::DTO | EvdFlags::ASYNC)?;
    /// ia.send_async_events_to(&events)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// INVALID_HANDLE (EVD_ASYNC) for an EVD that is freed, of another IA, or without the stream.
    pub fn send_async_events_to(&self, evd: &Evd) -> Result<()> {
        evd.inner.check_for(&self.device, EvdFlags::ASYNC, Subtype::InvalidHandleEvdAsync)?;
        let (to, own) = (Arc::downgrade(&evd.inner), self.async_evd.inner.clone());
        self.device.set_async_sink(Some(Arc::new(Redirected { to, own })));
        Ok(())
    }

    /// Makes this side's writes to these segments visible to peers' RDMA Reads. Devices work on
    /// coherent machines, so there is nothing to do (R272).
    ///
    /// # Errors
    /// INVALID_PARAMETER (ARG2) for a segment that is not inside a live LMR; INVALID_HANDLE after
    /// the IA was closed.
    ///
    /// # References
    /// dat_lmr_sync_rdma_read(3DAT).
    pub fn sync_rdma_read(&self, segments: &[LmrTriplet]) -> Result<()> {
        self.device.check()?;
        match segments.iter().position(|s| s.segment_length > 0 && !self.device.lmrs.covers(s)) {
            Some(n) => Err(Error::arg(2, format!("segment {n} is not inside a live LMR"))),
            None => Ok(()),
        }
    }

    /// Makes peers' RDMA Writes to these segments visible to this side. There is nothing to do, as
    /// for [`Ia::sync_rdma_read`].
    ///
    /// # Errors
    /// As [`Ia::sync_rdma_read`].
    ///
    /// # References
    /// dat_lmr_sync_rdma_write(3DAT).
    pub fn sync_rdma_write(&self, segments: &[LmrTriplet]) -> Result<()> {
        self.sync_rdma_read(segments)
    }

    /// Sets the consumer's context, which asynchronous events about the IA carry. The initial value
    /// is 0.
    pub fn set_context(&self, context: u64) {
        self.device.set_consumer_context(context);
    }

    /// Closes the IA, if no object of it is left (R273). Dropping the IA closes it in any case.
    ///
    /// # Errors
    /// INVALID_STATE (IA_IN_USE) with objects left. The error returns the IA.
    ///
    /// # References
    /// dat_ia_close(3DAT).
    pub fn close(self) -> Result<(), Refused<Self>> {
        if let Err(error) = self.can_close(CloseFlags::Graceful) {
            return Err(Refused { object: self, error });
        }
        self.close_all();
        Ok(())
    }

    /// Checks whether a close of this kind would succeed. The answer is valid until objects are
    /// created or freed.
    #[doc(hidden)]
    pub fn can_close(&self, how: CloseFlags) -> Result<()> {
        self.device.check_inherited(Subtype::InvalidHandleIa, "IA")?;
        let mut left = self.what_is_left();
        if left.is_some() && how == CloseFlags::Graceful {
            // The program has dropped an object on which the progress thread is still working.
            self.device.reactor.finish_turn();
            left = self.what_is_left();
        }
        match left {
            Some(left) if how == CloseFlags::Graceful => Err(Error::state(
                Subtype::InvalidStateIaInUse,
                format!("objects of this IA are left: {left}"),
            )),
            _ => Ok(()),
        }
    }

    /// The ID of the IA's own asynchronous EVD; `None` if the consumer supplied the EVD.
    fn own_async_evd(&self) -> Option<EvdId> {
        let id = self.async_evd.inner.id;
        self.device.registry.contains(Class::Evd, id.0).then_some(id)
    }

    fn what_is_left(&self) -> Option<String> {
        let own = usize::from(self.own_async_evd().is_some());
        let members = self.device.registry.count(|| ());
        let counts = [
            ("EPs", members.of(Class::Ep)),
            ("SRQs", members.of(Class::Srq)),
            ("PSPs or RSPs", members.of(Class::ServicePoint)),
            ("EVDs", members.of(Class::Evd).saturating_sub(own)),
            ("LMRs", members.of(Class::Lmr)),
            ("RMRs", members.of(Class::Rmr)),
            ("PZs", members.of(Class::Pz)),
            ("CNOs", members.of(Class::Cno)),
        ];
        let left: Vec<_> =
            counts.iter().filter(|(_, n)| *n > 0).map(|(name, n)| format!("{n} {name}")).collect();
        (!left.is_empty()).then(|| left.join(", "))
    }

    fn close_all(&self) {
        if !self.device.shut() {
            return;
        }
        self.device.registry.close_all();
        self.defaults.close();
        self.device.stop();
    }

    /// Returns the IA's counters.
    ///
    /// # Errors
    /// INVALID_HANDLE after the IA was closed.
    pub fn counters(&self) -> Result<Counters<IaCounter>> {
        self.take_counters(&[])
    }

    /// Returns the counters, and resets those in `reset` to 0.
    ///
    /// # Errors
    /// As [`Ia::counters`].
    pub fn take_counters(&self, reset: &[IaCounter]) -> Result<Counters<IaCounter>> {
        self.device.check()?;
        Ok(self.device.counts.read(self.totals(), reset))
    }

    /// Starts this group of port or device counters at 0. The device has counted since it came up,
    /// so the counters report the difference. A counter that the device does not have stays 0.
    ///
    /// # Errors
    /// INVALID_HANDLE after the IA was closed.
    ///
    /// # References
    /// dat_ib_extensions.h, `dat_ib_start_counter`.
    pub fn start_counters(&self, group: PortCounters) -> Result<()> {
        self.device.check()?;
        self.device.counts.start(group);
        Ok(())
    }

    /// Stops this group. Its counters keep their values. A group that was not started stays 0.
    ///
    /// # Errors
    /// INVALID_HANDLE after the IA was closed.
    ///
    /// # References
    /// dat_ib_extensions.h, `dat_ib_stop_counter`.
    pub fn stop_counters(&self, group: PortCounters) -> Result<()> {
        self.device.check()?;
        self.device.counts.stop(group);
        Ok(())
    }

    /// The counted values. The number of freed objects follows from the created and the existing
    /// objects.
    fn totals(&self) -> Counters<IaCounter> {
        use IaCounter as C;
        let own = usize::from(self.own_async_evd().is_some());
        let mut totals = Counters::zero();
        let members = self.device.registry.count(|| totals = self.device.counts.totals());
        let made = |counters: &[C]| counters.iter().map(|&counter| totals[counter]).sum::<u64>();
        let (psp, rsp) = (&[C::PspCreate, C::PspCreateAny], &[C::RspCreate]);
        let freed = [
            (C::PzFree, made(&[C::PzCreate]), members.of(Class::Pz)),
            (C::LmrFree, made(&[C::LmrCreate]), members.of(Class::Lmr)),
            (C::RmrFree, made(&[C::RmrCreate]), members.of(Class::Rmr)),
            (C::PspFree, made(psp), members.service_points(psp)),
            (C::RspFree, made(rsp), members.service_points(rsp)),
            (C::EvdFree, made(&[C::EvdCreate]), members.of(Class::Evd).saturating_sub(own)),
            (C::EpFree, made(&[C::EpCreate]), members.of(Class::Ep)),
            (C::SrqFree, made(&[C::SrqCreate]), members.of(Class::Srq)),
        ];
        for (counter, made, living) in freed {
            totals.set(counter, made.saturating_sub(living as u64));
        }
        totals
    }
}

impl Drop for Ia {
    fn drop(&mut self) {
        self.close_all();
    }
}
