/*
 * Cold cache lines. With BENCH_SET in the environment, a number of bytes, chill() reads a table of
 * that size before each timed part, and every other thread of the process, of which one does the
 * device's work, stays on another core (apart()). elsewhere() makes a call there.
 */
#ifndef BENCH_COLD_H
#define BENCH_COLD_H

#ifndef _GNU_SOURCE
#error "define _GNU_SOURCE first"
#endif
#include <dirent.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static char *cold_set;
static size_t cold_bytes;
static double cold_cost;
static double cold_ns_per_tick = 1;
static int cold_lines;

static inline long long cold_now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000LL + t.tv_nsec;
}

/* A clock for single calls: what is before a reading ends before it, what is behind begins after it. */
static inline __attribute__((always_inline)) long long cold_ticks(void)
{
#ifdef __x86_64__
	if (cold_lines) {
		long long ticks;

		__builtin_ia32_lfence();
		ticks = (long long)__builtin_ia32_rdtsc();
		__builtin_ia32_lfence();
		return ticks;
	}
#endif
	return cold_now();
}

/*
 * The nanoseconds since a reading of the clock. If lines are cold: picoseconds, without those of a
 * reading. The clock may go in steps of 10 ns, so only means are exact, and single times are below 0.
 */
static inline __attribute__((always_inline)) long long cold_since(long long ticks)
{
	long long took = cold_ticks() - ticks;

	return cold_lines ? (long long)((took * cold_ns_per_tick - cold_cost) * 1000) : took;
}

/* A time that is not printed. */
#define COLD_NO_TIME (-(1LL << 62))

static int cold_compare(const void *a, const void *b)
{
	long long x = *(const long long *)a, y = *(const long long *)b;

	return (x > y) - (x < y);
}

static void (*cold_work)(void);
static sem_t cold_begin, cold_end;

static void *cold_worker(void *arg)
{
	(void)arg;
	for (;;) {
		while (sem_wait(&cold_begin) != 0)
			;
		cold_work();
		sem_post(&cold_end);
	}
	return NULL;
}

static void cold_stay_on(pid_t thread, int cpu)
{
	cpu_set_t one;

	CPU_ZERO(&one);
	CPU_SET(cpu, &one);
	if (sched_setaffinity(thread, sizeof one, &one) != 0) {
		perror("sched_setaffinity");
		exit(1);
	}
}

/* This thread on the first core that the process may use, all others on the second. */
static void apart(void)
{
	const char *bytes = getenv("BENCH_SET");
	int cpus[2], found = 0, cpu;
	static long long took[10000];
	long long start, ticks;
	struct dirent *entry;
	cpu_set_t allowed;
	DIR *threads;
	pthread_t worker;

	if (bytes == NULL)
		return;
	if (sem_init(&cold_begin, 0, 0) != 0 || sem_init(&cold_end, 0, 0) != 0 ||
	    pthread_create(&worker, NULL, cold_worker, NULL) != 0) {
		fprintf(stderr, "no thread for the device's work\n");
		exit(1);
	}
	cold_bytes = strtoul(bytes, NULL, 10);
	cold_set = calloc(1, cold_bytes + 1);
	memset(cold_set, 1, cold_bytes + 1);
	sched_getaffinity(0, sizeof allowed, &allowed);
	for (cpu = 0; cpu < CPU_SETSIZE && found < 2; cpu++)
		if (CPU_ISSET(cpu, &allowed))
			cpus[found++] = cpu;
	threads = opendir("/proc/self/task");
	if (found < 2 || threads == NULL) {
		fprintf(stderr, "cold lines need two cores, one for the device\n");
		exit(1);
	}
	while ((entry = readdir(threads)) != NULL)
		if (entry->d_name[0] != '.')
			cold_stay_on(atoi(entry->d_name), cpus[1]);
	closedir(threads);
	cold_stay_on(syscall(SYS_gettid), cpus[0]);
	cold_lines = 1;
	start = cold_now();
	ticks = cold_ticks();
	while (cold_now() - start < 20 * 1000 * 1000)
		;
	cold_ns_per_tick = (double)(cold_now() - start) / (double)(cold_ticks() - ticks);
	for (cpu = 0; cpu < 10000; cpu++) {
		ticks = cold_ticks();
		took[cpu] = cold_ticks() - ticks;
	}
	/* Without the slowest tenth. */
	qsort(took, 10000, sizeof *took, cold_compare);
	for (cpu = 0; cpu < 9000; cpu++)
		cold_cost += took[cpu] * cold_ns_per_tick / 9000;
}

/* Reads the table. */
static void chill(void)
{
	volatile const char *set = cold_set;
	size_t at;

	if (!cold_lines)
		return;
	for (at = 0; at < cold_bytes; at += 64)
		(void)set[at];
}

/* Makes the call on the other core, if lines are cold, and waits for its end. */
static inline void elsewhere(void (*work)(void))
{
	if (!cold_lines) {
		work();
		return;
	}
	cold_work = work;
	sem_post(&cold_begin);
	while (sem_wait(&cold_end) != 0)
		;
}

#endif
