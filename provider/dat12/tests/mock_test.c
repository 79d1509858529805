/* libdat.so.1 between a program of DAT 1.2 and a provider of DAT 2.0 that only writes down and
 * answers (mock_provider.c): every function, every field, every bit of every mask, every code.
 * Called with the mock's IA name, which dat.conf has, and beside.c's library. */
#define _GNU_SOURCE
#include <dat/udat.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "mock_test.h"

static unsigned checks, failures;
struct mock *mock;
DAT_IA_HANDLE ia;

void check(int ok, const char *what, const char *file, int line)
{
    checks++;
    if (!ok) {
        failures++;
        printf("%s:%d: not so: %s\n", file, line, what);
    }
}

void said(const char *file, int line, const char *name, int n, const uint64_t *arguments)
{
    checks++;
    if (strcmp(mock->name, name) != 0 || memcmp(mock->arguments, arguments, (size_t)n * 8) != 0) {
        failures++;
        printf("%s:%d: the provider got %s(", file, line, mock->name);
        for (int i = 0; i < n; i++)
            printf(" %#lx", (unsigned long)mock->arguments[i]);
        printf(" ), not %s(", name);
        for (int i = 0; i < n; i++)
            printf(" %#lx", (unsigned long)arguments[i]);
        printf(" )\n");
    }
    mock->name = "nothing";
}

void fill_out(void)
{
    for (int i = 0; i < MOCK_NUMBERS; i++)
        mock->out[i] = 3 + (uint64_t)i % 5;
}

DAT_LMR_TRIPLET local(uint64_t n)
{
    DAT_LMR_TRIPLET t;

    memset(&t, 0xA5, sizeof t);
    t.lmr_context = (DAT_LMR_CONTEXT)(0xc0000000 + n);
    t.virtual_address = UINT64_C(0x7f0000000000) + n;
    t.segment_length = n == 0 ? UINT32_MAX : n;
    return t;
}

/* Names of codes, and codes that only 2.0 has. */
static void codes(void)
{
    static const DAT_UINT32 subtypes[] = {
#define SUBTYPE(name) DAT_##name,
        SUBTYPES(SUBTYPE)};
    static const DAT_UINT32 types[] = {
#define TYPE(name) DAT_##name,
        TYPES(TYPE)};
    static const struct {
        DAT_UINT32 from, to;
    } others[] = {
        {0x80160000, DAT_CLASS_ERROR | DAT_CONN_QUAL_IN_USE},    /* PORT_IN_USE */
        {0x80170000, DAT_CLASS_ERROR | DAT_MODEL_NOT_SUPPORTED}, /* COMM_NOT_SUPPORTED */
        {0x80150000, DAT_CLASS_ERROR | DAT_INTERNAL_ERROR},      /* RESERVED_LMR */
        {0x90000000, DAT_CLASS_ERROR | DAT_INTERNAL_ERROR},      /* of an extension */
        {0xbffe0000, DAT_CLASS_ERROR | DAT_INTERNAL_ERROR},
        {0x8005001a, DAT_CLASS_ERROR | DAT_INVALID_HANDLE}, /* of a CSP */
        {0x80070058, DAT_CLASS_ERROR | DAT_INVALID_STATE | DAT_INVALID_STATE_SRQ_ERROR}, /* SRQ_SHUTDOWN */
        {0x80070068, DAT_CLASS_ERROR | DAT_INVALID_STATE}, /* past the last */
        {0x8007ffff, DAT_CLASS_ERROR | DAT_INVALID_STATE},
        {0x000d0000, DAT_QUEUE_EMPTY}, /* without the class bit, as some providers have it */
        {0x40070000, DAT_CLASS_WARNING | DAT_INVALID_STATE},
    };
    const char *major, *minor;

    for (size_t i = 0; i < sizeof subtypes / sizeof *subtypes; i++) {
        mock->answer = DAT_CLASS_ERROR | DAT_INVALID_STATE | mock->subtypes[i];
        EXPECT(DAT_CLASS_ERROR | DAT_INVALID_STATE | subtypes[i], dat_ep_reset(H(1)));
    }
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        mock->answer = DAT_CLASS_ERROR | mock->types[i];
        EXPECT(DAT_CLASS_ERROR | types[i], dat_ep_reset(H(1)));
    }
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        mock->answer = others[i].from;
        EXPECT(others[i].to, dat_ep_reset(H(1)));
    }
    mock->answer = DAT_SUCCESS;

#define NAME_OF_SUBTYPE(name)                                                                                          \
    OK(dat_strerror(DAT_CLASS_ERROR | DAT_##name, &major, &minor));                                                    \
    CHECK(strcmp(minor, "DAT_" #name) == 0);
    SUBTYPES(NAME_OF_SUBTYPE)
#define NAME_OF_TYPE(name)                                                                                             \
    OK(dat_strerror(DAT_CLASS_ERROR | DAT_##name, &major, &minor));                                                    \
    CHECK(strcmp(major, "DAT_" #name) == 0);
    TYPES(NAME_OF_TYPE)
    OK(dat_strerror(DAT_SUCCESS, &major, &minor));
    CHECK(strcmp(major, "DAT_SUCCESS") == 0 && strcmp(minor, "DAT_NO_SUBTYPE") == 0);
    EXPECT(ARG(1), dat_strerror(0x80150000, &major, &minor));
    EXPECT(ARG(1), dat_strerror(DAT_CLASS_ERROR | DAT_INVALID_STATE | (DAT_INVALID_RO_COOKIE + 1), &major, &minor));
    EXPECT(ARG(2), dat_strerror(DAT_SUCCESS, NULL, &minor));
    EXPECT(ARG(3), dat_strerror(DAT_SUCCESS, &major, NULL));
}

static void attributes(void)
{
    DAT_IA_ATTR attr;
    DAT_PROVIDER_ATTR provider;
    DAT_EVD_HANDLE async = NULL;
    int i = 0;

    fill_out();
#define IA(field, bit)                                                                                                 \
    memset(&attr, 0x5A, sizeof attr);                                                                                  \
    OK(dat_ia_query(ia, NULL, DAT_IA_FIELD_IA_##bit, &attr, 0, NULL));                                                 \
    CHECK(mock->named == 1 && N(attr.field) == mock->out[i]);                                                          \
    i++;
    IA_FIELDS(IA)
    OK(dat_ia_query(ia, &async, DAT_IA_FIELD_ALL, &attr, 0, NULL));
    CHECK(mock->named == (unsigned)i && async == H(1) && strcmp(attr.vendor_name, "mock vendor") == 0);
    CHECK(attr.max_rdma_read_per_ep_out_guaranteed == DAT_TRUE && attr.max_rdma_read_per_ep_in_guaranteed == DAT_FALSE);
    CHECK(attr.adapter_name[0] == 0);
    i = 0;
#define PROVIDER(field, bit)                                                                                           \
    memset((void *)&provider, 0x5A, sizeof provider);                                                                  \
    OK(dat_ia_query(ia, NULL, 0, NULL, DAT_PROVIDER_FIELD_##bit, &provider));                                          \
    CHECK(mock->named == 1 && N(provider.field) == mock->out[i]);                                                      \
    i++;
    PROVIDER_FIELDS(PROVIDER)
    for (mock->pz_support = 0; mock->pz_support < 3; mock->pz_support++) {
        OK(dat_ia_query(ia, NULL, 0, NULL, DAT_PROVIDER_FIELD_ALL, &provider));
        CHECK(provider.pz_support == (mock->pz_support == 1 ? DAT_PZ_SHAREABLE : DAT_PZ_UNIQUE));
    }
    CHECK(provider.dapl_version_major == 1 && provider.dapl_version_minor == 2);
    CHECK(provider.srq_supported == DAT_TRUE && provider.lmr_sync_req == DAT_FALSE);
    CHECK(provider.rdma_write_for_rdma_read_req == DAT_TRUE && provider.dto_async_return_guaranteed == DAT_FALSE);
    for (i = 0; i < 36; i++)
        CHECK(provider.evd_stream_merging_supported[i / 6][i % 6] == (i % 7 == 0 ? DAT_TRUE : DAT_FALSE));
    EXPECT(ARG(3), dat_ia_query(ia, NULL, UINT64_C(0x800000000), &attr, 0, NULL));
    EXPECT(ARG(4), dat_ia_query(ia, NULL, 1, NULL, 0, NULL));
    EXPECT(ARG(5), dat_ia_query(ia, NULL, 0, NULL, UINT64_C(0x4000000), &provider));
    EXPECT(ARG(6), dat_ia_query(ia, NULL, 0, NULL, 1, NULL));
    OK(dat_ia_query(ia, NULL, 0, NULL, 0, NULL));
}

static void agent(DAT_PVOID data, DAT_EVD_HANDLE evd)
{
    (void)data, (void)evd;
}

static void the_rest(void)
{
    DAT_OS_WAIT_PROXY_AGENT proxy = {&proxy, agent};
    DAT_CNO_PARAM cno_param;
    DAT_CNO_HANDLE cno = NULL;
    DAT_EVD_HANDLE evd;
    DAT_HANDLE_TYPE type;
    DAT_CONTEXT context;
    DAT_COUNT n[2];
    DAT_CONN_QUAL qual;
    DAT_EVD_PARAM evd_param;
    DAT_CR_PARAM cr_param;
    DAT_PSP_PARAM psp_param;
    DAT_RSP_PARAM rsp_param;
    DAT_PZ_PARAM pz_param;
    DAT_SOCK_ADDR there;

    for (DAT_UINT32 t = 0; t <= DAT_HANDLE_TYPE_SRQ; t++) {
        mock->state = t;
        OK(dat_get_handle_type(H(3), &type));
        CHECK(type == (DAT_HANDLE_TYPE)t);
    }
    mock->state = 11; /* a CSP */
    EXPECT(DAT_CLASS_ERROR | DAT_INVALID_HANDLE | DAT_INVALID_HANDLE1, dat_get_handle_type(H(3), &type));
    context.as_64 = UINT64_C(0xffeeddccbbaa9988);
    OK(dat_set_consumer_context(H(3), context));
    SAID(set_consumer_context, N(H(3)), context.as_64);
    mock->words[0] = UINT64_C(0x8899aabbccddeeff);
    OK(dat_get_consumer_context(H(3), &context));
    CHECK(context.as_64 == UINT64_C(0x8899aabbccddeeff));

    OK(dat_cno_create(ia, proxy, &cno));
    SAID(cno_create, RAW_IA, N(&proxy), N(agent));
    CHECK(cno == LAST);
    OK(dat_cno_modify_agent(H(3), DAT_OS_WAIT_PROXY_AGENT_NULL));
    SAID(cno_modify_agent, N(H(3)), 0, 0);
    mock->words[0] = 1, mock->words[1] = N(&proxy), mock->words[2] = N(agent);
    for (mock->state = 0; mock->state < 3; mock->state++) {
        OK(dat_cno_query(H(3), DAT_CNO_FIELD_ALL, &cno_param));
        CHECK(N(cno_param.ia_handle) == 1);
        CHECK(cno_param.agent.instance_data == (mock->state == 1 ? &proxy : NULL));
        CHECK(cno_param.agent.proxy_agent_func == (mock->state == 1 ? agent : NULL));
    }
    memset(&cno_param, 0x5A, sizeof cno_param);
    OK(dat_cno_query(H(3), DAT_CNO_FIELD_IA_HANDLE, &cno_param));
    CHECK(N(cno_param.ia_handle) == 1 && N(cno_param.agent.instance_data) == UINT64_C(0x5A5A5A5A5A5A5A5A));
    REFUSED(ARG(2), dat_cno_query(H(3), (DAT_CNO_PARAM_MASK)4, &cno_param));
    OK(dat_cno_wait(H(3), 5, &evd));
    SAID(cno_wait, N(H(3)), 5, N(&evd));
    OK(dat_cno_free(H(3)));
    CHECK(strcmp(mock->name, "cno_free_") == 0 && mock->arguments[0] == N(H(3)));

#define SAME(call, name, ...)                                                                                          \
    OK(call);                                                                                                          \
    SAID(name, ##__VA_ARGS__)
    SAME(dat_cr_query(H(3), DAT_CR_FIELD_ALL, &cr_param), cr_query, N(H(3)), 0x1f, N(&cr_param));
    REFUSED(ARG(2), dat_cr_query(H(3), (DAT_CR_PARAM_MASK)0x20, &cr_param));
    SAME(dat_cr_accept(H(3), H(4), 9, n), cr_accept, N(H(3)), N(H(4)), 9, N(n));
    SAME(dat_cr_reject(H(3)), cr_reject, N(H(3)), 0, 0);
    SAME(dat_cr_handoff(H(3), 9), cr_handoff, N(H(3)), 9);
    SAME(dat_evd_create(ia, 9, H(3), (DAT_EVD_FLAGS)0x1f1, &evd), evd_create, RAW_IA, 9, N(H(3)), 0x1f1, N(&evd));
    REFUSED(ARG(4), dat_evd_create(ia, 9, H(3), (DAT_EVD_FLAGS)0x200, &evd));
    REFUSED(ARG(4), dat_evd_create(ia, 9, H(3), (DAT_EVD_FLAGS)2, &evd));
    SAME(dat_evd_query(H(3), DAT_EVD_FIELD_ALL, &evd_param), evd_query, N(H(3)), 0x1f, N(&evd_param));
    REFUSED(ARG(2), dat_evd_query(H(3), (DAT_EVD_PARAM_MASK)0x20, &evd_param));
    SAME(dat_evd_modify_cno(H(3), H(4)), evd_modify_cno, N(H(3)), N(H(4)));
    SAME(dat_evd_enable(H(3)), evd_enable, N(H(3)));
    SAME(dat_evd_disable(H(3)), evd_disable, N(H(3)));
    SAME(dat_evd_set_unwaitable(H(3)), evd_set_unwaitable, N(H(3)));
    SAME(dat_evd_clear_unwaitable(H(3)), evd_clear_unwaitable, N(H(3)));
    SAME(dat_evd_resize(H(3), 9), evd_resize, N(H(3)), 9);
    SAME(dat_evd_free(H(3)), evd_free, N(H(3)));
    SAME(dat_ep_connect(H(3), &there, 9, 8, 7, n, DAT_QOS_PREMIUM, DAT_CONNECT_MULTIPATH_FLAG), ep_connect, N(H(3)),
         N(&there), 9, 8, 7, N(n), 8, 1);
    REFUSED(ARG(8), dat_ep_connect(H(3), &there, 9, 8, 7, n, DAT_QOS_PREMIUM, (DAT_CONNECT_FLAGS)2));
    SAME(dat_ep_dup_connect(H(3), H(4), 8, 7, n, DAT_QOS_ECONOMY), ep_dup_connect, N(H(3)), N(H(4)), 8, 7, N(n), 4);
    SAME(dat_ep_disconnect(H(3), DAT_CLOSE_GRACEFUL_FLAG), ep_disconnect, N(H(3)), 1);
    SAME(dat_ep_recv_query(H(3), &n[0], &n[1]), ep_recv_query, N(H(3)), N(&n[0]), N(&n[1]));
    SAME(dat_ep_set_watermark(H(3), -1, 9), ep_set_watermark, N(H(3)), N(-1), 9);
    SAME(dat_ep_reset(H(3)), ep_reset, N(H(3)));
    SAME(dat_ep_free(H(3)), ep_free, N(H(3)));
    SAME(dat_psp_create(ia, 9, H(3), DAT_PSP_PROVIDER_FLAG, &evd), psp_create, RAW_IA, 9, N(H(3)), 1, N(&evd));
    REFUSED(ARG(4), dat_psp_create(ia, 9, H(3), (DAT_PSP_FLAGS)2, &evd));
    SAME(dat_psp_create_any(ia, &qual, H(3), DAT_PSP_CONSUMER_FLAG, &evd), psp_create_any, RAW_IA, N(&qual), N(H(3)), 0,
         N(&evd));
    REFUSED(ARG(4), dat_psp_create_any(ia, &qual, H(3), (DAT_PSP_FLAGS)2, &evd));
    SAME(dat_psp_query(H(3), DAT_PSP_FIELD_ALL, &psp_param), psp_query, N(H(3)), 0xf, N(&psp_param));
    REFUSED(ARG(2), dat_psp_query(H(3), (DAT_PSP_PARAM_MASK)0x10, &psp_param));
    SAME(dat_psp_free(H(3)), psp_free, N(H(3)));
    SAME(dat_rsp_create(ia, 9, H(3), H(4), &evd), rsp_create, RAW_IA, 9, N(H(3)), N(H(4)), N(&evd));
    SAME(dat_rsp_query(H(3), DAT_RSP_FIELD_ALL, &rsp_param), rsp_query, N(H(3)), 0xf, N(&rsp_param));
    REFUSED(ARG(2), dat_rsp_query(H(3), (DAT_RSP_PARAM_MASK)0x10, &rsp_param));
    SAME(dat_rsp_free(H(3)), rsp_free, N(H(3)));
    SAME(dat_pz_create(ia, &evd), pz_create, RAW_IA, N(&evd));
    SAME(dat_pz_query(H(3), DAT_PZ_FIELD_ALL, &pz_param), pz_query, N(H(3)), 1, N(&pz_param));
    REFUSED(ARG(2), dat_pz_query(H(3), (DAT_PZ_PARAM_MASK)2, &pz_param));
    SAME(dat_pz_free(H(3)), pz_free, N(H(3)));
}

/* dat.conf has the IA `mock` for 2.0, and a line with a library of 1.2, which cannot be opened and
 * is not listed. */
static void registry(char *name)
{
    DAT_PROVIDER_INFO info[4], *list[4] = {&info[0], &info[1], &info[2], &info[3]};
    DAT_COUNT n = -1;

    OK(dat_registry_list_providers(4, &n, list));
    CHECK(n == 1 && strcmp(list[0]->ia_name, name) == 0 && list[0]->is_thread_safe == DAT_FALSE);
    CHECK(list[0]->dapl_version_major == 1 && list[0]->dapl_version_minor == 2);
    EXPECT(ARG(2), dat_registry_list_providers(4, NULL, list));
}

/* beside.c, as a library. */
static void beside_dat2(char *name, const char *library)
{
    void *loaded = dlopen(library, RTLD_NOW);
    int (*beside)(char *name) = NULL;

    CHECK(loaded != NULL);
    if (loaded == NULL) {
        printf("%s\n", dlerror());
        return;
    }
    *(void **)&beside = dlsym(loaded, "beside");
    mock->state = 14;
    CHECK(beside(name) == 0);
}

int main(int argc, char **argv)
{
    DAT_EVD_HANDLE async = DAT_HANDLE_NULL;
    DAT_RETURN ret;

    if (argc != 3)
        return 2;
    registry(argv[1]);
    ret = dat_ia_open(argv[1], 8, &async, &ia);
    mock = dlsym(RTLD_DEFAULT, "mock");
    if (ret != DAT_SUCCESS || mock == NULL) {
        printf("dat_ia_open %s gave %#x\n", argv[1], ret);
        return 1;
    }
    CHECK(async == H(1));
    codes();
    attributes();
    ep_queries();
    ep_arguments();
    posts();
    srqs();
    events();
    memory();
    the_rest();
    beside_dat2(argv[1], argv[2]);
    /* A provider that uses the array of triplets after a post. */
    mock->iov_ownership = DAT_IOV_PROVIDER_NOMOD;
    {
        DAT_IA_HANDLE other = &other;

        EXPECT(DAT_CLASS_ERROR | DAT_MODEL_NOT_SUPPORTED, dat_ia_open(argv[1], 8, &async, &other));
        CHECK(other == DAT_HANDLE_NULL);
    }
    mock->answer = DAT_CLASS_ERROR | DAT_INVALID_STATE;
    EXPECT(DAT_CLASS_ERROR | DAT_INVALID_STATE, dat_ia_close(ia, DAT_CLOSE_GRACEFUL_FLAG));
    SAID(ia_close, RAW_IA, 1);
    mock->answer = DAT_SUCCESS;
    OK(dat_ia_close(ia, DAT_CLOSE_ABRUPT_FLAG));
    if (failures == 0)
        printf("all %u checks passed\n", checks);
    else
        printf("%u of %u checks failed\n", failures, checks);
    return failures != 0;
}
