//! Connection ids of librdmacm: who hears of the events of each, how long an id outlives its
//! connection, and what of all that is counted.

use super::Device;
use super::reactor::Timer;
use crate::sync::{Mutex, rank};
use crate::types::next_id;
use crate::{Error, IaCounter, Result, Subtype};
use rxe_fallback::{CmEvent, CmEventKind, CmId, EventChannel, PortSpace};
use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// How long the id of an ended connection is kept for the answer to its DREQ.
const DREQ_LINGER: Duration = Duration::from_secs(10);

/// An object that a connection id belongs to.
pub(crate) trait CmHandler: Send + Sync {
    /// An event of the id, or of one that came to it as a listener. Runs on the progress thread.
    fn on_cm(self: Arc<Self>, event: &mut CmEvent);

    /// Whether the id asks for addresses of datagrams: what becomes of that is counted with the
    /// outcome.
    fn is_ud(&self) -> bool {
        false
    }
}

/// Who hears of the events of a connection id.
enum Route {
    To(Weak<dyn CmHandler>),
    /// Nobody yet; or nobody any more, since the id of an ended connection, which this keeps, waits
    /// for the peer's answer only.
    Nobody {
        _lingering: Option<Arc<CmId>>,
    },
}

/// The connection manager's channel, and the ids on it by their tokens.
pub(crate) struct Cm {
    routes: Mutex<{ rank::TABLE }, HashMap<u64, Route>>,
    /// Dropped after the ids.
    channel: EventChannel,
}

impl Cm {
    pub(super) fn new(channel: EventChannel) -> Self {
        Self { routes: Mutex::default(), channel }
    }

    pub(crate) fn channel(&self) -> &EventChannel {
        &self.channel
    }

    /// A new connection id of a port space, whose events go to `to`, or to nobody until
    /// [`Cm::route`] says to whom.
    pub(crate) fn open_id(
        &self,
        space: PortSpace,
        to: Option<Weak<dyn CmHandler>>,
    ) -> Result<(u64, Arc<CmId>)> {
        let token = self.expect(to)?;
        match CmId::create_in(space, &self.channel, token) {
            Ok(id) => Ok((token, Arc::new(id))),
            Err(error) => {
                self.forget(token);
                Err(Error::verb(Subtype::ResourceTep, error))
            }
        }
    }

    /// A token for a connection id that will have it.
    ///
    /// # Errors
    /// No memory for the table.
    pub(crate) fn expect(&self, to: Option<Weak<dyn CmHandler>>) -> Result<u64> {
        let token = next_id();
        let mut routes = self.routes.lock().unwrap();
        routes.try_reserve(1)?;
        routes.insert(token, to.map_or(Route::Nobody { _lingering: None }, Route::To));
        Ok(token)
    }

    /// Events of this id go to `to` from now on, unless the id is forgotten.
    pub(crate) fn route(&self, token: u64, to: Weak<dyn CmHandler>) {
        self.replace(token, Route::To(to));
    }

    fn replace(&self, token: u64, route: Route) {
        let mut routes = self.routes.lock().unwrap();
        let old = routes.get_mut(&token).map(|known| std::mem::replace(known, route));
        drop(routes);
        // It may be the last that holds its id.
        drop(old);
    }

    /// Who hears of this id's events: `None` for an id that is forgotten, `Some(None)` for nobody.
    fn handler(&self, token: u64) -> Option<Option<Weak<dyn CmHandler>>> {
        match self.routes.lock().unwrap().get(&token)? {
            Route::To(to) => Some(Some(to.clone())),
            Route::Nobody { .. } => Some(None),
        }
    }

    /// Nobody hears of this id any more.
    pub(crate) fn forget(&self, token: u64) {
        let route = self.routes.lock().unwrap().remove(&token);
        drop(route);
    }

    pub(super) fn forget_all(&self) {
        let routes = std::mem::take(&mut *self.routes.lock().unwrap());
        drop(routes);
    }
}

impl Device {
    /// Keeps the id of an ended connection until the peer has answered, or for a while.
    pub(crate) fn linger(self: &Arc<Self>, token: u64, id: Arc<CmId>) {
        self.cm.replace(token, Route::Nobody { _lingering: Some(id) });
        let device: Weak<Self> = Arc::downgrade(self);
        if self.reactor.after(DREQ_LINGER, device, Timer::GiveUp(token)).is_err() {
            // Nobody would ever let go of it.
            self.cm.forget(token);
        }
    }

    /// The channel is readable.
    pub(super) fn cm_ready(&self) {
        loop {
            match self.cm.channel.next_event() {
                Ok(Some(event)) => self.on_cm_event(event),
                Ok(None) => return,
                Err(error) => {
                    tracing::error!(%error, "the connection manager's channel failed");
                    return;
                }
            }
        }
    }

    fn on_cm_event(&self, mut event: CmEvent) {
        use CmEventKind as K;
        tracing::debug!(kind = ?event.kind, status = event.status, token = event.token, "connection manager");
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
        // What becomes of a request for datagrams is counted with its outcome.
        if matches!(handler, Some(Some(to)) if to.upgrade().is_some_and(|to| to.is_ud())) {
            return;
        }
        let for_datagrams = event.new_id.as_ref().is_some_and(|id| id.port_space() == PortSpace::Udp);
        let unanswered = event.status == -libc::ETIMEDOUT;
        let counter = match (event.kind, handler) {
            (K::TimewaitExit, _) => return,
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

    /// A disconnect was sent, if it could be: an answer where the peer had sent one before.
    pub(crate) fn count_disconnect(&self, sent: bool, answer: bool) {
        if sent {
            self.count(if answer { IaCounter::CmDrepTx } else { IaCounter::CmDreqTx });
        }
    }
}
