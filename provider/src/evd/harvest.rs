//! Harvesting: moves completions from the CQ into the EVD's own queue. [`QueuePair`] decides what a
//! completion means.

use super::EvdInner;
use super::deferred::{BATCH, Deferred};
use super::pairs::put;
use super::queue::{Queue, Queued};
use crate::Result;
use crate::datapath::{Completion, WrId};
use crate::event_data::{AsyncEvent, AsyncKind, AsyncObject, DtoCompletion, Owner, reason};
use crate::queue_pair::{Completed, Credit, QpOwner, QueuePair};
use crate::shared_recv::SharedRecv;
use crate::types::{DtoOp, DtoStatus, EpId};
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl EvdInner {
    /// Assigns completions with this QP number to this queue pair. `receives`: the EP's receives
    /// complete on this EVD.
    ///
    /// # Errors
    /// No memory for the table. A number that is in the table already needs no memory.
    pub(crate) fn register(&self, qpn: u32, pair: &Arc<QueuePair>, receives: bool) -> Result<()> {
        let mut queue = self.queue();
        // Nothing removes an object from an EVD that has been closed.
        if !self.live.load(Ordering::Acquire) {
            return Ok(());
        }
        if queue.pairs.get(qpn).is_none() {
            // A QP that was destroyed may have had the number.
            self.clean_queue(&mut queue, qpn);
        }
        let pairs = queue.pairs.len() + 1;
        queue.alert.reserve(pairs)?;
        queue.pairs.put(qpn, pair)?;
        if receives {
            queue.alert.mark(qpn, pair.is_marked());
        }
        // Only receives hold entries, and only the receive EVD forgets the SRQ later.
        if receives && let Some(srq) = &pair.srq {
            put(&mut queue.srqs, srq.number, srq)?;
            pair.completed_up_to.set_alone(srq.path.claim(self.id.0));
            if let (true, Some(cq)) = (pair.is_ud(), &mut queue.cq) {
                cq.expect_datagrams(srq.number);
            }
        }
        if pair.is_ud() {
            // A datagram EP receives without a connection.
            queue.alert.expect_failures();
            drop(queue);
            if let Err(error) = self.watch() {
                tracing::error!(%error, "cannot arm or watch an EVD");
            }
        }
        Ok(())
    }

    /// Forgets the queue pair, drops the EP's events and releases what those events hold (R172).
    /// `holds`: completions of the queue pair may hold an entry of an SRQ or a buffer of a pool.
    /// They are harvested first, so that both return.
    pub(crate) fn unregister(&self, qpn: u32, ep: EpId, holds: bool) {
        if holds && let Err(error) = self.harvest_now() {
            tracing::error!(%error, "cannot harvest an EVD");
        }
        let mut queue = self.queue();
        if holds {
            // Without memory a harvest leaves completions behind.
            self.clean_queue(&mut queue, qpn);
        } else {
            queue.stale = true;
        }
        queue.pairs.remove(qpn);
        queue.alert.mark(qpn, false);
        // Rotates the queue in place: there may be no memory for a second queue.
        for _ in 0..queue.dtos.len() {
            let Some(queued) = queue.dtos.pop_front() else { return };
            if queued.dto.ep == ep {
                queued.abandon(&self.device, &queue.srqs);
            } else {
                queue.dtos.push_back(queued);
            }
        }
    }

    /// Removes the completions of this QP, which was reset, from the CQs.
    pub(crate) fn clean(&self, qpn: u32) {
        self.clean_queue(&mut self.queue(), qpn);
    }

    /// Calls `reset` while no thread harvests the EVD. `reset` gets a function that does the work
    /// of [`EvdInner::clean`].
    pub(crate) fn while_not_harvested<T>(&self, reset: impl FnOnce(&mut dyn FnMut(u32)) -> T) -> T {
        let mut queue = self.queue();
        reset(&mut |qpn| self.clean_queue(&mut queue, qpn))
    }

    fn clean_queue(&self, queue: &mut Queue, qpn: u32) {
        let Queue { cq: Some(cq), srqs, .. } = queue else { return };
        cq.clean(qpn, |completion| {
            if let WrId::Srq { srq, .. } = completion.wr_id
                && let Some(srq) = srqs.get(&srq)
            {
                self.give_back(srq, completion);
            }
        });
    }

    /// Forgets a QP number that no EP uses any more. Events of the EP that used the number stay
    /// queued.
    pub(crate) fn forget(&self, qpn: u32) {
        let mut queue = self.queue();
        queue.pairs.remove(qpn);
        queue.alert.mark(qpn, false);
    }

    /// Moves finished completions from the CQ into the queue, so that counts are exact.
    pub(crate) fn harvest_now(&self) -> Result<()> {
        let mut queue = self.queue();
        let deferred = self.harvest(&mut queue)?;
        let news = queue.notified;
        drop(queue);
        self.run_deferred(deferred);
        if news && self.waiting.load(Ordering::Acquire) {
            self.wake_waiter();
        }
        Ok(())
    }

    /// The same without the work that may run an agent. The next harvest does that work.
    pub(crate) fn harvest_quietly(&self) -> Result<()> {
        let mut queue = self.queue();
        let deferred = self.harvest(&mut queue)?;
        queue.defer(deferred);
        Ok(())
    }

    /// Takes completions of QPs that are gone off the CQ, before other QPs need the room.
    pub(super) fn drop_stale(&self, queue: &mut Queue) -> Result<()> {
        if queue.stale {
            let deferred = self.harvest(queue)?;
            queue.defer(deferred);
            queue.stale = false;
        }
        Ok(())
    }

    /// Harvests all finished completions.
    pub(super) fn harvest(&self, queue: &mut Queue) -> Result<Deferred> {
        // Without memory for deferred work, the remaining completions stay in the CQ until the next
        // harvest.
        self.harvest_while(queue, BATCH, |n, _, deferred| n >= BATCH && deferred.reserve_batch().is_ok())
    }

    /// Harvests one batch, or more if the first have no events. No more than the queue, which has
    /// no events, has room for.
    #[inline]
    pub(super) fn harvest_some(&self, queue: &mut Queue) -> Result<Deferred> {
        // A poll finds up to twice this number: of messages, and of other completions.
        let most = BATCH.min(queue.qlen / 2);
        self.harvest_while(queue, most, |n, queue, deferred| {
            n > 0 && queue.dtos.is_empty() && deferred.reserve_batch().is_ok()
        })
    }

    /// Harvests batches of up to `most` completions of a kind until `more`, which gets the size of
    /// the last one, is false.
    #[inline]
    fn harvest_while(
        &self,
        queue: &mut Queue,
        most: usize,
        mut more: impl FnMut(usize, &Queue, &mut Deferred) -> bool,
    ) -> Result<Deferred> {
        let mut deferred = queue.take_deferred();
        loop {
            match self.harvest_batch(queue, most, &mut deferred) {
                Ok(n) if more(n, queue, &mut deferred) => {}
                Ok(_) => return Ok(deferred),
                Err(error) => {
                    queue.defer(deferred);
                    return Err(error);
                }
            }
        }
    }

    /// Harvests one batch. A result below `most` says that no completion is left.
    #[inline]
    fn harvest_batch(&self, queue: &mut Queue, most: usize, deferred: &mut Deferred) -> Result<usize> {
        let Some(cq) = &mut queue.cq else { return Ok(0) };
        let mut batch = std::mem::take(&mut queue.batch);
        let polled = cq.poll(&mut batch, most);
        let n = batch.len();
        batch.drain(..).for_each(|completion| self.harvest_one(queue, &completion, deferred));
        queue.batch = batch;
        polled.map(|()| n)
    }

    /// Applies a completion to its queue pair, and queues its event, if it has one.
    fn harvest_one(&self, queue: &mut Queue, completion: &Completion, deferred: &mut Deferred) {
        let Some(pair) = queue.pairs.get(completion.qpn) else {
            // The EP is gone: release the entry.
            if let WrId::Srq { srq, .. } = completion.wr_id
                && let Some(srq) = queue.srqs.get(&srq)
            {
                self.give_back(srq, completion);
            }
            return;
        };
        if completion.status != DtoStatus::Success {
            deferred.failed.push((pair.clone(), pair.life()));
        }
        let done = pair.complete(completion, |lmrs, pz| self.device.lmrs.are_live(lmrs, pz));
        let Some(Completed { dto, credit, notify, hooked }) = done else { return };
        if hooked {
            deferred.received.push(pair.clone());
        }
        if let Some(rkey) = dto.invalidated {
            // The window is free from now on: nothing may invalidate the key a second time.
            self.device.rkeys.remove_bound(rkey, pair.ep);
        }
        if let (WrId::Srq { .. }, Some(srq)) = (completion.wr_id, &pair.srq) {
            while let Some(lost) = srq.path.next_lost() {
                deferred.lost.push((srq.clone(), lost));
            }
        }
        self.put(queue, dto, credit, notify, deferred);
    }

    /// Releases the entry of a completion that no consumer will see.
    pub(super) fn give_back(&self, srq: &SharedRecv, completion: &Completion) {
        let WrId::Srq { entry, .. } = completion.wr_id else { return };
        if let Some(info) = srq.path.complete(entry, None) {
            self.device.pools.return_unseen(Owner::of_pool(info.pool), info.cookie);
        }
        srq.path.release(entry);
    }

    fn put(
        &self,
        queue: &mut Queue,
        dto: DtoCompletion,
        credit: Credit,
        notify: bool,
        deferred: &mut Deferred,
    ) {
        if self.discards {
            Queued { dto, credit }.abandon(&self.device, &queue.srqs);
        } else if queue.len() >= queue.qlen {
            Queued { dto, credit }.abandon(&self.device, &queue.srqs);
            deferred.overflowed = true;
        } else {
            queue.push_dto(Queued { dto, credit });
            queue.notified |= notify;
        }
    }

    /// Queues a completion that no device generates: for a buffer that was lost with its EP (R174),
    /// or for a work request posted after the connection had ended, or that the device has
    /// forgotten.
    pub(crate) fn put_flushed(
        &self,
        pair: &QueuePair,
        (cookie, owner): (u64, Owner),
        op: DtoOp,
        credit: Credit,
    ) {
        let dto = pair.flushed(cookie, owner, op);
        let mut deferred = Deferred::default();
        let mut queue = self.queue();
        self.put_of(pair, &mut queue, dto, credit, &mut deferred);
        let cno = queue.cno_if_enabled();
        drop(queue);
        self.announce(cno);
        self.run_deferred(deferred);
    }

    /// The same without an announcement: the caller calls [`EvdInner::harvest_now`] and
    /// [`EvdInner::recheck_notification`] when it holds no lock.
    pub(crate) fn put_flushed_quietly(
        &self,
        pair: &QueuePair,
        (cookie, owner): (u64, Owner),
        op: DtoOp,
        credit: Credit,
    ) {
        let dto = pair.flushed(cookie, owner, op);
        let mut queue = self.queue();
        let mut deferred = queue.take_deferred();
        self.put_of(pair, &mut queue, dto, credit, &mut deferred);
        queue.defer(deferred);
    }

    /// Queues a completion that no device generates. That of an EP which was freed is dropped:
    /// [`EvdInner::unregister`] has taken the lock of the queue, or will take it.
    fn put_of(
        &self,
        pair: &QueuePair,
        queue: &mut Queue,
        dto: DtoCompletion,
        credit: Credit,
        deferred: &mut Deferred,
    ) {
        if pair.owner().is_some_and(|owner| owner.exists()) {
            self.put(queue, dto, credit, true, deferred);
        } else {
            Queued { dto, credit }.abandon(&self.device, &queue.srqs);
        }
    }

    /// Does the work that a harvest found and could not do under the queue's lock.
    pub(crate) fn run_deferred(&self, deferred: Deferred) {
        if deferred.overflowed {
            self.tell_of_overflow();
        }
        let owner = |pair: &Arc<QueuePair>| pair.owner();
        deferred.received.iter().filter_map(owner).for_each(QpOwner::on_received);
        for (pair, life) in &deferred.failed {
            if let Some(owner) = pair.owner() {
                owner.on_failed(*life);
            }
        }
        self.give_back_lost(deferred);
    }

    /// Reports that an event of this EVD was lost.
    pub(super) fn tell_of_overflow(&self) {
        let event = AsyncEvent {
            kind: AsyncKind::EvdOverflow,
            object: AsyncObject::Evd(self.id),
            context: self.context.load(Ordering::Relaxed),
            reason: reason::EVD_OVERFLOW,
        };
        self.device.push_async_of(|| self.live.load(Ordering::Acquire), event);
    }

    /// Flushes lost buffers. The completions may go to this EVD or to other EVDs, so the caller
    /// must not hold the queue's lock.
    pub(super) fn give_back_lost(&self, deferred: Deferred) {
        for (srq, lost) in deferred.lost {
            srq.flush_lost(&self.device, lost);
        }
    }
}
