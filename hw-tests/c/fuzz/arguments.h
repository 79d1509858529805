/* Random arguments: mostly sensible, some nonsense. */
#ifndef FUZZ_ARGUMENTS_H
#define FUZZ_ARGUMENTS_H

#include "objects.h"

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

/* In a burst of calls, the objects that most of the calls take. */
static __thread DAT_HANDLE favourite[KINDS];

static DAT_HANDLE any_of(enum kind kind, unsigned flags)
{
    struct object *object;
    unsigned p = rnd(100);

    if (!nonsense() && kind == IA && current)
        return current;
    if (favourite[kind] && !nonsense() && percent(90))
        return favourite[kind];
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
        /* The provider's table comes first, where libdat2 looks for it. */
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

/* The size of an object. Large ones are less frequent, because their memory takes most of the time. */
static int any_size(void)
{
    int n = any_count();

    return n > 4096 && n < INT_MAX && !percent(10) ? 1 + n % 1000 : n;
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

/* An argument that the call reads: NULL, garbage of any alignment, or this structure, in place or
 * at an odd address. */
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

/* An argument that the call writes. */
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
    return percent(75) ? 0 : rnd(percent(90) ? 100 : 2000);
}

/* A context, mostly of this IA. */
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

    return any_flags(favourite[EP] && percent(80) ? 0 : flags[rnd(10)]);
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
        e.max_recv_dtos = any_size();
    if (nonsense())
        e.max_request_dtos = any_size();
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
    /* Half of the addresses are this host's, the others garbage. */
    if (percent(50))
        memcpy(other + 4, "\x7f\0\0\1", 4);
    return (struct sockaddr *)(other + rnd(2));
}

#endif
