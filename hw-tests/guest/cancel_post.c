/* A thread that was cancelled posts: it ends at its next cancellation point after the call, also if
 * the driver of the device posts by system calls. */
#include "guest.h"

#define POSTS 4

static struct side a, b;
static DAT_EP_HANDLE ea, eb;

static void *post(void *unused)
{
    DAT_DTO_COOKIE cookie = {.as_64 = 1};
    DAT_LMR_TRIPLET segment = piece(&b, 0, 8);

    /* The first posts of a thread take longer ways. */
    for (int n = 1; n < POSTS; n++)
        OK(dat_ep_post_send(eb, 1, &segment, cookie, DAT_COMPLETION_DEFAULT_FLAG));
    CHECK(pthread_cancel(pthread_self()) == 0);
    OK(dat_ep_post_send(eb, 1, &segment, cookie, DAT_COMPLETION_DEFAULT_FLAG));
    pthread_testcancel();
    complain("the thread goes on after the post");
    return unused;
}

int main(int argc, char **argv)
{
    DAT_DTO_COOKIE cookie = {.as_64 = 2};
    DAT_LMR_TRIPLET segment;
    pthread_t thread;
    void *end = NULL;

    (void)argc;
    alarm(PATIENCE);
    side_open(&a, argv[1]);
    side_open(&b, argv[1]);
    OK(dat_ep_create(a.ia, a.pz, a.recv, a.req, a.conn, NULL, &ea));
    OK(dat_ep_create(b.ia, b.pz, b.recv, b.req, b.conn, NULL, &eb));
    segment = piece(&a, 0, 8);
    for (int n = 0; n < POSTS; n++)
        OK(dat_ep_post_recv(ea, 1, &segment, cookie, DAT_COMPLETION_DEFAULT_FLAG));
    join(&a, ea, &b, eb, 7200 + getpid() % 100);
    CHECK(pthread_create(&thread, NULL, post, NULL) == 0);
    CHECK(pthread_join(thread, &end) == 0 && end == PTHREAD_CANCELED);
    for (int n = 0; n < POSTS; n++) {
        NEXT(b.req, DAT_DTO_COMPLETION_EVENT);
        NEXT(a.recv, DAT_DTO_COMPLETION_EVENT);
    }
    OK(dat_ia_close(b.ia, DAT_CLOSE_ABRUPT_FLAG));
    OK(dat_ia_close(a.ia, DAT_CLOSE_ABRUPT_FLAG));
    return finish();
}
