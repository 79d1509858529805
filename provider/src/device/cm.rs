//! The CM ids of a device (`rdma_cm_id`), and the handler of each id's events.

use crate::sync::{Mutex, rank};
use crate::types::ByNumber;
use crate::types::next_id;
use crate::{Error, Result, Subtype};
use rxe_fallback::{CmEvent, CmId, EventChannel, PortSpace};
use std::sync::{Arc, Weak};

/// An object that owns CM ids and handles their events.
pub(crate) trait CmHandler: Send + Sync {
    /// Handles an event of the CM id, or of a new id that arrived at it as a listener. Runs on the
    /// progress thread.
    fn on_cm(self: Arc<Self>, event: &mut CmEvent);

    /// Whether the handler is a UD EP, which resolves addresses of datagrams (SIDR) and counts the
    /// outcome itself.
    fn is_ud(&self) -> bool {
        false
    }
}

/// The handler of a CM id's events.
enum Route {
    To(Weak<dyn CmHandler>),
    /// No handler yet, or no handler any more: the id of an ended connection, kept here, only waits
    /// for the peer's answer.
    Nobody {
        _lingering: Option<Arc<CmId>>,
    },
}

/// The event channel of rdma_cm, and the handlers of its CM ids by token.
pub(crate) struct Cm {
    routes: Mutex<{ rank::TABLE }, ByNumber<u64, Route>>,
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

    /// Creates a CM id in a port space. Its events go to `to`; without `to` they are ignored until
    /// [`Cm::route`] sets a handler.
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

    /// Reserves a token for a CM id that is yet to be created.
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

    /// Makes `to` the handler of this id's events, unless the id was forgotten.
    pub(crate) fn route(&self, token: u64, to: Weak<dyn CmHandler>) {
        self.replace(token, Route::To(to));
    }

    /// Keeps the CM id of an ended connection, which only waits for the peer's answer.
    pub(super) fn keep(&self, token: u64, id: Arc<CmId>) {
        self.replace(token, Route::Nobody { _lingering: Some(id) });
    }

    fn replace(&self, token: u64, route: Route) {
        let mut routes = self.routes.lock().unwrap();
        let old = routes.get_mut(&token).map(|known| std::mem::replace(known, route));
        drop(routes);
        // Dropped without the lock, because it may hold the last reference to its CM id.
        drop(old);
    }

    /// The handler of this id's events: `None` for an id that was forgotten, `Some(None)` for an id
    /// without a handler.
    pub(super) fn handler(&self, token: u64) -> Option<Option<Weak<dyn CmHandler>>> {
        match self.routes.lock().unwrap().get(&token)? {
            Route::To(to) => Some(Some(to.clone())),
            Route::Nobody { .. } => Some(None),
        }
    }

    /// Removes the id. Its events are ignored from now on.
    pub(crate) fn forget(&self, token: u64) {
        let route = self.routes.lock().unwrap().remove(&token);
        drop(route);
    }

    pub(super) fn forget_all(&self) {
        let routes = std::mem::take(&mut *self.routes.lock().unwrap());
        drop(routes);
    }
}
