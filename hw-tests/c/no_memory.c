/* No memory: each call that creates something is made again and again, each time with the next of
 * its allocations failing, in the provider also with all later ones, until none fails any more. The call answers INSUFFICIENT_RESOURCES,
 * leaves nothing behind (descriptors, threads, objects of the device), and works when it is made
 * again. The failing allocations are those of the calling thread, made in one of two places:
 *
 * IN_PROVIDER   libdoorbell.so, blocks of LEAST bytes and more. Smaller ones are small allocations
 *                 of Rust code, which end the process: provider/src/memory.rs lists them.
 * IN_RDMA_CORE  libibverbs, libmlx5 and librdmacm, blocks of any size.
 *
 * A call may also do without the memory and succeed. The table of calls says which ones cannot. */
#include "rig.h"
#include <errno.h>
#include <link.h>

#define LEAST 2560

/* Exported by libdat2, but not declared in any header that it installs. */
extern DAT_RETURN dats_get_ia_handle(DAT_IA_HANDLE handle, DAT_IA_HANDLE *result);

extern void *__libc_malloc(size_t size);
extern void *__libc_calloc(size_t n, size_t size);
extern void *__libc_realloc(void *at, size_t size);
extern void *__libc_memalign(size_t alignment, size_t size);

enum place { NOWHERE, IN_PROVIDER, IN_RDMA_CORE };

/* The address range of the code of a place. */
static struct {
    uintptr_t begin, end;
    enum place place;
} ranges[8];
static unsigned ranges_used;

/* The plan of this thread: after `skip` more allocations, the next one in this place fails. */
static __thread enum place failing_in;
static __thread unsigned skip;
static __thread int then_all;
static __thread int has_failed;
/* No thread can be created in this process. */
static _Atomic int no_threads;

static enum place place_of(const void *caller)
{
    for (unsigned i = 0; i < ranges_used; i++)
        if ((uintptr_t)caller >= ranges[i].begin && (uintptr_t)caller < ranges[i].end)
            return ranges[i].place;
    return NOWHERE;
}

static int fails(size_t size, const void *caller)
{
    if (failing_in == NOWHERE || place_of(caller) != failing_in || (failing_in == IN_PROVIDER && size < LEAST))
        return 0;
    if (skip-- > 0)
        return 0;
    skip = 0;
    if (!then_all)
        failing_in = NOWHERE;
    has_failed = 1;
    errno = ENOMEM;
    return 1;
}

#define CALLER __builtin_return_address(0)

void *malloc(size_t size)
{
    return fails(size, CALLER) ? NULL : __libc_malloc(size);
}

void *calloc(size_t n, size_t size)
{
    return fails(n * size, CALLER) ? NULL : __libc_calloc(n, size);
}

void *realloc(void *at, size_t size)
{
    return fails(size, CALLER) ? NULL : __libc_realloc(at, size);
}

void *memalign(size_t alignment, size_t size)
{
    return fails(size, CALLER) ? NULL : __libc_memalign(alignment, size);
}

void *aligned_alloc(size_t alignment, size_t size)
{
    return fails(size, CALLER) ? NULL : __libc_memalign(alignment, size);
}

int posix_memalign(void **to, size_t alignment, size_t size)
{
    void *at = fails(size, CALLER) ? NULL : __libc_memalign(alignment, size);

    if (!at)
        return ENOMEM;
    *to = at;
    return 0;
}

int pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*run)(void *), void *data)
{
    static int (*next)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);

    if (no_threads)
        return EAGAIN;
    if (!next)
        next = (int (*)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *))dlsym(RTLD_NEXT, "pthread_create");
    return next(thread, attr, run, data);
}

static int note_library(struct dl_phdr_info *info, size_t size, void *unused)
{
    static const struct {
        const char *name;
        enum place place;
    } libraries[] = {{"/libdoorbell", IN_PROVIDER}, {"/libibverbs.so", IN_RDMA_CORE}, {"/libmlx5.so", IN_RDMA_CORE},
                     {"/libmlx5-", IN_RDMA_CORE},   {"/librdmacm.so", IN_RDMA_CORE},  {"/librxe", IN_RDMA_CORE}};

    (void)size;
    (void)unused;
    for (unsigned i = 0; i < sizeof libraries / sizeof *libraries; i++) {
        uintptr_t begin = UINTPTR_MAX, end = 0;

        if (!strstr(info->dlpi_name, libraries[i].name))
            continue;
        for (int k = 0; k < info->dlpi_phnum; k++) {
            uintptr_t at = info->dlpi_addr + info->dlpi_phdr[k].p_vaddr;

            if (info->dlpi_phdr[k].p_type != PT_LOAD)
                continue;
            begin = at < begin ? at : begin;
            end = at + info->dlpi_phdr[k].p_memsz > end ? at + info->dlpi_phdr[k].p_memsz : end;
        }
        if (ranges_used < sizeof ranges / sizeof *ranges) {
            ranges[ranges_used].begin = begin;
            ranges[ranges_used].end = end;
            ranges[ranges_used++].place = libraries[i].place;
        }
    }
    return 0;
}

/* The libraries are loaded when the first IA is opened. */
static void note_libraries(void)
{
    unsigned found[3] = {0};

    if (ranges_used == 0)
        dl_iterate_phdr(note_library, NULL);
    for (unsigned i = 0; i < ranges_used; i++)
        found[ranges[i].place]++;
    CHECK(found[IN_PROVIDER] == 1 && found[IN_RDMA_CORE] >= 2);
}

/* Objects that are made for each attempt. */
static DAT_IA_HANDLE new_ia;
static DAT_HANDLE made;
static DAT_EP_HANDLE server, client;
static DAT_CR_HANDLE asked;
static DAT_PSP_HANDLE listener;
static DAT_SRQ_HANDLE queue;
static DAT_CONN_QUAL qual;

struct call {
    const char *name;
    void (*prepare)(void);
    DAT_RETURN (*make)(void);
    void (*undo)(void);
    /* Whether the provider and rdma-core make allocations without which the call cannot succeed. */
    enum { NO, YES, DEPENDS_ON_DATA_PATH } provider_needs, rdma_core_needs;
};

static void nothing(void)
{
}

static DAT_RETURN open_ia(void)
{
    DAT_EVD_HANDLE async = DAT_HANDLE_NULL;

    return dat_ia_open(ia_names[0], 8, &async, &new_ia);
}

static void close_ia(void)
{
    OK(dat_ia_close(new_ia, DAT_CLOSE_ABRUPT_FLAG));
}

/* An IA keeps the protection domain of a freed PZ for the next one, so a second PZ needs a new one. */
static DAT_PZ_HANDLE first_pz;

static void make_first_pz(void)
{
    OK(dat_pz_create(a.ia, &first_pz));
}

static DAT_RETURN make_pz(void)
{
    return dat_pz_create(a.ia, &made);
}

static void free_pz(void)
{
    OK(dat_pz_free(made));
    OK(dat_pz_free(first_pz));
}

static DAT_RETURN make_lmr(void)
{
    DAT_REGION_DESCRIPTION region = {.for_va = a.memory};
    DAT_LMR_CONTEXT context;

    return dat_lmr_create(a.ia, DAT_MEM_TYPE_VIRTUAL, region, 4096, a.pz, DAT_MEM_PRIV_ALL_FLAG, DAT_VA_TYPE_VA, &made,
                          &context, NULL, NULL, NULL);
}

static void free_lmr(void)
{
    OK(dat_lmr_free(made));
}

static DAT_RETURN make_dto_evd(void)
{
    return dat_evd_create(a.ia, 500, DAT_HANDLE_NULL, DAT_EVD_DTO_FLAG, &made);
}

static DAT_RETURN make_connection_evd(void)
{
    return dat_evd_create(a.ia, 500, DAT_HANDLE_NULL, DAT_EVD_CONNECTION_FLAG, &made);
}

static void free_evd(void)
{
    OK(dat_evd_free(made));
}

static void prepare_short_evd(void)
{
    OK(dat_evd_create(a.ia, 8, DAT_HANDLE_NULL, DAT_EVD_DTO_FLAG, &made));
}

static DAT_RETURN resize_evd(void)
{
    return dat_evd_resize(made, 2000);
}

static DAT_RETURN make_cno(void)
{
    return dat_cno_create(a.ia, DAT_OS_WAIT_PROXY_AGENT_NULL, &made);
}

static void free_cno(void)
{
    OK(dat_cno_free(made));
}

static DAT_RETURN make_srq(void)
{
    DAT_SRQ_ATTR attr = {400, 2, DAT_SRQ_LW_DEFAULT};

    return dat_srq_create(a.ia, a.pz, &attr, &made);
}

static void free_srq(void)
{
    OK(post(made, 1, 64));
    COUNTS(made, 1, 1);
    OK(dat_srq_free(made));
}

static void prepare_resize(void)
{
    OK(make_srq());
}

static DAT_RETURN resize_srq(void)
{
    return dat_srq_resize(made, 3000);
}

static void undo_resize(void)
{
    CHECK(look(made).max_recv_dtos == 3000);
    OK(dat_srq_free(made));
}

static DAT_RETURN make_ep(void)
{
    DAT_EP_ATTR attr = ep_attr();

    attr.max_recv_dtos = attr.max_request_dtos = 200;
    return dat_ep_create(a.ia, a.pz, a.recv, a.req, a.conn, &attr, &made);
}

static void free_ep(void)
{
    OK(dat_ep_free(made));
}

static void prepare_srq(void)
{
    queue = srq_of(&a, 400);
}

static DAT_RETURN make_ep_with_srq(void)
{
    DAT_EP_ATTR attr = ep_attr();

    attr.max_request_dtos = 200;
    return dat_ep_create_with_srq(a.ia, a.pz, a.recv, a.req, a.conn, queue, &attr, &made);
}

static void free_ep_and_srq(void)
{
    OK(dat_ep_free(made));
    OK(dat_srq_free(queue));
}

/* Both ends get their event before they are freed, because the next connection uses the same
 * EVDs. */
static void end_connection(void)
{
    OK(dat_ep_disconnect(client, DAT_CLOSE_ABRUPT_FLAG));
    NEXT(b.conn, DAT_CONNECTION_EVENT_DISCONNECTED);
    NEXT(a.conn, DAT_CONNECTION_EVENT_DISCONNECTED);
}

/* An EP with a receive, and another EVD for it. */
static void prepare_modify(void)
{
    OK(make_ep());
    server = made;
    receives(server, 9, 1);
    OK(make_dto_evd());
}

static DAT_RETURN modify_ep(void)
{
    DAT_EP_PARAM param = {.recv_evd_handle = made};

    return dat_ep_modify(server, DAT_EP_FIELD_RECV_EVD_HANDLE, &param);
}

/* The end of a connection may hold a freed EP's QP, and with it the EVD's CQ, for half a second. An
 * EVD that is freed before leaves its completion channel to the QP, and the next one opens another. */
static void until_no_qps(void)
{
    long long end = now_ms() + LONG_TIME / 1000;

    while (emu("count qp") > 0 && now_ms() < end)
        poll(NULL, 0, 1);
    CHECK(emu("count qp") <= 0);
}

static void undo_modify(void)
{
    client = plain_ep(&b);
    joined(server, client);
    OK(send_flagged(client, 8, DAT_COMPLETION_SUPPRESS_FLAG));
    CHECK(TAKEN(made, server, 8).user_cookie.as_64 == 9);
    end_connection();
    OK(dat_ep_free(client));
    OK(dat_ep_free(server));
    until_no_qps();
    OK(dat_evd_free(made));
}

static void prepare_rsp(void)
{
    server = plain_ep(&a);
    qual = next_qual();
}

static DAT_RETURN make_rsp(void)
{
    return dat_rsp_create(a.ia, qual, server, a.cr, &made);
}

static void free_rsp(void)
{
    OK(dat_rsp_free(made));
    OK(dat_ep_free(server));
}

static DAT_RETURN make_csp(void)
{
    DAT_COMM comm = {a.attr.ia_address_ptr->sa_family, SOCK_STREAM, 0};
    struct sockaddr_storage at = {0};
    DAT_IA_HANDLE raw;

    OK(dats_get_ia_handle(a.ia, &raw));
    memcpy(&at, a.attr.ia_address_ptr,
           comm.domain == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6));
    return TABLE(a.pz)->csp_create_func(raw, &comm, (struct sockaddr *)&at, a.cr, &made);
}

static void free_csp(void)
{
    OK(TABLE(made)->csp_free_func(made));
}

static DAT_RETURN make_psp(void)
{
    return dat_psp_create_any(a.ia, &qual, a.cr, DAT_PSP_CONSUMER_FLAG, &made);
}

static void free_psp(void)
{
    OK(dat_psp_free(made));
}

static DAT_RETURN make_rmr(void)
{
    return dat_rmr_create(a.pz, &made);
}

static void free_rmr(void)
{
    OK(dat_rmr_free(made));
}

/* Makes both ends, not connected, and a PSP. */
static void prepare_connect(void)
{
    server = plain_ep(&a);
    client = plain_ep(&b);
    OK(dat_psp_create_any(a.ia, &qual, a.cr, DAT_PSP_CONSUMER_FLAG, &listener));
}

static DAT_RETURN connect_client(void)
{
    return dat_ep_connect(client, a.attr.ia_address_ptr, qual, LONG_TIME, 5, "hello", DAT_QOS_BEST_EFFORT,
                          DAT_CONNECT_DEFAULT_FLAG);
}

static void undo_both_ends(void)
{
    OK(dat_ep_free(client));
    OK(dat_ep_free(server));
    OK(dat_psp_free(listener));
}

static void undo_connect(void)
{
    DAT_EVENT event = NEXT(a.cr, DAT_CONNECTION_REQUEST_EVENT);

    OK(dat_cr_accept(event.event_data.cr_arrival_event_data.cr_handle, server, 2, "hi"));
    both_established(&a, server, &b, client, "hi");
    end_connection();
    undo_both_ends();
}

static void prepare_accept(void)
{
    prepare_connect();
    asked = request(&a, client, qual);
}

static DAT_RETURN accept_client(void)
{
    return dat_cr_accept(asked, server, 2, "hi");
}

static void undo_accept(void)
{
    both_established(&a, server, &b, client, "hi");
    end_connection();
    undo_both_ends();
}

/* Whether the call may answer this without memory. If libibverbs has no memory to read about a
 * device, ibv_get_device_list leaves the device out without an error: the call finds no such
 * device. */
static int is_for_no_memory(const struct call *call, enum place place, DAT_RETURN ret)
{
    if (call->make == open_ia && place == IN_RDMA_CORE && DAT_GET_TYPE(ret) == DAT_PROVIDER_NOT_FOUND)
        return 1;
    return DAT_GET_TYPE(ret) == DAT_INSUFFICIENT_RESOURCES;
}

/* Nothing is left of the attempt. An ended connection may hold its QP for a moment longer, so there
 * may be less than before. */
static void nothing_more_than(struct holdings before)
{
    long long end = now_ms() + LONG_TIME / 1000;
    struct holdings h;
    int more;

    do {
        h = holdings();
        more = 0;
        for (int i = 0; i < HELD; i++)
            more |= h.n[i] > before.n[i];
    } while (more && now_ms() < end && poll(NULL, 0, 1) == 0);
    if (more)
        check_holdings(before);
}

/* Makes the call once for each of its allocations in this place, which fails then, alone or with all
 * later ones. */
static void with_each_failure(const struct call *call, enum place place, int needs, int all_later)
{
    unsigned refused = 0, failures_before = failures, n;

    note_libraries();
    /* One run without a failure, because libraries keep some memory and descriptors after their
     * first use. */
    call->prepare();
    OK(call->make());
    call->undo();
    for (n = 0;; n++) {
        struct holdings at_first = holdings(), before;
        unsigned failures_so_far = failures;
        DAT_RETURN ret;
        int failed;

        call->prepare();
        before = holdings();
        has_failed = 0;
        skip = n;
        then_all = all_later;
        failing_in = place;
        ret = call->make();
        failing_in = NOWHERE;
        failed = has_failed;
        if (ret != DAT_SUCCESS) {
            if (!failed || !is_for_no_memory(call, place, ret))
                printf("%s, allocation %u in place %d: 0x%x\n", call->name, n, place, ret);
            CHECK(failed);
            CHECK(is_for_no_memory(call, place, ret));
            nothing_more_than(before);
            refused++;
            OK(call->make());
        }
        call->undo();
        nothing_more_than(at_first);
        if (failures > failures_so_far)
            printf("%s, allocation %u in place %d, answer 0x%x: failed\n", call->name, n, place, ret);
        if (!failed || failures > failures_before + 5)
            break;
    }
    printf("%s: %u allocations, %u of them needed\n", call->name, n, refused);
    CHECK(needs == DEPENDS_ON_DATA_PATH || (refused > 0) == (needs == YES));
}

static const struct call calls[] = {
    {"dat_ia_open", nothing, open_ia, close_ia, YES, YES},
    {"dat_pz_create", make_first_pz, make_pz, free_pz, YES, YES},
    {"dat_lmr_create", nothing, make_lmr, free_lmr, YES, YES},
    {"dat_evd_create for completions", nothing, make_dto_evd, free_evd, YES, YES},
    {"dat_evd_create for connections", nothing, make_connection_evd, free_evd, YES, NO},
    {"dat_evd_resize", prepare_short_evd, resize_evd, free_evd, YES, DEPENDS_ON_DATA_PATH},
    {"dat_cno_create", nothing, make_cno, free_cno, YES, NO},
    {"dat_srq_create", nothing, make_srq, free_srq, YES, YES},
    {"dat_srq_resize", prepare_resize, resize_srq, undo_resize, DEPENDS_ON_DATA_PATH, DEPENDS_ON_DATA_PATH},
    {"dat_ep_create", nothing, make_ep, free_ep, YES, YES},
    {"dat_ep_create_with_srq", prepare_srq, make_ep_with_srq, free_ep_and_srq, YES, YES},
    {"dat_ep_modify", prepare_modify, modify_ep, undo_modify, YES, YES},
    {"dat_rsp_create", prepare_rsp, make_rsp, free_rsp, YES, YES},
    {"csp_create", nothing, make_csp, free_csp, YES, YES},
    {"dat_psp_create_any", nothing, make_psp, free_psp, YES, YES},
    {"dat_rmr_create", nothing, make_rmr, free_rmr, YES, YES},
    {"dat_ep_connect", prepare_connect, connect_client, undo_connect, YES, YES},
    {"dat_cr_accept", prepare_accept, accept_client, undo_accept, YES, NO},
};
#define CALLS (sizeof calls / sizeof *calls)

TEST(r20_no_memory_in_the_provider)
{
    for (unsigned i = 0; i < CALLS; i++)
        for (int all_later = 0; all_later < 2; all_later++)
            with_each_failure(&calls[i], IN_PROVIDER, calls[i].provider_needs, all_later);
}

TEST(r20_no_memory_in_rdma_core)
{
    for (unsigned i = 0; i < CALLS; i++)
        with_each_failure(&calls[i], IN_RDMA_CORE, calls[i].rdma_core_needs, 0);
}

TEST(no_thread_for_an_ia)
{
    struct holdings before;

    OK(open_ia());
    close_ia();
    /* Those of both sides. */
    before = holdings_with_threads(2);
    no_threads = 1;
    EXPECT_TYPE(DAT_INSUFFICIENT_RESOURCES, open_ia());
    no_threads = 0;
    check_holdings(before);
    OK(open_ia());
    close_ia();
    check_holdings(before);
}

int main(int argc, char **argv)
{
    return run_tests(argc, argv);
}
