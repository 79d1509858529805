//! What a subscriber of `tracing` sees of queues that are taken over.

use std::{
    io,
    ptr::null_mut,
    sync::{Arc, Mutex},
};

use doorbell_sys::ibv_sge;
use mlx5_direct::{DataSeg, Srq};
use tracing_subscriber::{filter::LevelFilter, fmt::MakeWriter};

use super::{
    recv_wr,
    rig::Rig,
    sends::{take_rq, take_sq},
    take_cq, take_srq,
};

/// Text that a subscriber writes.
#[derive(Clone, Default)]
struct Text(Arc<Mutex<Vec<u8>>>);

impl Text {
    fn take(&self) -> String {
        let bytes = std::mem::take(&mut *self.0.lock().unwrap());
        // Times are left out.
        let lines = String::from_utf8(bytes).unwrap();
        lines
            .lines()
            .map(|line| format!("{}\n", line.rsplit("DEBUG mlx5_direct: queue ").next().unwrap()))
            .collect()
    }
}

impl io::Write for Text {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl MakeWriter<'_> for Text {
    type Writer = Self;

    fn make_writer(&self) -> Self {
        self.clone()
    }
}

/// Each queue that is taken over is one line with its number, a refused one a line with the reason.
/// Posts and polls write nothing.
pub(super) fn takeovers(rig: &Rig) {
    let text = Text::default();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(LevelFilter::TRACE)
        .with_ansi(false)
        .with_writer(text.clone())
        .finish();
    tracing::subscriber::with_default(subscriber, || {
        let (raw_cq, raw_srq, used) = (rig.cq(127, false), rig.srq(63, 1), rig.srq(8, 1));
        let (raw_qp, _) = rig.qp_with(raw_cq, raw_cq, null_mut(), |init| {
            (init.cap.max_recv_wr, init.cap.max_recv_sge, init.cap.max_send_wr) = (16, 1, 16);
        });
        let (mut cq, mut srq) = (take_cq(raw_cq), take_srq(raw_srq));
        let (sq, rq) = (take_sq(raw_qp), take_rq(raw_qp));
        assert_eq!(
            text.take(),
            [
                ("CQ", cq.cqn(), cq.cqe_count()),
                ("SRQ", srq.srqn(), srq.depth()),
                ("send queue", sq.qpn(), sq.max_requests()),
                ("receive queue", rq.qpn(), rq.max_requests()),
            ]
            .map(|(kind, number, holds)| format!("taken over kind={kind:?} number={number} holds={holds}\n"))
            .concat()
        );

        assert_eq!(srq.post_batch([(DataSeg::new(rig.addr(0), 64, rig.lkey()), 1)]), 1);
        assert!(cq.poll().expect("no error").is_none());
        assert_eq!(text.take(), "");

        let mut sges = [ibv_sge { addr: rig.addr(0), length: 64, lkey: rig.lkey() }];
        assert_eq!(rig.verbs_post(used, &mut [recv_wr(&mut sges, 1)]), 1);
        // SAFETY: a live SRQ. The call is refused, so nothing is taken over.
        let error = unsafe { Srq::from_verbs(used, None) }.expect_err("the SRQ was used");
        assert_eq!(text.take(), format!("refused kind=\"SRQ\" error={error}\n"));
        rig.destroy(&[raw_qp], &[raw_srq, used], &[raw_cq]);
    });
}
