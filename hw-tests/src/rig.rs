//! Two IAs with everything that a connection needs, and functions for the common steps of tests.

use crate::devices;
use doorbell::inside::EpEvds;
use doorbell::{
    AsyncEvent, CloseFlags, CompletionFlags, ConnectOptions, ConnectionEventKind, CrArrival, DatagramEvent,
    Direction, DtoCompletion, DtoStatus, Ep, EpAttr, EpState, Evd, EvdFlags, Event, Ia, IaBuilder, Lmr,
    LmrTriplet, MemPriv, PostError, Psp, Pz, RecvBuf, RecvPool, RmrBindCompletion, RmrTriplet, Rsp, Srq,
    WaitError, Waited,
};
use rxe_fallback::cm::Resolved;
use rxe_fallback::{
    Access, CmEventKind, ConnParam, Context, Cq, Mr, Pd as VerbsPd, Qp, QpInit, QpKind, SendFlags, SendOp,
};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Bytes of a buffer in a pool.
pub const SIZE: usize = 256;

/// No step of a test takes longer than this, on the slowest device and a loaded machine. Tests do not
/// wait for its end.
pub const LONG: Duration = Duration::from_secs(60);

/// The timeout of a connection request that arrives and is not answered. It arrives in this time
/// also on a loaded machine.
pub const BRIEF: Duration = Duration::from_secs(5);

/// How long a test waits for an event that must not come.
pub const SHORT: Duration = Duration::from_millis(150);

/// One end: an IA, a PZ, EVDs for each stream, and memory.
#[derive(Debug)]
pub struct Side {
    /// Registered memory for sends, 2 MiB, all privileges.
    pub lmr: Lmr,
    /// Receive completions.
    pub recv: Evd,
    /// Request completions.
    pub request: Evd,
    /// Connection events.
    pub connect: Evd,
    /// Connection requests.
    pub cr: Evd,
    /// Protection zone of everything here.
    pub pz: Pz,
    /// The IA; dropped last.
    pub ia: Ia,
}

/// A server and a client.
#[derive(Debug)]
pub struct Rig {
    /// The side with the SRQ.
    pub server: Side,
    /// The side that sends.
    pub client: Side,
}

/// A queue pair by verbs on this device, with room for four requests and one receive, and memory of 4096
/// bytes.
pub fn verbs_peer(device: &str) -> (Qp, Mr) {
    let context = Context::open(device).unwrap();
    let pd = VerbsPd::alloc(&context).unwrap();
    let cq = Cq::create(&context, 16, None, 0, 0).unwrap();
    let init = QpInit {
        kind: QpKind::Rc,
        send_cq: &cq,
        recv_cq: &cq,
        srq: None,
        max_send_wr: 4,
        max_send_sge: 1,
        max_recv_wr: 1,
        max_recv_sge: 1,
        max_inline: 0,
        signal_all: true,
        token: 0,
    };
    let qp = Qp::create(&pd, &init).unwrap();
    let memory = Mr::register_owned(&pd, 4096, Access::LOCAL_WRITE, false).unwrap();
    (qp, memory)
}

/// A peer by verbs. It answers nothing that its device does not answer, and never ends its
/// connection, not even after a failure.
#[derive(Debug)]
pub struct Silent {
    qp: Qp,
    memory: Mr,
    id: Resolved,
}

impl Silent {
    /// Waits for the answer to its request, which it does not confirm.
    #[track_caller]
    pub fn answered(&self) {
        let answer = self.id.id().channel().next_event_timeout(LONG).unwrap().expect("an answer");
        assert_eq!(answer.kind, CmEventKind::ConnectResponse);
        self.id.id().qp_to_rts(&self.qp, None, None).unwrap();
    }

    /// Posts a message of up to 4096 bytes.
    pub fn send(&self, len: usize) {
        self.post(SendOp::Send, len);
    }

    /// Posts a write of 8 bytes into memory that the peer has not given.
    pub fn write_where_it_may_not(&self) {
        self.post(SendOp::Write { remote_addr: 4096, rkey: 1 }, 8);
    }

    /// Posts the only receive.
    pub fn receive(&self) {
        self.qp.post_recv(0, &[self.memory.sge(0, 64).unwrap()]).unwrap();
    }

    fn post(&self, op: SendOp<'_>, len: usize) {
        let from = self.memory.sge(0, len).unwrap();
        self.qp.post_send_few(0, op, &[from], SendFlags::SIGNALLED).unwrap();
    }
}

/// Two connected EPs.
#[derive(Debug)]
pub struct Pair {
    /// Accepted.
    pub server: Ep,
    /// Connected.
    pub client: Ep,
}

/// All privileges.
pub fn all_privileges() -> MemPriv {
    MemPriv::LOCAL_READ | MemPriv::LOCAL_WRITE | MemPriv::REMOTE_READ | MemPriv::REMOTE_WRITE
}

/// The error of a segment, given its place among the segments of a post, and the direction.
type ErrorOf = fn(u32, Direction) -> PostError;

/// LMRs of 256 bytes that posts of a side can use, and segments that every post refuses.
pub struct SeveralLmrs {
    /// Three with all privileges.
    pub lmrs: Vec<Lmr>,
    /// Only the device's reads can use it.
    pub read_only: Lmr,
    refused: Vec<(LmrTriplet, ErrorOf)>,
    /// Of another PZ, which is freed after it.
    _foreign: (Lmr, Pz),
}

impl SeveralLmrs {
    /// Creates them with the PZ of this side.
    pub fn new(side: &Side) -> Self {
        let made =
            |pz: &Pz, privileges| Lmr::builder(&side.ia, pz).privileges(privileges).allocate(256).unwrap();
        let lmrs: Vec<_> = (0..3).map(|_| made(&side.pz, all_privileges())).collect();
        let pz = Pz::new(&side.ia).unwrap();
        let foreign = made(&pz, all_privileges());
        let freed = made(&side.pz, all_privileges());
        let dead = freed.triplet(0, 8);
        freed.close().unwrap();
        let other_bytes =
            LmrTriplet { lmr_context: lmrs[1].triplet(0, 8).lmr_context, ..foreign.triplet(0, 8) };
        let refused: Vec<(_, ErrorOf)> = vec![
            (foreign.triplet(0, 8), PostError::ProtectionZone),
            (dead, PostError::NoSuchLmr),
            (other_bytes, |at, _| PostError::OutOfBounds(at)),
            (lmrs[1].triplet(249, 8), |at, _| PostError::OutOfBounds(at)),
            (lmrs[2].triplet(249, 8), |at, _| PostError::OutOfBounds(at)),
        ];
        let read_only = made(&side.pz, MemPriv::LOCAL_READ);
        Self { lmrs, read_only, refused, _foreign: (foreign, pz) }
    }

    /// Calls `post` with these segments, at each place in turn with each segment that is refused, and
    /// compares the error.
    #[track_caller]
    pub fn are_refused_among(
        &self,
        segments: &[LmrTriplet],
        direction: Direction,
        mut post: impl FnMut(&[LmrTriplet]) -> Result<(), PostError>,
    ) {
        let unwritable: (_, ErrorOf) = (self.read_only.triplet(0, 8), PostError::Privilege);
        let unwritable = (direction == Direction::Write).then_some(unwritable);
        for at in 0..segments.len() {
            for (bad, why) in self.refused.iter().copied().chain(unwritable) {
                let mut segments = segments.to_vec();
                segments[at] = bad;
                assert_eq!(post(&segments), Err(why(at as u32, direction)), "{at} of {segments:?}");
            }
        }
    }
}

/// The bytes of these parts of LMRs, one part after the other; each is an offset and a length.
pub fn content_of(parts: &[(&Lmr, usize, usize)]) -> Vec<u8> {
    let bytes = |(lmr, at, len): &(&Lmr, usize, usize)| {
        let mut bytes = vec![0; *len];
        lmr.read(*at, &mut bytes).unwrap();
        bytes
    };
    parts.iter().flat_map(bytes).collect()
}

impl Side {
    /// Opens the device of this name.
    pub fn open(name: &str) -> Self {
        Self::open_with(name, |ia| ia)
    }

    /// The same with options.
    pub fn open_with(name: &str, options: impl Fn(IaBuilder<'_>) -> IaBuilder<'_>) -> Self {
        let ia = options(Ia::builder(name)).open().unwrap_or_else(|e| panic!("{name}: {e}"));
        let pz = Pz::new(&ia).unwrap();
        let evd = |flags| Evd::new(&ia, 256, flags).unwrap();
        Self {
            lmr: Lmr::builder(&ia, &pz).privileges(all_privileges()).allocate(2 << 20).unwrap(),
            recv: evd(EvdFlags::DTO),
            request: evd(EvdFlags::DTO),
            connect: evd(EvdFlags::CONNECTION),
            cr: evd(EvdFlags::CR),
            pz,
            ia,
        }
    }

    /// The three EVDs of an EP on this side.
    pub fn evds(&self) -> EpEvds<'_> {
        EpEvds { recv: Some(&self.recv), request: Some(&self.request), connect: Some(&self.connect) }
    }

    /// An SRQ of this depth, one segment a buffer.
    pub fn srq(&self, depth: u32) -> Srq {
        Srq::builder(&self.ia, &self.pz).depth(depth).build().unwrap()
    }

    /// A plain EP.
    pub fn ep(&self, attr: &EpAttr) -> Ep {
        Ep::builder(&self.ia, &self.pz).evds(self.evds()).attributes(attr).build().unwrap()
    }

    /// An EP on an SRQ.
    pub fn srq_ep(&self, srq: &Srq, attr: &EpAttr) -> Ep {
        Ep::builder(&self.ia, &self.pz).evds(self.evds()).srq(srq).attributes(attr).build().unwrap()
    }

    /// Posts `n` buffers of `len` bytes to the SRQ, one behind the other in this side's memory from
    /// `offset` on, with cookies from `cookie` up.
    #[track_caller]
    pub fn post(&self, srq: &mut Srq, n: usize, len: usize, offset: usize, cookie: u64) {
        for i in 0..n {
            srq.post_recv(&[self.lmr.triplet(offset + i * len, len)], cookie + i as u64).unwrap();
        }
    }
}

impl Rig {
    /// Opens both devices of the environment.
    pub fn new() -> Self {
        Self::with(|ia| ia)
    }

    /// The same with options.
    pub fn with(options: impl Fn(IaBuilder<'_>) -> IaBuilder<'_>) -> Self {
        let (server, client) = devices().expect("DOORBELL_TEST_DEVICES names the devices");
        Self { server: Side::open_with(&server, &options), client: Side::open_with(&client, &options) }
    }

    /// Senders retry without end on a peer without posted receives, every few milliseconds.
    pub fn patient() -> Self {
        Self::with(|ia| ia.rnr_retry(7).rnr_timer(16))
    }

    /// Connects a server EP on the SRQ and a plain client EP, both with default attributes.
    #[track_caller]
    pub fn connect_srq(&self, srq: &Srq) -> Pair {
        let attr = EpAttr::default();
        self.connect(self.server.srq_ep(srq, &attr), self.client.ep(&attr))
    }

    /// Connects two plain EPs with these attributes on the server's side.
    #[track_caller]
    pub fn connect_plain(&self, attr: &EpAttr) -> Pair {
        self.connect(self.server.ep(attr), self.client.ep(&EpAttr::default()))
    }

    /// Connects these two.
    #[track_caller]
    pub fn connect(&self, server: Ep, client: Ep) -> Pair {
        let psp = Psp::builder(&self.server.ia, &self.server.cr).build().unwrap();
        let port = psp.port();
        client
            .connect_with((self.server.ia.address(), port).into(), ConnectOptions::new().timeout(LONG))
            .unwrap();
        let arrival = match self.server.cr.wait_for(LONG).unwrap() {
            Some(event) => request_of(event),
            // The client's event says why.
            None => panic!("no connection request; the client has {:?}", self.client.connect.dequeue()),
        };
        assert_eq!(arrival.sp, psp.id());
        arrival.cr.accept(&server, &[]).unwrap();
        expect_connection(&self.client.connect, &client, ConnectionEventKind::Established);
        expect_connection(&self.server.connect, &server, ConnectionEventKind::Established);
        Pair { server, client }
    }

    /// Sends from the client's memory at `offset` and waits for the send's own completion.
    #[track_caller]
    pub fn send(&self, pair: &mut Pair, offset: usize, len: usize) -> DtoCompletion {
        self.send_with(pair, offset, len, CompletionFlags::empty())
    }

    /// The same with flags.
    #[track_caller]
    pub fn send_with(
        &self,
        pair: &mut Pair,
        offset: usize,
        len: usize,
        flags: CompletionFlags,
    ) -> DtoCompletion {
        pair.client.send(&[self.client.lmr.triplet(offset, len)]).flags(flags).post().unwrap();
        dto(&self.client.request)
    }

    /// Sends and expects success on both sides; gives the receive completion.
    #[track_caller]
    pub fn deliver(&self, pair: &mut Pair, len: usize) -> DtoCompletion {
        assert_eq!(self.send(pair, 0, len).status, DtoStatus::Success);
        dto(&self.server.recv)
    }

    /// Disconnects abruptly from the client and waits until both sides know.
    #[track_caller]
    pub fn disconnect(&self, pair: &Pair) {
        pair.client.disconnect(CloseFlags::Abrupt).unwrap();
        expect_connection(&self.client.connect, &pair.client, ConnectionEventKind::Disconnected);
        expect_connection(&self.server.connect, &pair.server, ConnectionEventKind::Disconnected);
    }
}

/// Steps of the tests of pools and of modified EPs.
impl Rig {
    /// A connected pair, the server on an SRQ of this depth with all its buffers posted by a pool
    /// of as many.
    pub fn pooled(&self, depth: u32) -> (Srq, RecvPool, Pair) {
        let mut srq = self.server.srq(depth);
        let mut pool = RecvPool::new(&self.server.ia, &self.server.pz, depth, SIZE).unwrap();
        assert_eq!(pool.refill(&mut srq).unwrap(), depth as usize);
        let pair = self.connect_srq(&srq);
        (srq, pool, pair)
    }

    /// Sends these bytes from the client.
    #[track_caller]
    pub fn send_bytes(&self, pair: &mut Pair, bytes: &[u8]) {
        self.client.lmr.write(0, bytes).unwrap();
        assert_eq!(self.send(pair, 0, bytes.len()).status, DtoStatus::Success);
    }

    /// The client sends a message into a buffer that the server posts, and reads the server's
    /// memory.
    #[track_caller]
    pub fn send_and_read(&self, pair: &mut Pair) {
        let there = &self.server.lmr;
        pair.server.post_recv(&[there.triplet(0, 64)], 3, CompletionFlags::empty()).unwrap();
        assert_eq!(self.deliver(pair, 8).cookie, 3);
        let from = RmrTriplet {
            virtual_address: there.address(),
            segment_length: 8,
            rmr_context: there.rmr_context(),
        };
        let into = [self.client.lmr.triplet(64, 8)];
        pair.client.read(&into).from(from).post().unwrap();
        assert_eq!(dto(&self.client.request).status, DtoStatus::Success);
    }
}

/// The next message, which is in a buffer of this pool.
#[track_caller]
pub fn message(side: &Side, pool: &mut RecvPool) -> RecvBuf {
    pool.take(&dto(&side.recv)).expect("a message in a buffer of this pool")
}

impl Default for Rig {
    fn default() -> Self {
        Self::new()
    }
}

/// The next event, within [`LONG`].
#[track_caller]
pub fn next(evd: &Evd) -> Event {
    match evd.wait_threshold(1, Some(LONG)) {
        Ok(waited) => waited.event,
        // A panic in a closure would name this line instead of the test's.
        Err(e) => panic!("no event: {e}; {} are queued", e.more),
    }
}

/// The next event, which is a completion.
#[track_caller]
pub fn dto(evd: &Evd) -> DtoCompletion {
    let event = next(evd);
    *event.completion().unwrap_or_else(|| panic!("not a completion: {event:?}"))
}

/// The next event, which is the completion of a bind.
#[track_caller]
pub fn bound(evd: &Evd) -> RmrBindCompletion {
    match next(evd) {
        Event::Bound(bind) => bind,
        other => panic!("not a bind: {other:?}"),
    }
}

/// The next event, which is a connection event.
#[track_caller]
pub fn connection(evd: &Evd) -> doorbell::ConnectionEvent {
    let event = next(evd);
    event.connection().unwrap_or_else(|| panic!("not a connection event: {event:?}")).clone()
}

/// The next event, which is this connection event of this EP.
#[track_caller]
pub fn expect_connection(evd: &Evd, ep: &Ep, kind: ConnectionEventKind) {
    let event = connection(evd);
    assert_eq!((event.kind, event.ep), (kind, ep.id()));
}

/// The next event, which has to be about datagrams.
#[track_caller]
pub fn datagram(evd: &Evd) -> DatagramEvent {
    match next(evd) {
        Event::Datagram(event) => *event,
        other => panic!("nothing about datagrams: {other:?}"),
    }
}

/// The next event, which is a connection request.
#[track_caller]
pub fn connection_request(evd: &Evd) -> CrArrival {
    request_of(next(evd))
}

#[track_caller]
fn request_of(event: Event) -> CrArrival {
    match event {
        Event::ConnectionRequest(arrival) => arrival,
        other => panic!("not a connection request: {other:?}"),
    }
}

/// The next asynchronous event of the IA.
#[track_caller]
pub fn asynchronous(ia: &Ia) -> AsyncEvent {
    match next(ia.async_evd()) {
        Event::Async(event) => event,
        other => panic!("not an asynchronous event: {other:?}"),
    }
}

/// Checks that no event comes within [`SHORT`].
#[track_caller]
pub fn expect_nothing(evd: &Evd) {
    let event = evd.wait_for(SHORT).unwrap();
    assert!(event.is_none(), "expected no event: {event:?}");
}

/// Available and outstanding.
#[track_caller]
pub fn counts(srq: &Srq) -> (u32, u32) {
    let param = srq.query().unwrap();
    (param.available, param.outstanding)
}

/// Repeats the check until it is true, for at most [`LONG`].
#[track_caller]
pub fn until(what: &str, mut so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !so() {
        assert!(start.elapsed() < LONG, "never: {what}");
        std::thread::yield_now();
    }
}

/// Starts a thread that waits on an empty EVD, and returns once that thread sleeps. Later events
/// therefore have to wake it.
#[track_caller]
pub fn waiter(
    evd: &Evd,
    timeout: Option<Duration>,
    threshold: usize,
) -> JoinHandle<Result<Waited, WaitError>> {
    assert_eq!(evd.query().unwrap().queued, 0);
    let (tell, told) = std::sync::mpsc::channel();
    let thread = std::thread::spawn({
        let evd = evd.clone();
        move || {
            tell.send(nix::unistd::gettid()).unwrap();
            evd.wait_threshold(threshold, timeout)
        }
    });
    let call = format!("/proc/self/task/{}/syscall", told.recv().unwrap());
    let sleeping = libc::SYS_ppoll.to_string();
    until("the thread sleeps", || {
        std::fs::read_to_string(&call).is_ok_and(|now| now.split(' ').next() == Some(sleeping.as_str()))
            || thread.is_finished()
    });
    assert!(is_waiting(evd));
    thread
}

/// Checks with a dequeue, which takes nothing from an EVD that is empty or has a waiter.
#[track_caller]
pub fn is_waiting(evd: &Evd) -> bool {
    match evd.dequeue() {
        Err(error) => error.code() == crate::dat::INVALID_STATE_EVD_WAITER,
        Ok(None) => false,
        Ok(Some(event)) => panic!("the EVD was to be empty: {event:?}"),
    }
}

/// An error of a call.
pub trait Refusal: std::fmt::Debug {
    /// The complete `DAT_RETURN`.
    fn number(&self) -> u32;
}

impl Refusal for doorbell::Error {
    fn number(&self) -> u32 {
        self.code()
    }
}

impl Refusal for doorbell::PostError {
    fn number(&self) -> u32 {
        self.code()
    }
}

impl Refusal for doorbell::WaitError {
    fn number(&self) -> u32 {
        self.error.code()
    }
}

impl<T: std::fmt::Debug> Refusal for doorbell::Refused<T> {
    fn number(&self) -> u32 {
        self.error.code()
    }
}

/// The `DAT_RETURN` of a call that has to be refused.
#[track_caller]
pub fn code<T: std::fmt::Debug>(outcome: Result<T, impl Refusal>) -> u32 {
    match outcome {
        Err(refusal) => refusal.number(),
        Ok(done) => panic!("not refused: {done:?}"),
    }
}

/// The server's side alone.
pub fn one_side() -> Side {
    let (server, _) = devices().expect("DOORBELL_TEST_DEVICES names the devices");
    Side::open(&server)
}

impl Side {
    /// An EVD for 256 events of these streams.
    pub fn evd(&self, flags: EvdFlags) -> Evd {
        Evd::new(&self.ia, 256, flags).unwrap()
    }

    /// Reserves the EP for one request, at any free port.
    pub fn reserve(&self, ep: &Ep) -> (Rsp, u16) {
        let rsp = Rsp::new(&self.ia, 0, ep, &self.cr).unwrap();
        let port = rsp.port();
        (rsp, port)
    }
}

impl Rig {
    /// The client connects; gives its unanswered request as it arrived at the server.
    #[track_caller]
    pub fn ask(&self, client: &Ep) -> (Psp, CrArrival) {
        let psp = Psp::builder(&self.server.ia, &self.server.cr).build().unwrap();
        client.connect_with(psp.address(), ConnectOptions::new().timeout(LONG)).unwrap();
        let arrival = connection_request(&self.server.cr);
        (psp, arrival)
    }

    /// A request of a client that never confirms an accept: the EP that accepts it stays in
    /// COMPLETION_PENDING while the returned client lives.
    #[track_caller]
    pub fn ask_and_never_confirm(&self) -> (Resolved, CrArrival) {
        // The kernel refuses a request with the QP number of a connection of this peer that has just
        // ended (stale connection), so each request of each process has another.
        static REQUESTS: AtomicU32 = AtomicU32::new(0);
        let n = (std::process::id() << 4).wrapping_add(REQUESTS.fetch_add(1, Ordering::Relaxed));
        let qp_num = 0x80_0000 | n & 0x7f_ffff;
        let psp = Psp::builder(&self.server.ia, &self.server.cr).build().unwrap();
        let from = SocketAddr::new(self.client.ia.address(), 0);
        let to = psp.address();
        let client = Resolved::resolve_timeout(Some(from), to, LONG).unwrap();
        client.id().connect(&ConnParam { qp_num, ..ConnParam::default() }).unwrap();
        (client, connection_request(&self.server.cr))
    }

    /// Connects the server's EP to a peer that only does what it is told.
    #[track_caller]
    pub fn connect_silent(&self, server: &Ep) -> Silent {
        let peer = self.answer_silent(server);
        peer.id.id().establish().unwrap();
        expect_connection(&self.server.connect, server, ConnectionEventKind::Established);
        peer
    }

    /// The same, but the peer does not confirm the connection: the server's EP is in
    /// COMPLETION_PENDING.
    #[track_caller]
    pub fn answer_silent(&self, server: &Ep) -> Silent {
        let psp = Psp::builder(&self.server.ia, &self.server.cr).build().unwrap();
        let peer = self.ask_silent(psp.address());
        connection_request(&self.server.cr).cr.accept(server, &[]).unwrap();
        peer.answered();
        peer
    }

    /// A peer that only does what it is told has asked the service at this address.
    #[track_caller]
    pub fn ask_silent(&self, to: SocketAddr) -> Silent {
        let (_, device) = devices().expect("DOORBELL_TEST_DEVICES names the devices");
        let (qp, memory) = verbs_peer(&device);
        let from = SocketAddr::new(self.client.ia.address(), 0);
        let id = Resolved::resolve_timeout(Some(from), to, LONG).unwrap();
        id.id().connect(&ConnParam::for_qp(&qp)).unwrap();
        Silent { qp, memory, id }
    }

    /// Puts the server's EP into DISCONNECT_PENDING and keeps it there until the client posts a
    /// receive: it waits for its own Send, which finds none. Needs a [`Rig::patient`].
    pub fn begin_graceful(&self, pair: &mut Pair) {
        pair.server.send(&[self.server.lmr.triplet(0, 8)]).cookie(77).post().unwrap();
        pair.server.disconnect(CloseFlags::Graceful).unwrap();
        assert_eq!(pair.server.state(), EpState::DisconnectPending);
    }
}
