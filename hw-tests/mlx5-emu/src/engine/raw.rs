//! Raw packet QPs: flow rules deliver whole Ethernet frames to QPs of this process. No frame leaves
//! the process.

use super::card::Card;
use super::cqe::{Cqe, opcode};
use super::requester::{Outcome, done};
use super::swqe::{GatherError, SendWqe, opcode as send_opcode};
use crate::host::complaints::{Kind, complain};
use crate::objects::{FIELDS, Flow, field, syndrome};
use crate::wire::Payload;

/// Longest frame: a jumbo frame with its header.
const MAX_FRAME: u32 = 9018;

/// The headers of a frame. Fields of missing headers stay zero.
fn fields_of(frame: &[u8]) -> [u8; FIELDS] {
    const VLAN: [u8; 2] = [0x81, 0];
    let mut out = [0; FIELDS];
    let bytes = |at: usize, len: usize| frame.get(at..at + len).unwrap_or(&[]);
    let put = |out: &mut [u8; FIELDS], to: usize, from: &[u8]| out[to..to + from.len()].copy_from_slice(from);
    put(&mut out, field::DEST_MAC, bytes(0, 6));
    put(&mut out, field::SOURCE_MAC, bytes(6, 6));
    let mut at = 12;
    if bytes(at, 2) == VLAN {
        put(&mut out, field::VLAN, bytes(at + 2, 2));
        out[field::VERSION] = 0x80;
        at += 4;
    }
    put(&mut out, field::ETHERTYPE, bytes(at, 2));
    let ip = at + 2;
    let (protocol, transport) = match bytes(at, 2) {
        [0x08, 0x00] if bytes(ip, 20).len() == 20 => {
            out[field::VERSION] |= 4 << 1;
            out[field::TRAFFIC_CLASS] = frame[ip + 1];
            out[field::HOP_LIMIT] = frame[ip + 8];
            put(&mut out, field::SOURCE_IP + 12, bytes(ip + 12, 4));
            put(&mut out, field::DEST_IP + 12, bytes(ip + 16, 4));
            (frame[ip + 9], ip + usize::from(frame[ip] & 15) * 4)
        }
        [0x86, 0xdd] if bytes(ip, 40).len() == 40 => {
            out[field::VERSION] |= 6 << 1;
            out[field::TRAFFIC_CLASS] = frame[ip] << 4 | frame[ip + 1] >> 4;
            out[field::HOP_LIMIT] = frame[ip + 7];
            put(&mut out, field::SOURCE_IP, bytes(ip + 8, 16));
            put(&mut out, field::DEST_IP, bytes(ip + 24, 16));
            (frame[ip + 6], ip + 40)
        }
        _ => return out,
    };
    out[field::PROTOCOL] = protocol;
    let ports = match protocol {
        6 => field::TCP_SOURCE,
        17 => field::UDP_SOURCE,
        _ => return out,
    };
    put(&mut out, ports, bytes(transport, 4));
    out
}

impl Card {
    /// Sends the frame of a raw packet WQE.
    pub(super) fn send_frame(&mut self, index: usize, wqe: &SendWqe, pd: usize) -> Outcome {
        const ETH_SEGMENT: usize = 1;
        let control = &wqe.control;
        if control.opcode == send_opcode::NOP {
            return done(0);
        }
        if control.opcode != send_opcode::SEND || control.units < 2 {
            let (qpn, opcode) = (control.qpn, control.opcode);
            complain(Kind::BadSendWqe, format!("QP {qpn:#x}: opcode {opcode:#04x} on a raw packet QP"));
            return Outcome::Failed(syndrome::LOCAL_QP_OP);
        }
        // Headers that stand in the WQE: two bytes in the segment itself, the rest behind it.
        let inline = (wqe.be32(ETH_SEGMENT, 12) >> 16) as usize;
        let unit = ETH_SEGMENT + 1 + inline.saturating_sub(2).div_ceil(16);
        if unit > usize::from(control.units) {
            return Outcome::Failed(syndrome::LOCAL_LENGTH);
        }
        let mut frame: Vec<u8> = wqe.bytes16(ETH_SEGMENT)[14..].to_vec();
        (ETH_SEGMENT + 1..unit).for_each(|unit| frame.extend_from_slice(&wqe.bytes16(unit)));
        frame.truncate(inline);
        let mut list = std::mem::take(&mut self.gather);
        let gathered = self.gather_list(wqe, unit, pd, 0, &mut list);
        let outcome = match gathered {
            Err(GatherError::Malformed) => Outcome::Failed(syndrome::LOCAL_LENGTH),
            Err(GatherError::Protection(cause)) => Outcome::Failed(cause.of_gather()),
            Ok(len) if len > MAX_FRAME => Outcome::Failed(syndrome::LOCAL_LENGTH),
            Ok(len) => {
                frame.resize(inline + len as usize, 0);
                Payload::Segments(&list).gather(&mut frame[inline..]);
                done(frame.len() as u32)
            }
        };
        self.gather = list;
        if matches!(outcome, Outcome::Done { .. }) && self.port_up {
            self.steer(index, &frame);
        }
        outcome
    }

    /// Delivers a frame to the QPs of the closest rule with the first priority.
    fn steer(&mut self, sender: usize, frame: &[u8]) {
        let fields = fields_of(frame);
        let rank = |flow: &Flow| (std::cmp::Reverse(flow.priority), flow.weight());
        let matching = || self.flows.iter().map(|(_, flow)| flow).filter(|flow| flow.matches(&fields));
        let best = matching().map(rank).max();
        let targets: Vec<(usize, u32)> = matching()
            .filter(|flow| Some(rank(flow)) == best && flow.qp != Some(sender))
            .filter_map(|flow| Some((flow.qp?, flow.tag)))
            .collect();
        for (qp, tag) in targets {
            let queue = match self.qps.get(qp).and_then(|qp| qp.spread.as_ref()) {
                None => qp,
                Some(spread) => match self.tables.get(spread.table) {
                    Some(table) => spread.choose(&table.queues, &fields),
                    None => continue,
                },
            };
            self.receive_frame(queue, tag, frame);
        }
    }

    fn receive_frame(&mut self, index: usize, tag: u32, frame: &[u8]) {
        if !self.qps.get(index).is_some_and(|qp| qp.state.receives()) {
            return;
        }
        let taken = match self.qps[index].srq {
            Some(srq) => self.take_srq_wqe(srq),
            None => self.take_rq_wqe(index),
        };
        // A frame that finds no buffer is dropped.
        let Some(wqe) = taken else { return };
        let qp = &self.qps[index];
        let Some(cq) = qp.recv_cq else { return };
        let by_number = self.contexts[qp.context].cqe_version == 0;
        let len = frame.len() as u32;
        let mut cqe = Cqe {
            opcode: opcode::RESP_SEND,
            srqn_uidx: if by_number { 0 } else { qp.uidx },
            sop_qpn: if by_number { qp.qpn } else { tag },
            wqe_counter: wqe.counter,
            byte_cnt: len,
            ..Cqe::default()
        };
        let mut list = std::mem::take(&mut self.scatter);
        match self.scatter_list(&wqe, len, &mut list) {
            Ok(()) => Payload::Bytes(frame).scatter(&list, len),
            Err(error) => (cqe.opcode, cqe.syndrome) = (opcode::RESP_ERR, error.syndrome()),
        }
        self.scatter = list;
        let failed = cqe.syndrome != 0;
        self.complete(cq, &cqe);
        if failed {
            self.qp_to_error(index);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_of_a_tagged_ipv4_udp_frame() {
        let mut frame = vec![1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 0x81, 0, 0x20, 5, 8, 0, 0x45, 0x28];
        frame.extend([0, 40, 0, 0, 0, 0, 63, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2, 0x12, 0x34, 0x56, 0x78]);
        let fields = fields_of(&frame);
        assert_eq!(
            (&fields[..8], &fields[8..16]),
            (&[2, 2, 2, 2, 2, 2, 8, 0][..], &[1, 1, 1, 1, 1, 1, 0x20, 5][..])
        );
        assert_eq!(fields[16..20], [17, 0x28, 0x88, 0]);
        assert_eq!(fields[27..32], [63, 0x12, 0x34, 0x56, 0x78]);
        assert_eq!((&fields[44..48], &fields[60..]), (&[10, 0, 0, 1][..], &[10, 0, 0, 2][..]));
    }

    #[test]
    fn a_short_frame_has_the_fields_before_its_end() {
        let fields = fields_of(&[1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 8, 0, 0x45]);
        assert_eq!((fields[6], fields[field::VERSION]), (8, 0));
        assert_eq!(fields_of(&[1, 2, 3]), [0; FIELDS]);
    }
}
