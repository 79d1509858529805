//! The EPs on an SRQ, and the EVDs that take their receive completions.
//!
//! The caller holds the lock of `SrqInner::eps`, which orders the free of an SRQ and the attach of
//! an EP (R31). While an EVD is listed here, its CQ has room for every entry of the SRQ once,
//! whatever the number of EPs.

use crate::evd::EvdInner;
use crate::memory::list;
use crate::shared_recv::SharedRecv;
use crate::{Error, Result, Subtype};
use std::collections::{HashMap, hash_map::Entry};
use std::sync::Arc;

/// The EPs on an SRQ, and their receive EVDs by number.
#[derive(Debug, Default)]
pub(super) struct Attached {
    eps: u32,
    evds: HashMap<u64, ReceiveEvd>,
    shut: bool,
}

#[derive(Debug)]
struct ReceiveEvd {
    evd: Arc<EvdInner>,
    eps: u32,
    /// The number of SRQ entries for which the EVD's CQ has room.
    room: u32,
}

impl ReceiveEvd {
    fn make_room(&mut self, recv: &Arc<SharedRecv>, depth: u32) -> Result<()> {
        if depth > self.room {
            self.evd.make_room(recv, self.room, depth)?;
            self.room = depth;
        }
        Ok(())
    }
}

impl Attached {
    /// Whether an EP uses the SRQ.
    pub(super) fn has_eps(&self) -> bool {
        self.eps > 0
    }

    /// Whether no EP can attach any more.
    pub(super) fn is_shut(&self) -> bool {
        self.shut
    }

    /// Refuses later EPs. Fails while an EP uses the SRQ.
    pub(super) fn shut(&mut self) -> Result<()> {
        if self.has_eps() {
            let text = format!("{} EPs use this SRQ: free them first", self.eps);
            return Err(Error::state(Subtype::InvalidStateSrqInUse, text));
        }
        self.shut = true;
        Ok(())
    }

    /// Adds an EP with this receive EVD, if fewer than `most` EPs use the SRQ. Makes room in the
    /// EVD's CQ.
    pub(super) fn attach(&mut self, recv: &Arc<SharedRecv>, evd: &Arc<EvdInner>, most: u32) -> Result<()> {
        if self.eps >= most {
            return Err(Error::resources(Subtype::ResourceSrq, format!("an SRQ takes {most} EPs here")));
        }
        self.evds.try_reserve(1)?;
        match self.evds.entry(evd.id.0) {
            Entry::Occupied(mut receive_evd) => receive_evd.get_mut().eps += 1,
            Entry::Vacant(none) => {
                let mut receive_evd = ReceiveEvd { evd: evd.clone(), eps: 1, room: 0 };
                receive_evd.make_room(recv, recv.path.depth())?;
                none.insert(receive_evd);
            }
        }
        self.eps += 1;
        Ok(())
    }

    /// Removes an EP with this receive EVD.
    pub(super) fn detach(&mut self, recv: &Arc<SharedRecv>, evd: &Arc<EvdInner>) {
        self.eps -= 1;
        let Entry::Occupied(mut receive_evd) = self.evds.entry(evd.id.0) else { return };
        receive_evd.get_mut().eps -= 1;
        if receive_evd.get().eps == 0 {
            // Done under the lock, so that an EP that attaches now finds the EVD without this SRQ.
            evd.forget_srq(recv, receive_evd.remove().room);
        }
    }

    /// Makes room for `depth` entries in the CQ of each receive EVD.
    pub(super) fn make_room(&mut self, recv: &Arc<SharedRecv>, depth: u32) -> Result<()> {
        self.evds.values_mut().try_for_each(|receive_evd| receive_evd.make_room(recv, depth))
    }

    /// The receive EVDs, each once.
    pub(super) fn evds(&self) -> Result<Vec<Arc<EvdInner>>> {
        let mut evds = list(self.evds.len())?;
        evds.extend(self.evds.values().map(|receive_evd| receive_evd.evd.clone()));
        Ok(evds)
    }

    /// Waits for every thread that holds the lock of a receive EVD.
    pub(super) fn synchronize(&self) {
        self.evds.values().for_each(|receive_evd| receive_evd.evd.synchronize());
    }
}
