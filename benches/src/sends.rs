#![expect(unsafe_code, reason = "verbs calls, and queues taken over from verbs")]
//! Cases of send queues: libmlx5 against mlx5-direct on QPs of the same device.
//!
//! A QP sends to a second QP, whose receives and completions go through verbs. The device works and
//! the receives are posted outside the measured part.

use std::{hint::black_box, mem::zeroed, ptr::null_mut};

use doorbell_sys::*;
use mlx5_direct::{Cq, DataSeg, Prepared, Sq, Wr, wr::Inline};

use crate::{
    case::{Case, GROUP},
    plan::{CaseName, Spec, Subject},
    queues::{Ends, Queues},
};

/// Bytes of an inline message.
const TEXT: usize = 32;
/// Inline messages, each with a number.
type Texts = Vec<[u8; TEXT]>;

/// How a subject posts to the send queue and polls its CQ.
pub trait Sends {
    /// Posts `GROUP` messages: one by one, or with one call.
    fn post(&mut self, ends: &Ends);
    /// Takes the completions of `GROUP` messages, all of them signalled.
    fn reap(&mut self, ends: &Ends) -> u64;
    /// For each of `GROUP` messages that have arrived: polls the receive, posts its buffer again,
    /// sends one, and polls the completion of an earlier send.
    fn messages(&mut self, queues: &Queues, ends: &Ends);
}

struct Bench<S> {
    queues: Queues,
    ends: Ends,
    sends: S,
    case: CaseName,
    /// The last sample's messages are not completed yet.
    posted: bool,
}

/// The case of a subject.
pub fn path(subject: Subject, spec: &Spec) -> Box<dyn Case> {
    let (queues, ends) = Queues::for_sends(2 * GROUP);
    let texts: Texts = (0..GROUP).map(|n| [n as u8; TEXT]).collect();
    let sge = ibv_sge { length: 64, ..queues.sge(0) };
    let case = spec.case;
    if subject == Subject::Mlx5Direct {
        // SAFETY: the queues live as long as the process and nobody else drives the QP's send queue
        // and its CQ; the buffers are leaked and never accessed.
        let (sq, cq) = unsafe { (Sq::from_verbs(ends.from), Cq::from_verbs(ends.cq)) };
        let (sq, cq) = (sq.expect("a send queue"), cq.expect("a CQ"));
        let way = match (spec.case, spec.batch) {
            (CaseName::SendGather, _) => Way::Gather(DataSeg::new(sge.addr, sge.length, sge.lkey)),
            (CaseName::SendPrepared, _) => {
                let prepared = sq.prepare(Wr::send(Inline(&[0; TEXT])).signalled());
                Way::Prepared(Box::new(prepared.expect("a short request")))
            }
            (_, 1) => Way::Inline,
            _ => Way::Batch,
        };
        let sends = Direct { sq, cq, texts, way };
        return Box::new(Bench { queues, ends, sends, case, posted: false });
    }
    let gather = (spec.case == CaseName::SendGather).then_some(sge);
    let sends = Libmlx5::new(texts, gather, spec);
    Box::new(Bench { queues, ends, sends, case, posted: false })
}

/// The case with a data path that does nothing.
pub fn empty(spec: &Spec) -> Box<dyn Case> {
    Box::new(Empty { texts: (0..GROUP).map(|n| [n as u8; TEXT]).collect(), calls: GROUP / spec.batch })
}

struct Empty {
    texts: Texts,
    calls: u32,
}

impl Case for Empty {
    fn operations(&self) -> u32 {
        GROUP
    }

    fn prepare(&mut self) {}

    fn run(&mut self) {
        for text in &self.texts[..self.calls as usize] {
            black_box(text);
        }
    }
}

impl<S: Sends> Case for Bench<S> {
    fn operations(&self) -> u32 {
        GROUP
    }

    fn prepare(&mut self) {
        match self.case {
            CaseName::Message => {
                if !self.posted {
                    self.sends.post(&self.ends);
                }
                self.queues.carry(GROUP);
            }
            CaseName::ReapSend => {
                self.sends.post(&self.ends);
                self.queues.settle(GROUP);
            }
            _ if self.posted => {
                self.queues.settle(GROUP);
                black_box(self.sends.reap(&self.ends));
            }
            _ => {}
        }
        self.posted = true;
    }

    fn run(&mut self) {
        match self.case {
            CaseName::Message => self.sends.messages(&self.queues, &self.ends),
            CaseName::ReapSend => {
                black_box(self.sends.reap(&self.ends));
            }
            _ => self.sends.post(&self.ends),
        }
    }
}

/// What mlx5-direct posts.
enum Way {
    Inline,
    Batch,
    Gather(DataSeg),
    Prepared(Box<Prepared>),
}

struct Direct {
    sq: Sq,
    cq: Cq,
    texts: Texts,
    way: Way,
}

impl Sends for Direct {
    #[inline(always)]
    fn post(&mut self, _: &Ends) {
        let texts = self.texts.iter().zip(0..);
        match &mut self.way {
            Way::Inline => {
                for (text, cookie) in texts {
                    assert!(self.sq.post(Wr::send(Inline(text)).signalled(), cookie).is_ok(), "full");
                }
            }
            Way::Batch => {
                let wrs = texts.map(|(text, cookie)| (Wr::send(Inline(text)).signalled(), cookie));
                assert_eq!(self.sq.post_batch(wrs), Ok(GROUP));
            }
            Way::Gather(seg) => {
                for cookie in 0..u64::from(GROUP) {
                    assert!(self.sq.post(Wr::send(black_box(*seg)).signalled(), cookie).is_ok(), "full");
                }
            }
            Way::Prepared(prepared) => {
                for cookie in 0..u64::from(GROUP) {
                    prepared.payload()[..8].copy_from_slice(&cookie.to_ne_bytes());
                    assert!(self.sq.post_prepared(prepared, cookie).is_ok(), "full");
                }
            }
        }
    }

    #[inline(always)]
    fn reap(&mut self, _: &Ends) -> u64 {
        let mut sum = 0;
        for _ in 0..GROUP {
            let send = loop {
                if let Some(send) = self.cq.poll_if_send() {
                    break send;
                }
            };
            sum += self.sq.complete(send.wqe_counter).map_or(0, |released| released.cookie);
        }
        sum
    }

    fn messages(&mut self, _: &Queues, _: &Ends) {
        unreachable!("the case is one of verbs");
    }
}

/// `ibv_post_send` with prepared requests, and `ibv_poll_cq`.
struct Libmlx5 {
    wrs: Vec<ibv_send_wr>,
    chained: bool,
    _sges: Vec<ibv_sge>,
    _texts: Texts,
}

impl Libmlx5 {
    /// Messages of the segment `gather` if it is given, else inline messages.
    fn new(texts: Texts, gather: Option<ibv_sge>, spec: &Spec) -> Self {
        let inline = |text: &[u8; TEXT]| ibv_sge { addr: text.as_ptr() as u64, length: TEXT as u32, lkey: 0 };
        let mut sges: Vec<ibv_sge> = texts.iter().map(|text| gather.unwrap_or(inline(text))).collect();
        let inline = if gather.is_none() { ibv_send_flags::IBV_SEND_INLINE.0 } else { 0 };
        let flags = ibv_send_flags::IBV_SEND_SIGNALED.0 | inline;
        // SAFETY: integers and pointers only, for which zero is a value.
        let mut wrs: Vec<ibv_send_wr> = (0..GROUP).map(|_| unsafe { zeroed() }).collect();
        let (first, chained) = (wrs.as_mut_ptr(), spec.batch > 1);
        for (n, wr) in wrs.iter_mut().enumerate() {
            (wr.wr_id, wr.sg_list, wr.num_sge) = (n as u64, &raw mut sges[n], 1);
            (wr.opcode, wr.send_flags) = (ibv_wr_opcode::IBV_WR_SEND, flags);
            if chained && n + 1 < GROUP as usize {
                wr.next = first.wrapping_add(n + 1);
            }
        }
        Self { wrs, chained, _sges: sges, _texts: texts }
    }
}

impl Libmlx5 {
    /// The number of a completion, which the function waits for.
    #[inline(always)]
    fn poll(cq: *mut ibv_cq) -> u64 {
        // SAFETY: a live CQ of the case, and room for one completion.
        unsafe {
            let mut wc: ibv_wc = zeroed();
            while ibv_poll_cq(cq, 1, &mut wc) == 0 {}
            wc.wr_id
        }
    }

    /// Posts a request, or the list that it begins.
    #[inline(always)]
    fn send(wr: &mut ibv_send_wr, ends: &Ends) {
        // SAFETY: a live QP; the requests, their lists and texts live in the caller.
        let rc = unsafe { ibv_post_send(ends.from, wr, &mut null_mut()) };
        assert_eq!(rc, 0, "ibv_post_send");
    }
}

impl Sends for Libmlx5 {
    #[inline(always)]
    fn post(&mut self, ends: &Ends) {
        let calls = if self.chained { 1 } else { GROUP as usize };
        self.wrs[..calls].iter_mut().for_each(|wr| Self::send(wr, ends));
    }

    #[inline(always)]
    fn reap(&mut self, ends: &Ends) -> u64 {
        (0..GROUP).map(|_| Self::poll(ends.cq)).sum()
    }

    #[inline(always)]
    fn messages(&mut self, queues: &Queues, ends: &Ends) {
        let mut sge = queues.sge(0);
        // SAFETY: integers and pointers only, for which zero is a value.
        let mut receive: ibv_recv_wr = unsafe { zeroed() };
        (receive.sg_list, receive.num_sge) = (&raw mut sge, 1);
        for wr in &mut self.wrs {
            receive.wr_id = Self::poll(queues.cq());
            // SAFETY: a live SRQ; request and list live through the call.
            let rc = unsafe { ibv_post_srq_recv(queues.srq(), &mut receive, &mut null_mut()) };
            assert_eq!(rc, 0, "ibv_post_srq_recv");
            Self::send(wr, ends);
            black_box(Self::poll(ends.cq));
        }
    }
}
