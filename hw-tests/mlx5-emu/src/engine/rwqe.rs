//! Taking receive WQEs from a QP's own ring or from a shared receive queue.
//!
//! The device never reads beyond the doorbell record. An SRQ is a list linked by `next_wqe_index`.
//! A WQE that the record covers must not change any more. The device therefore remembers the WQE's
//! link when the record covers the WQE, and compares the link when it uses the WQE.

use super::card::Card;
use crate::host::complaints::{Kind, complain};
use crate::host::mem::Area;
use crate::objects::{
    FREE, Seg, access, event,
    syndrome::{self, Protection},
};

/// End of a scatter list that is shorter than its WQE.
const TERMINATOR_KEY: u32 = 0x100;

/// A receive WQE that the device owns.
#[derive(Clone, Copy, Debug)]
pub(super) struct RecvWqe {
    /// The CQE's `wqe_counter`.
    pub(crate) counter: u16,
    area: Area,
    /// Offset of the first data segment.
    offset: usize,
    segments: usize,
    pub(crate) pd: usize,
}

/// Why a receive WQE cannot take a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RecvError {
    TooShort,
    Protection(Protection),
}

impl RecvError {
    /// The syndrome of the receive's own completion.
    pub(super) fn syndrome(self) -> u16 {
        match self {
            RecvError::TooShort => syndrome::RECEIVE_LENGTH,
            RecvError::Protection(cause) => cause.of_scatter(),
        }
    }
}

impl Card {
    /// Takes over the WQEs that the doorbell record newly covers.
    #[inline]
    pub(super) fn refresh_srq(&mut self, index: usize) {
        let srq = &mut self.srqs[index];
        let record = srq.record.be32_acquire(0);
        let posted = record as u16;
        if posted == srq.posted || srq.error {
            return;
        }
        if record >> 16 != 0 {
            complain(
                Kind::ReservedNotZero,
                format!(
                    "SRQ {:#x}: doorbell record {record:#010x} has bits above the 16-bit counter",
                    srq.srqn
                ),
            );
        }
        let count = 1u32 << srq.log_count;
        let fresh = u32::from(posted.wrapping_sub(srq.posted));
        if fresh + srq.available > count - 1 {
            complain(
                Kind::DoorbellRecordJump,
                format!(
                    "SRQ {:#x}: doorbell record went from {} to {posted} with {} of {} WQEs in the device's hands",
                    srq.srqn,
                    srq.posted,
                    srq.available,
                    count - 1
                ),
            );
            self.srq_error(index);
            return;
        }
        srq.posted = posted;
        let mut at = srq.tail;
        for _ in 0..fresh {
            let offset = usize::from(at) << srq.log_stride;
            if srq.links[usize::from(at)] != FREE {
                complain(
                    Kind::WqeReusedInFlight,
                    format!(
                        "SRQ {:#x}: WQE {at} was posted while it still was in the device's hands",
                        srq.srqn
                    ),
                );
                self.srq_error(index);
                return;
            }
            // All other fields of the next segment are reserved, but the hardware ignores them.
            // Some drivers keep their own data there.
            let next = srq.buf.be16(offset + 2);
            if u32::from(next) >= count {
                complain(
                    Kind::NextOutsideRing,
                    format!("SRQ {:#x}: WQE {at} links to {next}, the ring has {count}", srq.srqn),
                );
                self.srq_error(index);
                return;
            }
            srq.links[usize::from(at)] = u32::from(next);
            srq.available += 1;
            at = next;
        }
        srq.tail = at;
    }

    /// The SRQ is broken: no more receives from it, and an event.
    fn srq_error(&mut self, index: usize) {
        let srq = &mut self.srqs[index];
        srq.error = true;
        srq.available = 0;
        srq.async_events += 1;
        let (context, element) = (srq.context, srq.user_handle);
        self.async_event(context, element, event::SRQ_ERR);
    }

    /// Every SRQ in use breaks, that is with a QP or with a WQE so far. libibverbs may still be
    /// creating another. It would lose the acknowledgement of the event, and wait for that without
    /// end when the SRQ is destroyed.
    pub(crate) fn break_srqs(&mut self) {
        let all: Vec<usize> = self.srqs.iter().map(|(index, _)| index).collect();
        for index in all {
            self.refresh_srq(index);
            let srq = &self.srqs[index];
            if srq.users > 0 || srq.posted > 0 {
                self.srq_error(index);
            }
        }
    }

    /// Takes the next WQE of an SRQ; `None` when there is none.
    #[inline]
    pub(super) fn take_srq_wqe(&mut self, index: usize) -> Option<RecvWqe> {
        self.refresh_srq(index);
        let srq = &mut self.srqs[index];
        if srq.available == 0 {
            return None;
        }
        let at = srq.head;
        let offset = usize::from(at) << srq.log_stride;
        let link = srq.links[usize::from(at)];
        let now = srq.buf.be16(offset + 2);
        if u32::from(now) != link {
            complain(
                Kind::NextChangedAfterPost,
                format!(
                    "SRQ {:#x}: WQE {at} linked to {link} when it was posted and to {now} when it was used",
                    srq.srqn
                ),
            );
        }
        srq.links[usize::from(at)] = FREE;
        srq.head = link as u16;
        srq.available -= 1;
        let wqe = RecvWqe {
            counter: at,
            area: srq.buf,
            offset: offset + 16,
            segments: (1 << srq.log_stride) / 16 - 1,
            pd: srq.pd,
        };
        if srq.limit != 0 && srq.available < srq.limit {
            self.check_srq_limit(index);
        }
        Some(wqe)
    }

    /// Generates the limit event when fewer WQEs are left than asked for; one shot.
    pub(crate) fn check_srq_limit(&mut self, index: usize) {
        if self.srqs[index].limit == 0 {
            return;
        }
        self.refresh_srq(index);
        let srq = &mut self.srqs[index];
        if srq.available < srq.limit {
            srq.limit = 0;
            srq.async_events += 1;
            let (context, element) = (srq.context, srq.user_handle);
            self.async_event(context, element, event::SRQ_LIMIT_REACHED);
        }
    }

    /// Reads how far a QP's own receive ring is posted.
    #[inline]
    pub(super) fn refresh_rq(&mut self, index: usize) {
        let qp = &mut self.qps[index];
        let (Some(record), true) = (qp.record, qp.rq_count > 0) else { return };
        let word = record.be32_acquire(0);
        let posted = word as u16;
        if posted == qp.rq_posted {
            return;
        }
        if u32::from(posted.wrapping_sub(qp.rq_next)) > qp.rq_count || word >> 16 != 0 {
            complain(
                Kind::DoorbellRecordJump,
                format!(
                    "QP {:#x}: receive record went from {} to {word}, {} taken, the ring has {}",
                    qp.qpn, qp.rq_posted, qp.rq_next, qp.rq_count
                ),
            );
            return;
        }
        qp.rq_posted = posted;
    }

    /// Takes the next WQE of a QP's own receive ring; `None` when there is none.
    #[inline]
    pub(super) fn take_rq_wqe(&mut self, index: usize) -> Option<RecvWqe> {
        self.refresh_rq(index);
        let qp = &mut self.qps[index];
        if qp.rq_posted == qp.rq_next {
            return None;
        }
        let slot = u32::from(qp.rq_next) & (qp.rq_count - 1);
        let wqe = RecvWqe {
            // Not the slot: the counter runs on past the ring's end.
            counter: qp.rq_next,
            area: qp.rq?,
            offset: (slot as usize) << qp.rq_shift,
            segments: (1 << qp.rq_shift) / 16,
            pd: qp.pd?,
        };
        qp.rq_next = qp.rq_next.wrapping_add(1);
        Some(wqe)
    }

    /// Translates a receive WQE's scatter list for a message of `len` bytes into `out`.
    #[inline]
    pub(super) fn scatter_list(&self, wqe: &RecvWqe, len: u32, out: &mut Vec<Seg>) -> Result<(), RecvError> {
        out.clear();
        let mut left = len;
        for i in 0..wqe.segments {
            if left == 0 {
                break;
            }
            let at = wqe.offset + i * 16;
            let (count, key) = (wqe.area.be32(at), wqe.area.be32(at + 4));
            if key == TERMINATOR_KEY {
                break;
            }
            let take = count.min(left);
            if take == 0 {
                continue;
            }
            // Only the bytes that arrive must lie inside the region. perftest relies on this: it
            // rounds the receives of an SRQ up to the MTU, beyond the end of its region.
            let addr = wqe.area.be64(at + 8);
            match self.local_address(key, wqe.pd, addr, take, access::LOCAL_WRITE) {
                Some(addr) => out.push(Seg { addr, len: take }),
                None if self.indirect_list(key, wqe.pd, addr, take, access::LOCAL_WRITE, out) => {}
                None => return Err(RecvError::Protection(self.refusal(key, wqe.pd))),
            }
            left -= take;
        }
        if left > 0 { Err(RecvError::TooShort) } else { Ok(()) }
    }
}
