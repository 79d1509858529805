//! The direct path of mlx5 devices: SRQs, and the CQs of their receives, driven without libmlx5.
//!
//! An entry of an SRQ is a slot of its ring, from the post until the consumer has reaped the completion; so a slot that is
//! posted again never has an unreaped completion, and the ring's own count is the SRQ's `outstanding`.
//!
//! What an EVD polls is split. Send queues, and receive queues of plain EPs, are libmlx5's, which only `ibv_poll_cq`
//! keeps up to date: they have one verbs CQ. For each SRQ whose EPs receive here there is one direct CQ. All report to
//! one channel. A direct CQ cannot be resized, so it is made when the first EP of an SRQ comes, with room for as many
//! entries as that SRQ can ever have (2 MiB for the 32,767 of most devices), and goes with the last.
//!
//! The device gives everything back when a QP fails: there are no lost buffers to look for.

mod handover;

use self::handover::Taken;
use super::ledger::{Lost, Tag};
use super::verbs::{VerbsCq, status};
use super::{Completion, CompletionQueue, ReceiveQueue, SrqCounts, Token};
use crate::error::PostError;
use crate::srq::MAX_IOV;
use crate::types::{DtoOp, DtoStatus};
use crate::{Error, Result, ReturnType, Subtype};
use mlx5_direct::{ArmFor, CqeError, DataSeg, DepthError, Payload, RecvOp, Syndrome, WqeIndex};
use rxe_fallback::{CompChannel, Context, Cq, Pd, Qp, QpInit, Sge, Srq, WcStatus};
use std::collections::TryReserveError;
use std::sync::{Mutex, MutexGuard};

/// The most entries that a ring can have.
pub(crate) const MAX_DEPTH: u32 = mlx5_direct::wqe::MAX_WQE_COUNT - 1;

/// Why this device's queues cannot be driven here.
pub(crate) fn obstacle(context: &Context) -> Option<String> {
    // libmlx5 turns signatures on when this variable exists; nobody here writes them.
    if std::env::var_os("MLX5_SRQ_SIGNATURE").is_some() {
        return Some("MLX5_SRQ_SIGNATURE is set: unset it".to_owned());
    }
    handover::supported(context).err().map(|error| error.to_string())
}

/// Creates a QP that receives from a direct SRQ.
pub(crate) fn create_qp(pd: &Pd, init: &QpInit<'_>) -> Result<Qp, rxe_fallback::Error> {
    handover::qp(pd, init)
}

/// An SRQ of the device, with its entries.
#[derive(Debug)]
pub(crate) struct DirectSrq {
    /// Names it in completions.
    id: u32,
    state: Mutex<State>,
    verbs: Srq,
}

#[derive(Debug)]
struct State {
    ring: Taken<mlx5_direct::Srq, Srq>,
    entries: Vec<Entry>,
    available: u32,
}

#[derive(Clone, Copy, Debug, Default)]
struct Entry {
    tag: Tag,
    place: Place,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Place {
    #[default]
    Free,
    Posted,
    Completed,
}

impl DirectSrq {
    /// Takes over an SRQ to which nothing was posted; up to `depth` entries of it are used at first.
    pub(crate) fn new(srq: Srq, id: u32, depth: u32) -> Result<Self> {
        // What the ring needs beside the device's memory is given back at once: this only asks whether it is there.
        let no_memory = |e| no_memory(Subtype::ResourceSrq, &e);
        drop(reserved::<u8>(RING_TABLES).map_err(no_memory)?);
        let mut entries = Vec::new();
        make_room(&mut entries, depth).map_err(no_memory)?;
        let verbs = srq.clone();
        let ring = handover::srq(srq, depth)?;
        Ok(Self { id, state: Mutex::new(State { ring, entries, available: 0 }), verbs })
    }

    pub(crate) fn verbs(&self) -> &Srq {
        &self.verbs
    }

    /// The most entries that it can be made to have.
    fn room(&self) -> u32 {
        self.state().ring.max_depth()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }
}

impl ReceiveQueue for DirectSrq {
    #[inline]
    fn post(&self, segments: &[Sge], tag: Tag) -> Result<(), PostError> {
        let mut state = self.state();
        let slot = match segments {
            [one] => state.ring.post_one(segment(one), 0).map_err(Into::into),
            many => {
                let mut segs = [DataSeg::new(0, 0, 0); MAX_IOV];
                for (to, from) in segs.iter_mut().zip(many) {
                    *to = segment(from);
                }
                state.ring.post(&segs[..many.len()], 0)
            }
        };
        let slot = slot.map_err(|reason| match reason {
            mlx5_direct::PostError::Full => PostError::Full(Subtype::ResourceSrq),
            mlx5_direct::PostError::TooManySegments => {
                PostError::TooManySegments { given: segments.len() as u32, most: state.ring.max_segments() }
            }
        })?;
        // Whoever harvests its completion meanwhile waits for the lock.
        state.entries[slot.0 as usize] = Entry { tag, place: Place::Posted };
        state.available += 1;
        Ok(())
    }

    fn counts(&self) -> SrqCounts {
        let state = self.state();
        let ring = &state.ring;
        SrqCounts { depth: ring.depth(), available: state.available, outstanding: ring.posted() }
    }

    fn complete(&self, entry: u32, _ep: u64) -> Option<Tag> {
        let mut state = self.state();
        let slot = state.entries.get_mut(entry as usize)?;
        if slot.place != Place::Posted {
            return None;
        }
        slot.place = Place::Completed;
        let tag = slot.tag;
        state.available -= 1;
        Some(tag)
    }

    fn release(&self, entry: u32) {
        let mut state = self.state();
        let Some(slot) = state.entries.get_mut(entry as usize) else { return };
        if slot.place != Place::Completed {
            return;
        }
        slot.place = Place::Free;
        if let Err(error) = state.ring.complete(WqeIndex(entry as u16)) {
            tracing::error!(%error, srq = self.id, "an entry was free before it was released");
        }
    }

    fn ep_connected(&self, _ep: u64) {}

    fn ep_drained(&self, _ep: u64) {}

    fn next_lost(&self) -> Option<Lost> {
        None
    }

    fn resize(&self, depth: u32) -> Result<()> {
        let mut state = self.state();
        make_room(&mut state.entries, depth).map_err(|e| no_memory(Subtype::ResourceMemory, &e))?;
        state.ring.set_depth(depth).map_err(|error| match error {
            DepthError::OutOfRange { max, .. } => Error::resources(
                Subtype::ResourceMemory,
                format!("this device cannot deepen an SRQ, and this one has room for {max}"),
            ),
            other => Error::new(ReturnType::InvalidState, Subtype::None, other.to_string()),
        })
    }

    fn arm_limit(&self, limit: u32) -> Result<()> {
        self.verbs.arm_limit(limit).map_err(|e| Error::verb(Subtype::ResourceSrq, e))
    }

    fn armed_limit(&self) -> Result<u32> {
        self.verbs.query().map(|attr| attr.srq_limit).map_err(|e| Error::verb(Subtype::ResourceSrq, e))
    }
}

/// Bytes that the tables of the largest ring take, generously.
const RING_TABLES: usize = 1 << 20;

/// Memory that may not be there, which is no reason to end the process.
fn reserved<T>(n: usize) -> Result<Vec<T>, TryReserveError> {
    let mut memory = Vec::new();
    memory.try_reserve_exact(n)?;
    Ok(memory)
}

/// A place for each slot that a ring of this depth uses: one more than it posts.
fn make_room(entries: &mut Vec<Entry>, depth: u32) -> Result<(), TryReserveError> {
    let slots = depth as usize + 1;
    if slots > entries.len() {
        entries.try_reserve_exact(slots - entries.len())?;
        entries.resize(slots, Entry::default());
    }
    Ok(())
}

fn no_memory(sub: Subtype, error: &TryReserveError) -> Error {
    Error::resources(sub, format!("no memory for the entries of the SRQ: {error}"))
}

fn segment(sge: &Sge) -> DataSeg {
    DataSeg::new(sge.addr, sge.len, sge.lkey)
}

/// The CQs of one EVD.
#[derive(Debug)]
pub(crate) struct DirectCqs {
    /// Of requests, and of receives of plain EPs.
    requests: VerbsCq,
    context: Context,
    channel: Option<CompChannel>,
    token: u64,
    receives: Mutex<Receives>,
}

#[derive(Debug, Default)]
struct Receives {
    cqs: Vec<ReceiveCq>,
    /// CQs made so far: their tokens are never used twice.
    made: u64,
}

/// The CQ of receives from one SRQ.
#[derive(Debug)]
struct ReceiveCq {
    srq: u32,
    token: u64,
    cq: Taken<mlx5_direct::Cq, Cq>,
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
            receives: Mutex::default(),
        }
    }

    pub(crate) fn requests(&self) -> &Cq {
        &self.requests.cq
    }

    /// The CQ of receives from this SRQ, while it is open.
    pub(crate) fn receives(&self, srq: u32) -> Option<Cq> {
        self.lock().cqs.iter().find(|cq| cq.srq == srq).map(|cq| cq.cq.verbs().clone())
    }

    /// Makes the CQ of receives from this SRQ.
    pub(crate) fn open(&self, srq: &DirectSrq) -> Result<()> {
        let mut receives = self.lock();
        receives.made += 1;
        let token = self.token | receives.made << EVD_BITS;
        let cq = Cq::create(&self.context, srq.room(), self.channel.as_ref(), 0, token)
            .map_err(|e| Error::verb(Subtype::ResourceTevd, e))?;
        receives.cqs.push(ReceiveCq { srq: srq.id, token, cq: handover::cq(cq)? });
        Ok(())
    }

    /// Forgets the CQ of receives from this SRQ, which no QP uses any more; what it still has goes to `each`.
    pub(crate) fn close(&self, srq: u32, mut each: impl FnMut(Completion)) {
        let mut receives = self.lock();
        let Some(at) = receives.cqs.iter().position(|cq| cq.srq == srq) else { return };
        let mut gone = receives.cqs.swap_remove(at);
        drop(receives);
        let mut one = [None];
        while gone.poll(&mut one).is_ok_and(|n| n > 0) {
            one[0].take().into_iter().for_each(&mut each);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Receives> {
        self.receives.lock().unwrap()
    }
}

impl CompletionQueue for DirectCqs {
    fn poll(&self, into: &mut [Option<Completion>]) -> Result<usize> {
        let mut received = 0;
        for cq in &mut self.lock().cqs {
            received += cq.poll(&mut into[received..])?;
        }
        let requests = self.requests.poll(&mut into[received..])?;
        // A request that was done before a message came stands before it, as on a CQ that both share.
        if received > 0 && requests > 0 {
            into[..received + requests].rotate_left(received);
        }
        Ok(received + requests)
    }

    fn arm(&self, solicited_only: bool) -> Result<()> {
        let what = if solicited_only { ArmFor::Solicited } else { ArmFor::Any };
        for cq in &mut self.lock().cqs {
            cq.cq.arm(what);
        }
        self.requests.arm(solicited_only)
    }

    fn ensure(&self, depth: u32) -> Result<()> {
        self.requests.ensure(depth)
    }

    fn event(&self, token: u64) {
        if let Some(cq) = self.lock().cqs.iter_mut().find(|cq| cq.token == token) {
            cq.cq.event_received();
        }
    }
}

impl ReceiveCq {
    /// Takes up to `into.len()` completions; an error only if there is none before it.
    fn poll(&mut self, into: &mut [Option<Completion>]) -> Result<usize> {
        let mut n = 0;
        while n < into.len() {
            match self.cq.poll() {
                Ok(Some(completion)) => {
                    if let Some(translated) = translate(self.srq, &completion) {
                        into[n] = Some(translated);
                        n += 1;
                    }
                }
                Ok(None) => return Ok(n),
                Err(error @ CqeError::Opcode { .. }) => tracing::error!(%error, "a completion was skipped"),
                Err(_) if n > 0 => break,
                Err(error) => {
                    let text = format!("the completion queue is broken: {error}");
                    return Err(Error::new(ReturnType::InternalError, Subtype::None, text));
                }
            }
        }
        // The slots polled here are posted again before the queue is found empty.
        self.cq.release();
        Ok(n)
    }
}

fn translate(srq: u32, completion: &mlx5_direct::Completion) -> Option<Completion> {
    let token = |slot: u16| Token::Srq { srq, entry: u32::from(slot) };
    match completion {
        mlx5_direct::Completion::Recv(cqe) => Some(Completion {
            token: token(cqe.slot.0),
            qpn: cqe.qpn,
            // The QP was made without scatter to CQE: a device that does it all the same has not written the buffer.
            status: if cqe.payload == Payload::Buffer { DtoStatus::Success } else { DtoStatus::LocalEp },
            op: match cqe.op {
                RecvOp::Send => DtoOp::Receive,
                RecvOp::SendImm => DtoOp::ReceiveImmediate,
                RecvOp::SendInval => DtoOp::ReceiveWithInvalidate,
                RecvOp::WriteImm => DtoOp::ReceiveRdmaWriteImmediate,
            },
            length: cqe.byte_count,
            immediate: cqe.immediate(),
            invalidated: cqe.invalidated_rkey(),
        }),
        mlx5_direct::Completion::RecvError(error) => Some(Completion {
            token: token(error.wqe_counter),
            qpn: error.qpn,
            status: status(in_verbs_terms(error.syndrome), token(error.wqe_counter)),
            op: DtoOp::Receive,
            length: 0,
            immediate: None,
            invalidated: None,
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
            assert_eq!((got.token, got.qpn), (Token::Srq { srq: 7, entry: 3 }, 0x42));
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
            assert_eq!((got.token, got.status), (Token::Srq { srq: 7, entry: 3 }, expected));
        }
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
