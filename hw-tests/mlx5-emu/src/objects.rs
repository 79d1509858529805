//! The objects of commands, as values: what the engine works on and the commands make.

mod channel;
pub(crate) mod commands;
mod context;
mod cq;
mod domain;
pub(crate) mod faults;
pub(crate) mod flow;
mod key;
mod limits;
mod qp;
mod qp_state;
pub(crate) mod rss;
mod srq;
pub(crate) mod syndrome;

pub(crate) use channel::{Channel, event};
pub(crate) use context::{Context, FIRST_DYNAMIC_UAR, LastCopy, ObjectKind, UAR_AREA, UarPage};
pub(crate) use cq::{Armed, Cq, Stamps};
pub(crate) use domain::{Ah, Pd, Xrcd};
pub(crate) use flow::{FIELDS, Flow, Matcher, field};
pub(crate) use key::{Dm, KeyKind, Layout, Mkey, Piece, Seg, access};
pub(crate) use limits::{MAX_CQ, MAX_KEYS, MAX_PD, MAX_QP, MAX_SRQ, MAX_TABLES, QPN_INDEX_BITS, process_of};
pub(crate) use qp::{Blocked, Outstanding, Qp, QpAttr, QpCap, SN_MASK, Timer, fold_key};
pub use qp_state::QpState;
pub(crate) use qp_state::{QpType, is_ok, mask};
pub(crate) use rss::IndirectionTable;
pub(crate) use srq::{FREE, Srq};
