//! Queues made with the crate `ibverbs`, driven by `mlx5-direct`.
//!
//! ibverbs 0.9 keeps the raw handles of its objects to itself, makes no SRQs, and cannot switch
//! scatter to CQE off. The shortest way around is to make the objects by `ibverbs-sys`, the
//! bindings that ibverbs uses and whose types it exports (`ibv_qp_type`, `ibv_access_flags`): the
//! pointers are what `from_verbs` takes. ibverbs still finds the device.

use ibverbs::{ibv_access_flags, ibv_qp_type};
use ibverbs_sys::*;
use messages::{MEMORY, Outcome, Receives, exchange};
use mlx5_direct::{Cq, Sq, Srq};
use std::ffi::{CStr, c_int};
use std::mem::zeroed;
use std::ptr::null_mut;

fn some<T>(object: *mut T) -> Outcome<*mut T> {
    if object.is_null() { Err(std::io::Error::last_os_error().into()) } else { Ok(object) }
}

fn modify(qp: *mut ibv_qp, attr: &mut ibv_qp_attr, mask: ibv_qp_attr_mask) -> Outcome<()> {
    // SAFETY: a live QP, and attributes that are set as the mask says.
    match unsafe { ibv_modify_qp(qp, attr, mask.0 as c_int) } {
        0 => Ok(()),
        n => Err(std::io::Error::from_raw_os_error(n.abs()).into()),
    }
}

/// Connects a QP to the one with this number on the same device.
fn connect(qp: *mut ibv_qp, peer: u32, gid: ibv_gid) -> Outcome<()> {
    type M = ibv_qp_attr_mask;
    let mut attr = ibv_qp_attr { qp_state: ibv_qp_state::IBV_QPS_INIT, port_num: 1, ..Default::default() };
    modify(qp, &mut attr, M::IBV_QP_STATE | M::IBV_QP_PKEY_INDEX | M::IBV_QP_PORT | M::IBV_QP_ACCESS_FLAGS)?;
    let mut attr = ibv_qp_attr {
        qp_state: ibv_qp_state::IBV_QPS_RTR,
        path_mtu: IBV_MTU_1024,
        dest_qp_num: peer,
        max_dest_rd_atomic: 1,
        min_rnr_timer: 1,
        ..Default::default()
    };
    (attr.ah_attr.port_num, attr.ah_attr.is_global) = (1, 1);
    (attr.ah_attr.grh.hop_limit, attr.ah_attr.grh.dgid) = (64, gid);
    modify(
        qp,
        &mut attr,
        M::IBV_QP_STATE
            | M::IBV_QP_AV
            | M::IBV_QP_PATH_MTU
            | M::IBV_QP_DEST_QPN
            | M::IBV_QP_RQ_PSN
            | M::IBV_QP_MAX_DEST_RD_ATOMIC
            | M::IBV_QP_MIN_RNR_TIMER,
    )?;
    let mut attr = ibv_qp_attr {
        qp_state: ibv_qp_state::IBV_QPS_RTS,
        timeout: 14,
        retry_cnt: 7,
        rnr_retry: 7,
        max_rd_atomic: 1,
        ..Default::default()
    };
    modify(
        qp,
        &mut attr,
        M::IBV_QP_STATE
            | M::IBV_QP_SQ_PSN
            | M::IBV_QP_TIMEOUT
            | M::IBV_QP_RETRY_CNT
            | M::IBV_QP_RNR_RETRY
            | M::IBV_QP_MAX_QP_RD_ATOMIC,
    )
}

/// Opens the device of this name.
fn open(wanted: &CStr) -> Outcome<*mut ibv_context> {
    // SAFETY: the list ends with null, and the context outlives it.
    unsafe {
        let list = some(ibv_get_device_list(null_mut()))?;
        let found = (0..).map(|n| *list.add(n)).take_while(|device| !device.is_null());
        let device = found.into_iter().find(|device| CStr::from_ptr(ibv_get_device_name(*device)) == wanted);
        let context = some(ibv_open_device(device.ok_or("the device is gone")?));
        ibv_free_device_list(list);
        context
    }
}

fn main() -> Outcome<()> {
    let devices = ibverbs::devices()?;
    let device = devices.iter().next().ok_or("no device")?;
    let context = open(device.name().ok_or("a device without a name")?)?;
    let memory = vec![0u8; MEMORY].leak();
    // SAFETY: verbs calls with live objects, which are never destroyed; attributes are plain data.
    // Only mlx5-direct posts and polls.
    let count = unsafe {
        let pd = some(ibv_alloc_pd(context))?;
        let access = ibv_access_flags::IBV_ACCESS_LOCAL_WRITE.0 as c_int;
        let mr = some(ibv_reg_mr(pd, memory.as_mut_ptr().cast(), MEMORY, access))?;
        let cq = some(ibv_create_cq(context, 256, null_mut(), null_mut(), 0))?;
        let mut init: ibv_srq_init_attr = zeroed();
        (init.attr.max_wr, init.attr.max_sge) = (64, 1);
        let srq = some(ibv_create_srq(pd, &mut init))?;
        let mut gid: ibv_gid = zeroed();
        if ibv_query_gid(context, 1, 0, &mut gid) != 0 {
            return Err(std::io::Error::last_os_error().into());
        }
        let qp = || {
            let mut init: ibv_qp_init_attr = zeroed();
            init.qp_type = ibv_qp_type::IBV_QPT_RC;
            (init.send_cq, init.recv_cq, init.srq) = (cq, cq, srq);
            (init.cap.max_send_wr, init.cap.max_send_sge) = (64, 1);
            some(mlx5_direct::dv::create_qp_without_scatter(pd, &mut init).cast::<ibv_qp>())
        };
        let (from, to) = (qp()?, qp()?);
        connect(from, (*to).qp_num, gid)?;
        connect(to, (*from).qp_num, gid)?;
        let (mut sq, mut direct) = (Sq::from_verbs(from)?, Cq::from_verbs(cq)?);
        let mut receives = Receives::Shared(Srq::from_verbs(srq, None)?);
        exchange(&mut sq, &mut receives, &mut direct, memory.as_mut_ptr(), (*mr).lkey)?
    };
    println!("{count} messages through an SRQ of ibverbs-sys");
    Ok(())
}
