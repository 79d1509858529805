//! The legal QP transitions and their attributes: the table of the InfiniBand specification, as the
//! kernel checks it (`ib_modify_qp_is_ok`).

/// QP types, with the numbers of `enum ibv_qp_type`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum QpType {
    #[default]
    Rc = 2,
    Uc = 3,
    Ud = 4,
    RawPacket = 8,
    XrcSend = 9,
    XrcRecv = 10,
    /// Initiator and target of the dynamically connected transport. Programs create both as driver
    /// QPs. These two numbers are therefore the device's own.
    Dci = 250,
    Dct = 251,
}

impl QpType {
    pub(crate) fn from_raw(raw: u8) -> Option<Self> {
        Some(match raw {
            2 => Self::Rc,
            3 => Self::Uc,
            4 => Self::Ud,
            8 => Self::RawPacket,
            9 => Self::XrcSend,
            10 => Self::XrcRecv,
            250 => Self::Dci,
            251 => Self::Dct,
            _ => return None,
        })
    }

    /// Acknowledged transport.
    #[inline]
    pub(crate) fn is_reliable(self) -> bool {
        matches!(self, Self::Rc | Self::XrcSend | Self::XrcRecv | Self::Dci | Self::Dct)
    }
}

/// QP states, with the numbers of `enum ibv_qp_state`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum QpState {
    /// Fresh.
    #[default]
    Reset = 0,
    /// Receives may be posted.
    Init = 1,
    /// Ready to receive.
    Rtr = 2,
    /// Ready to send.
    Rts = 3,
    /// Send queue drained.
    Sqd = 4,
    /// Send queue error.
    Sqe = 5,
    /// Error.
    Err = 6,
}

impl QpState {
    pub(crate) fn from_raw(raw: u32) -> Option<Self> {
        Some(match raw {
            0 => Self::Reset,
            1 => Self::Init,
            2 => Self::Rtr,
            3 => Self::Rts,
            4 => Self::Sqd,
            5 => Self::Sqe,
            6 => Self::Err,
            _ => return None,
        })
    }

    /// Incoming requests are served.
    #[inline]
    pub(crate) fn receives(self) -> bool {
        matches!(self, Self::Rtr | Self::Rts | Self::Sqd | Self::Sqe)
    }

    /// The device ignores the send queue: neither its doorbell nor its record has an effect.
    #[inline]
    pub(crate) fn ignores_sends(self) -> bool {
        matches!(self, Self::Reset | Self::Init | Self::Rtr)
    }
}

/// Bits of `enum ibv_qp_attr_mask`.
pub(crate) mod mask {
    pub(crate) const STATE: u32 = 1;
    pub(crate) const CUR_STATE: u32 = 1 << 1;
    pub(crate) const EN_SQD_ASYNC_NOTIFY: u32 = 1 << 2;
    pub(crate) const ACCESS_FLAGS: u32 = 1 << 3;
    pub(crate) const PKEY_INDEX: u32 = 1 << 4;
    pub(crate) const PORT: u32 = 1 << 5;
    pub(crate) const QKEY: u32 = 1 << 6;
    pub(crate) const AV: u32 = 1 << 7;
    pub(crate) const PATH_MTU: u32 = 1 << 8;
    pub(crate) const TIMEOUT: u32 = 1 << 9;
    pub(crate) const RETRY_CNT: u32 = 1 << 10;
    pub(crate) const RNR_RETRY: u32 = 1 << 11;
    pub(crate) const RQ_PSN: u32 = 1 << 12;
    pub(crate) const MAX_QP_RD_ATOMIC: u32 = 1 << 13;
    pub(crate) const ALT_PATH: u32 = 1 << 14;
    pub(crate) const MIN_RNR_TIMER: u32 = 1 << 15;
    pub(crate) const SQ_PSN: u32 = 1 << 16;
    pub(crate) const MAX_DEST_RD_ATOMIC: u32 = 1 << 17;
    pub(crate) const PATH_MIG_STATE: u32 = 1 << 18;
    pub(crate) const DEST_QPN: u32 = 1 << 20;
}

/// Required and optional attributes of a transition; `None` when there is no such transition.
fn rule(from: QpState, to: QpState, kind: QpType) -> Option<(u32, u32)> {
    use QpState::{Err, Init, Reset, Rtr, Rts, Sqd, Sqe};
    use QpType::{Dci, Dct, RawPacket, Rc, Uc, Ud, XrcRecv, XrcSend};
    use mask::*;

    let common_rts = CUR_STATE | ALT_PATH | ACCESS_FLAGS | PATH_MIG_STATE;
    let to_rts_optional = match kind {
        RawPacket => CUR_STATE,
        Ud => CUR_STATE | QKEY,
        Dci | Dct => CUR_STATE | MIN_RNR_TIMER,
        Uc | XrcSend => common_rts,
        Rc | XrcRecv => common_rts | MIN_RNR_TIMER,
    };
    Some(match (from, to) {
        (_, Reset | Err) => (0, 0),
        (Reset, Init) => match kind {
            RawPacket => (PORT, 0),
            Dci | Dct => (PKEY_INDEX | PORT, ACCESS_FLAGS),
            Ud => (PKEY_INDEX | PORT | QKEY, 0),
            _ => (PKEY_INDEX | PORT | ACCESS_FLAGS, 0),
        },
        (Init, Init) => match kind {
            RawPacket => (0, PORT),
            Ud => (0, PKEY_INDEX | PORT | QKEY),
            _ => (0, PKEY_INDEX | PORT | ACCESS_FLAGS),
        },
        (Init, Rtr) => {
            let connected = AV | PATH_MTU | DEST_QPN | RQ_PSN;
            let optional = ALT_PATH | ACCESS_FLAGS | PKEY_INDEX;
            match kind {
                RawPacket => (0, 0),
                Dci => (PATH_MTU, PKEY_INDEX | AV),
                Dct => (MIN_RNR_TIMER | AV | PATH_MTU, ACCESS_FLAGS | PKEY_INDEX),
                Ud => (0, PKEY_INDEX | QKEY),
                Uc | XrcSend => (connected, optional),
                Rc | XrcRecv => (connected | MAX_DEST_RD_ATOMIC | MIN_RNR_TIMER, optional),
            }
        }
        (Rtr, Rts) if kind == Dct => return None,
        (Rtr, Rts) => {
            let required = match kind {
                RawPacket => 0,
                Ud | Uc => SQ_PSN,
                Rc | XrcSend | Dci => TIMEOUT | RETRY_CNT | RNR_RETRY | SQ_PSN | MAX_QP_RD_ATOMIC,
                XrcRecv | Dct => TIMEOUT | SQ_PSN,
            };
            (required, to_rts_optional)
        }
        (Rts | Sqd, Rts) => (0, to_rts_optional),
        (Rts, Sqd) => (0, EN_SQD_ASYNC_NOTIFY),
        (Sqd, Sqd) => {
            let path = AV | ALT_PATH | ACCESS_FLAGS | PKEY_INDEX | PATH_MIG_STATE;
            let reliable = PORT | TIMEOUT | RETRY_CNT | RNR_RETRY | MAX_QP_RD_ATOMIC;
            let optional = match kind {
                RawPacket => 0,
                Ud => PKEY_INDEX | QKEY,
                Uc => path,
                Rc => path | reliable | MAX_DEST_RD_ATOMIC | MIN_RNR_TIMER,
                XrcSend | Dci | Dct => path | reliable,
                XrcRecv => path | PORT | TIMEOUT | MAX_DEST_RD_ATOMIC | MIN_RNR_TIMER,
            };
            (0, optional)
        }
        (Sqe, Rts) => match kind {
            RawPacket => (0, CUR_STATE),
            Ud => (0, CUR_STATE | QKEY),
            Uc => (0, CUR_STATE | ACCESS_FLAGS),
            _ => return None,
        },
        _ => return None,
    })
}

/// True when a QP of this kind may go from `from` to `to` with exactly these attributes.
pub(crate) fn is_ok(from: QpState, to: QpState, kind: QpType, attributes: u32) -> bool {
    if attributes & mask::CUR_STATE != 0
        && !matches!(from, QpState::Rtr | QpState::Rts | QpState::Sqd | QpState::Sqe)
    {
        return false;
    }
    let Some((required, optional)) = rule(from, to, kind) else { return false };
    attributes & required == required && attributes & !(required | optional | mask::STATE) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rc_needs_its_attributes_at_every_step() {
        use mask::*;
        let init = STATE | PKEY_INDEX | PORT | ACCESS_FLAGS;
        assert!(is_ok(QpState::Reset, QpState::Init, QpType::Rc, init));
        assert!(!is_ok(QpState::Reset, QpState::Init, QpType::Rc, init & !PORT));
        assert!(!is_ok(QpState::Reset, QpState::Init, QpType::Rc, init | QKEY));
        let rtr = STATE | AV | PATH_MTU | DEST_QPN | RQ_PSN | MAX_DEST_RD_ATOMIC | MIN_RNR_TIMER;
        assert!(is_ok(QpState::Init, QpState::Rtr, QpType::Rc, rtr));
        for bit in [AV, PATH_MTU, DEST_QPN, RQ_PSN, MAX_DEST_RD_ATOMIC, MIN_RNR_TIMER] {
            assert!(!is_ok(QpState::Init, QpState::Rtr, QpType::Rc, rtr & !bit), "{bit:#x}");
        }
        let rts = STATE | TIMEOUT | RETRY_CNT | RNR_RETRY | SQ_PSN | MAX_QP_RD_ATOMIC;
        assert!(is_ok(QpState::Rtr, QpState::Rts, QpType::Rc, rts));
        assert!(!is_ok(QpState::Init, QpState::Rts, QpType::Rc, rts));
    }

    #[test]
    fn every_state_may_go_to_reset_and_error() {
        for raw in 0..=6 {
            let from = QpState::from_raw(raw).unwrap();
            assert!(is_ok(from, QpState::Err, QpType::Rc, mask::STATE));
            assert!(is_ok(from, QpState::Reset, QpType::Ud, mask::STATE));
            assert!(!is_ok(from, QpState::Err, QpType::Rc, mask::STATE | mask::QKEY));
        }
    }

    #[test]
    fn current_state_is_accepted_only_after_hardware_transitions() {
        assert!(is_ok(QpState::Sqe, QpState::Rts, QpType::Ud, mask::STATE | mask::CUR_STATE));
        assert!(!is_ok(QpState::Err, QpState::Reset, QpType::Ud, mask::STATE | mask::CUR_STATE));
    }
}
