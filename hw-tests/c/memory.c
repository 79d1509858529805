/* The kinds of memory, and where asynchronous events go. */
#include "check.h"
#include <sys/mman.h>

static void kinds(struct side *a)
{
    DAT_PROVIDER_ATTR provider;
    DAT_REGION_DESCRIPTION region;
    DAT_LMR_HANDLE lmr;
    DAT_LMR_PARAM param;
    DAT_LMR_CONTEXT context;
    DAT_RMR_CONTEXT rmr;
    DAT_VLEN size;
    DAT_VADDR address;
    DAT_LMR_TRIPLET iov[2];
    char cookie[DAT_LMR_COOKIE_SIZE];
    char *shared = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    OK(dat_ia_query(a->ia, NULL, 0, NULL, DAT_PROVIDER_FIELD_ALL, &provider));
    CHECK(provider.lmr_mem_types_supported == (DAT_MEM_TYPE_VIRTUAL | DAT_MEM_TYPE_LMR | DAT_MEM_TYPE_SHARED_VIRTUAL));
    CHECK(a->attr.zb_supported == DAT_TRUE);

    /* Shared memory: the provider copies all 40 bytes of the cookie; a query returns the copy. */
    memset(cookie, 'c', sizeof cookie);
    memset(&region, 0, sizeof region);
    region.for_shared_memory.virtual_address = shared;
    region.for_shared_memory.shared_memory_id = &cookie;
#define CREATE(type, length, priv, va)                                                                           \
    dat_lmr_create(a->ia, type, region, length, a->pz, priv, va, &lmr, &context, &rmr, &size, &address)
    OK(CREATE(DAT_MEM_TYPE_SHARED_VIRTUAL, 8192, DAT_MEM_PRIV_ALL_FLAG, DAT_VA_TYPE_VA));
    CHECK(size == 8192 && address == (DAT_VADDR)(uintptr_t)shared && rmr != 0);
    memset(cookie, 'x', sizeof cookie);
    memset(&param, 0xA5, sizeof param);
    OK(dat_lmr_query(lmr, DAT_LMR_FIELD_ALL, &param));
    CHECK(param.mem_type == DAT_MEM_TYPE_SHARED_VIRTUAL && param.rmr_context == rmr && param.lmr_context == context);
    CHECK(param.region_desc.for_shared_memory.virtual_address == shared);
    memset(cookie, 'c', sizeof cookie);
    CHECK(memcmp(*param.region_desc.for_shared_memory.shared_memory_id, cookie, sizeof cookie) == 0);
    OK(dat_lmr_free(lmr));
    region.for_shared_memory.shared_memory_id = NULL;
    EXPECT(ARG(3), CREATE(DAT_MEM_TYPE_SHARED_VIRTUAL, 8192, DAT_MEM_PRIV_ALL_FLAG, DAT_VA_TYPE_VA));
    region.for_shared_memory.shared_memory_id = &cookie;
    region.for_shared_memory.virtual_address = a->memory;
    EXPECT(DAT_CLASS_ERROR | DAT_INVALID_STATE | DAT_INVALID_STATE_LMR_FREE,
           CREATE(DAT_MEM_TYPE_SHARED_VIRTUAL, 8192, DAT_MEM_PRIV_ALL_FLAG, DAT_VA_TYPE_VA));

    /* Zero-based memory, and memory for which peers get no key because they have no privileges. */
    region.for_va = shared;
    OK(CREATE(DAT_MEM_TYPE_VIRTUAL, 8192, DAT_MEM_PRIV_LOCAL_READ_FLAG, DAT_VA_TYPE_ZB));
    CHECK(rmr == 0);
    OK(dat_lmr_query(lmr, DAT_LMR_FIELD_ALL, &param));
    CHECK(param.va_type == DAT_VA_TYPE_ZB && param.rmr_context == 0);
    iov[0] = piece(a, 0, 64);
    iov[1] = (DAT_LMR_TRIPLET){0, 8192, context};
    OK(dat_lmr_sync_rdma_read(a->ia, iov, 2));
    iov[1].virtual_address = 1;
    EXPECT(ARG(2), dat_lmr_sync_rdma_read(a->ia, iov, 2));
    EXPECT(ARG(2), dat_lmr_sync_rdma_write(a->ia, iov, 2));
    EXPECT(ARG(2), dat_lmr_sync_rdma_write(a->ia, NULL, 1));
    OK(dat_lmr_sync_rdma_write(a->ia, NULL, 0));
    OK(dat_lmr_free(lmr));
    EXPECT(ARG(7), CREATE(DAT_MEM_TYPE_VIRTUAL, 8192, DAT_MEM_PRIV_LOCAL_READ_FLAG, 2));
    munmap(shared, 8192);
}

/* Exceeds the soft watermark of an EP of this IA. The event has to come to this EVD. */
static void news(DAT_IA_HANDLE ia, DAT_EVD_HANDLE evd)
{
    DAT_EP_ATTR attr = ep_attr();
    DAT_DTO_COOKIE cookie = {.as_64 = 0};
    DAT_EP_HANDLE ep;
    DAT_PZ_HANDLE pz;
    DAT_EVENT event;

    OK(dat_pz_create(ia, &pz));
    OK(dat_ep_create(ia, pz, DAT_HANDLE_NULL, DAT_HANDLE_NULL, DAT_HANDLE_NULL, &attr, &ep));
    OK(dat_ep_post_recv(ep, 0, NULL, cookie, DAT_COMPLETION_DEFAULT_FLAG));
    OK(dat_ep_set_watermark(ep, 0, DAT_WATERMARK_INFINITE));
    event = NEXT(evd, DAT_ASYNC_ERROR_PROVIDER_INTERNAL_ERROR);
    CHECK(event.event_data.asynch_error_event_data.dat_handle == ep);
    OK(dat_ep_free(ep));
    OK(dat_pz_free(pz));
}

static void sharing(struct side *a, char *name)
{
    DAT_IA_HANDLE second;
    DAT_EVD_HANDLE evd = a->async, asked = DAT_HANDLE_NULL;

    OK(dat_ia_open(name, 8, &evd, &second));
    CHECK(evd == a->async && second != a->ia);
    OK(dat_ia_query(second, &asked, 0, NULL, 0, NULL));
    CHECK(asked == a->async);
    news(second, a->async);
    news(a->ia, a->async);
    OK(dat_ia_close(second, DAT_CLOSE_GRACEFUL_FLAG));
    news(a->ia, a->async);
    evd = a->recv;
    EXPECT(HANDLE(EVD_ASYNC), dat_ia_open(name, 8, &evd, &second));
    CHECK(evd == a->recv);
    evd = a->pz;
    EXPECT(HANDLE(EVD_ASYNC), dat_ia_open(name, 8, &evd, &second));
}

int main(int argc, char **argv)
{
    struct side a;

    (void)argc;
    side_open(&a, argv[1]);
    kinds(&a);
    sharing(&a, argv[1]);
    OK(dat_ia_close(a.ia, DAT_CLOSE_ABRUPT_FLAG));
    return finish();
}
