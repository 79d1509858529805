/* What the hosts share: programs that use their process in ways which a library has to bear. Each
 * is called with the name of an IA and that of an IA whose device does not exist. */
#ifndef GUEST_H
#define GUEST_H

#include "../c/check.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

/* Whoever hangs is killed. */
#define PATIENCE 60

/* An open that is refused, of which the provider writes a line to its log. */
static void be_refused(char *nothing)
{
    DAT_EVD_HANDLE async = DAT_HANDLE_NULL;
    DAT_IA_HANDLE ia;
    DAT_RETURN ret = dat_ia_open(nothing, 8, &async, &ia);

    CHECK(ret != DAT_SUCCESS);
}

/* A child ends with status 0. */
static void expect_end(pid_t child)
{
    int status = -1;

    CHECK(child > 0);
    CHECK(waitpid(child, &status, 0) == child);
    checks++;
    if (status != 0)
        complain("a child ended with status %#x", status);
}

/* Waits until this thread of the process sleeps in the kernel. */
static void await_sleep(const _Atomic pid_t *thread)
{
    char path[64], line[512];

    while (*thread == 0)
        usleep(100);
    snprintf(path, sizeof path, "/proc/self/task/%d/stat", (int)*thread);
    for (;;) {
        FILE *stat = fopen(path, "r");
        const char *state = NULL;

        if (stat && fgets(line, sizeof line, stat))
            state = strrchr(line, ')');
        if (stat)
            fclose(stat);
        if (state && state[2] == 'S')
            return;
        usleep(100);
    }
}

#endif
