//! A controller: what one host has connected to, from Connect on its admin queue to the end of
//! that queue. Its queues may belong to several threads.

use crate::limits::PARKED_EVENTS;
use crate::proto::fabrics::{CAP, CC, CSTS, VS};
use crate::proto::identify::EVENT_NAMESPACE;
use crate::proto::{Status, VERSION, log};
use crate::stats::HostStats;
use crate::subsystem::Subsystem;
use crate::sync::lock;
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Wakes the thread of a queue: a controller has ended, or an event has to be sent.
pub type Waker = Arc<dyn Fn() + Send + Sync>;

/// CC: enable.
const ENABLE: u32 = 1;
/// CC: the bits of the shutdown notification.
const SHUTDOWN: u32 = 0b11 << 14;
/// CSTS: ready.
const READY: u32 = 1;
/// CSTS: fatal error.
const FATAL: u32 = 1 << 1;
/// CSTS: shutdown complete.
const SHUTDOWN_COMPLETE: u32 = 0b10 << 2;

/// The most changed namespaces that the log has.
const CHANGED: usize = 1024;

/// A controller.
pub struct Controller {
    /// Its number.
    pub number: u16,
    /// Its subsystem.
    pub subsystem: Arc<Subsystem>,
    /// It belongs to the discovery subsystem.
    pub discovery: bool,
    /// The host's name.
    pub host: String,
    /// The host's UUID.
    pub host_id: [u8; 16],
    /// The counters of the host.
    pub stats: Arc<HostStats>,
    ready: AtomicBool,
    ended: AtomicBool,
    /// A command has come since the last look at the keep-alive timer.
    active: AtomicBool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    cc: u32,
    csts: u32,
    keep_alive: Duration,
    deadline: Option<Instant>,
    /// Commands that wait for an event.
    parked: VecDeque<u16>,
    events_enabled: u32,
    /// Namespaces have changed, and the host does not know yet.
    pending: bool,
    /// The host was told, and has not read the log.
    told: bool,
    changed: Vec<u32>,
    /// The wakers of the queues. The admin queue is number 0.
    queues: BTreeMap<u16, Waker>,
}

impl fmt::Debug for Controller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Controller").field("number", &self.number).field("host", &self.host).finish()
    }
}

impl Controller {
    pub(crate) fn new(
        number: u16,
        subsystem: Arc<Subsystem>,
        discovery: bool,
        (host, host_id): (&str, [u8; 16]),
        admin: Waker,
        stats: Arc<HostStats>,
    ) -> Self {
        let state = State { queues: BTreeMap::from([(0, admin)]), ..State::default() };
        Self {
            number,
            subsystem,
            discovery,
            host: host.into(),
            host_id,
            stats,
            ready: AtomicBool::new(false),
            ended: AtomicBool::new(false),
            active: AtomicBool::new(false),
            state: Mutex::new(state),
        }
    }

    /// Whether the host has enabled the controller.
    pub fn is_ready(&self) -> bool {
        self.ready.load(Ordering::Acquire)
    }

    /// Whether the controller has ended: its queues have to be closed.
    pub fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    /// Ends the controller.
    pub fn end(&self) {
        self.ended.store(true, Ordering::Release);
        self.ready.store(false, Ordering::Release);
        let wakers: Vec<_> = lock(&self.state).queues.values().cloned().collect();
        wakers.iter().for_each(|wake| wake());
    }

    /// Notes that the host is alive.
    pub(crate) fn note_activity(&self) {
        if !self.active.load(Ordering::Relaxed) {
            self.active.store(true, Ordering::Relaxed);
        }
    }

    /// Sets the keep-alive timeout; zero turns the timer off.
    pub fn set_keep_alive(&self, timeout: Duration, now: Instant) {
        let mut state = lock(&self.state);
        state.keep_alive = timeout;
        state.deadline = (!timeout.is_zero()).then(|| now + timeout);
    }

    /// The keep-alive timeout.
    pub fn keep_alive(&self) -> Duration {
        lock(&self.state).keep_alive
    }

    /// Ends the controller if its host has been silent for too long. Returns whether it has.
    pub fn check_keep_alive(&self, now: Instant) -> bool {
        let mut state = lock(&self.state);
        if state.deadline.is_none_or(|deadline| now < deadline) || self.has_ended() {
            return false;
        }
        if self.active.swap(false, Ordering::Relaxed) {
            state.deadline = Some(now + state.keep_alive);
            return false;
        }
        drop(state);
        self.end();
        true
    }

    /// Adds an I/O queue.
    ///
    /// # Errors
    /// The queue exists already.
    pub(crate) fn attach(&self, qid: u16, waker: &Waker) -> Result<(), Status> {
        let mut state = lock(&self.state);
        if state.queues.contains_key(&qid) {
            return Err(Status::SEQUENCE_ERROR);
        }
        state.queues.insert(qid, waker.clone());
        Ok(())
    }

    /// Removes a queue. Without its admin queue, the controller ends.
    pub(crate) fn detach(&self, qid: u16) {
        lock(&self.state).queues.remove(&qid);
        if qid == 0 {
            self.end();
        }
    }

    /// The number of I/O queues.
    pub fn io_queues(&self) -> usize {
        lock(&self.state).queues.range(1..).count()
    }

    /// Property Get.
    pub(crate) fn property(&self, offset: u32, wide: bool, depth: u16) -> Result<u64, Status> {
        let state = lock(&self.state);
        match (offset, wide) {
            // Contiguous queues; 7.5 seconds to become ready; the NVM command set.
            (CAP, true) => Ok(u64::from(depth - 1) | 1 << 16 | 15 << 24 | 1 << 37),
            (VS, false) => Ok(VERSION.into()),
            (CC, false) => Ok(state.cc.into()),
            (CSTS, false) => Ok(state.csts.into()),
            _ => Err(Status::INVALID_FIELD),
        }
    }

    /// Property Set.
    pub(crate) fn set_property(&self, offset: u32, wide: bool, value: u64) -> Result<(), Status> {
        if (offset, wide) != (CC, false) {
            return Err(Status::INVALID_FIELD);
        }
        let mut state = lock(&self.state);
        let (old, new) = (state.cc, value as u32);
        state.cc = new;
        if new & ENABLE != 0 && old & ENABLE == 0 {
            let field = |shift: u32, bits: u32| new >> shift & ((1 << bits) - 1);
            // Pages of 4 KiB, round robin, entries of 64 and 16 bytes, the NVM command set.
            let entries = (field(16, 4), field(20, 4));
            let is_valid = field(7, 4) == 0
                && field(11, 3) == 0
                && matches!(field(4, 3), 0 | 6)
                && (self.discovery || entries == (6, 4));
            state.csts = if is_valid { READY } else { FATAL };
        } else if new & ENABLE == 0 && old & ENABLE != 0 {
            state.csts &= !READY;
        }
        if new & SHUTDOWN != 0 && old & SHUTDOWN == 0 {
            state.csts |= SHUTDOWN_COMPLETE;
        }
        let is_ready = state.csts & READY != 0 && !self.has_ended();
        self.ready.store(is_ready, Ordering::Release);
        Ok(())
    }

    /// Parks an Asynchronous Event Request.
    pub(crate) fn park(&self, command: u16) -> Result<(), Status> {
        let mut state = lock(&self.state);
        if state.parked.len() >= PARKED_EVENTS {
            return Err(Status::TOO_MANY_EVENTS);
        }
        state.parked.push_back(command);
        Ok(())
    }

    /// Takes back an Asynchronous Event Request. Returns whether it was parked.
    pub(crate) fn unpark(&self, command: u16) -> bool {
        let parked = &mut lock(&self.state).parked;
        let place = parked.iter().position(|&other| other == command);
        place.is_some_and(|place| parked.remove(place).is_some())
    }

    /// The next event for a parked command: the command and the result of its response.
    pub(crate) fn next_event(&self) -> Option<(u16, u32)> {
        let mut state = lock(&self.state);
        let enabled = state.events_enabled & EVENT_NAMESPACE != 0;
        if !state.pending || state.told || !enabled {
            return None;
        }
        let command = state.parked.pop_front()?;
        (state.pending, state.told) = (false, true);
        // A notice: namespaces have changed.
        Some((command, 0x02 | u32::from(log::CHANGED_NAMESPACES) << 16))
    }

    /// The events that the host wants.
    pub(crate) fn events_enabled(&self) -> u32 {
        lock(&self.state).events_enabled
    }

    /// Sets the events that the host wants.
    pub(crate) fn enable_events(&self, events: u32) -> Result<(), Status> {
        if events & !EVENT_NAMESPACE != 0 {
            return Err(Status::INVALID_FIELD);
        }
        lock(&self.state).events_enabled = events;
        Ok(())
    }

    /// Notes that these namespaces were added, removed or resized.
    pub(crate) fn namespaces_changed(&self, numbers: &[u32]) {
        let mut state = lock(&self.state);
        for &number in numbers {
            if !state.changed.contains(&number) && state.changed.len() <= CHANGED {
                state.changed.push(number);
            }
        }
        state.pending = true;
        let admin = state.queues.get(&0).cloned();
        drop(state);
        if let Some(wake) = admin {
            wake();
        }
    }

    /// The log of changed namespaces. `clear` forgets them, so that the next change is an event.
    pub(crate) fn changed_log(&self, clear: bool) -> Vec<u8> {
        let mut state = lock(&self.state);
        state.changed.sort_unstable();
        let numbers = Some(&state.changed[..]).filter(|numbers| numbers.len() <= CHANGED);
        let page = log::changed_namespaces(numbers);
        if clear {
            state.changed.clear();
            (state.pending, state.told) = (false, false);
        }
        page
    }
}
