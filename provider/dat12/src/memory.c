/* LMRs and RMRs. */
#include "memory.h"

#include <pthread.h>
#include <stdlib.h>

#include "shim.h"

struct lmr {
    struct lmr *next;
    DAT_IA_HANDLE ia;
    DAT_PZ_HANDLE pz;
    DAT_LMR_HANDLE handle;
    DAT_LMR_CONTEXT context;
};

#define BUCKETS 1024

/* LMRs by handle; `lock` guards all of them. It is never held during a call of a provider that
 * could call back. */
static struct lmr *lmrs[BUCKETS];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void before_fork(void)
{
    pthread_mutex_lock(&lock);
}

static void after_fork(void)
{
    pthread_mutex_unlock(&lock);
}

/* The thread that forks holds the lock, so that it is free in the child. */
__attribute__((constructor)) static void watch_forks(void)
{
    pthread_atfork(before_fork, after_fork, after_fork);
}

static struct lmr **bucket(DAT_LMR_HANDLE handle)
{
    return &lmrs[((uintptr_t)handle >> 4) % BUCKETS];
}

static void remember(struct lmr *lmr)
{
    struct lmr **first = bucket(lmr->handle);

    pthread_mutex_lock(&lock);
    lmr->next = *first;
    *first = lmr;
    pthread_mutex_unlock(&lock);
}

/* Takes an LMR out of the table; the caller frees it or puts it back. NULL if the handle is not
 * known. */
static struct lmr *take(DAT_LMR_HANDLE handle)
{
    struct lmr *found = NULL;

    pthread_mutex_lock(&lock);
    for (struct lmr **at = bucket(handle); *at != NULL; at = &(*at)->next) {
        if ((*at)->handle == handle) {
            found = *at;
            *at = found->next;
            break;
        }
    }
    pthread_mutex_unlock(&lock);
    return found;
}

static DAT_LMR_HANDLE with_context(DAT_PZ_HANDLE pz, DAT_LMR_CONTEXT context)
{
    DAT_LMR_HANDLE found = DAT_HANDLE_NULL;

    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < BUCKETS && found == DAT_HANDLE_NULL; i++)
        for (struct lmr *lmr = lmrs[i]; lmr != NULL; lmr = lmr->next)
            if (lmr->pz == pz && lmr->context == context)
                found = lmr->handle;
    pthread_mutex_unlock(&lock);
    return found;
}

void forget_lmrs_of(DAT_IA_HANDLE ia)
{
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < BUCKETS; i++) {
        for (struct lmr **at = &lmrs[i]; *at != NULL;) {
            struct lmr *lmr = *at;

            if (lmr->ia == ia) {
                *at = lmr->next;
                free(lmr);
            } else {
                at = &lmr->next;
            }
        }
    }
    pthread_mutex_unlock(&lock);
}

/* Flags that ask for ordering which 2.0 always has are dropped. False for flags that 1.2 does not
 * define. */
static bool privileges_to_v2(DAT_MEM_PRIV_FLAGS from, DAT_UINT32 *to)
{
    *to = (DAT_UINT32)from & DAT_MEM_PRIV_ALL_FLAG;
    return !OUTSIDE(from, DAT_MEM_PRIV_ALL_FLAG | DAT_MEM_PRIV_RO_DISABLE_FLAG);
}

DAT_RETURN dat_lmr_create(DAT_IA_HANDLE ia_handle, DAT_MEM_TYPE mem_type, DAT_REGION_DESCRIPTION region_description,
                          DAT_VLEN length, DAT_PZ_HANDLE pz_handle, DAT_MEM_PRIV_FLAGS mem_privileges,
                          DAT_LMR_HANDLE *lmr_handle, DAT_LMR_CONTEXT *lmr_context, DAT_RMR_CONTEXT *rmr_context,
                          DAT_VLEN *registered_size, DAT_VADDR *registered_address)
{
    /* 2.0 has va_type as its seventh argument. */
    static const unsigned char places[11] = {0, 1, 2, 3, 4, 5, 6, 0, 7, 8, 9};
    DAT_UINT32 type = mem_type == DAT_MEM_TYPE_SO_VIRTUAL ? DAT_MEM_TYPE_VIRTUAL : (DAT_UINT32)mem_type;
    DAT_UINT32 privileges;
    DAT_LMR_CONTEXT context = 0;
    struct lmr *lmr;
    DAT_RETURN ret;

    if (type > DAT_MEM_TYPE_SHARED_VIRTUAL)
        return INVALID_ARG(2);
    if (!privileges_to_v2(mem_privileges, &privileges))
        return INVALID_ARG(6);
    if (lmr_handle == NULL)
        return INVALID_ARG(7);
    lmr = malloc(sizeof *lmr);
    if (lmr == NULL)
        return DAT_CLASS_ERROR | DAT_INSUFFICIENT_RESOURCES | DAT_RESOURCE_MEMORY;
    ret = v1_status_placed(V2(dat_lmr_create, ia_handle, type, region_description, length, pz_handle, privileges,
                              V2_VA_TYPE_VA, lmr_handle, &context, rmr_context, registered_size, registered_address),
                           places);
    if (ret != DAT_SUCCESS) {
        free(lmr);
        return ret;
    }
    if (lmr_context != NULL)
        *lmr_context = context;
    lmr->ia = ia_handle;
    lmr->pz = pz_handle;
    lmr->handle = *lmr_handle;
    lmr->context = context;
    remember(lmr);
    return DAT_SUCCESS;
}

DAT_RETURN dat_lmr_free(DAT_LMR_HANDLE lmr_handle)
{
    struct lmr *lmr = take(lmr_handle);
    DAT_RETURN ret = CALL(dat_lmr_free, lmr_handle);

    if (ret == DAT_SUCCESS)
        free(lmr);
    else if (lmr != NULL)
        remember(lmr);
    return ret;
}

DAT_RETURN dat_lmr_query(DAT_LMR_HANDLE lmr_handle, DAT_LMR_PARAM_MASK lmr_param_mask, DAT_LMR_PARAM *lmr_param)
{
    /* 2.0 has VA_TYPE behind MEM_PRIV. */
    DAT_UINT32 first = DAT_LMR_FIELD_LMR_CONTEXT - 1;
    DAT_UINT32 mask = ((DAT_UINT32)lmr_param_mask & first) | ((DAT_UINT32)lmr_param_mask & ~first) << 1;
    struct v2_lmr_param param = {0};
    DAT_RETURN ret;

    if (OUTSIDE(lmr_param_mask, DAT_LMR_FIELD_ALL))
        return INVALID_ARG(2);
    ret = CALL(dat_lmr_query, lmr_handle, mask, lmr_param == NULL ? NULL : &param);
    if (ret != DAT_SUCCESS || lmr_param == NULL)
        return ret;
#define GIVE(bit, field, type)                                                                                         \
    if ((lmr_param_mask & DAT_LMR_FIELD_##bit) != 0)                                                                   \
    lmr_param->field = (type)param.field
    GIVE(IA_HANDLE, ia_handle, DAT_IA_HANDLE);
    GIVE(MEM_TYPE, mem_type, DAT_MEM_TYPE);
    if ((lmr_param_mask & DAT_LMR_FIELD_REGION_DESC) != 0)
        lmr_param->region_desc = param.region_desc;
    GIVE(LENGTH, length, DAT_VLEN);
    GIVE(PZ_HANDLE, pz_handle, DAT_PZ_HANDLE);
    GIVE(MEM_PRIV, mem_priv, DAT_MEM_PRIV_FLAGS);
    GIVE(LMR_CONTEXT, lmr_context, DAT_LMR_CONTEXT);
    GIVE(RMR_CONTEXT, rmr_context, DAT_RMR_CONTEXT);
    GIVE(REGISTERED_SIZE, registered_size, DAT_VLEN);
    GIVE(REGISTERED_ADDRESS, registered_address, DAT_VADDR);
#undef GIVE
    return DAT_SUCCESS;
}

/* In several calls, because the number of segments has no limit. */
static DAT_RETURN sync(DAT_UINT32 (*call)(DAT_IA_HANDLE, const struct v2_lmr_triplet *, DAT_VLEN), DAT_IA_HANDLE ia,
                       const DAT_LMR_TRIPLET *from, DAT_VLEN segments)
{
    struct v2_lmr_triplet to[64];
    DAT_VLEN done = 0;

    if (from == NULL)
        return v1_status(call(ia, NULL, segments));
    do {
        DAT_VLEN n = 0;
        DAT_RETURN ret;

        for (; n < sizeof to / sizeof *to && done + n < segments; n++)
            if (!lmr_triplet_to_v2(&from[done + n], &to[n]))
                return INVALID_ARG(2);
        ret = v1_status(call(ia, to, n));
        if (ret != DAT_SUCCESS)
            return ret;
        done += n;
    } while (done < segments);
    return DAT_SUCCESS;
}

DAT_RETURN dat_lmr_sync_rdma_read(DAT_IA_HANDLE ia_handle, const DAT_LMR_TRIPLET *local_segments, DAT_VLEN num_segments)
{
    if (!v2_ready())
        return DAT_CLASS_ERROR | DAT_PROVIDER_NOT_FOUND;
    return sync(v2.dat_lmr_sync_rdma_read, ia_handle, local_segments, num_segments);
}

DAT_RETURN dat_lmr_sync_rdma_write(DAT_IA_HANDLE ia_handle, const DAT_LMR_TRIPLET *local_segments,
                                   DAT_VLEN num_segments)
{
    if (!v2_ready())
        return DAT_CLASS_ERROR | DAT_PROVIDER_NOT_FOUND;
    return sync(v2.dat_lmr_sync_rdma_write, ia_handle, local_segments, num_segments);
}

DAT_RETURN dat_rmr_create(DAT_PZ_HANDLE pz_handle, DAT_RMR_HANDLE *rmr_handle)
{
    return CALL(dat_rmr_create, pz_handle, rmr_handle);
}

DAT_RETURN dat_rmr_query(DAT_RMR_HANDLE rmr_handle, DAT_RMR_PARAM_MASK rmr_param_mask, DAT_RMR_PARAM *rmr_param)
{
    struct v2_rmr_param param = {0};
    DAT_RETURN ret;

    if (OUTSIDE(rmr_param_mask, DAT_RMR_FIELD_ALL))
        return INVALID_ARG(2);
    ret = CALL(dat_rmr_query, rmr_handle, rmr_param_mask, rmr_param == NULL ? NULL : &param);
    if (ret != DAT_SUCCESS || rmr_param == NULL)
        return ret;
    if ((rmr_param_mask & DAT_RMR_FIELD_IA_HANDLE) != 0)
        rmr_param->ia_handle = param.ia_handle;
    if ((rmr_param_mask & DAT_RMR_FIELD_PZ_HANDLE) != 0)
        rmr_param->pz_handle = param.pz_handle;
    if ((rmr_param_mask & DAT_RMR_FIELD_LMR_TRIPLET) != 0)
        rmr_param->lmr_triplet = (DAT_LMR_TRIPLET){
            .lmr_context = param.lmr_triplet.lmr_context,
            .virtual_address = param.lmr_triplet.virtual_address,
            .segment_length = param.lmr_triplet.segment_length,
        };
    if ((rmr_param_mask & DAT_RMR_FIELD_MEM_PRIV) != 0)
        rmr_param->mem_priv = (DAT_MEM_PRIV_FLAGS)param.mem_priv;
    if ((rmr_param_mask & DAT_RMR_FIELD_RMR_CONTEXT) != 0)
        rmr_param->rmr_context = param.rmr_context;
    return DAT_SUCCESS;
}

DAT_RETURN dat_rmr_bind(DAT_RMR_HANDLE rmr_handle, const DAT_LMR_TRIPLET *lmr_triplet,
                        DAT_MEM_PRIV_FLAGS mem_privileges, DAT_EP_HANDLE ep_handle, DAT_RMR_COOKIE user_cookie,
                        DAT_COMPLETION_FLAGS completion_flags, DAT_RMR_CONTEXT *rmr_context)
{
    /* 2.0 has the LMR's handle as its second argument and va_type as its fifth. */
    static const unsigned char places[11] = {0, 1, 2, 2, 3, 0, 4, 5, 6, 7, 0};
    struct v2_lmr_triplet triplet;
    struct v2_rmr_param param = {0};
    DAT_LMR_HANDLE lmr;
    DAT_UINT32 privileges;
    DAT_RETURN ret;

    if (lmr_triplet == NULL || !lmr_triplet_to_v2(lmr_triplet, &triplet))
        return INVALID_ARG(2);
    if (!privileges_to_v2(mem_privileges, &privileges))
        return INVALID_ARG(3);
    if (OUTSIDE(completion_flags, COMPLETION_FLAGS))
        return INVALID_ARG(6);
    ret = CALL(dat_rmr_query, rmr_handle, V2_RMR_FIELD_PZ_HANDLE, &param);
    if (ret != DAT_SUCCESS)
        return ret;
    /* A length of 0 unbinds, and the context has no effect. */
    lmr = with_context(param.pz_handle, lmr_triplet->lmr_context);
    if (lmr == DAT_HANDLE_NULL && lmr_triplet->segment_length != 0)
        return INVALID_ARG(2);
    return v1_status_placed(V2(dat_rmr_bind, rmr_handle, lmr, &triplet, privileges, V2_VA_TYPE_VA, ep_handle,
                               user_cookie, completion_flags, rmr_context),
                            places);
}

DAT_RETURN dat_rmr_free(DAT_RMR_HANDLE rmr_handle)
{
    return CALL(dat_rmr_free, rmr_handle);
}
