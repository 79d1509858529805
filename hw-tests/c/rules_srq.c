/* SRQs through libdat2: creation, freeing, queries, posting, resizing, the low watermark (sections A to E, H and I). */
#include "rig.h"

/* What queries of other objects say about their IA, too. */
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
    /* The number that the query gave is one to go on with. */
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
}

/* (R153, R159, R162): no call but the creation of the EP names its SRQ. */
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

/* Three connections, two of them on one EVD (R6, R49). */
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

/* All calls on a freed SRQ and on none (R28, R47, R70, R106, R126). */
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

/* The device gives the SRQ up; posting is not refused for it (R66). */
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

/* (R44): what the query reports can be used, all of it. */
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

/* (R54) at the limit that the query reports. */
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

/* (R13, R14, R15), and the out handle stays as it was. */
TEST(r13_srq_create_zero_or_negative_depth)
{
    refused(0, 1, 0);
    refused(-1, 1, 0);
    refused(INT32_MIN, 1, 0);
    refused(4, 0, 0);
    refused(4, -1, 0);
    refused(a.attr.max_recv_per_srq + 1, 1, 0);
    refused(INT32_MAX, 1, 0);
    refused(4, a.attr.max_iov_segments_per_dto + 1, 0);
    refused(4, INT32_MAX, 0);
}

/* (R17): no attributes, nowhere to put the handle. */
TEST(r16_srq_create_null_attr)
{
    DAT_SRQ_ATTR attr = {4, 1, 0};
    DAT_SRQ_HANDLE srq;

    EXPECT(ARG(3), dat_srq_create(a.ia, a.pz, NULL, &srq));
    EXPECT(ARG(4), dat_srq_create(a.ia, a.pz, &attr, NULL));
    EXPECT(ARG(3), dat_srq_create(a.ia, a.pz, NULL, NULL));
}

/* No IA, a number that is none, one that is closed (R19 the same with PZs: none, freed, of another IA, another object). */
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

/* The device has no memory left; afterwards everything is as before (R21). */
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

/* (R259): it says that it has SRQs, and makes one. */
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

/* SRQs and EPs are made by several threads at once (R156). */
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

enum { POSTERS = 3, POSTS = 400 };

static DAT_SRQ_HANDLE shared;

/* Buffers of this thread's own, as often as there is room. */
static void *post_many(void *which)
{
    unsigned first = (uintptr_t)which * POSTS;
    uintptr_t wrong = 0;

    for (unsigned i = 0; i < POSTS;) {
        DAT_LMR_TRIPLET iov = piece(&a, (i % 32) * ROOM, 64);
        DAT_RETURN code = dat_srq_post_recv(shared, 1, &iov, as_cookie(first + i));

        i += code == DAT_SUCCESS;
        if (code != DAT_SUCCESS && DAT_GET_TYPE(code) != DAT_INSUFFICIENT_RESOURCES) {
            wrong++;
            break;
        }
        if (code != DAT_SUCCESS || i % 16 == 0)
            poll(NULL, 0, 0);
    }
    return (void *)wrong;
}

/* Several threads post to one SRQ at once, while another reaps and looks: no buffer is lost or comes twice. */
TEST(r71_srq_post_thread_rule)
{
    static unsigned char came[POSTERS * POSTS];
    pthread_t threads[POSTERS];
    struct pair pair;

    memset(came, 0, sizeof came);
    shared = srq_of(&a, 24);
    pair = pair_on(shared);
    for (uintptr_t i = 0; i < POSTERS; i++)
        CHECK(pthread_create(&threads[i], NULL, post_many, (void *)i) == 0);
    for (unsigned i = 0; i < POSTERS * POSTS; i++) {
        DAT_DTO_COOKIE cookie;
        DAT_SRQ_PARAM now;

        SEND(pair, 8);
        cookie = TAKEN(a.recv, pair.server, 8).user_cookie;
        CHECK(cookie.as_64 < sizeof came && !came[cookie.as_64]);
        if (cookie.as_64 < sizeof came)
            came[cookie.as_64] = 1;
        now = look(shared);
        CHECK(now.available_dto_count >= 0 && now.available_dto_count <= 24);
    }
    for (int i = 0; i < POSTERS; i++) {
        void *wrong;

        CHECK(pthread_join(threads[i], &wrong) == 0);
        CHECK(wrong == NULL);
    }
    COUNTS(shared, 0, 0);
    EMPTIED(a.recv);
}

/* Whatever state the EP is in, until it is freed (R25, R170). */
TEST(r24_srq_free_refused_while_ep_attached)
{
    DAT_SRQ_HANDLE srq = srq_of(&a, 4);
    struct pair pair;
    DAT_EP_HANDLE idle = ep_on(&a, srq, a.recv, NULL);

    EXPECT(0x80070057, dat_srq_free(srq));
    OK(dat_ep_free(idle));
    pair = pair_on(srq);
    EXPECT(0x80070057, dat_srq_free(srq));
    OK(dat_ep_disconnect(pair.client, DAT_CLOSE_ABRUPT_FLAG));
    ENDS(pair, DAT_CONNECTION_EVENT_DISCONNECTED);
    EXPECT(0x80070057, dat_srq_free(srq));
    OK(dat_ep_reset(pair.server));
    EXPECT(0x80070057, dat_srq_free(srq));
    OK(post(srq, 0, 8));
    COUNTS(srq, 1, 1);
    OK(dat_ep_free(pair.server));
    OK(dat_srq_free(srq));
}

static DAT_SRQ_HANDLE raced;
static int racing;
static long long race_ends;

static void *free_in_vain(void *unused)
{
    uintptr_t wrong = 0;

    (void)unused;
    /* Not for as long as the other thread takes, which may not get a turn meanwhile: valgrind runs one thread at a time, and may find
     * this one inside the call whenever it looks. */
    while (__atomic_load_n(&racing, __ATOMIC_ACQUIRE) && now_ms() < race_ends)
        wrong += dat_srq_free(raced) != STATE(DAT_INVALID_STATE_SRQ_IN_USE);
    return (void *)wrong;
}

/* A refused call is not seen by other threads. */
TEST(r24_srq_free_refused_while_ep_attached_beside_other_calls)
{
    pthread_t thread;
    DAT_EP_HANDLE ep, other;
    DAT_EP_ATTR attr = ep_attr();
    DAT_SRQ_PARAM param;
    void *wrong;

    raced = srq_of(&a, 4);
    ep = ep_on(&a, raced, a.recv, NULL);
    racing = 1;
    race_ends = now_ms() + 500;
    CHECK(pthread_create(&thread, NULL, free_in_vain, NULL) == 0);
    for (int i = 0; now_ms() < race_ends && !failures; i++) {
        OK(dat_srq_query(raced, DAT_SRQ_FIELD_ALL, &param));
        if (i % 200 == 0) {
            OK(dat_ep_create_with_srq(a.ia, a.pz, a.recv, a.req, a.conn, raced, &attr, &other));
            OK(dat_ep_free(other));
        }
    }
    __atomic_store_n(&racing, 0, __ATOMIC_RELEASE);
    CHECK(pthread_join(thread, &wrong) == 0);
    CHECK(wrong == NULL);
    OK(dat_ep_free(ep));
    OK(dat_srq_free(raced));
}

/* No completion for buffers that nobody took, and no writing to their memory (R29). */
TEST(r26_srq_free_with_posted_buffers)
{
    DAT_SRQ_HANDLE srq = srq_of(&a, 4);
    struct pair pair = pair_on(srq);

    fill(srq, 0, 4);
    memset(a.memory, 0x5A, 4 * ROOM);
    OK(dat_ep_free(pair.server));
    OK(dat_srq_free(srq));
    SILENT(a.recv);
    for (int i = 0; i < 4 * ROOM; i++)
        if (a.memory[i] != 0x5A) {
            CHECK(!"memory of a buffer was written to");
            break;
        }
}

TEST(r27_srq_free_with_unreaped_completions)
{
    DAT_SRQ_HANDLE srq = srq_of(&a, 4);
    struct pair pair = pair_on(srq);
    DAT_EVENT event;

    fill(srq, 0, 4);
    SEND(pair, 8);
    SEND(pair, 8);
    OK(dat_ep_free(pair.server));
    OK(dat_srq_free(srq));
    /* There still, or gone. */
    for (int i = 0; i < 3; i++) {
        DAT_RETURN ret = dat_evd_dequeue(a.recv, &event);

        CHECK(ret == DAT_SUCCESS || DAT_GET_TYPE(ret) == DAT_QUEUE_EMPTY);
    }
}

TEST(r30_srq_free_after_lmr_free)
{
    DAT_SRQ_HANDLE srq = srq_of(&a, 4);

    fill(srq, 0, 4);
    OK(dat_lmr_free(a.lmr));
    COUNTS(srq, 4, 4);
    OK(dat_srq_free(srq));
}

static DAT_RETURN attached;
static DAT_EP_HANDLE attached_ep;

static void *attach(void *unused)
{
    DAT_EP_ATTR attr = ep_attr();

    (void)unused;
    attached = dat_ep_create_with_srq(a.ia, a.pz, a.recv, a.req, a.conn, raced, &attr, &attached_ep);
    return NULL;
}

TEST(r31_srq_free_races_with_attach)
{
    unsigned freed = 0;

    for (int i = 0; i < 60; i++) {
        pthread_t thread;
        DAT_RETURN ret;

        raced = srq_of(&a, 4);
        CHECK(pthread_create(&thread, NULL, attach, NULL) == 0);
        /* Earlier and later in the other's call. */
        for (volatile int spin = 0; spin < i * 1000; spin++)
            ;
        ret = dat_srq_free(raced);
        CHECK(pthread_join(thread, NULL) == 0);
        if (ret == DAT_SUCCESS) {
            freed++;
            CHECK(attached == HANDLE(SRQ) || attached == STATE(DAT_INVALID_STATE_SRQ_SHUTDOWN));
        } else {
            CHECK(ret == STATE(DAT_INVALID_STATE_SRQ_IN_USE));
            CHECK(attached == DAT_SUCCESS);
            OK(dat_ep_free(attached_ep));
            OK(dat_srq_free(raced));
        }
    }
    printf("the free won %u of 60 races\n", freed);
}

/* One bit at a time gives that field at least (R45). */
TEST(r32_srq_query_mask_selects)
{
    DAT_SRQ_HANDLE srq = srq_of(&a, 10);
    DAT_SRQ_PARAM all, one;

    fill(srq, 0, 3);
    OK(dat_srq_set_lw(srq, 2));
    all = look(srq);
    CHECK(all.max_recv_dtos >= 10 && all.low_watermark == 2 && all.available_dto_count == 3);
#define SELECTS(bit, field)                                                                                      \
    do {                                                                                                         \
        memset(&one, 0xA5, sizeof one);                                                                          \
        OK(dat_srq_query(srq, bit, &one));                                                                       \
        CHECK(one.field == all.field);                                                                           \
    } while (0)
    SELECTS(DAT_SRQ_FIELD_IA_HANDLE, ia_handle);
    SELECTS(DAT_SRQ_FIELD_SRQ_STATE, srq_state);
    SELECTS(DAT_SRQ_FIELD_PZ_HANDLE, pz_handle);
    SELECTS(DAT_SRQ_FIELD_MAX_RECV_DTO, max_recv_dtos);
    SELECTS(DAT_SRQ_FIELD_MAX_RECV_IOV, max_recv_iov);
    SELECTS(DAT_SRQ_FIELD_LOW_WATERMARK, low_watermark);
    SELECTS(DAT_SRQ_FIELD_AVAILABLE_DTO_COUNT, available_dto_count);
    SELECTS(DAT_SRQ_FIELD_OUTSTANDING_DTO_COUNT, outstanding_dto_count);
    CHECK(all.pz_handle == a.pz);
}

/* Each bit outside of the mask (R34: no bit is fine). */
TEST(r33_srq_query_bad_mask)
{
    DAT_SRQ_HANDLE srq = srq_of(&a, 4);
    DAT_SRQ_PARAM param;

    for (unsigned bit = 8; bit < 32; bit++) {
        EXPECT(ARG(2), dat_srq_query(srq, 1u << bit, &param));
        EXPECT(ARG(2), dat_srq_query(srq, DAT_SRQ_FIELD_ALL | 1u << bit, &param));
    }
}

TEST(r34_srq_query_empty_mask)
{
    DAT_SRQ_PARAM param;

    OK(dat_srq_query(srq_of(&a, 4), 0, &param));
}

TEST(r35_srq_query_null_param)
{
    DAT_SRQ_HANDLE srq = srq_of(&a, 4);

    EXPECT(ARG(3), dat_srq_query(srq, DAT_SRQ_FIELD_ALL, NULL));
    EXPECT(ARG(3), dat_srq_query(srq, DAT_SRQ_FIELD_IA_HANDLE, NULL));
    EXPECT(ARG(2), dat_srq_query(srq, 0x100, NULL));
}

/* The manual's example (R36 to R42, R46, R48, R73). */
TEST(r39_srq_query_example_10_after_post)
{
    DAT_SRQ_HANDLE srq = srq_of(&a, 10);
    struct pair pair = pair_on(srq);

    CHECK(look(srq).max_recv_dtos == 10);
    for (unsigned i = 0; i < 3; i++) {
        COUNTS(srq, i, i);
        OK(post(srq, i, 64));
    }
    COUNTS(srq, 3, 3);
    SEND(pair, 64);
    COUNTS(srq, 2, 3);
    TAKEN(a.recv, pair.server, 64);
    COUNTS(srq, 2, 2);
    OK(post(srq, 0, 64));
    COUNTS(srq, 3, 3);
}

TEST(r43_srq_query_reap_by_wait_or_dequeue)
{
    DAT_SRQ_HANDLE srq = srq_of(&a, 4);
    struct pair pair = pair_on(srq);
    DAT_EVENT event;
    DAT_COUNT more;

    fill(srq, 0, 4);
    SEND(pair, 8);
    SEND(pair, 8);
    COUNTS(srq, 2, 4);
    EXPECT(TIMEOUT, dat_evd_wait(a.recv, SHORT_TIME, 3, &event, &more));
    CHECK(more == 2);
    COUNTS(srq, 2, 4);
    OK(dat_evd_dequeue(a.recv, &event));
    COUNTS(srq, 2, 3);
    OK(dat_evd_wait(a.recv, LONG_TIME, 1, &event, &more));
    COUNTS(srq, 2, 2);
}

TEST(r51_srq_post_zero_segments)
{
    DAT_SRQ_HANDLE srq = srq_of(&a, 4);
    struct pair pair = pair_on(srq);

    OK(dat_srq_post_recv(srq, 0, NULL, as_cookie(9)));
    COUNTS(srq, 1, 1);
    SEND(pair, 0);
    CHECK(TAKEN(a.recv, pair.server, 0).user_cookie.as_64 == 9);
    COUNTS(srq, 0, 0);
}

TEST(r52_srq_post_zero_length_segment_ignores_rest)
{
    DAT_SRQ_HANDLE srq = srq_of(&a, 4);
    struct pair pair = pair_on(srq);
    DAT_LMR_TRIPLET iov[2] = {{UINT64_MAX, 0, 0xdeadbeef}, piece(&a, 0, 64)};

    OK(dat_srq_post_recv(srq, 2, iov, as_cookie(1)));
    strcpy(b.memory + 100 * ROOM, "not much");
    SEND(pair, 9);
    TAKEN(a.recv, pair.server, 9);
    CHECK(strcmp(a.memory, "not much") == 0);
}

/* The argument at fault, and nothing is posted (R54, R55, R60). */
TEST(r53_srq_post_negative_segments)
{
    DAT_SRQ_HANDLE srq = srq_of(&a, 4);
    DAT_LMR_TRIPLET iov[40];

    for (int i = 0; i < 40; i++)
        iov[i] = piece(&a, 0, 8);
    EXPECT(ARG(2), dat_srq_post_recv(srq, -1, iov, as_cookie(1)));
    EXPECT(ARG(2), dat_srq_post_recv(srq, INT32_MIN, iov, as_cookie(1)));
    EXPECT(ARG(2), dat_srq_post_recv(srq, -1, NULL, as_cookie(1)));
    EXPECT(ARG(2), dat_srq_post_recv(srq, look(srq).max_recv_iov + 1, iov, as_cookie(1)));
    COUNTS(srq, 0, 0);
}

TEST(r55_srq_post_null_iov)
{
    DAT_SRQ_HANDLE srq = srq_of(&a, 4);

    EXPECT(ARG(3), dat_srq_post_recv(srq, 1, NULL, as_cookie(1)));
    EXPECT(ARG(3), dat_srq_post_recv(srq, 2, NULL, as_cookie(1)));
    COUNTS(srq, 0, 0);
}

static DAT_RETURN post_at(DAT_SRQ_HANDLE srq, DAT_VADDR address, unsigned length)
{
    DAT_LMR_TRIPLET iov = {address, length, a.lmr_context};

    return dat_srq_post_recv(srq, 1, &iov, as_cookie(1));
}

TEST(r56_srq_post_segment_outside_lmr)
{
    DAT_SRQ_HANDLE srq = srq_of(&a, 4);
    DAT_VADDR start = (DAT_VADDR)(uintptr_t)a.memory;

    EXPECT(ARG(3), post_at(srq, start - 1, 8));
    EXPECT(ARG(3), post_at(srq, start + MEMORY, 1));
    EXPECT(ARG(3), post_at(srq, start + MEMORY - 7, 8));
    EXPECT(ARG(3), post_at(srq, start, MEMORY + 1));
    EXPECT(ARG(3), post_at(srq, start, UINT32_MAX));
    EXPECT(ARG(3), post_at(srq, UINT64_MAX - 3, 8));
    EXPECT(ARG(3), post_at(srq, 0, 8));
    COUNTS(srq, 0, 0);
    OK(post_at(srq, start + MEMORY - 8, 8));
    OK(post_at(srq, start, MEMORY));
}

/* Of another PZ, without the privilege, freed, never there: after a good segment, too, and nothing of it is posted (R58 to R60). */
TEST(r57_srq_post_pz_mismatch)
{
    DAT_SRQ_HANDLE srq = srq_of(&a, 4);
    DAT_PZ_HANDLE pz;
    DAT_REGION_DESCRIPTION region = {.for_va = a.memory};
    DAT_LMR_HANDLE other, readable, gone;
    DAT_LMR_TRIPLET iov[2] = {piece(&a, 0, 8), piece(&a, 8, 8)};
    DAT_LMR_CONTEXT stale;

    OK(dat_pz_create(a.ia, &pz));
    OK(dat_lmr_create(a.ia, DAT_MEM_TYPE_VIRTUAL, region, MEMORY, pz, DAT_MEM_PRIV_ALL_FLAG, 0, &other,
                      &iov[1].lmr_context, NULL, NULL, NULL));
    EXPECT(0x800C005E, dat_srq_post_recv(srq, 2, iov, as_cookie(1)));
    OK(dat_lmr_create(a.ia, DAT_MEM_TYPE_VIRTUAL, region, MEMORY, a.pz, DAT_MEM_PRIV_LOCAL_READ_FLAG, 0, &readable,
                      &iov[1].lmr_context, NULL, NULL, NULL));
    EXPECT(0x800B005A, dat_srq_post_recv(srq, 2, iov, as_cookie(1)));
    OK(dat_lmr_create(a.ia, DAT_MEM_TYPE_VIRTUAL, region, MEMORY, a.pz, DAT_MEM_PRIV_ALL_FLAG, 0, &gone, &stale, NULL,
                      NULL, NULL));
    OK(dat_lmr_free(gone));
    iov[1].lmr_context = stale;
    EXPECT(0x800B005A, dat_srq_post_recv(srq, 2, iov, as_cookie(1)));
    iov[1].lmr_context = 0xffffffff;
    EXPECT(0x800B005A, dat_srq_post_recv(srq, 2, iov, as_cookie(1)));
    COUNTS(srq, 0, 0);
    iov[1] = piece(&a, 8, 8);
    OK(dat_srq_post_recv(srq, 2, iov, as_cookie(1)));
    COUNTS(srq, 1, 1);
}

/* Completions that wait for the consumer count (R62). */
TEST(r61_srq_post_full)
{
    DAT_SRQ_HANDLE srq = srq_of(&a, 4);
    struct pair pair = pair_on(srq);

    fill(srq, 0, 4);
    EXPECT(0x8003000A, post(srq, 5, 8));
    for (int i = 0; i < 4; i++)
        SEND(pair, 8);
    COUNTS(srq, 0, 4);
    EXPECT(0x8003000A, post(srq, 5, 8));
    TAKEN(a.recv, pair.server, 8);
    OK(post(srq, 5, 8));
    EXPECT(0x8003000A, post(srq, 6, 8));
}

/* All 64 bits of it, zero, and the same twice (R64). */
TEST(r63_srq_post_cookie_opaque)
{
    uint64_t cookies[] = {0, UINT64_MAX, UINT64_C(0x0123456789abcdef), 5, 5};
    DAT_SRQ_HANDLE srq = srq_of(&a, 5);
    struct pair pair = pair_on(srq);
    DAT_LMR_TRIPLET iov = piece(&a, 0, 8);

    for (int i = 0; i < 5; i++)
        OK(dat_srq_post_recv(srq, 1, &iov, as_cookie(cookies[i])));
    for (int i = 0; i < 5; i++) {
        uint64_t got;
        int j = 0;

        SEND(pair, 8);
        got = TAKEN(a.recv, pair.server, 8).user_cookie.as_64;
        while (j < 5 && cookies[j] != got)
            j++;
        CHECK(j < 5);
        cookies[j] = 77;
    }
}

/* (R65, R67): before there is an EP, and the buffer tells of its completion. */
TEST(r67_srq_post_without_any_ep)
{
    DAT_SRQ_HANDLE srq = srq_of(&a, 4);
    struct pair pair;

    OK(post(srq, 3, 8));
    pair = pair_on(srq);
    SEND(pair, 8);
    CHECK(TAKEN(a.recv, pair.server, 8).user_cookie.as_64 == 3);
}

/* (R268): the provider says that the array is the consumer's again at once, and so it is. */
TEST(r68_srq_post_iov_array_ownership)
{
    DAT_SRQ_HANDLE srq = srq_of(&a, 4);
    struct pair pair = pair_on(srq);
    DAT_LMR_TRIPLET iov[2] = {piece(&a, 0, 4), piece(&a, 1024, 8)};
    DAT_PROVIDER_ATTR attr;

    OK(dat_ia_query(a.ia, NULL, 0, NULL, DAT_PROVIDER_FIELD_ALL, &attr));
    CHECK(attr.iov_ownership_on_return == DAT_IOV_CONSUMER);
    OK(dat_srq_post_recv(srq, 2, iov, as_cookie(1)));
    memset(iov, 0xFF, sizeof iov);
    memcpy(b.memory + 100 * ROOM, "abcdefgh", 8);
    SEND(pair, 8);
    TAKEN(a.recv, pair.server, 8);
    CHECK(memcmp(a.memory, "abcd", 4) == 0 && memcmp(a.memory + 1024, "efgh", 4) == 0);
}

/* (R44, R105): buffers stay, and there is room for as many as asked. */
TEST(r94_srq_resize_grow)
{
    DAT_SRQ_HANDLE srq = srq_of(&a, 4);
    struct pair pair = pair_on(srq);
    int iov = look(srq).max_recv_iov;

    fill(srq, 0, 4);
    OK(dat_srq_resize(srq, 20));
    CHECK(look(srq).max_recv_dtos >= 20 && look(srq).max_recv_iov == iov);
    COUNTS(srq, 4, 4);
    fill(srq, 4, 16);
    for (int i = 0; i < 20; i++) {
        SEND(pair, 30 + i);
        TAKEN(a.recv, pair.server, 30 + i);
    }
    COUNTS(srq, 0, 0);
}

/* (R96): any depth from what was asked to what it was. */
TEST(r95_srq_resize_shrink)
{
    DAT_SRQ_HANDLE srq = srq_of(&a, 20);
    int before = look(srq).max_recv_dtos;

    OK(dat_srq_resize(srq, 8));
    CHECK(look(srq).max_recv_dtos >= 8 && look(srq).max_recv_dtos <= before);
    fill(srq, 0, 8);
    COUNTS(srq, 8, 8);
}

/* Posted and completed, unreaped buffers alike (R98, R99). */
TEST(r97_srq_resize_below_outstanding)
{
    DAT_SRQ_HANDLE srq = srq_of(&a, 10);
    struct pair pair = pair_on(srq);
    DAT_SRQ_PARAM before;

    fill(srq, 0, 7);
    SEND(pair, 8);
    SEND(pair, 8);
    COUNTS(srq, 5, 7);
    before = look(srq);
    CHECK(DAT_GET_TYPE(dat_srq_resize(srq, 6)) == DAT_INVALID_STATE);
    CHECK(DAT_GET_TYPE(dat_srq_resize(srq, 1)) == DAT_INVALID_STATE);
    CHECK(look(srq).max_recv_dtos == before.max_recv_dtos);
    COUNTS(srq, 5, 7);
    OK(dat_srq_resize(srq, 7));
    TAKEN(a.recv, pair.server, 8);
    OK(dat_srq_resize(srq, 6));
    COUNTS(srq, 5, 6);
}

/* (R101): below it is refused, at it is not. */
TEST(r100_srq_resize_below_low_watermark)
{
    DAT_SRQ_HANDLE srq = srq_of(&a, 10);

    fill(srq, 0, 6);
    OK(dat_srq_set_lw(srq, 6));
    OK(dat_srq_resize(srq, 6));
    CHECK(DAT_GET_TYPE(dat_srq_resize(srq, 5)) == DAT_INVALID_STATE);
    CHECK(look(srq).low_watermark == 6);
}

TEST(r102_srq_resize_bad_value)
{
    DAT_SRQ_HANDLE srq = srq_of(&a, 10);

    EXPECT(ARG(2), dat_srq_resize(srq, 0));
    EXPECT(ARG(2), dat_srq_resize(srq, -1));
    EXPECT(ARG(2), dat_srq_resize(srq, INT32_MIN));
    EXPECT(ARG(2), dat_srq_resize(srq, a.attr.max_recv_per_srq + 1));
    EXPECT(ARG(2), dat_srq_resize(srq, INT32_MAX));
    CHECK(look(srq).max_recv_dtos >= 10);
}

/* Neither armed, disarmed nor fired (R107 to R109, R111, R120, R121). */
TEST(r105_srq_resize_leaves_watermark_armed)
{
    DAT_SRQ_HANDLE srq = srq_of(&a, 10);
    struct pair pair = pair_on(srq);

    fill(srq, 0, 5);
    OK(dat_srq_set_lw(srq, 4));
    OK(dat_srq_resize(srq, 16));
    CHECK(look(srq).low_watermark == 4);
    SEND(pair, 8);
    TAKEN(a.recv, pair.server, 8);
    SILENT(a.async);
    SEND(pair, 8);
    TAKEN(a.recv, pair.server, 8);
    LOW(srq);
    OK(dat_srq_resize(srq, 10));
    SILENT(a.async);
}

/* With fewer than the mark left one event, and no second (R107, R108, R112, R123). */
TEST(r108_srq_lw_fires_below)
{
    DAT_SRQ_HANDLE srq = srq_of(&a, 10);
    struct pair pair = pair_on(srq);

    fill(srq, 0, 4);
    OK(dat_srq_set_lw(srq, 3));
    CHECK(look(srq).low_watermark == 3);
    SEND(pair, 8);
    SILENT(a.async);
    SEND(pair, 8);
    LOW(srq);
    SEND(pair, 8);
    fill(srq, 4, 5);
    for (int i = 0; i < 5; i++)
        SEND(pair, 8);
    SILENT(a.async);
    CHECK(connected(pair.server) && look(srq).low_watermark == 3);
}

/* With too few already there; again at each call (R113). */
TEST(r110_srq_lw_fires_during_call)
{
    DAT_SRQ_HANDLE srq = srq_of(&a, 10);

    OK(dat_srq_set_lw(srq, 1));
    LOW(srq);
    OK(dat_srq_set_lw(srq, 1));
    LOW(srq);
    fill(srq, 0, 3);
    OK(dat_srq_set_lw(srq, 4));
    LOW(srq);
    OK(dat_srq_set_lw(srq, 3));
    SILENT(a.async);
}

/* The earlier value never fires, the new one does. */
TEST(r114_srq_lw_replace_before_fire)
{
    DAT_SRQ_HANDLE srq = srq_of(&a, 10);
    struct pair pair = pair_on(srq);

    fill(srq, 0, 6);
    OK(dat_srq_set_lw(srq, 5));
    OK(dat_srq_set_lw(srq, 3));
    CHECK(look(srq).low_watermark == 3);
    SEND(pair, 8);
    SEND(pair, 8);
    SILENT(a.async);
    SEND(pair, 8);
    SEND(pair, 8);
    LOW(srq);
    EMPTIED(a.async);
}

/* (R116): off, and at the depth. */
TEST(r115_srq_lw_zero_never_fires)
{
    DAT_SRQ_HANDLE srq = srq_of(&a, 2);
    struct pair pair = pair_on(srq);
    int depth = look(srq).max_recv_dtos;

    fill(srq, 0, 2);
    OK(dat_srq_set_lw(srq, 0));
    SEND(pair, 8);
    SEND(pair, 8);
    SILENT(a.async);
    OK(dat_srq_set_lw(srq, depth));
    LOW(srq);
}

/* A refused call leaves value and event as they were (R118, R119). */
TEST(r117_srq_lw_above_depth)
{
    DAT_SRQ_HANDLE srq = srq_of(&a, 4);
    struct pair pair = pair_on(srq);
    int depth = look(srq).max_recv_dtos;

    fill(srq, 0, 2);
    OK(dat_srq_set_lw(srq, 2));
    EXPECT(ARG(2), dat_srq_set_lw(srq, depth + 1));
    EXPECT(ARG(2), dat_srq_set_lw(srq, INT32_MAX));
    EXPECT(ARG(2), dat_srq_set_lw(srq, -1));
    EXPECT(ARG(2), dat_srq_set_lw(srq, INT32_MIN));
    CHECK(look(srq).low_watermark == 2);
    EMPTIED(a.async);
    SEND(pair, 8);
    LOW(srq);
}

/* (R124): neither posting nor reaping fires it. */
TEST(r122_srq_lw_post_does_not_fire)
{
    DAT_SRQ_HANDLE srq = srq_of(&a, 10);
    struct pair pair = pair_on(srq);

    fill(srq, 0, 5);
    SEND(pair, 8);
    SEND(pair, 8);
    OK(dat_srq_set_lw(srq, 3));
    fill(srq, 5, 1);
    TAKEN(a.recv, pair.server, 8);
    TAKEN(a.recv, pair.server, 8);
    fill(srq, 6, 2);
    SILENT(a.async);
}

/* (R125, R227, R260): all three kinds of watermark are said to be there. */
TEST(r125_srq_lw_model_not_supported_never)
{
    DAT_PROVIDER_ATTR attr;

    OK(dat_ia_query(a.ia, NULL, 0, NULL, DAT_PROVIDER_FIELD_ALL, &attr));
    CHECK(attr.srq_watermarks_supported == 0x111);
    OK(dat_srq_set_lw(srq_of(&a, 4), 0));
    OK(dat_ep_set_watermark(plain_ep(&a), 1, 1));
}

int main(int argc, char **argv)
{
    return run_tests(argc, argv);
}
