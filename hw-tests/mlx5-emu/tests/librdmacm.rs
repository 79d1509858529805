//! The connection manager through the system's librdmacm, with both ends in this process.
//!
//! The program supplies the QP numbers itself, in the connection parameters. These tests therefore
//! check how the library handles the device node's answers, and not the data engine.
#![expect(unsafe_code, reason = "calls librdmacm")]
#![allow(missing_docs)]

use std::ffi::CStr;
use std::net::SocketAddrV4;
use std::process::ExitCode;
use std::ptr;

use doorbell_sys as sys;
use libtest_mimic::{Arguments, Failed, Trial};
use sys::rdma_cm_event_type as kind;

type Id = *mut sys::rdma_cm_id;

const TIMEOUT_MS: i32 = 2000;

fn check(what: &str, returned: i32) -> Result<(), Failed> {
    if returned == 0 {
        return Ok(());
    }
    Err(format!("{what}: {}", std::io::Error::last_os_error()).into())
}

fn sockaddr(addr: &str) -> libc::sockaddr_in {
    let addr: SocketAddrV4 = addr.parse().expect("an address");
    // SAFETY: all-zero is a valid sockaddr_in.
    let mut out: libc::sockaddr_in = unsafe { std::mem::zeroed() };
    out.sin_family = 2;
    out.sin_port = addr.port().to_be();
    out.sin_addr.s_addr = u32::from_ne_bytes(addr.ip().octets());
    out
}

/// The fields of an event that the tests check.
#[derive(Debug)]
struct Seen {
    kind: u32,
    status: i32,
    id: Id,
    private: Vec<u8>,
    qp_num: u32,
}

struct Channel(*mut sys::rdma_event_channel);

impl Channel {
    fn create() -> Result<Self, Failed> {
        // SAFETY: no arguments.
        let channel = unsafe { sys::rdma_create_event_channel() };
        check("rdma_create_event_channel", i32::from(channel.is_null()))?;
        Ok(Self(channel))
    }

    fn id(&self) -> Result<Id, Failed> {
        let mut id = ptr::null_mut();
        let space = sys::rdma_port_space::RDMA_PS_TCP;
        // SAFETY: the channel is alive and `id` a valid place.
        check("rdma_create_id", unsafe { sys::rdma_create_id(self.0, &raw mut id, ptr::null_mut(), space) })?;
        Ok(id)
    }

    /// The next event, acknowledged.
    fn event(&self) -> Result<Seen, Failed> {
        let mut event = ptr::null_mut();
        // SAFETY: the channel is alive and `event` a valid place.
        check("rdma_get_cm_event", unsafe { sys::rdma_get_cm_event(self.0, &raw mut event) })?;
        // SAFETY: the library filled in `event`, which lives until it is acknowledged below. These
        // identifiers are connected, so the union holds `conn`, with that many bytes of private
        // data.
        unsafe {
            let raw = &*event;
            let conn = &raw.param.conn;
            let len = usize::from(conn.private_data_len);
            let private = if conn.private_data.is_null() {
                Vec::new()
            } else {
                std::slice::from_raw_parts(conn.private_data.cast::<u8>(), len).to_vec()
            };
            let seen = Seen { kind: raw.event, status: raw.status, id: raw.id, private, qp_num: conn.qp_num };
            check("rdma_ack_cm_event", sys::rdma_ack_cm_event(event))?;
            Ok(seen)
        }
    }

    fn expect(&self, kind: u32) -> Result<Seen, Failed> {
        let event = self.event()?;
        if event.kind != kind || event.status != 0 {
            return Err(format!("expected event {kind}, got {event:?}").into());
        }
        Ok(event)
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        // SAFETY: made by rdma_create_event_channel, destroyed once, identifiers are gone by then.
        unsafe { sys::rdma_destroy_event_channel(self.0) };
    }
}

fn destroy(id: Id) -> Result<(), Failed> {
    // SAFETY: a live identifier without unacknowledged events, not used afterwards.
    check("rdma_destroy_id", unsafe { sys::rdma_destroy_id(id) })
}

/// A listener on a free port, and the port.
fn listener(channel: &Channel) -> Result<(Id, u16), Failed> {
    let id = channel.id()?;
    let mut addr = sockaddr("127.0.0.1:0");
    // SAFETY: live identifier, valid address.
    unsafe {
        check("rdma_bind_addr", sys::rdma_bind_addr(id, (&raw mut addr).cast()))?;
        check("rdma_listen", sys::rdma_listen(id, 5))?;
        Ok((id, u16::from_be(sys::rdma_get_src_port(id))))
    }
}

/// An identifier with a resolved address and route to the port.
fn resolved(channel: &Channel, port: u16) -> Result<Id, Failed> {
    let id = channel.id()?;
    let mut dst = sockaddr(&format!("127.0.0.1:{port}"));
    // SAFETY: live identifier, valid address; a null source lets the library choose.
    unsafe {
        let dst = (&raw mut dst).cast();
        check("rdma_resolve_addr", sys::rdma_resolve_addr(id, ptr::null_mut(), dst, TIMEOUT_MS))?;
        channel.expect(kind::RDMA_CM_EVENT_ADDR_RESOLVED)?;
        check("rdma_resolve_route", sys::rdma_resolve_route(id, TIMEOUT_MS))?;
    }
    channel.expect(kind::RDMA_CM_EVENT_ROUTE_RESOLVED)?;
    Ok(id)
}

fn param(qp_num: u32, private: &[u8]) -> sys::rdma_conn_param {
    // SAFETY: all-zero is a valid rdma_conn_param.
    let mut out: sys::rdma_conn_param = unsafe { std::mem::zeroed() };
    out.qp_num = qp_num;
    out.private_data = private.as_ptr().cast();
    out.private_data_len = u8::try_from(private.len()).expect("short private data");
    out.responder_resources = 4;
    out.initiator_depth = 2;
    out.retry_count = 5;
    out.rnr_retry_count = 6;
    out
}

fn connect(id: Id, qp_num: u32, private: &[u8]) -> Result<(), Failed> {
    let mut param = param(qp_num, private);
    // SAFETY: live identifier; the private data outlives the call.
    check("rdma_connect", unsafe { sys::rdma_connect(id, &raw mut param) })
}

fn accept(id: Id, qp_num: u32, private: &[u8]) -> Result<(), Failed> {
    let mut param = param(qp_num, private);
    // SAFETY: live identifier; the private data outlives the call.
    check("rdma_accept", unsafe { sys::rdma_accept(id, &raw mut param) })
}

fn attributes(id: Id, state: u32) -> Result<(sys::ibv_qp_attr, i32), Failed> {
    // SAFETY: all-zero is a valid ibv_qp_attr.
    let mut attr: sys::ibv_qp_attr = unsafe { std::mem::zeroed() };
    let mut mask = 0;
    attr.qp_state = state;
    // SAFETY: live identifier, valid places.
    check("rdma_init_qp_attr", unsafe { sys::rdma_init_qp_attr(id, &raw mut attr, &raw mut mask) })?;
    Ok((attr, mask))
}

fn the_library_finds_the_device_by_its_guid() -> Result<(), Failed> {
    let channel = Channel::create()?;
    let (listener, port) = listener(&channel)?;
    let active = resolved(&channel, port)?;
    // SAFETY: a resolved identifier has a device that lives at least as long.
    unsafe {
        let device = (*(*active).verbs).device;
        assert_eq!(CStr::from_ptr(sys::ibv_get_device_name(device)), c"mlx5_0");
        assert_eq!(u64::from_be(sys::ibv_get_device_guid(device)), mlx5_emu::gids::NODE_GUID);
        assert_eq!((*active).port_num, 1);
        assert_eq!((*active).route.num_paths, 1);
    }
    destroy(active)?;
    destroy(listener)
}

fn both_ends_connect_and_part_on_one_channel() -> Result<(), Failed> {
    let channel = Channel::create()?;
    let (listener, port) = listener(&channel)?;
    let active = resolved(&channel, port)?;
    connect(active, 0x1234, b"request")?;
    let request = channel.expect(kind::RDMA_CM_EVENT_CONNECT_REQUEST)?;
    assert_eq!((request.private.len(), &request.private[..7]), (56, &b"request"[..]));
    assert_eq!(request.qp_num, 0x1234);
    accept(request.id, 0x5678, b"answer")?;
    let response = channel.expect(kind::RDMA_CM_EVENT_CONNECT_RESPONSE)?;
    assert_eq!((response.private.len(), &response.private[..6]), (196, &b"answer"[..]));
    assert_eq!((response.id, response.qp_num), (active, 0x5678));
    // SAFETY: live identifier.
    check("rdma_establish", unsafe { sys::rdma_establish(active) })?;
    assert_eq!(channel.expect(kind::RDMA_CM_EVENT_ESTABLISHED)?.id, request.id);

    let (rtr, mask) = attributes(active, sys::ibv_qp_state::IBV_QPS_RTR)?;
    assert_eq!(mask, 0x0012_9181, "STATE AV PATH_MTU RQ_PSN MIN_RNR_TIMER MAX_DEST_RD_ATOMIC DEST_QPN");
    assert_eq!((rtr.dest_qp_num, rtr.ah_attr.is_global, rtr.ah_attr.port_num), (0x5678, 1, 1));
    let (rts, _) = attributes(request.id, sys::ibv_qp_state::IBV_QPS_RTS)?;
    assert_eq!(rts.sq_psn, rtr.rq_psn);
    assert_eq!((rts.retry_cnt, rts.rnr_retry, rts.max_rd_atomic), (5, 6, 2));

    // SAFETY: live identifiers.
    unsafe {
        check("rdma_disconnect", sys::rdma_disconnect(active))?;
        assert_eq!(channel.expect(kind::RDMA_CM_EVENT_DISCONNECTED)?.id, request.id);
        check("rdma_disconnect", sys::rdma_disconnect(request.id))?;
        assert_eq!(channel.expect(kind::RDMA_CM_EVENT_DISCONNECTED)?.id, active);
    }
    channel.expect(kind::RDMA_CM_EVENT_TIMEWAIT_EXIT)?;
    channel.expect(kind::RDMA_CM_EVENT_TIMEWAIT_EXIT)?;
    // These calls would hang if the counts of reported and acknowledged events differed.
    destroy(active)?;
    destroy(request.id)?;
    destroy(listener)
}

fn a_rejection_arrives_with_reason_and_words() -> Result<(), Failed> {
    let channel = Channel::create()?;
    let (listener, port) = listener(&channel)?;
    let active = resolved(&channel, port)?;
    connect(active, 1, b"")?;
    let request = channel.expect(kind::RDMA_CM_EVENT_CONNECT_REQUEST)?;
    // SAFETY: live identifier, two bytes of private data.
    check("rdma_reject", unsafe { sys::rdma_reject(request.id, c"no".as_ptr().cast(), 2) })?;
    let rejected = channel.event()?;
    assert_eq!((rejected.kind, rejected.status), (kind::RDMA_CM_EVENT_REJECTED, 28));
    assert_eq!((rejected.private.len(), &rejected.private[..3]), (148, &b"no\0"[..]));
    destroy(request.id)?;
    destroy(active)?;
    destroy(listener)
}

fn nobody_there_is_connection_refused_for_a_synchronous_identifier() -> Result<(), Failed> {
    let mut id = ptr::null_mut();
    let mut dst = sockaddr("127.0.0.1:1");
    let space = sys::rdma_port_space::RDMA_PS_TCP;
    // SAFETY: valid places; a null channel makes the calls wait for their events.
    unsafe {
        check("rdma_create_id", sys::rdma_create_id(ptr::null_mut(), &raw mut id, ptr::null_mut(), space))?;
        let dst = (&raw mut dst).cast();
        check("rdma_resolve_addr", sys::rdma_resolve_addr(id, ptr::null_mut(), dst, TIMEOUT_MS))?;
        check("rdma_resolve_route", sys::rdma_resolve_route(id, TIMEOUT_MS))?;
        let mut param = param(1, b"");
        assert_eq!(sys::rdma_connect(id, &raw mut param), -1);
        assert_eq!(std::io::Error::last_os_error().kind(), std::io::ErrorKind::ConnectionRefused);
    }
    destroy(id)
}

fn a_listener_that_goes_while_requests_wait_does_not_hang() -> Result<(), Failed> {
    let channel = Channel::create()?;
    let (listener, port) = listener(&channel)?;
    let callers = Channel::create()?;
    let active = resolved(&callers, port)?;
    connect(active, 1, b"")?;
    destroy(listener)?;
    let rejected = callers.event()?;
    assert_eq!((rejected.kind, rejected.status), (kind::RDMA_CM_EVENT_REJECTED, 28));
    destroy(active)
}

fn a_migrated_identifier_gets_its_events_on_the_new_channel() -> Result<(), Failed> {
    let [old, new] = [Channel::create()?, Channel::create()?];
    let id = old.id()?;
    let mut dst = sockaddr("127.0.0.1:1");
    // SAFETY: live identifier, channel and address.
    unsafe {
        let dst = (&raw mut dst).cast();
        check("rdma_resolve_addr", sys::rdma_resolve_addr(id, ptr::null_mut(), dst, TIMEOUT_MS))?;
        check("rdma_migrate_id", sys::rdma_migrate_id(id, new.0))?;
    }
    new.expect(kind::RDMA_CM_EVENT_ADDR_RESOLVED)?;
    destroy(id)
}

fn main() -> ExitCode {
    // SAFETY: no other thread exists yet.
    unsafe { std::env::set_var("MLX5_EMU_SESSION", format!("librdmacm-test-{}", std::process::id())) };
    mlx5_emu::init();
    let mut trials = Vec::new();
    macro_rules! trials {
        ($($name:ident),* $(,)?) => { $(trials.push(Trial::test(stringify!($name), $name));)* };
    }
    trials!(
        the_library_finds_the_device_by_its_guid,
        both_ends_connect_and_part_on_one_channel,
        a_rejection_arrives_with_reason_and_words,
        nobody_there_is_connection_refused_for_a_synchronous_identifier,
        a_listener_that_goes_while_requests_wait_does_not_hang,
        a_migrated_identifier_gets_its_events_on_the_new_channel,
    );
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}
