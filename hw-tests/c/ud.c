/* Datagrams through the IB extension: UD endpoints, their events and their calls in C. */
#include "rig.h"
#include <dat2/dat_ib_extensions.h>
#include <arpa/inet.h>

#define GRH 40

static DAT_EP_ATTR ud_attr(void)
{
    DAT_EP_ATTR attr = ep_attr();

    attr.service_type = (DAT_SERVICE_TYPE)DAT_IB_SERVICE_TYPE_UD;
    attr.max_message_size = 256;
    return attr;
}

static DAT_EP_HANDLE ud_ep(struct side *s)
{
    DAT_EP_ATTR attr = ud_attr();
    DAT_EP_HANDLE ep = DAT_HANDLE_NULL;

    OK(dat_ep_create(s->ia, s->pz, s->recv, s->req, s->conn, &attr, &ep));
    return ep;
}

static DAT_IB_EXTENSION_EVENT_DATA extension(DAT_EVENT *event)
{
    DAT_IB_EXTENSION_EVENT_DATA data;

    memcpy(&data, event->event_extension_data, sizeof data);
    return data;
}

/* Side b's endpoint asks for a destination at a service point of side a. Returns the request. */
static DAT_CR_HANDLE asked(DAT_EP_HANDLE client, DAT_PSP_HANDLE *psp)
{
    DAT_CONN_QUAL qual = next_qual();
    DAT_EVENT event;

    OK(dat_psp_create(a.ia, qual, a.cr, DAT_PSP_CONSUMER_FLAG, psp));
    OK(dat_ep_connect(client, a.attr.ia_address_ptr, qual, LONG_TIME, 4, "who?", DAT_QOS_BEST_EFFORT,
                      DAT_CONNECT_DEFAULT_FLAG));
    event = NEXT(a.cr, (DAT_EVENT_NUMBER)DAT_IB_UD_CONNECTION_REQUEST_EVENT);
    CHECK(extension(&event).type == DAT_IB_UD_CONNECT_REQUEST);
    CHECK(event.event_data.cr_arrival_event_data.sp_handle.psp_handle == *psp);
    CHECK(event.event_data.cr_arrival_event_data.conn_qual == qual);
    return event.event_data.cr_arrival_event_data.cr_handle;
}

struct known {
    DAT_IB_ADDR_HANDLE ah;
    DAT_CONTEXT cm;
    const char *data;
};

/* The next connection event, which has the destination of this endpoint's datagrams. */
static struct known established(struct side *s, DAT_EP_HANDLE ep, DAT_IB_EXT_TYPE type, struct side *peer)
{
    DAT_EVENT event = NEXT(s->conn, (DAT_EVENT_NUMBER)DAT_IB_UD_CONNECTION_EVENT_ESTABLISHED);
    DAT_IB_EXTENSION_EVENT_DATA data = extension(&event);
    struct sockaddr_in *to = (struct sockaddr_in *)&data.remote_ah.ia_addr;
    struct sockaddr_in *is = (struct sockaddr_in *)peer->attr.ia_address_ptr;

    CHECK(event.event_data.connect_event_data.ep_handle == ep);
    CHECK(data.type == type && data.status == (DAT_IB_STATUS)DAT_OP_SUCCESS);
    CHECK(data.remote_ah.ah != NULL && data.remote_ah.qpn != 0 && data.remote_ah.qpn < 1 << 24);
    CHECK(data.context.as_64 != 0);
    CHECK(to->sin_family == is->sin_family);
    if (is->sin_family == AF_INET)
        CHECK(to->sin_addr.s_addr == is->sin_addr.s_addr);
    return (struct known){data.remote_ah, data.context, event.event_data.connect_event_data.private_data};
}

struct friends {
    DAT_EP_HANDLE server, client;
    struct known to_server, to_client;
};

static struct friends friends(DAT_EP_HANDLE server, DAT_EP_HANDLE client)
{
    struct friends f = {server, client, {}, {}};
    DAT_PSP_HANDLE psp;
    DAT_CR_HANDLE cr = asked(client, &psp);
    DAT_CR_PARAM param;

    OK(dat_cr_query(cr, DAT_CR_FIELD_ALL, &param));
    CHECK(param.private_data_size == 4 && memcmp(param.private_data, "who?", 4) == 0);
    OK(dat_cr_accept(cr, server, 4, "me!!"));
    f.to_server = established(&b, client, DAT_IB_UD_REMOTE_AH, &a);
    f.to_client = established(&a, server, DAT_IB_UD_PASSIVE_REMOTE_AH, &b);
    CHECK(memcmp(f.to_server.data, "me!!", 4) == 0);
    CHECK(memcmp(f.to_client.data, "who?", 4) == 0);
    OK(dat_psp_free(psp));
    return f;
}

static DAT_RETURN send_ud(DAT_EP_HANDLE ep, struct side *s, unsigned at, unsigned length, DAT_IB_ADDR_HANDLE *to)
{
    DAT_LMR_TRIPLET iov = piece(s, at * ROOM, length);

    return dat_ib_post_send_ud(ep, 1, &iov, to, as_cookie(at), DAT_COMPLETION_DEFAULT_FLAG);
}

/* The next completion, which has to be of this operation. */
static DAT_EVENT done(DAT_EVD_HANDLE evd, DAT_EP_HANDLE ep, DAT_IB_DTOS operation, DAT_IB_EXT_TYPE type, unsigned at,
                      unsigned length)
{
    DAT_EVENT event = NEXT(evd, (DAT_EVENT_NUMBER)DAT_IB_DTO_EVENT);
    DAT_DTO_COMPLETION_EVENT_DATA *dto = &event.event_data.dto_completion_event_data;

    CHECK(dto->ep_handle == ep && dto->user_cookie.as_64 == at);
    CHECK(dto->status == DAT_DTO_SUCCESS && dto->transfered_length == length);
    CHECK((int)dto->operation == (int)operation && extension(&event).type == type);
    return event;
}

static void message(struct friends *f, unsigned from, unsigned to, const char *text)
{
    unsigned length = strlen(text) + 1;
    DAT_EVENT event;

    strcpy(b.memory + from * ROOM, text);
    OK(send_ud(f->client, &b, from, length, &f->to_server.ah));
    done(b.req, f->client, DAT_IB_DTO_SEND_UD, DAT_IB_UD_SEND, from, length);
    event = done(a.recv, f->server, DAT_IB_DTO_RECV_UD, DAT_IB_UD_RECV, to, length + GRH);
    CHECK(extension(&event).remote_ah.qpn == f->to_client.ah.qpn);
    CHECK(strcmp(a.memory + to * ROOM + GRH, text) == 0);
}

TEST(a_datagram_each_way)
{
    struct friends f = friends(ud_ep(&a), ud_ep(&b));
    DAT_LMR_TRIPLET iov = piece(&a, 0, ROOM);
    DAT_EP_PARAM param;

    OK(dat_ep_post_recv(f.server, 1, &iov, as_cookie(0), DAT_COMPLETION_DEFAULT_FLAG));
    message(&f, 3, 0, "hello");
    iov = piece(&b, 5 * ROOM, ROOM);
    OK(dat_ep_post_recv(f.client, 1, &iov, as_cookie(5), DAT_COMPLETION_DEFAULT_FLAG));
    OK(send_ud(f.server, &a, 7, 64, &f.to_client.ah));
    done(a.req, f.server, DAT_IB_DTO_SEND_UD, DAT_IB_UD_SEND, 7, 64);
    done(b.recv, f.client, DAT_IB_DTO_RECV_UD, DAT_IB_UD_RECV, 5, 64 + GRH);
    OK(dat_ep_query(f.server, DAT_EP_FIELD_ALL, &param));
    CHECK(param.ep_state == DAT_EP_STATE_UNCONNECTED);
    CHECK((int)param.ep_attr.service_type == DAT_IB_SERVICE_TYPE_UD);
    OK(dat_ep_free(f.server));
    OK(dat_ep_free(f.client));
}

TEST(one_srq_for_datagrams_and_connections)
{
    DAT_SRQ_HANDLE srq = srq_of(&a, 8);
    DAT_EP_ATTR attr = ud_attr();
    struct friends f = friends(ep_on(&a, srq, a.recv, &attr), ud_ep(&b));
    struct pair pair = pair_on(srq);
    DAT_EVENT event;

    fill(srq, 0, 6);
    for (unsigned i = 0; i < 6; i += 2) {
        message(&f, 90, i, "by datagram");
        OK(send_flagged(pair.client, 20, DAT_COMPLETION_SUPPRESS_FLAG));
        event = NEXT(a.recv, DAT_DTO_COMPLETION_EVENT);
        CHECK(event.event_data.dto_completion_event_data.user_cookie.as_64 == i + 1);
        CHECK(event.event_data.dto_completion_event_data.transfered_length == 20);
    }
    COUNTS(srq, 0, 0);
    OK(dat_ep_free(f.server));
    OK(dat_ep_free(pair.server));
    OK(dat_srq_free(srq));
}

TEST(the_attribute_says_that_there_are_datagrams)
{
    DAT_PROVIDER_ATTR attr;
    int found = 0;

    OK(dat_ia_query(a.ia, NULL, 0, NULL, DAT_PROVIDER_FIELD_ALL, &attr));
    for (int i = 0; i < attr.num_provider_specific_attr; i++)
        if (strcmp(attr.provider_specific_attr[i].name, DAT_IB_ATTR_UD) == 0)
            found = strcmp(attr.provider_specific_attr[i].value, "TRUE") == 0;
    CHECK(found);
}

TEST(rejections_and_failures_are_events_of_their_own)
{
    DAT_EP_HANDLE client = ud_ep(&b);
    DAT_PSP_HANDLE psp;
    DAT_CR_HANDLE cr = asked(client, &psp);
    char data[137] = "no";
    DAT_EVENT event;

    EXPECT(ARG(2), dat_cr_reject(cr, sizeof data, data));
    OK(dat_cr_reject(cr, 3, data));
    event = NEXT(b.conn, (DAT_EVENT_NUMBER)DAT_IB_UD_CONNECTION_REJECT_EVENT);
    CHECK(event.event_data.connect_event_data.ep_handle == client);
    CHECK(extension(&event).type == DAT_IB_UD_CONNECT_REJECT && extension(&event).remote_ah.ah == NULL);
    CHECK(memcmp(event.event_data.connect_event_data.private_data, "no", 3) == 0);
    OK(dat_psp_free(psp));
    OK(dat_ep_connect(client, a.attr.ia_address_ptr, next_qual(), LONG_TIME, 0, NULL, DAT_QOS_BEST_EFFORT,
                      DAT_CONNECT_DEFAULT_FLAG));
    event = NEXT(b.conn, (DAT_EVENT_NUMBER)DAT_IB_UD_CONNECTION_ERROR_EVENT);
    CHECK(event.event_data.connect_event_data.ep_handle == client);
    CHECK(extension(&event).type == DAT_IB_UD_CONNECT_ERROR);
    CHECK(state_of(client) == DAT_EP_STATE_UNCONNECTED);
    OK(dat_ep_free(client));
}

static DAT_CR_HANDLE answered_twice;
static DAT_RETURN second_answer;
static unsigned answers;

static void answering_agent(DAT_PVOID data, DAT_EVD_HANDLE evd)
{
    (void)data, (void)evd;
    second_answer = dat_cr_reject(answered_twice, 0, NULL);
    __atomic_add_fetch(&answers, 1, __ATOMIC_RELEASE);
}

/* The route back to the requester cannot be resolved: dat_cr_accept succeeds, and an event says so.
 * The agent that runs for the event may make any call, even one on the same request. */
TEST(a_requester_that_cannot_be_reached)
{
    DAT_OS_WAIT_PROXY_AGENT agent = {NULL, answering_agent};
    DAT_EP_HANDLE client = ud_ep(&b), server = ud_ep(&a);
    DAT_PSP_HANDLE psp;
    DAT_CNO_HANDLE cno;
    DAT_EVENT event;
    int refused;

    answered_twice = asked(client, &psp);
    OK(dat_cno_create(a.ia, agent, &cno));
    OK(dat_evd_modify_cno(a.conn, cno));
    answers = 0;
    /* Only the software device can be told to refuse. */
    refused = emu("fault cmd.resolve_addr=113") == 0;
    OK(dat_cr_accept(answered_twice, server, 0, NULL));
    /* First, because a CNO is not triggered while a thread waits on the EVD. */
    until(&answers, 1);
    EXPECT(HANDLE(CR), second_answer);
    if (refused) {
        event = NEXT(a.conn, (DAT_EVENT_NUMBER)DAT_IB_UD_CONNECTION_ERROR_EVENT);
        CHECK(event.event_data.connect_event_data.ep_handle == server);
        CHECK(memcmp(event.event_data.connect_event_data.private_data, "who?", 4) == 0);
    } else {
        established(&a, server, DAT_IB_UD_PASSIVE_REMOTE_AH, &b);
    }
    established(&b, client, DAT_IB_UD_REMOTE_AH, &a);
    OK(dat_evd_modify_cno(a.conn, DAT_HANDLE_NULL));
    OK(dat_cno_free(cno));
    OK(dat_psp_free(psp));
    OK(dat_ep_free(server));
    OK(dat_ep_free(client));
}

TEST(handles_are_freed_once)
{
    struct friends f = friends(ud_ep(&a), ud_ep(&b));
    DAT_IB_ADDR_HANDLE none = {0};

    OK(dat_ib_ud_cm_free(f.client, f.to_server.cm));
    EXPECT(ARG(2), dat_ib_ud_cm_free(f.client, f.to_server.cm));
    EXPECT(ARG(2), dat_ib_ud_cm_free(f.client, f.to_client.cm));
    /* The failed call leaves the address handle unchanged. */
    OK(send_ud(f.client, &b, 0, 8, &f.to_server.ah));
    EXPECT(ARG(2), dat_ib_ud_ah_free(f.server, &f.to_server.ah));
    OK(dat_ib_ud_ah_free(f.client, &f.to_server.ah));
    EXPECT(ARG(2), dat_ib_ud_ah_free(f.client, &f.to_server.ah));
    EXPECT(ARG(2), dat_ib_ud_ah_free(f.client, &none));
    EXPECT(ARG(2), dat_ib_ud_ah_free(f.client, NULL));
    EXPECT(ARG(4), send_ud(f.client, &b, 0, 8, &f.to_server.ah));
    /* Handles that are not freed go with the endpoint; the test's counts show it. */
    OK(dat_ep_free(f.server));
    EXPECT(HANDLE(EP), dat_ib_ud_ah_free(f.server, &f.to_client.ah));
    EXPECT(HANDLE(EP), dat_ib_ud_cm_free(f.server, f.to_client.cm));
    OK(dat_ep_free(f.client));
}

/* The pointer in an address handle is a number. The provider does not use the memory behind it. */
TEST(address_handles_that_are_none)
{
    struct friends f = friends(ud_ep(&a), ud_ep(&b));
    static const uintptr_t odd[] = {0, 1, 8, 0x1000, UINTPTR_MAX, UINTPTR_MAX - 7, UINT64_C(0xdeadbeefdeadbeef)};
    DAT_IB_ADDR_HANDLE ah = f.to_server.ah;
    unsigned char garbage[64];

    memset(garbage, 0xEE, sizeof garbage);
    for (unsigned i = 0; i < sizeof odd / sizeof *odd; i++) {
        ah.ah = (struct ibv_ah *)odd[i];
        EXPECT(ARG(4), send_ud(f.client, &b, 0, 8, &ah));
        EXPECT(ARG(2), dat_ib_ud_ah_free(f.client, &ah));
    }
    ah.ah = (struct ibv_ah *)garbage;
    EXPECT(ARG(4), send_ud(f.client, &b, 0, 8, &ah));
    EXPECT(ARG(4), send_ud(f.client, &b, 0, 8, NULL));
    ah = f.to_server.ah;
    ah.qpn = 1 << 24;
    EXPECT(ARG(4), send_ud(f.client, &b, 0, 8, &ah));
    /* No QP has this number, so the datagram is lost. */
    ah.qpn = 0xfffffe;
    OK(send_ud(f.client, &b, 0, 8, &ah));
    done(b.req, f.client, DAT_IB_DTO_SEND_UD, DAT_IB_UD_SEND, 0, 8);
}

TEST(arguments_are_checked_as_in_other_posts)
{
    struct friends f = friends(ud_ep(&a), ud_ep(&b));
    DAT_LMR_TRIPLET iov = piece(&b, 0, 8);
    DAT_EP_HANDLE connected = plain_ep(&b);
    DAT_EP_ATTR attr = ud_attr();
    DAT_EP_HANDLE ep;
    DAT_PZ_HANDLE pz;

    EXPECT(ARG(6), dat_ib_post_send_ud(f.client, 1, &iov, &f.to_server.ah, as_cookie(0), 0x80));
    EXPECT(ARG(2), dat_ib_post_send_ud(f.client, -1, &iov, &f.to_server.ah, as_cookie(0), 0));
    EXPECT(ARG(3), dat_ib_post_send_ud(f.client, 1, NULL, &f.to_server.ah, as_cookie(0), 0));
    EXPECT(ERROR(DAT_LENGTH_ERROR, 0), send_ud(f.client, &b, 0, 4097, &f.to_server.ah));
    iov.lmr_context ^= 0x5555;
    EXPECT(ERROR(DAT_PRIVILEGES_VIOLATION, DAT_PRIVILEGES_READ),
           dat_ib_post_send_ud(f.client, 1, &iov, &f.to_server.ah, as_cookie(0), 0));
    EXPECT(STATE(DAT_INVALID_STATE_EP_UNCONNECTED), send_ud(connected, &b, 0, 8, &f.to_server.ah));
    EXPECT(STATE(DAT_INVALID_STATE_EP_UNCONNECTED), send_flagged(f.client, 8, DAT_COMPLETION_DEFAULT_FLAG));
    EXPECT(STATE(DAT_INVALID_STATE_EP_UNCONNECTED), dat_ep_disconnect(f.client, DAT_CLOSE_ABRUPT_FLAG));
    OK(dat_pz_create(b.ia, &pz));
    OK(dat_ep_create(b.ia, pz, b.recv, b.req, b.conn, &attr, &ep));
    iov = piece(&b, 0, 8);
    EXPECT(ERROR(DAT_PROTECTION_VIOLATION, DAT_PROTECTION_READ),
           dat_ib_post_send_ud(ep, 1, &iov, &f.to_server.ah, as_cookie(0), 0));
    EXPECT(ARG(4), dat_ib_post_send_ud(ep, 0, NULL, &f.to_server.ah, as_cookie(0), 0));
    attr.max_message_size = 1 << 20;
    EXPECT(ARG(6), dat_ep_create(b.ia, b.pz, b.recv, b.req, b.conn, &attr, &ep));
    attr = ud_attr();
    attr.service_type = (DAT_SERVICE_TYPE)2;
    EXPECT(ARG(6), dat_ep_create(b.ia, b.pz, b.recv, b.req, b.conn, &attr, &ep));
}

TEST(the_service_type_stays)
{
    DAT_EP_HANDLE ep = ud_ep(&a), other = plain_ep(&a);
    DAT_EP_PARAM param;

    OK(dat_ep_query(ep, DAT_EP_FIELD_ALL, &param));
    OK(dat_ep_modify(ep, DAT_EP_FIELD_EP_ATTR_SERVICE_TYPE, &param));
    EXPECT(ARG(3), dat_ep_modify(other, DAT_EP_FIELD_EP_ATTR_SERVICE_TYPE, &param));
    param.ep_attr.service_type = DAT_SERVICE_TYPE_RC;
    EXPECT(ARG(3), dat_ep_modify(ep, DAT_EP_FIELD_EP_ATTR_SERVICE_TYPE, &param));
    OK(dat_ep_modify(other, DAT_EP_FIELD_EP_ATTR_SERVICE_TYPE, &param));
}

/* A program may take many events before it looks at the private data of the first. */
TEST(private_data_stays_until_its_cm_handle_is_freed)
{
    enum { MANY = 8 };
    DAT_EP_HANDLE server = ud_ep(&a), client = ud_ep(&b);
    DAT_CONN_QUAL qual = next_qual();
    struct known known[MANY];
    DAT_PSP_HANDLE psp;
    DAT_EVENT event;
    DAT_CR_PARAM param;

    OK(dat_psp_create(a.ia, qual, a.cr, DAT_PSP_CONSUMER_FLAG, &psp));
    for (int i = 0; i < MANY; i++)
        OK(dat_ep_connect(client, a.attr.ia_address_ptr, qual, LONG_TIME, sizeof i, &i, DAT_QOS_BEST_EFFORT,
                          DAT_CONNECT_DEFAULT_FLAG));
    for (int i = 0; i < MANY; i++) {
        event = NEXT(a.cr, (DAT_EVENT_NUMBER)DAT_IB_UD_CONNECTION_REQUEST_EVENT);
        OK(dat_cr_query(event.event_data.cr_arrival_event_data.cr_handle, DAT_CR_FIELD_ALL, &param));
        OK(dat_cr_accept(event.event_data.cr_arrival_event_data.cr_handle, server, sizeof i, param.private_data));
    }
    for (int i = 0; i < MANY; i++)
        known[i] = established(&b, client, DAT_IB_UD_REMOTE_AH, &a);
    for (unsigned i = 0, seen = 0; i < MANY; i++) {
        unsigned who = *(const int *)known[i].data;

        CHECK(who < MANY && !(seen & 1U << who));
        seen |= 1U << who;
        OK(dat_ib_ud_cm_free(client, known[i].cm));
        OK(dat_ib_ud_ah_free(client, &known[i].ah));
    }
    OK(dat_psp_free(psp));
}

int main(int argc, char **argv)
{
    return run_tests(argc, argv);
}
