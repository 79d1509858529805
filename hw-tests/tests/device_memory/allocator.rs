//! An allocator that fails on demand.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};

/// Smaller allocations always succeed: see provider/src/memory.rs.
pub(crate) const LEAST: usize = 2560;

#[global_allocator]
static ALLOCATOR: Failing = Failing;

struct Failing;

/// Large allocations of all threads fail.
pub(crate) static EXHAUSTED: AtomicBool = AtomicBool::new(false);

/// Bytes of large allocations that all threads hold.
pub(crate) static HELD: AtomicUsize = AtomicUsize::new(0);

fn hold(at: *mut u8, size: usize) -> *mut u8 {
    if size >= LEAST && !at.is_null() {
        HELD.fetch_add(size, SeqCst);
    }
    at
}

fn give_back(size: usize) {
    if size >= LEAST {
        HELD.fetch_sub(size, SeqCst);
    }
}

/// Which large allocations of this thread fail.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Plan {
    Succeed,
    /// The one after this many.
    FailOnce(u32),
    /// All after this many.
    FailFrom(u32),
    Failed,
    Failing,
}

thread_local! {
    pub(crate) static PLAN: Cell<Plan> = const { Cell::new(Plan::Succeed) };
}

fn refuses(size: usize) -> bool {
    if size < LEAST {
        return false;
    }
    if EXHAUSTED.load(SeqCst) {
        return true;
    }
    let (fails, next) = match PLAN.get() {
        Plan::FailOnce(0) => (true, Plan::Failed),
        Plan::FailFrom(0) => (true, Plan::Failing),
        Plan::FailOnce(n) => (false, Plan::FailOnce(n - 1)),
        Plan::FailFrom(n) => (false, Plan::FailFrom(n - 1)),
        plan => (plan == Plan::Failing, plan),
    };
    PLAN.set(next);
    fails
}

// SAFETY: all memory comes from the system allocator; every allocator may return a null pointer.
unsafe impl GlobalAlloc for Failing {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if refuses(layout.size()) {
            return std::ptr::null_mut();
        }
        // SAFETY: passed on.
        hold(unsafe { System.alloc(layout) }, layout.size())
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        give_back(layout.size());
        // SAFETY: passed on.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if refuses(layout.size()) {
            return std::ptr::null_mut();
        }
        // SAFETY: passed on.
        hold(unsafe { System.alloc_zeroed(layout) }, layout.size())
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if refuses(size) {
            return std::ptr::null_mut();
        }
        // SAFETY: passed on.
        let moved = unsafe { System.realloc(at, layout, size) };
        if !moved.is_null() {
            give_back(layout.size());
        }
        hold(moved, size)
    }
}
