//! Events of rdma_cm: their way to the handler of the CM id, their counters, and how long a CM id
//! is kept after its connection.

use super::Device;
use super::cm::CmHandler;
use super::reactor::Timer;
use crate::IaCounter;
use rxe_fallback::{CmEvent, CmEventKind, CmId, PortSpace};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// How long the CM id of an ended connection is kept for the answer to its DREQ.
const DREQ_LINGER: Duration = Duration::from_secs(10);

impl Device {
    /// Keeps the CM id of an ended connection until the peer has answered, at most [`DREQ_LINGER`].
    pub(crate) fn linger(self: &Arc<Self>, token: u64, id: Arc<CmId>) {
        self.cm.keep(token, id);
        let device: Weak<Self> = Arc::downgrade(self);
        if self.reactor.after(DREQ_LINGER, device, Timer::GiveUp(token)).is_err() {
            // Without the timer, an unanswered id would be kept for ever.
            self.cm.forget(token);
        }
    }

    /// Handles one event of the channel, which is readable. If there are more, epoll reports the
    /// channel again. Calling `next_event` until it finds nothing would cost one more call for nearly
    /// every event, and that call holds the channel's lock, which other threads need to destroy a CM
    /// id.
    pub(super) fn cm_ready(&self) {
        match self.cm.channel().next_event() {
            Ok(Some(event)) => self.on_cm_event(event),
            Ok(None) => {}
            Err(error) => tracing::error!(%error, "cannot read the event channel of rdma_cm"),
        }
    }

    fn on_cm_event(&self, mut event: CmEvent) {
        use CmEventKind as K;
        tracing::debug!(kind = ?event.kind, status = event.status, token = event.token, "rdma_cm event");
        let token = if event.kind == K::ConnectRequest {
            event.listener_token.unwrap_or(event.token)
        } else {
            event.token
        };
        let handler = self.cm.handler(token);
        self.count_cm(&event, handler.as_ref());
        match handler {
            Some(Some(to)) => {
                if let Some(to) = to.upgrade() {
                    to.on_cm(&mut event);
                }
            }
            Some(None) => {
                if matches!(event.kind, K::Disconnected | K::TimewaitExit) {
                    self.cm.forget(token);
                }
            }
            None => {}
        }
    }

    fn count_cm(&self, event: &CmEvent, handler: Option<&Option<Weak<dyn CmHandler>>>) {
        use CmEventKind as K;
        use IaCounter as C;
        // The outcome of a datagram request (SIDR) is counted by the handler.
        if matches!(handler, Some(Some(to)) if to.upgrade().is_some_and(|to| to.is_ud())) {
            return;
        }
        let for_datagrams = event.new_id.as_ref().is_some_and(|id| id.port_space() == PortSpace::Udp);
        let unanswered = event.status == -libc::ETIMEDOUT;
        let counter = match (event.kind, handler) {
            (K::TimewaitExit, _) => return,
            // The handler may try again, and counts the last try.
            (K::AddrError, Some(Some(_))) if unanswered => return,
            (_, None) => C::CmErrUnexpected,
            (K::ConnectRequest, _) if for_datagrams => C::CmAhReqRx,
            (K::ConnectRequest, _) => C::CmReqRx,
            (K::ConnectResponse, _) => C::CmRepRx,
            (K::Established, _) => C::CmRtuRx,
            (K::Rejected, _) if event.rejected_by_consumer() => C::CmUserRejRx,
            (K::Rejected, _) if event.nobody_listens() => C::CmErrRefused,
            (K::Rejected, _) => C::CmErrRejRx,
            (K::AddrError | K::RouteError | K::Unreachable | K::ConnectError | K::Disconnected, _)
                if unanswered =>
            {
                C::CmErrTimeout
            }
            (K::AddrError | K::RouteError | K::Unreachable | K::ConnectError, _) => C::CmErr,
            (K::Disconnected, Some(None)) => C::CmDrepRx,
            (K::Disconnected, _) => C::CmDreqRx,
            _ => return,
        };
        self.count(counter);
    }

    /// Counts a disconnect if it was sent. `answer`: it answers the peer's disconnect.
    pub(crate) fn count_disconnect(&self, sent: bool, answer: bool) {
        if sent {
            self.count(if answer { IaCounter::CmDrepTx } else { IaCounter::CmDreqTx });
        }
    }
}
