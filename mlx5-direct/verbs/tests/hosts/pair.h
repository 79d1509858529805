/* Two connected QPs in one process: sends two messages, and checks what arrives. The calls of
 * libibverbs go through CALL, so that a program can get them by any way. */
#include <infiniband/verbs.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#undef ibv_reg_mr

/* The functions of libibverbs that the exchange calls. The others are inline functions. */
#define FUNCTIONS(F) \
    F(ibv_get_device_list) \
    F(ibv_free_device_list) \
    F(ibv_open_device) \
    F(ibv_close_device) \
    F(ibv_alloc_pd) \
    F(ibv_dealloc_pd) \
    F(ibv_reg_mr) \
    F(ibv_dereg_mr) \
    F(ibv_create_cq) \
    F(ibv_destroy_cq) \
    F(ibv_create_qp) \
    F(ibv_modify_qp) \
    F(ibv_destroy_qp) \
    F(ibv_query_gid)

#ifdef BY_POINTERS
#define DECLARE(name) static __typeof__(name) *p_##name;
FUNCTIONS(DECLARE)
#define CALL(name) (*p_##name)
#else
#define CALL(name) name
#endif

#define CHECK(what) \
    do { \
        if (!(what)) { \
            fprintf(stderr, "%s:%d: %s: %m\n", __FILE__, __LINE__, #what); \
            exit(1); \
        } \
    } while (0)

static void connect_qp(struct ibv_context *context, struct ibv_qp *qp, struct ibv_qp *peer)
{
    struct ibv_qp_attr init = {.qp_state = IBV_QPS_INIT, .port_num = 1};
    CHECK(!CALL(ibv_modify_qp)(qp, &init, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
    struct ibv_qp_attr rtr = {
        .qp_state = IBV_QPS_RTR,
        .path_mtu = IBV_MTU_1024,
        .dest_qp_num = peer->qp_num,
        .max_dest_rd_atomic = 1,
        .min_rnr_timer = 1,
        .ah_attr = {.is_global = 1, .port_num = 1, .grh = {.hop_limit = 64}},
    };
    CHECK(!CALL(ibv_query_gid)(context, 1, 0, &rtr.ah_attr.grh.dgid));
    CHECK(!CALL(ibv_modify_qp)(qp, &rtr,
        IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
            IBV_QP_MIN_RNR_TIMER));
    struct ibv_qp_attr rts = {
        .qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 1};
    CHECK(!CALL(ibv_modify_qp)(qp, &rts,
        IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
            IBV_QP_MAX_QP_RD_ATOMIC));
}

static void exchange(void)
{
    static unsigned char memory[8192];
    int devices = 0;
    struct ibv_device **list = CALL(ibv_get_device_list)(&devices);
    CHECK(list && devices > 0);
    struct ibv_context *context = CALL(ibv_open_device)(list[0]);
    CHECK(context);
    CALL(ibv_free_device_list)(list);
    struct ibv_pd *pd = CALL(ibv_alloc_pd)(context);
    CHECK(pd);
    struct ibv_mr *mr = CALL(ibv_reg_mr)(pd, memory, sizeof(memory), IBV_ACCESS_LOCAL_WRITE);
    CHECK(mr);
    struct ibv_cq *cq = CALL(ibv_create_cq)(context, 16, NULL, NULL, 0);
    CHECK(cq);
    struct ibv_qp *qps[2];
    for (int n = 0; n < 2; n++) {
        struct ibv_qp_init_attr attr = {
            .send_cq = cq,
            .recv_cq = cq,
            .cap = {.max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1},
            .qp_type = IBV_QPT_RC,
            .sq_sig_all = 1,
        };
        qps[n] = CALL(ibv_create_qp)(pd, &attr);
        CHECK(qps[n]);
    }
    connect_qp(context, qps[0], qps[1]);
    connect_qp(context, qps[1], qps[0]);
    /* The payload of the first message is in its completion. */
    const unsigned lengths[] = {8, 2000};
    for (int n = 0; n < 2; n++) {
        memset(memory, 'a' + n, 4096);
        struct ibv_sge to = {(uintptr_t)memory + 4096, 4096, mr->lkey}, from = {(uintptr_t)memory, lengths[n], mr->lkey};
        struct ibv_recv_wr receive = {.wr_id = 1, .sg_list = &to, .num_sge = 1}, *bad_receive;
        CHECK(!ibv_post_recv(qps[1], &receive, &bad_receive));
        struct ibv_send_wr send = {.wr_id = 2, .sg_list = &from, .num_sge = 1, .opcode = IBV_WR_SEND}, *bad_send;
        CHECK(!ibv_post_send(qps[0], &send, &bad_send));
        for (int completions = 0; completions < 2;) {
            struct ibv_wc wc;
            int polled = ibv_poll_cq(cq, 1, &wc);
            CHECK(polled >= 0 && (polled == 0 || wc.status == IBV_WC_SUCCESS));
            completions += polled;
            if (!polled)
                sched_yield();
        }
        CHECK(memory[4096] == 'a' + n && memory[4096 + lengths[n] - 1] == 'a' + n);
    }
    CHECK(!CALL(ibv_destroy_qp)(qps[0]) && !CALL(ibv_destroy_qp)(qps[1]) && !CALL(ibv_destroy_cq)(cq));
    CHECK(!CALL(ibv_dereg_mr)(mr) && !CALL(ibv_dealloc_pd)(pd) && !CALL(ibv_close_device)(context));
}
