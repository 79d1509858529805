/* What the C programs share: checks that say what they expected and where, and one end of a connection.
 *
 * Each program is called with the names of two IAs, prints a line for everything that is not as expected, and ends with
 * status 0 and "all N checks passed" only if there was none. */
#ifndef CHECK_H
#define CHECK_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include <netinet/in.h>
#include <stdint.h>

#define DAT_EXTENSIONS 1
#include <dat2/udat.h>
#include <dat2/dat_ib_extensions.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Tests of several threads count, too. */
static _Atomic unsigned checks, failures;

/* A call has to give exactly this DAT_RETURN. */
#define EXPECT(code, call)                                                                                       \
    do {                                                                                                         \
        DAT_RETURN got_ = (call);                                                                                \
        checks++;                                                                                                \
        if (got_ != (DAT_RETURN)(code)) {                                                                        \
            failures++;                                                                                          \
            printf("%s:%d: %s gave %#010x, not %#010x\n", __FILE__, __LINE__, #call, got_, (unsigned)(code));    \
        }                                                                                                        \
    } while (0)

#define OK(call) EXPECT(DAT_SUCCESS, call)

/* Something has to be true. */
#define CHECK(what)                                                                                              \
    do {                                                                                                         \
        checks++;                                                                                                \
        if (!(what)) {                                                                                           \
            failures++;                                                                                          \
            printf("%s:%d: not so: %s\n", __FILE__, __LINE__, #what);                                            \
        }                                                                                                        \
    } while (0)

#define LONG_TIME (20 * 1000 * 1000)
#define SHORT_TIME (100 * 1000)

static int finish(void)
{
    if (failures == 0)
        printf("all %u checks passed\n", checks);
    else
        printf("%u of %u checks failed\n", failures, checks);
    return failures != 0;
}

/* One end: an IA with all that a connection needs, and memory. */
struct side {
    DAT_IA_HANDLE ia;
    DAT_EVD_HANDLE async, cr, conn, recv, req;
    DAT_PZ_HANDLE pz;
    DAT_LMR_HANDLE lmr;
    DAT_LMR_CONTEXT lmr_context;
    DAT_RMR_CONTEXT rmr_context;
    DAT_IA_ATTR attr;
    char *memory;
};

#define MEMORY 65536

static void side_open(struct side *s, char *name)
{
    DAT_REGION_DESCRIPTION region;
    DAT_RETURN ret;

    memset(s, 0, sizeof *s);
    ret = dat_ia_open(name, 8, &s->async, &s->ia);
    if (ret != DAT_SUCCESS) {
        printf("dat_ia_open %s gave %#010x\n", name, ret);
        exit(1);
    }
    OK(dat_ia_query(s->ia, NULL, DAT_IA_FIELD_ALL, &s->attr, 0, NULL));
    OK(dat_pz_create(s->ia, &s->pz));
    OK(dat_evd_create(s->ia, 16, DAT_HANDLE_NULL, DAT_EVD_CR_FLAG, &s->cr));
    OK(dat_evd_create(s->ia, 16, DAT_HANDLE_NULL, DAT_EVD_CONNECTION_FLAG, &s->conn));
    OK(dat_evd_create(s->ia, 64, DAT_HANDLE_NULL, DAT_EVD_DTO_FLAG, &s->recv));
    OK(dat_evd_create(s->ia, 64, DAT_HANDLE_NULL, DAT_EVD_DTO_FLAG, &s->req));
    s->memory = calloc(1, MEMORY);
    region.for_va = s->memory;
    OK(dat_lmr_create(s->ia, DAT_MEM_TYPE_VIRTUAL, region, MEMORY, s->pz, DAT_MEM_PRIV_ALL_FLAG, DAT_VA_TYPE_VA,
                      &s->lmr, &s->lmr_context, &s->rmr_context, NULL, NULL));
}

static DAT_LMR_TRIPLET piece(struct side *s, unsigned offset, unsigned length)
{
    DAT_LMR_TRIPLET t = {(DAT_VADDR)(uintptr_t)(s->memory + offset), length, s->lmr_context};
    return t;
}

/* The next event of an EVD, which has to be of this kind. */
static DAT_EVENT next_event(DAT_EVD_HANDLE evd, DAT_EVENT_NUMBER number, const char *file, int line)
{
    DAT_EVENT event;
    DAT_COUNT more;
    DAT_RETURN ret;

    memset(&event, 0xA5, sizeof event);
    ret = dat_evd_wait(evd, LONG_TIME, 1, &event, &more);
    checks++;
    if (ret != DAT_SUCCESS || event.event_number != number || event.evd_handle != evd) {
        failures++;
        printf("%s:%d: waiting gave %#010x, event %#x, not event %#x\n", file, line, ret, event.event_number, number);
        if (ret != DAT_SUCCESS)
            exit(finish());
    }
    return event;
}
#define NEXT(evd, number) next_event(evd, number, __FILE__, __LINE__)

/* Connects an EP of one side to one of the other, through a PSP at this qualifier. */
static void join(struct side *a, DAT_EP_HANDLE ea, struct side *b, DAT_EP_HANDLE eb, DAT_CONN_QUAL qual)
{
    DAT_PSP_HANDLE psp;
    DAT_CR_PARAM param;
    DAT_EVENT event;
    DAT_CR_HANDLE cr;
    char *data;

    OK(dat_psp_create(a->ia, qual, a->cr, DAT_PSP_CONSUMER_FLAG, &psp));
    OK(dat_ep_connect(eb, a->attr.ia_address_ptr, qual, LONG_TIME, 5, "hello", DAT_QOS_BEST_EFFORT,
                      DAT_CONNECT_DEFAULT_FLAG));
    event = NEXT(a->cr, DAT_CONNECTION_REQUEST_EVENT);
    CHECK(event.event_data.cr_arrival_event_data.sp_handle.psp_handle == psp);
    CHECK(event.event_data.cr_arrival_event_data.conn_qual == qual);
    cr = event.event_data.cr_arrival_event_data.cr_handle;
    memset(&param, 0xA5, sizeof param);
    OK(dat_cr_query(cr, DAT_CR_FIELD_ALL, &param));
    CHECK(param.private_data_size >= 5 && memcmp(param.private_data, "hello", 5) == 0);
    CHECK(param.remote_ia_address_ptr->sa_family == b->attr.ia_address_ptr->sa_family);
    CHECK(param.local_ep_handle == DAT_HANDLE_NULL);
    /* The request's own buffer may be written to, and goes back as the answer. */
    data = param.private_data;
    data[0] = 'H';
    OK(dat_cr_accept(cr, ea, 5, data));
    event = NEXT(b->conn, DAT_CONNECTION_EVENT_ESTABLISHED);
    CHECK(event.event_data.connect_event_data.ep_handle == eb);
    CHECK(event.event_data.connect_event_data.private_data_size >= 5);
    CHECK(memcmp(event.event_data.connect_event_data.private_data, "Hello", 5) == 0);
    event = NEXT(a->conn, DAT_CONNECTION_EVENT_ESTABLISHED);
    CHECK(event.event_data.connect_event_data.ep_handle == ea);
    OK(dat_psp_free(psp));
}

static DAT_EP_ATTR ep_attr(void)
{
    DAT_EP_ATTR attr;

    memset(&attr, 0, sizeof attr);
    attr.max_recv_dtos = attr.max_request_dtos = 8;
    attr.max_recv_iov = attr.max_request_iov = 2;
    attr.srq_soft_hw = DAT_HW_DEFAULT;
    return attr;
}

#endif
