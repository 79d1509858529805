/* Random calls with random arguments to all 79 slots of the provider's table: NULL, stale, freed,
 * foreign and misaligned handles and pointers, garbage in structures, unknown flags and masks, huge
 * and negative counts; in between enough sense to get connections and bursts of traffic. Only what
 * no provider can survive is left out: pointers to memory that is not there, arguments that make
 * the device write over this program, waits without end.
 *
 *     fuzz IA IA [SECONDS [SEED [CALLS]]]
 *
 * ends after this time or this number of calls, whatever comes first.
 *
 * A life opens two IAs, makes calls in rounds, each of which ends with the IAs only, and closes the
 * IAs at last with objects on them.
 *
 * What has to hold: nothing crashes or hangs; a call on a handle that is not live says
 * INVALID_HANDLE; no other code than those of the call; all objects can be freed, and the IAs can
 * be closed; and nothing is left behind: descriptors, threads, objects of the device after some
 * rounds and after each life, and in a run of more than three minutes and 2 M calls mappings, and
 * memory if this is compiled with -DCOUNT_MEMORY. A failure says its seed, the last calls of each
 * thread and, if their number has changed, what the descriptors are. The same seed with the same
 * program makes the same calls (the device's events may come at other times). */
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

#include "fuzz/end.h"

static DAT_HANDLE raw(DAT_IA_HANDLE ia)
{
    DAT_IA_HANDLE pointer = NULL;

    OK(dats_get_ia_handle(ia, &pointer));
    return pointer;
}

/* Faults of the machine: lost messages, failed requests, no memory for new objects, a port that is
 * down, queues in error. */
static void some_fault(void)
{
    static const char *faults[] = {
        "fault drop*2", "fault rnr*3", "fault error=0x13", "fault error=0x14", "fault hold", "fault delay=300",
        "fault cmd.create_cq=12", "fault cmd.create_qp=12", "fault cmd.create_srq=12", "fault cmd.alloc_pd=12",
        "fault cmd.reg_mr=12", "fault cmd.modify_qp=12", "fault cmd.create_comp_channel=12", "fault cmd.alloc_mw=12",
        "fault cmd.resize_cq=12", "fault cmd.modify_srq=12", "fault cmd.create_ah=12", "fault cmd.resolve_addr=12",
        "fault cmd.resolve_route=12", "fault cmd.connect=12", "fault cmd.listen=12", "fault cmd.accept=12",
        "fault cmd.establish=12", "fault cmd.reject=12", "fault cmd.disconnect=22", "fault cmd.init_qp_attr=12",
        "no faults", "no faults", "no faults", "no faults", "port down", "port up", "srq error", "cq error",
    };

    emu(faults[rnd(sizeof faults / sizeof *faults)]);
}

/* One of so many steps is a burst. */
#define BURSTS 12

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
        if (rnd(60) == 0) {
            connect_two();
        } else if (rnd(BURSTS) == 0) {
            unsigned made = burst();

            count -= made < count ? made : count;
        } else {
            one_call();
        }
    }
}

/* Rounds of all lives. */
static unsigned rounds_made;

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

    OK(dat_pz_create(number, &pz));
    born(pz, PZ, ia);
    homes[which] = (struct home){ia, pz};
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

/* No fault is injected before all threads have these objects, nor after the first begins to free
 * them. */
static pthread_barrier_t together;

static void all_together(void)
{
    if (several)
        pthread_barrier_wait(&together);
}

struct player {
    pthread_t thread;
    unsigned index, length;
    uint64_t number;
    int faulty;
    /* Nothing is freed at the end, because the IAs are closed next. */
    int leaves;
};

/* The calls of one round. Everything that they leave is freed, but the IAs. */
static void play(struct player *player)
{
    DAT_HANDLE one = raw(a.ia), other = raw(b.ia);

    begin_on(a.ia, 0);
    begin_on(b.ia, 1);
    all_together();
    calls(player->length, player->faulty);
    all_together();
    emu("no faults");
    emu("port up");
    all_together();
    if (!player->leaves)
        free_all(one, other);
}

static void *play_in_thread(void *arg)
{
    struct player *player = arg;

    thread_number = player->index + 1;
    start_with(player->number);
    born(raw(a.ia), IA, raw(a.ia));
    born(raw(b.ia), IA, raw(b.ia));
    play(player);
    return NULL;
}

/* One round of a life, from one thread or from three. */
static void play_round(uint64_t number, unsigned length, int faulty, int leaves)
{
    struct player players[3];

    if (!several) {
        players[0] = (struct player){.length = length, .faulty = faulty, .leaves = leaves};
        play(&players[0]);
        return;
    }
    pthread_barrier_init(&together, NULL, 3);
    for (int i = 0; i < 3; i++) {
        players[i] = (struct player){.index = i, .length = length / 3, .number = number * 1000 + i, .faulty = faulty};
        players[i].leaves = leaves;
        CHECK(pthread_create(&players[i].thread, NULL, play_in_thread, &players[i]) == 0);
    }
    for (int i = 0; i < 3; i++)
        CHECK(pthread_join(players[i].thread, NULL) == 0);
    pthread_barrier_destroy(&together);
}

/* The number of rounds of a life, and of the calls of a round. In short lives IAs are closed while
 * connections are being made; in long rounds there are more objects, and more traffic. */
static unsigned some_rounds(void)
{
    return percent(30) ? 0 : 1 + rnd(12);
}

static unsigned some_length(void)
{
    return percent(30) ? 300 + rnd(1000) : 2000 + rnd(4000);
}

static unsigned long long sum(const unsigned *counts)
{
    unsigned long long all = 0;

    for (unsigned i = 0; i < 79; i++)
        all += counts[i];
    return all;
}

/* A run makes at least this many calls, however slow it is, as under valgrind. */
#define LEAST_CALLS 3000

/* The limits of this run. */
static long long end_ms;
static unsigned long long most_calls = ULLONG_MAX;

static int over(void)
{
    unsigned long long calls = sum(calls_made);

    return calls >= most_calls || (now_ms() >= end_ms && calls >= LEAST_CALLS);
}

/* Has this side make the EVD and the PZ that an IA gives to EPs without, and keeps: another side
 * connects to a service point whose EPs the provider makes. */
static void use_defaults(struct side *side, struct side *other)
{
    DAT_CONN_QUAL qual = 46998;
    DAT_PSP_HANDLE psp;
    DAT_EP_HANDLE ep;
    DAT_EVENT event;
    DAT_COUNT more;

    OK(dat_psp_create(side->ia, qual, side->cr, DAT_PSP_PROVIDER_FLAG, &psp));
    OK(dat_ep_create(other->ia, other->pz, other->recv, other->req, other->conn, NULL, &ep));
    OK(dat_ep_connect(ep, side->attr.ia_address_ptr, qual, LONG_TIME, 0, NULL, DAT_QOS_BEST_EFFORT,
                      DAT_CONNECT_DEFAULT_FLAG));
    event = NEXT(side->cr, DAT_CONNECTION_REQUEST_EVENT);
    OK(dat_cr_reject(event.event_data.cr_arrival_event_data.cr_handle, 0, NULL));
    OK(dat_evd_wait(other->conn, LONG_TIME, 1, &event, &more));
    OK(dat_ep_free(ep));
    OK(dat_psp_free(psp));
}

/* Has the IA keep what it keeps of freed objects for later ones. */
static void fill_spares(struct side *side)
{
    DAT_EVD_HANDLE evds[4];
    DAT_PZ_HANDLE pz;

    for (int i = 0; i < 4; i++)
        OK(dat_evd_create(side->ia, 4, DAT_HANDLE_NULL, DAT_EVD_DTO_FLAG, &evds[i]));
    OK(dat_pz_create(side->ia, &pz));
    for (int i = 0; i < 4; i++)
        OK(dat_evd_free(evds[i]));
    OK(dat_pz_free(pz));
}

/* The EVD of an IA for EPs without gets another CQ, of at least twice the size, when it has too few
 * entries. An EVD of the program would leave descriptors, too. */
#define MORE_CQS 16

/* One life: opens two IAs, makes calls in rounds, at last some calls whose objects go with the
 * IAs, and closes the IAs. */
static void life(uint64_t number)
{
    struct side *sides[2] = {&a, &b};
    struct holdings opened;
    int faulty = number % 3 == 2;
    unsigned rounds;

    start_with(number);
    for (int i = 0; i < 2; i++) {
        side_open(sides[i], ia_names[i]);
        table = *(const DAT_PROVIDER **)raw(sides[i]->ia);
        address = sides[i]->attr.ia_address_ptr;
        born(raw(sides[i]->ia), IA, raw(sides[i]->ia));
    }
    for (int i = 0; i < 2; i++)
        use_defaults(sides[i], sides[1 - i]);
    while (emu("count qp") > 0)
        poll(NULL, 0, 1);
    for (int i = 0; i < 2; i++)
        fill_spares(sides[i]);
    opened = holdings();
    rounds = some_rounds();
    for (unsigned i = 0; i < rounds && !over() && failures == 0 && count_live(IA) == 2; i++) {
        several = (number + i) % 4 == 3;
        alarm(300);
        play_round(number * 100 + i, some_length(), faulty, 0);
        /* Not after each round: the end of the last connections can take half a second. */
        if (count_live(IA) == 2 && (i + 1 == rounds || over() || percent(20)))
            check_holdings_but(opened, MORE_CQS);
        rounds_made++;
    }
    if (count_live(IA) == 2 && failures == 0) {
        several = number % 4 == 3;
        for (int i = 0; i < 2; i++)
            born(sides[i]->async, EVD, raw(sides[i]->ia));
        play_round(number * 100 + 99, 60 + rnd(240), faulty, 1);
    }
    close_others(raw(a.ia), raw(b.ia));
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

int main(int argc, char **argv)
{
    int seconds = argc > 3 ? atoi(argv[3]) : 10;
    long long start = now_ms();
    unsigned lives = 0, never = 0;
    struct holdings before;
    struct sigaction on = {.sa_handler = last_words};

    if (argc < 3) {
        printf("usage: %s IA IA [SECONDS [SEED [CALLS]]]\n", argv[0]);
        return 2;
    }
    setvbuf(stdout, NULL, _IOLBF, 0);
    ia_names = argv + 1;
    end_ms = start + seconds * 1000LL;
    if (argc > 5)
        most_calls = strtoull(argv[5], NULL, 0);
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
    } while (!over() && failures == 0);
    for (unsigned i = 0; i < 79; i++) {
        if (!calls_made[i] && sum(calls_made) > 200000)
            printf("slot %u was never called\n", i), never++;
    }
    CHECK(never == 0);
    printf("%u lives, %u rounds, %llu calls of which %llu succeeded, %u callbacks, last seed %llu\n", lives,
           rounds_made, sum(calls_made), sum(calls_done), called_back, (unsigned long long)seed);
    if (getenv("FUZZ_TABLE"))
        for (unsigned i = 0; i < 79; i++)
            printf("slot %2u: %7u calls, %7u succeeded\n", i, calls_made[i], calls_done[i]);
    return finish();
}
