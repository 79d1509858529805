//! Sends by verbs in the common case.

use crate::datapath::{SendQueue, WrId, WrInfo};
use crate::error::Direction;
use crate::queue_pair::{QueuePair, Request, Requests};
use crate::types::{CompletionFlags, DtoOp, LmrTriplet};
use rxe_fallback::{SendFlags, SendOp};

impl QueuePair {
    /// As [`Requests::post_send_fast`], on the verbs path, for `N` segments and also with
    /// SOLICITED_WAIT.
    #[inline(always)]
    pub fn post_send_by_verbs<const N: usize>(
        &self,
        segments: &[LmrTriplet; N],
        cookie: u64,
        flags: CompletionFlags,
    ) -> bool {
        let Some(mut requests) = self.requests.try_lock_fast() else { return false };
        requests.send_by_verbs(segments, cookie, flags)
    }

    /// As [`QueuePair::post_send_by_verbs`], for a thread that shares the requests with others.
    #[inline(always)]
    pub fn post_send_shared_by_verbs(
        &self,
        segment: &LmrTriplet,
        cookie: u64,
        flags: CompletionFlags,
    ) -> bool {
        let Some(mut requests) = self.requests.try_lock_shared() else { return false };
        requests.send_by_verbs(std::array::from_ref(segment), cookie, flags)
    }
}

impl Requests {
    /// Posts a Send if `QueueLmrs` finds the LMRs of the segments, if there is room, and if the flags
    /// are SUPPRESS and SOLICITED_WAIT at most.
    #[inline(always)]
    fn send_by_verbs<const N: usize>(
        &mut self,
        segments: &[LmrTriplet; N],
        cookie: u64,
        flags: CompletionFlags,
    ) -> bool {
        if !(CompletionFlags::SUPPRESS | CompletionFlags::SOLICITED_WAIT).contains(flags)
            || (N > 1 && N > self.max_iov)
        {
            return false;
        }
        // Closed unless the EP is connected.
        let Some((sges, length)) = self.lmrs.sges(segments, Direction::Read) else { return false };
        if self.ring.room() == 0 {
            return false;
        }
        let SendQueue::Verbs(qp) = &self.queue else { return false };
        let mut send_flags = SendFlags::SIGNALLED;
        send_flags.set(SendFlags::SOLICITED, flags.contains(CompletionFlags::SOLICITED_WAIT));
        let wr_id = WrId::Request(self.ring.end()).pack();
        if qp.post_send_few(wr_id, SendOp::Send, &sges, send_flags).is_err() {
            return false;
        }
        self.posted.add(DtoOp::Send, length.into());
        let info = WrInfo { cookie, ..WrInfo::default() };
        self.ring.push(Request::new(&info, flags, DtoOp::Send, length));
        true
    }
}
