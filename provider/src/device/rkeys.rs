//! The rkeys (RMR contexts) that are in use on a device, with the LMR or memory window of each.

use super::registry::each_of;
use crate::Result;
use crate::error::PostError;
use crate::sync::{Mutex, rank};
use crate::types::ByNumber;
use crate::types::{EpId, LmrTriplet};
use std::sync::{Arc, Weak};

/// An RMR: the owner of a memory window. Events of binds, of peers and of EPs reach it by this
/// trait.
pub(crate) trait WindowOwner: Send + Sync {
    /// Called when the event of a bind has left its EVD. `serial` is that of a bind that has
    /// succeeded.
    fn bind_done(&self, success: bool, serial: u32);

    /// Called for every RMR when a peer has invalidated this rkey, which may belong to another RMR.
    fn invalidated(&self, rkey: u32);

    /// Called before the QP of this EP is destroyed. A window that is bound through the QP has to
    /// be freed first.
    fn ep_gone(&self, ep: EpId);

    /// The `len` bytes of local memory at `at`, an address of this RMR that peers may write.
    fn local(&self, at: u64, len: u32) -> Result<LmrTriplet, PostError>;
}

/// What an rkey names.
#[derive(Clone, Copy, Debug)]
pub(crate) enum RkeyTarget {
    /// The LMR with this context.
    Lmr(u32),
    /// The RMR with this number, bound through this EP.
    Rmr(u64, EpId),
}

#[derive(Default)]
struct Tables {
    targets: ByNumber<u32, RkeyTarget>,
    /// The number of further rkeys for which memory is reserved.
    expected: usize,
    windows: ByNumber<u64, Weak<dyn WindowOwner>>,
}

pub(crate) struct Rkeys(Mutex<{ rank::TABLE }, Tables>);

/// Reserved memory for one more rkey: see [`Rkeys::expect`].
pub(crate) struct ExpectedRkey<'a>(&'a Rkeys);

impl ExpectedRkey<'_> {
    /// Adds an rkey.
    pub(crate) fn insert(self, rkey: u32, target: RkeyTarget) {
        self.0.0.lock().unwrap().targets.insert(rkey, target);
    }
}

impl Drop for ExpectedRkey<'_> {
    fn drop(&mut self) {
        self.0.0.lock().unwrap().expected -= 1;
    }
}

impl Rkeys {
    /// Without rkeys, and with room for the first.
    pub(super) fn new() -> Result<Self> {
        let mut tables = Tables::default();
        tables.targets.try_reserve(1)?;
        Ok(Self(Mutex::new(tables)))
    }

    /// Adds an rkey.
    ///
    /// # Errors
    /// No memory for the table.
    pub(crate) fn insert(&self, rkey: u32, target: RkeyTarget) -> Result<()> {
        let Tables { targets, expected, .. } = &mut *self.0.lock().unwrap();
        targets.try_reserve(*expected + 1)?;
        targets.insert(rkey, target);
        Ok(())
    }

    /// Reserves memory for an rkey that becomes known only after an operation that cannot be
    /// undone.
    ///
    /// # Errors
    /// No memory for the table.
    pub(crate) fn expect(&self) -> Result<ExpectedRkey<'_>> {
        let Tables { targets, expected, .. } = &mut *self.0.lock().unwrap();
        targets.try_reserve(*expected + 1)?;
        *expected += 1;
        Ok(ExpectedRkey(self))
    }

    pub(crate) fn remove(&self, rkey: u32) {
        self.0.lock().unwrap().targets.remove(&rkey);
    }

    /// Removes the rkey of this LMR, which another object may have got meanwhile.
    pub(crate) fn remove_lmr(&self, rkey: u32, context: u32) {
        let targets = &mut self.0.lock().unwrap().targets;
        if matches!(targets.get(&rkey), Some(RkeyTarget::Lmr(lmr)) if *lmr == context) {
            targets.remove(&rkey);
        }
    }

    /// Removes the rkey of an RMR that was bound through this EP: its peer has invalidated the rkey.
    pub(crate) fn remove_bound(&self, rkey: u32, through: EpId) {
        let targets = &mut self.0.lock().unwrap().targets;
        if matches!(targets.get(&rkey), Some(RkeyTarget::Rmr(_, ep)) if *ep == through) {
            targets.remove(&rkey);
        }
    }

    pub(crate) fn find(&self, rkey: u32) -> Option<RkeyTarget> {
        self.0.lock().unwrap().targets.get(&rkey).copied()
    }

    /// Adds an RMR under its unique number.
    ///
    /// # Errors
    /// No memory for the table.
    pub(crate) fn add_window<W: WindowOwner + 'static>(&self, rmr: u64, owner: &Arc<W>) -> Result<()> {
        let windows = &mut self.0.lock().unwrap().windows;
        windows.try_reserve(1)?;
        let owner: Weak<W> = Arc::downgrade(owner);
        windows.insert(rmr, owner);
        Ok(())
    }

    pub(crate) fn remove_window(&self, rmr: u64) {
        self.0.lock().unwrap().windows.remove(&rmr);
    }

    pub(crate) fn window(&self, rmr: u64) -> Option<Arc<dyn WindowOwner>> {
        self.0.lock().unwrap().windows.get(&rmr)?.upgrade()
    }

    /// Tells all RMRs that a peer has invalidated this rkey.
    pub(crate) fn invalidated(&self, rkey: u32) {
        self.each_window(|window| window.invalidated(rkey));
    }

    /// Tells all RMRs that the QP of this EP is about to be destroyed.
    pub(crate) fn ep_gone(&self, ep: EpId) {
        self.each_window(|window| window.ep_gone(ep));
    }

    fn each_window(&self, f: impl FnMut(Arc<dyn WindowOwner>)) {
        each_of(&self.0, |tables| &tables.windows, Weak::upgrade, f);
    }
}
