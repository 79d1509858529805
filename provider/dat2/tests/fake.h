/* What the test and its provider share. The test's program defines it, and the provider's library,
 * which libdat2 loads, refers to it. */
#ifndef FAKE_H
#define FAKE_H

#include <dat2/udat.h>
#include <dat2/dat_registry.h>
#include <dat2/dat_ib_extensions.h>
#include <pthread.h>
#include <stdint.h>

/* A number in place of a value of any type. */
#define N(x) ((uint64_t)(uintptr_t)(x))

enum { FAKE_IAS = 8 };

/* An IA of the provider, or any other object. */
struct object {
    const DAT_PROVIDER *table; /* first, as libdat2 has it */
    int closed;
};

extern struct fake {
    pthread_mutex_t lock;

    /* Calls of dat_provider_init and dat_provider_fini, with the last one's name and parameters. */
    unsigned inits, finis;
    char name[DAT_NAME_MAX_LENGTH], params[256];
    /* Whether dat_provider_init adds a table, and what that gave. */
    int silent;
    DAT_RETURN added;

    /* What calls give back, and those of IAs. */
    DAT_RETURN answer, open_answer, close_answer;
    DAT_EXTENSION extension;

    /* The last call. */
    char call[32];
    uint64_t arguments[12];
    unsigned count;
    unsigned opens;
} fake;

#endif
