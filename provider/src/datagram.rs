//! Datagrams (service type UD): address handles, how they are found out, and sending.
//!
//! A UD EP sends and receives from its creation on, and stays UNCONNECTED. What connecting means for it is to find out where another UD
//! EP is: [`Ep::connect`] asks at a service point, as often as it likes, and [`Cr::accept`](crate::Cr::accept) answers. Each of
//! the two then gets an event with an [`AddressHandle`] of the other. How that is asked is in [`ask`] and [`resolve`].
//!
//! A received datagram has 40 bytes in front, which its length counts: the space of a global routing header.

pub(crate) mod ask;
mod resolve;
pub(crate) mod state;

use self::state::not_here;
use crate::datapath::{WrId, entries::WrInfo};
use crate::device::UdRoute;
use crate::ep::{Ep, EpInner, RequestKind};
use crate::error::PostError;
use crate::event::EventData;
use crate::event_data::{DatagramEvent, DatagramEventKind};
use crate::types::{AddressHandle, CompletionFlags, Destination, EpState, LmrTriplet};
use crate::{Error, Result, ServiceType};
use rxe_fallback::cm::DATAGRAM_QKEY;
use rxe_fallback::{Ah, ConnParam, PostError as Refusal, Qp, SendFlags, SendOp, SendWr, Sge, UdDest};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Bytes in front of each received datagram (`DAT_IB`'s GRH).
pub const GRH_LEN: usize = rxe_fallback::GRH_LEN;

impl Ep {
    /// Its service type.
    pub fn service_type(&self) -> ServiceType {
        if self.inner.is_ud() { ServiceType::Ud } else { ServiceType::Rc }
    }

    /// Sends a datagram gathered from these segments; one packet, so at most [`IaAttr::mtu`](crate::IaAttr::mtu) bytes. It may get
    /// lost, which nobody is told.
    ///
    /// # Errors
    /// See [`PostError`]; [`PostError::EpState`] on an EP of another service type, [`PostError::AddressHandle`] for one that is freed,
    /// or another IA's or PZ's, [`PostError::Length`] for more than a packet.
    ///
    /// # References
    /// dat_ib_extensions.h, `dat_ib_post_send_ud`.
    pub fn post_send_ud(
        &mut self,
        iov: &[LmrTriplet],
        to: &AddressHandle,
        cookie: u64,
        flags: CompletionFlags,
    ) -> Result<(), PostError> {
        let to = Destination { token: to.token, qpn: to.qpn };
        self.inner.post_request(RequestKind::SendUd(to), iov, WrInfo { cookie, ..WrInfo::default() }, flags)
    }

    /// Frees an address handle that was found out for this EP; sends that are under way are not touched.
    ///
    /// # Errors
    /// INVALID_PARAMETER (ARG2) for one that is freed already or another EP's; INVALID_HANDLE after the EP was freed.
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

    /// Whether a datagram with these flags can be posted, and in which state.
    pub(crate) fn takes_datagrams(&self) -> Result<EpState, PostError> {
        let state = self.state();
        if self.is_ud() { Ok(state) } else { Err(PostError::EpState(state.subtype())) }
    }

    /// The way of this address handle, which has to be good here.
    pub(crate) fn way(&self, to: Destination, pz: u32) -> Result<Ah, PostError> {
        let ah = if to.qpn < 1 << 24 { self.ia.address_handles.find(to, pz) } else { None };
        ah.ok_or(PostError::AddressHandle)
    }

    /// Hands a datagram to the device.
    pub(crate) fn post_datagram(
        &self,
        qp: &Qp,
        wr_id: u64,
        sges: &[Sge],
        flags: SendFlags,
        (ah, qpn): (&Ah, u32),
    ) -> Result<(), Refusal> {
        let ud = Some(UdDest { ah, qpn, qkey: DATAGRAM_QKEY });
        qp.post_send(&SendWr { wr_id, op: SendOp::Send, sges, flags, inline: None, ud })?;
        if let (Some(ud), WrId::Request(seq)) = (&self.ud, WrId::unpack(wr_id)) {
            ud.0.lock().unwrap().sending.push_back((seq, ah.clone()));
        }
        Ok(())
    }

    /// Lets go of the address handles of sends that are done.
    pub(crate) fn forget_ways_of_done_sends(&self) {
        let Some(ud) = &self.ud else { return };
        let first = self.first_request();
        loop {
            let mut state = ud.0.lock().unwrap();
            let is_done = state.sending.front().is_some_and(|(seq, _)| *seq < first);
            let done = if is_done { state.sending.pop_front() } else { None };
            drop(state);
            // The last one of a handle that was freed: a call into the kernel, so without the lock.
            if done.is_none() {
                return;
            }
        }
    }

    /// A connection with parameters of this EP's QP.
    pub(crate) fn datagram_param<'a>(&self, private_data: &'a [u8]) -> ConnParam<'a> {
        let param = ConnParam { private_data, srq: self.srq.is_some(), ..self.ia.conn_param() };
        ConnParam { qp_num: self.qp().num(), ..param }
    }

    fn datagram_event(&self, kind: DatagramEventKind, private_data: Vec<u8>, cm: u64) {
        if let Some(evd) = self.connect_evd() {
            let ep_context = self.context.load(Ordering::Relaxed);
            let event = DatagramEvent { ep: self.id, ep_context, kind, private_data, cm };
            evd.push(EventData::Datagram(Box::new(event)));
        }
    }

    /// A new address handle, for an event with this CM handle; both go with this EP.
    fn hand_out(&self, ah: Ah, qpn: u32, address: IpAddr, cm: u64) -> crate::Result<AddressHandle> {
        let Some(ud) = &self.ud else { return Err(not_here()) };
        let mut state = ud.0.lock().unwrap();
        state.cms.try_reserve(1)?;
        let route = UdRoute { ah, pz: self.pz_number(), ep: self.id };
        let token = self.ia.address_handles.issue(route)?;
        state.cms.insert(cm);
        Ok(AddressHandle { qpn, address, token })
    }

    pub(crate) fn free_address_handle(&self, token: u64) -> Result<()> {
        self.check()?;
        let route = self.ia.address_handles.remove(token, self.id).ok_or_else(|| {
            Error::arg(2, "this address handle has been freed, or was not found out for this EP")
        })?;
        drop(route);
        self.forget_ways_of_done_sends();
        Ok(())
    }

    /// Frees the CM handle of an event; there is nothing behind it any more.
    pub(crate) fn free_datagram_cm(&self, cm: u64) -> Result<()> {
        self.check()?;
        let known = self.ud.as_ref().is_some_and(|ud| ud.0.lock().unwrap().cms.remove(&cm));
        if known {
            Ok(())
        } else {
            Err(Error::arg(2, "this CM handle has been freed, or is not one of this EP's"))
        }
    }

    /// Peers may know the number of its QP.
    pub(crate) fn is_known_to_peers(&self) -> bool {
        self.ud.as_ref().is_some_and(|ud| ud.0.lock().unwrap().known)
    }

    /// The QP has failed: nothing goes through it any more before a reset.
    pub(crate) fn datagrams_failed(self: &Arc<Self>) {
        let mut control = self.control.lock().unwrap();
        if self.state() == EpState::Disconnected {
            return;
        }
        if let Err(error) = self.qp().to_error() {
            tracing::warn!(%error, ep = self.id.0, "could not move a QP to the error state");
        }
        self.set_state(EpState::Disconnected);
        control.drained = false;
        drop(control);
        self.tell_broken();
        self.recheck_notification();
        self.drain_soon();
    }

    /// The EP goes, and what was found out for it.
    pub(crate) fn close_datagrams(&self) {
        let Some(ud) = &self.ud else { return };
        let state = std::mem::take(&mut *ud.0.lock().unwrap());
        for token in state.asking.keys() {
            self.ia.cm.forget(*token);
        }
        self.ia.address_handles.remove_all_of(self.id);
        drop(state);
    }
}
