//! Calls that create, resize and modify objects.

use crate::*;
use doorbell::{
    CloseFlags, Cno, DtoStatus, Ep, EpAttr, EpChange, EpEvds, Evd, EvdFlags, EventData, Ia, IaSettings, Lmr,
    Pz, Rmr, Srq, SrqAttr, WATERMARK_INFINITE,
};
use doorbell_hw_tests::rig::*;
use doorbell_hw_tests::{Rig, Test, dat, devices, tests};

pub(crate) const TESTS: &[Test] = tests![
    opening_an_ia,
    creating_pzs,
    creating_lmrs,
    creating_and_resizing_evds,
    creating_cnos,
    creating_and_resizing_srqs,
    creating_eps,
    creating_eps_with_many_receive_evds,
    watermarks_need_no_memory,
    freeing_without_memory,
    closing_without_memory,
    modifying_eps,
];

fn opening_an_ia() {
    let (name, _) = devices().unwrap();
    with_each_failure(
        "an IA",
        || (),
        |()| Ia::open(&name),
        |(), ia| {
            let pz = Pz::create(&ia).unwrap();
            pz.free().unwrap();
            ia.close(CloseFlags::Graceful).unwrap();
        },
    );
    with_each_failure(
        "an IA with settings",
        || (),
        |()| Ia::open_with(&name, 10_000, IaSettings::default()),
        |(), ia| ia.close(CloseFlags::Graceful).unwrap(),
    );
}

fn creating_pzs() {
    with_each_failure("a PZ", one_side, |side| Pz::create(&side.ia), |_, pz| pz.free().unwrap());
}

fn creating_lmrs() {
    with_each_failure(
        "an LMR",
        one_side,
        |side| Lmr::create(&side.ia, &side.pz, 8192, all_privileges()),
        |_, lmr| {
            lmr.write(100, b"here").unwrap();
            lmr.free().unwrap();
        },
    );
}

fn creating_and_resizing_evds() {
    for flags in [EvdFlags::DTO, EvdFlags::CR | EvdFlags::CONNECTION | EvdFlags::SOFTWARE, EvdFlags::all()] {
        with_each_failure(
            "an EVD",
            one_side,
            |side| Evd::create(&side.ia, 1000, None, flags),
            |_, evd| {
                if flags.contains(EvdFlags::SOFTWARE) {
                    evd.post_software_event(7).unwrap();
                    assert!(matches!(next(&evd).data, EventData::Software(7)));
                }
                evd.free().unwrap();
            },
        );
    }
    let surroundings = || {
        let side = one_side();
        let evd = Evd::create(&side.ia, 8, None, EvdFlags::DTO).unwrap();
        (evd, side)
    };
    with_each_failure(
        "a longer EVD",
        surroundings,
        |(evd, _)| {
            let before = evd.query().unwrap().qlen;
            evd.resize(2000).inspect_err(|_| assert_eq!(evd.query().unwrap().qlen, before))
        },
        |(evd, _), ()| assert!(evd.query().unwrap().qlen >= 2000),
    );
}

fn creating_cnos() {
    with_each_failure("a CNO", one_side, |side| Cno::create(&side.ia), |_, cno| cno.free().unwrap());
}

/// A message into an SRQ, of which the first buffer is at the start of the server's memory.
fn receives(rig: &Rig, srq: &mut Srq) {
    rig.server.post(srq, 1, 64, 0, 5);
    let mut pair = rig.connect_srq(srq);
    assert_eq!(rig.deliver(&mut pair, 64).status, DtoStatus::Success);
}

fn creating_and_resizing_srqs() {
    for depth in [1, 3000] {
        with_each_failure(
            "an SRQ",
            Rig::new,
            |rig| Srq::create(&rig.server.ia, &rig.server.pz, SrqAttr::depth(depth)),
            |rig, mut srq| {
                receives(rig, &mut srq);
                srq.free().unwrap();
            },
        );
    }
    let direct = one_side().ia.provider_attributes().datapath == "direct";
    if !direct {
        // A direct CQ has the device's largest depth from the beginning.
        let surroundings = || {
            let rig = Rig::new();
            let srq = rig.server.srq(16);
            (srq, rig)
        };
        with_each_failure(
            "a deeper SRQ",
            surroundings,
            |(srq, _)| srq.resize(4000).inspect_err(|_| assert_eq!(srq.query().unwrap().max_recv_dtos, 16)),
            |(srq, rig), ()| {
                assert_eq!(srq.query().unwrap().max_recv_dtos, 4000);
                receives(rig, srq);
            },
        );
    }
}

fn creating_eps() {
    // With the first EP, the IA creates and keeps the EVD that discards unwanted completions.
    each_failure(
        "the first EP",
        Leaves::WithItsIa,
        one_side,
        |side| Ep::create(&side.ia, &side.pz, Default::default(), Some(&long(500))),
        |_, ep| ep.free().unwrap(),
    );
    let not_the_first = || {
        let rig = Rig::new();
        drop(rig.server.ep(&EpAttr::default()));
        rig
    };
    with_each_failure(
        "an EP",
        not_the_first,
        |rig| Ep::create(&rig.server.ia, &rig.server.pz, rig.server.evds(), Some(&long(500))),
        |rig, mut server| {
            server.post_recv(&[rig.server.lmr.triplet(0, 64)], 1, NONE).unwrap();
            let mut pair = rig.connect(server, rig.client.ep(&EpAttr::default()));
            assert_eq!(rig.deliver(&mut pair, 64).status, DtoStatus::Success);
        },
    );
    let surroundings = || {
        let rig = not_the_first();
        let srq = rig.server.srq(400);
        (srq, rig)
    };
    with_each_failure(
        "an EP on an SRQ",
        surroundings,
        |(srq, rig)| {
            let side = &rig.server;
            Ep::create_with_srq(&side.ia, &side.pz, side.evds(), srq, &long(500))
        },
        |(srq, rig), server| {
            rig.server.post(srq, 1, 64, 0, 5);
            let mut pair = rig.connect(server, rig.client.ep(&EpAttr::default()));
            assert_eq!(rig.deliver(&mut pair, 64).status, DtoStatus::Success);
        },
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

fn modifying_eps() {
    let surroundings = || {
        let rig = Rig::new();
        let side = &rig.server;
        let other = Evd::create(&side.ia, 256, None, EvdFlags::DTO).unwrap();
        let mut ep = side.ep(&long(500));
        ep.post_recv(&[side.lmr.triplet(0, 64)], 9, NONE).unwrap();
        (Some(ep), other, rig)
    };
    with_each_failure(
        "an EP with another EVD",
        surroundings,
        |(ep, other, _)| {
            let ep = ep.as_mut().unwrap();
            ep.modify(EpChange { recv: Some(Some(other)), ..EpChange::default() })
        },
        |(ep, other, rig), ()| {
            let mut pair = rig.connect(ep.take().unwrap(), rig.client.ep(&EpAttr::default()));
            assert_eq!(rig.send(&mut pair, 0, 64).status, DtoStatus::Success);
            let received = dto(other);
            assert_eq!((received.cookie, received.status), (9, DtoStatus::Success));
        },
    );
}
