//! The direct path of mlx5 devices: SRQs, and the CQs of their receives, driven without libmlx5.
//!
//! An entry of an SRQ is a slot of its ring, from the post until the consumer has reaped the completion; so a slot that is
//! posted again never has an unreaped completion. The thread that posts owns the ring and takes no lock; those that reap tell
//! it through [`RingSlots`] which slots are back. The ring goes round more slots than the SRQ has entries: `outstanding` is
//! what was posted less what was released, one look at a count, and slots that are back can wait until many are.
//!
//! What an EVD polls is split. Send queues, and receive queues of plain EPs, are libmlx5's, which only `ibv_poll_cq`
//! keeps up to date: they have one verbs CQ. For each SRQ whose EPs receive here there is one direct CQ. All report to
//! one channel. A direct CQ cannot be resized, so it is made when the first EP of an SRQ comes, with room for as many
//! entries as that SRQ can ever have (2 MiB for the 32,767 of most devices), and goes with the last.
//!
//! The device gives everything back when a QP fails: there are no lost buffers to look for.

mod adopt;
mod cq;
mod slots;
mod srq;

pub(crate) use self::adopt::{create_qp, unsupported_reason};
pub(crate) use self::cq::{DirectCqs, ReceiveCq, evd_of};
pub(crate) use self::srq::{DirectPoster, DirectSrq, MAX_DEPTH};
use crate::memory::table;
use mlx5_direct::Cookies;
use std::sync::atomic::AtomicU64;
