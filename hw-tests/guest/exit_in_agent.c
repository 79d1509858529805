/* Agents call pthread_exit(3), on a thread of the program and on the provider's: that ends the agent
 * and nothing else. */
#include "guest.h"

#include <semaphore.h>

static sem_t called;

static void agent(DAT_PVOID instance, DAT_EVD_HANDLE evd)
{
    CHECK(instance == &called && evd != DAT_HANDLE_NULL);
    sem_post(&called);
    pthread_exit(NULL);
}

static void *post(void *evd)
{
    DAT_EVENT event;

    memset(&event, 0, sizeof event);
    event.evd_handle = evd;
    event.event_number = DAT_SOFTWARE_EVENT;
    OK(dat_evd_post_se(evd, &event));
    OK(dat_evd_post_se(evd, &event));
    return &called;
}

int main(int argc, char **argv)
{
    DAT_OS_WAIT_PROXY_AGENT ours = {&called, agent};
    DAT_EVD_HANDLE software, connect;
    DAT_CNO_HANDLE cno;
    pthread_t thread;
    struct side side;
    void *end = NULL;

    (void)argc;
    alarm(PATIENCE);
    sem_init(&called, 0, 0);
    side_open(&side, argv[1]);
    OK(dat_cno_create(side.ia, ours, &cno));
    OK(dat_evd_create(side.ia, 8, cno, DAT_EVD_SOFTWARE_FLAG, &software));
    CHECK(pthread_create(&thread, NULL, post, software) == 0);
    CHECK(pthread_join(thread, &end) == 0 && end == &called);
    sem_wait(&called);
    sem_wait(&called);

    /* A refused connection is an event of the provider's thread. */
    OK(dat_evd_create(side.ia, 8, cno, DAT_EVD_CONNECTION_FLAG, &connect));
    for (int n = 0; n < 2; n++) {
        DAT_EP_HANDLE ep;

        OK(dat_ep_create(side.ia, side.pz, side.recv, side.req, connect, NULL, &ep));
        OK(dat_ep_connect(ep, side.attr.ia_address_ptr, 7300 + getpid() % 100, LONG_TIME, 0, NULL,
                          DAT_QOS_BEST_EFFORT, DAT_CONNECT_DEFAULT_FLAG));
        sem_wait(&called);
        NEXT(connect, DAT_CONNECTION_EVENT_NON_PEER_REJECTED);
        OK(dat_ep_free(ep));
    }
    OK(dat_ia_close(side.ia, DAT_CLOSE_ABRUPT_FLAG));
    return finish();
}
