//! Calls that create and free objects, beyond those of `c/no_memory.c`.

use crate::*;
use doorbell::{CloseFlags, Ep, EpAttr, EpEvds, Evd, EvdFlags, Pz, Rmr, WATERMARK_INFINITE};
use doorbell_hw_tests::rig::*;
use doorbell_hw_tests::{Test, dat, tests};

pub(crate) const TESTS: &[Test] = tests![
    creating_the_first_ep,
    creating_eps_with_many_receive_evds,
    watermarks_need_no_memory,
    freeing_without_memory,
    closing_without_memory,
];

/// With the first EP, the IA creates and keeps the EVD that discards unwanted completions.
fn creating_the_first_ep() {
    each_failure(
        "the first EP",
        Leaves::WithItsIa,
        one_side,
        |side| Ep::create(&side.ia, &side.pz, Default::default(), Some(&long(500))),
        |_, ep| ep.free().unwrap(),
    );
}

/// An SRQ finds the EVDs of its EPs by a table, which has to grow now and then.
fn creating_eps_with_many_receive_evds() {
    const EVDS: usize = 56;
    let surroundings = || {
        let side = one_side();
        let srq = side.srq(8);
        let evds: Vec<_> =
            (0..=EVDS).map(|_| Evd::create(&side.ia, 8, None, EvdFlags::DTO).unwrap()).collect();
        let ep = |recv| {
            let evds = EpEvds { recv: Some(recv), ..side.evds() };
            Ep::create_with_srq(&side.ia, &side.pz, evds, &srq, &EpAttr::default())
        };
        let eps: Vec<_> = evds[..EVDS].iter().map(|recv| ep(recv).unwrap()).collect();
        (eps, srq, evds, side)
    };
    with_each_failure(
        "an EP with one more receive EVD",
        surroundings,
        |(_, srq, evds, side)| {
            let evds = EpEvds { recv: evds.last(), ..side.evds() };
            Ep::create_with_srq(&side.ia, &side.pz, evds, srq, &EpAttr::default())
        },
        |(_, srq, evds, _), ep| {
            assert_eq!(evds[EVDS].free().unwrap_err().code(), dat::INVALID_STATE_EVD_IN_USE);
            ep.free().unwrap();
            evds[EVDS].free().unwrap();
            assert_eq!(counts(srq), (0, 0));
        },
    );
}

/// An EVD reserves the memory for watermarks of all its EPs when the EPs are created.
fn watermarks_need_no_memory() {
    let side = one_side();
    let srq = side.srq(8);
    let mut eps: Vec<_> = (0..500).map(|_| side.srq_ep(&srq, &long(1))).collect();
    PLAN.set(Plan::FailFrom(0));
    eps.iter_mut().for_each(|ep| ep.set_watermark(0, WATERMARK_INFINITE).unwrap());
    assert_eq!(PLAN.replace(Plan::Succeed), Plan::FailFrom(0), "a watermark has taken memory");
}

/// A program without memory frees objects to get some.
fn freeing_without_memory() {
    let side = one_side();
    let srq = side.srq(8);
    let mut eps: Vec<_> = (0..500).map(|_| side.srq_ep(&srq, &long(1))).collect();
    eps.extend((0..100).map(|_| side.ep(&long(1))));
    let evds: Vec<_> = (0..100).map(|_| side.evd(EvdFlags::CONNECTION)).collect();
    let lmrs: Vec<_> = (0..200).map(|_| remote(&side)).collect();
    let rmrs: Vec<_> = (0..100).map(|_| Rmr::create(&side.pz).unwrap()).collect();
    let pzs: Vec<_> = (0..100).map(|_| Pz::create(&side.ia).unwrap()).collect();
    PLAN.set(Plan::FailFrom(0));
    eps.into_iter().for_each(|ep| ep.free().unwrap());
    srq.free().unwrap();
    evds.into_iter().for_each(|evd| evd.free().unwrap());
    rmrs.into_iter().for_each(|rmr| rmr.free().unwrap());
    lmrs.into_iter().for_each(|lmr| lmr.free().unwrap());
    pzs.into_iter().for_each(|pz| pz.free().unwrap());
    PLAN.set(Plan::Succeed);
}

/// The abrupt close of an IA frees what is left.
fn closing_without_memory() {
    let side = one_side();
    let srq = side.srq(8);
    let mut eps: Vec<_> = (0..300).map(|_| side.srq_ep(&srq, &long(1))).collect();
    eps.extend((0..100).map(|_| side.ep(&long(1))));
    let lmrs: Vec<_> = (0..100).map(|_| remote(&side)).collect();
    let Side { ia, .. } = side;
    PLAN.set(Plan::FailFrom(0));
    ia.close(CloseFlags::Abrupt).unwrap();
    drop((eps, lmrs, srq));
    PLAN.set(Plan::Succeed);
}
