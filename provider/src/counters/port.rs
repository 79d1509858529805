//! Counters of the port and the device, from sysfs. The kernel counts for all processes; a counter
//! reports the difference since it was started.
//!
//! Names differ between drivers, and no device has all counters. If none of a counter's files
//! exists, the counter stays 0.

use super::IaCounter;
use std::path::{Path, PathBuf};

/// Groups of counters that are started and stopped (`DAT_IA_COUNTER_TYPE`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(usize)]
pub enum PortCounters {
    /// The kernel's connection manager on this port: retries, duplicates, "wait" messages.
    Cm,
    /// The port's link: `IaCounter::Lnk...`.
    Link,
    /// The device's diagnosis: `IaCounter::Diag...`.
    Diag,
}

impl PortCounters {
    /// All groups, in the order of the headers.
    pub const ALL: [Self; 3] = [Self::Cm, Self::Link, Self::Diag];

    /// The counters of this group.
    pub fn counters(self) -> impl Iterator<Item = IaCounter> {
        self.files().iter().map(|(counter, _)| *counter)
    }

    /// The sysfs files of each counter, by driver.
    fn files(self) -> &'static [(IaCounter, &'static [&'static str])] {
        match self {
            Self::Cm => CM,
            Self::Link => LINK,
            Self::Diag => DIAG,
        }
    }

    /// The folders that can hold the files of this group.
    fn folders(self, device: &Path, port: u8) -> Vec<PathBuf> {
        let of_port = device.join("ports").join(port.to_string());
        match self {
            Self::Cm => {
                // Before Linux 5.14 these counters had their own device class.
                let class = device.parent().and_then(Path::parent).zip(device.file_name());
                let old =
                    class.map(|(class, name)| class.join("infiniband_cm").join(name).join(port.to_string()));
                std::iter::once(of_port).chain(old).collect()
            }
            Self::Link => vec![of_port.join("counters")],
            Self::Diag => {
                vec![of_port.join("hw_counters"), device.join("hw_counters"), device.join("diag_counters")]
            }
        }
    }

    /// The present values of the counters of this group.
    fn look(self, device: &Path, port: u8) -> Vec<u64> {
        let folders = self.folders(device, port);
        let number = |path: PathBuf| std::fs::read_to_string(path).ok()?.trim().parse().ok();
        let value = |names: &[&str]| {
            let mut paths = names.iter().flat_map(|name| folders.iter().map(move |folder| folder.join(name)));
            paths.find_map(number)
        };
        self.files().iter().map(|(_, names)| value(names).unwrap_or(0)).collect()
    }
}

/// References: drivers/infiniband/core/cm.c.
const CM: &[(IaCounter, &[&str])] = &[
    (IaCounter::CmMraTx, &["cm_tx_msgs/mra"]),
    (IaCounter::CmMraRx, &["cm_rx_msgs/mra"]),
    (IaCounter::CmErrReqDup, &["cm_rx_duplicates/req"]),
    (IaCounter::CmErrReqRetry, &["cm_tx_retries/req"]),
    (IaCounter::CmErrRepDup, &["cm_rx_duplicates/rep"]),
    (IaCounter::CmErrRepRetry, &["cm_tx_retries/rep"]),
    (IaCounter::CmErrRtuDup, &["cm_rx_duplicates/rtu"]),
    (IaCounter::CmErrRtuRetry, &["cm_tx_retries/rtu"]),
    (IaCounter::CmErrDreqDup, &["cm_rx_duplicates/dreq"]),
    (IaCounter::CmErrDreqRetry, &["cm_tx_retries/dreq"]),
    (IaCounter::CmErrDrepDup, &["cm_rx_duplicates/drep"]),
    (IaCounter::CmErrDrepRetry, &["cm_tx_retries/drep"]),
    (IaCounter::CmErrMraDup, &["cm_rx_duplicates/mra"]),
    (IaCounter::CmErrMraRetry, &["cm_tx_retries/mra"]),
];

/// References: Documentation/ABI/stable/sysfs-class-infiniband.
const LINK: &[(IaCounter, &[&str])] = &[
    (IaCounter::LnkErrRcv, &["port_rcv_errors"]),
    (IaCounter::LnkErrRcvRemPhys, &["port_rcv_remote_physical_errors"]),
    (IaCounter::LnkErrRcvConstraint, &["port_rcv_constraint_errors"]),
    (IaCounter::LnkErrXmtDiscards, &["port_xmit_discards"]),
    (IaCounter::LnkErrXmtConstraint, &["port_xmit_constraint_errors"]),
    (IaCounter::LnkErrIntegrity, &["local_link_integrity_errors"]),
    (IaCounter::LnkErrExcBufOverrun, &["excessive_buffer_overrun_errors"]),
    (IaCounter::LnkWarnRcvSwRelay, &["port_rcv_switch_relay_errors"]),
    (IaCounter::LnkWarnXmtWait, &["port_xmit_wait"]),
];

/// Names of mlx4, mlx5 and rxe. References: drivers/infiniband/hw/mlx4/main.c, hw/mlx5/counters.c,
/// sw/rxe/rxe_hw_counters.c.
const DIAG: &[(IaCounter, &[&str])] = &[
    (IaCounter::DiagErrRqRae, &["rq_num_rae", "resp_remote_access_errors"]),
    (IaCounter::DiagErrRqOos, &["rq_num_oos", "out_of_sequence", "out_of_seq_request"]),
    (IaCounter::DiagErrRqRire, &["rq_num_rire"]),
    (IaCounter::DiagErrRqUdsdprd, &["rq_num_udsdprd"]),
    (IaCounter::DiagErrSqRae, &["sq_num_rae", "req_remote_access_errors"]),
    (IaCounter::DiagErrSqOos, &["sq_num_oos", "packet_seq_err", "rcvd_seq_err"]),
    (IaCounter::DiagErrSqRire, &["sq_num_rire", "req_remote_invalid_request"]),
    (IaCounter::DiagErrSqRree, &["sq_num_rree", "req_rnr_retries_exceeded", "retry_rnr_exceeded_err"]),
    (IaCounter::DiagErrSqTree, &["sq_num_tree", "req_transport_retries_exceeded", "retry_exceeded_err"]),
];

/// The groups of one port.
#[derive(Debug)]
pub(super) struct Samples {
    device: PathBuf,
    port: u8,
    groups: [Sample; PortCounters::ALL.len()],
}

#[derive(Debug, Default)]
enum Sample {
    #[default]
    Never,
    /// Running: counting from these start values.
    Since(Vec<u64>),
    /// Stopped with these values.
    Stopped(Vec<u64>),
}

impl Samples {
    /// `device` is the device's folder in sysfs.
    pub(super) fn new(device: PathBuf, port: u8) -> Self {
        Self { device, port, groups: Default::default() }
    }

    pub(super) fn start(&mut self, group: PortCounters) {
        self.groups[group as usize] = Sample::Since(group.look(&self.device, self.port));
    }

    pub(super) fn stop(&mut self, group: PortCounters) {
        if let Sample::Since(_) = self.groups[group as usize] {
            self.groups[group as usize] = Sample::Stopped(self.values(group));
        }
    }

    /// The value of each counter that was ever started.
    pub(super) fn read(&self) -> Vec<(IaCounter, u64)> {
        PortCounters::ALL.iter().flat_map(|&group| group.counters().zip(self.values(group))).collect()
    }

    fn values(&self, group: PortCounters) -> Vec<u64> {
        match &self.groups[group as usize] {
            Sample::Never => Vec::new(),
            Sample::Stopped(values) => values.clone(),
            Sample::Since(start) => {
                let now = group.look(&self.device, self.port);
                // Another process may have reset the counters.
                now.iter().zip(start).map(|(now, start)| now.saturating_sub(*start)).collect()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A device's folder, deleted when the value is dropped.
    struct Device(PathBuf);

    impl Device {
        fn new(name: &str) -> Self {
            let root = std::env::temp_dir().join(format!("doorbell-{name}-{}", std::process::id()));
            Self(root.join("infiniband").join("dev0"))
        }

        fn put(&self, file: &str, value: &str) {
            let path = self.0.join(file);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, format!("{value}\n")).unwrap();
        }

        fn samples(&self) -> Samples {
            Samples::new(self.0.clone(), 2)
        }
    }

    impl Drop for Device {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(self.0.parent().unwrap().parent().unwrap());
        }
    }

    fn value(samples: &Samples, counter: IaCounter) -> u64 {
        samples.read().into_iter().find(|(c, _)| *c == counter).map_or(0, |(_, n)| n)
    }

    #[test]
    fn counts_from_the_start_until_the_stop() {
        let device = Device::new("since");
        device.put("ports/2/counters/port_rcv_errors", "1000");
        device.put("ports/1/counters/port_rcv_errors", "7");
        let mut samples = device.samples();
        assert_eq!(samples.read(), []);
        samples.stop(PortCounters::Link);
        assert_eq!(samples.read(), []);
        samples.start(PortCounters::Link);
        assert_eq!(value(&samples, IaCounter::LnkErrRcv), 0);
        device.put("ports/2/counters/port_rcv_errors", "18446744073709551615");
        assert_eq!(value(&samples, IaCounter::LnkErrRcv), u64::MAX - 1000);
        device.put("ports/2/counters/port_rcv_errors", "1005");
        samples.stop(PortCounters::Link);
        device.put("ports/2/counters/port_rcv_errors", "1100");
        assert_eq!(value(&samples, IaCounter::LnkErrRcv), 5);
        samples.start(PortCounters::Link);
        device.put("ports/2/counters/port_rcv_errors", "3");
        assert_eq!(value(&samples, IaCounter::LnkErrRcv), 0);
        assert_eq!(samples.read().len(), LINK.len());
    }

    #[test]
    fn each_driver_has_its_names_and_each_kernel_its_place() {
        let device = Device::new("names");
        let mut samples = device.samples();
        PortCounters::ALL.into_iter().for_each(|group| samples.start(group));
        for (file, counter) in [
            ("diag_counters/rq_num_rae", IaCounter::DiagErrRqRae),
            ("hw_counters/sq_num_rire", IaCounter::DiagErrSqRire),
            ("ports/2/hw_counters/packet_seq_err", IaCounter::DiagErrSqOos),
            ("ports/2/hw_counters/out_of_seq_request", IaCounter::DiagErrRqOos),
            ("ports/2/cm_tx_retries/req", IaCounter::CmErrReqRetry),
            ("../../infiniband_cm/dev0/2/cm_rx_duplicates/dreq", IaCounter::CmErrDreqDup),
        ] {
            device.put(file, "12");
            assert_eq!(value(&samples, counter), 12, "{file}");
        }
        device.put("ports/2/hw_counters/retry_exceeded_err", "none");
        assert_eq!(value(&samples, IaCounter::DiagErrSqTree), 0);
    }

    #[test]
    fn no_counter_is_in_two_groups() {
        let mut all: Vec<_> = PortCounters::ALL.iter().flat_map(|group| group.counters()).collect();
        all.sort_by_key(|&counter| counter as usize);
        let count = all.len();
        all.dedup();
        assert_eq!((all.len(), count), (32, 32));
    }
}
