//! Events caused by completions on EVDs that nobody looks at: a program that waits on the connect
//! EVD or the asynchronous EVD only, directly or through a CNO, still gets them.

use doorbell::inside::EpEvds;
use doorbell::{
    AsyncKind, AsyncObject, Cno, CompletionFlags, ConnectionEventKind, DatagramEventKind, DtoStatus, Ep,
    EpAttr, EpState, Evd, EvdCounter, EvdFlags, Event, Ia, ReturnType, RmrTriplet, ServiceType, reason,
};
use doorbell_hw_tests::rig::*;
use doorbell_hw_tests::{Pair, Rig, Side, tests};
use nix::poll::{PollFd, PollFlags, PollTimeout};
use std::time::Duration;

fn main() {
    // One test at a time: the wake-ups of all threads of the provider are counted.
    doorbell_hw_tests::run_with_threads(
        tests![
            a_too_long_message_is_reported_at_both_ends,
            a_too_long_message_is_reported_without_dto_evds,
            a_too_long_message_is_reported_through_a_cno,
            a_too_long_message_is_reported_in_every_mode,
            a_break_is_told_after_waits_on_the_dto_evds,
            a_break_is_reported_after_a_cno_left,
            a_request_without_privilege_is_told,
            an_srq_ep_whose_request_fails_is_told,
            a_datagram_ep_that_fails_is_told,
            the_soft_watermark_is_told,
            the_soft_watermark_of_a_new_ep_is_told,
            the_soft_watermark_is_told_by_a_dequeue,
            the_hard_watermark_is_told_to_both_ends,
            nothing_wakes_the_provider_while_nothing_happens,
        ],
        1,
    )
    .exit();
}

const NONE: CompletionFlags = CompletionFlags::empty();

/// Longer than the receives posted here.
const TOO_LONG: usize = 100;

/// A connected pair of plain EPs, the server's with receives of 64 bytes.
fn plain_pair(rig: &Rig) -> Pair {
    let mut pair = rig.connect_plain(&EpAttr::default());
    post(&rig.server, &mut pair.server, 4);
    pair
}

fn post(side: &Side, ep: &mut Ep, receives: usize) {
    for i in 0..receives {
        ep.post_recv(&[side.lmr.triplet(i * 64, 64)], i as u64, NONE).unwrap();
    }
}

/// The client sends a message. No thread polls for its completion.
fn send(rig: &Rig, pair: &mut Pair, len: usize) {
    pair.client.send(&[rig.client.lmr.triplet(0, len)]).cookie(7).post().unwrap();
}

/// Both connect EVDs have one event BROKEN.
#[track_caller]
fn expect_broken(rig: &Rig, pair: &Pair) {
    expect_connection(&rig.server.connect, &pair.server, ConnectionEventKind::Broken);
    expect_connection(&rig.client.connect, &pair.client, ConnectionEventKind::Broken);
    assert_eq!((pair.server.state(), pair.client.state()), (EpState::Disconnected, EpState::Disconnected));
    expect_nothing(&rig.server.connect);
    expect_nothing(&rig.client.connect);
}

/// Connected plain EPs with these EVDs for completions.
fn connect_with(
    rig: &Rig,
    server: (Option<&Evd>, Option<&Evd>),
    client: (Option<&Evd>, Option<&Evd>),
    attr: &EpAttr,
) -> Pair {
    let make = |side: &Side, (recv, request): (Option<&Evd>, Option<&Evd>), attr: &EpAttr| {
        let evds = EpEvds { recv, request, connect: Some(&side.connect) };
        Ep::builder(&side.ia, &side.pz).evds(evds).attributes(attr).build().unwrap()
    };
    rig.connect(make(&rig.server, server, attr), make(&rig.client, client, &EpAttr::default()))
}

/// After the events, the completions are in their EVDs.
fn a_too_long_message_is_reported_at_both_ends() {
    let rig = Rig::new();
    let mut pair = plain_pair(&rig);
    send(&rig, &mut pair, 8);
    send(&rig, &mut pair, TOO_LONG);
    expect_broken(&rig, &pair);
    let statuses: Vec<_> = (0..4).map(|_| dto(&rig.server.recv).status).collect();
    use DtoStatus::{Flushed, LocalLength, RemoteResponder, Success};
    assert_eq!(statuses, [Success, LocalLength, Flushed, Flushed]);
    assert_eq!(dto(&rig.client.request).status, Success);
    assert_eq!(dto(&rig.client.request).status, RemoteResponder);
    expect_nothing(&rig.server.recv);
    expect_nothing(&rig.client.request);
}

/// EPs without EVDs for completions, so that no thread can look at them.
fn a_too_long_message_is_reported_without_dto_evds() {
    let rig = Rig::new();
    let mut pair = connect_with(&rig, (None, None), (None, None), &EpAttr::default());
    post(&rig.server, &mut pair.server, 4);
    send(&rig, &mut pair, TOO_LONG);
    expect_broken(&rig, &pair);
}

/// A CNO that only the connect EVD triggers, and its descriptor.
fn a_too_long_message_is_reported_through_a_cno() {
    let rig = Rig::new();
    let mut pair = plain_pair(&rig);
    let server = Cno::new(&rig.server.ia).unwrap();
    let client = Cno::with_fd(&rig.client.ia).unwrap();
    rig.server.connect.set_cno(Some(&server)).unwrap();
    rig.client.connect.set_cno(Some(&client)).unwrap();
    send(&rig, &mut pair, TOO_LONG);
    assert_eq!(server.wait(Some(LONG)).unwrap(), rig.server.connect.id());
    readable(&client);
    assert_eq!(client.take().unwrap(), rig.client.connect.id());
    expect_broken(&rig, &pair);
}

/// Waits until the CNO's descriptor is readable.
#[track_caller]
fn readable(cno: &Cno) {
    let mut fds = [PollFd::new(cno.fd().unwrap(), PollFlags::POLLIN)];
    assert_eq!(nix::poll::poll(&mut fds, PollTimeout::try_from(LONG).unwrap()), Ok(1));
}

/// In each notification mode of receives, with requests on the same EVD and on another.
fn a_too_long_message_is_reported_in_every_mode() {
    let rig = Rig::new();
    for recv_completion_flags in
        [CompletionFlags::UNSIGNALLED, CompletionFlags::SOLICITED_WAIT, CompletionFlags::EVD_THRESHOLD]
    {
        let attr = EpAttr { recv_completion_flags, ..EpAttr::default() };
        let (recv, shared) = (rig.server.evd(EvdFlags::DTO), rig.client.evd(EvdFlags::DTO));
        let server = (Some(&recv), Some(&rig.server.request));
        let mut pair = connect_with(&rig, server, (Some(&shared), Some(&shared)), &attr);
        post(&rig.server, &mut pair.server, 4);
        send(&rig, &mut pair, TOO_LONG);
        expect_broken(&rig, &pair);
    }
}

/// A wait that ends with an event leaves the CQ disarmed, and a wait that times out leaves it
/// armed. A failure follows each of them.
fn a_break_is_told_after_waits_on_the_dto_evds() {
    let rig = Rig::new();
    for in_vain in [false, true] {
        let mut pair = plain_pair(&rig);
        std::thread::scope(|scope| {
            let received = scope.spawn(|| dto(&rig.server.recv));
            let sent = scope.spawn(|| dto(&rig.client.request));
            until("both sleep", || blocked(&rig.server.recv) && blocked(&rig.client.request));
            send(&rig, &mut pair, 8);
            assert_eq!(received.join().unwrap().status, DtoStatus::Success);
            assert_eq!(sent.join().unwrap().status, DtoStatus::Success);
        });
        if in_vain {
            expect_nothing(&rig.server.recv);
            expect_nothing(&rig.client.request);
        }
        send(&rig, &mut pair, TOO_LONG);
        expect_broken(&rig, &pair);
        for evd in [&rig.server.recv, &rig.client.request] {
            while evd.dequeue().unwrap().is_some() {}
            evd.take_counters(&[EvdCounter::WaitBlocked]).unwrap();
        }
    }
}

/// Whether a thread sleeps in a wait.
fn blocked(evd: &Evd) -> bool {
    evd.counters().unwrap()[EvdCounter::WaitBlocked] > 0
}

/// Also if the EVD's CNO is disabled.
fn a_break_is_reported_after_a_cno_left() {
    let rig = Rig::new();
    let (server, client) = (Cno::new(&rig.server.ia).unwrap(), Cno::new(&rig.client.ia).unwrap());
    let mut pair = plain_pair(&rig);
    rig.server.recv.set_cno(Some(&server)).unwrap();
    rig.client.request.set_cno(Some(&client)).unwrap();
    send(&rig, &mut pair, 8);
    assert_eq!(server.wait(Some(LONG)).unwrap(), rig.server.recv.id());
    assert_eq!(client.wait(Some(LONG)).unwrap(), rig.client.request.id());
    rig.server.recv.set_cno(None).unwrap();
    rig.client.request.disable().unwrap();
    send(&rig, &mut pair, TOO_LONG);
    expect_broken(&rig, &pair);
    assert_eq!(client.take().unwrap_err().return_type(), ReturnType::QueueEmpty);
}

/// An RDMA Write to memory that the peer does not have. The target has receives posted, or no
/// receives that could be flushed.
fn a_request_without_privilege_is_told() {
    let rig = Rig::new();
    for receives in [4, 0] {
        let mut pair = rig.connect_plain(&EpAttr::default());
        post(&rig.server, &mut pair.server, receives);
        write_to_nowhere(&rig.client, &mut pair.client);
        expect_broken(&rig, &pair);
        assert_eq!(dto(&rig.client.request).status, DtoStatus::RemoteAccess);
        for _ in 0..receives {
            assert_eq!(dto(&rig.server.recv).status, DtoStatus::Flushed);
        }
    }
}

fn write_to_nowhere(side: &Side, ep: &mut Ep) {
    let nowhere = RmrTriplet { virtual_address: 0x1000, segment_length: 8, rmr_context: 0x00ff_ff00 };
    ep.write(&[side.lmr.triplet(0, 8)]).to(nowhere).cookie(1).post().unwrap();
}

/// The device reports this EP as well, so EP_BROKEN comes with it.
fn an_srq_ep_whose_request_fails_is_told() {
    let rig = Rig::new();
    let srq = rig.server.srq(4);
    let mut pair = rig.connect_srq(&srq);
    write_to_nowhere(&rig.server, &mut pair.server);
    expect_broken(&rig, &pair);
    let event = asynchronous(&rig.server.ia);
    assert_eq!((event.kind, event.object), (AsyncKind::EpBroken, AsyncObject::Ep(pair.server.id())));
}

/// A datagram that is too long for a buffer of an SRQ. (rxe drops a datagram that is too long for
/// an EP's own buffer.)
fn a_datagram_ep_that_fails_is_told() {
    let rig = Rig::new();
    let attr = EpAttr { service_type: ServiceType::Ud, max_message_size: 1024, ..EpAttr::default() };
    let mut srq = rig.server.srq(2);
    let server = rig.server.srq_ep(&srq, &attr);
    let mut client = rig.client.ep(&attr);
    let (_psp, arrival) = rig.ask(&client);
    arrival.cr.accept(&server, &[]).unwrap();
    let to = match next(&rig.client.connect) {
        Event::Datagram(event) => match event.kind {
            DatagramEventKind::Established { peer, .. } => peer,
            other => panic!("not established: {other:?}"),
        },
        other => panic!("not about datagrams: {other:?}"),
    };
    rig.server.post(&mut srq, 1, 48, 0, 7);
    client.send(&[rig.client.lmr.triplet(0, TOO_LONG)]).datagram_to(&to).cookie(1).post().unwrap();
    let event = asynchronous(&rig.server.ia);
    assert_eq!((event.kind, event.object), (AsyncKind::EpBroken, AsyncObject::Ep(server.id())));
    assert_eq!(server.state(), EpState::Disconnected);
    assert_ne!(dto(&rig.server.recv).status, DtoStatus::Success);
}

/// The one soft watermark event of this EP.
#[track_caller]
fn expect_soft(ia: &Ia, ep: &Ep) {
    let event = asynchronous(ia);
    assert_eq!((event.kind, event.object), (AsyncKind::Notice, AsyncObject::Ep(ep.id())));
    assert_eq!(event.reason, reason::EP_SOFT_HIGH_WATERMARK);
}

/// The event comes once per setting. The receives stay for the consumer, in their order.
fn the_soft_watermark_is_told() {
    let rig = Rig::new();
    let mut srq = rig.server.srq(16);
    rig.server.post(&mut srq, 16, 64, 0, 0);
    let mut pair = rig.connect_srq(&srq);
    for _ in 0..3 {
        pair.server.set_watermark(Some(0), None).unwrap();
        send(&rig, &mut pair, 8);
        expect_soft(&rig.server.ia, &pair.server);
        send(&rig, &mut pair, 8);
        expect_nothing(rig.server.ia.async_evd());
    }
    for cookie in 0..6 {
        let got = dto(&rig.server.recv);
        assert_eq!((got.status, got.cookie, got.ep), (DtoStatus::Success, cookie, pair.server.id()));
    }
    assert_eq!(counts(&srq), (10, 10));
    assert_eq!(pair.server.state(), EpState::Connected);
}

fn the_soft_watermark_of_a_new_ep_is_told() {
    let rig = Rig::new();
    let mut srq = rig.server.srq(4);
    rig.server.post(&mut srq, 4, 64, 0, 0);
    let attr = EpAttr { soft_high_watermark: Some(0), ..EpAttr::default() };
    let mut pair = rig.connect(rig.server.srq_ep(&srq, &attr), rig.client.ep(&EpAttr::default()));
    send(&rig, &mut pair, 8);
    expect_soft(&rig.server.ia, &pair.server);
}

/// The EVD tells of solicited messages only, so no one but the program looks at this message. Its
/// dequeue tells the watermark.
fn the_soft_watermark_is_told_by_a_dequeue() {
    let rig = Rig::new();
    let mut srq = rig.server.srq(4);
    rig.server.post(&mut srq, 4, 64, 0, 0);
    let attr = EpAttr { recv_completion_flags: CompletionFlags::SOLICITED_WAIT, ..EpAttr::default() };
    let mut pair = rig.connect(rig.server.srq_ep(&srq, &attr), rig.client.ep(&EpAttr::default()));
    for cookie in 0..4 {
        pair.server.set_watermark(Some(0), None).unwrap();
        assert_eq!(rig.send(&mut pair, 0, 8).status, DtoStatus::Success);
        let mut event = None;
        until("the message is there", || {
            event = rig.server.recv.dequeue().unwrap();
            event.is_some()
        });
        let got = *event.as_ref().and_then(|event| event.completion()).unwrap();
        assert_eq!((got.status, got.cookie), (DtoStatus::Success, cookie));
        expect_soft(&rig.server.ia, &pair.server);
    }
}

/// The watermark is set before the connection or during it.
fn the_hard_watermark_is_told_to_both_ends() {
    let rig = Rig::new();
    let mut srq = rig.server.srq(4);
    rig.server.post(&mut srq, 4, 64, 0, 0);
    for before in [false, true] {
        let mut server = rig.server.srq_ep(&srq, &EpAttr::default());
        if before {
            server.set_watermark(None, Some(0)).unwrap();
        }
        let mut pair = rig.connect(server, rig.client.ep(&EpAttr::default()));
        if !before {
            pair.server.set_watermark(None, Some(0)).unwrap();
        }
        send(&rig, &mut pair, 8);
        expect_connection(&rig.server.connect, &pair.server, ConnectionEventKind::Broken);
        // At the peer the connection is disconnected, not broken.
        expect_connection(&rig.client.connect, &pair.client, ConnectionEventKind::Disconnected);
        assert_eq!(dto(&rig.server.recv).status, DtoStatus::Success);
    }
}

/// How often the provider's threads have gone to sleep since they started.
fn sleeps() -> Vec<(String, u64)> {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    let ours = tasks.filter(|task| {
        std::fs::read_to_string(task.path().join("comm")).is_ok_and(|name| name == "doorbell\n")
    });
    ours.filter_map(|task| {
        // A thread that ends meanwhile has no status.
        let status = std::fs::read_to_string(task.path().join("status")).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        Some((task.path().display().to_string(), line.unwrap().trim().parse().unwrap()))
    })
    .collect()
}

/// While everything is armed, and after traffic, waits and breaks, the provider's threads stay
/// asleep.
fn nothing_wakes_the_provider_while_nothing_happens() {
    let rig = Rig::new();
    let mut srq = rig.server.srq(16);
    rig.server.post(&mut srq, 16, 64, 0, 0);
    let mut plain = plain_pair(&rig);
    let mut marked = rig.connect_srq(&srq);
    marked.server.set_watermark(Some(0), Some(5)).unwrap();
    let mut breaking = plain_pair(&rig);
    for pair in [&mut plain, &mut marked] {
        rig.deliver(pair, 8);
    }
    expect_soft(&rig.server.ia, &marked.server);
    marked.server.set_watermark(Some(0), Some(5)).unwrap();
    send(&rig, &mut breaking, TOO_LONG);
    expect_broken(&rig, &breaking);
    let quiet = Duration::from_millis(500);
    until("the threads sleep without a break", || {
        // The kernel may list the threads of the test before for a moment.
        let before = sleeps();
        std::thread::sleep(quiet);
        before.len() == 2 && sleeps() == before
    });
    // They wake when an event comes.
    send(&rig, &mut marked, 8);
    expect_soft(&rig.server.ia, &marked.server);
    send(&rig, &mut plain, TOO_LONG);
    expect_broken(&rig, &plain);
}
