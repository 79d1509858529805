//! Operations on blocks.

use super::engine::Engine;
use super::memory::Buffer;
use super::slot::{Delayed, Stage, Task};
use crate::backend::{Access, Backend, Faulty, IoOp};
use crate::limits::PAGE;
use crate::proto::{Data, SQE_LEN, Status};
use crate::queue::{Io, Reply};
use doorbell::{Lmr, LmrTriplet};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// How many bytes are zeroed before other commands take their turn.
const PIECE: u64 = 1 << 20;

/// What the data of Compare are compared with.
#[derive(Clone, Copy)]
pub(super) enum Other<'a> {
    /// Memory from this offset on.
    Memory(&'a Lmr, usize),
    /// The same buffer, from this offset on.
    Buffer(usize),
    Zeroes,
}

impl Engine {
    /// Begins an operation on blocks: without a buffer where the backend's memory can be
    /// transferred.
    #[inline]
    pub(super) fn begin_io(&mut self, slot: u32, io: Io) {
        let (op, length) = (io.op, io.length as usize);
        let this = &mut self.slots[slot as usize];
        let place = match (&io.namespace.backend, op) {
            (Backend::Ram(ram), IoOp::Read | IoOp::Write) => {
                match ram.access(self.number, &self.ia, &self.pz) {
                    Ok(Access::Direct(lmr)) => Some(lmr.triplet(io.offset as usize, length)),
                    Ok(Access::Copy(_)) => None,
                    Err(error) => {
                        tracing::error!(%error, "memory of a RAM backend");
                        return self.respond(slot, Status::INTERNAL.into(), None);
                    }
                }
            }
            (Backend::Null(_), IoOp::Read) => Some(self.memory.zeroes(length)),
            _ => None,
        };
        this.task = Task::Io(io);
        match (op, place) {
            (IoOp::Read, Some(place)) => self.respond(slot, Reply::SUCCESS, Some(place)),
            (IoOp::Write, Some(place)) => self.write_in_place(slot, place),
            (IoOp::Flush | IoOp::WriteZeroes, _) => self.execute(slot),
            (IoOp::Compare, _) => self.want_buffer(slot, false, 2 * length),
            (IoOp::Read | IoOp::Write, None) => self.want_buffer(slot, false, length),
        }
    }

    /// Writes to memory of the backend itself.
    pub(super) fn write_in_place(&mut self, slot: u32, place: LmrTriplet) {
        let this = &mut self.slots[slot as usize];
        match (this.data, &this.task) {
            (Data::Capsule { offset, .. }, Task::Io(io)) => {
                let capsule = this.capsule.take();
                let start = SQE_LEN + offset;
                let bytes =
                    capsule.as_ref().and_then(|capsule| capsule.get(start..start + io.length as usize));
                let written = bytes.is_some_and(|bytes| {
                    let Backend::Ram(ram) = &io.namespace.backend else { return false };
                    match ram.access(self.number, &self.ia, &self.pz) {
                        Ok(Access::Direct(lmr) | Access::Copy(lmr)) => {
                            lmr.write(io.offset as usize, bytes).is_ok()
                        }
                        Err(_) => false,
                    }
                });
                drop(capsule);
                let status = if written { Status::SUCCESS } else { Status::WRITE_FAULT };
                self.respond(slot, status.into(), None);
            }
            _ => {
                this.write = Some(place);
                self.read(slot);
            }
        }
    }

    /// Executes an operation whose data, if any, are in the buffer, or are already in their place.
    pub(super) fn execute(&mut self, slot: u32) {
        let this = &mut self.slots[slot as usize];
        let Task::Io(io) = &this.task else {
            return self.respond(slot, Status::INTERNAL.into(), None);
        };
        if let Backend::Faulty(faulty) = &io.namespace.backend {
            let delay = faulty.faults.delay.load(Ordering::Relaxed);
            if delay > 0 {
                this.stage = Stage::Backend;
                let due = Instant::now() + Duration::from_micros(delay);
                self.delayed.push(Delayed { due, slot });
                return;
            }
        }
        self.finish_io(slot);
    }

    /// Executes the commands whose delay has passed.
    pub(super) fn run_delayed(&mut self, now: Instant) {
        while self.delayed.peek().is_some_and(|first| first.due <= now) {
            let Some(Delayed { slot, .. }) = self.delayed.pop() else { return };
            self.slot(slot).stage = Stage::Waiting;
            match self.slot(slot).task {
                Task::Deallocate(..) => self.zero_next(slot),
                _ => self.finish_io(slot),
            }
        }
        self.start_files();
    }

    /// Zeroes the next [`PIECE`] of memory that is deallocated.
    pub(super) fn zero_next(&mut self, slot: u32) {
        if self.connection_of(slot).is_closing() {
            return self.free(slot);
        }
        let Task::Deallocate(namespace, ranges) = &mut self.slots[slot as usize].task else {
            return self.respond(slot, Status::INTERNAL.into(), None);
        };
        let Backend::Ram(ram) = namespace.backend.innermost() else {
            return self.respond(slot, Status::INTERNAL.into(), None);
        };
        let zeroed = ram.access(self.number, &self.ia, &self.pz).and_then(|access| {
            let (Access::Direct(lmr) | Access::Copy(lmr)) = access;
            let mut left = PIECE;
            while left > 0
                && let Some(range) = ranges.last_mut()
            {
                let length = left.min(range.end - range.start);
                zero(lmr, range.start as usize, length as usize)?;
                (left, range.start) = (left - length, range.start + length);
                if range.is_empty() {
                    ranges.pop();
                }
            }
            Ok(ranges.is_empty())
        });
        match zeroed {
            Ok(true) => self.respond(slot, Reply::SUCCESS, None),
            Ok(false) => {
                self.slot(slot).stage = Stage::Backend;
                self.delayed.push(Delayed { due: Instant::now(), slot });
            }
            Err(error) => {
                tracing::error!(%error, "memory of a RAM backend");
                self.respond(slot, Status::WRITE_FAULT.into(), None);
            }
        }
    }

    pub(super) fn finish_io(&mut self, slot: u32) {
        if self.connection_of(slot).is_closing() {
            return self.free(slot);
        }
        let this = &self.slots[slot as usize];
        let Task::Io(io) = &this.task else {
            return self.respond(slot, Status::INTERNAL.into(), None);
        };
        let (io, buffer) = (io.clone(), this.buffer);
        let mut backend = &io.namespace.backend;
        if let Backend::Faulty(faulty) = backend {
            let Faulty { inner, faults } = &**faulty;
            if faults.strikes() {
                let status = if io.op == IoOp::Read { Status::READ_ERROR } else { Status::WRITE_FAULT };
                return self.respond(slot, status.into(), None);
            }
            backend = inner;
        }
        if let Backend::File(_) = backend {
            return self.submit_file(slot);
        }
        let status = self.execute_now(backend, &io, buffer);
        match io.op {
            IoOp::Read => self.respond_from_buffer(slot, status.is_success(), io.length as usize),
            _ => self.respond(slot, status.into(), None),
        }
    }

    /// Executes an operation on memory.
    pub(super) fn execute_now(&mut self, backend: &Backend, io: &Io, buffer: Option<Buffer>) -> Status {
        let (offset, length) = (io.offset as usize, io.length as usize);
        let outcome = match backend {
            Backend::Null(_) => match (io.op, buffer) {
                (IoOp::Read, Some(buffer)) => self.zero_buffer(buffer, length),
                (IoOp::Compare, Some(buffer)) => self.compare(buffer, length, Other::Zeroes),
                _ => Ok(Status::SUCCESS),
            },
            Backend::Ram(ram) => match ram.access(self.number, &self.ia, &self.pz) {
                Err(error) => Err(error),
                Ok(Access::Direct(lmr) | Access::Copy(lmr)) => match (io.op, buffer) {
                    (IoOp::Read, Some(buffer)) => self.copy_out(lmr, offset, buffer, length),
                    (IoOp::Write, Some(buffer)) => self.copy_in(lmr, offset, buffer, length),
                    (IoOp::Compare, Some(buffer)) => self.compare(buffer, length, Other::Memory(lmr, offset)),
                    (IoOp::WriteZeroes, _) => zero(lmr, offset, length),
                    (IoOp::Flush, _) => Ok(Status::SUCCESS),
                    _ => Ok(Status::INTERNAL),
                },
            },
            // Files do not come here, and no faulty backend has another behind it.
            Backend::File(_) | Backend::Faulty(_) => Ok(Status::INTERNAL),
        };
        outcome.unwrap_or_else(|error| {
            tracing::error!(%error, "a backend in memory");
            if io.op == IoOp::Read { Status::READ_ERROR } else { Status::WRITE_FAULT }
        })
    }

    pub(super) fn zero_buffer(&mut self, buffer: Buffer, length: usize) -> doorbell::Result<Status> {
        for at in (0..length).step_by(PAGE as usize) {
            let n = (length - at).min(PAGE as usize);
            self.memory.write(buffer, at, &[0; PAGE as usize][..n])?;
        }
        Ok(Status::SUCCESS)
    }

    pub(super) fn copy_out(
        &mut self,
        lmr: &Lmr,
        offset: usize,
        to: Buffer,
        length: usize,
    ) -> doorbell::Result<Status> {
        let size = self.scratch.len();
        for at in (0..length).step_by(size) {
            let piece = &mut self.scratch[..(length - at).min(size)];
            lmr.read(offset + at, piece)?;
            self.memory.write(to, at, piece)?;
        }
        Ok(Status::SUCCESS)
    }

    pub(super) fn copy_in(
        &mut self,
        lmr: &Lmr,
        offset: usize,
        from: Buffer,
        length: usize,
    ) -> doorbell::Result<Status> {
        let size = self.scratch.len();
        for at in (0..length).step_by(size) {
            let piece = &mut self.scratch[..(length - at).min(size)];
            self.memory.read(from, at, piece)?;
            lmr.write(offset + at, piece)?;
        }
        Ok(Status::SUCCESS)
    }

    /// Compares the first bytes of the buffer with others.
    pub(super) fn compare(
        &mut self,
        buffer: Buffer,
        length: usize,
        with: Other<'_>,
    ) -> doorbell::Result<Status> {
        let half = self.scratch.len() / 2;
        let (ours, theirs) = self.scratch.split_at_mut(half);
        for at in (0..length).step_by(half) {
            let n = (length - at).min(half);
            let (ours, theirs) = (&mut ours[..n], &mut theirs[..n]);
            match with {
                Other::Memory(lmr, offset) => lmr.read(offset + at, ours)?,
                Other::Buffer(skip) => self.memory.read(buffer, skip + at, ours)?,
                Other::Zeroes => ours.fill(0),
            }
            self.memory.read(buffer, at, theirs)?;
            if ours != theirs {
                return Ok(Status::COMPARE_FAILURE);
            }
        }
        Ok(Status::SUCCESS)
    }
}

/// Writes zeroes.
fn zero(lmr: &Lmr, offset: usize, length: usize) -> doorbell::Result<Status> {
    const ZEROES: &[u8] = &[0; 64 << 10];
    for at in (0..length).step_by(ZEROES.len()) {
        lmr.write(offset + at, &ZEROES[..(length - at).min(ZEROES.len())])?;
    }
    Ok(Status::SUCCESS)
}
