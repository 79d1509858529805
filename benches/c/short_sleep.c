/*
 * Preloaded under dtest: sleep(3) takes 10 ms.
 *
 * dtest sleeps for a second before it disconnects. The host of a virtual machine takes idle pages
 * away meanwhile (METHOD.md), and the calls after the sleep would be charged with their return.
 */
#include <time.h>

unsigned sleep(unsigned seconds)
{
    const struct timespec time = { 0, seconds ? 10 * 1000 * 1000 : 0 };

    return nanosleep(&time, NULL) ? seconds : 0;
}
