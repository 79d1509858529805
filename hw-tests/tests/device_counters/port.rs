//! Counters of ports.

use crate::*;
use doorbell::{DtoStatus, Ia, IaCounter as I, PortCounters};
use doorbell_hw_tests::{Rig, Test, devices, tests};
use std::path::{Path, PathBuf};

pub(crate) const TESTS: &[Test] =
    tests![the_port_counts_from_the_start_to_the_stop, retries_of_the_device_are_seen,];

/// The device's folder in sysfs.
fn sysfs(device: &str) -> PathBuf {
    let name = device.split(' ').next().expect("a word");
    rxe_fallback::Context::open(name).unwrap().sysfs_path()
}

fn put(folder: &Path, file: &str, value: u64) {
    let path = folder.join(file);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, format!("{value}\n")).unwrap();
}

/// On the software device, whose sysfs folder is an ordinary folder; the test cannot set the
/// numbers of another device.
fn the_port_counts_from_the_start_to_the_stop() {
    let device = devices().unwrap().0;
    let ia = Ia::open(&device).unwrap();
    PortCounters::ALL.iter().for_each(|&group| ia.stop_counters(group).unwrap());
    ia_is(&ia, &[]);
    let folder = sysfs(&device);
    if folder.starts_with("/sys") {
        PortCounters::ALL.iter().for_each(|&group| ia.start_counters(group).unwrap());
        PortCounters::ALL.iter().for_each(|&group| ia.stop_counters(group).unwrap());
        return;
    }
    let (wait, errors) = ("ports/1/counters/port_xmit_wait", "ports/1/counters/port_rcv_errors");
    put(&folder, wait, 1000);
    put(&folder, "ports/1/cm_tx_retries/req", 5);
    ia.start_counters(PortCounters::Link).unwrap();
    ia_is(&ia, &[]);
    put(&folder, wait, 1010);
    put(&folder, errors, 2);
    put(&folder, "ports/1/cm_tx_retries/req", 6);
    ia_is(&ia, &[(I::LnkWarnXmtWait, 10), (I::LnkErrRcv, 2)]);
    ia.start_counters(PortCounters::Cm).unwrap();
    ia.take_counters(&[I::LnkWarnXmtWait]).unwrap();
    put(&folder, wait, 1013);
    put(&folder, "ports/1/cm_tx_retries/req", 9);
    ia_is(&ia, &[(I::LnkWarnXmtWait, 3), (I::LnkErrRcv, 2), (I::CmErrReqRetry, 3)]);
    ia.stop_counters(PortCounters::Link).unwrap();
    put(&folder, wait, 2000);
    ia_is(&ia, &[(I::LnkWarnXmtWait, 3), (I::LnkErrRcv, 2), (I::CmErrReqRetry, 3)]);
    ia.start_counters(PortCounters::Link).unwrap();
    put(&folder, wait, 2001);
    ia_is(&ia, &[(I::LnkWarnXmtWait, 1), (I::CmErrReqRetry, 3)]);
    for file in [wait, errors, "ports/1/cm_tx_retries/req"] {
        std::fs::remove_file(folder.join(file)).unwrap();
    }
}

/// A sender that gives up on a peer without receives, as counted by the device, if the device
/// counts it.
fn retries_of_the_device_are_seen() {
    let rig = Rig::new();
    let device = devices().unwrap().1;
    let folder = sysfs(&device).join("ports/1/hw_counters");
    let counted = ["retry_rnr_exceeded_err", "req_rnr_retries_exceeded", "sq_num_rree"]
        .iter()
        .any(|name| folder.join(name).exists());
    let srq = rig.server.srq(4);
    let mut pair = rig.connect_srq(&srq);
    let ia = &rig.client.ia;
    ia.start_counters(PortCounters::Diag).unwrap();
    let before = ia.counters().unwrap()[I::DiagErrSqRree];
    assert_eq!(rig.send(&mut pair, 0, 8).status, DtoStatus::ReceiverNotReady);
    let after = ia.counters().unwrap()[I::DiagErrSqRree];
    // Other tests may use the device, too.
    assert_eq!(after > before, counted, "{before}, then {after}");
}
