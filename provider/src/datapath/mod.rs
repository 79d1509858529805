//! The interface between DAT objects and the data path.
//!
//! All queues of an IA use the same path. The path is standard verbs ([`verbs`]), or, on mlx5,
//! queue memory that this provider reads and writes itself ([`direct`]). The choice is made once
//! per IA and is logged. `DOORBELL_DATAPATH=auto|direct|verbs` forces or refuses a path.
//!
//! An SRQ has two parts: [`SrqPoster`] belongs to the thread that posts, and all threads share
//! [`SrqPath`]. [`CqPath`] belongs to an EVD, [`SendQueue`] and [`RecvQueue`] to an EP. The modules
//! above do not depend on the path, except the fast functions: those that post to an SRQ
//! (`Srq::post_fast`, `Srq::post_short`, `Srq::post_pool`), that post a Send
//! (`Requests::post_send_fast`, and the handle slots, which store the path of an EP for it), and
//! that take a completion off an EVD (`EvdInner::dequeue_fast`, `Queue::next_success`). The fast
//! functions of the verbs path have `by_verbs` in their names.

pub(crate) mod completion;
pub(crate) mod direct;
pub(crate) mod entries;
pub(crate) mod losses;
mod queues;
mod request;
pub(crate) mod verbs;

pub use self::completion::WrInfo;
pub(crate) use self::completion::{Completion, Lost, SrqCounts, WrId};
pub(crate) use self::direct::{DirectCqs, MOST_IN_BLOCK, evd_of};
use self::entries::CompletedUpTo;
pub(crate) use self::queues::{RecvQueue, SendQueue};
pub use self::request::Request;
pub(crate) use self::request::{Outgoing, Record};
use crate::error::PostError;
use crate::{Error, Result, ReturnType, Subtype};
use rxe_fallback::{CompChannel, Context, Cq, Pd, Qp, QpInit, Sge, Srq};
use std::sync::Arc;

/// An SRQ on one of the paths: the part that the poster, the reapers and the progress thread share.
#[derive(Debug)]
pub(crate) enum SrqPath {
    Verbs(Arc<verbs::VerbsSrq>),
    Direct(direct::DirectSrq),
}

/// The part of an SRQ that posts; used by one thread at a time.
#[derive(Debug)]
pub(crate) enum SrqPoster {
    Verbs(verbs::VerbsPoster),
    Direct(direct::DirectPoster),
}

impl SrqPath {
    /// The verbs SRQ on which QPs are created.
    pub(crate) fn verbs(&self) -> &Srq {
        match self {
            Self::Verbs(srq) => srq.verbs(),
            Self::Direct(srq) => srq.verbs(),
        }
    }

    /// The depth: the largest number of entries.
    pub(crate) fn depth(&self) -> u32 {
        match self {
            Self::Verbs(srq) => srq.depth(),
            Self::Direct(srq) => srq.depth(),
        }
    }

    /// Completes the entry that a completion names and returns its info. `None` for an entry that
    /// is not posted. `ep` is the record of the youngest post that the EP has completed, if the EP
    /// still exists; it serves to find lost buffers (verbs path). The caller holds the lock of the
    /// EP's receive EVD.
    #[inline]
    pub(crate) fn complete(&self, entry: u32, ep: Option<&CompletedUpTo>) -> Option<WrInfo> {
        match self {
            Self::Verbs(srq) => srq.complete(entry, ep),
            Self::Direct(srq) => srq.complete(entry),
        }
    }

    /// Does the work of [`SrqPath::complete`] and [`SrqPath::release`] in one step, for a
    /// completion that is reaped immediately. Returns the buffer's cookie and pool. `None` for an
    /// entry that is not posted, and while [`SrqPath::next_lost`] has to be called after each
    /// completion.
    #[inline]
    pub(crate) fn reap(&self, entry: u32, ep: &CompletedUpTo) -> Option<(u64, u32)> {
        match self {
            Self::Verbs(srq) => srq.reap(entry, ep),
            Self::Direct(srq) => srq.reap(entry),
        }
    }

    /// The SRQ of the verbs path.
    #[inline(always)]
    pub(crate) fn by_verbs(&self) -> Option<&verbs::VerbsSrq> {
        match self {
            Self::Verbs(srq) => Some(srq),
            Self::Direct(_) => None,
        }
    }

    /// Whether the device completes every buffer that it has taken from the SRQ, even when a QP
    /// fails.
    pub(crate) fn completes_all(&self) -> bool {
        matches!(self, Self::Direct(_))
    }

    /// Frees an entry whose completion was reaped or dropped.
    #[inline]
    pub(crate) fn release(&self, entry: u32) {
        match self {
            Self::Verbs(srq) => srq.release(entry),
            Self::Direct(srq) => srq.release(entry),
        }
    }

    /// Records that an EP begins to take buffers.
    ///
    /// # Errors
    /// No memory for the record.
    pub(crate) fn ep_connected(&self, ep: u64, completed: &Arc<CompletedUpTo>) -> Result<()> {
        match self {
            Self::Verbs(srq) => srq.ep_connected(ep, completed),
            Self::Direct(_) => Ok(()),
        }
    }

    /// Records that an EP takes no more buffers and that its completions have been harvested.
    /// Returns true if the device may have lost the buffer that the EP held. [`SrqPath::next_lost`]
    /// then reports that buffer, once every thread that was completing an entry is done.
    pub(crate) fn ep_drained(&self, ep: u64) -> bool {
        match self {
            Self::Verbs(srq) => srq.ep_drained(ep),
            // The device completes every buffer when a QP fails.
            Self::Direct(_) => false,
        }
    }

    /// The next entry that is known to be lost. The entry now counts as completed.
    #[inline]
    pub(crate) fn next_lost(&self) -> Option<Lost> {
        match self {
            Self::Verbs(srq) => srq.next_lost(),
            Self::Direct(_) => None,
        }
    }

    /// Asks the device for one event when fewer than `limit` buffers are available; 0 cancels the
    /// request.
    pub(crate) fn arm_limit(&self, limit: u32) -> Result<()> {
        self.verbs().arm_limit(limit).map_err(|e| Error::verb(Subtype::ResourceSrq, e))
    }

    /// The limit that is armed in the device; 0 once the device has raised the event.
    pub(crate) fn armed_limit(&self) -> Result<u32> {
        self.verbs().query().map(|attr| attr.srq_limit).map_err(|e| Error::verb(Subtype::ResourceSrq, e))
    }
}

impl SrqPoster {
    /// Whether entries that were reaped since the last post leave the contiguous span, which had no
    /// slot left, with room again. Always false by verbs.
    #[inline(always)]
    pub(crate) fn found_room(&mut self) -> bool {
        match self {
            Self::Direct(srq) => srq.found_room(),
            Self::Verbs(_) => false,
        }
    }

    /// Posts the whole buffer or nothing.
    pub(crate) fn post(&mut self, segments: &[Sge], info: WrInfo) -> Result<(), PostError> {
        match self {
            Self::Verbs(srq) => srq.post(segments, &info),
            Self::Direct(srq) => srq.post(segments, info),
        }
    }

    /// Returns the number of entries in each state.
    pub(crate) fn counts(&self) -> SrqCounts {
        match self {
            Self::Verbs(srq) => srq.counts(),
            Self::Direct(srq) => srq.counts(),
        }
    }

    /// Sets a depth that is not below the outstanding count.
    pub(crate) fn resize(&mut self, path: &SrqPath, depth: u32) -> Result<()> {
        match (self, path) {
            (Self::Direct(poster), SrqPath::Direct(srq)) => poster.resize(srq, depth),
            (Self::Verbs(srq), _) => srq.resize(depth),
            (Self::Direct(_), SrqPath::Verbs(_)) => unreachable!("both halves are made together"),
        }
    }
}

/// The CQs of an EVD on one of the paths.
#[derive(Debug)]
// A dequeue tests the tag, which is a small number then.
#[repr(u8)]
pub(crate) enum CqPath {
    Verbs(verbs::VerbsCq),
    Direct(DirectCqs),
}

impl CqPath {
    /// The CQ for a new QP that needs this many entries for its requests, or for its receives
    /// without an SRQ. Returns true with a CQ that was created for this purpose. On the verbs path
    /// the EVD has one CQ, in which [`CqPath::ensure`] makes the room.
    ///
    /// # Errors
    /// The device has no CQ of that size, or there is no memory.
    pub(crate) fn lend(&mut self, entries: u32) -> Result<(Cq, bool)> {
        match self {
            Self::Verbs(cq) => Ok((cq.cq().clone(), false)),
            Self::Direct(cqs) => cqs.lend(entries),
        }
    }

    /// Takes back entries that [`CqPath::lend`] has given to a QP on this CQ.
    pub(crate) fn repay(&mut self, cq: &Cq, entries: u32) {
        if let Self::Direct(cqs) = self {
            cqs.repay(cq, entries);
        }
    }

    /// The verbs CQ of receives from this SRQ, which must feed the EVD.
    pub(crate) fn receives(&self, srq: u32) -> Option<Cq> {
        match self {
            Self::Verbs(cq) => Some(cq.cq().clone()),
            Self::Direct(cqs) => cqs.receives(srq),
        }
    }

    /// Adds up to `most` completions. Fewer than `most` means that no completion is left.
    #[inline]
    pub(crate) fn poll(&mut self, into: &mut Vec<Completion>, most: usize) -> Result<()> {
        match self {
            Self::Verbs(cq) => cq.poll(into, most),
            Self::Direct(cqs) => cqs.poll(into, most),
        }
    }

    /// The CQs of the direct path.
    #[inline(always)]
    pub(crate) fn direct(&mut self) -> Option<&mut DirectCqs> {
        match self {
            Self::Direct(cqs) => Some(cqs),
            Self::Verbs(_) => None,
        }
    }

    /// The CQ of the verbs path.
    #[inline(always)]
    pub(crate) fn by_verbs(&mut self) -> Option<&mut verbs::VerbsCq> {
        match self {
            Self::Verbs(cq) => Some(cq),
            Self::Direct(_) => None,
        }
    }

    /// Removes the completions of this QP, which was reset or destroyed. Calls `removed` for each that
    /// holds an entry of an SRQ, and perhaps for others.
    pub(crate) fn clean(&mut self, qpn: u32, removed: impl FnMut(&Completion)) {
        match self {
            Self::Verbs(cq) => cq.clean(qpn, removed),
            Self::Direct(cqs) => cqs.clean(qpn, removed),
        }
    }

    /// Whether each SRQ has its own CQ on this path. [`CqPath::open_srq`] creates the CQ.
    pub(crate) fn has_cq_of_srqs(&self) -> bool {
        matches!(self, Self::Direct(_))
    }

    /// Whether SRQs have CQs of their own here.
    pub(crate) fn has_any_of_srqs(&self) -> bool {
        matches!(self, Self::Direct(cqs) if cqs.has_any_of_srqs())
    }

    /// Whether the EVD has several CQs beside those of SRQs.
    pub(crate) fn has_several_shared(&self) -> bool {
        matches!(self, Self::Direct(cqs) if cqs.has_several_shared())
    }

    /// Creates the CQ of receives from this SRQ.
    pub(crate) fn open_srq(&mut self, srq: &SrqPath) -> Result<()> {
        match (self, srq) {
            (Self::Direct(cqs), SrqPath::Direct(srq)) => cqs.open(srq),
            _ => Ok(()),
        }
    }

    /// Records the depth of an SRQ that has its own CQ, before the SRQ becomes deeper.
    pub(crate) fn expect_depth(&mut self, srq: u32, depth: u32) {
        if let Self::Direct(cqs) = self {
            cqs.expect_depth(srq, depth);
        }
    }

    /// Closes the CQ of receives from this SRQ, which no QP uses any more. Calls `left` for each
    /// completion that is still in the CQ.
    pub(crate) fn close_srq(&mut self, srq: u32, left: impl FnMut(&Completion)) {
        if let Self::Direct(cqs) = self {
            cqs.close(srq, left);
        }
    }

    /// Records that a UD EP receives from this SRQ on this EVD.
    pub(crate) fn expect_datagrams(&mut self, srq: u32) {
        if let Self::Direct(cqs) = self {
            cqs.expect_datagrams(srq);
        }
    }

    /// Asks each CQ for one event on the channel at the next completion, or at the next solicited
    /// or failed one. Returns the number of CQs.
    pub(crate) fn arm(&mut self, solicited_only: bool) -> Result<usize> {
        match self {
            Self::Verbs(cq) => cq.arm(solicited_only).map(|()| 1),
            Self::Direct(cqs) => Ok(cqs.arm(solicited_only)),
        }
    }

    /// Makes room for at least `depth` completions. On the direct path, [`CqPath::lend`] has made
    /// the room.
    pub(crate) fn ensure(&mut self, depth: u32) -> Result<()> {
        match self {
            Self::Verbs(cq) => cq.ensure(depth),
            Self::Direct(_) => Ok(()),
        }
    }

    /// Handles an event with this CQ token, read from the channel.
    pub(crate) fn event(&mut self, token: u64) {
        if let Self::Direct(cqs) = self {
            cqs.event(token);
        }
    }
}

/// The data path of an IA.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataPath {
    /// By libibverbs.
    Verbs,
    /// By `mlx5-direct`.
    Direct,
}

impl DataPath {
    /// Whether `mlx5-direct` drives the queues.
    pub fn is_direct(self) -> bool {
        matches!(self, Self::Direct)
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Verbs => "verbs",
            Self::Direct => "direct",
        }
    }

    /// The largest number of entries that an SRQ of this path can have.
    pub(crate) fn max_depth(self) -> u32 {
        match self {
            Self::Verbs => u32::MAX,
            Self::Direct => direct::MAX_DEPTH,
        }
    }

    /// Creates an SRQ with `depth` entries from a verbs SRQ with room for `room` entries.
    pub(crate) fn srq(
        self,
        srq: Srq,
        id: u32,
        depth: u32,
        room: u32,
        resizable: bool,
    ) -> Result<(SrqPath, SrqPoster)> {
        Ok(match self {
            Self::Verbs => {
                let (srq, poster) = verbs::VerbsSrq::new(srq, id, depth, room, resizable)?;
                (SrqPath::Verbs(srq), SrqPoster::Verbs(poster))
            }
            Self::Direct => {
                let (srq, poster) = direct::DirectSrq::new(srq, id, depth)?;
                (SrqPath::Direct(srq), SrqPoster::Direct(poster))
            }
        })
    }

    /// Creates the channel of an EVD's CQs.
    pub(crate) fn channel(self, context: &Context) -> Result<CompChannel, rxe_fallback::Error> {
        match self {
            Self::Verbs => CompChannel::create(context),
            // All CQs of the EVD are armed and polled here.
            Self::Direct => CompChannel::create_without_driver(context),
        }
    }

    /// Creates the CQs of an EVD from its first CQ, from which nothing was polled.
    pub(crate) fn cq(self, cq: Cq, channel: Option<&CompChannel>) -> Result<CqPath> {
        Ok(match self {
            Self::Verbs => CqPath::Verbs(verbs::VerbsCq::new(cq)?),
            Self::Direct => CqPath::Direct(DirectCqs::new(cq, channel.cloned())?),
        })
    }

    pub(crate) fn qp(self, pd: &Pd, init: &QpInit<'_>) -> Result<Qp, rxe_fallback::Error> {
        // Creates the QP without scatter to CQE. With scatter to CQE, libmlx5 copies small messages
        // from the CQE to the posted address, even when that address is an offset into a zero-based
        // region.
        match self {
            Self::Direct => direct::create_qp(pd, init),
            // A machine without the library for this call has no direct path either.
            Self::Verbs if direct::unsupported_reason(pd.context()).is_none() => direct::create_qp(pd, init),
            Self::Verbs => Qp::create(pd, init),
        }
    }

    /// Chooses the path of a device as `DOORBELL_DATAPATH` requests.
    ///
    /// # Errors
    /// MODEL_NOT_SUPPORTED if the variable forces a path that the device does not support.
    /// INVALID_PARAMETER for a value other than these three.
    pub(crate) fn choose(context: &Context) -> Result<(Self, String)> {
        let device = context.name();
        let wish = crate::process::variable("DOORBELL_DATAPATH").unwrap_or_default();
        let (kind, why) = match wish.as_str() {
            "verbs" => (Self::Verbs, "DOORBELL_DATAPATH=verbs".to_owned()),
            "" | "auto" => match direct::unsupported_reason(context) {
                None => (Self::Direct, "libmlx5 drives the device".to_owned()),
                Some(why) => (Self::Verbs, format!("no direct data path: {why}")),
            },
            "direct" => match direct::unsupported_reason(context) {
                None => (Self::Direct, "DOORBELL_DATAPATH=direct".to_owned()),
                Some(why) => {
                    let text =
                        format!("DOORBELL_DATAPATH=direct, but not on {device} ({why}): use auto or verbs");
                    return Err(Error::new(ReturnType::ModelNotSupported, Subtype::None, text));
                }
            },
            other => {
                return Err(Error::arg(
                    1,
                    format!("DOORBELL_DATAPATH is {other:?}: it takes auto, direct or verbs"),
                ));
            }
        };
        tracing::info!(device, path = kind.name(), why, "data path chosen");
        Ok((kind, why))
    }
}
