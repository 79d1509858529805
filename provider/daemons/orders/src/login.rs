//! Login and its answers, in the private data of a connection.

use crate::session::User;
use zerocopy::byteorder::big_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The first bytes of all private data.
const MAGIC: [u8; 4] = *b"DBO1";

/// What a client asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Login {
    magic: [u8; 4],
    /// Who trades.
    pub user: User,
    /// The password, padded with spaces.
    pub password: [u8; 10],
    /// The number of the first message that the client wants; 0: only new ones.
    pub next: U64,
    /// 1: cancel the orders of this session when the connection ends.
    pub cancel_at_end: u8,
}

/// The answer to a login.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Welcome {
    magic: [u8; 4],
    /// The number of the first message that follows.
    pub next: U64,
    /// The lowest URN that was not used.
    pub next_urn: U32,
}

/// The answer to a login that is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Refused {
    magic: [u8; 4],
    reason: u8,
    /// For [`Refusal::Forgotten`]: the number of the oldest message that is left.
    pub oldest: U64,
}

/// Why a login is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[repr(u8)]
pub enum Refusal {
    /// The private data are not a login.
    #[error("not a login")]
    NoLogin = 1,
    /// Not the password.
    #[error("wrong password")]
    Password = 2,
    /// The session has a connection.
    #[error("this session is connected already")]
    Connected = 3,
    /// Messages that the client has not got are no longer kept.
    #[error("the messages from that number on are no longer kept")]
    Forgotten = 4,
    /// The client expects a number that no message has had.
    #[error("no message has had that number")]
    Ahead = 5,
    /// There is no room for another session.
    #[error("no more sessions")]
    Full = 6,
    /// The gateway ends.
    #[error("the gateway ends")]
    Ending = 7,
}

impl Login {
    /// A login.
    pub fn new(user: User, password: [u8; 10], next: u64, cancel_at_end: bool) -> Self {
        Self { magic: MAGIC, user, password, next: next.into(), cancel_at_end: cancel_at_end.into() }
    }

    /// The login in private data, behind which there may be zeroes.
    pub fn parse(private_data: &[u8]) -> Option<Self> {
        Self::read_from_prefix(private_data).ok().map(|(login, _)| login).filter(|l| l.magic == MAGIC)
    }
}

impl Welcome {
    /// An answer.
    pub fn new(next: u64, next_urn: u32) -> Self {
        Self { magic: MAGIC, next: next.into(), next_urn: next_urn.into() }
    }

    /// As [`Login::parse`].
    pub fn parse(private_data: &[u8]) -> Option<Self> {
        Self::read_from_prefix(private_data).ok().map(|(welcome, _)| welcome).filter(|w| w.magic == MAGIC)
    }
}

impl Refused {
    /// An answer.
    pub fn new(reason: Refusal, oldest: u64) -> Self {
        Self { magic: MAGIC, reason: reason as u8, oldest: oldest.into() }
    }

    /// As [`Login::parse`].
    pub fn parse(private_data: &[u8]) -> Option<(Refusal, u64)> {
        use Refusal::{Ahead, Connected, Ending, Forgotten, Full, NoLogin, Password};
        let (refused, _) = Self::read_from_prefix(private_data).ok()?;
        let all = [NoLogin, Password, Connected, Forgotten, Ahead, Full, Ending];
        let reason = all.into_iter().find(|&reason| reason as u8 == refused.reason)?;
        (refused.magic == MAGIC).then_some((reason, refused.oldest.get()))
    }
}

// A request has at most 56 bytes.
const _: () = assert!(size_of::<Login>() <= 56);

/// A text of `N` bytes, padded with spaces; `None` if it is longer.
pub fn padded<const N: usize>(text: &str) -> Option<[u8; N]> {
    let mut bytes = [b' '; N];
    bytes.get_mut(..text.len())?.copy_from_slice(text.as_bytes());
    Some(bytes)
}
