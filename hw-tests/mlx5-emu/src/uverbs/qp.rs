//! Queue pairs: creation, transitions, query.

use std::io;

use super::command::{Answer, Command, Reader};
use super::limits::{MAX_QP_WR, MAX_SGE};
use super::srq::uidx;
use crate::device::{Device, tell};
use crate::host::mem::Area;
use crate::host::pin::Pin;
use crate::host::sys;
use crate::objects::{ObjectKind, Qp, QpCap, QpType, event, fold_key};

mod flag {
    pub(super) const SCATTER_CQE: u32 = 1 << 1;
    pub(super) const BFREG_INDEX: u32 = 1 << 3;
    pub(super) const TYPE_DCT: u32 = 1 << 4;
    pub(super) const TYPE_DCI: u32 = 1 << 5;
    pub(super) const ALLOW_SCATTER_CQE: u32 = 1 << 8;
    pub(super) const UAR_PAGE_INDEX: u32 = 1 << 10;
}

pub(super) fn invalid() -> io::Error {
    sys::errno(libc::EINVAL)
}

/// Rings of a QP as the driver's part of CREATE_QP describes them.
#[derive(Default)]
struct Rings {
    sq: Option<Area>,
    sq_count: u16,
    rq: Option<Area>,
    rq_count: u32,
    rq_shift: u32,
    record: Option<Area>,
    pins: Vec<Pin>,
}

fn rings(context: usize, driver: Reader<'_>, kind: QpType, has_sq: bool, has_rq: bool) -> io::Result<Rings> {
    let (buf_addr, record_addr) = (driver.u64(0), driver.u64(8));
    let (sq_count, rq_count, rq_shift) = (driver.u32(16), driver.u32(20), driver.u32(24));
    let mut rings = Rings::default();
    let mut rq_bytes = 0;
    if rq_count > 0 {
        if !rq_count.is_power_of_two() || rq_count > MAX_QP_WR || !(4..=13).contains(&rq_shift) {
            return Err(invalid());
        }
        rq_bytes = (rq_count as usize) << rq_shift;
        rings.pins.push(Pin::buffer(buf_addr, rq_bytes)?);
        if has_rq {
            rings.rq = Some(Area::checked(buf_addr, rq_bytes, 64)?);
            (rings.rq_count, rings.rq_shift) = (rq_count, rq_shift);
        }
    }
    if sq_count > 0 {
        if !sq_count.is_power_of_two() || sq_count > MAX_QP_WR {
            return Err(invalid());
        }
        if has_sq {
            let at = if kind == QpType::RawPacket {
                let at = driver.u64(40);
                rings.pins.push(Pin::buffer(at, sq_count as usize * 64)?);
                at
            } else {
                // One buffer: counted as a whole.
                rings.pins.clear();
                rings.pins.push(Pin::buffer(buf_addr, rq_bytes + sq_count as usize * 64)?);
                buf_addr.checked_add(rq_bytes as u64).ok_or_else(invalid)?
            };
            rings.sq = Some(Area::checked(at, sq_count as usize * 64, 64)?);
            rings.sq_count = u16::try_from(sq_count).map_err(|_| invalid())?;
        }
    }
    if sq_count > 0 || rq_count > 0 {
        rings.pins.push(Pin::record(context, record_addr)?);
        rings.record = Some(Area::checked(record_addr, 8, 8)?);
    }
    Ok(rings)
}

impl Device {
    pub(super) fn cmd_create_qp(
        &mut self,
        context: usize,
        command: &Command,
        extended: bool,
    ) -> io::Result<()> {
        command.need(if extended { 64 } else { 56 }, 32)?;
        let request = command.core();
        // The extended form has no response pointer in front.
        let at = |offset: usize| if extended { offset - 8 } else { offset };
        let user_handle = request.u64(at(8));
        let (pd_handle, send_cq, recv_cq, srq_handle) =
            (request.u32(at(16)), request.u32(at(20)), request.u32(at(24)), request.u32(at(28)));
        let cap = QpCap {
            max_send_wr: request.u32(at(32)),
            max_recv_wr: request.u32(at(36)),
            max_send_sge: request.u32(at(40)),
            max_recv_sge: request.u32(at(44)),
            max_inline: request.u32(at(48)),
        };
        let (sig_all, raw_type, is_srq) =
            (request.u8(at(52)) != 0, request.u8(at(53)), request.u8(at(54)) != 0);
        const INDIRECTION_TABLE: u32 = 1;
        if extended && request.u32(48) == INDIRECTION_TABLE {
            return self.create_spreading_qp(context, command);
        }
        if extended && (request.u32(48) != 0 || request.u32(52) & !2 != 0) {
            // Of the creation flags only the one against multicast loopback.
            return Err(sys::errno(libc::EOPNOTSUPP));
        }
        const DRIVER_QP: u8 = 0xff;
        let driver_kind = command.uhw().u32(28) & (flag::TYPE_DCI | flag::TYPE_DCT);
        let kind = match (raw_type, driver_kind) {
            (DRIVER_QP, flag::TYPE_DCI) => Some(QpType::Dci),
            (DRIVER_QP, flag::TYPE_DCT) => Some(QpType::Dct),
            (250.., _) => None,
            (raw, 0) => QpType::from_raw(raw),
            _ => None,
        };
        let kind = kind.ok_or_else(|| sys::errno(libc::EOPNOTSUPP))?;
        if kind == QpType::RawPacket && !sys::may(sys::CAP_NET_RAW) {
            return Err(sys::errno(libc::EPERM));
        }
        if cap.max_send_wr > MAX_QP_WR
            || cap.max_recv_wr > MAX_QP_WR
            || cap.max_send_sge > MAX_SGE
            || cap.max_recv_sge > 64
            || cap.max_inline > 1024
        {
            return Err(invalid());
        }
        let (mut pd, mut xrcd, mut scq, mut rcq, mut srq) = (None, None, None, None, None);
        if kind == QpType::XrcRecv {
            xrcd = Some(self.object(context, pd_handle, ObjectKind::Xrcd)?);
        } else {
            pd = Some(self.pd(context, pd_handle)?);
            scq = Some(self.cq(context, send_cq)?);
            if kind == QpType::Dct && !is_srq {
                return Err(invalid());
            }
            if !matches!(kind, QpType::XrcSend | QpType::Dci) {
                rcq = Some(self.cq(context, recv_cq)?);
                if is_srq {
                    let index = self.object(context, srq_handle, ObjectKind::Srq)?;
                    if self.card.srqs[index].xrc.is_some() {
                        return Err(invalid());
                    }
                    srq = Some(index);
                }
            }
        }
        command.need_uhw(if kind == QpType::XrcRecv { 0 } else { 36 })?;
        let driver = command.uhw();
        let flags = driver.u32(28) & !driver_kind;
        if flags & !(flag::SCATTER_CQE | flag::BFREG_INDEX | flag::ALLOW_SCATTER_CQE | flag::UAR_PAGE_INDEX)
            != 0
        {
            return Err(sys::errno(libc::EOPNOTSUPP));
        }
        let has_sq = !matches!(kind, QpType::XrcRecv | QpType::Dct);
        let has_rq = srq.is_none() && !matches!(kind, QpType::XrcRecv | QpType::XrcSend | QpType::Dci);
        // A DC target has no rings, so the ring fields of the command are not filled in.
        let (rings, (uar_page, bfreg)) = if kind == QpType::Dct {
            (Rings::default(), (0, 0))
        } else {
            (rings(context, driver, kind, has_sq, has_rq)?, self.qp_uar(context, flags, driver.u32(36))?)
        };
        let (scatter_recv, scatter_send) = self.scatter_sizes(kind, flags, sig_all, scq, rcq);
        let qp = Qp {
            pd,
            cap,
            user_handle,
            send_cq: scq,
            recv_cq: rcq,
            srq,
            xrcd,
            uidx: uidx(driver, 32, command.uhw.len()),
            dc_key: fold_key(driver.u64(40)),
            sig_all,
            block_own_multicast: extended && request.u32(52) & 2 != 0,
            scatter_recv,
            scatter_send,
            sq: rings.sq,
            sq_count: rings.sq_count,
            rq: rings.rq,
            rq_count: rings.rq_count,
            rq_shift: rings.rq_shift,
            record: rings.record,
            uar_page,
            _pins: rings.pins,
            ..Qp::new(context, kind)
        };
        let index = self.add_qp(qp)?;
        let qpn = self.card.qps[index].qpn;
        let pages = &mut self.card.contexts[context];
        if let Some(slot) = pages.uar_slot(uar_page) {
            pages.uar_pages[slot].qps.push(index);
        }
        let handle = self.add_handle(context, ObjectKind::Qp, index);
        tell(|observer| observer.qp_usable(command.fd, context, user_handle));
        let mut out = Answer::default();
        // A DC target learns its number when it is ready to receive.
        out.u32(handle)
            .u32(if kind == QpType::Dct { 0 } else { qpn })
            .u32(cap.max_send_wr)
            .u32(cap.max_recv_wr)
            .u32(cap.max_send_sge)
            .u32(cap.max_recv_sge)
            .u32(cap.max_inline)
            .u32(0);
        if extended {
            out.u32(0).u32(40);
        }
        command.answer(&out.0)?;
        let mut uhw = Answer::default();
        uhw.u32(bfreg).zeros(36);
        command.answer_uhw(&uhw.0)
    }

    /// Gives a new QP its place and its number.
    pub(super) fn add_qp(&mut self, qp: Qp) -> io::Result<usize> {
        let index = self.card.qps.insert(qp).ok_or_else(|| sys::errno(libc::ENOMEM))?;
        if self.is_reserved(index) {
            self.card.qps.remove(index);
            return Err(sys::errno(libc::ENOMEM));
        }
        self.card.qps[index].qpn = self.card.net.number_base() | index as u32;
        self.count_qp_users(index, 1);
        Ok(index)
    }

    /// UAR page of a new QP and the register index for the answer.
    fn qp_uar(&mut self, context: usize, flags: u32, index: u32) -> io::Result<(u32, u32)> {
        if flags & flag::UAR_PAGE_INDEX != 0 {
            if !self.has_uar_page(context, index) {
                return Err(invalid());
            }
            return Ok((index, index));
        }
        if flags & flag::BFREG_INDEX != 0 {
            let page = index / 2;
            self.note_static_page(context, page);
            return Ok((page, index));
        }
        // Of the four static registers in a page, two are usable. The first register is shared and
        // serves doorbells only.
        let pages =
            self.card.contexts[context].uar_pages.iter().filter(|page| page.index < 256).count() as u32;
        if pages == 0 {
            return Ok((0, 0));
        }
        let turn = self.card.qps.len() as u32 % (pages * 2 - 1).max(1) + 1;
        Ok((turn / 2, turn / 2 * 4 + turn % 2))
    }

    /// How many payload bytes may be put into CQEs, for receives and for READ and atomic answers.
    fn scatter_sizes(
        &self,
        kind: QpType,
        flags: u32,
        sig_all: bool,
        scq: Option<usize>,
        rcq: Option<usize>,
    ) -> (u32, u32) {
        if flags & flag::SCATTER_CQE == 0 {
            return (0, 0);
        }
        let room =
            |cq: Option<usize>| cq.map_or(0, |cq| if self.card.cqs[cq].cqe_size == 128 { 64 } else { 32 });
        let recv = if matches!(kind, QpType::Rc | QpType::Uc) { room(rcq) } else { 0 };
        let send = if kind == QpType::Rc && (sig_all || flags & flag::ALLOW_SCATTER_CQE != 0) {
            room(scq)
        } else {
            0
        };
        (recv, send)
    }

    fn count_qp_users(&mut self, index: usize, by: i32) {
        let qp = &self.card.qps[index];
        let (pd, scq, rcq, srq, xrcd) = (qp.pd, qp.send_cq, qp.recv_cq, qp.srq, qp.xrcd);
        if let Some(pd) = pd.and_then(|pd| self.pds.get_mut(pd)) {
            pd.users = pd.users.saturating_add_signed(by);
        }
        for cq in [scq, rcq].into_iter().flatten() {
            if let Some(cq) = self.card.cqs.get_mut(cq) {
                cq.users = cq.users.saturating_add_signed(by);
            }
        }
        if let Some(srq) = srq.and_then(|srq| self.card.srqs.get_mut(srq)) {
            srq.users = srq.users.saturating_add_signed(by);
        }
        if let Some(xrcd) = xrcd.and_then(|xrcd| self.xrcds.get_mut(xrcd)) {
            xrcd.users = xrcd.users.saturating_add_signed(by);
        }
        let table = self.card.qps[index].spread.as_ref().map(|spread| spread.table);
        if let Some(table) = table.and_then(|table| self.card.tables.get_mut(table)) {
            table.users = table.users.saturating_add_signed(by);
        }
    }

    /// OPEN_QP: another handle on an XRC target.
    pub(super) fn cmd_open_qp(&mut self, context: usize, command: &Command) -> io::Result<()> {
        command.need(32, 32)?;
        let request = command.core();
        let xrcd = self.object(context, request.u32(16), ObjectKind::Xrcd)?;
        let index = self.card.qp_by_number(request.u32(20)).ok_or_else(invalid)?;
        if self.card.qps[index].kind != QpType::XrcRecv || self.card.qps[index].xrcd != Some(xrcd) {
            return Err(invalid());
        }
        self.card.qps[index].opens += 1;
        let handle = self.add_handle(context, ObjectKind::Qp, index);
        let mut out = Answer::default();
        out.u32(handle).u32(self.card.qps[index].qpn).zeros(24);
        command.answer(&out.0)
    }

    pub(super) fn cmd_query_qp(&mut self, context: usize, command: &Command) -> io::Result<()> {
        command.need(16, 128)?;
        let index = self.object(context, command.core().u32(8), ObjectKind::Qp)?;
        let qp = &self.card.qps[index];
        let attr = &qp.attr;
        let mut out = Answer::default();
        out.bytes(&attr.dest)
            .bytes(&attr.alt_dest)
            // The kernel knows the receive ring. libmlx5 fills in the send ring's capabilities.
            .u32(0)
            .u32(qp.rq_count)
            .u32(0)
            .u32(if qp.rq_count > 0 { (1 << qp.rq_shift) / 16 } else { 0 })
            .u32(qp.cap.max_inline)
            .u32(attr.qkey)
            .u32(attr.rq_psn)
            .u32(attr.sq_psn)
            .u32(attr.dest_qpn)
            .u32(attr.access)
            .u16(attr.pkey_index)
            .u16(attr.alt_pkey_index)
            .u8(qp.state as u8)
            .u8(qp.state as u8)
            .u8(attr.path_mtu)
            .u8(attr.path_mig_state)
            .u8(0) // sq_draining
            .u8(attr.max_rd_atomic)
            .u8(attr.max_dest_rd_atomic)
            .u8(attr.min_rnr_timer)
            .u8(attr.port)
            .u8(attr.timeout)
            .u8(attr.retry_cnt)
            .u8(attr.rnr_retry)
            .u8(attr.alt_port)
            .u8(attr.alt_timeout)
            .u8(u8::from(qp.sig_all))
            .zeros(5);
        command.answer(&out.0)
    }

    pub(super) fn cmd_destroy_qp(&mut self, context: usize, command: &Command) -> io::Result<()> {
        command.need(16, 4)?;
        let handle = command.core().u32(8);
        let index = self.object(context, handle, ObjectKind::Qp)?;
        if self.card.groups.of(index) > 0 {
            return Err(sys::errno(libc::EBUSY));
        }
        self.drop_handle(context, handle);
        let events = self.put_qp(index);
        command.answer(&events.to_ne_bytes())
    }

    /// ATTACH_MCAST (`join`) and DETACH_MCAST.
    pub(super) fn cmd_attach_mcast(
        &mut self,
        context: usize,
        command: &Command,
        join: bool,
    ) -> io::Result<()> {
        command.need(24, 0)?;
        let gid = command.core().bytes(0);
        let index = self.object(context, command.core().u32(16), ObjectKind::Qp)?;
        if join { self.card.join_group(index, gid) } else { self.card.leave_group(index, &gid) }
    }

    /// Releases one handle. The last handle destroys the QP. Returns how many events about the QP
    /// the program has read.
    pub(super) fn put_qp(&mut self, index: usize) -> u32 {
        let Some(qp) = self.card.qps.get_mut(index) else { return 0 };
        qp.opens -= 1;
        if qp.opens > 0 {
            return 0;
        }
        tell(|observer| observer.qp_destroyed(qp.user_handle));
        if qp.kind == QpType::RawPacket {
            self.remove_flows_to(index);
        }
        self.card.groups.remove_all(index);
        let qp = &self.card.qps[index];
        let (context, page) = (qp.context, qp.uar_page);
        self.card.take_doorbells(context, page);
        if let Some(state) = self.card.contexts.get_mut(context)
            && let Some(slot) = state.uar_slot(page)
        {
            state.uar_pages[slot].qps.retain(|&known| known != index);
        }
        self.count_qp_users(index, -1);
        self.card.faults.forget_held(index);
        let Some(qp) = self.card.qps.remove(index) else { return 0 };
        let mut events = qp.async_events;
        if events > 0 {
            let kinds = [
                event::QP_FATAL,
                event::QP_REQ_ERR,
                event::QP_ACCESS_ERR,
                event::COMM_EST,
                event::SQ_DRAINED,
                event::QP_LAST_WQE_REACHED,
            ];
            events -= self.card.take_back_async(qp.context, qp.user_handle, &kinds);
        }
        events
    }
}
