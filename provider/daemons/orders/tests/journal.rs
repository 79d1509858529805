//! The journal: a market comes back byte for byte, whatever the end of the file looks like.

use doorbell_orders::journal::{Error, Journal, Options, Record, Replayed};
use doorbell_orders::market::{Listing, Market, Sizes};
use doorbell_orders::ouch::Inbound;
use doorbell_orders::rules::Rules;
use std::path::Path;

fn market() -> Market {
    let sizes = Sizes { sessions: 8, window: 64, orders: 256, levels: 64 };
    Market::new(Rules::default(), sizes, &[Listing { name: *b"AAA     ", price: 1_000_000 }])
}

fn open(path: &Path, market: &mut Market) -> Result<(Journal, Replayed), Error> {
    Journal::open(&Options { path: path.into(), sync: false }, "a market", market)
}

fn order(urn: u32, side: u8, price: u64) -> Vec<u8> {
    let mut bytes = vec![b'O'];
    bytes.extend(urn.to_be_bytes());
    bytes.push(side);
    bytes.extend(10u32.to_be_bytes());
    bytes.extend(b"AAA     ");
    bytes.extend(price.to_be_bytes());
    bytes.extend(b"0YPNNid            \0\0");
    bytes
}

/// Sessions that trade; as an engine does it.
fn trade(market: &mut Market, journal: &mut Journal) -> u64 {
    let mut position = 0;
    for (n, user) in (0..).zip([b"A     ", b"B     "]) {
        let time = market.advance(1000);
        position = journal.append(Record::login(n, time, *user, n == 1));
        assert_eq!(market.login(*user, n == 1), Some(n));
    }
    for urn in 1..=500u32 {
        let session = urn % 2;
        let side = if session == 0 { b'B' } else { b'S' };
        let message = match urn % 7 {
            0 => [&b"X"[..], &(urn - 2).to_be_bytes(), &[0; 4]].concat(),
            6 => vec![b'Q'],
            _ => order(urn, side, 1_000_000 + u64::from(urn * 7919 % 13) * 100),
        };
        let time = market.advance(2000 + u64::from(urn) * 10);
        position = journal.append(Record::message(session, time, &message));
        market.handle(session, Inbound::parse(&message).unwrap());
    }
    let time = market.advance(0);
    position = position.max(journal.append(Record::gone(1, time)));
    market.gone(1);
    position
}

fn written() -> (tempfile::NamedTempFile, Vec<u8>) {
    let file = tempfile::NamedTempFile::new().unwrap();
    let mut market = market();
    let (mut journal, replayed) = open(file.path(), &mut market).unwrap();
    assert_eq!(replayed, Replayed::default());
    let position = trade(&mut market, &mut journal);
    drop(journal);
    assert_eq!((position, file.as_file().metadata().unwrap().len()), (503, 504 * 64));
    assert!(market.open_orders() > 10 && market.totals().1 > 10);
    (file, market.snapshot())
}

#[test]
fn a_market_comes_back_byte_for_byte() {
    let (file, snapshot) = written();
    for _ in 0..2 {
        let mut again = market();
        let (journal, replayed) = open(file.path(), &mut again).unwrap();
        assert_eq!((replayed.records, replayed.cut, journal.written()), (503, 0, 503));
        assert_eq!(replayed.connected.iter().collect::<Vec<_>>(), [&0]);
        assert!(again.snapshot() == snapshot);
    }
}

#[test]
fn a_torn_record_is_cut_off_wherever_it_is_torn() {
    let (file, _) = written();
    let length = 504 * 64;
    for torn in 1..64 {
        let copy = tempfile::NamedTempFile::new().unwrap();
        std::fs::copy(file.path(), copy.path()).unwrap();
        copy.as_file().set_len(length - torn).unwrap();
        let mut again = market();
        let (mut journal, replayed) = open(copy.path(), &mut again).unwrap();
        assert_eq!((replayed.records, replayed.cut), (502, 64 - torn));
        // The journal goes on from there.
        let time = again.advance(0);
        journal.append(Record::gone(0, time));
        again.gone(0);
        drop(journal);
        let mut third = market();
        let (_, replayed) = open(copy.path(), &mut third).unwrap();
        assert_eq!((replayed.records, replayed.cut), (503, 0));
        assert!(third.snapshot() == again.snapshot());
    }
}

#[test]
fn a_wrong_byte_is_found() {
    let (file, _) = written();
    let bytes = std::fs::read(file.path()).unwrap();
    for (at, last) in [(64 * 504 - 30, true), (64 * 503 + 2, true), (64 * 300 + 50, false), (64, false)] {
        let mut bytes = bytes.clone();
        bytes[at] ^= 0x10;
        let copy = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(copy.path(), &bytes).unwrap();
        let outcome = open(copy.path(), &mut market());
        if last {
            assert_eq!(outcome.unwrap().1.cut, 64);
        } else {
            let record = at as u64 / 64 - 1;
            assert!(matches!(outcome, Err(Error::Damaged { record: found, .. }) if found == record));
        }
    }
    // Two records have changed places.
    let mut swapped = bytes;
    let (left, right) = swapped.split_at_mut(64 * 200);
    left[64 * 199..].swap_with_slice(&mut right[..64]);
    let copy = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(copy.path(), &swapped).unwrap();
    assert!(matches!(open(copy.path(), &mut market()), Err(Error::Damaged { record: 198, .. })));
}

#[test]
fn other_files_are_refused() {
    let (file, _) = written();
    let options = Options { path: file.path().into(), sync: true };
    let other = Journal::open(&options, "another market", &mut market());
    assert!(matches!(other, Err(Error::OtherMarket(_))));
    std::fs::write(file.path(), [b'x'; 200]).unwrap();
    assert!(matches!(open(file.path(), &mut market()), Err(Error::NoJournal(_))));
    std::fs::write(file.path(), b"DBO").unwrap();
    assert_eq!(open(file.path(), &mut market()).unwrap().1, Replayed { cut: 3, ..Replayed::default() });
    assert!(matches!(open(Path::new("/nonexistent/j"), &mut market()), Err(Error::File { .. })));
}
