/* Random calls with random arguments to all 79 slots of the provider's table: NULL, stale, freed, foreign and misaligned handles
 * and pointers, garbage in structures, unknown flags and masks, huge and negative counts; in between enough sense to get
 * connections and traffic. Only what no provider can survive is left out: pointers to memory that is not there, arguments
 * that make the device write over this program, waits without end.
 *
 *     fuzz IA IA [SECONDS [SEED]]
 *
 * What has to hold: nothing crashes or hangs; a call on a handle that is not live says INVALID_HANDLE; no other code than those of
 * the call; the IAs can be closed; and nothing is left behind: descriptors, threads, objects of the device after each life, and
 * in a run of more than three minutes mappings, and memory if this is compiled with -DCOUNT_MEMORY. A failure says its seed, and
 * the same seed with the same program makes the same calls (the device's events may come at other times). */
#include "tests.h"
/* Not under valgrind, which has to see the memory of the provider itself. */
#ifdef COUNT_MEMORY
#include "counted.h"
#else
static const long long counted_bytes = 0;
#endif
#include <dat2/dat_registry.h>
#include <dat2/dat_ib_extensions.h>
#include <limits.h>

extern DAT_RETURN dats_get_ia_handle(DAT_IA_HANDLE handle, DAT_IA_HANDLE *result);

static uint64_t seed;
/* Each thread has its own objects and its own memory; IAs they share. */
static __thread uint64_t state;
static __thread const char *now_calling = "nothing";

static uint64_t next(void)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state * UINT64_C(0x2545F4914F6CDD1D);
}

/* 0 to n - 1. */
static unsigned rnd(unsigned n)
{
    return (unsigned)((next() >> 32) % n);
}

static int percent(unsigned p)
{
    return rnd(100) < p;
}

static void last_words(int sig)
{
    char text[200];
    int n = snprintf(text, sizeof text, "fuzz: %s in %s, seed %llu\n", sig == SIGALRM ? "hangs" : strsignal(sig),
                     now_calling, (unsigned long long)seed);

    if (write(1, text, n) < 0)
        _exit(2);
    signal(SIGABRT, SIG_DFL);
    abort();
}

/* What this program believes about the handles it has seen. */
enum kind { IA, PZ, LMR, EVD, EP, SRQ, PSP, RSP, CR, CNO, RMR, CSP, KINDS };

static const DAT_RETURN subtype[KINDS] = {
    DAT_INVALID_HANDLE_IA,  DAT_INVALID_HANDLE_PZ,  DAT_INVALID_HANDLE_LMR, DAT_INVALID_HANDLE_EVD_REQUEST,
    DAT_INVALID_HANDLE_EP,  DAT_INVALID_HANDLE_SRQ, DAT_INVALID_HANDLE_PSP, DAT_INVALID_HANDLE_RSP,
    DAT_INVALID_HANDLE_CR,  DAT_INVALID_HANDLE_CNO, DAT_INVALID_HANDLE_RMR, DAT_INVALID_HANDLE_CSP,
};

struct object {
    DAT_HANDLE handle, ia;
    enum kind kind;
    int live;
    /* Of an EVD. */
    unsigned flags;
};

#define MOST 4096
static __thread struct object objects[MOST];
static __thread unsigned known;
/* The IA that this call is about, and how much of the call is nonsense, in percent. */
static __thread DAT_HANDLE current;
static __thread unsigned noise;

static int nonsense(void)
{
    return percent(noise);
}

static struct object *find(DAT_HANDLE handle, enum kind kind)
{
    for (unsigned i = known; i-- > 0;)
        if (objects[i].live && objects[i].handle == handle && objects[i].kind == kind)
            return &objects[i];
    return NULL;
}

static unsigned count_live(enum kind kind)
{
    unsigned n = 0;

    for (unsigned i = 0; i < known; i++)
        n += objects[i].live && objects[i].kind == kind;
    return n;
}

/* One of this kind; those of the current IA, and EVDs that have all these flags, if there are any. */
static struct object *some(enum kind kind, int live, unsigned flags)
{
    unsigned n = 0, m = 0;
    struct object *found = NULL, *fitting = NULL;

    for (unsigned i = 0; i < known; i++) {
        if (objects[i].kind != kind || objects[i].live != live)
            continue;
        if (rnd(++n) == 0)
            found = &objects[i];
        if (objects[i].ia == current && (objects[i].flags & flags) == flags && rnd(++m) == 0)
            fitting = &objects[i];
    }
    return fitting && !nonsense() ? fitting : found;
}

static void born(DAT_HANDLE handle, enum kind kind, DAT_HANDLE ia)
{
    if (known < MOST && handle)
        objects[known++] = (struct object){handle, ia, kind, 1, 0};
}

static void died(DAT_HANDLE handle, enum kind kind)
{
    struct object *object = find(handle, kind);

    if (object)
        object->live = 0;
    if (kind == IA)
        for (unsigned i = 0; i < known; i++)
            if (objects[i].ia == handle)
                objects[i].live = 0;
}

/* Memory that arguments point to, and memory that the device may use. */
static __thread _Alignas(64) unsigned char garbage[16384], scratch[16384];
static _Alignas(4096) unsigned char arena[1 << 18];
static __thread struct context {
    DAT_HANDLE ia;
    DAT_LMR_CONTEXT lmr;
    DAT_RMR_CONTEXT rmr;
} contexts[64];
static const DAT_PROVIDER *table;
static struct sockaddr *address;

static void shuffle_garbage(void)
{
    for (unsigned i = 0; i < sizeof garbage; i += 8) {
        uint64_t word = percent(30) ? rnd(16) : percent(20) ? ~UINT64_C(0) : next();

        memcpy(garbage + i, &word, 8);
    }
}

static DAT_HANDLE any_of(enum kind kind, unsigned flags)
{
    struct object *object;
    unsigned p = rnd(100);

    if (!nonsense() && kind == IA && current)
        return current;
    if (!nonsense() && (object = some(kind, 1, flags)))
        return object->handle;
    if (p < 30 && (object = some(kind, 0, 0)))
        return object->handle;
    if (p < 55 && (object = some(rnd(KINDS), 1, 0)))
        return object->handle;
    if (p < 65)
        return DAT_HANDLE_NULL;
    if (p < 70)
        return (DAT_HANDLE)(uintptr_t)rnd(9);
    if (p < 82 && (object = some(kind, rnd(2), 0)))
        return (char *)object->handle + (int)rnd(33) - 16;
    if (p < 92) {
        /* With the table in front, as libdat2 wants it. */
        memcpy(garbage, &table, sizeof table);
        return garbage;
    }
    return (DAT_HANDLE)(uintptr_t)next();
}

static DAT_HANDLE any_handle(enum kind kind)
{
    return any_of(kind, 0);
}

static DAT_HANDLE or_null(enum kind kind)
{
    return percent(10) ? DAT_HANDLE_NULL : any_handle(kind);
}

static DAT_HANDLE evd_or_null(unsigned flags)
{
    return percent(5) ? DAT_HANDLE_NULL : any_of(EVD, flags);
}

static int any_count(void)
{
    static const int odd[] = {0, 0, 1, 1, -1, 2, 3, 31, 32, 33, 1000, 4096, 65536, 1 << 20, INT_MAX, INT_MIN};

    return percent(50) ? (int)rnd(20) : percent(80) ? odd[rnd(16)] : (int)next();
}

static unsigned any_flags(unsigned sensible)
{
    unsigned p = rnd(100);

    return !nonsense() || p < 10 ? sensible : p < 55 ? 1u << rnd(32) : p < 85 ? rnd(256) : (unsigned)next();
}

static uint64_t any_mask(uint64_t all)
{
    unsigned p = rnd(100);

    return p < 40 ? all : p < 70 ? next() & all : !nonsense() || p < 80 ? 0 : p < 90 ? UINT64_C(1) << rnd(64) : next();
}

/* To read from: NULL, garbage wherever it lies, or this structure, at its place or at an odd one. */
static void *in(const void *sensible, unsigned size)
{
    unsigned char *at = scratch + 8192;

    if (nonsense() && percent(50))
        return NULL;
    if (nonsense() || !sensible)
        return garbage + rnd(64) + 8 * rnd(64);
    if (nonsense())
        at += 1 + rnd(15);
    memcpy(at, sensible, size);
    return at;
}

/* To write to. */
static void *out(void)
{
    memset(scratch, 0xA5, 1024);
    return nonsense() && percent(50) ? NULL : !nonsense() ? scratch : scratch + 1 + rnd(15);
}

static DAT_HANDLE written(void *at)
{
    DAT_HANDLE handle = NULL;

    if (at)
        memcpy(&handle, at, sizeof handle);
    return handle;
}

static unsigned timeout(void)
{
    return percent(60) ? 0 : rnd(2000);
}

/* Of this IA, mostly. */
static struct context *context_of(int ours)
{
    struct context *c = &contexts[0];

    for (int tries = 0; tries < 30; tries++) {
        c = &contexts[rnd(64)];
        if (c->ia && (c->ia == current) == ours)
            break;
    }
    return c;
}

static DAT_LMR_TRIPLET *segments(void)
{
    static __thread DAT_LMR_TRIPLET iov[40];

    for (unsigned i = 0; i < 40; i++) {
        iov[i].lmr_context = !nonsense() ? context_of(1)->lmr : (unsigned)next();
        iov[i].virtual_address = (uintptr_t)arena + (!nonsense() ? rnd(sizeof arena / 2 - 4096) : next());
        iov[i].segment_length = !nonsense() ? rnd(512) : percent(50) ? rnd(1 << 20) : (unsigned)next();
    }
    return in(iov, sizeof iov);
}

static int some_segments(void)
{
    return !nonsense() ? (int)rnd(3) : any_count();
}

static DAT_RMR_TRIPLET *remote(void)
{
    static __thread DAT_RMR_TRIPLET r;

    r.rmr_context = !nonsense() ? context_of(percent(50))->rmr : (unsigned)next();
    r.virtual_address = (uintptr_t)arena + (!nonsense() ? rnd(sizeof arena / 2 - 4096) : next());
    r.segment_length = rnd(2048);
    return in(&r, sizeof r);
}

static DAT_DTO_COOKIE cookie(void)
{
    DAT_DTO_COOKIE c = {.as_64 = next()};

    return c;
}

static unsigned post_flags(void)
{
    static const unsigned flags[] = {0, 0, 0, 0, 1, 2, 4, 8, 16, 32};

    return any_flags(flags[rnd(10)]);
}

static DAT_EP_ATTR *attributes(void)
{
    static __thread DAT_EP_ATTR e;

    e = ep_attr();
    if (nonsense())
        e.recv_completion_flags = post_flags();
    if (nonsense())
        e.request_completion_flags = post_flags();
    if (nonsense())
        e.max_recv_dtos = any_count();
    if (nonsense())
        e.max_request_dtos = any_count();
    if (nonsense())
        e.max_request_iov = any_count();
    if (nonsense())
        e.max_recv_iov = any_count();
    if (nonsense())
        e.max_rdma_read_out = any_count();
    if (nonsense())
        e.srq_soft_hw = any_count();
    e.service_type = nonsense() ? (int)rnd(4) : percent(25);
    if (nonsense())
        e.qos = any_flags(0);
    return in(&e, sizeof e);
}

static unsigned called_back;

static void agent(DAT_PVOID data, DAT_EVD_HANDLE evd)
{
    (void)data;
    (void)evd;
    __atomic_add_fetch(&called_back, 1, __ATOMIC_RELAXED);
}

static uint64_t qualifier(void)
{
    return !nonsense() ? 46000 + rnd(12) : percent(50) ? rnd(4) : next();
}

static struct sockaddr *to_whom(void)
{
    static __thread unsigned char other[64];

    if (!nonsense())
        return address;
    if (percent(20))
        return NULL;
    memcpy(other, garbage, sizeof other);
    other[0] = (unsigned char[]){AF_INET, AF_INET6, AF_UNIX, 0, 27}[rnd(5)];
    other[1] = 0;
    /* Addresses of this host, of nobody, and of any number; a route somewhere else is not looked for twice. */
    if (percent(50))
        memcpy(other + 4, "\x7f\0\0\1", 4);
    return (struct sockaddr *)(other + rnd(2));
}

/* Types of DAT_RETURN as bits. */
#define T(type) (UINT64_C(1) << ((type) >> 16))
#define OF_HANDLE T(DAT_INVALID_HANDLE)
#define OF_ARGUMENT T(DAT_INVALID_PARAMETER)
#define OF_STATE T(DAT_INVALID_STATE)
#define OF_RESOURCES T(DAT_INSUFFICIENT_RESOURCES)
#define OF_MODEL T(DAT_MODEL_NOT_SUPPORTED)
#define OF_MEMORY (T(DAT_PRIVILEGES_VIOLATION) | T(DAT_PROTECTION_VIOLATION) | T(DAT_LENGTH_ERROR))
#define OF_POST (OF_HANDLE | OF_ARGUMENT | OF_STATE | OF_RESOURCES | OF_MEMORY)
#define OF_QUERY (OF_HANDLE | OF_ARGUMENT)
#define OF_FREE (OF_HANDLE | OF_STATE)
/* The peer of a request has given up. */
#define OF_GONE T(DAT_ABORT)
#define OF_CREATE (OF_HANDLE | OF_ARGUMENT | OF_STATE | OF_RESOURCES | OF_MODEL)

static unsigned calls_made[80], calls_done[80];

static DAT_RETURN judge(unsigned slot, DAT_RETURN code, uint64_t types, int live, DAT_RETURN sub)
{
    DAT_RETURN type = code & 0x3FFF0000, minor = code & 0xFFFF;
    int listed = code == DAT_SUCCESS;

    if (!listed && type <= DAT_COMM_NOT_SUPPORTED)
        listed = ((code & DAT_CLASS_ERROR) != 0 || code == DAT_QUEUE_EMPTY) && (types & T(type)) && minor <= 103;
    __atomic_add_fetch(&calls_made[slot], 1, __ATOMIC_RELAXED);
    __atomic_add_fetch(&calls_done[slot], code == DAT_SUCCESS, __ATOMIC_RELAXED);
    if (!live)
        listed = code == ERROR(DAT_INVALID_HANDLE, sub);
    checks++;
    if (!listed) {
        failures++;
        printf("%s gave %#010x on a %s handle, seed %llu\n", now_calling, code, live ? "live" : "dead",
               (unsigned long long)seed);
    }
    return code;
}

/* A call of a slot on a handle of a kind. */
#define CALL(number, name, kind, handle, types, ...)                                                             \
    (now_calling = #name, is_live = find(handle, kind) != NULL,                                                  \
     judge(number, table->name##_func(__VA_ARGS__), types, is_live, subtype[kind]))
/* Set by CALL. */
#define DID(...) (CALL(__VA_ARGS__) == DAT_SUCCESS)

/* The one slot with variable arguments. */
static DAT_RETURN extension(DAT_HANDLE handle, int op, ...)
{
    va_list args;
    DAT_RETURN code;

    va_start(args, op);
    code = table->handle_extendedop_func(handle, op, args);
    va_end(args);
    return code;
}

/* Where datagrams of some UD EP go, as events have told. */
#define WAYS 64
static __thread struct way {
    DAT_HANDLE ep;
    DAT_IB_ADDR_HANDLE ah;
    DAT_CONTEXT cm;
} ways[WAYS];
static __thread unsigned ways_told;

static struct way *some_way(void)
{
    return &ways[rnd(ways_told < WAYS ? ways_told + 1 : WAYS)];
}

/* Of an EP that may send there, mostly. */
static DAT_IB_ADDR_HANDLE *address_handle(struct way *way)
{
    static __thread DAT_IB_ADDR_HANDLE ah;

    ah = way->ah;
    if (nonsense())
        ah.ah = percent(50) ? (void *)(uintptr_t)next() : (void *)(uintptr_t)rnd(1000);
    if (nonsense())
        ah.qpn = percent(50) ? (unsigned)next() : rnd(1 << 24);
    return in(&ah, sizeof ah);
}

static void event_taken(DAT_EVENT *at, DAT_HANDLE ia)
{
    DAT_EVENT event;
    DAT_IB_EXTENSION_EVENT_DATA data;

    memcpy(&event, at, sizeof event);
    memcpy(&data, event.event_extension_data, sizeof data);
    if (event.event_number == DAT_CONNECTION_REQUEST_EVENT ||
        event.event_number == (DAT_EVENT_NUMBER)DAT_IB_UD_CONNECTION_REQUEST_EVENT)
        born(event.event_data.cr_arrival_event_data.cr_handle, CR, ia);
    if (event.event_number == (DAT_EVENT_NUMBER)DAT_IB_UD_CONNECTION_EVENT_ESTABLISHED)
        ways[ways_told++ % WAYS] =
            (struct way){event.event_data.connect_event_data.ep_handle, data.remote_ah, data.context};
}

static DAT_HANDLE ia_of(DAT_HANDLE handle)
{
    for (unsigned i = known; i-- > 0;)
        if (objects[i].live && objects[i].handle == handle)
            return objects[i].ia;
    return NULL;
}

/* Two EPs of the two IAs that know each other, as far as what there is allows it. */
static void connect_two(void)
{
    DAT_HANDLE ia[2] = {current, NULL}, ep[2], evd, psp, cr;
    int datagrams = percent(30);
    DAT_EVENT event;
    DAT_COUNT more;
    uint64_t qual = 46100;
    int is_live;

    noise = 0;
    for (int i = 0; i < 2; i++) {
        struct object *other = some(IA, 1, 0);
        DAT_EP_ATTR attr = ep_attr();
        DAT_HANDLE srq = NULL;

        attr.service_type = datagrams;
        if (!other)
            return;
        current = ia[i] = i ? other->handle : current;
        if (percent(70))
            srq = any_handle(SRQ);
        if (find(srq, SRQ)
                ? !DID(59, ep_create_with_srq, IA, ia[i], OF_CREATE, ia[i], any_handle(PZ), any_of(EVD, 0x20),
                       any_of(EVD, 0x20), any_of(EVD, 0x40), srq, &attr, &ep[i])
                : !DID(25, ep_create, IA, ia[i], OF_CREATE, ia[i], any_handle(PZ), any_of(EVD, 0x20), any_of(EVD, 0x20),
                       any_of(EVD, 0x40), &attr, &ep[i]))
            return;
        born(ep[i], EP, ia[i]);
    }
    evd = any_of(EVD, 0x10);
    if (!DID(53, psp_create_any, IA, ia[1], OF_CREATE | T(DAT_CONN_QUAL_UNAVAILABLE), ia[1], &qual, evd, 0, &psp))
        return;
    born(psp, PSP, ia[1]);
    if (!DID(28, ep_connect, EP, ep[0], OF_CREATE | T(DAT_INVALID_ADDRESS), ep[0], address, qual, 2000000, 4, garbage, 0, 0))
        return;
    for (int tries = 0; tries < 5; tries++) {
        if (!DID(20, evd_wait, EVD, evd, OF_HANDLE | OF_STATE | T(DAT_TIMEOUT_EXPIRED), evd, 20000, 1, &event, &more))
            return;
        event_taken(&event, ia[1]);
        cr = event.event_data.cr_arrival_event_data.cr_handle;
        if ((event.event_number != DAT_CONNECTION_REQUEST_EVENT &&
             event.event_number != (DAT_EVENT_NUMBER)DAT_IB_UD_CONNECTION_REQUEST_EVENT) ||
            event.event_data.cr_arrival_event_data.sp_handle.psp_handle != psp)
            continue;
        if (DID(12, cr_accept, CR, cr, OF_CREATE | OF_GONE, cr, ep[1], 3, garbage))
            died(cr, CR);
        return;
    }
}

/* Counters: of an EP, an EVD, an IA or anything else. */
static void counter_call(void *to)
{
    static const int all[] = {DCNT_IA_ALL_COUNTERS, DCNT_EP_ALL_COUNTERS, DCNT_EVD_ALL_COUNTERS};
    enum kind kind = (enum kind[]){IA, EP, EVD, PZ}[rnd(nonsense() ? 4 : 3)];
    DAT_HANDLE h = any_handle(kind);
    int n = nonsense() ? any_count() : percent(40) ? (int)rnd(90) : all[rnd(3)];
    int reset = percent(50) ? 0 : (int)next();
    int is_counted = find(h, IA) || find(h, EP) || find(h, EVD);

    switch (rnd(4)) {
    case 0:
        now_calling = "query counters";
        judge(78, extension(h, DAT_IB_QUERY_COUNTERS_OP, n, to, reset), OF_QUERY, is_counted, DAT_INVALID_HANDLE1);
        break;
    case 1:
        now_calling = "print counters";
        /* Its lines are of no interest, and there are many of them. */
        if (percent(10))
            judge(78, extension(h, DAT_IB_PRINT_COUNTERS_OP, n, reset), OF_QUERY, is_counted, DAT_INVALID_HANDLE1);
        break;
    case 2:
        now_calling = "start counters";
        judge(78, extension(h, DAT_IB_START_COUNTERS_OP, !nonsense() ? (int)rnd(3) : any_count()), OF_QUERY,
              find(h, IA) != NULL, DAT_INVALID_HANDLE_IA);
        break;
    default:
        now_calling = "stop counters";
        judge(78, extension(h, DAT_IB_STOP_COUNTERS_OP, !nonsense() ? (int)rnd(3) : any_count()), OF_QUERY,
              find(h, IA) != NULL, DAT_INVALID_HANDLE_IA);
    }
}

/* Several threads share the IAs: none of them opens or closes any. */
static int several;

static void one_call(void)
{
    static DAT_NAME_PTR names[] = {"", "no such IA", "doorbell-none", NULL};
    unsigned slot = rnd(100) < 75 ? rnd(79) : (unsigned[]){31, 31, 32, 64, 64, 22, 23, 23, 23, 28, 12, 12, 44, 59}[rnd(14)];
    DAT_REGION_DESCRIPTION region = {.for_va = arena + rnd(4) * 4096};
    DAT_OS_WAIT_PROXY_AGENT proxy = {garbage, percent(50) ? agent : NULL};
    DAT_CONTEXT context = {.as_64 = next()};
    DAT_RMR_COOKIE rmr_cookie = {.as_64 = next()};
    DAT_HANDLE h, ia, h2;
    DAT_EVENT event;
    void *o = out(), *o2;
    int is_live;

#define NEW(kind) born(written(o), kind, ia)
    switch (slot) {
    case 0: {
        unsigned which = rnd(6);
        char *name = which < 2 ? ia_names[which] : names[which - 2];
        DAT_EVD_HANDLE async = percent(80) ? DAT_HANDLE_NULL : any_handle(EVD);
        DAT_EVD_HANDLE *evd = percent(90) ? &async : NULL;

        if (count_live(IA) > 3 || several)
            break;
        now_calling = "ia_open";
        if (judge(0, table->ia_open_func(name, any_count(), evd, o), OF_CREATE | T(DAT_PROVIDER_NOT_FOUND), 1, 0) ==
            DAT_SUCCESS) {
            ia = written(o);
            born(ia, IA, ia);
            if (async != (DAT_HANDLE)1)
                born(async, EVD, ia);
        }
        break;
    }
    case 1:
        h = any_handle(IA);
        CALL(1, ia_query, IA, h, OF_QUERY, h, percent(50) ? NULL : (void *)(scratch + 4096), any_mask(DAT_IA_FIELD_ALL), o,
             any_mask(DAT_PROVIDER_FIELD_ALL), percent(10) ? NULL : (void *)(scratch + 2048));
        break;
    case 2:
        /* Now and then, or nothing else would happen. */
        h = any_handle(IA);
        if (find(h, IA) && (several || !percent(3)))
            break;
        if (DID(2, ia_close, IA, h, OF_FREE | OF_ARGUMENT, h, any_flags(rnd(2))))
            died(h, IA);
        break;
    case 3:
        h = any_handle(rnd(CNO + 1));
        now_calling = "set_consumer_context";
        judge(3, table->set_consumer_context_func(h, context), OF_HANDLE, 1, 0);
        break;
    case 4:
        h = any_handle(rnd(CNO + 1));
        now_calling = "get_consumer_context";
        judge(4, table->get_consumer_context_func(h, o), OF_QUERY, 1, 0);
        break;
    case 5:
        h = any_handle(rnd(CNO + 1));
        now_calling = "get_handle_type";
        judge(5, table->get_handle_type_func(h, o), OF_QUERY, 1, 0);
        break;
    case 6:
        ia = any_handle(IA);
        if (DID(6, cno_create, IA, ia, OF_CREATE, ia, proxy, o))
            NEW(CNO);
        break;
    case 7:
        h = any_handle(CNO);
        CALL(7, cno_modify_agent, CNO, h, OF_HANDLE | OF_ARGUMENT, h, proxy);
        break;
    case 8:
        h = any_handle(CNO);
        CALL(8, cno_query, CNO, h, OF_QUERY, h, any_mask(7), o);
        break;
    case 9:
        h = any_handle(CNO);
        if (DID(9, cno_free, CNO, h, OF_FREE, h))
            died(h, CNO);
        break;
    case 10:
        h = any_handle(CNO);
        CALL(10, cno_wait, CNO, h, OF_HANDLE | OF_STATE | T(DAT_TIMEOUT_EXPIRED) | T(DAT_QUEUE_EMPTY), h, timeout(), o);
        break;
    case 11:
        h = any_handle(CR);
        CALL(11, cr_query, CR, h, OF_QUERY, h, any_mask(DAT_CR_FIELD_ALL), o);
        break;
    case 12:
        h = any_handle(CR);
        if (DID(12, cr_accept, CR, h, OF_CREATE | OF_GONE, h, or_null(EP),
                !nonsense() ? (int)rnd(60) : any_count(), in(NULL, 0)))
            died(h, CR);
        break;
    case 13:
        h = any_handle(CR);
        if (!percent(20))
            break;
        if (DID(13, cr_reject, CR, h, OF_QUERY | OF_STATE | OF_RESOURCES | OF_GONE, h, !nonsense() ? (int)rnd(60) : any_count(),
                in(NULL, 0)))
            died(h, CR);
        break;
    case 14:
        h = any_handle(CR);
        if (DID(14, cr_handoff, CR, h, OF_CREATE | OF_GONE | T(DAT_CONN_QUAL_UNAVAILABLE), h, qualifier()))
            died(h, CR);
        break;
    case 15: {
        unsigned flags = any_flags((unsigned[]){0x20, 0x20, 0x20, 0x10, 0x40, 1, 0x1f0, 0x71, 0xf1, 0x80}[rnd(10)]);

        ia = any_handle(IA);
        if (DID(15, evd_create, IA, ia, OF_CREATE, ia, !nonsense() ? 1 + (int)rnd(100) : any_count(),
                percent(70) ? DAT_HANDLE_NULL : any_handle(CNO), flags, o)) {
            NEW(EVD);
            objects[known - 1].flags = flags;
        }
        break;
    }
    case 16:
        h = any_handle(EVD);
        CALL(16, evd_query, EVD, h, OF_QUERY, h, any_mask(DAT_EVD_FIELD_ALL), o);
        break;
    case 17:
        h = any_handle(EVD);
        CALL(17, evd_modify_cno, EVD, h, OF_HANDLE | OF_STATE | OF_ARGUMENT, h, percent(10) ? h : or_null(CNO));
        break;
    case 18:
        h = any_handle(EVD);
        CALL(18, evd_enable, EVD, h, OF_HANDLE, h);
        break;
    case 19:
        h = any_handle(EVD);
        CALL(19, evd_disable, EVD, h, OF_HANDLE, h);
        break;
    case 20:
        h = any_handle(EVD);
        ia = ia_of(h);
        o2 = &event;
        if (DID(20, evd_wait, EVD, h, OF_HANDLE | OF_ARGUMENT | OF_STATE | T(DAT_TIMEOUT_EXPIRED) | T(DAT_ABORT), h, timeout(),
                !nonsense() ? 1 : any_count(), !nonsense() ? o2 : NULL, o))
            event_taken(o2, ia);
        break;
    case 21:
        h = any_handle(EVD);
        CALL(21, evd_resize, EVD, h, OF_HANDLE | OF_ARGUMENT | OF_STATE | OF_RESOURCES, h, any_count());
        break;
    case 22:
        h = any_handle(EVD);
        event.event_number = percent(90) ? DAT_SOFTWARE_EVENT : any_flags(1);
        CALL(22, evd_post_se, EVD, h, OF_HANDLE | OF_ARGUMENT | OF_STATE | T(DAT_QUEUE_FULL), h, in(&event, sizeof event));
        break;
    case 23:
        h = any_handle(EVD);
        ia = ia_of(h);
        o2 = percent(80) ? (void *)&event : percent(80) ? scratch + 1 : NULL;
        if (DID(23, evd_dequeue, EVD, h, OF_HANDLE | OF_ARGUMENT | OF_STATE | T(DAT_QUEUE_EMPTY), h, o2))
            event_taken(o2, ia);
        break;
    case 24:
        h = any_handle(EVD);
        if (find(h, EVD) && !percent(30))
            break;
        if (DID(24, evd_free, EVD, h, OF_FREE, h))
            died(h, EVD);
        break;
    case 25:
        ia = any_handle(IA);
        if (DID(25, ep_create, IA, ia, OF_CREATE, ia, any_handle(PZ), evd_or_null(0x20), evd_or_null(0x20),
                evd_or_null(0x40), attributes(), o))
            NEW(EP);
        break;
    case 26:
        h = any_handle(EP);
        CALL(26, ep_query, EP, h, OF_QUERY, h, any_mask(DAT_EP_FIELD_ALL), o);
        break;
    case 27: {
        DAT_EP_PARAM param;

        h = any_handle(EP);
        memset(&param, 0, sizeof param);
        param.pz_handle = percent(10) ? h : any_handle(PZ);
        param.recv_evd_handle = any_handle(EVD);
        param.request_evd_handle = any_handle(EVD);
        param.connect_evd_handle = any_handle(EVD);
        param.srq_handle = or_null(SRQ);
        param.ep_attr = ep_attr();
        CALL(27, ep_modify, EP, h, OF_CREATE, h, percent(50) ? UINT64_C(1) << rnd(31) : any_mask(DAT_EP_FIELD_ALL),
             in(&param, sizeof param));
        break;
    }
    case 28:
        h = any_handle(EP);
        CALL(28, ep_connect, EP, h, OF_CREATE | T(DAT_INVALID_ADDRESS), h, to_whom(), qualifier(), 1 + rnd(200000),
             !nonsense() ? (int)rnd(60) : any_count(), in(NULL, 0), any_flags(0), any_flags(0));
        break;
    case 29:
        h = any_handle(EP);
        CALL(29, ep_dup_connect, EP, h, OF_CREATE | T(DAT_INVALID_ADDRESS), h, percent(10) ? h : any_handle(EP),
             1 + rnd(200000), !nonsense() ? (int)rnd(60) : any_count(), in(NULL, 0), any_flags(0));
        break;
    case 30:
        h = any_handle(EP);
        CALL(30, ep_disconnect, EP, h, OF_HANDLE | OF_ARGUMENT | OF_STATE, h, any_flags(rnd(2)));
        break;
    case 31:
        h = any_handle(EP);
        CALL(31, ep_post_send, EP, h, OF_POST, h, some_segments(), segments(), cookie(), post_flags());
        break;
    case 32:
        h = any_handle(EP);
        CALL(32, ep_post_recv, EP, h, OF_POST, h, some_segments(), segments(), cookie(), post_flags());
        break;
    case 33:
        h = any_handle(EP);
        CALL(33, ep_post_rdma_read, EP, h, OF_POST, h, some_segments(), segments(), cookie(), remote(), post_flags());
        break;
    case 34:
        h = any_handle(EP);
        CALL(34, ep_post_rdma_write, EP, h, OF_POST, h, some_segments(), segments(), cookie(), remote(), post_flags());
        break;
    case 35:
        h = any_handle(EP);
        CALL(35, ep_get_status, EP, h, OF_HANDLE, h, o, percent(20) ? NULL : (void *)(scratch + 2048),
             percent(20) ? NULL : (void *)(scratch + 2056));
        break;
    case 36:
        h = any_handle(EP);
        if (find(h, EP) && !percent(30))
            break;
        if (DID(36, ep_free, EP, h, OF_FREE, h))
            died(h, EP);
        break;
    case 37: {
        /* All of the arena at most: the device never writes anywhere else. */
        uint64_t length = !nonsense() ? sizeof arena / 2 : percent(50) ? 0 : UINT64_C(1) << (40 + rnd(24));
        DAT_LMR_CONTEXT context;
        DAT_RMR_CONTEXT rmr = 0;

        if (nonsense())
            region.for_va = (void *)(uintptr_t)(percent(50) ? rnd(4096) : UINT64_MAX - rnd(1 << 20));
        if (nonsense() || percent(10))
            region.for_lmr_handle = any_handle(LMR);
        ia = any_handle(IA);
        h2 = any_handle(PZ);
        if (DID(37, lmr_create, IA, ia, OF_CREATE | OF_MEMORY | T(DAT_INVALID_ADDRESS), ia,
                region.for_va >= (void *)arena && region.for_va < (void *)(arena + sizeof arena) ? any_flags(0) : 1, region,
                length, h2, any_flags(percent(90) ? 0x33 : rnd(0x80)), any_flags(0), o, &context, percent(90) ? &rmr : NULL,
                percent(50) ? NULL : (void *)(scratch + 2048), percent(50) ? NULL : (void *)(scratch + 2056))) {
            NEW(LMR);
            contexts[rnd(64)] = (struct context){ia, context, rmr};
        }
        break;
    }
    case 38:
        h = any_handle(LMR);
        CALL(38, lmr_query, LMR, h, OF_QUERY, h, any_mask(DAT_LMR_FIELD_ALL), o);
        break;
    case 39:
        h = any_handle(LMR);
        if (find(h, LMR) && !percent(30))
            break;
        if (DID(39, lmr_free, LMR, h, OF_FREE, h))
            died(h, LMR);
        break;
    case 40:
        h = any_handle(PZ);
        ia = ia_of(h);
        if (DID(40, rmr_create, PZ, h, OF_CREATE, h, o))
            NEW(RMR);
        break;
    case 41:
        h = any_handle(RMR);
        CALL(41, rmr_query, RMR, h, OF_QUERY, h, any_mask(DAT_RMR_FIELD_ALL), o);
        break;
    case 42:
        h = any_handle(RMR);
        CALL(42, rmr_bind, RMR, h, OF_POST | OF_MODEL, h, any_handle(LMR), segments(), any_flags(0x33), any_flags(0),
             any_handle(EP), rmr_cookie, post_flags(), o);
        break;
    case 43:
        h = any_handle(RMR);
        if (DID(43, rmr_free, RMR, h, OF_FREE, h))
            died(h, RMR);
        break;
    case 44:
        ia = any_handle(IA);
        if (DID(44, psp_create, IA, ia, OF_CREATE | T(DAT_CONN_QUAL_IN_USE) | T(DAT_CONN_QUAL_UNAVAILABLE), ia, qualifier(),
                any_of(EVD, 0x10), any_flags(0), o))
            NEW(PSP);
        break;
    case 45:
        h = any_handle(PSP);
        CALL(45, psp_query, PSP, h, OF_QUERY, h, any_mask(DAT_PSP_FIELD_ALL), o);
        break;
    case 46:
        h = any_handle(PSP);
        if (find(h, PSP) && !percent(30))
            break;
        if (DID(46, psp_free, PSP, h, OF_FREE, h))
            died(h, PSP);
        break;
    case 47:
        ia = any_handle(IA);
        if (DID(47, rsp_create, IA, ia, OF_CREATE | T(DAT_CONN_QUAL_IN_USE) | T(DAT_CONN_QUAL_UNAVAILABLE), ia, qualifier(),
                any_handle(EP), any_of(EVD, 0x10), o))
            NEW(RSP);
        break;
    case 48:
        h = any_handle(RSP);
        CALL(48, rsp_query, RSP, h, OF_QUERY, h, any_mask(DAT_RSP_FIELD_ALL), o);
        break;
    case 49:
        h = any_handle(RSP);
        if (DID(49, rsp_free, RSP, h, OF_FREE, h))
            died(h, RSP);
        break;
    case 50:
        ia = any_handle(IA);
        if (DID(50, pz_create, IA, ia, OF_CREATE, ia, o))
            NEW(PZ);
        break;
    case 51:
        h = any_handle(PZ);
        CALL(51, pz_query, PZ, h, OF_QUERY, h, any_mask(DAT_PZ_FIELD_ALL), o);
        break;
    case 52:
        h = any_handle(PZ);
        if (DID(52, pz_free, PZ, h, OF_FREE, h))
            died(h, PZ);
        break;
    case 53:
        ia = any_handle(IA);
        if (DID(53, psp_create_any, IA, ia, OF_CREATE | T(DAT_CONN_QUAL_UNAVAILABLE), ia,
                percent(95) ? (void *)(scratch + 2048) : NULL, any_of(EVD, 0x10), any_flags(0), o))
            NEW(PSP);
        break;
    case 54:
        h = any_handle(EP);
        CALL(54, ep_reset, EP, h, OF_HANDLE | OF_STATE | OF_RESOURCES, h);
        break;
    case 55:
        h = any_handle(EVD);
        CALL(55, evd_set_unwaitable, EVD, h, OF_HANDLE, h);
        break;
    case 56:
        h = any_handle(EVD);
        CALL(56, evd_clear_unwaitable, EVD, h, OF_HANDLE, h);
        break;
    case 57:
        h = any_handle(IA);
        CALL(57, lmr_sync_rdma_read, IA, h, OF_HANDLE | OF_ARGUMENT, h, segments(), percent(80) ? rnd(20) : 0);
        break;
    case 58:
        h = any_handle(IA);
        CALL(58, lmr_sync_rdma_write, IA, h, OF_HANDLE | OF_ARGUMENT, h, segments(), percent(80) ? rnd(20) : 0);
        break;
    case 59:
        ia = any_handle(IA);
        if (DID(59, ep_create_with_srq, IA, ia, OF_CREATE, ia, any_handle(PZ), evd_or_null(0x20), evd_or_null(0x20),
                evd_or_null(0x40), any_handle(SRQ), attributes(), o))
            NEW(EP);
        break;
    case 60:
        h = any_handle(EP);
        CALL(60, ep_recv_query, EP, h, OF_HANDLE, h, o, percent(20) ? NULL : (void *)(scratch + 2048));
        break;
    case 61:
        h = any_handle(EP);
        CALL(61, ep_set_watermark, EP, h, OF_HANDLE | OF_ARGUMENT, h, any_count(), any_count());
        break;
    case 62: {
        DAT_SRQ_ATTR attr = {!nonsense() ? 1 + (int)rnd(64) : any_count(), !nonsense() ? 1 + (int)rnd(3) : any_count(),
                             !nonsense() ? 0 : any_count()};

        ia = any_handle(IA);
        if (DID(62, srq_create, IA, ia, OF_CREATE, ia, any_handle(PZ), in(&attr, sizeof attr), o))
            NEW(SRQ);
        break;
    }
    case 63:
        h = any_handle(SRQ);
        if (find(h, SRQ) && !percent(30))
            break;
        if (DID(63, srq_free, SRQ, h, OF_FREE, h))
            died(h, SRQ);
        break;
    case 64:
        h = any_handle(SRQ);
        CALL(64, srq_post_recv, SRQ, h, OF_POST, h, some_segments(), segments(), cookie());
        break;
    case 65:
        h = any_handle(SRQ);
        if (DID(65, srq_query, SRQ, h, OF_QUERY, h, any_mask(DAT_SRQ_FIELD_ALL), o)) {
            DAT_SRQ_PARAM p;

            memcpy(&p, o, sizeof p);
            CHECK(0 <= p.available_dto_count && p.available_dto_count <= p.outstanding_dto_count &&
                  p.outstanding_dto_count <= p.max_recv_dtos);
        }
        break;
    case 66:
        h = any_handle(SRQ);
        CALL(66, srq_resize, SRQ, h, OF_HANDLE | OF_ARGUMENT | OF_STATE | OF_RESOURCES, h, any_count());
        break;
    case 67:
        h = any_handle(SRQ);
        CALL(67, srq_set_lw, SRQ, h, OF_HANDLE | OF_ARGUMENT, h, any_count());
        break;
    case 68: {
        DAT_COMM comm = {address->sa_family, SOCK_STREAM, percent(50) ? IPPROTO_TCP : 0};

        ia = any_handle(IA);
        if (DID(68, csp_create, IA, ia, OF_CREATE | T(DAT_INVALID_ADDRESS) | T(DAT_PORT_IN_USE) | T(DAT_COMM_NOT_SUPPORTED),
                ia, in(&comm, sizeof comm), percent(80) ? address : to_whom(), any_of(EVD, 0x10), o))
            NEW(CSP);
        break;
    }
    case 69:
        h = any_handle(CSP);
        CALL(69, csp_query, CSP, h, OF_QUERY, h, any_mask(0x1f), o);
        break;
    case 70:
        h = any_handle(CSP);
        if (DID(70, csp_free, CSP, h, OF_FREE, h))
            died(h, CSP);
        break;
    case 71:
        h = any_handle(EP);
        CALL(71, ep_common_connect, EP, h, OF_CREATE | T(DAT_INVALID_ADDRESS), h, to_whom(), 1 + rnd(200000), any_count(),
             in(NULL, 0));
        break;
    case 72:
        h = any_handle(PZ);
        ia = ia_of(h);
        if (DID(72, rmr_create_for_ep, PZ, h, OF_CREATE, h, o))
            NEW(RMR);
        break;
    case 73:
        h = any_handle(EP);
        CALL(73, ep_post_send_with_invalidate, EP, h, OF_POST | OF_MODEL, h, some_segments(), segments(), cookie(),
             post_flags(), rnd(3), context_of(0)->rmr);
        break;
    case 74:
        h = any_handle(EP);
        CALL(74, ep_post_rdma_read_to_rmr, EP, h, OF_POST | OF_MODEL, h, remote(), cookie(), remote(), post_flags());
        break;
    case 75:
        ia = any_handle(IA);
        if (DID(75, cno_fd_create, IA, ia, OF_CREATE, ia, percent(95) ? (void *)(scratch + 2048) : NULL, o))
            NEW(CNO);
        break;
    case 76:
        h = any_handle(CNO);
        CALL(76, cno_trigger, CNO, h, OF_HANDLE | OF_STATE | T(DAT_QUEUE_EMPTY), h, o);
        break;
    case 77:
        h = any_handle(IA);
        CALL(77, ia_ha_related, IA, h, OF_HANDLE | OF_ARGUMENT, h, ia_names[0], o);
        break;
    case 78: {
        static const int ops[] = {0, 1, 2, DAT_IB_UD_SEND_OP, DAT_IB_UD_SEND_OP, DAT_IB_UD_SEND_OP, DAT_IB_UD_CM_FREE_OP,
                                  DAT_IB_UD_AH_FREE_OP};
        int op = percent(90) ? ops[rnd(8)] : percent(50) ? (int)rnd(40) : any_count();
        struct way *way = some_way();

        if (percent(30)) {
            counter_call(o);
            break;
        }
        h = any_handle(EP);
        /* A pointer among these arguments might be taken for somewhere to write to. */
        if (op == DAT_IB_OPEN_QUERY_OP || op == DAT_IB_CLOSE_QUERY_OP || op == DAT_IB_QUERY_COUNTERS_OP)
            break;
        now_calling = "handle_extendedop";
        is_live = find(h, EP) != NULL;
        if ((op == DAT_IB_UD_SEND_OP || op == DAT_IB_UD_CM_FREE_OP || op == DAT_IB_UD_AH_FREE_OP) && !nonsense() && way->ep) {
            h = way->ep;
            is_live = find(h, EP) != NULL;
        }
        if (op == DAT_IB_UD_SEND_OP)
            judge(78, extension(h, op, some_segments(), segments(), address_handle(way), cookie(), post_flags()),
                  OF_POST | OF_MODEL, is_live, subtype[EP]);
        else if (op == DAT_IB_UD_CM_FREE_OP)
            judge(78, extension(h, op, nonsense() ? next() : way->cm.as_64), OF_HANDLE | OF_ARGUMENT, is_live, subtype[EP]);
        else if (op == DAT_IB_UD_AH_FREE_OP)
            judge(78, extension(h, op, address_handle(way)), OF_HANDLE | OF_ARGUMENT, is_live, subtype[EP]);
        else if (op == 2)
            judge(78, extension(h, op, some_segments(), segments(), cookie(), remote(), (unsigned)next(), post_flags()),
                  OF_POST | OF_MODEL, is_live, subtype[EP]);
        else
            judge(78,
                  op == 0 ? extension(h, op, next(), segments(), cookie(), remote(), post_flags())
                          : extension(h, op, next(), next(), segments(), cookie(), remote(), post_flags()),
                  OF_POST | OF_MODEL, 1, 0);
        break;
    }
    }
}

static DAT_HANDLE raw(DAT_IA_HANDLE ia)
{
    DAT_IA_HANDLE pointer = NULL;

    OK(dats_get_ia_handle(ia, &pointer));
    return pointer;
}

/* The machine's share: messages get lost, requests fail, and there is no memory for new objects. */
static void some_fault(void)
{
    static const char *faults[] = {
        "fault drop*2", "fault rnr*3", "fault error=0x13", "fault error=0x14", "fault hold", "fault cmd.create_cq=12",
        "fault cmd.create_qp=12", "fault cmd.create_srq=12", "fault cmd.alloc_pd=12", "fault cmd.reg_mr=12",
        "fault cmd.modify_qp=12", "fault cmd.create_comp_channel=12", "no faults", "no faults",
    };

    emu(faults[rnd(14)]);
}

static void calls(unsigned count, int faulty)
{
    while (count-- > 0 && failures < 20) {
        struct object *of;

        current = NULL;
        noise = 0;
        of = some(IA, 1, 0);
        current = of ? of->handle : NULL;
        noise = (unsigned[]){0, 0, 1, 3, 10, 30}[rnd(6)];
        if (rnd(500) == 0)
            shuffle_garbage();
        if (faulty && rnd(30) == 0)
            some_fault();
        if (rnd(60) == 0)
            connect_two();
        else
            one_call();
    }
}

static void start_with(uint64_t number)
{
    state = number * 2 + 1;
    for (unsigned i = 0; i < 10; i++)
        next();
    shuffle_garbage();
    known = 0;
}

/* A PZ, EVDs of every kind, and the arena, on this IA. */
static void begin_on(DAT_IA_HANDLE number, unsigned which)
{
    static const unsigned flags[] = {DAT_EVD_CR_FLAG, DAT_EVD_CONNECTION_FLAG, DAT_EVD_DTO_FLAG, DAT_EVD_DTO_FLAG};
    DAT_HANDLE ia = raw(number);
    DAT_REGION_DESCRIPTION region = {.for_va = arena};
    DAT_PZ_HANDLE pz;

    born(ia, IA, ia);
    OK(dat_pz_create(number, &pz));
    born(pz, PZ, ia);
    for (unsigned i = 0; i < 4; i++) {
        DAT_EVD_HANDLE evd;

        OK(dat_evd_create(number, 32, DAT_HANDLE_NULL, flags[i], &evd));
        born(evd, EVD, ia);
        objects[known - 1].flags = flags[i];
    }
    for (unsigned i = which; i < 64; i += 2) {
        DAT_LMR_HANDLE lmr;

        if (i >= 8) {
            contexts[i] = contexts[which];
            continue;
        }
        OK(dat_lmr_create(number, DAT_MEM_TYPE_VIRTUAL, region, sizeof arena, pz, DAT_MEM_PRIV_ALL_FLAG, 0, &lmr,
                          &contexts[i].lmr, &contexts[i].rmr, NULL, NULL));
        contexts[i].ia = ia;
        born(lmr, LMR, ia);
    }
}

/* Until all have what they need, there are no faults. */
static pthread_barrier_t ready;

struct player {
    pthread_t thread;
    uint64_t number;
    int faulty;
};

static void *play(void *arg)
{
    struct player *player = arg;

    start_with(player->number);
    begin_on(a.ia, 0);
    begin_on(b.ia, 1);
    pthread_barrier_wait(&ready);
    calls(1000, player->faulty);
    return NULL;
}

/* One life: two IAs, a while of calls from one thread or from three, the end of everything. */
static void life(uint64_t number)
{
    struct side *sides[2] = {&a, &b};
    struct player players[3];
    int faulty = number % 3 == 2;

    several = number % 4 == 3;
    start_with(number);
    for (int i = 0; i < 2; i++) {
        side_open(sides[i], ia_names[i]);
        table = *(const DAT_PROVIDER **)raw(sides[i]->ia);
        address = sides[i]->attr.ia_address_ptr;
        begin_on(sides[i]->ia, i);
        born(sides[i]->async, EVD, raw(sides[i]->ia));
    }
    pthread_barrier_init(&ready, NULL, 3);
    for (int i = 0; several && i < 3; i++) {
        players[i] = (struct player){.number = number * 1000 + i, .faulty = faulty};
        CHECK(pthread_create(&players[i].thread, NULL, play, &players[i]) == 0);
    }
    if (several)
        for (int i = 0; i < 3; i++)
            CHECK(pthread_join(players[i].thread, NULL) == 0);
    else
        calls(3000, faulty);
    emu("no faults");
    /* What the fuzzing opened; the IAs that libdat2 knows go through libdat2, if they are still there. */
    for (unsigned i = 0; i < known; i++)
        if (objects[i].live && objects[i].kind == IA && objects[i].handle != raw(a.ia) && objects[i].handle != raw(b.ia)) {
            now_calling = "ia_close at the end";
            OK(table->ia_close_func(objects[i].handle, DAT_CLOSE_ABRUPT_FLAG));
        }
    for (int i = 0; i < 2; i++) {
        int live = find(raw(sides[i]->ia), IA) != NULL;

        now_calling = "dat_ia_close";
        /* One that the fuzzing closed behind libdat2's back stays in its list of IAs. */
        EXPECT(live ? DAT_SUCCESS : HANDLE(IA), dat_ia_close(sides[i]->ia, DAT_CLOSE_ABRUPT_FLAG));
        free(sides[i]->memory);
        memset(sides[i], 0, sizeof *sides[i]);
    }
}

static long mappings(void)
{
    FILE *file = fopen("/proc/self/maps", "r");
    long lines = 0;

    for (int c; file && (c = getc(file)) != EOF;)
        lines += c == '\n';
    if (file)
        fclose(file);
    return lines;
}

static void print_descriptors(void)
{
    DIR *dir = opendir("/proc/self/fd");
    struct dirent *entry;

    while (dir && (entry = readdir(dir))) {
        char path[300], target[300];
        ssize_t n;

        snprintf(path, sizeof path, "/proc/self/fd/%s", entry->d_name);
        n = readlink(path, target, sizeof target - 1);
        if (n > 0)
            printf("descriptor %s: %.*s\n", entry->d_name, (int)n, target);
    }
    if (dir)
        closedir(dir);
}

/* Memory and mappings while no IA is open, life after life. Both may go up and down, and up at first: the provider keeps dead
 * handles (98,304 at most) and answers to datagram peers (for 70 s, 16,384 at most). So the least of a block of lives is
 * compared with the least of the first block after that. */
#define LIVES_OF_A_BLOCK 100
#define SETTLED_LIVES 500
#define SETTLED_MS 150000
/* The answers, with the EPs' memory that they hold. */
#define MORE_BYTES (24LL << 20)
#define MORE_MAPPINGS 64

static struct level {
    long long bytes;
    long mappings;
} settled, least;

static void check_memory(unsigned lives, long long since)
{
    static unsigned of_block;
    struct level now = {counted_bytes, mappings()};

    if (lives < SETTLED_LIVES || now_ms() - since < SETTLED_MS)
        return;
    if (of_block++ == 0)
        least = now;
    least.bytes = now.bytes < least.bytes ? now.bytes : least.bytes;
    least.mappings = now.mappings < least.mappings ? now.mappings : least.mappings;
    if (of_block < LIVES_OF_A_BLOCK)
        return;
    of_block = 0;
    if (settled.mappings == 0)
        settled = least;
    printf("after %u lives: at least %lld bytes and %ld mappings in the last %d; %lld and %ld at first; last seed %llu\n", lives,
           least.bytes, least.mappings, LIVES_OF_A_BLOCK, settled.bytes, settled.mappings, (unsigned long long)seed);
    CHECK(least.bytes <= settled.bytes + MORE_BYTES);
    CHECK(least.mappings <= settled.mappings + MORE_MAPPINGS);
}

int main(int argc, char **argv)
{
    int seconds = argc > 3 ? atoi(argv[3]) : 10;
    long long start = now_ms(), end = start + seconds * 1000LL;
    unsigned long long made = 0, done = 0;
    unsigned lives = 0, never = 0;
    struct holdings before;
    struct sigaction on = {.sa_handler = last_words};

    if (argc < 3) {
        printf("usage: %s IA IA [SECONDS [SEED]]\n", argv[0]);
        return 2;
    }
    setvbuf(stdout, NULL, _IOLBF, 0);
    ia_names = argv + 1;
    for (int i = 0; i < 4; i++)
        sigaction((int[]){SIGSEGV, SIGBUS, SIGABRT, SIGALRM}[i], &on, NULL);
    seed = argc > 4 ? strtoull(argv[4], NULL, 0) : (uint64_t)time(NULL);
    warm_up();
    before = holdings_at_rest();
    do {
        alarm(300);
        life(++seed);
        check_holdings(before);
        lives++;
        check_memory(lives, start);
        if (failures > 0) {
            printf("failed in the life with seed %llu (%s, %s)\n", (unsigned long long)seed,
                   several ? "three threads" : "one thread", seed % 3 == 2 ? "with faults" : "without faults");
            print_descriptors();
        }
    } while (now_ms() < end && failures == 0);
    for (unsigned i = 0; i < 79; i++) {
        made += calls_made[i];
        done += calls_done[i];
        if (!calls_made[i] && lives > 3)
            printf("slot %u was never called\n", i), never++;
    }
    CHECK(never == 0);
    printf("%u lives, %llu calls of which %llu succeeded, %u callbacks, last seed %llu\n", lives, made, done, called_back,
           (unsigned long long)seed);
    if (getenv("FUZZ_TABLE"))
        for (unsigned i = 0; i < 79; i++)
            printf("slot %2u: %7u calls, %7u succeeded\n", i, calls_made[i], calls_done[i]);
    return finish();
}
