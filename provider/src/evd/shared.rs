//! Dequeues from the shared CQs of the direct path: completions of requests, and of receives of EPs
//! without an SRQ, go straight to the consumer.

use super::EvdInner;
use super::queue::Queue;
use crate::event_data::{DtoCompletion, DtoFields};
use crate::queue_pair::{Completed, Reaped};
use crate::types::DtoStatus;

/// The oldest completion of the shared CQs.
pub(super) enum Shared {
    /// A success without side effects.
    Event(DtoCompletion),
    /// A completion that has to pass through the EVD's own queue.
    Other,
    Nothing,
}

impl EvdInner {
    /// Takes the next completion off the shared CQs. Completions that are no event are skipped.
    #[inline(always)]
    pub(super) fn next_shared(&self, queue: &mut Queue) -> Shared {
        let Some(cqs) = queue.cq.as_mut().and_then(|cq| cq.direct_shared()) else { return Shared::Other };
        for cq in cqs {
            while let Some((qpn, counter)) = cq.next_sent() {
                let Some(pair) = queue.pairs.get(qpn) else { continue };
                match pair.reap_request(counter) {
                    Reaped::Event { cookie, pool, op, length } => {
                        queue.counts.polled += 1;
                        return Shared::Event(DtoCompletion::new(DtoFields {
                            ep: pair.ep,
                            ep_context: pair.context(),
                            cookie,
                            pool,
                            status: DtoStatus::Success,
                            length,
                            op,
                            immediate: None,
                            invalidated: None,
                        }));
                    }
                    Reaped::Nothing => {}
                    Reaped::Bind(Completed { dto, credit, notify, .. }) => {
                        self.queue_bind(queue, dto, credit, notify);
                        return Shared::Other;
                    }
                }
            }
            if let Some(message) = cq.next_message() {
                if !message.invalidates()
                    && let Some(pair) = queue.pairs.get(message.qpn())
                    && !pair.watches_receives()
                    && let Some((cookie, pool)) = pair.reap_receive(message.slot())
                {
                    queue.counts.polled += 1;
                    pair.received.add(message.counted_as(), message.length());
                    return Shared::Event(DtoCompletion::new(DtoFields {
                        ep: pair.ep,
                        ep_context: pair.context(),
                        cookie,
                        pool,
                        status: DtoStatus::Success,
                        length: message.length(),
                        op: message.operation(),
                        immediate: message.immediate(),
                        invalidated: None,
                    }));
                }
                let completion = cq.translate(&message);
                self.queue_one(queue, &completion);
                return Shared::Other;
            }
            if cq.has_other() {
                return Shared::Other;
            }
        }
        Shared::Nothing
    }
}
