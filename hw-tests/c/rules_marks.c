/* High watermarks of EPs through libdat2 (section N). */
#include "rig.h"

/* The soft watermark of an ordinary EP fires above its value and not at it (R212, R224), with the
 * event of R213, and once (R214). */
TEST(r211_hw_soft_fires_above)
{
    DAT_EP_HANDLE ep = plain_ep(&a);

    OK(dat_ep_set_watermark(ep, 2, DAT_WATERMARK_INFINITE));
    receives(ep, 0, 2);
    SILENT(a.async);
    receives(ep, 2, 1);
    SOFT(ep);
    receives(ep, 3, 2);
    SILENT(a.async);
    CHECK(state_of(ep) == DAT_EP_STATE_UNCONNECTED);
}

/* An SRQ EP holds one buffer at a time, so its count exceeds 0 and not 1. The event has a number
 * that does not claim a broken EP. */
TEST(r213_hw_soft_event_form)
{
    DAT_SRQ_HANDLE srq = srq_of(&a, 4);
    struct pair pair = pair_on(srq);
    DAT_EVENT event;

    fill(srq, 0, 4);
    OK(dat_ep_set_watermark(pair.server, 1, -1));
    SEND(pair, 8);
    TAKEN(a.recv, pair.server, 8);
    SILENT(a.async);
    OK(dat_ep_set_watermark(pair.server, 0, -1));
    SEND(pair, 8);
    TAKEN(a.recv, pair.server, 8);
    event = NEXT(a.async, DAT_ASYNC_ERROR_PROVIDER_INTERNAL_ERROR);
    CHECK(event.event_number == 0x8005 && event.evd_handle == a.async);
    CHECK(event.event_data.asynch_error_event_data.dat_handle == (DAT_HANDLE)pair.server);
    CHECK((int)event.event_data.asynch_error_event_data.reason == 2);
    CHECK(connected(pair.server));
}

/* The event comes, once, although no thread looks at the receive EVD: the program waits for the CNO
 * of the asynchronous EVD. */
TEST(r211_hw_soft_fires_above_unseen)
{
    DAT_SRQ_HANDLE srq = srq_of(&a, 4);
    struct pair pair = pair_on(srq);
    DAT_CNO_HANDLE cno;
    DAT_EVD_HANDLE evd;

    OK(dat_cno_create(a.ia, DAT_OS_WAIT_PROXY_AGENT_NULL, &cno));
    OK(dat_evd_modify_cno(a.async, cno));
    fill(srq, 0, 4);
    OK(dat_ep_set_watermark(pair.server, 0, -1));
    SEND(pair, 8);
    OK(dat_cno_wait(cno, LONG_TIME, &evd));
    CHECK(evd == a.async);
    SOFT(pair.server);
    SEND(pair, 8);
    SILENT(a.async);
    TAKEN(a.recv, pair.server, 8);
    TAKEN(a.recv, pair.server, 8);
    OK(dat_evd_modify_cno(a.async, DAT_HANDLE_NULL));
    OK(dat_cno_free(cno));
}

/* The hard watermark also works when no thread looks at the receive EVD. */
TEST(r215_hw_hard_breaks_connection_unseen)
{
    DAT_SRQ_HANDLE srq = srq_of(&a, 4);
    struct pair pair = pair_on(srq);

    fill(srq, 0, 4);
    OK(dat_ep_set_watermark(pair.server, -1, 0));
    OK(send_flagged(pair.client, 8, 0));
    broken_by_server(&pair);
}

/* Of ordinary EPs: a failed receive or request breaks the connection although no thread looks at
 * its completion. The receive behind a failed one is flushed (R178). */
TEST(broken_connections_are_told_unseen)
{
    struct pair pair = plain_pair(2), rnr = plain_pair(0);
    DAT_EVENT event;

    OK(send_flagged(pair.client, ROOM + 1, 0));
    broken(&pair);
    OK(send_flagged(rnr.client, 8, 0));
    ended(&rnr, DAT_CONNECTION_EVENT_DISCONNECTED, DAT_CONNECTION_EVENT_BROKEN);
    event = NEXT(a.recv, DAT_DTO_COMPLETION_EVENT);
    CHECK(DTO(event).status == DAT_DTO_ERR_LOCAL_LENGTH);
    event = NEXT(a.recv, DAT_DTO_COMPLETION_EVENT);
    CHECK(DTO(event).status == DAT_DTO_ERR_FLUSHED && DTO(event).user_cookie.as_64 == 1);
    SILENT(a.async);
}

/* Setting the same value again is a new setting. */
TEST(r214_hw_soft_one_shot)
{
    DAT_EP_HANDLE ep = plain_ep(&a);

    OK(dat_ep_set_watermark(ep, 1, -1));
    receives(ep, 0, 4);
    SOFT(ep);
    EMPTIED(a.async);
    OK(dat_ep_set_watermark(ep, 1, -1));
    SOFT(ep);
    SILENT(a.async);
}

/* The hard watermark does not fire at its value (R216). Above it, the connection breaks and the
 * receives are flushed. */
TEST(r215_hw_hard_breaks_connection)
{
    struct pair pair = plain_pair(2);

    OK(dat_ep_set_watermark(pair.server, -1, 2));
    SILENT(a.conn);
    CHECK(connected(pair.server));
    receives(pair.server, 2, 1);
    broken_by_server(&pair);
    for (unsigned i = 0; i < 3; i++) {
        DAT_EVENT event = NEXT(a.recv, DAT_DTO_COMPLETION_EVENT);

        CHECK(DTO(event).status == DAT_DTO_ERR_FLUSHED && DTO(event).user_cookie.as_64 == i);
    }
}

/* With hard watermark 0, the connection of an SRQ EP breaks with its first buffer. The SRQ's other
 * EP keeps working. */
TEST(r215_hw_hard_breaks_connection_of_an_srq_ep)
{
    DAT_SRQ_HANDLE srq = srq_of(&a, 8);
    struct pair pair = pair_on(srq), other = pair_on(srq);
    DAT_EVENT event;

    fill(srq, 0, 8);
    OK(dat_ep_set_watermark(pair.server, -1, 1));
    SEND(pair, 8);
    TAKEN(a.recv, pair.server, 8);
    CHECK(connected(pair.server));
    OK(dat_ep_set_watermark(pair.server, -1, 0));
    OK(send_flagged(pair.client, 8, 0));
    event = NEXT(a.recv, DAT_DTO_COMPLETION_EVENT);
    CHECK(DTO(event).ep_handle == pair.server);
    broken_by_server(&pair);
    NEXT(b.req, DAT_DTO_COMPLETION_EVENT);
    SEND(other, 8);
    TAKEN(a.recv, other.server, 8);
}

/* Each watermark works without the other, and the hard one may be the lower one (R218: it fires
 * during the call). */
TEST(r217_hw_soft_and_hard_independent)
{
    struct pair pair = plain_pair(1);

    OK(dat_ep_set_watermark(pair.server, 0, 3));
    SOFT(pair.server);
    SILENT(a.conn);
    OK(dat_ep_set_watermark(pair.server, 5, 1));
    receives(pair.server, 1, 1);
    broken_by_server(&pair);
    SILENT(a.async);
}

TEST(r218_hw_fires_during_call)
{
    struct pair pair = plain_pair(3);
    DAT_EVENT event;

    OK(dat_ep_set_watermark(pair.server, 2, -1));
    OK(dat_evd_dequeue(a.async, &event));
    CHECK(event.event_data.asynch_error_event_data.dat_handle == (DAT_HANDLE)pair.server);
    OK(dat_ep_set_watermark(pair.server, -1, 2));
    CHECK(state_of(pair.server) == DAT_EP_STATE_DISCONNECTED);
    broken_by_server(&pair);
}

TEST(r219_hw_replace_before_fire)
{
    struct pair pair = plain_pair(1);

    OK(dat_ep_set_watermark(pair.server, 1, 1));
    OK(dat_ep_set_watermark(pair.server, 3, 4));
    receives(pair.server, 1, 2);
    SILENT(a.async);
    receives(pair.server, 3, 1);
    SOFT(pair.server);
    CHECK(connected(pair.server));
    receives(pair.server, 4, 1);
    broken_by_server(&pair);
}

/* Both watermarks are off at first, and -1 switches a watermark off. */
TEST(r220_hw_infinite_is_off)
{
    struct pair pair = plain_pair(6);

    OK(dat_ep_set_watermark(pair.server, 8, 8));
    OK(dat_ep_set_watermark(pair.server, DAT_WATERMARK_INFINITE, DAT_WATERMARK_INFINITE));
    receives(pair.server, 6, 6);
    SILENT(a.async);
    CHECK(connected(pair.server));
}

/* A hard watermark that is exceeded before there is a connection breaks the connection as soon as
 * it is up. */
TEST(r223_hw_hard_active_from_establishment)
{
    DAT_EP_HANDLE ep = plain_ep(&a);
    struct pair pair;

    receives(ep, 0, 2);
    OK(dat_ep_set_watermark(ep, -1, 1));
    CHECK(state_of(ep) == DAT_EP_STATE_UNCONNECTED);
    pair = joined(ep, plain_ep(&b));
    broken_by_server(&pair);
}

/* A refused call changes nothing, and 0 is a legal value. */
TEST(r225_hw_bad_values)
{
    struct pair pair = plain_pair(1);

    EXPECT(ARG(2), dat_ep_set_watermark(pair.server, -2, 0));
    EXPECT(ARG(2), dat_ep_set_watermark(pair.server, INT32_MIN, 0));
    EXPECT(ARG(3), dat_ep_set_watermark(pair.server, 0, -2));
    EXPECT(ARG(3), dat_ep_set_watermark(pair.server, 0, INT32_MIN));
    SILENT(a.async);
    CHECK(connected(pair.server));
    OK(dat_ep_set_watermark(pair.server, 0, -1));
    SOFT(pair.server);
    OK(dat_ep_set_watermark(pair.server, -1, 0));
    broken_by_server(&pair);
}

TEST(r226_hw_null_connect_evd)
{
    DAT_EP_ATTR attr = ep_attr();
    DAT_EP_HANDLE ep, client = plain_ep(&b);
    DAT_CONN_QUAL qual = next_qual();
    DAT_PSP_HANDLE psp;
    DAT_EVENT event;
    long long end = now_ms() + LONG_TIME / 1000;

    OK(dat_ep_create(a.ia, a.pz, a.recv, a.req, DAT_HANDLE_NULL, &attr, &ep));
    receives(ep, 0, 2);
    OK(dat_psp_create(a.ia, qual, a.cr, DAT_PSP_CONSUMER_FLAG, &psp));
    OK(dat_cr_accept(request(&a, client, qual), ep, 0, NULL));
    NEXT(b.conn, DAT_CONNECTION_EVENT_ESTABLISHED);
    /* The EP has no connect EVD, so no event tells that it is connected. */
    while (!connected(ep) && now_ms() < end)
        poll(NULL, 0, 1);
    OK(dat_ep_set_watermark(ep, -1, 1));
    CHECK(state_of(ep) == DAT_EP_STATE_DISCONNECTED);
    event = NEXT(b.conn, DAT_CONNECTION_EVENT_DISCONNECTED);
    CHECK(event.event_data.connect_event_data.ep_handle == client);
    EMPTIED(a.conn);
    for (int i = 0; i < 2; i++)
        CHECK(DTO(NEXT(a.recv, DAT_DTO_COMPLETION_EVENT)).status == DAT_DTO_ERR_FLUSHED);
}

/* The watermarks compare with the number of the query: set to that number they do not fire, set to
 * one less they do. */
TEST(r228_hw_count_is_recv_query_count)
{
    struct pair pair = plain_pair(5);

    SEND(pair, 8);
    SEND(pair, 8);
    HOLDS(pair.server, 3);
    OK(dat_ep_set_watermark(pair.server, 3, 3));
    SILENT(a.async);
    OK(dat_ep_set_watermark(pair.server, 2, 3));
    SOFT(pair.server);
    CHECK(connected(pair.server));
    OK(dat_ep_set_watermark(pair.server, -1, 2));
    broken_by_server(&pair);
}

int main(int argc, char **argv)
{
    return run_tests(argc, argv);
}
