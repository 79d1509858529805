//! Posting: the slots that carry data. No lock but the handle's, no allocation.

use super::code::{Code, SUCCESS, guard};
use super::handle::Handle;
use super::objects::EpObject;
use super::raw::In;
use crate::datapath::WrInfo;
use crate::ep::RequestKind;
use crate::{CompletionFlags, LmrTriplet, PostError, RmrTriplet};

fn info(cookie: u64) -> WrInfo {
    WrInfo { cookie, ..WrInfo::default() }
}

/// The flags, which are argument `arg`.
pub(super) fn completion_flags(bits: u32, arg: u16) -> Result<CompletionFlags, Code> {
    CompletionFlags::from_bits(bits).ok_or_else(|| Code::arg(arg))
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

pub(super) extern "C" fn ep_post_send(
    ep: Handle,
    count: i32,
    iov: In<LmrTriplet>,
    cookie: u64,
    flags: u32,
) -> u32 {
    guard("dat_ep_post_send", || request(ep, RequestKind::Send, count, iov, cookie, flags, 5))
}

/// `dat_ep_post_send_with_invalidate`; without the flag an ordinary Send.
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

pub(super) extern "C" fn ep_post_recv(
    ep: Handle,
    count: i32,
    iov: In<LmrTriplet>,
    cookie: u64,
    flags: u32,
) -> u32 {
    guard("dat_ep_post_recv", || {
        let object = ep.get::<EpObject>()?;
        if object.ep.inner.srq.is_some() {
            // Whatever the rest of the call says (R158).
            return Err(Code::post(PostError::UsesSrq, 5));
        }
        let segments = iov.segments(count)?;
        let flags = completion_flags(flags, 5)?;
        object.ep.inner.post_recv(segments, info(cookie), flags).map_err(|e| Code::post(e, 5))
    })
}

pub(super) extern "C" fn ep_post_rdma_read(
    ep: Handle,
    count: i32,
    iov: In<LmrTriplet>,
    cookie: u64,
    remote: In<RmrTriplet>,
    flags: u32,
) -> u32 {
    guard("dat_ep_post_rdma_read", || {
        ep.get::<EpObject>()?;
        request(ep, RequestKind::Read(remote.need(5)?), count, iov, cookie, flags, 6)
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

pub(super) extern "C" fn ep_post_rdma_write(
    ep: Handle,
    count: i32,
    iov: In<LmrTriplet>,
    cookie: u64,
    remote: In<RmrTriplet>,
    flags: u32,
) -> u32 {
    guard("dat_ep_post_rdma_write", || {
        ep.get::<EpObject>()?;
        request(ep, RequestKind::Write(remote.need(5)?), count, iov, cookie, flags, 6)
    })
}

/// Four ways. This one is straight-line code for what nearly every post is; it has no lock, no allocation, and nothing that
/// could panic. Whatever it does not cover, the next one does.
pub(super) extern "C" fn srq_post_recv(srq: Handle, count: i32, iov: In<LmrTriplet>, cookie: u64) -> u32 {
    if count == 1
        && let Some(mut quick) = srq.srq_quickly()
        && let Some([segment]) = iov.few(1)
        && quick.post_in_run(segment, cookie)
    {
        return SUCCESS;
    }
    srq_post_recv_quick(srq, count, iov, cookie)
}

/// The second way sees what was reaped since there was no room, and leads back to the first. The third: a few segments, and
/// slots that have to be searched for. The fourth has the guard, and says what was wrong.
#[inline(never)]
extern "C" fn srq_post_recv_quick(srq: Handle, count: i32, iov: In<LmrTriplet>, cookie: u64) -> u32 {
    let Some(mut quick) = srq.srq_quickly() else { return srq_post_recv_guarded(srq, count, iov, cookie) };
    if count == 1 && quick.found_room() {
        drop(quick);
        return srq_post_recv(srq, count, iov, cookie);
    }
    if let Some(segments) = iov.few(count)
        && quick.post_quick(segments, cookie)
    {
        return SUCCESS;
    }
    drop(quick);
    srq_post_recv_guarded(srq, count, iov, cookie)
}

#[inline(never)]
fn srq_post_recv_guarded(srq: Handle, count: i32, iov: In<LmrTriplet>, cookie: u64) -> u32 {
    guard("dat_srq_post_recv", || {
        let mut object = srq.srq()?;
        let segments = iov.segments(count)?;
        object.post_recv(segments, cookie).map_err(|e| Code::post(e, 5))
    })
}
