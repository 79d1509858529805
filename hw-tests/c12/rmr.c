/* RMRs of DAT 1.2: bound by the context of an LMR, and used by the other side. */
#include "check.h"

#define QUAL 45630

static DAT_RMR_CONTEXT bound(struct side *s, DAT_EP_HANDLE ep, DAT_RMR_HANDLE rmr, DAT_LMR_TRIPLET part)
{
    DAT_RMR_COOKIE cookie;
    DAT_RMR_CONTEXT context = 0;
    DAT_RMR_PARAM param;
    DAT_EVENT event;

    cookie.as_64 = UINT64_C(0x1122334455667788);
    OK(dat_rmr_bind(rmr, &part, DAT_MEM_PRIV_REMOTE_WRITE_FLAG, ep, cookie, DAT_COMPLETION_DEFAULT_FLAG, &context));
    event = NEXT(s->req, DAT_RMR_BIND_COMPLETION_EVENT);
    CHECK(event.event_data.rmr_completion_event_data.rmr_handle == rmr);
    CHECK(event.event_data.rmr_completion_event_data.user_cookie.as_64 == cookie.as_64);
    CHECK(event.event_data.rmr_completion_event_data.status == DAT_RMR_BIND_SUCCESS);
    memset(&param, 0xA5, sizeof param);
    OK(dat_rmr_query(rmr, DAT_RMR_FIELD_ALL, &param));
    CHECK(param.ia_handle == s->ia && param.pz_handle == s->pz);
    if (part.segment_length != 0) {
        CHECK(param.lmr_triplet.virtual_address == part.virtual_address);
        CHECK(param.lmr_triplet.segment_length == part.segment_length);
        CHECK(param.lmr_triplet.lmr_context == part.lmr_context);
        CHECK(param.mem_priv == DAT_MEM_PRIV_REMOTE_WRITE_FLAG && param.rmr_context == context);
    }
    return context;
}

static void write_there(struct side *c, DAT_EP_HANDLE ep, struct side *s, unsigned offset, DAT_RMR_CONTEXT context)
{
    DAT_LMR_TRIPLET iov = piece(c, 0, 16);
    DAT_RMR_TRIPLET remote;
    DAT_DTO_COOKIE cookie;
    DAT_EVENT event;

    memset(&remote, 0xA5, sizeof remote);
    remote.rmr_context = context;
    remote.target_address = (DAT_VADDR)(uintptr_t)(s->memory + offset);
    remote.segment_length = 16;
    cookie.as_64 = 5;
    OK(dat_ep_post_rdma_write(ep, 1, &iov, cookie, &remote, DAT_COMPLETION_DEFAULT_FLAG));
    event = NEXT(c->req, DAT_DTO_COMPLETION_EVENT);
    CHECK(event.event_data.dto_completion_event_data.status == DAT_DTO_SUCCESS);
    CHECK(memcmp(s->memory + offset, c->memory, 16) == 0);
}

static void refusals(struct side *s, DAT_EP_HANDLE ep, DAT_RMR_HANDLE rmr)
{
    DAT_LMR_TRIPLET part = piece(s, 0, 64), strange = part, outside = piece(s, MEMORY - 8, 9), wide = part;
    DAT_RMR_COOKIE cookie;
    DAT_RMR_CONTEXT context;
    DAT_RMR_PARAM param;

    cookie.as_64 = 0;
    strange.lmr_context ^= 0x00f00000;
    wide.segment_length += UINT64_C(1) << 32;
#define BIND(part, priv, ep, flags)                                                                                    \
    dat_rmr_bind(rmr, part, (DAT_MEM_PRIV_FLAGS)(priv), ep, cookie, (DAT_COMPLETION_FLAGS)(flags), &context)
    EXPECT(ARG(2), BIND(NULL, 2, ep, 0));
    EXPECT(ARG(2), BIND(&strange, 2, ep, 0));
    EXPECT(ARG(2), BIND(&outside, 2, ep, 0));
    EXPECT(ARG(2), BIND(&wide, 2, ep, 0));
    EXPECT(ARG(3), BIND(&part, 0x40, ep, 0));
    EXPECT(HANDLE(EP), BIND(&part, 2, s->pz, 0));
    EXPECT(ARG(6), BIND(&part, 2, ep, 0x20));
    EXPECT(ARG(6), BIND(&part, 2, ep, DAT_COMPLETION_UNSIGNALLED_FLAG));
#undef BIND
    EXPECT(ARG(2), dat_rmr_create(s->pz, NULL));
    EXPECT(ARG(2), dat_rmr_query(rmr, (DAT_RMR_PARAM_MASK)0x20, &param));
    EXPECT(ARG(3), dat_rmr_query(rmr, DAT_RMR_FIELD_ALL, NULL));
}

int main(int argc, char **argv)
{
    struct side s, c;
    DAT_EP_ATTR attr = ep_attr();
    DAT_EP_HANDLE es, ec;
    DAT_RMR_HANDLE rmr;
    DAT_RMR_CONTEXT first, second;

    if (argc != 3)
        return 2;
    side_open(&s, argv[1]);
    side_open(&c, argv[2]);
    OK(dat_ep_create(s.ia, s.pz, s.recv, s.req, s.conn, &attr, &es));
    OK(dat_ep_create(c.ia, c.pz, c.recv, c.req, c.conn, &attr, &ec));
    join(&s, es, &c, ec, QUAL);
    OK(dat_rmr_create(s.pz, &rmr));
    refusals(&s, es, rmr);
    first = bound(&s, es, rmr, piece(&s, 1024, 64));
    strcpy(c.memory, "by way of an RMR");
    write_there(&c, ec, &s, 1024, first);
    EXPECT(STATE(DAT_INVALID_STATE_LMR_IN_USE), dat_lmr_free(s.lmr));
    second = bound(&s, es, rmr, piece(&s, 2048, 64));
    CHECK(first != second);
    write_there(&c, ec, &s, 2048, second);
    /* Unbinds: the rest of the triplet has no effect. */
    {
        DAT_LMR_TRIPLET nothing = piece(&s, 0, 0);

        nothing.lmr_context = ~nothing.lmr_context;
        bound(&s, es, rmr, nothing);
    }
    OK(dat_rmr_free(rmr));
    OK(dat_ep_disconnect(ec, DAT_CLOSE_ABRUPT_FLAG));
    NEXT(s.conn, DAT_CONNECTION_EVENT_DISCONNECTED);
    OK(dat_ep_free(es));
    OK(dat_ep_free(ec));
    side_close(&s);
    side_close(&c);
    return finish();
}
