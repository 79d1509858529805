//! Polling, arming and teardown, against a device that writes entries and reads what the CQ
//! publishes.

mod common;

use common::{CqDevice, Entry, Rng, cq_queue as queue, poll};
use mlx5_direct::{
    ArmFor, Completion, Cq, CqLayout, CqeError, LayoutError, PlainEntry, PlainKind, RecvOp, RequestOp,
    Syndrome, WqeIndex,
    cqe::{self, RawCqe},
};

#[test]
fn every_receive_opcode_comes_out_typed() {
    for bytes in [64, 128] {
        let (mut cq, mut device) = queue(16, bytes);
        let base = Entry {
            low_bits: 2,
            qpn: 0xab_cdef,
            srqn_uidx: 0x0012_3456,
            counter: 0x7abc,
            bytes: 0x0102_0304,
            imm: 0xdead_beef,
            ..Entry::default()
        };
        let kinds = [(1, RecvOp::WriteImm), (2, RecvOp::Send), (3, RecvOp::SendImm), (4, RecvOp::SendInval)];
        for (opcode, op) in kinds {
            device.push(Entry { opcode, ..base });
            let Completion::Recv(c) = poll(&mut cq) else { panic!("a receive") };
            assert_eq!((c.op, c.solicited), (op, true));
            assert_eq!((c.qpn, c.srqn_or_user_index), (0xab_cdef, 0x12_3456));
            assert_eq!((c.slot, c.byte_count), (WqeIndex(0x7abc), 0x0102_0304));
            let with_imm = matches!(op, RecvOp::WriteImm | RecvOp::SendImm);
            assert_eq!(c.immediate(), with_imm.then_some(0xdead_beef));
            assert_eq!(c.invalidated_rkey(), (op == RecvOp::SendInval).then_some(0xdead_beef));
        }
        assert_eq!(cq.poll(), Ok(None));
    }
}

/// The same bytes, once decoded from memory that a caller copied and once polled.
#[test]
fn an_entry_decodes_alike_in_bytes_and_in_a_queue() {
    for low_bits in [0, 2] {
        for opcode in [0, 1, 2, 3, 4, 13, 14] {
            let (mut cq, mut device) = queue(16, 64);
            device.push(Entry {
                opcode,
                low_bits,
                qpn: 0xab_cdef,
                sop: 0x10,
                srqn_uidx: 0x0012_3456,
                counter: 0x7abc,
                bytes: 0x0102_0304,
                imm: 0xdead_beef,
                syndrome: 0x15,
                vendor: 0x81,
            });
            let bytes: [u8; 64] = std::array::from_fn(|at| device.mem().load_u8(at));
            let polled = poll(&mut cq);
            assert_eq!(cqe::decode(&RawCqe::from_bytes(&bytes)), Ok(polled));
            match polled {
                Completion::Recv(c) => assert_eq!(c.solicited, low_bits == 2),
                Completion::Send(c) => assert_eq!((c.qpn, c.op), (0xab_cdef, RequestOp::Read)),
                Completion::SendError(e) | Completion::RecvError(e) => {
                    assert_eq!((e.syndrome, e.vendor_syndrome), (Syndrome::TransportRetries, 0x81));
                }
                other => panic!("{other:?}"),
            }
        }
    }
}

#[test]
fn an_entry_in_bytes_has_the_fields_of_the_format() {
    let cqe = RawCqe::from_bytes(&std::array::from_fn(|at| at as u8));
    assert_eq!((cqe.ml_path(), cqe.slid(), cqe.vlan_info.get()), (0x11, 0x1617, 0x1e1f));
    assert_eq!(cqe.flags_rqpn(), 0x1819_1a1b);
    assert_eq!(cqe.srqn_uidx(), 0x2021_2223);
    assert_eq!(cqe.imm_inval_pkey(), 0x2425_2627);
    assert_eq!(cqe.byte_count(), 0x2c2d_2e2f);
    assert_eq!(cqe.timestamp(), 0x3031_3233_3435_3637);
    assert_eq!(cqe.error_syndromes(), (0x37, 0x36));
    assert_eq!(cqe.sop_drop_qpn(), 0x3839_3a3b);
    assert_eq!((cqe.wqe_counter(), cqe.op_own()), (0x3c3d, 0x3f));
    assert_eq!(cqe.to_bytes(), std::array::from_fn(|at| at as u8));
}

#[test]
fn a_poll_for_receives_takes_them_and_leaves_the_rest() {
    let (mut cq, mut device) = queue(16, 64);
    assert_eq!(cq.poll_if_receive(), None);
    for (opcode, qpn) in [(2, 1), (0, 2), (3, 3)] {
        device.push(Entry { opcode, qpn, ..Entry::default() });
    }
    assert_eq!(cq.poll_if_receive().map(|c| c.qpn), Some(1));
    assert_eq!(cq.poll_if_receive(), None, "a send");
    assert!(matches!(poll(&mut cq), Completion::Send(c) if c.qpn == 2));
    assert_eq!(cq.poll_if_receive().map(|c| c.qpn), Some(3));
    assert_eq!(cq.poll_if_receive(), None);
}

/// The fields of a plain entry.
fn fields(entry: &PlainEntry<'_>) -> (PlainKind, u32, u16, u32) {
    (entry.kind(), entry.qpn(), entry.wqe_counter(), entry.byte_count())
}

/// Over two laps of the queue: each entry is seen until it is taken, its room comes back at once,
/// and an entry that is not plain is left to `poll`.
#[test]
fn a_plain_entry_is_seen_until_it_is_taken() {
    let (mut cq, mut device) = queue(8, 64);
    assert!(cq.plain_entry().is_none());
    for n in 0..40_u16 {
        for (opcode, low_bits, kind) in [
            (0, 0, Some(PlainKind::Request)),
            (2, 0, Some(PlainKind::Received)),
            (2, 2, Some(PlainKind::Received)),
            (1, 0, None),
            (2, 4, None),
            (3, 0, None),
            (4, 0, None),
            (13, 0, None),
            (14, 0, None),
        ] {
            device.push(Entry { opcode, low_bits, qpn: 0xab_cdef, counter: n, bytes: 9, ..Entry::default() });
            let plain = kind.map(|kind| (kind, 0xab_cdef, n, 9));
            for _ in 0..2 {
                assert_eq!(cq.plain_entry().map(|entry| fields(&entry)), plain, "opcode {opcode}");
                for of in [PlainKind::Request, PlainKind::Received] {
                    assert_eq!(
                        cq.plain_entry_of(of).map(|entry| fields(&entry)),
                        plain.filter(|plain| plain.0 == of)
                    );
                }
                assert!(cq.is_next_ready() && !cq.is_empty());
                let raw = cq.plain_entry().map(|entry| entry.raw());
                assert_eq!(
                    raw.map(|raw| (raw.sop_drop_qpn(), raw.wqe_counter())),
                    kind.map(|_| (0xab_cdef, n))
                );
            }
            match cq.plain_entry() {
                Some(entry) if n.is_multiple_of(2) => {
                    entry.take();
                    cq.publish_index();
                    assert_eq!(device.room(), 8);
                }
                Some(entry) => {
                    entry.take_and_return();
                    assert_eq!(device.room(), 8);
                }
                None => _ = poll(&mut cq),
            }
            assert_eq!((cq.raw().wqe_counter(), cq.raw().op_own() >> 4), (n, opcode));
            assert!(cq.plain_entry().is_none() && !cq.is_next_ready());
        }
    }
}

/// A CQ with entries to spare returns several at once, and never holds more back than it may.
#[test]
fn entries_are_held_back_up_to_the_limit() {
    for (most, held) in [(0, 0), (7, 0), (8, 8), (20, 16), (64, 32)] {
        let (mut cq, mut device) = queue(64, 64);
        cq.hold_back(most);
        let mut longest = 0;
        for n in 0..300_u16 {
            device.push(Entry { opcode: 2, counter: n, ..Entry::default() });
            if cq.plain_entry_of(PlainKind::Received).is_some() {
                assert!(!cq.begin_interval());
            } else {
                assert!(cq.begin_interval(), "an interval has ended");
                assert_eq!(cq.plain_entry().map(|entry| entry.wqe_counter()), Some(n));
                assert_eq!(device.room(), 63);
            }
            cq.plain_entry_of(PlainKind::Received).expect("an entry").take_and_return();
            longest = longest.max(64 - device.room());
        }
        assert_eq!(longest, held, "{most} entries to spare");
        cq.hold_back(0);
        assert_eq!(device.room(), 64);
    }
}

#[test]
fn requester_entries_say_which_wqe_finished_and_what_it_was() {
    let (mut cq, mut device) = queue(32, 64);
    let ops = [
        (0x08, RequestOp::Write),
        (0x09, RequestOp::WriteImm),
        (0x0a, RequestOp::Send),
        (0x0b, RequestOp::SendImm),
        (0x01, RequestOp::SendInval),
        (0x10, RequestOp::Read),
        (0x11, RequestOp::CompareSwap),
        (0x12, RequestOp::FetchAdd),
        (0x25, RequestOp::Umr),
        (0x1b, RequestOp::LocalInval),
        (0x00, RequestOp::Nop),
        (0x0e, RequestOp::Other(0x0e)),
    ];
    for (n, (sop, op)) in ops.into_iter().enumerate() {
        device.push(Entry { sop, qpn: 0x77, counter: n as u16, bytes: 9, ..Entry::default() });
        let Completion::Send(c) = poll(&mut cq) else { panic!("a send") };
        assert_eq!((c.op, c.qpn, c.wqe_counter, c.byte_count), (op, 0x77, n as u16, 9));
        assert_eq!(Completion::Send(c).slot(), None, "a send frees no SRQ slot");
    }
}

#[test]
fn errors_carry_their_syndrome_and_the_slot_to_free() {
    let (mut cq, mut device) = queue(64, 64);
    let syndromes = [
        (0x01, 0, Syndrome::LocalLength),
        (0x02, 0, Syndrome::LocalQpOperation),
        (0x04, 0, Syndrome::LocalProtection),
        (0x05, 0xf9, Syndrome::Flushed),
        (0x06, 0, Syndrome::MwBind),
        (0x10, 0, Syndrome::BadResponse),
        (0x11, 0, Syndrome::LocalAccess),
        (0x12, 0, Syndrome::RemoteInvalidRequest),
        (0x13, 0, Syndrome::RemoteAccess),
        (0x14, 0, Syndrome::RemoteOperation),
        (0x15, 0x81, Syndrome::TransportRetries),
        (0x16, 0, Syndrome::RnrRetries),
        (0x22, 0x93, Syndrome::OdpPageFault),
        (0x22, 0x01, Syndrome::RemoteAborted),
        (0x7f, 3, Syndrome::Other(0x7f)),
    ];
    for (syndrome, vendor, expected) in syndromes {
        for opcode in [13, 14] {
            device.push(Entry { opcode, syndrome, vendor, qpn: 5, counter: 321, ..Entry::default() });
            let got = poll(&mut cq);
            let (Completion::SendError(e) | Completion::RecvError(e)) = got else { panic!("an error") };
            assert_eq!((e.syndrome, e.vendor_syndrome, e.qpn, e.wqe_counter), (expected, vendor, 5, 321));
            assert_eq!(got.slot(), (opcode == 14).then_some(WqeIndex(321)));
        }
    }
}

/// The device raises no event for a completion that it wrote before the request, so a caller that
/// blocked would wait for ever.
#[test]
fn completion_between_the_first_look_and_the_request_forbids_blocking() {
    let (mut cq, mut device) = queue(4, 64);
    assert!(cq.arm_unless_ready(ArmFor::Any), "nothing is there");
    let write_one = || device.push(Entry { opcode: 2, ..Entry::default() });
    assert!(!cq.arm_unless_ready_after(ArmFor::Any, write_one));
    assert!(matches!(poll(&mut cq), Completion::Recv(_)));
}

#[test]
fn a_scattered_payload_can_be_copied_until_the_next_poll() {
    for (bytes, format, wide, len) in [(64, 0x04, false, 24), (128, 0x08, true, 60)] {
        let (mut cq, mut device) = queue(4, bytes);
        for lap in 0..9u8 {
            let at = device.next_fields() - if wide { 64 } else { 0 };
            for n in 0..len {
                device.mem().store_u8(at + n, n as u8 ^ lap);
            }
            // The device writes payload over the leading fields, up to the fields that a receive
            // needs.
            let fields =
                Entry { opcode: 2, low_bits: format, bytes: len as u32, counter: 9, ..Entry::default() };
            device.push(fields);
            assert_eq!(cq.poll_if_receive(), None, "not in its buffer");
            let short = cq.short_entry().map(|(e, bytes)| (e.wqe_counter(), e.byte_count(), bytes));
            assert_eq!(short.is_some(), !wide && len <= 32);
            if let Some((counter, count, bytes)) = short {
                assert_eq!((counter, count), (9, len as u32));
                assert!((0..len).all(|n| bytes[n] == n as u8 ^ lap));
            }
            let got = poll(&mut cq);
            assert_eq!(got.slot(), Some(WqeIndex(9)));
            let Completion::RecvScattered(c) = got else { panic!("{got:?}") };
            assert_eq!((c.receive.op, c.receive.byte_count), (RecvOp::Send, len as u32));
            // Copies no more than the message, whatever the room.
            let mut out = [0xee; 80];
            assert_eq!(cq.copy_scattered(&c, &mut out), len);
            assert!((0..len).all(|n| out[n] == n as u8 ^ lap) && out[len] == 0xee);
            assert_eq!(cq.copy_scattered(&c, &mut out[..5]), 5);
            assert_eq!(cq.poll(), Ok(None));
            if lap == 8 {
                device.push(Entry { opcode: 2, ..Entry::default() });
                assert!(matches!(poll(&mut cq), Completion::Recv(_)));
                assert_eq!(cq.copy_scattered(&c, &mut out), 0, "another was polled since");
            }
        }
    }
    // A 64-byte entry has no room for 64 bytes.
    let (mut cq, mut device) = queue(4, 64);
    device.push(Entry { opcode: 2, low_bits: 0x08, bytes: 64, ..Entry::default() });
    let Completion::RecvScattered(c) = poll(&mut cq) else { panic!("scattered") };
    assert_eq!(cq.copy_scattered(&c, &mut [0; 64]), 0);
}

/// A batch ends at a scattered receive, while its payload can still be copied.
#[test]
fn batch_ends_after_a_payload_in_its_entry() {
    let (mut cq, mut device) = queue(8, 64);
    for low_bits in [0, 0x04, 0] {
        device.push(Entry { opcode: 2, low_bits, bytes: 8, ..Entry::default() });
    }
    let mut got = vec![];
    assert_eq!(cq.poll_each(8, |c| got.push(c)), Ok(2));
    let [Completion::Recv(_), Completion::RecvScattered(c)] = got[..] else { panic!("{got:?}") };
    assert_eq!(cq.copy_scattered(&c, &mut [0; 8]), 8);
    assert_eq!(cq.poll_each(8, |_| ()), Ok(1));
}

#[test]
fn sender_of_a_datagram_is_told_until_the_next_poll() {
    let (mut cq, mut device) = queue(4, 64);
    for lap in 0..9u8 {
        let at = device.next_fields() + 24;
        // The bits above the 24-bit number say that a GRH is present.
        for (n, byte) in [0x10, 0xab, 0xcd, lap].into_iter().enumerate() {
            device.mem().store_u8(at + n, byte);
        }
        device.push(Entry { opcode: 2, ..Entry::default() });
        let Completion::Recv(_) = poll(&mut cq) else { panic!("a receive") };
        assert_eq!(cq.source_qpn(), 0xab_cd00 | u32::from(lap));
    }
}

#[test]
fn compressed_and_resize_entries_are_errors() {
    for (entry, error) in [
        (Entry { opcode: 2, low_bits: 0x0c, ..Entry::default() }, CqeError::Compressed),
        (Entry { opcode: 0, low_bits: 0x0c, ..Entry::default() }, CqeError::Compressed),
        (Entry { opcode: 5, ..Entry::default() }, CqeError::Resized),
    ] {
        let (mut cq, mut device) = queue(8, 64);
        device.push(entry);
        assert_eq!(cq.poll(), Err(error));
        assert_eq!(cq.poll(), Err(error));
    }
    let (mut cq, mut device) = queue(8, 64);
    device.push(Entry { opcode: 6, ..Entry::default() });
    device.push(Entry { opcode: 2, qpn: 3, ..Entry::default() });
    assert_eq!(cq.poll(), Err(CqeError::Opcode { opcode: 6 }));
    assert_eq!(poll(&mut cq).qpn(), 3, "an unknown entry does not hide the next one");
}

#[test]
fn entries_are_seen_once_and_room_comes_back() {
    for (entries, bytes) in [(1, 64), (2, 64), (4, 128), (8, 64), (256, 64), (1024, 128)] {
        let (mut cq, mut device) = queue(entries, bytes);
        let mut rng = Rng(u64::from(entries) + 11);
        let (mut produced, mut consumed) = (0u32, 0u32);
        while consumed < 70_000 {
            // The device writes as many entries as it may; `push` panics if there is no room. The
            // program reads some of them.
            for _ in 0..rng.below(u64::from(device.room()) + 1) {
                device.push(Entry { opcode: 2, counter: produced as u16, ..Entry::default() });
                produced += 1;
            }
            assert_eq!(cq.waiting_receives(), produced - consumed);
            assert_eq!(cq.waiting_messages(), Some(produced - consumed));
            assert_eq!(cq.is_ready(), produced != consumed);
            for _ in 0..rng.below(u64::from(entries) + 3) {
                match cq.poll().unwrap() {
                    Some(c) => {
                        assert_eq!(c.slot(), Some(WqeIndex(consumed as u16)));
                        consumed += 1;
                    }
                    None => {
                        assert_eq!(consumed, produced);
                        assert_eq!(device.room(), entries, "an empty poll gives all room back");
                        break;
                    }
                }
            }
            assert_eq!(cq.consumed(), u64::from(consumed));
            assert!(!cq.is_idle() || (produced == consumed && device.room() == entries));
            if rng.below(2) == 0 {
                assert_eq!(cq.is_empty(), produced == consumed);
                assert_eq!(cq.is_idle(), produced == consumed);
                assert!(produced != consumed || device.room() == entries, "an empty CQ keeps room back");
            }
            let kept = (consumed.wrapping_sub(device.consumer_index())) & 0x00ff_ffff;
            assert!(kept <= (entries / 4).max(1), "{kept} of {entries} entries are read but not given back");
        }
    }
}

/// Runs a device that completes every post, and a program that posts again what it polled. Returns
/// how often the device found no room. Some polled slots stay with the program for long, and the
/// number of entries polled at a time varies.
fn overruns(entries: u32, posted_at_a_time: u32, release: bool, seed: u64) -> u32 {
    let (mut cq, mut device) = queue(entries, 64);
    let mut rng = Rng(seed);
    let (mut posted, mut overruns) = (posted_at_a_time, 0);
    for _ in 0..20_000 {
        for _ in 0..rng.below(u64::from(posted) + 1).max(u64::from(posted) * rng.below(2)) {
            if device.room() == 0 {
                overruns += 1;
                break;
            }
            device.push(Entry { opcode: 2, ..Entry::default() });
            posted -= 1;
        }
        let most = 1 + rng.below(u64::from(entries)) as u32;
        let polled = if rng.below(2) == 0 {
            cq.poll_each(most, |_| ()).unwrap()
        } else {
            (0..most).take_while(|_| cq.poll().unwrap().is_some()).count() as u32
        };
        if release {
            cq.release();
        }
        posted += polled;
    }
    overruns
}

#[test]
fn the_index_is_in_time_with_a_quarter_to_spare() {
    for entries in [2, 4, 8, 64, 256, 1024] {
        for seed in 1..4 {
            assert_eq!(overruns(entries, entries - entries.div_ceil(4), false, seed), 0, "{entries} entries");
        }
    }
}

#[test]
fn a_queue_without_spare_entries_needs_a_release_before_reposts() {
    for entries in [1, 2, 4, 8, 64, 256, 1024] {
        for seed in 1..4 {
            assert_eq!(overruns(entries, entries, true, seed), 0, "{entries} entries");
        }
    }
    assert!((1..4).any(|seed| overruns(64, 64, false, seed) > 0), "the rule would not be needed");
    // The documented bound is exact: with one entry less, the queue overruns.
    assert!((1..9).any(|seed| overruns(64, 49, false, seed) > 0), "less to spare would do");
}

#[test]
fn counting_waiting_receives_leaves_sends_out_and_consumes_nothing() {
    let (mut cq, mut device) = queue(16, 64);
    for opcode in [2, 0, 14, 13, 3] {
        device.push(Entry { opcode, syndrome: 5, ..Entry::default() });
    }
    assert_eq!(cq.waiting_receives(), 3);
    assert_eq!(cq.waiting_receives(), 3);
    assert_eq!(cq.poll_each(u32::MAX, |_| ()), Ok(5));
    assert_eq!(cq.waiting_receives(), 0);
}

#[test]
fn messages_are_counted_until_something_else_waits() {
    let (mut cq, mut device) = queue(8, 64);
    let mut push = |opcode| device.push(Entry { opcode, syndrome: 5, ..Entry::default() });
    assert_eq!(cq.waiting_messages(), Some(0));
    push(2);
    push(3);
    assert_eq!(cq.waiting_messages(), Some(2));
    push(4);
    poll(&mut cq);
    assert_eq!(cq.waiting_messages(), Some(2));
    // A request, an error of a receive and one of a request.
    for opcode in [0, 14, 13] {
        push(opcode);
        push(2);
        for _ in 0..3 {
            assert_eq!(cq.waiting_messages(), None);
            poll(&mut cq);
        }
        assert_eq!(cq.waiting_messages(), Some(1));
        push(2);
    }
    // All entries of the queue.
    cq.poll_each(u32::MAX, |_| ()).unwrap();
    cq.release();
    for waiting in 0..8 {
        assert_eq!(cq.waiting_messages(), Some(waiting));
        push(2);
    }
    assert_eq!(cq.waiting_messages(), Some(8));
    // A compressed entry can only be refused.
    cq.poll_each(u32::MAX, |_| ()).unwrap();
    cq.release();
    device.push(Entry { opcode: 2, low_bits: 0x0c, ..Entry::default() });
    assert_eq!(cq.waiting_messages(), None);
}

#[test]
fn arming_writes_record_and_register_with_index_command_and_sequence() {
    let (mut cq, mut device) = queue(16, 64);
    for _ in 0..5 {
        device.push(Entry { opcode: 2, ..Entry::default() });
    }
    assert!(!cq.arm_unless_ready(ArmFor::Any), "completions are waiting");
    assert_eq!(device.doorbell(), 0, "and nothing was armed");
    cq.poll_each(5, |_| ()).unwrap();
    let cqn = u64::from(cq.cqn());
    for (event, sequence) in [0u32, 1, 2, 3, 0, 1].into_iter().enumerate() {
        let what = if event % 2 == 0 { ArmFor::Any } else { ArmFor::Solicited };
        assert!(cq.arm_unless_ready(what));
        let command = if event % 2 == 0 { 0 } else { 1 << 24 };
        let request = sequence << 28 | command | 5;
        assert_eq!(device.arm_record(), request);
        assert_eq!(device.doorbell(), u64::from(request) << 32 | cqn);
        assert_eq!(device.consumer_index(), 5, "the index is current when the request is");
        // A second call before the event repeats the same request.
        cq.arm(what);
        assert_eq!(device.arm_record(), request);
        cq.event_received();
    }
}

#[test]
fn queues_that_the_device_cannot_have_are_refused() {
    assert_eq!(CqLayout::on_heap(3, 64).unwrap_err(), LayoutError::CqeCount { cqe_count: 3 });
    assert_eq!(CqLayout::on_heap(0, 64).unwrap_err(), LayoutError::CqeCount { cqe_count: 0 });
    assert_eq!(CqLayout::on_heap(8, 32).unwrap_err(), LayoutError::CqeBytes { cqe_bytes: 32 });
}

#[test]
fn decoding_any_bytes_agrees_with_the_opcode() {
    let mut rng = Rng(0xfeed);
    for round in 0..200_000u32 {
        let mut bytes = [0u8; 64];
        bytes.fill_with(|| rng.next() as u8);
        bytes[63] = round as u8;
        let got = cqe::decode(&RawCqe::from_bytes(&bytes));
        let compressed = bytes[63] & 0x0c == 0x0c;
        match bytes[63] >> 4 {
            0..=4 if compressed => assert_eq!(got, Err(CqeError::Compressed)),
            0 if bytes[63] & 0x0c != 0 => assert!(matches!(got, Ok(Completion::SendScattered(_)))),
            0 => assert!(matches!(got, Ok(Completion::Send(_)))),
            1..=4 if bytes[63] & 0x0c != 0 => assert!(matches!(got, Ok(Completion::RecvScattered(_)))),
            1..=4 => assert!(matches!(got, Ok(Completion::Recv(_)))),
            5 => assert_eq!(got, Err(CqeError::Resized)),
            13 => assert!(matches!(got, Ok(Completion::SendError(_)))),
            14 => assert!(matches!(got, Ok(Completion::RecvError(_)))),
            opcode => assert_eq!(got, Err(CqeError::Opcode { opcode })),
        }
    }
}

/// In the entry of a failed operation, a card writes the solicited bit, a syndrome of the hardware,
/// a signature and other words as it likes. Only opcode, syndromes, QP number and counter count.
#[test]
fn an_error_entry_is_read_alike_whatever_its_other_bytes_are() {
    let mut rng = Rng(0xca2d);
    for cqe_bytes in [64, 128] {
        let (mut cq, mut device) = queue(16, cqe_bytes);
        for round in 0..20_000_u32 {
            let at = device.next_fields();
            let from = at + 64 - cqe_bytes as usize;
            // The last byte is the entry's, with its owner bit.
            (from..at + 63).for_each(|byte| device.mem().store_u8(byte, rng.next() as u8));
            let entry = Entry {
                opcode: 13 + (round % 2) as u8,
                low_bits: rng.next() as u8 & 2,
                qpn: rng.next() as u32 & 0x00ff_ffff,
                sop: rng.next() as u8,
                counter: rng.next() as u16,
                syndrome: rng.next() as u8 % 0x30,
                vendor: rng.next() as u8,
                srqn_uidx: rng.next() as u32,
                imm: rng.next() as u32,
                bytes: rng.next() as u32,
            };
            device.push(entry);
            assert!(cq.is_ready() && cq.is_next_ready());
            assert!(cq.poll_if_send().is_none() && cq.poll_if_receive().is_none());
            assert!(cq.plain_entry().is_none() && cq.short_entry().is_none());
            let mut polled = vec![];
            if round % 3 == 0 {
                assert_eq!(cq.poll_each(4, |completion| polled.push(completion)), Ok(1));
            } else {
                polled.push(poll(&mut cq));
            }
            let error = match polled[0] {
                Completion::SendError(error) if entry.opcode == 13 => error,
                Completion::RecvError(error) if entry.opcode == 14 => error,
                other => panic!("{other:?} of {entry:?}"),
            };
            assert_eq!(error.syndrome, Syndrome::from_bytes(entry.syndrome, entry.vendor));
            assert_eq!((error.vendor_syndrome, error.qpn), (entry.vendor, entry.qpn));
            assert_eq!(error.wqe_counter, entry.counter);
            assert_eq!(cqe::decode(&RawCqe::from_bytes(&cq.raw().to_bytes())), Ok(polled[0]));
            assert_eq!(cq.poll(), Ok(None));
        }
    }
}

#[test]
fn a_poll_for_sends_takes_them_and_leaves_the_rest() {
    let (mut cq, mut device) = queue(4, 64);
    for lap in 0..3u16 {
        assert_eq!(cq.poll_if_send(), None, "no entry");
        for (opcode, counter) in [(0, 7), (2, 8), (0, 9), (13, 10)] {
            device.push(Entry { opcode, qpn: 5, counter: counter + lap, ..Entry::default() });
        }
        let counter = |cqe: Option<mlx5_direct::SendCqe>| cqe.map(|cqe| (cqe.qpn, cqe.wqe_counter));
        assert_eq!(counter(cq.poll_if_send()), Some((5, 7 + lap)));
        assert_eq!(cq.poll_if_send(), None, "a receive");
        assert!(matches!(poll(&mut cq), Completion::Recv(_)));
        assert_eq!(counter(cq.poll_if_send()), Some((5, 9 + lap)));
        assert_eq!(cq.poll_if_send(), None, "an error");
        assert!(matches!(poll(&mut cq), Completion::SendError(_)));
    }
}

/// Bytes 16 to 39 of an entry, at the offsets of the format.
#[test]
fn the_entry_of_a_message_tells_its_sender_and_path() {
    let (mut cq, mut device) = queue(4, 64);
    let tell = |cq: &mut Cq, device: &mut CqDevice, path: u8, slid: u16, flags: u32, imm: u32| {
        let at = device.next_fields();
        device.mem().store_u8(at + 17, path);
        device.mem().store_be16(at + 22, slid);
        device.mem().store_be32(at + 24, flags);
        device.push(Entry { opcode: 2, imm, ..Entry::default() });
        poll(cq);
        cq.message()
    };
    let message = tell(&mut cq, &mut device, 0xff, 0x1234, 0xf5ab_cdef, 0x0102_0304);
    assert_eq!((message.source_qpn, message.grh, message.service_level), (0xab_cdef, true, 5));
    assert_eq!((message.source_lid, message.path_bits, message.imm_inval_pkey), (0x1234, 0x7f, 0x0102_0304));
    // Bits 28 and 29 say what kind of GRH there is; the two above them mean something else.
    for (flags, grh) in [(0x1000_0000, true), (0x2000_0000, true), (0xc000_0000, false)] {
        let message = tell(&mut cq, &mut device, 0x80, 0, flags, 0);
        assert_eq!((message.grh, message.source_qpn, message.service_level), (grh, 0, 0));
        assert_eq!((message.source_lid, message.path_bits), (0, 0));
    }
}
