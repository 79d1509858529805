//! RMRs: remote keys for part of an LMR, which requests on an EP grant and revoke. An RMR is a
//! verbs memory window.
//!
//! An RMR of [`Rmr::create`] belongs to its PZ: once bound, peers use it through any EP of that PZ
//! (a window of type 1). One of [`Rmr::create_for_ep`] is good only on the connection of the EP
//! that it was bound through, and that connection's peer may take it back with a Send that
//! invalidates it (a window of type 2).
//!
//! A bind is a request like a Send: it takes an entry of the EP's request queue, completes in
//! order, and everything posted behind it waits for it. The device enforces what a peer may access
//! with the new context. Linux's rxe (6.12) enforces privileges and invalidation, but checks
//! addresses against the whole LMR, not against the window.

use crate::datapath::WrInfo;
use crate::device::{Class, Device, Member, RkeyTarget, WindowOwner};
use crate::ep::{EpInner, Window};
use crate::lmr::LmrInner;
use crate::memory::headroom;
use crate::pz::PzInner;
use crate::sync::{Mutex, rank};
use crate::types::{CompletionFlags, EpId, EpState, LmrTriplet, MemPriv, RmrId, VaType, next_id};
use crate::{Ep, Error, IaCounter, Lmr, PostError, Pz, Result, ReturnType, Subtype};
use rxe_fallback::{Access, BindMw, Mw, MwKind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

/// A remote memory region (`DAT_RMR_HANDLE`): a key for peers that can be moved. Dropping it takes
/// the key back and frees it.
#[derive(Debug)]
pub struct Rmr {
    pub(crate) inner: Arc<RmrInner>,
}

/// Where a bound RMR is good (`DAT_RMR_SCOPE`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum RmrScope {
    /// On the connection of the EP that it was bound through.
    Ep = 0,
    /// On every connection of EPs in its PZ.
    Pz = 1,
}

/// What to bind an RMR to.
#[derive(Clone, Copy, Debug)]
pub struct RmrBind<'a> {
    /// The LMR.
    pub lmr: &'a Lmr,
    /// The part of it; with length 0 the RMR is bound to nothing any more.
    pub segment: LmrTriplet,
    /// What peers may do: remote read, remote write, remote atomics; local privileges are ignored.
    pub privileges: MemPriv,
    /// What peers' addresses count from.
    pub va_type: VaType,
}

/// As [`RmrBind`], with an LMR that can be left out to bind to nothing.
pub(crate) struct Target<'a> {
    pub(crate) lmr: Option<&'a Arc<LmrInner>>,
    pub(crate) segment: LmrTriplet,
    pub(crate) privileges: MemPriv,
    pub(crate) va_type: VaType,
}

/// What a query tells (`DAT_RMR_PARAM`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RmrParam {
    /// Where it is good once bound.
    pub scope: RmrScope,
    /// The context for peers; means nothing while it is not bound.
    pub rmr_context: u32,
    /// What it was last bound to; all zero if it is not bound.
    pub segment: LmrTriplet,
    /// What peers may do.
    pub privileges: MemPriv,
    /// What peers' addresses count from.
    pub va_type: VaType,
}

#[derive(Debug)]
pub(crate) struct RmrInner {
    pub(crate) id: RmrId,
    device: Arc<Device>,
    pz: Arc<PzInner>,
    scope: RmrScope,
    live: AtomicBool,
    state: Mutex<{ rank::WINDOW }, State>,
}

#[derive(Debug)]
struct State {
    /// `None` once freed.
    window: Option<Mw>,
    rkey: u32,
    bound: Option<Bound>,
    last: Last,
}

/// The last request about the window. Until it has completed, it is not certain which rkey the
/// window has.
#[derive(Debug, Default)]
struct Last {
    /// The EP it was posted to, and on which connection.
    ep: Weak<EpInner>,
    id: Option<EpId>,
    attempt: u64,
    /// Requests whose events have not left.
    pending: u32,
    /// The last one was suppressed: there is no event unless it fails.
    silent: bool,
    failed: bool,
}

impl Last {
    fn posted(&mut self, ep: &Arc<EpInner>, suppressed: bool) {
        self.ep = Arc::downgrade(ep);
        self.id = Some(ep.id);
        self.attempt = ep.attempt();
        self.pending += u32::from(!suppressed);
        self.silent = suppressed;
    }

    /// Whether the window has, or once its requests have completed will have, the rkey that is
    /// noted here.
    fn is_sound(&self) -> bool {
        let up = |ep: Arc<EpInner>| ep.state() == EpState::Connected && ep.attempt() == self.attempt;
        !self.failed && (self.pending == 0 && !self.silent || self.ep.upgrade().is_some_and(up))
    }
}

/// A binding that was posted and not revoked since.
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
    /// Makes an RMR that is good on every connection of its PZ once bound; on a device without such
    /// windows as [`Rmr::create_for_ep`].
    ///
    /// # Errors
    /// MODEL_NOT_SUPPORTED where the device has no memory windows; INVALID_HANDLE for a freed PZ;
    /// INSUFFICIENT_RESOURCES from the device.
    ///
    /// # References
    /// dat_rmr_create(3DAT).
    pub fn create(pz: &Pz) -> Result<Self> {
        let device = pz.inner.device.context.attributes();
        Self::alloc(pz, if device.memory_windows { RmrScope::Pz } else { RmrScope::Ep })
    }

    /// Makes an RMR that is good only on the connection that it is bound through.
    ///
    /// # Errors
    /// As [`Rmr::create`].
    ///
    /// # References
    /// dat.h, `dat_rmr_create_for_ep`.
    pub fn create_for_ep(pz: &Pz) -> Result<Self> {
        Self::alloc(pz, RmrScope::Ep)
    }

    fn alloc(pz: &Pz, scope: RmrScope) -> Result<Self> {
        let device = &pz.inner.device;
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
                last: Last::default(),
            }),
        });
        pz.inner.enter();
        // From here on it takes itself back when it is dropped.
        let made = Self { inner };
        let inner = &made.inner;
        device.rkeys.add_window(inner.id.0, inner)?;
        device.register(Class::Rmr, inner.id.0, inner, &[IaCounter::RmrCreate])?;
        Ok(made)
    }

    /// Names it in events.
    pub fn id(&self) -> RmrId {
        self.inner.id
    }

    /// Binds it to part of an LMR, or to nothing, through a connected EP; gives the new context for
    /// peers, which they can use once the bind has completed. An event on the EP's request EVD
    /// tells.
    ///
    /// Whatever the RMR was bound to before is out of reach with that.
    ///
    /// # Errors
    /// INVALID_HANDLE for an EP or LMR that is freed or another IA's; INVALID_PARAMETER for a
    /// segment that is not inside the LMR (ARG3), for unknown privileges (ARG4), flags that the EP
    /// does not allow (ARG8), PROTECTION_VIOLATION where RMR, LMR and EP are not in one PZ;
    /// PRIVILEGES_VIOLATION where the LMR lacks the local privilege that goes with a remote one;
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

    /// What it is bound to.
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

    /// Takes its context back, if it is bound, and frees it.
    ///
    /// # Errors
    /// INVALID_HANDLE after the IA was closed.
    ///
    /// # References
    /// dat_rmr_free(3DAT).
    pub fn free(self) -> Result<()> {
        if self.inner.close() { Ok(()) } else { Err(freed()) }
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
            Error::new(ReturnType::ModelNotSupported, Subtype::None, "this device has no such memory windows")
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
    fn bind_done(&self, success: bool) {
        let last = &mut self.state.lock().unwrap().last;
        last.pending = last.pending.saturating_sub(1);
        last.failed |= !success;
    }

    fn invalidated(&self, rkey: u32) {
        let mut state = self.state.lock().unwrap();
        if state.rkey == rkey && self.scope == RmrScope::Ep && state.bound.take().is_some() {
            self.device.rkeys.remove(rkey);
        }
    }

    fn ep_gone(&self, ep: EpId) {
        let mut state = self.state.lock().unwrap();
        let hangs = self.scope == RmrScope::Ep && state.last.id == Some(ep);
        if hangs && let Err(error) = self.renew(&mut state) {
            tracing::warn!(%error, "an RMR lost its window");
            state.window = None;
            state.bound = None;
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

    pub(crate) fn bind(
        &self,
        ep: &Arc<EpInner>,
        to: Target<'_>,
        cookie: u64,
        flags: CompletionFlags,
    ) -> Result<u32> {
        self.check()?;
        ep.check()?;
        if !Arc::ptr_eq(&ep.ia, &self.device) {
            return Err(Error::handle(Subtype::InvalidHandleEp, "EP"));
        }
        if ep.pz_number() != self.pz.number {
            return Err(outside_pz("EP", to.privileges));
        }
        let mut state = self.state.lock().unwrap();
        let target = match to.lmr {
            Some(lmr) if to.segment.segment_length > 0 => Some((lmr, self.target(lmr, &to)?)),
            _ => None,
        };
        let info = WrInfo { cookie, pool: self.id.0 as u32, ..WrInfo::default() };
        if ep.state() == EpState::Disconnected {
            // Flushed: nothing changes.
            ep.post_window(Window::Nothing, info, flags).map_err(refused)?;
            return Ok(state.rkey);
        }
        let through_here = self.scope == RmrScope::Pz || state.last.id == Some(ep.id);
        if state.last.id.is_some() && !(through_here && state.last.is_sound()) {
            // The window cannot be bound through this EP, or its rkey is uncertain: take a new
            // window.
            self.renew(&mut state)?;
        }
        if self.scope == RmrScope::Ep && state.bound.is_some() {
            // The peer may have invalidated it. A second invalidation is an error, and crashes
            // rxe's kernel.
            ep.recv_evd.harvest_now()?;
            if self.device.rkeys.find(state.rkey).is_none() {
                state.bound = None;
            }
        }
        let Some(window) = state.window.clone() else { return Err(freed()) };
        let bind = target.as_ref().map(|(_, mr)| BindMw {
            mw: &window,
            mr,
            addr: to.segment.virtual_address,
            len: to.segment.segment_length.into(),
            access: access_of(to.privileges, to.va_type),
            rkey: Mw::next_rkey(state.rkey),
        });
        let old = state.bound.is_some().then_some(state.rkey);
        let expected = bind.as_ref().map(|_| self.device.rkeys.expect()).transpose()?;
        let posted = match (self.scope, &bind, &state.bound) {
            (_, None, None) => ep.post_window(Window::Nothing, info, flags),
            (RmrScope::Pz, Some(bind), _) => ep.post_window(Window::Type1(bind), info, flags),
            (RmrScope::Pz, None, Some(bound)) => {
                let mr = bound.lmr.mr()?;
                let bind = BindMw { mw: &window, mr: &mr, addr: 0, len: 0, access: Access::empty(), rkey: 0 };
                ep.post_window(Window::Type1(&bind), info, flags)
            }
            (RmrScope::Ep, Some(bind), _) => ep.post_window(Window::Type2(bind, old), info, flags),
            (RmrScope::Ep, None, Some(_)) => ep.post_window(Window::Invalidate(state.rkey), info, flags),
        };
        posted.map_err(refused)?;
        state.last.posted(ep, flags.contains(CompletionFlags::SUPPRESS));
        self.device.rkeys.remove(state.rkey);
        state.rkey = match self.scope {
            RmrScope::Pz => window.rkey(),
            RmrScope::Ep => bind.map_or(state.rkey, |bind| {
                window.set_rkey(bind.rkey);
                bind.rkey
            }),
        };
        state.bound = target.map(|(lmr, _)| {
            lmr.windows.fetch_add(1, Ordering::AcqRel);
            Bound { lmr: lmr.clone(), segment: to.segment, privileges: to.privileges, va_type: to.va_type }
        });
        if let Some(expected) = expected {
            expected.insert(state.rkey, RkeyTarget::Rmr(self.id.0));
        }
        Ok(state.rkey)
    }

    /// The region to bind to, if everything fits.
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
            return refuse("only RMRs made for an EP can be zero-based");
        }
        lmr.mr()
    }

    /// A new window, unbound. The old one goes with its last reference.
    fn renew(&self, state: &mut State) -> Result<()> {
        let fresh = window(&self.pz, self.scope)?;
        self.device.rkeys.remove(state.rkey);
        *state = State { rkey: fresh.rkey(), window: Some(fresh), bound: None, last: Last::default() };
        Ok(())
    }

    /// True if this call was the one that closed it.
    pub(crate) fn close(&self) -> bool {
        if !self.live.swap(false, Ordering::AcqRel) {
            return false;
        }
        let mut state = self.state.lock().unwrap();
        self.device.rkeys.remove(state.rkey);
        // The window first: while it is bound, its region cannot go.
        state.window = None;
        state.bound = None;
        drop(state);
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
            Error::new(ReturnType::ModelNotSupported, Subtype::None, "the device cannot bind this")
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
