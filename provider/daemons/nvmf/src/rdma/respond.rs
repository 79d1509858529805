//! Responses: from the end of a command to the completion of its Send.

use super::engine::{Engine, add};
use super::slot::{READ, RESPONSE, SEND, Stage, Task, WRITE};
use crate::proto::{Data, Sqe, Status};
use crate::queue::Reply;
use doorbell::{DtoCompletion, LmrTriplet, Request, RmrTriplet};
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
        if let Some(stats) = this.stats.take() {
            stats.end(this.op, this.bytes, success, self.now.saturating_duration_since(this.begun));
        }
        let index = this.connection;
        let Some(connection) = &mut self.connections[index] else { return };
        if connection.is_closing() {
            return self.free(slot);
        }
        let this = &mut self.slots[slot as usize];
        (this.capsule, this.task) = (None, Task::None);
        this.cqe = connection.queue.response(this.sqe.command_id.get(), reply);
        this.write = data;
        this.stage = Stage::Waiting;
        connection.sends_waiting.push_back(slot);
        self.send_responses(index);
    }

    /// Posts the responses that wait, as far as the send queue has places.
    pub(super) fn send_responses(&mut self, index: usize) {
        while let Some(connection) = &mut self.connections[index]
            && connection.is_live()
            && connection.sends < connection.credits
            && let Some(slot) = connection.sends_waiting.pop_front()
        {
            let this = &mut self.slots[slot as usize];
            let place = slot as usize * RESPONSE;
            let written = self.responses.write(place, this.cqe.as_bytes()).map_err(|error| error.to_string());
            let posted = written.and_then(|()| {
                let response = [self.responses.triplet(place, RESPONSE)];
                let cookie = SEND | u64::from(slot);
                let send = match this.data {
                    Data::Keyed { key, invalidate: true, .. } if self.invalidates => {
                        Request::send(&response).with_invalidate(key).cookie(cookie).into()
                    }
                    _ => Request::send(&response).cookie(cookie).into(),
                };
                let posted = match (this.data, &this.write) {
                    (Data::Keyed { address, key, .. }, Some(from)) => {
                        let to = RmrTriplet {
                            virtual_address: address,
                            segment_length: from.segment_length,
                            rmr_context: key,
                        };
                        let cookie = WRITE | u64::from(slot);
                        let write = Request::write(from).to(to).cookie(cookie).suppress().into();
                        connection.ep.chain(&[write, send])
                    }
                    _ => connection.ep.chain(&[send]),
                };
                posted.map_err(|error| error.to_string())
            });
            match posted {
                Ok(()) => {
                    this.stage = Stage::Responding;
                    connection.sends += 1;
                    connection.outstanding -= 1;
                }
                Err(error) => {
                    self.free(slot);
                    return self.close(index, &format!("a response was refused: {error}"));
                }
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
