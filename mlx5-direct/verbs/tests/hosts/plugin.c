/* A plug-in that uses libibverbs. */
#include "pair.h"

void run(void)
{
    exchange();
}
