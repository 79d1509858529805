/* Messages. The environment selects them: DAT_DBG_TYPE the kinds, DAT_DBG_DEST the places (1:
 * standard output, 2: the system's log). By default, errors go to standard output. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <syslog.h>

#include "internal.h"

enum { TO_STDOUT = 1, TO_SYSLOG = 2 };

static unsigned types = LOG_ERROR;
static unsigned places = TO_STDOUT;

static unsigned number(const char *variable, unsigned otherwise)
{
    const char *text = secure_getenv(variable);

    return text == NULL ? otherwise : (unsigned)strtol(text, NULL, 0);
}

void log_init(void)
{
    types = number("DAT_DBG_TYPE", types);
    places = number("DAT_DBG_DEST", places);
}

void log_line(enum log_type type, const char *format, ...)
{
    va_list arguments;

    if ((types & type) == 0)
        return;
    if ((places & TO_STDOUT) != 0) {
        flockfile(stdout);
        fputs("libdat2: ", stdout);
        va_start(arguments, format);
        vfprintf(stdout, format, arguments);
        va_end(arguments);
        fputc('\n', stdout);
        fflush(stdout);
        funlockfile(stdout);
    }
    if ((places & TO_SYSLOG) != 0) {
        va_start(arguments, format);
        vsyslog(LOG_USER | LOG_DEBUG, format, arguments);
        va_end(arguments);
    }
}
