//! The operations that a program posts to an EP: one method for each DAT call.
//!
//! Each method tries `ep/fast.rs`, if that has the operation, and then `ep/post.rs` or
//! `ep/recv.rs`. All take `&mut self`, because one thread at a time posts to an EP.

use super::request::{Operation, Read, Send, Write};
use super::{Ep, RequestKind};
use crate::datapath::{Direct, WrInfo, with_path};
use crate::error::PostError;
use crate::types::{CompletionFlags, LmrTriplet, RmrTriplet};

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

    /// Sends a message gathered from these segments.
    ///
    /// # Errors
    /// See [`PostError`].
    ///
    /// # References
    /// dat_ep_post_send(3DAT).
    pub fn post_send(
        &mut self,
        iov: &[LmrTriplet],
        cookie: u64,
        flags: CompletionFlags,
    ) -> Result<(), PostError> {
        self.submit(Send, iov, cookie, flags)
    }

    /// Sends a message of these bytes, which the device gets with the request: they are copied
    /// during the call and may change as soon as it returns. They need no LMR, and the device reads
    /// no memory for them, which makes small messages faster.
    ///
    /// The queue decides how many bytes are possible: build the EP with
    /// [`EpBuilder::max_inline`](crate::EpBuilder::max_inline), or query what it has.
    ///
    /// ```no_run
    /// # use doorbell::*;
    /// # fn greet(ia: &Ia, pz: &Pz, events: &Evd) -> Result<()> {
    /// let mut ep = Ep::builder(ia, pz).evd(events).max_inline(32).build()?;
    /// // ... connect ...
    /// ep.post_send_inline(b"hello", 1, CompletionFlags::empty())?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Ep::post_send`]; [`PostError::Length`] for more bytes than the EP's `max_inline`.
    ///
    /// # References
    /// ibv_post_send(3), `IBV_SEND_INLINE`.
    pub fn post_send_inline(
        &mut self,
        bytes: &[u8],
        cookie: u64,
        flags: CompletionFlags,
    ) -> Result<(), PostError> {
        self.inner.send_copy(RequestKind::Send, bytes, cookie, flags)
    }

    /// Writes these bytes into the peer's memory. They are copied during the call, as by
    /// [`Ep::post_send_inline`].
    ///
    /// # Errors
    /// As [`Ep::post_rdma_write`]; [`PostError::Length`] also for more bytes than the EP's
    /// `max_inline`.
    ///
    /// # References
    /// ibv_post_send(3), `IBV_SEND_INLINE`.
    pub fn post_rdma_write_inline(
        &mut self,
        bytes: &[u8],
        cookie: u64,
        remote: RmrTriplet,
        flags: CompletionFlags,
    ) -> Result<(), PostError> {
        self.inner.send_copy(RequestKind::Write(remote), bytes, cookie, flags)
    }

    /// Sends a message and invalidates one of the peer's RMR contexts. The context becomes invalid
    /// with the receive of the message, and the peer's completion reports the context
    /// ([`DtoFields::invalidated`](crate::DtoFields::invalidated)).
    ///
    /// The context must belong to an RMR that was bound through the peer's end of this connection.
    /// Any other context breaks the connection.
    ///
    /// # Errors
    /// See [`PostError`]; [`PostError::NotSupported`] if the device lacks the operation.
    ///
    /// # References
    /// dat.h, `dat_ep_post_send_with_invalidate`.
    pub fn post_send_with_invalidate(
        &mut self,
        iov: &[LmrTriplet],
        cookie: u64,
        rmr_context: u32,
        flags: CompletionFlags,
    ) -> Result<(), PostError> {
        let info = WrInfo { cookie, ..WrInfo::default() };
        self.inner.request_slow(RequestKind::SendInvalidate(rmr_context), iov, info, flags)
    }

    /// Writes these segments into the peer's memory.
    ///
    /// # Errors
    /// See [`PostError`]; [`PostError::Length`] if the remote segment is shorter than the local
    /// segments.
    ///
    /// # References
    /// dat_ep_post_rdma_write(3DAT).
    pub fn post_rdma_write(
        &mut self,
        iov: &[LmrTriplet],
        cookie: u64,
        remote: RmrTriplet,
        flags: CompletionFlags,
    ) -> Result<(), PostError> {
        self.submit(Write(remote), iov, cookie, flags)
    }

    /// Writes into the peer's memory and consumes a receive of the peer. The completion of that
    /// receive carries `immediate` (IB extension; R276-R279).
    ///
    /// # Errors
    /// As [`Ep::post_rdma_write`].
    ///
    /// # References
    /// dat_ib_extensions.h, `dat_ib_post_rdma_write_immed`.
    pub fn post_rdma_write_immediate(
        &mut self,
        iov: &[LmrTriplet],
        cookie: u64,
        remote: RmrTriplet,
        immediate: u32,
        flags: CompletionFlags,
    ) -> Result<(), PostError> {
        self.inner.request_slow(
            RequestKind::WriteImmediate(remote, immediate),
            iov,
            WrInfo { cookie, ..WrInfo::default() },
            flags,
        )
    }

    /// Reads the peer's memory into these segments.
    ///
    /// # Errors
    /// See [`PostError`]; [`PostError::Length`] if the local segments are shorter than the remote
    /// segment.
    ///
    /// # References
    /// dat_ep_post_rdma_read(3DAT).
    pub fn post_rdma_read(
        &mut self,
        iov: &[LmrTriplet],
        cookie: u64,
        remote: RmrTriplet,
        flags: CompletionFlags,
    ) -> Result<(), PostError> {
        self.submit(Read(remote), iov, cookie, flags)
    }

    /// Reads the peer's memory into local memory. The local memory is named as a peer would name
    /// it: by the RMR context of an LMR, or of a bound RMR, with remote write privilege.
    ///
    /// # Errors
    /// As [`Ep::post_rdma_read`]; [`PostError::NoSuchLmr`] for a context of neither an LMR nor an
    /// RMR; [`PostError::Privilege`] without the privilege.
    ///
    /// # References
    /// dat.h, `dat_ep_post_rdma_read_to_rmr`.
    pub fn post_rdma_read_to_rmr(
        &mut self,
        local: RmrTriplet,
        cookie: u64,
        remote: RmrTriplet,
        flags: CompletionFlags,
    ) -> Result<(), PostError> {
        let local = self.inner.local_segment(local)?;
        self.post_rdma_read(&[local], cookie, remote, flags)
    }

    /// Adds `add` to 8 bytes of the peer's memory, at an address that is a multiple of 8. The old
    /// value is written into the local 8 bytes (IB extension).
    ///
    /// # Errors
    /// See [`PostError`]; [`PostError::NotSupported`] if the device has no atomics;
    /// [`PostError::Length`] for other sizes.
    ///
    /// # References
    /// dat_ib_extensions.h, `dat_ib_post_fetch_and_add`.
    pub fn post_fetch_and_add(
        &mut self,
        local: LmrTriplet,
        cookie: u64,
        remote: RmrTriplet,
        add: u64,
        flags: CompletionFlags,
    ) -> Result<(), PostError> {
        let info = WrInfo { cookie, ..WrInfo::default() };
        self.inner.request_slow(RequestKind::FetchAdd(remote, add), &[local], info, flags)
    }

    /// Replaces 8 bytes of the peer's memory, at an address that is a multiple of 8, with `swap` if
    /// they equal `compare`. The old value is written into the local 8 bytes (IB extension).
    ///
    /// # Errors
    /// As [`Ep::post_fetch_and_add`].
    ///
    /// # References
    /// dat_ib_extensions.h, `dat_ib_post_cmp_and_swap`.
    pub fn post_compare_and_swap(
        &mut self,
        local: LmrTriplet,
        cookie: u64,
        remote: RmrTriplet,
        compare: u64,
        swap: u64,
        flags: CompletionFlags,
    ) -> Result<(), PostError> {
        let info = WrInfo { cookie, ..WrInfo::default() };
        self.inner.request_slow(RequestKind::CompareSwap(remote, compare, swap), &[local], info, flags)
    }

    /// Posts a request. The first attempt, straight-line code without calls, is for one segment on
    /// the direct path, by the thread that owns the lock.
    #[inline(always)]
    fn submit(
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
        let posted = with_path!(path, P => requests.push_fast::<P, _, true>(op, iov, cookie, flags)
            || requests.push_after_search::<P, _>(op, iov, cookie, flags));
        if posted {
            return Ok(());
        }
        drop(requests);
        self.inner.request_slow(op.kind(), iov, WrInfo { cookie, ..WrInfo::default() }, flags)
    }
}
