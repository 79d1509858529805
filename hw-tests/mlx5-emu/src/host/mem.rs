//! Memory of the program under test: command buffers, queues, doorbell records, registered regions.
//!
//! There are two kinds of access. *User copies* ([`copy_from_user`], [`copy_to_user`]) go through
//! the kernel and return EFAULT for addresses that are not mapped. Commands use them. *Queue
//! access* (`Area`) is direct. The device checks that the range is mapped when the program hands it
//! over, as the kernel driver pins it, and checks the bounds of every access.
#![expect(unsafe_code, reason = "raw access to queue memory and to user buffers")]

use std::io;
use std::os::fd::AsRawFd as _;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

use crate::host::complaints::{Kind, complain};
use crate::host::sys;

fn iovec(address: u64, len: usize) -> libc::iovec {
    libc::iovec { iov_base: std::ptr::with_exposed_provenance_mut(address as usize), iov_len: len }
}

/// Reads `out.len()` bytes at `address` of this process.
///
/// # Errors
/// EFAULT when any of it is not mapped readable.
pub(crate) fn copy_from_user(address: u64, out: &mut [u8]) -> io::Result<()> {
    if out.is_empty() {
        return Ok(());
    }
    let local = libc::iovec { iov_base: out.as_mut_ptr().cast(), iov_len: out.len() };
    let remote = iovec(address, out.len());
    // SAFETY: `local` describes `out`; the kernel checks the remote side.
    let n = unsafe { libc::process_vm_readv(libc::getpid(), &raw const local, 1, &raw const remote, 1, 0) };
    if usize::try_from(n) == Ok(out.len()) {
        return Ok(());
    }
    if !is_refused() {
        return Err(sys::errno(libc::EFAULT));
    }
    // SAFETY: `local` describes `out`; the kernel checks the remote side.
    unsafe { copy_by_pipe(remote.iov_base, local.iov_base, out.len()) }
}

/// Writes `data` at `address` of this process.
///
/// # Errors
/// EFAULT when any of it is not mapped writable.
pub(crate) fn copy_to_user(address: u64, data: &[u8]) -> io::Result<()> {
    if data.is_empty() {
        return Ok(());
    }
    let local = libc::iovec { iov_base: data.as_ptr().cast_mut().cast(), iov_len: data.len() };
    let remote = iovec(address, data.len());
    // SAFETY: `local` describes `data`, which process_vm_writev only reads; the kernel checks the
    // remote side.
    let n = unsafe { libc::process_vm_writev(libc::getpid(), &raw const local, 1, &raw const remote, 1, 0) };
    if usize::try_from(n) == Ok(data.len()) {
        return Ok(());
    }
    if !is_refused() {
        return Err(sys::errno(libc::EFAULT));
    }
    // SAFETY: `local` describes `data`, which is only read; the kernel checks the remote side.
    unsafe { copy_by_pipe(local.iov_base, remote.iov_base, data.len()) }
}

/// Whether the last call failed because this system has no process_vm_readv(2), as in qemu-user and
/// some sandboxes.
fn is_refused() -> bool {
    matches!(io::Error::last_os_error().raw_os_error(), Some(libc::ENOSYS | libc::EPERM))
}

/// Copies memory through a pipe: the kernel checks both sides, and there is no other call.
///
/// # Safety
///
/// Nobody else uses the memory at `to`, as far as it is this program's own.
unsafe fn copy_by_pipe(from: *const libc::c_void, to: *mut libc::c_void, len: usize) -> io::Result<()> {
    let fault = || sys::errno(libc::EFAULT);
    let (reader, writer) = sys::pipe()?;
    let mut done = 0;
    while done < len {
        let piece = (len - done).min(PAGE as usize);
        // SAFETY: the kernel checks the memory on both sides. A piece fits into an empty pipe.
        let copied = unsafe {
            let wrote = sys::write(writer.as_raw_fd(), from.wrapping_byte_add(done), piece);
            if wrote <= 0 {
                wrote
            } else {
                libc::read(reader.as_raw_fd(), to.wrapping_byte_add(done), wrote as usize)
            }
        };
        done += usize::try_from(copied).ok().filter(|copied| *copied > 0).ok_or_else(fault)?;
    }
    Ok(())
}

const PAGE: u64 = 4096;

/// Faults in a range of pages for reading or for writing, as pinning does. The contents do not
/// change.
fn populate(first: u64, pages: usize, writable: bool) -> io::Result<()> {
    const MADV_POPULATE_READ: i32 = 22;
    const MADV_POPULATE_WRITE: i32 = 23;
    let advice = if writable { MADV_POPULATE_WRITE } else { MADV_POPULATE_READ };
    let base = std::ptr::with_exposed_provenance_mut::<libc::c_void>(first as usize);
    // SAFETY: populating changes no contents; the kernel checks the range.
    if unsafe { libc::madvise(base, pages * PAGE as usize, advice) } == 0 {
        return Ok(());
    }
    Err(io::Error::last_os_error())
}

/// True when the kernel can populate (Linux 5.14). The first call tries it.
pub(crate) fn can_populate() -> bool {
    static KNOWN: std::sync::OnceLock<bool> = std::sync::OnceLock::new();
    *KNOWN.get_or_init(|| {
        let own = Box::new([0u8; 2 * PAGE as usize]);
        let inside = (own.as_ptr().expose_provenance() as u64 + PAGE - 1) & !(PAGE - 1);
        populate(inside, 1, true).is_ok()
    })
}

/// Checks that every page of the range is mapped, and writable when `writable`.
///
/// # Errors
/// EFAULT otherwise, EINVAL when the range wraps.
pub(crate) fn check_range(address: u64, len: u64, writable: bool) -> io::Result<()> {
    if len == 0 {
        return Ok(());
    }
    let end = address.checked_add(len).ok_or_else(|| sys::errno(libc::EINVAL))?;
    let first = address & !(PAGE - 1);
    let pages = usize::try_from((end - first).div_ceil(PAGE)).map_err(|_| sys::errno(libc::EINVAL))?;
    if can_populate() {
        return populate(first, pages, writable).map_err(|_| sys::errno(libc::EFAULT));
    }
    // On an older kernel, read one byte of each page, many pages per call. This proves at least
    // that the pages are mapped.
    let mut bytes = [0u8; 512];
    let mut done = 0;
    while done < pages {
        let batch = (pages - done).min(bytes.len());
        let mut remote = [iovec(0, 0); 512];
        for (i, slot) in remote.iter_mut().take(batch).enumerate() {
            let page = first + (done + i) as u64 * PAGE;
            *slot = iovec(page.max(address), 1);
        }
        let local = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: batch };
        // SAFETY: `local` describes `bytes`; the kernel checks the remote side.
        let n = unsafe {
            libc::process_vm_readv(libc::getpid(), &raw const local, 1, remote.as_ptr(), batch as u64, 0)
        };
        if usize::try_from(n) != Ok(batch) {
            if !is_refused() {
                return Err(sys::errno(libc::EFAULT));
            }
            for page in &remote[..batch] {
                copy_from_user(page.iov_base.expose_provenance() as u64, &mut [0])?;
            }
        }
        done += batch;
    }
    Ok(())
}

/// A range of program memory that the device may touch: a queue, a doorbell record, a UAR page.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Area {
    base: *mut u8,
    len: usize,
}

// SAFETY: an Area is an address range of shared memory. Every access is a volatile or atomic
// operation, or a copy of payload that the program handed over.
unsafe impl Send for Area {}
// SAFETY: as above.
unsafe impl Sync for Area {}

impl Area {
    /// Takes a queue or record at `address` after checking that it is mapped writable.
    ///
    /// # Errors
    /// EFAULT when it is not mapped, EINVAL when it is misaligned to `align` or wraps.
    pub(crate) fn checked(address: u64, len: usize, align: u64) -> io::Result<Self> {
        if address == 0 || !address.is_multiple_of(align) {
            return Err(sys::errno(libc::EINVAL));
        }
        check_range(address, len as u64, true)?;
        Ok(Self { base: std::ptr::with_exposed_provenance_mut(address as usize), len })
    }

    /// Bytes in the area.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    #[inline(always)]
    fn at(&self, offset: usize, size: usize) -> *mut u8 {
        assert!(offset <= self.len && self.len - offset >= size, "queue access out of bounds");
        // SAFETY: just checked to stay inside the area.
        unsafe { self.base.add(offset) }
    }

    /// Big-endian 32-bit word; a relaxed atomic load.
    #[inline(always)]
    pub(crate) fn be32(&self, offset: usize) -> u32 {
        let at = self.at(offset, 4);
        debug_assert!(at.cast::<u32>().is_aligned());
        // SAFETY: in bounds and mapped (checked at creation). Aligned, because the areas and all
        // offsets used are multiples of 4. The program writes such words only with plain stores,
        // and on real hardware the device's load may race with these stores too.
        u32::from_be(unsafe { AtomicU32::from_ptr(at.cast()) }.load(Ordering::Relaxed))
    }

    /// As [`Area::be32`], with acquire ordering: later reads are not done before this load.
    #[inline(always)]
    pub(crate) fn be32_acquire(&self, offset: usize) -> u32 {
        let at = self.at(offset, 4);
        // SAFETY: as in `be32`.
        u32::from_be(unsafe { AtomicU32::from_ptr(at.cast()) }.load(Ordering::Acquire))
    }

    /// Stores a big-endian 32-bit word.
    #[inline(always)]
    pub(crate) fn set_be32(&self, offset: usize, value: u32) {
        let at = self.at(offset, 4);
        // SAFETY: as in `be32`.
        unsafe { AtomicU32::from_ptr(at.cast()) }.store(value.to_be(), Ordering::Relaxed);
    }

    /// Big-endian 64-bit word.
    #[inline(always)]
    pub(crate) fn be64(&self, offset: usize) -> u64 {
        let at = self.at(offset, 8);
        // SAFETY: in bounds; unaligned is allowed by read_unaligned.
        u64::from_be(unsafe { at.cast::<u64>().read_unaligned() })
    }

    /// Big-endian 16-bit word.
    #[inline(always)]
    pub(crate) fn be16(&self, offset: usize) -> u16 {
        let at = self.at(offset, 2);
        // SAFETY: in bounds; volatile since the program may write it at any time.
        u16::from_be(unsafe { at.cast::<u16>().read_volatile() })
    }

    /// Reads `N` bytes.
    #[inline(always)]
    pub(crate) fn bytes<const N: usize>(&self, offset: usize) -> [u8; N] {
        let at = self.at(offset, N);
        // SAFETY: in bounds; a byte array has no alignment.
        unsafe { at.cast::<[u8; N]>().read() }
    }

    /// Copies into the area.
    #[inline(always)]
    pub(crate) fn write(&self, offset: usize, data: &[u8]) {
        let at = self.at(offset, data.len());
        // SAFETY: destination in bounds; `data` is a Rust buffer that can't overlap program queues.
        unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), at, data.len()) };
    }

    /// Stores one byte after everything stored before: the ownership byte of a CQE.
    #[inline(always)]
    pub(crate) fn publish_byte(&self, offset: usize, value: u8) {
        let at = self.at(offset, 1);
        std::sync::atomic::fence(Ordering::Release);
        // SAFETY: in bounds.
        unsafe { AtomicU8::from_ptr(at) }.store(value, Ordering::Release);
    }

    /// Loads a native 64-bit word atomically (a UAR register).
    #[inline(always)]
    pub(crate) fn load64(&self, offset: usize) -> u64 {
        let at = self.at(offset, 8);
        // SAFETY: in bounds; 8-byte aligned, because UAR pages are page aligned and register
        // offsets are multiples of 8.
        unsafe { AtomicU64::from_ptr(at.cast()) }.load(Ordering::Acquire)
    }

    /// Changes a native 64-bit word atomically, unless `change` returns `None`.
    pub(crate) fn update64(&self, offset: usize, change: impl FnMut(u64) -> Option<u64>) {
        let at = self.at(offset, 8);
        // SAFETY: in bounds; the offsets used are multiples of 8 in a mapping of pages.
        let word = unsafe { AtomicU64::from_ptr(at.cast()) };
        let _ = word.fetch_update(Ordering::AcqRel, Ordering::Acquire, change);
    }

    /// Takes a native 64-bit word, leaving zero.
    #[inline(always)]
    pub(crate) fn take64(&self, offset: usize) -> u64 {
        let at = self.at(offset, 8);
        // SAFETY: as in `load64`.
        unsafe { AtomicU64::from_ptr(at.cast()) }.swap(0, Ordering::AcqRel)
    }

    /// Address of the first byte, for messages.
    pub(crate) fn address(&self) -> u64 {
        self.base.expose_provenance() as u64
    }
}

/// Whether copies of payload go through the kernel: 0 no, 1 yes, 2 not decided.
static CHECKED: AtomicU8 = AtomicU8::new(2);

/// Sends every copy of payload through the kernel. An access to memory that was registered and
/// later unmapped then becomes a complaint instead of a crash. This is slow: it takes a system call
/// per piece. `MLX5_EMU_CHECKED=1` has the same effect.
pub fn set_checked(checked: bool) {
    CHECKED.store(u8::from(checked), Ordering::Relaxed);
}

#[inline(always)]
fn checked() -> bool {
    match CHECKED.load(Ordering::Relaxed) {
        0 => false,
        1 => true,
        _ => decide(),
    }
}

#[cold]
fn decide() -> bool {
    let checked = std::env::var("MLX5_EMU_CHECKED").is_ok_and(|value| value == "1");
    set_checked(checked);
    checked
}

#[cold]
fn unmapped(address: u64, len: usize) {
    complain(
        Kind::UnmappedMemory,
        format!("{len} bytes at {address:#x} are registered but not mapped any more; nothing was copied"),
    );
}

/// Copies `len` bytes between two ranges of program memory that passed the checks of their regions.
///
/// The engine has already checked key, bounds and access of both ranges. As with a real device, the
/// program must keep the memory mapped.
#[inline(always)]
pub(crate) fn copy(from: u64, to: u64, len: usize) {
    if checked() {
        let mut bytes = vec![0; len];
        read_region(from, &mut bytes);
        write_region(to, &bytes);
        return;
    }
    let from = std::ptr::with_exposed_provenance::<u8>(from as usize);
    let to = std::ptr::with_exposed_provenance_mut::<u8>(to as usize);
    // SAFETY: both ranges lie in live registered regions. Registration checked that these regions
    // are mapped with the access used here.
    unsafe { copy_last_byte_last(from, to, len) };
}

/// Copies `len` bytes and writes the last byte after all others. Programs poll on the last byte,
/// because cards place data in order.
///
/// # Safety
/// `from` is readable and `to` writable for `len` bytes; they may overlap.
#[inline(always)]
unsafe fn copy_last_byte_last(from: *const u8, to: *mut u8, len: usize) {
    let Some(body) = len.checked_sub(1) else { return };
    // SAFETY: in bounds, as the caller promises. The last byte is read before an overlapping copy
    // can change it.
    unsafe {
        let last = from.add(body).read();
        std::ptr::copy(from, to, body);
        AtomicU8::from_ptr(to.add(body)).store(last, Ordering::Release);
    }
}

/// Copies out of a registered region; see [`copy`].
#[inline(always)]
pub(crate) fn read_region(from: u64, out: &mut [u8]) {
    if checked() {
        if copy_from_user(from, out).is_err() {
            unmapped(from, out.len());
        }
        return;
    }
    let from = std::ptr::with_exposed_provenance::<u8>(from as usize);
    // SAFETY: as in `copy`; `out` is a Rust buffer outside registered regions.
    unsafe { std::ptr::copy(from, out.as_mut_ptr(), out.len()) };
}

/// Copies into a registered region; see [`copy`].
#[inline(always)]
pub(crate) fn write_region(to: u64, data: &[u8]) {
    if checked() {
        if copy_to_user(to, data).is_err() {
            unmapped(to, data.len());
        }
        return;
    }
    let to = std::ptr::with_exposed_provenance_mut::<u8>(to as usize);
    // SAFETY: as in `copy`; `data` is a Rust buffer outside registered regions.
    unsafe { copy_last_byte_last(data.as_ptr(), to, data.len()) };
}

/// Applies `change` to the aligned 64-bit word at `address` atomically and returns the old value.
#[inline]
pub(crate) fn atomic_update(address: u64, change: impl Fn(u64) -> Option<u64>) -> u64 {
    let at = std::ptr::with_exposed_provenance_mut::<u64>(address as usize);
    debug_assert!(at.is_aligned());
    // SAFETY: inside a registered region with remote atomic access; aligned (the responder checks).
    let word = unsafe { AtomicU64::from_ptr(at) };
    match word.fetch_update(Ordering::AcqRel, Ordering::Acquire, change) {
        Ok(old) | Err(old) => old,
    }
}

/// Brings memory in that is registered on demand; false when it is not mapped.
#[cold]
pub(crate) fn fault_in(address: u64, len: u64, writable: bool) -> bool {
    check_range(address, len, writable).is_ok()
}

/// The key of null regions. Writes with this key are dropped, reads return zero.
pub(crate) const NULL_KEY: u32 = 0x1ff;

/// Returns an address that stands for `len` bytes of a null region. `len` is at most the length of
/// a message. `None` when there is no memory.
///
/// Reads use pages of zeros that take no memory. Writes go to two megabytes that are mapped
/// repeatedly.
#[cold]
pub(crate) fn null_region(len: u32, writable: bool) -> Option<u64> {
    const SPAN: usize = 1 << 30;
    const SINK: usize = 2 << 20;
    static ZEROS: OnceLock<Option<u64>> = OnceLock::new();
    static SINKS: OnceLock<Option<u64>> = OnceLock::new();
    if len as usize > SPAN {
        return None;
    }
    let reserve = || {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a new mapping anywhere; nothing existing is replaced.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), SPAN, libc::PROT_READ, flags, -1, 0) };
        (at != libc::MAP_FAILED).then(|| at.expose_provenance() as u64)
    };
    if !writable {
        return *ZEROS.get_or_init(reserve);
    }
    *SINKS.get_or_init(|| {
        let (start, memory) = (reserve()?, sys::memfd(c"mlx5-emu-null", SINK as u64).ok()?);
        for at in (0..SPAN).step_by(SINK) {
            let at = std::ptr::with_exposed_provenance_mut(start as usize + at);
            let (protection, flags) =
                (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_FIXED);
            // SAFETY: replaces a part of the mapping just made, which nobody else knows.
            let piece = unsafe { libc::mmap(at, SINK, protection, flags, memory.as_raw_fd(), 0) };
            if piece == libc::MAP_FAILED {
                return None;
            }
        }
        Some(start)
    })
}

/// Maps `len` bytes of a descriptor from offset 0, shared. The mapping lives until [`unmap`].
///
/// # Errors
/// The errors of mmap(2).
pub(crate) fn map_shared(fd: i32, len: usize) -> io::Result<Area> {
    // SAFETY: a new mapping anywhere; nothing existing is replaced.
    let base = unsafe {
        libc::mmap(std::ptr::null_mut(), len, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED, fd, 0)
    };
    if base == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    base.expose_provenance();
    Ok(Area { base: base.cast(), len })
}

/// Undoes [`map_shared`].
///
/// The area must come from [`map_shared`] and must not be used afterwards. The callers own their
/// UAR mapping exclusively.
pub(crate) fn unmap(area: Area) {
    // SAFETY: by the contract above this mapping is ours and unused from here on.
    unsafe { libc::munmap(area.base.cast(), area.len) };
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The way without process_vm_readv(2): whole pages and more, and memory that is not mapped.
    #[test]
    fn memory_is_copied_by_a_pipe() {
        let from: Vec<u8> = (0..10_000u32).map(|n| (n % 251) as u8).collect();
        let mut to = vec![0u8; from.len()];
        let nowhere = std::ptr::without_provenance_mut::<libc::c_void>(PAGE as usize / 2);
        // SAFETY: `to` has that many bytes of its own; the kernel refuses the other addresses.
        unsafe {
            copy_by_pipe(from.as_ptr().cast(), to.as_mut_ptr().cast(), from.len()).unwrap();
            assert_eq!(from, to);
            for (from, to) in [(nowhere, to.as_mut_ptr().cast()), (from.as_ptr().cast_mut().cast(), nowhere)]
            {
                let refused = copy_by_pipe(from, to, 8).unwrap_err();
                assert_eq!(refused.raw_os_error(), Some(libc::EFAULT));
            }
        }
    }
}
