//! The transitions between QP states.
#![expect(unsafe_code, reason = "calls into libibverbs")]

use std::sync::atomic::Ordering;

use doorbell_sys as sys;

use super::attr::{AttrMask, QpAttr, QpState, RtrAttr, RtsAttr};
use super::{Qp, QpKind};
use crate::device::{AtomicCap, Context};
use crate::error::{Error, Result, check};
use crate::mr::Access;

impl Qp {
    /// Sets the attributes in `mask` to the values in `attr`.
    ///
    /// # Errors
    /// `ibv_modify_qp`'s errno, EINVAL when the state does not allow it.
    ///
    /// # References
    /// ibv_modify_qp(3)
    pub fn modify(&self, attr: &QpAttr, mask: AttrMask) -> Result<()> {
        let QpAttr(mut raw) = attr.clone();
        // SAFETY: the QP is alive; the struct is whole, and the kernel checks what is in it.
        let returned = unsafe { sys::ibv_modify_qp(self.raw(), &mut raw, mask.bits() as i32) };
        let moved = mask.contains(AttrMask::STATE);
        if moved {
            let to_init = returned == 0 && raw.qp_state == QpState::Init.to_raw();
            self.inner.init_port.store(if to_init { raw.port_num } else { 0 }, Ordering::Relaxed);
        }
        check("ibv_modify_qp", returned).map_err(|error| {
            if moved {
                let to = QpState::from(raw.qp_state);
                return error.with_detail(format!("QP {} to {to:?}", self.num()));
            }
            error
        })
    }

    /// The port of a QP that this program has moved to INIT and to no state since.
    pub(crate) fn init_port(&self) -> Option<u8> {
        Some(self.inner.init_port.load(Ordering::Relaxed)).filter(|&port| port != 0)
    }

    /// Queries the QP's attributes in `mask` from the device.
    ///
    /// # Errors
    /// `ibv_query_qp`'s errno.
    ///
    /// # References
    /// ibv_query_qp(3)
    pub fn query(&self, mask: AttrMask) -> Result<QpAttr> {
        let mut attr = QpAttr::default();
        // SAFETY: plain integers and pointers, for which zeroes are valid.
        let mut init: sys::ibv_qp_init_attr = unsafe { std::mem::zeroed() };
        // SAFETY: the QP is alive; both structs are whole.
        let returned = unsafe { sys::ibv_query_qp(self.raw(), &mut attr.0, mask.bits() as i32, &mut init) };
        check("ibv_query_qp", returned)?;
        Ok(attr)
    }

    /// The QP's state, from the device.
    ///
    /// # Errors
    /// `ibv_query_qp`'s errno.
    pub fn state(&self) -> Result<QpState> {
        Ok(QpState::from(self.query(AttrMask::STATE)?.0.qp_state))
    }
}

impl Qp {
    /// Reset to init, on `port` with the given remote access; also changes port and access of a QP
    /// in init.
    ///
    /// # Errors
    /// EINVAL on a UD QP (see [`Qp::ud_to_rts`]), for a port that does not exist, or in another
    /// state.
    pub fn to_init(&self, port: u8, access: Access) -> Result<()> {
        if self.kind() == QpKind::Ud {
            return Err(Error::invalid(
                "ibv_modify_qp",
                "a UD QP has a queue key instead of access: see ud_to_rts",
            ));
        }
        let mut attr = QpAttr::for_state(QpState::Init);
        attr.0.port_num = port;
        attr.0.qp_access_flags = access.bits();
        self.modify(&attr, AttrMask::STATE | AttrMask::PKEY_INDEX | AttrMask::PORT | AttrMask::ACCESS_FLAGS)
    }

    /// Init to ready-to-receive, connected to a peer.
    ///
    /// # Errors
    /// EINVAL in another state, on a UD QP, or for values the device refuses; ETIMEDOUT or
    /// EHOSTUNREACH when the peer's address has no neighbour.
    pub fn to_rtr(&self, to: &RtrAttr) -> Result<()> {
        let mut attr = QpAttr::for_state(QpState::Rtr);
        attr.0.path_mtu = crate::device::mtu_code(to.path_mtu);
        attr.0.dest_qp_num = to.dest_qp_num;
        attr.0.rq_psn = to.rq_psn;
        attr.0.ah_attr = to.path.to_sys();
        attr.0.max_dest_rd_atomic = to.max_dest_rd_atomic;
        attr.0.min_rnr_timer = to.min_rnr_timer;
        let mut mask =
            AttrMask::STATE | AttrMask::AV | AttrMask::PATH_MTU | AttrMask::DEST_QPN | AttrMask::RQ_PSN;
        if self.kind() == QpKind::Rc {
            mask |= AttrMask::MAX_DEST_RD_ATOMIC | AttrMask::MIN_RNR_TIMER;
        }
        self.modify(&attr, mask)
    }

    /// Ready-to-receive to ready-to-send.
    ///
    /// # Errors
    /// EINVAL in another state or for values the device refuses.
    pub fn to_rts(&self, to: &RtsAttr) -> Result<()> {
        let mut attr = QpAttr::for_state(QpState::Rts);
        attr.0.sq_psn = to.sq_psn;
        attr.0.timeout = to.timeout;
        attr.0.retry_cnt = to.retry_cnt;
        attr.0.rnr_retry = to.rnr_retry;
        attr.0.max_rd_atomic = to.max_rd_atomic;
        let mut mask = AttrMask::STATE | AttrMask::SQ_PSN;
        if self.kind() == QpKind::Rc {
            mask |=
                AttrMask::TIMEOUT | AttrMask::RETRY_CNT | AttrMask::RNR_RETRY | AttrMask::MAX_QP_RD_ATOMIC;
        }
        self.modify(&attr, mask)
    }

    /// Reset to ready-to-send in one go, for a UD QP on `port` with queue key `qkey`.
    ///
    /// # Errors
    /// EINVAL when this is no UD QP, or for a port that does not exist.
    pub fn ud_to_rts(&self, port: u8, qkey: u32) -> Result<()> {
        if self.kind() != QpKind::Ud {
            return Err(Error::invalid(
                "ibv_modify_qp",
                "a connected QP goes through to_init, to_rtr and to_rts",
            ));
        }
        let mut attr = QpAttr::for_state(QpState::Init);
        attr.0.port_num = port;
        attr.0.qkey = qkey;
        self.modify(&attr, AttrMask::STATE | AttrMask::PKEY_INDEX | AttrMask::PORT | AttrMask::QKEY)?;
        attr.0.qp_state = QpState::Rtr.to_raw();
        self.modify(&attr, AttrMask::STATE)?;
        attr.0.qp_state = QpState::Rts.to_raw();
        self.modify(&attr, AttrMask::STATE | AttrMask::SQ_PSN)
    }

    /// To the error state: everything posted is flushed into the CQs.
    ///
    /// # Errors
    /// `ibv_modify_qp`'s errno.
    pub fn to_error(&self) -> Result<()> {
        self.to_state(QpState::Error)
    }

    /// To the reset state: everything posted is discarded. Do not post at the same time: such a
    /// request may or may not be discarded.
    ///
    /// # Errors
    /// `ibv_modify_qp`'s errno.
    pub fn to_reset(&self) -> Result<()> {
        self.to_state(QpState::Reset)
    }

    fn to_state(&self, state: QpState) -> Result<()> {
        self.modify(&QpAttr::for_state(state), AttrMask::STATE)
    }
}

impl Context {
    /// All remote access that a QP can allow on this device: write, read and, if supported,
    /// atomics.
    #[must_use]
    pub fn full_remote_access(&self) -> Access {
        let atomics = match self.attributes().atomic_cap {
            AtomicCap::None => Access::empty(),
            AtomicCap::Device | AtomicCap::Global => Access::REMOTE_ATOMIC,
        };
        Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ | atomics
    }
}
