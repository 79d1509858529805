//! The ring of posted requests.
//!
//! Requests have positions in the EP's stream of requests. The ring has a fixed table of a power of
//! two entries; a request is in the entry of its position. A place in the ring is taken by each
//! posted request, and by each completed request whose event the consumer has not taken.

use crate::Result;
use crate::datapath::WrInfo;
use crate::memory::table;
use crate::types::{CompletionFlags, DtoOp};

/// A request that is posted and not completed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    pub(crate) cookie: u64,
    /// The number of the pool that the buffer belongs to; 0 for none.
    pub(crate) pool: u32,
    pub(crate) length: u32,
    pub(crate) flags: CompletionFlags,
    pub(crate) op: DtoOp,
    /// The device has the request. Otherwise the request waits behind requests that the device has,
    /// and is flushed after them.
    pub(crate) on_device: bool,
}

impl Request {
    const NONE: Self = Self {
        cookie: 0,
        pool: 0,
        length: 0,
        flags: CompletionFlags::empty(),
        op: DtoOp::Send,
        on_device: false,
    };

    /// A request for the device.
    #[inline(always)]
    pub(crate) fn new(info: &WrInfo, flags: CompletionFlags, op: DtoOp, length: u32) -> Self {
        let WrInfo { cookie, pool, .. } = *info;
        Self { cookie, pool, length, flags, op, on_device: true }
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
        Ok(Self { entries, first: 0, end: 0, limit: places as u64 })
    }

    #[inline(always)]
    fn entry(&mut self, position: u64) -> Option<&mut Request> {
        let mask = self.entries.len().wrapping_sub(1);
        self.entries.get_mut(position as usize & mask)
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
        let mask = self.entries.len() - 1;
        (!self.is_empty()).then(|| &self.entries[self.first as usize & mask])
    }

    /// Whether the oldest request has an event without an effect: the request is not suppressed and
    /// is not a bind. The answer has no meaning if the ring is empty.
    #[inline(always)]
    pub(crate) fn has_plain_event(&self) -> bool {
        let mask = self.entries.len().wrapping_sub(1);
        self.entries.get(self.first as usize & mask).is_some_and(|oldest| {
            oldest.op != DtoOp::RmrBind && !oldest.flags.contains(CompletionFlags::SUPPRESS)
        })
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
