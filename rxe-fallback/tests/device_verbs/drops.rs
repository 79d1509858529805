//! Dropping handles in any order.

use std::any::Any;

use libtest_mimic::Failed;
use rxe_fallback::{Access, Ah, CompChannel, Context, Cq, Mr, Pd, Qp, QpInit, QpKind, RecvWr, Srq, SrqInit};

use crate::support::{Ends, TestResult, open_fds, same};
use crate::{Suite, suite};

pub(crate) fn suite() -> Suite {
    suite![
        handles_dropped_in_any_order_leave_nothing_behind,
        qp_works_after_every_other_handle_is_gone,
        objects_can_be_made_again_as_often_as_one_likes,
    ]
}

/// One handle of each kind, all depending on each other.
fn everything(name: &str, ends: &Ends) -> Result<Vec<Box<dyn Any>>, Failed> {
    let context = Context::open(name)?;
    let pd = Pd::alloc(&context)?;
    let channel = CompChannel::create(&context)?;
    let cq = Cq::create(&context, 16, Some(&channel), 0, 1)?;
    let other_cq = Cq::create(&context, 16, None, 0, 2)?;
    let srq = Srq::create(&pd, SrqInit { max_wr: 8, max_sge: 1, token: 3 })?;
    let mr = Mr::register_owned(&pd, 4096, Access::LOCAL_WRITE, false)?;
    let qp = Qp::create(&pd, &init(&cq, &other_cq, Some(&srq)))?;
    let ah = Ah::create(&pd, &ends.a.path_to(&ends.b))?;
    let sges = [mr.sge(0, 64)?];
    srq.post_list(&[RecvWr { wr_id: 0, sges: &sges }])?;
    cq.arm(false)?;
    Ok(vec![
        Box::new(context),
        Box::new(pd),
        Box::new(channel),
        Box::new(cq),
        Box::new(other_cq),
        Box::new(srq),
        Box::new(mr),
        Box::new(qp),
        Box::new(ah),
    ])
}

fn init<'a>(send_cq: &'a Cq, recv_cq: &'a Cq, srq: Option<&'a Srq>) -> QpInit<'a> {
    QpInit {
        kind: QpKind::Rc,
        send_cq,
        recv_cq,
        srq,
        max_send_wr: 4,
        max_send_sge: 1,
        max_recv_wr: 4,
        max_recv_sge: 1,
        max_inline: 0,
        signal_all: true,
        token: 0,
    }
}

/// This process's objects in the kernel, by kind; empty if `rdma` cannot list them.
fn kernel_objects() -> String {
    let output = std::process::Command::new("rdma").args(["resource", "show"]).output();
    output.map(|o| String::from_utf8_lossy(&o.stdout).into_owned()).unwrap_or_default()
}

fn handles_dropped_in_any_order_leave_nothing_behind(ends: &Ends) -> TestResult {
    let name = ends.a.context.name();
    let (fds, objects) = (open_fds()?, kernel_objects());
    let mut seed = 0x2545_f491_4f6c_dd1d_u64;
    for _ in 0..40 {
        let mut handles = everything(name, ends)?;
        while !handles.is_empty() {
            // xorshift: any order will do, the same one each time.
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            handles.swap_remove((seed % handles.len() as u64) as usize);
        }
        same("descriptors", open_fds()?, fds)?;
    }
    same("objects in the kernel", kernel_objects(), objects)
}

fn qp_works_after_every_other_handle_is_gone(ends: &Ends) -> TestResult {
    let qp = {
        let context = Context::open(ends.a.context.name())?;
        let pd = Pd::alloc(&context)?;
        let cq = Cq::create(&context, 16, Some(&CompChannel::create(&context)?), 0, 1)?;
        let srq = Srq::create(&pd, SrqInit { max_wr: 8, max_sge: 1, token: 3 })?;
        Qp::create(&pd, &init(&cq, &cq, Some(&srq)))?
    };
    qp.to_init(ends.a.port, Access::REMOTE_READ)?;
    qp.to_error()?;
    let srq = qp.srq().ok_or("no SRQ")?;
    srq.post_one(0, &[])?;
    same("PD", srq.pd().same(qp.pd()), true)
}

fn objects_can_be_made_again_as_often_as_one_likes(ends: &Ends) -> TestResult {
    let pd = Pd::alloc(&ends.a.context)?;
    let cq = Cq::create(&ends.a.context, 16, None, 0, 0)?;
    // Together more than the device can have at a time, so that a leak would fail.
    for _ in 0..200 {
        let srq = Srq::create(&pd, SrqInit { max_wr: 16, max_sge: 1, token: 0 })?;
        let qp = Qp::create(&pd, &init(&cq, &cq, Some(&srq)))?;
        let mr = Mr::register_owned(&pd, 4096, Access::LOCAL_WRITE, false)?;
        drop((srq, qp, mr));
    }
    Ok(())
}
