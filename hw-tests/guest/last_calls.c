/* A thread forks and calls DAT in the destructor of a key, and the process does so in an exit
 * handler. Both have forked before, and the calls write to the log. */
#include "guest.h"

static struct side side;
static char *nothing;
static pthread_key_t key;

static void fork_and_call(void)
{
    pid_t child = fork();

    if (child == 0)
        _exit(0);
    expect_end(child);
    be_refused(nothing);
    EXPECT(HANDLE(EVD_REQUEST), dat_evd_free(DAT_HANDLE_NULL));
}

static void at_end_of_thread(void *unused)
{
    DAT_EVD_HANDLE evd;

    (void)unused;
    fork_and_call();
    OK(dat_evd_create(side.ia, 8, DAT_HANDLE_NULL, DAT_EVD_DTO_FLAG, &evd));
    OK(dat_evd_free(evd));
}

static void *thread(void *unused)
{
    fork_and_call();
    CHECK(pthread_setspecific(key, &key) == 0);
    return unused;
}

/* `finish` cannot give the status any more. */
static void at_exit(void)
{
    fork_and_call();
    OK(dat_ia_close(side.ia, DAT_CLOSE_ABRUPT_FLAG));
    fflush(stdout);
    _exit(finish() != 0 || fflush(stdout) != 0);
}

int main(int argc, char **argv)
{
    pthread_t other;

    (void)argc;
    alarm(PATIENCE);
    nothing = argv[2];
    side_open(&side, argv[1]);
    CHECK(pthread_key_create(&key, at_end_of_thread) == 0);
    fork_and_call();
    CHECK(pthread_create(&other, NULL, thread, NULL) == 0);
    CHECK(pthread_join(other, NULL) == 0);
    atexit(at_exit);
    return 1;
}
