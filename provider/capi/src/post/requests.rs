//! Sends, RDMA Writes and RDMA Reads.

use super::super::code::{SUCCESS, guard};
use super::super::handle::Handle;
use super::super::objects::EpObject;
use super::super::raw::In;
use super::{request, uncancelled, with_queues};
use provider::inside::{Operation, Path, Read, RequestKind, Send, Write, likely};
use provider::{CompletionFlags, LmrTriplet, RmrTriplet};

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
        with_queues(ep, |pair| pair.requests.lock().push_any::<P, _>(op, iov, cookie, flags))
    })
}

/// `dat_ep_post_send`.
pub(in super::super) extern "C" fn ep_post_send<P: Path>(
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

/// The two operations of `dat_ep_post_rdma_write` and `dat_ep_post_rdma_read`.
pub(in super::super) trait Rdma: Operation {
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
pub(in super::super) extern "C" fn ep_post_rdma<P: Path, O: Rdma>(
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
