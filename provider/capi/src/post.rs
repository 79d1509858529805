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

use super::code::{Code, guard};
use super::convert::completion_flags;
use super::handle::Handle;
use super::objects::EpObject;
use super::raw::In;
use super::slots::Hot;
use provider::inside::{Path, QueuePair, RequestKind, Uncancelled, WrInfo};
use provider::{LmrTriplet, PostError, RmrTriplet};

mod receives;
mod requests;
mod srq;

pub(super) use self::receives::ep_post_recv;
pub(super) use self::requests::{ep_post_rdma, ep_post_send};
pub(super) use self::srq::srq_post_recv;

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
