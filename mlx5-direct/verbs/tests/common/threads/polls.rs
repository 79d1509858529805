//! Polls, and what the completions say.

use std::{collections::BTreeMap, mem::zeroed, sync::atomic::Ordering::SeqCst};

use doorbell_sys::*;

use super::{
    Worker,
    objects::{Kind, Target},
    posts::{self, Id},
};

/// The lengths of GRHs, which come before datagrams.
const GRH: u32 = 40;
/// Completions of a poll, at most.
const MOST: usize = 64;

/// What one thread did and saw in a round.
#[derive(Default)]
pub(super) struct Log {
    /// The thread's calls and what they returned.
    pub(super) calls: Vec<String>,
    /// By end, posting thread and number: completions of requests.
    requests: BTreeMap<(usize, usize, u32), String>,
    /// By receiving end, sending thread and number: messages.
    messages: BTreeMap<(usize, usize, u32), String>,
    /// By end and what came of them: receives.
    receives: BTreeMap<(usize, String), u32>,
    /// By end, posting thread and whether it is a receive: the last number that was polled.
    last: BTreeMap<(usize, usize, bool), u32>,
    /// The completions of connected QPs are checked, but neither counted nor printed.
    pub(super) ignores: bool,
}

impl Log {
    /// What is to be printed. The numbers that were polled last are kept.
    pub(super) fn end_round(&mut self) -> Self {
        let last = std::mem::take(&mut self.last);
        std::mem::replace(self, Self { last, ..Self::default() })
    }
}

impl Worker<'_> {
    /// Polls one of the CQs.
    pub(super) fn poll_any(&mut self) {
        let shared = self.shared;
        // These draws do not decide what is posted.
        let cq = self.polls.below(shared.objects.cqs.len() as u32) as usize;
        let most = [1, 3, 8, MOST][self.polls.below(4) as usize];
        let lives: Vec<_> = shared.lives.iter().map(|life| life.load(SeqCst)).collect();
        // SAFETY: integers only; a live CQ and room for as many entries.
        let mut wcs: [ibv_wc; MOST] = unsafe { zeroed() };
        // SAFETY: as above.
        let polled = unsafe {
            if self.polls.once_in(20) {
                // No channel: no event comes of this.
                assert_eq!(ibv_req_notify_cq(shared.objects.cqs[cq], self.polls.below(2) as i32), 0);
            }
            ibv_poll_cq(shared.objects.cqs[cq], most as i32, wcs.as_mut_ptr())
        };
        assert!((0..=most as i32).contains(&polled), "ibv_poll_cq: {polled}");
        for wc in &wcs[..polled as usize] {
            let end = shared.objects.by_number(wc.qp_num);
            let id = Id::from(wc.wr_id);
            let from_srq =
                id.receive && shared.objects.queues[shared.objects.ends[end].queue].target == Target::Srq;
            assert!(from_srq || id.end == end, "a completion of QP {end} has the id {id:?}");
            assert!(from_srq || id.life >= lives[end] as u8, "a completion of before a reset: {id:?}");
            let before = self.log.last.insert((end, id.thread, id.receive), id.number);
            assert!(before.is_none_or(|before| before < id.number), "{id:?} after {before:?}");
            if id.receive { self.received(end, id, wc, from_srq) } else { self.sent(end, id, wc) }
        }
        if polled == 0 {
            std::thread::yield_now();
        }
    }

    fn ignores(&self, end: usize) -> bool {
        self.log.ignores && self.shared.objects.ends[end].kind == Kind::Rc
    }

    fn sent(&mut self, end: usize, id: Id, wc: &ibv_wc) {
        if self.ignores(end) {
            return;
        }
        let mut text = format!("status {}", wc.status);
        if wc.status == 0 {
            text += &format!(", opcode {}, flags {}", wc.opcode, wc.wc_flags);
            if wc.opcode >= ibv_wc_opcode::IBV_WC_COMP_SWAP && wc.opcode <= ibv_wc_opcode::IBV_WC_FETCH_ADD
                || wc.opcode == ibv_wc_opcode::IBV_WC_RDMA_READ
            {
                text += &format!(", {} bytes", wc.byte_len);
            }
        }
        let twice = self.log.requests.insert((end, id.thread, id.number), text);
        assert!(twice.is_none(), "{id:?} completed twice");
        self.shared.requests_due[end].fetch_sub(1, SeqCst);
    }

    fn received(&mut self, end: usize, id: Id, wc: &ibv_wc, from_srq: bool) {
        let shared = self.shared;
        let posted = shared.memory.received(id.thread, id.number);
        let flushed = wc.status == ibv_wc_status::IBV_WC_WR_FLUSH_ERR;
        if wc.status == 0 {
            self.message(end, &posted, wc);
        }
        if self.ignores(end) {
            return;
        }
        let text = format!("status {}", wc.status);
        *self.log.receives.entry((end, text)).or_default() += 1;
        // The receives are counted down last: whoever waits for this then has seen all.
        if !flushed {
            shared.messages_due[end].fetch_sub(1, SeqCst);
        }
        let queue = if from_srq { 0 } else { shared.objects.ends[end].queue };
        shared.posted[queue].fetch_sub(1, SeqCst);
    }

    /// A message has the content that its number says.
    fn message(&mut self, end: usize, posted: &super::objects::Posted, wc: &ibv_wc) {
        let shared = self.shared;
        let datagram = shared.objects.ends[end].kind == Kind::Ud;
        let with_imm = wc.wc_flags & ibv_wc_flags::IBV_WC_WITH_IMM.0 != 0;
        // SAFETY: an integer.
        let imm = unsafe { wc.imm_data_invalidated_rkey_union.imm_data };
        let into_buffer = wc.opcode == ibv_wc_opcode::IBV_WC_RECV;
        let mut bytes = shared.memory.message(posted, if into_buffer { wc.byte_len } else { 0 });
        if datagram {
            bytes.drain(..GRH as usize);
        }
        let number = if with_imm {
            assert!(bytes.iter().copied().eq(posts::content(imm).take(bytes.len())), "{imm:x}: {bytes:?}");
            imm
        } else {
            let number = u32::from_le_bytes(bytes[..4].try_into().expect("a message without number"));
            assert!(
                bytes[4..].iter().copied().eq(posts::content(number).skip(4).take(bytes.len() - 4)),
                "{number:x}: {bytes:?}"
            );
            number
        };
        if self.ignores(end) {
            return;
        }
        let mut text = format!("opcode {}, {} bytes, flags {}", wc.opcode, wc.byte_len, wc.wc_flags);
        if datagram {
            let from = shared.objects.by_number(wc.src_qp);
            text += &format!(", from {from}, {} {} {} {}", wc.pkey_index, wc.slid, wc.sl, wc.dlid_path_bits);
        }
        let twice = self.log.messages.insert((end, (number >> 24) as usize, number & 0xff_ffff), text);
        assert!(twice.is_none(), "message {number:x} came twice");
    }
}

/// Prints what all threads did and saw together.
pub(super) fn print(logs: &mut Vec<Log>) {
    let mut all = Log::default();
    for log in logs.drain(..) {
        log.calls.iter().for_each(|call| println!("  {call}"));
        for (id, text) in log.requests {
            assert!(all.requests.insert(id, text).is_none(), "request {id:?} completed twice");
        }
        for (id, text) in log.messages {
            assert!(all.messages.insert(id, text).is_none(), "message {id:?} came twice");
        }
        for (what, n) in log.receives {
            *all.receives.entry(what).or_default() += n;
        }
    }
    for ((end, thread, number), text) in &all.requests {
        println!("  QP {end}: request {number} of thread {thread}: {text}");
    }
    for ((end, thread, number), text) in &all.messages {
        println!("  QP {end}: message {number} of thread {thread}: {text}");
    }
    for ((end, text), n) in &all.receives {
        println!("  QP {end}: {n} receives: {text}");
    }
}
