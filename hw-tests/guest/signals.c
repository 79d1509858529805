/* The program takes its signals with sigwait(3): no thread of the provider takes one. */
#include "guest.h"

#include <dirent.h>

/* All threads but this one block all signals that can be blocked. */
static void check_masks(void)
{
    DIR *tasks = opendir("/proc/self/task");
    struct dirent *task;

    CHECK(tasks != NULL);
    while (tasks && (task = readdir(tasks)) != NULL) {
        char path[300], line[200];
        FILE *status;
        int found = 0;

        if (task->d_name[0] == '.' || atoi(task->d_name) == getpid())
            continue;
        snprintf(path, sizeof path, "/proc/self/task/%s/status", task->d_name);
        status = fopen(path, "r");
        while (status && fgets(line, sizeof line, status)) {
            unsigned long long blocked;

            if (sscanf(line, "SigBlk: %llx", &blocked) != 1)
                continue;
            found = 1;
            /* Without SIGKILL, SIGSTOP and the two that libc keeps for itself. */
            if ((blocked | 1ull << 8 | 1ull << 18 | 1ull << 31 | 1ull << 32) != ~0ull)
                complain("thread %s blocks only %llx", task->d_name, blocked);
        }
        CHECK(found);
        if (status)
            fclose(status);
    }
    if (tasks)
        closedir(tasks);
}

int main(int argc, char **argv)
{
    struct side side;
    sigset_t term, before, after;
    int got = 0;

    (void)argc;
    alarm(PATIENCE);
    sigemptyset(&term);
    sigaddset(&term, SIGUSR1);
    CHECK(pthread_sigmask(SIG_BLOCK, &term, NULL) == 0);
    CHECK(pthread_sigmask(SIG_BLOCK, NULL, &before) == 0);
    side_open(&side, argv[1]);
    CHECK(pthread_sigmask(SIG_BLOCK, NULL, &after) == 0);
    for (int n = 1; n <= SIGRTMAX; n++)
        CHECK(sigismember(&before, n) == sigismember(&after, n));
    if (!getenv("GUEST_OF_LIBDAPLOFA"))
        check_masks();

    sigemptyset(&term);
    sigaddset(&term, SIGTERM);
    CHECK(pthread_sigmask(SIG_BLOCK, &term, NULL) == 0);
    CHECK(kill(getpid(), SIGTERM) == 0);
    CHECK(sigwait(&term, &got) == 0 && got == SIGTERM);
    OK(dat_ia_close(side.ia, DAT_CLOSE_ABRUPT_FLAG));
    return finish();
}
