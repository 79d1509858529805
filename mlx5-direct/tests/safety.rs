//! Attacks by code without `unsafe` on the accounts of queues. Whatever the code keeps, forges,
//! forgets, drops early, or panics in: the device finds no request in a ring that was not posted in
//! its place, and no completion releases a request that is still under way. Otherwise a caller that
//! keeps the promises of `from_verbs` would reuse memory which the device still accesses.
//! provider/SOUNDNESS.md has the argument.

mod common;

/// The attacker. The device's side, in `common`, takes `unsafe`.
#[forbid(unsafe_code)]
mod attacks {
    use std::collections::HashSet;
    use std::mem;
    use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

    use mlx5_direct::{
        Completion, Cq, CqLayout, DataSeg, SendError, Sq, SqLayout, Srq, SrqLayout, WqeIndex,
        wr::{AddressVector, Inline, InlineParts, Remote, Wr},
    };

    use crate::common::{CqDevice, Entry, Rng};

    const BLOCKS: u32 = 16;
    const THERE: Remote = Remote { addr: 0x5000, rkey: 9 };

    fn send_queue() -> Sq {
        Sq::new(SqLayout::on_heap(BLOCKS, BLOCKS).unwrap().0)
    }

    /// Memory that belongs to the request with this cookie.
    fn memory_of(cookie: u64) -> DataSeg {
        DataSeg::new(cookie << 16, 64, 7)
    }

    fn read(cookie: u64) -> (Wr<DataSeg>, u64) {
        (Wr::read(THERE, memory_of(cookie)).signalled(), cookie)
    }

    fn post(sq: &mut Sq, cookie: u64) {
        let (wr, cookie) = read(cookie);
        sq.post(wr, cookie).unwrap();
    }

    /// Each request in the ring is the one that was posted with its cookie.
    fn check_requests(sq: &Sq, expected: &[u64]) {
        let found: Vec<_> = sq.outstanding().collect();
        assert_eq!(found.iter().map(|(_, cookie)| *cookie).collect::<Vec<_>>(), expected);
        for (block, cookie) in found {
            let named: Vec<_> = sq.segments(block).map(|seg| seg.addr()).collect();
            assert_eq!(named, [memory_of(cookie).addr()], "the request at block {block}");
        }
    }

    /// Posts and completes requests until each block of the ring has an old request, and the queue
    /// knows the place of the next request.
    fn fill_with_old_requests(sq: &mut Sq) {
        for n in 0..BLOCKS + 1 {
            post(sq, 1000 + u64::from(n));
            assert_eq!(sq.complete(n as u16).unwrap().cookie, 1000 + u64::from(n));
        }
    }

    /// Runs a step that panics on purpose, without the message of a panic.
    fn panics<T>(step: impl FnOnce() -> T) {
        assert!(catch_unwind(AssertUnwindSafe(step)).is_err(), "the step has not panicked");
    }

    /// The items, and then a panic.
    fn then_panic<T>(items: Vec<T>) -> impl Iterator<Item = T> {
        items.into_iter().chain(std::iter::once_with(|| resume_unwind(Box::new(()))))
    }

    #[test]
    fn a_batch_that_panics_hands_no_old_request_to_the_device() {
        for batch in [&[1][..], &[1, 2], &[1, 2, 3]] {
            for fenced in 0..=batch.len() {
                let mut sq = send_queue();
                fill_with_old_requests(&mut sq);
                let mut requests: Vec<_> = batch.iter().map(|cookie| read(*cookie)).collect();
                if let Some((wr, _)) = requests.get_mut(fenced) {
                    *wr = wr.fenced();
                }
                panics(|| sq.post_batch(then_panic(requests)));
                // Requests before the panic count as posted, or were not posted.
                let kept: Vec<_> = sq.outstanding().map(|(_, cookie)| cookie).collect();
                assert_eq!(kept, batch[..kept.len()]);
                post(&mut sq, 50);
                post(&mut sq, 51);
                check_requests(&sq, &[&kept[..], &[50, 51]].concat());
            }
        }
    }

    #[test]
    fn a_forgotten_chain_hands_no_old_request_to_the_device() {
        let mut sq = send_queue();
        fill_with_old_requests(&mut sq);
        post(&mut sq, 1);
        let mut chain = sq.chain();
        let (wr, cookie) = read(2);
        chain.push(wr, cookie).unwrap();
        mem::forget(chain);
        post(&mut sq, 3);
        check_requests(&sq, &[1, 2, 3]);
        mem::forget(sq.chain());
        assert_eq!(sq.post_batch([read(4), read(5)]).unwrap(), 2);
        check_requests(&sq, &[1, 2, 3, 4, 5]);
    }

    #[test]
    fn a_dropped_chain_leaves_nothing_that_completes() {
        let mut sq = send_queue();
        post(&mut sq, 1);
        for _ in 0..3 {
            let mut chain = sq.chain();
            for cookie in 70..75 {
                let (wr, cookie) = read(cookie);
                chain.push(wr, cookie).unwrap();
            }
            drop(chain);
            for block in 1..BLOCKS {
                assert!(sq.complete(block as u16).is_err());
            }
        }
        // In a panic, too.
        panics(|| {
            let mut chain = sq.chain();
            let (wr, cookie) = read(80);
            chain.push(wr, cookie).unwrap();
            resume_unwind(Box::new(()))
        });
        assert!(sq.complete(1).is_err());
        post(&mut sq, 2);
        check_requests(&sq, &[1, 2]);
        assert_eq!((sq.complete(1).unwrap().cookie, sq.posted()), (2, 0));
    }

    #[test]
    fn a_chain_that_is_too_long_posts_what_fits() {
        let mut sq = send_queue();
        fill_with_old_requests(&mut sq);
        let mut chain = sq.chain();
        for n in 0..2 * u64::from(BLOCKS) {
            let (wr, cookie) = read(n);
            let full = n >= u64::from(BLOCKS);
            assert_eq!(chain.push(wr, cookie), if full { Err(SendError::Full) } else { Ok(()) });
        }
        assert_eq!(chain.ring(), BLOCKS);
        check_requests(&sq, &(0..u64::from(BLOCKS)).collect::<Vec<_>>());
    }

    #[test]
    fn a_forged_completion_releases_nothing_that_is_under_way() {
        let (layout, _device) = SqLayout::on_heap(64, 16).unwrap();
        let (mut sq, mut rng) = (Sq::new(layout), Rng(7));
        let segments: Vec<_> = (1..12).map(memory_of).collect();
        for cookie in 0..2000 {
            // Of one to four blocks.
            let most = 1 + rng.below(11) as usize;
            if sq.post(Wr::write(THERE, &segments[..most]).signalled(), cookie) == Err(SendError::Full) {
                let (block, oldest) = sq.outstanding().next().unwrap();
                assert_eq!(sq.complete(block).unwrap().cookie, oldest);
            }
            if cookie % 100 == 99 {
                let starts: HashSet<u16> = sq.outstanding().map(|(block, _)| block % 64).collect();
                let before: Vec<_> = sq.outstanding().collect();
                for number in (0..=u16::MAX).filter(|n| !starts.contains(&(n % 64))) {
                    assert!(sq.complete(number).is_err(), "{number} was taken for a request");
                }
                assert!(before.into_iter().eq(sq.outstanding()));
            }
            if cookie % 500 == 499 {
                sq.reset();
                assert!((0..=u16::MAX).all(|number| sq.complete(number).is_err()));
            }
        }
    }

    #[test]
    fn a_completion_is_good_once() {
        let mut sq = send_queue();
        for round in 0..3 * u64::from(BLOCKS) {
            post(&mut sq, 2 * round);
            post(&mut sq, 2 * round + 1);
            let kept: Vec<_> = sq.outstanding().map(|(block, _)| block).collect();
            assert_eq!(sq.complete(kept[1]).unwrap().requests, 2);
            assert!(kept.iter().all(|block| sq.complete(*block).is_err()));
        }
    }

    #[test]
    fn a_prepared_request_stays_inside_its_blocks() {
        let (layout, _device) = SqLayout::on_heap(64, 16).unwrap();
        let mut sq = Sq::new(layout);
        let bytes = [0x5a; 400];
        for len in 1..260 {
            let Ok(mut prepared) = sq.prepare(Wr::send(Inline(&bytes[..len]))) else { continue };
            assert_eq!(prepared.payload().len(), len);
            for new in [1, len, len + 11, len + 12, 60, 61, 250, 251, 252, 400] {
                let fits = prepared.set_payload(&bytes[..new]).is_ok();
                assert!(!fits || prepared.payload() == &bytes[..new]);
            }
            assert!(prepared.set_payload(&[]).is_err());
            for n in [0, 1, 15, 16, 1 << 60, usize::MAX] {
                assert!(prepared.set_segment(n, memory_of(1)).is_err());
            }
        }
        let mut gather = sq.prepare(Wr::write(THERE, memory_of(1))).unwrap();
        assert!(gather.payload().is_empty() && gather.set_payload(&[1]).is_err());
        for n in [1, 2, 16, usize::MAX - 1, usize::MAX] {
            assert!(gather.set_segment(n, memory_of(1)).is_err());
        }
        assert!(gather.set_segment(0, DataSeg::new(1, 0, 1)).is_err());
        // Too long for another queue.
        let long = sq.prepare(Wr::send(Inline(&bytes[..200]))).unwrap();
        let mut short = send_queue();
        assert_eq!(short.post_prepared(&long.clone(), 1), Err(SendError::TooLong));
        assert_eq!((sq.post_prepared(&long, 1), short.posted()), (Ok(()), 0));
    }

    #[test]
    fn requests_that_are_too_long_write_nothing() {
        let (layout, _device) = SqLayout::on_heap(64, 1).unwrap();
        let mut sq = Sq::new(layout);
        let (bytes, segments) = (vec![1; 5000], vec![memory_of(1); 100]);
        let path = AddressVector::from_words([u64::MAX; 6]);
        for n in 60..100 {
            let wr = Wr::write(THERE, &segments[..n]).to(&path, u32::MAX, u32::MAX);
            assert_eq!(sq.post(wr, 1), Err(SendError::TooLong));
            assert_eq!(sq.prepare(wr).unwrap_err(), SendError::TooLong);
        }
        let parts: Vec<&[u8]> = vec![&bytes; 1000];
        assert_eq!(sq.post(Wr::send(InlineParts(&parts)), 1), Err(SendError::TooLong));
        assert_eq!(sq.post(Wr::send(Inline(&bytes)), 1), Err(SendError::TooLong));
        assert_eq!(sq.chain().push(Wr::send(Inline(&bytes)), 1), Err(SendError::TooLong));
        let refused = sq.post_batch([(Wr::send(Inline(&bytes)), 1)]).unwrap_err();
        assert_eq!((refused.posted, refused.error, sq.posted()), (0, SendError::TooLong, 0));
    }

    fn shared_queue(slots: u32) -> Srq {
        Srq::new(SrqLayout::on_heap(slots, 32).unwrap().0, slots - 1).unwrap()
    }

    fn check_slots<M>(srq: &Srq<M>) {
        srq.check();
        for (slot, cookie) in srq.in_use() {
            let named: Vec<_> = srq.segments(slot).map(|seg| seg.addr()).collect();
            assert_eq!(named, [memory_of(cookie).addr()], "slot {}", slot.0);
        }
    }

    #[test]
    fn batches_of_receives_that_panic_post_no_old_buffer() {
        for n in 0..8 {
            let mut srq = shared_queue(16);
            // Holes in the ring, so that a part of the batch searches for its slots.
            for cookie in 100..115 {
                srq.post_one(memory_of(cookie), cookie).unwrap();
            }
            for slot in [1, 2, 3, 6, 7, 9, 11, 14] {
                srq.complete(WqeIndex(slot)).unwrap();
            }
            let bufs: Vec<_> = (0..n).map(|n| (memory_of(n), n)).collect();
            panics(|| srq.post_batch(then_panic(bufs)));
            check_slots(&srq);
            while srq.post_one(memory_of(60), 60).is_ok() {}
            check_slots(&srq);
            assert_eq!((srq.posted(), srq.free()), (15, 0));
        }
    }

    #[test]
    fn a_forged_slot_returns_no_receive_that_is_posted() {
        let mut srq = shared_queue(32);
        let mut rng = Rng(3);
        for cookie in 0..400 {
            let _full = srq.post_one(memory_of(cookie), cookie);
            let used: HashSet<u16> = srq.in_use().map(|(slot, _)| slot.0).collect();
            for slot in [0, 1, 5, 30, 31, 32, 33, 63, 64, 0x7fff, 0xffff].map(WqeIndex) {
                assert_eq!(srq.cookie(slot).is_ok(), used.contains(&slot.0));
                if !used.contains(&slot.0) {
                    assert!(srq.complete(slot).is_err());
                }
            }
            for word in [1, 2, 0x1_0000, u32::MAX / 64, u32::MAX] {
                assert!(srq.complete_word(word, 1 << rng.below(64)).is_err());
            }
            assert!(srq.complete_word(0, u64::MAX).is_err());
            srq.limit_run(rng.below(40) as u32);
            if let Some(slot) = used.iter().next().filter(|_| rng.below(3) > 0) {
                srq.complete(WqeIndex(*slot)).unwrap();
                assert!(srq.complete(WqeIndex(*slot)).is_err());
            }
            check_slots(&srq);
        }
    }

    #[test]
    fn slots_returned_twice_by_another_thread_post_no_buffer_twice() {
        let (mut poster, mut returner) = shared_queue(16).split().unwrap();
        for cookie in 0..8 {
            poster.post_one(memory_of(cookie), cookie).unwrap();
        }
        let polling = std::thread::spawn(move || {
            assert!(returner.complete(WqeIndex(16)).is_err());
            let returned = (0..40).filter(|_| returner.complete(WqeIndex(3)).is_ok()).count();
            assert!((16..40).contains(&returned));
            returner
        });
        let _returner = polling.join().unwrap();
        assert_eq!(poster.reclaim(), 1);
        assert!(poster.refused() >= 15);
        assert_eq!(poster.posted(), 7);
        check_slots(&poster);
    }

    fn completions(qpns: &[u32]) -> (Cq, CqDevice) {
        let (layout, view) = CqLayout::on_heap(16, 64).unwrap();
        let mut device = CqDevice::new(view, 16, 64);
        for (counter, qpn) in (0..).zip(qpns) {
            device.push(Entry { opcode: 2, qpn: *qpn, counter, bytes: 8, ..Entry::default() });
        }
        (Cq::new(layout), device)
    }

    fn slot_of(completion: Completion) -> u16 {
        completion.slot().unwrap().0
    }

    #[test]
    fn a_completion_is_told_once_even_if_its_receiver_panics() {
        for at in 0..4 {
            let (mut cq, _device) = completions(&[1, 2, 1, 1, 2, 1]);
            let mut told = vec![];
            let mut tell = |completion| {
                told.push(slot_of(completion));
                if told.len() == at + 1 {
                    resume_unwind(Box::new(()))
                }
            };
            panics(|| cq.clean(1, &mut tell));
            while let Some(completion) = cq.poll().unwrap() {
                told.push(slot_of(completion));
            }
            told.sort_unstable();
            assert_eq!(told, [0, 1, 2, 3, 4, 5], "after a panic at {at}");

            let (mut cq, _device) = completions(&[1, 2, 1, 1, 2, 1]);
            let mut told = vec![];
            panics(|| {
                cq.poll_each(9, |completion| {
                    told.push(slot_of(completion));
                    if told.len() == at + 1 {
                        resume_unwind(Box::new(()))
                    }
                })
            });
            cq.poll_each(9, |completion| told.push(slot_of(completion))).unwrap();
            assert_eq!(told, [0, 1, 2, 3, 4, 5], "after a panic at {at}");
        }
    }

    #[test]
    fn a_payload_that_was_kept_is_read_once_and_from_its_own_queue() {
        let (layout, view) = CqLayout::on_heap(16, 128).unwrap();
        let mut device = CqDevice::new(view, 16, 128);
        let mut wide = Cq::new(layout);
        // A payload in the 64 bytes before the fields.
        device.push(Entry { opcode: 2, low_bits: 8, bytes: 64, ..Entry::default() });
        let Completion::RecvScattered(kept) = wide.poll().unwrap().unwrap() else {
            panic!("a payload in the entry")
        };
        let mut into = [0; 4096];
        assert_eq!(wide.copy_scattered(&kept, &mut into), 64);
        assert_eq!(wide.copy_scattered(&kept, &mut into[..3]), 3);
        // A queue with entries of 64 bytes, at the same index.
        let (mut narrow, _device) = completions(&[1]);
        assert!(narrow.copy_scattered(&kept, &mut into) == 0 && narrow.poll().unwrap().is_some());
        assert_eq!(narrow.copy_scattered(&kept, &mut into), 0);
        device.push(Entry { opcode: 2, bytes: 64, ..Entry::default() });
        wide.poll().unwrap().unwrap();
        assert_eq!(wide.copy_scattered(&kept, &mut into), 0);
    }
}
