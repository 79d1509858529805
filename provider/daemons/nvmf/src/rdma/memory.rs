//! Buffers for data: registered memory, cut into pieces of three sizes when an engine starts.

use crate::limits::{Limits, PAGE};
use crate::uring::Region;
use doorbell::{Ia, LmrTriplet, Pz};
use std::collections::VecDeque;
use std::sync::Arc;

/// Which buffers a command takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Class {
    /// For admin commands and Connect: no I/O command takes one.
    Control,
    /// For short transfers.
    Small,
    /// For the longest transfers.
    Large,
}

/// How many buffers there are of each class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counts {
    /// Buffers of 8 KiB for admin commands and Connect.
    pub control: usize,
    /// Buffers of 8 KiB.
    pub small: usize,
    /// Buffers for the longest transfer.
    pub large: usize,
}

impl Default for Counts {
    fn default() -> Self {
        Self { control: 64, small: 1024, large: 64 }
    }
}

/// The size of control and small buffers.
const SMALL: usize = 8192;

/// A buffer in use.
#[derive(Clone, Copy, Debug)]
pub(super) struct Buffer {
    offset: usize,
    class: Class,
}

/// All buffers, and zeroes that reads of unwritten blocks are sent from.
#[derive(Debug)]
pub(super) struct Memory {
    region: Arc<Region>,
    zeroes: usize,
    large: usize,
    free: [Vec<usize>; 3],
    waiting: [VecDeque<u32>; 3],
}

impl Memory {
    pub(super) fn new(ia: &Ia, pz: &Pz, counts: Counts, limits: &Limits) -> doorbell::Result<Self> {
        let large = limits.transfer as usize;
        let classes = [(counts.control, SMALL), (counts.small, SMALL), (counts.large, large)];
        let mut end = 0;
        let free = classes.map(|(count, size)| {
            let buffers: Vec<_> = (0..count).map(|n| end + n * size).rev().collect();
            end += count * size;
            buffers
        });
        debug_assert!(end.is_multiple_of(PAGE as usize));
        let region = Region::new(ia, pz, end + large)?;
        Ok(Self { region, zeroes: end, large, free, waiting: Default::default() })
    }

    /// The class for a command with this many bytes.
    pub(super) fn class(&self, control: bool, length: usize) -> Class {
        match length {
            ..=SMALL if control => Class::Control,
            ..=SMALL => Class::Small,
            _ => Class::Large,
        }
    }

    /// Whether a buffer of any class has this many bytes.
    pub(super) fn fits(&self, length: usize) -> bool {
        length <= self.large.max(SMALL)
    }

    /// A free buffer, unless earlier commands wait for one. Without one, the command waits.
    pub(super) fn take(&mut self, class: Class, command: u32) -> Option<Buffer> {
        let waiting = &mut self.waiting[class as usize];
        let offset = if waiting.is_empty() { self.free[class as usize].pop() } else { None };
        if offset.is_none() {
            waiting.push_back(command);
        }
        offset.map(|offset| Buffer { offset, class })
    }

    /// Frees a buffer, or gives it to the first command that waits.
    pub(super) fn give_back(&mut self, buffer: Buffer) -> Option<(u32, Buffer)> {
        let class = buffer.class as usize;
        let next = self.waiting[class].pop_front();
        if next.is_none() {
            self.free[class].push(buffer.offset);
        }
        next.map(|command| (command, buffer))
    }

    /// The command waits no longer. Returns whether it has waited.
    pub(super) fn forget(&mut self, command: u32) -> bool {
        self.waiting.iter_mut().any(|waiting| remove(waiting, command))
    }

    /// The memory of all buffers.
    pub(super) fn region(&self) -> &Arc<Region> {
        &self.region
    }

    /// The place of a buffer in the region, behind `skip` bytes.
    pub(super) fn place(&self, buffer: Buffer, skip: usize) -> usize {
        buffer.offset + skip
    }

    /// The segment of the first bytes of a buffer, behind `skip` bytes.
    pub(super) fn triplet(&self, buffer: Buffer, skip: usize, length: usize) -> LmrTriplet {
        self.region.triplet(buffer.offset + skip, length)
    }

    /// The segment of this many zeroes, at most those of the longest transfer.
    pub(super) fn zeroes(&self, length: usize) -> LmrTriplet {
        self.region.triplet(self.zeroes, length.min(self.large))
    }

    pub(super) fn read(&self, buffer: Buffer, skip: usize, to: &mut [u8]) -> doorbell::Result<()> {
        self.region.read(buffer.offset + skip, to)
    }

    pub(super) fn write(&self, buffer: Buffer, skip: usize, from: &[u8]) -> doorbell::Result<()> {
        self.region.write(buffer.offset + skip, from)
    }

    /// The number of free buffers of each class, and of commands that wait for one.
    pub(super) fn counts(&self) -> (Counts, usize) {
        let [control, small, large] = [0, 1, 2].map(|class| self.free[class].len());
        (Counts { control, small, large }, self.waiting.iter().map(VecDeque::len).sum())
    }
}

/// Removes a command that waits. Returns whether it has waited there.
pub(super) fn remove(waiting: &mut VecDeque<u32>, slot: u32) -> bool {
    let place = waiting.iter().position(|&other| other == slot);
    place.is_some_and(|place| waiting.remove(place).is_some())
}
