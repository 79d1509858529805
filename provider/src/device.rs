//! An open device: its verbs context, its attributes, and the tables that lead to its objects.
//!
//! A device does not depend on its objects; each object holds an `Arc<Device>`. Events of the
//! device and of rdma_cm reach objects through traits that the objects implement: [`Member`],
//! [`CmHandler`], [`Source`], [`WindowOwner`], [`AsyncSink`].

mod address_handles;
mod async_events;
mod attributes;
mod channels;
mod cm;
mod cm_events;
mod lmr_table;
mod pools;
mod qp_state;
mod queue_lmrs;
mod reactor;
mod registry;
mod resolve;
mod rkeys;
mod settings;
mod signals;
mod wake;

pub(crate) use address_handles::{AddressHandles, UdRoute};
pub(crate) use channels::Channels;
pub(crate) use cm::{Cm, CmHandler};
pub(crate) use lmr_table::{LmrTable, Use};
pub(crate) use pools::Pools;
pub(crate) use queue_lmrs::QueueLmrs;
pub(crate) use reactor::{Reactor, ReservedTimers, Source, Timer};
pub(crate) use registry::{Class, Member, Registry};
pub(crate) use resolve::{ROUTE_TIME, Tries};
pub(crate) use rkeys::{RkeyTarget, Rkeys, WindowOwner};
pub(crate) use settings::IaSettings;
pub(crate) use signals::{Signal, Signals};

use crate::counters::IaCounts;
use crate::datapath::DataPath;
use crate::event_data::AsyncEvent;
use crate::sync::{Mutex, rank};
use crate::{Error, IaAttr, IaCounter, ProviderAttr, Result, Subtype};
use rxe_fallback::{AtomicCap, CmId, Context, EventChannel, Pd};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

/// The receiver of an IA's asynchronous events.
pub(crate) trait AsyncSink: Send + Sync {
    /// Queues the event. The caller may hold locks.
    fn put_async(&self, event: AsyncEvent);

    /// Tells the program of a queued event. An agent may run here: the caller holds no lock.
    fn announce_async(&self);
}

/// An open device with its port, and what its objects share.
pub struct Device {
    /// What the device can do.
    pub attr: IaAttr,
    pub(crate) provider_attr: ProviderAttr,
    /// How its queues are driven.
    pub path: DataPath,
    pub(crate) settings: IaSettings,
    pub(crate) port: u8,
    pub(crate) lmrs: &'static LmrTable,
    pub(crate) rkeys: Rkeys,
    pub(crate) address_handles: AddressHandles,
    pub(crate) pools: Pools,
    pub(crate) registry: Registry,
    pub(crate) reactor: Arc<Reactor>,
    pub(crate) signals: Arc<Signals>,
    pub(crate) channels: Channels,
    /// A protection domain for the next PZ, unless there is none: the first, or that of a freed PZ.
    /// The device takes longer to create and to free a domain than the rest of these calls takes.
    spare_pd: Mutex<{ rank::TABLE }, Option<Pd>>,
    pub(crate) counts: IaCounts,
    /// The device has had an EP for datagrams.
    pub(crate) sends_datagrams: AtomicBool,
    async_sink: Mutex<{ rank::TABLE }, Option<Arc<dyn AsyncSink>>>,
    order: Mutex<{ rank::ORDER }, ()>,
    live: AtomicBool,
    /// The device belongs to the process from which this one was forked.
    inherited: AtomicBool,
    consumer_context: AtomicU64,
    /// Dropped after everything that uses it.
    pub(crate) cm: Cm,
    /// Dropped last.
    pub context: Context,
}

/// Makes librdmacm open the device, which it does for the first id on the device and never again in
/// the process. Otherwise the first connection would wait for it.
fn open_for_connections(channel: &EventChannel, address: IpAddr) {
    let bound = CmId::create(channel, 0).and_then(|id| id.bind(SocketAddr::new(address, 0)));
    if let Err(error) = bound {
        tracing::debug!(%error, %address, "librdmacm opens the device with the first connection");
    }
}

impl Device {
    /// A device whose progress thread is not started. `address` is the address of the port.
    pub(crate) fn new(
        context: Context,
        port: u8,
        address: IpAddr,
        settings: IaSettings,
    ) -> Result<Arc<Self>> {
        let (path, why) = DataPath::choose(&context)?;
        let channel = EventChannel::create().map_err(|e| Error::verb(Subtype::ResourceDevice, e))?;
        open_for_connections(&channel, address);
        let reactor = Reactor::new(context.async_fd(), channel.as_fd())?;
        Ok(Arc::new(Self {
            attr: attributes::ia_attr(&context, port, address, path),
            provider_attr: attributes::provider_attr(&context, path, why),
            path,
            settings,
            port,
            lmrs: LmrTable::of_process(),
            rkeys: Rkeys::new()?,
            address_handles: AddressHandles::default(),
            pools: Pools::default(),
            registry: Registry::new()?,
            reactor,
            signals: Signals::new(),
            channels: Channels::default(),
            // Without it, the creation of a PZ tells what is missing.
            spare_pd: Mutex::new(Pd::alloc(&context).ok()),
            counts: IaCounts::new(context.sysfs_path(), port),
            sends_datagrams: AtomicBool::new(false),
            async_sink: Mutex::default(),
            order: Mutex::new(()),
            live: AtomicBool::new(true),
            inherited: AtomicBool::new(false),
            consumer_context: AtomicU64::new(0),
            cm: Cm::new(channel),
            context,
        }))
    }

    /// A protection domain without objects.
    pub(crate) fn take_pd(&self) -> Result<Pd> {
        let spare = self.spare_pd.lock().unwrap().take();
        spare.map_or_else(
            || Pd::alloc(&self.context).map_err(|e| Error::verb(Subtype::ResourceProtectionDomain, e)),
            Ok,
        )
    }

    /// Takes back the protection domain of a PZ that is gone, unless an object still has it.
    pub(crate) fn return_pd(&self, pd: &Pd) {
        if !self.is_inherited() && !pd.is_shared() {
            self.spare_pd.lock().unwrap().get_or_insert_with(|| pd.clone());
        }
    }

    /// Starts the progress thread.
    pub(crate) fn start(self: &Arc<Self>) -> Result<()> {
        let device: Weak<Self> = Arc::downgrade(self);
        self.reactor.start(device)
    }

    pub(crate) fn check(&self) -> Result<()> {
        if self.live.load(Ordering::Acquire) {
            Ok(())
        } else {
            Err(Error::handle(Subtype::InvalidHandleIa, "IA"))
        }
    }

    /// Whether the device belongs to the process from which this one was forked. Its locks may then
    /// be held for ever.
    #[inline]
    pub(crate) fn is_inherited(&self) -> bool {
        self.inherited.load(Ordering::Acquire)
    }

    /// Refuses objects of a device that [`Device::is_inherited`].
    pub(crate) fn check_inherited(&self, sub: Subtype, what: &str) -> Result<()> {
        if self.is_inherited() { Err(Error::handle(sub, what)) } else { Ok(()) }
    }

    /// Registers a new object and increments these counters. The count of freed objects is the
    /// difference of created and registered ones, so both change under one lock.
    ///
    /// # Errors
    /// No memory for the table; the object is then neither registered nor counted.
    pub(crate) fn register<M: Member + 'static>(
        &self,
        class: Class,
        id: u64,
        object: &Arc<M>,
        counters: &[IaCounter],
    ) -> Result<()> {
        self.registry.add(class, id, object, counters.last().copied(), || {
            counters.iter().for_each(|&counter| self.count(counter));
        })
    }

    /// Increments a counter.
    pub(crate) fn count(&self, counter: IaCounter) {
        self.counts.count(counter);
    }

    pub(crate) fn consumer_context(&self) -> u64 {
        self.consumer_context.load(Ordering::Relaxed)
    }

    pub(crate) fn set_consumer_context(&self, context: u64) {
        self.consumer_context.store(context, Ordering::Relaxed);
    }

    /// Sets the receiver of asynchronous events; `None` discards them.
    pub(crate) fn set_async_sink(&self, sink: Option<Arc<dyn AsyncSink>>) {
        let before = std::mem::replace(&mut *self.async_sink.lock().unwrap(), sink);
        drop(before);
    }

    /// Queues an asynchronous event of the IA, and tells the program.
    pub(crate) fn push_async(&self, event: AsyncEvent) {
        self.put_async(event);
        self.announce_async();
    }

    /// The same of an event that names an object, if the object still `exists`.
    pub(crate) fn push_async_of(&self, exists: impl FnOnce() -> bool, event: AsyncEvent) {
        if self.tell_of(exists, || self.put_async(event)).is_some() {
            self.announce_async();
        }
    }

    /// Queues an asynchronous event. The caller may hold locks, and calls
    /// [`Device::announce_async`] once it holds none.
    pub(crate) fn put_async(&self, event: AsyncEvent) {
        if let Some(sink) = self.async_sink() {
            sink.put_async(event);
        }
    }

    /// Tells the program of an event of [`Device::put_async`].
    pub(crate) fn announce_async(&self) {
        if let Some(sink) = self.async_sink() {
            sink.announce_async();
        }
    }

    fn async_sink(&self) -> Option<Arc<dyn AsyncSink>> {
        self.async_sink.lock().unwrap().clone()
    }

    /// Runs `put`, which queues events that name an object and announces none of them, if the object
    /// still `exists`. All threads queue events of one cause on two EVDs in the same order (R192).
    ///
    /// A free first lets the object exist no longer, then calls [`Device::finish_telling`]. After
    /// that, no event is queued that names the object.
    pub(crate) fn tell_of<T>(&self, exists: impl FnOnce() -> bool, put: impl FnOnce() -> T) -> Option<T> {
        let _order = self.order.lock().unwrap();
        exists().then(put)
    }

    /// Waits until no thread queues an event that names an object which no longer exists.
    pub(crate) fn finish_telling(&self) {
        drop(self.order.lock().unwrap());
    }

    /// Waits until the device has read the buffers of datagrams under way. Called before memory is
    /// deregistered: programs need not wait for the completions of datagrams (the last one may have
    /// none), and the device reads the memory after the post.
    pub(crate) fn finish_sends(&self) {
        if self.sends_datagrams.load(Ordering::Acquire) {
            self.registry.each(Class::Ep, Member::finish_sends);
        }
    }

    /// Whether the device has remote atomics.
    pub(crate) fn has_atomics(&self) -> bool {
        self.context.attributes().atomic_cap != AtomicCap::None
    }

    /// Closes the device: calls of its objects fail from now on. Returns false if it was closed
    /// before.
    pub(crate) fn shut(&self) -> bool {
        self.live.swap(false, Ordering::AcqRel)
    }

    /// Ends the CM ids and the progress thread, after all objects have been closed.
    pub(crate) fn stop(&self) {
        self.set_async_sink(None);
        self.cm.forget_all();
        self.reactor.stop();
    }
}

impl Source for Device {
    fn ready(self: Arc<Self>, number: u64) {
        match number {
            reactor::ASYNC => self.async_ready(),
            reactor::CM => self.cm_ready(),
            _ => {}
        }
    }

    fn due(self: Arc<Self>, timer: Timer) {
        // The peer of an ended connection has not answered in time.
        if let Timer::GiveUp(token) = timer {
            self.cm.forget(token);
        }
    }
}

impl crate::fork::Inherit for Device {
    fn disown(&self) {
        self.live.store(false, Ordering::Release);
        self.inherited.store(true, Ordering::Release);
        self.reactor.disown();
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        self.reactor.stop();
    }
}

impl std::fmt::Debug for Device {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Device")
            .field("context", &self.context)
            .field("port", &self.port)
            .finish_non_exhaustive()
    }
}
