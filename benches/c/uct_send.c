/*
 * Times the calls of UCX's transport rc_mlx5, which drives send queues without libmlx5.
 *
 *   uct_send DEVICE CASE GROUP MILLISECONDS MINIMUM
 *
 * CASE is the work of a group of GROUP operations:
 *
 *   send     uct_ep_am_short with 32 bytes behind the control segment: the number of the handler,
 *            a header of 8 bytes and 23 bytes of payload
 *   message  uct_iface_progress for each message that waits: polls it, calls its handler, posts the
 *            buffer again; the handler sends an answer; completions of sends, which UCX requests
 *            rarely, are polled as well
 *
 * Prints the nanoseconds of one group per line, at least MINIMUM lines, after a tenth of the time
 * to warm up. Two endpoints of one interface are connected to each other. The software device, in
 * its mode `manual`, works between the groups only. With MILLISECONDS 0 and BENCH_TRAPS in the
 * environment, the program executes a breakpoint trap before and after each measured part, for
 * steps.c. With BENCH_SET in the environment, lines are cold (cold.h); GROUP is then 1.
 */
#include "../../hw-tests/c/emu.h"
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <ucs/async/async_fwd.h>
#include <uct/api/uct.h>
#include "cold.h"

enum { HANDLER = 1, PAYLOAD = 23, ADDRESS_BYTES = 256 };

static uct_iface_h iface;
static uct_ep_h ends[2];
static int group, traps, warm, answers;
static long sent, handled;
static char payload[PAYLOAD];

static void ok(ucs_status_t status, const char *call)
{
	if (status == UCS_OK)
		return;
	fprintf(stderr, "%s: %s\n", call, ucs_status_string(status));
	exit(1);
}

/* The endpoint that the group's messages go to changes with each group of answers. */
static inline __attribute__((always_inline)) void send_from(uct_ep_h ep)
{
	if (uct_ep_am_short(ep, HANDLER, (uint64_t)(ep == ends[0]), payload, PAYLOAD) != UCS_OK)
		abort();
	sent++;
}

/* The header says which endpoint sent the message: the other one answers. */
static ucs_status_t handle(void *arg, void *data, size_t length, unsigned flags)
{
	uint64_t from_first;

	(void)arg, (void)length, (void)flags;
	handled++;
	if (answers) {
		memcpy(&from_first, data, sizeof from_first);
		send_from(ends[from_first ? 1 : 0]);
	}
	return UCS_OK;
}

static void open_interface(uct_component_h component, const char *domain, const char *device, uct_worker_h worker)
{
	uct_md_config_t *md_config;
	uct_iface_config_t *config;
	uct_tl_resource_desc_t *transports;
	uct_iface_params_t params = {
		.field_mask = UCT_IFACE_PARAM_FIELD_OPEN_MODE | UCT_IFACE_PARAM_FIELD_DEVICE,
		.open_mode = UCT_IFACE_OPEN_MODE_DEVICE,
	};
	unsigned count, i;
	uct_md_h md;

	ok(uct_md_config_read(component, NULL, NULL, &md_config), "uct_md_config_read");
	if (uct_md_open(component, domain, md_config, &md) != UCS_OK)
		return;
	ok(uct_md_query_tl_resources(md, &transports, &count), "uct_md_query_tl_resources");
	for (i = 0; i < count && !iface; i++) {
		if (strcmp(transports[i].tl_name, "rc_mlx5") != 0 ||
		    strncmp(transports[i].dev_name, device, strlen(device)) != 0)
			continue;
		ok(uct_md_iface_config_read(md, "rc_mlx5", NULL, NULL, &config), "uct_md_iface_config_read");
		params.mode.device.tl_name = transports[i].tl_name;
		params.mode.device.dev_name = transports[i].dev_name;
		ok(uct_iface_open(md, worker, &params, config, &iface), "uct_iface_open");
	}
}

static void open_device(const char *device)
{
	uct_component_h *components;
	ucs_async_context_t *async;
	uct_worker_h worker;
	unsigned count, i, k;

	ok(ucs_async_context_create(UCS_ASYNC_MODE_THREAD_SPINLOCK, &async), "ucs_async_context_create");
	ok(uct_worker_create(async, UCS_THREAD_MODE_SINGLE, &worker), "uct_worker_create");
	ok(uct_query_components(&components, &count), "uct_query_components");
	for (i = 0; i < count && !iface; i++) {
		uct_component_attr_t attr = { .field_mask = UCT_COMPONENT_ATTR_FIELD_MD_RESOURCE_COUNT };

		ok(uct_component_query(components[i], &attr), "uct_component_query");
		attr.md_resources = calloc(attr.md_resource_count + 1, sizeof *attr.md_resources);
		attr.field_mask = UCT_COMPONENT_ATTR_FIELD_MD_RESOURCES;
		ok(uct_component_query(components[i], &attr), "uct_component_query");
		for (k = 0; k < attr.md_resource_count && !iface; k++)
			open_interface(components[i], attr.md_resources[k].md_name, device, worker);
	}
	if (!iface) {
		fprintf(stderr, "UCX has no transport rc_mlx5 on %s\n", device);
		exit(1);
	}
}

static void join(void)
{
	uct_ep_params_t params = { .field_mask = UCT_EP_PARAM_FIELD_IFACE, .iface = iface };
	static char device[ADDRESS_BYTES], addresses[2][ADDRESS_BYTES];
	uct_iface_attr_t attr;
	int i;

	ok(uct_iface_query(iface, &attr), "uct_iface_query");
	if (attr.device_addr_len > ADDRESS_BYTES || attr.ep_addr_len > ADDRESS_BYTES) {
		fprintf(stderr, "addresses of %zu and %zu bytes\n", attr.device_addr_len, attr.ep_addr_len);
		exit(1);
	}
	uct_iface_progress_enable(iface, UCT_PROGRESS_SEND | UCT_PROGRESS_RECV);
	ok(uct_iface_set_am_handler(iface, HANDLER, handle, NULL, 0), "uct_iface_set_am_handler");
	ok(uct_iface_get_device_address(iface, (uct_device_addr_t *)device), "uct_iface_get_device_address");
	for (i = 0; i < 2; i++) {
		ok(uct_ep_create(&params, &ends[i]), "uct_ep_create");
		ok(uct_ep_get_address(ends[i], (uct_ep_addr_t *)addresses[i]), "uct_ep_get_address");
	}
	for (i = 0; i < 2; i++)
		ok(uct_ep_connect_to_ep(ends[i], (uct_device_addr_t *)device, (uct_ep_addr_t *)addresses[1 - i]),
		   "uct_ep_connect_to_ep");
}

static void send_all(void)
{
	int i;

	for (i = 0; i < group; i++)
		send_from(ends[0]);
}

static void deliver(void)
{
	int i;

	for (i = 0; i < 4 * group; i++)
		emu("step");
}

static void step(void)
{
	emu("step");
}

/* Handles all messages, and releases all sends. */
static void finish(void)
{
	long rounds = 0;

	while (handled < sent || uct_iface_flush(iface, 0, NULL) != UCS_OK) {
		elsewhere(step);
		uct_iface_progress(iface);
		if (++rounds > 10 * 1000 * 1000) {
			fprintf(stderr, "%ld of %ld messages\n", handled, sent);
			exit(1);
		}
	}
}

static void handle_all(void)
{
	long until = handled + group;

	while (handled < until)
		uct_iface_progress(iface);
	/* UCX polls completions of sends only if no message waits. */
	uct_iface_progress(iface);
}

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

static long long now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000LL + t.tv_nsec;
}

int main(int argc, char **argv)
{
	long long start, before, took, limit;
	long least, samples = 0, groups = 0;

	if (argc != 6) {
		fprintf(stderr, "usage: %s DEVICE send|message GROUP MILLISECONDS MINIMUM\n", argv[0]);
		return 2;
	}
	answers = strcmp(argv[2], "message") == 0;
	group = atoi(argv[3]);
	limit = atoll(argv[4]) * 1000000;
	least = atol(argv[5]);
	traps = getenv("BENCH_TRAPS") != NULL;
	open_device(argv[1]);
	join();
	apart();
	if (answers)
		send_all();
	start = now();
	while (samples < least || now() - start < limit) {
		if (answers)
			elsewhere(deliver);
		else
			finish();
		chill();
		before = cold_ticks();
		trap();
		measured(answers ? handle_all : send_all);
		trap();
		took = cold_since(before);
		if (warm) {
			printf("%lld\n", took);
			samples++;
		}
		/* UCX requests a completion about every 64 sends: warm after several of them. */
		warm = warm || (++groups >= 16 && (now() - start) * 10 >= limit);
	}
	fflush(stdout);
	/* The queues go with the process. */
	_exit(0);
}
