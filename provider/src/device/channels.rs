//! Completion channels of freed EVDs, for new ones.
//!
//! To create and to close a channel takes as long as the rest of the creation and freeing of an EVD
//! with a small CQ.

use super::signals::highest_kept;
use crate::datapath::DataPath;
use crate::sync::{Mutex, rank};
use rxe_fallback::{CompChannel, Context};
use std::os::fd::{AsFd, AsRawFd};

/// The number of channels that a device keeps.
const KEPT: usize = 4;

/// The channels that no EVD uses.
#[derive(Debug, Default)]
pub(crate) struct Channels(Mutex<{ rank::TABLE }, Vec<CompChannel>>);

impl Channels {
    /// A channel without CQs and events.
    ///
    /// # Errors
    /// As [`CompChannel::create`].
    pub(crate) fn take(&self, path: DataPath, context: &Context) -> Result<CompChannel, rxe_fallback::Error> {
        let spare = self.0.lock().unwrap().pop();
        spare.map_or_else(|| path.channel(context), Ok)
    }

    /// Takes back a channel whose CQs are gone; their events went with them. Closes the channel if a
    /// CQ is left, or if there are enough channels or few descriptors.
    pub(crate) fn give_back(&self, channel: CompChannel) {
        if !channel.is_shared() && Some(channel.as_fd().as_raw_fd() as u64) <= highest_kept() {
            let mut spare = self.0.lock().unwrap();
            if spare.len() < KEPT && spare.try_reserve(1).is_ok() {
                spare.push(channel);
            }
        }
    }
}
