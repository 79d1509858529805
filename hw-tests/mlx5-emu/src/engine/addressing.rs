//! The segments of a send WQE between control and data: destination, remote address, operands.

use super::card::Card;
use super::swqe::SendWqe;
use crate::host::complaints::{Kind, complain};
use crate::host::gids;
use crate::objects::{QpType, fold_key};
use crate::wire::{Datagram, Op, Request};

impl Card {
    /// Reads the segments between control and data; returns the first data unit.
    #[inline]
    pub(super) fn read_addressing(&self, wqe: &SendWqe, request: &mut Request) -> Option<usize> {
        let units = usize::from(wqe.control.units);
        let mut unit = 1;
        if request.kind == QpType::XrcSend {
            if units < 2 {
                return None;
            }
            request.srqn = wqe.be32(1, 0) & 0xff_ffff;
            unit = 2;
        }
        if request.kind == QpType::Dci {
            const ADDRESS_VECTOR: usize = 3;
            if units < 1 + ADDRESS_VECTOR {
                return None;
            }
            request.dest_qpn = wqe.be32(1, 8) & 0xff_ffff;
            request.srqn = fold_key(wqe.be64(1, 0));
            unit = 1 + ADDRESS_VECTOR;
        }
        if request.kind == QpType::Ud {
            if units < 4 {
                return None;
            }
            self.read_datagram(wqe, request)?;
            return Some(4);
        }
        if matches!(request.op, Op::Send | Op::SendImm | Op::SendInv) {
            return Some(unit);
        }
        if units < unit + 1 {
            return None;
        }
        request.raddr = wqe.be64(unit, 0);
        request.rkey = wqe.be32(unit, 8);
        unit += 1;
        match request.op {
            Op::CompareSwap | Op::FetchAdd => {
                request.operands[0] = wqe.be64(unit, 0);
                request.operands[1] = wqe.be64(unit, 8);
                unit += 1;
            }
            Op::MaskedFetchAdd => {
                request.operands[0] = wqe.be64(unit, 0);
                request.operands[2] = wqe.be64(unit, 8);
                unit += 1;
            }
            Op::MaskedCompareSwap => {
                request.operands[0] = wqe.be64(unit, 0);
                request.operands[1] = wqe.be64(unit, 8);
                request.operands[2] = wqe.be64(unit + 1, 0);
                request.operands[3] = wqe.be64(unit + 1, 8);
                unit += 2;
            }
            _ => {}
        }
        (unit <= units).then_some(unit)
    }

    /// Reads the 48-byte address vector of a datagram.
    fn read_datagram(&self, wqe: &SendWqe, request: &mut Request) -> Option<()> {
        const EXTENDED: u32 = 0x8000_0000;
        let (key, dest) = (wqe.be32(1, 0), wqe.be32(1, 8));
        if dest & EXTENDED == 0 {
            complain(
                Kind::BadSendWqe,
                format!("QP {:#x}: an address vector without the extended bit", wqe.control.qpn),
            );
            return None;
        }
        request.dest_qpn = dest & 0xff_ffff;
        let second = wqe.bytes16(2);
        let word = wqe.be32(2, 12);
        let own = self.qp_by_number(request.source_qpn).map_or(0, |qp| self.qps[qp].attr.qkey);
        request.datagram = Some(Datagram {
            // A key with the top bit set stands for the QP's own.
            qkey: if key >> 31 != 0 { own } else { key },
            source_gid: gids::bytes_at((word >> 20 & 0xff) as usize)?,
            dest_gid: wqe.bytes16(3),
            traffic_class: second[10],
            hop_limit: second[11],
            flow_label: word & 0xf_ffff,
        });
        Some(())
    }
}
