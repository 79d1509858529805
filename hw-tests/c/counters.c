/* Counters of the IB extension: legal handles and numbers, where results go, resets, the printed
 * form, and counters of the port. tests/device_counters/ checks most values; this program checks
 * a few of each kind. */
#include "rig.h"
#include <sys/stat.h>

#define QUERY(handle, n, out, reset) dat_ib_query_counters(handle, n, out, reset)
#define PRINT(handle, n, reset) dat_ib_print_counters(handle, n, reset)
/* The macros of the headers name a type that no header declares. */
#define START(handle, type) dat_extension_op(handle, DAT_IB_START_COUNTERS_OP, (int)(type))
#define STOP(handle, type) dat_extension_op(handle, DAT_IB_STOP_COUNTERS_OP, (int)(type))

#define NO_COUNTERS ERROR(DAT_INVALID_HANDLE, DAT_INVALID_HANDLE1)
#define GUARD UINT64_C(0x5EED5EED5EED5EED)

#define N(name) [name] = #name
static const char *const ia_names_of[DCNT_IA_ALL_COUNTERS] = {
    N(DCNT_IA_PZ_CREATE), N(DCNT_IA_PZ_FREE), N(DCNT_IA_LMR_CREATE), N(DCNT_IA_LMR_FREE), N(DCNT_IA_RMR_CREATE),
    N(DCNT_IA_RMR_FREE), N(DCNT_IA_PSP_CREATE), N(DCNT_IA_PSP_CREATE_ANY), N(DCNT_IA_PSP_FREE), N(DCNT_IA_RSP_CREATE),
    N(DCNT_IA_RSP_FREE), N(DCNT_IA_EVD_CREATE), N(DCNT_IA_EVD_FREE), N(DCNT_IA_EP_CREATE), N(DCNT_IA_EP_FREE),
    N(DCNT_IA_SRQ_CREATE), N(DCNT_IA_SRQ_FREE), N(DCNT_IA_SP_CR), N(DCNT_IA_SP_CR_ACCEPTED), N(DCNT_IA_SP_CR_REJECTED),
    N(DCNT_IA_MEM_ALLOC), N(DCNT_IA_MEM_ALLOC_DATA), N(DCNT_IA_MEM_FREE), N(DCNT_IA_ASYNC_ERROR),
    N(DCNT_IA_ASYNC_QP_ERROR), N(DCNT_IA_ASYNC_CQ_ERROR), N(DCNT_IA_CM_LISTEN), N(DCNT_IA_CM_REQ_TX),
    N(DCNT_IA_CM_REQ_RX), N(DCNT_IA_CM_REP_TX), N(DCNT_IA_CM_REP_RX), N(DCNT_IA_CM_RTU_TX), N(DCNT_IA_CM_RTU_RX),
    N(DCNT_IA_CM_USER_REJ_TX), N(DCNT_IA_CM_USER_REJ_RX), N(DCNT_IA_CM_ACTIVE_EST), N(DCNT_IA_CM_PASSIVE_EST),
    N(DCNT_IA_CM_AH_REQ_TX), N(DCNT_IA_CM_AH_REQ_RX), N(DCNT_IA_CM_AH_RESOLVED), N(DCNT_IA_CM_DREQ_TX),
    N(DCNT_IA_CM_DREQ_RX), N(DCNT_IA_CM_DREP_TX), N(DCNT_IA_CM_DREP_RX), N(DCNT_IA_CM_MRA_TX), N(DCNT_IA_CM_MRA_RX),
    N(DCNT_IA_CM_REQ_FULLQ_POLL), N(DCNT_IA_CM_ERR), N(DCNT_IA_CM_ERR_REQ_FULLQ), N(DCNT_IA_CM_ERR_REQ_DUP),
    N(DCNT_IA_CM_ERR_REQ_RETRY), N(DCNT_IA_CM_ERR_REP_DUP), N(DCNT_IA_CM_ERR_REP_RETRY), N(DCNT_IA_CM_ERR_RTU_DUP),
    N(DCNT_IA_CM_ERR_RTU_RETRY), N(DCNT_IA_CM_ERR_REFUSED), N(DCNT_IA_CM_ERR_RESET), N(DCNT_IA_CM_ERR_TIMEOUT),
    N(DCNT_IA_CM_ERR_REJ_TX), N(DCNT_IA_CM_ERR_REJ_RX), N(DCNT_IA_CM_ERR_DREQ_DUP), N(DCNT_IA_CM_ERR_DREQ_RETRY),
    N(DCNT_IA_CM_ERR_DREP_DUP), N(DCNT_IA_CM_ERR_DREP_RETRY), N(DCNT_IA_CM_ERR_MRA_DUP), N(DCNT_IA_CM_ERR_MRA_RETRY),
    N(DCNT_IA_CM_ERR_UNEXPECTED), N(DCNT_IA_LNK_ERR_RCV), N(DCNT_IA_LNK_ERR_RCV_REM_PHYS),
    N(DCNT_IA_LNK_ERR_RCV_CONSTRAINT), N(DCNT_IA_LNK_ERR_XMT_DISCARDS), N(DCNT_IA_LNK_ERR_XMT_CONTRAINT),
    N(DCNT_IA_LNK_ERR_INTEGRITY), N(DCNT_IA_LNK_ERR_EXC_BUF_OVERRUN), N(DCNT_IA_LNK_WARN_RCV_SW_RELAY),
    N(DCNT_IA_LNK_WARN_XMT_WAIT), N(DCNT_IA_DIAG_ERR_RQ_RAE), N(DCNT_IA_DIAG_ERR_RQ_OOS), N(DCNT_IA_DIAG_ERR_RQ_RIRE),
    N(DCNT_IA_DIAG_ERR_RQ_UDSDPRD), N(DCNT_IA_DIAG_ERR_SQ_RAE), N(DCNT_IA_DIAG_ERR_SQ_OOS), N(DCNT_IA_DIAG_ERR_SQ_RIRE),
    N(DCNT_IA_DIAG_ERR_SQ_RREE), N(DCNT_IA_DIAG_ERR_SQ_TREE),
};
static const char *const ep_names[DCNT_EP_ALL_COUNTERS] = {
    N(DCNT_EP_CONNECT), N(DCNT_EP_DISCONNECT), N(DCNT_EP_POST_SEND), N(DCNT_EP_POST_SEND_DATA), N(DCNT_EP_POST_SEND_UD),
    N(DCNT_EP_POST_SEND_UD_DATA), N(DCNT_EP_POST_RECV), N(DCNT_EP_POST_RECV_DATA), N(DCNT_EP_POST_WRITE),
    N(DCNT_EP_POST_WRITE_DATA), N(DCNT_EP_POST_WRITE_IMM), N(DCNT_EP_POST_WRITE_IMM_DATA), N(DCNT_EP_POST_READ),
    N(DCNT_EP_POST_READ_DATA), N(DCNT_EP_POST_CMP_SWAP), N(DCNT_EP_POST_FETCH_ADD), N(DCNT_EP_RECV), N(DCNT_EP_RECV_DATA),
    N(DCNT_EP_RECV_UD), N(DCNT_EP_RECV_UD_DATA), N(DCNT_EP_RECV_IMM), N(DCNT_EP_RECV_IMM_DATA), N(DCNT_EP_RECV_RDMA_IMM),
    N(DCNT_EP_RECV_RDMA_IMM_DATA),
};
static const char *const evd_names[DCNT_EVD_ALL_COUNTERS] = {
    N(DCNT_EVD_WAIT), N(DCNT_EVD_WAIT_BLOCKED), N(DCNT_EVD_WAIT_NOTIFY), N(DCNT_EVD_DEQUEUE), N(DCNT_EVD_DEQUEUE_FOUND),
    N(DCNT_EVD_DEQUEUE_NOT_FOUND), N(DCNT_EVD_DEQUEUE_POLL), N(DCNT_EVD_DEQUEUE_POLL_FOUND), N(DCNT_EVD_CONN_CALLBACK),
    N(DCNT_EVD_DTO_CALLBACK),
};

/* The value of one counter. */
static DAT_UINT64 one(DAT_HANDLE handle, int n)
{
    DAT_UINT64 values[2] = {GUARD, GUARD};

    OK(QUERY(handle, n, values, 0));
    CHECK(values[1] == GUARD);
    return values[0];
}

/* The values of all counters. The call writes nothing behind them. */
static DAT_UINT64 *all(DAT_HANDLE handle, int count, int reset)
{
    static DAT_UINT64 values[100];

    for (int i = 0; i < 100; i++)
        values[i] = GUARD;
    OK(QUERY(handle, count, values + 1, reset));
    CHECK(values[0] == GUARD && values[count + 1] == GUARD);
    for (int i = 1; i <= count; i++)
        CHECK(values[i] != GUARD);
    return values + 1;
}

TEST(provider_says_that_it_has_counters)
{
    DAT_PROVIDER_ATTR attr;
    int found = 0;

    OK(dat_ia_query(a.ia, NULL, 0, NULL, DAT_PROVIDER_FIELD_ALL, &attr));
    for (int i = 0; i < attr.num_provider_specific_attr; i++)
        found += strcmp(attr.provider_specific_attr[i].name, DAT_IB_ATTR_COUNTERS) == 0 &&
                 strcmp(attr.provider_specific_attr[i].value, "TRUE") == 0;
    CHECK(found == 1);
}

TEST(handles_without_counters_are_refused)
{
    DAT_SRQ_HANDLE srq = srq_of(&a, 4);
    DAT_EP_HANDLE ep = plain_ep(&a);
    DAT_UINT64 value = GUARD;
    DAT_HANDLE others[] = {a.pz, a.lmr, srq};

    for (int i = 0; i < 3; i++) {
        EXPECT(NO_COUNTERS, QUERY(others[i], 0, &value, 1));
        EXPECT(NO_COUNTERS, PRINT(others[i], 0, 1));
        EXPECT(HANDLE(IA), START(others[i], DCNT_IA_LNK));
        EXPECT(HANDLE(IA), STOP(others[i], DCNT_IA_LNK));
    }
    EXPECT(HANDLE(IA), START(ep, DCNT_IA_LNK));
    EXPECT(HANDLE(IA), STOP(a.recv, DCNT_IA_LNK));
    OK(dat_ep_free(ep));
    EXPECT(NO_COUNTERS, QUERY(ep, DCNT_EP_CONNECT, &value, 0));
    EXPECT(NO_COUNTERS, PRINT(ep, DCNT_EP_CONNECT, 0));
    CHECK(value == GUARD);
    OK(dat_srq_free(srq));
}

TEST(numbers_that_are_no_counters_are_refused)
{
    DAT_EP_HANDLE ep = plain_ep(&a);
    struct {
        DAT_HANDLE handle;
        int count;
    } kinds[] = {{a.ia, DCNT_IA_ALL_COUNTERS}, {ep, DCNT_EP_ALL_COUNTERS}, {a.recv, DCNT_EVD_ALL_COUNTERS}};
    DAT_UINT64 value = GUARD;

    for (int i = 0; i < 3; i++) {
        EXPECT(ARG(2), QUERY(kinds[i].handle, kinds[i].count + 1, &value, 0));
        EXPECT(ARG(2), QUERY(kinds[i].handle, -1, &value, 0));
        EXPECT(ARG(3), QUERY(kinds[i].handle, 0, NULL, 0));
        /* The call checks the pointer before the number. */
        EXPECT(ARG(3), QUERY(kinds[i].handle, -1, NULL, 0));
        EXPECT(ARG(2), PRINT(kinds[i].handle, kinds[i].count + 1, 0));
        EXPECT(ARG(2), PRINT(kinds[i].handle, -1, 0));
    }
    EXPECT(ARG(2), START(a.ia, DCNT_IA_DIAG + 1));
    EXPECT(ARG(2), START(a.ia, -1));
    EXPECT(ARG(2), STOP(a.ia, DCNT_IA_DIAG + 1));
    EXPECT(ARG(2), STOP(a.ia, -1));
    CHECK(value == GUARD);
    OK(dat_ep_free(ep));
}

TEST(all_counters_fill_their_array)
{
    DAT_EP_HANDLE ep = plain_ep(&a);
    DAT_UINT64 *now;

    now = all(a.ia, DCNT_IA_ALL_COUNTERS, 0);
    CHECK(now[DCNT_IA_PZ_CREATE] == 1 && now[DCNT_IA_LMR_CREATE] == 1 && now[DCNT_IA_EVD_CREATE] == 4);
    CHECK(now[DCNT_IA_EP_CREATE] == 1 && now[DCNT_IA_EP_FREE] == 0);
    now = all(ep, DCNT_EP_ALL_COUNTERS, 0);
    for (int i = 0; i < DCNT_EP_ALL_COUNTERS; i++)
        CHECK(now[i] == 0);
    EMPTIED(a.recv);
    EMPTIED(a.conn);
    now = all(a.recv, DCNT_EVD_ALL_COUNTERS, 0);
    CHECK(now[DCNT_EVD_DEQUEUE] == 1 && now[DCNT_EVD_DEQUEUE_NOT_FOUND] == 1 && now[DCNT_EVD_DEQUEUE_POLL] == 1);
    now = all(a.conn, DCNT_EVD_ALL_COUNTERS, 0);
    CHECK(now[DCNT_EVD_DEQUEUE] == 1 && now[DCNT_EVD_DEQUEUE_NOT_FOUND] == 1 && now[DCNT_EVD_DEQUEUE_POLL] == 0);
    OK(dat_ep_free(ep));
    CHECK(one(a.ia, DCNT_IA_EP_CREATE) == 1 && one(a.ia, DCNT_IA_EP_FREE) == 1);
}

TEST(messages_are_counted_on_their_way)
{
    DAT_SRQ_HANDLE srq = srq_of(&a, 8);
    struct pair pair = pair_on(srq);
    DAT_EVENT event;

    fill(srq, 0, 8);
    SEND(pair, 33);
    SEND(pair, 44);
    CHECK(one(pair.client, DCNT_EP_POST_SEND) == 2 && one(pair.client, DCNT_EP_POST_SEND_DATA) == 77);
    CHECK(one(pair.client, DCNT_EP_CONNECT) == 1 && one(pair.server, DCNT_EP_CONNECT) == 0);
    CHECK(one(pair.server, DCNT_EP_RECV) == 2 && one(pair.server, DCNT_EP_RECV_DATA) == 77);
    CHECK(one(pair.server, DCNT_EP_POST_RECV) == 0);
    TAKEN(a.recv, pair.server, 33);
    OK(dat_evd_dequeue(a.recv, &event));
    CHECK(one(a.recv, DCNT_EVD_WAIT) == 1 && one(a.recv, DCNT_EVD_DEQUEUE) == 1);
    CHECK(one(a.ia, DCNT_IA_CM_PASSIVE_EST) == 1 && one(b.ia, DCNT_IA_CM_ACTIVE_EST) == 1);
    CHECK(one(a.ia, DCNT_IA_SP_CR) == 1 && one(a.ia, DCNT_IA_SP_CR_ACCEPTED) == 1);
    CHECK(one(a.conn, DCNT_EVD_CONN_CALLBACK) == 1);
}

TEST(a_reset_comes_after_reading)
{
    DAT_UINT64 value = GUARD, *now;

    for (int i = 0; i < 3; i++)
        EMPTIED(a.recv);
    OK(QUERY(a.recv, DCNT_EVD_DEQUEUE, &value, 1));
    CHECK(value == 3);
    CHECK(one(a.recv, DCNT_EVD_DEQUEUE) == 0 && one(a.recv, DCNT_EVD_DEQUEUE_POLL) == 3);
    EMPTIED(a.recv);
    now = all(a.recv, DCNT_EVD_ALL_COUNTERS, 1);
    CHECK(now[DCNT_EVD_DEQUEUE] == 1 && now[DCNT_EVD_DEQUEUE_POLL] == 4);
    now = all(a.recv, DCNT_EVD_ALL_COUNTERS, 0);
    for (int i = 0; i < DCNT_EVD_ALL_COUNTERS; i++)
        CHECK(now[i] == 0);
    /* A refused call resets nothing. */
    EMPTIED(a.recv);
    EXPECT(ARG(3), QUERY(a.recv, DCNT_EVD_ALL_COUNTERS, NULL, 1));
    EXPECT(ARG(2), QUERY(a.recv, DCNT_EVD_ALL_COUNTERS + 1, &value, 1));
    CHECK(one(a.recv, DCNT_EVD_DEQUEUE) == 1);
}

/* What a call prints to standard output. Lines that the caller prints before and after it stay in
 * order. */
static char *printed(DAT_HANDLE handle, int n, int reset)
{
    static char text[16384];
    FILE *file = tmpfile();
    size_t length;
    int saved;

    fflush(stdout);
    saved = dup(1);
    dup2(fileno(file), 1);
    printf("before\n");
    EXPECT(DAT_SUCCESS, PRINT(handle, n, reset));
    printf("after\n");
    fflush(stdout);
    dup2(saved, 1);
    close(saved);
    rewind(file);
    length = fread(text, 1, sizeof text - 1, file);
    text[length] = 0;
    fclose(file);
    return text;
}

/* One line for each counter of this range: host and process, name, value. */
static void check_lines(char *text, const char *const *names, int from, int count, const DAT_UINT64 *values)
{
    char host[256], expected[512], *line = strtok(text, "\n");

    gethostname(host, sizeof host);
    CHECK(line && strcmp(line, "before") == 0);
    for (int i = from; i < from + count; i++) {
        snprintf(expected, sizeof expected, " %s:0x%x: %s = %llu ", host, (unsigned)getpid(), names[i],
                 (unsigned long long)values[i]);
        line = strtok(NULL, "\n");
        CHECK(line && strcmp(line, expected) == 0);
    }
    line = strtok(NULL, "\n");
    CHECK(line && strcmp(line, "after") == 0);
    CHECK(strtok(NULL, "\n") == NULL);
}

TEST(counters_are_printed_in_one_block)
{
    DAT_EP_HANDLE ep = plain_ep(&a);
    DAT_LMR_TRIPLET iov = piece(&a, 0, 100);
    DAT_UINT64 values[DCNT_IA_ALL_COUNTERS];

    OK(dat_ep_post_recv(ep, 1, &iov, as_cookie(1), 0));
    EMPTIED(a.recv);
    memcpy(values, all(a.ia, DCNT_IA_ALL_COUNTERS, 0), sizeof values);
    check_lines(printed(a.ia, DCNT_IA_ALL_COUNTERS, 0), ia_names_of, 0, DCNT_IA_ALL_COUNTERS, values);
    memcpy(values, all(ep, DCNT_EP_ALL_COUNTERS, 0), DCNT_EP_ALL_COUNTERS * sizeof *values);
    CHECK(values[DCNT_EP_POST_RECV_DATA] == 100);
    check_lines(printed(ep, DCNT_EP_ALL_COUNTERS, 0), ep_names, 0, DCNT_EP_ALL_COUNTERS, values);
    memcpy(values, all(a.recv, DCNT_EVD_ALL_COUNTERS, 0), DCNT_EVD_ALL_COUNTERS * sizeof *values);
    CHECK(values[DCNT_EVD_DEQUEUE] == 1);
    check_lines(printed(a.recv, DCNT_EVD_ALL_COUNTERS, 0), evd_names, 0, DCNT_EVD_ALL_COUNTERS, values);
    /* A single counter, which is reset. */
    check_lines(printed(a.recv, DCNT_EVD_DEQUEUE, 1), evd_names, DCNT_EVD_DEQUEUE, 1, values);
    CHECK(one(a.recv, DCNT_EVD_DEQUEUE) == 0 && one(a.recv, DCNT_EVD_DEQUEUE_POLL) == 1);
    OK(dat_ep_free(ep));
}

/* Sets a counter in the software device's sysfs folder. */
static int put(const char *file, unsigned value)
{
    char folder[512], path[600];
    FILE *f;

    snprintf(folder, sizeof folder, "%s/class/infiniband/mlx5_0/ports/1/counters", getenv("SYSFS_PATH"));
    /* The folder may exist already. */
    mkdir(folder, 0777);
    snprintf(path, sizeof path, "%s/%s", folder, file);
    f = fopen(path, "w");
    if (!f)
        return 0;
    fprintf(f, "%u\n", value);
    return fclose(f) == 0;
}

TEST(counters_of_the_port_start_and_stop)
{
    for (int type = DCNT_IA_CM; type <= DCNT_IA_DIAG; type++) {
        /* Stopping a counter that was not started is no error. */
        OK(STOP(a.ia, type));
        OK(START(a.ia, type));
        OK(START(a.ia, type));
        OK(STOP(a.ia, type));
        OK(STOP(a.ia, type));
    }
    if (no_software_device("counters_of_the_port_start_and_stop"))
        return;
    CHECK(put("port_xmit_discards", 70));
    OK(START(a.ia, DCNT_IA_LNK));
    CHECK(one(a.ia, DCNT_IA_LNK_ERR_XMT_DISCARDS) == 0);
    CHECK(put("port_xmit_discards", 75));
    CHECK(one(a.ia, DCNT_IA_LNK_ERR_XMT_DISCARDS) == 5);
    CHECK(all(a.ia, DCNT_IA_ALL_COUNTERS, 0)[DCNT_IA_LNK_ERR_XMT_DISCARDS] == 5);
    /* These counters were not started on the other IA. */
    CHECK(one(b.ia, DCNT_IA_LNK_ERR_XMT_DISCARDS) == 0);
    OK(STOP(a.ia, DCNT_IA_LNK));
    CHECK(put("port_xmit_discards", 99));
    CHECK(one(a.ia, DCNT_IA_LNK_ERR_XMT_DISCARDS) == 5);
    OK(START(a.ia, DCNT_IA_LNK));
    CHECK(one(a.ia, DCNT_IA_LNK_ERR_XMT_DISCARDS) == 0);
}

int main(int argc, char **argv)
{
    return run_tests(argc, argv);
}
