//! Open command descriptors: their objects and their doorbell pages.

use std::collections::BTreeMap;

use crate::host::mem::Area;
use crate::host::sys::FileId;

/// Kinds of objects behind a handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ObjectKind {
    Pd,
    Mr,
    Mw,
    Cq,
    Qp,
    Srq,
    Ah,
    Xrcd,
    Uar,
    Dm,
    Flow,
    Matcher,
    Mkey,
    ReservedQpns,
    AddressMapping,
    WorkQueue,
    IndirectionTable,
}

/// One open command descriptor.
#[derive(Debug)]
pub(crate) struct Context {
    /// The engine's mapping of the same pages.
    pub(crate) uar: Area,
    /// The file of the memory behind them.
    pub(crate) uar_file: FileId,
    /// UAR pages that may carry doorbells.
    pub(crate) uar_pages: Vec<UarPage>,
    pub(crate) next_uar_page: u32,
    pub(crate) handles: BTreeMap<u32, (ObjectKind, usize)>,
    pub(crate) next_handle: u32,
    /// The asynchronous event channel, once GET_CONTEXT was called.
    pub(crate) async_channel: Option<usize>,
    pub(crate) cqe_version: u8,
    /// GET_CONTEXT was called.
    pub(crate) ready: bool,
}

/// A UAR page that may carry doorbells.
#[derive(Debug)]
pub(crate) struct UarPage {
    /// Its index, which is also its offset in pages.
    pub(crate) index: u32,
    /// The QPs that ring their doorbells on this page.
    pub(crate) qps: Vec<usize>,
    /// A doorbell was taken from this page after the last comparison of the send records of its
    /// QPs. A register keeps only the last doorbell, so other QPs may have been rung as well.
    pub(crate) compare: bool,
    /// A doorbell was taken by a hook on libmlx5 since the helper thread looked last.
    pub(crate) hooked: bool,
    /// The last doorbell of each of the two registers, if it is known and was a BlueFlame copy.
    pub(crate) last_copy: [Option<LastCopy>; 2],
}

impl UarPage {
    pub(crate) fn new(index: u32) -> Self {
        Self { index, qps: Vec::new(), compare: false, hooked: false, last_copy: [None; 2] }
    }
}

impl Context {
    /// Where the page with this index is in the list.
    #[inline]
    pub(crate) fn uar_slot(&self, index: u32) -> Option<usize> {
        self.uar_pages.iter().position(|page| page.index == index)
    }
}

/// Bytes of a context's UAR area; sparse.
pub(crate) const UAR_AREA: usize = 64 << 20;
/// First index of dynamic UAR pages; lower indices are static pages.
pub(crate) const FIRST_DYNAMIC_UAR: u32 = 0x1000;

/// The copy that was the last doorbell of a register: its half, its QP, the index after its WQE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LastCopy {
    pub(crate) half: usize,
    pub(crate) qp: usize,
    pub(crate) end: u16,
}
