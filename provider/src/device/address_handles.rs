//! Address handles of a device: the routes that datagrams take to peers.

use crate::Result;
use crate::memory::list;
use crate::sync::{RwLock, rank};
use crate::types::{Destination, EpId, next_id};
use rxe_fallback::Ah;
use std::collections::HashMap;

/// One route; it goes with its EP.
#[derive(Clone, Debug)]
pub(crate) struct UdRoute {
    pub(crate) ah: Ah,
    /// The PZ that it is good in.
    pub(crate) pz: u32,
    pub(crate) ep: EpId,
}

#[derive(Debug, Default)]
pub(crate) struct AddressHandles(RwLock<{ rank::TABLE }, HashMap<u64, UdRoute>>);

impl AddressHandles {
    /// Gives the number that names it from now on.
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

    /// The route to `to`, if it is good in this PZ.
    pub(crate) fn find(&self, to: Destination, pz: u32) -> Option<Ah> {
        let routes = self.0.read().unwrap();
        routes.get(&to.token).filter(|route| route.pz == pz).map(|route| route.ah.clone())
    }

    /// Takes a route of this EP out. The caller drops it, which may be a call into the kernel.
    pub(crate) fn remove(&self, token: u64, ep: EpId) -> Option<UdRoute> {
        let mut routes = self.0.write().unwrap();
        if routes.get(&token).is_some_and(|route| route.ep == ep) { routes.remove(&token) } else { None }
    }

    /// Takes all routes of this EP out.
    pub(crate) fn remove_all_of(&self, ep: EpId) {
        let mut routes = self.0.write().unwrap();
        // Freed after the lock, since that is a call into the kernel; under it where there is no
        // memory for a list.
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
