//! Fabrics commands, their data, properties, and the private data of connections.

use super::padded;
use std::mem::offset_of;
use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The opcode of all Fabrics commands.
pub const OPCODE: u8 = 0x7f;
/// Type: Property Set.
pub const PROPERTY_SET: u8 = 0x00;
/// Type: Connect.
pub const CONNECT: u8 = 0x01;
/// Type: Property Get.
pub const PROPERTY_GET: u8 = 0x04;

/// Property: capabilities, 8 bytes.
pub const CAP: u32 = 0x00;
/// Property: version.
pub const VS: u32 = 0x08;
/// Property: configuration.
pub const CC: u32 = 0x14;
/// Property: status.
pub const CSTS: u32 = 0x1c;

/// Connect without flow control of the submission queue: bit of the attributes.
pub const NO_FLOW_CONTROL: u8 = 1 << 2;

/// The data of Connect.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct ConnectData {
    /// The host's UUID.
    pub host_id: [u8; 16],
    /// The controller: 0xffff on an admin queue.
    pub controller: U16,
    reserved: [u8; 238],
    /// The name of the subsystem, ended by a zero byte.
    pub subsystem: [u8; 256],
    /// The name of the host, ended by a zero byte.
    pub host: [u8; 256],
    reserved2: [u8; 256],
}

const _: () = assert!(
    size_of::<ConnectData>() == 1024
        && offset_of!(ConnectData, subsystem) == 256
        && offset_of!(ConnectData, host) == 512
);

impl ConnectData {
    /// The data with which this host connects to this subsystem.
    pub fn new(host_id: [u8; 16], controller: u16, subsystem: &str, host: &str) -> Self {
        Self {
            host_id,
            controller: controller.into(),
            reserved: [0; 238],
            subsystem: padded(subsystem, 0),
            host: padded(host, 0),
            reserved2: [0; 256],
        }
    }
}

/// The private data of a connection request.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct RequestData {
    /// The format: 0.
    pub format: U16,
    /// The queue: 0 for the admin queue.
    pub qid: U16,
    /// The number of receives that the host posts.
    pub receives: U16,
    /// The number of commands that the host sends at a time, less one.
    pub sends: U16,
    /// The controller of an I/O queue.
    pub controller: U16,
    reserved: [u8; 22],
}

const _: () = assert!(size_of::<RequestData>() == 32 && offset_of!(RequestData, sends) == 6);

impl RequestData {
    /// The private data for this queue, with this number of entries.
    pub fn new(qid: u16, entries: u16, controller: u16) -> Self {
        Self {
            qid: qid.into(),
            receives: entries.into(),
            sends: entries.wrapping_sub(1).into(),
            controller: controller.into(),
            ..Self::default()
        }
    }
}

/// The private data of an accepted connection.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct AcceptData {
    /// The format: 0.
    pub format: U16,
    /// The number of commands that the target takes at a time.
    pub entries: U16,
    reserved: [u8; 28],
}

impl AcceptData {
    /// The private data that grants this number of commands.
    pub fn new(entries: u16) -> Self {
        Self { entries: entries.into(), ..Self::default() }
    }
}

const _: () = assert!(size_of::<AcceptData>() == 32);

/// The private data of a rejected connection.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct RejectData {
    /// The format: 0.
    pub format: U16,
    /// The reason: a [`Reject`].
    pub status: U16,
}

/// Why a connection is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[repr(u16)]
pub enum Reject {
    /// The private data are too short.
    #[error("the private data are too short")]
    Length = 1,
    /// The private data have an unknown format.
    #[error("the private data have an unknown format")]
    Format = 2,
    /// No such queue.
    #[error("no such queue")]
    Queue = 3,
    /// The host would send more commands than the target takes.
    #[error("the host would send more commands than the target takes")]
    SendSize = 4,
    /// The host has too few receives.
    #[error("the host has too few receives")]
    ReceiveSize = 5,
    /// The target has no resources left.
    #[error("the target has no resources left")]
    Resources = 6,
}

impl Reject {
    /// The private data with this reason.
    pub fn data(self) -> RejectData {
        RejectData { format: 0.into(), status: (self as u16).into() }
    }
}

/// The parameters of Connect in its command, from byte 40 on.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct ConnectParameters {
    /// The format: 0.
    pub format: U16,
    /// The queue.
    pub qid: U16,
    /// The number of entries, less one.
    pub size: U16,
    /// The attributes: [`NO_FLOW_CONTROL`].
    pub attributes: u8,
    reserved: u8,
    /// The keep-alive timeout in milliseconds.
    pub keep_alive: U32,
    reserved2: [u8; 12],
}

const _: () = assert!(size_of::<ConnectParameters>() == 24 && offset_of!(ConnectParameters, keep_alive) == 8);

impl ConnectParameters {
    /// The parameters in a command.
    pub fn of(sqe: &super::Sqe) -> Self {
        Self::read_from_bytes(&sqe.as_bytes()[40..64]).expect("24 bytes")
    }

    /// The parameters for a queue with this number of entries.
    pub fn new(qid: u16, entries: u16, keep_alive: u32) -> Self {
        Self {
            format: 0.into(),
            qid: qid.into(),
            size: entries.wrapping_sub(1).into(),
            attributes: 0,
            reserved: 0,
            keep_alive: keep_alive.into(),
            reserved2: [0; 12],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::{Sqe, text};

    #[test]
    fn private_data_of_requests() {
        let mut bytes = [0; 56];
        bytes[2..10].copy_from_slice(&[1, 0, 128, 0, 127, 0, 5, 0]);
        let (data, _) = RequestData::read_from_prefix(&bytes).unwrap();
        assert_eq!(data, RequestData::new(1, 128, 5));
    }

    #[test]
    fn private_data_of_answers() {
        assert_eq!(AcceptData::new(0x0102).as_bytes()[..4], [0, 0, 2, 1]);
        assert_eq!(Reject::Resources.data().as_bytes(), [0, 0, 6, 0]);
    }

    #[test]
    fn parameters_of_connect() {
        let mut bytes = [0; 64];
        bytes[40..52].copy_from_slice(&[0, 0, 3, 0, 31, 0, 4, 0, 0x88, 0x13, 0, 0]);
        let sqe = Sqe::read_from_bytes(&bytes).unwrap();
        let connect = ConnectParameters::of(&sqe);
        assert_eq!((connect.qid.get(), connect.size.get(), connect.keep_alive.get()), (3, 31, 5000));
        assert_eq!(connect.attributes, NO_FLOW_CONTROL);
    }

    #[test]
    fn data_of_connect() {
        let data = ConnectData::new([7; 16], 0xffff, "nqn.a", "nqn.b");
        let bytes = data.as_bytes();
        assert_eq!(bytes[..18], [7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 0xff, 0xff]);
        assert_eq!((text(&bytes[256..512]), text(&bytes[512..768])), (Some("nqn.a"), Some("nqn.b")));
    }
}
