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
mod cqs;
pub(crate) mod direct;
pub(crate) mod entries;
mod fast;
pub(crate) mod losses;
mod next;
mod on_path;
mod path;
mod queues;
mod request;
mod ring;
mod srq;
pub(crate) mod verbs;

pub use self::completion::WrInfo;
pub(crate) use self::completion::{Completion, Lost, SrqCounts, WrId};
pub(crate) use self::cqs::CqPath;
use self::direct::DirectCqs;
pub(crate) use self::direct::evd_of;
pub use self::fast::Fast;
pub(crate) use self::fast::{Chain, PostReceives, PostSends, PostSrq, Segment};
pub use self::next::Feed;
pub(crate) use self::next::{Next, NextOnCq};
pub use self::on_path::DataPath;
pub use self::path::{Direct, Path, Verbs};
pub(crate) use self::path::{Queues, with_path};
pub(crate) use self::queues::{RecvQueue, SendQueue};
pub(crate) use self::request::Outgoing;
pub use self::request::Request;
pub(crate) use self::ring::Ring;
pub(crate) use self::srq::{SrqPath, SrqPoster};
use crate::{Error, Result, ReturnType, Subtype};
use rxe_fallback::{CompChannel, Context, Cq, Pd, Qp, QpInit, Srq};

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
