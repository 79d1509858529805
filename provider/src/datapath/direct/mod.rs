//! The direct path of mlx5 devices: SRQs, and the CQs of their receives, driven without libmlx5.
//!
//! An entry of an SRQ is a slot of its ring, from the post until the consumer has reaped the
//! completion. A slot that is posted again therefore has no unreaped completion. The thread that
//! posts owns the ring and takes no lock. Reaping threads report returned slots through
//! [`RingSlots`]. The ring has more slots than the SRQ has entries: the outstanding count is the
//! posts less the releases, so one read of a counter is enough, and the poster can take returned
//! slots back many at a time.
//!
//! An EVD polls two kinds of CQ. Send queues, and receive queues of EPs without an SRQ, belong to
//! libmlx5, and only `ibv_poll_cq` keeps their state up to date: they share one verbs CQ. Each SRQ
//! whose EPs receive on the EVD has one direct CQ. All CQs report to one channel. A direct CQ
//! cannot be resized. It is created for the first EP of an SRQ, with room for as many entries as
//! that SRQ can ever have (2 MiB for the 32,767 entries of most devices), and destroyed with the
//! last EP.
//!
//! The device completes every buffer when a QP fails: no buffer is lost.

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
