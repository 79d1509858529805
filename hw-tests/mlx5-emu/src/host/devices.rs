//! The device nodes of `/dev/infiniband`, as far as the software device has them: their numbers and
//! names.

use std::sync::atomic::{AtomicBool, Ordering};

/// `uverbs0`: the first verbs device.
pub(crate) const UVERBS: (u32, u32) = (231, 192);
/// `rdma_cm`: the connection manager, a misc device.
pub(crate) const RDMA_CM: (u32, u32) = (10, 58);

static PRESENT: AtomicBool = AtomicBool::new(false);

/// A device node.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Node {
    Uverbs,
    RdmaCm,
}

impl Node {
    /// Major and minor number.
    pub(crate) fn number(self) -> (u32, u32) {
        match self {
            Self::Uverbs => UVERBS,
            Self::RdmaCm => RDMA_CM,
        }
    }
}

/// Names of the nodes in `/dev/infiniband`.
pub(crate) const NAMES: [&str; 2] = ["uverbs0", "rdma_cm"];

/// True for a name that a node has in its folder.
pub(crate) fn is_name(name: &[u8]) -> bool {
    NAMES.iter().any(|known| known.as_bytes() == name)
}

/// The node at an absolute path.
pub(crate) fn node(path: &[u8]) -> Option<Node> {
    match path {
        b"/dev/infiniband/uverbs0" | b"/dev/char/231:192" => Some(Node::Uverbs),
        b"/dev/infiniband/rdma_cm" | b"/dev/char/10:58" => Some(Node::RdmaCm),
        _ => None,
    }
    .filter(|_| present())
}

/// True once the device was plugged in ([`crate::init`]) and until it is removed.
pub(crate) fn present() -> bool {
    PRESENT.load(Ordering::Acquire)
}

pub(crate) fn set_present(present: bool) {
    PRESENT.store(present, Ordering::Release);
}
