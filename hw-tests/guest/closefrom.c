/* The program closes all descriptors but the first three, then the IA. */
#include "guest.h"

int main(int argc, char **argv)
{
    struct side side;

    (void)argc;
    alarm(PATIENCE);
    side_open(&side, argv[1]);
    CHECK(syscall(SYS_close_range, 3u, ~0u, 0u) == 0);
    /* Whatever the answer. */
    dat_ia_close(side.ia, DAT_CLOSE_ABRUPT_FLAG);
    CHECK(1);
    return finish();
}
