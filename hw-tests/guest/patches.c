/* The program writes over functions of libc once the IA is open, as tools do that replace malloc. A
 * thread that is still starting would run into the functions meanwhile. Here, threads start late, and
 * allocations of others than this thread are counted. */
#include "guest.h"

#include <dlfcn.h>
#include <sys/prctl.h>

static _Atomic int is_open, others;
static _Thread_local int is_main;
static char name[17];

extern void *__libc_malloc(size_t);
extern void *__libc_calloc(size_t, size_t);
extern void *__libc_realloc(void *, size_t);
extern void __libc_free(void *);

static void count(void)
{
    if (is_open && !is_main) {
        others++;
        prctl(PR_GET_NAME, name);
    }
}

void *malloc(size_t size)
{
    count();
    return __libc_malloc(size);
}

void *calloc(size_t n, size_t size)
{
    count();
    return __libc_calloc(n, size);
}

void *realloc(void *old, size_t size)
{
    count();
    return __libc_realloc(old, size);
}

void free(void *old)
{
    count();
    __libc_free(old);
}

struct start {
    void *(*function)(void *);
    void *argument;
};

static void *late(void *argument)
{
    struct start start = *(struct start *)argument;

    __libc_free(argument);
    usleep(SHORT_TIME);
    return start.function(start.argument);
}

int pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*function)(void *), void *argument)
{
    int (*create)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *) =
        (int (*)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *))dlsym(RTLD_NEXT, "pthread_create");
    struct start *start = __libc_malloc(sizeof *start);

    *start = (struct start){function, argument};
    return create(thread, attr, late, start);
}

int main(int argc, char **argv)
{
    DAT_EVD_HANDLE async = DAT_HANDLE_NULL;
    DAT_IA_HANDLE first, ia;

    (void)argc;
    alarm(PATIENCE);
    is_main = 1;
    /* The first open of a process does more. */
    OK(dat_ia_open(argv[1], 8, &async, &first));
    async = DAT_HANDLE_NULL;
    OK(dat_ia_open(argv[1], 8, &async, &ia));
    is_open = 1;
    /* Long enough for a thread that starts late. Nothing says that none does. */
    usleep(3 * SHORT_TIME);
    is_open = 0;
    checks++;
    if (others != 0)
        complain("thread %s allocates or frees after the open has returned", name);
    OK(dat_ia_close(ia, DAT_CLOSE_ABRUPT_FLAG));
    OK(dat_ia_close(first, DAT_CLOSE_ABRUPT_FLAG));
    return finish();
}
