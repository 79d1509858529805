/* libdat.so.1 between a program of DAT 1.2 and a provider of DAT 2.0 that only writes down and answers (mock_provider.c): every
 * function, every field, every bit of every mask, every code. Called with the mock's IA name, which dat.conf has, and beside.c's
 * library. */
#define _GNU_SOURCE
#include <dat/udat.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "mock.h"

static unsigned checks, failures;
static struct mock *mock;
static DAT_IA_HANDLE ia;
#define H(n) (mock->handles[n])
#define RAW_IA NUMBER(H(0))
#define LAST H(MOCK_HANDLES - 1)
#define N NUMBER

static void check(int ok, const char *what, int line)
{
    checks++;
    if (!ok) {
        failures++;
        printf("line %d: not so: %s\n", line, what);
    }
}
#define CHECK(what) check(!!(what), #what, __LINE__)
#define EXPECT(code, call) check((call) == (DAT_RETURN)(code), #call " gives " #code, __LINE__)
#define OK(call) EXPECT(DAT_SUCCESS, call)
#define ARG(n) (DAT_CLASS_ERROR | DAT_INVALID_PARAMETER | (DAT_INVALID_ARG1 + (n)-1))

/* The provider was called last, with these arguments. */
static void said(int line, const char *name, int n, const uint64_t *arguments)
{
    checks++;
    if (strcmp(mock->name, name) != 0 || memcmp(mock->arguments, arguments, (size_t)n * 8) != 0) {
        failures++;
        printf("line %d: the provider got %s(", line, mock->name);
        for (int i = 0; i < n; i++)
            printf(" %#lx", (unsigned long)mock->arguments[i]);
        printf(" ), not %s(", name);
        for (int i = 0; i < n; i++)
            printf(" %#lx", (unsigned long)arguments[i]);
        printf(" )\n");
    }
    mock->name = "nothing";
}
#define SAID(name, ...)                                                                                                \
    said(__LINE__, #name, sizeof((uint64_t[]){__VA_ARGS__}) / 8, (const uint64_t[]){__VA_ARGS__})

/* The call did not get through. */
#define REFUSED(code, call)                                                                                            \
    do {                                                                                                               \
        mock->name = "nothing";                                                                                        \
        EXPECT(code, call);                                                                                            \
        CHECK(strcmp(mock->name, "nothing") == 0);                                                                     \
    } while (0)

/* Every slot with a number of its own that fits everywhere. */
static void fill_out(void)
{
    for (int i = 0; i < MOCK_NUMBERS; i++)
        mock->out[i] = 3 + (uint64_t)i % 5;
}

/* Codes by name, and those that only 2.0 has. */
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

/* One bit asks for one field; what was not asked for stays. `i` is the field's place in `out`. */
#define ONE_BIT(query, handle, type, prefix, field, bit)                                                               \
    {                                                                                                                  \
        type param, untouched;                                                                                         \
        memset((void *)&param, 0x5A, sizeof param);                                                                    \
        memset((void *)&untouched, 0x5A, sizeof untouched);                                                            \
        OK(query(handle, prefix##bit, &param));                                                                        \
        CHECK(mock->named == 1);                                                                                       \
        CHECK(N(param.field) == mock->out[i]);                                                                         \
        memset((void *)&param.field, 0x5A, sizeof param.field);                                                        \
        CHECK(memcmp(&param, &untouched, sizeof param) == 0);                                                          \
        i++;                                                                                                           \
    }

static void ep_queries(void)
{
    DAT_EP_PARAM param;
    DAT_EP_STATE state;
    DAT_BOOLEAN idle[2];
    int i = 0;

    fill_out();
    mock->out[11] = 0; /* service_type */
#define EP_PARAM(field, bit) ONE_BIT(dat_ep_query, H(3), DAT_EP_PARAM, DAT_EP_FIELD_, field, bit)
    EP_PARAM_FIELDS(EP_PARAM)
#define EP_ATTR(field, bit) ONE_BIT(dat_ep_query, H(3), DAT_EP_PARAM, DAT_EP_FIELD_, ep_attr.field, bit)
    EP_ATTR_FIELDS(EP_ATTR)
    OK(dat_ep_query(H(3), DAT_EP_FIELD_ALL, &param));
    SAID(ep_query, N(H(3)), 1);
    CHECK(mock->named == 30 && (mock->mask & 4) == 0); /* all but `comm` */
    REFUSED(ARG(2), dat_ep_query(H(3), UINT64_C(0x800), &param));
    REFUSED(ARG(2), dat_ep_query(H(3), UINT64_C(0x80000000), &param));
    OK(dat_ep_query(H(3), DAT_EP_FIELD_ALL, NULL));
    SAID(ep_query, N(H(3)), 0);

    for (DAT_UINT32 s = 0; s <= DAT_EP_STATE_COMPLETION_PENDING; s++) {
        mock->state = s;
        OK(dat_ep_get_status(H(3), &state, &idle[0], &idle[1]));
        CHECK(state == (DAT_EP_STATE)s);
    }
    SAID(ep_get_status, N(H(3)), 1, N(&idle[0]), N(&idle[1]));
    for (mock->state = 13; mock->state <= 14; mock->state++) {
        OK(dat_ep_get_status(H(3), &state, NULL, NULL));
        CHECK(state == DAT_EP_STATE_CONNECTED);
    }
    mock->state = 15;
    EXPECT(DAT_CLASS_ERROR | DAT_INTERNAL_ERROR, dat_ep_get_status(H(3), &state, NULL, NULL));
    OK(dat_ep_get_status(H(3), NULL, &idle[0], NULL));
    SAID(ep_get_status, N(H(3)), 0, N(&idle[0]), 0);
    mock->out[1] = 14;
    OK(dat_ep_query(H(3), DAT_EP_FIELD_EP_STATE, &param));
    CHECK(param.ep_state == DAT_EP_STATE_CONNECTED);
    mock->out[1] = 77;
    EXPECT(DAT_CLASS_ERROR | DAT_INTERNAL_ERROR, dat_ep_query(H(3), DAT_EP_FIELD_EP_STATE, &param));
}

static DAT_EP_ATTR numbered_attr(void)
{
    DAT_EP_ATTR attr;
    int i = 0;

#define NUMBERED(field, bit) attr.field = (__typeof__(attr.field))(uintptr_t)mock->out[i++];
    EP_ATTR_FIELDS(NUMBERED)
    return attr;
}

static void ep_arguments(void)
{
    DAT_EP_ATTR attr;
    DAT_EP_PARAM param;
    DAT_EP_HANDLE ep = NULL;
    int i = 0;

    for (i = 0; i < 19; i++)
        mock->out[i] = (uint64_t)i + 1;
    mock->out[0] = DAT_SERVICE_TYPE_RC;
    mock->out[1] = UINT32_MAX;
    mock->out[12] = (uint64_t)DAT_HW_DEFAULT;
    attr = numbered_attr();
    OK(dat_ep_create(ia, H(4), H(5), H(6), H(7), &attr, &ep));
    SAID(ep_create, RAW_IA, N(H(4)), N(H(5)), N(H(6)), N(H(7)), 1);
    CHECK(ep == LAST && memcmp(mock->in, mock->out, 19 * 8) == 0);
    memset(mock->in, 0, sizeof mock->in);
    OK(dat_ep_create_with_srq(ia, H(4), H(5), H(6), H(7), H(8), &attr, &ep));
    SAID(ep_create_with_srq, RAW_IA, N(H(4)), N(H(5)), N(H(6)), N(H(7)), N(H(8)), 1);
    CHECK(memcmp(mock->in, mock->out, 19 * 8) == 0);
    OK(dat_ep_create(ia, H(4), NULL, NULL, NULL, NULL, &ep));
    SAID(ep_create, RAW_IA, N(H(4)), 0, 0, 0, 0);

#define BAD_ATTR(field, value)                                                                                         \
    attr = numbered_attr();                                                                                            \
    attr.field = value;                                                                                                \
    REFUSED(ARG(6), dat_ep_create(ia, H(4), H(5), H(6), H(7), &attr, &ep));                                            \
    REFUSED(ARG(7), dat_ep_create_with_srq(ia, H(4), H(5), H(6), H(7), H(8), &attr, &ep));
    BAD_ATTR(service_type, (DAT_SERVICE_TYPE)1)
    BAD_ATTR(max_message_size, UINT64_C(1) << 32)
    BAD_ATTR(max_rdma_size, ~UINT64_C(0))
    BAD_ATTR(recv_completion_flags, (DAT_COMPLETION_FLAGS)0x20)
    BAD_ATTR(request_completion_flags, (DAT_COMPLETION_FLAGS)-1)

    /* Only what the mask names is read: the rest is not even valid. */
    i = 0;
#define MODIFY(field, bit, value)                                                                                      \
    memset((void *)&param, 0xA5, sizeof param);                                                                        \
    param.field = (__typeof__(param.field))(uintptr_t)(value);                                                         \
    OK(dat_ep_modify(H(3), DAT_EP_FIELD_##bit, &param));                                                               \
    CHECK(mock->named == 1 && mock->in[i] == (value));                                                                 \
    i++;
#define MODIFY_PARAM(field, bit) MODIFY(field, bit, (uint64_t)i + 1)
#define MODIFY_ATTR(field, bit) MODIFY(ep_attr.field, bit, i == 11 ? UINT64_C(0) : (uint64_t)i)
    EP_PARAM_FIELDS(MODIFY_PARAM)
    EP_ATTR_FIELDS(MODIFY_ATTR)
    REFUSED(ARG(2), dat_ep_modify(H(3), UINT64_C(0x800), &param));
    param.ep_attr.max_rdma_size = UINT64_C(1) << 32;
    REFUSED(ARG(3), dat_ep_modify(H(3), DAT_EP_FIELD_EP_ATTR_MAX_RDMA_SIZE, &param));
    OK(dat_ep_modify(H(3), 0, NULL));
    SAID(ep_modify, N(H(3)), 0);
}

static DAT_LMR_TRIPLET local(uint64_t n)
{
    DAT_LMR_TRIPLET t;

    memset(&t, 0xA5, sizeof t);
    t.lmr_context = (DAT_LMR_CONTEXT)(0xc0000000 + n);
    t.virtual_address = UINT64_C(0x7f0000000000) + n;
    t.segment_length = n == 0 ? UINT32_MAX : n;
    return t;
}

#define SEGMENTS_ARRIVED()                                                                                             \
    for (uint64_t k = 0; k < 4; k++) {                                                                                 \
        CHECK(mock->local[k].address == iov[k].virtual_address && mock->local[k].length == iov[k].segment_length);     \
        CHECK(mock->local[k].context == iov[k].lmr_context);                                                           \
    }                                                                                                                  \
    memset(mock->local, 0, sizeof mock->local)

static void posts(void)
{
    DAT_LMR_TRIPLET iov[40];
    DAT_RMR_TRIPLET remote, wide;
    DAT_DTO_COOKIE cookie;

    cookie.as_64 = UINT64_C(0xfedcba9876543210);
    for (uint64_t i = 0; i < 40; i++)
        iov[i] = local(i);
    memset(&remote, 0xA5, sizeof remote);
    remote.rmr_context = 0xdeadbeef;
    remote.target_address = UINT64_C(0x8000000000000000);
    remote.segment_length = UINT32_MAX;
    wide = remote;
    wide.segment_length++;

#define POST(call, name, flags_arg, ...)                                                                               \
    {                                                                                                                  \
        const DAT_RMR_TRIPLET *r = &remote;                                                                            \
        DAT_COMPLETION_FLAGS flags = (DAT_COMPLETION_FLAGS)0x1f;                                                       \
        DAT_LMR_TRIPLET *v = iov;                                                                                      \
        DAT_COUNT n = 4;                                                                                               \
        (void)r, (void)flags;                                                                                          \
        OK(call);                                                                                                      \
        SAID(name, N(H(3)), 4, 1, cookie.as_64, ##__VA_ARGS__);                                                        \
        SEGMENTS_ARRIVED();                                                                                            \
        n = 0, v = NULL;                                                                                               \
        OK(call);                                                                                                      \
        CHECK(mock->arguments[1] == 0 && mock->arguments[2] == 0);                                                     \
        n = 2;                                                                                                         \
        OK(call); /* NULL is the provider's to refuse */                                                               \
        CHECK(mock->arguments[1] == 2 && mock->arguments[2] == 0);                                                     \
        v = iov;                                                                                                       \
        n = -1;                                                                                                        \
        REFUSED(ARG(2), call);                                                                                         \
        n = 33; /* the IA takes 32 */                                                                                  \
        v = (DAT_LMR_TRIPLET *)8; /* not read */                                                                       \
        REFUSED(ARG(2), call);                                                                                         \
        n = 0x7fffffff;                                                                                                \
        REFUSED(ARG(2), call);                                                                                         \
        n = 32, v = iov;                                                                                               \
        OK(call);                                                                                                      \
        iov[31].segment_length = UINT64_C(1) << 32;                                                                    \
        REFUSED(ARG(3), call);                                                                                         \
        iov[31] = local(31);                                                                                           \
        if (flags_arg != 0) {                                                                                          \
            flags = (DAT_COMPLETION_FLAGS)0x20;                                                                        \
            REFUSED(ARG(flags_arg), call);                                                                             \
        }                                                                                                              \
    }
    POST(dat_ep_post_send(H(3), n, v, cookie, flags), ep_post_send, 5, 0x1f)
    POST(dat_ep_post_recv(H(3), n, v, cookie, flags), ep_post_recv, 5, 0x1f)
    POST(dat_srq_post_recv(H(3), n, v, cookie), srq_post_recv, 0)
    POST(dat_ep_post_rdma_read(H(3), n, v, cookie, r, flags), ep_post_rdma_read, 6, 1, 0x1f)
    POST(dat_ep_post_rdma_write(H(3), n, v, cookie, r, flags), ep_post_rdma_write, 6, 1, 0x1f)
    CHECK(mock->remote.context == 0xdeadbeef && mock->remote.length == UINT32_MAX);
    CHECK(mock->remote.address == UINT64_C(0x8000000000000000));
    REFUSED(ARG(5), dat_ep_post_rdma_read(H(3), 1, iov, cookie, &wide, DAT_COMPLETION_DEFAULT_FLAG));
    REFUSED(ARG(5), dat_ep_post_rdma_write(H(3), 1, iov, cookie, &wide, DAT_COMPLETION_DEFAULT_FLAG));
    OK(dat_ep_post_rdma_read(H(3), 1, iov, cookie, NULL, DAT_COMPLETION_DEFAULT_FLAG));
    SAID(ep_post_rdma_read, N(H(3)), 1, 1, cookie.as_64, 0, 0);
}

static void srqs(void)
{
    DAT_SRQ_PARAM param;
    DAT_SRQ_ATTR attr;
    DAT_SRQ_HANDLE srq;
    int i = 0;

    fill_out();
#define SRQ(field, bit) ONE_BIT(dat_srq_query, H(3), DAT_SRQ_PARAM, DAT_SRQ_FIELD_, field, bit)
    SRQ_FIELDS(SRQ)
    for (DAT_UINT32 state = 0; state < 4; state++) {
        mock->state = state;
        OK(dat_srq_query(H(3), DAT_SRQ_FIELD_ALL, &param));
        CHECK(param.srq_state == (state == 1 ? DAT_SRQ_STATE_OPERATIONAL : DAT_SRQ_STATE_ERROR));
    }
    SAID(srq_query, N(H(3)), 0xff, 1);
    REFUSED(ARG(2), dat_srq_query(H(3), (DAT_SRQ_PARAM_MASK)0x100, &param));
    OK(dat_srq_query(H(3), DAT_SRQ_FIELD_ALL, NULL));
    SAID(srq_query, N(H(3)), 0xff, 0);
    OK(dat_srq_create(ia, H(4), &attr, &srq));
    SAID(srq_create, RAW_IA, N(H(4)), N(&attr), N(&srq));
    OK(dat_srq_free(H(3)));
    SAID(srq_free, N(H(3)));
    OK(dat_srq_resize(H(3), -7));
    SAID(srq_resize, N(H(3)), N(-7));
    OK(dat_srq_set_lw(H(3), 7));
    SAID(srq_set_lw, N(H(3)), 7);
}

static void events(void)
{
    DAT_EVENT event;
    DAT_COUNT more = 0;
    uint64_t *w = mock->words;

#define GIVEN(number)                                                                                                  \
    mock->event = (number);                                                                                            \
    memset(&event, 0x5A, sizeof event);                                                                                \
    OK(dat_evd_dequeue(H(2), &event));                                                                                 \
    CHECK(event.evd_handle == H(2))
#define SAME_NUMBER(number)                                                                                            \
    GIVEN(number);                                                                                                     \
    CHECK(event.event_number == (DAT_EVENT_NUMBER)(number))
#define DTO event.event_data.dto_completion_event_data

    for (int i = 0; i < 5; i++)
        w[i] = UINT64_C(0x1122334400000000) + (uint64_t)i;
    for (DAT_UINT32 status = 0; status < 16; status++) {
        w[2] = status;
        w[3] = UINT32_MAX;
        SAME_NUMBER(DAT_DTO_COMPLETION_EVENT);
        CHECK(N(DTO.ep_handle) == w[0] && DTO.user_cookie.as_64 == w[1] && DTO.transfered_length == UINT32_MAX);
        CHECK((DAT_UINT32)DTO.status == (status < 12 ? status : status == 12 ? DAT_DTO_ERR_LOCAL_PROTECTION : DAT_DTO_ERR_TRANSPORT));
        SAME_NUMBER(DAT_RMR_BIND_COMPLETION_EVENT);
        CHECK(N(event.event_data.rmr_completion_event_data.rmr_handle) == w[0]);
        CHECK(event.event_data.rmr_completion_event_data.user_cookie.as_64 == w[1]);
        CHECK((DAT_UINT32)event.event_data.rmr_completion_event_data.status <= DAT_RMR_OPERATION_FAILED);
    }
    /* A buffer that immediate data took: empty, if it came with a write. */
    w[2] = 0;
    for (mock->extension = 0; mock->extension < 6; mock->extension++) {
        GIVEN(0x40000);
        CHECK(event.event_number == DAT_DTO_COMPLETION_EVENT && DTO.user_cookie.as_64 == w[1]);
        CHECK(DTO.status == DAT_DTO_SUCCESS && DTO.transfered_length == (mock->extension == 3 ? 0 : UINT32_MAX));
    }
    SAME_NUMBER(DAT_CONNECTION_REQUEST_EVENT);
    CHECK(N(event.event_data.cr_arrival_event_data.sp_handle.psp_handle) == w[0]);
    CHECK(N(event.event_data.cr_arrival_event_data.local_ia_address_ptr) == w[1]);
    CHECK(event.event_data.cr_arrival_event_data.conn_qual == w[2]);
    CHECK(N(event.event_data.cr_arrival_event_data.cr_handle) == w[3]);
    w[1] = 77;
    for (int number = DAT_CONNECTION_EVENT_ESTABLISHED; number <= DAT_CONNECTION_EVENT_UNREACHABLE; number++) {
        SAME_NUMBER(number);
        CHECK(N(event.event_data.connect_event_data.ep_handle) == w[0]);
        CHECK(event.event_data.connect_event_data.private_data_size == 77);
        CHECK(N(event.event_data.connect_event_data.private_data) == w[2]);
    }
    for (int number = DAT_ASYNC_ERROR_EVD_OVERFLOW; number <= DAT_ASYNC_ERROR_PROVIDER_INTERNAL_ERROR; number++) {
        SAME_NUMBER(number);
        CHECK(N(event.event_data.asynch_error_event_data.dat_handle) == w[0]);
        CHECK(event.event_data.asynch_error_event_data.reason == 77);
    }
    SAME_NUMBER(0x8101); /* HA_DOWN_TO_1 */
    CHECK(N(event.event_data.asynch_error_event_data.dat_handle) == w[0]);
    SAME_NUMBER(DAT_SOFTWARE_EVENT);
    CHECK(N(event.event_data.software_event_data.pointer) == w[0]);
    for (int i = 0; i < 3; i++) {
        static const DAT_UINT32 unknown[] = {0x20000, 0x80000, 0};
        static const DAT_EVENT_DATA nothing;

        SAME_NUMBER(unknown[i]);
        CHECK(memcmp(&event.event_data, &nothing, sizeof nothing) == 0);
    }

    mock->event = DAT_SOFTWARE_EVENT;
    OK(dat_evd_wait(H(2), DAT_TIMEOUT_INFINITE, 5, &event, &more));
    SAID(evd_wait, N(H(2)), UINT32_MAX, 5, 1, 1);
    CHECK(more == 3 && N(event.event_data.software_event_data.pointer) == w[0]);
    mock->answer = DAT_CLASS_ERROR | DAT_TIMEOUT_EXPIRED;
    memset(&event, 0x5A, sizeof event);
    EXPECT(DAT_CLASS_ERROR | DAT_TIMEOUT_EXPIRED, dat_evd_wait(H(2), 0, 1, &event, NULL));
    CHECK(event.event_number == (DAT_EVENT_NUMBER)0x5A5A5A5A);
    mock->answer = DAT_SUCCESS;
    OK(dat_evd_wait(H(2), 1, 1, NULL, &more));
    SAID(evd_wait, N(H(2)), 1, 1, 0, 1);
    OK(dat_evd_dequeue(H(2), NULL));
    SAID(evd_dequeue, N(H(2)), 0);

    event.event_number = DAT_SOFTWARE_EVENT;
    event.event_data.software_event_data.pointer = &more;
    OK(dat_evd_post_se(H(2), &event));
    CHECK(mock->event == DAT_SOFTWARE_EVENT && w[0] == N(&more));
    event.event_number = (DAT_EVENT_NUMBER)0x20000;
    REFUSED(ARG(2), dat_evd_post_se(H(2), &event));
    OK(dat_evd_post_se(H(2), NULL));
    SAID(evd_post_se, N(H(2)), 0);
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

static void memory(void)
{
    DAT_REGION_DESCRIPTION region;
    DAT_LMR_PARAM param;
    DAT_RMR_PARAM rmr_param;
    DAT_LMR_HANDLE lmr;
    DAT_LMR_CONTEXT context;
    DAT_RMR_CONTEXT remote;
    DAT_VLEN size;
    DAT_VADDR address;
    DAT_LMR_TRIPLET many[200], piece = local(64);
    DAT_RMR_COOKIE cookie;
    DAT_RMR_HANDLE rmr;
    int i = 0;

    /* Only of it: the arguments of 2.0 have other places. */
    static const DAT_UINT32 created[][2] = {{1, 1}, {2, 2}, {3, 3}, {4, 4}, {5, 5}, {6, 6}, {8, 7}, {9, 8}, {10, 9}};
    static const DAT_UINT32 bound[][2] = {{1, 1}, {3, 2}, {4, 3}, {6, 4}, {7, 5}, {8, 6}, {9, 7}};

    memset(&region, 0, sizeof region);
    region.for_shared_memory.virtual_address = &region;
    region.for_shared_memory.shared_memory_id = (DAT_LMR_COOKIE)&param;
#define CREATE(type, privileges)                                                                                       \
    dat_lmr_create(ia, (DAT_MEM_TYPE)(type), region, UINT64_C(0x123456789ab), H(4), (DAT_MEM_PRIV_FLAGS)(privileges),  \
                   &lmr, &context, &remote, &size, &address)
    mock->words[0] = 9, mock->words[1] = 0xabcdef01, mock->words[2] = 0x10fedcba;
    mock->words[3] = UINT64_C(0x1000000000), mock->words[4] = UINT64_C(0x2000000000);
    for (DAT_UINT32 type = 0; type < 4; type++) {
        OK(CREATE(type, 0x33));
        SAID(lmr_create, RAW_IA, type == 3 ? 0 : type, N(&region), N(&param), UINT64_C(0x123456789ab), N(H(4)), 0x33, 0);
        CHECK(lmr == H(9) && context == 0xabcdef01 && remote == 0x10fedcba);
        CHECK(size == UINT64_C(0x1000000000) && address == UINT64_C(0x2000000000));
        OK(dat_lmr_free(lmr));
        SAID(lmr_free, N(H(9)));
    }
    OK(CREATE(0, 0x101));
    SAID(lmr_create, RAW_IA, 0, N(&region), N(&param), UINT64_C(0x123456789ab), N(H(4)), 1, 0);
    OK(dat_lmr_free(lmr));
    REFUSED(ARG(2), CREATE(4, 0x33));
    REFUSED(ARG(2), CREATE(-1, 0x33));
    REFUSED(ARG(6), CREATE(0, 0x40));
    REFUSED(ARG(7), dat_lmr_create(ia, DAT_MEM_TYPE_VIRTUAL, region, 1, H(4), DAT_MEM_PRIV_ALL_FLAG, NULL, &context,
                                   &remote, &size, &address));
    for (i = 0; i < 9; i++) {
        mock->answer = DAT_CLASS_ERROR | DAT_INVALID_PARAMETER | mock->subtypes[36 + created[i][0] - 1];
        EXPECT(ARG(created[i][1]), CREATE(0, 0x33));
    }
    mock->answer = DAT_CLASS_ERROR | DAT_INVALID_PARAMETER | mock->subtypes[36 + 6]; /* va_type */
    EXPECT(DAT_CLASS_ERROR | DAT_INVALID_PARAMETER, CREATE(0, 0x33));
    mock->answer = DAT_SUCCESS;

    fill_out();
    mock->out[1] = 2;
    i = 0;
#define LMR(field, bit) ONE_BIT(dat_lmr_query, H(9), DAT_LMR_PARAM, DAT_LMR_FIELD_, field, bit)
#define region_desc_for_va region_desc
    i = 0;
    {
        /* The union as a whole comes with its bit. */
        OK(dat_lmr_query(H(9), DAT_LMR_FIELD_ALL, &param));
        SAID(lmr_query, N(H(9)), 0x7bf, 1);
#define LMR_VALUE(field, bit) CHECK(N(param.field) == mock->out[i]); i++;
        LMR_FIELDS(LMR_VALUE)
    }
    i = 0;
#define LMR_BIT(field, bit)                                                                                            \
    OK(dat_lmr_query(H(9), DAT_LMR_FIELD_##bit, &param));                                                              \
    CHECK(mock->named == 1 && N(param.field) == mock->out[i]);                                                         \
    i++;
    LMR_FIELDS(LMR_BIT)
    REFUSED(ARG(2), dat_lmr_query(H(9), (DAT_LMR_PARAM_MASK)0x400, &param));
    OK(dat_lmr_query(H(9), DAT_LMR_FIELD_ALL, NULL));
    SAID(lmr_query, N(H(9)), 0x7bf, 0);

    i = 0;
#define RMR_BIT(field, bit)                                                                                            \
    OK(dat_rmr_query(H(10), DAT_RMR_FIELD_##bit, &rmr_param));                                                         \
    CHECK(mock->named == 1 && N(rmr_param.field) == mock->out[i]);                                                     \
    i++;
    RMR_FIELDS(RMR_BIT)
    REFUSED(ARG(2), dat_rmr_query(H(10), (DAT_RMR_PARAM_MASK)0x20, &rmr_param));

    /* LMRs of two PZs with the same context: the RMR's PZ says which. */
    cookie.as_64 = 0x77;
    piece.lmr_context = 0x5000;
    mock->words[1] = 0x5000;
    mock->words[0] = 11;
    OK(dat_lmr_create(ia, DAT_MEM_TYPE_VIRTUAL, region, 1, H(5), DAT_MEM_PRIV_ALL_FLAG, &lmr, &context, &remote, &size,
                      &address));
    mock->words[0] = 12;
    OK(dat_lmr_create(ia, DAT_MEM_TYPE_VIRTUAL, region, 1, H(6), DAT_MEM_PRIV_ALL_FLAG, &lmr, &context, &remote, &size,
                      &address));
#define BIND(triplet, privileges, flags)                                                                               \
    dat_rmr_bind(H(10), triplet, (DAT_MEM_PRIV_FLAGS)(privileges), H(3), cookie, (DAT_COMPLETION_FLAGS)(flags), &remote)
    for (int pz = 5; pz < 7; pz++) {
        mock->out[1] = N(H(pz));
        OK(BIND(&piece, 0x22, 0x0d));
        SAID(rmr_bind, N(H(10)), N(H(pz + 6)), 0x22, 0, N(H(3)), 0x77, 0x0d);
        CHECK(remote == 0x1234 && mock->local[0].context == 0x5000 && mock->local[0].length == 64);
    }
    REFUSED(ARG(2), BIND(NULL, 2, 0));
    REFUSED(ARG(3), BIND(&piece, 0x40, 0));
    REFUSED(ARG(6), BIND(&piece, 2, 0x20));
    for (i = 0; i < 7; i++) {
        mock->answer = DAT_CLASS_ERROR | DAT_INVALID_PARAMETER | mock->subtypes[36 + bound[i][0] - 1];
        EXPECT(ARG(bound[i][1]), BIND(&piece, 2, 0));
    }
    /* A free that is refused leaves the LMR as it was. */
    mock->answer = DAT_CLASS_ERROR | DAT_INVALID_STATE;
    EXPECT(DAT_CLASS_ERROR | DAT_INVALID_STATE, dat_lmr_free(H(12)));
    mock->answer = DAT_SUCCESS;
    OK(BIND(&piece, 2, 0));
    OK(dat_lmr_free(H(12)));
    mock->name = "nothing";
    EXPECT(ARG(2), BIND(&piece, 2, 0));
    SAID(rmr_query, N(H(10)), 2, 1);
    piece.segment_length = 0;
    OK(BIND(&piece, 2, 0));
    SAID(rmr_bind, N(H(10)), 0, 2, 0, N(H(3)), 0x77, 0);
    OK(dat_rmr_create(H(4), &rmr));
    SAID(rmr_create, N(H(4)), N(&rmr));
    OK(dat_rmr_free(H(10)));
    SAID(rmr_free, N(H(10)));

    for (i = 0; i < 200; i++)
        many[i] = local((uint64_t)i + 1);
    mock->segments_of_all_calls = 0;
    OK(dat_lmr_sync_rdma_read(ia, many, 200));
    CHECK(mock->segments_of_all_calls == 200 && strcmp(mock->name, "lmr_sync_rdma_read") == 0);
    OK(dat_lmr_sync_rdma_write(ia, many, 0));
    SAID(lmr_sync_rdma_write, RAW_IA, 1, 0);
    OK(dat_lmr_sync_rdma_write(ia, NULL, 3));
    SAID(lmr_sync_rdma_write, RAW_IA, 0, 3);
    many[0].segment_length = UINT64_C(1) << 32;
    REFUSED(ARG(2), dat_lmr_sync_rdma_write(ia, many, 1));
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

/* dat.conf has `mock` for 2.0, and a line for a 1.2 library, which cannot be opened and is not shown. */
static void registry(char *name)
{
    DAT_PROVIDER_INFO info[4], *list[4] = {&info[0], &info[1], &info[2], &info[3]};
    DAT_COUNT n = -1;

    OK(dat_registry_list_providers(4, &n, list));
    CHECK(n == 1 && strcmp(list[0]->ia_name, name) == 0 && list[0]->is_thread_safe == DAT_FALSE);
    CHECK(list[0]->dapl_version_major == 1 && list[0]->dapl_version_minor == 2);
    EXPECT(ARG(2), dat_registry_list_providers(4, NULL, list));
}

/* beside.c, in a library of its own. */
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
    /* A provider that keeps the triplets of a post. */
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
