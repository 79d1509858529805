//! Opening a device.

use super::Ia;
use crate::datapath::direct;
use crate::defaults::Defaults;
use crate::device::{Device, IaSettings};
use crate::evd::EvdInner;
use crate::memory::{headroom, ready};
use crate::types::EvdFlags;
use crate::{Error, Evd, Result, ReturnType, Subtype};
use nix::sys::eventfd::EventFd;
use rxe_fallback::{Context, Selector};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

/// The asynchronous EVD holds at least this many events, whatever depth is requested (R193).
const ASYNC_DEPTH: u32 = 4096;

/// The options with which an IA is opened: see [`Ia::builder`].
#[derive(Clone, Debug)]
#[must_use = "nothing is opened before `open`"]
pub struct IaBuilder<'a> {
    name: &'a str,
    async_depth: u32,
    async_evd: Option<&'a Evd>,
    settings: IaSettings,
}

/// The destination of asynchronous events.
enum AsyncEvents {
    /// A new EVD for this many events.
    New(u32),
    /// This EVD.
    To(Arc<EvdInner>),
}

impl Ia {
    /// Opens a device. The name is one of: `rxeA`, `"mlx5_0 1"` (with a port), a network interface,
    /// or an address.
    ///
    /// ```no_run
    /// # use doorbell::Ia;
    /// # fn main() -> doorbell::Result<()> {
    /// let ia = Ia::open("mlx5_0")?;
    /// println!("peers connect to {}", ia.address());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// PROVIDER_NOT_FOUND, with the list of devices, if no device has that name; INVALID_STATE if
    /// its port is down or has no address; INSUFFICIENT_RESOURCES from the device.
    ///
    /// # References
    /// dat_ia_open(3DAT).
    pub fn open(name: &str) -> Result<Self> {
        Self::builder(name).open()
    }

    /// Options for an open. Without any, [`IaBuilder::open`] does what [`Ia::open`] does.
    ///
    /// ```no_run
    /// # use doorbell::Ia;
    /// # fn main() -> doorbell::Result<()> {
    /// // Peers that find no receive posted try again for ever, every 0.64 ms.
    /// let ia = Ia::builder("mlx5_0").rnr_retry(7).rnr_timer(12).open()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn builder(name: &str) -> IaBuilder<'_> {
        IaBuilder { name, async_depth: ASYNC_DEPTH, async_evd: None, settings: IaSettings::default() }
    }
}

impl<'a> IaBuilder<'a> {
    /// The number of events that the asynchronous EVD holds: 4,096, or more.
    pub fn async_depth(mut self, events: u32) -> Self {
        self.async_depth = events;
        self
    }

    /// Sends asynchronous events to an existing EVD: the asynchronous EVD of another open IA, or an
    /// EVD created with the asynchronous stream.
    ///
    /// The objects and contexts of the events identify the IA ([`Ia::set_context`]). The events
    /// stop when the EVD is freed, or when the IA of the EVD is closed.
    pub fn async_evd(mut self, evd: &'a Evd) -> Self {
        self.async_evd = Some(evd);
        self
    }

    /// How often a peer retries when this side has no receive posted: 0 to 6 times; 7 retries for
    /// ever. The default is that of `DOORBELL_RNR_RETRY`, or 6.
    pub fn rnr_retry(mut self, times: u8) -> Self {
        self.settings.rnr_retry = times;
        self
    }

    /// How long a peer waits before it retries, as a code of ibv_modify_qp(3). 26 is 81.92 ms: with
    /// 6 retries, a connection breaks when the SRQ is empty at seven instants, 81.92 ms apart, even
    /// if it had buffers in between. 12 is 0.64 ms. The default is that of `DOORBELL_RNR_TIMER`, or
    /// 26.
    pub fn rnr_timer(mut self, code: u8) -> Self {
        self.settings.rnr_timer = code;
        self
    }

    /// How long a wait for a completion polls before it sleeps; zero: it sleeps at once. Waits learn
    /// whether polling is of use: where it is not, it becomes rare. The default is that of
    /// `DOORBELL_POLL_TIME` in microseconds, 0 to 10,000, or 50.
    pub fn poll_time(mut self, time: Duration) -> Self {
        self.settings.poll_time = time;
        self
    }

    /// Opens the device.
    ///
    /// # Errors
    /// As [`Ia::open`]; INVALID_PARAMETER (ARG2) for a depth of 0; INVALID_HANDLE (EVD_ASYNC) for an
    /// EVD that is freed or without the stream.
    ///
    /// # References
    /// dat_ia_open(3DAT).
    pub fn open(self) -> Result<Ia> {
        let events = if let Some(evd) = self.async_evd {
            let evd = &evd.inner;
            evd.check_for(&evd.device, EvdFlags::ASYNC, Subtype::InvalidHandleEvdAsync)?;
            AsyncEvents::To(evd.clone())
        } else if self.async_depth < 1 {
            return Err(Error::arg(2, "the asynchronous EVD has 1 event or more, not 0"));
        } else {
            AsyncEvents::New(self.async_depth.max(ASYNC_DEPTH))
        };
        open_telling(self.name, &events, self.settings)
    }
}

fn open_telling(name: &str, events: &AsyncEvents, settings: IaSettings) -> Result<Ia> {
    open_device(name, events, settings).map_err(|error| {
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

fn open_device(name: &str, events: &AsyncEvents, settings: IaSettings) -> Result<Ia> {
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
        AsyncEvents::New(qlen) => EvdInner::new(&device, *qlen as usize, EvdFlags::ASYNC, false)?,
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
    Ok(Ia { device, defaults, async_evd: Evd { inner: async_evd } })
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
