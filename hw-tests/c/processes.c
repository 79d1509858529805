/* The library in a process: loading and unloading it, and fork. Nothing is left behind. */
#include "rig.h"
#include <dat2/dat_ib_extensions.h>
#include <dat2/dat_registry.h>
#include <sys/wait.h>

/* Exported by libdat2, but not declared in any header that it installs. */
extern DAT_RETURN dats_get_ia_handle(DAT_IA_HANDLE handle, DAT_IA_HANDLE *result);

/* The path of the library, as dat.conf has it. */
static void library(char *path, size_t size)
{
    const char *conf = getenv("DAT_OVERRIDE");
    FILE *file = fopen(conf ? conf : "/etc/dat.conf", "r");
    char line[4096], name[256], found[1024];

    path[0] = 0;
    while (file && fgets(line, sizeof line, file))
        if (sscanf(line, "%255s %*s %*s %*s %1023s", name, found) == 2 && strcmp(name, ia_names[0]) == 0)
            snprintf(path, size, "%s", found);
    if (file)
        fclose(file);
    CHECK(path[0] != 0);
}

static long resident_kib(void)
{
    char line[256];
    long kib = 0;
    FILE *file = fopen("/proc/self/status", "r");

    while (fgets(line, sizeof line, file))
        if (sscanf(line, "VmRSS: %ld kB", &kib) == 1)
            break;
    fclose(file);
    return kib;
}

/* Each IA is the first that is opened and the last that is closed, so libdat2 loads the library,
 * initialises it, ends it, and unloads it. */
TEST(loaded_and_unloaded_a_thousand_times)
{
    /* The test machine is emulated, and a thousand times would take long there. */
    int times = emu("count mr") >= 0 ? 1000 : 100;
    struct holdings before;
    long kib = 0;

    side_close(&a);
    side_close(&b);
    before = holdings_at_rest();
    for (int i = 0; i < times; i++) {
        DAT_EVD_HANDLE async = DAT_HANDLE_NULL;
        DAT_IA_HANDLE ia = DAT_HANDLE_NULL;

        OK(dat_ia_open(ia_names[i % 2], 8, &async, &ia));
        OK(dat_ia_close(ia, i % 3 ? DAT_CLOSE_GRACEFUL_FLAG : DAT_CLOSE_ABRUPT_FLAG));
        if (i == times / 2)
            kib = resident_kib();
    }
    check_holdings(before);
    /* A handle leaves a few words for ever, an IA leaves nothing. */
    if (resident_kib() - kib > 4096)
        printf("the second half of the IAs left %ld KiB behind\n", resident_kib() - kib);
    CHECK(resident_kib() - kib <= 4096);
}

/* The library is opened by dlopen. Now and then, IAs are opened as well. */
TEST(library_opened_and_closed_a_thousand_times)
{
    char path[1024];

    library(path, sizeof path);
    for (int i = 0; i < 1000; i++) {
        void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);

        CHECK(handle != NULL);
        CHECK(dlsym(handle, "dat_provider_init") != NULL && dlsym(handle, "dat_provider_fini") != NULL);
        if (i % 100 == 0) {
            side_close(&a);
            side_open(&a, ia_names[0]);
        }
        CHECK(dlclose(handle) == 0);
    }
}

#define STALE(call)                                                                                              \
    do {                                                                                                         \
        DAT_RETURN stale_ = (call);                                                                              \
        DAT_RETURN type_ = stale_ & 0x3FFF0000;                                                                  \
        if (type_ != DAT_INVALID_HANDLE && type_ != DAT_INVALID_STATE) {                                         \
            printf("in a child %s gave %#010x\n", #call, stale_);                                                \
            fflush(stdout);                                                                                      \
            _exit(1);                                                                                            \
        }                                                                                                        \
    } while (0)

typedef DAT_RETURN (*any_slot)(DAT_UINT64, void *, void *, void *, void *, void *, void *, void *, void *, void *, void *, void *);

/* Every slot of the table except the one that opens IAs, with every handle. All other arguments
 * point to zeroes. */
static void every_call_is_refused(DAT_HANDLE *handles, int count, DAT_IA_HANDLE raw_ia)
{
    static DAT_UINT64 zeroes[1024];
    const DAT_PROVIDER *provider = *(const DAT_PROVIDER **)handles[0];
    const any_slot *slots = (const any_slot *)&provider->ia_open_func;
    int last = (int)((const any_slot *)&provider->handle_extendedop_func - slots);

    for (int slot = 1; slot < last; slot++)
        for (int i = 0; i <= count; i++) {
            DAT_UINT64 handle = i < count ? (DAT_UINT64)(uintptr_t)handles[i] : (DAT_UINT64)raw_ia;
            DAT_RETURN code = slots[slot](handle, zeroes, zeroes, zeroes, zeroes, zeroes, zeroes, zeroes, zeroes, zeroes,
                                          zeroes, zeroes);

            if ((code & 0x3FFF0000) != DAT_INVALID_HANDLE && (code & 0x3FFF0000) != DAT_INVALID_STATE) {
                printf("in a child slot %d gave %#010x for handle %d\n", slot, code, i);
                fflush(stdout);
                _exit(1);
            }
        }
}

/* The same through libdat2, as programs call it. */
static void what_programs_call_is_refused(struct pair *pair, DAT_SRQ_HANDLE srq)
{
    DAT_LMR_TRIPLET iov = piece(&a, 0, 8);
    DAT_DTO_COOKIE cookie = {.as_64 = 1};
    DAT_EVENT event;
    DAT_COUNT more;
    DAT_PZ_HANDLE pz;
    DAT_RMR_TRIPLET remote;

    memset(&remote, 0, sizeof remote);
    STALE(dat_srq_post_recv(srq, 1, &iov, cookie));
    STALE(dat_ep_post_send(pair->server, 1, &iov, cookie, 0));
    STALE(dat_ib_post_fetch_and_add(pair->server, (DAT_UINT64)1, &iov, cookie, &remote, 0));
    STALE(dat_evd_dequeue(a.recv, &event));
    STALE(dat_evd_wait(a.recv, DAT_TIMEOUT_INFINITE, 1, &event, &more));
    STALE(dat_pz_create(a.ia, &pz));
    STALE(dat_ep_disconnect(pair->server, DAT_CLOSE_ABRUPT_FLAG));
    STALE(dat_ep_disconnect(pair->client, DAT_CLOSE_GRACEFUL_FLAG));
}

/* An IA that the child opens works. */
static void own_ia_works(void)
{
    struct side own;

    side_open(&own, ia_names[0]);
    OK(dat_srq_free(srq_of(&own, 4)));
    OK(dat_ep_free(plain_ep(&own)));
    side_close(&own);
}

/* What a child does with the objects of its parent. */
enum child { EXITS, LEAVES, CLOSES, FREES, CALLS, OPENS, CHILDREN };

/* One object of each kind. */
#define INHERITED 11
static DAT_HANDLE inherited[INHERITED];
static DAT_IA_HANDLE raw_ia;

static int child_of(enum child how, struct pair *pair, DAT_SRQ_HANDLE srq)
{
    switch (how) {
    case EXITS:
        exit(0);
    case LEAVES:
        _exit(0);
    case CLOSES:
        STALE(dat_ia_close(a.ia, DAT_CLOSE_ABRUPT_FLAG));
        STALE(dat_ia_close(b.ia, DAT_CLOSE_ABRUPT_FLAG));
        exit(0);
    case CALLS:
        what_programs_call_is_refused(pair, srq);
        every_call_is_refused(inherited, INHERITED, raw_ia);
        exit(0);
    case OPENS:
        own_ia_works();
        exit(failures != 0);
    default:
        STALE(dat_ep_free(pair->server));
        STALE(dat_srq_free(srq));
        STALE(dat_lmr_free(a.lmr));
        exit(0);
    }
}

/* Whatever the child does, the parent's connection keeps working. In the child, the parent's
 * objects answer as if they had been freed. */
TEST(forked_child_does_not_disturb_its_parent)
{
    DAT_SRQ_HANDLE srq = srq_of(&a, 8);
    struct pair pair = pair_on(srq);
    DAT_OS_WAIT_PROXY_AGENT none = DAT_OS_WAIT_PROXY_AGENT_NULL;
    DAT_HANDLE mine[INHERITED] = {srq, pair.server, pair.client, a.pz, a.lmr, a.recv, a.req, a.cr};
    DAT_EP_HANDLE reserved = plain_ep(&a);

    OK(dats_get_ia_handle(a.ia, &raw_ia));
    OK(dat_cno_create(a.ia, none, (DAT_CNO_HANDLE *)&mine[8]));
    OK(dat_psp_create(a.ia, next_qual(), a.cr, DAT_PSP_CONSUMER_FLAG, (DAT_PSP_HANDLE *)&mine[9]));
    OK(dat_rsp_create(a.ia, next_qual(), reserved, a.cr, (DAT_RSP_HANDLE *)&mine[10]));
    memcpy(inherited, mine, sizeof inherited);
    for (enum child how = 0; how < CHILDREN; how++) {
        long long end = now_ms() + LONG_TIME / 1000;
        int status = -1;
        pid_t child;

        fill(srq, 0, 2);
        SEND(pair, 8);
        fflush(stdout);
        child = fork();
        CHECK(child >= 0);
        if (child == 0)
            child_of(how, &pair, srq);
        SEND(pair, 9);
        while (waitpid(child, &status, WNOHANG) == 0 && now_ms() < end)
            poll(NULL, 0, 2);
        if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
            printf("child %d: status %#x\n", how, status);
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
        if (status == -1)
            kill(child, SIGKILL);
        TAKEN(a.recv, pair.server, 8);
        TAKEN(a.recv, pair.server, 9);
        fill(srq, 0, 1);
        SEND(pair, 10);
        TAKEN(a.recv, pair.server, 10);
        CHECK(connected(pair.server) && connected(pair.client));
        COUNTS(srq, 0, 0);
    }
    /* The parent can create new objects. */
    joined(ep_on(&a, srq, a.recv, NULL), plain_ep(&b));
}

int main(int argc, char **argv)
{
    return run_tests(argc, argv);
}
