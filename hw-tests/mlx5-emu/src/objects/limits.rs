//! How many objects of each kind a process can have.

/// Low bits of a QP number that index the process's own table; the bits above name the process.
pub(crate) const QPN_INDEX_BITS: u32 = 15;
/// QPs of one process.
pub(crate) const MAX_QP: usize = 1 << QPN_INDEX_BITS;
/// SRQs of one process.
pub(crate) const MAX_SRQ: usize = 1 << 12;
/// CQs of one process.
pub(crate) const MAX_CQ: usize = 1 << 16;
/// Keys of one process.
pub(crate) const MAX_KEYS: usize = 1 << 20;
/// PDs of one process.
pub(crate) const MAX_PD: usize = 1 << 16;
/// Indirection tables of one process.
pub(crate) const MAX_TABLES: usize = 1 << 12;

/// The process part of a QP number.
#[inline(always)]
pub(crate) fn process_of(qpn: u32) -> u32 {
    (qpn & 0xff_ffff) >> QPN_INDEX_BITS
}
