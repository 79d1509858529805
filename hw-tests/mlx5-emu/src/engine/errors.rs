//! QPs that go to the error state, and the work requests that are flushed then.

use super::card::Card;
use super::cqe::{Cqe, opcode};
use crate::objects::{Blocked, QpState, event, syndrome};

impl Card {
    /// Moves a QP to the error state: everything posted is flushed. A QP that is carrying out a WQE
    /// completes the WQE first. A QP that is connected to itself thus learns why its responder has
    /// refused a request: the responder answers, and breaks after that.
    pub(crate) fn qp_to_error(&mut self, index: usize) {
        if self.executing == Some(index) {
            self.breaks = true;
            return;
        }
        let qp = &mut self.qps[index];
        if qp.state == QpState::Err {
            return;
        }
        let was_reset = qp.state == QpState::Reset;
        qp.state = QpState::Err;
        qp.blocked = Blocked::No;
        qp.timer_generation = qp.timer_generation.wrapping_add(1);
        if was_reset {
            return;
        }
        if let Some(record) = qp.record {
            let posted = record.be32_acquire(4) as u16;
            if posted.wrapping_sub(qp.sq_done) <= qp.sq_count {
                qp.sq_posted = posted;
            }
        }
        self.flush_sq(index);
        self.flush_rq(index);
        if self.qps[index].srq.is_some() {
            if !self.faults.active || !self.faults.keep_last_wqe(index) {
                self.qp_event(index, event::QP_LAST_WQE_REACHED);
            }
        } else if self.qps[index].rq_count > 0 && !self.in_error.contains(&index) {
            self.in_error.push(index);
        }
    }

    /// Flushes a QP's own receive ring.
    fn flush_rq(&mut self, index: usize) {
        let qp = &self.qps[index];
        let (qpn, uidx, cq, context) = (qp.qpn, qp.uidx, qp.recv_cq, qp.context);
        let Some(cq) = cq else { return };
        let srqn_uidx = if self.contexts[context].cqe_version == 0 { 0 } else { uidx };
        while let Some(wqe) = self.take_rq_wqe(index) {
            let cqe = Cqe {
                opcode: opcode::RESP_ERR,
                srqn_uidx,
                sop_qpn: qpn,
                wqe_counter: wqe.counter,
                syndrome: syndrome::FLUSH,
                ..Cqe::default()
            };
            self.complete(cq, &cqe);
        }
    }

    /// Flushes receives that were posted to a ring whose QP was already in error.
    pub(super) fn flush_late_receives(&mut self) {
        let mut list = std::mem::take(&mut self.in_error);
        list.retain(|&index| self.qps.get(index).is_some_and(|qp| qp.state == QpState::Err));
        for &index in &list {
            self.flush_rq(index);
        }
        self.in_error = list;
    }
}
