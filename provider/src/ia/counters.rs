//! The counters of an IA.

use super::Ia;
use crate::device::Class;
use crate::{Counters, IaCounter, PortCounters, Result};

impl Ia {
    /// Returns the IA's counters.
    ///
    /// # Errors
    /// INVALID_HANDLE after the IA was closed.
    pub fn counters(&self) -> Result<Counters<IaCounter>> {
        self.take_counters(&[])
    }

    /// Returns the counters, and resets those in `reset` to 0.
    ///
    /// # Errors
    /// As [`Ia::counters`].
    pub fn take_counters(&self, reset: &[IaCounter]) -> Result<Counters<IaCounter>> {
        self.device.check()?;
        Ok(self.device.counts.read(self.totals(), reset))
    }

    /// Starts this group of port or device counters at 0. The device has counted since it came up,
    /// so the counters report the difference. A counter that the device does not have stays 0.
    ///
    /// # Errors
    /// INVALID_HANDLE after the IA was closed.
    ///
    /// # References
    /// dat_ib_extensions.h, `dat_ib_start_counter`.
    pub fn start_counters(&self, group: PortCounters) -> Result<()> {
        self.device.check()?;
        self.device.counts.start(group);
        Ok(())
    }

    /// Stops this group. Its counters keep their values. A group that was not started stays 0.
    ///
    /// # Errors
    /// INVALID_HANDLE after the IA was closed.
    ///
    /// # References
    /// dat_ib_extensions.h, `dat_ib_stop_counter`.
    pub fn stop_counters(&self, group: PortCounters) -> Result<()> {
        self.device.check()?;
        self.device.counts.stop(group);
        Ok(())
    }

    /// The counted values. The number of freed objects follows from the created and the existing
    /// objects.
    fn totals(&self) -> Counters<IaCounter> {
        use IaCounter as C;
        let own = usize::from(self.own_async_evd().is_some());
        let mut totals = Counters::zero();
        let members = self.device.registry.count(|| totals = self.device.counts.totals());
        let made = |counters: &[C]| counters.iter().map(|&counter| totals[counter]).sum::<u64>();
        let (psp, rsp) = (&[C::PspCreate, C::PspCreateAny], &[C::RspCreate]);
        let freed = [
            (C::PzFree, made(&[C::PzCreate]), members.of(Class::Pz)),
            (C::LmrFree, made(&[C::LmrCreate]), members.of(Class::Lmr)),
            (C::RmrFree, made(&[C::RmrCreate]), members.of(Class::Rmr)),
            (C::PspFree, made(psp), members.service_points(psp)),
            (C::RspFree, made(rsp), members.service_points(rsp)),
            (C::EvdFree, made(&[C::EvdCreate]), members.of(Class::Evd).saturating_sub(own)),
            (C::EpFree, made(&[C::EpCreate]), members.of(Class::Ep)),
            (C::SrqFree, made(&[C::SrqCreate]), members.of(Class::Srq)),
        ];
        for (counter, made, living) in freed {
            totals.set(counter, made.saturating_sub(living as u64));
        }
        totals
    }
}
