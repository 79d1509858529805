//! Memory regions.
//!
//! # Why posting is safe
//!
//! A work request names memory by key and address, and the device may read or write that memory at
//! any time until the request completes; so may a peer that knows the key. Posting is nevertheless
//! a safe function, because safe code never holds a reference to such memory. An [`Mr`] gives
//! access to its bytes by copy only ([`Mr::read_at`], [`Mr::write_at`], relaxed atomic accesses). A
//! device that writes at the same time causes torn bytes, not undefined behaviour. The device
//! checks each address against the key, so it does not access memory outside the region. References
//! to the bytes are `unsafe` ([`Mr::slice`], [`Mr::slice_mut`], [`Mr::register_raw`]); the
//! contracts of these functions say what the caller must rule out.
//!
//! The memory outlives the registration. If deregistering fails (a window is still bound), memory
//! that the region owns or shares is leaked instead of unmapped.
#![expect(unsafe_code, reason = "memory that a device writes")]

use std::ffi::c_void;
use std::fmt;
use std::mem::ManuallyDrop;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use doorbell_sys as sys;
use memmap2::{MmapOptions, MmapRaw};

use crate::error::{Error, Result, check, memlock_hint};
use crate::pd::Pd;
use crate::wr::Sge;

bitflags::bitflags! {
    /// Access rights of an MR or a window; local reads are always allowed.
    ///
    /// # References
    /// ibv_reg_mr(3)
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
    pub struct Access: u32 {
        /// The local device may write (receives, results of RDMA reads and atomics).
        const LOCAL_WRITE = 1;
        /// Peers may write; needs `LOCAL_WRITE`.
        const REMOTE_WRITE = 1 << 1;
        /// Peers may read.
        const REMOTE_READ = 1 << 2;
        /// Peers may do atomics; needs `LOCAL_WRITE`.
        const REMOTE_ATOMIC = 1 << 3;
        /// Memory windows may be bound to it.
        const MW_BIND = 1 << 4;
        /// Zero-based addresses.
        const ZERO_BASED = 1 << 5;
        /// Pages are paged in on demand instead of being pinned.
        const ON_DEMAND = 1 << 6;
        /// The memory is in huge pages.
        const HUGETLB = 1 << 7;
        /// Relaxed ordering: writes may be reordered. Ignored by devices that do not support it.
        const RELAXED_ORDERING = 1 << 20;
    }
}

/// Anonymous memory of this process, initially zero, which regions and their owner can share
/// ([`Mr::register_mapping`]).
#[derive(Debug)]
pub struct Mapping(MmapRaw);

impl Mapping {
    /// Maps `len` bytes, in huge pages or not.
    ///
    /// # Errors
    /// `mmap` with ENOMEM when there is no such memory, EINVAL for a length of 0.
    pub fn new(len: usize, huge_pages: bool) -> Result<Self> {
        map(len, huge_pages).map(Self)
    }

    /// The first byte. The memory is readable and writable while the mapping exists.
    #[must_use]
    pub fn as_ptr(&self) -> *mut u8 {
        self.0.as_mut_ptr()
    }
}

/// A registered region of memory; cheap to clone, deregistered with its last clone.
#[derive(Clone)]
pub struct Mr {
    inner: Arc<MrInner>,
}

struct MrInner {
    raw: NonNull<sys::ibv_mr>,
    addr: *mut u8,
    len: usize,
    access: Access,
    /// The device's address of the first byte.
    iova: u64,
    /// Owned or shared memory; released only after the region is deregistered.
    memory: ManuallyDrop<Option<Arc<Mapping>>>,
    deregistered: bool,
    pd: Pd,
}

// SAFETY: the pointers are used for atomic copies and inside unsafe functions only; verbs on an MR
// are thread safe.
unsafe impl Send for MrInner {}
// SAFETY: as above.
unsafe impl Sync for MrInner {}

/// An MR that could not be deregistered, with the error: usually EBUSY or EINVAL, because a window
/// is bound to the MR.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct DeregisterError {
    /// The region, still registered.
    pub mr: Mr,
    /// The error of the verb.
    pub error: Error,
}

impl From<DeregisterError> for Error {
    fn from(failed: DeregisterError) -> Self {
        failed.error
    }
}

impl Mr {
    /// The memory, if the region has registered a [`Mapping`] or memory of its own.
    pub fn mapping(&self) -> Option<Arc<Mapping>> {
        (*self.inner.memory).clone()
    }

    /// Registers `len` bytes of new, zeroed memory that the region owns.
    ///
    /// With `huge_pages` the memory comes from the system's reserve of huge pages, and `len` is
    /// rounded up to whole ones underneath (not in [`Mr::len`]).
    ///
    /// # Errors
    /// `mmap` with ENOMEM when there are too few (huge) pages; otherwise as [`Mr::register_raw`].
    pub fn register_owned(pd: &Pd, len: usize, access: Access, huge_pages: bool) -> Result<Self> {
        check_arguments(len, access)?;
        let memory = Mapping::new(len, huge_pages)?;
        let addr = memory.as_ptr();
        Self::register(pd, addr, len, access, iova(addr, access), Some(Arc::new(memory)))
    }

    /// Registers a whole mapping, which the caller may share. For the device, the region begins at
    /// `iova`, the address that segments contain ([`Mr::sge`]).
    ///
    /// The region holds the mapping until it has been deregistered. If that fails, the mapping is
    /// leaked: it stays mapped for the life of the process, also when all other holders have
    /// dropped it.
    ///
    /// # Errors
    /// EINVAL if `iova` and the mapping have different offsets in their pages; otherwise as
    /// [`Mr::register_raw`].
    pub fn register_mapping(pd: &Pd, memory: Arc<Mapping>, access: Access, iova: u64) -> Result<Self> {
        let all = 0..memory.0.len();
        Self::register_part(pd, memory, all, access, iova)
    }

    /// Registers these bytes of a mapping, as [`Mr::register_mapping`] does all.
    ///
    /// # Errors
    /// As [`Mr::register_mapping`]; EINVAL if the bytes are not all inside the mapping.
    pub fn register_part(
        pd: &Pd,
        memory: Arc<Mapping>,
        part: Range<usize>,
        access: Access,
        iova: u64,
    ) -> Result<Self> {
        check_arguments(part.len(), access)?;
        if part.end > memory.0.len() {
            let text = format!("the bytes {part:?} are not inside a mapping of {}", memory.0.len());
            return Err(Error::invalid("ibv_reg_mr", text));
        }
        let addr = memory.as_ptr().wrapping_add(part.start);
        Self::register(pd, addr, part.len(), access, iova, Some(memory))
    }

    /// Registers memory that the caller owns.
    ///
    /// # Errors
    /// `ibv_reg_mr` with ENOMEM when the memory cannot be pinned (the text names the memlock
    /// limit), EFAULT when part of it is not mapped or not writable, EINVAL for a length of 0 or
    /// remote write access without local.
    ///
    /// # Safety
    /// - `addr..addr + len` is mapped, and stays mapped until the region has been deregistered (its
    ///   last clone dropped or [`Mr::deregister`] succeeded).
    /// - The device may write these bytes whenever a posted work request or a peer names the
    ///   region's keys: the caller holds no reference to them at such times that the writes would
    ///   conflict with.
    /// - [`Mr::read_at`] and [`Mr::write_at`] access them atomically at any time: the caller holds
    ///   no `&mut` to them while others use this handle, and nobody uses `write_at` if they are not
    ///   writable.
    ///
    /// # References
    /// ibv_reg_mr(3)
    pub unsafe fn register_raw(pd: &Pd, addr: *mut u8, len: usize, access: Access) -> Result<Self> {
        check_arguments(len, access)?;
        Self::register(pd, addr, len, access, iova(addr, access), None)
    }

    fn register(
        pd: &Pd,
        addr: *mut u8,
        len: usize,
        access: Access,
        iova: u64,
        memory: Option<Arc<Mapping>>,
    ) -> Result<Self> {
        // The device address says that the region is zero-based; rxe has no flag for it.
        let bits = (access - Access::ZERO_BASED).bits();
        // SAFETY: the PD is alive. The memory is mapped until after ibv_dereg_mr: either `memory`
        // holds it, and is dropped after that (see Drop), or the caller of register_raw promised
        // it. The kernel refuses what is not mapped.
        let raw = unsafe { sys::ibv_reg_mr_iova2(pd.raw(), addr.cast(), len, iova, bits) };
        let raw = NonNull::new(raw).ok_or_else(|| register_failed(len))?;
        let memory = ManuallyDrop::new(memory);
        let inner = MrInner { raw, addr, len, access, iova, memory, deregistered: false, pd: pd.clone() };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// The key for this device's own work requests.
    #[must_use]
    pub fn lkey(&self) -> u32 {
        // SAFETY: the region is alive; the key does not change.
        unsafe { (*self.raw()).lkey }
    }

    /// The key for peers.
    #[must_use]
    pub fn rkey(&self) -> u32 {
        // SAFETY: as in `lkey`.
        unsafe { (*self.raw()).rkey }
    }

    /// Address of the first byte.
    #[must_use]
    pub fn addr(&self) -> u64 {
        self.inner.addr.addr() as u64
    }

    /// The device's address of the first byte, which segments contain and peers use.
    #[must_use]
    pub fn iova(&self) -> u64 {
        self.inner.iova
    }

    /// Length in bytes, never 0.
    #[must_use]
    #[allow(clippy::len_without_is_empty, reason = "a region is never empty")]
    pub fn len(&self) -> usize {
        self.inner.len
    }

    /// Its access rights.
    #[must_use]
    pub fn access(&self) -> Access {
        self.inner.access
    }

    /// The PD of the region.
    #[must_use]
    pub fn pd(&self) -> &Pd {
        &self.inner.pd
    }

    /// The verbs object; valid while a clone of this MR lives.
    #[must_use]
    pub fn as_raw(&self) -> *mut c_void {
        self.raw().cast()
    }

    pub(crate) fn raw(&self) -> *mut sys::ibv_mr {
        self.inner.raw.as_ptr()
    }

    /// The segment of `len` bytes at `offset`.
    ///
    /// # Errors
    /// EINVAL if the segment does not lie inside the region.
    pub fn sge(&self, offset: usize, len: usize) -> Result<Sge> {
        self.check_range(offset, len)?;
        let len = u32::try_from(len).map_err(|_| {
            Error::invalid("ibv_sge", format!("a segment has at most {} bytes, not {len}", u32::MAX))
        })?;
        Ok(Sge { addr: self.inner.iova + offset as u64, len, lkey: self.lkey() })
    }

    /// Copies bytes at `offset` out of the region; torn if the device writes at the same time.
    ///
    /// # Errors
    /// EINVAL when the range does not lie inside the region.
    pub fn read_at(&self, offset: usize, into: &mut [u8]) -> Result<()> {
        self.check_range(offset, into.len())?;
        // SAFETY: inside the region, which is mapped as long as it lives.
        unsafe { copy_out(self.inner.addr.add(offset), into) };
        Ok(())
    }

    /// Copies `from` into the region at `offset`; torn if the device writes at the same time.
    ///
    /// # Errors
    /// EINVAL when the range does not lie inside the region.
    pub fn write_at(&self, offset: usize, from: &[u8]) -> Result<()> {
        self.check_range(offset, from.len())?;
        // SAFETY: inside the region, which is mapped as long as it lives; owned memory is writable,
        // and borrowed memory was promised to be where this is called.
        unsafe { copy_in(from, self.inner.addr.add(offset)) };
        Ok(())
    }

    /// The bytes of `range` as a slice.
    ///
    /// # Panics
    /// When the range does not lie inside the region.
    ///
    /// # Safety
    /// While the slice lives nothing writes these bytes: no posted work request and no peer with
    /// the rkey, no `write_at`, no `slice_mut`.
    #[must_use]
    pub unsafe fn slice(&self, range: Range<usize>) -> &[u8] {
        self.check_range(range.start, range.len()).expect("a range inside the region");
        // SAFETY: inside the region; the caller promised that nobody writes.
        unsafe { std::slice::from_raw_parts(self.inner.addr.add(range.start), range.len()) }
    }

    /// The bytes of `range` as a mutable slice.
    ///
    /// # Panics
    /// When the range does not lie inside the region.
    ///
    /// # Safety
    /// While the slice lives nothing else reads or writes these bytes: no posted work request and
    /// no peer with the rkey, no copy through this handle, no other slice.
    #[must_use]
    #[allow(
        clippy::mut_from_ref,
        reason = "exclusivity is the caller's promise; pools prove it by ownership of slots"
    )]
    pub unsafe fn slice_mut(&self, range: Range<usize>) -> &mut [u8] {
        self.check_range(range.start, range.len()).expect("a range inside the region");
        // SAFETY: inside the region; the caller promised exclusivity.
        unsafe { std::slice::from_raw_parts_mut(self.inner.addr.add(range.start), range.len()) }
    }

    /// Deregisters the region now.
    ///
    /// # Errors
    /// The error returns the region: EBUSY if it has other clones, otherwise `ibv_dereg_mr`'s errno
    /// (EINVAL or EBUSY while a memory window is bound to it).
    ///
    /// # References
    /// ibv_dereg_mr(3)
    pub fn deregister(self) -> Result<(), DeregisterError> {
        let mut inner = match Arc::try_unwrap(self.inner) {
            Ok(inner) => inner,
            Err(inner) => {
                let error = Error::new("ibv_dereg_mr", libc::EBUSY).with_detail("the MR has other clones");
                return Err(DeregisterError { mr: Mr { inner }, error });
            }
        };
        match inner.deregister() {
            Ok(()) => Ok(()),
            Err(error) => Err(DeregisterError { mr: Mr { inner: Arc::new(inner) }, error }),
        }
    }

    fn check_range(&self, offset: usize, len: usize) -> Result<()> {
        if offset.checked_add(len).is_some_and(|end| end <= self.inner.len) {
            return Ok(());
        }
        Err(Error::invalid(
            "ibv_mr",
            format!("{len} bytes at offset {offset} are not inside a region of {} bytes", self.inner.len),
        ))
    }
}

impl fmt::Debug for Mr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mr")
            .field("addr", &self.inner.addr)
            .field("len", &self.len())
            .field("lkey", &self.lkey())
            .field("rkey", &self.rkey())
            .field("access", &self.access())
            .finish()
    }
}

impl MrInner {
    fn deregister(&mut self) -> Result<()> {
        // SAFETY: registered and not yet deregistered: this runs from Drop, or from Mr::deregister
        // with the only handle, and success is remembered.
        check("ibv_dereg_mr", unsafe { sys::ibv_dereg_mr(self.raw.as_ptr()) })?;
        self.deregistered = true;
        Ok(())
    }
}

impl Drop for MrInner {
    fn drop(&mut self) {
        if !self.deregistered
            && let Err(error) = self.deregister()
        {
            // `memory` is a ManuallyDrop: it stays mapped whatever happens from here on.
            tracing::warn!(%error, len = self.len, "cannot deregister an MR; its memory is leaked");
            return;
        }
        // SAFETY: dropped once, here; the device has no access to the memory any more.
        unsafe { ManuallyDrop::drop(&mut self.memory) };
    }
}

/// The default device address of a region: its virtual address, or 0.
fn iova(addr: *mut u8, access: Access) -> u64 {
    if access.contains(Access::ZERO_BASED) { 0 } else { addr.addr() as u64 }
}

fn check_arguments(len: usize, access: Access) -> Result<()> {
    if len == 0 {
        return Err(Error::invalid("ibv_reg_mr", "a region has at least one byte"));
    }
    if access.intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC)
        && !access.contains(Access::LOCAL_WRITE)
    {
        return Err(Error::invalid("ibv_reg_mr", "remote write and atomic access need LOCAL_WRITE as well"));
    }
    Ok(())
}

fn register_failed(len: usize) -> Error {
    let error = Error::last("ibv_reg_mr");
    let detail = match error.errno() {
        libc::EFAULT => Some(format!(
            "some of the {len} bytes are not mapped, or not writable although the access asks for it"
        )),
        errno => memlock_hint(errno, Some(len)),
    };
    match detail {
        Some(detail) => error.with_detail(detail),
        None => error,
    }
}

fn map(len: usize, huge_pages: bool) -> Result<MmapRaw> {
    let failed = |error: std::io::Error| Error::new("mmap", error.raw_os_error().unwrap_or(libc::ENOMEM));
    if !huge_pages {
        return Ok(MmapOptions::new().len(len).map_anon().map_err(failed)?.into());
    }
    let page = huge_page_size().ok_or_else(|| Error::unsupported("mmap", "this kernel has no huge pages"))?;
    let pages = len.div_ceil(page);
    let mapped = MmapOptions::new().len(pages * page).huge(None).map_anon();
    let memory = mapped.map_err(|error| {
        failed(error).with_detail(format!(
            "there are not {pages} free huge pages of {} KiB; reserve them with \"sysctl vm.nr_hugepages=...\" or ask for \
             ordinary pages",
            page / 1024
        ))
    })?;
    Ok(memory.into())
}

/// Bytes of a default huge page.
fn huge_page_size() -> Option<usize> {
    parse_huge_page_size(&std::fs::read_to_string("/proc/meminfo").ok()?)
}

fn parse_huge_page_size(meminfo: &str) -> Option<usize> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("Hugepagesize:"))?;
    let kib: usize = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024).filter(|&size| size > 0)
}

const WORD: usize = size_of::<u64>();

/// Copies out of memory that others may write at the same time, by words where they are aligned.
///
/// # Safety
/// `from..from + into.len()` is readable.
unsafe fn copy_out(from: *mut u8, into: &mut [u8]) {
    let head = from.align_offset(WORD).min(into.len());
    let (bytes, rest) = into.split_at_mut(head);
    let mut at = from;
    let byte_wise = |bytes: &mut [u8], at: &mut *mut u8| {
        for byte in bytes {
            // SAFETY: inside the range; a byte is always aligned.
            *byte = unsafe { AtomicU8::from_ptr(*at) }.load(Ordering::Relaxed);
            // SAFETY: at most one past the range.
            *at = unsafe { at.add(1) };
        }
    };
    byte_wise(bytes, &mut at);
    let mut words = rest.chunks_exact_mut(WORD);
    for word in &mut words {
        // SAFETY: inside the range, and aligned since `head`.
        let value = unsafe { AtomicU64::from_ptr(at.cast()) }.load(Ordering::Relaxed);
        word.copy_from_slice(&value.to_ne_bytes());
        // SAFETY: at most one past the range.
        at = unsafe { at.add(WORD) };
    }
    byte_wise(words.into_remainder(), &mut at);
}

/// Copies to memory that others may access at the same time, by words where it is aligned.
///
/// # Safety
/// `into..into + from.len()` is writable.
unsafe fn copy_in(from: &[u8], into: *mut u8) {
    let head = into.align_offset(WORD).min(from.len());
    let (bytes, rest) = from.split_at(head);
    let mut at = into;
    let byte_wise = |bytes: &[u8], at: &mut *mut u8| {
        for &byte in bytes {
            // SAFETY: inside the range; a byte is always aligned.
            unsafe { AtomicU8::from_ptr(*at) }.store(byte, Ordering::Relaxed);
            // SAFETY: at most one past the range.
            *at = unsafe { at.add(1) };
        }
    };
    byte_wise(bytes, &mut at);
    let mut words = rest.chunks_exact(WORD);
    for word in &mut words {
        let value = u64::from_ne_bytes(word.try_into().expect("eight bytes"));
        // SAFETY: inside the range, and aligned since `head`.
        unsafe { AtomicU64::from_ptr(at.cast()) }.store(value, Ordering::Relaxed);
        // SAFETY: at most one past the range.
        at = unsafe { at.add(WORD) };
    }
    byte_wise(words.remainder(), &mut at);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_are_exact_at_every_alignment_and_length() {
        let source: Vec<u8> = (0..64).map(|i| i as u8 ^ 0x5a).collect();
        for start in 0..10 {
            for len in 0..40 {
                let mut memory = vec![0_u8; 64];
                let base = memory.as_mut_ptr();
                let mut back = vec![0; len];
                // SAFETY: start + len < 64, inside `memory`.
                unsafe {
                    copy_in(&source[..len], base.add(start));
                    copy_out(base.add(start), &mut back);
                }
                assert_eq!(back, source[..len]);
                assert_eq!(&memory[start..start + len], &source[..len]);
                assert!(
                    memory[..start].iter().chain(&memory[start + len..]).all(|&b| b == 0),
                    "nothing around it"
                );
            }
        }
    }

    #[test]
    fn remote_write_without_local_write_is_refused_with_the_reason() {
        for access in [Access::REMOTE_WRITE, Access::REMOTE_ATOMIC | Access::REMOTE_READ] {
            let error = check_arguments(1, access).unwrap_err();
            assert_eq!(error.errno(), libc::EINVAL);
            assert!(error.to_string().contains("LOCAL_WRITE"));
        }
        assert_eq!(check_arguments(1, Access::REMOTE_READ), Ok(()));
    }

    #[test]
    fn empty_region_is_refused() {
        assert_eq!(check_arguments(0, Access::LOCAL_WRITE).unwrap_err().errno(), libc::EINVAL);
    }

    #[test]
    fn huge_page_size_is_read_from_meminfo() {
        let text = "MemTotal:  100 kB\nHugepagesize:       2048 kB\nHugetlb: 0 kB\n";
        assert_eq!(parse_huge_page_size(text), Some(2 << 20));
        assert_eq!(parse_huge_page_size("MemTotal: 100 kB\n"), None);
    }

    #[test]
    fn missing_huge_pages_are_refused_with_advice() {
        let Err(error) = map(1 << 46, true) else { panic!("nobody has 64 TiB of huge pages") };
        assert!(error.to_string().starts_with("mmap: "), "{error}");
        assert!(error.detail().is_some_and(|d| d.contains("huge pages")), "{error}");
    }

    #[test]
    fn access_bits_are_those_of_the_headers() {
        type A = sys::ibv_access_flags;
        let pairs = [
            (Access::LOCAL_WRITE, A::IBV_ACCESS_LOCAL_WRITE),
            (Access::REMOTE_WRITE, A::IBV_ACCESS_REMOTE_WRITE),
            (Access::REMOTE_READ, A::IBV_ACCESS_REMOTE_READ),
            (Access::REMOTE_ATOMIC, A::IBV_ACCESS_REMOTE_ATOMIC),
            (Access::MW_BIND, A::IBV_ACCESS_MW_BIND),
            (Access::ZERO_BASED, A::IBV_ACCESS_ZERO_BASED),
            (Access::ON_DEMAND, A::IBV_ACCESS_ON_DEMAND),
            (Access::HUGETLB, A::IBV_ACCESS_HUGETLB),
            (Access::RELAXED_ORDERING, A::IBV_ACCESS_RELAXED_ORDERING),
        ];
        for (ours, theirs) in pairs {
            assert_eq!(ours.bits(), theirs.0);
        }
    }
}
