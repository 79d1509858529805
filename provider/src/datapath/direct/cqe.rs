//! What an entry of a CQ says, in terms of the provider.

use crate::datapath::completion::{Completion, WrId};
use crate::datapath::verbs::status;
use crate::types::{DtoOp, DtoStatus};
use mlx5_direct::{ErrorCqe, RecvCqe, RecvOp, Syndrome};
use rxe_fallback::WcStatus;

/// The operation of a receive.
#[inline]
fn operation(op: RecvOp) -> DtoOp {
    match op {
        RecvOp::Send => DtoOp::Receive,
        RecvOp::SendImm => DtoOp::ReceiveImmediate,
        RecvOp::SendInval => DtoOp::ReceiveWithInvalidate,
        RecvOp::WriteImm => DtoOp::ReceiveRdmaWriteImmediate,
    }
}

/// Converts a receive CQE into a completion.
#[inline]
fn received(srq: Option<u32>, cqe: &RecvCqe) -> Completion {
    Completion {
        wr_id: receive(srq, cqe.slot.0),
        qpn: cqe.qpn,
        status: DtoStatus::Success,
        op: operation(cqe.op),
        length: cqe.byte_count,
        immediate: cqe.immediate(),
        invalidated: cqe.invalidated_rkey(),
        source_qpn: 0,
    }
}

/// The receive in this slot of the SRQ, or of the QP's own queue.
#[inline]
pub(super) fn receive(srq: Option<u32>, slot: u16) -> WrId {
    match srq {
        Some(srq) => WrId::Srq { srq, entry: u32::from(slot) },
        None => WrId::Recv(slot),
    }
}

/// The completion that an entry is, on the CQ of this SRQ or, for `None`, on a shared CQ. `None`
/// for a request on the CQ of an SRQ.
pub(super) fn translate(srq: Option<u32>, completion: &mlx5_direct::Completion) -> Option<Completion> {
    // The operation of a request is in its record.
    let plain = |wr_id, qpn, status| Completion {
        wr_id,
        qpn,
        status,
        op: DtoOp::Receive,
        length: 0,
        immediate: None,
        invalidated: None,
        source_qpn: 0,
    };
    let request = |counter: u16| WrId::Request(counter.into());
    let failed = |wr_id, error: &ErrorCqe| {
        Some(plain(wr_id, error.qpn, status(in_verbs_terms(error.syndrome), wr_id)))
    };
    match completion {
        mlx5_direct::Completion::Recv(cqe) => Some(received(srq, cqe)),
        // The QP was created without scatter to CQE. A device that scatters to the CQE nevertheless
        // has not written to the buffer.
        mlx5_direct::Completion::RecvScattered(cqe) => {
            Some(Completion { status: DtoStatus::LocalEp, ..received(srq, &cqe.receive) })
        }
        mlx5_direct::Completion::RecvError(error) => failed(receive(srq, error.wqe_counter), error),
        other if srq.is_some() => {
            tracing::error!(?other, "a request completed on the CQ of an SRQ");
            None
        }
        mlx5_direct::Completion::Send(cqe) => {
            Some(plain(request(cqe.wqe_counter), cqe.qpn, DtoStatus::Success))
        }
        mlx5_direct::Completion::SendScattered(cqe) => {
            Some(plain(request(cqe.send.wqe_counter), cqe.send.qpn, DtoStatus::LocalEp))
        }
        mlx5_direct::Completion::SendError(error) => failed(request(error.wqe_counter), error),
    }
}

/// The status that `ibv_poll_cq` would report.
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
    use mlx5_direct::cqe;
    use proptest::prelude::*;

    fn received(edit: impl Fn(&mut [u8; 64])) -> Completion {
        let mut bytes = [0; 64];
        bytes[44..48].copy_from_slice(&9_u32.to_be_bytes());
        bytes[36..40].copy_from_slice(&0x0102_0304_u32.to_be_bytes());
        bytes[56..60].copy_from_slice(&0x42_u32.to_be_bytes());
        bytes[60..62].copy_from_slice(&3_u16.to_be_bytes());
        edit(&mut bytes);
        let decoded = cqe::decode(&cqe::RawCqe::from_bytes(&bytes)).unwrap();
        translate(Some(7), &decoded).unwrap()
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
            assert_eq!((got.wr_id, got.qpn), (WrId::Srq { srq: 7, entry: 3 }, 0x42));
            assert_eq!((got.status, got.op, got.length), (DtoStatus::Success, op, 9));
            assert_eq!((got.immediate, got.invalidated), (immediate, invalidated));
        }
    }

    #[test]
    fn a_payload_outside_its_buffer_is_no_success() {
        assert_eq!(received(|bytes| bytes[63] = 2 << 4 | 1 << 2).status, DtoStatus::LocalEp);
    }

    #[test]
    fn failed_receives_keep_their_entry_and_the_verbs_status() {
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
            assert_eq!((got.wr_id, got.status), (WrId::Srq { srq: 7, entry: 3 }, expected));
        }
    }

    proptest! {
        /// Cards fill the other bytes of an error entry: byte counts, flags, a hardware syndrome, a
        /// signature, the solicited bit.
        #[test]
        fn an_error_is_told_by_what_drivers_may_rely_on(
            mut bytes: [[u8; 32]; 2],
            syndromes: (u8, u8),
            qpn in 0..1_u32 << 24,
            counter: u16,
            responder: bool,
            low_bits in 0..16_u8,
        ) {
            let fill = |bytes: &mut [u8; 64], low_bits| {
                bytes[54..56].copy_from_slice(&[syndromes.1, syndromes.0]);
                bytes[57..60].copy_from_slice(&qpn.to_be_bytes()[1..]);
                bytes[60..62].copy_from_slice(&counter.to_be_bytes());
                bytes[63] = (if responder { 14 } else { 13 }) << 4 | low_bits;
            };
            let told = |bytes: &[u8; 64]| {
                let decoded = cqe::decode(&cqe::RawCqe::from_bytes(bytes)).unwrap();
                // A request on the CQ of an SRQ is skipped.
                let srq = if responder { translate(Some(7), &decoded) } else { None };
                format!("{:?} {srq:?}", translate(None, &decoded))
            };
            let bare = &mut [0; 64];
            fill(bare, 0);
            let full: &mut [u8; 64] = bytes.as_flattened_mut().try_into().unwrap();
            fill(full, low_bits);
            prop_assert_eq!(told(full), told(bare));
        }
    }

    #[test]
    fn syndromes_are_statuses_of_verbs() {
        for (syndrome, expected) in [
            (Syndrome::LocalLength, WcStatus::LocalLengthError),
            (Syndrome::LocalQpOperation, WcStatus::LocalQpOperationError),
            (Syndrome::LocalProtection, WcStatus::LocalProtectionError),
            (Syndrome::OdpPageFault, WcStatus::LocalProtectionError),
            (Syndrome::Flushed, WcStatus::WorkRequestFlushed),
            (Syndrome::MwBind, WcStatus::MwBindError),
            (Syndrome::BadResponse, WcStatus::BadResponse),
            (Syndrome::LocalAccess, WcStatus::LocalAccessError),
            (Syndrome::RemoteInvalidRequest, WcStatus::RemoteInvalidRequest),
            (Syndrome::RemoteAccess, WcStatus::RemoteAccessError),
            (Syndrome::RemoteOperation, WcStatus::RemoteOperationError),
            (Syndrome::TransportRetries, WcStatus::RetryExceeded),
            (Syndrome::RnrRetries, WcStatus::RnrRetryExceeded),
            (Syndrome::RemoteAborted, WcStatus::RemoteAborted),
            (Syndrome::Other(0x7f), WcStatus::General),
        ] {
            assert_eq!(in_verbs_terms(syndrome), expected, "{syndrome:?}");
        }
    }

    #[test]
    fn shared_cq_names_the_queue_and_the_place_in_it() {
        let error = ErrorCqe {
            syndrome: Syndrome::Flushed,
            vendor_syndrome: 0,
            qpn: 1,
            srqn_or_user_index: 0,
            wqe_counter: 9,
        };
        for (completion, expected) in [
            (mlx5_direct::Completion::SendError(error), WrId::Request(9)),
            (mlx5_direct::Completion::RecvError(error), WrId::Recv(9)),
        ] {
            let got = translate(None, &completion).unwrap();
            assert_eq!((got.wr_id, got.qpn, got.status), (expected, 1, DtoStatus::Flushed));
        }
        // An SRQ has no requests.
        assert!(translate(Some(7), &mlx5_direct::Completion::SendError(error)).is_none());
    }
}
