//! The position of a send queue: the number of blocks posted so far plus 2^16 times the number of
//! requests.

/// What one request adds to a position.
pub(crate) const REQUEST: u64 = 1 << REQUEST_SHIFT;
pub(crate) const REQUEST_SHIFT: u32 = 16;

/// What a request of one block adds to a position.
pub(crate) const ONE_BLOCK: u64 = REQUEST + 1;

/// The block of a position.
#[inline(always)]
pub(crate) fn block(position: u64) -> u32 {
    u32::from(position as u16)
}
