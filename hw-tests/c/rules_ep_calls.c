/* EPs on an SRQ through libdat2: every call but creation and disconnect (section K).
 *
 * A sender here retries without end while the receiver has no receive posted. Its EP then stays in
 * DISCONNECT_PENDING after a graceful disconnect. */
#include "rig.h"

/* A receive that is posted to an SRQ EP is refused in every state, whatever else is wrong with the
 * call, and has no effect. */
static void no_receive(DAT_EP_HANDLE ep, DAT_SRQ_HANDLE srq, DAT_EP_STATE state)
{
    DAT_LMR_TRIPLET good = piece(&a, 0, 64), bad = {UINT64_MAX, 64, 0xdead};

    CHECK(state_of(ep) == state || (state == DAT_EP_STATE_CONNECTED && connected(ep)));
    EXPECT(STATE(DAT_INVALID_STATE_SRQ_IN_USE), dat_ep_post_recv(ep, 1, &good, as_cookie(1), 0));
    EXPECT(STATE(DAT_INVALID_STATE_SRQ_IN_USE), dat_ep_post_recv(ep, 1, &bad, as_cookie(1), 0));
    EXPECT(STATE(DAT_INVALID_STATE_SRQ_IN_USE), dat_ep_post_recv(ep, 0, NULL, as_cookie(1), 0));
    EXPECT(STATE(DAT_INVALID_STATE_SRQ_IN_USE), dat_ep_post_recv(ep, 1, NULL, as_cookie(1), 0));
    EXPECT(STATE(DAT_INVALID_STATE_SRQ_IN_USE), dat_ep_post_recv(ep, -1, &good, as_cookie(1), 0x80000000));
    COUNTS(srq, 2, 2);
}

/* In each state (R158). */
TEST(r157_epsrq_post_recv_refused)
{
    DAT_SRQ_HANDLE srq = srq_of(&a, 4);
    DAT_EP_HANDLE ep = ep_on(&a, srq, a.recv, NULL);
    DAT_RSP_HANDLE rsp;
    struct pair pair;

    fill(srq, 0, 2);
    no_receive(ep, srq, DAT_EP_STATE_UNCONNECTED);
    OK(dat_rsp_create(a.ia, next_qual(), ep, a.cr, &rsp));
    no_receive(ep, srq, DAT_EP_STATE_RESERVED);
    OK(dat_rsp_free(rsp));
    pair = joined(ep, plain_ep(&b));
    no_receive(ep, srq, DAT_EP_STATE_CONNECTED);
    begin_graceful(&pair);
    no_receive(ep, srq, DAT_EP_STATE_DISCONNECT_PENDING);
    OK(dat_ep_disconnect(ep, DAT_CLOSE_ABRUPT_FLAG));
    no_receive(ep, srq, DAT_EP_STATE_DISCONNECTED);
    EMPTIED(a.recv);
}

/* Each bit outside of the mask is refused. The whole mask is legal for any EP (R161). */
TEST(r160_ep_query_bad_mask)
{
    DAT_EP_HANDLE ep = ep_on(&a, srq_of(&a, 4), a.recv, NULL);
    DAT_EP_PARAM param;

    for (unsigned bit = 31; bit < 64; bit++)
        EXPECT(ARG(2), dat_ep_query(ep, UINT64_C(1) << bit, &param));
    EXPECT(ARG(3), dat_ep_query(ep, DAT_EP_FIELD_ALL, NULL));
    OK(dat_ep_query(ep, 0, &param));
    OK(dat_ep_query(ep, DAT_EP_FIELD_ALL, &param));
}

/* SRQ and soft high watermark cannot be modified, alone or together with an attribute that can;
 * then that attribute does not change either (R166). */
TEST(r162_ep_modify_cannot_touch_srq)
{
    DAT_SRQ_HANDLE srq = srq_of(&a, 4), other = srq_of(&a, 4);
    DAT_EP_HANDLE ep = ep_on(&a, srq, a.recv, NULL);
    DAT_EP_PARAM param = param_of(ep);

    param.srq_handle = other;
    param.ep_attr.srq_soft_hw = 3;
    param.ep_attr.recv_completion_flags = DAT_COMPLETION_EVD_THRESHOLD_FLAG;
    EXPECT(ARG(2), dat_ep_modify(ep, DAT_EP_FIELD_SRQ_HANDLE, &param));
    EXPECT(ARG(2), dat_ep_modify(ep, DAT_EP_FIELD_EP_ATTR_SRQ_SOFT_HW, &param));
    EXPECT(ARG(2), dat_ep_modify(ep, DAT_EP_FIELD_SRQ_HANDLE | DAT_EP_FIELD_EP_ATTR_RECV_COMPLETION_FLAGS, &param));
    param = param_of(ep);
    CHECK(param.srq_handle == srq && param.ep_attr.srq_soft_hw == DAT_HW_DEFAULT);
    CHECK(param.ep_attr.recv_completion_flags == 0);
}

/* Before a connection the PZ can change. What is posted then has to be in the new one. */
TEST(r163_ep_modify_pz_states)
{
    DAT_EP_HANDLE ep = plain_ep(&a);
    DAT_LMR_TRIPLET iov = piece(&a, 0, 8);
    DAT_EP_PARAM param;
    DAT_RSP_HANDLE rsp;
    DAT_PZ_HANDLE pz;

    OK(dat_pz_create(a.ia, &pz));
    param.pz_handle = pz;
    OK(dat_rsp_create(a.ia, next_qual(), ep, a.cr, &rsp));
    EXPECT(STATE(DAT_INVALID_STATE_EP_RESERVED), dat_ep_modify(ep, DAT_EP_FIELD_PZ_HANDLE, &param));
    OK(dat_rsp_free(rsp));
    OK(dat_ep_modify(ep, DAT_EP_FIELD_PZ_HANDLE, &param));
    CHECK(param_of(ep).pz_handle == pz);
    EXPECT(STATE(DAT_INVALID_STATE_PZ_IN_USE), dat_pz_free(pz));
    EXPECT(ERROR(DAT_PROTECTION_VIOLATION, DAT_PROTECTION_WRITE), dat_ep_post_recv(ep, 1, &iov, as_cookie(0), 0));
    param.pz_handle = a.pz;
    OK(dat_ep_modify(ep, DAT_EP_FIELD_PZ_HANDLE, &param));
    OK(dat_ep_post_recv(ep, 1, &iov, as_cookie(0), 0));
    joined(ep, plain_ep(&b));
    param.pz_handle = pz;
    EXPECT(STATE(DAT_INVALID_STATE_EP_CONNECTED), dat_ep_modify(ep, DAT_EP_FIELD_PZ_HANDLE, &param));
    OK(dat_ep_disconnect(ep, DAT_CLOSE_ABRUPT_FLAG));
    EXPECT(STATE(DAT_INVALID_STATE_EP_DISCONNECTED), dat_ep_modify(ep, DAT_EP_FIELD_PZ_HANDLE, &param));
    CHECK(param_of(ep).pz_handle == a.pz);
}

/* The flags can change before a connection, while no receive is posted, to what fits the EVD. */
TEST(r165_ep_modify_recv_flags)
{
    DAT_SRQ_HANDLE srq = srq_of(&a, 4);
    DAT_EVD_HANDLE evd = evd_of(&a, DAT_EVD_DTO_FLAG);
    DAT_EP_HANDLE ep = ep_on(&a, srq, evd, NULL);
    DAT_EP_PARAM param = param_of(ep);
    DAT_EP_PARAM_MASK mask = DAT_EP_FIELD_EP_ATTR_RECV_COMPLETION_FLAGS;
    DAT_EP_ATTR attr = ep_attr();
    DAT_EP_HANDLE other;
    DAT_RSP_HANDLE rsp;
    DAT_EVENT event;
    DAT_COUNT more;

    param.ep_attr.recv_completion_flags = DAT_COMPLETION_SOLICITED_WAIT_FLAG;
    OK(dat_ep_modify(ep, mask, &param));
    CHECK(param_of(ep).ep_attr.recv_completion_flags == DAT_COMPLETION_SOLICITED_WAIT_FLAG);
    EXPECT(STATE(DAT_INVALID_STATE_EVD_CONFIG_SOLICITED), dat_evd_wait(evd, 0, 2, &event, &more));
    param.ep_attr.recv_completion_flags = DAT_COMPLETION_SUPPRESS_FLAG;
    CHECK(DAT_GET_TYPE(dat_ep_modify(ep, mask, &param)) == DAT_INVALID_PARAMETER);
    CHECK(param_of(ep).ep_attr.recv_completion_flags == DAT_COMPLETION_SOLICITED_WAIT_FLAG);
    attr.recv_completion_flags = DAT_COMPLETION_SOLICITED_WAIT_FLAG;
    other = ep_on(&a, srq, evd, &attr);
    param.ep_attr.recv_completion_flags = 0;
    CHECK(DAT_GET_TYPE(dat_ep_modify(ep, mask, &param)) == DAT_INVALID_PARAMETER);
    OK(dat_ep_free(other));
    OK(dat_rsp_create(a.ia, next_qual(), ep, a.cr, &rsp));
    OK(dat_ep_modify(ep, mask, &param));
    OK(dat_rsp_free(rsp));
    joined(ep, plain_ep(&b));
    EXPECT(STATE(DAT_INVALID_STATE_EP_CONNECTED), dat_ep_modify(ep, mask, &param));
    other = plain_ep(&a);
    receives(other, 0, 1);
    param.ep_attr.recv_completion_flags = DAT_COMPLETION_EVD_THRESHOLD_FLAG;
    EXPECT(STATE(DAT_INVALID_STATE_EP_UNCONNECTED), dat_ep_modify(other, mask, &param));
}

/* After the reset, the EP connects again and receives from the SRQ (R153). */
TEST(r167_ep_reset_keeps_srq)
{
    DAT_SRQ_HANDLE srq = srq_of(&a, 4);
    struct pair pair = pair_on(srq);

    fill(srq, 0, 2);
    for (int i = 0; i < 2; i++) {
        SEND(pair, 8);
        TAKEN(a.recv, pair.server, 8);
        OK(dat_ep_disconnect(pair.server, DAT_CLOSE_ABRUPT_FLAG));
        ENDS(pair, DAT_CONNECTION_EVENT_DISCONNECTED);
        OK(dat_ep_reset(pair.server));
        OK(dat_ep_reset(pair.client));
        CHECK(param_of(pair.server).srq_handle == srq);
        if (i == 0)
            pair = joined(pair.server, pair.client);
    }
}

TEST(r168_ep_reset_states)
{
    DAT_SRQ_HANDLE srq = srq_of(&a, 4);
    DAT_EP_HANDLE ep = ep_on(&a, srq, a.recv, NULL);
    DAT_RSP_HANDLE rsp;
    struct pair pair;

    OK(dat_ep_reset(ep));
    OK(dat_rsp_create(a.ia, next_qual(), ep, a.cr, &rsp));
    EXPECT(STATE(DAT_INVALID_STATE_EP_RESERVED), dat_ep_reset(ep));
    OK(dat_rsp_free(rsp));
    pair = joined(ep, plain_ep(&b));
    EXPECT(STATE(DAT_INVALID_STATE_EP_CONNECTED), dat_ep_reset(ep));
    begin_graceful(&pair);
    EXPECT(STATE(DAT_INVALID_STATE_EP_DISCPENDING), dat_ep_reset(ep));
    OK(dat_ep_disconnect(ep, DAT_CLOSE_ABRUPT_FLAG));
    OK(dat_ep_reset(ep));
    CHECK(state_of(ep) == DAT_EP_STATE_UNCONNECTED);
}

/* After a reset, exactly the completions that can still be reaped are outstanding. */
TEST(r169_ep_reset_releases_entries)
{
    DAT_SRQ_HANDLE srq = srq_of(&a, 4);
    struct pair pair = pair_on(srq);
    DAT_EVENT event;

    fill(srq, 0, 4);
    for (int i = 0; i < 3; i++)
        SEND(pair, 8);
    OK(dat_ep_disconnect(pair.server, DAT_CLOSE_ABRUPT_FLAG));
    OK(dat_ep_reset(pair.server));
    while (dat_evd_dequeue(a.recv, &event) == DAT_SUCCESS)
        CHECK(DTO(event).status == DAT_DTO_SUCCESS);
    COUNTS(srq, 1, 1);
    fill(srq, 4, 3);
}

/* Freeing an EP gives the entries of its unreaped completions back (R172), and other EPs use them. */
TEST(r170_ep_free_detaches)
{
    DAT_SRQ_HANDLE srq = srq_of(&a, 4);
    struct pair pair = pair_on(srq);

    fill(srq, 0, 4);
    for (int i = 0; i < 3; i++)
        SEND(pair, 8);
    COUNTS(srq, 1, 4);
    EXPECT(STATE(DAT_INVALID_STATE_SRQ_IN_USE), dat_srq_free(srq));
    OK(dat_ep_free(pair.server));
    NEXT(b.conn, DAT_CONNECTION_EVENT_DISCONNECTED);
    COUNTS(srq, 1, 1);
    fill(srq, 4, 3);
    EXPECT(FULL_SRQ, post(srq, 7, 8));
    EMPTIED(a.recv);
    pair = pair_on(srq);
    for (unsigned i = 3; i < 7; i++) {
        SEND(pair, 8);
        CHECK(TAKEN(a.recv, pair.server, 8).user_cookie.as_64 == i);
    }
    OK(dat_ep_free(pair.server));
    OK(dat_srq_free(srq));
}

TEST(r171_ep_free_states)
{
    DAT_SRQ_HANDLE srq = srq_of(&a, 4);
    DAT_EP_HANDLE ep = ep_on(&a, srq, a.recv, NULL), client = plain_ep(&b);
    DAT_CONN_QUAL qual = next_qual();
    DAT_PSP_HANDLE psp;
    DAT_RSP_HANDLE rsp;
    DAT_CR_HANDLE cr;
    struct pair pair;

    OK(dat_rsp_create(a.ia, qual, ep, a.cr, &rsp));
    EXPECT(STATE(DAT_INVALID_STATE_EP_RESERVED), dat_ep_free(ep));
    cr = request(&a, client, qual);
    EXPECT(STATE(DAT_INVALID_STATE_EP_PASSCONNPENDING), dat_ep_free(ep));
    OK(dat_cr_reject(cr, 0, NULL));
    NEXT(b.conn, DAT_CONNECTION_EVENT_PEER_REJECTED);
    OK(dat_rsp_free(rsp));
    OK(dat_ep_free(ep));
    OK(dat_ep_free(client));
    client = plain_ep(&b);
    qual = next_qual();
    OK(dat_psp_create(a.ia, qual, a.cr, DAT_PSP_CONSUMER_FLAG, &psp));
    request(&a, client, qual);
    CHECK(state_of(client) == DAT_EP_STATE_ACTIVE_CONNECTION_PENDING);
    OK(dat_ep_free(client));
    OK(dat_psp_free(psp));
    pair = pair_on(srq);
    begin_graceful(&pair);
    OK(dat_ep_free(pair.server));
    NEXT(b.conn, DAT_CONNECTION_EVENT_DISCONNECTED);
    for (int ended = 0; ended < 2; ended++) {
        pair = pair_on(srq);
        if (ended)
            OK(dat_ep_disconnect(pair.server, DAT_CLOSE_ABRUPT_FLAG));
        OK(dat_ep_free(pair.server));
        NEXT(b.conn, DAT_CONNECTION_EVENT_DISCONNECTED);
    }
    OK(dat_srq_free(srq));
}

TEST(r173_ep_get_status_recv_idle)
{
    DAT_SRQ_HANDLE srq = srq_of(&a, 4);
    struct pair pair = pair_on(srq);
    DAT_EP_STATE state = 99;
    DAT_BOOLEAN recv_idle = 7, request_idle = 7;
    DAT_EP_HANDLE plain = plain_ep(&a);
    DAT_LMR_TRIPLET iov = piece(&a, 0, 8);

    fill(srq, 0, 4);
    OK(dat_ep_get_status(pair.server, &state, &recv_idle, &request_idle));
    CHECK(recv_idle == DAT_TRUE && request_idle == DAT_TRUE);
    SEND(pair, 8);
    TAKEN(a.recv, pair.server, 8);
    OK(dat_ep_get_status(pair.server, NULL, &recv_idle, NULL));
    CHECK(recv_idle == DAT_TRUE);
    OK(dat_ep_get_status(pair.server, NULL, NULL, NULL));
    OK(dat_ep_post_recv(plain, 1, &iov, as_cookie(0), 0));
    OK(dat_ep_get_status(plain, NULL, &recv_idle, NULL));
    CHECK(recv_idle == DAT_FALSE);
    pair = joined(plain, plain_ep(&b));
    SEND(pair, 8);
    TAKEN(a.recv, plain, 8);
    OK(dat_ep_get_status(plain, NULL, &recv_idle, NULL));
    CHECK(recv_idle == DAT_TRUE);
}

int main(int argc, char **argv)
{
    setenv("DOORBELL_RNR_RETRY", "7", 1);
    setenv("DOORBELL_RNR_TIMER", "16", 1);
    return run_tests(argc, argv);
}
