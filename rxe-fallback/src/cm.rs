//! Connections through rdma_cm, with QPs that this crate owns.
//!
//! QPs are created on the caller's [`Context`](crate::Context), not with `rdma_create_qp`.
//! [`ConnParam::qp_num`] carries the QP number. librdmacm does not know the QP, so the caller
//! changes its state ([`CmId::qp_to_init`], [`CmId::qp_to_rts`]). The order is
//!
//! | active side | passive side |
//! |---|---|
//! | `resolve_addr`, `AddrResolved`, `resolve_route`, `RouteResolved` | `bind`, `listen` |
//! | create the QP, `qp_to_init`, post receives, `connect` | |
//! | | `ConnectRequest` with a new id: create the QP, `qp_to_init`, post receives, `qp_to_rts`, `accept` |
//! | `ConnectResponse`: `qp_to_rts`, `establish` (no `Established` comes) | |
//! | | `Established` |
//! | `disconnect`, and the QP `to_error` | `Disconnected`: `disconnect` as the answer, and the QP `to_error` |
//! | `Disconnected`, once the other side has answered | |
//!
//! Ids of [`PortSpace::Udp`] make no connection: they resolve the destination of datagrams to a
//! service (SIDR). `connect` ends with `Established`, which carries the destination
//! ([`CmEvent::datagrams`]), or with `Unreachable`. `accept` answers with the number of a UD QP and
//! causes no event. After that the ids can be dropped; the caller manages the QPs
//! ([`Qp::ud_to_rts`](crate::Qp::ud_to_rts) with [`DATAGRAM_QKEY`]).
//!
//! # Threads
//!
//! librdmacm writes an id's fields while it reads an event of that id, and reads them in most other
//! calls, without a lock. Each [`EventChannel`] therefore has a lock, which is held during each
//! call. Calls on ids of different channels do not wait for each other. Events are copied and
//! acknowledged under the lock, so dropping an id never waits for an acknowledgement.

mod blocking;
mod channel;
mod event;
mod id;
mod param;

pub use blocking::{Connection, Incoming, Listener, Resolved};
pub use channel::EventChannel;
pub use event::{CmEvent, CmEventKind, ConnInfo, DatagramPeer};
pub use id::{CmId, DATAGRAM_QKEY, MAX_CONNECT_DATA, MAX_RESOLVE_DATA, PortSpace};
pub use param::{ConnParam, OwnAttr};
