/* What the programs that call libdat2 share. */
#ifndef BENCH_DAT_H
#define BENCH_DAT_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <dat2/udat.h>

enum { WAIT_US = 60 * 1000 * 1000 };

static void ok(DAT_RETURN code, const char *call)
{
	const char *major = "", *minor = "";

	if (DAT_GET_TYPE(code) == DAT_SUCCESS)
		return;
	dat_strerror(code, &major, &minor);
	fprintf(stderr, "%s: %s %s (0x%x)\n", call, major, minor, code);
	exit(1);
}

/* Waits for the next event, which has this number. */
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

/* The completion, which has to be a good one. */
static const DAT_DTO_COMPLETION_EVENT_DATA *good(const DAT_EVENT *event)
{
	const DAT_DTO_COMPLETION_EVENT_DATA *dto = &event->event_data.dto_completion_event_data;

	if (dto->status != DAT_DTO_SUCCESS) {
		fprintf(stderr, "a message failed: %d\n", dto->status);
		exit(1);
	}
	return dto;
}

/* Registers memory that requests read and write, and peers write. */
static DAT_LMR_CONTEXT register_for_peers(DAT_IA_HANDLE ia, DAT_PZ_HANDLE pz, void *memory, DAT_VLEN size,
					  DAT_RMR_CONTEXT *remote)
{
	DAT_REGION_DESCRIPTION region = { .for_va = memory };
	DAT_LMR_HANDLE lmr;
	DAT_LMR_CONTEXT context;
	DAT_VLEN length;
	DAT_VADDR address;

	ok(dat_lmr_create(ia, DAT_MEM_TYPE_VIRTUAL, region, size, pz,
			  DAT_MEM_PRIV_LOCAL_READ_FLAG | DAT_MEM_PRIV_LOCAL_WRITE_FLAG | DAT_MEM_PRIV_REMOTE_WRITE_FLAG,
			  DAT_VA_TYPE_VA, &lmr, &context, remote, &length, &address), "dat_lmr_create");
	return context;
}

static DAT_LMR_CONTEXT register_memory(DAT_IA_HANDLE ia, DAT_PZ_HANDLE pz, void *memory, DAT_VLEN size)
{
	DAT_RMR_CONTEXT remote;

	return register_for_peers(ia, pz, memory, size, &remote);
}

/* Nanoseconds. */
static inline long long now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000LL + t.tv_nsec;
}

/*
 * Runs groups until this many nanoseconds are over, and at least this many groups after the first
 * tenth of the time, in which *WARM is 0. Prints the nanoseconds of each of the others on a line.
 */
static inline void sample(long long (*one_group)(void), long long limit, long least, int *warm)
{
	long long start = now();
	long samples = 0, left_out = 0;

	while (samples < least || now() - start < limit) {
		long long took = one_group();

		/*
		 * A group that does not count has a negative time far below others (cold.h); without a
		 * limit, times do not matter.
		 */
		if (*warm && (took > -(1LL << 61) || limit == 0)) {
			printf("%lld\n", took);
			samples++;
		} else if (*warm && ++left_out > 100 * least) {
			fprintf(stderr, "the device is late each time: is the machine busy?\n");
			exit(1);
		}
		*warm = *warm || (now() - start) * 10 >= limit;
	}
	fflush(stdout);
}

#endif
