//! Spreading frames over work queues (RSS): a hash of a frame's addresses and ports selects the
//! queue.

use super::flow::{FIELDS, field};

/// The hash function, with the bit of `enum ibv_rx_hash_function_flags`.
pub(crate) const TOEPLITZ: u8 = 1;
/// Bytes of the hash's key.
pub(crate) const KEY: usize = 40;

/// What a frame's hash covers, with the bits of `enum ibv_rx_hash_fields`.
pub(crate) mod covers {
    pub(crate) const SOURCE_IPV4: u64 = 1;
    pub(crate) const DEST_IPV4: u64 = 1 << 1;
    pub(crate) const SOURCE_IPV6: u64 = 1 << 2;
    pub(crate) const DEST_IPV6: u64 = 1 << 3;
    pub(crate) const SOURCE_TCP: u64 = 1 << 4;
    pub(crate) const DEST_TCP: u64 = 1 << 5;
    pub(crate) const SOURCE_UDP: u64 = 1 << 6;
    pub(crate) const DEST_UDP: u64 = 1 << 7;
    pub(crate) const ALL: u64 = (1 << 8) - 1;
}

/// How a QP spreads its frames.
#[derive(Debug)]
pub(crate) struct Spread {
    /// Index of the indirection table.
    pub(crate) table: usize,
    /// Bits of [`covers`].
    pub(crate) covers: u64,
    pub(crate) key: [u8; KEY],
}

impl Spread {
    /// The queue for a frame with these headers. A frame with none of the covered headers goes to
    /// the first queue. `queues` is not empty.
    pub(crate) fn choose(&self, queues: &[usize], fields: &[u8; FIELDS]) -> usize {
        queues[self.hash(fields) as usize % queues.len()]
    }

    /// The Toeplitz hash of the covered headers that the frame has: addresses before ports, source
    /// before destination.
    fn hash(&self, fields: &[u8; FIELDS]) -> u32 {
        let (version, protocol) = (fields[field::VERSION] >> 1 & 15, fields[field::PROTOCOL]);
        let (v4, v6) = (version == 4, version == 6);
        let (tcp, udp) = (protocol == 6, protocol == 17);
        let parts = [
            (covers::SOURCE_IPV4, v4, field::SOURCE_IP + 12, 4),
            (covers::SOURCE_IPV6, v6, field::SOURCE_IP, 16),
            (covers::DEST_IPV4, v4, field::DEST_IP + 12, 4),
            (covers::DEST_IPV6, v6, field::DEST_IP, 16),
            (covers::SOURCE_TCP, tcp, field::TCP_SOURCE, 2),
            (covers::SOURCE_UDP, udp, field::UDP_SOURCE, 2),
            (covers::DEST_TCP, tcp, field::TCP_DEST, 2),
            (covers::DEST_UDP, udp, field::UDP_DEST, 2),
        ];
        let covered = parts.iter().filter(|&&(bit, present, ..)| self.covers & bit != 0 && present);
        let bytes = covered.flat_map(|&(_, _, at, len)| &fields[at..at + len]);
        let mut hash = 0;
        for (at, byte) in bytes.enumerate() {
            // The 32 key bits from each bit of the input on.
            let mut window = [0; 8];
            let rest = &self.key[at.min(KEY)..];
            let count = rest.len().min(8);
            window[..count].copy_from_slice(&rest[..count]);
            let window = u64::from_be_bytes(window);
            for bit in (0..8).filter(|bit| byte << bit & 0x80 != 0) {
                hash ^= (window << bit >> 32) as u32;
            }
        }
        hash
    }
}

/// Work queues that a QP spreads its frames over.
#[derive(Debug, Default)]
pub(crate) struct IndirectionTable {
    /// Indices of the work queues, which are QPs without a send queue; a power of two of them.
    pub(crate) queues: Vec<usize>,
    /// QPs that use it.
    pub(crate) users: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The values of Microsoft's "Verifying the RSS Hash Calculation".
    #[test]
    fn published_hashes() {
        let key = [
            0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3, 0x8f, 0xb0,
            0xd0, 0xca, 0x2b, 0xcb, 0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30, 0xf2, 0x0c,
            0x6a, 0x42, 0xb7, 0x3b, 0xbe, 0xac, 0x01, 0xfa,
        ];
        let mut fields = [0; FIELDS];
        (fields[field::VERSION], fields[field::PROTOCOL]) = (4 << 1, 6);
        fields[field::SOURCE_IP + 12..][..4].copy_from_slice(&[66, 9, 149, 187]);
        fields[field::DEST_IP + 12..][..4].copy_from_slice(&[161, 142, 100, 80]);
        fields[field::TCP_SOURCE..][..2].copy_from_slice(&2794u16.to_be_bytes());
        fields[field::TCP_DEST..][..2].copy_from_slice(&1766u16.to_be_bytes());
        let addresses = covers::SOURCE_IPV4 | covers::DEST_IPV4;
        let hash = |covers, fields| Spread { table: 0, covers, key }.hash(fields);
        assert_eq!(hash(addresses, &fields), 0x323e_8fc2);
        assert_eq!(hash(addresses | covers::SOURCE_TCP | covers::DEST_TCP, &fields), 0x51cc_c178);
        // Headers that the frame does not have do not count.
        assert_eq!(hash(addresses | covers::SOURCE_UDP | covers::SOURCE_IPV6, &fields), 0x323e_8fc2);
        assert_eq!(hash(covers::DEST_IPV6, &fields), 0);
    }
}
