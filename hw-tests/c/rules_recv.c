/* Receiving through libdat2: delivery and order, what an EP holds, high watermarks (sections F, G,
 * M and N). */
#include "rig.h"

static void receives(DAT_EP_HANDLE ep, unsigned from, unsigned count)
{
    for (unsigned i = from; i < from + count; i++) {
        DAT_LMR_TRIPLET iov = piece(&a, i * ROOM, ROOM);

        OK(dat_ep_post_recv(ep, 1, &iov, as_cookie(i), 0));
    }
}

/* An ordinary EP of side a, connected, with `count` receives posted. */
static struct pair plain_pair(unsigned count)
{
    DAT_EP_ATTR attr = ep_attr();
    DAT_EP_HANDLE ep;

    attr.max_recv_dtos = 16;
    OK(dat_ep_create(a.ia, a.pz, a.recv, a.req, a.conn, &attr, &ep));
    receives(ep, 0, count);
    return joined(ep, plain_ep(&b));
}

#define HOLDS(ep, n)                                                                                             \
    do {                                                                                                         \
        DAT_COUNT held_ = 77, span_ = 77;                                                                        \
        OK(dat_ep_recv_query(ep, &held_, &span_));                                                               \
        checks++;                                                                                                \
        if (held_ != (n) || span_ != (n)) {                                                                      \
            failures++;                                                                                          \
            printf("%s:%d: holds %d, span %d, not %d\n", __FILE__, __LINE__, held_, span_, (int)(n));            \
        }                                                                                                        \
    } while (0)

#define SOFT(ep) ASYNC(a, WATERMARK, ep, DAT_SRQ_SOFT_HIGH_WATERMARK_EVENT)

/* A message fills the segments of its buffer in their order: the leading ones completely, one in
 * part. The rest stays untouched, and so do the bytes behind each segment (R78). */
TEST(r74_srq_fill_in_iov_order)
{
    DAT_SRQ_ATTR attr = {4, 3, 0};
    DAT_SRQ_HANDLE srq;
    DAT_LMR_TRIPLET iov[3] = {piece(&a, 2048, 10), piece(&a, 0, 10), piece(&a, 1024, 10)};
    struct pair pair;

    OK(dat_srq_create(a.ia, a.pz, &attr, &srq));
    pair = pair_on(srq);
    memset(a.memory, '.', 4096);
    memcpy(b.memory + 100 * ROOM, "0123456789abcdefghijklmnopqrstuv", 32);
    OK(dat_srq_post_recv(srq, 3, iov, as_cookie(1)));
    SEND(pair, 14);
    TAKEN(a.recv, pair.server, 14);
    CHECK(memcmp(a.memory + 2048, "0123456789..", 12) == 0);
    CHECK(memcmp(a.memory, "abcd........", 12) == 0);
    CHECK(memcmp(a.memory + 1024, "............", 12) == 0);
    OK(dat_srq_post_recv(srq, 3, iov, as_cookie(1)));
    SEND(pair, 30);
    TAKEN(a.recv, pair.server, 30);
    CHECK(memcmp(a.memory + 1024, "klmnopqrst..", 12) == 0);
}

/* The completion is on the EVD of the EP that took the buffer, names that EP, and has every field
 * written (R75, R76). */
TEST(r77_srq_completion_fields)
{
    DAT_SRQ_HANDLE srq = srq_of(&a, 4);
    DAT_EVD_HANDLE other;
    struct pair one, two;
    DAT_EVENT event;

    OK(dat_evd_create(a.ia, 16, DAT_HANDLE_NULL, DAT_EVD_DTO_FLAG, &other));
    one = joined(ep_on(&a, srq, other, NULL), plain_ep(&b));
    two = pair_on(srq);
    OK(post(srq, 7, 64));
    SEND(one, 33);
    EMPTIED(a.recv);
    event = NEXT(other, DAT_DTO_COMPLETION_EVENT);
    CHECK(event.event_number == 1 && event.evd_handle == other);
    CHECK(DTO(event).ep_handle == one.server && DTO(event).ep_handle != two.server);
    CHECK(DTO(event).user_cookie.as_64 == 7 && DTO(event).status == DAT_DTO_SUCCESS);
    CHECK(DTO(event).transfered_length == 33 && DTO(event).operation == DAT_DTO_RECEIVE && DAT_DTO_RECEIVE == 3);
    CHECK(DTO(event).rmr_context == 0);
}

/* An empty message takes one whole entry, whatever the size of the buffer. */
TEST(r79_srq_recv_zero_byte_message)
{
    DAT_SRQ_HANDLE srq = srq_of(&a, 4);
    struct pair pair = pair_on(srq);

    fill(srq, 0, 2);
    SEND(pair, 0);
    COUNTS(srq, 1, 2);
    TAKEN(a.recv, pair.server, 0);
    COUNTS(srq, 1, 1);
}

/* A message that is too long breaks its connection and nothing else (R81). */
TEST(r80_srq_recv_too_long)
{
    DAT_SRQ_HANDLE srq = srq_of(&a, 4);
    struct pair pair = pair_on(srq), other = pair_on(srq);
    DAT_EVENT event;

    for (unsigned i = 0; i < 3; i++)
        OK(post(srq, i, 64));
    OK(send_flagged(pair.client, 65, 0));
    event = NEXT(a.recv, DAT_DTO_COMPLETION_EVENT);
    CHECK(DTO(event).status == DAT_DTO_ERR_LOCAL_LENGTH && DTO(event).status == 2 && DTO(event).ep_handle == pair.server);
    event = NEXT(b.req, DAT_DTO_COMPLETION_EVENT);
    CHECK(DTO(event).status != DAT_DTO_SUCCESS);
    broken(&pair);
    CHECK(look(srq).srq_state == DAT_SRQ_STATE_OPERATIONAL);
    SEND(other, 64);
    TAKEN(a.recv, other.server, 64);
}

/* After the retries, the sender's request completes with status 9 and its connection is BROKEN, as
 * with an EP that has no receives posted (R83, R221). R84 also wants BROKEN at the receiver. This
 * is not met: the receiver's device notices nothing, and the sender's DREQ looks like that of a
 * disconnect. */
TEST(r84_srq_empty_sender_sees_rnr)
{
    DAT_SRQ_HANDLE srq = srq_of(&a, 4);
    struct pair pairs[2] = {pair_on(srq), plain_pair(0)};

    OK(dat_ep_set_watermark(pairs[0].server, DAT_WATERMARK_INFINITE, DAT_WATERMARK_INFINITE));
    for (int i = 0; i < 2; i++) {
        OK(send_flagged(pairs[i].client, 8, 0));
        REQUEST_ENDS(pairs[i], DAT_DTO_ERR_RECEIVER_NOT_READY);
        CHECK(DAT_DTO_ERR_RECEIVER_NOT_READY == 9);
        ended(&pairs[i], DAT_CONNECTION_EVENT_DISCONNECTED, DAT_CONNECTION_EVENT_BROKEN);
    }
}

TEST(r85_srq_empty_late_post_saves_connection)
{
    DAT_SRQ_HANDLE srq = srq_of(&a, 4);
    struct pair pair = pair_on(srq);

    OK(send_flagged(pair.client, 8, 0));
    SILENT(b.req);
    OK(post(srq, 0, 64));
    REQUEST_ENDS(pair, DAT_DTO_SUCCESS);
    TAKEN(a.recv, pair.server, 8);
    CHECK(connected(pair.server) && connected(pair.client));
}

/* The peer's RDMA Writes and Reads take no buffer (R208). */
TEST(r88_srq_rdma_uses_no_entry)
{
    DAT_SRQ_HANDLE srq = srq_of(&a, 4);
    DAT_EP_ATTR attr = ep_attr();
    struct pair pair, plain;
    DAT_RMR_TRIPLET remote = {(DAT_VADDR)(uintptr_t)(a.memory + 32768), 64, a.rmr_context};
    DAT_LMR_TRIPLET iov = piece(&b, 0, 64);

    attr.max_rdma_read_in = attr.max_rdma_read_out = 1;
    OK(dat_ep_create(a.ia, a.pz, a.recv, a.req, a.conn, &attr, &plain.server));
    OK(dat_ep_create(b.ia, b.pz, b.recv, b.req, b.conn, &attr, &plain.client));
    OK(dat_ep_create(b.ia, b.pz, b.recv, b.req, b.conn, &attr, &pair.client));
    pair = joined(ep_on(&a, srq, a.recv, &attr), pair.client);
    receives(plain.server, 0, 2);
    plain = joined(plain.server, plain.client);
    fill(srq, 10, 2);
    memset(b.memory, 'w', 64);
    for (int i = 0; i < 2; i++) {
        struct pair at = i ? plain : pair;

        OK(dat_ep_post_rdma_write(at.client, 1, &iov, as_cookie(1), &remote, 0));
        REQUEST_ENDS(at, DAT_DTO_SUCCESS);
        OK(dat_ep_post_rdma_read(at.client, 1, &iov, as_cookie(1), &remote, 0));
        REQUEST_ENDS(at, DAT_DTO_SUCCESS);
    }
    CHECK(a.memory[32768] == 'w' && a.memory[32768 + 63] == 'w');
    COUNTS(srq, 2, 2);
    HOLDS(plain.server, 2);
    EMPTIED(a.recv);
}

/* The messages of each connection arrive in order on a shared EVD (R92). Entries that come back in
 * any order are not mixed up (R93). */
TEST(r89_srq_order_per_connection)
{
    DAT_SRQ_HANDLE srq = srq_of(&a, 16);
    struct pair pairs[3];
    unsigned sent[3] = {0, 0, 0}, came[3] = {0, 0, 0}, seen = 0;

    for (int i = 0; i < 3; i++)
        pairs[i] = pair_on(srq);
    fill(srq, 0, 16);
    for (int round = 0; round < 20; round++) {
        for (int i = 0; i < 6; i++) {
            int who = (round * 5 + i * i) % 3;

            OK(send_flagged(pairs[who].client, 10 + sent[who]++, DAT_COMPLETION_SUPPRESS_FLAG));
        }
        for (int i = 0; i < 6; i++) {
            DAT_EVENT event = NEXT(a.recv, DAT_DTO_COMPLETION_EVENT);
            unsigned cookie = DTO(event).user_cookie.as_64;
            int who = 0;

            while (who < 3 && pairs[who].server != DTO(event).ep_handle)
                who++;
            CHECK(who < 3 && DTO(event).status == DAT_DTO_SUCCESS);
            CHECK(DTO(event).transfered_length == 10 + came[who]++);
            CHECK(cookie < 16);
            OK(post(srq, cookie, ROOM));
            seen++;
        }
        /* The sender reaps its completions now and then, so that its queue does not fill up. */
        for (int i = 0; i < 3; i++) {
            SEND(pairs[i], 10 + sent[i]++);
            OK(post(srq, TAKEN(a.recv, pairs[i].server, 10 + came[i]++).user_cookie.as_64, ROOM));
        }
    }
    CHECK(seen == 120);
    COUNTS(srq, 16, 16);
    EMPTIED(a.recv);
}

static DAT_SRQ_HANDLE resized;
static int resizing;

static void *resize_again_and_again(void *unused)
{
    uintptr_t wrong = 0;

    (void)unused;
    for (int i = 0; __atomic_load_n(&resizing, __ATOMIC_ACQUIRE); i++) {
        wrong += dat_srq_resize(resized, i % 2 ? 64 : 16) != DAT_SUCCESS;
        poll(NULL, 0, 1);
    }
    return (void *)wrong;
}

/* No message is lost or overtaken while another thread resizes the SRQ. */
TEST(r104_srq_resize_under_traffic)
{
    struct pair pair;
    pthread_t thread;
    void *wrong;

    resized = srq_of(&a, 16);
    pair = pair_on(resized);
    resizing = 1;
    CHECK(pthread_create(&thread, NULL, resize_again_and_again, NULL) == 0);
    for (unsigned i = 0; i < 300; i++) {
        OK(post(resized, i % 16, ROOM));
        SEND(pair, i);
        TAKEN(a.recv, pair.server, i);
    }
    __atomic_store_n(&resizing, 0, __ATOMIC_RELEASE);
    CHECK(pthread_join(thread, &wrong) == 0);
    CHECK(wrong == NULL);
    COUNTS(resized, 0, 0);
}

/* A receive of an ordinary EP counts from its post to its completion, reaped or not (R196). Both
 * numbers belong to one moment (R203, R204). */
TEST(r194_recv_query_plain_ep_counts_at_post)
{
    DAT_EP_HANDLE ep = plain_ep(&a);
    struct pair pair;

    HOLDS(ep, 0);
    for (int i = 1; i <= 3; i++) {
        receives(ep, i, 1);
        HOLDS(ep, i);
    }
    pair = joined(ep, plain_ep(&b));
    HOLDS(ep, 3);
    SEND(pair, 8);
    HOLDS(ep, 2);
    TAKEN(a.recv, ep, 8);
    HOLDS(ep, 2);
}

/* An unconnected SRQ EP holds no buffer, however full the SRQ is. For a connected one, the number
 * is unknown (R206, R263). */
TEST(r195_recv_query_srq_ep_counts_at_take)
{
    DAT_SRQ_HANDLE srq = srq_of(&a, 8);
    DAT_EP_HANDLE ep = ep_on(&a, srq, a.recv, NULL);
    DAT_PROVIDER_ATTR attr;
    DAT_COUNT held = 77, span = 77;
    struct pair pair;

    OK(dat_ia_query(a.ia, NULL, 0, NULL, DAT_PROVIDER_FIELD_ALL, &attr));
    CHECK(attr.ep_recv_info_supported == 0x11);
    fill(srq, 0, 8);
    HOLDS(ep, 0);
    pair = joined(ep, plain_ep(&b));
    OK(dat_ep_recv_query(ep, &held, &span));
    CHECK(held == DAT_VALUE_UNKNOWN && span == DAT_VALUE_UNKNOWN);
    SEND(pair, 8);
    TAKEN(a.recv, ep, 8);
    OK(dat_ep_disconnect(ep, DAT_CLOSE_ABRUPT_FLAG));
    ENDS(pair, DAT_CONNECTION_EVENT_DISCONNECTED);
    OK(dat_ep_reset(ep));
    HOLDS(ep, 0);
}

/* A program may ask for one number, the other, both or none. */
TEST(r205_recv_query_null_outputs)
{
    DAT_EP_HANDLE ep = plain_ep(&a), tied = ep_on(&a, srq_of(&a, 4), a.recv, NULL);
    DAT_COUNT held = 77, span = 77;

    receives(ep, 0, 2);
    OK(dat_ep_recv_query(ep, &held, NULL));
    CHECK(held == 2);
    OK(dat_ep_recv_query(ep, NULL, &span));
    CHECK(span == 2);
    OK(dat_ep_recv_query(ep, NULL, NULL));
    OK(dat_ep_recv_query(tied, NULL, NULL));
}

/* The query works in every state, and watermarks can be set in every state (R222). */
TEST(r207_recv_query_any_state)
{
    DAT_EP_HANDLE ep = ep_on(&a, srq_of(&a, 4), a.recv, NULL), client = plain_ep(&b);
    DAT_CONN_QUAL qual = next_qual();
    DAT_RSP_HANDLE rsp;
    DAT_CR_HANDLE cr;

#define VISIT(state)                                                                                             \
    CHECK(state_of(ep) == (state) || ((state) == DAT_EP_STATE_CONNECTED && connected(ep)));                      \
    OK(dat_ep_recv_query(ep, NULL, NULL));                                                                       \
    OK(dat_ep_set_watermark(ep, 3, 4));                                                                          \
    OK(dat_ep_set_watermark(ep, -1, -1))
    VISIT(DAT_EP_STATE_UNCONNECTED);
    HOLDS(ep, 0);
    OK(dat_rsp_create(a.ia, qual, ep, a.cr, &rsp));
    VISIT(DAT_EP_STATE_RESERVED);
    cr = request(&a, client, qual);
    VISIT(DAT_EP_STATE_PASSIVE_CONNECTION_PENDING);
    OK(dat_cr_accept(cr, DAT_HANDLE_NULL, 0, NULL));
    NEXT(a.conn, DAT_CONNECTION_EVENT_ESTABLISHED);
    VISIT(DAT_EP_STATE_CONNECTED);
    OK(dat_ep_disconnect(ep, DAT_CLOSE_ABRUPT_FLAG));
    VISIT(DAT_EP_STATE_DISCONNECTED);
    OK(dat_ep_reset(ep));
    HOLDS(ep, 0);
}

/* Both calls refuse an EP that is freed, and the null handle (R229). */
TEST(r209_recv_query_invalid_handle)
{
    DAT_EP_HANDLE ep = plain_ep(&a), none[] = {ep, DAT_HANDLE_NULL, a.pz};
    DAT_COUNT n;

    OK(dat_ep_free(ep));
    for (int i = 0; i < 3; i++) {
        EXPECT(HANDLE(EP), dat_ep_recv_query(none[i], &n, &n));
        EXPECT(HANDLE(EP), dat_ep_set_watermark(none[i], 1, 1));
    }
}

/* Every buffer that was counted completes: it is flushed at the latest. */
TEST(r210_recv_query_buffer_always_completes)
{
    struct pair pair = plain_pair(4);

    SEND(pair, 8);
    TAKEN(a.recv, pair.server, 8);
    OK(dat_ep_disconnect(pair.client, DAT_CLOSE_ABRUPT_FLAG));
    ENDS(pair, DAT_CONNECTION_EVENT_DISCONNECTED);
    for (unsigned i = 1; i < 4; i++) {
        DAT_EVENT event = NEXT(a.recv, DAT_DTO_COMPLETION_EVENT);

        CHECK(DTO(event).status == DAT_DTO_ERR_FLUSHED && DTO(event).user_cookie.as_64 == i);
    }
    HOLDS(pair.server, 0);
    EMPTIED(a.recv);
}

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
 * its completion. */
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
    long long end = now_ms() + 20000;

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
