//! A QP's queues after their checks: the send queue with its register, and the receive queue.

use std::sync::Arc;

use super::{RqMem, SqMem, aligned};
use crate::{
    doorbell::CounterDbRec,
    doorbell::{BLUEFLAME_BYTES, SendRegister},
    error::LayoutError,
    memory::{HeapMem, HeapView, Keep},
    wqe::{
        MAX_WQE_COUNT, SEGMENT_BYTES,
        send::{BLOCK_BYTES, MAX_BLOCKS},
    },
};

/// The capacities that a send queue was made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SqCaps {
    /// Requests that may be posted and not completed at a time.
    pub max_requests: u32,
    /// Data segments per request that verbs promise.
    pub max_segments: u32,
    /// Inline bytes per request that verbs promise.
    pub max_inline: u32,
    /// Every request writes a completion entry (`sq_sig_all`).
    pub signal_all: bool,
}

/// How a QP names the peer of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// RC and UC: the QP has one peer.
    Connected,
    /// UD: each request has an address.
    Datagram,
    /// XRC: each request has the SRQ number.
    Xrc,
}

/// A checked send queue: ring, doorbell record and register, nothing posted yet. Not `Clone`: there
/// is one poster.
#[derive(Debug)]
pub struct SqLayout {
    pub(crate) ring: SqMem,
    pub(crate) dbrec: CounterDbRec,
    pub(crate) register: SendRegister,
    pub(crate) qpn: u32,
    pub(crate) caps: SqCaps,
    pub(crate) transport: Transport,
}

/// The description of a send queue for [`SqLayout::from_raw_parts`].
#[derive(Clone, Copy, Debug)]
pub struct SqParts {
    /// Block 0.
    pub buf: *mut u8,
    /// The send word of the doorbell record (the second of a QP's).
    pub dbrec: *mut u32,
    /// Blocks of 64 bytes, a power of two.
    pub block_count: u32,
    /// The register's first half.
    pub register: *mut u8,
    /// Bytes of one half: 256, or 0 for a register that takes doorbells only.
    pub register_bytes: u32,
    /// Whether BlueFlame may be used if the register has it.
    pub blueflame: bool,
    /// QP number.
    pub qpn: u32,
    /// The capacities of the queue.
    pub caps: SqCaps,
    /// How requests name their peers.
    pub transport: Transport,
}

impl SqLayout {
    /// Checks a send queue that is described by raw parts.
    ///
    /// # Errors
    ///
    /// A [`LayoutError`] if a size or a pointer is not valid for the device, or something was
    /// posted already.
    ///
    /// # Safety
    ///
    /// As long as the layout, or an [`Sq`](crate::Sq) made from it, lives, `buf` is valid for reads
    /// and writes of `block_count` blocks, `dbrec` for those of one word, and `register` for stores
    /// to two halves (or of 8 bytes). Nobody else writes to ring and record meanwhile, and only
    /// values of this crate ring the register.
    pub unsafe fn from_raw_parts(parts: SqParts) -> Result<Self, LayoutError> {
        // SAFETY: passed on to the caller.
        unsafe { Self::checked(parts, None) }
    }

    /// A send queue on the heap with room for `max_requests` WQEs of `block_count / max_requests`
    /// blocks, for tests, measurements and software devices. The second value is the device's view.
    ///
    /// # Errors
    ///
    /// A [`LayoutError`] if a device does not support a size.
    pub fn on_heap(block_count: u32, max_requests: u32) -> Result<(Self, HeapView), LayoutError> {
        let caps = SqCaps { max_requests, max_segments: 4, max_inline: 44, signal_all: false };
        Self::on_heap_with(block_count, BLUEFLAME_BYTES, caps)
    }

    /// As [`on_heap`](Self::on_heap), with a choice of all other parameters.
    ///
    /// # Errors
    ///
    /// As [`on_heap`](Self::on_heap).
    pub fn on_heap_with(
        block_count: u32,
        register_bytes: u32,
        caps: SqCaps,
    ) -> Result<(Self, HeapView), LayoutError> {
        check_blocks(block_count, &caps)?;
        let ring_bytes = block_count as usize * BLOCK_BYTES;
        let mem = Arc::new(HeapMem::new(ring_bytes)?);
        let parts = SqParts {
            buf: mem.ring(),
            dbrec: mem.record(),
            block_count,
            register: mem.registers(),
            register_bytes,
            blueflame: true,
            qpn: 0x42,
            caps,
            transport: Transport::Connected,
        };
        // SAFETY: all three are inside `mem`, which the layout keeps alive; see
        // `SrqLayout::on_heap`.
        let layout = unsafe { Self::checked(parts, Some(Arc::clone(&mem))) }?;
        Ok((layout, HeapView(mem)))
    }

    unsafe fn checked(parts: SqParts, keep: Keep) -> Result<Self, LayoutError> {
        check_blocks(parts.block_count, &parts.caps)?;
        if !matches!(parts.register_bytes, 0 | BLUEFLAME_BYTES) {
            return Err(LayoutError::RegisterBytes { register_bytes: parts.register_bytes });
        }
        let base = aligned(parts.buf, BLOCK_BYTES, "send queue buffer")?;
        let word = aligned(parts.dbrec, 4, "send doorbell record")?;
        let register_align = (2 * parts.register_bytes as usize).max(8);
        let register = aligned(parts.register, register_align, "send register")?;
        // SAFETY: valid and exclusive by the caller's contract, alignment checked above.
        let dbrec = unsafe { CounterDbRec::new(word, keep.clone()) }
            .map_err(|count| LayoutError::SendQueueUsed { count })?;
        // SAFETY: valid and exclusive by the caller's contract, alignment and count checked above.
        let ring = unsafe { SqMem::new(base, parts.block_count, keep.clone()) }
            .map_err(|_| LayoutError::NoMemory)?;
        // SAFETY: valid by the caller's contract, alignment checked above.
        let register = unsafe { SendRegister::new(register, parts.register_bytes, parts.blueflame, keep) }
            .ok_or(LayoutError::NoMemory)?;
        Ok(Self {
            ring,
            dbrec,
            register,
            qpn: parts.qpn & 0x00ff_ffff,
            caps: parts.caps,
            transport: parts.transport,
        })
    }

    /// Blocks of 64 bytes in the ring.
    pub fn block_count(&self) -> u32 {
        self.ring.mask() + 1
    }
}

fn check_blocks(block_count: u32, caps: &SqCaps) -> Result<(), LayoutError> {
    if !block_count.is_power_of_two() || block_count > MAX_BLOCKS {
        return Err(LayoutError::BlockCount { block_count });
    }
    if !(1..=block_count).contains(&caps.max_requests) {
        return Err(LayoutError::MaxRequests { max_requests: caps.max_requests, block_count });
    }
    Ok(())
}

/// A checked receive queue of a QP: ring and doorbell record, nothing posted yet. Not `Clone`:
/// there is one poster.
#[derive(Debug)]
pub struct RqLayout {
    pub(crate) ring: RqMem,
    pub(crate) dbrec: CounterDbRec,
    pub(crate) qpn: u32,
    pub(crate) max_requests: u32,
}

/// The description of a receive queue for [`RqLayout::from_raw_parts`].
#[derive(Clone, Copy, Debug)]
pub struct RqParts {
    /// Slot 0.
    pub buf: *mut u8,
    /// The receive word of the doorbell record (the first of a QP's).
    pub dbrec: *mut u32,
    /// Slots, a power of two.
    pub wqe_count: u32,
    /// Bytes from one slot to the next.
    pub stride_bytes: u32,
    /// Receives that may be posted at a time.
    pub max_requests: u32,
    /// QP number.
    pub qpn: u32,
}

impl RqLayout {
    /// Checks a receive queue that is described by raw parts.
    ///
    /// # Errors
    ///
    /// A [`LayoutError`] if a size or a pointer is not valid for the device, or something was
    /// posted already.
    ///
    /// # Safety
    ///
    /// As long as the layout, or an [`Rq`](crate::Rq) made from it, lives, `buf` is valid for reads
    /// and writes of `wqe_count * stride_bytes` bytes and `dbrec` for those of one word, and nobody
    /// else writes to them.
    pub unsafe fn from_raw_parts(parts: RqParts) -> Result<Self, LayoutError> {
        // SAFETY: passed on to the caller.
        unsafe { Self::checked(parts, None) }
    }

    /// A receive queue on the heap, for tests, measurements and software devices. The second value
    /// is the device's view.
    ///
    /// # Errors
    ///
    /// A [`LayoutError`] if a device does not support a size.
    pub fn on_heap(wqe_count: u32, stride_bytes: u32) -> Result<(Self, HeapView), LayoutError> {
        check_slots(wqe_count, stride_bytes, wqe_count)?;
        let mem = Arc::new(HeapMem::new(wqe_count as usize * stride_bytes as usize)?);
        let parts = RqParts {
            buf: mem.ring(),
            dbrec: mem.record(),
            wqe_count,
            stride_bytes,
            max_requests: wqe_count,
            qpn: 0x42,
        };
        // SAFETY: both are inside `mem`, which the layout keeps alive; see `SrqLayout::on_heap`.
        let layout = unsafe { Self::checked(parts, Some(Arc::clone(&mem))) }?;
        Ok((layout, HeapView(mem)))
    }

    unsafe fn checked(parts: RqParts, keep: Keep) -> Result<Self, LayoutError> {
        check_slots(parts.wqe_count, parts.stride_bytes, parts.max_requests)?;
        let base = aligned(parts.buf, SEGMENT_BYTES, "receive queue buffer")?;
        let word = aligned(parts.dbrec, 4, "receive doorbell record")?;
        // SAFETY: valid and exclusive by the caller's contract, alignment checked above.
        let dbrec = unsafe { CounterDbRec::new(word, keep.clone()) }
            .map_err(|count| LayoutError::ReceiveQueueUsed { count })?;
        // SAFETY: valid and exclusive by the caller's contract; alignment, count and stride checked
        // above.
        let ring = unsafe { RqMem::new(base, parts.wqe_count, parts.stride_bytes, keep) }
            .map_err(|_| LayoutError::NoMemory)?;
        Ok(Self { ring, dbrec, qpn: parts.qpn & 0x00ff_ffff, max_requests: parts.max_requests })
    }

    /// Slots in the ring.
    pub fn wqe_count(&self) -> u32 {
        self.ring.mask() + 1
    }
}

fn check_slots(wqe_count: u32, stride_bytes: u32, max_requests: u32) -> Result<(), LayoutError> {
    if !wqe_count.is_power_of_two() || wqe_count > MAX_WQE_COUNT {
        return Err(LayoutError::ReceiveWqeCount { wqe_count });
    }
    if !stride_bytes.is_power_of_two() || !(SEGMENT_BYTES as u32..=4096).contains(&stride_bytes) {
        return Err(LayoutError::ReceiveStride { stride_bytes });
    }
    if !(1..=wqe_count).contains(&max_requests) {
        return Err(LayoutError::MaxRequests { max_requests, block_count: wqe_count });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn receive_queues_have_the_sizes_of_the_format() {
        for (count, stride, most) in [(1, 16, 1), (32_768, 4096, 32_768), (8, 64, 1), (8, 64, 8)] {
            assert_eq!(check_slots(count, stride, most), Ok(()), "{count} slots of {stride} bytes");
        }
        for wqe_count in [0, 3, 65_536] {
            let refused = Err(LayoutError::ReceiveWqeCount { wqe_count });
            assert_eq!(check_slots(wqe_count, 64, 1), refused);
        }
        for stride_bytes in [0, 8, 48, 8192] {
            assert_eq!(check_slots(8, stride_bytes, 1), Err(LayoutError::ReceiveStride { stride_bytes }));
        }
        for max_requests in [0, 9] {
            let refused = Err(LayoutError::MaxRequests { max_requests, block_count: 8 });
            assert_eq!(check_slots(8, 64, max_requests), refused);
        }
    }

    #[test]
    fn send_queues_have_the_sizes_of_the_format() {
        let caps = |max_requests| SqCaps { max_requests, max_segments: 4, max_inline: 44, signal_all: false };
        for (count, most) in [(1, 1), (32_768, 32_768), (8, 1), (8, 8)] {
            assert_eq!(check_blocks(count, &caps(most)), Ok(()), "{count} blocks");
        }
        for block_count in [0, 3, 65_536] {
            assert_eq!(check_blocks(block_count, &caps(1)), Err(LayoutError::BlockCount { block_count }));
        }
        for max_requests in [0, 9] {
            let refused = Err(LayoutError::MaxRequests { max_requests, block_count: 8 });
            assert_eq!(check_blocks(8, &caps(max_requests)), refused);
        }
    }
}
