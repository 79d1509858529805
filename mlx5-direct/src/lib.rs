//! Shared receive queues, send and receive queues of QPs, and completion queues of mlx5 devices (ConnectX, BlueField), driven
//! without libmlx5 on the data path.
//!
//! The queues are made by verbs. This crate takes the raw `*mut ibv_srq` and `*mut ibv_cq`, asks `mlx5dv_init_obj` where
//! their memory is, and from then on writes WQEs, publishes the doorbell record, reads CQEs and arms for events by itself.
//! Connections, memory registration and everything else stay with verbs. The `ibv_` types may be those of any crate:
//!
//! - `rdma-sys`, or bindings of your own to libibverbs: SRQs and CQs, as in the example.
//! - `sideway`: CQs, by its trait `CompletionQueue`: `Cq::from_verbs(cq.cq().as_ptr())`. As of version 0.4 it makes no SRQs, its
//!   QPs cannot receive from one, and it cannot switch scatter to CQE off. So make the SRQ and its QPs with `rdma-sys` (or
//!   `rdma-mummy-sys`, whose types sideway uses) in the same context. For QPs with a receive queue of their own a CQ polled
//!   here does not do: libmlx5 counts their receives as taken only in `ibv_poll_cq`, so posts fail once the queue was filled.
//!
//! ```no_run
//! use mlx5_direct::{Completion, Cq, DataSeg, Srq};
//! # fn queues() -> (*mut rdma_sys::ibv_srq, *mut rdma_sys::ibv_cq) { unimplemented!() }
//! # fn buffer(n: u64) -> (u64, u32, u32) { unimplemented!() }
//!
//! // Made by ibv_create_srq and ibv_create_cq a moment ago: nothing posted, nothing polled.
//! let (srq, cq) = queues();
//! // SAFETY: both outlive what is made of them here, nobody else posts to or polls them, and posted buffers stay
//! // registered and untouched until they complete.
//! let (mut srq, mut cq) = unsafe { (Srq::from_verbs(srq, None)?, Cq::from_verbs(cq)?) };
//!
//! // One barrier and one doorbell record for all. The cookie comes back with the completion.
//! srq.post_batch((0..512).map(|n| {
//!     let (addr, len, lkey) = buffer(n);
//!     (DataSeg::new(addr, len, lkey), n)
//! }));
//!
//! while let Some(completion) = cq.poll()? {
//!     let Some(slot) = completion.slot() else { continue };
//!     let cookie = srq.complete(slot)?;
//!     match completion {
//!         Completion::Recv(c) => println!("{} bytes in buffer {cookie} from QP {:#x}", c.byte_count, c.qpn),
//!         Completion::RecvScattered(c) => {
//!             // Small, and not in the buffer: the device put it into the completion.
//!             let mut bytes = vec![0; c.receive.byte_count as usize];
//!             cq.copy_scattered(&c, &mut bytes);
//!             println!("{bytes:?} for buffer {cookie}");
//!         }
//!         Completion::RecvError(e) => println!("buffer {cookie}: {}", e.syndrome),
//!         _ => unreachable!("no slot"),
//!     }
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # What it is for
//!
//! - **Order.** The device prefetches receive WQEs while the list runs through neighbouring slots. Slots are posted in ring
//!   order whatever the order they complete in; those still in use are skipped, at a cost that does not grow with depth.
//! - **Cost.** No lock, no allocation, no system call, no list of work requests to walk, and nothing is ever read back
//!   from the queue. [`Srq::address_only`] writes 8 bytes a post; [`Srq::bind`] writes none at all.
//! - **Counts.** [`Srq::posted`] and [`Srq::free`] are exact, and [`Cq::waiting_receives`] counts without consuming.
//! - **Growth.** mlx5 hardware refuses to resize an SRQ. Make it as large as it may ever get, start with a smaller depth,
//!   and raise it with [`Srq::set_depth`].
//!
//! # Which CQs may be polled here, and which may not
//!
//! A queue is driven either here or through verbs, never both.
//!
//! - The **receive CQ** of QPs that use a direct SRQ must be polled here: `ibv_poll_cq` would look up `wr_id` in libmlx5's
//!   own array, and in older versions rewrite links in the ring.
//! - The **send CQ** of QPs whose sends go through `ibv_post_send` must be polled with `ibv_poll_cq`: only that advances
//!   libmlx5's idea of the send queue's tail. Polled here, the send queue would fill up and stay full.
//! - The **send CQ** of QPs whose send queue is an [`Sq`] must be polled here, and so must the receive CQ of an [`Rq`]. One CQ may
//!   serve any number of these, sends and receives, with and without an SRQ: [`Completion::qpn`] says whose a completion is,
//!   [`Completion::send_counter`] goes to [`Sq::complete`], [`Completion::slot`] to [`Srq::complete`] or [`Rq::complete`].
//! - A read or an atomic whose result the device left in the entry is a [`Completion::SendScattered`]: take the result with
//!   [`Cq::copy_result`], or have [`Cq::deliver_result`] write it into [`Sq::segments`], before the next poll.
//! - A CQ that was handed over is destroyed by `ibv_destroy_cq` as usual, but not resized, and not cleaned by libmlx5 when a
//!   QP goes away: see [`teardown`].
//!
//! # What is refused, and what to avoid
//!
//! - An SRQ or CQ that was used before, SRQ signatures and compressed CQEs are refused with an error that says what to do.
//! - Memory registered for on-demand paging cannot be told from other memory by its key. Do not post it: a fault completes as
//!   [`Syndrome::OdpPageFault`].
//! - Scatter to CQE is on for the QPs that `ibv_create_qp` makes, unless the environment has `MLX5_SCATTER_TO_CQE=0`: the
//!   payload of a message of up to 32 bytes (64 with 128-byte entries) is then in its completion entry and **not in the
//!   posted buffer**. Such a receive is [`Completion::RecvScattered`], and [`Cq::copy_scattered`] gives the payload. It is best
//!   switched off at QP creation: [`dv::create_qp_without_scatter`] does that.
//!
//! # Threads
//!
//! Posting and returning slots take `&mut Srq`, polling takes `&mut Cq`: one thread each, or one for both. With two,
//! [`Srq::split`] gives the polling thread a lock-free way to return slots.
//!
//! # Safety
//!
//! The `unsafe` step is taking a queue over. The promises made there cover the life of the queue, so that posting and polling
//! are safe calls. Inside, `unsafe` is confined to five modules: queue memory, doorbell records, device registers, barriers,
//! and the calls into libmlx5.

mod be;
mod dbrec;
mod ring;
mod table;
mod uar;

pub mod barrier;
pub mod cq;
pub mod cqe;
pub mod dv;
pub mod qp_table;
pub mod queue_mem;
pub mod rq;
pub mod split;
pub mod sq;
pub mod srq;
pub mod teardown;
pub mod wqe;
pub mod wr;

pub use cq::{ArmFor, Cq};
pub use cqe::{
    Completion, CqeError, ErrorCqe, RecvCqe, RecvOp, ScatteredRecv, ScatteredSend, SendCqe, SendOp, Syndrome,
};
pub use dv::{CqeVersion, DvError, EventChannel, RecvWrs, SendWrs};
pub use qp_table::QpTable;
pub use queue_mem::{Cookies, CqLayout, HeapMem, HeapView, LayoutError, RqLayout, SqLayout, SrqLayout};
pub use rq::Rq;
pub use split::{SlotReturner, SrqPoster};
pub use sq::{Chain, NotPosted, Prepared, Released, SendBatchError, SendError, Sq};
pub use srq::{
    AddressOnly, AnySegments, BatchError, Bound, DepthError, Full, NotInUse, PostError, RebindError, Srq,
};
pub use wqe::{DataSeg, WqeIndex};
pub use wr::Wr;
