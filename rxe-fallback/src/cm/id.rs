//! The rdma_cm id: a listener, or one end of a connection.
#![expect(unsafe_code, reason = "calls into librdmacm")]

use std::ffi::CStr;
use std::ffi::c_void;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::ptr::{self, NonNull};
use std::sync::MutexGuard;
use std::time::Duration;

use doorbell_sys as sys;
use nix::sys::socket::{SockaddrLike, SockaddrStorage};

use super::channel::EventChannel;
use super::param::{ConnParam, OwnAttr};
use crate::ah::AhAttr;
use crate::device::{Context, Gid, GidKind, LinkLayer};
use crate::error::{Error, Result, check_errno};
use crate::qp::{AttrMask, Qp, QpAttr, QpState};

/// Bytes of private data that `connect` can carry between InfiniBand or RoCE ends.
///
/// A request has 92 bytes, of which rdma_cm takes 36. An answer has 196, a rejection 148.
pub const MAX_CONNECT_DATA: usize = 56;

/// Bytes of private data that `connect` can carry in [`PortSpace::Udp`].
///
/// A request has 216 bytes, of which rdma_cm takes 36. An answer of any kind has 136.
pub const MAX_RESOLVE_DATA: usize = 180;

/// The queue key in rdma_cm's answers in [`PortSpace::Udp`]. UD QPs that receive such datagrams
/// need this key.
///
/// # References
/// rdma/rdma_cma.h, `RDMA_UDP_QKEY`
pub const DATAGRAM_QKEY: u32 = 0x0123_4567;

/// The kind of an id; each kind has a port space of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PortSpace {
    /// Reliable connections.
    Tcp,
    /// Datagrams: resolution of a peer's QP number and address.
    Udp,
}

/// An rdma_cm identifier, for a QP that the caller owns.
///
/// Dropping it ends its work: a listener stops, an unaccepted request is rejected, a connection is
/// disconnected.
#[derive(Debug)]
pub struct CmId {
    raw: NonNull<sys::rdma_cm_id>,
    channel: EventChannel,
}

// SAFETY: every access to the id happens under its channel's lock.
unsafe impl Send for CmId {}
// SAFETY: as above.
unsafe impl Sync for CmId {}

impl CmId {
    /// Creates an id for a connection, whose events arrive on `channel` with `token`.
    ///
    /// # Errors
    /// `rdma_create_id`'s errno.
    ///
    /// # References
    /// rdma_create_id(3)
    pub fn create(channel: &EventChannel, token: u64) -> Result<Self> {
        Self::create_in(PortSpace::Tcp, channel, token)
    }

    /// Creates an id in this port space.
    ///
    /// # Errors
    /// As [`CmId::create`].
    pub fn create_in(space: PortSpace, channel: &EventChannel, token: u64) -> Result<Self> {
        let _guard = channel.lock();
        let mut raw = ptr::null_mut();
        // SAFETY: the channel is alive and held as long as the id lives.
        let returned = unsafe {
            let space = match space {
                PortSpace::Tcp => sys::rdma_port_space::RDMA_PS_TCP,
                PortSpace::Udp => sys::rdma_port_space::RDMA_PS_UDP,
            };
            sys::rdma_create_id(channel.raw(), &mut raw, crate::token_into(token), space)
        };
        check_errno("rdma_create_id", returned)?;
        let raw = NonNull::new(raw).ok_or_else(|| Error::new("rdma_create_id", libc::ENOMEM))?;
        Ok(Self { raw, channel: channel.clone() })
    }

    /// Takes over the id of a connection request.
    ///
    /// # Safety
    /// `raw` is a live id on `channel` that nobody else owns.
    pub(super) unsafe fn adopt(raw: *mut sys::rdma_cm_id, channel: &EventChannel) -> Option<Self> {
        Some(Self { raw: NonNull::new(raw)?, channel: channel.clone() })
    }

    fn lock(&self) -> (MutexGuard<'_, ()>, *mut sys::rdma_cm_id) {
        (self.channel.lock(), self.raw.as_ptr())
    }

    /// As `lock`, for calls that use the id's device pointer without a check.
    fn lock_with_device(&self, verb: &'static str) -> Result<(MutexGuard<'_, ()>, *mut sys::rdma_cm_id)> {
        let (guard, raw) = self.lock();
        // SAFETY: the id is alive, and the lock is held.
        if unsafe { (*raw).verbs }.is_null() {
            return Err(Error::invalid(
                verb,
                "the id has no device yet: resolve an address or bind to one first",
            ));
        }
        Ok((guard, raw))
    }

    /// The token that the id's events carry.
    #[must_use]
    pub fn token(&self) -> u64 {
        let (_guard, raw) = self.lock();
        // SAFETY: the id is alive, and the lock is held.
        crate::token_from(unsafe { (*raw).context })
    }

    /// Sets another token, which events that are read from now on carry.
    pub fn set_token(&self, token: u64) {
        let (_guard, raw) = self.lock();
        // SAFETY: as in `token`; librdmacm only passes the pointer on.
        unsafe { (*raw).context = crate::token_into(token) };
    }

    /// The channel on which the id's events arrive.
    #[must_use]
    pub fn channel(&self) -> &EventChannel {
        &self.channel
    }

    /// Binds the id to a local address. Port 0 selects a free port; the unspecified address means
    /// all devices.
    ///
    /// # Errors
    /// EADDRINUSE if the port is in use; EADDRNOTAVAIL or ENODEV if no RDMA device has the address.
    ///
    /// # References
    /// rdma_bind_addr(3)
    pub fn bind(&self, address: SocketAddr) -> Result<()> {
        let mut storage = SockaddrStorage::from(address);
        let (_guard, raw) = self.lock();
        // SAFETY: the id is alive; librdmacm copies as many bytes as the address family has.
        let returned = unsafe { sys::rdma_bind_addr(raw, sockaddr(&mut storage)) };
        check_errno("rdma_bind_addr", returned).map_err(|error| match error.errno() {
            libc::EADDRINUSE => error.with_detail(format!("{address} is in use")),
            libc::EADDRNOTAVAIL | libc::ENODEV => {
                error.with_detail(format!("no RDMA device has {}", address.ip()))
            }
            _ => error.with_detail(address.to_string()),
        })
    }

    /// Listens for connection requests, of which `backlog` may wait.
    ///
    /// # Errors
    /// EADDRINUSE if another id listens there; otherwise `rdma_listen`'s errno.
    ///
    /// # References
    /// rdma_listen(3)
    pub fn listen(&self, backlog: u32) -> Result<()> {
        let (_guard, raw) = self.lock();
        // SAFETY: the id is alive.
        let returned = unsafe { sys::rdma_listen(raw, i32::try_from(backlog).unwrap_or(i32::MAX)) };
        check_errno("rdma_listen", returned)
    }

    /// Starts resolving the address `dst`, which finds the device; ends with `AddrResolved` or
    /// `AddrError`.
    ///
    /// The kernel misses an answer (ARP) that comes before it has queued the request, and then
    /// looks again only when `timeout` expires (kernel drivers/infiniband/core/addr.c). After
    /// `AddrError` with ETIMEDOUT the call can be repeated, so a short `timeout` first costs
    /// little.
    ///
    /// # Errors
    /// ENODEV if no RDMA device reaches `dst`; EADDRNOTAVAIL for a `src` that is not a local
    /// address; EINVAL in another state.
    ///
    /// # References
    /// rdma_resolve_addr(3)
    pub fn resolve_addr(&self, src: Option<SocketAddr>, dst: SocketAddr, timeout: Duration) -> Result<()> {
        let mut src = src.map(SockaddrStorage::from);
        let mut storage = SockaddrStorage::from(dst);
        let src = src.as_mut().map_or(ptr::null_mut(), sockaddr);
        let (_guard, raw) = self.lock();
        // SAFETY: the id is alive; librdmacm copies as many bytes as the address families have.
        let returned = unsafe { sys::rdma_resolve_addr(raw, src, sockaddr(&mut storage), millis(timeout)) };
        check_errno("rdma_resolve_addr", returned).map_err(|error| match error.errno() {
            libc::ENODEV => error.with_detail(format!("no RDMA device reaches {}", dst.ip())),
            _ => error.with_detail(dst.to_string()),
        })
    }

    /// Starts resolving the route; ends with `RouteResolved` or `RouteError`.
    ///
    /// # Errors
    /// EINVAL before `AddrResolved`; else `rdma_resolve_route`'s errno.
    ///
    /// # References
    /// rdma_resolve_route(3)
    pub fn resolve_route(&self, timeout: Duration) -> Result<()> {
        let verb = "rdma_resolve_route";
        let (_guard, raw) = self.lock_with_device(verb)?;
        // SAFETY: the id is alive and has a device.
        check_errno(verb, unsafe { sys::rdma_resolve_route(raw, millis(timeout)) })
    }

    /// Sends a connection request; ends with `ConnectResponse`, `Rejected`, `Unreachable` or
    /// `ConnectError`.
    ///
    /// # Errors
    /// EINVAL before `RouteResolved`, for too much private data, or for more RDMA reads than the
    /// device supports.
    ///
    /// # References
    /// rdma_connect(3)
    pub fn connect(&self, param: &ConnParam<'_>) -> Result<()> {
        let verb = "rdma_connect";
        let mut raw_param = param.to_sys(verb)?;
        let (_guard, raw) = self.lock_with_device(verb)?;
        // SAFETY: the id is alive and has a device; the private data lives for the call.
        check_errno(verb, unsafe { sys::rdma_connect(raw, &mut raw_param) }).map_err(|e| param.hint(e))
    }

    /// Accepts a connection request; ends with `Established`. The QP is ready to send by then
    /// ([`CmId::qp_to_rts`]).
    ///
    /// # Errors
    /// As [`CmId::connect`]; also if the peer has given up meanwhile, which no event reports.
    ///
    /// # References
    /// rdma_accept(3)
    pub fn accept(&self, param: &ConnParam<'_>) -> Result<()> {
        let verb = "rdma_accept";
        let mut raw_param = param.to_sys(verb)?;
        let (_guard, raw) = self.lock_with_device(verb)?;
        // SAFETY: the id is alive and has a device; the private data lives for the call. With no QP
        // of librdmacm's in the id, number and SRQ flag are taken from the parameters.
        check_errno(verb, unsafe { sys::rdma_accept(raw, &mut raw_param) }).map_err(|e| param.hint(e))
    }

    /// Rejects a connection request.
    ///
    /// # Errors
    /// EINVAL without a request, or for too much private data.
    ///
    /// # References
    /// rdma_reject(3)
    pub fn reject(&self, private_data: &[u8]) -> Result<()> {
        let verb = "rdma_reject";
        let len = u8::try_from(private_data.len())
            .map_err(|_| Error::invalid(verb, format!("{} bytes of private data", private_data.len())))?;
        let (_guard, raw) = self.lock();
        // SAFETY: the id is alive; the data lives for the call.
        check_errno(verb, unsafe { sys::rdma_reject(raw, private_data.as_ptr().cast(), len) })
    }

    /// Confirms the peer's answer (RTU), after `ConnectResponse` and [`CmId::qp_to_rts`].
    ///
    /// # Errors
    /// `rdma_establish`'s errno.
    ///
    /// # References
    /// rdma_establish(3)
    pub fn establish(&self) -> Result<()> {
        let (_guard, raw) = self.lock();
        // SAFETY: the id is alive and has no QP of librdmacm's.
        check_errno("rdma_establish", unsafe { sys::rdma_establish(raw) })
    }

    /// Ends the connection, or answers a `Disconnected` of the peer. The peer gets its own event
    /// `Disconnected` only after that answer, or after half a minute of retries, or when this id is
    /// dropped. The caller moves the QP to the error state (`to_error`).
    ///
    /// # Errors
    /// EINVAL or ENOTCONN when there is no connection.
    ///
    /// # References
    /// rdma_disconnect(3)
    pub fn disconnect(&self) -> Result<()> {
        let (_guard, raw) = self.lock();
        // SAFETY: the id is alive; the call looks whether it has a device.
        check_errno("rdma_disconnect", unsafe { sys::rdma_disconnect(raw) })
    }

    /// Tells rdma_cm that data arrived before the peer's RTU (an asynchronous
    /// [`CommunicationEstablished`](crate::AsyncKind::CommunicationEstablished) on the QP).
    ///
    /// # Errors
    /// `rdma_notify`'s errno.
    ///
    /// # References
    /// rdma_notify(3)
    pub fn notify_comm_established(&self) -> Result<()> {
        let (_guard, raw) = self.lock();
        // SAFETY: the id is alive.
        let returned = unsafe { sys::rdma_notify(raw, sys::ibv_event_type::IBV_EVENT_COMM_EST) };
        check_errno("rdma_notify", returned)
    }

    /// The attributes that a QP of this connection needs for `state`.
    ///
    /// # Errors
    /// EINVAL in an earlier state of the connection.
    ///
    /// # References
    /// rdma_init_qp_attr(3)
    pub fn init_qp_attr(&self, state: QpState) -> Result<(QpAttr, AttrMask)> {
        let mut attr = QpAttr::for_state(state);
        let mut mask = 0;
        let (_guard, raw) = self.lock();
        // SAFETY: the id is alive and the struct whole.
        check_errno("rdma_init_qp_attr", unsafe { sys::rdma_init_qp_attr(raw, &mut attr.0, &mut mask) })?;
        Ok((attr, AttrMask::from_bits_retain(mask.cast_unsigned())))
    }

    /// Moves `qp` to init, in which receives can be posted.
    ///
    /// # Errors
    /// EINVAL before the id has a device; else `ibv_modify_qp`'s errno.
    pub fn qp_to_init(&self, qp: &Qp) -> Result<()> {
        let (attr, mask) = self.init_qp_attr(QpState::Init)?;
        qp.modify(&attr, mask)
    }

    /// Moves `qp` from reset or init to ready-to-send: after `ConnectResponse` (active), before
    /// `accept` (passive).
    ///
    /// `responder_resources` and `initiator_depth` replace the values of rdma_cm, which on the
    /// passive side are those of the request only; pass the values of the `accept` there.
    ///
    /// # Errors
    /// EINVAL in an earlier state of the connection; else `ibv_modify_qp`'s errno.
    pub fn qp_to_rts(
        &self,
        qp: &Qp,
        responder_resources: Option<u8>,
        initiator_depth: Option<u8>,
    ) -> Result<()> {
        self.qp_to_rts_with(qp, &OwnAttr { responder_resources, initiator_depth, ..OwnAttr::default() })
    }

    /// As [`CmId::qp_to_rts`], with more values that replace those of rdma_cm.
    ///
    /// # Errors
    /// As [`CmId::qp_to_rts`].
    pub fn qp_to_rts_with(&self, qp: &Qp, own: &OwnAttr) -> Result<()> {
        // rdma_cm knows the remote access flags of the connection only now.
        let (init, init_mask) = self.init_qp_attr(QpState::Init)?;
        let (mut attr, mut mask) = self.init_qp_attr(QpState::Rtr)?;
        if qp.init_port() == Some(init.0.port_num) {
            // The QP is in INIT, and takes them on its way to RTR.
            attr.0.qp_access_flags = init.0.qp_access_flags;
            attr.0.pkey_index = init.0.pkey_index;
            mask |= init_mask & (AttrMask::ACCESS_FLAGS | AttrMask::PKEY_INDEX);
        } else {
            qp.modify(&init, init_mask)?;
        }
        let set = |field: &mut u8, to: Option<u8>| *field = to.unwrap_or(*field);
        set(&mut attr.0.max_dest_rd_atomic, own.responder_resources);
        set(&mut attr.0.min_rnr_timer, own.rnr_timer);
        if qp.pd().context().link_layer(self.port_num()) == Ok(LinkLayer::InfiniBand) {
            // Bits 21 to 23 are RoCE's, and rdma_ucm sets them for InfiniBand as well.
            mask = AttrMask::from_bits_retain(mask.bits() & !0xe0_0000);
        }
        qp.modify(&attr, mask)?;
        let (mut attr, mask) = self.init_qp_attr(QpState::Rts)?;
        set(&mut attr.0.max_rd_atomic, own.initiator_depth);
        set(&mut attr.0.rnr_retry, own.rnr_retry);
        set(&mut attr.0.retry_cnt, own.retry_count);
        set(&mut attr.0.timeout, own.timeout);
        qp.modify(&attr, mask)
    }

    /// Moves the id's events to `channel`.
    ///
    /// # Errors
    /// `rdma_migrate_id`'s errno; the id then stays on its channel.
    ///
    /// # References
    /// rdma_migrate_id(3)
    pub fn migrate(&mut self, channel: &EventChannel) -> Result<()> {
        if channel.same(&self.channel) {
            return Ok(());
        }
        let old = self.channel.clone();
        // The locks are taken in the order of their addresses, so that two threads that migrate in
        // opposite directions do not deadlock.
        let (first, second) = if old.raw() < channel.raw() { (&old, channel) } else { (channel, &old) };
        let guards = (first.lock(), second.lock());
        // SAFETY: id and channels are alive; both locks are held. No event of the id is
        // unacknowledged.
        let returned = unsafe { sys::rdma_migrate_id(self.raw.as_ptr(), channel.raw()) };
        let result = check_errno("rdma_migrate_id", returned);
        if result.is_ok() {
            self.channel = channel.clone();
        }
        drop(guards);
        result
    }

    /// The local address; `None` before the id has one.
    #[must_use]
    pub fn local_addr(&self) -> Option<SocketAddr> {
        let (_guard, raw) = self.lock();
        // SAFETY: the id is alive and the lock held; both unions hold a socket address at their
        // start.
        unsafe { socket_addr(&(*raw).route.addr.src_addr_union.src_storage) }
    }

    /// The peer's address; `None` before the id has one.
    #[must_use]
    pub fn peer_addr(&self) -> Option<SocketAddr> {
        let (_guard, raw) = self.lock();
        // SAFETY: as in `local_addr`.
        unsafe { socket_addr(&(*raw).route.addr.dst_addr_union.dst_storage) }
    }

    /// The port space of the id.
    #[must_use]
    pub fn port_space(&self) -> PortSpace {
        let (_guard, raw) = self.lock();
        // SAFETY: the id is alive and the lock held.
        let udp = unsafe { (*raw).ps } == sys::rdma_port_space::RDMA_PS_UDP;
        if udp { PortSpace::Udp } else { PortSpace::Tcp }
    }

    /// The path to the peer's port, for an address handle; from `RouteResolved` on.
    ///
    /// # Errors
    /// EINVAL before `RouteResolved`; EADDRNOTAVAIL if `context`, which must be the id's device,
    /// has no longer that address.
    pub fn path(&self, context: &Context) -> Result<AhAttr> {
        let verb = "rdma_resolve_route";
        let (guard, raw) = self.lock();
        // SAFETY: the id is alive and the lock held; librdmacm points to as many records as it
        // says.
        let (port, record) = unsafe {
            let route = &(*raw).route;
            let there = route.num_paths > 0 && !route.path_rec.is_null();
            ((*raw).port_num, there.then(|| ptr::read(route.path_rec)))
        };
        drop(guard);
        let Some(record) = record else { return Err(Error::invalid(verb, "the route is not resolved yet")) };
        let attr = context.port(port)?;
        let ethernet = attr.link_layer == LinkLayer::Ethernet;
        // Inside one InfiniBand subnet, local identifiers are enough.
        let global = ethernet || record.hop_limit > 1;
        let here = Gid::from_sys(&record.sgid);
        let entries = if global { context.gids(port)? } else { Vec::new() };
        let mut fitting: Vec<_> = entries.iter().filter(|entry| entry.gid == here).collect();
        // If several GIDs have the address, the same choice as rdma_cm makes.
        fitting.sort_by_key(|entry| entry.kind != GidKind::RoceV2);
        let sgid_index = match fitting.first() {
            Some(entry) => entry.index as u8,
            None if global => return Err(Error::new(verb, libc::EADDRNOTAVAIL)),
            None => 0,
        };
        Ok(AhAttr {
            port,
            dgid: global.then(|| Gid::from_sys(&record.dgid)),
            sgid_index,
            // On Ethernet, a path without routers has 0 or 1 here.
            hop_limit: if record.hop_limit > 1 { record.hop_limit } else { 64 },
            traffic_class: record.traffic_class,
            flow_label: u32::from_be(record.flow_label) & 0xf_ffff,
            dlid: u16::from_be(record.dlid),
            sl: record.sl,
            src_path_bits: ((u16::from_be(record.slid) ^ attr.lid) & 0x7f) as u8,
            static_rate: 0,
        })
    }

    /// The name of the id's device, for [`Context::open`](crate::Context::open); `None` before the
    /// id has a device.
    #[must_use]
    pub fn device_name(&self) -> Option<String> {
        let (_guard, raw) = self.lock();
        // SAFETY: the id is alive and the lock held; its context, if any, is open and its device
        // has a name.
        unsafe {
            let verbs = (*raw).verbs.as_ref()?;
            let name = sys::ibv_get_device_name(verbs.device);
            (!name.is_null()).then(|| CStr::from_ptr(name).to_string_lossy().into_owned())
        }
    }

    /// The port of the id's device; 0 before the id has one.
    #[must_use]
    pub fn port_num(&self) -> u8 {
        let (_guard, raw) = self.lock();
        // SAFETY: the id is alive and the lock held.
        unsafe { (*raw).port_num }
    }

    /// The librdmacm object; valid while this id lives.
    ///
    /// Its fields change while events of its channel are read.
    #[must_use]
    pub fn as_raw(&self) -> *mut c_void {
        self.raw().cast()
    }

    pub(crate) fn raw(&self) -> *mut sys::rdma_cm_id {
        self.raw.as_ptr()
    }
}

impl Drop for CmId {
    fn drop(&mut self) {
        let (_guard, raw) = self.lock();
        // SAFETY: owned by this handle and freed only here. Every event of it that was read has
        // been acknowledged, so the call does not wait for one.
        let returned = unsafe { sys::rdma_destroy_id(raw) };
        crate::log_failed_drop("rdma_destroy_id", returned);
    }
}

fn sockaddr(storage: &mut SockaddrStorage) -> *mut libc::sockaddr {
    storage.as_ptr().cast_mut()
}

fn millis(timeout: Duration) -> i32 {
    i32::try_from(timeout.as_millis()).unwrap_or(i32::MAX)
}

fn socket_addr(storage: &libc::sockaddr_storage) -> Option<SocketAddr> {
    let at = ptr::from_ref(storage);
    match i32::from(storage.ss_family) {
        libc::AF_INET => {
            // SAFETY: the family says which struct it is, and the storage is large enough for
            // either.
            let v4 = unsafe { &*at.cast::<libc::sockaddr_in>() };
            let ip = Ipv4Addr::from(u32::from_be(v4.sin_addr.s_addr));
            Some(SocketAddr::new(IpAddr::V4(ip), u16::from_be(v4.sin_port)))
        }
        libc::AF_INET6 => {
            // SAFETY: as above.
            let v6 = unsafe { &*at.cast::<libc::sockaddr_in6>() };
            let ip = Ipv6Addr::from(v6.sin6_addr.s6_addr);
            let address =
                SocketAddrV6::new(ip, u16::from_be(v6.sin6_port), v6.sin6_flowinfo, v6.sin6_scope_id);
            Some(SocketAddr::V6(address))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_come_back_from_their_c_form() {
        for text in ["10.9.0.1:4791", "[fe80::1%3]:7", "[2001:db8::1]:65535"] {
            let address: SocketAddr = text.parse().unwrap();
            let form = SockaddrStorage::from(address);
            // SAFETY: a SockaddrStorage is a sockaddr_storage with the family set.
            let storage = unsafe { &*form.as_ptr().cast::<libc::sockaddr_storage>() };
            assert_eq!(socket_addr(storage), Some(address));
        }
    }

    #[test]
    fn unset_address_is_none() {
        // SAFETY: plain integers, for which zeroes are valid.
        let storage: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
        assert_eq!(socket_addr(&storage), None);
    }

    #[test]
    fn long_timeouts_do_not_wrap() {
        assert_eq!(millis(Duration::MAX), i32::MAX);
        assert_eq!(millis(Duration::from_millis(1500)), 1500);
    }
}
