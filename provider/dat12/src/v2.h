/* DAT 2.0 as libdat2 speaks it: the types and values that differ from 1.2, and the functions.
 *
 * What is the same in both (handles, cookies, most enumerations, the parameters of SRQs apart from
 * their state, of CRs, EVDs, PSPs, RSPs and PZs) goes through as it is. tests/v2_check.c compares
 * this file with the headers of libdat2. */
#ifndef DAT12_V2_H
#define DAT12_V2_H

#include <dat/udat.h>

enum {
    V2_MAJOR = 2,
    V2_MINOR = 0,

    /* DAT_RETURN: the types of 1.2 end with CONN_QUAL_UNAVAILABLE, and its subtypes differ from 26
     * on. */
    V2_TYPE_PORT_IN_USE = 0x00160000,
    V2_TYPE_COMM_NOT_SUPPORTED = 0x00170000,
    V2_TYPE_NOT_IMPLEMENTED = 0x3FFF0000,
    V2_SUB_HANDLE_CSP = 26,
    V2_SUB_ARG1 = 37,
    V2_SUB_SRQ_IN_USE = 87,
    V2_SUB_SRQ_SHUTDOWN = 88,
    V2_SUB_THREAD_SAFETY_NOT_FOUND = 103,

    V2_SRQ_ERROR = 0,
    V2_SRQ_OPERATIONAL = 1,
    V2_SRQ_SHUTDOWN = 2,

    V2_EP_CONNECTED_SINGLE_PATH = 13,
    V2_EP_CONNECTED_MULTI_PATH = 14,

    V2_HA_DOWN_TO_1 = 0x08101,
    V2_HA_UP_TO_MULTI_PATH = 0x08102,
    V2_IB_DTO_EVENT = 0x40000,
    V2_IB_WRITE_IMMED_DATA = 3,
    V2_DTO_ERR_LOCAL_MM_ERROR = 12,

    V2_PZ_UNIQUE = 0,
    V2_PZ_SHAREABLE = 1,

    V2_CNO_FIELD_ALL = 4,
    V2_PROXY_AGENT = 1,

    V2_VA_TYPE_VA = 0,

    V2_RMR_FIELD_PZ_HANDLE = 0x02,
};

#define V2_IA_FIELD_IOV (DAT_IA_FIELD_IA_MAX_IOV_SEGMENTS_PER_DTO | DAT_IA_FIELD_IA_MAX_IOV_SEGMENTS_PER_RDMA_READ | \
                         DAT_IA_FIELD_IA_MAX_IOV_SEGMENTS_PER_RDMA_WRITE)

struct v2_lmr_triplet {
    DAT_VADDR virtual_address;
    DAT_UINT32 segment_length;
    DAT_LMR_CONTEXT lmr_context;
};

struct v2_rmr_triplet {
    DAT_VADDR virtual_address;
    DAT_UINT32 segment_length;
    DAT_RMR_CONTEXT rmr_context;
};

struct v2_ia_attr {
    char adapter_name[DAT_NAME_MAX_LENGTH];
    char vendor_name[DAT_NAME_MAX_LENGTH];
    DAT_UINT32 hardware_version_major;
    DAT_UINT32 hardware_version_minor;
    DAT_UINT32 firmware_version_major;
    DAT_UINT32 firmware_version_minor;
    DAT_IA_ADDRESS_PTR ia_address_ptr;
    DAT_COUNT max_eps;
    DAT_COUNT max_dto_per_ep;
    DAT_COUNT max_rdma_read_per_ep_in;
    DAT_COUNT max_rdma_read_per_ep_out;
    DAT_COUNT max_evds;
    DAT_COUNT max_evd_qlen;
    DAT_COUNT max_iov_segments_per_dto;
    DAT_COUNT max_lmrs;
    DAT_UINT32 max_lmr_block_size;
    DAT_VADDR max_lmr_virtual_address;
    DAT_COUNT max_pzs;
    DAT_UINT32 max_message_size;
    DAT_UINT32 max_rdma_size;
    DAT_COUNT max_rmrs;
    DAT_VADDR max_rmr_target_address;
    DAT_COUNT max_srqs;
    DAT_COUNT max_ep_per_srq;
    DAT_COUNT max_recv_per_srq;
    DAT_COUNT max_iov_segments_per_rdma_read;
    DAT_COUNT max_iov_segments_per_rdma_write;
    DAT_COUNT max_rdma_read_in;
    DAT_COUNT max_rdma_read_out;
    DAT_UINT32 max_rdma_read_per_ep_in_guaranteed;
    DAT_UINT32 max_rdma_read_per_ep_out_guaranteed;
    DAT_UINT32 zb_supported;
    DAT_UINT32 extension_supported;
    DAT_COUNT extension_version;
    DAT_COUNT num_transport_attr;
    DAT_NAMED_ATTR *transport_attr;
    DAT_COUNT num_vendor_attr;
    DAT_NAMED_ATTR *vendor_attr;
};

struct v2_provider_attr {
    char provider_name[DAT_NAME_MAX_LENGTH];
    DAT_UINT32 provider_version_major;
    DAT_UINT32 provider_version_minor;
    DAT_UINT32 dapl_version_major;
    DAT_UINT32 dapl_version_minor;
    DAT_UINT32 lmr_mem_types_supported;
    DAT_UINT32 iov_ownership_on_return;
    DAT_UINT32 dat_qos_supported;
    DAT_UINT32 completion_flags_supported;
    DAT_UINT32 is_thread_safe;
    DAT_COUNT max_private_data_size;
    DAT_UINT32 supports_multipath;
    DAT_UINT32 ep_creator;
    DAT_UINT32 pz_support;
    DAT_UINT32 optimal_buffer_alignment;
    DAT_UINT32 evd_stream_merging_supported[6][6];
    DAT_UINT32 srq_supported;
    DAT_COUNT srq_watermarks_supported;
    DAT_UINT32 srq_ep_pz_difference_supported;
    DAT_COUNT srq_info_supported;
    DAT_COUNT ep_recv_info_supported;
    DAT_UINT32 lmr_sync_req;
    DAT_UINT32 dto_async_return_guaranteed;
    DAT_UINT32 rdma_write_for_rdma_read_req;
    DAT_UINT32 rdma_read_lmr_rmr_context_exposure;
    DAT_UINT32 rmr_scope_supported;
    DAT_UINT32 is_signal_safe;
    DAT_UINT32 ha_supported;
    DAT_UINT32 ha_loadbalancing;
    DAT_COUNT num_provider_specific_attr;
    DAT_NAMED_ATTR *provider_specific_attr;
};

struct v2_ep_attr {
    DAT_UINT32 service_type;
    DAT_UINT32 max_message_size;
    DAT_UINT32 max_rdma_size;
    DAT_UINT32 qos;
    DAT_UINT32 recv_completion_flags;
    DAT_UINT32 request_completion_flags;
    DAT_COUNT max_recv_dtos;
    DAT_COUNT max_request_dtos;
    DAT_COUNT max_recv_iov;
    DAT_COUNT max_request_iov;
    DAT_COUNT max_rdma_read_in;
    DAT_COUNT max_rdma_read_out;
    DAT_COUNT srq_soft_hw;
    DAT_COUNT max_rdma_read_iov;
    DAT_COUNT max_rdma_write_iov;
    DAT_COUNT ep_transport_specific_count;
    DAT_NAMED_ATTR *ep_transport_specific;
    DAT_COUNT ep_provider_specific_count;
    DAT_NAMED_ATTR *ep_provider_specific;
};

struct v2_ep_param {
    DAT_IA_HANDLE ia_handle;
    DAT_UINT32 ep_state;
    struct {
        DAT_UINT32 domain, type, protocol;
    } comm;
    DAT_IA_ADDRESS_PTR local_ia_address_ptr;
    DAT_PORT_QUAL local_port_qual;
    DAT_IA_ADDRESS_PTR remote_ia_address_ptr;
    DAT_PORT_QUAL remote_port_qual;
    DAT_PZ_HANDLE pz_handle;
    DAT_EVD_HANDLE recv_evd_handle;
    DAT_EVD_HANDLE request_evd_handle;
    DAT_EVD_HANDLE connect_evd_handle;
    DAT_SRQ_HANDLE srq_handle;
    struct v2_ep_attr ep_attr;
};

struct v2_srq_param {
    DAT_IA_HANDLE ia_handle;
    DAT_UINT32 srq_state;
    DAT_PZ_HANDLE pz_handle;
    DAT_COUNT max_recv_dtos;
    DAT_COUNT max_recv_iov;
    DAT_COUNT low_watermark;
    DAT_COUNT available_dto_count;
    DAT_COUNT outstanding_dto_count;
};

struct v2_lmr_param {
    DAT_IA_HANDLE ia_handle;
    DAT_UINT32 mem_type;
    DAT_REGION_DESCRIPTION region_desc;
    DAT_VLEN length;
    DAT_PZ_HANDLE pz_handle;
    DAT_UINT32 mem_priv;
    DAT_UINT32 va_type;
    DAT_LMR_CONTEXT lmr_context;
    DAT_RMR_CONTEXT rmr_context;
    DAT_VLEN registered_size;
    DAT_VADDR registered_address;
};

struct v2_rmr_param {
    DAT_IA_HANDLE ia_handle;
    DAT_PZ_HANDLE pz_handle;
    struct v2_lmr_triplet lmr_triplet;
    DAT_UINT32 mem_priv;
    DAT_RMR_CONTEXT rmr_context;
    DAT_UINT32 rmr_scope;
    DAT_UINT32 va_type;
};

struct v2_cno_param {
    DAT_IA_HANDLE ia_handle;
    DAT_UINT32 proxy_type;
    union {
        DAT_OS_WAIT_PROXY_AGENT agent;
        int fd;
        DAT_PVOID none;
    } proxy;
};

struct v2_dto {
    DAT_EP_HANDLE ep_handle;
    DAT_DTO_COOKIE user_cookie;
    DAT_UINT32 status;
    DAT_UINT32 transfered_length;
    DAT_UINT32 operation;
    DAT_RMR_CONTEXT rmr_context;
};

struct v2_rmr_bind {
    DAT_RMR_HANDLE rmr_handle;
    DAT_RMR_COOKIE user_cookie;
    DAT_UINT32 status;
};

struct v2_cr_arrival {
    DAT_SP_HANDLE sp_handle;
    DAT_IA_ADDRESS_PTR local_ia_address_ptr;
    DAT_CONN_QUAL conn_qual;
    DAT_CR_HANDLE cr_handle;
    DAT_UINT32 truncate_flag;
};

struct v2_event {
    DAT_UINT32 event_number;
    DAT_EVD_HANDLE evd_handle;
    union {
        struct v2_dto dto;
        struct v2_rmr_bind rmr_bind;
        struct v2_cr_arrival cr_arrival;
        DAT_CONNECTION_EVENT_DATA connect;
        DAT_ASYNCH_ERROR_EVENT_DATA asynch_error;
        DAT_SOFTWARE_EVENT_DATA software;
    } data;
    union {
        DAT_UINT32 type; /* of an IB extension's event */
        DAT_UINT64 words[8];
    } extension;
};

/* The functions of libdat2 that are called: name and parameters. Each returns a 2.0 DAT_RETURN. */
#define V2_FUNCTIONS(F)                                                                                                \
    F(dat_registry_list_providers, (DAT_COUNT, DAT_COUNT *, DAT_PROVIDER_INFO *[]))                                    \
    F(dat_ia_openv, (DAT_NAME_PTR, DAT_COUNT, DAT_EVD_HANDLE *, DAT_IA_HANDLE *, DAT_UINT32, DAT_UINT32, DAT_BOOLEAN)) \
    F(dat_ia_query, (DAT_IA_HANDLE, DAT_EVD_HANDLE *, DAT_UINT64, struct v2_ia_attr *, DAT_UINT64,                     \
                     struct v2_provider_attr *))                                                                       \
    F(dat_ia_close, (DAT_IA_HANDLE, DAT_CLOSE_FLAGS))                                                                  \
    F(dat_set_consumer_context, (DAT_HANDLE, DAT_CONTEXT))                                                             \
    F(dat_get_consumer_context, (DAT_HANDLE, DAT_CONTEXT *))                                                           \
    F(dat_get_handle_type, (DAT_HANDLE, DAT_UINT32 *))                                                                 \
    F(dat_cno_create, (DAT_IA_HANDLE, DAT_OS_WAIT_PROXY_AGENT, DAT_CNO_HANDLE *))                                      \
    F(dat_cno_modify_agent, (DAT_CNO_HANDLE, DAT_OS_WAIT_PROXY_AGENT))                                                 \
    F(dat_cno_query, (DAT_CNO_HANDLE, DAT_UINT32, struct v2_cno_param *))                                              \
    F(dat_cno_free, (DAT_CNO_HANDLE))                                                                                  \
    F(dat_cno_wait, (DAT_CNO_HANDLE, DAT_TIMEOUT, DAT_EVD_HANDLE *))                                                   \
    F(dat_cr_query, (DAT_CR_HANDLE, DAT_UINT32, DAT_CR_PARAM *))                                                       \
    F(dat_cr_accept, (DAT_CR_HANDLE, DAT_EP_HANDLE, DAT_COUNT, DAT_PVOID))                                             \
    F(dat_cr_reject, (DAT_CR_HANDLE, DAT_COUNT, DAT_PVOID))                                                            \
    F(dat_cr_handoff, (DAT_CR_HANDLE, DAT_CONN_QUAL))                                                                  \
    F(dat_evd_create, (DAT_IA_HANDLE, DAT_COUNT, DAT_CNO_HANDLE, DAT_UINT32, DAT_EVD_HANDLE *))                        \
    F(dat_evd_query, (DAT_EVD_HANDLE, DAT_UINT32, DAT_EVD_PARAM *))                                                    \
    F(dat_evd_modify_cno, (DAT_EVD_HANDLE, DAT_CNO_HANDLE))                                                            \
    F(dat_evd_enable, (DAT_EVD_HANDLE))                                                                                \
    F(dat_evd_disable, (DAT_EVD_HANDLE))                                                                               \
    F(dat_evd_wait, (DAT_EVD_HANDLE, DAT_TIMEOUT, DAT_COUNT, struct v2_event *, DAT_COUNT *))                          \
    F(dat_evd_resize, (DAT_EVD_HANDLE, DAT_COUNT))                                                                     \
    F(dat_evd_post_se, (DAT_EVD_HANDLE, const struct v2_event *))                                                      \
    F(dat_evd_dequeue, (DAT_EVD_HANDLE, struct v2_event *))                                                            \
    F(dat_evd_set_unwaitable, (DAT_EVD_HANDLE))                                                                        \
    F(dat_evd_clear_unwaitable, (DAT_EVD_HANDLE))                                                                      \
    F(dat_evd_free, (DAT_EVD_HANDLE))                                                                                  \
    F(dat_ep_create, (DAT_IA_HANDLE, DAT_PZ_HANDLE, DAT_EVD_HANDLE, DAT_EVD_HANDLE, DAT_EVD_HANDLE,                    \
                      const struct v2_ep_attr *, DAT_EP_HANDLE *))                                                     \
    F(dat_ep_create_with_srq, (DAT_IA_HANDLE, DAT_PZ_HANDLE, DAT_EVD_HANDLE, DAT_EVD_HANDLE, DAT_EVD_HANDLE,           \
                               DAT_SRQ_HANDLE, const struct v2_ep_attr *, DAT_EP_HANDLE *))                            \
    F(dat_ep_query, (DAT_EP_HANDLE, DAT_UINT64, struct v2_ep_param *))                                                 \
    F(dat_ep_modify, (DAT_EP_HANDLE, DAT_UINT64, const struct v2_ep_param *))                                          \
    F(dat_ep_connect, (DAT_EP_HANDLE, DAT_IA_ADDRESS_PTR, DAT_CONN_QUAL, DAT_TIMEOUT, DAT_COUNT, DAT_PVOID, DAT_QOS,   \
                       DAT_UINT32))                                                                                    \
    F(dat_ep_dup_connect, (DAT_EP_HANDLE, DAT_EP_HANDLE, DAT_TIMEOUT, DAT_COUNT, DAT_PVOID, DAT_QOS))                  \
    F(dat_ep_disconnect, (DAT_EP_HANDLE, DAT_CLOSE_FLAGS))                                                             \
    F(dat_ep_post_send, (DAT_EP_HANDLE, DAT_COUNT, struct v2_lmr_triplet *, DAT_DTO_COOKIE, DAT_UINT32))               \
    F(dat_ep_post_recv, (DAT_EP_HANDLE, DAT_COUNT, struct v2_lmr_triplet *, DAT_DTO_COOKIE, DAT_UINT32))               \
    F(dat_ep_post_rdma_read, (DAT_EP_HANDLE, DAT_COUNT, struct v2_lmr_triplet *, DAT_DTO_COOKIE,                       \
                              const struct v2_rmr_triplet *, DAT_UINT32))                                              \
    F(dat_ep_post_rdma_write, (DAT_EP_HANDLE, DAT_COUNT, struct v2_lmr_triplet *, DAT_DTO_COOKIE,                      \
                               const struct v2_rmr_triplet *, DAT_UINT32))                                             \
    F(dat_ep_get_status, (DAT_EP_HANDLE, DAT_UINT32 *, DAT_BOOLEAN *, DAT_BOOLEAN *))                                  \
    F(dat_ep_recv_query, (DAT_EP_HANDLE, DAT_COUNT *, DAT_COUNT *))                                                    \
    F(dat_ep_set_watermark, (DAT_EP_HANDLE, DAT_COUNT, DAT_COUNT))                                                     \
    F(dat_ep_reset, (DAT_EP_HANDLE))                                                                                   \
    F(dat_ep_free, (DAT_EP_HANDLE))                                                                                    \
    F(dat_srq_create, (DAT_IA_HANDLE, DAT_PZ_HANDLE, DAT_SRQ_ATTR *, DAT_SRQ_HANDLE *))                                \
    F(dat_srq_free, (DAT_SRQ_HANDLE))                                                                                  \
    F(dat_srq_post_recv, (DAT_SRQ_HANDLE, DAT_COUNT, struct v2_lmr_triplet *, DAT_DTO_COOKIE))                         \
    F(dat_srq_query, (DAT_SRQ_HANDLE, DAT_UINT32, struct v2_srq_param *))                                              \
    F(dat_srq_resize, (DAT_SRQ_HANDLE, DAT_COUNT))                                                                     \
    F(dat_srq_set_lw, (DAT_SRQ_HANDLE, DAT_COUNT))                                                                     \
    F(dat_lmr_create, (DAT_IA_HANDLE, DAT_UINT32, DAT_REGION_DESCRIPTION, DAT_VLEN, DAT_PZ_HANDLE, DAT_UINT32,         \
                       DAT_UINT32, DAT_LMR_HANDLE *, DAT_LMR_CONTEXT *, DAT_RMR_CONTEXT *, DAT_VLEN *, DAT_VADDR *))   \
    F(dat_lmr_query, (DAT_LMR_HANDLE, DAT_UINT32, struct v2_lmr_param *))                                              \
    F(dat_lmr_free, (DAT_LMR_HANDLE))                                                                                  \
    F(dat_lmr_sync_rdma_read, (DAT_IA_HANDLE, const struct v2_lmr_triplet *, DAT_VLEN))                                \
    F(dat_lmr_sync_rdma_write, (DAT_IA_HANDLE, const struct v2_lmr_triplet *, DAT_VLEN))                               \
    F(dat_rmr_create, (DAT_PZ_HANDLE, DAT_RMR_HANDLE *))                                                               \
    F(dat_rmr_query, (DAT_RMR_HANDLE, DAT_UINT32, struct v2_rmr_param *))                                              \
    F(dat_rmr_bind, (DAT_RMR_HANDLE, DAT_LMR_HANDLE, const struct v2_lmr_triplet *, DAT_UINT32, DAT_UINT32,            \
                     DAT_EP_HANDLE, DAT_RMR_COOKIE, DAT_UINT32, DAT_RMR_CONTEXT *))                                    \
    F(dat_rmr_free, (DAT_RMR_HANDLE))                                                                                  \
    F(dat_psp_create, (DAT_IA_HANDLE, DAT_CONN_QUAL, DAT_EVD_HANDLE, DAT_UINT32, DAT_PSP_HANDLE *))                    \
    F(dat_psp_create_any, (DAT_IA_HANDLE, DAT_CONN_QUAL *, DAT_EVD_HANDLE, DAT_UINT32, DAT_PSP_HANDLE *))              \
    F(dat_psp_query, (DAT_PSP_HANDLE, DAT_UINT32, DAT_PSP_PARAM *))                                                    \
    F(dat_psp_free, (DAT_PSP_HANDLE))                                                                                  \
    F(dat_rsp_create, (DAT_IA_HANDLE, DAT_CONN_QUAL, DAT_EP_HANDLE, DAT_EVD_HANDLE, DAT_RSP_HANDLE *))                 \
    F(dat_rsp_query, (DAT_RSP_HANDLE, DAT_UINT32, DAT_RSP_PARAM *))                                                    \
    F(dat_rsp_free, (DAT_RSP_HANDLE))                                                                                  \
    F(dat_pz_create, (DAT_IA_HANDLE, DAT_PZ_HANDLE *))                                                                 \
    F(dat_pz_query, (DAT_PZ_HANDLE, DAT_UINT32, DAT_PZ_PARAM *))                                                       \
    F(dat_pz_free, (DAT_PZ_HANDLE))

#define V2_POINTER(name, parameters) DAT_UINT32(*name) parameters;
struct v2_functions {
    V2_FUNCTIONS(V2_POINTER)
};
#undef V2_POINTER

#endif
