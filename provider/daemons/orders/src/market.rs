//! The market: sessions, checks and books together. It turns each message of a session into messages
//! to sessions, and knows no transport, no file and no clock.
//!
//! Everything here depends on its inputs alone: the messages in their order, each with its time. So a
//! journal of the inputs gives the same market again, byte for byte ([`Market::snapshot`]).
//!
//! All messages out of one input carry the same time, and times increase strictly from input to input.
//! Whoever has the messages of all sessions can therefore put the inputs into their order.

use crate::book::{Book, Details, Incoming, NONE, Order, Side, Slab, Stop};
use crate::ouch::{
    Accepted, Answer, CancelReason, Canceled, Enter, Executed, Inbound, RejectReason, Rejected, Replace,
    Replaced, System, liquidity, outbound,
};
use crate::rules::{Allowed, Rules, Terms, side_of};
use crate::session::{Session, Sessions, User};
use crate::table::Table;
use zerocopy::IntoBytes;

/// How large a market is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Sessions.
    pub sessions: usize,
    /// Messages that a session can have again.
    pub window: usize,
    /// Open orders of all sessions.
    pub orders: usize,
    /// Prices on each side of a book.
    pub levels: usize,
}

/// A symbol, with the price of its first order's checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listing {
    /// Its name.
    pub name: [u8; 8],
    /// Its price at the start.
    pub price: u32,
}

#[derive(Debug)]
struct Symbol {
    name: [u8; 8],
    last: u32,
    book: Book,
}

/// What becomes of the sender of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It goes on.
    Fine,
    /// It sends far more than it may.
    Flood,
}

/// The market.
#[derive(Debug)]
pub struct Market {
    rules: Rules,
    symbols: Vec<Symbol>,
    by_name: Table,
    orders: Orders,
    /// All sessions.
    pub sessions: Sessions,
    time: u64,
    next_reference: u64,
    next_match: u64,
}

/// The orders of all books, and where they are.
#[derive(Debug)]
struct Orders {
    slab: Slab,
    /// By session and URN.
    index: Table,
}

#[inline]
fn key(session: u32, urn: u32) -> u64 {
    u64::from(session) << 32 | u64::from(urn)
}

impl Orders {
    /// Notes an order that a book has taken: in the index, and as the youngest of its session.
    #[inline]
    fn note(&mut self, number: u32, session: &mut Session) {
        let order = self.slab.get_mut(number);
        self.index.insert(key(order.session, order.urn), number);
        (order.older, order.younger) = (session.youngest, NONE);
        match session.youngest {
            NONE => session.oldest = number,
            youngest => self.slab.get_mut(youngest).younger = number,
        }
        session.youngest = number;
        session.open += 1;
    }

    /// Forgets an order that leaves its book.
    #[inline]
    fn forget(&mut self, number: u32, session: &mut Session) {
        forget(&mut self.slab, &mut self.index, number, session);
    }
}

#[inline]
fn forget(slab: &mut Slab, index: &mut Table, number: u32, session: &mut Session) {
    let Order { session: owner, urn, older, younger, .. } = *slab.get(number);
    index.remove(key(owner, urn));
    match older {
        NONE => session.oldest = younger,
        older => slab.get_mut(older).younger = younger,
    }
    match younger {
        NONE => session.youngest = older,
        younger => slab.get_mut(younger).older = older,
    }
    session.open -= 1;
}

impl Market {
    /// A market without sessions and orders.
    pub fn new(rules: Rules, sizes: Sizes, listings: &[Listing]) -> Self {
        let mut by_name = Table::new(listings.len());
        for (number, listing) in (0..).zip(listings) {
            by_name.insert(u64::from_ne_bytes(listing.name), number);
        }
        let symbol = |&Listing { name, price }: &Listing| {
            // No side can have more prices than there are orders.
            Symbol { name, last: price, book: Book::new(sizes.levels.min(sizes.orders)) }
        };
        Self {
            rules,
            symbols: listings.iter().map(symbol).collect(),
            by_name,
            orders: Orders { slab: Slab::new(sizes.orders), index: Table::new(sizes.orders) },
            sessions: Sessions::new(sizes.sessions, sizes.window),
            time: 0,
            next_reference: 1,
            next_match: 1,
        }
    }

    /// Sets the time of the next input: now, but later than that of the input before.
    #[inline]
    pub fn advance(&mut self, now: u64) -> u64 {
        self.time = now.max(self.time + 1);
        self.time
    }

    /// A session connects. Returns its number; `None` if there is no room for a new one.
    pub fn login(&mut self, user: User, cancel_at_end: bool) -> Option<u32> {
        let number = match self.sessions.find(user) {
            Some(number) => number,
            None => {
                let number = self.sessions.add(user)?;
                self.event(number, b'S');
                number
            }
        };
        self.sessions.get_mut(number).cancel_at_end = cancel_at_end;
        Some(number)
    }

    /// The connection of a session has ended.
    pub fn gone(&mut self, number: u32) {
        if !self.sessions.get(number).cancel_at_end {
            return;
        }
        loop {
            let order = self.sessions.get(number).oldest;
            if order == NONE {
                break;
            }
            self.cancel_whole(order, CancelReason::Supervisory);
        }
    }

    /// The day ends.
    pub fn end(&mut self) {
        for number in 0..self.sessions.all().len() {
            self.event(number as u32, b'E');
        }
    }

    fn event(&mut self, number: u32, event: u8) {
        let message = System { kind: outbound::SYSTEM, time: self.time.into(), event };
        self.sessions.send(number, message.as_bytes());
    }

    /// A message of a session.
    // A function of its own, so that its instructions can be counted apart from those of the transport.
    #[inline(never)]
    pub fn handle(&mut self, number: u32, message: Inbound<'_>) -> Verdict {
        let (cost, burst) = self.rules.cost();
        let session = self.sessions.get_mut(number);
        let within_rate = session.is_within_rate(self.time, cost, burst);
        let is_flood = session.excess > self.rules.flood;
        match message {
            Inbound::Enter(enter) => self.enter(number, enter, within_rate),
            Inbound::Replace(replace) => self.replace(number, replace, within_rate),
            // Cancels are never too many: they reduce what is at risk.
            Inbound::Cancel(cancel) => self.cancel(number, cancel.urn.get(), cancel.quantity.get()),
            Inbound::Query => {
                let next_urn = (session.last_urn.saturating_add(1)).into();
                let answer = Answer { kind: outbound::ANSWER, time: self.time.into(), next_urn };
                self.sessions.send(number, answer.as_bytes());
            }
            Inbound::Heartbeat => {}
        }
        if is_flood { Verdict::Flood } else { Verdict::Fine }
    }

    fn enter(&mut self, number: u32, enter: &Enter, within_rate: bool) {
        let session = self.sessions.get_mut(number);
        let urn = enter.urn.get();
        if urn <= session.last_urn {
            // Sent again after a reconnect.
            return;
        }
        session.last_urn = urn;
        let (symbol, side, allowed) = match self.check(number, enter, within_rate) {
            Ok(allowed) => allowed,
            Err(reason) => return self.reject(number, urn, reason, enter.order_id),
        };
        let details = Details { side: enter.side, capacity: enter.capacity, cross: enter.cross };
        let accepted = Accepted {
            kind: outbound::ACCEPTED,
            time: self.time.into(),
            urn: enter.urn,
            side: enter.side,
            quantity: enter.quantity,
            symbol: enter.symbol,
            price: enter.price,
            time_in_force: enter.time_in_force,
            display: enter.display,
            reference: self.new_reference().into(),
            capacity: enter.capacity,
            intermarket_sweep: enter.intermarket_sweep,
            cross: enter.cross,
            state: b'L',
            order_id: enter.order_id,
            appendage: 0.into(),
        };
        self.sessions.send(number, accepted.as_bytes());
        let mut order = Order::new(number, urn, symbol, side, allowed.limit, enter.quantity.get());
        order.details = details;
        self.place(order, allowed);
    }

    #[inline]
    fn check(
        &mut self,
        number: u32,
        enter: &Enter,
        within_rate: bool,
    ) -> Result<(u16, Side, Allowed), RejectReason> {
        if !within_rate {
            return Err(RejectReason::Rate);
        }
        let side = side_of(enter.side).ok_or(RejectReason::Side)?;
        let symbol = self.by_name.get(u64::from_ne_bytes(enter.symbol)).ok_or(RejectReason::Symbol)?;
        if enter.cross != b'N' {
            return Err(RejectReason::Cross);
        }
        if !matches!(enter.capacity, b'A' | b'P' | b'R' | b'O') {
            return Err(RejectReason::Other);
        }
        let last = self.symbols[symbol as usize].last;
        let allowed = Terms::from(enter).check(&self.rules, side, last, 0)?;
        let session = self.sessions.get_mut(number);
        if self.rules.open_orders > 0 && session.open >= self.rules.open_orders {
            return Err(RejectReason::OpenOrders);
        }
        let likeness = (symbol as u16, enter.side, enter.quantity.get(), enter.price.get());
        if session.is_duplicate(likeness, self.time, self.rules.duplicate) {
            return Err(RejectReason::Duplicate);
        }
        if !self.orders.slab.has_room() {
            return Err(RejectReason::Processing);
        }
        Ok((symbol as u16, side, allowed))
    }

    fn replace(&mut self, number: u32, replace: &Replace, within_rate: bool) {
        let session = self.sessions.get_mut(number);
        let urn = replace.urn.get();
        let Some(at) = self.orders.index.get(key(number, replace.old_urn.get())) else { return };
        if urn <= session.last_urn {
            return;
        }
        if !within_rate {
            session.last_urn = urn;
            return self.reject(number, urn, RejectReason::Rate, replace.order_id);
        }
        let old = *self.orders.slab.get(at);
        let Symbol { name, last, .. } = self.symbols[usize::from(old.symbol)];
        let terms = Terms::from(replace);
        let Ok(allowed) = terms.check(&self.rules, old.side, last, old.executed) else {
            return self.cancel_whole(at, CancelReason::User);
        };
        session.last_urn = urn;
        self.take_out(at);
        let open = terms.quantity - old.executed;
        let replaced = Replaced {
            kind: outbound::REPLACED,
            time: self.time.into(),
            old_urn: replace.old_urn,
            urn: replace.urn,
            side: old.details.side,
            quantity: open.into(),
            symbol: name,
            price: replace.price,
            time_in_force: replace.time_in_force,
            display: replace.display,
            reference: self.new_reference().into(),
            capacity: old.details.capacity,
            intermarket_sweep: replace.intermarket_sweep,
            cross: old.details.cross,
            state: b'L',
            order_id: replace.order_id,
            appendage: 0.into(),
        };
        self.sessions.send(number, replaced.as_bytes());
        let mut order = Order::new(number, urn, old.symbol, old.side, allowed.limit, open);
        (order.details, order.executed) = (old.details, old.executed);
        self.place(order, allowed);
    }

    /// Executes an order as far as it goes. The rest goes to the book or is canceled.
    #[inline]
    fn place(&mut self, mut order: Order, allowed: Allowed) {
        let Order { session, urn, side, .. } = order;
        let symbol = &mut self.symbols[usize::from(order.symbol)];
        if allowed.is_post_only && symbol.book.crosses(side, allowed.limit) {
            return self.canceled(session, urn, order.open, CancelReason::PostOnly);
        }
        let mut incoming = Incoming {
            session,
            side,
            limit: allowed.limit,
            open: order.open,
            prevent_self_match: self.rules.prevent_self_match,
        };
        let (sessions, next_match, time) = (&mut self.sessions, &mut self.next_match, self.time);
        let Orders { slab, index } = &mut self.orders;
        let last = &mut symbol.last;
        let stop = symbol.book.execute(slab, &mut incoming, |slab, number, shares| {
            let resting = *slab.get(number);
            let mut executed = Executed {
                kind: outbound::EXECUTED,
                time: time.into(),
                urn: urn.into(),
                quantity: shares.into(),
                price: u64::from(resting.price).into(),
                liquidity: liquidity::REMOVED,
                match_number: (*next_match).into(),
                appendage: 0.into(),
            };
            *next_match += 1;
            *last = resting.price;
            sessions.send(session, executed.as_bytes());
            (executed.urn, executed.liquidity) = (resting.urn.into(), liquidity::ADDED);
            sessions.send(resting.session, executed.as_bytes());
            if resting.open == 0 {
                forget(slab, index, number, sessions.get_mut(resting.session));
            }
        });
        let open = incoming.open;
        let reason = match stop {
            Stop::Filled => return,
            Stop::SelfMatch => CancelReason::SelfMatch,
            Stop::Limit if allowed.is_market && symbol.book.crosses(side, anywhere(side)) => {
                CancelReason::Collar
            }
            Stop::Limit if allowed.is_immediate => CancelReason::Immediate,
            Stop::Limit => {
                order.executed += order.open - open;
                order.open = open;
                match symbol.book.add(&mut self.orders.slab, order) {
                    Some(number) => {
                        return self.orders.note(number, self.sessions.get_mut(session));
                    }
                    None => CancelReason::System,
                }
            }
        };
        self.canceled(session, urn, open, reason);
    }

    fn cancel(&mut self, number: u32, urn: u32, intended: u32) {
        let Some(at) = self.orders.index.get(key(number, urn)) else { return };
        let order = self.orders.slab.get_mut(at);
        let open = intended.saturating_sub(order.executed);
        if open == 0 {
            return self.cancel_whole(at, CancelReason::User);
        }
        if open < order.open {
            let less = order.open - open;
            order.open = open;
            self.canceled(number, urn, less, CancelReason::User);
        }
    }

    fn cancel_whole(&mut self, at: u32, reason: CancelReason) {
        let Order { session, urn, open, .. } = *self.orders.slab.get(at);
        self.take_out(at);
        self.canceled(session, urn, open, reason);
    }

    /// Takes an order out of its book.
    #[inline]
    fn take_out(&mut self, at: u32) {
        let Order { session, symbol, .. } = *self.orders.slab.get(at);
        self.orders.forget(at, self.sessions.get_mut(session));
        self.symbols[usize::from(symbol)].book.remove(&mut self.orders.slab, at);
    }

    fn canceled(&mut self, number: u32, urn: u32, shares: u32, reason: CancelReason) {
        let message = Canceled {
            kind: outbound::CANCELED,
            time: self.time.into(),
            urn: urn.into(),
            quantity: shares.into(),
            reason: reason as u8,
        };
        self.sessions.send(number, message.as_bytes());
    }

    fn reject(&mut self, number: u32, urn: u32, reason: RejectReason, order_id: [u8; 14]) {
        let message = Rejected {
            kind: outbound::REJECTED,
            time: self.time.into(),
            urn: urn.into(),
            reason: (reason as u16).into(),
            order_id,
        };
        self.sessions.send(number, message.as_bytes());
    }

    fn new_reference(&mut self) -> u64 {
        let reference = self.next_reference;
        self.next_reference += 1;
        reference
    }

    /// The number of orders in books.
    pub fn open_orders(&self) -> usize {
        self.orders.slab.len()
    }

    /// Orders and replaces that were accepted, and executions.
    pub fn totals(&self) -> (u64, u64) {
        (self.next_reference - 1, self.next_match - 1)
    }

    /// The orders of a side, best first, by the number of their symbol.
    pub fn orders(&self, symbol: usize, side: Side) -> impl Iterator<Item = &Order> {
        self.symbols[symbol].book.orders(&self.orders.slab, side)
    }

    /// Everything in bytes: two markets are equal if these are.
    pub fn snapshot(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut add = |n: u64| bytes.extend(n.to_be_bytes());
        for n in [self.time, self.next_reference, self.next_match] {
            add(n);
        }
        for (number, symbol) in self.symbols.iter().enumerate() {
            add(symbol.last.into());
            for side in [Side::Buy, Side::Sell] {
                for order in self.orders(number, side) {
                    let Order { session, urn, price, open, executed, .. } = *order;
                    for n in [session, urn, price, open, executed] {
                        add(n.into());
                    }
                }
                add(u64::MAX);
            }
        }
        for session in self.sessions.all() {
            let outbox = &session.outbox;
            for n in [session.last_urn, session.open, session.cancel_at_end.into()] {
                add(n.into());
            }
            add(outbox.next());
        }
        for session in self.sessions.all() {
            bytes.extend(session.user);
            for sequence in session.outbox.oldest()..session.outbox.next() {
                bytes.extend(session.outbox.get(sequence).map_or(&[][..], |(message, _)| message));
            }
        }
        bytes
    }
}

/// The limit within which every order of the other side is.
#[inline]
fn anywhere(side: Side) -> u32 {
    match side {
        Side::Buy => u32::MAX,
        Side::Sell => 0,
    }
}
