//! A market that is obviously right, and slow: the load generator and the tests compare the gateway with
//! it. It shares nothing with [`market`](crate::market) but the messages and the names of the limits.
//!
//! It knows no rates and no duplicates: with those limits, answers depend on more than the order of the
//! messages.

use crate::market::Listing;
use crate::ouch::{
    Accepted, Answer, Cancel, CancelReason, Canceled, Enter, Executed, HIGHEST, Inbound, MARKET, MOST_SHARES,
    RejectReason, Rejected, Replace, Replaced,
};
use crate::rules::Rules;
use std::collections::BTreeMap;
use zerocopy::IntoBytes;

/// An open order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Open {
    /// Whose it is.
    pub session: u32,
    /// Its URN.
    pub urn: u32,
    /// Its price.
    pub price: u64,
    /// Shares that may execute.
    pub open: u32,
    /// Shares of its chain that have executed.
    pub executed: u32,
    /// The letter of its side.
    pub side: u8,
    capacity: u8,
    cross: u8,
}

impl Open {
    fn buys(&self) -> bool {
        self.side == b'B'
    }
}

/// Messages to sessions, in order.
pub type Out = Vec<(u32, Vec<u8>)>;

/// The market.
#[derive(Debug)]
pub struct Naive {
    rules: Rules,
    listings: Vec<Listing>,
    last: Vec<u64>,
    /// By symbol; the oldest first.
    orders: Vec<Vec<Open>>,
    symbol_of: BTreeMap<(u32, u32), usize>,
    last_urn: BTreeMap<u32, u32>,
    next_reference: u64,
    next_match: u64,
    time: u64,
    out: Out,
}

/// The part of a message that decides what becomes of an order.
struct Terms {
    quantity: u32,
    price: u64,
    tif: u8,
    display: u8,
    sweep: u8,
}

impl Naive {
    /// An empty market.
    pub fn new(rules: Rules, listings: &[Listing]) -> Self {
        Self {
            rules,
            listings: listings.to_vec(),
            last: listings.iter().map(|listing| listing.price.into()).collect(),
            orders: vec![Vec::new(); listings.len()],
            symbol_of: BTreeMap::new(),
            last_urn: BTreeMap::new(),
            next_reference: 1,
            next_match: 1,
            time: 0,
            out: Out::new(),
        }
    }

    /// The orders of a side of a symbol, best first.
    pub fn orders(&self, symbol: usize, buys: bool) -> Vec<Open> {
        let mut orders: Vec<_> =
            self.orders[symbol].iter().copied().filter(|order| order.buys() == buys).collect();
        // Stable: the oldest of a price stays first.
        orders.sort_by_key(|order| if buys { u64::MAX - order.price } else { order.price });
        orders
    }

    /// The open order of this session and URN.
    pub fn find(&self, session: u32, urn: u32) -> Option<Open> {
        let symbol = *self.symbol_of.get(&(session, urn))?;
        self.orders[symbol].iter().copied().find(|order| order.session == session && order.urn == urn)
    }

    /// The URNs of a session's open orders.
    fn open_of(&self, session: u32) -> impl Iterator<Item = u32> {
        self.symbol_of.range((session, 0)..=(session, u32::MAX)).map(|(key, _)| key.1)
    }

    /// The number of open orders.
    pub fn open_orders(&self) -> usize {
        self.symbol_of.len()
    }

    /// What a message of a session brings about.
    pub fn apply(&mut self, time: u64, session: u32, message: Inbound<'_>) -> Out {
        self.time = time;
        match message {
            Inbound::Enter(enter) => self.enter(session, enter),
            Inbound::Replace(replace) => self.replace(session, replace),
            Inbound::Cancel(cancel) => self.cancel(session, cancel),
            Inbound::Query => {
                let next = self.last_urn.get(&session).copied().unwrap_or(0) + 1;
                let answer = Answer { kind: b'Q', time: time.into(), next_urn: next.into() };
                self.out.push((session, answer.as_bytes().to_vec()));
            }
            Inbound::Heartbeat => {}
        }
        std::mem::take(&mut self.out)
    }

    /// The orders of a session are canceled because it is gone.
    pub fn cancel_all(&mut self, time: u64, session: u32) -> Out {
        self.time = time;
        // In the order of their URNs: that is the order of their times.
        let urns: Vec<u32> = self.open_of(session).collect();
        for urn in urns {
            let order = self.take(session, urn);
            self.canceled(session, urn, order.open, CancelReason::Supervisory);
        }
        std::mem::take(&mut self.out)
    }

    fn is_new(&self, session: u32, urn: u32) -> bool {
        urn > self.last_urn.get(&session).copied().unwrap_or(0)
    }

    fn enter(&mut self, session: u32, m: &Enter) {
        let urn = m.urn.get();
        if !self.is_new(session, urn) {
            return;
        }
        self.last_urn.insert(session, urn);
        let terms = Terms {
            quantity: m.quantity.get(),
            price: m.price.get(),
            tif: m.time_in_force,
            display: m.display,
            sweep: m.intermarket_sweep,
        };
        let symbol = self.listings.iter().position(|listing| listing.name == m.symbol);
        let open = self.open_of(session).count() as u32;
        let reason = if !b"BSTE".contains(&m.side) {
            Some(RejectReason::Side)
        } else if symbol.is_none() {
            Some(RejectReason::Symbol)
        } else if m.cross != b'N' {
            Some(RejectReason::Cross)
        } else if !b"APRO".contains(&m.capacity) {
            Some(RejectReason::Other)
        } else if let Some(reason) = self.fault(&terms, symbol.unwrap_or(0), m.side == b'B', 0) {
            Some(reason)
        } else if self.rules.open_orders > 0 && open >= self.rules.open_orders {
            Some(RejectReason::OpenOrders)
        } else {
            None
        };
        if let Some(reason) = reason {
            let rejected = Rejected {
                kind: b'J',
                time: self.time.into(),
                urn: m.urn,
                reason: (reason as u16).into(),
                order_id: m.order_id,
            };
            return self.out.push((session, rejected.as_bytes().to_vec()));
        }
        let accepted = Accepted {
            kind: b'A',
            time: self.time.into(),
            urn: m.urn,
            side: m.side,
            quantity: m.quantity,
            symbol: m.symbol,
            price: m.price,
            time_in_force: m.time_in_force,
            display: m.display,
            reference: self.next_reference.into(),
            capacity: m.capacity,
            intermarket_sweep: m.intermarket_sweep,
            cross: m.cross,
            state: b'L',
            order_id: m.order_id,
            appendage: 0.into(),
        };
        self.next_reference += 1;
        self.out.push((session, accepted.as_bytes().to_vec()));
        let order = Open {
            session,
            urn,
            price: terms.price,
            open: terms.quantity,
            executed: 0,
            side: m.side,
            capacity: m.capacity,
            cross: m.cross,
        };
        self.place(order, &terms, symbol.unwrap_or(0));
    }

    fn replace(&mut self, session: u32, m: &Replace) {
        let Some(old) = self.find(session, m.old_urn.get()) else { return };
        if !self.is_new(session, m.urn.get()) {
            return;
        }
        let symbol = self.symbol_of[&(session, old.urn)];
        let terms = Terms {
            quantity: m.quantity.get(),
            price: m.price.get(),
            tif: m.time_in_force,
            display: m.display,
            sweep: m.intermarket_sweep,
        };
        self.take(session, old.urn);
        if self.fault(&terms, symbol, old.buys(), old.executed).is_some() {
            return self.canceled(session, old.urn, old.open, CancelReason::User);
        }
        self.last_urn.insert(session, m.urn.get());
        let open = terms.quantity - old.executed;
        let replaced = Replaced {
            kind: b'U',
            time: self.time.into(),
            old_urn: m.old_urn,
            urn: m.urn,
            side: old.side,
            quantity: open.into(),
            symbol: self.listings[symbol].name,
            price: m.price,
            time_in_force: m.time_in_force,
            display: m.display,
            reference: self.next_reference.into(),
            capacity: old.capacity,
            intermarket_sweep: m.intermarket_sweep,
            cross: old.cross,
            state: b'L',
            order_id: m.order_id,
            appendage: 0.into(),
        };
        self.next_reference += 1;
        self.out.push((session, replaced.as_bytes().to_vec()));
        self.place(Open { urn: m.urn.get(), price: terms.price, open, ..old }, &terms, symbol);
    }

    fn cancel(&mut self, session: u32, m: &Cancel) {
        let Some(order) = self.find(session, m.urn.get()) else { return };
        let open = m.quantity.get().saturating_sub(order.executed);
        if open >= order.open {
            return;
        }
        if open == 0 {
            self.take(session, order.urn);
        } else {
            let symbol = self.symbol_of[&(session, order.urn)];
            for other in &mut self.orders[symbol] {
                if other.session == session && other.urn == order.urn {
                    other.open = open;
                }
            }
        }
        self.canceled(session, order.urn, order.open - open, CancelReason::User);
    }

    /// The last price and the prices around it that are allowed.
    fn collar(&self, symbol: usize) -> (u64, u64) {
        let (last, collar) = (self.last[symbol], u64::from(self.rules.collar));
        let width = if collar == 0 { u64::from(u32::MAX) } else { last * collar / 10_000 };
        (last.saturating_sub(width).max(1), (last + width).min(HIGHEST))
    }

    fn fault(&self, terms: &Terms, symbol: usize, buys: bool, executed: u32) -> Option<RejectReason> {
        let is_market = terms.price >= MARKET;
        let (lowest, highest) = self.collar(symbol);
        let worst = if buys { highest } else { lowest };
        let price = if is_market { worst } else { terms.price };
        let is_immediate = terms.tif == b'3' || is_market;
        if terms.quantity <= executed || terms.quantity > MOST_SHARES {
            Some(RejectReason::Quantity)
        } else if !is_market && (terms.price == 0 || terms.price > HIGHEST) {
            Some(RejectReason::Price)
        } else if terms.tif != b'0' && terms.tif != b'3' {
            Some(RejectReason::Other)
        } else if !b"YAP".contains(&terms.display) || (terms.display == b'P' && is_immediate) {
            Some(RejectReason::Display)
        } else if terms.sweep != b'N' {
            Some(RejectReason::IntermarketSweep)
        } else if self.rules.collar > 0 && self.last[symbol] == 0 {
            Some(RejectReason::NoQuote)
        } else if (buys && price > highest) || (!buys && price < lowest) {
            Some(RejectReason::FatFinger)
        } else if self.rules.size > 0 && terms.quantity - executed > self.rules.size {
            Some(RejectReason::Size)
        } else if self.rules.notional > 0
            && price * u64::from(terms.quantity - executed) > self.rules.notional
        {
            Some(RejectReason::Notional)
        } else {
            None
        }
    }

    fn place(&mut self, mut order: Open, terms: &Terms, symbol: usize) {
        let is_market = terms.price >= MARKET;
        let (lowest, highest) = self.collar(symbol);
        if is_market {
            order.price = if order.buys() { highest } else { lowest };
        }
        let (buys, limit) = (order.buys(), order.price);
        let crosses =
            move |resting: &Open| if buys { resting.price <= limit } else { resting.price >= limit };
        if terms.display == b'P' && self.orders(symbol, !order.buys()).first().is_some_and(crosses) {
            return self.canceled(order.session, order.urn, order.open, CancelReason::PostOnly);
        }
        while order.open > 0 {
            let best = self.orders(symbol, !order.buys()).first().copied();
            let Some(resting) = best.filter(crosses) else {
                let reason = match best {
                    Some(_) if is_market => CancelReason::Collar,
                    _ if is_market || terms.tif == b'3' => CancelReason::Immediate,
                    _ => {
                        self.symbol_of.insert((order.session, order.urn), symbol);
                        return self.orders[symbol].push(order);
                    }
                };
                return self.canceled(order.session, order.urn, order.open, reason);
            };
            if self.rules.prevent_self_match && resting.session == order.session {
                return self.canceled(order.session, order.urn, order.open, CancelReason::SelfMatch);
            }
            let shares = resting.open.min(order.open);
            self.executed(order.session, order.urn, shares, resting.price, b'R');
            self.executed(resting.session, resting.urn, shares, resting.price, b'A');
            self.next_match += 1;
            self.last[symbol] = resting.price;
            order.open -= shares;
            order.executed += shares;
            if resting.open == shares {
                self.take(resting.session, resting.urn);
            }
            for other in &mut self.orders[symbol] {
                if (other.session, other.urn) == (resting.session, resting.urn) {
                    other.open -= shares;
                    other.executed += shares;
                }
            }
        }
    }

    /// Takes an open order out.
    fn take(&mut self, session: u32, urn: u32) -> Open {
        let symbol = self.symbol_of.remove(&(session, urn)).expect("an open order");
        let orders = &mut self.orders[symbol];
        let at = orders.iter().position(|order| (order.session, order.urn) == (session, urn));
        orders.remove(at.expect("an open order"))
    }

    fn canceled(&mut self, session: u32, urn: u32, shares: u32, reason: CancelReason) {
        let canceled = Canceled {
            kind: b'C',
            time: self.time.into(),
            urn: urn.into(),
            quantity: shares.into(),
            reason: reason as u8,
        };
        self.out.push((session, canceled.as_bytes().to_vec()));
    }

    fn executed(&mut self, session: u32, urn: u32, shares: u32, price: u64, liquidity: u8) {
        let executed = Executed {
            kind: b'E',
            time: self.time.into(),
            urn: urn.into(),
            quantity: shares.into(),
            price: price.into(),
            liquidity,
            match_number: self.next_match.into(),
            appendage: 0.into(),
        };
        self.out.push((session, executed.as_bytes().to_vec()));
    }
}
