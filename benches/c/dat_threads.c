/*
 * Times several threads that use one IA through libdat2, with the provider that dat.conf names.
 *
 *   dat_threads IA THREADS DEPTH GROUP MILLISECONDS MINIMUM
 *
 * In a group, each of THREADS threads posts GROUP buffers to the one SRQ, and sends as many messages
 * of 64 bytes by an endpoint of its own, a buffer and a message in turn. The messages go to
 * endpoints on that SRQ. Prints the nanoseconds of one group per line, at least MINIMUM lines, after
 * a tenth of the time to warm up. With MILLISECONDS 0 the program runs one group to warm up, then
 * exactly MINIMUM groups.
 *
 * The time of a group is that of its slowest thread, from its own first call to its last. How long
 * after the others a thread begins is not a matter of the provider: while threads wait for each
 * other, the thread of a software device gets the processor, and keeps it for its turn. Each thread
 * stays on one of the processors that the program may use; with fewer processors than threads, they
 * share them.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>
#include "dat.h"

enum { MOST_THREADS = 8, MESSAGE = 64, QUALIFIER = 7783 };

static DAT_IA_HANDLE ia;
static DAT_PZ_HANDLE pz;
static DAT_SRQ_HANDLE srq;
static DAT_EVD_HANDLE received, requests, connected, accepted;
static DAT_LMR_TRIPLET source, target;
static int threads, depth, group;
static pthread_barrier_t gate;
static atomic_int arrived;

static struct thread {
	DAT_EP_HANDLE client, server;
	DAT_EVD_HANDLE sent;
	long long took;
} all[MOST_THREADS];

static void make(void)
{
	static char memory[2 * MESSAGE] __attribute__((aligned(4096)));
	DAT_SRQ_ATTR pool = { .max_recv_dtos = depth, .max_recv_iov = 1, .low_watermark = DAT_SRQ_LW_DEFAULT };
	DAT_EP_ATTR attr = { .service_type = DAT_SERVICE_TYPE_RC, .max_message_size = 4096, .max_rdma_size = 4096,
			     .qos = DAT_QOS_BEST_EFFORT, .max_recv_dtos = 1, .max_request_dtos = 2 * group,
			     .max_recv_iov = 1, .max_request_iov = 1, .max_rdma_read_iov = 1, .max_rdma_write_iov = 1 };
	DAT_LMR_CONTEXT context;
	int i;

	ok(dat_pz_create(ia, &pz), "dat_pz_create");
	context = register_memory(ia, pz, memory, sizeof memory);
	source.virtual_address = (DAT_VADDR)(uintptr_t)memory;
	source.segment_length = MESSAGE;
	source.lmr_context = context;
	target = source;
	target.virtual_address += MESSAGE;
	ok(dat_srq_create(ia, pz, &pool, &srq), "dat_srq_create");
	ok(dat_evd_create(ia, depth + group, DAT_HANDLE_NULL, DAT_EVD_DTO_FLAG, &received), "dat_evd_create");
	ok(dat_evd_create(ia, 16, DAT_HANDLE_NULL, DAT_EVD_CR_FLAG, &requests), "dat_evd_create");
	ok(dat_evd_create(ia, 16, DAT_HANDLE_NULL, DAT_EVD_CONNECTION_FLAG, &connected), "dat_evd_create");
	ok(dat_evd_create(ia, 16, DAT_HANDLE_NULL, DAT_EVD_CONNECTION_FLAG, &accepted), "dat_evd_create");
	for (i = 0; i < threads; i++) {
		struct thread *t = &all[i];
		DAT_EVD_HANDLE answers;

		ok(dat_evd_create(ia, 4 * group, DAT_HANDLE_NULL, DAT_EVD_DTO_FLAG, &t->sent), "dat_evd_create");
		ok(dat_evd_create(ia, 4 * group, DAT_HANDLE_NULL, DAT_EVD_DTO_FLAG, &answers), "dat_evd_create");
		ok(dat_ep_create_with_srq(ia, pz, received, answers, accepted, srq, &attr, &t->server), "dat_ep_create_with_srq");
		ok(dat_ep_create(ia, pz, answers, t->sent, connected, &attr, &t->client), "dat_ep_create");
	}
}

static void join(void)
{
	DAT_IA_ATTR attr;
	DAT_EVD_HANDLE async;
	DAT_PSP_HANDLE psp;
	int i;

	ok(dat_ia_query(ia, &async, DAT_IA_FIELD_ALL, &attr, 0, NULL), "dat_ia_query");
	ok(dat_psp_create(ia, QUALIFIER, requests, DAT_PSP_CONSUMER_FLAG, &psp), "dat_psp_create");
	for (i = 0; i < threads; i++) {
		DAT_EVENT request;

		ok(dat_ep_connect(all[i].client, attr.ia_address_ptr, QUALIFIER, WAIT_US, 0, NULL, DAT_QOS_BEST_EFFORT,
				  DAT_CONNECT_DEFAULT_FLAG), "dat_ep_connect");
		request = expect(requests, DAT_CONNECTION_REQUEST_EVENT, "the connection request");
		ok(dat_cr_accept(request.event_data.cr_arrival_event_data.cr_handle, all[i].server, 0, NULL), "dat_cr_accept");
		expect(connected, DAT_CONNECTION_EVENT_ESTABLISHED, "the client's connection");
		expect(accepted, DAT_CONNECTION_EVENT_ESTABLISHED, "the server's connection");
	}
}

static void post(void)
{
	DAT_DTO_COOKIE cookie = { .as_64 = 0 };

	if (dat_srq_post_recv(srq, 1, &target, cookie) != DAT_SUCCESS)
		abort();
}

static cpu_set_t processors;

/* Keeps this thread on the processor with this index among those of the program. */
static void stay(int index)
{
	cpu_set_t one;
	int i = 0;

	for (index %= CPU_COUNT(&processors); !CPU_ISSET(i, &processors) || index-- > 0; i++)
		;
	CPU_ZERO(&one);
	CPU_SET(i, &one);
	if (pthread_setaffinity_np(pthread_self(), sizeof one, &one) != 0)
		abort();
}

static void post_and_send(struct thread *t)
{
	DAT_DTO_COOKIE cookie = { .as_64 = 0 };
	long long start;
	int i;

	/* Nobody begins before all threads are awake. */
	atomic_fetch_add(&arrived, 1);
	while (atomic_load(&arrived) < threads)
		sched_yield();
	start = now();
	for (i = 0; i < group; i++) {
		post();
		if (dat_ep_post_send(t->client, 1, &source, cookie, DAT_COMPLETION_DEFAULT_FLAG) != DAT_SUCCESS)
			abort();
	}
	t->took = now() - start;
}

static void *work(void *arg)
{
	stay((struct thread *)arg - all);
	for (;;) {
		pthread_barrier_wait(&gate);
		post_and_send(arg);
		pthread_barrier_wait(&gate);
	}
	return NULL;
}

static long long one_group(void)
{
	long long longest = 0;
	int i;

	atomic_store(&arrived, 0);
	pthread_barrier_wait(&gate);
	post_and_send(&all[0]);
	pthread_barrier_wait(&gate);
	for (i = 0; i < threads; i++)
		if (all[i].took > longest)
			longest = all[i].took;
	return longest;
}

static void take(DAT_EVD_HANDLE evd, int count)
{
	int i;

	for (i = 0; i < count; i++) {
		DAT_EVENT event = expect(evd, DAT_DTO_COMPLETION_EVENT, "a completion");

		good(&event);
	}
}

/* All messages arrive; the SRQ has as many buffers as before the group. */
static void finish(void)
{
	int i;

	for (i = 0; i < threads; i++)
		take(all[i].sent, group);
	take(received, threads * group);
}

static long long group_and_rest(void)
{
	long long took = one_group();

	finish();
	return took;
}

int main(int argc, char **argv)
{
	DAT_EVD_HANDLE async = DAT_HANDLE_NULL;
	long long limit;
	long least;
	int i, warm = 0;

	if (argc != 7) {
		fprintf(stderr, "usage: %s IA THREADS DEPTH GROUP MILLISECONDS MINIMUM\n", argv[0]);
		return 2;
	}
	threads = atoi(argv[2]);
	depth = atoi(argv[3]);
	group = atoi(argv[4]);
	limit = atoll(argv[5]) * 1000000;
	least = atol(argv[6]);
	if (threads < 1 || threads > MOST_THREADS || group < 1 || depth < 2 * threads * group) {
		fprintf(stderr, "%s: 1 to %d threads, and twice the depth of their groups\n", argv[0], MOST_THREADS);
		return 2;
	}
	ok(dat_ia_open(argv[1], 8, &async, &ia), "dat_ia_open");
	make();
	join();
	/* No message finds the SRQ empty. */
	for (i = 0; i < threads * group; i++)
		post();
	if (sched_getaffinity(0, sizeof processors, &processors) != 0)
		abort();
	pthread_barrier_init(&gate, NULL, threads);
	for (i = 1; i < threads; i++) {
		pthread_t thread;

		if (pthread_create(&thread, NULL, work, &all[i]) != 0)
			abort();
	}
	stay(0);
	sample(group_and_rest, limit, least, &warm);
	/* The threads and queues go with the process. */
	_exit(0);
}
