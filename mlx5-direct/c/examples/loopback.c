/*
 * Sends messages from a QP to itself through an SRQ, a CQ and a send queue that are driven without
 * libmlx5, and checks every byte.
 *
 *   cc loopback.c $(pkg-config --cflags --libs mlx5-direct) -libverbs
 *   ./a.out DEVICE
 */
#include <doorbell/direct.h>
#include <infiniband/verbs.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BUFFERS = 16, BYTES = 256, MESSAGES = 1000 };

static void must(int good, const char *what)
{
	if (good)
		return;
	fprintf(stderr, "%s: %s\n", what, strerror(errno));
	exit(1);
}

static void connect_to_itself(struct ibv_qp *qp)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1 };

	must(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
			    IBV_QP_ACCESS_FLAGS), "INIT");
	memset(&attr, 0, sizeof(attr));
	attr.qp_state = IBV_QPS_RTR;
	attr.path_mtu = IBV_MTU_1024;
	attr.dest_qp_num = qp->qp_num;
	attr.min_rnr_timer = 1;
	attr.ah_attr.is_global = 1;
	attr.ah_attr.port_num = 1;
	attr.ah_attr.grh.hop_limit = 1;
	must(!ibv_query_gid(qp->context, 1, 0, &attr.ah_attr.grh.dgid), "ibv_query_gid");
	must(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
			    IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER), "RTR");
	memset(&attr, 0, sizeof(attr));
	attr.qp_state = IBV_QPS_RTS;
	attr.timeout = 14;
	attr.retry_cnt = 7;
	attr.rnr_retry = 7;
	must(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
			    IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC), "RTS");
}

static struct ibv_context *open_device(const char *name)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_context *context = NULL;
	int i;

	for (i = 0; list && list[i]; i++)
		if (!strcmp(ibv_get_device_name(list[i]), name))
			context = ibv_open_device(list[i]);
	if (list)
		ibv_free_device_list(list);
	must(context != NULL, name);
	return context;
}

int main(int argc, char **argv)
{
	static char memory[BUFFERS * BYTES], got[BYTES], text[BYTES];
	struct ibv_context *context = open_device(argc > 1 ? argv[1] : "mlx5_0");
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_mr *mr = ibv_reg_mr(pd, memory, sizeof(memory), IBV_ACCESS_LOCAL_WRITE);
	struct ibv_cq *verbs_cq = ibv_create_cq(context, 64, NULL, NULL, 0);
	struct ibv_srq_init_attr srq_attr = { .attr = { .max_wr = BUFFERS, .max_sge = 1 } };
	struct ibv_srq *verbs_srq = ibv_create_srq(pd, &srq_attr);
	struct ibv_qp_init_attr qp_attr = {
		.send_cq = verbs_cq, .recv_cq = verbs_cq, .srq = verbs_srq, .qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 16, .max_send_sge = 1, .max_inline_data = 64 },
	};
	struct doorbell_buffer buffers[BUFFERS];
	struct doorbell_completion done[8];
	struct doorbell_srq *srq;
	struct doorbell_cq *cq;
	struct doorbell_sq *sq;
	struct ibv_qp *qp;
	int i, n, received = 0, sent = 0, inside = 0;
	uint64_t cookie;

	must(pd && mr && verbs_cq && verbs_srq, "verbs objects");
	qp = ibv_create_qp(pd, &qp_attr);
	must(qp != NULL, "ibv_create_qp");
	connect_to_itself(qp);

	/* From here on these queues are not used through verbs. */
	must(!(errno = doorbell_srq_open(verbs_srq, BUFFERS, &srq)), "doorbell_srq_open");
	must(!(errno = doorbell_cq_open(verbs_cq, &cq)), "doorbell_cq_open");
	must(!(errno = doorbell_sq_open(qp, &sq)), "doorbell_sq_open");
	for (i = 0; i < BUFFERS; i++)
		buffers[i] = (struct doorbell_buffer){
			(uintptr_t)&memory[i * BYTES], BYTES, mr->lkey, i };
	must(doorbell_srq_post_many(srq, buffers, BUFFERS) == BUFFERS, "doorbell_srq_post_many");
	must(doorbell_srq_post(srq, &buffers[0]) == ENOMEM, "a full SRQ");

	for (i = 0; i < MESSAGES; i++) {
		size_t length = 1 + i % 60;

		memset(text, i, length);
		must(!(errno = doorbell_sq_send_inline(sq, text, length, i, DOORBELL_SIGNALLED)),
		     "doorbell_sq_send_inline");
		/* The message, and the completion of the send. */
		while (received + sent < 2 * (i + 1)) {
			n = doorbell_cq_poll(cq, done, 8);
			must(n >= 0, "doorbell_cq_poll");
			while (n-- > 0) {
				struct doorbell_completion *c = &done[n];
				char *data;

				if (c->kind == DOORBELL_SEND) {
					must(!doorbell_sq_complete(sq, c->index, &cookie, NULL) &&
					     cookie == (uint64_t)i, "the request");
					sent++;
					continue;
				}
				must(c->kind <= DOORBELL_RECV_IN_CQE && c->byte_count == length, "the message");
				must(!doorbell_srq_complete(srq, c->index, &cookie), "the slot");
				data = &memory[cookie * BYTES];
				if (c->kind == DOORBELL_RECV_IN_CQE) {
					must(doorbell_cq_copy(cq, got, BYTES) == length, "the payload");
					data = got;
					inside++;
				}
				must(!memcmp(data, text, length), "the bytes");
				must(!doorbell_srq_post(srq, &buffers[cookie]), "doorbell_srq_post");
				received++;
			}
		}
	}
	printf("%d messages received, %d of them in completions, %d sent; %u buffers posted\n",
	       received, inside, sent, doorbell_srq_posted(srq));

	doorbell_sq_close(sq);
	doorbell_cq_close(cq);
	doorbell_srq_close(srq);
	must(!ibv_destroy_qp(qp) && !ibv_destroy_srq(verbs_srq) && !ibv_destroy_cq(verbs_cq), "destroy");
	must(!ibv_dereg_mr(mr) && !ibv_dealloc_pd(pd) && !ibv_close_device(context), "close");
	return 0;
}
