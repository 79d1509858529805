//! RMRs: keys that give peers access to part of an LMR. Requests on an EP bind and invalidate them.
//! An RMR is a verbs memory window.
//!
//! An RMR of [`RmrScope::Pz`] belongs to its PZ: once bound, peers use it through any EP of that PZ
//! (a type 1 window). An RMR of [`RmrScope::Ep`] is valid only on the connection of the EP
//! through which it was bound, and the peer of that connection may invalidate it with a Send (a
//! type 2 window).
//!
//! [`RmrInner::is_over`] tells when no peer can use the former memory of a window any more, by what
//! the device has reported: memory of pools depends on it (SOUNDNESS.md).
//!
//! A bind is a request like a Send: it takes an entry of the EP's request queue and completes in
//! order, and later requests wait for it. The device enforces what a peer may access with the new
//! context. Linux's rxe (6.12) enforces privileges and invalidation, but checks addresses against
//! the whole LMR, not against the window.

use crate::device::{Class, Device, Member, RkeyTarget, WindowOwner};
use crate::ep::{Bind, EpInner, WindowRequest};
use crate::lmr::LmrInner;
use crate::memory::headroom;
use crate::pz::PzInner;
use crate::queue_pair::QueuePair;
use crate::sync::{Mutex, rank};
use crate::types::{CompletionFlags, EpId, EpState, LmrTriplet, MemPriv, RmrId, VaType, next_id};
use crate::{Ep, Error, IaCounter, Lmr, PostError, Pz, Refused, Result, ReturnType, Subtype};
use rxe_fallback::{Access, BindMw, Mw, MwKind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

/// A remote memory region (`DAT_RMR_HANDLE`): a key for peers that can be bound to other memory.
/// Dropping it invalidates the key and frees the RMR.
#[derive(Debug)]
pub struct Rmr {
    #[doc(hidden)]
    pub inner: Arc<RmrInner>,
}

/// Where a bound RMR is valid (`DAT_RMR_SCOPE`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum RmrScope {
    /// On the connection of the EP through which it was bound.
    Ep = 0,
    /// On every connection of EPs in its PZ.
    Pz = 1,
}

/// The memory to which an RMR is bound, and the privileges of peers.
#[derive(Clone, Copy, Debug)]
pub struct RmrBind<'a> {
    /// The LMR.
    pub lmr: &'a Lmr,
    /// The part of the LMR. A length of 0 unbinds the RMR.
    pub segment: LmrTriplet,
    /// The privileges of peers: remote read, remote write, remote atomics. Local privileges are
    /// ignored.
    pub privileges: MemPriv,
    /// The base of the addresses that peers use.
    pub va_type: VaType,
}

/// As [`RmrBind`]; without an LMR, the RMR is unbound.
pub struct Target<'a> {
    /// None for an unbind.
    pub lmr: Option<&'a Arc<LmrInner>>,
    /// The memory.
    pub segment: LmrTriplet,
    /// What peers may do.
    pub privileges: MemPriv,
    /// The base of the addresses that peers use.
    pub va_type: VaType,
}

/// The answer to a query (`DAT_RMR_PARAM`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RmrParam {
    /// Where the RMR is valid once bound.
    pub scope: RmrScope,
    /// The RMR context for peers. It has no meaning while the RMR is not bound.
    pub rmr_context: u32,
    /// The segment to which the RMR was last bound; all zero if it is not bound.
    pub segment: LmrTriplet,
    /// The privileges of peers.
    pub privileges: MemPriv,
    /// The base of the addresses that peers use.
    pub va_type: VaType,
}

/// The object behind an [`Rmr`].
#[derive(Debug)]
pub struct RmrInner {
    pub(crate) id: RmrId,
    device: Arc<Device>,
    pz: Arc<PzInner>,
    scope: RmrScope,
    live: AtomicBool,
    state: Mutex<{ rank::WINDOW }, State>,
}

#[derive(Debug)]
struct State {
    /// The window; `None` once freed.
    window: Option<Mw>,
    rkey: u32,
    bound: Option<Bound>,
    peers: Peers,
    /// The last bind to an LMR: the queue of the request, and its position there.
    bind: Option<(Weak<QueuePair>, u64)>,
    last: Last,
}

/// Whether peers may use the memory to which the window was bound last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Peers {
    /// None can: the window was never bound, or the device has ended the binding.
    Out,
    /// From the post of a bind on. The device ends the binding for a peer that invalidates the rkey,
    /// which then leaves the table of rkeys.
    In,
    /// As [`Peers::In`], until the unbind of this serial number has succeeded; until the window is
    /// freed if the number is 0.
    Leaving(u32),
    /// The window was freed before its bind was executed. The device may give its number to another
    /// window, and execute the bind on that one.
    Astray,
}

/// The last bind or invalidation. Until it has completed, the rkey of the window is not certain.
#[derive(Debug, Default)]
struct Last {
    /// The EP to which the request was posted, and the number of its connection.
    ep: Weak<EpInner>,
    id: Option<EpId>,
    attempt: u64,
    /// The number of requests whose events have not left their EVD.
    pending: u32,
    /// Whether the last request was suppressed: then it has an event only if it fails.
    silent: bool,
    failed: bool,
    /// The serial number of the last request. [`Last::LAST_SERIAL`] once the numbers are used up.
    serial: u32,
}

impl Last {
    const LAST_SERIAL: u32 = u32::MAX;

    fn posted(&mut self, ep: &Arc<EpInner>, suppressed: bool) {
        self.ep = Arc::downgrade(ep);
        self.id = Some(ep.id);
        self.attempt = ep.attempt();
        self.pending += u32::from(!suppressed);
        self.silent = suppressed;
        self.serial = self.next_serial();
    }

    fn next_serial(&self) -> u32 {
        self.serial.saturating_add(1)
    }

    /// Whether the window has this rkey, or will have it once its requests have completed. While
    /// the device may still execute one of them, the window must not be freed: the request would
    /// fail, and the connection with it.
    fn is_sound(&self) -> bool {
        let up = |ep: Arc<EpInner>| ep.state().has_connection() && ep.attempt() == self.attempt;
        !self.failed && (self.pending == 0 && !self.silent || self.ep.upgrade().is_some_and(up))
    }
}

/// Why a bind was not posted.
enum BindError {
    /// The request ring has too few places.
    Full,
    Other(Error),
}

impl From<Error> for BindError {
    fn from(error: Error) -> Self {
        Self::Other(error)
    }
}

impl From<PostError> for BindError {
    fn from(error: PostError) -> Self {
        if matches!(error, PostError::Full(_)) { Self::Full } else { Self::Other(refused(error)) }
    }
}

impl State {
    /// Whether the device may still execute the last bind.
    fn may_bind(&self) -> bool {
        let Some((pair, position)) = &self.bind else { return false };
        pair.upgrade().is_some_and(|pair| pair.may_execute(*position))
    }

    /// A peer has invalidated the rkey of the binding.
    fn unbound_by_peer(&mut self) {
        self.bound = None;
        if self.peers == Peers::In {
            self.peers = Peers::Out;
        }
    }
}

/// A binding that was posted and not invalidated since.
#[derive(Debug)]
struct Bound {
    lmr: Arc<LmrInner>,
    segment: LmrTriplet,
    privileges: MemPriv,
    va_type: VaType,
}

impl Bound {
    fn start(&self) -> u64 {
        if self.va_type == VaType::ZeroBased { 0 } else { self.segment.virtual_address }
    }
}

impl Drop for Bound {
    fn drop(&mut self) {
        self.lmr.windows.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Rmr {
    /// Creates an RMR with this scope. A device without type 1 windows has only
    /// [`RmrScope::Ep`], whatever is asked for.
    ///
    /// # Errors
    /// MODEL_NOT_SUPPORTED if the device has no memory windows; INVALID_HANDLE for a freed PZ;
    /// INSUFFICIENT_RESOURCES from the device.
    ///
    /// # References
    /// dat_rmr_create(3DAT); dat.h, `dat_rmr_create_for_ep`.
    pub fn new(pz: &Pz, scope: RmrScope) -> Result<Self> {
        let device = &pz.inner.device;
        let scope = if device.context.attributes().memory_windows { scope } else { RmrScope::Ep };
        device.check()?;
        pz.inner.check(device)?;
        headroom()?;
        let window = window(&pz.inner, scope)?;
        let inner = Arc::new(RmrInner {
            id: RmrId(next_id() & 0xffff_ffff),
            device: device.clone(),
            pz: pz.inner.clone(),
            scope,
            live: AtomicBool::new(true),
            state: Mutex::new(State {
                rkey: window.rkey(),
                window: Some(window),
                bound: None,
                peers: Peers::Out,
                bind: None,
                last: Last::default(),
            }),
        });
        pz.inner.enter();
        // From here on, dropping the RMR frees it.
        let made = Self { inner };
        let inner = &made.inner;
        device.rkeys.add_window(inner.id.0, inner)?;
        device.register(Class::Rmr, inner.id.0, inner, &[IaCounter::RmrCreate])?;
        Ok(made)
    }

    /// The ID that names the RMR in events.
    pub fn id(&self) -> RmrId {
        self.inner.id
    }

    /// Binds the RMR to part of an LMR, or unbinds it, through a connected EP. Returns the new
    /// context for peers, which is valid once the bind has completed: an event on the EP's request
    /// EVD.
    ///
    /// The former binding ends.
    ///
    /// # Errors
    /// INVALID_HANDLE for an EP or LMR that is freed or belongs to another IA; INVALID_PARAMETER
    /// for a segment that is not inside the LMR (ARG3), for unknown privileges (ARG4), flags that
    /// the EP does not allow (ARG8), PROTECTION_VIOLATION if RMR, LMR and EP are not in one PZ;
    /// PRIVILEGES_VIOLATION if the LMR lacks the local privilege that goes with a remote one;
    /// INVALID_STATE unless the EP is CONNECTED or DISCONNECTED; INSUFFICIENT_RESOURCES for a full
    /// queue; MODEL_NOT_SUPPORTED for zero-based addresses of an RMR that belongs to a PZ, or over
    /// a zero-based LMR.
    ///
    /// # References
    /// dat_rmr_bind(3DAT).
    pub fn bind(&mut self, ep: &mut Ep, to: RmrBind<'_>, cookie: u64, flags: CompletionFlags) -> Result<u32> {
        let RmrBind { lmr, segment, privileges, va_type } = to;
        let target = Target { lmr: Some(&lmr.inner), segment, privileges, va_type };
        self.inner.bind(&ep.inner, target, cookie, flags)
    }

    /// Returns the properties and the present binding.
    ///
    /// # Errors
    /// INVALID_HANDLE after the IA was closed.
    ///
    /// # References
    /// dat_rmr_query(3DAT).
    pub fn query(&self) -> Result<RmrParam> {
        self.inner.check()?;
        let state = self.inner.state.lock().unwrap();
        let bound = state.bound.as_ref();
        Ok(RmrParam {
            scope: self.inner.scope,
            rmr_context: state.rkey,
            segment: bound.map_or_else(LmrTriplet::default, |bound| bound.segment),
            privileges: bound.map_or_else(MemPriv::empty, |bound| bound.privileges),
            va_type: bound.map_or(VaType::Virtual, |bound| bound.va_type),
        })
    }

    /// Invalidates the context, if the RMR is bound, and frees the RMR.
    ///
    /// A bind of the RMR that the device has not executed yet fails, and breaks the connection of
    /// its EP: take its event first.
    ///
    /// # Errors
    /// INVALID_HANDLE after the IA was closed.
    ///
    /// # References
    /// dat_rmr_free(3DAT).
    pub fn close(self) -> Result<(), Refused<Self>> {
        if self.inner.close() { Ok(()) } else { Err(Refused { object: self, error: freed() }) }
    }
}

impl Drop for Rmr {
    fn drop(&mut self) {
        self.inner.close();
    }
}

fn freed() -> Error {
    Error::handle(Subtype::InvalidHandleRmr, "RMR")
}

fn window(pz: &PzInner, scope: RmrScope) -> Result<Mw> {
    let kind = match scope {
        RmrScope::Pz => MwKind::Type1,
        RmrScope::Ep => MwKind::Type2,
    };
    Mw::alloc(&pz.pd, kind).map_err(|error| {
        if error.is_unsupported() {
            Error::new(
                ReturnType::ModelNotSupported,
                Subtype::None,
                "this device has no memory windows of this type",
            )
            .because(error)
        } else {
            Error::verb(Subtype::ResourceMemoryRegion, error)
        }
    })
}

impl Member for RmrInner {
    fn ia_closed(self: Arc<Self>) {
        self.close();
    }
}

impl WindowOwner for RmrInner {
    fn bind_done(&self, success: bool, serial: u32) {
        let State { last, peers, .. } = &mut *self.state.lock().unwrap();
        last.pending = last.pending.saturating_sub(1);
        last.failed |= !success;
        if success && serial != 0 && *peers == Peers::Leaving(serial) {
            *peers = Peers::Out;
        }
    }

    fn invalidated(&self, rkey: u32) {
        let mut state = self.state.lock().unwrap();
        // The rkey is in the table if the event is about an earlier binding that had it.
        if state.rkey == rkey && self.scope == RmrScope::Ep && self.device.rkeys.find(rkey).is_none() {
            state.unbound_by_peer();
        }
    }

    fn ep_gone(&self, ep: EpId) {
        let mut state = self.state.lock().unwrap();
        let hangs = self.scope == RmrScope::Ep && state.last.id == Some(ep);
        if hangs && let Err(error) = self.renew(&mut state) {
            tracing::warn!(%error, "cannot replace the window of an RMR");
            self.end(&mut state);
        }
    }

    fn local(&self, at: u64, len: u32) -> Result<LmrTriplet, PostError> {
        use crate::Direction::Write;
        let state = self.state.lock().unwrap();
        let bound = state.bound.as_ref().ok_or(PostError::NoSuchLmr(0, Write))?;
        if !bound.privileges.contains(MemPriv::REMOTE_WRITE) {
            return Err(PostError::Privilege(0, Write));
        }
        let offset = at.checked_sub(bound.start()).ok_or(PostError::OutOfBounds(0))?;
        if offset.saturating_add(len.into()) > bound.segment.segment_length.into() {
            return Err(PostError::OutOfBounds(0));
        }
        let virtual_address = bound.segment.virtual_address + offset;
        Ok(LmrTriplet { virtual_address, segment_length: len, ..bound.segment })
    }
}

impl crate::fork::Inherit for RmrInner {
    fn disown(&self) {
        self.live.store(false, Ordering::Release);
    }
}

impl RmrInner {
    fn check(&self) -> Result<()> {
        if self.live.load(Ordering::Acquire) { Ok(()) } else { Err(freed()) }
    }

    /// Posts a bind to the EP; the new RMR context.
    ///
    /// # Errors
    /// As [`Rmr::bind`].
    pub fn bind(
        &self,
        ep: &Arc<EpInner>,
        to: Target<'_>,
        cookie: u64,
        flags: CompletionFlags,
    ) -> Result<u32> {
        self.check()?;
        ep.check()?;
        if !Arc::ptr_eq(&ep.device, &self.device) {
            return Err(Error::handle(Subtype::InvalidHandleEp, "EP"));
        }
        if ep.pz_number() != self.pz.number {
            return Err(outside_pz("EP", to.privileges));
        }
        let lmr = match to.lmr {
            Some(lmr) if to.segment.segment_length > 0 => Some((lmr, self.target(lmr, &to)?)),
            _ => None,
        };
        let number = self.id.0 as u32;
        // Harvests and the event of a flushed bind can call an agent, which may use this RMR or
        // free an EP: no lock is held then.
        if ep.takes_window_requests(flags).map_err(refused)? == EpState::Disconnected {
            // A flushed bind changes nothing.
            let rkey = self.state.lock().unwrap().rkey;
            ep.flush_bind(Bind { rmr: number, cookie, serial: 0 }, flags).map_err(refused)?;
            return Ok(rkey);
        }
        let mut harvested_for = None;
        let mut made_room = false;
        loop {
            let mut state = self.state.lock().unwrap();
            if self.scope == RmrScope::Ep && state.bound.is_some() && harvested_for != Some(state.rkey) {
                // The peer may have invalidated this rkey.
                harvested_for = Some(state.rkey);
                drop(state);
                ep.recv_evd.harvest_now()?;
                continue;
            }
            match self.submit_bind(&mut state, ep, &to, lmr.as_ref(), (number, cookie), flags) {
                Ok(rkey) => return Ok(rkey),
                Err(BindError::Full) if !made_room => {}
                Err(BindError::Full) => return Err(PostError::Full(Subtype::ResourceCredits).into()),
                Err(BindError::Other(error)) => return Err(error),
            }
            drop(state);
            // Finished suppressed requests free their places in the ring here.
            let _ = ep.request_evd.harvest_now();
            made_room = true;
        }
    }

    /// Posts a bind to this LMR, or an unbind, on the device, and notes what it will change. The
    /// receive EVD was harvested after the RMR was last bound.
    fn submit_bind(
        &self,
        state: &mut State,
        ep: &Arc<EpInner>,
        to: &Target<'_>,
        lmr: Option<&(&Arc<LmrInner>, rxe_fallback::Mr)>,
        (rmr, cookie): (u32, u64),
        flags: CompletionFlags,
    ) -> Result<u32, BindError> {
        let through_here = self.scope == RmrScope::Pz || state.last.id == Some(ep.id);
        if state.last.id.is_some() && !(through_here && state.last.is_sound()) {
            // The window cannot be bound through this EP, or its rkey is uncertain: take a new
            // window.
            self.renew(state)?;
        }
        if self.scope == RmrScope::Ep && state.bound.is_some() && self.device.rkeys.find(state.rkey).is_none()
        {
            // The peer has invalidated the rkey. A second invalidation is an error, and crashes a
            // kernel with rxe.
            state.unbound_by_peer();
        }
        let Some(window) = state.window.clone() else { return Err(freed().into()) };
        let bind = lmr.map(|(_, mr)| BindMw {
            mw: &window,
            mr,
            addr: to.segment.virtual_address,
            len: to.segment.segment_length.into(),
            access: access_of(to.privileges, to.va_type),
            rkey: Mw::next_rkey(state.rkey),
        });
        let old = state.bound.is_some().then_some(state.rkey);
        let expected = bind.as_ref().map(|_| self.device.rkeys.expect()).transpose()?;
        let serial = state.last.next_serial();
        let named = Bind { rmr, cookie, serial };
        let position = match (self.scope, &bind, &state.bound) {
            (_, None, None) => ep.push_window(WindowRequest::Nothing, named, flags),
            (RmrScope::Pz, Some(bind), _) => ep.push_window(WindowRequest::Type1(bind), named, flags),
            (RmrScope::Pz, None, Some(bound)) => {
                let mr = bound.lmr.mr()?;
                let bind = BindMw { mw: &window, mr: &mr, addr: 0, len: 0, access: Access::empty(), rkey: 0 };
                ep.push_window(WindowRequest::Type1(&bind), named, flags)
            }
            (RmrScope::Ep, Some(bind), _) => ep.push_window(WindowRequest::Type2(bind, old), named, flags),
            (RmrScope::Ep, None, Some(_)) => {
                ep.push_window(WindowRequest::Invalidate(state.rkey), named, flags)
            }
        };
        let position = position?;
        state.last.posted(ep, flags.contains(CompletionFlags::SUPPRESS));
        if bind.is_some() {
            state.peers = Peers::In;
            state.bind = Some((Arc::downgrade(&ep.pair), position));
        } else if state.bound.is_some() {
            state.peers = Peers::Leaving(if serial < Last::LAST_SERIAL { serial } else { 0 });
        }
        self.device.rkeys.remove(state.rkey);
        state.rkey = match self.scope {
            RmrScope::Pz => window.rkey(),
            RmrScope::Ep => bind.map_or(state.rkey, |bind| {
                window.set_rkey(bind.rkey);
                bind.rkey
            }),
        };
        state.bound = lmr.map(|&(lmr, _)| {
            lmr.windows.fetch_add(1, Ordering::AcqRel);
            Bound { lmr: lmr.clone(), segment: to.segment, privileges: to.privileges, va_type: to.va_type }
        });
        if let Some(expected) = expected {
            expected.insert(state.rkey, RkeyTarget::Rmr(self.id.0, ep.id));
        }
        Ok(state.rkey)
    }

    /// Checks the arguments of a bind. Returns the region.
    fn target(&self, lmr: &Arc<LmrInner>, to: &Target<'_>) -> Result<rxe_fallback::Mr> {
        if !Arc::ptr_eq(&lmr.device, &self.device) || !lmr.is_live() {
            return Err(Error::handle(Subtype::InvalidHandleLmr, "LMR"));
        }
        if lmr.pz.number != self.pz.number {
            return Err(outside_pz("LMR", to.privileges));
        }
        if MemPriv::from_bits(to.privileges.bits()).is_none() {
            return Err(Error::arg(4, format!("unknown privilege bits in {:#x}", to.privileges.bits())));
        }
        let lacks = |sub, text| Err(Error::new(ReturnType::PrivilegesViolation, sub, text));
        if to.privileges.contains(MemPriv::REMOTE_READ) && lmr.privileges.is_empty() {
            return lacks(
                Subtype::PrivilegesRdmaRead,
                "peers cannot read memory without local read privilege",
            );
        }
        if to.privileges.intersects(MemPriv::REMOTE_WRITE | MemPriv::REMOTE_ATOMIC)
            && !lmr.privileges.contains(MemPriv::LOCAL_WRITE)
        {
            return lacks(
                Subtype::PrivilegesRdmaWrite,
                "peers cannot write memory without local write privilege",
            );
        }
        if to.segment.lmr_context != lmr.context || !lmr.covers(&to.segment) {
            return Err(Error::arg(3, "the segment is not inside the LMR"));
        }
        let refuse = |text| Err(Error::new(ReturnType::ModelNotSupported, Subtype::None, text));
        if lmr.va_type == VaType::ZeroBased {
            return refuse("memory windows need an LMR with virtual addresses");
        }
        if to.va_type == VaType::ZeroBased && self.scope == RmrScope::Pz {
            return refuse("only RMRs of one connection (Rmr::create_for_ep) can be zero-based");
        }
        lmr.mr()
    }

    /// Replaces the window by a new, unbound one.
    fn renew(&self, state: &mut State) -> Result<()> {
        let fresh = window(&self.pz, self.scope)?;
        self.free_window(state)?;
        state.rkey = fresh.rkey();
        state.window = Some(fresh);
        // Serial numbers go on: events of former requests may still come.
        state.last = Last { serial: state.last.serial, ..Last::default() };
        Ok(())
    }

    /// Frees the window, which ends its binding.
    ///
    /// # Errors
    /// Of the device, which still has the window.
    fn free_window(&self, state: &mut State) -> Result<()> {
        self.look(state);
        self.device.rkeys.remove(state.rkey);
        if let Some(window) = state.window.take()
            && let Err(failed) = window.free()
        {
            state.window = Some(failed.mw);
            // The rkey has left the table for another reason than an invalidation.
            if state.peers == Peers::In {
                state.peers = Peers::Leaving(0);
            }
            return Err(Error::verb(Subtype::ResourceMemoryRegion, failed.error));
        }
        state.bound = None;
        if matches!(state.peers, Peers::In | Peers::Leaving(_)) {
            state.peers = if state.may_bind() { Peers::Astray } else { Peers::Out };
        }
        Ok(())
    }

    /// Frees the window for good.
    fn end(&self, state: &mut State) {
        // The window is freed first: while it is bound, its region cannot be deregistered.
        if let Err(error) = self.free_window(state) {
            tracing::warn!(%error, "cannot free the window of an RMR");
        }
        state.window = None;
        state.bound = None;
    }

    /// Looks whether the last bind has completed. False if the device may still execute it. An agent
    /// may run, so the caller holds no lock.
    pub(crate) fn settle(&self) -> bool {
        let may_bind = || self.state.lock().unwrap().may_bind();
        if !may_bind() {
            return true;
        }
        let ep = self.state.lock().unwrap().last.ep.upgrade();
        if let Some(ep) = ep {
            let _ = ep.request_evd.harvest_now();
        }
        !may_bind()
    }

    /// Whether no peer can use the memory to which the RMR was bound last.
    pub(crate) fn is_over(&self) -> bool {
        let mut state = self.state.lock().unwrap();
        self.look(&mut state);
        state.peers == Peers::Out
    }

    /// Looks whether a peer has invalidated the rkey of the binding.
    fn look(&self, state: &mut State) {
        let gone = || self.device.rkeys.find(state.rkey).is_none();
        if self.scope == RmrScope::Ep && state.peers == Peers::In && gone() {
            state.peers = Peers::Out;
        }
    }

    /// Frees the RMR. Returns false if it was freed before.
    pub(crate) fn close(&self) -> bool {
        if !self.live.swap(false, Ordering::AcqRel) {
            return false;
        }
        self.end(&mut self.state.lock().unwrap());
        self.device.rkeys.remove_window(self.id.0);
        self.device.registry.remove(Class::Rmr, self.id.0);
        self.pz.leave();
        true
    }
}

fn refused(error: PostError) -> Error {
    match error {
        PostError::Flags => Error::arg(8, "these completion flags are not allowed here"),
        PostError::Device(libc::EOPNOTSUPP) => {
            Error::new(ReturnType::ModelNotSupported, Subtype::None, "the device cannot bind this memory")
        }
        other => other.into(),
    }
}

fn outside_pz(what: &str, privileges: MemPriv) -> Error {
    let sub = if privileges.contains(MemPriv::REMOTE_WRITE) {
        Subtype::ProtectionRdmaWrite
    } else {
        Subtype::ProtectionRdmaRead
    };
    Error::new(ReturnType::ProtectionViolation, sub, format!("the {what} is not in the RMR's PZ"))
}

fn access_of(privileges: MemPriv, va_type: VaType) -> Access {
    let mut access = Access::empty();
    access.set(Access::REMOTE_READ, privileges.contains(MemPriv::REMOTE_READ));
    access.set(Access::REMOTE_WRITE, privileges.contains(MemPriv::REMOTE_WRITE));
    access.set(Access::REMOTE_ATOMIC, privileges.contains(MemPriv::REMOTE_ATOMIC));
    access.set(Access::ZERO_BASED, va_type == VaType::ZeroBased);
    access
}
