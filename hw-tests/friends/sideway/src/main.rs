//! Queues that `sideway` has made, driven by `mlx5-direct`. sideway opens the device, registers
//! memory, makes CQs and QPs and connects them; its traits `QueuePair` and `CompletionQueue` give
//! the raw handles that `from_verbs` takes.
//!
//! sideway 0.4 has no SRQs. The second half shows the shortest way around: the SRQ, and QPs that
//! receive from it, come from the bindings that sideway uses, in sideway's own PD; a type of three
//! lines makes such a QP one of sideway's, which then connects it.

use messages::{MEMORY, Outcome, Receives, exchange};
use mlx5_direct::{Cq, Rq, Sq, Srq};
use sideway::ibverbs::AccessFlags;
use sideway::ibverbs::address::{AddressHandleAttribute, Gid};
use sideway::ibverbs::completion::{CompletionQueue, GenericCompletionQueue};
use sideway::ibverbs::device::DeviceList;
use sideway::ibverbs::device_context::Mtu;
use sideway::ibverbs::queue_pair::{BasicPostSendGuard, QueuePair, QueuePairAttribute, QueuePairState};
use std::mem::zeroed;
use std::ptr::NonNull;

/// Connects a QP to the one with this number on the same device.
fn connect(qp: &mut impl QueuePair, peer: u32, gid: &Gid) -> Outcome<()> {
    let mut attr = QueuePairAttribute::new();
    attr.setup_state(QueuePairState::Init)
        .setup_pkey_index(0)
        .setup_port(1)
        .setup_access_flags(AccessFlags::LocalWrite | AccessFlags::RemoteWrite);
    qp.modify(&attr)?;
    let mut address = AddressHandleAttribute::new();
    address.setup_port(1).setup_grh_src_gid_index(0).setup_grh_dest_gid(gid).setup_grh_hop_limit(64);
    let mut attr = QueuePairAttribute::new();
    attr.setup_state(QueuePairState::ReadyToReceive)
        .setup_path_mtu(Mtu::Mtu1024)
        .setup_dest_qp_num(peer)
        .setup_rq_psn(0)
        .setup_max_dest_read_atomic(1)
        .setup_min_rnr_timer(1)
        .setup_address_vector(&address);
    qp.modify(&attr)?;
    let mut attr = QueuePairAttribute::new();
    attr.setup_state(QueuePairState::ReadyToSend)
        .setup_sq_psn(0)
        .setup_timeout(14)
        .setup_retry_cnt(7)
        .setup_rnr_retry(7)
        .setup_max_read_atomic(1);
    qp.modify(&attr)?;
    Ok(())
}

/// A QP that sideway has not made.
struct Foreign(NonNull<rdma_mummy_sys::ibv_qp>);

impl QueuePair for Foreign {
    unsafe fn qp(&self) -> NonNull<rdma_mummy_sys::ibv_qp> {
        self.0
    }

    type Guard<'g> = BasicPostSendGuard<'g>;

    fn start_post_send(&mut self) -> Self::Guard<'_> {
        unimplemented!("mlx5-direct posts to this queue")
    }
}

fn main() -> Outcome<()> {
    let devices = DeviceList::new()?;
    let context = devices.iter().next().ok_or("no device")?.open()?;
    let (pd, gid) = (context.alloc_pd()?, context.query_gid(1, 0)?);
    let memory = vec![0u8; MEMORY].leak();
    // SAFETY: the memory is never freed.
    let mr = unsafe { pd.reg_mr(memory.as_ptr() as usize, MEMORY, AccessFlags::LocalWrite.into())? };

    // QPs with receive queues of their own.
    let cq = context.create_cq_builder().setup_cqe(256).build()?;
    let handle = GenericCompletionQueue::from(cq.clone());
    let mut builder = pd.create_qp_builder();
    builder.setup_max_send_wr(64).setup_max_recv_wr(64).setup_max_send_sge(1).setup_max_recv_sge(1);
    builder.setup_send_cq(handle.clone()).setup_recv_cq(handle);
    let (mut from, mut to) = (builder.build()?, builder.build()?);
    let (from_number, to_number) = (from.qp_number(), to.qp_number());
    connect(&mut from, to_number, &gid)?;
    connect(&mut to, from_number, &gid)?;
    // SAFETY: sideway's objects live to the end of `main`, nothing was posted or polled, and only
    // mlx5-direct posts and polls.
    let count = unsafe {
        let mut sq = Sq::from_verbs(from.qp().as_ptr())?;
        let mut receives = Receives::Own(Rq::from_verbs(to.qp().as_ptr())?);
        let mut direct = Cq::from_verbs(cq.cq().as_ptr())?;
        exchange(&mut sq, &mut receives, &mut direct, memory.as_mut_ptr(), mr.lkey())?
    };
    println!("{count} messages through QPs of sideway");

    // QPs that receive from an SRQ.
    let cq = context.create_cq_builder().setup_cqe(256).build()?;
    // SAFETY: as above; attributes are plain data, and these objects are never destroyed.
    let count = unsafe {
        let mut init: rdma_mummy_sys::ibv_srq_init_attr = zeroed();
        (init.attr.max_wr, init.attr.max_sge) = (64, 1);
        let srq = rdma_mummy_sys::ibv_create_srq(pd.pd().as_ptr(), &mut init);
        let qp = || {
            let mut init: rdma_mummy_sys::ibv_qp_init_attr = zeroed();
            init.qp_type = rdma_mummy_sys::ibv_qp_type::IBV_QPT_RC;
            (init.send_cq, init.recv_cq, init.srq) = (cq.cq().as_ptr(), cq.cq().as_ptr(), srq);
            (init.cap.max_send_wr, init.cap.max_send_sge) = (64, 1);
            let qp = mlx5_direct::dv::create_qp_without_scatter(pd.pd().as_ptr(), &mut init);
            NonNull::new(qp.cast()).map(Foreign).ok_or("ibv_create_qp")
        };
        let (mut from, mut to) = (qp()?, qp()?);
        let (from_number, to_number) = (from.qp_number(), to.qp_number());
        connect(&mut from, to_number, &gid)?;
        connect(&mut to, from_number, &gid)?;
        let mut sq = Sq::from_verbs(from.qp().as_ptr())?;
        let mut receives = Receives::Shared(Srq::from_verbs(srq, None)?);
        let mut direct = Cq::from_verbs(cq.cq().as_ptr())?;
        exchange(&mut sq, &mut receives, &mut direct, memory.as_mut_ptr(), mr.lkey())?
    };
    println!("{count} messages through an SRQ beside sideway");
    // The QPs and the SRQ of the second half would have to be destroyed before the CQ.
    std::mem::forget((cq, mr, pd, context));
    Ok(())
}
