#![expect(unsafe_code, reason = "writes to memory that a caller names by address")]
//! Payloads that the device left in completion entries, written to where they belong.

use super::Cq;
use crate::{
    cqe::{ScatteredRecv, ScatteredSend},
    queue_mem::MOST_SCATTERED,
    wqe::DataSeg,
};

impl Cq {
    /// Writes the payload of a receive that the device left in the completion entry into the
    /// segments of the receive, such as [`Rq::segments`](crate::Rq::segments). Call this before the
    /// next poll. Returns the bytes copied.
    ///
    /// The bytes of a segment with address 0 are dropped, and count as copied. Pass a segment so
    /// whose region is that of `ibv_alloc_null_mr`: the device drops what it writes there, whatever
    /// the address. Pass a segment of a region with addresses of its own (`ibv_reg_mr_iova`) with
    /// the address that the memory has in this process.
    ///
    /// # Safety
    ///
    /// The segments' addresses, except 0, are valid for writes in this process, and nobody else
    /// uses that memory meanwhile.
    pub unsafe fn deliver(
        &self,
        scattered: &ScatteredRecv,
        into: impl IntoIterator<Item = DataSeg>,
    ) -> usize {
        let mut bytes = [0; MOST_SCATTERED];
        let len = self.copy_scattered(scattered, &mut bytes);
        // SAFETY: passed on to the caller.
        unsafe { spread(&bytes[..len], into) }
    }

    /// Writes the result of a read or an atomic that the device left in the completion entry into
    /// the segments of the request, [`Sq::segments`](crate::Sq::segments). Call this before the
    /// next poll. Returns the bytes copied.
    ///
    /// # Safety
    ///
    /// As [`deliver`](Self::deliver).
    pub unsafe fn deliver_result(
        &self,
        scattered: &ScatteredSend,
        into: impl IntoIterator<Item = DataSeg>,
    ) -> usize {
        let mut bytes = [0; MOST_SCATTERED];
        let len = self.copy_result(scattered, &mut bytes);
        // SAFETY: passed on to the caller.
        unsafe { spread(&bytes[..len], into) }
    }
}

/// Writes bytes into segments, one segment after the other, as far as there is room. Drops those of
/// a segment with address 0.
///
/// # Safety
///
/// The segments' addresses, except 0, are valid for writes.
unsafe fn spread(mut bytes: &[u8], into: impl IntoIterator<Item = DataSeg>) -> usize {
    let all = bytes.len();
    for seg in into {
        let (now, later) = bytes.split_at(bytes.len().min(seg.byte_count() as usize));
        if seg.addr() != 0 {
            // SAFETY: valid for writes of as many bytes by contract.
            unsafe { (seg.addr() as *mut u8).copy_from(now.as_ptr(), now.len()) };
        }
        bytes = later;
    }
    all - bytes.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_for_a_segment_with_address_0_are_dropped() {
        let mut memory = [0_u8; 8];
        let at = memory.as_mut_ptr() as u64;
        let segments = [DataSeg::new(at, 2, 1), DataSeg::new(0, 3, 2), DataSeg::new(at + 4, 2, 1)];
        // SAFETY: inside `memory`, or address 0.
        assert_eq!(unsafe { spread(&[1, 2, 3, 4, 5, 6, 7, 8], segments) }, 7);
        assert_eq!(memory, [1, 2, 0, 0, 6, 7, 0, 0]);
    }
}
