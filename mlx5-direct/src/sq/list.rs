//! Lists of verbs work requests, posted by the rules of `ibv_post_send`.

use doorbell_sys::{ibv_send_flags, ibv_wr_opcode};

use super::{SendError, Sq};
use crate::{
    dv::{InlineSges, PlainSend, SendWr, SendWrs},
    memory::Target,
    position::{REQUEST_SHIFT, block},
    queue_mem::Transport,
    wr::{Bind, Data, MAX_BIND_BYTES, Remote, Sges, ShortInline, Wr},
};

/// Why a work request was refused, in the order of the checks of `ibv_post_send`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WrError {
    /// `EINVAL`: this crate does not post the opcode.
    #[error("opcode {0} of a work request is not supported")]
    Opcode(u32),
    /// `ENOMEM`: the queue holds as many requests as it can.
    #[error("the send queue is full")]
    Full,
    /// `ENOMEM`: more segments than the queue was made for.
    #[error("more segments than the queue was made for")]
    TooManySegments,
    /// `EOPNOTSUPP`: a window of more than 2^31 bytes.
    #[error("a memory window of more than 2 GiB")]
    WindowTooLong,
    /// `ENOMEM`: more inline bytes than the queue was made for.
    #[error("more inline bytes than the queue was made for")]
    InlineTooLong,
    /// `ENOMEM`: the WQE is longer than the queue was made for.
    #[error("the request is longer than the send queue was made for")]
    TooLong,
    /// `EINVAL`: a datagram without an address handle of this device.
    #[error("a datagram without an address handle")]
    NoAddress,
}

impl WrError {
    /// The error number that `ibv_post_send` returns.
    pub fn errno(self) -> i32 {
        const ENOMEM: i32 = 12;
        const EINVAL: i32 = 22;
        const EOPNOTSUPP: i32 = 95;
        match self {
            Self::Opcode(_) | Self::NoAddress => EINVAL,
            Self::WindowTooLong => EOPNOTSUPP,
            Self::Full | Self::TooManySegments | Self::InlineTooLong | Self::TooLong => ENOMEM,
        }
    }
}

impl From<SendError> for WrError {
    fn from(error: SendError) -> Self {
        match error {
            SendError::Full => Self::Full,
            SendError::TooLong => Self::TooLong,
        }
    }
}

/// A list that was cut short. The requests before the refused one are posted and rung.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{posted} posted, then: {error}")]
pub struct WrListError {
    /// The number of requests posted, which is also the index of `bad_wr` in the list.
    pub posted: u32,
    /// Why the next request was refused.
    pub error: WrError,
}

impl Sq {
    /// Posts a list of verbs work requests, if the list is one Send of a connected queue with one
    /// segment and no fence, the WQE has one block, and blocks are left in the run that
    /// [`find_room`](Self::find_room) or another post has found. Otherwise returns false and posts
    /// nothing. Straight-line code without a call.
    #[inline(always)]
    pub fn post_send_wr_fast(&mut self, wrs: &SendWrs<'_>) -> bool {
        match wrs.only_send() {
            Some(send) if !self.takes_plain(&send) => false,
            Some(send) if send.is_inline() => {
                self.post_fast(&send.wr(ShortInline(send.inline())), send.wr_id)
            }
            Some(send) => self.post_fast(&send.wr(send.segment()), send.wr_id),
            None => false,
        }
    }

    /// Posts a list of verbs work requests as `ibv_post_send` does: one doorbell for the list,
    /// BlueFlame for a single request. Memory windows of type 1 are bound as `ibv_bind_mw` does,
    /// except that the caller sets the new rkey in the window.
    ///
    /// # Errors
    ///
    /// [`WrListError`] with the number of requests posted before the one that was refused (verbs'
    /// `bad_wr`). [`WrError::errno`] is the value that `ibv_post_send` returns. A refused request
    /// changes nothing; a fence that was pending is still pending.
    pub fn post_send_wrs(&mut self, mut wrs: SendWrs<'_>) -> Result<u32, WrListError> {
        self.stay_near();
        let (first, mut last, mut refused) = (self.at(), block(self.at()), None);
        loop {
            let start = block(self.at());
            if let Some(send) = wrs.plain_send()
                && (self.write_plain(&send) || self.find_blocks_and_write_plain(&send))
            {
                wrs.pass();
                last = start;
                continue;
            }
            let Some(wr) = wrs.next() else { break };
            if let Err(error) = self.write_verbs(&wr) {
                refused = Some(error);
                break;
            }
            last = start;
        }
        let posted = (self.at().wrapping_sub(first) >> REQUEST_SHIFT) as u32;
        if posted > 0 {
            self.publish(first, last);
            self.aim();
        }
        match refused {
            None => Ok(posted),
            Some(error) => Err(WrListError { posted, error }),
        }
    }

    /// Whether a Send without a fence has one block, and needs no other check but for room.
    #[inline(always)]
    fn takes_plain(&self, send: &PlainSend<'_>) -> bool {
        if send.is_inline() {
            send.length().wrapping_sub(1) < self.most_short_inline
        } else {
            send.length() != 0 && self.transport == Transport::Connected
        }
    }

    /// Writes a Send without a fence if it has one block, needs no other check, and a block is
    /// ready. Otherwise returns false and changes nothing. The device does not know of the request
    /// yet.
    #[inline(always)]
    fn write_plain(&mut self, send: &PlainSend<'_>) -> bool {
        self.takes_plain(send)
            && if send.is_inline() {
                self.write_one_block(&send.wr(ShortInline(send.inline())), send.wr_id)
            } else {
                self.write_one_block(&send.wr(send.segment()), send.wr_id)
            }
    }

    /// As [`write_plain`](Self::write_plain), after a look for free blocks.
    #[cold]
    #[inline(never)]
    fn find_blocks_and_write_plain(&mut self, send: &PlainSend<'_>) -> bool {
        if !self.takes_plain(send) {
            return false;
        }
        self.find_blocks();
        self.write_plain(send)
    }

    fn write_verbs(&mut self, wr: &SendWr<'_>) -> Result<(), WrError> {
        use ibv_wr_opcode::*;
        if wr.opcode > IBV_WR_SEND_WITH_INV {
            return Err(WrError::Opcode(wr.opcode));
        }
        if self.free() == 0 {
            return Err(WrError::Full);
        }
        if wr.segments.len() > self.caps.max_segments as usize {
            return Err(WrError::TooManySegments);
        }
        if matches!(wr.opcode, IBV_WR_LOCAL_INV | IBV_WR_BIND_MW) {
            return self.write_key_change(wr);
        }
        if matches!(wr.opcode, IBV_WR_ATOMIC_CMP_AND_SWP | IBV_WR_ATOMIC_FETCH_AND_ADD) {
            let atomic = wr.atomic();
            let at = Remote { addr: atomic.remote_addr, rkey: atomic.rkey };
            let swap = (wr.opcode == IBV_WR_ATOMIC_CMP_AND_SWP).then_some(atomic.swap);
            return self.write_to_peer(wr, Wr::atomic_any(at, atomic.compare_add, swap, wr.segments));
        }
        if wr.has(ibv_send_flags::IBV_SEND_INLINE) {
            let inline = wr.inline();
            if inline.len() > self.caps.max_inline as usize {
                return Err(WrError::InlineTooLong);
            }
            self.write_data(wr, inline)
        } else {
            self.write_data(wr, Sges(wr.segments))
        }
    }

    fn write_key_change(&mut self, wr: &SendWr<'_>) -> Result<(), WrError> {
        let request = if wr.opcode == ibv_wr_opcode::IBV_WR_LOCAL_INV {
            Wr::local_inval(wr.invalidate_rkey())
        } else {
            let bind: Bind = wr.bind();
            if bind.len > MAX_BIND_BYTES {
                return Err(WrError::WindowTooLong);
            }
            Wr::bind(bind)
        };
        Ok(self.write(flagged(request, wr), wr.wr_id)?)
    }

    fn write_data<D: Data>(&mut self, wr: &SendWr<'_>, data: D) -> Result<(), WrError> {
        use ibv_wr_opcode::*;
        let rdma = || {
            let (addr, rkey) = wr.rdma();
            Remote { addr, rkey }
        };
        let request = match wr.opcode {
            IBV_WR_SEND => Wr::send(data),
            IBV_WR_SEND_WITH_IMM => Wr::send_imm(wr.immediate(), data),
            IBV_WR_SEND_WITH_INV => Wr::send_inval(wr.invalidate_rkey(), data),
            IBV_WR_RDMA_WRITE => Wr::write(rdma(), data),
            IBV_WR_RDMA_WRITE_WITH_IMM => Wr::write_imm(rdma(), wr.immediate(), data),
            IBV_WR_RDMA_READ => Wr::read_any(rdma(), data),
            other => return Err(WrError::Opcode(other)),
        };
        self.write_to_peer(wr, request)
    }

    /// Writes a request with the address of the peer that the work request names.
    fn write_to_peer<D: Data>(&mut self, wr: &SendWr<'_>, request: Wr<D>) -> Result<(), WrError> {
        let request = match self.transport {
            Transport::Connected => request,
            Transport::Xrc => request.to_srq(wr.remote_srqn()),
            Transport::Datagram => {
                let (path, qpn, qkey) = wr.datagram().ok_or(WrError::NoAddress)?;
                request.to(&path, qpn, qkey)
            }
        };
        Ok(self.write(flagged(request, wr), wr.wr_id)?)
    }
}

impl PlainSend<'_> {
    /// The request, with this data.
    #[inline(always)]
    fn wr<D: Data>(&self, data: D) -> Wr<D> {
        Wr::send(data).with_ctrl_flags(self.ctrl_flags())
    }
}

/// The request with the flags of the work request.
fn flagged<D>(mut request: Wr<D>, wr: &SendWr<'_>) -> Wr<D> {
    if wr.has(ibv_send_flags::IBV_SEND_SIGNALED) {
        request = request.signalled();
    }
    if wr.has(ibv_send_flags::IBV_SEND_SOLICITED) {
        request = request.solicited();
    }
    if wr.has(ibv_send_flags::IBV_SEND_FENCE) {
        request = request.fenced();
    }
    request
}

impl Data for InlineSges<'_> {
    #[inline(always)]
    fn units(&self) -> usize {
        crate::wr::inline_units(self.len())
    }

    #[inline(always)]
    fn write(self, out: &mut impl Target) {
        out.push_inline_parts(self.parts());
    }
}
