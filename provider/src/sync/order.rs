//! The ranks of locks, and in debug builds the check of the order in which threads take them.

/// The ranks, from the outermost lock to the innermost.
pub mod rank {
    macro_rules! ranks {
        ($($(#[$doc:meta])* $name:ident = $rank:literal $text:literal;)+) => {
            $($(#[$doc])* #[doc = concat!("Of `", $text, "`.")] pub const $name: u8 = $rank;)+

            /// The name of the lock of this rank in the code.
            #[cfg(debug_assertions)]
            pub(crate) const fn name(rank: u8) -> &'static str {
                match rank {
                    $($rank => $text,)+
                    _ => "a lock without a name",
                }
            }
        };
    }

    ranks! {
        HANDLE = 0 "HandleSlot::object";
        NAMING = 1 "NAMING";
        ANSWERED = 2 "CrInner::answered";
        OPEN = 3 "CrInner::open";
        RESERVED = 4 "ServicePoint::reserved";
        ENDING = 5 "EpInner::ending";
        CONTROL = 6 "EpInner::control";
        WINDOW = 7 "RmrInner::state";
        TIES = 8 "SrqInner::eps";
        LOW = 9 "SrqInner::low";
        ORDER = 10 "Device::order";
        CONNECT_EVD = 11 "EpInner::connect_evd";
        DEFAULTS = 12 "Defaults::made";
        QUEUE = 13 "EvdInner::queue";
        REQUESTS = 14 "QueuePair::requests";
        RECEIVES = 15 "QueuePair::receives";
        DATAGRAMS = 16 "UdState";
        LOSSES = 17 "LostEntries::losses";
        /// A thread that holds a lock of this rank takes no other lock of this crate.
        TABLE = 20 "a table";
    }
}

/// Checks in debug builds that the thread holds no lock of this module, except those of handles.
/// Code of the program, which may make any call, runs after this check.
///
/// # Panics
/// In a debug build, if the thread holds another lock.
#[cfg_attr(debug_assertions, track_caller)]
pub(crate) fn check_none_held() {
    #[cfg(debug_assertions)]
    held::check_none();
}

/// Records that this thread holds a lock. Dropping the value ends the record.
#[derive(Debug)]
pub(super) struct Held {
    #[cfg(debug_assertions)]
    rank: u8,
}

#[cfg(not(debug_assertions))]
impl Held {
    #[inline(always)]
    pub(super) fn checked(_: u8) -> Self {
        Self {}
    }

    #[inline(always)]
    pub(super) fn unchecked(_: u8) -> Self {
        Self {}
    }
}

#[cfg(debug_assertions)]
mod held {
    use super::{Held, rank};
    use std::cell::Cell;

    thread_local! {
        /// Bit `r`: the thread holds a lock of rank `r`.
        static RANKS: Cell<u32> = const { Cell::new(0) };
        /// Locks of rank [`rank::HANDLE`] that the thread holds.
        static HANDLES: Cell<u32> = const { Cell::new(0) };
    }

    /// Panics if the thread holds a lock other than those of handles.
    #[track_caller]
    pub(super) fn check_none() {
        let held = RANKS.get() & !(1 << rank::HANDLE);
        assert!(
            held == 0 || std::thread::panicking(),
            "lock order: code of the program would run while the thread holds {}",
            rank::name((31 - held.leading_zeros()) as u8),
        );
    }

    impl Held {
        /// Records a lock of this rank, for which the thread is about to wait.
        ///
        /// # Panics
        /// If the thread holds a lock of this rank or of a higher rank. Several handles may be held
        /// together.
        #[track_caller]
        pub(in super::super) fn checked(rank: u8) -> Self {
            super::hook::call(rank);
            let held = RANKS.get();
            let beyond = u32::from(rank != rank::HANDLE);
            let same_or_inner = held >> rank & !(1 - beyond);
            assert!(
                same_or_inner == 0 || std::thread::panicking(),
                "lock order: {} is taken while the thread holds {}; ARCHITECTURE.md (Locks) has the order",
                rank::name(rank),
                rank::name((31 - held.leading_zeros()) as u8),
            );
            Self::unchecked(rank)
        }

        /// Records a lock of this rank for which the thread has not waited.
        pub(in super::super) fn unchecked(rank: u8) -> Self {
            RANKS.set(RANKS.get() | 1 << rank);
            if rank == rank::HANDLE {
                HANDLES.set(HANDLES.get() + 1);
            }
            Self { rank }
        }
    }

    impl Drop for Held {
        fn drop(&mut self) {
            if self.rank == rank::HANDLE {
                HANDLES.set(HANDLES.get() - 1);
                if HANDLES.get() > 0 {
                    return;
                }
            }
            RANKS.set(RANKS.get() & !(1 << self.rank));
        }
    }
}

/// Lets a test run code whenever a thread is about to take a lock.
#[cfg(debug_assertions)]
pub mod hook {
    use super::rank;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::{Arc, PoisonError, RwLock};

    /// Called with the name of the lock, on the thread that is about to take the lock.
    pub type Hook = Arc<dyn Fn(&'static str) + Send + Sync>;

    static HOOK: RwLock<Option<Hook>> = RwLock::new(None);
    static HOOKED: AtomicBool = AtomicBool::new(false);

    /// Makes every thread call the hook before it takes a lock of the provider. `None` removes the
    /// hook. The hook may block: tests use this to stop a thread at a lock.
    pub fn before_locks(hook: Option<Hook>) {
        let hooked = hook.is_some();
        *HOOK.write().unwrap_or_else(PoisonError::into_inner) = hook;
        HOOKED.store(hooked, Ordering::Release);
    }

    pub(super) fn call(rank: u8) {
        if !HOOKED.load(Ordering::Acquire) {
            return;
        }
        let hook = HOOK.read().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(hook) = hook {
            hook(rank::name(rank));
        }
    }
}
