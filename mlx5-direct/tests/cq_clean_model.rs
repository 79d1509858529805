//! Entries of a QP that goes away: cleaning a CQ, and teardown, against a device that writes
//! entries.

mod common;

use std::time::{Duration, Instant};

use common::{Entry, Rng, cq_queue as queue, poll};
use mlx5_direct::{
    Completion, CqBuffer, CqeError, DataSeg, Srq, SrqLayout, WqeIndex,
    teardown::{QpTeardown, TeardownStep},
};

/// QPs share a queue, and each of them goes away at times, with entries waiting.
#[test]
fn entries_of_a_removed_qp_go_and_others_keep_order() {
    for (entries, bytes) in [(1, 64), (2, 128), (8, 64), (16, 128), (64, 64)] {
        let (mut cq, mut device) = queue(entries, bytes);
        let mut rng = Rng(u64::from(entries));
        let mut waiting = std::collections::VecDeque::new();
        let (mut cleaned, mut polled) = (0, 0);
        for n in 0..30_000u32 {
            match rng.below(12) {
                0 => {
                    let gone = rng.below(4) as u32;
                    let mut removed = vec![];
                    // The upper bits of a number do not count.
                    let tells = rng.below(2) == 0;
                    let number = 0x4500_0000 | gone;
                    let count =
                        if tells { cq.clean(number, |c| removed.push(c)) } else { cq.discard(number) };
                    let is_gone = |entry: &(u32, u16, u8)| entry.0 == gone;
                    let mut expected: Vec<_> = waiting.iter().copied().filter(is_gone).collect();
                    assert_eq!(expected.len(), count as usize);
                    if !tells {
                        expected.clear();
                    }
                    let named = |c: &Completion| {
                        let counter = c.slot().map(|s| s.0).or(c.send_counter());
                        (c.qpn(), counter.expect("one of both"))
                    };
                    assert_eq!(
                        removed.iter().map(named).collect::<Vec<_>>(),
                        expected.iter().map(|e| (e.0, e.1)).collect::<Vec<_>>()
                    );
                    waiting.retain(|entry| !is_gone(entry));
                    if count > 0 {
                        assert_eq!(device.room() as usize, entries as usize - waiting.len());
                    }
                    cleaned += count;
                }
                1..=4 => {
                    let Some((qpn, counter, payload)) = waiting.pop_front() else {
                        assert_eq!(cq.poll(), Ok(None));
                        continue;
                    };
                    polled += 1;
                    let completion = poll(&mut cq);
                    assert_eq!(completion.qpn(), qpn);
                    if let Completion::RecvScattered(scattered) = &completion {
                        let mut bytes = [0; 64];
                        assert_eq!(cq.copy_scattered(scattered, &mut bytes), 64);
                        assert_eq!(bytes, [payload; 64], "the payload moved with its entry");
                        assert_eq!(completion.slot(), Some(WqeIndex(counter)));
                    } else if let Completion::RecvError(_) = completion {
                        assert_eq!(completion.slot(), Some(WqeIndex(counter)));
                    } else {
                        assert_eq!(completion.send_counter(), Some(counter));
                    }
                }
                _ if device.room() > 0 => {
                    let qpn = rng.below(4) as u32;
                    // Sends, errors of both kinds, and messages in a wide entry.
                    let opcode = [0, 13, 14, 2][rng.below(if bytes == 128 { 4 } else { 3 }) as usize];
                    let low_bits = if opcode == 2 { 0x08 } else { 0 };
                    if bytes == 128 {
                        let at = device.next_fields() - 64;
                        (0..64).for_each(|k| device.mem().store_u8(at + k, n as u8));
                    }
                    let entry =
                        Entry { opcode, low_bits, qpn, counter: n as u16, bytes: 64, ..Entry::default() };
                    device.push(entry);
                    waiting.push_back((qpn, n as u16, n as u8));
                }
                _ => {}
            }
        }
        assert!(cleaned > 200 && polled > 2000, "{cleaned} cleaned, {polled} polled");
        assert_eq!(cq.consumed(), u64::from(cleaned) + polled);
    }
}

/// What is known of waiting messages stays right when entries before and between them go away, and
/// when the queue continues in another buffer.
#[test]
fn messages_are_counted_while_entries_move() {
    let (mut cq, mut device) = queue(16, 64);
    let mut rng = Rng(5);
    // QP, and whether it is a message.
    let mut waiting = std::collections::VecDeque::new();
    let (mut counted, mut cleaned, mut carried) = (0, 0, 0);
    for _ in 0..60_000 {
        match rng.below(16) {
            0 => {
                let gone = rng.below(4) as u32;
                cleaned += cq.discard(gone);
                waiting.retain(|entry: &(u32, bool)| entry.0 != gone);
            }
            1 => {
                let size = 8 << rng.below(3);
                cq.release();
                if device.room() > 0 && size as usize > waiting.len() {
                    let (buffer, view) = CqBuffer::on_heap(size, 64).unwrap();
                    device.change_over(view, size);
                    assert_eq!(cq.continue_in(buffer), Ok(()));
                    carried += waiting.len();
                }
            }
            2..=7 => {
                let polled = cq.poll().unwrap().map(|c| (c.qpn(), matches!(c, Completion::Recv(_))));
                assert_eq!(polled, waiting.pop_front());
            }
            _ => {
                cq.release();
                if device.room() > 0 {
                    let (qpn, message) = (rng.below(4) as u32, rng.below(10) > 0);
                    let opcode = if message { 2 } else { 0 };
                    device.push(Entry { opcode, qpn, ..Entry::default() });
                    waiting.push_back((qpn, message));
                }
            }
        }
        if rng.below(3) == 0 {
            let only = waiting.iter().all(|entry| entry.1);
            assert_eq!(cq.waiting_messages(), only.then_some(waiting.len() as u32));
            counted += u32::from(only);
        }
    }
    assert!(counted > 5000 && cleaned > 2000 && carried > 2000, "{counted}, {cleaned}, {carried}");
}

/// A queue that cannot be polled further is cleaned up to there, and stays as it is.
#[test]
fn cleaning_stops_at_a_compressed_entry() {
    for tells in [true, false] {
        let (mut cq, mut device) = queue(8, 64);
        for (opcode, low_bits, qpn) in [(0, 0, 7), (0, 0, 8), (0, 0x0c, 8), (0, 0, 7)] {
            device.push(Entry { opcode, low_bits, qpn, ..Entry::default() });
        }
        assert_eq!(if tells { cq.clean(7, |_| ()) } else { cq.discard(7) }, 1);
        assert_eq!(poll(&mut cq).qpn(), 8);
        assert_eq!(cq.poll(), Err(CqeError::Compressed));
    }
}

/// Two QPs share an SRQ and a CQ. One QP is torn down with receives in every state; the other
/// continues.
#[test]
fn a_destroyed_qp_returns_its_slots_to_the_srq() {
    let (layout, mem) = SrqLayout::on_heap(16, 32).unwrap();
    let mut srq_device = common::Device::new(mem, 16, 32);
    let mut srq = Srq::new(layout, 15).unwrap();
    let (mut cq, mut cq_device) = queue(16, 64);
    assert_eq!(srq.post_batch((0..15).map(|n| (DataSeg::new(n, 1, 1), 100 + n))), 15);

    let done = |qpn, slot| Entry { opcode: 2, qpn, counter: slot, ..Entry::default() };
    let flushed = |qpn, slot| Entry { opcode: 14, syndrome: 5, ..done(qpn, slot) };
    let slots: Vec<u16> = (0..5).map(|_| srq_device.take().unwrap().slot).collect();
    cq_device.push(done(7, slots[0]));
    cq_device.push(done(8, slots[1]));

    let start = Instant::now();
    let mut teardown = QpTeardown::begin(7, start, Duration::from_secs(5));
    assert_eq!(teardown.qpn(), 7);
    let mut cookies = vec![];
    let mut give_back =
        |srq: &mut Srq, c: Completion| cookies.push((c.qpn(), srq.complete(c.slot().unwrap()).unwrap()));
    let step = teardown.advance(&mut cq, start, |c| give_back(&mut srq, c)).unwrap();
    assert_eq!(step, TeardownStep::LastWqe);
    // The device flushes what the QP still held, then sends the event.
    cq_device.push(flushed(7, slots[2]));
    cq_device.push(done(8, slots[3]));
    cq_device.push(flushed(7, slots[4]));
    teardown.last_wqe_reached();
    let step = teardown.advance(&mut cq, start, |c| give_back(&mut srq, c)).unwrap();
    assert_eq!(step, TeardownStep::Destroy { event_seen: true });
    assert_eq!(cookies, [(7, 100), (8, 101), (7, 102), (8, 103), (7, 104)]);
    assert_eq!((srq.posted(), srq.free()), (10, 5));
    assert_eq!(srq.post_batch((0..9).map(|n| (DataSeg::new(n, 1, 1), n))), 5, "the SRQ goes on");
    for slot in slots {
        srq_device.done(slot);
    }
    assert_eq!(srq_device.look().len(), 15);
}

#[test]
fn teardown_does_not_wait_for_an_event_that_never_comes() {
    let (mut cq, mut device) = queue(16, 64);
    let start = Instant::now();
    let mut teardown = QpTeardown::begin(7, start, Duration::from_millis(50));
    device.push(Entry { opcode: 14, syndrome: 5, qpn: 7, ..Entry::default() });
    let mut seen = 0;
    let later = start + Duration::from_millis(49);
    assert_eq!(teardown.advance(&mut cq, later, |_| seen += 1), Ok(TeardownStep::LastWqe));
    let expired = start + Duration::from_millis(50);
    let step = teardown.advance(&mut cq, expired, |_| seen += 1);
    assert_eq!((step, seen), (Ok(TeardownStep::Destroy { event_seen: false }), 1));
}
