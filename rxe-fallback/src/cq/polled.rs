//! Completions as the device library has written them, taken one by one.
#![expect(unsafe_code, reason = "calls ibv_poll_cq, and reads a C union")]

use doorbell_sys as sys;

use super::completion::WITH_IMM;
use super::{Completion, Cq, poll_failed};
use crate::error::Result;

/// The most completions that one call of `ibv_poll_cq` moves to a [`Polled`].
const MOST: usize = 32;

/// A CQ whose completions are polled together and taken one by one, oldest first.
#[derive(Debug)]
pub struct Polled {
    cq: Cq,
    invalidate_flags: u32,
    list: Box<[Wc; MOST]>,
    /// The oldest completion that was not taken.
    next: usize,
    /// The end of the list's used part.
    end: usize,
}

/// A completion as the device library writes it.
#[derive(Clone, Copy)]
#[repr(transparent)]
struct Wc(sys::ibv_wc);

/// A completion that was polled: a success without immediate data and without an invalidated key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Plain {
    /// The `wr_id` of the work request.
    pub wr_id: u64,
    /// The local QP number.
    pub qp_num: u32,
    /// Bytes received.
    pub byte_len: u32,
}

impl Wc {
    const EMPTY: Self = Self(sys::ibv_wc {
        wr_id: 0,
        status: 0,
        opcode: 0,
        vendor_err: 0,
        byte_len: 0,
        imm_data_invalidated_rkey_union: sys::imm_data_invalidated_rkey_union_t { imm_data: 0 },
        qp_num: 0,
        src_qp: 0,
        wc_flags: 0,
        pkey_index: 0,
        slid: 0,
        sl: 0,
        dlid_path_bits: 0,
    });
}

impl std::fmt::Debug for Wc {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Wc").field("wr_id", &self.0.wr_id).field("status", &self.0.status).finish()
    }
}

impl Polled {
    /// Nothing polled yet. Later calls allocate nothing.
    ///
    /// # Errors
    /// No memory.
    pub fn new(cq: Cq) -> std::result::Result<Self, std::collections::TryReserveError> {
        let mut list = Vec::new();
        list.try_reserve_exact(MOST)?;
        list.resize(MOST, Wc::EMPTY);
        let list = list.into_boxed_slice().try_into().unwrap_or_else(|_| unreachable!("as long as reserved"));
        Ok(Self { invalidate_flags: cq.inner.invalidate_flags, cq, list, next: 0, end: 0 })
    }

    /// The CQ.
    #[must_use]
    pub fn cq(&self) -> &Cq {
        &self.cq
    }

    /// The number of polled completions that were not taken.
    #[must_use]
    #[inline(always)]
    pub fn len(&self) -> usize {
        self.end - self.next
    }

    /// Whether all polled completions were taken.
    #[must_use]
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.next == self.end
    }

    /// The most completions that a [`Polled::fill`] finds.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.list.len()
    }

    /// Polls the CQ once if all polled completions were taken. Returns the number of polled
    /// completions; fewer than [`Polled::capacity`] if the CQ had no more.
    ///
    /// # Errors
    /// As [`Cq::poll`].
    ///
    /// # References
    /// ibv_poll_cq(3)
    #[inline]
    pub fn fill(&mut self) -> Result<usize> {
        match self.find() {
            Ok(_) => Ok(self.len()),
            Err(failed) => Err(poll_failed(failed)),
        }
    }

    /// Does the work of [`Polled::fill`]. Returns whether there is a completion.
    ///
    /// # Errors
    /// What the device library has returned, which [`Polled::fill`] makes an error of.
    #[inline(always)]
    pub fn find(&mut self) -> std::result::Result<bool, i32> {
        if !self.is_empty() {
            return Ok(true);
        }
        // SAFETY: the CQ is alive; the list has room for as many completions, of the verb's type.
        let got = unsafe { sys::ibv_poll_cq(self.cq.raw(), MOST as i32, self.list.as_mut_ptr().cast()) };
        match usize::try_from(got) {
            Ok(0) => Ok(false),
            Ok(got) => {
                (self.next, self.end) = (0, got.min(MOST));
                Ok(true)
            }
            Err(_) => Err(got),
        }
    }

    #[inline(always)]
    fn oldest(&self) -> Option<&sys::ibv_wc> {
        let wc = self.list.get(self.next)?;
        (self.next < self.end).then_some(&wc.0)
    }

    /// The oldest completion, if it is plain.
    #[must_use]
    #[inline(always)]
    pub fn plain(&self) -> Option<Plain> {
        let wc = self.oldest()?;
        let plain = wc.status == sys::ibv_wc_status::IBV_WC_SUCCESS
            && wc.wc_flags & (WITH_IMM | self.invalidate_flags) == 0;
        plain.then_some(Plain { wr_id: wc.wr_id, qp_num: wc.qp_num, byte_len: wc.byte_len })
    }

    /// Takes the completion of [`Polled::plain`], which was not `None`.
    #[inline(always)]
    pub fn skip(&mut self) {
        self.next += 1;
    }

    /// Takes the oldest completion.
    #[inline]
    pub fn pop(&mut self) -> Option<Completion> {
        let completion = Completion::from_wc(self.oldest()?, self.invalidate_flags);
        self.next += 1;
        Some(completion)
    }

    /// Removes the polled completions of the QP with this number. Calls `removed` for each.
    pub fn remove(&mut self, qp_num: u32, mut removed: impl FnMut(&Completion)) {
        let mut kept = self.next;
        for at in self.next..self.end {
            let wc = self.list[at];
            if wc.0.qp_num == qp_num {
                removed(&Completion::from_wc(&wc.0, self.invalidate_flags));
            } else {
                self.list[kept] = wc;
                kept += 1;
            }
        }
        self.end = kept;
    }
}
