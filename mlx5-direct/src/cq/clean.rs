//! Removing the entries of a QP that is gone.

use super::Cq;
use crate::cqe::{self, Completion};

impl Cq {
    /// Removes the entries of a QP that went to RESET or was destroyed, and returns how many.
    /// Passes each to `removed`, oldest first: return its slot to the SRQ. The other entries keep
    /// their order.
    ///
    /// A QP number is given out again. Without this call, a later QP with the number would get the
    /// completions of the earlier one. libmlx5 cleans its CQs in `ibv_destroy_qp` and when a QP
    /// goes to RESET, but not a CQ that was handed over to this crate. Call this for the send CQ
    /// and for the receive CQ, after the call of verbs returned: the device then writes no more
    /// entries of the QP. For the sends, [`Sq::reset`](crate::Sq::reset) or dropping the
    /// [`Sq`](crate::Sq) releases all requests; their entries need no
    /// [`Sq::complete`](crate::Sq::complete).
    ///
    /// A payload or result that is in an entry is lost: poll until the queue is empty first if you
    /// need it. If `removed` panics, later entries of the QP stay in the queue.
    pub fn clean(&mut self, qpn: u32, mut removed: impl FnMut(Completion)) -> u32 {
        let mut cleaning = Cleaning { cq: self, qpn, looked_at: 0 };
        while let Some((at, op_own)) = cleaning.look_at_next() {
            if cleaning.cq.is_of(at, qpn)
                && let Ok(completion) = cqe::decode_other(&cleaning.cq.cqes.entry(at), op_own)
            {
                removed(completion);
            }
        }
        cleaning.close_gaps()
    }

    /// As [`clean`](Self::clean), for a CQ whose entries hold no slots of an SRQ. Nothing is
    /// decoded.
    pub fn discard(&mut self, qpn: u32) -> u32 {
        let mut cleaning = Cleaning { cq: self, qpn, looked_at: 0 };
        while cleaning.look_at_next().is_some() {}
        cleaning.close_gaps()
    }

    fn is_of(&self, index: u32, qpn: u32) -> bool {
        (self.cqes.entry(index).sop_drop_qpn() ^ qpn) & 0x00ff_ffff == 0
    }
}

/// Removes the entries of a QP. The drop of this value closes the gaps, so that entries whose
/// completions were passed on are not polled later if the receiver of a completion panics.
struct Cleaning<'a> {
    cq: &'a mut Cq,
    qpn: u32,
    /// Waiting entries that were looked at.
    looked_at: u32,
}

impl Cleaning<'_> {
    fn at(&self, n: u32) -> u32 {
        self.cq.cqes.index().wrapping_add(n)
    }

    /// The next waiting entry: its index, and its byte of opcode and owner. `None` after the last
    /// entry that can be polled.
    fn look_at_next(&mut self) -> Option<(u32, u8)> {
        let n = self.looked_at;
        let op_own = (n <= self.cq.cqes.mask()).then(|| self.cq.peek(n)).flatten()?;
        // Nothing behind such an entry can be polled.
        if cqe::ends_queue(op_own) {
            return None;
        }
        self.looked_at += 1;
        Some((self.at(n), op_own))
    }

    /// Moves the other entries together, and returns how many are gone.
    fn close_gaps(&mut self) -> u32 {
        let mut gone = 0;
        for n in (0..std::mem::take(&mut self.looked_at)).rev() {
            let at = self.at(n);
            if self.cq.is_of(at, self.qpn) {
                gone += 1;
            } else if gone > 0 {
                self.cq.cqes.copy_entry(at, at.wrapping_add(gone));
            }
        }
        if gone > 0 {
            self.cq.release_to(self.at(gone));
        }
        gone
    }
}

impl Drop for Cleaning<'_> {
    fn drop(&mut self) {
        self.close_gaps();
    }
}
