//! Polling a completion queue and arming it for events.
//!
//! The device writes entries. The CQ reads them and returns them to the device through the consumer
//! index in the doorbell record. The CQ writes the index rarely: after a quarter of the queue (or
//! fewer entries: [`Cq::hold_back`]), when a poll finds nothing, and before arming. Until then,
//! polled entries still count as occupied for the device. Whether the index is written in time
//! depends on how many receives can be posted:
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
    cqe::{
        self, Completion, CqeError, CqeFields, Message, PlainCqe, PlainKind, RecvCqe, ScatteredRecv,
        ScatteredSend, SendCqe,
    },
    dbrec::CqDbRec,
    queue_mem::{CqLayout, CqeMem, CqeRef},
    uar::Uar,
};

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
#[derive(Debug)]
pub struct Cq {
    /// Stops at the next multiple of the release interval. The end of the queue is such a multiple,
    /// so `lap` is right until then.
    cqes: CqeMem,
    released: u32,
    /// The release interval, a power of two of entries.
    interval: u32,
    /// [`Peeked::take`] returns each entry to the device.
    returns_each: bool,
    lap: u8,
    dbrec: CqDbRec,
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
    /// device can need at a time. [`Peeked::take`] then returns several entries at once; with fewer
    /// than 8, which is the initial state, it returns each. The release interval becomes no longer
    /// than this. Returns all entries polled so far.
    pub fn hold_back(&mut self, most: u32) {
        const FEW: u32 = 8;
        let quarter = quarter(self.cqe_count());
        self.returns_each = most < FEW;
        self.interval = if self.returns_each { quarter } else { quarter.min(1 << most.ilog2()) };
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
                self.cqes.entry(self.released)
            }
        };
        // `op_own` of such an entry has opcode 0 and no flags, so only the owner bit is left to
        // compare.
        let send = cqe::decode_send(&entry, entry.counter_if(self.lap)?);
        self.cqes.pass(entry);
        Some(send)
    }

    /// The next completion, if it is one of the two that have the least to tell; see [`PlainCqe`].
    /// Consumes nothing: [`Peeked::take`] does. Otherwise returns `None`: [`poll`](Self::poll) then
    /// returns the entry, if there is one.
    ///
    /// A caller that finds the completion's records before it takes the entry can leave an entry
    /// whose records it does not find to [`poll`](Self::poll).
    #[inline(always)]
    pub fn peek_plain(&mut self) -> Option<Peeked<'_>> {
        let (entry, lap) = self.peek_entry();
        let kind = cqe::plain_kind(entry.op_own() ^ lap)?;
        barrier::from_device();
        let cqe = cqe::decode_plain(&entry, kind);
        Some(Peeked { cq: self, cqe })
    }

    /// As [`peek_plain`](Self::peek_plain), for entries of one kind. `None` also at the end of a
    /// release interval, which `peek_plain` and [`poll`](Self::poll) begin anew. Straight-line code
    /// without a call.
    #[inline(always)]
    pub fn peek_plain_of(&mut self, kind: PlainKind) -> Option<Peeked<'_>> {
        let entry = self.cqes.next()?;
        if !cqe::is_plain_of(entry.op_own() ^ self.lap, kind) {
            return None;
        }
        barrier::from_device();
        let cqe = cqe::decode_plain(&entry, kind);
        Some(Peeked { cq: self, cqe })
    }

    /// The next entry in place, if it is one of the two kinds that have the least to tell; see
    /// [`PlainCqe`]. Consumes nothing: [`PlainEntry::take`] does.
    ///
    /// Entries that were taken go back to the device with the next
    /// [`publish_index`](Self::publish_index), or as those of [`poll`](Self::poll).
    #[inline(always)]
    pub fn plain_entry(&mut self) -> Option<PlainEntry<'_>> {
        if self.cqes.next().is_none() {
            self.release();
        }
        let entry = self.cqes.next()?;
        let kind = cqe::plain_kind(entry.op_own() ^ self.lap)?;
        barrier::from_device();
        Some(PlainEntry { mem: &self.cqes, entry, kind })
    }

    /// As [`plain_entry`](Self::plain_entry), for entries of one kind.
    #[inline(always)]
    pub fn plain_entry_of(&mut self, kind: PlainKind) -> Option<PlainEntry<'_>> {
        if self.cqes.next().is_none() {
            self.release();
        }
        let entry = self.cqes.next()?;
        if !cqe::is_plain_of(entry.op_own() ^ self.lap, kind) {
            return None;
        }
        barrier::from_device();
        Some(PlainEntry { mem: &self.cqes, entry, kind })
    }

    /// The next entry in place, if it is a Send without immediate data whose payload, of at most 32
    /// bytes, is in the entry and not in the posted buffer; and the bytes, of which the first
    /// [`PlainEntry::byte_count`] count. Consumes nothing: [`PlainEntry::take`] does.
    #[inline(always)]
    pub fn short_entry(&mut self) -> Option<(PlainEntry<'_>, [u8; 32])> {
        if self.cqes.next().is_none() {
            self.release();
        }
        let entry = self.cqes.next()?;
        if !cqe::is_short_send(entry.op_own() ^ self.lap) {
            return None;
        }
        barrier::from_device();
        let payload = entry.first_bytes();
        let entry = PlainEntry { mem: &self.cqes, entry, kind: PlainKind::Received };
        (entry.byte_count() <= 32).then_some((entry, payload))
    }

    /// Whether the next entry was handed over, as [`is_ready`](Self::is_ready). A few instructions.
    #[inline(always)]
    pub fn is_next_ready(&mut self) -> bool {
        let (entry, lap) = self.peek_entry();
        let op_own = entry.op_own();
        (op_own ^ lap) & 1 == 0 && op_own < 0xf0
    }

    /// Returns all polled entries to the device now. Shorter than [`release`](Self::release); an
    /// empty poll writes the index once more.
    #[inline(always)]
    pub fn publish_index(&mut self) {
        self.dbrec.release(self.cqes.index());
    }

    /// The device's clock when the last polled entry was written. Valid until the next poll.
    pub fn timestamp(&self) -> u64 {
        self.cqes.entry(self.cqes.index().wrapping_sub(1)).timestamp()
    }

    /// The next entry, and the value of its owner bit if it belongs to software.
    #[inline(always)]
    fn peek_entry(&mut self) -> (CqeRef<'_>, u8) {
        if self.cqes.next().is_none() {
            self.release();
        }
        let lap = self.lap;
        let entry = match self.cqes.next() {
            Some(entry) => entry,
            None => self.cqes.entry(self.released),
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
                self.cqes.entry(self.released)
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
            if self.cqes.next().is_none() {
                self.release();
            }
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

    /// Removes the entries of a QP that went to RESET or was destroyed, and returns how many.
    /// Passes each to `removed`, oldest first: return its slot to the SRQ. The other entries keep
    /// their order.
    ///
    /// A QP number is given out again. Without this call, a later QP with the number would get the
    /// completions of the earlier one. libmlx5 cleans its CQs in `ibv_destroy_qp` and when a QP
    /// goes to RESET, but not a CQ that was handed over to this crate. Call this for the send CQ
    /// and for the receive CQ, after the call of verbs returned: the device then writes no more
    /// entries of the QP. For the sends, [`Sq::reset`](crate::Sq::reset) or dropping the
    /// [`Sq`](crate::Sq) releases all requests; their entries need no
    /// [`Sq::complete`](crate::Sq::complete).
    ///
    /// A payload or result that is in an entry is lost: poll until the queue is empty first if you
    /// need it. If `removed` panics, later entries of the QP stay in the queue.
    pub fn clean(&mut self, qpn: u32, mut removed: impl FnMut(Completion)) -> u32 {
        let mut cleaning = Cleaning { cq: self, qpn, looked_at: 0 };
        while let Some(completion) = cleaning.look_at_next() {
            if let Some(completion) = completion {
                removed(completion);
            }
        }
        cleaning.close_gaps()
    }

    fn is_of(&self, index: u32, qpn: u32) -> bool {
        (self.cqes.entry(index).sop_drop_qpn() ^ qpn) & 0x00ff_ffff == 0
    }

    /// `op_own` of the n-th waiting entry.
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
        self.released = index;
        self.start_interval(index);
    }

    fn start_interval(&mut self, index: u32) {
        self.cqes.start_at(index, (index | (self.interval - 1)).wrapping_add(1));
        self.lap = self.cqes.lap(index);
    }
}

/// A plain entry in place, from [`Cq::plain_entry`]: each field is read when it is asked for.
#[expect(missing_debug_implementations, reason = "a view of queue memory")]
pub struct PlainEntry<'a> {
    mem: &'a CqeMem,
    entry: CqeRef<'a>,
    kind: PlainKind,
}

impl PlainEntry<'_> {
    /// Consumes the entry.
    #[inline(always)]
    pub fn take(self) {
        self.mem.pass(self.entry);
    }

    /// Which of the two kinds the entry is.
    #[inline(always)]
    pub fn kind(&self) -> PlainKind {
        self.kind
    }

    /// QP number, 24 bits, and in the upper 8 bits the opcode of a request.
    #[inline(always)]
    pub fn opcode_qpn(&self) -> u32 {
        self.entry.sop_drop_qpn()
    }

    /// QP number, 24 bits.
    #[inline(always)]
    pub fn qpn(&self) -> u32 {
        self.opcode_qpn() & 0x00ff_ffff
    }

    /// The slot of the receive, or the number that [`Sq::complete`](crate::Sq::complete) takes.
    #[inline(always)]
    pub fn wqe_counter(&self) -> u16 {
        self.entry.wqe_counter()
    }

    /// The bytes received.
    #[inline(always)]
    pub fn byte_count(&self) -> u32 {
        self.entry.byte_count()
    }

    /// What the entry of a receive says about its message.
    #[inline(always)]
    pub fn message(&self) -> Message {
        Message::decode(&self.entry)
    }
}

/// A quarter of the entries of a CQ.
fn quarter(cqe_count: u32) -> u32 {
    (cqe_count / 4).max(1)
}

/// An entry of [`Cq::peek_plain`] that is not consumed yet.
#[derive(Debug)]
pub struct Peeked<'a> {
    cq: &'a mut Cq,
    cqe: PlainCqe,
}

impl Peeked<'_> {
    /// What the entry says.
    #[inline(always)]
    pub fn cqe(&self) -> PlainCqe {
        self.cqe
    }

    /// As [`PlainCqe::byte_count`], read now: a caller that needs the value late keeps it in no
    /// register meanwhile.
    #[inline(always)]
    pub fn byte_count(&self) -> u32 {
        self.cq.cqes.at_next().byte_count()
    }

    /// Consumes the entry, and returns it to the device, unless the CQ may
    /// [hold it back](Cq::hold_back).
    #[inline(always)]
    pub fn take(self) {
        self.cq.cqes.pass_next();
        if self.cq.returns_each {
            // `released` stays behind: an empty poll then writes the index once more.
            self.cq.dbrec.release(self.cq.cqes.index());
        }
    }
}

/// Removes the entries of a QP. The drop of this value closes the gaps, so that entries whose
/// completions were passed on are not polled later if the receiver of a completion panics.
struct Cleaning<'a> {
    cq: &'a mut Cq,
    qpn: u32,
    /// Waiting entries that were looked at.
    looked_at: u32,
}

impl Cleaning<'_> {
    fn at(&self, n: u32) -> u32 {
        self.cq.cqes.index().wrapping_add(n)
    }

    /// The completion of the next waiting entry, if it is of the QP. `None` after the last entry
    /// that can be polled.
    fn look_at_next(&mut self) -> Option<Option<Completion>> {
        let (n, at) = (self.looked_at, self.at(self.looked_at));
        let op_own = (n <= self.cq.cqes.mask()).then(|| self.cq.peek(n)).flatten()?;
        let completion = match cqe::decode_other(&self.cq.cqes.entry(at), op_own) {
            // Nothing behind such an entry can be polled.
            Err(CqeError::Compressed | CqeError::Resized) => return None,
            decoded => decoded.ok().filter(|_| self.cq.is_of(at, self.qpn)),
        };
        self.looked_at += 1;
        Some(completion)
    }

    /// Moves the other entries together, and returns how many are gone.
    fn close_gaps(&mut self) -> u32 {
        let mut gone = 0;
        for n in (0..std::mem::take(&mut self.looked_at)).rev() {
            let at = self.at(n);
            if self.cq.is_of(at, self.qpn) {
                gone += 1;
            } else if gone > 0 {
                self.cq.cqes.copy_entry(at, at.wrapping_add(gone));
            }
        }
        if gone > 0 {
            self.cq.release_to(self.at(gone));
        }
        gone
    }
}

impl Drop for Cleaning<'_> {
    fn drop(&mut self) {
        self.close_gaps();
    }
}
