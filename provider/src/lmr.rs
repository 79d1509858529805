//! LMRs: registered memory.
//!
//! An LMR context names an entry of the device's LMR table, in which posts look up their segments.
//! The RMR context is the device's rkey, because it is sent to peers that may run another provider.
//!
//! Programs access memory that an LMR owns by copying only ([`Lmr::read`], [`Lmr::write`]). Posting
//! such memory is therefore safe: no reference to it can exist while a device writes. Memory that
//! the caller owns is registered by an `unsafe` constructor, whose contract covers every later
//! post.
//!
//! The memory of a pool ([`PoolMemory`]) is lent out as slices. No LMR context names it, so no
//! triplet does, and only the pool can post it. SOUNDNESS.md has the whole argument.

mod builder;

pub use builder::LmrBuilder;

use crate::device::{Class, Device, Member, RkeyTarget};
use crate::error::{Direction, PostError};
use crate::memory::headroom;
use crate::pz::PzInner;
use crate::sync::{Mutex, rank};
use crate::types::{LmrTriplet, MemPriv, RmrTriplet, VaType};
use crate::{Error, IaCounter, Refused, Result, Subtype};
use rxe_fallback::mr::Mapping;
use rxe_fallback::{Access, Mr, Sge};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// Registered memory (`DAT_LMR_HANDLE`). Dropping it frees it.
#[derive(Debug)]
pub struct Lmr {
    #[doc(hidden)]
    pub inner: Arc<LmrInner>,
}

/// The object behind an [`Lmr`].
#[derive(Debug)]
pub struct LmrInner {
    pub(crate) device: Arc<Device>,
    pub(crate) pz: Arc<PzInner>,
    mr: Mutex<{ rank::TABLE }, Option<Mr>>,
    live: AtomicBool,
    addr: u64,
    len: usize,
    pub(crate) context: u32,
    rkey: u32,
    pub(crate) privileges: MemPriv,
    pub(crate) va_type: VaType,
    /// The number of RMRs that are bound to the LMR.
    pub(crate) windows: AtomicU32,
}

impl Lmr {
    /// Registers a region; `list` adds the region to the LMR table and returns its context.
    fn register(
        pz: &Arc<PzInner>,
        len: usize,
        privileges: MemPriv,
        va_type: VaType,
        register: impl FnOnce(&PzInner) -> Result<Mr, rxe_fallback::Error>,
        list: impl FnOnce(&Mr) -> Result<u32>,
    ) -> Result<Self> {
        let device = &pz.device;
        device.check()?;
        pz.check(device)?;
        headroom()?;
        if len == 0 || len as u64 > device.attr.max_lmr_size {
            let most = device.attr.max_lmr_size;
            return Err(Error::arg(4, format!("an LMR has 1 to {most} bytes, not {len}")));
        }
        if MemPriv::from_bits(privileges.bits()).is_none() {
            return Err(Error::arg(6, format!("unknown privilege bits in {:#x}", privileges.bits())));
        }
        let mr = register(pz).map_err(|e| match e.errno() {
            libc::EFAULT => Error::arg(3, "the memory cannot be registered with these privileges").because(e),
            _ => Error::verb(Subtype::ResourceMemoryRegion, e),
        })?;
        let context = list(&mr)?;
        let inner = Arc::new(LmrInner {
            device: device.clone(),
            pz: pz.clone(),
            live: AtomicBool::new(true),
            addr: if va_type == VaType::ZeroBased { mr.addr() } else { mr.iova() },
            len,
            context,
            rkey: mr.rkey(),
            privileges,
            va_type,
            windows: AtomicU32::new(0),
            mr: Mutex::new(Some(mr)),
        });
        pz.enter();
        // From here on, dropping this value undoes everything.
        let made = Self { inner };
        let inner = &made.inner;
        if privileges.intersects(MemPriv::REMOTE_READ | MemPriv::REMOTE_WRITE | MemPriv::REMOTE_ATOMIC) {
            device.rkeys.insert(inner.rkey, RkeyTarget::Lmr(context))?;
        }
        device.register(Class::Lmr, context.into(), inner, &[IaCounter::LmrCreate])?;
        Ok(made)
    }

    /// The LMR context, which names the LMR in segments.
    pub fn context(&self) -> u32 {
        self.inner.context
    }

    /// The RMR context, which a peer needs for RDMA: the device's rkey.
    pub fn rmr_context(&self) -> u32 {
        self.inner.rkey
    }

    /// The address of the first byte.
    pub fn address(&self) -> u64 {
        self.inner.addr
    }

    /// The length in bytes.
    pub fn len(&self) -> usize {
        self.inner.len
    }

    /// Always false: an LMR has at least one byte.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Whether the addresses of its segments are virtual or zero-based.
    pub fn va_type(&self) -> VaType {
        self.inner.va_type
    }

    /// The memory privileges.
    pub fn privileges(&self) -> MemPriv {
        self.inner.privileges
    }

    /// The triplet for `len` bytes from `offset` on. The bounds are checked when the triplet is
    /// posted.
    ///
    /// # Panics
    /// If `len` is over 4 GiB - 1, the most that a segment has, or if there is no such address.
    #[track_caller]
    pub fn triplet(&self, offset: usize, len: usize) -> LmrTriplet {
        let address = self.inner.base().checked_add(offset as u64);
        LmrTriplet {
            virtual_address: address.expect("an offset is below 2^64 - the address of the LMR"),
            segment_length: u32::try_from(len).expect("a segment has at most 2^32 - 1 bytes"),
            lmr_context: self.inner.context,
        }
    }

    /// What a peer needs to read or write `len` bytes from `offset` on by RDMA: send it in private
    /// data or in a message. This side's device checks bounds and privileges of each access.
    ///
    /// # Panics
    /// As [`Lmr::triplet`]. Memory of 4 GiB and more goes to the peer in several parts.
    #[track_caller]
    pub fn remote(&self, offset: usize, len: usize) -> RmrTriplet {
        let LmrTriplet { virtual_address, segment_length, .. } = self.triplet(offset, len);
        RmrTriplet { virtual_address, segment_length, rmr_context: self.rmr_context() }
    }

    /// Copies bytes out, from `offset` on.
    ///
    /// # Errors
    /// INVALID_PARAMETER if the bytes are not all inside the LMR. INVALID_HANDLE after an abrupt
    /// close of the IA.
    pub fn read(&self, offset: usize, to: &mut [u8]) -> Result<()> {
        self.inner.with(|mr| mr.read_at(offset, to))
    }

    /// Copies bytes in, from `offset` on. Each aligned group of 8 bytes is written by one store.
    ///
    /// A peer that reads the bytes by RDMA meanwhile can get some old and some new ones, and those of
    /// the second of two writes without those of the first: give records a checksum.
    ///
    /// # Errors
    /// As [`Lmr::read`].
    pub fn write(&self, offset: usize, from: &[u8]) -> Result<()> {
        self.inner.with(|mr| mr.write_at(offset, from))
    }

    /// Frees the LMR. Buffers of the LMR that are posted stay posted, and complete with a
    /// protection error if a message arrives in one (R30, R270).
    ///
    /// # Errors
    /// INVALID_STATE (LMR_IN_USE) while an RMR is bound to the LMR. INVALID_HANDLE after an abrupt
    /// close of the IA. The error returns the LMR.
    ///
    /// # References
    /// dat_lmr_free(3DAT).
    pub fn close(self) -> Result<(), Refused<Self>> {
        match self.inner.free() {
            Ok(()) => Ok(()),
            Err(error) => Err(Refused { object: self, error }),
        }
    }
}

impl Drop for Lmr {
    fn drop(&mut self) {
        self.inner.close();
    }
}

/// The registered memory of a pool. A pool gives the program slices of this memory, so no device
/// may write them at that time. Therefore only the pool can post the memory:
///
/// * No LMR context names it, so [`LmrTable::check`](crate::device::LmrTable::check) never finds
///   it, and no program can bind an RMR to it.
/// * Its region has neither remote privileges nor memory windows, so peers cannot use its keys. The
///   region of one buffer ([`PoolMemory::for_window`]) can have a window, which only
///   [`WindowBuf`](crate::WindowBuf) binds.
/// * Its device addresses are never used again ([`device_addresses`]). A work request that outlives
///   its memory names a key that the device may reuse, but addresses that no other memory gets.
/// * It stays mapped until it is deregistered; if that fails, for ever ([`Mr::register_mapping`]).
#[derive(Debug)]
pub(crate) struct PoolMemory {
    /// The number of its entry in the LMR table. No context has this number.
    lmr: Lmr,
    lkey: u32,
    /// The device's address of the first byte.
    first: u64,
}

impl PoolMemory {
    /// Registers the first `len` bytes of this mapping, which are all that anybody uses.
    pub(crate) fn register(pz: &Arc<PzInner>, memory: &Arc<Mapping>, len: usize) -> Result<Self> {
        Self::of_bytes(pz, memory, 0..len, Access::empty())
    }

    /// Registers these bytes of the memory once more: for windows, which peers use.
    pub(crate) fn for_window(&self, memory: &Arc<Mapping>, bytes: Range<usize>) -> Result<Self> {
        Self::of_bytes(self.pz(), memory, bytes, Access::MW_BIND)
    }

    /// The PZ.
    pub(crate) fn pz(&self) -> &Arc<PzInner> {
        &self.lmr.inner.pz
    }

    fn of_bytes(pz: &Arc<PzInner>, memory: &Arc<Mapping>, bytes: Range<usize>, more: Access) -> Result<Self> {
        let privileges = MemPriv::LOCAL_READ | MemPriv::LOCAL_WRITE;
        let device = &pz.device;
        let len = bytes.len();
        let start = memory.as_ptr().wrapping_add(bytes.start).addr() as u64;
        // siw expects virtual addresses, whatever the registration says. It reuses a key only after
        // 2^24 others.
        let first = match device.context.driver() {
            "siw" => start,
            _ => device_addresses(start, len as u64).ok_or_else(|| {
                let text = "all device addresses for pools are used up: restart the process";
                Error::resources(Subtype::ResourceMemoryRegion, text)
            })?,
        };
        let access = access_of(privileges) | more;
        let mut lkey = 0;
        let lmr = Lmr::register(
            pz,
            len,
            privileges,
            VaType::Virtual,
            |pz| Mr::register_part(&pz.pd, memory.clone(), bytes, access, first),
            |mr| {
                lkey = mr.lkey();
                device.lmrs.insert_pool_memory(pz.number)
            },
        )?;
        Ok(Self { lmr, lkey, first })
    }

    /// The LMR, which no program gets.
    pub(crate) fn lmr(&self) -> &Lmr {
        &self.lmr
    }

    /// The segment of these bytes, which lie inside, for a queue of this PZ. `n` is the number of
    /// the segment in the post.
    #[inline]
    pub(crate) fn segment(
        &self,
        n: u32,
        (offset, len): (usize, usize),
        pz: &Arc<PzInner>,
        direction: Direction,
    ) -> Result<Sge, PostError> {
        let inner = &self.lmr.inner;
        // The keys of another IA are not valid on this device.
        if !inner.is_live() || !Arc::ptr_eq(&inner.device, &pz.device) {
            return Err(PostError::NoSuchLmr(n, direction));
        }
        if !Arc::ptr_eq(&inner.pz, pz) {
            return Err(PostError::ProtectionZone(n, direction));
        }
        self.part((offset, len)).ok_or(PostError::OutOfBounds(n))
    }

    /// As [`PoolMemory::segment`], for a queue for which that was called before. `None` if the
    /// memory was freed since, or the bytes do not lie inside.
    #[inline(always)]
    pub(crate) fn live_segment(&self, bytes: (usize, usize)) -> Option<Sge> {
        self.lmr.inner.is_live().then(|| self.part(bytes))?
    }

    /// The segment of these bytes, if they lie inside.
    #[inline(always)]
    fn part(&self, (offset, len): (usize, usize)) -> Option<Sge> {
        offset.checked_add(len).filter(|end| *end <= self.lmr.inner.len)?;
        Some(Sge { addr: self.first + offset as u64, len: u32::try_from(len).ok()?, lkey: self.lkey })
    }

    /// The number of its entry, for [`LmrTable::are_live`](crate::device::LmrTable::are_live).
    pub(crate) fn number(&self) -> u32 {
        self.lmr.inner.context
    }

    /// The device with which the memory is registered.
    #[inline]
    pub(crate) fn device(&self) -> &Device {
        &self.lmr.inner.device
    }
}

/// Device addresses for `len` bytes of memory at `start`. This process never uses them for other
/// memory. `None` once all are used up. They are outside of the addresses that a process can map
/// and of those of zero-based regions. Their offset in a huge page is that of the memory, so that a
/// device may map huge pages.
fn device_addresses(start: u64, len: u64) -> Option<u64> {
    const HUGE_PAGE: u64 = 2 << 20;
    const END: u64 = 1 << 63;
    static NEXT: AtomicU64 = AtomicU64::new(1 << 62);
    let in_page = start % HUGE_PAGE;
    let room = in_page.checked_add(len)?.checked_next_multiple_of(HUGE_PAGE)?;
    let end_of = |next: u64| next.checked_add(room).filter(|end| *end <= END);
    let next = NEXT.fetch_update(Ordering::Relaxed, Ordering::Relaxed, end_of).ok()?;
    Some(next + in_page)
}

impl Member for LmrInner {
    fn ia_closed(self: Arc<Self>) {
        self.close();
    }
}

impl crate::fork::Inherit for LmrInner {
    fn disown(&self) {
        self.live.store(false, Ordering::Release);
    }
}

impl LmrInner {
    fn with(&self, f: impl FnOnce(&Mr) -> Result<(), rxe_fallback::Error>) -> Result<()> {
        self.device.check_inherited(Subtype::InvalidHandleLmr, "LMR")?;
        let mr = self.mr.lock().unwrap();
        let mr = mr.as_ref().ok_or_else(|| Error::handle(Subtype::InvalidHandleLmr, "LMR"))?;
        f(mr).map_err(|e| Error::arg(1, "the bytes are not all inside the LMR").because(e))
    }

    #[inline]
    pub(crate) fn is_live(&self) -> bool {
        self.live.load(Ordering::Acquire)
    }

    /// The verbs region.
    pub(crate) fn mr(&self) -> Result<Mr> {
        let mr = self.mr.lock().unwrap();
        mr.clone().ok_or_else(|| Error::handle(Subtype::InvalidHandleLmr, "LMR"))
    }

    /// Whether a segment of this LMR is within its bounds.
    pub(crate) fn covers(&self, segment: &LmrTriplet) -> bool {
        let end = u128::from(segment.virtual_address) + u128::from(segment.segment_length);
        segment.virtual_address >= self.base() && end <= u128::from(self.base()) + self.len as u128
    }

    /// The address of the first byte in segments.
    fn base(&self) -> u64 {
        if self.va_type == VaType::ZeroBased { 0 } else { self.addr }
    }

    /// Frees the LMR, unless the provider or the device knows an RMR that is bound to it.
    fn free(&self) -> Result<()> {
        let in_use = || {
            let text =
                "an RMR is bound to this LMR: first free the RMR, or bind it to another LMR or to nothing";
            Error::state(Subtype::InvalidStateLmrInUse, text)
        };
        self.device.check_inherited(Subtype::InvalidHandleLmr, "LMR")?;
        if self.windows.load(Ordering::Acquire) > 0 {
            return Err(in_use());
        }
        self.device.finish_sends();
        let mut mr = self.mr.lock().unwrap();
        if let Some(region) = mr.take()
            && let Err(failed) = region.deregister()
        {
            *mr = Some(failed.mr);
            return Err(in_use().because(failed.error));
        }
        drop(mr);
        if self.close() { Ok(()) } else { Err(Error::handle(Subtype::InvalidHandleLmr, "LMR")) }
    }

    /// Closes the LMR. Returns false if it was closed before.
    pub(crate) fn close(&self) -> bool {
        if !self.live.swap(false, Ordering::AcqRel) {
            return false;
        }
        self.device.rkeys.remove_lmr(self.rkey, self.context);
        self.device.lmrs.remove(self.context);
        self.device.registry.remove(Class::Lmr, self.context.into());
        *self.mr.lock().unwrap() = None;
        self.pz.leave();
        true
    }
}

/// Whether all of these addresses are mapped as shared, according to /proc/self/maps (proc(5)). Its
/// lines are in the order of addresses, such as `7f5a1000-7f5a3000 rw-s 00000000 00:01 5
/// /dev/shm/x`.
fn is_shared(maps: &str, mut start: u64, end: u64) -> bool {
    for line in maps.lines() {
        let mut fields = line.split_whitespace();
        let range = fields.next().and_then(|range| range.split_once('-'));
        let Some((from, to)) = range else { continue };
        let hex = |text| u64::from_str_radix(text, 16).unwrap_or(0);
        let shared = fields.next().is_some_and(|rights| rights.ends_with('s'));
        if shared && (hex(from)..hex(to)).contains(&start) {
            start = hex(to);
        }
        if start >= end {
            return true;
        }
    }
    false
}

/// The verbs access flags for these privileges. Verbs devices always allow local reads, and require
/// local write for remote write. The LMR table keeps the privileges as given, so R59 still holds.
fn access_of(privileges: MemPriv) -> Access {
    let mut access = Access::empty();
    access.set(
        Access::LOCAL_WRITE,
        privileges.intersects(MemPriv::LOCAL_WRITE | MemPriv::REMOTE_WRITE | MemPriv::REMOTE_ATOMIC),
    );
    access.set(Access::REMOTE_READ, privileges.contains(MemPriv::REMOTE_READ));
    access.set(Access::REMOTE_WRITE, privileges.contains(MemPriv::REMOTE_WRITE));
    access.set(Access::REMOTE_ATOMIC, privileges.contains(MemPriv::REMOTE_ATOMIC));
    access
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_addresses_of_pools_are_used_once() {
        let mut before = 1 << 62;
        for (start, len) in [(0x7f00_0000_1000, 4096), (0x7f00_0000_1000, 4096), (0x1000, 5 << 20), (0, 1)] {
            let first = device_addresses(start, len).unwrap();
            assert!(first >= before, "{first:#x} after {before:#x}");
            assert_eq!(first % (2 << 20), start % (2 << 20));
            // None are wasted, except in the last page of the memory and in the first.
            assert!(before == 1 << 62 || first < before + (4 << 20), "{first:#x} after {before:#x}");
            before = first + len;
        }
        assert_eq!(device_addresses(0, 1 << 63), None);
        assert_eq!(device_addresses(4096, u64::MAX - 4096), None);
        let last = device_addresses(0, 1).unwrap();
        assert!(last >= before);
        // Up to the last one, and no further.
        let (next, end) = (last + (2 << 20), 1 << 63);
        assert_eq!(device_addresses(0, end - next + 1), None);
        assert_eq!(device_addresses(0, end - next), Some(next));
        assert_eq!(device_addresses(0, 1), None);
    }

    #[test]
    fn memory_is_shared_only_if_all_of_it_is() {
        let maps = "1000-2000 rw-p 00000000 00:00 0\n2000-3000 rw-s 00000000 00:01 5 /dev/shm/a\n\
                    3000-5000 r--s 00000000 00:01 6 /dev/shm/b\n6000-7000 rw-s 00000000 00:01 7 /SYSV00\n";
        for (start, end, shared) in [
            (0x2000, 0x3000, true),
            (0x2800, 0x4800, true),
            (0x2000, 0x5000, true),
            (0x1fff, 0x2001, false),
            (0x4000, 0x5001, false),
            (0x6000, 0x7000, true),
            (0x7000, 0x7001, false),
        ] {
            assert_eq!(is_shared(maps, start, end), shared, "{start:#x} to {end:#x}");
        }
    }
}
