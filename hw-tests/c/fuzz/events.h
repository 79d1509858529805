/* Random looks at events, and calls of several steps: connecting, counters. */
#ifndef FUZZ_EVENTS_H
#define FUZZ_EVENTS_H

#include "calls.h"

/* Destinations of datagrams, as events have told them. */
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

/* Mostly the handle of an EP that may send there. */
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

/* The EP that the provider has made for this request, which the program owns once it accepts the
 * request. */
static DAT_HANDLE ep_of(DAT_HANDLE cr)
{
    DAT_CR_PARAM param = {.local_ep_handle = DAT_HANDLE_NULL};
    int is_live;

    if (!find(cr, CR) || !DID(11, cr_query, CR, cr, OF_QUERY, cr, DAT_CR_FIELD_ALL, &param))
        return DAT_HANDLE_NULL;
    return find(param.local_ep_handle, EP) ? DAT_HANDLE_NULL : param.local_ep_handle;
}

/* A PZ of each IA with memory registered in it. */
static __thread struct home {
    DAT_HANDLE ia, pz;
} homes[2];

static DAT_HANDLE home_of(DAT_HANDLE ia)
{
    for (int i = 0; i < 2; i++)
        if (homes[i].ia == ia && find(homes[i].pz, PZ) && percent(75))
            return homes[i].pz;
    return any_handle(PZ);
}

/* EPs that connect_two has connected lately, with what belongs to each. */
#define PAIRED 16
static __thread struct connected {
    DAT_HANDLE ia, ep, srq, recv, request;
    /* Posts refused in a row because of the EP's state. */
    unsigned refused;
} paired[PAIRED];
static __thread unsigned pairs_made;

/* Connects EPs of the two IAs, as far as the objects at hand allow it. */
static void connect_two(void)
{
    DAT_HANDLE ia[2] = {current, NULL}, ep[2], evd, psp, cr;
    struct connected ends[2];
    int datagrams = percent(30);
    DAT_EVENT event;
    DAT_COUNT more;
    uint64_t qual = 46100;
    int is_live;

    noise = 0;
    for (int i = 0; i < 2; i++) {
        struct object *other = some(IA, 1, 0);
        DAT_EP_ATTR attr = ep_attr();
        struct connected *end = &ends[i];

        attr.service_type = datagrams;
        if (!other)
            return;
        current = ia[i] = i ? other->handle : current;
        *end = (struct connected){.ia = ia[i], .recv = any_of(EVD, 0x20), .request = any_of(EVD, 0x20)};
        if (percent(70) && find(end->srq = any_handle(SRQ), SRQ)
                ? !DID(59, ep_create_with_srq, IA, ia[i], OF_CREATE, ia[i], home_of(ia[i]), end->recv, end->request,
                       any_of(EVD, 0x40), end->srq, &attr, &ep[i])
                : !DID(25, ep_create, IA, ia[i], OF_CREATE, ia[i], home_of(ia[i]), end->recv, end->request,
                       any_of(EVD, 0x40), &attr, &ep[i]))
            return;
        born(ep[i], EP, ia[i]);
        end->ep = ep[i];
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
        if (DID(12, cr_accept, CR, cr, OF_CREATE | OF_GONE, cr, ep[1], 3, garbage)) {
            died(cr, CR);
            paired[pairs_made++ % PAIRED] = ends[0];
            paired[pairs_made++ % PAIRED] = ends[1];
        }
        return;
    }
}

/* Counters of an EP, an EVD, an IA or any other handle. */
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
        /* The call prints many lines, which are not checked. */
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

#endif
