/* What the files of libdat.so.1 share.
 *
 * Every 1.2 function checks and translates what it is given, calls its namesake in libdat2, and
 * translates what comes back. Handles, cookies and addresses go through as they are. Values that
 * 1.2 does not define are refused here, with INVALID_PARAMETER and the number of the argument; what
 * libdat2 checks in the same way (NULL pointers and handles among it) is left to it. */
#ifndef DAT12_SHIM_H
#define DAT12_SHIM_H

#include <stdatomic.h>
#include <stdbool.h>

#include "v2.h"

/* The functions of libdat2. Written once, before `v2_loaded` is set. */
extern struct v2_functions v2;
extern atomic_bool v2_loaded;

/* Loads libdat2. If this fails, returns false, and prints a line on standard error the first time.
 */
bool v2_load(void);

static inline bool v2_ready(void)
{
    return atomic_load_explicit(&v2_loaded, memory_order_acquire) || v2_load();
}

/* Calls a function of libdat2 and gives its 2.0 DAT_RETURN. If libdat2 is missing, the code says
 * that there is no provider. */
#define V2(function, ...) (v2_ready() ? v2.function(__VA_ARGS__) : DAT_CLASS_ERROR | DAT_PROVIDER_NOT_FOUND)

/* Converts a 2.0 DAT_RETURN, whatever its value, to 1.2. */
DAT_RETURN v1_status(DAT_UINT32 status);

/* The same for a function whose arguments have another order: `places[n]` is the place in 1.2 of
 * argument n of 2.0, or 0. */
DAT_RETURN v1_status_placed(DAT_UINT32 status, const unsigned char places[11]);

/* Calls a function of libdat2 and gives the 1.2 DAT_RETURN. */
#define CALL(function, ...) v1_status(V2(function, __VA_ARGS__))

/* The code for a wrong argument n. */
#define INVALID_ARG(n) (DAT_CLASS_ERROR | DAT_INVALID_PARAMETER | (DAT_UINT32)(DAT_INVALID_ARG1 + (n)-1))

/* Whether a value has a bit that 1.2 does not define. */
#define OUTSIDE(value, all) (((DAT_UINT64)(value) & ~(DAT_UINT64)(all)) != 0)

enum {
    COMPLETION_FLAGS = DAT_COMPLETION_SUPPRESS_FLAG | DAT_COMPLETION_SOLICITED_WAIT_FLAG |
                       DAT_COMPLETION_UNSIGNALLED_FLAG | DAT_COMPLETION_BARRIER_FENCE_FLAG |
                       DAT_COMPLETION_EVD_THRESHOLD_FLAG,

    /* The limit of segments in one operation, for any device. */
    MAX_SEGMENTS = 256,
};

/* The largest number of segments in one operation that the IAs opened so far take. A longer array
 * is refused before it is read. */
extern atomic_int max_segments;

/* False if a length does not fit into the 32 bits of 2.0. */
static inline bool lmr_triplet_to_v2(const DAT_LMR_TRIPLET *from, struct v2_lmr_triplet *to)
{
    to->virtual_address = from->virtual_address;
    to->segment_length = (DAT_UINT32)from->segment_length;
    to->lmr_context = from->lmr_context;
    return from->segment_length <= UINT32_MAX;
}

#endif
