//! The EP state machine: how EPs connect, disconnect, break, are reset and freed.
//!
//! | file | what |
//! |---|---|
//! | this one | the consumer's calls |
//! | `resolve` | how long an address and a route may take to be resolved |
//! | `setup` | from the call or the request until the connection is up, or has failed |
//! | `end` | disconnects, failures, reset and free |
//! | `drain` | how the device completes the work requests of an ended connection |
//!
//! Calls of the consumer and events of the connection manager (on the progress thread) take the
//! lock of [`Control`](crate::ep::Control). The thread that moves the EP into a state also creates
//! the event for that state, so there is exactly one event (R184). Events are pushed after the lock
//! is released.
//!
//! The provider creates the QPs, not librdmacm. The QP number goes into the connection parameters.
//! The active side moves its own QP to ready, and confirms when the response arrives.

mod drain;
mod end;
mod setup;

use crate::device::CmHandler;
use crate::ep::{Ep, EpInner};
use crate::event_data::{ConnectionEvent, ConnectionEventKind, Notice};
use crate::types::{CloseFlags, ConnQual, EpState, MAX_PRIVATE_DATA, Qos};
use crate::{Error, Refused, Result, ReturnType, Subtype};
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Weak};
use std::time::Duration;

impl Ep {
    /// Requests a connection to a service. An event on the connect EVD reports the outcome.
    ///
    /// `timeout` limits the whole attempt. With `None` only the transport's own limits apply.
    ///
    /// A UD EP instead asks for the address handle of an EP of that service. It may ask any number
    /// of times, also while earlier answers are awaited, and stays UNCONNECTED. Each call ends in
    /// one [`DatagramEvent`](crate::DatagramEvent).
    ///
    /// # Errors
    /// INVALID_STATE unless the EP is UNCONNECTED; INVALID_PARAMETER (ARG5) for more than 56 bytes
    /// of private data; MODEL_NOT_SUPPORTED for a quality of service other than best effort.
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

    /// Requests a connection to the common service point at this address and port.
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
    /// As [`Ep::connect`]; INVALID_STATE if `other` is not connected as the active side.
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
    /// A graceful disconnect lets requests finish first, and still receives meanwhile (R180). An
    /// abrupt disconnect ends the connection immediately. On a DISCONNECTED EP the call does
    /// nothing (R186).
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

    /// Returns a DISCONNECTED EP to UNCONNECTED, with the same SRQ and attributes (R167, R168). On
    /// an UNCONNECTED EP the call does nothing.
    ///
    /// # Errors
    /// INVALID_STATE in every other state.
    ///
    /// # References
    /// dat_ep_reset(3DAT).
    pub fn reset(&mut self) -> Result<()> {
        self.inner.reset()
    }

    /// Frees the EP. Its connection is dropped, its events that were not reaped are discarded, and
    /// the entries and buffers that those events hold are released (R170-R172). [`Ep`] explains how
    /// to see all events first.
    ///
    /// # Errors
    /// INVALID_STATE in RESERVED and PASSIVE_CONNECTION_PENDING. The error returns the EP.
    ///
    /// # References
    /// dat_ep_free(3DAT).
    pub fn free(self) -> Result<(), Refused<Self>> {
        if let Err(error) = self.can_free() {
            return Err(Refused { object: self, error });
        }
        let pair = Arc::downgrade(&self.inner.pair);
        self.inner.close();
        drop(self);
        if let Some(pair) = pair.upgrade() {
            // Another thread still looks at the EP, and destroys the QP when it has finished. The
            // device stops now.
            let _ = pair.qp().to_reset();
        }
        Ok(())
    }

    /// Checks whether [`Ep::free`] would succeed. The answer is valid until the EP is given to an
    /// RSP or a request.
    #[doc(hidden)]
    pub fn can_free(&self) -> Result<()> {
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
        // In a child process, a thread of the parent may hold the locks of a parent's EP for ever.
        if self.inner.device.is_inherited() {
            // Do not touch the parent's connection, and free nothing.
            std::mem::forget(self.inner.clone());
        } else {
            self.inner.close();
        }
    }
}

impl EpInner {
    /// The handler for events of the EP's connection IDs.
    pub(crate) fn cm_handler(self: &Arc<Self>) -> Weak<dyn CmHandler> {
        let ep: Weak<Self> = Arc::downgrade(self);
        ep
    }

    pub(crate) fn event(&self, kind: ConnectionEventKind, private_data: Vec<u8>) {
        self.tell(self.notice_of(kind, private_data));
    }

    /// Queues an event on the connect EVD, unless the EP was freed, and tells the program.
    pub(crate) fn tell(&self, event: Notice) {
        let Some(evd) = self.connect_evd() else { return };
        if let Some(lost) = self.device.tell_of(|| self.exists(), || evd.put_notice(event)) {
            evd.announce_notice(lost);
        }
    }

    fn notice_of(&self, kind: ConnectionEventKind, private_data: Vec<u8>) -> Notice {
        let ep_context = self.pair.context();
        Notice::Connection(ConnectionEvent { ep: self.id, ep_context, kind, private_data })
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
