//! Shared receive queues.
#![expect(unsafe_code, reason = "calls into libibverbs")]

use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use doorbell_sys as sys;

use crate::cq::create_failed;
use crate::error::{Error, Result, check};
use crate::kind::QpKind;
use crate::pd::Pd;
use crate::wr::{PostError, PostListError, Receive, Sge, in_chains, refused};

/// The attributes that an SRQ is created with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SrqInit {
    /// Work requests that can be posted at a time, at least.
    pub max_wr: u32,
    /// Segments of a work request, at least.
    pub max_sge: u32,
    /// The number that asynchronous events carry.
    pub token: u64,
}

/// The attributes of an SRQ.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SrqAttr {
    /// Work requests that can be posted at a time.
    pub max_wr: u32,
    /// Segments of a work request.
    pub max_sge: u32,
    /// The limit that is armed; 0 when none is.
    pub srq_limit: u32,
}

/// The QPs that an SRQ serves, which decides what can be posted to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Serves {
    /// Connected ones: plain segments.
    Connected,
    /// UD: each receive starts with a GRH area.
    Datagrams,
    /// Both: plain segments; the caller accounts for the GRH area.
    Any,
}

/// A shared receive queue; cheap to clone. QPs made with it keep it alive.
#[derive(Debug, Clone)]
pub struct Srq {
    inner: Arc<SrqInner>,
}

#[derive(Debug)]
struct SrqInner {
    raw: NonNull<sys::ibv_srq>,
    max_wr: AtomicU32,
    max_sge: u32,
    token: u64,
    serves: Serves,
    pd: Pd,
}

// SAFETY: posting to and modifying one SRQ from several threads is allowed: providers lock inside.
unsafe impl Send for SrqInner {}
// SAFETY: as above.
unsafe impl Sync for SrqInner {}

impl Srq {
    /// Creates an SRQ for connected QPs.
    ///
    /// # Errors
    /// EINVAL when a size is 0 or more than the device can (the text says which).
    ///
    /// # References
    /// ibv_create_srq(3)
    pub fn create(pd: &Pd, init: SrqInit) -> Result<Self> {
        Self::new(pd, init, Serves::Connected)
    }

    /// Creates an SRQ for UD QPs, which takes [`UdRecvWr`](crate::UdRecvWr)s only.
    ///
    /// # Errors
    /// As [`Srq::create`].
    pub fn create_ud(pd: &Pd, init: SrqInit) -> Result<Self> {
        Self::new(pd, init, Serves::Datagrams)
    }

    /// Creates an SRQ for QPs of any kind at the same time, which takes plain segments.
    ///
    /// A message that comes through a UD QP has its payload after the first
    /// [`GRH_LEN`](crate::GRH_LEN) bytes of the segments, and those are counted in the completion's
    /// length; one through a connected QP starts at the first byte. Only the QP number in the
    /// completion tells which of the two it is. Prefer [`Srq::create_ud`] if all QPs are UD.
    ///
    /// # Errors
    /// As [`Srq::create`].
    pub fn create_for_any(pd: &Pd, init: SrqInit) -> Result<Self> {
        Self::new(pd, init, Serves::Any)
    }

    fn new(pd: &Pd, init: SrqInit, serves: Serves) -> Result<Self> {
        let verb = "ibv_create_srq";
        let device = pd.context().attributes();
        for (what, given, max) in
            [("max_wr", init.max_wr, device.max_srq_wr), ("max_sge", init.max_sge, device.max_srq_sge)]
        {
            if given == 0 || given > max {
                let text = format!("{what} is {given}, but {} takes 1 to {max}", pd.context().name());
                return Err(Error::invalid(verb, text));
            }
        }
        let mut attr = sys::ibv_srq_init_attr {
            srq_context: crate::token_into(init.token),
            attr: sys::ibv_srq_attr { max_wr: init.max_wr, max_sge: init.max_sge, srq_limit: 0 },
        };
        // SAFETY: the PD is alive and held as long as the SRQ lives.
        let raw = unsafe { sys::ibv_create_srq(pd.raw(), &mut attr) };
        let raw = NonNull::new(raw).ok_or_else(|| create_failed(verb))?;
        // Some drivers leave the struct unchanged; the requested size is guaranteed in any case.
        let max_wr = AtomicU32::new(attr.attr.max_wr.max(init.max_wr));
        let max_sge = attr.attr.max_sge.max(init.max_sge);
        let inner = SrqInner { raw, max_wr, max_sge, token: init.token, serves, pd: pd.clone() };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Posts one receive.
    ///
    /// # Errors
    /// [`PostError::Full`] and its siblings; nothing was posted.
    ///
    /// # References
    /// ibv_post_srq_recv(3)
    #[inline]
    pub fn post_one(&self, wr_id: u64, sges: &[Sge]) -> Result<(), PostError> {
        let max = self.inner.max_sge as usize;
        if self.inner.serves == Serves::Datagrams {
            return Err(PostError::NeedsGrhArea);
        }
        if sges.len() > max {
            return Err(PostError::TooManySegments { given: sges.len(), max });
        }
        self.post_raw(wr_id, sges)
    }

    /// Posts one receive without a look at the SRQ: the device library refuses too many segments.
    /// On an SRQ for UD, a GRH area must be left in front of the message.
    ///
    /// # Errors
    /// [`PostError::Full`] or [`PostError::Refused`]; nothing was posted.
    ///
    /// # References
    /// ibv_post_srq_recv(3)
    #[inline(always)]
    pub fn post_raw(&self, wr_id: u64, sges: &[Sge]) -> Result<(), PostError> {
        let sg_list = sges.as_ptr().cast_mut().cast();
        let mut wr =
            sys::ibv_recv_wr { wr_id, next: std::ptr::null_mut(), sg_list, num_sge: sges.len() as i32 };
        let mut bad = std::ptr::null_mut();
        // SAFETY: the SRQ is alive; the request and its segments live for the call, and the verb
        // only reads and copies them.
        match unsafe { sys::ibv_post_srq_recv(self.raw(), &mut wr, &mut bad) } {
            0 => Ok(()),
            errno => Err(refused(errno)),
        }
    }

    /// Posts receives in order, up to the first that cannot be posted; allocates nothing. An SRQ
    /// for UD takes [`UdRecvWr`](crate::UdRecvWr)s.
    ///
    /// # Errors
    /// Where it stopped and why; the receives before that are posted.
    ///
    /// # References
    /// ibv_post_srq_recv(3)
    pub fn post_list<W: Receive>(&self, wrs: &[W]) -> Result<(), PostListError> {
        let reason = match (self.inner.serves, W::HAS_GRH_AREA) {
            (Serves::Datagrams, false) => Some(PostError::NeedsGrhArea),
            (Serves::Connected, true) => Some(PostError::NoGrhArea),
            _ => None,
        };
        if let Some(reason) = reason.filter(|_| !wrs.is_empty()) {
            return Err(PostListError { index: 0, reason });
        }
        in_chains(wrs, self.inner.max_sge as usize, |chain, bad| {
            // SAFETY: the SRQ is alive; the chain and its segments live for the call, and the verb
            // copies them.
            unsafe { sys::ibv_post_srq_recv(self.raw(), chain, bad) }
        })
    }

    /// Sizes and limit, from the device; `max_wr` is what can be posted, where a driver also counts
    /// entries it keeps for itself (mlx5: the kernel says about twice as many).
    ///
    /// # Errors
    /// `ibv_query_srq`'s errno.
    ///
    /// # References
    /// ibv_query_srq(3)
    pub fn query(&self) -> Result<SrqAttr> {
        let attr = self.query_kernel()?;
        Ok(SrqAttr { max_wr: attr.max_wr.min(self.max_wr()), ..attr })
    }

    fn query_kernel(&self) -> Result<SrqAttr> {
        let mut attr = sys::ibv_srq_attr { max_wr: 0, max_sge: 0, srq_limit: 0 };
        // SAFETY: the SRQ is alive.
        check("ibv_query_srq", unsafe { sys::ibv_query_srq(self.raw(), &mut attr) })?;
        Ok(SrqAttr { max_wr: attr.max_wr, max_sge: attr.max_sge, srq_limit: attr.srq_limit })
    }

    /// Asks for one [`SrqLimitReached`](crate::AsyncKind::SrqLimitReached) event once fewer than
    /// `limit` receives are posted; 0 takes it back.
    ///
    /// # Errors
    /// EINVAL when `limit` is more than the SRQ holds.
    ///
    /// # References
    /// ibv_modify_srq(3)
    pub fn arm_limit(&self, limit: u32) -> Result<()> {
        if limit > self.max_wr() {
            let text = format!("the limit is {limit}, but the SRQ holds {}", self.max_wr());
            return Err(Error::invalid("ibv_modify_srq", text));
        }
        self.modify(
            sys::ibv_srq_attr { max_wr: 0, max_sge: 0, srq_limit: limit },
            sys::ibv_srq_attr_mask::IBV_SRQ_LIMIT,
        )
    }

    /// Makes room for at least `max_wr` receives; those posted stay.
    ///
    /// # Errors
    /// EOPNOTSUPP when the device cannot; EINVAL when more receives are posted, or `max_wr` is more
    /// than the device can.
    ///
    /// # References
    /// ibv_modify_srq(3)
    pub fn resize(&self, max_wr: u32) -> Result<()> {
        let verb = "ibv_modify_srq";
        let context = self.inner.pd.context();
        let device = context.attributes();
        if !device.srq_resize {
            return Err(Error::unsupported(verb, format!("{} cannot resize an SRQ", context.name())));
        }
        if max_wr == 0 || max_wr > device.max_srq_wr {
            let text = format!("max_wr is {max_wr}, but {} takes 1 to {}", context.name(), device.max_srq_wr);
            return Err(Error::invalid(verb, text));
        }
        self.modify(
            sys::ibv_srq_attr { max_wr, max_sge: 0, srq_limit: 0 },
            sys::ibv_srq_attr_mask::IBV_SRQ_MAX_WR,
        )
        .map_err(|error| match error.errno() {
            libc::ENOSYS | libc::EOPNOTSUPP => Error::unsupported(verb, "the driver cannot resize an SRQ"),
            _ => error,
        })?;
        let actual = self.query_kernel().map_or(max_wr, |attr| attr.max_wr);
        self.inner.max_wr.store(actual, Ordering::Relaxed);
        Ok(())
    }

    fn modify(&self, mut attr: sys::ibv_srq_attr, mask: sys::ibv_srq_attr_mask) -> Result<()> {
        // SAFETY: the SRQ is alive.
        check("ibv_modify_srq", unsafe { sys::ibv_modify_srq(self.raw(), &mut attr, mask.0 as i32) })
    }

    /// Work requests that can be posted at a time.
    #[must_use]
    pub fn max_wr(&self) -> u32 {
        self.inner.max_wr.load(Ordering::Relaxed)
    }

    /// Segments of a work request.
    #[must_use]
    pub fn max_sge(&self) -> u32 {
        self.inner.max_sge
    }

    /// The number given at creation.
    #[must_use]
    pub fn token(&self) -> u64 {
        self.inner.token
    }

    /// Whether QPs of this kind can be made on it.
    #[must_use]
    pub fn serves(&self, kind: QpKind) -> bool {
        match self.inner.serves {
            Serves::Connected => kind != QpKind::Ud,
            Serves::Datagrams => kind == QpKind::Ud,
            Serves::Any => true,
        }
    }

    /// The PD it is in.
    #[must_use]
    pub fn pd(&self) -> &Pd {
        &self.inner.pd
    }

    /// The verbs object; valid while a clone of this SRQ, or a QP on it, lives.
    #[must_use]
    pub fn as_raw(&self) -> *mut c_void {
        self.raw().cast()
    }

    pub(crate) fn raw(&self) -> *mut sys::ibv_srq {
        self.inner.raw.as_ptr()
    }
}

/// The most segments of a [`StagedRecv`].
pub const MOST_STAGED: usize = 32;

/// A receive for an SRQ, in memory that is used for one post after the other. The caller writes the
/// segments, and a post writes only what differs from the post before.
///
/// On an SRQ for UD, a GRH area must be left in front of the message.
pub struct StagedRecv {
    srq: Srq,
    /// The work request. `next` is always NULL.
    wr: sys::ibv_recv_wr,
    /// Written by the device library if it refuses the work request. Not read.
    bad: *mut sys::ibv_recv_wr,
    segments: [Sge; MOST_STAGED],
}

// SAFETY: the pointers are only read by a post, which sets them first. The SRQ is `Send`.
unsafe impl Send for StagedRecv {}
// SAFETY: only `&mut self` leads to the pointers. The SRQ is `Sync`.
unsafe impl Sync for StagedRecv {}

impl StagedRecv {
    /// For posts to this SRQ.
    #[must_use]
    pub fn new(srq: &Srq) -> Self {
        let none = std::ptr::null_mut();
        Self {
            srq: srq.clone(),
            wr: sys::ibv_recv_wr { wr_id: 0, next: none, sg_list: std::ptr::null_mut(), num_sge: 0 },
            bad: none,
            segments: [Sge::default(); MOST_STAGED],
        }
    }

    /// The segments of the next post.
    #[inline(always)]
    pub fn segments(&mut self) -> &mut [Sge; MOST_STAGED] {
        &mut self.segments
    }

    /// The `wr_id` of the last post.
    #[must_use]
    pub fn wr_id(&self) -> u64 {
        self.wr.wr_id
    }

    /// Posts the first `count` segments without a look at the SRQ: the device library refuses too
    /// many segments.
    ///
    /// # Errors
    /// What [`StagedRecv::refusal`] converts; nothing was posted.
    ///
    /// # References
    /// ibv_post_srq_recv(3)
    #[inline(always)]
    pub fn post(&mut self, wr_id: u64, count: usize) -> std::result::Result<(), i32> {
        if count > MOST_STAGED {
            return Err(libc::EINVAL);
        }
        self.wr.wr_id = wr_id;
        self.wr.sg_list = self.segments.as_mut_ptr().cast();
        self.wr.num_sge = count as i32;
        // SAFETY: the SRQ is alive; the request and its `count` segments live for the call, and the
        // verb only reads and copies them.
        match unsafe { sys::ibv_post_srq_recv(self.srq.raw(), &mut self.wr, &mut self.bad) } {
            0 => Ok(()),
            errno => Err(errno),
        }
    }

    /// Why [`StagedRecv::post`] has posted nothing: [`PostError::Full`] or [`PostError::Refused`].
    /// A function of its own, so that a post has no code for it.
    #[must_use]
    pub fn refusal(errno: i32) -> PostError {
        refused(errno)
    }
}

impl std::fmt::Debug for StagedRecv {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StagedRecv").field("srq", &self.srq).finish_non_exhaustive()
    }
}

impl Drop for SrqInner {
    fn drop(&mut self) {
        // SAFETY: created by ibv_create_srq, freed only here; QPs on it hold a clone, so none is
        // left.
        let returned = unsafe { sys::ibv_destroy_srq(self.raw.as_ptr()) };
        crate::log_failed_drop("ibv_destroy_srq", returned);
    }
}
