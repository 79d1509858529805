//! BlueFlame checks: whether the bytes copied into a doorbell register equal the WQE in the ring,
//! and whether the halves of the register alternate.
//!
//! A ConnectX executes the copy in place of the WQE in the ring, so a wrong copy sends wrong data.
//! Here a register is memory, and the engine may read it during a write. The checks therefore run
//! only in explicit steps, when the program guarantees that no thread posts ([`Card::settled`]).
//!
//! The words behind the first word have one of four contents. Zero: nothing was copied since the
//! last look. The announced WQE: a BlueFlame copy. Another WQE: an earlier copy, followed by an
//! eight-byte doorbell in the same half, which is legal. Anything else: a torn copy, which draws a
//! complaint.

use super::card::Card;
use super::swqe::SendWqe;
use crate::host::complaints::{Kind, complain};
use crate::objects::LastCopy;

/// 64-bit words in a half of a register.
pub(super) const WORDS: usize = 32;
/// Words of a basic block.
const BLOCK: usize = 8;
/// Number of basic blocks before the announced WQE in which an earlier copy is searched.
const EARLIER: u16 = 256;

/// A doorbell that a look at a page found.
#[derive(Clone, Copy, Debug)]
struct Seen {
    qp: usize,
    at: u16,
    blocks: u16,
    is_copy: bool,
}

/// What one look at a page found in the halves of its registers.
#[derive(Debug, Default)]
pub(super) struct Look {
    pub(super) rung: bool,
    halves: [Option<Seen>; 4],
}

impl Seen {
    fn copy_in(&self, half: usize) -> LastCopy {
        LastCopy { half, qp: self.qp, end: self.at.wrapping_add(self.blocks) }
    }
}

impl Look {
    pub(super) fn note(&mut self, half: usize, qp: usize, at: u16, blocks: u16, is_copy: bool) {
        self.halves[half] = Some(Seen { qp, at, blocks: blocks.max(1), is_copy });
    }
}

/// The words of a WQE, in host order, as far as a half of a register holds them.
fn image(wqe: &SendWqe, words: usize) -> [u64; WORDS] {
    std::array::from_fn(|i| if i < words { wqe.be64(i / 2, i % 2 * 8) } else { 0 })
}

impl Card {
    /// Checks the words behind a doorbell; true when they are a copy of the WQE.
    pub(super) fn check_copy(
        &self,
        context: usize,
        page: u32,
        index: usize,
        wqe: &SendWqe,
        copied: &[u64; WORDS],
    ) -> bool {
        if copied[1..BLOCK].iter().all(|&word| word == 0) {
            return false;
        }
        let words = usize::from(wqe.control.units) * 2;
        let own = image(wqe, words.min(WORDS));
        let Some(wrong) = (1..words.min(WORDS)).find(|&i| copied[i] != own[i]) else { return true };
        if self.is_earlier_copy(context, page, wqe, copied) {
            return false;
        }
        let (qpn, at) = (self.qps[index].qpn, wqe.control.index);
        let (kind, what) = if wqe.is_past_end(wrong / 2) {
            (Kind::BlueFlamePastEnd, "the copy went on past the ring's end instead of at its start")
        } else {
            (Kind::BlueFlameTorn, "the copy holds something else")
        };
        complain(
            kind,
            format!(
                "QP {qpn:#x}: WQE {at} differs in the register from byte {} on: {what} ({:#018x}, in the ring {:#018x})",
                wrong * 8,
                copied[wrong],
                own[wrong]
            ),
        );
        true
    }

    /// True when the words behind a doorbell are those of another WQE of this page's queues.
    fn is_earlier_copy(&self, context: usize, page: u32, own: &SendWqe, copied: &[u64; WORDS]) -> bool {
        let state = &self.contexts[context];
        let Some(slot) = state.uar_slot(page) else { return false };
        state.uar_pages[slot].qps.iter().filter_map(|&index| self.qps.get(index)).any(|qp| {
            let Some(ring) = qp.sq else { return false };
            (0..qp.sq_count.min(EARLIER)).any(|back| {
                let wqe = SendWqe::read(ring, qp.sq_count, qp.sq_next.wrapping_sub(back).wrapping_add(1));
                let words = (usize::from(wqe.control.units) * 2).min(BLOCK);
                let is_own = (wqe.control.qpn, wqe.control.index) == (own.control.qpn, own.control.index);
                wqe.control.qpn == qp.qpn
                    && !is_own
                    && words > 2
                    && image(&wqe, words)[1..words] == copied[1..words]
            })
        })
    }

    /// Checks the order of the doorbells that one look at a page found, together with the last
    /// copies before them. Draws a complaint when a half receives two copies in a row, and when a
    /// doorbell does not announce the last WQE.
    pub(super) fn check_order(&mut self, context: usize, page: u32, look: &Look) {
        let Some(slot) = self.contexts[context].uar_slot(page) else { return };
        if !self.settled {
            self.contexts[context].uar_pages[slot].last_copy = [None; 2];
            return;
        }
        for (register, halves) in look.halves.chunks(2).enumerate() {
            let last = &mut self.contexts[context].uar_pages[slot].last_copy[register];
            let (half, seen) = match *halves {
                [Some(seen), None] => (0, seen),
                [None, Some(seen)] => (1, seen),
                [Some(a), Some(b)] if a.qp == b.qp => {
                    let (half, later) = if b.at.wrapping_sub(a.at) < 1 << 15 { (1, b) } else { (0, a) };
                    *last = later.is_copy.then(|| later.copy_in(half));
                    continue;
                }
                [None, None] => continue,
                _ => {
                    *last = None;
                    continue;
                }
            };
            let before = last.replace(seen.copy_in(half)).filter(|_| seen.is_copy);
            if !seen.is_copy {
                *last = None;
            }
            if before == Some(LastCopy { half, qp: seen.qp, end: seen.at }) {
                complain(
                    Kind::BlueFlameHalfReused,
                    format!(
                        "QP {:#x}: WQE {} was copied to the half of the register that held the WQE before it",
                        self.qps[seen.qp].qpn, seen.at
                    ),
                );
            }
        }
        self.check_last(context, slot, look);
    }

    /// Checks that the doorbell announces the last WQE that the record covers. The check needs a
    /// page on which only one QP was rung: another QP may have overwritten this QP's last doorbell.
    fn check_last(&self, context: usize, slot: usize, look: &Look) {
        let mut seen = look.halves.iter().flatten();
        let Some(first) = seen.next() else { return };
        let qp = &self.qps[first.qp];
        let others = self.contexts[context].uar_pages[slot].qps.iter().any(|&other| {
            other != first.qp && self.qps.get(other).is_some_and(|qp| qp.queued || qp.was_rung())
        });
        if others || seen.any(|other| other.qp != first.qp) {
            return;
        }
        let Some(record) = qp.record.map(|record| record.be32_acquire(4)) else { return };
        let posted = record as u16;
        if record >> 16 != 0 || posted.wrapping_sub(qp.sq_done) > qp.sq_count {
            // The record itself is wrong, which has a complaint of its own.
            return;
        }
        if !look.halves.iter().flatten().any(|seen| seen.at.wrapping_add(seen.blocks) == posted) {
            complain(
                Kind::DoorbellNotLast,
                format!(
                    "QP {:#x}: the doorbell announces WQE {}, the record covers up to index {posted}",
                    qp.qpn, first.at
                ),
            );
        }
    }
}
