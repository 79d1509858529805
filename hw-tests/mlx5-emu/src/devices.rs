//! The device nodes of `/dev/infiniband`, as far as the software device has them.

use std::io;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, Ordering};

/// `uverbs0`: the first verbs device.
pub const UVERBS: (u32, u32) = (231, 192);
/// `rdma_cm`: the connection manager, a misc device.
pub const RDMA_CM: (u32, u32) = (10, 58);

static PRESENT: AtomicBool = AtomicBool::new(false);

#[derive(Clone, Copy, PartialEq, Eq)]
enum Node {
    Uverbs,
    RdmaCm,
}

fn node(path: &[u8]) -> Option<Node> {
    match path {
        b"/dev/infiniband/uverbs0" | b"/dev/char/231:192" => Some(Node::Uverbs),
        b"/dev/infiniband/rdma_cm" | b"/dev/char/10:58" => Some(Node::RdmaCm),
        _ => None,
    }
    .filter(|_| present())
}

/// True once the device was plugged in ([`crate::init`]) and until it is removed.
pub fn present() -> bool {
    PRESENT.load(Ordering::Acquire)
}

pub(crate) fn set_present(present: bool) {
    PRESENT.store(present, Ordering::Release);
}

/// Major and minor number of the node at `path`, if it is ours.
pub(crate) fn number(path: &[u8]) -> Option<(u32, u32)> {
    node(path).map(|node| if node == Node::Uverbs { UVERBS } else { RDMA_CM })
}

/// Opens the node at `path`; `None` when it is not ours.
pub(crate) fn open(path: &[u8]) -> Option<io::Result<RawFd>> {
    node(path).map(|node| match node {
        Node::Uverbs => crate::uverbs::open(),
        Node::RdmaCm => crate::ucma::open(),
    })
}
