//! The market against one that is obviously right, and mistakes that other engines have made.

use doorbell_orders::book::Side;
use doorbell_orders::market::{Listing, Market, Sizes, Verdict};
use doorbell_orders::naive::Naive;
use doorbell_orders::ouch::{Cancel, Enter, Inbound, RejectReason, Replace};
use doorbell_orders::rules::Rules;
use proptest::prelude::*;
use zerocopy::IntoBytes;

const SIZES: Sizes = Sizes { sessions: 4, window: 1024, orders: 512, levels: 64 };

fn listings() -> Vec<Listing> {
    vec![Listing { name: *b"AAA     ", price: 100 }, Listing { name: *b"BBB     ", price: 100 }]
}

/// No limits but those of the messages.
fn free() -> Rules {
    Rules { size: 0, notional: 0, collar: 0, open_orders: 0, rate: 0, ..Rules::default() }
}

fn enter(urn: u32, side: u8, quantity: u32, price: u64) -> Enter {
    Enter {
        kind: b'O',
        urn: urn.into(),
        side,
        quantity: quantity.into(),
        symbol: *b"AAA     ",
        price: price.into(),
        time_in_force: b'0',
        display: b'Y',
        capacity: b'P',
        intermarket_sweep: b'N',
        cross: b'N',
        order_id: *b"id            ",
        appendage: 0.into(),
    }
}

fn ioc(urn: u32, side: u8, quantity: u32, price: u64) -> Enter {
    Enter { time_in_force: b'3', ..enter(urn, side, quantity, price) }
}

fn post_only(urn: u32, side: u8, quantity: u32, price: u64) -> Enter {
    Enter { display: b'P', ..enter(urn, side, quantity, price) }
}

fn replace(old: u32, urn: u32, quantity: u32, price: u64) -> Replace {
    Replace {
        kind: b'U',
        old_urn: old.into(),
        urn: urn.into(),
        quantity: quantity.into(),
        price: price.into(),
        time_in_force: b'0',
        display: b'Y',
        intermarket_sweep: b'N',
        order_id: *b"id            ",
        appendage: 0.into(),
    }
}

fn cancel(urn: u32, quantity: u32) -> Cancel {
    Cancel { kind: b'X', urn: urn.into(), quantity: quantity.into() }
}

/// A market with sessions A, B, C, whose answers are short texts.
struct Test {
    market: Market,
    seen: [u64; 3],
}

impl Test {
    fn new() -> Self {
        Self::with(free())
    }

    fn with(rules: Rules) -> Self {
        let mut market = Market::new(rules, SIZES, &listings());
        for (n, user) in (0..).zip([b"A     ", b"B     ", b"C     "]) {
            assert_eq!(market.login(*user, true), Some(n));
        }
        Self { market, seen: [2; 3] }
    }

    /// What a message brings about: `session: type urn shares@price`, or a reason.
    fn send(&mut self, session: u32, message: &impl AsBytes) -> Vec<String> {
        self.market.advance(0);
        let bytes = message.bytes();
        assert_eq!(self.market.handle(session, Inbound::parse(&bytes).unwrap()), Verdict::Fine);
        self.news()
    }

    fn news(&mut self) -> Vec<String> {
        let mut news = Vec::new();
        for (n, seen) in (0..).zip(&mut self.seen) {
            let outbox = &self.market.sessions.get(n).outbox;
            while let Some((message, _)) = outbox.get(*seen) {
                news.push(format!("{}: {}", b"ABC"[n as usize] as char, text(message)));
                *seen += 1;
            }
        }
        news
    }

    /// Both sides: `session urn open@price`.
    fn book(&self) -> [Vec<String>; 2] {
        [Side::Buy, Side::Sell].map(|side| {
            let orders = self.market.orders(0, side);
            orders
                .map(|o| format!("{}{} {}@{}", b"ABC"[o.session as usize] as char, o.urn, o.open, o.price))
                .collect()
        })
    }
}

trait AsBytes {
    fn bytes(&self) -> Vec<u8>;
}

impl<T: IntoBytes + zerocopy::Immutable> AsBytes for T {
    fn bytes(&self) -> Vec<u8> {
        self.as_bytes().to_vec()
    }
}

fn number(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |n, &byte| n << 8 | u64::from(byte))
}

fn text(m: &[u8]) -> String {
    let urn = number(&m[9..13]);
    match m[0] {
        b'A' => format!("A {urn}"),
        b'U' => format!("U {urn}>{} {}", number(&m[13..17]), number(&m[18..22])),
        b'E' => format!("E {urn} {}@{}{}", number(&m[13..17]), number(&m[17..25]), m[25] as char),
        b'C' => format!("C {urn} {}{}", number(&m[13..17]), m[17] as char),
        b'J' => format!("J {urn} {:x}", number(&m[13..15])),
        b'Q' => format!("Q {urn}"),
        kind => panic!("{}", kind as char),
    }
}

#[test]
fn price_then_time() {
    let mut t = Test::new();
    t.send(0, &enter(1, b'S', 10, 102));
    t.send(0, &enter(2, b'S', 10, 101));
    t.send(1, &enter(1, b'S', 10, 101));
    assert_eq!(t.book()[1], ["A2 10@101", "B1 10@101", "A1 10@102"]);
    // At the prices of those that rest.
    assert_eq!(
        t.send(2, &enter(1, b'B', 25, 103)),
        [
            "A: E 2 10@101A",
            "A: E 1 5@102A",
            "B: E 1 10@101A",
            "C: A 1",
            "C: E 1 10@101R",
            "C: E 1 10@101R",
            "C: E 1 5@102R"
        ]
    );
    assert_eq!(t.book(), [vec![], vec!["A1 5@102".to_owned()]]);
}

#[test]
fn the_rest_of_an_order_that_meets_its_own_is_canceled() {
    // OrderBook-rs 97: it was booked.
    let mut t = Test::new();
    t.send(1, &enter(1, b'S', 10, 101));
    t.send(0, &enter(1, b'S', 10, 102));
    assert_eq!(
        t.send(0, &enter(2, b'B', 30, 103)),
        ["A: A 2", "A: E 2 10@101R", "A: C 2 20Q", "B: E 1 10@101A"]
    );
    assert_eq!(t.book(), [vec![], vec!["A1 10@102".to_owned()]]);
}

#[test]
fn post_only_never_takes() {
    // OrderBook-rs 209: the check was made before the match.
    let mut t = Test::new();
    t.send(1, &enter(1, b'S', 10, 101));
    assert_eq!(t.send(0, &post_only(1, b'B', 10, 101)), ["A: A 1", "A: C 1 10G"]);
    assert_eq!(t.send(0, &post_only(2, b'B', 10, 100)), ["A: A 2"]);
    assert_eq!(t.book()[0], ["A2 10@100"]);
    // The same by a replace.
    let moved = Replace { display: b'P', ..replace(2, 3, 10, 102) };
    assert_eq!(t.send(0, &moved), ["A: U 2>3 10", "A: C 3 10G"]);
    assert_eq!(t.book()[0], [""; 0]);
}

#[test]
fn a_partial_fill_keeps_the_queue() {
    // OrderBook-rs 88, 205: it changed the order of the queue.
    let mut t = Test::new();
    t.send(0, &enter(1, b'S', 10, 101));
    t.send(1, &enter(1, b'S', 10, 101));
    t.send(2, &enter(1, b'B', 4, 101));
    assert_eq!(t.book()[1], ["A1 6@101", "B1 10@101"]);
    // So does a cancel of a part.
    assert_eq!(t.send(0, &cancel(1, 7)), ["A: C 1 3U"]);
    assert_eq!(t.book()[1], ["A1 3@101", "B1 10@101"]);
}

#[test]
fn a_replace_counts_what_has_executed() {
    // Liquibook 32: the original quantity was used; opexdev 688: too little was left.
    let mut t = Test::new();
    t.send(0, &enter(1, b'B', 500, 100));
    t.send(1, &enter(1, b'S', 100, 100));
    assert_eq!(t.send(0, &replace(1, 2, 500, 99)), ["A: U 1>2 400"]);
    t.send(1, &enter(2, b'S', 50, 99));
    assert_eq!(t.send(0, &replace(2, 3, 600, 100)), ["A: U 2>3 450"]);
    assert_eq!(t.book()[0], ["A3 450@100"]);
    // No more than what has executed: the details are not valid, and the new URN is not used up.
    assert_eq!(t.send(0, &replace(3, 4, 150, 100)), ["A: C 3 450U"]);
    assert_eq!(t.send(0, &enter(4, b'B', 1, 100)), ["A: A 4"]);
}

#[test]
fn a_replace_goes_to_the_end_of_the_queue() {
    let mut t = Test::new();
    t.send(0, &enter(1, b'B', 10, 100));
    t.send(1, &enter(1, b'B', 10, 100));
    t.send(0, &replace(1, 2, 10, 100));
    assert_eq!(t.book()[0], ["B1 10@100", "A2 10@100"]);
}

#[test]
fn replaces_that_are_ignored_use_no_urn() {
    let mut t = Test::new();
    t.send(0, &enter(5, b'B', 10, 100));
    assert_eq!(t.send(0, &replace(4, 6, 10, 100)), [""; 0]);
    assert_eq!(t.send(0, &replace(5, 5, 10, 100)), [""; 0]);
    assert_eq!(t.send(0, &replace(5, 6, 1_000_000, 100)), ["A: C 5 10U"]);
    assert_eq!(t.send(0, &enter(6, b'B', 10, 100)), ["A: A 6"]);
}

#[test]
fn the_rest_of_an_ioc_is_not_booked() {
    // Liquibook 43.
    let mut t = Test::new();
    t.send(1, &enter(1, b'S', 10, 101));
    assert_eq!(
        t.send(0, &ioc(1, b'B', 30, 101)),
        ["A: A 1", "A: E 1 10@101R", "A: C 1 20I", "B: E 1 10@101A"]
    );
    assert_eq!(t.book(), [const { vec![] }; 2] as [Vec<String>; 2]);
}

#[test]
fn its_own_quantity_does_not_help_an_order() {
    // OrderBook-rs 96: with its own quantity, an order that needed all of it counted as filled. There
    // is no such order here; an IOC gets what others have, and the rest is canceled.
    let mut t = Test::new();
    t.send(1, &enter(1, b'S', 10, 101));
    t.send(0, &enter(1, b'S', 20, 101));
    t.send(1, &enter(2, b'S', 10, 102));
    assert_eq!(
        t.send(0, &ioc(2, b'B', 30, 102)),
        ["A: A 2", "A: E 2 10@101R", "A: C 2 20Q", "B: E 1 10@101A"]
    );
    assert_eq!(t.book()[1], ["A1 20@101", "B2 10@102"]);
}

#[test]
fn each_fill_has_the_price_of_its_maker() {
    // CppTrader 28: one price for all fills of an order.
    let mut t = Test::new();
    for (urn, price) in (1..).zip([99, 98, 97]) {
        t.send(1, &enter(urn, b'B', 10, price));
    }
    assert_eq!(
        t.send(0, &enter(1, b'S', 30, 90)),
        [
            "A: A 1",
            "A: E 1 10@99R",
            "A: E 1 10@98R",
            "A: E 1 10@97R",
            "B: E 1 10@99A",
            "B: E 2 10@98A",
            "B: E 3 10@97A"
        ]
    );
}

#[test]
fn no_number_of_orders_drops_one_that_is_live() {
    // dgtony/orderbook-rs 9: the id after the thousandth was that of a live order.
    let mut t = Test::new();
    t.send(0, &enter(1, b'B', 10, 100));
    for urn in 1..=3000 {
        t.send(1, &enter(urn, b'B', 10, 99));
        t.send(1, &cancel(urn, 0));
    }
    assert_eq!(t.book()[0], ["A1 10@100"]);
    assert_eq!(t.send(2, &enter(1, b'S', 10, 100)), ["A: E 1 10@100A", "C: A 1", "C: E 1 10@100R"]);
}

#[test]
fn a_replace_through_the_spread_trades() {
    // hft-clob-core 59: it rested crossed. CppTrader 42: a later cancel crashed.
    let mut t = Test::new();
    t.send(0, &enter(1, b'B', 10, 99));
    t.send(1, &enter(1, b'S', 10, 101));
    assert_eq!(t.send(0, &replace(1, 2, 10, 101)), ["A: U 1>2 10", "A: E 2 10@101R", "B: E 1 10@101A"]);
    for urn in [1, 2] {
        assert_eq!(t.send(0, &cancel(urn, 0)), [""; 0]);
    }
    assert_eq!(t.send(1, &cancel(1, 0)), [""; 0]);
    assert_eq!(t.market.open_orders(), 0);
}

#[test]
fn filled_orders_leave_no_trace() {
    // parity 122: they stayed in the map. More than fit are open one after the other.
    let mut t = Test::new();
    for urn in 1..=2 * SIZES.orders as u32 {
        assert_eq!(t.send(0, &enter(urn, b'S', 1, 100)).len(), 1);
        assert_eq!(t.send(1, &enter(urn, b'B', 1, 100)).len(), 3);
    }
    assert_eq!(t.market.open_orders(), 0);
}

#[test]
fn one_of_two_at_a_price_is_canceled() {
    // Trading-Engine 4: the other one was lost.
    for first in [1, 2] {
        let mut t = Test::new();
        t.send(0, &enter(1, b'B', 10, 100));
        t.send(0, &enter(2, b'B', 10, 100));
        t.send(0, &cancel(first, 0));
        assert_eq!(t.book()[0], [format!("A{} 10@100", 3 - first)]);
        t.send(0, &enter(3, b'B', 10, 100));
        assert_eq!(t.book()[0], [format!("A{} 10@100", 3 - first), "A3 10@100".into()]);
    }
}

#[test]
fn a_urn_is_used_once() {
    // limit-order-book 4: a live id that came again linked the queue to itself. OUCH: sent again.
    let mut t = Test::new();
    t.send(0, &enter(1, b'B', 10, 100));
    assert_eq!(t.send(0, &enter(1, b'B', 10, 100)), [""; 0]);
    t.send(0, &enter(7, b'B', 10, 100));
    assert_eq!(t.send(0, &enter(6, b'B', 10, 100)), [""; 0]);
    assert_eq!(t.book()[0], ["A1 10@100", "A7 10@100"]);
    // Sessions have URNs of their own.
    assert_eq!(t.send(1, &enter(1, b'B', 10, 100)), ["B: A 1"]);
}

#[test]
fn a_sweep_stops_at_its_limit_and_trades_no_empty_lots() {
    // matchcore 167; matchina 3.
    let mut t = Test::new();
    for (urn, price) in (1..).zip([101, 102, 103]) {
        t.send(1, &enter(urn, b'S', 10, price));
    }
    let news = t.send(0, &enter(1, b'B', 20, 102));
    assert_eq!(news, ["A: A 1", "A: E 1 10@101R", "A: E 1 10@102R", "B: E 1 10@101A", "B: E 2 10@102A"]);
    assert_eq!(t.book(), [vec![], vec!["B3 10@103".to_owned()]]);
}

#[test]
fn market_orders_stop_at_the_collar() {
    let mut t = Test::with(Rules { collar: 1000, ..free() });
    for (urn, price) in (1..).zip([105, 110, 110]) {
        assert_eq!(t.send(1, &enter(urn, b'S', 10, price)).len(), 1);
    }
    assert_eq!(t.send(1, &enter(4, b'B', 10, 111)), ["B: J 4 26"]);
    let market = enter(1, b'B', 50, 0x7fff_ffff);
    assert_eq!(
        t.send(0, &market)[..5],
        ["A: A 1", "A: E 1 10@105R", "A: E 1 10@110R", "A: E 1 10@110R", "A: C 1 20I"]
    );
    // The last price is 110 now.
    t.send(1, &enter(5, b'S', 10, 121));
    t.send(1, &enter(6, b'S', 10, 122));
    assert_eq!(
        t.send(0, &enter(2, b'B', 50, 2_000_000_000))[..3],
        ["A: A 2", "A: E 2 10@121R", "A: C 2 40K"]
    );
}

#[test]
fn each_check_has_its_reason() {
    use RejectReason as R;
    let rules =
        Rules { size: 1000, notional: 50_000, collar: 1000, open_orders: 2, duplicate: 1000, ..free() };
    let mut t = Test::with(rules);
    let good = |urn| enter(urn, b'B', 10, 100);
    let mut urn = 0;
    type Change = fn(Enter) -> Enter;
    let cases: [(R, Change); 16] = [
        (R::Side, |m| Enter { side: b'X', ..m }),
        (R::Symbol, |m| Enter { symbol: *b"CCC     ", ..m }),
        (R::Cross, |m| Enter { cross: b'O', ..m }),
        (R::Other, |m| Enter { capacity: b'X', ..m }),
        (R::Quantity, |m| Enter { quantity: 0.into(), ..m }),
        (R::Quantity, |m| Enter { quantity: 1_000_000.into(), ..m }),
        (R::Price, |m| Enter { price: 0.into(), ..m }),
        (R::Price, |m| Enter { price: 0x7735_939d.into(), ..m }),
        (R::Other, |m| Enter { time_in_force: b'6', ..m }),
        (R::Display, |m| Enter { display: b'N', ..m }),
        (R::Display, |m| Enter { display: b'P', time_in_force: b'3', ..m }),
        (R::IntermarketSweep, |m| Enter { intermarket_sweep: b'Y', ..m }),
        (R::FatFinger, |m| Enter { price: 111.into(), ..m }),
        (R::FatFinger, |m| Enter { side: b'T', price: 89.into(), ..m }),
        (R::Size, |m| Enter { quantity: 1001.into(), ..m }),
        (R::Notional, |m| Enter { quantity: 501.into(), ..m }),
    ];
    for (reason, broken) in cases {
        urn += 1;
        assert_eq!(t.send(0, &broken(good(urn))), [format!("A: J {urn} {:x}", reason as u16)]);
    }
    assert_eq!(t.send(0, &good(urn + 1)), [format!("A: A {}", urn + 1)]);
    assert_eq!(t.send(0, &good(urn + 2)), [format!("A: J {} 2a", urn + 2)]);
    assert_eq!(t.send(0, &enter(urn + 3, b'B', 11, 100)), [format!("A: A {}", urn + 3)]);
    assert_eq!(t.send(0, &enter(urn + 4, b'B', 12, 100)), [format!("A: J {} 20", urn + 4)]);
    // Nothing of a rejected order is left, and its URN is used up.
    assert_eq!(t.market.open_orders(), 2);
    assert_eq!(t.send(0, &good(urn + 4)), [""; 0]);
}

#[test]
fn without_a_last_price_no_order_passes() {
    let listings = [Listing { name: *b"AAA     ", price: 0 }];
    let mut market = Market::new(Rules { collar: 1000, ..free() }, SIZES, &listings);
    market.login(*b"A     ", true);
    market.handle(0, Inbound::Enter(&enter(1, b'B', 10, 100)));
    let (message, _) = market.sessions.get(0).outbox.get(2).unwrap();
    assert_eq!(text(message), "J 1 1");
}

#[test]
fn too_many_messages_are_rejected_and_then_a_flood() {
    let mut market = Market::new(Rules { rate: 10, flood: 5, ..free() }, SIZES, &listings());
    market.login(*b"A     ", true);
    let mut verdicts = Vec::new();
    for urn in 1..=20 {
        market.advance(0);
        verdicts.push(market.handle(0, Inbound::Enter(&enter(urn, b'B', 1, 100))));
    }
    let messages: Vec<_> = (2..=21).map(|n| text(market.sessions.get(0).outbox.get(n).unwrap().0)).collect();
    assert_eq!(messages.iter().filter(|text| text.starts_with('A')).count(), 11);
    assert!(messages[11..].iter().all(|text| text.ends_with(" 29")), "{messages:?}");
    assert_eq!(verdicts.iter().filter(|&&verdict| verdict == Verdict::Flood).count(), 4);
    // A cancel is done in any case.
    market.handle(0, Inbound::Cancel(&cancel(1, 0)));
    assert_eq!(text(market.sessions.get(0).outbox.get(22).unwrap().0), "C 1 1U");
}

#[test]
fn the_orders_of_a_session_that_is_gone() {
    // OrderBook-rs 190: the order of a mass cancel came from a hash seed.
    let mut t = Test::new();
    for urn in [3, 5, 9] {
        t.send(0, &enter(urn, b'B', urn, 90 + u64::from(urn)));
    }
    t.send(1, &enter(1, b'B', 1, 95));
    t.market.gone(0);
    assert_eq!(t.news(), ["A: C 3 3S", "A: C 5 5S", "A: C 9 9S"]);
    assert_eq!(t.book()[0], ["B1 1@95"]);
    // By setting.
    t.market.login(*b"B     ", false);
    t.market.gone(1);
    assert_eq!(t.news(), [""; 0]);
}

#[test]
fn an_account_query() {
    // Lean 242: the next id was wrong after a restart.
    let mut t = Test::new();
    assert_eq!(t.send(0, b"Q"), ["A: Q 1"]);
    t.send(0, &enter(17, b'B', 1, 100));
    assert_eq!(t.send(0, b"Q"), ["A: Q 18"]);
}

#[test]
fn full_books_and_slabs_refuse() {
    let sizes = Sizes { orders: 4, levels: 2, ..SIZES };
    let mut market = Market::new(free(), sizes, &listings());
    market.login(*b"A     ", true);
    let mut last = |urn, price, seen: u64| {
        market.advance(0);
        market.handle(0, Inbound::Enter(&enter(urn, b'B', 1, price)));
        text(market.sessions.get(0).outbox.get(seen).unwrap().0)
    };
    assert_eq!(last(1, 100, 2), "A 1");
    assert_eq!(last(2, 101, 3), "A 2");
    // A third price; then the same prices, until the slab is full.
    assert_eq!(last(3, 102, 4), "A 3");
    assert_eq!(last(4, 101, 6), "A 4");
    assert_eq!(last(5, 101, 7), "A 5");
    assert_eq!(last(6, 101, 8), "J 6 a");
    assert_eq!(market.open_orders(), 4);
}

#[derive(Clone, Debug)]
enum Step {
    Enter { side: u8, quantity: u32, price: u64, kind: u8, symbol: bool },
    Replace { back: u32, quantity: u32, price: u64, kind: u8 },
    Cancel { back: u32, quantity: u32 },
    Query,
    Gone,
}

fn step() -> impl Strategy<Value = (u32, Step)> {
    let price = prop_oneof![20 => 90u64..111, 1 => Just(0), 1 => Just(0x7fff_ffff), 1 => Just(500)];
    let quantity = prop_oneof![20 => 1u32..60, 1 => Just(0), 1 => Just(1_000_000)];
    let side = prop_oneof![Just(b'B'), Just(b'S'), Just(b'T')];
    let step = prop_oneof![
        10 => (side, quantity.clone(), price.clone(), 0u8..8, any::<bool>())
            .prop_map(|(side, quantity, price, kind, symbol)| Step::Enter { side, quantity, price, kind, symbol }),
        3 => (0u32..12, quantity.clone(), price, 0u8..8)
            .prop_map(|(back, quantity, price, kind)| Step::Replace { back, quantity, price, kind }),
        3 => (0u32..12, quantity).prop_map(|(back, quantity)| Step::Cancel { back, quantity }),
        1 => Just(Step::Query),
        1 => Just(Step::Gone),
    ];
    (0u32..3, step)
}

/// Time in force and display.
fn kind_of(kind: u8) -> (u8, u8) {
    match kind {
        0 => (b'3', b'Y'),
        1 => (b'0', b'P'),
        2 => (b'3', b'P'),
        _ => (b'0', b'Y'),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Whatever sessions send: the same messages to all of them, and the same books, as of a market
    /// that is obviously right.
    #[test]
    fn the_market_is_right(
        steps in proptest::collection::vec(step(), 1..300),
        collar in prop_oneof![Just(0u32), Just(1000)],
        prevent_self_match: bool,
    ) {
        let rules = Rules { collar, prevent_self_match, open_orders: 20, notional: 5000, ..free() };
        let mut market = Market::new(rules, SIZES, &listings());
        let mut naive = Naive::new(rules, &listings());
        for user in [b"A     ", b"B     ", b"C     "] {
            market.login(*user, true);
        }
        let mut urns = [0u32; 3];
        let mut seen = [2u64; 3];
        for (session, step) in steps {
            let urn = &mut urns[session as usize];
            let time = market.advance(0);
            let bytes = match step {
                Step::Enter { side, quantity, price, kind, symbol } => {
                    *urn += 1;
                    let (time_in_force, display) = kind_of(kind);
                    let symbol = if symbol { *b"AAA     " } else { *b"BBB     " };
                    Enter { time_in_force, display, symbol, ..enter(*urn, side, quantity, price) }.bytes()
                }
                Step::Replace { back, quantity, price, kind } => {
                    let old = urn.saturating_sub(back);
                    *urn += 1;
                    let (time_in_force, display) = kind_of(kind);
                    Replace { time_in_force, display, ..replace(old, *urn, quantity, price) }.bytes()
                }
                Step::Cancel { back, quantity } => cancel(urn.saturating_sub(back), quantity).bytes(),
                Step::Query => vec![b'Q'],
                Step::Gone => vec![],
            };
            let expected = match Inbound::parse(&bytes) {
                Some(message) => {
                    market.handle(session, message);
                    naive.apply(time, session, message)
                }
                None => {
                    market.gone(session);
                    naive.cancel_all(time, session)
                }
            };
            for (n, seen) in (0..).zip(&mut seen) {
                let mut of_session = expected.iter().filter(|(to, _)| *to == n).map(|(_, bytes)| &bytes[..]);
                while let Some((message, _)) = market.sessions.get(n).outbox.get(*seen) {
                    prop_assert_eq!(Some(message), of_session.next());
                    *seen += 1;
                }
                prop_assert_eq!(None, of_session.next());
            }
            for symbol in 0..2 {
                for (side, buys) in [(Side::Buy, true), (Side::Sell, false)] {
                    let ours: Vec<_> = market
                        .orders(symbol, side)
                        .map(|o| (o.session, o.urn, u64::from(o.price), o.open, o.executed))
                        .collect();
                    let theirs: Vec<_> = naive
                        .orders(symbol, buys)
                        .iter()
                        .map(|o| (o.session, o.urn, o.price, o.open, o.executed))
                        .collect();
                    prop_assert_eq!(ours, theirs);
                }
            }
        }
        let open: u32 = market.sessions.all().iter().map(|session| session.open).sum();
        prop_assert_eq!(open as usize, market.open_orders());
    }
}

/// No message of a session makes the gateway allocate memory, whatever becomes of the order.
#[test]
fn no_order_allocates() {
    let mut market = Market::new(Rules { rate: 0, ..Rules::default() }, SIZES, &listings());
    for user in [b"A     ", b"B     ", b"C     "] {
        market.login(*user, true);
    }
    let mut n = 1u64;
    let mut next = move |most: u64| {
        n = n.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (n >> 33) % most
    };
    let (mut urns, mut accepted) = ([0u32; 3], 0);
    let info = allocation_counter::measure(|| {
        for _ in 0..100_000 {
            let session = next(3) as u32;
            let urn = &mut urns[session as usize];
            market.advance(0);
            let (quantity, price) = (1 + next(50) as u32, 95 + next(11));
            match next(12) {
                0..3 => {
                    market.handle(session, Inbound::Cancel(&cancel(urn.saturating_sub(next(100) as u32), 0)))
                }
                3 => {
                    let old = urn.saturating_sub(next(10) as u32);
                    *urn += 1;
                    market.handle(session, Inbound::Replace(&replace(old, *urn, quantity, price)))
                }
                kind => {
                    *urn += 1;
                    let side = if next(2) == 0 { b'B' } else { b'S' };
                    let (time_in_force, display) = kind_of(kind as u8 - 4);
                    let order = Enter { time_in_force, display, ..enter(*urn, side, quantity, price) };
                    market.handle(session, Inbound::Enter(&order))
                }
            };
            if market.open_orders() > 400 {
                market.gone(session);
            }
            while market.sessions.take_dirty().is_some() {}
        }
        accepted = market.totals().0;
    });
    assert!(accepted > 50_000 && market.totals().1 > 10_000, "{:?}", market.totals());
    assert_eq!(info.count_total, 0, "{info:?}");
}
