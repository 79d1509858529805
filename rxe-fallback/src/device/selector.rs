//! Selecting a device by its name, by a network interface, or by an address.

use std::convert::Infallible;
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use super::{Context, devices, gid, no_device};
use crate::error::{Error, Result};

/// Which device to open.
///
/// `FromStr` takes `rxeA`, `rxeA 1`, `mlx5_0:1`, `vA` and `10.9.0.1`. Port 0 means any port. A bare
/// name is tried as a device first, then as a network interface.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Selector {
    /// A device or, if there is none of that name, a network interface.
    Device {
        /// The name of the device.
        name: String,
        /// Port, counted from 1; `None` for the first active one.
        port: Option<u8>,
    },
    /// The device under a network interface.
    Interface(String),
    /// The device with this address.
    Address(IpAddr),
}

impl FromStr for Selector {
    type Err = Infallible;

    fn from_str(text: &str) -> std::result::Result<Self, Infallible> {
        let text = text.trim();
        if let Ok(address) = text.parse() {
            return Ok(Selector::Address(address));
        }
        let split = text.rsplit_once([' ', '\t', ':']);
        let (name, port) =
            match split.and_then(|(name, port)| Some((name.trim_end(), port.parse::<u8>().ok()?))) {
                Some((name, port)) if !name.is_empty() => (name, (port != 0).then_some(port)),
                _ => (text, None),
            };
        Ok(Selector::Device { name: name.to_owned(), port })
    }
}

impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Selector::Device { name, port: Some(port) } => write!(f, "{name} {port}"),
            Selector::Device { name, port: None } | Selector::Interface(name) => f.write_str(name),
            Selector::Address(address) => address.fmt(f),
        }
    }
}

impl Context {
    /// Opens the device that `selector` names. Returns its port and, if it has one, its address.
    ///
    /// # Errors
    /// ENODEV when no device matches, with the names of the devices found; ENETDOWN when the port
    /// is down; EINVAL when the device has no such port.
    pub fn open_selected(selector: &Selector) -> Result<(Context, u8, Option<IpAddr>)> {
        let verb = "ibv_open_device";
        let found = devices()?;
        let names: Vec<String> = found.iter().map(|d| d.name.clone()).collect();
        let missing = |what: String| no_device(verb, &what, &names);
        match selector {
            Selector::Device { name, port } if names.contains(name) => open_port(name, *port),
            Selector::Device { name, port } => open_interface(name, &names)?
                .filter(|(_, found, _)| port.is_none_or(|port| port == *found))
                .ok_or_else(|| missing(format!("RDMA device or network interface \"{name}\" with RDMA"))),
            Selector::Interface(name) => open_interface(name, &names)?
                .ok_or_else(|| missing(format!("RDMA device on network interface \"{name}\""))),
            Selector::Address(address) => open_address(*address, &names)?
                .ok_or_else(|| missing(format!("RDMA device with address {address}"))),
        }
    }

    /// An error when port `port` is not active.
    fn require_active(&self, port: u8) -> Result<()> {
        let attr = self.port(port)?;
        if attr.is_active() {
            return Ok(());
        }
        let under = self.netdev(port).map(|name| format!(" (network interface {name})")).unwrap_or_default();
        Err(Error::new("ibv_query_port", libc::ENETDOWN).with_detail(format!(
            "port {port} of {}{under} is {:?}, not active: bring the link up",
            self.name(),
            attr.state
        )))
    }
}

fn open_port(name: &str, port: Option<u8>) -> Result<(Context, u8, Option<IpAddr>)> {
    let context = Context::open(name)?;
    let is_active = |port: &u8| context.port(*port).is_ok_and(|attr| attr.is_active());
    let active = match port {
        Some(_) => None,
        None => (1..=context.attributes().phys_port_cnt).find(is_active),
    };
    let port = active.or(port).unwrap_or(1);
    if active.is_none() {
        context.require_active(port)?;
    }
    let address = context.address(port)?;
    Ok((context, port, address))
}

/// The first port of any device whose GIDs satisfy `fits`.
fn search(
    names: &[String],
    fits: impl Fn(&Context, u8) -> Result<Option<Option<IpAddr>>>,
) -> Result<Option<(Context, u8, Option<IpAddr>)>> {
    let mut failed = None;
    for name in names {
        let context = match Context::open(name) {
            Ok(context) => context,
            Err(error) => {
                failed.get_or_insert(error);
                continue;
            }
        };
        for port in 1..=context.attributes().phys_port_cnt {
            if let Some(address) = fits(&context, port)? {
                context.require_active(port)?;
                return Ok(Some((context, port, address)));
            }
        }
    }
    failed.map_or(Ok(None), Err)
}

fn open_interface(interface: &str, names: &[String]) -> Result<Option<(Context, u8, Option<IpAddr>)>> {
    let by_gid = search(names, |context, port| {
        let Some(entries) = context.readable_gids(port)? else { return Ok(None) };
        let here = entries.iter().any(|e| e.netdev.as_deref() == Some(interface));
        Ok(here.then(|| gid::first_address(&entries, Some(interface))))
    })?;
    if by_gid.is_some() {
        return Ok(by_gid);
    }
    // IPoIB interfaces appear in no GID entry, but sysfs links them with their device.
    let port = std::fs::read_to_string(format!("/sys/class/net/{interface}/dev_port"))
        .ok()
        .and_then(|text| text.trim().parse::<u8>().ok())
        .map_or(1, |number| number.saturating_add(1));
    search(names, |context, this| {
        let link = format!("/sys/class/net/{interface}/device/infiniband/{}", context.name());
        Ok((this == port && std::path::Path::new(&link).exists()).then(|| interface_address(interface)))
    })
}

fn open_address(address: IpAddr, names: &[String]) -> Result<Option<(Context, u8, Option<IpAddr>)>> {
    let by_gid = search(names, |context, port| Ok(context.find_gid(port, address)?.map(|_| Some(address))))?;
    if by_gid.is_some() {
        return Ok(by_gid);
    }
    match interface_with(address) {
        Some(interface) => {
            Ok(open_interface(&interface, names)?.map(|(c, port, _)| (c, port, Some(address))))
        }
        None => Ok(None),
    }
}

fn interface_addresses() -> impl Iterator<Item = (String, IpAddr)> {
    nix::ifaddrs::getifaddrs().into_iter().flatten().filter_map(|entry| {
        let address = entry.address?;
        let ip = match (address.as_sockaddr_in(), address.as_sockaddr_in6()) {
            (Some(v4), _) => IpAddr::V4(v4.ip()),
            (_, Some(v6)) => IpAddr::V6(v6.ip()),
            _ => return None,
        };
        Some((entry.interface_name, ip))
    })
}

fn interface_address(interface: &str) -> Option<IpAddr> {
    let of_interface = || interface_addresses().filter(|(name, _)| name == interface).map(|(_, ip)| ip);
    of_interface().find(IpAddr::is_ipv4).or_else(|| of_interface().next())
}

fn interface_with(address: IpAddr) -> Option<String> {
    interface_addresses().find(|(_, ip)| *ip == address).map(|(name, _)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(name: &str, port: Option<u8>) -> Selector {
        Selector::Device { name: name.to_owned(), port }
    }

    #[test]
    fn names_ports_and_addresses_are_told_apart() {
        let cases = [
            ("rxeA", device("rxeA", None)),
            ("rxeA 1", device("rxeA", Some(1))),
            ("mlx5_0:1", device("mlx5_0", Some(1))),
            ("  mlx5_0   2 ", device("mlx5_0", Some(2))),
            ("vA", device("vA", None)),
            ("vA 0", device("vA", None)),
            ("10.9.0.1", Selector::Address("10.9.0.1".parse().unwrap())),
            ("fe80::1", Selector::Address("fe80::1".parse().unwrap())),
            ("2001:db8::2:1", Selector::Address("2001:db8::2:1".parse().unwrap())),
        ];
        for (text, expected) in cases {
            assert_eq!(text.parse::<Selector>().unwrap(), expected, "{text:?}");
        }
    }

    #[test]
    fn what_is_no_port_stays_in_the_name() {
        for text in ["eth0:label", "name 300", ":1", ""] {
            assert_eq!(text.parse::<Selector>().unwrap(), device(text, None), "{text:?}");
        }
    }

    #[test]
    fn text_form_is_read_back() {
        for text in ["rxeA 1", "rxeA", "10.9.0.1", "fe80::1"] {
            assert_eq!(text.parse::<Selector>().unwrap().to_string(), text);
        }
    }
}
