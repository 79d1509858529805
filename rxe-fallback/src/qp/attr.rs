//! QP states, and the attributes of transitions.
#![expect(unsafe_code, reason = "a C struct of plain integers")]

use doorbell_sys as sys;

use crate::ah::AhAttr;

bitflags::bitflags! {
    /// The fields of a [`QpAttr`] that a call sets or queries.
    ///
    /// # References
    /// ibv_modify_qp(3)
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub struct AttrMask: u32 {
        /// `qp_state`.
        const STATE = 1;
        /// `cur_qp_state`.
        const CUR_STATE = 1 << 1;
        /// `en_sqd_async_notify`.
        const EN_SQD_ASYNC_NOTIFY = 1 << 2;
        /// `qp_access_flags`.
        const ACCESS_FLAGS = 1 << 3;
        /// `pkey_index`.
        const PKEY_INDEX = 1 << 4;
        /// `port_num`.
        const PORT = 1 << 5;
        /// `qkey`.
        const QKEY = 1 << 6;
        /// `ah_attr`.
        const AV = 1 << 7;
        /// `path_mtu`.
        const PATH_MTU = 1 << 8;
        /// `timeout`.
        const TIMEOUT = 1 << 9;
        /// `retry_cnt`.
        const RETRY_CNT = 1 << 10;
        /// `rnr_retry`.
        const RNR_RETRY = 1 << 11;
        /// `rq_psn`.
        const RQ_PSN = 1 << 12;
        /// `max_rd_atomic`.
        const MAX_QP_RD_ATOMIC = 1 << 13;
        /// The `alt_` fields.
        const ALT_PATH = 1 << 14;
        /// `min_rnr_timer`.
        const MIN_RNR_TIMER = 1 << 15;
        /// `sq_psn`.
        const SQ_PSN = 1 << 16;
        /// `max_dest_rd_atomic`.
        const MAX_DEST_RD_ATOMIC = 1 << 17;
        /// `path_mig_state`.
        const PATH_MIG_STATE = 1 << 18;
        /// `cap`.
        const CAP = 1 << 19;
        /// `dest_qp_num`.
        const DEST_QPN = 1 << 20;
        /// `rate_limit`.
        const RATE_LIMIT = 1 << 25;
        const _ = !0;
    }
}

/// `ibv_qp_attr` with all fields 0 to start from.
pub struct QpAttr(pub(crate) sys::ibv_qp_attr);

impl Clone for QpAttr {
    fn clone(&self) -> Self {
        // SAFETY: read from a reference; plain integers, so that two copies do not share anything.
        Self(unsafe { std::ptr::read(&self.0) })
    }
}

impl QpAttr {
    /// All fields 0 but the target state.
    #[must_use]
    pub fn for_state(state: QpState) -> Self {
        let mut attr = Self::default();
        attr.0.qp_state = state.to_raw();
        attr
    }

    /// Sets the RNR NAK timer, as its code (ibv_modify_qp(3)).
    pub fn set_min_rnr_timer(&mut self, code: u8) {
        self.0.min_rnr_timer = code;
    }

    /// The RNR NAK timer, as its code; of a query with [`AttrMask::MIN_RNR_TIMER`].
    #[must_use]
    pub fn min_rnr_timer(&self) -> u8 {
        self.0.min_rnr_timer
    }

    /// RDMA reads and atomics of the peer to serve at a time; of a query with
    /// [`AttrMask::MAX_DEST_RD_ATOMIC`].
    #[must_use]
    pub fn max_dest_rd_atomic(&self) -> u8 {
        self.0.max_dest_rd_atomic
    }

    /// Path MTU in bytes; of a query with [`AttrMask::PATH_MTU`].
    #[must_use]
    pub fn path_mtu(&self) -> u32 {
        crate::device::mtu_bytes(self.0.path_mtu)
    }

    /// How the QP sends; of a query with the fields of [`RtsAttr`].
    #[must_use]
    pub fn rts(&self) -> RtsAttr {
        RtsAttr {
            timeout: self.0.timeout,
            retry_cnt: self.0.retry_cnt,
            rnr_retry: self.0.rnr_retry,
            sq_psn: self.0.sq_psn,
            max_rd_atomic: self.0.max_rd_atomic,
        }
    }
}

impl Default for QpAttr {
    fn default() -> Self {
        // SAFETY: plain integers, for which zeroes are valid.
        Self(unsafe { std::mem::zeroed() })
    }
}

impl std::fmt::Debug for QpAttr {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("QpAttr")
            .field("qp_state", &QpState::from(self.0.qp_state))
            .field("dest_qp_num", &self.0.dest_qp_num)
            .field("rq_psn", &self.0.rq_psn)
            .field("sq_psn", &self.0.sq_psn)
            .field("ah_attr", &AhAttr::from_sys(&self.0.ah_attr))
            .finish_non_exhaustive()
    }
}

/// State of a QP.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum QpState {
    /// Does nothing.
    Reset,
    /// Takes receives.
    Init,
    /// Receives.
    Rtr,
    /// Receives and sends.
    Rts,
    /// Finishes what was posted and sends nothing new.
    Sqd,
    /// The send queue failed (UC, UD).
    Sqe,
    /// Flushes everything.
    Error,
    /// A value this crate does not know.
    Unknown(u32),
}

impl From<u32> for QpState {
    fn from(value: u32) -> Self {
        use sys::ibv_qp_state as s;
        match value {
            s::IBV_QPS_RESET => QpState::Reset,
            s::IBV_QPS_INIT => QpState::Init,
            s::IBV_QPS_RTR => QpState::Rtr,
            s::IBV_QPS_RTS => QpState::Rts,
            s::IBV_QPS_SQD => QpState::Sqd,
            s::IBV_QPS_SQE => QpState::Sqe,
            s::IBV_QPS_ERR => QpState::Error,
            other => QpState::Unknown(other),
        }
    }
}

impl QpState {
    /// The value in C.
    #[must_use]
    pub fn to_raw(self) -> u32 {
        use sys::ibv_qp_state as s;
        match self {
            QpState::Reset => s::IBV_QPS_RESET,
            QpState::Init => s::IBV_QPS_INIT,
            QpState::Rtr => s::IBV_QPS_RTR,
            QpState::Rts => s::IBV_QPS_RTS,
            QpState::Sqd => s::IBV_QPS_SQD,
            QpState::Sqe => s::IBV_QPS_SQE,
            QpState::Error => s::IBV_QPS_ERR,
            QpState::Unknown(value) => value,
        }
    }
}

/// What a connected QP needs to know about its peer to receive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RtrAttr {
    /// Path MTU in bytes, rounded down to 256, 512, 1024, 2048 or 4096.
    pub path_mtu: u32,
    /// The peer's QP number.
    pub dest_qp_num: u32,
    /// The packet sequence number the peer starts with.
    pub rq_psn: u32,
    /// The way to the peer.
    pub path: AhAttr,
    /// RDMA reads and atomics of the peer to serve at a time (RC).
    pub max_dest_rd_atomic: u8,
    /// How long the peer waits after "receiver not ready", as a code of ibv_modify_qp(3) (RC).
    pub min_rnr_timer: u8,
}

impl Default for RtrAttr {
    fn default() -> Self {
        Self {
            path_mtu: 1024,
            dest_qp_num: 0,
            rq_psn: 0,
            path: AhAttr::default(),
            max_dest_rd_atomic: 1,
            min_rnr_timer: 12,
        }
    }
}

/// How a connected QP sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RtsAttr {
    /// Time to wait for an acknowledgement, as the exponent of 4.096 us; 0 is for ever (RC).
    pub timeout: u8,
    /// Retries after a timeout, 0 to 7 (RC).
    pub retry_cnt: u8,
    /// Retries after "receiver not ready", 0 to 6; 7 is for ever (RC).
    pub rnr_retry: u8,
    /// Packet sequence number to start with.
    pub sq_psn: u32,
    /// RDMA reads and atomics to have under way at a time (RC).
    pub max_rd_atomic: u8,
}

impl Default for RtsAttr {
    fn default() -> Self {
        Self { timeout: 14, retry_cnt: 7, rnr_retry: 7, sq_psn: 0, max_rd_atomic: 1 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mask_bits_are_those_of_the_headers() {
        type M = sys::ibv_qp_attr_mask;
        let pairs = [
            (AttrMask::STATE, M::IBV_QP_STATE),
            (AttrMask::CUR_STATE, M::IBV_QP_CUR_STATE),
            (AttrMask::EN_SQD_ASYNC_NOTIFY, M::IBV_QP_EN_SQD_ASYNC_NOTIFY),
            (AttrMask::ACCESS_FLAGS, M::IBV_QP_ACCESS_FLAGS),
            (AttrMask::PKEY_INDEX, M::IBV_QP_PKEY_INDEX),
            (AttrMask::PORT, M::IBV_QP_PORT),
            (AttrMask::QKEY, M::IBV_QP_QKEY),
            (AttrMask::AV, M::IBV_QP_AV),
            (AttrMask::PATH_MTU, M::IBV_QP_PATH_MTU),
            (AttrMask::TIMEOUT, M::IBV_QP_TIMEOUT),
            (AttrMask::RETRY_CNT, M::IBV_QP_RETRY_CNT),
            (AttrMask::RNR_RETRY, M::IBV_QP_RNR_RETRY),
            (AttrMask::RQ_PSN, M::IBV_QP_RQ_PSN),
            (AttrMask::MAX_QP_RD_ATOMIC, M::IBV_QP_MAX_QP_RD_ATOMIC),
            (AttrMask::ALT_PATH, M::IBV_QP_ALT_PATH),
            (AttrMask::MIN_RNR_TIMER, M::IBV_QP_MIN_RNR_TIMER),
            (AttrMask::SQ_PSN, M::IBV_QP_SQ_PSN),
            (AttrMask::MAX_DEST_RD_ATOMIC, M::IBV_QP_MAX_DEST_RD_ATOMIC),
            (AttrMask::PATH_MIG_STATE, M::IBV_QP_PATH_MIG_STATE),
            (AttrMask::CAP, M::IBV_QP_CAP),
            (AttrMask::DEST_QPN, M::IBV_QP_DEST_QPN),
            (AttrMask::RATE_LIMIT, M::IBV_QP_RATE_LIMIT),
        ];
        for (ours, theirs) in pairs {
            assert_eq!(ours.bits(), theirs.0, "{ours:?}");
        }
    }

    #[test]
    fn states_keep_their_value_both_ways() {
        for raw in 0..16 {
            assert_eq!(QpState::from(raw).to_raw(), raw);
        }
    }
}
