//! The requester for QPs of other processes: requests that wait for an answer, and the effects of
//! the answers.
//!
//! Requests of one QP travel in order and are answered in order. When a request is refused for now
//! (receiver not ready, no such peer), the requester takes back this request and all later requests
//! of the QP, and sends them again, as another attempt. The answers to requests that were taken back
//! may still be on their way, behind a peer that had no processor for a while: they name an earlier
//! attempt and mean nothing.

use super::card::Card;
use super::requester::{Landed, Outcome, done};
use super::swqe::{GatherError, SendWqe, opcode};
use crate::objects::{Blocked, Outstanding, QpState, QpType, SN_MASK, Seg, process_of, syndrome};
use crate::wire::{Reply, Request};

impl Card {
    /// Sends a request to a QP of another process.
    pub(super) fn send_away(
        &mut self,
        index: usize,
        wqe: &SendWqe,
        request: &Request,
        list: &[Seg],
        signalled: bool,
    ) -> Outcome {
        const WINDOW: usize = 128;
        // A DC initiator waits for each answer, because answers of several processes arrive in any
        // order.
        let window = if request.kind == QpType::Dci { 1 } else { WINDOW };
        let slot = process_of(request.dest_qpn);
        let reliable = request.kind.is_reliable();
        if reliable && self.qps[index].outstanding.len() >= window || self.net.congested(slot, request.len) {
            self.qps[index].blocked = Blocked::Peer;
            return Outcome::Stalled;
        }
        let payload = if request.op.reads() { &[][..] } else { list };
        let sent = self.net.send_request(slot, request, payload);
        if !reliable {
            return done(request.len);
        }
        if !sent {
            return self.unanswered(index);
        }
        self.await_answer(
            index,
            Outstanding {
                number: request.number,
                wqe_index: wqe.control.index,
                blocks: wqe.control.blocks(),
                opcode: wqe.control.opcode,
                signalled,
                reads: request.op.reads(),
                syndrome: 0,
            },
        );
        Outcome::Sent
    }

    fn await_answer(&mut self, index: usize, sent: Outstanding) {
        let qp = &mut self.qps[index];
        qp.outstanding.push_back(sent);
        qp.send_sn = (qp.send_sn + 1) & SN_MASK;
    }

    /// An answer from another process.
    pub(super) fn answered(&mut self, qpn: u32, number: u32, reply: Reply, data: &[u8]) {
        let Some(index) = self.qp_by_number(qpn) else { return };
        let qp = &mut self.qps[index];
        if qp.state != QpState::Rts && qp.state != QpState::Sqd {
            return;
        }
        let Some(position) = qp.outstanding.iter().position(|sent| sent.number == number) else { return };
        match reply {
            Reply::Ack | Reply::Data(_) | Reply::Old(_) => {
                qp.rnr_left = qp.attr.rnr_retry;
                qp.retry_left = qp.attr.retry_cnt;
                // Answers arrive in order. An answer also answers all earlier requests.
                for _ in 0..position {
                    self.complete_oldest(index, &[]);
                }
                self.complete_oldest(index, data);
                // Complete the following WQEs that needed no answer of their own.
                while self.qps[index].outstanding.front().is_some_and(|sent| sent.number == number) {
                    self.complete_oldest(index, &[]);
                }
                self.unblock(index);
            }
            Reply::NotReady(code) => {
                self.roll_back(index, position);
                if let Outcome::Failed(code) = self.not_ready(index, code) {
                    self.fail_oldest(index, code);
                }
            }
            Reply::Silence => {
                self.roll_back(index, position);
                if let Outcome::Failed(code) = self.unanswered(index) {
                    self.fail_oldest(index, code);
                }
            }
            Reply::Nak(code) | Reply::NakCompleted(code) => {
                for _ in 0..position {
                    self.complete_oldest(index, &[]);
                }
                self.fail_oldest(index, code);
            }
        }
    }

    fn unblock(&mut self, index: usize) {
        let Some(qp) = self.qps.get_mut(index) else { return };
        if qp.blocked == Blocked::Peer {
            qp.blocked = Blocked::No;
            self.mark_ready(index);
        }
        self.check_drained(index);
    }

    /// Room for more to another process: lets everything go on that waited for it.
    pub(super) fn unblock_all(&mut self) {
        let waiting: Vec<usize> =
            self.qps.iter().filter(|(_, qp)| qp.blocked == Blocked::Peer).map(|(index, _)| index).collect();
        for index in waiting {
            self.unblock(index);
        }
    }

    /// Retries all unanswered requests after the connection to another process broke.
    pub(super) fn peer_lost(&mut self, slot: u32) {
        let waiting: Vec<usize> = self
            .qps
            .iter()
            .filter(|(_, qp)| process_of(qp.attr.dest_qpn) == slot && !qp.outstanding.is_empty())
            .map(|(index, _)| index)
            .collect();
        for index in waiting {
            self.roll_back(index, 0);
            if let Outcome::Failed(code) = self.unanswered(index) {
                self.fail_oldest(index, code);
            }
        }
        // Nobody makes room for those that waited for it.
        self.unblock_all();
    }

    /// Takes requests back that have to be sent again.
    fn roll_back(&mut self, index: usize, position: usize) {
        let qp = &mut self.qps[index];
        if let Some(sent) = qp.outstanding.get(position) {
            qp.sq_next = sent.wqe_index;
            qp.send_sn = sent.number & SN_MASK;
            qp.attempt = qp.attempt.wrapping_add(1);
            qp.outstanding.truncate(position);
        }
    }

    /// Fails the oldest WQE that has not completed. The QP may have broken while it completed the
    /// WQEs before.
    fn fail_oldest(&mut self, index: usize, code: u16) {
        if !matches!(self.qps[index].state, QpState::Rts | QpState::Sqd) {
            return;
        }
        self.roll_back(index, 0);
        let qp = &self.qps[index];
        let Some(ring) = qp.sq else { return };
        let start = qp.sq_next;
        let wqe = SendWqe::read(ring, qp.sq_count, start);
        self.fail(index, start, wqe.control.blocks().max(1), wqe.control.opcode, code);
    }

    /// Completes the oldest outstanding WQE, with the data of its answer.
    fn complete_oldest(&mut self, index: usize, data: &[u8]) {
        let qp = &mut self.qps[index];
        let Some(sent) = qp.outstanding.pop_front() else { return };
        qp.sq_done = sent.wqe_index.wrapping_add(sent.blocks);
        if sent.syndrome != 0 {
            self.fail(index, sent.wqe_index, sent.blocks, sent.opcode, sent.syndrome);
            return;
        }
        let mut bytes = data.len() as u32;
        let mut inline = None;
        if sent.reads {
            match self.land_answer(index, &sent, data) {
                Ok((len, small)) => (bytes, inline) = (len, small),
                Err(code) => {
                    self.fail(index, sent.wqe_index, sent.blocks, sent.opcode, code);
                    return;
                }
            }
        }
        if sent.signalled {
            let inline = inline.as_ref().map(|(data, len): &([u8; 64], usize)| &data[..*len]);
            self.complete_send(index, sent.wqe_index, sent.opcode, bytes, inline);
        }
    }

    /// Writes the data of an answer to the place that its WQE names.
    fn land_answer(&mut self, index: usize, sent: &Outstanding, data: &[u8]) -> Result<Landed, u16> {
        let qp = &self.qps[index];
        let (Some(ring), Some(pd)) = (qp.sq, qp.pd) else { return Err(syndrome::LOCAL_QP_OP) };
        let wqe = SendWqe::read(ring, qp.sq_count, sent.wqe_index);
        let before = match qp.kind {
            QpType::XrcSend => 1,
            QpType::Dci => 3,
            _ => 0,
        };
        let unit = before
            + match sent.opcode {
                opcode::RDMA_READ => 2,
                opcode::ATOMIC_MASKED_CS => 4,
                _ => 3,
            };
        let mut list = std::mem::take(&mut self.gather);
        let found = self.landing_list(&wqe, unit, pd, &mut list);
        let result = match found {
            Ok(len) if len as usize == data.len() => match self.land_bytes(index, data, &list) {
                Outcome::Done { bytes, inline } => Ok((bytes, inline)),
                _ => Err(syndrome::BAD_RESP),
            },
            Ok(_) => Err(syndrome::BAD_RESP),
            Err(GatherError::Protection(cause)) => Err(cause.of_scatter()),
            Err(GatherError::Malformed) => Err(syndrome::LOCAL_LENGTH),
        };
        self.gather = list;
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::objects::{Qp, QpAttr};

    /// Sends a request; returns the number that its answer will have.
    fn send(card: &mut Card, index: usize) -> u32 {
        let number = card.qps[index].request_number();
        let wqe_index = card.qps[index].sq_next;
        let sent = Outstanding {
            number,
            wqe_index,
            blocks: 1,
            opcode: opcode::SEND,
            signalled: false,
            reads: false,
            syndrome: 0,
        };
        card.await_answer(index, sent);
        card.qps[index].sq_next += 1;
        number
    }

    /// A peer without a processor answers the first request, and the others after the first was sent
    /// again. Such an answer must cost no retry, as the peer is alive.
    #[test]
    fn late_answers_to_requests_that_were_taken_back_mean_nothing() {
        const RETRIES: u8 = 2;
        let mut card = Card::new(0);
        let attr = QpAttr { retry_cnt: RETRIES, rnr_retry: 7, timeout: 14, ..QpAttr::default() };
        let qp =
            Qp { state: QpState::Rts, attr, retry_left: RETRIES, send_sn: SN_MASK, ..Qp::new(0, QpType::Rc) };
        let index = card.qps.insert(qp).expect("room");
        let qpn = card.qps[index].qpn;
        for _ in 0..300 {
            let first = [0; 3].map(|_| send(&mut card, index));
            card.answered(qpn, first[0], Reply::NotReady(1), &[]);
            assert_eq!(card.qps[index].outstanding.len(), 0);
            let second = [0; 3].map(|_| send(&mut card, index));
            card.answered(qpn, first[1], Reply::Silence, &[]);
            card.answered(qpn, first[2], Reply::Silence, &[]);
            assert_eq!(card.qps[index].outstanding.len(), 3);
            assert_eq!(card.qps[index].retry_left, RETRIES);
            card.answered(qpn, second[0], Reply::NotReady(1), &[]);
        }
        let last = [0; 3].map(|_| send(&mut card, index));
        card.answered(qpn, last[2], Reply::Ack, &[]);
        assert!(card.qps[index].outstanding.is_empty());
        assert_eq!((card.qps[index].state, card.qps[index].sq_done), (QpState::Rts, 3));
    }
}
