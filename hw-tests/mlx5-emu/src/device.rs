//! The state of the device in this process: all objects of all contexts, under one lock.
//!
//! Commands (ioctl), the hooks on libmlx5's data path functions, explicit calls of [`crate::step`]
//! and the helper thread take the lock. The holder of the lock acts as the device. Queue memory is
//! accessed only while the lock is held.

use std::collections::{BinaryHeap, HashMap, VecDeque};
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::objects::faults::Faults;
use crate::objects::{
    Ah, Channel, Context, Cq, Dm, Flow, IndirectionTable, Layout, MAX_CQ, MAX_KEYS, MAX_PD, MAX_QP, MAX_SRQ,
    MAX_TABLES, Matcher, Mkey, Pd, Qp, Seg, Srq, Timer, Xrcd,
};
use crate::slab::Slab;
use crate::sys;
use crate::wire::Net;
use crate::wire::groups::Groups;

/// A bit of every key's number, beyond the index: the small numbers are reserved.
const KEY_BIT: u32 = 1 << 22;
/// The device.
pub(crate) struct Device {
    pub(crate) contexts: Slab<Context>,
    pub(crate) pds: Slab<Pd>,
    pub(crate) keys: Slab<Mkey>,
    pub(crate) cqs: Slab<Cq>,
    pub(crate) srqs: Slab<Srq>,
    pub(crate) qps: Slab<Qp>,
    pub(crate) ahs: Slab<Ah>,
    pub(crate) dms: Slab<Dm>,
    /// Blocks of reserved QP numbers that are taken, a bit each.
    pub(crate) reserved_qpns: u32,
    /// Memory behind indirect keys, by index of the key.
    pub(crate) layouts: HashMap<usize, Layout>,
    pub(crate) flows: Slab<Flow>,
    pub(crate) groups: Groups,
    pub(crate) matchers: Slab<Matcher>,
    pub(crate) xrcds: Slab<Xrcd>,
    pub(crate) tables: Slab<IndirectionTable>,
    pub(crate) channels: Slab<Channel>,
    /// Descriptor of the program's end of each channel.
    pub(crate) channel_fds: HashMap<RawFd, usize>,
    /// QPs with a doorbell rung.
    pub(crate) ready: VecDeque<usize>,
    /// The QP whose send WQE is being carried out.
    pub(crate) executing: Option<usize>,
    /// That QP goes to the error state once this WQE has completed.
    pub(crate) breaks: bool,
    pub(crate) timers: BinaryHeap<Timer>,
    pub(crate) net: Net,
    pub(crate) faults: Faults,
    pub(crate) port_up: bool,
    /// The device was removed or met a fatal error. It carries out no request, of its own QPs or of
    /// others, and takes no answer.
    pub(crate) dead: bool,
    /// Scratch lists, kept to avoid allocation.
    pub(crate) gather: Vec<Seg>,
    pub(crate) scatter: Vec<Seg>,
    /// Channels with events that did not fit into their socket.
    pub(crate) backlogged: bool,
    pub(crate) messages: u64,
    /// CQEs written.
    pub(crate) completions: u64,
    pub(crate) hooked_steps: u64,
    pub(crate) key_variant: u8,
    /// The number of a key is its index with these bits changed, so that no other process can guess it.
    pub(crate) key_mask: u32,
    /// QPs in the error state. The program may still post to their receive rings.
    pub(crate) in_error: Vec<usize>,
    /// Counts changes of the set of UAR pages.
    pub(crate) uar_changes: u64,
    /// UAR pages were allocated or freed, and the helper thread was not woken since.
    unused_uars: bool,
    /// No thread writes to a doorbell register now: the program requested this step, and there is
    /// no helper thread.
    pub(crate) settled: bool,
}

impl Device {
    fn new() -> Self {
        let net = Net::new();
        let keys = crate::config::key_seed().unwrap_or_else(sys::random);
        Self {
            contexts: Slab::compact(1 << 10),
            pds: Slab::new(MAX_PD),
            keys: Slab::new(MAX_KEYS),
            cqs: Slab::new(MAX_CQ),
            srqs: Slab::new(MAX_SRQ),
            qps: Slab::new(MAX_QP),
            ahs: Slab::new(1 << 20),
            dms: Slab::new(1 << 12),
            reserved_qpns: 0,
            layouts: HashMap::new(),
            flows: Slab::new(1 << 16),
            groups: Groups::default(),
            matchers: Slab::new(1 << 16),
            xrcds: Slab::new(1 << 12),
            tables: Slab::new(MAX_TABLES),
            channels: Slab::compact(1 << 16),
            channel_fds: HashMap::new(),
            ready: VecDeque::new(),
            executing: None,
            breaks: false,
            timers: BinaryHeap::new(),
            net,
            faults: Faults::from_environment(),
            port_up: true,
            dead: false,
            gather: Vec::with_capacity(64),
            scatter: Vec::with_capacity(64),
            backlogged: false,
            messages: 0,
            completions: 0,
            hooked_steps: 0,
            key_variant: (keys >> 32) as u8,
            key_mask: KEY_BIT | keys as u32 & (KEY_BIT - 1),
            in_error: Vec::new(),
            uar_changes: 0,
            unused_uars: false,
            settled: false,
        }
    }

    /// The set of UAR pages changed: the helper thread has to know, also when it sleeps.
    pub(crate) fn uars_changed(&mut self) {
        self.uar_changes += 1;
        self.unused_uars = false;
        crate::wake::wake();
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

    /// Doorbells on this page are found without a watch for a while.
    pub(crate) fn leave_unwatched(&mut self, context: usize, page: u32) {
        if let Some(state) = self.contexts.get_mut(context)
            && let Some(slot) = state.uar_slot(page)
        {
            state.uar_pages[slot].hooked = true;
        }
    }

    /// True when the device has work to do soon that no descriptor, timer or doorbell announces.
    pub(crate) fn is_restless(&self) -> bool {
        self.backlogged || !self.in_error.is_empty() || self.faults.active
    }

    /// The QP with this number, if it lives in this process.
    #[inline(always)]
    pub(crate) fn qp_by_number(&self, qpn: u32) -> Option<usize> {
        let index = (qpn & (MAX_QP as u32 - 1)) as usize;
        self.qps.get(index).filter(|qp| qp.qpn == qpn).map(|_| index)
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
    crate::mem::can_populate();
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
    crate::pin::forget_in_child();
}

/// True once the device was made.
pub(crate) fn exists() -> bool {
    !DEVICE.load(Ordering::Acquire).is_null()
}
