//! Calls without enough memory. For each allocation of a call, the test makes that allocation fail,
//! once alone and once together with all later ones. The call must return INSUFFICIENT_RESOURCES,
//! leave nothing behind (descriptors, threads, device objects), and succeed when it is repeated.
#![expect(unsafe_code, reason = "an allocator that fails on demand")]

mod allocator;
mod connections;
mod events;
mod objects;

use crate::allocator::{PLAN, Plan};
use doorbell::{CompletionFlags, EpAttr, Error, Lmr, PostError, Refused, ReturnType};
use doorbell_hw_tests::rig::*;
use doorbell_hw_tests::software::order;
use std::fmt::Debug;

fn main() {
    doorbell_hw_tests::run_with_threads(&[objects::TESTS, connections::TESTS, events::TESTS].concat(), 1)
        .exit();
}

const NONE: CompletionFlags = CompletionFlags::empty();

/// Descriptors and threads of this process, and objects of the software device if it is loaded.
#[derive(Debug)]
struct Holdings {
    fds: usize,
    threads: usize,
    objects: Option<[i64; 6]>,
}

impl Holdings {
    fn now() -> Self {
        let entries = |path: &str| std::fs::read_dir(path).unwrap().count();
        Self { objects: device_objects(), fds: entries("/proc/self/fd"), threads: entries("/proc/self/task") }
    }
}

impl Holdings {
    /// Waits until there are no more than these. Threads that have ended may still be counted for a
    /// moment.
    fn is_within(&self, most: &Self) -> bool {
        let objects = |of: &Self| of.objects.unwrap_or_default();
        let within = objects(self).iter().zip(objects(most)).all(|(now, most)| *now <= most);
        within && self.fds <= most.fds && self.threads <= most.threads
    }
}

fn device_objects() -> Option<[i64; 6]> {
    let kinds = ["pd", "mr", "cq", "qp", "srq", "ah"];
    (order("ready") == 0).then(|| kinds.map(|kind| order(&format!("count {kind}"))))
}

/// The error of a call without memory.
trait Shortage: Debug {
    fn is_resources(&self) -> bool;
}

impl Shortage for Error {
    fn is_resources(&self) -> bool {
        self.return_type() == ReturnType::InsufficientResources
    }
}

impl<T: Debug> Shortage for Refused<T> {
    fn is_resources(&self) -> bool {
        self.error.is_resources()
    }
}

impl Shortage for PostError {
    fn is_resources(&self) -> bool {
        matches!(self, PostError::Full(_))
    }
}

/// Repeats the call in a new environment, each time with the next of its allocations failing, until
/// none fails. After each failure the same call must succeed.
fn with_each_failure<S, T, E: Shortage>(
    what: &str,
    surroundings: impl FnMut() -> S,
    call: impl FnMut(&mut S) -> Result<T, E>,
    works: impl FnMut(&mut S, T),
) {
    each_failure(what, Leaves::Nothing, surroundings, call, works);
}

/// What may remain.
#[derive(Clone, Copy, PartialEq)]
enum Leaves {
    Nothing,
    /// After a call that failed: objects that the IA creates once for itself.
    WithItsIa,
}

/// The same for calls that create lasting objects.
fn each_failure<S, T, E: Shortage>(
    what: &str,
    leaves: Leaves,
    mut surroundings: impl FnMut() -> S,
    mut call: impl FnMut(&mut S) -> Result<T, E>,
    mut works: impl FnMut(&mut S, T),
) {
    // One run without failures, so that libraries have allocated what they keep after their first
    // use.
    let mut around = surroundings();
    let made = call(&mut around).unwrap_or_else(|e| panic!("{what}: {e:?}"));
    works(&mut around, made);
    drop(around);
    for plan in [Plan::FailOnce, Plan::FailFrom] {
        let mut failures = 0;
        for n in 0.. {
            let outside = Holdings::now();
            let mut around = surroundings();
            let before = Holdings::now();
            PLAN.set(plan(n));
            let outcome = call(&mut around);
            let plan_left = PLAN.replace(Plan::Succeed);
            let failed = matches!(plan_left, Plan::Failed | Plan::Failing);
            match outcome {
                // Some calls make no large allocation.
                Ok(made) => works(&mut around, made),
                Err(error) => {
                    assert!(failed, "{what}: {error:?}");
                    assert!(error.is_resources(), "{what}, allocation {n}: {error:?}");
                    drop(error);
                    failures += 1;
                    if leaves != Leaves::WithItsIa {
                        until(what, || Holdings::now().is_within(&before));
                    }
                    let made =
                        call(&mut around).unwrap_or_else(|e| panic!("{what}, after allocation {n}: {e:?}"));
                    works(&mut around, made);
                }
            }
            drop(around);
            until("the call, and all around it, holds nothing any more", || {
                Holdings::now().is_within(&outside)
            });
            if !failed {
                break;
            }
        }
        assert!(failures > 0, "{what} allocates nothing");
    }
}

/// An EP with queues of this length.
fn long(n: u32) -> EpAttr {
    EpAttr { recv_depth: n, request_depth: n, ..EpAttr::default() }
}

/// An LMR with a context for peers.
fn remote(side: &Side) -> Lmr {
    Lmr::builder(&side.ia, &side.pz).privileges(all_privileges()).allocate(64).unwrap()
}
