//! Tests of the table of SRQ entries and of the search for lost entries.

use super::*;
use crate::datapath::Lost;
use crate::datapath::losses::LostEntries;
use proptest::prelude::*;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

fn info(cookie: u64) -> WrInfo {
    WrInfo { cookie, ..WrInfo::default() }
}

/// The EVD that has claimed the queue of returned entries.
const EVD: u64 = 5;

/// Both parts of the table, the search for lost entries, and the `CompletedUpTo` of the EPs.
struct Table {
    entries: SrqEntries,
    poster: EntryPoster,
    losses: LostEntries,
    eps: HashMap<u64, Arc<CompletedUpTo>>,
}

impl Table {
    fn new(limit: u32) -> Self {
        let (entries, poster) = SrqEntries::new(limit).unwrap();
        Self { entries, poster, losses: LostEntries::default(), eps: HashMap::new() }
    }

    /// A table with `n` posted buffers, whose cookies count from 100.
    fn posted(n: u32) -> (Self, Vec<u32>) {
        let mut table = Self::new(n);
        let entries = (0..n).map(|i| table.take(u64::from(i) + 100).unwrap()).collect();
        (table, entries)
    }

    fn take(&mut self, cookie: u64) -> Option<u32> {
        self.poster.take(&self.entries, &info(cookie))
    }

    /// The EP completes the oldest entry, and a new buffer is posted.
    fn go_on(&mut self, entries: &mut Vec<u32>, ep: u64, cookie: u64) {
        let oldest = entries.remove(0);
        self.complete(oldest, ep).unwrap();
        self.entries.release(oldest);
        entries.push(self.take(cookie).unwrap());
    }

    fn connect(&mut self, ep: u64) {
        self.losses.ep_connected(ep, self.eps.entry(ep).or_default()).unwrap();
    }

    fn ep_drained(&self, ep: u64) -> bool {
        self.losses.ep_drained(&self.entries, ep)
    }

    fn next_lost(&self) -> Option<Lost> {
        self.losses.next(&self.entries)
    }

    fn complete(&self, entry: u32, ep: u64) -> Option<u64> {
        self.entries.complete(entry, self.eps.get(&ep).map(|ep| &**ep)).map(|info| info.cookie)
    }

    /// The available and outstanding counts.
    fn counts(&self) -> (u32, u32) {
        let EntryCounts { available, outstanding } = self.entries.counts();
        (available, outstanding)
    }
}

#[test]
fn full_until_a_completion_is_reaped() {
    let (mut table, entries) = Table::posted(3);
    assert_eq!(table.take(9), None);
    assert_eq!(table.complete(entries[1], 7), Some(101));
    assert_eq!(table.counts(), (2, 3));
    assert_eq!(table.take(9), None);
    table.entries.release(entries[1]);
    assert_eq!(table.counts(), (2, 2));
    assert!(table.take(9).is_some());
    assert_eq!(table.take(9), None);
}

#[test]
fn an_entry_completes_once_and_comes_back_once() {
    let (table, entries) = Table::posted(2);
    table.entries.release(entries[0]);
    assert_eq!(table.counts(), (2, 2));
    assert_eq!(table.complete(entries[0], 1), Some(100));
    assert_eq!((table.complete(entries[0], 1), table.complete(NONE, 1)), (None, None));
    table.entries.release(entries[0]);
    table.entries.release(entries[0]);
    assert_eq!((table.counts(), table.complete(entries[0], 1)), ((1, 1), None));
}

#[test]
fn an_undone_post_leaves_no_trace() {
    let mut table = Table::new(1);
    let entry = table.take(1).unwrap();
    table.poster.take_back(&table.entries, entry);
    assert_eq!((table.counts(), table.complete(entry, 1)), ((0, 0), None));
    let entry = table.take(2).unwrap();
    assert_eq!(table.complete(entry, 1), Some(2));
}

/// Also posts that took their entry from the queue of returned entries, several in a row.
#[test]
fn undone_posts_leave_every_entry_free() {
    let (entries, mut poster) = SrqEntries::new(8).unwrap();
    let ep = ep_of(&entries, EVD);
    for lap in 0..2_000 {
        for _ in 0..3 {
            let undone = poster.take(&entries, &info(0)).unwrap();
            poster.take_back(&entries, undone);
        }
        let posted: HashMap<_, _> = (0..8).map(|n| (poster.take(&entries, &info(n)).unwrap(), n)).collect();
        assert_eq!(posted.len(), 8, "an entry is used twice, in lap {lap}");
        assert!(posted.iter().all(|(&entry, &n)| entries.reap(entry, &ep) == Some((n, 0))));
    }
}

/// What is kept of a buffer is what was given with its own post, not with an earlier one.
#[test]
fn an_entry_keeps_cookie_pool_and_lmrs() {
    let (entries, mut poster) = SrqEntries::new(1).unwrap();
    for lmrs in [[0; 4], [1, 2, 3, 4], [5, 0, 0, 0], [u32::MAX; 4], [0, 0, 0, 9], [0; 4]] {
        for pool in [0, 7, MORE - 1] {
            let given = WrInfo { cookie: u64::from(pool) << 40, pool, lmrs };
            let entry = poster.take(&entries, &given).unwrap();
            assert_eq!(entries.complete(entry, None), Some(given));
            entries.release(entry);
        }
    }
}

/// An EP whose receive EVD is this one.
fn ep_of(entries: &SrqEntries, evd: u64) -> CompletedUpTo {
    let ep = CompletedUpTo::default();
    ep.set_alone(entries.claim(evd));
    ep.start();
    ep
}

#[test]
fn one_evd_claims_the_queue() {
    let (entries, _) = SrqEntries::new(1).unwrap();
    assert!(entries.claim(EVD) && !entries.claim(EVD + 1) && entries.claim(EVD));
}

/// Entries come back by both ways. Each is counted once, is used again, and completes once.
#[test]
fn entries_return_by_the_queue_and_by_the_list() {
    const DEPTH: u32 = 5;
    let (entries, mut poster) = SrqEntries::new(DEPTH).unwrap();
    let eps = [EVD, EVD + 1].map(|evd| ep_of(&entries, evd));
    let mut posted = VecDeque::new();
    let mut cookies = 0..;
    let mut expected = 0..;
    for step in 0..10_000 {
        while let Some(entry) = poster.take(&entries, &WrInfo { pool: 3, ..info(cookies.start) }) {
            cookies.next();
            posted.push_back(entry);
        }
        assert_eq!(entries.counts(), EntryCounts { available: DEPTH, outstanding: DEPTH });
        for n in 0..=step % DEPTH {
            let entry = posted.pop_front().unwrap();
            // Most steps use one way only, and some steps both.
            let ep = &eps[usize::from((step / 7 + u32::from(step % 11 == 0) * n) % 2 == 1)];
            assert_eq!(entries.reap(entry, ep), Some((expected.next().unwrap(), 3)));
            assert_eq!(entries.reap(entry, ep), None);
            assert_eq!(entries.complete(entry, None), None);
            let left = DEPTH - n - 1;
            assert_eq!(entries.counts(), EntryCounts { available: left, outstanding: left });
        }
    }
    assert!(entries.later.iter().all(|later| later.get().is_none()), "the table grew");
}

/// The search for lost entries learns what an EP has completed, by either way.
#[test]
fn reaping_raises_what_the_ep_has_completed() {
    for evd in [EVD, EVD + 1] {
        let (mut table, entries) = Table::posted(4);
        assert!(table.entries.claim(EVD));
        let ep = Arc::new(ep_of(&table.entries, evd));
        table.connect(1);
        table.eps.insert(2, ep.clone());
        table.connect(2);
        assert!(table.ep_drained(1));
        assert_eq!(table.entries.reap(entries[1], &ep), Some((101, 0)));
        assert_eq!(ep.get(), 2);
        assert_eq!(table.next_lost().map(|lost| (lost.ep, lost.entry)), Some((1, entries[0])));
    }
}

#[test]
fn a_deeper_table_returns_its_entries_by_the_queue() {
    let (entries, mut poster) = SrqEntries::new(4).unwrap();
    let ep = ep_of(&entries, EVD);
    poster.set_limit(&entries, 5_000).unwrap();
    for lap in 0..3 {
        let posted: Vec<_> = (0..5_000).map(|n| poster.take(&entries, &info(lap + n)).unwrap()).collect();
        assert!(poster.take(&entries, &info(0)).is_none());
        assert!(
            posted.iter().zip(lap..).all(|(&entry, cookie)| entries.reap(entry, &ep) == Some((cookie, 0)))
        );
    }
}

/// What an EP has completed rises with younger posts only, by either way.
#[test]
fn what_an_ep_has_completed_rises_only() {
    for evd in [EVD, EVD + 1] {
        let (table, entries) = Table::posted(4);
        assert!(table.entries.claim(EVD));
        let ep = ep_of(&table.entries, evd);
        for (n, up_to) in [(1, 2), (2, 3), (0, 3), (3, 4)] {
            assert!(table.entries.reap(entries[n], &ep).is_some());
            assert_eq!((ep.get(), table.entries.completed_up_to()), (up_to, 0));
        }
        // Only the EVD that has claimed the queue returns entries by it.
        let by_queue = table.entries.alone.reaped.load(Relaxed);
        assert_eq!(by_queue, if evd == EVD { 4 } else { 0 });
    }
}

/// Completions of an EP that has ended, or of none, count for all EPs.
#[test]
fn completions_without_a_live_ep_count_for_all() {
    let (table, entries) = Table::posted(4);
    let ep = ep_of(&table.entries, EVD);
    table.entries.complete(entries[0], None).unwrap();
    assert_eq!(table.entries.completed_up_to(), 1);
    assert_eq!(ep.end(), 0);
    table.entries.complete(entries[2], Some(&ep)).unwrap();
    assert_eq!(table.entries.completed_up_to(), 3);
}

/// A completion comes before the search declares its entry lost.
#[test]
fn an_entry_that_has_completed_is_not_lost() {
    let (table, entries) = Table::posted(2);
    assert_eq!(table.complete(entries[0], 1), Some(100));
    assert_eq!(table.entries.complete_lost(entries[0], 0), None);
    assert_eq!(table.counts(), (1, 2));
    table.entries.release(entries[0]);
    assert_eq!(table.entries.complete_lost(entries[0], 0), None);
    assert_eq!(table.counts(), (1, 1));
}

#[test]
fn a_lower_depth_holds_at_once() {
    let mut table = Table::new(8);
    assert!(table.take(1).is_some());
    table.poster.limit_to(&table.entries, 2);
    assert!(table.take(2).is_some() && table.take(3).is_none());
    table.poster.limit_to(&table.entries, 3);
    assert!(table.take(3).is_some() && table.take(4).is_none());
}

/// Depths of exactly as many entries as the table has, and more growth after it.
#[test]
fn each_depth_has_room_for_all_posts() {
    let (entries, mut poster) = SrqEntries::new(4).unwrap();
    let ep = ep_of(&entries, EVD);
    for depth in [512, 1024, 1025, 3000] {
        poster.set_limit(&entries, depth).unwrap();
        for _ in 0..2 {
            let posted: Vec<_> =
                (0..depth.into()).map_while(|cookie| poster.take(&entries, &info(cookie))).collect();
            assert_eq!((posted.len(), poster.take(&entries, &info(0))), (depth as usize, None));
            assert!(posted.iter().all(|&entry| entries.reap(entry, &ep).is_some()), "depth {depth}");
        }
    }
}

#[test]
fn a_resized_table_keeps_its_entries() {
    let (mut table, entries) = Table::posted(4);
    table.poster.set_limit(&table.entries, 5_000).unwrap();
    let more: Vec<_> = (0..4_996).map(|i| table.take(i + 104).unwrap()).collect();
    assert_eq!((table.take(0), table.counts()), (None, (5_000, 5_000)));
    for (cookie, &entry) in (100..).zip(entries.iter().chain(&more)) {
        assert_eq!(table.complete(entry, 1), Some(cookie));
        table.entries.release(entry);
    }
    table.poster.limit_to(&table.entries, 2);
    assert!(table.take(1).is_some() && table.take(2).is_some() && table.take(3).is_none());
}

/// While one EP holds a buffer for a long time, the other entries are reused without more
/// memory.
#[test]
fn r50_srq_post_nonblocking_while_a_buffer_is_held() {
    let (mut table, mut entries) = Table::posted(4);
    let held = entries.remove(0);
    let chunks = |table: &Table| table.entries.later.iter().filter(|chunk| chunk.get().is_some()).count();
    let before = chunks(&table);
    for n in 0..10_000 {
        table.go_on(&mut entries, 2, n);
    }
    assert_eq!((chunks(&table), table.losses.is_idle()), (before, true));
    assert_eq!(table.complete(held, 1), Some(100));
}

#[test]
fn a_lost_buffer_is_found_when_younger_ones_complete() {
    let (mut table, entries) = Table::posted(4);
    table.connect(1);
    table.connect(2);
    // EP 1 takes the first buffer and fails during the message.
    assert!(table.ep_drained(1));
    assert_eq!(table.next_lost(), None);
    table.complete(entries[1], 2).unwrap();
    let lost = table.next_lost().unwrap();
    assert_eq!((lost.ep, lost.info), (1, info(100)));
    table.entries.release(lost.entry);
    table.entries.release(entries[1]);
    assert_eq!(table.counts(), (2, 2));
    assert_eq!(table.next_lost(), None);
}

/// What an EP has completed still counts when the EP has ended.
#[test]
fn completions_of_an_ended_ep_reveal_a_lost_buffer() {
    let (mut table, entries) = Table::posted(4);
    table.connect(1);
    table.connect(2);
    table.complete(entries[1], 1).unwrap();
    table.ep_drained(1);
    assert!(table.ep_drained(2));
    assert_eq!(table.next_lost().map(|lost| (lost.ep, lost.entry)), Some((2, entries[0])));
}

/// Posts are searched in their order, whatever the numbers of their entries.
#[test]
fn a_lost_buffer_is_found_in_an_entry_with_a_higher_number() {
    let mut table = Table::new(3);
    // Entries come back to the poster in reverse.
    for cookie in 0..600 {
        let entry = table.take(cookie).unwrap();
        table.complete(entry, 9).unwrap();
        table.entries.release(entry);
    }
    let entries: Vec<_> = (0..3).map(|cookie| table.take(cookie).unwrap()).collect();
    assert!(entries.is_sorted_by(|a, b| a > b), "{entries:?}");
    table.connect(1);
    assert!(table.ep_drained(1));
    table.complete(entries[1], 9).unwrap();
    assert_eq!(table.next_lost().map(|lost| lost.entry), Some(entries[0]));
}

/// UD EPs hold no entry themselves, so their completions reveal lost entries too.
#[test]
fn completions_of_ud_eps_reveal_a_lost_buffer() {
    let (mut table, entries) = Table::posted(4);
    table.connect(1);
    assert!(table.ep_drained(1));
    table.eps.insert(2, Arc::default());
    table.complete(entries[1], 2).unwrap();
    assert_eq!(table.next_lost().map(|lost| lost.ep), Some(1));
}

#[test]
fn buffers_still_on_the_srq_are_not_lost() {
    let (mut table, entries) = Table::posted(3);
    table.connect(1);
    table.complete(entries[0], 1).unwrap();
    table.ep_drained(1);
    assert_eq!(table.next_lost(), None);
    assert_eq!(table.counts().0, 2);
}

#[test]
fn a_buffer_at_a_live_ep_is_not_lost() {
    let (mut table, entries) = Table::posted(4);
    for ep in 1..=3 {
        table.connect(ep);
    }
    table.ep_drained(1);
    table.complete(entries[1], 2).unwrap();
    // EP 3 may hold the first entry.
    assert_eq!(table.next_lost(), None);
    assert_eq!(table.complete(entries[0], 3), Some(100));
    assert_eq!(table.next_lost(), None);
}

/// An ended EP that held no entry is a suspect only until the posts of that time have
/// completed.
#[test]
fn a_suspect_is_dropped_after_one_lap() {
    let (mut table, mut entries) = Table::posted(4);
    table.connect(1);
    table.connect(2);
    assert!(table.ep_drained(1));
    for n in 0..4 {
        table.go_on(&mut entries, 2, n);
        assert_eq!(table.next_lost(), None);
    }
    assert!(table.losses.is_idle());
    // A further suspect can be found again.
    table.connect(3);
    assert!(table.ep_drained(3));
    table.complete(entries[1], 2).unwrap();
    assert_eq!(table.next_lost().map(|lost| (lost.ep, lost.info.cookie)), Some((3, 0)));
}

/// An EP that ended before a buffer was posted cannot have taken that buffer.
#[test]
fn an_ep_that_ended_before_a_post_is_innocent() {
    let (mut table, mut entries) = Table::posted(4);
    for ep in 1..=3 {
        table.connect(ep);
    }
    assert!(table.ep_drained(1));
    // No thread looks for lost entries meanwhile, so the first EP is still a suspect.
    for n in 0..4 {
        table.go_on(&mut entries, 3, n);
    }
    // EP 2 takes the first of the new entries.
    assert!(table.ep_drained(2));
    table.complete(entries[1], 3).unwrap();
    assert_eq!(table.next_lost().map(|lost| (lost.ep, lost.info.cookie)), Some((2, 0)));
}

/// One poster, and several reapers that complete entries in any order: each cookie returns
/// once, and no entry is lost or used twice.
#[test]
fn each_cookie_comes_back_once_between_threads() {
    const DEPTH: u32 = 300;
    const EACH: u64 = 200_000;
    const REAPERS: usize = 2;
    let (entries, mut poster) = SrqEntries::new(DEPTH).unwrap();
    let device = crossbeam_queue::ArrayQueue::new(DEPTH as usize + REAPERS);
    let seen = std::thread::scope(|scope| {
        let reapers: Vec<_> = (0..REAPERS)
            .map(|_| {
                scope.spawn(|| {
                    let (mut sum, mut n) = (0, 0);
                    loop {
                        match device.pop() {
                            Some(NONE) => return (sum, n),
                            Some(entry) => {
                                sum += entries.complete(entry, None).unwrap().cookie;
                                n += 1;
                                entries.release(entry);
                            }
                            None => std::thread::yield_now(),
                        }
                    }
                })
            })
            .collect();
        for cookie in 0..EACH {
            let entry = loop {
                match poster.take(&entries, &info(cookie)) {
                    Some(entry) => break entry,
                    None => std::thread::yield_now(),
                }
            };
            device.push(entry).unwrap();
        }
        (0..REAPERS).for_each(|_| while device.push(NONE).is_err() {});
        reapers.into_iter().map(|reaper| reaper.join().unwrap()).fold((0, 0), |a, b| (a.0 + b.0, a.1 + b.1))
    });
    assert_eq!(seen, (EACH * (EACH - 1) / 2, EACH));
    assert_eq!(entries.counts(), EntryCounts { available: 0, outstanding: 0 });
    // All entries are free again.
    assert!((0..DEPTH).all(|_| poster.take(&entries, &info(0)).is_some()));
}

/// One poster, one thread that reaps by the queue, and one that reaps by the list.
#[test]
fn each_cookie_comes_back_once_by_both_ways() {
    const DEPTH: u32 = 100;
    const EACH: u64 = 400_000;
    let (entries, mut poster) = SrqEntries::new(DEPTH).unwrap();
    let eps = [EVD, EVD + 1].map(|evd| ep_of(&entries, evd));
    let devices = [(); 2].map(|()| crossbeam_queue::ArrayQueue::new(DEPTH as usize + 1));
    let (entries, devices) = (&entries, &devices);
    let seen: u64 = std::thread::scope(|scope| {
        let reapers: Vec<_> = (devices.iter().zip(&eps))
            .map(|(device, ep)| {
                scope.spawn(move || {
                    let mut sum = 0;
                    loop {
                        match device.pop() {
                            Some(NONE) => return sum,
                            Some(entry) => sum += entries.reap(entry, ep).unwrap().0,
                            None => std::thread::yield_now(),
                        }
                    }
                })
            })
            .collect();
        for cookie in 0..EACH {
            let entry = loop {
                match poster.take(entries, &info(cookie)) {
                    Some(entry) => break entry,
                    None => std::thread::yield_now(),
                }
            };
            devices[(cookie / 3 % 2) as usize].push(entry).unwrap();
        }
        devices.iter().for_each(|device| device.push(NONE).unwrap());
        reapers.into_iter().map(|reaper| reaper.join().unwrap()).sum()
    });
    assert_eq!(seen, EACH * (EACH - 1) / 2);
    assert_eq!(entries.counts(), EntryCounts { available: 0, outstanding: 0 });
    assert!((0..DEPTH).all(|_| poster.take(entries, &info(0)).is_some()));
}

proptest! {
    /// EPs take entries in posting order, complete them in any order across EPs, and sometimes
    /// end while they hold one. No entry is declared lost wrongly, no cookie is mixed up, and
    /// the counts stay within their bounds. When the surviving EPs have gone through the whole
    /// SRQ once more, every entry is found.
    #[test]
    fn every_entry_is_accounted_for(steps in proptest::collection::vec((0u8..5, 0usize..4), 1..400)) {
        const DEPTH: u32 = 8;
        let mut table = Table::new(DEPTH);
        let mut queue: VecDeque<(u32, u64)> = VecDeque::new();
        let mut held: HashMap<u64, (u32, u64)> = HashMap::new();
        let mut live: Vec<u64> = (1..=4).collect();
        let mut lost_entries: HashMap<u32, u64> = HashMap::new();
        let mut next_ep = 5;
        let mut cookie = 0;
        for &ep in &live { table.connect(ep); }
        for (what, pick) in steps {
            let ep = live[pick % live.len()];
            match what {
                0 | 1 => {
                    cookie += 1;
                    match table.take(cookie) {
                        Some(entry) => queue.push_back((entry, cookie)),
                        None => prop_assert_eq!(table.counts().1, DEPTH),
                    }
                }
                2 => if let std::collections::hash_map::Entry::Vacant(none) = held.entry(ep)
                    && let Some(taken) = queue.pop_front()
                {
                    none.insert(taken);
                },
                3 => if let Some((entry, cookie)) = held.remove(&ep) {
                    prop_assert_eq!(table.complete(entry, ep), Some(cookie));
                    table.entries.release(entry);
                },
                _ => {
                    if let Some((entry, cookie)) = held.remove(&ep) { lost_entries.insert(entry, cookie); }
                    table.ep_drained(ep);
                    live.retain(|&l| l != ep);
                    live.push(next_ep);
                    table.connect(next_ep);
                    next_ep += 1;
                }
            }
            while let Some(lost) = table.next_lost() {
                prop_assert_eq!(lost_entries.remove(&lost.entry), Some(lost.info.cookie));
                table.entries.release(lost.entry);
            }
            let (available, outstanding) = table.counts();
            prop_assert!(available <= outstanding && outstanding <= DEPTH);
        }
        // All EPs finish; then each live EP takes and completes one more entry.
        for (ep, (entry, cookie)) in held.drain() {
            prop_assert_eq!(table.complete(entry, ep), Some(cookie));
            table.entries.release(entry);
        }
        if lost_entries.len() < DEPTH as usize {
            for &ep in &live {
                while queue.is_empty() {
                    cookie += 1;
                    queue.push_back((table.take(cookie).unwrap(), cookie));
                }
                let (entry, cookie) = queue.pop_front().unwrap();
                prop_assert_eq!(table.complete(entry, ep), Some(cookie));
                table.entries.release(entry);
                while let Some(lost) = table.next_lost() {
                    prop_assert_eq!(lost_entries.remove(&lost.entry), Some(lost.info.cookie));
                    table.entries.release(lost.entry);
                }
            }
            prop_assert!(lost_entries.is_empty());
            prop_assert_eq!(table.counts().1 as usize, queue.len());
        }
    }
}
