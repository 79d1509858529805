//! The cases, the same for every data path.

use crate::{
    case::{Case, GROUP, Rng},
    path::Path,
    plan::{CaseName, Spec},
};

/// Receives that the device holds unfinished in cases that complete at random.
const HELD: usize = 256;

/// A case on a data path.
pub fn on(spec: Spec, path: impl Path + 'static) -> Box<dyn Case> {
    let mut bench = Bench {
        path,
        spec,
        outstanding: 0,
        held: vec![],
        slots: vec![],
        rng: Rng::new(0x1234_5678_9abc_def1),
    };
    bench.start();
    Box::new(bench)
}

/// Calls in a sample: 1 if a call is long enough to time alone.
pub fn calls(spec: &Spec) -> u32 {
    match spec.case {
        CaseName::Poll | CaseName::PollFree => GROUP / spec.batch,
        // A call takes four nanoseconds, no more than reading the clock.
        CaseName::Repost if spec.batch > 1 => (4 * GROUP / spec.batch).max(1),
        _ if spec.batch == 1 => GROUP,
        _ => 1,
    }
}

struct Bench<P> {
    path: P,
    spec: Spec,
    /// In cases that start from an empty SRQ: receives that are posted and not yet taken by the
    /// device.
    outstanding: usize,
    /// Slots that the device holds.
    held: Vec<u16>,
    /// Slots whose completions wait to be polled.
    slots: Vec<u16>,
    rng: Rng,
}

impl<P: Path> Bench<P> {
    fn start(&mut self) {
        use CaseName::*;
        match self.spec.case {
            PostFree => self.path.fill(),
            RandomCompletion | RandomCompletionFree => {
                self.path.fill();
                self.path.queues().take(HELD.min(self.spec.depth as usize / 2), &mut self.held);
                // Four times around the ring, so that the list has the order of the steady state.
                for _ in 0..self.spec.depth * 4 / self.operations() {
                    self.prepare();
                    self.run();
                }
            }
            _ => {}
        }
    }

    /// All posted receives complete, oldest first.
    fn drain(&mut self) {
        while self.outstanding > 0 {
            let n = self.outstanding.min(GROUP as usize);
            self.slots.clear();
            self.path.queues().take(n, &mut self.slots);
            self.path.queues().deliver(&self.slots);
            self.path.poll_and_free(n as u32);
            self.outstanding -= n;
        }
    }

    /// Receives complete at random, and the device takes as many new ones.
    fn complete_at_random(&mut self) {
        self.slots.clear();
        for _ in 0..self.operations() {
            let n = self.rng.below(self.held.len());
            self.slots.push(self.held.swap_remove(n));
        }
        let n = self.operations() as usize;
        self.path.queues().take(n, &mut self.held);
        self.path.queues().deliver(&self.slots);
    }
}

impl<P: Path> Case for Bench<P> {
    fn operations(&self) -> u32 {
        self.calls() * self.spec.batch
    }

    fn prepare(&mut self) {
        use CaseName::*;
        let n = self.operations();
        match self.spec.case {
            Post | PostEncoded | PostAddress | Repost => self.drain(),
            PostFree => {
                self.slots.clear();
                self.path.queues().take(n as usize, &mut self.slots);
                self.path.queues().deliver(&self.slots);
            }
            RandomCompletion => {
                self.complete_at_random();
                self.path.poll_and_free(n);
            }
            RandomCompletionFree => self.complete_at_random(),
            Poll | PollFree => {
                if self.spec.case == Poll {
                    self.path.free(&self.slots);
                }
                for call in 0..self.calls() {
                    self.path.post(call);
                }
                self.slots.clear();
                self.path.queues().take(n as usize, &mut self.slots);
                self.path.queues().deliver(&self.slots);
            }
            // Nothing for empty polls. Cases of sends have a bench of their own.
            _ => {}
        }
    }

    fn calls(&self) -> u32 {
        calls(&self.spec)
    }

    fn run_call(&mut self, n: u32) {
        use CaseName::*;
        let batch = self.spec.batch;
        match self.spec.case {
            Post | PostEncoded | PostAddress | Repost | RandomCompletion => {
                self.path.post(n);
                self.outstanding += batch as usize;
            }
            PostFree | RandomCompletionFree if batch == 1 => {
                self.path.poll_and_free_one();
                self.path.post(n);
            }
            PostFree | RandomCompletionFree => {
                self.path.poll_and_free(batch);
                self.path.post(n);
            }
            Poll if batch == 1 => self.path.poll_one(),
            Poll => self.path.poll(batch),
            PollFree if batch == 1 => self.path.poll_and_free_one(),
            PollFree => self.path.poll_and_free(batch),
            _ => self.path.poll_empty(),
        }
    }

    fn run(&mut self) {
        use CaseName::*;
        let (calls, batch) = (self.calls(), self.spec.batch);
        match self.spec.case {
            Post | PostEncoded | PostAddress | Repost | RandomCompletion => {
                if batch == 1 {
                    self.path.post_group();
                } else {
                    (0..calls).for_each(|call| self.path.post(call));
                }
                self.outstanding += self.operations() as usize;
            }
            PostFree | RandomCompletionFree if batch == 1 => {
                for call in 0..GROUP {
                    self.path.poll_and_free_one();
                    self.path.post(call);
                }
            }
            PostFree | RandomCompletionFree => {
                self.path.poll_and_free(batch);
                self.path.post(0);
            }
            Poll if batch == 1 => (0..GROUP).for_each(|_| self.path.poll_one()),
            Poll => (0..calls).for_each(|_| self.path.poll(batch)),
            PollFree if batch == 1 => (0..GROUP).for_each(|_| self.path.poll_and_free_one()),
            PollFree => (0..calls).for_each(|_| self.path.poll_and_free(batch)),
            _ => (0..GROUP).for_each(|_| self.path.poll_empty()),
        }
    }
}
