//! Releasing requests by their completions, and what a queue knows of outstanding requests.

use std::sync::atomic::{Ordering::SeqCst, compiler_fence};

use super::Sq;
use crate::{
    position::{REQUEST_SHIFT, block},
    queue_mem::{Cookie, Transport},
    wqe::{
        DataSeg,
        send::{MAX_UNITS, opcode},
    },
};

/// No posted request that is still outstanding starts at this block. Only a faulty device causes
/// this error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no request is outstanding at block {0}")]
pub struct NotPosted(pub u16);

/// The requests that a completion released.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Released<C = u64> {
    /// The cookie of the request that completed.
    pub cookie: C,
    /// The number of requests released: the completed request, and those before it that had no
    /// completion of their own.
    pub requests: u32,
}

impl<C: Cookie> Sq<C> {
    /// Releases the request with this completion, and all requests before it; returns its cookie.
    /// `wqe_counter` is the field of [`SendCqe`](crate::SendCqe) or, for a failed request, of
    /// [`ErrorCqe`](crate::ErrorCqe).
    ///
    /// # Errors
    ///
    /// [`NotPosted`]; nothing changes.
    #[inline(always)]
    pub fn complete(&mut self, wqe_counter: u16) -> Result<Released<C>, NotPosted> {
        let request = *self.wqes.record(wqe_counter.into());
        // No request was recorded with a position beyond the queue's, and those that were taken
        // back are not recorded any more, so what is behind the last released request is
        // outstanding.
        if request.after <= self.done {
            return Err(NotPosted(wqe_counter));
        }
        let requests = (request.after.wrapping_sub(self.done) >> REQUEST_SHIFT) as u32;
        self.done = request.after;
        Ok(Released { cookie: request.cookie, requests })
    }

    /// As [`complete`](Self::complete), if `accept` makes something of the cookie. Returns that, and
    /// the number of requests released. Otherwise returns `None`, and nothing changes.
    #[inline(always)]
    pub fn complete_if<R>(
        &mut self,
        wqe_counter: u16,
        accept: impl FnOnce(&C) -> Option<R>,
    ) -> Option<(R, u32)> {
        let request = self.wqes.record(wqe_counter.into());
        if request.after <= self.done {
            return None;
        }
        let accepted = accept(&request.cookie)?;
        // `after` is read again, and takes no register meanwhile.
        compiler_fence(SeqCst);
        let requests = (request.after.wrapping_sub(self.done) >> REQUEST_SHIFT) as u32;
        self.done = request.after;
        Some((accepted, requests))
    }

    /// Releases the oldest request without a completion, for a device that has stopped. Returns its
    /// cookie; `None` if nothing is posted.
    pub fn release_oldest(&mut self) -> Option<C> {
        let (first, _) = self.outstanding().next()?;
        self.complete(first).ok().map(|released| released.cookie)
    }

    /// Requests that are posted and not released, oldest first: the number of the first block, and
    /// the cookie.
    pub fn outstanding(&self) -> impl Iterator<Item = (u16, C)> + '_ {
        self.cookies(self.done).take(self.posted() as usize)
    }

    /// The data segments of a posted read or atomic, in order. The result of a
    /// [`ScatteredSend`](crate::ScatteredSend) belongs in them. Read them before the blocks of
    /// the request are posted again. Empty for other requests.
    pub fn segments(&self, wqe_counter: u16) -> impl Iterator<Item = DataSeg> + '_ {
        let block = u32::from(wqe_counter);
        let unit = move |n: usize| self.wqes.unit(block, n);
        let ctrl = u64::from_be(unit(0)[0]);
        let head = match (ctrl >> 32) as u8 {
            opcode::RDMA_READ => 2,
            opcode::ATOMIC_CS | opcode::ATOMIC_FA | opcode::ATOMIC_MASKED_FA => 3,
            opcode::ATOMIC_MASKED_CS if ctrl >> 56 & 1 == 0 => 3,
            opcode::ATOMIC_MASKED_CS => 4,
            _ => MAX_UNITS,
        };
        let head = head + usize::from(self.transport == Transport::Xrc);
        (head..ctrl as usize & MAX_UNITS).map(move |n| DataSeg::from_words(unit(n)))
    }

    /// Whether a posted key change binds a memory window; false for an invalidation. The completion
    /// of either is a [`RequestOp::Umr`](crate::RequestOp::Umr).
    pub fn is_bind(&self, wqe_counter: u16) -> bool {
        let block = u32::from(wqe_counter);
        let units = u64::from_be(self.wqes.unit(block, 0)[0]) as usize & MAX_UNITS;
        let flags = u64::from_be(self.wqes.unit(block, 1)[0]) >> 56;
        let key = u64::from_be(self.wqes.unit(block, 4)[0]) as u8;
        crate::wr::is_bind(units, flags as u8, key)
    }

    fn cookies(&self, from: u64) -> impl Iterator<Item = (u16, C)> + '_ {
        let mut at = from;
        core::iter::repeat_with(move || {
            let (first, request) = (block(at), self.wqes.record(block(at)));
            at = request.after;
            (first as u16, request.cookie)
        })
    }
}
