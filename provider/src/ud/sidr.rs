//! The header of a datagram request (SIDR), and the cache of replies.
//!
//! rdma_cm resolves a UD peer with one request and one reply (SIDR). The request does not carry the
//! requester's QP number. A lost reply is not sent again; instead the peer repeats its request,
//! which the kernel reports as a new one. Requests of this provider therefore carry a header with
//! the QP number and a request number, and replies are kept for as long as a peer may repeat its
//! request.
//!
//! | byte | what |
//! |---|---|
//! | 0 | `DBUD` |
//! | 4 | version, 1 |
//! | 5 | length of the consumer's data |
//! | 6 | 0 |
//! | 8 | QP number, big-endian |
//! | 12 | number of the request, big-endian |
//! | 20 | the consumer's data; zeroes to the end |

use crate::ep::EpInner;
use crate::fork;
use crate::sync::{Mutex, rank};
use rxe_fallback::CmId;
use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{LazyLock, Weak};
use std::time::{Duration, Instant};

const MAGIC: &[u8; 4] = b"DBUD";
const VERSION: u8 = 1;
const HEADER: usize = 20;

/// How long a reply is kept. A peer sends its request once and repeats it 15 times, every 4.1 s
/// (kernel drivers/infiniband/core/cma.c, CMA_MAX_CM_RETRIES and CMA_CM_RESPONSE_TIMEOUT).
const RETRY_TIME: Duration = Duration::from_secs(70);

/// The largest number of replies that are kept.
const REPLIES: usize = 1 << 14;

/// What identifies a request: the QP that has sent it, and the request number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct SidrRequester {
    pub(crate) qpn: u32,
    number: u64,
}

impl SidrRequester {
    /// A new request of this QP, with a number that no earlier request has.
    pub(crate) fn new(qpn: u32) -> Self {
        /// 0 at first.
        static START: AtomicU64 = AtomicU64::new(0);
        let mut start = START.load(Ordering::Relaxed);
        if start == 0 {
            let random = RandomState::new().hash_one(std::process::id()) | 1;
            let set = START.compare_exchange(0, random, Ordering::Relaxed, Ordering::Relaxed);
            start = set.map_or_else(|earlier| earlier, |_| random);
        }
        Self { qpn, number: start.wrapping_add(crate::types::next_id()) }
    }

    /// The private data of the request: the header and the consumer's data.
    pub(crate) fn encode(self, data: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HEADER + data.len());
        bytes.extend_from_slice(MAGIC);
        // The data is checked against a limit far below 256.
        bytes.extend_from_slice(&[VERSION, data.len() as u8, 0, 0]);
        bytes.extend_from_slice(&self.qpn.to_be_bytes());
        bytes.extend_from_slice(&self.number.to_be_bytes());
        bytes.extend_from_slice(data);
        bytes
    }

    /// Decodes private data into the requester and the consumer's data. `None` for a request of
    /// another provider.
    pub(crate) fn decode(bytes: &[u8]) -> Option<(Self, Vec<u8>)> {
        let (header, rest) = bytes.split_at_checked(HEADER)?;
        if !header.starts_with(MAGIC) || header[4] != VERSION {
            return None;
        }
        let qpn = u32::from_be_bytes(header[8..12].try_into().ok()?);
        let number = u64::from_be_bytes(header[12..20].try_into().ok()?);
        Some((Self { qpn, number }, rest.get(..usize::from(header[5]))?.to_vec()))
    }
}

/// The answer to a request.
#[derive(Clone, Debug)]
pub(crate) enum Reply {
    /// With this EP's QP and this private data.
    Accepted(Weak<EpInner>, Vec<u8>),
    Rejected(Vec<u8>),
}

impl Reply {
    /// Answers a repeated request.
    pub(crate) fn repeat(&self, id: &CmId) {
        let outcome = match self {
            Self::Accepted(ep, data) => match ep.upgrade().filter(|ep| ep.check().is_ok()) {
                Some(ep) => id.accept(&ep.datagram_param(data)),
                None => id.reject(&[]),
            },
            Self::Rejected(data) => id.reject(data),
        };
        if let Err(error) = outcome {
            tracing::debug!(%error, "cannot send a reply again");
        }
    }
}

type RequesterKey = (IpAddr, SidrRequester);

/// The replies of this process, shared by all service points: a request may have been handed off to
/// another service point, but its repetition arrives at the first one.
#[derive(Debug, Default)]
pub(crate) struct ReplyCache(Mutex<{ rank::TABLE }, Remembered>);

#[derive(Debug, Default)]
struct Remembered {
    answers: HashMap<RequesterKey, Reply>,
    /// The replies, oldest first.
    dates: VecDeque<(Instant, RequesterKey)>,
}

impl ReplyCache {
    /// Registers the lock for forks. Called before the first request can arrive.
    pub(crate) fn share() {
        fork::share(fork::Part::ReplyCache, hold_shared_locks, || {});
    }

    pub(crate) fn all() -> &'static Self {
        static ALL: LazyLock<ReplyCache> = LazyLock::new(ReplyCache::default);
        &ALL
    }

    pub(crate) fn remember(&self, peer: IpAddr, requester: SidrRequester, answer: Reply) {
        let now = Instant::now();
        let mut remembered = self.0.lock().unwrap();
        remembered.forget(|date| now.duration_since(date) > RETRY_TIME);
        while remembered.dates.len() >= REPLIES {
            remembered.forget_oldest();
        }
        // Without an entry a repetition is handled as a new request.
        let Remembered { answers, dates } = &mut *remembered;
        if answers.try_reserve(1).is_err() || dates.try_reserve(1).is_err() {
            return;
        }
        if remembered.answers.insert((peer, requester), answer).is_none() {
            remembered.dates.push_back((now, (peer, requester)));
        }
    }

    /// The reply that was sent to this request, if any.
    pub(crate) fn to(&self, peer: IpAddr, requester: SidrRequester) -> Option<Reply> {
        self.0.lock().unwrap().answers.get(&(peer, requester)).cloned()
    }
}

/// Locks the cache for a fork.
fn hold_shared_locks() -> Vec<Box<dyn std::any::Any>> {
    vec![Box::new(ReplyCache::all().0.hold())]
}

impl Remembered {
    fn forget(&mut self, old: impl Fn(Instant) -> bool) {
        while self.dates.front().is_some_and(|&(date, _)| old(date)) {
            self.forget_oldest();
        }
    }

    fn forget_oldest(&mut self) {
        if let Some((_, key)) = self.dates.pop_front() {
            self.answers.remove(&key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_names_its_requester_and_carries_any_data() {
        for len in [0, 1, 4, 56] {
            let data: Vec<u8> = (0..len).collect();
            let requester = SidrRequester::new(0x12_3456);
            let mut bytes = requester.encode(&data);
            assert!(bytes.len() <= rxe_fallback::cm::MAX_RESOLVE_DATA);
            // Padded with zeroes, as the transport does.
            bytes.resize(rxe_fallback::cm::MAX_RESOLVE_DATA, 0);
            assert_eq!(SidrRequester::decode(&bytes), Some((requester, data)));
        }
    }

    #[test]
    fn requests_of_one_qp_differ() {
        assert_ne!(SidrRequester::new(7), SidrRequester::new(7));
    }

    #[test]
    fn what_is_not_ours_is_no_request() {
        let good = SidrRequester::new(1).encode(b"data");
        let mut other_version = good.clone();
        other_version[4] = 9;
        let mut too_long = good.clone();
        too_long[5] = 200;
        for bytes in [&b""[..], &good[..19], &[0; 180], &other_version, &too_long] {
            assert_eq!(SidrRequester::decode(bytes), None, "{bytes:?}");
        }
    }

    #[test]
    fn replies_are_found_by_requester_and_the_oldest_go() {
        let answers = ReplyCache::default();
        let peer = IpAddr::from([10, 0, 0, 1]);
        let first = SidrRequester::new(1);
        answers.remember(peer, first, Reply::Rejected(b"no".to_vec()));
        assert!(matches!(answers.to(peer, first), Some(Reply::Rejected(data)) if data == b"no"));
        assert!(answers.to(IpAddr::from([10, 0, 0, 2]), first).is_none());
        assert!(answers.to(peer, SidrRequester::new(1)).is_none());
        for qpn in 0..REPLIES as u32 {
            answers.remember(peer, SidrRequester::new(qpn), Reply::Rejected(Vec::new()));
        }
        assert!(answers.to(peer, first).is_none());
        assert_eq!(answers.0.lock().unwrap().dates.len(), REPLIES);
    }
}
