//! The book of one symbol: orders by price, then by time.
//!
//! A book knows no sessions' rules and no messages. Orders of all books are in one slab, which does not
//! grow. Each side is a list of levels, sorted so that the best is last: most changes are there. A
//! level is a queue of orders, linked through the slab.

/// No order.
pub const NONE: u32 = u32::MAX;

/// Which way an order trades.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Buys.
    Buy,
    /// Sells.
    Sell,
}

impl Side {
    /// The other side.
    pub fn other(self) -> Self {
        match self {
            Self::Buy => Self::Sell,
            Self::Sell => Self::Buy,
        }
    }

    /// Higher is better for the other side, whose orders it meets first.
    #[inline]
    fn rank(self, price: u32) -> u32 {
        match self {
            Self::Buy => price,
            Self::Sell => !price,
        }
    }
}

/// What an order keeps for the messages about it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "as in the messages")]
pub struct Details {
    pub side: u8,
    pub capacity: u8,
    pub cross: u8,
}

/// An order in a book.
#[derive(Clone, Copy, Debug)]
pub struct Order {
    /// Whose it is.
    pub session: u32,
    /// How its owner calls it.
    pub urn: u32,
    /// Which book.
    pub symbol: u16,
    /// Which way it trades.
    pub side: Side,
    /// Its price.
    pub price: u32,
    /// Shares that may execute.
    pub open: u32,
    /// Shares that have executed, those of orders that this one has replaced included.
    pub executed: u32,
    /// For messages.
    pub details: Details,
    /// The queue of its level.
    before: u32,
    after: u32,
    /// The list of its session, oldest first. The market keeps it.
    pub older: u32,
    /// See `older`.
    pub younger: u32,
}

/// All orders of all books.
#[derive(Debug)]
pub struct Slab {
    orders: Vec<Order>,
    free: Vec<u32>,
}

impl Slab {
    /// Room for this many orders.
    pub fn new(most: usize) -> Self {
        let empty = Order::new(0, 0, 0, Side::Buy, 0, 0);
        Self { orders: vec![empty; most], free: (0..most as u32).rev().collect() }
    }

    /// An order that is in a book.
    #[inline]
    pub fn get(&self, number: u32) -> &Order {
        &self.orders[number as usize]
    }

    /// An order that is in a book.
    #[inline]
    pub fn get_mut(&mut self, number: u32) -> &mut Order {
        &mut self.orders[number as usize]
    }

    /// Whether there is room for another order.
    #[inline]
    pub fn has_room(&self) -> bool {
        !self.free.is_empty()
    }

    /// The number of orders in books.
    pub fn len(&self) -> usize {
        self.orders.len() - self.free.len()
    }

    /// Whether no order is in a book.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// An order that comes in.
#[derive(Clone, Copy, Debug)]
pub struct Incoming {
    /// Whose it is.
    pub session: u32,
    /// Which way it trades.
    pub side: Side,
    /// The worst price that it takes.
    pub limit: u32,
    /// Shares that may execute.
    pub open: u32,
    /// Whether it stops at an order of the same session.
    pub prevent_self_match: bool,
}

/// Why an incoming order executes no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// All of it has executed.
    Filled,
    /// No order is left within its limit.
    Limit,
    /// The next order would be one of the same session.
    SelfMatch,
}

#[derive(Clone, Copy, Debug)]
struct Level {
    rank: u32,
    first: u32,
    last: u32,
}

/// One side of a book.
#[derive(Debug)]
struct Levels {
    side: Side,
    /// By rank. Never longer than its capacity.
    sorted: Vec<Level>,
}

impl Levels {
    /// The place of the level of this price, or where it would be.
    #[inline]
    fn find(&self, price: u32) -> Result<usize, usize> {
        let rank = self.side.rank(price);
        let at = self.sorted.partition_point(|level| level.rank < rank);
        if self.sorted.get(at).is_some_and(|level| level.rank == rank) { Ok(at) } else { Err(at) }
    }

    /// The best level, if an order of the other side with this limit would trade there.
    #[inline]
    fn best(&self, limit: u32) -> Option<Level> {
        self.sorted.last().copied().filter(|level| level.rank >= self.side.rank(limit))
    }
}

/// The orders of one symbol.
#[derive(Debug)]
pub struct Book {
    bids: Levels,
    asks: Levels,
}

impl Book {
    /// A book with at most this many prices on each side.
    pub fn new(levels: usize) -> Self {
        let levels = |side| Levels { side, sorted: Vec::with_capacity(levels) };
        Self { bids: levels(Side::Buy), asks: levels(Side::Sell) }
    }

    #[inline]
    fn levels(&self, side: Side) -> &Levels {
        match side {
            Side::Buy => &self.bids,
            Side::Sell => &self.asks,
        }
    }

    #[inline]
    fn levels_mut(&mut self, side: Side) -> &mut Levels {
        match side {
            Side::Buy => &mut self.bids,
            Side::Sell => &mut self.asks,
        }
    }

    /// Whether an order of this side and limit would trade at once.
    #[inline]
    pub fn crosses(&self, side: Side, limit: u32) -> bool {
        self.levels(side.other()).best(limit).is_some()
    }

    /// Executes an incoming order with those that are here, best price first, oldest first, at their
    /// prices. `fill` gets the order that was here, whose `open` and `executed` are the new ones, and
    /// the number of shares. An order of which nothing is open is gone afterwards.
    #[inline]
    pub fn execute(
        &mut self,
        slab: &mut Slab,
        incoming: &mut Incoming,
        mut fill: impl FnMut(&mut Slab, u32, u32),
    ) -> Stop {
        let side = incoming.side.other();
        while incoming.open > 0 {
            let Some(level) = self.levels(side).best(incoming.limit) else { return Stop::Limit };
            let resting = slab.get_mut(level.first);
            if incoming.prevent_self_match && resting.session == incoming.session {
                return Stop::SelfMatch;
            }
            let shares = resting.open.min(incoming.open);
            resting.open -= shares;
            resting.executed += shares;
            incoming.open -= shares;
            let filled = resting.open == 0;
            fill(slab, level.first, shares);
            if filled {
                self.remove(slab, level.first);
            }
        }
        Stop::Filled
    }

    /// Whether an order of this side and price has a place here.
    #[inline]
    pub fn has_room(&self, side: Side, price: u32) -> bool {
        let levels = self.levels(side);
        levels.sorted.len() < levels.sorted.capacity() || levels.find(price).is_ok()
    }

    /// Puts an order behind all others of its price. Returns its number; `None` if the slab or the side
    /// is full.
    #[inline]
    pub fn add(&mut self, slab: &mut Slab, order: Order) -> Option<u32> {
        if !self.has_room(order.side, order.price) {
            return None;
        }
        let number = slab.free.pop()?;
        let levels = self.levels_mut(order.side);
        let mut order = Order { before: NONE, after: NONE, ..order };
        match levels.find(order.price) {
            Ok(at) => {
                let level = &mut levels.sorted[at];
                order.before = level.last;
                slab.get_mut(level.last).after = number;
                level.last = number;
            }
            Err(at) => {
                let rank = levels.side.rank(order.price);
                levels.sorted.insert(at, Level { rank, first: number, last: number });
            }
        }
        *slab.get_mut(number) = order;
        Some(number)
    }

    /// Takes an order out.
    #[inline]
    pub fn remove(&mut self, slab: &mut Slab, number: u32) {
        let Order { side, price, before, after, .. } = *slab.get(number);
        let levels = self.levels_mut(side);
        let Ok(at) = levels.find(price) else { return };
        let level = &mut levels.sorted[at];
        match before {
            NONE => level.first = after,
            before => slab.get_mut(before).after = after,
        }
        match after {
            NONE => level.last = before,
            after => slab.get_mut(after).before = before,
        }
        if level.first == NONE {
            levels.sorted.remove(at);
        }
        slab.free.push(number);
    }

    /// The orders of a side, best first.
    pub fn orders<'a>(&'a self, slab: &'a Slab, side: Side) -> impl Iterator<Item = &'a Order> {
        self.levels(side).sorted.iter().rev().flat_map(move |level| {
            let after = |&number: &u32| Some(slab.get(number).after).filter(|&next| next != NONE);
            std::iter::successors(Some(level.first), after).map(|number| slab.get(number))
        })
    }
}

impl Order {
    /// An order that is in no book yet.
    pub fn new(session: u32, urn: u32, symbol: u16, side: Side, price: u32, open: u32) -> Self {
        Self {
            session,
            urn,
            symbol,
            side,
            price,
            open,
            executed: 0,
            details: Details::default(),
            before: NONE,
            after: NONE,
            older: NONE,
            younger: NONE,
        }
    }
}
