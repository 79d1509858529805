//! The entry points that post. None allocates memory.
//!
//! The lock that a post takes first:
//!
//! - `dat_srq_post_recv`: the biased lock of the SRQ's handle slot. Only a post to a full SRQ takes
//!   others.
//! - a Send of one to four segments, or an RDMA Write or Read of one, by the direct path, with no flag
//!   but SUPPRESS: the lock of the EP's requests, by a door of the handle slot.
//! - a receive of one to four segments without a flag, for an EP without an SRQ: the lock of the EP's
//!   receives, by a door of the handle slot.
//! - another Send, RDMA Write or Read of one segment, or a Send or an RDMA Write of two to four: the
//!   biased lock of the EP's handle slot, then that of the ring.
//! - every other post to an EP: the read lock of the EP's handle slot, then the locks of the rings.

use super::code::{Code, SUCCESS, guard};
use super::convert::completion_flags;
use super::handle::Handle;
use super::handles::Hot;
use super::objects::EpObject;
use super::raw::In;
use provider::inside::QueuePair;
use provider::inside::RequestKind;
use provider::inside::Uncancelled;
use provider::inside::WrInfo;
use provider::inside::likely;
use provider::inside::{Refused, Staged};
use provider::{CompletionFlags, LmrTriplet, PostError, RmrTriplet};

fn info(cookie: u64) -> WrInfo {
    WrInfo { cookie, ..WrInfo::default() }
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
    object.ep.inner.post_request(kind, segments, info(cookie), flags).map_err(|e| Code::post(e, arg))
}

/// Posts to an EP on either path with the biased lock of its handle slot, which this thread may come
/// to own. False without a call of `post` if the handle names no such EP.
#[inline(always)]
fn with_queues(ep: Handle, post: impl FnOnce(&QueuePair) -> bool) -> bool {
    if let Some(guard) = ep.hot_fast().or_else(|| ep.hot().ok())
        && let Hot::Ep(pair) | Hot::EpByVerbs(pair) = &*guard
    {
        post(pair)
    } else {
        false
    }
}

/// Posts a request of one segment. Takes no lock but the biased locks of the handle slot and of the
/// EP's requests, which this thread may come to own. Where [`QueuePair::post_one_segment`] does not
/// post, returns false; then [`request`] posts, or gives the error.
#[inline(always)]
fn one_segment(
    ep: Handle,
    kind: RequestKind,
    count: i32,
    iov: In<LmrTriplet>,
    cookie: u64,
    flags: u32,
) -> bool {
    // Not by `with_queues`, nor for other counts: more instructions for each Send.
    if count == 1
        && let Some([segment]) = iov.few(1)
        && let Some(guard) = ep.hot_fast().or_else(|| ep.hot().ok())
        && let Hot::Ep(pair) | Hot::EpByVerbs(pair) = &*guard
    {
        pair.post_one_segment(kind, segment, cookie, CompletionFlags::from_bits_retain(flags))
    } else {
        false
    }
}

/// Straight-line code for nearly every Send: one segment whose LMR `QueueLmrs` finds, a thread
/// that owns the biased lock of the EP's requests, and blocks left in the span of the send queue.
/// [`ep_post_send_slow`] does everything else.
pub(super) extern "C" fn ep_post_send(
    ep: Handle,
    count: i32,
    iov: In<LmrTriplet>,
    cookie: u64,
    flags: u32,
) -> u32 {
    if !likely(count == 1) {
        return ep_post_send_several::<false>(ep, count, iov, cookie, flags);
    }
    let posts = CompletionFlags::from_bits_retain(flags);
    if let Some(segments) = iov.some()
        && let Some(mut requests) = ep.requests_of_ep()
    {
        if let Some(segment) = segments.first()
            && requests.post_send_fast(std::array::from_ref(segment), cookie, posts)
        {
            return SUCCESS;
        }
        drop(requests);
        return ep_post_send_slow(ep, count, iov, cookie, flags);
    }
    ep_post_send_shared(ep, count, iov, cookie, flags)
}

/// As [`ep_post_send`], on either path, for a thread that shares the EP's requests with one that
/// dequeues their completions.
#[inline(never)]
extern "C" fn ep_post_send_shared(
    ep: Handle,
    count: i32,
    iov: In<LmrTriplet>,
    cookie: u64,
    flags: u32,
) -> u32 {
    if count == 1
        && let Some(segments) = iov.some()
        && let Some(guard) = ep.hot_fast().or_else(|| ep.hot_shared())
        && let Some(segment) = segments.first()
    {
        let flags = CompletionFlags::from_bits_retain(flags);
        let posted = match &*guard {
            Hot::Ep(pair) => pair.post_send_shared(segment, cookie, flags),
            Hot::EpByVerbs(pair) => pair.post_send_shared_by_verbs(segment, cookie, flags),
            _ => false,
        };
        if posted {
            return SUCCESS;
        }
    }
    ep_post_send_slow(ep, count, iov, cookie, flags)
}

/// As [`ep_post_send`], in the table of the verbs path.
pub(super) extern "C" fn ep_post_send_by_verbs(
    ep: Handle,
    count: i32,
    iov: In<LmrTriplet>,
    cookie: u64,
    flags: u32,
) -> u32 {
    if !likely(count == 1) {
        return ep_post_send_several::<true>(ep, count, iov, cookie, flags);
    }
    if let Some(segments) = iov.some()
        && let Some(owned) = ep.hot_fast()
        && let Hot::EpByVerbs(pair) = &*owned
        && let Some(segment) = segments.first()
        && pair.post_send_by_verbs(
            std::array::from_ref(segment),
            cookie,
            CompletionFlags::from_bits_retain(flags),
        )
    {
        return SUCCESS;
    }
    ep_post_send_shared(ep, count, iov, cookie, flags)
}

/// As [`ep_post_send`], for any number of segments but one, in the table of the verbs path or in that
/// of the direct path.
///
/// Calls nothing but one of the functions below, which find their arguments in their registers.
#[inline(never)]
extern "C" fn ep_post_send_several<const BY_VERBS: bool>(
    ep: Handle,
    count: i32,
    iov: In<LmrTriplet>,
    cookie: u64,
    flags: u32,
) -> u32 {
    match count {
        2 => ep_post_send_of::<2, BY_VERBS>(ep, count, iov, cookie, flags),
        3 => ep_post_send_of::<3, BY_VERBS>(ep, count, iov, cookie, flags),
        4 => ep_post_send_of::<4, BY_VERBS>(ep, count, iov, cookie, flags),
        _ => ep_post_send_slow(ep, count, iov, cookie, flags),
    }
}

/// As [`ep_post_send_several`], for `N` segments, which is also the count: straight-line code
/// instead of loops that count.
#[inline(never)]
extern "C" fn ep_post_send_of<const N: usize, const BY_VERBS: bool>(
    ep: Handle,
    count: i32,
    iov: In<LmrTriplet>,
    cookie: u64,
    flags: u32,
) -> u32 {
    let posts = CompletionFlags::from_bits_retain(flags);
    if let Some(segments) = iov.array::<N>() {
        if BY_VERBS {
            if let Some(owned) = ep.hot_fast()
                && let Hot::EpByVerbs(pair) = &*owned
                && pair.post_send_by_verbs(segments, cookie, posts)
            {
                return SUCCESS;
            }
        } else if likely(CompletionFlags::SUPPRESS.contains(posts))
            && let Some(mut requests) = ep.requests_of_ep()
            && requests.post_send_fast(segments, cookie, posts)
        {
            return SUCCESS;
        }
    }
    ep_post_send_slow(ep, count, iov, cookie, flags)
}

/// As [`one_segment`], for a Send or an RDMA Write of two to four segments.
#[inline(never)]
fn few_segments(
    ep: Handle,
    kind: RequestKind,
    count: i32,
    iov: In<LmrTriplet>,
    cookie: u64,
    flags: u32,
) -> bool {
    let flags = CompletionFlags::from_bits_retain(flags);
    if count != 1
        && let Some(segments) = iov.few(count)
    {
        with_queues(ep, |pair| pair.post_few(kind, segments, cookie, flags))
    } else {
        false
    }
}

#[inline(never)]
extern "C" fn ep_post_send_slow(ep: Handle, count: i32, iov: In<LmrTriplet>, cookie: u64, flags: u32) -> u32 {
    if one_segment(ep, RequestKind::Send, count, iov, cookie, flags)
        || few_segments(ep, RequestKind::Send, count, iov, cookie, flags)
    {
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

/// Straight-line code for nearly every receive of one segment: an LMR that `QueueLmrs` finds, and a
/// thread that owns the biased lock of the EP's receives.
pub(super) extern "C" fn ep_post_recv(
    ep: Handle,
    count: i32,
    iov: In<LmrTriplet>,
    cookie: u64,
    flags: u32,
) -> u32 {
    if likely(count == 1) {
        return receive_fast::<1, false>(ep, count, iov, cookie, flags);
    }
    ep_post_recv_several::<false>(ep, count, iov, cookie, flags)
}

/// As [`ep_post_recv`], in the table of the verbs path.
pub(super) extern "C" fn ep_post_recv_by_verbs(
    ep: Handle,
    count: i32,
    iov: In<LmrTriplet>,
    cookie: u64,
    flags: u32,
) -> u32 {
    if likely(count == 1) {
        return receive_fast::<1, true>(ep, count, iov, cookie, flags);
    }
    ep_post_recv_several::<true>(ep, count, iov, cookie, flags)
}

/// As [`ep_post_recv`], for any number of segments but one, in the table of the verbs path or in that
/// of the direct path.
///
/// Calls nothing but one of the functions below, which find their arguments in their registers.
#[inline(never)]
extern "C" fn ep_post_recv_several<const BY_VERBS: bool>(
    ep: Handle,
    count: i32,
    iov: In<LmrTriplet>,
    cookie: u64,
    flags: u32,
) -> u32 {
    match count {
        2 => ep_post_recv_of::<2, BY_VERBS>(ep, count, iov, cookie, flags),
        3 => ep_post_recv_of::<3, BY_VERBS>(ep, count, iov, cookie, flags),
        4 => ep_post_recv_of::<4, BY_VERBS>(ep, count, iov, cookie, flags),
        _ => ep_post_recv_slow(ep, count, iov, cookie, flags),
    }
}

/// As [`ep_post_recv_several`], for `N` segments, which is also the count.
#[inline(never)]
extern "C" fn ep_post_recv_of<const N: usize, const BY_VERBS: bool>(
    ep: Handle,
    count: i32,
    iov: In<LmrTriplet>,
    cookie: u64,
    flags: u32,
) -> u32 {
    receive_fast::<N, BY_VERBS>(ep, count, iov, cookie, flags)
}

/// As [`ep_post_recv`], for `N` segments, which is also the count: straight-line code instead of loops
/// that count.
#[inline(always)]
fn receive_fast<const N: usize, const BY_VERBS: bool>(
    ep: Handle,
    count: i32,
    iov: In<LmrTriplet>,
    cookie: u64,
    flags: u32,
) -> u32 {
    if likely(flags == 0)
        && let Some(segments) = iov.array::<N>()
        && let Some(mut receives) = ep.receives_of_ep()
    {
        let posted = if BY_VERBS {
            receives.post_by_verbs(segments, cookie)
        } else {
            receives.post_fast(segments, cookie)
        };
        if posted {
            return SUCCESS;
        }
        drop(receives);
    }
    ep_post_recv_slow(ep, count, iov, cookie, flags)
}

#[inline(never)]
extern "C" fn ep_post_recv_slow(ep: Handle, count: i32, iov: In<LmrTriplet>, cookie: u64, flags: u32) -> u32 {
    if flags == 0
        && let Some(segments) = iov.few(count)
        && with_queues(ep, |pair| pair.post_recv_short(segments, cookie))
    {
        return SUCCESS;
    }
    guard("dat_ep_post_recv", || {
        let object = ep.get::<EpObject>()?;
        if object.ep.inner.srq.is_some() {
            // Refused whatever the other arguments are (R158).
            return Err(Code::post(PostError::UsesSrq, 5));
        }
        let segments = iov.segments(count)?;
        let flags = completion_flags(flags, 5)?;
        object.ep.inner.post_recv(segments, info(cookie), flags).map_err(|e| Code::post(e, 5))
    })
}

/// Posts an RDMA Write, or with `READ` an RDMA Read, in straight-line code: as [`ep_post_send`], for one
/// segment. False without posting if the slow function has to post, or to give the error.
#[inline(always)]
fn rdma_fast<const READ: bool>(
    ep: Handle,
    count: i32,
    iov: In<LmrTriplet>,
    cookie: u64,
    remote: In<RmrTriplet>,
    flags: u32,
) -> bool {
    if likely(count == 1)
        && let Some(segments) = iov.some()
        && let Some(remote) = remote.get()
        && let Some(segment) = segments.first()
        && let Some(mut requests) = ep.requests_of_ep()
    {
        let flags = CompletionFlags::from_bits_retain(flags);
        requests.post_rdma_fast::<READ>(segment, &remote, cookie, flags)
    } else {
        false
    }
}

/// `dat_ep_post_rdma_write`, or with `READ` `dat_ep_post_rdma_read`.
pub(super) extern "C" fn ep_post_rdma<const READ: bool>(
    ep: Handle,
    count: i32,
    iov: In<LmrTriplet>,
    cookie: u64,
    remote: In<RmrTriplet>,
    flags: u32,
) -> u32 {
    if rdma_fast::<READ>(ep, count, iov, cookie, remote, flags) {
        return SUCCESS;
    }
    ep_post_rdma_slow::<READ>(ep, count, iov, cookie, remote, flags)
}

/// As [`ep_post_rdma`], on either path.
#[inline(never)]
pub(super) extern "C" fn ep_post_rdma_slow<const READ: bool>(
    ep: Handle,
    count: i32,
    iov: In<LmrTriplet>,
    cookie: u64,
    remote: In<RmrTriplet>,
    flags: u32,
) -> u32 {
    let (name, kind): (_, fn(RmrTriplet) -> RequestKind) = if READ {
        ("dat_ep_post_rdma_read", RequestKind::Read)
    } else {
        ("dat_ep_post_rdma_write", RequestKind::Write)
    };
    if let Some(remote) = remote.get()
        && (one_segment(ep, kind(remote), count, iov, cookie, flags)
            || !READ && few_segments(ep, kind(remote), count, iov, cookie, flags))
    {
        return SUCCESS;
    }
    guard(name, || {
        ep.get::<EpObject>()?;
        request(ep, kind(remote.need(5)?), count, iov, cookie, flags, 6)
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
            inner.post_request(RequestKind::Read(remote), &[segment], info(cookie), flags)
        });
        posted.map_err(|error| match error {
            // The segment is argument 2 here.
            PostError::OutOfBounds(_) => Code::arg(2),
            error => Code::post(error, 5),
        })
    })
}

/// Straight-line code for nearly every post: one segment whose LMR `QueueLmrs` finds, a thread
/// that owns the SRQ's biased lock, and a slot left in the ring's contiguous span. This path takes no
/// other lock, allocates nothing, and cannot panic. [`srq_post_recv_slow`] does everything else.
pub(super) extern "C" fn srq_post_recv(srq: Handle, count: i32, iov: In<LmrTriplet>, cookie: u64) -> u32 {
    if likely(count == 1) {
        if let Some(segments) = iov.some()
            && let Some(mut owned) = srq.hot_fast()
        {
            if let Hot::Srq(owned) = &mut *owned
                && let Some(segment) = segments.first()
                && owned.post_fast(segment, cookie)
            {
                return SUCCESS;
            }
            drop(owned);
            return srq_post_recv_slow(srq, count, iov, cookie);
        }
        return srq_post_recv_shared(srq, count, iov, cookie);
    }
    srq_post_recv_several(srq, count, iov, cookie)
}

/// As [`srq_post_recv`], on either path, for one segment and a thread that shares the SRQ with
/// others.
#[inline(never)]
extern "C" fn srq_post_recv_shared(srq: Handle, count: i32, iov: In<LmrTriplet>, cookie: u64) -> u32 {
    if let Some(segments) = iov.some()
        && let Some(mut shared) = srq.hot_shared()
        && let Hot::Srq(shared) = &mut *shared
        && let Some(segment) = segments.first()
        && let Some(answer) = post_one_segment(shared, segment, cookie)
    {
        return answer;
    }
    srq_post_recv_slow(srq, count, iov, cookie)
}

/// Posts one segment on either path if `QueueLmrs` finds its LMR, and gives the answer. `None` if
/// another function has to post.
#[inline(always)]
fn post_one_segment(srq: &mut provider::Srq, segment: &LmrTriplet, cookie: u64) -> Option<u32> {
    if srq.post_fast(segment, cookie) {
        return Some(SUCCESS);
    }
    Some(post_staged(srq.stage_by_verbs(segment, cookie)?))
}

/// Hands a staged post to the device library, and gives the answer.
#[inline(always)]
fn post_staged(staged: Staged<'_>) -> u32 {
    match staged.post() {
        Ok(()) => SUCCESS,
        Err(refused) => srq_post_refused(refused),
    }
}

/// As [`srq_post_recv`], for two or more segments. Functions of their own, because the slow function
/// saves registers that these do not need.
#[inline(never)]
extern "C" fn srq_post_recv_several(srq: Handle, count: i32, iov: In<LmrTriplet>, cookie: u64) -> u32 {
    match count {
        2 => srq_post_recv_of::<2>(srq, count, iov, cookie),
        3 => srq_post_recv_of::<3>(srq, count, iov, cookie),
        4 => srq_post_recv_of::<4>(srq, count, iov, cookie),
        _ => srq_post_recv_many(srq, count, iov, cookie),
    }
}

/// As [`srq_post_recv_several`], for `N` segments, which is also the count: straight-line code
/// instead of a loop that counts.
#[inline(never)]
extern "C" fn srq_post_recv_of<const N: usize>(
    srq: Handle,
    count: i32,
    iov: In<LmrTriplet>,
    cookie: u64,
) -> u32 {
    if let Some(segments) = iov.array::<N>()
        && let Some(mut owned) = srq.hot_fast()
        && let Hot::Srq(owned) = &mut *owned
        && owned.post_several_fast(segments, cookie)
    {
        return SUCCESS;
    }
    srq_post_recv_slow(srq, count, iov, cookie)
}

/// As [`srq_post_recv_several`], for any number of segments.
#[inline(never)]
extern "C" fn srq_post_recv_many(srq: Handle, count: i32, iov: In<LmrTriplet>, cookie: u64) -> u32 {
    if let Some(segments) = iov.few(count)
        && let Some(mut owned) = srq.hot_fast()
        && let Hot::Srq(owned) = &mut *owned
        && owned.post_several_fast(segments, cookie)
    {
        return SUCCESS;
    }
    srq_post_recv_slow(srq, count, iov, cookie)
}

/// As [`srq_post_recv`], in the table of the verbs path. A post that the device library refuses
/// ends with the error at once, so the arguments need not be saved across the library's call.
///
/// Calls nothing but one of the functions below, which find their arguments in their registers.
pub(super) extern "C" fn srq_post_recv_by_verbs(
    srq: Handle,
    count: i32,
    iov: In<LmrTriplet>,
    cookie: u64,
) -> u32 {
    match count {
        1 => srq_post_recv_one_by_verbs(srq, count, iov, cookie),
        2 => srq_post_recv_of_by_verbs::<2>(srq, count, iov, cookie),
        3 => srq_post_recv_of_by_verbs::<3>(srq, count, iov, cookie),
        4 => srq_post_recv_of_by_verbs::<4>(srq, count, iov, cookie),
        _ => srq_post_recv_slow(srq, count, iov, cookie),
    }
}

#[inline(never)]
extern "C" fn srq_post_recv_one_by_verbs(srq: Handle, count: i32, iov: In<LmrTriplet>, cookie: u64) -> u32 {
    if let Some(segments) = iov.some()
        && let Some(mut owned) = srq.hot_fast()
        && let Hot::Srq(owned) = &mut *owned
        && let Some(segment) = segments.first()
        && let Some(staged) = owned.stage_by_verbs(segment, cookie)
    {
        return post_staged(staged);
    }
    srq_post_recv_shared(srq, count, iov, cookie)
}

/// As [`srq_post_recv_of`], on the verbs path.
#[inline(never)]
extern "C" fn srq_post_recv_of_by_verbs<const N: usize>(
    srq: Handle,
    count: i32,
    iov: In<LmrTriplet>,
    cookie: u64,
) -> u32 {
    if let Some(segments) = iov.array::<N>()
        && let Some(mut owned) = srq.hot_fast()
        && let Hot::Srq(owned) = &mut *owned
        && let Some(staged) = owned.stage_several_by_verbs(segments, cookie)
    {
        return post_staged(staged);
    }
    srq_post_recv_slow(srq, count, iov, cookie)
}

#[cold]
#[inline(never)]
fn srq_post_refused(refused: Refused<'_>) -> u32 {
    let error = refused.take_back();
    guard("dat_srq_post_recv", || Err(Code::post(error, 5)))
}

/// Posts without the guard if [`provider::Srq::post_short`] can, which cannot panic. A thread that does
/// not own the biased lock waits for it first, and then takes the fast path. Otherwise posts with
/// [`provider::Srq::post_once`], which gives the error. If the SRQ is full, harvests and posts again.
#[inline(never)]
extern "C" fn srq_post_recv_slow(srq: Handle, count: i32, iov: In<LmrTriplet>, cookie: u64) -> u32 {
    let owned = srq.hot_fast();
    let tried = owned.is_some();
    if let Some(mut locked) = owned.or_else(|| srq.hot().ok())
        && let Hot::Srq(locked) = &mut *locked
        && let Some(segments) = iov.few(count)
    {
        if !tried
            && let [segment] = segments
            && let Some(answer) = post_one_segment(locked, segment, cookie)
        {
            return answer;
        }
        if locked.post_short(segments, cookie) {
            return SUCCESS;
        }
    }
    guard("dat_srq_post_recv", || {
        let mut locked = srq.srq()?;
        let segments = iov.segments(count)?;
        let refused = |e| Code::post(e, 5);
        match locked.post_once(segments, cookie) {
            Err(full @ PostError::Full(_)) => {
                let defaults = locked.defaults().clone();
                // An agent that runs in the harvest may use the SRQ, or free it.
                drop(locked);
                if defaults.harvest_discards() {
                    srq.srq()?.post_once(segments, cookie).map_err(refused)
                } else {
                    Err(refused(full))
                }
            }
            outcome => outcome.map_err(refused),
        }
    })
}

// A system call is a cancellation point, so these put off cancellation as `guard` does.

/// As [`ep_post_send_by_verbs`], where the driver posts by system calls.
pub(super) extern "C" fn ep_post_send_by_calls(
    ep: Handle,
    count: i32,
    iov: In<LmrTriplet>,
    cookie: u64,
    flags: u32,
) -> u32 {
    let _uncancelled = Uncancelled::begin();
    ep_post_send_by_verbs(ep, count, iov, cookie, flags)
}

/// As [`ep_post_recv_by_verbs`], where the driver posts by system calls.
pub(super) extern "C" fn ep_post_recv_by_calls(
    ep: Handle,
    count: i32,
    iov: In<LmrTriplet>,
    cookie: u64,
    flags: u32,
) -> u32 {
    let _uncancelled = Uncancelled::begin();
    ep_post_recv_by_verbs(ep, count, iov, cookie, flags)
}

/// As [`srq_post_recv_by_verbs`], where the driver posts by system calls.
pub(super) extern "C" fn srq_post_recv_by_calls(
    srq: Handle,
    count: i32,
    iov: In<LmrTriplet>,
    cookie: u64,
) -> u32 {
    let _uncancelled = Uncancelled::begin();
    srq_post_recv_by_verbs(srq, count, iov, cookie)
}
