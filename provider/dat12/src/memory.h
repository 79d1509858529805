/* Which LMR has a context: 2.0's dat_rmr_bind takes the handle as well, and 1.2's has only the
 * context. */
#ifndef DAT12_MEMORY_H
#define DAT12_MEMORY_H

#include "v2.h"

/* After an IA was closed. */
void forget_lmrs_of(DAT_IA_HANDLE ia);

#endif
