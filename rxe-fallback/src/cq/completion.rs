//! A completion as a plain value.
#![expect(unsafe_code, reason = "reads a C union")]

use doorbell_sys as sys;

/// One finished work request.
///
/// After a failure only `wr_id`, `status`, `vendor_err` and `qp_num` are valid; the rest is empty.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Completion {
    /// The `wr_id` of the work request.
    pub wr_id: u64,
    /// The status.
    pub status: WcStatus,
    /// The device's own error code.
    pub vendor_err: u32,
    /// The operation; `None` after a failure.
    pub opcode: Option<WcOpcode>,
    /// Bytes received, with the 40-byte GRH area on UD; for RDMA reads and atomics bytes moved.
    pub byte_len: u32,
    /// Immediate data, host byte order.
    pub imm: Option<u32>,
    /// The key that the peer's send invalidated.
    pub invalidated_rkey: Option<u32>,
    /// The local QP number.
    pub qp_num: u32,
    /// The sender's QP number; UD only.
    pub src_qp: u32,
    /// Whether the GRH area of a UD receive holds a header; without meaning elsewhere.
    pub has_grh: bool,
    /// Index of the partition key.
    pub pkey_index: u16,
    /// Source local identifier; InfiniBand UD only.
    pub slid: u16,
    /// Service level; UD only.
    pub sl: u8,
    /// Destination path bits; InfiniBand UD only.
    pub dlid_path_bits: u8,
}

impl Completion {
    /// Whether the request succeeded.
    #[must_use]
    pub fn is_success(&self) -> bool {
        self.status == WcStatus::Success
    }

    /// Whether it is a successful receive; for a failed one, only its `wr_id` can tell.
    #[must_use]
    pub fn is_receive(&self) -> bool {
        matches!(self.opcode, Some(WcOpcode::Recv | WcOpcode::RecvRdmaWithImm))
    }
}

const WITH_GRH: u32 = sys::ibv_wc_flags::IBV_WC_GRH.0;
pub(super) const WITH_IMM: u32 = sys::ibv_wc_flags::IBV_WC_WITH_IMM.0;
const WITH_INV: u32 = sys::ibv_wc_flags::IBV_WC_WITH_INV.0;

/// The flag of an invalidating send in rxe's completions: the kernel's own `IB_WC_WITH_INVALIDATE`,
/// which it writes where user space has `IBV_WC_IP_CSUM_OK` (rxe_resp.c, do_complete; rxe never
/// means the latter).
const RXE_WITH_INV: u32 = 1 << 2;

/// Which flags tell that a send invalidated a key, on a device with this driver.
pub(super) fn invalidate_flags(driver: &str) -> u32 {
    if driver == "rdma_rxe" { WITH_INV | RXE_WITH_INV } else { WITH_INV }
}

impl Completion {
    /// A completion of a device that is not rxe.
    #[cfg(test)]
    fn of(wc: &sys::ibv_wc) -> Self {
        Self::from_wc(wc, WITH_INV)
    }

    /// `invalidate_flags` says which flags mean that the send invalidated a key.
    #[inline(always)]
    pub(super) fn from_wc(wc: &sys::ibv_wc, invalidate_flags: u32) -> Self {
        let status = WcStatus::from(wc.status);
        let base =
            Self { wr_id: wc.wr_id, status, vendor_err: wc.vendor_err, qp_num: wc.qp_num, ..Self::default() };
        if status != WcStatus::Success {
            return base;
        }
        // SAFETY: both views of the union are 32-bit integers, written by the device library for
        // every completion or left as they were; the flags tell which of the two is valid.
        let word = unsafe { wc.imm_data_invalidated_rkey_union.invalidated_rkey };
        let has = |flag: u32| wc.wc_flags & flag != 0;
        Self {
            opcode: Some(WcOpcode::from(wc.opcode)),
            byte_len: wc.byte_len,
            imm: has(WITH_IMM).then(|| u32::from_be(word)),
            invalidated_rkey: has(invalidate_flags).then_some(word),
            src_qp: wc.src_qp,
            has_grh: has(WITH_GRH),
            pkey_index: wc.pkey_index,
            slid: wc.slid,
            sl: wc.sl,
            dlid_path_bits: wc.dlid_path_bits,
            ..base
        }
    }
}

/// Declares an enum over C values, with one variant for those unknown.
macro_rules! c_enum {
    ($(#[$meta:meta])* $name:ident, $module:ident, $other:ident { $($variant:ident = $c:ident,)* }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        #[allow(missing_docs, reason = "the names are those of the C enum")]
        pub enum $name {
            $($variant,)*
            /// A value this crate does not know.
            $other(u32),
        }

        impl From<u32> for $name {
            fn from(value: u32) -> Self {
                match value {
                    $(sys::$module::$c => $name::$variant,)*
                    other => $name::$other(other),
                }
            }
        }

        impl $name {
            /// The value in C.
            #[must_use]
            pub fn to_raw(self) -> u32 {
                match self {
                    $($name::$variant => sys::$module::$c,)*
                    $name::$other(value) => value,
                }
            }
        }
    };
}

c_enum! {
    /// Status of a completion.
    ///
    /// # References
    /// ibv_poll_cq(3)
    WcStatus, ibv_wc_status, Unknown {
        Success = IBV_WC_SUCCESS,
        LocalLengthError = IBV_WC_LOC_LEN_ERR,
        LocalQpOperationError = IBV_WC_LOC_QP_OP_ERR,
        LocalEecOperationError = IBV_WC_LOC_EEC_OP_ERR,
        LocalProtectionError = IBV_WC_LOC_PROT_ERR,
        WorkRequestFlushed = IBV_WC_WR_FLUSH_ERR,
        MwBindError = IBV_WC_MW_BIND_ERR,
        BadResponse = IBV_WC_BAD_RESP_ERR,
        LocalAccessError = IBV_WC_LOC_ACCESS_ERR,
        RemoteInvalidRequest = IBV_WC_REM_INV_REQ_ERR,
        RemoteAccessError = IBV_WC_REM_ACCESS_ERR,
        RemoteOperationError = IBV_WC_REM_OP_ERR,
        RetryExceeded = IBV_WC_RETRY_EXC_ERR,
        RnrRetryExceeded = IBV_WC_RNR_RETRY_EXC_ERR,
        LocalRddViolation = IBV_WC_LOC_RDD_VIOL_ERR,
        RemoteInvalidRdRequest = IBV_WC_REM_INV_RD_REQ_ERR,
        RemoteAborted = IBV_WC_REM_ABORT_ERR,
        InvalidEecn = IBV_WC_INV_EECN_ERR,
        InvalidEecState = IBV_WC_INV_EEC_STATE_ERR,
        Fatal = IBV_WC_FATAL_ERR,
        ResponseTimeout = IBV_WC_RESP_TIMEOUT_ERR,
        General = IBV_WC_GENERAL_ERR,
        TagMatching = IBV_WC_TM_ERR,
        TagMatchingRendezvousIncomplete = IBV_WC_TM_RNDV_INCOMPLETE,
    }
}

#[allow(clippy::derivable_impls, reason = "the variants come from a macro")]
impl Default for WcStatus {
    fn default() -> Self {
        WcStatus::Success
    }
}

c_enum! {
    /// Operation of a completion.
    ///
    /// # References
    /// ibv_poll_cq(3)
    WcOpcode, ibv_wc_opcode, Unknown {
        Send = IBV_WC_SEND,
        RdmaWrite = IBV_WC_RDMA_WRITE,
        RdmaRead = IBV_WC_RDMA_READ,
        CompareSwap = IBV_WC_COMP_SWAP,
        FetchAdd = IBV_WC_FETCH_ADD,
        BindMw = IBV_WC_BIND_MW,
        LocalInvalidate = IBV_WC_LOCAL_INV,
        Tso = IBV_WC_TSO,
        Recv = IBV_WC_RECV,
        RecvRdmaWithImm = IBV_WC_RECV_RDMA_WITH_IMM,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wc() -> sys::ibv_wc {
        sys::ibv_wc {
            wr_id: 7,
            status: 0,
            opcode: sys::ibv_wc_opcode::IBV_WC_RECV,
            vendor_err: 0,
            byte_len: 100,
            imm_data_invalidated_rkey_union: sys::imm_data_invalidated_rkey_union_t {
                imm_data: 0x0102_0304_u32.to_be(),
            },
            qp_num: 17,
            src_qp: 18,
            wc_flags: 0,
            pkey_index: 0,
            slid: 0,
            sl: 0,
            dlid_path_bits: 0,
        }
    }

    #[test]
    fn immediate_data_comes_in_host_order_and_only_when_flagged() {
        assert_eq!(Completion::of(&wc()).imm, None);
        let flagged = Completion::of(&sys::ibv_wc { wc_flags: WITH_IMM, ..wc() });
        assert_eq!(flagged.imm, Some(0x0102_0304));
        assert_eq!(flagged.invalidated_rkey, None);
    }

    #[test]
    fn invalidated_key_is_not_swapped() {
        let flagged = Completion::of(&sys::ibv_wc { wc_flags: WITH_INV, ..wc() });
        assert_eq!(flagged.invalidated_rkey, Some(0x0102_0304_u32.to_be()));
        assert_eq!(flagged.imm, None);
    }

    #[test]
    fn rxe_flags_an_invalidated_key_with_the_kernels_bit() {
        let flagged = sys::ibv_wc { wc_flags: RXE_WITH_INV, ..wc() };
        let word = Some(0x0102_0304_u32.to_be());
        assert_eq!(Completion::from_wc(&flagged, invalidate_flags("rdma_rxe")).invalidated_rkey, word);
        assert_eq!(Completion::from_wc(&flagged, invalidate_flags("mlx5_core")).invalidated_rkey, None);
    }

    #[test]
    fn failure_says_nothing_about_kind_or_length() {
        let failed = Completion::of(&sys::ibv_wc { status: 5, wc_flags: WITH_IMM, vendor_err: 9, ..wc() });
        assert_eq!(failed.status, WcStatus::WorkRequestFlushed);
        assert_eq!((failed.wr_id, failed.qp_num, failed.vendor_err), (7, 17, 9));
        assert_eq!((failed.opcode, failed.byte_len, failed.imm), (None, 0, None));
        assert!(!failed.is_receive() && !failed.is_success());
    }

    #[test]
    fn only_receives_are_receives() {
        assert!(Completion::of(&wc()).is_receive());
        let send = sys::ibv_wc { opcode: sys::ibv_wc_opcode::IBV_WC_SEND, ..wc() };
        assert!(!Completion::of(&send).is_receive());
    }

    #[test]
    fn every_status_and_opcode_keeps_its_value_both_ways() {
        for raw in 0..64 {
            assert_eq!(WcStatus::from(raw).to_raw(), raw);
            assert_eq!(matches!(WcStatus::from(raw), WcStatus::Unknown(_)), raw > 23, "{raw}");
        }
        for raw in 0..256 {
            assert_eq!(WcOpcode::from(raw).to_raw(), raw);
        }
    }
}
