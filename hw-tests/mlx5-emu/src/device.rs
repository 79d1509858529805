//! The state of the device in this process: all objects of all contexts, under one lock.
//!
//! Commands (ioctl), the hooks on libmlx5's data path functions, explicit calls of [`crate::step`]
//! and the helper thread take the lock. The holder of the lock acts as the device. Queue memory is
//! accessed only while the lock is held.

mod channels;
mod observer;

pub(crate) use observer::{Observer, observe, tell};

use std::collections::HashMap;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::engine::Card;
use crate::host::slab::Slab;
use crate::host::{sys, wake};
use crate::objects::{Ah, Dm, MAX_PD, Matcher, Pd, Xrcd};

/// A bit of every key's number, beyond the index: the small numbers are reserved.
const KEY_BIT: u32 = 1 << 22;
/// The card, and the tables of the commands.
pub(crate) struct Device {
    pub(crate) card: Card,
    pub(crate) pds: Slab<Pd>,
    pub(crate) ahs: Slab<Ah>,
    pub(crate) dms: Slab<Dm>,
    pub(crate) xrcds: Slab<Xrcd>,
    pub(crate) matchers: Slab<Matcher>,
    /// Blocks of reserved QP numbers that are taken, a bit each.
    pub(crate) reserved_qpns: u32,
    /// The low byte of the key that was made last.
    pub(crate) key_variant: u8,
    /// Descriptor of the program's end of each channel.
    pub(crate) channel_fds: HashMap<RawFd, usize>,
    /// Counts changes of the set of UAR pages.
    pub(crate) uar_changes: u64,
    /// UAR pages were allocated or freed, and the helper thread was not woken since.
    unused_uars: bool,
}

impl Device {
    fn new() -> Self {
        let keys = crate::host::config::key_seed().unwrap_or_else(sys::random);
        Self {
            card: Card::new(KEY_BIT | keys as u32 & (KEY_BIT - 1)),
            pds: Slab::new(MAX_PD),
            ahs: Slab::new(1 << 20),
            dms: Slab::new(1 << 12),
            xrcds: Slab::new(1 << 12),
            matchers: Slab::new(1 << 16),
            reserved_qpns: 0,
            key_variant: (keys >> 32) as u8,
            channel_fds: HashMap::new(),
            uar_changes: 0,
            unused_uars: false,
        }
    }

    /// The set of UAR pages changed: the helper thread has to know, also when it sleeps.
    pub(crate) fn uars_changed(&mut self) {
        self.uar_changes += 1;
        self.unused_uars = false;
        wake::wake();
    }

    /// A UAR page was allocated or freed. It has no doorbell with an effect before a QP receives or
    /// sends, so the helper thread sleeps on: to look for mappings takes it longer than the program
    /// needs to create a QP.
    pub(crate) fn unused_uars_changed(&mut self) {
        self.uar_changes += 1;
        self.unused_uars = true;
    }

    /// A QP receives or sends from now on, perhaps with doorbells on a page that the helper thread
    /// does not know.
    pub(crate) fn uars_in_use(&mut self) {
        if self.unused_uars {
            self.uars_changed();
        }
    }
}

static DEVICE: AtomicPtr<Mutex<Device>> = AtomicPtr::new(std::ptr::null_mut());
/// Number of forks between the process that loaded the crate and this process.
static GENERATION: AtomicU32 = AtomicU32::new(0);

/// Distinguishes the devices of a process and of its forked children.
pub(crate) fn generation() -> u32 {
    GENERATION.load(Ordering::Acquire)
}

/// The device of this process, made on first use.
#[expect(unsafe_code, reason = "a leaked static that a forked child replaces")]
pub(crate) fn mutex() -> &'static Mutex<Device> {
    let known = DEVICE.load(Ordering::Acquire);
    if !known.is_null() {
        // SAFETY: the pointer came from Box::leak and is never freed.
        return unsafe { &*known };
    }
    // Here rather than in the program's first registration.
    crate::host::mem::can_populate();
    let fresh = Box::into_raw(Box::new(Mutex::new(Device::new())));
    match DEVICE.compare_exchange(std::ptr::null_mut(), fresh, Ordering::AcqRel, Ordering::Acquire) {
        // SAFETY: just leaked, never freed.
        Ok(_) => unsafe { &*fresh },
        Err(other) => {
            // SAFETY: nobody else saw `fresh`; `other` was leaked by whoever won.
            unsafe {
                drop(Box::from_raw(fresh));
                &*other
            }
        }
    }
}

/// Takes the device's lock.
pub(crate) fn lock() -> MutexGuard<'static, Device> {
    mutex().lock().unwrap_or_else(PoisonError::into_inner)
}

/// Takes the lock if it is free.
pub(crate) fn try_lock() -> Option<MutexGuard<'static, Device>> {
    match mutex().try_lock() {
        Ok(guard) => Some(guard),
        Err(std::sync::TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(std::sync::TryLockError::WouldBlock) => None,
    }
}

/// Drops the parent's device in a forked child. Its memory is leaked, because another thread may
/// have held the lock at the time of the fork, and that thread does not exist in the child.
pub(crate) fn forget_in_child() {
    DEVICE.store(std::ptr::null_mut(), Ordering::Release);
    GENERATION.fetch_add(1, Ordering::AcqRel);
    crate::host::pin::forget_in_child();
}

/// True once the device was made.
pub(crate) fn exists() -> bool {
    !DEVICE.load(Ordering::Acquire).is_null()
}
