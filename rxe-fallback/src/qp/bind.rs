//! Binding memory windows of type 1, which is a request to a QP.
#![expect(unsafe_code, reason = "calls into libibverbs")]

use doorbell_sys as sys;

use super::Qp;
use super::send::SendFlags;
use crate::mw::{BindMw, Mw, MwKind};
use crate::wr::{PostError, refused};

impl Mw {
    /// Binds a window of type 1 through `qp`; the result comes as a completion of `qp`'s send CQ.
    ///
    /// # Errors
    /// [`PostError::Full`] when the queue is full; [`PostError::Refused`] with EINVAL when the
    /// window is of type 2, which is bound with [`SendOp::BindMw`](crate::SendOp::BindMw), else
    /// with `ibv_bind_mw`'s errno.
    ///
    /// # References
    /// ibv_bind_mw(3)
    pub fn bind(&self, qp: &Qp, wr_id: u64, bind: &BindMw<'_>, flags: SendFlags) -> Result<(), PostError> {
        if self.kind() != MwKind::Type1 {
            return Err(PostError::Refused(libc::EINVAL));
        }
        let mut raw_bind = sys::ibv_mw_bind { wr_id, send_flags: flags.bits(), bind_info: bind.to_sys() };
        // SAFETY: QP, window and region are alive; the struct lives for the call.
        match unsafe { sys::ibv_bind_mw(qp.raw(), self.raw(), &mut raw_bind) } {
            0 => Ok(()),
            returned => Err(refused(returned)),
        }
    }
}
