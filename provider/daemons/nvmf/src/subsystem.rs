//! Subsystems and their namespaces.

use crate::backend::Backend;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

/// A namespace: blocks of a backend.
#[derive(Debug)]
pub struct Namespace {
    /// Its number.
    pub number: u32,
    /// Its blocks have 2 to this power bytes.
    pub shift: u8,
    /// Its UUID, also used as NGUID.
    pub uuid: [u8; 16],
    /// Where the blocks are.
    pub backend: Backend,
    blocks: AtomicU64,
}

impl Namespace {
    /// A namespace of as many whole blocks as the backend has.
    pub fn new(number: u32, shift: u8, uuid: [u8; 16], backend: Backend) -> Self {
        let blocks = AtomicU64::new(backend.bytes() >> shift);
        Self { number, shift, uuid, backend, blocks }
    }

    /// The number of blocks.
    pub fn blocks(&self) -> u64 {
        self.blocks.load(Ordering::Relaxed)
    }

    /// Asks the backend for its size. Returns whether it has changed.
    pub fn update_size(&self) -> bool {
        let blocks = self.backend.bytes() >> self.shift;
        self.blocks.swap(blocks, Ordering::Relaxed) != blocks
    }
}

/// A UUID (version 8) that depends on the subsystem's name and the namespace's number only.
pub fn derived_uuid(nqn: &str, number: u32) -> [u8; 16] {
    // FNV-1a, 128 bits.
    let bytes = nqn.bytes().chain(number.to_le_bytes());
    let hash = bytes.fold(0x6c62_272e_07bb_0142_62b8_2175_6295_c58d, |hash: u128, byte| {
        (hash ^ u128::from(byte)).wrapping_mul(0x0000_0000_0100_0000_0000_0000_0000_013b)
    });
    let mut uuid = hash.to_be_bytes();
    uuid[6] = uuid[6] & 0x0f | 0x80;
    uuid[8] = uuid[8] & 0x3f | 0x80;
    uuid
}

/// A subsystem: namespaces, and the hosts that may use them.
#[derive(Debug)]
pub struct Subsystem {
    /// Its name.
    pub nqn: String,
    /// Its serial number.
    pub serial: String,
    /// Its model.
    pub model: String,
    contents: RwLock<Contents>,
    generation: AtomicU64,
}

#[derive(Debug, Default)]
struct Contents {
    /// `None`: every host.
    hosts: Option<BTreeSet<String>>,
    namespaces: BTreeMap<u32, Arc<Namespace>>,
}

impl Subsystem {
    /// A subsystem for these hosts (`None`: all).
    pub fn new(
        nqn: &str,
        serial: &str,
        model: &str,
        hosts: Option<BTreeSet<String>>,
        namespaces: impl IntoIterator<Item = Arc<Namespace>>,
    ) -> Self {
        let namespaces = namespaces.into_iter().map(|namespace| (namespace.number, namespace));
        Self {
            nqn: nqn.into(),
            serial: serial.into(),
            model: model.into(),
            contents: RwLock::new(Contents { hosts, namespaces: namespaces.collect() }),
            generation: AtomicU64::new(1),
        }
    }

    fn read<T>(&self, what: impl FnOnce(&Contents) -> T) -> T {
        what(&self.contents.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Whether this host may connect.
    pub fn admits(&self, host: &str) -> bool {
        self.read(|contents| contents.hosts.as_ref().is_none_or(|hosts| hosts.contains(host)))
    }

    /// The namespace with this number.
    pub fn namespace(&self, number: u32) -> Option<Arc<Namespace>> {
        self.read(|contents| contents.namespaces.get(&number).cloned())
    }

    /// All namespaces.
    pub fn namespaces(&self) -> Vec<Arc<Namespace>> {
        self.read(|contents| contents.namespaces.values().cloned().collect())
    }

    /// A number that changes with the list of namespaces.
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// Takes hosts and namespaces over from another one. Returns the numbers of the namespaces that
    /// were added, removed or replaced.
    pub(crate) fn take_over(&self, other: Self) -> Vec<u32> {
        let Contents { hosts, namespaces } =
            other.contents.into_inner().unwrap_or_else(PoisonError::into_inner);
        let mut contents = self.contents.write().unwrap_or_else(PoisonError::into_inner);
        contents.hosts = hosts;
        let old = std::mem::replace(&mut contents.namespaces, namespaces);
        let new = &contents.namespaces;
        let is_same = |number: &u32| match (old.get(number), new.get(number)) {
            (Some(old), Some(new)) => Arc::ptr_eq(old, new),
            _ => false,
        };
        let changed = old.keys().chain(new.keys().filter(|number| !old.contains_key(number)));
        let changed: Vec<_> = changed.copied().filter(|number| !is_same(number)).collect();
        self.generation.fetch_add(1, Ordering::Release);
        changed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn namespace(number: u32) -> Arc<Namespace> {
        Arc::new(Namespace::new(number, 9, derived_uuid("nqn.x", number), Backend::null(1 << 20)))
    }

    #[test]
    fn derived_uuids_differ_and_stay() {
        assert_ne!(derived_uuid("nqn.x", 1), derived_uuid("nqn.x", 2));
        assert_ne!(derived_uuid("nqn.x", 1), derived_uuid("nqn.y", 1));
        let uuid = derived_uuid("nqn.x", 1);
        assert_eq!((uuid[6] >> 4, uuid[8] >> 6), (8, 2));
    }

    #[test]
    fn taking_over_names_what_has_changed() {
        let old = Subsystem::new("nqn.x", "1", "m", None, [namespace(1), namespace(2)]);
        let kept = old.namespace(1).unwrap();
        let hosts = Some(BTreeSet::from(["nqn.h".to_owned()]));
        let new = Subsystem::new("nqn.x", "1", "m", hosts, [kept, namespace(3)]);
        assert_eq!(old.take_over(new), [2, 3]);
        assert!(old.admits("nqn.h") && !old.admits("nqn.i"));
        assert!(old.namespace(2).is_none());
    }
}
