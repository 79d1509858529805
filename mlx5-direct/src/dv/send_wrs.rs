//! Send work requests of verbs.

use core::{fmt, marker::PhantomData};

use doorbell_sys::{ibv_send_flags, ibv_send_wr, ibv_sge, ibv_wr_opcode};

use crate::{
    wqe::{DataSeg, send::flag},
    wr::{AddressVector, Bind, Sealed},
};

/// The send work requests of a chain, in order.
#[derive(Clone, Debug)]
pub struct SendWrs<'a> {
    next: *const ibv_send_wr,
    _chain: PhantomData<&'a ibv_send_wr>,
}

impl<'a> SendWrs<'a> {
    /// Walks the chain from `first`; null is an empty chain.
    ///
    /// # Safety
    ///
    /// `first` is the `*const ibv_send_wr` of any crate that declares that type. For `'a`, every
    /// request of the chain stays valid and unchanged, and so do its scatter list
    /// of `num_sge` entries, the memory that the entries of an inline request name, and the address
    /// handle, window and region that the request names. The chain ends with a null `next`. In each
    /// request, the union members for its opcode and for the QP's type are set.
    pub unsafe fn new<T>(first: *const T) -> Self {
        Self { next: first.cast(), _chain: PhantomData }
    }

    /// The request of a chain that is one Send of one segment, without a fence.
    #[inline(always)]
    pub(crate) fn only_send(&self) -> Option<PlainSend<'a>> {
        // SAFETY: null or a valid request, by the contract of `new`.
        let wr = unsafe { self.next.as_ref() }?;
        if wr.next.is_null() { self.plain_send() } else { None }
    }

    /// The next request if it is a Send of one segment, without a fence. [`pass`](Self::pass) goes
    /// to the request behind it.
    #[inline(always)]
    pub(crate) fn plain_send(&self) -> Option<PlainSend<'a>> {
        /// `num_sge` and `opcode`, which are neighbours.
        const ONE_SEND: u64 = 1 | (ibv_wr_opcode::IBV_WR_SEND as u64) << 32;
        const FLAGS: u32 = ibv_send_flags::IBV_SEND_SIGNALED.0
            | ibv_send_flags::IBV_SEND_SOLICITED.0
            | ibv_send_flags::IBV_SEND_INLINE.0;
        // SAFETY: null or a valid request, by the contract of `new`.
        let wr = unsafe { self.next.as_ref() }?;
        let what = u64::from(wr.num_sge.cast_unsigned()) | u64::from(wr.opcode) << 32;
        if what != ONE_SEND || wr.send_flags & !FLAGS != 0 {
            return None;
        }
        // SAFETY: one valid entry, by the contract of `new`.
        Some(PlainSend { wr_id: wr.wr_id, flags: wr.send_flags, sge: unsafe { &*wr.sg_list } })
    }

    /// Goes to the request behind the next one.
    #[inline(always)]
    pub(crate) fn pass(&mut self) {
        // SAFETY: null or a valid request, by the contract of `new`.
        if let Some(wr) = unsafe { self.next.as_ref() } {
            self.next = wr.next;
        }
    }
}

/// A Send of one segment, without a fence. Only [`SendWrs`] makes one.
pub(crate) struct PlainSend<'a> {
    pub(crate) wr_id: u64,
    flags: u32,
    sge: &'a ibv_sge,
}

impl<'a> PlainSend<'a> {
    /// Whether the data is inline.
    #[inline(always)]
    pub(crate) fn is_inline(&self) -> bool {
        self.flags & ibv_send_flags::IBV_SEND_INLINE.0 != 0
    }

    /// Bytes of the message.
    #[inline(always)]
    pub(crate) fn length(&self) -> u32 {
        self.sge.length
    }

    /// The message, if it is inline and not empty.
    #[inline(always)]
    pub(crate) fn inline(&self) -> &'a [u8] {
        if !self.is_inline() || self.sge.length == 0 {
            return &[];
        }
        // SAFETY: valid and unchanged for 'a by the contract of `SendWrs::new`, since the request
        // has the inline flag.
        unsafe { core::slice::from_raw_parts(self.sge.addr as *const u8, self.sge.length as usize) }
    }

    /// The segment of a message that is not inline.
    #[inline(always)]
    pub(crate) fn segment(&self) -> DataSeg {
        DataSeg::from_sge(self.sge)
    }

    /// The flags of the control segment.
    #[inline(always)]
    pub(crate) fn ctrl_flags(&self) -> u8 {
        ctrl_flags(self.flags)
    }
}

/// The flags of the control segment for `send_flags`, without a fence.
#[inline(always)]
pub(crate) fn ctrl_flags(send_flags: u32) -> u8 {
    const {
        assert!(ibv_send_flags::IBV_SEND_SIGNALED.0 << 2 == flag::CQ_UPDATE as u32);
        assert!(ibv_send_flags::IBV_SEND_SOLICITED.0 >> 1 == flag::SOLICITED as u32);
    }
    let signalled = send_flags & ibv_send_flags::IBV_SEND_SIGNALED.0;
    let solicited = send_flags & ibv_send_flags::IBV_SEND_SOLICITED.0;
    (signalled << 2 | solicited >> 1) as u8
}

impl<'a> Iterator for SendWrs<'a> {
    type Item = SendWr<'a>;

    #[inline]
    fn next(&mut self) -> Option<SendWr<'a>> {
        // SAFETY: null or a valid request, by the contract of `new`.
        let wr = unsafe { self.next.as_ref() }?;
        self.next = wr.next;
        // SAFETY: `num_sge` valid entries, by the contract of `new`.
        let segments = unsafe { super::sges(wr.sg_list, wr.num_sge) };
        Some(SendWr { wr_id: wr.wr_id, opcode: wr.opcode, segments, wr })
    }
}

/// A send work request of verbs. Only [`SendWrs`] makes one.
#[derive(Clone, Copy)]
pub struct SendWr<'a> {
    /// The user's cookie.
    pub wr_id: u64,
    /// `ibv_wr_opcode`.
    pub opcode: u32,
    /// Gather or scatter list.
    pub(crate) segments: &'a [ibv_sge],
    wr: &'a ibv_send_wr,
}

impl fmt::Debug for SendWr<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { wr_id, opcode, segments, .. } = self;
        write!(f, "SendWr {{ wr_id: {wr_id}, opcode: {opcode}, {} segments }}", segments.len())
    }
}

impl<'a> SendWr<'a> {
    /// Whether `send_flags` has this flag.
    pub(crate) fn has(&self, flag: ibv_send_flags) -> bool {
        self.wr.send_flags & flag.0 != 0
    }

    /// Immediate data in host order.
    pub(crate) fn immediate(&self) -> u32 {
        // SAFETY: an integer, whichever union member was set.
        u32::from_be(unsafe { self.wr.imm_data_invalidated_rkey_union.imm_data })
    }

    pub(crate) fn invalidate_rkey(&self) -> u32 {
        // SAFETY: as above.
        unsafe { self.wr.imm_data_invalidated_rkey_union.invalidated_rkey }
    }

    /// Remote address and rkey.
    pub(crate) fn rdma(&self) -> (u64, u32) {
        // SAFETY: integers, whichever union member was set.
        let rdma = unsafe { self.wr.wr.rdma };
        (rdma.remote_addr, rdma.rkey)
    }

    pub(crate) fn atomic(&self) -> doorbell_sys::atomic_t {
        // SAFETY: as above.
        unsafe { self.wr.wr.atomic }
    }

    pub(crate) fn remote_srqn(&self) -> u32 {
        // SAFETY: as above.
        unsafe { self.wr.qp_type.xrc.remote_srqn }
    }

    /// Path, QP number and Q_Key; `None` without a handle of an mlx5 device.
    pub(crate) fn datagram(&self) -> Option<(AddressVector, u32, u32)> {
        // SAFETY: in a request of a UD queue this member is set, by the contract of `SendWrs::new`.
        let ud = unsafe { self.wr.wr.ud };
        // SAFETY: the handle is null, which the function refuses, or live by the same contract.
        let path = unsafe { AddressVector::from_verbs(ud.ah) }.ok()?;
        Some((path, ud.remote_qpn, ud.remote_qkey))
    }

    pub(crate) fn bind(&self) -> Bind {
        // SAFETY: in a bind request this member is set, with a live window and region, by the
        // contract of `SendWrs::new`.
        unsafe {
            let bind = &self.wr.bind_mw_tso_union.bind_mw;
            Bind::from_verbs(bind.mw, bind.rkey, &raw const bind.bind_info)
        }
    }

    /// The memory of the scatter list, as inline data.
    pub(crate) fn inline(&self) -> InlineSges<'a> {
        InlineSges(self.segments)
    }
}

/// The memory that the entries of an inline request name.
#[derive(Clone, Copy)]
#[expect(missing_debug_implementations, reason = "`ibv_sge` has none")]
pub struct InlineSges<'a>(&'a [ibv_sge]);

impl Sealed for InlineSges<'_> {}

impl<'a> InlineSges<'a> {
    /// Bytes of all pieces.
    pub(crate) fn len(&self) -> usize {
        self.0.iter().fold(0, |n: usize, sge| n.saturating_add(sge.length as usize))
    }

    /// The pieces, in order.
    pub(crate) fn parts(self) -> impl Iterator<Item = &'a [u8]> {
        self.0.iter().filter(|sge| sge.length != 0).map(|sge| {
            // SAFETY: valid and unchanged for 'a by the contract of `SendWrs::new`; only requests
            // with the inline flag reach this code.
            unsafe { core::slice::from_raw_parts(sge.addr as *const u8, sge.length as usize) }
        })
    }
}
