//! The data of Identify.

use super::{VERSION, padded};
use std::mem::offset_of;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The size of each answer.
pub const LEN: usize = 4096;

/// CNS: a namespace.
pub const NAMESPACE: u8 = 0x00;
/// CNS: the controller.
pub const CONTROLLER: u8 = 0x01;
/// CNS: the namespaces behind a number.
pub const ACTIVE_NAMESPACES: u8 = 0x02;
/// CNS: the names of a namespace.
pub const DESCRIPTORS: u8 = 0x03;
/// CNS: what a command set adds to the controller.
pub const COMMAND_SET_CONTROLLER: u8 = 0x06;

/// Identify Controller.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
#[expect(missing_docs, reason = "the names are those of the specification")]
pub struct Controller {
    pub vid: U16,
    pub ssvid: U16,
    pub sn: [u8; 20],
    pub mn: [u8; 40],
    pub fr: [u8; 8],
    pub rab: u8,
    pub ieee: [u8; 3],
    pub cmic: u8,
    pub mdts: u8,
    pub cntlid: U16,
    pub ver: U32,
    pub rtd3r: U32,
    pub rtd3e: U32,
    pub oaes: U32,
    pub ctratt: U32,
    pub rrls: U16,
    reserved_102: [u8; 9],
    pub cntrltype: u8,
    reserved_112: [u8; 144],
    pub oacs: U16,
    pub acl: u8,
    pub aerl: u8,
    pub frmw: u8,
    pub lpa: u8,
    pub elpe: u8,
    pub npss: u8,
    reserved_264: [u8; 56],
    pub kas: U16,
    reserved_322: [u8; 190],
    pub sqes: u8,
    pub cqes: u8,
    pub maxcmd: U16,
    pub nn: U32,
    pub oncs: U16,
    pub fuses: U16,
    pub fna: u8,
    pub vwc: u8,
    pub awun: U16,
    pub awupf: U16,
    pub icsvscc: u8,
    pub nwpc: u8,
    pub acwu: U16,
    reserved_534: [u8; 2],
    pub sgls: U32,
    pub mnan: U32,
    reserved_544: [u8; 224],
    pub subnqn: [u8; 256],
    reserved_1024: [u8; 768],
    pub ioccsz: U32,
    pub iorcsz: U32,
    pub icdoff: U16,
    pub fcatt: u8,
    pub msdbd: u8,
    reserved_1804: [u8; 2292],
}

const _: () = assert!(
    size_of::<Controller>() == LEN
        && offset_of!(Controller, mdts) == 77
        && offset_of!(Controller, oaes) == 92
        && offset_of!(Controller, cntrltype) == 111
        && offset_of!(Controller, oacs) == 256
        && offset_of!(Controller, kas) == 320
        && offset_of!(Controller, sqes) == 512
        && offset_of!(Controller, oncs) == 520
        && offset_of!(Controller, vwc) == 525
        && offset_of!(Controller, sgls) == 536
        && offset_of!(Controller, mnan) == 540
        && offset_of!(Controller, subnqn) == 768
        && offset_of!(Controller, ioccsz) == 1792
        && offset_of!(Controller, msdbd) == 1803
);

/// Optional commands: Compare, Dataset Management and Write Zeroes.
const ONCS: u16 = 1 << 0 | 1 << 2 | 1 << 3;
/// Asynchronous events: a namespace has changed.
pub const EVENT_NAMESPACE: u32 = 1 << 8;

/// What differs between the controllers of this target.
#[derive(Clone, Copy, Debug)]
pub struct ControllerTraits<'a> {
    /// The controller.
    pub id: u16,
    /// The subsystem's name.
    pub nqn: &'a str,
    /// The subsystem's serial number.
    pub serial: &'a str,
    /// The subsystem's model.
    pub model: &'a str,
    /// A controller of the discovery subsystem.
    pub discovery: bool,
    /// The longest transfer: this power of two, in pages of 4 KiB.
    pub mdts: u8,
    /// The largest in-capsule data in bytes; a multiple of 16.
    pub in_capsule: u32,
    /// The number of commands of a queue.
    pub depth: u16,
    /// Some backend keeps data in a volatile cache.
    pub cache: bool,
    /// The Asynchronous Event Requests that are parked, less one.
    pub events: u8,
    /// The largest number of a namespace.
    pub namespaces: u32,
}

impl Controller {
    /// The answer for this controller.
    pub fn new(of: ControllerTraits<'_>) -> Self {
        let mut id = Self::new_zeroed();
        id.sn = padded(of.serial, b' ');
        id.mn = padded(of.model, b' ');
        id.fr = padded(env!("CARGO_PKG_VERSION"), b' ');
        id.rab = 6;
        // Several controllers, and several ports.
        id.cmic = 0b11;
        id.mdts = of.mdts;
        id.cntlid = of.id.into();
        id.ver = VERSION.into();
        // A host identifier of 128 bits; every command counts as a sign of life.
        id.ctratt = (1 << 0 | 1 << 6).into();
        id.cntrltype = if of.discovery { 2 } else { 1 };
        id.acl = 3;
        id.aerl = of.events;
        id.frmw = 0b11;
        // The effects log, and offsets into log pages.
        id.lpa = 1 << 1 | 1 << 2;
        // In units of 100 ms.
        id.kas = 10.into();
        id.maxcmd = of.depth.into();
        // Keyed descriptors; the address of in-capsule data is an offset.
        id.sgls = (1 << 0 | 1 << 2 | 1 << 20).into();
        id.subnqn = padded(of.nqn, 0);
        // In units of 16 bytes, the command or response included.
        id.ioccsz = ((super::SQE_LEN as u32 + of.in_capsule) / 16).into();
        id.iorcsz = 1.into();
        id.msdbd = 1;
        if !of.discovery {
            id.oaes = EVENT_NAMESPACE.into();
            (id.sqes, id.cqes) = (0x66, 0x44);
            id.nn = of.namespaces.into();
            id.mnan = of.namespaces.into();
            id.oncs = ONCS.into();
            // With a cache: Flush of all namespaces by 0xffffffff is not supported.
            id.vwc = u8::from(of.cache) | 0b10 << 1;
        }
        id
    }
}

/// What the NVM command set adds to the controller: Write Zeroes is limited as transfers are.
pub fn nvm_controller(mdts: u8) -> Vec<u8> {
    let mut page = vec![0; LEN];
    // VSL (Verify, which there is not), WZSL.
    page[1] = mdts;
    page
}

/// A format of blocks.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
#[expect(missing_docs, reason = "the names are those of the specification")]
pub struct LbaFormat {
    pub ms: U16,
    pub lbads: u8,
    pub rp: u8,
}

/// Identify Namespace.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
#[expect(missing_docs, reason = "the names are those of the specification")]
pub struct Namespace {
    pub nsze: U64,
    pub ncap: U64,
    pub nuse: U64,
    pub nsfeat: u8,
    pub nlbaf: u8,
    pub flbas: u8,
    pub mc: u8,
    pub dpc: u8,
    pub dps: u8,
    pub nmic: u8,
    pub rescap: u8,
    pub fpi: u8,
    pub dlfeat: u8,
    reserved_34: [u8; 70],
    pub nguid: [u8; 16],
    pub eui64: [u8; 8],
    pub lbaf: [LbaFormat; 16],
    reserved_192: [u8; 3904],
}

const _: () = assert!(
    size_of::<Namespace>() == LEN
        && offset_of!(Namespace, flbas) == 26
        && offset_of!(Namespace, nmic) == 30
        && offset_of!(Namespace, dlfeat) == 33
        && offset_of!(Namespace, nguid) == 104
        && offset_of!(Namespace, lbaf) == 128
);

impl Namespace {
    /// The answer for a namespace of this many blocks of 2 to the power of `shift` bytes.
    pub fn new(blocks: u64, shift: u8, nguid: [u8; 16]) -> Self {
        let mut id = Self::new_zeroed();
        (id.nsze, id.ncap, id.nuse) = (blocks.into(), blocks.into(), blocks.into());
        // Shared by several controllers.
        id.nmic = 1;
        // Deallocated blocks read as zeroes, and Write Zeroes may deallocate.
        id.dlfeat = 1 | 1 << 3;
        id.nguid = nguid;
        id.lbaf[0].lbads = shift;
        id
    }
}

/// The names of a namespace: NGUID, UUID, and the command set, NVM.
pub fn descriptors(uuid: [u8; 16]) -> Vec<u8> {
    let mut list = vec![0; LEN];
    let mut at = 0;
    for (kind, name) in [(2, &uuid[..]), (3, &uuid[..]), (4, &[0][..])] {
        list[at] = kind;
        list[at + 1] = name.len() as u8;
        list[at + 4..][..name.len()].copy_from_slice(name);
        at += 4 + name.len();
    }
    list
}

/// The numbers of namespaces, in ascending order, as many as fit.
pub fn namespaces(numbers: impl Iterator<Item = u32>) -> Vec<u8> {
    let mut list = vec![0; LEN];
    for (place, number) in list.chunks_exact_mut(4).zip(numbers) {
        place.copy_from_slice(&number.to_le_bytes());
    }
    list
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_of_identify_controller() {
        let id = Controller::new(ControllerTraits {
            id: 0x1234,
            nqn: "nqn.x",
            serial: "S1",
            model: "M",
            discovery: false,
            mdts: 5,
            in_capsule: 4096,
            depth: 128,
            cache: true,
            events: 3,
            namespaces: 1024,
        });
        let bytes = id.as_bytes();
        assert_eq!(&bytes[4..24], b"S1                  ");
        assert_eq!((bytes[77], &bytes[78..80]), (5, &[0x34, 0x12][..]));
        assert_eq!(bytes[111], 1);
        assert_eq!((bytes[320], bytes[321]), (10, 0));
        assert_eq!((bytes[512], bytes[513]), (0x66, 0x44));
        assert_eq!(bytes[514..516], [128, 0]);
        assert_eq!(bytes[520], 0b1101);
        assert_eq!(bytes[525], 0b101);
        assert_eq!(bytes[536..540], [5, 0, 16, 0]);
        assert_eq!(&bytes[768..774], b"nqn.x\0");
        assert_eq!(bytes[1792..1796], 260u32.to_le_bytes());
        assert_eq!(bytes[1796], 1);
    }

    #[test]
    fn fields_of_identify_namespace() {
        let id = Namespace::new(0x0102, 12, [9; 16]);
        let bytes = id.as_bytes();
        assert_eq!((bytes[0], bytes[8], bytes[16]), (2, 2, 2));
        assert_eq!(bytes[104..120], [9; 16]);
        assert_eq!(bytes[128..132], [0, 0, 12, 0]);
    }

    #[test]
    fn descriptors_have_their_lengths() {
        let list = descriptors([5; 16]);
        assert_eq!(list[..4], [2, 16, 0, 0]);
        assert_eq!(list[20..24], [3, 16, 0, 0]);
        assert_eq!(list[24..40], [5; 16]);
        assert_eq!(list[40..46], [4, 1, 0, 0, 0, 0]);
    }

    #[test]
    fn lists_of_namespaces_end_with_zero_or_are_full() {
        assert_eq!(namespaces([1, 7].into_iter())[..12], [1, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(namespaces(1..=5000).len(), LEN);
    }
}
