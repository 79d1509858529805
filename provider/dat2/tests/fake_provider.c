/* A provider that records its calls and returns what the test has set. */
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "fake.h"

static DAT_PROVIDER tables[FAKE_IAS];
static char names[FAKE_IAS][DAT_NAME_MAX_LENGTH];

static DAT_RETURN called(const char *name, unsigned count, const uint64_t *arguments)
{
    pthread_mutex_lock(&fake.lock);
    strcpy(fake.call, name);
    fake.count = count;
    memcpy(fake.arguments, arguments, count * sizeof *arguments);
    pthread_mutex_unlock(&fake.lock);
    return fake.answer;
}

#define UNPACK(...) __VA_ARGS__
#define EXPORTED(name, kind, parameters, numbers, arguments) \
    static DAT_RETURN name parameters \
    { \
        const uint64_t given[] = {UNPACK numbers}; \
        return called(#name, sizeof given / sizeof *given, given); \
    }
#define TABLE EXPORTED
#include "calls.def"
#undef EXPORTED
#undef TABLE

static DAT_PROVIDER *table_of(const char *name)
{
    for (int i = 0; i < FAKE_IAS; i++) {
        if (names[i][0] == '\0') {
            strcpy(names[i], name);
            /* The program may have registered a copy of the first table by this name. */
            tables[i] = tables[0];
            tables[i].device_name = names[i];
        }
        if (strcmp(names[i], name) == 0)
            return &tables[i];
    }
    abort();
}

static DAT_RETURN ia_open(const DAT_NAME_PTR name, DAT_COUNT qlen, DAT_EVD_HANDLE *async,
                          DAT_IA_HANDLE *ia)
{
    struct object *object;

    called("ia_open", 4, (const uint64_t[]){N(name), N(qlen), N(async), N(ia)});
    if (fake.open_answer != DAT_SUCCESS)
        return fake.open_answer;
    object = calloc(1, sizeof *object);
    object->table = table_of(name);
    *ia = object;
    pthread_mutex_lock(&fake.lock);
    fake.opens++;
    pthread_mutex_unlock(&fake.lock);
    return DAT_SUCCESS;
}

static DAT_RETURN ia_query(DAT_IA_HANDLE ia, DAT_EVD_HANDLE *async, DAT_IA_ATTR_MASK ia_mask,
                           DAT_IA_ATTR *ia_attr, DAT_PROVIDER_ATTR_MASK provider_mask,
                           DAT_PROVIDER_ATTR *provider)
{
    if (ia_mask != 0)
        ia_attr->extension_supported = fake.extension;
    /* By these fields, other implementations of libdat2 find the table of an IA that is closed. */
    if (provider_mask != 0) {
        provider->dapl_version_major = 2;
        provider->dapl_version_minor = 0;
        provider->is_thread_safe = DAT_FALSE;
    }
    called("ia_query", 6,
           (const uint64_t[]){N(ia), N(async), ia_mask, N(ia_attr), provider_mask, N(provider)});
    return DAT_SUCCESS;
}

static DAT_RETURN ia_close(DAT_IA_HANDLE ia, DAT_CLOSE_FLAGS flags)
{
    called("ia_close", 2, (const uint64_t[]){N(ia), N(flags)});
    if (fake.close_answer != DAT_SUCCESS)
        return fake.close_answer;
    free(ia);
    return DAT_SUCCESS;
}

/* An IA that is open for queries of its attributes only. */
static struct object queried;

static DAT_RETURN handle_extendedop(DAT_HANDLE handle, DAT_EXTENDED_OP op, va_list arguments)
{
    /* The arguments of a write with immediate data, two of which are on the stack on x86-64. */
    if (op == DAT_IB_RDMA_WRITE_IMMED_OP) {
        uint64_t segments = N(va_arg(arguments, DAT_COUNT));
        uint64_t local = N(va_arg(arguments, DAT_LMR_TRIPLET *));
        uint64_t cookie = va_arg(arguments, DAT_DTO_COOKIE).as_64;
        uint64_t remote = N(va_arg(arguments, DAT_RMR_TRIPLET *));
        uint64_t data = va_arg(arguments, DAT_UINT32);
        uint64_t flags = N(va_arg(arguments, DAT_COMPLETION_FLAGS));

        return called("handle_extendedop", 8,
                      (const uint64_t[]){N(handle), N(op), segments, local, cookie, remote, data,
                                         flags});
    }
    if (op == DAT_IB_OPEN_QUERY_OP && fake.answer == DAT_SUCCESS) {
        queried.table = table_of((const char *)handle);
        *va_arg(arguments, DAT_HANDLE *) = &queried;
        return called("handle_extendedop", 3,
                      (const uint64_t[]){N(handle), N(op), va_arg(arguments, DAT_IA_ATTR_MASK)});
    }
    return called("handle_extendedop", 2, (const uint64_t[]){N(handle), N(op)});
}

void dat_provider_init(const DAT_PROVIDER_INFO *info, const char *params);
void dat_provider_fini(const DAT_PROVIDER_INFO *info);

void dat_provider_init(const DAT_PROVIDER_INFO *info, const char *params)
{
    DAT_PROVIDER *table = table_of(info->ia_name);

    if (fake.on_init != NULL)
        fake.on_init();
    fake.inits++;
    strcpy(fake.name, info->ia_name);
    strcpy(fake.params, params);
    if (fake.silent)
        return;
#define EXPORTED(name, kind, parameters, numbers, arguments) table->name##_func = name;
#define TABLE EXPORTED
#include "calls.def"
    table->ia_open_func = ia_open;
    table->ia_query_func = ia_query;
    table->ia_close_func = ia_close;
    table->handle_extendedop_func = handle_extendedop;
    fake.added = dat_registry_add_provider(table, info);
}

void dat_provider_fini(const DAT_PROVIDER_INFO *info)
{
    fake.finis++;
    strcpy(fake.name, info->ia_name);
    dat_registry_remove_provider(table_of(info->ia_name), info);
}
