//! Pools by number: where the cookies of buffers go whose completion nobody will see.

use crate::Result;
use crate::bounded_queue::BoundedQueue;
use crate::sync::{Mutex, rank};
use std::collections::HashMap;
use std::sync::{Arc, Weak};

#[derive(Debug, Default)]
pub(crate) struct Pools(Mutex<{ rank::TABLE }, HashMap<u32, Weak<BoundedQueue>>>);

impl Pools {
    /// This pool wants its buffers back also when nobody sees their completions.
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

    /// What was posted with this cookie is done, and nobody will see its completion. Pool 0 is
    /// none.
    pub(crate) fn return_unseen(&self, pool: u32, cookie: u64) {
        if pool == 0 {
            return;
        }
        let returned = self.0.lock().unwrap().get(&pool).and_then(Weak::upgrade);
        if let Some(returned) = returned {
            // It has room for each buffer, and none comes twice before the pool has looked.
            let _ = returned.push(cookie);
        }
    }
}
