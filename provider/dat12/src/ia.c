/* IAs and their attributes, the registry, and calls for objects of any kind. */
#include <string.h>

#include "memory.h"
#include "shim.h"

/* Raises the limit of segments of a post to that of this IA. */
static void raise_max_segments(const struct v2_ia_attr *attr)
{
    int most = attr->max_iov_segments_per_dto;
    int known = atomic_load(&max_segments);

    if (attr->max_iov_segments_per_rdma_read > most)
        most = attr->max_iov_segments_per_rdma_read;
    if (attr->max_iov_segments_per_rdma_write > most)
        most = attr->max_iov_segments_per_rdma_write;
    if (most < 1 || most > MAX_SEGMENTS)
        most = MAX_SEGMENTS;
    while (known < most && !atomic_compare_exchange_weak(&max_segments, &known, most))
        ;
}

/* Refuses a provider that uses the array of triplets after a post instead of copying it: this
 * library's array is gone by then. */
static DAT_RETURN admit(DAT_IA_HANDLE ia)
{
    struct v2_ia_attr attr = {0};
    struct v2_provider_attr provider = {0};
    DAT_RETURN ret =
        CALL(dat_ia_query, ia, NULL, V2_IA_FIELD_IOV, &attr, DAT_PROVIDER_FIELD_IOV_OWNERSHIP, &provider);

    if (ret != DAT_SUCCESS)
        return ret;
    if (provider.iov_ownership_on_return != DAT_IOV_CONSUMER)
        return DAT_CLASS_ERROR | DAT_MODEL_NOT_SUPPORTED;
    raise_max_segments(&attr);
    return DAT_SUCCESS;
}

/* On Solaris, this prefix of a name says that the program knows about relaxed ordering. It is not
 * part of the name. */
static DAT_NAME_PTR plain_name(DAT_NAME_PTR name)
{
    static const char aware[] = "RO_AWARE_";

    return name != NULL && strncmp(name, aware, sizeof aware - 1) == 0 ? name + sizeof aware - 1 : name;
}

DAT_RETURN dat_ia_openv(const DAT_NAME_PTR ia_name, DAT_COUNT async_evd_min_qlen, DAT_EVD_HANDLE *async_evd_handle,
                        DAT_IA_HANDLE *ia_handle, DAT_UINT32 dapl_major, DAT_UINT32 dapl_minor,
                        DAT_BOOLEAN thread_safety)
{
    DAT_RETURN ret;

    if (dapl_major != DAT_VERSION_MAJOR)
        return DAT_CLASS_ERROR | DAT_PROVIDER_NOT_FOUND | DAT_MAJOR_NOT_FOUND;
    /* The structures of 1.0 and 1.1 differ. */
    if (dapl_minor != DAT_VERSION_MINOR)
        return DAT_CLASS_ERROR | DAT_PROVIDER_NOT_FOUND | DAT_MINOR_NOT_FOUND;
    if (ia_name == NULL)
        return INVALID_ARG(1);
    if (async_evd_handle == NULL)
        return INVALID_ARG(3);
    if (ia_handle == NULL)
        return INVALID_ARG(4);
    if (OUTSIDE(thread_safety, DAT_TRUE))
        return INVALID_ARG(7);
    ret = CALL(dat_ia_openv, plain_name(ia_name), async_evd_min_qlen, async_evd_handle, ia_handle, V2_MAJOR, V2_MINOR,
               thread_safety);
    if (ret != DAT_SUCCESS)
        return ret;
    ret = admit(*ia_handle);
    if (ret != DAT_SUCCESS) {
        CALL(dat_ia_close, *ia_handle, DAT_CLOSE_ABRUPT_FLAG);
        *ia_handle = DAT_HANDLE_NULL;
    }
    return ret;
}

static void ia_attr_to_v1(const struct v2_ia_attr *from, DAT_IA_ATTR *to)
{
    memcpy(to->adapter_name, from->adapter_name, sizeof to->adapter_name);
    memcpy(to->vendor_name, from->vendor_name, sizeof to->vendor_name);
    to->hardware_version_major = from->hardware_version_major;
    to->hardware_version_minor = from->hardware_version_minor;
    to->firmware_version_major = from->firmware_version_major;
    to->firmware_version_minor = from->firmware_version_minor;
    to->ia_address_ptr = from->ia_address_ptr;
    to->max_eps = from->max_eps;
    to->max_dto_per_ep = from->max_dto_per_ep;
    to->max_rdma_read_per_ep_in = from->max_rdma_read_per_ep_in;
    to->max_rdma_read_per_ep_out = from->max_rdma_read_per_ep_out;
    to->max_evds = from->max_evds;
    to->max_evd_qlen = from->max_evd_qlen;
    to->max_iov_segments_per_dto = from->max_iov_segments_per_dto;
    to->max_lmrs = from->max_lmrs;
    to->max_lmr_block_size = from->max_lmr_block_size;
    to->max_lmr_virtual_address = from->max_lmr_virtual_address;
    to->max_pzs = from->max_pzs;
    to->max_message_size = from->max_message_size;
    to->max_rdma_size = from->max_rdma_size;
    to->max_rmrs = from->max_rmrs;
    to->max_rmr_target_address = from->max_rmr_target_address;
    to->max_srqs = from->max_srqs;
    to->max_ep_per_srq = from->max_ep_per_srq;
    to->max_recv_per_srq = from->max_recv_per_srq;
    to->max_iov_segments_per_rdma_read = from->max_iov_segments_per_rdma_read;
    to->max_iov_segments_per_rdma_write = from->max_iov_segments_per_rdma_write;
    to->max_rdma_read_in = from->max_rdma_read_in;
    to->max_rdma_read_out = from->max_rdma_read_out;
    to->max_rdma_read_per_ep_in_guaranteed = from->max_rdma_read_per_ep_in_guaranteed != 0;
    to->max_rdma_read_per_ep_out_guaranteed = from->max_rdma_read_per_ep_out_guaranteed != 0;
    to->num_transport_attr = from->num_transport_attr;
    to->transport_attr = from->transport_attr;
    to->num_vendor_attr = from->num_vendor_attr;
    to->vendor_attr = from->vendor_attr;
}

/* The provider appears to the program as one of DAT 1.2. */
static void provider_attr_to_v1(const struct v2_provider_attr *from, DAT_PROVIDER_ATTR *to)
{
    memcpy(to->provider_name, from->provider_name, sizeof to->provider_name);
    to->provider_version_major = from->provider_version_major;
    to->provider_version_minor = from->provider_version_minor;
    to->dapl_version_major = DAT_VERSION_MAJOR;
    to->dapl_version_minor = DAT_VERSION_MINOR;
    to->lmr_mem_types_supported = (DAT_MEM_TYPE)(from->lmr_mem_types_supported & DAT_MEM_TYPE_SO_VIRTUAL);
    to->iov_ownership_on_return = DAT_IOV_CONSUMER;
    to->dat_qos_supported = (DAT_QOS)from->dat_qos_supported;
    to->completion_flags_supported = (DAT_COMPLETION_FLAGS)(from->completion_flags_supported & COMPLETION_FLAGS);
    to->is_thread_safe = from->is_thread_safe != 0;
    to->max_private_data_size = from->max_private_data_size;
    to->supports_multipath = from->supports_multipath != 0;
    to->ep_creator = from->ep_creator <= DAT_PSP_CREATES_EP_ALWAYS ? (DAT_EP_CREATOR_FOR_PSP)from->ep_creator
                                                                   : DAT_PSP_CREATES_EP_NEVER;
    to->pz_support = from->pz_support == V2_PZ_SHAREABLE ? DAT_PZ_SHAREABLE : DAT_PZ_UNIQUE;
    to->optimal_buffer_alignment = from->optimal_buffer_alignment;
    /* The member is declared const. */
    memcpy((char *)to + offsetof(DAT_PROVIDER_ATTR, evd_stream_merging_supported), from->evd_stream_merging_supported,
           sizeof to->evd_stream_merging_supported);
    to->srq_supported = from->srq_supported != 0;
    to->srq_watermarks_supported = from->srq_watermarks_supported;
    to->srq_ep_pz_difference_supported = from->srq_ep_pz_difference_supported != 0;
    to->srq_info_supported = from->srq_info_supported;
    to->ep_recv_info_supported = from->ep_recv_info_supported;
    to->lmr_sync_req = from->lmr_sync_req != 0;
    to->dto_async_return_guaranteed = from->dto_async_return_guaranteed != 0;
    to->rdma_write_for_rdma_read_req = from->rdma_write_for_rdma_read_req != 0;
    to->num_provider_specific_attr = from->num_provider_specific_attr;
    to->provider_specific_attr = from->provider_specific_attr;
}

/* 2.0 has three more fields before the last four. */
static DAT_UINT64 ia_mask_to_v2(DAT_IA_ATTR_MASK mask)
{
    DAT_UINT64 last = DAT_IA_FIELD_IA_NUM_TRANSPORT_ATTR | DAT_IA_FIELD_IA_TRANSPORT_ATTR |
                      DAT_IA_FIELD_IA_NUM_VENDOR_ATTR | DAT_IA_FIELD_IA_VENDOR_ATTR;

    return (mask & ~last) | (mask & last) << 3;
}

/* 2.0 has five more fields before the last two. */
static DAT_UINT64 provider_mask_to_v2(DAT_PROVIDER_ATTR_MASK mask)
{
    DAT_UINT64 last = DAT_PROVIDER_FIELD_NUM_PROVIDER_SPECIFIC_ATTR | DAT_PROVIDER_FIELD_PROVIDER_SPECIFIC_ATTR;

    return (mask & ~last) | (mask & last) << 5;
}

/* A mask that is not 0 fills in the whole structure, because programs read counts that they did not
 * ask for. */
DAT_RETURN dat_ia_query(DAT_IA_HANDLE ia_handle, DAT_EVD_HANDLE *async_evd_handle, DAT_IA_ATTR_MASK ia_attr_mask,
                        DAT_IA_ATTR *ia_attr, DAT_PROVIDER_ATTR_MASK provider_attr_mask,
                        DAT_PROVIDER_ATTR *provider_attr)
{
    struct v2_ia_attr ia = {0};
    struct v2_provider_attr provider = {0};
    DAT_RETURN ret;

    if (OUTSIDE(ia_attr_mask, DAT_IA_FIELD_ALL))
        return INVALID_ARG(3);
    if (ia_attr_mask != 0 && ia_attr == NULL)
        return INVALID_ARG(4);
    if (OUTSIDE(provider_attr_mask, DAT_PROVIDER_FIELD_ALL))
        return INVALID_ARG(5);
    if (provider_attr_mask != 0 && provider_attr == NULL)
        return INVALID_ARG(6);
    ret = CALL(dat_ia_query, ia_handle, async_evd_handle, ia_mask_to_v2(ia_attr_mask), &ia,
               provider_mask_to_v2(provider_attr_mask), &provider);
    if (ret != DAT_SUCCESS)
        return ret;
    if (ia_attr_mask != 0)
        ia_attr_to_v1(&ia, ia_attr);
    if (provider_attr_mask != 0)
        provider_attr_to_v1(&provider, provider_attr);
    return DAT_SUCCESS;
}

DAT_RETURN dat_ia_close(DAT_IA_HANDLE ia_handle, DAT_CLOSE_FLAGS close_flags)
{
    DAT_RETURN ret = CALL(dat_ia_close, ia_handle, close_flags);

    if (ret == DAT_SUCCESS)
        forget_lmrs_of(ia_handle);
    return ret;
}

/* Lists the IAs for DAT 2.0, which dat_ia_openv opens, as IAs for DAT 1.2. */
DAT_RETURN dat_registry_list_providers(DAT_COUNT max_to_return, DAT_COUNT *entries_returned,
                                       DAT_PROVIDER_INFO *(dat_provider_list[]))
{
    DAT_COUNT kept = 0;
    DAT_RETURN ret;

    if (entries_returned == NULL)
        return INVALID_ARG(2);
    ret = CALL(dat_registry_list_providers, max_to_return, entries_returned, dat_provider_list);
    if (ret != DAT_SUCCESS || dat_provider_list == NULL)
        return ret;
    for (DAT_COUNT i = 0; i < *entries_returned && i < max_to_return; i++) {
        const DAT_PROVIDER_INFO *entry = dat_provider_list[i];

        if (entry->dapl_version_major != V2_MAJOR || entry->dapl_version_minor != V2_MINOR)
            continue;
        if (kept != i)
            *dat_provider_list[kept] = *entry;
        dat_provider_list[kept]->dapl_version_major = DAT_VERSION_MAJOR;
        dat_provider_list[kept]->dapl_version_minor = DAT_VERSION_MINOR;
        kept++;
    }
    *entries_returned = kept;
    return DAT_SUCCESS;
}

DAT_RETURN dat_set_consumer_context(DAT_HANDLE dat_handle, DAT_CONTEXT context)
{
    return CALL(dat_set_consumer_context, dat_handle, context);
}

DAT_RETURN dat_get_consumer_context(DAT_HANDLE dat_handle, DAT_CONTEXT *context)
{
    return CALL(dat_get_consumer_context, dat_handle, context);
}

DAT_RETURN dat_get_handle_type(DAT_HANDLE dat_handle, DAT_HANDLE_TYPE *handle_type)
{
    DAT_UINT32 type = 0;
    DAT_RETURN ret = CALL(dat_get_handle_type, dat_handle, handle_type == NULL ? NULL : &type);

    if (ret != DAT_SUCCESS || handle_type == NULL)
        return ret;
    /* A program of 1.2 cannot have made an object of another kind. */
    if (type > DAT_HANDLE_TYPE_SRQ)
        return DAT_CLASS_ERROR | DAT_INVALID_HANDLE | DAT_INVALID_HANDLE1;
    *handle_type = (DAT_HANDLE_TYPE)type;
    return DAT_SUCCESS;
}
