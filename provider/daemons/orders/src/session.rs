//! A session: who trades, over any number of connections one after the other. It lives as long as the
//! gateway.

use crate::book::NONE;
use crate::outbox::Outbox;

/// The name of a session, padded with spaces.
pub type User = [u8; 6];

/// Orders that are remembered to find duplicates.
const RECENT: usize = 4;

/// What makes two orders the same: symbol, side, quantity, price.
pub type Likeness = (u16, u8, u32, u64);

/// A session.
#[derive(Debug)]
pub struct Session {
    /// Its name.
    pub user: User,
    /// Whether its orders are canceled when its connection ends.
    pub cancel_at_end: bool,
    /// The last URN that was used.
    pub last_urn: u32,
    /// Its orders in books: how many, and their list.
    pub open: u32,
    /// The first order of the list.
    pub oldest: u32,
    /// The last order of the list.
    pub youngest: u32,
    /// What it was sent.
    pub outbox: Outbox,
    /// It is in [`Sessions::dirty`].
    is_dirty: bool,
    /// See [`Session::is_within_rate`].
    paid_until: u64,
    /// Messages beyond the rate, since the last one within.
    pub excess: u32,
    recent: [(Likeness, u64); RECENT],
    next_recent: usize,
}

impl Session {
    fn new(user: User, window: usize) -> Self {
        Self {
            user,
            cancel_at_end: false,
            last_urn: 0,
            open: 0,
            oldest: NONE,
            youngest: NONE,
            outbox: Outbox::new(window),
            is_dirty: false,
            paid_until: 0,
            excess: 0,
            recent: [((0, 0, 0, 0), 0); RECENT],
            next_recent: 0,
        }
    }

    /// Counts a message at this time against the rate: each one costs some time, and the messages of a
    /// `burst` may be paid later.
    #[inline]
    pub fn is_within_rate(&mut self, now: u64, cost: u64, burst: u64) -> bool {
        let start = self.paid_until.max(now);
        if start - now > burst {
            self.excess += 1;
            return false;
        }
        self.paid_until = start + cost;
        self.excess = 0;
        true
    }

    /// Whether the same order came less than `window` ago. Remembers this one.
    #[inline]
    pub fn is_duplicate(&mut self, order: Likeness, now: u64, window: u64) -> bool {
        if window == 0 {
            return false;
        }
        let is_same =
            |&(recent, time): &(Likeness, u64)| recent == order && now.saturating_sub(time) < window;
        let found = self.recent.iter().any(is_same);
        self.recent[self.next_recent] = (order, now);
        self.next_recent = (self.next_recent + 1) % RECENT;
        found
    }
}

/// All sessions, and which of them have something to be sent.
#[derive(Debug)]
pub struct Sessions {
    list: Vec<Session>,
    most: usize,
    window: usize,
    /// Those with new messages, in order.
    dirty: Vec<u32>,
    /// How far the journal must be written before new messages may be sent.
    pub position: u64,
}

impl Sessions {
    /// Room for this many, each with a window of messages.
    pub fn new(most: usize, window: usize) -> Self {
        let (list, dirty) = (Vec::with_capacity(most), Vec::with_capacity(most));
        Self { list, most, window, dirty, position: 0 }
    }

    /// The session of this name.
    pub fn find(&self, user: User) -> Option<u32> {
        self.list.iter().position(|session| session.user == user).map(|number| number as u32)
    }

    /// A new session. `None` if there is no room.
    pub fn add(&mut self, user: User) -> Option<u32> {
        if self.list.len() == self.most {
            return None;
        }
        self.list.push(Session::new(user, self.window));
        Some(self.list.len() as u32 - 1)
    }

    /// How many fit.
    pub fn most(&self) -> usize {
        self.most
    }

    /// Whether another one fits.
    pub fn has_room(&self) -> bool {
        self.list.len() < self.most
    }

    /// A session.
    #[inline]
    pub fn get(&self, number: u32) -> &Session {
        &self.list[number as usize]
    }

    /// A session.
    #[inline]
    pub fn get_mut(&mut self, number: u32) -> &mut Session {
        &mut self.list[number as usize]
    }

    /// All of them.
    pub fn all(&self) -> &[Session] {
        &self.list
    }

    /// Queues a message.
    #[inline]
    pub fn send(&mut self, number: u32, message: &[u8]) {
        let session = &mut self.list[number as usize];
        session.outbox.push(message, self.position);
        if !session.is_dirty {
            session.is_dirty = true;
            self.dirty.push(number);
        }
    }

    /// The next session with new messages.
    #[inline]
    pub fn take_dirty(&mut self) -> Option<u32> {
        let number = self.dirty.pop()?;
        self.list[number as usize].is_dirty = false;
        Some(number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_and_then_the_rate() {
        let mut session = Session::new(*b"A     ", 1);
        // 10 a second, and up to 5 more at once.
        let (cost, burst) = (100, 500);
        let within = (0..20).filter(|_| session.is_within_rate(1000, cost, burst)).count();
        assert_eq!((within, session.excess), (6, 14));
        assert!(!session.is_within_rate(1050, cost, burst));
        assert!(session.is_within_rate(1100, cost, burst));
        assert!(!session.is_within_rate(1101, cost, burst));
        assert!(session.is_within_rate(9999, cost, burst));
        assert_eq!(session.excess, 0);
    }

    #[test]
    fn duplicates_are_recent() {
        let mut session = Session::new(*b"A     ", 1);
        let order = |quantity| (1, b'B', quantity, 100);
        assert!(!session.is_duplicate(order(1), 1000, 50));
        assert!(session.is_duplicate(order(1), 1049, 50));
        assert!(!session.is_duplicate(order(2), 1049, 50));
        assert!(!session.is_duplicate(order(1), 1099, 50));
        assert!(!session.is_duplicate(order(1), 1099, 0));
    }
}
