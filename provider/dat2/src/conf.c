/* dat.conf: a line for each IA.
 *
 * Eight fields, divided by blanks: the IA's name, the version of the API, thread safety, whether
 * the line is for everybody, the library, the provider's version, parameters for the provider, and
 * parameters that nobody reads. A field with blanks, and an empty one, stands in quotation marks;
 * there a backslash takes the next character as it is. A `#` where a field could begin starts a
 * comment. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "internal.h"

#define DEFAULT_FILE "/etc/dat.conf"

enum { FIELDS = 8 };

static const char *const field_names[] = {
    "IA name",      "API version",      "thread safety", "default",
    "library path", "provider version", "IA parameters", "platform parameters",
};

/* The fields of a line, copied to one buffer. */
struct fields {
    const char *rest; /* of the line */
    char *to;         /* in the buffer */
    char *of[FIELDS + 1];
    int count;
};

static bool is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

/* Reads a field in quotation marks. False if the closing mark is missing. */
static bool take_quoted(struct fields *fields)
{
    const char *from = fields->rest + 1;

    while (*from != '"') {
        if (*from == '\\')
            from++;
        if (*from == '\0' || *from == '\n')
            return false;
        *fields->to++ = *from++;
    }
    fields->rest = from + 1;
    return true;
}

/* Reads a word. It ends with a blank, or with a quotation mark, which is part of the word. */
static void take_word(struct fields *fields)
{
    const char *from = fields->rest;
    bool last = false;

    while (*from != '\0' && !is_blank(*from) && !last) {
        last = *from == '"' && from[-1] != '\\';
        *fields->to++ = *from++;
    }
    fields->rest = from;
}

/* Splits a line into its fields, and reads one field more than a line may have. False if a closing
 * quotation mark is missing. */
static bool split(struct fields *fields)
{
    while (fields->count <= FIELDS) {
        while (is_blank(*fields->rest))
            fields->rest++;
        if (*fields->rest == '\0' || *fields->rest == '#')
            return true;
        fields->of[fields->count] = fields->to;
        if (*fields->rest != '"') {
            take_word(fields);
        } else if (!take_quoted(fields)) {
            fields->of[fields->count] = NULL;
            return false;
        }
        *fields->to++ = '\0';
        fields->count++;
    }
    return true;
}

/* Reads a decimal number that ends with `end`, and moves behind that character. */
static bool take_number(const char **text, char end, DAT_UINT32 *number)
{
    char *behind;
    unsigned long value;

    if (**text < '0' || **text > '9')
        return false;
    errno = 0;
    value = strtoul(*text, &behind, 10);
    if (errno != 0 || value > INT32_MAX || *behind != end)
        return false;
    *number = (DAT_UINT32)value;
    *text = end == '\0' ? behind : behind + 1;
    return true;
}

/* Reads the version of an API: `u2.0` for user level programs, `k2.0` for the kernel. A missing
 * minor version is 0. */
static bool api_version(const char *text, bool *user, DAT_PROVIDER_INFO *info)
{
    if (*text != 'u' && *text != 'k')
        return false;
    *user = *text++ == 'u';
    info->dapl_version_minor = 0;
    return take_number(&text, '\0', &info->dapl_version_major) ||
           (take_number(&text, '.', &info->dapl_version_major) &&
            take_number(&text, '\0', &info->dapl_version_minor));
}

/* Reads a provider's version: `name.0.1`. */
static bool provider_version(const char *text)
{
    DAT_UINT32 number;
    const char *dot = strchr(text, '.');

    if (dot == NULL || dot == text)
        return false;
    text = dot + 1;
    return take_number(&text, '.', &number) && take_number(&text, '\0', &number);
}

/* Compares only the beginning of the field with each word. */
static bool word(const char *text, const char *yes, const char *no, bool *answer)
{
    *answer = strncmp(text, yes, strlen(yes)) == 0;
    return *answer || strncmp(text, no, strlen(no)) == 0;
}

/* The index of the first field that is wrong or missing, or FIELDS. */
static int check(char *const of[FIELDS], DAT_PROVIDER_INFO *info, bool *usable)
{
    bool user, thread_safe, everybody;

    if (of[0] == NULL || strlen(of[0]) >= sizeof info->ia_name)
        return 0;
    if (of[1] == NULL || !api_version(of[1], &user, info))
        return 1;
    if (of[2] == NULL || !word(of[2], "threadsafe", "nonthreadsafe", &thread_safe))
        return 2;
    if (of[3] == NULL || !word(of[3], "default", "nondefault", &everybody))
        return 3;
    if (of[4] == NULL)
        return 4;
    if (of[5] == NULL || !provider_version(of[5]))
        return 5;
    for (int field = 6; field < FIELDS; field++)
        if (of[field] == NULL)
            return field;
    memset(info->ia_name, 0, sizeof info->ia_name);
    memcpy(info->ia_name, of[0], strlen(of[0]));
    info->is_thread_safe = thread_safe ? DAT_TRUE : DAT_FALSE;
    *usable = user && everybody;
    return FIELDS;
}

/* Says which field is wrong; NULL if none is. */
static const char *examine(struct fields *fields, DAT_PROVIDER_INFO *info, bool *usable)
{
    bool complete = split(fields);
    int field;

    if (complete && fields->count == 0)
        return NULL;
    field = check(fields->of, info, usable);
    if (field < FIELDS)
        return field_names[field];
    return complete && fields->count == FIELDS ? NULL : "a ninth field";
}

bool conf_line(const char *line, struct conf_entry *entry, const char **wrong)
{
    struct fields fields = {.rest = line};
    bool usable = false;

    /* Room for the NUL behind each field, also behind one field too many. */
    entry->text = fields.to = malloc(strlen(line) + FIELDS + 1);
    if (entry->text == NULL) {
        *wrong = "no memory";
        return false;
    }
    *wrong = examine(&fields, &entry->info, &usable);
    if (*wrong != NULL || !usable) {
        conf_free(entry);
        return false;
    }
    entry->library = fields.of[4];
    entry->ia_params = fields.of[6];
    return true;
}

void conf_free(struct conf_entry *entry)
{
    free(entry->text);
}

static void read_lines(FILE *file, const char *path, void (*add)(struct conf_entry *entry))
{
    char *line = NULL;
    size_t size = 0;
    const char *wrong;
    struct conf_entry entry;

    for (unsigned number = 1; getline(&line, &size, file) >= 0; number++) {
        if (conf_line(line, &entry, &wrong)) {
            log_line(LOG_CONF, "%s:%u: %s is in %s, with \"%s\"", path, number, entry.info.ia_name,
                     entry.library, entry.ia_params);
            add(&entry);
        } else if (wrong != NULL) {
            log_line(LOG_ERROR, "%s:%u: ignored, wrong is: %s", path, number, wrong);
        }
    }
    free(line);
}

void conf_read(void (*add)(struct conf_entry *entry))
{
    const char *path = secure_getenv("DAT_OVERRIDE");
    FILE *file;

    if (path == NULL)
        path = DEFAULT_FILE;
    file = fopen(path, "re");
    if (file == NULL) {
        log_line(LOG_CONF, "cannot read %s: %s", path, strerror(errno));
        return;
    }
    log_line(LOG_CONF, "reading %s", path);
    read_lines(file, path, add);
    fclose(file);
}
