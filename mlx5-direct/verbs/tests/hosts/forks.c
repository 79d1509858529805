/* Forks while another thread is in the call that creates a QP. The child opens the device and uses
 * it. */
#define _GNU_SOURCE
#include "pair.h"

#include <dlfcn.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdarg.h>
#include <sys/wait.h>
#include <unistd.h>

static __thread int stops;
static sem_t inside, go_on;

/* libibverbs calls this one. A thread that stops waits here, in the middle of a call. */
int ioctl(int fd, unsigned long request, ...)
{
    static int (*next)(int, unsigned long, ...);
    va_list arguments;
    va_start(arguments, request);
    void *argument = va_arg(arguments, void *);
    va_end(arguments);
    if (!next)
        next = (int (*)(int, unsigned long, ...))dlsym(RTLD_NEXT, "ioctl");
    if (stops) {
        stops = 0;
        sem_post(&inside);
        sem_wait(&go_on);
    }
    return next(fd, request, argument);
}

static struct ibv_pd *pd;
static struct ibv_cq *cq;

static void create_and_destroy(void)
{
    struct ibv_qp_init_attr attr = {
        .send_cq = cq,
        .recv_cq = cq,
        .cap = {.max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1},
        .qp_type = IBV_QPT_RC,
    };
    struct ibv_qp *qp = ibv_create_qp(pd, &attr);
    CHECK(qp && !ibv_destroy_qp(qp));
}

static void *once(void *unused)
{
    stops = 1;
    create_and_destroy();
    return unused;
}

/* A child that is stuck is killed by its alarm. */
static int child_ends(void)
{
    pid_t child = fork();
    CHECK(child >= 0);
    if (!child) {
        alarm(10);
        exchange();
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child);
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

int main(void)
{
    int devices;
    struct ibv_device **list = ibv_get_device_list(&devices);
    CHECK(list && devices > 0);
    struct ibv_context *context = ibv_open_device(list[0]);
    CHECK(context);
    pd = ibv_alloc_pd(context);
    cq = ibv_create_cq(context, 16, NULL, NULL, 0);
    CHECK(pd && cq && !sem_init(&inside, 0, 0) && !sem_init(&go_on, 0, 0));
    pthread_t thread;
    CHECK(!pthread_create(&thread, NULL, once, NULL));
    sem_wait(&inside);
    CHECK(child_ends());
    sem_post(&go_on);
    CHECK(!pthread_join(thread, NULL));
    puts("fine");
    return 0;
}
