//! Responses: from the end of a command to the completion of its Send.

use super::engine::{Engine, add};
use super::slot::{SEND, Slot, Stage, Task, WRITE};
use crate::proto::{Data, Sqe, Status};
use crate::queue::Reply;
use doorbell::{
    ChainError, ChainRequest, ConnectionEvent, DtoCompletion, Ep, LmrTriplet, Request, RmrTriplet,
};
use zerocopy::IntoBytes;

/// The most responses that are posted with one doorbell: each is an RDMA Write and a Send, or a Send.
const TOGETHER: usize = Ep::MAX_CHAIN / 2;

impl Engine {
    /// Responds to a read whose data are in the buffer.
    pub(super) fn respond_from_buffer(&mut self, slot: u32, success: bool, length: usize) {
        let source = self.slots[slot as usize].buffer.map(|buffer| self.memory.triplet(buffer, 0, length));
        match (success, source) {
            (true, Some(source)) => self.respond(slot, Reply::SUCCESS, Some(source)),
            _ => self.respond(slot, Status::READ_ERROR.into(), None),
        }
    }

    /// Responds, after a write of these data to the host.
    pub(super) fn respond(&mut self, slot: u32, reply: Reply, data: Option<LmrTriplet>) {
        let success = reply.status.is_success();
        if !success {
            add(&self.shared.stats.failed_commands, 1);
        }
        let this = &mut self.slots[slot as usize];
        let index = this.connection;
        let Some(connection) = &mut self.connections[index] else { return };
        if std::mem::take(&mut this.counted) {
            let op = if let Task::Io(io) = &this.task { Some((io.op, io.length)) } else { None };
            connection.tally.end(op, success, self.clock.saturating_sub(this.begun));
        }
        if connection.is_closing() {
            return self.free(slot);
        }
        this.capsule = None;
        this.cqe = connection.queue.response(this.sqe.command_id.get(), reply);
        this.write = data;
        this.stage = Stage::Waiting;
        connection.sends_waiting.push_back(slot);
        match connection.sends_waiting.len() {
            1 => self.responding.push(index),
            TOGETHER.. => self.send_responses(index),
            _ => {}
        }
    }

    /// Posts the responses that wait, of all connections.
    #[inline]
    pub(super) fn send_all_responses(&mut self) {
        while let Some(index) = self.responding.pop() {
            self.send_responses(index);
        }
    }

    /// Posts the responses that wait, as far as the send queue has places: several with one doorbell
    /// and one completion.
    fn send_responses(&mut self, index: usize) {
        while let Some(connection) = &mut self.connections[index] {
            let count = connection.room().min(connection.sends_waiting.len()).min(TOGETHER);
            let waiting = connection.sends_waiting.iter().take(count);
            let posted = match count {
                0 => return,
                1 => post::<2>(&mut connection.ep, self.invalidates, &self.slots, waiting),
                _ => post::<{ 2 * TOGETHER }>(&mut connection.ep, self.invalidates, &self.slots, waiting),
            };
            for slot in connection.sends_waiting.drain(..count) {
                self.slots[slot as usize].stage = Stage::Responding;
                connection.sends_posted.push_back(slot);
            }
            connection.outstanding -= count as u16;
            if let Err(error) = posted {
                // Requests before the refused one may be posted. So the slots of all stay until the
                // connection is drained.
                return self.close(index, &format!("a response was refused: {error}"));
            }
        }
    }

    /// A request has completed.
    pub(super) fn on_request_done(&mut self, dto: &DtoCompletion) {
        let (kind, slot) = (dto.cookie & !u64::from(u32::MAX), dto.cookie as u32);
        let Some(index) = self.index_of(dto.ep_context) else { return };
        if kind == WRITE {
            // Reported only if it failed; the response fails as well.
            return;
        }
        let Some(connection) = &mut self.connections[index] else { return };
        if !dto.is_success() && !connection.is_closing() {
            self.close(index, &format!("a request failed: {:?}", dto.status));
        }
        if kind == SEND {
            return self.on_response_done(index, slot);
        }
        let Some(connection) = &mut self.connections[index] else { return };
        connection.reads -= 1;
        if connection.is_closing() {
            return self.free(slot);
        }
        if let Some(next) = connection.reads_waiting.pop_front() {
            self.read(next);
        }
        self.slots[slot as usize].stage = Stage::Waiting;
        self.fetched(slot);
    }

    /// The response of a slot is done, and so are those before it, which have no event unless they
    /// fail.
    fn on_response_done(&mut self, index: usize, last: u32) {
        while let Some(connection) = &mut self.connections[index]
            && let Some(slot) = connection.sends_posted.pop_front()
        {
            self.free(slot);
            if slot == last {
                break;
            }
        }
        self.send_responses(index);
    }

    /// The device has nothing left of a connection. Responses that were posted without an event, or
    /// not at all since one of their batch was refused, are done.
    pub(super) fn on_drained(&mut self, event: &ConnectionEvent) {
        let Some(index) = self.index_of(event.ep_context) else { return };
        while let Some(connection) = &mut self.connections[index]
            && let Some(slot) = connection.sends_posted.pop_front()
        {
            self.free(slot);
        }
    }

    /// Sends the events for which commands of an admin queue were parked.
    pub(super) fn send_events(&mut self, index: usize) {
        // One at a time: the next one follows when the host has read the log.
        if let Some(connection) = &self.connections[index]
            && connection.is_live()
            && let Some((command, reply)) = connection.queue.event()
        {
            let sqe = Sqe { command_id: command.into(), ..Sqe::default() };
            let slot = self.take_slot(index, sqe);
            self.respond(slot, reply, None);
        }
    }
}

/// Posts the responses of these slots with one doorbell, each after the write of its data, if it has
/// some. Only the last one has an event. `N`: room for their requests.
#[inline]
fn post<'a, const N: usize>(
    ep: &mut Ep,
    invalidates: bool,
    slots: &'a [Slot],
    which: impl ExactSizeIterator<Item = &'a u32>,
) -> Result<(), ChainError> {
    let mut requests: [ChainRequest<'a>; N] = [Request::send_inline(&[]).into(); N];
    let mut count = 0;
    let mut left = which.len();
    for &slot in which {
        let this = &slots[slot as usize];
        if let (Data::Keyed { address, key, .. }, Some(from)) = (this.data, &this.write) {
            let to = RmrTriplet {
                virtual_address: address,
                segment_length: from.segment_length,
                rmr_context: key,
            };
            requests[count] = Request::write(from).to(to).cookie(WRITE).suppress().into();
            count += 1;
        }
        let mut response = Request::send_inline(this.cqe.as_bytes()).cookie(SEND | u64::from(slot));
        left -= 1;
        if left > 0 {
            response = response.suppress();
        }
        requests[count] = match this.data {
            Data::Keyed { key, invalidate: true, .. } if invalidates => response.with_invalidate(key).into(),
            _ => response.into(),
        };
        count += 1;
    }
    ep.chain(&requests[..count])
}
