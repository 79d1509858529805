//! Receives of an EP without an SRQ that make all checks.

use super::EpInner;
use super::post::too_many;
use crate::datapath::{WrInfo, verbs::refused};
use crate::device::Use;
use crate::error::{Direction, PostError};
use crate::lmr::PoolMemory;
use crate::queue_pair::{Credit, LastPool, Receive, Receives};
use crate::types::{CompletionFlags, EpState, LmrTriplet, MAX_IOV};
use crate::{ReturnType, Subtype};
use rxe_fallback::Sge;
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl EpInner {
    /// Posts a receive after all checks.
    ///
    /// # Errors
    /// Why nothing was posted.
    pub fn recv_slow(
        self: &Arc<Self>,
        iov: &[LmrTriplet],
        info: WrInfo,
        flags: CompletionFlags,
    ) -> Result<(), PostError> {
        self.recv_checked(iov.len(), info.over(iov), flags, |sges| {
            let using = Use { pz: self.pz_number(), direction: Direction::Write };
            self.device.lmrs.check_all(iov, using, sges)
        })?;
        self.allow_fast(|_| ());
        Ok(())
    }

    /// Posts part of a pool's memory as a receive; `bytes` is an offset and a length.
    pub(crate) fn recv_pool_slow(
        self: &Arc<Self>,
        memory: &PoolMemory,
        bytes: (usize, usize),
        info: WrInfo,
    ) -> Result<(), PostError> {
        let info = WrInfo { lmrs: [memory.number(), 0, 0, 0], ..info };
        self.recv_checked(1, info, CompletionFlags::empty(), |sges| {
            sges[0] = memory.segment(0, bytes, &self.pz(), Direction::Write)?;
            Ok(1)
        })?;
        self.allow_fast(|receives| receives.last_pool = LastPool { number: info.pool, longest: u32::MAX });
        Ok(())
    }

    /// After a receive that was checked: lets the next receives be posted without the slow
    /// function, and calls `remember`, if the EP is connected and has no high watermark.
    fn allow_fast(&self, remember: impl FnOnce(&mut Receives)) {
        if self.state() != EpState::Connected {
            return;
        }
        // Who changes the state or the watermarks holds this lock, and then closes the LMRs.
        let control = self.control.lock().unwrap();
        if self.state() == EpState::Connected && !control.has_marks() {
            let mut receives = self.pair.receives.lock();
            if receives.max_iov > 0 {
                receives.lmrs.open(u32::MAX);
            }
            remember(&mut receives);
        }
    }

    /// Posts a receive of `segments` segments. `check` checks and writes them, and returns how many
    /// remain.
    fn recv_checked(
        self: &Arc<Self>,
        segments: usize,
        info: WrInfo,
        flags: CompletionFlags,
        check: impl FnOnce(&mut [Sge]) -> Result<usize, PostError>,
    ) -> Result<(), PostError> {
        if !self.live.load(Ordering::Acquire) {
            return Err(PostError::Stale(Subtype::InvalidHandleEp));
        }
        if self.srq.is_some() {
            return Err(PostError::UsesSrq);
        }
        if !self.flags_fit(flags, CompletionFlags::UNSIGNALLED, self.pair.recv_flags()) {
            return Err(PostError::Flags);
        }
        self.ensure_started_over().map_err(|error| {
            tracing::warn!(%error, ep = self.id.0, "an EP cannot start over");
            let memory = error.return_type() == ReturnType::InsufficientResources;
            PostError::Device(if memory { libc::ENOMEM } else { libc::EIO })
        })?;
        let mut receives = self.pair.receives.lock();
        if segments > receives.max_iov {
            return Err(too_many(segments, receives.max_iov));
        }
        let mut sges = [Sge::default(); MAX_IOV];
        let n = check(&mut sges)?;
        if receives.ring.room() == 0 {
            drop(receives);
            // Only completed receives make room.
            let _ = self.recv_evd.harvest_now();
            receives = self.pair.receives.lock();
            if receives.ring.room() == 0 {
                return Err(PostError::Full(Subtype::ResourceTep));
            }
        }
        let state = self.state();
        if state == EpState::Disconnected {
            receives.count(&sges[..n]);
            if !receives.ring.is_empty() {
                receives.ring.push(Receive::off_device(info, flags));
                return Ok(());
            }
            drop(receives);
            self.recv_evd.put_flushed(
                &self.pair,
                info.cookie_and_owner(),
                self.pair.receive_op(),
                Credit::Nothing,
            );
            return Ok(());
        }
        // Datagrams may arrive at any time.
        let keep = state.is_before_connection() && !self.is_ud();
        if keep {
            receives.preposted.reserve(&sges[..n]).map_err(|_| PostError::Full(Subtype::ResourceMemory))?;
        }
        receives.queue.push(&sges[..n]).map_err(refused)?;
        receives.ring.push(Receive::new(info, flags));
        if keep {
            receives.preposted.push(&sges[..n]);
        }
        receives.count(&sges[..n]);
        drop(receives);
        self.check_marks();
        Ok(())
    }
}
