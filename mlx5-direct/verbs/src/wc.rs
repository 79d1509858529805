//! From a completion to an `ibv_wc`. Fields that libmlx5 leaves untouched are left here as well.

use doorbell_sys::{ibv_wc, ibv_wc_flags, ibv_wc_opcode, ibv_wc_status};
use mlx5_direct::{ErrorCqe, Message, PlainEntry, RecvCqe, RecvOp, RequestOp, SendCqe, Syndrome};

/// Status of a failed operation.
///
/// # References
///
/// rdma-core `providers/mlx5/cq.c`: `mlx5_handle_error_cqe`.
pub(crate) fn status(syndrome: Syndrome) -> ibv_wc_status::Type {
    use ibv_wc_status::*;
    match syndrome {
        Syndrome::LocalLength => IBV_WC_LOC_LEN_ERR,
        Syndrome::LocalQpOperation => IBV_WC_LOC_QP_OP_ERR,
        Syndrome::LocalProtection => IBV_WC_LOC_PROT_ERR,
        Syndrome::Flushed => IBV_WC_WR_FLUSH_ERR,
        Syndrome::MwBind => IBV_WC_MW_BIND_ERR,
        Syndrome::BadResponse => IBV_WC_BAD_RESP_ERR,
        Syndrome::LocalAccess => IBV_WC_LOC_ACCESS_ERR,
        Syndrome::RemoteInvalidRequest => IBV_WC_REM_INV_REQ_ERR,
        Syndrome::RemoteAccess => IBV_WC_REM_ACCESS_ERR,
        Syndrome::RemoteOperation => IBV_WC_REM_OP_ERR,
        Syndrome::TransportRetries => IBV_WC_RETRY_EXC_ERR,
        Syndrome::RnrRetries => IBV_WC_RNR_RETRY_EXC_ERR,
        Syndrome::OdpPageFault | Syndrome::RemoteAborted => IBV_WC_REM_ABORT_ERR,
        Syndrome::Other(_) => IBV_WC_GENERAL_ERR,
    }
}

/// Starts an entry of this QP that succeeded.
#[inline(always)]
fn begin(wc: &mut ibv_wc, qpn: u32, wr_id: u64) {
    wc.wr_id = wr_id;
    wc.status = ibv_wc_status::IBV_WC_SUCCESS;
    wc.qp_num = qpn;
    wc.wc_flags = 0;
}

/// A failed operation; opcode and length stay untouched.
pub(crate) fn failed(wc: &mut ibv_wc, error: &ErrorCqe, wr_id: u64) {
    begin(wc, error.qpn, wr_id);
    wc.status = status(error.syndrome);
    wc.vendor_err = u32::from(error.vendor_syndrome);
}

/// A finished request. `bind` says what a change of a key was.
#[inline(always)]
pub(crate) fn sent(wc: &mut ibv_wc, send: &SendCqe, wr_id: u64, bind: impl FnOnce() -> bool) {
    use ibv_wc_opcode::*;
    begin(wc, send.qpn, wr_id);
    match send.op {
        RequestOp::Write => wc.opcode = IBV_WC_RDMA_WRITE,
        RequestOp::WriteImm => {
            wc.opcode = IBV_WC_RDMA_WRITE;
            wc.wc_flags = ibv_wc_flags::IBV_WC_WITH_IMM.0;
        }
        RequestOp::Send | RequestOp::SendInval => wc.opcode = IBV_WC_SEND,
        RequestOp::SendImm => {
            wc.opcode = IBV_WC_SEND;
            wc.wc_flags = ibv_wc_flags::IBV_WC_WITH_IMM.0;
        }
        RequestOp::Read => {
            wc.opcode = IBV_WC_RDMA_READ;
            wc.byte_len = send.byte_count;
        }
        RequestOp::CompareSwap => {
            wc.opcode = IBV_WC_COMP_SWAP;
            wc.byte_len = 8;
        }
        RequestOp::FetchAdd => {
            wc.opcode = IBV_WC_FETCH_ADD;
            wc.byte_len = 8;
        }
        RequestOp::Umr => wc.opcode = if bind() { IBV_WC_BIND_MW } else { IBV_WC_LOCAL_INV },
        // No call of verbs posts these.
        RequestOp::MaskedCompareSwap
        | RequestOp::MaskedFetchAdd
        | RequestOp::LocalInval
        | RequestOp::Nop
        | RequestOp::Other(_) => {}
    }
}

/// A finished receive.
#[inline(always)]
pub(crate) fn received(wc: &mut ibv_wc, receive: &RecvCqe, message: &Message, wr_id: u64) {
    begin(wc, receive.qpn, wr_id);
    wc.byte_len = receive.byte_count;
    wc.opcode = ibv_wc_opcode::IBV_WC_RECV;
    let value = message.imm_inval_pkey;
    match receive.op {
        RecvOp::Send => {}
        RecvOp::SendImm | RecvOp::WriteImm => {
            wc.wc_flags = ibv_wc_flags::IBV_WC_WITH_IMM.0;
            wc.imm_data_invalidated_rkey_union.imm_data = value.to_be();
            if receive.op == RecvOp::WriteImm {
                wc.opcode = ibv_wc_opcode::IBV_WC_RECV_RDMA_WITH_IMM;
            }
        }
        RecvOp::SendInval => {
            wc.wc_flags = ibv_wc_flags::IBV_WC_WITH_INV.0;
            wc.imm_data_invalidated_rkey_union.invalidated_rkey = value;
        }
    }
    if message.grh {
        wc.wc_flags |= ibv_wc_flags::IBV_WC_GRH.0;
    }
    wc.slid = message.source_lid;
    wc.sl = message.service_level;
    wc.src_qp = message.source_qpn;
    wc.dlid_path_bits = message.path_bits;
    wc.pkey_index = value as u16;
}

/// A finished receive of a Send without immediate data.
#[inline(always)]
pub(crate) fn plain_received(wc: &mut ibv_wc, entry: &PlainEntry<'_>, qpn: u32, wr_id: u64) {
    let message = entry.message();
    begin(wc, qpn, wr_id);
    wc.opcode = ibv_wc_opcode::IBV_WC_RECV;
    wc.byte_len = entry.byte_count();
    wc.src_qp = message.source_qpn;
    wc.wc_flags = if message.grh { ibv_wc_flags::IBV_WC_GRH.0 } else { 0 };
    wc.slid = message.source_lid;
    wc.sl = message.service_level;
    wc.dlid_path_bits = message.path_bits;
    wc.pkey_index = message.imm_inval_pkey as u16;
}

/// A finished Send or Write: what its entry becomes follows from the opcode of the request alone.
/// Bit 0 is the opcode, bit 1 the flag of immediate data.
#[derive(Clone, Copy)]
pub(crate) struct PlainSent(u32);

/// By the opcode of the request, four bits for each: a [`PlainSent`], and bit 2 if there is one. A
/// constant, and no table, which would be a cache line to fetch.
const PLAIN_SENT: u64 = {
    use ibv_wc_opcode::{IBV_WC_RDMA_WRITE, IBV_WC_SEND};
    let with_imm = ibv_wc_flags::IBV_WC_WITH_IMM.0;
    assert!(IBV_WC_SEND == 0 && IBV_WC_RDMA_WRITE == 1 && with_imm == 2);
    let (mut table, mut number) = (0, 0);
    while number < PLAIN_OPCODES {
        let bits = match RequestOp::from_opcode(number as u8) {
            RequestOp::Send | RequestOp::SendInval => 4 | IBV_WC_SEND,
            RequestOp::SendImm => 4 | IBV_WC_SEND | with_imm,
            RequestOp::Write => 4 | IBV_WC_RDMA_WRITE,
            RequestOp::WriteImm => 4 | IBV_WC_RDMA_WRITE | with_imm,
            _ => 0,
        };
        table |= (bits as u64) << (4 * number);
        number += 1;
    }
    table
};

/// No opcode from this one on is of a Send or Write.
const PLAIN_OPCODES: u32 = 16;

impl PlainSent {
    /// From the opcode in the upper 8 bits.
    #[inline(always)]
    pub(crate) fn of(opcode_qpn: u32) -> Option<Self> {
        let opcode = opcode_qpn >> 24;
        let bits = (PLAIN_SENT >> (4 * (opcode % PLAIN_OPCODES))) as u32;
        (opcode < PLAIN_OPCODES && bits & 4 != 0).then_some(Self(bits))
    }

    #[inline(always)]
    pub(crate) fn write(self, wc: &mut ibv_wc, qpn: u32, wr_id: u64) {
        begin(wc, qpn, wr_id);
        wc.opcode = self.0 & 1;
        wc.wc_flags = self.0 & 2;
    }
}
