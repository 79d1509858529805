/* Stands for UCX's libuct: workers that call the functions registered with them. */
#include <stdlib.h>

enum { OK = 0, NO_MEMORY = -4, NONE = -1, FUNCTIONS = 4 };

typedef unsigned (*callback)(void *);

struct worker {
    callback function[FUNCTIONS];
    void *argument[FUNCTIONS];
};

/* Functions that were registered with the worker destroyed last. */
int remaining = -1;

signed char uct_worker_create(void *async, int thread_mode, struct worker **worker) {
    (void)async, (void)thread_mode;
    *worker = calloc(1, sizeof **worker);
    return *worker ? OK : NO_MEMORY;
}

void uct_worker_destroy(struct worker *worker) {
    remaining = 0;
    for (int i = 0; i < FUNCTIONS; i++) remaining += worker->function[i] != NULL;
    free(worker);
}

void uct_worker_progress_register_safe(struct worker *worker, callback function, void *argument,
                                       unsigned flags, int *id) {
    (void)flags;
    for (int i = 0; i < FUNCTIONS && *id == NONE; i++) {
        if (worker->function[i]) continue;
        worker->function[i] = function;
        worker->argument[i] = argument;
        *id = i;
    }
}

void uct_worker_progress_unregister_safe(struct worker *worker, int *id) {
    if (*id == NONE) return;
    worker->function[*id] = NULL;
    *id = NONE;
}

/* What a program of UCX calls all the time. */
unsigned progress(struct worker *worker) {
    unsigned count = 0;
    for (int i = 0; i < FUNCTIONS; i++)
        if (worker->function[i]) count += worker->function[i](worker->argument[i]);
    return count;
}
