//! Pools by number. Completions that no program reaps return their buffers through this table.

use crate::Result;
use crate::bounded_queue::BoundedQueue;
use crate::event_data::Owner;
use crate::sync::{Mutex, rank};
use crate::types::ByNumber;
use std::sync::{Arc, Weak};

#[derive(Debug, Default)]
pub(crate) struct Pools(Mutex<{ rank::TABLE }, ByNumber<u32, Weak<BoundedQueue>>>);

impl Pools {
    /// Adds a pool, whose buffers come back through `returned`.
    ///
    /// # Errors
    /// No memory for the table.
    pub(crate) fn add(&self, number: u32, returned: &Arc<BoundedQueue>) -> Result<()> {
        let mut pools = self.0.lock().unwrap();
        pools.try_reserve(1)?;
        pools.insert(number, Arc::downgrade(returned));
        Ok(())
    }

    pub(crate) fn remove(&self, number: u32) {
        self.0.lock().unwrap().remove(&number);
    }

    /// Whether there is no pool, so that no work request names a buffer of one.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.lock().unwrap().is_empty()
    }

    /// Returns a buffer whose completion no program will reap to its pool, if it has one.
    pub(crate) fn return_unseen(&self, owner: Owner, cookie: u64) {
        let Owner::Pool(pool) = owner else { return };
        let returned = self.0.lock().unwrap().get(&pool).and_then(Weak::upgrade);
        if let Some(returned) = returned {
            // Cannot fail: the queue has room for every buffer, and a buffer is posted again only
            // after the pool has taken its cookie out.
            let _ = returned.push(cookie);
        }
    }
}
