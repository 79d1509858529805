#![expect(unsafe_code, reason = "verbs objects are taken over and freed")]
//! The life of objects: creation and the decision who drives them, changes of state, the end.
//!
//! Decisions about who drives which object are made under one lock, so that a decision about
//! several objects stays true until it is carried out.

use core::ptr;
use std::{
    fmt,
    sync::{
        MutexGuard,
        atomic::{AtomicBool, AtomicU32, Ordering::Relaxed},
    },
};

use biased_lock::BiasedMutex;
use doorbell_sys::{
    ibv_context, ibv_cq, ibv_cq_ex, ibv_cq_init_attr_ex, ibv_qp, ibv_qp_cap, ibv_qp_init_attr,
    ibv_qp_init_attr_ex, ibv_qp_init_attr_mask, ibv_qp_state, ibv_qp_type, ibv_srq,
};
use libc::{EOPNOTSUPP, c_int};
use mlx5_direct::{DvError, LayoutError, Rq, Sq, queue_mem::SqCaps};

use crate::{
    batch::Batch,
    extended, extended_cq, fork,
    objects::{CONTEXTS, Context, Cq, CqState, Held, Qp, Raw, Receives, SENDS_FROM, Srq, find},
    real,
    register::Register,
    report,
    report::Class,
    session::Session,
    table::{NO_MEMORY, leak},
};

mod end;
mod give_back;
mod registers;
mod resize;

pub(crate) use give_back::{give_back_cq, give_back_qp, give_back_shared};
pub(crate) use resize::resize_cq;

use end::{clean, forget, free, leave_cq};
use give_back::{give_back_srq, give_back_unused};

/// Why a queue stays with libmlx5, or cannot.
enum Reason {
    Text(&'static str),
    /// It is a QP of this type.
    Type(ibv_qp_type::Type),
    Queue(DvError),
}

impl Reason {
    fn is_memory(&self) -> bool {
        matches!(self, Self::Text(NO_MEMORY) | Self::Queue(DvError::Layout(LayoutError::NoMemory)))
    }
}

impl From<&'static str> for Reason {
    fn from(text: &'static str) -> Self {
        Self::Text(text)
    }
}

impl From<DvError> for Reason {
    fn from(error: DvError) -> Self {
        Self::Queue(error)
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) => f.write_str(text),
            Self::Type(qp_type) => write!(f, "QP type {qp_type}"),
            Self::Queue(error) => error.fmt(f),
        }
    }
}

/// Registers a context. Returns false if there is no place for it.
///
/// # Safety
///
/// `raw` is an open context that no other thread knows yet.
pub(crate) unsafe fn add_context(raw: *mut ibv_context, context: &'static Context) -> bool {
    let _control = fork::control();
    static REGISTERED: AtomicBool = AtomicBool::new(false);
    extern "C" fn at_exit() {
        report::print_at_exit();
    }
    if !REGISTERED.swap(true, Relaxed) {
        // SAFETY: registers a function of this library, which stays loaded.
        unsafe { libc::atexit(at_exit) };
    }
    // SAFETY: an open context, which is new.
    unsafe { CONTEXTS.insert(raw, context) }
}

/// Closes a context.
///
/// # Safety
///
/// As for `ibv_close_device`, which `close` calls.
pub(crate) unsafe fn close_context(raw: *mut ibv_context, close: impl FnOnce() -> c_int) -> c_int {
    let _control = fork::control();
    // SAFETY: an open context by contract.
    let context = unsafe { CONTEXTS.get(raw) };
    if context.is_some() {
        // SAFETY: as above.
        unsafe { CONTEXTS.remove(raw) };
    }
    let result = real::call(close);
    match context {
        Some(context) if result == 0 => free(context),
        Some(context) => {
            // SAFETY: the context is still open.
            unsafe { CONTEXTS.insert(raw, context) };
        }
        None => {}
    }
    result
}

/// Registers a CQ that `ibv_create_cq_ex` made with these attributes.
///
/// # Safety
///
/// Null, or a live CQ that no other thread knows yet.
pub(crate) unsafe fn add_extended_cq(raw: *mut ibv_cq_ex, attr: &ibv_cq_init_attr_ex) {
    // SAFETY: null or a live CQ by contract.
    let Some(cq) = (unsafe { raw.as_ref() }) else { return };
    if let Some(why) = extended_cq::obstacle(attr) {
        return report::left(Class::Cq, format_args!("CQ {raw:p}"), &why);
    }
    let session = Session::new(cq);
    // SAFETY: a live CQ that no other thread knows yet.
    if let Some(cq) = unsafe { add_cq(raw.cast(), Some(session)) } {
        // SAFETY: as above; the object of this CQ.
        unsafe { extended_cq::patch(raw, cq) };
    }
}

/// Registers a CQ; an extended one has a session. Returns the object, if there is a place for it.
///
/// # Safety
///
/// Null, or a live CQ that no other thread knows yet.
pub(crate) unsafe fn add_cq(raw: *mut ibv_cq, session: Option<Session>) -> Option<&'static Cq> {
    // SAFETY: a live CQ, with its open context.
    let context = (!raw.is_null()).then(|| unsafe { CONTEXTS.get((*raw).context) }).flatten()?;
    let cq = leak(Cq {
        raw: Raw::new(raw),
        context,
        left: AtomicBool::new(false),
        state: BiasedMutex::with_doors(CqState::new(context)),
        session,
    });
    let Some(cq) = cq else {
        report::left(Class::Cq, format_args!("CQ {raw:p}"), &NO_MEMORY);
        return None;
    };
    let _control = fork::control();
    // SAFETY: a live CQ, which is new.
    if !unsafe { context.objects.insert::<ibv_cq>(raw, cq) } {
        report::left(Class::Cq, format_args!("CQ {raw:p}"), &"no place in the table");
        free(cq);
        return None;
    }
    Some(cq)
}

/// Removes an object of the program from its table.
///
/// # Safety
///
/// `raw` is null or a live object.
unsafe fn withdraw<K: Held>(raw: *mut K) -> Option<(&'static Context, &'static K::Object)> {
    // SAFETY: live by contract, with its open context.
    unsafe {
        let object = find(raw)?;
        let context = Context::of(K::context(raw));
        context.objects.remove::<K>(raw, object);
        Some((context, object))
    }
}

/// Ends a CQ or an SRQ.
pub(crate) fn destroy<K: Held>(raw: *mut K, destroy: impl FnOnce() -> c_int) -> c_int {
    let object = {
        let _control = fork::control();
        // SAFETY: the program passes a live object to its destroy function.
        unsafe { withdraw(raw) }
    };
    // Destroying waits until the program has acknowledged all events, so no lock is held.
    let result = real::call(destroy);
    if let Some((context, object)) = object {
        if result == 0 {
            free(object);
        } else {
            let _control = fork::control();
            // SAFETY: the object is still alive.
            unsafe { context.objects.insert::<K>(raw, object) };
        }
    }
    result
}

/// Takes over an SRQ that `ibv_create_srq` made.
///
/// # Safety
///
/// Null, or a live SRQ that no other thread knows yet.
pub(crate) unsafe fn add_srq(raw: *mut ibv_srq) {
    // SAFETY: a live SRQ, with its open context.
    let Some(context) = (!raw.is_null()).then(|| unsafe { CONTEXTS.get((*raw).context) }).flatten() else {
        return;
    };
    // SAFETY: nothing was posted to the SRQ, and from now on everything is posted here, unless the
    // SRQ goes back to libmlx5 as `give_back_srq` describes. The program keeps the rules of verbs
    // for its buffers.
    let direct = match real::call(|| unsafe { mlx5_direct::Srq::from_verbs(raw, None) }) {
        Ok(direct) => direct,
        Err(why) => return report::left(Class::Srq, format_args!("SRQ {raw:p}"), &why),
    };
    let number = direct.srqn();
    let srq = leak(Srq {
        raw: Raw::new(raw),
        context,
        direct: BiasedMutex::with_doors(direct),
        qps: AtomicU32::new(0),
    });
    let Some(srq) = srq else {
        return report::left(Class::Srq, format_args!("SRQ {number:#x}"), &NO_MEMORY);
    };
    let _control = fork::control();
    // SAFETY: a live SRQ, which is new.
    if unsafe { context.objects.insert::<ibv_srq>(raw, srq) } {
        report::taken(Class::Srq, format_args!("SRQ {number:#x}"));
    } else {
        report::left(Class::Srq, format_args!("SRQ {number:#x}"), &"no place in the table");
        free(srq);
    }
}

/// The objects that a QP needs.
#[derive(Debug)]
pub(crate) struct Wanted {
    send_cq: *mut ibv_cq,
    recv_cq: *mut ibv_cq,
    srq: *mut ibv_srq,
    qp_type: ibv_qp_type::Type,
    /// Attributes that only libmlx5 knows.
    special: Option<&'static str>,
    /// Whether the QP has a table of WQs, to which it distributes packets.
    distributes: bool,
}

impl Wanted {
    pub(crate) fn of(attr: &ibv_qp_init_attr) -> Self {
        let &ibv_qp_init_attr { send_cq, recv_cq, srq, qp_type, .. } = attr;
        Self { send_cq, recv_cq, srq, qp_type, special: None, distributes: false }
    }

    pub(crate) fn of_extended(attr: &ibv_qp_init_attr_ex) -> Self {
        use ibv_qp_init_attr_mask as mask;
        let &ibv_qp_init_attr_ex { send_cq, recv_cq, srq, qp_type, comp_mask, create_flags, .. } = attr;
        let known = mask::IBV_QP_INIT_ATTR_PD.0
            | mask::IBV_QP_INIT_ATTR_SEND_OPS_FLAGS.0
            | mask::IBV_QP_INIT_ATTR_CREATE_FLAGS.0;
        let special = if comp_mask & !known != 0 {
            Some("it has attributes that only libmlx5 handles")
        } else if comp_mask & mask::IBV_QP_INIT_ATTR_CREATE_FLAGS.0 != 0 && create_flags != 0 {
            Some("it has creation flags")
        } else {
            None
        };
        let distributes = comp_mask & mask::IBV_QP_INIT_ATTR_IND_TABLE.0 != 0;
        Self { send_cq, recv_cq, srq, qp_type, special, distributes }
    }

    pub(crate) fn special(mut self, why: &'static str) -> Self {
        self.special = self.special.or(Some(why));
        self
    }

    /// Why a QP with these attributes is left, as far as known before its creation.
    fn obstacle(&self) -> Option<Reason> {
        use ibv_qp_type::*;
        if let Some(why) = self.special {
            return Some(why.into());
        }
        let receives = match self.qp_type {
            IBV_QPT_RC | IBV_QPT_UC | IBV_QPT_UD => true,
            IBV_QPT_XRC_SEND => false,
            other => return Some(Reason::Type(other)),
        };
        // SAFETY: the program names live objects, or null.
        let (send_cq, recv_cq, srq) = unsafe { (find(self.send_cq), find(self.recv_cq), find(self.srq)) };
        if send_cq.is_none() || receives && recv_cq.is_none() {
            return Some("its CQ is libmlx5's".into());
        }
        (receives && !self.srq.is_null() && srq.is_none()).then(|| "its SRQ is libmlx5's".into())
    }

    /// Leaves the CQs and the SRQ to libmlx5, if they are not in use here.
    fn leave(&self) -> Result<(), &'static str> {
        // SAFETY: the program names live objects, or null.
        let (cqs, srq) = unsafe { ([find(self.send_cq), find(self.recv_cq)], find(self.srq)) };
        for cq in cqs.iter().flatten() {
            let mut state = cq.state.lock();
            if state.direct.is_none() {
                continue;
            }
            // A CQ that was taken over for a QP which then was left is unused.
            if state.polled || cq.context.qps.all().any(|qp| qp.cqs().any(|other| ptr::eq(other, *cq))) {
                return Err("its CQ is polled by doorbell-verbs");
            }
            state.direct = None;
            report::given_back(Class::Cq);
        }
        if srq.is_some_and(|srq| srq.qps.load(Relaxed) > 0) {
            return Err("its SRQ is posted to by doorbell-verbs");
        }
        for cq in cqs.into_iter().flatten() {
            leave_cq(cq, &"it serves a queue of libmlx5");
        }
        srq.map_or(Ok(()), give_back_srq)
    }
}

fn refuse<T>(what: &str, why: &dyn fmt::Display) -> *mut T {
    report::refused(what, why);
    real::set_errno(EOPNOTSUPP);
    ptr::null_mut()
}

/// Creates an object that libmlx5 drives and that completes on this CQ.
pub(crate) fn create_on_cq<T>(what: &str, cq: *mut ibv_cq, create: impl FnOnce() -> *mut T) -> *mut T {
    if real::inside() {
        return create();
    }
    let _control = fork::control();
    // SAFETY: the program names a live CQ, or null.
    if let Some(cq) = unsafe { find(cq) } {
        // The QPs on the CQ go back, too, as long as they are not in use.
        if let Err(why) = give_back_unused(cq, &"it serves a queue of libmlx5") {
            return refuse(what, &format_args!("its CQ is polled by doorbell-verbs: {why}"));
        }
    }
    real::call(create)
}

/// Creates a QP and takes it over, together with its CQs, or leaves it and them to libmlx5. `made`
/// gives the capacities that the creation wrote, and `sq_sig_all`.
pub(crate) fn create_qp(
    context: &'static Context,
    wanted: &Wanted,
    create: impl FnOnce() -> *mut ibv_qp,
    made: impl FnOnce() -> (ibv_qp_cap, c_int),
) -> *mut ibv_qp {
    if real::inside() {
        return create();
    }
    let control = fork::control();
    let obstacle = wanted.obstacle();
    if let Some(obstacle) = &obstacle
        && let Err(why) = wanted.leave()
    {
        return refuse("QP", &format_args!("{obstacle}; {why}"));
    }
    let raw = real::call(create);
    if raw.is_null() {
        return raw;
    }
    // SAFETY: a live QP, made above.
    let number = unsafe { (*raw).qp_num };
    let why = match obstacle {
        Some(why) => why,
        // SAFETY: a QP that no other thread knows yet, and the attributes that it was made with.
        None => match unsafe { take_over(context, raw, wanted, made(), &control) } {
            Ok(()) => {
                report::taken(Class::Qp, format_args!("QP {number:#x}"));
                return raw;
            }
            Err(why) => {
                if let Err(in_use) = wanted.leave() {
                    // SAFETY: a live QP that the program does not know.
                    real::call(|| real::ibv_destroy_qp().map(|destroy| unsafe { destroy(raw) }));
                    if why.is_memory() {
                        real::set_errno(libc::ENOMEM);
                        return ptr::null_mut();
                    }
                    return refuse("QP", &format_args!("{why}; {in_use}"));
                }
                why
            }
        },
    };
    // SAFETY: a live QP, made with these attributes.
    if let Some(register) = unsafe { registers::of_left(raw, wanted.qp_type, wanted.distributes) } {
        registers::leave(context, raw, register);
    }
    report::left(Class::Qp, format_args!("QP {number:#x}"), &why);
    raw
}

/// `None` for a queue that the QP does not have.
fn optional<T>(queue: Result<T, DvError>) -> Result<Option<T>, DvError> {
    match queue {
        Ok(queue) => Ok(Some(queue)),
        Err(DvError::Layout(LayoutError::NoQueue { .. })) => Ok(None),
        Err(why) => Err(why),
    }
}

/// Takes over a QP, and those of its CQs that are not taken over yet.
///
/// # Safety
///
/// A live QP that no other thread knows yet, made with attributes for which
/// [`Wanted::obstacle`] found nothing, and with these capacities and `sq_sig_all`.
unsafe fn take_over(
    context: &'static Context,
    raw: *mut ibv_qp,
    wanted: &Wanted,
    (cap, sq_sig_all): (ibv_qp_cap, c_int),
    _control: &MutexGuard<'_, ()>,
) -> Result<(), Reason> {
    // SAFETY: live objects, which have entries as `obstacle` has checked under the same lock.
    let (send_cq, recv_cq, srq) = unsafe { (find(wanted.send_cq), find(wanted.recv_cq), find(wanted.srq)) };
    let receives = wanted.qp_type != ibv_qp_type::IBV_QPT_XRC_SEND;
    let (recv_cq, srq) = if receives { (recv_cq, srq) } else { (None, None) };
    let caps = SqCaps {
        max_requests: cap.max_send_wr,
        max_segments: cap.max_send_sge,
        max_inline: cap.max_inline_data,
        signal_all: sq_sig_all != 0,
    };
    // SAFETY: a live QP to which nothing was posted, and its capacities. From now on its requests
    // are posted here, and its CQs are polled here. The program keeps the rules of verbs for its
    // memory.
    let mut sq = real::call(|| optional(unsafe { Sq::from_verbs_with(raw, caps) }))?;
    let receive = match srq {
        Some(srq) => Receives::Shared(srq),
        None if !receives => Receives::Own(BiasedMutex::new(None)),
        None => {
            // SAFETY: as above.
            let rq = real::call(|| optional(unsafe { Rq::from_verbs_with(raw, cap.max_recv_wr) }))?;
            Receives::Own(BiasedMutex::new(rq))
        }
    };
    for cq in [send_cq, recv_cq].into_iter().flatten() {
        take_over_cq(cq)?;
    }
    // SAFETY: a live QP of a type that `obstacle` accepts: it has a send queue.
    let register = unsafe { Register::of(raw) };
    registers::take(context, register, &mut sq);
    // SAFETY: a live QP.
    let batch = unsafe { Batch::new(raw, sq.as_ref()) }.map_err(|_| NO_MEMORY)?;
    // SAFETY: a live QP.
    let number = unsafe { (*raw).qp_num };
    let qp = leak(Qp {
        raw: Raw::new(raw),
        context,
        number,
        register,
        state: AtomicU32::new(ibv_qp_state::IBV_QPS_RESET),
        send: BiasedMutex::with_doors(sq),
        receive,
        send_cq,
        recv_cq,
        batch,
    });
    let qp: &Qp = qp.ok_or(NO_MEMORY)?;
    // SAFETY: a live QP, which is new.
    if !unsafe { qp.context.objects.insert::<ibv_qp>(raw, qp) } {
        free(qp);
        return Err("no place in the table".into());
    }
    // A QP that is being destroyed by another thread may have had the number.
    // SAFETY: a QP is freed under the control lock, after its entry was removed.
    let before = unsafe { context.qps.get(number) };
    if let Some(before) = before {
        clean(before);
    }
    let is_set = context.qps.set(number, Some(qp));
    if let Some(before) = before {
        before.cqs().for_each(|cq| cq.state.lock().qps.forget());
    }
    if !is_set {
        // SAFETY: a live QP.
        unsafe { qp.context.objects.remove::<ibv_qp>(raw, qp) };
        free(qp);
        return Err(NO_MEMORY.into());
    }
    if let Some(srq) = srq {
        srq.qps.fetch_add(1, Relaxed);
    }
    // SAFETY: a live QP that no other thread knows yet.
    unsafe { extended::patch(raw) };
    Ok(())
}

fn take_over_cq(cq: &'static Cq) -> Result<(), DvError> {
    let raw = cq.raw.get();
    let mut state = cq.state.lock();
    if state.direct.is_some() {
        return Ok(());
    }
    // SAFETY: a live CQ. No queue has completed on it, so nothing was polled; from now on it is
    // polled and armed here. All QPs on it are taken over.
    let mut direct = real::call(|| unsafe { mlx5_direct::Cq::from_verbs(raw) })?;
    (0..state.events & 3).for_each(|_| direct.event_received());
    direct.skip_resize_marks(state.marks);
    report::taken(Class::Cq, format_args!("CQ {:#x}", direct.cqn()));
    state.direct = Some(direct);
    Ok(())
}

/// Modifies a QP: `modify` calls `ibv_modify_qp`, and `to` is the new state if that changes.
///
/// # Safety
///
/// `raw` is a live QP.
pub(crate) unsafe fn modify_qp(
    raw: *mut ibv_qp,
    to: Option<ibv_qp_state::Type>,
    modify: impl FnOnce() -> c_int,
) -> c_int {
    // SAFETY: a live QP by contract.
    let Some(qp) = (unsafe { find(raw) }).filter(|_| to.is_some()) else { return real::call(modify) };
    let to = to.unwrap_or(0);
    if to < SENDS_FROM {
        // Nothing may be posted any more while the change is under way.
        let _control = fork::control();
        qp.send.close_door();
        let before = qp.state.load(Relaxed);
        let result = real::call(modify);
        if result != 0 {
            qp.state.store(before, Relaxed);
            ibv_qp::show(raw, qp);
            return result;
        }
        qp.state.store(to, Relaxed);
        if to == ibv_qp_state::IBV_QPS_RESET {
            clean(qp);
            if let Some(sq) = &mut *qp.send.lock() {
                sq.reset();
            }
            if let Receives::Own(rq) = &qp.receive
                && let Some(rq) = &mut *rq.lock()
            {
                rq.reset();
            }
        }
        // SAFETY: a live QP by contract.
        unsafe { extended::patch(raw) };
        return 0;
    }
    let result = real::call(modify);
    if result == 0 {
        // libmlx5 sets one of the extended functions again.
        // SAFETY: a live QP by contract.
        unsafe { extended::patch(raw) };
        qp.state.store(to, Relaxed);
        let _control = fork::control();
        ibv_qp::show(raw, qp);
    }
    result
}

/// Destroys a QP: `destroy` calls `ibv_destroy_qp`.
pub(crate) fn destroy_qp(raw: *mut ibv_qp, destroy: impl FnOnce() -> c_int) -> c_int {
    let (qp, left) = {
        let _control = fork::control();
        // SAFETY: the program passes a live QP, with its open context.
        unsafe {
            let context = (!raw.is_null()).then(|| CONTEXTS.get((*raw).context)).flatten();
            let left = context.and_then(|context| Some((context, context.left_registers.remove(raw)?)));
            (withdraw(raw), left)
        }
    };
    // Destroying waits until the program has acknowledged all events, so no lock is held.
    let result = real::call(destroy);
    if result != 0
        && let Some((context, register)) = left
    {
        let _control = fork::control();
        registers::leave(context, raw, register);
    }
    let Some((_, qp)) = qp else { return result };
    let _control = fork::control();
    if result == 0 {
        forget(qp);
    } else {
        // SAFETY: the QP is still alive.
        unsafe { qp.context.objects.insert::<ibv_qp>(raw, qp) };
    }
    result
}
