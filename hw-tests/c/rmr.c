/* RMRs, Sends that invalidate, and RDMA Reads into RMRs, through C. */
#include "check.h"

static DAT_RMR_TRIPLET there(struct side *s, unsigned offset, unsigned length, DAT_RMR_CONTEXT context)
{
    DAT_RMR_TRIPLET t = {(DAT_VADDR)(uintptr_t)(s->memory + offset), length, context};
    return t;
}

/* Binds through an EP, and checks the completion and the query. */
static DAT_RMR_CONTEXT bind_to(struct side *a, DAT_EP_HANDLE ep, DAT_RMR_HANDLE rmr, DAT_LMR_TRIPLET part)
{
    DAT_RMR_COOKIE cookie = {.as_64 = 0x1122334455667788};
    DAT_RMR_CONTEXT context = 0;
    DAT_RMR_PARAM param;
    DAT_EVENT event;

    OK(dat_rmr_bind(rmr, a->lmr, &part, DAT_MEM_PRIV_REMOTE_READ_FLAG | DAT_MEM_PRIV_REMOTE_WRITE_FLAG, DAT_VA_TYPE_VA,
                    ep, cookie, DAT_COMPLETION_DEFAULT_FLAG, &context));
    event = NEXT(a->req, DAT_RMR_BIND_COMPLETION_EVENT);
    CHECK(event.event_data.rmr_completion_event_data.rmr_handle == rmr);
    CHECK(event.event_data.rmr_completion_event_data.user_cookie.as_64 == cookie.as_64);
    CHECK(event.event_data.rmr_completion_event_data.status == DAT_RMR_BIND_SUCCESS);
    memset(&param, 0xA5, sizeof param);
    OK(dat_rmr_query(rmr, DAT_RMR_FIELD_ALL, &param));
    CHECK(param.ia_handle == a->ia && param.pz_handle == a->pz && param.va_type == DAT_VA_TYPE_VA);
    if (part.segment_length) {
        CHECK(memcmp(&param.lmr_triplet, &part, sizeof part) == 0 && param.rmr_context == context);
        CHECK(param.mem_priv == (DAT_MEM_PRIV_REMOTE_READ_FLAG | DAT_MEM_PRIV_REMOTE_WRITE_FLAG));
    }
    return context;
}

/* The other side writes, and its request has to end with this status. */
static void write_there(struct side *b, DAT_EP_HANDLE ep, DAT_RMR_TRIPLET to, DAT_DTO_COMPLETION_STATUS status)
{
    DAT_LMR_TRIPLET iov = piece(b, 0, to.segment_length);
    DAT_DTO_COOKIE cookie = {.as_64 = 1};
    DAT_EVENT event;

    OK(dat_ep_post_rdma_write(ep, 1, &iov, cookie, &to, DAT_COMPLETION_DEFAULT_FLAG));
    event = NEXT(b->req, DAT_DTO_COMPLETION_EVENT);
    CHECK(event.event_data.dto_completion_event_data.status == status);
}

static void refusals(struct side *a, DAT_EP_HANDLE ep, DAT_RMR_HANDLE rmr)
{
    DAT_LMR_TRIPLET part = piece(a, 0, 64), outside = piece(a, MEMORY - 8, 9);
    DAT_RMR_COOKIE cookie = {.as_64 = 0};
    DAT_RMR_CONTEXT context;
    DAT_HANDLE_TYPE type;
    DAT_RMR_PARAM param;
    DAT_CONTEXT mine = {.as_64 = 77}, back = {.as_64 = 0};
    DAT_RMR_HANDLE other;

    EXPECT(ARG(2), dat_rmr_create(a->pz, NULL));
    EXPECT(HANDLE(PZ), dat_rmr_create(a->cr, &other));
    EXPECT(ARG(2), dat_rmr_query(rmr, 0x80, &param));
    EXPECT(ARG(3), dat_rmr_query(rmr, DAT_RMR_FIELD_ALL, NULL));
    EXPECT(HANDLE(RMR), dat_rmr_query(a->pz, DAT_RMR_FIELD_ALL, &param));
    EXPECT(HANDLE(RMR), dat_rmr_free(a->pz));
    OK(dat_get_handle_type(rmr, &type));
    CHECK(type == DAT_HANDLE_TYPE_RMR);
    OK(dat_set_consumer_context(rmr, mine));
    OK(dat_get_consumer_context(rmr, &back));
    CHECK(back.as_64 == 77);
#define BIND(lmr, part, priv, va, ep, flags) dat_rmr_bind(rmr, lmr, part, priv, va, ep, cookie, flags, &context)
    EXPECT(HANDLE(LMR), BIND(a->pz, &part, 2, DAT_VA_TYPE_VA, ep, 0));
    EXPECT(HANDLE(LMR), BIND(DAT_HANDLE_NULL, &part, 2, DAT_VA_TYPE_VA, ep, 0));
    EXPECT(HANDLE(EP), BIND(a->lmr, &part, 2, DAT_VA_TYPE_VA, a->pz, 0));
    EXPECT(ARG(3), BIND(a->lmr, NULL, 2, DAT_VA_TYPE_VA, ep, 0));
    EXPECT(ARG(3), BIND(a->lmr, &outside, 2, DAT_VA_TYPE_VA, ep, 0));
    EXPECT(ARG(4), BIND(a->lmr, &part, 0x1000, DAT_VA_TYPE_VA, ep, 0));
    EXPECT(ARG(5), BIND(a->lmr, &part, 2, 9, ep, 0));
    EXPECT(ARG(8), BIND(a->lmr, &part, 2, DAT_VA_TYPE_VA, ep, 0x100));
    EXPECT(ARG(8), BIND(a->lmr, &part, 2, DAT_VA_TYPE_VA, ep, DAT_COMPLETION_UNSIGNALLED_FLAG));
}

static void windows(struct side *a, DAT_EP_HANDLE ea, struct side *b, DAT_EP_HANDLE eb)
{
    DAT_RMR_HANDLE rmr, for_ep;
    DAT_RMR_CONTEXT context, again;
    DAT_RMR_PARAM param;
    DAT_LMR_TRIPLET iov;
    DAT_RMR_TRIPLET local, remote;
    DAT_RMR_COOKIE rmr_cookie = {.as_64 = 0};
    DAT_DTO_COOKIE cookie = {.as_64 = 9};
    DAT_EVENT event;

    OK(dat_rmr_create(a->pz, &rmr));
    refusals(a, ea, rmr);
    context = bind_to(a, ea, rmr, piece(a, 1024, 64));
    strcpy(b->memory, "by way of a window");
    write_there(b, eb, there(a, 1024, 19, context), DAT_DTO_SUCCESS);
    CHECK(strcmp(a->memory + 1024, b->memory) == 0);
    EXPECT(DAT_CLASS_ERROR | DAT_INVALID_STATE | DAT_INVALID_STATE_LMR_IN_USE, dat_lmr_free(a->lmr));
    EXPECT(DAT_CLASS_ERROR | DAT_INVALID_STATE | DAT_INVALID_STATE_PZ_IN_USE, dat_pz_free(a->pz));
    again = bind_to(a, ea, rmr, piece(a, 2048, 64));
    CHECK(again != context);
    write_there(b, eb, there(a, 2048, 19, again), DAT_DTO_SUCCESS);
    /* Unbinds: the call needs no LMR and no place for the context. */
    iov = piece(a, 0, 0);
    OK(dat_rmr_bind(rmr, DAT_HANDLE_NULL, &iov, 0, DAT_VA_TYPE_VA, ea, rmr_cookie, 0, NULL));
    NEXT(a->req, DAT_RMR_BIND_COMPLETION_EVENT);
    OK(dat_rmr_query(rmr, DAT_RMR_FIELD_ALL, &param));
    CHECK(param.lmr_triplet.segment_length == 0 && param.mem_priv == 0);

    /* The peer invalidates the context. */
    OK(TABLE(a->pz)->rmr_create_for_ep_func(a->pz, &for_ep));
    context = bind_to(a, ea, for_ep, piece(a, 3072, 64));
    OK(dat_rmr_query(for_ep, DAT_RMR_FIELD_ALL, &param));
    CHECK(param.rmr_scope == DAT_RMR_SCOPE_EP);
    write_there(b, eb, there(a, 3072, 19, context), DAT_DTO_SUCCESS);
    iov = piece(a, 4096, 64);
    OK(dat_ep_post_recv(ea, 1, &iov, cookie, DAT_COMPLETION_DEFAULT_FLAG));
    iov = piece(b, 0, 19);
    OK(TABLE(eb)->ep_post_send_with_invalidate_func(eb, 1, &iov, cookie, DAT_COMPLETION_DEFAULT_FLAG, DAT_TRUE, context));
    event = NEXT(b->req, DAT_DTO_COMPLETION_EVENT);
    CHECK(event.event_data.dto_completion_event_data.operation == DAT_DTO_SEND);
    event = NEXT(a->recv, DAT_DTO_COMPLETION_EVENT);
    CHECK(event.event_data.dto_completion_event_data.operation == DAT_DTO_RECEIVE_WITH_INVALIDATE);
    CHECK(event.event_data.dto_completion_event_data.rmr_context == context);
    CHECK(event.event_data.dto_completion_event_data.transfered_length == 19);
    CHECK(strcmp(a->memory + 4096, b->memory) == 0);
    OK(dat_rmr_query(for_ep, DAT_RMR_FIELD_ALL, &param));
    CHECK(param.lmr_triplet.segment_length == 0);
    /* Without the flag, the call is an ordinary Send, whatever the context. */
    iov = piece(a, 4096, 64);
    OK(dat_ep_post_recv(ea, 1, &iov, cookie, DAT_COMPLETION_DEFAULT_FLAG));
    iov = piece(b, 0, 19);
    OK(TABLE(eb)->ep_post_send_with_invalidate_func(eb, 1, &iov, cookie, DAT_COMPLETION_DEFAULT_FLAG, DAT_FALSE, 0xdead));
    NEXT(b->req, DAT_DTO_COMPLETION_EVENT);
    event = NEXT(a->recv, DAT_DTO_COMPLETION_EVENT);
    CHECK(event.event_data.dto_completion_event_data.operation == DAT_DTO_RECEIVE);
    CHECK(event.event_data.dto_completion_event_data.rmr_context == 0);

    /* An RDMA Read into the memory that an RMR names. */
    context = bind_to(a, ea, for_ep, piece(a, 5120, 64));
    local = there(a, 5130, 19, context);
    remote = there(b, 0, 19, b->rmr_context);
    OK(TABLE(ea)->ep_post_rdma_read_to_rmr_func(ea, &local, cookie, &remote, DAT_COMPLETION_DEFAULT_FLAG));
    event = NEXT(a->req, DAT_DTO_COMPLETION_EVENT);
    CHECK(event.event_data.dto_completion_event_data.operation == DAT_DTO_RDMA_READ);
    CHECK(event.event_data.dto_completion_event_data.user_cookie.as_64 == 9);
    CHECK(strcmp(a->memory + 5130, b->memory) == 0);
    local.virtual_address += 100;
    EXPECT(ARG(2), TABLE(ea)->ep_post_rdma_read_to_rmr_func(ea, &local, cookie, &remote, 0));
    EXPECT(ARG(2), TABLE(ea)->ep_post_rdma_read_to_rmr_func(ea, NULL, cookie, &remote, 0));
    EXPECT(ARG(4), TABLE(ea)->ep_post_rdma_read_to_rmr_func(ea, &local, cookie, NULL, 0));
    EXPECT(ARG(5), TABLE(ea)->ep_post_rdma_read_to_rmr_func(ea, &local, cookie, &remote, 0x100));

    /* The context of a freed RMR is dead. */
    again = bind_to(a, ea, rmr, piece(a, 0, 64));
    OK(dat_rmr_free(rmr));
    EXPECT(HANDLE(RMR), dat_rmr_free(rmr));
    write_there(b, eb, there(a, 0, 19, again), DAT_DTO_ERR_REMOTE_ACCESS);
    NEXT(b->conn, DAT_CONNECTION_EVENT_BROKEN);
    NEXT(a->conn, DAT_CONNECTION_EVENT_BROKEN);
    OK(dat_rmr_free(for_ep));
}

int main(int argc, char **argv)
{
    struct side a, b;
    DAT_EP_ATTR attr = ep_attr();
    DAT_EP_HANDLE ea, eb;
    DAT_RMR_HANDLE rmr;
    DAT_PROVIDER_ATTR provider;

    (void)argc;
    side_open(&a, argv[1]);
    side_open(&b, argv[2]);
    OK(dat_ia_query(a.ia, NULL, 0, NULL, DAT_PROVIDER_FIELD_ALL, &provider));
    if (a.attr.max_rmrs == 0) {
        EXPECT(DAT_CLASS_ERROR | DAT_MODEL_NOT_SUPPORTED, dat_rmr_create(a.pz, &rmr));
    } else {
        attr.max_rdma_read_in = attr.max_rdma_read_out = 4;
        CHECK(provider.rmr_scope_supported <= DAT_RMR_SCOPE_ANY);
        CHECK(a.attr.max_rmr_target_address > 0);
        OK(dat_ep_create(a.ia, a.pz, a.recv, a.req, a.conn, &attr, &ea));
        OK(dat_ep_create(b.ia, b.pz, b.recv, b.req, b.conn, &attr, &eb));
        join(&a, ea, &b, eb, 45331);
        windows(&a, ea, &b, eb);
        OK(dat_ep_free(ea));
        OK(dat_ep_free(eb));
        OK(dat_lmr_free(a.lmr));
    }
    OK(dat_ia_close(a.ia, DAT_CLOSE_ABRUPT_FLAG));
    OK(dat_ia_close(b.ia, DAT_CLOSE_ABRUPT_FLAG));
    return finish();
}
