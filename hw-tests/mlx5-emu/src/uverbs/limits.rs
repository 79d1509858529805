//! The device's limits, which commands check and queries report.

/// Longest message.
pub(super) const MAX_MESSAGE: u32 = 1 << 30;
/// Most scatter-gather entries of a send.
pub(super) const MAX_SGE: u32 = 30;
/// Most entries of an SRQ.
pub(super) const MAX_SRQ_WR: u32 = 32767;
/// Most work requests of a queue.
pub(super) const MAX_QP_WR: u32 = 32768;
/// Most CQEs of a queue.
pub(super) const MAX_CQE: u32 = (1 << 22) - 1;
/// Formats of compressed CQEs: hash, checksum, checksum and stride index.
pub(super) const MINI_CQE_FORMATS: u32 = 1 | 2 | 4;
/// Log2 of the longest table.
pub(super) const MAX_LOG_TABLE: u32 = 11;
/// Longest piece of device memory.
pub(super) const MAX_DM_SIZE: u64 = 128 << 10;
