//! Commands: from the capsule until the data are here.

use super::connection::Connection;
use super::engine::Engine;
use super::memory::{Buffer, remove};
use super::slot::{READ, Slot, Stage, Task};
use crate::backend::IoOp;
use crate::proto::{Data, SQE_LEN, Sqe, Status};
use crate::queue::{Reply, Step};
use doorbell::{DtoCompletion, LmrTriplet, RecvBuf, RmrTriplet};
use std::sync::Arc;
use zerocopy::FromBytes;

impl Engine {
    /// The connection of a command. Connections stay while they have commands.
    pub(super) fn connection_of(&mut self, slot: u32) -> &mut Connection {
        let index = self.slots[slot as usize].connection;
        self.connections[index].as_mut().expect("a connection with a command stays")
    }

    pub(super) fn slot(&mut self, slot: u32) -> &mut Slot {
        &mut self.slots[slot as usize]
    }

    /// A slot for a command of this connection.
    pub(super) fn take_slot(&mut self, connection: usize, sqe: Sqe) -> u32 {
        if let Some(c) = &mut self.connections[connection] {
            c.slots += 1;
        }
        let slot = self.free_slots.pop().unwrap_or_else(|| {
            self.slots.push(Slot::new());
            (self.slots.len() - 1) as u32
        });
        // A free slot holds nothing, and no data are known of the command.
        let this = &mut self.slots[slot as usize];
        this.stage = Stage::Waiting;
        this.connection = connection;
        this.sqe = sqe;
        this.data = Data::None;
        this.begun = self.clock;
        slot
    }

    /// Frees a slot with all it holds.
    pub(super) fn free(&mut self, slot: u32) {
        let this = &mut self.slots[slot as usize];
        debug_assert_ne!(this.stage, Stage::Free);
        this.stage = Stage::Free;
        (this.capsule, this.task, this.write) = (None, Task::None, None);
        let (index, buffer) = (this.connection, this.buffer.take());
        let counted = std::mem::take(&mut this.counted);
        self.free_slots.push(slot);
        if let Some(connection) = &mut self.connections[index] {
            connection.slots -= 1;
            if counted {
                connection.tally.abandon();
            }
        }
        let next = buffer.and_then(|buffer| self.memory.give_back(buffer));
        self.forget_if_done(index);
        if let Some((next, buffer)) = next {
            self.with_buffer(next, buffer);
        }
    }

    /// A receive has completed.
    pub(super) fn on_receive(&mut self, dto: &DtoCompletion) {
        if let Some(capsule) = self.receives.take(dto) {
            self.on_capsule(capsule);
        }
    }

    /// A capsule has come.
    pub(super) fn on_capsule(&mut self, capsule: RecvBuf) {
        let Some(index) = self.index_of(capsule.completion().ep_context) else { return };
        let Some(connection) = &mut self.connections[index] else { return };
        if connection.is_closing() {
            return;
        }
        let Ok((sqe, _)) = Sqe::read_from_prefix(&capsule) else {
            return self.close(index, "a capsule is too short");
        };
        if connection.outstanding >= connection.credits {
            return self.close(index, "the host has sent beyond its credit");
        }
        connection.outstanding += 1;
        let is_live = connection.is_live();
        let slot = self.take_slot(index, sqe);
        self.slot(slot).capsule = Some(capsule);
        if is_live {
            self.start(slot);
        } else if let Some(connection) = &mut self.connections[index] {
            connection.early.push(slot);
        }
    }

    /// Looks at a command that has arrived.
    pub(super) fn start(&mut self, slot: u32) {
        let index = self.slots[slot as usize].connection;
        let this = &mut self.slots[slot as usize];
        let in_capsule = this.capsule.as_ref().map_or(0, |capsule| capsule.len() - SQE_LEN);
        let sqe = this.sqe;
        let data = match Data::of(&sqe, in_capsule) {
            Ok(data) => data,
            Err(status) => return self.respond(slot, status.into(), None),
        };
        this.data = data;
        // Only data keep the capsule.
        if !matches!(data, Data::Capsule { .. }) {
            this.capsule = None;
        }
        let connection = self.connections[index].as_mut().expect("a connection with a command stays");
        let queue = &mut connection.queue;
        if queue.number() != 0 && queue.controller().is_some() {
            connection.tally.begin();
            this.counted = true;
        }
        match queue.begin(&self.target, &sqe, &data) {
            Step::Io(io) => self.begin_io(slot, io),
            step => self.take_step(slot, step),
        }
    }

    pub(super) fn take_step(&mut self, slot: u32, step: Step) {
        match step {
            Step::Reply(reply) => {
                let index = self.slots[slot as usize].connection;
                self.respond(slot, reply, None);
                // The command may have asked for events that are there already.
                self.send_events(index);
            }
            Step::Answer(answer) => {
                let length = answer.len();
                self.slot(slot).task = Task::Answer(answer);
                self.want_buffer(slot, true, length);
            }
            Step::Fetch(length) => {
                self.slot(slot).task = Task::Data(length);
                // Of I/O commands, only Dataset Management comes here.
                let control = self.connection_of(slot).queue.number() == 0
                    || self.connection_of(slot).queue.controller().is_none();
                self.want_buffer(slot, control, length as usize);
            }
            Step::Io(io) => self.begin_io(slot, io),
            Step::Deallocate(namespace, ranges) => self.deallocate(slot, namespace, ranges),
            Step::Abort { queue, command } => {
                let index = self.slots[slot as usize].connection;
                let aborted = self.abort(index, queue, command);
                // Bit 0: the command was not aborted.
                self.respond(slot, Reply::result(u64::from(!aborted)), None);
            }
            Step::Park => {
                let index = self.slots[slot as usize].connection;
                self.free(slot);
                self.send_events(index);
            }
        }
    }

    /// Aborts a command of the controller of this admin connection, if the command waits for its turn.
    fn abort(&mut self, admin: usize, queue: u16, command: u16) -> bool {
        let Some(controller) = self.connections[admin].as_ref().and_then(|c| c.queue.controller().cloned())
        else {
            return false;
        };
        if queue == 0 && controller.unpark(command) {
            let sqe = Sqe { command_id: command.into(), ..Sqe::default() };
            let slot = self.take_slot(admin, sqe);
            self.respond(slot, Status::ABORTED.into(), None);
            return true;
        }
        let is_its = |c: &Connection| {
            c.queue.number() == queue && c.queue.controller().is_some_and(|of| Arc::ptr_eq(of, &controller))
        };
        let Some(index) = self.connections.iter().position(|c| c.as_ref().is_some_and(is_its)) else {
            return false;
        };
        let is_it = |slot: &Slot| {
            slot.stage != Stage::Free && slot.connection == index && slot.sqe.command_id.get() == command
        };
        let Some(slot) = self.slots.iter().position(is_it) else { return false };
        let slot = slot as u32;
        let found = match self.slot(slot).stage {
            Stage::Buffer => self.memory.forget(slot),
            Stage::Waiting => remove(&mut self.connection_of(slot).reads_waiting, slot),
            Stage::Backend => {
                let before = self.delayed.len();
                self.delayed.retain(|delayed| delayed.slot != slot);
                self.delayed.len() < before || remove(&mut self.ring_waiting, slot)
            }
            Stage::Free | Stage::Reading | Stage::Responding => false,
        };
        if found {
            self.respond(slot, Status::ABORTED.into(), None);
        }
        found
    }

    /// Goes on with [`Engine::with_buffer`], now or when a buffer is free.
    pub(super) fn want_buffer(&mut self, slot: u32, control: bool, length: usize) {
        if !self.memory.fits(length) {
            return self.respond(slot, Status::INVALID_FIELD.into(), None);
        }
        let class = self.memory.class(control, length);
        match self.memory.take(class, slot) {
            Some(buffer) => self.with_buffer(slot, buffer),
            None => self.slot(slot).stage = Stage::Buffer,
        }
    }

    /// The command has a buffer: fetches its data, or sends its answer.
    pub(super) fn with_buffer(&mut self, slot: u32, buffer: Buffer) {
        let this = self.slot(slot);
        this.stage = Stage::Waiting;
        this.buffer = Some(buffer);
        if self.connection_of(slot).is_closing() {
            return self.free(slot);
        }
        let this = &mut self.slots[slot as usize];
        match &this.task {
            Task::None | Task::Deallocate(..) => self.respond(slot, Status::INTERNAL.into(), None),
            Task::Answer(answer) => {
                let length = answer.len();
                let copied = self.memory.write(buffer, 0, answer);
                self.respond_from_buffer(slot, copied.is_ok(), length);
            }
            Task::Data(length) => {
                let length = *length;
                self.fetch(slot, self.memory.triplet(buffer, 0, length as usize), length);
            }
            Task::Io(io) if io.op == IoOp::Read => self.execute(slot),
            Task::Io(io) => {
                let length = io.length;
                self.fetch(slot, self.memory.triplet(buffer, 0, length as usize), length);
            }
        }
    }

    /// Brings `length` bytes of the command's data to its buffer, then goes on with
    /// [`Engine::fetched`].
    pub(super) fn fetch(&mut self, slot: u32, to: LmrTriplet, length: u32) {
        let this = &mut self.slots[slot as usize];
        match this.data {
            Data::Capsule { offset, .. } => {
                let copied = match (this.capsule.take(), this.buffer) {
                    (Some(capsule), Some(buffer)) => {
                        let start = SQE_LEN + offset;
                        self.memory.write(buffer, 0, &capsule[start..start + length as usize]).is_ok()
                    }
                    _ => false,
                };
                match copied {
                    true => self.fetched(slot),
                    false => self.respond(slot, Status::INTERNAL.into(), None),
                }
            }
            Data::Keyed { .. } => {
                this.write = Some(to);
                self.read(slot);
            }
            Data::None => self.respond(slot, Status::SGL_LENGTH.into(), None),
        }
    }

    /// Posts an RDMA Read, or lets the command wait until one more can be under way.
    pub(super) fn read(&mut self, slot: u32) {
        let index = self.slots[slot as usize].connection;
        let Some(connection) = &mut self.connections[index] else { return };
        if connection.most_reads == 0 {
            return self.respond(slot, Status::DATA_TRANSFER_ERROR.into(), None);
        }
        if connection.reads >= connection.most_reads {
            self.slots[slot as usize].stage = Stage::Waiting;
            connection.reads_waiting.push_back(slot);
            return;
        }
        let this = &mut self.slots[slot as usize];
        let (Data::Keyed { address, key, .. }, Some(to)) = (this.data, this.write.take()) else { return };
        let from =
            RmrTriplet { virtual_address: address, segment_length: to.segment_length, rmr_context: key };
        let posted = connection.ep.read(&[to]).from(from).cookie(READ | u64::from(slot)).post();
        match posted {
            Ok(()) => {
                this.stage = Stage::Reading;
                connection.reads += 1;
            }
            Err(error) => {
                self.free(slot);
                self.close(index, &format!("an RDMA Read was refused: {error}"));
            }
        }
    }

    /// The command's data are here.
    pub(super) fn fetched(&mut self, slot: u32) {
        let this = &mut self.slots[slot as usize];
        match (&this.task, this.buffer) {
            (&Task::Data(length), Some(buffer)) => {
                let sqe = this.sqe;
                let mut data = std::mem::take(&mut self.scratch);
                let length = (length as usize).min(data.len());
                let step = match self.memory.read(buffer, 0, &mut data[..length]) {
                    Ok(()) => {
                        let target = self.target.clone();
                        self.connection_of(slot).queue.with_data(&target, &sqe, &data[..length])
                    }
                    Err(_) => Status::INTERNAL.into(),
                };
                self.scratch = data;
                self.take_step(slot, step);
            }
            // The RDMA Read has written to the backend.
            (Task::Io(io), None) if io.op == IoOp::Write => self.respond(slot, Reply::SUCCESS, None),
            _ => self.execute(slot),
        }
    }
}
