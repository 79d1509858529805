/* Agents: functions of the program that a CNO calls. An agent may make any call. */
#include "rig.h"

/* An agent that makes every call that an agent may want to make. */
static DAT_CNO_HANDLE agents_cno;
static DAT_RETURN agents_close;
static unsigned agent_entered, agent_called, agent_took;
static int agent_closes;

static void busy_agent(DAT_PVOID data, DAT_EVD_HANDLE evd)
{
    DAT_OS_WAIT_PROXY_AGENT again = {data, busy_agent};
    DAT_EVD_PARAM evd_param;
    DAT_CNO_PARAM cno_param;
    DAT_EVD_HANDLE triggered;
    DAT_EVENT event;

    __atomic_add_fetch(&agent_entered, 1, __ATOMIC_RELEASE);
    OK(dat_evd_query(evd, DAT_EVD_FIELD_ALL, &evd_param));
    OK(dat_cno_query(agents_cno, DAT_CNO_FIELD_ALL, &cno_param));
    EXPECT(STATE(DAT_INVALID_STATE_CNO_IN_USE), dat_cno_free(agents_cno));
    OK(dat_cno_modify_agent(agents_cno, again));
    while (dat_evd_dequeue(evd, &event) == DAT_SUCCESS)
        __atomic_add_fetch(&agent_took, 1, __ATOMIC_RELEASE);
    dat_cno_wait(agents_cno, 0, &triggered);
    if (__atomic_load_n(&agent_closes, __ATOMIC_ACQUIRE))
        agents_close = dat_ia_close(a.ia, DAT_CLOSE_ABRUPT_FLAG);
    __atomic_add_fetch(&agent_called, 1, __ATOMIC_RELEASE);
}

/* The agent is called by the thread that posts an event and by the progress thread. In the end it
 * closes its own IA. */
TEST(agent_may_call_anything)
{
    DAT_OS_WAIT_PROXY_AGENT agent = {NULL, busy_agent};
    DAT_SRQ_HANDLE srq = srq_of(&a, 8);
    DAT_EVD_HANDLE software, recv;
    struct pair pair;
    DAT_EVENT event;

    agent_entered = agent_called = agent_took = 0;
    agent_closes = 0;
    OK(dat_cno_create(a.ia, agent, &agents_cno));
    OK(dat_evd_create(a.ia, 16, agents_cno, DAT_EVD_SOFTWARE_FLAG, &software));
    OK(dat_evd_create(a.ia, 16, agents_cno, DAT_EVD_DTO_FLAG, &recv));
    event.event_number = DAT_SOFTWARE_EVENT;
    OK(dat_evd_post_se(software, &event));
    until(&agent_called, 1);
    CHECK(agent_took == 1);
    pair = joined(ep_on(&a, srq, recv, NULL), plain_ep(&b));
    fill(srq, 0, 4);
    for (unsigned i = 1; i <= 3; i++) {
        SEND(pair, 8);
        until(&agent_took, 1 + i);
    }
    /* The call that took the last event has to return before the next one is told to close. */
    until(&agent_called, __atomic_load_n(&agent_entered, __ATOMIC_ACQUIRE));
    agents_close = 77;
    unsigned before = __atomic_load_n(&agent_called, __ATOMIC_ACQUIRE);
    __atomic_store_n(&agent_closes, 1, __ATOMIC_RELEASE);
    SEND(pair, 8);
    until(&agent_called, before + 1);
    EXPECT(DAT_SUCCESS, agents_close);
    EXPECT(HANDLE(IA), dat_ia_close(a.ia, DAT_CLOSE_ABRUPT_FLAG));
    a.ia = DAT_HANDLE_NULL;
    NEXT(b.conn, DAT_CONNECTION_EVENT_DISCONNECTED);
}

/* What an agent does with the events of its EVD: it ends another connection, or sets the low
 * watermark again. */
static DAT_EP_HANDLE agent_ends;
static DAT_SRQ_HANDLE agent_sets;
static DAT_COUNT agent_mark;
static DAT_RETURN agent_answer;
static unsigned agent_acted;

static void acting_agent(DAT_PVOID data, DAT_EVD_HANDLE evd)
{
    DAT_EVENT event;

    (void)data;
    while (dat_evd_dequeue(evd, &event) == DAT_SUCCESS) {
        if (agent_ends != DAT_HANDLE_NULL)
            agent_answer = dat_ep_disconnect(agent_ends, DAT_CLOSE_ABRUPT_FLAG);
        else
            agent_answer = dat_srq_set_lw(agent_sets, agent_mark);
        agent_ends = DAT_HANDLE_NULL;
        __atomic_add_fetch(&agent_acted, 1, __ATOMIC_RELEASE);
    }
}

/* No lock of the provider is held while an agent runs: when a connection ends, the agent ends the
 * next one, whose events call the agent again. */
TEST(agent_may_end_another_connection)
{
    DAT_OS_WAIT_PROXY_AGENT agent = {NULL, acting_agent};
    DAT_SRQ_HANDLE srq = srq_of(&a, 8);
    struct pair first = pair_on(srq), second = pair_on(srq);
    DAT_CNO_HANDLE cno;

    OK(dat_cno_create(a.ia, agent, &cno));
    OK(dat_evd_modify_cno(a.conn, cno));
    agent_acted = 0;
    agent_answer = 77;
    agent_sets = srq;
    agent_ends = second.server;
    OK(dat_ep_disconnect(first.client, DAT_CLOSE_ABRUPT_FLAG));
    until(&agent_acted, 2);
    EXPECT(DAT_SUCCESS, agent_answer);
    CHECK(state_of(second.server) == DAT_EP_STATE_DISCONNECTED);
    for (int i = 0; i < 2; i++)
        NEXT(b.conn, DAT_CONNECTION_EVENT_DISCONNECTED);
    OK(dat_evd_modify_cno(a.conn, DAT_HANDLE_NULL));
    OK(dat_cno_free(cno));
}

/* An agent that learns of the low watermark may set it again. */
TEST(agent_may_set_the_low_watermark_again)
{
    DAT_OS_WAIT_PROXY_AGENT agent = {NULL, acting_agent};
    DAT_SRQ_HANDLE srq = srq_of(&a, 8);
    struct pair pair = pair_on(srq);
    DAT_CNO_HANDLE cno;

    fill(srq, 0, 4);
    OK(dat_srq_set_lw(srq, 3));
    OK(dat_cno_create(a.ia, agent, &cno));
    OK(dat_evd_modify_cno(a.async, cno));
    agent_acted = 0;
    agent_answer = 77;
    agent_sets = srq;
    agent_mark = 1;
    agent_ends = DAT_HANDLE_NULL;
    SEND(pair, 8);
    SEND(pair, 8);
    until(&agent_acted, 1);
    EXPECT(DAT_SUCCESS, agent_answer);
    /* A mark above the level would be reported inside the agent's own call, and call it again. */
    agent_mark = DAT_SRQ_LW_DEFAULT;
    SEND(pair, 8);
    SEND(pair, 8);
    until(&agent_acted, 2);
    EXPECT(DAT_SUCCESS, agent_answer);
    OK(dat_evd_modify_cno(a.async, DAT_HANDLE_NULL));
    OK(dat_cno_free(cno));
}

static int closing;
static unsigned while_closing;

static void counting_agent(DAT_PVOID data, DAT_EVD_HANDLE evd)
{
    (void)data;
    (void)evd;
    __atomic_add_fetch(&while_closing, __atomic_load_n(&closing, __ATOMIC_ACQUIRE), __ATOMIC_RELEASE);
}

/* The events that closing an IA causes (flushed receives, ended connections) do not call its
 * agents. */
TEST(agent_is_not_called_by_a_closing_ia)
{
    DAT_OS_WAIT_PROXY_AGENT agent = {NULL, counting_agent};
    DAT_SRQ_HANDLE srq = srq_of(&a, 8);
    DAT_EP_ATTR attr = ep_attr();
    DAT_EVD_HANDLE recv;
    DAT_CNO_HANDLE cno;
    DAT_EP_HANDLE ep;

    closing = 0;
    while_closing = 0;
    OK(dat_cno_create(a.ia, agent, &cno));
    OK(dat_evd_create(a.ia, 16, cno, DAT_EVD_DTO_FLAG, &recv));
    OK(dat_ep_create(a.ia, a.pz, recv, a.req, a.conn, &attr, &ep));
    for (int i = 0; i < 4; i++) {
        DAT_LMR_TRIPLET iov = piece(&a, i * ROOM, ROOM);

        OK(dat_ep_post_recv(ep, 1, &iov, as_cookie(i), 0));
    }
    joined(ep, plain_ep(&b));
    fill(srq, 4, 4);
    joined(ep_on(&a, srq, recv, NULL), plain_ep(&b));
    OK(dat_evd_modify_cno(a.conn, cno));
    __atomic_store_n(&closing, 1, __ATOMIC_RELEASE);
    OK(dat_ia_close(a.ia, DAT_CLOSE_ABRUPT_FLAG));
    a.ia = DAT_HANDLE_NULL;
    CHECK(__atomic_load_n(&while_closing, __ATOMIC_ACQUIRE) == 0);
}

/* What an agent does with an RMR while a bind of that RMR calls it. */
static DAT_RMR_HANDLE agent_queries;
static DAT_EP_HANDLE agent_frees;

static void querying_agent(DAT_PVOID data, DAT_EVD_HANDLE evd)
{
    DAT_RMR_PARAM param;
    DAT_EVENT event;

    (void)data;
    while (dat_evd_dequeue(evd, &event) == DAT_SUCCESS) {
        /* An event of an earlier overflow may come late. It counts only if there is an EP to free. */
        DAT_EP_HANDLE ep = __atomic_exchange_n(&agent_frees, DAT_HANDLE_NULL, __ATOMIC_ACQ_REL);
        DAT_RETURN answer = dat_rmr_query(agent_queries, DAT_RMR_FIELD_ALL, &param);

        if (ep == DAT_HANDLE_NULL)
            continue;
        /* Every RMR is told that the EP goes. */
        agent_answer = answer == DAT_SUCCESS ? dat_ep_free(ep) : answer;
        __atomic_add_fetch(&agent_acted, 1, __ATOMIC_RELEASE);
    }
}

/* On the software device the bind makes room in the request queue at once. On others the queue may be
 * full until an acknowledgement has arrived. */
static void bind_to(DAT_RMR_HANDLE rmr, DAT_EP_HANDLE ep, unsigned offset)
{
    DAT_LMR_TRIPLET part = piece(&a, offset, 64);
    DAT_RMR_COOKIE cookie = {.as_64 = 5};
    DAT_RMR_CONTEXT context;
    long long end = now_ms() + (emu("count qp") < 0 ? LONG_TIME / 1000 : 0);
    DAT_RETURN answer;

    while (answer = dat_rmr_bind(rmr, a.lmr, &part, DAT_MEM_PRIV_REMOTE_WRITE_FLAG, DAT_VA_TYPE_VA, ep, cookie, 0,
                                 &context),
           DAT_GET_TYPE(answer) == DAT_INSUFFICIENT_RESOURCES && now_ms() < end)
        poll(NULL, 0, 1);
    EXPECT(DAT_SUCCESS, answer);
}

/* Fills the request queue with RDMA Writes. Nobody looks at the EVD before the next call that needs
 * room. */
static void fill_requests(struct pair pair)
{
    DAT_COUNT requests = param_of(pair.server).ep_attr.max_request_dtos;
    DAT_RMR_TRIPLET there = {(DAT_VADDR)(uintptr_t)b.memory, 1, b.rmr_context};
    DAT_LMR_TRIPLET iov = piece(&a, 0, 1);
    volatile char *last = b.memory + requests - 1;
    long long end = now_ms() + LONG_TIME / 1000;

    memset(a.memory, 1, 1);
    memset(b.memory, 0, requests);
    for (DAT_COUNT i = 0; i < requests; i++, there.virtual_address++)
        OK(dat_ep_post_rdma_write(pair.server, 1, &iov, as_cookie(i), &there, 0));
    while (!*last && now_ms() < end)
        poll(NULL, 0, 1);
    CHECK(*last);
}

static DAT_COUNT qlen_of(DAT_EVD_HANDLE evd)
{
    DAT_EVD_PARAM param;

    OK(dat_evd_query(evd, DAT_EVD_FIELD_ALL, &param));
    return param.evd_qlen;
}

static void drain(DAT_EVD_HANDLE evd)
{
    DAT_EVENT event;

    while (dat_evd_dequeue(evd, &event) == DAT_SUCCESS)
        ;
}

/* A bind that needs room in the request queue, or that asks whether the peer has invalidated the
 * window, harvests. The EVD overflows, which calls the agent of the asynchronous EVD: no lock of the
 * RMR is held. */
static void use_the_rmr_of_a_bind(int for_ep)
{
    DAT_OS_WAIT_PROXY_AGENT agent = {NULL, querying_agent};
    DAT_EVD_HANDLE recv = evd_of(&a, DAT_EVD_DTO_FLAG), req = evd_of(&a, DAT_EVD_DTO_FLAG | DAT_EVD_RMR_BIND_FLAG);
    DAT_COUNT messages = qlen_of(recv) + 1;
    DAT_EP_ATTR attr = ep_attr();
    DAT_EP_HANDLE ep;
    DAT_CNO_HANDLE cno;
    struct pair pair;

    /* More than the EVDs can queue. */
    attr.max_recv_dtos = messages;
    attr.max_request_dtos = qlen_of(req) + 4;
    OK(dat_ep_create(a.ia, a.pz, recv, req, a.conn, &attr, &ep));
    receives(ep, 0, messages);
    pair = joined(ep, plain_ep(&b));
    if (for_ep)
        OK(TABLE(a.pz)->rmr_create_for_ep_func(a.pz, &agent_queries));
    else
        OK(dat_rmr_create(a.pz, &agent_queries));
    bind_to(agent_queries, ep, 0);
    NEXT(req, DAT_RMR_BIND_COMPLETION_EVENT);
    OK(dat_cno_create(a.ia, agent, &cno));
    OK(dat_evd_modify_cno(a.async, cno));

    agent_acted = 0;
    agent_answer = 77;
    __atomic_store_n(&agent_frees, plain_ep(&a), __ATOMIC_RELEASE);
    fill_requests(pair);
    bind_to(agent_queries, ep, 64);
    until(&agent_acted, 1);
    EXPECT(DAT_SUCCESS, agent_answer);
    drain(req);
    if (for_ep) {
        unsigned before = __atomic_load_n(&agent_acted, __ATOMIC_ACQUIRE);

        /* On a slow device the progress thread may harvest before the bind does. */
        agent_answer = 77;
        __atomic_store_n(&agent_frees, plain_ep(&a), __ATOMIC_RELEASE);
        for (DAT_COUNT i = 0; i < messages; i++)
            SEND(pair, 8);
        bind_to(agent_queries, ep, 128);
        until(&agent_acted, before + 1);
        EXPECT(DAT_SUCCESS, agent_answer);
    }
    OK(dat_evd_modify_cno(a.async, DAT_HANDLE_NULL));
    OK(dat_cno_free(cno));
}

TEST(agent_may_use_the_rmr_of_a_bind)
{
    use_the_rmr_of_a_bind(0);
}

TEST(agent_may_use_the_rmr_of_a_bind_for_an_ep)
{
    use_the_rmr_of_a_bind(1);
}

/* What an agent does that runs inside a call which changes this EP. */
static DAT_EP_HANDLE agents_ep;
static DAT_RETURN agent_asks, agent_frees_it, agent_closes_it;

static void freeing_agent(DAT_PVOID data, DAT_EVD_HANDLE evd)
{
    DAT_EP_STATE state;

    (void)data;
    (void)evd;
    agent_asks = dat_ep_get_status(agents_ep, &state, NULL, NULL);
    agent_frees_it = dat_ep_free(agents_ep);
    agent_closes_it = dat_ia_close(a.ia, DAT_CLOSE_ABRUPT_FLAG);
    __atomic_add_fetch(&agent_acted, 1, __ATOMIC_RELEASE);
}

/* The calls of the agent would have to wait for the end of the call that runs the agent. They are
 * refused instead, and change nothing. */
TEST(agent_may_not_free_what_its_own_call_uses)
{
    DAT_OS_WAIT_PROXY_AGENT agent = {NULL, freeing_agent};
    DAT_CNO_HANDLE cno;

    agent_acted = 0;
    OK(dat_cno_create(a.ia, agent, &cno));
    OK(dat_evd_modify_cno(a.async, cno));
    agents_ep = plain_ep(&a);
    receives(agents_ep, 0, 1);
    /* This call raises the event itself, since the watermark is exceeded already. */
    OK(dat_ep_set_watermark(agents_ep, 0, -1));
    CHECK(agent_acted == 1);
    EXPECT(ERROR(DAT_INVALID_STATE, 0), agent_asks);
    EXPECT(ERROR(DAT_INVALID_STATE, 0), agent_frees_it);
    EXPECT(ERROR(DAT_INVALID_STATE, 0), agent_closes_it);
    SOFT(agents_ep);
    OK(dat_evd_modify_cno(a.async, DAT_HANDLE_NULL));
    OK(dat_ep_free(agents_ep));
    OK(dat_cno_free(cno));
}

/* An agent that keeps the progress thread of side a until it is told to return. */
static int progress_is_kept;

static void waiting_agent(DAT_PVOID data, DAT_EVD_HANDLE evd)
{
    long long end = now_ms() + LONG_TIME / 1000;
    DAT_EVENT event;

    (void)data;
    while (dat_evd_dequeue(evd, &event) == DAT_SUCCESS)
        ;
    __atomic_add_fetch(&agent_entered, 1, __ATOMIC_RELEASE);
    while (__atomic_load_n(&progress_is_kept, __ATOMIC_ACQUIRE) && now_ms() < end)
        poll(NULL, 0, 1);
    __atomic_add_fetch(&agent_called, 1, __ATOMIC_RELEASE);
}

/* Keeps the progress thread of side a in such an agent, until the test lets it go. */
static void keep_progress(void)
{
    DAT_OS_WAIT_PROXY_AGENT waiting = {NULL, waiting_agent};
    DAT_SRQ_HANDLE other = srq_of(&a, 4);
    DAT_EVD_HANDLE recv;
    DAT_CNO_HANDLE keeps;
    struct pair kept;

    OK(dat_cno_create(a.ia, waiting, &keeps));
    OK(dat_evd_create(a.ia, 16, keeps, DAT_EVD_DTO_FLAG, &recv));
    kept = joined(ep_on(&a, other, recv, NULL), plain_ep(&b));
    fill(other, 8, 4);
    agent_entered = agent_called = 0;
    progress_is_kept = 1;
    SEND(kept, 8);
    until(&agent_entered, 1);
}

static void let_progress_go(void)
{
    __atomic_store_n(&progress_is_kept, 0, __ATOMIC_RELEASE);
    until(&agent_called, 1);
}

/* The same for an SRQ: this call raises the event of the low watermark itself, and the agent frees
 * the SRQ or changes it. The device tells of the watermark as well; the progress thread would be first
 * if another agent did not keep it. */
static pthread_t agents_caller;
static int agent_is_inside;

static void srq_freeing_agent(DAT_PVOID data, DAT_EVD_HANDLE evd)
{
    DAT_SRQ_PARAM param;

    (void)data;
    (void)evd;
    agent_is_inside = pthread_equal(pthread_self(), agents_caller);
    if (agent_is_inside) {
        agent_asks = dat_srq_query(agent_sets, DAT_SRQ_FIELD_ALL, &param);
        agent_answer = dat_srq_set_lw(agent_sets, 1);
        agent_frees_it = dat_srq_free(agent_sets);
        agent_closes_it = dat_ia_close(a.ia, DAT_CLOSE_ABRUPT_FLAG);
    }
    __atomic_add_fetch(&agent_acted, 1, __ATOMIC_RELEASE);
}

TEST(agent_may_not_free_the_srq_whose_low_watermark_is_set)
{
    DAT_OS_WAIT_PROXY_AGENT agent = {NULL, srq_freeing_agent};
    DAT_SRQ_HANDLE srq;
    DAT_SRQ_PARAM param;
    DAT_CNO_HANDLE cno;
    DAT_EVENT event;

    agents_caller = pthread_self();
    agent_asks = agent_answer = agent_frees_it = agent_closes_it = 77;
    OK(dat_cno_create(a.ia, agent, &cno));
    OK(dat_evd_modify_cno(a.async, cno));
    srq = srq_of(&a, 8);
    fill(srq, 0, 2);
    keep_progress();
    agent_acted = 0;
    agent_sets = srq;
    OK(dat_srq_set_lw(srq, 3));
    CHECK(agent_acted == 1 && agent_is_inside);
    OK(dat_evd_dequeue(a.async, &event));
    let_progress_go();
    EXPECT(ERROR(DAT_INVALID_STATE, 0), agent_asks);
    EXPECT(ERROR(DAT_INVALID_STATE, 0), agent_answer);
    EXPECT(ERROR(DAT_INVALID_STATE, 0), agent_frees_it);
    EXPECT(ERROR(DAT_INVALID_STATE, 0), agent_closes_it);
    /* The refused calls changed nothing. */
    OK(dat_evd_modify_cno(a.async, DAT_HANDLE_NULL));
    OK(dat_srq_query(srq, DAT_SRQ_FIELD_ALL, &param));
    CHECK(param.low_watermark == 3 && param.available_dto_count == 2);
    OK(dat_srq_free(srq));
    OK(dat_cno_free(cno));
}

/* An agent that runs inside a post to this SRQ. */
static DAT_COUNT agent_saw;

static void agent_of_a_post(DAT_PVOID data, DAT_EVD_HANDLE evd)
{
    DAT_SRQ_PARAM param = {.outstanding_dto_count = 77};
    DAT_EVENT event;

    (void)data;
    agent_is_inside = pthread_equal(pthread_self(), agents_caller);
    /* The frees below may need the progress thread. */
    __atomic_store_n(&progress_is_kept, 0, __ATOMIC_RELEASE);
    while (dat_evd_dequeue(evd, &event) == DAT_SUCCESS)
        ;
    agent_asks = dat_srq_query(agent_sets, DAT_SRQ_FIELD_ALL, &param);
    agent_saw = param.outstanding_dto_count;
    agent_answer = post(agent_sets, 0, ROOM);
    if (agent_frees != DAT_HANDLE_NULL) {
        agent_closes_it = dat_ep_free(agent_frees);
        agent_frees_it = dat_srq_free(agent_sets);
    }
    __atomic_add_fetch(&agent_acted, 1, __ATOMIC_RELEASE);
}

/* A post to a full SRQ harvests the completions of EPs that have no receive EVD. One of them exceeds
 * a watermark, so the agent of the asynchronous EVD runs inside the post. The progress thread would
 * be first if another agent did not keep it. Returns the answer to the post. */
static DAT_RETURN post_that_runs_an_agent(DAT_SRQ_HANDLE srq, int frees)
{
    DAT_OS_WAIT_PROXY_AGENT agent = {NULL, agent_of_a_post};
    DAT_CNO_HANDLE cno;
    struct pair pair;
    DAT_RETURN answer;

    pair = joined(ep_on(&a, srq, DAT_HANDLE_NULL, NULL), plain_ep(&b));
    fill(srq, 0, 4);
    OK(dat_cno_create(a.ia, agent, &cno));
    OK(dat_evd_modify_cno(a.async, cno));
    OK(dat_ep_set_watermark(pair.server, 0, -1));

    agents_caller = pthread_self();
    agent_acted = 0;
    agent_asks = agent_answer = agent_closes_it = agent_frees_it = 77;
    agent_sets = srq;
    agent_frees = frees ? pair.server : DAT_HANDLE_NULL;
    keep_progress();
    for (int i = 0; i < 4; i++)
        SEND(pair, 8);
    answer = post(srq, 4, ROOM);
    CHECK(agent_acted == 1 && agent_is_inside);
    let_progress_go();
    OK(dat_evd_modify_cno(a.async, DAT_HANDLE_NULL));
    OK(dat_cno_free(cno));
    return answer;
}

/* No lock of the SRQ is held while the agent runs: it uses the SRQ as everywhere else. */
TEST(agent_may_use_the_srq_of_a_post)
{
    DAT_SRQ_HANDLE srq = srq_of(&a, 4);
    DAT_SRQ_PARAM param;

    OK(post_that_runs_an_agent(srq, 0));
    EXPECT(DAT_SUCCESS, agent_asks);
    EXPECT(DAT_SUCCESS, agent_answer);
    CHECK(agent_saw == 0);
    OK(dat_srq_query(srq, DAT_SRQ_FIELD_ALL, &param));
    CHECK(param.available_dto_count == 2 && param.outstanding_dto_count == 2);
}

/* The agent frees the EP and the SRQ of the post. Nothing is left of the SRQ. */
TEST(agent_may_free_the_srq_of_a_post)
{
    DAT_SRQ_HANDLE srq = srq_of(&a, 4);
    long before = emu("count srq");

    /* With the SRQ of the other connection. */
    EXPECT(HANDLE(SRQ), post_that_runs_an_agent(srq, 1));
    EXPECT(DAT_SUCCESS, agent_asks);
    EXPECT(DAT_SUCCESS, agent_answer);
    EXPECT(DAT_SUCCESS, agent_closes_it);
    EXPECT(DAT_SUCCESS, agent_frees_it);
    CHECK(emu("count srq") == before);
    EXPECT(HANDLE(SRQ), dat_srq_free(srq));
}

int main(int argc, char **argv)
{
    return run_tests(argc, argv);
}
