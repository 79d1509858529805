//! The streams that feed an EVD: which streams may share the EVD (R149-R152), and the CQ entries
//! that they need.
//!
//! Streams join with [`EvdInner::attach`] and leave with [`EvdInner::detach`] or
//! [`EvdInner::detach_one`]. A caller that adds streams of completions checks the sharing rules
//! with [`EvdInner::may_feed`] first. Each function here takes the queue's lock.

use super::EvdInner;
use super::queue::{Queue, State, Stream, StreamKind, is_dto};
use crate::shared_recv::SharedRecv;
use crate::sync::BiasedMutexGuard;
use crate::types::{CompletionFlags, EvdFlags};
use crate::{EpId, Error, Result};
use rxe_fallback::Cq;
use std::sync::atomic::Ordering;

impl EvdInner {
    /// Whether this stream may join the streams that feed the EVD (R149-R152).
    pub(crate) fn may_feed(&self, new: Stream, but_not: Option<EpId>, arg: u16) -> Result<()> {
        let queue = self.queue();
        let others = || queue.streams.iter().filter(|s| is_dto(s.kind) && Some(s.ep) != but_not);
        let unsignalled = |s: &Stream| s.flags.contains(CompletionFlags::UNSIGNALLED);
        let solicited = |s: &Stream| {
            matches!(s.kind, StreamKind::Recv { .. }) && s.flags.contains(CompletionFlags::SOLICITED_WAIT)
        };
        let threshold = |s: &Stream| s.flags.contains(CompletionFlags::EVD_THRESHOLD);
        let threshold_srq = |s: &Stream| matches!(s.kind, StreamKind::Recv { srq: true }) && threshold(s);
        let mixed = self.flags.intersects(!(EvdFlags::DTO | EvdFlags::RMR_BIND));
        let refuse = |text: &'static str| Err(Error::arg(arg, text));
        if mixed && (unsignalled(&new) || solicited(&new)) {
            return refuse("an EVD with streams other than DTOs takes only completions that always notify");
        }
        if others().any(|s| unsignalled(s) != unsignalled(&new)) {
            return refuse("if one completion stream on an EVD is unsignalled, all have to be");
        }
        if others().any(|s| solicited(s) != solicited(&new)) {
            return refuse("if one receive stream on an EVD is solicited wait, it takes only such streams");
        }
        if (threshold_srq(&new) && others().any(|s| !threshold(s)))
            || (others().any(threshold_srq) && !threshold(&new))
        {
            return refuse(
                "if an SRQ EP's receives use the threshold on an EVD, all its DTO streams have to",
            );
        }
        Ok(())
    }

    /// Adds streams, and the room in the CQ that they need.
    pub(crate) fn attach(&self, streams: &[Stream], room: u32) -> Result<()> {
        let mut queue = self.queue();
        let demand = queue.demand.saturating_add(room);
        let depth = demand.max(queue.qlen as u32);
        queue.streams.try_reserve(streams.len())?;
        self.drop_stale(&mut queue)?;
        if let Some(cq) = &mut queue.cq
            && room > 0
        {
            cq.ensure(depth)?;
        }
        queue.demand = demand;
        queue.streams.extend_from_slice(streams);
        for stream in streams {
            match stream.kind {
                StreamKind::Request => queue.state |= State::REQUESTS,
                StreamKind::Recv { srq: false } => queue.state |= State::RECEIVES,
                StreamKind::Recv { srq: true } | StreamKind::Connection | StreamKind::Service => {}
            }
        }
        drop(queue);
        if streams.is_empty() { Ok(()) } else { self.watch().map(drop) }
    }

    pub(crate) fn detach(&self, ep: EpId, room: u32) {
        let mut queue = self.queue();
        queue.streams.retain(|s| s.ep != ep);
        queue.demand = queue.demand.saturating_sub(room);
    }

    /// Removes one stream, and the room in the CQ that the stream needed.
    pub(crate) fn detach_one(&self, stream: Option<Stream>, room: u32) {
        let mut queue = self.queue();
        let at = stream.and_then(|stream| queue.streams.iter().position(|s| *s == stream));
        if let Some(at) = at {
            queue.streams.remove(at);
        }
        queue.demand = queue.demand.saturating_sub(room);
    }

    /// Records that the completion flags of an EP's stream have changed.
    pub(crate) fn change_stream(&self, ep: EpId, recv: bool, flags: CompletionFlags) {
        for stream in &mut self.queue().streams {
            if stream.ep == ep
                && matches!(stream.kind, StreamKind::Recv { .. }) == recv
                && is_dto(stream.kind)
            {
                stream.flags = flags;
            }
        }
    }

    /// Makes room in the CQ for `depth` entries of an SRQ. The CQ has room for `before` of them
    /// already; `before` is 0 for an SRQ that does not feed the EVD yet.
    pub(crate) fn make_room(&self, srq: &SharedRecv, before: u32, depth: u32) -> Result<()> {
        let mut queue = self.queue();
        let Queue { cq, state, .. } = &mut *queue;
        if let Some(cq) = cq
            && cq.has_cq_of_srqs()
        {
            if before == 0 {
                cq.open_srq(&srq.path)?;
                *state |= State::MESSAGES;
            }
            cq.expect_depth(srq.number, depth);
            if before == 0 {
                self.arm_anew(queue);
            }
            return Ok(());
        }
        drop(queue);
        self.attach(&[], depth - before)
    }

    /// Forgets an SRQ: no EP of the SRQ receives on this EVD any more.
    pub(crate) fn forget_srq(&self, srq: &SharedRecv, room: u32) {
        let mut locked = self.queue();
        let queue = &mut *locked;
        queue.srqs.remove(&srq.number);
        match &mut queue.cq {
            Some(cq) if cq.has_cq_of_srqs() => {
                cq.close_srq(srq.number, |left| self.give_back(srq, left));
                let any = cq.has_any_of_srqs();
                queue.state.set(State::MESSAGES, any);
            }
            _ => queue.demand = queue.demand.saturating_sub(room),
        }
    }

    /// The CQ for a new QP that needs this many entries for its requests, or for its receives
    /// without an SRQ. `None` if the EVD takes no completions.
    ///
    /// # Errors
    /// No memory, or the device has no such CQ.
    pub(crate) fn lend(&self, entries: u32) -> Result<Option<Cq>> {
        let mut queue = self.queue();
        self.drop_stale(&mut queue)?;
        let Some(cqs) = &mut queue.cq else { return Ok(None) };
        let (cq, made) = cqs.lend(entries)?;
        let several = cqs.has_several_shared();
        queue.state.set(State::SEVERAL, several);
        if made {
            self.arm_anew(queue);
        }
        Ok(Some(cq))
    }

    /// Takes back entries of a CQ that [`EvdInner::lend`] has given.
    pub(crate) fn repay(&self, cq: &Cq, entries: u32) {
        if let Some(mine) = &mut self.queue().cq {
            mine.repay(cq, entries);
        }
    }

    /// Sees to it that a new CQ is armed with the others.
    fn arm_anew(&self, mut queue: BiasedMutexGuard<'_, Queue>) {
        queue.alert.disarmed();
        drop(queue);
        if self.waiting.load(Ordering::Acquire) {
            // The waiter arms all CQs before it sleeps again.
            self.wake_waiter();
        }
    }

    /// The verbs CQ of receives from this SRQ, which must feed the EVD.
    pub(crate) fn receive_cq(&self, srq: u32) -> Option<Cq> {
        self.queue().cq.as_ref()?.receives(srq)
    }
}
