//! Who is told of contexts, CQs and QPs: those who run the engine, above the commands.

use std::sync::OnceLock;

/// Is told by the commands. Except for [`Observer::opened`], with the device locked.
pub(crate) trait Observer: Sync {
    /// A command descriptor was opened.
    fn opened(&self);
    /// A CQ is being created by a command on this descriptor. `object` is the address of the
    /// program's CQ.
    fn cq_created(&self, fd: i32, context: usize, object: u64);
    fn cq_destroyed(&self, object: u64);
    /// A QP was created, or goes to INIT. libmlx5 fills in some entries of the program's QP after
    /// the command that creates it.
    fn qp_usable(&self, fd: i32, context: usize, object: u64);
    fn qp_destroyed(&self, object: u64);
    fn context_closed(&self, context: usize);
}

static OBSERVER: OnceLock<&'static dyn Observer> = OnceLock::new();

/// Sets the observer, once.
pub(crate) fn observe(observer: &'static dyn Observer) {
    let _ = OBSERVER.set(observer);
}

/// Tells the observer.
pub(crate) fn tell(what: impl FnOnce(&dyn Observer)) {
    if let Some(&observer) = OBSERVER.get() {
        what(observer);
    }
}
