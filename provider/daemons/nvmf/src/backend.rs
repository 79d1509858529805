//! Where the blocks of a namespace are. A backend only describes this: [`crate::rdma`] moves the
//! data, because a backend in registered memory needs no copy.

use crate::uring::FileDisk;
use doorbell::{Ia, Lmr, MemPriv, Pz};
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

/// The kinds of operations on blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IoOp {
    /// To the host.
    Read,
    /// From the host.
    Write,
    /// Fetch from the host and compare.
    Compare,
    /// Make all completed writes stable.
    Flush,
    /// Write zeroes.
    WriteZeroes,
}

/// A backend.
#[derive(Debug)]
pub enum Backend {
    /// Reads give zeroes, writes are dropped.
    Null(u64),
    /// Memory of this process; lost at its end.
    Ram(Ram),
    /// A file or block device.
    File(Arc<FileDisk>),
    /// Another backend that delays and fails. For tests.
    Faulty(Box<Faulty>),
}

impl Backend {
    /// A null backend of this many bytes.
    pub fn null(bytes: u64) -> Self {
        Self::Null(bytes)
    }

    /// A RAM backend of this many bytes.
    pub fn ram(bytes: u64) -> Self {
        Self::Ram(Ram { bytes, memory: OnceLock::new() })
    }

    /// A file or block device.
    ///
    /// # Errors
    /// As [`FileDisk::open`].
    pub fn file(path: &Path) -> io::Result<Self> {
        FileDisk::open(path).map(|file| Self::File(Arc::new(file)))
    }

    /// The backend that keeps the blocks, without faults.
    pub fn innermost(&self) -> &Self {
        match self {
            Self::Faulty(faulty) => faulty.inner.innermost(),
            other => other,
        }
    }

    /// This backend with these faults.
    pub fn faulty(inner: Self, faults: Arc<Faults>) -> Self {
        Self::Faulty(Box::new(Faulty { inner, faults }))
    }

    /// Its size in bytes at this moment.
    pub fn bytes(&self) -> u64 {
        match self {
            Self::Null(bytes) => *bytes,
            Self::Ram(ram) => ram.bytes,
            Self::File(file) => file.bytes(),
            Self::Faulty(faulty) => match faulty.faults.bytes.load(Ordering::Relaxed) {
                0 => faulty.inner.bytes(),
                bytes => bytes.min(faulty.inner.bytes()),
            },
        }
    }

    /// Whether completed writes may be lost before a flush.
    pub fn has_cache(&self) -> bool {
        match self {
            Self::Null(_) | Self::Ram(_) => false,
            Self::File(_) => true,
            Self::Faulty(faulty) => faulty.inner.has_cache(),
        }
    }
}

/// Memory that devices read and write in place. The first device that uses it registers it.
#[derive(Debug)]
pub struct Ram {
    bytes: u64,
    memory: OnceLock<Memory>,
}

#[derive(Debug)]
struct Memory {
    /// The engine whose protection zone the memory is in.
    engine: u64,
    lmr: Lmr,
}

/// The memory of a RAM backend, as one engine sees it.
#[derive(Clone, Copy, Debug)]
pub enum Access<'a> {
    /// Its device can transfer from and to this memory.
    Direct(&'a Lmr),
    /// The memory belongs to another device: copy.
    Copy(&'a Lmr),
}

impl Ram {
    /// The memory, registered with the device of this engine unless it is registered already.
    ///
    /// # Errors
    /// As [`doorbell::LmrBuilder::allocate`].
    pub fn access(&self, engine: u64, ia: &Ia, pz: &Pz) -> doorbell::Result<Access<'_>> {
        let memory = match self.memory.get() {
            Some(memory) => memory,
            None => {
                let privileges = MemPriv::LOCAL_READ | MemPriv::LOCAL_WRITE;
                let bytes = usize::try_from(self.bytes).unwrap_or(usize::MAX);
                let lmr = Lmr::builder(ia, pz).privileges(privileges).allocate(bytes)?;
                // If another engine was faster, its memory is taken.
                self.memory.get_or_init(|| Memory { engine, lmr })
            }
        };
        Ok(match memory.engine == engine {
            true => Access::Direct(&memory.lmr),
            false => Access::Copy(&memory.lmr),
        })
    }
}

/// A backend with faults.
#[derive(Debug)]
pub struct Faulty {
    /// The backend behind.
    pub inner: Backend,
    /// The faults, which may change at any time.
    pub faults: Arc<Faults>,
}

/// Faults of a backend.
#[derive(Debug, Default)]
pub struct Faults {
    /// The time that each operation takes, in microseconds.
    pub delay: AtomicU64,
    /// Every operation of this number fails; 0: none.
    pub fail_every: AtomicU32,
    /// The size in bytes, if it is not 0 and smaller than the true size.
    pub bytes: AtomicU64,
    operations: AtomicU32,
}

impl Faults {
    /// Whether the next operation fails.
    pub(crate) fn strikes(&self) -> bool {
        let every = self.fail_every.load(Ordering::Relaxed);
        let operation = self.operations.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
        every != 0 && operation.is_multiple_of(every)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_third_operation_fails() {
        let faults = Faults { fail_every: 3.into(), ..Faults::default() };
        let failed: Vec<_> = (0..6).map(|_| faults.strikes()).collect();
        assert_eq!(failed, [false, false, true, false, false, true]);
        faults.fail_every.store(0, Ordering::Relaxed);
        assert!((0..6).all(|_| !faults.strikes()));
    }

    #[test]
    fn a_faulty_backend_may_shrink() {
        let faults = Arc::new(Faults::default());
        let backend = Backend::faulty(Backend::ram(1 << 20), faults.clone());
        assert_eq!(backend.bytes(), 1 << 20);
        faults.bytes.store(4096, Ordering::Relaxed);
        assert_eq!(backend.bytes(), 4096);
    }
}
