/* Random numbers, and what the fuzzer knows about the handles that it has seen. */
#ifndef FUZZ_OBJECTS_H
#define FUZZ_OBJECTS_H

static uint64_t seed;
/* Each thread has its own objects and its own memory. The threads share the IAs. */
static __thread uint64_t state;
static __thread const char *now_calling = "nothing";
static __thread unsigned thread_number;

/* The last calls of each thread: a ring that a failure prints. */
#define LAST 64
static struct call {
    const char *name;
    unsigned code;
    int live;
    unsigned long long when;
} last_calls[4][LAST];
static unsigned calls_noted[4];

static uint64_t next(void)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state * UINT64_C(0x2545F4914F6CDD1D);
}

/* A number from 0 to n - 1. */
static unsigned rnd(unsigned n)
{
    return (unsigned)((next() >> 32) % n);
}

static int percent(unsigned p)
{
    return rnd(100) < p;
}

static void note_call(unsigned code, int live)
{
    static unsigned long long moment;
    struct call *call = &last_calls[thread_number][calls_noted[thread_number]++ % LAST];

    *call = (struct call){now_calling, code, live, __atomic_add_fetch(&moment, 1, __ATOMIC_RELAXED)};
}

static void print_last_calls(void)
{
    for (unsigned thread = 0; thread < 4; thread++)
        for (unsigned i = calls_noted[thread] > LAST ? calls_noted[thread] - LAST : 0; i < calls_noted[thread]; i++) {
            const struct call *call = &last_calls[thread][i % LAST];

            printf("thread %u, call %llu: %s of a %s handle gave %#010x\n", thread, call->when, call->name,
                   call->live ? "live" : "dead", call->code);
        }
}

static void last_words(int sig)
{
    char text[200];
    int n = snprintf(text, sizeof text, "fuzz: %s in %s, seed %llu\n", sig == SIGALRM ? "hangs" : strsignal(sig),
                     now_calling, (unsigned long long)seed);

    if (write(1, text, n) < 0)
        _exit(2);
    signal(SIGABRT, SIG_DFL);
    abort();
}

/* What the fuzzer knows about the handles that it has seen. */
enum kind { IA, PZ, LMR, EVD, EP, SRQ, PSP, RSP, CR, CNO, RMR, CSP, KINDS };

static const DAT_RETURN subtype[KINDS] = {
    DAT_INVALID_HANDLE_IA,  DAT_INVALID_HANDLE_PZ,  DAT_INVALID_HANDLE_LMR, DAT_INVALID_HANDLE_EVD_REQUEST,
    DAT_INVALID_HANDLE_EP,  DAT_INVALID_HANDLE_SRQ, DAT_INVALID_HANDLE_PSP, DAT_INVALID_HANDLE_RSP,
    DAT_INVALID_HANDLE_CR,  DAT_INVALID_HANDLE_CNO, DAT_INVALID_HANDLE_RMR, DAT_INVALID_HANDLE_CSP,
};

struct object {
    DAT_HANDLE handle, ia;
    enum kind kind;
    int live;
    /* The flags of an EVD. */
    unsigned flags;
};

#define MOST 4096
static __thread struct object objects[MOST];
static __thread unsigned known;
/* The IA of the present call, and how much of the call is nonsense, in percent. */
static __thread DAT_HANDLE current;
static __thread unsigned noise;

static int nonsense(void)
{
    return percent(noise);
}

static struct object *find(DAT_HANDLE handle, enum kind kind)
{
    for (unsigned i = known; i-- > 0;)
        if (objects[i].live && objects[i].handle == handle && objects[i].kind == kind)
            return &objects[i];
    return NULL;
}

static unsigned count_live(enum kind kind)
{
    unsigned n = 0;

    for (unsigned i = 0; i < known; i++)
        n += objects[i].live && objects[i].kind == kind;
    return n;
}

/* An object of this kind, if there is one: preferably of the current IA and, among EVDs, with all
 * these flags. */
static struct object *some(enum kind kind, int live, unsigned flags)
{
    unsigned n = 0, m = 0;
    struct object *found = NULL, *fitting = NULL;

    for (unsigned i = 0; i < known; i++) {
        if (objects[i].kind != kind || objects[i].live != live)
            continue;
        if (rnd(++n) == 0)
            found = &objects[i];
        if (objects[i].ia == current && (objects[i].flags & flags) == flags && rnd(++m) == 0)
            fitting = &objects[i];
    }
    return fitting && !nonsense() ? fitting : found;
}

static void born(DAT_HANDLE handle, enum kind kind, DAT_HANDLE ia)
{
    if (known < MOST && handle)
        objects[known++] = (struct object){handle, ia, kind, 1, 0};
}

/* Forgets most dead objects, so that the list stays short. The others stay for calls on handles of
 * dead objects. */
#define DEAD 100
static void forget_dead(void)
{
    unsigned dead = 0, kept = 0;

    for (unsigned i = 0; i < known; i++)
        dead += !objects[i].live;
    for (unsigned i = 0; i < known; i++)
        if (objects[i].live || dead-- <= DEAD)
            objects[kept++] = objects[i];
    known = kept;
}

static void died(DAT_HANDLE handle, enum kind kind)
{
    struct object *object = find(handle, kind);

    if (object)
        object->live = 0;
    if (kind == IA)
        for (unsigned i = 0; i < known; i++)
            if (objects[i].ia == handle)
                objects[i].live = 0;
}

#endif
