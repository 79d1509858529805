//! One device: its options, its counters, and how it is opened.

use super::connection::Connection;
use super::memory::{Counts, Memory};
use super::receives::Receives;
use super::slot::{Delayed, Slot};
use crate::controller::Waker;
use crate::proto::SQE_LEN;
use crate::target::Target;
use crate::uring::Ring;
use doorbell::{Cr, Evd, EvdFlags, Ia, Psp, Pz};
use doorbell_service::daemon::Control;
use std::collections::{BinaryHeap, VecDeque};
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

/// How an engine works.
#[derive(Clone, Debug)]
pub struct Options {
    /// The device, as [`Ia::open`] takes it.
    pub device: String,
    /// The port to listen at; 0: any that is free.
    pub port: u16,
    /// The number of threads, which share the connections. What follows is for each.
    pub threads: u16,
    /// Commands of all I/O queues.
    pub credits: usize,
    /// Commands of all admin queues.
    pub admin_credits: usize,
    /// Data buffers.
    pub buffers: Counts,
    /// RDMA Reads of one connection at a time.
    pub reads: u8,
    /// How long the thread polls for more work before it sleeps.
    pub poll_time: Duration,
    /// How long a host may take from the request of a connection to a successful Connect.
    pub connect_time: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            device: String::new(),
            port: 4420,
            threads: 1,
            credits: 8192,
            admin_credits: 64 * 32,
            buffers: Counts::default(),
            reads: 16,
            poll_time: Duration::from_micros(50),
            connect_time: Duration::from_secs(30),
        }
    }
}

/// What other threads may ask of an engine.
#[derive(Clone)]
pub struct Handle {
    shared: Arc<Shared>,
    waker: Waker,
    /// Where hosts connect to.
    pub address: SocketAddr,
}

#[derive(Debug, Default)]
pub(super) struct Shared {
    /// A wake-up is on its way.
    pub(super) woken: AtomicBool,
    pub(super) order: AtomicU8,
    /// Connections that were given to the engine and are not forgotten.
    pub(super) assigned: AtomicUsize,
    pub(super) stats: Stats,
}

/// How the engine that listens gives connection requests to one of its siblings.
pub(super) struct Sibling {
    pub(super) shared: Arc<Shared>,
    pub(super) waker: Waker,
    pub(super) requests: Sender<Cr>,
}

/// Counters and gauges of an engine, written by its thread alone.
#[derive(Debug, Default)]
#[expect(missing_docs, reason = "the names say it")]
pub struct Stats {
    pub failed_commands: AtomicU64,
    pub connections: AtomicU64,
    pub accepted: AtomicU64,
    pub rejected: AtomicU64,
    pub broken: AtomicU64,
    pub commands: AtomicU64,
    pub receives_posted: AtomicU64,
    pub receives: AtomicU64,
    pub buffers_free: AtomicU64,
    pub buffers_awaited: AtomicU64,
    pub credits: AtomicU64,
    /// How often the gauges were set.
    pub updates: AtomicU64,
}

/// Adds to a counter of which this thread is the only writer.
pub(super) fn add(counter: &AtomicU64, n: u64) {
    counter.store(counter.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
}

/// Orders: go on.
pub(super) const RUN: u8 = 0;
/// Orders: take no more connections, finish what is under way, end.
pub(super) const DRAIN: u8 = 1;
/// Orders: end.
pub(super) const STOP: u8 = 2;

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handle").field("address", &self.address).finish_non_exhaustive()
    }
}

impl Handle {
    /// Counters and gauges.
    pub fn stats(&self) -> &Stats {
        &self.shared.stats
    }
}

impl Control for Handle {
    /// Finishes the commands that are under way, closes all connections and ends.
    fn drain(&self) {
        self.shared.order.fetch_max(DRAIN, Ordering::Relaxed);
        (self.waker)();
    }

    /// Closes all connections and ends.
    fn stop(&self) {
        self.shared.order.store(STOP, Ordering::Relaxed);
        (self.waker)();
    }

    fn is_ending(&self) -> bool {
        self.shared.order.load(Ordering::Relaxed) != RUN
    }
}

/// The length of each EVD. Those of completions grow with their connections.
const QUEUE_LENGTH: u32 = 4096;

/// A device with one of its threads.
pub struct Engine {
    /// The number of the device. Its engines share one protection zone.
    pub(super) number: u64,
    pub(super) target: Arc<Target>,
    pub(super) options: Options,
    pub(super) shared: Arc<Shared>,
    pub(super) waker: Waker,
    pub(super) connections: Vec<Option<Connection>>,
    /// How often each place of `connections` was used.
    pub(super) generations: Vec<u32>,
    pub(super) slots: Vec<Slot>,
    pub(super) free_slots: Vec<u32>,
    /// Connections that have responses to post.
    pub(super) responding: Vec<usize>,
    /// Commands that go on later.
    pub(super) delayed: BinaryHeap<Delayed>,
    pub(super) receives: Receives,
    pub(super) memory: Memory,
    /// Made for the first namespace in a file.
    pub(super) ring: Option<Ring>,
    /// Operations on files for which the ring has no place.
    pub(super) ring_waiting: VecDeque<u32>,
    /// Memory for completions of the ring.
    pub(super) completed: Vec<(u64, i32)>,
    /// Memory to copy through.
    pub(super) scratch: Vec<u8>,
    pub(super) credits: usize,
    pub(super) admin_credits: usize,
    pub(super) invalidates: bool,
    pub(super) passes: u32,
    /// The time at the end of the last pass, and in microseconds since the engine was opened.
    pub(super) now: Instant,
    pub(super) clock: u64,
    pub(super) opened: Instant,
    pub(super) address: SocketAddr,
    /// The other engines of the device. Only the first one listens, and has them.
    pub(super) siblings: Vec<Sibling>,
    /// Connection requests from the first engine.
    pub(super) requests: Receiver<Cr>,
    // Freed last.
    pub(super) _service: Option<Psp>,
    /// Receives, requests, and everything else: a dequeue from an EVD with one kind of event is
    /// several times as fast as one from an EVD with all.
    pub(super) received: Evd,
    pub(super) done: Evd,
    pub(super) events: Evd,
    pub(super) pz: Arc<Pz>,
    pub(super) ia: Arc<Ia>,
}

impl Engine {
    /// Opens the device, and makes an engine for each thread. The first one listens.
    ///
    /// # Errors
    /// Those of the device.
    pub fn open(target: &Arc<Target>, options: &Options) -> doorbell::Result<Vec<Self>> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        // Hosts retry for ever when they find no receive posted, and so does this end.
        let ia = Arc::new(Ia::builder(&options.device).rnr_retry(7).rnr_timer(12).open()?);
        let pz = Arc::new(Pz::new(&ia)?);
        let mut engines = Vec::new();
        let mut siblings = Vec::new();
        for _ in 0..options.threads.max(1) {
            let (requests, receiver) = channel();
            let engine = Self::new(target, options, (number, &ia, &pz), receiver)?;
            siblings.push(Sibling { shared: engine.shared.clone(), waker: engine.waker.clone(), requests });
            engines.push(engine);
        }
        let service = Psp::builder(&ia, &engines[0].events).port(options.port).build()?;
        let address = service.address();
        target.add_port(address);
        engines.iter_mut().for_each(|engine| engine.address = address);
        engines[0]._service = Some(service);
        engines[0].siblings = siblings.split_off(1);
        engines.iter_mut().for_each(Self::prepare_backends);
        Ok(engines)
    }

    fn new(
        target: &Arc<Target>,
        options: &Options,
        (number, ia, pz): (u64, &Arc<Ia>, &Arc<Pz>),
        requests: Receiver<Cr>,
    ) -> doorbell::Result<Self> {
        let (ia, pz) = (ia.clone(), pz.clone());
        let evd = |streams| Evd::new(&ia, QUEUE_LENGTH.min(ia.attributes().max_evd_depth), streams);
        let (received, done) = (evd(EvdFlags::DTO)?, evd(EvdFlags::DTO)?);
        let events = evd(EvdFlags::CR | EvdFlags::CONNECTION | EvdFlags::SOFTWARE)?;
        let shared = Arc::<Shared>::default();
        let waker: Waker = {
            let (shared, events) = (shared.clone(), events.clone());
            Arc::new(move || {
                if !shared.woken.swap(true, Ordering::AcqRel) && events.post_software_event(0).is_err() {
                    // The EVD is full, so its thread does not sleep; it looks at the flag.
                    tracing::debug!("an engine is too busy to be woken");
                }
            })
        };
        let most = (options.credits + options.admin_credits)
            .min(usize::try_from(ia.attributes().max_srq_depth).unwrap_or(usize::MAX));
        let capsule = SQE_LEN + target.limits.in_capsule as usize;
        let receives = Receives::new(&ia, &pz, most, capsule)?;
        let memory = Memory::new(&ia, &pz, options.buffers, &target.limits)?;
        Ok(Self {
            number,
            target: target.clone(),
            options: options.clone(),
            shared,
            waker,
            connections: Vec::new(),
            generations: Vec::new(),
            slots: Vec::new(),
            free_slots: Vec::new(),
            responding: Vec::new(),
            delayed: BinaryHeap::new(),
            receives,
            memory,
            ring: None,
            ring_waiting: VecDeque::new(),
            completed: Vec::new(),
            scratch: vec![0; 64 << 10],
            credits: 0,
            admin_credits: 0,
            now: Instant::now(),
            passes: 0,
            clock: 0,
            opened: Instant::now(),
            invalidates: ia.attributes().remote_invalidate,
            address: ([0; 4], 0).into(),
            siblings: Vec::new(),
            requests,
            _service: None,
            received,
            done,
            events,
            pz,
            ia,
        })
    }

    /// What other threads need.
    pub fn handle(&self) -> Handle {
        Handle { shared: self.shared.clone(), waker: self.waker.clone(), address: self.address }
    }

    /// Sets the gauges of [`Stats`] and the counters of hosts, as [`Engine::run`] does at times.
    pub fn publish_gauges(&mut self) {
        self.connections.iter_mut().flatten().for_each(Connection::flush_tally);
        let stats = &self.shared.stats;
        let set = |gauge: &AtomicU64, value: usize| gauge.store(value as u64, Ordering::Relaxed);
        set(&stats.connections, self.connections.iter().flatten().count());
        set(&stats.commands, self.slots.len() - self.free_slots.len());
        set(&stats.receives_posted, self.receives.posted());
        set(&stats.receives, self.receives.total());
        let (free, awaited) = self.memory.counts();
        set(&stats.buffers_free, free.control + free.small + free.large);
        set(&stats.buffers_awaited, awaited);
        set(&stats.credits, self.credits + self.admin_credits);
        add(&stats.updates, 1);
    }

    pub(super) fn is_draining(&self) -> bool {
        self.shared.order.load(Ordering::Relaxed) != RUN
    }
}
