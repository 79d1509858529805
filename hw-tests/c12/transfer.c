/* What a program of DAT 1.2 does apart from SRQs, on any provider: messages, RDMA, CNOs, software
 * events, queries. */
#include "check.h"

#define QUAL 45620

static void opening(char *name)
{
    DAT_PROVIDER_INFO info[64], *list[64];
    DAT_COUNT entries = -1;
    DAT_IA_HANDLE ia;
    DAT_EVD_HANDLE async = DAT_HANDLE_NULL;
    char aware[300];
    int i, found = 0;

    for (i = 0; i < 64; i++)
        list[i] = &info[i];
    OK(dat_registry_list_providers(64, &entries, list));
    for (i = 0; i < entries; i++) {
        CHECK(list[i]->dapl_version_major == DAT_VERSION_MAJOR && list[i]->dapl_version_minor == DAT_VERSION_MINOR);
        found += strcmp(list[i]->ia_name, name) == 0;
    }
    CHECK(found == 1);
    EXPECT_TYPE(DAT_INVALID_PARAMETER, dat_registry_list_providers(64, NULL, list));

    EXPECT_TYPE(DAT_PROVIDER_NOT_FOUND, dat_ia_open("there is none", 8, &async, &ia));
    EXPECT(ERROR(DAT_PROVIDER_NOT_FOUND, DAT_MAJOR_NOT_FOUND), dat_ia_openv(name, 8, &async, &ia, 2, 0, DAT_FALSE));
    EXPECT(ERROR(DAT_PROVIDER_NOT_FOUND, DAT_MINOR_NOT_FOUND), dat_ia_openv(name, 8, &async, &ia, 1, 1, DAT_FALSE));
    EXPECT(ARG(1), dat_ia_open(NULL, 8, &async, &ia));
    EXPECT(ARG(3), dat_ia_open(name, 8, NULL, &ia));
    EXPECT(ARG(4), dat_ia_open(name, 8, &async, NULL));
    /* With the prefix RO_AWARE_ of Solaris, the name means the same IA. */
    snprintf(aware, sizeof aware, "RO_AWARE_%s", name);
    OK(dat_ia_open(aware, 8, &async, &ia));
    OK(dat_ia_close(ia, DAT_CLOSE_ABRUPT_FLAG));
    EXPECT(HANDLE(IA), dat_ia_close(ia, DAT_CLOSE_ABRUPT_FLAG));
}

static void queries(struct side *s)
{
    DAT_EVD_HANDLE async = DAT_HANDLE_NULL;
    DAT_IA_ATTR attr;
    DAT_PROVIDER_ATTR provider;
    DAT_LMR_PARAM lmr;
    DAT_EVD_PARAM evd;
    DAT_PZ_PARAM pz;

    memset(&attr, 0xA5, sizeof attr);
    memset((void *)&provider, 0xA5, sizeof provider);
    OK(dat_ia_query(s->ia, &async, DAT_IA_FIELD_IA_VENDOR_ATTR, &attr, DAT_PROVIDER_FIELD_PROVIDER_SPECIFIC_ATTR,
                    &provider));
    CHECK(async == s->async);
    CHECK(attr.num_vendor_attr == s->attr.num_vendor_attr && attr.vendor_attr == s->attr.vendor_attr);
    CHECK(provider.num_provider_specific_attr == s->provider.num_provider_specific_attr);
    CHECK(provider.num_provider_specific_attr > 0 && strlen(provider.provider_specific_attr[0].name) > 0);
    OK(dat_ia_query(s->ia, NULL, 0, NULL, 0, NULL));
    EXPECT(ARG(3), dat_ia_query(s->ia, NULL, DAT_IA_FIELD_ALL + 1, &attr, 0, NULL));
    EXPECT(ARG(5), dat_ia_query(s->ia, NULL, 0, NULL, DAT_PROVIDER_FIELD_ALL + 1, &provider));
    EXPECT(ARG(4), dat_ia_query(s->ia, NULL, DAT_IA_FIELD_ALL, NULL, 0, NULL));
    CHECK(s->attr.max_eps > 0 && s->attr.max_evds > 0 && s->attr.max_lmrs > 0 && s->attr.max_pzs > 0);
    CHECK(s->attr.max_message_size > 0 && s->attr.max_message_size <= UINT32_MAX);
    CHECK(s->attr.ia_address_ptr->sa_family == DAT_AF_INET || s->attr.ia_address_ptr->sa_family == DAT_AF_INET6);
    CHECK(s->provider.max_private_data_size > 0 && s->provider.is_thread_safe == DAT_FALSE);

    memset(&lmr, 0xA5, sizeof lmr);
    OK(dat_lmr_query(s->lmr, DAT_LMR_FIELD_ALL, &lmr));
    CHECK(lmr.mem_type == DAT_MEM_TYPE_VIRTUAL && lmr.region_desc.for_va == s->memory);
    CHECK(lmr.length == MEMORY && lmr.pz_handle == s->pz && lmr.mem_priv == DAT_MEM_PRIV_ALL_FLAG);
    CHECK(lmr.lmr_context == s->lmr_context && lmr.rmr_context == s->rmr_context);
    CHECK(lmr.registered_size >= MEMORY && lmr.registered_address <= (DAT_VADDR)(uintptr_t)s->memory);
    EXPECT(ARG(2), dat_lmr_query(s->lmr, (DAT_LMR_PARAM_MASK)0x400, &lmr));

    OK(dat_evd_query(s->recv, DAT_EVD_FIELD_ALL, &evd));
    CHECK(evd.evd_qlen >= 64 && evd.cno_handle == DAT_HANDLE_NULL && evd.evd_flags == DAT_EVD_DTO_FLAG);
    CHECK((evd.evd_state & DAT_EVD_STATE_ENABLED) != 0 && (evd.evd_state & DAT_EVD_STATE_WAITABLE) != 0);
    EXPECT(ARG(2), dat_evd_query(s->recv, (DAT_EVD_PARAM_MASK)0x20, &evd));
    OK(dat_pz_query(s->pz, DAT_PZ_FIELD_ALL, &pz));
    EXPECT(ARG(2), dat_pz_query(s->pz, (DAT_PZ_PARAM_MASK)2, &pz));
}

static void registration(struct side *s)
{
    DAT_REGION_DESCRIPTION region;
    DAT_LMR_HANDLE lmr;
    DAT_LMR_CONTEXT context;
    DAT_RMR_CONTEXT remote;
    DAT_VLEN size;
    DAT_VADDR address;
    DAT_LMR_TRIPLET segments[100];
    int i;

    memset(&region, 0, sizeof region);
    region.for_va = s->memory;
    EXPECT(ARG(2), dat_lmr_create(s->ia, (DAT_MEM_TYPE)4, region, 4096, s->pz, DAT_MEM_PRIV_ALL_FLAG, &lmr, &context,
                                  &remote, &size, &address));
    EXPECT(ARG(6), dat_lmr_create(s->ia, DAT_MEM_TYPE_VIRTUAL, region, 4096, s->pz, (DAT_MEM_PRIV_FLAGS)0x40, &lmr,
                                  &context, &remote, &size, &address));
    EXPECT(ARG(7), dat_lmr_create(s->ia, DAT_MEM_TYPE_VIRTUAL, region, 4096, s->pz, DAT_MEM_PRIV_ALL_FLAG, NULL,
                                  &context, &remote, &size, &address));
    OK(dat_lmr_create(s->ia, DAT_MEM_TYPE_SO_VIRTUAL, region, 4096, s->pz,
                      DAT_MEM_PRIV_LOCAL_WRITE_FLAG | DAT_MEM_PRIV_RO_DISABLE_FLAG, &lmr, &context, &remote, &size,
                      &address));
    OK(dat_lmr_free(lmr));
    for (i = 0; i < 100; i++)
        segments[i] = piece(s, (unsigned)i * 64, 64);
    OK(dat_lmr_sync_rdma_read(s->ia, segments, 100));
    OK(dat_lmr_sync_rdma_write(s->ia, segments, 1));
    segments[99].segment_length = UINT64_C(1) << 32;
    EXPECT(ARG(2), dat_lmr_sync_rdma_write(s->ia, segments, 100));
}

static void software_events(struct side *s)
{
    DAT_EVD_HANDLE evd;
    DAT_EVENT event;
    DAT_COUNT more;

    EXPECT(ARG(4), dat_evd_create(s->ia, 4, DAT_HANDLE_NULL, (DAT_EVD_FLAGS)0x200, &evd));
    OK(dat_evd_create(s->ia, 4, DAT_HANDLE_NULL, DAT_EVD_SOFTWARE_FLAG, &evd));
    memset(&event, 0, sizeof event);
    event.event_number = DAT_SOFTWARE_EVENT;
    event.event_data.software_event_data.pointer = &evd;
    OK(dat_evd_post_se(evd, &event));
    event.event_number = DAT_DTO_COMPLETION_EVENT;
    EXPECT(ARG(2), dat_evd_post_se(evd, &event));
    event = NEXT(evd, DAT_SOFTWARE_EVENT);
    CHECK(event.event_data.software_event_data.pointer == &evd);
    EXPECT_TYPE(DAT_QUEUE_EMPTY, dat_evd_dequeue(evd, &event));
    OK(dat_evd_set_unwaitable(evd));
    EXPECT_TYPE(DAT_INVALID_STATE, dat_evd_wait(evd, 0, 1, &event, &more));
    OK(dat_evd_clear_unwaitable(evd));
    OK(dat_evd_disable(evd));
    OK(dat_evd_enable(evd));
    OK(dat_evd_free(evd));
}

static void messages(struct side *s, DAT_EP_HANDLE es, struct side *c, DAT_EP_HANDLE ec)
{
    DAT_LMR_TRIPLET iov[2];
    DAT_DTO_COOKIE cookie;
    DAT_EVENT event;

    iov[0] = piece(s, 0, 4);
    iov[1] = piece(s, 1024, 60);
    cookie.as_64 = UINT64_C(0x8000000000000001);
    OK(dat_ep_post_recv(es, 2, iov, cookie, DAT_COMPLETION_DEFAULT_FLAG));
    strcpy(c->memory, "of DAT 1.2");
    iov[0] = piece(c, 0, 11);
    cookie.as_64 = 2;
    EXPECT(ARG(5), dat_ep_post_send(ec, 1, iov, cookie, (DAT_COMPLETION_FLAGS)0x20));
    EXPECT(ARG(2), dat_ep_post_send(ec, -1, iov, cookie, DAT_COMPLETION_DEFAULT_FLAG));
    EXPECT(ARG(2), dat_ep_post_send(ec, 100000, iov, cookie, DAT_COMPLETION_DEFAULT_FLAG));
    OK(dat_ep_post_send(ec, 1, iov, cookie, DAT_COMPLETION_DEFAULT_FLAG));
    event = NEXT(c->req, DAT_DTO_COMPLETION_EVENT);
    CHECK(event.event_data.dto_completion_event_data.ep_handle == ec);
    CHECK(event.event_data.dto_completion_event_data.user_cookie.as_64 == 2);
    CHECK(event.event_data.dto_completion_event_data.status == DAT_DTO_SUCCESS);
    event = NEXT(s->recv, DAT_DTO_COMPLETION_EVENT);
    CHECK(event.event_data.dto_completion_event_data.ep_handle == es);
    CHECK(event.event_data.dto_completion_event_data.user_cookie.as_64 == UINT64_C(0x8000000000000001));
    CHECK(event.event_data.dto_completion_event_data.status == DAT_DTO_SUCCESS);
    CHECK(event.event_data.dto_completion_event_data.transfered_length == 11);
    CHECK(memcmp(s->memory, "of D", 4) == 0 && strcmp(s->memory + 1024, "AT 1.2") == 0);
}

static void rdma(struct side *s, struct side *c, DAT_EP_HANDLE ec)
{
    DAT_LMR_TRIPLET iov;
    DAT_RMR_TRIPLET remote;
    DAT_DTO_COOKIE cookie;
    DAT_EVENT event;

    memset(&remote, 0xA5, sizeof remote);
    remote.rmr_context = s->rmr_context;
    remote.target_address = (DAT_VADDR)(uintptr_t)(s->memory + 4096);
    remote.segment_length = 32;
    memset(c->memory, 'w', 32);
    memset(s->memory + 4096, 0, 33);
    iov = piece(c, 0, 32);
    cookie.as_64 = 3;
    OK(dat_ep_post_rdma_write(ec, 1, &iov, cookie, &remote, DAT_COMPLETION_DEFAULT_FLAG));
    event = NEXT(c->req, DAT_DTO_COMPLETION_EVENT);
    CHECK(event.event_data.dto_completion_event_data.status == DAT_DTO_SUCCESS);
    CHECK(event.event_data.dto_completion_event_data.user_cookie.as_64 == 3);
    iov = piece(c, 512, 32);
    cookie.as_64 = 4;
    OK(dat_ep_post_rdma_read(ec, 1, &iov, cookie, &remote, DAT_COMPLETION_DEFAULT_FLAG));
    event = NEXT(c->req, DAT_DTO_COMPLETION_EVENT);
    CHECK(event.event_data.dto_completion_event_data.status == DAT_DTO_SUCCESS);
    /* The bytes that were written come back. */
    CHECK(memcmp(c->memory + 512, c->memory, 32) == 0);
    CHECK(s->memory[4096 + 31] == 'w' && s->memory[4096 + 32] == 0);
    remote.segment_length += UINT64_C(1) << 32;
    EXPECT(ARG(5), dat_ep_post_rdma_write(ec, 1, &iov, cookie, &remote, DAT_COMPLETION_DEFAULT_FLAG));
    EXPECT(ARG(5), dat_ep_post_rdma_read(ec, 1, &iov, cookie, &remote, DAT_COMPLETION_DEFAULT_FLAG));
    iov.segment_length = UINT64_C(1) << 32;
    EXPECT(ARG(3), dat_ep_post_rdma_write(ec, 1, &iov, cookie, &remote, DAT_COMPLETION_DEFAULT_FLAG));
}

/* A CNO for an EVD of its own. */
static void cnos(struct side *s)
{
    DAT_CNO_HANDLE cno;
    DAT_CNO_PARAM param;
    DAT_EVD_HANDLE evd, which = DAT_HANDLE_NULL;
    DAT_EVENT event;

    OK(dat_cno_create(s->ia, DAT_OS_WAIT_PROXY_AGENT_NULL, &cno));
    memset(&param, 0xA5, sizeof param);
    OK(dat_cno_query(cno, DAT_CNO_FIELD_ALL, &param));
    CHECK(param.agent.proxy_agent_func == NULL && param.agent.instance_data == NULL);
    EXPECT(ARG(2), dat_cno_query(cno, (DAT_CNO_PARAM_MASK)4, &param));
    OK(dat_evd_create(s->ia, 4, cno, DAT_EVD_SOFTWARE_FLAG, &evd));
    memset(&event, 0, sizeof event);
    event.event_number = DAT_SOFTWARE_EVENT;
    OK(dat_evd_post_se(evd, &event));
    OK(dat_cno_wait(cno, LONG_TIME, &which));
    CHECK(which == evd);
    OK(dat_evd_modify_cno(evd, DAT_HANDLE_NULL));
    OK(dat_evd_free(evd));
    OK(dat_cno_free(cno));
}

/* Nothing accepts the request: it is rejected. */
static void rejection(struct side *s, struct side *c)
{
    DAT_EP_ATTR attr = ep_attr();
    DAT_PSP_HANDLE psp;
    DAT_EP_HANDLE ep;
    DAT_EVENT event;

    OK(dat_ep_create(c->ia, c->pz, c->recv, c->req, c->conn, &attr, &ep));
    EXPECT(ARG(4), dat_psp_create(s->ia, QUAL + 1, s->cr, (DAT_PSP_FLAGS)2, &psp));
    OK(dat_psp_create(s->ia, QUAL + 1, s->cr, DAT_PSP_CONSUMER_FLAG, &psp));
    EXPECT(ARG(8), dat_ep_connect(ep, s->attr.ia_address_ptr, QUAL + 1, LONG_TIME, 0, NULL, DAT_QOS_BEST_EFFORT,
                                  (DAT_CONNECT_FLAGS)2));
    OK(dat_ep_connect(ep, s->attr.ia_address_ptr, QUAL + 1, LONG_TIME, 0, NULL, DAT_QOS_BEST_EFFORT,
                      DAT_CONNECT_DEFAULT_FLAG));
    event = NEXT(s->cr, DAT_CONNECTION_REQUEST_EVENT);
    OK(dat_cr_reject(event.event_data.cr_arrival_event_data.cr_handle));
    event = NEXT(c->conn, DAT_CONNECTION_EVENT_PEER_REJECTED);
    CHECK(event.event_data.connect_event_data.ep_handle == ep);
    OK(dat_psp_free(psp));
    OK(dat_ep_free(ep));
}

int main(int argc, char **argv)
{
    struct side s, c;
    DAT_EP_ATTR attr = ep_attr();
    DAT_EP_PARAM param;
    DAT_EP_HANDLE es, ec;
    DAT_EP_STATE state;

    if (argc != 3)
        return 2;
    side_open(&s, argv[1]);
    side_open(&c, argv[2]);
    opening(argv[1]);
    queries(&s);
    registration(&s);
    software_events(&s);
    cnos(&s);
    rejection(&s, &c);

    attr.max_rdma_size = UINT64_C(1) << 32;
    EXPECT(ARG(6), dat_ep_create(s.ia, s.pz, s.recv, s.req, s.conn, &attr, &es));
    attr = ep_attr();
    OK(dat_ep_create(s.ia, s.pz, s.recv, s.req, s.conn, &attr, &es));
    OK(dat_ep_create(c.ia, c.pz, c.recv, c.req, c.conn, &attr, &ec));
    join(&s, es, &c, ec, QUAL);
    memset(&param, 0xA5, sizeof param);
    OK(dat_ep_query(ec, DAT_EP_FIELD_ALL, &param));
    CHECK(param.ep_state == DAT_EP_STATE_CONNECTED && param.pz_handle == c.pz && param.srq_handle == DAT_HANDLE_NULL);
    CHECK(param.recv_evd_handle == c.recv && param.request_evd_handle == c.req && param.connect_evd_handle == c.conn);
    CHECK(param.remote_ia_address_ptr->sa_family == s.attr.ia_address_ptr->sa_family);
    CHECK(param.ep_attr.max_request_iov >= 2 && param.ep_attr.max_request_dtos >= 8);
    CHECK(param.ep_attr.request_completion_flags == DAT_COMPLETION_DEFAULT_FLAG);
    messages(&s, es, &c, ec);
    rdma(&s, &c, ec);
    EXPECT_TYPE(DAT_INVALID_STATE, dat_ia_close(c.ia, DAT_CLOSE_GRACEFUL_FLAG));
    OK(dat_ep_disconnect(ec, DAT_CLOSE_GRACEFUL_FLAG));
    NEXT(s.conn, DAT_CONNECTION_EVENT_DISCONNECTED);
    NEXT(c.conn, DAT_CONNECTION_EVENT_DISCONNECTED);
    OK(dat_ep_get_status(ec, &state, NULL, NULL));
    CHECK(state == DAT_EP_STATE_DISCONNECTED);
    OK(dat_ep_reset(ec));
    OK(dat_ep_get_status(ec, &state, NULL, NULL));
    CHECK(state == DAT_EP_STATE_UNCONNECTED);
    OK(dat_ep_free(es));
    OK(dat_ep_free(ec));
    side_close(&s);
    side_close(&c);
    return finish();
}
