//! The EVD and the PZ that an IA creates for EPs that were given none.

use crate::Result;
use crate::device::Device;
use crate::evd::EvdInner;
use crate::pz::PzInner;
use crate::sync::{Mutex, rank};
use crate::types::EvdFlags;
use std::sync::Arc;

/// The EVD and the PZ of EPs of an IA that were given none.
#[derive(Debug)]
pub struct Defaults {
    device: Arc<Device>,
    made: Mutex<{ rank::DEFAULTS }, Made>,
}

/// Like all objects, these hold a reference to the device. They are freed when the IA is closed.
#[derive(Debug, Default)]
struct Made {
    discards: Option<Arc<EvdInner>>,
    pz: Option<Arc<PzInner>>,
}

impl Defaults {
    pub(crate) fn new(device: &Arc<Device>) -> Arc<Self> {
        Arc::new(Self { device: device.clone(), made: Mutex::default() })
    }

    /// The EVD for streams without an EVD of the program. It discards its completions.
    pub(crate) fn discards(&self) -> Result<Arc<EvdInner>> {
        let mut made = self.made.lock().unwrap();
        if let Some(evd) = &made.discards {
            return Ok(evd.clone());
        }
        let evd = EvdInner::new(&self.device, 64, EvdFlags::DTO, true)?;
        made.discards = Some(evd.clone());
        Ok(evd)
    }

    /// The PZ of EPs that the provider creates, until the program sets another.
    pub(crate) fn pz(&self) -> Result<Arc<PzInner>> {
        let mut made = self.made.lock().unwrap();
        if let Some(pz) = &made.pz {
            return Ok(pz.clone());
        }
        let pz = PzInner::new(&self.device)?;
        made.pz = Some(pz.clone());
        Ok(pz)
    }

    /// Harvests the EVD that discards completions, which releases their SRQ entries. Returns true
    /// if entries may have been released.
    pub fn harvest_discards(&self) -> bool {
        let evd = self.made.lock().unwrap().discards.clone();
        evd.is_some_and(|evd| evd.harvest_now().is_ok())
    }

    /// Frees both, because the IA is closed.
    pub(crate) fn close(&self) {
        let made = std::mem::take(&mut *self.made.lock().unwrap());
        if let Some(discards) = &made.discards {
            discards.close();
        }
    }
}
