/* Opening and closing IAs, their handles, and the calls of extensions.
 *
 * A program's handle of an IA is a number from 1, the index of a slot. Slots lie in chunks that are
 * never freed, so that a call finds its slot without a lock. Slots are taken and given back with
 * `slots_lock` held, which is held for nothing else. */
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "internal.h"

enum { CHUNK = 64, CHUNKS = 1024 };

struct slot {
    _Atomic(DAT_IA_HANDLE) object; /* the provider's; NULL if the slot is free */
    struct use use;
};

static pthread_mutex_t slots_lock = PTHREAD_MUTEX_INITIALIZER;
static struct slot *chunks[CHUNKS];
static _Atomic uintptr_t slots; /* a multiple of CHUNK; chunks below it are there */

/* True after an open provider has reported an extension. From then on, programs may call extensions
 * of any provider. */
static atomic_bool extensions;

/* The slot with this index, free or not; NULL if it does not exist. */
static struct slot *slot_at(uintptr_t index)
{
    if (index == 0 || index >= atomic_load_explicit(&slots, memory_order_acquire))
        return NULL;
    return &chunks[index / CHUNK][index % CHUNK];
}

static DAT_IA_HANDLE object_in(const struct slot *slot)
{
    return slot == NULL ? NULL : atomic_load_explicit(&slot->object, memory_order_acquire);
}

/* Allocates more slots. Called with slots_lock held. */
static bool grow(uintptr_t count)
{
    struct slot *chunk;

    if (count / CHUNK == CHUNKS)
        return false;
    chunk = calloc(CHUNK, sizeof *chunk);
    if (chunk == NULL)
        return false;
    chunks[count / CHUNK] = chunk;
    atomic_store_explicit(&slots, count + CHUNK, memory_order_release);
    return true;
}

void ias_lock(void)
{
    pthread_mutex_lock(&slots_lock);
}

void ias_unlock(void)
{
    pthread_mutex_unlock(&slots_lock);
}

/* Takes the free slot with the lowest index; returns 0 if there is no memory. */
static uintptr_t take_slot(DAT_IA_HANDLE object, const struct use *use)
{
    uintptr_t index = 1;
    struct slot *slot;

    pthread_mutex_lock(&slots_lock);
    while ((slot = slot_at(index)) != NULL && object_in(slot) != NULL)
        index++;
    if (slot == NULL && !grow(atomic_load(&slots))) {
        index = 0;
    } else {
        slot = slot_at(index);
        slot->use = *use;
        atomic_store_explicit(&slot->object, object, memory_order_release);
    }
    pthread_mutex_unlock(&slots_lock);
    return index;
}

/* Frees the slot if it still has this object. Of several threads that close an IA, only one gets
 * the use. */
static bool free_slot(uintptr_t index, DAT_IA_HANDLE object, struct use *use)
{
    struct slot *slot = slot_at(index);
    bool mine;

    pthread_mutex_lock(&slots_lock);
    mine = object_in(slot) == object;
    if (mine) {
        *use = slot->use;
        atomic_store_explicit(&slot->object, NULL, memory_order_release);
    }
    pthread_mutex_unlock(&slots_lock);
    return mine;
}

DAT_RETURN ia_object(DAT_IA_HANDLE ia, DAT_IA_HANDLE *object)
{
    DAT_IA_HANDLE found = object_in(slot_at((uintptr_t)ia));

    if (found == NULL)
        return ERROR_CODE(INVALID_HANDLE, INVALID_HANDLE_IA);
    *object = found;
    return DAT_SUCCESS;
}

DAT_RETURN any_object(DAT_HANDLE handle, DAT_HANDLE *object)
{
    if (ia_object(handle, object) == DAT_SUCCESS)
        return DAT_SUCCESS;
    if (!is_pointer(handle))
        return ERROR_CODE(INVALID_HANDLE, INVALID_HANDLE1);
    *object = handle;
    return DAT_SUCCESS;
}

DAT_RETURN dats_get_ia_handle(DAT_IA_HANDLE handle, DAT_IA_HANDLE *ia)
{
    if (ia_object(handle, ia) == DAT_SUCCESS)
        return DAT_SUCCESS;
    if (!is_pointer(handle))
        return ERROR_CODE(INVALID_HANDLE, INVALID_HANDLE_IA);
    for (uintptr_t index = 1; index < atomic_load(&slots); index++)
        if (object_in(slot_at(index)) == handle) {
            *ia = DAT_UL_TO_IA_HANDLE(index);
            return DAT_SUCCESS;
        }
    return ERROR_CODE(INVALID_HANDLE, INVALID_HANDLE_IA);
}

/* Fills in the entry that the registry compares with. False if no IA can have such a name. */
static bool look_for(const char *name, DAT_UINT32 major, DAT_UINT32 minor,
                     DAT_BOOLEAN thread_safety, DAT_PROVIDER_INFO *info)
{
    if (name == NULL || strlen(name) >= sizeof info->ia_name)
        return false;
    memset(info, 0, sizeof *info);
    memcpy(info->ia_name, name, strlen(name));
    info->dapl_version_major = major;
    info->dapl_version_minor = minor;
    info->is_thread_safe = thread_safety;
    return true;
}

/* Programs may call extensions once a provider reports one. */
static void note_extensions(DAT_IA_HANDLE object, const DAT_PROVIDER *table)
{
    DAT_IA_ATTR attr;

    memset(&attr, 0, sizeof attr);
    if (table->ia_query_func(object, NULL, DAT_IA_FIELD_ALL, &attr, 0, NULL) == DAT_SUCCESS &&
        attr.extension_supported != DAT_EXTENSION_NONE)
        atomic_store(&extensions, true);
}

DAT_RETURN dat_ia_openv(const DAT_NAME_PTR ia_name, DAT_COUNT async_evd_min_qlen,
                        DAT_EVD_HANDLE *async_evd, DAT_IA_HANDLE *ia, DAT_UINT32 dapl_major,
                        DAT_UINT32 dapl_minor, DAT_BOOLEAN thread_safety)
{
    DAT_PROVIDER_INFO info;
    const DAT_PROVIDER *table;
    struct use use;
    uintptr_t index;
    DAT_IA_HANDLE object;
    DAT_RETURN ret;

    if (!look_for(ia_name, dapl_major, dapl_minor, thread_safety, &info))
        return ERROR_CODE(INVALID_PARAMETER, INVALID_ARG1);
    if (ia == NULL)
        return ERROR_CODE(INVALID_HANDLE, INVALID_HANDLE_IA);
    if (!registry_ready())
        return ERROR_CODE(INVALID_STATE, NO_SUBTYPE);
    ret = registry_use(&info, &use);
    if (ret != DAT_SUCCESS)
        return ret;
    table = registry_table(&use);
    ret = table->ia_open_func(ia_name, async_evd_min_qlen, async_evd, ia);
    if (ret != DAT_SUCCESS) {
        registry_unuse(&use);
        return ret;
    }
    object = *ia;
    index = take_slot(object, &use);
    if (index == 0) {
        table->ia_close_func(object, DAT_CLOSE_ABRUPT_FLAG);
        registry_unuse(&use);
        return ERROR_CODE(INSUFFICIENT_RESOURCES, RESOURCE_MEMORY);
    }
    *ia = DAT_UL_TO_IA_HANDLE(index);
    log_line(LOG_PROGRAM_CALLS, "%s: open as %lu", ia_name, DAT_IA_HANDLE_TO_UL(*ia));
    note_extensions(object, table);
    return DAT_SUCCESS;
}

DAT_RETURN dat_ia_close(DAT_IA_HANDLE ia, DAT_CLOSE_FLAGS close_flags)
{
    DAT_IA_HANDLE object;
    struct use use;
    DAT_RETURN ret = ia_object(ia, &object);

    if (ret != DAT_SUCCESS)
        return ret;
    if (!registry_ready())
        return ERROR_CODE(INVALID_STATE, NO_SUBTYPE);
    ret = DAT_HANDLE_TO_PROVIDER(object)->ia_close_func(object, close_flags);
    if (ret != DAT_SUCCESS) {
        log_line(LOG_PROGRAM_CALLS, "%lu: not closed: %#x", DAT_IA_HANDLE_TO_UL(ia), ret);
        return ret;
    }
    log_line(LOG_PROGRAM_CALLS, "%lu: closed", DAT_IA_HANDLE_TO_UL(ia));
    if (free_slot((uintptr_t)ia, object, &use))
        registry_unuse(&use);
    return DAT_SUCCESS;
}

/* The version and the thread safety that extension calls by name ask for. */
static DAT_RETURN use_named(const char *name, struct use *use)
{
    DAT_PROVIDER_INFO info;

    if (!look_for(name, DAT_VERSION_MAJOR, DAT_VERSION_MINOR, DAT_THREADSAFE, &info))
        return ERROR_CODE(INVALID_PARAMETER, INVALID_ARG1);
    if (!registry_ready())
        return ERROR_CODE(INVALID_STATE, NO_SUBTYPE);
    return registry_use(&info, use);
}

/* The provider gets the IA's name as its handle. The IA that it opens keeps the library in use
 * until the close. */
static DAT_RETURN open_query(const char *name, DAT_EXTENDED_OP op, va_list arguments)
{
    struct use use;
    DAT_RETURN ret = use_named(name, &use);

    if (ret != DAT_SUCCESS)
        return ret;
    atomic_store(&extensions, true);
    ret = registry_table(&use)->handle_extendedop_func((DAT_HANDLE)(uintptr_t)name, op, arguments);
    if (ret != DAT_SUCCESS)
        registry_unuse(&use);
    return ret;
}

/* The handle is the provider's. The name in the provider's table leads to the library's uses. */
static DAT_RETURN close_query(DAT_HANDLE handle, DAT_EXTENDED_OP op, va_list arguments)
{
    const DAT_PROVIDER *table;
    struct use use;
    DAT_RETURN ret;

    if (!is_pointer(handle))
        return ERROR_CODE(INVALID_HANDLE, INVALID_HANDLE_IA);
    table = DAT_HANDLE_TO_PROVIDER(handle);
    ret = use_named(table->device_name, &use);
    if (ret != DAT_SUCCESS)
        return ret;
    ret = table->handle_extendedop_func(handle, op, arguments);
    /* Ends the use that open_query began. */
    if (ret == DAT_SUCCESS)
        registry_unuse(&use);
    registry_unuse(&use);
    return ret;
}

DAT_RETURN dat_extension_op(DAT_HANDLE handle, DAT_EXTENDED_OP op, ...)
{
    DAT_HANDLE object;
    DAT_RETURN ret;
    va_list arguments;

    if (handle != DAT_HANDLE_NULL && !atomic_load(&extensions))
        return ERROR_CODE(NOT_IMPLEMENTED, NO_SUBTYPE);
    va_start(arguments, op);
    if ((op & DAT_OPEN_EXTENSION_BASE) != 0) {
        const char *name = va_arg(arguments, const char *);

        ret = ERROR_CODE(INVALID_HANDLE, INVALID_ARG3);
        if (name != NULL)
            ret = open_query(name, op, arguments);
    } else if ((op & DAT_CLOSE_EXTENSION_BASE) != 0) {
        ret = close_query(handle, op, arguments);
    } else {
        ret = any_object(handle, &object);
        if (ret == DAT_SUCCESS)
            ret = DAT_HANDLE_EXTENDEDOP(object, op, arguments);
    }
    va_end(arguments);
    return ret;
}
