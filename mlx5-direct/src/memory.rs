#![expect(unsafe_code, reason = "memory on the heap, and writes by units")]
//! Memory that stands in for a device's, and the units in which WQEs are written.

use std::sync::Arc;

mod heap;
mod units;

pub use heap::{HeapMem, HeapView};
pub use units::{Registers, Target, Units};
pub(crate) use units::{Unit, add_units, inline_at, or_units, unit};

/// Keeps heap-backed queues alive; `None` if the memory belongs to a verbs object.
pub(crate) type Keep = Option<Arc<HeapMem>>;
