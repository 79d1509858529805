//! The checks before the book, each with its reason, in the order of the file. Zero turns a limit off.

use crate::book::Side;
use crate::ouch::{Enter, HIGHEST, MARKET, MOST_SHARES, RejectReason, Replace, display, time_in_force};

/// What every session must keep to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    /// Shares of an order.
    pub size: u32,
    /// Price times shares, in 1/10,000 of a dollar.
    pub notional: u64,
    /// How far an order may go beyond the last price, in 1/10,000 of it. Market orders stop there.
    pub collar: u32,
    /// Open orders of a session.
    pub open_orders: u32,
    /// The same order of a session again within these nanoseconds.
    pub duplicate: u64,
    /// Orders of a session a second, with a second's worth at once.
    pub rate: u32,
    /// Messages beyond the rate, one after the other, before the session is cut off.
    pub flood: u32,
    /// Whether an order stops at one of its own session, and its rest is canceled.
    pub prevent_self_match: bool,
}

impl Default for Rules {
    fn default() -> Self {
        Self {
            size: 100_000,
            notional: 50_000_000 * 10_000,
            collar: 1000,
            open_orders: 1000,
            duplicate: 0,
            rate: 100_000,
            flood: 10_000,
            prevent_self_match: true,
        }
    }
}

impl Rules {
    /// The cost of a message, and what may be paid later, in nanoseconds.
    #[inline]
    pub fn cost(&self) -> (u64, u64) {
        match self.rate {
            0 => (0, u64::MAX),
            rate => (1_000_000_000 / u64::from(rate), 1_000_000_000),
        }
    }
}

/// What an Enter or a Replace asks for.
#[derive(Clone, Copy, Debug)]
pub struct Terms {
    /// Shares.
    pub quantity: u32,
    /// As in the message.
    pub price: u64,
    /// As in the message.
    pub time_in_force: u8,
    /// As in the message.
    pub display: u8,
    /// As in the message.
    pub intermarket_sweep: u8,
}

impl From<&Enter> for Terms {
    #[inline]
    fn from(m: &Enter) -> Self {
        Self {
            quantity: m.quantity.get(),
            price: m.price.get(),
            time_in_force: m.time_in_force,
            display: m.display,
            intermarket_sweep: m.intermarket_sweep,
        }
    }
}

impl From<&Replace> for Terms {
    #[inline]
    fn from(m: &Replace) -> Self {
        Self {
            quantity: m.quantity.get(),
            price: m.price.get(),
            time_in_force: m.time_in_force,
            display: m.display,
            intermarket_sweep: m.intermarket_sweep,
        }
    }
}

/// What becomes of an order that has passed the checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allowed {
    /// The worst price.
    pub limit: u32,
    /// A market order.
    pub is_market: bool,
    /// What does not execute at once is canceled.
    pub is_immediate: bool,
    /// It must not execute at once.
    pub is_post_only: bool,
}

/// The side of its letter.
#[inline]
pub fn side_of(letter: u8) -> Option<Side> {
    match letter {
        b'B' => Some(Side::Buy),
        b'S' | b'T' | b'E' => Some(Side::Sell),
        _ => None,
    }
}

impl Terms {
    /// Checks an order of this side. `last`: the last price of the symbol; 0: none. `executed`: shares
    /// that count against the quantity.
    ///
    /// # Errors
    /// The reason of the first check that fails.
    #[inline]
    pub fn check(
        &self,
        rules: &Rules,
        side: Side,
        last: u32,
        executed: u32,
    ) -> Result<Allowed, RejectReason> {
        if self.quantity <= executed || self.quantity > MOST_SHARES {
            return Err(RejectReason::Quantity);
        }
        let is_market = self.price >= MARKET;
        if !is_market && !(1..=HIGHEST).contains(&self.price) {
            return Err(RejectReason::Price);
        }
        let is_immediate = match self.time_in_force {
            time_in_force::DAY => is_market,
            time_in_force::IOC => true,
            _ => return Err(RejectReason::Other),
        };
        let is_post_only = match self.display {
            display::VISIBLE | display::ATTRIBUTABLE => false,
            display::POST_ONLY if !is_immediate => true,
            _ => return Err(RejectReason::Display),
        };
        if self.intermarket_sweep != b'N' {
            return Err(RejectReason::IntermarketSweep);
        }
        let limit = self.within_collar(rules, side, last, is_market)?;
        let open = self.quantity - executed;
        if rules.size > 0 && open > rules.size {
            return Err(RejectReason::Size);
        }
        if rules.notional > 0 && u64::from(limit) * u64::from(open) > rules.notional {
            return Err(RejectReason::Notional);
        }
        Ok(Allowed { limit, is_market, is_immediate, is_post_only })
    }

    /// The worst price that the order takes. Without a last price no order passes.
    #[inline]
    fn within_collar(
        &self,
        rules: &Rules,
        side: Side,
        last: u32,
        is_market: bool,
    ) -> Result<u32, RejectReason> {
        let width = match rules.collar {
            0 => u64::from(u32::MAX),
            _ if last == 0 => return Err(RejectReason::NoQuote),
            collar => u64::from(last) * u64::from(collar) / 10_000,
        };
        let last = u64::from(last);
        let worst = match side {
            Side::Buy => (last + width).min(HIGHEST),
            Side::Sell => last.saturating_sub(width).max(1),
        };
        let is_beyond = match side {
            Side::Buy => self.price > worst,
            Side::Sell => self.price < worst,
        };
        match (is_market, is_beyond) {
            (true, _) => Ok(worst as u32),
            (false, true) => Err(RejectReason::FatFinger),
            (false, false) => Ok(self.price as u32),
        }
    }
}
