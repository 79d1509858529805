/* Notification, waiting, and the capacity of EVDs through libdat2 (sections O and P). */
#include "rig.h"
#include <sys/syscall.h>

/* A connection to an EP on an SRQ of 16 buffers of 64 bytes, with a receive EVD of its own that
 * triggers a CNO. */
struct listening {
    struct pair pair;
    DAT_EVD_HANDLE recv;
    DAT_CNO_HANDLE cno;
    DAT_SRQ_HANDLE srq;
};

static struct listening listening(DAT_COMPLETION_FLAGS flags)
{
    struct listening l;
    DAT_EP_ATTR attr = ep_attr();

    l.srq = srq_of(&a, 16);
    for (unsigned i = 0; i < 16; i++)
        OK(post(l.srq, i, 64));
    OK(dat_cno_create(a.ia, DAT_OS_WAIT_PROXY_AGENT_NULL, &l.cno));
    OK(dat_evd_create(a.ia, 32, l.cno, DAT_EVD_DTO_FLAG, &l.recv));
    attr.recv_completion_flags = flags;
    l.pair = joined(ep_on(&a, l.srq, l.recv, &attr), plain_ep(&b));
    return l;
}

/* A thread that is in dat_evd_wait. */
struct waiter {
    pthread_t thread;
    DAT_EVD_HANDLE evd;
    DAT_TIMEOUT timeout;
    DAT_COUNT threshold;
    volatile int tid;
    DAT_RETURN ret;
    DAT_EVENT event;
    DAT_COUNT more;
    volatile int done;
};

static void *wait_there(void *arg)
{
    struct waiter *w = arg;

    w->tid = (int)syscall(SYS_gettid);
    w->ret = dat_evd_wait(w->evd, w->timeout, w->threshold, &w->event, &w->more);
    w->done = 1;
    return NULL;
}

/* Returns when the thread sleeps in the EVD: later events have to wake it. */
static void start(struct waiter *w, DAT_EVD_HANDLE evd, DAT_TIMEOUT timeout, DAT_COUNT threshold)
{
    char path[64], text[64];
    long long end = now_ms() + LONG_TIME / 1000;
    int asleep = 0;

    memset(w, 0, sizeof *w);
    w->evd = evd;
    w->timeout = timeout;
    w->threshold = threshold;
    CHECK(pthread_create(&w->thread, NULL, wait_there, w) == 0);
    while (!asleep && !w->done && now_ms() < end) {
        FILE *file;

        snprintf(path, sizeof path, "/proc/self/task/%d/syscall", w->tid);
        file = w->tid ? fopen(path, "r") : NULL;
        if (file) {
            asleep = fgets(text, sizeof text, file) && atoi(text) == SYS_ppoll;
            fclose(file);
        }
        if (!asleep)
            poll(NULL, 0, 1);
    }
    CHECK(asleep);
}

static void finish_wait(struct waiter *w, DAT_RETURN ret)
{
    CHECK(pthread_join(w->thread, NULL) == 0);
    EXPECT(ret, w->ret);
}

/* The CNO is not triggered. */
#define QUIET(cno)                                                                                               \
    do {                                                                                                         \
        DAT_EVD_HANDLE e_;                                                                                       \
        EXPECT(TIMEOUT, dat_cno_wait(cno, SHORT_TIME, &e_));                                                     \
    } while (0)

#define TRIGGERED(cno, evd)                                                                                      \
    do {                                                                                                         \
        DAT_EVD_HANDLE e_ = DAT_HANDLE_NULL;                                                                     \
        OK(dat_cno_wait(cno, LONG_TIME, &e_));                                                                   \
        CHECK(e_ == (evd));                                                                                      \
    } while (0)

static void send_solicited(struct pair pair, DAT_COMPLETION_FLAGS flags)
{
    OK(send_flagged(pair.client, 8, flags));
    REQUEST_ENDS(pair, DAT_DTO_SUCCESS);
}

/* A receive of an SRQ notifies by default and with UNSIGNALLED, because the buffers of an SRQ have
 * no flags of their own (R231). */
TEST(r230_flags_default_notifies)
{
    for (int i = 0; i < 2; i++) {
        struct listening l = listening(i ? DAT_COMPLETION_UNSIGNALLED_FLAG : 0);
        struct waiter w;

        for (int j = 0; j < 2; j++) {
            start(&w, l.recv, LONG_TIME, 1);
            SEND(l.pair, 8);
            finish_wait(&w, DAT_SUCCESS);
            CHECK(DTO(w.event).user_cookie.as_64 == (unsigned)j);
        }
        QUIET(l.cno);
        SEND(l.pair, 8);
        TRIGGERED(l.cno, l.recv);
        TAKEN(l.recv, l.pair.server, 8);
    }
}

/* The code says which of the two modes does not allow the threshold (R236). */
TEST(r232_flags_unsignalled_forces_threshold_1)
{
    struct listening u = listening(DAT_COMPLETION_UNSIGNALLED_FLAG), s = listening(DAT_COMPLETION_SOLICITED_WAIT_FLAG);
    DAT_EVENT event;
    DAT_COUNT more;
    DAT_EVD_PARAM param;

    EXPECT(STATE(DAT_INVALID_STATE_EVD_CONFIG_NOTIFY), dat_evd_wait(u.recv, 0, 2, &event, &more));
    EXPECT(STATE(DAT_INVALID_STATE_EVD_CONFIG_SOLICITED), dat_evd_wait(s.recv, 0, 2, &event, &more));
    EXPECT(TIMEOUT, dat_evd_wait(u.recv, 0, 1, &event, &more));
    EXPECT(TIMEOUT, dat_evd_wait(s.recv, 0, 1, &event, &more));
    OK(dat_evd_query(s.recv, DAT_EVD_FIELD_EVD_STATE, &param));
    CHECK((param.evd_state & 0x30) == DAT_EVD_STATE_CONFIG_SOLICITED);
}

TEST(r233_flags_solicited_with_sender_bit)
{
    struct listening l = listening(DAT_COMPLETION_SOLICITED_WAIT_FLAG);
    struct waiter w;

    start(&w, l.recv, LONG_TIME, 1);
    send_solicited(l.pair, DAT_COMPLETION_SOLICITED_WAIT_FLAG);
    finish_wait(&w, DAT_SUCCESS);
    send_solicited(l.pair, DAT_COMPLETION_SOLICITED_WAIT_FLAG);
    TRIGGERED(l.cno, l.recv);
    TAKEN(l.recv, l.pair.server, 8);
}

/* The message does not wake a waiter, and a dequeue returns it. A waiter that a solicited message
 * wakes gets the oldest event, and the number of the others (R235). */
TEST(r234_flags_solicited_without_sender_bit)
{
    struct listening l = listening(DAT_COMPLETION_SOLICITED_WAIT_FLAG);
    struct waiter w;

    send_solicited(l.pair, 0);
    QUIET(l.cno);
    CHECK(TAKEN(l.recv, l.pair.server, 8).user_cookie.as_64 == 0);
    start(&w, l.recv, LONG_TIME, 1);
    send_solicited(l.pair, 0);
    send_solicited(l.pair, 0);
    QUIET(l.cno);
    CHECK(!w.done);
    send_solicited(l.pair, DAT_COMPLETION_SOLICITED_WAIT_FLAG);
    finish_wait(&w, DAT_SUCCESS);
    CHECK(DTO(w.event).user_cookie.as_64 == 1 && w.more == 2);
}

/* The sender's flag has no effect if the EP is not in solicited mode. */
TEST(r237_flags_sender_bit_ignored_elsewhere)
{
    struct listening l = listening(0);
    struct waiter w;

    start(&w, l.recv, LONG_TIME, 2);
    send_solicited(l.pair, DAT_COMPLETION_SOLICITED_WAIT_FLAG);
    QUIET(l.cno);
    CHECK(!w.done);
    SEND(l.pair, 8);
    finish_wait(&w, DAT_SUCCESS);
    CHECK(w.more == 1);
}

/* A failed receive wakes a waiter in solicited mode, and triggers the CNO. */
TEST(r238_flags_errors_notify)
{
    for (int i = 0; i < 2; i++) {
        struct listening l = listening(DAT_COMPLETION_SOLICITED_WAIT_FLAG);
        struct waiter w;
        DAT_EVENT event;

        if (i == 0)
            start(&w, l.recv, LONG_TIME, 1);
        OK(send_flagged(l.pair.client, 100, 0));
        if (i == 0) {
            finish_wait(&w, DAT_SUCCESS);
            event = w.event;
        } else {
            TRIGGERED(l.cno, l.recv);
            event = NEXT(l.recv, DAT_DTO_COMPLETION_EVENT);
        }
        CHECK(DTO(event).status == DAT_DTO_ERR_LOCAL_LENGTH);
        NEXT(b.req, DAT_DTO_COMPLETION_EVENT);
        broken(&l.pair);
    }
}

TEST(r239_flags_threshold_mode)
{
    struct listening l = listening(DAT_COMPLETION_EVD_THRESHOLD_FLAG);
    struct waiter w;

    start(&w, l.recv, LONG_TIME, 3);
    SEND(l.pair, 8);
    SEND(l.pair, 8);
    QUIET(l.cno);
    CHECK(!w.done);
    SEND(l.pair, 8);
    finish_wait(&w, DAT_SUCCESS);
    CHECK(DTO(w.event).user_cookie.as_64 == 0 && w.more == 2);
}

/* A failure makes an event nevertheless. */
TEST(r240_flags_sender_suppress_is_local)
{
    struct listening l = listening(0);

    OK(send_flagged(l.pair.client, 8, DAT_COMPLETION_SUPPRESS_FLAG));
    TAKEN(l.recv, l.pair.server, 8);
    SILENT(b.req);
    SEND(l.pair, 9);
    TAKEN(l.recv, l.pair.server, 9);
    EMPTIED(b.req);
    OK(dat_ep_disconnect(l.pair.client, DAT_CLOSE_ABRUPT_FLAG));
    OK(send_flagged(l.pair.client, 8, DAT_COMPLETION_SUPPRESS_FLAG));
    REQUEST_ENDS(l.pair, DAT_DTO_ERR_FLUSHED);
}

/* The flags are argument 5 of the call. */
TEST(r241_flags_send_unsignalled_needs_ep_mode)
{
    struct listening l = listening(0);
    DAT_EP_ATTR attr = ep_attr();
    DAT_EVD_HANDLE evd;
    DAT_EP_HANDLE ep;
    DAT_LMR_TRIPLET iov = piece(&b, 0, 8);

    EXPECT(ARG(5), dat_ep_post_send(l.pair.client, 1, &iov, as_cookie(0), DAT_COMPLETION_UNSIGNALLED_FLAG));
    EXPECT(ARG(5), dat_ep_post_recv(l.pair.client, 1, &iov, as_cookie(0), DAT_COMPLETION_UNSIGNALLED_FLAG));
    attr.recv_completion_flags = DAT_COMPLETION_UNSIGNALLED_FLAG;
    OK(dat_evd_create(b.ia, 16, DAT_HANDLE_NULL, DAT_EVD_DTO_FLAG, &evd));
    OK(dat_ep_create(b.ia, b.pz, evd, b.req, b.conn, &attr, &ep));
    OK(dat_ep_post_recv(ep, 1, &iov, as_cookie(0), DAT_COMPLETION_UNSIGNALLED_FLAG));
    OK(dat_ep_post_recv(ep, 1, &iov, as_cookie(0), 0));
}

static DAT_EVD_HANDLE with_events(unsigned n)
{
    DAT_EVD_HANDLE evd;
    DAT_EVENT event;

    OK(dat_evd_create(a.ia, 16, DAT_HANDLE_NULL, DAT_EVD_SOFTWARE_FLAG, &evd));
    memset(&event, 0, sizeof event);
    event.event_number = DAT_SOFTWARE_EVENT;
    for (uintptr_t i = 0; i < n; i++) {
        event.event_data.software_event_data.pointer = (void *)i;
        OK(dat_evd_post_se(evd, &event));
    }
    return evd;
}

static unsigned software(DAT_EVENT *event)
{
    CHECK(event->event_number == DAT_SOFTWARE_EVENT);
    return (unsigned)(uintptr_t)event->event_data.software_event_data.pointer;
}

/* A threshold that is zero, negative, or above the length of the EVD is refused (R243), and no
 * event is taken (R244). */
TEST(r242_wait_threshold_positive)
{
    DAT_EVD_HANDLE evd = with_events(1);
    DAT_EVD_PARAM param;
    DAT_EVENT event;
    DAT_COUNT more = 77;

    OK(dat_evd_query(evd, DAT_EVD_FIELD_ALL, &param));
    CHECK(param.evd_qlen >= 16);
    EXPECT(ARG(3), dat_evd_wait(evd, 0, 0, &event, &more));
    EXPECT(ARG(3), dat_evd_wait(evd, 0, -1, &event, &more));
    EXPECT(ARG(3), dat_evd_wait(evd, 0, INT32_MIN, &event, &more));
    EXPECT(ARG(3), dat_evd_wait(evd, 0, param.evd_qlen + 1, &event, &more));
    EXPECT(ARG(3), dat_evd_wait(evd, 0, INT32_MAX, &event, &more));
    EXPECT(TIMEOUT, dat_evd_wait(evd, 0, param.evd_qlen, &event, &more));
    CHECK(more == 1);
    EXPECT(ARG(4), dat_evd_wait(evd, 0, 1, NULL, &more));
    OK(dat_evd_wait(evd, 0, 1, &event, NULL));
    CHECK(software(&event) == 0);
}

/* The call tells how many events are left behind the one that it returns (R246: at once, if there
 * are enough). */
TEST(r245_wait_success_nmore)
{
    DAT_EVD_HANDLE evd = with_events(3);
    DAT_EVENT event;
    DAT_COUNT more;

    for (unsigned i = 0; i < 3; i++) {
        OK(dat_evd_wait(evd, i == 2 ? DAT_TIMEOUT_INFINITE : 0, i == 2 ? 1 : 2, &event, &more));
        CHECK(software(&event) == i && more == (int)(2 - i));
    }
}

/* In solicited mode as well, events that are queued already are enough. */
TEST(r246_wait_returns_at_once_if_enough)
{
    struct listening l = listening(DAT_COMPLETION_SOLICITED_WAIT_FLAG);
    DAT_EVENT event;
    DAT_COUNT more;

    send_solicited(l.pair, 0);
    OK(dat_evd_wait(l.recv, 0, 1, &event, &more));
    CHECK(more == 0);
}

/* A timeout counts microseconds. Zero looks once, and all ones wait for ever. */
TEST(r247_wait_timeout_zero_polls)
{
    DAT_EVD_HANDLE evd = with_events(0);
    long long begin = now_ms();
    struct waiter w;
    DAT_EVENT event;

    EXPECT(TIMEOUT, dat_evd_wait(evd, 200 * 1000, 1, &event, NULL));
    CHECK(now_ms() - begin >= 200 && now_ms() - begin < 10000);
    EXPECT(TIMEOUT, dat_evd_wait(evd, 0, 1, &event, NULL));
    start(&w, evd, DAT_TIMEOUT_INFINITE, 1);
    event.event_number = DAT_SOFTWARE_EVENT;
    event.event_data.software_event_data.pointer = (void *)4;
    OK(dat_evd_post_se(evd, &event));
    finish_wait(&w, DAT_SUCCESS);
    CHECK(software(&w.event) == 4);
}

/* While a thread waits, another wait and a dequeue are refused. Making the EVD unwaitable ends the
 * wait (R249). */
TEST(r248_wait_single_waiter)
{
    DAT_EVD_HANDLE evd = with_events(0);
    DAT_EVENT event;
    DAT_COUNT more;
    struct waiter w;
    struct pair pair;

    start(&w, evd, LONG_TIME, 1);
    EXPECT(STATE(DAT_INVALID_STATE_EVD_WAITER), dat_evd_wait(evd, 0, 1, &event, &more));
    EXPECT(STATE(DAT_INVALID_STATE_EVD_WAITER), dat_evd_dequeue(evd, &event));
    OK(dat_evd_set_unwaitable(evd));
    finish_wait(&w, STATE(DAT_INVALID_STATE_EVD_UNWAITABLE));
    EXPECT(STATE(DAT_INVALID_STATE_EVD_UNWAITABLE), dat_evd_wait(evd, 0, 1, &event, &more));
    event.event_number = DAT_SOFTWARE_EVENT;
    event.event_data.software_event_data.pointer = (void *)9;
    OK(dat_evd_post_se(evd, &event));
    OK(dat_evd_dequeue(evd, &event));
    OK(dat_evd_clear_unwaitable(evd));
    EXPECT(TIMEOUT, dat_evd_wait(evd, 0, 1, &event, &more));
    /* The same with a message that has arrived. */
    pair = plain_pair(1);
    SEND(pair, 8);
    OK(dat_evd_set_unwaitable(a.recv));
    EXPECT(STATE(DAT_INVALID_STATE_EVD_UNWAITABLE), dat_evd_wait(a.recv, 0, 1, &event, &more));
    OK(dat_evd_clear_unwaitable(a.recv));
    TAKEN(a.recv, pair.server, 8);
}

/* While a thread waits, arrivals do not trigger the CNO, whether or not they end the wait.
 * Afterwards they do again. */
TEST(r250_wait_suppresses_cno)
{
    struct listening l = listening(0);
    struct waiter w;

    start(&w, l.recv, LONG_TIME, 2);
    SEND(l.pair, 8);
    SEND(l.pair, 8);
    finish_wait(&w, DAT_SUCCESS);
    QUIET(l.cno);
    TAKEN(l.recv, l.pair.server, 8);
    SEND(l.pair, 8);
    TRIGGERED(l.cno, l.recv);
}

/* QUEUE_EMPTY of an EVD that takes completions has no class bits, because programs that poll
 * compare with this value. */
TEST(r251_dequeue_ignores_threshold)
{
    unsigned modes[] = {0, DAT_COMPLETION_UNSIGNALLED_FLAG, DAT_COMPLETION_SOLICITED_WAIT_FLAG,
                        DAT_COMPLETION_EVD_THRESHOLD_FLAG};
    DAT_EVENT event;

    for (int i = 0; i < 4; i++) {
        struct listening l = listening(modes[i]);

        EXPECT(0x000D0000, dat_evd_dequeue(l.recv, &event));
        send_solicited(l.pair, 0);
        OK(dat_evd_dequeue(l.recv, &event));
        EXPECT(0x000D0000, dat_evd_dequeue(l.recv, &event));
        EXPECT(ARG(2), dat_evd_dequeue(l.recv, NULL));
    }
    EXPECT(ERROR(DAT_QUEUE_EMPTY, 0), dat_evd_dequeue(a.conn, &event));
}

/* The event names the EVD. The entry of the lost completion is free, queued events stay, and the
 * EVD keeps working (R253). */
TEST(r252_recv_evd_overflow_async)
{
    DAT_EVD_HANDLE evd;
    DAT_EVD_PARAM param;
    DAT_SRQ_HANDLE srq;
    struct pair pair;
    int qlen;

    OK(dat_evd_create(a.ia, 1, DAT_HANDLE_NULL, DAT_EVD_DTO_FLAG, &evd));
    OK(dat_evd_query(evd, DAT_EVD_FIELD_ALL, &param));
    qlen = param.evd_qlen;
    CHECK(qlen < 60);
    srq = srq_of(&a, qlen + 4);
    fill(srq, 0, qlen + 4);
    pair = joined(ep_on(&a, srq, evd, NULL), plain_ep(&b));
    for (int i = 0; i < qlen; i++)
        SEND(pair, 8);
    COUNTS(srq, 4, qlen + 4);
    EMPTIED(a.async);
    SEND(pair, 8);
    COUNTS(srq, 3, qlen + 3);
    ASYNC(a, DAT_ASYNC_ERROR_EVD_OVERFLOW, evd, DAT_EVD_OVERFLOW_ERROR);
    for (int i = 0; i < qlen; i++)
        CHECK(TAKEN(evd, pair.server, 8).user_cookie.as_64 == (unsigned)i);
    COUNTS(srq, 3, 3);
    SEND(pair, 8);
    CHECK(TAKEN(evd, pair.server, 8).user_cookie.as_64 == (unsigned)qlen + 1);
}

/* None of the three EVDs of an EP can be freed before the EP. Afterwards they can, and their
 * completions go with them (R255). */
TEST(r254_recv_evd_free_refused)
{
    struct listening l = listening(0);

    SEND(l.pair, 8);
    COUNTS(l.srq, 15, 16);
    EXPECT(STATE(DAT_INVALID_STATE_EVD_IN_USE), dat_evd_free(l.recv));
    EXPECT(STATE(DAT_INVALID_STATE_EVD_IN_USE), dat_evd_free(a.req));
    EXPECT(STATE(DAT_INVALID_STATE_EVD_IN_USE), dat_evd_free(a.conn));
    OK(dat_ep_free(l.pair.server));
    OK(dat_evd_free(l.recv));
    COUNTS(l.srq, 15, 15);
    EXPECT(HANDLE(EVD_REQUEST), dat_evd_free(l.recv));
    OK(dat_evd_free(a.req));
    OK(dat_evd_free(a.conn));
}

TEST(r256_recv_evd_resize_keeps_events)
{
    struct listening l = listening(0);
    DAT_EVD_PARAM param;

    for (int i = 0; i < 12; i++)
        SEND(l.pair, 8);
    COUNTS(l.srq, 4, 16);
    CHECK(DAT_GET_TYPE(dat_evd_resize(l.recv, 11)) == DAT_INVALID_STATE);
    EXPECT(ARG(2), dat_evd_resize(l.recv, 0));
    EXPECT(ARG(2), dat_evd_resize(l.recv, -1));
    OK(dat_evd_resize(l.recv, 200));
    OK(dat_evd_query(l.recv, DAT_EVD_FIELD_ALL, &param));
    CHECK(param.evd_qlen >= 200);
    OK(dat_evd_resize(l.recv, 12));
    for (unsigned i = 0; i < 12; i++)
        CHECK(TAKEN(l.recv, l.pair.server, 8).user_cookie.as_64 == i);
}

TEST(r257_recv_evd_small_queue_accepted)
{
    DAT_EP_ATTR attr = ep_attr();
    DAT_EVD_HANDLE one;
    DAT_EP_HANDLE eps[20];

    attr.max_recv_dtos = 64;
    OK(dat_evd_create(a.ia, 1, DAT_HANDLE_NULL, DAT_EVD_DTO_FLAG, &one));
    for (int i = 0; i < 20; i++)
        OK(dat_ep_create(a.ia, a.pz, one, one, a.conn, &attr, &eps[i]));
}

TEST(r258_recv_evd_close_aborts_waiter)
{
    struct waiter w[3];

    start(&w[0], a.recv, DAT_TIMEOUT_INFINITE, 1);
    start(&w[1], a.conn, DAT_TIMEOUT_INFINITE, 1);
    start(&w[2], a.async, LONG_TIME, 1);
    OK(dat_ia_close(a.ia, DAT_CLOSE_ABRUPT_FLAG));
    a.ia = DAT_HANDLE_NULL;
    for (int i = 0; i < 3; i++)
        finish_wait(&w[i], ERROR(DAT_ABORT, 0));
}

int main(int argc, char **argv)
{
    return run_tests(argc, argv);
}
