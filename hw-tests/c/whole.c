/* Each call writes the whole structure of its consumer, padding included: two structures that were
 * filled with different garbage are equal afterwards, byte for byte. A dequeue of a completion
 * writes the part of the event that a completion has. */
#include "rig.h"
#include <dat2/dat_registry.h>

extern DAT_RETURN dats_get_ia_handle(DAT_IA_HANDLE handle, DAT_IA_HANDLE *result);

/* The call fills in `*out`. */
#define WHOLE(type, call) WRITTEN(type, sizeof(type), call)

/* The call fills in the first bytes of `*out`. */
#define WRITTEN(type, bytes, call)                                                                                        \
    do {                                                                                                         \
        type two_[2], *out = two_;                                                                               \
        memset(&two_[0], 0x5A, sizeof *two_);                                                                    \
        OK(call);                                                                                                \
        out = two_ + 1;                                                                                          \
        memset(&two_[1], 0xA5, sizeof *two_);                                                                    \
        OK(call);                                                                                                \
        CHECK(memcmp(&two_[0], &two_[1], bytes) == 0);                                                    \
        for (size_t i_ = 0; i_ < (bytes); i_++)                                                             \
            if (((char *)two_)[i_] != ((char *)two_)[sizeof *two_ + i_])                                         \
                printf(#type ": byte %zu is not written\n", i_);                                                 \
    } while (0)

TEST(queries_write_every_byte)
{
    DAT_OS_WAIT_PROXY_AGENT agent = DAT_OS_WAIT_PROXY_AGENT_NULL;
    struct sockaddr_storage at;
    DAT_COMM comm = {a.attr.ia_address_ptr->sa_family, SOCK_STREAM, 0};
    const DAT_PROVIDER *table = *(const DAT_PROVIDER **)a.pz;
    DAT_SRQ_HANDLE srq = srq_of(&a, 4);
    DAT_EP_HANDLE plain = plain_ep(&a), reserved = plain_ep(&a), peer = plain_ep(&b), ep = ep_on(&a, srq, a.recv, NULL);
    DAT_CNO_HANDLE cno, fd_cno;
    DAT_PSP_HANDLE psp;
    DAT_RSP_HANDLE rsp;
    DAT_CSP_HANDLE csp;
    DAT_RMR_HANDLE rmr;
    DAT_IA_HANDLE raw;
    DAT_CR_HANDLE cr;
    DAT_FD fd;

    OK(dat_cno_create(a.ia, agent, &cno));
    OK(dats_get_ia_handle(a.ia, &raw));
    OK(table->cno_fd_create_func(raw, &fd, &fd_cno));
    OK(dat_psp_create(a.ia, 45371, a.cr, DAT_PSP_CONSUMER_FLAG, &psp));
    OK(dat_rsp_create(a.ia, 45372, reserved, a.cr, &rsp));
    memset(&at, 0, sizeof at);
    memcpy(&at, a.attr.ia_address_ptr,
           comm.domain == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6));
    OK(table->csp_create_func(raw, &comm, (struct sockaddr *)&at, a.cr, &csp));
    cr = request(&a, peer, 45371);

    WHOLE(DAT_IA_ATTR, dat_ia_query(a.ia, NULL, DAT_IA_FIELD_ALL, out, 0, NULL));
    WHOLE(DAT_PROVIDER_ATTR, dat_ia_query(a.ia, NULL, 0, NULL, DAT_PROVIDER_FIELD_ALL, out));
    WHOLE(DAT_EP_PARAM, dat_ep_query(plain, DAT_EP_FIELD_ALL, out));
    WHOLE(DAT_EP_PARAM, dat_ep_query(ep, DAT_EP_FIELD_ALL, out));
    WHOLE(DAT_EP_PARAM, dat_ep_query(peer, DAT_EP_FIELD_ALL, out));
    WHOLE(DAT_SRQ_PARAM, dat_srq_query(srq, DAT_SRQ_FIELD_ALL, out));
    WHOLE(DAT_EVD_PARAM, dat_evd_query(a.recv, DAT_EVD_FIELD_ALL, out));
    WHOLE(DAT_CNO_PARAM, dat_cno_query(cno, DAT_CNO_FIELD_ALL, out));
    WHOLE(DAT_CNO_PARAM, dat_cno_query(fd_cno, DAT_CNO_FIELD_ALL, out));
    WHOLE(DAT_LMR_PARAM, dat_lmr_query(a.lmr, DAT_LMR_FIELD_ALL, out));
    WHOLE(DAT_PZ_PARAM, dat_pz_query(a.pz, DAT_PZ_FIELD_ALL, out));
    WHOLE(DAT_PSP_PARAM, dat_psp_query(psp, DAT_PSP_FIELD_ALL, out));
    WHOLE(DAT_RSP_PARAM, dat_rsp_query(rsp, DAT_RSP_FIELD_ALL, out));
    WHOLE(DAT_CSP_PARAM, table->csp_query_func(csp, DAT_CSP_FIELD_ALL, out));
    WHOLE(DAT_CR_PARAM, dat_cr_query(cr, DAT_CR_FIELD_ALL, out));
    if (a.attr.max_rmrs > 0) {
        OK(dat_rmr_create(a.pz, &rmr));
        WHOLE(DAT_RMR_PARAM, dat_rmr_query(rmr, DAT_RMR_FIELD_ALL, out));
    }
}

/* Takes the next event, by a wait or by dequeues. */
static DAT_RETURN take(DAT_EVD_HANDLE evd, int waits, DAT_EVENT *event)
{
    DAT_COUNT more;
    DAT_RETURN ret;

    if (waits)
        return dat_evd_wait(evd, LONG_TIME, 1, event, &more);
    while (DAT_GET_TYPE(ret = dat_evd_dequeue(evd, event)) == DAT_QUEUE_EMPTY)
        sched_yield();
    return ret;
}

TEST(events_are_written_whole)
{
    struct pair pair = joined(plain_ep(&a), plain_ep(&b));
    DAT_EVD_HANDLE software;
    DAT_EVENT event;

    for (int waits = 0; waits < 2; waits++) {
        for (int i = 0; i < 2; i++) {
            OK(dat_ep_post_recv(pair.server, 0, NULL, as_cookie(7), DAT_COMPLETION_DEFAULT_FLAG));
            OK(dat_ep_post_send(pair.client, 0, NULL, as_cookie(7), DAT_COMPLETION_DEFAULT_FLAG));
        }
        size_t bytes = waits ? sizeof event :
                               offsetof(DAT_EVENT, event_data) + sizeof(DAT_DTO_COMPLETION_EVENT_DATA);

        WRITTEN(DAT_EVENT, bytes, take(b.req, waits, out));
        /* The messages of the sends that completed are there: a wait finds them at once. */
        WRITTEN(DAT_EVENT, bytes, take(a.recv, waits, out));
    }
    OK(dat_evd_create(a.ia, 8, DAT_HANDLE_NULL, DAT_EVD_SOFTWARE_FLAG, &software));
    memset(&event, 0, sizeof event);
    event.event_number = DAT_SOFTWARE_EVENT;
    OK(dat_evd_post_se(software, &event));
    OK(dat_evd_post_se(software, &event));
    WHOLE(DAT_EVENT, take(software, 1, out));
    /* The end of a connection causes one event at either side. */
    OK(dat_ep_disconnect(pair.client, DAT_CLOSE_ABRUPT_FLAG));
    memset(&event, 0x5A, sizeof event);
    OK(take(a.conn, 1, &event));
    for (size_t i = 0; i < sizeof event.event_extension_data; i++)
        CHECK(((char *)event.event_extension_data)[i] == 0);
    CHECK(((unsigned *)&event)[1] == 0);
}

int main(int argc, char **argv)
{
    return run_tests(argc, argv);
}
