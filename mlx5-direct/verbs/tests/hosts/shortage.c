/* Fails one allocation of the library: the one with the number of the first argument. Says whether
 * there was one. */
#define _GNU_SOURCE
#include "pair.h"

#include <dlfcn.h>
#include <errno.h>

void *__libc_malloc(size_t bytes);
void *__libc_calloc(size_t count, size_t bytes);
void *__libc_realloc(void *before, size_t bytes);
void *__libc_memalign(size_t alignment, size_t bytes);

static long fails;

/* Whether the allocation that this address makes has to fail. */
static int must_fail(void *caller)
{
    Dl_info info;
    if (fails <= 0 || !dladdr(caller, &info) || !strstr(info.dli_fname, "doorbell"))
        return 0;
    return --fails == 0;
}

#define CALLER __builtin_return_address(0)

void *malloc(size_t bytes)
{
    return must_fail(CALLER) ? NULL : __libc_malloc(bytes);
}

void *calloc(size_t count, size_t bytes)
{
    return must_fail(CALLER) ? NULL : __libc_calloc(count, bytes);
}

void *realloc(void *before, size_t bytes)
{
    return must_fail(CALLER) ? NULL : __libc_realloc(before, bytes);
}

int posix_memalign(void **memory, size_t alignment, size_t bytes)
{
    *memory = must_fail(CALLER) ? NULL : __libc_memalign(alignment, bytes);
    return *memory ? 0 : ENOMEM;
}

int main(int argc, char **argv)
{
    CHECK(argc == 2);
    fails = atol(argv[1]);
    exchange();
    puts(fails ? "all" : "one");
    return 0;
}
