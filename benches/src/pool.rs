//! A whole message by the pools of the Rust API: a receive, the post of its buffer, the answer, and
//! the completion of an earlier answer.

use std::{hint::black_box, time::Duration};

use doorbell::{
    CompletionFlags, ConnectOptions, Ep, Evd, EvdFlags, Event, Ia, Lmr, LmrTriplet, Psp, Pz, Received,
    RecvPool, SendPool, Srq,
};

use crate::{
    case::{Case, GROUP},
    device,
    plan::Spec,
    provider::until,
};

const PATIENCE: Duration = Duration::from_secs(20);
const MESSAGE: usize = 64;
/// What an answer has: it goes inline.
const ANSWER: usize = 32;

/// The case. The client's part, by posts of its own, is between the samples.
pub struct Echo {
    srq: Srq,
    server: Ep,
    client: Ep,
    received: Evd,
    sent: Evd,
    /// All completions of the client.
    theirs: Evd,
    messages: RecvPool,
    answers: SendPool,
    memory: LmrTriplet,
    data_path: &'static str,
    _rest: (Lmr, Pz, Ia),
}

impl Echo {
    /// The case. The provider chooses the data path.
    ///
    /// # Errors
    ///
    /// The errors of the provider's calls.
    pub fn new(spec: &Spec) -> anyhow::Result<Self> {
        device::start();
        let ia = Ia::open(device::name())?;
        let pz = Pz::new(&ia)?;
        let evd = |n: u32, flags| Evd::new(&ia, n, flags);
        let (received, sent) = (evd(spec.depth, EvdFlags::DTO)?, evd(4 * GROUP, EvdFlags::DTO)?);
        let (theirs, requests) = (evd(4 * GROUP, EvdFlags::DTO)?, evd(8, EvdFlags::CR)?);
        let connections = [evd(8, EvdFlags::CONNECTION)?, evd(8, EvdFlags::CONNECTION)?];
        let lmr = Lmr::builder(&ia, &pz).allocate(MESSAGE)?;
        let mut srq = Srq::builder(&ia, &pz).depth(spec.depth).build()?;
        let mut messages = RecvPool::new(&ia, &pz, spec.depth, MESSAGE)?;
        messages.refill(&mut srq)?;
        let ep = Ep::builder(&ia, &pz).request_depth(2 * GROUP).recv_depth(GROUP);
        let server = ep.clone().recv_evd(&received).request_evd(&sent).connect_evd(&connections[0]);
        let server = server.srq(&srq).build()?;
        let client = ep.recv_evd(&theirs).request_evd(&theirs).connect_evd(&connections[1]);
        let psp = Psp::builder(&ia, &requests).build()?;
        let client = client.connect_with(psp.address(), ConnectOptions::new().timeout(PATIENCE))?;
        let request = until("a connection request", || requests.dequeue().ok().flatten());
        let Event::ConnectionRequest(arrival) = request else {
            anyhow::bail!("{request:?} instead of a connection request");
        };
        arrival.cr.accept(&server, &[])?;
        for evd in &connections {
            until("the connection", || evd.dequeue().ok().flatten());
        }
        let mut this = Self {
            srq,
            server,
            client,
            received,
            sent,
            theirs,
            messages,
            answers: SendPool::new(&ia, &pz, 2 * GROUP, MESSAGE)?,
            memory: lmr.triplet(0, MESSAGE),
            data_path: ia.provider_attributes().datapath,
            _rest: (lmr, pz, ia),
        };
        // Answers to nothing, so that each sample finds completions of the one before.
        this.expect_answers();
        (0..GROUP).for_each(|_| this.answer());
        Ok(this)
    }

    fn expect_answers(&mut self) {
        for _ in 0..GROUP {
            self.client.post_recv(&[self.memory], 0, CompletionFlags::empty()).expect("a receive");
        }
    }

    fn completions_of_the_client(&self) {
        for _ in 0..GROUP {
            until("a completion of the client", || self.theirs.dequeue().ok().flatten());
        }
    }

    #[inline(always)]
    fn answer(&mut self) {
        let buffer = self.answers.take().expect("a free buffer");
        let sent = self.answers.send(buffer).len(ANSWER).post(&mut self.server);
        assert!(sent.is_ok(), "a send was refused");
    }

    #[inline(always)]
    fn message(&mut self) {
        match self.messages.next(&mut self.srq, &self.received) {
            Ok(Received::Message(message)) => drop(black_box(message)),
            other => panic!("{other:?} instead of a message"),
        }
        self.answer();
        let event = self.sent.dequeue().expect("a queue");
        let Some(Event::Done(dto)) = &event else { panic!("{event:?} instead of a completion") };
        assert!(self.answers.completed(dto));
    }
}

impl Case for Echo {
    fn operations(&self) -> u32 {
        GROUP
    }

    /// The answers of the last sample arrive, and as many messages.
    fn prepare(&mut self) {
        self.completions_of_the_client();
        self.expect_answers();
        for _ in 0..GROUP {
            self.client.send(&[self.memory]).post().expect("a send");
        }
        self.completions_of_the_client();
    }

    fn run(&mut self) {
        (0..GROUP).for_each(|_| self.message());
    }

    fn data_path(&self) -> Option<&'static str> {
        Some(self.data_path)
    }
}
