//! Messages: OUCH 5.0 without appendages. Each is declared once; sizes and offsets are asserted.
//!
//! Numbers are big-endian, texts are padded with spaces, prices have four decimals. A letter can mean
//! one message inbound and another one outbound.
//!
//! Beside OUCH: a heartbeat each way (as in SoupBinTCP), which has no sequence number, and the display
//! code `P`, post-only, of OUCH 4.2: in OUCH 5.0 that is an appendage.

use std::mem::offset_of;
use zerocopy::byteorder::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of the longest message in.
pub const LONGEST_IN: usize = size_of::<Enter>();
/// Bytes of the longest message out.
pub const LONGEST_OUT: usize = size_of::<Replaced>();

/// Orders at this price or above are market orders.
pub const MARKET: u64 = 2_000_000_000;
/// The highest price of a limit order: $199,999.9900.
pub const HIGHEST: u64 = 0x7735_939c;
/// The highest quantity.
pub const MOST_SHARES: u32 = 999_999;

/// Types of messages in.
pub mod inbound {
    /// [`Enter`](super::Enter).
    pub const ENTER: u8 = b'O';
    /// [`Replace`](super::Replace).
    pub const REPLACE: u8 = b'U';
    /// [`Cancel`](super::Cancel).
    pub const CANCEL: u8 = b'X';
    /// Account Query: the type alone.
    pub const QUERY: u8 = b'Q';
    /// Heartbeat: the type alone.
    pub const HEARTBEAT: u8 = b'R';
}

/// Types of messages out.
pub mod outbound {
    /// [`System`](super::System).
    pub const SYSTEM: u8 = b'S';
    /// [`Accepted`](super::Accepted).
    pub const ACCEPTED: u8 = b'A';
    /// [`Replaced`](super::Replaced).
    pub const REPLACED: u8 = b'U';
    /// [`Canceled`](super::Canceled).
    pub const CANCELED: u8 = b'C';
    /// [`Executed`](super::Executed).
    pub const EXECUTED: u8 = b'E';
    /// [`Rejected`](super::Rejected).
    pub const REJECTED: u8 = b'J';
    /// [`Answer`](super::Answer) to an Account Query.
    pub const ANSWER: u8 = b'Q';
    /// Heartbeat: the type alone, without a sequence number.
    pub const HEARTBEAT: u8 = b'H';
}

/// Declares a message: its fields with their offsets, which are asserted, and its size.
macro_rules! message {
    ($(#[$doc:meta])* $name:ident, $size:literal { $($field:ident: $type:ty = $offset:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
        #[repr(C)]
        #[expect(missing_docs, reason = "the names are those of OUCH")]
        pub struct $name { $(pub $field: $type,)* }
        const _: () = assert!(size_of::<$name>() == $size);
        $(const _: () = assert!(offset_of!($name, $field) == $offset);)*
    };
}

message! {
    /// Enter Order.
    Enter, 47 {
        kind: u8 = 0,
        urn: U32 = 1,
        side: u8 = 5,
        quantity: U32 = 6,
        symbol: [u8; 8] = 10,
        price: U64 = 18,
        time_in_force: u8 = 26,
        display: u8 = 27,
        capacity: u8 = 28,
        intermarket_sweep: u8 = 29,
        cross: u8 = 30,
        order_id: [u8; 14] = 31,
        appendage: U16 = 45,
    }
}

message! {
    /// Replace Order Request.
    Replace, 40 {
        kind: u8 = 0,
        old_urn: U32 = 1,
        urn: U32 = 5,
        quantity: U32 = 9,
        price: U64 = 13,
        time_in_force: u8 = 21,
        display: u8 = 22,
        intermarket_sweep: u8 = 23,
        order_id: [u8; 14] = 24,
        appendage: U16 = 38,
    }
}

message! {
    /// Cancel Order Request. `quantity`: the most that may execute in all; 0 cancels the rest.
    Cancel, 9 {
        kind: u8 = 0,
        urn: U32 = 1,
        quantity: U32 = 5,
    }
}

message! {
    /// System Event: `S` the day starts, `E` it ends.
    System, 10 {
        kind: u8 = 0,
        time: U64 = 1,
        event: u8 = 9,
    }
}

message! {
    /// Order Accepted. `state`: `L` live, `D` dead.
    Accepted, 64 {
        kind: u8 = 0,
        time: U64 = 1,
        urn: U32 = 9,
        side: u8 = 13,
        quantity: U32 = 14,
        symbol: [u8; 8] = 18,
        price: U64 = 26,
        time_in_force: u8 = 34,
        display: u8 = 35,
        reference: U64 = 36,
        capacity: u8 = 44,
        intermarket_sweep: u8 = 45,
        cross: u8 = 46,
        state: u8 = 47,
        order_id: [u8; 14] = 48,
        appendage: U16 = 62,
    }
}

message! {
    /// Order Replaced. `quantity`: what is open.
    Replaced, 68 {
        kind: u8 = 0,
        time: U64 = 1,
        old_urn: U32 = 9,
        urn: U32 = 13,
        side: u8 = 17,
        quantity: U32 = 18,
        symbol: [u8; 8] = 22,
        price: U64 = 30,
        time_in_force: u8 = 38,
        display: u8 = 39,
        reference: U64 = 40,
        capacity: u8 = 48,
        intermarket_sweep: u8 = 49,
        cross: u8 = 50,
        state: u8 = 51,
        order_id: [u8; 14] = 52,
        appendage: U16 = 66,
    }
}

message! {
    /// Order Canceled, or part of one: `quantity` less is open.
    Canceled, 18 {
        kind: u8 = 0,
        time: U64 = 1,
        urn: U32 = 9,
        quantity: U32 = 13,
        reason: u8 = 17,
    }
}

message! {
    /// Order Executed. `match_number`: the same on both sides.
    Executed, 36 {
        kind: u8 = 0,
        time: U64 = 1,
        urn: U32 = 9,
        quantity: U32 = 13,
        price: U64 = 17,
        liquidity: u8 = 25,
        match_number: U64 = 26,
        appendage: U16 = 34,
    }
}

message! {
    /// Order Rejected.
    Rejected, 29 {
        kind: u8 = 0,
        time: U64 = 1,
        urn: U32 = 9,
        reason: U16 = 13,
        order_id: [u8; 14] = 15,
    }
}

message! {
    /// Account Query Response.
    Answer, 13 {
        kind: u8 = 0,
        time: U64 = 1,
        next_urn: U32 = 9,
    }
}

/// Time in force.
pub mod time_in_force {
    /// Rests until it is executed or canceled.
    pub const DAY: u8 = b'0';
    /// Immediate or cancel.
    pub const IOC: u8 = b'3';
}

/// Display.
pub mod display {
    /// Visible.
    pub const VISIBLE: u8 = b'Y';
    /// Attributable, which is no different here.
    pub const ATTRIBUTABLE: u8 = b'A';
    /// Post-only: never takes liquidity.
    pub const POST_ONLY: u8 = b'P';
}

/// Liquidity of an execution.
pub mod liquidity {
    /// The order rested.
    pub const ADDED: u8 = b'A';
    /// The order came in.
    pub const REMOVED: u8 = b'R';
}

/// Why an order was canceled (OUCH 5.0, appendix C).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum CancelReason {
    /// Its owner asked for it.
    User = b'U',
    /// Immediate or cancel: nothing more to execute with. Also the rest of a market order.
    Immediate = b'I',
    /// A market order has reached the collar.
    Collar = b'K',
    /// It would have executed with an order of the same session.
    SelfMatch = b'Q',
    /// Post-only, and a displayed order is on the other side.
    PostOnly = b'G',
    /// Its session is gone.
    Supervisory = b'S',
    /// The book has no place for another price.
    System = b'Z',
}

/// Why an order was rejected (OUCH 5.0, appendix D).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum RejectReason {
    /// There is no price to compare with.
    NoQuote = 0x01,
    /// Hidden, or no valid display.
    Display = 0x03,
    /// An intermarket sweep, which this market has not.
    IntermarketSweep = 0x08,
    /// No valid side.
    Side = 0x09,
    /// The gateway has no place for more orders.
    Processing = 0x0a,
    /// Something else is not valid.
    Other = 0x0f,
    /// No valid quantity.
    Quantity = 0x13,
    /// An order for a cross.
    Cross = 0x14,
    /// No such symbol.
    Symbol = 0x17,
    /// No valid price.
    Price = 0x1d,
    /// Check: too many open orders of the session.
    OpenOrders = 0x20,
    /// Check: the price is outside the collar.
    FatFinger = 0x26,
    /// Check: too many orders of the session in a second.
    Rate = 0x29,
    /// Check: the same order again, too soon.
    Duplicate = 0x2a,
    /// Check: price times quantity.
    Notional = 0x30,
    /// Check: the quantity of one order.
    Size = 0x31,
}

/// A message from a session.
#[derive(Clone, Copy, Debug)]
pub enum Inbound<'a> {
    /// See [`Enter`].
    Enter(&'a Enter),
    /// See [`Replace`].
    Replace(&'a Replace),
    /// See [`Cancel`].
    Cancel(&'a Cancel),
    /// Account Query.
    Query,
    /// Heartbeat.
    Heartbeat,
}

impl<'a> Inbound<'a> {
    /// The message in these bytes. `None`: no message has this type and length, or it has an
    /// appendage. An empty appendage may be there where it is optional.
    #[inline]
    pub fn parse(bytes: &'a [u8]) -> Option<Self> {
        let (&kind, rest) = bytes.split_first()?;
        match kind {
            inbound::ENTER => {
                Enter::ref_from_bytes(bytes).ok().filter(|enter| enter.appendage == 0).map(Self::Enter)
            }
            inbound::REPLACE => {
                let replace = Replace::ref_from_bytes(bytes).ok();
                replace.filter(|replace| replace.appendage == 0).map(Self::Replace)
            }
            inbound::CANCEL => {
                let (cancel, appendage) = Cancel::ref_from_prefix(bytes).ok()?;
                matches!(appendage, [] | [0, 0]).then_some(Self::Cancel(cancel))
            }
            inbound::QUERY => matches!(rest, [] | [0, 0]).then_some(Self::Query),
            inbound::HEARTBEAT => rest.is_empty().then_some(Self::Heartbeat),
            _ => None,
        }
    }
}

/// The URN in a message out that is about an order.
pub fn urn_of(message: &[u8]) -> Option<u32> {
    let offset = match *message.first()? {
        outbound::REPLACED => offset_of!(Replaced, urn),
        outbound::ACCEPTED | outbound::CANCELED | outbound::EXECUTED | outbound::REJECTED => 9,
        _ => return None,
    };
    Some(u32::from_be_bytes(*message.get(offset..)?.first_chunk()?))
}

/// The time in a message out, except heartbeats.
pub fn time_of(message: &[u8]) -> Option<u64> {
    Some(u64::from_be_bytes(*message.get(1..)?.first_chunk()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_of_an_order() {
        let enter = Enter {
            kind: inbound::ENTER,
            urn: 7.into(),
            side: b'B',
            quantity: 500.into(),
            symbol: *b"S000    ",
            price: 1_000_000.into(),
            time_in_force: b'0',
            display: b'Y',
            capacity: b'P',
            intermarket_sweep: b'N',
            cross: b'N',
            order_id: *b"abc           ",
            appendage: 0.into(),
        };
        let mut expected =
            b"O\0\0\0\x07B\0\0\x01\xf4S000    \0\0\0\0\0\x0f\x42\x400YPNNabc           ".to_vec();
        expected.extend([0, 0]);
        assert_eq!(enter.as_bytes(), expected);
        assert!(matches!(Inbound::parse(&expected), Some(Inbound::Enter(parsed)) if *parsed == enter));
    }

    #[test]
    fn what_is_no_message() {
        let long = [b'O'; 200];
        for length in (0..200).filter(|&length| length != LONGEST_IN) {
            assert!(Inbound::parse(&long[..length]).is_none(), "{length}");
        }
        // With an appendage.
        assert!(Inbound::parse(&long[..LONGEST_IN]).is_none());
        assert!(Inbound::parse(b"X\0\0\0\x01\0\0\0\0").is_some());
        assert!(Inbound::parse(b"X\0\0\0\x01\0\0\0\0\0\0").is_some());
        assert!(Inbound::parse(b"X\0\0\0\x01\0\0\0\0\0\x01").is_none());
        assert!(Inbound::parse(b"Q\0\0").is_some());
        assert!(Inbound::parse(b"Q\0").is_none());
        assert!(Inbound::parse(b"R").is_some());
        assert!(Inbound::parse(b"Z").is_none());
    }
}
