//! Posting to the send queue of a QP.
//!
//! One thread posts and takes completions (`&mut self`). It writes WQEs, the doorbell record and
//! the register; the device reads them. Every operation here ends in `Sq::publish`, or in the same
//! steps for a single block: barrier, record, flush, register. A caller cannot leave any of these
//! steps out.
//!
//! | operation | register | for |
//! |---|---|---|
//! | [`Sq::post`] | BlueFlame | one request |
//! | [`Sq::post_batch`] | one doorbell | many requests with one type of data |
//! | [`Sq::chain`] | one doorbell | a few requests of different types: a write, then a send |
//! | [`Sq::post_prepared`] | BlueFlame | one request, posted again and again with another payload |
//! | [`Sq::post_template`] | BlueFlame | one Send, posted again and again with eight other bytes |
//! | [`Sq::post_send_wrs`] | as `ibv_post_send` | a list of verbs work requests |
//! | [`Sq::post_staged`] | as `ibv_wr_complete` | requests built elsewhere, all or none |
//!
//! # Counting
//!
//! The queue's *position* is one integer: the number of blocks posted so far plus 2^16 times the
//! number of requests. Its low 16 bits give the block of the next WQE. The difference of two
//! positions, divided by 2^16, is the number of requests between them, since there are fewer than
//! 2^16 blocks between them. For each request, the queue stores its cookie and the position behind
//! it. The index of this record is the number of the request's first block, which its completion
//! carries. A completion releases its request and all requests before it.
//!
//! # States of the QP
//!
//! Take a send queue over before anything was posted to it; the QP may be in any state. Post
//! requests from RTS on: a device ignores the doorbells of a queue in RESET, INIT or RTR. Requests
//! can be posted in SQD, SQE and ERR as well; in ERR each request completes as flushed. After the
//! QP went to RESET, remove its entries from the CQ ([`Cq::clean`](crate::Cq::clean)), and call
//! [`Sq::reset`].

use std::collections::TryReserveError;

use crate::{
    doorbell::{CounterDbRec, SendRegister},
    position::{REQUEST, REQUEST_SHIFT, block},
    queue_mem::{Cookie, Record, SqCaps, SqLayout, SqMem, Transport},
    wqe::{
        SEGMENT_BYTES,
        send::{BLOCK_UNITS, INLINE_HEADER_BYTES, MAX_UNITS, flag, flags_word},
    },
};

pub use crate::doorbell::{HeldRegisters, hold_registers};

mod batch;
mod chain;
mod complete;
mod list;
mod post;
mod prepared;
mod staged;

pub use chain::Chain;
pub use complete::{NotPosted, Released};
pub use list::{WrError, WrListError};
pub use prepared::{Field, PayloadError, Prepared, Template};
pub use staged::Staged;

/// Inline bytes that fit into one block behind a control segment.
const SHORT_INLINE: u32 = ((BLOCK_UNITS - 1) * SEGMENT_BYTES - INLINE_HEADER_BYTES) as u32;

/// Why a request was not posted. Nothing was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// The queue holds as many requests as it can: take completions first.
    #[error("the send queue is full")]
    Full,
    /// The WQE is longer than the longest that the queue was made for ([`Sq::max_units`]).
    #[error("the request is longer than the send queue was made for")]
    TooLong,
}

/// A batch that was cut short. The requests before the failed one are posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{posted} posted, then: {error}")]
pub struct SendBatchError {
    /// Requests that were posted.
    pub posted: u32,
    /// Why the next request was not posted.
    pub error: SendError,
}

/// A send queue that is posted to without libmlx5.
///
/// ```
/// use mlx5_direct::{Sq, SqLayout, wr::{Inline, Wr}};
///
/// let (layout, _device) = SqLayout::on_heap(64, 16)?;
/// let mut sq = Sq::new(layout);
/// sq.post(Wr::send(Inline(b"one")), 1)?;
/// sq.post(Wr::send(Inline(b"two")).signalled(), 2)?;
/// assert_eq!((sq.posted(), sq.free()), (2, 14));
/// // ... the device sends both; the second completion carries the number of its first block ...
/// let released = sq.complete(1)?;
/// assert_eq!((released.cookie, released.requests), (2, 2));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
// In this order, so that the first two cache lines have all that the post of a Send needs.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Sq<C = u64> {
    dbrec: CounterDbRec,
    register: SendRegister,
    /// Position behind the last released request.
    done: u64,
    /// Inline bytes that a Send of one block may have; 0 if requests name their peer.
    most_short_inline: u32,
    transport: Transport,
    _here: Here,
    wqes: SqMem<C>,
    /// All ones; 0 while the next request must carry a fence that its own flags do not ask for.
    open: u32,
    /// QP number, shifted left by 8.
    qpn_word: u64,
    /// Flags of every request, at their place in the second word of a control segment.
    base_flags: u64,
    /// Fence that the next request must carry.
    fence_due: u8,
    /// Blocks that a request may take.
    max_blocks: u32,
    caps: SqCaps,
}

/// A byte with one value. All others are free for the compiler, so that it is this byte, in the first
/// cache line, by which an `Option<Sq>` shows that it is `None`.
#[derive(Clone, Copy, Debug)]
#[repr(u8)]
enum Here {
    Here,
}

impl Sq {
    /// Takes over a checked send queue.
    pub fn new(layout: SqLayout) -> Self {
        let max_blocks = layout.block_count() / layout.caps.max_requests;
        let most_short_inline = match layout.transport {
            Transport::Connected => layout.caps.max_inline.min(SHORT_INLINE),
            Transport::Datagram | Transport::Xrc => 0,
        };
        let SqLayout { ring: wqes, dbrec, register, qpn, caps, transport } = layout;
        let mut sq = Self {
            wqes,
            done: 0,
            open: u32::MAX,
            qpn_word: u64::from(qpn) << 8,
            base_flags: if caps.signal_all { flags_word(flag::CQ_UPDATE) } else { 0 },
            fence_due: 0,
            max_blocks,
            most_short_inline,
            dbrec,
            register,
            transport,
            _here: Here::Here,
            caps,
        };
        sq.wqes.set_common(qpn, sq.base_flags);
        sq.aim();
        sq
    }

    /// The queue with cookies of another type, which [`post`](Self::post) takes and
    /// [`complete`](Self::complete) returns: for a caller whose own record of a request would need
    /// a table of its own. Nothing may be posted.
    ///
    /// # Errors
    ///
    /// No memory.
    ///
    /// # Panics
    ///
    /// If something is posted.
    pub fn with_cookies_of<C: Cookie>(self) -> Result<Sq<C>, TryReserveError> {
        assert!(self.posted() == 0, "cookies change in an empty queue only");
        let Self { wqes, done, open, qpn_word, base_flags, fence_due, .. } = self;
        let Self { max_blocks, most_short_inline, dbrec, register, transport, caps, .. } = self;
        let wqes = wqes.with_cookies_of()?;
        let mut sq = Sq {
            wqes,
            done,
            open,
            qpn_word,
            base_flags,
            fence_due,
            max_blocks,
            most_short_inline,
            dbrec,
            register,
            transport,
            _here: Here::Here,
            caps,
        };
        sq.aim();
        Ok(sq)
    }
}

impl<C: Cookie> Sq<C> {
    /// Takes the position back before it can overflow, after 2^46 requests. So a larger position is
    /// always a later one. Call this only while nothing refers to a position.
    #[inline(always)]
    fn stay_near(&mut self) {
        /// As far from 0 as from an overflow, or nearly so.
        const FAR: u64 = 1 << 62;
        if self.at() >= FAR {
            self.take_positions_back();
        }
    }

    /// Takes the position back, and with it the records of outstanding requests.
    #[cold]
    #[inline(never)]
    fn take_positions_back(&mut self) {
        // Whole requests, so that the numbers of blocks stay.
        let back = self.done & !(REQUEST - 1);
        for block in 0..=self.wqes.mask() {
            let mut request = *self.wqes.record(block);
            if request.after > self.done {
                request.after -= back;
            } else {
                request = Record::default();
            }
            self.wqes.set_record(block, request);
        }
        self.done -= back;
        self.wqes.set_position(self.at() - back);
    }

    fn set_fence_due(&mut self, fence: u8) {
        self.fence_due = fence;
        self.open = if fence == 0 { u32::MAX } else { 0 };
    }

    /// Goes back to position `at`. Nothing from there on was published.
    fn take_back(&mut self, at: u64, fence_due: u8) {
        // No completion may name a request that was taken back.
        for n in 0..block(self.at().wrapping_sub(at)) {
            self.wqes.set_record(block(at).wrapping_add(n), Record::default());
        }
        self.wqes.set_position(at);
        self.set_fence_due(fence_due);
        self.aim();
    }

    /// Position of the next request.
    #[inline(always)]
    fn at(&self) -> u64 {
        self.wqes.position()
    }

    /// Requests from the last released one to this position.
    #[inline(always)]
    fn requests_until(&self, position: u64) -> u32 {
        (position.wrapping_sub(self.done) >> REQUEST_SHIFT) as u32
    }

    /// Requests posted and not released.
    #[inline(always)]
    pub fn posted(&self) -> u32 {
        self.requests_until(self.at())
    }

    /// Requests that can be posted now.
    #[inline(always)]
    pub fn free(&self) -> u32 {
        self.caps.max_requests - self.posted()
    }

    /// Requests that can be posted at a time. The CQ must hold an entry for each request, signalled
    /// or not: in the error state every request completes.
    pub fn max_requests(&self) -> u32 {
        self.caps.max_requests
    }

    /// Length limit of a WQE of this queue, in 16-byte units; [`Wr::units`](crate::Wr::units) gives
    /// the units of a request. A queue that verbs made has room for `max_segments` segments or
    /// `max_inline` bytes in addition to the longest head.
    pub fn max_units(&self) -> usize {
        (self.max_blocks as usize * BLOCK_UNITS).min(MAX_UNITS)
    }

    /// The capacities that the queue was made for.
    pub fn caps(&self) -> SqCaps {
        self.caps
    }

    /// QP number, 24 bits.
    #[inline(always)]
    pub fn qpn(&self) -> u32 {
        (self.qpn_word >> 8) as u32
    }

    /// From now on, rings with 8-byte doorbells in this queue and in every queue of this crate that
    /// has the same register. Call this if a QP that is *not* driven here has the register as well:
    /// see [`Sq::from_verbs`](crate::Sq::from_verbs).
    pub fn stop_blueflame(&mut self) {
        self.register.stop_blueflame();
    }

    /// Whether single requests are rung by BlueFlame.
    pub fn uses_blueflame(&self) -> bool {
        self.register.takes_blueflame()
    }

    /// Starts again after the QP went to RESET, where the device starts at block 0 again. The queue
    /// forgets outstanding requests: take completions, or [`outstanding`](Self::outstanding),
    /// first.
    pub fn reset(&mut self) {
        for block in 0..=self.wqes.mask() {
            self.wqes.set_record(block, Record::default());
        }
        self.done = 0;
        self.wqes.set_position(0);
        self.take_back(0, 0);
        self.dbrec.publish(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wr::{Inline, Wr};

    /// Moves position and records on, as if that many requests more had been posted and released.
    fn go_far(sq: &mut Sq, requests: u64) {
        let far = requests << REQUEST_SHIFT;
        for block in 0..=sq.wqes.mask() {
            let Record { cookie, after } = *sq.wqes.record(block);
            if after > sq.done {
                sq.wqes.set_record(block, Record { cookie, after: after + far });
            }
        }
        sq.done += far;
        sq.wqes.set_position(sq.at() + far);
    }

    #[test]
    fn a_completion_releases_its_request_if_that_is_accepted() {
        let (layout, _device) = SqLayout::on_heap(16, 4).expect("layout");
        let mut sq = Sq::new(layout).with_cookies_of::<[u64; 3]>().expect("memory");
        let long = Wr::send(Inline(&[1; 100])).signalled();
        // The ring ends several times, and the second request has two blocks.
        for round in 0..40_u16 {
            let first = 3 * round;
            for n in [7, 8] {
                let wr = if n == 7 { Wr::send(Inline(&[2; 3][..])).signalled() } else { long };
                sq.post(wr, [n, n + 10, u64::from(round)]).expect("room");
            }
            let any = |of: &[u64; 3]| Some(*of);
            assert_eq!(sq.complete_if(first + 2, any), None, "not the first block");
            assert_eq!(sq.complete_if(first, |[n, ..]| (*n == 8).then_some(())), None);
            assert_eq!(sq.posted(), 2);
            let last = [8, 18, u64::from(round)];
            if round % 3 == 0 {
                assert_eq!(sq.complete_if(first + 1, any), Some((last, 2)), "with the one before it");
                assert_eq!(sq.complete_if(first, any), None, "released by a later completion");
                continue;
            }
            assert_eq!(sq.complete_if(first, |of| Some(of[1])), Some((17, 1)));
            assert_eq!(sq.complete_if(first, any), None, "a second completion of a request");
            if round % 3 == 1 {
                assert_eq!(sq.complete_if(first + 1, any), Some((last, 1)));
            } else {
                assert_eq!(sq.release_oldest(), Some(last));
            }
            assert_eq!((sq.posted(), sq.release_oldest()), (0, None));
        }
    }

    #[test]
    fn a_position_that_would_overflow_is_taken_back_with_the_outstanding_requests() {
        let (layout, _device) = SqLayout::on_heap(16, 4).expect("layout");
        let mut sq = Sq::new(layout);
        let text = |n: u64| Wr::send(Inline(if n.is_multiple_of(2) { &[1; 20] } else { &[2; 80] }));
        // Far enough for an overflow a few requests later, if the position were not taken back.
        (0..3).for_each(|n| sq.post(text(n), n).expect("room"));
        sq.complete(0).expect("the first request");
        go_far(&mut sq, (1 << 48) - 4);
        for (oldest, n) in (1..).zip(3..40u64) {
            match n % 3 {
                0 => assert_eq!(sq.post(text(n), n), Ok(())),
                1 => assert_eq!(sq.post_batch([(text(n), n)]), Ok(1)),
                _ => {
                    let mut chain = sq.chain();
                    chain.push(text(n), n).expect("room");
                    assert_eq!(chain.ring(), 1);
                }
            }
            let expected: Vec<u64> = (oldest..=n).collect();
            let outstanding: Vec<_> = sq.outstanding().collect();
            assert_eq!(outstanding.iter().map(|(_, cookie)| *cookie).collect::<Vec<_>>(), expected);
            let first = outstanding[0].0;
            assert_eq!(sq.complete(first), Ok(Released { cookie: oldest, requests: 1 }));
            assert_eq!(sq.complete(first), Err(NotPosted(first)), "a second completion of a request");
        }
        assert!(sq.at() < 1 << 32, "the position was not taken back");
    }
}
