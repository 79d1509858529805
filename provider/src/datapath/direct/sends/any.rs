//! Any request: with the checks, the operations and the numbers of segments that the fast functions
//! leave out.

use super::super::adopt;
use super::super::segments::{NO_SEGMENT, encode};
use super::{DirectSends, MOST_IN_BLOCK, with_flags};
use crate::Result;
use crate::datapath::request::{Outgoing, Request};
use crate::types::MAX_IOV;
use mlx5_direct::wr::{Bind, Data, Inline, MAX_BIND_BYTES, Remote, Wr};
use mlx5_direct::{DataSeg, SendError, Sq};
use rxe_fallback::{BindMw, Mw, MwKind, PostError as Refusal, SendFlags, SendOp};

/// What takes requests: a queue, which rings for each, or a chain.
pub(super) trait Taker {
    fn take<D: Data>(&mut self, wr: Wr<D>, cookie: Request) -> Result<(), SendError>;
}

impl Taker for Sq<Request> {
    fn take<D: Data>(&mut self, wr: Wr<D>, cookie: Request) -> Result<(), SendError> {
        self.post(wr, cookie)
    }
}

impl Taker for mlx5_direct::Chain<'_, Request> {
    fn take<D: Data>(&mut self, wr: Wr<D>, cookie: Request) -> Result<(), SendError> {
        self.push(wr, cookie)
    }
}

/// Passes a request on, except a bind.
pub(super) fn put(to: &mut impl Taker, request: &Outgoing<'_>) -> Result<(), Refusal> {
    // Few segments are the common case, so only few are cleared.
    match request.sges.len() {
        ..=1 => put_from(to, request, &mut [NO_SEGMENT]),
        2..=4 => put_from(to, request, &mut [NO_SEGMENT; 4]),
        _ => put_from(to, request, &mut [NO_SEGMENT; MAX_IOV]),
    }
}

/// As [`put`]. `segments` has room for the request's segments.
fn put_from(to: &mut impl Taker, request: &Outgoing<'_>, segments: &mut [DataSeg]) -> Result<(), Refusal> {
    let data = encode(request.sges, segments)?;
    let remote = |addr, rkey| Remote { addr, rkey };
    match request.op {
        SendOp::Send => put_wr(to, Wr::send(data), request),
        SendOp::SendImm(imm) => put_wr(to, Wr::send_imm(imm, data), request),
        SendOp::SendInvalidate(rkey) => put_wr(to, Wr::send_inval(rkey, data), request),
        SendOp::Write { remote_addr, rkey } => {
            put_wr(to, Wr::write(remote(remote_addr, rkey), data), request)
        }
        SendOp::WriteImm { remote_addr, rkey, imm } => {
            put_wr(to, Wr::write_imm(remote(remote_addr, rkey), imm, data), request)
        }
        SendOp::Read { remote_addr, rkey } => put_wr(to, Wr::read(remote(remote_addr, rkey), data), request),
        SendOp::CmpSwap { remote_addr, rkey, compare, swap } => {
            let result = data.first().copied().unwrap_or(NO_SEGMENT);
            put_wr(to, Wr::compare_swap(remote(remote_addr, rkey), compare, swap, result), request)
        }
        SendOp::FetchAdd { remote_addr, rkey, add } => {
            let result = data.first().copied().unwrap_or(NO_SEGMENT);
            put_wr(to, Wr::fetch_add(remote(remote_addr, rkey), add, result), request)
        }
        SendOp::LocalInv(rkey) => put_wr(to, Wr::local_inval(rkey), request),
        _ => Err(Refusal::Refused(libc::EOPNOTSUPP)),
    }
}

fn put_wr<D: Data>(to: &mut impl Taker, mut wr: Wr<D>, request: &Outgoing<'_>) -> Result<(), Refusal> {
    let Outgoing { request: kept, flags, to: peer, .. } = *request;
    wr = with_flags(wr, flags);
    if let Some((ah, qpn, qkey)) = peer {
        let path = adopt::path_of(ah).map_err(|_| Refusal::Refused(libc::EINVAL))?;
        wr = wr.to(&path, qpn, qkey);
    }
    let given = request.sges.len();
    to.take(wr, kept).map_err(|error| match error {
        SendError::Full => Refusal::Full,
        SendError::TooLong => Refusal::TooManySegments { given, max: given.saturating_sub(1) },
    })
}

/// Passes a Send or an RDMA Write of these bytes on.
pub(super) fn put_copy(
    to: &mut impl Taker,
    request: Request,
    op: SendOp<'_>,
    bytes: &[u8],
    flags: SendFlags,
) -> Result<(), Refusal> {
    let (data, remote) = (Inline(bytes), |addr, rkey| Remote { addr, rkey });
    let wr = match op {
        SendOp::Send => Wr::send(data),
        SendOp::SendInvalidate(rkey) => Wr::send_inval(rkey, data),
        SendOp::Write { remote_addr, rkey } => Wr::write(remote(remote_addr, rkey), data),
        SendOp::WriteImm { remote_addr, rkey, imm } => Wr::write_imm(remote(remote_addr, rkey), imm, data),
        _ => return Err(Refusal::InlineMisplaced),
    };
    to.take(with_flags(wr, flags), request).map_err(|error| match error {
        SendError::Full => Refusal::Full,
        SendError::TooLong => Refusal::InlineTooLong { given: bytes.len(), max: MOST_IN_BLOCK },
    })
}

impl DirectSends {
    /// Posts one request.
    pub(crate) fn push(&mut self, request: &Outgoing<'_>) -> Result<(), Refusal> {
        match request.op {
            SendOp::BindMw(bind) => self.bind(&bind, request),
            _ => put(&mut *self.queue, request),
        }
    }

    /// Posts a Send or an RDMA Write of these bytes.
    pub(crate) fn copy(
        &mut self,
        request: Request,
        op: SendOp<'_>,
        bytes: &[u8],
        flags: SendFlags,
    ) -> Result<(), Refusal> {
        put_copy(&mut *self.queue, request, op, bytes, flags)
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
        put_wr(&mut *self.queue, Wr::bind(window), request)?;
        if !type2 {
            bind.mw.set_rkey(new_rkey);
        }
        Ok(())
    }
}
