//! Queue pairs: creation, states, posting.
#![expect(unsafe_code, reason = "calls into libibverbs")]

use std::ffi::c_void;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use doorbell_sys as sys;

use crate::cq::{Cq, create_failed};
use crate::error::{Error, Result, check};
use crate::pd::Pd;
use crate::srq::Srq;
use crate::ud::{UdRecvBuffer, UdRecvWr};
use crate::wr::{PostError, PostListError, RecvWr, Sge, post_receives, refused};

mod attr;
mod send;

pub use attr::{AttrMask, QpAttr, QpState, RtrAttr, RtsAttr};
pub use send::{SendFlags, SendOp, SendWr, UdDest};

/// Transport of a QP.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum QpKind {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Unreliable datagrams.
    Ud,
}

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

    /// Posts receives in order, up to the first that cannot be posted; allocates nothing.
    ///
    /// # Errors
    /// Where it stopped and why; the receives before that are posted.
    ///
    /// # References
    /// ibv_post_recv(3)
    pub fn post_recv_list(&self, wrs: &[RecvWr<'_>]) -> Result<(), PostListError> {
        if self.inner.kind == QpKind::Ud && !wrs.is_empty() {
            return Err(PostListError { index: 0, reason: PostError::NeedsGrhArea });
        }
        self.post_recv_any(wrs)
    }

    /// Posts one receive of a UD QP.
    ///
    /// # Errors
    /// As [`Qp::post_recv`]; [`PostError::NoGrhArea`] when this is no UD QP.
    pub fn post_recv_ud(&self, wr_id: u64, buffer: &UdRecvBuffer) -> Result<(), PostError> {
        self.post_recv_list_ud(&[UdRecvWr { wr_id, buffer: *buffer }]).map_err(|stopped| stopped.reason)
    }

    /// Posts receives of a UD QP, with the contract of [`Qp::post_recv_list`].
    ///
    /// # Errors
    /// As [`Qp::post_recv_list`]; [`PostError::NoGrhArea`] when this is no UD QP.
    pub fn post_recv_list_ud(&self, wrs: &[UdRecvWr]) -> Result<(), PostListError> {
        if self.inner.kind != QpKind::Ud && !wrs.is_empty() {
            return Err(PostListError { index: 0, reason: PostError::NoGrhArea });
        }
        self.post_recv_any(wrs)
    }

    /// Posts one receive to a QP of any kind, as plain segments.
    ///
    /// On a UD QP the payload starts after the first [`GRH_LEN`](crate::GRH_LEN) bytes of the
    /// segments, and the completion's length counts those. [`Qp::post_recv_ud`] knows that; this is
    /// for callers who get their segments from others who do.
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

    fn post_recv_any<W: crate::wr::Receive>(&self, wrs: &[W]) -> Result<(), PostListError> {
        if self.inner.srq.is_some() && !wrs.is_empty() {
            return Err(PostListError { index: 0, reason: PostError::HasSrq });
        }
        post_receives(wrs, self.inner.caps.max_recv_sge as usize, |chain, bad| {
            // SAFETY: the QP is alive; the chain and its segments live for the call, and the verb
            // copies them.
            unsafe { sys::ibv_post_recv(self.raw(), chain, bad) }
        })
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

impl Qp {
    /// Sets the attributes in `mask` to the values in `attr`.
    ///
    /// # Errors
    /// `ibv_modify_qp`'s errno, EINVAL when the state does not allow it.
    ///
    /// # References
    /// ibv_modify_qp(3)
    pub fn modify(&self, attr: &QpAttr, mask: AttrMask) -> Result<()> {
        let QpAttr(mut raw) = attr.clone();
        // SAFETY: the QP is alive; the struct is whole, and the kernel checks what is in it.
        let returned = unsafe { sys::ibv_modify_qp(self.raw(), &mut raw, mask.bits() as i32) };
        let moved = mask.contains(AttrMask::STATE);
        if moved {
            let to_init = returned == 0 && raw.qp_state == QpState::Init.to_raw();
            self.inner.init_port.store(if to_init { raw.port_num } else { 0 }, Ordering::Relaxed);
        }
        check("ibv_modify_qp", returned).map_err(|error| {
            if moved {
                let to = QpState::from(raw.qp_state);
                return error.with_detail(format!("QP {} to {to:?}", self.num()));
            }
            error
        })
    }

    /// The port of a QP that this program has moved to INIT and to no state since.
    pub(crate) fn init_port(&self) -> Option<u8> {
        Some(self.inner.init_port.load(Ordering::Relaxed)).filter(|&port| port != 0)
    }

    /// Queries the QP's attributes in `mask` from the device.
    ///
    /// # Errors
    /// `ibv_query_qp`'s errno.
    ///
    /// # References
    /// ibv_query_qp(3)
    pub fn query(&self, mask: AttrMask) -> Result<QpAttr> {
        let mut attr = QpAttr::default();
        // SAFETY: plain integers and pointers, for which zeroes are valid.
        let mut init: sys::ibv_qp_init_attr = unsafe { std::mem::zeroed() };
        // SAFETY: the QP is alive; both structs are whole.
        let returned = unsafe { sys::ibv_query_qp(self.raw(), &mut attr.0, mask.bits() as i32, &mut init) };
        check("ibv_query_qp", returned)?;
        Ok(attr)
    }

    /// The QP's state, from the device.
    ///
    /// # Errors
    /// `ibv_query_qp`'s errno.
    pub fn state(&self) -> Result<QpState> {
        Ok(QpState::from(self.query(AttrMask::STATE)?.0.qp_state))
    }
}
