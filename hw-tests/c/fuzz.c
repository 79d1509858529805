/* Random calls with random arguments to all 79 slots of the provider's table: NULL, stale, freed,
 * foreign and misaligned handles and pointers, garbage in structures, unknown flags and masks, huge
 * and negative counts; in between enough sense to get connections and traffic. Only what no
 * provider can survive is left out: pointers to memory that is not there, arguments that make the
 * device write over this program, waits without end.
 *
 *     fuzz IA IA [SECONDS [SEED [CALLS]]]
 *
 * ends after this time or this number of calls, whatever comes first.
 *
 * What has to hold: nothing crashes or hangs; a call on a handle that is not live says
 * INVALID_HANDLE; no other code than those of the call; the IAs can be closed; and nothing is left
 * behind: descriptors, threads, objects of the device after each life, and in a run of more than
 * three minutes and 2 M calls mappings, and memory if this is compiled with -DCOUNT_MEMORY. A
 * failure says its seed, the last calls of each thread and, if their number has changed, what the
 * descriptors are. The same seed with the same program makes the same calls (the device's events
 * may come at other times). */
#include "tests.h"
/* Not under valgrind, which has to see the provider's own allocations. */
#ifdef COUNT_MEMORY
#include "counted.h"
#else
static const long long counted_bytes = 0;
#endif
#include <dat2/dat_registry.h>
#include <dat2/dat_ib_extensions.h>
#include <limits.h>

extern DAT_RETURN dats_get_ia_handle(DAT_IA_HANDLE handle, DAT_IA_HANDLE *result);

#include "fuzz/slots.h"

static DAT_HANDLE raw(DAT_IA_HANDLE ia)
{
    DAT_IA_HANDLE pointer = NULL;

    OK(dats_get_ia_handle(ia, &pointer));
    return pointer;
}

/* Faults of the machine: lost messages, failed requests, no memory for new objects. */
static void some_fault(void)
{
    static const char *faults[] = {
        "fault drop*2", "fault rnr*3", "fault error=0x13", "fault error=0x14", "fault hold", "fault cmd.create_cq=12",
        "fault cmd.create_qp=12", "fault cmd.create_srq=12", "fault cmd.alloc_pd=12", "fault cmd.reg_mr=12",
        "fault cmd.modify_qp=12", "fault cmd.create_comp_channel=12", "no faults", "no faults",
    };

    emu(faults[rnd(14)]);
}

static void calls(unsigned count, int faulty)
{
    while (count-- > 0 && failures < 20) {
        struct object *of;

        current = NULL;
        noise = 0;
        of = some(IA, 1, 0);
        current = of ? of->handle : NULL;
        noise = (unsigned[]){0, 0, 1, 3, 10, 30}[rnd(6)];
        if (rnd(500) == 0)
            shuffle_garbage();
        if (faulty && rnd(30) == 0)
            some_fault();
        if (rnd(60) == 0)
            connect_two();
        else
            one_call();
    }
}

static void start_with(uint64_t number)
{
    state = number * 2 + 1;
    for (unsigned i = 0; i < 10; i++)
        next();
    shuffle_garbage();
    known = 0;
}

/* Creates a PZ, EVDs of every kind and the arena on this IA. */
static void begin_on(DAT_IA_HANDLE number, unsigned which)
{
    static const unsigned flags[] = {DAT_EVD_CR_FLAG, DAT_EVD_CONNECTION_FLAG, DAT_EVD_DTO_FLAG, DAT_EVD_DTO_FLAG};
    DAT_HANDLE ia = raw(number);
    DAT_REGION_DESCRIPTION region = {.for_va = arena};
    DAT_PZ_HANDLE pz;

    born(ia, IA, ia);
    OK(dat_pz_create(number, &pz));
    born(pz, PZ, ia);
    for (unsigned i = 0; i < 4; i++) {
        DAT_EVD_HANDLE evd;

        OK(dat_evd_create(number, 32, DAT_HANDLE_NULL, flags[i], &evd));
        born(evd, EVD, ia);
        objects[known - 1].flags = flags[i];
    }
    for (unsigned i = which; i < 64; i += 2) {
        DAT_LMR_HANDLE lmr;

        if (i >= 8) {
            contexts[i] = contexts[which];
            continue;
        }
        OK(dat_lmr_create(number, DAT_MEM_TYPE_VIRTUAL, region, sizeof arena, pz, DAT_MEM_PRIV_ALL_FLAG, 0, &lmr,
                          &contexts[i].lmr, &contexts[i].rmr, NULL, NULL));
        contexts[i].ia = ia;
        born(lmr, LMR, ia);
    }
}

/* No fault is injected before all threads have these objects. */
static pthread_barrier_t ready;

struct player {
    pthread_t thread;
    unsigned index, length;
    uint64_t number;
    int faulty;
};

static void *play(void *arg)
{
    struct player *player = arg;

    thread_number = player->index + 1;
    start_with(player->number);
    begin_on(a.ia, 0);
    begin_on(b.ia, 1);
    pthread_barrier_wait(&ready);
    calls(player->length, player->faulty);
    return NULL;
}

/* The number of calls of a life. In the many short lives IAs are closed while connections are being
 * made; in long ones there are more objects, and more handles of dead objects. */
static unsigned some_length(void)
{
    unsigned p = rnd(16);

    return p == 0 ? 6000 : p < 3 ? 3000 : 60 + rnd(240);
}

/* One life: opens two IAs, makes calls for a while from one thread or from three, and ends
 * everything. */
static void life(uint64_t number)
{
    struct side *sides[2] = {&a, &b};
    struct player players[3];
    int faulty = number % 3 == 2;

    unsigned length;

    several = number % 4 == 3;
    start_with(number);
    length = some_length();
    for (int i = 0; i < 2; i++) {
        side_open(sides[i], ia_names[i]);
        table = *(const DAT_PROVIDER **)raw(sides[i]->ia);
        address = sides[i]->attr.ia_address_ptr;
        begin_on(sides[i]->ia, i);
        born(sides[i]->async, EVD, raw(sides[i]->ia));
    }
    pthread_barrier_init(&ready, NULL, 3);
    for (int i = 0; several && i < 3; i++) {
        players[i] = (struct player){.index = i, .length = length / 3, .number = number * 1000 + i, .faulty = faulty};
        CHECK(pthread_create(&players[i].thread, NULL, play, &players[i]) == 0);
    }
    if (several)
        for (int i = 0; i < 3; i++)
            CHECK(pthread_join(players[i].thread, NULL) == 0);
    else
        calls(length, faulty);
    emu("no faults");
    /* IAs that the fuzzing opened through the table are closed through the table, and a and b
     * through libdat2. */
    for (unsigned i = 0; i < known; i++)
        if (objects[i].live && objects[i].kind == IA && objects[i].handle != raw(a.ia) && objects[i].handle != raw(b.ia)) {
            now_calling = "ia_close at the end";
            OK(table->ia_close_func(objects[i].handle, DAT_CLOSE_ABRUPT_FLAG));
        }
    for (int i = 0; i < 2; i++) {
        int live = find(raw(sides[i]->ia), IA) != NULL;

        now_calling = "dat_ia_close";
        /* An IA that the fuzzing closed without libdat2 stays in libdat2's list of IAs. */
        EXPECT(live ? DAT_SUCCESS : HANDLE(IA), dat_ia_close(sides[i]->ia, DAT_CLOSE_ABRUPT_FLAG));
        free(sides[i]->memory);
        memset(sides[i], 0, sizeof *sides[i]);
    }
}

static long mappings(void)
{
    FILE *file = fopen("/proc/self/maps", "r");
    long lines = 0;

    for (int c; file && (c = getc(file)) != EOF;)
        lines += c == '\n';
    if (file)
        fclose(file);
    return lines;
}

/* Memory and mappings while no IA is open, life after life. Both may go up and down, and grow at
 * first: the provider keeps dead handles (98,304 at most) and answers to datagram peers (for 70 s,
 * 16,384 at most). So the smallest value of each block of lives is compared with that of the first
 * block after this growth. */
#define CALLS_OF_A_BLOCK 300000
#define SETTLED_CALLS 1500000
#define SETTLED_MS 150000
/* For those answers, and the EPs' memory that they hold. */
#define MORE_BYTES (24LL << 20)
#define MORE_MAPPINGS 64

static struct level {
    long long bytes;
    long mappings;
} settled, least;

static unsigned long long sum(const unsigned *counts)
{
    unsigned long long all = 0;

    for (unsigned i = 0; i < 79; i++)
        all += counts[i];
    return all;
}

static void check_memory(unsigned lives, long long since)
{
    static unsigned long long block_end;
    unsigned long long calls = sum(calls_made);
    struct level now = {counted_bytes, mappings()};

    if (calls < SETTLED_CALLS || now_ms() - since < SETTLED_MS)
        return;
    if (block_end == 0)
        block_end = calls + CALLS_OF_A_BLOCK, least = now;
    least.bytes = now.bytes < least.bytes ? now.bytes : least.bytes;
    least.mappings = now.mappings < least.mappings ? now.mappings : least.mappings;
    if (calls < block_end)
        return;
    if (settled.mappings == 0)
        settled = least;
    printf("after %u lives, %llu calls: at least %lld bytes and %ld mappings in the last %d calls; %lld and %ld at first; "
           "last seed %llu\n",
           lives, calls, least.bytes, least.mappings, CALLS_OF_A_BLOCK, settled.bytes, settled.mappings,
           (unsigned long long)seed);
    CHECK(least.bytes <= settled.bytes + MORE_BYTES);
    CHECK(least.mappings <= settled.mappings + MORE_MAPPINGS);
    block_end = 0;
}

/* A run makes at least this many calls, however slow it is, as under valgrind. */
#define LEAST_CALLS 3000

int main(int argc, char **argv)
{
    int seconds = argc > 3 ? atoi(argv[3]) : 10;
    unsigned long long most = argc > 5 ? strtoull(argv[5], NULL, 0) : ULLONG_MAX;
    long long start = now_ms(), end = start + seconds * 1000LL;
    unsigned lives = 0, never = 0;
    struct holdings before;
    struct sigaction on = {.sa_handler = last_words};

    if (argc < 3) {
        printf("usage: %s IA IA [SECONDS [SEED [CALLS]]]\n", argv[0]);
        return 2;
    }
    setvbuf(stdout, NULL, _IOLBF, 0);
    ia_names = argv + 1;
    for (int i = 0; i < 4; i++)
        sigaction((int[]){SIGSEGV, SIGBUS, SIGABRT, SIGALRM}[i], &on, NULL);
    seed = argc > 4 ? strtoull(argv[4], NULL, 0) : (uint64_t)time(NULL);
    warm_up();
    before = holdings_at_rest();
    do {
        alarm(300);
        life(++seed);
        check_holdings(before);
        lives++;
        check_memory(lives, start);
        if (failures > 0) {
            printf("failed in the life with seed %llu (%s, %s)\n", (unsigned long long)seed,
                   several ? "three threads" : "one thread", seed % 3 == 2 ? "with faults" : "without faults");
            print_last_calls();
        }
    } while ((now_ms() < end || sum(calls_made) < LEAST_CALLS) && sum(calls_made) < most && failures == 0);
    for (unsigned i = 0; i < 79; i++) {
        if (!calls_made[i] && sum(calls_made) > 20000)
            printf("slot %u was never called\n", i), never++;
    }
    CHECK(never == 0);
    printf("%u lives, %llu calls of which %llu succeeded, %u callbacks, last seed %llu\n", lives, sum(calls_made),
           sum(calls_done), called_back, (unsigned long long)seed);
    if (getenv("FUZZ_TABLE"))
        for (unsigned i = 0; i < 79; i++)
            printf("slot %2u: %7u calls, %7u succeeded\n", i, calls_made[i], calls_done[i]);
    return finish();
}
