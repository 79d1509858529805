/* A DAT 2.0 provider that records its calls and returns what the test has set, as the other side of
 * libdat.so.1. It includes the headers of libdat2 only. */
#include <netinet/in.h>

#define DAT_EXTENSIONS 1
#include <dat2/udat.h>
#include <dat2/dat_registry.h>
#include <dat2/dat_ib_extensions.h>
#include <string.h>

#include "mock.h"

/* The test finds it by name: libdat2 makes the symbols of its providers global. */
struct mock mock;

static DAT_PROVIDER table;
static struct {
    DAT_PROVIDER *table; /* first, as libdat2 has it */
} objects[MOCK_HANDLES];

static DAT_RETURN called(const char *name, int n, const uint64_t *arguments)
{
    mock.name = name;
    memset(mock.arguments, 0, sizeof mock.arguments);
    memcpy(mock.arguments, arguments, (size_t)n * sizeof *arguments);
    return mock.answer;
}

#define CALLED(name, ...)                                                                                              \
    called(name, sizeof((uint64_t[]){__VA_ARGS__}) / 8, (const uint64_t[]){__VA_ARGS__})

#define N NUMBER

#define SLOT1(name, A)                                                                                                 \
    static DAT_RETURN name(A a) { return CALLED(#name, N(a)); }
#define SLOT2(name, A, B)                                                                                              \
    static DAT_RETURN name(A a, B b) { return CALLED(#name, N(a), N(b)); }
#define SLOT3(name, A, B, C)                                                                                           \
    static DAT_RETURN name(A a, B b, C c) { return CALLED(#name, N(a), N(b), N(c)); }
#define SLOT4(name, A, B, C, D)                                                                                        \
    static DAT_RETURN name(A a, B b, C c, D d) { return CALLED(#name, N(a), N(b), N(c), N(d)); }
#define SLOT5(name, A, B, C, D, E)                                                                                     \
    static DAT_RETURN name(A a, B b, C c, D d, E e) { return CALLED(#name, N(a), N(b), N(c), N(d), N(e)); }
#define SLOT6(name, A, B, C, D, E, F)                                                                                  \
    static DAT_RETURN name(A a, B b, C c, D d, E e, F f) { return CALLED(#name, N(a), N(b), N(c), N(d), N(e), N(f)); }
#define SLOT8(name, A, B, C, D, E, F, G, H)                                                                            \
    static DAT_RETURN name(A a, B b, C c, D d, E e, F f, G g, H h)                                                     \
    {                                                                                                                  \
        return CALLED(#name, N(a), N(b), N(c), N(d), N(e), N(f), N(g), N(h));                                          \
    }

SLOT2(ia_close, DAT_IA_HANDLE, DAT_CLOSE_FLAGS)
SLOT2(cno_free_, DAT_CNO_HANDLE, int)
SLOT3(cno_wait, DAT_CNO_HANDLE, DAT_TIMEOUT, DAT_EVD_HANDLE *)
SLOT3(cr_query, DAT_CR_HANDLE, DAT_CR_PARAM_MASK, DAT_CR_PARAM *)
SLOT4(cr_accept, DAT_CR_HANDLE, DAT_EP_HANDLE, DAT_COUNT, const DAT_PVOID)
SLOT3(cr_reject, DAT_CR_HANDLE, DAT_COUNT, const DAT_PVOID)
SLOT2(cr_handoff, DAT_CR_HANDLE, DAT_CONN_QUAL)
SLOT5(evd_create, DAT_IA_HANDLE, DAT_COUNT, DAT_CNO_HANDLE, DAT_EVD_FLAGS, DAT_EVD_HANDLE *)
SLOT3(evd_query, DAT_EVD_HANDLE, DAT_EVD_PARAM_MASK, DAT_EVD_PARAM *)
SLOT2(evd_modify_cno, DAT_EVD_HANDLE, DAT_CNO_HANDLE)
SLOT1(evd_enable, DAT_EVD_HANDLE)
SLOT1(evd_disable, DAT_EVD_HANDLE)
SLOT2(evd_resize, DAT_EVD_HANDLE, DAT_COUNT)
SLOT1(evd_free, DAT_EVD_HANDLE)
SLOT1(evd_set_unwaitable, DAT_EVD_HANDLE)
SLOT1(evd_clear_unwaitable, DAT_EVD_HANDLE)
SLOT8(ep_connect, DAT_EP_HANDLE, DAT_IA_ADDRESS_PTR, DAT_CONN_QUAL, DAT_TIMEOUT, DAT_COUNT, const DAT_PVOID, DAT_QOS,
      DAT_CONNECT_FLAGS)
SLOT6(ep_dup_connect, DAT_EP_HANDLE, DAT_EP_HANDLE, DAT_TIMEOUT, DAT_COUNT, const DAT_PVOID, DAT_QOS)
SLOT2(ep_disconnect, DAT_EP_HANDLE, DAT_CLOSE_FLAGS)
SLOT1(ep_free, DAT_EP_HANDLE)
SLOT1(ep_reset, DAT_EP_HANDLE)
SLOT3(ep_recv_query, DAT_EP_HANDLE, DAT_COUNT *, DAT_COUNT *)
SLOT3(ep_set_watermark, DAT_EP_HANDLE, DAT_COUNT, DAT_COUNT)
SLOT1(lmr_free, DAT_LMR_HANDLE)
SLOT2(rmr_create, DAT_PZ_HANDLE, DAT_RMR_HANDLE *)
SLOT1(rmr_free, DAT_RMR_HANDLE)
SLOT5(psp_create, DAT_IA_HANDLE, DAT_CONN_QUAL, DAT_EVD_HANDLE, DAT_PSP_FLAGS, DAT_PSP_HANDLE *)
SLOT5(psp_create_any, DAT_IA_HANDLE, DAT_CONN_QUAL *, DAT_EVD_HANDLE, DAT_PSP_FLAGS, DAT_PSP_HANDLE *)
SLOT3(psp_query, DAT_PSP_HANDLE, DAT_PSP_PARAM_MASK, DAT_PSP_PARAM *)
SLOT1(psp_free, DAT_PSP_HANDLE)
SLOT5(rsp_create, DAT_IA_HANDLE, DAT_CONN_QUAL, DAT_EP_HANDLE, DAT_EVD_HANDLE, DAT_RSP_HANDLE *)
SLOT3(rsp_query, DAT_RSP_HANDLE, DAT_RSP_PARAM_MASK, DAT_RSP_PARAM *)
SLOT1(rsp_free, DAT_RSP_HANDLE)
SLOT2(pz_create, DAT_IA_HANDLE, DAT_PZ_HANDLE *)
SLOT3(pz_query, DAT_PZ_HANDLE, DAT_PZ_PARAM_MASK, DAT_PZ_PARAM *)
SLOT1(pz_free, DAT_PZ_HANDLE)
SLOT4(srq_create, DAT_IA_HANDLE, DAT_PZ_HANDLE, DAT_SRQ_ATTR *, DAT_SRQ_HANDLE *)
SLOT1(srq_free, DAT_SRQ_HANDLE)
SLOT2(srq_resize, DAT_SRQ_HANDLE, DAT_COUNT)
SLOT2(srq_set_lw, DAT_SRQ_HANDLE, DAT_COUNT)

static DAT_RETURN cno_free(DAT_CNO_HANDLE cno)
{
    return cno_free_(cno, 0);
}

static DAT_RETURN ia_open(const DAT_NAME_PTR name, DAT_COUNT qlen, DAT_EVD_HANDLE *async, DAT_IA_HANDLE *ia)
{
    (void)name, (void)qlen;
    *async = &objects[1];
    *ia = &objects[0];
    return DAT_SUCCESS;
}

static DAT_RETURN set_consumer_context(DAT_HANDLE handle, DAT_CONTEXT context)
{
    return CALLED("set_consumer_context", N(handle), context.as_64);
}

static DAT_RETURN get_consumer_context(DAT_HANDLE handle, DAT_CONTEXT *context)
{
    context->as_64 = mock.words[0];
    return CALLED("get_consumer_context", N(handle));
}

static DAT_RETURN get_handle_type(DAT_HANDLE handle, DAT_HANDLE_TYPE *type)
{
    *type = (DAT_HANDLE_TYPE)mock.state;
    return CALLED("get_handle_type", N(handle));
}

/* Stores the next value of `out` into a field that the mask names. */
#define GIVE(prefix, field, bit)                                                                                       \
    if ((mask & prefix##bit) != 0) {                                                                                   \
        to->field = (__typeof__(to->field))(uintptr_t)mock.out[i];                                                     \
        mock.named++;                                                                                                  \
    }                                                                                                                  \
    i++;

static DAT_RETURN ia_query(DAT_IA_HANDLE ia, DAT_EVD_HANDLE *async, DAT_IA_ATTR_MASK ia_mask, DAT_IA_ATTR *ia_attr,
                           DAT_PROVIDER_ATTR_MASK provider_mask, DAT_PROVIDER_ATTR *provider)
{
    int i = 0;

    (void)ia;
    if (async != NULL)
        *async = &objects[1];
    mock.named = 0;
    if (ia_mask != 0) {
        DAT_IA_ATTR *to = ia_attr;
        DAT_IA_ATTR_MASK mask = ia_mask;
#define IA(field, bit) GIVE(DAT_IA_FIELD_IA_, field, bit)
        IA_FIELDS(IA)
        if ((mask & DAT_IA_FIELD_IA_VENDOR_NAME) != 0)
            strcpy(to->vendor_name, "mock vendor");
        if ((mask & DAT_IA_FIELD_IA_MAX_RDMA_READ_PER_EP_OUT_GUARANTEED) != 0)
            to->max_rdma_read_per_ep_out_guaranteed = DAT_TRUE;
    }
    if (provider_mask != 0) {
        DAT_PROVIDER_ATTR *to = provider;
        DAT_PROVIDER_ATTR_MASK mask = provider_mask;
#define PROVIDER(field, bit) GIVE(DAT_PROVIDER_FIELD_, field, bit)
        PROVIDER_FIELDS(PROVIDER)
        to->dapl_version_major = 2;
        to->dapl_version_minor = 0;
        to->is_thread_safe = DAT_FALSE;
        to->iov_ownership_on_return = (DAT_IOV_OWNERSHIP)mock.iov_ownership;
        to->pz_support = (DAT_PZ_SUPPORT)mock.pz_support;
        to->srq_supported = DAT_TRUE;
        to->rdma_write_for_rdma_read_req = DAT_TRUE;
        for (i = 0; i < 36; i++)
            ((DAT_BOOLEAN *)(uintptr_t)to->evd_stream_merging_supported)[i] = i % 7 == 0 ? DAT_TRUE : DAT_FALSE;
    }
    /* libdat2 calls this as well, so it does not return the answer of the test. */
    return DAT_SUCCESS;
}

static DAT_RETURN cno_create(DAT_IA_HANDLE ia, DAT_OS_WAIT_PROXY_AGENT agent, DAT_CNO_HANDLE *cno)
{
    *cno = &objects[MOCK_HANDLES - 1];
    return CALLED("cno_create", N(ia), N(agent.instance_data), N(agent.proxy_agent_func));
}

static DAT_RETURN cno_modify_agent(DAT_CNO_HANDLE cno, DAT_OS_WAIT_PROXY_AGENT agent)
{
    return CALLED("cno_modify_agent", N(cno), N(agent.instance_data), N(agent.proxy_agent_func));
}

static DAT_RETURN cno_query(DAT_CNO_HANDLE cno, DAT_CNO_PARAM_MASK mask, DAT_CNO_PARAM *param)
{
    if (mask != DAT_CNO_FIELD_ALL)
        return DAT_CLASS_ERROR | DAT_INTERNAL_ERROR;
    param->ia_handle = (DAT_IA_HANDLE)(uintptr_t)mock.words[0];
    param->proxy_type = (DAT_PROXY_TYPE)mock.state;
    param->proxy.agent.instance_data = (DAT_PVOID)(uintptr_t)mock.words[1];
    param->proxy.agent.proxy_agent_func = (DAT_AGENT_FUNC)(uintptr_t)mock.words[2];
    return CALLED("cno_query", N(cno));
}

/* The fields of an event have the words of its data. */
static void make_event(DAT_EVENT *event)
{
    memset(event, 0xA5, sizeof *event);
    event->event_number = (DAT_EVENT_NUMBER)mock.event;
    event->evd_handle = &objects[2];
    switch (mock.event) {
    case DAT_DTO_COMPLETION_EVENT:
    case DAT_IB_DTO_EVENT: {
        DAT_DTO_COMPLETION_EVENT_DATA *d = &event->event_data.dto_completion_event_data;
        d->ep_handle = (DAT_EP_HANDLE)(uintptr_t)mock.words[0];
        d->user_cookie.as_64 = mock.words[1];
        d->status = (DAT_DTO_COMPLETION_STATUS)mock.words[2];
        d->transfered_length = (DAT_SEG_LENGTH)mock.words[3];
        ((DAT_IB_EXTENSION_EVENT_DATA *)&event->event_extension_data)->type = (DAT_IB_EXT_TYPE)mock.extension;
        break;
    }
    case DAT_RMR_BIND_COMPLETION_EVENT: {
        DAT_RMR_BIND_COMPLETION_EVENT_DATA *d = &event->event_data.rmr_completion_event_data;
        d->rmr_handle = (DAT_RMR_HANDLE)(uintptr_t)mock.words[0];
        d->user_cookie.as_64 = mock.words[1];
        d->status = (DAT_DTO_COMPLETION_STATUS)mock.words[2];
        break;
    }
    case DAT_CONNECTION_REQUEST_EVENT: {
        DAT_CR_ARRIVAL_EVENT_DATA *d = &event->event_data.cr_arrival_event_data;
        d->sp_handle.psp_handle = (DAT_PSP_HANDLE)(uintptr_t)mock.words[0];
        d->local_ia_address_ptr = (DAT_IA_ADDRESS_PTR)(uintptr_t)mock.words[1];
        d->conn_qual = mock.words[2];
        d->cr_handle = (DAT_CR_HANDLE)(uintptr_t)mock.words[3];
        break;
    }
    case DAT_SOFTWARE_EVENT:
        event->event_data.software_event_data.pointer = (DAT_PVOID)(uintptr_t)mock.words[0];
        break;
    default:
        if (mock.event >= DAT_CONNECTION_EVENT_ESTABLISHED && mock.event <= DAT_CONNECTION_EVENT_UNREACHABLE) {
            DAT_CONNECTION_EVENT_DATA *d = &event->event_data.connect_event_data;
            d->ep_handle = (DAT_EP_HANDLE)(uintptr_t)mock.words[0];
            d->private_data_size = (DAT_COUNT)mock.words[1];
            d->private_data = (DAT_PVOID)(uintptr_t)mock.words[2];
        } else {
            DAT_ASYNCH_ERROR_EVENT_DATA *d = &event->event_data.asynch_error_event_data;
            d->dat_handle = (DAT_HANDLE)(uintptr_t)mock.words[0];
            d->reason = (DAT_COUNT)mock.words[1];
        }
    }
}

static DAT_RETURN evd_wait(DAT_EVD_HANDLE evd, DAT_TIMEOUT timeout, DAT_COUNT threshold, DAT_EVENT *event, DAT_COUNT *more)
{
    if (more != NULL)
        *more = 3;
    if (event != NULL && mock.answer == DAT_SUCCESS)
        make_event(event);
    return CALLED("evd_wait", N(evd), timeout, N(threshold), event != NULL, more != NULL);
}

static DAT_RETURN evd_dequeue(DAT_EVD_HANDLE evd, DAT_EVENT *event)
{
    if (event != NULL && mock.answer == DAT_SUCCESS)
        make_event(event);
    return CALLED("evd_dequeue", N(evd), event != NULL);
}

static DAT_RETURN evd_post_se(DAT_EVD_HANDLE evd, const DAT_EVENT *event)
{
    if (event != NULL) {
        mock.event = event->event_number;
        mock.words[0] = N(event->event_data.software_event_data.pointer);
    }
    return CALLED("evd_post_se", N(evd), event != NULL);
}

static void take_ep_attr(const DAT_EP_ATTR *attr)
{
    int i = 0;

#define TAKE_ATTR(field, bit) mock.in[i++] = N(attr->field);
    EP_ATTR_FIELDS(TAKE_ATTR)
}

static DAT_RETURN ep_create(DAT_IA_HANDLE ia, DAT_PZ_HANDLE pz, DAT_EVD_HANDLE recv, DAT_EVD_HANDLE request,
                            DAT_EVD_HANDLE connect, const DAT_EP_ATTR *attr, DAT_EP_HANDLE *ep)
{
    if (attr != NULL)
        take_ep_attr(attr);
    *ep = &objects[MOCK_HANDLES - 1];
    return CALLED("ep_create", N(ia), N(pz), N(recv), N(request), N(connect), attr != NULL);
}

static DAT_RETURN ep_create_with_srq(DAT_IA_HANDLE ia, DAT_PZ_HANDLE pz, DAT_EVD_HANDLE recv, DAT_EVD_HANDLE request,
                                     DAT_EVD_HANDLE connect, DAT_SRQ_HANDLE srq, const DAT_EP_ATTR *attr,
                                     DAT_EP_HANDLE *ep)
{
    if (attr != NULL)
        take_ep_attr(attr);
    *ep = &objects[MOCK_HANDLES - 1];
    return CALLED("ep_create_with_srq", N(ia), N(pz), N(recv), N(request), N(connect), N(srq), attr != NULL);
}

static DAT_RETURN ep_query(DAT_EP_HANDLE ep, DAT_EP_PARAM_MASK mask, DAT_EP_PARAM *param)
{
    int i = 0;

    mock.mask = mask;
    mock.named = 0;
    if (param != NULL) {
        DAT_EP_PARAM *to = param;
#define EP_PARAM(field, bit) GIVE(DAT_EP_FIELD_, field, bit)
#define EP_ATTR(field, bit) GIVE(DAT_EP_FIELD_, ep_attr.field, bit)
        EP_PARAM_FIELDS(EP_PARAM)
        EP_ATTR_FIELDS(EP_ATTR)
    }
    return CALLED("ep_query", N(ep), param != NULL);
}

static DAT_RETURN ep_modify(DAT_EP_HANDLE ep, DAT_EP_PARAM_MASK mask, const DAT_EP_PARAM *param)
{
    int i = 0;

    mock.mask = mask;
    mock.named = 0;
    if (param != NULL) {
#define TAKE(field, bit)                                                                                               \
    if ((mask & DAT_EP_FIELD_##bit) != 0) {                                                                            \
        mock.in[i] = N(param->field);                                                                                  \
        mock.named++;                                                                                                  \
    }                                                                                                                  \
    i++;
#define TAKE_OF_ATTR(field, bit) TAKE(ep_attr.field, bit)
        EP_PARAM_FIELDS(TAKE)
        EP_ATTR_FIELDS(TAKE_OF_ATTR)
    }
    return CALLED("ep_modify", N(ep), param != NULL);
}

static void take_segments(DAT_COUNT n, const DAT_LMR_TRIPLET *iov)
{
    mock.segments_of_all_calls += (uint64_t)n;
    for (int i = 0; iov != NULL && i < n && i < MOCK_SEGMENTS; i++) {
        mock.local[i].address = iov[i].virtual_address;
        mock.local[i].length = iov[i].segment_length;
        mock.local[i].context = iov[i].lmr_context;
    }
}

static void take_remote(const DAT_RMR_TRIPLET *remote)
{
    if (remote == NULL)
        return;
    mock.remote.address = remote->virtual_address;
    mock.remote.length = remote->segment_length;
    mock.remote.context = remote->rmr_context;
}

static DAT_RETURN ep_post_send(DAT_EP_HANDLE ep, DAT_COUNT n, DAT_LMR_TRIPLET *iov, DAT_DTO_COOKIE cookie,
                               DAT_COMPLETION_FLAGS flags)
{
    take_segments(n, iov);
    return CALLED("ep_post_send", N(ep), N(n), iov != NULL, cookie.as_64, flags);
}

static DAT_RETURN ep_post_recv(DAT_EP_HANDLE ep, DAT_COUNT n, DAT_LMR_TRIPLET *iov, DAT_DTO_COOKIE cookie,
                               DAT_COMPLETION_FLAGS flags)
{
    take_segments(n, iov);
    return CALLED("ep_post_recv", N(ep), N(n), iov != NULL, cookie.as_64, flags);
}

static DAT_RETURN ep_post_rdma_read(DAT_EP_HANDLE ep, DAT_COUNT n, DAT_LMR_TRIPLET *iov, DAT_DTO_COOKIE cookie,
                                    const DAT_RMR_TRIPLET *remote, DAT_COMPLETION_FLAGS flags)
{
    take_segments(n, iov);
    take_remote(remote);
    return CALLED("ep_post_rdma_read", N(ep), N(n), iov != NULL, cookie.as_64, remote != NULL, flags);
}

static DAT_RETURN ep_post_rdma_write(DAT_EP_HANDLE ep, DAT_COUNT n, DAT_LMR_TRIPLET *iov, DAT_DTO_COOKIE cookie,
                                     const DAT_RMR_TRIPLET *remote, DAT_COMPLETION_FLAGS flags)
{
    take_segments(n, iov);
    take_remote(remote);
    return CALLED("ep_post_rdma_write", N(ep), N(n), iov != NULL, cookie.as_64, remote != NULL, flags);
}

static DAT_RETURN srq_post_recv(DAT_SRQ_HANDLE srq, DAT_COUNT n, DAT_LMR_TRIPLET *iov, DAT_DTO_COOKIE cookie)
{
    take_segments(n, iov);
    return CALLED("srq_post_recv", N(srq), N(n), iov != NULL, cookie.as_64);
}

static DAT_RETURN ep_get_status(DAT_EP_HANDLE ep, DAT_EP_STATE *state, DAT_BOOLEAN *recv_idle, DAT_BOOLEAN *request_idle)
{
    if (state != NULL)
        *state = (DAT_EP_STATE)mock.state;
    return CALLED("ep_get_status", N(ep), state != NULL, N(recv_idle), N(request_idle));
}

static DAT_RETURN srq_query(DAT_SRQ_HANDLE srq, DAT_SRQ_PARAM_MASK mask, DAT_SRQ_PARAM *param)
{
    int i = 0;

    mock.named = 0;
    if (param != NULL) {
        DAT_SRQ_PARAM *to = param;
#define SRQ(field, bit) GIVE(DAT_SRQ_FIELD_, field, bit)
        SRQ_FIELDS(SRQ)
        if ((mask & DAT_SRQ_FIELD_SRQ_STATE) != 0)
            to->srq_state = (DAT_SRQ_STATE)mock.state;
    }
    return CALLED("srq_query", N(srq), mask, param != NULL);
}

static DAT_RETURN lmr_create(DAT_IA_HANDLE ia, DAT_MEM_TYPE type, DAT_REGION_DESCRIPTION region, DAT_VLEN length,
                             DAT_PZ_HANDLE pz, DAT_MEM_PRIV_FLAGS privileges, DAT_VA_TYPE va, DAT_LMR_HANDLE *lmr,
                             DAT_LMR_CONTEXT *context, DAT_RMR_CONTEXT *remote, DAT_VLEN *size, DAT_VADDR *address)
{
    *lmr = &objects[mock.words[0]];
    *context = (DAT_LMR_CONTEXT)mock.words[1];
    *remote = (DAT_RMR_CONTEXT)mock.words[2];
    *size = mock.words[3];
    *address = mock.words[4];
    return CALLED("lmr_create", N(ia), type, N(region.for_shared_memory.virtual_address),
                  N(region.for_shared_memory.shared_memory_id), length, N(pz), privileges, va);
}

static DAT_RETURN lmr_query(DAT_LMR_HANDLE lmr, DAT_LMR_PARAM_MASK mask, DAT_LMR_PARAM *param)
{
    int i = 0;

    mock.named = 0;
    if (param != NULL) {
        DAT_LMR_PARAM *to = param;
#define LMR(field, bit) GIVE(DAT_LMR_FIELD_, field, bit)
        LMR_FIELDS(LMR)
    }
    return CALLED("lmr_query", N(lmr), mask, param != NULL);
}

static DAT_RETURN lmr_sync_rdma_read(DAT_IA_HANDLE ia, const DAT_LMR_TRIPLET *segments, DAT_VLEN n)
{
    take_segments((DAT_COUNT)n, segments);
    return CALLED("lmr_sync_rdma_read", N(ia), segments != NULL, n);
}

static DAT_RETURN lmr_sync_rdma_write(DAT_IA_HANDLE ia, const DAT_LMR_TRIPLET *segments, DAT_VLEN n)
{
    take_segments((DAT_COUNT)n, segments);
    return CALLED("lmr_sync_rdma_write", N(ia), segments != NULL, n);
}

static DAT_RETURN rmr_query(DAT_RMR_HANDLE rmr, DAT_RMR_PARAM_MASK mask, DAT_RMR_PARAM *param)
{
    int i = 0;

    mock.named = 0;
    if (param != NULL) {
        DAT_RMR_PARAM *to = param;
#define RMR(field, bit) GIVE(DAT_RMR_FIELD_, field, bit)
        RMR_FIELDS(RMR)
    }
    CALLED("rmr_query", N(rmr), mask, param != NULL);
    /* libdat.so.1 queries before it binds. The answer that the test has set is for the bind. */
    return DAT_SUCCESS;
}

static DAT_RETURN rmr_bind(DAT_RMR_HANDLE rmr, DAT_LMR_HANDLE lmr, const DAT_LMR_TRIPLET *triplet,
                           DAT_MEM_PRIV_FLAGS privileges, DAT_VA_TYPE va, DAT_EP_HANDLE ep, DAT_RMR_COOKIE cookie,
                           DAT_COMPLETION_FLAGS flags, DAT_RMR_CONTEXT *context)
{
    take_segments(1, triplet);
    *context = 0x1234;
    return CALLED("rmr_bind", N(rmr), N(lmr), privileges, va, N(ep), cookie.as_64, flags);
}

static DAT_RETURN none(void)
{
    return DAT_CLASS_ERROR | DAT_NOT_IMPLEMENTED;
}

void dat_provider_init(const DAT_PROVIDER_INFO *info, const char *ia_params)
{
    int i = 0;

    (void)ia_params;
    /* Fills all slots, then those that have functions of their own. */
    for (void **slot = (void **)&table; slot < (void **)(&table + 1); slot++)
        *slot = (void *)(uintptr_t)none;
    table.device_name = info->ia_name;
    table.extension = NULL;
#define SET(name) table.name##_func = name;
    SET(ia_open) SET(ia_query) SET(ia_close) SET(set_consumer_context) SET(get_consumer_context) SET(get_handle_type)
    SET(cno_create) SET(cno_modify_agent) SET(cno_query) SET(cno_free) SET(cno_wait) SET(cr_query) SET(cr_accept)
    SET(cr_reject) SET(cr_handoff) SET(evd_create) SET(evd_query) SET(evd_modify_cno) SET(evd_enable) SET(evd_disable)
    SET(evd_wait) SET(evd_resize) SET(evd_post_se) SET(evd_dequeue) SET(evd_free) SET(ep_create) SET(ep_query)
    SET(ep_modify) SET(ep_connect) SET(ep_dup_connect) SET(ep_disconnect) SET(ep_post_send) SET(ep_post_recv)
    SET(ep_post_rdma_read) SET(ep_post_rdma_write) SET(ep_get_status) SET(ep_free) SET(lmr_create) SET(lmr_query)
    SET(lmr_free) SET(rmr_create) SET(rmr_query) SET(rmr_bind) SET(rmr_free) SET(psp_create) SET(psp_query)
    SET(psp_free) SET(rsp_create) SET(rsp_query) SET(rsp_free) SET(pz_create) SET(pz_query) SET(pz_free)
    SET(psp_create_any) SET(ep_reset) SET(evd_set_unwaitable) SET(evd_clear_unwaitable) SET(lmr_sync_rdma_read)
    SET(lmr_sync_rdma_write) SET(ep_create_with_srq) SET(ep_recv_query) SET(ep_set_watermark) SET(srq_create)
    SET(srq_free) SET(srq_post_recv) SET(srq_query) SET(srq_resize) SET(srq_set_lw)
    for (i = 0; i < MOCK_HANDLES; i++) {
        objects[i].table = &table;
        mock.handles[i] = &objects[i];
    }
    i = 0;
#define SUBTYPE(name) mock.subtypes[i++] = DAT_##name;
    SUBTYPES(SUBTYPE)
    i = 0;
#define TYPE(name) mock.types[i++] = DAT_##name;
    TYPES(TYPE)
    /* libdat.so.1 asks for the largest number of segments when it opens an IA. */
    for (i = 0; i < MOCK_NUMBERS; i++)
        mock.out[i] = 32;
    dat_registry_add_provider(&table, info);
}

void dat_provider_fini(const DAT_PROVIDER_INFO *info)
{
    dat_registry_remove_provider(&table, info);
}
