//! IAs: an open device, with everything that lives on it.

use crate::cno::CnoInner;
use crate::conn::MAX_PRIVATE_DATA;
use crate::counters::IaCounts;
use crate::cr::CrInner;
use crate::datagram::Datagrams;
use crate::datapath::{DataPath, entries::Lost};
use crate::ep::EpInner;
use crate::evd::{Credit, EvdInner};
use crate::event::{AsyncEvent, EventData};
use crate::lmr::{LmrInner, LmrTable};
use crate::memory::{headroom, list};
use crate::pool::ReturnQueue;
use crate::progress::{Progress, Task};
use crate::psp::SpInner;
use crate::pz::PzInner;
use crate::rmr::RmrInner;
use crate::srq::{MAX_IOV, SrqInner};
use crate::sync::{Mutex, rank};
use crate::types::{CloseFlags, CompletionFlags, Count, EvdFlags, EvdId, LmrTriplet, ServiceType, next_id};
use crate::{
    DtoStatus, Error, Evd, IaAttr, ProviderAttr, Refused, Result, ReturnType, RmrBindCompletion, Subtype,
};
use rxe_fallback::{AtomicCap, CmId, Context, EventChannel, PortSpace, Selector, Transport};
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

/// How long a connection id is kept for an answer to its goodbye.
const GOODBYE_TIME: Duration = Duration::from_secs(10);

/// The asynchronous EVD holds at least this many events, whatever was asked (R193).
const ASYNC_QLEN: usize = 4096;

/// An interface adapter (`DAT_IA_HANDLE`): an open device. Dropping it closes it abruptly.
#[derive(Debug)]
pub struct Ia {
    pub(crate) inner: Arc<IaInner>,
    async_evd: Evd,
}

/// Settings of an IA; the defaults come from the environment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IaSettings {
    /// Times that a sender tries again when the peer has no receive posted, 0 to 6; 7 is for ever. `DOORBELL_RNR_RETRY`, default 6.
    pub rnr_retry: u8,
    /// How long a peer waits before it tries again, as a code of ibv_modify_qp(3): 26 is 81.92 ms, so that with 6 tries an SRQ may
    /// stay empty for half a second. `DOORBELL_RNR_TIMER`, default 26.
    pub rnr_timer: u8,
}

impl Default for IaSettings {
    fn default() -> Self {
        let number = |name: &str, most: u8, default: u8| match std::env::var(name) {
            Err(_) => default,
            Ok(text) => match text.parse() {
                Ok(n) if n <= most => n,
                _ => {
                    tracing::warn!("{name}={text:?} is not 0 to {most}: {default} it is");
                    default
                }
            },
        };
        Self {
            rnr_retry: number("DOORBELL_RNR_RETRY", 7, 6),
            rnr_timer: number("DOORBELL_RNR_TIMER", 31, 26),
        }
    }
}

pub(crate) struct IaInner {
    pub(crate) attr: IaAttr,
    pub(crate) provider_attr: ProviderAttr,
    pub(crate) kind: DataPath,
    pub(crate) settings: IaSettings,
    pub(crate) port: u8,
    pub(crate) lmrs: LmrTable,
    pub(crate) datagrams: Datagrams,
    pub(crate) objects: Mutex<{ rank::TABLE }, Objects>,
    pub(crate) progress: Arc<Progress>,
    /// EVDs that the IA itself owns; they hold the IA, so they go at close.
    own: Mutex<{ rank::OWN }, Own>,
    cm_targets: Mutex<{ rank::TABLE }, HashMap<u64, CmEntry>>,
    pools: Mutex<{ rank::TABLE }, HashMap<u32, Weak<ReturnQueue>>>,
    order: Mutex<{ rank::ORDER }, ()>,
    thread: Mutex<{ rank::TABLE }, Option<JoinHandle<()>>>,
    live: AtomicBool,
    /// It belongs to the process that this one was forked from.
    inherited: AtomicBool,
    consumer_context: AtomicU64,
    pub(crate) counts: IaCounts,
    /// Dropped after everything that hangs on them.
    pub(crate) cm: EventChannel,
    pub(crate) context: Context,
}

#[derive(Debug, Default)]
struct Own {
    async_evd: Option<Arc<EvdInner>>,
    discards: Option<Arc<EvdInner>>,
    /// The zone of EPs that the provider makes, until the consumer names one.
    pz: Option<Arc<PzInner>>,
}

/// Everything that lives on an IA, to be found by number and to be closed with it.
#[derive(Debug, Default)]
pub(crate) struct Objects {
    pub(crate) pzs: HashMap<u32, Weak<PzInner>>,
    pub(crate) lmrs: HashMap<u32, Weak<LmrInner>>,
    pub(crate) evds: HashMap<u64, Weak<EvdInner>>,
    pub(crate) eps: HashMap<u64, Weak<EpInner>>,
    pub(crate) srqs: HashMap<u64, Weak<SrqInner>>,
    pub(crate) sps: HashMap<u64, Weak<SpInner>>,
    pub(crate) cnos: HashMap<u64, Weak<CnoInner>>,
    pub(crate) rmrs: HashMap<u64, Weak<RmrInner>>,
    /// What each RMR context in use names.
    keys: HashMap<u32, Key>,
    /// How many more there is memory for in any case.
    expected_keys: usize,
}

impl Objects {
    /// How many of the EVDs the consumer has not made, where this is the one for asynchronous events.
    pub(crate) fn own_evds(&self, async_evd: Option<EvdId>) -> usize {
        usize::from(async_evd.is_some_and(|evd| self.evds.contains_key(&evd.0)))
    }
}

/// What an RMR context of this IA names.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Key {
    /// The LMR with this context.
    Lmr(u32),
    /// The RMR with this number.
    Rmr(u64),
}

/// See [`IaInner::expect_key`].
pub(crate) struct ExpectedKey<'a>(&'a IaInner);

impl ExpectedKey<'_> {
    /// This RMR context names something of the IA from now on.
    pub(crate) fn is(self, rkey: u32, key: Key) {
        self.0.objects.lock().unwrap().keys.insert(rkey, key);
    }
}

impl Drop for ExpectedKey<'_> {
    fn drop(&mut self) {
        self.0.objects.lock().unwrap().expected_keys -= 1;
    }
}

/// Who gets the events of a connection id.
#[derive(Clone, Debug)]
pub(crate) enum CmTarget {
    Ep(Weak<EpInner>),
    Listener(Weak<SpInner>),
    Request(Weak<CrInner>),
    /// Nobody: it waits for the peer's answer to a goodbye.
    Retired,
}

#[derive(Debug)]
struct CmEntry {
    target: CmTarget,
    /// Keeps the id of a retired connection.
    _id: Option<Arc<CmId>>,
}

/// Where asynchronous events go.
enum AsyncEvents {
    /// To an EVD of the IA's own, for this many.
    New(usize),
    /// To this one.
    To(Arc<EvdInner>),
}

/// IAs that are open, in the order in which they were opened, with the process that opened them.
static OPEN: Mutex<{ rank::TABLE }, Vec<(u32, Weak<IaInner>)>> = Mutex::new(Vec::new());

/// Those of this process; of the one that it was forked from there may be others.
pub(crate) fn open_ones() -> Vec<Arc<IaInner>> {
    let open = OPEN.lock().unwrap();
    let own = std::process::id();
    open.iter().filter(|(process, _)| *process == own).filter_map(|(_, ia)| ia.upgrade()).collect()
}

/// For a fork.
fn hold_shared_locks() -> Vec<Box<dyn std::any::Any>> {
    vec![Box::new(OPEN.hold())]
}

/// In a child: the IAs that are open are its parent's.
fn forget_inherited() {
    OPEN.lock().unwrap().clear();
}

impl Ia {
    /// Opens a device, named as `rxeA`, `"mlx5_0 1"` (with port), a network interface or an address.
    ///
    /// # Errors
    /// PROVIDER_NOT_FOUND with the devices found where there is none of that name; INVALID_STATE where its port is
    /// down or it has no address; INSUFFICIENT_RESOURCES from the device.
    ///
    /// # References
    /// dat_ia_open(3DAT).
    pub fn open(name: &str) -> Result<Self> {
        Self::open_with(name, 8, IaSettings::default())
    }

    /// The same, with an asynchronous EVD for at least this many events, and settings.
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

    /// The same, with asynchronous events to an EVD that exists: that of another open IA, or one made with the stream for them.
    ///
    /// Events tell by their objects and contexts which IA they are about ([`Ia::set_context`]). With the EVD, or with the IA
    /// that it belongs to, they end.
    ///
    /// # Errors
    /// As [`Ia::open`]; INVALID_HANDLE (EVD_ASYNC) for an EVD that is freed or without the stream.
    ///
    /// # References
    /// dat_ia_open(3DAT).
    pub fn open_sharing(name: &str, async_evd: &Evd, settings: IaSettings) -> Result<Self> {
        let evd = &async_evd.inner;
        evd.check_for(&evd.ia, EvdFlags::ASYNC, Subtype::InvalidHandleEvdAsync)?;
        Self::open_telling(name, &AsyncEvents::To(evd.clone()), settings)
    }

    fn open_telling(name: &str, events: &AsyncEvents, settings: IaSettings) -> Result<Self> {
        Self::open_device(name, events, settings).map_err(|error| {
            if descriptors_left() >= DESCRIPTORS {
                return error;
            }
            // Libraries then find no devices or no addresses, and say that there are none.
            let text = format!(
                "an IA needs about {DESCRIPTORS} file descriptors, and fewer are left: raise the limit with \
                 \"ulimit -n\" ({error})"
            );
            Error::resources(Subtype::ResourceDevice, text)
        })
    }

    fn open_device(name: &str, events: &AsyncEvents, settings: IaSettings) -> Result<Self> {
        headroom()?;
        let Ok(selector) = name.parse::<Selector>();
        let (context, port, address) = Context::open_selected(&selector).map_err(not_found)?;
        // A link-local address is good on its own link only, and the connection manager does not take it.
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
        let (kind, why) = DataPath::choose(&context)?;
        let cm = EventChannel::create().map_err(|e| Error::verb(Subtype::ResourceDevice, e))?;
        let progress = Progress::new(context.async_fd(), std::os::fd::AsFd::as_fd(&cm))?;
        let inner = Arc::new(IaInner {
            attr: ia_attr(&context, port, address, kind),
            provider_attr: provider_attr(&context, kind, why),
            kind,
            settings,
            port,
            lmrs: LmrTable::new()?,
            datagrams: Datagrams::default(),
            objects: Mutex::default(),
            progress: progress.clone(),
            own: Mutex::default(),
            cm_targets: Mutex::default(),
            pools: Mutex::default(),
            order: Mutex::new(()),
            thread: Mutex::new(None),
            live: AtomicBool::new(true),
            inherited: AtomicBool::new(false),
            consumer_context: AtomicU64::new(0),
            counts: IaCounts::new(context.sysfs_path(), port),
            cm,
            context,
        });
        crate::fork::watch();
        crate::fork::share(crate::fork::Part::ServicePoints, hold_shared_locks, forget_inherited);
        crate::fork::know(&inner)?;
        let async_evd = match events {
            AsyncEvents::New(qlen) => EvdInner::new(&inner, *qlen, EvdFlags::ASYNC, false)?,
            AsyncEvents::To(evd) => evd.clone(),
        };
        inner.own.lock().unwrap().async_evd = Some(async_evd.clone());
        // What it made for itself is nobody's business.
        inner.counts.clear();
        let weak = Arc::downgrade(&inner);
        let thread = std::thread::Builder::new()
            .name("doorbell".to_owned())
            .spawn(move || progress.run(weak))
            .map_err(|e| Error::resources(Subtype::ResourceDevice, format!("no thread: {e}")))?;
        *inner.thread.lock().unwrap() = Some(thread);
        let mut open = OPEN.lock().unwrap();
        open.try_reserve(1)?;
        open.push((std::process::id(), Arc::downgrade(&inner)));
        drop(open);
        tracing::info!(device = inner.context.name(), port, %address, "IA open");
        Ok(Self { inner, async_evd: Evd { inner: async_evd } })
    }

    /// What the device offers.
    pub fn attributes(&self) -> &IaAttr {
        &self.inner.attr
    }

    /// What the provider does on it.
    pub fn provider_attributes(&self) -> &ProviderAttr {
        &self.inner.provider_attr
    }

    /// The address that peers connect to.
    pub fn address(&self) -> IpAddr {
        self.inner.attr.ia_address
    }

    /// The EVD of asynchronous events.
    pub fn async_evd(&self) -> &Evd {
        &self.async_evd
    }

    /// Makes this side's writes to these segments visible to peers' RDMA Reads. On the coherent machines that devices are in,
    /// there is nothing to do (R272).
    ///
    /// # Errors
    /// INVALID_PARAMETER (ARG2) for a segment that is not inside a live LMR; INVALID_HANDLE after the IA was closed.
    ///
    /// # References
    /// dat_lmr_sync_rdma_read(3DAT).
    pub fn sync_rdma_read(&self, segments: &[LmrTriplet]) -> Result<()> {
        self.inner.check()?;
        match segments.iter().position(|s| s.segment_length > 0 && !self.inner.lmrs.covers(s)) {
            Some(n) => Err(Error::arg(2, format!("segment {n} is not inside a live LMR"))),
            None => Ok(()),
        }
    }

    /// Makes peers' RDMA Writes to these segments visible to this side; as [`Ia::sync_rdma_read`].
    ///
    /// # Errors
    /// As [`Ia::sync_rdma_read`].
    ///
    /// # References
    /// dat_lmr_sync_rdma_write(3DAT).
    pub fn sync_rdma_write(&self, segments: &[LmrTriplet]) -> Result<()> {
        self.sync_rdma_read(segments)
    }

    /// A number of the consumer's, 0 at first; it comes back in asynchronous events about the IA itself.
    pub fn set_context(&self, context: u64) {
        self.inner.consumer_context.store(context, Ordering::Relaxed);
    }

    /// Closes it. Graceful only if nothing is left (R273); abrupt ends and frees everything, SRQs after EPs and before PZs
    /// (R274), and what the consumer still holds is stale then (R275).
    ///
    /// # Errors
    /// INVALID_STATE (IA_IN_USE) for a graceful close with objects left; the IA comes back.
    ///
    /// # References
    /// dat_ia_close(3DAT).
    pub fn close(self, how: CloseFlags) -> Result<(), Refused<Self>> {
        if let Err(error) = self.can_close(how) {
            return Err(Refused { object: self, error });
        }
        self.inner.close();
        Ok(())
    }

    /// What [`Ia::close`] would say, as long as nothing changes.
    pub(crate) fn can_close(&self, how: CloseFlags) -> Result<()> {
        self.inner.check_inherited(Subtype::InvalidHandleIa, "IA")?;
        match self.inner.what_is_left() {
            Some(left) if how == CloseFlags::Graceful => {
                Err(Error::state(Subtype::InvalidStateIaInUse, format!("still there: {left}")))
            }
            _ => Ok(()),
        }
    }
}

impl Drop for Ia {
    fn drop(&mut self) {
        self.inner.close();
    }
}

/// What an open IA and the libraries on the way to it hold, about.
const DESCRIPTORS: usize = 16;

/// How many more the process may have, up to [`DESCRIPTORS`].
fn descriptors_left() -> usize {
    let files: Vec<_> = (0..DESCRIPTORS).map_while(|_| std::fs::File::open("/dev/null").ok()).collect();
    files.len()
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

fn count(n: u32) -> Count {
    Count::try_from(n).unwrap_or(Count::MAX)
}

fn ia_attr(context: &Context, port: u8, address: IpAddr, kind: DataPath) -> IaAttr {
    let a = context.attributes();
    // One number for all DTOs: what receives of an SRQ take may be less than what QPs take.
    let sge = count(a.max_sge.min(a.max_srq_sge).min(MAX_IOV as u32));
    let max_message = context.port(1).map_or(1 << 30, |port| port.max_msg_sz.min(1 << 30));
    IaAttr {
        adapter_name: context.name().to_owned(),
        vendor_name: format!("{:#x} part {}", a.vendor_id, a.vendor_part_id),
        firmware_version: a.fw_ver.clone(),
        hardware_version: a.hw_ver,
        ia_address: address,
        max_eps: count(a.max_qp),
        max_dto_per_ep: count(a.max_qp_wr),
        max_rdma_read_per_ep_in: count(a.max_qp_rd_atom.min(255)),
        max_rdma_read_per_ep_out: count(a.max_qp_init_rd_atom.min(255)),
        // 0: the device does not count them all together.
        max_rdma_read_in: if a.max_res_rd_atom == 0 {
            count(a.max_qp_rd_atom.min(255).saturating_mul(a.max_qp))
        } else {
            count(a.max_res_rd_atom)
        },
        max_rdma_read_out: count(a.max_qp_init_rd_atom.min(255).saturating_mul(a.max_qp)),
        rdma_reads_guaranteed: a.max_res_rd_atom == 0
            || a.max_res_rd_atom / a.max_qp.max(1) >= a.max_qp_rd_atom.min(255),
        max_evds: count(a.max_cq),
        max_evd_qlen: count(a.max_cqe),
        max_iov_segments_per_dto: sge,
        max_iov_segments_per_rdma_read: if a.max_sge_rd == 0 { sge } else { sge.min(count(a.max_sge_rd)) },
        max_iov_segments_per_rdma_write: sge,
        max_lmrs: count(a.max_mr),
        max_lmr_block_size: a.max_mr_size,
        max_pzs: count(a.max_pd),
        max_message_size: max_message,
        max_rdma_size: max_message,
        mtu: context.port(port).map_or(0, |port| port.active_mtu),
        atomics: a.atomic_cap != AtomicCap::None,
        datagrams: context.transport() == Transport::Ib,
        max_rmrs: if a.memory_windows || a.memory_windows_type2 { count(a.max_mw) } else { 0 },
        // The registration says where addresses begin; every device has to obey it.
        zero_based: true,
        remote_invalidate: a.memory_windows_type2 || a.memory_management,
        max_srqs: count(a.max_srq),
        max_ep_per_srq: count(a.max_qp),
        max_recv_per_srq: count(a.max_srq_wr.min(a.max_cqe).min(kind.max_depth())),
    }
}

fn provider_attr(context: &Context, kind: DataPath, why: String) -> ProviderAttr {
    ProviderAttr {
        provider_name: "doorbell",
        completion_flags_supported: CompletionFlags::all(),
        max_private_data_size: MAX_PRIVATE_DATA as Count,
        ep_creator: 1,
        srq_supported: true,
        srq_watermarks_supported: 0x111,
        // mlx5 takes an SRQ's buffers from the SRQ's own protection domain; rxe looks in the QP's.
        srq_ep_pz_difference_supported: context.driver().starts_with("mlx5"),
        srq_info_supported: 0x11,
        ep_recv_info_supported: 0x11,
        lmr_sync_req: false,
        iov_ownership_on_return: 0,
        rmr_scopes: match (context.attributes().memory_windows, context.attributes().memory_windows_type2) {
            (true, true) => 2,
            (true, false) => 1,
            (false, _) => 0,
        },
        datapath: kind.name(),
        datapath_reason: why,
    }
}

impl IaInner {
    pub(crate) fn check(&self) -> Result<()> {
        if self.live.load(Ordering::Acquire) {
            Ok(())
        } else {
            Err(Error::handle(Subtype::InvalidHandleIa, "IA"))
        }
    }

    /// Whether it belongs to the process that this one was forked from: its locks may be held for
    /// ever then.
    pub(crate) fn is_inherited(&self) -> bool {
        self.inherited.load(Ordering::Acquire)
    }

    /// Refuses objects of an IA that [`IaInner::is_inherited`].
    pub(crate) fn check_inherited(&self, sub: Subtype, what: &str) -> Result<()> {
        if self.is_inherited() { Err(Error::handle(sub, what)) } else { Ok(()) }
    }

    /// The EVD for streams that the consumer gave none for.
    pub(crate) fn discards(self: &Arc<Self>) -> Result<Arc<EvdInner>> {
        let mut own = self.own.lock().unwrap();
        if let Some(evd) = &own.discards {
            return Ok(evd.clone());
        }
        let evd = EvdInner::new(self, 64, EvdFlags::DTO, true)?;
        own.discards = Some(evd.clone());
        Ok(evd)
    }

    /// The EVD with this number, also the one for streams that the consumer gave none for.
    pub(crate) fn evd(&self, id: EvdId) -> Option<Arc<EvdInner>> {
        let made = self.objects.lock().unwrap().evds.get(&id.0).and_then(Weak::upgrade);
        made.or_else(|| self.own.lock().unwrap().discards.clone().filter(|evd| evd.id == id))
    }

    /// The PZ of EPs that nobody has given one to.
    pub(crate) fn own_pz(self: &Arc<Self>) -> Result<Arc<PzInner>> {
        let mut own = self.own.lock().unwrap();
        if let Some(pz) = &own.pz {
            return Ok(pz.clone());
        }
        let pz = PzInner::new(self)?;
        own.pz = Some(pz.clone());
        Ok(pz)
    }

    /// The service point that listens at this qualifier for this.
    pub(crate) fn service_point(&self, qual: crate::ConnQual, service: ServiceType) -> Option<Arc<SpInner>> {
        let objects = self.objects.lock().unwrap();
        objects.sps.values().filter_map(Weak::upgrade).find(|sp| sp.listens_at(qual, service))
    }

    /// Where asynchronous events go: an EVD of the IA's own, unless it is another's.
    pub(crate) fn own_async_evd(&self) -> Option<EvdId> {
        self.own.lock().unwrap().async_evd.as_ref().map(|evd| evd.id)
    }

    /// Gives entries back that were received for nobody; true if there may be any.
    pub(crate) fn harvest_discards(&self) -> bool {
        let evd = self.own.lock().unwrap().discards.clone();
        evd.is_some_and(|evd| evd.harvest_now().is_ok())
    }

    pub(crate) fn consumer_context(&self) -> u64 {
        self.consumer_context.load(Ordering::Relaxed)
    }

    pub(crate) fn push_async(&self, event: AsyncEvent) {
        let evd = self.own.lock().unwrap().async_evd.clone();
        if let Some(evd) = evd {
            evd.push(EventData::Async(event));
        }
    }

    /// Keeps events of one cause in one order across EVDs (R192).
    pub(crate) fn in_order(&self, push: impl FnOnce()) {
        let _order = self.order.lock().unwrap();
        push();
    }

    /// A buffer that went down with its EP is reported there as flushed, if the EP is still around (R174); else it is
    /// free at once.
    pub(crate) fn flush_lost(&self, srq: &Arc<SrqInner>, lost: Lost) {
        tracing::debug!(?lost, "a buffer went down with its EP");
        let ep = self.objects.lock().unwrap().eps.get(&lost.ep).and_then(Weak::upgrade);
        match ep {
            Some(ep) => {
                let credit = Credit::Srq(srq.clone(), lost.entry);
                ep.recv_evd.put_flushed(&ep, lost.info, ep.receive_op(), credit);
            }
            None => {
                self.return_unseen(lost.info.pool, lost.info.cookie);
                srq.path.release(lost.entry);
            }
        }
    }

    /// A pool wants its buffers back also when nobody sees their completions.
    ///
    /// # Errors
    /// No memory for the table.
    pub(crate) fn add_pool(&self, number: u32, unseen: &Arc<ReturnQueue>) -> Result<()> {
        let mut pools = self.pools.lock().unwrap();
        pools.try_reserve(1)?;
        pools.insert(number, Arc::downgrade(unseen));
        Ok(())
    }

    pub(crate) fn remove_pool(&self, number: u32) {
        if self.is_inherited() {
            return;
        }
        self.pools.lock().unwrap().remove(&number);
    }

    /// What was posted with this cookie is done, and nobody will see its completion.
    pub(crate) fn return_unseen(&self, pool: u32, cookie: u64) {
        if pool == 0 {
            return;
        }
        let unseen = self.pools.lock().unwrap().get(&pool).and_then(Weak::upgrade);
        if let Some(unseen) = unseen {
            // It has room for each buffer, and none can come twice before the pool has looked.
            let _ = unseen.push(cookie);
        }
    }

    /// This RMR context names something of this IA from now on.
    ///
    /// # Errors
    /// No memory for the table.
    pub(crate) fn know_key(&self, rkey: u32, key: Key) -> Result<()> {
        let Objects { keys, expected_keys, .. } = &mut *self.objects.lock().unwrap();
        keys.try_reserve(*expected_keys + 1)?;
        keys.insert(rkey, key);
        Ok(())
    }

    /// Memory for an RMR context that will be known only after something that cannot be undone.
    pub(crate) fn expect_key(&self) -> Result<ExpectedKey<'_>> {
        let Objects { keys, expected_keys, .. } = &mut *self.objects.lock().unwrap();
        keys.try_reserve(*expected_keys + 1)?;
        *expected_keys += 1;
        Ok(ExpectedKey(self))
    }

    pub(crate) fn forget_key(&self, rkey: u32) {
        self.objects.lock().unwrap().keys.remove(&rkey);
    }

    pub(crate) fn key(&self, rkey: u32) -> Option<Key> {
        self.objects.lock().unwrap().keys.get(&rkey).copied()
    }

    /// Calls `f` with each object of a kind that there is now, without the lock of the tables.
    pub(crate) fn each<T>(&self, table: impl Fn(&Objects) -> &HashMap<u64, Weak<T>>, f: impl FnMut(Arc<T>)) {
        each_of(&self.objects, table, Weak::upgrade, f);
    }

    /// A peer has invalidated this RMR context.
    pub(crate) fn invalidated(&self, rkey: u32) {
        self.each(|o| &o.rmrs, |rmr| rmr.invalidated(rkey));
    }

    /// The event of a bind has left.
    pub(crate) fn bind_done(&self, bind: &RmrBindCompletion) {
        let rmr = self.objects.lock().unwrap().rmrs.get(&bind.rmr.0).and_then(Weak::upgrade);
        rmr.into_iter().for_each(|rmr| rmr.done(bind.status == DtoStatus::Success));
    }

    /// The QP of this EP goes: no window may hang on it any more.
    pub(crate) fn leave_windows(&self, ep: crate::EpId) {
        self.each(|o| &o.rmrs, |rmr| rmr.leave(ep));
    }

    /// A connection id whose events go to `target`.
    pub(crate) fn new_cm_id(&self, target: CmTarget) -> Result<(u64, Arc<CmId>)> {
        self.new_cm_id_in(PortSpace::Tcp, target)
    }

    /// The same in either port space.
    pub(crate) fn new_cm_id_in(&self, space: PortSpace, target: CmTarget) -> Result<(u64, Arc<CmId>)> {
        let token = next_id();
        self.expect_cm(token, target)?;
        match CmId::create_in(space, &self.cm, token) {
            Ok(id) => Ok((token, Arc::new(id))),
            Err(error) => {
                self.forget_cm(token);
                Err(Error::verb(Subtype::ResourceTep, error))
            }
        }
    }

    /// Events of a new connection id, which has this token or will have it, go to `target`.
    ///
    /// # Errors
    /// No memory for the table.
    pub(crate) fn expect_cm(&self, token: u64, target: CmTarget) -> Result<()> {
        let mut targets = self.cm_targets.lock().unwrap();
        targets.try_reserve(1)?;
        targets.insert(token, CmEntry { target, _id: None });
        Ok(())
    }

    /// Events of this connection id go to `target` from now on, unless it is forgotten.
    pub(crate) fn retarget_cm(&self, token: u64, target: CmTarget) {
        self.replace_cm(token, CmEntry { target, _id: None });
    }

    fn replace_cm(&self, token: u64, entry: CmEntry) {
        let mut targets = self.cm_targets.lock().unwrap();
        let old = targets.get_mut(&token).map(|known| std::mem::replace(known, entry));
        drop(targets);
        // It may be the last that holds its id.
        drop(old);
    }

    pub(crate) fn cm_target(&self, token: u64) -> Option<CmTarget> {
        self.cm_targets.lock().unwrap().get(&token).map(|entry| entry.target.clone())
    }

    pub(crate) fn forget_cm(&self, token: u64) {
        let entry = self.cm_targets.lock().unwrap().remove(&token);
        drop(entry);
    }

    /// Keeps the id of an ended connection until the peer has answered, or for a while.
    pub(crate) fn retire_cm(&self, token: u64, id: Arc<CmId>) {
        self.replace_cm(token, CmEntry { target: CmTarget::Retired, _id: Some(id) });
        if self.progress.after(GOODBYE_TIME, Task::Forget(token)).is_err() {
            // Nobody would ever let go of it.
            self.forget_cm(token);
        }
    }

    fn what_is_left(&self) -> Option<String> {
        let own = self.own_async_evd();
        let objects = self.objects.lock().unwrap();
        let own_evds = objects.own_evds(own);
        let counts = [
            ("EPs", objects.eps.len()),
            ("SRQs", objects.srqs.len()),
            ("PSPs or RSPs", objects.sps.len()),
            ("EVDs", objects.evds.len() - own_evds),
            ("LMRs", objects.lmrs.len()),
            ("RMRs", objects.rmrs.len()),
            ("PZs", objects.pzs.len()),
            ("CNOs", objects.cnos.len()),
        ];
        let left: Vec<_> =
            counts.iter().filter(|(_, n)| *n > 0).map(|(name, n)| format!("{n} {name}")).collect();
        (!left.is_empty()).then(|| left.join(", "))
    }

    pub(crate) fn close(&self) {
        if !self.live.swap(false, Ordering::AcqRel) {
            return;
        }
        OPEN.lock().unwrap().retain(|(_, ia)| !std::ptr::eq(ia.as_ptr(), self));
        let mut objects = self.objects.lock().unwrap();
        let sps = std::mem::take(&mut objects.sps);
        let evds = std::mem::take(&mut objects.evds);
        let srqs = std::mem::take(&mut objects.srqs);
        let rmrs = std::mem::take(&mut objects.rmrs);
        let lmrs = std::mem::take(&mut objects.lmrs);
        let pzs = std::mem::take(&mut objects.pzs);
        let cnos = std::mem::take(&mut objects.cnos);
        drop(objects);
        for sp in live(&sps) {
            sp.close();
        }
        // These stay to be found until each has heard from the device that it took its last buffer.
        self.each(|o| &o.eps, |ep| ep.close());
        for srq in live(&srqs) {
            srq.close();
        }
        for evd in live(&evds) {
            evd.close();
        }
        for rmr in live(&rmrs) {
            rmr.close();
        }
        for lmr in live(&lmrs) {
            lmr.close();
        }
        for pz in live(&pzs) {
            pz.close();
        }
        for cno in live(&cnos) {
            cno.close();
        }
        let own = std::mem::take(&mut *self.own.lock().unwrap());
        if let Some(discards) = &own.discards {
            discards.close();
        }
        drop(own);
        let ids = std::mem::take(&mut *self.cm_targets.lock().unwrap());
        drop(ids);
        self.stop();
    }

    fn stop(&self) {
        self.progress.stop();
        let thread = self.thread.lock().unwrap().take();
        if let Some(thread) = thread
            && thread.thread().id() != std::thread::current().id()
        {
            // The thread never panics while it holds anything; what it says is of no interest.
            let _ = thread.join();
        }
    }

    /// Whether the device has remote atomics.
    pub(crate) fn has_atomics(&self) -> bool {
        self.context.attributes().atomic_cap != AtomicCap::None
    }
}

/// The objects of a table that there still are.
fn live<K, T>(table: &HashMap<K, Weak<T>>) -> impl Iterator<Item = Arc<T>> {
    table.values().filter_map(Weak::upgrade)
}

/// Calls `f` with everything that `of` gives for the entries of a table, without the table's lock: all at once where there
/// is memory for a list of them, otherwise one after the other, in the order of their numbers.
fn each_of<const RANK: u8, L, E, T>(
    locked: &Mutex<RANK, L>,
    table: impl Fn(&L) -> &HashMap<u64, E>,
    of: impl Fn(&E) -> Option<T>,
    mut f: impl FnMut(T),
) {
    let guard = locked.lock().unwrap();
    if let Ok(mut all) = list(table(&guard).len()) {
        all.extend(table(&guard).values().filter_map(of));
        drop(guard);
        all.into_iter().for_each(f);
        return;
    }
    drop(guard);
    let mut from = 0;
    loop {
        let guard = locked.lock().unwrap();
        let table = table(&guard);
        let Some(&number) = table.keys().filter(|&&number| number >= from).min() else { return };
        let found = table.get(&number).and_then(&of);
        drop(guard);
        found.into_iter().for_each(&mut f);
        let Some(next) = number.checked_add(1) else { return };
        from = next;
    }
}

impl crate::fork::Inherit for IaInner {
    fn disown(&self) {
        self.live.store(false, Ordering::Release);
        self.inherited.store(true, Ordering::Release);
        self.lmrs.disown();
        self.progress.disown();
    }
}

impl Drop for IaInner {
    fn drop(&mut self) {
        self.stop();
    }
}

impl std::fmt::Debug for IaInner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("IaInner")
            .field("context", &self.context)
            .field("port", &self.port)
            .finish_non_exhaustive()
    }
}
