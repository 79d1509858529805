//! State transitions of QPs, and the connection parameters that all EPs share.

use super::Device;
use crate::{Error, Result, Subtype};
use rxe_fallback::{Access, AttrMask, CmId, ConnParam, Qp, QpAttr, QpKind, QpState};

impl Device {
    /// The connection parameters that all EPs share.
    pub(crate) fn conn_param(&self) -> ConnParam<'static> {
        ConnParam { retry_count: 7, rnr_retry_count: self.settings.rnr_retry, ..ConnParam::default() }
    }

    /// Moves an RC QP from RESET to INIT, where receives can be posted, and a UD QP from RESET to
    /// RTS.
    pub(crate) fn to_init(&self, qp: &Qp) -> Result<()> {
        if qp.kind() == QpKind::Ud {
            let key = rxe_fallback::cm::DATAGRAM_QKEY;
            return qp.ud_to_rts(self.port, key).map_err(|e| Error::verb(Subtype::ResourceTep, e));
        }
        let mut access = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE;
        access.set(Access::REMOTE_ATOMIC, self.has_atomics());
        qp.to_init(self.port, access).map_err(|e| Error::verb(Subtype::ResourceTep, e))
    }

    /// Moves an RC QP from INIT through RTR to RTS, with the path that rdma_cm has found.
    pub(crate) fn to_ready(
        &self,
        qp: &Qp,
        id: &CmId,
        reads_in: Option<u8>,
        reads_out: Option<u8>,
    ) -> Result<(), rxe_fallback::Error> {
        id.qp_to_rts(qp, reads_in, reads_out)?;
        let mut attr = QpAttr::for_state(QpState::Rts);
        attr.set_min_rnr_timer(self.settings.rnr_timer);
        qp.modify(&attr, AttrMask::MIN_RNR_TIMER)
    }
}
