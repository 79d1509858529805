//! Requests about memory windows: binds and invalidations.

use super::EpInner;
use crate::datapath::{Outgoing, WrInfo};
use crate::device::RkeyTarget;
use crate::error::PostError;
use crate::queue_pair::Request;
use crate::types::{CompletionFlags, DtoOp, EpState, LmrTriplet, RmrTriplet};
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

impl EpInner {
    /// Posts the operation. It completes as a bind.
    pub(crate) fn post_window(
        self: &Arc<Self>,
        what: WindowRequest<'_>,
        info: WrInfo,
        flags: CompletionFlags,
    ) -> Result<(), PostError> {
        let state = self.takes_requests(flags)?;
        if flags.contains(CompletionFlags::SOLICITED_WAIT) {
            return Err(PostError::Flags);
        }
        if let WindowRequest::Type2(_, Some(old)) = what {
            // Two requests, of which only the second raises an event. Both are posted or neither.
            if !self.has_room(2) {
                return Err(PostError::Full(Subtype::ResourceCredits));
            }
            let silent = flags | CompletionFlags::SUPPRESS;
            self.submit_window(state, WindowRequest::Invalidate(old), info, silent)?;
        }
        self.submit_window(state, what, info, flags)
    }

    fn has_room(&self, entries: usize) -> bool {
        let fits = || self.pair.requests.lock().ring.room() >= entries;
        fits() || {
            let _ = self.request_evd.harvest_now();
            fits()
        }
    }

    fn submit_window(
        self: &Arc<Self>,
        state: EpState,
        what: WindowRequest<'_>,
        info: WrInfo,
        flags: CompletionFlags,
    ) -> Result<(), PostError> {
        let request = Request::new(&info, flags, DtoOp::RmrBind, 0);
        self.submit(state, request, false, 0, |queue, seq, flags| {
            let op = match what {
                WindowRequest::Type1(bind) | WindowRequest::Type2(bind, _) => SendOp::BindMw(*bind),
                WindowRequest::Invalidate(key) => SendOp::LocalInv(key),
                // A write of no bytes touches no memory, whatever the key is.
                WindowRequest::Nothing => SendOp::Write { remote_addr: 0, rkey: 0 },
            };
            queue.post(&Outgoing { seq, op, sges: &[], flags, to: None })
        })
    }

    /// The LMR segment that an RMR triplet of this side names; an RDMA Read writes to the segment.
    pub(crate) fn local_segment(&self, to: RmrTriplet) -> Result<LmrTriplet, PostError> {
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
            RkeyTarget::Rmr(id) => {
                let window = self.device.rkeys.window(id).ok_or(dead)?;
                window.local(to.virtual_address, to.segment_length)
            }
        }
    }
}
