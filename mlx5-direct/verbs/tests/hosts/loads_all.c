/* Gets all functions of libibverbs by dlsym(3) or dlvsym(3), as NCCL does. */
#define _GNU_SOURCE
#define BY_POINTERS
#include "pair.h"

#include <dlfcn.h>

int main(int argc, char **argv)
{
    void *libibverbs = dlopen("libibverbs.so.1", RTLD_NOW | RTLD_LOCAL);
    CHECK(argc == 2 && libibverbs);
#define LOAD(name) \
    p_##name = argv[1][2] == 'v' ? dlvsym(libibverbs, #name, "IBVERBS_1.1") : dlsym(libibverbs, #name); \
    CHECK(p_##name);
    FUNCTIONS(LOAD)
    exchange();
    puts("fine");
    return 0;
}
