//! The bytes of NVMe over Fabrics: command and response capsules, and what they point to. All
//! integers are little-endian. Names are those of the specifications.
//!
//! # References
//! NVM Express Base Specification 2.0, NVM Express NVM Command Set Specification 1.0, NVM Express
//! RDMA Transport Specification 1.0.

pub mod fabrics;
pub mod identify;
pub mod log;

use std::mem::offset_of;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The version in the property VS and in Identify Controller: 1.4.
pub const VERSION: u32 = 0x0001_0400;

/// The name of the discovery subsystem.
pub const DISCOVERY_NQN: &str = "nqn.2014-08.org.nvmexpress.discovery";

/// The size of a command in its capsule.
pub const SQE_LEN: usize = size_of::<Sqe>();

/// Flags: the bits of fused operations.
const FUSED: u8 = 0b11;
/// Flags: the bits of the kind of data pointer.
const KINDS: u8 = 0b11 << 6;
/// Flags: the data pointer is a descriptor.
const DESCRIPTOR: u8 = 0b01 << 6;

/// A submission queue entry: the command at the start of a capsule.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Sqe {
    /// The operation: [`admin`], [`io`] or [`fabrics::OPCODE`].
    pub opcode: u8,
    /// Bits 7:6: the kind of data pointer; hosts of this transport set 01, a descriptor.
    pub flags: u8,
    /// The host's name for the command, returned in the response.
    pub command_id: U16,
    /// The namespace. In a Fabrics command, the first byte is the type.
    pub nsid: U32,
    /// Two reserved words.
    pub cdw2: [U32; 2],
    /// The address of separate metadata, which this target does not support.
    pub metadata: U64,
    /// The data pointer; [`Data::of`] reads it.
    pub data: [u8; 16],
    /// Parameters of the command.
    pub cdw10: U32,
    /// Parameters of the command.
    pub cdw11: U32,
    /// Parameters of the command.
    pub cdw12: U32,
    /// Parameters of the command.
    pub cdw13: U32,
    /// Parameters of the command.
    pub cdw14: U32,
    /// Parameters of the command.
    pub cdw15: U32,
}

const _: () = assert!(SQE_LEN == 64 && offset_of!(Sqe, data) == 24 && offset_of!(Sqe, cdw10) == 40);

impl Default for Sqe {
    /// All zero, but for the flags: the data pointer is a descriptor.
    fn default() -> Self {
        Self { flags: DESCRIPTOR, ..Self::new_zeroed() }
    }
}

impl Sqe {
    /// Whether the flags are those that this transport prescribes: no fused operation, and a
    /// descriptor as data pointer.
    pub fn has_valid_flags(&self) -> bool {
        self.flags & (FUSED | KINDS) == DESCRIPTOR
    }

    /// The type of a Fabrics command.
    pub fn fabrics_type(&self) -> u8 {
        self.nsid.get() as u8
    }

    /// The 64-bit value in these two words.
    pub fn wide(low: U32, high: U32) -> u64 {
        u64::from(high.get()) << 32 | u64::from(low.get())
    }
}

/// A completion queue entry: a response capsule.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Cqe {
    /// The result of the command.
    pub result: U64,
    /// How far the target has come in the submission queue.
    pub sq_head: U16,
    /// The queue.
    pub sq_id: U16,
    /// The host's name for the command.
    pub command_id: U16,
    /// [`Status`] shifted by one.
    pub status: U16,
}

const _: () = assert!(size_of::<Cqe>() == 16 && offset_of!(Cqe, command_id) == 12);

/// The status of a command: status code, status code type and the bit "do not retry".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status(pub u16);

impl Status {
    /// Success.
    pub const SUCCESS: Self = Self(0);
    /// "Do not retry".
    pub const DNR: u16 = 0x4000;

    const fn dnr(code: u16) -> Self {
        Self(code | Self::DNR)
    }

    /// Unknown opcode.
    pub const INVALID_OPCODE: Self = Self::dnr(0x01);
    /// A field has a value that is not supported.
    pub const INVALID_FIELD: Self = Self::dnr(0x02);
    /// The data could not be transferred.
    pub const DATA_TRANSFER_ERROR: Self = Self(0x04);
    /// An internal error; the host may try again.
    pub const INTERNAL: Self = Self(0x06);
    /// Another command has aborted it.
    pub const ABORTED: Self = Self(0x07);
    /// No such namespace.
    pub const INVALID_NAMESPACE: Self = Self::dnr(0x0b);
    /// A command in the wrong state.
    pub const SEQUENCE_ERROR: Self = Self::dnr(0x0c);
    /// The length of the data differs from what the command transfers.
    pub const SGL_LENGTH: Self = Self::dnr(0x0f);
    /// An unsupported type of descriptor.
    pub const SGL_TYPE: Self = Self::dnr(0x11);
    /// In-capsule data outside of the capsule.
    pub const SGL_OFFSET: Self = Self::dnr(0x16);
    /// Blocks beyond the end of the namespace.
    pub const LBA_RANGE: Self = Self::dnr(0x80);
    /// The backend has no space left.
    pub const CAPACITY_EXCEEDED: Self = Self::dnr(0x81);
    /// The namespace is not ready; the host may try again.
    pub const NOT_READY: Self = Self(0x82);
    /// More Asynchronous Event Requests than the controller parks.
    pub const TOO_MANY_EVENTS: Self = Self::dnr(0x105);
    /// The feature cannot be changed.
    pub const NOT_CHANGEABLE: Self = Self::dnr(0x10e);
    /// No such log page.
    pub const INVALID_LOG_PAGE: Self = Self::dnr(0x109);
    /// Connect: unknown format.
    pub const CONNECT_FORMAT: Self = Self::dnr(0x180);
    /// Connect: the controller is busy.
    pub const CONNECT_BUSY: Self = Self(0x181);
    /// Connect: an invalid parameter.
    pub const CONNECT_PARAMETER: Self = Self::dnr(0x182);
    /// Connect: this host may not use the subsystem.
    pub const CONNECT_HOST: Self = Self::dnr(0x184);
    /// The backend could not write.
    pub const WRITE_FAULT: Self = Self(0x280);
    /// The backend could not read.
    pub const READ_ERROR: Self = Self(0x281);
    /// Compare found a difference.
    pub const COMPARE_FAILURE: Self = Self(0x285);

    /// Whether the command succeeded.
    pub fn is_success(self) -> bool {
        self == Self::SUCCESS
    }
}

/// Opcodes of the admin queue.
pub mod admin {
    /// Get Log Page.
    pub const GET_LOG_PAGE: u8 = 0x02;
    /// Identify.
    pub const IDENTIFY: u8 = 0x06;
    /// Abort.
    pub const ABORT: u8 = 0x08;
    /// Set Features.
    pub const SET_FEATURES: u8 = 0x09;
    /// Get Features.
    pub const GET_FEATURES: u8 = 0x0a;
    /// Asynchronous Event Request.
    pub const ASYNC_EVENT: u8 = 0x0c;
    /// Keep Alive.
    pub const KEEP_ALIVE: u8 = 0x18;
}

/// Opcodes of I/O queues.
pub mod io {
    /// Flush.
    pub const FLUSH: u8 = 0x00;
    /// Write.
    pub const WRITE: u8 = 0x01;
    /// Read.
    pub const READ: u8 = 0x02;
    /// Compare.
    pub const COMPARE: u8 = 0x05;
    /// Write Zeroes.
    pub const WRITE_ZEROES: u8 = 0x08;
    /// Dataset Management.
    pub const DATASET_MANAGEMENT: u8 = 0x09;
}

/// One range of Dataset Management.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct DsmRange {
    /// Hints, which this target ignores.
    pub attributes: U32,
    /// The number of blocks.
    pub blocks: U32,
    /// The first block.
    pub start: U64,
}

/// Where the data of a command are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Data {
    /// The command has no data.
    None,
    /// In the host's memory.
    Keyed {
        /// The host's address.
        address: u64,
        /// The length in bytes; up to 16 MiB.
        length: u32,
        /// The key of the host's memory.
        key: u32,
        /// The response shall invalidate the key.
        invalidate: bool,
    },
    /// In the capsule, from this offset behind the command.
    Capsule {
        /// The offset from the end of the command.
        offset: usize,
        /// The length in bytes.
        length: u32,
    },
}

/// The type byte of a keyed descriptor.
const KEYED: u8 = 0x40;
/// The type byte of a keyed descriptor whose key the response invalidates.
const KEYED_INVALIDATE: u8 = 0x4f;
/// The type byte of a descriptor of in-capsule data.
const IN_CAPSULE: u8 = 0x01;

impl Data {
    /// Reads the data pointer of a command. The capsule has `in_capsule` bytes behind the command.
    ///
    /// # Errors
    /// The status with which the command fails.
    pub fn of(sqe: &Sqe, in_capsule: usize) -> Result<Self, Status> {
        let (address, rest) = sqe.data.split_at(8);
        let address = u64::from_le_bytes(address.try_into().expect("eight bytes"));
        let word = |at: usize| u32::from_le_bytes(rest[at..at + 4].try_into().expect("four bytes"));
        match sqe.data[15] {
            kind @ (KEYED | KEYED_INVALIDATE) => {
                let (length, key) = (word(0) & 0xff_ffff, word(3));
                if length == 0 && key == 0 {
                    return Ok(Self::None);
                }
                Ok(Self::Keyed { address, length, key, invalidate: kind == KEYED_INVALIDATE })
            }
            IN_CAPSULE => {
                let length = word(0);
                let fits = address.checked_add(length.into()).is_some_and(|end| end <= in_capsule as u64);
                if !fits {
                    return Err(Status::SGL_OFFSET);
                }
                Ok(Self::Capsule { offset: address as usize, length })
            }
            _ => Err(Status::INVALID_FIELD),
        }
    }

    /// The length of the data in bytes.
    pub fn length(&self) -> u32 {
        match *self {
            Self::None => 0,
            Self::Keyed { length, .. } | Self::Capsule { length, .. } => length,
        }
    }
}

/// A text in a field of fixed size, padded with this byte, and cut if it is too long.
fn padded<const N: usize>(text: &str, pad: u8) -> [u8; N] {
    let mut field = [pad; N];
    let text = &text.as_bytes()[..text.len().min(N)];
    field[..text.len()].copy_from_slice(text);
    field
}

/// The text in a field up to its first zero byte. `None` without a zero byte, or if the bytes are
/// not UTF-8.
pub fn text(field: &[u8]) -> Option<&str> {
    let end = field.iter().position(|&byte| byte == 0)?;
    std::str::from_utf8(&field[..end]).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A data pointer by its bytes, as the specification lays it out.
    fn pointer(low: u64, middle: u32, key: u32, kind: u8) -> Sqe {
        let mut sqe = Sqe::default();
        sqe.data[..8].copy_from_slice(&low.to_le_bytes());
        sqe.data[8..12].copy_from_slice(&middle.to_le_bytes());
        if key != 0 {
            sqe.data[11..15].copy_from_slice(&key.to_le_bytes());
        }
        sqe.data[15] = kind;
        sqe
    }

    #[test]
    fn fields_of_a_command_lie_where_the_specification_says() {
        let bytes: Vec<u8> = (0..64).collect();
        let sqe = Sqe::read_from_bytes(&bytes).unwrap();
        assert_eq!((sqe.opcode, sqe.flags), (0, 1));
        assert_eq!(sqe.command_id.get(), 0x0302);
        assert_eq!(sqe.nsid.get(), 0x0706_0504);
        assert_eq!(sqe.fabrics_type(), 4);
        assert_eq!(sqe.data[0], 24);
        assert_eq!(sqe.cdw10.get(), 0x2b2a_2928);
        assert_eq!(sqe.cdw15.get(), 0x3f3e_3d3c);
        assert_eq!(Sqe::wide(sqe.cdw10, sqe.cdw11), 0x2f2e_2d2c_2b2a_2928);
    }

    #[test]
    fn flags_are_those_of_the_transport() {
        let has_valid_flags = |flags| Sqe { flags, ..Sqe::default() }.has_valid_flags();
        assert!(Sqe::default().has_valid_flags() && has_valid_flags(0x40) && has_valid_flags(0x44));
        assert!([0, 0x41, 0x42, 0x80, 0xc0].into_iter().all(|flags| !has_valid_flags(flags)));
    }

    #[test]
    fn fields_of_a_response_lie_where_the_specification_says() {
        let cqe = Cqe {
            result: 0x0807_0605_0403_0201.into(),
            sq_head: 0x0a09.into(),
            sq_id: 0x0c0b.into(),
            command_id: 0x0e0d.into(),
            status: 0x100f.into(),
        };
        assert_eq!(cqe.as_bytes(), (1..=16).collect::<Vec<u8>>());
    }

    #[test]
    fn keyed_descriptors() {
        let sqe = pointer(0x1122_3344_5566_7788, 0x1000, 0xaabb_ccdd, 0x4f);
        let expected = Data::Keyed {
            address: 0x1122_3344_5566_7788,
            length: 0x1000,
            key: 0xaabb_ccdd,
            invalidate: true,
        };
        assert_eq!(Data::of(&sqe, 0), Ok(expected));
        let sqe = pointer(7, 0xff_ffff, 0x0100_0000, 0x40);
        let expected = Data::Keyed { address: 7, length: 0xff_ffff, key: 0x0100_0000, invalidate: false };
        assert_eq!(Data::of(&sqe, 0), Ok(expected));
        assert_eq!(Data::of(&pointer(0, 0, 0, 0x40), 0), Ok(Data::None));
    }

    #[test]
    fn in_capsule_data_must_lie_in_the_capsule() {
        let in_capsule = |offset, length| Data::of(&pointer(offset, length, 0, 0x01), 4096);
        assert_eq!(in_capsule(0, 4096), Ok(Data::Capsule { offset: 0, length: 4096 }));
        assert_eq!(in_capsule(4096, 0), Ok(Data::Capsule { offset: 4096, length: 0 }));
        assert_eq!(in_capsule(0, 4097), Err(Status::SGL_OFFSET));
        assert_eq!(in_capsule(1, 4096), Err(Status::SGL_OFFSET));
        assert_eq!(in_capsule(u64::MAX, 2), Err(Status::SGL_OFFSET));
    }

    #[test]
    fn other_descriptors_are_refused() {
        for kind in (0..=255).filter(|kind| ![0x40, 0x4f, 0x01].contains(kind)) {
            assert_eq!(Data::of(&pointer(0, 0, 0, kind), 4096), Err(Status::INVALID_FIELD), "{kind:#x}");
        }
    }

    #[test]
    fn texts_end_at_the_first_zero() {
        assert_eq!(text(b"nqn\0rest"), Some("nqn"));
        assert_eq!(text(b"nqn"), None);
        assert_eq!(text(b"\xff\0"), None);
        assert_eq!(padded::<4>("ab", b' '), *b"ab  ");
        assert_eq!(padded::<2>("abc", 0), *b"ab");
    }
}
