/*
 * An echo server through libdat2, with the provider that dat.conf names, and its client.
 *
 *   echo IA server BURSTS     prints `listening`, then serves one connection
 *   echo IA client BURSTS
 *
 * The client sends bursts of 4 messages and waits for their answers before the next burst. For each
 * burst the server waits for the first message and dequeues the others, posts each buffer to the
 * SRQ again, sends the answers, and takes the completions of these sends: by waiting in every
 * second burst, by dequeuing in the others. Under callgrind with --instr-atstart=no, the server is
 * instrumented from the event of its connection until all answers are sent, all of its threads
 * included.
 */
#include <stdint.h>
#include <string.h>
#include <unistd.h>
#include <valgrind/callgrind.h>
#include "dat.h"

enum { BURST = 4, BUFFERS = 32, MESSAGE = 64, QUALIFIER = 7782 };

static DAT_IA_HANDLE ia;
static DAT_PZ_HANDLE pz;
static DAT_EP_HANDLE ep;
static DAT_SRQ_HANDLE srq;
static DAT_EVD_HANDLE received, sent, requests, connections;
static DAT_LMR_TRIPLET buffers[BUFFERS], texts[BURST];
static char memory[(BUFFERS + BURST) * MESSAGE] __attribute__((aligned(4096)));

static DAT_EVENT dequeue(DAT_EVD_HANDLE evd)
{
	DAT_EVENT event;

	while (dat_evd_dequeue(evd, &event) != DAT_SUCCESS)
		;
	return event;
}

static char *text_of(const DAT_LMR_TRIPLET *triplet)
{
	return (char *)(uintptr_t)triplet->virtual_address;
}

static void make(int serves)
{
	DAT_SRQ_ATTR pool = { .max_recv_dtos = BUFFERS, .max_recv_iov = 1, .low_watermark = DAT_SRQ_LW_DEFAULT };
	DAT_EP_ATTR attr = { .service_type = DAT_SERVICE_TYPE_RC, .max_message_size = 4096, .max_rdma_size = 4096,
			     .qos = DAT_QOS_BEST_EFFORT, .max_recv_dtos = BUFFERS, .max_request_dtos = BUFFERS,
			     .max_recv_iov = 1, .max_request_iov = 1, .max_rdma_read_iov = 1, .max_rdma_write_iov = 1 };
	DAT_LMR_CONTEXT context;
	int i;

	ok(dat_pz_create(ia, &pz), "dat_pz_create");
	context = register_memory(ia, pz, memory, sizeof memory);
	for (i = 0; i < BUFFERS + BURST; i++) {
		DAT_LMR_TRIPLET *triplet = i < BUFFERS ? &buffers[i] : &texts[i - BUFFERS];

		triplet->virtual_address = (DAT_VADDR)(uintptr_t)(memory + i * MESSAGE);
		triplet->segment_length = MESSAGE;
		triplet->lmr_context = context;
	}
	ok(dat_evd_create(ia, 2 * BUFFERS, DAT_HANDLE_NULL, DAT_EVD_DTO_FLAG, &received), "dat_evd_create");
	ok(dat_evd_create(ia, 2 * BUFFERS, DAT_HANDLE_NULL, DAT_EVD_DTO_FLAG, &sent), "dat_evd_create");
	ok(dat_evd_create(ia, 8, DAT_HANDLE_NULL, DAT_EVD_CR_FLAG, &requests), "dat_evd_create");
	ok(dat_evd_create(ia, 8, DAT_HANDLE_NULL, DAT_EVD_CONNECTION_FLAG, &connections), "dat_evd_create");
	if (serves) {
		ok(dat_srq_create(ia, pz, &pool, &srq), "dat_srq_create");
		ok(dat_ep_create_with_srq(ia, pz, received, sent, connections, srq, &attr, &ep), "dat_ep_create_with_srq");
	} else {
		ok(dat_ep_create(ia, pz, received, sent, connections, &attr, &ep), "dat_ep_create");
	}
}

static void post(int buffer)
{
	DAT_DTO_COOKIE cookie = { .as_64 = buffer };

	if (srq)
		ok(dat_srq_post_recv(srq, 1, &buffers[buffer], cookie), "dat_srq_post_recv");
	else
		ok(dat_ep_post_recv(ep, 1, &buffers[buffer], cookie, DAT_COMPLETION_DEFAULT_FLAG), "dat_ep_post_recv");
}

static void send_text(int n)
{
	DAT_DTO_COOKIE cookie = { .as_64 = n };

	ok(dat_ep_post_send(ep, 1, &texts[n], cookie, DAT_COMPLETION_DEFAULT_FLAG), "dat_ep_post_send");
}

/* Takes a message: its text goes to `text`, its buffer back. */
static void take(DAT_EVENT event, char *text)
{
	int buffer = good(&event)->user_cookie.as_64;

	memcpy(text, text_of(&buffers[buffer]), MESSAGE);
	post(buffer);
}

static void take_sent(int waits)
{
	int i;

	for (i = 0; i < BURST; i++) {
		DAT_EVENT event = waits ? expect(sent, DAT_DTO_COMPLETION_EVENT, "a send") : dequeue(sent);

		good(&event);
	}
}

static void echo(int bursts)
{
	int burst, i;

	for (burst = 0; burst < bursts; burst++) {
		take(expect(received, DAT_DTO_COMPLETION_EVENT, "a message"), text_of(&texts[0]));
		for (i = 1; i < BURST; i++)
			take(dequeue(received), text_of(&texts[i]));
		for (i = 0; i < BURST; i++)
			send_text(i);
		take_sent(burst % 2);
	}
}

static void ask(int bursts)
{
	char text[MESSAGE];
	int burst, i;

	for (burst = 0; burst < bursts; burst++) {
		for (i = 0; i < BURST; i++) {
			snprintf(text_of(&texts[i]), MESSAGE, "message %d of burst %d", i, burst);
			send_text(i);
		}
		for (i = 0; i < BURST; i++) {
			take(expect(received, DAT_DTO_COMPLETION_EVENT, "an answer"), text);
			if (strcmp(text, text_of(&texts[i])) != 0) {
				fprintf(stderr, "'%s' instead of '%s'\n", text, text_of(&texts[i]));
				exit(1);
			}
		}
		take_sent(0);
	}
}

static void serve(int bursts)
{
	DAT_PSP_HANDLE psp;
	DAT_EVENT request;

	ok(dat_psp_create(ia, QUALIFIER, requests, DAT_PSP_CONSUMER_FLAG, &psp), "dat_psp_create");
	puts("listening");
	fflush(stdout);
	request = expect(requests, DAT_CONNECTION_REQUEST_EVENT, "a connection request");
	ok(dat_cr_accept(request.event_data.cr_arrival_event_data.cr_handle, ep, 0, NULL), "dat_cr_accept");
	expect(connections, DAT_CONNECTION_EVENT_ESTABLISHED, "the connection");
	CALLGRIND_START_INSTRUMENTATION;
	echo(bursts);
	CALLGRIND_STOP_INSTRUMENTATION;
	ok(dat_ep_disconnect(ep, DAT_CLOSE_GRACEFUL_FLAG), "dat_ep_disconnect");
	expect(connections, DAT_CONNECTION_EVENT_DISCONNECTED, "the end of the connection");
}

static void call(int bursts)
{
	DAT_IA_ATTR attr;
	DAT_EVD_HANDLE async;

	ok(dat_ia_query(ia, &async, DAT_IA_FIELD_ALL, &attr, 0, NULL), "dat_ia_query");
	ok(dat_ep_connect(ep, attr.ia_address_ptr, QUALIFIER, WAIT_US, 0, NULL, DAT_QOS_BEST_EFFORT,
			  DAT_CONNECT_DEFAULT_FLAG), "dat_ep_connect");
	expect(connections, DAT_CONNECTION_EVENT_ESTABLISHED, "the connection");
	ask(bursts);
	expect(connections, DAT_CONNECTION_EVENT_DISCONNECTED, "the end of the connection");
}

int main(int argc, char **argv)
{
	DAT_EVD_HANDLE async = DAT_HANDLE_NULL;
	int i, serves;

	if (argc != 4) {
		fprintf(stderr, "usage: %s IA server|client BURSTS\n", argv[0]);
		return 2;
	}
	serves = strcmp(argv[2], "server") == 0;
	ok(dat_ia_open(argv[1], 8, &async, &ia), "dat_ia_open");
	make(serves);
	for (i = 0; i < BUFFERS; i++)
		post(i);
	if (serves)
		serve(atoi(argv[3]));
	else
		call(atoi(argv[3]));
	ok(dat_ia_close(ia, DAT_CLOSE_ABRUPT_FLAG), "dat_ia_close");
	return 0;
}
