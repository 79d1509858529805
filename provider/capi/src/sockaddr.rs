//! IP addresses in C's form.

use provider::inside::sync::{Mutex, rank};
use std::net::SocketAddr;
use std::sync::PoisonError;

/// An address in C's form: `sockaddr_in` or `sockaddr_in6`.
#[derive(Clone, Copy)]
#[repr(C, align(8))]
pub(super) struct SockAddr([u8; 32]);

impl SockAddr {
    pub(super) fn new(addr: SocketAddr) -> Self {
        let mut bytes = [0; 32];
        bytes[2..4].copy_from_slice(&addr.port().to_be_bytes());
        let family = match addr {
            SocketAddr::V4(addr) => {
                bytes[4..8].copy_from_slice(&addr.ip().octets());
                libc::AF_INET
            }
            SocketAddr::V6(addr) => {
                bytes[4..8].copy_from_slice(&addr.flowinfo().to_be_bytes());
                bytes[8..24].copy_from_slice(&addr.ip().octets());
                bytes[24..28].copy_from_slice(&addr.scope_id().to_ne_bytes());
                libc::AF_INET6
            }
        };
        bytes[..2].copy_from_slice(&(family as u16).to_ne_bytes());
        Self(bytes)
    }

    /// An address that is never freed, because programs use an IA's address after they have closed
    /// the IA. There is one for each address of a device.
    pub(super) fn kept(addr: SocketAddr) -> &'static Self {
        let new = Self::new(addr);
        let mut kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(old) = kept.iter().find(|old| old.0 == new.0) {
            return old;
        }
        let new: &'static Self = Box::leak(Box::new(new));
        kept.push(new);
        new
    }

    /// As many bytes as a sockaddr_in6 has.
    pub(super) fn short(&self) -> [u8; 28] {
        let mut bytes = [0; 28];
        bytes.copy_from_slice(&self.0[..28]);
        bytes
    }

    /// The address of the structure, valid while this value is not moved.
    pub(super) fn address(&self) -> usize {
        self.0.as_ptr() as usize
    }
}

static KEPT: Mutex<{ rank::TABLE }, Vec<&'static SockAddr>> = Mutex::new(Vec::new());

/// Locks the table for a fork.
pub(super) fn hold_shared_locks() -> Vec<Box<dyn std::any::Any>> {
    vec![Box::new(KEPT.hold())]
}
