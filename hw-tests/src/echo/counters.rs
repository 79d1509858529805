//! How often a device has reported receiver not ready (RNR).

use std::path::PathBuf;

/// RNR NAKs sent, RNR NAKs received; drivers have different names for them.
const NAMES: [[&str; 3]; 2] = [
    ["send_rnr_err", "sent_rnr_err", "out_of_buffer"],
    ["rcvd_rnr_err", "rnr_nak_retry_err", "rnr_naks_received"],
];

/// The RNR counters of one port, and where they stood.
#[derive(Debug)]
pub(super) struct RnrCounter {
    files: Vec<PathBuf>,
    start: u64,
}

impl RnrCounter {
    /// Counts from now on. `device` is the name that was opened: with a port, or without for port
    /// 1.
    pub(super) fn new(device: &str, adapter: &str) -> Self {
        let port = device.split_whitespace().nth(1).and_then(|port| port.parse::<u8>().ok()).unwrap_or(1);
        let folder = format!("/sys/class/infiniband/{adapter}/ports/{port}/hw_counters");
        let file = |names: [&str; 3]| {
            names.iter().map(|name| PathBuf::from(format!("{folder}/{name}"))).find(|file| file.exists())
        };
        let mut counter = Self { files: NAMES.into_iter().filter_map(file).collect(), start: 0 };
        counter.start = counter.sum().unwrap_or(0);
        counter
    }

    /// Events since the beginning; `None` where the device does not count them.
    pub(super) fn events(&self) -> Option<u64> {
        Some(self.sum()?.saturating_sub(self.start))
    }

    fn sum(&self) -> Option<u64> {
        let read = |file: &PathBuf| std::fs::read_to_string(file).ok()?.trim().parse::<u64>().ok();
        (!self.files.is_empty()).then(|| self.files.iter().filter_map(read).sum())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_without_counters_has_no_number() {
        assert_eq!(RnrCounter::new("no such device", "no such device").events(), None);
    }
}
