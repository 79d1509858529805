//! The CQ's entries: the device writes them, software reads them after the ownership test.

use core::{
    cell::Cell,
    marker::PhantomData,
    mem::{offset_of, transmute},
    ops::Deref,
    ptr::NonNull,
};

use volatile::{VolatilePtr, access::ReadOnly};

use crate::{
    barrier,
    be::Be32,
    cqe::{self, RawCqe},
    memory::Keep,
};

/// The CQ's ring of entries. Software writes entries only when it removes those of a QP
/// ([`Cq::clean`](crate::Cq::clean)), and when it continues in another buffer.
///
/// In this order, so that what a poll needs is in 40 bytes: see [`Cq`](crate::Cq).
#[derive(Debug)]
#[repr(C)]
pub(crate) struct CqeMem {
    /// The fields of the next entry to poll.
    next: Cell<*const u8>,
    /// The fields of the entry at `stop_index`: a whole number of entries behind `next`, and not
    /// beyond the end of the queue.
    stop: *const u8,
    /// `next` after the last [`start_at`](Self::start_at).
    start: *const u8,
    pub(super) cqe_bytes: u32,
    /// log2 of `cqe_bytes`.
    shift: u32,
    stop_index: u32,
    pub(super) mask: u32,
    /// The fields of entry 0: its last 64 bytes.
    pub(super) fields: NonNull<u8>,
    _keep: Keep,
}

// SAFETY: plain memory without thread affinity; writes need `&mut self`.
unsafe impl Send for CqeMem {}

impl CqeMem {
    /// # Safety
    ///
    /// `fields` are the last 64 bytes of entry 0. While the value lives, the `cqe_count` entries of
    /// `cqe_bytes` bytes are valid for reads and writes. The count is a power of two.
    pub(super) unsafe fn new(fields: NonNull<u8>, cqe_count: u32, cqe_bytes: u32, keep: Keep) -> Self {
        let first = fields.as_ptr().cast_const();
        Self {
            fields,
            mask: cqe_count - 1,
            cqe_bytes,
            shift: cqe_bytes.ilog2(),
            next: Cell::new(first),
            start: first,
            stop: first,
            stop_index: 0,
            _keep: keep,
        }
    }

    /// The number of the next entry to poll.
    #[inline(always)]
    pub(crate) fn index(&self) -> u32 {
        let ahead = self.stop.addr().wrapping_sub(self.next.get().addr());
        self.stop_index.wrapping_sub((ahead >> self.shift) as u32)
    }

    /// Continues with entry `index`, up to entry `stop_index`, or to the end of the queue if that
    /// is before.
    pub(crate) fn start_at(&mut self, index: u32, stop_index: u32) {
        let room = self.mask + 1 - (index & self.mask);
        let len = stop_index.wrapping_sub(index).min(room);
        self.start = self.entry(index).fields;
        self.next.set(self.start);
        // The address may be behind the last entry.
        self.stop = self.start.wrapping_add(len as usize * self.cqe_bytes as usize);
        self.stop_index = index.wrapping_add(len);
    }

    /// Whether entries were passed since the last [`start_at`](Self::start_at).
    #[inline(always)]
    pub(crate) fn has_moved(&self) -> bool {
        self.next.get() != self.start
    }

    /// The next entry, without an ownership test; `None` if the stop is reached.
    #[inline(always)]
    pub(crate) fn next(&self) -> Option<CqeRef<'_>> {
        let fields = self.next.get();
        (fields < self.stop).then_some(CqeRef { fields, _mem: PhantomData })
    }

    /// The next `n` entries, not beyond the stop, without an ownership test; each with the entry
    /// behind it.
    #[inline(always)]
    pub(crate) fn entries(&self, n: u32) -> impl Iterator<Item = (CqeRef<'_>, Behind)> {
        let (first, bytes) = (self.next.get(), self.cqe_bytes as usize);
        let room = self.stop.addr().saturating_sub(first.addr()) >> self.shift;
        // The addition wraps, since the address behind the last entry is computed as well.
        (0..n.min(room as u32)).scan(first, move |at, _| {
            let cqe = CqeRef { fields: *at, _mem: PhantomData };
            *at = at.wrapping_add(bytes);
            Some((cqe, Behind(*at)))
        })
    }

    /// Goes to the entry behind this one.
    #[inline(always)]
    pub(crate) fn pass(&self, entry: CqeRef<'_>) {
        self.pass_to(Behind(entry.fields.wrapping_add(self.cqe_bytes as usize)));
    }

    /// Goes to this entry.
    #[inline(always)]
    pub(crate) fn pass_to(&self, behind: Behind) {
        self.next.set(behind.0);
    }

    pub(crate) fn mask(&self) -> u32 {
        self.mask
    }

    /// Bytes of an entry.
    pub(crate) fn bytes(&self) -> u32 {
        self.cqe_bytes
    }

    /// The value of the owner bit that marks an entry as software's on this lap.
    #[inline(always)]
    pub(crate) fn lap(&self, consumer_index: u32) -> u8 {
        u8::from(consumer_index & (self.mask + 1) != 0)
    }

    /// The entry at `consumer_index` and its `op_own`, if the device has handed the entry over on
    /// this lap. Contains the ownership test and the load barrier.
    #[inline(always)]
    pub(crate) fn ready(&self, consumer_index: u32, lap: u8) -> Option<(CqeRef<'_>, u8)> {
        let cqe = self.entry(consumer_index);
        let op_own = cqe.op_own();
        if !self.is_ready(op_own, lap) {
            return None;
        }
        barrier::from_device();
        Some((cqe, op_own))
    }

    /// The ownership test: whether an entry with this `op_own` was handed over on this lap.
    #[inline(always)]
    pub(crate) fn is_ready(&self, op_own: u8, lap: u8) -> bool {
        (op_own ^ lap) & 1 == 0 && op_own < 0xf0
    }

    /// The entry at `index`, without an ownership test.
    #[inline(always)]
    pub(crate) fn entry(&self, index: u32) -> CqeRef<'_> {
        let at = (index & self.mask) as usize * self.cqe_bytes as usize;
        // SAFETY: in bounds because the masked index is below the entry count, and each entry has
        // its fields at the same offset.
        CqeRef { fields: unsafe { self.fields.as_ptr().add(at) }, _mem: PhantomData }
    }

    /// Copies entry `from` over entry `to`. The owner bit of `to` does not change, because the bit
    /// depends on the place. Both entries belong to software.
    pub(crate) fn copy_entry(&mut self, from: u32, to: u32) {
        let owner = self.entry(to).op_own() & 1;
        let source = self.entry(from).fields;
        // SAFETY: an entry of this queue, which belongs to software.
        unsafe { self.write_entry(source, to, owner) };
    }

    /// Copies entry `from` of another ring, with entries of the same size, into entry `to`, which
    /// then belongs to software.
    ///
    /// # Panics
    ///
    /// The entries have different sizes.
    pub(crate) fn copy_entry_of(&mut self, other: &Self, from: u32, to: u32) {
        assert_eq!(self.cqe_bytes, other.cqe_bytes, "entries of two sizes");
        // SAFETY: an entry of the other ring, which has the same size and belongs to software by
        // the caller's test.
        unsafe { self.write_entry(other.entry(from).fields, to, self.lap(to)) };
    }

    /// # Safety
    ///
    /// `fields` are those of an entry of this size that belongs to software. Entry `to` belongs to
    /// software, too.
    unsafe fn write_entry(&mut self, fields: *const u8, to: u32, owner: u8) {
        let first = |fields: *const u8| fields.wrapping_sub(self.cqe_bytes as usize - 64);
        let (source, target) = (first(fields), first(self.entry(to).fields).cast_mut());
        // SAFETY: whole entries, 64-byte aligned and valid for reads and writes. They belong to
        // software, so the device does not access them. The last byte is inside the second entry.
        unsafe {
            source.cast::<u64>().copy_to(target.cast(), self.cqe_bytes as usize / 8);
            let op_own = NonNull::new_unchecked(target.add(self.cqe_bytes as usize - 1));
            VolatilePtr::new(op_own).update(|op_own| op_own & !1 | owner);
        }
    }

    /// Copies payload that the device scattered into the entry at `index`: its first 32 bytes, or
    /// the 64 bytes before the fields of a 128-byte entry if `wide`. Returns the bytes copied; 0 if
    /// `wide` is set for a 64-byte entry.
    pub(crate) fn copy_scattered(&self, index: u32, wide: bool, out: &mut [u8]) -> usize {
        let fields = self.entry(index).fields;
        let (from, room) = match (wide, self.cqe_bytes) {
            (false, _) => (fields, 32),
            (true, 128) => (fields.wrapping_sub(64), 64),
            (true, _) => return 0,
        };
        let len = out.len().min(room);
        let mut bytes = [0; MOST_SCATTERED];
        // SAFETY: `room` bytes from `from` on are inside the entry in each of the cases above.
        unsafe { bytes.as_mut_ptr().copy_from(from, room) };
        out[..len].copy_from_slice(&bytes[..len]);
        len
    }
}

/// The address of the entry behind an entry of the queue, or behind the last one.
#[derive(Clone, Copy)]
pub(crate) struct Behind(*const u8);

/// A completion queue entry in place.
#[derive(Clone, Copy)]
pub(crate) struct CqeRef<'a> {
    fields: *const u8,
    _mem: PhantomData<&'a CqeMem>,
}

impl CqeRef<'_> {
    /// The entry's `op_own` if the entry belongs to software and is a finished receive, else `Err`
    /// with the `op_own`. One table look-up tests owner, opcode and format. Contains the load
    /// barrier.
    #[inline(always)]
    pub(crate) fn receive(&self, lap: u8) -> Result<u8, u8> {
        let op_own = self.op_own();
        if !cqe::is_plain_receive(op_own ^ lap) {
            return Err(op_own);
        }
        barrier::from_device();
        Ok(op_own)
    }

    /// Fields that the device may change.
    ///
    /// # Safety
    ///
    /// `T` at this offset is inside the 64 bytes of the fields, aligned, and made of integers.
    #[inline(always)]
    unsafe fn shared<T>(&self, offset: usize) -> VolatilePtr<'_, T, ReadOnly> {
        // SAFETY: the fields are inside an entry, and so not null; valid by contract.
        unsafe {
            let fields = NonNull::new_unchecked(self.fields.cast_mut());
            VolatilePtr::new_read_only(fields).map(|fields| fields.add(offset).cast())
        }
    }

    /// The first 32 bytes of the fields, where a short payload is.
    #[inline(always)]
    pub(crate) fn first_bytes(&self) -> [u8; 32] {
        // SAFETY: the first half of the 64 bytes that `entry` checked.
        unsafe { self.fields.cast::<[u8; 32]>().read() }
    }

    /// The byte of the ownership test, which the device may change.
    #[inline(always)]
    pub(crate) fn op_own(&self) -> u8 {
        // SAFETY: the last of the 64 bytes.
        unsafe { self.shared(offset_of!(RawCqe, op_own)) }.read()
    }

    /// A copy of the fields.
    #[inline(always)]
    pub(crate) fn raw(&self) -> RawCqe {
        **self
    }

    /// The counter of an entry whose `op_own` is exactly this. One read gets both, so no barrier is
    /// needed between the test and the counter. Other fields need one, which is contained.
    #[inline(always)]
    pub(crate) fn counter_if(&self, op_own: u8) -> Option<u16> {
        // SAFETY: the last four of the 64 bytes.
        let last = unsafe { self.shared::<Be32>(offset_of!(RawCqe, wqe_counter)) }.read().get();
        if last as u8 != op_own {
            return None;
        }
        barrier::from_device();
        Some((last >> 16) as u16)
    }
}

/// The fields as software reads them once the entry belongs to it: from the ownership test on until
/// the entry is released.
impl Deref for CqeRef<'_> {
    type Target = RawCqe;

    #[inline(always)]
    fn deref(&self) -> &RawCqe {
        // SAFETY: the 64 bytes that `entry` checked, which are 64-byte aligned; each bit pattern is
        // a value of the struct. The device does not write them while the entry belongs to
        // software.
        unsafe { &*self.fields.cast::<RawCqe>() }
    }
}

impl RawCqe {
    /// Builds an entry, as a device would write it, from its 64 bytes.
    pub fn from_bytes(bytes: &[u8; 64]) -> Self {
        // SAFETY: both types have 64 bytes. The fields are integers, without padding.
        unsafe { transmute::<[u8; 64], Self>(*bytes) }
    }

    /// The 64 bytes of the entry, as the device wrote them.
    pub fn to_bytes(&self) -> [u8; 64] {
        // SAFETY: as above.
        unsafe { transmute::<Self, [u8; 64]>(*self) }
    }
}

/// Maximum number of bytes that an entry holds in addition to its fields.
pub(crate) const MOST_SCATTERED: usize = 64;
