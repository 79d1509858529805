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
use crate::ep::{Ep, EpBuilder, EpInner};
use crate::event_data::{ConnectionEvent, ConnectionEventKind, Notice};
use crate::types::{CloseFlags, EpState, MAX_PRIVATE_DATA};
use crate::{Error, Refused, Result, ReturnType, Subtype};
use std::net::SocketAddr;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// How an EP connects. The default has no time limit but the transport's own, and no private data.
///
/// ```no_run
/// # use doorbell::{ConnectOptions, Ep};
/// # use std::time::Duration;
/// # fn connect(ep: &Ep, server: std::net::SocketAddr) -> doorbell::Result<()> {
/// let limit = Duration::from_secs(5);
/// ep.connect_with(server, ConnectOptions::new().timeout(limit).private_data(b"hello"))
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct ConnectOptions<'a> {
    timeout: Option<Duration>,
    private_data: &'a [u8],
}

impl<'a> ConnectOptions<'a> {
    /// The default.
    pub fn new() -> Self {
        Self::default()
    }

    /// Limits the time of the whole attempt.
    #[must_use]
    pub fn timeout(self, timeout: Duration) -> Self {
        Self { timeout: Some(timeout), ..self }
    }

    /// Sends these bytes, at most [`MAX_PRIVATE_DATA`], with the request
    /// ([`Cr::private_data`](crate::Cr::private_data)).
    #[must_use]
    pub fn private_data(self, private_data: &'a [u8]) -> Self {
        Self { private_data, ..self }
    }
}

impl Ep {
    /// Requests a connection to the service at this address and port, such as
    /// [`Psp::address`](crate::Psp::address). An event on the connect EVD reports the outcome.
    ///
    /// A UD EP instead asks for the address handle of an EP of that service. It may ask any number
    /// of times, also while earlier answers are awaited, and stays UNCONNECTED. Each call ends in
    /// one [`DatagramEvent`](crate::DatagramEvent).
    ///
    /// # Errors
    /// INVALID_STATE unless the EP is UNCONNECTED; INVALID_HANDLE after the IA was closed.
    ///
    /// # References
    /// dat_ep_connect(3DAT).
    pub fn connect(&self, to: SocketAddr) -> Result<()> {
        self.connect_with(to, ConnectOptions::new())
    }

    /// As [`Ep::connect`], with options.
    ///
    /// # Errors
    /// As [`Ep::connect`]; INVALID_PARAMETER (ARG5) for more than [`MAX_PRIVATE_DATA`] bytes of private data.
    ///
    /// # References
    /// dat_ep_connect(3DAT).
    pub fn connect_with(&self, to: SocketAddr, options: ConnectOptions<'_>) -> Result<()> {
        self.inner.connect(to.ip(), to.port().into(), options.timeout, options.private_data)
    }

    /// Ends the connection.
    ///
    /// A graceful disconnect lets requests finish first, and still receives meanwhile (R180). An
    /// abrupt disconnect ends the connection immediately, also while a graceful one waits for
    /// requests. On a DISCONNECTED EP the call does nothing (R186).
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
    pub fn close(self) -> Result<(), Refused<Self>> {
        if let Err(error) = self.can_close() {
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

    /// Checks whether [`Ep::close`] would succeed. The answer is valid until the EP is given to an
    /// RSP or a request.
    #[doc(hidden)]
    pub fn can_close(&self) -> Result<()> {
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

impl EpBuilder<'_> {
    /// Creates the EP and requests a connection: [`Ep::connect`].
    ///
    /// # Errors
    /// As [`EpBuilder::build`] and [`Ep::connect`].
    pub fn connect(self, to: SocketAddr) -> Result<Ep> {
        self.connect_with(to, ConnectOptions::new())
    }

    /// Creates the EP and requests a connection with options: [`Ep::connect_with`].
    ///
    /// # Errors
    /// As [`EpBuilder::build`] and [`Ep::connect_with`].
    pub fn connect_with(self, to: SocketAddr, options: ConnectOptions<'_>) -> Result<Ep> {
        let ep = self.build()?;
        ep.connect_with(to, options)?;
        Ok(ep)
    }
}

/// The calls that DAT has for the same purpose.
impl EpInner {
    /// Requests a connection to the common service point at this address and port.
    ///
    /// # Errors
    /// As [`Ep::connect`]; INVALID_PARAMETER (ARG2) for port 0.
    ///
    /// # References
    /// dat.h, `dat_ep_common_connect`.
    pub fn common_connect(
        self: &Arc<Self>,
        remote: SocketAddr,
        timeout: Option<Duration>,
        private_data: &[u8],
    ) -> Result<()> {
        self.check()?;
        if remote.port() == 0 {
            return Err(Error::arg(2, "an address without a port names no service point"));
        }
        if self.is_ud() {
            let text = "common service points take reliable connections: connect to a PSP";
            return Err(Error::new(ReturnType::ModelNotSupported, Subtype::None, text));
        }
        self.connect(remote.ip(), remote.port().into(), timeout, private_data)
    }

    /// Connects to the service that another EP is connected to.
    ///
    /// # Errors
    /// As [`Ep::connect`]; INVALID_STATE if `other` is not connected as the active side.
    ///
    /// # References
    /// dat_ep_dup_connect(3DAT).
    pub fn dup_connect(
        self: &Arc<Self>,
        other: &Self,
        timeout: Option<Duration>,
        private_data: &[u8],
    ) -> Result<()> {
        other.check()?;
        if self.is_ud() {
            let state = self.state();
            return Err(Error::state(state.subtype(), "an EP for datagrams cannot follow a connection"));
        }
        let state = other.state();
        let service = other.control.lock().unwrap().service;
        match service {
            Some((remote, qual)) if state == EpState::Connected => {
                self.connect(remote, qual, timeout, private_data)
            }
            _ => Err(Error::state(state.subtype(), "the EP to follow is not connected as the active side")),
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
        self.tell(self.notice_of(kind, private_data, false));
    }

    /// As [`EpInner::event`], of a connection that has not come up.
    pub(crate) fn never_up(&self, kind: ConnectionEventKind, private_data: Vec<u8>) {
        self.tell(self.notice_of(kind, private_data, true));
    }

    /// Queues an event on the connect EVD, unless the EP was freed, and tells the program.
    pub(crate) fn tell(&self, event: Notice) {
        let Some(evd) = self.connect_evd() else { return };
        if let Some(lost) = self.device.tell_of(|| self.exists(), || evd.put_notice(event)) {
            evd.announce_notice(lost);
        }
    }

    fn notice_of(&self, kind: ConnectionEventKind, private_data: Vec<u8>, never_up: bool) -> Notice {
        let ep_context = self.pair.context();
        Notice::Connection(ConnectionEvent { ep: self.id, ep_context, kind, private_data, never_up })
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
