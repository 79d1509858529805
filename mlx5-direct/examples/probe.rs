//! The hot loops, each as a separate function: tests count their instructions and check their
//! machine code.
//!
//! `probe <loop> <rounds>` runs one of them on heap queues.

use std::hint::black_box;

use mlx5_direct::{
    AddressOnly, AnySegments, Bound, Completion, Cq, CqLayout, DataSeg, Field, HeapMem, HeapView, Prepared,
    Sq, SqLayout, Srq, SrqLayout, Template, WqeIndex, Wr, wr::Inline,
};

/// Posts the buffers of a list one by one, a record each.
#[inline(never)]
fn post_one(srq: &mut Srq<AnySegments>, bufs: &[(u64, u64)]) {
    for &(addr, cookie) in bufs {
        assert!(srq.post_one(DataSeg::new(addr, 4096, 0x77), cookie).is_ok(), "full");
    }
}

/// Posts the buffers of a list one by one, address only.
#[inline(never)]
fn post_one_address(srq: &mut Srq<AddressOnly>, bufs: &[(u64, u64)]) {
    for &(addr, cookie) in bufs {
        assert!(srq.post_one(addr, cookie).is_ok(), "full");
    }
}

/// Posts the buffers of a list, full segments.
#[inline(never)]
fn post_batch(srq: &mut Srq<AnySegments>, bufs: &[(u64, u32, u64)]) -> u32 {
    srq.post_batch(bufs.iter().map(|&(addr, len, cookie)| (DataSeg::new(addr, len, 0x77), cookie)))
}

/// Posts the buffers of a list, address only.
#[inline(never)]
fn post_batch_address(srq: &mut Srq<AddressOnly>, bufs: &[(u64, u64)]) -> u32 {
    srq.post_batch(bufs.iter().copied())
}

/// Posts the buffers of a slice, segments encoded beforehand.
#[inline(never)]
fn post_slice(srq: &mut Srq<AnySegments>, bufs: &[(DataSeg, u64)]) -> u32 {
    srq.post_slice(bufs)
}

/// Posts the buffers of a slice, address only.
#[inline(never)]
fn post_slice_address(srq: &mut Srq<AddressOnly>, bufs: &[(u64, u64)]) -> u32 {
    srq.post_slice(bufs)
}

/// Posts `n` slots with their own buffers.
#[inline(never)]
fn repost_bound(srq: &mut Srq<Bound>, n: u32) -> u32 {
    srq.repost(n)
}

/// Returns the slots of a list.
#[inline(never)]
fn complete_list(srq: &mut Srq<AnySegments>, slots: &[u16]) -> u64 {
    slots.iter().filter_map(|s| srq.complete(WqeIndex(*s)).ok()).fold(0, u64::wrapping_add)
}

/// Polls up to `n` receives, and uses what a receiver needs.
#[inline(never)]
fn poll_receives(cq: &mut Cq, n: u32) -> u64 {
    let mut sum = 0;
    for _ in 0..n {
        match cq.poll() {
            Ok(Some(Completion::Recv(c))) => {
                sum += u64::from(c.qpn) + u64::from(c.byte_count) + u64::from(c.slot.0);
            }
            _ => break,
        }
    }
    sum
}

/// The same in one call.
#[inline(never)]
fn poll_each_receive(cq: &mut Cq, n: u32) -> u64 {
    let mut sum = 0;
    let each = |c| {
        if let Completion::Recv(c) = c {
            sum += u64::from(c.qpn) + u64::from(c.byte_count) + u64::from(c.slot.0);
        }
    };
    if cq.poll_each(n, each).is_ok() { sum } else { 0 }
}

/// Polls an empty queue `n` times.
#[inline(never)]
fn poll_empty(cq: &mut Cq, n: u32) -> u32 {
    (0..n).filter(|_| matches!(cq.poll(), Ok(None))).count() as u32
}

/// Posts messages of 32 bytes one by one, by BlueFlame each.
#[inline(never)]
fn send_inline(sq: &mut Sq, texts: &[([u8; 32], u64)]) {
    for (text, cookie) in texts {
        assert!(sq.post(Wr::send(Inline(text)).signalled(), *cookie).is_ok(), "full");
    }
}

/// Posts messages of two blocks, whose bytes are copied, one by one, by BlueFlame each.
#[inline(never)]
fn send_long(sq: &mut Sq, texts: &[([u8; 62], u64)]) {
    for (text, cookie) in texts {
        let wr = Wr::send(Inline(text)).signalled();
        assert!(sq.post_long_fast(&wr, *cookie) || sq.post(wr, *cookie).is_ok(), "full");
    }
}

/// Posts messages of one segment one by one, by BlueFlame each.
#[inline(never)]
fn send_segment(sq: &mut Sq, bufs: &[(DataSeg, u64)]) {
    for &(seg, cookie) in bufs {
        assert!(sq.post(Wr::send(seg).signalled(), cookie).is_ok(), "full");
    }
}

/// Posts messages of 32 bytes with one doorbell.
#[inline(never)]
fn send_batch(sq: &mut Sq, texts: &[([u8; 32], u64)]) -> u32 {
    sq.post_batch(texts.iter().map(|(text, cookie)| (Wr::send(Inline(text)), *cookie))).unwrap_or(0)
}

/// Posts a prepared message one by one, with another payload each time.
#[inline(never)]
fn send_prepared(sq: &mut Sq, prepared: &mut Prepared, field: Field<8>, numbers: &[(u64, u64)]) {
    for &(number, cookie) in numbers {
        prepared.set(field, number.to_ne_bytes());
        assert!(sq.post_prepared(prepared, cookie).is_ok(), "full");
    }
}

/// Posts a template one by one, with eight other bytes each time.
#[inline(never)]
fn send_template(sq: &mut Sq, template: &Template<12>, numbers: &[(u64, u64)]) {
    for &(number, cookie) in numbers {
        assert!(sq.post_template(template, number.to_ne_bytes(), cookie).is_ok(), "full");
    }
}

/// Polls `n` completions of sends, and releases their requests.
#[inline(never)]
fn poll_sends(cq: &mut Cq, sq: &mut Sq, n: u32) -> u64 {
    let mut sum = 0;
    for _ in 0..n {
        let Some(send) = cq.poll_if_send() else { break };
        sum += sq.complete(send.wqe_counter).map_or(0, |released| released.cookie);
    }
    sum
}

/// Answers `n` messages: polls each, reposts its buffer, sends the answer, and takes the answer's
/// completion.
#[inline(never)]
fn echo(recv: &mut Cq, srq: &mut Srq<AnySegments>, send: &mut Cq, sq: &mut Sq, n: u32) -> u64 {
    let mut sum = 0;
    for _ in 0..n {
        let Some(received) = recv.poll_if_receive() else { break };
        let Ok(cookie) = srq.complete(received.slot) else { break };
        assert!(srq.post_one(DataSeg::new(0x1000 + cookie * 64, 64, 0x77), cookie).is_ok(), "full");
        let text = [received.byte_count as u8; 32];
        assert!(sq.post(Wr::send(Inline(&text)).signalled(), cookie).is_ok(), "full");
        let Some(sent) = send.poll_if_send() else { break };
        sum += sq.complete(sent.wqe_counter).map_or(0, |released| released.cookie);
    }
    sum
}

const SLOTS: u32 = 1024;
const STEP: u32 = 32;

fn srq() -> (Srq<AnySegments>, HeapView) {
    let (layout, mem) = SrqLayout::on_heap(SLOTS, 32).expect("layout");
    (Srq::new(layout, SLOTS - 1).expect("depth"), mem)
}

/// Returns the oldest `n` slots, in order.
fn give_back<M>(srq: &mut Srq<M>, oldest: &mut u32, n: u32) {
    for _ in 0..n {
        srq.complete(WqeIndex((*oldest % SLOTS) as u16)).expect("in order");
        *oldest += 1;
    }
}

/// A CQ of `SLOTS` entries, and who writes them.
fn cq() -> (Cq, Entries) {
    let (layout, mem) = CqLayout::on_heap(SLOTS, 64).expect("layout");
    // SAFETY: there is one thread.
    #[expect(unsafe_code, reason = "this stands in for a device")]
    let mem = unsafe { mem.device() };
    (Cq::new(layout), Entries { mem, produced: 0 })
}

struct Entries {
    mem: std::sync::Arc<HeapMem>,
    produced: u32,
}

impl Entries {
    fn push(&mut self, opcode: u8, sop_qpn: u32, counter: u16) {
        let at = (self.produced % SLOTS) as usize * 64;
        self.mem.store_be32(at + 44, 100);
        self.mem.store_be32(at + 56, sop_qpn);
        self.mem.store_be16(at + 60, counter);
        self.mem.store_u8(at + 63, opcode << 4 | (self.produced / SLOTS) as u8 & 1);
        self.produced += 1;
    }
}

/// The loops of send queues.
fn send_loops(case: &str, rounds: u32, batch: u32) -> bool {
    let (layout, _register) = SqLayout::on_heap(4 * SLOTS, SLOTS).expect("layout");
    let (mut sq, mut any) = (Sq::new(layout), srq());
    let ((mut send_cq, mut sent), (mut recv_cq, mut received)) = (cq(), cq());
    let texts: Vec<_> = (0..u64::from(batch)).map(|n| ([n as u8; 32], n)).collect();
    let long: Vec<_> = (0..u64::from(batch)).map(|n| ([n as u8; 62], n)).collect();
    let segs: Vec<_> =
        (0..u64::from(batch)).map(|n| (DataSeg::new(0x10_0000 + n * 64, 64, 0x77), n)).collect();
    let numbers: Vec<_> = (0..u64::from(batch)).map(|n| (n * 3, n)).collect();
    let mut prepared = sq.prepare(Wr::send(Inline(&[0; 32])).signalled()).expect("short");
    let field = prepared.field(8).expect("long enough");
    let template = prepared.clone().template::<12>().expect("a short send");
    let mut block = 0u16;
    if case == "echo" {
        any.0.post_batch((0..u64::from(SLOTS) - 1).map(|n| (DataSeg::new(0x1000 + n * 64, 64, 0x77), n)));
    }
    for round in 0..rounds {
        match case {
            "send_inline" => send_inline(&mut sq, black_box(&texts)),
            "send_long" => send_long(&mut sq, black_box(&long)),
            "send_segment" => send_segment(&mut sq, black_box(&segs)),
            "send_batch" => assert_eq!(send_batch(&mut sq, black_box(&texts)), batch),
            "send_prepared" => send_prepared(&mut sq, &mut prepared, field, black_box(&numbers)),
            "send_template" => send_template(&mut sq, &template, black_box(&numbers)),
            "poll_sends" => {
                send_inline(&mut sq, &texts);
                (0..batch as u16).for_each(|n| sent.push(0, 0x0a00_0042, block.wrapping_add(n)));
                black_box(poll_sends(&mut send_cq, &mut sq, batch));
            }
            "echo" => {
                for n in 0..batch {
                    received.push(2, 0x42, ((round * batch + n) % SLOTS) as u16);
                    sent.push(0, 0x0a00_0042, block.wrapping_add(n as u16));
                }
                black_box(echo(&mut recv_cq, &mut any.0, &mut send_cq, &mut sq, batch));
            }
            _ => return false,
        }
        let blocks = if case == "send_long" { 2 } else { 1 };
        block = block.wrapping_add(blocks * batch as u16);
        if !matches!(case, "poll_sends" | "echo") {
            sq.complete(block.wrapping_sub(blocks)).expect("the last one");
        }
        assert_eq!(sq.posted(), 0);
    }
    true
}

fn main() {
    let mut args = std::env::args().skip(1);
    let case = args.next().unwrap_or_default();
    let rounds: u32 = args.next().and_then(|n| n.parse().ok()).unwrap_or(1000);
    let batch: u32 = args.next().and_then(|n| n.parse().ok()).unwrap_or(STEP);
    let (mut any, _mem) = srq();
    let mut oldest = 0;
    let bufs: Vec<_> = (0..u64::from(batch)).map(|n| (0x10_0000 + n * 4096, n)).collect();
    match case.as_str() {
        "post_one" => {
            for _ in 0..rounds {
                post_one(&mut any, black_box(&bufs));
                give_back(&mut any, &mut oldest, batch);
            }
        }
        // A full SRQ: what completes is oldest, and is posted again.
        "complete_list" => {
            assert_eq!(
                any.post_batch((0..u64::from(SLOTS) - 1).map(|n| (DataSeg::new(n, 1, 1), n))),
                SLOTS - 1
            );
            for _ in 0..rounds {
                let slots: Vec<u16> = (0..batch).map(|n| ((oldest + n) % SLOTS) as u16).collect();
                oldest += batch;
                black_box(complete_list(&mut any, &slots));
                post_one(&mut any, &bufs);
            }
        }
        "post_batch" => {
            let bufs: Vec<_> =
                (0..u64::from(batch)).map(|n| (0x10_0000 + n * 4096, 4096 + n as u32, n)).collect();
            let encoded: Vec<_> = bufs.iter().map(|&(a, l, c)| (DataSeg::new(a, l, 0x77), c)).collect();
            for _ in 0..rounds {
                assert_eq!(post_batch(&mut any, black_box(&bufs)), batch);
                give_back(&mut any, &mut oldest, batch);
                assert_eq!(post_slice(&mut any, black_box(&encoded)), batch);
                give_back(&mut any, &mut oldest, batch);
            }
        }
        "post_one_address" => {
            let mut srq = any.address_only(4096, 0x77).expect("idle");
            for _ in 0..rounds {
                post_one_address(&mut srq, black_box(&bufs));
                give_back(&mut srq, &mut oldest, batch);
            }
        }
        "post_batch_address" => {
            let mut srq = any.address_only(4096, 0x77).expect("idle");
            for _ in 0..rounds {
                assert_eq!(post_batch_address(&mut srq, black_box(&bufs)), batch);
                give_back(&mut srq, &mut oldest, batch);
                assert_eq!(post_slice_address(&mut srq, black_box(&bufs)), batch);
                give_back(&mut srq, &mut oldest, batch);
            }
        }
        "repost_bound" => {
            let mut srq = any.bind(|s| (DataSeg::new(u64::from(s.0) * 4096, 4096, 0x77), 0)).expect("idle");
            for _ in 0..rounds {
                assert_eq!(repost_bound(&mut srq, batch), batch);
                give_back(&mut srq, &mut oldest, batch);
            }
        }
        "poll_receives" | "poll_empty" => {
            let (mut cq, mut entries) = cq();
            for round in 0..2 * rounds {
                for _ in 0..batch {
                    entries.push(2, 0x42, entries.produced as u16);
                }
                if round % 2 == 0 {
                    black_box(poll_receives(&mut cq, batch));
                } else {
                    black_box(poll_each_receive(&mut cq, batch));
                    assert_eq!(poll_empty(&mut cq, batch), batch);
                }
            }
        }
        other if send_loops(other, rounds, batch) => {}
        other => {
            eprintln!("unknown loop {other:?}");
            std::process::exit(2);
        }
    }
}
