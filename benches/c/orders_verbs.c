/*
 * The order gateway as a plain verbs program: one SRQ, one CQ, inline Sends, and the market of
 * doorbell-orders (benches/examples/orders_engine.rs), which the Rust gateway has, too. For
 * comparison, so it has no journal, no heartbeats and no refusals, and ends when a session floods.
 *
 * usage: orders_verbs CONFIGURATION PORT RECEIVES
 *
 * Serves until the end of its standard input. Then it prints how many polls found nothing, and how
 * many messages came.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <rdma/rdma_cma.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

struct market;
struct market *orders_open(const char *config);
int32_t orders_login(struct market *, uint64_t now, const void *login, size_t length, uint64_t *next,
                     uint8_t welcome[16]);
void orders_gone(struct market *, uint64_t now, uint32_t session);
bool orders_message(struct market *, uint64_t now, uint32_t session, const void *message, size_t length);
int32_t orders_dirty(struct market *);
size_t orders_answer(const struct market *, uint32_t session, uint64_t number, const void **message);

enum {
    SENDS = 128,     /* requests in a send queue */
    SIGNAL = 16,     /* one of so many Sends is signalled */
    BATCH = 32,      /* buffers are posted again when this many were taken */
    EVENTS = 64,     /* completions taken at a time */
    BUFFER = 64,     /* bytes of a receive */
    SESSIONS = 1024, /* most */
    PLACES = 1 << 16 /* in the table of QPs */
};

/* In the number of a receive, but not of a Send. */
#define RECEIVE ((uint64_t)1 << 63)

struct connection {
    struct rdma_cm_id *id;
    uint32_t session;
    bool is_live;
    uint64_t next; /* number of the next message to send */
    uint64_t posted, completed;
};

static struct market *market;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_srq *srq;
static struct ibv_mr *mr;
static uint8_t (*buffers)[BUFFER];
static struct connection *of_qp[PLACES], *of_session[SESSIONS];
static uint32_t receives, taken[BATCH + EVENTS], taken_count;
static uint64_t in_vain, messages, now;

static void check(bool ok, const char *what) {
    if (!ok) {
        fprintf(stderr, "orders_verbs: %s: %s\n", what, strerror(errno));
        exit(1);
    }
}

static uint64_t clock_ns(void) {
    struct timespec time;
    clock_gettime(CLOCK_REALTIME, &time);
    return (uint64_t)(time.tv_sec % 86400) * 1000000000 + time.tv_nsec;
}

static void post_receives(const uint32_t *numbers, uint32_t count) {
    struct ibv_recv_wr wr[BATCH + EVENTS], *bad;
    struct ibv_sge sge[BATCH + EVENTS];
    for (uint32_t n = 0; n < count; n++) {
        sge[n] = (struct ibv_sge){ (uintptr_t)buffers[numbers[n]], BUFFER, mr->lkey };
        wr[n] = (struct ibv_recv_wr){ numbers[n] | RECEIVE, n + 1 < count ? &wr[n + 1] : NULL, &sge[n], 1 };
    }
    check(count == 0 || !ibv_post_srq_recv(srq, wr, &bad), "ibv_post_srq_recv");
}

static void send_waiting(struct connection *of) {
    const void *message;
    size_t length;
    while (of->is_live && of->posted - of->completed < SENDS &&
           (length = orders_answer(market, of->session, of->next, &message)) > 0) {
        of->posted++;
        struct ibv_sge sge = { (uintptr_t)message, length, 0 };
        struct ibv_send_wr *bad, wr = {
            .wr_id = of->posted,
            .sg_list = &sge,
            .num_sge = 1,
            .opcode = IBV_WR_SEND,
            .send_flags = IBV_SEND_INLINE | (of->posted % SIGNAL == 0 ? IBV_SEND_SIGNALED : 0),
        };
        check(!ibv_post_send(of->id->qp, &wr, &bad), "ibv_post_send");
        of->next++;
    }
}

/* The instructions of this function are those of the gateway. Returns the number of completions. */
__attribute__((noinline)) int pass(void) {
    struct ibv_wc wc[EVENTS];
    int count = ibv_poll_cq(cq, EVENTS, wc);
    check(count >= 0, "ibv_poll_cq");
    if (count > 0)
        now = clock_ns();
    for (int n = 0; n < count; n++) {
        bool is_receive = (wc[n].wr_id & RECEIVE) != 0;
        uint32_t buffer = (uint32_t)wc[n].wr_id;
        struct connection *of = of_qp[wc[n].qp_num % PLACES];
        if (is_receive)
            taken[taken_count++] = buffer;
        if (!of || wc[n].status != IBV_WC_SUCCESS)
            continue;
        if (!is_receive) {
            of->completed = wc[n].wr_id;
            send_waiting(of);
            continue;
        }
        messages++;
        check(orders_message(market, now, of->session, buffers[buffer], wc[n].byte_len), "no message");
        for (int32_t session; (session = orders_dirty(market)) >= 0;)
            if (of_session[session])
                send_waiting(of_session[session]);
    }
    if (taken_count >= BATCH || (count == 0 && taken_count > 0)) {
        post_receives(taken, taken_count);
        taken_count = 0;
    }
    return count;
}

static void accept_login(struct rdma_cm_event *event) {
    struct rdma_cm_id *id = event->id;
    struct connection *of = calloc(1, sizeof *of);
    struct ibv_qp_init_attr attr = {
        .send_cq = cq,
        .recv_cq = cq,
        .srq = srq,
        .qp_type = IBV_QPT_RC,
        .cap = { .max_send_wr = SENDS, .max_send_sge = 1, .max_inline_data = 68 },
    };
    uint8_t welcome[16];
    int32_t session = orders_login(market, clock_ns(), event->param.conn.private_data,
                                   event->param.conn.private_data_len, &of->next, welcome);
    if (session < 0 || session >= SESSIONS || of_session[session]) {
        rdma_reject(id, NULL, 0);
        free(of);
        return;
    }
    check(!rdma_create_qp(id, pd, &attr), "rdma_create_qp");
    of->id = id;
    of->session = session;
    id->context = of;
    check(!of_qp[id->qp->qp_num % PLACES], "two QPs have one place in the table");
    of_qp[id->qp->qp_num % PLACES] = of_session[session] = of;
    struct rdma_conn_param param = {
        .private_data = welcome, .private_data_len = sizeof welcome, .rnr_retry_count = 7, .retry_count = 7
    };
    check(!rdma_accept(id, &param), "rdma_accept");
    /* 10 us, as the Rust gateway; librdmacm's 0 is 655 ms, for which a peer would stop at an empty SRQ. */
    struct ibv_qp_attr timer = { .min_rnr_timer = 1 };
    check(!ibv_modify_qp(id->qp, &timer, IBV_QP_MIN_RNR_TIMER), "ibv_modify_qp");
}

static void forget(struct connection *of) {
    of_session[of->session] = of_qp[of->id->qp->qp_num % PLACES] = NULL;
    orders_gone(market, clock_ns(), of->session);
    rdma_disconnect(of->id);
    rdma_destroy_qp(of->id);
    free(of);
}

/* Takes an event of a connection if there is one. */
static void manage(struct rdma_event_channel *channel) {
    struct rdma_cm_event *event;
    struct rdma_cm_id *ended = NULL;
    if (rdma_get_cm_event(channel, &event))
        return;
    struct connection *of = event->id->context;
    if (event->event == RDMA_CM_EVENT_CONNECT_REQUEST) {
        event->id->context = NULL;
        accept_login(event);
    } else if (event->event == RDMA_CM_EVENT_ESTABLISHED && of) {
        of->is_live = true;
        send_waiting(of);
    } else if (of) {
        forget(of);
        ended = event->id;
    }
    rdma_ack_cm_event(event);
    if (ended)
        rdma_destroy_id(ended);
}

int main(int argc, char **argv) {
    check(argc == 4 && (market = orders_open(argv[1])), "usage: orders_verbs CONFIGURATION PORT RECEIVES");
    receives = strtoul(argv[3], NULL, 0);
    struct rdma_event_channel *channel = rdma_create_event_channel();
    struct rdma_cm_id *listener;
    /* Bound to the address of the device, which has a context then. */
    struct rdma_addrinfo *address, hints = { .ai_flags = RAI_PASSIVE, .ai_port_space = RDMA_PS_TCP };
    const char *host = getenv("ORDERS_ADDRESS");
    check(channel && !rdma_create_id(channel, &listener, NULL, RDMA_PS_TCP), "rdma_create_id");
    check(!rdma_getaddrinfo(host ? host : "127.0.0.1", argv[2], &hints, &address), "rdma_getaddrinfo");
    check(!rdma_bind_addr(listener, address->ai_src_addr), "rdma_bind_addr");
    check((pd = ibv_alloc_pd(listener->verbs)) != NULL, "ibv_alloc_pd");
    check((cq = ibv_create_cq(listener->verbs, 65536, NULL, NULL, 0)) != NULL, "ibv_create_cq");
    struct ibv_srq_init_attr attr = { .attr = { .max_wr = receives, .max_sge = 1 } };
    check((srq = ibv_create_srq(pd, &attr)) != NULL, "ibv_create_srq");
    check((buffers = aligned_alloc(4096, ((size_t)receives * BUFFER + 4095) / 4096 * 4096)) != NULL, "memory");
    check((mr = ibv_reg_mr(pd, buffers, (size_t)receives * BUFFER, IBV_ACCESS_LOCAL_WRITE)) != NULL,
          "ibv_reg_mr");
    for (uint32_t n = 0; n < receives; n++) {
        struct ibv_sge sge = { (uintptr_t)buffers[n], BUFFER, mr->lkey };
        struct ibv_recv_wr *bad, wr = { n | RECEIVE, NULL, &sge, 1 };
        check(!ibv_post_srq_recv(srq, &wr, &bad), "ibv_post_srq_recv");
    }
    check(!rdma_listen(listener, 128), "rdma_listen");
    check(!fcntl(channel->fd, F_SETFL, O_NONBLOCK) && !fcntl(0, F_SETFL, O_NONBLOCK), "fcntl");
    puts("ready");
    fflush(stdout);
    uint64_t next_tick = 0;
    for (char byte;;) {
        if (pass() > 0)
            continue;
        in_vain++;
        uint64_t time = clock_ns();
        if (time < next_tick && next_tick - time < 1000000)
            continue;
        next_tick = time + 1000000;
        manage(channel);
        if (read(0, &byte, 1) == 0)
            break;
    }
    printf("%llu %llu\n", (unsigned long long)in_vain, (unsigned long long)messages);
    return 0;
}
