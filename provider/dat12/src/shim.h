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

/* libdat2's functions. Written once, before `v2_loaded` is. */
extern struct v2_functions v2;
extern atomic_bool v2_loaded;

/* Loads libdat2; false, and a line on standard error the first time, if that does not work. */
bool v2_load(void);

static inline bool v2_ready(void)
{
    return atomic_load_explicit(&v2_loaded, memory_order_acquire) || v2_load();
}

/* Calls a function of libdat2: a 2.0 DAT_RETURN. Without libdat2 there is no provider. */
#define V2(function, ...) (v2_ready() ? v2.function(__VA_ARGS__) : DAT_CLASS_ERROR | DAT_PROVIDER_NOT_FOUND)

/* The 1.2 DAT_RETURN for one of 2.0: every value has one. */
DAT_RETURN v1_status(DAT_UINT32 status);

/* The same for a function whose arguments have other places: `places[n]` is the 1.2 place of 2.0's
 * argument n, or 0. */
DAT_RETURN v1_status_placed(DAT_UINT32 status, const unsigned char places[11]);

/* Calls, and gives the 1.2 DAT_RETURN. */
#define CALL(function, ...) v1_status(V2(function, __VA_ARGS__))

/* Argument n is refused. */
#define INVALID_ARG(n) (DAT_CLASS_ERROR | DAT_INVALID_PARAMETER | (DAT_UINT32)(DAT_INVALID_ARG1 + (n)-1))

/* A bit that 1.2 does not define. */
#define OUTSIDE(value, all) (((DAT_UINT64)(value) & ~(DAT_UINT64)(all)) != 0)

enum {
    COMPLETION_FLAGS = DAT_COMPLETION_SUPPRESS_FLAG | DAT_COMPLETION_SOLICITED_WAIT_FLAG |
                       DAT_COMPLETION_UNSIGNALLED_FLAG | DAT_COMPLETION_BARRIER_FENCE_FLAG |
                       DAT_COMPLETION_EVD_THRESHOLD_FLAG,

    /* No device takes more segments in one operation. */
    MAX_SEGMENTS = 256,
};

/* Segments that the IAs opened so far take in one operation: an array that is longer is refused
 * unread. */
extern atomic_int max_segments;

/* False if a length does not fit into 2.0's 32 bits. */
static inline bool lmr_triplet_to_v2(const DAT_LMR_TRIPLET *from, struct v2_lmr_triplet *to)
{
    to->virtual_address = from->virtual_address;
    to->segment_length = (DAT_UINT32)from->segment_length;
    to->lmr_context = from->lmr_context;
    return from->segment_length <= UINT32_MAX;
}

#endif
