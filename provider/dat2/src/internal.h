/* What the files of libdat2.so.2 share.
 *
 * conf.c reads dat.conf. registry.c has its entries and the tables that providers add. ia.c opens
 * and closes IAs and has their handles. calls.c has the calls that providers answer. */
#ifndef DAT2_INTERNAL_H
#define DAT2_INTERNAL_H

#include <dat2/udat.h>
#include <dat2/dat_registry.h>
#include <stdbool.h>
#include <stdint.h>

#define ERROR_CODE(type, subtype) \
    ((DAT_RETURN)(DAT_CLASS_ERROR | (DAT_UINT32)DAT_##type | (DAT_UINT32)DAT_##subtype))

/* conf.c */

/* What a line says about an IA that a user level program can open. */
struct conf_entry {
    DAT_PROVIDER_INFO info;
    const char *library; /* for dlopen */
    const char *ia_params;
    char *text; /* the memory of both */
};

/* Reads one line. True if it has an entry, which conf_free frees. Otherwise `*wrong` names the
 * first field that is wrong. It is NULL if the line is empty or of no use to programs: no default,
 * or a kernel's API. */
bool conf_line(const char *line, struct conf_entry *entry, const char **wrong);

void conf_free(struct conf_entry *entry);

/* Reads the file, and passes the entries to `add` in their order. */
void conf_read(void (*add)(struct conf_entry *entry));

/* registry.c */

/* Reads dat.conf at the first call. False while the library is being unloaded. */
bool registry_ready(void);

/* A provider in use: its library is loaded, and its table is in the registry. */
struct use {
    struct library *library; /* NULL if dat.conf has no such IA: somebody else added the table */
    struct table *table;
};

/* Begins a use; the first one loads the library. */
DAT_RETURN registry_use(const DAT_PROVIDER_INFO *info, struct use *use);

const DAT_PROVIDER *registry_table(const struct use *use);

/* Ends a use; the last one unloads the library. */
void registry_unuse(struct use *use);

/* ia.c */

/* Locks and unlocks the list of IAs, for a fork. */
void ias_lock(void);
void ias_unlock(void);

/* The provider's object of an open IA. */
DAT_RETURN ia_object(DAT_IA_HANDLE ia, DAT_IA_HANDLE *object);

/* The provider's object of a handle of any kind. */
DAT_RETURN any_object(DAT_HANDLE handle, DAT_HANDLE *object);

/* Whether a handle can be a pointer: the first page of the address space is never mapped. */
static inline bool is_pointer(DAT_HANDLE handle)
{
    return (uintptr_t)handle >= 4096;
}

/* log.c */

/* Bits of the environment variable DAT_DBG_TYPE. */
enum log_type {
    LOG_ERROR = 0x01,
    LOG_GENERAL = 0x02,
    LOG_CONF = 0x04,
    LOG_TABLES = 0x08,
    LOG_PROVIDER_CALLS = 0x10,
    LOG_PROGRAM_CALLS = 0x20,
};

/* Reads the environment. */
void log_init(void);

/* Writes one line to the places that DAT_DBG_DEST names. */
void log_line(enum log_type type, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
