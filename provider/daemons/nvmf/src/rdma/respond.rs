//! Responses: from the end of a command to the completion of its Send.

use super::engine::{Engine, add};
use super::slot::{READ, RESPONSE, SEND, Slot, Stage, Task, WRITE};
use crate::proto::{Data, Sqe, Status};
use crate::queue::Reply;
use doorbell::{DtoCompletion, Ep, Lmr, LmrTriplet, Request, RmrTriplet};
use zerocopy::IntoBytes;

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
        if connection.sends_waiting.is_empty() && connection.can_send() {
            self.send_response(index, slot);
        } else {
            connection.sends_waiting.push_back(slot);
        }
    }

    /// Posts the responses that wait, as far as the send queue has places.
    pub(super) fn send_responses(&mut self, index: usize) {
        while let Some(connection) = &mut self.connections[index]
            && connection.can_send()
            && let Some(slot) = connection.sends_waiting.pop_front()
        {
            self.send_response(index, slot);
        }
    }

    /// Posts a response, for which the send queue has places.
    fn send_response(&mut self, index: usize, slot: u32) {
        let Some(connection) = &mut self.connections[index] else { return };
        let this = &mut self.slots[slot as usize];
        match post(&mut connection.ep, &self.responses, self.invalidates, slot, this) {
            Ok(()) => {
                this.stage = Stage::Responding;
                connection.sends += 1;
                connection.outstanding -= 1;
            }
            Err(error) => {
                self.free(slot);
                self.close(index, &format!("a response was refused: {error}"));
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
        if kind == READ {
            connection.reads -= 1;
        } else {
            connection.sends -= 1;
        }
        if !dto.is_success() {
            let was_closing = connection.is_closing();
            self.free(slot);
            if !was_closing {
                self.close(index, &format!("a request failed: {:?}", dto.status));
            }
            return;
        }
        if connection.is_closing() {
            return self.free(slot);
        }
        if kind == READ {
            if let Some(next) = connection.reads_waiting.pop_front() {
                self.read(next);
            }
            self.slots[slot as usize].stage = Stage::Waiting;
            self.fetched(slot);
        } else {
            self.free(slot);
            self.send_responses(index);
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

/// Posts the response of a slot, after the write of its data, if it has some.
#[inline]
fn post(ep: &mut Ep, responses: &Lmr, invalidates: bool, slot: u32, this: &Slot) -> doorbell::Result<()> {
    let place = slot as usize * RESPONSE;
    responses.write(place, this.cqe.as_bytes())?;
    let response = [responses.triplet(place, RESPONSE)];
    let cookie = SEND | u64::from(slot);
    let send = match this.data {
        Data::Keyed { key, invalidate: true, .. } if invalidates => {
            Request::send(&response).with_invalidate(key).cookie(cookie).into()
        }
        _ => Request::send(&response).cookie(cookie).into(),
    };
    match (this.data, &this.write) {
        (Data::Keyed { address, key, .. }, Some(from)) => {
            let to = RmrTriplet {
                virtual_address: address,
                segment_length: from.segment_length,
                rmr_context: key,
            };
            let cookie = WRITE | u64::from(slot);
            ep.chain(&[Request::write(from).to(to).cookie(cookie).suppress().into(), send])?;
        }
        _ => ep.chain(&[send])?,
    }
    Ok(())
}
