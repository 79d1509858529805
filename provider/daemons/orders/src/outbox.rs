//! What a session was sent and will be sent: the last messages with their sequence numbers.
//!
//! The first message has number 1. Numbers are not sent: both sides count. A session that connects
//! again names the number that it expects next, and gets everything from there on, as long as that is
//! here.

use crate::ouch::LONGEST_OUT;

#[derive(Clone, Copy, Debug)]
struct Entry {
    bytes: [u8; LONGEST_OUT],
    length: u8,
    /// How far the journal must be written before this may be sent.
    position: u64,
}

/// A ring of messages.
#[derive(Debug)]
pub struct Outbox {
    entries: Vec<Entry>,
    next: u64,
}

impl Outbox {
    /// A ring of at least this many messages.
    pub fn new(window: usize) -> Self {
        let empty = Entry { bytes: [0; LONGEST_OUT], length: 0, position: 0 };
        Self { entries: vec![empty; window.next_power_of_two()], next: 1 }
    }

    /// The number that the next message will have.
    #[inline]
    pub fn next(&self) -> u64 {
        self.next
    }

    /// The number of the oldest message that is here.
    pub fn oldest(&self) -> u64 {
        self.next.saturating_sub(self.entries.len() as u64).max(1)
    }

    /// How many messages fit.
    pub fn window(&self) -> usize {
        self.entries.len()
    }

    #[inline]
    fn place(&self, sequence: u64) -> usize {
        sequence as usize & (self.entries.len() - 1)
    }

    /// Adds a message. The oldest one goes.
    #[inline]
    pub fn push(&mut self, message: &[u8], position: u64) {
        let place = self.place(self.next);
        let entry = &mut self.entries[place];
        entry.bytes[..message.len()].copy_from_slice(message);
        entry.length = message.len() as u8;
        entry.position = position;
        self.next += 1;
    }

    /// The message of this number, and how far the journal must be written; `None` if it is no longer
    /// or not yet here.
    #[inline]
    pub fn get(&self, sequence: u64) -> Option<(&[u8], u64)> {
        let is_here = sequence < self.next && sequence >= self.oldest();
        is_here.then(|| {
            let entry = &self.entries[self.place(sequence)];
            (&entry.bytes[..usize::from(entry.length)], entry.position)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_window_has_the_last_messages() {
        let mut outbox = Outbox::new(4);
        assert_eq!((outbox.oldest(), outbox.next(), outbox.get(0), outbox.get(1)), (1, 1, None, None));
        for n in 1..=10u8 {
            outbox.push(&vec![n; usize::from(n)], n.into());
        }
        assert_eq!((outbox.oldest(), outbox.next()), (7, 11));
        assert_eq!(outbox.get(6), None);
        assert_eq!(outbox.get(7), Some((&[7; 7][..], 7)));
        assert_eq!(outbox.get(10), Some((&[10; 10][..], 10)));
        assert_eq!(outbox.get(11), None);
    }
}
