/* A program of many tests: each is written as
 *
 *     TEST(r53_srq_post_negative_segments) { ... }
 *
 * and is run by itself, between two sides `a` and `b` that are opened for it and closed after it,
 * whatever it left behind. What a test does not give back (descriptors, threads) is a failure as
 * well. After the names of the two IAs the command line may have the beginnings of the names of the
 * tests to run. */
#ifndef TESTS_H
#define TESTS_H

#include "check.h"
#include "emu.h"
#include <dirent.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

#define FULL_SRQ ERROR(DAT_INSUFFICIENT_RESOURCES, DAT_RESOURCE_SRQ)
#define TIMEOUT ERROR(DAT_TIMEOUT_EXPIRED, 0)

struct test {
    const char *name;
    void (*run)(void);
    struct test *next;
};

static struct test *first_test;
__attribute__((unused)) static struct test **last_test = &first_test;
static struct side a, b;
/* The names of the IAs, from the command line. */
static char **ia_names;

#define TEST(test_name)                                                                                          \
    static void test_name(void);                                                                                 \
    static struct test test_name##_entry = {#test_name, test_name, NULL};                                        \
    __attribute__((constructor)) static void test_name##_register(void)                                          \
    {                                                                                                            \
        *last_test = &test_name##_entry;                                                                         \
        last_test = &test_name##_entry.next;                                                                     \
    }                                                                                                            \
    static void test_name(void)

static unsigned entries(const char *folder)
{
    DIR *dir = opendir(folder);
    unsigned n = 0;

    while (readdir(dir))
        n++;
    closedir(dir);
    return n;
}

/* The descriptors of this process, but for two that the software device opens when it first watches
 * doorbells, which its thread may do late. */
static unsigned descriptors(void)
{
    DIR *dir = opendir("/proc/self/fd");
    struct dirent *entry;
    unsigned n = 0;

    while ((entry = readdir(dir))) {
        char target[300] = "";
        ssize_t size = readlinkat(dirfd(dir), entry->d_name, target, sizeof target - 1);

        n += strcmp(target, "anon_inode:[userfaultfd]") != 0 && (size < 5 || strcmp(target + size - 5, "/maps") != 0);
    }
    closedir(dir);
    return n;
}

static long long now_ms(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000LL + t.tv_nsec / 1000000;
}

/* Waits until a count that an agent or another thread increments has reached this value. */
static void until(unsigned *count, unsigned value)
{
    long long end = now_ms() + LONG_TIME / 1000;

    while (__atomic_load_n(count, __ATOMIC_ACQUIRE) < value && now_ms() < end)
        poll(NULL, 0, 1);
    CHECK(__atomic_load_n(count, __ATOMIC_ACQUIRE) >= value);
}

/* What can be counted of a process: descriptors, threads, and the objects of the software device if
 * it is loaded. */
#define HELD 8
static const char *held_names[HELD] = {"descriptors", "threads", "PDs", "MRs", "CQs", "QPs", "SRQs", "address handles"};

struct holdings {
    long n[HELD];
};

static struct holdings holdings(void)
{
    static const char *orders[HELD] = {NULL, NULL, "count pd", "count mr", "count cq", "count qp", "count srq", "count ah"};
    struct holdings h = {{descriptors(), entries("/proc/self/task")}};

    for (int i = 2; i < HELD; i++)
        h.n[i] = emu(orders[i]);
    return h;
}

/* Threads of the provider: each IA has one. The kernel may list a thread for a moment after it was
 * joined. */
static unsigned provider_threads(void)
{
    DIR *dir = opendir("/proc/self/task");
    struct dirent *entry;
    unsigned n = 0;

    while ((entry = readdir(dir))) {
        char path[300], name[20] = "";
        FILE *file;

        snprintf(path, sizeof path, "/proc/self/task/%s/comm", entry->d_name);
        file = fopen(path, "r");
        if (!file)
            continue;
        n += fgets(name, sizeof name, file) && strcmp(name, "doorbell\n") == 0;
        fclose(file);
    }
    closedir(dir);
    return n;
}

/* The counts once the provider has this number of threads. The kernel may list a thread for a moment
 * after it has ended. */
static struct holdings holdings_with_threads(unsigned threads)
{
    long long end = now_ms() + LONG_TIME / 1000;

    while (provider_threads() != threads && now_ms() < end)
        poll(NULL, 0, 1);
    CHECK(provider_threads() == threads);
    return holdings();
}

/* The counts while no IA is open. */
static struct holdings holdings_at_rest(void)
{
    return holdings_with_threads(0);
}

/* What each descriptor of this process stands for. */
static void print_descriptors(void)
{
    DIR *dir = opendir("/proc/self/fd");
    struct dirent *entry;

    while (dir && (entry = readdir(dir))) {
        char path[300], target[300];
        ssize_t n;

        snprintf(path, sizeof path, "/proc/self/fd/%s", entry->d_name);
        n = readlink(path, target, sizeof target - 1);
        if (n > 0)
            printf("descriptor %s: %.*s\n", entry->d_name, (int)n, target);
    }
    if (dir)
        closedir(dir);
}

/* The places of descriptors, PDs and CQs among the counts. */
#define HELD_DESCRIPTORS 0
#define HELD_PDS 2
#define HELD_CQS 4

/* The descriptors of the completion channels that two IAs keep, of which the software device makes
 * three each. An IA keeps fewer if a QP had a channel's CQ for longer than its EVD. */
#define KEPT_DESCRIPTORS (2 * 4 * 3)
/* The PDs that two IAs keep. An IA keeps none if a QP had the PD for longer than its PZ. */
#define KEPT_PDS 2

/* The counts that may be: at least and at most. In an open IA, `more_cqs` is not 0. */
static long held_least(struct holdings before, int i, long more_cqs)
{
    long kept = i == HELD_DESCRIPTORS ? KEPT_DESCRIPTORS : i == HELD_PDS ? KEPT_PDS : 0;

    return before.n[i] - (more_cqs ? kept : 0);
}

static long held_most(struct holdings before, int i, long more_cqs)
{
    return before.n[i] + (i == HELD_CQS ? more_cqs : 0);
}

static int holds(struct holdings h, struct holdings before, long more_cqs)
{
    for (int i = 0; i < HELD; i++)
        if (h.n[i] < held_least(before, i, more_cqs) || h.n[i] > held_most(before, i, more_cqs))
            return 0;
    return 1;
}

/* Waits until the counts are what they were, but for this number of CQs. The kernel may list a
 * thread for a moment after it has ended, and the end of a connection holds a freed EP for half a
 * second. */
static void check_holdings_but(struct holdings before, long more_cqs)
{
    long long end = now_ms() + LONG_TIME / 1000;
    struct holdings h = holdings();

    for (int pause = 1; !holds(h, before, more_cqs) && now_ms() < end; pause += pause < 20) {
        poll(NULL, 0, pause);
        h = holdings();
    }
    for (int i = 0; i < HELD; i++) {
        long least = held_least(before, i, more_cqs), most = held_most(before, i, more_cqs);

        checks++;
        if (h.n[i] < least || h.n[i] > most)
            complain("left behind: %ld %s, where there were %ld", h.n[i], held_names[i], before.n[i]);
    }
    if (h.n[HELD_DESCRIPTORS] > before.n[HELD_DESCRIPTORS])
        print_descriptors();
}

static void check_holdings(struct holdings before)
{
    check_holdings_but(before, 0);
}

static void side_close(struct side *s)
{
    if (s->ia)
        OK(dat_ia_close(s->ia, DAT_CLOSE_ABRUPT_FLAG));
    free(s->memory);
    memset(s, 0, sizeof *s);
}

/* Libraries keep some descriptors after their first use: librdmacm has the device open from the
 * first connection on. */
static void warm_up(void)
{
    DAT_EP_ATTR attr = ep_attr();
    DAT_EP_HANDLE server, client;

    side_open(&a, ia_names[0]);
    side_open(&b, ia_names[1]);
    OK(dat_ep_create(a.ia, a.pz, a.recv, a.req, a.conn, &attr, &server));
    OK(dat_ep_create(b.ia, b.pz, b.recv, b.req, b.conn, &attr, &client));
    join(&a, server, &b, client, 46999);
    /* The threads are recognised by their name. */
    CHECK(provider_threads() > 0);
    side_close(&a);
    side_close(&b);
}

static int run_tests(int argc, char **argv)
{
    struct holdings before;
    unsigned run = 0;

    if (argc < 3) {
        printf("usage: %s IA IA [TEST...]\n", argv[0]);
        return 2;
    }
    /* Line buffered, so that lines appear before a crash as well. */
    setvbuf(stdout, NULL, _IOLBF, 0);
    ia_names = argv + 1;
    warm_up();
    for (struct test *test = first_test; test; test = test->next) {
        unsigned failed = failures;
        int chosen = argc == 3;

        for (int i = 3; i < argc; i++)
            chosen |= strncmp(test->name, argv[i], strlen(argv[i])) == 0;
        if (!chosen)
            continue;
        before = holdings_at_rest();
        side_open(&a, argv[1]);
        /* What the first open of a process tries out is gone: these are of side_open. */
        CHECK(emu("count pd") <= 1 && emu("count mr") <= 1 && emu("count cq") <= 2 && emu("count qp") <= 0);
        side_open(&b, argv[2]);
        printf("%s ...\n", test->name);
        test->run();
        side_close(&a);
        side_close(&b);
        check_holdings(before);
        if (failures != failed)
            printf("%s FAILED\n", test->name);
        run++;
    }
    CHECK(run > 0);
    return finish();
}

#endif
