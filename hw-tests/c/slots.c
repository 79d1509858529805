/* Slots that no stock program uses, attributes, and calls that the provider declines. */
#include "check.h"
#include <dat2/dat_registry.h>
#include <poll.h>

#define NOT_SUPPORTED (DAT_CLASS_ERROR | DAT_MODEL_NOT_SUPPORTED)

/* Exported by libdat2, but not declared in any header that it installs. */
extern DAT_RETURN dats_get_ia_handle(DAT_IA_HANDLE handle, DAT_IA_HANDLE *result);

static DAT_EVD_HANDLE called_for;
static int called;

static void agent(DAT_PVOID data, DAT_EVD_HANDLE evd)
{
    called_for = evd;
    ++*(int *)data;
}

static DAT_RETURN post_software(DAT_EVD_HANDLE evd, void *pointer)
{
    DAT_EVENT event;

    memset(&event, 0, sizeof event);
    event.event_number = DAT_SOFTWARE_EVENT;
    event.event_data.software_event_data.pointer = pointer;
    return dat_evd_post_se(evd, &event);
}

/* One bit of each mask is enough for the whole structure (rules_ia.c checks every member). */
static void attributes(struct side *a)
{
    static DAT_IA_ATTR ia;
    static DAT_PROVIDER_ATTR provider;
    DAT_EVD_HANDLE async = DAT_HANDLE_NULL;
    int i, found = 0;

    OK(dat_ia_query(a->ia, &async, DAT_IA_FIELD_IA_MAX_SRQS, &ia, DAT_PROVIDER_FIELD_PROVIDER_SPECIFIC_ATTR, &provider));
    CHECK(async == a->async && ia.adapter_name[0]);
    CHECK(ia.ia_address_ptr->sa_family == AF_INET || ia.ia_address_ptr->sa_family == AF_INET6);
    CHECK(ia.extension_supported == DAT_EXTENSION_IB);
    CHECK(strcmp(provider.provider_name, "doorbell") == 0);
    CHECK(provider.dapl_version_major == 2 && provider.dapl_version_minor == 0 && !provider.is_thread_safe);
    for (i = 0; i < provider.num_provider_specific_attr; i++)
        if (strcmp(provider.provider_specific_attr[i].name, "DAT_IB_TRANSPORT_MTU") == 0)
            found = atoi(provider.provider_specific_attr[i].value);
    CHECK(found >= 256);
}

static void events(struct side *a)
{
    DAT_EVD_HANDLE evd;
    DAT_CNO_HANDLE cno;
    DAT_CNO_PARAM cno_param;
    DAT_EVD_PARAM param;
    DAT_OS_WAIT_PROXY_AGENT proxy = {&called, agent};
    DAT_EVD_HANDLE triggered = DAT_HANDLE_NULL;
    DAT_EVENT event;
    DAT_COUNT more;
    int i;

    EXPECT(ARG(5), dat_evd_create(a->ia, 8, DAT_HANDLE_NULL, DAT_EVD_SOFTWARE_FLAG, NULL));
    EXPECT(ARG(2), dat_evd_create(a->ia, 0, DAT_HANDLE_NULL, DAT_EVD_SOFTWARE_FLAG, &evd));
    EXPECT(ARG(4), dat_evd_create(a->ia, 8, DAT_HANDLE_NULL, 0x1000, &evd));
    OK(dat_cno_create(a->ia, proxy, &cno));
    OK(dat_evd_create(a->ia, 8, cno, DAT_EVD_SOFTWARE_FLAG, &evd));
    memset(&param, 0xA5, sizeof param);
    OK(dat_evd_query(evd, DAT_EVD_FIELD_ALL, &param));
    CHECK(param.ia_handle == a->ia && param.cno_handle == cno && param.evd_flags == DAT_EVD_SOFTWARE_FLAG);
    CHECK(param.evd_qlen >= 8);
    CHECK((param.evd_state & 0xf) == (DAT_EVD_STATE_ENABLED | DAT_EVD_STATE_WAITABLE));
    EXPECT(DAT_CLASS_ERROR | DAT_INVALID_STATE | DAT_INVALID_STATE_CNO_IN_USE, dat_cno_free(cno));

    /* The agent is called, and a later wait for the CNO still returns the EVD. */
    OK(post_software(evd, &evd));
    CHECK(called == 1 && called_for == evd);
    OK(dat_cno_wait(cno, LONG_TIME, &triggered));
    CHECK(triggered == evd);
    EXPECT(DAT_CLASS_ERROR | DAT_TIMEOUT_EXPIRED, dat_cno_wait(cno, 0, &triggered));
    event = NEXT(evd, DAT_SOFTWARE_EVENT);
    CHECK(event.event_data.software_event_data.pointer == &evd);
    proxy = DAT_OS_WAIT_PROXY_AGENT_NULL;
    OK(dat_cno_modify_agent(cno, proxy));
    OK(post_software(evd, NULL));
    CHECK(called == 1);
    OK(dat_cno_wait(cno, LONG_TIME, NULL));
    OK(dat_evd_dequeue(evd, &event));

    /* A disabled EVD does not trigger its CNO. After it is enabled again, it does. */
    OK(dat_evd_disable(evd));
    OK(post_software(evd, NULL));
    EXPECT(DAT_CLASS_ERROR | DAT_TIMEOUT_EXPIRED, dat_cno_wait(cno, 0, &triggered));
    OK(dat_evd_query(evd, DAT_EVD_FIELD_ALL, &param));
    CHECK(param.evd_state & DAT_EVD_STATE_DISABLED);
    OK(dat_evd_enable(evd));
    OK(dat_evd_dequeue(evd, &event));
    EXPECT(DAT_CLASS_ERROR | DAT_QUEUE_EMPTY, dat_evd_dequeue(evd, &event));
    EXPECT(ARG(2), dat_evd_dequeue(evd, NULL));

    /* A resize keeps the events. */
    for (i = 0; i < 5; i++)
        OK(post_software(evd, (void *)(uintptr_t)i));
    OK(dat_evd_resize(evd, 100));
    EXPECT(DAT_CLASS_ERROR | DAT_INVALID_STATE, dat_evd_resize(evd, 2));
    OK(dat_evd_wait(evd, 0, 5, &event, &more));
    CHECK(more == 4);
    for (i = 1; i < 5; i++) {
        event = NEXT(evd, DAT_SOFTWARE_EVENT);
        CHECK(event.event_data.software_event_data.pointer == (void *)(uintptr_t)i);
    }
    event.event_number = DAT_DTO_COMPLETION_EVENT;
    EXPECT(ARG(2), dat_evd_post_se(evd, &event));
    OK(dat_evd_modify_cno(evd, DAT_HANDLE_NULL));
    memset(&cno_param, 0xA5, sizeof cno_param);
    OK(dat_cno_query(cno, DAT_CNO_FIELD_ALL, &cno_param));
    CHECK(cno_param.ia_handle == a->ia && cno_param.proxy_type == DAT_PROXY_TYPE_NONE);
    OK(dat_cno_free(cno));
    OK(dat_evd_free(evd));
}

static void connections(struct side *a, struct side *b)
{
    DAT_EP_ATTR attr = ep_attr();
    DAT_EP_HANDLE server, client, second, third;
    DAT_PSP_HANDLE psp;
    DAT_RSP_HANDLE rsp;
    DAT_PSP_PARAM psp_param;
    DAT_RSP_PARAM rsp_param;
    DAT_CR_PARAM cr_param;
    DAT_EP_STATE state;
    DAT_BOOLEAN recv_idle, request_idle;
    DAT_CONN_QUAL qual = 0;
    DAT_EVENT event;
    DAT_CR_HANDLE cr;
    DAT_LMR_TRIPLET iov[2];
    DAT_RMR_TRIPLET remote;
    DAT_DTO_COOKIE cookie = {.as_64 = 7};

    OK(dat_ep_create(a->ia, a->pz, a->recv, a->req, a->conn, &attr, &server));
    OK(dat_ep_create(a->ia, a->pz, a->recv, a->req, a->conn, NULL, &third));
    OK(dat_ep_create(b->ia, b->pz, b->recv, b->req, b->conn, &attr, &client));
    OK(dat_ep_create(b->ia, b->pz, b->recv, b->req, b->conn, &attr, &second));

    OK(dat_psp_create_any(a->ia, &qual, a->cr, DAT_PSP_CONSUMER_FLAG, &psp));
    CHECK(qual != 0);
    memset(&psp_param, 0xA5, sizeof psp_param);
    OK(dat_psp_query(psp, DAT_PSP_FIELD_ALL, &psp_param));
    CHECK(psp_param.ia_handle == a->ia && psp_param.conn_qual == qual && psp_param.evd_handle == a->cr);
    CHECK(psp_param.psp_flags == DAT_PSP_CONSUMER_FLAG);
    EXPECT(DAT_CLASS_ERROR | DAT_CONN_QUAL_IN_USE, dat_psp_create(a->ia, qual, a->cr, DAT_PSP_CONSUMER_FLAG, &rsp));
    EXPECT(ARG(5), dat_ep_connect(client, a->attr.ia_address_ptr, qual, LONG_TIME, 200, &attr, 0, 0));
    EXPECT(ARG(2), dat_ep_connect(client, NULL, qual, LONG_TIME, 0, NULL, 0, 0));
    EXPECT(ARG(7), dat_ep_connect(client, a->attr.ia_address_ptr, qual, LONG_TIME, 0, NULL, 3, 0));
    EXPECT(NOT_SUPPORTED, dat_ep_connect(client, a->attr.ia_address_ptr, qual, LONG_TIME, 0, NULL, 0, 2));
    OK(dat_ep_connect(client, a->attr.ia_address_ptr, qual, LONG_TIME, 0, NULL, 0, 0));
    event = NEXT(a->cr, DAT_CONNECTION_REQUEST_EVENT);
    OK(dat_cr_accept(event.event_data.cr_arrival_event_data.cr_handle, server, 0, NULL));
    NEXT(b->conn, DAT_CONNECTION_EVENT_ESTABLISHED);
    NEXT(a->conn, DAT_CONNECTION_EVENT_ESTABLISHED);

    /* The second EP duplicates the connection of the first, and is rejected. */
    OK(dat_ep_dup_connect(second, client, LONG_TIME, 2, "hi", DAT_QOS_BEST_EFFORT));
    event = NEXT(a->cr, DAT_CONNECTION_REQUEST_EVENT);
    cr = event.event_data.cr_arrival_event_data.cr_handle;
    OK(dat_cr_reject(cr, 3, "no!"));
    event = NEXT(b->conn, DAT_CONNECTION_EVENT_PEER_REJECTED);
    CHECK(event.event_data.connect_event_data.ep_handle == second);
    CHECK(memcmp(event.event_data.connect_event_data.private_data, "no!", 3) == 0);
    OK(dat_ep_reset(second));
    OK(dat_psp_free(psp));

    /* Messages in both directions. The status says whether an EP is idle. */
    memset(a->memory, 0, 256);
    strcpy(b->memory, "from b");
    iov[0] = piece(a, 0, 64);
    OK(dat_ep_post_recv(server, 1, iov, cookie, DAT_COMPLETION_DEFAULT_FLAG));
    OK(dat_ep_get_status(server, &state, &recv_idle, &request_idle));
    CHECK(state == DAT_EP_STATE_CONNECTED && !recv_idle && request_idle);
    iov[0] = piece(b, 0, 3);
    iov[1] = piece(b, 3, 4);
    OK(dat_ep_post_send(client, 2, iov, cookie, DAT_COMPLETION_SUPPRESS_FLAG));
    event = NEXT(a->recv, DAT_DTO_COMPLETION_EVENT);
    CHECK(event.event_data.dto_completion_event_data.transfered_length == 7);
    CHECK(strcmp(a->memory, "from b") == 0);
    remote.virtual_address = (DAT_VADDR)(uintptr_t)(a->memory + 128);
    remote.segment_length = 7;
    remote.rmr_context = a->rmr_context;
    OK(dat_ep_post_rdma_write(client, 2, iov, cookie, &remote, DAT_COMPLETION_DEFAULT_FLAG));
    event = NEXT(b->req, DAT_DTO_COMPLETION_EVENT);
    CHECK(event.event_data.dto_completion_event_data.operation == DAT_DTO_RDMA_WRITE);
    CHECK(strcmp(a->memory + 128, "from b") == 0);
    EXPECT(ARG(5), dat_ep_post_rdma_write(client, 1, iov, cookie, NULL, DAT_COMPLETION_DEFAULT_FLAG));
    EXPECT(ARG(6), dat_ep_post_rdma_write(client, 1, iov, cookie, &remote, 0x100));
    EXPECT(ARG(5), dat_ep_post_send(client, 1, iov, cookie, DAT_COMPLETION_UNSIGNALLED_FLAG));
    OK(dat_ep_disconnect(client, DAT_CLOSE_GRACEFUL_FLAG));
    NEXT(b->conn, DAT_CONNECTION_EVENT_DISCONNECTED);
    NEXT(a->conn, DAT_CONNECTION_EVENT_DISCONNECTED);
    EXPECT(ARG(2), dat_ep_disconnect(client, 7));

    /* A reserved service point: the request names the EP. */
    OK(dat_rsp_create(a->ia, 45321, third, a->cr, &rsp));
    memset(&rsp_param, 0xA5, sizeof rsp_param);
    OK(dat_rsp_query(rsp, DAT_RSP_FIELD_ALL, &rsp_param));
    CHECK(rsp_param.ep_handle == third && rsp_param.conn_qual == 45321 && rsp_param.evd_handle == a->cr);
    OK(dat_ep_connect(second, a->attr.ia_address_ptr, 45321, LONG_TIME, 0, NULL, 0, 0));
    event = NEXT(a->cr, DAT_CONNECTION_REQUEST_EVENT);
    CHECK(event.event_data.cr_arrival_event_data.sp_handle.rsp_handle == rsp);
    cr = event.event_data.cr_arrival_event_data.cr_handle;
    OK(dat_cr_query(cr, DAT_CR_FIELD_LOCAL_EP_HANDLE, &cr_param));
    CHECK(cr_param.local_ep_handle == third);
    OK(dat_cr_accept(cr, DAT_HANDLE_NULL, 0, NULL));
    NEXT(b->conn, DAT_CONNECTION_EVENT_ESTABLISHED);
    NEXT(a->conn, DAT_CONNECTION_EVENT_ESTABLISHED);
    OK(dat_rsp_free(rsp));
    OK(dat_ep_free(second));
    NEXT(a->conn, DAT_CONNECTION_EVENT_DISCONNECTED);
    OK(dat_ep_free(third));
    OK(dat_ep_free(server));
    OK(dat_ep_free(client));
}

static void memory(struct side *a)
{
    DAT_REGION_DESCRIPTION region;
    DAT_LMR_HANDLE lmr;
    DAT_LMR_PARAM param;
    DAT_LMR_CONTEXT context;
    DAT_LMR_TRIPLET iov = piece(a, 0, 8);
    DAT_PZ_PARAM pz;

    region.for_lmr_handle = a->lmr;
    OK(dat_lmr_create(a->ia, DAT_MEM_TYPE_LMR, region, 0, a->pz, DAT_MEM_PRIV_LOCAL_READ_FLAG, DAT_VA_TYPE_VA, &lmr,
                      &context, NULL, NULL, NULL));
    memset(&param, 0xA5, sizeof param);
    OK(dat_lmr_query(lmr, DAT_LMR_FIELD_ALL, &param));
    CHECK(param.ia_handle == a->ia && param.pz_handle == a->pz && param.mem_type == DAT_MEM_TYPE_LMR);
    CHECK(param.region_desc.for_lmr_handle == a->lmr && param.length == MEMORY && param.lmr_context == context);
    CHECK(param.mem_priv == DAT_MEM_PRIV_LOCAL_READ_FLAG && param.va_type == DAT_VA_TYPE_VA);
    CHECK(param.registered_address == (DAT_VADDR)(uintptr_t)a->memory && param.registered_size == MEMORY);
    OK(dat_lmr_free(lmr));
    region.for_va = a->memory;
    EXPECT(ARG(8), dat_lmr_create(a->ia, 0, region, 64, a->pz, 0x33, 0, NULL, NULL, NULL, NULL, NULL));
    EXPECT(ARG(4), dat_lmr_create(a->ia, 0, region, 0, a->pz, 0x33, 0, &lmr, NULL, NULL, NULL, NULL));
    EXPECT(ARG(6), dat_lmr_create(a->ia, 0, region, 64, a->pz, 0x1000, 0, &lmr, NULL, NULL, NULL, NULL));
    EXPECT(ARG(2), dat_lmr_create(a->ia, 9, region, 64, a->pz, 0x33, 0, &lmr, NULL, NULL, NULL, NULL));
    region.for_va = a->memory + 1;
    EXPECT(ARG(3), dat_lmr_create(a->ia, 0, region, 64, a->pz, 0x33, DAT_VA_TYPE_ZB, &lmr, NULL, NULL, NULL, NULL));
    OK(dat_lmr_sync_rdma_read(a->ia, &iov, 1));
    OK(dat_lmr_sync_rdma_write(a->ia, &iov, 1));
    memset(&pz, 0xA5, sizeof pz);
    OK(dat_pz_query(a->pz, DAT_PZ_FIELD_ALL, &pz));
    CHECK(pz.ia_handle == a->ia);
    EXPECT(ARG(2), dat_pz_query(a->pz, 2, &pz));
    EXPECT(ARG(3), dat_pz_query(a->pz, DAT_PZ_FIELD_ALL, NULL));
}

/* Slots that libdat2 has no function for are called through the table. A pointer to it is the first
 * word of every handle. */
static void table(struct side *a)
{
    const DAT_PROVIDER *provider = *(const DAT_PROVIDER **)a->pz;
    DAT_EP_HANDLE ep;
    DAT_LMR_TRIPLET iov = piece(a, 0, 8);
    DAT_DTO_COOKIE cookie = {.as_64 = 0};
    DAT_EVD_HANDLE evd, triggered = DAT_HANDLE_NULL;
    DAT_CNO_HANDLE cno;
    DAT_IA_HANDLE raw;
    DAT_FD fd = -1;
    struct pollfd pfd;
    DAT_BOOLEAN related = 7;

    OK(dats_get_ia_handle(a->ia, &raw));
    OK(dat_ep_create(a->ia, a->pz, a->recv, a->req, a->conn, NULL, &ep));
    EXPECT(DAT_CLASS_ERROR | DAT_INVALID_STATE | DAT_INVALID_STATE_EP_UNCONNECTED,
           provider->ep_post_send_with_invalidate_func(ep, 1, &iov, cookie, 0, DAT_FALSE, 0));
    OK(provider->ia_ha_related_func(raw, "other", &related));
    CHECK(related == DAT_FALSE);
    OK(provider->cno_fd_create_func(raw, &fd, &cno));
    OK(dat_evd_create(a->ia, 8, cno, DAT_EVD_SOFTWARE_FLAG, &evd));
    pfd.fd = fd;
    pfd.events = POLLIN;
    CHECK(poll(&pfd, 1, 0) == 0);
    EXPECT(DAT_CLASS_ERROR | DAT_QUEUE_EMPTY, provider->cno_trigger_func(cno, &triggered));
    OK(post_software(evd, NULL));
    CHECK(poll(&pfd, 1, LONG_TIME / 1000) == 1);
    OK(provider->cno_trigger_func(cno, &triggered));
    CHECK(triggered == evd);
    CHECK(poll(&pfd, 1, 0) == 0);
    OK(dat_evd_free(evd));
    OK(dat_cno_free(cno));
    OK(dat_ep_free(ep));
}

int main(int argc, char **argv)
{
    struct side a, b;
    DAT_IA_HANDLE none = DAT_HANDLE_NULL;
    DAT_EVD_HANDLE async = DAT_HANDLE_NULL;

    (void)argc;
    side_open(&a, argv[1]);
    side_open(&b, argv[2]);
    attributes(&a);
    events(&a);
    connections(&a, &b);
    memory(&a);
    table(&a);
    OK(dat_ia_close(a.ia, DAT_CLOSE_ABRUPT_FLAG));
    OK(dat_ia_close(b.ia, DAT_CLOSE_ABRUPT_FLAG));
    /* A device that does not exist. */
    CHECK(dat_ia_open("doorbell-none", 8, &async, &none) != DAT_SUCCESS);
    CHECK(async == DAT_HANDLE_NULL);
    return finish();
}
