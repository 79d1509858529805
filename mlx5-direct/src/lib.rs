//! Shared receive queues, send and receive queues of QPs, and completion queues of mlx5 devices
//! (ConnectX, BlueField), driven without libmlx5 on the data path.
//!
//! Verbs create the queues. This crate takes the raw `*mut ibv_srq`, `*mut ibv_qp` and `*mut
//! ibv_cq` and asks `mlx5dv_init_obj` where their memory is. From then on the crate itself writes
//! WQEs, publishes the doorbell record, reads CQEs and arms the CQ for events. Connections, memory
//! registration and everything else stay with verbs. The `ibv_` types may be those of any crate:
//!
//! - `doorbell-sys`, `rdma-sys`, or bindings of your own to libibverbs: SRQs and CQs, as in the
//!   example.
//! - `sideway`: QPs and CQs, through its traits `QueuePair` and `CompletionQueue`:
//!   `Cq::from_verbs(cq.cq().as_ptr())`. Version 0.4 of sideway creates no SRQs, and it cannot
//!   switch scatter to CQE off. hw-tests/friends/sideway creates the SRQ and its QPs beside
//!   sideway, and has sideway connect them. Do not poll the CQ here if a QP has a receive queue of
//!   its own that verbs drive: libmlx5 counts receives as completed only in `ibv_poll_cq`, so posts
//!   fail once the queue was filled.
//! - `ibverbs`: version 0.9 gives no raw handles; take `ibverbs-sys`, its bindings, as
//!   hw-tests/friends/ibverbs does.
//!
//! With the feature `tokio`, tasks await the events of an [`EventChannel`]: `AsyncEventChannel`.
//! With the feature `tracing`, queues that are taken over, and refused ones with the reason, are
//! events of level DEBUG and target `mlx5_direct`. Nothing on the data path is logged.
//!
//! ```no_run
//! use mlx5_direct::{Completion, Cq, DataSeg, Srq};
//! # fn queues() -> (*mut doorbell_sys::ibv_srq, *mut doorbell_sys::ibv_cq) { unimplemented!() }
//! # fn buffer(n: u64) -> (u64, u32, u32) { unimplemented!() }
//!
//! // Made by ibv_create_srq and ibv_create_cq a moment ago: nothing posted, nothing polled.
//! let (srq, cq) = queues();
//! // SAFETY: the queues outlive `srq` and `cq`, nobody else posts to or polls them, and posted
//! // buffers stay registered and untouched until they complete.
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
//! # What the crate is for
//!
//! - **Order.** The device prefetches receive WQEs while the list runs through neighbouring slots.
//!   The crate posts slots in ring order, in whatever order they complete. It skips slots that are
//!   still in use, at a cost that does not grow with the depth.
//! - **Cost.** A post takes no lock, allocates nothing and makes no system call. A post to an SRQ
//!   reads nothing from queue memory. With [`Srq::address_only`] it writes 8 bytes, with
//!   [`Srq::bind`] no WQE.
//! - **Counts.** [`Srq::posted`] and [`Srq::free`] are exact, and [`Cq::waiting_receives`] counts
//!   without consuming. [`Cq::waiting_messages`] does not read again what it has counted.
//! - **Growth.** mlx5 hardware refuses to resize an SRQ. Create the SRQ as large as it may ever
//!   get, start with a smaller depth, and raise the depth with [`Srq::set_depth`].
//!
//! # Which call for whom
//!
//! Start with the first line of each table; the others save instructions for those who know more.
//! Where a call says that it does nothing, the first line's call does all of it.
//!
//! | receive buffers, to an SRQ | for |
//! |---|---|
//! | [`Srq::post`] | any number of segments |
//! | [`Srq::post_one`] | one segment; an address in the mode of [`Srq::address_only`] |
//! | [`Srq::post_batch`], [`Srq::post_slice`] | many buffers of one segment, with one doorbell record |
//! | [`Srq::post_one_fast`], [`Srq::post_list_fast`] | libraries that inline the common case as code without calls; they post nothing where a search is needed |
//! | [`Srq::post_recv_wrs`] | lists of `ibv_recv_wr`, under an interface of verbs |
//!
//! A receive queue of a QP has [`Rq::post`], [`Rq::post_few`] for a number of segments that the
//! compiler knows, and [`Rq::post_recv_wrs`].
//!
//! | requests, to a send queue | for |
//! |---|---|
//! | [`Sq::post`] | any request ([`wr::Wr`]), with its doorbell |
//! | [`Sq::post_batch`] | an iterator of requests of one shape, with one doorbell |
//! | [`Sq::chain`] | different requests, decided on the way, with one doorbell; dropped without it, all are taken back |
//! | [`Sq::post_prepared`] | one request again and again: [`Sq::prepare`] builds it once, and fields of it change |
//! | [`Sq::post_template`] | the same, if 8 bytes of inline payload are all that changes |
//! | [`Sq::post_fast`] | libraries that inline the common case, as above |
//! | [`Sq::post_send_wrs`] | lists of `ibv_send_wr` |
//! | [`Sq::post_staged`] | the calls of `ibv_wr_start` to `ibv_wr_complete` |
//!
//! | completions | for |
//! |---|---|
//! | [`Cq::poll`] | everything, one at a time |
//! | [`Cq::poll_each`] | everything, many at a time |
//! | [`Cq::poll_if_receive`], [`Cq::poll_if_send`] | a CQ that has mostly one kind; `None` leaves the entry to `poll` |
//! | [`Cq::plain_entry`], [`Cq::plain_entry_of`] | libraries that look up what an entry is about before they take it |
//! | [`Cq::waiting_receives`], [`Cq::waiting_messages`] | to count without taking |
//!
//! # Which CQs may be polled here, and which may not
//!
//! Each queue is driven either here or through verbs, never both.
//!
//! - The **receive CQ** of QPs that use a direct SRQ must be polled here. `ibv_poll_cq` would look
//!   up `wr_id` in libmlx5's own array, and older versions would rewrite links in the ring.
//! - The **send CQ** of QPs whose sends go through `ibv_post_send` must be polled with
//!   `ibv_poll_cq`: only that call advances libmlx5's tail of the send queue. If the CQ were polled
//!   here, the send queue would fill up and stay full.
//! - The **send CQ** of QPs whose send queue is an [`Sq`] must be polled here, and so must the
//!   receive CQ of an [`Rq`]. One CQ may serve any number of these queues, sends and receives, with
//!   and without an SRQ. [`Completion::qpn`] gives the QP of a completion. Pass
//!   [`Completion::send_counter`] to [`Sq::complete`], and [`Completion::slot`] to
//!   [`Srq::complete`] or [`Rq::complete`].
//! - A read or an atomic whose result the device left in the entry is a
//!   [`Completion::SendScattered`]. Before the next poll, take the result with [`Cq::copy_result`],
//!   or let [`Cq::deliver_result`] write it into [`Sq::segments`].
//! - `ibv_destroy_cq` destroys a CQ that was handed over, as usual. Such a CQ must not be resized
//!   by `ibv_resize_cq` ([`Cq::continue_in`] follows a resize that the caller commands), and
//!   libmlx5 does not remove the entries of a QP that goes away or goes to RESET: see [`Cq::clean`]
//!   and [`teardown`].
//!
//! # What is refused, and what to avoid
//!
//! - `from_verbs` refuses an SRQ, a send queue or a receive queue that was posted to before, and
//!   signatures. [`Cq::poll`] returns an error for compressed CQEs. The errors say what to do.
//! - A key does not tell whether its memory was registered for on-demand paging. Do not post such
//!   memory: a page fault completes as [`Syndrome::OdpPageFault`].
//! - Scatter to CQE is on for the QPs that `ibv_create_qp` creates, unless the environment has
//!   `MLX5_SCATTER_TO_CQE=0`. The payload of a message of up to 32 bytes (64 with 128-byte entries)
//!   is then in its completion entry and **not in the posted buffer**. Such a receive is
//!   [`Completion::RecvScattered`], and [`Cq::copy_scattered`] gives the payload. It is best to
//!   switch scatter to CQE off when the QP is created: [`dv::create_qp_without_scatter`] does that.
//!
//! # Threads
//!
//! Posting and returning slots take `&mut Srq`; polling takes `&mut Cq`. One thread may do both, or
//! two threads may each do one. With two threads, [`Srq::split`] gives the polling thread a
//! lock-free way to return slots.
//!
//! # Safety
//!
//! Taking a queue over is `unsafe`. The caller's promises there cover the life of the queue, so
//! posting and polling are safe calls. Inside the crate, only these modules use `unsafe`: memory,
//! queue memory, doorbell records, device registers, barriers, the delivery of payloads, the calls
//! into libmlx5, and what takes its queues over.

mod be;
mod doorbell;
mod error;
#[cfg(feature = "tokio")]
mod event_future;
mod log;
mod memory;
mod position;
mod slot_map;
mod table;
mod take_over;

pub mod barrier;
pub mod cq;
pub mod cqe;
pub mod dv;
pub mod queue_mem;
pub mod rq;
pub mod split;
pub mod sq;
pub mod srq;
pub mod teardown;
pub mod wqe;
pub mod wr;

pub use cq::{ArmFor, Cq, PlainEntry};
pub use cqe::{
    Completion, CqeError, ErrorCqe, Message, PlainKind, RecvCqe, RecvOp, RequestOp, ScatteredRecv,
    ScatteredSend, SendCqe, Syndrome,
};
pub use dv::{CqeVersion, DvError, EventChannel, RecvWrs, SendWrs};
#[cfg(feature = "tokio")]
pub use event_future::AsyncEventChannel;
pub use queue_mem::{
    Cookies, CqBuffer, CqLayout, HeapMem, HeapView, LayoutError, RqLayout, SqLayout, SrqLayout,
};
pub use rq::Rq;
pub use split::{SlotReturner, SrqPoster};
pub use sq::{
    Chain, Field, NotPosted, PayloadError, Prepared, Released, SendBatchError, SendError, Sq, Template,
};
pub use srq::{AddressOnly, AnySegments, BatchError, Bound, DepthError, Full, NotInUse, PostError, Srq};
pub use wqe::{DataSeg, WqeIndex};
pub use wr::Wr;
