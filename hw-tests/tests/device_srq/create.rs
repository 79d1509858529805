//! The SRQ object and its creation (sections A and B).

use crate::*;
use doorbell::{CloseFlags, EpAttr, EpChange, EpEvds, Ia, Pz, Srq, SrqAttr, SrqState};
use doorbell_hw_tests::dat;
use doorbell_hw_tests::rig::*;
use doorbell_hw_tests::{Rig, Test, tests};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use std::collections::HashSet;
use std::process::Command;

pub(crate) const TESTS: &[Test] = tests![
    r2_srq_born_unattached,
    r3_srq_born_operational_and_empty,
    r4_srq_attach_only_at_ep_create,
    r5_srq_shared_by_many_eps,
    r8_srq_stale_handle_rejected,
    r10_srq_create_queue_at_least_requested,
    r11_srq_create_iov_at_least_requested,
    r12_srq_create_low_watermark_must_be_default,
    r13_srq_create_zero_or_negative_depth,
    r15_srq_create_over_ia_limits,
    r19_srq_create_bad_pz,
    r20_srq_create_out_of_resources,
    r21_srq_create_failure_leaks_nothing,
    r22_srq_create_model_not_supported_only_without_srq,
    r23_srq_create_thread_safe,
];

/// The code that creation with these attributes is refused with.
fn creation_refused(side: &Side, attr: SrqAttr) -> u32 {
    refused(Srq::create(&side.ia, &side.pz, attr))
}

/// A new SRQ has no EPs: it can be freed at once.
fn r2_srq_born_unattached() {
    let side = server();
    side.srq(4).free().unwrap();
}

/// A new SRQ is operational (1) and has no buffers.
fn r3_srq_born_operational_and_empty() {
    let side = server();
    let param = side.srq(4).query().unwrap();
    assert_eq!((param.state, param.state as u32), (SrqState::Operational, 1));
    assert_eq!((param.available, param.outstanding, param.low_watermark), (0, 0, 0));
}

/// An EP is on the SRQ that it was made with, and nothing can change that afterwards.
fn r4_srq_attach_only_at_ep_create() {
    let side = server();
    let (srq, other) = (side.srq(4), side.srq(4));
    let mut on_srq = side.srq_ep(&srq, &EpAttr::default());
    let mut plain = side.ep(&EpAttr::default());
    for ep in [&mut on_srq, &mut plain] {
        let change = EpChange { srq: Some(other.id()), ..EpChange::default() };
        assert_eq!(refused(ep.modify(change)), dat::INVALID_ARG2);
    }
    assert_eq!(on_srq.query().unwrap().srq, Some(srq.id()));
    assert_eq!(plain.query().unwrap().srq, None);
    other.free().unwrap();
}

/// Four EPs take from one SRQ, two that share a receive EVD and two with one each; every message is
/// reported on its own EP's EVD. Also R6.
fn r5_srq_shared_by_many_eps() {
    let rig = Rig::new();
    let mut srq = rig.server.srq(8);
    assert!(rig.server.ia.attributes().max_ep_per_srq >= 4);
    let own = [dto_evd(&rig.server), dto_evd(&rig.server)];
    let evds = [&rig.server.recv, &rig.server.recv, &own[0], &own[1]];
    let attr = EpAttr::default();
    let mut pairs: Vec<_> = evds
        .iter()
        .map(|recv| {
            let evds = EpEvds { recv: Some(recv), ..rig.server.evds() };
            let ep = Ep::create_with_srq(&rig.server.ia, &rig.server.pz, evds, &srq, &attr).unwrap();
            rig.connect(ep, rig.client.ep(&attr))
        })
        .collect();
    rig.server.post(&mut srq, 8, 64, 0, 0);
    for (pair, evd) in pairs.iter_mut().zip(evds) {
        for len in [10, 20] {
            rig.send(pair, 0, len);
            let got = dto(evd);
            assert_eq!((got.ep, got.length as usize), (pair.server.id(), len));
        }
    }
    assert_eq!(counts(&srq), (0, 0));
}

/// An SRQ whose IA was closed is stale for every call, and its id is not given again. Also R28,
/// R47, R70, R106, R126.
fn r8_srq_stale_handle_rejected() {
    let side = server();
    let mut srq = side.srq(4);
    let triplet = side.lmr.triplet(0, 64);
    let Side { ia, .. } = side;
    ia.close(CloseFlags::Abrupt).unwrap();
    assert_eq!(refused(srq.query()), dat::INVALID_HANDLE_SRQ);
    assert_eq!(post_refused(srq.post_recv(&[triplet], 0)), dat::INVALID_HANDLE_SRQ);
    assert_eq!(post_refused(srq.post_recv(&[], 0)), dat::INVALID_HANDLE_SRQ);
    assert_eq!(refused(srq.resize(8)), dat::INVALID_HANDLE_SRQ);
    assert_eq!(refused(srq.resize(-1)), dat::INVALID_HANDLE_SRQ);
    assert_eq!(refused(srq.set_low_watermark(0)), dat::INVALID_HANDLE_SRQ);
    let again = server();
    let ids: HashSet<_> = (0..8).map(|_| again.srq(4)).map(|srq| srq.id()).collect();
    assert!(ids.len() == 8 && !ids.contains(&srq.id()));
    let back = srq.free().unwrap_err();
    assert_eq!(back.error.code(), dat::INVALID_HANDLE_SRQ);
    assert_eq!(refused(back.object.free().map_err(Error::from)), dat::INVALID_HANDLE_SRQ);
}

/// The depth is what the query says, that is at least what was asked for, and that many buffers
/// fit.
fn r10_srq_create_queue_at_least_requested() {
    let side = server();
    for asked in [1, 2, 13, 100] {
        let mut srq = side.srq(asked);
        let depth = srq.query().unwrap().max_recv_dtos;
        assert!(depth >= asked, "{depth} for {asked}");
        side.post(&mut srq, depth as usize, 64, 0, 0);
        assert_eq!(counts(&srq), (depth, depth));
    }
}

/// A buffer may have as many segments as the query says, that is at least as many as were asked
/// for.
fn r11_srq_create_iov_at_least_requested() {
    let side = server();
    for asked in [1, 2, 5] {
        let attr = SrqAttr { max_recv_iov: asked, ..SrqAttr::depth(4) };
        let mut srq = Srq::create(&side.ia, &side.pz, attr).unwrap();
        let iov = srq.query().unwrap().max_recv_iov;
        assert!(iov >= asked, "{iov} for {asked}");
        let segments: Vec<_> = (0..iov as usize).map(|i| side.lmr.triplet(i * 64, 32)).collect();
        srq.post_recv(&segments, 0).unwrap();
        assert_eq!(counts(&srq), (1, 1));
    }
}

/// The low watermark of a new SRQ is the default or nothing.
fn r12_srq_create_low_watermark_must_be_default() {
    let side = server();
    for low_watermark in [1, 4, 5, -1] {
        let attr = SrqAttr { low_watermark, ..SrqAttr::depth(4) };
        assert_eq!(creation_refused(&side, attr), dat::INVALID_ARG3);
    }
}

/// A depth below 1 is refused, and so is a segment count below 1. Also R14.
fn r13_srq_create_zero_or_negative_depth() {
    let side = server();
    for n in [0, -1, i32::MIN] {
        assert_eq!(creation_refused(&side, SrqAttr::depth(n)), dat::INVALID_ARG3);
        let attr = SrqAttr { max_recv_iov: n, ..SrqAttr::depth(4) };
        assert_eq!(creation_refused(&side, attr), dat::INVALID_ARG3);
    }
}

/// An SRQ with exactly the IA's limits can be created; one more of either is refused.
fn r15_srq_create_over_ia_limits() {
    let side = server();
    let limits = side.ia.attributes();
    let most =
        SrqAttr { max_recv_iov: limits.max_iov_segments_per_dto, ..SrqAttr::depth(limits.max_recv_per_srq) };
    let param = Srq::create(&side.ia, &side.pz, most).unwrap().query().unwrap();
    assert!(param.max_recv_dtos >= most.max_recv_dtos && param.max_recv_iov >= most.max_recv_iov);
    for n in [1, i32::MAX - most.max_recv_dtos] {
        let attr = SrqAttr { max_recv_dtos: most.max_recv_dtos + n, ..SrqAttr::depth(1) };
        assert_eq!(creation_refused(&side, attr), dat::INVALID_ARG3);
    }
    for n in [1, i32::MAX - most.max_recv_iov] {
        let attr = SrqAttr { max_recv_iov: most.max_recv_iov + n, ..SrqAttr::depth(1) };
        assert_eq!(creation_refused(&side, attr), dat::INVALID_ARG3);
    }
}

/// A PZ of another IA is an invalid handle, whether that IA is open or closed.
fn r19_srq_create_bad_pz() {
    let (side, other) = (server(), server());
    let attr = SrqAttr::depth(4);
    assert_eq!(refused(Srq::create(&side.ia, &other.pz, attr)), dat::INVALID_HANDLE_PZ);
    let Side { ia, pz, .. } = other;
    ia.close(CloseFlags::Abrupt).unwrap();
    assert_eq!(refused(Srq::create(&side.ia, &pz, attr)), dat::INVALID_HANDLE_PZ);
}

/// Marks the process of [`r20_srq_create_out_of_resources`] that has little memory.
const STARVED: &str = "DOORBELL_TEST_STARVED";

/// A process that cannot map the memory of a large SRQ gets INSUFFICIENT_RESOURCES, leaks nothing,
/// and can create a small SRQ.
fn r20_srq_create_out_of_resources() {
    if std::env::var_os(STARVED).is_none() {
        let name = "r20_srq_create_out_of_resources";
        let mut child = Command::new(std::env::current_exe().unwrap());
        let output = child.args(["--exact", name, "--nocapture"]).env(STARVED, "1").output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success() && text.contains("1 passed"), "{text}{output:?}");
        return;
    }
    let ia = Ia::open(&devices().unwrap().0).unwrap();
    let pz = Pz::create(&ia).unwrap();
    // The progress thread has what it needs: an open returns when the thread waits.
    let status = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = status.split(' ').next().unwrap().parse().unwrap();
    let limit = pages * 4096 + (8 << 20);
    let (_, hard) = getrlimit(Resource::RLIMIT_AS).unwrap();
    setrlimit(Resource::RLIMIT_AS, limit, hard).unwrap();
    let large = SrqAttr {
        max_recv_iov: ia.attributes().max_iov_segments_per_dto,
        ..SrqAttr::depth(ia.attributes().max_recv_per_srq)
    };
    // The allocator may have reserved memory before the limit was set: enough for a few of these,
    // not for all.
    let mut made = Vec::new();
    let refusal = loop {
        match Srq::create(&ia, &pz, large) {
            Ok(srq) if made.len() < 16 => made.push(srq),
            outcome => break outcome,
        }
    };
    assert_eq!(refused(refusal), dat::RESOURCE_SRQ);
    made.clear();
    let small = Srq::create(&ia, &pz, SrqAttr::depth(16)).unwrap();
    small.free().unwrap();
    pz.free().unwrap();
    ia.close(CloseFlags::Graceful).unwrap();
}

/// After any number of refused creations the PZ can be freed and the IA closed gracefully.
fn r21_srq_create_failure_leaks_nothing() {
    let ia = Ia::open(&devices().unwrap().0).unwrap();
    let pz = Pz::create(&ia).unwrap();
    for attr in [
        SrqAttr::depth(0),
        SrqAttr::depth(i32::MAX),
        SrqAttr { max_recv_iov: 0, ..SrqAttr::depth(4) },
        SrqAttr { max_recv_iov: i32::MAX, ..SrqAttr::depth(4) },
        SrqAttr { low_watermark: 1, ..SrqAttr::depth(4) },
    ] {
        assert_eq!(refused(Srq::create(&ia, &pz, attr)), dat::INVALID_ARG3);
    }
    pz.free().unwrap();
    ia.close(CloseFlags::Graceful).unwrap();
}

/// SRQs are advertised, and creating one works.
fn r22_srq_create_model_not_supported_only_without_srq() {
    let side = server();
    assert!(side.ia.provider_attributes().srq_supported);
    Srq::create(&side.ia, &side.pz, SrqAttr::depth(1)).unwrap();
}

/// Threads can create, use and free SRQs on one IA and PZ at the same time.
fn r23_srq_create_thread_safe() {
    const THREADS: usize = 4;
    const EACH: usize = 8;
    let side = server();
    let pz = Pz::create(&side.ia).unwrap();
    let make = |thread: usize| {
        let mut kept = Vec::new();
        for i in 0..EACH {
            let depth = (1 + thread * EACH + i) as i32;
            let mut srq = Srq::create(&side.ia, &pz, SrqAttr::depth(depth)).unwrap();
            srq.post_recv(&[], 0).unwrap();
            assert!(srq.query().unwrap().max_recv_dtos >= depth);
            assert_eq!(counts(&srq), (1, 1));
            if i % 2 == 0 { srq.free().unwrap() } else { kept.push(srq) }
        }
        kept
    };
    let srqs: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS).map(|t| scope.spawn(move || make(t))).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    let ids: HashSet<_> = srqs.iter().map(Srq::id).collect();
    assert_eq!(ids.len(), THREADS * EACH / 2);
    let pz = pz.free().unwrap_err().object;
    srqs.into_iter().for_each(|srq| srq.free().unwrap());
    pz.free().unwrap();
}
