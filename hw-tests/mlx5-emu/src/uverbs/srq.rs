//! Shared receive queues, basic and XRC.

use std::io;

use super::command::{Answer, Command, Reader};
use super::limits::MAX_SRQ_WR;
use crate::device::Device;
use crate::host::mem::Area;
use crate::host::pin::Pin;
use crate::host::sys;
use crate::objects::{FREE, ObjectKind, Srq, event};

/// The common fields of CREATE_SRQ and CREATE_XSRQ.
struct Request {
    user_handle: u64,
    max_wr: u32,
    max_sge: u32,
    pd: usize,
    xrc: Option<(usize, usize)>,
}

impl Device {
    pub(super) fn cmd_create_srq(&mut self, context: usize, command: &Command) -> io::Result<()> {
        command.need(32, 16)?;
        let request = command.core();
        let pd = self.pd(context, request.u32(16))?;
        let request = Request {
            user_handle: request.u64(8),
            max_wr: request.u32(20),
            max_sge: request.u32(24),
            pd,
            xrc: None,
        };
        self.create_srq(context, command, &request)
    }

    pub(super) fn cmd_create_xsrq(&mut self, context: usize, command: &Command) -> io::Result<()> {
        const BASIC: u32 = 0;
        const XRC: u32 = 1;
        command.need(48, 16)?;
        let request = command.core();
        let xrc = match request.u32(16) {
            BASIC => None,
            XRC => {
                let xrcd = self.object(context, request.u32(40), ObjectKind::Xrcd)?;
                Some((self.cq(context, request.u32(44))?, xrcd))
            }
            _ => return Err(sys::errno(libc::EOPNOTSUPP)),
        };
        let pd = self.pd(context, request.u32(20))?;
        let request = Request {
            user_handle: request.u64(8),
            max_wr: request.u32(24),
            max_sge: request.u32(28),
            pd,
            xrc,
        };
        self.create_srq(context, command, &request)
    }

    fn create_srq(&mut self, context: usize, command: &Command, request: &Request) -> io::Result<()> {
        let invalid = || sys::errno(libc::EINVAL);
        command.need_uhw(16)?;
        let driver = command.uhw();
        let (buf_addr, record_addr, flags, uidx) =
            (driver.u64(0), driver.u64(8), driver.u32(16), uidx(driver, 24, command.uhw.len()));
        if flags != 0 {
            // Signatures are not modelled.
            return Err(sys::errno(libc::EOPNOTSUPP));
        }
        // Without a work request it is made as well: its ring has the one entry that stays free.
        if request.max_wr > MAX_SRQ_WR || request.max_sge > 31 {
            return Err(invalid());
        }
        let count = (request.max_wr + 1).next_power_of_two();
        let stride = (16 + request.max_sge * 16).max(32).next_power_of_two();
        let bytes = count as usize * stride as usize;
        let pins = [Pin::buffer(buf_addr, bytes)?, Pin::record(context, record_addr)?];
        let buf = Area::checked(buf_addr, bytes, 64)?;
        let record = Area::checked(record_addr, 4, 4)?;
        let max_sge = (stride - 16) / 16;
        let srq = Srq {
            srqn: 0,
            context,
            pd: request.pd,
            user_handle: request.user_handle,
            buf,
            log_count: count.trailing_zeros(),
            log_stride: stride.trailing_zeros(),
            max_sge,
            record,
            uidx,
            xrc: request.xrc,
            head: 0,
            tail: 0,
            posted: 0,
            available: 0,
            links: vec![FREE; count as usize],
            limit: 0,
            users: 0,
            async_events: 0,
            error: false,
            _pins: pins,
        };
        let index = self.card.srqs.insert(srq).ok_or_else(|| sys::errno(libc::ENOMEM))?;
        let srqn = self.card.net.number_base() | (index as u32 + 1);
        self.card.srqs[index].srqn = srqn;
        self.pds[request.pd].users += 1;
        if let Some((cq, xrcd)) = request.xrc {
            self.card.cqs[cq].users += 1;
            self.xrcds[xrcd].users += 1;
        }
        let handle = self.add_handle(context, ObjectKind::Srq, index);
        let mut out = Answer::default();
        out.u32(handle).u32(count - 1).u32(max_sge).u32(srqn);
        command.answer(&out.0)?;
        let mut uhw = Answer::default();
        uhw.u32(srqn).u32(0);
        command.answer_uhw(&uhw.0)
    }

    pub(super) fn cmd_modify_srq(&mut self, context: usize, command: &Command) -> io::Result<()> {
        const MAX_WR: u32 = 1;
        const LIMIT: u32 = 2;
        command.need(16, 0)?;
        let request = command.core();
        let index = self.object(context, request.u32(0), ObjectKind::Srq)?;
        let mask = request.u32(4);
        if mask & !(MAX_WR | LIMIT) != 0 || mask & MAX_WR != 0 {
            // The hardware does not resize.
            return Err(sys::errno(libc::EINVAL));
        }
        if mask & LIMIT != 0 {
            let limit = request.u32(12);
            if limit >= 1 << self.card.srqs[index].log_count {
                return Err(sys::errno(libc::EINVAL));
            }
            self.card.srqs[index].limit = limit;
            self.card.check_srq_limit(index);
        }
        Ok(())
    }

    pub(super) fn cmd_query_srq(&mut self, context: usize, command: &Command) -> io::Result<()> {
        command.need(16, 16)?;
        let index = self.object(context, command.core().u32(8), ObjectKind::Srq)?;
        let srq = &self.card.srqs[index];
        let mut out = Answer::default();
        out.u32((1 << srq.log_count) - 1).u32(srq.max_sge).u32(srq.limit).u32(0);
        command.answer(&out.0)
    }

    pub(super) fn cmd_destroy_srq(&mut self, context: usize, command: &Command) -> io::Result<()> {
        command.need(16, 4)?;
        let handle = command.core().u32(8);
        let index = self.object(context, handle, ObjectKind::Srq)?;
        if self.card.srqs[index].users > 0 {
            return Err(sys::errno(libc::EBUSY));
        }
        let events = self.remove_srq(index);
        self.drop_handle(context, handle);
        command.answer(&events.to_ne_bytes())
    }

    /// Takes an SRQ away; returns how many events about it the program has read.
    pub(super) fn remove_srq(&mut self, index: usize) -> u32 {
        let Some(srq) = self.card.srqs.remove(index) else { return 0 };
        if let Some(pd) = self.pds.get_mut(srq.pd) {
            pd.users = pd.users.saturating_sub(1);
        }
        if let Some((cq, xrcd)) = srq.xrc {
            if let Some(cq) = self.card.cqs.get_mut(cq) {
                cq.users = cq.users.saturating_sub(1);
            }
            if let Some(xrcd) = self.xrcds.get_mut(xrcd) {
                xrcd.users = xrcd.users.saturating_sub(1);
            }
        }
        let mut events = srq.async_events;
        if events > 0 {
            let kinds = [event::SRQ_LIMIT_REACHED, event::SRQ_ERR];
            events -= self.card.take_back_async(srq.context, srq.user_handle, &kinds);
        }
        events
    }
}

/// The user index at `offset`, if the driver's input reaches that far.
pub(super) fn uidx(driver: Reader<'_>, offset: usize, len: usize) -> u32 {
    if len >= offset + 4 { driver.u32(offset) & 0xff_ffff } else { 0xff_ffff }
}
