//! Entries that have little to tell, looked at in place before they are taken.

use super::Cq;
use crate::{
    barrier,
    cqe::{self, Message, PlainKind, RawCqe},
    doorbell::CqDbRec,
    queue_mem::{CqeMem, CqeRef},
};

impl Cq {
    /// The next entry in place, if it is one of the two kinds that have the least to tell; see
    /// [`PlainKind`]. Consumes nothing: [`PlainEntry::take`] does. Otherwise returns `None`:
    /// [`poll`](Self::poll) then returns the entry, if there is one. `None` also at the end of a
    /// release interval: see [`begin_interval`](Self::begin_interval). Straight-line code without a
    /// call.
    ///
    /// A caller that finds the completion's records before it takes the entry can leave an entry
    /// whose records it does not find to [`poll`](Self::poll).
    #[inline(always)]
    pub fn plain_entry(&mut self) -> Option<PlainEntry<'_>> {
        self.entry_in_place(cqe::plain_kind)
    }

    /// As [`plain_entry`](Self::plain_entry), for entries of one kind.
    #[inline(always)]
    pub fn plain_entry_of(&mut self, kind: PlainKind) -> Option<PlainEntry<'_>> {
        self.entry_in_place(|op_own| cqe::is_plain_of(op_own, kind).then_some(kind))
    }

    /// The next entry in place, if it is a Send without immediate data whose payload, of at most 32
    /// bytes, is in the entry and not in the posted buffer; and the bytes, of which the first
    /// [`PlainEntry::byte_count`] count. Otherwise as [`plain_entry`](Self::plain_entry).
    #[inline(always)]
    pub fn short_entry(&mut self) -> Option<(PlainEntry<'_>, [u8; 32])> {
        let short = |op_own| cqe::is_short_send(op_own).then_some(PlainKind::Received);
        let entry = self.entry_in_place(short)?;
        let payload = entry.entry.first_bytes();
        (entry.byte_count() <= 32).then_some((entry, payload))
    }

    /// The next entry, if `kind` gives a kind for its `op_own`, whose owner bit is 0 if the entry
    /// belongs to software. Contains the load barrier.
    #[inline(always)]
    fn entry_in_place(&mut self, kind: impl FnOnce(u8) -> Option<PlainKind>) -> Option<PlainEntry<'_>> {
        let Self { cqes, lap, dbrec, returns_each, .. } = self;
        let entry = cqes.next()?;
        let kind = kind(entry.op_own() ^ *lap)?;
        barrier::from_device();
        Some(PlainEntry { cqes, entry, kind, dbrec, returns_each })
    }
}

/// A plain entry that is not consumed yet: each field is read when it is asked for.
#[expect(missing_debug_implementations, reason = "a view of queue memory")]
pub struct PlainEntry<'a> {
    cqes: &'a CqeMem,
    entry: CqeRef<'a>,
    kind: PlainKind,
    dbrec: &'a mut CqDbRec,
    returns_each: &'a bool,
}

impl PlainEntry<'_> {
    /// Consumes the entry. It goes back to the device with the next
    /// [`publish_index`](Cq::publish_index), or as those of [`Cq::poll`].
    #[inline(always)]
    pub fn take(self) {
        self.cqes.pass(self.entry);
    }

    /// Consumes the entry, and returns it to the device, unless the CQ may
    /// [hold it back](Cq::hold_back).
    #[inline(always)]
    pub fn take_and_return(self) {
        self.cqes.pass(self.entry);
        if *self.returns_each {
            // `Cq::released` stays behind: an empty poll then writes the index once more.
            self.dbrec.release(self.cqes.index());
        }
    }

    /// Which of the two kinds the entry is.
    #[inline(always)]
    pub fn kind(&self) -> PlainKind {
        self.kind
    }

    /// QP number, 24 bits, and in the upper 8 bits the opcode of a request.
    #[inline(always)]
    pub fn opcode_qpn(&self) -> u32 {
        self.entry.sop_drop_qpn()
    }

    /// QP number, 24 bits.
    #[inline(always)]
    pub fn qpn(&self) -> u32 {
        self.opcode_qpn() & 0x00ff_ffff
    }

    /// The slot of the receive, or the number that [`Sq::complete`](crate::Sq::complete) takes.
    #[inline(always)]
    pub fn wqe_counter(&self) -> u16 {
        self.entry.wqe_counter()
    }

    /// The bytes received.
    #[inline(always)]
    pub fn byte_count(&self) -> u32 {
        self.entry.byte_count()
    }

    /// A copy of all fields, which is valid after the entry was taken, too.
    #[inline(always)]
    pub fn raw(&self) -> RawCqe {
        self.entry.raw()
    }

    /// What the entry of a receive says about its message.
    #[inline(always)]
    pub fn message(&self) -> Message {
        Message::decode(&self.entry)
    }
}
