/* A refused call changes nothing, and another thread sees no effect: no handle is stale for a
 * moment. */
#include "rig.h"

/* A thread that uses an object again and again, until it is told to stop. */
struct watcher {
    DAT_RETURN (*look)(DAT_HANDLE);
    DAT_HANDLE object;
    pthread_t thread;
    _Atomic int stop;
    _Atomic unsigned looks;
    DAT_RETURN wrong;
};

static void *watch(void *data)
{
    struct watcher *w = data;

    while (!w->stop && w->wrong == DAT_SUCCESS) {
        w->wrong = w->look(w->object);
        w->looks++;
    }
    return NULL;
}

/* A refused call takes about as long as a use, so among this many some happen at the same time. */
#define ROUNDS 20000

/* The call is refused with this code every time, while the other thread uses the object. */
#define REFUSED(code, call, look_, object_)                                                                      \
    do {                                                                                                         \
        struct watcher w_ = {.look = (look_), .object = (object_)};                                              \
        CHECK(pthread_create(&w_.thread, NULL, watch, &w_) == 0);                                                \
        while (w_.looks == 0)                                                                                    \
            sched_yield();                                                                                       \
        for (int i_ = 0; i_ < ROUNDS; i_++)                                                                      \
            EXPECT(code, call);                                                                                  \
        w_.stop = 1;                                                                                             \
        pthread_join(w_.thread, NULL);                                                                           \
        EXPECT(DAT_SUCCESS, w_.wrong);                                                                           \
    } while (0)

static DAT_RETURN look_at_ep(DAT_HANDLE ep)
{
    DAT_EP_STATE state;

    return dat_ep_get_status(ep, &state, NULL, NULL);
}

static DAT_RETURN look_at_cr(DAT_HANDLE cr)
{
    DAT_CR_PARAM param;

    return dat_cr_query(cr, DAT_CR_FIELD_ALL, &param);
}

/* Posts, which take no lock of the object, until the SRQ is full. */
static DAT_RETURN look_at_srq(DAT_HANDLE srq)
{
    DAT_DTO_COOKIE cookie = {.as_64 = 0};
    DAT_RETURN ret = dat_srq_post_recv(srq, 0, NULL, cookie);

    return ret == FULL_SRQ ? DAT_SUCCESS : ret;
}

TEST(a_refused_ep_free_is_not_seen)
{
    DAT_EP_HANDLE ep = plain_ep(&a);
    DAT_RSP_HANDLE rsp;

    OK(dat_rsp_create(a.ia, 45361, ep, a.cr, &rsp));
    REFUSED(STATE(DAT_INVALID_STATE_EP_RESERVED), dat_ep_free(ep), look_at_ep, ep);
    OK(dat_rsp_free(rsp));
    OK(dat_ep_free(ep));
}

TEST(a_refused_srq_free_is_not_seen)
{
    DAT_SRQ_HANDLE srq = srq_of(&a, 4);
    DAT_EP_HANDLE ep = ep_on(&a, srq, a.recv, NULL);

    REFUSED(STATE(DAT_INVALID_STATE_SRQ_IN_USE), dat_srq_free(srq), look_at_srq, srq);
    OK(dat_ep_free(ep));
    OK(dat_srq_free(srq));
}

TEST(a_refused_answer_to_a_request_is_not_seen)
{
    DAT_EP_HANDLE client = plain_ep(&b), server = plain_ep(&a), reserved = plain_ep(&a);
    DAT_PSP_HANDLE psp;
    DAT_RSP_HANDLE rsp;
    DAT_CR_HANDLE cr;

    OK(dat_psp_create(a.ia, 45362, a.cr, DAT_PSP_CONSUMER_FLAG, &psp));
    OK(dat_rsp_create(a.ia, 45363, reserved, a.cr, &rsp));
    cr = request(&a, client, 45362);
    REFUSED(STATE(DAT_INVALID_STATE_EP_RESERVED), dat_cr_accept(cr, reserved, 0, NULL), look_at_cr, cr);
    REFUSED(HANDLE(EP), dat_cr_accept(cr, DAT_HANDLE_NULL, 0, NULL), look_at_cr, cr);
    REFUSED(ARG(2), dat_cr_handoff(cr, 45399), look_at_cr, cr);
    /* The request can still be answered, once. */
    OK(dat_cr_accept(cr, server, 0, NULL));
    EXPECT(HANDLE(CR), dat_cr_reject(cr, 0, NULL));
    both_established(&a, server, &b, client, "");
}

struct opened {
    DAT_IA_HANDLE ia;
    _Atomic int made;
};

/* While there is a PZ on the IA, every graceful close is refused, so no handle of the IA is
 * stale. */
static void *make_pzs(void *data)
{
    struct opened *o = data;
    DAT_PZ_HANDLE pz;

    while (dat_pz_create(o->ia, &pz) == DAT_SUCCESS) {
        DAT_PZ_PARAM param;
        DAT_IA_ATTR attr;

        o->made = 1;
        OK(dat_ia_query(o->ia, NULL, DAT_IA_FIELD_ALL, &attr, 0, NULL));
        OK(dat_pz_query(pz, DAT_PZ_FIELD_ALL, &param));
        OK(dat_pz_free(pz));
    }
    return NULL;
}

TEST(a_refused_ia_close_is_not_seen)
{
    unsigned refused = 0;

    for (int round = 0; round < 300; round++) {
        struct opened o = {0};
        DAT_EVD_HANDLE async = DAT_HANDLE_NULL;
        pthread_t thread;
        DAT_RETURN ret;

        OK(dat_ia_open(ia_names[0], 8, &async, &o.ia));
        CHECK(pthread_create(&thread, NULL, make_pzs, &o) == 0);
        while (!o.made)
            sched_yield();
        while ((ret = dat_ia_close(o.ia, DAT_CLOSE_GRACEFUL_FLAG)) == STATE(DAT_INVALID_STATE_IA_IN_USE))
            refused++;
        OK(ret);
        pthread_join(thread, NULL);
    }
    CHECK(refused > 0);
}

int main(int argc, char **argv)
{
    return run_tests(argc, argv);
}
