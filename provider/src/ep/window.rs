//! Requests about memory windows: binds and invalidations.

use super::EpInner;
use crate::datapath::Outgoing;
use crate::device::RkeyTarget;
use crate::error::PostError;
use crate::queue_pair::{Request, Requests};
use crate::types::{CompletionFlags, EpState, LmrTriplet, RmrTriplet};
use crate::{Direction, Subtype};
use rxe_fallback::{BindMw, SendOp};
use std::sync::Arc;

/// The operation on a window.
#[derive(Clone, Copy)]
pub(crate) enum WindowRequest<'a> {
    /// Bind a window of type 1. The bind may be empty.
    Type1(&'a BindMw<'a>),
    /// Invalidate the present key, if there is one, and bind a window of type 2.
    Type2(&'a BindMw<'a>, Option<u32>),
    /// Invalidate this key.
    Invalidate(u32),
    /// No operation, completed in order.
    Nothing,
}

/// Which bind a request is.
#[derive(Clone, Copy)]
pub(crate) struct Bind {
    /// The number of the RMR.
    pub(crate) rmr: u32,
    pub(crate) cookie: u64,
    /// Which of the requests of this RMR.
    pub(crate) serial: u32,
}

impl EpInner {
    /// Whether a request about a window can be posted with these flags. Returns the EP's state.
    pub(crate) fn takes_window_requests(&self, flags: CompletionFlags) -> Result<EpState, PostError> {
        let state = self.takes_requests(flags)?;
        if flags.contains(CompletionFlags::SOLICITED_WAIT) {
            return Err(PostError::Flags);
        }
        Ok(state)
    }

    /// Passes the operation to the device. It completes as a bind. Returns its position among the
    /// EP's requests. Does not harvest and calls no
    /// code of the program, so the caller may hold the lock of an RMR.
    ///
    /// # Errors
    /// [`PostError::Full`] if the ring has too few places. A harvest of the request EVD may make
    /// room.
    pub(crate) fn push_window(
        &self,
        what: WindowRequest<'_>,
        Bind { rmr, cookie, serial }: Bind,
        flags: CompletionFlags,
    ) -> Result<u64, PostError> {
        let mut requests = self.pair.requests.lock();
        // A bind that invalidates the old key is two requests, of which only the second raises an
        // event. Both are posted or neither.
        let old = if let WindowRequest::Type2(_, old) = what { old } else { None };
        if requests.ring.room() <= usize::from(old.is_some()) {
            return Err(PostError::Full(Subtype::ResourceCredits));
        }
        if let Some(old) = old {
            let quietly = flags | CompletionFlags::SUPPRESS;
            requests.push_window(WindowRequest::Invalidate(old), Request::bind(rmr, cookie, quietly, 0))?;
        }
        let position = requests.ring.end();
        requests.push_window(what, Request::bind(rmr, cookie, flags, serial))?;
        Ok(position)
    }

    /// Flushes a bind that was posted to this EP, which is DISCONNECTED. An agent may run, so the
    /// caller holds no lock.
    pub(crate) fn flush_bind(
        self: &Arc<Self>,
        Bind { rmr, cookie, serial }: Bind,
        flags: CompletionFlags,
    ) -> Result<(), PostError> {
        let request = Request::bind(rmr, cookie, flags, serial);
        self.submit(EpState::Disconnected, request, false, 0, |_, _, _| Ok(()))
    }

    /// The LMR segment that an RMR triplet of this side names; an RDMA Read writes to the segment.
    ///
    /// # Errors
    /// No RMR of this EP with that context, or not that memory.
    pub fn local_segment(&self, to: RmrTriplet) -> Result<LmrTriplet, PostError> {
        let dead = PostError::NoSuchLmr(0, Direction::Write);
        if self.device.is_inherited() {
            return Err(PostError::Stale(Subtype::InvalidHandleEp));
        }
        if to.segment_length == 0 {
            return Ok(LmrTriplet::default());
        }
        match self.device.rkeys.find(to.rmr_context).ok_or(dead)? {
            RkeyTarget::Lmr(context) => Ok(LmrTriplet {
                virtual_address: to.virtual_address,
                segment_length: to.segment_length,
                lmr_context: context,
            }),
            RkeyTarget::Rmr(id, _) => {
                let window = self.device.rkeys.window(id).ok_or(dead)?;
                window.local(to.virtual_address, to.segment_length)
            }
        }
    }
}

impl Requests {
    fn push_window(&mut self, what: WindowRequest<'_>, request: Request) -> Result<(), PostError> {
        self.push(request, false, |queue, flags, _| {
            let op = match what {
                WindowRequest::Type1(bind) | WindowRequest::Type2(bind, _) => SendOp::BindMw(*bind),
                WindowRequest::Invalidate(key) => SendOp::LocalInv(key),
                // A write of no bytes touches no memory, whatever the key is.
                WindowRequest::Nothing => SendOp::Write { remote_addr: 0, rkey: 0 },
            };
            queue.push(&Outgoing { request, op, sges: &[], flags, to: None })
        })
    }
}
