/* One random call of any of the 79 slots. */
#ifndef FUZZ_SLOTS_H
#define FUZZ_SLOTS_H

#include "events.h"

/* True if several threads share the IAs. Then no thread opens or closes an IA. */
static int several;

/* The case of a query, whose mask is `all` or random. */
#define QUERY(number, name, kind, all)                                                                           \
    case number:                                                                                                 \
        h = any_handle(kind);                                                                                    \
        CALL(number, name, kind, h, OF_QUERY, h, any_mask(all), o);                                              \
        break;

/* The case of a call that frees an object. A live handle is freed in `share` percent of the calls,
 * so that objects live long enough. */
#define FREE(number, name, kind, share)                                                                          \
    case number:                                                                                                 \
        h = any_handle(kind);                                                                                    \
        if ((share) < 100 && find(h, kind) && !percent(share))                                                   \
            break;                                                                                               \
        if (DID(number, name, kind, h, OF_FREE, h))                                                              \
            died(h, kind);                                                                                       \
        break;

static void call_slot(unsigned slot)
{
    static DAT_NAME_PTR names[] = {"", "no such IA", "doorbell-none", NULL};
    DAT_REGION_DESCRIPTION region = {.for_va = arena + rnd(4) * 4096};
    DAT_OS_WAIT_PROXY_AGENT proxy = {garbage, percent(50) ? agent : NULL};
    DAT_CONTEXT context = {.as_64 = next()};
    DAT_RMR_COOKIE rmr_cookie = {.as_64 = next()};
    DAT_HANDLE h, ia, h2, made;
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
        if (judge(0, table->ia_open_func(name, any_size(), evd, o), OF_CREATE | T(DAT_PROVIDER_NOT_FOUND), 1, 0) ==
            DAT_SUCCESS) {
            ia = written(o);
            born(ia, IA, ia);
            /* The new IA's own EVD. If the new IA shares an EVD of another IA, that EVD ends with
             * the other IA, and so do the requests that the EVD reports. */
            if (async != (DAT_HANDLE)1 && !find(async, EVD))
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
        /* An IA is closed seldom, because its objects go with it. */
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
    QUERY(8, cno_query, CNO, 7)
    FREE(9, cno_free, CNO, 100)
    case 10:
        h = any_handle(CNO);
        CALL(10, cno_wait, CNO, h, OF_HANDLE | OF_STATE | T(DAT_TIMEOUT_EXPIRED) | T(DAT_QUEUE_EMPTY), h, timeout(), o);
        break;
    QUERY(11, cr_query, CR, DAT_CR_FIELD_ALL)
    case 12:
        h = any_handle(CR);
        ia = ia_of(h);
        h2 = or_null(EP);
        made = h2 ? DAT_HANDLE_NULL : ep_of(h);
        if (DID(12, cr_accept, CR, h, OF_CREATE | OF_GONE, h, h2, !nonsense() ? (int)rnd(60) : any_count(),
                in(NULL, 0))) {
            died(h, CR);
            born(made, EP, ia);
        }
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
        if (DID(15, evd_create, IA, ia, OF_CREATE, ia, !nonsense() ? 1 + (int)rnd(100) : any_size(),
                percent(70) ? DAT_HANDLE_NULL : any_handle(CNO), flags, o)) {
            NEW(EVD);
            objects[known - 1].flags = flags;
        }
        break;
    }
    QUERY(16, evd_query, EVD, DAT_EVD_FIELD_ALL)
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
        CALL(21, evd_resize, EVD, h, OF_HANDLE | OF_ARGUMENT | OF_STATE | OF_RESOURCES, h, any_size());
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
    FREE(24, evd_free, EVD, 30)
    case 25:
        ia = any_handle(IA);
        if (DID(25, ep_create, IA, ia, OF_CREATE, ia, any_handle(PZ), evd_or_null(0x20), evd_or_null(0x20),
                evd_or_null(0x40), attributes(), o))
            NEW(EP);
        break;
    QUERY(26, ep_query, EP, DAT_EP_FIELD_ALL)
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
    FREE(36, ep_free, EP, 30)
    case 37: {
        /* At most the whole arena: the device must not write anywhere else. */
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
            contexts[32 + rnd(32)] = (struct context){ia, context, rmr};
        }
        break;
    }
    QUERY(38, lmr_query, LMR, DAT_LMR_FIELD_ALL)
    FREE(39, lmr_free, LMR, 30)
    case 40:
        h = any_handle(PZ);
        ia = ia_of(h);
        if (DID(40, rmr_create, PZ, h, OF_CREATE, h, o))
            NEW(RMR);
        break;
    QUERY(41, rmr_query, RMR, DAT_RMR_FIELD_ALL)
    case 42:
        h = any_handle(RMR);
        CALL(42, rmr_bind, RMR, h, OF_POST | OF_MODEL, h, any_handle(LMR), segments(), any_flags(0x33), any_flags(0),
             any_handle(EP), rmr_cookie, post_flags(), o);
        break;
    FREE(43, rmr_free, RMR, 100)
    case 44:
        ia = any_handle(IA);
        if (DID(44, psp_create, IA, ia, OF_CREATE | T(DAT_CONN_QUAL_IN_USE) | T(DAT_CONN_QUAL_UNAVAILABLE), ia, qualifier(),
                any_of(EVD, 0x10), any_flags(0), o))
            NEW(PSP);
        break;
    QUERY(45, psp_query, PSP, DAT_PSP_FIELD_ALL)
    FREE(46, psp_free, PSP, 30)
    case 47:
        ia = any_handle(IA);
        if (DID(47, rsp_create, IA, ia, OF_CREATE | T(DAT_CONN_QUAL_IN_USE) | T(DAT_CONN_QUAL_UNAVAILABLE), ia, qualifier(),
                any_handle(EP), any_of(EVD, 0x10), o))
            NEW(RSP);
        break;
    QUERY(48, rsp_query, RSP, DAT_RSP_FIELD_ALL)
    FREE(49, rsp_free, RSP, 100)
    case 50:
        ia = any_handle(IA);
        if (DID(50, pz_create, IA, ia, OF_CREATE, ia, o))
            NEW(PZ);
        break;
    QUERY(51, pz_query, PZ, DAT_PZ_FIELD_ALL)
    FREE(52, pz_free, PZ, 100)
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
        DAT_SRQ_ATTR attr = {!nonsense() ? 1 + (int)rnd(64) : any_size(), !nonsense() ? 1 + (int)rnd(3) : any_count(),
                             !nonsense() ? 0 : any_count()};

        ia = any_handle(IA);
        if (DID(62, srq_create, IA, ia, OF_CREATE, ia, any_handle(PZ), in(&attr, sizeof attr), o))
            NEW(SRQ);
        break;
    }
    FREE(63, srq_free, SRQ, 30)
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
        CALL(66, srq_resize, SRQ, h, OF_HANDLE | OF_ARGUMENT | OF_STATE | OF_RESOURCES, h, any_size());
        break;
    case 67:
        h = any_handle(SRQ);
        CALL(67, srq_set_lw, SRQ, h, OF_HANDLE | OF_ARGUMENT | OF_RESOURCES, h, any_count());
        break;
    case 68: {
        DAT_COMM comm = {address->sa_family, SOCK_STREAM, percent(50) ? IPPROTO_TCP : 0};

        ia = any_handle(IA);
        if (DID(68, csp_create, IA, ia, OF_CREATE | T(DAT_INVALID_ADDRESS) | T(DAT_PORT_IN_USE) | T(DAT_COMM_NOT_SUPPORTED),
                ia, in(&comm, sizeof comm), percent(80) ? address : to_whom(), any_of(EVD, 0x10), o))
            NEW(CSP);
        break;
    }
    QUERY(69, csp_query, CSP, 0x1f)
    FREE(70, csp_free, CSP, 100)
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
        /* The provider might take a pointer among these arguments for a place to write to. */
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

static void one_call(void)
{
    static const unsigned often[] = {31, 31, 32, 64, 64, 22, 23, 23, 23, 28, 12, 12, 44, 59};

    call_slot(rnd(100) < 75 ? rnd(79) : often[rnd(14)]);
}

/* Posts to the two ends of a connection and takes events: messages, full queues, many completions.
 * Returns the number of slots called. */
static unsigned burst(void)
{
    static const unsigned traffic[] = {31, 31, 31, 31, 31, 31, 64, 64, 64, 64, 64, 64, 23, 23, 23, 23};
    unsigned n = 2 + rnd(40), at = rnd(PAIRED), made = 0;
    struct connected *from, *to;

    for (unsigned tries = 0; tries < PAIRED && !(find(paired[at].ep, EP) && find(paired[at ^ 1].ep, EP)); tries++)
        at = (at + 1) % PAIRED;
    from = &paired[at];
    to = &paired[at ^ 1];
    if (!find(from->ep, EP) || !find(to->ep, EP))
        return 0;
    while (made < n && from->refused < 4) {
        unsigned slot = rnd(60) ? traffic[rnd(16)] : 32 + rnd(3);
        int receives = slot == 64 || slot == 32;
        struct connected *end = receives || (slot == 23 && percent(50)) ? to : from;

        current = end->ia;
        favourite[EP] = end->ep;
        favourite[SRQ] = find(end->srq, SRQ) ? end->srq : NULL;
        favourite[EVD] = end == to ? end->recv : end->request;
        call_slot(slot == 64 && !favourite[SRQ] ? 32 : slot);
        made++;
        if (slot == 31)
            from->refused = DAT_GET_TYPE(last_code) == DAT_INVALID_STATE ? from->refused + 1 : 0;
    }
    /* The connection has ended. */
    if (from->refused == 4)
        from->ep = NULL;
    memset(favourite, 0, sizeof favourite);
    return made;
}

#endif
