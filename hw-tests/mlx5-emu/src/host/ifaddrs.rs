//! The host's IP addresses, by getifaddrs(3).
#![expect(unsafe_code, reason = "walks the list that getifaddrs returns")]

use std::ffi::CStr;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Calls `f(interface, address)` for every IP address of the host's active interfaces; for none
/// when the addresses cannot be read.
pub(crate) fn host_addresses(mut f: impl FnMut(&CStr, IpAddr)) {
    let mut list = std::ptr::null_mut();
    // SAFETY: `list` is a valid place for the result.
    if unsafe { libc::getifaddrs(&raw mut list) } != 0 {
        return;
    }
    let mut cursor = list;
    while !cursor.is_null() {
        // SAFETY: non-null elements of the list are valid until freeifaddrs.
        let entry = unsafe { &*cursor };
        cursor = entry.ifa_next;
        if entry.ifa_addr.is_null() || entry.ifa_flags & libc::IFF_UP.cast_unsigned() == 0 {
            continue;
        }
        // SAFETY: non-null, and at least a sockaddr header long.
        let family = i32::from(unsafe { (*entry.ifa_addr).sa_family });
        let address = if family == libc::AF_INET {
            // SAFETY: AF_INET means that the address is a sockaddr_in. It may be less aligned than
            // the type.
            let sin = unsafe { entry.ifa_addr.cast::<libc::sockaddr_in>().read_unaligned() };
            IpAddr::V4(Ipv4Addr::from(u32::from_be(sin.sin_addr.s_addr)))
        } else if family == libc::AF_INET6 {
            // SAFETY: AF_INET6 means that the address is a sockaddr_in6. It may be less aligned
            // than the type.
            let sin6 = unsafe { entry.ifa_addr.cast::<libc::sockaddr_in6>().read_unaligned() };
            IpAddr::V6(Ipv6Addr::from(sin6.sin6_addr.s6_addr))
        } else {
            continue;
        };
        // SAFETY: ifa_name is a NUL-terminated string as long as the list lives.
        f(unsafe { CStr::from_ptr(entry.ifa_name) }, address);
    }
    // SAFETY: the list came from getifaddrs and is freed once.
    unsafe { libc::freeifaddrs(list) };
}

/// The index of a network interface; 0 if there is none with this name.
pub(crate) fn index_of(interface: &CStr) -> u32 {
    // SAFETY: a NUL-terminated string.
    unsafe { libc::if_nametoindex(interface.as_ptr()) }
}
