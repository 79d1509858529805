//! rdma_cm events: reading them from a channel, as owned values.
#![expect(unsafe_code, reason = "calls into librdmacm, and reads its structs")]

use std::os::fd::AsFd;
use std::ptr;
use std::time::{Duration, Instant};

use doorbell_sys as sys;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::channel::EventChannel;
use super::id::CmId;
use crate::ah::AhAttr;
use crate::error::{Error, Result, check_errno};

/// The kinds of rdma_cm events.
///
/// # References
/// rdma_get_cm_event(3)
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the names are those of enum rdma_cm_event_type")]
pub enum CmEventKind {
    AddrResolved,
    AddrError,
    RouteResolved,
    RouteError,
    ConnectRequest,
    ConnectResponse,
    ConnectError,
    Unreachable,
    Rejected,
    Established,
    Disconnected,
    DeviceRemoval,
    MulticastJoin,
    MulticastError,
    AddrChange,
    TimewaitExit,
    /// A value this crate does not know.
    Other(u32),
}

impl From<u32> for CmEventKind {
    fn from(value: u32) -> Self {
        use sys::rdma_cm_event_type as t;
        match value {
            t::RDMA_CM_EVENT_ADDR_RESOLVED => CmEventKind::AddrResolved,
            t::RDMA_CM_EVENT_ADDR_ERROR => CmEventKind::AddrError,
            t::RDMA_CM_EVENT_ROUTE_RESOLVED => CmEventKind::RouteResolved,
            t::RDMA_CM_EVENT_ROUTE_ERROR => CmEventKind::RouteError,
            t::RDMA_CM_EVENT_CONNECT_REQUEST => CmEventKind::ConnectRequest,
            t::RDMA_CM_EVENT_CONNECT_RESPONSE => CmEventKind::ConnectResponse,
            t::RDMA_CM_EVENT_CONNECT_ERROR => CmEventKind::ConnectError,
            t::RDMA_CM_EVENT_UNREACHABLE => CmEventKind::Unreachable,
            t::RDMA_CM_EVENT_REJECTED => CmEventKind::Rejected,
            t::RDMA_CM_EVENT_ESTABLISHED => CmEventKind::Established,
            t::RDMA_CM_EVENT_DISCONNECTED => CmEventKind::Disconnected,
            t::RDMA_CM_EVENT_DEVICE_REMOVAL => CmEventKind::DeviceRemoval,
            t::RDMA_CM_EVENT_MULTICAST_JOIN => CmEventKind::MulticastJoin,
            t::RDMA_CM_EVENT_MULTICAST_ERROR => CmEventKind::MulticastError,
            t::RDMA_CM_EVENT_ADDR_CHANGE => CmEventKind::AddrChange,
            t::RDMA_CM_EVENT_TIMEWAIT_EXIT => CmEventKind::TimewaitExit,
            other => CmEventKind::Other(other),
        }
    }
}

/// An event, already acknowledged.
#[derive(Debug)]
pub struct CmEvent {
    /// What happened.
    pub kind: CmEventKind,
    /// Token of the event's id; for a connection request that of the listener, until the new id
    /// gets its own.
    pub token: u64,
    /// Token of the listener; connection requests only.
    pub listener_token: Option<u64>,
    /// 0, or a negative errno, or for `Rejected` the reason of the protocol (28: by the consumer).
    pub status: i32,
    /// The peer's private data; InfiniBand and RoCE pad it with zeroes to the size of the message.
    pub private_data: Vec<u8>,
    /// The peer's parameters; all 0 for events without them.
    pub conn: ConnInfo,
    /// The destination of datagrams to the peer, once it has answered: `Established` of an id of
    /// [`PortSpace::Udp`](super::PortSpace).
    pub datagrams: Option<DatagramPeer>,
    /// The id of the requested connection; connection requests only. Dropping it rejects.
    pub new_id: Option<CmId>,
}

/// The peer's parameters, from this side's view.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ConnInfo {
    /// The number of the peer's RDMA reads and atomics that this side may have to serve at a time.
    pub responder_resources: u8,
    /// The number of RDMA reads and atomics that this side may have outstanding.
    pub initiator_depth: u8,
    /// Whether the peer uses end-to-end flow control.
    pub flow_control: bool,
    /// Retries after a timeout; connection requests only.
    pub retry_count: u8,
    /// Retries after "receiver not ready".
    pub rnr_retry_count: u8,
    /// Whether the peer's QP takes its receives from an SRQ.
    pub srq: bool,
    /// The peer's QP number.
    pub qp_num: u32,
}

/// The destination of datagrams to a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DatagramPeer {
    /// The peer's QP number.
    pub qp_num: u32,
    /// The peer's queue key.
    pub qkey: u32,
    /// The path to the peer.
    pub path: AhAttr,
}

/// The status of an `Unreachable` when the peer's program rejected a request for datagrams (IBTA
/// 16.7.2).
const SIDR_REJECT: i32 = 2;

/// The reject reason when the peer's consumer called `rdma_reject` (IBTA 12.6.7.2).
const CONSUMER_REJECT: i32 = 28;
/// The reject reason if the peer does not listen at the service.
const INVALID_SERVICE_ID: i32 = 8;

impl CmEvent {
    /// # Safety
    /// `raw` was read from `channel` and not yet acknowledged, and the channel's lock is held.
    unsafe fn copy_out(raw: &sys::rdma_cm_event, channel: &EventChannel) -> Self {
        let kind = CmEventKind::from(raw.event);
        // SAFETY: librdmacm gives each event a live id; the lock keeps it so.
        let token = crate::token_from(unsafe { (*raw.id).context });
        let mut event = Self {
            kind,
            token,
            listener_token: None,
            status: raw.status,
            private_data: Vec::new(),
            conn: ConnInfo::default(),
            datagrams: None,
            new_id: None,
        };
        // SAFETY: as above; the port space of an id does not change.
        let (data, len) = if unsafe { (*raw.id).ps } == sys::rdma_port_space::RDMA_PS_UDP {
            // SAFETY: for such ids the union holds `ud`, or zeroes.
            let ud = unsafe { &raw.param.ud };
            if kind == CmEventKind::Established {
                let path = AhAttr::from_sys(&ud.ah_attr);
                event.datagrams = Some(DatagramPeer { qp_num: ud.qp_num, qkey: ud.qkey, path });
            }
            (ud.private_data, ud.private_data_len)
        } else {
            // SAFETY: the other ids here are RC (CmId::create), for which the union holds `conn`,
            // or zeroes.
            let conn = unsafe { &raw.param.conn };
            event.conn = ConnInfo {
                responder_resources: conn.responder_resources,
                initiator_depth: conn.initiator_depth,
                flow_control: conn.flow_control != 0,
                retry_count: conn.retry_count,
                rnr_retry_count: conn.rnr_retry_count,
                srq: conn.srq != 0,
                qp_num: conn.qp_num,
            };
            (conn.private_data, conn.private_data_len)
        };
        if !data.is_null() && len > 0 {
            // SAFETY: librdmacm points at that many bytes of the event, which is not yet
            // acknowledged.
            event.private_data =
                unsafe { std::slice::from_raw_parts(data.cast::<u8>(), usize::from(len)) }.to_vec();
        }
        if kind == CmEventKind::ConnectRequest && !raw.listen_id.is_null() {
            // SAFETY: as for `raw.id`.
            event.listener_token = Some(crate::token_from(unsafe { (*raw.listen_id).context }));
            // SAFETY: a connection request hands a new id over, which nobody else owns.
            event.new_id = unsafe { CmId::adopt(raw.id, channel) };
        }
        event
    }

    /// Whether the peer's program rejected the request, and not its kernel.
    #[must_use]
    pub fn rejected_by_consumer(&self) -> bool {
        self.kind == CmEventKind::Rejected && self.status == CONSUMER_REJECT
            // A rejected datagram request is an `Unreachable` with this status; other `Unreachable`
            // events have an errno.
            || self.kind == CmEventKind::Unreachable && self.status == SIDR_REJECT
    }

    /// Whether the request was rejected because the peer does not listen at the service.
    #[must_use]
    pub fn nobody_listens(&self) -> bool {
        self.kind == CmEventKind::Rejected && self.status == INVALID_SERVICE_ID
    }

    /// The event as an errno: 0 for success.
    #[must_use]
    pub fn errno(&self) -> i32 {
        match self.kind {
            CmEventKind::Rejected => libc::ECONNREFUSED,
            CmEventKind::Disconnected => libc::ECONNRESET,
            CmEventKind::DeviceRemoval => libc::ENODEV,
            CmEventKind::AddrError | CmEventKind::RouteError | CmEventKind::Unreachable
                if self.status == 0 =>
            {
                libc::EHOSTUNREACH
            }
            CmEventKind::ConnectError if self.status == 0 => libc::ECONNABORTED,
            _ => self.status.saturating_abs(),
        }
    }
}

impl EventChannel {
    /// The next event, acknowledged; `None` when there is none.
    ///
    /// # Errors
    /// `rdma_get_cm_event`'s errno.
    ///
    /// # References
    /// rdma_get_cm_event(3)
    pub fn next_event(&self) -> Result<Option<CmEvent>> {
        let _guard = self.lock();
        let mut raw = ptr::null_mut();
        // SAFETY: the channel is alive; the event is written before a 0 is returned. The lock keeps
        // every other call on ids of this channel out while their fields are written.
        let returned = unsafe { sys::rdma_get_cm_event(self.raw(), &mut raw) };
        if let Err(error) = check_errno("rdma_get_cm_event", returned) {
            return match error.errno() {
                libc::EAGAIN | libc::EINTR => Ok(None),
                _ => Err(error),
            };
        }
        // SAFETY: an event just read; its ids are alive because destroying them takes the lock held
        // here.
        let event = unsafe { CmEvent::copy_out(&*raw, self) };
        // SAFETY: acknowledged once, after everything was copied out.
        unsafe { sys::rdma_ack_cm_event(raw) };
        Ok(Some(event))
    }

    /// The next event, waiting for it for at most `timeout`.
    ///
    /// # Errors
    /// As [`EventChannel::next_event`].
    pub fn next_event_timeout(&self, timeout: Duration) -> Result<Option<CmEvent>> {
        let deadline = Instant::now() + timeout;
        loop {
            if let Some(event) = self.next_event()? {
                return Ok(Some(event));
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            let millis = left.as_millis().saturating_add(1).min(i32::MAX as u128) as i32;
            let mut fds = [PollFd::new(self.as_fd(), PollFlags::POLLIN)];
            match poll(&mut fds, PollTimeout::try_from(millis).unwrap_or(PollTimeout::MAX)) {
                Ok(_) | Err(nix::errno::Errno::EINTR) => {}
                Err(errno) => return Err(Error::new("poll", errno as i32)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn channel_opens_or_says_what_is_missing() {
        match EventChannel::create() {
            Ok(channel) => assert!(channel.next_event().unwrap().is_none()),
            Err(error) => assert!(error.detail().is_some(), "{error}"),
        }
    }

    fn event(kind: CmEventKind, status: i32) -> CmEvent {
        CmEvent {
            kind,
            token: 0,
            listener_token: None,
            status,
            private_data: Vec::new(),
            conn: ConnInfo::default(),
            datagrams: None,
            new_id: None,
        }
    }

    #[test]
    fn kinds_follow_the_c_enum() {
        use sys::rdma_cm_event_type as t;
        assert_eq!(CmEventKind::from(t::RDMA_CM_EVENT_ADDR_RESOLVED), CmEventKind::AddrResolved);
        assert_eq!(CmEventKind::from(t::RDMA_CM_EVENT_CONNECT_RESPONSE), CmEventKind::ConnectResponse);
        assert_eq!(CmEventKind::from(t::RDMA_CM_EVENT_TIMEWAIT_EXIT), CmEventKind::TimewaitExit);
        for raw in 0..16 {
            assert!(!matches!(CmEventKind::from(raw), CmEventKind::Other(_)), "{raw}");
        }
        assert_eq!(CmEventKind::from(99), CmEventKind::Other(99));
    }

    #[test]
    fn rejection_tells_who_rejected() {
        let by_consumer = event(CmEventKind::Rejected, 28);
        assert!(by_consumer.rejected_by_consumer() && !by_consumer.nobody_listens());
        assert!(event(CmEventKind::Rejected, 8).nobody_listens());
        assert!(!event(CmEventKind::Unreachable, 8).nobody_listens());
        assert!(event(CmEventKind::Unreachable, 2).rejected_by_consumer());
        assert!(!event(CmEventKind::Unreachable, -libc::ETIMEDOUT).rejected_by_consumer());
    }

    #[test]
    fn bad_news_have_an_errno_and_good_news_none() {
        assert_eq!(event(CmEventKind::Rejected, 28).errno(), libc::ECONNREFUSED);
        assert_eq!(event(CmEventKind::Unreachable, -libc::ETIMEDOUT).errno(), libc::ETIMEDOUT);
        assert_eq!(event(CmEventKind::AddrError, 0).errno(), libc::EHOSTUNREACH);
        assert_eq!(event(CmEventKind::Established, 0).errno(), 0);
    }
}
