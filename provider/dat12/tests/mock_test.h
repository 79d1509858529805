/* What the files of the test share: checks, and the calls that the provider has recorded. */
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

/* The last call of the provider was this one, with these arguments. */
void said(const char *file, int line, const char *name, int n, const uint64_t *arguments);
#define SAID(name, ...)                                                                                                \
    said(__FILE__, __LINE__, #name, sizeof((uint64_t[]){__VA_ARGS__}) / 8, (const uint64_t[]){__VA_ARGS__})

/* The call is refused, and the provider is not called. */
#define REFUSED(code, call)                                                                                            \
    do {                                                                                                               \
        mock->name = "nothing";                                                                                        \
        EXPECT(code, call);                                                                                            \
        CHECK(strcmp(mock->name, "nothing") == 0);                                                                     \
    } while (0)

/* Fills `out` with numbers that fit into each field. */
void fill_out(void);

/* A triplet whose fields all differ. */
DAT_LMR_TRIPLET local(uint64_t n);

/* One bit of the mask asks for one field, and the others do not change. `i` is the field's place in
 * `out`. */
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

/* The tests of the other files. */
void ep_queries(void);
void ep_arguments(void);
void posts(void);
void srqs(void);
void memory(void);
void events(void);

#endif
