/* The table of return codes that each slot may give, and how a slot is called. */
#ifndef FUZZ_CALLS_H
#define FUZZ_CALLS_H

#include "arguments.h"

/* Types of DAT_RETURN as bits. */
#define T(type) (UINT64_C(1) << ((type) >> 16))
#define OF_HANDLE T(DAT_INVALID_HANDLE)
#define OF_ARGUMENT T(DAT_INVALID_PARAMETER)
#define OF_STATE T(DAT_INVALID_STATE)
#define OF_RESOURCES T(DAT_INSUFFICIENT_RESOURCES)
#define OF_MODEL T(DAT_MODEL_NOT_SUPPORTED)
#define OF_MEMORY (T(DAT_PRIVILEGES_VIOLATION) | T(DAT_PROTECTION_VIOLATION) | T(DAT_LENGTH_ERROR))
#define OF_POST (OF_HANDLE | OF_ARGUMENT | OF_STATE | OF_RESOURCES | OF_MEMORY)
#define OF_QUERY (OF_HANDLE | OF_ARGUMENT)
#define OF_FREE (OF_HANDLE | OF_STATE)
/* The code of a request whose peer has given up. */
#define OF_GONE T(DAT_ABORT)
#define OF_CREATE (OF_HANDLE | OF_ARGUMENT | OF_STATE | OF_RESOURCES | OF_MODEL)

static unsigned calls_made[80], calls_done[80];
static __thread DAT_RETURN last_code;

static DAT_RETURN judge(unsigned slot, DAT_RETURN code, uint64_t types, int live, DAT_RETURN sub)
{
    DAT_RETURN type = code & 0x3FFF0000, minor = code & 0xFFFF;
    int listed = code == DAT_SUCCESS;

    if (!listed && type <= DAT_COMM_NOT_SUPPORTED)
        listed = ((code & DAT_CLASS_ERROR) != 0 || code == DAT_QUEUE_EMPTY) && (types & T(type)) && minor <= 103;
    __atomic_add_fetch(&calls_made[slot], 1, __ATOMIC_RELAXED);
    __atomic_add_fetch(&calls_done[slot], code == DAT_SUCCESS, __ATOMIC_RELAXED);
    if (!live)
        listed = code == ERROR(DAT_INVALID_HANDLE, sub);
    checks++;
    note_call(code, live);
    last_code = code;
    if (!listed) {
        complain("%s gave %#010x on a %s handle, seed %llu", now_calling, code, live ? "live" : "dead",
               (unsigned long long)seed);
        if (failures == 1)
            print_last_calls();
    }
    return code;
}

/* Calls a slot with a handle of this kind, and checks the code. */
#define CALL(number, name, kind, handle, types, ...)                                                             \
    (now_calling = #name, is_live = find(handle, kind) != NULL,                                                  \
     judge(number, table->name##_func(__VA_ARGS__), types, is_live, subtype[kind]))
/* Set by CALL. */
#define DID(...) (CALL(__VA_ARGS__) == DAT_SUCCESS)

/* The only slot with variable arguments. */
static DAT_RETURN extension(DAT_HANDLE handle, int op, ...)
{
    va_list args;
    DAT_RETURN code;

    va_start(args, op);
    code = table->handle_extendedop_func(handle, op, args);
    va_end(args);
    return code;
}

#endif
