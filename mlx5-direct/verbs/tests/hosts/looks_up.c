/* Looks up functions in ways that have nothing to do with the library: the answers are those of
 * the dynamic linker. Also looks up a function of libibverbs in each library that has one of that
 * name. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(what) \
    do { \
        if (!(what)) { \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #what); \
            exit(1); \
        } \
    } while (0)

/* This program's own functions of names that libc has, too. */
const char *gnu_get_libc_version(void)
{
    const char *(*next)(void) = (const char *(*)(void))dlsym(RTLD_NEXT, "gnu_get_libc_version");
    CHECK(next && next != gnu_get_libc_version);
    return next();
}

static const char *file(void *function)
{
    Dl_info info;
    return function && dladdr(function, &info) ? strrchr(info.dli_fname, '/') + 1 : "nothing";
}

int main(int argc, char **argv)
{
    CHECK(argc == 2 && gnu_get_libc_version()[0] == '2');
    CHECK(dlsym(RTLD_DEFAULT, "gnu_get_libc_version") == (void *)gnu_get_libc_version);
    void *libc = dlopen("libc.so.6", RTLD_NOW), *self = dlopen(NULL, RTLD_NOW);
    CHECK(libc && self);
    CHECK(dlsym(libc, "gnu_get_libc_version") != (void *)gnu_get_libc_version);
    CHECK(dlsym(self, "gnu_get_libc_version") == (void *)gnu_get_libc_version);
    CHECK(dlsym(libc, "getpid") == (void *)dlsym(RTLD_DEFAULT, "getpid"));
    CHECK(dlvsym(RTLD_NEXT, "memcpy", "GLIBC_99") == NULL && strstr(dlerror(), "GLIBC_99"));
    CHECK(dlsym(libc, "ibv_open_device") == NULL && strstr(dlerror(), "libc.so.6: undefined symbol: ibv_open_device"));
    CHECK(dlsym(libc, "no_such_function") == NULL && strstr(dlerror(), "no_such_function"));
    CHECK(dlerror() == NULL);

    /* A library that has a function of this name and wraps libibverbs. */
    void *wrapper = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL), *libibverbs = dlopen("libibverbs.so.1", RTLD_NOW);
    CHECK(wrapper && libibverbs);
    puts(file(dlsym(wrapper, "ibv_open_device")));
    puts(file(dlvsym(libibverbs, "ibv_open_device", "IBVERBS_1.0")));
    puts(file(dlvsym(libibverbs, "ibv_open_device", "IBVERBS_9.9")));
    puts(file(dlsym(libibverbs, "ibv_get_device_name")));
    puts(file(dlsym(libibverbs, "ibv_open_device")));
    puts(file(dlvsym(libibverbs, "ibv_open_device", "IBVERBS_1.1")));
    void *libmlx5 = dlopen("libmlx5.so.1", RTLD_NOW);
    puts(file(dlsym(libmlx5, "mlx5dv_init_obj")));
    puts(file(dlvsym(libmlx5, "mlx5dv_init_obj", "MLX5_1.0")));
    puts(file(dlsym(libmlx5, "mlx5dv_query_device")));
    return 0;
}
