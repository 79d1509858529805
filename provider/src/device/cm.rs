//! Connection ids of librdmacm, and who hears of the events of each.

use crate::sync::{Mutex, rank};
use crate::types::next_id;
use crate::{Error, Result, Subtype};
use rxe_fallback::{CmEvent, CmId, EventChannel, PortSpace};
use std::collections::HashMap;
use std::sync::{Arc, Weak};

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

    /// Keeps the id of an ended connection, which only waits for the peer's answer.
    pub(super) fn keep(&self, token: u64, id: Arc<CmId>) {
        self.replace(token, Route::Nobody { _lingering: Some(id) });
    }

    fn replace(&self, token: u64, route: Route) {
        let mut routes = self.routes.lock().unwrap();
        let old = routes.get_mut(&token).map(|known| std::mem::replace(known, route));
        drop(routes);
        // It may be the last that holds its id.
        drop(old);
    }

    /// Who hears of this id's events: `None` for an id that is forgotten, `Some(None)` for nobody.
    pub(super) fn handler(&self, token: u64) -> Option<Option<Weak<dyn CmHandler>>> {
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
