//! Completion queues.

use std::io;

use super::command::{Answer, Command};
use super::limits::{MAX_CQE, MINI_CQE_FORMATS};
use crate::device::{Device, tell};
use crate::host::mem::Area;
use crate::host::pin::Pin;
use crate::host::sys;
use crate::objects::{Armed, Cq, ObjectKind, Stamps, event};

impl Device {
    pub(super) fn cmd_create_cq(
        &mut self,
        context: usize,
        command: &Command,
        extended: bool,
    ) -> io::Result<()> {
        const FLAG_TIMESTAMP: u32 = 1;
        const FLAG_IGNORE_OVERRUN: u32 = 2;
        command.need(32, 8)?;
        command.need_uhw(20)?;
        let request = command.core();
        // The extended form has no response pointer in front.
        let base = if extended { 0 } else { 8 };
        let user_handle = request.u64(base);
        let cqe = request.u32(base + 8);
        let vector = request.u32(base + 12);
        let channel_fd = request.u32(base + 16).cast_signed();
        let (mask, flags) = if extended { (request.u32(20), request.u32(24)) } else { (0, 0) };
        if mask != 0 || flags & !(FLAG_TIMESTAMP | FLAG_IGNORE_OVERRUN) != 0 {
            return Err(sys::errno(libc::EOPNOTSUPP));
        }
        if cqe == 0 || cqe > MAX_CQE || vector >= 1 {
            return Err(sys::errno(libc::EINVAL));
        }
        let driver = command.uhw();
        let (buf_addr, record_addr, cqe_size) = (driver.u64(0), driver.u64(8), driver.u32(16));
        let (compression, format) = (driver.u8(20), driver.u8(21));
        let (driver_flags, uar_page) = (driver.u16(22), driver.u16(24));
        const CQE_128B_PAD: u16 = 1;
        const UAR_PAGE_INDEX: u16 = 2;
        const REAL_TIME: u16 = 4;
        if compression > 1 || driver_flags & !(CQE_128B_PAD | UAR_PAGE_INDEX | REAL_TIME) != 0 {
            return Err(sys::errno(libc::EOPNOTSUPP));
        }
        if cqe_size != 64 && cqe_size != 128 {
            return Err(sys::errno(libc::EINVAL));
        }
        // A device may compress CQEs, but need not. The software device checks the format and
        // writes uncompressed CQEs.
        if compression == 1 && (format.count_ones() != 1 || u32::from(format) & MINI_CQE_FORMATS == 0) {
            return Err(sys::errno(libc::EINVAL));
        }
        if driver_flags & CQE_128B_PAD != 0 && cqe_size != 128 {
            return Err(sys::errno(libc::EOPNOTSUPP));
        }
        if driver_flags & UAR_PAGE_INDEX != 0 && !self.has_uar_page(context, u32::from(uar_page)) {
            return Err(sys::errno(libc::EINVAL));
        }
        let channel = if channel_fd >= 0 {
            Some(*self.channel_fds.get(&channel_fd).ok_or_else(|| sys::errno(libc::EBADF))?)
        } else {
            None
        };
        let count = (cqe + 1).next_power_of_two();
        let bytes = count as usize * cqe_size as usize;
        let pins = [Pin::buffer(buf_addr, bytes)?, Pin::record(context, record_addr)?];
        let buf = Area::checked(buf_addr, bytes, 64)?;
        let record = Area::checked(record_addr, 8, 8)?;
        // So that the first arm, which writes 0 over 0, can be seen.
        record.set_be32(4, u32::MAX);
        let cq = Cq {
            cqn: 0,
            context,
            user_handle,
            handle: 0,
            buf,
            log_count: count.trailing_zeros(),
            cqe_size,
            record,
            channel,
            pi: 0,
            ci: 0,
            solicited_pi: 0,
            notified_pi: 0,
            armed: Armed::No,
            arm_sn: 0,
            arm_seen: u32::MAX,
            users: 0,
            overrun: false,
            ignore_overrun: flags & FLAG_IGNORE_OVERRUN != 0,
            stamps: match (flags & FLAG_TIMESTAMP != 0, driver_flags & REAL_TIME != 0) {
                (_, true) => Stamps::RealTime,
                (true, false) => Stamps::Cycles,
                (false, false) => Stamps::No,
            },
            comp_events: 0,
            async_events: 0,
            pins,
        };
        let index = self.card.cqs.insert(cq).ok_or_else(|| sys::errno(libc::ENOMEM))?;
        let handle = self.add_handle(context, ObjectKind::Cq, index);
        self.card.cqs[index].handle = handle;
        self.card.cqs[index].cqn = index as u32 + 1;
        if let Some(channel) = channel {
            self.card.hold_channel(channel);
        }
        tell(|observer| observer.cq_created(command.fd, context, user_handle));
        let mut out = Answer::default();
        out.u32(handle).u32(count - 1);
        if extended {
            out.u32(0).u32(16);
        }
        command.answer(&out.0)?;
        let mut uhw = Answer::default();
        uhw.u32(index as u32 + 1).u32(0);
        command.answer_uhw(&uhw.0)
    }

    /// The CQ behind a handle.
    pub(super) fn cq(&self, context: usize, handle: u32) -> io::Result<usize> {
        self.object(context, handle, ObjectKind::Cq)
    }

    /// RESIZE_CQ: the new buffer is used at once. A resize CQE in the old buffer tells libmlx5
    /// where the old CQEs end.
    pub(super) fn cmd_resize_cq(&mut self, context: usize, command: &Command) -> io::Result<()> {
        command.need(16, 8)?;
        command.need_uhw(10)?;
        let request = command.core();
        let index = self.cq(context, request.u32(8))?;
        let cqe = request.u32(12);
        if cqe == 0 || cqe > MAX_CQE {
            return Err(sys::errno(libc::EINVAL));
        }
        let (buf_addr, cqe_size) = (command.uhw().u64(0), u32::from(command.uhw().u16(8)));
        if cqe_size != 64 && cqe_size != 128 {
            return Err(sys::errno(libc::EINVAL));
        }
        let count = (cqe + 1).next_power_of_two();
        let bytes = count as usize * cqe_size as usize;
        let pin = Pin::buffer(buf_addr, bytes)?;
        let buf = Area::checked(buf_addr, bytes, 64)?;
        self.card.resize_cq(index, buf, count, cqe_size)?;
        self.card.cqs[index].pins[0] = pin;
        let mut out = Answer::default();
        out.u32(count - 1).u32(0);
        command.answer(&out.0)
    }

    pub(super) fn cmd_modify_cq(&mut self, context: usize, command: &Command) -> io::Result<()> {
        command.need(16, 0)?;
        self.cq(context, command.core().u32(0))?;
        // Moderation delays events; the software device never does.
        Ok(())
    }

    pub(super) fn cmd_destroy_cq(&mut self, context: usize, command: &Command) -> io::Result<()> {
        command.need(16, 8)?;
        let handle = command.core().u32(8);
        let index = self.cq(context, handle)?;
        if self.card.cqs[index].users > 0 {
            return Err(sys::errno(libc::EBUSY));
        }
        // An arm of this CQ may still wait in a register.
        self.card.scan_context(context);
        let (comp, asynchronous) = self.remove_cq(index);
        self.drop_handle(context, handle);
        let mut out = Answer::default();
        out.u32(comp).u32(asynchronous);
        command.answer(&out.0)
    }

    /// Takes a CQ away; returns how many events about it the program has read.
    pub(super) fn remove_cq(&mut self, index: usize) -> (u32, u32) {
        let Some(cq) = self.card.cqs.get(index) else { return (0, 0) };
        let (user_handle, context, channel) = (cq.user_handle, cq.context, cq.channel);
        let (mut comp, mut asynchronous) = (cq.comp_events, cq.async_events);
        tell(|observer| observer.cq_destroyed(user_handle));
        if let Some(channel) = channel {
            if comp > 0 {
                comp -= self.card.take_back(channel, |packet| packet == user_handle.to_ne_bytes());
            }
            self.card.put_channel(channel);
        }
        if asynchronous > 0 {
            asynchronous -= self.card.take_back_async(context, user_handle, &[event::CQ_ERR]);
        }
        self.card.cqs.remove(index);
        (comp, asynchronous)
    }
}
