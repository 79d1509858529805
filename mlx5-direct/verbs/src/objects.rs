#![expect(unsafe_code, reason = "addresses of verbs objects, shared between threads")]
//! The library's objects, one for each verbs object that it may drive.
//!
//! An object is in its table from its creation until it is destroyed or goes back to libmlx5. A
//! verbs object without an entry is libmlx5's.

use std::sync::atomic::{AtomicBool, AtomicU32};

use biased_lock::BiasedMutex;
use doorbell_sys::{ibv_context, ibv_cq, ibv_qp, ibv_qp_state, ibv_srq};
use mlx5_direct::{Rq, Sq};

use crate::{
    context::Context,
    control::{Buffer, Register},
    extended::Batch,
    extended_cq::Session,
    table::{Numbered, Table},
};

pub(crate) static CONTEXTS: Table<Context> = Table::new();

/// The objects of a context, by their verbs objects.
pub(crate) struct Objects {
    cqs: Box<Table<Cq>>,
    srqs: Box<Table<Srq>>,
    qps: Box<Table<Qp>>,
}

impl Objects {
    /// `None` without memory.
    pub(crate) fn new() -> Option<Self> {
        Some(Self { cqs: Table::on_heap()?, srqs: Table::on_heap()?, qps: Table::on_heap()? })
    }

    /// The objects of one class.
    pub(crate) fn of<K: Held>(&self) -> &Table<K::Object> {
        K::of(self)
    }
}

/// A class of verbs objects that the library may drive.
pub(crate) trait Held: Numbered + 'static {
    /// The library's object.
    type Object: 'static;

    /// The context of the object.
    ///
    /// # Safety
    ///
    /// `raw` is a live object.
    unsafe fn context(raw: *const Self) -> *mut ibv_context;

    /// The objects of this class.
    fn of(objects: &Objects) -> &Table<Self::Object>;
}

macro_rules! classes {
    ($($raw:ty => $object:ty, $table:ident;)*) => {$(
        impl Held for $raw {
            type Object = $object;

            #[inline(always)]
            unsafe fn context(raw: *const Self) -> *mut ibv_context {
                // SAFETY: live by contract; set at creation, and not changed.
                unsafe { (&raw const (*raw).context).read() }
            }

            #[inline(always)]
            fn of(objects: &Objects) -> &Table<$object> {
                &objects.$table
            }
        }
    )*};
}

classes! {
    ibv_cq => Cq, cqs;
    ibv_srq => Srq, srqs;
    ibv_qp => Qp, qps;
}

/// The library's object of a verbs object of any context.
///
/// # Safety
///
/// `raw` is null or a live object. The reference is not used after the object was removed and
/// freed.
pub(crate) unsafe fn find<K: Held>(raw: *const K) -> Option<&'static K::Object> {
    if raw.is_null() {
        return None;
    }
    // SAFETY: live by contract, with its open context.
    unsafe {
        let context = CONTEXTS.get(K::context(raw))?;
        K::of(&context.objects).get(raw)
    }
}

/// The library's object of a verbs object of a patched context.
///
/// # Safety
///
/// `raw` is a live object of a patched context. Otherwise as for [`find`].
pub(crate) unsafe fn find_here<K: Held>(raw: *const K) -> Option<&'static K::Object> {
    // SAFETY: live by contract, with its open context.
    unsafe { K::of(&Context::of(K::context(raw)).objects).get(raw) }
}

/// As [`find_here`], if the object is in its first place. A few instructions.
///
/// # Safety
///
/// As for [`find_here`].
#[inline(always)]
pub(crate) unsafe fn find_first<K: Held>(raw: *const K) -> Option<&'static K::Object> {
    // SAFETY: live by contract, with its open context.
    unsafe { K::of(&Context::of(K::context(raw)).objects).get_first(raw) }
}

/// A verbs object by its address. The library hands the pointer to verbs and to functions that are
/// given it by the program; the address is the same in every thread.
pub(crate) struct Raw<T>(*mut T);

// SAFETY: an address. Each use is a call of verbs, which any thread may make, or a load from a
// live object, for which the function that loads gives the reason.
unsafe impl<T> Send for Raw<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Raw<T> {}

impl<T> Raw<T> {
    pub(crate) fn new(object: *mut T) -> Self {
        Self(object)
    }

    pub(crate) fn get(&self) -> *mut T {
        self.0
    }
}

/// A CQ of `ibv_create_cq` or `ibv_create_cq_ex`.
pub(crate) struct Cq {
    pub(crate) raw: Raw<ibv_cq>,
    pub(crate) context: &'static Context,
    /// Whether libmlx5 drives the CQ.
    pub(crate) left: AtomicBool,
    pub(crate) state: BiasedMutex<CqState>,
    /// For a CQ of `ibv_create_cq_ex`.
    pub(crate) session: Option<Session>,
}

#[derive(Default)]
pub(crate) struct CqState {
    /// `None` until the first QP is taken over: nothing can complete until then.
    pub(crate) direct: Option<mlx5_direct::Cq>,
    /// Completion events read so far, until `direct` counts them.
    pub(crate) events: u32,
    /// Whether libmlx5 knows less of the CQ than the library: a completion was polled, or the CQ
    /// was resized by the library.
    pub(crate) polled: bool,
    /// How often libmlx5 has resized the CQ, while `direct` is `None`.
    pub(crate) marks: u32,
    /// The entries, after the library has resized the CQ.
    pub(crate) buffer: Option<Buffer>,
}

/// An SRQ of `ibv_create_srq`.
pub(crate) struct Srq {
    pub(crate) raw: Raw<ibv_srq>,
    pub(crate) context: &'static Context,
    pub(crate) direct: BiasedMutex<mlx5_direct::Srq>,
    /// QPs that receive from the SRQ.
    pub(crate) qps: AtomicU32,
}

/// A QP that was taken over.
pub(crate) struct Qp {
    pub(crate) raw: Raw<ibv_qp>,
    pub(crate) context: &'static Context,
    pub(crate) number: u32,
    /// Where the send queue is rung.
    pub(crate) register: Register,
    /// `ibv_qp_state` after the last `ibv_modify_qp`.
    pub(crate) state: AtomicU32,
    pub(crate) send: BiasedMutex<Option<Sq>>,
    pub(crate) receive: Receives,
    pub(crate) send_cq: Option<&'static Cq>,
    pub(crate) recv_cq: Option<&'static Cq>,
    /// For a QP with extended operations (`ibv_wr_start`).
    pub(crate) batch: Batch,
}

/// Where a QP receives.
pub(crate) enum Receives {
    /// From a receive queue of its own; `None` if the QP was made without.
    Own(BiasedMutex<Option<Rq>>),
    Shared(&'static Srq),
}

/// The first state in which requests may be posted.
pub(crate) const SENDS_FROM: u32 = ibv_qp_state::IBV_QPS_RTS;
/// The first state in which receives may be posted.
pub(crate) const RECEIVES_FROM: u32 = ibv_qp_state::IBV_QPS_INIT;

impl Qp {
    /// The CQs of the QP, each once.
    pub(crate) fn cqs(&self) -> impl Iterator<Item = &'static Cq> {
        let other = self.recv_cq.filter(|cq| self.send_cq.is_none_or(|send| !core::ptr::eq(*cq, send)));
        self.send_cq.into_iter().chain(other)
    }

    pub(crate) fn srq(&self) -> Option<&'static Srq> {
        match &self.receive {
            Receives::Own(_) => None,
            Receives::Shared(srq) => Some(srq),
        }
    }
}

/// The context of a verbs object.
pub(crate) type ContextKey = *const ibv_context;
