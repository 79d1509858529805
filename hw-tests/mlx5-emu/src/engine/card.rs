//! What the engine works on: the queues, keys and doorbell pages of all contexts, and the way to
//! other processes. The tables that only commands need are in [`crate::device`].

use std::collections::{BinaryHeap, HashMap, VecDeque};

use crate::host::slab::Slab;
use crate::objects::faults::Faults;
use crate::objects::{
    Channel, Context, Cq, Flow, IndirectionTable, Layout, MAX_CQ, MAX_KEYS, MAX_QP, MAX_SRQ, MAX_TABLES,
    Mkey, Qp, Seg, Srq, Timer,
};
use crate::wire::Net;
use crate::wire::groups::Groups;

/// The card.
pub(crate) struct Card {
    pub(crate) contexts: Slab<Context>,
    pub(crate) keys: Slab<Mkey>,
    /// Memory behind indirect keys, by index of the key.
    pub(crate) layouts: HashMap<usize, Layout>,
    /// The number of a key is its index with these bits changed, so that no other process can guess
    /// it.
    pub(crate) key_mask: u32,
    pub(crate) cqs: Slab<Cq>,
    pub(crate) srqs: Slab<Srq>,
    pub(crate) qps: Slab<Qp>,
    pub(crate) flows: Slab<Flow>,
    pub(crate) tables: Slab<IndirectionTable>,
    pub(crate) groups: Groups,
    pub(crate) channels: Slab<Channel>,
    pub(crate) net: Net,
    pub(crate) faults: Faults,
    pub(crate) port_up: bool,
    /// The device was removed or met a fatal error. It carries out no request, of its own QPs or of
    /// others, and takes no answer.
    pub(crate) dead: bool,
    /// No thread writes to a doorbell register now: the program requested this step, and there is
    /// no helper thread.
    pub(crate) settled: bool,
    /// QPs with a doorbell rung.
    pub(super) ready: VecDeque<usize>,
    /// The QP whose send WQE is being carried out.
    pub(super) executing: Option<usize>,
    /// That QP goes to the error state once this WQE has completed.
    pub(super) breaks: bool,
    pub(super) timers: BinaryHeap<Timer>,
    /// QPs in the error state. The program may still post to their receive rings.
    pub(super) in_error: Vec<usize>,
    /// Scratch lists, kept to avoid allocation.
    pub(super) gather: Vec<Seg>,
    pub(super) scatter: Vec<Seg>,
    /// Channels with events that did not fit into their socket.
    pub(super) backlogged: bool,
    /// CQEs written.
    pub(crate) completions: u64,
    /// Steps that took doorbells which need no watching.
    pub(crate) hooked_steps: u64,
}

impl Card {
    /// A card without objects, whose key numbers have these bits changed.
    pub(crate) fn new(key_mask: u32) -> Self {
        Self {
            contexts: Slab::compact(1 << 10),
            keys: Slab::new(MAX_KEYS),
            layouts: HashMap::new(),
            key_mask,
            cqs: Slab::new(MAX_CQ),
            srqs: Slab::new(MAX_SRQ),
            qps: Slab::new(MAX_QP),
            flows: Slab::new(1 << 16),
            tables: Slab::new(MAX_TABLES),
            groups: Groups::default(),
            channels: Slab::compact(1 << 16),
            net: Net::new(),
            faults: Faults::from_environment(),
            port_up: true,
            dead: false,
            settled: false,
            ready: VecDeque::new(),
            executing: None,
            breaks: false,
            timers: BinaryHeap::new(),
            in_error: Vec::new(),
            gather: Vec::with_capacity(64),
            scatter: Vec::with_capacity(64),
            backlogged: false,
            completions: 0,
            hooked_steps: 0,
        }
    }

    /// The QP with this number, if it lives in this process.
    #[inline(always)]
    pub(crate) fn qp_by_number(&self, qpn: u32) -> Option<usize> {
        let index = (qpn & (MAX_QP as u32 - 1)) as usize;
        self.qps.get(index).filter(|qp| qp.qpn == qpn).map(|_| index)
    }

    /// The SRQ with this number in this process.
    pub(super) fn srq_by_number(&self, srqn: u32) -> Option<usize> {
        let index = ((srqn & (MAX_QP as u32 - 1)) as usize).checked_sub(1)?;
        self.srqs.get(index).filter(|srq| srq.srqn == srqn).map(|_| index)
    }

    /// Doorbells on this page are found without a watch for a while.
    pub(crate) fn leave_unwatched(&mut self, context: usize, page: u32) {
        if let Some(state) = self.contexts.get_mut(context)
            && let Some(slot) = state.uar_slot(page)
        {
            state.uar_pages[slot].hooked = true;
        }
    }

    /// True when the card has work to do soon that no descriptor, timer or doorbell announces.
    pub(crate) fn is_restless(&self) -> bool {
        self.backlogged || !self.in_error.is_empty() || self.faults.active
    }
}
