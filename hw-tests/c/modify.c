/* dat_ep_modify: every field that the mask can name is returned by the query and takes effect. */
#include "check.h"
#include "emu.h"

static DAT_EP_PARAM query(DAT_EP_HANDLE ep)
{
    DAT_EP_PARAM param;

    memset(&param, 0xA5, sizeof param);
    OK(dat_ep_query(ep, DAT_EP_FIELD_ALL, &param));
    return param;
}

/* Fields that can never change, and handles that are no EP, PZ or EVD. */
static void refusals(struct side *a, DAT_EP_HANDLE ep)
{
    static const DAT_EP_PARAM_MASK never[] = {
        DAT_EP_FIELD_IA_HANDLE, DAT_EP_FIELD_EP_STATE, DAT_EP_FIELD_COMM, DAT_EP_FIELD_LOCAL_IA_ADDRESS_PTR,
        DAT_EP_FIELD_LOCAL_PORT_QUAL, DAT_EP_FIELD_REMOTE_IA_ADDRESS_PTR, DAT_EP_FIELD_REMOTE_PORT_QUAL,
        DAT_EP_FIELD_SRQ_HANDLE, DAT_EP_FIELD_EP_ATTR_SRQ_SOFT_HW, UINT64_C(1) << 31, UINT64_C(1) << 63};
    DAT_EP_PARAM param = query(ep), before = param;
    unsigned i;

    for (i = 0; i < sizeof never / sizeof *never; i++)
        EXPECT(ARG(2), dat_ep_modify(ep, never[i], &param));
    EXPECT(ARG(3), dat_ep_modify(ep, DAT_EP_FIELD_PZ_HANDLE, NULL));
    EXPECT(HANDLE(EP), dat_ep_modify(a->pz, DAT_EP_FIELD_PZ_HANDLE, &param));
    param.pz_handle = a->recv;
    param.recv_evd_handle = a->conn;
    param.request_evd_handle = ep;
    param.connect_evd_handle = a->pz;
    EXPECT(HANDLE(PZ), dat_ep_modify(ep, DAT_EP_FIELD_PZ_HANDLE, &param));
    EXPECT(HANDLE(EVD_RECV), dat_ep_modify(ep, DAT_EP_FIELD_RECV_EVD_HANDLE, &param));
    EXPECT(HANDLE(EVD_REQUEST), dat_ep_modify(ep, DAT_EP_FIELD_REQUEST_EVD_HANDLE, &param));
    EXPECT(HANDLE(EVD_CONN), dat_ep_modify(ep, DAT_EP_FIELD_CONNECT_EVD_HANDLE, &param));
    param = before;
    param.ep_attr.service_type = 99;
    EXPECT(ARG(3), dat_ep_modify(ep, DAT_EP_FIELD_EP_ATTR_SERVICE_TYPE, &param));
    param.ep_attr.qos = 99;
    EXPECT(ARG(3), dat_ep_modify(ep, DAT_EP_FIELD_EP_ATTR_QOS, &param));
    param.ep_attr.recv_completion_flags = 0x100;
    EXPECT(ARG(3), dat_ep_modify(ep, DAT_EP_FIELD_EP_ATTR_RECV_COMPLETION_FLAGS, &param));
    param.ep_attr.max_recv_dtos = a->attr.max_dto_per_ep + 1;
    EXPECT(ARG(3), dat_ep_modify(ep, DAT_EP_FIELD_EP_ATTR_MAX_RECV_DTOS | DAT_EP_FIELD_EP_ATTR_MAX_MESSAGE_SIZE, &param));
    param.ep_attr.ep_provider_specific_count = 1;
    EXPECT(ARG(3), dat_ep_modify(ep, DAT_EP_FIELD_EP_ATTR_NUM_PROVIDER_ATTR, &param));
    param = query(ep);
    CHECK(memcmp(&param.ep_attr, &before.ep_attr, sizeof before.ep_attr) == 0);
}

int main(int argc, char **argv)
{
    struct side a, b;
    DAT_EP_ATTR attr = ep_attr();
    DAT_EP_HANDLE ep, peer;
    DAT_EP_PARAM param, is;
    DAT_EVD_HANDLE recv, request, conn;
    DAT_PZ_HANDLE pz;
    DAT_LMR_HANDLE lmr;
    DAT_LMR_CONTEXT context;
    DAT_REGION_DESCRIPTION region;
    DAT_LMR_TRIPLET iov;
    DAT_DTO_COOKIE cookie;
    DAT_EVENT event;
    int i;

    (void)argc;
    side_open(&a, argv[1]);
    side_open(&b, argv[2]);
    OK(dat_ep_create(a.ia, a.pz, a.recv, a.req, a.conn, &attr, &ep));
    OK(dat_ep_create(b.ia, b.pz, b.recv, b.req, b.conn, &attr, &peer));
    refusals(&a, ep);

    OK(dat_pz_create(a.ia, &pz));
    region.for_va = a.memory;
    OK(dat_lmr_create(a.ia, DAT_MEM_TYPE_VIRTUAL, region, MEMORY, pz, DAT_MEM_PRIV_ALL_FLAG, DAT_VA_TYPE_VA, &lmr, &context,
                      NULL, NULL, NULL));
    OK(dat_evd_create(a.ia, 128, DAT_HANDLE_NULL, DAT_EVD_DTO_FLAG, &recv));
    OK(dat_evd_create(a.ia, 128, DAT_HANDLE_NULL, DAT_EVD_DTO_FLAG | DAT_EVD_RMR_BIND_FLAG, &request));
    OK(dat_evd_create(a.ia, 16, DAT_HANDLE_NULL, DAT_EVD_CONNECTION_FLAG, &conn));
    memset(&param, 0, sizeof param);
    param.pz_handle = pz;
    param.recv_evd_handle = recv;
    param.request_evd_handle = request;
    param.connect_evd_handle = conn;
    param.ep_attr = attr;
    param.ep_attr.max_message_size = 1000;
    param.ep_attr.max_rdma_size = 2000;
    param.ep_attr.recv_completion_flags = DAT_COMPLETION_EVD_THRESHOLD_FLAG;
    /* The second flag has no effect on the mode, because each request may carry it. */
    param.ep_attr.request_completion_flags = DAT_COMPLETION_UNSIGNALLED_FLAG | DAT_COMPLETION_SUPPRESS_FLAG;
    param.ep_attr.max_recv_dtos = 100;
    param.ep_attr.max_request_dtos = 90;
    param.ep_attr.max_recv_iov = 3;
    param.ep_attr.max_request_iov = 4;
    param.ep_attr.max_rdma_read_in = 2;
    param.ep_attr.max_rdma_read_out = 1;
    param.ep_attr.max_rdma_read_iov = 1;
    param.ep_attr.max_rdma_write_iov = 2;
    /* All fields that can change, in one call. */
    OK(dat_ep_modify(ep,
                     DAT_EP_FIELD_PZ_HANDLE | DAT_EP_FIELD_RECV_EVD_HANDLE | DAT_EP_FIELD_REQUEST_EVD_HANDLE |
                         DAT_EP_FIELD_CONNECT_EVD_HANDLE |
                         (DAT_EP_FIELD_EP_ATTR_ALL & ~DAT_EP_FIELD_EP_ATTR_SRQ_SOFT_HW),
                     &param));
    is = query(ep);
    CHECK(is.ep_state == DAT_EP_STATE_UNCONNECTED && is.ia_handle == a.ia && is.srq_handle == DAT_HANDLE_NULL);
    CHECK(is.pz_handle == pz && is.recv_evd_handle == recv && is.request_evd_handle == request);
    CHECK(is.connect_evd_handle == conn);
    CHECK(is.ep_attr.max_message_size == 1000 && is.ep_attr.max_rdma_size == 2000);
    CHECK(is.ep_attr.recv_completion_flags == DAT_COMPLETION_EVD_THRESHOLD_FLAG);
    CHECK(is.ep_attr.request_completion_flags == (DAT_COMPLETION_UNSIGNALLED_FLAG | DAT_COMPLETION_SUPPRESS_FLAG));
    CHECK(is.ep_attr.max_recv_dtos >= 100 && is.ep_attr.max_request_dtos >= 90);
    CHECK(is.ep_attr.max_recv_iov >= 3 && is.ep_attr.max_request_iov >= 4);
    CHECK(is.ep_attr.max_rdma_read_in == 2 && is.ep_attr.max_rdma_read_out == 1);
    CHECK(is.ep_attr.max_rdma_read_iov == 1 && is.ep_attr.max_rdma_write_iov == 2);
    /* Objects that the EP no longer uses can be freed. */
    OK(dat_lmr_free(a.lmr));
    OK(dat_pz_free(a.pz));
    OK(dat_evd_free(a.recv));
    OK(dat_evd_free(a.req));
    OK(dat_evd_free(a.conn));
    a.pz = pz, a.recv = recv, a.req = request, a.conn = conn, a.lmr = lmr, a.lmr_context = context;

    for (i = 0; i < 90; i++) {
        iov = piece(&a, 64 * i, 64);
        cookie.as_64 = i;
        OK(dat_ep_post_recv(ep, 1, &iov, cookie, DAT_COMPLETION_DEFAULT_FLAG));
    }
    /* Posted receives move to the new QP in their order. With receives posted, their flags cannot
     * change, nor can a queue become too small for them. */
    OK(dat_ep_modify(ep, DAT_EP_FIELD_PZ_HANDLE | DAT_EP_FIELD_RECV_EVD_HANDLE, &param));
    param.ep_attr.recv_completion_flags = DAT_COMPLETION_DEFAULT_FLAG;
    EXPECT(STATE(DAT_INVALID_STATE_EP_UNCONNECTED),
           dat_ep_modify(ep, DAT_EP_FIELD_EP_ATTR_RECV_COMPLETION_FLAGS, &param));
    param.ep_attr.max_recv_dtos = 89;
    EXPECT(STATE(DAT_INVALID_STATE_EP_UNCONNECTED), dat_ep_modify(ep, DAT_EP_FIELD_EP_ATTR_MAX_RECV_DTOS, &param));
    param.recv_evd_handle = DAT_HANDLE_NULL;
    param.ep_attr.max_recv_dtos = 500;
    OK(dat_ep_modify(ep, DAT_EP_FIELD_RECV_EVD_HANDLE | DAT_EP_FIELD_EP_ATTR_MAX_RECV_DTOS, &param));
    param.recv_evd_handle = recv;
    OK(dat_ep_modify(ep, DAT_EP_FIELD_RECV_EVD_HANDLE, &param));
    if (emu("fault cmd.create_qp=12") == 0) {
        param.ep_attr.max_request_dtos = 3000;
        CHECK(DAT_GET_TYPE(dat_ep_modify(ep, DAT_EP_FIELD_EP_ATTR_MAX_REQUEST_DTOS, &param)) == DAT_INSUFFICIENT_RESOURCES);
        CHECK(emu("no faults") == 0 && query(ep).ep_attr.max_request_dtos < 3000);
    }
    for (; i < 100; i++) {
        iov = piece(&a, 64 * i, 64);
        cookie.as_64 = i;
        OK(dat_ep_post_recv(ep, 1, &iov, cookie, DAT_COMPLETION_DEFAULT_FLAG));
    }
    join(&a, ep, &b, peer, 45341);
    for (i = 0; i < 100; i++) {
        iov = piece(&b, 0, 8);
        OK(dat_ep_post_send(peer, 1, &iov, cookie, DAT_COMPLETION_DEFAULT_FLAG));
        NEXT(b.req, DAT_DTO_COMPLETION_EVENT);
        event = NEXT(recv, DAT_DTO_COMPLETION_EVENT);
        CHECK(event.event_data.dto_completion_event_data.user_cookie.as_64 == (DAT_UINT64)i);
    }
    /* The mode of requests now allows this flag. */
    iov = piece(&a, 0, 8);
    for (cookie.as_64 = 5; cookie.as_64 < 7; cookie.as_64++) {
        OK(dat_ep_post_recv(peer, 0, NULL, cookie, DAT_COMPLETION_DEFAULT_FLAG));
        OK(dat_ep_post_send(ep, 0, NULL, cookie, cookie.as_64 == 5 ? DAT_COMPLETION_UNSIGNALLED_FLAG : 0));
        NEXT(b.recv, DAT_DTO_COMPLETION_EVENT);
    }
    for (cookie.as_64 = 5; cookie.as_64 < 7; cookie.as_64++) {
        event = NEXT(request, DAT_DTO_COMPLETION_EVENT);
        CHECK(event.event_data.dto_completion_event_data.user_cookie.as_64 == cookie.as_64);
    }
    EXPECT(STATE(DAT_INVALID_STATE_EP_CONNECTED), dat_ep_modify(ep, DAT_EP_FIELD_EP_ATTR_MAX_MESSAGE_SIZE, &param));
    OK(dat_ia_close(a.ia, DAT_CLOSE_ABRUPT_FLAG));
    OK(dat_ia_close(b.ia, DAT_CLOSE_ABRUPT_FLAG));
    return finish();
}
