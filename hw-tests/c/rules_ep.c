/* EPs on an SRQ through libdat2: creation (section J).
 *
 * A sender here retries without end while the receiver has no receive posted. Its EP then stays in
 * DISCONNECT_PENDING after a graceful disconnect. */
#include "rig.h"
#include <stddef.h>

static DAT_RETURN create(DAT_EVD_HANDLE recv, DAT_EVD_HANDLE request, DAT_EVD_HANDLE conn, DAT_SRQ_HANDLE srq,
                         DAT_EP_ATTR *attr, DAT_EP_HANDLE *ep)
{
    DAT_EP_ATTR plain = ep_attr();

    return dat_ep_create_with_srq(a.ia, a.pz, recv, request, conn, srq, attr ? attr : &plain, ep);
}

/* A query returns all fields of an EP that was never connected (R159, R161). */
TEST(r127_epsrq_starts_unconnected)
{
    DAT_SRQ_HANDLE srq = srq_of(&a, 4);
    DAT_EP_PARAM param = param_of(ep_on(&a, srq, a.recv, NULL));

    CHECK(param.ep_state == DAT_EP_STATE_UNCONNECTED && param.srq_handle == srq);
    CHECK(param.recv_evd_handle == a.recv && param.request_evd_handle == a.req && param.connect_evd_handle == a.conn);
    CHECK(param.ia_handle == a.ia && param.pz_handle == a.pz);
    param = param_of(plain_ep(&a));
    CHECK(param.ep_state == DAT_EP_STATE_UNCONNECTED && param.srq_handle == DAT_HANDLE_NULL);
}

/* NULL attributes and a NULL output pointer are refused (R129), and nothing is attached (R146). */
TEST(r128_epsrq_null_attr)
{
    DAT_SRQ_HANDLE srq = srq_of(&a, 4);
    DAT_EP_ATTR attr = ep_attr();
    DAT_EP_HANDLE ep;

    EXPECT(ARG(7), dat_ep_create_with_srq(a.ia, a.pz, a.recv, a.req, a.conn, srq, NULL, &ep));
    EXPECT(ARG(8), dat_ep_create_with_srq(a.ia, a.pz, a.recv, a.req, a.conn, srq, &attr, NULL));
    EXPECT(ARG(7), dat_ep_create_with_srq(a.ia, a.pz, a.recv, a.req, a.conn, srq, NULL, NULL));
    OK(dat_srq_free(srq));
}

/* SRQ, IA, PZ and each EVD: null, freed, of another IA, of another kind, or without the stream
 * (R131 to R133). */
TEST(r130_epsrq_null_or_bad_srq)
{
    DAT_SRQ_HANDLE srq = srq_of(&a, 4), gone = srq_of(&a, 4), foreign = srq_of(&b, 4);
    DAT_EVD_HANDLE freed = evd_of(&a, DAT_EVD_DTO_FLAG);
    DAT_EP_ATTR attr = ep_attr();
    DAT_EP_HANDLE ep = DAT_HANDLE_NULL;

    OK(dat_srq_free(gone));
    OK(dat_evd_free(freed));
    EXPECT(HANDLE(SRQ), create(a.recv, a.req, a.conn, DAT_HANDLE_NULL, NULL, &ep));
    EXPECT(HANDLE(SRQ), create(a.recv, a.req, a.conn, gone, NULL, &ep));
    EXPECT(HANDLE(SRQ), create(a.recv, a.req, a.conn, foreign, NULL, &ep));
    EXPECT(HANDLE(SRQ), create(a.recv, a.req, a.conn, a.pz, NULL, &ep));
    EXPECT(HANDLE(IA), dat_ep_create_with_srq(DAT_HANDLE_NULL, a.pz, a.recv, a.req, a.conn, srq, &attr, &ep));
    EXPECT(HANDLE(IA), dat_ep_create_with_srq((DAT_IA_HANDLE)(uintptr_t)60, a.pz, a.recv, a.req, a.conn, srq, &attr, &ep));
    EXPECT(HANDLE(PZ), dat_ep_create_with_srq(a.ia, DAT_HANDLE_NULL, a.recv, a.req, a.conn, srq, &attr, &ep));
    EXPECT(HANDLE(PZ), dat_ep_create_with_srq(a.ia, b.pz, a.recv, a.req, a.conn, srq, &attr, &ep));
    EXPECT(HANDLE(PZ), dat_ep_create_with_srq(a.ia, srq, a.recv, a.req, a.conn, srq, &attr, &ep));
    for (int i = 0; i < 4; i++) {
        DAT_EVD_HANDLE wrong[] = {freed, b.recv, a.pz, a.cr};

        EXPECT(HANDLE(EVD_RECV), create(wrong[i], a.req, a.conn, srq, NULL, &ep));
        EXPECT(HANDLE(EVD_REQUEST), create(a.recv, wrong[i], a.conn, srq, NULL, &ep));
        EXPECT(HANDLE(EVD_CONN), create(a.recv, a.req, wrong[i], srq, NULL, &ep));
    }
    CHECK(ep == DAT_HANDLE_NULL);
    OK(dat_srq_free(srq));
}

/* The IA was closed before. */
TEST(r131_epsrq_bad_ia)
{
    DAT_SRQ_HANDLE srq = srq_of(&a, 4);
    DAT_EP_ATTR attr = ep_attr();
    DAT_EP_HANDLE ep;
    struct side c;

    side_open(&c, ia_names[0]);
    OK(dat_ia_close(c.ia, DAT_CLOSE_ABRUPT_FLAG));
    EXPECT(HANDLE(IA), dat_ep_create_with_srq(c.ia, a.pz, a.recv, a.req, a.conn, srq, &attr, &ep));
    EXPECT(HANDLE(PZ), dat_ep_create_with_srq(a.ia, c.pz, a.recv, a.req, a.conn, srq, &attr, &ep));
    EXPECT(HANDLE(EVD_RECV), dat_ep_create_with_srq(a.ia, a.pz, c.recv, a.req, a.conn, srq, &attr, &ep));
    free(c.memory);
}

/* Each EVD is missing in turn, and then all of them (R87): no event comes, the SRQ gets its entry
 * back, and the EP can send and disconnect. */
TEST(r134_epsrq_null_evds_allowed)
{
    DAT_SRQ_HANDLE srq = srq_of(&a, 4);
    DAT_EP_HANDLE ep, client = plain_ep(&b);
    DAT_LMR_TRIPLET here = piece(&a, 0, 8), there = piece(&b, 0, 8);
    DAT_PSP_HANDLE psp;
    DAT_CONN_QUAL qual = next_qual();
    struct pair pair;

    OK(create(DAT_HANDLE_NULL, a.req, a.conn, srq, NULL, &ep));
    OK(create(a.recv, DAT_HANDLE_NULL, a.conn, srq, NULL, &ep));
    OK(create(a.recv, a.req, DAT_HANDLE_NULL, srq, NULL, &ep));
    OK(create(DAT_HANDLE_NULL, DAT_HANDLE_NULL, DAT_HANDLE_NULL, srq, NULL, &ep));
    OK(dat_psp_create(a.ia, qual, a.cr, DAT_PSP_CONSUMER_FLAG, &psp));
    OK(dat_cr_accept(request(&a, client, qual), ep, 0, NULL));
    NEXT(b.conn, DAT_CONNECTION_EVENT_ESTABLISHED);
    OK(post(srq, 0, 64));
    pair.server = ep;
    pair.client = client;
    SEND(pair, 8);
    COUNTS(srq, 0, 0);
    OK(dat_ep_post_recv(client, 1, &there, as_cookie(5), 0));
    OK(dat_ep_post_send(ep, 1, &here, as_cookie(6), 0));
    TAKEN(b.recv, client, 8);
    OK(dat_ep_disconnect(ep, DAT_CLOSE_ABRUPT_FLAG));
    NEXT(b.conn, DAT_CONNECTION_EVENT_DISCONNECTED);
    EMPTIED(a.recv);
    EMPTIED(a.req);
    EMPTIED(a.conn);
}

/* A CQ for completions that the consumer does not want is made when the first EP needs one. */
TEST(an_ep_with_all_its_evds_has_no_further_cq)
{
    struct side own;
    DAT_EP_ATTR attr = ep_attr();
    DAT_EP_HANDLE ep;
    long before;

    if (no_software_device("an_ep_with_all_its_evds_has_no_further_cq"))
        return;
    side_open(&own, ia_names[0]);
    before = emu("count cq");
    plain_ep(&own);
    CHECK(emu("count cq") == before);
    for (int i = 0; i < 2; i++) {
        OK(dat_ep_create(own.ia, own.pz, DAT_HANDLE_NULL, own.req, own.conn, &attr, &ep));
        CHECK(emu("count cq") == before + 1);
        OK(dat_ep_free(ep));
    }
    OK(dat_ia_close(own.ia, DAT_CLOSE_ABRUPT_FLAG));
}

/* PZs may differ if the provider says so, which depends on the device (R136 to R138, R164,
 * R261). */
TEST(r135_epsrq_pz_differs_supported)
{
    DAT_SRQ_HANDLE srq = srq_of(&a, 4);
    DAT_PROVIDER_ATTR provider;
    DAT_EP_ATTR attr = ep_attr();
    DAT_EP_PARAM param;
    DAT_PZ_HANDLE pz;
    DAT_EP_HANDLE ep;
    DAT_REGION_DESCRIPTION region = {.for_va = a.memory};
    DAT_LMR_HANDLE lmr;
    DAT_LMR_TRIPLET of_ep = piece(&a, 4096, 8), of_srq = piece(&a, 4096, 8);
    struct pair pair;

    OK(dat_pz_create(a.ia, &pz));
    OK(dat_ia_query(a.ia, NULL, 0, NULL, DAT_PROVIDER_FIELD_ALL, &provider));
    if (!provider.srq_ep_pz_difference_supported) {
        EXPECT(ARG(2), dat_ep_create_with_srq(a.ia, pz, a.recv, a.req, a.conn, srq, &attr, &ep));
        ep = ep_on(&a, srq, a.recv, NULL);
        param.pz_handle = pz;
        CHECK(DAT_GET_TYPE(dat_ep_modify(ep, DAT_EP_FIELD_PZ_HANDLE, &param)) == DAT_INVALID_PARAMETER);
        param.pz_handle = a.pz;
        OK(dat_ep_modify(ep, DAT_EP_FIELD_PZ_HANDLE, &param));
        return;
    }
    OK(dat_ep_create_with_srq(a.ia, pz, a.recv, a.req, a.conn, srq, &attr, &ep));
    CHECK(param_of(ep).pz_handle == pz && look(srq).pz_handle == a.pz);
    pair = joined(ep, plain_ep(&b));
    OK(post(srq, 0, 64));
    SEND(pair, 8);
    TAKEN(a.recv, ep, 8);
    /* Memory that the EP sends from has to be in the EP's PZ. */
    EXPECT(ERROR(DAT_PROTECTION_VIOLATION, DAT_PROTECTION_READ), dat_ep_post_send(ep, 1, &of_srq, as_cookie(0), 0));
    OK(dat_lmr_create(a.ia, DAT_MEM_TYPE_VIRTUAL, region, MEMORY, pz, DAT_MEM_PRIV_ALL_FLAG, 0, &lmr, &of_ep.lmr_context,
                      NULL, NULL, NULL));
    OK(dat_ep_post_send(ep, 1, &of_ep, as_cookie(0), 0));
}

/* The query returns what was asked for, before and after connecting (R140, R155), and so many requests
 * and segments can be posted. */
TEST(r139_epsrq_request_limits_at_least)
{
    DAT_SRQ_HANDLE srq = srq_of(&a, 4);
    DAT_EP_ATTR attr = ep_attr(), real, later;
    DAT_LMR_TRIPLET iov[40] = {piece(&a, 0, 8)};
    DAT_EP_HANDLE ep;

    attr.max_message_size = 12345;
    attr.max_rdma_size = 54321;
    attr.qos = DAT_QOS_LOW_LATENCY;
    attr.max_recv_dtos = 7;
    attr.max_request_dtos = 5;
    attr.max_recv_iov = 3;
    attr.max_rdma_read_in = 3;
    attr.max_rdma_read_out = 2;
    attr.srq_soft_hw = 9;
    attr.max_rdma_read_iov = 1;
    attr.max_rdma_write_iov = 2;
    ep = ep_on(&a, srq, a.recv, &attr);
    real = param_of(ep).ep_attr;
    CHECK(real.max_request_dtos >= 5 && real.max_request_iov >= 2);
    CHECK(real.max_message_size == 12345 && real.max_rdma_size == 54321 && real.qos == DAT_QOS_LOW_LATENCY);
    CHECK(real.max_recv_dtos == 7 && real.max_recv_iov == 3 && real.srq_soft_hw == 9);
    CHECK(real.max_rdma_read_in == 3 && real.max_rdma_read_out == 2);
    CHECK(real.max_rdma_read_iov == 1 && real.max_rdma_write_iov == 2);
    CHECK(real.service_type == DAT_SERVICE_TYPE_RC && real.recv_completion_flags == 0);
    joined(ep, plain_ep(&b));
    later = param_of(ep).ep_attr;
    CHECK(memcmp(&real, &later, offsetof(DAT_EP_ATTR, ep_transport_specific)) == 0);
    /* The client has no receives, so all requests stay. */
    for (int i = 0; i < real.max_request_dtos; i++)
        OK(dat_ep_post_send(ep, 1, iov, as_cookie(i), 0));
    EXPECT(ERROR(DAT_INSUFFICIENT_RESOURCES, DAT_RESOURCE_CREDITS), dat_ep_post_send(ep, 1, iov, as_cookie(0), 0));
    CHECK(real.max_request_iov < 40);
    for (int i = 0; i < 40; i++)
        iov[i] = piece(&a, 0, 8);
    EXPECT(ARG(2), dat_ep_post_send(ep, real.max_request_iov + 1, iov, as_cookie(0), 0));
}

/* The number of receives is ignored, too: the EP has no queue for them (R142). Buffers may have as many
 * segments as the SRQ allows. */
TEST(r141_epsrq_max_recv_iov_ignored)
{
    DAT_SRQ_HANDLE srq = srq_of(&a, 4);
    int values[] = {0, -1, INT32_MAX};
    DAT_LMR_TRIPLET iov[2] = {piece(&a, 0, 4), piece(&a, 64, 4)};
    DAT_EP_ATTR none = ep_attr();
    struct pair pair;

    for (int i = 0; i < 3; i++) {
        DAT_EP_ATTR attr = ep_attr();

        attr.max_recv_iov = values[i];
        CHECK(param_of(ep_on(&a, srq, a.recv, &attr)).ep_attr.max_recv_iov == values[i]);
    }
    for (int i = 0; i < 2; i++) {
        DAT_EP_ATTR attr = ep_attr();

        attr.max_recv_dtos = i ? 1000000 : 0;
        CHECK(param_of(ep_on(&a, srq, i ? DAT_HANDLE_NULL : a.recv, &attr)).ep_attr.max_recv_dtos == attr.max_recv_dtos);
    }
    none.max_recv_iov = none.max_recv_dtos = 0;
    pair = joined(ep_on(&a, srq, a.recv, &none), plain_ep(&b));
    OK(dat_srq_post_recv(srq, 2, iov, as_cookie(8)));
    SEND(pair, 8);
    TAKEN(a.recv, pair.server, 8);
}

/* RDMA Read segments without outgoing Reads are legal (R144). */
TEST(r143_epsrq_unsatisfiable_attribute)
{
    DAT_SRQ_HANDLE srq = srq_of(&a, 4);
    DAT_EP_ATTR ok = ep_attr(), attr;
    DAT_EP_HANDLE ep;

#define UNMET(field, value)                                                                                      \
    attr = ok;                                                                                                   \
    attr.field = (value);                                                                                        \
    EXPECT(ARG(7), create(a.recv, a.req, a.conn, srq, &attr, &ep))
    UNMET(max_rdma_read_iov, a.attr.max_iov_segments_per_rdma_read + 1);
    UNMET(max_rdma_write_iov, a.attr.max_iov_segments_per_rdma_write + 1);
    UNMET(max_request_iov, a.attr.max_iov_segments_per_dto + 1);
    UNMET(max_request_dtos, a.attr.max_dto_per_ep + 1);
    UNMET(max_request_dtos, -1);
    UNMET(max_rdma_read_out, -1);
    UNMET(max_rdma_read_in, a.attr.max_rdma_read_per_ep_in + 1);
    UNMET(max_rdma_read_out, a.attr.max_rdma_read_per_ep_out + 1);
    UNMET(srq_soft_hw, -2);
    UNMET(qos, 99);
    UNMET(service_type, 99);
    attr = ok;
    attr.max_rdma_read_iov = 1;
    OK(create(a.recv, a.req, a.conn, srq, &attr, &ep));
}

/* As many EPs as the IA reports can be on an SRQ; the next one gets a code that names the SRQ. The
 * call also fails when the device makes no more QPs. */
TEST(r145_epsrq_too_many_eps)
{
    DAT_SRQ_HANDLE srq = srq_of(&a, 4);
    DAT_EP_ATTR attr = ep_attr();
    DAT_EP_HANDLE ep = DAT_HANDLE_NULL, last = DAT_HANDLE_NULL;
    DAT_RETURN ret = DAT_SUCCESS;
    int n;

    CHECK(a.attr.max_ep_per_srq > 0 && a.attr.max_ep_per_srq <= a.attr.max_eps);
    /* The limit of other devices is a million EPs. */
    if (no_software_device("r145_epsrq_too_many_eps"))
        return;
    CHECK(emu("fault cmd.create_qp=12") == 0);
    CHECK(DAT_GET_TYPE(create(a.recv, a.req, a.conn, srq, NULL, &ep)) == DAT_INSUFFICIENT_RESOURCES);
    CHECK(emu("no faults") == 0);
    CHECK(ep == DAT_HANDLE_NULL);
    /* Under valgrind, 32,768 EPs take a minute, and each is like the first. */
    if (getenv("UNDER_VALGRIND")) {
        printf("r145_epsrq_too_many_eps: the limit is left out under valgrind\n");
        return;
    }
    attr.max_request_dtos = attr.max_request_iov = 1;
    for (n = 0; ret == DAT_SUCCESS; n++) {
        last = ep;
        ret = create(DAT_HANDLE_NULL, DAT_HANDLE_NULL, DAT_HANDLE_NULL, srq, &attr, &ep);
    }
    EXPECT(FULL_SRQ, ret);
    CHECK(n == a.attr.max_ep_per_srq + 1 && ep == last);
    OK(dat_ep_free(last));
    OK(create(DAT_HANDLE_NULL, DAT_HANDLE_NULL, DAT_HANDLE_NULL, srq, &attr, &ep));
}

TEST(r146_epsrq_failure_does_not_attach)
{
    DAT_SRQ_HANDLE srq = srq_of(&a, 4);
    DAT_EVD_HANDLE recv = evd_of(&a, DAT_EVD_DTO_FLAG), req = evd_of(&a, DAT_EVD_DTO_FLAG),
                   conn = evd_of(&a, DAT_EVD_CONNECTION_FLAG);
    DAT_EP_ATTR attr = ep_attr();
    DAT_EP_HANDLE ep;

    attr.max_rdma_read_in = -1;
    EXPECT(ARG(7), create(recv, req, conn, srq, &attr, &ep));
    attr = ep_attr();
    attr.recv_completion_flags = DAT_COMPLETION_SUPPRESS_FLAG;
    EXPECT(ARG(7), create(recv, req, conn, srq, &attr, &ep));
    EXPECT(HANDLE(EVD_CONN), create(recv, req, recv, srq, NULL, &ep));
    OK(dat_srq_free(srq));
    OK(dat_evd_free(recv));
    OK(dat_evd_free(req));
    OK(dat_evd_free(conn));
}

/* One buffer at a time does not exceed 2, and -1 is off. 0 is off here as well, because programs
 * clear the structure. */
TEST(r147_epsrq_srq_soft_hw_initial)
{
    int marks[] = {2, DAT_HW_DEFAULT, 0};

    for (int i = 0; i < 3; i++) {
        DAT_SRQ_HANDLE srq = srq_of(&a, 4);
        DAT_EP_ATTR attr = ep_attr();
        struct pair pair;

        attr.srq_soft_hw = marks[i];
        pair = joined(ep_on(&a, srq, a.recv, &attr), plain_ep(&b));
        fill(srq, 0, 2);
        SEND(pair, 8);
        SEND(pair, 8);
        TAKEN(a.recv, pair.server, 8);
        TAKEN(a.recv, pair.server, 8);
        SILENT(a.async);
    }
}

TEST(r148_epsrq_recv_flags_allowed)
{
    DAT_SRQ_HANDLE srq = srq_of(&a, 4);
    unsigned good[] = {0, DAT_COMPLETION_UNSIGNALLED_FLAG, DAT_COMPLETION_SOLICITED_WAIT_FLAG,
                       DAT_COMPLETION_EVD_THRESHOLD_FLAG};
    unsigned bad[] = {DAT_COMPLETION_SUPPRESS_FLAG, DAT_COMPLETION_BARRIER_FENCE_FLAG, 0x40, 0x80000002, 0x6, 0x3};
    DAT_EP_HANDLE ep;

    for (int i = 0; i < 4; i++) {
        DAT_EP_ATTR attr = ep_attr();

        attr.recv_completion_flags = good[i];
        OK(create(evd_of(&a, DAT_EVD_DTO_FLAG), a.req, a.conn, srq, &attr, &ep));
        CHECK(param_of(ep).ep_attr.recv_completion_flags == good[i]);
    }
    for (int i = 0; i < 6; i++) {
        DAT_EP_ATTR attr = ep_attr();

        attr.recv_completion_flags = bad[i];
        EXPECT(ARG(7), create(evd_of(&a, DAT_EVD_DTO_FLAG), a.req, a.conn, srq, &attr, &ep));
    }
}

/* The last EP of with_flags(). */
static DAT_EP_HANDLE flagged;

static DAT_RETURN with_flags(DAT_EVD_HANDLE recv, unsigned recv_flags, DAT_EVD_HANDLE request, unsigned request_flags,
                             DAT_SRQ_HANDLE srq)
{
    DAT_EP_ATTR attr = ep_attr();
    DAT_EP_HANDLE ep;
    DAT_RETURN ret;

    attr.recv_completion_flags = recv_flags;
    attr.request_completion_flags = request_flags;
    ret = create(recv, request, DAT_HANDLE_NULL, srq, &attr, &ep);
    if (ret == DAT_SUCCESS)
        flagged = ep;
    return ret;
}

/* The code names the EVD that does not fit: argument 3 for receives, 4 for requests (R150 to
 * R152). The first stream of an EVD decides, until its EPs are freed. */
TEST(r149_epsrq_share_unsignalled)
{
    DAT_SRQ_HANDLE srq = srq_of(&a, 4);
    DAT_EVD_HANDLE evd = evd_of(&a, DAT_EVD_DTO_FLAG), none = DAT_HANDLE_NULL;
    unsigned u = DAT_COMPLETION_UNSIGNALLED_FLAG, s = DAT_COMPLETION_SOLICITED_WAIT_FLAG,
             t = DAT_COMPLETION_EVD_THRESHOLD_FLAG;
    DAT_EVD_FLAGS also[] = {DAT_EVD_CONNECTION_FLAG, DAT_EVD_SOFTWARE_FLAG, DAT_EVD_CR_FLAG};
    DAT_EP_HANDLE first;

    EXPECT(ARG(3), with_flags(evd, u, evd, 0, srq));
    EXPECT(ARG(3), with_flags(evd, 0, evd, u, srq));
    OK(with_flags(evd, u, evd, u, srq));
    EXPECT(ARG(3), with_flags(evd, 0, none, 0, srq));
    EXPECT(ARG(3), with_flags(evd, t, none, 0, srq));
    EXPECT(ARG(4), with_flags(none, 0, evd, 0, srq));
    first = flagged;
    OK(with_flags(evd, u, none, 0, srq));
    OK(dat_ep_free(first));
    EXPECT(ARG(3), with_flags(evd, 0, none, 0, srq));
    OK(dat_ep_free(flagged));
    OK(with_flags(evd, 0, evd, 0, srq));
    EXPECT(ARG(3), with_flags(evd, s, none, 0, srq));
    EXPECT(ARG(3), with_flags(evd, t, none, 0, srq));
    evd = evd_of(&a, DAT_EVD_DTO_FLAG);
    OK(with_flags(none, 0, evd, 0, srq));
    EXPECT(ARG(3), with_flags(evd, s, none, 0, srq));
    EXPECT(ARG(3), with_flags(evd, t, none, 0, srq));
    evd = evd_of(&a, DAT_EVD_DTO_FLAG);
    EXPECT(ARG(3), with_flags(evd, t, evd, 0, srq));
    EXPECT(ARG(3), with_flags(evd, s, evd, 0, srq));
    OK(with_flags(evd, s, none, 0, srq));
    OK(with_flags(evd, s, none, 0, srq));
    EXPECT(ARG(3), with_flags(evd, 0, none, 0, srq));
    EXPECT(ARG(3), with_flags(evd, t, none, 0, srq));
    EXPECT(ARG(4), with_flags(none, 0, evd, 0, srq));
    for (int i = 0; i < 3; i++) {
        evd = evd_of(&a, DAT_EVD_DTO_FLAG | also[i]);
        EXPECT(ARG(3), with_flags(evd, u, none, 0, srq));
        EXPECT(ARG(3), with_flags(evd, s, none, 0, srq));
        EXPECT(ARG(4), with_flags(none, 0, evd, u, srq));
        OK(with_flags(evd, 0, none, 0, srq));
        OK(dat_ep_free(flagged));
    }
    OK(with_flags(evd, t, none, 0, srq));
    EXPECT(ARG(3), with_flags(evd, 0, none, 0, srq));
    EXPECT(ARG(4), with_flags(none, 0, evd, 0, srq));
    OK(with_flags(none, 0, evd, t, srq));
}

/* EPs on an SRQ connect, duplicate a connection, accept a request at a PSP, and serve an RSP. Each
 * of them receives. */
TEST(r154_epsrq_usable_for_connect_and_accept)
{
    DAT_SRQ_HANDLE srq = srq_of(&a, 8), other = srq_of(&b, 8);
    DAT_EP_HANDLE client = ep_on(&b, other, b.recv, NULL), second = ep_on(&b, other, b.recv, NULL);
    struct pair pairs[3];
    DAT_CONN_QUAL qual = next_qual();
    DAT_PSP_HANDLE psp;
    DAT_RSP_HANDLE rsp;
    DAT_EVENT event;

    OK(dat_psp_create(a.ia, qual, a.cr, DAT_PSP_CONSUMER_FLAG, &psp));
    for (int i = 0; i < 2; i++) {
        pairs[i].server = ep_on(&a, srq, a.recv, NULL);
        pairs[i].client = i ? second : client;
        if (i == 0)
            OK(dat_ep_connect(client, a.attr.ia_address_ptr, qual, LONG_TIME, 0, NULL, 0, 0));
        else
            OK(dat_ep_dup_connect(second, client, LONG_TIME, 0, NULL, 0));
        event = NEXT(a.cr, DAT_CONNECTION_REQUEST_EVENT);
        OK(dat_cr_accept(event.event_data.cr_arrival_event_data.cr_handle, pairs[i].server, 0, NULL));
        NEXT(b.conn, DAT_CONNECTION_EVENT_ESTABLISHED);
        NEXT(a.conn, DAT_CONNECTION_EVENT_ESTABLISHED);
    }
    pairs[2].server = ep_on(&a, srq, a.recv, NULL);
    pairs[2].client = ep_on(&b, other, b.recv, NULL);
    qual = next_qual();
    OK(dat_rsp_create(a.ia, qual, pairs[2].server, a.cr, &rsp));
    CHECK(state_of(pairs[2].server) == DAT_EP_STATE_RESERVED);
    OK(dat_ep_connect(pairs[2].client, a.attr.ia_address_ptr, qual, LONG_TIME, 0, NULL, 0, 0));
    event = NEXT(a.cr, DAT_CONNECTION_REQUEST_EVENT);
    CHECK(state_of(pairs[2].server) == DAT_EP_STATE_PASSIVE_CONNECTION_PENDING);
    OK(dat_cr_accept(event.event_data.cr_arrival_event_data.cr_handle, DAT_HANDLE_NULL, 0, NULL));
    NEXT(b.conn, DAT_CONNECTION_EVENT_ESTABLISHED);
    NEXT(a.conn, DAT_CONNECTION_EVENT_ESTABLISHED);
    fill(srq, 0, 3);
    for (int i = 0; i < 3; i++) {
        SEND(pairs[i], 20 + i);
        TAKEN(a.recv, pairs[i].server, 20 + i);
    }
}

int main(int argc, char **argv)
{
    setenv("DOORBELL_RNR_RETRY", "7", 1);
    setenv("DOORBELL_RNR_TIMER", "16", 1);
    return run_tests(argc, argv);
}
