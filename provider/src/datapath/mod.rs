//! The seam between DAT objects and what carries their receives.
//!
//! An SRQ and the CQs of its endpoints' receives are all on one path: standard verbs ([`verbs`]), or, on mlx5, queue memory
//! written by hand ([`direct`]). The choice is made once per IA, logged, and can be forced or refused with
//! `DOORBELL_DATAPATH=auto|direct|verbs`.
//!
//! An SRQ has two halves: [`SrqPoster`] belongs to the thread that posts, [`SrqPath`] to all. [`CqPath`] is an EVD's. Nothing
//! above this module knows which path it is talking to, but for the quickest way to post (`Srq::post_quick`).

pub(crate) mod completion;
pub(crate) mod direct;
pub(crate) mod entries;
pub(crate) mod verbs;

pub(crate) use self::completion::{Completion, Lost, SrqCounts, WrId, WrInfo};
pub(crate) use self::direct::{ReceiveCq, evd_of};
use self::entries::CompletedUpTo;
use crate::error::PostError;
use crate::{Error, Result, ReturnType, Subtype};
use rxe_fallback::{CompChannel, Context, Cq, Pd, Qp, QpInit, Sge, Srq};
use std::sync::Arc;

/// An SRQ on one of the paths: what its poster, those who reap and the progress thread share.
#[derive(Debug)]
pub(crate) enum SrqPath {
    Verbs(Arc<verbs::VerbsSrq>),
    Direct(direct::DirectSrq),
}

/// The posting half of an SRQ, for one thread at a time.
#[derive(Debug)]
pub(crate) enum SrqPoster {
    Verbs(verbs::VerbsPoster),
    Direct(direct::DirectPoster),
}

impl SrqPath {
    /// The verbs object that QPs are created on.
    pub(crate) fn verbs(&self) -> &Srq {
        match self {
            Self::Verbs(srq) => srq.verbs(),
            Self::Direct(srq) => srq.verbs(),
        }
    }

    /// How many entries it may have.
    pub(crate) fn depth(&self) -> u32 {
        match self {
            Self::Verbs(srq) => srq.depth(),
            Self::Direct(srq) => srq.depth(),
        }
    }

    /// A completion names this entry; gives its info. `None` for one that is not posted. With what the EP keeps, if that is still
    /// around; under the lock of its receive EVD.
    #[inline]
    pub(crate) fn complete(&self, entry: u32, ep: Option<&CompletedUpTo>) -> Option<WrInfo> {
        match self {
            Self::Verbs(srq) => srq.complete(entry, ep),
            Self::Direct(srq) => srq.complete(entry),
        }
    }

    /// [`SrqPath::complete`] and [`SrqPath::release`] in one, for a message of
    /// [`ReceiveCq::next_message`]: the buffer's cookie and pool.
    #[inline(always)]
    pub(crate) fn reap(&self, entry: u32) -> Option<(u64, u32)> {
        match self {
            Self::Direct(srq) => srq.reap(entry),
            Self::Verbs(_) => None,
        }
    }

    /// Whether the device completes every buffer that it has taken from the SRQ, also when a QP fails.
    pub(crate) fn completes_all(&self) -> bool {
        matches!(self, Self::Direct(_))
    }

    /// The entry's completion was reaped or dropped.
    #[inline]
    pub(crate) fn release(&self, entry: u32) {
        match self {
            Self::Verbs(srq) => srq.release(entry),
            Self::Direct(srq) => srq.release(entry),
        }
    }

    /// An EP begins to take buffers.
    ///
    /// # Errors
    /// No memory to keep track of it.
    pub(crate) fn ep_connected(&self, ep: u64, progress: &Arc<CompletedUpTo>) -> Result<()> {
        match self {
            Self::Verbs(srq) => srq.ep_connected(ep, progress),
            Self::Direct(_) => Ok(()),
        }
    }

    /// An EP takes no more and its completions are in. True if the device may have swallowed the buffer it held, which
    /// [`SrqPath::next_lost`] tells once everybody who was completing an entry is done.
    pub(crate) fn ep_drained(&self, ep: u64) -> bool {
        match self {
            Self::Verbs(srq) => srq.ep_drained(ep),
            // The device gives everything back when a QP fails.
            Self::Direct(_) => false,
        }
    }

    /// The next entry that is known to be swallowed, now completed.
    #[inline]
    pub(crate) fn next_lost(&self) -> Option<Lost> {
        match self {
            Self::Verbs(srq) => srq.next_lost(),
            Self::Direct(_) => None,
        }
    }

    /// Asks the device for one event when fewer than this many are available; 0 takes the wish back.
    pub(crate) fn arm_limit(&self, limit: u32) -> Result<()> {
        self.verbs().arm_limit(limit).map_err(|e| Error::verb(Subtype::ResourceSrq, e))
    }

    /// The limit that is still armed in the device; 0 once its event has been made.
    pub(crate) fn armed_limit(&self) -> Result<u32> {
        self.verbs().query().map(|attr| attr.srq_limit).map_err(|e| Error::verb(Subtype::ResourceSrq, e))
    }
}

impl SrqPoster {
    /// Posts one buffer; all or nothing.
    pub(crate) fn post(&mut self, segments: &[Sge], info: WrInfo) -> Result<(), PostError> {
        match self {
            Self::Verbs(srq) => srq.post(segments, info),
            Self::Direct(srq) => srq.post(segments, info),
        }
    }

    /// Where the entries are.
    pub(crate) fn counts(&self) -> SrqCounts {
        match self {
            Self::Verbs(srq) => srq.counts(),
            Self::Direct(srq) => srq.counts(),
        }
    }

    /// A new depth, not below what is outstanding.
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
pub(crate) enum CqPath {
    Verbs(verbs::VerbsCq),
    Direct(direct::DirectCqs),
}

impl CqPath {
    /// The verbs CQ of requests, and of receives of plain EPs.
    pub(crate) fn verbs(&self) -> &Cq {
        match self {
            Self::Verbs(cq) => &cq.cq,
            Self::Direct(cqs) => cqs.requests(),
        }
    }

    /// The verbs CQ of receives from this SRQ, which is tied to the EVD.
    pub(crate) fn receives(&self, srq: u32) -> Option<Cq> {
        match self {
            Self::Verbs(cq) => Some(cq.cq.clone()),
            Self::Direct(cqs) => cqs.receives(srq),
        }
    }

    /// Adds up to `most` completions; `requests` says whether anything but receives from SRQs completes here. Fewer than
    /// `most` are all there were.
    #[inline]
    pub(crate) fn poll(&mut self, into: &mut Vec<Completion>, most: usize, requests: bool) -> Result<()> {
        match self {
            Self::Verbs(cq) => cq.poll(into, most),
            Self::Direct(cqs) => cqs.poll(into, most, requests),
        }
    }

    /// The CQs of receives from SRQs, one for each SRQ, where they are polled without verbs. The caller polls them one
    /// message at a time: a message is 40 bytes that a closure or an enum would move, at 40 instructions a dequeue.
    #[inline(always)]
    pub(crate) fn direct_receives(&mut self) -> Option<&mut [ReceiveCq]> {
        match self {
            Self::Direct(cqs) => Some(cqs.receive_cqs()),
            Self::Verbs(_) => None,
        }
    }

    /// Whether each SRQ has a CQ of its own here, which [`CqPath::open_srq`] makes.
    pub(crate) fn has_cq_of_srqs(&self) -> bool {
        matches!(self, Self::Direct(_))
    }

    /// Makes the CQ of receives from this SRQ.
    pub(crate) fn open_srq(&mut self, srq: &SrqPath) -> Result<()> {
        match (self, srq) {
            (Self::Direct(cqs), SrqPath::Direct(srq)) => cqs.open(srq),
            _ => Ok(()),
        }
    }

    /// Gives up the CQ of receives from this SRQ, which no QP uses any more; calls `left` with what
    /// it still has.
    pub(crate) fn close_srq(&mut self, srq: u32, left: impl FnMut(&Completion)) {
        if let Self::Direct(cqs) = self {
            cqs.close(srq, left);
        }
    }

    /// A UD EP receives from this SRQ here.
    pub(crate) fn expect_datagrams(&mut self, srq: u32) {
        if let Self::Direct(cqs) = self {
            cqs.expect_datagrams(srq);
        }
    }

    /// Asks for one event on the channel at the next completion (or the next solicited or failed one).
    pub(crate) fn arm(&mut self, solicited_only: bool) -> Result<()> {
        match self {
            Self::Verbs(cq) => cq.arm(solicited_only),
            Self::Direct(cqs) => cqs.arm(solicited_only),
        }
    }

    /// Makes room for at least this many, beside the receives of SRQs that have a CQ of their own.
    pub(crate) fn ensure(&mut self, depth: u32) -> Result<()> {
        match self {
            Self::Verbs(cq) => cq.ensure(depth),
            Self::Direct(cqs) => cqs.ensure(depth),
        }
    }

    /// An event with this CQ token was read from the channel.
    pub(crate) fn event(&mut self, token: u64) {
        if let Self::Direct(cqs) = self {
            cqs.event(token);
        }
    }
}

/// Which path an IA uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DataPath {
    Verbs,
    Direct,
}

impl DataPath {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Verbs => "verbs",
            Self::Direct => "direct",
        }
    }

    /// The most entries that an SRQ of this path can have.
    pub(crate) fn max_depth(self) -> u32 {
        match self {
            Self::Verbs => u32::MAX,
            Self::Direct => direct::MAX_DEPTH,
        }
    }

    /// An SRQ with `depth` entries, from a verbs one with room for `room`.
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

    /// The CQs of an EVD, from its verbs CQ.
    pub(crate) fn cq(self, cq: Cq, channel: Option<&CompChannel>) -> CqPath {
        match self {
            Self::Verbs => CqPath::Verbs(verbs::VerbsCq { cq }),
            Self::Direct => CqPath::Direct(direct::DirectCqs::new(cq, channel.cloned())),
        }
    }

    pub(crate) fn qp(self, pd: &Pd, init: &QpInit<'_>) -> Result<Qp, rxe_fallback::Error> {
        // Without scatter to CQE: libmlx5 copies small messages from there to the address that was posted, also where that
        // counts from the start of a zero-based region.
        match self {
            Self::Direct => direct::create_qp(pd, init),
            // A machine without the library for it has no direct path either.
            Self::Verbs if direct::unsupported_reason(pd.context()).is_none() => direct::create_qp(pd, init),
            Self::Verbs => Qp::create(pd, init),
        }
    }

    /// Chooses for this device, as `DOORBELL_DATAPATH` asks.
    ///
    /// # Errors
    /// MODEL_NOT_SUPPORTED where the variable forces a path that this device cannot have, INVALID_PARAMETER for
    /// a value that is none of the three.
    pub(crate) fn choose(context: &Context) -> Result<(Self, String)> {
        let device = context.name();
        let wish = std::env::var("DOORBELL_DATAPATH").unwrap_or_default();
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
