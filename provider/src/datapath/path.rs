//! The two data paths as types.
//!
//! All queues of an IA are of one path, which is chosen when the IA is opened
//! ([`DataPath`](super::DataPath)). A queue is an [`OnPath`]: one of two types. Functions of the
//! data path are generic over [`Path`]: they are compiled once for each, and reach the queue of
//! their path by [`Queues::send_queue`] and its siblings. Who knows the path at compile time (the
//! tables of C functions) names it; all others choose by [`with_path`], the only place where the
//! choice becomes a type. A function of the wrong path finds no queue, and leaves the call to the
//! slow function.

use super::cqs::CqPath;
use super::direct::{DirectCqs, DirectPoster, DirectReceives, DirectSends, DirectSrq};
use super::fast::{PostReceives, PostSends, PostSrq, Segment};
use super::next::NextOnCq;
use super::on_path::OnPath;
use super::queues::{RecvQueue, SendQueue};
use super::srq::{SrqPath, SrqPoster};
use super::verbs::{VerbsCq, VerbsPoster, VerbsReceives, VerbsSends, VerbsSrq};
use mlx5_direct::wqe::KeyedSeg;
use rxe_fallback::Sge;
use std::sync::Arc;

/// A data path: [`Direct`] or [`Verbs`].
#[expect(private_bounds, reason = "no other crate has a path, or needs its queues")]
pub trait Path: Queues {
    /// The device library posts by system calls.
    const SYSTEM_CALLS: bool;
}

/// The queues of a path. Its functions return `None` for a queue of the other path.
pub(crate) trait Queues: 'static {
    type Segment: Segment;
    /// The part of an SRQ that posts.
    type SrqPoster: PostSrq<Segment = Self::Segment>;
    /// The part of an SRQ that all threads share.
    type SrqShared;
    /// The CQs of an EVD.
    type Cq: NextOnCq<Srq = Self::SrqShared>;
    type SendQueue: PostSends<Segment = Self::Segment>;
    type RecvQueue: PostReceives<Segment = Self::Segment>;

    fn srq_queue(poster: &mut SrqPoster) -> Option<&mut Self::SrqPoster>;
    fn srq_shared(srq: &SrqPath) -> Option<&Self::SrqShared>;
    fn cq(cq: &mut CqPath) -> Option<&mut Self::Cq>;
    fn send_queue(queue: &mut SendQueue) -> Option<&mut Self::SendQueue>;
    fn recv_queue(queue: &mut RecvQueue) -> Option<&mut Self::RecvQueue>;
}

/// The queues of mlx5 devices, driven by `mlx5-direct`.
#[derive(Clone, Copy, Debug)]
pub struct Direct;

/// The queues of any device, driven by libibverbs.
/// `CALLS`: the device library posts by system calls.
#[derive(Clone, Copy, Debug)]
pub struct Verbs<const CALLS: bool = false>;

impl Path for Direct {
    const SYSTEM_CALLS: bool = false;
}

impl Queues for Direct {
    type Segment = KeyedSeg;
    type SrqPoster = DirectPoster;
    type SrqShared = DirectSrq;
    type Cq = DirectCqs;
    type SendQueue = DirectSends;
    type RecvQueue = DirectReceives;

    #[inline(always)]
    fn srq_queue(poster: &mut SrqPoster) -> Option<&mut DirectPoster> {
        poster.direct_mut()
    }

    #[inline(always)]
    fn srq_shared(srq: &SrqPath) -> Option<&DirectSrq> {
        match srq {
            OnPath::Direct(srq) => Some(srq),
            OnPath::Verbs(_) => None,
        }
    }

    #[inline(always)]
    fn cq(cq: &mut CqPath) -> Option<&mut DirectCqs> {
        cq.direct_mut()
    }

    #[inline(always)]
    fn send_queue(queue: &mut SendQueue) -> Option<&mut DirectSends> {
        queue.direct_mut()
    }

    #[inline(always)]
    fn recv_queue(queue: &mut RecvQueue) -> Option<&mut DirectReceives> {
        queue.direct_mut()
    }
}

impl<const CALLS: bool> Path for Verbs<CALLS> {
    const SYSTEM_CALLS: bool = CALLS;
}

impl<const CALLS: bool> Queues for Verbs<CALLS> {
    type Segment = Sge;
    type SrqPoster = VerbsPoster;
    type SrqShared = Arc<VerbsSrq>;
    type Cq = VerbsCq;
    type SendQueue = VerbsSends;
    type RecvQueue = VerbsReceives;

    #[inline(always)]
    fn srq_queue(poster: &mut SrqPoster) -> Option<&mut VerbsPoster> {
        poster.verbs_mut()
    }

    #[inline(always)]
    fn srq_shared(srq: &SrqPath) -> Option<&Arc<VerbsSrq>> {
        match srq {
            OnPath::Verbs(srq) => Some(srq),
            OnPath::Direct(_) => None,
        }
    }

    #[inline(always)]
    fn cq(cq: &mut CqPath) -> Option<&mut VerbsCq> {
        cq.verbs_mut()
    }

    #[inline(always)]
    fn send_queue(queue: &mut SendQueue) -> Option<&mut VerbsSends> {
        queue.verbs_mut()
    }

    #[inline(always)]
    fn recv_queue(queue: &mut RecvQueue) -> Option<&mut VerbsReceives> {
        queue.verbs_mut()
    }
}

/// Evaluates an expression in which `$path` names the type of this [`DataPath`].
macro_rules! with_path {
    ($which:expr, $path:ident => $expr:expr) => {
        match $which {
            $crate::datapath::DataPath::Direct => {
                type $path = $crate::datapath::Direct;
                $expr
            }
            $crate::datapath::DataPath::Verbs => {
                type $path = $crate::datapath::Verbs;
                $expr
            }
        }
    };
}
pub(crate) use with_path;
