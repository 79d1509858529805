//! Posting of datagrams.

use crate::Result;
use crate::datapath::{Outgoing, SendQueue};
use crate::ep::EpInner;
use crate::error::PostError;
use crate::queue_pair::Request;
use crate::types::{Destination, EpState};
use rxe_fallback::cm::DATAGRAM_QKEY;
use rxe_fallback::{Ah, PostError as Refusal, SendFlags, SendOp, Sge};

impl EpInner {
    /// Checks the EP and the flags of a datagram. Returns the EP's state.
    pub(crate) fn takes_datagrams(&self) -> Result<EpState, PostError> {
        let state = self.state();
        if self.is_ud() { Ok(state) } else { Err(PostError::EpState(state.subtype())) }
    }

    /// The verbs handle of an address handle, which has to be valid in this PZ.
    pub(crate) fn route_to(&self, to: Destination, pz: u32) -> Result<Ah, PostError> {
        let ah = if to.qpn < 1 << 24 { self.device.address_handles.find(to, pz) } else { None };
        ah.ok_or(PostError::AddressHandle)
    }

    /// Posts a datagram to the device. It is at this position of the EP's stream of requests.
    pub(crate) fn push_datagram(
        &self,
        queue: &mut SendQueue,
        (request, position): (Request, u64),
        sges: &[Sge],
        flags: SendFlags,
        (ah, qpn): (&Ah, u32),
    ) -> Result<(), Refusal> {
        let to = Some((ah, qpn, DATAGRAM_QKEY));
        queue.push(&Outgoing { request, op: SendOp::Send, sges, flags, to })?;
        if let Some(ud) = &self.ud {
            ud.0.lock().unwrap().sending.push_back((position, ah.clone()));
        }
        Ok(())
    }

    /// Drops the address handles that were kept only for sends which have completed.
    pub(crate) fn drop_handles_of_done_sends(&self) {
        let Some(ud) = &self.ud else { return };
        let first = self.pair.first_request();
        loop {
            let mut state = ud.0.lock().unwrap();
            let is_done = state.sending.front().is_some_and(|(position, _)| *position < first);
            let done = if is_done { state.sending.pop_front() } else { None };
            drop(state);
            // Dropped without the lock: if the program has freed the handle, the drop calls into
            // the kernel.
            if done.is_none() {
                return;
            }
        }
    }
}
