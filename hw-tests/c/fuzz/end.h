/* The end of a round: everything is freed but the IAs of the life. */
#ifndef FUZZ_END_H
#define FUZZ_END_H

#include "slots.h"

/* Takes the events of all EVDs, so that all requests are known. */
static void take_events(void)
{
    DAT_EVENT event;
    int is_live;

    for (unsigned i = 0; i < known; i++) {
        DAT_HANDLE evd = objects[i].handle, ia = objects[i].ia;

        if (!objects[i].live || objects[i].kind != EVD)
            continue;
        while (DID(23, evd_dequeue, EVD, evd, OF_HANDLE | OF_ARGUMENT | OF_STATE | T(DAT_QUEUE_EMPTY), evd, &event))
            event_taken(&event, ia);
    }
}

/* Tries to free an object. */
static void free_one(struct object *object)
{
    DAT_HANDLE h = object->handle;
    enum kind kind = object->kind;
    int is_live, done = 0;

#define END(number, name) done = DID(number, name, kind, h, OF_FREE, h)
    switch (kind) {
    case CR:
        done = DID(13, cr_reject, CR, h, OF_QUERY | OF_STATE | OF_RESOURCES | OF_GONE, h, 0, NULL);
        break;
    case PSP:
        END(46, psp_free);
        break;
    case RSP:
        END(49, rsp_free);
        break;
    case CSP:
        END(70, csp_free);
        break;
    case EP:
        END(36, ep_free);
        break;
    case SRQ:
        END(63, srq_free);
        break;
    case RMR:
        END(43, rmr_free);
        break;
    case LMR:
        END(39, lmr_free);
        break;
    case EVD:
        END(24, evd_free);
        break;
    case CNO:
        END(9, cno_free);
        break;
    case PZ:
        END(52, pz_free);
        break;
    default:
        break;
    }
    /* A request ends by itself if its peer gives up. An EP of a request that another thread has got
     * by cr_handoff is that thread's, too. */
    if (done || kind == CR || (kind == EP && several && last_code == HANDLE(EP)))
        died(h, kind);
}

static struct object *first_left(void)
{
    for (unsigned i = 0; i < known; i++)
        if (objects[i].live && objects[i].kind != IA)
            return &objects[i];
    return NULL;
}

/* Closes the IAs that the fuzzing has opened through the table, but not these two, through the
 * table. */
static void close_others(DAT_HANDLE one, DAT_HANDLE other)
{
    for (unsigned i = 0; i < known; i++)
        if (objects[i].live && objects[i].kind == IA && objects[i].handle != one && objects[i].handle != other) {
            now_calling = "ia_close at the end";
            OK(table->ia_close_func(objects[i].handle, DAT_CLOSE_ABRUPT_FLAG));
            died(objects[i].handle, IA);
        }
}

/* Frees all objects of this thread but these two IAs. */
static void free_all(DAT_HANDLE one, DAT_HANDLE other)
{
    static const enum kind order[] = {RSP, PSP, CSP, CR, EP, SRQ, RMR, LMR, EVD, CNO, PZ};
    long long end = now_ms() + LONG_TIME / 1000;
    struct object *left;

    close_others(one, other);
    /* Once more if a request arrives meanwhile: it holds the EP of its RSP. */
    while ((left = first_left()) && now_ms() < end) {
        for (unsigned k = 0; k < sizeof order / sizeof *order; k++) {
            if (order[k] == CR)
                take_events();
            for (unsigned i = known; i-- > 0;)
                if (objects[i].live && objects[i].kind == order[k])
                    free_one(&objects[i]);
        }
        if (first_left())
            poll(NULL, 0, 1);
    }
    checks++;
    if (left)
        complain("an object of kind %u is not freed: %s gave %#010x", left->kind, now_calling, last_code);
    forget_dead();
    memset(contexts, 0, sizeof contexts);
}

#endif
