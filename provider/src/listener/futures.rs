//! Listeners as futures of tokio. All need a runtime with its I/O driver enabled.

use super::{CnoListener, EvdListener};
use crate::types::EvdId;
use crate::{Cno, Error, Evd, Event, Result, ReturnType, Subtype};
use futures_core::Stream;
use std::future::poll_fn;
use std::io;
use std::os::fd::AsRawFd;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Registers a listener with the current runtime. `AsyncFd::register` of newer versions of tokio
/// would be `unsafe`, because it cannot know what is true of listeners: a listener has the same
/// open descriptor as long as it lives.
#[allow(deprecated, reason = "for all versions 1 of tokio")]
fn register<T: AsRawFd>(listener: T) -> Result<AsyncFd<T>> {
    AsyncFd::with_interest(listener, Interest::READABLE).map_err(of_runtime)
}

fn of_runtime(error: io::Error) -> Error {
    Error::new(ReturnType::InternalError, Subtype::None, format!("tokio: {error}"))
}

/// An EVD whose events tasks await. Needs the feature `tokio`.
///
/// ```no_run
/// # async fn print(evd: &doorbell::Evd) -> doorbell::Result<()> {
/// let mut events = doorbell::AsyncEvd::new(evd)?;
/// loop {
///     println!("{:?}", events.next().await?);
/// }
/// # }
/// ```
///
/// It is a [`Stream`] as well, which never ends: a refusal is an item.
#[derive(Debug)]
pub struct AsyncEvd {
    fd: AsyncFd<EvdListener>,
}

impl AsyncEvd {
    /// Registers the EVD with the current runtime.
    ///
    /// # Errors
    /// As [`EvdListener::new`]; INTERNAL_ERROR if the runtime refuses the descriptor.
    ///
    /// # Panics
    /// Without a current runtime, as [`AsyncFd::new`].
    pub fn new(evd: &Evd) -> Result<Self> {
        Ok(Self { fd: register(EvdListener::new(evd)?)? })
    }

    /// Waits for the next event, and takes it. The task sleeps until the device or another thread
    /// signals.
    ///
    /// A future that is dropped ends its wait and loses no event. `tokio::time::timeout` limits the
    /// wait.
    ///
    /// # Errors
    /// As [`EvdListener::poll`].
    pub async fn next(&mut self) -> Result<Event> {
        let waiting = Waiting(self);
        poll_fn(|context| waiting.0.poll(context)).await
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<Event>> {
        loop {
            if let Some(event) = self.fd.get_mut().poll()? {
                return Poll::Ready(Ok(event));
            }
            let ready = ready!(self.fd.poll_read_ready_mut(context)).map_err(of_runtime);
            // Before the next look: an event after that look makes the descriptor ready again.
            ready?.clear_ready();
        }
    }

    /// The EVD.
    pub fn evd(&self) -> &Evd {
        self.fd.get_ref().evd()
    }
}

/// A task that does not poll the stream for long leaves the EVD with a waiter, which keeps other
/// threads from dequeues.
impl Stream for AsyncEvd {
    type Item = Result<Event>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.get_mut().poll(context).map(Some)
    }
}

/// Ends the wait when the future is dropped.
struct Waiting<'a>(&'a mut AsyncEvd);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fd.get_mut().cancel();
    }
}

/// A CNO whose triggers tasks await. Needs the feature `tokio`.
#[derive(Debug)]
pub struct AsyncCno {
    fd: AsyncFd<CnoListener>,
}

impl AsyncCno {
    /// Registers a CNO that has a descriptor with the current runtime.
    ///
    /// # Errors
    /// As [`CnoListener::new`]; INTERNAL_ERROR if the runtime refuses the descriptor, for one
    /// because the CNO is registered with it already.
    ///
    /// # Panics
    /// Without a current runtime, as [`AsyncFd::new`].
    pub fn new(cno: &Cno) -> Result<Self> {
        Ok(Self { fd: register(CnoListener::new(cno)?)? })
    }

    /// Waits until an EVD triggers the CNO, and returns that EVD, as [`Cno::wait`].
    ///
    /// # Errors
    /// As [`CnoListener::poll`].
    pub async fn wait(&self) -> Result<EvdId> {
        loop {
            if let Some(evd) = self.fd.get_ref().poll()? {
                return Ok(evd);
            }
            let mut ready = self.fd.readable().await.map_err(of_runtime)?;
            ready.clear_ready();
        }
    }

    /// The CNO.
    pub fn cno(&self) -> &Cno {
        self.fd.get_ref().cno()
    }
}
