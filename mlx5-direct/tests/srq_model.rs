//! Random sessions against a model of the device. Receives are posted, completed, failed and
//! flushed in any order: no slot is lost, duplicated or reused early, and no WQE changes once the
//! record covers it.

mod common;

use common::{Op, Rng, Session};
use doorbell_sys::{ibv_recv_wr, ibv_sge};
use mlx5_direct::{BatchError, DataSeg, Full, LayoutError, PostError, RecvWrs, Srq, SrqLayout, WqeIndex};
use proptest::prelude::*;

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        3 => any::<u8>().prop_map(Op::Post),
        2 => (0u16..100).prop_map(Op::Batch),
        6 => (0u8..6).prop_map(Op::Arrive),
        4 => any::<u16>().prop_map(Op::Finish),
        1 => any::<u16>().prop_map(Op::Fail),
        1 => (0u8..6).prop_map(Op::Destroy),
        3 => (0u16..50).prop_map(Op::Poll),
        1 => any::<u16>().prop_map(Op::Depth),
        1 => any::<u16>().prop_map(Op::Bogus),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn any_order_of_operations_keeps_every_slot(
        log_slots in 1u32..=9,
        log_stride in 5u32..=7,
        depth in any::<u32>(),
        ops in prop::collection::vec(op(), 1..300),
    ) {
        let slots = 1 << log_slots;
        let mut session = Session::new(slots, 1 << log_stride, depth % (slots - 1) + 1);
        for op in &ops {
            session.apply(op);
            session.check();
        }
        session.wind_down();
    }
}

#[test]
fn every_ring_size_survives_random_completion_order() {
    for log_slots in 1..=15 {
        let slots = 1u32 << log_slots;
        let mut rng = Rng(0x9e37_79b9_7f4a_7c15 ^ u64::from(slots));
        let mut session = Session::new(slots, 32, slots - 1);
        for step in 0..4_000 {
            let op = match rng.below(8) {
                0 | 1 => Op::Batch(rng.below(u64::from(slots).min(400) + 1) as u16),
                2..=4 => Op::Arrive(rng.below(5) as u8),
                5 => Op::Finish(rng.next() as u16),
                6 => Op::Poll(rng.below(64) as u16),
                _ => Op::Fail(rng.next() as u16),
            };
            session.apply(&op);
            if step % (slots as usize / 64 + 1) == 0 {
                session.check();
            }
        }
        session.wind_down();
    }
}

#[test]
fn the_record_wraps_past_65535_without_losing_count() {
    for (slots, depth) in [(2, 1), (4, 2), (64, 63), (256, 200), (1024, 1023)] {
        let mut rng = Rng(7 + u64::from(slots));
        let mut session = Session::new(slots, 32, depth);
        while session.total_posted < 150_000 {
            session.apply(&Op::Batch(rng.below(70) as u16 + 1));
            for _ in 0..rng.below(70) + 1 {
                session.apply(&Op::Arrive(rng.below(3) as u8));
            }
            for _ in 0..rng.below(70) + 1 {
                session.apply(&Op::Finish(rng.next() as u16));
            }
            session.apply(&Op::Poll(rng.below(90) as u16));
        }
        session.check();
        session.wind_down();
    }
}

/// As long as completions come in order, the device walks the ring slot by slot, lap after lap.
#[test]
fn in_order_traffic_keeps_ring_order() {
    let (layout, mem) = SrqLayout::on_heap(256, 32).unwrap();
    let mut device = common::Device::new(mem, 256, 32);
    let mut srq = Srq::new(layout, 255).unwrap();
    for n in 0..100_000u64 {
        srq.post_one(DataSeg::new(n, 1, 1), n).unwrap();
        let wqe = device.take().unwrap();
        assert_eq!(u64::from(wqe.slot), n % 256);
        assert_eq!(u64::from(wqe.next), (n + 1) % 256);
        device.done(wqe.slot);
        srq.complete(WqeIndex(wqe.slot)).unwrap();
    }
}

/// A slot that comes back right behind the reserved slots joins them: posting it again needs no
/// search.
#[test]
fn slots_returned_in_order_join_those_to_be_posted_next() {
    let (layout, _device) = SrqLayout::on_heap(256, 32).unwrap();
    let mut srq = Srq::new(layout, 200).unwrap();
    for n in 0..120 {
        srq.post_one(DataSeg::new(n, 1, 1), n).unwrap();
    }
    // The next one is behind the others, then come those that are returned.
    srq.post_batch((120..200).map(|n| (DataSeg::new(n, 1, 1), n)));
    for slot in 0..50 {
        assert_eq!(srq.complete(WqeIndex(slot)), Ok(slot.into()));
    }
    srq.post_one(DataSeg::new(0, 1, 1), 0).unwrap();
    let reserved = *srq.next_slots().end();
    for slot in 50..60 {
        assert_eq!(srq.complete(WqeIndex(slot)), Ok(slot.into()));
    }
    assert_eq!((reserved, srq.next_slots()), (49, 0..=59));
    srq.check();
}

/// A slow peer holds one slot: posting skips this slot and otherwise stays in ring order.
#[test]
fn a_slot_held_for_long_is_skipped() {
    let (layout, mem) = SrqLayout::on_heap(128, 32).unwrap();
    let mut device = common::Device::new(mem, 128, 32);
    let mut srq = Srq::new(layout, 127).unwrap();
    assert_eq!(srq.post_batch((0..127).map(|n| (DataSeg::new(n, 1, 1), n))), 127);
    let order: Vec<u16> = (0..127).map(|_| device.take().unwrap().slot).collect();
    assert_eq!(order, (0..127).collect::<Vec<_>>());
    for slot in (0..127).filter(|s| *s != 70) {
        device.done(slot);
        srq.complete(WqeIndex(slot)).unwrap();
    }
    for lap in 0..3 {
        assert_eq!(srq.post_batch((0..126).map(|n| (DataSeg::new(n, 1, 1), n))), 126);
        let order: Vec<u16> = (0..126).map(|_| device.take().unwrap().slot).collect();
        for pair in order.windows(2) {
            let step = if pair[0] == 69 { 2 } else { 1 };
            assert_eq!((pair[0] + step) % 128, pair[1], "lap {lap}");
        }
        for slot in order {
            device.done(slot);
            srq.complete(WqeIndex(slot)).unwrap();
        }
    }
    device.done(70);
    assert_eq!(srq.complete(WqeIndex(70)), Ok(70));
    assert_eq!(srq.posted(), 0);
}

/// Slots that come back in order right behind the run are distinguished from slots that came back
/// before.
#[test]
fn a_slot_returned_twice_is_refused_wherever_it_is() {
    let (layout, _mem) = SrqLayout::on_heap(128, 32).unwrap();
    let mut srq = Srq::new(layout, 127).unwrap();
    let one = |n: u64| (DataSeg::new(n, 1, 1), n);
    assert_eq!(srq.post_batch((0..127).map(one)), 127);
    assert_eq!(srq.complete(WqeIndex(0)), Ok(0));
    assert_eq!(srq.post_batch([one(127)]), 1);
    for (slot, cookie) in
        [(1, Some(1)), (3, Some(3)), (5, Some(5)), (2, Some(2)), (3, None), (4, Some(4)), (5, None)]
    {
        assert_eq!(srq.complete(WqeIndex(slot)).ok(), cookie, "slot {slot}");
        srq.check();
    }
    for slot in [0, 1, 2, 128, 4000] {
        assert!(srq.complete(WqeIndex(slot)).is_err(), "slot {slot}");
    }
    assert_eq!((srq.posted(), srq.post_batch((200..300).map(one))), (122, 5));
}

#[test]
fn full_srq_is_refused_and_record_untouched() {
    let (layout, mem) = SrqLayout::on_heap(8, 32).unwrap();
    let mut srq = Srq::new(layout, 3).unwrap();
    for n in 0..3 {
        srq.post_one(DataSeg::new(n, 1, 1), n).unwrap();
    }
    assert_eq!(srq.post_one(DataSeg::new(9, 1, 1), 9), Err(Full));
    assert_eq!(srq.post(&[DataSeg::new(9, 1, 1)], 9), Err(PostError::Full));
    assert_eq!(srq.post_batch([(DataSeg::new(9, 1, 1), 9)]), 0);
    let mem = common::seen_by_device(mem);
    assert_eq!(mem.load_be32(mem.dbrec_offset()), 3);
    assert_eq!(srq.in_use().collect::<Vec<_>>(), (0..3).map(|n| (WqeIndex(n as u16), n)).collect::<Vec<_>>());
}

#[test]
fn a_limited_run_stops_and_other_posts_continue() {
    let (layout, _device) = SrqLayout::on_heap(64, 32).unwrap();
    let mut srq = Srq::new(layout, 40).unwrap();
    let seg = DataSeg::new(0x1000, 64, 7);
    assert_eq!(srq.post_one_fast(seg, 0), None, "nobody has searched yet");
    srq.post_one(seg, 0).unwrap();
    assert_eq!(srq.next_slots(), 1..=40);
    assert_eq!(srq.limit_run(3), 3);
    for n in 1..=3 {
        assert_eq!(srq.post_one_fast(seg, n), Some(WqeIndex(n as u16)));
    }
    assert_eq!((srq.post_one_fast(seg, 4), srq.plain_run()), (None, 0));
    assert_eq!(srq.post_list_fast(&[seg], |seg| Some(*seg), 4), None, "lists have the same limit");
    assert_eq!(srq.post_one(seg, 4), Ok(WqeIndex(4)));
    assert_eq!(srq.limit_run(100), 35, "no more than the run has");
    assert_eq!((srq.count(), srq.posted(), srq.limit_run(0)), (5, 5, 0));
    assert_eq!(srq.post_one_fast(seg, 5), None);
    srq.check();
}

#[test]
fn depth_grows_over_posted_receives_up_to_the_ring() {
    let (layout, mem) = SrqLayout::on_heap(64, 64).unwrap();
    let mut device = common::Device::new(mem, 64, 64);
    let mut srq = Srq::new(layout, 4).unwrap();
    assert_eq!(srq.post_batch((0..9).map(|n| (DataSeg::new(n, 1, 1), n))), 4);
    device.look();
    srq.set_depth(63).unwrap();
    assert_eq!(srq.post_batch((4..99).map(|n| (DataSeg::new(n, 1, 1), n))), 59);
    assert_eq!(device.look().len(), 63);
    for n in 0..63 {
        assert_eq!(device.take().unwrap().segs, [(n, 1, 1)]);
    }
    assert!(srq.set_depth(62).is_err(), "below what is in use");
    assert!(srq.set_depth(64).is_err(), "beyond the ring");
}

#[test]
fn more_segments_than_fit_are_refused_and_fewer_are_terminated() {
    let (layout, mem) = SrqLayout::on_heap(8, 64).unwrap();
    let mut device = common::Device::new(mem, 8, 64);
    let mut srq = Srq::new(layout, 7).unwrap();
    let seg = |n| DataSeg::new(n, 10, 20);
    assert_eq!(srq.post(&[seg(1), seg(2), seg(3), seg(4)], 0), Err(PostError::TooManySegments));
    assert_eq!(srq.posted(), 0);
    for used in [3, 0, 2, 1] {
        let segs: Vec<_> = (0..used).map(seg).collect();
        srq.post(&segs, used).unwrap();
        assert_eq!(device.take().unwrap().segs, (0..used).map(|n| (n, 10, 20)).collect::<Vec<_>>());
    }
}

#[test]
fn a_list_in_the_run_is_posted_whole_or_not_at_all() {
    let (layout, mem) = SrqLayout::on_heap(16, 64).unwrap();
    let mut device = common::Device::new(mem, 16, 64);
    let mut srq = Srq::new(layout, 10).unwrap();
    let one = DataSeg::new(9, 10, 20);
    let encode = |&n: &u64| (n < 100).then(|| DataSeg::new(n, 10, 20));
    assert_eq!(srq.post_list_fast(&[1, 2], encode, 0), None, "nobody has searched yet");
    srq.post_one(one, 0).unwrap();
    device.take().unwrap();
    for refused in [&[1, 2, 100][..], &[100], &[1, 2, 3, 4]] {
        assert_eq!(srq.post_list_fast(refused, encode, 1), None);
        assert_eq!((srq.count(), device.record()), (1, 1));
    }
    srq.post_one(one, 1).unwrap();
    assert_eq!(device.take().unwrap().segs, [(9, 10, 20)], "nothing is left of the refused list");
    for (n, list) in (2..).zip([&[1, 2, 3][..], &[1, 2], &[], &[1], &[3, 4]]) {
        let slot = srq.post_list_fast(list, encode, n).unwrap();
        assert_eq!((slot, srq.cookie(slot)), (WqeIndex(n as u16), Ok(n)));
        let seen = list.iter().map(|&addr| (addr, 10, 20)).collect::<Vec<_>>();
        assert_eq!(device.take().unwrap().segs, seen);
    }
    // The last slots of the run: a link follows the tail, which a post in the run does not write.
    while srq.post_list_fast(&[5, 6], encode, 0).is_some() {}
    assert_eq!((srq.next_slots(), srq.posted()), (10..=10, 10));
    srq.check();
}

#[test]
fn a_list_keeps_the_limit_of_the_run() {
    let (layout, _device) = SrqLayout::on_heap(64, 64).unwrap();
    let mut srq = Srq::new(layout, 40).unwrap();
    let seg = DataSeg::new(9, 10, 20);
    srq.post_one(seg, 0).unwrap();
    assert_eq!(srq.limit_run(3), 3);
    // The first list changes the layout of all slots.
    for n in 1..=3 {
        assert_eq!(srq.post_list_fast(&[seg; 2], |seg| Some(*seg), n), Some(WqeIndex(n as u16)));
    }
    assert_eq!(srq.post_list_fast(&[seg; 2], |seg| Some(*seg), 4), None);
    assert_eq!((srq.limit_run(1), srq.count()), (0, 4), "one segment needs a terminator now");
    assert!(srq.post_list_fast(&[seg; 2], |seg| Some(*seg), 4).is_some());
    assert!(srq.post_list_fast(&[seg; 2], |seg| Some(*seg), 5).is_none());
    srq.check();
}

/// The error gives the index of the request that is verbs' `bad_wr`.
#[test]
#[expect(unsafe_code, reason = "a chain of work requests is made of pointers")]
fn a_chain_is_posted_up_to_the_first_unfit_request() {
    let (layout, mem) = SrqLayout::on_heap(16, 64).unwrap();
    let mut device = common::Device::new(mem, 16, 64);
    let mut srq = Srq::new(layout, 6).unwrap();
    // One work request for each number, with so many segments; cookies count from 0.
    let mut post = |srq: &mut Srq, lens: &[usize]| {
        let mut sges: Vec<Vec<ibv_sge>> = lens
            .iter()
            .map(|len| (0..*len as u64).map(|n| ibv_sge { addr: n, length: 10, lkey: 20 }).collect())
            .collect();
        // SAFETY: all zeros is a request without segments, and the last of its chain.
        let empty = || unsafe { std::mem::zeroed::<ibv_recv_wr>() };
        let mut chain: Vec<_> = lens.iter().map(|_| empty()).collect();
        let mut next = std::ptr::null_mut();
        for (n, wr) in chain.iter_mut().enumerate().rev() {
            (wr.wr_id, wr.num_sge, wr.next) = (n as u64, lens[n] as i32, next);
            if lens[n] > 0 {
                wr.sg_list = sges[n].as_mut_ptr();
            }
            next = wr;
        }
        // SAFETY: the requests and their segments outlive the call.
        let outcome = srq.post_recv_wrs(unsafe { RecvWrs::new(next) });
        let posted = outcome.unwrap_or_else(|e| e.posted);
        for (n, len) in lens.iter().enumerate().take(posted as usize) {
            let wqe = device.take().expect("a posted request");
            assert_eq!(wqe.segs, (0..*len as u64).map(|n| (n, 10, 20)).collect::<Vec<_>>());
            device.done(wqe.slot);
            assert_eq!(srq.complete(WqeIndex(wqe.slot)), Ok(n as u64));
        }
        assert_eq!(device.available(), 0);
        outcome
    };
    let cut = |posted, error| Err(BatchError { posted, error });
    assert_eq!(post(&mut srq, &[]), Ok(0));
    assert_eq!(post(&mut srq, &[1, 3, 0, 2]), Ok(4));
    assert_eq!(post(&mut srq, &[2, 4, 1]), cut(1, PostError::TooManySegments));
    assert_eq!(post(&mut srq, &[1; 6]), Ok(6), "as many as there is room for");
    assert_eq!(post(&mut srq, &[1; 7]), cut(6, PostError::Full));
    assert_eq!((srq.posted(), srq.free()), (0, 6));
}

#[test]
fn address_only_posts_keep_length_and_lkey() {
    for stride in [32, 64] {
        let (layout, mem) = SrqLayout::on_heap(16, stride).unwrap();
        let mut device = common::Device::new(mem, 16, stride);
        let mut srq = Srq::new(layout, 10).unwrap().address_only(2048, 0x77).unwrap();
        for n in 0..100u64 {
            srq.post_one(0x1000 * n, n).unwrap();
            assert_eq!(srq.post_batch([(0x1000 * n + 8, n), (0x1000 * n + 16, n)]), 2);
            for offset in [0, 8, 16] {
                let wqe = device.take().unwrap();
                assert_eq!(wqe.segs, [(0x1000 * n + offset, 2048, 0x77)]);
                device.done(wqe.slot);
                assert_eq!(srq.complete(WqeIndex(wqe.slot)), Ok(n));
            }
        }
    }
}

#[test]
fn a_bound_slot_returns_its_buffer_in_any_order() {
    let (layout, mem) = SrqLayout::on_heap(512, 32).unwrap();
    let mut device = common::Device::new(mem, 512, 32);
    let own =
        |s: WqeIndex| (DataSeg::new(0x10_0000 + 4096 * u64::from(s.0), 4096, 5), u64::from(s.0) | 1 << 40);
    let mut srq = Srq::new(layout, 300).unwrap().bind(own).unwrap();
    let mut rng = Rng(99);
    let mut held = vec![];
    let mut total = 0u64;
    while total < 200_000 {
        let before = srq.free();
        let asked = rng.below(200) as u32;
        let posted = srq.repost(asked);
        assert_eq!(posted, asked.min(before), "a repost fills what is free");
        total += u64::from(posted);
        device.look();
        for _ in 0..rng.below(200) {
            let Some(wqe) = device.take() else { break };
            assert_eq!(wqe.segs, [(0x10_0000 + 4096 * u64::from(wqe.slot), 4096, 5)]);
            held.push(wqe.slot);
        }
        for _ in 0..rng.below(200).min(held.len() as u64) {
            let slot = held.swap_remove(rng.below(held.len() as u64) as usize);
            device.done(slot);
            assert_eq!(srq.complete(WqeIndex(slot)), Ok(u64::from(slot) | 1 << 40));
        }
        srq.check();
    }
}

/// Buffers come from the caller's iterator, which may panic. Buffers that it had returned may be
/// lost; slots and their order are not.
#[test]
fn a_buffer_source_that_panics_loses_no_slot() {
    for scattered in [false, true] {
        for at in 0..40u64 {
            let (layout, mem) = SrqLayout::on_heap(128, 32).unwrap();
            let mut device = common::Device::new(mem, 128, 32);
            let mut srq = Srq::new(layout, 127).unwrap();
            let one = |n: u64| (DataSeg::new(n, 1, 1), n);
            if scattered {
                // Every third slot stays with the device; the others are free again.
                assert_eq!(srq.post_slice(&(0..127).map(one).collect::<Vec<_>>()), 127);
                for n in 0..127u16 {
                    assert_eq!(device.take().unwrap().slot, n);
                    if n % 3 != 0 {
                        device.done(n);
                        srq.complete(WqeIndex(n)).unwrap();
                    }
                }
            }
            let before = srq.posted();
            let source = (0..60).map(|n| if n == at { panic!("the source gives up") } else { one(n) });
            let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| srq.post_batch(source)));
            assert!(result.is_err());
            srq.check();
            assert!((before..=before + at as u32).contains(&srq.posted()));
            let free = srq.free();
            assert_eq!(srq.post_batch((100..300).map(one)), free, "every free slot can still be posted");
            srq.check();
            assert_eq!(device.look().len() as u32, 127 - before, "and the device finds all of them");
        }
    }
}

#[test]
fn a_mode_cannot_be_chosen_while_something_is_posted() {
    let (layout, _mem) = SrqLayout::on_heap(8, 32).unwrap();
    let mut srq = Srq::new(layout, 3).unwrap();
    srq.post_one(DataSeg::new(1, 1, 1), 1).unwrap();
    assert!(srq.address_only(1, 1).is_err());
}

#[test]
fn rings_that_the_device_cannot_have_are_refused() {
    assert_eq!(SrqLayout::on_heap(3, 32).unwrap_err(), LayoutError::WqeCount { wqe_count: 3 });
    assert_eq!(SrqLayout::on_heap(1, 32).unwrap_err(), LayoutError::WqeCount { wqe_count: 1 });
    assert_eq!(SrqLayout::on_heap(65_536, 32).unwrap_err(), LayoutError::WqeCount { wqe_count: 65_536 });
    assert_eq!(SrqLayout::on_heap(8, 16).unwrap_err(), LayoutError::WqeStride { stride_bytes: 16 });
    assert_eq!(SrqLayout::on_heap(8, 48).unwrap_err(), LayoutError::WqeStride { stride_bytes: 48 });
    for depth in [0, 8] {
        assert!(Srq::new(SrqLayout::on_heap(8, 32).unwrap().0, depth).is_err());
    }
}
