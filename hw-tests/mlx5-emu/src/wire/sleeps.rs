//! Every order of the steps by which threads of a process fall asleep and a peer wakes them.
//!
//! Several threads of a process may sleep on the socket of one peer: the helper thread
//! ([`crate::program::helper`]) and threads of the program ([`crate::program::patience`],
//! [`crate::program::waits`]). The process has one flag per ring ([`super::ring`]). The rules, with
//! the device locked except during the sleep itself:
//!
//! 1. Before a sleep: count the sleeper, set the flag, then look at the ring. A message that is
//!    there already ends the sleep before it begins.
//! 2. After a sleep: uncount the sleeper. Only the last sleeper clears the flag.
//! 3. The thread that takes the peer's byte from the socket sets the flag again if another thread
//!    still sleeps, and then reads the ring. The peer took the flag when it sent the byte, and the
//!    other thread may not have seen the byte.
//!
//! The peer publishes a message, takes the flag and sends a byte if the flag was set.
//!
//! The tests run these steps on a real ring. They show that no order leaves a message unread while
//! all threads sleep, and that each rule is needed.

use std::os::fd::AsRawFd as _;
use std::os::unix::net::UnixStream;

use super::ring::Ring;

/// A rule to leave out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Without {
    Nothing,
    /// The second look of rule 1.
    Look,
    /// The condition of rule 2.
    LastClears,
    /// Rule 3.
    SetAgain,
}

/// The next step of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    Announce,
    Look,
    Asleep,
    TakeByte,
    Read,
    Gone,
}

/// A thread of the process.
struct Thread {
    at: At,
    /// The thread leaves after a sleep. Its sleep may time out, and it may leave without a look at
    /// the socket or the ring. The helper does none of this.
    leaves: bool,
}

struct World {
    writer: Ring,
    reader: Ring,
    without: Without,
    threads: [Thread; 2],
    locked_by: Option<usize>,
    sleepers: usize,
    messages: usize,
    /// The peer found the flag set and has not sent the byte yet.
    owes_byte: bool,
    byte: bool,
}

const MESSAGES: usize = 2;
const LEN: usize = 8;
/// Actors: thread 0 (the helper), thread 1, the peer, and thread 1 as it leaves without a look.
const PEER: usize = 2;
const LEAVE: usize = 3;

impl World {
    fn new(without: Without) -> Self {
        let (a, b) = UnixStream::pair().unwrap();
        let writer = Ring::offer(a.as_raw_fd()).unwrap();
        let reader = Ring::accept(b.as_raw_fd()).unwrap().unwrap();
        let threads = [false, true].map(|leaves| Thread { at: At::Announce, leaves });
        Self {
            writer,
            reader,
            without,
            threads,
            locked_by: None,
            sleepers: 0,
            messages: MESSAGES,
            owes_byte: false,
            byte: false,
        }
    }

    fn reset(&mut self) {
        let _ = self.reader.consumed(self.reader.filled());
        self.reader.awake();
        self.threads = [false, true].map(|leaves| Thread { at: At::Announce, leaves });
        (self.locked_by, self.sleepers, self.messages) = (None, 0, MESSAGES);
        (self.owes_byte, self.byte) = (false, false);
    }

    fn can_step(&self, actor: usize) -> bool {
        let free = |thread: usize| self.locked_by.is_none_or(|holder| holder == thread);
        match actor {
            PEER => self.owes_byte || self.messages > 0,
            LEAVE => matches!(self.threads[1].at, At::Asleep | At::TakeByte) && free(1),
            thread => match self.threads[thread].at {
                At::Gone => false,
                At::Asleep => self.byte && free(thread),
                _ => free(thread),
            },
        }
    }

    fn step(&mut self, actor: usize) {
        match actor {
            PEER if self.owes_byte => {
                self.owes_byte = false;
                self.byte = true;
            }
            PEER => {
                self.messages -= 1;
                self.writer.room(LEN).unwrap().fill(0);
                self.owes_byte = self.writer.publish(LEN);
            }
            LEAVE => {
                if self.threads[1].at == At::Asleep {
                    self.wake_up();
                }
                self.threads[1].at = At::Gone;
            }
            thread => self.thread_step(thread),
        }
    }

    fn thread_step(&mut self, thread: usize) {
        self.locked_by = Some(thread);
        let next = match self.threads[thread].at {
            At::Announce => {
                self.sleepers += 1;
                self.reader.sleep();
                At::Look
            }
            At::Look if self.without != Without::Look && self.reader.filled() > 0 => {
                self.wake_up();
                At::TakeByte
            }
            At::Look => {
                self.locked_by = None;
                At::Asleep
            }
            At::Asleep => {
                self.wake_up();
                At::TakeByte
            }
            At::TakeByte => {
                self.byte = false;
                if self.sleepers > 0 && self.without != Without::SetAgain {
                    self.reader.sleep();
                }
                At::Read
            }
            At::Read => {
                let _ = self.reader.consumed(self.reader.filled());
                self.locked_by = None;
                if self.threads[thread].leaves { At::Gone } else { At::Announce }
            }
            At::Gone => unreachable!("can_step"),
        };
        self.threads[thread].at = next;
    }

    fn wake_up(&mut self) {
        self.sleepers -= 1;
        if self.sleepers == 0 || self.without == Without::LastClears {
            self.reader.awake();
        }
        self.locked_by = None;
    }
}

/// Runs every order of steps. Returns the number of orders, and of those that end with a message
/// that nobody reads.
fn all_orders(without: Without) -> (usize, usize) {
    let mut world = World::new(without);
    let (mut orders, mut lost) = (0, 0);
    // The choices of the current order: the actor, and the actors not yet tried in its place.
    let mut path: Vec<(usize, Vec<usize>)> = Vec::new();
    loop {
        world.reset();
        for &(actor, _) in &path {
            world.step(actor);
        }
        loop {
            let mut able: Vec<usize> = (0..=LEAVE).filter(|&actor| world.can_step(actor)).collect();
            let Some(actor) = able.pop() else { break };
            world.step(actor);
            path.push((actor, able));
        }
        orders += 1;
        lost += usize::from(world.reader.filled() > 0);
        loop {
            let Some((_, mut untried)) = path.pop() else { return (orders, lost) };
            if let Some(actor) = untried.pop() {
                path.push((actor, untried));
                break;
            }
        }
    }
}

#[test]
fn no_order_of_sleeps_and_messages_loses_a_message() {
    let (orders, lost) = all_orders(Without::Nothing);
    assert_eq!(lost, 0, "of {orders} orders");
    assert!(orders > 1000, "{orders} orders");
}

#[test]
fn each_rule_is_needed() {
    for without in [Without::Look, Without::LastClears, Without::SetAgain] {
        let (orders, lost) = all_orders(without);
        assert!(lost > 0, "without {without:?}: none of {orders} orders lost a message");
    }
}
