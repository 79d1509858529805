//! Requests of a chain, which one doorbell hands to the device.

use super::{any, with_flags, wr_of};
use crate::datapath::fast::Chain;
use crate::datapath::request::{Outgoing, Request};
use mlx5_direct::wqe::KeyedSeg;
use rxe_fallback::{PostError as Refusal, SendFlags, SendOp};

impl Chain for mlx5_direct::Chain<'_, Request> {
    type Segment = KeyedSeg;

    /// The request is made again if the queue has to look for room. It would be in memory if both
    /// calls used the same one, and the first would wait until that was stored.
    #[inline(always)]
    fn add_fast(
        &mut self,
        request: impl Fn() -> Request,
        op: SendOp<'static>,
        segment: KeyedSeg,
        flags: SendFlags,
    ) -> bool {
        let Some(wr) = wr_of(op, [segment]) else { return false };
        let wr = with_flags(wr, flags);
        self.push_fast(&wr, request()) || self.push(wr, request()).is_ok()
    }

    fn add(&mut self, request: &Outgoing<'_>) -> Result<(), Refusal> {
        any::put(self, request)
    }
}
