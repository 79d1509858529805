//! The requester: send queues, from doorbell to completion.

use super::card::Card;
use super::cqe::{Cqe, opcode as cqe_opcode};
use super::swqe::{GatherError, SendWqe, opcode};
use super::timer;
use crate::host::complaints::{Kind, complain};
use crate::host::mem;
use crate::objects::faults::Injected;
use crate::objects::{
    Blocked, Outstanding, QpState, QpType, SN_MASK, Seg, access, event, process_of, syndrome,
};
use crate::wire::groups::GROUP_QPN;
use crate::wire::{Op, Payload, Reply, Request, copy_segments};

/// The most WQEs of one QP that are executed before other QPs get a turn.
const TURN: u32 = 64;

/// The length of an answer, and its bytes and their number if they go into the CQE.
pub(super) type Landed = (u32, Option<([u8; 64], usize)>);

/// The result of a WQE.
pub(super) enum Outcome {
    /// Completed; bytes for the CQE, and data for it.
    Done { bytes: u32, inline: Option<([u8; 64], usize)> },
    /// Sent to another process; completes with the answer.
    Sent,
    /// Not executed; the queue stands still for now.
    Stalled,
    /// Failed with this syndrome.
    Failed(u16),
}

/// Most bytes that the device copies within a process's memory; log2.
pub(crate) const LOG_MAX_MEMCPY: u8 = 24;

/// `opmod` of a masked atomic on 8 bytes: 8, plus log2 of the size, minus 2. (Those on 4 bytes are
/// refused.)
const EXTENDED_8_BYTES: u8 = 9;

pub(super) fn done(bytes: u32) -> Outcome {
    Outcome::Done { bytes, inline: None }
}

impl Card {
    /// Notes that a QP's doorbell was rung.
    #[inline]
    pub(crate) fn mark_ready(&mut self, index: usize) {
        if let Some(qp) = self.qps.get_mut(index)
            && !qp.queued
        {
            qp.queued = true;
            self.ready.push_back(index);
        }
    }

    /// Runs send queues until none has anything to do.
    #[inline]
    pub(crate) fn run_ready(&mut self) {
        while let Some(index) = self.ready.pop_front() {
            if let Some(qp) = self.qps.get_mut(index) {
                qp.queued = false;
                self.run_send_queue(index);
            }
        }
    }

    #[inline]
    fn run_send_queue(&mut self, index: usize) {
        // The hardware ignores doorbells of a queue that cannot send, and does not read its
        // doorbell record. After RESET the record still holds the counter of the previous
        // connection, until the driver clears the record.
        if self.dead || self.qps[index].state.ignores_sends() || !self.refresh_sq(index) {
            return;
        }
        match self.qps[index].state {
            QpState::Rts => {}
            QpState::Err | QpState::Sqe => {
                self.flush_sq(index);
                return;
            }
            _ => return,
        }
        for _ in 0..TURN {
            let qp = &self.qps[index];
            if qp.sq_next == qp.sq_posted || qp.blocked != Blocked::No || qp.state != QpState::Rts {
                return;
            }
            self.execute_next(index);
        }
        self.mark_ready(index);
    }

    /// Reads how far a send queue is posted; false when the record makes no sense.
    #[inline]
    fn refresh_sq(&mut self, index: usize) -> bool {
        let qp = &mut self.qps[index];
        let Some(record) = qp.record else { return false };
        let word = record.be32_acquire(4);
        let posted = word as u16;
        if posted == qp.sq_posted {
            return true;
        }
        if posted.wrapping_sub(qp.sq_done) > qp.sq_count || word >> 16 != 0 {
            complain(
                Kind::DoorbellRecordJump,
                format!(
                    "QP {:#x}: send record went from {} to {word}, {} completed, the ring has {} blocks",
                    qp.qpn, qp.sq_posted, qp.sq_done, qp.sq_count
                ),
            );
            qp.sq_posted = qp.sq_next;
            self.qp_event(index, event::QP_FATAL);
            self.qp_to_error(index);
            return false;
        }
        qp.sq_posted = posted;
        true
    }

    #[inline]
    fn execute_next(&mut self, index: usize) {
        let qp = &self.qps[index];
        let Some(ring) = qp.sq else { return };
        let wqe = SendWqe::read(ring, qp.sq_count, qp.sq_next);
        let control = wqe.control;
        let blocks = control.blocks();
        let left = qp.sq_posted.wrapping_sub(qp.sq_next);
        if control.index != qp.sq_next
            || control.qpn != qp.qpn
            || blocks == 0
            || blocks > left
            || control.beyond_size != 0
        {
            complain(
                Kind::BadSendWqe,
                format!(
                    "QP {:#x}: WQE {} says index {}, QP {:#x}, {} units; {left} blocks are posted",
                    qp.qpn,
                    qp.sq_next,
                    control.index,
                    control.qpn,
                    control.units | u16::from(control.beyond_size)
                ),
            );
            let at = qp.sq_next;
            self.fail_in_order(index, at, left.max(1), control.opcode, syndrome::LOCAL_QP_OP);
            return;
        }
        if control.reserved != 0 {
            complain(
                Kind::ReservedNotZero,
                format!(
                    "QP {:#x}: WQE {} has reserved bits of its control segment set ({:#04x})",
                    qp.qpn, qp.sq_next, control.reserved
                ),
            );
        }
        if control.completion == 1 {
            complain(
                Kind::CompletionMode,
                format!(
                    "QP {:#x}: WQE {} has completion mode 1; an unsignalled one has 0",
                    qp.qpn, qp.sq_next
                ),
            );
        }
        if control.fence && qp.outstanding.iter().any(|sent| sent.reads) {
            self.qps[index].blocked = Blocked::Peer;
            return;
        }
        let start = qp.sq_next;
        let signalled = control.signalled || qp.sig_all;
        self.executing = Some(index);
        let outcome = self.execute(index, &wqe, signalled);
        self.executing = None;
        match outcome {
            Outcome::Done { bytes, inline } => {
                let qp = &mut self.qps[index];
                qp.sq_next = start.wrapping_add(blocks);
                if qp.outstanding.is_empty() {
                    qp.sq_done = qp.sq_next;
                    if signalled {
                        let inline = inline.as_ref().map(|(data, len)| &data[..*len]);
                        self.complete_send(index, start, control.opcode, bytes, inline);
                    }
                } else {
                    // Completes in order, after the WQEs that wait for answers.
                    let number = qp.outstanding.back().map_or(0, |sent| sent.number);
                    qp.outstanding.push_back(Outstanding {
                        number,
                        wqe_index: start,
                        blocks,
                        opcode: control.opcode,
                        signalled,
                        reads: false,
                        syndrome: 0,
                    });
                }
            }
            Outcome::Sent => self.qps[index].sq_next = start.wrapping_add(blocks),
            Outcome::Stalled => {}
            Outcome::Failed(code) => self.fail_in_order(index, start, blocks, control.opcode, code),
        }
        if self.breaks {
            self.breaks = false;
            self.qp_to_error(index);
        }
    }

    /// Completes a send WQE.
    #[inline]
    pub(super) fn complete_send(
        &mut self,
        index: usize,
        start: u16,
        op: u8,
        bytes: u32,
        inline: Option<&[u8]>,
    ) {
        let qp = &self.qps[index];
        let Some(cq) = qp.send_cq else { return };
        let cqe = Cqe {
            opcode: cqe_opcode::REQ,
            srqn_uidx: if self.contexts[qp.context].cqe_version == 0 { 0 } else { qp.uidx },
            byte_cnt: bytes,
            sop_qpn: u32::from(op) << 24 | qp.qpn,
            wqe_counter: start,
            inline,
            ..Cqe::default()
        };
        if self.faults.active && self.hold_or_repeat(cq, index, &cqe) {
            return;
        }
        self.complete(cq, &cqe);
    }

    /// Completes the next send WQE with an error, after the WQEs that wait for answers.
    #[cold]
    fn fail_in_order(&mut self, index: usize, start: u16, blocks: u16, op: u8, code: u16) {
        let qp = &mut self.qps[index];
        let Some(number) = qp.outstanding.back().map(|sent| sent.number) else {
            self.fail(index, start, blocks, op, code);
            return;
        };
        qp.sq_next = start.wrapping_add(blocks);
        qp.blocked = Blocked::Failed;
        qp.outstanding.push_back(Outstanding {
            number,
            wqe_index: start,
            blocks,
            opcode: op,
            signalled: true,
            reads: false,
            syndrome: code,
        });
    }

    /// Completes a send WQE with an error and stops the queue.
    pub(super) fn fail(&mut self, index: usize, start: u16, blocks: u16, op: u8, code: u16) {
        let qp = &mut self.qps[index];
        qp.sq_next = start.wrapping_add(blocks);
        qp.sq_done = qp.sq_next;
        qp.outstanding.clear();
        self.complete_send_error(index, start, op, code);
        let qp = &mut self.qps[index];
        match qp.kind {
            QpType::Uc | QpType::Ud | QpType::RawPacket => {
                // The CQ may have overflowed, which is worse.
                if qp.state != QpState::Err {
                    qp.state = QpState::Sqe;
                }
                self.flush_sq(index);
            }
            _ => self.qp_to_error(index),
        }
    }

    pub(super) fn complete_send_error(&mut self, index: usize, start: u16, op: u8, code: u16) {
        let qp = &self.qps[index];
        let Some(cq) = qp.send_cq else { return };
        let cqe = Cqe {
            opcode: cqe_opcode::REQ_ERR,
            srqn_uidx: if self.contexts[qp.context].cqe_version == 0 { 0 } else { qp.uidx },
            sop_qpn: u32::from(op) << 24 | qp.qpn,
            wqe_counter: start,
            syndrome: code,
            ..Cqe::default()
        };
        self.complete(cq, &cqe);
    }

    #[inline]
    fn execute(&mut self, index: usize, wqe: &SendWqe, signalled: bool) -> Outcome {
        let qp = &self.qps[index];
        let (Some(pd), kind) = (qp.pd, qp.kind) else { return Outcome::Failed(syndrome::LOCAL_QP_OP) };
        if kind == QpType::RawPacket {
            return self.send_frame(index, wqe, pd);
        }
        let control = &wqe.control;
        let op = match control.opcode {
            opcode::NOP => return done(0),
            opcode::UMR => return self.execute_umr(index, wqe),
            opcode::MMO if control.opmod == 1 => return self.memcpy(wqe, pd),
            opcode::SEND => Op::Send,
            opcode::SEND_IMM => Op::SendImm,
            opcode::SEND_INVAL => Op::SendInv,
            opcode::RDMA_WRITE => Op::Write,
            opcode::RDMA_WRITE_IMM => Op::WriteImm,
            opcode::RDMA_READ => Op::Read,
            opcode::ATOMIC_CS => Op::CompareSwap,
            opcode::ATOMIC_FA => Op::FetchAdd,
            opcode::ATOMIC_MASKED_CS if control.opmod == EXTENDED_8_BYTES => Op::MaskedCompareSwap,
            opcode::ATOMIC_MASKED_FA if control.opmod == EXTENDED_8_BYTES => Op::MaskedFetchAdd,
            other => {
                complain(
                    Kind::BadSendWqe,
                    format!("QP {:#x}: send opcode {other:#04x} is not known", qp.qpn),
                );
                return Outcome::Failed(syndrome::LOCAL_QP_OP);
            }
        };
        let allowed = match kind {
            QpType::Ud => matches!(op, Op::Send | Op::SendImm),
            QpType::Uc => !op.reads(),
            _ => true,
        };
        // The card keeps the logarithm of the number, so an initiator with 0 has one read at a
        // time.
        let may_read = qp.attr.max_rd_atomic > 0 || kind == QpType::Dci;
        if !allowed || op.reads() && !may_read {
            return Outcome::Failed(syndrome::LOCAL_QP_OP);
        }
        let mut request = Request {
            op,
            kind,
            source_qpn: qp.qpn,
            dest_qpn: qp.attr.dest_qpn,
            number: qp.request_number(),
            imm: control.imm,
            solicited: control.solicited,
            len: 0,
            rkey: 0,
            raddr: 0,
            operands: [0; 4],
            srqn: 0,
            datagram: None,
        };
        let unit = match self.read_addressing(wqe, &mut request) {
            Some(unit) => unit,
            None => return Outcome::Failed(syndrome::LOCAL_QP_OP),
        };
        let mut list = std::mem::take(&mut self.gather);
        let gathered = if op.reads() {
            self.landing_list(wqe, unit, pd, &mut list)
        } else {
            self.gather_list(wqe, unit, pd, 0, &mut list)
        };
        let outcome = match gathered {
            Err(GatherError::Malformed) => Outcome::Failed(syndrome::LOCAL_LENGTH),
            Err(GatherError::Protection(cause)) if op.reads() => Outcome::Failed(cause.of_scatter()),
            Err(GatherError::Protection(cause)) => Outcome::Failed(cause.of_gather()),
            Ok(len) if op.is_atomic() && len != 8 => Outcome::Failed(syndrome::LOCAL_LENGTH),
            Ok(len) if kind == QpType::Ud && len > 4096 => Outcome::Failed(syndrome::LOCAL_LENGTH),
            Ok(len) if len > 1 << 30 => Outcome::Failed(syndrome::LOCAL_LENGTH),
            Ok(len) => {
                request.len = len;
                self.carry_out(index, wqe, &request, &list, signalled)
            }
        };
        self.gather = list;
        outcome
    }

    /// Copies within the process's own memory: one segment to another of the same length.
    #[cold]
    fn memcpy(&mut self, wqe: &SendWqe, pd: usize) -> Outcome {
        const SOURCE: usize = 2;
        const DEST: usize = 3;
        if wqe.control.units != 4 {
            return Outcome::Failed(syndrome::LOCAL_QP_OP);
        }
        let len = wqe.be32(SOURCE, 0);
        if len == 0 || len != wqe.be32(DEST, 0) || len > 1 << LOG_MAX_MEMCPY {
            return Outcome::Failed(syndrome::LOCAL_LENGTH);
        }
        let place =
            |unit: usize, need: u32| self.local_address(wqe.be32(unit, 4), pd, wqe.be64(unit, 8), len, need);
        let refusal = |unit: usize| self.refusal(wqe.be32(unit, 4), pd);
        match (place(SOURCE, 0), place(DEST, access::LOCAL_WRITE)) {
            (Some(from), Some(to)) => {
                mem::copy(from, to, len as usize);
                done(len)
            }
            (None, _) => Outcome::Failed(refusal(SOURCE).of_gather()),
            (_, None) => Outcome::Failed(refusal(DEST).of_scatter()),
        }
    }

    /// Delivers a request to its destination.
    #[inline]
    fn carry_out(
        &mut self,
        index: usize,
        wqe: &SendWqe,
        request: &Request,
        list: &[Seg],
        signalled: bool,
    ) -> Outcome {
        if self.faults.active
            && let Some(outcome) = self.inject(index, request)
        {
            return outcome;
        }
        if request.dest_qpn == GROUP_QPN && request.kind == QpType::Ud {
            return self.send_to_group(index, request, list);
        }
        if process_of(request.dest_qpn) != self.net.slot() {
            return self.send_away(index, wqe, request, list, signalled);
        }
        // READ and atomics send no payload. Their list is the destination of the answer.
        let payload = if request.op.reads() { &[][..] } else { list };
        let reply = self.respond(request, Payload::Segments(payload));
        match reply {
            Reply::Ack => {
                self.acknowledged(index, request.kind);
                done(request.len)
            }
            Reply::Data(from) => {
                self.acknowledged(index, request.kind);
                let seg = [Seg { addr: from, len: request.len }];
                self.land(index, &seg, list, request.len)
            }
            Reply::Old(value) => {
                self.acknowledged(index, request.kind);
                self.land_bytes(index, &value.to_ne_bytes(), list)
            }
            Reply::NotReady(code) => self.not_ready(index, code),
            Reply::Nak(code) | Reply::NakCompleted(code) => Outcome::Failed(code),
            Reply::Silence if request.kind.is_reliable() => self.unanswered(index),
            Reply::Silence => done(request.len),
        }
    }

    #[inline]
    fn acknowledged(&mut self, index: usize, kind: QpType) {
        if kind.is_reliable() {
            let qp = &mut self.qps[index];
            qp.send_sn = (qp.send_sn + 1) & SN_MASK;
            qp.rnr_left = qp.attr.rnr_retry;
            qp.retry_left = qp.attr.retry_cnt;
        }
    }

    /// Writes a READ's data to the place that the WQE names, or into the CQE.
    fn land(&mut self, index: usize, from: &[Seg], list: &[Seg], len: u32) -> Outcome {
        if len > 0 && len <= self.qps[index].scatter_send {
            let mut data = [0; 64];
            mem::read_region(from[0].addr, &mut data[..len as usize]);
            return Outcome::Done { bytes: len, inline: Some((data, len as usize)) };
        }
        copy_segments(from, list, len);
        done(len)
    }

    pub(super) fn land_bytes(&mut self, index: usize, bytes: &[u8], list: &[Seg]) -> Outcome {
        if bytes.len() <= self.qps[index].scatter_send as usize {
            let mut data = [0; 64];
            data[..bytes.len()].copy_from_slice(bytes);
            return Outcome::Done { bytes: bytes.len() as u32, inline: Some((data, bytes.len())) };
        }
        let mut at = 0;
        for seg in list {
            let end = (at + seg.len as usize).min(bytes.len());
            mem::write_region(seg.addr, &bytes[at..end]);
            at = end;
        }
        done(bytes.len() as u32)
    }

    /// The receiver has no buffer: wait as long as it asked, as often as the QP allows.
    pub(super) fn not_ready(&mut self, index: usize, code: u8) -> Outcome {
        const FOR_EVER: u8 = 7;
        let qp = &mut self.qps[index];
        if qp.attr.rnr_retry != FOR_EVER {
            if qp.rnr_left == 0 {
                return Outcome::Failed(syndrome::RNR_RETRY);
            }
            qp.rnr_left -= 1;
        }
        self.block_for(index, timer::rnr_ns(code));
        Outcome::Stalled
    }

    /// Handles a missing answer: waits and retries, as often as the QP allows.
    pub(super) fn unanswered(&mut self, index: usize) -> Outcome {
        let qp = &mut self.qps[index];
        match timer::transport_ns(qp.attr.timeout) {
            // No timeout: the hardware would wait for ever.
            None => self.block_for(index, 100_000_000),
            Some(ns) => {
                if qp.retry_left == 0 {
                    return Outcome::Failed(syndrome::TRANSPORT_RETRY);
                }
                qp.retry_left -= 1;
                self.block_for(index, ns);
            }
        }
        Outcome::Stalled
    }

    /// Flushes a send queue that is in error.
    pub(super) fn flush_sq(&mut self, index: usize) {
        let qp = &mut self.qps[index];
        let Some(ring) = qp.sq else { return };
        let (mut at, end, count) = (qp.sq_done, qp.sq_posted, qp.sq_count);
        qp.outstanding.clear();
        (qp.sq_next, qp.sq_done) = (end, end);
        while at != end {
            let wqe = SendWqe::read(ring, count, at);
            self.complete_send_error(index, at, wqe.control.opcode, syndrome::FLUSH);
            let blocks = wqe.control.blocks().clamp(1, end.wrapping_sub(at));
            at = at.wrapping_add(blocks);
        }
    }

    /// Generates the event when a draining send queue has no outstanding requests.
    pub(crate) fn check_drained(&mut self, index: usize) {
        let Some(qp) = self.qps.get_mut(index) else { return };
        if qp.state == QpState::Sqd && qp.outstanding.is_empty() && qp.drained_event {
            qp.drained_event = false;
            self.qp_event(index, event::SQ_DRAINED);
        }
    }

    /// Applies fault injection to a request.
    #[cold]
    fn inject(&mut self, index: usize, request: &Request) -> Option<Outcome> {
        let qp = &self.qps[index];
        match self.faults.on_request(qp.qpn)? {
            Injected::Drop => {
                Some(if request.kind.is_reliable() { self.unanswered(index) } else { done(request.len) })
            }
            Injected::Delay(ns) => {
                self.block_for(index, ns);
                Some(Outcome::Stalled)
            }
            Injected::NotReady => Some(self.not_ready(index, 1)),
            Injected::Error(code) => Some(Outcome::Failed(syndrome::usual(code))),
        }
    }
}
