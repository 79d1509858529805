//! Posting requests to an EP, with all checks.

use super::{EpInner, RequestKind};
use crate::Subtype;
use crate::datapath::{Outgoing, SendQueue, WrInfo, verbs::refused};
use crate::device::Use;
use crate::error::{Direction, PostError};
use crate::lmr::PoolMemory;
use crate::queue_pair::{LastPool, Request, Requests};
use crate::types::{CompletionFlags, Destination, DtoOp, EpState, LmrTriplet, MAX_IOV};
use rxe_fallback::{SendFlags, SendOp, Sge};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The size of the operand of an atomic operation, in bytes.
const ATOMIC_LEN: u64 = 8;

/// A request that has passed all checks but those of the queue.
#[derive(Clone, Copy)]
pub(super) struct Checked {
    pub(super) request: Request,
    pub(super) verb: SendOp<'static>,
    /// SOLICITED_WAIT has a meaning for the operation.
    pub(super) solicits: bool,
    /// The number of its segments.
    pub(super) segments: usize,
}

impl EpInner {
    pub(super) fn flags_fit(
        &self,
        flags: CompletionFlags,
        allowed: CompletionFlags,
        mode: CompletionFlags,
    ) -> bool {
        (allowed | CompletionFlags::EVD_THRESHOLD).contains(flags)
            && (!flags.contains(CompletionFlags::UNSIGNALLED) || mode.contains(CompletionFlags::UNSIGNALLED))
    }

    /// Whether a request with these flags can be posted. Returns the EP's state.
    #[inline]
    pub(super) fn takes_requests(&self, flags: CompletionFlags) -> Result<EpState, PostError> {
        self.takes_flags(flags)?;
        let mut state = self.state();
        if state == EpState::CompletionPending {
            // The peer has sent a message, so the connection is up. Another thread is about to
            // change the state.
            if self.pair.is_answerable() {
                return Ok(EpState::Connected);
            }
            // The state changes before the mark of the message is removed, so it is read again.
            state = self.state();
        }
        // On a DISCONNECTED EP, the request is flushed without the device, which may forget it:
        // immediately, or after the requests that are still in progress.
        if state == EpState::Connected || state == EpState::Disconnected && !self.is_ud() {
            return Ok(state);
        }
        Err(PostError::EpState(state.subtype()))
    }

    #[inline]
    fn takes_flags(&self, flags: CompletionFlags) -> Result<(), PostError> {
        if !self.live.load(Ordering::Acquire) {
            return Err(PostError::Stale(Subtype::InvalidHandleEp));
        }
        let allowed = CompletionFlags::SUPPRESS
            | CompletionFlags::SOLICITED_WAIT
            | CompletionFlags::UNSIGNALLED
            | CompletionFlags::BARRIER_FENCE;
        if !self.flags_fit(flags, allowed, self.pair.request_flags()) {
            return Err(PostError::Flags);
        }
        Ok(())
    }

    /// Posts a request after all checks.
    ///
    /// # Errors
    /// Why nothing was posted.
    pub fn request_slow(
        self: &Arc<Self>,
        kind: RequestKind,
        iov: &[LmrTriplet],
        info: WrInfo,
        flags: CompletionFlags,
    ) -> Result<(), PostError> {
        self.submit_checked(kind, iov.len(), info, flags, |direction, sges| {
            let using = Use { pz: self.pz_number(), direction };
            self.device.lmrs.check_all(iov, using, sges)
        })?;
        self.open_requests(None);
        Ok(())
    }

    /// After a request that was checked: lets the next requests be posted without the slow
    /// function, and remembers the pool if the request was from one.
    fn open_requests(&self, pool: Option<u32>) {
        let longest = self.device.attr.max_message_size;
        let pool = pool.map(|number| LastPool { number, longest });
        self.pair.open_requests(&mut self.pair.requests.lock(), longest, pool);
    }

    /// Posts a request of pieces of a pool's memory; each piece is an offset and a length.
    pub(crate) fn request_pool_slow(
        self: &Arc<Self>,
        kind: RequestKind,
        memory: &PoolMemory,
        pieces: impl ExactSizeIterator<Item = (usize, usize)>,
        info: WrInfo,
        flags: CompletionFlags,
    ) -> Result<(), PostError> {
        let pool = info.pool;
        let mut checked = false;
        self.submit_checked(kind, pieces.len(), info, flags, |direction, sges| {
            let pz = self.pz();
            let mut n = 0;
            // A segment of length 0 contributes no bytes, as with triplets (R52).
            for (i, piece) in (0..).zip(pieces).filter(|(_, (_, len))| *len > 0) {
                sges[n] = memory.segment(i, piece, &pz, direction)?;
                n += 1;
                checked = true;
            }
            Ok(n)
        })?;
        // An empty segment was not checked.
        if checked {
            self.open_requests(Some(pool));
        }
        Ok(())
    }

    /// Posts a Send or an RDMA Write of these bytes, which are copied.
    pub(super) fn send_copy(
        self: &Arc<Self>,
        kind: RequestKind,
        bytes: &[u8],
        cookie: u64,
        flags: CompletionFlags,
    ) -> Result<(), PostError> {
        let state = self.takes_requests(flags)?;
        let info = WrInfo { cookie, ..WrInfo::default() };
        // The bytes as a segment: checks of the length are the same.
        let len = u32::try_from(bytes.len()).map_err(|_| PostError::Length)?;
        let Checked { request, verb, solicits, .. } =
            self.checked(kind, &mut [Sge { len, ..Sge::default() }], &info, flags)?;
        let most = self.pair.qp().caps().max_inline;
        if bytes.len() > most as usize {
            return Err(PostError::TooLongInline { given: bytes.len(), most });
        }
        self.submit(state, request, solicits, 0, |queue, flags, _| queue.copy(request, verb, bytes, flags))?;
        self.open_requests(None);
        Ok(())
    }

    /// Posts a request of `segments` segments. `check` checks and writes them, and returns how many
    /// remain.
    #[inline(always)]
    fn submit_checked(
        self: &Arc<Self>,
        kind: RequestKind,
        segments: usize,
        info: WrInfo,
        flags: CompletionFlags,
        check: impl FnOnce(Direction, &mut [Sge]) -> Result<usize, PostError>,
    ) -> Result<(), PostError> {
        let state = match kind {
            RequestKind::SendUd(_) => {
                self.takes_flags(flags)?;
                self.takes_datagrams()?
            }
            _ => self.takes_requests(flags)?,
        };
        let mut sges = [Sge::default(); MAX_IOV];
        if segments > MAX_IOV {
            return Err(too_many(segments, MAX_IOV));
        }
        let n = check(kind.direction(), &mut sges)?;
        if let RequestKind::SendUd(to) = kind {
            let length = total(&sges[..n]);
            return self.submit_datagram(state, to, &sges[..n], length, info, flags, segments);
        }
        let Checked { request, verb, solicits, segments: n } =
            self.checked(kind, &mut sges[..n], &info, flags)?;
        self.submit(state, request, solicits, segments, |queue, flags, _| {
            queue.push(&Outgoing { request, op: verb, sges: &sges[..n], flags, to: None })
        })
    }

    /// Checks a request whose segments have passed their checks, except a datagram: its lengths,
    /// and whether the device has the operation. May shorten the segments.
    #[inline]
    pub(super) fn checked(
        &self,
        kind: RequestKind,
        sges: &mut [Sge],
        info: &WrInfo,
        flags: CompletionFlags,
    ) -> Result<Checked, PostError> {
        let mut n = sges.len();
        let mut length = total(sges);
        let (op, verb) = match kind {
            RequestKind::SendUd(_) => return Err(PostError::NotSupported),
            RequestKind::Send => (DtoOp::Send, SendOp::Send),
            RequestKind::SendInvalidate(_) if !self.device.attr.remote_invalidate => {
                return Err(PostError::NotSupported);
            }
            RequestKind::SendInvalidate(rmr_context) => (DtoOp::Send, SendOp::SendInvalidate(rmr_context)),
            RequestKind::Write(to) | RequestKind::WriteImmediate(to, _)
                if length > u64::from(to.segment_length) =>
            {
                return Err(PostError::Length);
            }
            RequestKind::Write(to) => {
                (DtoOp::RdmaWrite, SendOp::Write { remote_addr: to.virtual_address, rkey: to.rmr_context })
            }
            RequestKind::WriteImmediate(to, imm) => (
                DtoOp::RdmaWriteImmediate,
                SendOp::WriteImm { remote_addr: to.virtual_address, rkey: to.rmr_context, imm },
            ),
            RequestKind::Read(from) => {
                let want = u64::from(from.segment_length);
                if want > length {
                    return Err(PostError::Length);
                }
                n = cut(sges, from.segment_length);
                length = want;
                (DtoOp::RdmaRead, SendOp::Read { remote_addr: from.virtual_address, rkey: from.rmr_context })
            }
            RequestKind::FetchAdd(at, _) | RequestKind::CompareSwap(at, ..)
                if length != ATOMIC_LEN || at.virtual_address % ATOMIC_LEN != 0 =>
            {
                return Err(PostError::Length);
            }
            RequestKind::FetchAdd(..) | RequestKind::CompareSwap(..) if !self.device.attr.atomics => {
                return Err(PostError::NotSupported);
            }
            RequestKind::FetchAdd(at, add) => (
                DtoOp::FetchAndAdd,
                SendOp::FetchAdd { remote_addr: at.virtual_address, rkey: at.rmr_context, add },
            ),
            RequestKind::CompareSwap(at, compare, swap) => (
                DtoOp::CompareAndSwap,
                SendOp::CmpSwap { remote_addr: at.virtual_address, rkey: at.rmr_context, compare, swap },
            ),
        };
        if length > u64::from(self.device.attr.max_message_size) {
            return Err(PostError::Length);
        }
        let solicits = matches!(
            kind,
            RequestKind::Send | RequestKind::SendInvalidate(_) | RequestKind::WriteImmediate(..)
        );
        let request = Request::new(info, flags, op, length as u32);
        Ok(Checked { request, verb, solicits, segments: n })
    }

    /// The rest of [`EpInner::request_slow`] for a datagram.
    #[expect(
        clippy::too_many_arguments,
        reason = "one caller; a function of its own keeps the code of other requests short"
    )]
    fn submit_datagram(
        self: &Arc<Self>,
        state: EpState,
        to: Destination,
        sges: &[Sge],
        length: u64,
        info: WrInfo,
        flags: CompletionFlags,
        segments: usize,
    ) -> Result<(), PostError> {
        let ah = self.route_to(to, self.pz_number())?;
        if length > u64::from(self.device.attr.mtu) {
            return Err(PostError::Length);
        }
        let request = Request::new(&info, flags, DtoOp::SendUd, length as u32);
        self.submit(state, request, true, segments, |queue, flags, position| {
            self.push_datagram(queue, (request, position), sges, flags, (&ah, to.qpn))
        })?;
        self.drop_handles_of_done_sends();
        Ok(())
    }

    /// Adds a checked request to the ring and passes it to the device by `push`, which also gets
    /// its position. On a DISCONNECTED EP, the request is flushed instead.
    #[inline]
    pub(super) fn submit(
        self: &Arc<Self>,
        state: EpState,
        request: Request,
        solicits: bool,
        segments: usize,
        push: impl FnOnce(&mut SendQueue, SendFlags, u64) -> Result<(), rxe_fallback::PostError>,
    ) -> Result<(), PostError> {
        let mut requests = self.pair.requests.lock();
        if segments > requests.max_iov {
            return Err(too_many(segments, requests.max_iov));
        }
        if requests.ring.room() == 0 {
            drop(requests);
            // Finished suppressed requests free their places in the ring here.
            let _ = self.request_evd.harvest_now();
            requests = self.pair.requests.lock();
            if requests.ring.room() == 0 {
                return Err(PostError::Full(Subtype::ResourceCredits));
            }
        }
        if state == EpState::Disconnected {
            drop(requests);
            self.flush(request);
            return Ok(());
        }
        requests.push(request, solicits, push)
    }
}

impl Requests {
    /// Counts a request that was posted to the queue.
    #[inline(always)]
    pub(super) fn count(&mut self, op: DtoOp, length: u32) {
        self.ring.count();
        self.posted.add(op, length.into());
    }

    /// Passes a checked request to the device by `push` and adds it to the ring. The caller has
    /// checked that there is a place.
    #[inline(always)]
    pub(super) fn push(
        &mut self,
        request: Request,
        solicits: bool,
        push: impl FnOnce(&mut SendQueue, SendFlags, u64) -> Result<(), rxe_fallback::PostError>,
    ) -> Result<(), PostError> {
        let flags = send_flags(request.flags(), solicits);
        push(&mut self.queue, flags, self.ring.end()).map_err(refused)?;
        self.count(request.op, request.length);
        Ok(())
    }
}

/// The flags of a request for the device. Every request is signalled, even if its event is
/// suppressed, but for some of a chain. The provider therefore always knows which requests are done,
/// and frees their places one by one.
#[inline(always)]
pub(super) fn send_flags(given: CompletionFlags, solicits: bool) -> SendFlags {
    let mut flags = SendFlags::SIGNALLED;
    flags.set(SendFlags::SOLICITED, solicits && given.contains(CompletionFlags::SOLICITED_WAIT));
    flags.set(SendFlags::FENCE, given.contains(CompletionFlags::BARRIER_FENCE));
    flags
}

/// The bytes of all segments.
fn total(sges: &[Sge]) -> u64 {
    sges.iter().map(|sge| u64::from(sge.len)).sum()
}

pub(super) fn too_many(given: usize, most: usize) -> PostError {
    PostError::TooManySegments { given: u32::try_from(given).unwrap_or(u32::MAX), most: most as u32 }
}

/// Shortens segments to `len` bytes in total. Returns how many segments remain.
fn cut(sges: &mut [Sge], mut len: u32) -> usize {
    for (i, sge) in sges.iter_mut().enumerate() {
        if len == 0 {
            return i;
        }
        sge.len = sge.len.min(len);
        len -= sge.len;
    }
    sges.len()
}
