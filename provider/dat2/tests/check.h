/* Checks that are counted and continue after a failure. */
#ifndef CHECK_H
#define CHECK_H

#include <stdio.h>

static unsigned checks, failures;

static void check(int ok, const char *what, const char *file, int line)
{
    checks++;
    if (!ok) {
        failures++;
        printf("%s:%d: not so: %s\n", file, line, what);
    }
}

#define CHECK(condition) check(condition, #condition, __FILE__, __LINE__)

/* Prints the last line of a test. */
static int summary(void)
{
    printf("%u checks, %u failed%s\n", checks, failures, failures == 0 ? ": all passed" : "");
    return failures == 0 ? 0 : 1;
}

#endif
