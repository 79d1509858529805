//! Connections: accepting, rejecting and closing.

use super::connection::{Connection, State, context};
use super::engine::{Engine, Shared, add};
use super::slot::Stage;
use crate::limits::ADMIN_DEPTH;
use crate::proto::Cqe;
use crate::proto::fabrics::{AcceptData, Reject, RequestData};
use crate::queue::Queue;
use crate::stats::Tally;
use doorbell::{CloseFlags, ConnectionEvent, ConnectionEventKind, Cr, Ep, EpState, RetryAttr};
use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::sync::mpsc::SendError;
use zerocopy::{FromBytes, IntoBytes};

impl Engine {
    /// The place of the connection to which a completion or event belongs.
    pub(super) fn index_of(&self, context: u64) -> Option<usize> {
        let index = context as u32 as usize;
        let generation = (context >> 32) as u32;
        let is_present =
            self.generations.get(index) == Some(&generation) && self.connections[index].is_some();
        is_present.then_some(index)
    }

    /// Gives a connection request to the engine of the device that has the fewest connections.
    pub(super) fn on_arrival(&mut self, mut request: Cr) {
        let connections = |shared: &Shared| shared.assigned.load(Ordering::Relaxed);
        let fewest = self.siblings.iter().min_by_key(|sibling| connections(&sibling.shared));
        if let Some(sibling) =
            fewest.filter(|sibling| connections(&sibling.shared) < connections(&self.shared))
        {
            sibling.shared.assigned.fetch_add(1, Ordering::Relaxed);
            match sibling.requests.send(request) {
                Ok(()) => return (sibling.waker)(),
                // The service ends, and that engine has ended already.
                Err(SendError(returned)) => request = returned,
            }
        }
        self.shared.assigned.fetch_add(1, Ordering::Relaxed);
        self.on_connection_request(request);
    }

    /// Accepts or rejects a request that was assigned to this engine.
    pub(super) fn on_connection_request(&mut self, request: Cr) {
        let peer = request.remote().map_or_else(|| "unknown".to_owned(), |address| address.to_string());
        let (admitted, credits, qid) = match self.admit(request.private_data()) {
            Ok((data, credits)) => (self.make(&peer, data.qid.get(), credits), credits, data.qid.get()),
            Err(reject) => (Err(reject), 0, 0),
        };
        let index = match admitted {
            Ok(index) => index,
            Err(reject) => {
                tracing::info!(peer, reason = %reject, "connection rejected");
                add(&self.shared.stats.rejected, 1);
                self.shared.assigned.fetch_sub(1, Ordering::Relaxed);
                if let Err(error) = request.reject(reject.data().as_bytes()) {
                    tracing::debug!(peer, %error, "a host did not wait for its rejection");
                }
                return;
            }
        };
        let connection = self.connections[index].as_ref().expect("just made");
        match request.accept(&connection.ep, AcceptData::new(credits).as_bytes()) {
            Ok(()) => {
                tracing::debug!(peer, qid, credits, "connection accepted");
                add(&self.shared.stats.accepted, 1);
            }
            Err(refused) => {
                tracing::info!(peer, qid, error = %refused.error, "connection not accepted");
                self.forget(index);
            }
        }
    }

    /// Checks a request. Returns the credits to grant.
    fn admit(&self, private_data: &[u8]) -> Result<(RequestData, u16), Reject> {
        let (data, _) = RequestData::read_from_prefix(private_data).map_err(|_| Reject::Length)?;
        if data.format.get() != 0 {
            return Err(Reject::Format);
        }
        let qid = data.qid.get();
        if qid > self.target.limits.queues {
            return Err(Reject::Queue);
        }
        let (most, used, limit) = match qid {
            0 => (ADMIN_DEPTH, self.admin_credits, self.options.admin_credits),
            _ => (self.target.limits.depth, self.credits, self.options.credits),
        };
        let credits = data.sends.get().checked_add(1).filter(|&credits| credits <= most);
        let credits = credits.ok_or(Reject::SendSize)?;
        // Each response needs a receive of the host.
        if data.receives.get() < credits {
            return Err(Reject::ReceiveSize);
        }
        if self.is_draining() || used + usize::from(credits) > limit {
            return Err(Reject::Resources);
        }
        Ok((data, credits))
    }

    /// Makes a connection that is not accepted yet.
    fn make(&mut self, peer: &str, qid: u16, credits: u16) -> Result<usize, Reject> {
        let limits = self.ia.attributes();
        let reads = u32::from(self.options.reads).min(limits.max_rdma_reads_out);
        let ep = Ep::builder(&self.ia, &self.pz)
            .srq(self.receives.srq())
            .recv_evd(&self.received)
            .request_evd(&self.done)
            .connect_evd(&self.events)
            .tell_drained()
            .request_depth(u32::from(credits) * 2 + reads)
            .request_segments(1)
            .max_inline(size_of::<Cqe>() as u32)
            .rdma_reads_in(0)
            .rdma_reads_out(reads)
            .retry(RetryAttr { rnr_retry: Some(7), ..RetryAttr::default() })
            .build();
        let ep = ep.map_err(|error| {
            tracing::warn!(peer, %error, "no endpoint for a host");
            Reject::Resources
        })?;
        let index = self.connections.iter().position(Option::is_none).unwrap_or_else(|| {
            self.connections.push(None);
            self.generations.push(0);
            self.connections.len() - 1
        });
        self.generations[index] = self.generations[index].wrapping_add(1);
        ep.set_context(context(index, self.generations[index]));
        *self.credits_of(qid == 0) += usize::from(credits);
        self.connections[index] = Some(Connection {
            ep,
            queue: Queue::new(qid, credits, self.waker.clone()),
            state: State::Accepted,
            credits,
            outstanding: 0,
            reads: 0,
            most_reads: 0,
            early: Vec::new(),
            reads_waiting: VecDeque::new(),
            sends_waiting: VecDeque::new(),
            sends_posted: VecDeque::new(),
            slots: 0,
            tally: Tally::default(),
            stats: None,
            since: self.now,
            peer: peer.to_owned(),
        });
        Ok(index)
    }

    fn credits_of(&mut self, admin: bool) -> &mut usize {
        if admin { &mut self.admin_credits } else { &mut self.credits }
    }

    pub(super) fn on_connection(&mut self, event: &ConnectionEvent) {
        let Some(index) = self.index_of(event.ep_context) else { return };
        if event.kind == ConnectionEventKind::Established {
            self.established(index);
        } else if event.kind.is_end() {
            tracing::debug!(kind = ?event.kind, "connection ended");
            self.close(index, "the host or the network has ended it");
            let Some(connection) = &mut self.connections[index] else { return };
            connection.state = State::Ended;
            self.forget_if_done(index);
        }
    }

    fn established(&mut self, index: usize) {
        let Some(connection) = &mut self.connections[index] else { return };
        if connection.state != State::Accepted {
            return;
        }
        match connection.ep.connection() {
            // A host that answers no reads can only send data in capsules.
            Ok(agreed) => connection.most_reads = agreed.rdma_reads_out.min(self.options.reads),
            Err(error) => return self.close(index, &format!("no attributes: {error}")),
        }
        connection.state = State::Live;
        for slot in std::mem::take(&mut connection.early) {
            self.start(slot);
        }
    }

    /// Ends a connection. It is forgotten once the device and the backends have finished all of its
    /// commands.
    pub(super) fn close(&mut self, index: usize, why: &str) {
        let Some(connection) = &mut self.connections[index] else { return };
        if connection.is_closing() {
            return;
        }
        tracing::info!(peer = connection.peer, qid = connection.queue.number(), why, "connection closed");
        if connection.queue.controller().is_none() {
            add(&self.shared.stats.broken, 1);
        }
        connection.state = State::Closing;
        connection.stats = connection.queue.controller().map(|controller| controller.stats.clone());
        connection.queue.close(&self.target);
        if let Err(error) = connection.ep.disconnect(CloseFlags::Abrupt) {
            tracing::debug!(%error, "disconnect");
        }
        if matches!(connection.ep.state(), EpState::Disconnected | EpState::Unconnected) {
            connection.state = State::Ended;
        }
        let mut waiting = std::mem::take(&mut connection.early);
        waiting.extend(connection.reads_waiting.drain(..));
        waiting.extend(connection.sends_waiting.drain(..));
        for slot in waiting {
            debug_assert!(!matches!(self.slots[slot as usize].stage, Stage::Free));
            self.free(slot);
        }
        self.forget_if_done(index);
    }

    /// Forgets a connection that has ended and has no commands left.
    pub(super) fn forget_if_done(&mut self, index: usize) {
        let is_done = |c: &Connection| c.state == State::Ended && c.slots == 0;
        if self.connections[index].as_ref().is_some_and(is_done) {
            self.forget(index);
        }
    }

    fn forget(&mut self, index: usize) {
        let Some(mut connection) = self.connections[index].take() else { return };
        connection.flush_tally();
        connection.queue.close(&self.target);
        self.shared.assigned.fetch_sub(1, Ordering::Relaxed);
        *self.credits_of(connection.is_admin()) -= usize::from(connection.credits);
    }

    /// Whether no command is under way, but for those that wait for events.
    pub(super) fn is_idle(&self) -> bool {
        self.slots.len() == self.free_slots.len()
    }
}
