//! IAs: opening a device, and closing all objects on it.

mod create;

use crate::datapath::direct;
use crate::defaults::Defaults;
use crate::device::{Class, Device, IaSettings};
use crate::evd::EvdInner;
use crate::memory::{headroom, ready};
use crate::types::{CloseFlags, Count, EvdFlags, EvdId, LmrTriplet};
use crate::{
    Counters, Error, Evd, IaAttr, IaCounter, PortCounters, ProviderAttr, Refused, Result, ReturnType, Subtype,
};
use nix::sys::eventfd::EventFd;
use rxe_fallback::{Context, Selector};
use std::net::IpAddr;
use std::sync::Arc;

/// The asynchronous EVD holds at least this many events, whatever length is requested (R193).
const ASYNC_QLEN: usize = 4096;

/// An interface adapter (`DAT_IA_HANDLE`): an open device. Dropping an `Ia` closes it abruptly.
#[derive(Debug)]
pub struct Ia {
    #[doc(hidden)]
    pub device: Arc<Device>,
    pub(crate) defaults: Arc<Defaults>,
    async_evd: Evd,
}

/// The destination of asynchronous events.
enum AsyncEvents {
    /// A new EVD for this many events.
    New(usize),
    /// This EVD.
    To(Arc<EvdInner>),
}

impl Ia {
    /// Opens a device. The name is one of: `rxeA`, `"mlx5_0 1"` (with a port), a network interface,
    /// or an address.
    ///
    /// # Errors
    /// PROVIDER_NOT_FOUND, with the list of devices, if no device has that name; INVALID_STATE if
    /// its port is down or has no address; INSUFFICIENT_RESOURCES from the device.
    ///
    /// # References
    /// dat_ia_open(3DAT).
    pub fn open(name: &str) -> Result<Self> {
        Self::open_with(name, 8, IaSettings::default())
    }

    /// As [`Ia::open`], with settings, and with an asynchronous EVD for at least this many events.
    ///
    /// # Errors
    /// As [`Ia::open`]; INVALID_PARAMETER (ARG2) for a length below 1.
    pub fn open_with(name: &str, async_qlen: Count, settings: IaSettings) -> Result<Self> {
        if async_qlen < 1 {
            return Err(Error::arg(2, format!("the asynchronous EVD has 1 event or more, not {async_qlen}")));
        }
        let qlen = (async_qlen as usize).max(ASYNC_QLEN);
        Self::open_telling(name, &AsyncEvents::New(qlen), settings)
    }

    /// As [`Ia::open`], with asynchronous events to an existing EVD: the asynchronous EVD of
    /// another open IA, or an EVD created with the asynchronous stream.
    ///
    /// The objects and contexts of the events identify the IA ([`Ia::set_context`]). The events
    /// stop when the EVD is freed, or when the IA of the EVD is closed.
    ///
    /// # Errors
    /// As [`Ia::open`]; INVALID_HANDLE (EVD_ASYNC) for an EVD that is freed or without the stream.
    ///
    /// # References
    /// dat_ia_open(3DAT).
    pub fn open_sharing(name: &str, async_evd: &Evd, settings: IaSettings) -> Result<Self> {
        let evd = &async_evd.inner;
        evd.check_for(&evd.device, EvdFlags::ASYNC, Subtype::InvalidHandleEvdAsync)?;
        Self::open_telling(name, &AsyncEvents::To(evd.clone()), settings)
    }

    fn open_telling(name: &str, events: &AsyncEvents, settings: IaSettings) -> Result<Self> {
        Self::open_device(name, events, settings).map_err(|error| {
            if descriptors_left() >= DESCRIPTORS {
                return error;
            }
            // Without descriptors, libraries find no devices or addresses, and report that there
            // are none.
            let text = format!(
                "an IA needs about {DESCRIPTORS} file descriptors, and fewer are left: raise the limit with \
                 \"ulimit -n\" ({error})"
            );
            Error::resources(Subtype::ResourceDevice, text)
        })
    }

    fn open_device(name: &str, events: &AsyncEvents, settings: IaSettings) -> Result<Self> {
        headroom()?;
        // Before the libraries below start threads.
        biased_lock::prepare();
        direct::share();
        direct::load_driver();
        let Ok(selector) = name.parse::<Selector>();
        let (context, port, address) = Context::open_selected(&selector).map_err(not_found)?;
        // A link-local address is valid only on its own link, and the connection manager does not
        // accept it.
        let usable = |ip: &IpAddr| !matches!(ip, IpAddr::V6(v6) if v6.is_unicast_link_local());
        let address = match address {
            None => context.address(port).map_err(not_found)?,
            found => found,
        };
        let address = address.filter(usable).ok_or_else(|| {
            let text = format!(
                "port {port} of {} has no GID with an address: give its network interface an IP address",
                context.name()
            );
            Error::new(ReturnType::InvalidState, Subtype::None, text)
        })?;
        let device = Device::new(context, port, address, settings)?;
        crate::fork::watch();
        crate::fork::know(&device)?;
        let async_evd = match events {
            AsyncEvents::New(qlen) => EvdInner::new(&device, *qlen, EvdFlags::ASYNC, false)?,
            AsyncEvents::To(evd) => evd.clone(),
        };
        device.set_async_sink(Some(async_evd.clone()));
        // The asynchronous EVD was not created by the consumer.
        device.counts.clear();
        if let Err(error) = device.start() {
            // The device and its asynchronous EVD hold references to each other.
            device.set_async_sink(None);
            return Err(error);
        }
        tracing::info!(device = device.context.name(), port, %address, "IA open");
        let defaults = Defaults::new(&device);
        ready();
        device.signals.fill();
        Ok(Self { device, defaults, async_evd: Evd { inner: async_evd } })
    }

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
        self.device.attr.ia_address
    }

    /// The EVD of asynchronous events.
    pub fn async_evd(&self) -> &Evd {
        &self.async_evd
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

    /// Closes the IA. A graceful close succeeds only if no object is left (R273). An abrupt close
    /// ends and frees all objects: service points first, then EPs, SRQs, EVDs, RMRs, LMRs, PZs and
    /// CNOs (R274). Objects that the consumer still holds are then stale (R275).
    ///
    /// # Errors
    /// INVALID_STATE (IA_IN_USE) for a graceful close with objects left. The error returns the IA.
    ///
    /// # References
    /// dat_ia_close(3DAT).
    pub fn close(self, how: CloseFlags) -> Result<(), Refused<Self>> {
        if let Err(error) = self.can_close(how) {
            return Err(Refused { object: self, error });
        }
        self.close_all();
        Ok(())
    }

    /// Checks whether [`Ia::close`] would succeed. The answer is valid until objects are created or
    /// freed.
    #[doc(hidden)]
    pub fn can_close(&self, how: CloseFlags) -> Result<()> {
        self.device.check_inherited(Subtype::InvalidHandleIa, "IA")?;
        match self.what_is_left() {
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

/// The approximate number of descriptors that an open IA and the libraries below it hold.
const DESCRIPTORS: usize = 16;

/// The number of descriptors that the process may still open, up to [`DESCRIPTORS`].
fn descriptors_left() -> usize {
    let all: Vec<_> = (0..DESCRIPTORS).map_while(|_| EventFd::new().ok()).collect();
    all.len()
}

fn not_found(source: rxe_fallback::Error) -> Error {
    let ty = match source.errno() {
        libc::ENETDOWN | libc::EADDRNOTAVAIL => ReturnType::InvalidState,
        libc::ENODEV | libc::ENOENT | libc::EINVAL | libc::ENOSYS => ReturnType::ProviderNotFound,
        _ => ReturnType::InsufficientResources,
    };
    let sub = if ty == ReturnType::ProviderNotFound { Subtype::NameNotRegistered } else { Subtype::None };
    let what = if ty == ReturnType::ProviderNotFound { "no such IA" } else { "the device cannot be used" };
    Error::new(ty, sub, what).because(source)
}
