/* What programs for DAT 2.0 (check.h) and those for DAT 1.2 (../c12/check.h) share: checks that say
 * what they expected and where, and one end of a connection. The DAT headers come first, and where
 * the versions differ:
 *
 *     VA_TYPE     the argument of dat_lmr_create that only 2.0 has, with its comma
 *
 * Each program is called with the names of two IAs, prints a line for everything that is not as
 * expected, and ends with status 0 and "all N checks passed" only if there was none. */
#ifndef COMMON_H
#define COMMON_H

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Atomic, because tests have several threads. */
static _Atomic unsigned checks, failures;
static char first_failure[400];

/* Says that something is not as expected. `finish` repeats the first text, because logs show their
 * end only. */
__attribute__((format(printf, 1, 2))) static void complain(const char *format, ...)
{
    char text[sizeof first_failure];
    va_list args;

    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (failures++ == 0)
        memcpy(first_failure, text, sizeof text);
    printf("%s\n", text);
}

/* A call has to give exactly this DAT_RETURN. */
#define EXPECT(code, call)                                                                                       \
    do {                                                                                                         \
        DAT_RETURN got_ = (call);                                                                                \
        checks++;                                                                                                \
        if (got_ != (DAT_RETURN)(code)) {                                                                        \
            complain("%s:%d: %s gave %#010x, not %#010x", __FILE__, __LINE__, #call, got_, (unsigned)(code));    \
        }                                                                                                        \
    } while (0)

#define OK(call) EXPECT(DAT_SUCCESS, call)

/* A call has to give this type of code, whatever its class and subtype. */
#define EXPECT_TYPE(type, call)                                                                                  \
    do {                                                                                                         \
        DAT_RETURN got_ = (call);                                                                                \
        checks++;                                                                                                \
        if (DAT_GET_TYPE(got_) != (type)) {                                                                      \
            complain("%s:%d: %s gave %#010x, not %s", __FILE__, __LINE__, #call, got_, #type);                   \
        }                                                                                                        \
    } while (0)

/* The condition has to be true. */
#define CHECK(what)                                                                                              \
    do {                                                                                                         \
        checks++;                                                                                                \
        if (!(what)) {                                                                                           \
            complain("%s:%d: not so: %s", __FILE__, __LINE__, #what);                                            \
        }                                                                                                        \
    } while (0)

#define ERROR(type, sub) (DAT_CLASS_ERROR | (type) | (sub))
#define ARG(n) ERROR(DAT_INVALID_PARAMETER, DAT_INVALID_ARG1 + (n)-1)
#define HANDLE(kind) ERROR(DAT_INVALID_HANDLE, DAT_INVALID_HANDLE_##kind)
#define STATE(sub) ERROR(DAT_INVALID_STATE, sub)

/* Microseconds. No step takes longer than the first, on a loaded machine. For as long as the second,
 * a test waits for an event that must not come. */
#define LONG_TIME (60 * 1000 * 1000)
#define SHORT_TIME (100 * 1000)

static int finish(void)
{
    if (failures == 0)
        printf("all %u checks passed\n", checks);
    else
        printf("%u of %u checks failed; the first: %s\n", failures, checks, first_failure);
    return failures != 0;
}

/* One end: an IA with all objects that a connection needs, and memory. */
struct side {
    DAT_IA_HANDLE ia;
    DAT_EVD_HANDLE async, cr, conn, recv, req;
    DAT_PZ_HANDLE pz;
    DAT_LMR_HANDLE lmr;
    DAT_LMR_CONTEXT lmr_context;
    DAT_RMR_CONTEXT rmr_context;
    DAT_IA_ATTR attr;
    DAT_PROVIDER_ATTR provider;
    char *memory;
};

#define MEMORY 65536

static void side_open(struct side *s, char *name)
{
    DAT_REGION_DESCRIPTION region;
    DAT_VLEN size;
    DAT_VADDR address;
    DAT_RETURN ret;

    memset(s, 0, sizeof *s);
    ret = dat_ia_open(name, 8, &s->async, &s->ia);
    if (ret != DAT_SUCCESS) {
        printf("dat_ia_open %s gave %#010x\n", name, ret);
        exit(1);
    }
    OK(dat_ia_query(s->ia, NULL, DAT_IA_FIELD_ALL, &s->attr, DAT_PROVIDER_FIELD_ALL, &s->provider));
    OK(dat_pz_create(s->ia, &s->pz));
    OK(dat_evd_create(s->ia, 16, DAT_HANDLE_NULL, DAT_EVD_CR_FLAG, &s->cr));
    OK(dat_evd_create(s->ia, 16, DAT_HANDLE_NULL, DAT_EVD_CONNECTION_FLAG, &s->conn));
    OK(dat_evd_create(s->ia, 64, DAT_HANDLE_NULL, DAT_EVD_DTO_FLAG, &s->recv));
    OK(dat_evd_create(s->ia, 64, DAT_HANDLE_NULL, DAT_EVD_DTO_FLAG | DAT_EVD_RMR_BIND_FLAG, &s->req));
    s->memory = calloc(1, MEMORY);
    memset(&region, 0, sizeof region);
    region.for_va = s->memory;
    OK(dat_lmr_create(s->ia, DAT_MEM_TYPE_VIRTUAL, region, MEMORY, s->pz, DAT_MEM_PRIV_ALL_FLAG, VA_TYPE &s->lmr,
                      &s->lmr_context, &s->rmr_context, &size, &address));
    CHECK(size >= MEMORY && address <= (DAT_VADDR)(uintptr_t)s->memory);
}

static DAT_LMR_TRIPLET piece(struct side *s, unsigned offset, unsigned length)
{
    DAT_LMR_TRIPLET t;

    memset(&t, 0xA5, sizeof t); /* 1.2 has a `pad`, which is nobody's. */
    t.lmr_context = s->lmr_context;
    t.virtual_address = (DAT_VADDR)(uintptr_t)(s->memory + offset);
    t.segment_length = length;
    return t;
}

/* The result of a query of an SRQ, of which every byte is written. */
static DAT_SRQ_PARAM look(DAT_SRQ_HANDLE srq)
{
    DAT_SRQ_PARAM param;

    memset(&param, 0xA5, sizeof param);
    OK(dat_srq_query(srq, DAT_SRQ_FIELD_ALL, &param));
    return param;
}

/* An SRQ has this many buffers available and outstanding. */
#define COUNTS(srq, free_, out)                                                                                  \
    do {                                                                                                         \
        DAT_SRQ_PARAM p_ = look(srq);                                                                            \
        checks++;                                                                                                \
        if (p_.available_dto_count != (int)(free_) || p_.outstanding_dto_count != (int)(out)) {                  \
            complain("%s:%d: available %d and outstanding %d, not %d and %d", __FILE__, __LINE__,                \
                   p_.available_dto_count, p_.outstanding_dto_count, (int)(free_), (int)(out));                  \
        }                                                                                                        \
    } while (0)

/* The next event of an EVD, which has to have this number. */
static DAT_EVENT next_event(DAT_EVD_HANDLE evd, DAT_EVENT_NUMBER number, const char *file, int line)
{
    DAT_EVENT event;
    DAT_COUNT more;
    DAT_RETURN ret;

    memset(&event, 0xA5, sizeof event);
    ret = dat_evd_wait(evd, LONG_TIME, 1, &event, &more);
    checks++;
    if (ret != DAT_SUCCESS || event.event_number != number || event.evd_handle != evd) {
        complain("%s:%d: waiting gave %#010x, event %#x, not event %#x", file, line, ret, event.event_number, number);
        if (ret != DAT_SUCCESS)
            exit(finish());
    }
    return event;
}
#define NEXT(evd, number) next_event(evd, number, __FILE__, __LINE__)

/* A client's EP connects to this qualifier. Returns the request, as it arrives at the side that
 * listens there. */
static DAT_CR_HANDLE request(struct side *at, DAT_EP_HANDLE client, DAT_CONN_QUAL qual)
{
    DAT_EVENT event;

    OK(dat_ep_connect(client, at->attr.ia_address_ptr, qual, LONG_TIME, 5, "hello", DAT_QOS_BEST_EFFORT,
                      DAT_CONNECT_DEFAULT_FLAG));
    event = NEXT(at->cr, DAT_CONNECTION_REQUEST_EVENT);
    CHECK(event.event_data.cr_arrival_event_data.conn_qual == qual);
    return event.event_data.cr_arrival_event_data.cr_handle;
}

/* Both ends get the event that the connection is established, the client with these private
 * data. */
static void both_established(struct side *a, DAT_EP_HANDLE ea, struct side *b, DAT_EP_HANDLE eb, const char *answer)
{
    DAT_EVENT event = NEXT(b->conn, DAT_CONNECTION_EVENT_ESTABLISHED);
    DAT_COUNT size = (DAT_COUNT)strlen(answer);

    CHECK(event.event_data.connect_event_data.ep_handle == eb);
    CHECK(event.event_data.connect_event_data.private_data_size >= size);
    CHECK(memcmp(event.event_data.connect_event_data.private_data, answer, (size_t)size) == 0);
    event = NEXT(a->conn, DAT_CONNECTION_EVENT_ESTABLISHED);
    CHECK(event.event_data.connect_event_data.ep_handle == ea);
}

/* Connects an EP of one side with one of the other, through a PSP at this qualifier. */
static void join(struct side *a, DAT_EP_HANDLE ea, struct side *b, DAT_EP_HANDLE eb, DAT_CONN_QUAL qual)
{
    DAT_PSP_HANDLE psp;
    DAT_PSP_PARAM psp_param;
    DAT_CR_PARAM param;
    DAT_CR_HANDLE cr;

    OK(dat_psp_create(a->ia, qual, a->cr, DAT_PSP_CONSUMER_FLAG, &psp));
    OK(dat_psp_query(psp, DAT_PSP_FIELD_ALL, &psp_param));
    CHECK(psp_param.conn_qual == qual && psp_param.evd_handle == a->cr);
    cr = request(a, eb, qual);
    memset(&param, 0xA5, sizeof param);
    OK(dat_cr_query(cr, DAT_CR_FIELD_ALL, &param));
    CHECK(param.private_data_size >= 5 && memcmp(param.private_data, "hello", 5) == 0);
    CHECK(param.remote_ia_address_ptr->sa_family == b->attr.ia_address_ptr->sa_family);
    CHECK(param.local_ep_handle == DAT_HANDLE_NULL);
    OK(dat_cr_accept(cr, ea, 2, "hi"));
    both_established(a, ea, b, eb, "hi");
    OK(dat_psp_free(psp));
}

#endif
