//! Syndromes of error completions: the syndrome in the low byte, in the high byte the vendor's, as
//! cards combine them.

/// A request whose segments do not fit together.
pub(crate) const LOCAL_LENGTH: u16 = 0x6801;
/// A message that is longer than its receive.
pub(crate) const RECEIVE_LENGTH: u16 = 0xd401;
pub(crate) const LOCAL_QP_OP: u16 = 0x6802;
pub(crate) const FLUSH: u16 = 0xf905;
pub(crate) const MW_BIND: u16 = 0x7806;
pub(crate) const BAD_RESP: u16 = 0x0010;
pub(crate) const REMOTE_INVAL_REQ: u16 = 0x8a12;
pub(crate) const REMOTE_ACCESS: u16 = 0x8813;
pub(crate) const REMOTE_OP: u16 = 0x8914;
pub(crate) const TRANSPORT_RETRY: u16 = 0x8115;
pub(crate) const RNR_RETRY: u16 = 0x8716;
/// The page fault of a receive that its QP survives.
pub(crate) const ABORTED: u16 = 0x9322;

/// Why a piece of local memory is refused; the lowest bits of the vendor's syndrome.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protection {
    /// No such key, or one of another protection domain.
    Key = 2,
    /// No right to this access, or not within the region.
    Access = 3,
}

impl Protection {
    /// The syndrome of data that a request sends.
    pub(crate) fn of_gather(self) -> u16 {
        0x5004 | (self as u16) << 8
    }

    /// The syndrome of data that arrives: of a receive, and of an answer.
    pub(crate) fn of_scatter(self) -> u16 {
        0x3004 | (self as u16) << 8
    }
}

/// The usual combination for a syndrome.
pub(crate) fn usual(syndrome: u8) -> u16 {
    const KNOWN: [u16; 9] = [
        LOCAL_LENGTH,
        LOCAL_QP_OP,
        FLUSH,
        MW_BIND,
        REMOTE_INVAL_REQ,
        REMOTE_ACCESS,
        REMOTE_OP,
        TRANSPORT_RETRY,
        RNR_RETRY,
    ];
    let found = KNOWN.into_iter().chain([Protection::Key.of_gather()]).find(|known| *known as u8 == syndrome);
    found.unwrap_or(u16::from(syndrome))
}

/// The device met the error itself: no peer reported it, and none failed to answer.
pub(crate) fn is_local(code: u16) -> bool {
    matches!(code as u8, 1..=4 | 6)
}
