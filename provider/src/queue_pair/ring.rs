//! The ring of posted requests.
//!
//! Requests have positions in the EP's stream of requests. The ring has a fixed table of a power of
//! two entries; a request is in the entry of its position. A place in the ring is taken by each
//! posted request, and by each completed request whose event the consumer has not taken.

use crate::Result;
use crate::datapath::WrInfo;
use crate::memory::table;
use crate::types::{CompletionFlags, DtoOp};
use bitflags::bitflags;

/// A request that is posted and not completed.
#[derive(Clone, Copy, Debug)]
// Two fields of a Send of no pool are 0 and are written together.
#[repr(C)]
pub(crate) struct Request {
    pub(crate) cookie: u64,
    /// The number of the pool that the buffer belongs to; 0 for none.
    pub(crate) pool: u32,
    pub(crate) op: DtoOp,
    pub(crate) length: u32,
    state: RequestState,
}

bitflags! {
    /// The completion flags of a request, and what else there is to know of it.
    #[derive(Clone, Copy, Debug)]
    struct RequestState: u32 {
        /// As [`CompletionFlags::SUPPRESS`].
        const SUPPRESS = CompletionFlags::SUPPRESS.bits();
        /// The device does not have the request.
        const NOT_ON_DEVICE = 1 << 30;
        /// A bind, or an operation of the extension.
        const SPECIAL = 1 << 31;
        /// What makes a completion other than plain.
        const NOT_PLAIN = Self::SUPPRESS.bits() | Self::SPECIAL.bits();
        const _ = !0;
    }
}

impl Request {
    pub(crate) const NONE: Self =
        Self { cookie: 0, pool: 0, op: DtoOp::Send, length: 0, state: RequestState::NOT_ON_DEVICE };

    /// A request for the device.
    #[inline(always)]
    pub(crate) fn new(info: &WrInfo, flags: CompletionFlags, op: DtoOp, length: u32) -> Self {
        let WrInfo { cookie, pool, .. } = *info;
        let mut state = RequestState::from_bits_retain(flags.bits());
        if op == DtoOp::RmrBind || op.is_extension() {
            state |= RequestState::SPECIAL;
        }
        Self { cookie, pool, op, length, state }
    }

    /// The completion flags.
    pub(crate) fn flags(&self) -> CompletionFlags {
        CompletionFlags::from_bits_truncate(self.state.bits())
    }

    /// The device has the request. Otherwise the request waits behind requests that the device has,
    /// and is flushed after them.
    pub(crate) fn is_on_device(&self) -> bool {
        !self.state.contains(RequestState::NOT_ON_DEVICE)
    }

    /// Records that the device does not get the request.
    pub(crate) fn keep_off_device(&mut self) {
        self.state |= RequestState::NOT_ON_DEVICE;
    }

    /// Whether the request has an event, the event has no effect when the consumer takes it, and
    /// the operation is not of the extension.
    #[inline(always)]
    fn is_plain(&self) -> bool {
        !self.state.intersects(RequestState::NOT_PLAIN)
    }

    /// What the event of the request says about the buffer.
    pub(crate) fn info(&self) -> WrInfo {
        WrInfo { cookie: self.cookie, pool: self.pool, ..WrInfo::default() }
    }
}

/// The ring of posted requests; see the module.
#[derive(Debug)]
pub(crate) struct RequestRing {
    /// A power of two of entries.
    entries: Box<[Request]>,
    /// One less than the number of entries.
    mask: usize,
    /// The position of the oldest request.
    first: u64,
    /// The position of the next request.
    end: u64,
    /// The first position for which there is no place.
    limit: u64,
}

impl RequestRing {
    /// A ring with this number of places.
    ///
    /// # Errors
    /// No memory.
    pub(crate) fn new(places: usize) -> Result<Self> {
        let entries = table(places.next_power_of_two(), |_| Request::NONE)?;
        let mask = entries.len() - 1;
        Ok(Self { entries, mask, first: 0, end: 0, limit: places as u64 })
    }

    #[inline(always)]
    fn entry(&mut self, position: u64) -> Option<&mut Request> {
        self.entries.get_mut(position as usize & self.mask)
    }

    /// The position of the oldest request. All before it are done.
    pub(crate) fn first(&self) -> u64 {
        self.first
    }

    /// The position of the next request.
    #[inline(always)]
    pub(crate) fn end(&self) -> u64 {
        self.end
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.first == self.end
    }

    /// The number of free places.
    #[inline(always)]
    pub(crate) fn room(&self) -> usize {
        (self.limit - self.end) as usize
    }

    /// The oldest request.
    pub(crate) fn front(&self) -> Option<&Request> {
        (!self.is_empty()).then(|| &self.entries[self.first as usize & self.mask])
    }

    /// The oldest request, if it is plain: not suppressed, no bind, and not of the extension. The
    /// answer has no meaning if the ring is empty.
    #[inline(always)]
    pub(crate) fn plain_front(&self) -> Option<Request> {
        // Read field by field: the compiler then knows that `op` is an operation, and makes no test
        // of it for the `Option`.
        let Request { cookie, pool, op, length, state } =
            *self.entries.get(self.first as usize & self.mask)?;
        let oldest = Request { cookie, pool, op, length, state };
        oldest.is_plain().then_some(oldest)
    }

    /// Takes the oldest request out of the ring, which is not empty. Its place becomes free.
    #[inline(always)]
    pub(crate) fn pass_first(&mut self) {
        self.first += 1;
        self.limit += 1;
    }

    /// Adds a request. The caller has checked that there is a place.
    #[inline(always)]
    pub(crate) fn push(&mut self, request: Request) {
        let end = self.end;
        if let Some(entry) = self.entry(end) {
            *entry = request;
        }
        self.end = end + 1;
    }

    /// Takes back the request that was added last. Nobody has seen it.
    #[inline(always)]
    pub(crate) fn take_back(&mut self) {
        self.end -= 1;
    }

    /// Takes the request at this position out of the ring, with all earlier requests. Their places
    /// become free. `None` if the request is not in the ring.
    #[inline(always)]
    pub(crate) fn take(&mut self, position: u64) -> Option<Request> {
        let done = position.wrapping_sub(self.first);
        if done >= self.end - self.first {
            return None;
        }
        let request = *self.entry(position)?;
        self.first = position + 1;
        self.limit += done + 1;
        Some(request)
    }

    /// Takes the oldest request out of the ring. Its place becomes free.
    pub(crate) fn take_first(&mut self) -> Option<Request> {
        self.take(self.first)
    }

    /// Takes a place for an event that the consumer has not taken.
    #[inline(always)]
    pub(crate) fn hold_place(&mut self) {
        self.limit -= 1;
    }

    /// Gives back a place that [`RequestRing::hold_place`] took.
    #[inline(always)]
    pub(crate) fn free_place(&mut self) {
        self.limit += 1;
    }

    /// Takes all requests out of the ring. Places of events stay taken.
    pub(crate) fn clear(&mut self) {
        self.limit += self.end - self.first;
        self.first = self.end;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(cookie: u64) -> Request {
        Request { cookie, ..Request::NONE }
    }

    #[test]
    fn a_completion_takes_all_earlier_requests() {
        let mut ring = RequestRing::new(3).unwrap();
        for cookie in 10..13 {
            assert_eq!(ring.end(), cookie - 10);
            ring.push(request(cookie));
        }
        assert_eq!((ring.room(), ring.front().unwrap().cookie), (0, 10));
        assert!(ring.take(3).is_none(), "nothing is posted there");
        assert_eq!(ring.take(1).unwrap().cookie, 11);
        assert!(ring.take(0).is_none() && ring.take(1).is_none(), "done before");
        assert_eq!((ring.room(), ring.first()), (2, 2));
        assert_eq!(ring.take_first().unwrap().cookie, 12);
        assert!(ring.is_empty() && ring.front().is_none() && ring.take_first().is_none());
    }

    /// A completed request keeps its place until its event is taken.
    #[test]
    fn events_hold_places() {
        let mut ring = RequestRing::new(2).unwrap();
        ring.push(request(1));
        ring.push(request(2));
        assert!(ring.take_first().is_some());
        ring.hold_place();
        assert_eq!(ring.room(), 0);
        ring.clear();
        assert_eq!((ring.room(), ring.is_empty(), ring.first()), (1, true, 2));
        ring.free_place();
        assert_eq!(ring.room(), 2);
    }

    #[test]
    fn plain_requests_are_those_with_an_event_without_an_effect() {
        let info = WrInfo { cookie: 7, pool: 3, ..WrInfo::default() };
        let fence = CompletionFlags::BARRIER_FENCE | CompletionFlags::UNSIGNALLED;
        for (flags, op, plain) in [
            (CompletionFlags::empty(), DtoOp::Send, true),
            (fence, DtoOp::RdmaRead, true),
            (CompletionFlags::SUPPRESS, DtoOp::Send, false),
            (CompletionFlags::empty(), DtoOp::RmrBind, false),
            (CompletionFlags::empty(), DtoOp::FetchAndAdd, false),
        ] {
            let mut ring = RequestRing::new(2).unwrap();
            ring.push(Request::new(&info, flags, op, 5));
            assert_eq!(ring.plain_front().is_some(), plain, "{op:?} {flags:?}");
            let mut request = *ring.front().unwrap();
            assert_eq!((request.flags(), request.op, request.length), (flags, op, 5));
            assert!(request.is_on_device());
            request.keep_off_device();
            assert!(!request.is_on_device() && request.flags() == flags);
            ring.pass_first();
            assert!(ring.is_empty() && ring.room() == 2 && ring.first() == 1);
        }
    }

    #[test]
    fn the_table_is_used_again() {
        let mut ring = RequestRing::new(5).unwrap();
        for cookie in 0..100 {
            ring.push(request(cookie));
            ring.push(request(cookie + 1000));
            assert_eq!(ring.take_first().unwrap().cookie, cookie);
            assert_eq!(ring.take_first().unwrap().cookie, cookie + 1000);
            assert_eq!(ring.room(), 5);
        }
    }
}
