//! Random calls of verbs by several threads to shared queues, and what came of them.
//!
//! The calls depend on the seed only, and so does what each queue completes. Two runs with one seed
//! print the same, with and without `libdoorbell-verbs.so`; `tests/threads.rs` compares them. What
//! depends on the order in which the threads come is not printed but checked here: the completions
//! of one thread's requests come in the order of its calls, each one once; each message is in the
//! buffer that its completion names; no completion comes from before a reset.
//!
//! Nothing waits for time to pass. The threads count what they post, and poll until as many
//! completions have come.
#![expect(unsafe_code, reason = "calls of verbs")]

mod objects;
mod polls;
mod posts;

use std::sync::{
    Barrier, Mutex,
    atomic::{AtomicI32, AtomicU32, AtomicUsize, Ordering::SeqCst},
};

use doorbell_sys::*;

use objects::{Kind, Memory, Objects, Target};
use polls::Log;
use posts::Poster;

/// A generator of random numbers; the seed decides all.
struct Rng(u64);

impl Rng {
    fn new(seed: u64, stream: u64) -> Self {
        let mut rng =
            Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ stream.wrapping_mul(0xd1b5_4a32_d192_ed03));
        rng.below(2);
        rng
    }

    fn below(&mut self, n: u32) -> u32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) % u64::from(n)) as u32
    }

    fn once_in(&mut self, n: u32) -> bool {
        self.below(n) == 0
    }
}

/// What the threads do in a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Round {
    /// Each thread posts to all queues and polls all CQs.
    Shared,
    /// Each thread fills the queues of its own QPs until a post is refused. Nobody polls meanwhile.
    Full,
    /// Each thread lets requests of its own connected QPs fail, and takes these through RESET.
    Failing,
    /// Each thread resets its own connected QPs while requests are under way.
    Reset,
}

/// What all threads share.
struct Shared<'a> {
    objects: &'a Objects,
    memory: &'a Memory,
    threads: usize,
    barrier: Barrier,
    /// By end: completions of requests that are still to come.
    requests_due: Vec<AtomicI32>,
    /// By end: messages that are still to come.
    messages_due: Vec<AtomicI32>,
    /// By receive queue: receives that are posted for certain.
    posted: Vec<AtomicI32>,
    /// By end: how often it was reset.
    lives: Vec<AtomicU32>,
    /// Threads that have posted all of this round.
    done: AtomicUsize,
    logs: Mutex<Vec<Log>>,
}

/// Runs the rounds of this seed on the first mlx5 device.
pub(crate) fn run(seed: u64, rounds: u32) {
    let mut rng = Rng::new(seed, 0);
    let threads = 2 + rng.below(3) as usize;
    let objects = Objects::new(&mut rng, threads);
    let memory = Memory::new(&objects, threads);
    println!("{threads} threads, {} QPs, {} CQs", objects.ends.len(), objects.cqs.len());
    let zeros = |n: usize| (0..n).map(|_| AtomicI32::new(0)).collect::<Vec<_>>();
    let ends = objects.ends.len();
    let shared = Shared {
        objects: &objects,
        memory: &memory,
        threads,
        barrier: Barrier::new(threads),
        requests_due: zeros(ends),
        messages_due: zeros(ends),
        posted: zeros(objects.queues.len()),
        lives: (0..ends).map(|_| AtomicU32::new(0)).collect(),
        done: AtomicUsize::new(0),
        logs: Mutex::new(vec![]),
    };
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let shared = &shared;
            scope.spawn(move || {
                // A thread that fails would leave the others waiting at the barrier.
                let work = || Worker::new(shared, seed, thread).run(seed, rounds);
                if std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)).is_err() {
                    std::process::exit(101);
                }
            });
        }
    });
    memory.end();
    objects.end();
}

struct Worker<'a> {
    shared: &'a Shared<'a>,
    thread: usize,
    /// For what is posted.
    rng: Rng,
    /// For what is polled.
    polls: Rng,
    poster: Poster,
    /// Posts by `ibv_post_send` only. An extended post that finds the queue full changes the
    /// request before it with libmlx5, so that this may fail.
    fills: bool,
    log: Log,
}

impl<'a> Worker<'a> {
    fn new(shared: &'a Shared<'a>, seed: u64, thread: usize) -> Self {
        let (rng, polls) = (Rng::new(seed, 1 + thread as u64), Rng::new(seed, 11 + thread as u64));
        Self { shared, thread, rng, polls, poster: Poster::default(), fills: false, log: Log::default() }
    }

    fn run(&mut self, seed: u64, rounds: u32) {
        // The same in all threads.
        let mut common = Rng::new(seed, 100);
        for number in 0..rounds {
            let round = match common.below(10) {
                0..=4 => Round::Shared,
                5 => Round::Full,
                6..=7 => Round::Failing,
                _ => Round::Reset,
            };
            self.fill(round);
            self.log.ignores = round == Round::Reset;
            self.fills = round == Round::Full;
            self.wait_for_all();
            match round {
                Round::Shared => self.shared_posts(),
                Round::Full => self.full_queues(),
                Round::Failing => self.own_pairs(Self::fail),
                Round::Reset => self.own_pairs(Self::reset),
            }
            self.shared.done.fetch_add(1, SeqCst);
            while self.shared.done.load(SeqCst) < self.shared.threads || !self.is_settled() {
                self.poll_any();
            }
            self.wait_for_all();
            self.log.ignores = false;
            // A request that asks for its completion frees all before it.
            self.close();
            while !self.is_settled() {
                self.poll_any();
            }
            self.wait_for_all();
            self.shared.done.store(0, SeqCst);
            self.shared.logs.lock().expect("no thread failed").push(self.log.end_round());
            self.wait_for_all();
            if self.thread == 0 {
                self.print(number, round);
            }
            self.wait_for_all();
        }
    }

    fn wait_for_all(&self) {
        self.shared.barrier.wait();
    }

    /// Whether everything that was posted until now and has to complete has completed.
    fn is_settled(&self) -> bool {
        let none = |all: &[AtomicI32]| all.iter().all(|due| due.load(SeqCst) == 0);
        none(&self.shared.requests_due) && none(&self.shared.messages_due)
    }

    fn own_ends(&self) -> Vec<usize> {
        let own = |end: &usize| self.shared.objects.ends[*end].owner == self.thread;
        (0..self.shared.objects.ends.len()).filter(own).collect()
    }

    /// Posts this thread's share of the receives that the queues lack.
    fn fill(&mut self, round: Round) {
        let shared = self.shared;
        // All read how many are posted before one posts more.
        let lacking: Vec<u32> = shared
            .objects
            .queues
            .iter()
            .zip(&shared.posted)
            .map(|(queue, posted)| queue.level.saturating_sub(posted.load(SeqCst).max(0) as u32))
            .collect();
        self.wait_for_all();
        for (queue, lacking) in lacking.into_iter().enumerate() {
            // The threads may all post to one queue, except where the place of a refused receive
            // counts.
            let share = match (round, shared.objects.queues[queue].target) {
                (Round::Full, Target::Own(end)) => {
                    if shared.objects.ends[end].owner == self.thread {
                        u32::MAX
                    } else {
                        0
                    }
                }
                _ => {
                    let (each, rest) = (lacking / shared.threads as u32, lacking % shared.threads as u32);
                    each + u32::from((self.thread as u32) < rest)
                }
            };
            let posted = self.post_receives(queue, share);
            shared.posted[queue].fetch_add(posted, SeqCst);
        }
    }

    /// Posts to all QPs, and polls all CQs at the same time.
    fn shared_posts(&mut self) {
        let ends = self.shared.objects.ends.len();
        // Together, the threads never fill a queue.
        let mut room: Vec<_> = self.shared.objects.ends.iter().map(|end| end.share).collect();
        for _ in 0..6 * ends {
            let end = self.rng.below(ends as u32) as usize;
            self.post_sends(end, &mut room[end]);
            for _ in 0..self.rng.below(4) {
                self.poll_any();
            }
        }
    }

    fn full_queues(&mut self) {
        for end in self.own_ends() {
            let objects = self.shared.objects;
            let mut room = objects.ends[end].share;
            room.requests = u32::MAX;
            while self.post_sends(end, &mut room) {}
        }
        self.wait_for_all();
    }

    /// Does something with each pair of connected QPs that belongs to this thread.
    fn own_pairs(&mut self, what: fn(&mut Self, [usize; 2])) {
        for end in self.own_ends() {
            let peer = self.shared.objects.ends[end].peer;
            if end > peer {
                continue;
            }
            if self.shared.objects.ends[end].kind == Kind::Rc {
                let pair = if self.rng.once_in(2) { [end, peer] } else { [peer, end] };
                what(self, pair);
            } else {
                let mut room = self.shared.objects.ends[end].share;
                self.post_sends(end, &mut room);
            }
        }
    }

    /// A request of the first QP fails, and all behind it. Both QPs go through ERR and RESET.
    fn fail(&mut self, [from, to]: [usize; 2]) {
        let shared = self.shared;
        self.post_failing(from);
        while shared.requests_due[from].load(SeqCst) > 0 || shared.messages_due[to].load(SeqCst) > 0 {
            self.poll_any();
        }
        for end in [from, to] {
            shared.objects.to(end, ibv_qp_state::IBV_QPS_ERR);
        }
        // The receives in queues of their own are flushed.
        for end in [from, to] {
            let queue = shared.objects.ends[end].queue;
            let own = matches!(shared.objects.queues[queue].target, Target::Own(_));
            while own && shared.posted[queue].load(SeqCst) > 0 {
                self.poll_any();
            }
        }
        for end in [from, to] {
            shared.objects.to(end, ibv_qp_state::IBV_QPS_RESET);
            shared.lives[end].fetch_add(1, SeqCst);
        }
        shared.objects.connect(from, to);
    }

    /// Requests of the first QP are under way while both QPs are reset. Any number of them may have
    /// completed, and been polled, before.
    fn reset(&mut self, [from, to]: [usize; 2]) {
        let shared = self.shared;
        let messages = self.post_uncounted(from);
        let ends = if self.rng.once_in(2) { [from, to] } else { [to, from] };
        if self.rng.once_in(3) {
            shared.objects.to(ends[0], ibv_qp_state::IBV_QPS_ERR);
        }
        for end in ends {
            shared.objects.to(end, ibv_qp_state::IBV_QPS_RESET);
            shared.lives[end].fetch_add(1, SeqCst);
        }
        shared.objects.connect(from, to);
        for end in [from, to] {
            let queue = shared.objects.ends[end].queue;
            match shared.objects.queues[queue].target {
                Target::Own(_) => shared.posted[queue].store(0, SeqCst),
                // At most so many were taken. More are posted than counted from now on.
                Target::Srq if end == to => {
                    shared.posted[queue].fetch_sub(messages, SeqCst);
                }
                Target::Srq => {}
            }
        }
    }

    /// The last request of each of this thread's QPs.
    fn close(&mut self) {
        for end in self.own_ends() {
            self.post_closing(end);
        }
        self.wait_for_all();
    }

    fn print(&self, number: u32, round: Round) {
        let mut logs = std::mem::take(&mut *self.shared.logs.lock().expect("no thread failed"));
        logs.sort_by_key(|log| log.calls.first().cloned());
        println!("round {number}: {round:?}");
        polls::print(&mut logs);
        println!("  memory {:x}", self.shared.memory.sum());
    }
}
