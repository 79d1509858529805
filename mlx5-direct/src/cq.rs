//! Polling a completion queue and arming it for events.
//!
//! The device writes entries; we read them, and give their room back through the consumer index in the doorbell record.
//! The index is written rarely: after a quarter of the queue, when a poll finds nothing, and before arming. Until then
//! what was polled still takes room, so whether it is written in time depends on how many receives can complete:
//!
//! | entries of the queue, against receives posted at a time | to do |
//! |---|---|
//! | a third more (the receives are at most three quarters of the entries) | nothing: the index is never late |
//! | fewer, down to as many | [`release`](Cq::release) after a batch was polled and before its slots are posted again |
//! | fewer than receives | not to be done: the device overruns the queue |
//!
//! Once polled here, a CQ is never to be polled or armed through verbs: libmlx5's own index would be stale.

use crate::{
    barrier,
    cqe::{self, Completion, CqeError, CqeFields, RecvCqe, ScatteredRecv, ScatteredSend, SendCqe},
    dbrec::CqDbRec,
    queue_mem::{CqLayout, CqeMem},
    uar::Uar,
};

/// Which completions raise the event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArmFor {
    /// The next completion.
    Any,
    /// The next receive whose sender asked for it, or the next error.
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
    cqes: CqeMem,
    consumer_index: u32,
    released: u32,
    /// Next multiple of the release interval. The queue's end is one, so that `lap` is right until then.
    release_at: u32,
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
        let mut cq = Self {
            cqes,
            consumer_index: 0,
            released: 0,
            release_at: 0,
            lap: 0,
            dbrec,
            uar,
            cqn,
            arm_sequence: 0,
        };
        cq.start_interval();
        cq
    }

    /// The next completion, if there is one.
    ///
    /// # Errors
    ///
    /// [`CqeError`]. An unknown opcode is consumed; compression and resize leave the CQ where it is, for good.
    #[inline(always)]
    pub fn poll(&mut self) -> Result<Option<Completion>, CqeError> {
        match self.poll_receive() {
            Ok(receive) => Ok(Some(Completion::Recv(receive))),
            Err(op_own) => self.poll_not_receive(op_own),
        }
    }

    /// The next completion if it is of a send-queue operation that succeeded and left no result in the entry; `None`, with nothing
    /// consumed, if there is none or it is anything else, which [`poll`](Self::poll) tells. Half the cost of that.
    #[inline(always)]
    pub fn poll_if_send(&mut self) -> Option<SendCqe> {
        if self.consumer_index == self.release_at {
            self.release();
        }
        let entry = self.cqes.entry(self.consumer_index);
        // Opcode 0 and no flag: the owner bit is all there is.
        if entry.op_own() != self.lap {
            return None;
        }
        barrier::from_device();
        let send = cqe::decode_send(&entry);
        self.consumer_index = self.consumer_index.wrapping_add(1);
        Some(send)
    }

    /// The next completion if it is a finished receive, else what `op_own` says.
    #[inline(always)]
    fn poll_receive(&mut self) -> Result<RecvCqe, u8> {
        // Only here, not after decoding: the last entry stays readable for `copy_scattered` until the next poll.
        if self.consumer_index == self.release_at {
            self.release();
        }
        let entry = self.cqes.entry(self.consumer_index);
        let receive = cqe::decode_receive(&entry, entry.receive(self.lap)?);
        self.consumer_index = self.consumer_index.wrapping_add(1);
        Ok(receive)
    }

    /// What [`poll_receive`](Self::poll_receive) did not take: nothing there, or something else.
    #[inline(always)]
    fn poll_not_receive(&mut self, op_own: u8) -> Result<Option<Completion>, CqeError> {
        if self.cqes.is_ready(op_own, self.lap) {
            return self.poll_other(op_own).map(Some);
        }
        if self.consumer_index != self.released {
            self.release();
        }
        Ok(None)
    }

    /// The next completion if it is a finished receive with its payload in the posted buffer; `None`, with nothing consumed, if
    /// there is none or it is anything else, which [`poll`](Self::poll) tells. For loops that take nothing but receives: less to be taken apart by the caller.
    #[inline(always)]
    pub fn poll_if_receive(&mut self) -> Option<RecvCqe> {
        self.poll_receive().ok()
    }

    /// The rest of [`poll`](Self::poll), for an entry that is there but is not a finished receive.
    #[inline(never)]
    fn poll_other(&mut self, op_own: u8) -> Result<Completion, CqeError> {
        barrier::from_device();
        let mut decoded = cqe::decode_other(&self.cqes.entry(self.consumer_index), op_own);
        match &mut decoded {
            Ok(Completion::RecvScattered(scattered)) => scattered.index = self.consumer_index,
            Ok(Completion::SendScattered(scattered)) => scattered.index = self.consumer_index,
            _ => {}
        }
        if !matches!(decoded, Err(CqeError::Compressed | CqeError::Resized)) {
            self.consumer_index = self.consumer_index.wrapping_add(1);
        }
        decoded
    }

    /// Hands up to `max` completions to `each`, oldest first; returns how many. Cheaper than as many calls of
    /// [`poll`](Self::poll): it goes from entry to entry by pointer, and looks at the release interval once. It ends after a
    /// [`Completion::RecvScattered`] and a [`Completion::SendScattered`], for [`copy_scattered`](Self::copy_scattered) or
    /// [`copy_result`](Self::copy_result) to be called.
    ///
    /// # Errors
    ///
    /// As [`poll`](Self::poll); what came before was handed over.
    #[inline]
    pub fn poll_each(&mut self, max: u32, mut each: impl FnMut(Completion)) -> Result<u32, CqeError> {
        let mut polled = 0;
        while polled < max {
            if self.consumer_index == self.release_at {
                self.release();
            }
            let most = self.release_at.wrapping_sub(self.consumer_index).min(max - polled);
            let mut other = None;
            for entry in self.cqes.entries(self.consumer_index, most) {
                match entry.receive(self.lap) {
                    Ok(op_own) => {
                        let receive = cqe::decode_receive(&entry, op_own);
                        // Before `each`, which may panic.
                        self.consumer_index = self.consumer_index.wrapping_add(1);
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

    /// Hands over what is not a receive with its payload in the buffer, and says whether its payload is in the entry; `None` if
    /// there was nothing. Out of line with a copy of `each`, so that the one in
    /// [`poll_each`](Self::poll_each) has only receives to handle.
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

    /// Copies the payload of a receive that the device put into the completion entry instead of into the posted buffer;
    /// `into` is that buffer, or wherever it is wanted. To be called before the next poll. Returns the bytes copied: the
    /// message's, as far as `into` has room; 0 after another poll, and where an entry claims more than it has.
    pub fn copy_scattered(&self, scattered: &ScatteredRecv, into: &mut [u8]) -> usize {
        if scattered.index != self.consumer_index.wrapping_sub(1) {
            return 0;
        }
        let len = into.len().min(scattered.receive.byte_count as usize);
        self.cqes.copy_scattered(scattered.index, scattered.wide, &mut into[..len])
    }

    /// Copies the result of a read or an atomic that the device put into the completion entry instead of into the memory that
    /// the request named. To be called before the next poll. Returns the bytes copied: the result's, as far as `into` has
    /// room; 0 after another poll.
    pub fn copy_result(&self, scattered: &ScatteredSend, into: &mut [u8]) -> usize {
        if scattered.index != self.consumer_index.wrapping_sub(1) {
            return 0;
        }
        let len = into.len().min(scattered.byte_count() as usize);
        self.cqes.copy_scattered(scattered.index, scattered.wide, &mut into[..len])
    }

    /// The sender's QP number in the last polled entry, if that was a message. Only for datagrams it says what the receiving QP does
    /// not know itself, so it is no part of every [`RecvCqe`]. Valid until the next poll.
    pub fn source_qpn(&self) -> u32 {
        self.cqes.entry(self.consumer_index.wrapping_sub(1)).flags_rqpn() & 0x00ff_ffff
    }

    /// Whether [`poll`](Self::poll) would find an entry.
    #[inline]
    pub fn is_ready(&self) -> bool {
        self.peek(0).is_some()
    }

    /// Finished receives, errors included, that wait to be polled. Reads every waiting entry, consumes none.
    pub fn waiting_receives(&self) -> u32 {
        let waiting = (0..=self.cqes.mask()).map_while(|n| self.peek(n));
        waiting.filter(|op_own| cqe::is_responder(*op_own)).count() as u32
    }

    /// `op_own` of the n-th waiting entry.
    fn peek(&self, n: u32) -> Option<u8> {
        let index = self.consumer_index.wrapping_add(n);
        self.cqes.ready(index, self.cqes.lap(index)).map(|(_, op_own)| op_own)
    }

    /// Asks for one event. Completions that are in the queue already raise none: poll until empty, arm, and poll once
    /// more, or use [`arm_unless_ready`](Self::arm_unless_ready).
    pub fn arm(&mut self, what: ArmFor) {
        /// Bit of the request that limits it to solicited completions (`MLX5_CQ_DB_REQ_NOT_SOL`).
        const SOLICITED_ONLY: u32 = 1 << 24;
        self.release();
        let command = match what {
            ArmFor::Any => 0,
            ArmFor::Solicited => SOLICITED_ONLY,
        };
        let request = (self.arm_sequence & 3) << 28 | command | self.consumer_index & 0x00ff_ffff;
        self.dbrec.request_event(request);
        self.uar.arm_cq(request, self.cqn);
    }

    /// Arms, and says whether it is safe to block: false when a completion arrived before the request, for which no event
    /// may come.
    pub fn arm_unless_ready(&mut self, what: ArmFor) -> bool {
        self.arm_unless_ready_after(what, || ())
    }

    /// [`arm_unless_ready`](Self::arm_unless_ready) with a step between the first look and the request: a test places a
    /// completion there.
    #[doc(hidden)]
    pub fn arm_unless_ready_after(&mut self, what: ArmFor, before_request: impl FnOnce()) -> bool {
        if self.is_ready() {
            return false;
        }
        before_request();
        self.arm(what);
        !self.is_ready()
    }

    /// To be called once for each event read from the channel: the device ignores a request that carries the sequence
    /// number of an event it has raised already.
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

    /// Gives the room of everything polled back to the device now. Due once a batch, before slots polled here are posted
    /// again, where the receives that can be posted at a time are more than three quarters of the entries: what was polled
    /// and not given back still takes room.
    #[inline(never)]
    pub fn release(&mut self) {
        self.dbrec.release(self.consumer_index);
        self.released = self.consumer_index;
        self.start_interval();
    }

    fn start_interval(&mut self) {
        let interval = (self.cqe_count() / 4).max(1);
        self.release_at = (self.consumer_index | (interval - 1)).wrapping_add(1);
        self.lap = self.cqes.lap(self.consumer_index);
    }
}
