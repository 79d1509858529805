//! The entry points that post. None allocates memory.
//!
//! Those that programs call most are generic over the data path; each path has a table of its own
//! ([`super::entry_points`]). Each has a fast function, in two copies: for one segment, which is
//! compiled into the entry point, and for any other number (`..._any`). Neither takes a lock of
//! another thread. The slow function takes every lock, makes all checks, and says why a post is
//! refused.
//!
//! | call | lock of the fast function, which this thread must own | of the slow function |
//! |---|---|---|
//! | `dat_srq_post_recv` | the biased lock of the SRQ's handle slot | the same; to harvest for a full SRQ, others |
//! | Send, RDMA Write, RDMA Read | that of the EP's requests, by a door of the handle slot | the biased lock of the EP's handle slot, then that of the requests; then the read lock of the slot instead of the first |
//! | receive of an EP without an SRQ | that of the EP's receives, by a door of the handle slot | as for a Send, with the receives |
//! | every other post to an EP | none | the read lock of the EP's handle slot, then that of the requests |
//!
//! Where the device library posts by system calls, which are cancellation points, all of a call
//! puts off cancellation, as `guard` does.

use super::code::{Code, SUCCESS, guard};
use super::convert::completion_flags;
use super::handle::Handle;
use super::handles::Hot;
use super::objects::EpObject;
use super::raw::In;
use provider::inside::{
    Fast, Operation, Path, QueuePair, Read, RequestKind, Send, Uncancelled, WrInfo, Write, likely,
};
use provider::{CompletionFlags, LmrTriplet, PostError, RmrTriplet};

fn info(cookie: u64) -> WrInfo {
    WrInfo { cookie, ..WrInfo::default() }
}

/// Makes a call, and puts off the thread's cancellation if posts of this path are cancellation points.
#[inline(always)]
fn uncancelled<P: Path>(call: impl FnOnce() -> u32) -> u32 {
    if P::SYSTEM_CALLS {
        let _uncancelled = Uncancelled::begin();
        call()
    } else {
        call()
    }
}

/// Posts a request whose flags are argument `arg`.
pub(super) fn request(
    ep: Handle,
    kind: RequestKind,
    count: i32,
    iov: In<LmrTriplet>,
    cookie: u64,
    flags: u32,
    arg: u16,
) -> Result<(), Code> {
    let object = ep.get::<EpObject>()?;
    let segments = iov.segments(count)?;
    let flags = completion_flags(flags, arg)?;
    object.ep.inner.request_slow(kind, segments, info(cookie), flags).map_err(|e| Code::refused(e, arg))
}

/// Posts to an EP with the biased lock of its handle slot, for which this thread may wait. False
/// without a call of `post` if the handle names no EP.
#[inline(always)]
fn with_queues(ep: Handle, post: impl FnOnce(&QueuePair) -> bool) -> bool {
    if let Some(guard) = ep.hot_fast().or_else(|| ep.hot().ok())
        && let Hot::Ep(pair) = &*guard
    {
        post(pair)
    } else {
        false
    }
}

/// The fast function of Sends, RDMA Writes and RDMA Reads.
#[inline(always)]
fn request_fast<P: Path>(
    ep: Handle,
    op: impl Operation,
    count: i32,
    iov: In<LmrTriplet>,
    cookie: u64,
    flags: u32,
) -> bool {
    if let Some(iov) = iov.few(count)
        && let Some(mut requests) = ep.requests_of_ep()
        && requests.push_fast::<P, _, false>(op, iov, cookie, CompletionFlags::from_bits_retain(flags))
    {
        return true;
    }
    false
}

/// As [`request_fast`], for a thread that shares the locks with others, for a queue that has to
/// look for room, and also with SOLICITED_WAIT.
#[inline(always)]
fn request_shared<P: Path>(
    ep: Handle,
    op: impl Operation,
    count: i32,
    iov: In<LmrTriplet>,
    cookie: u64,
    flags: u32,
) -> bool {
    let flags = CompletionFlags::from_bits_retain(flags);
    iov.few(count).is_some_and(|iov| {
        with_queues(ep, |pair| pair.requests.lock().push_after_search::<P, _>(op, iov, cookie, flags))
    })
}

/// `dat_ep_post_send`.
pub(super) extern "C" fn ep_post_send<P: Path>(
    ep: Handle,
    count: i32,
    iov: In<LmrTriplet>,
    cookie: u64,
    flags: u32,
) -> u32 {
    uncancelled::<P>(|| {
        if !likely(count == 1) {
            return send_any::<P>(ep, count, iov, cookie, flags);
        }
        if request_fast::<P>(ep, Send, 1, iov, cookie, flags) {
            return SUCCESS;
        }
        send_slow::<P>(ep, count, iov, cookie, flags)
    })
}

#[inline(never)]
extern "C" fn send_any<P: Path>(ep: Handle, count: i32, iov: In<LmrTriplet>, cookie: u64, flags: u32) -> u32 {
    if request_fast::<P>(ep, Send, count, iov, cookie, flags) {
        return SUCCESS;
    }
    send_slow::<P>(ep, count, iov, cookie, flags)
}

#[inline(never)]
extern "C" fn send_slow<P: Path>(
    ep: Handle,
    count: i32,
    iov: In<LmrTriplet>,
    cookie: u64,
    flags: u32,
) -> u32 {
    if request_shared::<P>(ep, Send, count, iov, cookie, flags) {
        return SUCCESS;
    }
    guard("dat_ep_post_send", || request(ep, RequestKind::Send, count, iov, cookie, flags, 5))
}

/// `dat_ep_post_send_with_invalidate`. Without the invalidate flag, an ordinary Send.
pub(super) extern "C" fn ep_post_send_with_invalidate(
    ep: Handle,
    count: i32,
    iov: In<LmrTriplet>,
    cookie: u64,
    flags: u32,
    invalidate: u32,
    rmr_context: u32,
) -> u32 {
    let kind = if invalidate == 0 { RequestKind::Send } else { RequestKind::SendInvalidate(rmr_context) };
    guard("dat_ep_post_send_with_invalidate", || request(ep, kind, count, iov, cookie, flags, 5))
}

/// The two operations of `dat_ep_post_rdma_write` and `dat_ep_post_rdma_read`.
pub(super) trait Rdma: Operation {
    const CALL: &'static str;
    fn of(remote: RmrTriplet) -> Self;
}

impl Rdma for Write {
    const CALL: &'static str = "dat_ep_post_rdma_write";

    #[inline(always)]
    fn of(remote: RmrTriplet) -> Self {
        Self(remote)
    }
}

impl Rdma for Read {
    const CALL: &'static str = "dat_ep_post_rdma_read";

    #[inline(always)]
    fn of(remote: RmrTriplet) -> Self {
        Self(remote)
    }
}

/// `dat_ep_post_rdma_write` or `dat_ep_post_rdma_read`.
pub(super) extern "C" fn ep_post_rdma<P: Path, O: Rdma>(
    ep: Handle,
    count: i32,
    iov: In<LmrTriplet>,
    cookie: u64,
    remote: In<RmrTriplet>,
    flags: u32,
) -> u32 {
    uncancelled::<P>(|| {
        if !likely(count == 1) {
            return rdma_any::<P, O>(ep, count, iov, cookie, remote, flags);
        }
        if let Some(remote) = remote.get()
            && request_fast::<P>(ep, O::of(remote), 1, iov, cookie, flags)
        {
            return SUCCESS;
        }
        rdma_slow::<P, O>(ep, count, iov, cookie, remote, flags)
    })
}

#[inline(never)]
extern "C" fn rdma_any<P: Path, O: Rdma>(
    ep: Handle,
    count: i32,
    iov: In<LmrTriplet>,
    cookie: u64,
    remote: In<RmrTriplet>,
    flags: u32,
) -> u32 {
    if let Some(remote) = remote.get()
        && request_fast::<P>(ep, O::of(remote), count, iov, cookie, flags)
    {
        return SUCCESS;
    }
    rdma_slow::<P, O>(ep, count, iov, cookie, remote, flags)
}

#[inline(never)]
extern "C" fn rdma_slow<P: Path, O: Rdma>(
    ep: Handle,
    count: i32,
    iov: In<LmrTriplet>,
    cookie: u64,
    remote: In<RmrTriplet>,
    flags: u32,
) -> u32 {
    if let Some(remote) = remote.get()
        && request_shared::<P>(ep, O::of(remote), count, iov, cookie, flags)
    {
        return SUCCESS;
    }
    guard(O::CALL, || {
        ep.get::<EpObject>()?;
        request(ep, O::of(remote.need(5)?).kind(), count, iov, cookie, flags, 6)
    })
}

pub(super) extern "C" fn ep_post_rdma_read_to_rmr(
    ep: Handle,
    local: In<RmrTriplet>,
    cookie: u64,
    remote: In<RmrTriplet>,
    flags: u32,
) -> u32 {
    guard("dat_ep_post_rdma_read_to_rmr", || {
        let object = ep.get::<EpObject>()?;
        let (local, remote) = (local.need(2)?, remote.need(4)?);
        let flags = completion_flags(flags, 5)?;
        let inner = &object.ep.inner;
        let posted = inner.local_segment(local).and_then(|segment| {
            inner.request_slow(RequestKind::Read(remote), &[segment], info(cookie), flags)
        });
        posted.map_err(|error| match error {
            // The segment is argument 2 here.
            PostError::OutOfBounds(_) => Code::arg(2),
            error => Code::refused(error, 5),
        })
    })
}

/// The fast function of receives of EPs without an SRQ.
#[inline(always)]
fn receive_fast<P: Path>(ep: Handle, count: i32, iov: In<LmrTriplet>, cookie: u64, flags: u32) -> bool {
    if likely(flags == 0)
        && let Some(iov) = iov.few(count)
        && let Some(mut receives) = ep.receives_of_ep()
        && receives.push_fast::<P>(iov, cookie)
    {
        return true;
    }
    false
}

/// `dat_ep_post_recv`.
pub(super) extern "C" fn ep_post_recv<P: Path>(
    ep: Handle,
    count: i32,
    iov: In<LmrTriplet>,
    cookie: u64,
    flags: u32,
) -> u32 {
    uncancelled::<P>(|| {
        if !likely(count == 1) {
            return receive_any::<P>(ep, count, iov, cookie, flags);
        }
        if receive_fast::<P>(ep, 1, iov, cookie, flags) {
            return SUCCESS;
        }
        receive_slow::<P>(ep, count, iov, cookie, flags)
    })
}

#[inline(never)]
extern "C" fn receive_any<P: Path>(
    ep: Handle,
    count: i32,
    iov: In<LmrTriplet>,
    cookie: u64,
    flags: u32,
) -> u32 {
    if receive_fast::<P>(ep, count, iov, cookie, flags) {
        return SUCCESS;
    }
    receive_slow::<P>(ep, count, iov, cookie, flags)
}

#[inline(never)]
extern "C" fn receive_slow<P: Path>(
    ep: Handle,
    count: i32,
    iov: In<LmrTriplet>,
    cookie: u64,
    flags: u32,
) -> u32 {
    if flags == 0
        && let Some(iov) = iov.few(count)
        && with_queues(ep, |pair| pair.receives.lock().push_fast::<P>(iov, cookie))
    {
        return SUCCESS;
    }
    guard("dat_ep_post_recv", || {
        let object = ep.get::<EpObject>()?;
        if object.ep.inner.srq.is_some() {
            // Refused whatever the other arguments are (R158).
            return Err(Code::refused(PostError::UsesSrq, 5));
        }
        let segments = iov.segments(count)?;
        let flags = completion_flags(flags, 5)?;
        object.ep.inner.recv_slow(segments, info(cookie), flags).map_err(|e| Code::refused(e, 5))
    })
}

/// The fast function of posts to an SRQ. A buffer that the device library refuses ends with the
/// error at once, so the arguments need not be saved across the library's call.
#[inline(always)]
fn srq_fast<P: Path>(srq: Handle, count: i32, iov: In<LmrTriplet>, cookie: u64) -> Option<u32> {
    if let Some(iov) = iov.few(count)
        && let Some(mut owned) = srq.hot_fast()
        && let Hot::Srq(owned) = &mut *owned
    {
        answer(owned.push_fast::<P>(iov, cookie))
    } else {
        None
    }
}

/// The answer of a fast post. `None` if the slow function has to post.
#[inline(always)]
fn answer(posted: Fast) -> Option<u32> {
    match posted {
        Fast::Posted => Some(SUCCESS),
        Fast::Nothing => None,
        Fast::Refused(error) => Some(srq_refused(error)),
    }
}

#[cold]
#[inline(never)]
fn srq_refused(error: PostError) -> u32 {
    guard("dat_srq_post_recv", || Err(Code::refused(error, 5)))
}

/// `dat_srq_post_recv`.
pub(super) extern "C" fn srq_post_recv<P: Path>(
    srq: Handle,
    count: i32,
    iov: In<LmrTriplet>,
    cookie: u64,
) -> u32 {
    uncancelled::<P>(|| {
        if !likely(count == 1) {
            return srq_any::<P>(srq, count, iov, cookie);
        }
        if let Some(answer) = srq_fast::<P>(srq, 1, iov, cookie) {
            return answer;
        }
        srq_slow::<P>(srq, count, iov, cookie)
    })
}

#[inline(never)]
extern "C" fn srq_any<P: Path>(srq: Handle, count: i32, iov: In<LmrTriplet>, cookie: u64) -> u32 {
    if let Some(answer) = srq_fast::<P>(srq, count, iov, cookie) {
        return answer;
    }
    srq_slow::<P>(srq, count, iov, cookie)
}

#[inline(never)]
extern "C" fn srq_slow<P: Path>(srq: Handle, count: i32, iov: In<LmrTriplet>, cookie: u64) -> u32 {
    if let Some(iov) = iov.few(count)
        && let Ok(mut locked) = srq.hot()
        && let Hot::Srq(locked) = &mut *locked
    {
        if let Some(answer) = answer(locked.push_fast::<P>(iov, cookie)) {
            return answer;
        }
        if locked.push_slow(iov, cookie).is_ok() {
            return SUCCESS;
        }
    }
    guard("dat_srq_post_recv", || {
        let mut locked = srq.srq()?;
        let iov = iov.segments(count)?;
        let refused = |e| Code::refused(e, 5);
        match locked.push_slow(iov, cookie) {
            Err(full @ PostError::Full(_)) => {
                let defaults = locked.defaults().clone();
                // An agent that runs in the harvest may use the SRQ, or free it.
                drop(locked);
                if defaults.harvest_discards() {
                    srq.srq()?.push_slow(iov, cookie).map_err(refused)
                } else {
                    Err(refused(full))
                }
            }
            outcome => outcome.map_err(refused),
        }
    })
}
