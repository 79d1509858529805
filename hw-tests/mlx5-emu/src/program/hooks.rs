//! Hooks on libmlx5's data path functions: the engine runs in the thread that posts, polls or arms.
//!
//! libibverbs calls these functions through tables in public structures (`ibv_context.ops`,
//! `ibv_cq_ex`, `ibv_qp_ex`). The commands that create CQs and QPs carry the address of the
//! program's object as the user handle. From this address the module finds the tables, and replaces
//! the few entries below. Each wrapper calls the original function and then runs the engine.
//! Posting receives is not hooked, so the emulator adds no cost to it.
#![expect(unsafe_code, reason = "function tables of libibverbs")]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering};

use libc::{c_int, c_void};

use crate::device::{self, Observer};
use crate::host::complaints::{Kind, complain};
use crate::host::config::{Mode, mode};
use crate::host::mem;
use crate::objects::faults::REFUSES_POSTS;
use crate::program::patience::{polled_in_vain, polled_well};
use crate::program::{helper, polls, trust};

/// Offsets in the public structures of libibverbs, 64-bit.
mod offset {
    pub(super) const CONTEXT_POLL_CQ: usize = 96;
    pub(super) const CONTEXT_REQ_NOTIFY: usize = 104;
    pub(super) const CONTEXT_POST_SEND: usize = 208;
    pub(super) const CONTEXT_CMD_FD: u64 = 264;
    /// `abi_compat`: all ones when the context is part of a `verbs_context`. The entries of that
    /// structure lie in front of the context.
    pub(super) const CONTEXT_ABI_COMPAT: u64 = 320;
    pub(super) const BEFORE_CONTEXT_QUERY_RT_VALUES: usize = 128;
    pub(super) const OBJECT_CONTEXT: u64 = 0;
    pub(super) const QP_NUM: usize = 52;
    pub(super) const SEND_WR_NEXT: usize = 8;
    pub(super) const CQ_EX_START_POLL: usize = 144;
    pub(super) const QP_EX_WR_COMPLETE: usize = 328;
}

type QueryRtValues = unsafe extern "C" fn(*mut c_void, *mut c_void) -> c_int;
type PollCq = unsafe extern "C" fn(*mut c_void, c_int, *mut c_void) -> c_int;
type ReqNotify = unsafe extern "C" fn(*mut c_void, c_int) -> c_int;
type PostSend = unsafe extern "C" fn(*mut c_void, *mut c_void, *mut *mut c_void) -> c_int;
type StartPoll = unsafe extern "C" fn(*mut c_void, *mut c_void) -> c_int;
type WrComplete = unsafe extern "C" fn(*mut c_void) -> c_int;

/// One hooked `ibv_context`.
struct Slot {
    context: AtomicUsize,
    index: AtomicUsize,
    poll_cq: AtomicUsize,
    req_notify: AtomicUsize,
    post_send: AtomicUsize,
    query_rt_values: AtomicUsize,
}

const SLOTS: usize = 256;
static CONTEXTS: [Slot; SLOTS] = [const {
    Slot {
        context: AtomicUsize::new(0),
        index: AtomicUsize::new(0),
        poll_cq: AtomicUsize::new(0),
        req_notify: AtomicUsize::new(0),
        post_send: AtomicUsize::new(0),
        query_rt_values: AtomicUsize::new(0),
    }
}; SLOTS];

/// Original functions of extended CQs and QPs, by object address.
struct Originals {
    keys: [AtomicUsize; Self::SIZE],
    functions: [AtomicUsize; Self::SIZE],
    /// Whether an object was ever inserted.
    used: AtomicBool,
}

impl Originals {
    const SIZE: usize = 1 << 15;
    const GONE: usize = 1;

    const fn new() -> Self {
        Self {
            keys: [const { AtomicUsize::new(0) }; Self::SIZE],
            functions: [const { AtomicUsize::new(0) }; Self::SIZE],
            used: AtomicBool::new(false),
        }
    }

    fn start(object: usize) -> usize {
        (object >> 4).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 49
    }

    /// Called with the device locked.
    fn insert(&self, object: usize, function: usize) -> bool {
        self.used.store(true, Ordering::Relaxed);
        for step in 0..Self::SIZE {
            let at = (Self::start(object) + step) % Self::SIZE;
            let key = self.keys[at].load(Ordering::Relaxed);
            if key == 0 || key == Self::GONE || key == object {
                self.functions[at].store(function, Ordering::Relaxed);
                self.keys[at].store(object, Ordering::Release);
                return true;
            }
        }
        false
    }

    /// Called with the device locked.
    fn remove(&self, object: usize) {
        // Most programs have no extended objects. A look into the table costs the first destruction
        // of an object a page fault.
        if !self.used.load(Ordering::Relaxed) {
            return;
        }
        for step in 0..Self::SIZE {
            let at = (Self::start(object) + step) % Self::SIZE;
            match self.keys[at].load(Ordering::Relaxed) {
                0 => return,
                key if key == object => {
                    self.keys[at].store(Self::GONE, Ordering::Release);
                    return;
                }
                _ => {}
            }
        }
    }

    #[inline]
    fn get(&self, object: usize) -> usize {
        for step in 0..Self::SIZE {
            let at = (Self::start(object) + step) % Self::SIZE;
            match self.keys[at].load(Ordering::Acquire) {
                0 => return 0,
                key if key == object => return self.functions[at].load(Ordering::Relaxed),
                _ => {}
            }
        }
        0
    }
}

static START_POLL: Originals = Originals::new();
static WR_COMPLETE: Originals = Originals::new();

fn read_word(address: u64) -> Option<usize> {
    let mut word = [0; 8];
    mem::copy_from_user(address, &mut word).ok()?;
    Some(usize::from_ne_bytes(word))
}

/// The `ibv_context` of an object, if the context uses this command descriptor.
fn context_of(fd: i32, object: u64) -> Option<usize> {
    if object == 0 || !object.is_multiple_of(8) || fd < 0 {
        return None;
    }
    let context = read_word(object + offset::OBJECT_CONTEXT)?;
    let mut command_fd = [0; 4];
    mem::copy_from_user((context as u64).checked_add(offset::CONTEXT_CMD_FD)?, &mut command_fd).ok()?;
    (i32::from_ne_bytes(command_fd) == fd).then_some(context)
}

/// Replaces a function pointer at `base + offset`; returns the original.
///
/// # Safety
/// A function pointer of a live libibverbs structure lies there, and `hook` has its type.
unsafe fn replace(base: usize, offset: usize, hook: usize) -> usize {
    let at = std::ptr::with_exposed_provenance_mut::<*mut c_void>(base + offset);
    // SAFETY: by contract; aligned, since the structures are.
    let cell = unsafe { AtomicPtr::from_ptr(at) };
    let original = cell.load(Ordering::Acquire).expose_provenance();
    if original != 0 && original != hook {
        cell.store(std::ptr::with_exposed_provenance_mut(hook), Ordering::Release);
    }
    original
}

fn hook_context(context: usize, index: usize) {
    let known = CONTEXTS.iter().find(|slot| slot.context.load(Ordering::Relaxed) == context);
    if let Some(slot) = known {
        slot.index.store(index, Ordering::Relaxed);
        return;
    }
    let Some(slot) = CONTEXTS.iter().find(|slot| slot.context.load(Ordering::Relaxed) == 0) else { return };
    // SAFETY: `context` is a live ibv_context, because its command descriptor was found to match.
    // The offsets are those of its public `ops` table, and the hooks have the types of the entries.
    unsafe {
        let poll: PollCq = poll_cq;
        let notify: ReqNotify = req_notify_cq;
        let send: PostSend = post_send;
        slot.index.store(index, Ordering::Relaxed);
        slot.poll_cq.store(peek(context, offset::CONTEXT_POLL_CQ), Ordering::Relaxed);
        slot.req_notify.store(peek(context, offset::CONTEXT_REQ_NOTIFY), Ordering::Relaxed);
        slot.post_send.store(peek(context, offset::CONTEXT_POST_SEND), Ordering::Relaxed);
        slot.context.store(context, Ordering::Release);
        replace(context, offset::CONTEXT_POLL_CQ, poll as usize);
        replace(context, offset::CONTEXT_REQ_NOTIFY, notify as usize);
        replace(context, offset::CONTEXT_POST_SEND, send as usize);
    }
    if read_word(context as u64 + offset::CONTEXT_ABI_COMPAT) == Some(usize::MAX) {
        let extended = context - offset::BEFORE_CONTEXT_QUERY_RT_VALUES;
        let clock: QueryRtValues = query_rt_values;
        // SAFETY: as above; an extended context has this entry at a fixed distance in front of it.
        unsafe {
            slot.query_rt_values.store(peek(extended, 0), Ordering::Relaxed);
            replace(extended, 0, clock as usize);
        }
    }
}

/// Reads a function pointer.
///
/// # Safety
/// As [`replace`].
unsafe fn peek(base: usize, offset: usize) -> usize {
    let at = std::ptr::with_exposed_provenance_mut::<*mut c_void>(base + offset);
    // SAFETY: by contract.
    unsafe { AtomicPtr::from_ptr(at) }.load(Ordering::Acquire).expose_provenance()
}

fn hooked() -> bool {
    matches!(mode(), Mode::Stepped | Mode::Auto)
}

/// A CQ is being created; called with the device locked.
fn cq_created(fd: i32, index: usize, object: u64) {
    if !hooked() {
        return;
    }
    let Some(context) = context_of(fd, object) else { return };
    hook_context(context, index);
    let object = object as usize;
    if let Some(function) = read_word((object + offset::CQ_EX_START_POLL) as u64)
        && is_function(function)
    {
        let hook: StartPoll = start_poll;
        if START_POLL.insert(object, function) {
            // SAFETY: libmlx5 allocates every CQ, zeroed, as the union with the extended form. A
            // function pointer at this offset is the entry for polling.
            unsafe { replace(object, offset::CQ_EX_START_POLL, hook as usize) };
        }
    }
}

/// Hooks the extended entries of a QP at its creation and at its transition to INIT. The second
/// call is needed because libmlx5 fills in these entries after the create command. The caller holds
/// the device lock.
fn qp_usable(fd: i32, index: usize, object: u64) {
    if !hooked() {
        return;
    }
    let Some(context) = context_of_qp(fd, object) else { return };
    hook_context(context, index);
    let object = object as usize;
    if let Some(function) = read_word((object + offset::QP_EX_WR_COMPLETE) as u64)
        && is_function(function)
    {
        let hook: WrComplete = wr_complete;
        if function != hook as usize && WR_COMPLETE.insert(object, function) {
            // SAFETY: libmlx5 allocates every QP, zeroed, as the union with the extended form. A
            // function pointer at this offset is the entry that rings the doorbell.
            unsafe { replace(object, offset::QP_EX_WR_COMPLETE, hook as usize) };
        }
    }
}

/// Finds the context of a QP. libibverbs sets a QP's context only after the create command, so any
/// hooked context of this descriptor serves.
fn context_of_qp(fd: i32, object: u64) -> Option<usize> {
    context_of(fd, object).or_else(|| {
        CONTEXTS.iter().map(|slot| slot.context.load(Ordering::Relaxed)).find(|&context| {
            let mut command_fd = [0; 4];
            context != 0
                && mem::copy_from_user(context as u64 + offset::CONTEXT_CMD_FD, &mut command_fd).is_ok()
                && i32::from_ne_bytes(command_fd) == fd
        })
    })
}

/// True when a word can be a function's address: not null, and readable there.
fn is_function(word: usize) -> bool {
    word > 4096 && read_word(word as u64).is_some()
}

/// Removes the hooks of a closed context. Called with the device locked.
fn context_closed(index: usize) {
    for slot in &CONTEXTS {
        if slot.context.load(Ordering::Relaxed) != 0 && slot.index.load(Ordering::Relaxed) == index {
            slot.context.store(0, Ordering::Release);
        }
    }
}

/// Hooks what the commands create, and has the helper thread run.
pub(crate) struct Hooks;

impl Observer for Hooks {
    fn opened(&self) {
        helper::ensure();
    }

    fn cq_created(&self, fd: i32, context: usize, object: u64) {
        cq_created(fd, context, object);
    }

    fn cq_destroyed(&self, object: u64) {
        START_POLL.remove(object as usize);
    }

    fn qp_usable(&self, fd: i32, context: usize, object: u64) {
        qp_usable(fd, context, object);
    }

    fn qp_destroyed(&self, object: u64) {
        WR_COMPLETE.remove(object as usize);
    }

    fn context_closed(&self, context: usize) {
        context_closed(context);
    }
}

/// The slot of an object's context.
///
/// # Safety
/// `object` is a live `ibv_cq` or `ibv_qp`, whose first word is its context.
#[inline(always)]
unsafe fn slot_of(object: *mut c_void) -> &'static Slot {
    // SAFETY: by contract.
    let context = unsafe { *object.cast::<usize>() };
    for slot in &CONTEXTS {
        if slot.context.load(Ordering::Acquire) == context {
            return slot;
        }
    }
    // Only hooked contexts call hooks; a context that lost its slot is being closed.
    std::process::abort();
}

/// Runs the engine; a panic in it is reported instead of crossing into C.
pub(crate) fn guarded(work: impl FnOnce()) {
    if catch_unwind(AssertUnwindSafe(work)).is_err() {
        complain(Kind::Internal, "the engine panicked".to_owned());
    }
}

/// Runs the engine after an empty poll. Returns whether the program has peers in other processes.
fn poll_step() -> bool {
    let mut peers = false;
    guarded(|| {
        if let Some(mut device) = device::try_lock() {
            device.card.poll_step();
            peers = device.card.net.has_peers();
        }
    });
    polls::note();
    peers
}

/// A driver that does not use libmlx5 polls, and has told the device so ([`crate::program::ucx`],
/// [`crate::program::dat`]).
///
/// Does nothing when the driver's last poll was one of libmlx5's, which ran the engine. Returns
/// true if the engine wrote a completion, or if [`polled_in_vain`] has decided whether to yield.
pub(crate) fn driver_polls() -> bool {
    static LAST: AtomicU64 = AtomicU64::new(0);
    if !hooked() || !device::exists() {
        return false;
    }
    let count = polls::count();
    if LAST.swap(count, Ordering::Relaxed) != count {
        return false;
    }
    let (mut peers, mut news) = (false, false);
    guarded(|| {
        if let Some(mut device) = device::try_lock()
            && device.card.contexts.len() > 0
        {
            let before = device.card.completions;
            device.card.driver_step(true);
            news = device.card.completions != before;
            peers = device.card.net.has_peers();
        }
    });
    LAST.store(polls::note(), Ordering::Relaxed);
    after_step(news, peers);
    news || peers
}

/// A driver has rung a doorbell, and told the device so ([`crate::program::dat`]).
pub(crate) fn driver_posted() {
    if !hooked() || !device::exists() {
        return;
    }
    guarded(|| {
        let mut device = device::lock();
        if device.card.contexts.len() > 0 {
            device.card.driver_step(trust::are_trusted());
        }
    });
}

/// A poll ran the engine, and then found something or nothing.
#[inline(always)]
fn after_step(found: bool, peers: bool) {
    if found {
        polled_well();
    } else if peers {
        polled_in_vain();
    }
}

unsafe extern "C" fn query_rt_values(context: *mut c_void, values: *mut c_void) -> c_int {
    let address = context.expose_provenance();
    let Some(slot) = CONTEXTS.iter().find(|slot| slot.context.load(Ordering::Acquire) == address) else {
        return libc::EOPNOTSUPP;
    };
    let original = slot.query_rt_values.load(Ordering::Relaxed);
    if original == 0 {
        return libc::EOPNOTSUPP;
    }
    guarded(|| device::lock().tick(slot.index.load(Ordering::Relaxed)));
    // SAFETY: the address that was in the structure, which has this type.
    let original: QueryRtValues = unsafe { std::mem::transmute(original) };
    // SAFETY: arguments are handed on unchanged.
    unsafe { original(context, values) }
}

unsafe extern "C" fn poll_cq(cq: *mut c_void, count: c_int, wc: *mut c_void) -> c_int {
    // SAFETY: libibverbs passes a live CQ.
    let original = unsafe { slot_of(cq) }.poll_cq.load(Ordering::Relaxed);
    // SAFETY: the address that was in the table, which has this type.
    let original: PollCq = unsafe { std::mem::transmute(original) };
    // SAFETY: arguments are handed on unchanged.
    let found = unsafe { original(cq, count, wc) };
    if found != 0 {
        polled_well();
        return found;
    }
    let peers = poll_step();
    // SAFETY: arguments are handed on unchanged.
    let found = unsafe { original(cq, count, wc) };
    after_step(found != 0, peers);
    found
}

unsafe extern "C" fn start_poll(cq: *mut c_void, attr: *mut c_void) -> c_int {
    let original = START_POLL.get(cq.expose_provenance());
    if original == 0 {
        return libc::EINVAL;
    }
    // SAFETY: the address that was in the structure, which has this type.
    let original: StartPoll = unsafe { std::mem::transmute(original) };
    // SAFETY: arguments are handed on unchanged.
    let found = unsafe { original(cq, attr) };
    if found != libc::ENOENT {
        polled_well();
        return found;
    }
    let peers = poll_step();
    // SAFETY: arguments are handed on unchanged.
    let found = unsafe { original(cq, attr) };
    after_step(found != libc::ENOENT, peers);
    found
}

unsafe extern "C" fn req_notify_cq(cq: *mut c_void, solicited_only: c_int) -> c_int {
    // SAFETY: libibverbs passes a live CQ.
    let slot = unsafe { slot_of(cq) };
    // SAFETY: the address that was in the table, which has this type.
    let original: ReqNotify = unsafe { std::mem::transmute(slot.req_notify.load(Ordering::Relaxed)) };
    // SAFETY: arguments are handed on unchanged.
    let result = unsafe { original(cq, solicited_only) };
    let context = slot.index.load(Ordering::Relaxed);
    guarded(|| {
        let mut device = device::lock();
        device.card.notify_step(context);
    });
    polls::pause();
    result
}

/// The number of a QP.
///
/// # Safety
/// `qp` is a live `ibv_qp`.
#[inline(always)]
unsafe fn number(qp: *mut c_void) -> u32 {
    // SAFETY: by contract; the QP number lies at this offset of the public structure.
    unsafe { qp.byte_add(offset::QP_NUM).cast::<u32>().read() }
}

/// The QP's doorbell was rung.
///
/// # Safety
/// `qp` is a live `ibv_qp`.
#[inline(always)]
unsafe fn rung(qp: *mut c_void) {
    // SAFETY: by contract.
    let qpn = unsafe { number(qp) };
    guarded(|| device::lock().card.send_step(qpn));
}

unsafe extern "C" fn post_send(qp: *mut c_void, wr: *mut c_void, bad: *mut *mut c_void) -> c_int {
    // SAFETY: libibverbs passes a live QP.
    let original = unsafe { slot_of(qp) }.post_send.load(Ordering::Relaxed);
    // SAFETY: the address that was in the table, which has this type.
    let original: PostSend = unsafe { std::mem::transmute(original) };
    let result = if REFUSES_POSTS.load(Ordering::Relaxed) {
        // SAFETY: as libibverbs has passed them.
        unsafe { post_up_to_fault(original, qp, wr, bad) }
    } else {
        // SAFETY: arguments are handed on unchanged.
        unsafe { original(qp, wr, bad) }
    };
    // SAFETY: the QP is live for the call.
    unsafe { rung(qp) };
    result
}

/// Posts the requests before the first that a fault refuses.
///
/// # Safety
/// As for `ibv_post_send`; `post` is the function of the QP's library.
#[cold]
unsafe fn post_up_to_fault(
    post: PostSend,
    qp: *mut c_void,
    first: *mut c_void,
    bad: *mut *mut c_void,
) -> c_int {
    // SAFETY: by contract.
    let qpn = unsafe { number(qp) };
    // SAFETY: the next request lies at this offset of the public structure.
    let next = |wr: *mut c_void| unsafe { wr.byte_add(offset::SEND_WR_NEXT).cast::<*mut c_void>() };
    let (mut before, mut wr) = (std::ptr::null_mut::<c_void>(), first);
    while !wr.is_null() {
        let mut refused = None;
        guarded(|| refused = device::lock().card.faults.refuses_post(qpn));
        if let Some(errno) = refused {
            let mut result = 0;
            if !before.is_null() {
                // SAFETY: by contract; the list ends before the refused request for the call.
                unsafe {
                    next(before).write(std::ptr::null_mut());
                    result = post(qp, first, bad);
                    next(before).write(wr);
                }
            }
            if result == 0 {
                // SAFETY: by contract.
                unsafe { bad.write(wr) };
                result = errno;
            }
            return result;
        }
        before = wr;
        // SAFETY: the program has set the pointer of a request in its list.
        wr = unsafe { next(wr).read() };
    }
    // SAFETY: by contract.
    unsafe { post(qp, first, bad) }
}

unsafe extern "C" fn wr_complete(qp: *mut c_void) -> c_int {
    let original = WR_COMPLETE.get(qp.expose_provenance());
    if original == 0 {
        return libc::EINVAL;
    }
    // SAFETY: the address that was in the structure, which has this type.
    let original: WrComplete = unsafe { std::mem::transmute(original) };
    // SAFETY: arguments are handed on unchanged.
    let result = unsafe { original(qp) };
    // SAFETY: the QP is live for the call; the extended form starts with the plain one.
    unsafe { rung(qp) };
    result
}
