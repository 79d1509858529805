//! The provider's Rust API: one connection per case, and real messages between samples.

use std::{
    hint::black_box,
    time::{Duration, Instant},
};

use doorbell::{
    CompletionFlags, Ep, EpAttr, EpEvds, Evd, EvdFlags, EventData, Ia, Lmr, LmrTriplet, MemPriv, Psp, Pz,
    Qos, Srq, SrqAttr,
};

use crate::{
    case::{Case, GROUP},
    device,
    plan::{CaseName, Spec},
};

const PATIENCE: Duration = Duration::from_secs(20);
const MESSAGE: usize = 64;
const SETTLE: Duration = Duration::from_micros(200);

/// A case of the provider.
pub struct Provider {
    spec: Spec,
    srq: Srq,
    client: Ep,
    _server: Ep,
    received: Evd,
    sent: Evd,
    /// One buffer per call.
    buffers: Vec<Vec<LmrTriplet>>,
    source: LmrTriplet,
    outstanding: u32,
    data_path: &'static str,
    _rest: (Lmr, Pz, Ia),
}

/// Lets the device work until `there` returns a value.
fn until<T>(what: &str, mut there: impl FnMut() -> Option<T>) -> T {
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
        let pz = Pz::create(&ia)?;
        let evd = |n: u32, flags| Evd::create(&ia, n as i32, None, flags);
        let (received, sent) = (evd(spec.depth + GROUP, EvdFlags::DTO)?, evd(4 * GROUP, EvdFlags::DTO)?);
        let (unused, requests) = (evd(4 * GROUP, EvdFlags::DTO)?, evd(8, EvdFlags::CR)?);
        let connections = [evd(8, EvdFlags::CONNECTION)?, evd(8, EvdFlags::CONNECTION)?];
        let segments = spec.segments as usize;
        let lmr = Lmr::create(
            &ia,
            &pz,
            (GROUP as usize + 1) * segments * MESSAGE,
            MemPriv::LOCAL_READ | MemPriv::LOCAL_WRITE,
        )?;
        let attr = SrqAttr { max_recv_iov: spec.segments as i32, ..SrqAttr::depth(spec.depth as i32) };
        let srq = Srq::create(&ia, &pz, attr)?;
        let attr = EpAttr { max_request_dtos: 2 * GROUP as i32, ..EpAttr::default() };
        let evds = EpEvds { recv: Some(&received), request: Some(&unused), connect: Some(&connections[0]) };
        let server = Ep::create_with_srq(&ia, &pz, evds, &srq, &attr)?;
        let evds = EpEvds { recv: Some(&unused), request: Some(&sent), connect: Some(&connections[1]) };
        let client = Ep::create(&ia, &pz, evds, Some(&attr))?;

        let (_psp, qual) = Psp::create_any(&ia, &requests)?;
        client.connect(ia.address(), qual, Some(PATIENCE), &[], Qos::BestEffort)?;
        let request = until("a connection request", || requests.dequeue().ok());
        let EventData::ConnectionRequest(arrival) = request.data else {
            anyhow::bail!("{request:?} instead of a connection request");
        };
        arrival.cr.accept(&server, &[])?;
        for evd in &connections {
            until("the connection", || evd.dequeue().ok());
        }

        let triplet = |n: usize, k: usize| lmr.triplet((n * segments + k) * MESSAGE, MESSAGE);
        let buffers = (0..GROUP as usize).map(|n| (0..segments).map(|k| triplet(n, k)).collect()).collect();
        let mut this = Self {
            spec: *spec,
            client,
            _server: server,
            received,
            sent,
            buffers,
            source: triplet(GROUP as usize, 0),
            outstanding: 0,
            data_path: ia.provider_attributes().datapath,
            srq,
            _rest: (lmr, pz, ia),
        };
        if spec.case == CaseName::PostFree {
            while this.srq.post_recv(&this.buffers[0], 0).is_ok() {}
        }
        Ok(this)
    }

    /// Messages take buffers out of the SRQ. The completions of the receives wait; those of the
    /// sends are reaped.
    fn deliver(&mut self) {
        for _ in 0..GROUP {
            self.client.post_send(&[self.source], 0, CompletionFlags::empty()).expect("a send");
        }
        for _ in 0..GROUP {
            until("the completion of a send", || self.sent.dequeue().ok());
        }
        if device::named().is_some() {
            // A message may be acknowledged before its completion is visible, and a check would
            // consume the completion.
            std::thread::sleep(SETTLE);
        }
    }

    #[inline(always)]
    fn reap(&mut self) {
        let event = self.received.dequeue().expect("a receive");
        let EventData::Dto(dto) = event.data else { panic!("{event:?} instead of a receive") };
        assert!(dto.is_success());
        black_box(dto.cookie);
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
            CaseName::Poll => (0..GROUP).for_each(|_| self.reap()),
            _ => (0..GROUP).for_each(|_| {
                black_box(self.received.dequeue().is_err());
            }),
        }
    }

    fn data_path(&self) -> Option<&'static str> {
        Some(self.data_path)
    }
}
