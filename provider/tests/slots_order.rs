//! Slots between a poster and a reaper (src/datapath/direct/slots.rs, the file itself), explored by
//! loom in every interleaving and every outcome of relaxed accesses that the memory model allows.
//!
//! Without the test harness: the tests inside that file are for the processor's own atomics.

use libtest_mimic::{Arguments, Trial};
use loom::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use loom::thread;
use mlx5_direct::WqeIndex;
use std::collections::TryReserveError;
use std::sync::Arc;

#[allow(
    dead_code,
    unused_imports,
    unreachable_pub,
    reason = "the tests use a part of it, and not its own tests"
)]
#[path = "../src/datapath/direct/slots.rs"]
mod slots;
use slots::{Current, RingSlots};

/// In the provider they are shared with the ring.
type Cookies = Box<[AtomicU64]>;

fn table<T>(n: usize, entry: impl FnMut(usize) -> T) -> Result<Box<[T]>, TryReserveError> {
    Ok((0..n).map(entry).collect())
}

/// Bits of a word of returned slots.
const BITS: u16 = 64;
/// The poster stands at word 0, so that slots of word 2 are found by the search only.
const WORDS: u32 = 3;

fn ring() -> Arc<RingSlots> {
    let cookies = table(usize::from(BITS) * 3, |n| AtomicU64::new(1000 + n as u64)).unwrap();
    Arc::new(RingSlots::new(cookies).unwrap())
}

/// Takes what is back until there is nothing.
fn take_all(slots: &RingSlots, into: &mut Vec<u16>) {
    while let Some((word, bits)) = slots.take_returned(0, WORDS) {
        into.extend((0..BITS).filter(|bit| bits >> bit & 1 == 1).map(|bit| word as u16 * BITS + bit));
    }
}

/// A slot comes back while the poster takes another one of the same word: it is found now or by the
/// next search, and once.
fn slot_that_comes_back_during_a_search_is_found() {
    const FIRST: u16 = 2 * BITS + 3;
    const SECOND: u16 = 2 * BITS + 60;
    loom::model(|| {
        let slots = ring();
        assert!(slots.reap(FIRST.into()).is_some());
        let reaper = {
            let slots = Arc::clone(&slots);
            thread::spawn(move || assert_eq!(slots.reap(SECOND.into()), Some((1000 + u64::from(SECOND), 0))))
        };
        let mut taken = Vec::new();
        if let Some((word, bits)) = slots.take_returned(0, WORDS) {
            taken.extend((0..BITS).filter(|bit| bits >> bit & 1 == 1).map(|bit| word as u16 * BITS + bit));
        }
        reaper.join().unwrap();
        take_all(&slots, &mut taken);
        taken.sort_unstable();
        assert_eq!(taken, [FIRST, SECOND], "slots that came back");
        assert_eq!(slots.released(), 2);
    });
}

/// A poster that has taken a slot writes its cookie and mark for the next round; the reaper of the
/// round before is done with them.
fn slot_is_taken_after_its_reaper_has_read_it() {
    const SLOT: u16 = 5;
    loom::model(|| {
        let slots = ring();
        slots.mark_pool(WqeIndex(SLOT), 7);
        let reaper = {
            let slots = Arc::clone(&slots);
            thread::spawn(move || {
                assert_eq!(slots.complete(SLOT.into()), Some((1000 + u64::from(SLOT), 7)));
                slots.release(SLOT.into());
            })
        };
        if slots.take_returned(0, WORDS).is_some() {
            slots.mark_pool(WqeIndex(SLOT), 9);
            assert_eq!(
                slots.complete(SLOT.into()),
                Some((1000 + u64::from(SLOT), 9)),
                "the new round's mark"
            );
        }
        reaper.join().unwrap();
    });
}

/// The bit that leads a reaper to a slot's mark stays when the reaper of the round before clears its
/// own: the pool of the new round is not lost. Another slot of the word is marked meanwhile.
fn mark_of_the_new_round_is_found() {
    const SLOT: u16 = 5;
    loom::model(|| {
        let slots = ring();
        let mut current = Current::NONE;
        assert!(slots.claim());
        let reaper = {
            let slots = Arc::clone(&slots);
            thread::spawn(move || {
                assert_eq!(slots.complete(SLOT.into()), Some((1000 + u64::from(SLOT), 0)));
                slots.release(SLOT.into());
            })
        };
        slots.mark_pool(WqeIndex(SLOT + 1), 3);
        let taken = slots.take_returned(0, WORDS).is_some();
        if taken {
            slots.mark_pool(WqeIndex(SLOT), 9);
        }
        reaper.join().unwrap();
        if taken {
            assert_eq!(slots.reap_alone(&mut current, SLOT.into()), Some((1000 + u64::from(SLOT), 9)));
        }
        assert_eq!(slots.reap_alone(&mut current, u32::from(SLOT) + 1), Some((1001 + u64::from(SLOT), 3)));
    });
}

/// The CQ that has a map of its own returns slots in the current word and in another while the
/// poster takes one: each is found now or by the next search, and once.
fn slots_of_the_cq_with_its_own_map_are_found() {
    const FIRST: u16 = 2 * BITS + 3;
    const SECOND: u16 = 2 * BITS + 60;
    loom::model(|| {
        let slots = ring();
        let mut current = Current::NONE;
        assert!(slots.claim());
        assert!(slots.reap_alone(&mut current, FIRST.into()).is_some());
        let reaper = {
            let slots = Arc::clone(&slots);
            thread::spawn(move || {
                assert_eq!(slots.reap_ready(&mut current, SECOND.into()), Some(1000 + u64::from(SECOND)));
                assert_eq!(slots.reap_alone(&mut current, 1), Some((1001, 0)));
            })
        };
        let released = slots.released();
        let mut taken = Vec::new();
        let mut searched = 0;
        while searched < 2 {
            searched += 1;
            let Some((word, bits)) = slots.take_returned(1, WORDS) else { break };
            taken.extend((0..BITS).filter(|bit| bits >> bit & 1 == 1).map(|bit| word as u16 * BITS + bit));
        }
        assert!(
            taken.len() >= (released as usize).min(2),
            "{released} slots were released before the search"
        );
        reaper.join().unwrap();
        take_all(&slots, &mut taken);
        taken.sort_unstable();
        assert_eq!(taken, [1, FIRST, SECOND], "slots that came back");
        assert_eq!(slots.released(), 3);
    });
}

fn main() {
    let tests = [
        Trial::test("slots_of_the_cq_with_its_own_map_are_found", || {
            slots_of_the_cq_with_its_own_map_are_found();
            Ok(())
        }),
        Trial::test("slot_that_comes_back_during_a_search_is_found", || {
            slot_that_comes_back_during_a_search_is_found();
            Ok(())
        }),
        Trial::test("mark_of_the_new_round_is_found", || {
            mark_of_the_new_round_is_found();
            Ok(())
        }),
        Trial::test("slot_is_taken_after_its_reaper_has_read_it", || {
            slot_is_taken_after_its_reaper_has_read_it();
            Ok(())
        }),
    ];
    libtest_mimic::run(&Arguments::from_args(), tests.into()).exit();
}
