/* NULL, wrong, stale and foreign handles: each call answers INVALID_HANDLE with the subtype of the
 * argument, and none crashes. */
#include "check.h"

int main(int argc, char **argv)
{
    struct side a;
    DAT_EP_HANDLE ep, ep2;
    DAT_SRQ_HANDLE srq;
    DAT_SRQ_ATTR srq_attr = {4, 1, 0};
    DAT_EP_ATTR attr = ep_attr();
    DAT_HANDLE_TYPE type;
    DAT_CONTEXT context;
    DAT_EVENT event;
    DAT_COUNT n;
    DAT_LMR_TRIPLET iov;
    DAT_DTO_COOKIE cookie = {.as_64 = 1};
    struct {
        void *table;
        char body[256];
    } foreign;
    int i;

    (void)argc;
    side_open(&a, argv[1]);
    iov = piece(&a, 0, 16);
    OK(dat_srq_create(a.ia, a.pz, &srq_attr, &srq));
    OK(dat_ep_create(a.ia, a.pz, a.recv, a.req, a.conn, &attr, &ep));

    /* The kinds and the contexts of handles. */
    OK(dat_get_handle_type(srq, &type));
    CHECK(type == DAT_HANDLE_TYPE_SRQ);
    OK(dat_get_handle_type(ep, &type));
    CHECK(type == DAT_HANDLE_TYPE_EP);
    OK(dat_get_handle_type((DAT_HANDLE)a.ia, &type));
    CHECK(type == DAT_HANDLE_TYPE_IA);
    OK(dat_get_handle_type(a.async, &type));
    CHECK(type == DAT_HANDLE_TYPE_EVD);
    OK(dat_get_consumer_context(srq, &context));
    CHECK(context.as_64 == 0);
    context.as_64 = 0x1122334455667788;
    OK(dat_set_consumer_context(srq, context));
    context.as_64 = 0;
    OK(dat_get_consumer_context(srq, &context));
    CHECK(context.as_64 == 0x1122334455667788);

    /* Handles of the wrong kind. */
    EXPECT(HANDLE(SRQ), dat_srq_free(ep));
    EXPECT(HANDLE(SRQ), dat_srq_post_recv(a.pz, 1, &iov, cookie));
    EXPECT(HANDLE(SRQ), dat_srq_resize(a.recv, 8));
    EXPECT(HANDLE(SRQ), dat_srq_set_lw(a.lmr, 1));
    EXPECT(HANDLE(EP), dat_ep_free(srq));
    EXPECT(HANDLE(EP), dat_ep_post_recv(srq, 1, &iov, cookie, 0));
    EXPECT(HANDLE(EP), dat_ep_recv_query(srq, &n, &n));
    EXPECT(HANDLE(EP), dat_ep_set_watermark(srq, 1, 1));
    EXPECT(HANDLE(PZ), dat_pz_free(ep));
    EXPECT(HANDLE(PZ), dat_srq_create(a.ia, ep, &srq_attr, &srq));
    EXPECT(HANDLE(LMR), dat_lmr_free(ep));
    EXPECT(HANDLE(PSP), dat_psp_free(ep));
    EXPECT(HANDLE(RSP), dat_rsp_free(ep));
    EXPECT(HANDLE(CR), dat_cr_reject(ep, 0, NULL));
    EXPECT(HANDLE(CNO), dat_cno_free(ep));
    EXPECT(HANDLE(EVD_RECV), dat_ep_create(a.ia, a.pz, a.pz, a.req, a.conn, &attr, &ep2));
    EXPECT(HANDLE(EVD_REQUEST), dat_ep_create(a.ia, a.pz, a.recv, a.pz, a.conn, &attr, &ep2));
    EXPECT(HANDLE(EVD_CONN), dat_ep_create(a.ia, a.pz, a.recv, a.req, a.recv, &attr, &ep2));
    EXPECT(HANDLE(SRQ),
           dat_ep_create_with_srq(a.ia, a.pz, a.recv, a.req, a.conn, ep, &attr, &ep2));
    EXPECT(HANDLE(EVD_CR), dat_psp_create(a.ia, 45300, a.recv, 0, &ep2));

    /* Memory that was never a handle, in arguments that libdat2 does not check, and memory that
     * begins with a provider's table. */
    memset(&foreign, 0x5A, sizeof foreign);
    EXPECT(HANDLE(PZ), dat_srq_create(a.ia, (DAT_PZ_HANDLE)&foreign, &srq_attr, &srq));
    EXPECT(HANDLE(PZ), dat_srq_create(a.ia, (DAT_PZ_HANDLE)((char *)ep + 8), &srq_attr, &srq));
    EXPECT(HANDLE(PZ), dat_srq_create(a.ia, (DAT_PZ_HANDLE)(uintptr_t)3, &srq_attr, &srq));
    foreign.table = *(void **)ep;
    EXPECT(HANDLE(EP), dat_ep_free((DAT_EP_HANDLE)&foreign));

    /* A stale handle stays stale, however many handles are made later. */
    OK(dat_ep_free(ep));
    EXPECT(HANDLE(EP), dat_ep_free(ep));
    for (i = 0; i < 1000; i++) {
        DAT_PZ_HANDLE pz;
        if (dat_pz_create(a.ia, &pz) != DAT_SUCCESS || pz == (DAT_PZ_HANDLE)ep || dat_pz_free(pz) != DAT_SUCCESS)
            break;
    }
    CHECK(i == 1000);
    EXPECT(HANDLE(EP), dat_ep_get_status(ep, NULL, NULL, NULL));
    OK(dat_srq_free(srq));
    EXPECT(HANDLE(SRQ), dat_srq_free(srq));

    /* A graceful close is refused while there are objects, and everything keeps working. An abrupt
     * close ends everything. */
    EXPECT(DAT_CLASS_ERROR | DAT_INVALID_STATE | DAT_INVALID_STATE_IA_IN_USE, dat_ia_close(a.ia, DAT_CLOSE_GRACEFUL_FLAG));
    EXPECT(DAT_CLASS_ERROR | DAT_QUEUE_EMPTY, dat_evd_dequeue(a.conn, &event));
    OK(dat_ia_close(a.ia, DAT_CLOSE_ABRUPT_FLAG));
    EXPECT(HANDLE(EVD_REQUEST), dat_evd_dequeue(a.recv, &event));
    EXPECT(HANDLE(PZ), dat_pz_free(a.pz));
    EXPECT(HANDLE(LMR), dat_lmr_free(a.lmr));
    EXPECT(HANDLE(IA), dat_ia_close(a.ia, DAT_CLOSE_ABRUPT_FLAG));

    /* After a second open, without objects, a graceful close succeeds. */
    side_open(&a, argv[1]);
    OK(dat_lmr_free(a.lmr));
    OK(dat_evd_free(a.recv));
    OK(dat_evd_free(a.req));
    OK(dat_evd_free(a.conn));
    OK(dat_evd_free(a.cr));
    OK(dat_pz_free(a.pz));
    OK(dat_ia_close(a.ia, DAT_CLOSE_GRACEFUL_FLAG));
    return finish();
}
