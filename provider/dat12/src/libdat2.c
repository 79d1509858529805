/* libdat2, looked up when it is first needed.
 *
 * Not linked: its functions have the names of ours. It is made global, as if the program were
 * linked with it, because some providers look there for the registry's functions. Ours carry the
 * version DAT_1.2, so that neither libdat2 nor programs linked with it, which ask for DAT_2.0, ever
 * get them. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "shim.h"

#define LIBDAT2 "libdat2.so.2"

struct v2_functions v2;
atomic_bool v2_loaded;
atomic_int max_segments;

static bool look_up(void *library)
{
    static const struct {
        const char *name;
        size_t offset;
    } functions[] = {
#define V2_ENTRY(name, parameters) {#name, offsetof(struct v2_functions, name)},
        V2_FUNCTIONS(V2_ENTRY)
#undef V2_ENTRY
    };

    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
        void *address = dlsym(library, functions[i].name);

        if (address == NULL) {
            fprintf(stderr, "libdat.so.1: %s has no %s\n", LIBDAT2, functions[i].name);
            return false;
        }
        /* Copied by bytes, because ISO C has no conversion from an object pointer to a function
         * pointer; POSIX defines the result for dlsym. */
        memcpy((char *)&v2 + functions[i].offset, &address, sizeof address);
    }
    return true;
}

static void load(void)
{
    void *library = dlopen(LIBDAT2, RTLD_NOW | RTLD_GLOBAL | RTLD_NODELETE);

    if (library == NULL) {
        fprintf(stderr, "libdat.so.1: %s; install libdat2 (Debian: libdapl2)\n", dlerror());
        return;
    }
    if (look_up(library))
        atomic_store_explicit(&v2_loaded, true, memory_order_release);
}

bool v2_load(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    pthread_once(&once, load);
    return atomic_load_explicit(&v2_loaded, memory_order_acquire);
}
