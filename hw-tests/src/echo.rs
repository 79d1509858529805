//! The echo: a server whose clients share one SRQ, and a client that sends messages of many sizes
//! over many connections and checks every byte that comes back.
//!
//! A client opens one control connection, on a plain EP. There the server grants it credits: how
//! many messages it may have under way. The credits of all clients together never exceed the
//! buffers of the SRQ. An answer returns a credit, so the server posts the buffer again before it
//! answers, and no message finds the SRQ empty.

pub mod client;
mod counters;
mod end;
pub mod pair;
mod pattern;
mod report;
pub mod server;
mod wire;

pub use client::Load;

use std::net::{IpAddr, SocketAddr};

/// Where a server listens unless told otherwise.
pub const DEFAULT_PORT: u16 = 5047;

/// Message sizes in bytes of a run unless told otherwise.
pub const DEFAULT_SIZES: [usize; 8] = [0, 1, 24, 32, 64, 4096, 65_536, 1 << 20];

/// Why an echo could not begin or did not end well.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// Bad input, or an environment in which nothing can be started.
    #[error("{0}")]
    Setup(String),
    /// The run failed after its start.
    #[error("{0}")]
    Run(String),
}

impl Failure {
    fn setup(what: &str, error: impl std::fmt::Display) -> Self {
        Self::Setup(format!("{what}: {error}"))
    }

    fn run(what: &str, error: impl std::fmt::Display) -> Self {
        Self::Run(format!("{what}: {error}"))
    }
}

/// A server's address and port: `ADDRESS` or `ADDRESS:PORT` (IPv6: `[ADDRESS]:PORT`).
///
/// # Errors
/// A sentence that says what an address looks like.
pub fn parse_server(text: &str) -> Result<SocketAddr, String> {
    if let Ok(ip) = text.parse::<IpAddr>() {
        return Ok(SocketAddr::new(ip, DEFAULT_PORT));
    }
    if let Ok(both) = text.parse::<SocketAddr>()
        && both.port() != 0
    {
        return Ok(both);
    }
    Err("not an address: give ADDRESS or ADDRESS:PORT, such as 10.9.0.1:5047".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn server_addresses_come_with_or_without_port() {
        let is = |text: &str| Ok(text.parse().unwrap());
        assert_eq!(parse_server("10.9.0.1"), is("10.9.0.1:5047"));
        assert_eq!(parse_server("10.9.0.1:77"), is("10.9.0.1:77"));
        assert_eq!(parse_server("[::1]:77"), is("[::1]:77"));
        assert!(parse_server("10.9.0.1:0").is_err());
        assert!(parse_server("10.9.0.1:65536").is_err());
        assert!(parse_server("somewhere").is_err());
    }
}
