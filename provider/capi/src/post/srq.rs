//! Posts to an SRQ.

use super::super::code::{Code, SUCCESS, guard};
use super::super::handle::Handle;
use super::super::raw::In;
use super::super::slots::Hot;
use super::uncancelled;
use provider::inside::{Fast, Path, likely};
use provider::{LmrTriplet, PostError};

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
pub(in super::super) extern "C" fn srq_post_recv<P: Path>(
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
    // For a thread that shares the lock.
    if let Some(iov) = iov.few(count)
        && let Ok(mut locked) = srq.hot()
        && let Hot::Srq(locked) = &mut *locked
        && let Some(answer) = answer(locked.push_fast::<P>(iov, cookie))
    {
        return answer;
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
