//! Modifying QPs: attributes and transitions between states.

use std::io;

use super::command::{Answer, Command, Reader};
use super::context::gid_valid;
use super::qp::invalid;
use crate::device::{Device, tell};
use crate::host::sys;
use crate::objects::{Blocked, ObjectKind, QpAttr, QpState, QpType, is_ok, mask};

impl Device {
    pub(super) fn cmd_modify_qp_ex(&mut self, context: usize, command: &Command) -> io::Result<()> {
        const RATE_LIMIT: u32 = 1 << 25;
        command.need(112, 0)?;
        if command.core().u32(68) & RATE_LIMIT != 0 {
            return Err(sys::errno(libc::EOPNOTSUPP));
        }
        self.cmd_modify_qp(context, command)?;
        if command.core_out.len >= 8 {
            let mut out = Answer::default();
            out.u32(0).u32(8);
            command.answer(&out.0)?;
        }
        if command.uhw_out.len >= 4 {
            let mut uhw = Answer::default();
            let qp = &self.card.qps[self.object(context, command.core().u32(64), ObjectKind::Qp)?];
            let dctn = if qp.kind == QpType::Dct { qp.qpn } else { 0 };
            uhw.u32(command.uhw_out.len.min(16) as u32).u32(dctn).zeros(8);
            command.answer_uhw(&uhw.0)?;
        }
        Ok(())
    }

    pub(super) fn cmd_modify_qp(&mut self, context: usize, command: &Command) -> io::Result<()> {
        command.need(112, 0)?;
        let request = command.core();
        let index = self.object(context, request.u32(64), ObjectKind::Qp)?;
        let qp = &self.card.qps[index];
        if qp.spread.is_some() {
            return Err(sys::errno(libc::EOPNOTSUPP));
        }
        // As in the kernel: attributes without meaning for one half of an XRC connection are
        // ignored.
        let attributes = request.u32(68)
            & match qp.kind {
                QpType::XrcSend => !(mask::MAX_DEST_RD_ATOMIC | mask::MIN_RNR_TIMER),
                QpType::XrcRecv => !(mask::MAX_QP_RD_ATOMIC | mask::RETRY_CNT | mask::RNR_RETRY),
                _ => !0,
            };
        let from = if attributes & mask::CUR_STATE != 0 {
            QpState::from_raw(u32::from(request.u8(97))).ok_or_else(invalid)?
        } else {
            qp.state
        };
        if from != qp.state {
            return Err(invalid());
        }
        let to = if attributes & mask::STATE != 0 {
            QpState::from_raw(u32::from(request.u8(96))).ok_or_else(invalid)?
        } else {
            from
        };
        if !is_ok(from, to, qp.kind, attributes) {
            return Err(invalid());
        }
        self.set_qp_attributes(index, request, attributes)?;
        if to == QpState::Init {
            let object = self.card.qps[index].user_handle;
            tell(|observer| observer.qp_usable(command.fd, context, object));
        }
        self.move_qp(index, from, to, attributes & mask::EN_SQD_ASYNC_NOTIFY != 0 && request.u8(100) != 0);
        Ok(())
    }

    fn set_qp_attributes(&mut self, index: usize, request: Reader<'_>, attributes: u32) -> io::Result<()> {
        let has = |bit| attributes & bit != 0;
        let kind = self.card.qps[index].kind;
        if has(mask::PORT) && request.u8(104) != 1 {
            return Err(invalid());
        }
        if has(mask::PKEY_INDEX) && request.u16(92) != 0 {
            return Err(invalid());
        }
        if has(mask::AV) {
            let (sgid_index, is_global, port) = (request.u8(24), request.u8(30), request.u8(31));
            // RoCE: an address is always global, and the source must exist.
            if is_global == 0 || !gid_valid(sgid_index) || port > 1 {
                return Err(invalid());
            }
        }
        if has(mask::ALT_PATH) {
            // No path migration.
            return Err(invalid());
        }
        if has(mask::PATH_MTU) && !(1..=5).contains(&request.u8(98)) {
            return Err(invalid());
        }
        if has(mask::MAX_QP_RD_ATOMIC) && request.u8(101) > 16
            || has(mask::MAX_DEST_RD_ATOMIC) && request.u8(102) > 16
            || has(mask::MIN_RNR_TIMER) && request.u8(103) > 31
            || has(mask::TIMEOUT) && request.u8(105) > 31
            || has(mask::RETRY_CNT) && request.u8(106) > 7
            || has(mask::RNR_RETRY) && request.u8(107) > 7
        {
            return Err(invalid());
        }
        let attr = &mut self.card.qps[index].attr;
        if has(mask::QKEY) {
            attr.qkey = request.u32(72);
        }
        if has(mask::RQ_PSN) {
            attr.rq_psn = request.u32(76) & 0xff_ffff;
        }
        if has(mask::SQ_PSN) {
            attr.sq_psn = request.u32(80) & 0xff_ffff;
        }
        if has(mask::DEST_QPN) {
            attr.dest_qpn = request.u32(84) & 0xff_ffff;
        }
        if has(mask::ACCESS_FLAGS) && !matches!(kind, QpType::Ud | QpType::RawPacket) {
            attr.access = request.u32(88);
        }
        if has(mask::PKEY_INDEX) {
            attr.pkey_index = request.u16(92);
        }
        if has(mask::PATH_MTU) {
            attr.path_mtu = request.u8(98);
        }
        if has(mask::PATH_MIG_STATE) {
            attr.path_mig_state = request.u8(99);
        }
        if has(mask::MAX_QP_RD_ATOMIC) {
            attr.max_rd_atomic = request.u8(101);
        }
        if has(mask::MAX_DEST_RD_ATOMIC) {
            attr.max_dest_rd_atomic = request.u8(102);
        }
        if has(mask::MIN_RNR_TIMER) {
            attr.min_rnr_timer = request.u8(103);
        }
        if has(mask::PORT) {
            attr.port = request.u8(104);
        }
        if has(mask::TIMEOUT) {
            attr.timeout = request.u8(105);
        }
        if has(mask::RETRY_CNT) {
            attr.retry_cnt = request.u8(106);
        }
        if has(mask::RNR_RETRY) {
            attr.rnr_retry = request.u8(107);
        }
        if has(mask::AV) {
            attr.dest = request.bytes(0);
        }
        Ok(())
    }

    pub(super) fn move_qp(&mut self, index: usize, from: QpState, to: QpState, notify_drained: bool) {
        if to == QpState::Reset {
            // Doorbells of the old connection must not count for the next connection.
            let (context, page) = (self.card.qps[index].context, self.card.qps[index].uar_page);
            self.card.take_doorbells(context, page);
        }
        if !matches!(to, QpState::Reset | QpState::Init) {
            self.uars_in_use();
        }
        let qp = &mut self.card.qps[index];
        match to {
            QpState::Err => {
                self.card.qp_to_error(index);
                return;
            }
            QpState::Reset => {
                self.card.faults.forget_held(index);
                qp.state = QpState::Reset;
                qp.attr = QpAttr::default();
                (qp.sq_next, qp.sq_done, qp.sq_posted, qp.rq_next, qp.rq_posted) = (0, 0, 0, 0, 0);
                (qp.send_sn, qp.expect_sn) = (0, 0);
                qp.attempt = qp.attempt.wrapping_add(1);
                qp.outstanding.clear();
                qp.blocked = Blocked::No;
                qp.timer_generation = qp.timer_generation.wrapping_add(1);
                qp.comm_est = false;
                return;
            }
            QpState::Rts => {
                qp.rnr_left = qp.attr.rnr_retry;
                qp.retry_left = qp.attr.retry_cnt;
                if from == QpState::Rtr {
                    qp.send_sn = qp.attr.sq_psn;
                }
            }
            QpState::Rtr => {
                qp.expect_sn = qp.attr.rq_psn;
                if qp.kind == QpType::Dct {
                    qp.attr.max_dest_rd_atomic = 16;
                }
            }
            QpState::Init => {}
            QpState::Sqd => qp.drained_event = notify_drained,
            QpState::Sqe => {}
        }
        qp.state = to;
        if to == QpState::Rts && from != QpState::Rts {
            self.card.mark_ready(index);
            self.card.run_ready();
        }
        if to == QpState::Sqd {
            self.card.check_drained(index);
        }
    }
}
