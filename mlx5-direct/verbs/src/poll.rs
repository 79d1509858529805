#![expect(unsafe_code, reason = "functions that verbs call with C pointers")]
//! `ibv_poll_cq` and `ibv_req_notify_cq`.

use core::ffi::c_int;

use biased_lock::BiasedMutex;
use doorbell_sys::{ibv_cq, ibv_wc, ibv_wc_status};
use mlx5_direct::{
    ArmFor, Completion, CqeError, DataSeg, ErrorCqe, PlainEntry, PlainKind, RecvCqe, Rq, ScatteredRecv, Sq,
    Syndrome, WqeIndex, cqe::RawCqe,
};

use crate::{
    objects::{Context, CqState, Qp, Qps, Receives, Srq, enter, find_here},
    report, wc,
};

/// `poll_cq` of a context's operations.
///
/// # Safety
///
/// As for `ibv_poll_cq`: a live CQ of the context and an array of `entries` entries.
pub(crate) unsafe extern "C" fn poll_cq(raw: *mut ibv_cq, entries: c_int, into: *mut ibv_wc) -> c_int {
    // SAFETY: a live CQ of a patched context by contract.
    if let Some(mut state) = unsafe { enter(raw) } {
        // SAFETY: passed on to the caller.
        return unsafe { poll(&mut state, entries, into) };
    }
    // SAFETY: passed on to the caller.
    unsafe { poll_cq_slow(raw, entries, into) }
}

/// `poll_cq` for CQs that libmlx5 drives, and for CQs that another thread polled last.
///
/// # Safety
///
/// As `poll_cq`.
#[inline(never)]
unsafe extern "C" fn poll_cq_slow(raw: *mut ibv_cq, entries: c_int, into: *mut ibv_wc) -> c_int {
    // SAFETY: a live CQ by contract.
    let Some(cq) = (unsafe { find_here(raw) }) else {
        // SAFETY: a live CQ of a patched context; libmlx5's function gets the caller's arguments.
        return unsafe { (Context::of((*raw).context).poll_cq)(raw, entries, into) };
    };
    // SAFETY: passed on to the caller.
    unsafe { poll(&mut cq.state.lock(), entries, into) }
}

/// Polls a CQ of the library.
///
/// # Safety
///
/// An array of `entries` entries.
#[inline(always)]
unsafe fn poll(state: &mut CqState, entries: c_int, into: *mut ibv_wc) -> c_int {
    let CqState { direct, qps, polled: was_polled, .. } = state;
    // Nothing can complete before a QP is taken over with this CQ.
    let Some(direct) = direct else { return 0 };
    // SAFETY: the array's length, by contract.
    let mut out = unsafe { Out::new(into, entries) };
    while !out.is_full() {
        let before = out.next;
        out = poll_run(qps, direct, out);
        if out.next != before {
            continue;
        }
        if !direct.is_next_ready() {
            break;
        }
        out = poll_short(qps, direct, out);
        if out.next == before
            // The entry is of no queue of the library, or of another kind.
            && poll_other(qps, direct, &mut out).is_err()
        {
            return if out.count() == 0 { -2 } else { out.count() };
        }
    }
    let polled = out.count();
    if polled > 0 {
        *was_polled = true;
        // The program may post as much again as it polled, so the CQ needs the room now.
        direct.publish_index();
    }
    polled
}

/// Takes plain completions of one queue, up to the first that is of another queue or not plain.
/// There is room for one.
#[inline(always)]
fn poll_run(qps: &mut Qps, direct: &mut mlx5_direct::Cq, out: Out) -> Out {
    direct.begin_interval();
    let Some(first) = direct.plain_entry() else { return out };
    let (qpn, kind) = (first.qpn(), first.kind());
    // The QP itself may be on lines that nothing else here needs.
    if kind == PlainKind::Received
        && let Some(srq) = qps.srq_of(qpn)
    {
        return from_srq(qps, direct, srq, qpn, out);
    }
    let Some(qp) = qps.get(qpn) else { return out };
    match (kind, &qp.receive) {
        (PlainKind::Received, Receives::Shared(srq)) => from_srq(qps, direct, srq, qpn, out),
        (PlainKind::Received, Receives::Own(rq)) => from_rq(direct, rq, qpn, out),
        (PlainKind::Request, _) => from_sq(direct, &qp.send, qpn, out),
    }
}

/// Takes a message whose payload is in its entry and belongs in the first segment of its buffer.
#[inline(never)]
fn poll_short(qps: &mut Qps, direct: &mut mlx5_direct::Cq, mut out: Out) -> Out {
    let Some(wc) = out.next() else { return out };
    let fill = |entry: &PlainEntry<'_>, wr_id| wc::plain_received(wc, entry, entry.qpn(), wr_id);
    if take_short(qps, direct, fill).is_some() {
        out.pass();
    }
    out
}

/// Takes a message as `poll_short`, and passes its entry and its `wr_id` to `fill`.
#[inline(always)]
fn take_short(
    qps: &mut Qps,
    direct: &mut mlx5_direct::Cq,
    fill: impl FnOnce(&PlainEntry<'_>, u64),
) -> Option<()> {
    let (entry, payload) = direct.short_entry()?;
    let length = entry.byte_count();
    let qp = qps.get(entry.qpn())?;
    let regions = &qps.context.regions;
    let to = |first: Option<DataSeg>| first.filter(|to| to.byte_count() >= length && regions.is_ordinary(to));
    let (to, wr_id) = match &qp.receive {
        Receives::Shared(srq) => {
            let (mut srq, slot) = (srq.direct.lock(), WqeIndex(entry.wqe_counter()));
            let to = to(srq.first_segment(slot))?;
            (to, srq.complete(slot).ok()?)
        }
        Receives::Own(rq) => {
            let (mut rq, counter) = (rq.lock(), entry.wqe_counter());
            let rq = rq.as_mut()?;
            let to = to(rq.segments(counter).next())?;
            (to, rq.complete(counter).ok()?)
        }
    };
    // SAFETY: the payload has 32 bytes, and `short_entry` gives no longer message. The program gave
    // this address for a message, and leaves that memory alone until it gets the completion.
    unsafe { (to.addr() as *mut u8).copy_from_nonoverlapping(payload.as_ptr(), length as usize) };
    fill(&entry, wr_id);
    entry.take();
    Some(())
}

/// Takes the next completion if it is plain and of a QP here. Returns its `wr_id`, and its entry in
/// `into`.
#[inline(always)]
pub(crate) fn take_plain(qps: &mut Qps, direct: &mut mlx5_direct::Cq, into: &mut RawCqe) -> Option<u64> {
    direct.begin_interval();
    let entry = direct.plain_entry()?;
    let opcode_qpn = entry.opcode_qpn();
    let qp = qps.get(opcode_qpn & 0x00ff_ffff)?;
    let wr_id = match (entry.kind(), &qp.receive) {
        (PlainKind::Received, Receives::Shared(srq)) => {
            srq.direct.lock().complete(WqeIndex(entry.wqe_counter())).ok()?
        }
        (PlainKind::Received, Receives::Own(rq)) => rq.lock().as_mut()?.complete(entry.wqe_counter()).ok()?,
        (PlainKind::Request, _) => {
            wc::PlainSent::of(opcode_qpn)?;
            qp.send.lock().as_mut()?.complete(entry.wqe_counter()).ok()?.cookie
        }
    };
    *into = entry.raw();
    entry.take();
    Some(wr_id)
}

/// Takes the next completion, whatever it is. There is one. Sets the fields of `wc`, and returns
/// the entry; `None` if there is nothing to report.
#[inline(never)]
pub(crate) fn take_any(
    qps: &mut Qps,
    direct: &mut mlx5_direct::Cq,
    wc: &mut ibv_wc,
) -> Result<Option<RawCqe>, Stuck> {
    let mut short = None;
    take_short(qps, direct, |entry, wr_id| {
        (wc.wr_id, wc.status) = (wr_id, ibv_wc_status::IBV_WC_SUCCESS);
        short = Some(entry.raw());
    });
    if short.is_some() {
        return Ok(short);
    }
    match direct.poll() {
        Ok(Some(completion)) => Ok(finish(qps, direct, &completion, wc).then(|| direct.raw())),
        // Nothing behind such an entry can be polled. No CQ that is taken over has one.
        Err(CqeError::Compressed | CqeError::Resized) => Err(Stuck),
        // The entry of an unknown opcode was consumed.
        Ok(None) | Err(_) => Ok(None),
    }
}

/// The program's array.
#[derive(Clone, Copy)]
struct Out {
    first: *mut ibv_wc,
    /// The next entry to fill.
    next: *mut ibv_wc,
    end: *mut ibv_wc,
}

impl Out {
    /// # Safety
    ///
    /// An array of `entries` entries, which nobody else uses while the value lives.
    #[inline(always)]
    unsafe fn new(first: *mut ibv_wc, entries: c_int) -> Self {
        let end = first.wrapping_add(usize::try_from(entries).unwrap_or(0));
        Self { first, next: first, end }
    }

    #[inline(always)]
    fn is_full(&self) -> bool {
        self.next == self.end
    }

    /// The next entry to fill; `None` if the array is full.
    #[inline(always)]
    fn next(&mut self) -> Option<&mut ibv_wc> {
        if self.is_full() {
            return None;
        }
        // SAFETY: inside the array. Each bit pattern is a value of the struct.
        Some(unsafe { &mut *self.next })
    }

    /// The next entry was filled.
    #[inline(always)]
    fn pass(&mut self) {
        if !self.is_full() {
            self.next = self.next.wrapping_add(1);
        }
    }

    #[inline(always)]
    fn count(&self) -> c_int {
        ((self.next.addr() - self.first.addr()) / size_of::<ibv_wc>()) as c_int
    }
}

/// Messages to buffers of an SRQ.
#[inline(always)]
fn from_srq(qps: &mut Qps, direct: &mut mlx5_direct::Cq, srq: &Srq, qpn: u32, mut out: Out) -> Out {
    let mut queue = srq.direct.lock();
    let queue = &mut *queue;
    let mut last = qpn;
    while let Some(wc) = out.next()
        && let Some(entry) = direct.plain_entry_of(PlainKind::Received)
    {
        let qpn = entry.qpn();
        if qpn != last {
            if !qps.srq_of(qpn).is_some_and(|other| core::ptr::eq(other, srq)) {
                break;
            }
            last = qpn;
        }
        let Ok(wr_id) = queue.complete(WqeIndex(entry.wqe_counter())) else { break };
        wc::plain_received(wc, &entry, qpn, wr_id);
        entry.take();
        out.pass();
    }
    out
}

/// Messages to buffers of a QP.
#[inline(always)]
fn from_rq(direct: &mut mlx5_direct::Cq, rq: &BiasedMutex<Option<Rq>>, qpn: u32, mut out: Out) -> Out {
    let mut rq = rq.lock();
    let Some(rq) = &mut *rq else { return out };
    while let Some(wc) = out.next()
        && let Some(entry) = direct.plain_entry_of(PlainKind::Received)
    {
        if entry.qpn() != qpn {
            break;
        }
        let Ok(wr_id) = rq.complete(entry.wqe_counter()) else { break };
        wc::plain_received(wc, &entry, qpn, wr_id);
        entry.take();
        out.pass();
    }
    out
}

/// Requests of a QP.
#[inline(always)]
fn from_sq(direct: &mut mlx5_direct::Cq, sq: &BiasedMutex<Option<Sq>>, qpn: u32, mut out: Out) -> Out {
    let mut sq = sq.lock();
    let Some(sq) = &mut *sq else { return out };
    while let Some(wc) = out.next()
        && let Some(entry) = direct.plain_entry_of(PlainKind::Request)
    {
        let opcode_qpn = entry.opcode_qpn();
        let Some(sent) = wc::PlainSent::of(opcode_qpn) else { break };
        if opcode_qpn & 0x00ff_ffff != qpn {
            break;
        }
        let Ok(released) = sq.complete(entry.wqe_counter()) else { break };
        sent.write(wc, qpn, released.cookie);
        entry.take();
        out.pass();
    }
    out
}

/// Nothing more can be polled.
#[derive(Debug)]
pub(crate) struct Stuck;

/// Takes the next completion, whatever it is. There is room for one.
#[inline(never)]
fn poll_other(qps: &mut Qps, direct: &mut mlx5_direct::Cq, out: &mut Out) -> Result<(), Stuck> {
    let Some(wc) = out.next() else { return Ok(()) };
    match direct.poll() {
        Ok(Some(completion)) => {
            if finish(qps, direct, &completion, wc) {
                out.pass();
            }
        }
        // Nothing behind such an entry can be polled. No CQ that is taken over has one.
        Err(CqeError::Compressed | CqeError::Resized) => return Err(Stuck),
        // The entry of an unknown opcode was consumed.
        Ok(None) | Err(_) => {}
    }
    Ok(())
}

/// Releases what the completion stands for and fills the entry. Returns false if there is nothing
/// to report: the completion is of no QP here.
fn finish(qps: &mut Qps, direct: &mlx5_direct::Cq, completion: &Completion, out: &mut ibv_wc) -> bool {
    let Some(qp) = qps.get(completion.qpn()) else { return false };
    match completion {
        Completion::Recv(receive) => received(qp, direct, receive, out),
        Completion::Send(send) => {
            let mut sq = qp.send.lock();
            let Some(sq) = &mut *sq else { return false };
            let Ok(released) = sq.complete(send.wqe_counter) else { return false };
            wc::sent(out, send, released.cookie, || sq.is_bind(send.wqe_counter));
            true
        }
        other => finish_other(qp, direct, other, out),
    }
}

fn received(qp: &Qp, direct: &mlx5_direct::Cq, receive: &RecvCqe, out: &mut ibv_wc) -> bool {
    let Some(wr_id) = released(qp, receive.slot, |_| ()) else { return false };
    wc::received(out, receive, &direct.message(), wr_id);
    true
}

/// Where the payload of a receive belongs.
enum Segments<'a> {
    Shared(&'a mlx5_direct::Srq),
    Own(&'a mlx5_direct::Rq),
}

/// Releases a receive and returns its `wr_id`. First `before` gets the queue, while the receive's
/// segments are still there.
#[inline(always)]
fn released(qp: &Qp, slot: WqeIndex, before: impl FnOnce(Segments<'_>)) -> Option<u64> {
    match &qp.receive {
        Receives::Shared(srq) => {
            let mut srq = srq.direct.lock();
            before(Segments::Shared(&srq));
            srq.complete(slot).ok()
        }
        Receives::Own(rq) => {
            let mut rq = rq.lock();
            let rq = rq.as_mut()?;
            before(Segments::Own(rq));
            rq.complete(slot.0).ok()
        }
    }
}

/// Failures, and completions that carry the data.
#[inline(never)]
fn finish_other(qp: &Qp, direct: &mlx5_direct::Cq, completion: &Completion, out: &mut ibv_wc) -> bool {
    if let Completion::RecvError(error) | Completion::SendError(error) = completion
        && let Some(file) = &qp.context.debug_file
        && !matches!(error.syndrome, Syndrome::Flushed | Syndrome::TransportRetries | Syndrome::OdpPageFault)
    {
        report::failed(file, &direct.raw().to_bytes());
    }
    match completion {
        Completion::RecvScattered(scattered) => scattered_receive(qp, direct, scattered, out),
        Completion::SendScattered(scattered) => {
            let mut sq = qp.send.lock();
            let Some(sq) = &mut *sq else { return false };
            let segments = sq.segments(scattered.send.wqe_counter);
            let segments = segments.map_while(|segment| qp.context.regions.locate(segment));
            // SAFETY: the program gave this memory for the result of its request, and leaves it
            // alone until this call returns the completion.
            let bytes = unsafe { direct.deliver_result(scattered, segments) };
            let Ok(released) = sq.complete(scattered.send.wqe_counter) else { return false };
            wc::sent(out, &scattered.send, released.cookie, || false);
            if bytes < scattered.byte_count() as usize {
                out.status = ibv_wc_status::IBV_WC_LOC_LEN_ERR;
            }
            true
        }
        Completion::RecvError(error)
            if error.syndrome == Syndrome::OdpPageFault && post_again(qp, WqeIndex(error.wqe_counter)) =>
        {
            false
        }
        Completion::RecvError(error) => {
            let Some(wr_id) = released(qp, WqeIndex(error.wqe_counter), |_| ()) else { return false };
            wc::failed(out, error, wr_id);
            true
        }
        Completion::SendError(error) => send_failed(qp, error, out),
        Completion::Recv(_) | Completion::Send(_) => false,
    }
}

/// Posts a receive of an SRQ again whose memory had a page fault: the device brings the message
/// once more. Returns false for a receive of a QP, and without memory.
fn post_again(qp: &Qp, slot: WqeIndex) -> bool {
    let Receives::Shared(srq) = &qp.receive else { return false };
    let mut srq = srq.direct.lock();
    let mut segments = Vec::new();
    if segments.try_reserve(srq.max_segments() as usize).is_err() {
        return false;
    }
    segments.extend(srq.segments(slot));
    let Ok(wr_id) = srq.complete(slot) else { return false };
    // It has the room of the request that was.
    srq.post(&segments, wr_id).is_ok()
}

fn send_failed(qp: &Qp, error: &ErrorCqe, out: &mut ibv_wc) -> bool {
    let mut sq = qp.send.lock();
    let Some(Ok(released)) = sq.as_mut().map(|sq| sq.complete(error.wqe_counter)) else { return false };
    wc::failed(out, error, released.cookie);
    true
}

fn scattered_receive(qp: &Qp, direct: &mlx5_direct::Cq, scattered: &ScatteredRecv, out: &mut ibv_wc) -> bool {
    let (receive, mut bytes) = (&scattered.receive, 0);
    let wr_id = released(qp, receive.slot, |queue| {
        let locate = |segment| qp.context.regions.locate(segment);
        // SAFETY: the program gave this memory for a message, and leaves it alone until this call
        // returns the completion.
        bytes = unsafe {
            match queue {
                Segments::Shared(srq) => {
                    direct.deliver(scattered, srq.segments(receive.slot).map_while(locate))
                }
                Segments::Own(rq) => direct.deliver(scattered, rq.segments(receive.slot.0).map_while(locate)),
            }
        };
    });
    let Some(wr_id) = wr_id else { return false };
    wc::received(out, receive, &direct.message(), wr_id);
    if bytes < receive.byte_count as usize {
        out.status = ibv_wc_status::IBV_WC_LOC_LEN_ERR;
    }
    true
}

/// `req_notify_cq` of a context's operations.
///
/// # Safety
///
/// As for `ibv_req_notify_cq`: a live CQ of the context.
pub(crate) unsafe extern "C" fn req_notify_cq(raw: *mut ibv_cq, solicited_only: c_int) -> c_int {
    // SAFETY: a live CQ by contract.
    let cq = unsafe { find_here(raw) };
    if let Some(cq) = cq
        && let Some(direct) = &mut cq.state.lock().direct
    {
        direct.arm(if solicited_only == 0 { ArmFor::Any } else { ArmFor::Solicited });
        return 0;
    }
    // SAFETY: a live CQ of a patched context. Nothing was polled from a CQ that is not taken
    // over yet, so that the consumer index of libmlx5, 0, is right.
    unsafe { (Context::of((*raw).context).req_notify_cq)(raw, solicited_only) }
}
