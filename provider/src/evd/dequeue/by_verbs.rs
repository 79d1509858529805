//! Dequeues of the verbs path: how a success without an effect goes straight from the polled
//! completions of the CQ to the consumer.

use super::super::queue::{Queue, SlowPath, Take};
use super::super::{EvdInner, Polled};
use crate::datapath::{CqPath, Verbs, WrId};
use crate::event_data::Success;

impl Queue {
    /// Takes the next polled completion of the verbs path, if it is a success without an effect.
    /// `None` if it is another, or if none is left: then nothing has changed.
    ///
    /// `FAST`: also `None` if this thread does not own the lock of the queue pair, or if that is
    /// not in the small table.
    #[inline(always)]
    pub(super) fn next_by_verbs<const FAST: bool>(&mut self) -> Option<Success> {
        let cq = self.cq.as_mut()?.by_verbs()?;
        let next = cq.plain()?;
        let pair = if FAST { self.pairs.get_near(next.qpn)? } else { self.pairs.get(next.qpn)? };
        let success = match next.wr_id {
            WrId::Request(position) if FAST => {
                pair.reap_plain_request_fast::<Verbs, _>(position, |request| pair.success(request))?
            }
            WrId::Request(named) => pair.success(&pair.reap_plain_request(named)?),
            _ if pair.watches_receives() => return None,
            WrId::Srq { entry, .. } => {
                let srq = pair.srq.as_ref()?.path.by_verbs()?;
                pair.message(srq.reap(entry, &pair.completed_up_to)?, next.length)
            }
            WrId::Recv(slot) if FAST => pair.message(pair.reap_receive_fast(slot)?, next.length),
            WrId::Recv(slot) => pair.message(pair.reap_receive(slot)?, next.length),
        };
        cq.skip();
        self.counts.polled += 1;
        Some(success)
    }

    /// Takes the next event, if it is a success without an effect that is next on the only CQ of
    /// the EVD. Polls that CQ if no polled completion is left. Otherwise, nothing has changed.
    #[inline(always)]
    pub fn dequeue_by_verbs<T: Take>(&mut self, take: T) -> Polled<T::Event> {
        if SlowPath::SHARED.contains(self.slow_path)
            && let Some(cq) = self.cq.as_mut().and_then(CqPath::by_verbs)
        {
            match cq.find() {
                Some(true) => {
                    if let Some(success) = self.next_by_verbs::<true>() {
                        return Polled::Dto(take.success(success));
                    }
                }
                Some(false) => {
                    self.counts.dequeued(false, true);
                    return Polled::Empty;
                }
                None => {}
            }
        }
        Polled::Slow
    }
}

impl EvdInner {
    /// As [`EvdInner::dequeue_fast`], on the verbs path.
    #[inline(always)]
    pub fn dequeue_fast_by_verbs<T: Take>(&self, take: T) -> Polled<T::Event> {
        if let Some(mut queue) = self.queue.try_lock_fast() {
            match queue.dequeue_by_verbs(take) {
                Polled::Slow => {}
                polled => return polled,
            }
        }
        self.dequeue_rest(take)
    }
}
