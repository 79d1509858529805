//! The log: lines on standard error, as the journal takes them.

use tracing_subscriber::EnvFilter;

/// Logs from now on: what `DOORBELL_LOG` says, or else this level.
pub fn start(level: &str) {
    let filter = EnvFilter::try_from_env("DOORBELL_LOG").unwrap_or_else(|_| EnvFilter::new(level));
    // The journal has its own time stamps.
    let lines =
        tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_target(false);
    let started = match std::env::var_os("JOURNAL_STREAM") {
        Some(_) => lines.without_time().with_ansi(false).try_init(),
        None => lines.try_init(),
    };
    if let Err(error) = started {
        tracing::debug!(%error, "the log had been started");
    }
}
