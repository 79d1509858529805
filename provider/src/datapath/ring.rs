//! Rings of work requests.
//!
//! Work requests have positions in the EP's stream of requests or of receives. A ring has a fixed
//! table of a power of two entries; a work request is in the entry of its position. Of the requests
//! of an EP, the send queue has those that the device has. The ring of the EP only counts these;
//! behind them, it has those that the device does not get. A place in the ring is taken by each
//! posted work request, and by each completed request whose event the consumer has not taken.

use super::Request;
use crate::memory::table;
use crate::{Error, Result, Subtype};
use zerocopy::FromZeros;

/// A ring of work requests; see the module.
#[derive(Debug)]
pub(crate) struct Ring<T> {
    /// A power of two of entries.
    entries: Box<[T]>,
    /// One less than the number of entries.
    mask: usize,
    /// The position of the next request.
    end: u64,
    /// The first position that has no place: `most` behind the oldest request.
    limit: u64,
    /// The number of requests that have a place: all places without those of events.
    most: u64,
}

impl Ring<Request> {
    /// A ring of requests with this number of places.
    ///
    /// # Errors
    /// No memory.
    pub(crate) fn of_requests(places: usize) -> Result<Self> {
        Ok(Self::over(table(places.next_power_of_two(), |_| Request::NONE)?, places))
    }
}

impl<T: Copy + FromZeros> Ring<T> {
    /// A ring with this number of places, in zeroed memory: that of a large ring, which comes from
    /// the kernel, is not touched before it is used.
    ///
    /// # Errors
    /// No memory.
    pub(crate) fn zeroed(places: usize) -> Result<Self> {
        let entries = <[T]>::new_box_zeroed_with_elems(places.next_power_of_two());
        let entries = entries.map_err(|_| {
            Error::resources(Subtype::ResourceMemory, format!("no memory for a ring of {places} places"))
        })?;
        Ok(Self::over(entries, places))
    }
}

impl<T: Copy> Ring<T> {
    fn over(entries: Box<[T]>, places: usize) -> Self {
        let mask = entries.len() - 1;
        Self { entries, mask, end: 0, limit: places as u64, most: places as u64 }
    }

    #[inline(always)]
    fn entry(&mut self, position: u64) -> Option<&mut T> {
        self.entries.get_mut(position as usize & self.mask)
    }

    /// The position of the oldest work request. All before it are done.
    #[inline(always)]
    pub(crate) fn first(&self) -> u64 {
        self.limit - self.most
    }

    /// The position of the next request.
    #[inline(always)]
    pub(crate) fn end(&self) -> u64 {
        self.end
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.first() == self.end
    }

    /// The number of posted work requests.
    pub(crate) fn len(&self) -> usize {
        (self.end - self.first()) as usize
    }

    /// The number of free places.
    #[inline(always)]
    pub(crate) fn room(&self) -> usize {
        (self.limit - self.end) as usize
    }

    /// The oldest work request.
    #[inline(always)]
    pub(crate) fn front(&self) -> Option<&T> {
        // Without an index: fast functions contain nothing that can panic.
        if self.is_empty() { None } else { self.entries.get(self.first() as usize & self.mask) }
    }

    /// Takes the oldest requests, which the send queue has, out of the ring. Their places become
    /// free.
    #[inline(always)]
    pub(crate) fn pass(&mut self, requests: u32) {
        self.limit += u64::from(requests);
    }

    /// Adds a work request. The caller has checked that there is a place.
    #[inline(always)]
    pub(crate) fn push(&mut self, request: T) {
        debug_assert!(self.room() > 0, "no place is free");
        let end = self.end;
        if let Some(entry) = self.entry(end) {
            *entry = request;
        }
        self.end = end + 1;
    }

    /// As [`Ring::push`], for a request that the send queue has.
    #[inline(always)]
    pub(crate) fn count(&mut self) {
        self.end += 1;
    }

    /// Takes back the youngest work requests.
    pub(crate) fn take_back(&mut self, requests: u32) {
        self.end -= u64::from(requests);
    }

    /// The request at this position. `None` if it is not in the ring.
    #[inline(always)]
    pub(crate) fn get(&self, position: u64) -> Option<&T> {
        let earlier = position.wrapping_sub(self.first());
        // Without an index: fast functions contain nothing that can panic.
        if earlier >= self.end - self.first() {
            None
        } else {
            self.entries.get(position as usize & self.mask)
        }
    }

    /// Takes the request at this position out of the ring, with all earlier requests. Their places
    /// become free. `None` if the request is not in the ring.
    #[inline(always)]
    pub(crate) fn take(&mut self, position: u64) -> Option<T> {
        let earlier = position.wrapping_sub(self.first());
        if earlier >= self.end - self.first() {
            return None;
        }
        let request = *self.entry(position)?;
        self.limit += earlier + 1;
        Some(request)
    }

    /// Takes the oldest work request out of the ring. Its place becomes free.
    #[inline(always)]
    pub(crate) fn take_first(&mut self) -> Option<T> {
        self.take(self.first())
    }

    /// Takes a place for an event that the consumer has not taken.
    #[inline(always)]
    pub(crate) fn hold_place(&mut self) {
        self.most -= 1;
        self.limit -= 1;
    }

    /// Gives back a place that [`Ring::hold_place`] took.
    #[inline(always)]
    pub(crate) fn free_place(&mut self) {
        self.most += 1;
        self.limit += 1;
    }

    /// Takes all work requests out of the ring. Places of events stay taken.
    pub(crate) fn clear(&mut self) {
        self.limit = self.end + self.most;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::datapath::WrInfo;
    use crate::types::{CompletionFlags, DtoOp};

    fn request(cookie: u64) -> Request {
        Request::new(&WrInfo { cookie, ..WrInfo::default() }, CompletionFlags::empty(), DtoOp::Send, 0)
    }

    #[test]
    fn a_completion_takes_all_earlier_requests() {
        let mut ring = Ring::of_requests(3).unwrap();
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

    /// On the direct path, the send queue has the requests in front.
    #[test]
    fn requests_that_the_device_does_not_get_stand_behind_the_others() {
        let mut ring = Ring::of_requests(4).unwrap();
        ring.count();
        ring.count();
        ring.push(request(7));
        assert_eq!((ring.room(), ring.end(), ring.is_empty()), (1, 3, false));
        ring.pass(2);
        assert_eq!((ring.room(), ring.first(), ring.front().unwrap().cookie), (3, 2, 7));
        assert_eq!(ring.take_first().unwrap().cookie, 7);
        assert!(ring.is_empty() && ring.room() == 4);
    }

    /// A completed request keeps its place until its event is taken.
    #[test]
    fn events_hold_places() {
        let mut ring = Ring::of_requests(2).unwrap();
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
            let mut ring = Ring::of_requests(2).unwrap();
            ring.push(Request::new(&info, flags, op, 5));
            let mut request = *ring.front().unwrap();
            assert_eq!(request.is_plain(), plain, "{op:?} {flags:?}");
            assert_eq!((request.flags(), request.op, request.length), (flags, op, 5));
            assert!(request.is_on_device());
            request.keep_off_device();
            assert!(!request.is_on_device() && request.flags() == flags);
            ring.pass(1);
            assert!(ring.is_empty() && ring.room() == 2 && ring.first() == 1);
        }
    }

    #[test]
    fn the_table_is_used_again() {
        let mut ring = Ring::of_requests(5).unwrap();
        for cookie in 0..100 {
            ring.push(request(cookie));
            ring.push(request(cookie + 1000));
            assert_eq!(ring.take_first().unwrap().cookie, cookie);
            assert_eq!(ring.take_first().unwrap().cookie, cookie + 1000);
            assert_eq!(ring.room(), 5);
        }
    }
}
