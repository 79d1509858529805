//! Entries that have little to tell, looked at before they are taken.

use super::Cq;
use crate::{
    barrier,
    cqe::{self, Message, PlainCqe, PlainKind, RawCqe},
    queue_mem::{CqeMem, CqeRef},
};

impl Cq {
    /// The next completion, if it is one of the two that have the least to tell; see [`PlainCqe`].
    /// Consumes nothing: [`Peeked::take`] does. Otherwise returns `None`: [`poll`](Self::poll) then
    /// returns the entry, if there is one.
    ///
    /// A caller that finds the completion's records before it takes the entry can leave an entry
    /// whose records it does not find to [`poll`](Self::poll).
    #[inline(always)]
    pub fn peek_plain(&mut self) -> Option<Peeked<'_>> {
        let (entry, lap) = self.peek_entry();
        let kind = cqe::plain_kind(entry.op_own() ^ lap)?;
        barrier::from_device();
        let cqe = cqe::decode_plain(&entry, kind);
        Some(Peeked { cq: self, cqe })
    }

    /// As [`peek_plain`](Self::peek_plain), for entries of one kind. `None` also at the end of a
    /// release interval, which `peek_plain` and [`poll`](Self::poll) begin anew. Straight-line code
    /// without a call.
    #[inline(always)]
    pub fn peek_plain_of(&mut self, kind: PlainKind) -> Option<Peeked<'_>> {
        let entry = self.cqes.next()?;
        if !cqe::is_plain_of(entry.op_own() ^ self.lap, kind) {
            return None;
        }
        barrier::from_device();
        let cqe = cqe::decode_plain(&entry, kind);
        Some(Peeked { cq: self, cqe })
    }

    /// The next entry in place, if it is one of the two kinds that have the least to tell; see
    /// [`PlainCqe`]. Consumes nothing: [`PlainEntry::take`] does.
    ///
    /// Entries that were taken go back to the device with the next
    /// [`publish_index`](Self::publish_index), or as those of [`poll`](Self::poll).
    #[inline(always)]
    pub fn plain_entry(&mut self) -> Option<PlainEntry<'_>> {
        self.begin_interval();
        let entry = self.cqes.next()?;
        let kind = cqe::plain_kind(entry.op_own() ^ self.lap)?;
        barrier::from_device();
        Some(PlainEntry { mem: &self.cqes, entry, kind })
    }

    /// As [`plain_entry`](Self::plain_entry), for entries of one kind.
    #[inline(always)]
    pub fn plain_entry_of(&mut self, kind: PlainKind) -> Option<PlainEntry<'_>> {
        self.begin_interval();
        let entry = self.cqes.next()?;
        if !cqe::is_plain_of(entry.op_own() ^ self.lap, kind) {
            return None;
        }
        barrier::from_device();
        Some(PlainEntry { mem: &self.cqes, entry, kind })
    }

    /// The next entry in place, if it is a Send without immediate data whose payload, of at most 32
    /// bytes, is in the entry and not in the posted buffer; and the bytes, of which the first
    /// [`PlainEntry::byte_count`] count. Consumes nothing: [`PlainEntry::take`] does.
    #[inline(always)]
    pub fn short_entry(&mut self) -> Option<(PlainEntry<'_>, [u8; 32])> {
        self.begin_interval();
        let entry = self.cqes.next()?;
        if !cqe::is_short_send(entry.op_own() ^ self.lap) {
            return None;
        }
        barrier::from_device();
        let payload = entry.first_bytes();
        let entry = PlainEntry { mem: &self.cqes, entry, kind: PlainKind::Received };
        (entry.byte_count() <= 32).then_some((entry, payload))
    }
}

/// A plain entry in place, from [`Cq::plain_entry`]: each field is read when it is asked for.
#[expect(missing_debug_implementations, reason = "a view of queue memory")]
pub struct PlainEntry<'a> {
    mem: &'a CqeMem,
    entry: CqeRef<'a>,
    kind: PlainKind,
}

impl PlainEntry<'_> {
    /// Consumes the entry.
    #[inline(always)]
    pub fn take(self) {
        self.mem.pass(self.entry);
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

/// An entry of [`Cq::peek_plain`] that is not consumed yet.
#[derive(Debug)]
pub struct Peeked<'a> {
    cq: &'a mut Cq,
    cqe: PlainCqe,
}

impl Peeked<'_> {
    /// What the entry says.
    #[inline(always)]
    pub fn cqe(&self) -> PlainCqe {
        self.cqe
    }

    /// As [`PlainCqe::byte_count`], but read from the entry now, so that a caller that needs the
    /// value late holds no register for it until then.
    #[inline(always)]
    pub fn byte_count(&self) -> u32 {
        self.cq.cqes.at_next().byte_count()
    }

    /// Consumes the entry, and returns it to the device, unless the CQ may
    /// [hold it back](Cq::hold_back).
    #[inline(always)]
    pub fn take(self) {
        self.cq.cqes.pass_next();
        if self.cq.returns_each {
            // `released` stays behind: an empty poll then writes the index once more.
            self.cq.dbrec.release(self.cq.cqes.index());
        }
    }
}
