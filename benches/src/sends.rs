#![expect(unsafe_code, reason = "verbs calls, and queues taken over from verbs")]
//! Cases of send queues: libmlx5 against mlx5-direct on QPs of the same device.
//!
//! A QP sends to a second QP, whose receives and completions go through verbs. The device works and
//! the receives are posted outside the measured part.

use std::{hint::black_box, mem::zeroed, ptr::null_mut};

use doorbell_sys::*;
use mlx5_direct::{Completion, Cq, DataSeg, Sq, Srq, Template, WqeIndex, Wr, wr::Inline};

use crate::{
    case::{Case, GROUP},
    plan::{CaseName, Spec, Subject},
    queues::{Ends, Queues, RECEIVES},
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

    /// One call of [`post`](Self::post), the `n`-th.
    fn post_call(&mut self, ends: &Ends, n: u32);
    /// One message of [`reap`](Self::reap).
    fn reap_call(&mut self, ends: &Ends) -> u64;
    /// One message of [`messages`](Self::messages), the `n`-th.
    fn message_call(&mut self, queues: &Queues, ends: &Ends, n: u32);
}

/// The buffer that messages of [`CaseName::MessageLarge`] come from; no receive has it.
const SOURCE: u32 = 200;
/// Their bytes.
const LARGE: u32 = 512;

/// Reads each line of a large message, as a program does.
#[inline(always)]
fn read_payload(queues: &Queues, buffer: u32) {
    let address = queues.address(buffer) as *const u8;
    for line in 0..LARGE as usize / 64 {
        // SAFETY: inside the buffer of 4096 bytes, which is leaked.
        black_box(unsafe { address.add(line * 64).read_volatile() });
    }
}

struct Bench<S> {
    queues: Queues,
    ends: Ends,
    sends: S,
    case: CaseName,
    /// Calls of a sample.
    calls: u32,
    /// The last sample's messages are not completed yet.
    posted: bool,
}

/// The case of a subject.
pub fn path(subject: Subject, spec: &Spec) -> Box<dyn Case> {
    let direct = subject == Subject::Mlx5Direct;
    let message = direct && spec.case.is_message();
    let receives = if message { 0 } else { RECEIVES };
    let (queues, ends) = Queues::for_sends(receives, spec.case);
    let texts: Texts = (0..GROUP).map(|n| [n as u8; TEXT]).collect();
    let sge = ibv_sge { length: 64, ..queues.sge(0) };
    let case = spec.case;
    if direct {
        // SAFETY: the queues live as long as the process and nobody else drives the QP's send queue
        // and its CQ; the buffers are leaked and never accessed.
        let (sq, cq) = unsafe { (Sq::from_verbs(ends.from), Cq::from_verbs(ends.cq)) };
        let (sq, cq) = (sq.expect("a send queue"), cq.expect("a CQ"));
        let way = match (spec.case, spec.batch) {
            (CaseName::MessageLarge, _) => {
                Way::Gather(DataSeg::new(queues.address(SOURCE), LARGE, queues.lkey()))
            }
            (CaseName::SendGather, _) => Way::Gather(DataSeg::new(sge.addr, sge.length, sge.lkey)),
            (CaseName::SendPrepared, _) => {
                let prepared = sq.prepare(Wr::send(Inline(&[0; TEXT])).signalled()).expect("a short request");
                Way::Template(Box::new(prepared.template().expect("a Send")))
            }
            (CaseName::SendFenced, _) => Way::Fenced,
            (_, 1) => Way::Inline,
            (CaseName::SendWr, _) => Way::Chain,
            _ => Way::Batch,
        };
        let receives = message.then(|| Receives::new(&queues));
        let sends = Direct { sq, cq, texts, way, receives };
        return Box::new(Bench { queues, ends, sends, case, calls: GROUP / spec.batch, posted: false });
    }
    let gather = match spec.case {
        CaseName::SendGather => Some(sge),
        CaseName::MessageLarge => Some(ibv_sge { length: LARGE, ..queues.sge(SOURCE) }),
        _ => None,
    };
    let sends = Libmlx5::new(texts, gather, spec);
    Box::new(Bench { queues, ends, sends, case, calls: GROUP / spec.batch, posted: false })
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

    fn calls(&self) -> u32 {
        self.calls
    }

    fn run_call(&mut self, n: u32) {
        black_box(&self.texts[n as usize]);
    }

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
            case if case.is_message() => {
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

    fn calls(&self) -> u32 {
        self.calls
    }

    fn run_call(&mut self, n: u32) {
        match self.case {
            case if case.is_message() => self.sends.message_call(&self.queues, &self.ends, n),
            CaseName::ReapSend => {
                black_box(self.sends.reap_call(&self.ends));
            }
            _ if self.calls == 1 => self.sends.post(&self.ends),
            _ => self.sends.post_call(&self.ends, n),
        }
    }

    fn run(&mut self) {
        match self.case {
            case if case.is_message() => self.sends.messages(&self.queues, &self.ends),
            CaseName::ReapSend => {
                black_box(self.sends.reap(&self.ends));
            }
            _ => self.sends.post(&self.ends),
        }
    }
}

/// How mlx5-direct posts.
enum Way {
    Inline,
    /// Each post with a fence behind it.
    Fenced,
    Batch,
    /// As a batch, with a call for each request.
    Chain,
    Gather(DataSeg),
    Template(Box<Template<12>>),
}

struct Direct {
    sq: Sq,
    cq: Cq,
    texts: Texts,
    way: Way,
    /// For messages.
    receives: Option<Receives>,
}

/// An SRQ and the CQ of its receives, driven by mlx5-direct.
struct Receives {
    srq: Srq,
    cq: Cq,
}

impl Receives {
    /// Takes the queues over, and posts all buffers.
    fn new(queues: &Queues) -> Self {
        // SAFETY: the queues live as long as the process and nobody else posts to or polls them;
        // the buffers are leaked and never accessed.
        let (srq, cq) =
            unsafe { (Srq::from_verbs(queues.srq(), Some(RECEIVES)), Cq::from_verbs(queues.cq())) };
        let (mut srq, cq) = (srq.expect("an SRQ"), cq.expect("a CQ"));
        let buffer = |n| (DataSeg::new(queues.address(n), 4096, queues.lkey()), u64::from(n));
        assert_eq!(srq.post_batch((0..RECEIVES).map(buffer)), RECEIVES);
        Self { srq, cq }
    }
}

/// Waits until the processor has sent out its write-combined stores.
#[inline(always)]
fn fence() {
    // SAFETY: instructions that change neither memory nor registers.
    unsafe {
        #[cfg(target_arch = "x86_64")]
        core::arch::asm!("sfence", options(nostack, preserves_flags));
        #[cfg(target_arch = "aarch64")]
        core::arch::asm!("dsb st", options(nostack, preserves_flags));
    }
}

/// Takes the next completion of a receive, of whatever kind.
#[inline(never)]
fn take_receive(cq: &mut Cq) -> Option<WqeIndex> {
    let completion = cq.poll().expect("a known entry")?;
    if let Completion::RecvScattered(scattered) = completion {
        let mut text = [0; TEXT];
        assert_eq!(cq.copy_scattered(&scattered, &mut text), TEXT);
        black_box(&text);
    }
    Some(completion.slot().expect("a receive"))
}

/// The number of the request whose completion comes next.
#[inline(always)]
fn reap_one(cq: &mut Cq, sq: &mut Sq) -> u64 {
    let send = loop {
        if let Some(send) = cq.poll_if_send() {
            break send;
        }
    };
    sq.complete(send.wqe_counter).map_or(0, |released| released.cookie)
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
            Way::Fenced => {
                for (text, cookie) in texts {
                    assert!(self.sq.post(Wr::send(Inline(text)).signalled(), cookie).is_ok(), "full");
                    fence();
                }
            }
            Way::Chain => {
                let mut chain = self.sq.chain();
                for (text, cookie) in texts {
                    assert!(chain.push(Wr::send(Inline(text)).signalled(), cookie).is_ok(), "full");
                }
                assert_eq!(chain.ring(), GROUP);
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
            Way::Template(template) => {
                for cookie in 0..u64::from(GROUP) {
                    assert!(self.sq.post_template(template, cookie.to_ne_bytes(), cookie).is_ok(), "full");
                }
            }
        }
    }

    #[inline(always)]
    fn reap(&mut self, _: &Ends) -> u64 {
        (0..GROUP).map(|_| reap_one(&mut self.cq, &mut self.sq)).sum()
    }

    #[inline(always)]
    fn messages(&mut self, queues: &Queues, _: &Ends) {
        let Some(receives) = &mut self.receives else { unreachable!("no receives") };
        for text in &self.texts {
            message(&mut self.sq, &mut self.cq, receives, queues, Inline(text));
        }
    }

    fn post_call(&mut self, _: &Ends, n: u32) {
        let cookie = u64::from(n);
        let posted = match &self.way {
            Way::Gather(seg) => self.sq.post(Wr::send(black_box(*seg)).signalled(), cookie),
            Way::Template(template) => self.sq.post_template(template, cookie.to_ne_bytes(), cookie),
            _ => self.sq.post(Wr::send(Inline(&self.texts[n as usize])).signalled(), cookie),
        };
        assert!(posted.is_ok(), "full");
    }

    fn reap_call(&mut self, _: &Ends) -> u64 {
        reap_one(&mut self.cq, &mut self.sq)
    }

    fn message_call(&mut self, queues: &Queues, _: &Ends, n: u32) {
        let Some(receives) = &mut self.receives else { unreachable!("no receives") };
        let text = Inline(&self.texts[n as usize]);
        match &self.way {
            Way::Gather(seg) => message(&mut self.sq, &mut self.cq, receives, queues, Large(*seg)),
            _ => message(&mut self.sq, &mut self.cq, receives, queues, text),
        }
    }
}

/// How a message is read and answered.
trait Answer {
    fn read(&self, queues: &Queues, buffer: u32);
    fn send(self, sq: &mut Sq, cookie: u64) -> bool;
}

impl Answer for Inline<'_> {
    #[inline(always)]
    fn read(&self, _: &Queues, _: u32) {}

    #[inline(always)]
    fn send(self, sq: &mut Sq, cookie: u64) -> bool {
        sq.post(Wr::send(self).signalled(), cookie).is_ok()
    }
}

/// A message of [`CaseName::MessageLarge`].
struct Large(DataSeg);

impl Answer for Large {
    #[inline(always)]
    fn read(&self, queues: &Queues, buffer: u32) {
        read_payload(queues, buffer);
    }

    #[inline(always)]
    fn send(self, sq: &mut Sq, cookie: u64) -> bool {
        sq.post(Wr::send(self.0).signalled(), cookie).is_ok()
    }
}

/// A message: its completion, a new buffer, an answer, and the completion of an earlier one.
#[inline(always)]
fn message(sq: &mut Sq, sends: &mut Cq, receives: &mut Receives, queues: &Queues, answer: impl Answer) {
    let Receives { srq, cq } = receives;
    let slot = loop {
        if let Some(receive) = cq.poll_if_receive() {
            break receive.slot;
        }
        if let Some((entry, received)) = cq.short_entry() {
            black_box(&received);
            let slot = WqeIndex(entry.wqe_counter());
            entry.take();
            break slot;
        }
        if let Some(slot) = take_receive(cq) {
            break slot;
        }
    };
    let buffer = srq.complete(slot).expect("in use");
    answer.read(queues, buffer as u32);
    let posted = srq.post_one(DataSeg::new(queues.address(buffer as u32), 4096, queues.lkey()), buffer);
    assert!(posted.is_ok(), "the SRQ is full");
    assert!(answer.send(sq, buffer), "full");
    black_box(reap_one(sends, sq));
}

/// `ibv_post_send` with prepared requests, or `ibv_wr_send` with texts; and `ibv_poll_cq`.
struct Libmlx5 {
    wrs: Vec<ibv_send_wr>,
    chained: bool,
    extended: bool,
    /// Messages are read.
    large: bool,
    _sges: Vec<ibv_sge>,
    texts: Texts,
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
        Self {
            wrs,
            chained,
            extended: spec.case == CaseName::SendWr,
            large: spec.case == CaseName::MessageLarge,
            _sges: sges,
            texts,
        }
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

    /// Posts the texts by `ibv_wr_*`: each alone, or all between one start and one completion.
    #[inline(always)]
    fn send_extended(&mut self, ends: &Ends) {
        let (qp, flags) = (ends.from.cast::<ibv_qp_ex>(), ibv_send_flags::IBV_SEND_SIGNALED.0);
        // SAFETY: a live QP, made by `ibv_create_qp_ex` for these operations, so that libmlx5 has
        // set their functions; a setter follows each operation.
        unsafe {
            // As the inline functions of verbs.h: a load of the function, and the call.
            macro_rules! call {
                ($function:ident($($argument:expr),*)) => {
                    (*qp).$function.unwrap_unchecked()(qp, $($argument),*)
                };
            }
            if self.chained {
                call!(wr_start());
            }
            for (text, id) in self.texts.iter_mut().zip(0..) {
                if !self.chained {
                    call!(wr_start());
                }
                ((*qp).wr_id, (*qp).wr_flags) = (id, flags);
                call!(wr_send());
                call!(wr_set_inline_data(text.as_mut_ptr().cast(), TEXT));
                if !self.chained {
                    assert_eq!(call!(wr_complete()), 0, "ibv_wr_complete");
                }
            }
            if self.chained {
                assert_eq!(call!(wr_complete()), 0, "ibv_wr_complete");
            }
        }
    }
}

impl Sends for Libmlx5 {
    #[inline(always)]
    fn post(&mut self, ends: &Ends) {
        if self.extended {
            return self.send_extended(ends);
        }
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

    fn post_call(&mut self, ends: &Ends, n: u32) {
        Self::send(&mut self.wrs[n as usize], ends);
    }

    fn reap_call(&mut self, ends: &Ends) -> u64 {
        Self::poll(ends.cq)
    }

    fn message_call(&mut self, queues: &Queues, ends: &Ends, n: u32) {
        let wr_id = Self::poll(queues.cq());
        let mut sge = queues.sge(wr_id as u32);
        if self.large {
            read_payload(queues, wr_id as u32);
        }
        let mut receive = ibv_recv_wr { wr_id, next: null_mut(), sg_list: &raw mut sge, num_sge: 1 };
        // SAFETY: a live SRQ; request and list live through the call.
        let rc = unsafe { ibv_post_srq_recv(queues.srq(), &mut receive, &mut null_mut()) };
        assert_eq!(rc, 0, "ibv_post_srq_recv");
        Self::send(&mut self.wrs[n as usize], ends);
        black_box(Self::poll(ends.cq));
    }
}
