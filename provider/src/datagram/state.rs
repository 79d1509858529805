//! What an EP for datagrams keeps beside what every EP has.

use crate::memory::queue;
use crate::sync::{Mutex, rank};
use crate::{Error, Result, ReturnType, Subtype};
use rxe_fallback::{Ah, CmId};
use std::collections::{HashMap, HashSet, VecDeque};
use std::net::IpAddr;
use std::sync::Arc;

/// What a UD EP has beyond others.
#[derive(Debug, Default)]
pub(crate) struct Ud(pub(super) Mutex<{ rank::DATAGRAMS }, State>);

impl Ud {
    /// With memory for the address handles of so many sends.
    pub(crate) fn new(sends: usize) -> Result<Self> {
        // One more: done sends are forgotten after the next one.
        let sending = queue(sends + 1)?;
        Ok(Self(Mutex::new(State { sending, ..State::default() })))
    }
}

#[derive(Debug, Default)]
pub(super) struct State {
    /// By the tokens of their ids.
    pub(super) asking: HashMap<u64, PendingResolve>,
    /// Handed out with events, and not freed.
    pub(super) cms: HashSet<u64>,
    /// Address handles of sends, by position: a device may need them until the send is done.
    pub(super) sending: VecDeque<(u64, Ah)>,
    /// Peers have been told its QP's number.
    pub(super) known: bool,
}

/// A question under way.
#[derive(Debug)]
pub(crate) struct PendingResolve {
    pub(super) id: Arc<CmId>,
    pub(super) remote: IpAddr,
    pub(super) side: Side,
}

#[derive(Debug)]
pub(super) enum Side {
    /// This EP connects, with this private data.
    Active(Vec<u8>),
    /// It has accepted a request of this QP, which came with this private data.
    Passive(u32, Vec<u8>),
}

/// A service type that this device does not have.
pub(crate) fn not_here() -> Error {
    let text = "this device has no datagrams (DAT_IB_UD is FALSE)";
    Error::new(ReturnType::ModelNotSupported, Subtype::None, text)
}
