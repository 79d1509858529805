/* EPs: their attributes and parameters, connections, watermarks. */
#include "shim.h"

/* Converts the fields that the mask names to the 32-bit fields of 2.0. False for a value that 1.2
 * does not define or 2.0 cannot hold. */
static bool ep_attr_to_v2(const DAT_EP_ATTR *from, DAT_EP_PARAM_MASK mask, struct v2_ep_attr *to)
{
#define TAKE(bit, field)                                                                                               \
    if ((mask & DAT_EP_FIELD_EP_ATTR_##bit) != 0)                                                                      \
    to->field = from->field
#define TAKE_IF(bit, field, condition)                                                                                 \
    if ((mask & DAT_EP_FIELD_EP_ATTR_##bit) != 0) {                                                                    \
        if (!(condition))                                                                                              \
            return false;                                                                                              \
        to->field = (DAT_UINT32)from->field;                                                                           \
    }
    TAKE_IF(SERVICE_TYPE, service_type, from->service_type == DAT_SERVICE_TYPE_RC)
    TAKE_IF(MAX_MESSAGE_SIZE, max_message_size, from->max_message_size <= UINT32_MAX)
    TAKE_IF(MAX_RDMA_SIZE, max_rdma_size, from->max_rdma_size <= UINT32_MAX)
    TAKE_IF(RECV_COMPLETION_FLAGS, recv_completion_flags, !OUTSIDE(from->recv_completion_flags, COMPLETION_FLAGS))
    TAKE_IF(REQUEST_COMPLETION_FLAGS, request_completion_flags,
            !OUTSIDE(from->request_completion_flags, COMPLETION_FLAGS))
    TAKE(QOS, qos);
    TAKE(MAX_RECV_DTOS, max_recv_dtos);
    TAKE(MAX_REQUEST_DTOS, max_request_dtos);
    TAKE(MAX_RECV_IOV, max_recv_iov);
    TAKE(MAX_REQUEST_IOV, max_request_iov);
    TAKE(MAX_RDMA_READ_IN, max_rdma_read_in);
    TAKE(MAX_RDMA_READ_OUT, max_rdma_read_out);
    TAKE(SRQ_SOFT_HW, srq_soft_hw);
    TAKE(MAX_RDMA_READ_IOV, max_rdma_read_iov);
    TAKE(MAX_RDMA_WRITE_IOV, max_rdma_write_iov);
    TAKE(NUM_TRANSPORT_ATTR, ep_transport_specific_count);
    TAKE(TRANSPORT_SPECIFIC_ATTR, ep_transport_specific);
    TAKE(NUM_PROVIDER_ATTR, ep_provider_specific_count);
    TAKE(PROVIDER_SPECIFIC_ATTR, ep_provider_specific);
#undef TAKE
#undef TAKE_IF
    return true;
}

static void ep_attr_to_v1(const struct v2_ep_attr *from, DAT_EP_PARAM_MASK mask, DAT_EP_ATTR *to)
{
#define GIVE(bit, field, type)                                                                                         \
    if ((mask & DAT_EP_FIELD_EP_ATTR_##bit) != 0)                                                                      \
    to->field = (type)from->field
    GIVE(SERVICE_TYPE, service_type, DAT_SERVICE_TYPE);
    GIVE(MAX_MESSAGE_SIZE, max_message_size, DAT_VLEN);
    GIVE(MAX_RDMA_SIZE, max_rdma_size, DAT_VLEN);
    GIVE(QOS, qos, DAT_QOS);
    GIVE(RECV_COMPLETION_FLAGS, recv_completion_flags, DAT_COMPLETION_FLAGS);
    GIVE(REQUEST_COMPLETION_FLAGS, request_completion_flags, DAT_COMPLETION_FLAGS);
    GIVE(MAX_RECV_DTOS, max_recv_dtos, DAT_COUNT);
    GIVE(MAX_REQUEST_DTOS, max_request_dtos, DAT_COUNT);
    GIVE(MAX_RECV_IOV, max_recv_iov, DAT_COUNT);
    GIVE(MAX_REQUEST_IOV, max_request_iov, DAT_COUNT);
    GIVE(MAX_RDMA_READ_IN, max_rdma_read_in, DAT_COUNT);
    GIVE(MAX_RDMA_READ_OUT, max_rdma_read_out, DAT_COUNT);
    GIVE(SRQ_SOFT_HW, srq_soft_hw, DAT_COUNT);
    GIVE(MAX_RDMA_READ_IOV, max_rdma_read_iov, DAT_COUNT);
    GIVE(MAX_RDMA_WRITE_IOV, max_rdma_write_iov, DAT_COUNT);
    GIVE(NUM_TRANSPORT_ATTR, ep_transport_specific_count, DAT_COUNT);
    GIVE(TRANSPORT_SPECIFIC_ATTR, ep_transport_specific, DAT_NAMED_ATTR *);
    GIVE(NUM_PROVIDER_ATTR, ep_provider_specific_count, DAT_COUNT);
    GIVE(PROVIDER_SPECIFIC_ATTR, ep_provider_specific, DAT_NAMED_ATTR *);
#undef GIVE
}

/* False for a state that neither interface defines. */
static bool ep_state_to_v1(DAT_UINT32 from, DAT_EP_STATE *to)
{
    if (from == V2_EP_CONNECTED_SINGLE_PATH || from == V2_EP_CONNECTED_MULTI_PATH)
        *to = DAT_EP_STATE_CONNECTED;
    else if (from <= DAT_EP_STATE_COMPLETION_PENDING)
        *to = (DAT_EP_STATE)from;
    else
        return false;
    return true;
}

/* 2.0 has `comm` before the addresses. */
static DAT_UINT64 ep_mask_to_v2(DAT_EP_PARAM_MASK mask)
{
    DAT_UINT64 moved = DAT_EP_FIELD_ALL & ~DAT_EP_FIELD_EP_ATTR_ALL & ~(DAT_EP_FIELD_IA_HANDLE | DAT_EP_FIELD_EP_STATE);

    return (mask & ~moved) | (mask & moved) << 1;
}

DAT_RETURN dat_ep_create(DAT_IA_HANDLE ia_handle, DAT_PZ_HANDLE pz_handle, DAT_EVD_HANDLE recv_evd_handle,
                         DAT_EVD_HANDLE request_evd_handle, DAT_EVD_HANDLE connect_evd_handle,
                         const DAT_EP_ATTR *ep_attributes, DAT_EP_HANDLE *ep_handle)
{
    struct v2_ep_attr attr = {0};

    if (ep_attributes != NULL && !ep_attr_to_v2(ep_attributes, DAT_EP_FIELD_EP_ATTR_ALL, &attr))
        return INVALID_ARG(6);
    return CALL(dat_ep_create, ia_handle, pz_handle, recv_evd_handle, request_evd_handle, connect_evd_handle,
                ep_attributes == NULL ? NULL : &attr, ep_handle);
}

DAT_RETURN dat_ep_create_with_srq(DAT_IA_HANDLE ia_handle, DAT_PZ_HANDLE pz_handle, DAT_EVD_HANDLE recv_evd_handle,
                                  DAT_EVD_HANDLE request_evd_handle, DAT_EVD_HANDLE connect_evd_handle,
                                  DAT_SRQ_HANDLE srq_handle, const DAT_EP_ATTR *ep_attributes,
                                  DAT_EP_HANDLE *ep_handle)
{
    struct v2_ep_attr attr = {0};

    if (ep_attributes != NULL && !ep_attr_to_v2(ep_attributes, DAT_EP_FIELD_EP_ATTR_ALL, &attr))
        return INVALID_ARG(7);
    return CALL(dat_ep_create_with_srq, ia_handle, pz_handle, recv_evd_handle, request_evd_handle, connect_evd_handle,
                srq_handle, ep_attributes == NULL ? NULL : &attr, ep_handle);
}

DAT_RETURN dat_ep_query(DAT_EP_HANDLE ep_handle, DAT_EP_PARAM_MASK ep_param_mask, DAT_EP_PARAM *ep_param)
{
    struct v2_ep_param param = {0};
    DAT_RETURN ret;

    if (OUTSIDE(ep_param_mask, DAT_EP_FIELD_ALL))
        return INVALID_ARG(2);
    ret = CALL(dat_ep_query, ep_handle, ep_mask_to_v2(ep_param_mask), ep_param == NULL ? NULL : &param);
    if (ret != DAT_SUCCESS || ep_param == NULL)
        return ret;
    if ((ep_param_mask & DAT_EP_FIELD_EP_STATE) != 0 && !ep_state_to_v1(param.ep_state, &ep_param->ep_state))
        return DAT_CLASS_ERROR | DAT_INTERNAL_ERROR;
#define GIVE(bit, field)                                                                                               \
    if ((ep_param_mask & DAT_EP_FIELD_##bit) != 0)                                                                     \
    ep_param->field = param.field
    GIVE(IA_HANDLE, ia_handle);
    GIVE(LOCAL_IA_ADDRESS_PTR, local_ia_address_ptr);
    GIVE(LOCAL_PORT_QUAL, local_port_qual);
    GIVE(REMOTE_IA_ADDRESS_PTR, remote_ia_address_ptr);
    GIVE(REMOTE_PORT_QUAL, remote_port_qual);
    GIVE(PZ_HANDLE, pz_handle);
    GIVE(RECV_EVD_HANDLE, recv_evd_handle);
    GIVE(REQUEST_EVD_HANDLE, request_evd_handle);
    GIVE(CONNECT_EVD_HANDLE, connect_evd_handle);
    GIVE(SRQ_HANDLE, srq_handle);
#undef GIVE
    ep_attr_to_v1(&param.ep_attr, ep_param_mask, &ep_param->ep_attr);
    return DAT_SUCCESS;
}

/* Reads only the fields that the mask names. */
DAT_RETURN dat_ep_modify(DAT_EP_HANDLE ep_handle, DAT_EP_PARAM_MASK ep_param_mask, const DAT_EP_PARAM *ep_param)
{
    struct v2_ep_param param = {0};

    if (OUTSIDE(ep_param_mask, DAT_EP_FIELD_ALL))
        return INVALID_ARG(2);
    if (ep_param == NULL)
        return CALL(dat_ep_modify, ep_handle, ep_mask_to_v2(ep_param_mask), NULL);
    if (!ep_attr_to_v2(&ep_param->ep_attr, ep_param_mask, &param.ep_attr))
        return INVALID_ARG(3);
#define TAKE(bit, field)                                                                                               \
    if ((ep_param_mask & DAT_EP_FIELD_##bit) != 0)                                                                     \
    param.field = ep_param->field
    TAKE(IA_HANDLE, ia_handle);
    TAKE(EP_STATE, ep_state);
    TAKE(LOCAL_IA_ADDRESS_PTR, local_ia_address_ptr);
    TAKE(LOCAL_PORT_QUAL, local_port_qual);
    TAKE(REMOTE_IA_ADDRESS_PTR, remote_ia_address_ptr);
    TAKE(REMOTE_PORT_QUAL, remote_port_qual);
    TAKE(PZ_HANDLE, pz_handle);
    TAKE(RECV_EVD_HANDLE, recv_evd_handle);
    TAKE(REQUEST_EVD_HANDLE, request_evd_handle);
    TAKE(CONNECT_EVD_HANDLE, connect_evd_handle);
    TAKE(SRQ_HANDLE, srq_handle);
#undef TAKE
    return CALL(dat_ep_modify, ep_handle, ep_mask_to_v2(ep_param_mask), &param);
}

/* MULTIPATH of 1.2 asks for several paths, as MULTIPATH_REQUESTED of 2.0 does. 1.2 has no
 * MULTIPATH_REQUIRED. */
DAT_RETURN dat_ep_connect(DAT_EP_HANDLE ep_handle, DAT_IA_ADDRESS_PTR remote_ia_address, DAT_CONN_QUAL remote_conn_qual,
                          DAT_TIMEOUT timeout, DAT_COUNT private_data_size, const DAT_PVOID private_data,
                          DAT_QOS quality_of_service, DAT_CONNECT_FLAGS connect_flags)
{
    if (OUTSIDE(connect_flags, DAT_CONNECT_MULTIPATH_FLAG))
        return INVALID_ARG(8);
    return CALL(dat_ep_connect, ep_handle, remote_ia_address, remote_conn_qual, timeout, private_data_size,
                private_data, quality_of_service, connect_flags);
}

DAT_RETURN dat_ep_dup_connect(DAT_EP_HANDLE ep_handle, DAT_EP_HANDLE ep_dup_handle, DAT_TIMEOUT timeout,
                              DAT_COUNT private_data_size, const DAT_PVOID private_data, DAT_QOS quality_of_service)
{
    return CALL(dat_ep_dup_connect, ep_handle, ep_dup_handle, timeout, private_data_size, private_data,
                quality_of_service);
}

DAT_RETURN dat_ep_disconnect(DAT_EP_HANDLE ep_handle, DAT_CLOSE_FLAGS close_flags)
{
    return CALL(dat_ep_disconnect, ep_handle, close_flags);
}

DAT_RETURN dat_ep_get_status(DAT_EP_HANDLE ep_handle, DAT_EP_STATE *ep_state, DAT_BOOLEAN *recv_idle,
                             DAT_BOOLEAN *request_idle)
{
    DAT_UINT32 state = 0;
    DAT_RETURN ret = CALL(dat_ep_get_status, ep_handle, ep_state == NULL ? NULL : &state, recv_idle, request_idle);

    if (ret != DAT_SUCCESS || ep_state == NULL || ep_state_to_v1(state, ep_state))
        return ret;
    return DAT_CLASS_ERROR | DAT_INTERNAL_ERROR;
}

DAT_RETURN dat_ep_recv_query(DAT_EP_HANDLE ep_handle, DAT_COUNT *nbufs_allocated, DAT_COUNT *bufs_alloc_span)
{
    return CALL(dat_ep_recv_query, ep_handle, nbufs_allocated, bufs_alloc_span);
}

DAT_RETURN dat_ep_set_watermark(DAT_EP_HANDLE ep_handle, DAT_COUNT soft_high_watermark, DAT_COUNT hard_high_watermark)
{
    return CALL(dat_ep_set_watermark, ep_handle, soft_high_watermark, hard_high_watermark);
}

DAT_RETURN dat_ep_reset(DAT_EP_HANDLE ep_handle)
{
    return CALL(dat_ep_reset, ep_handle);
}

DAT_RETURN dat_ep_free(DAT_EP_HANDLE ep_handle)
{
    return CALL(dat_ep_free, ep_handle);
}
