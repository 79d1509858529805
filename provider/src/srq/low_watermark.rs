//! The low watermark of an SRQ: one event for each setting.
//!
//! The device has a limit register that fires once. [`LowWatermark`] remembers whether the device
//! still owes the event, so that the program gets exactly one event even if the limit fires while
//! the program sets another value.

use super::{LowWatermark, SrqInner};
use crate::Result;
use crate::datapath::SrqPoster;
use crate::event_data::reason;

impl SrqInner {
    pub(super) fn arm_low(&self, value: u32, poster: &SrqPoster) -> Result<()> {
        let mut low = self.low.lock().unwrap();
        let mut fired = false;
        if low.armed && self.recv.path.armed_limit()? == 0 {
            // The event of the former setting was raised first and is being delivered, so it
            // counts.
            low.armed = false;
            fired = true;
        }
        let armed = self.recv.path.arm_limit(value);
        if armed.is_ok() {
            *low = LowWatermark { value, armed: value > 0 };
        }
        drop(low);
        if fired {
            self.push_low_event();
        }
        armed?;
        if value == 0 {
            return Ok(());
        }
        self.harvest()?;
        let mut low = self.low.lock().unwrap();
        if low.armed && poster.counts().available < value {
            low.armed = false;
            // If the device raises its event all the same, `armed` is false and the event is
            // ignored.
            let disarmed = self.recv.path.arm_limit(0);
            drop(low);
            self.push_low_event();
            disarmed?;
        }
        Ok(())
    }

    /// Handles the device's limit event, which may belong to the present setting or to a replaced
    /// one.
    pub(crate) fn limit_reached(&self) {
        let mut low = self.low.lock().unwrap();
        match self.recv.path.armed_limit() {
            Ok(0) => {}
            // The limit is still armed, so the event belongs to a former setting.
            Ok(_) => return,
            Err(error) => tracing::warn!(%error, srq = self.id.0, "cannot tell which low watermark fired"),
        }
        let fired = std::mem::take(&mut low.armed);
        drop(low);
        if fired {
            self.push_low_event();
        }
    }

    /// Tells the program. An agent may run here, so the caller does not hold the lock of `low`.
    fn push_low_event(&self) {
        self.notice(reason::SRQ_LOW_WATERMARK);
    }
}
