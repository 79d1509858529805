//! Signals of a service: the main thread waits for them; no other thread gets them.

use nix::sys::signal::{SigSet, Signal, kill};
use nix::unistd::Pid;

/// What a signal asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// SIGHUP: read the configuration again.
    Reload,
    /// SIGTERM or SIGINT: end.
    End,
}

/// The signals that the process waits for.
#[derive(Debug)]
pub struct Signals(SigSet);

impl Signals {
    /// Blocks the signals in this thread and those that it starts. Call this before any thread is
    /// started.
    ///
    /// # Errors
    /// That of pthread_sigmask(3).
    pub fn block() -> nix::Result<Self> {
        let mut set = SigSet::empty();
        for signal in [Signal::SIGHUP, Signal::SIGTERM, Signal::SIGINT] {
            set.add(signal);
        }
        set.thread_block()?;
        Ok(Self(set))
    }

    /// Waits for the next signal.
    ///
    /// # Errors
    /// That of sigwait(3).
    pub fn wait(&self) -> nix::Result<Order> {
        Ok(match self.0.wait()? {
            Signal::SIGHUP => Order::Reload,
            _ => Order::End,
        })
    }
}

/// Asks the service to end, as SIGTERM does.
pub fn raise_end() {
    if let Err(error) = kill(Pid::this(), Signal::SIGTERM) {
        tracing::error!(%error, "cannot end");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::signal::raise;

    #[test]
    fn signals_are_orders() {
        let signals = Signals::block().unwrap();
        raise(Signal::SIGHUP).unwrap();
        assert_eq!(signals.wait(), Ok(Order::Reload));
        raise(Signal::SIGTERM).unwrap();
        assert_eq!(signals.wait(), Ok(Order::End));
    }
}
