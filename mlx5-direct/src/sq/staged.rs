//! Requests that are built outside the queue, and posted all at once or not at all.
//!
//! [`Staged`] has the functions of `ibv_wr_*`: a request begins with its operation; its data and
//! its peer follow in any order. The WQEs are built where [`Sq::post_staged`] only has to copy
//! them. Building takes no part of the queue, so others can post meanwhile, and a batch that is
//! forgotten or that has an error leaves no trace.

use std::collections::TryReserveError;

use doorbell_sys::ibv_send_flags;

use super::{Sq, list::WrError};
use crate::{
    dv::ctrl_flags,
    memory::Target,
    position::{REQUEST, block},
    queue_mem::{Record, StagedHead, StagedMem, StagedRequest, Transport},
    wqe::{
        DataSeg, SEGMENT_BYTES,
        send::{BLOCK_UNITS, Ctrl, INLINE_HEADER_BYTES, XrcSeg, flag, flags_word},
    },
    wr::{AddressVector, Wr, inline_units},
};

/// The request waits for earlier reads and atomics.
const FENCED: u32 = 1;
/// Later requests wait for the request.
const CHANGES_KEY: u32 = 1 << 1;
/// The peer of a datagram is not set yet.
const NO_ADDRESS: u32 = 1 << 2;

/// Requests for one send queue that are not posted yet.
///
/// ```
/// use mlx5_direct::{Sq, SqLayout, sq::Staged, wr::Wr};
///
/// let (layout, _device) = SqLayout::on_heap(64, 16)?;
/// let mut sq = Sq::new(layout);
/// let mut staged = Staged::new(&sq)?;
/// staged.begin(Wr::send(()), 0, 1);
/// staged.set_inline(b"one");
/// staged.begin(Wr::send(()), 0, 2);
/// staged.set_inline(b"two");
/// assert_eq!(sq.post_staged(&staged), Ok(2));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Staged {
    mem: StagedMem,
    /// Units of the last request before its data.
    head: usize,
    /// The first error since [`clear`](Self::clear).
    error: Option<WrError>,
    max_segments: usize,
    max_inline: usize,
    transport: Transport,
    /// Units that name the peer of a request.
    peer_units: usize,
    qpn: u32,
}

impl Staged {
    /// Room for as many requests as the queue can hold. Post them to this queue only.
    ///
    /// # Errors
    ///
    /// There is no memory.
    pub fn new(sq: &Sq) -> Result<Self, TryReserveError> {
        let peer_units = match sq.transport {
            Transport::Connected => 0,
            Transport::Datagram => 3,
            Transport::Xrc => 1,
        };
        Ok(Self {
            mem: StagedMem::new(sq.caps.max_requests, sq.max_blocks)?,
            head: 1,
            error: None,
            max_segments: sq.caps.max_segments as usize,
            max_inline: sq.caps.max_inline as usize,
            transport: sq.transport,
            peer_units,
            qpn: sq.qpn(),
        })
    }

    /// Room for no request: each is refused as [`WrError::Full`].
    ///
    /// # Errors
    ///
    /// There is no memory.
    pub fn without_queue() -> Result<Self, TryReserveError> {
        Ok(Self {
            mem: StagedMem::new(0, 1)?,
            head: 1,
            error: None,
            max_segments: 0,
            max_inline: 0,
            transport: Transport::Connected,
            peer_units: 0,
            qpn: 0,
        })
    }

    /// Forgets all requests, and the error.
    #[inline(always)]
    pub fn clear(&mut self) {
        self.mem.clear();
        self.head = 1;
        self.error = None;
    }

    /// The first error since [`clear`](Self::clear).
    #[inline(always)]
    pub fn error(&self) -> Option<WrError> {
        self.error
    }

    /// Remembers an error, with which [`Sq::post_staged`] will end, unless there was one before.
    #[cold]
    #[inline(never)]
    pub fn refuse(&mut self, error: WrError) {
        self.error.get_or_insert(error);
    }

    /// Begins a request without data. `send_flags` are those of verbs (`IBV_SEND_SIGNALED`,
    /// `IBV_SEND_SOLICITED`, `IBV_SEND_FENCE`; others are ignored).
    #[inline(always)]
    pub fn begin(&mut self, wr: Wr<()>, send_flags: u32, cookie: u64) {
        let changes_key = wr.changes_key();
        let peer = if changes_key { 0 } else { self.peer_units };
        let head = peer + wr.units();
        if head > self.mem.max_units() {
            return self.refuse(WrError::TooLong);
        }
        if !self.mem.next() {
            return self.refuse(WrError::Full);
        }
        let mut special = send_flags & ibv_send_flags::IBV_SEND_FENCE.0;
        const { assert!(ibv_send_flags::IBV_SEND_FENCE.0 == FENCED) };
        if changes_key {
            special |= CHANGES_KEY;
        }
        let [first, second] = wr.ctrl(0).words(0, 0);
        let ctrl = [first, second | flags_word(ctrl_flags(send_flags))];
        *self.mem.head() = StagedHead { cookie, units: head as u32, special, ctrl };
        self.head = head;
        let qpn = self.qpn;
        wr.write_body(&mut self.mem.body(1 + peer), qpn);
        if peer != 0 {
            self.begin_peer();
        }
    }

    /// The peer of a request that names none.
    #[inline(never)]
    fn begin_peer(&mut self) {
        if self.transport == Transport::Datagram {
            self.mem.head().special |= NO_ADDRESS;
        } else {
            self.mem.body(1).push([0; 2]);
        }
    }

    /// Sets the segment of the last request.
    #[inline(always)]
    pub fn set_segment(&mut self, segment: DataSeg) {
        let mut units = self.head;
        if segment.byte_count() != 0 {
            if self.max_segments == 0 || units >= self.mem.max_units() {
                return self.refuse(WrError::TooManySegments);
            }
            self.mem.body(units).push(segment.to_words());
            units += 1;
        }
        self.mem.head().units = units as u32;
    }

    /// Sets the segments of the last request. Those without bytes are left out.
    #[inline]
    pub fn set_segments(&mut self, segments: impl ExactSizeIterator<Item = DataSeg>) {
        if segments.len() > self.max_segments {
            return self.refuse(WrError::TooManySegments);
        }
        let mut units = self.head;
        let mut out = self.mem.body(units);
        for segment in segments.filter(|segment| segment.byte_count() != 0) {
            out.push(segment.to_words());
            units += 1;
        }
        self.finish(units);
    }

    /// Sets the inline data of the last request.
    #[inline(always)]
    pub fn set_inline(&mut self, bytes: &[u8]) {
        // The conditions of `push_short_inline`, with which the compiler merges them. A result of
        // that function costs four instructions.
        let is_short = (1..=48).contains(&bytes.len()) && bytes.len() <= self.max_inline;
        let units = (INLINE_HEADER_BYTES + bytes.len()).div_ceil(SEGMENT_BYTES);
        let mut out = self.mem.body(self.head);
        if !is_short || units > out.left() {
            return self.set_any_inline(bytes);
        }
        out.push_short_inline(bytes);
        self.mem.head().units = (self.head + units) as u32;
    }

    /// [`set_inline`](Self::set_inline) of more bytes, of too many, and of none.
    #[inline(never)]
    fn set_any_inline(&mut self, bytes: &[u8]) {
        self.set_inline_parts(core::iter::once(bytes));
    }

    /// Sets the inline data of the last request, which has several pieces.
    #[inline]
    pub fn set_inline_parts<'a>(&mut self, parts: impl Iterator<Item = &'a [u8]> + Clone) {
        let len = parts.clone().fold(0, |len: usize, part| len.saturating_add(part.len()));
        if len > self.max_inline {
            return self.refuse(WrError::InlineTooLong);
        }
        let units = self.head + inline_units(len);
        if units <= self.mem.max_units() {
            self.mem.body(self.head).push_inline_parts(parts);
        }
        self.finish(units);
    }

    fn finish(&mut self, units: usize) {
        if units > self.mem.max_units() {
            return self.refuse(WrError::TooLong);
        }
        self.mem.head().units = units as u32;
    }

    /// Sets the peer of the last request, a datagram. Without an effect on other queues.
    #[inline]
    pub fn set_peer(&mut self, path: &AddressVector, qpn: u32, qkey: u32) {
        if self.transport != Transport::Datagram {
            return;
        }
        self.mem.body(1).push_all(&path.to(qpn, qkey));
        self.mem.head().special &= !NO_ADDRESS;
    }

    /// Sets the peer's SRQ of the last request. Without an effect on queues that are not XRC.
    #[inline]
    pub fn set_srq(&mut self, srqn: u32) {
        if self.transport == Transport::Xrc && self.mem.head().special & CHANGES_KEY == 0 {
            self.mem.body(1).push(XrcSeg::new(srqn).words());
        }
    }
}

impl Sq {
    /// Posts all requests of a batch, or none: one doorbell, BlueFlame for a single request.
    /// Returns how many were posted. The batch stays as it is.
    ///
    /// # Errors
    ///
    /// The batch's error; [`WrError::Full`]; [`WrError::NoAddress`]. Nothing was written.
    #[inline(always)]
    pub fn post_staged(&mut self, staged: &Staged) -> Result<u32, WrError> {
        if staged.mem.count() == 1 && staged.error.is_none() && self.ring_only_staged(&staged.mem) {
            return Ok(1);
        }
        self.ring_all_staged(staged)
    }

    /// Posts the request of a batch of one, if this needs no other check. Otherwise changes
    /// nothing.
    #[inline(always)]
    fn ring_only_staged(&mut self, mem: &StagedMem) -> bool {
        let Some(request) = mem.requests().next() else { return false };
        let head = request.head();
        // BlueFlame does not pay for a WQE that is only a control segment.
        if head.special != 0 || !(2..=BLOCK_UNITS as u32).contains(&head.units) {
            return false;
        }
        let (dbrec, register) = (&mut self.dbrec, &mut self.register);
        let Some(place) = self.wqes.next_block(head.cookie, register) else { return false };
        let ctrl = place.ctrl(ctrl_words(head));
        place.ring_block(ctrl, request.first_body(), dbrec, register);
        true
    }

    #[inline(never)]
    fn ring_all_staged(&mut self, staged: &Staged) -> Result<u32, WrError> {
        if let Some(error) = staged.error {
            return Err(error);
        }
        let count = staged.mem.count();
        if count > self.free() {
            return Err(WrError::Full);
        }
        let mut requests = staged.mem.requests();
        if self.transport == Transport::Datagram && requests.any(|r| r.head().special & NO_ADDRESS != 0) {
            return Err(WrError::NoAddress);
        }
        if count == 0 {
            return Ok(0);
        }
        self.stay_near();
        let first = self.at();
        let mut last = first;
        for request in staged.mem.requests() {
            last = self.at();
            if !self.write_staged_block(&request) {
                self.write_staged(&request);
            }
        }
        self.publish(first, block(last));
        Ok(count)
    }

    /// Writes a request of one block, if this needs no other check. Otherwise changes nothing.
    #[inline(always)]
    fn write_staged_block(&mut self, request: &StagedRequest<'_>) -> bool {
        let head = request.head();
        if head.special != 0 || head.units > BLOCK_UNITS as u32 {
            return false;
        }
        let Some(place) = self.wqes.next_block_of_chain(head.cookie) else { return false };
        let ctrl = place.ctrl(ctrl_words(head));
        place.keep_block(ctrl, request.first_body());
        true
    }

    /// Writes any request. There is room for it.
    #[cold]
    #[inline(never)]
    fn write_staged(&mut self, request: &StagedRequest<'_>) {
        self.find_blocks();
        if self.write_staged_block(request) {
            return;
        }
        let head = request.head();
        let (units, block) = (head.units as usize, block(self.at()));
        let fence = if head.special & FENCED != 0 { flag::FENCE } else { self.fence_due };
        self.set_fence_due(if head.special & CHANGES_KEY != 0 { flag::SMALL_FENCE } else { 0 });
        let [first, second] = ctrl_words(head);
        let [place, _] = Ctrl::default().words(self.qpn_word, block as u16);
        self.wqes.write(block, units, |out| {
            out.push([first | place, second | self.base_flags | flags_word(fence)]);
            request.body().iter().for_each(|unit| out.push(*unit));
        });
        let after = self.at().wrapping_add(REQUEST + units.div_ceil(BLOCK_UNITS) as u64);
        self.wqes.set_record(block, Record { cookie: head.cookie, after });
        self.wqes.set_position(after);
        self.find_blocks();
    }
}

/// The control segment without QP number, block number and flags of the queue.
#[inline(always)]
fn ctrl_words(head: &StagedHead) -> [u64; 2] {
    let [first, second] = head.ctrl;
    [first | u64::from(head.units).to_be(), second]
}
