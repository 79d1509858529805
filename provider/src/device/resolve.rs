//! How long the resolution of an address and of a route may take.
//!
//! An address is resolved in several tries, of which the first are short. The kernel can miss an
//! answer that comes at once (see [`rxe_fallback::CmId::resolve_addr`]), and a host may not answer at
//! first.

use std::time::Duration;

/// The time limit of route resolution.
pub(crate) const ROUTE_TIME: Duration = Duration::from_secs(4);

/// The time limit of the first try.
const FIRST: Duration = Duration::from_millis(50);

/// The number of tries. Each takes twice as long as the one before: 6.35 s together.
const TRIES: u32 = 7;

/// The tries to resolve one address.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tries(u32);

impl Tries {
    /// The first try, with its time limit.
    pub(crate) fn begin() -> (Self, Duration) {
        (Self(1), FIRST)
    }

    /// The time limit of the next try. `None` after the last.
    pub(crate) fn next_limit(&mut self) -> Option<Duration> {
        let time = FIRST * 2u32.pow(self.0);
        self.0 += 1;
        (self.0 <= TRIES).then_some(time)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tries_become_longer_and_end() {
        let (mut tries, first) = Tries::begin();
        let later: Vec<_> =
            std::iter::from_fn(|| tries.next_limit()).map(|limit| limit.as_millis()).collect();
        assert_eq!((first.as_millis(), later), (50, vec![100, 200, 400, 800, 1600, 3200]));
    }
}
