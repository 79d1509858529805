//! Polling a completion queue and arming it for events.
//!
//! The device writes entries. The CQ reads them and returns them to the device through the consumer
//! index in the doorbell record. The index is written after a quarter of the queue (or as
//! [`Cq::hold_back`] says), when a poll finds nothing, and before arming;
//! [`PlainEntry::take_and_return`] writes it for each entry unless the CQ holds entries back. Until
//! then, polled entries still
//! count as occupied for the device. Whether the index is written in time depends on how many
//! receives can be posted:
//!
//! | CQ entries | what to do |
//! |---|---|
//! | at least 4/3 of the receives posted at a time | nothing: the index is never late |
//! | fewer, but at least as many as receives | [`release`](Cq::release) before posting again |
//! | fewer than receives | not allowed: the device overruns the queue |
//!
//! A CQ that is polled here must never be polled or armed through verbs: libmlx5's own index would
//! be stale.

use crate::{
    barrier,
    cqe::{self, Completion, CqeError, Message, RawCqe, RecvCqe, ScatteredRecv, ScatteredSend, SendCqe},
    doorbell::CqDbRec,
    doorbell::Uar,
    queue_mem::{CqLayout, CqeMem, CqeRef},
};

mod clean;
mod deliver;
mod plain;
mod resize;

pub use plain::PlainEntry;

/// Which completions raise an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArmFor {
    /// The next completion.
    Any,
    /// The next receive whose sender asked for a solicited event, or the next error.
    Solicited,
}

/// A completion queue that is polled without libmlx5.
///
/// ```
/// use mlx5_direct::{Cq, CqLayout};
///
/// let (layout, _device) = CqLayout::on_heap(256, 64)?;
/// let mut cq = Cq::new(layout);
/// assert!(cq.poll()?.is_none());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
// In this order, so that the first cache line has all that a poll needs.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Cq {
    dbrec: CqDbRec,
    lap: u8,
    /// [`PlainEntry::take_and_return`] returns each entry to the device.
    returns_each: bool,
    /// The release interval, a power of two of entries.
    interval: u32,
    /// Stops at the next multiple of the release interval. The end of the queue is such a multiple,
    /// so `lap` is right until then.
    cqes: CqeMem,
    /// Entries consumed when the index was written last; the low half is that index.
    released: u64,
    /// Up to here, counted as `consumed` counts, [`Cq::waiting_messages`] has found only messages.
    /// [`Cq::clean`] and [`Cq::continue_in`] consume as many entries as they move others on, so
    /// this stays true.
    known: u64,
    uar: Uar,
    cqn: u32,
    arm_sequence: u32,
}

impl Cq {
    /// Takes over a checked CQ from which nothing was polled yet.
    pub fn new(layout: CqLayout) -> Self {
        let CqLayout { cqes, dbrec, uar, cqn } = layout;
        let interval = quarter(cqes.mask() + 1);
        let mut cq = Self {
            cqes,
            released: 0,
            interval,
            known: 0,
            returns_each: true,
            lap: 0,
            dbrec,
            uar,
            cqn,
            arm_sequence: 0,
        };
        cq.start_interval(0);
        cq
    }

    /// Sets how many entries may be polled and not returned to the device, besides those that the
    /// device can need at a time. [`PlainEntry::take_and_return`] then returns several entries at
    /// once, and the release interval becomes no longer than this. With fewer than 8,
    /// `take_and_return` returns each entry, and there is no release interval: after polls call
    /// [`release`](Self::release). Returns all entries polled so far.
    pub fn hold_back(&mut self, most: u32) {
        const FEW: u32 = 8;
        let entries = self.cqe_count();
        self.returns_each = most < FEW;
        self.interval = if self.returns_each { entries } else { (entries / 2).min(1 << most.ilog2()) };
        self.release();
    }

    /// The next completion, if there is one.
    ///
    /// # Errors
    ///
    /// [`CqeError`]. An entry with an unknown opcode is consumed. After a compressed entry or a
    /// resize mark, every poll returns the same error.
    #[inline(always)]
    pub fn poll(&mut self) -> Result<Option<Completion>, CqeError> {
        match self.poll_receive() {
            Ok(receive) => Ok(Some(Completion::Recv(receive))),
            Err(op_own) => self.poll_not_receive(op_own),
        }
    }

    /// Returns the next completion if it is a send-queue operation that succeeded and left no
    /// result in the entry. Otherwise returns `None` and consumes nothing: [`poll`](Self::poll)
    /// then returns the entry, if there is one. Costs half as much as `poll`.
    #[inline(always)]
    pub fn poll_if_send(&mut self) -> Option<SendCqe> {
        let entry = match self.cqes.next() {
            Some(entry) => entry,
            None => {
                self.release();
                self.cqes.entry(self.released as u32)
            }
        };
        // `op_own` of such an entry has opcode 0 and no flags, so only the owner bit is left to
        // compare.
        let send = cqe::decode_send(&entry, entry.counter_if(self.lap)?);
        self.cqes.pass(entry);
        Some(send)
    }

    /// Whether the next entry was handed over, as [`is_ready`](Self::is_ready). A few instructions.
    #[inline(always)]
    pub fn is_next_ready(&mut self) -> bool {
        let (entry, lap) = self.peek_entry();
        let op_own = entry.op_own();
        (op_own ^ lap) & 1 == 0 && op_own < 0xf0
    }

    /// Begins another release interval if one has ended, which returns all polled entries to the
    /// device. Returns whether it did. Until then [`plain_entry`](Self::plain_entry) finds nothing;
    /// a poll, and a look whether the CQ is empty, begin the interval themselves.
    #[inline(always)]
    pub fn begin_interval(&mut self) -> bool {
        let ended = self.cqes.next().is_none();
        if ended {
            self.release();
        }
        ended
    }

    /// Whether no completion waits, and no polled entry is left to return to the device. False also
    /// at the end of a release interval, which [`is_empty`](Self::is_empty) begins anew.
    /// Straight-line code without a call.
    #[inline(always)]
    pub fn is_idle(&self) -> bool {
        let waits = |op_own| self.cqes.is_ready(op_own, self.lap);
        self.cqes.next().is_some_and(|entry| !waits(entry.op_own())) && !self.cqes.has_moved()
    }

    /// Whether no completion waits. If so, returns polled entries to the device, as a poll that
    /// finds nothing does.
    #[inline(always)]
    pub fn is_empty(&mut self) -> bool {
        if self.is_next_ready() {
            return false;
        }
        if self.cqes.has_moved() {
            self.release();
        }
        true
    }

    /// Returns all polled entries to the device now. Shorter than [`release`](Self::release); an
    /// empty poll writes the index once more.
    #[inline(always)]
    pub fn publish_index(&mut self) {
        self.dbrec.release(self.cqes.index());
    }

    /// The number of entries consumed since the CQ was taken over: those that were polled or taken,
    /// and those that [`clean`](Self::clean) or [`discard`](Self::discard) removed.
    pub fn consumed(&self) -> u64 {
        self.released + u64::from(self.cqes.index().wrapping_sub(self.released as u32))
    }

    /// The device's clock when the last polled entry was written. Valid until the next poll.
    pub fn timestamp(&self) -> u64 {
        self.cqes.entry(self.cqes.index().wrapping_sub(1)).timestamp()
    }

    /// The next entry, and the value of its owner bit if it belongs to software.
    #[inline(always)]
    fn peek_entry(&mut self) -> (CqeRef<'_>, u8) {
        self.begin_interval();
        let lap = self.lap;
        let entry = match self.cqes.next() {
            Some(entry) => entry,
            None => self.cqes.entry(self.released as u32),
        };
        (entry, lap)
    }

    /// Returns the next completion if it is a finished receive, else the entry's `op_own`.
    #[inline(always)]
    fn poll_receive(&mut self) -> Result<RecvCqe, u8> {
        // The index is written here and not after decoding: the last entry must stay readable for
        // `copy_scattered` until the next poll.
        let entry = match self.cqes.next() {
            Some(entry) => entry,
            None => {
                self.release();
                self.cqes.entry(self.released as u32)
            }
        };
        let receive = cqe::decode_receive(&entry, entry.receive(self.lap)?);
        self.cqes.pass(entry);
        Ok(receive)
    }

    /// Handles an entry that [`poll_receive`](Self::poll_receive) did not take: no entry, or
    /// another kind of completion.
    #[inline(always)]
    fn poll_not_receive(&mut self, op_own: u8) -> Result<Option<Completion>, CqeError> {
        if self.cqes.is_ready(op_own, self.lap) {
            return self.poll_other(op_own).map(Some);
        }
        if self.cqes.has_moved() {
            self.release();
        }
        Ok(None)
    }

    /// Returns the next completion if it is a finished receive with its payload in the posted
    /// buffer. Otherwise returns `None` and consumes nothing: [`poll`](Self::poll) then returns the
    /// entry, if there is one. For loops that handle only receives: the caller has fewer cases to
    /// distinguish.
    #[inline(always)]
    pub fn poll_if_receive(&mut self) -> Option<RecvCqe> {
        self.poll_receive().ok()
    }

    /// The rest of [`poll`](Self::poll), for an entry that is present but is not a finished
    /// receive.
    #[inline(never)]
    fn poll_other(&mut self, op_own: u8) -> Result<Completion, CqeError> {
        barrier::from_device();
        let entry = self.cqes.entry(self.cqes.index());
        let mut decoded = cqe::decode_other(&entry, op_own);
        match &mut decoded {
            Ok(Completion::RecvScattered(scattered)) => scattered.index = self.cqes.index(),
            Ok(Completion::SendScattered(scattered)) => scattered.index = self.cqes.index(),
            _ => {}
        }
        if !matches!(decoded, Err(CqeError::Compressed | CqeError::Resized)) {
            self.cqes.pass(entry);
        }
        decoded
    }

    /// Passes up to `max` completions to `each`, oldest first, and returns how many. This is
    /// cheaper than as many calls of [`poll`](Self::poll): the loop advances a pointer from entry
    /// to entry and checks the release interval once. The loop ends after a
    /// [`Completion::RecvScattered`] and after a [`Completion::SendScattered`], so that the caller
    /// can call [`copy_scattered`](Self::copy_scattered) or [`copy_result`](Self::copy_result).
    ///
    /// # Errors
    ///
    /// As [`poll`](Self::poll). Earlier completions were passed to `each`.
    #[inline]
    pub fn poll_each(&mut self, max: u32, mut each: impl FnMut(Completion)) -> Result<u32, CqeError> {
        let mut polled = 0;
        while polled < max {
            self.begin_interval();
            let mut other = None;
            for (entry, behind) in self.cqes.entries(max - polled) {
                match entry.receive(self.lap) {
                    Ok(op_own) => {
                        let receive = cqe::decode_receive(&entry, op_own);
                        // The queue advances before the call of `each`, because `each` may panic.
                        self.cqes.pass_to(behind);
                        polled += 1;
                        each(Completion::Recv(receive));
                    }
                    Err(op_own) => {
                        other = Some(op_own);
                        break;
                    }
                }
            }
            if let Some(op_own) = other {
                let Some(scattered) = self.each_not_receive(op_own, &mut each)? else { break };
                polled += 1;
                if scattered {
                    break;
                }
            }
        }
        Ok(polled)
    }

    /// Passes on a completion that is not a receive with its payload in the buffer. Returns whether
    /// the payload is in the entry; `None` if there was no entry. This function is not inlined and
    /// has its own copy of `each`, so that the copy in [`poll_each`](Self::poll_each) handles
    /// receives only.
    #[inline(never)]
    fn each_not_receive(
        &mut self,
        op_own: u8,
        each: &mut impl FnMut(Completion),
    ) -> Result<Option<bool>, CqeError> {
        let Some(completion) = self.poll_not_receive(op_own)? else { return Ok(None) };
        let scattered = matches!(completion, Completion::RecvScattered(_) | Completion::SendScattered(_));
        each(completion);
        Ok(Some(scattered))
    }

    /// Copies the payload of a receive that the device put into the completion entry instead of the
    /// posted buffer. `into` is that buffer, or any other place for the payload. Call this before
    /// the next poll. Returns the bytes copied: the length of the message, limited by the length of
    /// `into`. Returns 0 after another poll, or if the entry claims more bytes than it has.
    pub fn copy_scattered(&self, scattered: &ScatteredRecv, into: &mut [u8]) -> usize {
        if scattered.index != self.cqes.index().wrapping_sub(1) {
            return 0;
        }
        let len = into.len().min(scattered.receive.byte_count as usize);
        self.cqes.copy_scattered(scattered.index, scattered.wide, &mut into[..len])
    }

    /// Copies the result of a read or an atomic that the device put into the completion entry
    /// instead of the memory that the request named. Call this before the next poll. Returns the
    /// bytes copied: the length of the result, limited by the length of `into`. Returns 0 after
    /// another poll.
    pub fn copy_result(&self, scattered: &ScatteredSend, into: &mut [u8]) -> usize {
        if scattered.index != self.cqes.index().wrapping_sub(1) {
            return 0;
        }
        let len = into.len().min(scattered.byte_count() as usize);
        self.cqes.copy_scattered(scattered.index, scattered.wide, &mut into[..len])
    }

    /// The sender's QP number in the last polled entry, if the entry was of a message. Only
    /// datagrams need this number: a connected QP knows its peer. So [`RecvCqe`] does not have it.
    /// Valid until the next poll or [`clean`](Self::clean).
    pub fn source_qpn(&self) -> u32 {
        self.cqes.entry(self.cqes.index().wrapping_sub(1)).flags_rqpn() & 0x00ff_ffff
    }

    /// What the last polled entry says about its message, if the entry was of a message. Valid
    /// until the next poll.
    #[inline]
    pub fn message(&self) -> Message {
        Message::decode(&self.cqes.entry(self.cqes.index().wrapping_sub(1)))
    }

    /// A copy of all fields of the last polled entry. Call this before the next poll or
    /// [`clean`](Self::clean).
    #[inline]
    pub fn raw(&self) -> RawCqe {
        self.cqes.entry(self.cqes.index().wrapping_sub(1)).raw()
    }

    /// Whether [`poll`](Self::poll) would find an entry.
    #[inline]
    pub fn is_ready(&self) -> bool {
        self.peek(0).is_some()
    }

    /// The number of finished receives, errors included, that wait to be polled. Reads every
    /// waiting entry and consumes none.
    pub fn waiting_receives(&self) -> u32 {
        let waiting = (0..=self.cqes.mask()).map_while(|n| self.peek(n));
        waiting.filter(|op_own| cqe::is_responder(*op_own)).count() as u32
    }

    /// The number of messages that wait to be polled. `None` if something else waits: a receive
    /// that failed, the completion of a request, or an entry that ends the queue.
    ///
    /// Consumes nothing. An entry is read by the first call that finds it, not again by the calls
    /// that follow.
    pub fn waiting_messages(&mut self) -> Option<u32> {
        let consumed = self.consumed();
        let mut messages = self.known.saturating_sub(consumed) as u32;
        let others = loop {
            let next = if messages <= self.cqes.mask() { self.peek(messages) } else { None };
            match next {
                None => break false,
                Some(op_own) if !cqe::is_message(op_own) => break true,
                Some(_) => messages += 1,
            }
        };
        self.known = consumed + u64::from(messages);
        (!others).then_some(messages)
    }

    /// `op_own` of the n-th waiting entry.
    #[inline(always)]
    fn peek(&self, n: u32) -> Option<u8> {
        let index = self.cqes.index().wrapping_add(n);
        self.cqes.ready(index, self.cqes.lap(index)).map(|(_, op_own)| op_own)
    }

    /// Requests one event. Completions that are in the queue already raise no event: poll until the
    /// queue is empty, arm, and poll once more, or use
    /// [`arm_unless_ready`](Self::arm_unless_ready).
    pub fn arm(&mut self, what: ArmFor) {
        /// Bit of the request that limits it to solicited completions (`MLX5_CQ_DB_REQ_NOT_SOL`).
        const SOLICITED_ONLY: u32 = 1 << 24;
        self.release();
        let command = match what {
            ArmFor::Any => 0,
            ArmFor::Solicited => SOLICITED_ONLY,
        };
        let request = (self.arm_sequence & 3) << 28 | command | self.cqes.index() & 0x00ff_ffff;
        self.dbrec.request_event(request);
        self.uar.arm_cq(request, self.cqn);
    }

    /// Arms the CQ and returns whether the caller may block. Returns false if a completion arrived
    /// before the request, because that completion may raise no event.
    pub fn arm_unless_ready(&mut self, what: ArmFor) -> bool {
        self.arm_unless_ready_after(what, || ())
    }

    /// [`arm_unless_ready`](Self::arm_unless_ready) with a step between the first check and the
    /// request: a test places a completion there.
    #[doc(hidden)]
    pub fn arm_unless_ready_after(&mut self, what: ArmFor, before_request: impl FnOnce()) -> bool {
        if self.is_ready() {
            return false;
        }
        before_request();
        self.arm(what);
        !self.is_ready()
    }

    /// Call this once for each event read from the channel. The device ignores a request with the
    /// sequence number of an event that it has raised already.
    pub fn event_received(&mut self) {
        self.arm_sequence = self.arm_sequence.wrapping_add(1);
    }

    /// CQ number.
    pub fn cqn(&self) -> u32 {
        self.cqn
    }

    /// Entries in the queue.
    pub fn cqe_count(&self) -> u32 {
        self.cqes.mask() + 1
    }

    /// Bytes of an entry: 64 or 128.
    pub fn cqe_bytes(&self) -> u32 {
        self.cqes.bytes()
    }

    /// Returns all polled entries to the device now. Call this once per batch, before the slots
    /// polled here are posted again, if the receives that can be posted at a time are more than
    /// three quarters of the entries: polled entries that are not released still count as occupied.
    #[inline(never)]
    pub fn release(&mut self) {
        self.release_to(self.cqes.index());
    }

    /// Continues with entry `index`, and returns all before it to the device.
    fn release_to(&mut self, index: u32) {
        self.dbrec.release(index);
        self.released += u64::from(index.wrapping_sub(self.released as u32));
        self.start_interval(index);
    }

    fn start_interval(&mut self, index: u32) {
        self.cqes.start_at(index, (index | (self.interval - 1)).wrapping_add(1));
        self.lap = self.cqes.lap(index);
    }
}

/// A quarter of the entries of a CQ.
fn quarter(cqe_count: u32) -> u32 {
    (cqe_count / 4).max(1)
}
