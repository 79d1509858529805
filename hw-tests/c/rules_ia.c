/* What the provider advertises, memory, the end of an IA, and the IB extension on an SRQ EP
 * (sections Q to T). */
#include "rig.h"

static DAT_PROVIDER_ATTR provider(void)
{
    DAT_PROVIDER_ATTR attr;

    memset(&attr, 0xA5, sizeof attr);
    OK(dat_ia_query(a.ia, NULL, 0, NULL, DAT_PROVIDER_FIELD_ALL, &attr));
    return attr;
}

/* The provider advertises SRQs, their watermarks and their counts (R260, R262, R263). */
TEST(r259_attr_srq_supported)
{
    DAT_PROVIDER_ATTR attr = provider();

    CHECK(attr.srq_supported == DAT_TRUE);
    CHECK(attr.srq_watermarks_supported == 0x111);
    CHECK(attr.srq_info_supported == 0x11);
    CHECK(attr.ep_recv_info_supported == 0x11);
    CHECK(attr.srq_ep_pz_difference_supported == DAT_TRUE || attr.srq_ep_pz_difference_supported == DAT_FALSE);
}

TEST(r264_attr_ia_srq_limits)
{
    DAT_SRQ_ATTR attr = {a.attr.max_recv_per_srq, 1, 0};
    DAT_SRQ_HANDLE srq;

    CHECK(a.attr.max_srqs > 0 && a.attr.max_ep_per_srq > 0 && a.attr.max_recv_per_srq > 0);
    OK(dat_srq_create(a.ia, a.pz, &attr, &srq));
    CHECK(look(srq).max_recv_dtos >= a.attr.max_recv_per_srq);
    attr.max_recv_dtos++;
    EXPECT(ARG(3), dat_srq_create(a.ia, a.pz, &attr, &srq));
    EXPECT(ARG(2), dat_srq_resize(srq, a.attr.max_recv_per_srq + 1));
}

/* Every member of both structures is written, whatever bit the mask has: two structures that were
 * filled with different garbage are equal afterwards. */
TEST(r265_attr_every_field_written)
{
    static DAT_IA_ATTR ia[2];
    static DAT_PROVIDER_ATTR pr[2];
    DAT_IA_ATTR_MASK ia_bits[] = {DAT_IA_FIELD_ALL, 1, DAT_IA_FIELD_IA_MAX_SRQS, UINT64_C(1) << 37};
    DAT_PROVIDER_ATTR_MASK pr_bits[] = {DAT_PROVIDER_FIELD_ALL, 1, 0x40000000, 0x10000};

#define SAME(s, field) CHECK(memcmp(&s[0].field, &s[1].field, sizeof s[0].field) == 0)
    for (int bit = 0; bit < 4; bit++) {
        for (int i = 0; i < 2; i++) {
            memset(&ia[i], i ? 0xA5 : 0x5A, sizeof ia[i]);
            memset(&pr[i], i ? 0xA5 : 0x5A, sizeof pr[i]);
            OK(dat_ia_query(a.ia, NULL, ia_bits[bit], &ia[i], pr_bits[bit], &pr[i]));
        }
        SAME(ia, adapter_name); SAME(ia, vendor_name); SAME(ia, hardware_version_major); SAME(ia, hardware_version_minor);
        SAME(ia, firmware_version_major); SAME(ia, firmware_version_minor); SAME(ia, ia_address_ptr); SAME(ia, max_eps);
        SAME(ia, max_dto_per_ep); SAME(ia, max_rdma_read_per_ep_in); SAME(ia, max_rdma_read_per_ep_out);
        SAME(ia, max_evds); SAME(ia, max_evd_qlen); SAME(ia, max_iov_segments_per_dto); SAME(ia, max_lmrs);
        SAME(ia, max_lmr_block_size); SAME(ia, max_lmr_virtual_address); SAME(ia, max_pzs); SAME(ia, max_message_size);
        SAME(ia, max_rdma_size); SAME(ia, max_rmrs); SAME(ia, max_rmr_target_address); SAME(ia, max_srqs);
        SAME(ia, max_ep_per_srq); SAME(ia, max_recv_per_srq); SAME(ia, max_iov_segments_per_rdma_read);
        SAME(ia, max_iov_segments_per_rdma_write); SAME(ia, max_rdma_read_in); SAME(ia, max_rdma_read_out);
        SAME(ia, max_rdma_read_per_ep_in_guaranteed); SAME(ia, max_rdma_read_per_ep_out_guaranteed);
        SAME(ia, zb_supported); SAME(ia, extension_supported); SAME(ia, extension_version);
        SAME(ia, num_transport_attr); SAME(ia, transport_attr); SAME(ia, num_vendor_attr); SAME(ia, vendor_attr);
        SAME(pr, provider_name); SAME(pr, provider_version_major); SAME(pr, provider_version_minor);
        SAME(pr, dapl_version_major); SAME(pr, dapl_version_minor); SAME(pr, lmr_mem_types_supported);
        SAME(pr, iov_ownership_on_return); SAME(pr, dat_qos_supported); SAME(pr, completion_flags_supported);
        SAME(pr, is_thread_safe); SAME(pr, max_private_data_size); SAME(pr, supports_multipath); SAME(pr, ep_creator);
        SAME(pr, pz_support); SAME(pr, optimal_buffer_alignment); SAME(pr, lmr_sync_req);
        for (int i = 0; i < 6; i++)
            for (int j = 0; j < 6; j++)
                CHECK(pr[0].evd_stream_merging_supported[i][j] == DAT_TRUE ||
                      pr[0].evd_stream_merging_supported[i][j] == DAT_FALSE);
        SAME(pr, evd_stream_merging_supported);
        SAME(pr, srq_supported); SAME(pr, srq_watermarks_supported); SAME(pr, srq_ep_pz_difference_supported);
        SAME(pr, srq_info_supported); SAME(pr, ep_recv_info_supported); SAME(pr, dto_async_return_guaranteed);
        SAME(pr, rdma_write_for_rdma_read_req); SAME(pr, rdma_read_lmr_rmr_context_exposure);
        SAME(pr, rmr_scope_supported); SAME(pr, is_signal_safe); SAME(pr, ha_supported); SAME(pr, ha_loadbalancing);
        SAME(pr, num_provider_specific_attr); SAME(pr, provider_specific_attr);
    }
}

/* Each bit outside of the two masks is refused, alone and with others. NULL is refused if the mask
 * asks for something, and only then. */
TEST(r266_attr_unknown_mask_bits)
{
    static DAT_IA_ATTR ia;
    static DAT_PROVIDER_ATTR pr;

    for (unsigned bit = 38; bit < 64; bit++) {
        EXPECT(ARG(3), dat_ia_query(a.ia, NULL, UINT64_C(1) << bit, &ia, 0, NULL));
        EXPECT(ARG(3), dat_ia_query(a.ia, NULL, DAT_IA_FIELD_ALL | UINT64_C(1) << bit, &ia, 0, NULL));
    }
    for (unsigned bit = 31; bit < 64; bit++)
        EXPECT(ARG(5), dat_ia_query(a.ia, NULL, 0, NULL, UINT64_C(1) << bit, &pr));
    EXPECT(ARG(4), dat_ia_query(a.ia, NULL, 1, NULL, 0, NULL));
    EXPECT(ARG(6), dat_ia_query(a.ia, NULL, 0, NULL, 1, NULL));
    OK(dat_ia_query(a.ia, NULL, 0, NULL, 0, NULL));
}

TEST(r267_attr_completion_flags)
{
    unsigned flags = provider().completion_flags_supported;
    unsigned modes[] = {DAT_COMPLETION_UNSIGNALLED_FLAG, DAT_COMPLETION_SOLICITED_WAIT_FLAG,
                        DAT_COMPLETION_EVD_THRESHOLD_FLAG};
    struct pair pair = plain_pair(3);

    for (int i = 0; i < 3; i++) {
        DAT_EP_ATTR attr = ep_attr();
        DAT_EVD_HANDLE evd;

        CHECK(flags & modes[i]);
        attr.recv_completion_flags = modes[i];
        OK(dat_evd_create(a.ia, 16, DAT_HANDLE_NULL, DAT_EVD_DTO_FLAG, &evd));
        ep_on(&a, srq_of(&a, 4), evd, &attr);
    }
    for (int i = 0; i < 3; i++) {
        unsigned of_send[] = {DAT_COMPLETION_SUPPRESS_FLAG, DAT_COMPLETION_BARRIER_FENCE_FLAG,
                              DAT_COMPLETION_SOLICITED_WAIT_FLAG};

        CHECK(flags & of_send[i]);
        OK(send_flagged(pair.client, 8, of_send[i]));
        TAKEN(a.recv, pair.server, 8);
    }
}

/* No other privilege replaces local write. */
TEST(r269_recv_needs_local_write_only)
{
    DAT_SRQ_HANDLE srq = srq_of(&a, 4);
    struct pair pair = pair_on(srq);
    unsigned without = DAT_MEM_PRIV_LOCAL_READ_FLAG | DAT_MEM_PRIV_REMOTE_READ_FLAG | DAT_MEM_PRIV_REMOTE_WRITE_FLAG;
    DAT_REGION_DESCRIPTION region = {.for_va = a.memory};
    DAT_LMR_HANDLE lmr;
    DAT_LMR_TRIPLET iov = piece(&a, 0, 64);

    OK(dat_lmr_create(a.ia, DAT_MEM_TYPE_VIRTUAL, region, 4096, a.pz, without, 0, &lmr, &iov.lmr_context, NULL, NULL, NULL));
    EXPECT(ERROR(DAT_PRIVILEGES_VIOLATION, DAT_PRIVILEGES_WRITE), dat_srq_post_recv(srq, 1, &iov, as_cookie(0)));
    OK(dat_lmr_create(a.ia, DAT_MEM_TYPE_VIRTUAL, region, 4096, a.pz, DAT_MEM_PRIV_LOCAL_WRITE_FLAG, 0, &lmr,
                      &iov.lmr_context, NULL, NULL, NULL));
    OK(dat_srq_post_recv(srq, 1, &iov, as_cookie(0)));
    SEND(pair, 8);
    TAKEN(a.recv, pair.server, 8);
}

/* A message that lands in a freed LMR fails and ends its connection, and nothing else. */
TEST(r270_lmr_free_with_posted_buffer)
{
    DAT_SRQ_HANDLE srq = srq_of(&a, 4);
    struct pair victim = pair_on(srq), other = pair_on(srq);
    DAT_REGION_DESCRIPTION region = {.for_va = a.memory};
    DAT_LMR_HANDLE gone;
    DAT_LMR_TRIPLET iov = piece(&a, 0, 64);
    DAT_EVENT event;
    DAT_COUNT more;

    OK(dat_lmr_create(a.ia, DAT_MEM_TYPE_VIRTUAL, region, 4096, a.pz, DAT_MEM_PRIV_LOCAL_WRITE_FLAG, 0, &gone,
                      &iov.lmr_context, NULL, NULL, NULL));
    OK(dat_srq_post_recv(srq, 1, &iov, as_cookie(66)));
    fill(srq, 1, 3);
    OK(dat_lmr_free(gone));
    COUNTS(srq, 4, 4);
    OK(send_flagged(victim.client, 8, 0));
    event = NEXT(a.recv, DAT_DTO_COMPLETION_EVENT);
    CHECK(DTO(event).status == DAT_DTO_ERR_LOCAL_PROTECTION && DTO(event).status == 4);
    CHECK(DTO(event).user_cookie.as_64 == 66 && DTO(event).ep_handle == victim.server);
    NEXT(b.req, DAT_DTO_COMPLETION_EVENT);
    for (int i = 0; i < 2; i++) {
        OK(dat_evd_wait(i ? a.conn : b.conn, LONG_TIME, 1, &event, &more));
        CHECK(event.event_data.connect_event_data.ep_handle == (i ? victim.server : victim.client));
    }
    SEND(other, 8);
    TAKEN(a.recv, other.server, 8);
}

TEST(r271_pz_free_refused_while_srq)
{
    DAT_PZ_HANDLE pz;
    DAT_SRQ_ATTR attr = {4, 1, 0};
    DAT_SRQ_HANDLE srq;

    OK(dat_pz_create(a.ia, &pz));
    OK(dat_srq_create(a.ia, pz, &attr, &srq));
    EXPECT(STATE(DAT_INVALID_STATE_PZ_IN_USE), dat_pz_free(pz));
    OK(dat_srq_free(srq));
    OK(dat_pz_free(pz));
}

/* The sync calls are allowed and do nothing. */
TEST(r272_lmr_sync_not_required)
{
    DAT_LMR_TRIPLET iov = piece(&a, 0, 64);

    CHECK(provider().lmr_sync_req == DAT_FALSE);
    OK(dat_lmr_sync_rdma_read(a.ia, &iov, 1));
    OK(dat_lmr_sync_rdma_write(a.ia, &iov, 1));
    OK(dat_lmr_sync_rdma_read(a.ia, NULL, 0));
    EXPECT(ARG(2), dat_lmr_sync_rdma_read(a.ia, NULL, 1));
    EXPECT(ARG(2), dat_lmr_sync_rdma_write(a.ia, NULL, 1));
}

/* The refused close changes nothing. */
TEST(r273_ia_close_graceful_refused_with_srq)
{
    DAT_IA_HANDLE ia;
    DAT_EVD_HANDLE async = DAT_HANDLE_NULL;
    DAT_PZ_HANDLE pz;
    DAT_SRQ_ATTR attr = {4, 1, 0};
    DAT_SRQ_HANDLE srq;

    OK(dat_ia_open(ia_names[0], 8, &async, &ia));
    OK(dat_pz_create(ia, &pz));
    OK(dat_srq_create(ia, pz, &attr, &srq));
    EXPECT(STATE(DAT_INVALID_STATE_IA_IN_USE), dat_ia_close(ia, DAT_CLOSE_GRACEFUL_FLAG));
    CHECK(look(srq).ia_handle == ia);
    OK(dat_srq_free(srq));
    OK(dat_pz_free(pz));
    EXPECT(ARG(2), dat_ia_close(ia, 2));
    OK(dat_ia_close(ia, DAT_CLOSE_GRACEFUL_FLAG));
    EXPECT(HANDLE(IA), dat_ia_close(ia, DAT_CLOSE_GRACEFUL_FLAG));
}

/* Buffers are posted, a message is not reaped, and a connection is up. The peer gets an event, and
 * every handle is stale (R275). */
TEST(r274_ia_close_abrupt_frees_srq)
{
    DAT_SRQ_HANDLE srq = srq_of(&a, 8);
    struct pair pair = pair_on(srq);
    DAT_LMR_TRIPLET iov = piece(&a, 0, 8);
    DAT_PSP_HANDLE psp;
    DAT_EP_PARAM ep_param;
    DAT_SRQ_PARAM srq_param;
    DAT_EVENT event;
    DAT_COUNT n;

    OK(dat_psp_create(a.ia, next_qual(), a.cr, DAT_PSP_CONSUMER_FLAG, &psp));
    fill(srq, 0, 8);
    SEND(pair, 8);
    OK(dat_ia_close(a.ia, DAT_CLOSE_ABRUPT_FLAG));
    NEXT(b.conn, DAT_CONNECTION_EVENT_DISCONNECTED);
    EXPECT(HANDLE(IA), dat_ia_query(a.ia, NULL, 0, NULL, 0, NULL));
    a.ia = DAT_HANDLE_NULL;
    EXPECT(HANDLE(SRQ), dat_srq_query(srq, DAT_SRQ_FIELD_ALL, &srq_param));
    EXPECT(HANDLE(SRQ), dat_srq_post_recv(srq, 1, &iov, as_cookie(0)));
    EXPECT(HANDLE(SRQ), dat_srq_resize(srq, 4));
    EXPECT(HANDLE(SRQ), dat_srq_set_lw(srq, 1));
    EXPECT(HANDLE(SRQ), dat_srq_free(srq));
    EXPECT(HANDLE(EP), dat_ep_query(pair.server, DAT_EP_FIELD_ALL, &ep_param));
    EXPECT(HANDLE(EP), dat_ep_post_send(pair.server, 1, &iov, as_cookie(0), 0));
    EXPECT(HANDLE(EP), dat_ep_recv_query(pair.server, &n, &n));
    EXPECT(HANDLE(EP), dat_ep_set_watermark(pair.server, 1, 1));
    EXPECT(HANDLE(EP), dat_ep_disconnect(pair.server, DAT_CLOSE_ABRUPT_FLAG));
    EXPECT(HANDLE(EP), dat_ep_free(pair.server));
    EXPECT(HANDLE(EVD_REQUEST), dat_evd_wait(a.recv, 0, 1, &event, &n));
    EXPECT(HANDLE(EVD_REQUEST), dat_evd_dequeue(a.async, &event));
    EXPECT(HANDLE(EVD_REQUEST), dat_evd_free(a.recv));
    EXPECT(HANDLE(LMR), dat_lmr_free(a.lmr));
    EXPECT(HANDLE(PSP), dat_psp_free(psp));
    EXPECT(HANDLE(PZ), dat_pz_free(a.pz));
    EXPECT(ERROR(DAT_INVALID_HANDLE, DAT_INVALID_HANDLE1), dat_get_consumer_context(srq, &(DAT_CONTEXT){.as_64 = 0}));
}

#define FAR 32768
#define IB_EVENT ((DAT_EVENT_NUMBER)DAT_IB_DTO_EVENT)

static DAT_RETURN write_immediate(DAT_EP_HANDLE ep, unsigned length, unsigned value, unsigned flags)
{
    DAT_LMR_TRIPLET iov = piece(&b, 100 * ROOM, length);
    DAT_RMR_TRIPLET remote = {(DAT_VADDR)(uintptr_t)(a.memory + FAR), length, a.rmr_context};

    return dat_ib_post_rdma_write_immed(ep, 1, &iov, as_cookie(31), &remote, value, flags);
}

#define WRITTEN(pair_)                                                                                           \
    do {                                                                                                         \
        DAT_EVENT e_ = NEXT(b.req, IB_EVENT);                                                            \
        CHECK(DTO(e_).ep_handle == (pair_).client && DTO(e_).status == DAT_DTO_SUCCESS);                         \
        CHECK(DTO(e_).user_cookie.as_64 == 31);                                                                  \
    } while (0)

/* A write with immediate takes one buffer and does not write to it: the bytes are at the RDMA
 * address (R277, R278). */
TEST(r276_write_immed_takes_srq_buffer)
{
    DAT_SRQ_HANDLE srq = srq_of(&a, 4);
    struct pair pair = pair_on(srq);
    DAT_IB_EXTENSION_EVENT_DATA *extension;
    DAT_EVENT event;

    memset(a.memory, '.', MEMORY);
    memset(b.memory + 100 * ROOM, 'w', 100);
    fill(srq, 5, 3);
    OK(write_immediate(pair.client, 100, 0x12345678, 0));
    WRITTEN(pair);
    COUNTS(srq, 2, 3);
    event = NEXT(a.recv, IB_EVENT);
    extension = (DAT_IB_EXTENSION_EVENT_DATA *)event.event_extension_data;
    CHECK(event.event_number == 0x40000 && event.evd_handle == a.recv);
    CHECK(extension->type == DAT_IB_RDMA_WRITE_IMMED_DATA && extension->type == 3);
    CHECK(extension->val.immed.data == 0x12345678);
    CHECK(DTO(event).ep_handle == pair.server && DTO(event).user_cookie.as_64 == 5);
    CHECK(DTO(event).status == DAT_DTO_SUCCESS && DTO(event).transfered_length == 100);
    COUNTS(srq, 2, 2);
    CHECK(a.memory[5 * ROOM] == '.' && a.memory[5 * ROOM + 99] == '.');
    CHECK(a.memory[FAR] == 'w' && a.memory[FAR + 99] == 'w' && a.memory[FAR + 100] == '.');
    /* An ordinary message has an ordinary event. */
    SEND(pair, 8);
    TAKEN(a.recv, pair.server, 8);
}

/* A write with immediate counts for both kinds of watermark, and fails if it finds no buffer. */
TEST(r278_write_immed_counts_everywhere)
{
    DAT_SRQ_HANDLE srq = srq_of(&a, 4);
    struct pair pair = pair_on(srq);
    DAT_EVENT events[2];
    int of_srq = 0, of_ep = 0;

    fill(srq, 0, 1);
    OK(dat_srq_set_lw(srq, 1));
    OK(dat_ep_set_watermark(pair.server, 0, -1));
    OK(write_immediate(pair.client, 8, 1, 0));
    WRITTEN(pair);
    COUNTS(srq, 0, 1);
    for (int i = 0; i < 2; i++) {
        events[i] = NEXT(a.async, WATERMARK);
        of_srq += events[i].event_data.asynch_error_event_data.dat_handle == (DAT_HANDLE)srq;
        of_ep += events[i].event_data.asynch_error_event_data.dat_handle == (DAT_HANDLE)pair.server;
    }
    CHECK(of_srq == 1 && of_ep == 1);
    OK(write_immediate(pair.client, 8, 1, 0));
    events[0] = NEXT(b.req, IB_EVENT);
    CHECK(DTO(events[0]).status == DAT_DTO_ERR_RECEIVER_NOT_READY);
}

TEST(r279_write_immed_solicited)
{
    DAT_SRQ_HANDLE srq = srq_of(&a, 4);
    DAT_EP_ATTR attr = ep_attr();
    DAT_EVD_HANDLE evd, triggered;
    DAT_CNO_HANDLE cno;
    struct pair pair;

    OK(dat_cno_create(a.ia, DAT_OS_WAIT_PROXY_AGENT_NULL, &cno));
    OK(dat_evd_create(a.ia, 16, cno, DAT_EVD_DTO_FLAG, &evd));
    attr.recv_completion_flags = DAT_COMPLETION_SOLICITED_WAIT_FLAG;
    pair = joined(ep_on(&a, srq, evd, &attr), plain_ep(&b));
    fill(srq, 0, 2);
    OK(write_immediate(pair.client, 8, 1, 0));
    WRITTEN(pair);
    EXPECT(TIMEOUT, dat_cno_wait(cno, SHORT_TIME, &triggered));
    OK(write_immediate(pair.client, 8, 2, DAT_COMPLETION_SOLICITED_WAIT_FLAG));
    WRITTEN(pair);
    OK(dat_cno_wait(cno, LONG_TIME, &triggered));
    CHECK(triggered == evd);
    NEXT(evd, IB_EVENT);
    NEXT(evd, IB_EVENT);
}

int main(int argc, char **argv)
{
    return run_tests(argc, argv);
}
