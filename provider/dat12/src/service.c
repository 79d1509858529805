/* Service points, connection requests, protection zones: the same in both interfaces. */
#include "shim.h"

DAT_RETURN dat_cr_query(DAT_CR_HANDLE cr_handle, DAT_CR_PARAM_MASK cr_param_mask, DAT_CR_PARAM *cr_param)
{
    if (OUTSIDE(cr_param_mask, DAT_CR_FIELD_ALL))
        return INVALID_ARG(2);
    return CALL(dat_cr_query, cr_handle, cr_param_mask, cr_param);
}

DAT_RETURN dat_cr_accept(DAT_CR_HANDLE cr_handle, DAT_EP_HANDLE ep_handle, DAT_COUNT private_data_size,
                         const DAT_PVOID private_data)
{
    return CALL(dat_cr_accept, cr_handle, ep_handle, private_data_size, private_data);
}

/* The function of 2.0 can send private data. */
DAT_RETURN dat_cr_reject(DAT_CR_HANDLE cr_handle)
{
    return CALL(dat_cr_reject, cr_handle, 0, NULL);
}

DAT_RETURN dat_cr_handoff(DAT_CR_HANDLE cr_handle, DAT_CONN_QUAL handoff)
{
    return CALL(dat_cr_handoff, cr_handle, handoff);
}

DAT_RETURN dat_psp_create(DAT_IA_HANDLE ia_handle, DAT_CONN_QUAL conn_qual, DAT_EVD_HANDLE evd_handle,
                          DAT_PSP_FLAGS psp_flags, DAT_PSP_HANDLE *psp_handle)
{
    if (OUTSIDE(psp_flags, DAT_PSP_PROVIDER_FLAG))
        return INVALID_ARG(4);
    return CALL(dat_psp_create, ia_handle, conn_qual, evd_handle, psp_flags, psp_handle);
}

DAT_RETURN dat_psp_create_any(DAT_IA_HANDLE ia_handle, DAT_CONN_QUAL *conn_qual, DAT_EVD_HANDLE evd_handle,
                              DAT_PSP_FLAGS psp_flags, DAT_PSP_HANDLE *psp_handle)
{
    if (OUTSIDE(psp_flags, DAT_PSP_PROVIDER_FLAG))
        return INVALID_ARG(4);
    return CALL(dat_psp_create_any, ia_handle, conn_qual, evd_handle, psp_flags, psp_handle);
}

DAT_RETURN dat_psp_query(DAT_PSP_HANDLE psp_handle, DAT_PSP_PARAM_MASK psp_param_mask, DAT_PSP_PARAM *psp_param)
{
    if (OUTSIDE(psp_param_mask, DAT_PSP_FIELD_ALL))
        return INVALID_ARG(2);
    return CALL(dat_psp_query, psp_handle, psp_param_mask, psp_param);
}

DAT_RETURN dat_psp_free(DAT_PSP_HANDLE psp_handle)
{
    return CALL(dat_psp_free, psp_handle);
}

DAT_RETURN dat_rsp_create(DAT_IA_HANDLE ia_handle, DAT_CONN_QUAL conn_qual, DAT_EP_HANDLE ep_handle,
                          DAT_EVD_HANDLE evd_handle, DAT_RSP_HANDLE *rsp_handle)
{
    return CALL(dat_rsp_create, ia_handle, conn_qual, ep_handle, evd_handle, rsp_handle);
}

DAT_RETURN dat_rsp_query(DAT_RSP_HANDLE rsp_handle, DAT_RSP_PARAM_MASK rsp_param_mask, DAT_RSP_PARAM *rsp_param)
{
    if (OUTSIDE(rsp_param_mask, DAT_RSP_FIELD_ALL))
        return INVALID_ARG(2);
    return CALL(dat_rsp_query, rsp_handle, rsp_param_mask, rsp_param);
}

DAT_RETURN dat_rsp_free(DAT_RSP_HANDLE rsp_handle)
{
    return CALL(dat_rsp_free, rsp_handle);
}

DAT_RETURN dat_pz_create(DAT_IA_HANDLE ia_handle, DAT_PZ_HANDLE *pz_handle)
{
    return CALL(dat_pz_create, ia_handle, pz_handle);
}

DAT_RETURN dat_pz_query(DAT_PZ_HANDLE pz_handle, DAT_PZ_PARAM_MASK pz_param_mask, DAT_PZ_PARAM *pz_param)
{
    if (OUTSIDE(pz_param_mask, DAT_PZ_FIELD_ALL))
        return INVALID_ARG(2);
    return CALL(dat_pz_query, pz_handle, pz_param_mask, pz_param);
}

DAT_RETURN dat_pz_free(DAT_PZ_HANDLE pz_handle)
{
    return CALL(dat_pz_free, pz_handle);
}
