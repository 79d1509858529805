//! Lists of receive work requests as verbs has them.

use core::marker::PhantomData;

use doorbell_sys::{ibv_recv_wr, ibv_sge};

use crate::wqe::DataSeg;

/// A receive work request of verbs.
#[derive(Clone, Copy)]
pub struct RecvWr<'a> {
    /// The user's cookie.
    pub wr_id: u64,
    /// Scatter list.
    pub(crate) segments: &'a [ibv_sge],
}

impl core::fmt::Debug for RecvWr<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "RecvWr {{ wr_id: {}, {} segments }}", self.wr_id, self.segments.len())
    }
}

/// The work requests of a chain, in order.
#[derive(Clone, Debug)]
pub struct RecvWrs<'a> {
    next: *const ibv_recv_wr,
    _chain: PhantomData<&'a ibv_recv_wr>,
}

impl<'a> RecvWrs<'a> {
    /// Walks the chain from `first`; null is an empty chain.
    ///
    /// # Safety
    ///
    /// `first` is the `*const ibv_recv_wr` of any crate that declares that type. Every request of
    /// the chain, and its scatter list of `num_sge` entries, stays valid and
    /// unchanged for `'a`; the chain ends with a null `next`.
    pub unsafe fn new<T>(first: *const T) -> Self {
        Self { next: first.cast(), _chain: PhantomData }
    }

    /// The only segment and the cookie of the next request. `None` if there is no request, or if
    /// the request has another number of segments; the request then stays the next one.
    #[inline(always)]
    pub(crate) fn next_single(&mut self) -> Option<(DataSeg, u64)> {
        // SAFETY: null or a valid request, by the contract of `new`.
        let wr = unsafe { self.next.as_ref() }?;
        if wr.num_sge != 1 {
            return None;
        }
        self.next = wr.next;
        // SAFETY: one valid entry, by the contract of `new`.
        Some((DataSeg::from_sge(unsafe { &*wr.sg_list }), wr.wr_id))
    }

    /// The segment and the cookie of a chain of one request with one segment.
    #[inline(always)]
    pub fn only_single(&self) -> Option<(DataSeg, u64)> {
        let mut rest = self.clone();
        let single = rest.next_single()?;
        rest.is_empty().then_some(single)
    }

    /// The request of a chain of one.
    #[inline(always)]
    pub(crate) fn only(&self) -> Option<RecvWr<'a>> {
        let mut rest = self.clone();
        let wr = rest.next()?;
        rest.is_empty().then_some(wr)
    }

    /// Whether no request is left.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.next.is_null()
    }
}

impl<'a> Iterator for RecvWrs<'a> {
    type Item = RecvWr<'a>;

    #[inline]
    fn next(&mut self) -> Option<RecvWr<'a>> {
        // SAFETY: null or a valid request, by the contract of `new`.
        let wr = unsafe { self.next.as_ref() }?;
        self.next = wr.next;
        // SAFETY: `num_sge` valid entries, by the contract of `new`.
        let segments = unsafe { super::sges(wr.sg_list, wr.num_sge) };
        Some(RecvWr { wr_id: wr.wr_id, segments })
    }
}
