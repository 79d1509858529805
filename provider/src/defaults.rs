//! What an IA makes for EPs that were given no EVD or no PZ.

use crate::Result;
use crate::device::Device;
use crate::evd::EvdInner;
use crate::pz::PzInner;
use crate::sync::{Mutex, rank};
use crate::types::EvdFlags;
use std::sync::Arc;

#[derive(Debug)]
pub(crate) struct Defaults {
    device: Arc<Device>,
    made: Mutex<{ rank::DEFAULTS }, Made>,
}

/// These hold the device, as all objects do, and no object of the consumer holds them for good:
/// they go when the IA is closed.
#[derive(Debug, Default)]
struct Made {
    discards: Option<Arc<EvdInner>>,
    pz: Option<Arc<PzInner>>,
}

impl Defaults {
    pub(crate) fn new(device: &Arc<Device>) -> Arc<Self> {
        Arc::new(Self { device: device.clone(), made: Mutex::default() })
    }

    /// The EVD for streams that the consumer gave none for. It sees completions and forgets them.
    pub(crate) fn discards(&self) -> Result<Arc<EvdInner>> {
        let mut made = self.made.lock().unwrap();
        if let Some(evd) = &made.discards {
            return Ok(evd.clone());
        }
        let evd = EvdInner::new(&self.device, 64, EvdFlags::DTO, true)?;
        made.discards = Some(evd.clone());
        Ok(evd)
    }

    /// The PZ of EPs that the provider makes, until the consumer names one.
    pub(crate) fn pz(&self) -> Result<Arc<PzInner>> {
        let mut made = self.made.lock().unwrap();
        if let Some(pz) = &made.pz {
            return Ok(pz.clone());
        }
        let pz = PzInner::new(&self.device)?;
        made.pz = Some(pz.clone());
        Ok(pz)
    }

    /// Gives entries back that were received for nobody; true if there may be any.
    pub(crate) fn harvest_discards(&self) -> bool {
        let evd = self.made.lock().unwrap().discards.clone();
        evd.is_some_and(|evd| evd.harvest_now().is_ok())
    }

    /// The IA is closed.
    pub(crate) fn close(&self) {
        let made = std::mem::take(&mut *self.made.lock().unwrap());
        if let Some(discards) = &made.discards {
            discards.close();
        }
    }
}
