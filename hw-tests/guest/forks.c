/* Threads use an open IA, are refused, and write to the log, while another forks children that open
 * the device. No child waits for a lock that a thread of the parent held.
 * They do not open IAs meanwhile: that takes locks of libdat2, libibverbs and librdmacm. */
#include "guest.h"

#define THREADS 2
#define CHILDREN 20

static char *name, *nothing;
static struct side side;
static _Atomic int over;

/* An LMR that no memory can have: the provider writes a line to its log. */
static void register_too_much(struct side *s)
{
    DAT_REGION_DESCRIPTION region;
    DAT_LMR_HANDLE lmr;
    DAT_LMR_CONTEXT context;

    memset(&region, 0, sizeof region);
    region.for_va = s->memory;
    CHECK(dat_lmr_create(s->ia, DAT_MEM_TYPE_VIRTUAL, region, 1ull << 40, s->pz, DAT_MEM_PRIV_ALL_FLAG, VA_TYPE &lmr,
                         &context, NULL, NULL, NULL) != DAT_SUCCESS);
}

static void use(struct side *s)
{
    DAT_EVD_HANDLE evd;
    DAT_EP_HANDLE ep;

    register_too_much(s);
    OK(dat_evd_create(s->ia, 8, DAT_HANDLE_NULL, DAT_EVD_DTO_FLAG, &evd));
    OK(dat_ep_create(s->ia, s->pz, evd, evd, s->conn, NULL, &ep));
    OK(dat_ep_free(ep));
    OK(dat_evd_free(evd));
}

static void open_and_use(void)
{
    struct side own;

    be_refused(nothing);
    side_open(&own, name);
    use(&own);
    OK(dat_ia_close(own.ia, DAT_CLOSE_ABRUPT_FLAG));
    free(own.memory);
}

static void *go_on(void *unused)
{
    while (!over)
        use(&side);
    return unused;
}

int main(int argc, char **argv)
{
    pthread_t threads[THREADS];

    (void)argc;
    alarm(PATIENCE);
    name = argv[1];
    nothing = argv[2];
    side_open(&side, name);
    for (int n = 0; n < THREADS; n++)
        CHECK(pthread_create(&threads[n], NULL, go_on, NULL) == 0);
    for (int n = 0; n < CHILDREN; n++) {
        pid_t child = fork();

        if (child == 0) {
            failures = checks = 0;
            alarm(PATIENCE / 2);
            open_and_use();
            _exit(failures != 0);
        }
        expect_end(child);
    }
    over = 1;
    for (int n = 0; n < THREADS; n++)
        CHECK(pthread_join(threads[n], NULL) == 0);
    return finish();
}
