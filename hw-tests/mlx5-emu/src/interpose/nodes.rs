//! Opening the device nodes ([`crate::host::devices`]).

use std::io;
use std::os::fd::RawFd;

use crate::host::devices::{Node, node, present};

/// The node of this name in a folder that the program has open.
pub(crate) fn node_in(dir: RawFd, name: &[u8]) -> Option<Node> {
    if !present() || crate::host::sys::inode_of(dir).ok()? != crate::interpose::sysfs::nodes_inode()? {
        return None;
    }
    node(&[b"/dev/infiniband/", name].concat())
}

/// Opens a node.
pub(crate) fn open(node: Node) -> io::Result<RawFd> {
    match node {
        Node::Uverbs => crate::uverbs::open(),
        Node::RdmaCm => crate::ucma::open(),
    }
}
