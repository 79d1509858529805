//! The uverbs front end: the command descriptor `/dev/infiniband/uverbs0`.
//!
//! Commands arrive by ioctl (`RDMA_VERBS_IOCTL`, mostly its method "invoke write") or by write(2),
//! as the program prefers. Both forms become a [`Command`] and are dispatched. Answers are limited
//! to the size of the caller's buffer. Errors are the kernel's errno values.

mod command;
mod context;
mod cq;
mod devx;
mod dm;
mod flow;
mod import;
mod memory;
mod modify_qp;
mod native;
mod qp;
mod query;
mod rss;
mod srq;

use std::io;
use std::os::fd::{AsRawFd as _, RawFd};
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, MutexGuard};

use command::Command;

use crate::device::Device;
use crate::objects::{Context, FIRST_DYNAMIC_UAR, ObjectKind, UAR_AREA};
use crate::vfile::{self, VirtualFile};
use crate::{mem, sys};

/// `_IOWR(0x1b, 1, struct ib_uverbs_ioctl_hdr)`.
const RDMA_VERBS_IOCTL: u64 = 0xc018_1b01;

/// One open command descriptor.
struct Uverbs {
    /// The context in the device of the process that used it last.
    context: AtomicUsize,
    /// Which process that was ([`crate::device::generation`]).
    generation: AtomicU32,
}

/// Opens the verbs device.
///
/// # Errors
/// ENODEV when the device was removed; the errors of memfd_create(2).
pub(crate) fn open() -> io::Result<RawFd> {
    let memory = sys::memfd(c"mlx5-emu-uar", UAR_AREA as u64)?;
    let program = sys::dup_cloexec(memory.as_raw_fd())?;
    let mut device = crate::device::lock();
    if device.card.dead {
        return Err(sys::errno(libc::EIO));
    }
    let context = device.new_context(memory.as_raw_fd())?;
    let generation = AtomicU32::new(crate::device::generation());
    drop(device);
    crate::helper::ensure();
    vfile::open(program, Arc::new(Uverbs { context: AtomicUsize::new(context), generation }))
}

impl Device {
    fn new_context(&mut self, memory: RawFd) -> io::Result<usize> {
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

    /// Gives an object a handle in its context.
    pub(crate) fn add_handle(&mut self, context: usize, kind: ObjectKind, index: usize) -> u32 {
        let context = &mut self.card.contexts[context];
        let handle = context.next_handle;
        context.next_handle += 1;
        context.handles.insert(handle, (kind, index));
        handle
    }

    /// The object behind a handle.
    ///
    /// # Errors
    /// ENOENT for a handle that does not exist, EINVAL for another kind of object.
    pub(crate) fn object(&self, context: usize, handle: u32, kind: ObjectKind) -> io::Result<usize> {
        match self.card.contexts[context].handles.get(&handle) {
            None => Err(sys::errno(libc::ENOENT)),
            Some(&(found, index)) if found == kind => Ok(index),
            Some(_) => Err(sys::errno(libc::EINVAL)),
        }
    }

    /// The kind and the index of the object behind a handle.
    ///
    /// # Errors
    /// ENOENT for a handle that does not exist.
    fn any_object(&self, context: usize, handle: u32) -> io::Result<(ObjectKind, usize)> {
        self.card.contexts[context].handles.get(&handle).copied().ok_or_else(|| sys::errno(libc::ENOENT))
    }

    pub(crate) fn drop_handle(&mut self, context: usize, handle: u32) {
        self.card.contexts[context].handles.remove(&handle);
    }
}

impl VirtualFile for Uverbs {
    fn write(&self, fd: RawFd, buf: &[u8]) -> io::Result<usize> {
        let command = Command::from_write(buf)?;
        self.run(fd, command)?;
        Ok(buf.len())
    }

    fn ioctl(&self, fd: RawFd, request: u64, arg: usize) -> io::Result<i32> {
        if request != RDMA_VERBS_IOCTL {
            return Err(sys::errno(libc::ENOTTY));
        }
        native::ioctl(self, fd, arg as u64)?;
        Ok(0)
    }

    fn device_number(&self) -> Option<(u32, u32)> {
        Some(crate::devices::UVERBS)
    }

    fn released(&self) {
        let mut device = crate::device::lock();
        if self.generation.load(Ordering::Relaxed) == crate::device::generation() {
            device.close_context(self.context.load(Ordering::Relaxed));
        }
    }
}

impl Uverbs {
    /// Locks the device and finds the context of this descriptor.
    ///
    /// The first call in a forked child creates a new context for the child on the same shared
    /// memory. The new context has none of the parent's objects and doorbell pages.
    fn locked(&self, fd: RawFd) -> io::Result<(MutexGuard<'static, Device>, usize)> {
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

    fn run(&self, fd: RawFd, mut command: Command) -> io::Result<()> {
        let (mut device, context) = self.locked(fd)?;
        device.dispatch(context, &mut command)
    }
}

impl Device {
    fn dispatch(&mut self, context: usize, command: &mut Command) -> io::Result<()> {
        use crate::commands::*;
        if self.card.dead {
            // A removed device answers EIO. Destroy commands still succeed, so that programs can
            // clean up.
            if !command.destroys() {
                return Err(sys::errno(libc::EIO));
            }
        }
        if let Some(errno) = self.card.faults.command_error(command.number) {
            return Err(sys::errno(errno));
        }
        if !self.card.contexts[context].ready
            && command.number != GET_CONTEXT
            && command.number != EX | QUERY_DEVICE
        {
            // Before GET_CONTEXT the kernel accepts no other command. The size probe of libibverbs
            // comes even earlier.
            if command.number == QUERY_DEVICE && command.core_out_len() == 0 {
                return Err(sys::errno(libc::ENOSPC));
            }
            return Err(sys::errno(libc::EINVAL));
        }
        match command.number {
            GET_CONTEXT => self.cmd_get_context(context, command),
            QUERY_DEVICE => self.cmd_query_device(command),
            n if n == EX | QUERY_DEVICE => self.cmd_query_device_ex(command),
            QUERY_PORT => self.cmd_query_port(command),
            ALLOC_PD => self.cmd_alloc_pd(context, command),
            DEALLOC_PD => self.cmd_dealloc_pd(context, command),
            CREATE_AH => self.cmd_create_ah(context, command),
            DESTROY_AH => self.cmd_destroy_ah(context, command),
            REG_MR => self.cmd_reg_mr(context, command),
            REREG_MR => self.cmd_rereg_mr(context, command),
            DEREG_MR => self.cmd_dereg_mr(context, command),
            ALLOC_MW => self.cmd_alloc_mw(context, command),
            DEALLOC_MW => self.cmd_dealloc_mw(context, command),
            CREATE_COMP_CHANNEL => self.cmd_create_channel(command),
            CREATE_CQ => self.cmd_create_cq(context, command, false),
            n if n == EX | CREATE_CQ => self.cmd_create_cq(context, command, true),
            RESIZE_CQ => self.cmd_resize_cq(context, command),
            DESTROY_CQ => self.cmd_destroy_cq(context, command),
            n if n == EX | MODIFY_CQ => self.cmd_modify_cq(context, command),
            CREATE_QP => self.cmd_create_qp(context, command, false),
            n if n == EX | CREATE_QP => self.cmd_create_qp(context, command, true),
            OPEN_QP => self.cmd_open_qp(context, command),
            QUERY_QP => self.cmd_query_qp(context, command),
            MODIFY_QP => self.cmd_modify_qp(context, command),
            n if n == EX | MODIFY_QP => self.cmd_modify_qp_ex(context, command),
            DESTROY_QP => self.cmd_destroy_qp(context, command),
            CREATE_SRQ => self.cmd_create_srq(context, command),
            CREATE_XSRQ => self.cmd_create_xsrq(context, command),
            MODIFY_SRQ => self.cmd_modify_srq(context, command),
            QUERY_SRQ => self.cmd_query_srq(context, command),
            DESTROY_SRQ => self.cmd_destroy_srq(context, command),
            n if n == EX | CREATE_FLOW => self.cmd_create_flow(context, command),
            n if n == EX | DESTROY_FLOW => self.cmd_destroy_flow(context, command),
            n if n == EX | CREATE_WQ => self.cmd_create_wq(context, command),
            n if n == EX | MODIFY_WQ => self.cmd_modify_wq(context, command),
            n if n == EX | DESTROY_WQ => self.cmd_destroy_wq(context, command),
            n if n == EX | CREATE_RWQ_IND_TBL => self.cmd_create_table(context, command),
            n if n == EX | DESTROY_RWQ_IND_TBL => self.cmd_destroy_table(context, command),
            OPEN_XRCD => self.cmd_open_xrcd(context, command),
            CLOSE_XRCD => self.cmd_close_xrcd(context, command),
            ATTACH_MCAST => self.cmd_attach_mcast(context, command, true),
            DETACH_MCAST => self.cmd_attach_mcast(context, command, false),
            _ => Err(sys::errno(libc::EOPNOTSUPP)),
        }
    }
}
