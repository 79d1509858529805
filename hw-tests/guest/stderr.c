/* Standard error is a full file system, a pipe that nobody reads any more, a pipe that is full, or
 * closed. A refused call neither ends nor blocks the program. */
#include "guest.h"

/* Makes this descriptor the standard error, and closes it. */
static void become_stderr(int fd)
{
    CHECK(fd >= 0 && dup2(fd, STDERR_FILENO) == STDERR_FILENO);
    close(fd);
}

static void stuff(int fd)
{
    char some[4096] = {0};

    CHECK(fcntl(fd, F_SETFL, O_NONBLOCK) == 0);
    while (write(fd, some, sizeof some) > 0)
        ;
    CHECK(errno == EAGAIN);
    CHECK(fcntl(fd, F_SETFL, 0) == 0);
}

int main(int argc, char **argv)
{
    struct side side;
    int ends[2];

    (void)argc;
    alarm(PATIENCE);
    become_stderr(open("/dev/full", O_WRONLY));
    be_refused(argv[2]);
    side_open(&side, argv[1]);
    be_refused(argv[2]);

    CHECK(pipe(ends) == 0);
    close(ends[0]);
    become_stderr(ends[1]);
    be_refused(argv[2]);

    CHECK(pipe(ends) == 0);
    stuff(ends[1]);
    become_stderr(ends[1]);
    be_refused(argv[2]);

    close(STDERR_FILENO);
    be_refused(argv[2]);
    OK(dat_ia_close(side.ia, DAT_CLOSE_ABRUPT_FLAG));
    return finish();
}
