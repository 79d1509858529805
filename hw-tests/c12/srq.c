/* A server with one SRQ under several EPs, and its clients, as the manual pages of
 * dat_srq_create(3DAT), dat_srq_query(3DAT) and related calls describe them: DAT 1.2, -ldat. */
#include "check.h"

#include <time.h>

#define CLIENTS 3
#define QUAL 45610

static void post(struct side *s, DAT_SRQ_HANDLE srq, int slot)
{
    DAT_LMR_TRIPLET iov[2];
    DAT_DTO_COOKIE cookie;

    iov[0] = piece(s, (unsigned)slot * 256, 16);
    iov[1] = piece(s, (unsigned)slot * 256 + 16, 112);
    cookie.as_64 = UINT64_C(0xfedcba9800000000) + (DAT_UINT64)slot;
    OK(dat_srq_post_recv(srq, 2, iov, cookie));
    memset(iov, 0xff, sizeof iov); /* the array is the program's again */
}

static void provider_says(struct side *s)
{
    CHECK(s->provider.dapl_version_major == 1 && s->provider.dapl_version_minor == 2);
    CHECK(s->provider.srq_supported == DAT_TRUE);
    CHECK(s->provider.srq_watermarks_supported != 0 && s->provider.srq_info_supported != 0);
    CHECK(s->provider.iov_ownership_on_return == DAT_IOV_CONSUMER);
    CHECK(s->provider.pz_support == DAT_PZ_UNIQUE || s->provider.pz_support == DAT_PZ_SHAREABLE);
    CHECK(s->attr.max_srqs > 0 && s->attr.max_ep_per_srq >= CLIENTS && s->attr.max_recv_per_srq >= 64);
    CHECK(s->attr.max_message_size >= MEMORY);
    CHECK(s->attr.num_vendor_attr >= 0 && s->attr.num_transport_attr >= 0);
}

static void creation(struct side *s, DAT_SRQ_HANDLE *srq)
{
    DAT_SRQ_ATTR attr = {10, 2, DAT_SRQ_LW_DEFAULT};
    DAT_SRQ_PARAM param;
    DAT_HANDLE_TYPE type;
    DAT_CONTEXT context;

    EXPECT(ARG(3), dat_srq_create(s->ia, s->pz, NULL, srq));
    EXPECT(ARG(4), dat_srq_create(s->ia, s->pz, &attr, NULL));
    attr.max_recv_dtos = 0;
    EXPECT(ARG(3), dat_srq_create(s->ia, s->pz, &attr, srq));
    attr.max_recv_dtos = s->attr.max_recv_per_srq + 1;
    EXPECT(ARG(3), dat_srq_create(s->ia, s->pz, &attr, srq));
    attr.max_recv_dtos = 10;
    EXPECT(HANDLE(PZ), dat_srq_create(s->ia, DAT_HANDLE_NULL, &attr, srq));
    EXPECT(HANDLE(IA), dat_srq_create(DAT_HANDLE_NULL, s->pz, &attr, srq));
    OK(dat_srq_create(s->ia, s->pz, &attr, srq));

    param = look(*srq);
    CHECK(param.ia_handle == s->ia && param.pz_handle == s->pz);
    CHECK(param.srq_state == DAT_SRQ_STATE_OPERATIONAL && param.srq_state == 0);
    CHECK(param.max_recv_dtos >= 10 && param.max_recv_iov >= 2 && param.low_watermark == 0);
    CHECK(param.available_dto_count == 0 && param.outstanding_dto_count == 0);
    EXPECT(ARG(2), dat_srq_query(*srq, 0x100, &param));
    EXPECT(ARG(3), dat_srq_query(*srq, DAT_SRQ_FIELD_ALL, NULL));
    EXPECT(HANDLE(SRQ), dat_srq_query(DAT_HANDLE_NULL, DAT_SRQ_FIELD_ALL, &param));
    EXPECT(STATE(DAT_INVALID_STATE_PZ_IN_USE), dat_pz_free(s->pz));

    OK(dat_get_handle_type(*srq, &type));
    CHECK(type == DAT_HANDLE_TYPE_SRQ);
    context.as_64 = UINT64_C(0x0123456789abcdef);
    OK(dat_set_consumer_context(*srq, context));
    context.as_64 = 0;
    OK(dat_get_consumer_context(*srq, &context));
    CHECK(context.as_64 == UINT64_C(0x0123456789abcdef));
}

static void refused_posts(struct side *s, DAT_SRQ_HANDLE srq)
{
    DAT_LMR_TRIPLET iov = piece(s, 0, 64);
    DAT_DTO_COOKIE cookie;

    cookie.as_64 = 0;
    EXPECT(ARG(2), dat_srq_post_recv(srq, -1, &iov, cookie));
    EXPECT(ARG(2), dat_srq_post_recv(srq, 1000, &iov, cookie));
    EXPECT(ARG(3), dat_srq_post_recv(srq, 1, NULL, cookie));
    iov.virtual_address += MEMORY;
    EXPECT(ARG(3), dat_srq_post_recv(srq, 1, &iov, cookie));
    iov = piece(s, 0, 64);
    iov.segment_length += UINT64_C(0x100000000); /* 64 in the lower half */
    EXPECT(ARG(3), dat_srq_post_recv(srq, 1, &iov, cookie));
    iov = piece(s, 0, 64);
    iov.lmr_context ^= 0x00f00000;
    EXPECT(ERROR(DAT_PRIVILEGES_VIOLATION, DAT_PRIVILEGES_WRITE), dat_srq_post_recv(srq, 1, &iov, cookie));
    EXPECT(HANDLE(SRQ), dat_srq_post_recv(DAT_HANDLE_NULL, 1, &iov, cookie));
    COUNTS(srq, 0, 0);
}

static void endpoints(struct side *s, struct side *c, DAT_SRQ_HANDLE srq, DAT_EP_HANDLE *server, DAT_EP_HANDLE *client)
{
    DAT_EP_ATTR attr = ep_attr();
    DAT_EP_PARAM param;
    DAT_EP_STATE state;
    DAT_BOOLEAN recv_idle, request_idle;
    DAT_DTO_COOKIE cookie;
    DAT_LMR_TRIPLET iov = piece(s, 0, 64);
    DAT_COUNT held, span;
    int i;

    EXPECT(ARG(7), dat_ep_create_with_srq(s->ia, s->pz, s->recv, s->req, s->conn, srq, NULL, &server[0]));
    EXPECT(ARG(8), dat_ep_create_with_srq(s->ia, s->pz, s->recv, s->req, s->conn, srq, &attr, NULL));
    attr.max_message_size = UINT64_C(0x100000000);
    EXPECT(ARG(7), dat_ep_create_with_srq(s->ia, s->pz, s->recv, s->req, s->conn, srq, &attr, &server[0]));
    attr = ep_attr();
    attr.recv_completion_flags = (DAT_COMPLETION_FLAGS)0x20;
    EXPECT(ARG(7), dat_ep_create_with_srq(s->ia, s->pz, s->recv, s->req, s->conn, srq, &attr, &server[0]));
    attr = ep_attr();
    EXPECT(HANDLE(SRQ),
           dat_ep_create_with_srq(s->ia, s->pz, s->recv, s->req, s->conn, DAT_HANDLE_NULL, &attr, &server[0]));
    for (i = 0; i < CLIENTS; i++) {
        OK(dat_ep_create_with_srq(s->ia, s->pz, s->recv, s->req, s->conn, srq, &attr, &server[i]));
        OK(dat_ep_create(c->ia, c->pz, c->recv, c->req, c->conn, &attr, &client[i]));
    }

    memset(&param, 0xA5, sizeof param);
    OK(dat_ep_query(server[0], DAT_EP_FIELD_ALL, &param));
    CHECK(param.srq_handle == srq && param.ia_handle == s->ia && param.pz_handle == s->pz);
    CHECK(param.ep_state == DAT_EP_STATE_UNCONNECTED);
    CHECK(param.recv_evd_handle == s->recv && param.request_evd_handle == s->req);
    CHECK(param.connect_evd_handle == s->conn);
    CHECK(param.ep_attr.service_type == DAT_SERVICE_TYPE_RC && param.ep_attr.max_recv_dtos == 8);
    CHECK(param.ep_attr.max_message_size >= MEMORY && param.ep_attr.max_message_size <= s->attr.max_message_size);
    CHECK(param.ep_attr.srq_soft_hw == DAT_HW_DEFAULT);
    memset(&param, 0xA5, sizeof param);
    OK(dat_ep_query(server[0], DAT_EP_FIELD_SRQ_HANDLE, &param));
    CHECK(param.srq_handle == srq);
    EXPECT(ARG(2), dat_ep_query(server[0], UINT64_C(0x800), &param));
    EXPECT(ARG(2), dat_ep_modify(server[0], DAT_EP_FIELD_SRQ_HANDLE, &param));
    EXPECT(ARG(2), dat_ep_modify(server[0], DAT_EP_FIELD_EP_ATTR_SRQ_SOFT_HW, &param));
    OK(dat_ep_get_status(server[0], &state, &recv_idle, &request_idle));
    CHECK(state == DAT_EP_STATE_UNCONNECTED && recv_idle == DAT_TRUE && request_idle == DAT_TRUE);

    cookie.as_64 = 1;
    EXPECT(STATE(DAT_INVALID_STATE_SRQ_IN_USE),
           dat_ep_post_recv(server[0], 1, &iov, cookie, DAT_COMPLETION_DEFAULT_FLAG));
    EXPECT(STATE(DAT_INVALID_STATE_SRQ_IN_USE), dat_srq_free(srq));
    CHECK(DAT_INVALID_STATE_SRQ_IN_USE == 86);
    OK(dat_ep_recv_query(server[0], &held, &span));
    CHECK(held == 0 && span == 0);
    EXPECT(HANDLE(EP), dat_ep_recv_query(DAT_HANDLE_NULL, &held, &span));

    for (i = 0; i < CLIENTS; i++)
        join(s, server[i], c, client[i], QUAL + (DAT_CONN_QUAL)i);
    OK(dat_ep_get_status(server[0], &state, NULL, NULL));
    CHECK(state == DAT_EP_STATE_CONNECTED);
    OK(dat_ep_recv_query(server[0], &held, &span));
    CHECK((held == 0 && span == 0) || (held == DAT_VALUE_UNKNOWN && span == DAT_VALUE_UNKNOWN));
}

/* Sends a message. Its receive stays on the server's EVD. */
static void send_one(struct side *c, DAT_EP_HANDLE ep, const char *text)
{
    DAT_LMR_TRIPLET iov = piece(c, 0, (unsigned)strlen(text) + 1);
    DAT_DTO_COOKIE cookie;
    DAT_EVENT event;

    strcpy(c->memory, text);
    cookie.as_ptr = &iov;
    OK(dat_ep_post_send(ep, 1, &iov, cookie, DAT_COMPLETION_DEFAULT_FLAG));
    event = NEXT(c->req, DAT_DTO_COMPLETION_EVENT);
    CHECK(event.event_data.dto_completion_event_data.ep_handle == ep);
    CHECK(event.event_data.dto_completion_event_data.user_cookie.as_ptr == &iov);
    CHECK(event.event_data.dto_completion_event_data.status == DAT_DTO_SUCCESS);
}

/* Takes a receive off the EVD, and returns its slot. */
static int receive(struct side *s, DAT_EP_HANDLE ep, const char *text)
{
    DAT_EVENT event = NEXT(s->recv, DAT_DTO_COMPLETION_EVENT);
    const DAT_DTO_COMPLETION_EVENT_DATA *dto = &event.event_data.dto_completion_event_data;
    int slot = (int)(dto->user_cookie.as_64 & 0xff);

    CHECK(dto->ep_handle == ep);
    CHECK(dto->status == DAT_DTO_SUCCESS);
    CHECK(dto->transfered_length == strlen(text) + 1);
    CHECK(dto->user_cookie.as_64 >> 8 == UINT64_C(0xfedcba98000000));
    CHECK(strcmp(s->memory + slot * 256, text) == 0);
    return slot;
}

/* The example of dat_srq_query(3DAT): 10/3/3, 10/2/3, 10/2/2. */
static void counts_of_the_manual(struct side *s, struct side *c, DAT_SRQ_HANDLE srq, DAT_EP_HANDLE *server,
                                 DAT_EP_HANDLE *client)
{
    time_t end;
    int i, slot;

    for (i = 0; i < 3; i++)
        post(s, srq, i);
    COUNTS(srq, 3, 3);
    send_one(c, client[0], "a message longer than the first of both segments");
    /* Only the count shows that the message has arrived, short of taking it. */
    for (end = time(NULL) + 20; look(srq).available_dto_count != 2 && time(NULL) < end;)
        ;
    COUNTS(srq, 2, 3);
    slot = receive(s, server[0], "a message longer than the first of both segments");
    COUNTS(srq, 2, 2);
    post(s, srq, slot);
    COUNTS(srq, 3, 3);
    for (i = 3; i < 10; i++)
        post(s, srq, i);
    COUNTS(srq, 10, 10);
    {
        DAT_LMR_TRIPLET iov = piece(s, 0, 64);
        DAT_DTO_COOKIE cookie;

        cookie.as_64 = 0;
        EXPECT(ERROR(DAT_INSUFFICIENT_RESOURCES, DAT_RESOURCE_SRQ), dat_srq_post_recv(srq, 1, &iov, cookie));
    }
}

static void every_client(struct side *s, struct side *c, DAT_SRQ_HANDLE srq, DAT_EP_HANDLE *server,
                         DAT_EP_HANDLE *client)
{
    char text[32];
    int i;

    for (i = 0; i < 4 * CLIENTS; i++) {
        sprintf(text, "%d of client %d", i, i % CLIENTS);
        send_one(c, client[i % CLIENTS], text);
        post(s, srq, receive(s, server[i % CLIENTS], text));
    }
    COUNTS(srq, 10, 10);
}

static void low_watermark(struct side *s, struct side *c, DAT_SRQ_HANDLE srq, DAT_EP_HANDLE *server,
                          DAT_EP_HANDLE *client)
{
    DAT_EVENT event;
    int slots[3], i;

    EXPECT(ARG(2), dat_srq_set_lw(srq, -1));
    EXPECT(ARG(2), dat_srq_set_lw(srq, 11));
    EXPECT(HANDLE(SRQ), dat_srq_set_lw(DAT_HANDLE_NULL, 1));
    OK(dat_srq_set_lw(srq, 9));
    CHECK(look(srq).low_watermark == 9);
    EXPECT_TYPE(DAT_QUEUE_EMPTY, dat_evd_dequeue(s->async, &event));
    for (i = 0; i < 3; i++) {
        send_one(c, client[i], "down");
        slots[i] = receive(s, server[i], "down");
    }
    /* One event when fewer than 9 are available, and no second one. */
    event = NEXT(s->async, DAT_ASYNC_ERROR_PROVIDER_INTERNAL_ERROR);
    CHECK(event.event_data.asynch_error_event_data.dat_handle == srq);
    CHECK(event.event_data.asynch_error_event_data.reason == DAT_SRQ_LOW_WATERMARK_EVENT);
    EXPECT_TYPE(DAT_QUEUE_EMPTY, dat_evd_dequeue(s->async, &event));
    for (i = 0; i < 3; i++)
        post(s, srq, slots[i]);
    COUNTS(srq, 10, 10);
}

static void resizing(struct side *s, DAT_SRQ_HANDLE srq)
{
    EXPECT(ARG(2), dat_srq_resize(srq, 0));
    EXPECT_TYPE(DAT_INVALID_STATE, dat_srq_resize(srq, 9));
    OK(dat_srq_set_lw(srq, DAT_SRQ_LW_DEFAULT));
    OK(dat_srq_resize(srq, 20));
    CHECK(look(srq).max_recv_dtos >= 20);
    COUNTS(srq, 10, 10);
    for (int i = 10; i < 20; i++)
        post(s, srq, i);
    COUNTS(srq, 20, 20);
    EXPECT(HANDLE(SRQ), dat_srq_resize(DAT_HANDLE_NULL, 20));
}

static void threshold(struct side *s, struct side *c, DAT_SRQ_HANDLE srq, DAT_EP_HANDLE *server, DAT_EP_HANDLE *client)
{
    DAT_EVENT event;
    DAT_COUNT more = -1;
    int slot;

    send_one(c, client[1], "first");
    send_one(c, client[1], "second");
    OK(dat_evd_wait(s->recv, LONG_TIME, 2, &event, &more));
    CHECK(more == 1 && event.event_number == DAT_DTO_COMPLETION_EVENT && event.evd_handle == s->recv);
    CHECK(event.event_data.dto_completion_event_data.transfered_length == 6);
    slot = (int)(event.event_data.dto_completion_event_data.user_cookie.as_64 & 0xff);
    post(s, srq, slot);
    post(s, srq, receive(s, server[1], "second"));
    EXPECT_TYPE(DAT_QUEUE_EMPTY, dat_evd_dequeue(s->recv, &event));
    EXPECT(DAT_CLASS_ERROR | DAT_TIMEOUT_EXPIRED, dat_evd_wait(s->recv, 0, 1, &event, &more));
    EXPECT(ARG(3), dat_evd_wait(s->recv, 0, 0, &event, &more));
}

static void high_watermark(struct side *s, struct side *c, DAT_SRQ_HANDLE srq, DAT_EP_HANDLE *server,
                           DAT_EP_HANDLE *client)
{
    DAT_EVENT event;

    EXPECT(ARG(2), dat_ep_set_watermark(server[2], -2, DAT_WATERMARK_INFINITE));
    EXPECT(ARG(3), dat_ep_set_watermark(server[2], DAT_WATERMARK_INFINITE, -2));
    EXPECT(HANDLE(EP), dat_ep_set_watermark(DAT_HANDLE_NULL, 1, 1));
    OK(dat_ep_set_watermark(server[2], 0, DAT_WATERMARK_INFINITE));
    send_one(c, client[2], "one too many");
    post(s, srq, receive(s, server[2], "one too many"));
    event = NEXT(s->async, DAT_ASYNC_ERROR_PROVIDER_INTERNAL_ERROR);
    CHECK(event.event_data.asynch_error_event_data.dat_handle == server[2]);
    CHECK(event.event_data.asynch_error_event_data.reason == DAT_SRQ_SOFT_HIGH_WATERMARK_EVENT);
}

/* A message that is too long for the buffer ends its connection, and nothing else. */
static void too_long(struct side *s, struct side *c, DAT_SRQ_HANDLE srq, DAT_EP_HANDLE *server, DAT_EP_HANDLE *client)
{
    DAT_LMR_TRIPLET iov = piece(c, 0, 1024);
    DAT_DTO_COOKIE cookie;
    DAT_EVENT event;
    DAT_EP_STATE state;

    cookie.as_64 = 77;
    OK(dat_ep_post_send(client[0], 1, &iov, cookie, DAT_COMPLETION_DEFAULT_FLAG));
    event = NEXT(s->recv, DAT_DTO_COMPLETION_EVENT);
    CHECK(event.event_data.dto_completion_event_data.ep_handle == server[0]);
    CHECK(event.event_data.dto_completion_event_data.status == DAT_DTO_ERR_LOCAL_LENGTH);
    post(s, srq, (int)(event.event_data.dto_completion_event_data.user_cookie.as_64 & 0xff));
    event = NEXT(c->req, DAT_DTO_COMPLETION_EVENT);
    CHECK(event.event_data.dto_completion_event_data.status != DAT_DTO_SUCCESS);
    event = NEXT(s->conn, DAT_CONNECTION_EVENT_BROKEN);
    CHECK(event.event_data.connect_event_data.ep_handle == server[0]);
    OK(dat_ep_get_status(server[0], &state, NULL, NULL));
    CHECK(state == DAT_EP_STATE_DISCONNECTED);
    send_one(c, client[1], "still here");
    post(s, srq, receive(s, server[1], "still here"));
    COUNTS(srq, 20, 20);
}

static void names(void)
{
    const char *major = NULL, *minor = NULL;

    OK(dat_strerror(STATE(DAT_INVALID_STATE_SRQ_IN_USE), &major, &minor));
    CHECK(major != NULL && strcmp(major, "DAT_INVALID_STATE") == 0);
    CHECK(minor != NULL && strcmp(minor, "DAT_INVALID_STATE_SRQ_IN_USE") == 0);
    OK(dat_strerror(DAT_CLASS_ERROR | DAT_NOT_IMPLEMENTED, &major, &minor));
    CHECK(strcmp(major, "DAT_NOT_IMPLEMENTED") == 0 && strcmp(minor, "DAT_NO_SUBTYPE") == 0);
    EXPECT(ARG(1), dat_strerror(0x8abc0000, &major, &minor));
}

int main(int argc, char **argv)
{
    struct side s, c;
    DAT_SRQ_HANDLE srq;
    DAT_EP_HANDLE server[CLIENTS], client[CLIENTS];
    int i;

    if (argc != 3)
        return 2;
    side_open(&s, argv[1]);
    side_open(&c, argv[2]);
    provider_says(&s);
    creation(&s, &srq);
    refused_posts(&s, srq);
    endpoints(&s, &c, srq, server, client);
    counts_of_the_manual(&s, &c, srq, server, client);
    every_client(&s, &c, srq, server, client);
    low_watermark(&s, &c, srq, server, client);
    resizing(&s, srq);
    threshold(&s, &c, srq, server, client);
    high_watermark(&s, &c, srq, server, client);
    too_long(&s, &c, srq, server, client);
    names();
    for (i = 1; i < CLIENTS; i++) {
        OK(dat_ep_disconnect(client[i], DAT_CLOSE_GRACEFUL_FLAG));
        NEXT(s.conn, DAT_CONNECTION_EVENT_DISCONNECTED);
    }
    for (i = 0; i < CLIENTS; i++) {
        OK(dat_ep_free(server[i]));
        OK(dat_ep_free(client[i]));
    }
    OK(dat_srq_free(srq));
    EXPECT(HANDLE(SRQ), dat_srq_free(srq));
    side_close(&s);
    side_close(&c);
    return finish();
}
