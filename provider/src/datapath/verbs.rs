//! The portable path: standard verbs on any device.
//!
//! Entries live in a [`Ledger`] behind a lock that is held for a few instructions and hardly ever contended (the
//! poster and the reaper of one SRQ). The work request's id is the entry, so completions may come in any order (R93).

use super::ledger::{Ledger, Lost, Tag};
use super::{Completion, SrqCounts, Token};
use crate::error::PostError;
use crate::types::{DtoOp, DtoStatus};
use crate::{Error, Result, ReturnType, Subtype};
use rxe_fallback::{Cq, PostError as Refusal, Sge, Srq, WcOpcode, WcStatus};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard};

/// An SRQ of the device, with its entries.
#[derive(Debug)]
pub(crate) struct VerbsSrq {
    srq: Srq,
    id: u32,
    /// Whether the device can change the depth; if not, the SRQ was made as deep as the device allows.
    resizable: bool,
    state: Mutex<State>,
    /// [`Ledger::has_suspects`], written under the lock.
    suspects: AtomicBool,
}

#[derive(Debug)]
struct State {
    ledger: Ledger,
    /// How many buffers the device's queue takes.
    room: u32,
}

impl VerbsSrq {
    pub(crate) fn new(srq: Srq, id: u32, depth: u32, room: u32, resizable: bool) -> Self {
        let state = Mutex::new(State { ledger: Ledger::new(depth), room });
        Self { srq, id, resizable, state, suspects: AtomicBool::new(false) }
    }

    pub(crate) fn verbs(&self) -> &Srq {
        &self.srq
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }
}

impl VerbsSrq {
    pub(crate) fn post(&self, segments: &[Sge], tag: Tag) -> Result<(), PostError> {
        let mut state = self.state();
        let entry = state.ledger.post(tag).ok_or(PostError::Full(Subtype::ResourceSrq))?;
        let token = Token::Srq { srq: self.id, entry }.pack();
        self.srq.post_one(token, segments).map_err(|reason| {
            state.ledger.unpost(entry);
            refused(reason)
        })
    }

    pub(crate) fn counts(&self) -> SrqCounts {
        let ledger = &self.state().ledger;
        SrqCounts { depth: ledger.limit(), available: ledger.available(), outstanding: ledger.outstanding() }
    }

    pub(crate) fn complete(&self, entry: u32, ep: u64) -> Option<Tag> {
        self.state().ledger.complete(entry, ep)
    }

    pub(crate) fn release(&self, entry: u32) {
        self.state().ledger.release(entry);
    }

    pub(crate) fn ep_connected(&self, ep: u64) {
        self.state().ledger.ep_connected(ep);
    }

    pub(crate) fn ep_drained(&self, ep: u64) {
        let ledger = &mut self.state().ledger;
        ledger.ep_drained(ep);
        self.suspects.store(ledger.has_suspects(), Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn next_lost(&self) -> Option<Lost> {
        // Whoever completed an entry under the lock sees what was written under it before.
        if !self.suspects.load(Ordering::Relaxed) {
            return None;
        }
        let ledger = &mut self.state().ledger;
        let lost = ledger.next_lost();
        self.suspects.store(ledger.has_suspects(), Ordering::Relaxed);
        lost
    }

    pub(crate) fn resize(&self, depth: u32) -> Result<()> {
        let mut state = self.state();
        if depth > state.room {
            if !self.resizable {
                return Err(Error::resources(
                    Subtype::ResourceMemory,
                    format!("this device cannot deepen an SRQ, and this one has room for {}", state.room),
                ));
            }
            self.srq.resize(depth).map_err(|e| {
                Error::new(
                    ReturnType::InsufficientResources,
                    Subtype::ResourceMemory,
                    format!("the device could not make the SRQ {depth} deep"),
                )
                .because(e)
            })?;
            state.room = depth;
        }
        state.ledger.set_limit(depth);
        Ok(())
    }
}

/// A CQ of the device.
#[derive(Debug)]
pub(crate) struct VerbsCq {
    pub(crate) cq: Cq,
}

impl VerbsCq {
    /// Adds up to `most` completions.
    pub(crate) fn poll(&self, into: &mut Vec<Completion>, most: usize) -> Result<()> {
        self.cq
            .poll_each(most, |completion| into.push(translate(&completion)))
            .map_err(|e| Error::verb(Subtype::ResourceTevd, e))?;
        Ok(())
    }

    pub(crate) fn arm(&self, solicited_only: bool) -> Result<()> {
        self.cq.arm(solicited_only).map_err(|e| Error::verb(Subtype::ResourceTevd, e))
    }

    pub(crate) fn ensure(&self, depth: u32) -> Result<()> {
        if depth <= self.cq.depth() {
            return Ok(());
        }
        self.cq.resize(depth).map_err(|e| {
            Error::new(
                ReturnType::InsufficientResources,
                Subtype::ResourceTevd,
                format!("the device could not make the completion queue {depth} deep"),
            )
            .because(e)
        })
    }
}

/// Why the device refused a work request that the object above had checked.
pub(crate) fn refused(reason: Refusal) -> PostError {
    match reason {
        Refusal::TooManySegments { given, max } => {
            PostError::TooManySegments { given: given as u32, most: max as u32 }
        }
        other => PostError::Device(other.errno()),
    }
}

fn translate(raw: &rxe_fallback::Completion) -> Completion {
    let token = Token::unpack(raw.wr_id);
    Completion {
        token,
        qpn: raw.qp_num,
        status: status(raw.status, token),
        op: match raw.opcode {
            Some(WcOpcode::RecvRdmaWithImm) => DtoOp::ReceiveRdmaWriteImmediate,
            _ if raw.invalidated_rkey.is_some() => DtoOp::ReceiveWithInvalidate,
            _ if raw.imm.is_some() => DtoOp::ReceiveImmediate,
            _ => DtoOp::Receive,
        },
        length: raw.byte_len,
        immediate: raw.imm,
        invalidated: raw.invalidated_rkey,
        source_qpn: raw.src_qp,
    }
}

/// The DAT status for a verbs status. A receive that is too long ends as a length error on some devices and as an
/// invalid request or a local operation error on others (R80). rxe gives the last for a dead MR too: whoever knows the
/// LMRs tells the two apart.
pub(crate) fn status(raw: WcStatus, token: Token) -> DtoStatus {
    let receive = !matches!(token, Token::Request(_));
    match raw {
        WcStatus::Success => DtoStatus::Success,
        WcStatus::WorkRequestFlushed => DtoStatus::Flushed,
        WcStatus::LocalLengthError => DtoStatus::LocalLength,
        WcStatus::RemoteInvalidRequest | WcStatus::LocalQpOperationError if receive => DtoStatus::LocalLength,
        WcStatus::LocalQpOperationError | WcStatus::LocalEecOperationError => DtoStatus::LocalEp,
        WcStatus::LocalProtectionError | WcStatus::LocalAccessError => DtoStatus::LocalProtection,
        WcStatus::MwBindError => DtoStatus::RmrOperationFailed,
        WcStatus::BadResponse => DtoStatus::BadResponse,
        WcStatus::RemoteAccessError => DtoStatus::RemoteAccess,
        WcStatus::RemoteInvalidRequest | WcStatus::RemoteOperationError => DtoStatus::RemoteResponder,
        WcStatus::RnrRetryExceeded => DtoStatus::ReceiverNotReady,
        WcStatus::RetryExceeded | WcStatus::ResponseTimeout => DtoStatus::Transport,
        _ => DtoStatus::LocalEp,
    }
}
