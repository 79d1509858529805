//! QPs that go to RESET or are destroyed with completions waiting, on a CQ that they share with
//! others.

use doorbell_sys::*;
use mlx5_direct::{Completion, Cq, DataSeg, Rq, Sq, Srq, Wr, wr::Inline, wr::Remote};

use super::{
    common::{Rng, complete_each},
    next,
    rig::Rig,
    sends::{take_rq, take_sq},
    take_cq, take_srq,
};

/// A connected QP with what this crate drives of it.
struct End {
    qp: *mut ibv_qp,
    qpn: u32,
    sq: Sq,
    /// None if the QP receives from the SRQ.
    rq: Option<Rq>,
    /// Cookie of the next request, and the cookie that the next released request must have.
    sent: u64,
    released: u64,
}

impl End {
    fn new(rig: &Rig, cq: *mut ibv_cq, srq: *mut ibv_srq) -> Self {
        let (qp, _) = rig.qp_with(cq, cq, srq, |init| {
            (init.cap.max_recv_wr, init.cap.max_recv_sge) = if srq.is_null() { (16, 1) } else { (0, 0) };
            (init.cap.max_send_wr, init.sq_sig_all) = (16, 0);
        });
        let rq = srq.is_null().then(|| take_rq(qp));
        Self { qp, qpn: rig.qpn(qp), sq: take_sq(qp), rq, sent: 0, released: 0 }
    }

    /// Starts again after RESET.
    fn forget(&mut self) {
        self.sq.reset();
        self.rq.iter_mut().for_each(Rq::reset);
        (self.sent, self.released) = (0, 0);
    }
}

/// Gives a receive back, and posts its buffer again.
fn receive_again(rig: &Rig, ends: &mut [End], srq: &mut Srq, completion: &Completion, repost: bool) {
    let slot = completion.slot().expect("a receive");
    let end = ends.iter_mut().find(|end| end.qpn == completion.qpn()).expect("a QP that lives");
    let Some(rq) = &mut end.rq else {
        let cookie = srq.complete(slot).expect("in use");
        srq.post_one(DataSeg::new(rig.addr(cookie as usize * 256), 256, rig.lkey()), cookie).expect("room");
        return;
    };
    rq.complete(slot.0).expect("posted");
    if repost {
        rq.post(&[DataSeg::new(rig.addr(0), 256, rig.lkey())], 0).expect("room");
    }
}

fn take(rig: &Rig, ends: &mut [End], srq: &mut Srq, completion: Completion) {
    let Some(counter) = completion.send_counter() else {
        let good = !matches!(completion, Completion::RecvError(_));
        return receive_again(rig, ends, srq, &completion, good);
    };
    let end = ends.iter_mut().find(|end| end.qpn == completion.qpn()).expect("a QP that lives");
    let mut expected = end.released;
    complete_each(&mut end.sq, counter, |cookie| {
        assert_eq!(cookie, expected, "requests are released in the order of posting");
        expected += 1;
    })
    .expect("posted");
    end.released = expected;
}

/// Removes the entries of a QP from the CQ, and returns the slots that they name to the SRQ.
fn clean(rig: &Rig, cq: &mut Cq, ends: &mut [End], srq: &mut Srq, qpn: u32) -> u32 {
    cq.clean(qpn, |completion| {
        if completion.slot().is_some() {
            receive_again(rig, ends, srq, &completion, false);
        }
    })
}

/// Three pairs of QPs on one small CQ, with receive queues of their own or an SRQ. In each round
/// every QP sends, some requests fail, and one pair is reset or destroyed with any number of its
/// completions waiting. The requests and receives of the other pairs complete, each once and in
/// order, no slot of the SRQ is lost, and no completion of the earlier life of a QP turns up.
pub(crate) fn cleaned(rig: &Rig) {
    const BUFFERS: u32 = 100;
    let mut rng = Rng(33);
    // Fewer entries than a round produces, but enough for all that is outstanding at a time.
    let cq_raw = rig.cq(255, false);
    let srq_raw = rig.srq(127, 1);
    let (mut cq, mut srq) = (take_cq(cq_raw), take_srq(srq_raw));
    let buffer = |n: u64| DataSeg::new(rig.addr(n as usize * 256), 256, rig.lkey());
    assert_eq!(srq.post_batch((0..u64::from(BUFFERS)).map(|n| (buffer(n), n))), BUFFERS);
    let srq_of = |n: usize| if n < 2 { std::ptr::null_mut() } else { srq_raw };
    let mut ends: Vec<End> = (0..6).map(|n| End::new(rig, cq_raw, srq_of(n))).collect();
    for pair in ends.chunks(2) {
        rig.connect(pair[0].qp, pair[1].qp);
    }
    let (mut removed, mut errors, mut destroyed) = (0, 0, 0);
    for round in 0..300u64 {
        for end in &mut ends {
            let Some(rq) = &mut end.rq else { continue };
            while rq.free() > 0 {
                rq.post(&[buffer(0)], 0).expect("room");
            }
        }
        let victim = rng.below(3) as usize;
        for (n, end) in ends.iter_mut().enumerate() {
            let requests = 1 + rng.below(8);
            // A request of the pair that goes away fails in some rounds.
            let bad = (n / 2 == victim && round % 3 == 0).then(|| rng.below(requests));
            let mut chain = end.sq.chain();
            for k in 0..requests {
                let to = Remote { addr: rig.addr(128 << 10), rkey: rig.rkey() ^ 0x5500 };
                let signalled = k + 1 == requests || rng.below(3) == 0;
                let pushed = if bad == Some(k) {
                    chain.push(Wr::write(to, Inline(&[1; 8])), end.sent)
                } else if signalled {
                    chain.push(Wr::send(Inline(&[round as u8; 40])).signalled(), end.sent)
                } else {
                    chain.push(Wr::send(Inline(&[round as u8; 40])), end.sent)
                };
                pushed.expect("room");
                end.sent += 1;
            }
            assert_eq!(u64::from(chain.ring()), requests);
            errors += u32::from(bad.is_some());
        }
        // Some completions are taken, in the order in which they come.
        for _ in 0..rng.below(40) {
            let Some(completion) = cq.poll().expect("known entries") else { break };
            take(rig, &mut ends, &mut srq, completion);
        }
        // All of the others complete, so the rest of the completions is the victim's. Its own are
        // taken in between, as long as there are other ones to wait for.
        let pending = |ends: &[End]| (0..6).any(|n| n / 2 != victim && ends[n].released != ends[n].sent);
        let early = rng.below(2) == 0;
        while !early && pending(&ends) {
            let completion = next(&mut cq);
            take(rig, &mut ends, &mut srq, completion);
        }
        let replaced = rng.below(3) == 0;
        for n in [2 * victim, 2 * victim + 1] {
            if replaced {
                rig.destroy(&[ends[n].qp], &[], &[]);
                destroyed += 1;
            } else {
                rig.to_reset(ends[n].qp);
            }
        }
        for n in [2 * victim, 2 * victim + 1] {
            let qpn = ends[n].qpn;
            removed += clean(rig, &mut cq, &mut ends, &mut srq, qpn);
            if replaced {
                ends[n] = End::new(rig, cq_raw, srq_of(n));
            } else {
                ends[n].forget();
            }
        }
        rig.connect(ends[2 * victim].qp, ends[2 * victim + 1].qp);
        while pending(&ends) {
            let completion = next(&mut cq);
            take(rig, &mut ends, &mut srq, completion);
        }
        for end in &ends {
            assert_eq!((end.sq.posted(), end.released), (0, end.sent));
        }
    }
    // Every message of the SRQ's QPs was taken, and its buffer posted again.
    while let Some(completion) = cq.poll().expect("known entries") {
        take(rig, &mut ends, &mut srq, completion);
    }
    assert_eq!((srq.posted(), srq.in_use().count() as u32), (BUFFERS, BUFFERS));
    srq.check();
    println!("{removed} entries removed, {errors} requests failed, {destroyed} QPs destroyed");
    assert!(removed > 300 && destroyed > 50);
    let qps: Vec<_> = ends.iter().map(|end| end.qp).collect();
    rig.destroy(&qps, &[srq_raw], &[cq_raw]);
}
