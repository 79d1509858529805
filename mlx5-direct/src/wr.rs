//! Work requests for a send queue: an operation, its flags, and its data.
//!
//! A [`Wr`] is built by value; [`Sq::post`](crate::Sq::post) and its siblings write it to the
//! queue, and none of it stays in memory. All functions are inlined, so that a request whose shape
//! the compiler knows compiles to the stores of its WQE.
//!
//! ```
//! use mlx5_direct::{DataSeg, wr::{Inline, Remote, Wr}};
//!
//! let text = b"32 bytes at most go into one WQE.";
//! let small = Wr::send(Inline(text)).signalled();
//! let large = Wr::write(Remote { addr: 0x7000, rkey: 0x1234 }, DataSeg::new(0x1000, 4096, 0x77));
//! assert_eq!((small.units(), large.units()), (4, 3));
//! ```

mod data;

use data::EightBytes;
pub use data::{Data, Inline, InlineParts};
pub(crate) use data::{LongInline, Sges, ShortInline, inline_units, sealed::Sealed};

use doorbell_sys::ibv_sge;

use crate::{
    memory::Target,
    wqe::{
        DataSeg, KeyedSeg, SEGMENT_BYTES,
        send::{
            AtomicSeg, Ctrl, EXTENDED_AV, KlmSeg, MaskedAtomicSeg32, MkeySeg, RaddrSeg, UmrCtrlSeg, XrcSeg,
            flag, opcode, two,
        },
    },
};

/// Memory of the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remote {
    /// Virtual address.
    pub addr: u64,
    /// Remote key of the region or window.
    pub rkey: u32,
}

/// The operand size and the operands of a masked atomic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Masked {
    /// 4 bytes: if `compare` equals the old value in the bits of `compare_mask`, the bits of
    /// `swap_mask` are replaced by those of `swap`.
    CompareSwap32 {
        /// Value compared with.
        compare: u32,
        /// Bits that are compared.
        compare_mask: u32,
        /// New value.
        swap: u32,
        /// Bits that are replaced.
        swap_mask: u32,
    },
    /// The same operation with 8 bytes.
    CompareSwap64 {
        /// Value compared with.
        compare: u64,
        /// Bits that are compared.
        compare_mask: u64,
        /// New value.
        swap: u64,
        /// Bits that are replaced.
        swap_mask: u64,
    },
    /// 4 bytes: an addition whose carry stops at each bit of `boundary`.
    FetchAdd32 {
        /// The summand.
        add: u32,
        /// The last bit of each field.
        boundary: u32,
    },
    /// The same operation with 8 bytes.
    FetchAdd64 {
        /// The summand.
        add: u64,
        /// The last bit of each field.
        boundary: u64,
    },
}

/// Binding of a memory window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bind {
    /// The window's present remote key.
    pub rkey: u32,
    /// The window's new remote key, which differs in the low byte only.
    pub new_rkey: u32,
    /// True for a type 2 window, which belongs to the QP; false for type 1.
    pub type2: bool,
    /// Local key of the region.
    pub lkey: u32,
    /// First address.
    pub addr: u64,
    /// Bytes, 2^31 at most; 0 unbinds.
    pub len: u64,
    /// Rights, `IBV_ACCESS_*`: remote write, remote read, remote atomic, zero-based.
    pub access: u32,
}

/// Length limit of a window that one WQE can bind, in bytes.
pub const MAX_BIND_BYTES: u64 = 1 << 31;

#[derive(Clone, Copy, Debug)]
enum Op {
    Send,
    SendImm(u32),
    SendInval(u32),
    Write(Remote),
    WriteImm(Remote, u32),
    Read(Remote),
    CompareSwap(Remote, u64, u64),
    FetchAdd(Remote, u64),
    Masked(Remote, Masked),
    LocalInval(u32),
    Bind(Bind),
    Nop,
}

#[derive(Clone, Copy, Debug)]
enum Dest {
    Connected,
    Datagram([u64; 6]),
    Xrc(u32),
}

/// A path to a peer of a UD queue, as `ibv_create_ah` makes it.
///
/// [`AddressVector::from_verbs`](crate::wr::AddressVector::from_verbs) takes it from an `ibv_ah`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddressVector {
    /// In memory order.
    words: [u64; 6],
}

impl AddressVector {
    /// From the 48 bytes of `mlx5_wqe_av`, in memory order.
    pub const fn from_words(words: [u64; 6]) -> Self {
        Self { words }
    }

    /// The vector with the QP number and Q_Key of a peer.
    #[inline(always)]
    pub(crate) fn to(mut self, qpn: u32, qkey: u32) -> [u64; 6] {
        let be32 = |v: u32| crate::be::Be32::new(v);
        self.words[0] = two(be32(qkey), be32(0));
        let rest = crate::be::Be32::from_raw(if cfg!(target_endian = "little") {
            (self.words[1] >> 32) as u32
        } else {
            self.words[1] as u32
        });
        self.words[1] = two(be32(qpn | EXTENDED_AV), rest);
        self.words
    }
}

/// A work request: operation, flags, and data of a type that implements [`Data`].
#[derive(Clone, Copy, Debug)]
pub struct Wr<D> {
    op: Op,
    dest: Dest,
    flags: u8,
    fence: bool,
    data: D,
}

impl<D: Data> Wr<D> {
    #[inline(always)]
    fn new(op: Op, data: D) -> Self {
        Self { op, dest: Dest::Connected, flags: 0, fence: false, data }
    }

    /// A message.
    #[inline(always)]
    pub fn send(data: D) -> Self {
        Self::new(Op::Send, data)
    }

    /// A message with immediate data, given in host order (verbs' `imm_data` is the same value in
    /// big-endian order).
    #[inline(always)]
    pub fn send_imm(immediate: u32, data: D) -> Self {
        Self::new(Op::SendImm(immediate), data)
    }

    /// A message that invalidates an rkey of the peer.
    #[inline(always)]
    pub fn send_inval(rkey: u32, data: D) -> Self {
        Self::new(Op::SendInval(rkey), data)
    }

    /// An RDMA write.
    #[inline(always)]
    pub fn write(to: Remote, data: D) -> Self {
        Self::new(Op::Write(to), data)
    }

    /// An RDMA write that completes a receive of the peer, with immediate data in host order.
    #[inline(always)]
    pub fn write_imm(to: Remote, immediate: u32, data: D) -> Self {
        Self::new(Op::WriteImm(to, immediate), data)
    }

    /// An RDMA read. The destination must not be inline data.
    #[inline(always)]
    pub(crate) fn read_any(from: Remote, data: D) -> Self {
        Self::new(Op::Read(from), data)
    }
}

/// Data that the device can write to: [`DataSeg`], `&[DataSeg]`, `[DataSeg; N]`, `[KeyedSeg; N]`,
/// or `()` for none.
pub trait Landing: Data {}
impl Landing for () {}
impl Landing for DataSeg {}
impl Landing for &[DataSeg] {}
impl<const N: usize> Landing for [DataSeg; N] {}
impl<const N: usize> Landing for [KeyedSeg; N] {}

impl<D: Landing> Wr<D> {
    /// An RDMA read into `into`.
    #[inline(always)]
    pub fn read(from: Remote, into: D) -> Self {
        Self::read_any(from, into)
    }
}

impl<'a> Wr<EightBytes<'a>> {
    /// An atomic of verbs, with any list of segments: compare-and-swap if `swap` is given, else
    /// fetch-and-add.
    pub(crate) fn atomic_any(at: Remote, compare_add: u64, swap: Option<u64>, into: &'a [ibv_sge]) -> Self {
        let op = match swap {
            Some(swap) => Op::CompareSwap(at, compare_add, swap),
            None => Op::FetchAdd(at, compare_add),
        };
        Self::new(op, EightBytes(into))
    }
}

impl Wr<DataSeg> {
    /// The segment with a length of 8 bytes, the size of an atomic's result.
    #[inline(always)]
    fn eight(result: DataSeg) -> DataSeg {
        DataSeg::new(result.addr(), 8, result.lkey())
    }

    /// Compares 8 bytes at `at` with `compare`, and stores `swap` there if they are equal. The old
    /// value goes to `result`, whose length is taken to be 8.
    #[inline(always)]
    pub fn compare_swap(at: Remote, compare: u64, swap: u64, result: DataSeg) -> Self {
        Self::new(Op::CompareSwap(at, compare, swap), Self::eight(result))
    }

    /// Adds to the 8 bytes at `at`. The old value goes to `result`, whose length is taken to be 8.
    #[inline(always)]
    pub fn fetch_add(at: Remote, add: u64, result: DataSeg) -> Self {
        Self::new(Op::FetchAdd(at, add), Self::eight(result))
    }

    /// An atomic on the bits of a mask. The old value goes to `result`, of 4 or 8 bytes.
    #[inline(always)]
    pub fn masked_atomic(at: Remote, masked: Masked, result: DataSeg) -> Self {
        Self::new(Op::Masked(at, masked), result)
    }
}

impl Wr<()> {
    /// A compare-and-swap without data: see [`Staged`](crate::sq::Staged).
    #[inline(always)]
    pub fn compare_swap_bare(at: Remote, compare: u64, swap: u64) -> Self {
        Self::new(Op::CompareSwap(at, compare, swap), ())
    }

    /// A fetch-and-add without data: see [`Staged`](crate::sq::Staged).
    #[inline(always)]
    pub fn fetch_add_bare(at: Remote, add: u64) -> Self {
        Self::new(Op::FetchAdd(at, add), ())
    }

    /// Invalidates the rkey of a local memory window or region. Later requests wait for the
    /// invalidation.
    #[inline(always)]
    pub fn local_inval(rkey: u32) -> Self {
        Self::new(Op::LocalInval(rkey), ())
    }

    /// Binds a memory window of at most [`MAX_BIND_BYTES`]. Later requests wait for the bind.
    #[inline(always)]
    pub fn bind(bind: Bind) -> Self {
        Self::new(Op::Bind(bind), ())
    }

    /// No operation: completes when all earlier requests have completed.
    #[inline(always)]
    pub fn nop() -> Self {
        Self::new(Op::Nop, ())
    }
}

impl<D> Wr<D> {
    /// Writes an entry to the CQ on success as well. An unsignalled request is released by the next
    /// signalled one.
    #[inline(always)]
    pub fn signalled(mut self) -> Self {
        self.flags |= flag::CQ_UPDATE;
        self
    }

    /// With these flags of the control segment as well.
    #[inline(always)]
    pub(crate) fn with_ctrl_flags(mut self, flags: u8) -> Self {
        self.flags |= flags;
        self
    }

    /// Raises an event at a receiver that waits for solicited completions.
    #[inline(always)]
    pub fn solicited(mut self) -> Self {
        self.flags |= flag::SOLICITED;
        self
    }

    /// Waits until all earlier reads and atomics have finished.
    #[inline(always)]
    pub fn fenced(mut self) -> Self {
        self.fence = true;
        self
    }

    /// Sets the peer of a request of a UD queue. Call this on every request of such a queue, and on
    /// no other.
    #[inline(always)]
    pub fn to(mut self, path: &AddressVector, qpn: u32, qkey: u32) -> Self {
        self.dest = Dest::Datagram(path.to(qpn, qkey));
        self
    }

    /// Sets the XRC peer's SRQ. Call this on every request of an XRC queue that reaches the peer,
    /// and on no other.
    #[inline(always)]
    pub fn to_srq(mut self, srqn: u32) -> Self {
        self.dest = Dest::Xrc(srqn);
        self
    }

    /// Whether the operation changes a memory key; later requests must wait for the change.
    #[inline(always)]
    pub(crate) fn changes_key(&self) -> bool {
        matches!(self.op, Op::LocalInval(_) | Op::Bind(_))
    }

    #[inline(always)]
    pub(crate) fn is_fenced(&self) -> bool {
        self.fence
    }

    /// 16-byte units before the data.
    #[inline(always)]
    fn head_units(&self) -> usize {
        let dest = match self.dest {
            Dest::Connected => 0,
            Dest::Datagram(_) => 3,
            Dest::Xrc(_) => 1,
        };
        let op = match self.op {
            Op::Send | Op::SendImm(_) | Op::SendInval(_) | Op::Nop => 0,
            Op::Write(_) | Op::WriteImm(..) | Op::Read(_) => 1,
            Op::CompareSwap(..) | Op::FetchAdd(..) => 2,
            Op::Masked(_, Masked::CompareSwap64 { .. }) => 3,
            Op::Masked(..) => 2,
            Op::Bind(Bind { len: 1.., .. }) => 11,
            Op::LocalInval(_) | Op::Bind(_) => 7,
        };
        1 + dest + op
    }
}

impl<'a> Wr<Inline<'a>> {
    /// The same request, with its bytes as a [`ShortInline`]; `None` for a number of bytes that it
    /// does not take.
    #[inline(always)]
    pub(crate) fn short_inline(&self) -> Option<Wr<ShortInline<'a>>> {
        let Self { op, dest, flags, fence, data } = *self;
        let is_short = (1..=48).contains(&data.0.len());
        is_short.then_some(Wr { op, dest, flags, fence, data: ShortInline(data.0) })
    }

    /// The same request, with its 16 bytes or more as a [`LongInline`]; `None` for fewer bytes.
    #[inline(always)]
    pub(crate) fn long_inline(&self) -> Option<Wr<LongInline<'a>>> {
        let Self { op, dest, flags, fence, data } = *self;
        let is_long = data.0.len() >= SEGMENT_BYTES;
        is_long.then_some(Wr { op, dest, flags, fence, data: LongInline(data.0) })
    }
}

impl<D: Data> Wr<D> {
    /// Size of the WQE in 16-byte units; a WQE of more than 63 units cannot be posted.
    #[inline(always)]
    pub fn units(&self) -> usize {
        self.head_units() + self.data.units()
    }

    /// Units of the data alone.
    pub(crate) fn data_units(&self) -> usize {
        self.data.units()
    }

    /// Inline bytes of the data.
    pub(crate) fn inline_bytes(&self) -> usize {
        self.data.inline_bytes()
    }

    /// The control segment.
    #[inline(always)]
    pub(crate) fn ctrl(&self, units: usize) -> Ctrl {
        let (opcode, imm) = match self.op {
            Op::Send => (opcode::SEND, 0),
            Op::SendImm(imm) => (opcode::SEND_IMM, imm),
            Op::SendInval(rkey) => (opcode::SEND_INVAL, rkey),
            Op::Write(_) => (opcode::RDMA_WRITE, 0),
            Op::WriteImm(_, imm) => (opcode::RDMA_WRITE_IMM, imm),
            Op::Read(_) => (opcode::RDMA_READ, 0),
            Op::CompareSwap(..) => (opcode::ATOMIC_CS, 0),
            Op::FetchAdd(..) => (opcode::ATOMIC_FA, 0),
            Op::Masked(_, Masked::CompareSwap32 { .. } | Masked::CompareSwap64 { .. }) => {
                (opcode::ATOMIC_MASKED_CS, 0)
            }
            Op::Masked(..) => (opcode::ATOMIC_MASKED_FA, 0),
            Op::LocalInval(rkey) => (opcode::UMR, rkey),
            Op::Bind(Bind { rkey, .. }) => (opcode::UMR, rkey),
            Op::Nop => (opcode::NOP, 0),
        };
        /// Extended atomics; the low bits are log2 of the operand size, minus 2.
        const EXTENDED: u8 = 8;
        let opmod = match self.op {
            Op::Masked(_, Masked::CompareSwap32 { .. } | Masked::FetchAdd32 { .. }) => EXTENDED,
            Op::Masked(..) => EXTENDED | 1,
            _ => 0,
        };
        Ctrl { opcode, opmod, units: units as u8, flags: self.flags, imm }
    }

    /// Writes the units after the control segment.
    #[inline(always)]
    pub(crate) fn write_body(self, out: &mut impl Target, qpn: u32) {
        self.write_head(out, qpn);
        self.data.write(out);
    }

    /// Whether registers of the processor can hold the data.
    #[inline(always)]
    pub(crate) fn in_registers(&self) -> bool {
        self.data.in_registers()
    }

    /// Writes the units between control segment and data.
    #[inline(always)]
    fn write_head(&self, out: &mut impl Target, qpn: u32) {
        match self.dest {
            Dest::Connected => {}
            Dest::Datagram([a, b, c, d, e, f]) => {
                out.push([a, b]);
                out.push([c, d]);
                out.push([e, f]);
            }
            Dest::Xrc(srqn) => out.push(XrcSeg::new(srqn).words()),
        }
        let raddr = |r: Remote| RaddrSeg::new(r.addr, r.rkey).words();
        match self.op {
            Op::Send | Op::SendImm(_) | Op::SendInval(_) | Op::Nop => {}
            Op::Write(to) | Op::WriteImm(to, _) | Op::Read(to) => out.push(raddr(to)),
            Op::CompareSwap(at, compare, swap) => {
                out.push(raddr(at));
                out.push(AtomicSeg::new(swap, compare).words());
            }
            Op::FetchAdd(at, add) => {
                out.push(raddr(at));
                out.push(AtomicSeg::new(add, 0).words());
            }
            Op::Masked(at, masked) => {
                out.push(raddr(at));
                write_masked(out, masked);
            }
            Op::LocalInval(_) => write_key_change(out, &Bind::UNBOUND, qpn),
            Op::Bind(bind) => write_key_change(out, &bind, qpn),
        }
    }
}

#[inline(always)]
fn write_masked(out: &mut impl Target, masked: Masked) {
    let words32 = |words: [u32; 4]| MaskedAtomicSeg32(words.map(crate::be::Be32::new)).words();
    match masked {
        Masked::CompareSwap32 { compare, compare_mask, swap, swap_mask } => {
            out.push(words32([swap, compare, swap_mask, compare_mask]));
        }
        Masked::CompareSwap64 { compare, compare_mask, swap, swap_mask } => {
            out.push(AtomicSeg::new(swap, compare).words());
            out.push(AtomicSeg::new(swap_mask, compare_mask).words());
        }
        Masked::FetchAdd32 { add, boundary } => out.push(words32([add, boundary, 0, 0])),
        Masked::FetchAdd64 { add, boundary } => out.push(AtomicSeg::new(add, boundary).words()),
    }
}

impl Bind {
    /// The key change of a local invalidate.
    const UNBOUND: Self = Self { rkey: 0, new_rkey: 0, type2: true, lkey: 0, addr: 0, len: 0, access: 0 };
}

/// Whether a key change of this size, with these control flags and this variant of the new key, is
/// a bind. An unbind of a type 2 window whose new variant is 0 looks like an invalidation.
pub(crate) fn is_bind(units: usize, flags: u8, variant: u8) -> bool {
    const CHECK_QPN: u8 = 1 << 3;
    units > 8 || flags & CHECK_QPN == 0 || variant != 0
}

/// The three parts of a memory key change; the third part only for a bind.
///
/// # References
///
/// rdma-core `providers/mlx5/qp.c`: `set_bind_wr`; `mlx5dv.h`: `MLX5_WQE_UMR_CTRL_*`,
/// `MLX5_WQE_MKEY_CONTEXT_*`.
#[inline(never)]
fn write_key_change(out: &mut impl Target, bind: &Bind, qpn: u32) {
    const INLINE_OFFSET: u8 = 1 << 7 | 1 << 4;
    const CHECK_FREE: u8 = 1 << 5;
    const CHECK_QPN: u8 = 1 << 3;
    const MASK_FREE: u64 = 1 << 29;
    const MASK_MKEY: u64 = 1 << 13;
    const MASK_QPN: u64 = 1 << 14;
    /// Length, start address, local write, remote read, remote write, atomic.
    const MASK_RANGE: u64 = 1 | 1 << 6 | 1 << 18 | 1 << 19 | 1 << 20 | 1 << 21;
    const FREE: u8 = 1 << 6;
    /// `IBV_ACCESS_REMOTE_WRITE`, `_READ`, `_ATOMIC`, `_ZERO_BASED`.
    const WRITE: u32 = 1 << 1;
    const READ: u32 = 1 << 2;
    const ATOMIC: u32 = 1 << 3;
    const ZERO_BASED: u32 = 1 << 5;

    let bound = bind.len > 0;
    let (mut flags, mut mask) = (INLINE_OFFSET, MASK_FREE | MASK_MKEY);
    if bind.type2 {
        flags |= if bound { CHECK_FREE } else { CHECK_QPN };
        mask |= MASK_QPN;
    }
    if bound {
        mask |= MASK_RANGE;
    }
    let mut access = 0;
    for (right, bit) in [(READ, 1 << 4), (WRITE, 1 << 5), (ATOMIC, 1 << 6)] {
        if bind.access & right != 0 {
            access |= bit;
        }
    }
    let owner = if bind.type2 && bound { qpn << 8 } else { 0xffff_ff00 };
    let start = if bind.access & ZERO_BASED != 0 { 0 } else { bind.addr };
    let free = if bound { 0 } else { FREE };
    let (start, len) = if bound { (start, bind.len) } else { (0, 0) };
    out.push_all(&UmrCtrlSeg::new(flags, if bound { 4 } else { 0 }, mask).words());
    out.push_all(&MkeySeg::new(free, access, bind.new_rkey & 0xff | owner, start, len).words());
    if bound {
        let [first, second] = KlmSeg::new(bind.len as u32, bind.lkey, bind.addr).words();
        out.push_all(&[first, second, 0, 0, 0, 0, 0, 0]);
    }
}
