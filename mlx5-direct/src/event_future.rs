//! An event channel whose events tasks of tokio await.

use crate::dv::EventChannel;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use std::io;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// An [`EventChannel`] whose events tasks await. Needs the feature `tokio`.
///
/// ```no_run
/// # use mlx5_direct::{ArmFor, AsyncEventChannel, Completion, Cq, CqeError};
/// /// The next completion.
/// async fn next(cq: &mut Cq, events: &AsyncEventChannel) -> Result<Completion, Box<dyn std::error::Error>> {
///     loop {
///         // Arming and polling once more: a completion that came before raises no event.
///         cq.arm(ArmFor::Any);
///         if let Some(completion) = cq.poll()? {
///             return Ok(completion);
///         }
///         events.read_event().await?;
///         cq.event_received();
///     }
/// }
/// ```
#[derive(Debug)]
pub struct AsyncEventChannel {
    fd: AsyncFd<EventChannel>,
}

impl AsyncEventChannel {
    /// Makes the descriptor non-blocking and registers it with the current runtime.
    ///
    /// # Errors
    ///
    /// The error of `fcntl`, or that of the runtime, for one because the channel is registered with
    /// it already.
    ///
    /// # Panics
    ///
    /// Without a current runtime that has its I/O driver enabled.
    #[allow(deprecated, reason = "safe, since a channel has one open descriptor as long as it lives")]
    pub fn new(channel: EventChannel) -> io::Result<Self> {
        let flags = OFlag::from_bits_retain(fcntl(&channel, FcntlArg::F_GETFL)?);
        fcntl(&channel, FcntlArg::F_SETFL(flags | OFlag::O_NONBLOCK))?;
        Ok(Self { fd: AsyncFd::with_interest(channel, Interest::READABLE)? })
    }

    /// Waits for an event, acknowledges it, and returns the CQ's user context (`cq_context` of
    /// `ibv_create_cq`) as an address. Call [`Cq::event_received`](crate::Cq::event_received)
    /// afterwards. A future that is dropped takes no event.
    ///
    /// # Errors
    ///
    /// The error of `ibv_get_cq_event`, or that of the runtime.
    pub async fn read_event(&self) -> io::Result<usize> {
        loop {
            let mut ready = self.fd.readable().await?;
            // Err: there was no event, and the descriptor is awaited again.
            if let Ok(outcome) = ready.try_io(|channel| channel.get_ref().read_event()) {
                return outcome.map(|context| context.addr());
            }
        }
    }

    /// The channel.
    pub fn channel(&self) -> &EventChannel {
        self.fd.get_ref()
    }
}
