//! Queue pairs: creation, states, posting.
#![expect(unsafe_code, reason = "calls into libibverbs")]

use std::ffi::c_void;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::AtomicU8;

use doorbell_sys as sys;

use crate::cq::{Cq, create_failed};
use crate::error::{Error, Result};
pub use crate::kind::QpKind;
use crate::pd::Pd;
use crate::srq::Srq;
use crate::wr::{PostError, PostListError, Receive, RecvWr, Sge, in_chains, refused};

mod attr;
mod bind;
mod send;
mod states;

pub use attr::{AttrMask, QpAttr, QpState, RtrAttr, RtsAttr};
pub use send::{SendFlags, SendList, SendOp, SendWr, UdDest};

/// The attributes that a QP is created with.
#[derive(Debug, Clone, Copy)]
pub struct QpInit<'a> {
    /// Transport.
    pub kind: QpKind,
    /// The CQ of send completions.
    pub send_cq: &'a Cq,
    /// The CQ of receive completions; may be the same.
    pub recv_cq: &'a Cq,
    /// The SRQ that receives are taken from; `None` for a receive queue of its own.
    pub srq: Option<&'a Srq>,
    /// Sends that can be posted at a time, at least.
    pub max_send_wr: u32,
    /// Segments of a send, at least.
    pub max_send_sge: u32,
    /// Receives that can be posted at a time, at least; not used with an SRQ.
    pub max_recv_wr: u32,
    /// Segments of a receive, at least; not used with an SRQ.
    pub max_recv_sge: u32,
    /// Bytes of inline data, at least.
    pub max_inline: u32,
    /// Whether each send completes; else only those with [`SendFlags::SIGNALLED`], and those that
    /// fail.
    pub signal_all: bool,
    /// The number that asynchronous events carry.
    pub token: u64,
}

/// What a QP has room for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QpCaps {
    /// Sends that can be posted at a time.
    pub max_send_wr: u32,
    /// Segments of a send.
    pub max_send_sge: u32,
    /// Receives that can be posted at a time; 0 with an SRQ.
    pub max_recv_wr: u32,
    /// Segments of a receive; 0 with an SRQ.
    pub max_recv_sge: u32,
    /// Bytes of inline data.
    pub max_inline: u32,
}

/// A queue pair; cheap to clone. It keeps its PD, CQs and SRQ alive.
#[derive(Debug, Clone)]
pub struct Qp {
    inner: Arc<QpInner>,
}

#[derive(Debug)]
struct QpInner {
    raw: NonNull<sys::ibv_qp>,
    kind: QpKind,
    caps: QpCaps,
    token: u64,
    send_cq: Cq,
    recv_cq: Cq,
    srq: Option<Srq>,
    pd: Pd,
    /// The port of a QP that was moved to INIT and to no state since; 0 of others.
    init_port: AtomicU8,
}

// SAFETY: posting to and modifying one QP from several threads is allowed: providers lock inside.
unsafe impl Send for QpInner {}
// SAFETY: as above.
unsafe impl Sync for QpInner {}

impl Qp {
    /// Creates a QP in the reset state.
    ///
    /// # Errors
    /// EINVAL when a size is more than the device can, or an object is of another device or PD (the
    /// text says which); ENOMEM when the device has no more.
    ///
    /// # References
    /// ibv_create_qp(3)
    pub fn create(pd: &Pd, init: &QpInit<'_>) -> Result<Self> {
        // SAFETY: the verb itself.
        unsafe { Self::create_with(pd, init, |pd, init| sys::ibv_create_qp(pd.cast(), init.cast()).cast()) }
    }

    /// Creates a QP by another function than `ibv_create_qp`, such as that of a device library with
    /// more settings. It is given a `struct ibv_pd *` and a `struct ibv_qp_init_attr *` and gives a
    /// `struct ibv_qp *`.
    ///
    /// # Errors
    /// As [`Qp::create`].
    ///
    /// # Safety
    /// `create` keeps the contract of `ibv_create_qp`: what it gives is NULL, with `errno` set, or
    /// a new QP of that PD with these attributes, which `ibv_destroy_qp` destroys.
    pub unsafe fn create_with(
        pd: &Pd,
        init: &QpInit<'_>,
        create: unsafe fn(*mut c_void, *mut c_void) -> *mut c_void,
    ) -> Result<Self> {
        let verb = "ibv_create_qp";
        check_init(pd, init)?;
        let (max_recv_wr, max_recv_sge) =
            if init.srq.is_some() { (0, 0) } else { (init.max_recv_wr, init.max_recv_sge) };
        let mut raw_init = sys::ibv_qp_init_attr {
            qp_context: crate::token_into(init.token),
            send_cq: init.send_cq.raw(),
            recv_cq: init.recv_cq.raw(),
            srq: init.srq.map_or(ptr::null_mut(), Srq::raw),
            cap: sys::ibv_qp_cap {
                max_send_wr: init.max_send_wr,
                max_recv_wr,
                max_send_sge: init.max_send_sge,
                max_recv_sge,
                max_inline_data: init.max_inline,
            },
            qp_type: match init.kind {
                QpKind::Rc => sys::ibv_qp_type::IBV_QPT_RC,
                QpKind::Uc => sys::ibv_qp_type::IBV_QPT_UC,
                QpKind::Ud => sys::ibv_qp_type::IBV_QPT_UD,
            },
            sq_sig_all: i32::from(init.signal_all),
        };
        // SAFETY: PD, CQs and SRQ are alive, on one device (checked), and held as long as the QP
        // lives.
        let raw = unsafe { create(pd.as_raw(), (&raw mut raw_init).cast()) };
        let raw = NonNull::new(raw.cast()).ok_or_else(|| {
            let error = create_failed(verb);
            match error.errno() {
                libc::EINVAL => error.with_detail(format!(
                    "the device refuses {} sends of {} segments and {} inline bytes with {max_recv_wr} receives of \
                     {max_recv_sge} segments",
                    init.max_send_wr, init.max_send_sge, init.max_inline
                )),
                _ => error,
            }
        })?;
        let cap = raw_init.cap;
        let caps = QpCaps {
            max_send_wr: cap.max_send_wr,
            max_send_sge: cap.max_send_sge,
            max_recv_wr: if init.srq.is_some() { 0 } else { cap.max_recv_wr },
            max_recv_sge: if init.srq.is_some() { 0 } else { cap.max_recv_sge },
            max_inline: cap.max_inline_data,
        };
        let inner = QpInner {
            raw,
            kind: init.kind,
            caps,
            token: init.token,
            send_cq: init.send_cq.clone(),
            recv_cq: init.recv_cq.clone(),
            srq: init.srq.cloned(),
            pd: pd.clone(),
            init_port: AtomicU8::new(0),
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Posts one receive.
    ///
    /// # Errors
    /// [`PostError::Full`] and its siblings; nothing was posted.
    ///
    /// # References
    /// ibv_post_recv(3)
    pub fn post_recv(&self, wr_id: u64, sges: &[Sge]) -> Result<(), PostError> {
        self.post_recv_list(&[RecvWr { wr_id, sges }]).map_err(|stopped| stopped.reason)
    }

    /// Posts receives in order, up to the first that cannot be posted; allocates nothing. The
    /// receives of a UD QP are [`UdRecvWr`](crate::UdRecvWr)s.
    ///
    /// # Errors
    /// Where it stopped and why; the receives before that are posted.
    ///
    /// # References
    /// ibv_post_recv(3)
    pub fn post_recv_list<W: Receive>(&self, wrs: &[W]) -> Result<(), PostListError> {
        let is_ud = self.inner.kind == QpKind::Ud;
        let reason = match (is_ud, W::HAS_GRH_AREA) {
            (true, false) => Some(PostError::NeedsGrhArea),
            (false, true) => Some(PostError::NoGrhArea),
            _ => self.inner.srq.is_some().then_some(PostError::HasSrq),
        };
        if let Some(reason) = reason.filter(|_| !wrs.is_empty()) {
            return Err(PostListError { index: 0, reason });
        }
        in_chains(wrs, self.inner.caps.max_recv_sge as usize, |chain, bad| {
            // SAFETY: the QP is alive; the chain and its segments live for the call, and the verb
            // copies them.
            unsafe { sys::ibv_post_recv(self.raw(), chain, bad) }
        })
    }

    /// Posts one receive to a QP of any kind, as plain segments.
    ///
    /// On a UD QP the payload starts after the first [`GRH_LEN`](crate::GRH_LEN) bytes of the
    /// segments, and the completion's length counts those. A [`UdRecvBuffer`](crate::UdRecvBuffer)
    /// knows that; this is for callers who get their segments from others who do.
    ///
    /// # Errors
    /// As [`Qp::post_recv`], whatever the kind.
    #[inline(always)]
    pub fn post_recv_raw(&self, wr_id: u64, sges: &[Sge]) -> Result<(), PostError> {
        if self.inner.srq.is_some() {
            return Err(PostError::HasSrq);
        }
        let (given, max) = (sges.len(), self.inner.caps.max_recv_sge as usize);
        if given > max {
            return Err(PostError::TooManySegments { given, max });
        }
        let mut raw = sys::ibv_recv_wr {
            wr_id,
            next: ptr::null_mut(),
            // The verb only reads the segments (struct ibv_recv_wr has no const).
            sg_list: sges.as_ptr().cast_mut().cast(),
            num_sge: given as i32,
        };
        let mut bad = ptr::null_mut();
        // SAFETY: the QP is alive; the request, whose `next` is NULL, and its segments live for the
        // call, and the verb copies them. The segments' memory is reached through keys only.
        let returned = unsafe { sys::ibv_post_recv(self.raw(), &mut raw, &mut bad) };
        if returned == 0 { Ok(()) } else { Err(refused(returned)) }
    }

    /// The QP number, 24 bits.
    #[must_use]
    pub fn num(&self) -> u32 {
        // SAFETY: the QP is alive; the number does not change.
        unsafe { (*self.raw()).qp_num }
    }

    /// What it has room for.
    #[must_use]
    #[inline]
    pub fn caps(&self) -> &QpCaps {
        &self.inner.caps
    }

    /// Its transport.
    #[must_use]
    #[inline]
    pub fn kind(&self) -> QpKind {
        self.inner.kind
    }

    /// The number given at creation.
    #[must_use]
    pub fn token(&self) -> u64 {
        self.inner.token
    }

    /// The CQ of its send completions.
    #[must_use]
    pub fn send_cq(&self) -> &Cq {
        &self.inner.send_cq
    }

    /// The CQ of its receive completions.
    #[must_use]
    pub fn recv_cq(&self) -> &Cq {
        &self.inner.recv_cq
    }

    /// Its SRQ, if it has no receive queue of its own.
    #[must_use]
    pub fn srq(&self) -> Option<&Srq> {
        self.inner.srq.as_ref()
    }

    /// The PD it is in.
    #[must_use]
    pub fn pd(&self) -> &Pd {
        &self.inner.pd
    }

    /// The verbs object; valid while a clone of this QP lives.
    #[must_use]
    pub fn as_raw(&self) -> *mut c_void {
        self.raw().cast()
    }

    #[inline]
    pub(crate) fn raw(&self) -> *mut sys::ibv_qp {
        self.inner.raw.as_ptr()
    }
}

impl Drop for QpInner {
    fn drop(&mut self) {
        // SAFETY: created by ibv_create_qp, freed only here.
        let returned = unsafe { sys::ibv_destroy_qp(self.raw.as_ptr()) };
        crate::log_failed_drop("ibv_destroy_qp", returned);
    }
}

fn check_init(pd: &Pd, init: &QpInit<'_>) -> Result<()> {
    let context = pd.context();
    let device = context.attributes();
    let refuse = |text: String| Err(Error::invalid("ibv_create_qp", text));
    let mut sizes = vec![
        ("max_send_wr", init.max_send_wr, device.max_qp_wr),
        ("max_send_sge", init.max_send_sge, device.max_sge),
    ];
    if init.srq.is_none() {
        sizes.push(("max_recv_wr", init.max_recv_wr, device.max_qp_wr));
        sizes.push(("max_recv_sge", init.max_recv_sge, device.max_sge));
    }
    for (what, given, max) in sizes {
        if given > max {
            return refuse(format!("{what} is {given}, but {} takes at most {max}", context.name()));
        }
    }
    for (what, cq) in [("send", init.send_cq), ("receive", init.recv_cq)] {
        if !cq.context().same(context) {
            return refuse(format!("the {what} CQ is on another device or another opening of it"));
        }
    }
    if let Some(srq) = init.srq {
        if !srq.pd().context().same(context) {
            return refuse("the SRQ is on another device or another opening of it".to_owned());
        }
        if !srq.serves(init.kind) {
            return refuse(
                "UD QPs take SRQs from Srq::create_ud, connected ones from Srq::create, either from \
                 Srq::create_for_any"
                    .to_owned(),
            );
        }
    }
    Ok(())
}
