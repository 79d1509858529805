//! Shared receive queues.

use crate::host::mem::Area;
use crate::host::pin::Pin;

#[derive(Debug)]
pub(crate) struct Srq {
    pub(crate) srqn: u32,
    pub(crate) context: usize,
    pub(crate) pd: usize,
    pub(crate) user_handle: u64,
    pub(crate) buf: Area,
    pub(crate) log_count: u32,
    pub(crate) log_stride: u32,
    pub(crate) max_sge: u32,
    pub(crate) record: Area,
    pub(crate) uidx: u32,
    /// XRC: where completions go and which domain.
    pub(crate) xrc: Option<(usize, usize)>,
    /// Next WQE to use.
    pub(crate) head: u16,
    /// Next WQE to take over when the record covers more.
    pub(crate) tail: u16,
    /// WQEs taken over, as the record counts.
    pub(crate) posted: u16,
    /// WQEs that the device owns and has not used.
    pub(crate) available: u32,
    /// `next` of each WQE that the device owns, as read at takeover; FREE for other WQEs.
    pub(crate) links: Vec<u32>,
    pub(crate) limit: u32,
    pub(crate) users: u32,
    pub(crate) async_events: u32,
    pub(crate) error: bool,
    /// Buffer and record.
    pub(crate) _pins: [Pin; 2],
}

/// Marker in [`Srq::links`] for a slot that the program owns.
pub(crate) const FREE: u32 = u32::MAX;
