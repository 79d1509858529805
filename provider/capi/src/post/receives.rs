//! Receives of EPs without an SRQ.

use super::super::code::{Code, SUCCESS, guard};
use super::super::convert::completion_flags;
use super::super::handle::Handle;
use super::super::objects::EpObject;
use super::super::raw::In;
use super::{info, uncancelled, with_queues};
use provider::inside::{Path, likely};
use provider::{LmrTriplet, PostError};

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
pub(in super::super) extern "C" fn ep_post_recv<P: Path>(
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
