//! Work requests for receive queues, and the list contract that SRQs and QPs share.
//!
//! A list is posted in order and stops at the first request that cannot be posted; the ones before
//! it stay posted. That is the contract of ibv_post_srq_recv(3), and [`PostListError`] carries it
//! on.
#![expect(unsafe_code, reason = "chains of raw work requests")]

use std::mem::MaybeUninit;

use doorbell_sys as sys;

/// A data segment: `len` bytes at `addr` in the MR that `lkey` names; the same layout as `ibv_sge`.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Sge {
    /// First byte, as an address of this process (or an offset for a zero-based MR).
    pub addr: u64,
    /// Length in bytes.
    pub len: u32,
    /// Local key of the MR.
    pub lkey: u32,
}

const _: () = assert!(size_of::<Sge>() == size_of::<sys::ibv_sge>());
const _: () = assert!(align_of::<Sge>() == align_of::<sys::ibv_sge>());
const _: () = assert!(std::mem::offset_of!(Sge, addr) == std::mem::offset_of!(sys::ibv_sge, addr));
const _: () = assert!(std::mem::offset_of!(Sge, len) == std::mem::offset_of!(sys::ibv_sge, length));
const _: () = assert!(std::mem::offset_of!(Sge, lkey) == std::mem::offset_of!(sys::ibv_sge, lkey));

/// A receive: where a message may be put.
#[derive(Debug, Clone, Copy)]
pub struct RecvWr<'a> {
    /// The `wr_id` of the completion.
    pub wr_id: u64,
    /// The segments, filled in order.
    pub sges: &'a [Sge],
}

/// Why one work request was not posted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PostError {
    /// The queue has no free entry.
    #[error("the queue is full: take completions off its CQ first, or make it deeper")]
    Full,
    /// More segments than the queue was made for.
    #[error("{given} segments, but the queue takes {max}")]
    TooManySegments {
        /// Segments in the request.
        given: usize,
        /// Segments the queue takes.
        max: usize,
    },
    /// More inline data than the queue was made for.
    #[error("{given} bytes of inline data, but the queue takes {max}")]
    InlineTooLong {
        /// Bytes in the request.
        given: usize,
        /// Bytes the queue takes.
        max: usize,
    },
    /// Inline data and segments in one request, or inline data in a request that has none.
    #[error("inline data excludes segments, and is for sends and RDMA Writes only")]
    InlineMisplaced,
    /// The QP takes its receives from an SRQ.
    #[error("this QP takes its receives from an SRQ: post to the SRQ")]
    HasSrq,
    /// The queue serves UD, where each receive starts with a GRH area.
    #[error("receives for UD start with a 40-byte GRH area: post a UdRecvBuffer")]
    NeedsGrhArea,
    /// The queue serves a connected transport, where there is no GRH area.
    #[error("only UD receives have a GRH area: post plain segments")]
    NoGrhArea,
    /// A UD send without a destination, or a destination on a connected QP.
    #[error("a destination belongs to UD sends, and only to them")]
    Destination,
    /// The verb refused it with this errno.
    #[error("refused by the device with errno {0}")]
    Refused(i32),
}

impl PostError {
    /// The errno a verb would give: ENOMEM when full, EINVAL for a malformed request.
    #[must_use]
    pub fn errno(self) -> i32 {
        match self {
            PostError::Full => libc::ENOMEM,
            PostError::Refused(errno) => errno,
            _ => libc::EINVAL,
        }
    }

    fn from_verb(returned: i32) -> Self {
        match returned.saturating_abs() {
            libc::ENOMEM => PostError::Full,
            errno => PostError::Refused(errno),
        }
    }
}

/// Where a list stopped: entries before `index` are posted, `index` and those after it are not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("work request {index} was not posted (those before it were): {reason}")]
pub struct PostListError {
    /// The first request that was not posted, counted from 0; also how many were.
    pub index: usize,
    /// Why.
    pub reason: PostError,
}

/// Requests that one call to the device takes; longer lists go in several calls.
pub(crate) const CHUNK: usize = 64;

/// A receive of a list.
pub trait Receive {
    /// Whether its segments begin with a GRH area, as those of UD do.
    const HAS_GRH_AREA: bool;

    /// The `wr_id` of the completion.
    fn wr_id(&self) -> u64;

    /// The segments, filled in order.
    fn sges(&self) -> &[Sge];
}

impl Receive for RecvWr<'_> {
    const HAS_GRH_AREA: bool = false;

    fn wr_id(&self) -> u64 {
        self.wr_id
    }
    fn sges(&self) -> &[Sge] {
        self.sges
    }
}

/// Posts `wrs` through `post`, a verb with the shape of `ibv_post_recv`, without allocating.
///
/// `post` gets a chain of at most [`CHUNK`] requests whose segments live as long as `wrs`.
pub(crate) fn in_chains<W: Receive>(
    wrs: &[W],
    max_sge: usize,
    mut post: impl FnMut(*mut sys::ibv_recv_wr, &mut *mut sys::ibv_recv_wr) -> i32,
) -> Result<(), PostListError> {
    let mut chain = [const { MaybeUninit::<sys::ibv_recv_wr>::uninit() }; CHUNK];
    for (number, chunk) in wrs.chunks(CHUNK).enumerate() {
        let first = number * CHUNK;
        let good = chunk.iter().position(|wr| wr.sges().len() > max_sge).unwrap_or(chunk.len());
        if good > 0 {
            let base: *mut sys::ibv_recv_wr = chain.as_mut_ptr().cast();
            for (i, wr) in chunk[..good].iter().enumerate() {
                let last = i + 1 == good;
                // SAFETY: i < good <= CHUNK, so both addresses are inside `chain`, or one is not
                // used.
                let next = if last { std::ptr::null_mut() } else { unsafe { base.add(i + 1) } };
                let wr = sys::ibv_recv_wr {
                    wr_id: wr.wr_id(),
                    next,
                    // The verbs only read the segments (struct ibv_recv_wr has no const).
                    sg_list: wr.sges().as_ptr().cast_mut().cast(),
                    num_sge: wr.sges().len() as i32,
                };
                // SAFETY: as above; nobody else has this array.
                unsafe { base.add(i).write(wr) };
            }
            let mut bad = std::ptr::null_mut();
            let returned = post(base, &mut bad);
            if returned != 0 {
                let done = index_in_chain(base as usize, bad as usize, size_of::<sys::ibv_recv_wr>(), good);
                return Err(PostListError { index: first + done, reason: PostError::from_verb(returned) });
            }
        }
        if good < chunk.len() {
            let given = chunk[good].sges().len();
            let reason = PostError::TooManySegments { given, max: max_sge };
            return Err(PostListError { index: first + good, reason });
        }
    }
    Ok(())
}

/// Which request of a chain `bad` points to; 0 when a provider left it unset.
pub(crate) fn index_in_chain(base: usize, bad: usize, size: usize, len: usize) -> usize {
    let index = bad.wrapping_sub(base) / size;
    if index < len { index } else { 0 }
}

#[cold]
pub(crate) fn refused(returned: i32) -> PostError {
    PostError::from_verb(returned)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A provider's receive queue with room for `room` requests; keeps what was posted.
    #[derive(Default)]
    struct Queue {
        room: usize,
        posted: Vec<(u64, Vec<Sge>)>,
        calls: usize,
        silent: bool,
    }

    impl Queue {
        fn post(&mut self, chain: *mut sys::ibv_recv_wr, bad: &mut *mut sys::ibv_recv_wr) -> i32 {
            self.calls += 1;
            let mut next = chain;
            // SAFETY: the code under test hands over a chain of valid requests that ends with NULL.
            while let Some(wr) = unsafe { next.as_ref() } {
                if self.posted.len() == self.room {
                    if !self.silent {
                        *bad = next;
                    }
                    return libc::ENOMEM;
                }
                let (at, len) = (wr.sg_list.cast::<Sge>(), wr.num_sge as usize);
                // SAFETY: num_sge segments at sg_list.
                let sges = if len == 0 { &[] } else { unsafe { std::slice::from_raw_parts(at, len) } };
                self.posted.push((wr.wr_id, sges.to_vec()));
                next = wr.next;
            }
            0
        }
    }

    fn sges(n: usize) -> Vec<Sge> {
        (0..n).map(|i| Sge { addr: 0x1000 + i as u64, len: 10 + i as u32, lkey: 7 }).collect()
    }

    fn post_list(queue: &mut Queue, wrs: &[RecvWr<'_>], max_sge: usize) -> Result<(), PostListError> {
        in_chains(wrs, max_sge, |chain, bad| queue.post(chain, bad))
    }

    #[test]
    fn list_arrives_whole_and_in_order() {
        for len in [0, 1, 63, 64, 65, 128, 200] {
            let segments = sges(2);
            let wrs: Vec<_> =
                (0..len).map(|i| RecvWr { wr_id: i, sges: &segments[..(i % 3) as usize] }).collect();
            let mut queue = Queue { room: 1000, ..Queue::default() };
            assert_eq!(post_list(&mut queue, &wrs, 2), Ok(()));
            let ids: Vec<_> = queue.posted.iter().map(|(id, _)| *id).collect();
            assert_eq!(ids, (0..len).collect::<Vec<_>>());
            assert!(queue.posted.iter().all(|(id, got)| got[..] == segments[..(*id % 3) as usize]));
            assert_eq!(queue.calls, (len as usize).div_ceil(CHUNK));
        }
    }

    #[test]
    fn full_queue_is_reported_at_the_first_refused_request() {
        for room in [0, 1, 63, 64, 65, 129] {
            let wrs = vec![RecvWr { wr_id: 0, sges: &[] }; 130];
            let mut queue = Queue { room, ..Queue::default() };
            let stopped = post_list(&mut queue, &wrs, 1).unwrap_err();
            assert_eq!(stopped, PostListError { index: room, reason: PostError::Full });
            assert_eq!(queue.posted.len(), room);
        }
    }

    #[test]
    fn requests_before_a_refused_one_are_posted() {
        for bad in [0, 1, 63, 64, 100] {
            let segments = sges(3);
            let mut wrs = vec![RecvWr { wr_id: 0, sges: &segments[..2] }; 130];
            wrs[bad].sges = &segments;
            let mut queue = Queue { room: 1000, ..Queue::default() };
            let stopped = post_list(&mut queue, &wrs, 2).unwrap_err();
            let reason = PostError::TooManySegments { given: 3, max: 2 };
            assert_eq!(stopped, PostListError { index: bad, reason });
            assert_eq!(queue.posted.len(), bad);
        }
    }

    #[test]
    fn full_comes_before_a_later_malformed_request() {
        let segments = sges(2);
        let mut wrs = vec![RecvWr { wr_id: 0, sges: &segments[..1] }; 10];
        wrs[8].sges = &segments;
        let mut queue = Queue { room: 5, ..Queue::default() };
        assert_eq!(post_list(&mut queue, &wrs, 1), Err(PostListError { index: 5, reason: PostError::Full }));
    }

    #[test]
    fn missing_bad_request_gives_no_wrong_index() {
        let wrs = vec![RecvWr { wr_id: 0, sges: &[] }; 100];
        let mut queue = Queue { room: 64, silent: true, ..Queue::default() };
        assert_eq!(post_list(&mut queue, &wrs, 1).unwrap_err().index, 64);
    }

    #[test]
    fn reasons_have_the_errno_of_the_verb() {
        assert_eq!(PostError::from_verb(libc::ENOMEM), PostError::Full);
        assert_eq!(PostError::from_verb(-libc::ENOMEM), PostError::Full);
        assert_eq!(PostError::from_verb(libc::EIO).errno(), libc::EIO);
        assert_eq!(PostError::Full.errno(), libc::ENOMEM);
        assert_eq!(PostError::TooManySegments { given: 2, max: 1 }.errno(), libc::EINVAL);
        let stopped = PostListError { index: 3, reason: PostError::TooManySegments { given: 2, max: 1 } };
        assert_eq!(
            stopped.to_string(),
            "work request 3 was not posted (those before it were): 2 segments, but the queue takes 1"
        );
    }
}
