/* A thread is cancelled while it waits on an EVD, and on a CNO: it ends at its next cancellation
 * point after the wait. */
#include "guest.h"

static DAT_EVD_HANDLE evd;
static DAT_CNO_HANDLE cno;
static _Atomic pid_t waiter;

static void *wait_on_evd(void *unused)
{
    DAT_EVENT event;
    DAT_COUNT more;

    (void)unused;
    waiter = (pid_t)syscall(SYS_gettid);
    OK(dat_evd_wait(evd, DAT_TIMEOUT_INFINITE, 1, &event, &more));
    pthread_testcancel();
    complain("the thread goes on after dat_evd_wait");
    return NULL;
}

static void *wait_on_cno(void *unused)
{
    DAT_EVD_HANDLE from;

    (void)unused;
    waiter = (pid_t)syscall(SYS_gettid);
    OK(dat_cno_wait(cno, DAT_TIMEOUT_INFINITE, &from));
    pthread_testcancel();
    complain("the thread goes on after dat_cno_wait");
    return NULL;
}

/* Starts the thread, cancels it when it sleeps, and brings the event that ends its wait. */
static void cancel(void *(*waits)(void *))
{
    DAT_EVENT event;
    pthread_t thread;
    void *end = NULL;

    waiter = 0;
    CHECK(pthread_create(&thread, NULL, waits, NULL) == 0);
    await_sleep(&waiter);
    CHECK(pthread_cancel(thread) == 0);
    memset(&event, 0, sizeof event);
    event.evd_handle = evd;
    event.event_number = DAT_SOFTWARE_EVENT;
    OK(dat_evd_post_se(evd, &event));
    CHECK(pthread_join(thread, &end) == 0);
    CHECK(end == PTHREAD_CANCELED);
}

int main(int argc, char **argv)
{
    DAT_OS_WAIT_PROXY_AGENT no_agent = DAT_OS_WAIT_PROXY_AGENT_NULL;
    struct side side;
    DAT_EVENT event;

    (void)argc;
    alarm(PATIENCE);
    side_open(&side, argv[1]);
    OK(dat_evd_create(side.ia, 8, DAT_HANDLE_NULL, DAT_EVD_SOFTWARE_FLAG, &evd));
    cancel(wait_on_evd);
    while (dat_evd_dequeue(evd, &event) == DAT_SUCCESS)
        ;
    OK(dat_evd_free(evd));

    OK(dat_cno_create(side.ia, no_agent, &cno));
    OK(dat_evd_create(side.ia, 8, cno, DAT_EVD_SOFTWARE_FLAG, &evd));
    cancel(wait_on_cno);
    OK(dat_evd_free(evd));
    OK(dat_cno_free(cno));
    OK(dat_ia_close(side.ia, DAT_CLOSE_ABRUPT_FLAG));
    return finish();
}
