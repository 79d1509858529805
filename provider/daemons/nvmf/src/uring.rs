//! Files and block devices by io_uring, and the memory that both the device and io_uring use. The
//! only module of this crate with `unsafe`.
//!
//! `Region` is memory that is never unmapped: neither a device nor the kernel can write to memory
//! that has become something else, however connections, rings and devices end. The process makes
//! one region for each engine. Programs access it by copying only, so no reference to it exists
//! that a device or the kernel could invalidate.
#![expect(unsafe_code, reason = "io_uring and registered memory take addresses")]

use doorbell::{Error, Ia, Lmr, LmrTriplet, MemPriv, Pz};
use io_uring::{IoUring, cqueue, opcode, squeue, types};
use nix::sys::eventfd::{EfdFlags, EventFd};
use std::alloc::{Layout, alloc_zeroed};
use std::fs::{File, OpenOptions};
use std::io::{self, Seek, SeekFrom};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Registered memory that stays for the life of the process.
#[derive(Debug)]
pub(crate) struct Region {
    lmr: Lmr,
    start: *mut u8,
    len: usize,
}

// SAFETY: the pointer is only passed to the kernel, as a number; the memory belongs to no thread.
unsafe impl Send for Region {}
// SAFETY: as above: `&Region` gives no access to bytes but by `Lmr`, which is `Sync`.
unsafe impl Sync for Region {}

impl Region {
    /// Registers `len` bytes of new memory, which are zero.
    pub(crate) fn new(ia: &Ia, pz: &Pz, len: usize) -> doorbell::Result<Arc<Self>> {
        let layout = Layout::from_size_align(len.max(1), 4096).expect("fewer than 2^63 bytes");
        // SAFETY: the layout has at least one byte.
        let start = unsafe { alloc_zeroed(layout) };
        if start.is_null() {
            std::alloc::handle_alloc_error(layout);
        }
        let privileges = MemPriv::LOCAL_READ | MemPriv::LOCAL_WRITE;
        // SAFETY: mapped for ever, because the memory is never freed. No reference to it is ever
        // made: this module uses its address only, and `Lmr` copies. No earlier LMR has covered
        // these addresses with a post that has not completed: an earlier owner of the addresses
        // would have freed them, and regions are never freed.
        let lmr = unsafe { Lmr::builder(ia, pz).privileges(privileges).over(start, layout.size())? };
        Ok(Arc::new(Self { lmr, start, len: layout.size() }))
    }

    pub(crate) fn triplet(&self, offset: usize, len: usize) -> LmrTriplet {
        self.lmr.triplet(offset, len)
    }

    pub(crate) fn read(&self, offset: usize, to: &mut [u8]) -> Result<(), Error> {
        self.lmr.read(offset, to)
    }

    pub(crate) fn write(&self, offset: usize, from: &[u8]) -> Result<(), Error> {
        self.lmr.write(offset, from)
    }

    /// The address of these bytes, if they lie inside.
    fn address(&self, offset: usize, len: usize) -> Option<*mut u8> {
        let end = offset.checked_add(len)?;
        // SAFETY: in bounds, as compared.
        (end <= self.len).then(|| unsafe { self.start.add(offset) })
    }
}

/// A file or block device.
#[derive(Debug)]
pub struct FileDisk {
    file: File,
    path: PathBuf,
    is_device: bool,
    /// The file system cannot zero a range, but punch holes.
    punches: AtomicBool,
}

impl FileDisk {
    /// Opens a file or block device, around the page cache if that is possible.
    ///
    /// # Errors
    /// Those of open(2); the path is that of something else.
    pub fn open(path: &Path) -> io::Result<Self> {
        let open = |flags| OpenOptions::new().read(true).write(true).custom_flags(flags).open(path);
        let direct = nix::fcntl::OFlag::O_DIRECT.bits();
        let file = match open(direct) {
            Err(error) if error.raw_os_error() == Some(nix::errno::Errno::EINVAL as i32) => {
                tracing::info!(path = %path.display(), "this file system has no O_DIRECT: using the page cache");
                open(0)?
            }
            other => other?,
        };
        let kind = file.metadata()?.file_type();
        if !kind.is_file() && !kind.is_block_device() {
            return Err(io::Error::other("neither a file nor a block device"));
        }
        let is_device = kind.is_block_device();
        Ok(Self { file, path: path.into(), is_device, punches: AtomicBool::new(false) })
    }

    /// The size in bytes; 0 if it cannot be read.
    pub fn bytes(&self) -> u64 {
        let bytes = match self.is_device {
            true => (&self.file).seek(SeekFrom::End(0)),
            false => self.file.metadata().map(|metadata| metadata.len()),
        };
        bytes.unwrap_or_else(|error| {
            tracing::error!(path = %self.path.display(), %error, "no size");
            0
        })
    }

    /// The path.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// An operation on a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FileOp {
    /// Into memory from this offset on.
    Read { to: usize },
    /// From memory from this offset on; stable at its completion if `stable`.
    Write { from: usize, stable: bool },
    /// Makes all completed writes stable.
    Flush,
    /// Zeroes a range.
    Zero,
    /// Deallocates a range.
    Deallocate,
}

/// How many operations are under way at a time.
const ENTRIES: u32 = 1024;

/// fallocate(2): FALLOC_FL_KEEP_SIZE.
const KEEP_SIZE: i32 = 1;
/// fallocate(2): FALLOC_FL_PUNCH_HOLE.
const PUNCH_HOLE: i32 = 2;
/// fallocate(2): FALLOC_FL_ZERO_RANGE.
const ZERO_RANGE: i32 = 16;
/// pwritev2(2): RWF_DSYNC.
const DSYNC: i32 = 2;

/// A ring of one thread.
pub(crate) struct Ring {
    ring: IoUring,
    memory: Arc<Region>,
    /// The memory is registered with the ring as well.
    registered: bool,
    event: EventFd,
    /// Operations that have not completed.
    in_flight: usize,
    /// The files of operations that the kernel has not seen yet.
    pending: Vec<Arc<FileDisk>>,
}

/// The ring has no place: try again after a completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Full;

impl Ring {
    /// A ring that transfers from and to this memory.
    ///
    /// # Errors
    /// Those of io_uring_setup(2) and io_uring_register(2).
    pub(crate) fn new(memory: &Arc<Region>) -> io::Result<Self> {
        let ring = IoUring::new(ENTRIES)?;
        let event = EventFd::from_flags(EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC)?;
        ring.submitter().register_eventfd(event.as_raw_fd())?;
        let vector = libc_iovec(memory.start, memory.len);
        // SAFETY: the memory stays mapped for ever.
        let registered = unsafe { ring.submitter().register_buffers(&[vector]) };
        if let Err(error) = &registered {
            tracing::info!(%error, "io_uring pins the memory of each operation");
        }
        let registered = registered.is_ok();
        Ok(Self { ring, memory: memory.clone(), registered, event, in_flight: 0, pending: Vec::new() })
    }

    /// Readable when an operation may have completed.
    pub(crate) fn event(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }

    /// Adds an operation on `length` bytes of a file from this offset on. [`Ring::submit`] starts
    /// it.
    ///
    /// # Errors
    /// [`Full`].
    ///
    /// # Panics
    /// The operation's memory does not lie inside of the region.
    pub(crate) fn push(
        &mut self,
        file: &Arc<FileDisk>,
        op: FileOp,
        (offset, length): (u64, u32),
        token: u64,
    ) -> Result<(), Full> {
        if self.in_flight >= ENTRIES as usize {
            return Err(Full);
        }
        let fd = types::Fd(file.file.as_raw_fd());
        let address = |at| self.memory.address(at, length as usize).expect("inside of the region");
        let allocate = |mode| opcode::Fallocate::new(fd, length.into()).offset(offset).mode(mode).build();
        let entry: squeue::Entry = match op {
            FileOp::Read { to } if self.registered => {
                opcode::ReadFixed::new(fd, address(to), length, 0).offset(offset).build()
            }
            FileOp::Read { to } => opcode::Read::new(fd, address(to), length).offset(offset).build(),
            FileOp::Write { from, stable } => {
                let flags = if stable { DSYNC } else { 0 };
                let from = address(from).cast_const();
                match self.registered {
                    true => {
                        opcode::WriteFixed::new(fd, from, length, 0).offset(offset).rw_flags(flags).build()
                    }
                    false => opcode::Write::new(fd, from, length).offset(offset).rw_flags(flags).build(),
                }
            }
            FileOp::Flush => opcode::Fsync::new(fd).flags(types::FsyncFlags::DATASYNC).build(),
            FileOp::Zero if file.punches.load(Ordering::Relaxed) => allocate(PUNCH_HOLE | KEEP_SIZE),
            FileOp::Zero => allocate(ZERO_RANGE | KEEP_SIZE),
            FileOp::Deallocate => allocate(PUNCH_HOLE | KEEP_SIZE),
        };
        // SAFETY: the memory of the operation lies in the region, which is mapped for ever; no
        // other memory is passed. The descriptor stays open until the kernel has taken the entry,
        // because `pending` holds its file; from then on the kernel holds it.
        unsafe { self.ring.submission().push(&entry.user_data(token)) }.map_err(|_| Full)?;
        self.pending.push(file.clone());
        self.in_flight += 1;
        Ok(())
    }

    /// Starts what was pushed.
    ///
    /// # Errors
    /// Those of io_uring_enter(2), but for those that say "try again".
    pub(crate) fn submit(&mut self) -> io::Result<()> {
        if self.pending.is_empty() {
            return Ok(());
        }
        match self.ring.submit() {
            // What is left goes with the next call.
            Ok(taken) if taken < self.pending.len() => {
                self.pending.drain(..taken);
                Ok(())
            }
            Ok(_) => {
                self.pending.clear();
                Ok(())
            }
            Err(error) if matches!(error.kind(), io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock) => {
                Ok(())
            }
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Takes the operations that have completed: their tokens and results, a number of bytes or an
    /// error number less than 0.
    pub(crate) fn completed(&mut self, into: &mut Vec<(u64, i32)>) {
        if self.in_flight == 0 {
            return;
        }
        let before = into.len();
        into.extend(self.ring.completion().map(|entry: cqueue::Entry| (entry.user_data(), entry.result())));
        self.in_flight -= into.len() - before;
    }

    /// Makes [`Ring::event`] unreadable until the next completion.
    pub(crate) fn clear_event(&self) {
        // Nothing to read: it was not readable.
        let _ = self.event.read();
    }
}

/// The registration of this memory.
fn libc_iovec(start: *mut u8, len: usize) -> nix::libc::iovec {
    nix::libc::iovec { iov_base: start.cast(), iov_len: len }
}

impl FileDisk {
    /// Notes that the file system cannot zero ranges. Returns whether that is new.
    pub(crate) fn cannot_zero(&self) -> bool {
        !self.punches.swap(true, Ordering::Relaxed)
    }
}
