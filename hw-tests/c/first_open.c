/* What the first open of an IA loads. */
#include "rig.h"

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
