//! The part of an SRQ that completions need: how the data path completes and releases its entries.

use crate::datapath::{Lost, SrqPath};
use crate::device::{Class, Device};
use crate::event_data::Owner;

/// The part of an SRQ that completions need; see the module.
#[derive(Debug)]
pub struct SharedRecv {
    /// The bits of the SRQ's id that work requests carry.
    pub(crate) number: u32,
    pub(crate) path: SrqPath,
}

impl SharedRecv {
    /// Handles a buffer that the device dropped when an EP ended: that EP reports the buffer as
    /// flushed (R174). If the EP is gone, the buffer is free at once. The caller must not hold the
    /// lock of an EVD.
    pub(crate) fn flush_lost(&self, device: &Device, lost: Lost) {
        tracing::debug!(?lost, "a buffer went down with its EP");
        match device.registry.find(Class::Ep, lost.ep) {
            Some(ep) => ep.buffer_lost(lost),
            None => {
                device.pools.return_unseen(Owner::of_pool(lost.info.pool), lost.info.cookie);
                self.path.release(lost.entry);
            }
        }
    }
}
