#![expect(unsafe_code, reason = "queues that libmlx5 describes")]
//! From verbs objects to checked layouts and queues, by `mlx5dv_init_obj`.

use core::mem::zeroed;

use doorbell_sys::{ibv_cq, ibv_srq};

use crate::{
    cq::Cq,
    dv::{DvError, abi, checked, lib_for, require},
    error::LayoutError,
    log::taken_over,
    queue_mem::{CqLayout, CqParts, SrqLayout, SrqParts},
    srq::Srq,
};

mod qp;

impl SrqLayout {
    /// Reads and checks the ring behind an SRQ to which nothing was posted yet.
    ///
    /// # Errors
    ///
    /// [`DvError`]: no libmlx5, not an mlx5 device, signature mode, or an unexpected ring.
    ///
    /// # Safety
    ///
    /// `srq` is a live SRQ, as the `*mut ibv_srq` of any crate that declares that type, and
    /// outlives the result. From now on nothing is posted to the SRQ through verbs, and no CQ of
    /// its QPs is polled through verbs.
    pub unsafe fn from_verbs<T>(srq: *mut T) -> Result<Self, DvError> {
        let srq: *mut ibv_srq = srq.cast();
        let srq = require(srq, "SRQ")?;
        // SAFETY: `srq` is live by contract.
        let lib = unsafe { lib_for((*srq).context) }?;
        // libmlx5 turns signatures on if this variable exists, and reports them nowhere.
        if std::env::var_os("MLX5_SRQ_SIGNATURE").is_some() {
            return Err(LayoutError::Signature.into());
        }
        // SAFETY: integers and pointers only, for which zero is a value.
        let (mut obj, mut out): (abi::DvObj, abi::DvSrq) = unsafe { (zeroed(), zeroed()) };
        out.comp_mask = abi::SRQ_MASK_SRQN;
        obj.srq = abi::DvPair { object: srq.cast(), out: (&raw mut out).cast() };
        // SAFETY: a live SRQ and structs at least as large as the library's.
        checked("mlx5dv_init_obj(SRQ)", unsafe { (lib.init_obj)(&mut obj, abi::OBJ_SRQ) })?;
        if out.head != 0 {
            return Err(LayoutError::HeadNotZero { head: out.head }.into());
        }
        let srqn = if out.comp_mask & abi::SRQ_MASK_SRQN != 0 { out.srqn } else { 0 };
        // The struct has no ring size. Before anything was posted, the ring ends at `tail`. The
        // slots behind it are libmlx5's reserve for page faults; this crate does not use them.
        let parts = SrqParts {
            buf: out.buf.cast(),
            dbrec: out.dbrec,
            wqe_count: out.tail.wrapping_add(1),
            stride_bytes: out.stride,
            srqn,
        };
        // SAFETY: libmlx5 describes its own ring, which lives as long as the SRQ; this function's
        // contract makes the access exclusive.
        Ok(unsafe { Self::from_raw_parts(parts) }?)
    }
}

impl Srq {
    /// Takes over the ring of a verbs SRQ. A `depth` of `None` uses the whole ring.
    ///
    /// # Errors
    ///
    /// As [`SrqLayout::from_verbs`], and [`DvError::Depth`].
    ///
    /// # Safety
    ///
    /// As [`SrqLayout::from_verbs`]. The device writes into posted buffers: every buffer posted
    /// here later stays registered, and others neither read, write nor free it, until its
    /// completion or the end of the SRQ.
    pub unsafe fn from_verbs<T>(srq: *mut T, depth: Option<u32>) -> Result<Self, DvError> {
        // SAFETY: passed on to the caller.
        let queue = unsafe { SrqLayout::from_verbs(srq) }.and_then(|layout| {
            let depth = depth.unwrap_or(layout.wqe_count() - 1);
            Ok(Self::new(layout, depth)?)
        });
        taken_over("SRQ", queue, |srq| (srq.srqn(), srq.depth()))
    }
}

impl CqLayout {
    /// Reads and checks the queue behind a CQ from which nothing was polled yet. libmlx5 then
    /// treats the CQ as driven by this crate.
    ///
    /// # Errors
    ///
    /// [`DvError`]: no libmlx5, not an mlx5 device, or an unexpected queue.
    ///
    /// # Safety
    ///
    /// `cq` is a live CQ, as the `*mut ibv_cq` of any crate that declares that type, and outlives
    /// the result. From now on the CQ is neither polled, armed nor resized through verbs. The CQ is
    /// not the *send* CQ of a QP whose send queue is posted to through verbs (see the crate's
    /// page).
    pub unsafe fn from_verbs<T>(cq: *mut T) -> Result<Self, DvError> {
        let cq: *mut ibv_cq = cq.cast();
        let cq = require(cq, "CQ")?;
        // SAFETY: `cq` is live by contract.
        let lib = unsafe { lib_for((*cq).context) }?;
        // SAFETY: integers and pointers only, for which zero is a value.
        let (mut obj, mut out): (abi::DvObj, abi::DvCq) = unsafe { (zeroed(), zeroed()) };
        obj.cq = abi::DvPair { object: cq.cast(), out: (&raw mut out).cast() };
        // SAFETY: a live CQ and structs at least as large as the library's.
        checked("mlx5dv_init_obj(CQ)", unsafe { (lib.init_obj)(&mut obj, abi::OBJ_CQ) })?;
        let parts = CqParts {
            buf: out.buf.cast(),
            dbrec: out.dbrec,
            uar: out.cq_uar.cast(),
            cqe_count: out.cqe_cnt,
            cqe_bytes: out.cqe_size,
            cqn: out.cqn,
        };
        // SAFETY: libmlx5 describes its own queue, which lives as long as the CQ; this function's
        // contract makes the access exclusive.
        Ok(unsafe { Self::from_raw_parts(parts) }?)
    }
}

impl Cq {
    /// Takes over the entries of a verbs CQ.
    ///
    /// Check the QPs that receive into the CQ: unless each was made without scatter to CQE
    /// ([`create_qp_without_scatter`](crate::dv::create_qp_without_scatter)), the payload of a
    /// small message is in its completion and not in its buffer. Such a completion is
    /// [`Completion::RecvScattered`](crate::Completion::RecvScattered).
    ///
    /// # Errors
    ///
    /// As [`CqLayout::from_verbs`].
    ///
    /// # Safety
    ///
    /// As [`CqLayout::from_verbs`].
    pub unsafe fn from_verbs<T>(cq: *mut T) -> Result<Self, DvError> {
        // SAFETY: passed on to the caller.
        let queue = unsafe { CqLayout::from_verbs(cq) }.map(Self::new);
        taken_over("CQ", queue, |cq| (cq.cqn(), cq.cqe_count()))
    }
}
