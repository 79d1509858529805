/* What a consumer, its machine and its peers may do to the provider: close while threads wait, use
 * many IAs from many threads, take the link down, remove the device, run out of memory. Each
 * case ends with a code or an event, and leaves nothing behind. */
#include "rig.h"
#include <sys/resource.h>

struct waiting {
    pthread_t thread;
    DAT_HANDLE handle;
    int of_cno;
    DAT_RETURN ret;
};

static void *wait_for_ever(void *arg)
{
    struct waiting *w = arg;
    DAT_EVENT event;
    DAT_EVD_HANDLE evd;

    w->ret = w->of_cno ? dat_cno_wait(w->handle, DAT_TIMEOUT_INFINITE, &evd)
                       : dat_evd_wait(w->handle, DAT_TIMEOUT_INFINITE, 1, &event, NULL);
    return NULL;
}

/* Threads wait on each kind of EVD and on a CNO. Threads that come too late find stale handles. */
TEST(ia_closed_under_waiters)
{
    DAT_CNO_HANDLE cno;
    DAT_HANDLE handles[] = {a.async, a.cr, a.conn, a.recv, a.req, NULL};
    struct waiting w[6];

    OK(dat_cno_create(a.ia, DAT_OS_WAIT_PROXY_AGENT_NULL, &cno));
    handles[5] = cno;
    for (int i = 0; i < 6; i++) {
        w[i].handle = handles[i];
        w[i].of_cno = i == 5;
        CHECK(pthread_create(&w[i].thread, NULL, wait_for_ever, &w[i]) == 0);
    }
    poll(NULL, 0, 20);
    OK(dat_ia_close(a.ia, DAT_CLOSE_ABRUPT_FLAG));
    a.ia = DAT_HANDLE_NULL;
    for (int i = 0; i < 6; i++) {
        CHECK(pthread_join(w[i].thread, NULL) == 0);
        DAT_RETURN told = i == 5 ? STATE(DAT_INVALID_STATE_CNO_DEAD) : ERROR(DAT_ABORT, 0);

        if (w[i].ret != told && DAT_GET_TYPE(w[i].ret) != DAT_INVALID_HANDLE)
            printf("waiter %d got %#010x\n", i, w[i].ret);
        CHECK(w[i].ret == told || DAT_GET_TYPE(w[i].ret) == DAT_INVALID_HANDLE);
    }
}

/* Opens EPs in every state, with receives posted and messages under way, service points, requests
 * that are not answered, and all other objects. */
static void open_everything(void)
{
    DAT_SRQ_HANDLE srq = srq_of(&a, 16);
    struct pair pairs[4];
    DAT_LMR_TRIPLET iov = piece(&a, 0, 64);
    DAT_EP_HANDLE plain = plain_ep(&a), reserved = ep_on(&a, srq, a.recv, NULL), asking = plain_ep(&b),
                  asking_too = plain_ep(&b), lonely = plain_ep(&a);
    DAT_CONN_QUAL qual = next_qual(), other = next_qual();
    DAT_PSP_HANDLE psp;
    DAT_RSP_HANDLE rsp;
    DAT_CNO_HANDLE cno;
    DAT_EVD_HANDLE evd;
    DAT_CR_HANDLE cr;
    DAT_EVENT event;

    fill(srq, 0, 16);
    OK(dat_srq_set_lw(srq, 3));
    for (int i = 0; i < 4; i++)
        pairs[i] = pair_on(srq);
    OK(dat_ep_post_recv(plain, 1, &iov, as_cookie(0), 0));
    SEND(pairs[0], 64);
    OK(dat_ep_post_send(pairs[1].server, 1, &iov, as_cookie(0), 0));
    OK(dat_ep_disconnect(pairs[1].server, DAT_CLOSE_GRACEFUL_FLAG));
    OK(dat_ep_disconnect(pairs[2].client, DAT_CLOSE_ABRUPT_FLAG));
    OK(dat_psp_create(a.ia, qual, a.cr, DAT_PSP_CONSUMER_FLAG, &psp));
    OK(dat_ep_connect(asking, a.attr.ia_address_ptr, qual, LONG_TIME, 0, NULL, 0, 0));
    NEXT(a.cr, DAT_CONNECTION_REQUEST_EVENT);
    OK(dat_rsp_create(a.ia, other, reserved, a.cr, &rsp));
    cr = request(&a, asking_too, other);
    CHECK(cr != DAT_HANDLE_NULL);
    /* Nothing listens at this qualifier. */
    OK(dat_ep_connect(lonely, b.attr.ia_address_ptr, next_qual(), LONG_TIME, 0, NULL, 0, 0));
    OK(dat_cno_create(a.ia, DAT_OS_WAIT_PROXY_AGENT_NULL, &cno));
    OK(dat_evd_create(a.ia, 8, cno, DAT_EVD_SOFTWARE_FLAG, &evd));
    event.event_number = DAT_SOFTWARE_EVENT;
    OK(dat_evd_post_se(evd, &event));
}

/* A graceful close is refused and changes nothing. An abrupt close ends everything, first on one
 * side and then on the other. */
TEST(closed_with_everything_open)
{
    for (int i = 0; i < 3; i++) {
        open_everything();
        EXPECT(STATE(DAT_INVALID_STATE_IA_IN_USE), dat_ia_close(a.ia, DAT_CLOSE_GRACEFUL_FLAG));
        EXPECT(STATE(DAT_INVALID_STATE_IA_IN_USE), dat_ia_close(b.ia, DAT_CLOSE_GRACEFUL_FLAG));
        side_close(i % 2 ? &a : &b);
        side_close(i % 2 ? &b : &a);
        side_open(&a, ia_names[0]);
        side_open(&b, ia_names[1]);
    }
}

struct user {
    pthread_t thread;
    int number;
    struct side mine, other;
};

/* Opens two IAs, connects them, sends messages and ends; on one device, on two, or crosswise. */
static void *use_two_ias(void *arg)
{
    struct user *u = arg;
    DAT_SRQ_ATTR depth = {8, 1, 0};
    DAT_EP_ATTR attr = ep_attr();

    for (int round = 0; round < 3; round++) {
        struct side *s = &u->mine, *c = &u->other;
        DAT_EP_HANDLE server, client;
        DAT_SRQ_HANDLE srq;
        DAT_LMR_TRIPLET iov;
        DAT_EVENT event;

        side_open(s, ia_names[u->number % 2]);
        side_open(c, ia_names[u->number / 2 % 2]);
        OK(dat_srq_create(s->ia, s->pz, &depth, &srq));
        OK(dat_ep_create_with_srq(s->ia, s->pz, s->recv, s->req, s->conn, srq, &attr, &server));
        OK(dat_ep_create(c->ia, c->pz, c->recv, c->req, c->conn, &attr, &client));
        join(s, server, c, client, 48000 + 10 * u->number + round);
        for (unsigned i = 0; i < 50; i++) {
            iov = piece(s, 0, 64);
            OK(dat_srq_post_recv(srq, 1, &iov, as_cookie(i)));
            iov = piece(c, 0, 64);
            memset(c->memory, u->number + 1, 64);
            OK(dat_ep_post_send(client, 1, &iov, as_cookie(i), DAT_COMPLETION_SUPPRESS_FLAG));
            event = NEXT(s->recv, DAT_DTO_COMPLETION_EVENT);
            CHECK(DTO(event).ep_handle == server && DTO(event).user_cookie.as_64 == i);
            CHECK(DTO(event).status == DAT_DTO_SUCCESS && s->memory[63] == u->number + 1);
            if (i % 4 == 3) {
                OK(dat_srq_post_recv(srq, 1, &(DAT_LMR_TRIPLET){(uintptr_t)s->memory, 64, s->lmr_context}, as_cookie(99)));
                OK(dat_ep_post_send(client, 1, &iov, as_cookie(i), 0));
                NEXT(c->req, DAT_DTO_COMPLETION_EVENT);
                NEXT(s->recv, DAT_DTO_COMPLETION_EVENT);
            }
        }
        side_close(round % 2 ? s : c);
        side_close(round % 2 ? c : s);
    }
    return NULL;
}

TEST(several_ias_from_several_threads)
{
    struct user users[6];

    for (int i = 0; i < 6; i++) {
        users[i].number = i;
        CHECK(pthread_create(&users[i].thread, NULL, use_two_ias, &users[i]) == 0);
    }
    for (int i = 0; i < 6; i++)
        CHECK(pthread_join(users[i].thread, NULL) == 0);
}

/* The port goes down and comes up again. Meanwhile no IA can be opened; afterwards everything
 * works. */
TEST(link_down)
{
    DAT_SRQ_HANDLE srq;
    struct pair pair;
    DAT_EVD_HANDLE async = DAT_HANDLE_NULL;
    DAT_IA_HANDLE ia = DAT_HANDLE_NULL;
    DAT_EVENT event;
    DAT_COUNT more;

    if (no_software_device("link_down"))
        return;
    srq = srq_of(&a, 4);
    pair = pair_on(srq);
    fill(srq, 0, 4);
    SEND(pair, 8);
    CHECK(emu("port down") == 0);
    OK(dat_evd_wait(a.async, LONG_TIME, 1, &event, &more));
    CHECK(event.event_data.asynch_error_event_data.dat_handle == (DAT_HANDLE)a.ia);
    CHECK(DAT_GET_TYPE(dat_ia_open(ia_names[0], 8, &async, &ia)) == DAT_INVALID_STATE);
    CHECK(ia == DAT_HANDLE_NULL && async == DAT_HANDLE_NULL);
    CHECK(emu("port up") == 0);
    SEND(pair, 8);
    TAKEN(a.recv, pair.server, 8);
    TAKEN(a.recv, pair.server, 8);
    OK(dat_ia_open(ia_names[0], 8, &async, &ia));
    OK(dat_ia_close(ia, DAT_CLOSE_GRACEFUL_FLAG));
    joined(ep_on(&a, srq, a.recv, NULL), plain_ep(&b));
}

/* Each object that needs a verbs object, while the device has no memory for it. */
TEST(no_memory_left)
{
    DAT_SRQ_ATTR depth = {4, 1, 0};
    DAT_EP_ATTR attr = ep_attr();
    DAT_REGION_DESCRIPTION region;
    DAT_HANDLE made = DAT_HANDLE_NULL;
    DAT_LMR_CONTEXT context;
    DAT_EVD_HANDLE async, held[5];
    DAT_IA_HANDLE ia;
    int refused = 0, n;

    if (no_software_device("no_memory_left"))
        return;
    region.for_va = a.memory;
#define WITHOUT(command, call, undo)                                                                             \
    do {                                                                                                         \
        DAT_RETURN ret_;                                                                                         \
        CHECK(emu("fault " command "=12*0") == 0);                                                               \
        made = ia = async = DAT_HANDLE_NULL;                                                                     \
        ret_ = call;                                                                                             \
        CHECK(emu("no faults") == 0);                                                                            \
        if (DAT_GET_TYPE(ret_) != DAT_INSUFFICIENT_RESOURCES)                                                    \
            printf("%s without %s gave %#010x\n", #call, command, ret_);                                         \
        CHECK(DAT_GET_TYPE(ret_) == DAT_INSUFFICIENT_RESOURCES && (ret_ & DAT_CLASS_ERROR));                     \
        CHECK(made == DAT_HANDLE_NULL && ia == DAT_HANDLE_NULL);                                                 \
        OK(call);                                                                                                \
        OK(undo);                                                                                                \
        refused++;                                                                                               \
    } while (0)
    WITHOUT("cmd.alloc_pd", dat_pz_create(a.ia, &made), dat_pz_free(made));
    WITHOUT("cmd.reg_mr",
            dat_lmr_create(a.ia, 0, region, 4096, a.pz, DAT_MEM_PRIV_ALL_FLAG, 0, &made, &context, NULL, NULL, NULL),
            dat_lmr_free(made));
    WITHOUT("cmd.create_cq", dat_evd_create(a.ia, 16, DAT_HANDLE_NULL, DAT_EVD_DTO_FLAG, &made), dat_evd_free(made));
    /* An IA keeps some channels of freed EVDs. */
    for (n = 0; n < 5; n++)
        OK(dat_evd_create(a.ia, 16, DAT_HANDLE_NULL, DAT_EVD_DTO_FLAG, &held[n]));
    WITHOUT("cmd.create_comp_channel", dat_evd_create(a.ia, 16, DAT_HANDLE_NULL, DAT_EVD_DTO_FLAG, &made),
            dat_evd_free(made));
    WITHOUT("cmd.create_srq", dat_srq_create(a.ia, a.pz, &depth, &made), dat_srq_free(made));
    WITHOUT("cmd.create_qp", dat_ep_create(a.ia, a.pz, a.recv, a.req, a.conn, &attr, &made), dat_ep_free(made));
    WITHOUT("cmd.get_context", dat_ia_open(ia_names[0], 8, &async, &ia), dat_ia_close(ia, DAT_CLOSE_GRACEFUL_FLAG));
    CHECK(refused == 7);
    for (n = 0; n < 5; n++)
        OK(dat_evd_free(held[n]));
}

/* With few free descriptors, an IA cannot be opened and an EVD may not be created. The failed
 * attempts leave nothing behind. */
TEST(no_descriptors_left)
{
    struct rlimit limit, before;
    unsigned opened = 0, refused = 0;
    DAT_EVD_HANDLE evd = DAT_HANDLE_NULL;

    CHECK(getrlimit(RLIMIT_NOFILE, &before) == 0);
    limit = before;
    for (unsigned spare = 0; spare < 24; spare++) {
        DAT_EVD_HANDLE async = DAT_HANDLE_NULL;
        DAT_IA_HANDLE ia = DAT_HANDLE_NULL;
        DAT_RETURN of_ia, of_evd;
        int lowest = dup(1);

        /* Sets the limit to the lowest free descriptor plus `spare`. Descriptors above it may be in
         * use. */
        close(lowest);
        limit.rlim_cur = lowest + spare;
        CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
        of_ia = dat_ia_open(ia_names[0], 8, &async, &ia);
        of_evd = dat_evd_create(a.ia, 16, DAT_HANDLE_NULL, DAT_EVD_DTO_FLAG, &evd);
        CHECK(setrlimit(RLIMIT_NOFILE, &before) == 0);
        if (of_ia == DAT_SUCCESS) {
            OK(dat_ia_close(ia, DAT_CLOSE_GRACEFUL_FLAG));
            opened++;
        } else {
            if (DAT_GET_TYPE(of_ia) != DAT_INSUFFICIENT_RESOURCES)
                printf("with %u descriptors to spare dat_ia_open gave %#010x\n", spare, of_ia);
            CHECK(DAT_GET_TYPE(of_ia) == DAT_INSUFFICIENT_RESOURCES);
            CHECK(ia == DAT_HANDLE_NULL && async == DAT_HANDLE_NULL);
            refused++;
        }
        CHECK(of_evd == DAT_SUCCESS || DAT_GET_TYPE(of_evd) == DAT_INSUFFICIENT_RESOURCES);
        if (of_evd == DAT_SUCCESS)
            OK(dat_evd_free(evd));
    }
    CHECK(opened > 0 && refused > 0);
}

static void on_signal(int sig)
{
    (void)sig;
}

/* A signal with a handler arrives at a thread that waits: the call goes on, or says that it was
 * interrupted. It never says that its time is over. */
TEST(signal_in_a_wait)
{
    struct sigaction action = {.sa_handler = on_signal}, old;
    struct waiting w = {.handle = a.recv};
    DAT_SRQ_HANDLE srq = srq_of(&a, 4);
    struct pair pair = pair_on(srq);

    CHECK(sigaction(SIGUSR1, &action, &old) == 0);
    CHECK(pthread_create(&w.thread, NULL, wait_for_ever, &w) == 0);
    for (int i = 0; i < 20; i++) {
        poll(NULL, 0, 2);
        if (pthread_kill(w.thread, SIGUSR1) != 0)
            break;
    }
    fill(srq, 0, 1);
    SEND(pair, 8);
    CHECK(pthread_join(w.thread, NULL) == 0);
    CHECK(w.ret == DAT_SUCCESS || w.ret == ERROR(DAT_INTERRUPTED_CALL, 0));
    CHECK(sigaction(SIGUSR1, &old, NULL) == 0);
}

/* The last test removes the device. Programs that had it open get an event, every call returns, and
 * all objects can be freed and closed. */
TEST(zz_device_removed)
{
    DAT_SRQ_HANDLE srq;
    struct pair pair;
    DAT_LMR_TRIPLET iov = piece(&a, 0, 8);
    DAT_EVD_HANDLE async = DAT_HANDLE_NULL;
    DAT_IA_HANDLE ia = DAT_HANDLE_NULL;
    DAT_PZ_HANDLE pz;
    DAT_RETURN ret;

    if (no_software_device("zz_device_removed"))
        return;
    srq = srq_of(&a, 4);
    pair = pair_on(srq);
    fill(srq, 0, 4);
    SEND(pair, 8);
    CHECK(emu("remove") == 0);
    ASYNC(a, DAT_ASYNC_ERROR_IA_CATASTROPHIC, a.ia, DAT_IA_CATASTROPHIC_ERROR);
    CHECK(dat_ia_open(ia_names[0], 8, &async, &ia) != DAT_SUCCESS);
    CHECK(ia == DAT_HANDLE_NULL);
    CHECK(dat_pz_create(a.ia, &pz) != DAT_SUCCESS);
    /* A post does not notice that the device is gone, and has no effect. */
    dat_srq_post_recv(srq, 1, &iov, as_cookie(0));
    send_flagged(pair.client, 8, 0);
    COUNTS(srq, look(srq).available_dto_count, look(srq).outstanding_dto_count);
    ret = dat_ep_disconnect(pair.server, DAT_CLOSE_ABRUPT_FLAG);
    CHECK(ret == DAT_SUCCESS || DAT_GET_TYPE(ret) == DAT_INVALID_STATE);
    OK(dat_ep_free(pair.server));
    OK(dat_srq_free(srq));
    OK(dat_lmr_free(a.lmr));
}

int main(int argc, char **argv)
{
    return run_tests(argc, argv);
}
