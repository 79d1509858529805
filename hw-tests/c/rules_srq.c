/* SRQs through libdat2: life and creation (sections A and B). */
#include "rig.h"

/* Queries of the SRQ, of an EP and of an LMR name the IA to which they belong. */
TEST(r1_srq_belongs_to_open_ia)
{
    DAT_SRQ_HANDLE srq = srq_of(&a, 4);
    DAT_EP_HANDLE ep = ep_on(&a, srq, a.recv, NULL);
    DAT_EP_PARAM param;
    DAT_LMR_PARAM lmr;

    CHECK(look(srq).ia_handle == a.ia);
    OK(dat_ep_query(ep, DAT_EP_FIELD_ALL, &param));
    CHECK(param.ia_handle == a.ia);
    OK(dat_lmr_query(a.lmr, DAT_LMR_FIELD_ALL, &lmr));
    CHECK(lmr.ia_handle == a.ia);
    /* The IA handle of a query can be used in other calls. */
    OK(dat_ia_query(look(srq).ia_handle, NULL, 0, NULL, 0, NULL));
}

TEST(r2_srq_born_unattached)
{
    OK(dat_srq_free(srq_of(&a, 4)));
}

TEST(r3_srq_born_operational_and_empty)
{
    DAT_SRQ_HANDLE srq = srq_of(&a, 4);

    CHECK(look(srq).srq_state == DAT_SRQ_STATE_OPERATIONAL && DAT_SRQ_STATE_OPERATIONAL == 1);
    COUNTS(srq, 0, 0);
    CHECK(look(srq).low_watermark == 0);
}

/* Only the creation of an EP names its SRQ (R153, R159, R162). */
TEST(r4_srq_attach_only_at_ep_create)
{
    DAT_SRQ_HANDLE srq = srq_of(&a, 4);
    DAT_EP_HANDLE plain = plain_ep(&a), tied = ep_on(&a, srq, a.recv, NULL);
    DAT_EP_PARAM param;

    memset(&param, 0xA5, sizeof param);
    OK(dat_ep_query(plain, DAT_EP_FIELD_SRQ_HANDLE, &param));
    CHECK(param.srq_handle == DAT_HANDLE_NULL);
    param.srq_handle = srq;
    EXPECT(ARG(2), dat_ep_modify(plain, DAT_EP_FIELD_SRQ_HANDLE, &param));
    param.srq_handle = DAT_HANDLE_NULL;
    EXPECT(ARG(2), dat_ep_modify(tied, DAT_EP_FIELD_SRQ_HANDLE, &param));
    OK(dat_ep_query(tied, DAT_EP_FIELD_ALL, &param));
    CHECK(param.srq_handle == srq);
}

/* Three connections use one SRQ, two of them with one EVD (R6, R49). */
TEST(r5_srq_shared_by_many_eps)
{
    DAT_SRQ_HANDLE srq = srq_of(&a, 6);
    DAT_EVD_HANDLE other;
    struct pair pairs[3];

    OK(dat_evd_create(a.ia, 16, DAT_HANDLE_NULL, DAT_EVD_DTO_FLAG, &other));
    fill(srq, 0, 3);
    for (int i = 0; i < 3; i++)
        pairs[i] = joined(ep_on(&a, srq, i < 2 ? a.recv : other, NULL), plain_ep(&b));
    fill(srq, 3, 3);
    for (int i = 0; i < 6; i++) {
        SEND(pairs[i % 3], 10 + i);
        TAKEN(i % 3 < 2 ? a.recv : other, pairs[i % 3].server, 10 + i);
    }
    COUNTS(srq, 0, 0);
}

TEST(r7_srq_handle_type_is_srq)
{
    DAT_SRQ_HANDLE srq = srq_of(&a, 4);
    DAT_HANDLE_TYPE type = 99;
    DAT_CONTEXT context = {.as_64 = 1};

    OK(dat_get_handle_type(srq, &type));
    CHECK(type == DAT_HANDLE_TYPE_SRQ && type == 10);
    OK(dat_get_consumer_context(srq, &context));
    CHECK(context.as_64 == 0);
    context.as_64 = UINT64_C(0xfedcba9876543210);
    OK(dat_set_consumer_context(srq, context));
    context.as_64 = 0;
    OK(dat_get_consumer_context(srq, &context));
    CHECK(context.as_64 == UINT64_C(0xfedcba9876543210));
    EXPECT(ARG(2), dat_get_handle_type(srq, NULL));
    EXPECT(ARG(2), dat_get_consumer_context(srq, NULL));
    OK(dat_srq_free(srq));
    EXPECT(ERROR(DAT_INVALID_HANDLE, DAT_INVALID_HANDLE1), dat_get_handle_type(srq, &type));
    EXPECT(ERROR(DAT_INVALID_HANDLE, DAT_INVALID_HANDLE1), dat_set_consumer_context(srq, context));
}

/* Every call refuses an SRQ that is freed, and the null handle (R28, R47, R70, R106, R126). */
TEST(r8_srq_stale_handle_rejected)
{
    DAT_SRQ_HANDLE srq = srq_of(&a, 4), none[] = {srq, DAT_HANDLE_NULL};
    DAT_LMR_TRIPLET iov = piece(&a, 0, 8);
    DAT_SRQ_PARAM param;
    DAT_EP_ATTR attr = ep_attr();
    DAT_EP_HANDLE ep;

    OK(dat_srq_free(srq));
    for (int i = 0; i < 2; i++) {
        EXPECT(HANDLE(SRQ), dat_srq_free(none[i]));
        EXPECT(HANDLE(SRQ), dat_srq_query(none[i], DAT_SRQ_FIELD_ALL, &param));
        EXPECT(HANDLE(SRQ), dat_srq_post_recv(none[i], 1, &iov, as_cookie(0)));
        EXPECT(HANDLE(SRQ), dat_srq_resize(none[i], 8));
        EXPECT(HANDLE(SRQ), dat_srq_set_lw(none[i], 1));
        EXPECT(HANDLE(SRQ), dat_ep_create_with_srq(a.ia, a.pz, a.recv, a.req, a.conn, none[i], &attr, &ep));
    }
    for (int i = 0; i < 50; i++) {
        DAT_SRQ_HANDLE next = srq_of(&a, 4);

        CHECK(next != srq);
        OK(dat_srq_free(next));
    }
    EXPECT(HANDLE(SRQ), dat_srq_query(srq, DAT_SRQ_FIELD_ALL, &param));
}

/* The device reports an error of the SRQ. Posts are not refused because of it (R66). */
TEST(r9_srq_error_state_reported_async)
{
    DAT_SRQ_HANDLE srq;
    DAT_LMR_TRIPLET iov = piece(&a, 0, 8);

    if (no_software_device("r9_srq_error_state_reported_async"))
        return;
    srq = srq_of(&a, 4);
    OK(post(srq, 0, 8));
    CHECK(emu("srq error") == 0);
    ASYNC(a, WATERMARK, srq, DAT_SRQ_TRANSFER_TO_ERROR);
    CHECK(look(srq).srq_state == DAT_SRQ_STATE_ERROR && DAT_SRQ_STATE_ERROR == 0);
    OK(dat_srq_post_recv(srq, 1, &iov, as_cookie(1)));
    OK(dat_srq_free(srq));
}

/* The whole depth that the query reports can be used (R44). */
TEST(r10_srq_create_queue_at_least_requested)
{
    for (int depth = 1; depth <= 64; depth += 21) {
        DAT_SRQ_HANDLE srq = srq_of(&a, depth);
        int real = look(srq).max_recv_dtos;

        CHECK(real >= depth);
        for (int i = 0; i < real; i++)
            OK(post(srq, i % 100, 16));
        EXPECT(FULL_SRQ, post(srq, 0, 16));
        COUNTS(srq, real, real);
    }
}

/* The number of segments that the query reports is the limit (R54). */
TEST(r11_srq_create_iov_at_least_requested)
{
    DAT_SRQ_ATTR attr = {4, 3, 0};
    DAT_SRQ_HANDLE srq;
    DAT_LMR_TRIPLET iov[40];
    int real;

    OK(dat_srq_create(a.ia, a.pz, &attr, &srq));
    real = look(srq).max_recv_iov;
    CHECK(real >= 3 && real < 40);
    for (int i = 0; i < 40; i++)
        iov[i] = piece(&a, i * 64, 64);
    OK(dat_srq_post_recv(srq, real, iov, as_cookie(1)));
    EXPECT(ARG(2), dat_srq_post_recv(srq, real + 1, iov, as_cookie(1)));
    EXPECT(ARG(2), dat_srq_post_recv(srq, INT32_MAX, iov, as_cookie(1)));
    COUNTS(srq, 1, 1);
}

static void refused(int dtos, int iov, int mark)
{
    DAT_SRQ_ATTR attr = {dtos, iov, mark};
    DAT_SRQ_HANDLE srq = (DAT_SRQ_HANDLE)&attr;

    EXPECT(ARG(3), dat_srq_create(a.ia, a.pz, &attr, &srq));
    CHECK(srq == (DAT_SRQ_HANDLE)&attr);
}

TEST(r12_srq_create_low_watermark_must_be_default)
{
    refused(4, 1, 1);
    refused(4, 1, 4);
    refused(4, 1, -1);
}

/* Sizes below 1 and above the limits are refused (R13, R14, R15), and the output handle does not
 * change. The limits themselves are legal. */
TEST(r13_srq_create_zero_or_negative_depth)
{
    DAT_SRQ_ATTR most = {a.attr.max_recv_per_srq, a.attr.max_iov_segments_per_dto, 0};
    DAT_SRQ_HANDLE srq;

    refused(0, 1, 0);
    refused(-1, 1, 0);
    refused(INT32_MIN, 1, 0);
    refused(4, 0, 0);
    refused(4, -1, 0);
    refused(a.attr.max_recv_per_srq + 1, 1, 0);
    refused(INT32_MAX, 1, 0);
    refused(4, a.attr.max_iov_segments_per_dto + 1, 0);
    refused(4, INT32_MAX, 0);
    OK(dat_srq_create(a.ia, a.pz, &most, &srq));
    CHECK(look(srq).max_recv_dtos >= most.max_recv_dtos && look(srq).max_recv_iov >= most.max_recv_iov);
}

/* NULL attributes and a NULL output pointer are refused (R17). */
TEST(r16_srq_create_null_attr)
{
    DAT_SRQ_ATTR attr = {4, 1, 0};
    DAT_SRQ_HANDLE srq;

    EXPECT(ARG(3), dat_srq_create(a.ia, a.pz, NULL, &srq));
    EXPECT(ARG(4), dat_srq_create(a.ia, a.pz, &attr, NULL));
    EXPECT(ARG(3), dat_srq_create(a.ia, a.pz, NULL, NULL));
}

/* The IA is null, not a handle, or closed. The PZ is null, freed, of another IA, or another object
 * (R19). */
TEST(r18_srq_create_bad_ia)
{
    DAT_SRQ_ATTR attr = {4, 1, 0};
    DAT_SRQ_HANDLE srq;
    DAT_PZ_HANDLE gone;
    struct side c;

    EXPECT(HANDLE(IA), dat_srq_create(DAT_HANDLE_NULL, a.pz, &attr, &srq));
    EXPECT(HANDLE(IA), dat_srq_create((DAT_IA_HANDLE)(uintptr_t)61, a.pz, &attr, &srq));
    side_open(&c, ia_names[0]);
    gone = c.pz;
    OK(dat_ia_close(c.ia, DAT_CLOSE_ABRUPT_FLAG));
    EXPECT(HANDLE(IA), dat_srq_create(c.ia, a.pz, &attr, &srq));
    EXPECT(HANDLE(PZ), dat_srq_create(a.ia, gone, &attr, &srq));
    EXPECT(HANDLE(PZ), dat_srq_create(a.ia, DAT_HANDLE_NULL, &attr, &srq));
    EXPECT(HANDLE(PZ), dat_srq_create(a.ia, b.pz, &attr, &srq));
    EXPECT(HANDLE(PZ), dat_srq_create(a.ia, a.lmr, &attr, &srq));
    free(c.memory);
}

TEST(r19_srq_create_bad_pz)
{
    DAT_SRQ_ATTR attr = {4, 1, 0};
    DAT_SRQ_HANDLE srq = DAT_HANDLE_NULL;
    DAT_PZ_HANDLE pz;

    OK(dat_pz_create(a.ia, &pz));
    OK(dat_pz_free(pz));
    EXPECT(HANDLE(PZ), dat_srq_create(a.ia, pz, &attr, &srq));
    CHECK(srq == DAT_HANDLE_NULL);
}

/* The device has no memory left. Afterwards everything is as before (R21). */
TEST(r20_srq_create_out_of_resources)
{
    DAT_SRQ_ATTR attr = {4, 1, 0};
    DAT_SRQ_HANDLE srq = DAT_HANDLE_NULL;
    DAT_PZ_HANDLE pz;
    DAT_RETURN ret;

    if (no_software_device("r20_srq_create_out_of_resources"))
        return;
    OK(dat_pz_create(a.ia, &pz));
    CHECK(emu("fault cmd.create_srq=12") == 0);
    ret = dat_srq_create(a.ia, pz, &attr, &srq);
    CHECK((ret & ~0xffffu) == (DAT_CLASS_ERROR | DAT_INSUFFICIENT_RESOURCES));
    CHECK((ret & 0xffff) == DAT_RESOURCE_SRQ || (ret & 0xffff) == DAT_RESOURCE_MEMORY);
    CHECK(srq == DAT_HANDLE_NULL);
    CHECK(emu("no faults") == 0);
    OK(dat_srq_create(a.ia, pz, &attr, &srq));
    OK(dat_srq_free(srq));
    OK(dat_pz_free(pz));
}

TEST(r21_srq_create_failure_leaks_nothing)
{
    DAT_SRQ_ATTR attr = {0, 1, 0};
    DAT_SRQ_HANDLE srq = DAT_HANDLE_NULL;
    DAT_PZ_HANDLE pz;

    OK(dat_pz_create(a.ia, &pz));
    for (int i = 0; i < 100; i++)
        EXPECT(ARG(3), dat_srq_create(a.ia, pz, &attr, &srq));
    CHECK(srq == DAT_HANDLE_NULL);
    OK(dat_pz_free(pz));
}

/* The provider advertises SRQs and creates one (R259). */
TEST(r22_srq_create_model_not_supported_only_without_srq)
{
    DAT_PROVIDER_ATTR attr;

    OK(dat_ia_query(a.ia, NULL, 0, NULL, DAT_PROVIDER_FIELD_ALL, &attr));
    CHECK(attr.srq_supported == DAT_TRUE);
    OK(dat_srq_free(srq_of(&a, 1)));
}

static void *create_some(void *unused)
{
    DAT_SRQ_ATTR attr = {4, 1, 0};
    DAT_EP_ATTR plain = ep_attr();
    uintptr_t wrong = 0;

    (void)unused;
    for (int i = 0; i < 20; i++) {
        DAT_SRQ_HANDLE srq;
        DAT_EP_HANDLE ep;

        wrong += dat_srq_create(a.ia, a.pz, &attr, &srq) != DAT_SUCCESS;
        wrong += dat_ep_create_with_srq(a.ia, a.pz, a.recv, a.req, a.conn, srq, &plain, &ep) != DAT_SUCCESS;
        wrong += dat_srq_free(srq) != STATE(DAT_INVALID_STATE_SRQ_IN_USE);
        wrong += dat_ep_free(ep) != DAT_SUCCESS;
        wrong += dat_srq_free(srq) != DAT_SUCCESS;
    }
    return (void *)wrong;
}

/* Several threads create SRQs and EPs at once (R156). */
TEST(r23_srq_create_thread_safe)
{
    pthread_t threads[4];

    for (int i = 0; i < 4; i++)
        CHECK(pthread_create(&threads[i], NULL, create_some, NULL) == 0);
    for (int i = 0; i < 4; i++) {
        void *wrong;

        CHECK(pthread_join(threads[i], &wrong) == 0);
        CHECK(wrong == NULL);
    }
}

int main(int argc, char **argv)
{
    return run_tests(argc, argv);
}
