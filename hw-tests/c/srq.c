/* The nine SRQ calls, through libdat2. */
#include "check.h"

int main(int argc, char **argv)
{
    struct side a, b;
    DAT_SRQ_HANDLE srq, none;
    DAT_SRQ_ATTR attr = {10, 2, 0};
    DAT_SRQ_PARAM param;
    DAT_EP_ATTR plain = ep_attr();
    DAT_EP_PARAM ep_param;
    DAT_EP_HANDLE server[2], client[2];
    DAT_LMR_TRIPLET iov[3];
    DAT_DTO_COOKIE cookie;
    DAT_EVENT event;
    DAT_COUNT held, span;
    int i;

    (void)argc;
    side_open(&a, argv[1]);
    side_open(&b, argv[2]);

    /* Creation. */
    EXPECT(ARG(3), dat_srq_create(a.ia, a.pz, NULL, &srq));
    EXPECT(ARG(4), dat_srq_create(a.ia, a.pz, &attr, NULL));
    attr.max_recv_dtos = 0;
    EXPECT(ARG(3), dat_srq_create(a.ia, a.pz, &attr, &srq));
    attr.max_recv_dtos = a.attr.max_recv_per_srq + 1;
    EXPECT(ARG(3), dat_srq_create(a.ia, a.pz, &attr, &srq));
    attr.max_recv_dtos = 10;
    attr.low_watermark = 1;
    EXPECT(ARG(3), dat_srq_create(a.ia, a.pz, &attr, &srq));
    attr.low_watermark = DAT_SRQ_LW_DEFAULT;
    OK(dat_srq_create(a.ia, a.pz, &attr, &srq));
    param = look(srq);
    CHECK(param.ia_handle == a.ia);
    CHECK(param.srq_state == DAT_SRQ_STATE_OPERATIONAL);
    CHECK(param.pz_handle == a.pz);
    CHECK(param.max_recv_dtos == 10);
    CHECK(param.max_recv_iov >= 2);
    CHECK(param.low_watermark == 0);
    EXPECT(ARG(2), dat_srq_query(srq, 0x100, &param));
    EXPECT(ARG(3), dat_srq_query(srq, DAT_SRQ_FIELD_ALL, NULL));
    EXPECT(DAT_CLASS_ERROR | DAT_INVALID_STATE | DAT_INVALID_STATE_PZ_IN_USE, dat_pz_free(a.pz));

    /* Posting. */
    for (i = 0; i < 3; i++)
        iov[i] = piece(&a, 1024 * i, 64);
    cookie.as_64 = 0;
    EXPECT(ARG(2), dat_srq_post_recv(srq, -1, iov, cookie));
    EXPECT(ARG(2), dat_srq_post_recv(srq, 1000, iov, cookie));
    EXPECT(ARG(3), dat_srq_post_recv(srq, 1, NULL, cookie));
    iov[2].virtual_address += MEMORY;
    EXPECT(ARG(3), dat_srq_post_recv(srq, 1, &iov[2], cookie));
    iov[2] = piece(&a, 2048, 64);
    iov[2].lmr_context ^= 0x00f00000;
    EXPECT(DAT_CLASS_ERROR | DAT_PRIVILEGES_VIOLATION | DAT_PRIVILEGES_WRITE, dat_srq_post_recv(srq, 1, &iov[2], cookie));
    COUNTS(srq, 0, 0);
    for (i = 0; i < 10; i++) {
        iov[0] = piece(&a, 256 * i, 64);
        cookie.as_64 = 100 + i;
        OK(dat_srq_post_recv(srq, 1, iov, cookie));
    }
    EXPECT(DAT_CLASS_ERROR | DAT_INSUFFICIENT_RESOURCES | DAT_RESOURCE_SRQ, dat_srq_post_recv(srq, 1, iov, cookie));
    COUNTS(srq, 10, 10);

    /* EPs on the SRQ. */
    EXPECT(ARG(7), dat_ep_create_with_srq(a.ia, a.pz, a.recv, a.req, a.conn, srq, NULL, &server[0]));
    EXPECT(ARG(8), dat_ep_create_with_srq(a.ia, a.pz, a.recv, a.req, a.conn, srq, &plain, NULL));
    for (i = 0; i < 2; i++) {
        OK(dat_ep_create_with_srq(a.ia, a.pz, a.recv, a.req, a.conn, srq, &plain, &server[i]));
        OK(dat_ep_create(b.ia, b.pz, b.recv, b.req, b.conn, &plain, &client[i]));
    }
    memset(&ep_param, 0xA5, sizeof ep_param);
    OK(dat_ep_query(server[0], DAT_EP_FIELD_ALL, &ep_param));
    CHECK(ep_param.srq_handle == srq && ep_param.ia_handle == a.ia && ep_param.pz_handle == a.pz);
    CHECK(ep_param.ep_state == DAT_EP_STATE_UNCONNECTED);
    CHECK(ep_param.recv_evd_handle == a.recv && ep_param.request_evd_handle == a.req);
    CHECK(ep_param.connect_evd_handle == a.conn);
    CHECK(ep_param.ep_attr.max_recv_dtos == 8 && ep_param.ep_attr.srq_soft_hw == DAT_HW_DEFAULT);
    EXPECT(ARG(2), dat_ep_modify(server[0], DAT_EP_FIELD_SRQ_HANDLE, &ep_param));
    EXPECT(ARG(2), dat_ep_modify(server[0], DAT_EP_FIELD_EP_ATTR_SRQ_SOFT_HW, &ep_param));
    EXPECT(DAT_CLASS_ERROR | DAT_INVALID_STATE | DAT_INVALID_STATE_SRQ_IN_USE, dat_ep_post_recv(server[0], -1, NULL, cookie, 99));
    EXPECT(DAT_CLASS_ERROR | DAT_INVALID_STATE | DAT_INVALID_STATE_SRQ_IN_USE, dat_srq_free(srq));
    OK(dat_ep_recv_query(server[0], &held, &span));
    CHECK(held == 0 && span == 0);
    for (i = 0; i < 2; i++)
        join(&a, server[i], &b, client[i], 45310 + i);
    OK(dat_ep_recv_query(server[0], &held, NULL));
    CHECK(held == DAT_VALUE_UNKNOWN);

    /* The messages of both connections take buffers from it. */
    for (i = 0; i < 4; i++) {
        sprintf(b.memory, "message %d", i);
        iov[0] = piece(&b, 0, 32);
        cookie.as_64 = 200 + i;
        OK(dat_ep_post_send(client[i % 2], 1, iov, cookie, DAT_COMPLETION_DEFAULT_FLAG));
        event = NEXT(b.req, DAT_DTO_COMPLETION_EVENT);
        CHECK(event.event_data.dto_completion_event_data.ep_handle == client[i % 2]);
        CHECK(event.event_data.dto_completion_event_data.user_cookie.as_64 == 200u + i);
        CHECK(event.event_data.dto_completion_event_data.status == DAT_DTO_SUCCESS);
        CHECK(event.event_data.dto_completion_event_data.transfered_length == 32);
        CHECK(event.event_data.dto_completion_event_data.operation == DAT_DTO_SEND);
        event = NEXT(a.recv, DAT_DTO_COMPLETION_EVENT);
        CHECK(event.event_data.dto_completion_event_data.ep_handle == server[i % 2]);
        CHECK(event.event_data.dto_completion_event_data.operation == DAT_DTO_RECEIVE);
        CHECK(event.event_data.dto_completion_event_data.transfered_length == 32);
        cookie = event.event_data.dto_completion_event_data.user_cookie;
        CHECK(cookie.as_64 >= 100 && cookie.as_64 < 110);
        CHECK(strcmp(a.memory + 256 * (cookie.as_64 - 100), b.memory) == 0);
    }
    COUNTS(srq, 6, 6);

    /* The low watermark: an event at once if fewer buffers are available, and never twice. */
    EXPECT(ARG(2), dat_srq_set_lw(srq, -1));
    EXPECT(ARG(2), dat_srq_set_lw(srq, 11));
    OK(dat_srq_set_lw(srq, 7));
    event = NEXT(a.async, DAT_ASYNC_ERROR_PROVIDER_INTERNAL_ERROR);
    CHECK(event.event_data.asynch_error_event_data.dat_handle == (DAT_HANDLE)srq);
    CHECK(event.event_data.asynch_error_event_data.reason == DAT_SRQ_LOW_WATERMARK_EVENT);
    CHECK(look(srq).low_watermark == 7);
    EXPECT(DAT_CLASS_ERROR | DAT_QUEUE_EMPTY, dat_evd_dequeue(a.async, &event));

    /* Depth. */
    EXPECT(ARG(2), dat_srq_resize(srq, 0));
    EXPECT(DAT_CLASS_ERROR | DAT_INVALID_STATE, dat_srq_resize(srq, 5));
    EXPECT(DAT_CLASS_ERROR | DAT_INVALID_STATE, dat_srq_resize(srq, 6));
    OK(dat_srq_set_lw(srq, 0));
    OK(dat_srq_resize(srq, 20));
    CHECK(look(srq).max_recv_dtos == 20);
    COUNTS(srq, 6, 6);
    for (i = 0; i < 14; i++) {
        iov[0] = piece(&a, 8192 + 256 * i, 64);
        OK(dat_srq_post_recv(srq, 1, iov, cookie));
    }
    EXPECT(DAT_CLASS_ERROR | DAT_INSUFFICIENT_RESOURCES | DAT_RESOURCE_SRQ, dat_srq_post_recv(srq, 1, iov, cookie));

    /* The high watermarks: the soft one causes an event, the hard one breaks the connection. */
    EXPECT(ARG(2), dat_ep_set_watermark(server[0], -2, -1));
    EXPECT(ARG(3), dat_ep_set_watermark(server[0], -1, -2));
    OK(dat_ep_set_watermark(server[0], 0, DAT_WATERMARK_INFINITE));
    iov[0] = piece(&b, 0, 32);
    OK(dat_ep_post_send(client[0], 1, iov, cookie, DAT_COMPLETION_SUPPRESS_FLAG));
    NEXT(a.recv, DAT_DTO_COMPLETION_EVENT);
    event = NEXT(a.async, DAT_ASYNC_ERROR_PROVIDER_INTERNAL_ERROR);
    CHECK(event.event_data.asynch_error_event_data.dat_handle == (DAT_HANDLE)server[0]);
    CHECK(event.event_data.asynch_error_event_data.reason == DAT_SRQ_SOFT_HIGH_WATERMARK_EVENT);

    /* Both connections end, and both EVDs get the events. */
    for (i = 0; i < 2; i++) {
        OK(dat_ep_disconnect(client[i], DAT_CLOSE_ABRUPT_FLAG));
        event = NEXT(b.conn, DAT_CONNECTION_EVENT_DISCONNECTED);
        event = NEXT(a.conn, DAT_CONNECTION_EVENT_DISCONNECTED);
        CHECK(event.event_data.connect_event_data.ep_handle == server[i]);
        event = NEXT(a.async, DAT_ASYNC_ERROR_EP_BROKEN);
        CHECK(event.event_data.asynch_error_event_data.dat_handle == (DAT_HANDLE)server[i]);
        OK(dat_ep_free(server[i]));
        OK(dat_ep_free(client[i]));
    }
    OK(dat_srq_free(srq));
    none = srq;
    EXPECT(DAT_CLASS_ERROR | DAT_INVALID_HANDLE | DAT_INVALID_HANDLE_SRQ, dat_srq_query(none, 0, &param));
    OK(dat_ia_close(a.ia, DAT_CLOSE_ABRUPT_FLAG));
    OK(dat_ia_close(b.ia, DAT_CLOSE_ABRUPT_FLAG));
    return finish();
}
