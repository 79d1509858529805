//! A library to preload: an unchanged verbs program then posts to and polls its mlx5 queues through
//! [`mlx5_direct`] instead of libmlx5.
//!
//! The program creates its objects as always, and libmlx5 makes them. The library sees the calls
//! that create, modify and destroy objects, because its exported functions come before those of
//! libibverbs (`exports`). It takes queues over as they are created (`control`). In each mlx5
//! context it replaces the function pointers of the data path: `post_send`, `post_recv`,
//! `post_srq_recv`, `poll_cq`, `req_notify_cq` and `bind_mw` (`context`). The new functions look
//! the object up by its address (`objects`): objects of the library are posted to and polled here
//! (`post`, `poll`, `extended`); for all others, the pointer of libmlx5 is called. Extended CQs
//! have functions of their own, which are replaced in each (`extended_cq`).
//!
//! # What is taken over
//!
//! | object | taken over | left to libmlx5 |
//! |---|---|---|
//! | QP | RC, UC, UD and XRC send QPs | other types, QPs with creation flags, extended operations of `mlx5dv_create_qp`, QPs whose CQ or SRQ is left |
//! | CQ | of `ibv_create_cq` and `ibv_create_cq_ex`, with the first QP that is taken over | extended CQs with the real time or the fields of tag matching, `mlx5dv_create_cq`; CQs of a QP, WQ or SRQ that is left |
//! | SRQ | of `ibv_create_srq` | XRC and tag matching; SRQs of a QP that is left |
//!
//! A queue that the program itself drives through `mlx5dv_init_obj` goes back to libmlx5. One
//! consumer polls a CQ: so a CQ is either taken over with all of its QPs, or left with all of them.
//! If a QP cannot be taken over and needs a CQ or an SRQ that is in use here, its creation fails
//! with `EOPNOTSUPP`.
//!
//! # Threads
//!
//! Every call may be made from any thread. Each object has a lock. The order of the locks is:
//! session of an extended CQ (`extended_cq`), control (`control`), CQ, then the queues of a QP or
//! an SRQ. A session lasts while the program does as it likes, so no thread waits for a session
//! while it holds another lock. No call of verbs is made while a lock of an object is held.

mod batch;
mod context;
mod control;
mod cq_buffer;
pub mod exports;
mod extended;
mod extended_cq;
mod fork;
mod linker;
pub mod lookups;
mod objects;
mod poll;
mod post;
mod real;
mod regions;
mod register;
mod report;
mod session;
mod table;
mod wc;
