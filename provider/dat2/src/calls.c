/* The calls that go from a handle to its provider's function with the same arguments.
 *
 * The handle of an IA is a number. Every other handle is a pointer to an object of the provider,
 * which begins with a pointer to the provider's table. What can be no pointer is refused here; the
 * provider checks the rest. */
#include "internal.h"

#define CHECKED(handle, kind, call) \
    (is_pointer(handle) ? (call) : ERROR_CODE(INVALID_HANDLE, INVALID_HANDLE_##kind))

/* Any object. */

DAT_RETURN dat_set_consumer_context(DAT_HANDLE dat, DAT_CONTEXT context)
{
    DAT_RETURN ret = any_object(dat, &dat);

    return ret == DAT_SUCCESS ? DAT_SET_CONSUMER_CONTEXT(dat, context) : ret;
}

DAT_RETURN dat_get_consumer_context(DAT_HANDLE dat, DAT_CONTEXT *context)
{
    DAT_RETURN ret = any_object(dat, &dat);

    return ret == DAT_SUCCESS ? DAT_GET_CONSUMER_CONTEXT(dat, context) : ret;
}

DAT_RETURN dat_get_handle_type(DAT_HANDLE dat, DAT_HANDLE_TYPE *handle_type)
{
    DAT_RETURN ret = any_object(dat, &dat);

    return ret == DAT_SUCCESS ? DAT_GET_HANDLE_TYPE(dat, handle_type) : ret;
}

/* IAs: what they make, and what is asked of them. */

DAT_RETURN dat_ia_query(DAT_IA_HANDLE ia, DAT_EVD_HANDLE *async_evd, DAT_IA_ATTR_MASK ia_attr_mask,
                        DAT_IA_ATTR *ia_attr, DAT_PROVIDER_ATTR_MASK provider_attr_mask,
                        DAT_PROVIDER_ATTR *provider_attr)
{
    DAT_RETURN ret = ia_object(ia, &ia);

    if (ret != DAT_SUCCESS)
        return ret;
    return DAT_IA_QUERY(ia, async_evd, ia_attr_mask, ia_attr, provider_attr_mask, provider_attr);
}

DAT_RETURN dat_cno_create(DAT_IA_HANDLE ia, DAT_OS_WAIT_PROXY_AGENT agent, DAT_CNO_HANDLE *cno)
{
    DAT_RETURN ret = ia_object(ia, &ia);

    return ret == DAT_SUCCESS ? DAT_CNO_CREATE(ia, agent, cno) : ret;
}

DAT_RETURN dat_evd_create(DAT_IA_HANDLE ia, DAT_COUNT evd_min_qlen, DAT_CNO_HANDLE cno,
                          DAT_EVD_FLAGS evd_flags, DAT_EVD_HANDLE *evd)
{
    DAT_RETURN ret = ia_object(ia, &ia);

    return ret == DAT_SUCCESS ? DAT_EVD_CREATE(ia, evd_min_qlen, cno, evd_flags, evd) : ret;
}

DAT_RETURN dat_ep_create(DAT_IA_HANDLE ia, DAT_PZ_HANDLE pz, DAT_EVD_HANDLE recv_evd,
                         DAT_EVD_HANDLE request_evd, DAT_EVD_HANDLE connect_evd,
                         const DAT_EP_ATTR *ep_attributes, DAT_EP_HANDLE *ep)
{
    DAT_RETURN ret = ia_object(ia, &ia);

    if (ret != DAT_SUCCESS)
        return ret;
    return DAT_EP_CREATE(ia, pz, recv_evd, request_evd, connect_evd, ep_attributes, ep);
}

DAT_RETURN dat_lmr_create(DAT_IA_HANDLE ia, DAT_MEM_TYPE mem_type,
                          DAT_REGION_DESCRIPTION region_description, DAT_VLEN length,
                          DAT_PZ_HANDLE pz, DAT_MEM_PRIV_FLAGS mem_privileges, DAT_VA_TYPE va_type,
                          DAT_LMR_HANDLE *lmr, DAT_LMR_CONTEXT *lmr_context,
                          DAT_RMR_CONTEXT *rmr_context, DAT_VLEN *registered_size,
                          DAT_VADDR *registered_address)
{
    DAT_RETURN ret = ia_object(ia, &ia);

    if (ret != DAT_SUCCESS)
        return ret;
    return DAT_LMR_CREATE(ia, mem_type, region_description, length, pz, mem_privileges, va_type,
                          lmr, lmr_context, rmr_context, registered_size, registered_address);
}

DAT_RETURN dat_psp_create(DAT_IA_HANDLE ia, DAT_CONN_QUAL conn_qual, DAT_EVD_HANDLE evd,
                          DAT_PSP_FLAGS psp_flags, DAT_PSP_HANDLE *psp)
{
    DAT_RETURN ret = ia_object(ia, &ia);

    return ret == DAT_SUCCESS ? DAT_PSP_CREATE(ia, conn_qual, evd, psp_flags, psp) : ret;
}

DAT_RETURN dat_rsp_create(DAT_IA_HANDLE ia, DAT_CONN_QUAL conn_qual, DAT_EP_HANDLE ep,
                          DAT_EVD_HANDLE evd, DAT_RSP_HANDLE *rsp)
{
    DAT_RETURN ret = ia_object(ia, &ia);

    return ret == DAT_SUCCESS ? DAT_RSP_CREATE(ia, conn_qual, ep, evd, rsp) : ret;
}

DAT_RETURN dat_pz_create(DAT_IA_HANDLE ia, DAT_PZ_HANDLE *pz)
{
    DAT_RETURN ret = ia_object(ia, &ia);

    return ret == DAT_SUCCESS ? DAT_PZ_CREATE(ia, pz) : ret;
}

DAT_RETURN dat_psp_create_any(DAT_IA_HANDLE ia, DAT_CONN_QUAL *conn_qual, DAT_EVD_HANDLE evd,
                              DAT_PSP_FLAGS psp_flags, DAT_PSP_HANDLE *psp)
{
    DAT_RETURN ret = ia_object(ia, &ia);

    return ret == DAT_SUCCESS ? DAT_PSP_CREATE_ANY(ia, conn_qual, evd, psp_flags, psp) : ret;
}

DAT_RETURN dat_lmr_sync_rdma_read(DAT_IA_HANDLE ia, const DAT_LMR_TRIPLET *local_segments,
                                  DAT_VLEN num_segments)
{
    DAT_RETURN ret = ia_object(ia, &ia);

    return ret == DAT_SUCCESS ? DAT_LMR_SYNC_RDMA_READ(ia, local_segments, num_segments) : ret;
}

DAT_RETURN dat_lmr_sync_rdma_write(DAT_IA_HANDLE ia, const DAT_LMR_TRIPLET *local_segments,
                                   DAT_VLEN num_segments)
{
    DAT_RETURN ret = ia_object(ia, &ia);

    return ret == DAT_SUCCESS ? DAT_LMR_SYNC_RDMA_WRITE(ia, local_segments, num_segments) : ret;
}

DAT_RETURN dat_ep_create_with_srq(DAT_IA_HANDLE ia, DAT_PZ_HANDLE pz, DAT_EVD_HANDLE recv_evd,
                                  DAT_EVD_HANDLE request_evd, DAT_EVD_HANDLE connect_evd,
                                  DAT_SRQ_HANDLE srq, const DAT_EP_ATTR *ep_attributes,
                                  DAT_EP_HANDLE *ep)
{
    DAT_RETURN ret = ia_object(ia, &ia);

    if (ret != DAT_SUCCESS)
        return ret;
    return DAT_EP_CREATE_WITH_SRQ(ia, pz, recv_evd, request_evd, connect_evd, srq, ep_attributes,
                                  ep);
}

DAT_RETURN dat_srq_create(DAT_IA_HANDLE ia, DAT_PZ_HANDLE pz, DAT_SRQ_ATTR *srq_attributes,
                          DAT_SRQ_HANDLE *srq)
{
    DAT_RETURN ret = ia_object(ia, &ia);

    return ret == DAT_SUCCESS ? DAT_SRQ_CREATE(ia, pz, srq_attributes, srq) : ret;
}

/* Connection requests. */

DAT_RETURN dat_cr_query(DAT_CR_HANDLE cr, DAT_CR_PARAM_MASK cr_param_mask, DAT_CR_PARAM *cr_param)
{
    return CHECKED(cr, CR, DAT_CR_QUERY(cr, cr_param_mask, cr_param));
}

DAT_RETURN dat_cr_accept(DAT_CR_HANDLE cr, DAT_EP_HANDLE ep, DAT_COUNT private_data_size,
                         const DAT_PVOID private_data)
{
    return CHECKED(cr, CR, DAT_CR_ACCEPT(cr, ep, private_data_size, private_data));
}

DAT_RETURN dat_cr_reject(DAT_CR_HANDLE cr, DAT_COUNT private_data_size,
                         const DAT_PVOID private_data)
{
    return CHECKED(cr, CR, DAT_CR_REJECT(cr, private_data_size, private_data));
}

DAT_RETURN dat_cr_handoff(DAT_CR_HANDLE cr, DAT_CONN_QUAL handoff)
{
    return CHECKED(cr, CR, DAT_CR_HANDOFF(cr, handoff));
}

/* EVDs. */

DAT_RETURN dat_evd_query(DAT_EVD_HANDLE evd, DAT_EVD_PARAM_MASK evd_param_mask,
                         DAT_EVD_PARAM *evd_param)
{
    return CHECKED(evd, EVD_REQUEST, DAT_EVD_QUERY(evd, evd_param_mask, evd_param));
}

DAT_RETURN dat_evd_modify_cno(DAT_EVD_HANDLE evd, DAT_CNO_HANDLE cno)
{
    return CHECKED(evd, EVD_REQUEST, DAT_EVD_MODIFY_CNO(evd, cno));
}

DAT_RETURN dat_evd_enable(DAT_EVD_HANDLE evd)
{
    return CHECKED(evd, EVD_REQUEST, DAT_EVD_ENABLE(evd));
}

DAT_RETURN dat_evd_disable(DAT_EVD_HANDLE evd)
{
    return CHECKED(evd, EVD_REQUEST, DAT_EVD_DISABLE(evd));
}

DAT_RETURN dat_evd_wait(DAT_EVD_HANDLE evd, DAT_TIMEOUT timeout, DAT_COUNT threshold,
                        DAT_EVENT *event, DAT_COUNT *nmore)
{
    return CHECKED(evd, EVD_REQUEST, DAT_EVD_WAIT(evd, timeout, threshold, event, nmore));
}

DAT_RETURN dat_evd_resize(DAT_EVD_HANDLE evd, DAT_COUNT evd_min_qlen)
{
    return CHECKED(evd, EVD_REQUEST, DAT_EVD_RESIZE(evd, evd_min_qlen));
}

DAT_RETURN dat_evd_post_se(DAT_EVD_HANDLE evd, const DAT_EVENT *event)
{
    return CHECKED(evd, EVD_REQUEST, DAT_EVD_POST_SE(evd, event));
}

DAT_RETURN dat_evd_dequeue(DAT_EVD_HANDLE evd, DAT_EVENT *event)
{
    return CHECKED(evd, EVD_REQUEST, DAT_EVD_DEQUEUE(evd, event));
}

DAT_RETURN dat_evd_free(DAT_EVD_HANDLE evd)
{
    return CHECKED(evd, EVD_REQUEST, DAT_EVD_FREE(evd));
}

DAT_RETURN dat_evd_set_unwaitable(DAT_EVD_HANDLE evd)
{
    return CHECKED(evd, EVD_REQUEST, DAT_EVD_SET_UNWAITABLE(evd));
}

DAT_RETURN dat_evd_clear_unwaitable(DAT_EVD_HANDLE evd)
{
    return CHECKED(evd, EVD_REQUEST, DAT_EVD_CLEAR_UNWAITABLE(evd));
}

/* CNOs. */

DAT_RETURN dat_cno_modify_agent(DAT_CNO_HANDLE cno, DAT_OS_WAIT_PROXY_AGENT agent)
{
    return CHECKED(cno, CNO, DAT_CNO_MODIFY_AGENT(cno, agent));
}

DAT_RETURN dat_cno_query(DAT_CNO_HANDLE cno, DAT_CNO_PARAM_MASK cno_param_mask,
                         DAT_CNO_PARAM *cno_param)
{
    return CHECKED(cno, CNO, DAT_CNO_QUERY(cno, cno_param_mask, cno_param));
}

DAT_RETURN dat_cno_free(DAT_CNO_HANDLE cno)
{
    return CHECKED(cno, CNO, DAT_CNO_FREE(cno));
}

DAT_RETURN dat_cno_wait(DAT_CNO_HANDLE cno, DAT_TIMEOUT timeout, DAT_EVD_HANDLE *evd)
{
    return CHECKED(cno, CNO, DAT_CNO_WAIT(cno, timeout, evd));
}

/* EPs. */

DAT_RETURN dat_ep_query(DAT_EP_HANDLE ep, DAT_EP_PARAM_MASK ep_param_mask, DAT_EP_PARAM *ep_param)
{
    return CHECKED(ep, EP, DAT_EP_QUERY(ep, ep_param_mask, ep_param));
}

DAT_RETURN dat_ep_modify(DAT_EP_HANDLE ep, DAT_EP_PARAM_MASK ep_param_mask,
                         const DAT_EP_PARAM *ep_param)
{
    return CHECKED(ep, EP, DAT_EP_MODIFY(ep, ep_param_mask, ep_param));
}

DAT_RETURN dat_ep_connect(DAT_EP_HANDLE ep, DAT_IA_ADDRESS_PTR remote_ia_address,
                          DAT_CONN_QUAL remote_conn_qual, DAT_TIMEOUT timeout,
                          DAT_COUNT private_data_size, const DAT_PVOID private_data,
                          DAT_QOS quality_of_service, DAT_CONNECT_FLAGS connect_flags)
{
    return CHECKED(ep, EP, DAT_EP_CONNECT(ep, remote_ia_address, remote_conn_qual, timeout,
                                          private_data_size, private_data, quality_of_service,
                                          connect_flags));
}

DAT_RETURN dat_ep_dup_connect(DAT_EP_HANDLE ep, DAT_EP_HANDLE ep_dup, DAT_TIMEOUT timeout,
                              DAT_COUNT private_data_size, const DAT_PVOID private_data,
                              DAT_QOS quality_of_service)
{
    return CHECKED(ep, EP, DAT_EP_DUP_CONNECT(ep, ep_dup, timeout, private_data_size,
                                              private_data, quality_of_service));
}

DAT_RETURN dat_ep_disconnect(DAT_EP_HANDLE ep, DAT_CLOSE_FLAGS close_flags)
{
    return CHECKED(ep, EP, DAT_EP_DISCONNECT(ep, close_flags));
}

DAT_RETURN dat_ep_post_send(DAT_EP_HANDLE ep, DAT_COUNT num_segments, DAT_LMR_TRIPLET *local_iov,
                            DAT_DTO_COOKIE user_cookie, DAT_COMPLETION_FLAGS completion_flags)
{
    return CHECKED(ep, EP, DAT_EP_POST_SEND(ep, num_segments, local_iov, user_cookie,
                                            completion_flags));
}

DAT_RETURN dat_ep_post_recv(DAT_EP_HANDLE ep, DAT_COUNT num_segments, DAT_LMR_TRIPLET *local_iov,
                            DAT_DTO_COOKIE user_cookie, DAT_COMPLETION_FLAGS completion_flags)
{
    return CHECKED(ep, EP, DAT_EP_POST_RECV(ep, num_segments, local_iov, user_cookie,
                                            completion_flags));
}

DAT_RETURN dat_ep_post_rdma_read(DAT_EP_HANDLE ep, DAT_COUNT num_segments,
                                 DAT_LMR_TRIPLET *local_iov, DAT_DTO_COOKIE user_cookie,
                                 const DAT_RMR_TRIPLET *remote_buffer,
                                 DAT_COMPLETION_FLAGS completion_flags)
{
    return CHECKED(ep, EP, DAT_EP_POST_RDMA_READ(ep, num_segments, local_iov, user_cookie,
                                                 remote_buffer, completion_flags));
}

DAT_RETURN dat_ep_post_rdma_write(DAT_EP_HANDLE ep, DAT_COUNT num_segments,
                                  DAT_LMR_TRIPLET *local_iov, DAT_DTO_COOKIE user_cookie,
                                  const DAT_RMR_TRIPLET *remote_buffer,
                                  DAT_COMPLETION_FLAGS completion_flags)
{
    return CHECKED(ep, EP, DAT_EP_POST_RDMA_WRITE(ep, num_segments, local_iov, user_cookie,
                                                  remote_buffer, completion_flags));
}

DAT_RETURN dat_ep_get_status(DAT_EP_HANDLE ep, DAT_EP_STATE *ep_state, DAT_BOOLEAN *recv_idle,
                             DAT_BOOLEAN *request_idle)
{
    return CHECKED(ep, EP, DAT_EP_GET_STATUS(ep, ep_state, recv_idle, request_idle));
}

DAT_RETURN dat_ep_free(DAT_EP_HANDLE ep)
{
    return CHECKED(ep, EP, DAT_EP_FREE(ep));
}

DAT_RETURN dat_ep_reset(DAT_EP_HANDLE ep)
{
    return CHECKED(ep, EP, DAT_EP_RESET(ep));
}

DAT_RETURN dat_ep_recv_query(DAT_EP_HANDLE ep, DAT_COUNT *nbufs_allocated,
                             DAT_COUNT *bufs_alloc_span)
{
    return CHECKED(ep, EP, DAT_EP_RECV_QUERY(ep, nbufs_allocated, bufs_alloc_span));
}

DAT_RETURN dat_ep_set_watermark(DAT_EP_HANDLE ep, DAT_COUNT soft_high_watermark,
                                DAT_COUNT hard_high_watermark)
{
    return CHECKED(ep, EP, DAT_EP_SET_WATERMARK(ep, soft_high_watermark, hard_high_watermark));
}

/* SRQs. */

DAT_RETURN dat_srq_free(DAT_SRQ_HANDLE srq)
{
    return CHECKED(srq, SRQ, DAT_SRQ_FREE(srq));
}

DAT_RETURN dat_srq_post_recv(DAT_SRQ_HANDLE srq, DAT_COUNT num_segments, DAT_LMR_TRIPLET *local_iov,
                             DAT_DTO_COOKIE user_cookie)
{
    return CHECKED(srq, SRQ, DAT_SRQ_POST_RECV(srq, num_segments, local_iov, user_cookie));
}

DAT_RETURN dat_srq_query(DAT_SRQ_HANDLE srq, DAT_SRQ_PARAM_MASK srq_param_mask,
                         DAT_SRQ_PARAM *srq_param)
{
    return CHECKED(srq, SRQ, DAT_SRQ_QUERY(srq, srq_param_mask, srq_param));
}

DAT_RETURN dat_srq_resize(DAT_SRQ_HANDLE srq, DAT_COUNT srq_max_recv_dtos)
{
    return CHECKED(srq, SRQ, DAT_SRQ_RESIZE(srq, srq_max_recv_dtos));
}

DAT_RETURN dat_srq_set_lw(DAT_SRQ_HANDLE srq, DAT_COUNT low_watermark)
{
    return CHECKED(srq, SRQ, DAT_SRQ_SET_LW(srq, low_watermark));
}

/* Memory. */

DAT_RETURN dat_lmr_query(DAT_LMR_HANDLE lmr, DAT_LMR_PARAM_MASK lmr_param_mask,
                         DAT_LMR_PARAM *lmr_param)
{
    return CHECKED(lmr, LMR, DAT_LMR_QUERY(lmr, lmr_param_mask, lmr_param));
}

DAT_RETURN dat_lmr_free(DAT_LMR_HANDLE lmr)
{
    return CHECKED(lmr, LMR, DAT_LMR_FREE(lmr));
}

DAT_RETURN dat_rmr_query(DAT_RMR_HANDLE rmr, DAT_RMR_PARAM_MASK rmr_param_mask,
                         DAT_RMR_PARAM *rmr_param)
{
    return CHECKED(rmr, RMR, DAT_RMR_QUERY(rmr, rmr_param_mask, rmr_param));
}

DAT_RETURN dat_rmr_bind(DAT_RMR_HANDLE rmr, DAT_LMR_HANDLE lmr, const DAT_LMR_TRIPLET *lmr_triplet,
                        DAT_MEM_PRIV_FLAGS mem_privileges, DAT_VA_TYPE va_type, DAT_EP_HANDLE ep,
                        DAT_RMR_COOKIE user_cookie, DAT_COMPLETION_FLAGS completion_flags,
                        DAT_RMR_CONTEXT *context)
{
    return CHECKED(rmr, RMR, DAT_RMR_BIND(rmr, lmr, lmr_triplet, mem_privileges, va_type, ep,
                                          user_cookie, completion_flags, context));
}

DAT_RETURN dat_rmr_free(DAT_RMR_HANDLE rmr)
{
    return CHECKED(rmr, RMR, DAT_RMR_FREE(rmr));
}

/* Service points. */

DAT_RETURN dat_psp_query(DAT_PSP_HANDLE psp, DAT_PSP_PARAM_MASK psp_param_mask,
                         DAT_PSP_PARAM *psp_param)
{
    return CHECKED(psp, PSP, DAT_PSP_QUERY(psp, psp_param_mask, psp_param));
}

DAT_RETURN dat_psp_free(DAT_PSP_HANDLE psp)
{
    return CHECKED(psp, PSP, DAT_PSP_FREE(psp));
}

DAT_RETURN dat_rsp_query(DAT_RSP_HANDLE rsp, DAT_RSP_PARAM_MASK rsp_param_mask,
                         DAT_RSP_PARAM *rsp_param)
{
    return CHECKED(rsp, RSP, DAT_RSP_QUERY(rsp, rsp_param_mask, rsp_param));
}

DAT_RETURN dat_rsp_free(DAT_RSP_HANDLE rsp)
{
    return CHECKED(rsp, RSP, DAT_RSP_FREE(rsp));
}

/* Protection zones, and the RMRs made in them. */

DAT_RETURN dat_rmr_create(DAT_PZ_HANDLE pz, DAT_RMR_HANDLE *rmr)
{
    return CHECKED(pz, PZ, DAT_RMR_CREATE(pz, rmr));
}

DAT_RETURN dat_pz_query(DAT_PZ_HANDLE pz, DAT_PZ_PARAM_MASK pz_param_mask, DAT_PZ_PARAM *pz_param)
{
    return CHECKED(pz, PZ, DAT_PZ_QUERY(pz, pz_param_mask, pz_param));
}

DAT_RETURN dat_pz_free(DAT_PZ_HANDLE pz)
{
    return CHECKED(pz, PZ, DAT_PZ_FREE(pz));
}
