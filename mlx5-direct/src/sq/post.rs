//! One request to a send queue: checked, written, rung.
//!
//! [`Sq::post_fast`] is what nearly every post does; [`Sq::ring_any`] does the rest. The steps
//! that lists, batches and chains share are here as well: [`Sq::write`] and [`Sq::publish`].

use super::{SendError, Sq};
use crate::{
    doorbell::BLUEFLAME_BYTES,
    memory::{Registers, Target},
    position::{REQUEST, block},
    queue_mem::{Cookie, Record},
    wqe::send::{BLOCK_BYTES, BLOCK_UNITS, MAX_UNITS, flag, flags_word},
    wr::{Data, Inline, LongInline, Wr},
};

impl<C: Cookie> Sq<C> {
    /// Posts one request. Straight-line code writes a request of up to four units (one block) and
    /// rings it by BlueFlame.
    ///
    /// # Errors
    ///
    /// [`SendError`]; nothing was written.
    #[inline(always)]
    pub fn post<D: Data>(&mut self, wr: Wr<D>, cookie: C) -> Result<(), SendError> {
        if self.post_fast(&wr, cookie) { Ok(()) } else { self.ring_any(wr, cookie) }
    }

    /// Posts a request of up to four units (one block) if blocks are left in the run that
    /// [`post`](Self::post) or [`find_room`](Self::find_room) has found, and the request needs no
    /// fence. Otherwise returns false and posts nothing. Straight-line code without a call.
    #[inline(always)]
    pub fn post_fast<D: Data>(&mut self, wr: &Wr<D>, cookie: C) -> bool {
        let units = wr.units();
        if !(2..=BLOCK_UNITS).contains(&units) || wr.is_fenced() || wr.changes_key() {
            return false;
        }
        let qpn = self.qpn();
        let ctrl = wr.ctrl(units).words(0, 0);
        let (dbrec, register) = (&mut self.dbrec, &mut self.register);
        let Some(mut place) = self.wqes.next_block(cookie, register) else { return false };
        let ctrl = place.ctrl(ctrl);
        if wr.in_registers() {
            let mut wqe = Registers::new(ctrl);
            wr.write_body(&mut wqe, qpn);
            place.ring_registers(&wqe, dbrec, register);
        } else {
            wr.write_body(&mut place.body(), qpn);
            place.ring_written(ctrl, dbrec, register);
        }
        true
    }

    /// As [`post_fast`](Self::post_fast), for inline bytes that need more than one block: 16 to 220,
    /// and no more than the queue was made for. Code without a call.
    #[inline(always)]
    pub fn post_long_fast(&mut self, wr: &Wr<Inline<'_>>, cookie: C) -> bool {
        let Some((wr, units)) = self.long(wr) else { return false };
        let (ctrl, qpn) = (wr.ctrl(units).words(0, 0), self.qpn());
        let (dbrec, register) = (&mut self.dbrec, &mut self.register);
        let blocks = units.div_ceil(BLOCK_UNITS);
        let Some(mut place) = self.wqes.next_blocks(blocks, cookie, register) else { return false };
        wr.write_body(&mut place.body(), qpn);
        place.ring(ctrl, dbrec, register);
        true
    }

    /// As [`post_fast`](Self::post_fast), where the register takes doorbells only, as it does if
    /// several queues share it. Otherwise returns false and posts nothing.
    #[inline(always)]
    pub fn post_by_doorbell<D: Data>(&mut self, wr: &Wr<D>, cookie: C) -> bool {
        let first = block(self.at());
        if self.register.takes_blueflame() || !self.write_one_block(wr, cookie) {
            return false;
        }
        self.ring_doorbell(first);
        true
    }

    /// As [`post_long_fast`](Self::post_long_fast), where the register takes doorbells only.
    /// Otherwise returns false and posts nothing.
    #[inline(always)]
    pub fn post_long_by_doorbell(&mut self, wr: &Wr<Inline<'_>>, cookie: C) -> bool {
        let Some((wr, units)) = self.long(wr) else { return false };
        if self.register.takes_blueflame() {
            return false;
        }
        let (first, ctrl, qpn) = (block(self.at()), wr.ctrl(units).words(0, 0), self.qpn());
        let blocks = units.div_ceil(BLOCK_UNITS);
        let Some(mut place) = self.wqes.next_blocks_of_doorbell(blocks, cookie) else { return false };
        wr.write_body(&mut place.body(), qpn);
        place.keep(ctrl);
        self.ring_doorbell(first);
        true
    }

    /// The request and its units, if its inline bytes are as many as
    /// [`post_long_fast`](Self::post_long_fast) takes, and it needs no fence.
    #[inline(always)]
    fn long<'a>(&self, wr: &Wr<Inline<'a>>) -> Option<(Wr<LongInline<'a>>, usize)> {
        let wr = wr.long_inline()?;
        let units = wr.units();
        let fits = units.div_ceil(BLOCK_UNITS) <= self.max_blocks as usize;
        (fits && !wr.is_fenced()).then_some((wr, units))
    }

    /// Finds the run of free blocks for [`post_fast`](Self::post_fast) and
    /// [`post_by_doorbell`](Self::post_by_doorbell), where it is not known yet.
    #[inline(never)]
    pub fn find_room(&mut self) {
        if self.register.takes_blueflame() || !self.wqes.has_block() {
            self.aim();
        }
    }

    /// Handles the requests that [`post`](Self::post) does not: a register that takes doorbells
    /// only, several blocks, fences, a full queue.
    #[cold]
    #[inline(never)]
    fn ring_any<D: Data>(&mut self, wr: Wr<D>, cookie: C) -> Result<(), SendError> {
        if self.post_by_doorbell(&wr, cookie) {
            return Ok(());
        }
        self.aim();
        if self.post_fast(&wr, cookie) {
            return Ok(());
        }
        let first = self.at();
        let outcome = self.write(wr, cookie);
        if outcome.is_ok() {
            self.publish(first, block(first));
        }
        self.aim();
        outcome
    }

    /// Writes a request at the position and advances the position. The device does not know of the
    /// request yet. Call [`aim`](Self::aim) afterwards.
    #[inline(always)]
    pub(super) fn write<D: Data>(&mut self, wr: Wr<D>, cookie: C) -> Result<(), SendError> {
        let units = wr.units();
        let blocks = units.div_ceil(BLOCK_UNITS) as u32;
        if units > MAX_UNITS || blocks > self.max_blocks {
            return Err(SendError::TooLong);
        }
        if self.free() == 0 {
            return Err(SendError::Full);
        }
        let block = block(self.at());
        let fence = if wr.is_fenced() { flag::FENCE } else { self.fence_due };
        let fence_due = if wr.changes_key() { flag::SMALL_FENCE } else { 0 };
        let [first, second] = self.ctrl_words(&wr, units, block);
        let ctrl = [first, second | flags_word(fence)];
        let qpn = self.qpn();
        self.wqes.write(block, units, |out| {
            out.push(ctrl);
            wr.write_body(out, qpn);
        });
        let after = self.at().wrapping_add(REQUEST + u64::from(blocks));
        self.wqes.set_record(block, Record { cookie, after });
        self.wqes.set_position(after);
        // Changes together with the position: an empty chain has nothing to take back.
        self.set_fence_due(fence_due);
        Ok(())
    }

    /// The control segment of a request at `block`, without a fence.
    #[inline(always)]
    fn ctrl_words<D: Data>(&self, wr: &Wr<D>, units: usize, block: u32) -> [u64; 2] {
        let [first, second] = wr.ctrl(units).words(self.qpn_word, block as u16);
        [first, second | self.base_flags]
    }

    /// Counts the requests that may be posted without any other check, and finds the place of the
    /// next.
    ///
    /// [`complete`](Self::complete) does not count: what it releases is found here, as soon as the
    /// requests counted before are used up.
    pub(super) fn aim(&mut self) {
        self.stay_near();
        self.find_blocks();
    }

    /// As [`aim`](Self::aim), where something may refer to a position.
    #[inline]
    pub(super) fn find_blocks(&mut self) {
        self.wqes.aim(self.free() & self.open);
    }

    /// Hands everything from position `first` on to the device: the record, then the register.
    /// `last` is the first block of the last request.
    #[inline(always)]
    pub(super) fn publish(&mut self, first: u64, last: u32) {
        /// How far the largest request that BlueFlame can copy moves the position.
        const ONE: u64 = REQUEST + (BLUEFLAME_BYTES as usize / BLOCK_BYTES) as u64;
        self.dbrec.publish(self.at() as u16);
        let behind = self.at().wrapping_sub(first);
        if behind <= ONE && self.register.takes_blueflame() {
            self.blueflame(last, block(behind));
        } else {
            self.register.doorbell(self.wqes.first_word(last));
        }
    }

    /// Hands everything up to the position on to the device: the record, then the register. `last` is
    /// the first block of the last request.
    #[inline(always)]
    fn ring_doorbell(&mut self, last: u32) {
        self.dbrec.publish(self.at() as u16);
        self.register.doorbell(self.wqes.first_word(last));
    }

    /// Rings with one request, which has several blocks or was posted in a way for several
    /// requests.
    #[cold]
    #[inline(never)]
    fn blueflame(&mut self, first: u32, blocks: u32) {
        // BlueFlame does not pay for a WQE that is only a control segment.
        if self.wqes.units_of(first) > 1 {
            self.register.begin();
            self.wqes.blueflame(first, blocks, &mut self.register);
            self.register.end();
        } else {
            self.register.doorbell(self.wqes.first_word(first));
        }
    }
}
