/* A program with privileges, linked with Doorbell's libdat2. Called with the path of libdoorbell.so.
 * Says what of its environment it has used: the IA "evil" of the dat.conf that DAT_OVERRIDE names,
 * and in the log of the provider, which DOORBELL_LOG asks for. */
#include "guest.h"

#include <dlfcn.h>

int main(int argc, char **argv)
{
    DAT_PROVIDER_INFO infos[64], *list[64], info;
    void (*init)(const DAT_PROVIDER_INFO *, const char *);
    DAT_COUNT count = 0;
    void *library;

    (void)argc;
    alarm(PATIENCE);
    CHECK(geteuid() == 0);
    for (int i = 0; i < 64; i++)
        list[i] = &infos[i];
    OK(dat_registry_list_providers(64, &count, list));
    for (int i = 0; i < count; i++)
        printf("has %s\n", infos[i].ia_name);
    library = dlopen(argv[1], RTLD_NOW);
    CHECK(library != NULL);
    if (library != NULL) {
        *(void **)&init = dlsym(library, "dat_provider_init");
        memset(&info, 0, sizeof info);
        strcpy(info.ia_name, "own");
        info.dapl_version_major = 2;
        init(&info, "");
    }
    return finish();
}
