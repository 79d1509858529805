/* LMRs, RMRs, events. */
#include "mock_test.h"

void memory(void)
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

    /* Only for dat_lmr_create, whose arguments have another order in 2.0. */
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
    OK(dat_lmr_query(H(9), DAT_LMR_FIELD_ALL, &param));
    SAID(lmr_query, N(H(9)), 0x7bf, 1); /* all but `va_type` */
#define LMR_VALUE(field, bit)                                                                                          \
    CHECK(N(param.field) == mock->out[i]);                                                                             \
    i++;
    LMR_FIELDS(LMR_VALUE)
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

    /* LMRs of two PZs have the same context; the RMR's PZ selects one. */
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
    /* A refused free leaves the LMR unchanged. */
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

void events(void)
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
    /* A receive that immediate data took; it is empty if the immediate data came with a write. */
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
