//! The provider's Rust API: one connection per case, and real messages between samples.

use std::{
    hint::black_box,
    time::{Duration, Instant},
};

use doorbell::{
    CompletionFlags, ConnectOptions, DtoOp, Ep, Evd, EvdFlags, Event, Ia, Lmr, LmrTriplet, MemPriv, Psp, Pz,
    Request, RmrTriplet, SendPool, Srq,
};

use crate::{
    case::{Case, GROUP},
    device,
    plan::{CaseName, Spec},
};

const PATIENCE: Duration = Duration::from_secs(20);
const MESSAGE: usize = 64;
const SETTLE: Duration = Duration::from_micros(200);
/// More QPs than the software device has send registers.
const SHARED: usize = 20;

/// A case of the provider.
pub struct Provider {
    spec: Spec,
    srq: Srq,
    client: Ep,
    server: Ep,
    received: Evd,
    sent: Evd,
    /// Completions of the client's receives and of the server's requests.
    unused: Evd,
    pool: SendPool,
    /// Memory of the server for RDMA Writes.
    target: RmrTriplet,
    /// One buffer per call.
    buffers: Vec<Vec<LmrTriplet>>,
    source: LmrTriplet,
    /// Posted in the last sample: buffers, or requests.
    outstanding: u32,
    data_path: &'static str,
    _rest: (Vec<Ep>, Lmr, Pz, Ia),
}

/// Lets the device work until `there` returns a value.
pub(crate) fn until<T>(what: &str, mut there: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = there() {
            return found;
        }
        assert!(start.elapsed() < PATIENCE, "nothing came: {what}");
        device::step();
        std::thread::yield_now();
    }
}

impl Provider {
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
        let (received, sent) = (evd(spec.depth + GROUP, EvdFlags::DTO)?, evd(4 * GROUP, EvdFlags::DTO)?);
        let (unused, requests) = (evd(4 * GROUP, EvdFlags::DTO)?, evd(8, EvdFlags::CR)?);
        let connections = [evd(8, EvdFlags::CONNECTION)?, evd(8, EvdFlags::CONNECTION)?];
        let segments = spec.segments as usize;
        let lmr = Lmr::builder(&ia, &pz)
            .privileges(MemPriv::LOCAL_READ | MemPriv::LOCAL_WRITE | MemPriv::REMOTE_WRITE)
            .allocate((GROUP as usize + 1) * segments * MESSAGE)?;
        let srq = Srq::builder(&ia, &pz).depth(spec.depth).segments(spec.segments).build()?;
        let ep = Ep::builder(&ia, &pz).request_depth(2 * GROUP).recv_depth(GROUP);
        let server = ep.clone().recv_evd(&received).request_evd(&unused).connect_evd(&connections[0]);
        let server = server.srq(&srq).build()?;
        let mut client = ep.recv_evd(&unused).request_evd(&sent).connect_evd(&connections[1]);
        let shared = spec.case == CaseName::EpSendShared;
        if shared || spec.case == CaseName::EpSendInline {
            client = client.max_inline(MESSAGE as u32);
        }
        let others = (0..SHARED).filter(|_| shared).map(|_| client.clone().build());
        let others = others.collect::<Result<Vec<_>, _>>()?;

        let psp = Psp::builder(&ia, &requests).build()?;
        let client = client.connect_with(psp.address(), ConnectOptions::new().timeout(PATIENCE))?;
        let request = until("a connection request", || requests.dequeue().expect("a live EVD"));
        let Event::ConnectionRequest(arrival) = request else {
            anyhow::bail!("{request:?} instead of a connection request");
        };
        arrival.cr.accept(&server, &[])?;
        for evd in &connections {
            until("the connection", || evd.dequeue().expect("a live EVD"));
        }

        let triplet = |n: usize, k: usize| lmr.triplet((n * segments + k) * MESSAGE, MESSAGE);
        let buffers = (0..GROUP as usize).map(|n| (0..segments).map(|k| triplet(n, k)).collect()).collect();
        let target = RmrTriplet {
            virtual_address: lmr.address(),
            segment_length: MESSAGE as u32,
            rmr_context: lmr.rmr_context(),
        };
        let mut this = Self {
            spec: *spec,
            client,
            server,
            received,
            sent,
            unused,
            pool: SendPool::new(&ia, &pz, GROUP, MESSAGE)?,
            target,
            buffers,
            source: triplet(GROUP as usize, 0),
            outstanding: 0,
            data_path: ia.provider_attributes().datapath,
            srq,
            _rest: (others, lmr, pz, ia),
        };
        if spec.case == CaseName::PostFree {
            while this.srq.post_recv(&this.buffers[0], 0).is_ok() {}
        }
        if spec.case.of_provider() {
            (0..GROUP).for_each(|call| this.post(call));
        }
        Ok(this)
    }

    /// Reaps what the last sample of a case that sends has caused, and posts the buffers again.
    fn finish_sends(&mut self) {
        for _ in 0..std::mem::take(&mut self.outstanding) {
            let event = until("the completion of a request", || self.sent.dequeue().expect("a live EVD"));
            let Event::Done(dto) = event else { panic!("{event:?} instead of a completion") };
            self.pool.completed(&dto);
            if dto.op == DtoOp::Send {
                until("a message", || self.received.dequeue().expect("a live EVD"));
                self.srq.post_recv(&self.buffers[0], 0).expect("a receive");
            }
        }
    }

    /// Messages take the buffers that the last sample has posted to the client.
    fn use_receives(&mut self) {
        for _ in 0..std::mem::take(&mut self.outstanding) {
            self.server.send(&[self.source]).post().expect("a send");
            for _ in 0..2 {
                until("the completions of a message", || self.unused.dequeue().expect("a live EVD"));
            }
        }
    }

    #[inline(always)]
    fn write_and_send(&mut self) {
        let (source, none) = (black_box(self.source), CompletionFlags::empty());
        let written = self.client.write(&[source]).to(self.target).flags(none).post();
        let sent = self.client.send(&[source]).flags(none).post();
        assert!(written.is_ok() && sent.is_ok(), "a request was refused");
    }

    #[inline(always)]
    fn chain(&mut self) {
        let (source, none) = (black_box(self.source), CompletionFlags::empty());
        let posted = self.client.chain(&[
            Request::write(&[source]).to(self.target).flags(none).into(),
            Request::send(&[source]).flags(none).into(),
        ]);
        assert!(posted.is_ok(), "a chain was refused");
    }

    #[inline(always)]
    fn send_from_pool(&mut self) {
        let buf = self.pool.take().expect("a free buffer");
        let sent = self.pool.send(buf).len(32).post(&mut self.client);
        assert!(sent.is_ok(), "a send was refused");
    }

    /// Messages take buffers out of the SRQ. The completions of the receives wait; those of the
    /// sends are reaped.
    fn deliver(&mut self) {
        for _ in 0..GROUP {
            self.client.send(&[self.source]).post().expect("a send");
        }
        for _ in 0..GROUP {
            until("the completion of a send", || self.sent.dequeue().expect("a live EVD"));
        }
        if device::named().is_some() {
            // A message may be acknowledged before its completion is visible, and a check would
            // consume the completion.
            std::thread::sleep(SETTLE);
        }
    }

    #[inline(always)]
    fn reap(&mut self) {
        match self.received.dequeue() {
            Ok(Some(Event::Received(message))) => black_box(message.cookie),
            other => panic!("{other:?} instead of a receive"),
        };
    }

    /// Reaps a batch of completions.
    #[inline(always)]
    fn drain(&mut self) {
        let mut messages = 0;
        for event in self.received.drain(self.spec.batch as usize).expect("a live EVD") {
            match event {
                Event::Received(message) => black_box(message.cookie),
                other => panic!("{other:?} instead of a receive"),
            };
            messages += 1;
        }
        assert_eq!(messages, self.spec.batch);
    }

    #[inline(always)]
    fn post(&mut self, call: u32) {
        let posted = self.srq.post_recv(black_box(&self.buffers[call as usize]), u64::from(call));
        assert!(posted.is_ok(), "the SRQ is full");
    }
}

impl Case for Provider {
    fn operations(&self) -> u32 {
        GROUP
    }

    fn prepare(&mut self) {
        match self.spec.case {
            CaseName::Post if self.outstanding > 0 => {
                self.deliver();
                (0..GROUP).for_each(|_| self.reap());
                self.outstanding = 0;
            }
            CaseName::Poll => {
                (0..GROUP).for_each(|call| self.post(call));
                self.deliver();
            }
            CaseName::PostFree => self.deliver(),
            CaseName::EpRecv => self.use_receives(),
            case if case.of_provider() => self.finish_sends(),
            _ => {}
        }
    }

    fn run(&mut self) {
        match self.spec.case {
            CaseName::Post => {
                (0..GROUP).for_each(|call| self.post(call));
                self.outstanding = GROUP;
            }
            CaseName::PostFree => (0..GROUP).for_each(|call| {
                self.reap();
                self.post(call);
            }),
            CaseName::Poll if self.spec.batch > 1 => {
                (0..GROUP / self.spec.batch).for_each(|_| self.drain());
            }
            CaseName::Poll => (0..GROUP).for_each(|_| self.reap()),
            CaseName::EpSend => {
                for _ in 0..GROUP {
                    let sent = self.client.send(&[black_box(self.source)]).post();
                    assert!(sent.is_ok(), "a send was refused");
                }
                self.outstanding = GROUP;
            }
            CaseName::EpSendInline | CaseName::EpSendShared => {
                for _ in 0..GROUP {
                    let sent = self.client.send_inline(black_box(&[7; MESSAGE])).post();
                    assert!(sent.is_ok(), "a send was refused");
                }
                self.outstanding = GROUP;
            }
            CaseName::EpPair => {
                (0..GROUP).for_each(|_| self.write_and_send());
                self.outstanding = 2 * GROUP;
            }
            CaseName::EpChain => {
                (0..GROUP).for_each(|_| self.chain());
                self.outstanding = 2 * GROUP;
            }
            CaseName::PoolSend => {
                (0..GROUP).for_each(|_| self.send_from_pool());
                self.outstanding = GROUP;
            }
            CaseName::EpRecv => {
                for call in 0..GROUP {
                    let buffer = black_box(&self.buffers[call as usize]);
                    let posted = self.client.post_recv(buffer, 0, CompletionFlags::empty());
                    assert!(posted.is_ok(), "a receive was refused");
                }
                self.outstanding = GROUP;
            }
            _ => (0..GROUP).for_each(|_| {
                black_box(self.received.dequeue().is_ok_and(|event| event.is_none()));
            }),
        }
    }

    fn data_path(&self) -> Option<&'static str> {
        Some(self.data_path)
    }
}
