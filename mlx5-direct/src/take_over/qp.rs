//! The queues of QPs.

use core::{ffi::c_int, mem::zeroed};

use doorbell_sys::{ibv_qp, ibv_qp_attr, ibv_qp_attr_mask, ibv_qp_init_attr, ibv_qp_type};

use crate::{
    dv::{DvError, abi, checked, lib_for, require},
    error::LayoutError,
    log::taken_over,
    queue_mem::{RqLayout, RqParts, SqCaps, SqLayout, SqParts, Transport},
    rq::Rq,
    sq::Sq,
    wqe::send::BLOCK_BYTES,
};

/// What libmlx5 reports about a QP.
struct Qp {
    raw: *mut ibv_qp,
    dv: abi::DvQp,
    transport: Transport,
}

/// # Safety
///
/// `qp` is a live QP.
unsafe fn describe(qp: *mut ibv_qp) -> Result<Qp, DvError> {
    let qp = require(qp, "QP")?;
    // SAFETY: `qp` is live by contract.
    let (context, qp_type) = unsafe { ((*qp).context, (*qp).qp_type) };
    // SAFETY: as above.
    let lib = unsafe { lib_for(context) }?;
    // The type is checked before `mlx5dv_init_obj`, which crashes on QPs without a register: DC
    // targets, RSS QPs, and QPs of `ibv_open_qp`.
    let transport = match qp_type {
        ibv_qp_type::IBV_QPT_RC | ibv_qp_type::IBV_QPT_UC => Transport::Connected,
        ibv_qp_type::IBV_QPT_UD => Transport::Datagram,
        ibv_qp_type::IBV_QPT_XRC_SEND => Transport::Xrc,
        qp_type => return Err(LayoutError::QpType { qp_type }.into()),
    };
    // libmlx5 turns signatures on if this variable exists, and reports them nowhere.
    if std::env::var_os("MLX5_QP_SIGNATURE").is_some() {
        return Err(LayoutError::QpSignature.into());
    }
    // SAFETY: integers and pointers only, for which zero is a value.
    let (mut obj, mut dv): (abi::DvObj, abi::DvQp) = unsafe { (zeroed(), zeroed()) };
    obj.qp = abi::DvPair { object: qp.cast(), out: (&raw mut dv).cast() };
    // SAFETY: a live QP of a type that has a register, and structs at least as large as the
    // library's.
    checked("mlx5dv_init_obj(QP)", unsafe { (lib.init_obj)(&mut obj, abi::OBJ_QP) })?;
    Ok(Qp { raw: qp, dv, transport })
}

/// The capacities of both queues, for which the kernel asks the device.
///
/// # Safety
///
/// The QP is live.
unsafe fn query(qp: &Qp) -> Result<ibv_qp_init_attr, DvError> {
    // SAFETY: integers and pointers only, for which zero is a value.
    let (mut attr, mut init): (ibv_qp_attr, ibv_qp_init_attr) = unsafe { (zeroed(), zeroed()) };
    let mask = ibv_qp_attr_mask::IBV_QP_CAP.0 as c_int;
    // SAFETY: a live QP and structs of the call's types.
    checked("ibv_query_qp", unsafe { doorbell_sys::ibv_query_qp(qp.raw, &mut attr, mask, &mut init) })?;
    Ok(init)
}

/// Whether libmlx5 was told not to use BlueFlame. libmlx5 reports the register's size in that case
/// as well.
fn blueflame_is_off() -> bool {
    std::env::var_os("MLX5_SHUT_UP_BF").is_some_and(|value| value != "0")
}

impl SqLayout {
    /// Reads and checks the send queue of a QP to which nothing was posted yet. RC, UC, UD and XRC
    /// send QPs have a send queue that this crate can drive.
    ///
    /// # Errors
    ///
    /// [`DvError`]: no libmlx5, not an mlx5 device, a QP of another type, signature mode, a queue
    /// that was used, or an unexpected queue.
    ///
    /// # Safety
    ///
    /// As [`Sq::from_verbs`].
    pub unsafe fn from_verbs<T>(qp: *mut T) -> Result<Self, DvError> {
        // SAFETY: a live QP by contract.
        let qp = unsafe { describe(qp.cast()) }?;
        // SAFETY: as above.
        let init = unsafe { query(&qp) }?;
        let caps = SqCaps {
            max_requests: init.cap.max_send_wr,
            max_segments: init.cap.max_send_sge,
            max_inline: init.cap.max_inline_data,
            signal_all: init.sq_sig_all != 0,
        };
        // SAFETY: passed on to the caller.
        unsafe { Self::of(&qp, caps) }
    }

    /// # Safety
    ///
    /// As [`Sq::from_verbs_with`].
    unsafe fn of(qp: &Qp, caps: SqCaps) -> Result<Self, DvError> {
        let sq = &qp.dv.sq;
        if sq.wqe_cnt == 0 || caps.max_requests == 0 {
            return Err(LayoutError::NoQueue { what: "send" }.into());
        }
        if sq.stride as usize != BLOCK_BYTES {
            return Err(LayoutError::BlockStride { stride_bytes: sq.stride }.into());
        }
        let record = require(qp.dv.dbrec, "doorbell record")?;
        let parts = SqParts {
            buf: sq.buf.cast(),
            dbrec: record.wrapping_add(1),
            block_count: sq.wqe_cnt,
            register: qp.dv.bf.reg.cast(),
            register_bytes: qp.dv.bf.size,
            blueflame: !blueflame_is_off(),
            // SAFETY: a live QP by contract.
            qpn: unsafe { (*qp.raw).qp_num },
            caps,
            transport: qp.transport,
        };
        // SAFETY: libmlx5 describes its own queue, which lives as long as the QP; this function's
        // contract makes the access exclusive.
        Ok(unsafe { Self::from_raw_parts(parts) }?)
    }
}

impl Sq {
    /// Takes over the send queue of a verbs QP to which nothing was posted yet.
    ///
    /// The send CQ of the QP must be polled directly as well
    /// ([`Cq::from_verbs`](crate::Cq::from_verbs)), and must hold an entry for each request that
    /// can be posted ([`Sq::max_requests`]). The QPs of one CQ are either all driven here, or all
    /// driven by verbs.
    ///
    /// **Registers.** libmlx5 gives each of the first four QPs of a context a send register of its
    /// own; the other QPs share twelve. `MLX5_TOTAL_UUARS` raises these numbers if it is set before
    /// the context is opened; a thread domain gives a QP its own register. Queues taken over here
    /// that share a register ring it by 8-byte doorbells only; `MLX5_SHUT_UP_BF` does the same for
    /// all queues. This crate does not know the QPs that verbs drive. If such a QP may have the
    /// same register, call [`stop_blueflame`](Sq::stop_blueflame), and make verbs ring its requests
    /// by doorbells as well.
    ///
    /// # Errors
    ///
    /// As [`SqLayout::from_verbs`].
    ///
    /// # Safety
    ///
    /// `qp` is a live QP, as the `*mut ibv_qp` of any crate that declares that type, and outlives
    /// the result. From now on nothing is posted to its send queue through verbs, its send CQ is
    /// not polled through verbs, and no queue of verbs uses BlueFlame on the same register. The
    /// device reads and writes the memory that requests name. Until a request is released, its
    /// memory stays registered, and others neither write nor free it (for reads and atomics, they
    /// do not read it either).
    /// [`Sq::reset`] is called only while the QP is in RESET, and [`Sq::complete`] only with
    /// numbers of polled completions.
    pub unsafe fn from_verbs<T>(qp: *mut T) -> Result<Self, DvError> {
        // SAFETY: passed on to the caller.
        let queue = unsafe { SqLayout::from_verbs(qp) }.map(Self::new);
        taken_over("send queue", queue, |sq| (sq.qpn(), sq.max_requests()))
    }

    /// As [`from_verbs`](Self::from_verbs), with the capacities that the creation of the QP gave
    /// (`ibv_qp_init_attr.cap` after `ibv_create_qp(3)`). `from_verbs` has to query them, which the
    /// kernel forwards to the device.
    ///
    /// # Errors
    ///
    /// As [`SqLayout::from_verbs`].
    ///
    /// # Safety
    ///
    /// As [`from_verbs`](Self::from_verbs), and these are the capacities of the QP.
    pub unsafe fn from_verbs_with<T>(qp: *mut T, caps: SqCaps) -> Result<Self, DvError> {
        // SAFETY: passed on to the caller.
        let queue = unsafe { describe(qp.cast()).and_then(|qp| SqLayout::of(&qp, caps)) }.map(Self::new);
        taken_over("send queue", queue, |sq| (sq.qpn(), sq.max_requests()))
    }
}

impl RqLayout {
    /// Reads and checks the receive queue of a QP to which nothing was posted yet.
    ///
    /// # Errors
    ///
    /// [`DvError`]: as [`SqLayout::from_verbs`], or a QP that receives from an SRQ.
    ///
    /// # Safety
    ///
    /// As [`Rq::from_verbs`].
    pub unsafe fn from_verbs<T>(qp: *mut T) -> Result<Self, DvError> {
        // SAFETY: a live QP by contract.
        let qp = unsafe { describe(qp.cast()) }?;
        // SAFETY: as above.
        let init = unsafe { query(&qp) }?;
        // SAFETY: passed on to the caller.
        unsafe { Self::of(&qp, init.cap.max_recv_wr) }
    }

    /// # Safety
    ///
    /// As [`Rq::from_verbs_with`].
    unsafe fn of(qp: &Qp, max_requests: u32) -> Result<Self, DvError> {
        let rq = &qp.dv.rq;
        if rq.wqe_cnt == 0 {
            return Err(LayoutError::NoQueue { what: "receive" }.into());
        }
        let parts = RqParts {
            buf: rq.buf.cast(),
            dbrec: qp.dv.dbrec,
            wqe_count: rq.wqe_cnt,
            stride_bytes: rq.stride,
            // The kernel reports slots here. libmlx5 44 and 65 accept that many receives.
            max_requests: if max_requests == 0 { rq.wqe_cnt } else { max_requests.min(rq.wqe_cnt) },
            // SAFETY: a live QP by contract.
            qpn: unsafe { (*qp.raw).qp_num },
        };
        // SAFETY: libmlx5 describes its own queue, which lives as long as the QP; this function's
        // contract makes the access exclusive.
        Ok(unsafe { Self::from_raw_parts(parts) }?)
    }
}

impl Rq {
    /// Takes over the receive queue of a verbs QP to which nothing was posted yet and which has no
    /// SRQ.
    ///
    /// Unless the QP was made without scatter to CQE
    /// ([`create_qp_without_scatter`](crate::dv::create_qp_without_scatter)), small messages
    /// complete as [`Completion::RecvScattered`](crate::Completion::RecvScattered).
    ///
    /// # Errors
    ///
    /// As [`RqLayout::from_verbs`].
    ///
    /// # Safety
    ///
    /// `qp` is a live QP, as the `*mut ibv_qp` of any crate that declares that type, and outlives
    /// the result. From now on nothing is posted to its receive queue through verbs, and its
    /// receive CQ is not polled through verbs. The device writes into posted buffers: each buffer
    /// stays registered, and others neither read, write nor free it, until its completion.
    /// [`Rq::reset`] is called only while the QP is in RESET, and [`Rq::complete`] only with
    /// numbers of polled completions.
    pub unsafe fn from_verbs<T>(qp: *mut T) -> Result<Self, DvError> {
        // SAFETY: passed on to the caller.
        let queue = unsafe { RqLayout::from_verbs(qp) }.map(Self::new);
        taken_over("receive queue", queue, |rq| (rq.qpn(), rq.max_requests()))
    }

    /// As [`from_verbs`](Self::from_verbs), for the number of receives that the creation of the QP
    /// gave (`ibv_qp_init_attr.cap.max_recv_wr` after `ibv_create_qp(3)`). `from_verbs` has to
    /// query it, which the kernel forwards to the device.
    ///
    /// # Errors
    ///
    /// As [`RqLayout::from_verbs`].
    ///
    /// # Safety
    ///
    /// As [`from_verbs`](Self::from_verbs).
    pub unsafe fn from_verbs_with<T>(qp: *mut T, max_requests: u32) -> Result<Self, DvError> {
        // SAFETY: passed on to the caller.
        let queue = unsafe { describe(qp.cast()).and_then(|qp| RqLayout::of(&qp, max_requests)) };
        taken_over("receive queue", queue.map(Self::new), |rq| (rq.qpn(), rq.max_requests()))
    }
}
