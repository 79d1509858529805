//! Shared receive queues and completion queues of mlx5 devices, driven without libmlx5 on the data path.
mod be;
mod dbrec;
mod ring;
mod uar;

pub mod barrier;
pub mod cq;
pub mod cqe;
pub mod dv;
pub mod qp_table;
pub mod queue_mem;
pub mod split;
pub mod srq;
pub mod teardown;
pub mod wqe;

pub use cq::{ArmFor, Cq};
pub use cqe::{Completion, CqeError, ErrorCqe, Payload, RecvCqe, RecvOp, SendCqe, SendOp, Syndrome};
pub use dv::{CqeVersion, DvError, EventChannel, RecvWrs};
pub use qp_table::QpTable;
pub use queue_mem::{CqLayout, HeapMem, LayoutError, SrqLayout};
pub use split::{SlotReturner, SrqPoster};
pub use srq::{AddressOnly, AnySegments, BatchError, Bound, DepthError, Full, NotInUse, PostError, Srq};
pub use wqe::{DataSeg, WqeIndex};
