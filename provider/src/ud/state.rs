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
pub(crate) struct UdState(pub(super) Mutex<{ rank::DATAGRAMS }, State>);

impl UdState {
    /// With memory for the address handles of so many sends.
    pub(crate) fn new(sends: usize) -> Result<Self> {
        // One more: the handles of done sends are dropped after the next send.
        let sending = queue(sends + 1)?;
        Ok(Self(Mutex::new(State { sending, ..State::default() })))
    }
}

#[derive(Debug, Default)]
pub(super) struct State {
    /// Resolves under way, by the tokens of their connection ids.
    pub(super) pending: HashMap<u64, PendingResolve>,
    /// CM handles that events have carried and nobody has freed.
    pub(super) cms: HashSet<u64>,
    /// Address handles of sends, by their positions: a device may need them until the send is done.
    pub(super) sending: VecDeque<(u64, Ah)>,
    /// Peers have been told its QP's number.
    pub(super) known: bool,
}

/// A resolve under way.
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
    /// It has accepted the request of this QP, which had this private data.
    Passive(u32, Vec<u8>),
}

/// The error where a device has no datagrams.
pub(crate) fn not_here() -> Error {
    let text = "this device has no datagrams (DAT_IB_UD is FALSE)";
    Error::new(ReturnType::ModelNotSupported, Subtype::None, text)
}
