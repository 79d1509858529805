/* A library of DAT 2.0 in a program of DAT 1.2: each gets its own functions, although the names are
 * the same. */
#include <netinet/in.h>

#include <dat2/udat.h>

int beside(char *name);

/* Returns 0, or the step that failed. */
int beside(char *name)
{
    DAT_EVD_HANDLE async = DAT_HANDLE_NULL;
    DAT_IA_HANDLE ia;
    DAT_IA_ATTR attr;
    DAT_PROVIDER_ATTR provider;
    DAT_EP_STATE state;

    if (dat_ia_open(name, 8, &async, &ia) != DAT_SUCCESS)
        return 1;
    /* DAT 1.2 does not define these masks. */
    if (dat_ia_query(ia, NULL, DAT_IA_FIELD_ALL, &attr, DAT_PROVIDER_FIELD_ALL, &provider) != DAT_SUCCESS)
        return 2;
    if (provider.dapl_version_major != 2)
        return 3;
    if (dat_ep_get_status(async, &state, NULL, NULL) != DAT_SUCCESS || state != DAT_EP_STATE_CONNECTED_MULTI_PATH)
        return 4;
    return dat_ia_close(ia, DAT_CLOSE_ABRUPT_FLAG) == DAT_SUCCESS ? 0 : 5;
}
