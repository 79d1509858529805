/* Names and numbers for both the mock provider, which includes the headers of libdat2, and the
 * program that tests libdat.so.1 with it, which includes those of DAT 1.2. Compiles with either. */
#ifndef MOCK_H
#define MOCK_H

#include <stdint.h>

/* A field, and its bit in the masks. */
#define EP_ATTR_FIELDS(F)                                                                                              \
    F(service_type, EP_ATTR_SERVICE_TYPE)                                                                              \
    F(max_message_size, EP_ATTR_MAX_MESSAGE_SIZE)                                                                      \
    F(max_rdma_size, EP_ATTR_MAX_RDMA_SIZE)                                                                            \
    F(qos, EP_ATTR_QOS)                                                                                                \
    F(recv_completion_flags, EP_ATTR_RECV_COMPLETION_FLAGS)                                                            \
    F(request_completion_flags, EP_ATTR_REQUEST_COMPLETION_FLAGS)                                                      \
    F(max_recv_dtos, EP_ATTR_MAX_RECV_DTOS)                                                                            \
    F(max_request_dtos, EP_ATTR_MAX_REQUEST_DTOS)                                                                      \
    F(max_recv_iov, EP_ATTR_MAX_RECV_IOV)                                                                              \
    F(max_request_iov, EP_ATTR_MAX_REQUEST_IOV)                                                                        \
    F(max_rdma_read_in, EP_ATTR_MAX_RDMA_READ_IN)                                                                      \
    F(max_rdma_read_out, EP_ATTR_MAX_RDMA_READ_OUT)                                                                    \
    F(srq_soft_hw, EP_ATTR_SRQ_SOFT_HW)                                                                                \
    F(max_rdma_read_iov, EP_ATTR_MAX_RDMA_READ_IOV)                                                                    \
    F(max_rdma_write_iov, EP_ATTR_MAX_RDMA_WRITE_IOV)                                                                  \
    F(ep_transport_specific_count, EP_ATTR_NUM_TRANSPORT_ATTR)                                                         \
    F(ep_transport_specific, EP_ATTR_TRANSPORT_SPECIFIC_ATTR)                                                          \
    F(ep_provider_specific_count, EP_ATTR_NUM_PROVIDER_ATTR)                                                           \
    F(ep_provider_specific, EP_ATTR_PROVIDER_SPECIFIC_ATTR)

#define EP_PARAM_FIELDS(F)                                                                                             \
    F(ia_handle, IA_HANDLE)                                                                                            \
    F(ep_state, EP_STATE)                                                                                              \
    F(local_ia_address_ptr, LOCAL_IA_ADDRESS_PTR)                                                                      \
    F(local_port_qual, LOCAL_PORT_QUAL)                                                                                \
    F(remote_ia_address_ptr, REMOTE_IA_ADDRESS_PTR)                                                                    \
    F(remote_port_qual, REMOTE_PORT_QUAL)                                                                              \
    F(pz_handle, PZ_HANDLE)                                                                                            \
    F(recv_evd_handle, RECV_EVD_HANDLE)                                                                                \
    F(request_evd_handle, REQUEST_EVD_HANDLE)                                                                          \
    F(connect_evd_handle, CONNECT_EVD_HANDLE)                                                                          \
    F(srq_handle, SRQ_HANDLE)

#define SRQ_FIELDS(F)                                                                                                  \
    F(ia_handle, IA_HANDLE)                                                                                            \
    F(pz_handle, PZ_HANDLE)                                                                                            \
    F(max_recv_dtos, MAX_RECV_DTO)                                                                                     \
    F(max_recv_iov, MAX_RECV_IOV)                                                                                      \
    F(low_watermark, LOW_WATERMARK)                                                                                    \
    F(available_dto_count, AVAILABLE_DTO_COUNT)                                                                        \
    F(outstanding_dto_count, OUTSTANDING_DTO_COUNT)

#define LMR_FIELDS(F)                                                                                                  \
    F(ia_handle, IA_HANDLE)                                                                                            \
    F(mem_type, MEM_TYPE)                                                                                              \
    F(region_desc.for_va, REGION_DESC)                                                                                 \
    F(length, LENGTH)                                                                                                  \
    F(pz_handle, PZ_HANDLE)                                                                                            \
    F(mem_priv, MEM_PRIV)                                                                                              \
    F(lmr_context, LMR_CONTEXT)                                                                                        \
    F(rmr_context, RMR_CONTEXT)                                                                                        \
    F(registered_size, REGISTERED_SIZE)                                                                                \
    F(registered_address, REGISTERED_ADDRESS)

#define RMR_FIELDS(F)                                                                                                  \
    F(ia_handle, IA_HANDLE)                                                                                            \
    F(pz_handle, PZ_HANDLE)                                                                                            \
    F(lmr_triplet.segment_length, LMR_TRIPLET)                                                                         \
    F(mem_priv, MEM_PRIV)                                                                                              \
    F(rmr_context, RMR_CONTEXT)

#define IA_FIELDS(F)                                                                                                   \
    F(hardware_version_major, HARDWARE_MAJOR_VERSION)                                                                  \
    F(hardware_version_minor, HARDWARE_MINOR_VERSION)                                                                  \
    F(firmware_version_major, FIRMWARE_MAJOR_VERSION)                                                                  \
    F(firmware_version_minor, FIRMWARE_MINOR_VERSION)                                                                  \
    F(ia_address_ptr, ADDRESS_PTR)                                                                                     \
    F(max_eps, MAX_EPS)                                                                                                \
    F(max_dto_per_ep, MAX_DTO_PER_EP)                                                                                  \
    F(max_rdma_read_per_ep_in, MAX_RDMA_READ_PER_EP_IN)                                                                \
    F(max_rdma_read_per_ep_out, MAX_RDMA_READ_PER_EP_OUT)                                                              \
    F(max_evds, MAX_EVDS)                                                                                              \
    F(max_evd_qlen, MAX_EVD_QLEN)                                                                                      \
    F(max_iov_segments_per_dto, MAX_IOV_SEGMENTS_PER_DTO)                                                              \
    F(max_lmrs, MAX_LMRS)                                                                                              \
    F(max_lmr_block_size, MAX_LMR_BLOCK_SIZE)                                                                          \
    F(max_lmr_virtual_address, MAX_LMR_VIRTUAL_ADDRESS)                                                                \
    F(max_pzs, MAX_PZS)                                                                                                \
    F(max_message_size, MAX_MESSAGE_SIZE)                                                                              \
    F(max_rdma_size, MAX_RDMA_SIZE)                                                                                    \
    F(max_rmrs, MAX_RMRS)                                                                                              \
    F(max_rmr_target_address, MAX_RMR_TARGET_ADDRESS)                                                                  \
    F(max_srqs, MAX_SRQS)                                                                                              \
    F(max_ep_per_srq, MAX_EP_PER_SRQ)                                                                                  \
    F(max_recv_per_srq, MAX_RECV_PER_SRQ)                                                                              \
    F(max_iov_segments_per_rdma_read, MAX_IOV_SEGMENTS_PER_RDMA_READ)                                                  \
    F(max_iov_segments_per_rdma_write, MAX_IOV_SEGMENTS_PER_RDMA_WRITE)                                                \
    F(max_rdma_read_in, MAX_RDMA_READ_IN)                                                                              \
    F(max_rdma_read_out, MAX_RDMA_READ_OUT)                                                                            \
    F(num_transport_attr, NUM_TRANSPORT_ATTR)                                                                          \
    F(transport_attr, TRANSPORT_ATTR)                                                                                  \
    F(num_vendor_attr, NUM_VENDOR_ATTR)                                                                                \
    F(vendor_attr, VENDOR_ATTR)

#define PROVIDER_FIELDS(F)                                                                                             \
    F(provider_version_major, PROVIDER_VERSION_MAJOR)                                                                  \
    F(provider_version_minor, PROVIDER_VERSION_MINOR)                                                                  \
    F(dat_qos_supported, DAT_QOS_SUPPORTED)                                                                            \
    F(max_private_data_size, MAX_PRIVATE_DATA_SIZE)                                                                    \
    F(optimal_buffer_alignment, OPTIMAL_BUFFER_ALIGNMENT)                                                              \
    F(srq_watermarks_supported, SRQ_WATERMARKS_SUPPORTED)                                                              \
    F(srq_info_supported, SRQ_INFO_SUPPORTED)                                                                          \
    F(ep_recv_info_supported, EP_RECV_INFO_SUPPORTED)                                                                  \
    F(num_provider_specific_attr, NUM_PROVIDER_SPECIFIC_ATTR)                                                          \
    F(provider_specific_attr, PROVIDER_SPECIFIC_ATTR)

/* The subtypes that both versions have. */
#define SUBTYPES(F)                                                                                                    \
    F(NO_SUBTYPE) F(SUB_INTERRUPTED) F(RESOURCE_MEMORY) F(RESOURCE_DEVICE) F(RESOURCE_TEP) F(RESOURCE_TEVD)            \
    F(RESOURCE_PROTECTION_DOMAIN) F(RESOURCE_MEMORY_REGION) F(RESOURCE_ERROR_HANDLER) F(RESOURCE_CREDITS)              \
    F(RESOURCE_SRQ) F(INVALID_HANDLE_IA) F(INVALID_HANDLE_EP) F(INVALID_HANDLE_LMR) F(INVALID_HANDLE_RMR)              \
    F(INVALID_HANDLE_PZ) F(INVALID_HANDLE_PSP) F(INVALID_HANDLE_RSP) F(INVALID_HANDLE_CR) F(INVALID_HANDLE_CNO)        \
    F(INVALID_HANDLE_EVD_CR) F(INVALID_HANDLE_EVD_REQUEST) F(INVALID_HANDLE_EVD_RECV) F(INVALID_HANDLE_EVD_CONN)       \
    F(INVALID_HANDLE_EVD_ASYNC) F(INVALID_HANDLE_SRQ) F(INVALID_HANDLE1) F(INVALID_HANDLE2) F(INVALID_HANDLE3)         \
    F(INVALID_HANDLE4) F(INVALID_HANDLE5) F(INVALID_HANDLE6) F(INVALID_HANDLE7) F(INVALID_HANDLE8) F(INVALID_HANDLE9)  \
    F(INVALID_HANDLE10) F(INVALID_ARG1) F(INVALID_ARG2) F(INVALID_ARG3) F(INVALID_ARG4) F(INVALID_ARG5)                \
    F(INVALID_ARG6) F(INVALID_ARG7) F(INVALID_ARG8) F(INVALID_ARG9) F(INVALID_ARG10) F(INVALID_STATE_EP_UNCONNECTED)   \
    F(INVALID_STATE_EP_ACTCONNPENDING) F(INVALID_STATE_EP_PASSCONNPENDING) F(INVALID_STATE_EP_TENTCONNPENDING)         \
    F(INVALID_STATE_EP_CONNECTED) F(INVALID_STATE_EP_DISCONNECTED) F(INVALID_STATE_EP_RESERVED)                        \
    F(INVALID_STATE_EP_COMPLPENDING) F(INVALID_STATE_EP_DISCPENDING) F(INVALID_STATE_EP_PROVIDERCONTROL)               \
    F(INVALID_STATE_EP_NOTREADY) F(INVALID_STATE_EP_RECV_WATERMARK) F(INVALID_STATE_EP_PZ)                             \
    F(INVALID_STATE_EP_EVD_REQUEST) F(INVALID_STATE_EP_EVD_RECV) F(INVALID_STATE_EP_EVD_CONNECT)                       \
    F(INVALID_STATE_EP_UNCONFIGURED) F(INVALID_STATE_EP_UNCONFRESERVED) F(INVALID_STATE_EP_UNCONFPASSIVE)              \
    F(INVALID_STATE_EP_UNCONFTENTATIVE) F(INVALID_STATE_CNO_IN_USE) F(INVALID_STATE_CNO_DEAD)                          \
    F(INVALID_STATE_EVD_OPEN) F(INVALID_STATE_EVD_ENABLED) F(INVALID_STATE_EVD_DISABLED) F(INVALID_STATE_EVD_WAITABLE) \
    F(INVALID_STATE_EVD_UNWAITABLE) F(INVALID_STATE_EVD_IN_USE) F(INVALID_STATE_EVD_CONFIG_NOTIFY)                     \
    F(INVALID_STATE_EVD_CONFIG_SOLICITED) F(INVALID_STATE_EVD_CONFIG_THRESHOLD) F(INVALID_STATE_EVD_WAITER)            \
    F(INVALID_STATE_EVD_ASYNC) F(INVALID_STATE_IA_IN_USE) F(INVALID_STATE_LMR_IN_USE) F(INVALID_STATE_LMR_FREE)        \
    F(INVALID_STATE_PZ_IN_USE) F(INVALID_STATE_PZ_FREE) F(INVALID_STATE_SRQ_OPERATIONAL) F(INVALID_STATE_SRQ_ERROR)    \
    F(INVALID_STATE_SRQ_IN_USE) F(PRIVILEGES_READ) F(PRIVILEGES_WRITE) F(PRIVILEGES_RDMA_READ) F(PRIVILEGES_RDMA_WRITE)\
    F(PROTECTION_READ) F(PROTECTION_WRITE) F(PROTECTION_RDMA_READ) F(PROTECTION_RDMA_WRITE)                            \
    F(INVALID_ADDRESS_UNSUPPORTED) F(INVALID_ADDRESS_UNREACHABLE) F(INVALID_ADDRESS_MALFORMED) F(NAME_NOT_REGISTERED)  \
    F(MAJOR_NOT_FOUND) F(MINOR_NOT_FOUND) F(THREAD_SAFETY_NOT_FOUND)

/* The types that both versions have, except SUCCESS. */
#define TYPES(F)                                                                                                       \
    F(ABORT) F(CONN_QUAL_IN_USE) F(INSUFFICIENT_RESOURCES) F(INTERNAL_ERROR) F(INVALID_HANDLE) F(INVALID_PARAMETER)    \
    F(INVALID_STATE) F(LENGTH_ERROR) F(MODEL_NOT_SUPPORTED) F(PROVIDER_NOT_FOUND) F(PRIVILEGES_VIOLATION)              \
    F(PROTECTION_VIOLATION) F(QUEUE_EMPTY) F(QUEUE_FULL) F(TIMEOUT_EXPIRED) F(PROVIDER_ALREADY_REGISTERED)             \
    F(PROVIDER_IN_USE) F(INVALID_ADDRESS) F(INTERRUPTED_CALL) F(CONN_QUAL_UNAVAILABLE) F(NOT_IMPLEMENTED)

/* A value of any type as a number. */
#define NUMBER(x) ((uint64_t)(uintptr_t)(x))

enum { MOCK_SEGMENTS = 8, MOCK_HANDLES = 16, MOCK_NUMBERS = 64 };

struct mock {
    /* Handles for every purpose. Each call that creates an object returns the last one. */
    void *handles[MOCK_HANDLES];
    /* The numbers of SUBTYPES and TYPES in DAT 2.0, in order. */
    uint32_t subtypes[128], types[32];

    /* The return value of all calls. */
    uint32_t answer;
    /* Values of fields, in the order of their list: those that a query returns, and those that a
     * call was given. */
    uint64_t out[MOCK_NUMBERS], in[MOCK_NUMBERS];
    /* The mask of the last call, and the number of fields that it named. */
    uint64_t mask;
    unsigned named;
    /* The event to return (its number, the words of its data, the type of an extension), or the
     * event that was posted. */
    uint32_t event, extension;
    uint64_t words[5];
    /* The state, or the kind of handle, to return. */
    uint32_t state;
    uint32_t iov_ownership, pz_support;

    /* The last call: its name, and its arguments as numbers. */
    const char *name;
    uint64_t arguments[12];
    /* The triplets of the last call. */
    struct {
        uint64_t address, length, context;
    } local[MOCK_SEGMENTS], remote;
    uint64_t segments_of_all_calls;
};

#endif
