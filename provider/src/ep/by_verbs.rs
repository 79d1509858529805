//! Sends by verbs in the common case.

use crate::datapath::{SendQueue, WrId, WrInfo};
use crate::queue_pair::{QueuePair, Request, Requests};
use crate::types::{CompletionFlags, DtoOp, LmrTriplet};
use rxe_fallback::{SendFlags, SendOp, Sge};

impl QueuePair {
    /// As [`QueuePair::post_send_fast`], on the verbs path, and also with SOLICITED_WAIT.
    #[inline(always)]
    pub(crate) fn post_send_by_verbs(
        &self,
        segment: &LmrTriplet,
        cookie: u64,
        flags: CompletionFlags,
    ) -> bool {
        let Some(mut requests) = self.requests.try_lock_fast() else { return false };
        requests.send_by_verbs(segment, cookie, flags)
    }

    /// As [`QueuePair::post_send_by_verbs`], for a thread that shares the requests with others.
    #[inline(always)]
    pub(crate) fn post_send_shared_by_verbs(
        &self,
        segment: &LmrTriplet,
        cookie: u64,
        flags: CompletionFlags,
    ) -> bool {
        let Some(mut requests) = self.requests.try_lock_shared() else { return false };
        requests.send_by_verbs(segment, cookie, flags)
    }
}

impl Requests {
    /// Posts a Send if the LMR of the last request contains the segment, if there is room, and if
    /// the flags are SUPPRESS and SOLICITED_WAIT at most.
    #[inline(always)]
    fn send_by_verbs(&mut self, segment: &LmrTriplet, cookie: u64, flags: CompletionFlags) -> bool {
        if !(CompletionFlags::SUPPRESS | CompletionFlags::SOLICITED_WAIT).contains(flags) {
            return false;
        }
        // There is an LMR only while the EP is connected, and a key only up to the length of the
        // longest message.
        let Some(lkey) = self.last.key(segment) else { return false };
        if self.ring.room() == 0 {
            return false;
        }
        let SendQueue::Verbs(qp) = &self.queue else { return false };
        let mut send_flags = SendFlags::SIGNALLED;
        send_flags.set(SendFlags::SOLICITED, flags.contains(CompletionFlags::SOLICITED_WAIT));
        let sge = Sge { addr: segment.virtual_address, len: segment.segment_length, lkey };
        let wr_id = WrId::Request(self.ring.end()).pack();
        if qp.post_send_one(wr_id, SendOp::Send, sge, send_flags).is_err() {
            return false;
        }
        self.posted.add(DtoOp::Send, sge.len.into());
        let info = WrInfo { cookie, ..WrInfo::default() };
        self.ring.push(Request::new(&info, flags, DtoOp::Send, sge.len));
        true
    }
}
