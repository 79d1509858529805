/* Loads a plug-in outside the global scope, runs it and unloads it, twice. */
#include <dlfcn.h>
#include <stdio.h>

int main(int argc, char **argv)
{
    for (int round = 0; round < 2; round++) {
        void *plugin = argc == 2 ? dlopen(argv[1], RTLD_NOW | RTLD_LOCAL) : NULL;
        void (*run)(void) = plugin ? (void (*)(void))dlsym(plugin, "run") : NULL;
        if (!run) {
            fprintf(stderr, "%s\n", dlerror());
            return 1;
        }
        run();
        dlclose(plugin);
    }
    puts("fine");
    return 0;
}
