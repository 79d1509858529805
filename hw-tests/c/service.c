/* Service points that provide EPs, requests that are handed off, common service points. */
#include "check.h"

extern DAT_RETURN dats_get_ia_handle(DAT_IA_HANDLE handle, DAT_IA_HANDLE *result);

static DAT_EP_HANDLE client(struct side *b)
{
    DAT_EP_ATTR attr = ep_attr();
    DAT_EP_HANDLE ep;

    OK(dat_ep_create(b->ia, b->pz, b->recv, b->req, b->conn, &attr, &ep));
    return ep;
}

static void establish(struct side *a, struct side *b)
{
    NEXT(b->conn, DAT_CONNECTION_EVENT_ESTABLISHED);
    NEXT(a->conn, DAT_CONNECTION_EVENT_ESTABLISHED);
}

/* The request at a PSP that provides EPs, and its EP. */
static DAT_CR_HANDLE ask(struct side *a, DAT_EP_HANDLE ep, DAT_CONN_QUAL qual, DAT_EP_HANDLE *provided)
{
    DAT_CR_HANDLE cr = request(a, ep, qual);
    DAT_CR_PARAM param;
    DAT_EP_PARAM is;

    memset(&param, 0xA5, sizeof param);
    OK(dat_cr_query(cr, DAT_CR_FIELD_ALL, &param));
    *provided = param.local_ep_handle;
    CHECK(*provided != DAT_HANDLE_NULL);
    memset(&is, 0xA5, sizeof is);
    OK(dat_ep_query(*provided, DAT_EP_FIELD_ALL, &is));
    CHECK(is.ep_state == DAT_EP_STATE_TENTATIVE_CONNECTION_PENDING && is.ia_handle == a->ia);
    CHECK(is.pz_handle == DAT_HANDLE_NULL && is.recv_evd_handle == DAT_HANDLE_NULL);
    CHECK(is.request_evd_handle == DAT_HANDLE_NULL && is.connect_evd_handle == DAT_HANDLE_NULL);
    return cr;
}

static void provided(struct side *a, struct side *b)
{
    DAT_PROVIDER_ATTR provider;
    DAT_PSP_HANDLE psp, plain;
    DAT_PSP_PARAM psp_param;
    DAT_EP_HANDLE eb = client(b), ea, other;
    DAT_EP_PARAM param;
    DAT_CR_HANDLE cr;
    DAT_EVENT event;
    DAT_LMR_TRIPLET iov;
    DAT_DTO_COOKIE cookie = {.as_64 = 5};
    DAT_CONN_QUAL qual;

    OK(dat_ia_query(a->ia, NULL, 0, NULL, DAT_PROVIDER_FIELD_ALL, &provider));
    CHECK(provider.ep_creator == DAT_PSP_CREATES_EP_IFASKED);
    OK(dat_psp_create(a->ia, 45351, a->cr, DAT_PSP_PROVIDER_FLAG, &psp));
    OK(dat_psp_query(psp, DAT_PSP_FIELD_ALL, &psp_param));
    CHECK(psp_param.psp_flags == DAT_PSP_PROVIDER_FLAG && psp_param.conn_qual == 45351);
    EXPECT(ARG(4), dat_psp_create(a->ia, 45352, a->cr, 2, &plain));
    cr = ask(a, eb, 45351, &ea);
    EXPECT(STATE(DAT_INVALID_STATE_EP_TENTCONNPENDING), dat_ep_free(ea));
    param.pz_handle = a->pz;
    param.recv_evd_handle = a->recv;
    param.request_evd_handle = a->req;
    param.connect_evd_handle = a->conn;
    OK(dat_ep_modify(ea, DAT_EP_FIELD_PZ_HANDLE | DAT_EP_FIELD_RECV_EVD_HANDLE | DAT_EP_FIELD_REQUEST_EVD_HANDLE |
                             DAT_EP_FIELD_CONNECT_EVD_HANDLE, &param));
    iov = piece(a, 0, 64);
    OK(dat_ep_post_recv(ea, 1, &iov, cookie, DAT_COMPLETION_DEFAULT_FLAG));
    OK(dat_cr_accept(cr, DAT_HANDLE_NULL, 0, NULL));
    establish(a, b);
    strcpy(b->memory, "provided");
    iov = piece(b, 0, 9);
    OK(dat_ep_post_send(eb, 1, &iov, cookie, DAT_COMPLETION_SUPPRESS_FLAG));
    event = NEXT(a->recv, DAT_DTO_COMPLETION_EVENT);
    CHECK(event.event_data.dto_completion_event_data.ep_handle == ea && strcmp(a->memory, b->memory) == 0);
    OK(dat_ep_disconnect(ea, DAT_CLOSE_ABRUPT_FLAG));
    NEXT(a->conn, DAT_CONNECTION_EVENT_DISCONNECTED);
    OK(dat_ep_free(ea));
    NEXT(b->conn, DAT_CONNECTION_EVENT_DISCONNECTED);
    OK(dat_ep_free(eb));

    /* If the request is rejected, or accepted with another EP, its EP is gone. */
    eb = client(b);
    cr = ask(a, eb, 45351, &ea);
    OK(dat_cr_reject(cr, 0, NULL));
    NEXT(b->conn, DAT_CONNECTION_EVENT_PEER_REJECTED);
    EXPECT(HANDLE(EP), dat_ep_free(ea));
    OK(dat_ep_reset(eb));
    cr = ask(a, eb, 45351, &ea);
    other = client(a);
    OK(dat_cr_accept(cr, other, 0, NULL));
    establish(a, b);
    EXPECT(HANDLE(EP), dat_ep_free(ea));
    OK(dat_ep_free(other));
    NEXT(b->conn, DAT_CONNECTION_EVENT_DISCONNECTED);
    OK(dat_ep_free(eb));

    /* A request that is handed off. */
    qual = 0;
    OK(dat_psp_create_any(a->ia, &qual, a->cr, DAT_PSP_CONSUMER_FLAG, &plain));
    eb = client(b);
    cr = ask(a, eb, 45351, &ea);
    EXPECT(ARG(2), dat_cr_handoff(cr, 45399));
    OK(dat_cr_handoff(cr, qual));
    EXPECT(HANDLE(CR), dat_cr_handoff(cr, qual));
    EXPECT(HANDLE(EP), dat_ep_free(ea));
    event = NEXT(a->cr, DAT_CONNECTION_REQUEST_EVENT);
    CHECK(event.event_data.cr_arrival_event_data.sp_handle.psp_handle == plain);
    CHECK(event.event_data.cr_arrival_event_data.conn_qual == qual);
    ea = client(a);
    OK(dat_cr_accept(event.event_data.cr_arrival_event_data.cr_handle, ea, 0, NULL));
    establish(a, b);
    OK(dat_ep_free(ea));
    NEXT(b->conn, DAT_CONNECTION_EVENT_DISCONNECTED);
    OK(dat_ep_free(eb));
    OK(dat_psp_free(plain));
    OK(dat_psp_free(psp));
}

/* A service point of another IA of the same device takes a request, too. Its event has the handles
 * of that IA. */
static void elsewhere(struct side *a, struct side *b, char *name)
{
    struct side other;
    DAT_PSP_HANDLE here, there;
    DAT_EP_HANDLE eb = client(b), ea, wrong = client(a);
    DAT_CONN_QUAL from = 0, to = 0;
    DAT_CR_HANDLE first, cr;
    DAT_CR_PARAM param;
    DAT_EVENT event;
    DAT_LMR_TRIPLET iov;
    DAT_DTO_COOKIE cookie = {.as_64 = 9};

    side_open(&other, name);
    ea = client(&other);
    OK(dat_psp_create_any(a->ia, &from, a->cr, DAT_PSP_CONSUMER_FLAG, &here));
    OK(dat_psp_create_any(other.ia, &to, other.cr, DAT_PSP_CONSUMER_FLAG, &there));
    first = request(a, eb, from);
    EXPECT(ARG(2), dat_cr_handoff(first, 45399));
    OK(dat_cr_handoff(first, to));
    EXPECT(HANDLE(CR), dat_cr_reject(first, 0, NULL));
    event = NEXT(other.cr, DAT_CONNECTION_REQUEST_EVENT);
    CHECK(event.event_data.cr_arrival_event_data.sp_handle.psp_handle == there);
    CHECK(event.event_data.cr_arrival_event_data.conn_qual == to);
    CHECK(event.event_data.cr_arrival_event_data.local_ia_address_ptr == other.attr.ia_address_ptr);
    cr = event.event_data.cr_arrival_event_data.cr_handle;
    memset(&param, 0xA5, sizeof param);
    OK(dat_cr_query(cr, DAT_CR_FIELD_ALL, &param));
    CHECK(param.private_data_size >= 5 && memcmp(param.private_data, "hello", 5) == 0);
    EXPECT(HANDLE(EP), dat_cr_accept(cr, wrong, 0, NULL));
    /* The program may write to the private data of the request, and send them back as its
     * answer. */
    ((char *)param.private_data)[0] = 'H';
    OK(dat_cr_accept(cr, ea, 5, param.private_data));
    both_established(&other, ea, b, eb, "Hello");
    iov = piece(&other, 0, 64);
    OK(dat_ep_post_recv(ea, 1, &iov, cookie, DAT_COMPLETION_DEFAULT_FLAG));
    iov = piece(b, 0, 9);
    OK(dat_ep_post_send(eb, 1, &iov, cookie, DAT_COMPLETION_SUPPRESS_FLAG));
    event = NEXT(other.recv, DAT_DTO_COMPLETION_EVENT);
    CHECK(event.event_data.dto_completion_event_data.ep_handle == ea);
    OK(dat_psp_free(here));
    OK(dat_ia_close(other.ia, DAT_CLOSE_ABRUPT_FLAG));
    NEXT(b->conn, DAT_CONNECTION_EVENT_DISCONNECTED);
    OK(dat_ep_free(eb));
    OK(dat_ep_free(wrong));
    free(other.memory);
}

static void common(struct side *a, struct side *b)
{
    const DAT_PROVIDER *table = TABLE(a->pz);
    DAT_COMM comm = {a->attr.ia_address_ptr->sa_family, SOCK_STREAM, 0}, udp = {AF_INET, SOCK_DGRAM, 0};
    struct sockaddr_storage at;
    struct sockaddr *where = (struct sockaddr *)&at;
    DAT_CSP_HANDLE csp, second;
    DAT_CSP_PARAM param;
    DAT_EP_PARAM is;
    DAT_EP_HANDLE eb = client(b), ea = client(a);
    DAT_HANDLE_TYPE type;
    DAT_IA_HANDLE raw;
    DAT_EVENT event;
    size_t size = comm.domain == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6);

    OK(dats_get_ia_handle(a->ia, &raw));
    memcpy(&at, a->attr.ia_address_ptr, size);
    EXPECT(ARG(2), table->csp_create_func(raw, NULL, where, a->cr, &csp));
    EXPECT(ARG(3), table->csp_create_func(raw, &comm, NULL, a->cr, &csp));
    EXPECT(ARG(5), table->csp_create_func(raw, &comm, where, a->cr, NULL));
    EXPECT(HANDLE(EVD_CR), table->csp_create_func(raw, &comm, where, a->conn, &csp));
    EXPECT(DAT_CLASS_ERROR | DAT_COMM_NOT_SUPPORTED, table->csp_create_func(raw, &udp, where, a->cr, &csp));
    OK(table->csp_create_func(raw, &comm, where, a->cr, &csp));
    OK(dat_get_handle_type(csp, &type));
    CHECK(type == DAT_HANDLE_TYPE_CSP);
    memset(&param, 0xA5, sizeof param);
    OK(table->csp_query_func(csp, DAT_CSP_FIELD_ALL, &param));
    CHECK(param.ia_handle == a->ia && param.evd_handle == a->cr && param.comm->type == SOCK_STREAM);
    CHECK(param.comm->domain == comm.domain && param.address_ptr->sa_family == comm.domain);
    CHECK(((struct sockaddr_in *)param.address_ptr)->sin_port != 0);
    EXPECT(ARG(2), table->csp_query_func(csp, 0x10, &param));
    EXPECT(ARG(3), table->csp_query_func(csp, DAT_CSP_FIELD_ALL, NULL));
    memcpy(&at, param.address_ptr, size);
    EXPECT(DAT_CLASS_ERROR | DAT_PORT_IN_USE, table->csp_create_func(raw, &comm, where, a->cr, &second));
    EXPECT(ARG(2), table->ep_common_connect_func(eb, NULL, LONG_TIME, 0, NULL));
    EXPECT(ARG(2), table->ep_common_connect_func(eb, a->attr.ia_address_ptr, LONG_TIME, 0, NULL));
    EXPECT(ARG(4), table->ep_common_connect_func(eb, where, LONG_TIME, -1, NULL));
    OK(table->ep_common_connect_func(eb, where, LONG_TIME, 3, "hi"));
    event = NEXT(a->cr, DAT_CONNECTION_REQUEST_EVENT);
    CHECK(event.event_data.cr_arrival_event_data.sp_handle.csp_handle == csp);
    OK(dat_cr_accept(event.event_data.cr_arrival_event_data.cr_handle, ea, 0, NULL));
    establish(a, b);
    OK(dat_ep_query(eb, DAT_EP_FIELD_ALL, &is));
    CHECK(is.comm.type == SOCK_STREAM && is.comm.domain == comm.domain);
    OK(table->csp_free_func(csp));
    EXPECT(HANDLE(CSP), table->csp_free_func(csp));
    EXPECT(HANDLE(CSP), table->csp_query_func(csp, DAT_CSP_FIELD_ALL, &param));
    OK(dat_ep_free(ea));
    OK(dat_ep_free(eb));
}

int main(int argc, char **argv)
{
    struct side a, b;

    (void)argc;
    side_open(&a, argv[1]);
    side_open(&b, argv[2]);
    provided(&a, &b);
    elsewhere(&a, &b, argv[1]);
    common(&a, &b);
    OK(dat_ia_close(a.ia, DAT_CLOSE_ABRUPT_FLAG));
    OK(dat_ia_close(b.ia, DAT_CLOSE_ABRUPT_FLAG));
    return finish();
}
