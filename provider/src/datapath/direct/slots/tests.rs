//! Tests of the state of the slots.

use super::*;
use std::collections::HashSet;
use std::sync::Arc;

fn slots(n: usize) -> RingSlots {
    let cookies: Box<[_]> = (0..n as u64).map(|cookie| AtomicU64::new(cookie + 100)).collect();
    RingSlots::new(Cookies::from(cookies)).unwrap()
}

#[test]
fn a_slot_completes_once_and_comes_back_once() {
    let slots = slots(128);
    slots.mark_pool(WqeIndex(70), 9);
    slots.release(70);
    assert_eq!(slots.take_returned(0, 512), None);
    assert_eq!(slots.complete(70), Some((170, 9)));
    assert_eq!(slots.complete(70), None);
    assert_eq!(slots.counts(), Counts { released: 0, unreaped: 1 });
    slots.release(70);
    slots.release(70);
    assert_eq!(slots.complete(70), None);
    assert_eq!(slots.reap(70), None);
    assert_eq!(slots.counts(), Counts { released: 1, unreaped: 0 });
    assert_eq!(slots.take_returned(0, 512), Some((1, 1 << 6)));
    assert_eq!(slots.take_returned(0, 512), None);
}

#[test]
fn reaping_at_once_is_completing_and_releasing() {
    let slots = slots(128);
    slots.mark_pool(WqeIndex(3), 4);
    assert_eq!(slots.reap(3), Some((103, 4)));
    assert_eq!((slots.reap(3), slots.complete(3), slots.reap(128)), (None, None, None));
    assert_eq!(slots.counts(), Counts { released: 1, unreaped: 0 });
    assert_eq!(slots.take_returned(0, 512), Some((0, 1 << 3)));
}

#[test]
fn a_slot_comes_back_once_by_either_map() {
    let slots = slots(192);
    let mut current = Current::NONE;
    assert!(slots.claim() && !slots.claim());
    slots.mark_pool(WqeIndex(70), 4);
    assert_eq!(slots.reap_alone(&mut current, 70), Some((170, 4)));
    assert_eq!((slots.reap_alone(&mut current, 70), slots.reap(70), slots.complete(70)), (None, None, None));
    assert_eq!(slots.reap(71), Some((171, 0)));
    assert_eq!((slots.reap_alone(&mut current, 71), slots.reap_alone(&mut current, 192)), (None, None));
    assert_eq!(slots.counts(), Counts { released: 2, unreaped: 0 });
    assert_eq!(slots.take_returned(0, 3), Some((1, 0b11 << 6)));
    assert_eq!(slots.take_returned(0, 3), None);
    // Posted again.
    assert_eq!(slots.reap_alone(&mut current, 70), Some((170, 0)));
    assert_eq!(slots.take_returned(0, 3), Some((1, 1 << 6)));
    slots.unclaim();
    assert!(slots.claim());
}

#[test]
fn slots_of_words_that_the_cq_has_left_are_found() {
    let slots = slots(32_768);
    let mut current = Current::NONE;
    for slot in [5_u32, 70, 32_000, 8_000] {
        assert!(slots.reap_alone(&mut current, slot).is_some());
    }
    let mut taken: Vec<_> = std::iter::from_fn(|| slots.take_returned(300, 512)).map(|t| t.0).collect();
    taken.sort_unstable();
    assert_eq!(taken, [0, 1, 125, 500]);
    assert_eq!(slots.released(), 4);
}

#[test]
fn ready_slots_have_neither_a_mark_nor_returned() {
    let slots = slots(64);
    let mut current = Current::NONE;
    assert_eq!(slots.reap_ready(&mut current, 5), None, "the word was not seen yet");
    slots.mark_pool(WqeIndex(3), 4);
    assert!(slots.complete(4).is_some());
    assert_eq!(slots.reap(6), Some((106, 0)));
    assert_eq!(slots.reap_alone(&mut current, 7), Some((107, 0)));
    for not_ready in [3, 4, 6, 7] {
        assert_eq!(slots.reap_ready(&mut current, not_ready), None);
    }
    assert_eq!(slots.reap_ready(&mut current, 5), Some(105));
    assert_eq!(slots.reap_ready(&mut current, 5), None);
    assert_eq!((slots.reap_in_word(&mut current, 5), slots.reap_in_word(&mut current, 4)), (None, None));
    assert_eq!(slots.reap_in_word(&mut current, 3), Some((103, 4)));
    // It has returned, and has its bit still.
    assert_eq!((slots.reap_ready(&mut current, 3), slots.reap_in_word(&mut current, 3)), (None, None));
    slots.release(4);
    assert_eq!(slots.released(), 5);
    assert_eq!(slots.take_returned(0, 1), Some((0, 0b1111_1000)));
    // Posted again. They are ready once their word was seen again. A slot of a pool keeps its
    // bit, which costs a look at its mark.
    assert_eq!(slots.reap_ready(&mut current, 4), None);
    assert_eq!(slots.reap_in_word(&mut current, 4), Some((104, 0)));
    assert_eq!((slots.reap_ready(&mut current, 4), slots.reap_ready(&mut current, 5)), (None, Some(105)));
    assert_eq!(slots.reap_ready(&mut current, 3), None);
    assert_eq!(slots.reap_in_word(&mut current, 3), Some((103, 0)));
    assert_eq!(slots.take_returned(0, 1), Some((0, 0b11_1000)));
}

/// The words of a ring of fewer slots than a word has.
#[test]
fn slots_beyond_a_short_ring_are_not_ready() {
    let slots = slots(16);
    let mut current = Current::NONE;
    assert_eq!(slots.reap_alone(&mut current, 3), Some((103, 0)));
    assert_eq!((slots.reap_ready(&mut current, 16), slots.reap_alone(&mut current, 16)), (None, None));
    assert_eq!(slots.reap_ready(&mut current, 15), Some(115));
    assert_eq!((slots.released(), slots.take_returned(0, 1)), (2, Some((0, 1 << 3 | 1 << 15))));
}

/// A CQ that gets the map from another one, whose word stays the current one.
#[test]
fn the_map_passes_to_another_cq() {
    let slots = slots(192);
    let (mut former, mut next) = (Current::NONE, Current::NONE);
    assert!(slots.claim());
    assert_eq!(slots.reap_alone(&mut former, 70), Some((170, 0)));
    slots.unclaim();
    assert!(slots.claim());
    assert_eq!(slots.reap_ready(&mut next, 71), None);
    assert_eq!(slots.reap_alone(&mut next, 71), Some((171, 0)));
    assert_eq!((slots.reap_ready(&mut next, 70), slots.reap_ready(&mut next, 72)), (None, Some(172)));
    assert_eq!(slots.take_returned(0, 3), Some((1, 0b111 << 6)));
    assert_eq!(slots.take_returned(0, 3), None);
}

#[test]
fn slots_that_no_ring_has_change_nothing() {
    let slots = slots(64);
    let mut current = Current::NONE;
    assert_eq!(slots.reap_alone(&mut current, 2), Some((102, 0)));
    slots.mark_pool(WqeIndex(64), 1);
    assert_eq!((slots.complete(64), slots.reap(64)), (None, None));
    slots.release(u32::MAX);
    assert_eq!((slots.reap_alone(&mut current, 64), slots.reap_alone(&mut current, u32::MAX)), (None, None));
    assert_eq!(slots.counts(), Counts { released: 1, unreaped: 0 });
    // The current word is still the first.
    assert_eq!(slots.reap_in_word(&mut current, 3), Some((103, 0)));
}

#[test]
fn returned_slots_come_in_ring_order() {
    let slots = slots(32_768);
    for slot in [5_u16, 70, 8_000, 32_000] {
        slots.complete(slot.into()).unwrap();
        slots.release(slot.into());
    }
    let taken: Vec<_> = std::iter::from_fn(|| slots.take_returned(7_990 / BITS, 512)).map(|t| t.0).collect();
    assert_eq!(taken, [125, 500, 0, 1]);
}

/// Words of the group in which the search starts come before the other groups if they are
/// behind its start, and otherwise last.
#[test]
fn a_search_goes_round_the_ring_once() {
    for start in [0, 63, 64, 90, 127, 128, 511] {
        let slots = slots(32_768);
        let words = [0, 1, 62, 63, 64, 65, 67, 80, 100, 125, 127, 128, 300, 510, 511];
        for word in words {
            assert!(slots.reap(word * BITS + 5).is_some());
        }
        let mut expected = words.to_vec();
        expected.rotate_left(words.iter().filter(|word| **word < start).count());
        let taken: Vec<_> = std::iter::from_fn(|| slots.take_returned(start, 512)).collect();
        assert!(taken.iter().all(|(_, bits)| *bits == 1 << 5));
        assert_eq!(taken.iter().map(|t| t.0).collect::<Vec<_>>(), expected, "from {start} on");
    }
}

/// The word behind the last of the ring is the first. The CQ of the map writes to that one, so
/// no bit of a group leads to it.
#[test]
fn the_first_word_comes_behind_the_last() {
    let slots = slots(192);
    let mut current = Current::NONE;
    assert_eq!((slots.reap(64), slots.reap_alone(&mut current, 0)), (Some((164, 0)), Some((100, 0))));
    assert_eq!(slots.take_returned(2, 3), Some((0, 1)));
    assert_eq!(slots.take_returned(2, 3), Some((1, 1)));
    // A place beyond the ring is its first word.
    assert_eq!(
        (slots.reap_alone(&mut current, 65), slots.reap_alone(&mut current, 1)),
        (Some((165, 0)), Some((101, 0)))
    );
    assert_eq!(slots.take_returned(3, 3), Some((0, 1 << 1)));
    assert_eq!(slots.take_returned(3, 3), Some((1, 1 << 1)));
    assert_eq!(slots.take_returned(0, 3), None);
    // Elsewhere, the word behind the first one of the search is the next.
    assert_eq!((slots.reap_alone(&mut current, 66), slots.reap(130)), (Some((166, 0)), Some((230, 0))));
    assert_eq!(slots.take_returned(0, 3), Some((1, 1 << 2)));
    assert_eq!(slots.take_returned(0, 3), Some((2, 1 << 2)));
}

#[test]
fn the_released_count_wraps_without_touching_the_other() {
    let slots = slots(64);
    slots.counts.store(u64::from(u32::MAX) << 32, Relaxed);
    slots.complete(1).unwrap();
    slots.release(1);
    assert_eq!(slots.counts(), Counts { released: 0, unreaped: 0 });
}

/// One poster, and several reapers that complete slots in any order: each slot returns exactly
/// once, and no slot is lost.
#[test]
fn nothing_is_lost_or_doubled_between_threads() {
    const RING: u16 = 256;
    const EACH: usize = 200_000;
    const REAPERS: usize = 2;
    let slots = slots(usize::from(RING));
    let (post, posted) = crossbeam_queue_pair(usize::from(RING));
    std::thread::scope(|scope| {
        for n in 0..REAPERS {
            let (slots, posted) = (&slots, &posted);
            scope.spawn(move || {
                let mut current = Current::NONE;
                while let Some(slot) = next(posted) {
                    if slot % 2 == 0 {
                        let slot = u32::from(slot);
                        let reaped = if n > 0 {
                            slots.reap(slot)
                        } else if let Some(cookie) = slots.reap_ready(&mut current, slot) {
                            Some((cookie, 0))
                        } else {
                            slots.reap_alone(&mut current, slot)
                        };
                        assert_eq!(reaped, Some((u64::from(slot) + 100, 0)));
                        continue;
                    }
                    assert!(slots.complete(slot.into()).is_some());
                    slots.release(slot.into());
                }
            });
        }
        let mut free: HashSet<u16> = (0..RING).collect();
        let mut order: Vec<u16> = free.iter().copied().collect();
        let mut done = 0;
        while done < EACH || free.len() < usize::from(RING) {
            if done < EACH
                && let Some(slot) = order.pop()
            {
                assert!(free.remove(&slot));
                post.push(Some(slot)).unwrap();
                done += 1;
                continue;
            }
            match slots.take_returned(0, 512) {
                Some((word, bits)) => {
                    for bit in (0..64).filter(|b| bits >> b & 1 == 1) {
                        let slot = (word * 64 + bit) as u16;
                        assert!(free.insert(slot), "slot {slot} came back twice");
                        order.push(slot);
                    }
                }
                None => std::thread::yield_now(),
            }
        }
        (0..REAPERS).for_each(|_| while post.push(None).is_err() {});
    });
    assert_eq!(slots.counts(), Counts { released: EACH as u32, unreaped: 0 });
}

type Queue = crossbeam_queue::ArrayQueue<Option<u16>>;

fn crossbeam_queue_pair(n: usize) -> (Arc<Queue>, Arc<Queue>) {
    let queue = Arc::new(Queue::new(n + 8));
    (queue.clone(), queue)
}

fn next(queue: &Queue) -> Option<u16> {
    loop {
        match queue.pop() {
            Some(message) => return message,
            None => std::thread::yield_now(),
        }
    }
}
