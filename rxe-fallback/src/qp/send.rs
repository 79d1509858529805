//! Posting sends.
//!
//! Inline data is given as bytes, not as segments: the CPU reads it during the post without a key
//! check, so it would read any address.
#![expect(unsafe_code, reason = "chains of raw work requests")]

use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ptr;

use doorbell_sys as sys;

use super::{Qp, QpKind};
use crate::ah::Ah;
use crate::mw::BindMw;
use crate::wr::{PostError, PostListError, Sge, index_in_chain, refused};

bitflags::bitflags! {
    /// Flags of a send.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub struct SendFlags: u32 {
        /// Waits for RDMA reads and atomics posted before.
        const FENCE = 1;
        /// Makes a completion, on a QP that does not signal every send.
        const SIGNALLED = 1 << 1;
        /// Wakes a peer that waits for solicited completions.
        const SOLICITED = 1 << 2;
    }
}

const INLINE: u32 = sys::ibv_send_flags::IBV_SEND_INLINE.0;

/// The operation of a send.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub enum SendOp<'a> {
    /// A message.
    Send,
    /// A message with immediate data (host byte order).
    SendImm(u32),
    /// A message that also invalidates a key of the peer.
    SendInvalidate(u32),
    /// Writes the peer's memory.
    Write {
        /// Address at the peer.
        remote_addr: u64,
        /// The peer's key.
        rkey: u32,
    },
    /// Writes the peer's memory and takes one of its receives, which gets the immediate data (host
    /// byte order).
    WriteImm {
        /// Address at the peer.
        remote_addr: u64,
        /// The peer's key.
        rkey: u32,
        /// Immediate data.
        imm: u32,
    },
    /// Reads the peer's memory.
    Read {
        /// Address at the peer.
        remote_addr: u64,
        /// The peer's key.
        rkey: u32,
    },
    /// Replaces 8 bytes of the peer by `swap` if they equal `compare`; the old value arrives in the
    /// segment.
    CmpSwap {
        /// Address at the peer, a multiple of 8.
        remote_addr: u64,
        /// The peer's key.
        rkey: u32,
        /// The value to compare with.
        compare: u64,
        /// The new value.
        swap: u64,
    },
    /// Adds to 8 bytes of the peer; the old value arrives in the segment.
    FetchAdd {
        /// Address at the peer, a multiple of 8.
        remote_addr: u64,
        /// The peer's key.
        rkey: u32,
        /// The value to add.
        add: u64,
    },
    /// Invalidates a key of this side.
    LocalInv(u32),
    /// Binds a memory window of type 2.
    BindMw(BindMw<'a>),
}

/// The destination of a datagram.
#[derive(Debug, Clone, Copy)]
pub struct UdDest<'a> {
    /// The address handle; keep it until the send has completed.
    pub ah: &'a Ah,
    /// The peer's QP number.
    pub qpn: u32,
    /// The peer's queue key.
    pub qkey: u32,
}

/// A send.
#[derive(Debug, Clone, Copy)]
pub struct SendWr<'a> {
    /// The `wr_id` of the completion.
    pub wr_id: u64,
    /// The segments to send from, or to read into.
    pub sges: &'a [Sge],
    /// Inline data instead of segments: the bytes can be reused after the post.
    pub inline: Option<&'a [u8]>,
    /// What to do.
    pub op: SendOp<'a>,
    /// How.
    pub flags: SendFlags,
    /// The destination of a datagram; `None` on connected QPs.
    pub ud: Option<UdDest<'a>>,
}

impl<'a> SendWr<'a> {
    /// A signalled message of `sges`, to change as needed.
    #[must_use]
    pub fn send(wr_id: u64, sges: &'a [Sge]) -> Self {
        Self { wr_id, sges, inline: None, op: SendOp::Send, flags: SendFlags::SIGNALLED, ud: None }
    }

    /// A signalled `op` on `sges`, to change as needed.
    #[must_use]
    pub fn new(wr_id: u64, op: SendOp<'a>, sges: &'a [Sge]) -> Self {
        Self { op, ..Self::send(wr_id, sges) }
    }
}

/// Sends posted by one call of `ibv_post_send`; longer lists take several calls.
const CHUNK: usize = 32;

/// The most sends of a [`SendList`].
const MOST_LISTED: usize = CHUNK;
/// The most segments of all sends of a [`SendList`] together.
const MOST_LISTED_SEGMENTS: usize = 4 * CHUNK;

/// Sends that are added one by one and posted with one call. Has a copy of their segments, and
/// borrows inline data (`'b`).
pub struct SendList<'a, 'b> {
    qp: &'a Qp,
    sends: [MaybeUninit<sys::ibv_send_wr>; MOST_LISTED],
    segments: [MaybeUninit<Sge>; MOST_LISTED_SEGMENTS],
    len: usize,
    used: usize,
    inline: PhantomData<&'b [u8]>,
}

impl<'a, 'b> SendList<'a, 'b> {
    /// No sends, for this QP.
    #[must_use]
    #[inline(always)]
    pub fn new(qp: &'a Qp) -> Self {
        Self {
            qp,
            sends: [const { MaybeUninit::uninit() }; MOST_LISTED],
            segments: [const { MaybeUninit::uninit() }; MOST_LISTED_SEGMENTS],
            len: 0,
            used: 0,
            inline: PhantomData,
        }
    }

    /// Adds a send without inline data.
    ///
    /// # Errors
    /// As [`Qp::post_send`]; [`PostError::Full`] behind `MOST_LISTED` others;
    /// [`PostError::TooManySegments`] for more than are left of `MOST_LISTED_SEGMENTS`.
    pub fn push(&mut self, wr: &SendWr<'_>) -> Result<(), PostError> {
        if wr.inline.is_some() {
            return Err(PostError::InlineMisplaced);
        }
        self.qp.check(wr)?;
        self.add(to_sys(wr), wr.sges)
    }

    /// Adds a send of these inline data, which count as one segment. The send has no others.
    ///
    /// # Errors
    /// As [`SendList::push`].
    pub fn push_inline(&mut self, wr: &SendWr<'_>, bytes: &'b [u8]) -> Result<(), PostError> {
        let wr = SendWr { inline: Some(bytes), ..*wr };
        self.qp.check(&wr)?;
        let (sge, mut raw) = (inline_sge(bytes), to_sys(&wr));
        raw.send_flags |= INLINE;
        self.add(raw, &[sge])
    }

    /// Adds a send of these segments. Those of a send with the flag [`INLINE`] are borrowed bytes.
    #[inline(always)]
    fn add(&mut self, mut raw: sys::ibv_send_wr, sges: &[Sge]) -> Result<(), PostError> {
        let place = self.sends.get_mut(self.len).ok_or(PostError::Full)?;
        let (given, max) = (sges.len(), self.segments.len() - self.used);
        let segments = self.segments.get_mut(self.used..self.used + given);
        let segments = segments.ok_or(PostError::TooManySegments { given, max })?;
        for (to, from) in segments.iter_mut().zip(sges) {
            to.write(*from);
        }
        raw.num_sge = given as i32;
        place.write(raw);
        self.len += 1;
        self.used += given;
        Ok(())
    }

    /// The number of sends.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is no send.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Posts all sends.
    ///
    /// # Errors
    /// Where it stopped and why; the sends before that are posted.
    ///
    /// # References
    /// ibv_post_send(3)
    pub fn post(&mut self) -> Result<(), PostListError> {
        if self.is_empty() {
            return Ok(());
        }
        let sends: *mut sys::ibv_send_wr = self.sends.as_mut_ptr().cast();
        let mut segments: *mut sys::ibv_sge = self.segments.as_mut_ptr().cast();
        for n in 0..self.len {
            // SAFETY: `push` has written the first `len` sends, and the segments of each behind
            // those of the sends before. `n + 1` is below `len` where it is used.
            unsafe {
                let send = &mut *sends.add(n);
                send.next = if n + 1 < self.len { sends.add(n + 1) } else { ptr::null_mut() };
                send.sg_list = segments;
                segments = segments.add(send.num_sge as usize);
            }
        }
        let mut bad = ptr::null_mut();
        // SAFETY: the QP is alive; the chain and its segments live for the call, and the verb
        // copies them. Without INLINE the segments' memory is reached through keys only; with it,
        // the memory is a slice that the list borrows.
        match unsafe { sys::ibv_post_send(self.qp.raw(), sends, &mut bad) } {
            0 => Ok(()),
            errno => {
                let size = size_of::<sys::ibv_send_wr>();
                let index = index_in_chain(sends as usize, bad as usize, size, self.len);
                Err(PostListError { index, reason: refused(errno) })
            }
        }
    }
}

impl std::fmt::Debug for SendList<'_, '_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SendList").field("len", &self.len).finish_non_exhaustive()
    }
}

impl Qp {
    /// Posts one send.
    ///
    /// # Errors
    /// [`PostError::Full`] and its siblings; nothing was posted.
    ///
    /// # References
    /// ibv_post_send(3)
    pub fn post_send(&self, wr: &SendWr<'_>) -> Result<(), PostError> {
        if wr.inline.is_some() {
            return self.post_send_list(std::slice::from_ref(wr)).map_err(|stopped| stopped.reason);
        }
        self.submit(wr)
    }

    /// Posts one send on a connected QP. The operation and the number of segments are known where
    /// this is called, so only their own code is compiled there.
    ///
    /// # Errors
    /// As [`Qp::post_send`].
    ///
    /// # References
    /// ibv_post_send(3)
    #[inline(always)]
    pub fn post_send_few<const N: usize>(
        &self,
        wr_id: u64,
        op: SendOp<'_>,
        sges: &[Sge; N],
        flags: SendFlags,
    ) -> Result<(), PostError> {
        self.submit(&SendWr { wr_id, sges, inline: None, op, flags, ud: None })
    }

    /// Posts one send without inline data.
    #[inline(always)]
    fn submit(&self, wr: &SendWr<'_>) -> Result<(), PostError> {
        self.check(wr)?;
        let mut raw = to_sys(wr);
        let mut bad = ptr::null_mut();
        // SAFETY: the QP is alive; the request, whose `next` is NULL, and its segments live for the
        // call, and the verb copies them. The segments' memory is reached through keys only.
        let returned = unsafe { sys::ibv_post_send(self.raw(), &mut raw, &mut bad) };
        if returned == 0 { Ok(()) } else { Err(refused(returned)) }
    }

    /// Posts sends in order, up to the first that cannot be posted; allocates nothing.
    ///
    /// # Errors
    /// Where it stopped and why; the sends before that are posted.
    ///
    /// # References
    /// ibv_post_send(3)
    pub fn post_send_list(&self, wrs: &[SendWr<'_>]) -> Result<(), PostListError> {
        let mut chain = [const { MaybeUninit::<sys::ibv_send_wr>::uninit() }; CHUNK];
        let mut inline = [const { MaybeUninit::<Sge>::uninit() }; CHUNK];
        for (number, chunk) in wrs.chunks(CHUNK).enumerate() {
            let first = number * CHUNK;
            let bad_one = chunk.iter().enumerate().find_map(|(i, wr)| Some((i, self.check(wr).err()?)));
            let good = bad_one.map_or(chunk.len(), |(i, _)| i);
            if good > 0 {
                let base: *mut sys::ibv_send_wr = chain.as_mut_ptr().cast();
                let inline: *mut Sge = inline.as_mut_ptr().cast();
                for (i, wr) in chunk[..good].iter().enumerate() {
                    // SAFETY: i < good <= CHUNK, so all three are inside their arrays, or not used.
                    let (next, place, inline_sge) = unsafe {
                        let next = if i + 1 == good { ptr::null_mut() } else { base.add(i + 1) };
                        (next, base.add(i), inline.add(i))
                    };
                    let mut raw = to_sys(wr);
                    raw.next = next;
                    if let Some(bytes) = wr.inline {
                        // SAFETY: inside `inline`, which nobody else uses.
                        unsafe { inline_sge.write(self::inline_sge(bytes)) };
                        raw.sg_list = inline_sge.cast();
                        raw.num_sge = 1;
                        raw.send_flags |= INLINE;
                    }
                    // SAFETY: inside `chain`, which nobody else uses.
                    unsafe { place.write(raw) };
                }
                let mut bad = ptr::null_mut();
                // SAFETY: the QP is alive; the chain, its segments and its inline bytes live for
                // the call, and the verb copies them. Without INLINE the segments' memory is
                // reached through keys only; with it, the memory is a borrowed slice.
                let returned = unsafe { sys::ibv_post_send(self.raw(), base, &mut bad) };
                if returned != 0 {
                    let done =
                        index_in_chain(base as usize, bad as usize, size_of::<sys::ibv_send_wr>(), good);
                    return Err(PostListError { index: first + done, reason: refused(returned) });
                }
            }
            if let Some((i, reason)) = bad_one {
                return Err(PostListError { index: first + i, reason });
            }
        }
        Ok(())
    }

    #[inline(always)]
    fn check(&self, wr: &SendWr<'_>) -> Result<(), PostError> {
        let caps = self.caps();
        let max = caps.max_send_sge as usize;
        if wr.sges.len() > max {
            return Err(PostError::TooManySegments { given: wr.sges.len(), max });
        }
        if wr.ud.is_some() != (self.kind() == QpKind::Ud) {
            return Err(PostError::Destination);
        }
        if let Some(bytes) = wr.inline {
            use SendOp as O;
            let takes_data = matches!(
                wr.op,
                O::Send | O::SendImm(_) | O::SendInvalidate(_) | O::Write { .. } | O::WriteImm { .. }
            );
            if !wr.sges.is_empty() || !takes_data {
                return Err(PostError::InlineMisplaced);
            }
            let max = caps.max_inline as usize;
            if bytes.len() > max {
                return Err(PostError::InlineTooLong { given: bytes.len(), max });
            }
        }
        Ok(())
    }
}

/// The segment that names inline data.
fn inline_sge(bytes: &[u8]) -> Sge {
    Sge { addr: bytes.as_ptr().expose_provenance() as u64, len: bytes.len() as u32, lkey: 0 }
}

#[inline(always)]
fn to_sys(wr: &SendWr<'_>) -> sys::ibv_send_wr {
    use sys::ibv_wr_opcode as op;
    // SAFETY: plain integers and pointers, for which zeroes are valid.
    let mut raw: sys::ibv_send_wr = unsafe { std::mem::zeroed() };
    raw.wr_id = wr.wr_id;
    // The verbs only read the segments (struct ibv_send_wr has no const).
    raw.sg_list = wr.sges.as_ptr().cast_mut().cast();
    raw.num_sge = wr.sges.len() as i32;
    raw.send_flags = wr.flags.bits();
    let imm = |value: u32| sys::imm_data_invalidated_rkey_union_t { imm_data: value.to_be() };
    let key = |rkey: u32| sys::imm_data_invalidated_rkey_union_t { invalidated_rkey: rkey };
    raw.opcode = match wr.op {
        SendOp::Send => op::IBV_WR_SEND,
        SendOp::SendImm(value) => {
            raw.imm_data_invalidated_rkey_union = imm(value);
            op::IBV_WR_SEND_WITH_IMM
        }
        SendOp::SendInvalidate(rkey) => {
            raw.imm_data_invalidated_rkey_union = key(rkey);
            op::IBV_WR_SEND_WITH_INV
        }
        SendOp::Write { remote_addr, rkey } => {
            raw.wr.rdma = sys::rdma_t { remote_addr, rkey };
            op::IBV_WR_RDMA_WRITE
        }
        SendOp::WriteImm { remote_addr, rkey, imm: value } => {
            raw.wr.rdma = sys::rdma_t { remote_addr, rkey };
            raw.imm_data_invalidated_rkey_union = imm(value);
            op::IBV_WR_RDMA_WRITE_WITH_IMM
        }
        SendOp::Read { remote_addr, rkey } => {
            raw.wr.rdma = sys::rdma_t { remote_addr, rkey };
            op::IBV_WR_RDMA_READ
        }
        SendOp::CmpSwap { remote_addr, rkey, compare, swap } => {
            raw.wr.atomic = sys::atomic_t { remote_addr, compare_add: compare, swap, rkey };
            op::IBV_WR_ATOMIC_CMP_AND_SWP
        }
        SendOp::FetchAdd { remote_addr, rkey, add } => {
            raw.wr.atomic = sys::atomic_t { remote_addr, compare_add: add, swap: 0, rkey };
            op::IBV_WR_ATOMIC_FETCH_AND_ADD
        }
        SendOp::LocalInv(rkey) => {
            raw.imm_data_invalidated_rkey_union = key(rkey);
            op::IBV_WR_LOCAL_INV
        }
        SendOp::BindMw(bind) => {
            raw.bind_mw_tso_union.bind_mw =
                sys::bind_mw_t { mw: bind.mw.raw(), rkey: bind.rkey, bind_info: bind.to_sys() };
            op::IBV_WR_BIND_MW
        }
    };
    if let Some(dest) = wr.ud {
        raw.wr.ud = sys::ud_t { ah: dest.ah.raw(), remote_qpn: dest.qpn, remote_qkey: dest.qkey };
    }
    raw
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flag_bits_are_those_of_the_headers() {
        type F = sys::ibv_send_flags;
        assert_eq!(SendFlags::FENCE.bits(), F::IBV_SEND_FENCE.0);
        assert_eq!(SendFlags::SIGNALLED.bits(), F::IBV_SEND_SIGNALED.0);
        assert_eq!(SendFlags::SOLICITED.bits(), F::IBV_SEND_SOLICITED.0);
    }

    #[test]
    fn immediate_data_goes_out_in_network_order() {
        let raw = to_sys(&SendWr::new(9, SendOp::SendImm(0x0102_0304), &[]));
        // SAFETY: written as imm_data.
        let word = unsafe { raw.imm_data_invalidated_rkey_union.imm_data };
        assert_eq!(word.to_ne_bytes(), [1, 2, 3, 4]);
        assert_eq!((raw.wr_id, raw.opcode), (9, sys::ibv_wr_opcode::IBV_WR_SEND_WITH_IMM));
    }

    #[test]
    fn atomics_carry_address_key_and_operands() {
        let op = SendOp::CmpSwap { remote_addr: 0x1000, rkey: 7, compare: 1, swap: 2 };
        let raw = to_sys(&SendWr::new(0, op, &[]));
        // SAFETY: written as atomic.
        let atomic = unsafe { raw.wr.atomic };
        assert_eq!((atomic.remote_addr, atomic.rkey, atomic.compare_add, atomic.swap), (0x1000, 7, 1, 2));
    }
}
