//! Types of work requests that both data paths share: their IDs, their completions, and an SRQ's
//! counts.

use crate::event_data::Owner;
use crate::types::{DtoOp, DtoStatus, LmrTriplet};
use zerocopy::FromZeros;

/// The `wr_id` of a work request: it names the queue that the completion belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WrId {
    /// A buffer from an SRQ: its entry, and the low bits of the SRQ's ID.
    Srq { srq: u32, entry: u32 },
    /// A receive of an EP without an SRQ. In a completion of the direct path: its slot in the
    /// receive queue.
    Recv(u16),
    /// A request, by its position in the EP's stream of requests. In a completion of the direct
    /// path: the counter of its WQE, which [`SendQueue::position`](super::SendQueue::position)
    /// turns into the position.
    Request(u64),
}

impl WrId {
    const REQUEST: u64 = 1 << 63;
    const RECV: u64 = 1 << 62;
    const SRQ_BITS: u32 = 0x3fff_ffff;

    pub(crate) fn pack(self) -> u64 {
        match self {
            Self::Srq { srq, entry } => u64::from(srq & Self::SRQ_BITS) << 32 | u64::from(entry),
            Self::Recv(slot) => Self::RECV | u64::from(slot),
            Self::Request(seq) => Self::REQUEST | (seq & !Self::REQUEST),
        }
    }

    pub(crate) fn unpack(raw: u64) -> Self {
        if raw & Self::REQUEST != 0 {
            Self::Request(raw & !Self::REQUEST)
        } else if raw & Self::RECV != 0 {
            Self::Recv(raw as u16)
        } else {
            Self::Srq { srq: (raw >> 32) as u32, entry: raw as u32 }
        }
    }
}

/// One completion, in DAT's terms.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Completion {
    pub(crate) wr_id: WrId,
    pub(crate) qpn: u32,
    pub(crate) status: DtoStatus,
    /// For receives only. The record of a request holds the request's operation.
    pub(crate) op: DtoOp,
    pub(crate) length: u32,
    pub(crate) immediate: Option<u32>,
    pub(crate) invalidated: Option<u32>,
    /// The QP number of a datagram's sender. Meaningless for other completions.
    pub(crate) source_qpn: u32,
}

/// Exact counts of an SRQ (R36, R37).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SrqCounts {
    pub(crate) depth: u32,
    pub(crate) available: u32,
    pub(crate) outstanding: u32,
}

/// The data that the provider keeps for a work request until it completes.
#[derive(Clone, Copy, Debug, Default, FromZeros, PartialEq, Eq)]
pub struct WrInfo {
    /// As given with the work request.
    pub cookie: u64,
    /// The pool that posted it; 0 for none. Only a pool can post with its own number.
    pub pool: u32,
    /// LMRs of the first segments. They help to find out why a receive failed: see
    /// `WrInfo::over`.
    pub lmrs: [u32; 4],
}

impl WrInfo {
    /// The cookie, and who has posted the buffer.
    pub(crate) fn cookie_and_owner(&self) -> (u64, Owner) {
        (self.cookie, Owner::of_pool(self.pool))
    }

    /// Adds the LMRs of these segments. Buffers of more than four segments are rare, and for them
    /// the first four LMRs are enough.
    pub(crate) fn over(mut self, iov: &[LmrTriplet]) -> Self {
        for (lmr, segment) in
            self.lmrs.iter_mut().zip(iov.iter().filter(|segment| segment.segment_length > 0))
        {
            *lmr = segment.lmr_context;
        }
        self
    }
}

/// An SRQ entry whose buffer the device has dropped without a completion.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Lost {
    pub(crate) entry: u32,
    pub(crate) info: WrInfo,
    /// The ended EP that held the entry.
    pub(crate) ep: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_request_ids_survive_the_round_trip() {
        for wr_id in [
            WrId::Srq { srq: 0x3fff_ffff, entry: u32::MAX },
            WrId::Srq { srq: 1, entry: 0 },
            WrId::Recv(0),
            WrId::Recv(u16::MAX),
            WrId::Request(0),
            WrId::Request(1 << 40),
        ] {
            assert_eq!(WrId::unpack(wr_id.pack()), wr_id);
        }
    }
}
