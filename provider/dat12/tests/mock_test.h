/* What the parts of the test share: checks, and what the provider says it was called with. */
#ifndef MOCK_TEST_H
#define MOCK_TEST_H

#include <dat/udat.h>
#include <string.h>

#include "mock.h"

extern struct mock *mock;
extern DAT_IA_HANDLE ia;
#define H(n) (mock->handles[n])
#define RAW_IA NUMBER(H(0))
#define LAST H(MOCK_HANDLES - 1)
#define N NUMBER

void check(int ok, const char *what, const char *file, int line);
#define CHECK(what) check(!!(what), #what, __FILE__, __LINE__)
#define EXPECT(code, call) check((call) == (DAT_RETURN)(code), #call " gives " #code, __FILE__, __LINE__)
#define OK(call) EXPECT(DAT_SUCCESS, call)
#define ARG(n) (DAT_CLASS_ERROR | DAT_INVALID_PARAMETER | (DAT_INVALID_ARG1 + (n)-1))

/* The provider was called last, with these arguments. */
void said(const char *file, int line, const char *name, int n, const uint64_t *arguments);
#define SAID(name, ...)                                                                                                \
    said(__FILE__, __LINE__, #name, sizeof((uint64_t[]){__VA_ARGS__}) / 8, (const uint64_t[]){__VA_ARGS__})

/* The call did not get through. */
#define REFUSED(code, call)                                                                                            \
    do {                                                                                                               \
        mock->name = "nothing";                                                                                        \
        EXPECT(code, call);                                                                                            \
        CHECK(strcmp(mock->name, "nothing") == 0);                                                                     \
    } while (0)

/* Every slot of `out` with a number that fits everywhere. */
void fill_out(void);

/* A triplet whose fields are all different. */
DAT_LMR_TRIPLET local(uint64_t n);

/* One bit asks for one field; what was not asked for stays. `i` is the field's place in `out`. */
#define ONE_BIT(query, handle, type, prefix, field, bit)                                                               \
    {                                                                                                                  \
        type param, untouched;                                                                                         \
        memset((void *)&param, 0x5A, sizeof param);                                                                    \
        memset((void *)&untouched, 0x5A, sizeof untouched);                                                            \
        OK(query(handle, prefix##bit, &param));                                                                        \
        CHECK(mock->named == 1);                                                                                       \
        CHECK(N(param.field) == mock->out[i]);                                                                         \
        memset((void *)&param.field, 0x5A, sizeof param.field);                                                        \
        CHECK(memcmp(&param, &untouched, sizeof param) == 0);                                                          \
        i++;                                                                                                           \
    }

/* The parts. */
void ep_queries(void);
void ep_arguments(void);
void posts(void);
void srqs(void);
void memory(void);
void events(void);

#endif
