/* Receiving through libdat2: delivery and order, and what an EP holds (sections F, G and M). */
#include "rig.h"

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

/* The same for buffers that are posted again and again, with one segment up to six, as soon as their
 * messages were dequeued. */
TEST(r74_srq_fill_buffers_posted_again)
{
    enum { BUFFERS = 4, SEGMENTS = 6, BYTES = 10 };
    DAT_SRQ_ATTR attr = {BUFFERS, SEGMENTS, 0};
    DAT_SRQ_HANDLE srq;
    struct pair pair;
    char text[] = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXY";

    OK(dat_srq_create(a.ia, a.pz, &attr, &srq));
    pair = pair_on(srq);
    for (int n = 0; n < 3 * SEGMENTS; n++) {
        int segments = n % SEGMENTS + 1;

        memset(a.memory, '.', MEMORY);
        for (int i = 0; i < BUFFERS; i++) {
            DAT_LMR_TRIPLET iov[SEGMENTS];

            for (int at = 0; at < segments; at++)
                iov[at] = piece(&a, (i * SEGMENTS + SEGMENTS - 1 - at) * ROOM, BYTES);
            OK(dat_srq_post_recv(srq, segments, iov, as_cookie(i)));
        }
        for (int i = 0; i < BUFFERS; i++) {
            text[0] = '0' + i;
            memcpy(b.memory + 100 * ROOM, text, sizeof text);
            SEND(pair, segments * BYTES);
        }
        for (int i = 0; i < BUFFERS; i++) {
            DAT_EVENT event = {0};
            time_t began = time(NULL);

            while (DAT_GET_TYPE(dat_evd_dequeue(a.recv, &event)) == DAT_QUEUE_EMPTY && time(NULL) < began + 60)
                ;
            CHECK(DTO(event).status == DAT_DTO_SUCCESS && DTO(event).user_cookie.as_64 == (DAT_UINT64)i);
            text[0] = '0' + i;
            for (int at = 0; at < segments; at++) {
                char *into = a.memory + (i * SEGMENTS + SEGMENTS - 1 - at) * ROOM;

                CHECK(memcmp(into, text + at * BYTES, BYTES) == 0 && into[BYTES] == '.');
            }
        }
    }
}

/* Sends and RDMA Writes take the bytes of their segments in order, with one segment up to six, several
 * times in the same LMR. */
TEST(requests_take_their_segments_in_order)
{
    enum { SEGMENTS = 6, ROUNDS = 3, TARGET = 64 * ROOM };
    DAT_SRQ_HANDLE srq = srq_of(&a, 4);
    DAT_EP_ATTR attr = ep_attr();
    DAT_RMR_TRIPLET remote = {.rmr_context = a.rmr_context, .virtual_address = (uintptr_t)a.memory + TARGET};
    DAT_EP_HANDLE client;
    struct pair pair;

    attr.max_request_iov = attr.max_rdma_write_iov = SEGMENTS;
    OK(dat_ep_create(b.ia, b.pz, b.recv, b.req, b.conn, &attr, &client));
    pair = joined(ep_on(&a, srq, a.recv, NULL), client);
    for (int i = 0; i < MEMORY; i++)
        b.memory[i] = (char)(i * 7 + i / 256);
    for (int n = 0; n < SEGMENTS * ROUNDS; n++) {
        int segments = n / ROUNDS + 1, length = 0;
        DAT_LMR_TRIPLET iov[SEGMENTS];
        char expected[SEGMENTS * 10];

        for (int at = 0; at < segments; at++) {
            int from = (100 - at) * ROOM + at, bytes = 10 - at;

            iov[at] = piece(&b, from, bytes);
            memcpy(expected + length, b.memory + from, bytes);
            length += bytes;
        }
        memset(a.memory, '.', TARGET + ROOM);
        remote.segment_length = length;
        OK(post(srq, 0, ROOM));
        OK(dat_ep_post_send(pair.client, segments, iov, as_cookie(1), DAT_COMPLETION_SUPPRESS_FLAG));
        OK(dat_ep_post_rdma_write(pair.client, segments, iov, as_cookie(2), &remote, 0));
        REQUEST_ENDS(pair, DAT_DTO_SUCCESS);
        TAKEN(a.recv, pair.server, length);
        CHECK(memcmp(a.memory, expected, length) == 0 && a.memory[length] == '.');
        CHECK(memcmp(a.memory + TARGET, expected, length) == 0 && a.memory[TARGET + length] == '.');
    }
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
    EMPTIED(a.recv);
    /* The SRQ works on. */
    OK(post(srq, 0, 64));
    COUNTS(srq, 1, 1);
    pairs[0] = pair_on(srq);
    SEND(pairs[0], 8);
    TAKEN(a.recv, pairs[0].server, 8);
}

/* With nothing available, a message finds no buffer, although an entry is occupied (R36). */
TEST(r85_srq_empty_late_post_saves_connection)
{
    DAT_SRQ_HANDLE srq = srq_of(&a, 4);
    struct pair pair = pair_on(srq);

    OK(post(srq, 1, 64));
    SEND(pair, 7);
    OK(send_flagged(pair.client, 8, 0));
    SILENT(b.req);
    COUNTS(srq, 0, 1);
    OK(post(srq, 0, 64));
    REQUEST_ENDS(pair, DAT_DTO_SUCCESS);
    TAKEN(a.recv, pair.server, 7);
    TAKEN(a.recv, pair.server, 8);
    CHECK(connected(pair.server) && connected(pair.client));
}

/* The peer's RDMA Writes and Reads take no buffer (R208). A write with immediate takes one. */
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
    OK(dat_ib_post_rdma_write_immed(plain.client, 1, &iov, as_cookie(1), &remote, 9, 0));
    NEXT(b.req, (DAT_EVENT_NUMBER)DAT_IB_DTO_EVENT);
    HOLDS(plain.server, 1);
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
        /* Each is larger than those before, so that the device has to resize. */
        wrong += dat_srq_resize(resized, i % 2 ? 17 + i % 4000 : 16) != DAT_SUCCESS;
        poll(NULL, 0, 1);
    }
    return (void *)wrong;
}

/* No message is lost, overtaken or damaged while another thread resizes the SRQ. */
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
        unsigned at;

        OK(post(resized, i % 16, ROOM));
        b.memory[100 * ROOM] = (char)i;
        SEND(pair, i + 1);
        at = TAKEN(a.recv, pair.server, i + 1).user_cookie.as_64;
        CHECK(at < 16 && a.memory[at * ROOM] == (char)i);
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
    DAT_COUNT held = 2;
    long long end = now_ms() + LONG_TIME / 1000;
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
    for (int i = 0; i < 2; i++)
        OK(send_flagged(pair.client, 8, DAT_COMPLETION_SUPPRESS_FLAG));
    while (held > 0 && now_ms() < end) {
        DAT_COUNT before = held, span = 77;

        OK(dat_ep_recv_query(ep, &held, &span));
        CHECK(held == span && held <= before);
    }
    CHECK(held == 0);
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

/* In this state of the EP, the query gives this number, and watermarks can be set. */
static void visit(DAT_EP_HANDLE ep, DAT_EP_STATE state, DAT_COUNT number)
{
    CHECK(state_of(ep) == state || (state == DAT_EP_STATE_CONNECTED && connected(ep)));
    HOLDS(ep, number);
    OK(dat_ep_set_watermark(ep, 3, 4));
    OK(dat_ep_set_watermark(ep, -1, -1));
}

/* An EP holds no buffer a moment after its end. */
static void visit_ended(DAT_EP_HANDLE ep)
{
    long long end = now_ms() + LONG_TIME / 1000;
    DAT_COUNT held = 77;

    while (held != 0 && now_ms() < end)
        OK(dat_ep_recv_query(ep, &held, NULL));
    visit(ep, DAT_EP_STATE_DISCONNECTED, 0);
}

/* The query works in every state, and watermarks can be set in every state (R222), on an SRQ EP and on
 * an ordinary one. */
TEST(r207_recv_query_any_state)
{
    for (int tied = 0; tied < 2; tied++) {
        DAT_EP_HANDLE ep = tied ? ep_on(&a, srq_of(&a, 4), a.recv, NULL) : plain_ep(&a), client = plain_ep(&b);
        DAT_COUNT up = tied ? DAT_VALUE_UNKNOWN : 0;
        DAT_CONN_QUAL qual = next_qual();
        struct pair pair = {ep, client};
        DAT_PSP_HANDLE psp;
        DAT_RSP_HANDLE rsp;
        DAT_CR_HANDLE cr;
        DAT_EVENT event;

        visit(ep, DAT_EP_STATE_UNCONNECTED, 0);
        OK(dat_rsp_create(a.ia, qual, ep, a.cr, &rsp));
        visit(ep, DAT_EP_STATE_RESERVED, 0);
        cr = request(&a, client, qual);
        visit(ep, DAT_EP_STATE_PASSIVE_CONNECTION_PENDING, 0);
        OK(dat_cr_accept(cr, DAT_HANDLE_NULL, 0, NULL));
        NEXT(a.conn, DAT_CONNECTION_EVENT_ESTABLISHED);
        NEXT(b.conn, DAT_CONNECTION_EVENT_ESTABLISHED);
        visit(ep, DAT_EP_STATE_CONNECTED, up);
        begin_graceful(&pair);
        visit(ep, DAT_EP_STATE_DISCONNECT_PENDING, up);
        OK(dat_ep_disconnect(ep, DAT_CLOSE_ABRUPT_FLAG));
        visit_ended(ep);
        ENDS(pair, DAT_CONNECTION_EVENT_DISCONNECTED);
        OK(dat_ep_reset(ep));
        visit(ep, DAT_EP_STATE_UNCONNECTED, 0);
        qual = next_qual();
        OK(dat_psp_create(b.ia, qual, b.cr, DAT_PSP_CONSUMER_FLAG, &psp));
        OK(dat_ep_connect(ep, b.attr.ia_address_ptr, qual, LONG_TIME, 0, NULL, 0, 0));
        visit(ep, DAT_EP_STATE_ACTIVE_CONNECTION_PENDING, 0);
        event = NEXT(b.cr, DAT_CONNECTION_REQUEST_EVENT);
        OK(dat_cr_reject(event.event_data.cr_arrival_event_data.cr_handle, 0, NULL));
        NEXT(a.conn, DAT_CONNECTION_EVENT_PEER_REJECTED);
        visit_ended(ep);
    }
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

int main(int argc, char **argv)
{
    /* A sender without a receive gives up after two seconds, so that a late post is in time also on
     * a loaded machine. */
    setenv("DOORBELL_RNR_RETRY", "6", 1);
    setenv("DOORBELL_RNR_TIMER", "29", 1);
    return run_tests(argc, argv);
}
