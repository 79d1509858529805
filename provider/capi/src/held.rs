//! The locks of handles, and which of them this thread holds. An agent runs inside a call of its
//! own thread. Its calls must not wait for a lock that the outer call holds.

use super::code::Code;
use provider::inside::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard, rank};
use provider::{ReturnType, Subtype};
use std::cell::Cell;
use std::ptr;
use std::sync::PoisonError;

type Lock<T> = RwLock<{ rank::HANDLE }, T>;

/// A lock that this thread holds: its address, and the handle of the object's IA.
type HeldLock = (usize, usize);

/// A call holds at most five locks of handles, and an agent may run inside a call of an agent.
/// Further locks are not recorded.
const MOST: usize = 32;

thread_local! {
    static HELD: [Cell<Option<HeldLock>>; MOST] = const { [const { Cell::new(None) }; MOST] };
    /// The number of agents that run on this thread.
    static AGENTS: Cell<u32> = const { Cell::new(0) };
}

/// The record of a lock that is held. It goes with this value.
pub(super) struct Held(Option<usize>);

fn hold<T>(lock: &'static Lock<T>, ia: usize) -> Held {
    // A thread that ends has no such variable any more.
    let place = HELD.try_with(|held| {
        let place = held.iter().position(|place| place.get().is_none())?;
        held[place].set(Some((ptr::from_ref(lock).addr(), ia)));
        Some(place)
    });
    Held(place.ok().flatten())
}

impl Drop for Held {
    fn drop(&mut self) {
        if let Some(place) = self.0 {
            let _ = HELD.try_with(|held| held[place].set(None));
        }
    }
}

/// Whether an agent runs on this thread, inside a call that holds a lock which `of` accepts.
fn by_outer_call(of: impl Fn(HeldLock) -> bool) -> bool {
    AGENTS.get() > 0 && HELD.with(|held| held.iter().filter_map(Cell::get).any(of))
}

/// The error of an agent whose call would have to wait for the end of the call that runs the agent.
fn in_use() -> Code {
    Code::new(ReturnType::InvalidState, Subtype::None)
}

/// Calls an agent.
pub(super) fn run_agent(agent: impl FnOnce()) {
    struct Over;

    impl Drop for Over {
        fn drop(&mut self) {
            AGENTS.set(AGENTS.get() - 1);
        }
    }

    AGENTS.set(AGENTS.get() + 1);
    let _over = Over;
    agent();
}

/// Read-locks an object of this IA. INVALID_STATE for an agent inside a call that changes the
/// object, or while another thread waits for the end of that call.
#[inline]
pub(super) fn read<T>(
    lock: &'static Lock<T>,
    ia: usize,
) -> Result<(RwLockReadGuard<'static, T>, Held), Code> {
    let guard = if by_outer_call(|(outer, _)| outer == ptr::from_ref(lock).addr()) {
        lock.try_read().ok_or(in_use())?
    } else {
        lock.read().unwrap_or_else(PoisonError::into_inner)
    };
    Ok((guard, hold(lock, ia)))
}

/// Write-locks an object of this IA. INVALID_STATE for an agent inside a call that uses the object.
pub(super) fn write<T>(
    lock: &'static Lock<T>,
    ia: usize,
) -> Result<(RwLockWriteGuard<'static, T>, Held), Code> {
    if by_outer_call(|(outer, _)| outer == ptr::from_ref(lock).addr()) {
        return Err(in_use());
    }
    Ok((lock.write().unwrap_or_else(PoisonError::into_inner), hold(lock, ia)))
}

/// INVALID_STATE for an agent inside a call that uses an object of this IA.
pub(super) fn check_ia(ia: usize) -> Result<(), Code> {
    if by_outer_call(|(_, of)| of == ia) { Err(in_use()) } else { Ok(()) }
}
