//! Calls without enough memory. For each allocation of a call, the test makes that allocation fail,
//! once alone and once together with all later ones. The call must return INSUFFICIENT_RESOURCES,
//! leave nothing behind (descriptors, threads, device objects), and succeed when it is repeated.
#![expect(
    unsafe_code,
    reason = "an allocator that fails on demand, and the software device's function by its name"
)]

use doorbell::{
    AsyncKind, AsyncObject, CloseFlags, Cno, CompletionFlags, ConnectionEventKind, Count, Csp,
    DatagramEventKind, DtoStatus, Ep, EpAttr, EpChange, Error, Evd, EvdFlags, EventData, Ia, IaSettings, Lmr,
    PostError, Psp, Pz, Qos, Received, RecvPool, Refused, ReturnType, Rmr, RmrBind, Rsp, SendPool,
    ServiceType, Srq, SrqAttr, VaType,
};
use doorbell_hw_tests::rig::*;
use doorbell_hw_tests::{Rig, Side, devices, tests};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::fmt::Debug;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

fn main() {
    doorbell_hw_tests::run_with_threads(
        tests![
            opening_an_ia,
            creating_pzs,
            creating_lmrs,
            creating_and_resizing_evds,
            creating_cnos,
            creating_and_resizing_srqs,
            creating_eps,
            modifying_eps,
            posting_before_a_connection,
            connecting,
            accepting,
            service_points,
            rmrs,
            pools,
            datagrams,
            tables_that_are_full,
            a_software_event,
            an_event_that_nobody_can_queue_is_an_overflow,
        ],
        1,
    )
    .exit();
}

const NONE: CompletionFlags = CompletionFlags::empty();

/// Smaller allocations always succeed: see provider/src/memory.rs.
const LEAST: usize = 2048;

#[global_allocator]
static ALLOCATOR: Failing = Failing;

struct Failing;

/// Large allocations of all threads fail.
static EXHAUSTED: AtomicBool = AtomicBool::new(false);

/// Which large allocations of this thread fail.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Plan {
    Succeed,
    /// The one after this many.
    FailOnce(u32),
    /// All after this many.
    FailFrom(u32),
    Failed,
    Failing,
}

thread_local! {
    static PLAN: Cell<Plan> = const { Cell::new(Plan::Succeed) };
}

fn refuses(size: usize) -> bool {
    if size < LEAST {
        return false;
    }
    if EXHAUSTED.load(SeqCst) {
        return true;
    }
    let (fails, next) = match PLAN.get() {
        Plan::FailOnce(0) => (true, Plan::Failed),
        Plan::FailFrom(0) => (true, Plan::Failing),
        Plan::FailOnce(n) => (false, Plan::FailOnce(n - 1)),
        Plan::FailFrom(n) => (false, Plan::FailFrom(n - 1)),
        plan => (plan == Plan::Failing, plan),
    };
    PLAN.set(next);
    fails
}

// SAFETY: all memory comes from the system allocator; every allocator may return a null pointer.
unsafe impl GlobalAlloc for Failing {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if refuses(layout.size()) {
            return std::ptr::null_mut();
        }
        // SAFETY: passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: passed on.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if refuses(layout.size()) {
            return std::ptr::null_mut();
        }
        // SAFETY: passed on.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if refuses(size) {
            return std::ptr::null_mut();
        }
        // SAFETY: passed on.
        unsafe { System.realloc(at, layout, size) }
    }
}

/// Descriptors and threads of this process, and objects of the software device if it is loaded.
#[derive(Debug)]
struct Holdings {
    fds: usize,
    threads: usize,
    objects: Option<[i64; 6]>,
}

impl Holdings {
    fn now() -> Self {
        let entries = |path: &str| std::fs::read_dir(path).unwrap().count();
        Self { objects: device_objects(), fds: entries("/proc/self/fd"), threads: entries("/proc/self/task") }
    }
}

impl Holdings {
    /// Waits until there are no more than these. Threads that have ended may still be counted for a
    /// moment.
    fn is_within(&self, most: &Self) -> bool {
        let objects = |of: &Self| of.objects.unwrap_or_default();
        let within = objects(self).iter().zip(objects(most)).all(|(now, most)| *now <= most);
        within && self.fds <= most.fds && self.threads <= most.threads
    }
}

fn device_objects() -> Option<[i64; 6]> {
    // SAFETY: the name is a string with a NUL.
    let control = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"mlx5_emu_control".as_ptr()) };
    if control.is_null() {
        return None;
    }
    // SAFETY: hw-tests/mlx5-emu/src/orders.rs has it.
    let control: extern "C" fn(*const libc::c_char) -> i64 = unsafe { std::mem::transmute(control) };
    let kinds = [c"count pd", c"count mr", c"count cq", c"count qp", c"count srq", c"count ah"];
    Some(kinds.map(|kind| control(kind.as_ptr())))
}

/// The error of a call without memory.
trait Shortage: Debug {
    fn is_resources(&self) -> bool;
}

impl Shortage for Error {
    fn is_resources(&self) -> bool {
        self.return_type() == ReturnType::InsufficientResources
    }
}

impl<T: Debug> Shortage for Refused<T> {
    fn is_resources(&self) -> bool {
        self.error.is_resources()
    }
}

impl Shortage for PostError {
    fn is_resources(&self) -> bool {
        matches!(self, PostError::Full(_))
    }
}

/// Repeats the call in a new environment, each time with the next of its allocations failing, until
/// none fails. After each failure the same call must succeed.
fn with_each_failure<S, T, E: Shortage>(
    what: &str,
    surroundings: impl FnMut() -> S,
    call: impl FnMut(&mut S) -> Result<T, E>,
    works: impl FnMut(&mut S, T),
) {
    each_failure(what, Leaves::Nothing, surroundings, call, works);
}

/// What may remain.
#[derive(Clone, Copy, PartialEq)]
enum Leaves {
    Nothing,
    /// After a call that failed: objects that the IA creates once for itself.
    WithItsIa,
}

/// The same for calls that create lasting objects.
fn each_failure<S, T, E: Shortage>(
    what: &str,
    leaves: Leaves,
    mut surroundings: impl FnMut() -> S,
    mut call: impl FnMut(&mut S) -> Result<T, E>,
    mut works: impl FnMut(&mut S, T),
) {
    // One run without failures, so that libraries have allocated what they keep after their first
    // use.
    let mut around = surroundings();
    let made = call(&mut around).unwrap_or_else(|e| panic!("{what}: {e:?}"));
    works(&mut around, made);
    drop(around);
    for plan in [Plan::FailOnce, Plan::FailFrom] {
        let mut failures = 0;
        for n in 0.. {
            let outside = Holdings::now();
            let mut around = surroundings();
            let before = Holdings::now();
            PLAN.set(plan(n));
            let outcome = call(&mut around);
            let plan_left = PLAN.replace(Plan::Succeed);
            let failed = matches!(plan_left, Plan::Failed | Plan::Failing);
            match outcome {
                // Some calls make no large allocation.
                Ok(made) => works(&mut around, made),
                Err(error) => {
                    assert!(failed, "{what}: {error:?}");
                    assert!(error.is_resources(), "{what}, allocation {n}: {error:?}");
                    drop(error);
                    failures += 1;
                    if leaves != Leaves::WithItsIa {
                        until(what, || Holdings::now().is_within(&before));
                    }
                    let made =
                        call(&mut around).unwrap_or_else(|e| panic!("{what}, after allocation {n}: {e:?}"));
                    works(&mut around, made);
                }
            }
            drop(around);
            until("the call, and all around it, holds nothing any more", || {
                Holdings::now().is_within(&outside)
            });
            if !failed {
                break;
            }
        }
        assert!(failures > 0, "{what} allocates nothing");
    }
}

fn opening_an_ia() {
    let (name, _) = devices().unwrap();
    with_each_failure(
        "an IA",
        || (),
        |()| Ia::open(&name),
        |(), ia| {
            let pz = Pz::create(&ia).unwrap();
            pz.free().unwrap();
            ia.close(CloseFlags::Graceful).unwrap();
        },
    );
    with_each_failure(
        "an IA with settings",
        || (),
        |()| Ia::open_with(&name, 10_000, IaSettings::default()),
        |(), ia| ia.close(CloseFlags::Graceful).unwrap(),
    );
}

fn creating_pzs() {
    with_each_failure("a PZ", one_side, |side| Pz::create(&side.ia), |_, pz| pz.free().unwrap());
}

fn creating_lmrs() {
    with_each_failure(
        "an LMR",
        one_side,
        |side| Lmr::create(&side.ia, &side.pz, 8192, all_privileges()),
        |_, lmr| {
            lmr.write(100, b"here").unwrap();
            lmr.free().unwrap();
        },
    );
}

fn creating_and_resizing_evds() {
    for flags in [EvdFlags::DTO, EvdFlags::CR | EvdFlags::CONNECTION | EvdFlags::SOFTWARE, EvdFlags::all()] {
        with_each_failure(
            "an EVD",
            one_side,
            |side| Evd::create(&side.ia, 1000, None, flags),
            |_, evd| {
                if flags.contains(EvdFlags::SOFTWARE) {
                    evd.post_software_event(7).unwrap();
                    assert!(matches!(next(&evd).data, EventData::Software(7)));
                }
                evd.free().unwrap();
            },
        );
    }
    let surroundings = || {
        let side = one_side();
        let evd = Evd::create(&side.ia, 8, None, EvdFlags::DTO).unwrap();
        (evd, side)
    };
    with_each_failure(
        "a longer EVD",
        surroundings,
        |(evd, _)| {
            let before = evd.query().unwrap().qlen;
            evd.resize(2000).inspect_err(|_| assert_eq!(evd.query().unwrap().qlen, before))
        },
        |(evd, _), ()| assert!(evd.query().unwrap().qlen >= 2000),
    );
}

fn creating_cnos() {
    with_each_failure("a CNO", one_side, |side| Cno::create(&side.ia), |_, cno| cno.free().unwrap());
}

/// A message into an SRQ, of which the first buffer is at the start of the server's memory.
fn receives(rig: &Rig, srq: &mut Srq) {
    rig.server.post(srq, 1, 64, 0, 5);
    let mut pair = rig.connect_srq(srq);
    assert_eq!(rig.deliver(&mut pair, 64).status, DtoStatus::Success);
}

fn creating_and_resizing_srqs() {
    for depth in [1, 3000] {
        with_each_failure(
            "an SRQ",
            Rig::new,
            |rig| Srq::create(&rig.server.ia, &rig.server.pz, SrqAttr::depth(depth)),
            |rig, mut srq| {
                receives(rig, &mut srq);
                srq.free().unwrap();
            },
        );
    }
    let direct = one_side().ia.provider_attributes().datapath == "direct";
    if !direct {
        // A direct CQ has the device's largest depth from the beginning.
        let surroundings = || {
            let rig = Rig::new();
            let srq = rig.server.srq(16);
            (srq, rig)
        };
        with_each_failure(
            "a deeper SRQ",
            surroundings,
            |(srq, _)| srq.resize(5000).inspect_err(|_| assert_eq!(srq.query().unwrap().max_recv_dtos, 16)),
            |(srq, rig), ()| {
                assert_eq!(srq.query().unwrap().max_recv_dtos, 5000);
                receives(rig, srq);
            },
        );
    }
}

/// An EP with queues of this length.
fn long(n: Count) -> EpAttr {
    EpAttr { max_recv_dtos: n, max_request_dtos: n, ..EpAttr::default() }
}

fn creating_eps() {
    // With the first EP, the IA creates and keeps the EVD that discards unwanted completions.
    each_failure(
        "the first EP",
        Leaves::WithItsIa,
        one_side,
        |side| Ep::create(&side.ia, &side.pz, Default::default(), Some(&long(500))),
        |_, ep| ep.free().unwrap(),
    );
    let not_the_first = || {
        let rig = Rig::new();
        drop(rig.server.ep(&EpAttr::default()));
        rig
    };
    with_each_failure(
        "an EP",
        not_the_first,
        |rig| Ep::create(&rig.server.ia, &rig.server.pz, rig.server.evds(), Some(&long(500))),
        |rig, mut server| {
            server.post_recv(&[rig.server.lmr.triplet(0, 64)], 1, NONE).unwrap();
            let mut pair = rig.connect(server, rig.client.ep(&EpAttr::default()));
            assert_eq!(rig.deliver(&mut pair, 64).status, DtoStatus::Success);
        },
    );
    let surroundings = || {
        let rig = not_the_first();
        let srq = rig.server.srq(400);
        (srq, rig)
    };
    with_each_failure(
        "an EP on an SRQ",
        surroundings,
        |(srq, rig)| {
            let side = &rig.server;
            Ep::create_with_srq(&side.ia, &side.pz, side.evds(), srq, &long(500))
        },
        |(srq, rig), server| {
            rig.server.post(srq, 1, 64, 0, 5);
            let mut pair = rig.connect(server, rig.client.ep(&EpAttr::default()));
            assert_eq!(rig.deliver(&mut pair, 64).status, DtoStatus::Success);
        },
    );
}

fn modifying_eps() {
    let surroundings = || {
        let rig = Rig::new();
        let side = &rig.server;
        let other = Evd::create(&side.ia, 256, None, EvdFlags::DTO).unwrap();
        let mut ep = side.ep(&long(500));
        ep.post_recv(&[side.lmr.triplet(0, 64)], 9, NONE).unwrap();
        (Some(ep), other, rig)
    };
    with_each_failure(
        "an EP with another EVD",
        surroundings,
        |(ep, other, _)| {
            let ep = ep.as_mut().unwrap();
            ep.modify(EpChange { recv: Some(Some(other)), ..EpChange::default() })
        },
        |(ep, other, rig), ()| {
            let mut pair = rig.connect(ep.take().unwrap(), rig.client.ep(&EpAttr::default()));
            assert_eq!(rig.send(&mut pair, 0, 64).status, DtoStatus::Success);
            let received = dto(other);
            assert_eq!((received.cookie, received.status), (9, DtoStatus::Success));
        },
    );
}

/// The provider keeps the segments of receives posted before a connection, in case the QP is
/// replaced. This needs memory.
fn posting_before_a_connection() {
    const MANY: usize = 200;
    let surroundings = || {
        let side = one_side();
        let mut ep = side.ep(&long(500));
        for i in 0..MANY {
            ep.post_recv(&[side.lmr.triplet(0, 64)], i as u64, NONE).unwrap();
        }
        (ep, side)
    };
    with_each_failure(
        "receives",
        surroundings,
        |(ep, side)| (0..200).try_for_each(|_| ep.post_recv(&[side.lmr.triplet(64, 64)], 0, NONE)),
        |_, ()| {},
    );
}

fn connecting() {
    let surroundings = || {
        let rig = Rig::new();
        let (server, client) = (rig.server.ep(&EpAttr::default()), rig.client.ep(&EpAttr::default()));
        let (psp, qual) = Psp::create_any(&rig.server.ia, &rig.server.cr).unwrap();
        (server, client, psp, qual, rig)
    };
    with_each_failure(
        "a connect",
        surroundings,
        |(_, client, _, qual, rig)| {
            client.connect(rig.server.ia.address(), *qual, Some(LONG), b"hello", Qos::BestEffort)
        },
        |(server, client, _, _, rig), ()| {
            let arrival = connection_request(&rig.server.cr);
            assert_eq!(arrival.cr.private_data()[..5], *b"hello");
            arrival.cr.accept(server, b"").unwrap();
            expect_connection(&rig.client.connect, client, ConnectionEventKind::Established);
            expect_connection(&rig.server.connect, server, ConnectionEventKind::Established);
        },
    );
}

fn accepting() {
    let surroundings = || {
        let rig = Rig::new();
        let mut srq = rig.server.srq(400);
        rig.server.post(&mut srq, 1, 64, 0, 5);
        let server = rig.server.srq_ep(&srq, &EpAttr::default());
        let client = rig.client.ep(&EpAttr::default());
        let (psp, arrival) = rig.ask(&client);
        (Some(arrival.cr), Some(server), client, psp, srq, rig)
    };
    with_each_failure(
        "an accept",
        surroundings,
        |(cr, server, ..)| {
            let asked = cr.take().unwrap();
            asked.accept(server.as_ref().unwrap(), b"").map_err(|Refused { object, error }| {
                *cr = Some(object);
                error
            })
        },
        |(_, server, client, _, _, rig), ()| {
            let server = server.take().unwrap();
            expect_connection(&rig.client.connect, client, ConnectionEventKind::Established);
            expect_connection(&rig.server.connect, &server, ConnectionEventKind::Established);
            client.post_send(&[rig.client.lmr.triplet(0, 64)], 0, NONE).unwrap();
            assert_eq!(dto(&rig.client.request).status, DtoStatus::Success);
            assert_eq!(dto(&rig.server.recv).status, DtoStatus::Success);
        },
    );
}

fn service_points() {
    with_each_failure(
        "a PSP",
        Rig::new,
        |rig| Psp::create_any(&rig.server.ia, &rig.server.cr),
        |rig, (psp, qual)| {
            let client = rig.client.ep(&EpAttr::default());
            client.connect(rig.server.ia.address(), qual, Some(LONG), &[], Qos::BestEffort).unwrap();
            drop(connection_request(&rig.server.cr));
            psp.free().unwrap();
        },
    );
    let surroundings = || {
        let side = one_side();
        let ep = side.ep(&EpAttr::default());
        // A qualifier at which a PSP could listen a moment ago.
        let (psp, qual) = Psp::create_any(&side.ia, &side.cr).unwrap();
        psp.free().unwrap();
        (ep, qual, side)
    };
    with_each_failure(
        "an RSP",
        surroundings,
        |(ep, qual, side)| Rsp::create(&side.ia, *qual, ep, &side.cr),
        |_, rsp| rsp.free().unwrap(),
    );
    with_each_failure(
        "a CSP",
        one_side,
        |side| {
            let address = std::net::SocketAddr::new(side.ia.address(), 0);
            Csp::create(&side.ia, doorbell::Comm::of(side.ia.address()), address, &side.cr)
        },
        |_, csp| csp.free().unwrap(),
    );
}

fn rmrs() {
    with_each_failure("an RMR", one_side, |side| Rmr::create(&side.pz), |_, rmr| rmr.free().unwrap());
    let surroundings = || {
        let rig = Rig::new();
        let pair = rig.connect_plain(&EpAttr::default());
        let rmr = Rmr::create(&rig.server.pz).unwrap();
        // Enough other contexts to fill the table.
        let others: Vec<_> = (0..111).map(|_| remote(&rig.server)).collect();
        (rmr, pair, others, rig)
    };
    with_each_failure(
        "a bind",
        surroundings,
        |(rmr, pair, _, rig)| {
            let lmr = &rig.server.lmr;
            let to = RmrBind {
                lmr,
                segment: lmr.triplet(0, 64),
                privileges: all_privileges(),
                va_type: VaType::Virtual,
            };
            rmr.bind(&mut pair.server, to, 3, NONE)
        },
        |(rmr, _, _, rig), context| {
            match next(&rig.server.request).data {
                EventData::RmrBind(bind) => assert_eq!(bind.status, DtoStatus::Success),
                other => panic!("not a bind: {other:?}"),
            }
            assert_eq!(rmr.query().unwrap().rmr_context, context);
        },
    );
}

/// An LMR with a context for peers.
fn remote(side: &Side) -> Lmr {
    Lmr::create(&side.ia, &side.pz, 64, all_privileges()).unwrap()
}

fn pools() {
    let surroundings = || {
        let rig = Rig::new();
        let srq = rig.server.srq(400);
        (srq, rig)
    };
    with_each_failure(
        "a pool of receive buffers",
        surroundings,
        |(_, rig)| RecvPool::new(&rig.server.ia, &rig.server.pz, 300, 64),
        |(srq, rig), mut pool| {
            assert_eq!(pool.refill(srq).unwrap(), 300);
            let mut pair = rig.connect_srq(srq);
            rig.client.lmr.write(0, b"hello").unwrap();
            assert_eq!(rig.send(&mut pair, 0, 5).status, DtoStatus::Success);
            match pool.next(srq, &rig.server.recv, Some(LONG)).unwrap() {
                Received::Message(message) => assert_eq!(message[..], *b"hello"),
                other => panic!("no message: {other:?}"),
            }
        },
    );
    with_each_failure(
        "a pool of send buffers",
        one_side,
        |side| SendPool::new(&side.ia, &side.pz, 300, 64),
        |_, mut pool| drop(pool.take().unwrap()),
    );
}

fn datagrams() {
    let ud = || EpAttr { service_type: ServiceType::Ud, ..long(500) };
    with_each_failure(
        "an EP for datagrams",
        || {
            let side = one_side();
            drop(side.ep(&ud()));
            side
        },
        |side| Ep::create(&side.ia, &side.pz, side.evds(), Some(&ud())),
        |_, ep| ep.free().unwrap(),
    );
    let surroundings = || {
        let rig = Rig::new();
        let (mut server, client) = (rig.server.ep(&ud()), rig.client.ep(&ud()));
        server.post_recv(&[rig.server.lmr.triplet(0, 256)], 4, NONE).unwrap();
        let (psp, qual) = Psp::create_any(&rig.server.ia, &rig.server.cr).unwrap();
        (server, client, psp, qual, rig)
    };
    with_each_failure(
        "a question for an address handle",
        surroundings,
        |(_, client, _, qual, rig)| {
            client.connect(rig.server.ia.address(), *qual, Some(LONG), b"", Qos::BestEffort)
        },
        |(server, client, _, _, rig), ()| {
            connection_request(&rig.server.cr).cr.accept(server, b"").unwrap();
            let to = match next(&rig.client.connect).data {
                EventData::Datagram(event) => match event.kind {
                    DatagramEventKind::Established { peer, .. } => peer,
                    other => panic!("no address handle: {other:?}"),
                },
                other => panic!("no address handle: {other:?}"),
            };
            client.post_send_ud(&[rig.client.lmr.triplet(0, 64)], &to, 0, NONE).unwrap();
            assert_eq!(dto(&rig.client.request).status, DtoStatus::Success);
            let received = dto(&rig.server.recv);
            assert_eq!((received.cookie, received.status), (4, DtoStatus::Success));
            client.free_address_handle(&to).unwrap();
        },
    );
}

/// One more object of a kind whose table has to grow for it.
fn tables_that_are_full() {
    fn full<T>(side: Side, of: impl Fn(&Side) -> T, n: usize) -> (Vec<T>, Side) {
        let others = (0..n).map(|_| of(&side)).collect();
        (others, side)
    }
    // Tables have room for 7/8 of a power of two, and the side has some objects already.
    for n in [111, 112] {
        let pz = |side: &Side| Pz::create(&side.ia).unwrap();
        with_each_failure(
            "one more PZ",
            || full(one_side(), pz, n - 1),
            |(_, side)| Pz::create(&side.ia),
            |_, pz| pz.free().unwrap(),
        );
        with_each_failure(
            "one more LMR",
            || full(one_side(), remote, n - 1),
            |(_, side)| Lmr::create(&side.ia, &side.pz, 64, all_privileges()),
            |_, lmr| lmr.free().unwrap(),
        );
    }
    with_each_failure(
        "one more CNO",
        || full(one_side(), |side| Cno::create(&side.ia).unwrap(), 112),
        |(_, side)| Cno::create(&side.ia),
        |_, cno| cno.free().unwrap(),
    );
    with_each_failure(
        "one more RMR",
        || full(one_side(), |side| Rmr::create(&side.pz).unwrap(), 112),
        |(_, side)| Rmr::create(&side.pz),
        |_, rmr| rmr.free().unwrap(),
    );
    let small = |side: &Side| side.ep(&long(1));
    with_each_failure(
        "one more EP",
        || full(one_side(), small, 112),
        |(_, side)| Ep::create(&side.ia, &side.pz, side.evds(), Some(&long(1))),
        |_, ep| ep.free().unwrap(),
    );
}

/// Memory for 4,096 events other than completions is allocated in advance.
const IN_ADVANCE: u64 = 4096;

fn a_software_event() {
    let surroundings = || {
        let side = one_side();
        let evd = Evd::create(&side.ia, 2 * IN_ADVANCE as Count, None, EvdFlags::SOFTWARE).unwrap();
        (0..IN_ADVANCE).for_each(|n| evd.post_software_event(n).unwrap());
        (evd, side)
    };
    with_each_failure(
        "a software event",
        surroundings,
        |(evd, _)| evd.post_software_event(IN_ADVANCE),
        |(evd, _), ()| {
            for n in 0..=IN_ADVANCE {
                assert!(matches!(next(evd).data, EventData::Software(m) if m == n));
            }
        },
    );
}

/// The event is the end of a connection, which the progress thread reports.
fn an_event_that_nobody_can_queue_is_an_overflow() {
    let rig = Rig::new();
    let side = &rig.server;
    let evd = Evd::create(&side.ia, 2 * IN_ADVANCE as Count, None, EvdFlags::SOFTWARE | EvdFlags::CONNECTION);
    let evd = evd.unwrap();
    let mut server = side.ep(&EpAttr::default());
    server.modify(EpChange { connect: Some(Some(&evd)), ..EpChange::default() }).unwrap();
    let client = rig.client.ep(&EpAttr::default());
    let (_psp, arrival) = rig.ask(&client);
    arrival.cr.accept(&server, &[]).unwrap();
    expect_connection(&rig.client.connect, &client, ConnectionEventKind::Established);
    expect_connection(&evd, &server, ConnectionEventKind::Established);
    (0..IN_ADVANCE).for_each(|n| evd.post_software_event(n).unwrap());
    EXHAUSTED.store(true, SeqCst);
    client.disconnect(CloseFlags::Abrupt).unwrap();
    let overflow = side.ia.async_evd().wait(Some(LONG), 1);
    EXHAUSTED.store(false, SeqCst);
    match overflow.unwrap().event.data {
        EventData::Async(event) => {
            assert_eq!((event.kind, event.object), (AsyncKind::EvdOverflow, AsyncObject::Evd(evd.id())));
        }
        other => panic!("not an asynchronous event: {other:?}"),
    }
    for n in 0..IN_ADVANCE {
        assert!(matches!(next(&evd).data, EventData::Software(m) if m == n));
    }
    expect_connection(&rig.client.connect, &client, ConnectionEventKind::Disconnected);
    // The EP has reached the state all the same and continues from there.
    until("the EP is disconnected", || server.state() == doorbell::EpState::Disconnected);
    server.reset().unwrap();
    server.modify(EpChange { connect: Some(Some(&side.connect)), ..EpChange::default() }).unwrap();
    rig.connect(server, rig.client.ep(&EpAttr::default()));
}
