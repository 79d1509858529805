/*
 * Times the data path calls through libdat2, with the provider that dat.conf names.
 *
 *   dat_post IA CASE SEGMENTS DEPTH GROUP ENDPOINTS MILLISECONDS MINIMUM
 *
 * CASE is the work of a group of GROUP operations:
 *
 *   post       dat_srq_post_recv
 *   post-lmrs  the same, the segments of all buffers in turn in two LMRs; post-lmrs-4: in four
 *   reap       dat_evd_dequeue of a receive from the SRQ
 *   both       reap, then post, for each message
 *   wait       dat_evd_wait for a receive from the SRQ that waits already
 *   send       dat_ep_post_send of 64 bytes, in SEGMENTS segments
 *   send-lmrs  the same, the segments of all messages in turn in two LMRs; send-lmrs-4: in four
 *   write      dat_ep_post_rdma_write of 64 bytes, in one segment
 *   recv       dat_ep_post_recv to an endpoint without an SRQ
 *   recv-lmrs  the same, the segments of all buffers in turn in two LMRs; recv-lmrs-4: in four
 *   reap-send  dat_evd_dequeue of a send
 *   reap-recv  dat_evd_dequeue of a receive of an endpoint without an SRQ
 *   empty      dat_evd_dequeue of an empty EVD of receives from the SRQ
 *   empty-send dat_evd_dequeue of an empty EVD of sends
 *   answer     a whole message: reap, post, then a send by the endpoint that received, and the
 *              dequeue of that send
 *   ep-create  dat_ep_create
 *   ep-free    dat_ep_free of an endpoint that was never connected
 *
 * Prints the nanoseconds of one group per line, at least MINIMUM lines, after a tenth of the time
 * to warm up. Two endpoints of one IA are connected to each other. Between groups, real messages
 * take the buffers out of the SRQ, so that the ring is walked as in normal use. The SRQ has
 * ENDPOINTS further endpoints. With MILLISECONDS 0 the program runs one group to warm up, then
 * exactly MINIMUM groups, for counting instructions. With DAT_POST_TRAPS in the environment, the
 * program executes a breakpoint trap before and after each measured part of those groups, for
 * steps.c.
 *
 * With BENCH_SET in the environment, lines are cold (cold.h); GROUP is then 1.
 */
#include "../../hw-tests/c/emu.h"
#include <sched.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>
#include "cold.h"
#include "dat.h"

enum { MOST_GROUP = 256, MESSAGE = 64, MOST_SEGMENTS = 4, MOST_LMRS = 4, QUALIFIER = 7781 };
/* Receives, and as many requests, of an endpoint that is created to be freed. */
enum { EACH_UNCONNECTED = 16 };

static DAT_IA_HANDLE ia;
static DAT_PZ_HANDLE pz;
static DAT_SRQ_HANDLE srq;
static DAT_EP_HANDLE server, client;
static DAT_EVD_HANDLE received, sent, requests, connections[2];
static DAT_EVD_HANDLE answered, answers;
static DAT_EP_HANDLE unconnected[MOST_GROUP];
static DAT_EVD_HANDLE unconnected_evds[2];
static DAT_LMR_TRIPLET source, pieces[MOST_LMRS][MOST_SEGMENTS], answer_target, targets[MOST_GROUP][MOST_SEGMENTS];
static DAT_RMR_TRIPLET written;
static int segments, lmrs, depth, group, endpoints, traps, warm;
/* Dequeues that came before a completion. */
static long early;

static void make_memory(void)
{
	static char memory[(MOST_GROUP + 2) * MOST_SEGMENTS * MESSAGE] __attribute__((aligned(4096)));
	DAT_LMR_CONTEXT contexts[MOST_LMRS];
	int i, k;

	/* Several LMRs may have the same bytes. */
	for (i = 0; i < lmrs; i++)
		contexts[i] = register_for_peers(ia, pz, memory, sizeof memory, &written.rmr_context);
	written.virtual_address = (DAT_VADDR)(uintptr_t)memory;
	written.segment_length = MESSAGE;
	for (i = 0; i < MOST_GROUP; i++) {
		for (k = 0; k < MOST_SEGMENTS; k++) {
			targets[i][k].virtual_address = (DAT_VADDR)(uintptr_t)(memory + (i * MOST_SEGMENTS + k) * MESSAGE);
			targets[i][k].segment_length = MESSAGE;
			targets[i][k].lmr_context = contexts[(i * segments + k) % lmrs];
		}
	}
	source = targets[0][0];
	source.virtual_address = (DAT_VADDR)(uintptr_t)(memory + MOST_GROUP * MOST_SEGMENTS * MESSAGE);
	for (i = 0; i < MOST_LMRS; i++) {
		for (k = 0; k < segments; k++) {
			pieces[i][k] = source;
			pieces[i][k].segment_length = MESSAGE / segments;
			pieces[i][k].virtual_address += k * pieces[i][k].segment_length;
			pieces[i][k].lmr_context = contexts[(i * segments + k) % lmrs];
		}
	}
	answer_target = source;
	answer_target.virtual_address += MESSAGE;
}

static DAT_EP_ATTR endpoint(int dtos)
{
	DAT_EP_ATTR attr;

	memset(&attr, 0, sizeof attr);
	attr.service_type = DAT_SERVICE_TYPE_RC;
	attr.max_message_size = attr.max_rdma_size = 4096;
	attr.qos = DAT_QOS_BEST_EFFORT;
	attr.max_recv_dtos = attr.max_request_dtos = dtos;
	attr.max_recv_iov = attr.max_request_iov = segments;
	attr.max_rdma_read_iov = attr.max_rdma_write_iov = 1;
	return attr;
}

static void make_endpoints(void)
{
	DAT_SRQ_ATTR pool = { .max_recv_dtos = depth, .max_recv_iov = segments, .low_watermark = DAT_SRQ_LW_DEFAULT };
	/* Queues in which a group of one does not use the same lines each time. */
	int room = getenv("BENCH_SET") == NULL ? group : 32;
	DAT_EP_ATTR attr = endpoint(2 * room), small = endpoint(1);
	int i;

	ok(dat_srq_create(ia, pz, &pool, &srq), "dat_srq_create");
	ok(dat_evd_create(ia, depth + room, DAT_HANDLE_NULL, DAT_EVD_DTO_FLAG, &received), "dat_evd_create");
	ok(dat_evd_create(ia, 4 * room, DAT_HANDLE_NULL, DAT_EVD_DTO_FLAG, &sent), "dat_evd_create");
	ok(dat_evd_create(ia, 4 * room, DAT_HANDLE_NULL, DAT_EVD_DTO_FLAG, &answered), "dat_evd_create");
	ok(dat_evd_create(ia, 4 * room, DAT_HANDLE_NULL, DAT_EVD_DTO_FLAG, &answers), "dat_evd_create");
	ok(dat_evd_create(ia, 8, DAT_HANDLE_NULL, DAT_EVD_CR_FLAG, &requests), "dat_evd_create");
	for (i = 0; i < 2; i++)
		ok(dat_evd_create(ia, 8, DAT_HANDLE_NULL, DAT_EVD_CONNECTION_FLAG, &connections[i]), "dat_evd_create");

	ok(dat_ep_create_with_srq(ia, pz, received, answered, connections[0], srq, &attr, &server), "dat_ep_create_with_srq");
	for (i = 0; i < endpoints; i++) {
		DAT_EP_HANDLE idle;

		ok(dat_ep_create_with_srq(ia, pz, received, DAT_HANDLE_NULL, DAT_HANDLE_NULL, srq, &small, &idle), "an idle endpoint");
	}
	ok(dat_ep_create(ia, pz, answers, sent, connections[1], &attr, &client), "dat_ep_create");
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

static inline __attribute__((always_inline)) void post(int i)
{
	DAT_DTO_COOKIE cookie = { .as_64 = i };

	if (dat_srq_post_recv(srq, segments, targets[i], cookie) != DAT_SUCCESS)
		abort();
}

static inline __attribute__((always_inline)) void reap_from(DAT_EVD_HANDLE evd)
{
	DAT_EVENT event;

	if (dat_evd_dequeue(evd, &event) != DAT_SUCCESS)
		abort();
	good(&event);
}

static inline __attribute__((always_inline)) void reap(void)
{
	reap_from(received);
}

static inline __attribute__((always_inline)) void find_empty(DAT_EVD_HANDLE evd)
{
	DAT_EVENT event;
	int i;

	for (i = 0; i < group; i++)
		if (dat_evd_dequeue(evd, &event) == DAT_SUCCESS)
			abort();
}

static void find_no_receive(void)
{
	find_empty(received);
}

static void find_no_send(void)
{
	find_empty(sent);
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

static inline __attribute__((always_inline)) void send_from(DAT_EP_HANDLE ep)
{
	DAT_DTO_COOKIE cookie = { .as_64 = 0 };

	if (dat_ep_post_send(ep, 1, &source, cookie, DAT_COMPLETION_DEFAULT_FLAG) != DAT_SUCCESS)
		abort();
}

static void send_all(void)
{
	int i;

	for (i = 0; i < group; i++)
		send_from(client);
}

/* Sends of any number of segments and LMRs. */
static void send_pieces(void)
{
	DAT_DTO_COOKIE cookie = { .as_64 = 0 };
	int i;

	for (i = 0; i < group; i++)
		if (dat_ep_post_send(client, segments, pieces[i % MOST_LMRS], cookie, DAT_COMPLETION_DEFAULT_FLAG) != DAT_SUCCESS)
			abort();
}

static void write_all(void)
{
	DAT_DTO_COOKIE cookie = { .as_64 = 0 };
	int i;

	for (i = 0; i < group; i++)
		if (dat_ep_post_rdma_write(client, 1, &source, cookie, &written, DAT_COMPLETION_DEFAULT_FLAG) != DAT_SUCCESS)
			abort();
}

static void post_receives(void)
{
	int i;

	for (i = 0; i < group; i++) {
		DAT_DTO_COOKIE cookie = { .as_64 = i };

		if (dat_ep_post_recv(client, segments, targets[i], cookie, DAT_COMPLETION_DEFAULT_FLAG) != DAT_SUCCESS)
			abort();
	}
}

/* A send completes a moment after its message arrives: repeats the dequeue until then. */
static inline __attribute__((always_inline)) void reap_sends_of(DAT_EVD_HANDLE evd)
{
	DAT_EVENT event;
	int i;

	for (i = 0; i < group; i++) {
		while (dat_evd_dequeue(evd, &event) != DAT_SUCCESS)
			early++;
		good(&event);
	}
}

static void reap_sends(void)
{
	reap_sends_of(sent);
}

static void receive_and_answer(void)
{
	int i;

	for (i = 0; i < group; i++) {
		reap();
		post(i);
		send_from(server);
	}
}

static void reap_answered(void)
{
	reap_sends_of(answered);
}

static void wait_for(DAT_EVD_HANDLE evd)
{
	DAT_EVENT event;
	DAT_COUNT more;
	int i;

	for (i = 0; i < group; i++) {
		ok(dat_evd_wait(evd, WAIT_US, 1, &event, &more), "a completion");
		good(&event);
	}
}

static void finish_writes(void)
{
	wait_for(sent);
}

/* The sends have completed, so their messages have arrived: reaps both, posts the buffers again. */
static void finish_sends(void)
{
	wait_for(sent);
	reap_all();
	post_all();
}


/*
 * Gives the device time to write the completions of sends whose messages have arrived. If the time
 * is too short, only the figures suffer. A check of the EVD would do part of the measured work. With
 * cold lines, the device has a core of its own, and the time is short: in a longer one, an interrupt
 * or another process makes more cold than the table does.
 */
static void let_sends_complete(void)
{
	long long start = now();

	while (now() - start < (cold_lines ? 50 : 200) * 1000)
		if (!cold_lines)
			sched_yield();
}

static void wait_for_sends(void)
{
	wait_for(received);
	post_all();
	let_sends_complete();
}

static void wait_for_answers(void)
{
	wait_for(answers);
	let_sends_complete();
}

/* Messages take the client's receives; their completions wait. */
static void fill_receives(void)
{
	int i;

	for (i = 0; i < group; i++)
		send_from(server);
	emu("step");
	wait_for(answered);
}

static void use_receives(void)
{
	fill_receives();
	wait_for(answers);
}

static void bring_receives(void)
{
	post_receives();
	fill_receives();
}

static void wait_all(void)
{
	DAT_EVENT event;
	DAT_COUNT more;
	int i;

	for (i = 0; i < group; i++) {
		if (dat_evd_wait(received, WAIT_US, 1, &event, &more) != DAT_SUCCESS)
			abort();
		good(&event);
	}
}

static void reap_receives(void)
{
	int i;

	for (i = 0; i < group; i++)
		reap_from(answers);
}

/* Posts buffers for the answers. */
static void post_answer_buffers(void)
{
	DAT_DTO_COOKIE cookie = { .as_64 = 0 };
	int i;

	for (i = 0; i < group; i++)
		ok(dat_ep_post_recv(client, 1, &answer_target, cookie, DAT_COMPLETION_DEFAULT_FLAG), "dat_ep_post_recv");
}

/*
 * Messages take the group's buffers out of the SRQ; their completions wait. A software device in
 * the mode `stepped` does not see sends that go past libmlx5, so it gets the order to look.
 */
static void deliver(void)
{
	send_all();
	emu("step");
	wait_for(sent);
}

static void deliver_for_answers(void)
{
	post_answer_buffers();
	deliver();
}

static void make_unconnected_evds(void)
{
	int i;

	for (i = 0; i < 2; i++)
		ok(dat_evd_create(ia, EACH_UNCONNECTED * group, DAT_HANDLE_NULL, DAT_EVD_DTO_FLAG, &unconnected_evds[i]), "dat_evd_create");
}

static void create_unconnected(void)
{
	DAT_EP_ATTR attr = endpoint(EACH_UNCONNECTED);
	int i;

	for (i = 0; i < group; i++)
		ok(dat_ep_create(ia, pz, unconnected_evds[0], unconnected_evds[1], connections[1], &attr, &unconnected[i]), "dat_ep_create");
}

static void free_unconnected(void)
{
	int i;

	for (i = 0; i < group; i++)
		ok(dat_ep_free(unconnected[i]), "dat_ep_free");
}

/*
 * The parts of a group, in order: once at the start; before the clock starts; while the clock runs;
 * while it is stopped; while it runs again; afterwards. The clock starts again only if there is a
 * second timed part.
 */
static const struct mode {
	const char *name;
	void (*first)(void), (*bring)(void), (*before)(void), (*timed)(void), (*between)(void), (*timed_too)(void), (*after)(void);
} modes[] = {
	{ "post", post_all, deliver, reap_all, post_all, NULL, NULL, nothing },
	{ "reap", post_all, deliver, nothing, reap_all, NULL, NULL, post_all },
	{ "wait", post_all, deliver, nothing, wait_all, NULL, NULL, post_all },
	{ "both", post_all, deliver, nothing, do_both, NULL, NULL, nothing },
	{ "send", post_all, nothing, nothing, send_all, NULL, NULL, finish_sends },
	{ "write", nothing, nothing, nothing, write_all, NULL, NULL, finish_writes },
	{ "recv", nothing, nothing, nothing, post_receives, NULL, NULL, use_receives },
	{ "reap-recv", nothing, bring_receives, nothing, reap_receives, NULL, NULL, nothing },
	{ "reap-send", post_all, send_all, wait_for_sends, reap_sends, NULL, NULL, nothing },
	{ "empty", post_all, nothing, nothing, find_no_receive, NULL, NULL, nothing },
	{ "empty-send", post_all, nothing, nothing, find_no_send, NULL, NULL, nothing },
	{ "answer", post_all, deliver_for_answers, nothing, receive_and_answer, wait_for_answers, reap_answered, nothing },
	{ "ep-create", make_unconnected_evds, nothing, nothing, create_unconnected, NULL, NULL, free_unconnected },
	{ "ep-free", make_unconnected_evds, create_unconnected, nothing, free_unconnected, NULL, NULL, nothing },
};

/* The timed and counted part. */
__attribute__((noinline)) void measured(void (*part)(void))
{
	part();
}

static void trap(void)
{
	if (traps && warm)
		__asm__ volatile("int3");
}

/* Returns the nanoseconds of a part. */
static long long timed(void (*part)(void))
{
	long long before;

	chill();
	before = cold_ticks();
	trap();
	measured(part);
	trap();
	return cold_since(before);
}

static const struct mode *mode = modes;

/* Returns the nanoseconds of the timed parts. */
static long long one_group(void)
{
	long early_before = early;
	long long took;

	mode->bring();
	mode->before();
	took = timed(mode->timed == send_all && segments * lmrs > 1 ? send_pieces : mode->timed);
	if (mode->timed_too) {
		mode->between();
		took += timed(mode->timed_too);
	}
	mode->after();
	/* With cold lines, the time of a device that was late is no time of a call. */
	return cold_lines && early != early_before ? COLD_NO_TIME : took;
}

int main(int argc, char **argv)
{
	DAT_EVD_HANDLE async = DAT_HANDLE_NULL;
	long long limit;
	long least;
	char *suffix;

	if (argc != 9) {
		fprintf(stderr, "usage: %s IA post[-lmrs[-4]]|reap|both|send[-lmrs[-4]]|recv[-lmrs[-4]]|reap-send|empty|empty-send|answer|ep-create|ep-free SEGMENTS DEPTH GROUP ENDPOINTS MILLISECONDS MINIMUM\n", argv[0]);
		return 2;
	}
	suffix = strstr(argv[2], "-lmrs");
	lmrs = suffix == NULL ? 1 : strcmp(suffix, "-lmrs-4") == 0 ? 4 : 2;
	if (suffix != NULL)
		*suffix = '\0';
	while (strcmp(mode->name, argv[2]) != 0) {
		if (++mode == modes + sizeof modes / sizeof *modes) {
			fprintf(stderr, "%s: the case is post, reap, both, send, recv, reap-send, empty, empty-send, answer, ep-create or ep-free, not %s\n", argv[0], argv[2]);
			return 2;
		}
	}
	segments = atoi(argv[3]);
	depth = atoi(argv[4]);
	group = atoi(argv[5]);
	endpoints = atoi(argv[6]);
	limit = atoll(argv[7]) * 1000000;
	least = atol(argv[8]);
	traps = getenv("DAT_POST_TRAPS") != NULL;
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
	apart();
	sample(one_group, limit, least, &warm);
	/* The queues go with the process. */
	_exit(0);
}
