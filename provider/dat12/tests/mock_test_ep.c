/* EPs: queries, attributes, posts; SRQs. */
#include "mock_test.h"

void ep_queries(void)
{
    DAT_EP_PARAM param;
    DAT_EP_STATE state;
    DAT_BOOLEAN idle[2];
    int i = 0;

    fill_out();
    mock->out[11] = 0; /* service_type */
#define EP_PARAM(field, bit) ONE_BIT(dat_ep_query, H(3), DAT_EP_PARAM, DAT_EP_FIELD_, field, bit)
    EP_PARAM_FIELDS(EP_PARAM)
#define EP_ATTR(field, bit) ONE_BIT(dat_ep_query, H(3), DAT_EP_PARAM, DAT_EP_FIELD_, ep_attr.field, bit)
    EP_ATTR_FIELDS(EP_ATTR)
    OK(dat_ep_query(H(3), DAT_EP_FIELD_ALL, &param));
    SAID(ep_query, N(H(3)), 1);
    CHECK(mock->named == 30 && (mock->mask & 4) == 0); /* all but `comm` */
    REFUSED(ARG(2), dat_ep_query(H(3), UINT64_C(0x800), &param));
    REFUSED(ARG(2), dat_ep_query(H(3), UINT64_C(0x80000000), &param));
    OK(dat_ep_query(H(3), DAT_EP_FIELD_ALL, NULL));
    SAID(ep_query, N(H(3)), 0);

    for (DAT_UINT32 s = 0; s <= DAT_EP_STATE_COMPLETION_PENDING; s++) {
        mock->state = s;
        OK(dat_ep_get_status(H(3), &state, &idle[0], &idle[1]));
        CHECK(state == (DAT_EP_STATE)s);
    }
    SAID(ep_get_status, N(H(3)), 1, N(&idle[0]), N(&idle[1]));
    for (mock->state = 13; mock->state <= 14; mock->state++) {
        OK(dat_ep_get_status(H(3), &state, NULL, NULL));
        CHECK(state == DAT_EP_STATE_CONNECTED);
    }
    mock->state = 15;
    EXPECT(DAT_CLASS_ERROR | DAT_INTERNAL_ERROR, dat_ep_get_status(H(3), &state, NULL, NULL));
    OK(dat_ep_get_status(H(3), NULL, &idle[0], NULL));
    SAID(ep_get_status, N(H(3)), 0, N(&idle[0]), 0);
    mock->out[1] = 14;
    OK(dat_ep_query(H(3), DAT_EP_FIELD_EP_STATE, &param));
    CHECK(param.ep_state == DAT_EP_STATE_CONNECTED);
    mock->out[1] = 77;
    EXPECT(DAT_CLASS_ERROR | DAT_INTERNAL_ERROR, dat_ep_query(H(3), DAT_EP_FIELD_EP_STATE, &param));
}

static DAT_EP_ATTR numbered_attr(void)
{
    DAT_EP_ATTR attr;
    int i = 0;

#define NUMBERED(field, bit) attr.field = (__typeof__(attr.field))(uintptr_t)mock->out[i++];
    EP_ATTR_FIELDS(NUMBERED)
    return attr;
}

void ep_arguments(void)
{
    DAT_EP_ATTR attr;
    DAT_EP_PARAM param;
    DAT_EP_HANDLE ep = NULL;
    int i = 0;

    for (i = 0; i < 19; i++)
        mock->out[i] = (uint64_t)i + 1;
    mock->out[0] = DAT_SERVICE_TYPE_RC;
    mock->out[1] = UINT32_MAX;
    mock->out[12] = (uint64_t)DAT_HW_DEFAULT;
    attr = numbered_attr();
    OK(dat_ep_create(ia, H(4), H(5), H(6), H(7), &attr, &ep));
    SAID(ep_create, RAW_IA, N(H(4)), N(H(5)), N(H(6)), N(H(7)), 1);
    CHECK(ep == LAST && memcmp(mock->in, mock->out, 19 * 8) == 0);
    memset(mock->in, 0, sizeof mock->in);
    OK(dat_ep_create_with_srq(ia, H(4), H(5), H(6), H(7), H(8), &attr, &ep));
    SAID(ep_create_with_srq, RAW_IA, N(H(4)), N(H(5)), N(H(6)), N(H(7)), N(H(8)), 1);
    CHECK(memcmp(mock->in, mock->out, 19 * 8) == 0);
    OK(dat_ep_create(ia, H(4), NULL, NULL, NULL, NULL, &ep));
    SAID(ep_create, RAW_IA, N(H(4)), 0, 0, 0, 0);

#define BAD_ATTR(field, value)                                                                                         \
    attr = numbered_attr();                                                                                            \
    attr.field = value;                                                                                                \
    REFUSED(ARG(6), dat_ep_create(ia, H(4), H(5), H(6), H(7), &attr, &ep));                                            \
    REFUSED(ARG(7), dat_ep_create_with_srq(ia, H(4), H(5), H(6), H(7), H(8), &attr, &ep));
    BAD_ATTR(service_type, (DAT_SERVICE_TYPE)1)
    BAD_ATTR(max_message_size, UINT64_C(1) << 32)
    BAD_ATTR(max_rdma_size, ~UINT64_C(0))
    BAD_ATTR(recv_completion_flags, (DAT_COMPLETION_FLAGS)0x20)
    BAD_ATTR(request_completion_flags, (DAT_COMPLETION_FLAGS)-1)

    /* The call reads only the fields that the mask names; the others are not valid. */
    i = 0;
#define MODIFY(field, bit, value)                                                                                      \
    memset((void *)&param, 0xA5, sizeof param);                                                                        \
    param.field = (__typeof__(param.field))(uintptr_t)(value);                                                         \
    OK(dat_ep_modify(H(3), DAT_EP_FIELD_##bit, &param));                                                               \
    CHECK(mock->named == 1 && mock->in[i] == (value));                                                                 \
    i++;
#define MODIFY_PARAM(field, bit) MODIFY(field, bit, (uint64_t)i + 1)
#define MODIFY_ATTR(field, bit) MODIFY(ep_attr.field, bit, i == 11 ? UINT64_C(0) : (uint64_t)i)
    EP_PARAM_FIELDS(MODIFY_PARAM)
    EP_ATTR_FIELDS(MODIFY_ATTR)
    REFUSED(ARG(2), dat_ep_modify(H(3), UINT64_C(0x800), &param));
    param.ep_attr.max_rdma_size = UINT64_C(1) << 32;
    REFUSED(ARG(3), dat_ep_modify(H(3), DAT_EP_FIELD_EP_ATTR_MAX_RDMA_SIZE, &param));
    OK(dat_ep_modify(H(3), 0, NULL));
    SAID(ep_modify, N(H(3)), 0);
}

#define SEGMENTS_ARRIVED()                                                                                             \
    for (uint64_t k = 0; k < 4; k++) {                                                                                 \
        CHECK(mock->local[k].address == iov[k].virtual_address && mock->local[k].length == iov[k].segment_length);     \
        CHECK(mock->local[k].context == iov[k].lmr_context);                                                           \
    }                                                                                                                  \
    memset(mock->local, 0, sizeof mock->local)

void posts(void)
{
    DAT_LMR_TRIPLET iov[40];
    DAT_RMR_TRIPLET remote, wide;
    DAT_DTO_COOKIE cookie;

    cookie.as_64 = UINT64_C(0xfedcba9876543210);
    for (uint64_t i = 0; i < 40; i++)
        iov[i] = local(i);
    memset(&remote, 0xA5, sizeof remote);
    remote.rmr_context = 0xdeadbeef;
    remote.target_address = UINT64_C(0x8000000000000000);
    remote.segment_length = UINT32_MAX;
    wide = remote;
    wide.segment_length++;

#define POST(call, name, flags_arg, ...)                                                                               \
    {                                                                                                                  \
        const DAT_RMR_TRIPLET *r = &remote;                                                                            \
        DAT_COMPLETION_FLAGS flags = (DAT_COMPLETION_FLAGS)0x1f;                                                       \
        DAT_LMR_TRIPLET *v = iov;                                                                                      \
        DAT_COUNT n = 4;                                                                                               \
        (void)r, (void)flags;                                                                                          \
        OK(call);                                                                                                      \
        SAID(name, N(H(3)), 4, 1, cookie.as_64, ##__VA_ARGS__);                                                        \
        SEGMENTS_ARRIVED();                                                                                            \
        n = 0, v = NULL;                                                                                               \
        OK(call);                                                                                                      \
        CHECK(mock->arguments[1] == 0 && mock->arguments[2] == 0);                                                     \
        n = 2;                                                                                                         \
        OK(call); /* NULL is the provider's to refuse */                                                               \
        CHECK(mock->arguments[1] == 2 && mock->arguments[2] == 0);                                                     \
        v = iov;                                                                                                       \
        n = -1;                                                                                                        \
        REFUSED(ARG(2), call);                                                                                         \
        n = 33; /* the IA takes 32 */                                                                                  \
        v = (DAT_LMR_TRIPLET *)8; /* not read */                                                                       \
        REFUSED(ARG(2), call);                                                                                         \
        n = 0x7fffffff;                                                                                                \
        REFUSED(ARG(2), call);                                                                                         \
        n = 32, v = iov;                                                                                               \
        OK(call);                                                                                                      \
        iov[31].segment_length = UINT64_C(1) << 32;                                                                    \
        REFUSED(ARG(3), call);                                                                                         \
        iov[31] = local(31);                                                                                           \
        if (flags_arg != 0) {                                                                                          \
            flags = (DAT_COMPLETION_FLAGS)0x20;                                                                        \
            REFUSED(ARG(flags_arg), call);                                                                             \
        }                                                                                                              \
    }
    POST(dat_ep_post_send(H(3), n, v, cookie, flags), ep_post_send, 5, 0x1f)
    POST(dat_ep_post_recv(H(3), n, v, cookie, flags), ep_post_recv, 5, 0x1f)
    POST(dat_srq_post_recv(H(3), n, v, cookie), srq_post_recv, 0)
    POST(dat_ep_post_rdma_read(H(3), n, v, cookie, r, flags), ep_post_rdma_read, 6, 1, 0x1f)
    POST(dat_ep_post_rdma_write(H(3), n, v, cookie, r, flags), ep_post_rdma_write, 6, 1, 0x1f)
    CHECK(mock->remote.context == 0xdeadbeef && mock->remote.length == UINT32_MAX);
    CHECK(mock->remote.address == UINT64_C(0x8000000000000000));
    REFUSED(ARG(5), dat_ep_post_rdma_read(H(3), 1, iov, cookie, &wide, DAT_COMPLETION_DEFAULT_FLAG));
    REFUSED(ARG(5), dat_ep_post_rdma_write(H(3), 1, iov, cookie, &wide, DAT_COMPLETION_DEFAULT_FLAG));
    OK(dat_ep_post_rdma_read(H(3), 1, iov, cookie, NULL, DAT_COMPLETION_DEFAULT_FLAG));
    SAID(ep_post_rdma_read, N(H(3)), 1, 1, cookie.as_64, 0, 0);
}

void srqs(void)
{
    DAT_SRQ_PARAM param;
    DAT_SRQ_ATTR attr;
    DAT_SRQ_HANDLE srq;
    int i = 0;

    fill_out();
#define SRQ(field, bit) ONE_BIT(dat_srq_query, H(3), DAT_SRQ_PARAM, DAT_SRQ_FIELD_, field, bit)
    SRQ_FIELDS(SRQ)
    for (DAT_UINT32 state = 0; state < 4; state++) {
        mock->state = state;
        OK(dat_srq_query(H(3), DAT_SRQ_FIELD_ALL, &param));
        CHECK(param.srq_state == (state == 1 ? DAT_SRQ_STATE_OPERATIONAL : DAT_SRQ_STATE_ERROR));
    }
    SAID(srq_query, N(H(3)), 0xff, 1);
    REFUSED(ARG(2), dat_srq_query(H(3), (DAT_SRQ_PARAM_MASK)0x100, &param));
    OK(dat_srq_query(H(3), DAT_SRQ_FIELD_ALL, NULL));
    SAID(srq_query, N(H(3)), 0xff, 0);
    OK(dat_srq_create(ia, H(4), &attr, &srq));
    SAID(srq_create, RAW_IA, N(H(4)), N(&attr), N(&srq));
    OK(dat_srq_free(H(3)));
    SAID(srq_free, N(H(3)));
    OK(dat_srq_resize(H(3), -7));
    SAID(srq_resize, N(H(3)), N(-7));
    OK(dat_srq_set_lw(H(3), 7));
    SAID(srq_set_lw, N(H(3)), 7);
}
