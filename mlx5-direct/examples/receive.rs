//! Receives through an SRQ and a CQ that verbs made, given as raw pointers.
//!
//! `cargo run --example receive` on a machine with an mlx5 device, or under the software one:
//! `hw-tests/with-emu 'cargo run -p mlx5-direct --example receive'`.
#![expect(unsafe_code, reason = "queues are taken over from verbs")]

use doorbell_sys::{ibv_cq, ibv_srq};
use mlx5_direct::{Completion, Cq, DataSeg, Srq};

#[allow(clippy::duplicate_mod, reason = "a test includes both examples")]
#[path = "../tests/common/rig.rs"]
pub(crate) mod rig;
use rig::Rig;

const BUFFERS: u64 = 64;
const BUFFER_BYTES: u64 = 2048;

/// Takes `messages` messages from an SRQ with its CQ, both new, into buffers from `addr` on. Calls
/// `send` to have the next message sent, and `each` with each message that arrived.
///
/// # Safety
///
/// SRQ and CQ are live until this function returns, nothing was posted or polled, and nobody else
/// posts or polls. `BUFFERS * BUFFER_BYTES` bytes from `addr` on are registered with `lkey`, and
/// nobody else uses them.
pub(crate) unsafe fn receive(
    srq: *mut ibv_srq,
    cq: *mut ibv_cq,
    (addr, lkey): (u64, u32),
    messages: u32,
    mut send: impl FnMut(u32),
    mut each: impl FnMut(&[u8]),
) -> Result<(), Box<dyn std::error::Error>> {
    // SAFETY: the caller's promise.
    let (mut srq, mut cq) = unsafe { (Srq::from_verbs(srq, None)?, Cq::from_verbs(cq)?) };
    let buffer = |n: u64| (DataSeg::new(addr + n * BUFFER_BYTES, BUFFER_BYTES as u32, lkey), n);
    srq.post_batch((0..BUFFERS).map(buffer));
    for n in 0..messages {
        send(n);
        let completion = loop {
            match cq.poll()? {
                Some(completion) => break completion,
                None => std::thread::yield_now(),
            }
        };
        // The cookie gives the buffer, which is posted again behind the others.
        let slot = completion.slot().ok_or_else(|| format!("{completion:?}"))?;
        let (seg, cookie) = buffer(srq.complete(slot)?);
        // SAFETY: by the caller's promise the buffer belongs to the program, and no device writes
        // it until it is posted again below.
        let into = unsafe { std::slice::from_raw_parts_mut(seg.addr() as *mut u8, BUFFER_BYTES as usize) };
        let len = match completion {
            Completion::Recv(receive) => receive.byte_count as usize,
            // The payload of a small message is in its completion. The device has not written the
            // buffer, so it is copied here.
            Completion::RecvScattered(scattered) => cq.copy_scattered(&scattered, into),
            other => return Err(format!("{other:?}").into()),
        };
        each(&into[..len]);
        srq.post_one(seg, cookie)?;
    }
    Ok(())
}

/// Two connected QPs on a device; one sends to the other. Returns the bytes received.
pub(crate) fn run(rig: &Rig, messages: u32) -> u64 {
    let (recv, send) = (rig.cq(127, false), rig.cq(127, false));
    let srq = rig.srq(100, 1);
    let qps = [rig.qp(send, recv, srq), rig.qp(send, recv, srq)];
    rig.connect(qps[0], qps[1]);
    let from = (BUFFERS * BUFFER_BYTES) as usize;
    let buffers = (rig.addr(0), rig.lkey());
    let send_one = |n: u32| {
        while n > 0 && rig.poll_sends(send).0 == 0 {}
        rig.send(qps[0], from, 1 + n as usize % 1000, None, false);
    };
    let text: Vec<u8> = (0..1001u32).map(|n| (n * 7 + 1) as u8).collect();
    rig.write(from, &text);
    let mut bytes = 0;
    let check = |got: &[u8]| {
        assert!(text.starts_with(got), "other bytes than were sent");
        bytes += got.len() as u64;
    };
    // SAFETY: made above and destroyed below, used by this call only; the buffers are the start of
    // the rig's.
    unsafe { receive(srq, recv, buffers, messages, send_one, check) }.expect("messages");
    while rig.poll_sends(send).0 == 0 {}
    rig.destroy(&qps, &[srq], &[recv, send]);
    bytes
}

#[allow(dead_code, reason = "a test calls `run`")]
fn main() {
    let Some(rig) = Rig::open() else { return eprintln!("no mlx5 device") };
    println!("{} bytes in 1000 messages", run(&rig, 1000));
}
