/* Posting: sends, receives, RDMA; SRQs. */
#include "shim.h"

/* A copy of a post's array of triplets, in the form of 2.0. It lives during the call: providers
 * copy the array, as ia.c checks. */
struct iov {
    struct v2_lmr_triplet triplets[MAX_SEGMENTS];
};

/* Returns 0, or which argument after the handle is wrong: 1 the number, 2 the array. NULL stays
 * NULL, so that the provider refuses it. */
static int iov_to_v2(DAT_COUNT segments, const DAT_LMR_TRIPLET *from, struct iov *iov, struct v2_lmr_triplet **to)
{
    *to = NULL;
    if (segments < 0 || segments > atomic_load_explicit(&max_segments, memory_order_relaxed))
        return 1;
    if (from == NULL)
        return 0;
    *to = iov->triplets;
    for (DAT_COUNT i = 0; i < segments; i++)
        if (!lmr_triplet_to_v2(&from[i], &iov->triplets[i]))
            return 2;
    return 0;
}

DAT_RETURN dat_ep_post_send(DAT_EP_HANDLE ep_handle, DAT_COUNT num_segments, DAT_LMR_TRIPLET *local_iov,
                            DAT_DTO_COOKIE user_cookie, DAT_COMPLETION_FLAGS completion_flags)
{
    struct iov iov;
    struct v2_lmr_triplet *local;
    int wrong = iov_to_v2(num_segments, local_iov, &iov, &local);

    if (wrong != 0)
        return INVALID_ARG(1 + wrong);
    if (OUTSIDE(completion_flags, COMPLETION_FLAGS))
        return INVALID_ARG(5);
    return CALL(dat_ep_post_send, ep_handle, num_segments, local, user_cookie, completion_flags);
}

DAT_RETURN dat_ep_post_recv(DAT_EP_HANDLE ep_handle, DAT_COUNT num_segments, DAT_LMR_TRIPLET *local_iov,
                            DAT_DTO_COOKIE user_cookie, DAT_COMPLETION_FLAGS completion_flags)
{
    struct iov iov;
    struct v2_lmr_triplet *local;
    int wrong = iov_to_v2(num_segments, local_iov, &iov, &local);

    if (wrong != 0)
        return INVALID_ARG(1 + wrong);
    if (OUTSIDE(completion_flags, COMPLETION_FLAGS))
        return INVALID_ARG(5);
    return CALL(dat_ep_post_recv, ep_handle, num_segments, local, user_cookie, completion_flags);
}

/* False if the length does not fit into the 32 bits of 2.0. */
static bool rmr_triplet_to_v2(const DAT_RMR_TRIPLET *from, struct v2_rmr_triplet *to)
{
    if (from == NULL)
        return true;
    to->virtual_address = from->target_address;
    to->segment_length = (DAT_UINT32)from->segment_length;
    to->rmr_context = from->rmr_context;
    return from->segment_length <= UINT32_MAX;
}

/* The arguments of an RDMA operation. */
struct rdma {
    struct iov iov;
    struct v2_lmr_triplet *local;
    struct v2_rmr_triplet space, *remote;
};

static DAT_RETURN rdma_to_v2(DAT_COUNT num_segments, const DAT_LMR_TRIPLET *local_iov,
                             const DAT_RMR_TRIPLET *remote_buffer, DAT_COMPLETION_FLAGS completion_flags, struct rdma *to)
{
    int wrong = iov_to_v2(num_segments, local_iov, &to->iov, &to->local);

    if (wrong != 0)
        return INVALID_ARG(1 + wrong);
    if (!rmr_triplet_to_v2(remote_buffer, &to->space))
        return INVALID_ARG(5);
    if (OUTSIDE(completion_flags, COMPLETION_FLAGS))
        return INVALID_ARG(6);
    to->remote = remote_buffer == NULL ? NULL : &to->space;
    return DAT_SUCCESS;
}

DAT_RETURN dat_ep_post_rdma_read(DAT_EP_HANDLE ep_handle, DAT_COUNT num_segments, DAT_LMR_TRIPLET *local_iov,
                                 DAT_DTO_COOKIE user_cookie, const DAT_RMR_TRIPLET *remote_buffer,
                                 DAT_COMPLETION_FLAGS completion_flags)
{
    struct rdma rdma;
    DAT_RETURN wrong = rdma_to_v2(num_segments, local_iov, remote_buffer, completion_flags, &rdma);

    if (wrong != DAT_SUCCESS)
        return wrong;
    return CALL(dat_ep_post_rdma_read, ep_handle, num_segments, rdma.local, user_cookie, rdma.remote, completion_flags);
}

DAT_RETURN dat_ep_post_rdma_write(DAT_EP_HANDLE ep_handle, DAT_COUNT num_segments, DAT_LMR_TRIPLET *local_iov,
                                  DAT_DTO_COOKIE user_cookie, const DAT_RMR_TRIPLET *remote_buffer,
                                  DAT_COMPLETION_FLAGS completion_flags)
{
    struct rdma rdma;
    DAT_RETURN wrong = rdma_to_v2(num_segments, local_iov, remote_buffer, completion_flags, &rdma);

    if (wrong != DAT_SUCCESS)
        return wrong;
    return CALL(dat_ep_post_rdma_write, ep_handle, num_segments, rdma.local, user_cookie, rdma.remote, completion_flags);
}

DAT_RETURN dat_srq_create(DAT_IA_HANDLE ia_handle, DAT_PZ_HANDLE pz_handle, DAT_SRQ_ATTR *srq_attr,
                          DAT_SRQ_HANDLE *srq_handle)
{
    return CALL(dat_srq_create, ia_handle, pz_handle, srq_attr, srq_handle);
}

DAT_RETURN dat_srq_free(DAT_SRQ_HANDLE srq_handle)
{
    return CALL(dat_srq_free, srq_handle);
}

DAT_RETURN dat_srq_post_recv(DAT_SRQ_HANDLE srq_handle, DAT_COUNT num_segments, DAT_LMR_TRIPLET *local_iov,
                             DAT_DTO_COOKIE user_cookie)
{
    struct iov iov;
    struct v2_lmr_triplet *local;
    int wrong = iov_to_v2(num_segments, local_iov, &iov, &local);

    if (wrong != 0)
        return INVALID_ARG(1 + wrong);
    return CALL(dat_srq_post_recv, srq_handle, num_segments, local, user_cookie);
}

DAT_RETURN dat_srq_query(DAT_SRQ_HANDLE srq_handle, DAT_SRQ_PARAM_MASK srq_param_mask, DAT_SRQ_PARAM *srq_param)
{
    struct v2_srq_param param = {0};
    DAT_RETURN ret;

    if (OUTSIDE(srq_param_mask, DAT_SRQ_FIELD_ALL))
        return INVALID_ARG(2);
    ret = CALL(dat_srq_query, srq_handle, srq_param_mask, srq_param == NULL ? NULL : &param);
    if (ret != DAT_SUCCESS || srq_param == NULL)
        return ret;
    /* 1.2 has no state for an SRQ that is being freed, so it gets the error state. */
    if ((srq_param_mask & DAT_SRQ_FIELD_SRQ_STATE) != 0)
        srq_param->srq_state =
            param.srq_state == V2_SRQ_OPERATIONAL ? DAT_SRQ_STATE_OPERATIONAL : DAT_SRQ_STATE_ERROR;
#define GIVE(bit, field)                                                                                               \
    if ((srq_param_mask & DAT_SRQ_FIELD_##bit) != 0)                                                                   \
    srq_param->field = param.field
    GIVE(IA_HANDLE, ia_handle);
    GIVE(PZ_HANDLE, pz_handle);
    GIVE(MAX_RECV_DTO, max_recv_dtos);
    GIVE(MAX_RECV_IOV, max_recv_iov);
    GIVE(LOW_WATERMARK, low_watermark);
    GIVE(AVAILABLE_DTO_COUNT, available_dto_count);
    GIVE(OUTSTANDING_DTO_COUNT, outstanding_dto_count);
#undef GIVE
    return DAT_SUCCESS;
}

DAT_RETURN dat_srq_resize(DAT_SRQ_HANDLE srq_handle, DAT_COUNT srq_max_recv_dto)
{
    return CALL(dat_srq_resize, srq_handle, srq_max_recv_dto);
}

DAT_RETURN dat_srq_set_lw(DAT_SRQ_HANDLE srq_handle, DAT_COUNT low_watermark)
{
    return CALL(dat_srq_set_lw, srq_handle, low_watermark);
}
