//! Why a queue is not taken over.

/// Why a queue was refused before anything was written to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LayoutError {
    /// The first unposted slot is not slot 0: something was posted through verbs.
    #[error("SRQ head is {head}, not 0: hand the SRQ over before anything is posted to it")]
    HeadNotZero {
        /// The value that the library reported.
        head: u32,
    },
    /// The doorbell record is not 0: something was posted through verbs.
    #[error("SRQ doorbell record is {count}, not 0: hand the SRQ over before anything is posted to it")]
    AlreadyPosted {
        /// The value of the record.
        count: u32,
    },
    /// Ring sizes are powers of two from 2 to 32,768.
    #[error("SRQ ring of {wqe_count} slots: need a power of two from 2 to 32768")]
    WqeCount {
        /// Slots in the ring.
        wqe_count: u32,
    },
    /// The slot size is a power of two of bytes, at least 32.
    #[error("SRQ slot of {stride_bytes} bytes: need a power of two from 32 to 4096")]
    WqeStride {
        /// Bytes from one slot to the next.
        stride_bytes: u32,
    },
    /// SRQ signatures need a checksum in every WQE, which this crate does not write.
    #[error("SRQ signature mode is on: unset MLX5_SRQ_SIGNATURE and create the SRQ again")]
    Signature,
    /// CQ sizes are powers of two up to 2^23.
    #[error("CQ of {cqe_count} entries: need a power of two up to 8388608")]
    CqeCount {
        /// Entries in the CQ.
        cqe_count: u32,
    },
    /// CQ entries are 64 or 128 bytes.
    #[error("CQ entry of {cqe_bytes} bytes: only 64 and 128 are known")]
    CqeBytes {
        /// Bytes of an entry.
        cqe_bytes: u32,
    },
    /// Send queues have a power of two of blocks, up to 32,768.
    #[error("send queue of {block_count} blocks: need a power of two up to 32768")]
    BlockCount {
        /// Blocks in the ring.
        block_count: u32,
    },
    /// Blocks of a send queue have 64 bytes.
    #[error("send queue blocks of {stride_bytes} bytes: only 64 is known")]
    BlockStride {
        /// Bytes from one block to the next.
        stride_bytes: u32,
    },
    /// Receive queues have a power of two of slots, up to 32,768.
    #[error("receive queue of {wqe_count} slots: need a power of two up to 32768")]
    ReceiveWqeCount {
        /// Slots in the ring.
        wqe_count: u32,
    },
    /// The size of a receive slot is a power of two of bytes, at least 16.
    #[error("receive slot of {stride_bytes} bytes: need a power of two from 16 to 4096")]
    ReceiveStride {
        /// Bytes from one slot to the next.
        stride_bytes: u32,
    },
    /// The requested number of requests does not fit the ring.
    #[error("{max_requests} requests in a ring of {block_count}: need 1 to as many")]
    MaxRequests {
        /// Requests posted at a time.
        max_requests: u32,
        /// Blocks or slots in the ring.
        block_count: u32,
    },
    /// A send register has two halves of 256 bytes, or takes 8-byte doorbells only.
    #[error("send register of {register_bytes} bytes: only 256 and 0 are known")]
    RegisterBytes {
        /// Bytes of one half.
        register_bytes: u32,
    },
    /// The send word of the doorbell record is not 0: something was posted through verbs.
    #[error("send doorbell record is {count}, not 0: hand the QP over before anything is posted to it")]
    SendQueueUsed {
        /// The value of the record.
        count: u32,
    },
    /// The receive word of the doorbell record is not 0: something was posted through verbs.
    #[error("receive doorbell record is {count}, not 0: hand the QP over before anything is posted to it")]
    ReceiveQueueUsed {
        /// The value of the record.
        count: u32,
    },
    /// This crate does not drive QPs of this type, or the QP was opened by `ibv_open_qp`.
    #[error("QP type {qp_type}: only RC, UC, UD and XRC send QPs are driven directly")]
    QpType {
        /// `ibv_qp_type`.
        qp_type: u32,
    },
    /// QP signatures need a checksum in every WQE, which this crate does not write.
    #[error("QP signature mode is on: unset MLX5_QP_SIGNATURE and create the QP again")]
    QpSignature,
    /// The QP was created without this queue, or receives from an SRQ.
    #[error("the QP has no {what} queue of its own")]
    NoQueue {
        /// `send` or `receive`.
        what: &'static str,
    },
    /// The queue's memory, or a table that belongs to the queue, cannot be allocated.
    #[error("no memory for the queue")]
    NoMemory,
    /// A pointer is null or does not have the alignment that the device needs.
    #[error("the {what} is null or misaligned")]
    Pointer {
        /// Which pointer.
        what: &'static str,
    },
}

/// The requested depth is not possible.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DepthError {
    /// The depth is more than the ring holds; one slot always stays unposted.
    #[error("depth {asked} is outside 1 to {max}, the ring's limit")]
    OutOfRange {
        /// The requested depth.
        asked: u32,
        /// Slots in the ring, less one.
        max: u32,
    },
    /// The depth is less than the number of slots in use.
    #[error("depth {asked} is below the {in_use} slots in use")]
    BelowInUse {
        /// The requested depth.
        asked: u32,
        /// Slots in use.
        in_use: u32,
    },
    /// The tables that keep track of slots cannot be allocated.
    #[error("no memory for the tables of the SRQ")]
    NoMemory,
    /// The mode can only be chosen while nothing is posted.
    #[error("{in_use} slots are in use: choose the mode before posting")]
    NotIdle {
        /// Slots in use.
        in_use: u32,
    },
}
