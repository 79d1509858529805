/* DAT 2.0: the extension for InfiniBand and RoCE. Include <dat2/udat.h> before it. */
#ifndef _DAT_IB_EXTENSIONS_H_
#define _DAT_IB_EXTENSIONS_H_

#ifdef __cplusplus
extern "C" {
#endif

/* The extension_version of an IA. */
#define DAT_IB_EXTENSION_VERSION 209

/* Attributes of a provider: names, with the value "TRUE" where the provider has it. */
#define DAT_IB_ATTR_COUNTERS "DAT_COUNTERS"
#define DAT_IB_ATTR_FETCH_AND_ADD "DAT_IB_FETCH_AND_ADD"
#define DAT_IB_ATTR_CMP_AND_SWAP "DAT_IB_CMP_AND_SWAP"
#define DAT_IB_ATTR_IMMED_DATA "DAT_IB_IMMED_DATA"
#define DAT_IB_ATTR_UD "DAT_IB_UD"

/* Of collective operations, whose calls are in dat_ib_collectives.h. */
typedef DAT_HANDLE DAT_IB_COLLECTIVE_HANDLE;

typedef enum dat_ib_event_number {
    DAT_IB_DTO_EVENT = DAT_IB_EXTENSION_RANGE_BASE, /* of a post of this extension */
    DAT_IB_UD_CONNECTION_REQUEST_EVENT,
    DAT_IB_UD_CONNECTION_EVENT_ESTABLISHED,
    DAT_IB_UD_CONNECTION_REJECT_EVENT,
    DAT_IB_UD_CONNECTION_ERROR_EVENT,
    DAT_IB_COLLECTIVE_EVENT
} DAT_IB_EVENT_NUMBER;

/* Operations of dat_extension_op. */
typedef enum dat_ib_op {
    DAT_IB_FETCH_AND_ADD_OP,
    DAT_IB_CMP_AND_SWAP_OP,
    DAT_IB_RDMA_WRITE_IMMED_OP,
    DAT_IB_UD_SEND_OP,
    DAT_IB_QUERY_COUNTERS_OP,
    DAT_IB_PRINT_COUNTERS_OP,
    DAT_IB_COLLECTIVE_CREATE_MEMBER_OP,
    DAT_IB_COLLECTIVE_FREE_MEMBER_OP,
    DAT_IB_COLLECTIVE_CREATE_GROUP_OP,
    DAT_IB_COLLECTIVE_FREE_GROUP_OP,
    DAT_IB_COLLECTIVE_SET_CLOCK_OP,
    DAT_IB_COLLECTIVE_READ_CLOCK_OP,
    DAT_IB_COLLECTIVE_SCATTER_OP,
    DAT_IB_COLLECTIVE_SCATTERV_OP,
    DAT_IB_COLLECTIVE_GATHER_OP,
    DAT_IB_COLLECTIVE_GATHERV_OP,
    DAT_IB_COLLECTIVE_ALLGATHER_OP,
    DAT_IB_COLLECTIVE_ALLGATHERV_OP,
    DAT_IB_COLLECTIVE_ALLTOALL_OP,
    DAT_IB_COLLECTIVE_ALLTOALLV_OP,
    DAT_IB_COLLECTIVE_REDUCE_OP,
    DAT_IB_COLLECTIVE_ALLREDUCE_OP,
    DAT_IB_COLLECTIVE_REDUCE_SCATTER_OP,
    DAT_IB_COLLECTIVE_SCAN_OP,
    DAT_IB_COLLECTIVE_BROADCAST_OP,
    DAT_IB_COLLECTIVE_BARRIER_OP,
    DAT_IB_START_COUNTERS_OP,
    DAT_IB_STOP_COUNTERS_OP,
    DAT_IB_UD_CM_FREE_OP,
    DAT_IB_UD_AH_FREE_OP,
    DAT_IB_OPEN_QUERY_OP = DAT_OPEN_EXTENSION_BASE,
    DAT_IB_CLOSE_QUERY_OP = DAT_CLOSE_EXTENSION_BASE
} DAT_IB_OP;

/* What event_extension_data is about. */
typedef enum dat_ib_ext_type {
    DAT_IB_FETCH_AND_ADD,
    DAT_IB_CMP_AND_SWAP,
    DAT_IB_RDMA_WRITE_IMMED,      /* at the writer */
    DAT_IB_RDMA_WRITE_IMMED_DATA, /* at its peer */
    DAT_IB_RECV_IMMED_DATA,       /* a send with immediate data */
    DAT_IB_UD_CONNECT_REQUEST,
    DAT_IB_UD_REMOTE_AH,
    DAT_IB_UD_PASSIVE_REMOTE_AH,
    DAT_IB_UD_SEND,
    DAT_IB_UD_RECV,
    DAT_IB_UD_CONNECT_REJECT,
    DAT_IB_UD_CONNECT_ERROR,
    DAT_IB_COLLECTIVE_CREATE_STATUS,
    DAT_IB_COLLECTIVE_CREATE_DATA,
    DAT_IB_COLLECTIVE_CLOCK_SET_STATUS,
    DAT_IB_COLLECTIVE_SCATTER_STATUS,
    DAT_IB_COLLECTIVE_SCATTERV_STATUS,
    DAT_IB_COLLECTIVE_GATHER_STATUS,
    DAT_IB_COLLECTIVE_GATHERV_STATUS,
    DAT_IB_COLLECTIVE_ALLGATHER_STATUS,
    DAT_IB_COLLECTIVE_ALLGATHERV_STATUS,
    DAT_IB_COLLECTIVE_ALLTOALL_STATUS,
    DAT_IB_COLLECTIVE_ALLTOALLV_STATUS,
    DAT_IB_COLLECTIVE_REDUCE_STATUS,
    DAT_IB_COLLECTIVE_ALLREDUCE_STATUS,
    DAT_IB_COLLECTIVE_REDUCE_SCATTER_STATUS,
    DAT_IB_COLLECTIVE_SCAN_STATUS,
    DAT_IB_COLLECTIVE_BROADCAST_STATUS,
    DAT_IB_COLLECTIVE_BARRIER_STATUS
} DAT_IB_EXT_TYPE;

typedef enum dat_ib_status {
    DAT_OP_SUCCESS = DAT_SUCCESS,
    DAT_IB_OP_ERR,
    DAT_IB_COLL_COMP_ERR
} DAT_IB_STATUS;

typedef enum dat_ib_return {
    DAT_IB_ERR = DAT_EXTENSION_BASE,
    DAT_IB_COLLECTIVE_ERR
} DAT_IB_RETURN;

/* Operations of DTO events, after those of dat_dtos. */
typedef enum dat_ib_dtos {
    DAT_IB_DTO_RDMA_WRITE_IMMED = DAT_DTO_EXTENSION_BASE,
    DAT_IB_DTO_RECV_IMMED,
    DAT_IB_DTO_FETCH_ADD,
    DAT_IB_DTO_CMP_SWAP,
    DAT_IB_DTO_RECV_MSG_IMMED,
    DAT_IB_DTO_SEND_UD,
    DAT_IB_DTO_RECV_UD,
    DAT_IB_DTO_RECV_UD_IMMED,
    DAT_IB_DTO_COLLECTIVES
} DAT_IB_DTOS;

typedef enum dat_ib_handle_type {
    DAT_IB_HANDLE_TYPE_EXT = DAT_HANDLE_TYPE_EXTENSION_BASE,
    DAT_IB_HANDLE_TYPE_COLLECTIVE
} DAT_IB_HANDLE_TYPE;

typedef enum dat_ib_evd_extension_flags {
    DAT_IB_EVD_EXTENSION_FLAG = DAT_EVD_EXTENSION_BASE
} DAT_IB_EVD_EXTENSION_FLAGS;

typedef enum dat_ib_mem_priv_flags {
    DAT_IB_MEM_PRIV_REMOTE_ATOMIC = DAT_MEM_PRIV_EXTENSION_BASE
} DAT_IB_MEM_PRIV_FLAGS;

typedef enum dat_ib_service_type {
    DAT_IB_SERVICE_TYPE_UD = DAT_SERVICE_TYPE_EXTENSION_BASE
} DAT_IB_SERVICE_TYPE;

/* Where datagrams go. */
typedef struct dat_ib_addr_handle {
    struct ibv_ah *ah; /* the address handle of verbs */
    DAT_UINT32 qpn;    /* queue pair number */
    DAT_SOCK_ADDR6 ia_addr;
} DAT_IB_ADDR_HANDLE;

typedef struct dat_ib_immed_data {
    DAT_UINT32 data; /* in the host's byte order */
} DAT_IB_IMMED_DATA;

typedef struct dat_ib_collective_event_data {
    DAT_HANDLE handle;
    DAT_CONTEXT context;
} DAT_IB_COLLECTIVE_EVENT_DATA;

/* Lies in event_extension_data. */
typedef struct dat_ib_extension_event_data {
    DAT_IB_EXT_TYPE type;
    DAT_IB_STATUS status;
    union {
        DAT_IB_IMMED_DATA immed;
    } val;
    __extension__ union {
        DAT_IB_ADDR_HANDLE remote_ah;
        DAT_IB_COLLECTIVE_EVENT_DATA coll;
    };
    DAT_CONTEXT context; /* of the event that made the address handle */
} DAT_IB_EXTENSION_EVENT_DATA;

/* Counters. */

/* Of an IA. */
typedef enum dat_ia_counters {
    DCNT_IA_PZ_CREATE,
    DCNT_IA_PZ_FREE,
    DCNT_IA_LMR_CREATE,
    DCNT_IA_LMR_FREE,
    DCNT_IA_RMR_CREATE,
    DCNT_IA_RMR_FREE,
    DCNT_IA_PSP_CREATE,
    DCNT_IA_PSP_CREATE_ANY,
    DCNT_IA_PSP_FREE,
    DCNT_IA_RSP_CREATE,
    DCNT_IA_RSP_FREE,
    DCNT_IA_EVD_CREATE,
    DCNT_IA_EVD_FREE,
    DCNT_IA_EP_CREATE,
    DCNT_IA_EP_FREE,
    DCNT_IA_SRQ_CREATE,
    DCNT_IA_SRQ_FREE,
    DCNT_IA_SP_CR,
    DCNT_IA_SP_CR_ACCEPTED,
    DCNT_IA_SP_CR_REJECTED,
    DCNT_IA_MEM_ALLOC,
    DCNT_IA_MEM_ALLOC_DATA,
    DCNT_IA_MEM_FREE,
    DCNT_IA_ASYNC_ERROR,
    DCNT_IA_ASYNC_QP_ERROR,
    DCNT_IA_ASYNC_CQ_ERROR,
    DCNT_IA_CM_LISTEN,
    DCNT_IA_CM_REQ_TX,
    DCNT_IA_CM_REQ_RX,
    DCNT_IA_CM_REP_TX,
    DCNT_IA_CM_REP_RX,
    DCNT_IA_CM_RTU_TX,
    DCNT_IA_CM_RTU_RX,
    DCNT_IA_CM_USER_REJ_TX,
    DCNT_IA_CM_USER_REJ_RX,
    DCNT_IA_CM_ACTIVE_EST,
    DCNT_IA_CM_PASSIVE_EST,
    DCNT_IA_CM_AH_REQ_TX,
    DCNT_IA_CM_AH_REQ_RX,
    DCNT_IA_CM_AH_RESOLVED,
    DCNT_IA_CM_DREQ_TX,
    DCNT_IA_CM_DREQ_RX,
    DCNT_IA_CM_DREP_TX,
    DCNT_IA_CM_DREP_RX,
    DCNT_IA_CM_MRA_TX,
    DCNT_IA_CM_MRA_RX,
    DCNT_IA_CM_REQ_FULLQ_POLL,
    DCNT_IA_CM_ERR,
    DCNT_IA_CM_ERR_REQ_FULLQ,
    DCNT_IA_CM_ERR_REQ_DUP,
    DCNT_IA_CM_ERR_REQ_RETRY,
    DCNT_IA_CM_ERR_REP_DUP,
    DCNT_IA_CM_ERR_REP_RETRY,
    DCNT_IA_CM_ERR_RTU_DUP,
    DCNT_IA_CM_ERR_RTU_RETRY,
    DCNT_IA_CM_ERR_REFUSED,
    DCNT_IA_CM_ERR_RESET,
    DCNT_IA_CM_ERR_TIMEOUT,
    DCNT_IA_CM_ERR_REJ_TX,
    DCNT_IA_CM_ERR_REJ_RX,
    DCNT_IA_CM_ERR_DREQ_DUP,
    DCNT_IA_CM_ERR_DREQ_RETRY,
    DCNT_IA_CM_ERR_DREP_DUP,
    DCNT_IA_CM_ERR_DREP_RETRY,
    DCNT_IA_CM_ERR_MRA_DUP,
    DCNT_IA_CM_ERR_MRA_RETRY,
    DCNT_IA_CM_ERR_UNEXPECTED,
    DCNT_IA_LNK_ERR_RCV,
    DCNT_IA_LNK_ERR_RCV_REM_PHYS,
    DCNT_IA_LNK_ERR_RCV_CONSTRAINT,
    DCNT_IA_LNK_ERR_XMT_DISCARDS,
    DCNT_IA_LNK_ERR_XMT_CONTRAINT,
    DCNT_IA_LNK_ERR_INTEGRITY,
    DCNT_IA_LNK_ERR_EXC_BUF_OVERRUN,
    DCNT_IA_LNK_WARN_RCV_SW_RELAY,
    DCNT_IA_LNK_WARN_XMT_WAIT,
    DCNT_IA_DIAG_ERR_RQ_RAE,
    DCNT_IA_DIAG_ERR_RQ_OOS,
    DCNT_IA_DIAG_ERR_RQ_RIRE,
    DCNT_IA_DIAG_ERR_RQ_UDSDPRD,
    DCNT_IA_DIAG_ERR_SQ_RAE,
    DCNT_IA_DIAG_ERR_SQ_OOS,
    DCNT_IA_DIAG_ERR_SQ_RIRE,
    DCNT_IA_DIAG_ERR_SQ_RREE,
    DCNT_IA_DIAG_ERR_SQ_TREE,
    DCNT_IA_ALL_COUNTERS
} DAT_IA_COUNTERS;

/* Of an EP. */
typedef enum dat_ep_counters {
    DCNT_EP_CONNECT,
    DCNT_EP_DISCONNECT,
    DCNT_EP_POST_SEND,
    DCNT_EP_POST_SEND_DATA,
    DCNT_EP_POST_SEND_UD,
    DCNT_EP_POST_SEND_UD_DATA,
    DCNT_EP_POST_RECV,
    DCNT_EP_POST_RECV_DATA,
    DCNT_EP_POST_WRITE,
    DCNT_EP_POST_WRITE_DATA,
    DCNT_EP_POST_WRITE_IMM,
    DCNT_EP_POST_WRITE_IMM_DATA,
    DCNT_EP_POST_READ,
    DCNT_EP_POST_READ_DATA,
    DCNT_EP_POST_CMP_SWAP,
    DCNT_EP_POST_FETCH_ADD,
    DCNT_EP_RECV,
    DCNT_EP_RECV_DATA,
    DCNT_EP_RECV_UD,
    DCNT_EP_RECV_UD_DATA,
    DCNT_EP_RECV_IMM,
    DCNT_EP_RECV_IMM_DATA,
    DCNT_EP_RECV_RDMA_IMM,
    DCNT_EP_RECV_RDMA_IMM_DATA,
    DCNT_EP_ALL_COUNTERS
} DAT_EP_COUNTERS;

/* Of an EVD. */
typedef enum dat_evd_counters {
    DCNT_EVD_WAIT,
    DCNT_EVD_WAIT_BLOCKED,
    DCNT_EVD_WAIT_NOTIFY,
    DCNT_EVD_DEQUEUE,
    DCNT_EVD_DEQUEUE_FOUND,
    DCNT_EVD_DEQUEUE_NOT_FOUND,
    DCNT_EVD_DEQUEUE_POLL,
    DCNT_EVD_DEQUEUE_POLL_FOUND,
    DCNT_EVD_CONN_CALLBACK,
    DCNT_EVD_DTO_CALLBACK,
    DCNT_EVD_ALL_COUNTERS
} DAT_EVD_COUNTERS;

/* Groups of counters that can be started and stopped. */
typedef enum dat_ia_counter_type {
    DCNT_IA_CM,
    DCNT_IA_LNK,
    DCNT_IA_DIAG
} DAT_IA_COUNTER_TYPE;

/* Names of codes. */

static inline DAT_RETURN dat_strerror_extension(IN DAT_IB_RETURN value, OUT const char **message)
{
    const char *minor;

    if (DAT_GET_TYPE(value) != (DAT_UINT32)DAT_IB_ERR)
        return dat_strerror((DAT_RETURN)value, message, &minor);
    *message = "DAT_IB_ERR";
    return DAT_SUCCESS;
}

static inline DAT_RETURN dat_strerror_ext_status(IN DAT_IB_STATUS value, OUT const char **message)
{
    if (value == DAT_OP_SUCCESS)
        *message = " ";
    else if (value == DAT_IB_OP_ERR)
        *message = "DAT_IB_OP_ERR";
    else {
        *message = "unknown extension status";
        return DAT_INVALID_PARAMETER;
    }
    return DAT_SUCCESS;
}

/* Operations. */

/* Atomics on 8 bytes of the peer; the old value comes to the local buffer. */
#define dat_ib_post_fetch_and_add(ep, add_val, lbuf, cookie, rbuf, flgs) \
    dat_extension_op((DAT_EP_HANDLE)(ep), DAT_IB_FETCH_AND_ADD_OP, (DAT_UINT64)(add_val), \
        (DAT_LMR_TRIPLET *)(lbuf), (cookie), (DAT_RMR_TRIPLET *)(rbuf), \
        (DAT_COMPLETION_FLAGS)(flgs))

#define dat_ib_post_cmp_and_swap(ep, cmp_val, swap_val, lbuf, cookie, rbuf, flgs) \
    dat_extension_op((DAT_EP_HANDLE)(ep), DAT_IB_CMP_AND_SWAP_OP, (DAT_UINT64)(cmp_val), \
        (DAT_UINT64)(swap_val), (DAT_LMR_TRIPLET *)(lbuf), (cookie), \
        (DAT_RMR_TRIPLET *)(rbuf), (DAT_COMPLETION_FLAGS)(flgs))

/* The peer gets 32 bits with a receive that the write consumes. */
#define dat_ib_post_rdma_write_immed(ep, size, lbuf, cookie, rbuf, idata, flgs) \
    dat_extension_op((DAT_EP_HANDLE)(ep), DAT_IB_RDMA_WRITE_IMMED_OP, (DAT_COUNT)(size), \
        (DAT_LMR_TRIPLET *)(lbuf), (cookie), (DAT_RMR_TRIPLET *)(rbuf), (DAT_UINT32)(idata), \
        (DAT_COMPLETION_FLAGS)(flgs))

/* Datagrams. */
#define dat_ib_post_send_ud(ep, segments, lbuf, ah_ptr, cookie, flgs) \
    dat_extension_op((DAT_EP_HANDLE)(ep), DAT_IB_UD_SEND_OP, (DAT_COUNT)(segments), \
        (DAT_LMR_TRIPLET *)(lbuf), (DAT_IB_ADDR_HANDLE *)(ah_ptr), (cookie), \
        (DAT_COMPLETION_FLAGS)(flgs))

#define dat_ib_post_recv_ud dat_ep_post_recv

#define dat_ib_ud_cm_free(ep, cm) \
    dat_extension_op((DAT_EP_HANDLE)(ep), DAT_IB_UD_CM_FREE_OP, (DAT_CONTEXT)(cm))

#define dat_ib_ud_ah_free(ep, ah) \
    dat_extension_op((DAT_EP_HANDLE)(ep), DAT_IB_UD_AH_FREE_OP, (DAT_IB_ADDR_HANDLE *)(ah))

/* Counters of an IA, EP or EVD: one, or all of them. A reset sets them to 0. */
#define dat_ib_query_counters(dat_handle, cntr, p_cntrs_out, reset) \
    dat_extension_op((DAT_HANDLE)(dat_handle), DAT_IB_QUERY_COUNTERS_OP, (int)(cntr), \
        (DAT_UINT64 *)(p_cntrs_out), (int)(reset))

#define dat_ib_print_counters(dat_handle, cntr, reset) \
    dat_extension_op((DAT_HANDLE)(dat_handle), DAT_IB_PRINT_COUNTERS_OP, (int)(cntr), \
        (int)(reset))

#define dat_ib_start_counter(dat_handle, type) \
    dat_extension_op((DAT_HANDLE)(dat_handle), DAT_IB_START_COUNTERS_OP, \
        (DAT_IA_COUNTER_TYPE)(type))

#define dat_ib_stop_counter(dat_handle, type) \
    dat_extension_op((DAT_HANDLE)(dat_handle), DAT_IB_STOP_COUNTERS_OP, \
        (DAT_IA_COUNTER_TYPE)(type))

/* Opens an IA for its attributes only. Only dat_ib_close_query takes the handle. */
#define dat_ib_open_query(name, ia_handle, ia_mask, ia_attr, prov_mask, prov_attr) \
    dat_extension_op(DAT_HANDLE_NULL, DAT_IB_OPEN_QUERY_OP, (const DAT_NAME_PTR)(name), \
        (DAT_HANDLE *)(ia_handle), (DAT_IA_ATTR_MASK)(ia_mask), (DAT_IA_ATTR *)(ia_attr), \
        (DAT_PROVIDER_ATTR_MASK)(prov_mask), (DAT_PROVIDER_ATTR *)(prov_attr))

#define dat_ib_close_query(ia_handle) \
    dat_extension_op((DAT_HANDLE)(ia_handle), DAT_IB_CLOSE_QUERY_OP)

/* Older names. */
#define DAT_ATTR_COUNTERS DAT_IB_ATTR_COUNTERS
#define dat_query_counters dat_ib_query_counters
#define dat_print_counters dat_ib_print_counters
#define DAT_QUERY_COUNTERS_OP DAT_IB_QUERY_COUNTERS_OP
#define DAT_PRINT_COUNTERS_OP DAT_IB_PRINT_COUNTERS_OP

#ifdef __cplusplus
}
#endif

#include <dat2/dat_ib_collectives.h>

#endif
