//! SRQs: queues of posted receive buffers, shared by many EPs.

use crate::datapath::{SrqPoster, WrInfo, direct::DirectPoster, verbs::VerbsPoster};
use crate::defaults::Defaults;
use crate::device::{Class, Device, LkeyCache, Member, Use};
use crate::error::{Direction, PostError};
use crate::evd::EvdInner;
use crate::event_data::{AsyncEvent, AsyncKind, AsyncObject, reason};
use crate::lmr::PoolMemory;
use crate::memory::{headroom, list};
use crate::pz::PzInner;
use crate::shared_recv::SharedRecv;
use crate::sync::{Mutex, rank};
use crate::types::{Count, EpId, LmrTriplet, MAX_IOV, SRQ_LW_DEFAULT, SrqId, SrqState, next_id};
use crate::{Error, Ia, IaCounter, Pz, Refused, Result, SrqAttr, Subtype};
use mlx5_direct::DataSeg;
use rxe_fallback::{Sge, SrqInit};
use std::collections::{HashMap, hash_map::Entry};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// A shared receive queue (`DAT_SRQ_HANDLE`).
///
/// One thread at a time posts, as `&mut self` requires. Other threads may reap completions at the
/// same time. Dropping an `Srq` frees it once no EP uses it.
#[derive(Debug)]
pub struct Srq {
    pub(crate) inner: Arc<SrqInner>,
    poster: SrqPoster,
    last: LkeyCache,
}

/// The answer to a query (`DAT_SRQ_PARAM`). Exact whenever no message is half received (R36-R38).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SrqParam {
    /// Operational, unless the device has reported an error of the SRQ.
    pub state: SrqState,
    /// The depth.
    pub max_recv_dtos: Count,
    /// The largest number of segments in one buffer.
    pub max_recv_iov: Count,
    /// The value last set, whether or not its event has been raised (R45).
    pub low_watermark: Count,
    /// The number of buffers that an EP could take now.
    pub available: Count,
    /// The number of occupied entries: available, taken by an EP, or completed but not reaped.
    pub outstanding: Count,
}

#[derive(Debug)]
pub(crate) struct SrqInner {
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
struct Attached {
    eps: u32,
    /// The EPs' receive EVDs.
    evds: HashMap<u64, ReceiveEvd>,
    shutdown: bool,
}

/// A receive EVD. Its CQ has room for every entry of the SRQ once, whatever the number of EPs.
#[derive(Debug)]
struct ReceiveEvd {
    evd: Arc<EvdInner>,
    eps: u32,
    room: u32,
}

impl ReceiveEvd {
    fn make_room(&mut self, srq: &SrqInner, depth: u32) -> Result<()> {
        if depth > self.room {
            self.evd.make_room(&srq.recv, self.room, depth)?;
            self.room = depth;
        }
        Ok(())
    }
}

#[derive(Debug, Default)]
struct LowWatermark {
    value: u32,
    /// The device has been asked for an event that it has not raised yet.
    armed: bool,
}

impl Srq {
    /// Creates an SRQ for at least `max_recv_dtos` buffers of at least `max_recv_iov` segments.
    ///
    /// # Errors
    /// INVALID_PARAMETER (ARG3) for a depth or segment count below 1 or over the IA's limits
    /// (R13-R15), or for a low watermark other than 0 (R12). INVALID_HANDLE for a closed IA, or for
    /// a PZ that is freed or belongs to another IA (R18, R19). INSUFFICIENT_RESOURCES from the
    /// device (R20).
    ///
    /// # References
    /// dat_srq_create(3DAT).
    pub fn create(ia: &Ia, pz: &Pz, attr: SrqAttr) -> Result<Self> {
        let defaults = &ia.defaults;
        let device = &ia.device;
        device.check()?;
        pz.inner.check(device)?;
        headroom()?;
        let most = device.attr.max_recv_per_srq;
        if attr.max_recv_dtos < 1 || attr.max_recv_dtos > most {
            let text = format!("the depth of an SRQ is 1 to {most} here, not {}", attr.max_recv_dtos);
            return Err(Error::arg(3, text));
        }
        let most = device.attr.max_iov_segments_per_dto;
        if attr.max_recv_iov < 1 || attr.max_recv_iov > most {
            let text = format!("a buffer has 1 to {most} segments here, not {}", attr.max_recv_iov);
            return Err(Error::arg(3, text));
        }
        if attr.low_watermark != SRQ_LW_DEFAULT {
            return Err(Error::arg(3, "the low watermark is 0 at creation: set it afterwards"));
        }
        let depth = attr.max_recv_dtos as u32;
        let resizable = device.context.attributes().srq_resize;
        let room = if resizable { depth } else { device.attr.max_recv_per_srq as u32 };
        let id = next_id();
        let init = SrqInit { max_wr: room, max_sge: attr.max_recv_iov as u32, token: id };
        let create =
            if device.attr.datagrams { rxe_fallback::Srq::create_for_any } else { rxe_fallback::Srq::create };
        let srq = create(&pz.inner.pd, init).map_err(|e| Error::verb(Subtype::ResourceSrq, e))?;
        let max_iov = srq.max_sge().min(MAX_IOV as u32).min(device.attr.max_iov_segments_per_dto as u32);
        let (path, poster) = device.path.srq(srq, id as u32, depth, room, resizable)?;
        let inner = Arc::new(SrqInner {
            id: SrqId(id),
            device: device.clone(),
            defaults: defaults.clone(),
            pz: pz.inner.clone(),
            recv: Arc::new(SharedRecv { number: id as u32, path }),
            context: AtomicU64::new(0),
            max_iov,
            live: AtomicBool::new(true),
            failed: AtomicBool::new(false),
            eps: Mutex::default(),
            low: Mutex::default(),
        });
        // If the next line fails, dropping `inner` leaves the PZ.
        pz.inner.enter();
        device.register(Class::Srq, id, &inner, &[IaCounter::SrqCreate])?;
        let last = LkeyCache::none(&inner.device.lmrs);
        Ok(Self { inner, poster, last })
    }

    /// The ID that names the SRQ in events.
    pub fn id(&self) -> SrqId {
        self.inner.id
    }

    /// Sets the consumer's context, which asynchronous events carry. The initial value is 0.
    pub fn set_context(&self, context: u64) {
        self.inner.context.store(context, Ordering::Relaxed);
    }

    /// Posts one buffer of up to `max_recv_iov` segments; a buffer without segments receives a
    /// zero-byte message. The completion carries the cookie. The call posts the whole buffer or
    /// nothing (R60), and never blocks.
    ///
    /// # Errors
    /// See [`PostError`]. The order of checks is: handle, segment count, each segment (alive,
    /// privilege, PZ, bounds), capacity.
    ///
    /// # References
    /// dat_srq_post_recv(3DAT), R48-R71.
    #[inline]
    pub fn post_recv(&mut self, iov: &[LmrTriplet], cookie: u64) -> Result<(), PostError> {
        if let [segment] = iov
            && self.post_fast(segment, cookie)
        {
            return Ok(());
        }
        self.post_slow(iov, cookie)
    }

    /// Posts part of a pool's memory; `bytes` is an offset and a length.
    #[inline]
    pub(crate) fn post_pool(
        &mut self,
        memory: &PoolMemory,
        bytes: (usize, usize),
        info: WrInfo,
    ) -> Result<(), PostError> {
        let inner = &self.inner;
        if !inner.live.load(Ordering::Acquire) {
            return Err(PostError::Stale(Subtype::InvalidHandleSrq));
        }
        let sge = memory.segment(0, bytes, &inner.pz, Direction::Write)?;
        if let SrqPoster::Direct(poster) = &mut self.poster
            && poster.post_one(sge.addr, sge.len, sge.lkey, info.cookie, info.pool)
        {
            return Ok(());
        }
        let info = WrInfo { lmrs: [memory.number(), 0, 0, 0], ..info };
        self.post_or_harvest(|srq| srq.poster.post(&[sge], info))
    }

    /// Posts one segment on the direct path if the LMR of the last post contains the segment and
    /// the ring's contiguous span has a slot left. Otherwise returns false without posting.
    ///
    /// All checks are made. The SRQ is alive if the LMR is, because a closed IA has no live LMR.
    /// Straight-line code without calls, so that the caller needs no stack frame.
    #[inline(always)]
    pub(crate) fn post_fast(&mut self, segment: &LmrTriplet, cookie: u64) -> bool {
        let SrqPoster::Direct(poster) = &mut self.poster else { return false };
        let Some(lkey) = self.last.key(segment) else { return false };
        poster.post_one_in_run(segment.virtual_address, segment.segment_length, lkey, cookie)
    }

    /// Posts any number of segments on either path, and says why a post is refused.
    #[inline(never)]
    pub(crate) fn post_slow(&mut self, iov: &[LmrTriplet], cookie: u64) -> Result<(), PostError> {
        self.post_or_harvest(|srq| {
            if srq.post_from_last_lmr(iov, cookie) { Ok(()) } else { srq.post_checked(iov, cookie) }
        })
    }

    /// Posts up to [`FEW`] segments if the LMR of the last post contains them. Otherwise, or if the
    /// SRQ is full, returns false without posting.
    ///
    /// Calls no code of the program and takes no lock of an object, so a caller may hold the guard
    /// of a biased lock's fast path.
    #[inline(always)]
    pub(crate) fn post_from_last_lmr(&mut self, iov: &[LmrTriplet], cookie: u64) -> bool {
        // Entries that were reaped since the last post may leave the span with room again.
        if let [one] = iov
            && self.poster.found_room()
            && self.post_fast(one, cookie)
        {
            return true;
        }
        let last = &self.last;
        let poster = match &mut self.poster {
            SrqPoster::Direct(poster) => poster,
            SrqPoster::Verbs(poster) => {
                return post_few_by_verbs(poster, last, self.inner.max_iov, iov, cookie);
            }
        };
        let [one] = iov else { return post_few(poster, last, self.inner.max_iov, iov, cookie) };
        let Some(lkey) = last.key(one) else { return false };
        poster.post_one(one.virtual_address, one.segment_length, lkey, cookie, 0)
    }

    /// Posts after a look at the LMR table. Remembers the LMR for the next post.
    #[inline(never)]
    fn post_checked(&mut self, iov: &[LmrTriplet], cookie: u64) -> Result<(), PostError> {
        let inner = &self.inner;
        if !inner.live.load(Ordering::Acquire) {
            return Err(PostError::Stale(Subtype::InvalidHandleSrq));
        }
        if iov.len() > inner.max_iov as usize {
            return Err(PostError::TooManySegments {
                given: u32::try_from(iov.len()).unwrap_or(u32::MAX),
                most: inner.max_iov,
            });
        }
        let using = Use { pz: inner.pz.number, direction: Direction::Write };
        let mut sges = [Sge::default(); MAX_IOV];
        let n = inner.device.lmrs.check_all(iov, using, &mut sges)?;
        if let Some(segment) = iov.iter().find(|segment| segment.segment_length > 0) {
            self.last.remember(&inner.device.lmrs, segment.lmr_context);
        }
        self.poster.post(&sges[..n], WrInfo { cookie, ..WrInfo::default() }.over(iov))
    }

    /// Runs `post`. If the SRQ is full, harvests the EVD of the EPs that were given no receive EVD,
    /// which releases the entries of their completions, and runs `post` again.
    #[inline(always)]
    fn post_or_harvest(
        &mut self,
        post: impl Fn(&mut Self) -> Result<(), PostError>,
    ) -> Result<(), PostError> {
        match post(self) {
            Err(PostError::Full(_)) if self.inner.defaults.harvest_discards() => post(self),
            outcome => outcome,
        }
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
            max_recv_dtos: counts.depth as Count,
            max_recv_iov: inner.max_iov as Count,
            low_watermark: inner.low.lock().unwrap().value as Count,
            available: counts.available as Count,
            outstanding: counts.outstanding as Count,
        })
    }

    /// Changes the depth, up or down, to exactly `depth`. Every posted buffer stays posted.
    ///
    /// # Errors
    /// INVALID_PARAMETER (ARG2) for a depth below 1 or over the IA's limit (R102). INVALID_STATE
    /// for a depth below the outstanding count (R97) or below the low watermark (R100).
    /// INSUFFICIENT_RESOURCES from the device; the depth then stays unchanged (R103).
    ///
    /// # References
    /// dat_srq_resize(3DAT).
    pub fn resize(&mut self, depth: Count) -> Result<()> {
        let inner = &self.inner;
        inner.check()?;
        let most = inner.device.attr.max_recv_per_srq;
        if depth < 1 || depth > most {
            return Err(Error::arg(2, format!("the depth of an SRQ is 1 to {most} here, not {depth}")));
        }
        let depth = depth as u32;
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
        for receive_evd in inner.eps.lock().unwrap().evds.values_mut() {
            receive_evd.make_room(inner, depth).map_err(|e| {
                let text = format!("the EPs' receive queues have no room for {depth} entries: {e}");
                Error::resources(Subtype::ResourceMemory, text)
            })?;
        }
        self.poster.resize(&inner.recv.path, depth)
    }

    /// Arms one event for the first time that fewer than `value` buffers are available. 0 disarms
    /// the event.
    ///
    /// The event is [`AsyncKind::Notice`] with this SRQ and [`reason::SRQ_LOW_WATERMARK`] on the
    /// asynchronous EVD. If fewer buffers are available already, the call itself queues the event
    /// (R110).
    ///
    /// # Errors
    /// INVALID_PARAMETER (ARG2) for a value below 0 or over the depth (R117, R118). On an error the
    /// setting stays unchanged (R119).
    ///
    /// # References
    /// dat_srq_set_lw(3DAT), errata E1 and E3.
    pub fn set_low_watermark(&mut self, value: Count) -> Result<()> {
        let inner = &self.inner;
        inner.check()?;
        let depth = inner.recv.path.depth();
        if value < 0 || value as u32 > depth {
            return Err(Error::arg(2, format!("the low watermark is 0 to {depth} here, not {value}")));
        }
        inner.arm_low(value as u32, &self.poster)
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
    pub fn free(self) -> Result<(), Refused<Self>> {
        if let Err(error) = self.inner.shut() {
            return Err(Refused { object: self, error });
        }
        self.inner.close();
        Ok(())
    }
}

impl Drop for Srq {
    fn drop(&mut self) {
        // EPs may still use the SRQ; then it is freed with the last of those EPs.
        if !self.inner.device.is_inherited() && self.inner.eps.lock().is_ok_and(|attached| attached.eps == 0)
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

/// Posts two or more segments of the LMR `last`, without a look at the LMR table. Otherwise returns
/// false without posting.
#[inline(never)]
fn post_few(
    poster: &mut DirectPoster,
    last: &LkeyCache,
    max_iov: u32,
    iov: &[LmrTriplet],
    cookie: u64,
) -> bool {
    let mut segments = [DataSeg::new(0, 0, 0); FEW];
    let encode = |from: &LmrTriplet, lkey| DataSeg::new(from.virtual_address, from.segment_length, lkey);
    let Some(segments) = few(last, max_iov, iov, &mut segments, encode) else { return false };
    poster.post_encoded(segments, cookie, 0).is_ok()
}

/// As [`post_few`], also for one segment, by verbs.
#[inline(never)]
fn post_few_by_verbs(
    poster: &mut VerbsPoster,
    last: &LkeyCache,
    max_iov: u32,
    iov: &[LmrTriplet],
    cookie: u64,
) -> bool {
    let sge = |from: &LmrTriplet, lkey| Sge { addr: from.virtual_address, len: from.segment_length, lkey };
    if let [one] = iov {
        let Some(lkey) = last.key(one) else { return false };
        let info = WrInfo { cookie, pool: 0, lmrs: [one.lmr_context, 0, 0, 0] };
        return poster.post(&[sge(one, lkey)], info).is_ok();
    }
    let mut segments = [Sge::default(); FEW];
    let Some(segments) = few(last, max_iov, iov, &mut segments, sge) else { return false };
    poster.post(segments, WrInfo { cookie, ..WrInfo::default() }.over(iov)).is_ok()
}

/// The largest number of segments that [`Srq::post_from_last_lmr`] posts.
const FEW: usize = 8;

/// Converts segments that all lie in the LMR `last` into the device's form. `None` if a segment
/// lies elsewhere, if there is no segment, or if there are too many.
#[inline(always)]
fn few<'a, T>(
    last: &LkeyCache,
    max_iov: u32,
    iov: &[LmrTriplet],
    into: &'a mut [T; FEW],
    form: impl Fn(&LmrTriplet, u32) -> T,
) -> Option<&'a [T]> {
    // Without a segment, no LMR shows that the SRQ is alive.
    if iov.is_empty() || iov.len() > max_iov as usize {
        return None;
    }
    let into = into.get_mut(..iov.len())?;
    for (to, from) in into.iter_mut().zip(iov) {
        *to = form(from, last.key(from)?);
    }
    Some(into)
}

impl SrqInner {
    pub(crate) fn check(&self) -> Result<()> {
        if self.live.load(Ordering::Acquire) {
            Ok(())
        } else {
            Err(Error::handle(Subtype::InvalidHandleSrq, "SRQ"))
        }
    }

    /// Shuts the SRQ: no EP uses the SRQ, and no EP can attach any more (R31).
    pub(crate) fn shut(&self) -> Result<()> {
        self.check()?;
        let mut attached = self.eps.lock().unwrap();
        if attached.eps > 0 {
            let text = format!("{} EPs use this SRQ: free them first", attached.eps);
            return Err(Error::state(Subtype::InvalidStateSrqInUse, text));
        }
        attached.shutdown = true;
        Ok(())
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

    /// Harvests the receive EVDs of all EPs.
    pub(crate) fn harvest(&self) -> Result<()> {
        let attached = self.eps.lock().unwrap();
        let mut evds = list(attached.evds.len())?;
        evds.extend(attached.evds.values().map(|receive_evd| receive_evd.evd.clone()));
        drop(attached);
        evds.iter().try_for_each(|evd| evd.harvest_now())
    }

    /// Attaches an EP, and makes room in the CQ of its receive EVD (R31, R145).
    pub(crate) fn attach(&self, evd: &Arc<EvdInner>) -> Result<()> {
        let mut attached = self.eps.lock().unwrap();
        if attached.shutdown || !self.live.load(Ordering::Acquire) {
            return Err(Error::state(Subtype::InvalidStateSrqShutdown, "the SRQ is being freed"));
        }
        let most = self.device.attr.max_ep_per_srq;
        if attached.eps >= most as u32 {
            return Err(Error::resources(Subtype::ResourceSrq, format!("an SRQ takes {most} EPs here")));
        }
        attached.evds.try_reserve(1)?;
        match attached.evds.entry(evd.id.0) {
            Entry::Occupied(mut receive_evd) => receive_evd.get_mut().eps += 1,
            Entry::Vacant(none) => {
                let mut receive_evd = ReceiveEvd { evd: evd.clone(), eps: 1, room: 0 };
                receive_evd.make_room(self, self.recv.path.depth())?;
                none.insert(receive_evd);
            }
        }
        attached.eps += 1;
        Ok(())
    }

    pub(crate) fn detach(&self, evd: &Arc<EvdInner>) {
        let mut attached = self.eps.lock().unwrap();
        attached.eps -= 1;
        let Entry::Occupied(mut receive_evd) = attached.evds.entry(evd.id.0) else { return };
        receive_evd.get_mut().eps -= 1;
        if receive_evd.get().eps == 0 {
            // Done under the lock, so that an EP that attaches now finds the EVD without this SRQ.
            evd.forget_srq(&self.recv, receive_evd.remove().room);
        }
    }

    /// Finds the buffers that the device lost with an EP, after the EP has stopped taking buffers.
    pub(crate) fn ep_drained(&self, ep: EpId) {
        if !self.recv.path.ep_drained(ep.0) {
            return;
        }
        // A thread that is completing an entry holds the lock of its EVD, so wait for those locks.
        // A thread that completes an entry later sees that there are suspects, and looks for lost
        // entries itself.
        self.eps.lock().unwrap().evds.values().for_each(|receive_evd| receive_evd.evd.synchronize());
        while let Some(lost) = self.recv.path.next_lost() {
            self.recv.flush_lost(&self.device, lost);
        }
    }

    fn arm_low(&self, value: u32, poster: &SrqPoster) -> Result<()> {
        let mut low = self.low.lock().unwrap();
        if low.armed && self.recv.path.armed_limit()? == 0 {
            // The event of the former setting was raised first and is being delivered, so it
            // counts.
            low.armed = false;
            self.push_low_event();
        }
        self.recv.path.arm_limit(value)?;
        *low = LowWatermark { value, armed: value > 0 };
        drop(low);
        if value == 0 {
            return Ok(());
        }
        self.harvest()?;
        let mut low = self.low.lock().unwrap();
        if low.armed && poster.counts().available < value {
            low.armed = false;
            self.push_low_event();
            // If the device raises its event all the same, `armed` is false and the event is
            // ignored.
            self.recv.path.arm_limit(0)?;
        }
        Ok(())
    }

    /// Handles the device's limit event, which may belong to the present setting or to a replaced
    /// one.
    pub(crate) fn limit_reached(&self) {
        let mut low = self.low.lock().unwrap();
        match self.recv.path.armed_limit() {
            Ok(0) => {}
            // The limit is still armed, so the event belongs to a former setting.
            Ok(_) => return,
            Err(error) => tracing::warn!(%error, srq = self.id.0, "cannot tell which low watermark fired"),
        }
        if std::mem::take(&mut low.armed) {
            self.push_low_event();
        }
    }

    fn push_low_event(&self) {
        self.notice(reason::SRQ_LOW_WATERMARK);
    }

    fn notice(&self, reason: u32) {
        self.device.push_async(AsyncEvent {
            kind: AsyncKind::Notice,
            object: AsyncObject::Srq(self.id),
            context: self.context.load(Ordering::Relaxed),
            reason,
        });
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
        self.device.registry.remove(Class::Srq, self.id.0);
        self.pz.leave();
    }
}
