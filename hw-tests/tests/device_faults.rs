//! Bad input and faults: each ends in a typed error or in the event that the rules name, in bounded
//! time, and leaks nothing. The tests run one at a time, since they count objects of the whole
//! process.

use doorbell::{
    AsyncKind, AsyncObject, CloseFlags, CompletionFlags, ConnectionEventKind, Count, DtoStatus, Ep, EpAttr,
    EpState, Evd, EvdFlags, EventData, Ia, Lmr, MemPriv, PostError, Psp, Pz, Qos, ReturnType, Rsp, Srq,
    SrqAttr, reason,
};
use doorbell_hw_tests::dat;
use doorbell_hw_tests::rig::*;
use doorbell_hw_tests::{Pair, Rig, Side, devices, tests};
use std::io::Write;
use std::net::IpAddr;
use std::process::{Child, Command, Stdio};
use std::sync::Once;
use std::time::{Duration, Instant};

/// Selects the role of a process that these tests start.
const ROLE: &str = "DOORBELL_FAULTS_ROLE";
/// Where the sender connects to: address and connection qualifier.
const SERVER: &str = "DOORBELL_FAULTS_SERVER";

fn main() {
    match std::env::var(ROLE).as_deref() {
        Ok("sender") => return send_for_ever(),
        Ok("locked") => return register_with_little_memlock(),
        _ => {}
    }
    let tests = tests![
        unknown_device_is_refused_with_those_found,
        depth_and_segments_over_the_limits_are_refused,
        full_srq_is_refused_until_a_completion_is_reaped,
        bad_buffers_are_refused_and_nothing_is_posted,
        message_longer_than_the_buffer_ends_that_connection_only,
        empty_srq_ends_the_connection_when_the_retries_are_over,
        killed_peer_ends_its_endpoint_only,
        psp_on_a_port_in_use_is_refused,
        connecting_to_nobody_ends_in_an_event,
        small_memlock_limit_is_named_with_the_cure,
        port_without_address_is_refused_with_the_cure,
        port_going_down_is_told_and_survived,
    ];
    let netdev = client_netdev().is_some();
    doorbell_hw_tests::run_unless(tests, 1, |name| match name {
        "port_without_address_is_refused_with_the_cure" | "port_going_down_is_told_and_survived"
            if !netdev =>
        {
            Some("needs a client device on a veth interface, and root")
        }
        _ => None,
    })
    .exit();
}

const NONE: CompletionFlags = CompletionFlags::empty();

/// Descriptors and threads of this process, and its objects of the devices.
#[derive(Debug, PartialEq)]
struct Holdings {
    fds: usize,
    threads: usize,
    /// Objects of each kind, as `rdma resource show` lists them; `None` if this program is not
    /// installed.
    objects: Option<Vec<(&'static str, usize)>>,
}

impl Holdings {
    fn now() -> Self {
        let entries = |path: &str| std::fs::read_dir(path).unwrap().count();
        Self { objects: device_objects(), fds: entries("/proc/self/fd"), threads: entries("/proc/self/task") }
    }
}

/// Threads of the provider: each IA has one. The kernel may list a thread for a moment after it was
/// joined.
fn provider_threads() -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    tasks
        .filter(|task| {
            std::fs::read_to_string(task.path().join("comm")).is_ok_and(|name| name == "doorbell\n")
        })
        .count()
}

/// One batch of commands for all kinds: each line of the output is one object, and begins with the
/// kind's word for its number.
fn device_objects() -> Option<Vec<(&'static str, usize)>> {
    const KINDS: [(&str, &str); 6] = [
        ("pd", " pdn "),
        ("mr", " mrn "),
        ("cq", " cqn "),
        ("srq", " srqn "),
        ("qp", " lqpn "),
        ("cm_id", " cm-idn "),
    ];
    let pid = std::process::id();
    let mut rdma = Command::new("rdma")
        .args(["-b", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .ok()?;
    let mut stdin = rdma.stdin.take()?;
    for (kind, _) in KINDS {
        writeln!(stdin, "resource show {kind} pid {pid}").ok()?;
    }
    drop(stdin);
    let output = rdma.wait_with_output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let count = |word| text.lines().filter(|line| line.contains(word)).count();
    output.status.success().then(|| KINDS.map(|(kind, word)| (kind, count(word))).to_vec())
}

/// Runs the body of a test and checks that it leaves nothing behind.
fn leaks_nothing(body: impl FnOnce()) {
    // Libraries keep a few descriptors after their first use.
    static WARM: Once = Once::new();
    WARM.call_once(|| {
        let rig = Rig::new();
        let srq = rig.server.srq(1);
        let pair = rig.connect_srq(&srq);
        assert!(provider_threads() > 0, "they are known by their name");
        match Holdings::now().objects {
            None => {
                eprintln!("objects of the devices are not counted: `rdma resource show` does not work here");
            }
            // The counts would include objects that the test left behind.
            Some(objects) => assert!(objects.iter().all(|(_, n)| *n > 0), "{objects:?}"),
        }
        rig.disconnect(&pair);
    });
    // No IA is open before the body or after it. The kernel may list objects and threads for a
    // moment after their end.
    until("no thread of an IA is left", || provider_threads() == 0);
    let before = Holdings::now();
    body();
    let mut after = Holdings::now();
    let start = Instant::now();
    while after != before {
        assert!(start.elapsed() < LONG, "left behind: {after:?}, before: {before:?}");
        after = Holdings::now();
    }
}

/// A process of our own, killed when it goes out of scope.
struct Process(Child);

impl Process {
    fn start(role: &str, server: &str) -> Command {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.env(ROLE, role).env(SERVER, server).stdin(Stdio::null());
        command
    }

    fn kill(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// An unknown name, address or port gives PROVIDER_NOT_FOUND, and the message lists the devices.
fn unknown_device_is_refused_with_those_found() {
    leaks_nothing(|| {
        let (server, client) = devices().unwrap();
        for name in ["no_such_device0", "no_such_device0 1", "192.0.2.7", ""] {
            let error = Ia::open(name).unwrap_err();
            assert_eq!(error.code(), dat::NAME_NOT_REGISTERED, "{name:?}: {error}");
            let text = error.to_string();
            let word = name.split(' ').next().unwrap();
            assert!(text.contains(word) && text.contains(&server) && text.contains(&client), "{text}");
        }
        let error = Ia::open(&format!("{server} 77")).unwrap_err();
        assert_eq!(error.code(), dat::NAME_NOT_REGISTERED, "{error}");
        assert!(error.to_string().contains("77"), "{error}");
        assert_eq!(Ia::open_with(&server, 0, Default::default()).unwrap_err().code(), dat::INVALID_ARG2);
    });
}

/// A value over a limit of the device is refused as a parameter, and the error names the limit.
fn depth_and_segments_over_the_limits_are_refused() {
    leaks_nothing(|| {
        let side = Side::open(&devices().unwrap().0);
        let limits = side.ia.attributes();
        let (deepest, most) = (limits.max_recv_per_srq, limits.max_iov_segments_per_dto);
        let srq = |attr| Srq::create(&side.ia, &side.pz, attr).unwrap_err();
        for depth in [deepest + 1, Count::MAX, 0, -1] {
            let error = srq(SrqAttr::depth(depth));
            assert_eq!(error.code(), dat::INVALID_ARG3, "{error}");
            assert!(error.to_string().contains(&deepest.to_string()), "{error}");
        }
        for max_recv_iov in [most + 1, Count::MAX, 0, -1] {
            let error = srq(SrqAttr { max_recv_iov, ..SrqAttr::depth(4) });
            assert_eq!(error.code(), dat::INVALID_ARG3, "{error}");
            assert!(error.to_string().contains(&most.to_string()), "{error}");
        }
        let mut one = side.srq(4);
        let given = vec![side.lmr.triplet(0, 8); one.query().unwrap().max_recv_iov as usize + 1];
        assert_eq!(one.post_recv(&given, 0).unwrap_err().code(), dat::INVALID_ARG2);
        let ep = |attr: EpAttr| Ep::create(&side.ia, &side.pz, side.evds(), Some(&attr)).unwrap_err();
        let dtos = limits.max_dto_per_ep + 1;
        for attr in [
            EpAttr { max_recv_dtos: dtos, ..EpAttr::default() },
            EpAttr { max_request_dtos: dtos, ..EpAttr::default() },
            EpAttr { max_recv_iov: most + 1, ..EpAttr::default() },
            EpAttr { max_request_iov: most + 1, ..EpAttr::default() },
            EpAttr { max_request_iov: -1, ..EpAttr::default() },
        ] {
            let error = ep(attr);
            assert_eq!(error.code(), dat::INVALID_ARG6, "{error}");
        }
        for qlen in [limits.max_evd_qlen + 1, 0, -1] {
            assert_eq!(
                Evd::create(&side.ia, qlen, None, EvdFlags::DTO).unwrap_err().code(),
                dat::INVALID_ARG2
            );
        }
        assert_eq!(
            Lmr::create(&side.ia, &side.pz, 0, MemPriv::LOCAL_WRITE).unwrap_err().code(),
            dat::INVALID_ARG4
        );
    });
}

/// INSUFFICIENT_RESOURCES (SRQ) while every entry is posted or completed and not reaped.
fn full_srq_is_refused_until_a_completion_is_reaped() {
    leaks_nothing(|| {
        let rig = Rig::new();
        let mut srq = rig.server.srq(4);
        let depth = srq.query().unwrap().max_recv_dtos;
        rig.server.post(&mut srq, depth as usize, 64, 0, 0);
        let mut pair = rig.connect_srq(&srq);
        let buffer = [rig.server.lmr.triplet(0, 64)];
        assert_eq!(srq.post_recv(&buffer, 9).unwrap_err().code(), dat::RESOURCE_SRQ);
        rig.send(&mut pair, 0, 8);
        until("the message is complete", || counts(&srq) == (depth - 1, depth));
        assert_eq!(srq.post_recv(&buffer, 9).unwrap_err().code(), dat::RESOURCE_SRQ);
        dto(&rig.server.recv);
        srq.post_recv(&buffer, 9).unwrap();
        assert_eq!(srq.post_recv(&buffer, 9).unwrap_err().code(), dat::RESOURCE_SRQ);
        assert_eq!(counts(&srq), (depth, depth));
    });
}

/// A segment outside of its LMR, of another PZ, without the privilege, or of a freed LMR: each has
/// its own error, for posts to an SRQ, receives of an EP, and sends. Nothing of the post takes
/// place.
fn bad_buffers_are_refused_and_nothing_is_posted() {
    leaks_nothing(|| {
        let rig = Rig::new();
        let side = &rig.server;
        let mut srq =
            Srq::create(&side.ia, &side.pz, SrqAttr { max_recv_iov: 2, ..SrqAttr::depth(4) }).unwrap();
        let other = Pz::create(&side.ia).unwrap();
        let lmr = |pz, privileges| Lmr::create(&side.ia, pz, 4096, privileges).unwrap();
        let (good, foreign) = (lmr(&side.pz, all_privileges()), lmr(&other, all_privileges()));
        let read_only = lmr(&side.pz, MemPriv::LOCAL_READ);
        let gone = lmr(&side.pz, all_privileges());
        let stale = gone.triplet(0, 64);
        gone.free().unwrap();
        let mut before = good.triplet(0, 64);
        before.virtual_address -= 1;
        let mut wrapping = good.triplet(0, 64);
        wrapping.virtual_address = u64::MAX - 8;
        let mut pair = rig.connect_plain(&EpAttr::default());
        for (bad, receive, send) in [
            (good.triplet(4090, 64), dat::INVALID_ARG3, dat::INVALID_ARG3),
            (good.triplet(4096, 1), dat::INVALID_ARG3, dat::INVALID_ARG3),
            (before, dat::INVALID_ARG3, dat::INVALID_ARG3),
            (wrapping, dat::INVALID_ARG3, dat::INVALID_ARG3),
            (foreign.triplet(0, 64), dat::PROTECTION_WRITE, dat::PROTECTION_READ),
            (stale, dat::PRIVILEGES_WRITE, dat::PRIVILEGES_READ),
            (read_only.triplet(0, 64), dat::PRIVILEGES_WRITE, 0),
        ] {
            let iov = [good.triplet(0, 64), bad];
            assert_eq!(srq.post_recv(&iov, 1).unwrap_err().code(), receive, "{bad:x?}");
            assert_eq!(pair.server.post_recv(&iov, 1, NONE).unwrap_err().code(), receive, "{bad:x?}");
            let sent = pair.server.post_send(&iov, 1, NONE).map_err(PostError::code).err();
            assert_eq!(sent, (send != 0).then_some(send), "{bad:x?}");
            assert_eq!(counts(&srq), (0, 0));
            assert_eq!(pair.server.recv_query().unwrap().buffers, 0);
        }
        // The one valid send is acknowledged or not; it holds no resources.
        pair.client.disconnect(CloseFlags::Abrupt).unwrap();
    });
}

/// LOCAL_LENGTH at the receiver, an error at the sender, and the end of that connection. The other
/// EP of the SRQ keeps working.
fn message_longer_than_the_buffer_ends_that_connection_only() {
    leaks_nothing(|| {
        let rig = Rig::new();
        let mut srq = rig.server.srq(8);
        rig.server.post(&mut srq, 8, 64, 0, 0);
        let mut pair = rig.connect_srq(&srq);
        let mut other = rig.connect_srq(&srq);
        assert_ne!(rig.send(&mut pair, 0, 65).status, DtoStatus::Success);
        let failed = dto(&rig.server.recv);
        assert_eq!((failed.ep, failed.status), (pair.server.id(), DtoStatus::LocalLength));
        expect_end(&rig, &pair, ConnectionEventKind::Broken);
        assert_eq!(rig.deliver(&mut other, 64).ep, other.server.id());
        assert_eq!(counts(&srq), (6, 6));
    });
}

/// The connection broke at the client; the server reports BROKEN, or DISCONNECTED because of the
/// client's DREQ.
#[track_caller]
fn expect_end(rig: &Rig, pair: &Pair, at_server: ConnectionEventKind) {
    expect_connection(&rig.client.connect, &pair.client, ConnectionEventKind::Broken);
    expect_connection(&rig.server.connect, &pair.server, at_server);
    for ep in [&pair.server, &pair.client] {
        assert_eq!(ep.state(), EpState::Disconnected);
    }
}

/// RECEIVER_NOT_READY at the sender after its retries, and the end of that connection. The other EP
/// is served when a buffer is posted.
fn empty_srq_ends_the_connection_when_the_retries_are_over() {
    leaks_nothing(|| {
        let rig = Rig::new();
        let mut srq = rig.server.srq(4);
        let mut pair = rig.connect_srq(&srq);
        let mut other = rig.connect_srq(&srq);
        assert_eq!(rig.send(&mut pair, 0, 8).status, DtoStatus::ReceiverNotReady);
        expect_end(&rig, &pair, ConnectionEventKind::Disconnected);
        assert_eq!(counts(&srq), (0, 0));
        rig.server.post(&mut srq, 1, 64, 0, 3);
        let got = rig.deliver(&mut other, 8);
        assert_eq!((got.ep, got.cookie), (other.server.id(), 3));
    });
}

const LARGE: usize = 1 << 20;

/// The peer process: connects and sends messages of 1 MiB until it is killed.
fn send_for_ever() {
    let place = std::env::var(SERVER).unwrap();
    let (address, qual) = place.split_once(' ').unwrap();
    let side = Side::open(&devices().unwrap().1);
    let mut ep = side.ep(&EpAttr::default());
    let address: IpAddr = address.parse().unwrap();
    ep.connect(address, qual.parse().unwrap(), Some(LONG), &[], Qos::BestEffort).unwrap();
    expect_connection(&side.connect, &ep, ConnectionEventKind::Established);
    for _ in 0..8 {
        ep.post_send(&[side.lmr.triplet(0, LARGE)], 0, NONE).unwrap();
    }
    while dto(&side.request).is_success() {
        ep.post_send(&[side.lmr.triplet(0, LARGE)], 0, NONE).unwrap();
    }
}

/// A peer is killed in the middle of a message. Its endpoint gets the event of its end, the other
/// endpoints of the SRQ are served before and after, and every entry of the SRQ comes back, the
/// half-filled one as flushed at the latest.
fn killed_peer_ends_its_endpoint_only() {
    leaks_nothing(|| {
        const DEPTH: usize = 8;
        let rig = Rig::new();
        let server = &rig.server;
        let memory = Lmr::create(&server.ia, &server.pz, DEPTH * LARGE, MemPriv::LOCAL_WRITE).unwrap();
        let mut srq = server.srq(DEPTH as Count);
        let post = |srq: &mut Srq, i: u64| {
            srq.post_recv(&[memory.triplet(i as usize * LARGE, LARGE)], i).unwrap();
        };
        (0..DEPTH as u64).for_each(|i| post(&mut srq, i));
        let mut others: Vec<_> = (0..3).map(|_| rig.connect_srq(&srq)).collect();

        let doomed = server.srq_ep(&srq, &EpAttr::default());
        let (_psp, qual) = Psp::create_any(&server.ia, &server.cr).unwrap();
        let place = format!("{} {qual}", server.ia.address());
        let mut peer = Process(Process::start("sender", &place).spawn().unwrap());
        connection_request(&server.cr).cr.accept(&doomed, &[]).unwrap();
        expect_connection(&server.connect, &doomed, ConnectionEventKind::Established);
        // Some complete messages, while the other clients are served as well.
        let (mut large, mut small, mut sent) = (0, 0, 0);
        while large < 4 || small < 3 {
            if small < 3 && sent == small {
                sent += 1;
                let client = &mut others[small].client;
                client.post_send(&[rig.client.lmr.triplet(0, 16)], 0, NONE).unwrap();
            }
            let got = dto(&server.recv);
            assert!(got.is_success(), "{got:?}");
            if got.ep == doomed.id() {
                assert_eq!(got.length as usize, LARGE);
                large += 1;
            } else {
                assert!(dto(&rig.client.request).is_success());
                small += 1;
            }
            post(&mut srq, got.cookie);
        }
        peer.kill();

        // No more posts from here on: what was posted has to come back.
        let mut cookies = Vec::new();
        until("the endpoint ends", || {
            while let Ok(event) = server.recv.dequeue() {
                cookies.push(event.data.dto().unwrap().cookie);
            }
            doomed.state() == EpState::Disconnected
        });
        expect_connection(&server.connect, &doomed, ConnectionEventKind::Disconnected);
        until("it is drained", || doomed.recv_query().unwrap().buffers == 0);
        let mut served = 0;
        while counts(&srq).0 > 0 {
            let pair = &mut others[served % 3];
            assert_eq!(pair.server.state(), EpState::Connected);
            assert!(rig.send(pair, 0, 16).is_success());
            served += 1;
            while let Ok(event) = server.recv.dequeue() {
                let got = *event.data.dto().unwrap();
                assert!(got.is_success() || got.ep == doomed.id(), "{got:?}");
                cookies.push(got.cookie);
            }
        }
        until("everything is reaped", || {
            while let Ok(event) = server.recv.dequeue() {
                cookies.push(event.data.dto().unwrap().cookie);
            }
            counts(&srq) == (0, 0)
        });
        cookies.sort_unstable();
        assert_eq!(cookies, (0..DEPTH as u64).collect::<Vec<_>>());
        // And all of the SRQ can be used again.
        (0..DEPTH as u64).for_each(|i| post(&mut srq, i));
        assert_eq!(counts(&srq), (DEPTH as Count, DEPTH as Count));
        for pair in &mut others {
            assert_eq!(rig.deliver(pair, 16).ep, pair.server.id());
        }
    });
}

/// CONN_QUAL_IN_USE, with the qualifier in the message. The qualifier is free again when the first
/// PSP is gone.
fn psp_on_a_port_in_use_is_refused() {
    leaks_nothing(|| {
        let side = Side::open(&devices().unwrap().0);
        let (first, qual) = Psp::create_any(&side.ia, &side.cr).unwrap();
        let error = Psp::create(&side.ia, qual, &side.cr).unwrap_err();
        assert_eq!(error.return_type(), ReturnType::ConnQualInUse, "{error}");
        assert!(error.to_string().contains(&qual.to_string()), "{error}");
        first.free().unwrap();
        Psp::create(&side.ia, qual, &side.cr).unwrap();
        assert_eq!(Psp::create(&side.ia, 0, &side.cr).unwrap_err().code(), dat::INVALID_ARG2);
        let ep = side.ep(&EpAttr::default());
        assert_eq!(Rsp::create(&side.ia, 0, &ep, &side.cr).unwrap_err().code(), dat::INVALID_ARG2);
        assert_eq!(ep.state(), EpState::Unconnected);
    });
}

/// A host without a listener rejects, an address without a host is unreachable, a listener that
/// does not answer causes a timeout: one event each, and the EP is DISCONNECTED.
fn connecting_to_nobody_ends_in_an_event() {
    use ConnectionEventKind as K;
    leaks_nothing(|| {
        let rig = Rig::new();
        let (silent, silent_qual) = Psp::create_any(&rig.server.ia, &rig.server.cr).unwrap();
        let (freed, free_qual) = Psp::create_any(&rig.server.ia, &rig.server.cr).unwrap();
        freed.free().unwrap();
        let server = rig.server.ia.address();
        let nobody = "192.0.2.7".parse().unwrap();
        let time = Duration::from_secs(2);
        for (address, qual, kinds) in [
            (server, free_qual, &[K::NonPeerRejected][..]),
            // On a machine with a default route, nobody answers from that address.
            (nobody, free_qual, &[K::Unreachable, K::TimedOut]),
            (server, silent_qual, &[K::TimedOut]),
        ] {
            let mut ep = rig.client.ep(&EpAttr::default());
            ep.connect(address, qual, Some(time), &[], Qos::BestEffort).unwrap();
            let event = connection(&rig.client.connect);
            assert!(event.ep == ep.id() && kinds.contains(&event.kind), "{address} {qual}: {event:?}");
            assert_eq!(ep.state(), EpState::Disconnected);
            // The EP can try again.
            ep.reset().unwrap();
            assert_eq!(ep.state(), EpState::Unconnected);
        }
        expect_nothing(&rig.client.connect);
        drop(silent);
        let elsewhere = if server.is_ipv4() { "::1" } else { "127.0.0.1" };
        let ep = rig.client.ep(&EpAttr::default());
        match ep.connect(elsewhere.parse().unwrap(), free_qual, Some(time), &[], Qos::BestEffort) {
            Err(error) => assert_eq!(error.return_type(), ReturnType::InvalidAddress, "{error}"),
            Ok(()) => assert_eq!(connection(&rig.client.connect).kind, K::Unreachable),
        }
    });
}

/// A process with a small memlock limit. It prints the outcome of registering memory.
fn register_with_little_memlock() {
    use nix::sys::resource::{Resource, setrlimit};
    setrlimit(Resource::RLIMIT_MEMLOCK, 64 << 10, 64 << 10).unwrap();
    let ia = Ia::open(&devices().unwrap().0).unwrap();
    let pz = Pz::create(&ia).unwrap();
    match Lmr::create(&ia, &pz, LARGE, MemPriv::LOCAL_WRITE) {
        Ok(_) => println!("registered"),
        Err(error) => println!("{:#x} {error}", error.code()),
    }
}

/// A process that may lock little memory gets INSUFFICIENT_RESOURCES (MEMORY_REGION), and the
/// message says `ulimit -l`.
fn small_memlock_limit_is_named_with_the_cure() {
    leaks_nothing(|| {
        let mut command = Process::start("locked", "");
        if is_root() {
            // Root may lock any amount of memory. The child is root without that capability, so
            // that it can still reach its executable wherever that is.
            let program = command.get_program().to_owned();
            let mut limited = Command::new("setpriv");
            limited.args(["--bounding-set=-ipc_lock", "--inh-caps=-ipc_lock"]).arg(program);
            for (name, value) in command.get_envs() {
                limited.env(name, value.unwrap_or_default());
            }
            limited.stdin(Stdio::null());
            command = limited;
        }
        let output = command.output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{text}{errors}");
        let code = format!("{:#010x} ", dat::RESOURCE_MEMORY_REGION);
        assert!(text.starts_with(&code), "{text}{errors}");
        assert!(text.contains("ulimit -l") && text.contains("64 KiB"), "{text}");
    });
}

/// The network interface of the client's device, if the test may change it.
fn client_netdev() -> Option<String> {
    let (_, client) = devices()?;
    let netdev =
        std::fs::read_to_string(format!("/sys/class/infiniband/{client}/ports/1/gid_attrs/ndevs/0")).ok()?;
    let netdev = netdev.trim().to_owned();
    let kind = ip(&["-details", "link", "show", "dev", &netdev]).ok()?;
    (is_root() && kind.contains("veth")).then_some(netdev)
}

fn is_root() -> bool {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata("/proc/self").is_ok_and(|own| own.uid() == 0)
}

/// Runs ip(8) and returns its output.
fn ip(words: &[&str]) -> Result<String, String> {
    let output = Command::new("ip").args(words).output().map_err(|e| e.to_string())?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    if output.status.success() { Ok(text) } else { Err(String::from_utf8_lossy(&output.stderr).into_owned()) }
}

/// Restores a network interface: up, with its addresses and its unicast routes.
struct Network {
    netdev: String,
    addresses: Vec<String>,
    routes: Vec<String>,
}

impl Network {
    fn of(netdev: String) -> Self {
        let addresses = ip(&["-oneline", "address", "show", "dev", &netdev]).unwrap();
        let addresses = addresses.lines().filter_map(|line| line.split_whitespace().nth(3));
        let routes = ip(&["-4", "route", "show", "table", "all", "dev", &netdev]).unwrap();
        let made = |line: &&str| !line.starts_with("local ") && !line.starts_with("broadcast ");
        Self {
            addresses: addresses.map(str::to_owned).collect(),
            routes: routes.lines().filter(made).map(str::to_owned).collect(),
            netdev,
        }
    }

    fn restore(&self) {
        let netdev = self.netdev.as_str();
        ip(&["link", "set", netdev, "up"]).unwrap();
        for address in &self.addresses {
            ip(&["address", "replace", address, "dev", netdev]).unwrap();
        }
        for route in &self.routes {
            let mut words = vec!["route", "replace"];
            words.extend(route.split_whitespace().filter(|word| *word != "linkdown"));
            words.extend(["dev", netdev]);
            ip(&words).unwrap();
        }
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        self.restore();
        // The next test needs both devices working.
        let (server, client) = devices().unwrap();
        until("both ports are active again", || Ia::open(&server).is_ok() && Ia::open(&client).is_ok());
    }
}

/// A port whose interface has no address: INVALID_STATE, and the message tells to give it one.
fn port_without_address_is_refused_with_the_cure() {
    leaks_nothing(|| {
        let (_, client) = devices().unwrap();
        let network = Network::of(client_netdev().unwrap());
        ip(&["address", "flush", "dev", &network.netdev]).unwrap();
        let mut last = None;
        until("the address is gone from the port, too", || {
            last = Ia::open(&client).err();
            last.is_some()
        });
        let error = last.unwrap();
        assert_eq!(error.return_type(), ReturnType::InvalidState, "{error}");
        assert!(error.to_string().contains("IP address"), "{error}");
        drop(network);
        assert_served(&Rig::new());
    });
}

/// Sends a message and receives it.
fn assert_served(rig: &Rig) {
    let mut srq = rig.server.srq(1);
    rig.server.post(&mut srq, 1, 64, 0, 0);
    let mut pair = rig.connect_srq(&srq);
    assert!(rig.deliver(&mut pair, 8).is_success());
}

/// A port goes down: IAs that are open get an event, and opening an IA gives INVALID_STATE with the
/// remedy. Afterwards everything works again.
fn port_going_down_is_told_and_survived() {
    leaks_nothing(|| {
        let (_, client) = devices().unwrap();
        let rig = Rig::new();
        let network = Network::of(client_netdev().unwrap());
        ip(&["link", "set", &network.netdev, "down"]).unwrap();
        let event = next(rig.client.ia.async_evd());
        let EventData::Async(event) = event.data else { panic!("{event:?}") };
        assert_eq!((event.kind, event.object), (AsyncKind::Notice, AsyncObject::Ia));
        assert_eq!(event.reason, reason::IA_OTHER);
        let error = Ia::open(&client).unwrap_err();
        assert_eq!(error.return_type(), ReturnType::InvalidState, "{error}");
        assert!(error.to_string().contains("bring the link up"), "{error}");
        drop(network);
        assert_served(&rig);
    });
}
