/* SRQs through libdat2: freeing and queries (sections C and D). */
#include "rig.h"

/* An EP keeps the SRQ in use in every state, until the EP is freed (R25, R170). */
TEST(r24_srq_free_refused_while_ep_attached)
{
    DAT_SRQ_HANDLE srq = srq_of(&a, 4);
    struct pair pair;
    DAT_EP_HANDLE idle = ep_on(&a, srq, a.recv, NULL);

    EXPECT(STATE(DAT_INVALID_STATE_SRQ_IN_USE), dat_srq_free(srq));
    OK(dat_ep_free(idle));
    pair = pair_on(srq);
    EXPECT(STATE(DAT_INVALID_STATE_SRQ_IN_USE), dat_srq_free(srq));
    OK(dat_ep_disconnect(pair.client, DAT_CLOSE_ABRUPT_FLAG));
    ENDS(pair, DAT_CONNECTION_EVENT_DISCONNECTED);
    EXPECT(STATE(DAT_INVALID_STATE_SRQ_IN_USE), dat_srq_free(srq));
    OK(dat_ep_reset(pair.server));
    EXPECT(STATE(DAT_INVALID_STATE_SRQ_IN_USE), dat_srq_free(srq));
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
    /* The loop has a time limit of its own. valgrind runs one thread at a time, and whenever it
     * switches to the other thread, this thread may be inside the call. */
    while (__atomic_load_n(&racing, __ATOMIC_ACQUIRE) && now_ms() < race_ends)
        wrong += dat_srq_free(raced) != STATE(DAT_INVALID_STATE_SRQ_IN_USE);
    return (void *)wrong;
}

/* A refused free has no effect that another thread could see. */
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

/* Buffers that no message has taken do not complete, and their memory is not written, also if the
 * peer sends another message (R29). */
TEST(r26_srq_free_with_posted_buffers)
{
    DAT_SRQ_HANDLE srq = srq_of(&a, 4);
    struct pair pair = pair_on(srq);

    fill(srq, 0, 4);
    memset(a.memory, 0x5A, 4 * ROOM);
    OK(dat_ep_free(pair.server));
    OK(dat_srq_free(srq));
    /* The peer may know already that the connection has ended. */
    if (send_flagged(pair.client, 8, 0) == DAT_SUCCESS)
        CHECK(DTO(NEXT(b.req, DAT_DTO_COMPLETION_EVENT)).status != DAT_DTO_SUCCESS);
    SILENT(a.recv);
    for (int i = 0; i < 4 * ROOM; i++)
        if (a.memory[i] != 0x5A) {
            CHECK(!"memory of a buffer was written to");
            break;
        }
}

/* The EVD serves other EPs afterwards. */
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
    /* The completions may still be in the EVD or not. */
    for (int i = 0; i < 3; i++) {
        DAT_RETURN ret = dat_evd_dequeue(a.recv, &event);

        CHECK(ret == DAT_SUCCESS || DAT_GET_TYPE(ret) == DAT_QUEUE_EMPTY);
    }
    NEXT(b.conn, DAT_CONNECTION_EVENT_DISCONNECTED);
    srq = srq_of(&a, 4);
    pair = pair_on(srq);
    fill(srq, 0, 1);
    SEND(pair, 9);
    TAKEN(a.recv, pair.server, 9);
}

TEST(r30_srq_free_after_lmr_free)
{
    DAT_SRQ_HANDLE srq = srq_of(&a, 4);

    fill(srq, 0, 4);
    OK(dat_lmr_free(a.lmr));
    COUNTS(srq, 4, 4);
    OK(dat_srq_free(srq));
    OK(dat_pz_free(a.pz));
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
        /* From round to round, the free comes at a later moment of the other thread's call. */
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

/* Each single bit of the mask has at least its own field filled in (R45). */
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

/* Each bit outside of the mask is refused. A mask without bits is legal (R34). */
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

/* The example of the manual page (R36 to R42, R46, R48, R73). */
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

/* Also when the EP's requests complete on another EVD than its receives. */
TEST(freed_srqs_leave_the_device)
{
    long before = emu("count srq");

    if (no_software_device("freed_srqs_leave_the_device"))
        return;
    for (int connected = 0; connected < 2; connected++) {
        DAT_SRQ_HANDLE srq = srq_of(&a, 4);
        DAT_EP_HANDLE ep = ep_on(&a, srq, a.recv, NULL);

        CHECK(emu("count srq") == before + 1);
        if (connected)
            joined(ep, plain_ep(&b));
        OK(dat_ep_free(ep));
        OK(dat_srq_free(srq));
        CHECK(emu("count srq") == before);
    }
}

int main(int argc, char **argv)
{
    return run_tests(argc, argv);
}
