//! What the target takes at most.

/// The number of commands of an admin queue.
pub const ADMIN_DEPTH: u16 = 32;

/// Asynchronous Event Requests that a controller parks.
pub const PARKED_EVENTS: usize = 4;

/// The largest number of a namespace.
pub const NAMESPACES: u32 = 1024;

/// A page of the controller, in bytes.
pub const PAGE: u32 = 4096;

/// Limits that the configuration sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The number of commands of an I/O queue.
    pub depth: u16,
    /// The number of I/O queues of a controller.
    pub queues: u16,
    /// The longest transfer of a command in bytes: a page times a power of two.
    pub transfer: u32,
    /// The largest in-capsule data in bytes: a multiple of 16.
    pub in_capsule: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self { depth: 128, queues: 64, transfer: 256 << 10, in_capsule: 4096 }
    }
}
