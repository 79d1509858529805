//! The direct path of mlx5 devices: SRQs, and the CQs of their receives, driven without libmlx5.
//!
//! An entry of an SRQ is a slot of its ring, from the post until the consumer has reaped the
//! completion. A slot that is posted again therefore has no unreaped completion. The thread that
//! posts owns the ring and takes no lock. Reaping threads report returned slots through
//! [`RingSlots`]. The ring has more slots than the SRQ has entries: the outstanding count is the
//! posts less the releases, so one read of a counter is enough, and the poster can take returned
//! slots back many at a time.
//!
//! Both queues of a QP are driven here, too ([`sends`], [`receives`]). An EVD has one CQ for each SRQ whose EPs
//! receive on it, and shared CQs for requests and for receives of EPs without an SRQ ([`cq`]). All
//! CQs report to one channel. A CQ that is driven here cannot be resized. The CQ of an SRQ is
//! created for the first EP of that SRQ, with room for as many entries as the SRQ can ever have (2
//! MiB for the 32,767 entries of most devices), and destroyed with the last EP. A shared CQ lends
//! entries to QPs; the EVD creates another one if an EP needs more entries than are left.
//!
//! The device completes every buffer when a QP fails: no buffer is lost.

mod adopt;
mod cq;
mod cqe;
mod receives;
mod segments;
mod sends;
mod slots;
mod srq;

pub(crate) use self::adopt::{create_qp, load_driver, share, unsupported_reason};
pub(crate) use self::cq::{DirectCqs, evd_of};
pub(crate) use self::receives::DirectReceives;
pub(crate) use self::sends::DirectSends;
pub(crate) use self::srq::{DirectPoster, DirectSrq, MAX_DEPTH};
use crate::memory::table;
use mlx5_direct::Cookies;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
