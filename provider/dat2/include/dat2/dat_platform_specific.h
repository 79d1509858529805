/* DAT 2.0: scalar types of this platform (Linux). */
#ifndef _DAT_PLATFORM_SPECIFIC_H_
#define _DAT_PLATFORM_SPECIFIC_H_

#include <netinet/in.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Bytes: buffers aligned to this travel best. */
#ifndef DAT_OPTIMAL_ALIGNMENT
#define DAT_OPTIMAL_ALIGNMENT 256
#endif

typedef uint32_t DAT_UINT32;
typedef uint64_t DAT_UINT64;
typedef unsigned long long DAT_UVERYLONG;
typedef void *DAT_PVOID;
typedef int DAT_COUNT;
typedef int DAT_FD;
typedef DAT_UINT64 DAT_PADDR;

/* Addresses of interface adapters. */
typedef struct sockaddr DAT_SOCK_ADDR;
typedef struct sockaddr_in6 DAT_SOCK_ADDR6;
#define DAT_AF_INET AF_INET
#define DAT_AF_INET6 AF_INET6

/* The three arguments of socket(2). */
typedef struct dat_comm {
    int domain;
    int type;
    int protocol;
} DAT_COMM;

/* An open IA's handle is a small number; every other handle is a pointer. */
#define DAT_IA_HANDLE_TO_UL(a) (unsigned long)(a)
#define DAT_UL_TO_IA_HANDLE(a) (DAT_IA_HANDLE)(a)

#ifndef UINT64_C
#define UINT64_C(c) c##ULL
#endif

/* Linux needs no calling convention and no export of its own. */
#define DAT_API
#define DAT_EXPORT extern

/* Programs use these before parameters. */
#ifndef IN
#define IN
#endif
#ifndef OUT
#define OUT
#endif
#ifndef INOUT
#define INOUT
#endif

#ifdef __cplusplus
}
#endif

#endif
