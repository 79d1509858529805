//! Finding and opening devices.

use std::process::Command;

use libtest_mimic::Failed;
use rxe_fallback::{Context, Gid, GidKind, LinkLayer, Selector, Transport, devices};

use crate::support::{Ends, TestResult, ensure, is_root, same};
use crate::{Suite, suite};

pub(crate) fn suite(names: &[String]) -> Suite {
    let mut suite = suite![
        devices_are_listed,
        unknown_device_is_refused_with_the_list_of_devices,
        unknown_interface_and_address_are_refused_with_a_list,
        device_opens_by_name_port_interface_and_address,
        port_that_does_not_exist_is_refused,
        attributes_are_plausible,
        gid_of_the_address_is_found,
        no_asynchronous_event_means_none_and_not_a_wait,
    ];
    let obstacle =
        (!can_add_devices(names)).then_some("cannot add an rxe device here: needs root, ip and rdma");
    suite.0.push(("port_that_is_down_is_refused", port_that_is_down_is_refused, obstacle));
    suite
}

fn devices_are_listed(ends: &Ends) -> TestResult {
    let list = devices()?;
    let info =
        list.iter().find(|d| d.name == ends.a.context.name()).ok_or("the device is not in the list")?;
    same("GUID", info.guid, ends.a.context.attributes().node_guid)?;
    same("transport", info.transport, Transport::Ib)
}

fn unknown_device_is_refused_with_the_list_of_devices(ends: &Ends) -> TestResult {
    for error in [
        Context::open("nosuch0").err().ok_or("opened")?,
        Context::open_selected(&"nosuch0".parse()?).err().ok_or("opened")?,
    ] {
        let text = error.to_string();
        same("errno", error.errno(), libc::ENODEV)?;
        ensure(text.contains("nosuch0") && text.contains(ends.a.context.name()), || text.clone())?;
    }
    Ok(())
}

fn unknown_interface_and_address_are_refused_with_a_list(ends: &Ends) -> TestResult {
    for selector in [Selector::Interface("nosuch9".into()), Selector::Address("192.0.2.77".parse()?)] {
        let error = Context::open_selected(&selector).err().ok_or("opened")?;
        let text = error.to_string();
        same("errno", error.errno(), libc::ENODEV)?;
        ensure(text.contains(&selector.to_string()) && text.contains(ends.a.context.name()), || {
            text.clone()
        })?;
    }
    Ok(())
}

fn device_opens_by_name_port_interface_and_address(ends: &Ends) -> TestResult {
    let (name, port) = (ends.a.context.name(), ends.a.port);
    let netdev = ends.a.context.netdev(port).ok_or("no network interface")?;
    let texts =
        [name.to_owned(), format!("{name} {port}"), format!("{name}:{port}"), netdev, ends.a.ip.to_string()];
    for text in texts {
        let (context, found, ip) = Context::open_selected(&text.parse()?)?;
        same(&text, (context.name(), found, ip), (name, port, Some(ends.a.ip)))?;
    }
    Ok(())
}

fn port_that_does_not_exist_is_refused(ends: &Ends) -> TestResult {
    let name = ends.a.context.name();
    let error = Context::open_selected(&format!("{name} 9").parse()?).err().ok_or("opened")?;
    same("errno", error.errno(), libc::EINVAL)?;
    ensure(error.to_string().contains("ports 1 to"), || error.to_string())?;
    same("port 0", ends.a.context.port(0).map_err(|e| e.errno()), Err(libc::EINVAL))
}

fn attributes_are_plausible(ends: &Ends) -> TestResult {
    let context = &ends.a.context;
    let attr = context.attributes();
    ensure(attr.max_srq > 0 && attr.max_srq_wr >= 64 && attr.max_srq_sge >= 1, || format!("{attr:?}"))?;
    ensure(attr.max_qp > 0 && attr.max_qp_wr >= 64 && attr.max_cqe >= 64 && attr.max_mr > 0, || {
        format!("{attr:?}")
    })?;
    ensure(attr.node_guid != 0 && attr.phys_port_cnt >= 1, || format!("{attr:?}"))?;
    let port = context.port(ends.a.port)?;
    ensure(port.is_active() && port.active_mtu >= 256 && port.active_mtu <= port.max_mtu, || {
        format!("{port:?}")
    })?;
    same("link layer", port.link_layer, LinkLayer::Ethernet)?;
    if context.name().starts_with("rxe") {
        same("driver", context.driver(), "rdma_rxe")?;
        ensure(attr.srq_resize, || "rxe resizes SRQs".to_owned())?;
    }
    Ok(())
}

fn gid_of_the_address_is_found(ends: &Ends) -> TestResult {
    let gids = ends.a.context.gids(ends.a.port)?;
    let entry = gids.iter().find(|e| e.index == u32::from(ends.a.gid_index)).ok_or("no such index")?;
    same("GID", entry.gid, Gid::from_ip(ends.a.ip))?;
    same("kind", entry.kind, GidKind::RoceV2)?;
    same("address", entry.ip, Some(ends.a.ip))?;
    same("absent", ends.a.context.find_gid(ends.a.port, "192.0.2.77".parse()?)?, None)
}

fn no_asynchronous_event_means_none_and_not_a_wait(ends: &Ends) -> TestResult {
    let context = Context::open(ends.a.context.name())?;
    same("event", context.next_async_event()?, None)
}

fn can_add_devices(names: &[String]) -> bool {
    let runs = |program: &str| Command::new(program).arg("help").output().is_ok();
    is_root() && names.first().is_some_and(|name| name.starts_with("rxe")) && runs("ip") && runs("rdma")
}

fn run(line: &str) -> TestResult {
    let words: Vec<&str> = line.split(' ').collect();
    let output = Command::new(words[0]).args(&words[1..]).output()?;
    ensure(output.status.success(), || format!("{line}: {}", String::from_utf8_lossy(&output.stderr)))
}

/// An rxe device on an interface that was never brought up.
struct DownDevice;

impl DownDevice {
    fn add() -> Result<Self, Failed> {
        run("ip link add dbdown0 type veth peer name dbdown1")?;
        let this = DownDevice;
        run("rdma link add rxedown type rxe netdev dbdown0")?;
        Ok(this)
    }
}

impl Drop for DownDevice {
    fn drop(&mut self) {
        let _ = run("rdma link delete rxedown");
        let _ = run("ip link delete dbdown0");
    }
}

fn port_that_is_down_is_refused(_: &Ends) -> TestResult {
    let _down = DownDevice::add()?;
    for text in ["rxedown", "rxedown 1", "dbdown0"] {
        let error = Context::open_selected(&text.parse()?).err().ok_or("opened")?;
        same(text, error.errno(), libc::ENETDOWN)?;
        let text = error.to_string();
        ensure(text.contains("rxedown") && text.contains("bring the link up"), || text.clone())?;
    }
    Ok(())
}
