//! Settings of an IA.

use crate::process;
use std::fmt::Display;
use std::str::FromStr;
use std::time::Duration;

/// Settings of an IA; the defaults come from the environment. `IaBuilder` explains them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct IaSettings {
    pub(crate) rnr_retry: u8,
    pub(crate) rnr_timer: u8,
    pub(crate) poll_time: Duration,
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
