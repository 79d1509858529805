//! Biased locks: one thread, the owner, takes the lock without an atomic read-modify-write
//! instruction. Any other thread can take the lock, too, at a higher cost.
//!
//! [`BiasedMutex`] holds a value, as a mutex of parking_lot does. [`BiasedLock`] holds an object
//! that can be put in and taken out while threads use the lock; it is meant for static memory.
//!
//! # Modes
//!
//! - **Biased.** The lock has an owner: the first thread that took it. The owner enters and leaves
//!   with plain stores. Another thread that wants the lock *revokes* the bias: it publishes that
//!   there is no owner any more, executes a memory barrier in all running threads of the process
//!   (membarrier(2)), and waits until the owner has left.
//! - **Shared.** All threads take an ordinary lock: one atomic instruction to enter and one to
//!   leave; waiting threads are parked. A thread that enters several times in a row without another
//!   thread in between becomes the owner. That number is 4 at first, doubles with each revocation,
//!   and is at most 1,024. So one visit of another thread costs little, and the cost of the
//!   revocations (some microseconds each) is small against that of the entries between them. A
//!   thread that has said that it only visits ([`visit_only`]) becomes the owner late.
//!
//! The lock stays shared where the kernel lacks membarrier or a sandbox forbids it.
//!
//! A thread that waits for another to leave keeps the processor for some microseconds, which is a
//! hundred times as long as a lock is mostly used. Then the other thread is likely not to be
//! running: the waiting thread yields and sleeps, or is parked.
//!
//! # Proof of mutual exclusion
//!
//! All changes of mode, and all use in shared mode, happen under the ordinary lock (`slow`). So
//! only an owner on the fast path has to be considered. A `raw::Bias` is one thread's ownership of
//! one lock. Its word `open` is the owner's thread ID, or 0 while the owner is inside. The owner
//! executes: load `open`, and go on only if it is not 0; store `open = 0`; light fence; load
//! `bias`. It enters only if the loaded bias is still its own; otherwise it stores its ID in `open`
//! again. A thread that revokes the bias executes: store another `bias`, or NULL; heavy fence; load
//! the owner's `open` until it is not 0. The light fence only keeps the compiler from reordering.
//! The heavy fence executes a full memory barrier in the owner's thread at some point of the
//! owner's program:
//!
//! - after the store of 0: the store is visible before the heavy fence returns, so the thread that
//!   revokes reads 0 and waits;
//! - before the store of 0: the load of `bias` comes after the barrier, so the owner reads the new
//!   bias and does not enter.
//!
//! The owner may have loaded `bias` long before it stores 0. That is safe, because only one thread
//! ever stores to the `open` of a given `Bias`, and a `Bias` is not freed while the lock exists: a
//! late store cannot be taken for another thread's. Nor can the owner read its own bias again after
//! it was revoked: only the owner itself makes it the bias of the lock, by an entry in shared mode.
//! From shared to biased no fence is needed: the new owner is inside (`open` is 0) when it
//! publishes its bias, and a thread that revokes that bias has taken `slow` after the new owner
//! released it.
//!
//! A thread that is inside finds `open == 0` and cannot enter a second time; this includes signal
//! handlers.
//!
//! A mutex may have a [`Door`]: a second word, which may outlive the mutex, and in which the owner
//! finds its bias as well. The owner reads the bias there, twice as above. The word has the bias of
//! an owner only while the lock has: a thread that revokes the bias, or closes the door, removes
//! the bias from both words before the heavy fence. So the proof is the same for either word. A
//! thread may have read the word, and then read `open`, when the mutex is gone; so a mutex that may
//! have a door never frees a bias, but keeps it for another lock of the same thread. A mutex that
//! is dropped closes its door, and thereby waits for an owner that has entered by it.
//!
//! # The ordinary lock
//!
//! `slow` is taken by a locked instruction and released by a plain store. A thread that releases it
//! executes: store `slow = 0`; light fence; load the number of parked threads, and wake one if it
//! is not 0. A thread that has waited long executes: increment that number; heavy fence; load
//! `slow`, and go to sleep only if it is not 0, with no wake-up between the load and the sleep. It
//! decrements the number when it has the lock. The barrier falls into the program of the thread
//! that holds `slow`: after its store, and the waiting thread reads 0; or before its load, and it
//! reads another number than 0 and wakes a thread. Without membarrier, both fences are ordinary
//! ones, with the same result.
//!
//! # Visibility
//!
//! The value's memory is visible to the next user: each user leaves with a release store (of `open`
//! or of `slow`), which the next user reads with acquire before it enters; an owner that enters
//! again by the fast path was the last user.
//!
//! # Forks
//!
//! The child of a fork has one thread, and a lock that another thread held at the time of the fork
//! stays held there: the child frees it by [`BiasedMutex::force_unlock`] or [`BiasedLock::forget`].
//! The crate has one lock of its own, around the list of unused biases. The thread that forks holds
//! it by [`hold_shared_locks`] from before the fork until after it, in both processes. Then the
//! child calls [`forget_parked`]. Parked threads sleep in futex(2), so the list of them is the
//! kernel's, and no thread of the parent can hold a lock on it.
//!
//! `tests/model.rs` explores the protocol with loom and says what the model covers.

mod door;
mod lock;
mod mutex;
mod new;
mod platform;
mod raw;
#[cfg(test)]
mod tests;

pub use self::door::Door;
pub use self::lock::{BiasedLock, LockError};
pub use self::mutex::BiasedMutex;
pub use self::platform::{SharedLocks, forget_parked, hold_shared_locks, is_u32, prepare, visit_only};
pub use self::raw::{Guard, OwnerGuard};
