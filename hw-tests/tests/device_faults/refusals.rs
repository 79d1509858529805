//! Bad input: devices, limits, buffers, ports and addresses.

use crate::network::is_root;
use crate::*;
use doorbell::{
    ConnectionEventKind, Count, Ep, EpAttr, EpState, Evd, EvdFlags, Ia, Lmr, MemPriv, Psp, Pz, Qos,
    ReturnType, Rsp, Srq, SrqAttr,
};
use doorbell_hw_tests::rig::*;
use doorbell_hw_tests::{Rig, Side, Test, dat, devices, tests};
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
        for (address, qual, time, kinds) in [
            (server, free_qual, LONG, &[K::NonPeerRejected][..]),
            // On a machine with a default route, nobody answers from that address.
            (nobody, free_qual, Duration::from_secs(2), &[K::Unreachable, K::TimedOut]),
            // The provider itself gives up when nobody has answered for some seconds.
            (nobody, free_qual, LONG, &[K::Unreachable]),
            (server, silent_qual, Duration::from_secs(2), &[K::TimedOut]),
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
        match ep.connect(elsewhere.parse().unwrap(), free_qual, Some(LONG), &[], Qos::BestEffort) {
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
