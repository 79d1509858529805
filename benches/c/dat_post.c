/*
 * Times dat_srq_post_recv and dat_evd_dequeue through libdat2, with whatever provider dat.conf names.
 *
 *   dat_post IA CASE SEGMENTS DEPTH GROUP ENDPOINTS MILLISECONDS MINIMUM
 *
 * CASE is what a group of GROUP operations does: post (buffers into the SRQ), reap (completions of messages), or both (for
 * each of GROUP messages its completion, then a new buffer). Prints nanoseconds of one group a line, at least MINIMUM of
 * them, after a tenth of the time to warm up. Two endpoints of one IA are connected to each other; between groups, real
 * messages take the buffers out of the SRQ, so that the ring is walked as in use. ENDPOINTS more are on the SRQ.
 * MILLISECONDS 0: exactly MINIMUM groups, for counting instructions.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <arpa/inet.h>
#include <dat2/udat.h>

enum { MOST_GROUP = 256, MESSAGE = 64, MOST_SEGMENTS = 4, QUALIFIER = 7781, WAIT_US = 10 * 1000 * 1000 };

static void ok(DAT_RETURN code, const char *call)
{
	const char *major = "", *minor = "";

	if (DAT_GET_TYPE(code) == DAT_SUCCESS)
		return;
	dat_strerror(code, &major, &minor);
	fprintf(stderr, "%s: %s %s (0x%x)\n", call, major, minor, code);
	exit(1);
}

static DAT_EVENT expect(DAT_EVD_HANDLE evd, DAT_EVENT_NUMBER number, const char *what)
{
	DAT_EVENT event;
	DAT_COUNT more;

	ok(dat_evd_wait(evd, WAIT_US, 1, &event, &more), what);
	if (event.event_number != number) {
		fprintf(stderr, "%s: event 0x%x instead of 0x%x\n", what, event.event_number, number);
		exit(1);
	}
	return event;
}

static DAT_IA_HANDLE ia;
static DAT_PZ_HANDLE pz;
static DAT_SRQ_HANDLE srq;
static DAT_EP_HANDLE server, client;
static DAT_EVD_HANDLE received, sent, other, requests, connections[2];
static DAT_LMR_TRIPLET source, targets[MOST_GROUP][MOST_SEGMENTS];
static int segments, depth, group, endpoints;

static void make_memory(void)
{
	static char memory[(MOST_GROUP + 1) * MOST_SEGMENTS * MESSAGE] __attribute__((aligned(4096)));
	DAT_REGION_DESCRIPTION region = { .for_va = memory };
	DAT_LMR_HANDLE lmr;
	DAT_LMR_CONTEXT context;
	DAT_RMR_CONTEXT remote;
	DAT_VLEN length;
	DAT_VADDR address;
	int i, k;

	ok(dat_lmr_create(ia, DAT_MEM_TYPE_VIRTUAL, region, sizeof memory, pz,
			  DAT_MEM_PRIV_LOCAL_READ_FLAG | DAT_MEM_PRIV_LOCAL_WRITE_FLAG, DAT_VA_TYPE_VA, &lmr,
			  &context, &remote, &length, &address), "dat_lmr_create");
	for (i = 0; i < MOST_GROUP; i++) {
		for (k = 0; k < MOST_SEGMENTS; k++) {
			targets[i][k].virtual_address = (DAT_VADDR)(uintptr_t)(memory + (i * MOST_SEGMENTS + k) * MESSAGE);
			targets[i][k].segment_length = MESSAGE;
			targets[i][k].lmr_context = context;
		}
	}
	source = targets[0][0];
	source.virtual_address = (DAT_VADDR)(uintptr_t)(memory + MOST_GROUP * MOST_SEGMENTS * MESSAGE);
}

static void make_endpoints(void)
{
	DAT_SRQ_ATTR pool = { .max_recv_dtos = depth, .max_recv_iov = segments, .low_watermark = DAT_SRQ_LW_DEFAULT };
	DAT_EP_ATTR attr;
	int i;

	ok(dat_srq_create(ia, pz, &pool, &srq), "dat_srq_create");
	ok(dat_evd_create(ia, depth + group, DAT_HANDLE_NULL, DAT_EVD_DTO_FLAG, &received), "dat_evd_create");
	ok(dat_evd_create(ia, 4 * group, DAT_HANDLE_NULL, DAT_EVD_DTO_FLAG, &sent), "dat_evd_create");
	ok(dat_evd_create(ia, 4 * group, DAT_HANDLE_NULL, DAT_EVD_DTO_FLAG, &other), "dat_evd_create");
	ok(dat_evd_create(ia, 8, DAT_HANDLE_NULL, DAT_EVD_CR_FLAG, &requests), "dat_evd_create");
	for (i = 0; i < 2; i++)
		ok(dat_evd_create(ia, 8, DAT_HANDLE_NULL, DAT_EVD_CONNECTION_FLAG, &connections[i]), "dat_evd_create");

	memset(&attr, 0, sizeof attr);
	attr.service_type = DAT_SERVICE_TYPE_RC;
	attr.max_message_size = attr.max_rdma_size = 4096;
	attr.qos = DAT_QOS_BEST_EFFORT;
	attr.max_recv_dtos = attr.max_request_dtos = 2 * group;
	attr.max_recv_iov = segments;
	attr.max_request_iov = 1;
	attr.max_rdma_read_iov = attr.max_rdma_write_iov = 1;
	ok(dat_ep_create_with_srq(ia, pz, received, other, connections[0], srq, &attr, &server), "dat_ep_create_with_srq");
	for (i = 0; i < endpoints; i++) {
		DAT_EP_HANDLE idle;

		attr.max_recv_dtos = attr.max_request_dtos = 1;
		ok(dat_ep_create_with_srq(ia, pz, received, DAT_HANDLE_NULL, DAT_HANDLE_NULL, srq, &attr, &idle), "an idle endpoint");
	}
	attr.max_recv_dtos = attr.max_request_dtos = 2 * group;
	attr.max_recv_iov = 1;
	ok(dat_ep_create(ia, pz, other, sent, connections[1], &attr, &client), "dat_ep_create");
}

static void join(void)
{
	DAT_IA_ATTR attr;
	DAT_EVD_HANDLE async;
	DAT_PSP_HANDLE psp;
	DAT_EVENT request;

	ok(dat_ia_query(ia, &async, DAT_IA_FIELD_ALL, &attr, 0, NULL), "dat_ia_query");
	ok(dat_psp_create(ia, QUALIFIER, requests, DAT_PSP_CONSUMER_FLAG, &psp), "dat_psp_create");
	ok(dat_ep_connect(client, attr.ia_address_ptr, QUALIFIER, WAIT_US, 0, NULL, DAT_QOS_BEST_EFFORT,
			  DAT_CONNECT_DEFAULT_FLAG), "dat_ep_connect");
	request = expect(requests, DAT_CONNECTION_REQUEST_EVENT, "the connection request");
	ok(dat_cr_accept(request.event_data.cr_arrival_event_data.cr_handle, server, 0, NULL), "dat_cr_accept");
	expect(connections[1], DAT_CONNECTION_EVENT_ESTABLISHED, "the client's connection");
	expect(connections[0], DAT_CONNECTION_EVENT_ESTABLISHED, "the server's connection");
}

static void good(const DAT_EVENT *event)
{
	if (event->event_data.dto_completion_event_data.status != DAT_DTO_SUCCESS) {
		fprintf(stderr, "a message failed: %d\n", event->event_data.dto_completion_event_data.status);
		exit(1);
	}
}

static inline __attribute__((always_inline)) void post(int i)
{
	DAT_DTO_COOKIE cookie = { .as_64 = i };

	if (dat_srq_post_recv(srq, segments, targets[i], cookie) != DAT_SUCCESS)
		abort();
}

static inline __attribute__((always_inline)) void reap(void)
{
	DAT_EVENT event;

	if (dat_evd_dequeue(received, &event) != DAT_SUCCESS)
		abort();
	good(&event);
}

static void post_all(void)
{
	int i;

	for (i = 0; i < group; i++)
		post(i);
}

static void reap_all(void)
{
	int i;

	for (i = 0; i < group; i++)
		reap();
}

static void do_both(void)
{
	int i;

	for (i = 0; i < group; i++) {
		reap();
		post(i);
	}
}

static void nothing(void)
{
}

/* What a group is: before the messages, the messages, before the clock starts, while it runs, afterwards. */
static const struct mode {
	const char *name;
	void (*first)(void), (*before)(void), (*timed)(void), (*after)(void);
} modes[] = {
	{ "post", post_all, reap_all, post_all, nothing },
	{ "reap", post_all, nothing, reap_all, post_all },
	{ "both", post_all, nothing, do_both, nothing },
};

/* What is timed, and counted. */
__attribute__((noinline)) void measured(const struct mode *mode)
{
	mode->timed();
}

/* Messages take the group's buffers out of the SRQ; their completions wait. */
static void deliver(void)
{
	DAT_DTO_COOKIE cookie = { .as_64 = 0 };
	DAT_EVENT event;
	DAT_COUNT more;
	int i;

	for (i = 0; i < group; i++)
		ok(dat_ep_post_send(client, 1, &source, cookie, DAT_COMPLETION_DEFAULT_FLAG), "dat_ep_post_send");
	for (i = 0; i < group; i++) {
		ok(dat_evd_wait(sent, WAIT_US, 1, &event, &more), "the completion of a send");
		good(&event);
	}
}

static long long now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000LL + t.tv_nsec;
}

int main(int argc, char **argv)
{
	DAT_EVD_HANDLE async = DAT_HANDLE_NULL;
	long long start, before, took, limit;
	long least, samples = 0;
	const struct mode *mode = modes;
	int warm = 0;

	if (argc != 9) {
		fprintf(stderr, "usage: %s IA post|reap|both SEGMENTS DEPTH GROUP ENDPOINTS MILLISECONDS MINIMUM\n", argv[0]);
		return 2;
	}
	while (strcmp(mode->name, argv[2]) != 0) {
		if (++mode == modes + sizeof modes / sizeof *modes) {
			fprintf(stderr, "%s: the case is post, reap or both, not %s\n", argv[0], argv[2]);
			return 2;
		}
	}
	segments = atoi(argv[3]);
	depth = atoi(argv[4]);
	group = atoi(argv[5]);
	endpoints = atoi(argv[6]);
	limit = atoll(argv[7]) * 1000000;
	least = atol(argv[8]);
	if (segments < 1 || segments > MOST_SEGMENTS || group < 1 || group > MOST_GROUP || depth < group) {
		fprintf(stderr, "%s: 1 to %d segments, groups of 1 to %d, and at least as deep\n", argv[0], MOST_SEGMENTS, MOST_GROUP);
		return 2;
	}
	ok(dat_ia_open(argv[1], 8, &async, &ia), "dat_ia_open");
	ok(dat_pz_create(ia, &pz), "dat_pz_create");
	make_memory();
	make_endpoints();
	join();

	mode->first();
	start = now();
	while (samples < least || now() - start < limit) {
		deliver();
		mode->before();
		before = now();
		measured(mode);
		took = now() - before;
		mode->after();
		warm = warm || (now() - start) * 10 >= limit;
		if (warm) {
			printf("%lld\n", took);
			samples++;
		}
	}
	fflush(stdout);
	/* The queues go with the process. */
	_exit(0);
}
