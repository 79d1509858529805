//! How a program posts to an EP: each function tries `ep/fast.rs`, and then `ep/post.rs` or
//! `ep/recv.rs`. All take `&mut self`, because one thread at a time posts to an EP.

use super::Ep;
use super::request::{Operation, PoolBytes, RequestKind};
use crate::datapath::{Direct, WrInfo, with_path};
use crate::error::PostError;
use crate::types::{CompletionFlags, LmrTriplet};
use std::iter::once;

impl Ep {
    /// Posts a receive to an EP without an SRQ.
    ///
    /// # Errors
    /// [`PostError::UsesSrq`] on an SRQ EP, whatever the other arguments are (R157, R158).
    ///
    /// # References
    /// dat_ep_post_recv(3DAT).
    pub fn post_recv(
        &mut self,
        iov: &[LmrTriplet],
        cookie: u64,
        flags: CompletionFlags,
    ) -> Result<(), PostError> {
        if flags.is_empty()
            && iov.len() == 1
            && let Some(mut receives) = self.inner.pair.receives.try_lock_fast()
            && receives.push_fast::<Direct>(iov, cookie)
        {
            return Ok(());
        }
        self.recv_any(iov, cookie, flags)
    }

    /// As [`Ep::post_recv`], for all receives.
    #[inline(never)]
    fn recv_any(&mut self, iov: &[LmrTriplet], cookie: u64, flags: CompletionFlags) -> Result<(), PostError> {
        if flags.is_empty() {
            let mut receives = self.inner.pair.receives.lock();
            if with_path!(receives.queue.path(), P => receives.push_fast::<P>(iov, cookie)) {
                return Ok(());
            }
        }
        self.inner.recv_slow(iov, WrInfo { cookie, ..WrInfo::default() }, flags)
    }

    /// Posts a request. The first attempt, straight-line code without calls, is for one segment on
    /// the direct path, by the thread that owns the lock.
    #[inline(always)]
    pub(super) fn submit(
        &mut self,
        op: impl Operation,
        iov: &[LmrTriplet],
        cookie: u64,
        flags: CompletionFlags,
    ) -> Result<(), PostError> {
        if iov.len() == 1
            && let Some(mut requests) = self.inner.pair.requests.try_lock_fast()
            && requests.push_fast::<Direct, _, true>(op, iov, cookie, flags)
        {
            return Ok(());
        }
        self.submit_any(op, iov, cookie, flags)
    }

    /// Posts a request of a pool's memory.
    #[inline(always)]
    pub(super) fn submit_pool(
        &mut self,
        op: impl Operation,
        bytes: PoolBytes<'_>,
        info: WrInfo,
        flags: CompletionFlags,
    ) -> Result<(), PostError> {
        if let Some(mut requests) = self.inner.pair.requests.try_lock_fast()
            && requests.push_pool::<Direct, _, false>(op, bytes, &info, flags)
        {
            return Ok(());
        }
        self.submit_pool_any(op, bytes, info, flags)
    }

    /// Posts a Send of these bytes, which are copied.
    #[inline(always)]
    pub(super) fn submit_copy(
        &mut self,
        bytes: &[u8],
        cookie: u64,
        flags: CompletionFlags,
    ) -> Result<(), PostError> {
        if let Some(mut requests) = self.inner.pair.requests.try_lock_fast()
            && requests.push_copy::<Direct>(bytes, cookie, flags)
        {
            return Ok(());
        }
        self.submit_copy_any(bytes, cookie, flags)
    }

    /// As [`Ep::submit_copy`], for all requests.
    #[inline(never)]
    fn submit_copy_any(
        &mut self,
        bytes: &[u8],
        cookie: u64,
        flags: CompletionFlags,
    ) -> Result<(), PostError> {
        let mut requests = self.inner.pair.requests.lock();
        if requests.push_copy_any::<Direct>(bytes, cookie, flags) {
            return Ok(());
        }
        drop(requests);
        self.inner.send_copy(RequestKind::Send, bytes, cookie, flags)
    }

    /// As [`Ep::submit_pool`], for all requests.
    #[inline(never)]
    fn submit_pool_any(
        &mut self,
        op: impl Operation,
        bytes: PoolBytes<'_>,
        info: WrInfo,
        flags: CompletionFlags,
    ) -> Result<(), PostError> {
        let mut requests = self.inner.pair.requests.lock();
        let path = requests.queue.path();
        if with_path!(path, P => requests.push_pool::<P, _, true>(op, bytes, &info, flags)) {
            return Ok(());
        }
        drop(requests);
        self.inner.request_pool_slow(op.kind(), bytes.memory, once(bytes.at), info, flags)
    }

    /// As [`Ep::submit`], for all requests.
    #[inline(never)]
    fn submit_any(
        &mut self,
        op: impl Operation,
        iov: &[LmrTriplet],
        cookie: u64,
        flags: CompletionFlags,
    ) -> Result<(), PostError> {
        let mut requests = self.inner.pair.requests.lock();
        let path = requests.queue.path();
        let posted = with_path!(path, P => requests.push_any::<P, _>(op, iov, cookie, flags));
        if posted {
            return Ok(());
        }
        drop(requests);
        self.inner.request_slow(op.kind(), iov, WrInfo { cookie, ..WrInfo::default() }, flags)
    }
}
