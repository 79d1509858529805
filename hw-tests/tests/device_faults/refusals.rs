//! Bad input: devices, limits, buffers, ports and addresses.

use crate::network::is_root;
use crate::*;
use doorbell::{
    ConnectOptions, ConnectionEventKind, Ep, EpAttr, EpState, Evd, EvdFlags, Ia, Lmr, MemPriv, Psp, Pz,
    ReturnType, Rsp, Srq,
};
use doorbell_hw_tests::rig::*;
use doorbell_hw_tests::{Rig, Side, Test, dat, devices, tests};
use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::time::Duration;

pub(crate) const TESTS: &[Test] = tests![
    unknown_device_is_refused_with_those_found,
    depth_and_segments_over_the_limits_are_refused,
    psp_on_a_port_in_use_is_refused,
    connecting_to_nobody_ends_in_an_event,
    small_memlock_limit_is_named_with_the_cure,
];

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
        assert_eq!(Ia::builder(&server).async_depth(0).open().unwrap_err().code(), dat::INVALID_ARG2);
    });
}

/// A value over a limit of the device is refused as a parameter, and the error names the limit.
fn depth_and_segments_over_the_limits_are_refused() {
    leaks_nothing(|| {
        let side = Side::open(&devices().unwrap().0);
        let limits = side.ia.attributes();
        let (deepest, most) = (limits.max_srq_depth, limits.max_segments);
        let srq = Srq::builder(&side.ia, &side.pz).depth(4);
        for depth in [deepest + 1, u32::MAX, 0] {
            let error = srq.depth(depth).build().unwrap_err();
            assert_eq!(error.code(), dat::INVALID_ARG3, "{error}");
            assert!(error.to_string().contains(&deepest.to_string()), "{error}");
        }
        for segments in [most + 1, u32::MAX, 0] {
            let error = srq.segments(segments).build().unwrap_err();
            assert_eq!(error.code(), dat::INVALID_ARG3, "{error}");
            assert!(error.to_string().contains(&most.to_string()), "{error}");
        }
        let mut one = side.srq(4);
        let given = vec![side.lmr.triplet(0, 8); one.query().unwrap().segments as usize + 1];
        assert_eq!(one.post_recv(&given, 0).unwrap_err().code(), dat::INVALID_ARG2);
        let ep = |attr: EpAttr| {
            Ep::builder(&side.ia, &side.pz).evds(side.evds()).attributes(&attr).build().unwrap_err()
        };
        let dtos = limits.max_ep_depth + 1;
        for attr in [
            EpAttr { recv_depth: dtos, ..EpAttr::default() },
            EpAttr { request_depth: dtos, ..EpAttr::default() },
            EpAttr { recv_segments: most + 1, ..EpAttr::default() },
            EpAttr { request_segments: most + 1, ..EpAttr::default() },
            EpAttr { request_segments: u32::MAX, ..EpAttr::default() },
        ] {
            let error = ep(attr);
            assert_eq!(error.code(), dat::INVALID_ARG6, "{error}");
        }
        for depth in [limits.max_evd_depth + 1, 0] {
            assert_eq!(Evd::new(&side.ia, depth, EvdFlags::DTO).unwrap_err().code(), dat::INVALID_ARG2);
        }
        assert_eq!(
            Lmr::builder(&side.ia, &side.pz).privileges(MemPriv::LOCAL_WRITE).allocate(0).unwrap_err().code(),
            dat::INVALID_ARG4
        );
    });
}

/// CONN_QUAL_IN_USE, with the port in the message. The port is free again when the first
/// PSP is gone.
fn psp_on_a_port_in_use_is_refused() {
    leaks_nothing(|| {
        let side = Side::open(&devices().unwrap().0);
        let first = Psp::builder(&side.ia, &side.cr).build().unwrap();
        let port = first.port();
        let error = Psp::builder(&side.ia, &side.cr).port(port).build().unwrap_err();
        assert_eq!(error.return_type(), ReturnType::ConnQualInUse, "{error}");
        assert!(error.to_string().contains(&port.to_string()), "{error}");
        first.close().unwrap();
        Psp::builder(&side.ia, &side.cr).port(port).build().unwrap();
        let ep = side.ep(&EpAttr::default());
        let listening = Psp::builder(&side.ia, &side.cr).build().unwrap();
        let error = Rsp::new(&side.ia, listening.port(), &ep, &side.cr).unwrap_err();
        assert_eq!(error.return_type(), ReturnType::ConnQualInUse, "{error}");
        assert_eq!(ep.state(), EpState::Unconnected);
    });
}

/// A host without a listener rejects, an address without a host is unreachable, a listener that
/// does not answer causes a timeout: one event each, and the EP is DISCONNECTED.
fn connecting_to_nobody_ends_in_an_event() {
    use ConnectionEventKind as K;
    leaks_nothing(|| {
        let rig = Rig::new();
        let silent = Psp::builder(&rig.server.ia, &rig.server.cr).build().unwrap();
        let silent_port = silent.port();
        let freed = Psp::builder(&rig.server.ia, &rig.server.cr).build().unwrap();
        let free_port = freed.port();
        freed.close().unwrap();
        let server = rig.server.ia.address();
        let nobody = "192.0.2.7".parse().unwrap();
        for (address, port, time, kinds) in [
            (server, free_port, LONG, &[K::NonPeerRejected][..]),
            // On a machine with a default route, nobody answers from that address.
            (nobody, free_port, Duration::from_secs(2), &[K::Unreachable, K::TimedOut]),
            // The provider itself gives up when nobody has answered for some seconds.
            (nobody, free_port, LONG, &[K::Unreachable]),
            (server, silent_port, Duration::from_secs(2), &[K::TimedOut]),
        ] {
            let mut ep = rig.client.ep(&EpAttr::default());
            ep.connect_with((address, port).into(), ConnectOptions::new().timeout(time)).unwrap();
            let event = connection(&rig.client.connect);
            assert!(event.ep == ep.id() && kinds.contains(&event.kind), "{address} {port}: {event:?}");
            assert_eq!(ep.state(), EpState::Disconnected);
            // The EP can try again.
            ep.reset().unwrap();
            assert_eq!(ep.state(), EpState::Unconnected);
        }
        expect_nothing(&rig.client.connect);
        drop(silent);
        let elsewhere = if server.is_ipv4() { "::1" } else { "127.0.0.1" };
        let ep = rig.client.ep(&EpAttr::default());
        let elsewhere = SocketAddr::new(elsewhere.parse().unwrap(), free_port);
        match ep.connect_with(elsewhere, ConnectOptions::new().timeout(LONG)) {
            Err(error) => assert_eq!(error.return_type(), ReturnType::InvalidAddress, "{error}"),
            Ok(()) => assert_eq!(connection(&rig.client.connect).kind, K::Unreachable),
        }
    });
}

/// A process with a small memlock limit. It prints the outcome of registering memory.
pub(crate) fn register_with_little_memlock() {
    use nix::sys::resource::{Resource, setrlimit};
    setrlimit(Resource::RLIMIT_MEMLOCK, 64 << 10, 64 << 10).unwrap();
    let ia = Ia::open(&devices().unwrap().0).unwrap();
    let pz = Pz::new(&ia).unwrap();
    match Lmr::builder(&ia, &pz).privileges(MemPriv::LOCAL_WRITE).allocate(LARGE) {
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
