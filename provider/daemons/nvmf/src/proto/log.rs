//! Log pages.

use super::{admin, io, padded};
use std::mem::offset_of;
use std::net::SocketAddr;
use zerocopy::little_endian::{U16, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Log page: errors.
pub const ERRORS: u8 = 0x01;
/// Log page: health.
pub const HEALTH: u8 = 0x02;
/// Log page: firmware slots.
pub const FIRMWARE: u8 = 0x03;
/// Log page: namespaces that have changed.
pub const CHANGED_NAMESPACES: u8 = 0x04;
/// Log page: the supported commands and their effects.
pub const EFFECTS: u8 = 0x05;
/// Log page of the discovery subsystem.
pub const DISCOVERY: u8 = 0x70;

/// The length of the log of errors: one entry, which is empty.
pub const ERRORS_LEN: usize = 64;

/// The health: no warnings, and all of the spare blocks left.
pub fn health() -> Vec<u8> {
    let mut page = vec![0; 512];
    // 300 K; the available spare and its threshold in per cent.
    page[1..3].copy_from_slice(&300u16.to_le_bytes());
    (page[3], page[4]) = (100, 10);
    page
}

/// The firmware slots: the first is active.
pub fn firmware() -> Vec<u8> {
    let mut page = vec![0; 512];
    page[0] = 1;
    page[8..16].copy_from_slice(&padded::<8>(env!("CARGO_PKG_VERSION"), b' '));
    page
}

/// The namespaces that have changed; `None` if they are too many.
pub fn changed_namespaces(numbers: Option<&[u32]>) -> Vec<u8> {
    let mut page = vec![0; 4096];
    let too_many = [u32::MAX];
    for (place, number) in page.chunks_exact_mut(4).zip(numbers.unwrap_or(&too_many)) {
        place.copy_from_slice(&number.to_le_bytes());
    }
    page
}

/// The supported commands. Bit 0: supported; bit 1: changes the contents of blocks.
pub fn effects() -> Vec<u8> {
    let mut page = vec![0; 4096];
    for opcode in [
        admin::GET_LOG_PAGE,
        admin::IDENTIFY,
        admin::ABORT,
        admin::SET_FEATURES,
        admin::GET_FEATURES,
        admin::ASYNC_EVENT,
        admin::KEEP_ALIVE,
    ] {
        page[usize::from(opcode) * 4] = 1;
    }
    for opcode in [io::READ, io::FLUSH, io::COMPARE] {
        page[1024 + usize::from(opcode) * 4] = 1;
    }
    for opcode in [io::WRITE, io::WRITE_ZEROES, io::DATASET_MANAGEMENT] {
        page[1024 + usize::from(opcode) * 4] = 1 | 1 << 1;
    }
    page
}

/// An entry of the discovery log: one subsystem at one address.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
#[expect(missing_docs, reason = "the names are those of the specification")]
pub struct DiscoveryEntry {
    pub trtype: u8,
    pub adrfam: u8,
    pub subtype: u8,
    pub treq: u8,
    pub portid: U16,
    pub cntlid: U16,
    pub asqsz: U16,
    pub eflags: U16,
    reserved_12: [u8; 20],
    pub trsvcid: [u8; 32],
    reserved_64: [u8; 192],
    pub subnqn: [u8; 256],
    pub traddr: [u8; 256],
    pub qptype: u8,
    pub prtype: u8,
    pub cms: u8,
    reserved_771: [u8; 253],
}

const _: () = assert!(
    size_of::<DiscoveryEntry>() == 1024
        && offset_of!(DiscoveryEntry, trsvcid) == 32
        && offset_of!(DiscoveryEntry, subnqn) == 256
        && offset_of!(DiscoveryEntry, traddr) == 512
        && offset_of!(DiscoveryEntry, qptype) == 768
);

impl DiscoveryEntry {
    /// The entry for this subsystem at this address; `port` is the number of the address.
    pub fn new(nqn: &str, address: SocketAddr, port: u16) -> Self {
        Self {
            // RDMA.
            trtype: 1,
            adrfam: if address.is_ipv4() { 1 } else { 2 },
            // A subsystem with namespaces, or the present discovery subsystem.
            subtype: if nqn == super::DISCOVERY_NQN { 3 } else { 2 },
            // Flow control of the submission queue can be turned off.
            treq: 1 << 2,
            portid: port.into(),
            cntlid: 0xffff.into(),
            asqsz: crate::limits::ADMIN_DEPTH.into(),
            eflags: 0.into(),
            reserved_12: [0; 20],
            trsvcid: padded(&address.port().to_string(), 0),
            reserved_64: [0; 192],
            subnqn: padded(nqn, 0),
            traddr: padded(&address.ip().to_string(), 0),
            // RC, no provider, rdma_cm.
            qptype: 1,
            prtype: 1,
            cms: 1,
            reserved_771: [0; 253],
        }
    }
}

/// The header of the discovery log.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct DiscoveryHeader {
    generation: U64,
    records: U64,
    format: U16,
    reserved: [u8; 1006],
}

/// The discovery log.
pub fn discovery(generation: u64, entries: &[DiscoveryEntry]) -> Vec<u8> {
    let header = DiscoveryHeader {
        generation: generation.into(),
        records: (entries.len() as u64).into(),
        format: 0.into(),
        reserved: [0; 1006],
    };
    [header.as_bytes(), entries.as_bytes()].concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::text;

    #[test]
    fn a_discovery_log_has_a_header_and_entries() {
        let entry = DiscoveryEntry::new("nqn.x", "10.9.0.1:4420".parse().unwrap(), 7);
        let log = discovery(5, &[entry, entry]);
        assert_eq!(log.len(), 3072);
        assert_eq!((log[0], log[8], log[16]), (5, 2, 0));
        let entry = &log[1024..2048];
        assert_eq!((entry[0], entry[1], entry[2], entry[4]), (1, 1, 2, 7));
        assert_eq!(entry[6..8], [0xff, 0xff]);
        assert_eq!(entry[8], 32);
        let texts = [&entry[32..64], &entry[256..512], &entry[512..768]].map(text);
        assert_eq!(texts, [Some("4420"), Some("nqn.x"), Some("10.9.0.1")]);
        assert_eq!(entry[768..771], [1, 1, 1]);
    }

    #[test]
    fn effects_name_the_commands() {
        let page = effects();
        assert_eq!((page[0x06 * 4], page[0x07 * 4]), (1, 0));
        assert_eq!((page[1024 + 4], page[1024 + 8], page[1024 + 12]), (3, 1, 0));
    }

    #[test]
    fn too_many_changed_namespaces_are_one_number() {
        assert_eq!(changed_namespaces(None)[..8], [0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0]);
        assert_eq!(changed_namespaces(Some(&[3]))[..8], [3, 0, 0, 0, 0, 0, 0, 0]);
    }
}
