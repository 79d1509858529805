/* Lines of dat.conf: what is wrong with them, and which IAs they give.
 *
 * conf_test                reads each line by conf_line, and the numbers of wrong lines of a file
 * conf_test LIBRARY DIR    each line, as a file in DIR, through dat_registry_list_providers of any
 *                          libdat2
 * conf_test LIBRARY        prints what that libdat2 lists: for the above */
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../src/internal.h"
#include "check.h"

/* The beginning and the end of correct lines. */
#define HEAD "a u2.0 nonthreadsafe default lib.so id.1.2 "
#define REST " u2.0 nonthreadsafe default lib.so id.1.2 p q"

#define GOOD(line, name, major, minor, thread_safe, library, params) \
    {line, NULL, name, major, minor, thread_safe, library, params, 0}
#define WRONG(line, field) {line, field, NULL, 0, 0, 0, NULL, NULL, 0}
/* Not for Debian's libdat2, which reads memory behind the text of these lines. */
#define GOOD_HERE(line, name, major, minor, thread_safe, library, params) \
    {line, NULL, name, major, minor, thread_safe, library, params, 1}
#define WRONG_HERE(line, field) {line, field, NULL, 0, 0, 0, NULL, NULL, 1}

static const struct {
    const char *line;
    const char *wrong; /* the field; "" if the line is of no use; NULL if it gives an IA: */
    const char *name;
    unsigned major, minor;
    int thread_safe;
    const char *library, *params;
    int only_ours;
} lines[] = {
    /* correct lines */
    GOOD("a" REST, "a", 2, 0, 0, "lib.so", "p"),
    GOOD("a" REST "\n", "a", 2, 0, 0, "lib.so", "p"),
    GOOD("a" REST "\r\n", "a", 2, 0, 0, "lib.so", "p"),
    GOOD(" \ta\tu2.0 \t nonthreadsafe\tdefault   lib.so id.1.2 p q  \n", "a", 2, 0, 0, "lib.so",
         "p"),
    GOOD("a u1.2 threadsafe default lib.so id.1.2 p q", "a", 1, 2, 1, "lib.so", "p"),
    GOOD_HERE("a u2 nonthreadsafe default lib.so id.1.2 p q", "a", 2, 0, 0, "lib.so", "p"),
    GOOD("a u12.34 nonthreadsafe default lib.so id.1.2 p q", "a", 12, 34, 0, "lib.so", "p"),
    GOOD("a u2.0 nonthreadsafexyz defaultxyz lib.so id.1.2 p q", "a", 2, 0, 0, "lib.so", "p"),
    GOOD("a u2.0 threadsafexyz default lib.so id.1.2 p q", "a", 2, 0, 1, "lib.so", "p"),
    GOOD("a u2.0 nonthreadsafe default /a/b.so id.0.99 \"mlx5_0 1\" \"\"", "a", 2, 0, 0,
         "/a/b.so", "mlx5_0 1"),
    GOOD("a u2.0 nonthreadsafe default \"\" id.1.2 \"\" \"\"", "a", 2, 0, 0, "", ""),

    /* quotation marks */
    GOOD("\"a b\" \"u2.0\" \"nonthreadsafe\" \"default\" \"l ib\" \"id.1.2\" \"p\" \"q\"", "a b",
         2, 0, 0, "l ib", "p"),
    GOOD(HEAD "\"p\\\"q\\\\r\\ns\\ \" \"x\"", "a", 2, 0, 0, "lib.so", "p\"q\\rns "),
    GOOD(HEAD "p\\\"q x", "a", 2, 0, 0, "lib.so", "p\\\"q"),
    GOOD(HEAD "p\"q", "a", 2, 0, 0, "lib.so", "p\""),
    WRONG(HEAD "p\"q r\"", "a ninth field"),
    GOOD(HEAD "\"p\"\"q\"", "a", 2, 0, 0, "lib.so", "p"),
    WRONG(HEAD "\"p\" \"x\"y", "a ninth field"),
    WRONG(HEAD "\"p q\n", "IA parameters"),
    WRONG(HEAD "p \"q", "platform parameters"),
    WRONG_HERE(HEAD "p \"q\\\"", "platform parameters"),
    WRONG(HEAD "p \"q\\", "platform parameters"),
    WRONG("a \"u2.0 nonthreadsafe default lib.so id.1.2 p q", "API version"),
    WRONG("\"a" REST, "IA name"),

    /* comments */
    WRONG("# a" REST, ""),
    WRONG("  #a" REST, ""),
    GOOD("a" REST " # c", "a", 2, 0, 0, "lib.so", "p"),
    GOOD("a#b" REST "#c", "a#b", 2, 0, 0, "lib.so", "p"),
    GOOD(HEAD "p \"\"# c", "a", 2, 0, 0, "lib.so", "p"),
    GOOD(HEAD "\"#p\" \"\"", "a", 2, 0, 0, "lib.so", "#p"),
    WRONG("a u2.0 nonthreadsafe # default lib.so id.1.2 p q", "default"),
    WRONG("", ""),
    WRONG("\n", ""),
    WRONG(" \t \n", ""),

    /* lines that programs cannot use */
    WRONG("a u2.0 nonthreadsafe nondefault lib.so id.1.2 p q", ""),
    WRONG("a k2.0 nonthreadsafe default lib.so id.1.2 p q", ""),

    /* fields that are missing or wrong, and one too many */
    WRONG("a", "API version"),
    WRONG("a u2.0", "thread safety"),
    WRONG("a u2.0 nonthreadsafe", "default"),
    WRONG("a u2.0 nonthreadsafe default", "library path"),
    WRONG("a u2.0 nonthreadsafe default lib.so", "provider version"),
    WRONG(HEAD, "IA parameters"),
    WRONG(HEAD "p", "platform parameters"),
    WRONG("a" REST " r", "a ninth field"),
    WRONG("a" REST " \"r", "a ninth field"),
    WRONG("a 2.0 nonthreadsafe default lib.so id.1.2 p q", "API version"),
    WRONG("a U2.0 nonthreadsafe default lib.so id.1.2 p q", "API version"),
    WRONG_HERE("a u nonthreadsafe default lib.so id.1.2 p q", "API version"),
    WRONG("a u2.x nonthreadsafe default lib.so id.1.2 p q", "API version"),
    WRONG("a u2.0x nonthreadsafe default lib.so id.1.2 p q", "API version"),
    WRONG("a u2.0.1 nonthreadsafe default lib.so id.1.2 p q", "API version"),
    WRONG("a u2.0 nonthread default lib.so id.1.2 p q", "thread safety"),
    WRONG("a u2.0 unsafe default lib.so id.1.2 p q", "thread safety"),
    WRONG("a u2.0 nonthreadsafe def lib.so id.1.2 p q", "default"),
    WRONG("a u2.0 nonthreadsafe default lib.so id.1 p q", "provider version"),
    WRONG("a u2.0 nonthreadsafe default lib.so id.x.2 p q", "provider version"),
    WRONG("a u2.0 nonthreadsafe default lib.so id.1.y p q", "provider version"),
    WRONG("a u2.0 nonthreadsafe default lib.so my.id.1.2 p q", "provider version"),
    WRONG("a u2.0 nonthreadsafe default lib.so id.1.2.3 p q", "provider version"),
    WRONG("a u2.0 nonthreadsafe default lib.so .1.2 p q", "provider version"),
};

enum { LINES = sizeof lines / sizeof *lines };

/* A failed check names the line of the table. */
#define AT(n, condition) check(condition, lines[n].line, #condition, n)

static void by_line(void)
{
    for (int n = 0; n < LINES; n++) {
        struct conf_entry entry;
        const char *wrong = "unset";

        if (!conf_line(lines[n].line, &entry, &wrong)) {
            AT(n, lines[n].wrong != NULL);
            if (lines[n].wrong != NULL)
                AT(n, strcmp(wrong == NULL ? "" : wrong, lines[n].wrong) == 0);
        } else if (lines[n].wrong != NULL) {
            AT(n, !"an IA");
            conf_free(&entry);
        } else {
            AT(n, strcmp(entry.info.ia_name, lines[n].name) == 0);
            AT(n, entry.info.dapl_version_major == lines[n].major);
            AT(n, entry.info.dapl_version_minor == lines[n].minor);
            AT(n, (int)entry.info.is_thread_safe == lines[n].thread_safe);
            AT(n, strcmp(entry.library, lines[n].library) == 0);
            AT(n, strcmp(entry.ia_params, lines[n].params) == 0);
            conf_free(&entry);
        }
    }
}

/* A name has 255 characters at most. */
static void long_names(void)
{
    for (size_t length = 255; length <= 256; length++) {
        char line[512] = "";
        struct conf_entry entry;
        const char *wrong;
        bool good;

        memset(line, 'n', length);
        strcat(line, REST);
        good = conf_line(line, &entry, &wrong);
        CHECK(good == (length == 255));
        if (good)
            conf_free(&entry);
        else
            CHECK(strcmp(wrong, "IA name") == 0);
    }
}

static unsigned added;

static void add(struct conf_entry *entry)
{
    CHECK(strcmp(entry->info.ia_name, added == 0 ? "first" : "last") == 0);
    added++;
    conf_free(entry);
}

/* The messages for a file whose lines 2 and 4 are wrong. */
static void by_file(void)
{
    static const char text[] = "first" REST "\n"
                               "second u2.0 unsafe default lib.so id.1.2 p q\n"
                               "\n"
                               "fourth u2.0\n"
                               "last" REST;
    char path[] = "/tmp/dat.conf.XXXXXX", said[512] = "";
    int file = mkstemp(path), out[2], before = dup(1);

    CHECK(file >= 0 && write(file, text, strlen(text)) == (ssize_t)strlen(text));
    CHECK(setenv("DAT_OVERRIDE", path, 1) == 0 && pipe(out) == 0);
    fflush(stdout);
    dup2(out[1], 1);
    conf_read(add);
    fflush(stdout);
    dup2(before, 1);
    close(out[1]);
    CHECK(read(out[0], said, sizeof said - 1) > 0);
    CHECK(added == 2);
    CHECK(strstr(said, ":2: ") != NULL && strstr(said, "thread safety") != NULL);
    CHECK(strstr(said, ":4: ") != NULL && strstr(said, "default") == NULL);
    CHECK(strstr(said, ":1: ") == NULL && strstr(said, ":3: ") == NULL);
    CHECK(strstr(said, ":5: ") == NULL);
    close(file);
    unlink(path);
    /* A missing file has no IAs and causes no message. */
    conf_read(add);
    CHECK(added == 2);
}

/* The same through a libdat2. */

static void print_list(const char *library)
{
    DAT_RETURN (*list)(DAT_COUNT, DAT_COUNT *, DAT_PROVIDER_INFO *[]);
    DAT_PROVIDER_INFO infos[4], *to[4] = {&infos[0], &infos[1], &infos[2], &infos[3]};
    DAT_COUNT n = 0;
    void *found = dlopen(library, RTLD_NOW), *address;

    if (found == NULL || (address = dlsym(found, "dat_registry_list_providers")) == NULL) {
        puts(dlerror());
        exit(1);
    }
    memcpy(&list, &address, sizeof list);
    list(4, &n, to);
    for (int i = 0; i < n; i++)
        printf("ia <%s> %u.%u %d;", infos[i].ia_name, infos[i].dapl_version_major,
               infos[i].dapl_version_minor, (int)infos[i].is_thread_safe);
    puts("end");
}

static void by_list(const char *self, const char *library, const char *dir)
{
    char path[4096], command[8192], said[512], expected[512];

    snprintf(path, sizeof path, "%s/line.conf", dir);
    CHECK(setenv("DAT_OVERRIDE", path, 1) == 0);
    snprintf(command, sizeof command, "DAT_DBG_TYPE=0 '%s' '%s'", self, library);
    for (int n = 0; n < LINES; n++) {
        FILE *file = fopen(path, "w"), *output;

        if (lines[n].only_ours && getenv("OURS") == NULL)
            continue;
        CHECK(file != NULL && fputs(lines[n].line, file) >= 0 && fclose(file) == 0);
        output = popen(command, "r");
        said[0] = '\0';
        AT(n, output != NULL && fgets(said, sizeof said, output) != NULL);
        AT(n, output != NULL && pclose(output) == 0);
        if (lines[n].wrong != NULL)
            strcpy(expected, "end\n");
        else
            snprintf(expected, sizeof expected, "ia <%s> %u.%u %d;end\n", lines[n].name,
                     lines[n].major, lines[n].minor, lines[n].thread_safe);
        AT(n, strcmp(said, expected) == 0);
    }
}

int main(int argc, char **argv)
{
    if (argc == 2) {
        print_list(argv[1]);
        return 0;
    }
    if (argc == 3) {
        by_list(argv[0], argv[1], argv[2]);
    } else {
        by_line();
        long_names();
        by_file();
    }
    return summary();
}
