//! Open command descriptors.

use std::io;
use std::os::fd::RawFd;
use std::sync::MutexGuard;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use super::command::Command;
use crate::device::Device;
use crate::host::{mem, sys};
use crate::objects::{Context, FIRST_DYNAMIC_UAR, UAR_AREA};

/// One open command descriptor.
pub(super) struct Uverbs {
    /// The context in the device of the process that used it last.
    pub(super) context: AtomicUsize,
    /// Which process that was ([`crate::device::generation`]).
    pub(super) generation: AtomicU32,
}

impl Device {
    pub(super) fn new_context(&mut self, memory: RawFd) -> io::Result<usize> {
        let uar = mem::map_shared(memory, UAR_AREA)?;
        let uar_file = sys::inode_of(memory)?;
        let context = Context {
            uar,
            uar_file,
            uar_pages: Vec::new(),
            next_uar_page: FIRST_DYNAMIC_UAR,
            handles: std::collections::BTreeMap::new(),
            next_handle: 1,
            async_channel: None,
            cqe_version: 1,
            ready: false,
        };
        self.card.contexts.insert(context).ok_or_else(|| sys::errno(libc::ENFILE))
    }
}

impl Uverbs {
    /// Locks the device and finds the context of this descriptor.
    ///
    /// The first call in a forked child creates a new context for the child on the same shared
    /// memory. The new context has none of the parent's objects and doorbell pages.
    pub(super) fn locked(&self, fd: RawFd) -> io::Result<(MutexGuard<'static, Device>, usize)> {
        let mut device = crate::device::lock();
        let generation = crate::device::generation();
        if self.generation.load(Ordering::Relaxed) != generation {
            let context = device.new_context(fd)?;
            let state = &mut device.card.contexts[context];
            state.ready = true;
            state.next_uar_page = (UAR_AREA / 4096) as u32;
            self.context.store(context, Ordering::Relaxed);
            self.generation.store(generation, Ordering::Relaxed);
        }
        Ok((device, self.context.load(Ordering::Relaxed)))
    }

    pub(super) fn run(&self, fd: RawFd, mut command: Command) -> io::Result<()> {
        let (mut device, context) = self.locked(fd)?;
        device.dispatch(context, &mut command)
    }
}
