/* Which library serves an IA, and which table it has added.
 *
 * Two lists: the libraries of dat.conf, a line each, and the tables that providers add when they
 * are loaded. `uses` counts the IAs that are open or being opened. The first use of a library loads
 * it and calls dat_provider_init; the last one calls dat_provider_fini and unloads it. All this
 * happens with `libraries_lock` held; both functions call back into the list of tables, which has a
 * lock of its own. A use takes the library first and gives it back last, so that no table is in use
 * when its library goes. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "internal.h"

/* A line of dat.conf. */
struct library {
    struct library *next; /* in the order of the file */
    struct conf_entry entry;
    unsigned uses;
    void *loaded; /* by dlopen; NULL without uses */
};

/* A table that a provider has registered. */
struct table {
    struct table *next;
    DAT_PROVIDER_INFO info;
    const DAT_PROVIDER *provider;
    unsigned uses;
};

static pthread_mutex_t libraries_lock = PTHREAD_MUTEX_INITIALIZER;
static struct library *libraries, **last_library = &libraries;
static pthread_mutex_t tables_lock = PTHREAD_MUTEX_INITIALIZER;
static struct table *tables;
static atomic_bool ended;

static bool same(const DAT_PROVIDER_INFO *a, const DAT_PROVIDER_INFO *b)
{
    return strcmp(a->ia_name, b->ia_name) == 0 && a->dapl_version_major == b->dapl_version_major &&
           a->dapl_version_minor == b->dapl_version_minor && a->is_thread_safe == b->is_thread_safe;
}

/* Beginning and end of the list of libraries. */

static void add_library(struct conf_entry *entry)
{
    struct library *library = calloc(1, sizeof *library);

    if (library == NULL) {
        conf_free(entry);
        return;
    }
    library->entry = *entry;
    *last_library = library;
    last_library = &library->next;
}

static void begin(void)
{
    log_init();
    conf_read(add_library);
}

bool registry_ready(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    pthread_once(&once, begin);
    return !atomic_load(&ended);
}

/* The thread that forks holds the locks, so that no thread which the child does not have holds one
 * there. Not libraries_lock: a thread that holds it calls a provider, which may wait for locks that
 * the fork handlers of the provider hold. The child begins with a new one. */
static void before_fork(void)
{
    pthread_mutex_lock(&tables_lock);
    ias_lock();
}

static void in_parent(void)
{
    ias_unlock();
    pthread_mutex_unlock(&tables_lock);
}

static void in_child(void)
{
    in_parent();
    pthread_mutex_init(&libraries_lock, NULL);
}

/* Reads dat.conf when libdat2 is loaded. Later changes of the program's environment have no effect.
 */
__attribute__((constructor)) static void load(void)
{
    registry_ready();
    pthread_atfork(before_fork, in_parent, in_child);
}

/* Frees what nobody uses, because threads of the program may still run when it exits. Frees nothing
 * if one of them, or the provider that calls exit(), is loading a library. */
__attribute__((destructor)) static void unload(void)
{
    struct library *library, *next;
    struct table **place = &tables, *table;

    atomic_store(&ended, true);
    if (pthread_mutex_trylock(&libraries_lock) != 0)
        return;
    library = libraries;
    libraries = NULL;
    last_library = &libraries;
    for (; library != NULL; library = next) {
        next = library->next;
        if (library->uses > 0)
            continue;
        conf_free(&library->entry);
        free(library);
    }
    pthread_mutex_unlock(&libraries_lock);
    pthread_mutex_lock(&tables_lock);
    while ((table = *place) != NULL) {
        if (table->uses > 0) {
            place = &table->next;
            continue;
        }
        *place = table->next;
        free(table);
    }
    pthread_mutex_unlock(&tables_lock);
}

/* Libraries. Called with libraries_lock held. */

static struct library *find_library(struct library *from, const DAT_PROVIDER_INFO *info)
{
    while (from != NULL && !same(&from->entry.info, info))
        from = from->next;
    return from;
}

static bool open_library(struct library *library)
{
    DAT_PROVIDER_INIT_FUNC init;
    void *address;

    library->loaded = dlopen(library->entry.library, RTLD_NOW | RTLD_GLOBAL);
    if (library->loaded == NULL) {
        log_line(LOG_CONF, "%s: cannot load %s", library->entry.info.ia_name, dlerror());
        return false;
    }
    log_line(LOG_CONF, "%s: loaded %s", library->entry.info.ia_name, library->entry.library);
    address = dlsym(library->loaded, DAT_PROVIDER_INIT_FUNC_STR);
    if (address == NULL) {
        log_line(LOG_CONF, "%s has no %s", library->entry.library, DAT_PROVIDER_INIT_FUNC_STR);
        return true;
    }
    /* Copied by bytes, because ISO C has no conversion from an object pointer to a function
     * pointer; POSIX defines the result for dlsym. */
    memcpy(&init, &address, sizeof init);
    init(&library->entry.info, library->entry.ia_params);
    return true;
}

static void close_library(struct library *library)
{
    DAT_PROVIDER_FINI_FUNC fini;
    void *address = dlsym(library->loaded, DAT_PROVIDER_FINI_FUNC_STR);

    log_line(LOG_CONF, "%s: unloading %s", library->entry.info.ia_name, library->entry.library);
    if (address != NULL) {
        memcpy(&fini, &address, sizeof fini);
        fini(&library->entry.info);
    }
    dlclose(library->loaded);
    library->loaded = NULL;
}

/* Tries lines with the same name in order, unless one of them is in use. */
static struct library *use_library(const DAT_PROVIDER_INFO *info)
{
    struct library *first = find_library(libraries, info), *library;

    for (library = first; library != NULL; library = find_library(library->next, info))
        if (library->uses > 0)
            break;
    if (library == NULL)
        for (library = first; library != NULL; library = find_library(library->next, info))
            if (open_library(library))
                break;
    if (library != NULL)
        library->uses++;
    return library;
}

static void unuse_library(struct library *library)
{
    if (library->uses == 1)
        close_library(library);
    library->uses--;
}

/* Tables. Called with tables_lock held. */

static struct table **find_table(const DAT_PROVIDER_INFO *info)
{
    struct table **place = &tables;

    while (*place != NULL && !same(&(*place)->info, info))
        place = &(*place)->next;
    return place;
}

/* Uses. */

DAT_RETURN registry_use(const DAT_PROVIDER_INFO *info, struct use *use)
{
    pthread_mutex_lock(&libraries_lock);
    use->library = use_library(info);
    pthread_mutex_unlock(&libraries_lock);

    pthread_mutex_lock(&tables_lock);
    use->table = *find_table(info);
    if (use->table != NULL)
        use->table->uses++;
    pthread_mutex_unlock(&tables_lock);
    if (use->table != NULL)
        return DAT_SUCCESS;
    /* The library stays loaded: it has registered no table, and may have started threads or
     * registered callbacks. */
    log_line(LOG_PROGRAM_CALLS, "%s: no provider", info->ia_name);
    return ERROR_CODE(PROVIDER_NOT_FOUND, NAME_NOT_REGISTERED);
}

const DAT_PROVIDER *registry_table(const struct use *use)
{
    return use->table->provider;
}

void registry_unuse(struct use *use)
{
    pthread_mutex_lock(&tables_lock);
    use->table->uses--;
    pthread_mutex_unlock(&tables_lock);
    if (use->library == NULL)
        return;
    pthread_mutex_lock(&libraries_lock);
    unuse_library(use->library);
    pthread_mutex_unlock(&libraries_lock);
}

/* Calls of providers and programs. */

static DAT_RETURN check_registration(const DAT_PROVIDER *provider, const DAT_PROVIDER_INFO *info)
{
    if (provider == NULL)
        return ERROR_CODE(INVALID_PARAMETER, INVALID_ARG1);
    if (info == NULL)
        return ERROR_CODE(INVALID_PARAMETER, INVALID_ARG2);
    if (!registry_ready())
        return ERROR_CODE(INVALID_STATE, NO_SUBTYPE);
    return DAT_SUCCESS;
}

DAT_RETURN dat_registry_add_provider(const DAT_PROVIDER *provider, const DAT_PROVIDER_INFO *info)
{
    struct table **place, *table;
    DAT_RETURN ret = check_registration(provider, info);

    if (ret != DAT_SUCCESS)
        return ret;
    log_line(LOG_PROVIDER_CALLS, "%s: a provider adds itself, version %u.%u", info->ia_name,
             info->dapl_version_major, info->dapl_version_minor);
    table = calloc(1, sizeof *table);
    if (table == NULL)
        return ERROR_CODE(INSUFFICIENT_RESOURCES, RESOURCE_MEMORY);
    table->info = *info;
    table->provider = provider;
    pthread_mutex_lock(&tables_lock);
    place = find_table(info);
    if (*place == NULL)
        *place = table;
    else
        ret = ERROR_CODE(PROVIDER_ALREADY_REGISTERED, NO_SUBTYPE);
    pthread_mutex_unlock(&tables_lock);
    if (ret != DAT_SUCCESS)
        free(table);
    return ret;
}

DAT_RETURN dat_registry_remove_provider(const DAT_PROVIDER *provider, const DAT_PROVIDER_INFO *info)
{
    struct table **place, *table;
    DAT_RETURN ret = check_registration(provider, info);

    if (ret != DAT_SUCCESS)
        return ret;
    log_line(LOG_PROVIDER_CALLS, "%s: a provider removes itself", info->ia_name);
    pthread_mutex_lock(&tables_lock);
    place = find_table(info);
    table = *place;
    if (table == NULL) {
        ret = ERROR_CODE(PROVIDER_NOT_FOUND, NAME_NOT_REGISTERED);
    } else if (table->uses > 0) {
        ret = ERROR_CODE(PROVIDER_IN_USE, NO_SUBTYPE);
    } else {
        *place = table->next;
        free(table);
    }
    pthread_mutex_unlock(&tables_lock);
    return ret;
}

DAT_RETURN dat_registry_list_providers(DAT_COUNT max_to_return, DAT_COUNT *entries_returned,
                                       DAT_PROVIDER_INFO *(dat_provider_list[]))
{
    DAT_RETURN ret = DAT_SUCCESS;
    DAT_COUNT n = 0;

    if (!registry_ready())
        return ERROR_CODE(INVALID_STATE, NO_SUBTYPE);
    if (entries_returned == NULL)
        return ERROR_CODE(INVALID_PARAMETER, INVALID_ARG2);
    if (max_to_return != 0 && dat_provider_list == NULL)
        return ERROR_CODE(INVALID_PARAMETER, INVALID_ARG3);
    *entries_returned = 0;
    pthread_mutex_lock(&libraries_lock);
    for (struct library *library = libraries; library != NULL; library = library->next) {
        /* Several lines for one IA count once. */
        if (find_library(libraries, &library->entry.info) != library)
            continue;
        if (max_to_return != 0 && n >= max_to_return)
            break;
        if (max_to_return != 0 && dat_provider_list[n] == NULL) {
            ret = ERROR_CODE(INVALID_PARAMETER, INVALID_ARG3);
            break;
        }
        if (max_to_return != 0)
            *dat_provider_list[n] = library->entry.info;
        n++;
    }
    pthread_mutex_unlock(&libraries_lock);
    if (ret != DAT_SUCCESS)
        return ret;
    *entries_returned = n;
    return max_to_return == 0 ? ERROR_CODE(INVALID_PARAMETER, INVALID_ARG1) : DAT_SUCCESS;
}
