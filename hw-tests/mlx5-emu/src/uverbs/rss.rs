//! Receive-side scaling: work queues, indirection tables, and raw packet QPs that spread the frames
//! they receive over the work queues of a table.
//!
//! A work queue is a QP without a send queue. Its handles are of a kind of their own, so that QP
//! commands do not find it.

use std::io;

use super::command::{Answer, Command};
use super::limits::{MAX_LOG_TABLE, MAX_QP_WR};
use crate::device::Device;
use crate::host::mem::Area;
use crate::host::pin::Pin;
use crate::host::sys;
use crate::objects::rss::{KEY, Spread, TOEPLITZ, covers};
use crate::objects::{IndirectionTable, ObjectKind, Qp, QpCap, QpState, QpType};

/// States of a work queue (`enum ibv_wq_state`).
mod state {
    pub(super) const RESET: u32 = 0;
    pub(super) const READY: u32 = 1;
    pub(super) const ERROR: u32 = 2;
}

fn invalid() -> io::Error {
    sys::errno(libc::EINVAL)
}

fn not_supported() -> io::Error {
    sys::errno(libc::EOPNOTSUPP)
}

impl Device {
    pub(super) fn cmd_create_wq(&mut self, context: usize, command: &Command) -> io::Result<()> {
        const RECEIVE: u32 = 0;
        command.need(40, 24)?;
        command.need_uhw(32)?;
        let (request, driver) = (command.core(), command.uhw());
        if request.u32(4) != RECEIVE || request.u32(0) != 0 {
            return Err(invalid());
        }
        let driver_extras = command.uhw.len() >= 36 && driver.u32(32) != 0;
        if request.u32(32) != 0 || driver.u32(28) != 0 || driver_extras {
            // VLAN stripping, scattered FCS, end padding; signatures; striding queues.
            return Err(not_supported());
        }
        let pd = self.pd(context, request.u32(16))?;
        let cq = self.cq(context, request.u32(20))?;
        let (buffer, record) = (driver.u64(0), driver.u64(8));
        let (count, shift) = (driver.u32(16), driver.u32(20));
        if !count.is_power_of_two() || count > MAX_QP_WR || !(4..=13).contains(&shift) {
            return Err(invalid());
        }
        let bytes = (count as usize) << shift;
        let pins = vec![Pin::buffer(buffer, bytes)?, Pin::record(context, record)?];
        let max_sge = (1 << shift) / 16;
        let queue = Qp {
            pd: Some(pd),
            cap: QpCap { max_recv_wr: count, max_recv_sge: max_sge, ..QpCap::default() },
            user_handle: request.u64(8),
            recv_cq: Some(cq),
            uidx: driver.u32(24) & 0xff_ffff,
            rq: Some(Area::checked(buffer, bytes, 64)?),
            rq_count: count,
            rq_shift: shift,
            record: Some(Area::checked(record, 8, 8)?),
            _pins: pins,
            ..Qp::new(context, QpType::RawPacket)
        };
        let index = self.add_qp(queue)?;
        let handle = self.add_handle(context, ObjectKind::WorkQueue, index);
        let mut out = Answer::default();
        out.u32(0).u32(24).u32(handle).u32(count).u32(max_sge).u32(self.card.qps[index].qpn);
        command.answer(&out.0)?;
        let mut uhw = Answer::default();
        uhw.u32(8).u32(0);
        command.answer_uhw(&uhw.0)
    }

    pub(super) fn cmd_modify_wq(&mut self, context: usize, command: &Command) -> io::Result<()> {
        const STATE: u32 = 1;
        const CURRENT: u32 = 2;
        const FLAGS: u32 = 4;
        command.need(16, 0)?;
        let request = command.core();
        let (mask, to, current) = (request.u32(0), request.u32(8), request.u32(12));
        let index = self.object(context, request.u32(4), ObjectKind::WorkQueue)?;
        if mask & FLAGS != 0 {
            return Err(not_supported());
        }
        let from = self.card.qps[index].state;
        let now = match from {
            QpState::Reset => state::RESET,
            QpState::Err => state::ERROR,
            _ => state::READY,
        };
        if mask & !(STATE | CURRENT) != 0 || mask & CURRENT != 0 && current != now {
            return Err(invalid());
        }
        if mask & STATE == 0 {
            return Ok(());
        }
        let to = match to {
            state::RESET => QpState::Reset,
            state::READY if now != state::ERROR => QpState::Rtr,
            state::ERROR => QpState::Err,
            _ => return Err(invalid()),
        };
        self.move_qp(index, from, to, false);
        Ok(())
    }

    pub(super) fn cmd_destroy_wq(&mut self, context: usize, command: &Command) -> io::Result<()> {
        command.need(8, 12)?;
        let handle = command.core().u32(4);
        let index = self.object(context, handle, ObjectKind::WorkQueue)?;
        if self.card.tables.iter().any(|(_, table)| table.queues.contains(&index)) {
            return Err(sys::errno(libc::EBUSY));
        }
        self.drop_handle(context, handle);
        let events = self.put_qp(index);
        let mut out = Answer::default();
        out.u32(0).u32(16).u32(events).u32(0);
        command.answer(&out.0)
    }

    pub(super) fn cmd_create_table(&mut self, context: usize, command: &Command) -> io::Result<()> {
        const HEADER: usize = 8;
        command.need(HEADER, 16)?;
        let request = command.core();
        let log_size = request.u32(4);
        if request.u32(0) != 0 || log_size > MAX_LOG_TABLE {
            return Err(invalid());
        }
        let count = 1usize << log_size;
        command.need(HEADER + 4 * count, 16)?;
        let queues = (0..count)
            .map(|i| self.object(context, request.u32(HEADER + 4 * i), ObjectKind::WorkQueue))
            .collect::<io::Result<_>>()?;
        let table = IndirectionTable { queues, users: 0 };
        let index = self.card.tables.insert(table).ok_or_else(|| sys::errno(libc::ENOMEM))?;
        let handle = self.add_handle(context, ObjectKind::IndirectionTable, index);
        let mut out = Answer::default();
        out.u32(0).u32(16).u32(handle).u32(index as u32);
        command.answer(&out.0)
    }

    pub(super) fn cmd_destroy_table(&mut self, context: usize, command: &Command) -> io::Result<()> {
        command.need(8, 0)?;
        let handle = command.core().u32(4);
        let index = self.object(context, handle, ObjectKind::IndirectionTable)?;
        if self.card.tables[index].users > 0 {
            return Err(sys::errno(libc::EBUSY));
        }
        self.card.tables.remove(index);
        self.drop_handle(context, handle);
        Ok(())
    }

    /// CREATE_QP with an indirection table: a raw packet QP without queues of its own.
    pub(super) fn create_spreading_qp(&mut self, context: usize, command: &Command) -> io::Result<()> {
        const NONE: u8 = 0;
        const HASH_KEY: usize = 16;
        command.need_uhw(HASH_KEY + 128)?;
        let (request, driver) = (command.core(), command.uhw());
        if !sys::may(sys::CAP_NET_RAW) {
            return Err(sys::errno(libc::EPERM));
        }
        if QpType::from_raw(request.u8(45)) != Some(QpType::RawPacket) {
            return Err(invalid());
        }
        if request.u32(52) != 0 {
            return Err(not_supported());
        }
        let pd = self.pd(context, request.u32(8))?;
        let table = self.object(context, request.u32(56), ObjectKind::IndirectionTable)?;
        let (mut fields, function, key_len) = (driver.u64(0), driver.u8(8), driver.u8(9));
        if fields & !covers::ALL != 0 {
            // Hashes of inner headers and of IPsec.
            return Err(not_supported());
        }
        const IPV4: u64 = covers::SOURCE_IPV4 | covers::DEST_IPV4;
        const IPV6: u64 = covers::SOURCE_IPV6 | covers::DEST_IPV6;
        const TCP: u64 = covers::SOURCE_TCP | covers::DEST_TCP;
        const UDP: u64 = covers::SOURCE_UDP | covers::DEST_UDP;
        let both = |one, other| fields & one != 0 && fields & other != 0;
        if both(IPV4, IPV6) || both(TCP, UDP) {
            return Err(invalid());
        }
        match function {
            NONE => fields = 0,
            TOEPLITZ if usize::from(key_len) == KEY => {}
            TOEPLITZ => return Err(invalid()),
            _ => return Err(not_supported()),
        }
        let spread = Spread { table, covers: fields, key: driver.bytes(HASH_KEY) };
        let qp = Qp {
            pd: Some(pd),
            user_handle: request.u64(0),
            spread: Some(Box::new(spread)),
            ..Qp::new(context, QpType::RawPacket)
        };
        let index = self.add_qp(qp)?;
        let handle = self.add_handle(context, ObjectKind::Qp, index);
        let mut out = Answer::default();
        out.u32(handle).u32(self.card.qps[index].qpn).zeros(24).u32(0).u32(40);
        command.answer(&out.0)?;
        let mut uhw = Answer::default();
        uhw.zeros(40);
        command.answer_uhw(&uhw.0)
    }
}
