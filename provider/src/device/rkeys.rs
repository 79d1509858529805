//! RMR contexts (rkeys) that are in use on a device, and the memory windows behind some of them.

use super::registry::each_of;
use crate::Result;
use crate::error::PostError;
use crate::sync::{Mutex, rank};
use crate::types::{EpId, LmrTriplet};
use std::collections::HashMap;
use std::sync::{Arc, Weak};

/// An RMR, as the device's events and the ends of EPs concern it.
pub(crate) trait WindowOwner: Send + Sync {
    /// The event of a bind has left its EVD.
    fn bind_done(&self, success: bool);

    /// A peer has invalidated this rkey. Every RMR is told: it may be another's.
    fn invalidated(&self, rkey: u32);

    /// The QP of this EP is about to go: a window that is bound through it goes first.
    fn ep_gone(&self, ep: EpId);

    /// The local memory that peers reach by this RMR, for a write there on their behalf.
    fn local(&self, at: u64, len: u32) -> Result<LmrTriplet, PostError>;
}

/// What an rkey names.
#[derive(Clone, Copy, Debug)]
pub(crate) enum RkeyTarget {
    /// The LMR with this context.
    Lmr(u32),
    /// The RMR with this number.
    Rmr(u64),
}

#[derive(Default)]
struct Tables {
    targets: HashMap<u32, RkeyTarget>,
    /// How many more there is memory for in any case.
    expected: usize,
    windows: HashMap<u64, Weak<dyn WindowOwner>>,
}

#[derive(Default)]
pub(crate) struct Rkeys(Mutex<{ rank::TABLE }, Tables>);

/// Memory for one more rkey: see [`Rkeys::expect`].
pub(crate) struct ExpectedRkey<'a>(&'a Rkeys);

impl ExpectedRkey<'_> {
    /// This rkey names something of the device from now on.
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
    /// This rkey names something of the device from now on.
    ///
    /// # Errors
    /// No memory for the table.
    pub(crate) fn insert(&self, rkey: u32, target: RkeyTarget) -> Result<()> {
        let Tables { targets, expected, .. } = &mut *self.0.lock().unwrap();
        targets.try_reserve(*expected + 1)?;
        targets.insert(rkey, target);
        Ok(())
    }

    /// Memory for an rkey that will be known only after something that cannot be undone.
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

    pub(crate) fn find(&self, rkey: u32) -> Option<RkeyTarget> {
        self.0.lock().unwrap().targets.get(&rkey).copied()
    }

    /// A new RMR; its number is its own.
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

    /// A peer has invalidated this rkey.
    pub(crate) fn invalidated(&self, rkey: u32) {
        self.each_window(|window| window.invalidated(rkey));
    }

    /// The QP of this EP goes: no window may be bound through it any more.
    pub(crate) fn ep_gone(&self, ep: EpId) {
        self.each_window(|window| window.ep_gone(ep));
    }

    fn each_window(&self, f: impl FnMut(Arc<dyn WindowOwner>)) {
        each_of(&self.0, |tables| &tables.windows, Weak::upgrade, f);
    }
}
