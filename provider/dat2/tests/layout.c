/* The layouts and numbers of DAT 2.0, against the headers that the compiler finds: prints a line
 * for each that differs. The facts are those of Debian 12's libdapl-dev on x86-64. */
#include <netinet/in.h>

#include <dat2/udat.h>
#include <dat2/dat_registry.h>
#include <dat2/dat_ib_extensions.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

static unsigned facts, wrong;

static void fact(const char *what, long long is, long long has_to_be)
{
    facts++;
    if (is == has_to_be)
        return;
    wrong++;
    printf("%s is %lld, not %lld\n", what, is, has_to_be);
}

#define V(name, number) fact(#name, (long long)(name), number);
#define S(type, size) fact("sizeof " #type, sizeof(type), size);
#define F(field, offset, size) \
    fact("offset of " #field " in " TYPE_NAME, offsetof(TYPE, field), offset); \
    fact("size of " #field " in " TYPE_NAME, sizeof(((TYPE *)NULL)->field), size);
#define TEXT(name, text) fact(#name, strcmp(name, text), 0);

static void scalars(void)
{
    S(DAT_BOOLEAN, 4) S(DAT_COMPLETION_FLAGS, 4) S(DAT_CONN_QUAL, 8) S(DAT_COUNT, 4)
    S(DAT_EP_STATE, 4) S(DAT_EVENT_NUMBER, 4) S(DAT_HANDLE, 8) S(DAT_IA_ADDRESS_PTR, 8)
    S(DAT_IA_ATTR_MASK, 8) S(DAT_LMR_CONTEXT, 4) S(DAT_NAME_PTR, 8) S(DAT_PADDR, 8)
    S(DAT_PORT_QUAL, 8) S(DAT_PROVIDER_ATTR_MASK, 8) S(DAT_PVOID, 8) S(DAT_RETURN, 4)
    S(DAT_RMR_CONTEXT, 4) S(DAT_SRQ_PARAM_MASK, 4) S(DAT_TIMEOUT, 4) S(DAT_UINT32, 4)
    S(DAT_UINT64, 8) S(DAT_UVERYLONG, 8) S(DAT_VADDR, 8) S(DAT_VLEN, 8) S(DAT_SEG_LENGTH, 4)
    S(DAT_FD, 4) S(DAT_HA_LB, 4) S(DAT_EXTENDED_OP, 4) S(DAT_EP_PARAM_MASK, 8) S(DAT_SOCK_ADDR, 16)
    S(DAT_SOCK_ADDR6, 28) S(DAT_COMM, 12) S(DAT_LMR_COOKIE, 8) S(DAT_CNO_HANDLE, 8)
    S(DAT_IB_COLLECTIVE_HANDLE, 8) S(DAT_IB_COLLECTIVE_RANK, 4) S(DAT_IB_COLLECTIVE_ID, 4)
    S(DAT_IB_COLLECTIVE_MEMBER, 8) S(DAT_RMR_BIND_COMPLETION_STATUS, 4) S(DAT_AGENT_FUNC, 8)
}

static void structures(void)
{
    S(struct dat_named_attr, 16)
#define TYPE struct dat_named_attr
#define TYPE_NAME "dat_named_attr"
    F(name, 0, 8) F(value, 8, 8)
#undef TYPE
#undef TYPE_NAME
    S(union dat_context, 8)
#define TYPE union dat_context
#define TYPE_NAME "dat_context"
    F(as_ptr, 0, 8) F(as_64, 0, 8) F(as_index, 0, 8)
#undef TYPE
#undef TYPE_NAME
    S(struct dat_lmr_triplet, 16)
#define TYPE struct dat_lmr_triplet
#define TYPE_NAME "dat_lmr_triplet"
    F(virtual_address, 0, 8) F(segment_length, 8, 4) F(lmr_context, 12, 4)
#undef TYPE
#undef TYPE_NAME
    S(struct dat_rmr_triplet, 16)
#define TYPE struct dat_rmr_triplet
#define TYPE_NAME "dat_rmr_triplet"
    F(virtual_address, 0, 8) F(segment_length, 8, 4) F(rmr_context, 12, 4)
#undef TYPE
#undef TYPE_NAME
    S(struct dat_rmr_param, 48)
#define TYPE struct dat_rmr_param
#define TYPE_NAME "dat_rmr_param"
    F(ia_handle, 0, 8) F(pz_handle, 8, 8) F(lmr_triplet, 16, 16) F(mem_priv, 32, 4)
    F(rmr_context, 36, 4) F(rmr_scope, 40, 4) F(va_type, 44, 4)
#undef TYPE
#undef TYPE_NAME
    S(struct dat_ep_attr, 88)
#define TYPE struct dat_ep_attr
#define TYPE_NAME "dat_ep_attr"
    F(service_type, 0, 4) F(max_message_size, 4, 4) F(max_rdma_size, 8, 4) F(qos, 12, 4)
    F(recv_completion_flags, 16, 4) F(request_completion_flags, 20, 4) F(max_recv_dtos, 24, 4)
    F(max_request_dtos, 28, 4) F(max_recv_iov, 32, 4) F(max_request_iov, 36, 4)
    F(max_rdma_read_in, 40, 4) F(max_rdma_read_out, 44, 4) F(srq_soft_hw, 48, 4)
    F(max_rdma_read_iov, 52, 4) F(max_rdma_write_iov, 56, 4) F(ep_transport_specific_count, 60, 4)
    F(ep_transport_specific, 64, 8) F(ep_provider_specific_count, 72, 4)
    F(ep_provider_specific, 80, 8)
#undef TYPE
#undef TYPE_NAME
    S(struct dat_ep_param, 184)
#define TYPE struct dat_ep_param
#define TYPE_NAME "dat_ep_param"
    F(ia_handle, 0, 8) F(ep_state, 8, 4) F(comm, 12, 12) F(local_ia_address_ptr, 24, 8)
    F(local_port_qual, 32, 8) F(remote_ia_address_ptr, 40, 8) F(remote_port_qual, 48, 8)
    F(pz_handle, 56, 8) F(recv_evd_handle, 64, 8) F(request_evd_handle, 72, 8)
    F(connect_evd_handle, 80, 8) F(srq_handle, 88, 8) F(ep_attr, 96, 88)
#undef TYPE
#undef TYPE_NAME
    S(struct dat_srq_attr, 12)
#define TYPE struct dat_srq_attr
#define TYPE_NAME "dat_srq_attr"
    F(max_recv_dtos, 0, 4) F(max_recv_iov, 4, 4) F(low_watermark, 8, 4)
#undef TYPE
#undef TYPE_NAME
    S(struct dat_srq_param, 48)
#define TYPE struct dat_srq_param
#define TYPE_NAME "dat_srq_param"
    F(ia_handle, 0, 8) F(srq_state, 8, 4) F(pz_handle, 16, 8) F(max_recv_dtos, 24, 4)
    F(max_recv_iov, 28, 4) F(low_watermark, 32, 4) F(available_dto_count, 36, 4)
    F(outstanding_dto_count, 40, 4)
#undef TYPE
#undef TYPE_NAME
    S(struct dat_pz_param, 8)
#define TYPE struct dat_pz_param
#define TYPE_NAME "dat_pz_param"
    F(ia_handle, 0, 8)
#undef TYPE
#undef TYPE_NAME
    S(struct dat_psp_param, 32)
#define TYPE struct dat_psp_param
#define TYPE_NAME "dat_psp_param"
    F(ia_handle, 0, 8) F(conn_qual, 8, 8) F(evd_handle, 16, 8) F(psp_flags, 24, 4)
#undef TYPE
#undef TYPE_NAME
    S(struct dat_rsp_param, 32)
#define TYPE struct dat_rsp_param
#define TYPE_NAME "dat_rsp_param"
    F(ia_handle, 0, 8) F(conn_qual, 8, 8) F(evd_handle, 16, 8) F(ep_handle, 24, 8)
#undef TYPE
#undef TYPE_NAME
    S(struct dat_csp_param, 32)
#define TYPE struct dat_csp_param
#define TYPE_NAME "dat_csp_param"
    F(ia_handle, 0, 8) F(comm, 8, 8) F(address_ptr, 16, 8) F(evd_handle, 24, 8)
#undef TYPE
#undef TYPE_NAME
    S(struct dat_cr_param, 40)
#define TYPE struct dat_cr_param
#define TYPE_NAME "dat_cr_param"
    F(remote_ia_address_ptr, 0, 8) F(remote_port_qual, 8, 8) F(private_data_size, 16, 4)
    F(private_data, 24, 8) F(local_ep_handle, 32, 8)
#undef TYPE
#undef TYPE_NAME
    S(struct dat_dto_completion_event_data, 32)
#define TYPE struct dat_dto_completion_event_data
#define TYPE_NAME "dat_dto_completion_event_data"
    F(ep_handle, 0, 8) F(user_cookie, 8, 8) F(status, 16, 4) F(transfered_length, 20, 4)
    F(operation, 24, 4) F(rmr_context, 28, 4)
#undef TYPE
#undef TYPE_NAME
    S(struct dat_rmr_bind_completion_event_data, 24)
#define TYPE struct dat_rmr_bind_completion_event_data
#define TYPE_NAME "dat_rmr_bind_completion_event_data"
    F(rmr_handle, 0, 8) F(user_cookie, 8, 8) F(status, 16, 4)
#undef TYPE
#undef TYPE_NAME
    S(union dat_sp_handle, 8)
#define TYPE union dat_sp_handle
#define TYPE_NAME "dat_sp_handle"
    F(rsp_handle, 0, 8) F(psp_handle, 0, 8) F(csp_handle, 0, 8)
#undef TYPE
#undef TYPE_NAME
    S(struct dat_cr_arrival_event_data, 40)
#define TYPE struct dat_cr_arrival_event_data
#define TYPE_NAME "dat_cr_arrival_event_data"
    F(sp_handle, 0, 8) F(local_ia_address_ptr, 8, 8) F(conn_qual, 16, 8) F(cr_handle, 24, 8)
    F(truncate_flag, 32, 4)
#undef TYPE
#undef TYPE_NAME
    S(struct dat_connection_event_data, 24)
#define TYPE struct dat_connection_event_data
#define TYPE_NAME "dat_connection_event_data"
    F(ep_handle, 0, 8) F(private_data_size, 8, 4) F(private_data, 16, 8)
#undef TYPE
#undef TYPE_NAME
    S(struct dat_asynch_error_event_data, 16)
#define TYPE struct dat_asynch_error_event_data
#define TYPE_NAME "dat_asynch_error_event_data"
    F(dat_handle, 0, 8) F(reason, 8, 4)
#undef TYPE
#undef TYPE_NAME
    S(struct dat_software_event_data, 8)
#define TYPE struct dat_software_event_data
#define TYPE_NAME "dat_software_event_data"
    F(pointer, 0, 8)
#undef TYPE
#undef TYPE_NAME
    S(union dat_event_data, 40)
#define TYPE union dat_event_data
#define TYPE_NAME "dat_event_data"
    F(dto_completion_event_data, 0, 32) F(rmr_completion_event_data, 0, 24)
    F(cr_arrival_event_data, 0, 40) F(connect_event_data, 0, 24) F(asynch_error_event_data, 0, 16)
    F(software_event_data, 0, 8)
#undef TYPE
#undef TYPE_NAME
    S(struct dat_event, 120)
#define TYPE struct dat_event
#define TYPE_NAME "dat_event"
    F(event_number, 0, 4) F(evd_handle, 8, 8) F(event_data, 16, 40) F(event_extension_data, 56, 64)
#undef TYPE
#undef TYPE_NAME
    S(struct dat_provider_info, 268)
#define TYPE struct dat_provider_info
#define TYPE_NAME "dat_provider_info"
    F(ia_name, 0, 256) F(dapl_version_major, 256, 4) F(dapl_version_minor, 260, 4)
    F(is_thread_safe, 264, 4)
#undef TYPE
#undef TYPE_NAME
    S(struct dat_evd_param, 32)
#define TYPE struct dat_evd_param
#define TYPE_NAME "dat_evd_param"
    F(ia_handle, 0, 8) F(evd_qlen, 8, 4) F(evd_state, 12, 4) F(cno_handle, 16, 8)
    F(evd_flags, 24, 4)
#undef TYPE
#undef TYPE_NAME
    S(struct dat_os_wait_proxy_agent, 16)
#define TYPE struct dat_os_wait_proxy_agent
#define TYPE_NAME "dat_os_wait_proxy_agent"
    F(instance_data, 0, 8) F(proxy_agent_func, 8, 8)
#undef TYPE
#undef TYPE_NAME
    S(struct dat_shared_memory, 16)
#define TYPE struct dat_shared_memory
#define TYPE_NAME "dat_shared_memory"
    F(virtual_address, 0, 8) F(shared_memory_id, 8, 8)
#undef TYPE
#undef TYPE_NAME
    S(union dat_region_description, 16)
#define TYPE union dat_region_description
#define TYPE_NAME "dat_region_description"
    F(for_va, 0, 8) F(for_lmr_handle, 0, 8) F(for_shared_memory, 0, 16)
#undef TYPE
#undef TYPE_NAME
    S(struct dat_lmr_param, 80)
#define TYPE struct dat_lmr_param
#define TYPE_NAME "dat_lmr_param"
    F(ia_handle, 0, 8) F(mem_type, 8, 4) F(region_desc, 16, 16) F(length, 32, 8)
    F(pz_handle, 40, 8) F(mem_priv, 48, 4) F(va_type, 52, 4) F(lmr_context, 56, 4)
    F(rmr_context, 60, 4) F(registered_size, 64, 8) F(registered_address, 72, 8)
#undef TYPE
#undef TYPE_NAME
    S(struct dat_cno_param, 32)
#define TYPE struct dat_cno_param
#define TYPE_NAME "dat_cno_param"
    F(ia_handle, 0, 8) F(proxy_type, 8, 4) F(proxy, 16, 16)
#undef TYPE
#undef TYPE_NAME
    S(struct dat_ia_attr, 688)
#define TYPE struct dat_ia_attr
#define TYPE_NAME "dat_ia_attr"
    F(adapter_name, 0, 256) F(vendor_name, 256, 256) F(hardware_version_major, 512, 4)
    F(hardware_version_minor, 516, 4) F(firmware_version_major, 520, 4)
    F(firmware_version_minor, 524, 4) F(ia_address_ptr, 528, 8) F(max_eps, 536, 4)
    F(max_dto_per_ep, 540, 4) F(max_rdma_read_per_ep_in, 544, 4)
    F(max_rdma_read_per_ep_out, 548, 4) F(max_evds, 552, 4) F(max_evd_qlen, 556, 4)
    F(max_iov_segments_per_dto, 560, 4) F(max_lmrs, 564, 4) F(max_lmr_block_size, 568, 4)
    F(max_lmr_virtual_address, 576, 8) F(max_pzs, 584, 4) F(max_message_size, 588, 4)
    F(max_rdma_size, 592, 4) F(max_rmrs, 596, 4) F(max_rmr_target_address, 600, 8)
    F(max_srqs, 608, 4) F(max_ep_per_srq, 612, 4) F(max_recv_per_srq, 616, 4)
    F(max_iov_segments_per_rdma_read, 620, 4) F(max_iov_segments_per_rdma_write, 624, 4)
    F(max_rdma_read_in, 628, 4) F(max_rdma_read_out, 632, 4)
    F(max_rdma_read_per_ep_in_guaranteed, 636, 4) F(max_rdma_read_per_ep_out_guaranteed, 640, 4)
    F(zb_supported, 644, 4) F(extension_supported, 648, 4) F(extension_version, 652, 4)
    F(num_transport_attr, 656, 4) F(transport_attr, 664, 8) F(num_vendor_attr, 672, 4)
    F(vendor_attr, 680, 8)
#undef TYPE
#undef TYPE_NAME
    S(struct dat_provider_attr, 520)
#define TYPE struct dat_provider_attr
#define TYPE_NAME "dat_provider_attr"
    F(provider_name, 0, 256) F(provider_version_major, 256, 4) F(provider_version_minor, 260, 4)
    F(dapl_version_major, 264, 4) F(dapl_version_minor, 268, 4) F(lmr_mem_types_supported, 272, 4)
    F(iov_ownership_on_return, 276, 4) F(dat_qos_supported, 280, 4)
    F(completion_flags_supported, 284, 4) F(is_thread_safe, 288, 4)
    F(max_private_data_size, 292, 4) F(supports_multipath, 296, 4) F(ep_creator, 300, 4)
    F(pz_support, 304, 4) F(optimal_buffer_alignment, 308, 4)
    F(evd_stream_merging_supported, 312, 144) F(srq_supported, 456, 4)
    F(srq_watermarks_supported, 460, 4) F(srq_ep_pz_difference_supported, 464, 4)
    F(srq_info_supported, 468, 4) F(ep_recv_info_supported, 472, 4) F(lmr_sync_req, 476, 4)
    F(dto_async_return_guaranteed, 480, 4) F(rdma_write_for_rdma_read_req, 484, 4)
    F(rdma_read_lmr_rmr_context_exposure, 488, 4) F(rmr_scope_supported, 492, 4)
    F(is_signal_safe, 496, 4) F(ha_supported, 500, 4) F(ha_loadbalancing, 504, 4)
    F(num_provider_specific_attr, 508, 4) F(provider_specific_attr, 512, 8)
#undef TYPE
#undef TYPE_NAME
    S(struct dat_ib_addr_handle, 40)
#define TYPE struct dat_ib_addr_handle
#define TYPE_NAME "dat_ib_addr_handle"
    F(ah, 0, 8) F(qpn, 8, 4) F(ia_addr, 12, 28)
#undef TYPE
#undef TYPE_NAME
    S(struct dat_ib_immed_data, 4)
#define TYPE struct dat_ib_immed_data
#define TYPE_NAME "dat_ib_immed_data"
    F(data, 0, 4)
#undef TYPE
#undef TYPE_NAME
    S(struct dat_ib_collective_event_data, 16)
#define TYPE struct dat_ib_collective_event_data
#define TYPE_NAME "dat_ib_collective_event_data"
    F(handle, 0, 8) F(context, 8, 8)
#undef TYPE
#undef TYPE_NAME
    S(struct dat_ib_extension_event_data, 64)
#define TYPE struct dat_ib_extension_event_data
#define TYPE_NAME "dat_ib_extension_event_data"
    F(type, 0, 4) F(status, 4, 4) F(val, 8, 4) F(remote_ah, 16, 40) F(coll, 16, 16)
    F(context, 56, 8)
#undef TYPE
#undef TYPE_NAME
    S(struct dat_ib_collective_group, 56)
#define TYPE struct dat_ib_collective_group
#define TYPE_NAME "dat_ib_collective_group"
    F(local_size, 0, 4) F(local_rank, 4, 4) F(local_ranks, 8, 8) F(external_size, 16, 4)
    F(external_rank, 20, 4) F(external_ranks, 24, 8) F(intranode_table, 32, 8)
    F(internode_table, 40, 8) F(is_comm_world, 48, 4)
#undef TYPE
#undef TYPE_NAME
    S(struct dat_provider, 648)
#define TYPE struct dat_provider
#define TYPE_NAME "dat_provider"
    F(device_name, 0, 8) F(extension, 8, 8) F(ia_open_func, 16, 8) F(ia_query_func, 24, 8)
    F(ia_close_func, 32, 8) F(set_consumer_context_func, 40, 8) F(get_consumer_context_func, 48, 8)
    F(get_handle_type_func, 56, 8) F(cno_create_func, 64, 8) F(cno_modify_agent_func, 72, 8)
    F(cno_query_func, 80, 8) F(cno_free_func, 88, 8) F(cno_wait_func, 96, 8)
    F(cr_query_func, 104, 8) F(cr_accept_func, 112, 8) F(cr_reject_func, 120, 8)
    F(cr_handoff_func, 128, 8) F(evd_create_func, 136, 8) F(evd_query_func, 144, 8)
    F(evd_modify_cno_func, 152, 8) F(evd_enable_func, 160, 8) F(evd_disable_func, 168, 8)
    F(evd_wait_func, 176, 8) F(evd_resize_func, 184, 8) F(evd_post_se_func, 192, 8)
    F(evd_dequeue_func, 200, 8) F(evd_free_func, 208, 8) F(ep_create_func, 216, 8)
    F(ep_query_func, 224, 8) F(ep_modify_func, 232, 8) F(ep_connect_func, 240, 8)
    F(ep_dup_connect_func, 248, 8) F(ep_disconnect_func, 256, 8) F(ep_post_send_func, 264, 8)
    F(ep_post_recv_func, 272, 8) F(ep_post_rdma_read_func, 280, 8)
    F(ep_post_rdma_write_func, 288, 8) F(ep_get_status_func, 296, 8) F(ep_free_func, 304, 8)
    F(lmr_create_func, 312, 8) F(lmr_query_func, 320, 8) F(lmr_free_func, 328, 8)
    F(rmr_create_func, 336, 8) F(rmr_query_func, 344, 8) F(rmr_bind_func, 352, 8)
    F(rmr_free_func, 360, 8) F(psp_create_func, 368, 8) F(psp_query_func, 376, 8)
    F(psp_free_func, 384, 8) F(rsp_create_func, 392, 8) F(rsp_query_func, 400, 8)
    F(rsp_free_func, 408, 8) F(pz_create_func, 416, 8) F(pz_query_func, 424, 8)
    F(pz_free_func, 432, 8) F(psp_create_any_func, 440, 8) F(ep_reset_func, 448, 8)
    F(evd_set_unwaitable_func, 456, 8) F(evd_clear_unwaitable_func, 464, 8)
    F(lmr_sync_rdma_read_func, 472, 8) F(lmr_sync_rdma_write_func, 480, 8)
    F(ep_create_with_srq_func, 488, 8) F(ep_recv_query_func, 496, 8)
    F(ep_set_watermark_func, 504, 8) F(srq_create_func, 512, 8) F(srq_free_func, 520, 8)
    F(srq_post_recv_func, 528, 8) F(srq_query_func, 536, 8) F(srq_resize_func, 544, 8)
    F(srq_set_lw_func, 552, 8) F(csp_create_func, 560, 8) F(csp_query_func, 568, 8)
    F(csp_free_func, 576, 8) F(ep_common_connect_func, 584, 8) F(rmr_create_for_ep_func, 592, 8)
    F(ep_post_send_with_invalidate_func, 600, 8) F(ep_post_rdma_read_to_rmr_func, 608, 8)
    F(cno_fd_create_func, 616, 8) F(cno_trigger_func, 624, 8) F(ia_ha_related_func, 632, 8)
    F(handle_extendedop_func, 640, 8)
#undef TYPE
#undef TYPE_NAME
}

static void numbers(void)
{
    V(DAT_FALSE, 0) V(DAT_TRUE, 1)
    V(DAT_COMPLETION_DEFAULT_FLAG, 0) V(DAT_COMPLETION_SUPPRESS_FLAG, 1)
    V(DAT_COMPLETION_SOLICITED_WAIT_FLAG, 2) V(DAT_COMPLETION_UNSIGNALLED_FLAG, 4)
    V(DAT_COMPLETION_BARRIER_FENCE_FLAG, 8) V(DAT_COMPLETION_EVD_THRESHOLD_FLAG, 16)
    V(DAT_COMPLETION_LMR_INVALIDATE_FENCE_FLAG, 32)
    V(DAT_DTO_SEND, 0) V(DAT_DTO_RDMA_WRITE, 1) V(DAT_DTO_RDMA_READ, 2) V(DAT_DTO_RECEIVE, 3)
    V(DAT_DTO_RECEIVE_WITH_INVALIDATE, 4) V(DAT_DTO_BIND_MW, 5) V(DAT_DTO_LMR_FMR, 6)
    V(DAT_DTO_LMR_INVALIDATE, 7) V(DAT_DTO_EXTENSION_BASE, 8)
    V(DAT_QOS_BEST_EFFORT, 0) V(DAT_QOS_HIGH_THROUGHPUT, 1) V(DAT_QOS_LOW_LATENCY, 2)
    V(DAT_QOS_ECONOMY, 4) V(DAT_QOS_PREMIUM, 8)
    V(DAT_CONNECT_DEFAULT_FLAG, 0) V(DAT_CONNECT_MULTIPATH_REQUESTED_FLAG, 1)
    V(DAT_CONNECT_MULTIPATH_REQUIRED_FLAG, 2)
    V(DAT_CLOSE_ABRUPT_FLAG, 0) V(DAT_CLOSE_GRACEFUL_FLAG, 1)
    V(DAT_EVD_SOFTWARE_FLAG, 1) V(DAT_EVD_CR_FLAG, 16) V(DAT_EVD_DTO_FLAG, 32)
    V(DAT_EVD_CONNECTION_FLAG, 64) V(DAT_EVD_RMR_BIND_FLAG, 128) V(DAT_EVD_ASYNC_FLAG, 256)
    V(DAT_EVD_DEFAULT_FLAG, 496) V(DAT_EVD_EXTENSION_BASE, 512)
    V(DAT_PSP_CONSUMER_FLAG, 0) V(DAT_PSP_PROVIDER_FLAG, 1)
    V(DAT_MEM_PRIV_NONE_FLAG, 0) V(DAT_MEM_PRIV_LOCAL_READ_FLAG, 1)
    V(DAT_MEM_PRIV_REMOTE_READ_FLAG, 2) V(DAT_MEM_PRIV_LOCAL_WRITE_FLAG, 16)
    V(DAT_MEM_PRIV_REMOTE_WRITE_FLAG, 32) V(DAT_MEM_PRIV_ALL_FLAG, 51)
    V(DAT_MEM_PRIV_EXTENSION_BASE, 64)
    V(DAT_VA_TYPE_VA, 0) V(DAT_VA_TYPE_ZB, 1)
    V(DAT_RMR_SCOPE_EP, 0) V(DAT_RMR_SCOPE_PZ, 1) V(DAT_RMR_SCOPE_ANY, 2)
    V(DAT_RMR_FIELD_IA_HANDLE, 1) V(DAT_RMR_FIELD_PZ_HANDLE, 2) V(DAT_RMR_FIELD_LMR_TRIPLET, 4)
    V(DAT_RMR_FIELD_MEM_PRIV, 8) V(DAT_RMR_FIELD_RMR_CONTEXT, 16) V(DAT_RMR_FIELD_RMR_SCOPE, 32)
    V(DAT_RMR_FIELD_VA_TYPE, 64) V(DAT_RMR_FIELD_ALL, 127)
    V(DAT_IOV_CONSUMER, 0) V(DAT_IOV_PROVIDER_NOMOD, 1) V(DAT_IOV_PROVIDER_MOD, 2)
    V(DAT_PSP_CREATES_EP_NEVER, 0) V(DAT_PSP_CREATES_EP_IFASKED, 1) V(DAT_PSP_CREATES_EP_ALWAYS, 2)
    V(DAT_EXTENSION_NONE, 0) V(DAT_EXTENSION_IB, 1) V(DAT_EXTENSION_IW, 2)
    V(DAT_SERVICE_TYPE_RC, 0) V(DAT_SERVICE_TYPE_EXTENSION_BASE, 1)
    V(DAT_EP_STATE_UNCONNECTED, 0) V(DAT_EP_STATE_UNCONFIGURED_UNCONNECTED, 1)
    V(DAT_EP_STATE_RESERVED, 2) V(DAT_EP_STATE_UNCONFIGURED_RESERVED, 3)
    V(DAT_EP_STATE_PASSIVE_CONNECTION_PENDING, 4) V(DAT_EP_STATE_UNCONFIGURED_PASSIVE, 5)
    V(DAT_EP_STATE_ACTIVE_CONNECTION_PENDING, 6) V(DAT_EP_STATE_TENTATIVE_CONNECTION_PENDING, 7)
    V(DAT_EP_STATE_UNCONFIGURED_TENTATIVE, 8) V(DAT_EP_STATE_CONNECTED, 9)
    V(DAT_EP_STATE_DISCONNECT_PENDING, 10) V(DAT_EP_STATE_DISCONNECTED, 11)
    V(DAT_EP_STATE_COMPLETION_PENDING, 12) V(DAT_EP_STATE_CONNECTED_SINGLE_PATH, 13)
    V(DAT_EP_STATE_CONNECTED_MULTI_PATH, 14)
    V(DAT_SRQ_STATE_ERROR, 0) V(DAT_SRQ_STATE_OPERATIONAL, 1) V(DAT_SRQ_STATE_SHUTDOWN, 2)
    V(DAT_SRQ_FIELD_IA_HANDLE, 1) V(DAT_SRQ_FIELD_SRQ_STATE, 2) V(DAT_SRQ_FIELD_PZ_HANDLE, 4)
    V(DAT_SRQ_FIELD_MAX_RECV_DTO, 8) V(DAT_SRQ_FIELD_MAX_RECV_IOV, 16)
    V(DAT_SRQ_FIELD_LOW_WATERMARK, 32) V(DAT_SRQ_FIELD_AVAILABLE_DTO_COUNT, 64)
    V(DAT_SRQ_FIELD_OUTSTANDING_DTO_COUNT, 128) V(DAT_SRQ_FIELD_ALL, 255)
    V(DAT_PZ_FIELD_IA_HANDLE, 1) V(DAT_PZ_FIELD_ALL, 1)
    V(DAT_PSP_FIELD_IA_HANDLE, 1) V(DAT_PSP_FIELD_CONN_QUAL, 2) V(DAT_PSP_FIELD_EVD_HANDLE, 4)
    V(DAT_PSP_FIELD_PSP_FLAGS, 8) V(DAT_PSP_FIELD_ALL, 15)
    V(DAT_RSP_FIELD_IA_HANDLE, 1) V(DAT_RSP_FIELD_CONN_QUAL, 2) V(DAT_RSP_FIELD_EVD_HANDLE, 4)
    V(DAT_RSP_FIELD_EP_HANDLE, 8) V(DAT_RSP_FIELD_ALL, 15)
    V(DAT_CSP_FIELD_IA_HANDLE, 1) V(DAT_CSP_FIELD_COMM, 2) V(DAT_CSP_FIELD_IA_ADDRESS, 4)
    V(DAT_CSP_FIELD_EVD_HANDLE, 8) V(DAT_CSP_FIELD_ALL, 15)
    V(DAT_CR_FIELD_REMOTE_IA_ADDRESS_PTR, 1) V(DAT_CR_FIELD_REMOTE_PORT_QUAL, 2)
    V(DAT_CR_FIELD_PRIVATE_DATA_SIZE, 4) V(DAT_CR_FIELD_PRIVATE_DATA, 8)
    V(DAT_CR_FIELD_LOCAL_EP_HANDLE, 16) V(DAT_CR_FIELD_ALL, 31)
    V(DAT_DTO_SUCCESS, 0) V(DAT_DTO_ERR_FLUSHED, 1) V(DAT_DTO_ERR_LOCAL_LENGTH, 2)
    V(DAT_DTO_ERR_LOCAL_EP, 3) V(DAT_DTO_ERR_LOCAL_PROTECTION, 4) V(DAT_DTO_ERR_BAD_RESPONSE, 5)
    V(DAT_DTO_ERR_REMOTE_ACCESS, 6) V(DAT_DTO_ERR_REMOTE_RESPONDER, 7) V(DAT_DTO_ERR_TRANSPORT, 8)
    V(DAT_DTO_ERR_RECEIVER_NOT_READY, 9) V(DAT_DTO_ERR_PARTIAL_PACKET, 10)
    V(DAT_RMR_OPERATION_FAILED, 11) V(DAT_DTO_ERR_LOCAL_MM_ERROR, 12)
    V(DAT_IA_CATASTROPHIC_ERROR, 0) V(DAT_IA_OTHER_ERROR, 1)
    V(DAT_EP_TRANSFER_TO_ERROR, 0) V(DAT_EP_OTHER_ERROR, 1) V(DAT_SRQ_SOFT_HIGH_WATERMARK_EVENT, 2)
    V(DAT_EVD_OVERFLOW_ERROR, 0) V(DAT_EVD_OTHER_ERROR, 1)
    V(DAT_SRQ_TRANSFER_TO_ERROR, 0) V(DAT_SRQ_OTHER_ERROR, 1) V(DAT_SRQ_LOW_WATERMARK_EVENT, 2)
    V(DAT_LMR_OTHER_ERROR, 0)
    V(DAT_RMR_OTHER_ERROR, 0)
    V(DAT_PZ_OTHER_ERROR, 0)
    V(DAT_DTO_COMPLETION_EVENT, 1) V(DAT_RMR_BIND_COMPLETION_EVENT, 4097)
    V(DAT_CONNECTION_REQUEST_EVENT, 8193) V(DAT_CONNECTION_EVENT_ESTABLISHED, 16385)
    V(DAT_CONNECTION_EVENT_PEER_REJECTED, 16386) V(DAT_CONNECTION_EVENT_NON_PEER_REJECTED, 16387)
    V(DAT_CONNECTION_EVENT_ACCEPT_COMPLETION_ERROR, 16388)
    V(DAT_CONNECTION_EVENT_DISCONNECTED, 16389) V(DAT_CONNECTION_EVENT_BROKEN, 16390)
    V(DAT_CONNECTION_EVENT_TIMED_OUT, 16391) V(DAT_CONNECTION_EVENT_UNREACHABLE, 16392)
    V(DAT_ASYNC_ERROR_EVD_OVERFLOW, 32769) V(DAT_ASYNC_ERROR_IA_CATASTROPHIC, 32770)
    V(DAT_ASYNC_ERROR_EP_BROKEN, 32771) V(DAT_ASYNC_ERROR_TIMED_OUT, 32772)
    V(DAT_ASYNC_ERROR_PROVIDER_INTERNAL_ERROR, 32773) V(DAT_HA_DOWN_TO_1, 33025)
    V(DAT_HA_UP_TO_MULTI_PATH, 33026) V(DAT_SOFTWARE_EVENT, 65537) V(DAT_EXTENSION_EVENT, 131072)
    V(DAT_IB_EXTENSION_RANGE_BASE, 262144) V(DAT_IW_EXTENSION_RANGE_BASE, 524288)
    V(DAT_MEM_TYPE_VIRTUAL, 0) V(DAT_MEM_TYPE_LMR, 1) V(DAT_MEM_TYPE_SHARED_VIRTUAL, 2)
    V(DAT_HANDLE_TYPE_CR, 0) V(DAT_HANDLE_TYPE_EP, 1) V(DAT_HANDLE_TYPE_EVD, 2)
    V(DAT_HANDLE_TYPE_IA, 3) V(DAT_HANDLE_TYPE_LMR, 4) V(DAT_HANDLE_TYPE_PSP, 5)
    V(DAT_HANDLE_TYPE_PZ, 6) V(DAT_HANDLE_TYPE_RMR, 7) V(DAT_HANDLE_TYPE_RSP, 8)
    V(DAT_HANDLE_TYPE_CNO, 9) V(DAT_HANDLE_TYPE_SRQ, 10) V(DAT_HANDLE_TYPE_CSP, 11)
    V(DAT_HANDLE_TYPE_EXTENSION_BASE, 12)
    V(DAT_EVD_STATE_ENABLED, 1) V(DAT_EVD_STATE_DISABLED, 2) V(DAT_EVD_STATE_WAITABLE, 4)
    V(DAT_EVD_STATE_UNWAITABLE, 8) V(DAT_EVD_STATE_CONFIG_NOTIFY, 16)
    V(DAT_EVD_STATE_CONFIG_SOLICITED, 32) V(DAT_EVD_STATE_CONFIG_THRESHOLD, 48)
    V(DAT_EVD_FIELD_IA_HANDLE, 1) V(DAT_EVD_FIELD_EVD_QLEN, 2) V(DAT_EVD_FIELD_EVD_STATE, 4)
    V(DAT_EVD_FIELD_CNO, 8) V(DAT_EVD_FIELD_EVD_FLAGS, 16) V(DAT_EVD_FIELD_ALL, 31)
    V(DAT_LMR_FIELD_IA_HANDLE, 1) V(DAT_LMR_FIELD_MEM_TYPE, 2) V(DAT_LMR_FIELD_REGION_DESC, 4)
    V(DAT_LMR_FIELD_LENGTH, 8) V(DAT_LMR_FIELD_PZ_HANDLE, 16) V(DAT_LMR_FIELD_MEM_PRIV, 32)
    V(DAT_LMR_FIELD_VA_TYPE, 64) V(DAT_LMR_FIELD_LMR_CONTEXT, 128)
    V(DAT_LMR_FIELD_RMR_CONTEXT, 256) V(DAT_LMR_FIELD_REGISTERED_SIZE, 512)
    V(DAT_LMR_FIELD_REGISTERED_ADDRESS, 1024) V(DAT_LMR_FIELD_ALL, 2047)
    V(DAT_PROXY_TYPE_NONE, 0) V(DAT_PROXY_TYPE_AGENT, 1) V(DAT_PROXY_TYPE_FD, 2)
    V(DAT_CNO_FIELD_IA_HANDLE, 1) V(DAT_CNO_FIELD_PROXY_TYPE, 2) V(DAT_CNO_FIELD_PROXY, 3)
    V(DAT_CNO_FIELD_ALL, 4)
    V(DAT_PZ_UNIQUE, 0) V(DAT_PZ_SHAREABLE, 1)
    V(DAT_SUCCESS, 0) V(DAT_ABORT, 65536) V(DAT_CONN_QUAL_IN_USE, 131072)
    V(DAT_INSUFFICIENT_RESOURCES, 196608) V(DAT_INTERNAL_ERROR, 262144)
    V(DAT_INVALID_HANDLE, 327680) V(DAT_INVALID_PARAMETER, 393216) V(DAT_INVALID_STATE, 458752)
    V(DAT_LENGTH_ERROR, 524288) V(DAT_MODEL_NOT_SUPPORTED, 589824)
    V(DAT_PROVIDER_NOT_FOUND, 655360) V(DAT_PRIVILEGES_VIOLATION, 720896)
    V(DAT_PROTECTION_VIOLATION, 786432) V(DAT_QUEUE_EMPTY, 851968) V(DAT_QUEUE_FULL, 917504)
    V(DAT_TIMEOUT_EXPIRED, 983040) V(DAT_PROVIDER_ALREADY_REGISTERED, 1048576)
    V(DAT_PROVIDER_IN_USE, 1114112) V(DAT_INVALID_ADDRESS, 1179648)
    V(DAT_INTERRUPTED_CALL, 1245184) V(DAT_CONN_QUAL_UNAVAILABLE, 1310720)
    V(DAT_RESERVED_LMR, 1376256) V(DAT_PORT_IN_USE, 1441792) V(DAT_COMM_NOT_SUPPORTED, 1507328)
    V(DAT_EXTENSION_BASE, 268435456) V(DAT_NOT_IMPLEMENTED, 1073676288)
    V(DAT_NO_SUBTYPE, 0) V(DAT_SUB_INTERRUPTED, 1) V(DAT_RESOURCE_MEMORY, 2)
    V(DAT_RESOURCE_DEVICE, 3) V(DAT_RESOURCE_TEP, 4) V(DAT_RESOURCE_TEVD, 5)
    V(DAT_RESOURCE_PROTECTION_DOMAIN, 6) V(DAT_RESOURCE_MEMORY_REGION, 7)
    V(DAT_RESOURCE_ERROR_HANDLER, 8) V(DAT_RESOURCE_CREDITS, 9) V(DAT_RESOURCE_SRQ, 10)
    V(DAT_INVALID_HANDLE_IA, 11) V(DAT_INVALID_HANDLE_EP, 12) V(DAT_INVALID_HANDLE_LMR, 13)
    V(DAT_INVALID_HANDLE_RMR, 14) V(DAT_INVALID_HANDLE_PZ, 15) V(DAT_INVALID_HANDLE_PSP, 16)
    V(DAT_INVALID_HANDLE_RSP, 17) V(DAT_INVALID_HANDLE_CR, 18) V(DAT_INVALID_HANDLE_CNO, 19)
    V(DAT_INVALID_HANDLE_EVD_CR, 20) V(DAT_INVALID_HANDLE_EVD_REQUEST, 21)
    V(DAT_INVALID_HANDLE_EVD_RECV, 22) V(DAT_INVALID_HANDLE_EVD_CONN, 23)
    V(DAT_INVALID_HANDLE_EVD_ASYNC, 24) V(DAT_INVALID_HANDLE_SRQ, 25) V(DAT_INVALID_HANDLE_CSP, 26)
    V(DAT_INVALID_HANDLE1, 27) V(DAT_INVALID_HANDLE2, 28) V(DAT_INVALID_HANDLE3, 29)
    V(DAT_INVALID_HANDLE4, 30) V(DAT_INVALID_HANDLE5, 31) V(DAT_INVALID_HANDLE6, 32)
    V(DAT_INVALID_HANDLE7, 33) V(DAT_INVALID_HANDLE8, 34) V(DAT_INVALID_HANDLE9, 35)
    V(DAT_INVALID_HANDLE10, 36) V(DAT_INVALID_ARG1, 37) V(DAT_INVALID_ARG2, 38)
    V(DAT_INVALID_ARG3, 39) V(DAT_INVALID_ARG4, 40) V(DAT_INVALID_ARG5, 41) V(DAT_INVALID_ARG6, 42)
    V(DAT_INVALID_ARG7, 43) V(DAT_INVALID_ARG8, 44) V(DAT_INVALID_ARG9, 45)
    V(DAT_INVALID_ARG10, 46) V(DAT_INVALID_STATE_EP_UNCONNECTED, 47)
    V(DAT_INVALID_STATE_EP_ACTCONNPENDING, 48) V(DAT_INVALID_STATE_EP_PASSCONNPENDING, 49)
    V(DAT_INVALID_STATE_EP_TENTCONNPENDING, 50) V(DAT_INVALID_STATE_EP_CONNECTED, 51)
    V(DAT_INVALID_STATE_EP_DISCONNECTED, 52) V(DAT_INVALID_STATE_EP_RESERVED, 53)
    V(DAT_INVALID_STATE_EP_COMPLPENDING, 54) V(DAT_INVALID_STATE_EP_DISCPENDING, 55)
    V(DAT_INVALID_STATE_EP_PROVIDERCONTROL, 56) V(DAT_INVALID_STATE_EP_NOTREADY, 57)
    V(DAT_INVALID_STATE_EP_RECV_WATERMARK, 58) V(DAT_INVALID_STATE_EP_PZ, 59)
    V(DAT_INVALID_STATE_EP_EVD_REQUEST, 60) V(DAT_INVALID_STATE_EP_EVD_RECV, 61)
    V(DAT_INVALID_STATE_EP_EVD_CONNECT, 62) V(DAT_INVALID_STATE_EP_UNCONFIGURED, 63)
    V(DAT_INVALID_STATE_EP_UNCONFRESERVED, 64) V(DAT_INVALID_STATE_EP_UNCONFPASSIVE, 65)
    V(DAT_INVALID_STATE_EP_UNCONFTENTATIVE, 66) V(DAT_INVALID_STATE_CNO_IN_USE, 67)
    V(DAT_INVALID_STATE_CNO_DEAD, 68) V(DAT_INVALID_STATE_EVD_OPEN, 69)
    V(DAT_INVALID_STATE_EVD_ENABLED, 70) V(DAT_INVALID_STATE_EVD_DISABLED, 71)
    V(DAT_INVALID_STATE_EVD_WAITABLE, 72) V(DAT_INVALID_STATE_EVD_UNWAITABLE, 73)
    V(DAT_INVALID_STATE_EVD_IN_USE, 74) V(DAT_INVALID_STATE_EVD_CONFIG_NOTIFY, 75)
    V(DAT_INVALID_STATE_EVD_CONFIG_SOLICITED, 76) V(DAT_INVALID_STATE_EVD_CONFIG_THRESHOLD, 77)
    V(DAT_INVALID_STATE_EVD_WAITER, 78) V(DAT_INVALID_STATE_EVD_ASYNC, 79)
    V(DAT_INVALID_STATE_IA_IN_USE, 80) V(DAT_INVALID_STATE_LMR_IN_USE, 81)
    V(DAT_INVALID_STATE_LMR_FREE, 82) V(DAT_INVALID_STATE_PZ_IN_USE, 83)
    V(DAT_INVALID_STATE_PZ_FREE, 84) V(DAT_INVALID_STATE_SRQ_OPERATIONAL, 85)
    V(DAT_INVALID_STATE_SRQ_ERROR, 86) V(DAT_INVALID_STATE_SRQ_IN_USE, 87)
    V(DAT_INVALID_STATE_SRQ_SHUTDOWN, 88) V(DAT_PRIVILEGES_READ, 89) V(DAT_PRIVILEGES_WRITE, 90)
    V(DAT_PRIVILEGES_RDMA_READ, 91) V(DAT_PRIVILEGES_RDMA_WRITE, 92) V(DAT_PROTECTION_READ, 93)
    V(DAT_PROTECTION_WRITE, 94) V(DAT_PROTECTION_RDMA_READ, 95) V(DAT_PROTECTION_RDMA_WRITE, 96)
    V(DAT_INVALID_ADDRESS_UNSUPPORTED, 97) V(DAT_INVALID_ADDRESS_UNREACHABLE, 98)
    V(DAT_INVALID_ADDRESS_MALFORMED, 99) V(DAT_NAME_NOT_REGISTERED, 100)
    V(DAT_MAJOR_NOT_FOUND, 101) V(DAT_MINOR_NOT_FOUND, 102) V(DAT_THREAD_SAFETY_NOT_FOUND, 103)
    V(DAT_IB_DTO_EVENT, 262144) V(DAT_IB_UD_CONNECTION_REQUEST_EVENT, 262145)
    V(DAT_IB_UD_CONNECTION_EVENT_ESTABLISHED, 262146) V(DAT_IB_UD_CONNECTION_REJECT_EVENT, 262147)
    V(DAT_IB_UD_CONNECTION_ERROR_EVENT, 262148) V(DAT_IB_COLLECTIVE_EVENT, 262149)
    V(DAT_IB_FETCH_AND_ADD_OP, 0) V(DAT_IB_CMP_AND_SWAP_OP, 1) V(DAT_IB_RDMA_WRITE_IMMED_OP, 2)
    V(DAT_IB_UD_SEND_OP, 3) V(DAT_IB_QUERY_COUNTERS_OP, 4) V(DAT_IB_PRINT_COUNTERS_OP, 5)
    V(DAT_IB_COLLECTIVE_CREATE_MEMBER_OP, 6) V(DAT_IB_COLLECTIVE_FREE_MEMBER_OP, 7)
    V(DAT_IB_COLLECTIVE_CREATE_GROUP_OP, 8) V(DAT_IB_COLLECTIVE_FREE_GROUP_OP, 9)
    V(DAT_IB_COLLECTIVE_SET_CLOCK_OP, 10) V(DAT_IB_COLLECTIVE_READ_CLOCK_OP, 11)
    V(DAT_IB_COLLECTIVE_SCATTER_OP, 12) V(DAT_IB_COLLECTIVE_SCATTERV_OP, 13)
    V(DAT_IB_COLLECTIVE_GATHER_OP, 14) V(DAT_IB_COLLECTIVE_GATHERV_OP, 15)
    V(DAT_IB_COLLECTIVE_ALLGATHER_OP, 16) V(DAT_IB_COLLECTIVE_ALLGATHERV_OP, 17)
    V(DAT_IB_COLLECTIVE_ALLTOALL_OP, 18) V(DAT_IB_COLLECTIVE_ALLTOALLV_OP, 19)
    V(DAT_IB_COLLECTIVE_REDUCE_OP, 20) V(DAT_IB_COLLECTIVE_ALLREDUCE_OP, 21)
    V(DAT_IB_COLLECTIVE_REDUCE_SCATTER_OP, 22) V(DAT_IB_COLLECTIVE_SCAN_OP, 23)
    V(DAT_IB_COLLECTIVE_BROADCAST_OP, 24) V(DAT_IB_COLLECTIVE_BARRIER_OP, 25)
    V(DAT_IB_START_COUNTERS_OP, 26) V(DAT_IB_STOP_COUNTERS_OP, 27) V(DAT_IB_UD_CM_FREE_OP, 28)
    V(DAT_IB_UD_AH_FREE_OP, 29) V(DAT_IB_OPEN_QUERY_OP, 4096) V(DAT_IB_CLOSE_QUERY_OP, 8192)
    V(DAT_IB_FETCH_AND_ADD, 0) V(DAT_IB_CMP_AND_SWAP, 1) V(DAT_IB_RDMA_WRITE_IMMED, 2)
    V(DAT_IB_RDMA_WRITE_IMMED_DATA, 3) V(DAT_IB_RECV_IMMED_DATA, 4) V(DAT_IB_UD_CONNECT_REQUEST, 5)
    V(DAT_IB_UD_REMOTE_AH, 6) V(DAT_IB_UD_PASSIVE_REMOTE_AH, 7) V(DAT_IB_UD_SEND, 8)
    V(DAT_IB_UD_RECV, 9) V(DAT_IB_UD_CONNECT_REJECT, 10) V(DAT_IB_UD_CONNECT_ERROR, 11)
    V(DAT_IB_COLLECTIVE_CREATE_STATUS, 12) V(DAT_IB_COLLECTIVE_CREATE_DATA, 13)
    V(DAT_IB_COLLECTIVE_CLOCK_SET_STATUS, 14) V(DAT_IB_COLLECTIVE_SCATTER_STATUS, 15)
    V(DAT_IB_COLLECTIVE_SCATTERV_STATUS, 16) V(DAT_IB_COLLECTIVE_GATHER_STATUS, 17)
    V(DAT_IB_COLLECTIVE_GATHERV_STATUS, 18) V(DAT_IB_COLLECTIVE_ALLGATHER_STATUS, 19)
    V(DAT_IB_COLLECTIVE_ALLGATHERV_STATUS, 20) V(DAT_IB_COLLECTIVE_ALLTOALL_STATUS, 21)
    V(DAT_IB_COLLECTIVE_ALLTOALLV_STATUS, 22) V(DAT_IB_COLLECTIVE_REDUCE_STATUS, 23)
    V(DAT_IB_COLLECTIVE_ALLREDUCE_STATUS, 24) V(DAT_IB_COLLECTIVE_REDUCE_SCATTER_STATUS, 25)
    V(DAT_IB_COLLECTIVE_SCAN_STATUS, 26) V(DAT_IB_COLLECTIVE_BROADCAST_STATUS, 27)
    V(DAT_IB_COLLECTIVE_BARRIER_STATUS, 28)
    V(DAT_OP_SUCCESS, 0) V(DAT_IB_OP_ERR, 1) V(DAT_IB_COLL_COMP_ERR, 2)
    V(DAT_IB_ERR, 268435456) V(DAT_IB_COLLECTIVE_ERR, 268435457)
    V(DAT_IB_DTO_RDMA_WRITE_IMMED, 8) V(DAT_IB_DTO_RECV_IMMED, 9) V(DAT_IB_DTO_FETCH_ADD, 10)
    V(DAT_IB_DTO_CMP_SWAP, 11) V(DAT_IB_DTO_RECV_MSG_IMMED, 12) V(DAT_IB_DTO_SEND_UD, 13)
    V(DAT_IB_DTO_RECV_UD, 14) V(DAT_IB_DTO_RECV_UD_IMMED, 15) V(DAT_IB_DTO_COLLECTIVES, 16)
    V(DAT_IB_HANDLE_TYPE_EXT, 12) V(DAT_IB_HANDLE_TYPE_COLLECTIVE, 13)
    V(DAT_IB_EVD_EXTENSION_FLAG, 512)
    V(DAT_IB_MEM_PRIV_REMOTE_ATOMIC, 64)
    V(DAT_IB_SERVICE_TYPE_UD, 1)
    V(DCNT_IA_PZ_CREATE, 0) V(DCNT_IA_PZ_FREE, 1) V(DCNT_IA_LMR_CREATE, 2) V(DCNT_IA_LMR_FREE, 3)
    V(DCNT_IA_RMR_CREATE, 4) V(DCNT_IA_RMR_FREE, 5) V(DCNT_IA_PSP_CREATE, 6)
    V(DCNT_IA_PSP_CREATE_ANY, 7) V(DCNT_IA_PSP_FREE, 8) V(DCNT_IA_RSP_CREATE, 9)
    V(DCNT_IA_RSP_FREE, 10) V(DCNT_IA_EVD_CREATE, 11) V(DCNT_IA_EVD_FREE, 12)
    V(DCNT_IA_EP_CREATE, 13) V(DCNT_IA_EP_FREE, 14) V(DCNT_IA_SRQ_CREATE, 15)
    V(DCNT_IA_SRQ_FREE, 16) V(DCNT_IA_SP_CR, 17) V(DCNT_IA_SP_CR_ACCEPTED, 18)
    V(DCNT_IA_SP_CR_REJECTED, 19) V(DCNT_IA_MEM_ALLOC, 20) V(DCNT_IA_MEM_ALLOC_DATA, 21)
    V(DCNT_IA_MEM_FREE, 22) V(DCNT_IA_ASYNC_ERROR, 23) V(DCNT_IA_ASYNC_QP_ERROR, 24)
    V(DCNT_IA_ASYNC_CQ_ERROR, 25) V(DCNT_IA_CM_LISTEN, 26) V(DCNT_IA_CM_REQ_TX, 27)
    V(DCNT_IA_CM_REQ_RX, 28) V(DCNT_IA_CM_REP_TX, 29) V(DCNT_IA_CM_REP_RX, 30)
    V(DCNT_IA_CM_RTU_TX, 31) V(DCNT_IA_CM_RTU_RX, 32) V(DCNT_IA_CM_USER_REJ_TX, 33)
    V(DCNT_IA_CM_USER_REJ_RX, 34) V(DCNT_IA_CM_ACTIVE_EST, 35) V(DCNT_IA_CM_PASSIVE_EST, 36)
    V(DCNT_IA_CM_AH_REQ_TX, 37) V(DCNT_IA_CM_AH_REQ_RX, 38) V(DCNT_IA_CM_AH_RESOLVED, 39)
    V(DCNT_IA_CM_DREQ_TX, 40) V(DCNT_IA_CM_DREQ_RX, 41) V(DCNT_IA_CM_DREP_TX, 42)
    V(DCNT_IA_CM_DREP_RX, 43) V(DCNT_IA_CM_MRA_TX, 44) V(DCNT_IA_CM_MRA_RX, 45)
    V(DCNT_IA_CM_REQ_FULLQ_POLL, 46) V(DCNT_IA_CM_ERR, 47) V(DCNT_IA_CM_ERR_REQ_FULLQ, 48)
    V(DCNT_IA_CM_ERR_REQ_DUP, 49) V(DCNT_IA_CM_ERR_REQ_RETRY, 50) V(DCNT_IA_CM_ERR_REP_DUP, 51)
    V(DCNT_IA_CM_ERR_REP_RETRY, 52) V(DCNT_IA_CM_ERR_RTU_DUP, 53) V(DCNT_IA_CM_ERR_RTU_RETRY, 54)
    V(DCNT_IA_CM_ERR_REFUSED, 55) V(DCNT_IA_CM_ERR_RESET, 56) V(DCNT_IA_CM_ERR_TIMEOUT, 57)
    V(DCNT_IA_CM_ERR_REJ_TX, 58) V(DCNT_IA_CM_ERR_REJ_RX, 59) V(DCNT_IA_CM_ERR_DREQ_DUP, 60)
    V(DCNT_IA_CM_ERR_DREQ_RETRY, 61) V(DCNT_IA_CM_ERR_DREP_DUP, 62)
    V(DCNT_IA_CM_ERR_DREP_RETRY, 63) V(DCNT_IA_CM_ERR_MRA_DUP, 64) V(DCNT_IA_CM_ERR_MRA_RETRY, 65)
    V(DCNT_IA_CM_ERR_UNEXPECTED, 66) V(DCNT_IA_LNK_ERR_RCV, 67) V(DCNT_IA_LNK_ERR_RCV_REM_PHYS, 68)
    V(DCNT_IA_LNK_ERR_RCV_CONSTRAINT, 69) V(DCNT_IA_LNK_ERR_XMT_DISCARDS, 70)
    V(DCNT_IA_LNK_ERR_XMT_CONTRAINT, 71) V(DCNT_IA_LNK_ERR_INTEGRITY, 72)
    V(DCNT_IA_LNK_ERR_EXC_BUF_OVERRUN, 73) V(DCNT_IA_LNK_WARN_RCV_SW_RELAY, 74)
    V(DCNT_IA_LNK_WARN_XMT_WAIT, 75) V(DCNT_IA_DIAG_ERR_RQ_RAE, 76) V(DCNT_IA_DIAG_ERR_RQ_OOS, 77)
    V(DCNT_IA_DIAG_ERR_RQ_RIRE, 78) V(DCNT_IA_DIAG_ERR_RQ_UDSDPRD, 79)
    V(DCNT_IA_DIAG_ERR_SQ_RAE, 80) V(DCNT_IA_DIAG_ERR_SQ_OOS, 81) V(DCNT_IA_DIAG_ERR_SQ_RIRE, 82)
    V(DCNT_IA_DIAG_ERR_SQ_RREE, 83) V(DCNT_IA_DIAG_ERR_SQ_TREE, 84) V(DCNT_IA_ALL_COUNTERS, 85)
    V(DCNT_EP_CONNECT, 0) V(DCNT_EP_DISCONNECT, 1) V(DCNT_EP_POST_SEND, 2)
    V(DCNT_EP_POST_SEND_DATA, 3) V(DCNT_EP_POST_SEND_UD, 4) V(DCNT_EP_POST_SEND_UD_DATA, 5)
    V(DCNT_EP_POST_RECV, 6) V(DCNT_EP_POST_RECV_DATA, 7) V(DCNT_EP_POST_WRITE, 8)
    V(DCNT_EP_POST_WRITE_DATA, 9) V(DCNT_EP_POST_WRITE_IMM, 10) V(DCNT_EP_POST_WRITE_IMM_DATA, 11)
    V(DCNT_EP_POST_READ, 12) V(DCNT_EP_POST_READ_DATA, 13) V(DCNT_EP_POST_CMP_SWAP, 14)
    V(DCNT_EP_POST_FETCH_ADD, 15) V(DCNT_EP_RECV, 16) V(DCNT_EP_RECV_DATA, 17)
    V(DCNT_EP_RECV_UD, 18) V(DCNT_EP_RECV_UD_DATA, 19) V(DCNT_EP_RECV_IMM, 20)
    V(DCNT_EP_RECV_IMM_DATA, 21) V(DCNT_EP_RECV_RDMA_IMM, 22) V(DCNT_EP_RECV_RDMA_IMM_DATA, 23)
    V(DCNT_EP_ALL_COUNTERS, 24)
    V(DCNT_EVD_WAIT, 0) V(DCNT_EVD_WAIT_BLOCKED, 1) V(DCNT_EVD_WAIT_NOTIFY, 2)
    V(DCNT_EVD_DEQUEUE, 3) V(DCNT_EVD_DEQUEUE_FOUND, 4) V(DCNT_EVD_DEQUEUE_NOT_FOUND, 5)
    V(DCNT_EVD_DEQUEUE_POLL, 6) V(DCNT_EVD_DEQUEUE_POLL_FOUND, 7) V(DCNT_EVD_CONN_CALLBACK, 8)
    V(DCNT_EVD_DTO_CALLBACK, 9) V(DCNT_EVD_ALL_COUNTERS, 10)
    V(DCNT_IA_CM, 0) V(DCNT_IA_LNK, 1) V(DCNT_IA_DIAG, 2)
    V(DAT_IB_COLLECTIVE_TYPE_INT8, 0) V(DAT_IB_COLLECTIVE_TYPE_UINT8, 1)
    V(DAT_IB_COLLECTIVE_TYPE_INT16, 2) V(DAT_IB_COLLECTIVE_TYPE_UINT16, 3)
    V(DAT_IB_COLLECTIVE_TYPE_INT32, 4) V(DAT_IB_COLLECTIVE_TYPE_UINT32, 5)
    V(DAT_IB_COLLECTIVE_TYPE_INT64, 6) V(DAT_IB_COLLECTIVE_TYPE_UINT64, 7)
    V(DAT_IB_COLLECTIVE_TYPE_FLOAT, 8) V(DAT_IB_COLLECTIVE_TYPE_DOUBLE, 9)
    V(DAT_IB_COLLECTIVE_TYPE_LONG_DOUBLE, 10) V(DAT_IB_COLLECTIVE_TYPE_SHORT_INT, 11)
    V(DAT_IB_COLLECTIVE_TYPE_2INT, 12) V(DAT_IB_COLLECTIVE_TYPE_FLOAT_INT, 13)
    V(DAT_IB_COLLECTIVE_TYPE_LONG_INT, 14) V(DAT_IB_COLLECTIVE_TYPE_DOUBLE_INT, 15)
    V(DAT_IB_COLLECTIVE_REDUCE_OP_MAX, 0) V(DAT_IB_COLLECTIVE_REDUCE_OP_MIN, 1)
    V(DAT_IB_COLLECTIVE_REDUCE_OP_SUM, 2) V(DAT_IB_COLLECTIVE_REDUCE_OP_PROD, 3)
    V(DAT_IB_COLLECTIVE_REDUCE_OP_LAND, 4) V(DAT_IB_COLLECTIVE_REDUCE_OP_BAND, 5)
    V(DAT_IB_COLLECTIVE_REDUCE_OP_LOR, 6) V(DAT_IB_COLLECTIVE_REDUCE_OP_BOR, 7)
    V(DAT_IB_COLLECTIVE_REDUCE_OP_LXOR, 8) V(DAT_IB_COLLECTIVE_REDUCE_OP_BXOR, 9)
    V(DAT_IB_COLLECTIVE_REDUCE_OP_MAXLOC, 10) V(DAT_IB_COLLECTIVE_REDUCE_OP_MINLOC, 11)
    V(DAT_HA_FALSE, 0) V(DAT_HA_TRUE, 1) V(DAT_HA_UNKNOWN, 2) V(DAT_HA_CONFLICTING, 3)
    V(DAT_HA_EXTENSION_BASE, 4)
    /* Macros. */
    V(DAT_NAME_MAX_LENGTH, 256) V(DAT_IB_EXTENSION, 1) V(DAT_IW_EXTENSION, 2) V(DAT_HA_LB_NONE, 0)
    V(DAT_HA_LB_INTERCOMM, 1) V(DAT_HA_LB_INTRACOMM, 2) V(DAT_TIMEOUT_INFINITE, 4294967295)
    V(DAT_HANDLE_NULL, 0) V(DAT_CLOSE_DEFAULT, 0) V(DAT_MEM_PRIV_READ_FLAG, 3)
    V(DAT_MEM_PRIV_WRITE_FLAG, 48) V(DAT_IA_FIELD_IA_MAX_MTU_SIZE, 262144)
    V(DAT_IA_FIELD_IA_ADAPTER_NAME, 1) V(DAT_IA_FIELD_IA_VENDOR_NAME, 2)
    V(DAT_IA_FIELD_IA_HARDWARE_MAJOR_VERSION, 4) V(DAT_IA_FIELD_IA_HARDWARE_MINOR_VERSION, 8)
    V(DAT_IA_FIELD_IA_FIRMWARE_MAJOR_VERSION, 16) V(DAT_IA_FIELD_IA_FIRMWARE_MINOR_VERSION, 32)
    V(DAT_IA_FIELD_IA_ADDRESS_PTR, 64) V(DAT_IA_FIELD_IA_MAX_EPS, 128)
    V(DAT_IA_FIELD_IA_MAX_DTO_PER_EP, 256) V(DAT_IA_FIELD_IA_MAX_RDMA_READ_PER_EP_IN, 512)
    V(DAT_IA_FIELD_IA_MAX_RDMA_READ_PER_EP_OUT, 1024) V(DAT_IA_FIELD_IA_MAX_EVDS, 2048)
    V(DAT_IA_FIELD_IA_MAX_EVD_QLEN, 4096) V(DAT_IA_FIELD_IA_MAX_IOV_SEGMENTS_PER_DTO, 8192)
    V(DAT_IA_FIELD_IA_MAX_LMRS, 16384) V(DAT_IA_FIELD_IA_MAX_LMR_BLOCK_SIZE, 32768)
    V(DAT_IA_FIELD_IA_MAX_LMR_VIRTUAL_ADDRESS, 65536) V(DAT_IA_FIELD_IA_MAX_PZS, 131072)
    V(DAT_IA_FIELD_IA_MAX_MESSAGE_SIZE, 262144) V(DAT_IA_FIELD_IA_MAX_RDMA_SIZE, 524288)
    V(DAT_IA_FIELD_IA_MAX_RMRS, 1048576) V(DAT_IA_FIELD_IA_MAX_RMR_TARGET_ADDRESS, 2097152)
    V(DAT_IA_FIELD_IA_MAX_SRQS, 4194304) V(DAT_IA_FIELD_IA_MAX_EP_PER_SRQ, 8388608)
    V(DAT_IA_FIELD_IA_MAX_RECV_PER_SRQ, 16777216)
    V(DAT_IA_FIELD_IA_MAX_IOV_SEGMENTS_PER_RDMA_READ, 33554432)
    V(DAT_IA_FIELD_IA_MAX_IOV_SEGMENTS_PER_RDMA_WRITE, 67108864)
    V(DAT_IA_FIELD_IA_MAX_RDMA_READ_IN, 134217728) V(DAT_IA_FIELD_IA_MAX_RDMA_READ_OUT, 268435456)
    V(DAT_IA_FIELD_IA_MAX_RDMA_READ_PER_EP_IN_GUARANTEED, 536870912)
    V(DAT_IA_FIELD_IA_MAX_RDMA_READ_PER_EP_OUT_GUARANTEED, 1073741824)
    V(DAT_IA_FIELD_IA_ZB_SUPPORTED, 2147483648) V(DAT_IA_FIELD_IA_EXTENSIONS_SUPPORTED, 4294967296)
    V(DAT_IA_ALL, 274877906943) V(DAT_IA_FIELD_NONE, 0) V(DAT_EP_STATE_ERROR, 11)
    V(DAT_EP_FIELD_IA_HANDLE, 1) V(DAT_EP_FIELD_EP_STATE, 2) V(DAT_EP_FIELD_COMM, 4)
    V(DAT_EP_FIELD_LOCAL_IA_ADDRESS_PTR, 8) V(DAT_EP_FIELD_LOCAL_PORT_QUAL, 16)
    V(DAT_EP_FIELD_REMOTE_IA_ADDRESS_PTR, 32) V(DAT_EP_FIELD_REMOTE_PORT_QUAL, 64)
    V(DAT_EP_FIELD_PZ_HANDLE, 128) V(DAT_EP_FIELD_RECV_EVD_HANDLE, 256)
    V(DAT_EP_FIELD_REQUEST_EVD_HANDLE, 512) V(DAT_EP_FIELD_CONNECT_EVD_HANDLE, 1024)
    V(DAT_EP_FIELD_SRQ_HANDLE, 2048) V(DAT_EP_FIELD_EP_ATTR_SERVICE_TYPE, 4096)
    V(DAT_EP_FIELD_EP_ATTR_MAX_MESSAGE_SIZE, 8192) V(DAT_EP_FIELD_EP_ATTR_MAX_RDMA_SIZE, 16384)
    V(DAT_EP_FIELD_EP_ATTR_QOS, 32768) V(DAT_EP_FIELD_EP_ATTR_RECV_COMPLETION_FLAGS, 65536)
    V(DAT_EP_FIELD_EP_ATTR_REQUEST_COMPLETION_FLAGS, 131072)
    V(DAT_EP_FIELD_EP_ATTR_MAX_RECV_DTOS, 262144) V(DAT_EP_FIELD_EP_ATTR_MAX_REQUEST_DTOS, 524288)
    V(DAT_EP_FIELD_EP_ATTR_MAX_RECV_IOV, 1048576) V(DAT_EP_FIELD_EP_ATTR_MAX_REQUEST_IOV, 2097152)
    V(DAT_EP_FIELD_EP_ATTR_MAX_RDMA_READ_IN, 4194304)
    V(DAT_EP_FIELD_EP_ATTR_MAX_RDMA_READ_OUT, 8388608)
    V(DAT_EP_FIELD_EP_ATTR_SRQ_SOFT_HW, 16777216)
    V(DAT_EP_FIELD_EP_ATTR_MAX_RDMA_READ_IOV, 33554432)
    V(DAT_EP_FIELD_EP_ATTR_MAX_RDMA_WRITE_IOV, 67108864)
    V(DAT_EP_FIELD_EP_ATTR_NUM_TRANSPORT_ATTR, 134217728)
    V(DAT_EP_FIELD_EP_ATTR_TRANSPORT_SPECIFIC_ATTR, 268435456)
    V(DAT_EP_FIELD_EP_ATTR_NUM_PROVIDER_ATTR, 536870912)
    V(DAT_EP_FIELD_EP_ATTR_PROVIDER_SPECIFIC_ATTR, 1073741824)
    V(DAT_EP_FIELD_EP_ATTR_ALL, 2147479552) V(DAT_EP_FIELD_ALL, 2147483647)
    V(DAT_WATERMARK_INFINITE, -1) V(DAT_HW_DEFAULT, -1) V(DAT_SRQ_LW_DEFAULT, 0)
    V(DAT_VALUE_UNKNOWN, -2) V(DAT_DTO_LENGTH_ERROR, 2) V(DAT_DTO_FAILURE, 1)
    V(DAT_RMR_BIND_SUCCESS, 0) V(DAT_RMR_BIND_FAILURE, 1) V(DAT_OPEN_EXTENSION_BASE, 4096)
    V(DAT_CLOSE_EXTENSION_BASE, 8192) V(DAT_LMR_COOKIE_SIZE, 40) V(DAT_EVD_ASYNC_EXISTS, 1)
    V(DAT_EVD_OUT_OF_SCOPE, 2) V(DAT_IA_FIELD_IA_EXTENSION, 4294967296)
    V(DAT_IA_FIELD_IA_EXTENSION_VERSION, 8589934592)
    V(DAT_IA_FIELD_IA_NUM_TRANSPORT_ATTR, 17179869184)
    V(DAT_IA_FIELD_IA_TRANSPORT_ATTR, 34359738368) V(DAT_IA_FIELD_IA_NUM_VENDOR_ATTR, 68719476736)
    V(DAT_IA_FIELD_IA_VENDOR_ATTR, 137438953472) V(DAT_IA_FIELD_ALL, 274877906943)
    V(DAT_PROVIDER_FIELD_PROVIDER_NAME, 1) V(DAT_PROVIDER_FIELD_PROVIDER_VERSION_MAJOR, 2)
    V(DAT_PROVIDER_FIELD_PROVIDER_VERSION_MINOR, 4) V(DAT_PROVIDER_FIELD_DAPL_VERSION_MAJOR, 8)
    V(DAT_PROVIDER_FIELD_DAPL_VERSION_MINOR, 16) V(DAT_PROVIDER_FIELD_LMR_MEM_TYPE_SUPPORTED, 32)
    V(DAT_PROVIDER_FIELD_IOV_OWNERSHIP, 64) V(DAT_PROVIDER_FIELD_DAT_QOS_SUPPORTED, 128)
    V(DAT_PROVIDER_FIELD_COMPLETION_FLAGS_SUPPORTED, 256) V(DAT_PROVIDER_FIELD_IS_THREAD_SAFE, 512)
    V(DAT_PROVIDER_FIELD_MAX_PRIVATE_DATA_SIZE, 1024)
    V(DAT_PROVIDER_FIELD_SUPPORTS_MULTIPATH, 2048) V(DAT_PROVIDER_FIELD_EP_CREATOR, 4096)
    V(DAT_PROVIDER_FIELD_PZ_SUPPORT, 8192) V(DAT_PROVIDER_FIELD_OPTIMAL_BUFFER_ALIGNMENT, 16384)
    V(DAT_PROVIDER_FIELD_EVD_STREAM_MERGING_SUPPORTED, 32768)
    V(DAT_PROVIDER_FIELD_SRQ_SUPPORTED, 65536)
    V(DAT_PROVIDER_FIELD_SRQ_WATERMARKS_SUPPORTED, 131072)
    V(DAT_PROVIDER_FIELD_SRQ_EP_PZ_DIFFERENCE_SUPPORTED, 262144)
    V(DAT_PROVIDER_FIELD_SRQ_INFO_SUPPORTED, 524288)
    V(DAT_PROVIDER_FIELD_EP_RECV_INFO_SUPPORTED, 1048576)
    V(DAT_PROVIDER_FIELD_LMR_SYNC_REQ, 2097152)
    V(DAT_PROVIDER_FIELD_DTO_ASYNC_RETURN_GUARANTEED, 4194304)
    V(DAT_PROVIDER_FIELD_RDMA_WRITE_FOR_RDMA_READ_REQ, 8388608)
    V(DAT_PROVIDER_FIELD_RDMA_READ_LMR_RMR_CONTEXT_EXPOSURE, 16777216)
    V(DAT_PROVIDER_FIELD_RMR_SCOPE_SUPPORTED, 33554432)
    V(DAT_PROVIDER_FIELD_IS_SIGNAL_SAFE, 67108864) V(DAT_PROVIDER_FIELD_HA_SUPPORTED, 134217728)
    V(DAT_PROVIDER_FIELD_HA_LB, 268435456)
    V(DAT_PROVIDER_FIELD_NUM_PROVIDER_SPECIFIC_ATTR, 536870912)
    V(DAT_PROVIDER_FIELD_PROVIDER_SPECIFIC_ATTR, 1073741824) V(DAT_PROVIDER_FIELD_ALL, 2147483647)
    V(DAT_PROVIDER_FIELD_NONE, 0) V(DAT_CLASS_ERROR, 2147483648) V(DAT_CLASS_WARNING, 1073741824)
    V(DAT_CLASS_SUCCESS, 0) V(DAT_TYPE_MASK, 1073676288) V(DAT_SUBTYPE_MASK, 65535)
    V(DAT_NAME_NOT_FOUND, 655360) V(DAT_IB_EXTENSION_VERSION, 209) V(DAT_QUERY_COUNTERS_OP, 4)
    V(DAT_PRINT_COUNTERS_OP, 5) V(DAT_VERSION_MAJOR, 2) V(DAT_VERSION_MINOR, 0)
    V(DAT_THREADSAFE, 0) V(DAT_EXTENSIONS, 1) V(DAT_OPTIMAL_ALIGNMENT, 256) V(DAT_AF_INET, 2)
    V(DAT_AF_INET6, 10) V(DAT_CONNECT_MULTIPATH_FLAG, 1)
    TEXT(DAT_IB_ATTR_COUNTERS, "DAT_COUNTERS")
    TEXT(DAT_IB_ATTR_FETCH_AND_ADD, "DAT_IB_FETCH_AND_ADD")
    TEXT(DAT_IB_ATTR_CMP_AND_SWAP, "DAT_IB_CMP_AND_SWAP")
    TEXT(DAT_IB_ATTR_IMMED_DATA, "DAT_IB_IMMED_DATA") TEXT(DAT_IB_ATTR_UD, "DAT_IB_UD")
    TEXT(DAT_IB_COLL_SET_CLOCK, "DAT_COLL_SET_CLOCK")
    TEXT(DAT_IB_COLL_READ_CLOCK, "DAT_COLL_READ_CLOCK")
    TEXT(DAT_IB_COLL_BROADCAST, "DAT_COLL_BROADCAST") TEXT(DAT_IB_COLL_BARRIER, "DAT_COLL_BARRIER")
    TEXT(DAT_IB_COLL_SCATTER, "DAT_COLL_SCATTER") TEXT(DAT_IB_COLL_SCATTERV, "DAT_COLL_SCATTERV")
    TEXT(DAT_IB_COLL_GATHER, "DAT_COLL_GATHER") TEXT(DAT_IB_COLL_GATHERV, "DAT_COLL_GATHERV")
    TEXT(DAT_IB_COLL_ALLGATHER, "DAT_COLL_ALLGATHER")
    TEXT(DAT_IB_COLL_ALLGATHERV, "DAT_COLL_ALLGATHERV")
    TEXT(DAT_IB_COLL_ALLTOALL, "DAT_COLL_ALLTOALL")
    TEXT(DAT_IB_COLL_ALLTOALLV, "DAT_COLL_ALLTOALLV") TEXT(DAT_IB_COLL_REDUCE, "DAT_COLL_REDUCE")
    TEXT(DAT_IB_COLL_ALLREDUCE, "DAT_COLL_ALLREDUCE")
    TEXT(DAT_IB_COLL_REDUCE_SCATTER, "DAT_COLL_REDUCE_SCATTER")
    TEXT(DAT_IB_COLL_SCAN, "DAT_COLL_SCAN") TEXT(DAT_PROVIDER_INIT_FUNC_STR, "dat_provider_init")
    TEXT(DAT_PROVIDER_FINI_FUNC_STR, "dat_provider_fini")
}

int main(void)
{
    scalars();
    structures();
    numbers();
    printf("%u facts%s\n", facts, wrong == 0 ? " hold" : "");
    return wrong == 0 ? 0 : 1;
}
