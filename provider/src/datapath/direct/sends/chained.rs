//! Requests of a chain, which one doorbell hands to the device.

use super::{any, with_flags, wr_of};
use crate::datapath::fast::Chain;
use crate::datapath::request::{Outgoing, Request};
use mlx5_direct::wqe::KeyedSeg;
use mlx5_direct::wr::{Inline, Wr};
use rxe_fallback::{PostError as Refusal, SendFlags, SendOp};

impl<'b> Chain<'b> for mlx5_direct::Chain<'_, Request> {
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

    #[inline(always)]
    fn copy_fast(
        &mut self,
        request: impl Fn() -> Request,
        op: SendOp<'static>,
        bytes: &'b [u8],
        flags: SendFlags,
    ) -> bool {
        let wr = match op {
            SendOp::Send => Wr::send(Inline(bytes)),
            SendOp::SendInvalidate(rkey) => Wr::send_inval(rkey, Inline(bytes)),
            _ => return false,
        };
        self.push_inline_fast(&with_flags(wr, flags), request())
    }

    fn add(&mut self, request: &Outgoing<'_>) -> Result<(), Refusal> {
        any::put(self, request)
    }

    fn copy(
        &mut self,
        request: Request,
        op: SendOp<'static>,
        bytes: &'b [u8],
        flags: SendFlags,
    ) -> Result<(), Refusal> {
        any::put_copy(self, request, op, bytes, flags)
    }
}
