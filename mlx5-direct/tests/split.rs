//! Posting on one thread while another polls and returns slots.

mod common;

use std::{sync::mpsc, thread};

use common::{CqDevice, Device, Entry, Rng};
use mlx5_direct::{Cq, CqLayout, DataSeg, Srq, SrqLayout, WqeIndex, split::ReturnError};

#[test]
fn the_polling_thread_returns_every_slot() {
    const TOTAL: u64 = 300_000;
    let (layout, mem) = SrqLayout::on_heap(128, 32).unwrap();
    let (mut poster, mut returner) = Srq::new(layout, 127).unwrap().split().unwrap();

    // The poller completes out of order, within a window, and checks each cookie.
    let (to_poller, arrived) = mpsc::channel::<(u16, u64)>();
    let poller = thread::spawn(move || {
        let mut rng = Rng(5);
        let mut held: Vec<(u16, u64)> = vec![];
        let mut sum = 0u64;
        for arrival in arrived {
            held.push(arrival);
            if held.len() > 20 {
                let (slot, cookie) = held.swap_remove(rng.below(21) as usize);
                assert_eq!(returner.complete(WqeIndex(slot)), Ok(cookie));
                sum += cookie;
            }
        }
        for (slot, cookie) in held {
            assert_eq!(returner.complete(WqeIndex(slot)), Ok(cookie));
            sum += cookie;
        }
        sum
    });

    // The device takes posted receives and passes slot and address (equal to the cookie) to the
    // poller.
    let mut device = Device::new(mem, 128, 32);
    let mut posted = 0;
    while posted < TOTAL {
        poster.reclaim();
        let wanted = (TOTAL - posted).min(32);
        posted += u64::from(poster.post_batch((posted..posted + wanted).map(|n| (DataSeg::new(n, 1, 1), n))));
        while let Some(wqe) = device.take() {
            device.done(wqe.slot);
            to_poller.send((wqe.slot, wqe.segs[0].0)).unwrap();
        }
    }
    drop(to_poller);
    assert_eq!(poller.join().unwrap(), TOTAL * (TOTAL - 1) / 2);
    poster.reclaim();
    assert_eq!((poster.posted(), poster.free(), poster.refused()), (0, 127, 0));
    poster.check();
}

#[test]
fn the_poster_refuses_a_slot_returned_twice() {
    let (layout, _mem) = SrqLayout::on_heap(4, 32).unwrap();
    let (mut poster, mut returner) = Srq::new(layout, 3).unwrap().split().unwrap();
    let slot = poster.post_one(DataSeg::new(1, 1, 1), 77).unwrap();
    assert_eq!(returner.complete(slot), Ok(77));
    assert_eq!(returner.complete(slot), Ok(77), "the poller cannot know");
    assert_eq!(returner.complete(WqeIndex(4)), Err(ReturnError::OutsideRing(WqeIndex(4))));
    assert_eq!((poster.reclaim(), poster.refused(), poster.free()), (1, 1, 3));
    for _ in 0..4 {
        returner.complete(slot).unwrap();
    }
    assert_eq!(returner.complete(slot), Err(ReturnError::TooMany(slot)));
    assert_eq!((poster.reclaim(), poster.refused(), poster.free()), (0, 5, 3));
}

#[test]
fn a_polled_queue_can_move_to_another_thread() {
    let (layout, mem) = CqLayout::on_heap(8, 64).unwrap();
    let mut cq = Cq::new(layout);
    CqDevice::new(mem, 8, 64).push(Entry { opcode: 2, qpn: 6, ..Entry::default() });
    let got = thread::spawn(move || cq.poll().unwrap().unwrap().qpn()).join().unwrap();
    assert_eq!(got, 6);
}
