//! The engine: the hardware's work between a doorbell and a completion.

mod addressing;
mod blueflame;
pub(crate) mod cqe;
mod datagram;
mod doorbell;
mod groups;
mod held;
mod peers;
pub(crate) mod raw;
mod remote;
pub(crate) mod requester;
pub(crate) mod responder;
mod rwqe;
mod swqe;
pub(crate) mod timer;
mod umr;

pub(crate) use requester::LOG_MAX_MEMCPY;

use crate::device::Device;
use crate::objects::{Blocked, QpState, event, syndrome};

use cqe::{Cqe, opcode};

impl Device {
    /// Does all pending work: doorbells, send queues, timers, frames from other processes, waiting
    /// events.
    pub(crate) fn step(&mut self) {
        if self.dead {
            return;
        }
        self.scan_doorbells();
        self.run_ready();
        self.net.accept();
        self.background();
        if self.faults.active {
            self.release_held();
        }
    }

    /// Timers, other processes, waiting events, receive queues in error.
    #[inline]
    pub(crate) fn background(&mut self) {
        if !self.timers.is_empty() {
            self.run_timers();
            self.run_ready();
        }
        if self.net.active() {
            self.run_net();
            self.run_ready();
        }
        if self.backlogged {
            self.flush_backlog();
        }
        if !self.in_error.is_empty() {
            self.flush_late_receives();
        }
    }

    /// Queues an asynchronous event about a QP.
    pub(crate) fn qp_event(&mut self, index: usize, event: u32) {
        let qp = &mut self.qps[index];
        qp.async_events += 1;
        let (context, element) = (qp.context, qp.user_handle);
        self.async_event(context, element, event);
    }

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
    fn flush_late_receives(&mut self) {
        let mut list = std::mem::take(&mut self.in_error);
        list.retain(|&index| self.qps.get(index).is_some_and(|qp| qp.state == QpState::Err));
        for &index in &list {
            self.flush_rq(index);
        }
        self.in_error = list;
    }
}
