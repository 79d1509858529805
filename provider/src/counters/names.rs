//! The counters by name, and what each counts: the one table of it.

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
    /// What is counted of an IA (`DAT_IA_COUNTERS`).
    ///
    /// Connection management is counted as librdmacm reports it. librdmacm does not report events
    /// inside the kernel (retries, duplicates, MRA). The kernel's own counters of the port do, if
    /// the port has them. They count for all processes together, from
    /// [`Ia::start_counters`](crate::Ia::start_counters) with
    /// [`PortCounters::Cm`](crate::PortCounters::Cm) on. The descriptions below mark these counters
    /// as *kernel*, and those of the other two groups as *port* and *device*. They are 0 until they
    /// are started.
    IaCounter {
        /// PZs made.
        PzCreate = DCNT_IA_PZ_CREATE,
        /// PZs freed, dropped ones included; so for all objects.
        PzFree = DCNT_IA_PZ_FREE,
        /// LMRs made.
        LmrCreate = DCNT_IA_LMR_CREATE,
        /// LMRs freed.
        LmrFree = DCNT_IA_LMR_FREE,
        /// RMRs made.
        RmrCreate = DCNT_IA_RMR_CREATE,
        /// RMRs freed.
        RmrFree = DCNT_IA_RMR_FREE,
        /// PSPs made at a given qualifier.
        PspCreate = DCNT_IA_PSP_CREATE,
        /// PSPs made at any qualifier that was free.
        PspCreateAny = DCNT_IA_PSP_CREATE_ANY,
        /// PSPs freed.
        PspFree = DCNT_IA_PSP_FREE,
        /// RSPs made. CSPs have no counters but [`CmListen`](Self::CmListen).
        RspCreate = DCNT_IA_RSP_CREATE,
        /// RSPs freed.
        RspFree = DCNT_IA_RSP_FREE,
        /// EVDs made, without those that the IA makes for itself.
        EvdCreate = DCNT_IA_EVD_CREATE,
        /// EVDs freed.
        EvdFree = DCNT_IA_EVD_FREE,
        /// EPs made, also by the provider for a request.
        EpCreate = DCNT_IA_EP_CREATE,
        /// EPs freed.
        EpFree = DCNT_IA_EP_FREE,
        /// SRQs made.
        SrqCreate = DCNT_IA_SRQ_CREATE,
        /// SRQs freed.
        SrqFree = DCNT_IA_SRQ_FREE,
        /// Connection requests that became events of service points, handed over ones at each.
        SpCr = DCNT_IA_SP_CR,
        /// Requests accepted.
        SpCrAccepted = DCNT_IA_SP_CR_ACCEPTED,
        /// Requests that the consumer rejected.
        SpCrRejected = DCNT_IA_SP_CR_REJECTED,
        /// Always 0: memory of the provider's own is not counted.
        MemAlloc = DCNT_IA_MEM_ALLOC,
        /// Always 0, as [`MemAlloc`](Self::MemAlloc).
        MemAllocData = DCNT_IA_MEM_ALLOC_DATA,
        /// Always 0, as [`MemAlloc`](Self::MemAlloc).
        MemFree = DCNT_IA_MEM_FREE,
        /// Errors that the device reported of itself, its port or an SRQ.
        AsyncError = DCNT_IA_ASYNC_ERROR,
        /// Errors that the device reported of a QP.
        AsyncQpError = DCNT_IA_ASYNC_QP_ERROR,
        /// Errors that the device reported of a CQ.
        AsyncCqError = DCNT_IA_ASYNC_CQ_ERROR,
        /// Listeners made for PSPs, RSPs and CSPs.
        CmListen = DCNT_IA_CM_LISTEN,
        /// Requests to connect sent.
        CmReqTx = DCNT_IA_CM_REQ_TX,
        /// Requests to connect received.
        CmReqRx = DCNT_IA_CM_REQ_RX,
        /// Replies sent: accepts.
        CmRepTx = DCNT_IA_CM_REP_TX,
        /// Replies received.
        CmRepRx = DCNT_IA_CM_REP_RX,
        /// Confirmations sent.
        CmRtuTx = DCNT_IA_CM_RTU_TX,
        /// Confirmations received; the first message stands for one that is late.
        CmRtuRx = DCNT_IA_CM_RTU_RX,
        /// Rejects sent at the consumer's wish.
        CmUserRejTx = DCNT_IA_CM_USER_REJ_TX,
        /// Rejects received that the peer's consumer wished.
        CmUserRejRx = DCNT_IA_CM_USER_REJ_RX,
        /// Connections that came up at the side that asked.
        CmActiveEst = DCNT_IA_CM_ACTIVE_EST,
        /// Connections that came up at the side that accepted.
        CmPassiveEst = DCNT_IA_CM_PASSIVE_EST,
        /// Requests for an address handle sent (UD).
        CmAhReqTx = DCNT_IA_CM_AH_REQ_TX,
        /// Requests for an address handle received (UD), each time that they come.
        CmAhReqRx = DCNT_IA_CM_AH_REQ_RX,
        /// Address handles found out (UD), by either side.
        CmAhResolved = DCNT_IA_CM_AH_RESOLVED,
        /// Disconnect requests sent.
        CmDreqTx = DCNT_IA_CM_DREQ_TX,
        /// Disconnects that the peer began.
        CmDreqRx = DCNT_IA_CM_DREQ_RX,
        /// Answers to disconnect requests sent.
        CmDrepTx = DCNT_IA_CM_DREP_TX,
        /// Answers to disconnect requests received.
        CmDrepRx = DCNT_IA_CM_DREP_RX,
        /// Kernel: "wait" messages sent.
        CmMraTx = DCNT_IA_CM_MRA_TX,
        /// Kernel: "wait" messages received.
        CmMraRx = DCNT_IA_CM_MRA_RX,
        /// Always 0: of libdaplofa's own connection manager.
        CmReqFullqPoll = DCNT_IA_CM_REQ_FULLQ_POLL,
        /// Set-ups that failed for a reason that no counter below names.
        CmErr = DCNT_IA_CM_ERR,
        /// Always 0, as [`CmReqFullqPoll`](Self::CmReqFullqPoll).
        CmErrReqFullq = DCNT_IA_CM_ERR_REQ_FULLQ,
        /// Kernel: requests received again.
        CmErrReqDup = DCNT_IA_CM_ERR_REQ_DUP,
        /// Kernel: requests sent again.
        CmErrReqRetry = DCNT_IA_CM_ERR_REQ_RETRY,
        /// Kernel: replies received again.
        CmErrRepDup = DCNT_IA_CM_ERR_REP_DUP,
        /// Kernel: replies sent again.
        CmErrRepRetry = DCNT_IA_CM_ERR_REP_RETRY,
        /// Kernel: confirmations received again.
        CmErrRtuDup = DCNT_IA_CM_ERR_RTU_DUP,
        /// Kernel: confirmations sent again.
        CmErrRtuRetry = DCNT_IA_CM_ERR_RTU_RETRY,
        /// Requests rejected since nobody listens there, or not for this.
        CmErrRefused = DCNT_IA_CM_ERR_REFUSED,
        /// Connections that broke.
        CmErrReset = DCNT_IA_CM_ERR_RESET,
        /// Set-ups without an answer in time.
        CmErrTimeout = DCNT_IA_CM_ERR_TIMEOUT,
        /// Rejects that the provider sent on its own: no EP was left, or nobody took the request.
        CmErrRejTx = DCNT_IA_CM_ERR_REJ_TX,
        /// Rejects that neither the peer's consumer wished nor [`CmErrRefused`](Self::CmErrRefused)
        /// counts.
        CmErrRejRx = DCNT_IA_CM_ERR_REJ_RX,
        /// Kernel: disconnect requests received again.
        CmErrDreqDup = DCNT_IA_CM_ERR_DREQ_DUP,
        /// Kernel: disconnect requests sent again.
        CmErrDreqRetry = DCNT_IA_CM_ERR_DREQ_RETRY,
        /// Kernel: answers to disconnect requests received again.
        CmErrDrepDup = DCNT_IA_CM_ERR_DREP_DUP,
        /// Kernel: answers to disconnect requests sent again.
        CmErrDrepRetry = DCNT_IA_CM_ERR_DREP_RETRY,
        /// Kernel: "wait" messages received again.
        CmErrMraDup = DCNT_IA_CM_ERR_MRA_DUP,
        /// Kernel: "wait" messages sent again.
        CmErrMraRetry = DCNT_IA_CM_ERR_MRA_RETRY,
        /// Events of the connection manager that nobody waited for.
        CmErrUnexpected = DCNT_IA_CM_ERR_UNEXPECTED,
        /// Port: packets received with errors. This and the next eight:
        /// [`PortCounters::Link`](crate::PortCounters::Link).
        LnkErrRcv = DCNT_IA_LNK_ERR_RCV,
        /// Port: packets received marked bad by a switch or a peer.
        LnkErrRcvRemPhys = DCNT_IA_LNK_ERR_RCV_REM_PHYS,
        /// Port: packets received and discarded by a partition or raw filter.
        LnkErrRcvConstraint = DCNT_IA_LNK_ERR_RCV_CONSTRAINT,
        /// Port: packets to send discarded since the port is down or congested.
        LnkErrXmtDiscards = DCNT_IA_LNK_ERR_XMT_DISCARDS,
        /// Port: packets to send discarded by a partition or raw filter.
        LnkErrXmtConstraint = DCNT_IA_LNK_ERR_XMT_CONTRAINT,
        /// Port: times that too many local physical errors came.
        LnkErrIntegrity = DCNT_IA_LNK_ERR_INTEGRITY,
        /// Port: buffer overruns in a row.
        LnkErrExcBufOverrun = DCNT_IA_LNK_ERR_EXC_BUF_OVERRUN,
        /// Port: packets received that a switch could not relay.
        LnkWarnRcvSwRelay = DCNT_IA_LNK_WARN_RCV_SW_RELAY,
        /// Port: ticks with something to send and no credits.
        LnkWarnXmtWait = DCNT_IA_LNK_WARN_XMT_WAIT,
        /// Device, as responder: remote access errors. This and the next eight:
        /// [`PortCounters::Diag`](crate::PortCounters::Diag).
        DiagErrRqRae = DCNT_IA_DIAG_ERR_RQ_RAE,
        /// Device, as responder: packets out of sequence.
        DiagErrRqOos = DCNT_IA_DIAG_ERR_RQ_OOS,
        /// Device, as responder: invalid requests.
        DiagErrRqRire = DCNT_IA_DIAG_ERR_RQ_RIRE,
        /// Device, as responder: datagrams dropped for want of a receive.
        DiagErrRqUdsdprd = DCNT_IA_DIAG_ERR_RQ_UDSDPRD,
        /// Device, as requester: remote access errors.
        DiagErrSqRae = DCNT_IA_DIAG_ERR_SQ_RAE,
        /// Device, as requester: "out of sequence" heard from responders.
        DiagErrSqOos = DCNT_IA_DIAG_ERR_SQ_OOS,
        /// Device, as requester: invalid requests, as responders said.
        DiagErrSqRire = DCNT_IA_DIAG_ERR_SQ_RIRE,
        /// Device, as requester: retries used up where the peer had no receive.
        DiagErrSqRree = DCNT_IA_DIAG_ERR_SQ_RREE,
        /// Device, as requester: retries used up without an answer.
        DiagErrSqTree = DCNT_IA_DIAG_ERR_SQ_TREE,
    }
}

counters! {
    /// What is counted of an EP (`DAT_EP_COUNTERS`). Buffers posted to an SRQ are no EP's; messages
    /// that it takes from there are.
    EpCounter {
        /// Attempts to connect, or to find out an address handle, that this EP began.
        Connect = DCNT_EP_CONNECT,
        /// Disconnects that the consumer called for and that were not refused.
        Disconnect = DCNT_EP_DISCONNECT,
        /// Sends posted.
        PostSend = DCNT_EP_POST_SEND,
        /// Their bytes.
        PostSendData = DCNT_EP_POST_SEND_DATA,
        /// Datagrams posted (UD).
        PostSendUd = DCNT_EP_POST_SEND_UD,
        /// Their bytes.
        PostSendUdData = DCNT_EP_POST_SEND_UD_DATA,
        /// Receives posted to the EP itself.
        PostRecv = DCNT_EP_POST_RECV,
        /// The bytes that they have room for.
        PostRecvData = DCNT_EP_POST_RECV_DATA,
        /// RDMA Writes posted.
        PostWrite = DCNT_EP_POST_WRITE,
        /// Their bytes.
        PostWriteData = DCNT_EP_POST_WRITE_DATA,
        /// RDMA Writes with immediate posted.
        PostWriteImm = DCNT_EP_POST_WRITE_IMM,
        /// Their bytes.
        PostWriteImmData = DCNT_EP_POST_WRITE_IMM_DATA,
        /// RDMA Reads posted.
        PostRead = DCNT_EP_POST_READ,
        /// Their bytes.
        PostReadData = DCNT_EP_POST_READ_DATA,
        /// Compare and swaps posted.
        PostCmpSwap = DCNT_EP_POST_CMP_SWAP,
        /// Fetch and adds posted.
        PostFetchAdd = DCNT_EP_POST_FETCH_ADD,
        /// Messages received, without those below.
        Recv = DCNT_EP_RECV,
        /// Their bytes.
        RecvData = DCNT_EP_RECV_DATA,
        /// Datagrams received (UD).
        RecvUd = DCNT_EP_RECV_UD,
        /// Their bytes, with the 40 in front of each.
        RecvUdData = DCNT_EP_RECV_UD_DATA,
        /// Messages received with immediate data.
        RecvImm = DCNT_EP_RECV_IMM,
        /// Their bytes.
        RecvImmData = DCNT_EP_RECV_IMM_DATA,
        /// Receives that an RDMA Write with immediate took.
        RecvRdmaImm = DCNT_EP_RECV_RDMA_IMM,
        /// The bytes written with them.
        RecvRdmaImmData = DCNT_EP_RECV_RDMA_IMM_DATA,
    }
}

counters! {
    /// What is counted of an EVD (`DAT_EVD_COUNTERS`). Calls that are refused count nothing.
    EvdCounter {
        /// Waits.
        Wait = DCNT_EVD_WAIT,
        /// Times that a wait put its thread to sleep.
        WaitBlocked = DCNT_EVD_WAIT_BLOCKED,
        /// Times that a wait asked the device to notify.
        WaitNotify = DCNT_EVD_WAIT_NOTIFY,
        /// Dequeues: those that found an event and those that found none.
        Dequeue = DCNT_EVD_DEQUEUE,
        /// Dequeues that found an event in the EVD's own queue.
        DequeueFound = DCNT_EVD_DEQUEUE_FOUND,
        /// Dequeues that found no event.
        DequeueNotFound = DCNT_EVD_DEQUEUE_NOT_FOUND,
        /// Dequeues that looked into the CQ, since the EVD's own queue was empty.
        DequeuePoll = DCNT_EVD_DEQUEUE_POLL,
        /// Those of them that found an event there.
        DequeuePollFound = DCNT_EVD_DEQUEUE_POLL_FOUND,
        /// Connection events that arrived.
        ConnCallback = DCNT_EVD_CONN_CALLBACK,
        /// Notifications of the device that arrived for a wait or a CNO.
        DtoCallback = DCNT_EVD_DTO_CALLBACK,
    }
}
