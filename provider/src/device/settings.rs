//! Settings of an IA.

/// Settings of an IA; the defaults come from the environment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IaSettings {
    /// How often a sender retries when the peer has no receive posted: 0 to 6 times; 7 retries for
    /// ever. Set by `DOORBELL_RNR_RETRY`, default 6.
    pub rnr_retry: u8,
    /// How long a peer waits before it retries, as a code of ibv_modify_qp(3). 26 is 81.92 ms: with
    /// 6 retries, an SRQ may be empty for half a second. Set by `DOORBELL_RNR_TIMER`, default 26.
    pub rnr_timer: u8,
}

impl Default for IaSettings {
    fn default() -> Self {
        let number = |name: &str, most: u8, default: u8| match std::env::var(name) {
            Err(_) => default,
            Ok(text) => match text.parse() {
                Ok(n) if n <= most => n,
                _ => {
                    tracing::warn!("{name}={text:?} is not a number from 0 to {most}: using {default}");
                    default
                }
            },
        };
        Self {
            rnr_retry: number("DOORBELL_RNR_RETRY", 7, 6),
            rnr_timer: number("DOORBELL_RNR_TIMER", 31, 26),
        }
    }
}
