/* Data that the test and its provider share. The test's program defines it, and the provider's
 * library, which libdat2 loads, refers to it. */
#ifndef FAKE_H
#define FAKE_H

#include <dat2/udat.h>
#include <dat2/dat_registry.h>
#include <dat2/dat_ib_extensions.h>
#include <pthread.h>
#include <stdint.h>

/* A value of any type as a number. */
#define N(x) ((uint64_t)(uintptr_t)(x))

enum { FAKE_IAS = 8 };

/* An IA of the provider, or any other object. */
struct object {
    const DAT_PROVIDER *table; /* first, as libdat2 has it */
    int closed;
};

extern struct fake {
    pthread_mutex_t lock;

    /* How often dat_provider_init and dat_provider_fini were called, and the name and the
     * parameters of the last call. */
    unsigned inits, finis;
    char name[DAT_NAME_MAX_LENGTH], params[256];
    /* Whether dat_provider_init registers a table, and the result of that. */
    int silent;
    /* Called at the beginning of dat_provider_init, if there is one. */
    void (*on_init)(void);
    DAT_RETURN added;

    /* The return values of all calls, and those of opening and closing an IA. */
    DAT_RETURN answer, open_answer, close_answer;
    DAT_EXTENSION extension;

    /* The last call of the provider. */
    char call[32];
    uint64_t arguments[12];
    unsigned count;
    unsigned opens;
} fake;

#endif
