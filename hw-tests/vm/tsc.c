/* Prints the rate of this processor's time stamp counter, in kHz, measured over a tenth of a second. */
#include <stdint.h>
#include <stdio.h>
#include <time.h>
#include <x86intrin.h>

struct sample {
    uint64_t ticks;
    double seconds;
};

/* A pair of readings with as little as possible between them, also on a busy machine. */
static struct sample sample(void) {
    struct sample best = {0};
    uint64_t shortest = UINT64_MAX;
    for (int i = 0; i < 1000; i++) {
        struct timespec now;
        uint64_t before = __rdtsc();
        clock_gettime(CLOCK_MONOTONIC_RAW, &now);
        uint64_t took = __rdtsc() - before;
        if (took < shortest) {
            shortest = took;
            best = (struct sample){before + took / 2, now.tv_sec + now.tv_nsec / 1e9};
        }
    }
    return best;
}

int main(void) {
    struct sample begin = sample();
    nanosleep(&(struct timespec){.tv_nsec = 100000000}, NULL);
    struct sample end = sample();
    printf("%.0f\n", (end.ticks - begin.ticks) / (end.seconds - begin.seconds) / 1e3);
}
