//! Flow rules. They compare headers in the hardware's 64-byte format `fte_match_set_lyr_2_4`,
//! whichever interface created the rule.

/// Bytes of the compared headers.
pub(crate) const FIELDS: usize = 64;

/// Offsets in the compared headers.
pub(crate) mod field {
    pub(crate) const SOURCE_MAC: usize = 0;
    pub(crate) const ETHERTYPE: usize = 6;
    pub(crate) const DEST_MAC: usize = 8;
    pub(crate) const VLAN: usize = 14;
    pub(crate) const PROTOCOL: usize = 16;
    /// DSCP and ECN.
    pub(crate) const TRAFFIC_CLASS: usize = 17;
    /// VLAN tag present in bit 7, IP version in bits 1 to 4.
    pub(crate) const VERSION: usize = 18;
    pub(crate) const TCP_SOURCE: usize = 20;
    pub(crate) const TCP_DEST: usize = 22;
    pub(crate) const HOP_LIMIT: usize = 27;
    pub(crate) const UDP_SOURCE: usize = 28;
    pub(crate) const UDP_DEST: usize = 30;
    /// IPv4 addresses in the last four bytes.
    pub(crate) const SOURCE_IP: usize = 32;
    pub(crate) const DEST_IP: usize = 48;
}

/// A flow rule: frames whose headers have these values go to this QP.
#[derive(Clone, Debug)]
pub(crate) struct Flow {
    pub(crate) value: [u8; FIELDS],
    pub(crate) mask: [u8; FIELDS],
    pub(crate) priority: u32,
    /// `None` drops the frame.
    pub(crate) qp: Option<usize>,
    /// Completions carry this value in place of the QP's number.
    pub(crate) tag: u32,
}

impl Flow {
    pub(crate) fn matches(&self, fields: &[u8; FIELDS]) -> bool {
        let mut pairs = self.value.iter().zip(&self.mask).zip(fields);
        pairs.all(|((value, mask), field)| value & mask == field & mask)
    }

    /// Compared bits: the rule that compares more is the closer one.
    pub(crate) fn weight(&self) -> u32 {
        self.mask.iter().map(|byte| byte.count_ones()).sum()
    }
}

/// The fields that a matcher compares, and its priority.
#[derive(Clone, Debug)]
pub(crate) struct Matcher {
    pub(crate) mask: [u8; FIELDS],
    pub(crate) priority: u32,
}
