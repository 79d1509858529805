//! The parameters of a connect or accept.

use doorbell_sys as sys;

use crate::error::{Error, Result};
use crate::qp::Qp;

/// The parameters of a connect or accept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConnParam<'a> {
    /// The QP's number.
    pub qp_num: u32,
    /// Private data; see [`MAX_CONNECT_DATA`](super::MAX_CONNECT_DATA).
    pub private_data: &'a [u8],
    /// The number of the peer's RDMA reads and atomics to serve at a time; at most the device's
    /// `max_qp_rd_atom`.
    pub responder_resources: u8,
    /// The number of RDMA reads and atomics to have outstanding; at most the device's
    /// `max_qp_init_rd_atom`.
    pub initiator_depth: u8,
    /// End-to-end flow control; not used with an SRQ.
    pub flow_control: bool,
    /// Retries after a timeout, 0 to 7.
    pub retry_count: u8,
    /// Retries after "receiver not ready", 0 to 6; 7 is for ever.
    pub rnr_retry_count: u8,
    /// Whether the QP takes its receives from an SRQ.
    pub srq: bool,
}

impl Default for ConnParam<'_> {
    fn default() -> Self {
        Self {
            qp_num: 0,
            private_data: &[],
            responder_resources: 1,
            initiator_depth: 1,
            flow_control: true,
            retry_count: 7,
            rnr_retry_count: 7,
            srq: false,
        }
    }
}

/// Attributes of a QP that replace those which rdma_cm has found for its connection
/// ([`CmId::qp_to_rts_with`](super::CmId::qp_to_rts_with)); `None` replaces nothing. rdma_cm's
/// retries are those that the peer has asked for.
///
/// # References
/// ibv_modify_qp(3), rdma_connect(3)
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct OwnAttr {
    /// RDMA reads and atomics of the peer to serve at a time.
    pub responder_resources: Option<u8>,
    /// RDMA reads and atomics to have under way at a time.
    pub initiator_depth: Option<u8>,
    /// Retries after "receiver not ready", 0 to 6; 7 is for ever.
    pub rnr_retry: Option<u8>,
    /// Time that the peer waits before it retries after "receiver not ready", as its code in the
    /// InfiniBand specification, 0 to 31.
    pub rnr_timer: Option<u8>,
    /// Retries after a timeout, 0 to 7.
    pub retry_count: Option<u8>,
    /// Time to wait for an acknowledgement, as the exponent of 4.096 us, 0 to 31; 0 is for ever.
    pub timeout: Option<u8>,
}

impl ConnParam<'_> {
    /// The defaults for `qp`: its number, and whether it has an SRQ.
    #[must_use]
    pub fn for_qp(qp: &Qp) -> Self {
        Self { qp_num: qp.num(), srq: qp.srq().is_some(), ..Self::default() }
    }

    pub(super) fn to_sys(self, verb: &'static str) -> Result<sys::rdma_conn_param> {
        let len = u8::try_from(self.private_data.len()).map_err(|_| {
            Error::invalid(verb, format!("{} bytes of private data", self.private_data.len()))
        })?;
        Ok(sys::rdma_conn_param {
            private_data: self.private_data.as_ptr().cast(),
            private_data_len: len,
            responder_resources: self.responder_resources,
            initiator_depth: self.initiator_depth,
            flow_control: u8::from(self.flow_control),
            retry_count: self.retry_count,
            rnr_retry_count: self.rnr_retry_count,
            srq: u8::from(self.srq),
            qp_num: self.qp_num,
        })
    }

    /// Adds what an EINVAL of a call with these parameters may mean.
    pub(super) fn hint(&self, error: Error) -> Error {
        match error.errno() {
            libc::EINVAL => error.with_detail(format!(
                "in a state that does not allow it (the peer may have given up), or {} bytes of private data are too many, or \
                 responder resources {} or initiator depth {} too high for the device",
                self.private_data.len(),
                self.responder_resources,
                self.initiator_depth
            )),
            _ => error,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_long_private_data_is_refused_before_the_call() {
        let data = [0; 256];
        let error =
            ConnParam { private_data: &data, ..ConnParam::default() }.to_sys("rdma_connect").err().unwrap();
        assert_eq!((error.verb(), error.errno()), ("rdma_connect", libc::EINVAL));
    }
}
