/* Opens the IA of this name, registers 64 MiB, frees what it has and closes the IA, and prints the
 * codes of opening and registering. Tests of the provider's log use it. */
#include "check.h"

int main(int argc, char **argv)
{
    DAT_EVD_HANDLE async = DAT_HANDLE_NULL;
    DAT_IA_HANDLE ia = DAT_HANDLE_NULL;
    DAT_REGION_DESCRIPTION region;
    DAT_LMR_HANDLE lmr;
    DAT_LMR_CONTEXT context;
    DAT_PZ_HANDLE pz;
    DAT_RETURN ret = dat_ia_open(argv[argc - 1], 8, &async, &ia);

    printf("dat_ia_open gave %#010x\n", ret);
    CHECK((ret == DAT_SUCCESS) == (ia != DAT_HANDLE_NULL));
    if (ret != DAT_SUCCESS)
        return finish();
    OK(dat_pz_create(ia, &pz));
    region.for_va = malloc(64 << 20);
    ret = dat_lmr_create(ia, DAT_MEM_TYPE_VIRTUAL, region, 64 << 20, pz, DAT_MEM_PRIV_ALL_FLAG, DAT_VA_TYPE_VA, &lmr, &context,
                         NULL, NULL, NULL);
    printf("dat_lmr_create gave %#010x\n", ret);
    if (ret == DAT_SUCCESS)
        OK(dat_lmr_free(lmr));
    OK(dat_pz_free(pz));
    OK(dat_ia_close(ia, DAT_CLOSE_GRACEFUL_FLAG));
    return finish();
}
