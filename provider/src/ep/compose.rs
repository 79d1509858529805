//! Requests as values: an operation, the memory that it uses, and how it completes.
//!
//! The operation is a type, so that a post is compiled for it. All take the EP as `&mut Ep`,
//! because one thread at a time posts to an EP.

use super::Ep;
use super::chain::ChainRequest;
use super::request::{self, PoolBytes, RequestKind};
use crate::datapath::WrInfo;
use crate::error::PostError;
use crate::types::{AddressHandle, CompletionFlags, Destination, LmrTriplet, RmrTriplet};
use std::array;

/// A request to an EP.
///
/// [`Ep::send`], [`Ep::write`], [`Ep::read`] and their siblings begin a request, which
/// [`Request::post`] posts. [`Request::send`] and so on begin one without an EP, for [`Ep::chain`].
///
/// ```no_run
/// # use doorbell::*;
/// # fn answer(ep: &mut Ep, data: LmrTriplet, status: LmrTriplet, client: RmrTriplet) -> Result<()> {
/// ep.write(&data).to(client).suppress().post()?;
/// ep.send(&status).cookie(7).post()?;
/// # Ok(())
/// # }
/// ```
///
/// `L` is the local memory, `O` the operation, `E` the EP, or the pool that has the memory.
#[derive(Debug)]
#[must_use = "a request does nothing until it is posted"]
pub struct Request<L, O, E = ()> {
    pub(crate) ep: E,
    pub(crate) local: L,
    pub(crate) op: O,
    pub(crate) cookie: u64,
    pub(crate) flags: CompletionFlags,
}

/// The operations of a [`Request`].
pub mod op {
    pub use super::request::{Read, Send, Write};
    use crate::types::{Destination, MemPriv, RmrTriplet};

    /// A Send that invalidates this RMR context of the peer.
    #[derive(Clone, Copy, Debug)]
    pub struct SendInvalidate(pub(super) u32);

    /// A datagram.
    #[derive(Clone, Copy, Debug)]
    pub struct SendTo(pub(super) Destination);

    /// An RDMA Write with immediate data.
    #[derive(Clone, Copy, Debug)]
    pub struct WriteImmediate(pub(super) RmrTriplet, pub(super) u32);

    /// An atomic addition.
    #[derive(Clone, Copy, Debug)]
    pub struct FetchAdd(pub(super) RmrTriplet, pub(super) u64);

    /// An atomic comparison, and a replacement.
    #[derive(Clone, Copy, Debug)]
    pub struct CompareSwap(pub(super) RmrTriplet, pub(super) u64, pub(super) u64);

    /// A bind of an RMR to a buffer: [`Rmr::open`](crate::Rmr::open).
    #[derive(Clone, Copy, Debug)]
    pub struct Open(pub(crate) MemPriv);

    /// An unbind of an RMR from a buffer: [`WindowBuf::unbind`](crate::WindowBuf::unbind).
    #[derive(Clone, Copy, Debug)]
    pub struct Unbind;

    /// An RDMA Write that lacks the peer's memory: [`Request::to`](super::Request::to).
    #[derive(Clone, Copy, Debug)]
    pub struct WriteTo;

    /// An RDMA Read that lacks the peer's memory: [`Request::from`](super::Request::from).
    #[derive(Clone, Copy, Debug)]
    pub struct ReadFrom;

    /// An atomic addition that lacks the peer's memory: [`Request::at`](super::Request::at).
    #[derive(Clone, Copy, Debug)]
    pub struct FetchAddAt(pub(crate) u64);

    /// An atomic comparison that lacks the peer's memory: [`Request::at`](super::Request::at).
    #[derive(Clone, Copy, Debug)]
    pub struct CompareSwapAt(pub(crate) u64, pub(crate) u64);
}

use op::{
    CompareSwap, CompareSwapAt, FetchAdd, FetchAddAt, Read, ReadFrom, Send, SendInvalidate, SendTo, Write,
    WriteImmediate, WriteTo,
};

/// Local memory of a request: one [`LmrTriplet`], or several.
pub trait Segments {
    /// The segments, in their order.
    fn segments(&self) -> &[LmrTriplet];
}

impl Segments for LmrTriplet {
    #[inline(always)]
    fn segments(&self) -> &[LmrTriplet] {
        array::from_ref(self)
    }
}

impl Segments for [LmrTriplet] {
    #[inline(always)]
    fn segments(&self) -> &[LmrTriplet] {
        self
    }
}

impl<const N: usize> Segments for [LmrTriplet; N] {
    #[inline(always)]
    fn segments(&self) -> &[LmrTriplet] {
        self
    }
}

impl Segments for Vec<LmrTriplet> {
    #[inline(always)]
    fn segments(&self) -> &[LmrTriplet] {
        self
    }
}

/// Bytes that the device gets with the request: they are copied during the post and may change as
/// soon as it returns. They need no LMR, and the device reads no memory for them, which makes small
/// messages faster.
#[derive(Clone, Copy, Debug)]
pub struct Inline<'a>(&'a [u8]);

/// Local memory that an RMR context names.
#[derive(Clone, Copy, Debug)]
pub struct OfRmr(RmrTriplet);

type Local<'a> = &'a [LmrTriplet];

impl<L, O, E> Request<L, O, E> {
    #[inline(always)]
    pub(crate) fn new(ep: E, local: L, op: O) -> Self {
        Self { ep, local, op, cookie: 0, flags: CompletionFlags::empty() }
    }

    #[inline(always)]
    fn with_op<P>(self, op: P) -> Request<L, P, E> {
        let Self { ep, local, cookie, flags, .. } = self;
        Request { ep, local, op, cookie, flags }
    }

    /// No event, unless the request fails. A program may suppress all its requests: the queue does
    /// not fill up.
    #[inline(always)]
    pub fn suppress(self) -> Self {
        self.flags(CompletionFlags::SUPPRESS)
    }

    /// Wakes a peer that waits for solicited messages only.
    #[inline(always)]
    pub fn solicited(self) -> Self {
        self.flags(CompletionFlags::SOLICITED_WAIT)
    }

    /// The event wakes no waiter. The EP must have been made for such requests.
    #[inline(always)]
    pub fn unsignalled(self) -> Self {
        self.flags(CompletionFlags::UNSIGNALLED)
    }

    /// Begins when the RDMA Reads and atomics before it are done.
    #[inline(always)]
    pub fn fence(self) -> Self {
        self.flags(CompletionFlags::BARRIER_FENCE)
    }

    /// Adds these flags.
    #[inline(always)]
    pub fn flags(mut self, flags: CompletionFlags) -> Self {
        self.flags |= flags;
        self
    }
}

impl<L: sealed::NoPool, O, E> Request<L, O, E> {
    /// The completion has this cookie. The default is 0.
    #[inline(always)]
    pub fn cookie(mut self, cookie: u64) -> Self {
        self.cookie = cookie;
        self
    }
}

impl<'a> Request<Local<'a>, Send> {
    /// As [`Ep::send`], for a chain.
    #[inline(always)]
    pub fn send<S: Segments + ?Sized>(local: &'a S) -> Self {
        Self::new((), local.segments(), Send)
    }
}

impl<'a> Request<Local<'a>, WriteTo> {
    /// As [`Ep::write`], for a chain.
    #[inline(always)]
    pub fn write<S: Segments + ?Sized>(local: &'a S) -> Self {
        Self::new((), local.segments(), WriteTo)
    }
}

impl<'a> Request<Inline<'a>, Send> {
    /// As [`Ep::send_inline`], for a chain.
    #[inline(always)]
    pub fn send_inline(bytes: &'a [u8]) -> Self {
        Self::new((), Inline(bytes), Send)
    }
}

impl<'a> Request<Inline<'a>, WriteTo> {
    /// As [`Ep::write_inline`], for a chain.
    #[inline(always)]
    pub fn write_inline(bytes: &'a [u8]) -> Self {
        Self::new((), Inline(bytes), WriteTo)
    }
}

impl<'a> Request<Local<'a>, ReadFrom> {
    /// As [`Ep::read`], for a chain.
    #[inline(always)]
    pub fn read<S: Segments + ?Sized>(local: &'a S) -> Self {
        Self::new((), local.segments(), ReadFrom)
    }
}

impl<'a> Request<Local<'a>, FetchAddAt> {
    /// As [`Ep::fetch_add`], for a chain.
    #[inline(always)]
    pub fn fetch_add(local: &'a LmrTriplet, add: u64) -> Self {
        Self::new((), local.segments(), FetchAddAt(add))
    }
}

impl<'a> Request<Local<'a>, CompareSwapAt> {
    /// As [`Ep::compare_swap`], for a chain.
    #[inline(always)]
    pub fn compare_swap(local: &'a LmrTriplet, compare: u64, swap: u64) -> Self {
        Self::new((), local.segments(), CompareSwapAt(compare, swap))
    }
}

impl Ep {
    /// A message gathered from these segments.
    ///
    /// # References
    /// dat_ep_post_send(3DAT).
    #[inline(always)]
    pub fn send<'a, S: Segments + ?Sized>(&mut self, local: &'a S) -> Request<Local<'a>, Send, &mut Self> {
        Request::new(self, local.segments(), Send)
    }

    /// A message of these bytes ([`Inline`]). The queue decides how many are possible: create the
    /// EP with [`EpBuilder::max_inline`](crate::EpBuilder::max_inline), or query what it has.
    ///
    /// # References
    /// ibv_post_send(3), `IBV_SEND_INLINE`.
    #[inline(always)]
    pub fn send_inline<'a>(&mut self, bytes: &'a [u8]) -> Request<Inline<'a>, Send, &mut Self> {
        Request::new(self, Inline(bytes), Send)
    }

    /// An RDMA Write of these segments: see [`Request::to`].
    ///
    /// # References
    /// dat_ep_post_rdma_write(3DAT).
    #[inline(always)]
    pub fn write<'a, S: Segments + ?Sized>(
        &mut self,
        local: &'a S,
    ) -> Request<Local<'a>, WriteTo, &mut Self> {
        Request::new(self, local.segments(), WriteTo)
    }

    /// An RDMA Write of these bytes: see [`Request::to`] and [`Ep::send_inline`].
    #[inline(always)]
    pub fn write_inline<'a>(&mut self, bytes: &'a [u8]) -> Request<Inline<'a>, WriteTo, &mut Self> {
        Request::new(self, Inline(bytes), WriteTo)
    }

    /// An RDMA Read into these segments: see [`Request::from`].
    ///
    /// # References
    /// dat_ep_post_rdma_read(3DAT).
    #[inline(always)]
    pub fn read<'a, S: Segments + ?Sized>(
        &mut self,
        local: &'a S,
    ) -> Request<Local<'a>, ReadFrom, &mut Self> {
        Request::new(self, local.segments(), ReadFrom)
    }

    /// Adds `add` to 8 bytes of the peer's memory ([`Request::at`]). The old value is written into
    /// the local 8 bytes (IB extension).
    ///
    /// # References
    /// dat_ib_extensions.h, `dat_ib_post_fetch_and_add`.
    #[inline(always)]
    pub fn fetch_add<'a>(
        &mut self,
        local: &'a LmrTriplet,
        add: u64,
    ) -> Request<Local<'a>, FetchAddAt, &mut Self> {
        Request::new(self, local.segments(), FetchAddAt(add))
    }

    /// Replaces 8 bytes of the peer's memory ([`Request::at`]) with `swap` if they equal `compare`.
    /// The old value is written into the local 8 bytes (IB extension).
    ///
    /// # References
    /// dat_ib_extensions.h, `dat_ib_post_cmp_and_swap`.
    #[inline(always)]
    pub fn compare_swap<'a>(
        &mut self,
        local: &'a LmrTriplet,
        compare: u64,
        swap: u64,
    ) -> Request<Local<'a>, CompareSwapAt, &mut Self> {
        Request::new(self, local.segments(), CompareSwapAt(compare, swap))
    }

    /// An RDMA Read into memory of this side that is named as a peer would name it: by the RMR
    /// context of an LMR, or of a bound RMR, with remote write privilege.
    ///
    /// # References
    /// dat.h, `dat_ep_post_rdma_read_to_rmr`.
    #[inline]
    pub fn read_to_rmr(&mut self, local: RmrTriplet) -> Request<OfRmr, ReadFrom, &mut Self> {
        Request::new(self, OfRmr(local), ReadFrom)
    }
}

impl<L, E> Request<L, Send, E> {
    /// Invalidates one of the peer's RMR contexts, which becomes invalid with the receive of the
    /// message. The peer's completion reports the context
    /// ([`DtoFields::invalidated`](crate::DtoFields::invalidated)).
    ///
    /// The context must belong to an RMR that was bound through the peer's end of this connection.
    /// Any other context breaks the connection.
    ///
    /// # References
    /// dat.h, `dat_ep_post_send_with_invalidate`.
    #[inline(always)]
    pub fn with_invalidate(self, rmr_context: u32) -> Request<L, SendInvalidate, E> {
        self.with_op(SendInvalidate(rmr_context))
    }

    /// Sends a datagram to this EP. It is one packet, so it has at most
    /// [`IaAttr::mtu`](crate::IaAttr::mtu) bytes. A datagram may get lost without an error.
    ///
    /// # References
    /// dat_ib_extensions.h, `dat_ib_post_send_ud`.
    #[inline(always)]
    pub fn datagram_to(self, peer: &AddressHandle) -> Request<L, SendTo, E> {
        self.with_op(SendTo(Destination { token: peer.token, qpn: peer.qpn }))
    }
}

impl<L, E> Request<L, WriteTo, E> {
    /// Writes to this memory of the peer, from its beginning.
    #[inline(always)]
    pub fn to(self, remote: RmrTriplet) -> Request<L, Write, E> {
        self.with_op(request::Write(remote))
    }
}

impl<L, E> Request<L, Write, E> {
    /// Consumes a receive of the peer as well, whose completion carries this number (IB extension;
    /// R276-R279).
    ///
    /// # References
    /// dat_ib_extensions.h, `dat_ib_post_rdma_write_immed`.
    #[inline(always)]
    pub fn with_immediate(self, immediate: u32) -> Request<L, WriteImmediate, E> {
        let request::Write(remote) = self.op;
        self.with_op(WriteImmediate(remote, immediate))
    }
}

impl<L, E> Request<L, ReadFrom, E> {
    /// Reads this memory of the peer.
    #[inline(always)]
    pub fn from(self, remote: RmrTriplet) -> Request<L, Read, E> {
        self.with_op(request::Read(remote))
    }
}

impl<L, E> Request<L, FetchAddAt, E> {
    /// Of these 8 bytes of the peer's memory, at an address that is a multiple of 8.
    #[inline(always)]
    pub fn at(self, remote: RmrTriplet) -> Request<L, FetchAdd, E> {
        let FetchAddAt(add) = self.op;
        self.with_op(FetchAdd(remote, add))
    }
}

impl<L, E> Request<L, CompareSwapAt, E> {
    /// Of these 8 bytes of the peer's memory, at an address that is a multiple of 8.
    #[inline(always)]
    pub fn at(self, remote: RmrTriplet) -> Request<L, CompareSwap, E> {
        let CompareSwapAt(compare, swap) = self.op;
        self.with_op(CompareSwap(remote, compare, swap))
    }
}

pub(crate) mod sealed {
    use super::{CompletionFlags, Ep, LmrTriplet, PoolBytes, PostError, RequestKind, WrInfo};
    use std::iter::once;

    /// Local memory that does not come back to a pool by the completion: the cookie is the program's.
    pub trait NoPool {}

    impl NoPool for &[LmrTriplet] {}
    impl NoPool for super::Inline<'_> {}
    impl NoPool for super::OfRmr {}

    pub trait Op: Copy {
        /// Few bytes go to the device with the request.
        const COPIES: bool = false;

        #[doc(hidden)]
        fn kind(self) -> RequestKind;

        #[doc(hidden)]
        #[inline(always)]
        fn post(
            self,
            ep: &mut Ep,
            iov: &[LmrTriplet],
            cookie: u64,
            flags: CompletionFlags,
        ) -> Result<(), PostError> {
            ep.inner.request_slow(self.kind(), iov, WrInfo { cookie, ..WrInfo::default() }, flags)
        }

        #[doc(hidden)]
        #[inline(always)]
        fn post_copy(
            self,
            ep: &mut Ep,
            bytes: &[u8],
            cookie: u64,
            flags: CompletionFlags,
        ) -> Result<(), PostError> {
            if Self::COPIES {
                return ep.submit_copy(bytes, cookie, flags);
            }
            ep.inner.send_copy(self.kind(), bytes, cookie, flags)
        }

        #[doc(hidden)]
        #[expect(private_interfaces, reason = "only pools have memory and make work request contexts")]
        fn post_pool(
            self,
            ep: &mut Ep,
            bytes: PoolBytes<'_>,
            info: WrInfo,
            flags: CompletionFlags,
        ) -> Result<(), PostError> {
            ep.inner.request_pool_slow(self.kind(), bytes.memory, once(bytes.at), info, flags)
        }
    }
}

/// An operation that has all it needs.
pub trait Op: sealed::Op {}

impl<T: sealed::Op> Op for T {}

macro_rules! fast {
    ($($op:ident: $copies:expr),*) => {$(
        impl sealed::Op for $op {
            const COPIES: bool = $copies;

            #[inline(always)]
            fn kind(self) -> RequestKind {
                request::Operation::kind(self)
            }

            #[inline(always)]
            fn post(
                self,
                ep: &mut Ep,
                iov: &[LmrTriplet],
                cookie: u64,
                flags: CompletionFlags,
            ) -> Result<(), PostError> {
                ep.submit(self, iov, cookie, flags)
            }

            #[expect(private_interfaces, reason = "only pools have memory and make work request contexts")]
            #[inline(always)]
            fn post_pool(
                self,
                ep: &mut Ep,
                bytes: PoolBytes<'_>,
                info: WrInfo,
                flags: CompletionFlags,
            ) -> Result<(), PostError> {
                ep.submit_pool(self, bytes, info, flags)
            }
        }
    )*};
}

fast!(Send: true, Write: false, Read: false);

impl sealed::Op for SendInvalidate {
    #[inline(always)]
    fn kind(self) -> RequestKind {
        RequestKind::SendInvalidate(self.0)
    }
}

impl sealed::Op for SendTo {
    #[inline(always)]
    fn kind(self) -> RequestKind {
        RequestKind::SendUd(self.0)
    }
}

impl sealed::Op for WriteImmediate {
    #[inline(always)]
    fn kind(self) -> RequestKind {
        RequestKind::WriteImmediate(self.0, self.1)
    }
}

impl sealed::Op for FetchAdd {
    #[inline(always)]
    fn kind(self) -> RequestKind {
        RequestKind::FetchAdd(self.0, self.1)
    }
}

impl sealed::Op for CompareSwap {
    #[inline(always)]
    fn kind(self) -> RequestKind {
        RequestKind::CompareSwap(self.0, self.1, self.2)
    }
}

impl<O: Op> Request<Local<'_>, O, &mut Ep> {
    /// Posts the request.
    ///
    /// # Errors
    /// See [`PostError`]; [`PostError::Length`] if the memory of one side is too short for that of
    /// the other; [`PostError::NotSupported`] if the device lacks the operation;
    /// [`PostError::AddressHandle`] for one that is freed or belongs to another IA or PZ.
    #[inline(always)]
    pub fn post(self) -> Result<(), PostError> {
        self.op.post(self.ep, self.local, self.cookie, self.flags)
    }
}

impl<O: Op> Request<Inline<'_>, O, &mut Ep> {
    /// Posts the request.
    ///
    /// # Errors
    /// See [`PostError`]; [`PostError::TooLongInline`] for more bytes than the EP's `max_inline`;
    /// [`PostError::Length`] for more than the peer's memory has; [`PostError::NotSupported`] for a
    /// datagram, or if the device lacks the operation.
    #[inline]
    pub fn post(self) -> Result<(), PostError> {
        self.op.post_copy(self.ep, self.local.0, self.cookie, self.flags)
    }
}

impl Request<OfRmr, Read, &mut Ep> {
    /// Posts the request.
    ///
    /// # Errors
    /// As for other local memory; [`PostError::NoSuchLmr`] for a context of neither an LMR nor an
    /// RMR; [`PostError::Privilege`] without the privilege.
    #[inline]
    pub fn post(self) -> Result<(), PostError> {
        let local = self.ep.inner.local_segment(self.local.0)?;
        self.ep.submit(self.op, &[local], self.cookie, self.flags)
    }
}

impl<'a, O: Op> From<Request<Inline<'a>, O>> for ChainRequest<'a> {
    #[inline(always)]
    fn from(request: Request<Inline<'a>, O>) -> Self {
        let Request { local: Inline(bytes), op, cookie, flags, .. } = request;
        Self::inline(op.kind(), bytes, cookie, flags)
    }
}

impl<'a, O: Op> From<Request<Local<'a>, O>> for ChainRequest<'a> {
    #[inline(always)]
    fn from(request: Request<Local<'a>, O>) -> Self {
        let Request { local, op, cookie, flags, .. } = request;
        Self::new(op.kind(), local, cookie, flags)
    }
}
