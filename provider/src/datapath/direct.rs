//! The direct path of mlx5 devices: SRQs, and the CQs of their receives, driven without libmlx5.
//!
//! An entry of an SRQ is a slot of its ring, from the post until the consumer has reaped the completion; so a slot that is
//! posted again never has an unreaped completion. The thread that posts owns the ring and takes no lock; those that reap tell
//! it through [`RingSlots`] which slots are back. The ring goes round more slots than the SRQ has entries: `outstanding` is
//! what was posted less what was released, one look at a count, and slots that are back can wait until many are.
//!
//! What an EVD polls is split. Send queues, and receive queues of plain EPs, are libmlx5's, which only `ibv_poll_cq`
//! keeps up to date: they have one verbs CQ. For each SRQ whose EPs receive here there is one direct CQ. All report to
//! one channel. A direct CQ cannot be resized, so it is made when the first EP of an SRQ comes, with room for as many
//! entries as that SRQ can ever have (2 MiB for the 32,767 of most devices), and goes with the last.
//!
//! The device gives everything back when a QP fails: there are no lost buffers to look for.

mod adopt;
mod slots;

use self::adopt::Adopted;
use self::slots::{Counts, RingSlots};
use super::entries::WrInfo;
use super::verbs::{VerbsCq, status};
use super::{Completion, SrqCounts, WrId};
use crate::counters::ReceivedAs;
use crate::error::PostError;
use crate::memory::table;
use crate::types::MAX_IOV;
use crate::types::{DtoOp, DtoStatus};
use crate::{Error, Result, ReturnType, Subtype};
use mlx5_direct::{ArmFor, Cookies, CqeError, DataSeg, RecvCqe, RecvOp, Syndrome, WqeIndex};
use rxe_fallback::{CompChannel, Context, Cq, Pd, Qp, QpInit, Sge, Srq, WcStatus};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// The most entries that a ring can have.
pub(crate) const MAX_DEPTH: u32 = mlx5_direct::wqe::MAX_WQE_COUNT - 1;

/// Why this device's queues cannot be driven here.
pub(crate) fn unsupported_reason(context: &Context) -> Option<String> {
    // libmlx5 turns signatures on when this variable exists; nobody here writes them.
    if std::env::var_os("MLX5_SRQ_SIGNATURE").is_some() {
        return Some("MLX5_SRQ_SIGNATURE is set: unset it".to_owned());
    }
    adopt::supported(context).err().map(|error| error.to_string())
}

/// Creates a QP that receives from a direct SRQ.
pub(crate) fn create_qp(pd: &Pd, init: &QpInit<'_>) -> Result<Qp, rxe_fallback::Error> {
    adopt::qp(pd, init)
}

/// An SRQ of the device: what all share.
#[derive(Debug)]
pub(crate) struct DirectSrq {
    /// Names it in completions.
    id: u32,
    slots: Arc<RingSlots>,
    depth: AtomicU32,
    /// The most entries that it can be made to have.
    room: u32,
    verbs: Srq,
}

/// The posting half: the ring itself.
#[derive(Debug)]
pub(crate) struct DirectPoster {
    ring: Adopted<mlx5_direct::Srq, Srq>,
    slots: Arc<RingSlots>,
    /// How many may be outstanding. The ring has room for more slots.
    depth: u32,
    /// Slots that were released although nobody had posted them.
    never_posted: u32,
    /// Words of 64 slots that the ring goes round.
    words: u32,
    /// Those are too many slots for the processor's caches.
    far: bool,
    srq: u32,
}

impl DirectSrq {
    /// Takes over an SRQ to which nothing was posted; up to `depth` entries of it are used at first.
    pub(crate) fn new(srq: Srq, id: u32, depth: u32) -> Result<(Self, DirectPoster)> {
        let verbs = srq.clone();
        let mut ring = adopt::srq(srq, depth)?;
        let goes_round = slots_for(depth, ring.max_depth());
        ring.set_depth(goes_round)
            .map_err(|error| Error::new(ReturnType::InternalError, Subtype::None, error.to_string()))?;
        let slots = Arc::new(RingSlots::new(ring.cookies().clone()).map_err(|_| no_memory())?);
        let poster = DirectPoster {
            slots: slots.clone(),
            depth,
            never_posted: 0,
            words: goes_round / u64::BITS + 1,
            far: goes_round > FAR,
            srq: id,
            ring,
        };
        Ok((Self { id, slots, depth: depth.into(), room: poster.ring.max_depth(), verbs }, poster))
    }

    pub(crate) fn verbs(&self) -> &Srq {
        &self.verbs
    }

    #[inline]
    pub(crate) fn complete(&self, entry: u32) -> Option<WrInfo> {
        let (cookie, pool) = self.slots.complete(entry)?;
        // Why a receive failed is in the completion itself: no need to know its LMRs.
        Some(WrInfo { cookie, pool, ..WrInfo::default() })
    }

    /// [`DirectSrq::complete`] and [`DirectSrq::release`] in one: cookie and pool.
    #[inline(always)]
    pub(crate) fn reap(&self, entry: u32) -> Option<(u64, u32)> {
        self.slots.reap(entry)
    }

    #[inline]
    pub(crate) fn release(&self, entry: u32) {
        self.slots.release(entry);
    }

    pub(crate) fn depth(&self) -> u32 {
        self.depth.load(Ordering::Relaxed)
    }
}

impl DirectPoster {
    /// Posts one segment of nobody's pool, where the next slot and the room for it are known; false, and nothing was done,
    /// otherwise.
    #[inline(always)]
    pub(crate) fn post_one_in_run(&mut self, addr: u64, len: u32, lkey: u32, cookie: u64) -> bool {
        // The run is as long as there is room: see `reserved`.
        self.ring.post_one_in_run(DataSeg::new(addr, len, lkey), cookie).is_some()
    }

    /// Looks at what was reaped since: true if [`DirectPoster::post_one_in_run`] had no room and now has.
    #[inline(always)]
    pub(crate) fn found_room(&mut self) -> bool {
        let room = self.room();
        self.ring.plain_run() == 0 && self.ring.limit_run(room) > 0
    }

    /// Posts one segment; false, and nothing was done, if the SRQ is full.
    #[inline]
    pub(crate) fn post_one(&mut self, addr: u64, len: u32, lkey: u32, cookie: u64, pool: u32) -> bool {
        let segment = DataSeg::new(addr, len, lkey);
        self.room() > 0 && self.post_with(pool, |ring| ring.post_one(segment, cookie)).is_ok()
    }

    /// Posts any number of segments.
    pub(crate) fn post(&mut self, segments: &[Sge], info: WrInfo) -> Result<(), PostError> {
        let mut encoded = [DataSeg::new(0, 0, 0); MAX_IOV];
        let given = segments.len() as u32;
        let too_many = PostError::TooManySegments { given, most: self.ring.max_segments() };
        let encoded = encoded.get_mut(..segments.len()).ok_or(too_many)?;
        for (to, from) in encoded.iter_mut().zip(segments) {
            *to = DataSeg::new(from.addr, from.len, from.lkey);
        }
        self.post_encoded(encoded, info.cookie, info.pool)
    }

    /// The same, in the device's form already.
    #[inline]
    pub(crate) fn post_encoded(
        &mut self,
        segments: &[DataSeg],
        cookie: u64,
        pool: u32,
    ) -> Result<(), PostError> {
        let (given, most) = (segments.len() as u32, self.ring.max_segments());
        if given > most {
            return Err(PostError::TooManySegments { given, most });
        }
        // The number of segments is not why.
        let full = PostError::Full(Subtype::ResourceSrq);
        if self.room() == 0 {
            return Err(full);
        }
        self.post_with(pool, |ring| ring.post(segments, cookie)).map(drop).map_err(|_| full)
    }

    /// Posts by `post` into the next slot, for which there is room; takes slots back if the ring has none.
    #[inline(always)]
    fn post_with<T, E>(
        &mut self,
        pool: u32,
        post: impl Fn(&mut mlx5_direct::Srq) -> Result<T, E>,
    ) -> Result<T, E> {
        let next = self.ring.next_slots();
        if pool != 0 {
            self.slots.mark_pool(self.ring.next_slot(), pool);
        }
        let mut outcome = post(&mut self.ring);
        if outcome.is_ok() && next.start() < next.end() {
            return outcome;
        }
        if outcome.is_err() {
            self.reclaim_some();
            outcome = post(&mut self.ring);
        }
        self.reserved();
        if outcome.is_err() && pool != 0 {
            self.slots.mark_pool(self.ring.next_slot(), 0);
        }
        outcome
    }

    /// The ring may have reserved other slots for the posts to come.
    fn reserved(&mut self) {
        if self.far && self.ring.plain_run() > 1 {
            // They have the time of as many posts to arrive.
            self.ring.prefetch(FAR_RUN..2 * FAR_RUN);
        }
        let room = self.room();
        self.ring.limit_run(room);
    }

    /// Entries that are occupied: posted and not reaped, when so many were released.
    #[inline(always)]
    fn outstanding(&self, released: u32) -> u32 {
        let posted = self.ring.count().wrapping_add(self.never_posted);
        // Below 0 only until `never_posted` is known.
        (posted.wrapping_sub(released) as i32).max(0) as u32
    }

    /// How many more can be posted.
    #[inline(always)]
    fn room(&self) -> u32 {
        self.depth.saturating_sub(self.outstanding(self.slots.released()))
    }

    /// Takes some slots back that were reaped, so that a call costs the same at any depth.
    #[inline(never)]
    fn reclaim_some(&mut self) {
        // Many at once are fewer searches; but where they have to be fetched from far away, a call should not wait for many.
        let mut word = u32::from(self.ring.next_slot().0) / u64::BITS;
        for _ in 0..if self.far { 1 } else { SPARE / u64::BITS } {
            let Some(taken) = self.reclaim(word) else { return };
            word = taken + 1;
        }
    }

    /// Takes slots back that were reaped: those of one word, from `start` on round the ring. Says which.
    fn reclaim(&mut self, start: u32) -> Option<u32> {
        let (word, bits) = self.slots.take_returned(start, self.words)?;
        // A lone slot may join the ring's run, and then needs no search.
        if bits.is_power_of_two()
            && self.ring.complete(WqeIndex((word * u64::BITS + bits.trailing_zeros()) as u16)).is_ok()
        {
            return Some(word);
        }
        if let Err(error) = self.ring.complete_word(word, bits) {
            self.reclaim_one_by_one(word, bits, error);
        }
        Some(word)
    }

    #[cold]
    fn reclaim_one_by_one(&mut self, word: u32, bits: u64, error: mlx5_direct::NotInUse) {
        tracing::error!(%error, srq = self.srq, "a slot came back that was not posted: is the device well?");
        let slots = (0..u64::BITS).filter(|bit| bits >> bit & 1 == 1);
        for slot in slots.map(|bit| WqeIndex((word * u64::BITS + bit) as u16)) {
            let refused = self.ring.complete(slot).is_err();
            self.never_posted = self.never_posted.wrapping_add(refused.into());
        }
    }

    /// Exact counts (R36, R37).
    pub(crate) fn counts(&self) -> SrqCounts {
        let Counts { released, unreaped } = self.slots.counts();
        let outstanding = self.outstanding(released);
        SrqCounts { depth: self.depth, available: outstanding.saturating_sub(unreaped), outstanding }
    }

    /// A new depth, not below what is outstanding.
    pub(crate) fn resize(&mut self, srq: &DirectSrq, depth: u32) -> Result<()> {
        let max = self.ring.max_depth();
        if depth > max {
            return Err(Error::resources(
                Subtype::ResourceMemory,
                format!("this device cannot deepen an SRQ, and this one has room for {max}"),
            ));
        }
        while self.reclaim(0).is_some() {}
        let slots = slots_for(depth, max).max(self.ring.posted());
        self.ring
            .set_depth(slots)
            .map_err(|error| Error::new(ReturnType::InvalidState, Subtype::None, error.to_string()))?;
        self.depth = depth;
        // A smaller depth leaves the ring as it was; so much of it is enough.
        self.words = self.words.max(slots / u64::BITS + 1);
        self.far |= slots > FAR;
        self.reserved();
        srq.depth.store(depth, Ordering::Relaxed);
        Ok(())
    }
}

/// Slots that an SRQ of this depth goes round, of at most `max`: more than it has entries, so that slots that come back are
/// taken back many at a time.
fn slots_for(depth: u32, max: u32) -> u32 {
    ((depth + SPARE).next_multiple_of(u64::BITS) - 1).min(max)
}

/// Slots that may wait to be taken back.
const SPARE: u32 = 512;

/// From so many slots on their WQEs and cookies, 40 bytes each, fill a third of a second-level cache of 1 MiB, and are fetched ahead.
const FAR: u32 = 8192;

/// As many are fetched at once.
const FAR_RUN: u32 = 64;

fn no_memory() -> Error {
    Error::resources(Subtype::ResourceSrq, "no memory for the entries of the SRQ")
}

/// The CQs of one EVD.
#[derive(Debug)]
pub(crate) struct DirectCqs {
    /// Of requests, and of receives of plain EPs.
    requests: VerbsCq,
    context: Context,
    channel: Option<CompChannel>,
    token: u64,
    receives: Vec<ReceiveCq>,
    /// CQs of receives made so far: their tokens are never used twice.
    made: u64,
}

/// The CQ of receives from one SRQ.
#[derive(Debug)]
pub(crate) struct ReceiveCq {
    srq: u32,
    /// UD EPs receive here as well: who has sent a message is worth a look.
    datagrams: bool,
    token: u64,
    cq: Adopted<mlx5_direct::Cq, Cq>,
}

/// The operation of a receive.
#[inline]
pub(crate) fn operation(op: RecvOp) -> DtoOp {
    match op {
        RecvOp::Send => DtoOp::Receive,
        RecvOp::SendImm => DtoOp::ReceiveImmediate,
        RecvOp::SendInval => DtoOp::ReceiveWithInvalidate,
        RecvOp::WriteImm => DtoOp::ReceiveRdmaWriteImmediate,
    }
}

/// What a receive is counted as.
#[inline(always)]
pub(crate) fn counted_as(op: RecvOp) -> ReceivedAs {
    match op {
        RecvOp::WriteImm => ReceivedAs::RdmaImmediate,
        RecvOp::Send | RecvOp::SendInval => ReceivedAs::Plain,
        RecvOp::SendImm => ReceivedAs::Immediate,
    }
}

/// The tokens of one EVD's CQs differ above these bits.
const EVD_BITS: u32 = 48;

/// The EVD of which a CQ has this token.
pub(crate) fn evd_of(token: u64) -> u64 {
    token & ((1 << EVD_BITS) - 1)
}

impl DirectCqs {
    /// `requests` is the EVD's verbs CQ; direct ones come with the SRQs.
    pub(crate) fn new(requests: Cq, channel: Option<CompChannel>) -> Self {
        Self {
            context: requests.context().clone(),
            token: requests.token(),
            requests: VerbsCq { cq: requests },
            channel,
            receives: Vec::new(),
            made: 0,
        }
    }

    pub(crate) fn requests(&self) -> &Cq {
        &self.requests.cq
    }

    /// The CQ of receives from this SRQ, while it is open.
    pub(crate) fn receives(&self, srq: u32) -> Option<Cq> {
        self.receives.iter().find(|cq| cq.srq == srq).map(|cq| cq.cq.verbs().clone())
    }

    /// Makes the CQ of receives from this SRQ.
    pub(crate) fn open(&mut self, srq: &DirectSrq) -> Result<()> {
        self.receives.try_reserve(1)?;
        self.made += 1;
        let token = self.token | self.made << EVD_BITS;
        let cq = Cq::create(&self.context, srq.room, self.channel.as_ref(), 0, token)
            .map_err(|e| Error::verb(Subtype::ResourceTevd, e))?;
        self.receives.push(ReceiveCq { srq: srq.id, datagrams: false, token, cq: adopt::cq(cq)? });
        Ok(())
    }

    /// Forgets the CQ of receives from this SRQ, which no QP uses any more; calls `left` with what it still has.
    pub(crate) fn close(&mut self, srq: u32, mut left: impl FnMut(&Completion)) {
        let Some(at) = self.receives.iter().position(|cq| cq.srq == srq) else { return };
        let mut gone = self.receives.swap_remove(at);
        let mut batch = Vec::new();
        loop {
            let polled = gone.poll(&mut batch, CLOSE_BATCH);
            batch.drain(..).for_each(|completion| left(&completion));
            if !polled.is_ok_and(|n| n == CLOSE_BATCH) {
                return;
            }
        }
    }

    /// Adds up to `most` completions of receives, and as many of the verbs CQ if `requests` says so.
    #[inline]
    pub(crate) fn poll(&mut self, into: &mut Vec<Completion>, most: usize, requests: bool) -> Result<()> {
        let start = into.len();
        let mut room = most;
        for cq in &mut self.receives {
            room -= cq.poll(into, room)?;
        }
        if requests {
            let received = into.len() - start;
            self.requests.poll(into, most)?;
            // A request that was done before a message came stands before it, as on a CQ that both share.
            into[start..].rotate_left(received);
        }
        Ok(())
    }

    /// A UD EP receives from this SRQ here.
    pub(crate) fn expect_datagrams(&mut self, srq: u32) {
        self.receives.iter_mut().filter(|cq| cq.srq == srq).for_each(|cq| cq.datagrams = true);
    }

    /// The CQs of receives.
    #[inline(always)]
    pub(crate) fn receive_cqs(&mut self) -> &mut [ReceiveCq] {
        &mut self.receives
    }

    /// Asks for one event on the channel at the next completion (or the next solicited or failed one).
    pub(crate) fn arm(&mut self, solicited_only: bool) -> Result<()> {
        let what = if solicited_only { ArmFor::Solicited } else { ArmFor::Any };
        for cq in &mut self.receives {
            cq.cq.arm(what);
        }
        self.requests.arm(solicited_only)
    }

    /// Room for the completions of the verbs CQ.
    pub(crate) fn ensure(&mut self, depth: u32) -> Result<()> {
        self.requests.ensure(depth)
    }

    /// An event with this CQ token was read from the channel.
    pub(crate) fn event(&mut self, token: u64) {
        if let Some(cq) = self.receives.iter_mut().find(|cq| cq.token == token) {
            cq.cq.event_received();
        }
    }
}

const CLOSE_BATCH: usize = 8;

impl ReceiveCq {
    /// The next completion if it is a message, given back to the device at once: its slot may be posted again. In the device's
    /// words, so that nothing is copied before it is known to be wanted.
    #[inline(always)]
    pub(crate) fn next_message(&mut self) -> Option<RecvCqe> {
        let cqe = self.cq.poll_if_receive()?;
        self.cq.release();
        Some(cqe)
    }

    /// Whether there is something that [`ReceiveCq::next_message`] does not take.
    #[inline(always)]
    pub(crate) fn has_other(&self) -> bool {
        self.cq.is_ready()
    }

    /// What the message of that CQE, the last one, is in general.
    #[inline(always)]
    pub(crate) fn translate(&self, cqe: &RecvCqe) -> Completion {
        self.with_source(received(self.srq, cqe))
    }

    #[inline(always)]
    fn with_source(&self, completion: Completion) -> Completion {
        if self.datagrams {
            Completion { source_qpn: self.cq.source_qpn(), ..completion }
        } else {
            completion
        }
    }

    /// The next completion; those that say nothing are skipped.
    #[inline]
    fn next(&mut self) -> Result<Option<Completion>> {
        loop {
            match self.cq.poll() {
                // Polling has given everything back to the device.
                Ok(None) => return Ok(None),
                Ok(Some(completion)) => {
                    if let Some(translated) = translate(self.srq, &completion) {
                        return Ok(Some(self.with_source(translated)));
                    }
                }
                Err(error @ CqeError::Opcode { .. }) => tracing::error!(%error, "a completion was skipped"),
                Err(error) => {
                    let text = format!("the completion queue is broken: {error}");
                    return Err(Error::new(ReturnType::InternalError, Subtype::None, text));
                }
            }
        }
    }

    /// Adds up to `most` completions and says how many; an error only if there is none before it.
    #[inline]
    fn poll(&mut self, into: &mut Vec<Completion>, most: usize) -> Result<usize> {
        let mut n = 0;
        while n < most {
            match self.next() {
                Ok(Some(completion)) => into.push(completion),
                Ok(None) => return Ok(n),
                Err(_) if n > 0 => break,
                Err(error) => return Err(error),
            }
            n += 1;
        }
        // The slots polled here are posted again before the queue is found empty.
        self.cq.release();
        Ok(n)
    }
}

/// What a receive CQE says.
#[inline]
fn received(srq: u32, cqe: &RecvCqe) -> Completion {
    Completion {
        token: WrId::Srq { srq, entry: u32::from(cqe.slot.0) },
        qpn: cqe.qpn,
        status: DtoStatus::Success,
        op: operation(cqe.op),
        length: cqe.byte_count,
        immediate: cqe.immediate(),
        invalidated: cqe.invalidated_rkey(),
        source_qpn: 0,
    }
}

fn translate(srq: u32, completion: &mlx5_direct::Completion) -> Option<Completion> {
    let token = |slot: u16| WrId::Srq { srq, entry: u32::from(slot) };
    match completion {
        mlx5_direct::Completion::Recv(cqe) => Some(received(srq, cqe)),
        // The QP was made without scatter to CQE: a device that does it all the same has not written the buffer.
        mlx5_direct::Completion::RecvScattered(cqe) => {
            Some(Completion { status: DtoStatus::LocalEp, ..received(srq, &cqe.receive) })
        }
        mlx5_direct::Completion::RecvError(error) => Some(Completion {
            token: token(error.wqe_counter),
            qpn: error.qpn,
            status: status(in_verbs_terms(error.syndrome), token(error.wqe_counter)),
            op: DtoOp::Receive,
            length: 0,
            immediate: None,
            invalidated: None,
            source_qpn: 0,
        }),
        // No QP has this CQ for its requests.
        other => {
            tracing::error!(?other, "a request completed on a receive queue");
            None
        }
    }
}

/// The status that `ibv_poll_cq` would give.
fn in_verbs_terms(syndrome: Syndrome) -> WcStatus {
    match syndrome {
        Syndrome::LocalLength => WcStatus::LocalLengthError,
        Syndrome::LocalQpOperation => WcStatus::LocalQpOperationError,
        Syndrome::LocalProtection | Syndrome::OdpPageFault => WcStatus::LocalProtectionError,
        Syndrome::Flushed => WcStatus::WorkRequestFlushed,
        Syndrome::MwBind => WcStatus::MwBindError,
        Syndrome::BadResponse => WcStatus::BadResponse,
        Syndrome::LocalAccess => WcStatus::LocalAccessError,
        Syndrome::RemoteInvalidRequest => WcStatus::RemoteInvalidRequest,
        Syndrome::RemoteAccess => WcStatus::RemoteAccessError,
        Syndrome::RemoteOperation => WcStatus::RemoteOperationError,
        Syndrome::TransportRetries => WcStatus::RetryExceeded,
        Syndrome::RnrRetries => WcStatus::RnrRetryExceeded,
        Syndrome::RemoteAborted => WcStatus::RemoteAborted,
        Syndrome::Other(_) => WcStatus::General,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mlx5_direct::{ErrorCqe, cqe};

    fn received(edit: impl Fn(&mut [u8; 64])) -> Completion {
        let mut bytes = [0; 64];
        bytes[44..48].copy_from_slice(&9_u32.to_be_bytes());
        bytes[36..40].copy_from_slice(&0x0102_0304_u32.to_be_bytes());
        bytes[56..60].copy_from_slice(&0x42_u32.to_be_bytes());
        bytes[60..62].copy_from_slice(&3_u16.to_be_bytes());
        edit(&mut bytes);
        let decoded = cqe::decode(&cqe::RawCqe::from_bytes(&bytes)).unwrap();
        translate(7, &decoded).unwrap()
    }

    #[test]
    fn a_message_names_its_entry_and_says_what_it_carried() {
        for (opcode, op, immediate, invalidated) in [
            (1, DtoOp::ReceiveRdmaWriteImmediate, Some(0x0102_0304), None),
            (2, DtoOp::Receive, None, None),
            (3, DtoOp::ReceiveImmediate, Some(0x0102_0304), None),
            (4, DtoOp::ReceiveWithInvalidate, None, Some(0x0102_0304)),
        ] {
            let got = received(|bytes| bytes[63] = opcode << 4);
            assert_eq!((got.token, got.qpn), (WrId::Srq { srq: 7, entry: 3 }, 0x42));
            assert_eq!((got.status, got.op, got.length), (DtoStatus::Success, op, 9));
            assert_eq!((got.immediate, got.invalidated), (immediate, invalidated));
        }
    }

    #[test]
    fn a_payload_that_is_not_in_its_buffer_is_no_success() {
        assert_eq!(received(|bytes| bytes[63] = 2 << 4 | 1 << 2).status, DtoStatus::LocalEp);
    }

    #[test]
    fn failed_receives_keep_their_entry_and_have_the_status_of_the_verbs_path() {
        for (syndrome, expected) in [
            (0x01, DtoStatus::LocalLength),
            (0x04, DtoStatus::LocalProtection),
            (0x05, DtoStatus::Flushed),
            (0x11, DtoStatus::LocalProtection),
            (0x7f, DtoStatus::LocalEp),
        ] {
            let got = received(|bytes| {
                bytes[55] = syndrome;
                bytes[63] = 14 << 4;
            });
            assert_eq!((got.token, got.status), (WrId::Srq { srq: 7, entry: 3 }, expected));
        }
    }

    #[test]
    fn the_ring_has_whole_words_beyond_the_depth_where_the_device_has_them() {
        for (depth, max, slots) in [(1, 32_767, 575), (64, 32_767, 575), (65, 32_767, 639), (16, 31, 31)] {
            assert_eq!(slots_for(depth, max), slots, "depth {depth} of {max}");
        }
        assert_eq!(slots_for(MAX_DEPTH, MAX_DEPTH), MAX_DEPTH);
    }

    #[test]
    fn requests_are_nobodys_receives() {
        let error = ErrorCqe {
            syndrome: Syndrome::Flushed,
            vendor_syndrome: 0,
            qpn: 1,
            srqn_or_user_index: 0,
            wqe_counter: 0,
        };
        assert!(translate(7, &mlx5_direct::Completion::SendError(error)).is_none());
    }

    #[test]
    fn tokens_of_an_evds_cqs_lead_back_to_it() {
        assert_eq!(evd_of(5), 5);
        assert_eq!(evd_of(5 | 3 << EVD_BITS), 5);
    }
}
