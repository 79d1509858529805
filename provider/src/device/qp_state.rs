//! State transitions of QPs, and the connection parameters that all EPs share.

use super::Device;
use crate::{ConnectionAttr, Error, Result, RetryAttr, Subtype};
use rxe_fallback::cm::OwnAttr;
use rxe_fallback::{Access, AttrMask, CmId, ConnParam, Qp, QpKind, RtsAttr};

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

    /// Moves an RC QP from INIT through RTR to RTS, with the path that rdma_cm has found. `reads`:
    /// the numbers of RDMA Reads to answer and to request at a time, if rdma_cm does not know them.
    pub(crate) fn to_ready(
        &self,
        qp: &Qp,
        id: &CmId,
        reads: Option<(u8, u8)>,
        retry: &RetryAttr,
    ) -> Result<(), rxe_fallback::Error> {
        let (responder_resources, initiator_depth) = reads.unzip();
        let RetryAttr { rnr_retry, rnr_timer, retry_count, timeout } = *retry;
        let rnr_timer = Some(rnr_timer.unwrap_or(self.settings.rnr_timer));
        let own =
            OwnAttr { responder_resources, initiator_depth, rnr_retry, rnr_timer, retry_count, timeout };
        id.qp_to_rts_with(qp, &own)
    }

    /// The attributes of a QP that is connected, from the device.
    pub(crate) fn connection(&self, qp: &Qp) -> Result<ConnectionAttr, rxe_fallback::Error> {
        let attr = qp.query(
            AttrMask::TIMEOUT
                | AttrMask::RETRY_CNT
                | AttrMask::RNR_RETRY
                | AttrMask::MIN_RNR_TIMER
                | AttrMask::MAX_QP_RD_ATOMIC
                | AttrMask::MAX_DEST_RD_ATOMIC
                | AttrMask::PATH_MTU,
        )?;
        let RtsAttr { timeout, retry_cnt, rnr_retry, max_rd_atomic, .. } = attr.rts();
        Ok(ConnectionAttr {
            rnr_retry,
            rnr_timer: attr.min_rnr_timer(),
            retry_count: retry_cnt,
            timeout,
            rdma_reads_in: attr.max_dest_rd_atomic(),
            rdma_reads_out: max_rd_atomic,
            mtu: attr.path_mtu(),
        })
    }
}
