//! Operations on files.

use super::engine::Engine;
use super::execute::Other;
use super::slot::{Stage, Task};
use crate::backend::{Backend, IoOp};
use crate::proto::Status;
use crate::queue::Reply;
use crate::subsystem::Namespace;
use crate::uring::{FileOp, Ring};
use nix::errno::Errno;
use std::ops::Range;
use std::sync::Arc;

impl Engine {
    /// Deallocates blocks, which read as zeroes afterwards unless the file system refuses.
    pub(super) fn deallocate(&mut self, slot: u32, namespace: Arc<Namespace>, mut ranges: Vec<Range<u64>>) {
        ranges.retain(|range| !range.is_empty());
        self.slot(slot).task = Task::Deallocate(namespace.clone(), ranges);
        match namespace.backend.innermost() {
            Backend::File(_) => self.submit_file(slot),
            Backend::Ram(_) => self.zero_next(slot),
            Backend::Null(_) | Backend::Faulty(_) => self.respond(slot, Reply::SUCCESS, None),
        }
    }

    /// Passes the next operation on a file to io_uring.
    pub(super) fn submit_file(&mut self, slot: u32) {
        if self.ring.is_none() {
            // The namespace is new.
            self.prepare_backends();
        }
        let this = &mut self.slots[slot as usize];
        let buffer = this.buffer.map(|buffer| self.memory.place(buffer, 0));
        let (file, op, range) = match (&mut this.task, buffer) {
            (Task::Deallocate(namespace, ranges), _) => {
                let Some(range) = ranges.last_mut() else {
                    return self.respond(slot, Reply::SUCCESS, None);
                };
                let Backend::File(file) = namespace.backend.innermost() else {
                    return self.respond(slot, Status::INTERNAL.into(), None);
                };
                // At most 2 GiB at a time.
                let length = (range.end - range.start).min(1 << 31) as u32;
                (file.clone(), FileOp::Deallocate, (range.start, length))
            }
            (Task::Io(io), buffer) => {
                let Backend::File(file) = io.namespace.backend.innermost() else {
                    return self.respond(slot, Status::INTERNAL.into(), None);
                };
                let op = match (io.op, buffer) {
                    (IoOp::Read, Some(to)) => FileOp::Read { to },
                    // Behind what the host has sent.
                    (IoOp::Compare, Some(at)) => FileOp::Read { to: at + io.length as usize },
                    (IoOp::Write, Some(from)) => FileOp::Write { from, stable: io.fua },
                    (IoOp::Flush, _) => FileOp::Flush,
                    (IoOp::WriteZeroes, _) => FileOp::Zero,
                    _ => return self.respond(slot, Status::INTERNAL.into(), None),
                };
                (file.clone(), op, (io.offset, io.length))
            }
            _ => return self.respond(slot, Status::INTERNAL.into(), None),
        };
        let Some(ring) = &mut self.ring else {
            return self.respond(slot, Status::INTERNAL.into(), None);
        };
        this.stage = Stage::Backend;
        if ring.push(&file, op, range, slot.into()).is_err() {
            self.ring_waiting.push_back(slot);
        }
    }

    /// Takes the operations that io_uring has completed, and starts those that wait. Returns how
    /// many there were.
    pub(super) fn poll_files(&mut self) -> usize {
        let Some(ring) = &mut self.ring else { return 0 };
        let mut completed = std::mem::take(&mut self.completed);
        ring.completed(&mut completed);
        for &(slot, result) in &completed {
            self.on_file_done(slot as u32, result);
            if let Some(next) = self.ring_waiting.pop_front() {
                self.submit_file(next);
            }
        }
        let count = completed.len();
        completed.clear();
        self.completed = completed;
        self.start_files();
        count
    }

    /// Has io_uring start what was passed to it.
    pub(super) fn start_files(&mut self) {
        if let Some(ring) = &mut self.ring
            && let Err(error) = ring.submit()
        {
            tracing::error!(%error, "io_uring");
        }
    }

    /// An operation on a file has completed: with a number of bytes, or an error less than 0.
    pub(super) fn on_file_done(&mut self, slot: u32, result: i32) {
        self.slot(slot).stage = Stage::Waiting;
        if self.connection_of(slot).is_closing() {
            return self.free(slot);
        }
        let this = &mut self.slots[slot as usize];
        let unsupported = result == -(Errno::EOPNOTSUPP as i32);
        match &mut this.task {
            Task::Deallocate(_, ranges) => {
                let done = ranges.last_mut().is_some_and(|range| {
                    range.start = range.end.min(range.start + (1 << 31));
                    range.is_empty()
                });
                if done {
                    ranges.pop();
                }
                match result {
                    // The host only gives a hint.
                    0.. => self.submit_file(slot),
                    _ if unsupported => self.respond(slot, Reply::SUCCESS, None),
                    _ => self.respond(slot, Status::WRITE_FAULT.into(), None),
                }
            }
            Task::Io(io) => {
                let (op, length) = (io.op, io.length);
                if op == IoOp::WriteZeroes
                    && unsupported
                    && let Backend::File(file) = io.namespace.backend.innermost()
                    && file.cannot_zero()
                {
                    return self.submit_file(slot);
                }
                let expected = match op {
                    IoOp::Read | IoOp::Write | IoOp::Compare => length as i32,
                    IoOp::Flush | IoOp::WriteZeroes => 0,
                };
                if result != expected {
                    tracing::warn!(?op, result, expected, "an operation on a file has failed");
                    let status = match op {
                        IoOp::Read | IoOp::Compare => Status::READ_ERROR,
                        _ if result == -(Errno::ENOSPC as i32) => Status::CAPACITY_EXCEEDED,
                        _ => Status::WRITE_FAULT,
                    };
                    return self.respond(slot, status.into(), None);
                }
                match (op, this.buffer) {
                    (IoOp::Read, _) => self.respond_from_buffer(slot, true, length as usize),
                    (IoOp::Compare, Some(buffer)) => {
                        let length = length as usize;
                        let status = self.compare(buffer, length, Other::Buffer(length));
                        self.respond(slot, status.unwrap_or(Status::READ_ERROR).into(), None);
                    }
                    _ => self.respond(slot, Reply::SUCCESS, None),
                }
            }
            _ => self.respond(slot, Status::INTERNAL.into(), None),
        }
    }

    /// Registers the memory of RAM backends, and makes a ring if there is a file, before hosts wait
    /// for them.
    pub(super) fn prepare_backends(&mut self) {
        for namespace in self.target.subsystems().iter().flat_map(|subsystem| subsystem.namespaces()) {
            let failed = match namespace.backend.innermost() {
                Backend::Ram(ram) => {
                    ram.access(self.number, &self.ia, &self.pz).err().map(|error| error.to_string())
                }
                Backend::File(_) if self.ring.is_none() => match Ring::new(self.memory.region()) {
                    Ok(ring) => {
                        self.ring = Some(ring);
                        None
                    }
                    Err(error) => Some(format!("io_uring: {error} (see sysctl kernel.io_uring_disabled)")),
                },
                _ => None,
            };
            if let Some(error) = failed {
                tracing::error!(namespace = namespace.number, error, "a backend cannot be used");
            }
        }
    }
}
