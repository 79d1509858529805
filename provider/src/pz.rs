//! Protection zones: which objects may use which memory. A PZ is a verbs protection domain.
//! `ia/create.rs` creates them.

use crate::device::{Class, Device, Member};
use crate::{Error, Refused, Result, Subtype};
use rxe_fallback::Pd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// A protection zone (`DAT_PZ_HANDLE`). Dropping a `Pz` frees the zone as soon as no object uses
/// it.
#[derive(Debug)]
pub struct Pz {
    pub(crate) inner: Arc<PzInner>,
}

#[derive(Debug)]
pub(crate) struct PzInner {
    pub(crate) device: Arc<Device>,
    pub(crate) pd: Pd,
    /// The number of the zone in the LMR table.
    pub(crate) number: u32,
    users: AtomicU32,
    live: AtomicBool,
}

impl Pz {
    /// Frees the PZ.
    ///
    /// # Errors
    /// INVALID_STATE (PZ_IN_USE) while an EP, LMR, RMR, SRQ or pool uses it (R271). The error returns
    /// the PZ.
    ///
    /// # References
    /// dat_pz_free(3DAT).
    pub fn close(self) -> Result<(), Refused<Self>> {
        if let Err(error) = self.inner.device.check_inherited(Subtype::InvalidHandlePz, "PZ") {
            return Err(Refused { object: self, error });
        }
        let users = self.inner.users.load(Ordering::Acquire);
        if users > 0 {
            let error = Error::state(
                Subtype::InvalidStatePzInUse,
                format!("{users} EPs, LMRs, RMRs or SRQs still use this PZ: free them first"),
            );
            return Err(Refused { object: self, error });
        }
        if self.inner.close() {
            Ok(())
        } else {
            let error = Error::handle(Subtype::InvalidHandlePz, "PZ");
            Err(Refused { object: self, error })
        }
    }
}

impl Drop for Pz {
    fn drop(&mut self) {
        if self.inner.device.is_inherited() {
            return;
        }
        self.inner.device.registry.remove(Class::Pz, self.inner.number.into());
    }
}

impl crate::fork::Inherit for PzInner {
    fn disown(&self) {
        self.live.store(false, Ordering::Release);
    }
}

impl PzInner {
    /// A zone that is not in the device's registry.
    pub(crate) fn new(device: &Arc<Device>) -> Result<Arc<Self>> {
        Ok(Arc::new(Self {
            device: device.clone(),
            pd: device.take_pd()?,
            // Not 0: an unused entry of the LMR table names PZ 0.
            number: (crate::types::next_id() as u32).max(1),
            users: AtomicU32::new(0),
            live: AtomicBool::new(true),
        }))
    }

    /// Checks that the zone is live and belongs to this device (R19).
    pub(crate) fn check(&self, device: &Arc<Device>) -> Result<()> {
        if self.live.load(Ordering::Acquire) && Arc::ptr_eq(&self.device, device) {
            Ok(())
        } else {
            Err(Error::handle(Subtype::InvalidHandlePz, "PZ"))
        }
    }

    pub(crate) fn enter(&self) {
        self.users.fetch_add(1, Ordering::AcqRel);
    }

    pub(crate) fn leave(&self) {
        self.users.fetch_sub(1, Ordering::AcqRel);
    }

    pub(crate) fn close(&self) -> bool {
        self.live.swap(false, Ordering::AcqRel)
    }
}

impl Drop for PzInner {
    fn drop(&mut self) {
        self.device.return_pd(&self.pd);
    }
}

impl Member for PzInner {
    fn ia_closed(self: Arc<Self>) {
        self.close();
    }
}
