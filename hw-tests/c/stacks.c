/* How much stack the calls use. Programs make them in threads with small stacks: dapltest's have
 * 64 KiB. Each group of calls runs in a thread whose stack was filled with a pattern before. */
#include "rig.h"
#include <sys/mman.h>

#define STACK ((size_t)1 << 20)
#define PATTERN UINT64_C(0xA5A55A5AA5A55A5A)
/* For a build without optimisation, whose frames are large: what dapltest's threads have beside their
 * thread-local storage. An optimised build was seen to use up to 8 KiB for posts, dequeues and waits,
 * and 22 KiB to create objects. */
#define MOST ((size_t)48 << 10)

static DAT_SRQ_HANDLE srq;
static struct pair pair;
static DAT_EP_HANDLE plain;

static void nothing(void)
{
}

static void create(void)
{
    DAT_EVD_HANDLE evd;
    DAT_PZ_HANDLE pz;
    DAT_EP_HANDLE ep;

    OK(dat_pz_create(a.ia, &pz));
    OK(dat_evd_create(a.ia, 8, DAT_HANDLE_NULL, DAT_EVD_DTO_FLAG, &evd));
    ep = plain_ep(&a);
    OK(dat_ep_free(ep));
    OK(dat_evd_free(evd));
    OK(dat_pz_free(pz));
    srq = srq_of(&a, 16);
}

static void connect_eps(void)
{
    pair = pair_on(srq);
    plain = plain_ep(&a);
}

static DAT_RETURN post_list(unsigned segments)
{
    DAT_LMR_TRIPLET iov[2] = {piece(&a, 0, 8), piece(&a, 8, 8)};

    return dat_srq_post_recv(srq, (DAT_COUNT)segments, iov, as_cookie(1));
}

static void post_to_srq(void)
{
    DAT_LMR_TRIPLET stale = piece(&a, 0, 8);

    stale.lmr_context += 1000;
    OK(post(srq, 0, ROOM));
    OK(post(srq, 1, ROOM));
    OK(post_list(2));
    OK(post_list(0));
    CHECK(dat_srq_post_recv(srq, 1, &stale, as_cookie(2)) != DAT_SUCCESS);
    CHECK(dat_srq_post_recv(srq, -1, &stale, as_cookie(2)) != DAT_SUCCESS);
}

static void post_to_ep(void)
{
    DAT_LMR_TRIPLET iov[2] = {piece(&b, 0, 8), piece(&b, 8, 8)}, own[2] = {piece(&a, 0, 8), piece(&a, 8, 8)};
    DAT_LMR_TRIPLET stale = iov[0];
    DAT_RMR_TRIPLET to = {.virtual_address = (DAT_VADDR)(uintptr_t)a.memory, .segment_length = 64, .rmr_context = a.rmr_context};

    stale.lmr_context += 1000;
    CHECK(dat_ep_post_send(pair.client, 1, &stale, as_cookie(1), 0) != DAT_SUCCESS);
    for (int n = 1; n <= 2; n++) {
        OK(dat_ep_post_rdma_write(pair.client, n, iov, as_cookie(1), &to, 0));
        REQUEST_ENDS(pair, DAT_DTO_SUCCESS);
        OK(dat_ep_post_recv(pair.client, n, iov, as_cookie(1), 0));
        OK(dat_ep_post_recv(plain, n, own, as_cookie(1), 0));
    }
    SEND(pair, 64);
    SEND(pair, 0);
    OK(dat_ep_post_send(pair.client, 2, iov, as_cookie(77), DAT_COMPLETION_SOLICITED_WAIT_FLAG));
    REQUEST_ENDS(pair, DAT_DTO_SUCCESS);
}

static void take(void)
{
    DAT_EVENT event;

    for (int n = 0; n < 2; n++)
        OK(dat_evd_dequeue(a.recv, &event));
    NEXT(a.recv, DAT_DTO_COMPLETION_EVENT);
    CHECK(DAT_GET_TYPE(dat_evd_dequeue(a.recv, &event)) == DAT_QUEUE_EMPTY);
    SILENT(a.recv);
}

static void end(void)
{
    OK(dat_ep_disconnect(pair.client, DAT_CLOSE_ABRUPT_FLAG));
    ENDS(pair, DAT_CONNECTION_EVENT_DISCONNECTED);
    OK(dat_ep_free(plain));
    OK(dat_ep_free(pair.server));
    OK(dat_ep_free(pair.client));
    OK(dat_srq_free(srq));
}

static void *run_it(void *what)
{
    void (*calls)(void);

    memcpy(&calls, &what, sizeof calls);
    calls();
    return NULL;
}

/* The bytes of stack below the start of a thread that makes these calls. */
static size_t used(void (*calls)(void))
{
    uint64_t *stack = mmap(NULL, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    pthread_attr_t attr;
    pthread_t thread;
    void *what;
    size_t at = 0;

    CHECK(stack != MAP_FAILED);
    for (size_t i = 0; i < STACK / sizeof *stack; i++)
        stack[i] = PATTERN;
    pthread_attr_init(&attr);
    CHECK(pthread_attr_setstack(&attr, stack, STACK) == 0);
    memcpy(&what, &calls, sizeof what);
    CHECK(pthread_create(&thread, &attr, run_it, what) == 0);
    CHECK(pthread_join(thread, NULL) == 0);
    pthread_attr_destroy(&attr);
    while (stack[at] == PATTERN)
        at++;
    munmap(stack, STACK);
    return STACK - at * sizeof *stack;
}

static void within(const char *calls_are, void (*calls)(void))
{
    size_t bytes = used(calls) - used(nothing);

    printf("%s: %zu bytes of stack\n", calls_are, bytes);
    CHECK(bytes <= MOST);
}

TEST(calls_need_little_stack)
{
    within("creating and freeing objects", create);
    within("connecting", connect_eps);
    within("posts to an SRQ", post_to_srq);
    within("posts to an EP", post_to_ep);
    within("dequeues and waits", take);
    within("disconnecting, freeing EPs and the SRQ", end);
}

int main(int argc, char **argv)
{
    return run_tests(argc, argv);
}
