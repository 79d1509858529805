//! After a fork, objects belong to the parent: in the child every call refuses them and no drop
//! touches anything. One test at a time, since each forks.
#![expect(unsafe_code, reason = "fork, and _exit in the child")]

use doorbell::{
    CloseFlags, Cno, CompletionFlags, CrArrival, DtoStatus, Ep, EpAttr, EpChange, EvdFlags, Ia, Lmr, MemPriv,
    PortCounters, Psp, Pz, RecvPool, Refused, ReturnType, Rmr, RmrScope, RmrTriplet, Rsp, SendBuf, SendPool,
    Srq, VaType,
};
use doorbell_hw_tests::rig::*;
use doorbell_hw_tests::{Pair, Rig, Side, tests};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// The provider's log, warnings and errors: for example, a verb that fails in a drop.
static LOG: Mutex<Vec<u8>> = Mutex::new(Vec::new());

struct Log;

impl Write for Log {
    fn write(&mut self, text: &[u8]) -> std::io::Result<usize> {
        LOG.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(text);
        Ok(text.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn main() {
    let _ = tracing_subscriber::fmt()
        .with_env_filter(tracing_subscriber::EnvFilter::new("warn"))
        .with_writer(|| Log)
        .try_init();
    let tests = tests![
        a_child_is_refused_and_its_drops_touch_nothing,
        a_child_of_a_busy_process_waits_for_nobody,
        a_child_has_objects_of_its_own,
    ];
    doorbell_hw_tests::run_with_threads(tests, 1).exit();
}

/// What happened in the child.
enum Forked {
    Child(UnixStream),
    Parent(libc::pid_t, UnixStream),
}

fn fork() -> Forked {
    let (mine, childs) = UnixStream::pair().unwrap();
    // SAFETY: the child waits for no other thread, reports, and leaves by _exit.
    match unsafe { libc::fork() } {
        0 => Forked::Child(childs),
        child => {
            assert!(child > 0, "fork: {}", std::io::Error::last_os_error());
            Forked::Parent(child, mine)
        }
    }
}

/// Runs the body in the child, reports, and exits.
fn report(mut to: UnixStream, body: impl FnOnce()) -> ! {
    let outcome = std::panic::catch_unwind(AssertUnwindSafe(body));
    let text = match &outcome {
        Ok(()) => "done",
        Err(panic) => panic
            .downcast_ref::<String>()
            .map(String::as_str)
            .or_else(|| panic.downcast_ref::<&str>().copied())
            .unwrap_or("a panic"),
    };
    let _ = to.write_all(text.as_bytes());
    // SAFETY: ends the process.
    unsafe { libc::_exit(0) }
}

/// Waits for the end of the child, and kills a child that hangs.
#[track_caller]
fn done(child: libc::pid_t, mut from: UnixStream) {
    from.set_read_timeout(Some(Duration::from_secs(120))).unwrap();
    let mut text = String::new();
    let outcome = from.read_to_string(&mut text);
    // SAFETY: our child, which nobody has waited for.
    unsafe {
        if outcome.is_err() {
            libc::kill(child, libc::SIGKILL);
        }
        libc::waitpid(child, std::ptr::null_mut(), 0);
    }
    assert!(outcome.is_ok(), "the child hangs");
    assert_eq!(text, "done", "in the child");
}

/// The outcome of a call on an object of the parent.
#[track_caller]
fn stale<T: std::fmt::Debug>(outcome: Result<T, impl Refusal>) {
    let code = code(outcome) & 0x3fff_0000;
    let types = [ReturnType::InvalidHandle, ReturnType::InvalidState].map(|ty| ty as u32);
    assert!(types.contains(&code), "{code:#x}");
}

/// One object of each kind, and a connection.
struct Objects {
    pair: Pair,
    srq: Srq,
    /// An EP with a receive queue of its own.
    plain: Ep,
    ud: Option<Ep>,
    recv_pool: RecvPool,
    send_pool: SendPool,
    send_buf: SendBuf,
    lmr: Lmr,
    pz: Pz,
    rmr: Option<Rmr>,
    cno: Cno,
    psp: Psp,
    rsp: Rsp,
    _reserved: Ep,
    asking: [Ep; 3],
    arrivals: [CrArrival; 3],
}

const SIZE: usize = 64;

fn objects(rig: &Rig) -> Objects {
    let Side { ia, pz, .. } = &rig.server;
    let mut srq = rig.server.srq(16);
    let mut recv_pool = RecvPool::new(ia, pz, 4, SIZE).unwrap();
    let mut send_pool = SendPool::new(ia, pz, 4, SIZE).unwrap();
    assert_eq!(recv_pool.refill(&mut srq).unwrap(), 4);
    let reserved = rig.server.ep(&EpAttr::default());
    let (rsp, _) = rig.server.reserve(&reserved);
    let asking = [(); 3].map(|()| rig.client.ep(&EpAttr::default()));
    let arrivals = asking.each_ref().map(|client| rig.ask(client).1);
    let ud = EpAttr { service_type: doorbell::ServiceType::Ud, ..EpAttr::default() };
    Objects {
        pair: rig.connect_srq(&srq),
        plain: rig.server.ep(&EpAttr::default()),
        ud: ia.attributes().datagrams.then(|| rig.server.ep(&ud)),
        send_buf: send_pool.take().unwrap(),
        lmr: Lmr::builder(ia, pz).privileges(all_privileges()).allocate(4096).unwrap(),
        pz: Pz::new(ia).unwrap(),
        rmr: (ia.attributes().max_rmrs > 0).then(|| Rmr::new(pz, RmrScope::Pz).unwrap()),
        cno: Cno::new(ia).unwrap(),
        psp: Psp::builder(ia, &rig.server.cr).build().unwrap(),
        rsp,
        _reserved: reserved,
        asking,
        arrivals,
        srq,
        recv_pool,
        send_pool,
    }
}

const NONE: CompletionFlags = CompletionFlags::empty();

fn everything_is_refused(rig: Rig, objects: Objects) {
    let Objects { mut pair, mut srq, mut plain, mut ud, mut recv_pool, mut send_pool, send_buf, lmr, .. } =
        objects;
    let Side { ia, recv, request, .. } = &rig.server;
    let iov = [rig.server.lmr.triplet(0, 8)];
    let remote = RmrTriplet::default();
    // The SRQ: the LMR of the last post, another, none, and a pool's.
    stale(srq.post_recv(&iov, 1));
    stale(srq.post_recv(&[lmr.triplet(0, 8)], 1));
    stale(srq.post_recv(&[iov[0], iov[0]], 1));
    stale(srq.post_recv(&[], 1));
    stale(recv_pool.refill(&mut srq));
    stale(recv_pool.gauges(&srq));
    stale(recv_pool.next(&mut srq, recv));
    stale(srq.query());
    stale(srq.resize(32));
    stale(srq.set_low_watermark(1));
    stale(Srq::builder(ia, &objects.pz).depth(4).build());
    // EVDs.
    for evd in [recv, request, &rig.server.connect, &rig.server.cr, ia.async_evd()] {
        let error = evd.dequeue().unwrap_err();
        assert_eq!(error.return_type(), ReturnType::InvalidHandle, "{error}");
        assert!(error.to_string().contains("parent process"), "{error}");
        stale(evd.wait_threshold(1, None));
        stale(evd.query());
        stale(evd.resize(512));
        stale(evd.post_software_event(1));
        stale(evd.enable());
        stale(evd.disable());
        stale(evd.set_unwaitable());
        stale(evd.clear_unwaitable());
        stale(evd.set_cno(None));
        stale(evd.counters());
        stale(evd.clone().close());
    }
    stale(Ia::builder(&ia.attributes().device_name).async_evd(ia.async_evd()).open());
    // EPs.
    let address = ia.address();
    stale(plain.post_recv(&iov, 1, NONE));
    stale(recv_pool.refill(&mut plain));
    let Refused { object: send_buf, error } =
        send_pool.send(send_buf).len(8).post(&mut pair.server).unwrap_err();
    stale::<()>(Err(error));
    assert!(send_pool.take().is_none());
    for ep in [&mut pair.server, &mut pair.client, &mut plain].into_iter().chain(&mut ud) {
        stale(ep.send(&iov).cookie(1).post());
        stale(ep.send(&iov).with_invalidate(1).cookie(1).post());
        stale(ep.write(&iov).to(remote).cookie(1).post());
        stale(ep.write(&iov).to(remote).with_immediate(1).cookie(1).post());
        stale(ep.read(&iov).from(remote).cookie(1).post());
        let local = RmrTriplet { rmr_context: lmr.rmr_context(), segment_length: 8, ..remote };
        stale(ep.read_to_rmr(local).from(remote).cookie(1).post());
        stale(ep.fetch_add(&iov[0], 1).at(remote).cookie(1).post());
        stale(ep.compare_swap(&iov[0], 1, 1).at(remote).cookie(1).post());
        stale(ep.query());
        stale(ep.status());
        stale(ep.recv_query());
        stale(ep.counters());
        stale(ep.set_watermark(Some(1), Some(2)));
        stale(ep.modify(EpChange::default()));
        stale(ep.connect((address, 1).into()));
        stale(ep.inner.common_connect((address, 1).into(), None, &[]));
        stale(ep.disconnect(CloseFlags::Graceful));
        stale(ep.disconnect(CloseFlags::Abrupt));
        stale(ep.reset());
    }
    stale(plain.inner.dup_connect(&pair.client.inner, None, &[]));
    stale(Ep::builder(ia, &objects.pz).evds(rig.server.evds()).build());
    stale(Ep::builder(ia, &objects.pz).evds(rig.server.evds()).srq(&srq).build());
    if let Some(mut rmr) = objects.rmr {
        let to = doorbell::RmrBind {
            lmr: &lmr,
            segment: lmr.triplet(0, 8),
            privileges: MemPriv::REMOTE_READ,
            va_type: VaType::Virtual,
        };
        stale(rmr.bind(&mut pair.server, to, 1, NONE));
        stale(rmr.query());
        stale(rmr.close());
    }
    stale(Rmr::new(&objects.pz, RmrScope::Pz));
    // Requests and service points.
    let [first, second, third] = objects.arrivals;
    stale(first.cr.accept(&plain, &[]));
    let cr = second.cr.accept_reserved(&[]).unwrap_err();
    assert_eq!(cr.error.return_type(), ReturnType::InvalidHandle);
    stale(cr.object.hand_off(objects.psp.port()));
    stale(third.cr.reject(&[]));
    stale(Psp::builder(ia, &rig.server.cr).build());
    stale(Rsp::new(ia, 7777, &plain, &rig.server.cr));
    stale(objects.psp.close());
    stale(objects.rsp.close());
    // Memory.
    stale(lmr.read(0, &mut [0]));
    stale(lmr.write(0, &[0]));
    stale(ia.sync_rdma_read(&iov));
    stale(Lmr::builder(ia, &objects.pz).privileges(all_privileges()).allocate(4096));
    stale(RecvPool::new(ia, &objects.pz, 1, SIZE));
    stale(SendPool::new(ia, &objects.pz, 1, SIZE));
    stale(lmr.close());
    stale(objects.pz.close());
    stale(Pz::new(ia));
    // CNOs and the IA.
    stale(objects.cno.wait(None));
    stale(objects.cno.take());
    stale(objects.cno.close());
    stale(Cno::new(ia));
    stale(ia.counters());
    stale(ia.start_counters(PortCounters::Cm));
    stale(ia.stop_counters(PortCounters::Cm));
    for asking in objects.asking {
        stale(asking.close());
    }
    stale(srq.close());
    let Pair { server, client } = pair;
    stale(server.close());
    // The remaining objects are dropped; the IA before its objects.
    let Rig { server: Side { ia, lmr, recv, request, connect, cr, pz }, client: peer } = rig;
    let refused = ia.close().unwrap_err();
    assert!(refused.error.to_string().contains("parent process"), "{}", refused.error);
    drop(refused);
    drop((send_buf, recv_pool, send_pool, plain, ud, client));
    drop((lmr, recv, request, connect, cr, pz, peer));
    let log = std::mem::take(&mut *LOG.lock().unwrap());
    assert!(log.is_empty(), "{}", String::from_utf8_lossy(&log));
}

/// The connection and the SRQ keep working in the parent, as do all objects that the child has
/// used.
fn a_child_is_refused_and_its_drops_touch_nothing() {
    let rig = Rig::new();
    let objects = objects(&rig);
    let (child, from) = match fork() {
        Forked::Child(to) => report(to, move || everything_is_refused(rig, objects)),
        Forked::Parent(child, from) => (child, from),
    };
    done(child, from);
    let Objects { mut pair, mut srq, mut recv_pool, mut send_pool, send_buf, arrivals, lmr, pz, .. } =
        objects;
    for _ in 0..8 {
        let dto = rig.deliver(&mut pair, 8);
        assert!(recv_pool.take(&dto).is_some());
        assert_eq!(recv_pool.refill(&mut srq).unwrap(), 1);
    }
    let receive = [rig.client.lmr.triplet(0, SIZE)];
    pair.client.post_recv(&receive, 5, NONE).unwrap();
    send_pool.send(send_buf).len(8).post(&mut pair.server).unwrap();
    assert!(send_pool.completed(&dto(&rig.server.request)));
    assert_eq!(dto(&rig.client.recv).cookie, 5);
    // The child has answered nothing on behalf of the parent.
    let [first, second, third] = arrivals;
    first.cr.accept(&objects.plain, &[]).unwrap();
    expect_connection(&rig.server.connect, &objects.plain, doorbell::ConnectionEventKind::Established);
    second.cr.reject(&[]).unwrap();
    third.cr.reject(&[]).unwrap();
    lmr.write(0, &[1]).unwrap();
    lmr.close().unwrap();
    objects.psp.close().unwrap();
    objects.rsp.close().unwrap();
    objects.cno.close().unwrap();
    pz.close().unwrap();
    pair.server.close().unwrap();
    srq.close().unwrap();
}

/// Forks come while another thread posts, sends and dequeues, and a third makes and frees EVDs: any
/// of their locks may be held, and no child waits for them.
fn a_child_of_a_busy_process_waits_for_nobody() {
    const FORKS: usize = 100;
    let rig = Rig::new();
    let mut srq = rig.server.srq(16);
    let mut pair = rig.connect_srq(&srq);
    let mut idle_srq = rig.server.srq(4);
    let mut idle = rig.connect_srq(&idle_srq);
    // It knows the LMR of its last post, and the next one need not look at the table.
    rig.server.post(&mut idle_srq, 1, SIZE, 0, 0);
    let stop = AtomicBool::new(false);
    let rounds = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let (rig, stop, rounds) = (&rig, &stop, &rounds);
        scope.spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                rig.server.post(&mut srq, 1, SIZE, 1 << 20, 7);
                pair.client.send(&[rig.client.lmr.triplet(0, 8)]).post().unwrap();
                until("the message", || rig.server.recv.dequeue().unwrap().is_some());
                assert_eq!(dto(&rig.client.request).status, DtoStatus::Success);
                rounds.fetch_add(1, Ordering::Relaxed);
            }
        });
        scope.spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                rig.server.evd(EvdFlags::CONNECTION).close().unwrap();
            }
        });
        let mut then = 0;
        let children = std::panic::catch_unwind(AssertUnwindSafe(|| {
            for _ in 0..FORKS {
                until("another round", || rounds.load(Ordering::Relaxed) > then);
                then = rounds.load(Ordering::Relaxed);
                let (child, from) = match fork() {
                    Forked::Child(to) => report(to, || {
                        let Side { recv, request, .. } = &rig.server;
                        for evd in [recv, request, &rig.client.request, &rig.client.recv] {
                            stale(evd.dequeue());
                            stale(evd.wait_threshold(1, None));
                            stale(evd.query());
                        }
                        stale(idle_srq.post_recv(&[rig.server.lmr.triplet(0, 8)], 1));
                        stale(idle_srq.query());
                        stale(idle.client.send(&[rig.client.lmr.triplet(0, 8)]).post());
                        stale(idle.client.disconnect(CloseFlags::Abrupt));
                        drop(idle);
                        drop(idle_srq);
                    }),
                    Forked::Parent(child, from) => (child, from),
                };
                done(child, from);
            }
        }));
        stop.store(true, Ordering::Relaxed);
        children.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
    assert!(rounds.load(Ordering::Relaxed) >= FORKS as u64);
}

/// The child opens an IA, and all its objects work.
fn a_child_has_objects_of_its_own() {
    let rig = Rig::new();
    let mut srq = rig.server.srq(4);
    let mut pair = rig.connect_srq(&srq);
    let (child, from) = match fork() {
        Forked::Child(to) => report(to, move || {
            let own = one_side();
            let mut own_srq = own.srq(4);
            own.post(&mut own_srq, 2, SIZE, 0, 0);
            let two: u32 = 2;
            assert_eq!(counts(&own_srq).0, two);
            stale(own.evd(EvdFlags::DTO).query().and_then(|_| rig.server.recv.query()));
            stale(Ep::builder(&own.ia, &own.pz).evds(own.evds()).srq(&srq).build());
            own_srq.close().unwrap();
        }),
        Forked::Parent(child, from) => (child, from),
    };
    done(child, from);
    rig.server.post(&mut srq, 1, SIZE, 0, 0);
    assert_eq!(rig.deliver(&mut pair, 8).status, DtoStatus::Success);
}
