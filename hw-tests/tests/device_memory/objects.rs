//! Calls that create and free objects, beyond those of `c/no_memory.c`.

use crate::*;
use doorbell::inside::EpEvds;
use doorbell::{Ep, Evd, EvdFlags, Pz, Rmr, RmrScope};
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
        |side| Ep::builder(&side.ia, &side.pz).evds(Default::default()).attributes(&long(500)).build(),
        |_, ep| ep.close().unwrap(),
    );
}

/// An SRQ finds the EVDs of its EPs by a table, which has to grow now and then.
fn creating_eps_with_many_receive_evds() {
    const EVDS: usize = 56;
    let surroundings = || {
        let side = one_side();
        let srq = side.srq(8);
        let evds: Vec<_> = (0..=EVDS).map(|_| Evd::new(&side.ia, 8, EvdFlags::DTO).unwrap()).collect();
        let ep = |recv| {
            let evds = EpEvds { recv: Some(recv), ..side.evds() };
            Ep::builder(&side.ia, &side.pz).evds(evds).srq(&srq).build()
        };
        let eps: Vec<_> = evds[..EVDS].iter().map(|recv| ep(recv).unwrap()).collect();
        (eps, srq, evds, side)
    };
    with_each_failure(
        "an EP with one more receive EVD",
        surroundings,
        |(_, srq, evds, side)| {
            let evds = EpEvds { recv: evds.last(), ..side.evds() };
            Ep::builder(&side.ia, &side.pz).evds(evds).srq(srq).build()
        },
        |(_, srq, evds, _), ep| {
            let refused = evds[EVDS].clone().close().unwrap_err();
            assert_eq!(refused.error.code(), dat::INVALID_STATE_EVD_IN_USE);
            ep.close().unwrap();
            evds[EVDS].clone().close().unwrap();
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
    eps.iter_mut().for_each(|ep| ep.set_watermark(Some(0), None).unwrap());
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
    let rmrs: Vec<_> = (0..100).map(|_| Rmr::new(&side.pz, RmrScope::Pz).unwrap()).collect();
    let pzs: Vec<_> = (0..100).map(|_| Pz::new(&side.ia).unwrap()).collect();
    PLAN.set(Plan::FailFrom(0));
    eps.into_iter().for_each(|ep| ep.close().unwrap());
    srq.close().unwrap();
    evds.into_iter().for_each(|evd| evd.close().unwrap());
    rmrs.into_iter().for_each(|rmr| rmr.close().unwrap());
    lmrs.into_iter().for_each(|lmr| lmr.close().unwrap());
    pzs.into_iter().for_each(|pz| pz.close().unwrap());
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
    drop(ia);
    drop((eps, lmrs, srq));
    PLAN.set(Plan::Succeed);
}
