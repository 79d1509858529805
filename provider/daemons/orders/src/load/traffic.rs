//! What the sessions send: random orders around the prices of the symbols, so that about half of them
//! execute, with cancels, replaces and some orders that are not valid.

use crate::market::Listing;
use crate::ouch::{Cancel, Enter, LONGEST_IN, Replace, display, inbound, time_in_force};
use std::collections::VecDeque;
use zerocopy::IntoBytes;

/// Orders that a session believes to have open at most.
const OPEN: usize = 16;
/// Prices are multiples of a cent.
const TICK: u64 = 100;

/// A message to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message {
    bytes: [u8; LONGEST_IN],
    length: u8,
    /// The URN that an answer will have; 0: there may be none.
    pub urn: u32,
}

impl Message {
    fn new(bytes: &[u8], urn: u32) -> Self {
        let mut message = Self { bytes: [0; LONGEST_IN], length: bytes.len() as u8, urn };
        message.bytes[..bytes.len()].copy_from_slice(bytes);
        message
    }

    /// An Account Query.
    pub fn query() -> Self {
        Self::new(&[inbound::QUERY], 0)
    }

    /// Its bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.length)]
    }
}

#[derive(Debug, Default)]
struct Trader {
    last_urn: u32,
    open: VecDeque<u32>,
}

/// The orders of all sessions.
#[derive(Debug)]
pub struct Traffic {
    listings: Vec<Listing>,
    traders: Vec<Trader>,
    random: u64,
}

impl Traffic {
    /// Sessions that have sent nothing yet. Equal seeds give equal orders.
    pub fn new(listings: &[Listing], sessions: usize, seed: u64) -> Self {
        let trader = || Trader { last_urn: 0, open: VecDeque::with_capacity(OPEN + 1) };
        Self { listings: listings.to_vec(), traders: (0..sessions).map(|_| trader()).collect(), random: seed }
    }

    /// A number below `below` (SplitMix64).
    fn random(&mut self, below: u64) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.random;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ z >> 31) % below
    }

    /// The next message of a session.
    pub fn next(&mut self, session: usize) -> Message {
        let kind = self.random(100);
        let trader = &mut self.traders[session];
        if (trader.open.len() >= OPEN || kind < 13)
            && let Some(urn) = trader.open.pop_front()
        {
            // Some only in part: what is left can be canceled again.
            let quantity = if kind.is_multiple_of(4) { 50 } else { 0 };
            trader.open.extend((quantity > 0).then_some(urn));
            let cancel = Cancel { kind: inbound::CANCEL, urn: urn.into(), quantity: quantity.into() };
            return Message::new(cancel.as_bytes(), 0);
        }
        let count = self.listings.len() as u64;
        let number = self.random(count) as usize;
        let listing = self.listings[number];
        let quantity = 1 + self.random(400) as u32;
        let price = (u64::from(listing.price) + self.random(20) * TICK).saturating_sub(10 * TICK).max(TICK);
        let is_buy = self.random(2) == 0;
        let trader = &mut self.traders[session];
        trader.last_urn += 1;
        let urn = trader.last_urn;
        if kind < 23
            && let Some(old_urn) = trader.open.pop_front()
        {
            trader.open.push_back(urn);
            let replace = Replace {
                kind: inbound::REPLACE,
                old_urn: old_urn.into(),
                urn: urn.into(),
                quantity: quantity.into(),
                price: price.into(),
                time_in_force: time_in_force::DAY,
                display: display::VISIBLE,
                intermarket_sweep: b'N',
                order_id: *b"replaced      ",
                appendage: 0.into(),
            };
            return Message::new(replace.as_bytes(), urn);
        }
        let mut enter = Enter {
            kind: inbound::ENTER,
            urn: urn.into(),
            side: if is_buy { b'B' } else { b'S' },
            quantity: quantity.into(),
            symbol: listing.name,
            price: price.into(),
            time_in_force: time_in_force::DAY,
            display: display::VISIBLE,
            capacity: b'P',
            intermarket_sweep: b'N',
            cross: b'N',
            order_id: *b"entered       ",
            appendage: 0.into(),
        };
        match kind {
            23..31 => enter.time_in_force = time_in_force::IOC,
            31..36 => enter.price = 0x7fff_ffff.into(),
            36..43 => enter.display = display::POST_ONLY,
            43 => enter.quantity = 0.into(),
            44 => enter.symbol = *b"?       ",
            _ => {}
        }
        if !matches!(kind, 23..36 | 43 | 44) {
            trader.open.push_back(urn);
        }
        Message::new(enter.as_bytes(), urn)
    }
}
