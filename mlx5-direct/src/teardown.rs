//! Destroying a QP without losing the SRQ slots that the QP holds.
//!
//! libmlx5 does not clean a CQ that is polled here when one of its QPs goes away, so this crate
//! must return the slots of that QP's completions. These steps lose no slot:
//!
//! 1. Move the QP to the error state ([`dv::qp_to_error`](crate::dv::qp_to_error)). The QP takes no
//!    more slots.
//! 2. Wait for `IBV_EVENT_QP_LAST_WQE_REACHED`: every slot that the QP took then has its
//!    completion. Some devices never send this event, so the wait has a bound.
//! 3. Poll the CQ until it is empty, returning every slot.
//! 4. Destroy the QP. The SRQ outlives it.
//! 5. Without step 2 and 3, or if the bound passed without the event: call [`Cq::clean`] for both
//!    CQs of the QP, so that no completion of the QP is left for a later QP with the same number.
//!
//! [`QpTeardown`] keeps track of the steps; the caller reads async events and supplies the time.

use std::time::{Duration, Instant};

use crate::{
    cq::Cq,
    cqe::{Completion, CqeError},
};

/// What a [`QpTeardown`] waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TeardownStep {
    /// The last-WQE event, or the bound: call again later.
    LastWqe,
    /// Nothing: the CQ was empty after the event (or the bound), and the QP can be destroyed.
    Destroy {
        /// Whether the event came. If not, a slot that the QP still held is found only when the SRQ
        /// itself is destroyed.
        event_seen: bool,
    },
}

/// A QP between the error state and its destruction.
///
/// ```
/// use std::time::{Duration, Instant};
/// use mlx5_direct::{Cq, CqLayout, teardown::{QpTeardown, TeardownStep}};
///
/// let (layout, _device) = CqLayout::on_heap(16, 64)?;
/// let mut cq = Cq::new(layout);
/// let now = Instant::now();
/// let mut teardown = QpTeardown::begin(0x42, now, Duration::from_secs(1));
/// assert_eq!(teardown.advance(&mut cq, now, |_| ())?, TeardownStep::LastWqe);
/// teardown.last_wqe_reached();
/// assert_eq!(teardown.advance(&mut cq, now, |_| ())?, TeardownStep::Destroy { event_seen: true });
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct QpTeardown {
    qpn: u32,
    deadline: Instant,
    event_seen: bool,
}

impl QpTeardown {
    /// The QP is in the error state since `now`. Wait at most `bound` for the last-WQE event.
    pub fn begin(qpn: u32, now: Instant, bound: Duration) -> Self {
        Self { qpn, deadline: now + bound, event_seen: false }
    }

    /// The QP number.
    pub fn qpn(&self) -> u32 {
        self.qpn
    }

    /// Call this when the last-WQE event for this QP was read from the async descriptor. For a QP
    /// without an SRQ there is no such event: call this at once.
    pub fn last_wqe_reached(&mut self) {
        self.event_seen = true;
    }

    /// Polls the CQ until it is empty and passes every completion (of any QP on the CQ) to `each`,
    /// which returns the slots.
    ///
    /// # Errors
    ///
    /// As [`Cq::poll`].
    pub fn advance(
        &mut self,
        cq: &mut Cq,
        now: Instant,
        each: impl FnMut(Completion),
    ) -> Result<TeardownStep, CqeError> {
        // The flag is read before polling: completions that came before the event are then certain
        // to be polled below.
        let (event_seen, expired) = (self.event_seen, now >= self.deadline);
        cq.poll_each(u32::MAX, each)?;
        Ok(if event_seen || expired { TeardownStep::Destroy { event_seen } } else { TeardownStep::LastWqe })
    }
}
