//! Send queues, and receive queues of EPs without an SRQ, on the direct path.
//!
//! Only the holder of the lock of the EP's requests uses the send queue, and only the holder of the
//! lock of its receives uses the receive queue. The cookie of a request in the queue is its
//! position in the EP's stream of requests.

use super::adopt::{self, Adopted};
use crate::Result;
use crate::datapath::request::Outgoing;
use crate::types::MAX_IOV;
use mlx5_direct::srq::PostError;
use mlx5_direct::wr::{Bind, Data, MAX_BIND_BYTES, Remote, Wr};
use mlx5_direct::{DataSeg, SendError};
use rxe_fallback::{BindMw, Mw, MwKind, PostError as Refusal, Qp, SendFlags, SendOp, Sge};

/// The send queue of a QP.
#[derive(Debug)]
pub(crate) struct DirectSends {
    queue: Adopted<mlx5_direct::Sq, Qp>,
}

/// The receive queue of a QP.
#[derive(Debug)]
pub(crate) struct DirectReceives {
    queue: Adopted<mlx5_direct::Rq, Qp>,
}

/// The segments in the device's format.
fn encode<'a>(sges: &[Sge], into: &'a mut [DataSeg]) -> Result<&'a [DataSeg], Refusal> {
    let too_many = Refusal::TooManySegments { given: sges.len(), max: into.len() };
    let into = into.get_mut(..sges.len()).ok_or(too_many)?;
    for (to, from) in into.iter_mut().zip(sges) {
        *to = DataSeg::new(from.addr, from.len, from.lkey);
    }
    Ok(into)
}

#[inline(always)]
fn with_flags<D: Data>(mut wr: Wr<D>, flags: SendFlags) -> Wr<D> {
    if flags.contains(SendFlags::SIGNALLED) {
        wr = wr.signalled();
    }
    if flags.contains(SendFlags::SOLICITED) {
        wr = wr.solicited();
    }
    if flags.contains(SendFlags::FENCE) {
        wr = wr.fenced();
    }
    wr
}

const NO_SEGMENT: DataSeg = DataSeg::new(0, 0, 0);

impl DirectSends {
    /// Takes over the send queue of a new QP.
    ///
    /// # Errors
    /// No memory for the queue's table.
    pub(crate) fn new(qp: &Qp) -> Result<Self> {
        Ok(Self { queue: adopt::send_queue(qp.clone())? })
    }

    /// Posts a request of one segment: a Send, RDMA Write or RDMA Read, with SIGNALLED and
    /// SOLICITED at most. Returns false without posting if the queue has to look for room first
    /// ([`DirectSends::find_room`]).
    #[inline(always)]
    pub(crate) fn post_one(&mut self, seq: u64, op: SendOp<'_>, sge: Sge, flags: SendFlags) -> bool {
        let data = DataSeg::new(sge.addr, sge.len, sge.lkey);
        let remote = |addr, rkey| Remote { addr, rkey };
        let wr = match op {
            SendOp::Send => Wr::send(data),
            SendOp::Write { remote_addr, rkey } => Wr::write(remote(remote_addr, rkey), data),
            SendOp::Read { remote_addr, rkey } => Wr::read(remote(remote_addr, rkey), data),
            _ => return false,
        };
        self.queue.post_in_span(&with_flags(wr, flags), seq)
    }

    /// Looks for room for [`DirectSends::post_one`].
    pub(crate) fn find_room(&mut self) {
        self.queue.find_span();
    }

    /// Posts one request.
    pub(crate) fn post(&mut self, request: &Outgoing<'_>) -> Result<(), Refusal> {
        // One segment is the common case, so only one segment is cleared.
        if request.sges.len() <= 1 {
            self.post_from(request, &mut [NO_SEGMENT])
        } else {
            self.post_from(request, &mut [NO_SEGMENT; MAX_IOV])
        }
    }

    /// Posts one request. `segments` has room for its segments.
    fn post_from(&mut self, request: &Outgoing<'_>, segments: &mut [DataSeg]) -> Result<(), Refusal> {
        let data = encode(request.sges, segments)?;
        let remote = |addr, rkey| Remote { addr, rkey };
        match request.op {
            SendOp::Send => self.post_wr(Wr::send(data), request),
            SendOp::SendImm(imm) => self.post_wr(Wr::send_imm(imm, data), request),
            SendOp::SendInvalidate(rkey) => self.post_wr(Wr::send_inval(rkey, data), request),
            SendOp::Write { remote_addr, rkey } => {
                self.post_wr(Wr::write(remote(remote_addr, rkey), data), request)
            }
            SendOp::WriteImm { remote_addr, rkey, imm } => {
                self.post_wr(Wr::write_imm(remote(remote_addr, rkey), imm, data), request)
            }
            SendOp::Read { remote_addr, rkey } => {
                self.post_wr(Wr::read(remote(remote_addr, rkey), data), request)
            }
            SendOp::CmpSwap { remote_addr, rkey, compare, swap } => {
                let result = data.first().copied().unwrap_or(NO_SEGMENT);
                self.post_wr(Wr::compare_swap(remote(remote_addr, rkey), compare, swap, result), request)
            }
            SendOp::FetchAdd { remote_addr, rkey, add } => {
                let result = data.first().copied().unwrap_or(NO_SEGMENT);
                self.post_wr(Wr::fetch_add(remote(remote_addr, rkey), add, result), request)
            }
            SendOp::LocalInv(rkey) => self.post_wr(Wr::local_inval(rkey), request),
            SendOp::BindMw(bind) => self.bind(&bind, request),
            _ => Err(Refusal::Refused(libc::EOPNOTSUPP)),
        }
    }

    /// Binds a window. The device does not choose the new key of a window of type 1, so this
    /// function chooses the next key.
    fn bind(&mut self, bind: &BindMw<'_>, request: &Outgoing<'_>) -> Result<(), Refusal> {
        if bind.len > MAX_BIND_BYTES {
            return Err(Refusal::Refused(libc::EOPNOTSUPP));
        }
        let type2 = bind.mw.kind() == MwKind::Type2;
        let rkey = bind.mw.rkey();
        let new_rkey = if type2 { bind.rkey } else { Mw::next_rkey(rkey) };
        let (lkey, addr, len) = (bind.mr.lkey(), bind.addr, bind.len);
        let window = Bind { rkey, new_rkey, type2, lkey, addr, len, access: bind.access.bits() };
        self.post_wr(Wr::bind(window), request)?;
        if !type2 {
            bind.mw.set_rkey(new_rkey);
        }
        Ok(())
    }

    fn post_wr<D: Data>(&mut self, mut wr: Wr<D>, request: &Outgoing<'_>) -> Result<(), Refusal> {
        let Outgoing { seq, flags, to, .. } = *request;
        wr = with_flags(wr, flags);
        if let Some((ah, qpn, qkey)) = to {
            let path = adopt::path_of(ah).map_err(|_| Refusal::Refused(libc::EINVAL))?;
            wr = wr.to(&path, qpn, qkey);
        }
        let given = request.sges.len();
        self.queue.post(wr, seq).map_err(|error| match error {
            SendError::Full => Refusal::Full,
            SendError::TooLong => Refusal::TooManySegments { given, max: given.saturating_sub(1) },
        })
    }

    /// Releases the request that a completion names, and all before it. Returns its position;
    /// `None` if it is not posted.
    #[inline(always)]
    pub(crate) fn complete(&mut self, counter: u16) -> Option<u64> {
        self.queue.complete(counter).ok().map(|released| released.cookie)
    }

    /// Starts again after the QP was reset.
    pub(crate) fn reset(&mut self) {
        self.queue.reset();
    }
}

impl DirectReceives {
    /// Takes over the receive queue of a new QP.
    ///
    /// # Errors
    /// No memory for the queue's table.
    pub(crate) fn new(qp: &Qp) -> Result<Self> {
        Ok(Self { queue: adopt::receive_queue(qp.clone())? })
    }

    pub(crate) fn post(&mut self, sges: &[Sge]) -> Result<(), Refusal> {
        let mut segments = [NO_SEGMENT; MAX_IOV];
        let data = encode(sges, &mut segments)?;
        self.queue.post(data, 0).map_err(|error| match error {
            PostError::Full => Refusal::Full,
            PostError::TooManySegments => {
                Refusal::TooManySegments { given: sges.len(), max: self.queue.max_segments() as usize }
            }
        })
    }

    /// Releases the receive that a completion names. False if it is not posted.
    #[inline(always)]
    pub(crate) fn complete(&mut self, slot: u16) -> bool {
        self.queue.complete(slot).is_ok()
    }

    /// Starts again after the QP was reset.
    pub(crate) fn reset(&mut self) {
        self.queue.reset();
    }
}
