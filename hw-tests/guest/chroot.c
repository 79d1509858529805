/* The program has another root, without devices. The reason that the log gives for a refused open is
 * none that "ulimit -n" cures. */
#include "guest.h"

#include <sys/mman.h>

int main(int argc, char **argv)
{
    char root[] = "/tmp/doorbell-guest-XXXXXX", said[4096] = "";
    struct side side;
    int log;

    (void)argc;
    alarm(PATIENCE);
    log = memfd_create("log", 0);
    CHECK(log >= 0 && dup2(log, STDERR_FILENO) == STDERR_FILENO);
    side_open(&side, argv[1]);
    CHECK(mkdtemp(root) != NULL && chdir(root) == 0 && rmdir(root) == 0 && chroot(".") == 0);
    be_refused(argv[2]);
    CHECK(pread(log, said, sizeof said - 1, 0) > 0);
    checks++;
    if (strstr(said, "ulimit") != NULL)
        complain("%s", said);
    OK(dat_ia_close(side.ia, DAT_CLOSE_ABRUPT_FLAG));
    return finish();
}
