/* The end of connections of EPs on an SRQ through libdat2: disconnects and breaks (section L).
 *
 * A sender here retries without end while the receiver has no receive posted. Its EP then stays in
 * DISCONNECT_PENDING after a graceful disconnect. */
#include "rig.h"

/* Finished receives keep their result and are outstanding until they are reaped (R177). An ordinary
 * EP flushes the receives that it has. */
TEST(r174_flush_reports_every_taken_buffer)
{
    DAT_SRQ_HANDLE srq = srq_of(&a, 4);
    struct pair pair = pair_on(srq);
    DAT_EP_HANDLE plain = plain_ep(&a);
    DAT_LMR_TRIPLET iov = piece(&a, 0, 8);
    DAT_EVENT event;

    fill(srq, 0, 4);
    SEND(pair, 8);
    SEND(pair, 9);
    OK(dat_ep_disconnect(pair.client, DAT_CLOSE_ABRUPT_FLAG));
    ENDS(pair, DAT_CONNECTION_EVENT_DISCONNECTED);
    COUNTS(srq, 2, 4);
    TAKEN(a.recv, pair.server, 8);
    COUNTS(srq, 2, 3);
    TAKEN(a.recv, pair.server, 9);
    COUNTS(srq, 2, 2);
    SILENT(a.recv);
    pair = joined(plain, plain_ep(&b));
    OK(dat_ep_post_recv(plain, 1, &iov, as_cookie(5), 0));
    OK(dat_ep_disconnect(plain, DAT_CLOSE_ABRUPT_FLAG));
    event = NEXT(a.recv, DAT_DTO_COMPLETION_EVENT);
    CHECK(DTO(event).status == DAT_DTO_ERR_FLUSHED && DTO(event).status == 1 && DTO(event).user_cookie.as_64 == 5);
}

/* The SRQ's other EPs keep working (R176, R191). An EP that is not connected takes no buffer (R72). */
TEST(r175_flush_spares_buffers_on_srq)
{
    DAT_SRQ_HANDLE srq = srq_of(&a, 4);
    struct pair ended = pair_on(srq), other = pair_on(srq);
    DAT_EVD_HANDLE idle = evd_of(&a, DAT_EVD_DTO_FLAG);

    ep_on(&a, srq, idle, NULL);
    fill(srq, 0, 3);
    OK(dat_ep_disconnect(ended.server, DAT_CLOSE_ABRUPT_FLAG));
    ENDS(ended, DAT_CONNECTION_EVENT_DISCONNECTED);
    OK(send_flagged(ended.client, 8, 0));
    REQUEST_ENDS(ended, DAT_DTO_ERR_FLUSHED);
    SILENT(a.recv);
    COUNTS(srq, 3, 3);
    CHECK(look(srq).srq_state == DAT_SRQ_STATE_OPERATIONAL && connected(other.server));
    for (int i = 0; i < 3; i++) {
        SEND(other, 8);
        TAKEN(a.recv, other.server, 8);
    }
    EMPTIED(idle);
}

/* After the failed receive, no receive of that EP succeeds, and the connection is broken on both
 * sides (R178, R190, R179). */
TEST(r178_fail_once_fail_after)
{
    DAT_SRQ_HANDLE srq = srq_of(&a, 4);
    struct pair pair = pair_on(srq), other = pair_on(srq);
    DAT_EVENT event;

    for (unsigned i = 0; i < 4; i++)
        OK(post(srq, i, 64));
    OK(send_flagged(pair.client, 8, 0));
    OK(send_flagged(pair.client, 65, 0));
    OK(send_flagged(pair.client, 8, 0));
    TAKEN(a.recv, pair.server, 8);
    event = NEXT(a.recv, DAT_DTO_COMPLETION_EVENT);
    CHECK(DTO(event).ep_handle == pair.server && DTO(event).status == DAT_DTO_ERR_LOCAL_LENGTH);
    ENDS(pair, DAT_CONNECTION_EVENT_BROKEN);
    REQUEST_ENDS(pair, DAT_DTO_SUCCESS);
    for (int i = 0; i < 2; i++) {
        event = NEXT(b.req, DAT_DTO_COMPLETION_EVENT);
        CHECK(DTO(event).status != DAT_DTO_SUCCESS);
    }
    COUNTS(srq, 2, 2);
    CHECK(state_of(pair.server) == DAT_EP_STATE_DISCONNECTED);
    OK(dat_ep_disconnect(pair.server, DAT_CLOSE_GRACEFUL_FLAG));
    SILENT(a.conn);
    SEND(other, 8);
    TAKEN(a.recv, other.server, 8);
}

/* While the disconnect waits, new requests are refused, and a second graceful disconnect has no
 * effect (R72, R181, R182). */
TEST(r180_graceful_still_receives)
{
    DAT_SRQ_HANDLE srq = srq_of(&a, 4);
    struct pair pair = pair_on(srq);
    DAT_LMR_TRIPLET iov = piece(&a, 0, 8), to = piece(&b, 0, 8);
    DAT_RMR_TRIPLET remote = {(DAT_VADDR)(uintptr_t)b.memory, 8, b.rmr_context};
    DAT_EVENT event;

    begin_graceful(&pair);
    fill(srq, 0, 3);
    SEND(pair, 8);
    TAKEN(a.recv, pair.server, 8);
    COUNTS(srq, 2, 2);
    EXPECT(STATE(DAT_INVALID_STATE_EP_DISCPENDING), dat_ep_post_send(pair.server, 1, &iov, as_cookie(0), 0));
    EXPECT(STATE(DAT_INVALID_STATE_EP_DISCPENDING), dat_ep_post_rdma_write(pair.server, 1, &iov, as_cookie(0), &remote, 0));
    EXPECT(STATE(DAT_INVALID_STATE_EP_DISCPENDING), dat_ep_post_rdma_read(pair.server, 1, &iov, as_cookie(0), &remote, 0));
    EXPECT(STATE(DAT_INVALID_STATE_EP_DISCPENDING),
           dat_ib_post_rdma_write_immed(pair.server, 1, &iov, as_cookie(0), &remote, 1, 0));
    OK(dat_ep_disconnect(pair.server, DAT_CLOSE_GRACEFUL_FLAG));
    CHECK(state_of(pair.server) == DAT_EP_STATE_DISCONNECT_PENDING);
    EMPTIED(a.conn);
    OK(dat_ep_post_recv(pair.client, 1, &to, as_cookie(78), 0));
    event = NEXT(a.req, DAT_DTO_COMPLETION_EVENT);
    CHECK(DTO(event).status == DAT_DTO_SUCCESS && DTO(event).user_cookie.as_64 == 77);
    ENDS(pair, DAT_CONNECTION_EVENT_DISCONNECTED);
    SILENT(a.conn);
}

/* The request that waited is flushed before one that is posted after the end. */
TEST(r183_abrupt_overrides_graceful)
{
    DAT_SRQ_HANDLE srq = srq_of(&a, 4);
    struct pair pair = pair_on(srq);
    DAT_LMR_TRIPLET iov = piece(&a, 0, 8);
    DAT_EVENT event;

    begin_graceful(&pair);
    OK(dat_ep_disconnect(pair.server, DAT_CLOSE_ABRUPT_FLAG));
    CHECK(state_of(pair.server) == DAT_EP_STATE_DISCONNECTED);
    OK(dat_ep_post_send(pair.server, 1, &iov, as_cookie(78), 0));
    for (unsigned cookie = 77; cookie <= 78; cookie++) {
        event = NEXT(a.req, DAT_DTO_COMPLETION_EVENT);
        CHECK(DTO(event).status == DAT_DTO_ERR_FLUSHED && DTO(event).user_cookie.as_64 == cookie);
    }
    ENDS(pair, DAT_CONNECTION_EVENT_DISCONNECTED);
}

static void *disconnect_thrice(void *ep)
{
    uintptr_t wrong = 0;

    for (int i = 0; i < 3; i++)
        wrong += dat_ep_disconnect(ep, DAT_CLOSE_ABRUPT_FLAG) != DAT_SUCCESS;
    return (void *)wrong;
}

/* The event comes once, however often both ends disconnect, at the same time as well. On a
 * DISCONNECTED EP the call does nothing (R186). */
TEST(r184_disconnected_event_once)
{
    DAT_SRQ_HANDLE srq = srq_of(&a, 4);

    for (unsigned how = 0; how < 2; how++) {
        struct pair pair = pair_on(srq);
        pthread_t thread;
        void *wrong;

        CHECK(pthread_create(&thread, NULL, disconnect_thrice, pair.client) == 0);
        for (int i = 0; i < 3; i++)
            OK(dat_ep_disconnect(pair.server, how));
        CHECK(pthread_join(thread, &wrong) == 0 && wrong == NULL);
        ENDS(pair, DAT_CONNECTION_EVENT_DISCONNECTED);
        for (unsigned again = 0; again < 2; again++) {
            OK(dat_ep_disconnect(pair.server, again));
            OK(dat_ep_disconnect(pair.client, again));
        }
        SILENT(a.conn);
        SILENT(b.conn);
        CHECK(state_of(pair.server) == DAT_EP_STATE_DISCONNECTED && state_of(pair.client) == DAT_EP_STATE_DISCONNECTED);
    }
}

/* For waits and for dequeues. */
TEST(r185_disconnected_event_after_successes)
{
    DAT_SRQ_HANDLE srq = srq_of(&a, 8);
    DAT_EVD_HANDLE both = evd_of(&a, DAT_EVD_DTO_FLAG | DAT_EVD_CONNECTION_FLAG), own = a.conn;
    struct pair pair;
    DAT_EVENT event;

    /* join() and ENDS use this EVD. */
    a.conn = both;
    for (int by_wait = 0; by_wait < 2; by_wait++) {
        pair = joined(ep_on(&a, srq, both, NULL), plain_ep(&b));
        fill(srq, 0, 4);
        for (int i = 0; i < 4; i++)
            SEND(pair, 8);
        OK(dat_ep_disconnect(pair.client, DAT_CLOSE_ABRUPT_FLAG));
        NEXT(b.conn, DAT_CONNECTION_EVENT_DISCONNECTED);
        ASYNC(a, DAT_ASYNC_ERROR_EP_BROKEN, pair.server, DAT_EP_TRANSFER_TO_ERROR);
        for (unsigned i = 0; i < 4; i++) {
            if (by_wait)
                event = NEXT(both, DAT_DTO_COMPLETION_EVENT);
            else
                OK(dat_evd_dequeue(both, &event));
            CHECK(event.event_number == DAT_DTO_COMPLETION_EVENT && DTO(event).status == DAT_DTO_SUCCESS);
            CHECK(DTO(event).user_cookie.as_64 == i);
        }
        NEXT(both, DAT_CONNECTION_EVENT_DISCONNECTED);
    }
    a.conn = own;
}

/* A disconnect is refused in three states, with either flag. */
TEST(r187_disconnect_forbidden_states)
{
    DAT_EP_HANDLE ep = ep_on(&a, srq_of(&a, 4), a.recv, NULL), client = plain_ep(&b);
    DAT_CONN_QUAL qual = next_qual();
    DAT_RSP_HANDLE rsp;
    DAT_CR_HANDLE cr;

    for (unsigned how = 0; how < 2; how++)
        EXPECT(STATE(DAT_INVALID_STATE_EP_UNCONNECTED), dat_ep_disconnect(ep, how));
    OK(dat_rsp_create(a.ia, qual, ep, a.cr, &rsp));
    for (unsigned how = 0; how < 2; how++)
        EXPECT(STATE(DAT_INVALID_STATE_EP_RESERVED), dat_ep_disconnect(ep, how));
    cr = request(&a, client, qual);
    for (unsigned how = 0; how < 2; how++)
        EXPECT(STATE(DAT_INVALID_STATE_EP_PASSCONNPENDING), dat_ep_disconnect(ep, how));
    OK(dat_cr_accept(cr, DAT_HANDLE_NULL, 0, NULL));
    NEXT(a.conn, DAT_CONNECTION_EVENT_ESTABLISHED);
}

/* An unknown flag is refused in every state, and nothing happens. */
TEST(r188_disconnect_bad_flag)
{
    DAT_SRQ_HANDLE srq = srq_of(&a, 4);
    struct pair pair = pair_on(srq);
    unsigned flags[] = {2, 3, 4, 0x80000000, 0xffffffff};

    for (int i = 0; i < 5; i++) {
        EXPECT(ARG(2), dat_ep_disconnect(pair.server, flags[i]));
        EXPECT(ARG(2), dat_ep_disconnect(ep_on(&a, srq, a.recv, NULL), flags[i]));
    }
    CHECK(connected(pair.server));
    SILENT(a.conn);
}

TEST(r189_disconnect_aborts_setup)
{
    DAT_SRQ_HANDLE other = srq_of(&b, 4);

    for (unsigned how = 0; how < 2; how++) {
        DAT_EP_HANDLE client = ep_on(&b, other, b.recv, NULL);
        DAT_CONN_QUAL qual = next_qual();
        DAT_PSP_HANDLE psp;
        DAT_EVENT event;

        OK(dat_psp_create(a.ia, qual, a.cr, DAT_PSP_CONSUMER_FLAG, &psp));
        OK(dat_ep_connect(client, a.attr.ia_address_ptr, qual, LONG_TIME, 0, NULL, 0, 0));
        NEXT(a.cr, DAT_CONNECTION_REQUEST_EVENT);
        CHECK(state_of(client) == DAT_EP_STATE_ACTIVE_CONNECTION_PENDING);
        EXPECT(STATE(DAT_INVALID_STATE_EP_ACTCONNPENDING), dat_ep_reset(client));
        OK(dat_ep_disconnect(client, how));
        CHECK(state_of(client) == DAT_EP_STATE_DISCONNECTED);
        event = NEXT(b.conn, DAT_CONNECTION_EVENT_DISCONNECTED);
        CHECK(event.event_data.connect_event_data.ep_handle == client);
        SILENT(b.conn);
        EMPTIED(b.recv);
        OK(dat_ep_reset(client));
    }
}

/* The asynchronous EVD holds more events than the eight that were asked for, in the order of the
 * DISCONNECTED events (R193). */
TEST(r192_dtestsrq_ep_broken_quirk)
{
    DAT_SRQ_HANDLE srq = srq_of(&a, 4);
    struct pair pairs[12];
    DAT_EVD_PARAM param;

    OK(dat_evd_query(a.async, DAT_EVD_FIELD_ALL, &param));
    CHECK(param.evd_qlen >= 100);
    for (int i = 0; i < 12; i++)
        pairs[i] = pair_on(srq);
    for (int i = 0; i < 12; i++)
        OK(dat_ep_disconnect(pairs[i].client, DAT_CLOSE_ABRUPT_FLAG));
    for (int i = 0; i < 12; i++) {
        DAT_EVENT end = NEXT(a.conn, DAT_CONNECTION_EVENT_DISCONNECTED);

        ASYNC(a, DAT_ASYNC_ERROR_EP_BROKEN, end.event_data.connect_event_data.ep_handle, DAT_EP_TRANSFER_TO_ERROR);
    }
    SILENT(a.async);
    EMPTIED(b.async);
}

int main(int argc, char **argv)
{
    setenv("DOORBELL_RNR_RETRY", "7", 1);
    setenv("DOORBELL_RNR_TIMER", "16", 1);
    return run_tests(argc, argv);
}
