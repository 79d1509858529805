//! Doorbells: send doorbell registers, CQ arm doorbells, and the queues that they wake.
//!
//! A register is memory that the program writes and the device clears. A register keeps only the
//! last doorbell. After the device finds a doorbell, it therefore compares the records of all QPs
//! of the page. The device checks the content of a doorbell against the record and the ring. The
//! `blueflame` module checks the bytes copied behind the first eight bytes.

use std::time::{Duration, Instant};

use super::blueflame::{Look, WORDS};
use super::card::Card;
use super::swqe::SendWqe;
use crate::host::complaints::{Kind, complain};
use crate::host::mem::Area;

/// Doorbell registers of a UAR page: two of 512 bytes, each with two halves used in turn.
const REGISTERS: [usize; 4] = [0x800, 0x900, 0xa00, 0xb00];
/// Where CQs are armed.
const CQ_DOORBELL: usize = 0x20;
const PAGE: usize = 4096;

impl Card {
    /// Looks for doorbells on all UAR pages, including doorbells that a later doorbell in the same
    /// register overwrote. Returns true if there was a doorbell.
    pub(crate) fn scan_doorbells(&mut self) -> bool {
        let mut found = false;
        for context in 0..self.contexts.capacity() {
            found |= self.scan_context(context);
        }
        found
    }

    /// As [`Card::scan_doorbells`] for the pages of one context.
    pub(crate) fn scan_context(&mut self, context: usize) -> bool {
        let mut found = false;
        let mut slot = 0;
        while let Some(page) = self.contexts.get(context).and_then(|state| state.uar_pages.get(slot)) {
            let index = page.index;
            found |= self.scan_page(context, index);
            found |= self.find_overwritten(context, slot);
            slot += 1;
        }
        found
    }

    /// Takes the doorbells that a UAR page holds, without running the queues they name.
    pub(crate) fn take_doorbells(&mut self, context: usize, page: u32) {
        let Some(slot) = self.contexts.get(context).and_then(|state| state.uar_slot(page)) else { return };
        self.scan_page(context, page);
        self.find_overwritten(context, slot);
    }

    /// Handles a write to a doorbell register of this page. The records show which queues were
    /// rung.
    pub(crate) fn page_touched(&mut self, context: usize, page: u32) {
        let Some(slot) = self.contexts.get(context).and_then(|state| state.uar_slot(page)) else { return };
        self.contexts[context].uar_pages[slot].compare = true;
        self.find_overwritten(context, slot);
        self.arm_all(context);
    }

    /// Takes the doorbells of one UAR page. Returns true if a doorbell announced something new. The
    /// next [`Card::scan_context`] finds the doorbells that were overwritten.
    #[inline]
    pub(super) fn scan_page(&mut self, context: usize, page: u32) -> bool {
        let uar = self.contexts[context].uar;
        let base = page as usize * PAGE;
        let mut look = Look::default();
        let mut news = false;
        for (half, register) in REGISTERS.into_iter().enumerate() {
            if uar.load64(base + register) != 0 {
                let word = u64::from_be(uar.take64(base + register));
                if word != 0 {
                    let copied = self.settled.then(|| take_words(uar, base + register));
                    news |= self.doorbell(context, page, word, half, copied.as_ref(), &mut look);
                    look.rung = true;
                }
            }
        }
        if look.rung {
            self.check_order(context, page, &look);
            let state = &mut self.contexts[context];
            if let Some(slot) = state.uar_slot(page) {
                let page = &mut state.uar_pages[slot];
                page.compare = page.qps.len() > 1;
            }
        }
        if uar.load64(base + CQ_DOORBELL) != 0 {
            let word = u64::from_be(uar.take64(base + CQ_DOORBELL));
            if word != 0 {
                news |= self.arm_doorbell(context, word, uar, base + CQ_DOORBELL);
            }
        }
        news
    }

    /// Handles a send doorbell: the first eight bytes of the announced WQE. Returns false when the
    /// engine already knew of that WQE.
    #[inline]
    fn doorbell(
        &mut self,
        context: usize,
        page: u32,
        word: u64,
        half: usize,
        copied: Option<&[u64; WORDS]>,
        look: &mut Look,
    ) -> bool {
        let (first, second) = ((word >> 32) as u32, word as u32);
        let qpn = second >> 8;
        let Some(index) = self.qp_by_number(qpn) else {
            complain(Kind::BadDoorbell, format!("a doorbell for QP {qpn:#x}, which does not exist"));
            return true;
        };
        let qp = &self.qps[index];
        if qp.context != context || qp.uar_page != page {
            complain(
                Kind::BadDoorbell,
                format!("a doorbell for QP {qpn:#x} on UAR page {page:#x}, its own is {:#x}", qp.uar_page),
            );
            return true;
        }
        if qp.state.ignores_sends() {
            return false;
        }
        let news = qp.was_rung();
        let at = (first >> 8) as u16;
        if let Some(ring) = qp.sq
            && qp.sq_count > 0
            && at.wrapping_sub(qp.sq_next) < qp.sq_count
        {
            let wqe = SendWqe::read(ring, qp.sq_count, at);
            let ring_word = u64::from(wqe.be32(0, 0)) << 32 | u64::from(wqe.be32(0, 4));
            if ring_word != word {
                complain(
                    Kind::BlueFlameMismatch,
                    format!(
                        "QP {qpn:#x}: the register says {word:#018x}, WQE {at} in the ring {ring_word:#018x}"
                    ),
                );
            } else if !qp.covers(at) {
                complain(
                    Kind::RecordAfterRegister,
                    format!(
                        "QP {qpn:#x}: the register announces WQE {at}, which the record does not cover yet"
                    ),
                );
            } else if let Some(copied) = copied {
                let is_copy = self.check_copy(context, page, index, &wqe, copied);
                look.note(half, index, at, wqe.control.blocks(), is_copy);
            }
        }
        self.mark_ready(index);
        news
    }

    /// Finds overwritten doorbells. A register holds one doorbell. When several QPs share the page,
    /// a QP whose record moved was rung too. Returns true if there is such a QP.
    #[inline]
    fn find_overwritten(&mut self, context: usize, slot: usize) -> bool {
        let page = &mut self.contexts[context].uar_pages[slot];
        if !page.compare {
            return false;
        }
        page.compare = false;
        let mut found = false;
        for &index in &page.qps {
            if let Some(qp) = self.qps.get_mut(index)
                && qp.was_rung()
            {
                qp.queued = true;
                self.ready.push_back(index);
                found = true;
            }
        }
        found
    }

    /// An arm doorbell, which was taken from this register: arm word and CQ number.
    fn arm_doorbell(&mut self, context: usize, word: u64, uar: Area, register: usize) -> bool {
        let (arm, cqn) = ((word >> 32) as u32, word as u32 & 0xff_ffff);
        let index = (cqn as usize).wrapping_sub(1);
        match self.cqs.get(index).filter(|cq| cq.context == context) {
            None => complain(Kind::BadDoorbell, format!("CQ {cqn:#x} was armed, which does not exist")),
            Some(cq) => {
                let record = cq.record.be32_acquire(4);
                if record != arm
                    && (record >> 28) & 3 == arm >> 28 & 3
                    && record & 0xff_ffff == arm & 0xff_ffff
                    // A thread may be arming the CQ anew, and between record and register.
                    && (self.settled || !written_soon(uar, register))
                {
                    complain(
                        Kind::BadDoorbell,
                        format!("CQ {cqn:#x}: armed with {arm:#010x}, its record says {record:#010x}"),
                    );
                }
            }
        }
        self.arm_all(context)
    }

    /// Arms every CQ of the context whose record moved, because all CQs of a context share the arm
    /// register. Returns true if a record moved.
    fn arm_all(&mut self, context: usize) -> bool {
        let mut news = false;
        for other in 0..self.cqs.capacity() {
            if self.cqs.get(other).is_some_and(|cq| cq.context == context) {
                news |= self.arm(other);
            }
        }
        news
    }
}

/// Whether a register is written within the time for which a thread may lose its processor.
fn written_soon(uar: Area, register: usize) -> bool {
    const LOST_PROCESSOR: Duration = Duration::from_millis(200);
    let start = Instant::now();
    while uar.load64(register) == 0 {
        if start.elapsed() > LOST_PROCESSOR {
            return false;
        }
        crate::host::sys::yield_now();
    }
    true
}

/// Takes the words copied into a register behind its first eight bytes.
fn take_words(uar: Area, register: usize) -> [u64; WORDS] {
    std::array::from_fn(|i| if i == 0 { 0 } else { u64::from_be(uar.take64(register + i * 8)) })
}
