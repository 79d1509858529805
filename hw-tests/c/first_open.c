/* What the first open of an IA does ahead of a program's first calls. */
#include "rig.h"
#include <errno.h>
#include <sys/mman.h>

/* Linux 5.14. */
#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#endif

/* The value of a line of smaps in KiB, if it is the line of this name. */
static int size_of(const char *line, const char *name, unsigned long *kib)
{
    return strncmp(line, name, strlen(name)) == 0 && sscanf(line + strlen(name), "%lu", kib) == 1;
}

/* No later call has a page fault for the provider's code or constants. */
TEST(all_code_is_mapped)
{
    char line[1024];
    FILE *maps = fopen("/proc/self/smaps", "r");
    unsigned long size = 0, present = 0;
    int ours = 0, constants = 0, code = 0;

    CHECK(maps);
    while (fgets(line, sizeof line, maps)) {
        char rights[5];

        if (sscanf(line, "%*x-%*x %4s", rights) == 1) {
            int library = strstr(line, "/libdoorbell.so") != NULL;
            int executable = library && !strcmp(rights, "r-xp");
            /* Behind the code are data that the loader makes read-only. */
            int constant = library && !strcmp(rights, "r--p") && code == 0;

            ours = executable || constant;
            code += executable;
            constants += constant;
        } else if (ours) {
            size_of(line, "Size:", &size);
            if (size_of(line, "Rss:", &present) && present != size) {
                printf("%lu of %lu KiB are present\n", present, size);
                /* Only if this kernel cannot. */
                CHECK(madvise(NULL, 0, MADV_POPULATE_READ) != 0 && errno == EINVAL);
            }
        }
    }
    fclose(maps);
    CHECK(constants > 0 && code > 0);
}

/* libibverbs has loaded only the driver of the one device: the drivers of other makers are in its
 * folder. */
TEST(other_drivers_are_not_loaded)
{
    char line[1024];
    FILE *maps;
    int own = 0;

    if (no_software_device("other_drivers_are_not_loaded"))
        return;
    maps = fopen("/proc/self/maps", "r");
    CHECK(maps);
    while (fgets(line, sizeof line, maps)) {
        own += strstr(line, "/libmlx5.so") != NULL;
        if (strstr(line, "/libibverbs/") && !strstr(line, "mlx5"))
            complain("loaded: %s", line);
    }
    fclose(maps);
    CHECK(own > 0);
}

int main(int argc, char **argv)
{
    return run_tests(argc, argv);
}
