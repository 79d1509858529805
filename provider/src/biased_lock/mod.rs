//! A biased lock: one thread, the owner, uses an object without an atomic read-modify-write
//! instruction. Other threads can take over the ownership or take the object away.
//!
//! Nearly always one thread posts to an SRQ, so the lock is biased towards that thread. The owner
//! marks its use of the object with plain stores ([`BiasedLock::try_lock_fast`]). Another thread
//! that needs the object first makes itself the owner ([`BiasedLock::lock`]): it replaces the
//! owner's bias, executes a memory barrier in all running threads of the process
//! (membarrier(2)), and waits until the previous owner has left. The thread that takes over pays
//! the whole cost. After 16 changes of owner the lock is a spin lock until the next
//! object is put in. The lock is a spin lock from the start where the kernel lacks membarrier or a
//! sandbox forbids it.
//!
//! # Proof of mutual exclusion
//!
//! The owner executes: store `busy = 1`; light fence; load `bias`. The owner enters only if the
//! loaded bias is still the owner's own. The thread that takes over executes: store the new `bias`;
//! heavy fence; load the old owner's `busy` until it is 0. The light fence only keeps the compiler
//! from reordering. The heavy fence executes a full memory barrier in the owner's thread at some
//! point of the owner's program:
//!
//! - after the store of `busy`: the store is visible before the heavy fence returns, so the thread
//!   that takes over reads `busy == 1` and waits;
//! - before the store of `busy`: the load of `bias` comes after the barrier, so the owner reads the
//!   new bias and does not enter.
//!
//! The owner may have loaded `bias` long before it stores `busy`. That is safe, because only one
//! thread ever stores to the `busy` of a given bias, and a `Bias` is never freed: a late store
//! cannot be taken for another thread's. A signal handler runs in the interrupted thread and would
//! pass for the owner; DAT calls are not async-signal-safe, so no handler makes them.
//!
//! The object's memory is visible to the next user: each user leaves with a release store (of
//! `busy`, or of `slow_holder` for a spin lock), which the next user reads with acquire before it
//! enters.
//!
//! `tests/biased_lock_model.rs` explores `lock.rs` with loom and says what the model covers.

mod lock;
mod new;
mod platform;
#[cfg(test)]
mod tests;

pub(crate) use self::lock::{BiasedLock, Guard, LockError};
pub(crate) use self::platform::hold_shared_locks;
