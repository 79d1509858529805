#![expect(unsafe_code, reason = "addresses of verbs objects, shared between threads")]
//! The library's objects, one for each verbs object that it may drive.
//!
//! An object is in its table from its creation until it is destroyed or goes back to libmlx5. A
//! verbs object without an entry is libmlx5's.

use core::{
    ffi::{c_int, c_uint},
    mem::offset_of,
};
use std::{
    path::PathBuf,
    sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed},
};

use biased_lock::{BiasedMutex, OwnerGuard};
use doorbell_sys::{
    ibv_context, ibv_context_ops, ibv_cq, ibv_cq_ex, ibv_cq_init_attr_ex, ibv_dm, ibv_mr, ibv_mw,
    ibv_mw_bind, ibv_pd, ibv_qp, ibv_qp_init_attr_ex, ibv_qp_state, ibv_recv_wr, ibv_send_wr, ibv_srq,
    ibv_srq_init_attr_ex, ibv_wc, ibv_wq, ibv_wq_init_attr,
};
use mlx5_direct::{Rq, Sq};

use crate::{
    batch::Batch,
    cq_buffer::Buffer,
    regions::Regions,
    register::{LeftRegisters, Register},
    session::Session,
    table::{ByNumber, Numbered, Shortcut, Table},
};

type CreateCqEx = unsafe extern "C" fn(*mut ibv_context, *mut ibv_cq_init_attr_ex) -> *mut ibv_cq_ex;
type CreateQpEx = unsafe extern "C" fn(*mut ibv_context, *mut ibv_qp_init_attr_ex) -> *mut ibv_qp;
type CreateSrqEx = unsafe extern "C" fn(*mut ibv_context, *mut ibv_srq_init_attr_ex) -> *mut ibv_srq;
type CreateWq = unsafe extern "C" fn(*mut ibv_context, *mut ibv_wq_init_attr) -> *mut ibv_wq;
type AllocNullMr = unsafe extern "C" fn(*mut ibv_pd) -> *mut ibv_mr;
type RegDmMr = unsafe extern "C" fn(*mut ibv_pd, *mut ibv_dm, u64, usize, c_uint) -> *mut ibv_mr;

pub(crate) static CONTEXTS: Table<Context> = Table::new();

/// libmlx5's functions of one context, and the QPs that were taken over there.
pub(crate) struct Context {
    pub(crate) post_send: unsafe extern "C" fn(*mut ibv_qp, *mut ibv_send_wr, *mut *mut ibv_send_wr) -> c_int,
    pub(crate) post_recv: unsafe extern "C" fn(*mut ibv_qp, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int,
    pub(crate) post_srq_recv:
        unsafe extern "C" fn(*mut ibv_srq, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int,
    pub(crate) poll_cq: unsafe extern "C" fn(*mut ibv_cq, c_int, *mut ibv_wc) -> c_int,
    pub(crate) req_notify_cq: unsafe extern "C" fn(*mut ibv_cq, c_int) -> c_int,
    pub(crate) bind_mw: unsafe extern "C" fn(*mut ibv_qp, *mut ibv_mw, *mut ibv_mw_bind) -> c_int,
    pub(crate) create_cq_ex: Option<CreateCqEx>,
    pub(crate) create_qp_ex: Option<CreateQpEx>,
    pub(crate) create_srq_ex: Option<CreateSrqEx>,
    pub(crate) create_wq: Option<CreateWq>,
    pub(crate) alloc_null_mr: Option<AllocNullMr>,
    pub(crate) reg_dm_mr: Option<RegDmMr>,
    /// Registers of QPs that were not taken over.
    pub(crate) left_registers: LeftRegisters,
    /// QPs that were taken over, by number.
    pub(crate) qps: ByNumber<Qp>,
    pub(crate) objects: Objects,
    pub(crate) regions: Regions,
    /// Where the completion entries of failed requests are written.
    pub(crate) debug_file: Option<PathBuf>,
}

impl Context {
    /// The context of a live verbs object whose operations lead here.
    ///
    /// # Safety
    ///
    /// The context is open, and was patched by `context::patch`.
    #[inline(always)]
    pub(crate) unsafe fn of(raw: ContextKey) -> &'static Self {
        // SAFETY: open by contract; `context::patch` has stored the address of the context's
        // object, which lives until the context is closed.
        unsafe { &*own_place(raw).read() }
    }
}

/// Where a patched context has the address of its [`Context`]: in an operation that libibverbs no
/// longer calls, and keeps only so that the fields behind it stay in place.
pub(crate) fn own_place(raw: ContextKey) -> *const *const Context {
    raw.wrapping_byte_add(offset_of!(ibv_context, ops) + offset_of!(ibv_context_ops, _compat_async_event))
        .cast()
}

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

    /// Adds an object; returns false if there is no place. Calls are serialised by the control
    /// lock.
    ///
    /// # Safety
    ///
    /// `raw` is a live verbs object that is not in the table.
    pub(crate) unsafe fn insert<K: Held>(&self, raw: *const K, object: &'static K::Object) -> bool {
        // SAFETY: passed on to the caller.
        let inserted = unsafe { K::of(self).insert(raw, object) };
        if inserted {
            K::shortcut().insert(raw, K::lock(object));
            K::show(raw, object);
        }
        inserted
    }

    /// Removes an object that the program ends, so that nobody finds it any more. Calls are
    /// serialised as for `insert`.
    ///
    /// # Safety
    ///
    /// `raw` is a live verbs object.
    pub(crate) unsafe fn remove<K: Held>(&self, raw: *const K, object: &'static K::Object) {
        K::lock(object).close_door();
        K::shortcut().remove(raw);
        // SAFETY: passed on to the caller.
        unsafe { K::of(self).remove(raw) };
    }

    /// As [`remove`](Self::remove), for an object that other threads may be looking up.
    ///
    /// # Safety
    ///
    /// As for `remove`.
    pub(crate) unsafe fn give_up<K: Held>(&self, raw: *const K) {
        K::shortcut().give_up(raw);
        // SAFETY: passed on to the caller.
        unsafe { K::of(self).remove(raw) };
    }
}

/// A class of verbs objects that the library may drive.
pub(crate) trait Held: Numbered + Sized + 'static {
    /// The library's object.
    type Object: 'static;
    /// What the mutex of the object protects that posts or polls take.
    type Queue: Send + 'static;

    /// The context of the object.
    ///
    /// # Safety
    ///
    /// `raw` is a live object.
    unsafe fn context(raw: *const Self) -> *mut ibv_context;

    /// The objects of this class in a context.
    fn of(objects: &Objects) -> &Table<Self::Object>;

    /// The objects of this class.
    fn shortcut() -> &'static Shortcut<Self::Queue>;

    /// The mutex of an object.
    fn lock(object: &'static Self::Object) -> &'static BiasedMutex<Self::Queue>;

    /// Whether posts and polls find the object ready.
    fn is_ready(object: &Self::Object) -> bool;

    /// Opens the door of an object that is ready, if it has a place. Calls are serialised by the
    /// control lock.
    fn show(raw: *const Self, object: &'static Self::Object) {
        if Self::is_ready(object)
            && let Some(door) = Self::shortcut().door(raw)
        {
            // SAFETY: an object is on the heap, where it does not move, and is dropped before its
            // memory is freed.
            unsafe { Self::lock(object).open_door(door) };
        }
    }
}

macro_rules! classes {
    ($($raw:ty => $object:ty, $table:ident, $lock:ident: $queue:ty, $is_ready:expr;)*) => {$(
        impl Held for $raw {
            type Object = $object;
            type Queue = $queue;

            #[inline(always)]
            unsafe fn context(raw: *const Self) -> *mut ibv_context {
                // SAFETY: live by contract; set at creation, and not changed.
                unsafe { (&raw const (*raw).context).read() }
            }

            #[inline(always)]
            fn of(objects: &Objects) -> &Table<$object> {
                &objects.$table
            }

            #[inline(always)]
            fn shortcut() -> &'static Shortcut<$queue> {
                static ALL: Shortcut<$queue> = Shortcut::new();
                &ALL
            }

            fn lock(object: &'static $object) -> &'static BiasedMutex<$queue> {
                &object.$lock
            }

            fn is_ready(object: &$object) -> bool {
                $is_ready(object)
            }
        }
    )*};
}

classes! {
    ibv_cq => Cq, cqs, state: CqState, |_| true;
    ibv_srq => Srq, srqs, direct: mlx5_direct::Srq, |_| true;
    ibv_qp => Qp, qps, send: Option<Sq>, |qp: &Qp| qp.state.load(Relaxed) >= SENDS_FROM;
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

/// The queue of a verbs object that is ready, if this thread is the one that uses it most and the
/// object has a place in the [`Shortcut`]. A few instructions.
///
/// # Safety
///
/// As for [`find_here`]. The object is not removed while the guard lives.
#[inline(always)]
pub(crate) unsafe fn enter<K: Held>(raw: *const K) -> Option<OwnerGuard<K::Queue>> {
    // SAFETY: live by contract.
    unsafe { K::shortcut().enter(raw) }
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

pub(crate) struct CqState {
    /// `None` until the first QP is taken over: nothing can complete until then.
    pub(crate) direct: Option<mlx5_direct::Cq>,
    pub(crate) qps: Qps,
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

impl CqState {
    pub(crate) fn new(context: &'static Context) -> Self {
        Self { direct: None, qps: Qps::new(context), events: 0, polled: false, marks: 0, buffer: None }
    }
}

/// The QPs of a context by their numbers, for the holder of the lock of one of their CQs. The QP
/// that completed last is found without a look into the context's table.
pub(crate) struct Qps {
    pub(crate) context: &'static Context,
    last: Option<&'static Qp>,
    /// Where `last` receives, if that is an SRQ.
    srq: Option<&'static Srq>,
    /// The number of `last`, otherwise no QP's.
    number: u32,
}

impl Qps {
    const NONE: u32 = u32::MAX;

    fn new(context: &'static Context) -> Self {
        Self { context, last: None, srq: None, number: Self::NONE }
    }

    /// The QP with this number. A QP is freed after its entry was removed, and after the lock of each
    /// of its CQs was taken to [forget](Self::forget) it: so the reference may be used while the lock
    /// of the CQ is held.
    #[inline(always)]
    pub(crate) fn get(&mut self, number: u32) -> Option<&'static Qp> {
        if number == self.number { self.last } else { self.look_up(number) }
    }

    /// The SRQ of the QP with this number; `None` also if the QP receives from a queue of its own.
    #[inline(always)]
    pub(crate) fn srq_of(&mut self, number: u32) -> Option<&'static Srq> {
        if number != self.number {
            self.look_up(number)?;
        }
        self.srq
    }

    #[inline(never)]
    fn look_up(&mut self, number: u32) -> Option<&'static Qp> {
        // SAFETY: the caller holds the lock of a CQ; see `get`.
        let qp = unsafe { self.context.qps.get(number) }?;
        (self.last, self.srq, self.number) = (Some(qp), qp.srq(), number);
        Some(qp)
    }

    /// From now on, numbers are looked up anew.
    pub(crate) fn forget(&mut self) {
        *self = Self::new(self.context);
    }
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
