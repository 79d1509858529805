//! What an IA counts: what happens once per call or event of a connection, never where data passes.

use super::port::{PortCounters, Samples};
use super::{Base, Counter, Counters, IaCounter};
use crate::fork::Inherit;
use crate::ia::{CmTarget, IaInner, Objects};
use crate::sync::{Mutex, rank};
use crate::{Ia, Result};
use rxe_fallback::{AsyncEvent, AsyncKind, AsyncObject, CmEvent, CmEventKind, PortSpace};
use std::collections::HashMap;
use std::hash::Hash;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Weak};

#[derive(Debug)]
pub(crate) struct IaCounts {
    counts: Box<[AtomicU64]>,
    read: Mutex<{ rank::TABLE }, Read>,
}

#[derive(Debug)]
struct Read {
    base: Base<IaCounter>,
    samples: Samples,
}

impl IaCounts {
    pub(crate) fn new(device: std::path::PathBuf, port: u8) -> Self {
        Self {
            counts: IaCounter::ALL.iter().map(|_| AtomicU64::new(0)).collect(),
            read: Mutex::new(Read { base: Base::default(), samples: Samples::new(device, port) }),
        }
    }

    /// Back to 0, before anybody looks.
    pub(crate) fn clear(&self) {
        self.counts.iter().for_each(|count| count.store(0, Relaxed));
    }
}

impl Ia {
    /// What has happened on it.
    ///
    /// # Errors
    /// INVALID_HANDLE after it was closed.
    pub fn counters(&self) -> Result<Counters<IaCounter>> {
        self.take_counters(&[])
    }

    /// The same, and these counters start at 0 again.
    ///
    /// # Errors
    /// As [`Ia::counters`].
    pub fn take_counters(&self, reset: &[IaCounter]) -> Result<Counters<IaCounter>> {
        self.inner.check()?;
        Ok(self.inner.read_counts(reset))
    }

    /// Starts this group of counters of the port or the device at 0: of those, the device has been counting since ever. One that
    /// it does not have stays 0.
    ///
    /// # Errors
    /// INVALID_HANDLE after the IA was closed.
    ///
    /// # References
    /// dat_ib_extensions.h, `dat_ib_start_counter`.
    pub fn start_counters(&self, group: PortCounters) -> Result<()> {
        self.inner.check()?;
        let mut read = self.inner.counts.read.lock().unwrap();
        read.samples.start(group);
        read.base.forget(group.counters());
        Ok(())
    }

    /// Stops this group: its counters keep what they say. One that was not started stays 0.
    ///
    /// # Errors
    /// INVALID_HANDLE after the IA was closed.
    ///
    /// # References
    /// dat_ib_extensions.h, `dat_ib_stop_counter`.
    pub fn stop_counters(&self, group: PortCounters) -> Result<()> {
        self.inner.check()?;
        self.inner.counts.read.lock().unwrap().samples.stop(group);
        Ok(())
    }
}

impl IaInner {
    /// Puts an object where objects of its kind are found, and counts it as all of these if it is a new one. How many were freed follows from
    /// how many were made and how many are found, so both change under one lock.
    ///
    /// # Errors
    /// No memory for the table; nothing is counted then, and the object is not found.
    pub(crate) fn made<K: Eq + Hash, T: Inherit + 'static>(
        &self,
        counters: impl IntoIterator<Item = IaCounter>,
        table: impl FnOnce(&mut Objects) -> &mut HashMap<K, Weak<T>>,
        key: K,
        object: &Arc<T>,
    ) -> Result<()> {
        crate::fork::know(object)?;
        let mut objects = self.objects.lock().unwrap();
        let table = table(&mut objects);
        let object = Arc::downgrade(object);
        // One that is made anew takes a place that there is.
        if let Some(place) = table.get_mut(&key) {
            *place = object;
            return Ok(());
        }
        table.try_reserve(1)?;
        table.insert(key, object);
        counters.into_iter().for_each(|counter| self.count(counter));
        Ok(())
    }

    /// An event of the connection manager.
    pub(crate) fn count_cm(&self, event: &CmEvent, target: Option<&CmTarget>) {
        use CmEventKind as K;
        use IaCounter as C;
        // What becomes of a question about datagrams is counted with its outcome.
        if matches!(target, Some(CmTarget::Ep(ep)) if ep.upgrade().is_some_and(|ep| ep.is_ud())) {
            return;
        }
        let for_datagrams = event.new_id.as_ref().is_some_and(|id| id.port_space() == PortSpace::Udp);
        let unanswered = event.status == -libc::ETIMEDOUT;
        let counter = match (event.kind, target) {
            (K::TimewaitExit, _) => return,
            (_, None) => C::CmErrUnexpected,
            (K::ConnectRequest, _) if for_datagrams => C::CmAhReqRx,
            (K::ConnectRequest, _) => C::CmReqRx,
            (K::ConnectResponse, _) => C::CmRepRx,
            (K::Established, _) => C::CmRtuRx,
            (K::Rejected, _) if event.rejected_by_consumer() => C::CmUserRejRx,
            (K::Rejected, _) if event.nobody_listens() => C::CmErrRefused,
            (K::Rejected, _) => C::CmErrRejRx,
            (K::AddrError | K::RouteError | K::Unreachable | K::ConnectError | K::Disconnected, _)
                if unanswered =>
            {
                C::CmErrTimeout
            }
            (K::AddrError | K::RouteError | K::Unreachable | K::ConnectError, _) => C::CmErr,
            (K::Disconnected, Some(CmTarget::Retired)) => C::CmDrepRx,
            (K::Disconnected, _) => C::CmDreqRx,
            _ => return,
        };
        self.count(counter);
    }

    /// A goodbye was sent, if it could be: an answer where the peer had said one.
    pub(crate) fn count_goodbye(&self, sent: bool, answer: bool) {
        if sent {
            self.count(if answer { IaCounter::CmDrepTx } else { IaCounter::CmDreqTx });
        }
    }

    /// An event of the device.
    pub(crate) fn count_async(&self, event: &AsyncEvent) {
        use AsyncKind as K;
        let counter = match (event.object, event.kind) {
            (AsyncObject::Qp(..), K::QpFatal | K::QpRequestError | K::QpAccessError) => {
                IaCounter::AsyncQpError
            }
            (AsyncObject::Cq(_), _) => IaCounter::AsyncCqError,
            (AsyncObject::Srq(_), K::SrqError) | (AsyncObject::Device, _) => IaCounter::AsyncError,
            (AsyncObject::Port(port), K::PortError) if port == self.port => IaCounter::AsyncError,
            _ => return,
        };
        self.count(counter);
    }

    /// One more.
    pub(crate) fn count(&self, counter: IaCounter) {
        self.counts.counts[counter.index()].fetch_add(1, Relaxed);
    }

    fn read_counts(&self, reset: &[IaCounter]) -> Counters<IaCounter> {
        use IaCounter as C;
        let mut totals = Counters::zero();
        let own = self.own_async_evd();
        let objects = self.objects.lock().unwrap();
        for (&counter, count) in C::ALL.iter().zip(&self.counts.counts) {
            totals.set(counter, count.load(Relaxed));
        }
        let made = |counters: &[C]| counters.iter().map(|&counter| totals[counter]).sum::<u64>();
        let sps: Vec<Arc<_>> = objects.sps.values().filter_map(Weak::upgrade).collect();
        let of = |kinds: &[C]| sps.iter().filter(|sp| sp.counter.is_some_and(|c| kinds.contains(&c))).count();
        let (psp, rsp) = (&[C::PspCreate, C::PspCreateAny], &[C::RspCreate]);
        let freed = [
            (C::PzFree, made(&[C::PzCreate]), objects.pzs.len()),
            (C::LmrFree, made(&[C::LmrCreate]), objects.lmrs.len()),
            (C::RmrFree, made(&[C::RmrCreate]), objects.rmrs.len()),
            (C::PspFree, made(psp), of(psp)),
            (C::RspFree, made(rsp), of(rsp)),
            (C::EvdFree, made(&[C::EvdCreate]), objects.evds.len() - objects.own_evds(own)),
            (C::EpFree, made(&[C::EpCreate]), objects.eps.len()),
            (C::SrqFree, made(&[C::SrqCreate]), objects.srqs.len()),
        ];
        // Not under the lock: these may be the last references.
        drop(objects);
        drop(sps);
        for (counter, made, living) in freed {
            totals.set(counter, made.saturating_sub(living as u64));
        }
        let mut read = self.counts.read.lock().unwrap();
        for (counter, value) in read.samples.read() {
            totals.set(counter, value);
        }
        read.base.read(totals, reset)
    }
}
