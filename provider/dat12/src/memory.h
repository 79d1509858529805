/* The LMR of a context. dat_rmr_bind of 2.0 takes the LMR's handle as well; that of 1.2 has only
 * the context. */
#ifndef DAT12_MEMORY_H
#define DAT12_MEMORY_H

#include "v2.h"

/* Call this after an IA was closed. */
void forget_lmrs_of(DAT_IA_HANDLE ia);

#endif
