//! Completions that a fault holds back or repeats ([`crate::objects::faults`]).

use super::card::Card;
use super::cqe::Cqe;
use crate::objects::event;
use crate::objects::faults::{Fault, Held};

impl Card {
    /// Holds back or repeats a send completion that is about to be written. Returns true if the
    /// fault took the completion.
    pub(super) fn hold_or_repeat(&mut self, cq: usize, qp: usize, cqe: &Cqe<'_>) -> bool {
        match self.faults.on_send_completion(self.qps[qp].qpn) {
            Some(Fault::Hold) => {
                self.faults.hold(Held {
                    cq,
                    qp,
                    srqn_uidx: cqe.srqn_uidx,
                    byte_cnt: cqe.byte_cnt,
                    sop_qpn: cqe.sop_qpn,
                    wqe_counter: cqe.wqe_counter,
                    inline: cqe.inline.map(<[u8]>::to_vec),
                });
                return true;
            }
            Some(_) => self.complete(cq, cqe),
            None => {}
        }
        self.complete(cq, cqe);
        for held in self.faults.passed_by(cq, qp) {
            self.release(&held);
        }
        true
    }

    fn release(&mut self, held: &Held) {
        let cqe = Cqe {
            srqn_uidx: held.srqn_uidx,
            byte_cnt: held.byte_cnt,
            sop_qpn: held.sop_qpn,
            wqe_counter: held.wqe_counter,
            inline: held.inline.as_deref(),
            ..Cqe::default()
        };
        self.complete(held.cq, &cqe);
    }

    /// Writes completions that were held back. An explicit step calls this function.
    pub(super) fn release_held(&mut self) {
        for held in self.faults.take_held() {
            self.release(&held);
        }
        self.faults.publish_stale();
    }

    /// Makes late receives visible, and then delivers the events that wait for them.
    pub(crate) fn release_late(&mut self) {
        let (owners, last) = self.faults.take_late();
        for (cq, buf, offset, value) in owners {
            if self.cqs.get(cq).is_some() {
                buf.publish_byte(offset, value);
                self.fire_if_armed(cq);
            }
        }
        for qp in last {
            if self.qps.get(qp).is_some() {
                self.qp_event(qp, event::QP_LAST_WQE_REACHED);
            }
        }
    }
}
