//! Which cases are measured, in which shapes, for which subjects.

/// The timed operation. The report uses these names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CaseName {
    /// Posts new buffers to an SRQ that has room.
    Post,
    /// As `Post`, with segments that were built beforehand, like libmlx5's work requests here.
    PostEncoded,
    /// As `Post`, with length and lkey in place; only the address is new.
    PostAddress,
    /// On a full SRQ: polls completions, oldest first, and posts as many new buffers.
    PostFree,
    /// Posts slots that keep their buffers.
    Repost,
    /// Polls waiting completions; uses QP, slot or `wr_id`, and length.
    Poll,
    /// As `Poll`, and frees the slot.
    PollFree,
    /// Polls while no completion waits.
    EmptyPoll,
    /// On a full SRQ whose receives complete at random: the post alone.
    RandomCompletion,
    /// As `RandomCompletion`, with the polling.
    RandomCompletionFree,
    /// Posts messages of 32 bytes, inline, to the send queue of a QP.
    Send,
    /// As `Send`, with one segment of 64 bytes.
    SendGather,
    /// As `Send`, with a prepared request whose payload changes.
    SendPrepared,
    /// As `Send`, by `ibv_wr_*`; a batch between one `ibv_wr_start` and `ibv_wr_complete`.
    SendWr,
    /// As `Send`, with a fence for stores behind each post, unless the post ends with one anyway.
    SendFenced,
    /// Polls the completions of sends, and releases their requests.
    ReapSend,
    /// A message of 32 bytes through verbs: the poll of a receive, the post of a new buffer, a
    /// send, and the poll of a send's completion.
    Message,
    /// `Ep::send` of the crate doorbell, 64 bytes.
    EpSend,
    /// `Ep::send_inline` of the crate doorbell, 64 bytes.
    EpSendInline,
    /// The same, while other QPs have the same send register.
    EpSendShared,
    /// An RDMA Write and a Send, of 64 bytes each, by two posts.
    EpPair,
    /// The same by one `Ep::chain`.
    EpChain,
    /// `SendPool::send` of 32 bytes, and the `SendPool::take` before it.
    PoolSend,
    /// A message by `RecvPool::next`, its answer by `SendPool::send`, and the completion of an earlier
    /// answer.
    PoolMessage,
    /// `Ep::post_recv` to an EP without an SRQ.
    EpRecv,
    /// As `Message`, with messages that arrive in their buffers.
    MessageInBuffer,
    /// As `MessageInBuffer`, with messages of 512 bytes, of which each line is read.
    MessageLarge,
    /// `dat_srq_post_recv` through libdat2.
    DatPost,
    /// As `DatPost`, with 10,000 more endpoints on the SRQ.
    DatPostCrowd,
    /// As `DatPost`, with segments in two LMRs in turn.
    DatPostLmrs,
    /// As `DatPost`, with segments in four LMRs in turn.
    DatPostFourLmrs,
    /// `dat_evd_dequeue` through libdat2, of receives.
    DatReap,
    /// `dat_evd_wait` through libdat2, of receives that wait already.
    DatWait,
    /// Both calls for each message.
    DatMessage,
    /// `dat_ep_post_send` through libdat2, 64 bytes.
    DatSend,
    /// As `DatSend`, with segments in two LMRs in turn.
    DatSendLmrs,
    /// As `DatSend`, with segments in four LMRs in turn.
    DatSendFourLmrs,
    /// `dat_ep_post_rdma_write` through libdat2, 64 bytes in one segment.
    DatWrite,
    /// `dat_ep_post_recv` through libdat2, to an endpoint without an SRQ.
    DatRecv,
    /// As `DatRecv`, with segments in two LMRs in turn.
    DatRecvLmrs,
    /// As `DatRecv`, with segments in four LMRs in turn.
    DatRecvFourLmrs,
    /// `dat_evd_dequeue` of messages in the receives of `DatRecv`.
    DatReapRecv,
    /// `dat_evd_dequeue` of the completions of `DatSend`.
    DatReapSend,
    /// `dat_evd_dequeue` through libdat2 of an empty EVD of receives from an SRQ.
    DatEmpty,
    /// `dat_evd_dequeue` of an empty EVD of sends.
    DatEmptySends,
    /// A message and its answer: the dequeue of the receive, the post of a new buffer, a send, and
    /// the dequeue of that send.
    DatAnswer,
    /// `dat_ep_create`, with 16 receives and 16 requests.
    DatEpCreate,
    /// `dat_ep_free` of an endpoint of `DatEpCreate`.
    DatEpFree,
    /// `dat_srq_post_recv` and `dat_ep_post_send` in turn, by one thread.
    DatThread,
    /// As `DatThread`, by two threads: to one SRQ, and each by an endpoint of its own.
    DatTwoThreads,
    /// As `DatTwoThreads`, by four threads.
    DatFourThreads,
}

impl CaseName {
    /// Whether receives complete in any order.
    pub fn is_random(self) -> bool {
        matches!(self, Self::RandomCompletion | Self::RandomCompletionFree)
    }

    /// The name of the case in the report.
    pub fn name(self) -> &'static str {
        match self {
            Self::Post => "post",
            Self::PostEncoded => "post-encoded",
            Self::PostAddress => "post-address",
            Self::PostFree => "post+free",
            Self::Repost => "repost",
            Self::Poll => "poll",
            Self::PollFree => "poll+free",
            Self::EmptyPoll => "empty-poll",
            Self::RandomCompletion => "random-completion",
            Self::RandomCompletionFree => "random-completion+free",
            Self::Send => "send",
            Self::SendGather => "send-gather",
            Self::SendPrepared => "send-prepared",
            Self::SendWr => "send-wr",
            Self::SendFenced => "send-fenced",
            Self::ReapSend => "reap-send",
            Self::Message => "message",
            Self::MessageInBuffer => "message-in-buffer",
            Self::MessageLarge => "message-512",
            Self::EpSend => "ep-send",
            Self::EpSendInline => "ep-send-inline",
            Self::EpSendShared => "ep-send-shared",
            Self::EpPair => "ep-write-send",
            Self::EpChain => "ep-chain",
            Self::PoolSend => "pool-send",
            Self::PoolMessage => "pool-message",
            Self::EpRecv => "ep-recv",
            Self::DatPost => "dat-post",
            Self::DatPostCrowd => "dat-post-crowd",
            Self::DatPostLmrs => "dat-post-lmrs",
            Self::DatPostFourLmrs => "dat-post-lmrs-4",
            Self::DatReap => "dat-reap",
            Self::DatWait => "dat-wait",
            Self::DatMessage => "dat-post+reap",
            Self::DatSend => "dat-send",
            Self::DatSendLmrs => "dat-send-lmrs",
            Self::DatSendFourLmrs => "dat-send-lmrs-4",
            Self::DatWrite => "dat-write",
            Self::DatRecv => "dat-recv",
            Self::DatRecvLmrs => "dat-recv-lmrs",
            Self::DatRecvFourLmrs => "dat-recv-lmrs-4",
            Self::DatReapRecv => "dat-reap-recv",
            Self::DatReapSend => "dat-reap-send",
            Self::DatEmpty => "dat-empty",
            Self::DatEmptySends => "dat-empty-send",
            Self::DatAnswer => "dat-answer",
            Self::DatEpCreate => "dat-ep-create",
            Self::DatEpFree => "dat-ep-free",
            Self::DatThread => "dat-threads-1",
            Self::DatTwoThreads => "dat-threads-2",
            Self::DatFourThreads => "dat-threads-4",
        }
    }

    /// Whether the case uses the send queue of a QP, not through libdat2.
    pub fn sends(self) -> bool {
        use CaseName::*;
        matches!(self, Send | SendGather | SendPrepared | SendWr | SendFenced | ReapSend) || self.is_message()
    }

    /// Whether the case is a whole message, not through libdat2.
    pub fn is_message(self) -> bool {
        matches!(self, Self::Message | Self::MessageInBuffer | Self::MessageLarge)
    }

    /// Whether the case is about calls that only the crate doorbell has.
    pub fn of_provider(self) -> bool {
        use CaseName::*;
        matches!(
            self,
            EpSend | EpSendInline | EpSendShared | EpPair | EpChain | EpRecv | PoolSend | PoolMessage
        )
    }

    /// Whether the case goes through libdat2.
    pub fn through_libdat(self) -> bool {
        use CaseName::*;
        matches!(
            self,
            DatPost
                | DatPostCrowd
                | DatPostLmrs
                | DatPostFourLmrs
                | DatReap
                | DatWait
                | DatMessage
                | DatEmpty
                | DatEmptySends
        ) || matches!(self, DatRecv | DatRecvLmrs | DatRecvFourLmrs | DatReapRecv)
            || self.is_control()
            || self.sends_by_dat()
    }

    /// Whether the operation creates or frees an object. Each takes microseconds, most of them in
    /// libmlx5 and the device, so nobody counts its instructions.
    pub fn is_control(self) -> bool {
        matches!(self, Self::DatEpCreate | Self::DatEpFree)
    }

    /// Whether the measured part contains sends through libdat2.
    pub fn sends_by_dat(self) -> bool {
        matches!(
            self,
            Self::DatSend
                | Self::DatSendLmrs
                | Self::DatSendFourLmrs
                | Self::DatWrite
                | Self::DatReapSend
                | Self::DatAnswer
        ) || self.threads().is_some()
    }

    /// Whether the software device has a thread of its own: in the other mode, a send and a poll of
    /// an empty CQ through libmlx5 run the device, and the case would time that as well.
    pub fn needs_device_thread(self) -> bool {
        self.sends_by_dat() || matches!(self, Self::DatEmpty | Self::DatEmptySends | Self::DatWait)
    }

    /// How many threads the case has, if it compares numbers of threads.
    pub fn threads(self) -> Option<u32> {
        match self {
            Self::DatThread => Some(1),
            Self::DatTwoThreads => Some(2),
            Self::DatFourThreads => Some(4),
            _ => None,
        }
    }
}

/// The subject that is measured. The report uses these names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject {
    /// libmlx5 with its default settings.
    Libmlx5Lock,
    /// libmlx5 started with `MLX5_SINGLE_THREADED=1`.
    Libmlx5Nolock,
    /// The calls of verbs with the preloaded library of doorbell-verbs.
    Verbs,
    /// The crate mlx5-direct.
    Mlx5Direct,
    /// UCX's transport rc_mlx5.
    Ucx,
    /// The crate doorbell: its Rust API, or libdoorbell.so under libdat2.
    Provider,
    /// The crate doorbell on standard verbs.
    ProviderVerbs,
    /// libdaplofa under libdat2.
    Libdaplofa,
}

impl Subject {
    /// All subjects, in the order of the table.
    pub const ALL: [Self; 8] = [
        Self::Libmlx5Lock,
        Self::Libmlx5Nolock,
        Self::Verbs,
        Self::Mlx5Direct,
        Self::Ucx,
        Self::Provider,
        Self::ProviderVerbs,
        Self::Libdaplofa,
    ];

    /// The name of the subject in the report.
    pub fn name(self) -> &'static str {
        match self {
            Self::Libmlx5Lock => "libmlx5-lock",
            Self::Libmlx5Nolock => "libmlx5-nolock",
            Self::Verbs => "verbs",
            Self::Mlx5Direct => "mlx5-direct",
            Self::Ucx => "ucx",
            Self::Provider => "provider",
            Self::ProviderVerbs => "provider-verbs",
            Self::Libdaplofa => "libdaplofa",
        }
    }

    /// The subject with this name.
    pub fn by_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|s| s.name() == name)
    }

    /// Environment variables that libmlx5 or the provider reads once, at its start.
    pub fn environment(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Self::Libmlx5Nolock => &[("MLX5_SINGLE_THREADED", "1")],
            Self::ProviderVerbs => &[("DOORBELL_DATAPATH", "verbs")],
            _ => &[],
        }
    }

    /// Whether the subject takes part in a case.
    pub fn does(self, spec: &Spec) -> bool {
        use CaseName::*;
        if spec.case.of_provider() {
            return matches!(self, Self::Provider | Self::ProviderVerbs);
        }
        match self {
            Self::Mlx5Direct => !spec.case.through_libdat(),
            // UCX makes its queue pairs so that messages arrive in their entries.
            Self::Ucx => matches!((spec.case, spec.batch), (Send | Message, 1)),
            // Verbs have no prepared requests.
            Self::Libmlx5Lock | Self::Libmlx5Nolock => {
                !spec.case.through_libdat() && spec.case != SendPrepared
            }
            // Slots that keep their buffers, or their lengths, are no calls of verbs.
            Self::Verbs => {
                !spec.case.through_libdat()
                    && !matches!(spec.case, PostEncoded | PostAddress | Repost | SendPrepared)
            }
            Self::Provider | Self::ProviderVerbs => match spec.case {
                Post | PostFree | EmptyPoll => spec.batch == 1,
                // `Evd::dequeue`, and `Evd::drain` for batches.
                Poll => true,
                case => case.through_libdat(),
            },
            // libdaplofa does not put an endpoint without EVDs on its SRQ.
            Self::Libdaplofa => spec.case.through_libdat() && spec.case != DatPostCrowd,
        }
    }
}

/// A case in a shape. Together with a subject, it identifies a row of the report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spec {
    /// The timed operation.
    pub case: CaseName,
    /// WQEs or CQEs per call.
    pub batch: u32,
    /// Data segments of a buffer.
    pub segments: u32,
    /// Receives that can be posted at a time.
    pub depth: u32,
}

/// All cases in all shapes, or all cases in few shapes if `quick`.
pub fn plan(quick: bool) -> Vec<Spec> {
    use CaseName::*;
    let spec = |case, batch, segments, depth| Spec { case, batch, segments, depth };
    let batches: &[u32] = if quick { &[1, 32] } else { &[1, 16, 32, 64] };
    let random: &[u32] = if quick { &[1023] } else { &[1023, 4095, 32_767] };
    let mut plan = vec![];
    for case in [Post, PostFree] {
        plan.extend(batches.iter().map(|&batch| spec(case, batch, 1, 1023)));
        if !quick || case == Post {
            plan.extend([1, 32].map(|batch| spec(case, batch, 4, 1023)));
        }
    }
    for case in [PostEncoded, PostAddress, Repost] {
        plan.extend(batches.iter().map(|&batch| spec(case, batch, 1, 1023)));
    }
    for case in [RandomCompletion, RandomCompletionFree] {
        for &depth in random {
            plan.extend(batches.iter().filter(|b| !quick || **b > 1).map(|&b| spec(case, b, 1, depth)));
        }
        if !quick {
            plan.push(spec(case, 32, 4, 1023));
        }
    }
    for case in [Poll, PollFree] {
        let batches: &[u32] = if quick { &[1, 32] } else { &[1, 16, 32] };
        plan.extend(batches.iter().map(|&batch| spec(case, batch, 1, 1023)));
    }
    plan.push(spec(EmptyPoll, 1, 1, 1023));
    for case in [Send, SendGather, SendPrepared, SendWr, SendFenced, ReapSend, Message, MessageInBuffer] {
        plan.push(spec(case, 1, 1, 128));
    }
    plan.extend([Send, SendWr].map(|case| spec(case, 32, 1, 128)));
    let of_provider = [EpSend, EpSendInline, EpSendShared, EpPair, EpChain, PoolSend, PoolMessage, EpRecv];
    plan.extend(of_provider.map(|case| spec(case, 1, 1, 128)));
    for &segments in if quick { &[1][..] } else { &[1, 4] } {
        plan.push(spec(DatPost, 1, segments, 1023));
    }
    let of_dat = [DatReap, DatMessage, DatSend, DatReapSend, DatEmpty, DatEmptySends, DatAnswer];
    plan.extend(of_dat.map(|case| spec(case, 1, 1, 1023)));
    plan.extend([DatEpCreate, DatEpFree].map(|case| spec(case, 1, 1, 1023)));
    plan.extend([DatThread, DatFourThreads].map(|case| spec(case, 1, 1, 4095)));
    if !quick {
        plan.extend([
            spec(DatSend, 1, 2, 1023),
            spec(DatPostLmrs, 1, 1, 1023),
            spec(DatPostLmrs, 1, 2, 1023),
            spec(DatPostFourLmrs, 1, 1, 1023),
            spec(DatSendLmrs, 1, 1, 1023),
            spec(DatSendLmrs, 1, 2, 1023),
            spec(DatSendFourLmrs, 1, 1, 1023),
            spec(DatWrite, 1, 1, 1023),
            spec(DatWait, 1, 1, 1023),
            spec(DatRecv, 1, 1, 1023),
            spec(DatRecv, 1, 2, 1023),
            spec(DatRecvLmrs, 1, 1, 1023),
            spec(DatRecvLmrs, 1, 2, 1023),
            spec(DatRecvFourLmrs, 1, 1, 1023),
            spec(DatReapRecv, 1, 1, 1023),
            spec(DatTwoThreads, 1, 1, 4095),
            spec(DatPostCrowd, 1, 1, 1023),
        ]);
    }
    plan
}
