/* SRQs through libdat2: posting (section E). */
#include "emu.h"
#include "rig.h"

/* Such a buffer takes an empty message and no other. */
TEST(r51_srq_post_zero_segments)
{
    DAT_SRQ_HANDLE srq = srq_of(&a, 4);
    struct pair pair = pair_on(srq);

    OK(dat_srq_post_recv(srq, 0, NULL, as_cookie(9)));
    COUNTS(srq, 1, 1);
    SEND(pair, 0);
    CHECK(TAKEN(a.recv, pair.server, 0).user_cookie.as_64 == 9);
    COUNTS(srq, 0, 0);
    OK(dat_srq_post_recv(srq, 0, NULL, as_cookie(8)));
    OK(send_flagged(pair.client, 1, 0));
    CHECK(DTO(NEXT(a.recv, DAT_DTO_COMPLETION_EVENT)).status == DAT_DTO_ERR_LOCAL_LENGTH);
}

TEST(r52_srq_post_zero_length_segment_ignores_rest)
{
    DAT_SRQ_HANDLE srq = srq_of(&a, 4);
    struct pair pair = pair_on(srq);
    DAT_LMR_TRIPLET iov[3] = {{UINT64_MAX, 0, 0xdeadbeef}, piece(&a, 0, 64), {UINT64_MAX, 0, 0xdeadbeef}};

    strcpy(b.memory + 100 * ROOM, "not much");
    for (int first = 0; first < 2; first++) {
        memset(a.memory, 0, 64);
        OK(dat_srq_post_recv(srq, 2, iov + first, as_cookie(1)));
        SEND(pair, 9);
        TAKEN(a.recv, pair.server, 9);
        CHECK(strcmp(a.memory, "not much") == 0);
    }
}

/* The code names the argument that is wrong, and nothing is posted (R54, R55, R60). */
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
    iov[0].lmr_context = 0;
    EXPECT(ARG(2), dat_srq_post_recv(srq, look(srq).max_recv_iov + 1, iov, as_cookie(1)));
    COUNTS(srq, 0, 0);
}

/* Takes the next message. By a dequeue, if the message is there: then its entry comes back in another
 * way than by a wait. */
static DAT_UINT64 polled(DAT_EVD_HANDLE evd)
{
    DAT_EVENT event;

    if (dat_evd_dequeue(evd, &event) != DAT_SUCCESS)
        event = NEXT(evd, DAT_DTO_COMPLETION_EVENT);
    CHECK(event.event_number == DAT_DTO_COMPLETION_EVENT && DTO(event).status == DAT_DTO_SUCCESS);
    return DTO(event).user_cookie.as_64;
}

/* One segment too many is refused also when all segments are in the LMR of the last post, and
 * entries have come back from messages. The refused posts take no entry. */
TEST(r54_srq_post_too_many_segments)
{
    for (int segments = 1; segments <= 3; segments++) {
        DAT_SRQ_ATTR attr = {4, segments, 0};
        DAT_SRQ_HANDLE srq;
        DAT_LMR_TRIPLET iov[40];
        struct pair pair;
        int most;

        OK(dat_srq_create(a.ia, a.pz, &attr, &srq));
        most = look(srq).max_recv_iov;
        CHECK(most >= segments && most < 40);
        for (int i = 0; i < 40; i++)
            iov[i] = piece(&a, i * 64, 64);
        pair = pair_on(srq);
        for (int i = 0; i < 12; i++) {
            OK(dat_srq_post_recv(srq, most, iov, as_cookie(1)));
            SEND(pair, 8);
            if (i % 2)
                polled(a.recv);
            else
                TAKEN(a.recv, pair.server, 8);
        }
        for (int i = 0; i < 8; i++)
            EXPECT(ARG(2), dat_srq_post_recv(srq, most + 1, iov, as_cookie(2)));
        COUNTS(srq, 0, 0);
        for (int i = 0; i < 4; i++)
            OK(dat_srq_post_recv(srq, most, iov, as_cookie(3)));
        COUNTS(srq, 4, 4);
    }
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

/* The LMR of a segment is of another PZ, lacks the privilege, is freed, or never existed. The post
 * is refused, also if a good segment comes first, and posts nothing (R58 to R60). */
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
    EXPECT(ERROR(DAT_PROTECTION_VIOLATION, DAT_PROTECTION_WRITE), dat_srq_post_recv(srq, 2, iov, as_cookie(1)));
    OK(dat_lmr_create(a.ia, DAT_MEM_TYPE_VIRTUAL, region, MEMORY, a.pz, DAT_MEM_PRIV_LOCAL_READ_FLAG, 0, &readable,
                      &iov[1].lmr_context, NULL, NULL, NULL));
    EXPECT(ERROR(DAT_PRIVILEGES_VIOLATION, DAT_PRIVILEGES_WRITE), dat_srq_post_recv(srq, 2, iov, as_cookie(1)));
    OK(dat_lmr_create(a.ia, DAT_MEM_TYPE_VIRTUAL, region, MEMORY, a.pz, DAT_MEM_PRIV_ALL_FLAG, 0, &gone, &stale, NULL,
                      NULL, NULL));
    OK(dat_lmr_free(gone));
    iov[1].lmr_context = stale;
    EXPECT(ERROR(DAT_PRIVILEGES_VIOLATION, DAT_PRIVILEGES_WRITE), dat_srq_post_recv(srq, 2, iov, as_cookie(1)));
    iov[1].lmr_context = 0xffffffff;
    EXPECT(ERROR(DAT_PRIVILEGES_VIOLATION, DAT_PRIVILEGES_WRITE), dat_srq_post_recv(srq, 2, iov, as_cookie(1)));
    COUNTS(srq, 0, 0);
    /* The first bad segment gives the reason. */
    iov[0] = piece(&a, MEMORY, 8);
    EXPECT(ARG(3), dat_srq_post_recv(srq, 2, iov, as_cookie(1)));
    iov[0] = iov[1];
    iov[1] = piece(&a, MEMORY, 8);
    EXPECT(ERROR(DAT_PRIVILEGES_VIOLATION, DAT_PRIVILEGES_WRITE), dat_srq_post_recv(srq, 2, iov, as_cookie(1)));
    COUNTS(srq, 0, 0);
    iov[0] = piece(&a, 0, 8);
    iov[1] = piece(&a, 8, 8);
    OK(dat_srq_post_recv(srq, 2, iov, as_cookie(1)));
    COUNTS(srq, 1, 1);
}

/* Completions that were not reaped count as well (R62). */
TEST(r61_srq_post_full)
{
    DAT_SRQ_HANDLE srq = srq_of(&a, 4);
    struct pair pair = pair_on(srq);

    fill(srq, 0, 4);
    EXPECT(FULL_SRQ, post(srq, 5, 8));
    for (int i = 0; i < 4; i++)
        SEND(pair, 8);
    COUNTS(srq, 0, 4);
    EXPECT(FULL_SRQ, post(srq, 5, 8));
    for (int n = 1; n <= 4; n++) {
        TAKEN(a.recv, pair.server, 8);
        OK(post(srq, 5, 8));
        EXPECT(FULL_SRQ, post(srq, 6, 8));
        COUNTS(srq, n, 4);
    }
}

/* Cookies have 64 bits, may be zero, and may be equal (R64). */
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

/* Buffers can be posted before there is an EP, and their completion notifies (R65, R67). */
TEST(r67_srq_post_without_any_ep)
{
    DAT_SRQ_HANDLE srq = srq_of(&a, 4);
    struct pair pair;

    OK(post(srq, 3, 8));
    pair = pair_on(srq);
    SEND(pair, 8);
    CHECK(TAKEN(a.recv, pair.server, 8).user_cookie.as_64 == 3);
}

/* The provider advertises that the array belongs to the consumer again when the call returns, and
 * this is true (R268). */
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

enum { POSTERS = 3, POSTS = 400 };

static DAT_SRQ_HANDLE shared;

/* Posts this thread's own buffers, each time that there is room. */
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

/* Several threads post to one SRQ at once, while another reaps and queries, low watermarks fire and
 * connections end. No buffer is lost, none completes twice, and the counts are right at each moment
 * (R38, R46). */
TEST(r71_srq_post_thread_rule)
{
    static unsigned char came[POSTERS * POSTS];
    pthread_t threads[POSTERS];
    struct pair pair, passing[4];

    memset(came, 0, sizeof came);
    shared = srq_of(&a, 24);
    pair = pair_on(shared);
    for (int i = 0; i < 4; i++)
        passing[i] = pair_on(shared);
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
        CHECK(now.available_dto_count >= 0 && now.available_dto_count <= now.outstanding_dto_count);
        CHECK(now.outstanding_dto_count <= now.max_recv_dtos);
        if (i % 64 == 0)
            OK(dat_srq_set_lw(shared, i / 64 % 4 + 1));
        if (i % 256 == 0 && i / 256 < 4)
            OK(dat_ep_free(passing[i / 256].server));
    }
    for (int i = 0; i < POSTERS; i++) {
        void *wrong;

        CHECK(pthread_join(threads[i], &wrong) == 0);
        CHECK(wrong == NULL);
    }
    COUNTS(shared, 0, 0);
    EMPTIED(a.recv);
}

/* The device library refuses a buffer although the SRQ has room: the device has named one place
 * twice, and the library believes it. The buffer counts as not posted. Only the software device can
 * do this, and only the verbs path has this library. */
TEST(srq_post_refused_by_the_library)
{
    const char *path = getenv("DOORBELL_DATAPATH");
    const int depth = a.attr.max_recv_per_srq;
    DAT_LMR_TRIPLET iov = piece(&a, 0, 64);
    DAT_SRQ_HANDLE srq;
    struct pair pair;

    if (emu("count mr") < 0 || !path || strcmp(path, "verbs") != 0)
        return;
    srq = srq_of(&a, depth);
    for (int i = 0; i < depth; i++)
        OK(dat_srq_post_recv(srq, 1, &iov, as_cookie(i)));
    pair = pair_on(srq);
    for (unsigned i = 0; i < 2; i++) {
        SEND(pair, 8);
        CHECK(polled(a.recv) == i);
    }
    /* The third message comes with the place of the first, and completes no buffer. */
    CHECK(emu("fault forge=0x3d00") == 0);
    SEND(pair, 8);
    SILENT(a.recv);
    OK(dat_srq_post_recv(srq, 1, &iov, as_cookie(1)));
    for (int i = 0; i < 3; i++) {
        EXPECT(ERROR(DAT_INSUFFICIENT_RESOURCES, DAT_RESOURCE_MEMORY), dat_srq_post_recv(srq, 1, &iov, as_cookie(1)));
        COUNTS(srq, depth - 1, depth - 1);
    }
}

int main(int argc, char **argv)
{
    /* The threads that post may be late. */
    setenv("DOORBELL_RNR_RETRY", "7", 1);
    setenv("DOORBELL_RNR_TIMER", "16", 1);
    return run_tests(argc, argv);
}
