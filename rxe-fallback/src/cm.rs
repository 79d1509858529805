//! Connections through rdma_cm, with QPs that this crate owns.
//!
//! QPs are made on the caller's [`Context`](crate::Context), not with `rdma_create_qp`: the QP
//! number travels in [`ConnParam::qp_num`], and librdmacm, which sees no QP, leaves the state
//! changes to the caller ([`CmId::qp_to_init`], [`CmId::qp_to_rts`]). The order is
//!
//! | active side | passive side |
//! |---|---|
//! | `resolve_addr`, `AddrResolved`, `resolve_route`, `RouteResolved` | `bind`, `listen` |
//! | make the QP, `qp_to_init`, post receives, `connect` | |
//! | | `ConnectRequest` with a new id: make the QP, `qp_to_init`, post receives, `qp_to_rts`, `accept` |
//! | `ConnectResponse`: `qp_to_rts`, `establish` (no `Established` comes) | |
//! | | `Established` |
//! | `disconnect`, and the QP `to_error` | `Disconnected`: `disconnect` as the answer, and the QP `to_error` |
//! | `Disconnected`, once the other side has answered | |
//!
//! Ids of [`PortSpace::Udp`] make no connection: they ask where datagrams to a service go (SIDR).
//! `connect` ends with `Established`, which says so ([`CmEvent::datagrams`]), or with
//! `Unreachable`; `accept` answers with the number of a UD QP and makes no event. The ids are of no
//! more use then, and the QPs are the caller's ([`Qp::ud_to_rts`](crate::Qp::ud_to_rts) with
//! [`DATAGRAM_QKEY`]).
//!
//! # Threads
//!
//! librdmacm writes an id's fields while it reads an event of that id, and reads them in most other
//! calls, without a lock. Each [`EventChannel`] therefore has one, held for the time of a call: ids
//! on different channels do not meet. Events are copied out and acknowledged under it, so that
//! dropping an id, which waits for acknowledgements, never waits for anybody.

mod blocking;
mod channel;
mod event;
mod id;

pub use blocking::{Connection, Incoming, Listener, Resolved};
pub use channel::EventChannel;
pub use event::{CmEvent, CmEventKind, ConnInfo, DatagramPeer};
pub use id::{CmId, ConnParam, DATAGRAM_QKEY, MAX_CONNECT_DATA, MAX_RESOLVE_DATA, PortSpace};
