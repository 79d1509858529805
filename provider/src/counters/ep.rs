//! The counters of an EP.

use super::{Base, Counters, EpCounter};
use crate::types::DtoOp;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Kinds of messages with separate counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub(crate) enum ReceivedAs {
    // The values equal those in a CQE, so that no translation is needed.
    RdmaImmediate,
    Plain,
    Immediate,
    Datagram,
}

const RECEIVED: usize = 4;

impl ReceivedAs {
    /// The kind of a receive operation.
    #[inline]
    pub(crate) fn of(op: DtoOp) -> Self {
        match op {
            DtoOp::ReceiveImmediate => Self::Immediate,
            DtoOp::ReceiveRdmaWriteImmediate => Self::RdmaImmediate,
            DtoOp::ReceiveUd | DtoOp::ReceiveUdImmediate => Self::Datagram,
            _ => Self::Plain,
        }
    }
}

/// Counts of received messages. Written only under the lock of the receive EVD's queue.
#[derive(Debug, Default)]
pub(crate) struct Received {
    of_kinds: [ReceivedOfKind; RECEIVED],
}

/// Both counts of a kind, so that they are in one cache line.
#[derive(Debug, Default)]
struct ReceivedOfKind {
    messages: AtomicU64,
    bytes: AtomicU64,
}

impl Received {
    #[inline(always)]
    pub(crate) fn add(&self, kind: ReceivedAs, bytes: u32) {
        // The lock admits one writer at a time, so no atomic read-modify-write is needed.
        let add = |to: &AtomicU64, n: u64| to.store(to.load(Relaxed).wrapping_add(n), Relaxed);
        let of_kind = &self.of_kinds[kind as usize];
        add(&of_kind.messages, 1);
        add(&of_kind.bytes, bytes.into());
    }

    /// Counts a message that a Send without immediate data has brought.
    #[inline(always)]
    pub(crate) fn add_plain(&self, bytes: u32) {
        self.add(ReceivedAs::Plain, bytes);
    }

    /// Continues the counts of another `Received`.
    pub(crate) fn follow(&self, other: &Self) {
        for (to, from) in self.of_kinds.iter().zip(&other.of_kinds) {
            to.messages.store(from.messages.load(Relaxed), Relaxed);
            to.bytes.store(from.bytes.load(Relaxed), Relaxed);
        }
    }

    pub(crate) fn get(&self, kind: ReceivedAs) -> (u64, u64) {
        let of_kind = &self.of_kinds[kind as usize];
        (of_kind.messages.load(Relaxed), of_kind.bytes.load(Relaxed))
    }
}

/// Counts of posted operations, by operation number. Binds are included, though no counter reports
/// them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Posted {
    posts: [u64; OPERATIONS],
    bytes: [u64; OPERATIONS],
}

const OPERATIONS: usize = 16;

impl Posted {
    #[inline]
    pub(crate) fn add(&mut self, op: DtoOp, bytes: u64) {
        self.add_all(op, (1, bytes));
    }

    /// As [`Posted::add`], for several operations with these bytes together.
    #[inline]
    pub(crate) fn add_all(&mut self, op: DtoOp, (posts, bytes): (u32, u64)) {
        let at = op as usize % OPERATIONS;
        self.posts[at] += u64::from(posts);
        self.bytes[at] += bytes;
    }

    pub(crate) fn set(&mut self, op: DtoOp, posts: u64, bytes: u64) {
        let at = op as usize % OPERATIONS;
        (self.posts[at], self.bytes[at]) = (posts, bytes);
    }

    pub(crate) fn get(&self, op: DtoOp) -> (u64, u64) {
        let at = op as usize % OPERATIONS;
        (self.posts[at], self.bytes[at])
    }
}

/// Counts of control calls, which are not on the data path. Under the lock of the EP's control
/// state.
#[derive(Debug, Default)]
pub(crate) struct Calls {
    pub(crate) connects: u64,
    pub(crate) disconnects: u64,
    base: Base<EpCounter>,
}

impl Calls {
    /// All counters of the EP since the last reset. Resets the counters in `reset`.
    pub(crate) fn read(
        &mut self,
        posted: &Posted,
        received: &Received,
        reset: &[EpCounter],
    ) -> Counters<EpCounter> {
        use EpCounter as C;
        let mut totals = Counters::zero();
        let mut set = |count, data: Option<C>, (n, bytes)| {
            totals.set(count, n);
            data.into_iter().for_each(|data| totals.set(data, bytes));
        };
        for (count, data, op) in [
            (C::PostSend, Some(C::PostSendData), DtoOp::Send),
            (C::PostSendUd, Some(C::PostSendUdData), DtoOp::SendUd),
            (C::PostRecv, Some(C::PostRecvData), DtoOp::Receive),
            (C::PostWrite, Some(C::PostWriteData), DtoOp::RdmaWrite),
            (C::PostWriteImm, Some(C::PostWriteImmData), DtoOp::RdmaWriteImmediate),
            (C::PostRead, Some(C::PostReadData), DtoOp::RdmaRead),
            (C::PostCmpSwap, None, DtoOp::CompareAndSwap),
            (C::PostFetchAdd, None, DtoOp::FetchAndAdd),
        ] {
            set(count, data, posted.get(op));
        }
        for (count, data, kind) in [
            (C::Recv, C::RecvData, ReceivedAs::Plain),
            (C::RecvImm, C::RecvImmData, ReceivedAs::Immediate),
            (C::RecvRdmaImm, C::RecvRdmaImmData, ReceivedAs::RdmaImmediate),
            (C::RecvUd, C::RecvUdData, ReceivedAs::Datagram),
        ] {
            set(count, Some(data), received.get(kind));
        }
        set(C::Connect, None, (self.connects, 0));
        set(C::Disconnect, None, (self.disconnects, 0));
        self.base.read(totals, reset)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_is_counted_by_itself_and_goes_over() {
        let (old, new) = (Received::default(), Received::default());
        for (op, bytes) in [
            (DtoOp::Receive, 5),
            (DtoOp::ReceiveWithInvalidate, 6),
            (DtoOp::ReceiveImmediate, u32::MAX),
            (DtoOp::ReceiveImmediate, u32::MAX),
            (DtoOp::ReceiveRdmaWriteImmediate, 0),
            (DtoOp::ReceiveUd, 50),
            (DtoOp::ReceiveUdImmediate, 41),
        ] {
            old.add(ReceivedAs::of(op), bytes);
        }
        new.follow(&old);
        assert_eq!(new.get(ReceivedAs::Plain), (2, 11));
        assert_eq!(new.get(ReceivedAs::Immediate), (2, 2 * u64::from(u32::MAX)));
        assert_eq!(new.get(ReceivedAs::RdmaImmediate), (1, 0));
        assert_eq!(new.get(ReceivedAs::Datagram), (2, 91));
    }

    #[test]
    fn operations_do_not_share_a_place() {
        let mut posted = Posted::default();
        let ops = [
            DtoOp::Send,
            DtoOp::RdmaWrite,
            DtoOp::RdmaRead,
            DtoOp::Receive,
            DtoOp::RmrBind,
            DtoOp::RdmaWriteImmediate,
            DtoOp::FetchAndAdd,
            DtoOp::CompareAndSwap,
            DtoOp::SendUd,
        ];
        for (n, op) in ops.into_iter().enumerate() {
            (0..=n).for_each(|_| posted.add(op, 10));
        }
        for (n, op) in ops.into_iter().enumerate() {
            assert_eq!(posted.get(op), (n as u64 + 1, 10 * (n as u64 + 1)), "{op:?}");
        }
    }
}
