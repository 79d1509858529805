/* DAT 2.0: what a provider needs of libdat2. Include <dat2/udat.h> before it. */
#ifndef _DAT_REGISTRY_H_
#define _DAT_REGISTRY_H_

#ifndef _UDAT_H_
#error "include <dat2/udat.h> first"
#endif

#include <dat2/udat_redirection.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A provider's library is loaded when one of its IAs is opened. Its function dat_provider_init adds
 * the table of the IA that it is called for; dat_provider_fini removes the table after the IA's
 * last close. The registry is locked during both calls: they may not open or close an IA. */
#define DAT_PROVIDER_INIT_FUNC_NAME dat_provider_init
#define DAT_PROVIDER_FINI_FUNC_NAME dat_provider_fini
#define DAT_PROVIDER_INIT_FUNC_STR "dat_provider_init"
#define DAT_PROVIDER_FINI_FUNC_STR "dat_provider_fini"

typedef void (*DAT_PROVIDER_INIT_FUNC)(IN const DAT_PROVIDER_INFO *info, IN const char *ia_params);
typedef void (*DAT_PROVIDER_FINI_FUNC)(IN const DAT_PROVIDER_INFO *info);

extern DAT_RETURN dat_registry_add_provider(IN const DAT_PROVIDER *provider,
                                            IN const DAT_PROVIDER_INFO *info);

extern DAT_RETURN dat_registry_remove_provider(IN const DAT_PROVIDER *provider,
                                               IN const DAT_PROVIDER_INFO *info);

/* A provider knows its IAs as objects, a program as numbers: returns one for the other.
 * INVALID_HANDLE while the IA is being opened. */
extern DAT_RETURN dats_get_ia_handle(IN DAT_IA_HANDLE handle, OUT DAT_IA_HANDLE *other);

/* Whether two IAs are ways to the same peers. libdat2 does not have the function. */
typedef enum dat_ha_relationship {
    DAT_HA_FALSE,
    DAT_HA_TRUE,
    DAT_HA_UNKNOWN,
    DAT_HA_CONFLICTING,
    DAT_HA_EXTENSION_BASE
} DAT_HA_RELATIONSHIP;

extern DAT_RETURN dat_registry_providers_related(IN const DAT_NAME_PTR ia_name,
                                                 IN const DAT_NAME_PTR other_ia_name,
                                                 OUT DAT_HA_RELATIONSHIP *answer);

#ifdef __cplusplus
}
#endif

#endif
