//! The EP state machine: how EPs connect, disconnect, break, are reset and freed.
//!
//! | file | what |
//! |---|---|
//! | this one | the consumer's calls |
//! | `setup` | from the call or the request until the connection is up, or has failed |
//! | `end` | disconnects, failures, reset and free |
//! | `drain` | how an ended connection gets everything back from the device |
//!
//! Calls of the consumer and events of the connection manager (on the progress thread) take the lock
//! of [`Control`](crate::ep::Control). The thread that moves the EP into a state also makes the event
//! for that state, so there is exactly one (R184). Events are pushed after the lock is released.
//!
//! The provider makes the QPs, not librdmacm: the QP's number goes into the connection parameters, and
//! the active side moves its QP and confirms when the response arrives.

mod drain;
mod end;
mod setup;

pub(crate) use setup::RESOLVE_TIME;

use crate::device::CmHandler;
use crate::ep::{Ep, EpInner};
use crate::event_data::{ConnectionEvent, ConnectionEventKind, Notice};
use crate::types::{CloseFlags, ConnQual, EpState, MAX_PRIVATE_DATA, Qos};
use crate::{Error, Refused, Result, ReturnType, Subtype};
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Weak};
use std::time::Duration;

impl Ep {
    /// Asks to connect to a service; the outcome is an event on the connect EVD.
    ///
    /// `timeout` bounds the whole attempt; `None` leaves it to the transport, which gives up too.
    ///
    /// A UD EP asks where datagrams to an EP of that service go, any number of times and also while earlier answers are awaited; it
    /// stays UNCONNECTED. Each ends in one [`DatagramEvent`](crate::DatagramEvent).
    ///
    /// # Errors
    /// INVALID_STATE unless UNCONNECTED; INVALID_PARAMETER (ARG5) for over 56 bytes of private data; MODEL_NOT_SUPPORTED for a
    /// quality of service other than best effort.
    ///
    /// # References
    /// dat_ep_connect(3DAT).
    pub fn connect(
        &self,
        remote: IpAddr,
        conn_qual: ConnQual,
        timeout: Option<Duration>,
        private_data: &[u8],
        qos: Qos,
    ) -> Result<()> {
        if qos != Qos::BestEffort {
            let text = format!("{qos:?}: connections are best effort");
            return Err(Error::new(ReturnType::ModelNotSupported, Subtype::None, text));
        }
        self.inner.connect(remote, conn_qual, timeout, private_data)
    }

    /// Asks to connect to a common service point, which an address and port name.
    ///
    /// # Errors
    /// As [`Ep::connect`]; INVALID_PARAMETER (ARG2) for port 0.
    ///
    /// # References
    /// dat.h, `dat_ep_common_connect`.
    pub fn common_connect(
        &self,
        remote: SocketAddr,
        timeout: Option<Duration>,
        private_data: &[u8],
    ) -> Result<()> {
        self.inner.check()?;
        if remote.port() == 0 {
            return Err(Error::arg(2, "an address without a port names no service point"));
        }
        if self.inner.is_ud() {
            let text = "common service points take reliable connections: connect to a PSP";
            return Err(Error::new(ReturnType::ModelNotSupported, Subtype::None, text));
        }
        self.inner.connect(remote.ip(), remote.port().into(), timeout, private_data)
    }

    /// Connects to the service that another EP is connected to.
    ///
    /// # Errors
    /// As [`Ep::connect`]; INVALID_STATE where `other` is not connected as the active side.
    ///
    /// # References
    /// dat_ep_dup_connect(3DAT).
    pub fn dup_connect(&self, other: &Ep, timeout: Option<Duration>, private_data: &[u8]) -> Result<()> {
        other.inner.check()?;
        if self.inner.is_ud() {
            let state = self.inner.state();
            return Err(Error::state(state.subtype(), "an EP for datagrams cannot follow a connection"));
        }
        let state = other.inner.state();
        let service = other.inner.control.lock().unwrap().service;
        match service {
            Some((remote, qual)) if state == EpState::Connected => {
                self.inner.connect(remote, qual, timeout, private_data)
            }
            _ => Err(Error::state(state.subtype(), "the EP to follow is not connected as the active side")),
        }
    }

    /// Ends the connection.
    ///
    /// Graceful lets requests finish first and goes on receiving meanwhile (R180); abrupt ends at once. On a DISCONNECTED EP it
    /// does nothing (R186).
    ///
    /// # Errors
    /// INVALID_STATE in UNCONNECTED, RESERVED and PASSIVE_CONNECTION_PENDING (R187).
    ///
    /// # References
    /// dat_ep_disconnect(3DAT).
    pub fn disconnect(&self, how: CloseFlags) -> Result<()> {
        self.inner.disconnect(how)?;
        self.inner.control.lock().unwrap().calls.disconnects += 1;
        Ok(())
    }

    /// From DISCONNECTED back to UNCONNECTED, with the same SRQ and attributes (R167, R168).
    ///
    /// # Errors
    /// INVALID_STATE elsewhere; in UNCONNECTED it does nothing.
    ///
    /// # References
    /// dat_ep_reset(3DAT).
    pub fn reset(&mut self) -> Result<()> {
        self.inner.reset()
    }

    /// Frees it; a connection is dropped, its events that were not reaped are gone and what they held is free again (R170-R172).
    /// [`Ep`] says how to see all of them first.
    ///
    /// # Errors
    /// INVALID_STATE in RESERVED and PASSIVE_CONNECTION_PENDING; the EP comes back.
    ///
    /// # References
    /// dat_ep_free(3DAT).
    pub fn free(self) -> Result<(), Refused<Self>> {
        if let Err(error) = self.can_free() {
            return Err(Refused { object: self, error });
        }
        self.inner.close();
        Ok(())
    }

    /// What [`Ep::free`] would say. A yes holds as long as nobody gives the EP to an RSP or a request.
    pub(crate) fn can_free(&self) -> Result<()> {
        self.inner.check()?;
        let state = self.inner.state();
        match state {
            EpState::Reserved | EpState::PassiveConnectionPending | EpState::TentativeConnectionPending => {
                let text = "an RSP or a request holds this EP: free or reject that first";
                Err(Error::state(state.subtype(), text))
            }
            _ => Ok(()),
        }
    }
}

impl Drop for Ep {
    fn drop(&mut self) {
        // Of one of the parent process the locks may be held for ever.
        if self.inner.ia.is_inherited() {
            // Nothing of the parent's connection is touched, and nothing is freed.
            std::mem::forget(self.inner.clone());
        } else {
            self.inner.close();
        }
    }
}

impl EpInner {
    /// For events of its connection ids.
    pub(crate) fn cm_handler(self: &Arc<Self>) -> Weak<dyn CmHandler> {
        let ep: Weak<Self> = Arc::downgrade(self);
        ep
    }

    pub(crate) fn event(&self, kind: ConnectionEventKind, private_data: Vec<u8>) {
        if let Some(evd) = self.connect_evd() {
            let ep_context = self.pair.context();
            evd.push(Notice::Connection(ConnectionEvent { ep: self.id, ep_context, kind, private_data }));
        }
    }
}

pub(crate) fn check_private_data(data: &[u8], arg: u16) -> Result<()> {
    if data.len() > MAX_PRIVATE_DATA {
        return Err(Error::arg(
            arg,
            format!("{} bytes of private data, at most {MAX_PRIVATE_DATA} fit", data.len()),
        ));
    }
    Ok(())
}
