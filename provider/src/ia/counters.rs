//! The counters of an IA.

use super::Ia;
use crate::device::Class;
use crate::{Counters, IaCounter, PortCounters, Result};

impl Ia {
    /// What has happened on it.
    ///
    /// # Errors
    /// INVALID_HANDLE after it was closed.
    pub fn counters(&self) -> Result<Counters<IaCounter>> {
        self.take_counters(&[])
    }

    /// The same, and these counters start at 0 again.
    ///
    /// # Errors
    /// As [`Ia::counters`].
    pub fn take_counters(&self, reset: &[IaCounter]) -> Result<Counters<IaCounter>> {
        self.device.check()?;
        Ok(self.device.counts.read(self.totals(), reset))
    }

    /// Starts this group of counters of the port or the device at 0: the device has been counting
    /// them since it came up. A counter that the device does not have stays 0.
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

    /// Stops this group: its counters keep what they say. One that was not started stays 0.
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

    /// What was counted, and how many objects were freed, which follows from how many were made and
    /// how many there are.
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
