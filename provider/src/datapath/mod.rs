//! The interface between DAT objects and the data path.
//!
//! All queues of an IA use the same path. The path is standard verbs ([`verbs`]), or, on mlx5,
//! queue memory that this provider reads and writes itself ([`direct`]). The choice is made once
//! per IA and is logged. `DOORBELL_DATAPATH=auto|direct|verbs` forces or refuses a path.
//!
//! An SRQ has two parts: [`SrqPoster`] belongs to the thread that posts, and all threads share
//! [`SrqPath`]. [`CqPath`] belongs to an EVD, [`SendQueue`] and [`RecvQueue`] to an EP. Each is one
//! of two types. Fast functions are generic over the path ([`path`]); the modules above match it
//! nowhere.

pub(crate) mod completion;
pub(crate) mod direct;
pub(crate) mod entries;
mod fast;
pub(crate) mod losses;
mod on_path;
mod path;
mod queues;
mod request;
mod ring;
mod srq;
pub(crate) mod verbs;

pub use self::completion::WrInfo;
pub(crate) use self::completion::{Completion, Lost, SrqCounts, WrId};
pub(crate) use self::direct::{DirectCqs, evd_of};
pub use self::fast::Fast;
pub(crate) use self::fast::{Chain, PostReceives, PostSends, PostSrq, Segment};
pub use self::on_path::DataPath;
pub(crate) use self::on_path::OnPath;
pub use self::path::{Direct, Path, Verbs};
pub(crate) use self::path::{Queues, with_path};
pub(crate) use self::queues::{RecvQueue, SendQueue};
pub(crate) use self::request::Outgoing;
pub use self::request::Request;
pub(crate) use self::ring::Ring;
pub(crate) use self::srq::{SrqPath, SrqPoster};
use crate::{Error, Result, ReturnType, Subtype};
use rxe_fallback::{CompChannel, Context, Cq, Pd, Qp, QpInit, Srq};

/// The CQs of an EVD on one of the paths.
pub(crate) type CqPath = OnPath<DirectCqs, verbs::VerbsCq>;

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

impl DataPath {
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
