//! Settings of an IA.

use crate::process;
use std::fmt::Display;
use std::str::FromStr;
use std::time::Duration;

/// Settings of an IA; the defaults come from the environment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IaSettings {
    /// How often a sender retries when the peer has no receive posted: 0 to 6 times; 7 retries for
    /// ever. Set by `DOORBELL_RNR_RETRY`, default 6.
    pub rnr_retry: u8,
    /// How long a peer waits before it retries, as a code of ibv_modify_qp(3). 26 is 81.92 ms: with
    /// 6 retries, an SRQ may be empty for half a second. Set by `DOORBELL_RNR_TIMER`, default 26.
    pub rnr_timer: u8,
    /// How long a wait for a completion polls before it sleeps; zero: it sleeps at once. Waits learn
    /// whether polling is of use: where it is not, it becomes rare. Set by `DOORBELL_POLL_TIME` in
    /// microseconds, 0 to 10,000, default 50.
    pub poll_time: Duration,
}

impl Default for IaSettings {
    fn default() -> Self {
        Self {
            rnr_retry: number("DOORBELL_RNR_RETRY", 7, 6),
            rnr_timer: number("DOORBELL_RNR_TIMER", 31, 26),
            poll_time: Duration::from_micros(number("DOORBELL_POLL_TIME", 10_000, 50)),
        }
    }
}

/// The number in an environment variable, from 0 to `most`.
fn number<T: FromStr + PartialOrd + Display>(name: &str, most: T, default: T) -> T {
    let Some(text) = process::variable(name) else { return default };
    match text.parse() {
        Ok(n) if n <= most => n,
        _ => {
            tracing::error!("{name}={text:?} is not a number from 0 to {most}: using {default}");
            default
        }
    }
}
