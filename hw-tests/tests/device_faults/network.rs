//! A network interface without an address, and one that goes down.

use crate::*;
use doorbell::{AsyncKind, AsyncObject, Event, Ia, ReturnType, reason};
use doorbell_hw_tests::rig::*;
use doorbell_hw_tests::{Rig, Test, devices, tests};
use std::process::Command;

pub(crate) const TESTS: &[Test] =
    tests![port_without_address_is_refused_with_the_cure, port_going_down_is_told_and_survived,];

/// The network interface of the client's device, if the test may change it.
pub(crate) fn client_netdev() -> Option<String> {
    let (_, client) = devices()?;
    let netdev =
        std::fs::read_to_string(format!("/sys/class/infiniband/{client}/ports/1/gid_attrs/ndevs/0")).ok()?;
    let netdev = netdev.trim().to_owned();
    let kind = ip(&["-details", "link", "show", "dev", &netdev]).ok()?;
    (is_root() && kind.contains("veth")).then_some(netdev)
}

pub(crate) fn is_root() -> bool {
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
        let Event::Async(event) = event else { panic!("{event:?}") };
        assert_eq!((event.kind, event.object), (AsyncKind::Notice, AsyncObject::Ia));
        assert_eq!(event.reason, reason::IA_OTHER);
        let error = Ia::open(&client).unwrap_err();
        assert_eq!(error.return_type(), ReturnType::InvalidState, "{error}");
        assert!(error.to_string().contains("bring the link up"), "{error}");
        drop(network);
        assert_served(&rig);
    });
}
