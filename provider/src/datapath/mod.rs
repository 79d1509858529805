//! The seam between DAT objects and what carries their receives.
//!
//! An SRQ and the CQs of its endpoints' receives are all on one path: standard verbs ([`verbs`]), or, on mlx5, queue memory
//! written by hand ([`direct`]). The choice is made once per IA, logged, and can be forced or refused with
//! `DOORBELL_DATAPATH=auto|direct|verbs`.
//!
//! What a path owes the objects above it is [`ReceiveQueue`] and [`CompletionQueue`]; nothing above this module knows
//! which one it is talking to.

pub(crate) mod direct;
pub(crate) mod ledger;
pub(crate) mod verbs;

use self::ledger::Tag;
use crate::error::PostError;
use crate::types::{DtoOp, DtoStatus};
use crate::{Error, Result, ReturnType, Subtype};
use rxe_fallback::{CompChannel, Context, Cq, Pd, Qp, QpInit, Sge, Srq};

/// Which queue a completion belongs to, as told by the token posted with the work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Token {
    /// A buffer from an SRQ: its entry, and the low bits of the SRQ's id.
    Srq { srq: u32, entry: u32 },
    /// A receive of a plain EP.
    Recv,
    /// A request, by its position in the EP's stream of requests.
    Request(u64),
}

impl Token {
    const REQUEST: u64 = 1 << 63;
    const RECV: u64 = 1 << 62;
    const SRQ_BITS: u32 = 0x3fff_ffff;

    pub(crate) fn pack(self) -> u64 {
        match self {
            Self::Srq { srq, entry } => u64::from(srq & Self::SRQ_BITS) << 32 | u64::from(entry),
            Self::Recv => Self::RECV,
            Self::Request(seq) => Self::REQUEST | (seq & !Self::REQUEST),
        }
    }

    pub(crate) fn unpack(raw: u64) -> Self {
        if raw & Self::REQUEST != 0 {
            Self::Request(raw & !Self::REQUEST)
        } else if raw & Self::RECV != 0 {
            Self::Recv
        } else {
            Self::Srq { srq: (raw >> 32) as u32, entry: raw as u32 }
        }
    }
}

/// One completion, in DAT's terms.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Completion {
    pub(crate) token: Token,
    pub(crate) qpn: u32,
    pub(crate) status: DtoStatus,
    /// For receives only; a request knows what it was.
    pub(crate) op: DtoOp,
    pub(crate) length: u32,
    pub(crate) immediate: Option<u32>,
    pub(crate) invalidated: Option<u32>,
}

/// Exact counts of an SRQ (R36, R37).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SrqCounts {
    pub(crate) depth: u32,
    pub(crate) available: u32,
    pub(crate) outstanding: u32,
}

/// What an SRQ needs from its path.
pub(crate) trait ReceiveQueue {
    /// Posts one buffer; all or nothing.
    fn post(&self, segments: &[Sge], tag: Tag) -> Result<(), PostError>;
    /// Where the entries are.
    fn counts(&self) -> SrqCounts;
    /// A completion names this entry; gives its tag.
    fn complete(&self, entry: u32, ep: u64) -> Option<Tag>;
    /// The entry's completion was reaped or dropped.
    fn release(&self, entry: u32);
    /// An EP begins to take buffers.
    fn ep_connected(&self, ep: u64);
    /// An EP takes no more and its completions are in; the device may have swallowed the buffer it held.
    fn ep_drained(&self, ep: u64);
    /// The next entry that is known to be swallowed, now completed.
    fn next_lost(&self) -> Option<ledger::Lost>;
    /// A new depth, not below what is outstanding.
    fn resize(&self, depth: u32) -> Result<()>;
    /// Asks the device for one event when fewer than this many are available; 0 takes the wish back.
    fn arm_limit(&self, limit: u32) -> Result<()>;
    /// The limit that is still armed in the device; 0 once its event has been made.
    fn armed_limit(&self) -> Result<u32>;
}

/// What an EVD needs from its path.
pub(crate) trait CompletionQueue {
    /// Takes up to `into.len()` completions.
    fn poll(&self, into: &mut [Option<Completion>]) -> Result<usize>;
    /// Asks for one event on the channel at the next completion (or the next solicited or failed one).
    fn arm(&self, solicited_only: bool) -> Result<()>;
    /// Makes room for at least this many, beside the receives of SRQs that have a CQ of their own.
    fn ensure(&self, depth: u32) -> Result<()>;
    /// An event with this CQ token was read from the channel.
    fn event(&self, _token: u64) {}
}

/// An SRQ on one of the paths.
#[derive(Debug)]
pub(crate) enum SrqPath {
    Verbs(verbs::VerbsSrq),
    Direct(direct::DirectSrq),
}

impl SrqPath {
    /// The verbs object that QPs are created on.
    pub(crate) fn verbs(&self) -> &Srq {
        match self {
            Self::Verbs(srq) => srq.verbs(),
            Self::Direct(srq) => srq.verbs(),
        }
    }
}

impl std::ops::Deref for SrqPath {
    type Target = dyn ReceiveQueue;

    fn deref(&self) -> &Self::Target {
        match self {
            Self::Verbs(srq) => srq,
            Self::Direct(srq) => srq,
        }
    }
}

/// A CQ on one of the paths.
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
}

impl std::ops::Deref for CqPath {
    type Target = dyn CompletionQueue;

    fn deref(&self) -> &Self::Target {
        match self {
            Self::Verbs(cq) => cq,
            Self::Direct(cqs) => cqs,
        }
    }
}

/// Which path an IA uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Verbs,
    Direct,
}

impl Kind {
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
    pub(crate) fn srq(self, srq: Srq, id: u32, depth: u32, room: u32, resizable: bool) -> Result<SrqPath> {
        Ok(match self {
            Self::Verbs => SrqPath::Verbs(verbs::VerbsSrq::new(srq, id, depth, room, resizable)),
            Self::Direct => SrqPath::Direct(direct::DirectSrq::new(srq, id, depth)?),
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
        match self {
            Self::Direct if init.srq.is_some() => direct::create_qp(pd, init),
            _ => Qp::create(pd, init),
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
            "" | "auto" => match direct::obstacle(context) {
                None => (Self::Direct, "libmlx5 drives the device".to_owned()),
                Some(why) => (Self::Verbs, format!("no direct data path: {why}")),
            },
            "direct" => match direct::obstacle(context) {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_survive_the_round_trip() {
        for token in [
            Token::Srq { srq: 0x3fff_ffff, entry: u32::MAX },
            Token::Srq { srq: 1, entry: 0 },
            Token::Recv,
            Token::Request(0),
            Token::Request(1 << 40),
        ] {
            assert_eq!(Token::unpack(token.pack()), token);
        }
    }
}
