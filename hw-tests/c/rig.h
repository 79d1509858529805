/* Short forms for the tests of rules: SRQs on side a, connections from side b to it, messages. */
#ifndef RIG_H
#define RIG_H

#include "tests.h"

/* Bytes of each buffer of a side. Buffer n begins at n times this. */
#define ROOM 512

static DAT_SRQ_HANDLE srq_of(struct side *s, int depth)
{
    DAT_SRQ_ATTR attr = {depth, 2, DAT_SRQ_LW_DEFAULT};
    DAT_SRQ_HANDLE srq = DAT_HANDLE_NULL;

    OK(dat_srq_create(s->ia, s->pz, &attr, &srq));
    return srq;
}

static DAT_DTO_COOKIE as_cookie(uint64_t number)
{
    DAT_DTO_COOKIE cookie = {.as_64 = number};

    return cookie;
}

/* Posts buffer `at` of side a, with this number as its cookie. */
static DAT_RETURN post(DAT_SRQ_HANDLE srq, unsigned at, unsigned length)
{
    DAT_LMR_TRIPLET iov = piece(&a, at * ROOM, length);

    return dat_srq_post_recv(srq, 1, &iov, as_cookie(at));
}

static void fill(DAT_SRQ_HANDLE srq, unsigned from, unsigned count)
{
    for (unsigned i = from; i < from + count; i++)
        OK(post(srq, i, ROOM));
}

static DAT_EP_HANDLE ep_on(struct side *s, DAT_SRQ_HANDLE srq, DAT_EVD_HANDLE recv, DAT_EP_ATTR *attr)
{
    DAT_EP_ATTR plain = ep_attr();
    DAT_EP_HANDLE ep = DAT_HANDLE_NULL;

    OK(dat_ep_create_with_srq(s->ia, s->pz, recv, s->req, s->conn, srq, attr ? attr : &plain, &ep));
    return ep;
}

static DAT_EP_HANDLE plain_ep(struct side *s)
{
    DAT_EP_ATTR attr = ep_attr();
    DAT_EP_HANDLE ep = DAT_HANDLE_NULL;

    OK(dat_ep_create(s->ia, s->pz, s->recv, s->req, s->conn, &attr, &ep));
    return ep;
}

struct pair {
    DAT_EP_HANDLE server, client;
};

static DAT_CONN_QUAL next_qual(void)
{
    static DAT_CONN_QUAL qual = 47000;

    return qual++;
}

/* A connection of these two EPs. Side a listens. */
static struct pair joined(DAT_EP_HANDLE server, DAT_EP_HANDLE client)
{
    struct pair pair = {server, client};

    join(&a, server, &b, client, next_qual());
    return pair;
}

static struct pair pair_on(DAT_SRQ_HANDLE srq)
{
    return joined(ep_on(&a, srq, a.recv, NULL), plain_ep(&b));
}

/* Sends from buffer 100 of side b. */
static DAT_RETURN send_flagged(DAT_EP_HANDLE client, unsigned length, DAT_COMPLETION_FLAGS flags)
{
    DAT_LMR_TRIPLET iov = piece(&b, 100 * ROOM, length);

    return dat_ep_post_send(client, 1, &iov, as_cookie(77), flags);
}

/* The next request of side b completes with this status. */
#define REQUEST_ENDS(pair_, with)                                                                                \
    do {                                                                                                         \
        DAT_EVENT e_ = NEXT(b.req, DAT_DTO_COMPLETION_EVENT);                                                    \
        CHECK(e_.event_data.dto_completion_event_data.ep_handle == (pair_).client);                              \
        CHECK(e_.event_data.dto_completion_event_data.status == (with));                                         \
    } while (0)

/* Sends a message. It has arrived when this returns, because the sender has its acknowledgement. */
#define SEND(pair_, length)                                                                                      \
    do {                                                                                                         \
        OK(send_flagged((pair_).client, length, 0));                                                             \
        REQUEST_ENDS(pair_, DAT_DTO_SUCCESS);                                                                    \
    } while (0)

#define DTO(event_) ((event_).event_data.dto_completion_event_data)

/* The next receive of this EVD has to be of this EP, with this length. */
static DAT_DTO_COMPLETION_EVENT_DATA taken(DAT_EVD_HANDLE evd, DAT_EP_HANDLE ep, unsigned length, const char *file, int line)
{
    DAT_EVENT event = next_event(evd, DAT_DTO_COMPLETION_EVENT, file, line);

    checks++;
    if (DTO(event).ep_handle != ep || DTO(event).status != DAT_DTO_SUCCESS || DTO(event).transfered_length != length ||
        DTO(event).operation != DAT_DTO_RECEIVE) {
        complain("%s:%d: a receive with status %d, %u bytes, operation %d%s", file, line, DTO(event).status,
               (unsigned)DTO(event).transfered_length, DTO(event).operation,
               DTO(event).ep_handle == ep ? "" : ", of another EP");
    }
    return DTO(event);
}
#define TAKEN(evd, ep, length) taken(evd, ep, length, __FILE__, __LINE__)

#define EMPTIED(evd)                                                                                             \
    do {                                                                                                         \
        DAT_EVENT e_;                                                                                            \
        CHECK(DAT_GET_TYPE(dat_evd_dequeue(evd, &e_)) == DAT_QUEUE_EMPTY);                                       \
    } while (0)

/* For a moment, no event comes to this EVD. */
#define SILENT(evd)                                                                                              \
    do {                                                                                                         \
        DAT_EVENT e_;                                                                                            \
        DAT_COUNT n_;                                                                                            \
        EXPECT(TIMEOUT, dat_evd_wait(evd, SHORT_TIME, 1, &e_, &n_));                                             \
    } while (0)

/* The next event of the IA's asynchronous EVD has to be about this object. */
#define ASYNC(side_, number, object, why)                                                                        \
    do {                                                                                                         \
        DAT_EVENT e_ = NEXT((side_).async, number);                                                              \
        CHECK(e_.event_data.asynch_error_event_data.dat_handle == (DAT_HANDLE)(object));                         \
        CHECK((int)e_.event_data.asynch_error_event_data.reason == (int)(why));                                  \
    } while (0)
#define WATERMARK DAT_ASYNC_ERROR_PROVIDER_INTERNAL_ERROR
#define LOW(srq) ASYNC(a, WATERMARK, srq, DAT_SRQ_LOW_WATERMARK_EVENT)

/* Both ends of a connection get this event. */
#define ENDS(pair_, number)                                                                                      \
    do {                                                                                                         \
        DAT_EVENT e_ = NEXT(a.conn, number);                                                                     \
        CHECK(e_.event_data.connect_event_data.ep_handle == (pair_).server);                                     \
        e_ = NEXT(b.conn, number);                                                                               \
        CHECK(e_.event_data.connect_event_data.ep_handle == (pair_).client);                                     \
    } while (0)

static DAT_EP_STATE state_of(DAT_EP_HANDLE ep)
{
    DAT_EP_STATE state = 99;

    OK(dat_ep_get_status(ep, &state, NULL, NULL));
    return state;
}

static int connected(DAT_EP_HANDLE ep)
{
    DAT_EP_STATE state = state_of(ep);

    return state == DAT_EP_STATE_CONNECTED || state == DAT_EP_STATE_CONNECTED_SINGLE_PATH;
}

/* Each end of a connection gets its event. */
static void ended(struct pair *pair, DAT_EVENT_NUMBER at_server, DAT_EVENT_NUMBER at_client)
{
    DAT_EVENT event = NEXT(a.conn, at_server);

    CHECK(event.event_data.connect_event_data.ep_handle == pair->server);
    event = NEXT(b.conn, at_client);
    CHECK(event.event_data.connect_event_data.ep_handle == pair->client);
    CHECK(state_of(pair->server) == DAT_EP_STATE_DISCONNECTED && state_of(pair->client) == DAT_EP_STATE_DISCONNECTED);
}

/* After a failed message or request, both ends are broken. */
static void broken(struct pair *pair)
{
    ended(pair, DAT_CONNECTION_EVENT_BROKEN, DAT_CONNECTION_EVENT_BROKEN);
}

/* The server has broken the connection. The client gets the event of an ordinary disconnect. */
static void broken_by_server(struct pair *pair)
{
    ended(pair, DAT_CONNECTION_EVENT_BROKEN, DAT_CONNECTION_EVENT_DISCONNECTED);
}

/* For tests with orders that only the software device understands. On other devices the test prints
 * that it is left out. */
static int no_software_device(const char *test)
{
    if (emu("count mr") >= 0)
        return 0;
    printf("%s: ignored: needs the software device\n", test);
    return 1;
}

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
            complain("%s:%d: holds %d, span %d, not %d", __FILE__, __LINE__, held_, span_, (int)(n));            \
        }                                                                                                        \
    } while (0)

#define SOFT(ep) ASYNC(a, WATERMARK, ep, DAT_SRQ_SOFT_HIGH_WATERMARK_EVENT)

/* The client gets a Send for which it has no receive, so that a graceful disconnect of the server
 * waits. */
static void begin_graceful(struct pair *pair)
{
    DAT_LMR_TRIPLET iov = piece(&a, 0, 8);

    OK(dat_ep_post_send(pair->server, 1, &iov, as_cookie(77), 0));
    OK(dat_ep_disconnect(pair->server, DAT_CLOSE_GRACEFUL_FLAG));
    CHECK(state_of(pair->server) == DAT_EP_STATE_DISCONNECT_PENDING);
}

static DAT_EVD_HANDLE evd_of(struct side *s, DAT_EVD_FLAGS flags)
{
    DAT_EVD_HANDLE evd = DAT_HANDLE_NULL;

    OK(dat_evd_create(s->ia, 16, DAT_HANDLE_NULL, flags, &evd));
    return evd;
}

static DAT_EP_PARAM param_of(DAT_EP_HANDLE ep)
{
    DAT_EP_PARAM param;

    memset(&param, 0xA5, sizeof param);
    OK(dat_ep_query(ep, DAT_EP_FIELD_ALL, &param));
    return param;
}

#endif
