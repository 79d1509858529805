/* Counts the memory that this process has allocated and not freed, but for that of the software
 * device, whose tables grow with the number of objects that were ever made. Include it in one file
 * of a program: it defines malloc and its relatives. */
#ifndef COUNTED_H
#define COUNTED_H

#include <errno.h>
#include <link.h>
#include <malloc.h>
#include <stdint.h>
#include <string.h>

extern void *__libc_malloc(size_t size);
extern void *__libc_calloc(size_t n, size_t size);
extern void *__libc_realloc(void *at, size_t size);
extern void *__libc_memalign(size_t alignment, size_t size);
extern void __libc_free(void *at);

/* Bytes allocated now. */
static _Atomic long long counted_bytes;
/* Where the software device's code is; what it allocates is not counted. */
static uintptr_t device_begin, device_end;

/* The last word of a block says whether the block was counted. Each block is allocated with this
 * much more than was asked. */
#define MARK sizeof(uint64_t)

static uint64_t *mark_of(void *at)
{
    return (uint64_t *)((char *)at + malloc_usable_size(at)) - 1;
}

static uint64_t counted_mark(void *at)
{
    return (uint64_t)(uintptr_t)at ^ UINT64_C(0xC0DEDB10C4A11C0D);
}

static void uncount(void *at)
{
    uint64_t *mark = mark_of(at);

    if (*mark != counted_mark(at))
        return;
    *mark = 0;
    counted_bytes -= (long long)malloc_usable_size(at);
}

static void *count(void *at, const void *caller)
{
    int counted = (uintptr_t)caller < device_begin || (uintptr_t)caller >= device_end;

    if (!at)
        return at;
    *mark_of(at) = counted ? counted_mark(at) : 0;
    if (counted)
        counted_bytes += (long long)malloc_usable_size(at);
    return at;
}

#define CALLER __builtin_return_address(0)

static int too_large(size_t size)
{
    if (size <= PTRDIFF_MAX - MARK)
        return 0;
    errno = ENOMEM;
    return 1;
}

void *malloc(size_t size)
{
    return too_large(size) ? NULL : count(__libc_malloc(size + MARK), CALLER);
}

void *calloc(size_t n, size_t size)
{
    size_t all;

    if (__builtin_mul_overflow(n, size, &all))
        all = SIZE_MAX;
    return too_large(all) ? NULL : count(__libc_calloc(1, all + MARK), CALLER);
}

void free(void *at)
{
    int error = errno;

    if (at)
        uncount(at);
    __libc_free(at);
    errno = error;
}

void *realloc(void *at, size_t size)
{
    void *now;

    if (too_large(size))
        return NULL;
    if (at)
        uncount(at);
    now = __libc_realloc(at, size + MARK);
    /* If there is no memory, the old block stays. */
    return now || !at ? count(now, CALLER) : (count(at, CALLER), NULL);
}

void *memalign(size_t alignment, size_t size)
{
    return too_large(size) ? NULL : count(__libc_memalign(alignment, size + MARK), CALLER);
}

void *aligned_alloc(size_t alignment, size_t size)
{
    return too_large(size) ? NULL : count(__libc_memalign(alignment, size + MARK), CALLER);
}

int posix_memalign(void **to, size_t alignment, size_t size)
{
    void *at = too_large(size) ? NULL : count(__libc_memalign(alignment, size + MARK), CALLER);

    if (!at)
        return ENOMEM;
    *to = at;
    return 0;
}

static int is_device(struct dl_phdr_info *info, size_t size, void *name)
{
    (void)size;
    if (!strstr(info->dlpi_name, name))
        return 0;
    device_begin = UINTPTR_MAX;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        uintptr_t begin = info->dlpi_addr + info->dlpi_phdr[i].p_vaddr, end = begin + info->dlpi_phdr[i].p_memsz;

        if (info->dlpi_phdr[i].p_type != PT_LOAD)
            continue;
        device_begin = begin < device_begin ? begin : device_begin;
        device_end = end > device_end ? end : device_end;
    }
    return 1;
}

__attribute__((constructor)) static void find_device(void)
{
    dl_iterate_phdr(is_device, "libmlx5_emu");
}

#endif
