//! Address handles of a device: the routes that datagrams take to peers.

use crate::Result;
use crate::memory::list;
use crate::sync::{RwLock, rank};
use crate::types::{Destination, EpId, next_id};
use rxe_fallback::Ah;
use std::collections::HashMap;

/// One route. It is removed when its EP is closed.
#[derive(Clone, Debug)]
pub(crate) struct UdRoute {
    pub(crate) ah: Ah,
    /// The number of the PZ in which the route is valid.
    pub(crate) pz: u32,
    pub(crate) ep: EpId,
}

#[derive(Debug, Default)]
pub(crate) struct AddressHandles(RwLock<{ rank::TABLE }, HashMap<u64, UdRoute>>);

impl AddressHandles {
    /// Adds a route and returns the number that names the route.
    ///
    /// # Errors
    /// No memory for the table.
    pub(crate) fn issue(&self, route: UdRoute) -> Result<u64> {
        let mut routes = self.0.write().unwrap();
        routes.try_reserve(1)?;
        let token = next_id();
        routes.insert(token, route);
        Ok(token)
    }

    /// The route with the number `to`, if the route is valid in this PZ.
    pub(crate) fn find(&self, to: Destination, pz: u32) -> Option<Ah> {
        let routes = self.0.read().unwrap();
        routes.get(&to.token).filter(|route| route.pz == pz).map(|route| route.ah.clone())
    }

    /// Removes and returns a route of this EP. Dropping the route may call into the kernel.
    pub(crate) fn remove(&self, token: u64, ep: EpId) -> Option<UdRoute> {
        let mut routes = self.0.write().unwrap();
        if routes.get(&token).is_some_and(|route| route.ep == ep) { routes.remove(&token) } else { None }
    }

    /// Removes all routes of this EP.
    pub(crate) fn remove_all_of(&self, ep: EpId) {
        let mut routes = self.0.write().unwrap();
        // The routes are freed after the lock is released, because freeing calls into the kernel.
        // Without memory for a list they are freed under the lock.
        let mut gone = list(routes.len()).unwrap_or_default();
        routes.retain(|_, route| {
            let stays = route.ep != ep;
            if !stays && gone.len() < gone.capacity() {
                gone.push(route.ah.clone());
            }
            stays
        });
        drop(routes);
        drop(gone);
    }
}
