//! The names of the counters, and what each of them counts.

use super::{Counter, sealed::Sealed};

macro_rules! counters {
    ($(#[$doc:meta])* $name:ident { $($(#[$what:meta])* $variant:ident = $c:ident,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(usize)]
        pub enum $name {
            $($(#[$what])* $variant,)*
        }

        impl Sealed for $name {}

        impl Counter for $name {
            const ALL: &'static [Self] = &[$(Self::$variant,)*];

            fn index(self) -> usize {
                self as usize
            }

            fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => stringify!($c),)*
                }
            }
        }
    };
}

counters! {
    /// The counters of an IA (`DAT_IA_COUNTERS`).
    ///
    /// Connection management is counted as librdmacm reports it. librdmacm does not report events
    /// inside the kernel (retries, duplicates, MRA). The kernel's own counters of the port do, if
    /// the port has them. They count for all processes together, from
    /// [`Ia::start_counters`](crate::Ia::start_counters) with
    /// [`PortCounters::Cm`](crate::PortCounters::Cm) on. The descriptions below mark these counters
    /// as *kernel*, and those of the other two groups as *port* and *device*. They are 0 until they
    /// are started.
    IaCounter {
        /// PZs created.
        PzCreate = DCNT_IA_PZ_CREATE,
        /// PZs freed, including dropped ones; likewise for all objects below.
        PzFree = DCNT_IA_PZ_FREE,
        /// LMRs created.
        LmrCreate = DCNT_IA_LMR_CREATE,
        /// LMRs freed.
        LmrFree = DCNT_IA_LMR_FREE,
        /// RMRs created.
        RmrCreate = DCNT_IA_RMR_CREATE,
        /// RMRs freed.
        RmrFree = DCNT_IA_RMR_FREE,
        /// PSPs created at a given qualifier.
        PspCreate = DCNT_IA_PSP_CREATE,
        /// PSPs created at any free qualifier.
        PspCreateAny = DCNT_IA_PSP_CREATE_ANY,
        /// PSPs freed.
        PspFree = DCNT_IA_PSP_FREE,
        /// RSPs created. CSPs have no counters except [`CmListen`](Self::CmListen).
        RspCreate = DCNT_IA_RSP_CREATE,
        /// RSPs freed.
        RspFree = DCNT_IA_RSP_FREE,
        /// EVDs created, without those that the IA creates for itself.
        EvdCreate = DCNT_IA_EVD_CREATE,
        /// EVDs freed.
        EvdFree = DCNT_IA_EVD_FREE,
        /// EPs created, including those that the provider creates for requests.
        EpCreate = DCNT_IA_EP_CREATE,
        /// EPs freed.
        EpFree = DCNT_IA_EP_FREE,
        /// SRQs created.
        SrqCreate = DCNT_IA_SRQ_CREATE,
        /// SRQs freed.
        SrqFree = DCNT_IA_SRQ_FREE,
        /// Connection requests reported by service points. A request that is handed off counts at
        /// each.
        SpCr = DCNT_IA_SP_CR,
        /// Requests accepted.
        SpCrAccepted = DCNT_IA_SP_CR_ACCEPTED,
        /// Requests that the consumer rejected.
        SpCrRejected = DCNT_IA_SP_CR_REJECTED,
        /// Always 0: memory of the provider itself is not counted.
        MemAlloc = DCNT_IA_MEM_ALLOC,
        /// Always 0, as [`MemAlloc`](Self::MemAlloc).
        MemAllocData = DCNT_IA_MEM_ALLOC_DATA,
        /// Always 0, as [`MemAlloc`](Self::MemAlloc).
        MemFree = DCNT_IA_MEM_FREE,
        /// Errors that the device reported about itself, its port or an SRQ.
        AsyncError = DCNT_IA_ASYNC_ERROR,
        /// Errors that the device reported about a QP.
        AsyncQpError = DCNT_IA_ASYNC_QP_ERROR,
        /// Errors that the device reported about a CQ.
        AsyncCqError = DCNT_IA_ASYNC_CQ_ERROR,
        /// Listeners created for PSPs, RSPs and CSPs.
        CmListen = DCNT_IA_CM_LISTEN,
        /// Connect requests sent.
        CmReqTx = DCNT_IA_CM_REQ_TX,
        /// Connect requests received.
        CmReqRx = DCNT_IA_CM_REQ_RX,
        /// Replies sent, that is, accepts.
        CmRepTx = DCNT_IA_CM_REP_TX,
        /// Replies received.
        CmRepRx = DCNT_IA_CM_REP_RX,
        /// Confirmations sent.
        CmRtuTx = DCNT_IA_CM_RTU_TX,
        /// Confirmations received. The first message counts instead of a confirmation that is late.
        CmRtuRx = DCNT_IA_CM_RTU_RX,
        /// Rejects sent because the consumer rejected the request.
        CmUserRejTx = DCNT_IA_CM_USER_REJ_TX,
        /// Rejects received because the peer's consumer rejected the request.
        CmUserRejRx = DCNT_IA_CM_USER_REJ_RX,
        /// Connections established at the side that connected.
        CmActiveEst = DCNT_IA_CM_ACTIVE_EST,
        /// Connections that came up at the side that accepted.
        CmPassiveEst = DCNT_IA_CM_PASSIVE_EST,
        /// Requests for an address handle sent (UD).
        CmAhReqTx = DCNT_IA_CM_AH_REQ_TX,
        /// Requests for an address handle received (UD), repetitions included.
        CmAhReqRx = DCNT_IA_CM_AH_REQ_RX,
        /// Address handles resolved (UD), at either side.
        CmAhResolved = DCNT_IA_CM_AH_RESOLVED,
        /// Disconnect requests sent.
        CmDreqTx = DCNT_IA_CM_DREQ_TX,
        /// Disconnects that the peer started.
        CmDreqRx = DCNT_IA_CM_DREQ_RX,
        /// Answers to disconnect requests sent.
        CmDrepTx = DCNT_IA_CM_DREP_TX,
        /// Answers to disconnect requests received.
        CmDrepRx = DCNT_IA_CM_DREP_RX,
        /// Kernel: MRA ("wait") messages sent.
        CmMraTx = DCNT_IA_CM_MRA_TX,
        /// Kernel: MRA ("wait") messages received.
        CmMraRx = DCNT_IA_CM_MRA_RX,
        /// Always 0: it belongs to libdaplofa's own connection manager.
        CmReqFullqPoll = DCNT_IA_CM_REQ_FULLQ_POLL,
        /// Connection setups that failed for a reason that no counter below has.
        CmErr = DCNT_IA_CM_ERR,
        /// Always 0, as [`CmReqFullqPoll`](Self::CmReqFullqPoll).
        CmErrReqFullq = DCNT_IA_CM_ERR_REQ_FULLQ,
        /// Kernel: repeated requests received.
        CmErrReqDup = DCNT_IA_CM_ERR_REQ_DUP,
        /// Kernel: requests sent again.
        CmErrReqRetry = DCNT_IA_CM_ERR_REQ_RETRY,
        /// Kernel: repeated replies received.
        CmErrRepDup = DCNT_IA_CM_ERR_REP_DUP,
        /// Kernel: replies sent again.
        CmErrRepRetry = DCNT_IA_CM_ERR_REP_RETRY,
        /// Kernel: repeated confirmations received.
        CmErrRtuDup = DCNT_IA_CM_ERR_RTU_DUP,
        /// Kernel: confirmations sent again.
        CmErrRtuRetry = DCNT_IA_CM_ERR_RTU_RETRY,
        /// Requests rejected because nothing listens there, or nothing for this service.
        CmErrRefused = DCNT_IA_CM_ERR_REFUSED,
        /// Connections that broke.
        CmErrReset = DCNT_IA_CM_ERR_RESET,
        /// Connection setups that got no answer in time.
        CmErrTimeout = DCNT_IA_CM_ERR_TIMEOUT,
        /// Rejects that the provider itself sent: it had no EP for the request, or no service point
        /// took it.
        CmErrRejTx = DCNT_IA_CM_ERR_REJ_TX,
        /// Rejects received for any other reason than a reject by the peer's consumer and those of
        /// [`CmErrRefused`](Self::CmErrRefused).
        CmErrRejRx = DCNT_IA_CM_ERR_REJ_RX,
        /// Kernel: repeated disconnect requests received.
        CmErrDreqDup = DCNT_IA_CM_ERR_DREQ_DUP,
        /// Kernel: disconnect requests sent again.
        CmErrDreqRetry = DCNT_IA_CM_ERR_DREQ_RETRY,
        /// Kernel: repeated answers to disconnect requests received.
        CmErrDrepDup = DCNT_IA_CM_ERR_DREP_DUP,
        /// Kernel: answers to disconnect requests sent again.
        CmErrDrepRetry = DCNT_IA_CM_ERR_DREP_RETRY,
        /// Kernel: repeated MRA messages received.
        CmErrMraDup = DCNT_IA_CM_ERR_MRA_DUP,
        /// Kernel: MRA messages sent again.
        CmErrMraRetry = DCNT_IA_CM_ERR_MRA_RETRY,
        /// Events of the connection manager for connections that are gone.
        CmErrUnexpected = DCNT_IA_CM_ERR_UNEXPECTED,
        /// Port: packets received with errors. This counter and the next eight belong to
        /// [`PortCounters::Link`](crate::PortCounters::Link).
        LnkErrRcv = DCNT_IA_LNK_ERR_RCV,
        /// Port: packets received that a switch or a peer had marked as bad.
        LnkErrRcvRemPhys = DCNT_IA_LNK_ERR_RCV_REM_PHYS,
        /// Port: packets received and discarded by a partition or raw filter.
        LnkErrRcvConstraint = DCNT_IA_LNK_ERR_RCV_CONSTRAINT,
        /// Port: outgoing packets discarded because the port is down or congested.
        LnkErrXmtDiscards = DCNT_IA_LNK_ERR_XMT_DISCARDS,
        /// Port: outgoing packets discarded by a partition or raw filter.
        LnkErrXmtConstraint = DCNT_IA_LNK_ERR_XMT_CONTRAINT,
        /// Port: how often too many local physical errors occurred.
        LnkErrIntegrity = DCNT_IA_LNK_ERR_INTEGRITY,
        /// Port: consecutive buffer overruns.
        LnkErrExcBufOverrun = DCNT_IA_LNK_ERR_EXC_BUF_OVERRUN,
        /// Port: packets received that a switch could not relay.
        LnkWarnRcvSwRelay = DCNT_IA_LNK_WARN_RCV_SW_RELAY,
        /// Port: ticks with data to send and no credits.
        LnkWarnXmtWait = DCNT_IA_LNK_WARN_XMT_WAIT,
        /// Device, as responder: remote access errors. This counter and the next eight belong to
        /// [`PortCounters::Diag`](crate::PortCounters::Diag).
        DiagErrRqRae = DCNT_IA_DIAG_ERR_RQ_RAE,
        /// Device, as responder: packets out of sequence.
        DiagErrRqOos = DCNT_IA_DIAG_ERR_RQ_OOS,
        /// Device, as responder: invalid requests.
        DiagErrRqRire = DCNT_IA_DIAG_ERR_RQ_RIRE,
        /// Device, as responder: datagrams dropped because no receive was posted.
        DiagErrRqUdsdprd = DCNT_IA_DIAG_ERR_RQ_UDSDPRD,
        /// Device, as requester: remote access errors.
        DiagErrSqRae = DCNT_IA_DIAG_ERR_SQ_RAE,
        /// Device, as requester: "out of sequence" reported by responders.
        DiagErrSqOos = DCNT_IA_DIAG_ERR_SQ_OOS,
        /// Device, as requester: invalid requests reported by responders.
        DiagErrSqRire = DCNT_IA_DIAG_ERR_SQ_RIRE,
        /// Device, as requester: requests failed after all retries because the peer had no receive
        /// posted.
        DiagErrSqRree = DCNT_IA_DIAG_ERR_SQ_RREE,
        /// Device, as requester: requests failed after all retries without an answer.
        DiagErrSqTree = DCNT_IA_DIAG_ERR_SQ_TREE,
    }
}

counters! {
    /// The counters of an EP (`DAT_EP_COUNTERS`). Buffers posted to an SRQ count at no EP; the
    /// messages that an EP receives into them do.
    EpCounter {
        /// Attempts to connect, or to resolve an address handle, that this EP started.
        Connect = DCNT_EP_CONNECT,
        /// Disconnects by the consumer that were not refused.
        Disconnect = DCNT_EP_DISCONNECT,
        /// Sends posted.
        PostSend = DCNT_EP_POST_SEND,
        /// The bytes of these sends.
        PostSendData = DCNT_EP_POST_SEND_DATA,
        /// Datagrams posted (UD).
        PostSendUd = DCNT_EP_POST_SEND_UD,
        /// The bytes of these datagrams.
        PostSendUdData = DCNT_EP_POST_SEND_UD_DATA,
        /// Receives posted to the EP itself.
        PostRecv = DCNT_EP_POST_RECV,
        /// The lengths of these receives, in bytes.
        PostRecvData = DCNT_EP_POST_RECV_DATA,
        /// RDMA Writes posted.
        PostWrite = DCNT_EP_POST_WRITE,
        /// The bytes of these writes.
        PostWriteData = DCNT_EP_POST_WRITE_DATA,
        /// RDMA Writes with immediate posted.
        PostWriteImm = DCNT_EP_POST_WRITE_IMM,
        /// The bytes of these writes.
        PostWriteImmData = DCNT_EP_POST_WRITE_IMM_DATA,
        /// RDMA Reads posted.
        PostRead = DCNT_EP_POST_READ,
        /// The bytes of these reads.
        PostReadData = DCNT_EP_POST_READ_DATA,
        /// Compare and swaps posted.
        PostCmpSwap = DCNT_EP_POST_CMP_SWAP,
        /// Fetch and adds posted.
        PostFetchAdd = DCNT_EP_POST_FETCH_ADD,
        /// Messages received, without those of the counters below.
        Recv = DCNT_EP_RECV,
        /// The bytes of these messages.
        RecvData = DCNT_EP_RECV_DATA,
        /// Datagrams received (UD).
        RecvUd = DCNT_EP_RECV_UD,
        /// The bytes of these datagrams, including the 40 bytes before each payload.
        RecvUdData = DCNT_EP_RECV_UD_DATA,
        /// Messages received with immediate data.
        RecvImm = DCNT_EP_RECV_IMM,
        /// The bytes of these messages.
        RecvImmData = DCNT_EP_RECV_IMM_DATA,
        /// Receives taken by an RDMA Write with immediate data.
        RecvRdmaImm = DCNT_EP_RECV_RDMA_IMM,
        /// The bytes written by them.
        RecvRdmaImmData = DCNT_EP_RECV_RDMA_IMM_DATA,
    }
}

counters! {
    /// The counters of an EVD (`DAT_EVD_COUNTERS`). Refused calls are not counted.
    EvdCounter {
        /// Waits.
        Wait = DCNT_EVD_WAIT,
        /// How often a wait put its thread to sleep.
        WaitBlocked = DCNT_EVD_WAIT_BLOCKED,
        /// How often a wait asked the device for a notification.
        WaitNotify = DCNT_EVD_WAIT_NOTIFY,
        /// Dequeues, with or without an event.
        Dequeue = DCNT_EVD_DEQUEUE,
        /// Dequeues that found an event in the EVD's own queue.
        DequeueFound = DCNT_EVD_DEQUEUE_FOUND,
        /// Dequeues that found no event.
        DequeueNotFound = DCNT_EVD_DEQUEUE_NOT_FOUND,
        /// Dequeues that polled the CQ because the EVD's own queue was empty.
        DequeuePoll = DCNT_EVD_DEQUEUE_POLL,
        /// Those dequeues among them that found an event in the CQ.
        DequeuePollFound = DCNT_EVD_DEQUEUE_POLL_FOUND,
        /// Connection events queued.
        ConnCallback = DCNT_EVD_CONN_CALLBACK,
        /// Notifications of the device for a wait or a CNO.
        DtoCallback = DCNT_EVD_DTO_CALLBACK,
    }
}
