//! The state of UD EPs, in addition to that of all EPs.

use crate::device::Tries;
use crate::memory::queue;
use crate::sync::{Mutex, rank};
use crate::{Error, Result, ReturnType, Subtype};
use rxe_fallback::{Ah, CmId};
use std::collections::{HashMap, HashSet, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;

/// The state that only UD EPs have.
#[derive(Debug, Default)]
pub(crate) struct UdState(pub(crate) Mutex<{ rank::DATAGRAMS }, State>);

impl UdState {
    /// Reserves memory for the address handles of this many sends.
    pub(crate) fn new(sends: usize) -> Result<Self> {
        // One more, because the handles of completed sends are dropped after the next send.
        let sending = queue(sends + 1)?;
        Ok(Self(Mutex::new(State { sending, ..State::default() })))
    }
}

#[derive(Debug, Default)]
pub(crate) struct State {
    /// Resolutions under way, by the tokens of their CM ids.
    pub(crate) pending: HashMap<u64, PendingResolve>,
    /// CM handles that events have carried and that are not freed.
    pub(crate) cms: HashSet<u64>,
    /// Address handles of sends, by the position of the send. The device may use a handle until the
    /// send has completed.
    pub(crate) sending: VecDeque<(u64, Ah)>,
    /// Whether peers may know the QP number.
    pub(crate) known: bool,
}

/// A resolution under way.
#[derive(Debug)]
pub(crate) struct PendingResolve {
    pub(crate) id: Arc<CmId>,
    pub(crate) remote: SocketAddr,
    /// The tries to resolve the address.
    pub(crate) tries: Tries,
    pub(crate) side: Side,
}

#[derive(Debug)]
pub(crate) enum Side {
    /// This EP is the active side and sends this private data.
    Active(Vec<u8>),
    /// This EP has accepted the request of this QP, which had this private data.
    Passive(u32, Vec<u8>),
}

/// The error on a device without UD support.
pub(crate) fn not_here() -> Error {
    let text = "this device does not support datagrams (DAT_IB_UD is FALSE)";
    Error::new(ReturnType::ModelNotSupported, Subtype::None, text)
}
