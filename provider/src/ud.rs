//! Datagrams (service type UD): address handles, how EPs learn them, and sending.
//!
//! A UD EP sends and receives from its creation on, and stays UNCONNECTED. For a UD EP, to connect
//! means to resolve the address of another UD EP: [`Ep::connect`] sends a request to a service
//! point, any number of times, and [`Cr::accept`](crate::Cr::accept) answers. Each of the two EPs
//! then gets an event with an [`AddressHandle`] of the other.
//!
//! | file | what |
//! |---|---|
//! | this one | address handles and events |
//! | `resolve` | requests and answers by rdma_cm |
//! | `sidr` | the header of a request, and the replies that were given |
//! | `send` | posting of datagrams |
//!
//! A received datagram begins with 40 bytes for a global routing header. Its length includes them.

mod resolve;
mod send;
pub(crate) mod sidr;

use crate::device::UdRoute;
use crate::ep::ud_state::not_here;
use crate::ep::{Ep, EpInner};
use crate::event_data::Notice;
use crate::event_data::{DatagramEvent, DatagramEventKind};
use crate::types::{AddressHandle, EpState};
use crate::{Error, Result, ServiceType};
use rxe_fallback::{Ah, ConnParam};
use std::net::IpAddr;
use std::sync::Arc;

/// Bytes in front of each received datagram (`DAT_IB`'s GRH).
pub const GRH_LEN: usize = rxe_fallback::GRH_LEN;

impl Ep {
    /// The service type of the EP.
    pub fn service_type(&self) -> ServiceType {
        if self.inner.is_ud() { ServiceType::Ud } else { ServiceType::Rc }
    }

    /// Frees an address handle that this EP has resolved. Sends under way still complete.
    ///
    /// # Errors
    /// INVALID_PARAMETER (ARG2) for a handle that is freed or belongs to another EP; INVALID_HANDLE
    /// after the EP was freed.
    ///
    /// # References
    /// dat_ib_extensions.h, `dat_ib_ud_ah_free`.
    pub fn free_address_handle(&self, handle: &AddressHandle) -> Result<()> {
        self.inner.free_address_handle(handle.token)
    }
}

impl EpInner {
    pub(crate) fn is_ud(&self) -> bool {
        self.ud.is_some()
    }

    /// The rdma_cm parameters of a request or an answer, with this EP's QP number.
    pub(crate) fn datagram_param<'a>(&self, private_data: &'a [u8]) -> ConnParam<'a> {
        let param = ConnParam { private_data, srq: self.srq.is_some(), ..self.device.conn_param() };
        ConnParam { qp_num: self.qp().num(), ..param }
    }

    fn datagram_event(&self, kind: DatagramEventKind, private_data: Vec<u8>, cm: u64) {
        let ep_context = self.pair.context();
        let event = DatagramEvent { ep: self.id, ep_context, kind, private_data, cm };
        self.tell(Notice::Datagram(Box::new(event)));
    }

    /// A new address handle, for an event with this CM handle. Both are freed with this EP.
    fn issue_address_handle(
        &self,
        ah: Ah,
        qpn: u32,
        address: IpAddr,
        cm: u64,
    ) -> crate::Result<AddressHandle> {
        let Some(ud) = &self.ud else { return Err(not_here()) };
        let mut state = ud.0.lock().unwrap();
        state.cms.try_reserve(1)?;
        let route = UdRoute { ah, pz: self.pz_number(), ep: self.id };
        let token = self.device.address_handles.issue(route)?;
        state.cms.insert(cm);
        Ok(AddressHandle { qpn, address, token })
    }

    /// Frees the address handle with this route.
    ///
    /// # Errors
    /// As [`Ep::free_address_handle`].
    pub fn free_address_handle(&self, token: u64) -> Result<()> {
        self.check()?;
        let route =
            self.device.address_handles.remove(token, self.id).ok_or_else(|| {
                Error::arg(2, "this address handle has been freed or belongs to another EP")
            })?;
        drop(route);
        self.drop_handles_of_done_sends();
        Ok(())
    }

    /// Frees the CM handle of an event. The CM id that it stands for has been destroyed before.
    ///
    /// # Errors
    /// The EP is freed, or knows no such CM handle.
    pub fn free_datagram_cm(&self, cm: u64) -> Result<()> {
        self.check()?;
        let known = self.ud.as_ref().is_some_and(|ud| ud.0.lock().unwrap().cms.remove(&cm));
        if known {
            Ok(())
        } else {
            Err(Error::arg(2, "this CM handle has been freed or belongs to another EP"))
        }
    }

    /// Whether peers may know the QP number.
    pub(crate) fn is_known_to_peers(&self) -> bool {
        self.ud.as_ref().is_some_and(|ud| ud.0.lock().unwrap().known)
    }

    /// Handles a failed QP, which neither sends nor receives before a reset.
    pub(crate) fn datagrams_failed(self: &Arc<Self>, life: Option<u64>) {
        let mut control = self.control.lock().unwrap();
        let over = life.is_some_and(|life| life != self.pair.life());
        if over || self.state() == EpState::Disconnected {
            return;
        }
        if let Err(error) = self.qp().to_error() {
            tracing::warn!(%error, ep = self.id.0, "cannot move a QP to the error state");
        }
        self.set_state(EpState::Disconnected);
        control.drained = false;
        drop(control);
        self.tell_broken();
        self.recheck_notification();
        self.drain_soon();
    }

    /// Closes the UD part of the EP: stops address resolution, and frees the resolved address
    /// handles.
    pub(crate) fn close_datagrams(&self) {
        let Some(ud) = &self.ud else { return };
        let state = std::mem::take(&mut *ud.0.lock().unwrap());
        for token in state.pending.keys() {
            self.device.cm.forget(*token);
        }
        self.device.address_handles.remove_all_of(self.id);
        drop(state);
    }
}
