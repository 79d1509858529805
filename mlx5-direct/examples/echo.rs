//! Answers each message with its own bytes: a QP's receive queue, its send queue, and one CQ for
//! both, that verbs made, given as raw pointers.
//!
//! `cargo run --example echo` on a machine with an mlx5 device, or under the software one:
//! `hw-tests/with-emu 'cargo run -p mlx5-direct --example echo'`.
#![expect(unsafe_code, reason = "queues are taken over from verbs")]

use doorbell_sys::*;
use mlx5_direct::{Completion, Cq, DataSeg, Rq, Sq, Wr, wr::Inline};

#[allow(clippy::duplicate_mod, reason = "a test includes both examples")]
#[path = "../tests/common/rig.rs"]
pub(crate) mod rig;
use rig::Rig;

const BUFFERS: u64 = 64;
const BUFFER_BYTES: u64 = 2048;
/// Every eighth answer is signalled: its completion releases those before it.
const SIGNAL_EVERY: u64 = 8;

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

struct Echo {
    sq: Sq,
    rq: Rq,
    cq: Cq,
    addr: u64,
    lkey: u32,
    answered: u64,
}

impl Echo {
    /// # Safety
    ///
    /// The QP and the CQ of its sends and receives are live as long as the value, nothing was
    /// posted or polled, and nobody else posts or polls. `BUFFERS * BUFFER_BYTES` bytes from `addr`
    /// on are registered with `lkey`, and nobody else uses them.
    unsafe fn new(qp: *mut ibv_qp, cq: *mut ibv_cq, addr: u64, lkey: u32) -> Outcome<Self> {
        // SAFETY: the caller's promise.
        let (sq, rq, cq) = unsafe { (Sq::from_verbs(qp)?, Rq::from_verbs(qp)?, Cq::from_verbs(cq)?) };
        let mut echo = Self { sq, rq, cq, addr, lkey, answered: 0 };
        for n in 0..BUFFERS {
            echo.rq.post(&[echo.buffer(n)], n)?;
        }
        Ok(echo)
    }

    fn buffer(&self, n: u64) -> DataSeg {
        DataSeg::new(self.addr + n * BUFFER_BYTES, BUFFER_BYTES as u32, self.lkey)
    }

    /// Handles the next completion, if there is one.
    fn step(&mut self) -> Outcome<bool> {
        let Some(completion) = self.cq.poll()? else { return Ok(false) };
        match completion {
            Completion::Send(send) => {
                // The device has read these answers: their buffers take new messages.
                let outstanding: Vec<_> = self.sq.outstanding().map(|(_, n)| n).collect();
                let released = self.sq.complete(send.wqe_counter)?.requests as usize;
                for n in outstanding.into_iter().take(released) {
                    self.rq.post(&[self.buffer(n)], n)?;
                }
            }
            Completion::Recv(receive) => {
                let n = self.rq.complete(receive.slot.0)?;
                self.answer(n, receive.byte_count)?;
            }
            Completion::RecvScattered(scattered) => {
                let slot = scattered.receive.slot.0;
                // SAFETY: the posted buffer belongs to this value, and the device did not write it.
                let len = unsafe { self.cq.deliver(&scattered, self.rq.segments(slot)) };
                let n = self.rq.complete(slot)?;
                self.answer(n, len as u32)?;
            }
            other => return Err(format!("{other:?}").into()),
        }
        Ok(true)
    }

    fn answer(&mut self, n: u64, len: u32) -> Outcome<()> {
        let buffer = self.buffer(n);
        self.answered += 1;
        let signalled = self.answered.is_multiple_of(SIGNAL_EVERY);
        if len > 0 && len <= self.sq.caps().max_inline {
            // SAFETY: the buffer has the message, and no device writes it until it is posted again.
            let text = unsafe { std::slice::from_raw_parts(buffer.addr() as *const u8, len as usize) };
            let wr = Wr::send(Inline(text));
            self.sq.post(if signalled { wr.signalled() } else { wr }, n)?;
        } else {
            let wr = Wr::send(DataSeg::new(buffer.addr(), len, self.lkey));
            self.sq.post(if signalled { wr.signalled() } else { wr }, n)?;
        }
        Ok(())
    }
}

/// A client that uses verbs sends messages and compares the answers. Returns the bytes answered.
pub(crate) fn run(rig: &Rig, messages: u32) -> u64 {
    let cqs = [0; 2].map(|_| rig.cq(255, false));
    let qp = |cq, sig_all| {
        let (qp, _) = rig.qp_with(cq, cq, std::ptr::null_mut(), |init| {
            (init.cap.max_recv_wr, init.cap.max_recv_sge, init.sq_sig_all) = (BUFFERS as u32, 1, sig_all);
        });
        qp
    };
    let (server, client) = (qp(cqs[0], 0), qp(cqs[1], 1));
    rig.connect(server, client);
    // SAFETY: made above and destroyed below; the buffers are the start of the rig's.
    let mut echo = unsafe { Echo::new(server, cqs[0], rig.addr(0), rig.lkey()) }.expect("fresh queues");
    let (from, to) = ((BUFFERS * BUFFER_BYTES) as usize, (2 * BUFFERS * BUFFER_BYTES) as usize);
    let mut bytes = 0;
    for n in 0..messages {
        let text: Vec<u8> = (0..1 + n * 7 % 1000).map(|k| (k * 3 + n) as u8).collect();
        rig.write(from, &text);
        rig.write(to, &vec![0; text.len()]);
        let mut sge = ibv_sge { addr: rig.addr(to), length: 1024, lkey: rig.lkey() };
        // SAFETY: a live QP; the request and its list live through the call.
        unsafe {
            let mut wr: ibv_recv_wr = std::mem::zeroed();
            (wr.sg_list, wr.num_sge) = (&mut sge, 1);
            assert_eq!(ibv_post_recv(client, &mut wr, &mut std::ptr::null_mut()), 0);
        }
        rig.send(client, from, text.len(), None, false);
        // The send and the answer.
        let mut completed = 0;
        while completed < 2 {
            completed += rig.poll_receives(cqs[1]).len();
            if !echo.step().expect("an answer") {
                std::thread::yield_now();
            }
        }
        assert_eq!(rig.read(to, text.len()), text, "the answer to message {n}");
        bytes += text.len() as u64;
    }
    assert_eq!(echo.answered, u64::from(messages));
    rig.destroy(&[server, client], &[], &cqs);
    bytes
}

#[allow(dead_code, reason = "a test calls `run`")]
fn main() {
    let Some(rig) = Rig::open() else { return eprintln!("no mlx5 device") };
    println!("{} bytes in 1000 answers", run(&rig, 1000));
}
