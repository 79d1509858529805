//! The responder: the effect of a request on the destination QP.

use super::card::Card;
use super::cqe::{Cqe, opcode};
use super::datagram::{datagram_flags, deliver_datagram};
use super::rwqe::RecvError;
use crate::host::mem;
use crate::objects::{KeyKind, Mkey, QpState, QpType, SN_MASK, Seg, access, event, syndrome};
use crate::wire::{Op, Payload, Reply, Request};

impl Card {
    /// Carries out a request at a QP of this process.
    #[inline]
    pub(super) fn respond(&mut self, request: &Request, payload: Payload<'_>) -> Reply {
        if self.dead {
            return Reply::Silence;
        }
        let Some(index) = self.qp_by_number(request.dest_qpn) else {
            return self.deliver_to_group(request, payload);
        };
        let qp = &mut self.qps[index];
        if !qp.state.receives() || !self.port_up {
            return Reply::Silence;
        }
        let fits = match request.kind {
            QpType::XrcSend => qp.kind == QpType::XrcRecv,
            QpType::Dci => qp.kind == QpType::Dct && qp.dc_key == request.srqn,
            kind => qp.kind == kind,
        };
        if !fits {
            return Reply::Silence;
        }
        if !matches!(request.kind, QpType::Ud | QpType::Dci) {
            if qp.attr.dest_qpn != request.source_qpn {
                return Reply::Silence;
            }
            let sn = request.number & SN_MASK;
            if request.kind.is_reliable() && qp.expect_sn != sn {
                // An older number: the request was answered before, so the answer is repeated. A
                // newer number: an earlier request is missing.
                let older = qp.expect_sn.wrapping_sub(sn) & SN_MASK < 1 << 23;
                return if older && !request.op.reads() { Reply::Ack } else { Reply::Silence };
            }
            if qp.state == QpState::Rtr && !qp.comm_est {
                qp.comm_est = true;
                self.qp_event(index, event::COMM_EST);
            }
        }
        let reply = match request.op {
            Op::Send | Op::SendImm | Op::SendInv => self.receive(index, request, payload),
            Op::Write | Op::WriteImm => self.remote_write(index, request, payload),
            Op::Read => self.remote_read(index, request),
            _ => self.remote_atomic(index, request),
        };
        match reply {
            Reply::Ack | Reply::Data(_) | Reply::Old(_) => {
                let qp = &mut self.qps[index];
                qp.expect_sn = (qp.expect_sn + 1) & SN_MASK;
            }
            Reply::Nak(code) if request.kind.is_reliable() => {
                let event =
                    if code == syndrome::REMOTE_ACCESS { event::QP_ACCESS_ERR } else { event::QP_REQ_ERR };
                if code != syndrome::REMOTE_OP {
                    self.qp_event(index, event);
                }
                self.responder_failed(index);
            }
            Reply::Nak(_) => return Reply::Silence,
            Reply::NakCompleted(code) => {
                self.responder_failed(index);
                return if code == 0 { Reply::Silence } else { Reply::Nak(code) };
            }
            _ => {}
        }
        reply
    }

    /// Moves the QP of a refused request to the error state. A DC target stays usable, because
    /// other initiators use the target as well.
    fn responder_failed(&mut self, index: usize) {
        if self.qps[index].kind != QpType::Dct {
            self.qp_to_error(index);
        }
    }

    /// The SRQ and the CQ for a receive at `index`. For XRC, the request names them.
    #[inline]
    fn receive_queues(
        &self,
        index: usize,
        request: &Request,
    ) -> Result<(Option<usize>, Option<usize>), Reply> {
        let qp = &self.qps[index];
        if qp.kind != QpType::XrcRecv {
            return Ok((qp.srq, qp.recv_cq));
        }
        let invalid = Reply::Nak(syndrome::REMOTE_INVAL_REQ);
        let srq = self.srq_by_number(request.srqn).ok_or(invalid)?;
        match self.srqs[srq].xrc {
            Some((cq, xrcd)) if Some(xrcd) == qp.xrcd => Ok((Some(srq), Some(cq))),
            _ => Err(invalid),
        }
    }

    /// Handles a message that consumes a receive WQE: a SEND of any kind, or the immediate data of
    /// an RDMA WRITE (with `len` 0).
    #[inline]
    fn receive(&mut self, index: usize, request: &Request, payload: Payload<'_>) -> Reply {
        let (srq, cq) = match self.receive_queues(index, request) {
            Ok(queues) => queues,
            Err(reply) => return reply,
        };
        let is_write = request.op == Op::WriteImm;
        if let Some(datagram) = &request.datagram
            && datagram.qkey != self.qps[index].attr.qkey
        {
            return Reply::Silence;
        }
        if request.op == Op::SendInv
            && let Err(code) = self.check_invalidate(index, u32::from_be_bytes(request.imm))
        {
            return Reply::Nak(code);
        }
        if self.faults.active && self.faults.force_not_ready(self.qps[index].qpn) {
            return Reply::NotReady(self.qps[index].attr.min_rnr_timer);
        }
        let taken = match srq {
            Some(srq) => self.take_srq_wqe(srq),
            None => self.take_rq_wqe(index),
        };
        let Some(wqe) = taken else {
            return match request.kind {
                // Unreliable transports drop a message that finds no buffer.
                QpType::Uc | QpType::Ud => Reply::Silence,
                _ => Reply::NotReady(self.qps[index].attr.min_rnr_timer),
            };
        };
        let qp = &self.qps[index];
        let grh = if request.datagram.is_some() { 40 } else { 0 };
        let len = if is_write { 0 } else { request.len + grh };
        let uidx = match (qp.kind, srq) {
            (QpType::XrcRecv, Some(srq)) => self.srqs[srq].uidx,
            _ => qp.uidx,
        };
        let srqn_uidx = if self.contexts[qp.context].cqe_version == 0 {
            srq.map_or(0, |srq| self.srqs[srq].srqn)
        } else {
            uidx
        };
        let (qpn, scatter_recv) = (qp.qpn, qp.scatter_recv);

        if self.faults.active && srq.is_some() && request.kind.is_reliable() && self.faults.aborts(qpn) {
            if let Some(cq) = cq {
                let (opcode, syndrome) = (opcode::RESP_ERR, syndrome::ABORTED);
                let wqe_counter = wqe.counter;
                self.complete(
                    cq,
                    &Cqe { opcode, srqn_uidx, sop_qpn: qpn, wqe_counter, syndrome, ..Cqe::default() },
                );
            }
            return Reply::NotReady(self.qps[index].attr.min_rnr_timer);
        }
        let mut list = std::mem::take(&mut self.scatter);
        let checked = self.scatter_list(&wqe, len, &mut list);
        let mut cqe = Cqe {
            opcode: opcode::RESP_SEND,
            srqn_uidx,
            sop_qpn: qpn,
            wqe_counter: wqe.counter,
            byte_cnt: if is_write { request.len } else { len },
            solicited: request.solicited,
            ..Cqe::default()
        };
        let reply = match checked {
            Ok(()) => {
                cqe.imm = request.imm;
                cqe.opcode = match request.op {
                    Op::SendImm => opcode::RESP_SEND_IMM,
                    Op::SendInv => opcode::RESP_SEND_INV,
                    Op::WriteImm => opcode::RESP_WR_IMM,
                    _ => opcode::RESP_SEND,
                };
                if request.op == Op::Send {
                    cqe.imm = [0; 4];
                }
                cqe.flags_rqpn = request.source_qpn;
                if request.op == Op::SendInv {
                    self.invalidate(u32::from_be_bytes(request.imm));
                }
                let mut small = [0; 64];
                if let Some(datagram) = &request.datagram {
                    cqe.flags_rqpn |= datagram_flags(datagram);
                    deliver_datagram(datagram, &list, payload, request.len);
                } else if len > 0 && len <= scatter_recv {
                    payload.gather(&mut small[..len as usize]);
                    cqe.inline = Some(&small[..len as usize]);
                } else if len > 0 {
                    payload.scatter(&list, len);
                }
                if let Some(cq) = cq {
                    self.complete(cq, &cqe);
                }
                Reply::Ack
            }
            Err(error) => {
                let (local, remote) = match error {
                    RecvError::TooShort => (error.syndrome(), syndrome::REMOTE_INVAL_REQ),
                    RecvError::Protection(_) => (error.syndrome(), syndrome::REMOTE_OP),
                };
                cqe.opcode = opcode::RESP_ERR;
                cqe.syndrome = local;
                cqe.flags_rqpn = request.source_qpn;
                if let Some(cq) = cq {
                    self.complete(cq, &cqe);
                }
                if request.kind.is_reliable() { Reply::NakCompleted(remote) } else { Reply::NakCompleted(0) }
            }
        };
        self.scatter = list;
        reply
    }

    /// Region behind a remote key, checked against the QP and the range.
    fn remote_region(&self, index: usize, request: &Request, need: u32, len: u64) -> Result<u64, u16> {
        let refused = syndrome::REMOTE_ACCESS;
        let qp = &self.qps[index];
        let key = &self.keys[self.find_key(request.rkey).ok_or(refused)?];
        let pd_fits = match (qp.kind, qp.pd) {
            // An XRC target has no PD of its own: the SRQ's counts.
            (QpType::XrcRecv, _) => {
                self.srq_by_number(request.srqn).is_none_or(|srq| self.srqs[srq].pd == key.pd)
            }
            (_, pd) => pd == Some(key.pd),
        };
        let window_fits = match key.kind {
            KeyKind::Region => true,
            // Only local access.
            KeyKind::Indirect { .. } => false,
            KeyKind::Window { bound, type2, qpn, .. } => bound && (!type2 || qpn == qp.qpn),
        };
        if !pd_fits || !window_fits || key.access & need != need {
            return Err(refused);
        }
        let at = key.translate(request.raddr, len).ok_or(refused)?;
        if key.access & access::ON_DEMAND != 0 && !mem::fault_in(at, len, need != access::REMOTE_READ) {
            return Err(refused);
        }
        Ok(at)
    }

    fn remote_write(&mut self, index: usize, request: &Request, payload: Payload<'_>) -> Reply {
        if self.qps[index].attr.access & access::REMOTE_WRITE == 0 {
            return Reply::Nak(syndrome::REMOTE_INVAL_REQ);
        }
        let mut target = [Seg::default()];
        if request.len > 0 {
            match self.remote_region(index, request, access::REMOTE_WRITE, u64::from(request.len)) {
                Ok(addr) => target[0] = Seg { addr, len: request.len },
                Err(code) => return self.refuse_unreliable(request, code),
            }
        }
        if request.op == Op::WriteImm {
            // The data is only written once a receive WQE is there for the immediate.
            let has = match self.receive_queues(index, request) {
                Ok((Some(srq), _)) => {
                    self.refresh_srq(srq);
                    self.srqs[srq].available > 0
                }
                Ok((None, _)) => {
                    self.refresh_rq(index);
                    self.qps[index].rq_posted != self.qps[index].rq_next
                }
                Err(reply) => return reply,
            };
            if has {
                payload.scatter(&target, request.len);
            }
            return self.receive(index, request, Payload::Bytes(&[]));
        }
        payload.scatter(&target, request.len);
        Reply::Ack
    }

    fn refuse_unreliable(&self, request: &Request, code: u16) -> Reply {
        if request.kind.is_reliable() { Reply::Nak(code) } else { Reply::Silence }
    }

    fn remote_read(&mut self, index: usize, request: &Request) -> Reply {
        let attr = &self.qps[index].attr;
        if attr.access & access::REMOTE_READ == 0 || attr.max_dest_rd_atomic == 0 {
            return Reply::Nak(syndrome::REMOTE_INVAL_REQ);
        }
        if request.len == 0 {
            return Reply::Data(0);
        }
        match self.remote_region(index, request, access::REMOTE_READ, u64::from(request.len)) {
            Ok(addr) => Reply::Data(addr),
            Err(code) => Reply::Nak(code),
        }
    }

    fn remote_atomic(&mut self, index: usize, request: &Request) -> Reply {
        let attr = &self.qps[index].attr;
        if attr.access & access::REMOTE_ATOMIC == 0
            || attr.max_dest_rd_atomic == 0
            || !request.raddr.is_multiple_of(8)
        {
            return Reply::Nak(syndrome::REMOTE_INVAL_REQ);
        }
        let addr = match self.remote_region(index, request, access::REMOTE_ATOMIC, 8) {
            Ok(addr) if addr.is_multiple_of(8) => addr,
            Ok(_) => return Reply::Nak(syndrome::REMOTE_INVAL_REQ),
            Err(code) => return Reply::Nak(code),
        };
        let [first, compare, first_mask, compare_mask] = request.operands;
        Reply::Old(match request.op {
            Op::FetchAdd => mem::atomic_update(addr, |old| Some(old.wrapping_add(first))),
            Op::CompareSwap => mem::atomic_update(addr, |old| (old == compare).then_some(first)),
            Op::MaskedFetchAdd => mem::atomic_update(addr, |old| Some(masked_add(old, first, first_mask))),
            _ => mem::atomic_update(addr, |old| {
                (old & compare_mask == compare & compare_mask)
                    .then_some(old & !first_mask | first & first_mask)
            }),
        })
    }

    /// A key that may be invalidated by the peer: a bound type 2 window of this QP.
    fn check_invalidate(&self, index: usize, key: u32) -> Result<(), u16> {
        let found = self.find_key(key).map(|found| self.keys[found]);
        match found {
            Some(Mkey { kind: KeyKind::Window { type2: true, qpn, .. }, .. })
                if qpn == self.qps[index].qpn =>
            {
                Ok(())
            }
            Some(Mkey {
                kind: KeyKind::Indirect { free: false, remote_invalidate: true, .. }, pd, ..
            }) if Some(pd) == self.qps[index].pd => Ok(()),
            _ => Err(syndrome::REMOTE_ACCESS),
        }
    }
}

/// Adds field by field: a set bit in `boundary` ends a field.
fn masked_add(old: u64, add: u64, boundary: u64) -> u64 {
    let (mut result, mut carry) = (0u64, 0u64);
    for bit in 0..64 {
        let sum = (old >> bit & 1) + (add >> bit & 1) + carry;
        result |= (sum & 1) << bit;
        carry = if boundary >> bit & 1 != 0 { 0 } else { sum >> 1 };
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masked_add_carries_inside_a_field_only() {
        assert_eq!(masked_add(0xff, 1, 0), 0x100);
        assert_eq!(masked_add(0xff, 1, 0x80), 0x00);
        assert_eq!(masked_add(u64::MAX, 1, 0), 0);
    }
}
