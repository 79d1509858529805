//! The target: subsystems, the controllers of hosts, and the counters of hosts.

use crate::controller::{Controller, Waker};
use crate::limits::{Limits, NAMESPACES};
use crate::proto::log::DiscoveryEntry;
use crate::proto::{self, DISCOVERY_NQN};
use crate::stats::HostStats;
use crate::subsystem::Subsystem;
use crate::sync::lock;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

/// Everything that hosts can see.
#[derive(Debug)]
pub struct Target {
    /// What it takes at most.
    pub limits: Limits,
    subsystems: RwLock<BTreeMap<String, Arc<Subsystem>>>,
    discovery: Arc<Subsystem>,
    ports: RwLock<Vec<SocketAddr>>,
    generation: AtomicU64,
    controllers: Mutex<Controllers>,
    /// By the names of the subsystem and the host.
    hosts: Mutex<Hosts>,
}

/// The counters of hosts, by the names of subsystem and host.
type Hosts = BTreeMap<(String, String), Arc<HostStats>>;

/// The most hosts with counters of their own; all others share one.
const HOSTS: usize = 1024;

#[derive(Debug, Default)]
struct Controllers {
    by_number: BTreeMap<u16, Arc<Controller>>,
    last: u16,
}

/// The largest number of a controller.
const LAST_CONTROLLER: u16 = 0xffef;

impl Target {
    /// A target without subsystems.
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            subsystems: RwLock::default(),
            discovery: Arc::new(Subsystem::new(DISCOVERY_NQN, "discovery", "Doorbell", None, [])),
            ports: RwLock::default(),
            generation: AtomicU64::new(1),
            controllers: Mutex::default(),
            hosts: Mutex::default(),
        }
    }

    /// Adds an address at which hosts reach the target; the discovery log names it.
    pub fn add_port(&self, address: SocketAddr) {
        self.ports.write().unwrap_or_else(PoisonError::into_inner).push(address);
        self.generation.fetch_add(1, Ordering::Relaxed);
    }

    /// Adds a subsystem, or replaces hosts and namespaces of the one with its name. Controllers
    /// stay, and are told which namespaces have changed.
    pub fn put(&self, subsystem: Subsystem) {
        let present = self.subsystem(&subsystem.nqn);
        if let Some(present) = present {
            let changed = present.take_over(subsystem);
            self.tell(&present, &changed);
        } else {
            let mut subsystems = self.subsystems.write().unwrap_or_else(PoisonError::into_inner);
            subsystems.insert(subsystem.nqn.clone(), Arc::new(subsystem));
        }
        self.generation.fetch_add(1, Ordering::Relaxed);
    }

    /// Removes a subsystem and ends its controllers.
    pub fn remove(&self, nqn: &str) {
        let removed = self.subsystems.write().unwrap_or_else(PoisonError::into_inner).remove(nqn);
        let Some(removed) = removed else { return };
        for controller in self.controllers() {
            if Arc::ptr_eq(&controller.subsystem, &removed) {
                controller.end();
            }
        }
        self.generation.fetch_add(1, Ordering::Relaxed);
    }

    /// Asks all backends for their sizes, and tells the hosts of changes.
    pub fn update_sizes(&self) {
        for subsystem in self.subsystems() {
            let namespaces = subsystem.namespaces();
            let changed: Vec<_> = namespaces.iter().filter(|n| n.update_size()).map(|n| n.number).collect();
            self.tell(&subsystem, &changed);
        }
    }

    fn tell(&self, subsystem: &Arc<Subsystem>, changed: &[u32]) {
        if changed.is_empty() {
            return;
        }
        for controller in self.controllers() {
            if Arc::ptr_eq(&controller.subsystem, subsystem) {
                controller.namespaces_changed(changed);
            }
        }
    }

    /// The subsystem of this name.
    pub fn subsystem(&self, nqn: &str) -> Option<Arc<Subsystem>> {
        if nqn == DISCOVERY_NQN {
            return Some(self.discovery.clone());
        }
        self.subsystems.read().unwrap_or_else(PoisonError::into_inner).get(nqn).cloned()
    }

    /// All subsystems but that of the discovery.
    pub fn subsystems(&self) -> Vec<Arc<Subsystem>> {
        self.subsystems.read().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }

    /// All controllers.
    pub fn controllers(&self) -> Vec<Arc<Controller>> {
        lock(&self.controllers).by_number.values().cloned().collect()
    }

    /// The controller with this number.
    pub fn controller(&self, number: u16) -> Option<Arc<Controller>> {
        lock(&self.controllers).by_number.get(&number).cloned()
    }

    /// Makes a controller with an unused number. `None` if all are used.
    pub(crate) fn add_controller(
        &self,
        subsystem: &Arc<Subsystem>,
        host: (&str, [u8; 16]),
        waker: &Waker,
    ) -> Option<Arc<Controller>> {
        let mut controllers = lock(&self.controllers);
        let next = |number: u16| if number >= LAST_CONTROLLER { 1 } else { number + 1 };
        let mut number = next(controllers.last);
        while controllers.by_number.contains_key(&number) {
            number = next(number);
            if number == controllers.last {
                return None;
            }
        }
        controllers.last = number;
        let discovery = Arc::ptr_eq(subsystem, &self.discovery);
        let stats = self.stats_of(&subsystem.nqn, host.0);
        let controller = Controller::new(number, subsystem.clone(), discovery, host, waker.clone(), stats);
        let controller = Arc::new(controller);
        controllers.by_number.insert(number, controller.clone());
        Some(controller)
    }

    /// The counters of this host with this subsystem.
    pub fn stats_of(&self, subsystem: &str, host: &str) -> Arc<HostStats> {
        let mut hosts = lock(&self.hosts);
        let key = (subsystem.to_owned(), host.to_owned());
        let key = match hosts.contains_key(&key) || hosts.len() < HOSTS {
            true => key,
            false => ("others".into(), "others".into()),
        };
        hosts.entry(key).or_default().clone()
    }

    /// The counters of all hosts.
    pub fn hosts(&self) -> Vec<((String, String), Arc<HostStats>)> {
        lock(&self.hosts).iter().map(|(key, stats)| (key.clone(), stats.clone())).collect()
    }

    /// Forgets a controller that has ended.
    pub(crate) fn remove_controller(&self, controller: &Arc<Controller>) {
        lock(&self.controllers).by_number.remove(&controller.number);
    }

    /// The discovery log for this host: the subsystems that it may use, at every address.
    pub(crate) fn discovery_log(&self, host: &str) -> Vec<u8> {
        let generation = self.generation.load(Ordering::Relaxed);
        let ports = self.ports.read().unwrap_or_else(PoisonError::into_inner).clone();
        let mut entries = Vec::new();
        for subsystem in self.subsystems().iter().chain([&self.discovery]).filter(|s| s.admits(host)) {
            for (number, &address) in (1..).zip(&ports) {
                entries.push(DiscoveryEntry::new(&subsystem.nqn, address, number));
            }
        }
        proto::log::discovery(generation, &entries)
    }
}

const _: () = assert!(NAMESPACES <= 1024, "the log of changed namespaces holds 1,024");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_controllers_are_unused_ones() {
        let target = Target::new(Limits::default());
        let discovery = target.subsystem(DISCOVERY_NQN).unwrap();
        let waker: Waker = Arc::new(|| ());
        let add = || target.add_controller(&discovery, ("h", [0; 16]), &waker);
        let first = add().unwrap();
        let second = add().unwrap();
        assert_ne!(first.number, second.number);
        target.remove_controller(&first);
        lock(&target.controllers).last = LAST_CONTROLLER;
        assert_eq!(add().unwrap().number, 1);
        assert_eq!(add().unwrap().number, 3);
    }
}
