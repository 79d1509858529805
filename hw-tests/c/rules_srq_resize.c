/* SRQs through libdat2: resizing and the low watermark (sections H and I). */
#include "rig.h"

/* (R44, R105): buffers stay, and there is room for as many as asked. */
TEST(r94_srq_resize_grow)
{
    DAT_SRQ_HANDLE srq = srq_of(&a, 4);
    struct pair pair = pair_on(srq);
    int iov = look(srq).max_recv_iov;

    fill(srq, 0, 4);
    OK(dat_srq_resize(srq, 20));
    CHECK(look(srq).max_recv_dtos >= 20 && look(srq).max_recv_iov == iov);
    COUNTS(srq, 4, 4);
    fill(srq, 4, 16);
    for (int i = 0; i < 20; i++) {
        SEND(pair, 30 + i);
        TAKEN(a.recv, pair.server, 30 + i);
    }
    COUNTS(srq, 0, 0);
}

/* (R96): any depth from what was asked to what it was. */
TEST(r95_srq_resize_shrink)
{
    DAT_SRQ_HANDLE srq = srq_of(&a, 20);
    int before = look(srq).max_recv_dtos;

    OK(dat_srq_resize(srq, 8));
    CHECK(look(srq).max_recv_dtos >= 8 && look(srq).max_recv_dtos <= before);
    fill(srq, 0, 8);
    COUNTS(srq, 8, 8);
}

/* Posted and completed, unreaped buffers alike (R98, R99). */
TEST(r97_srq_resize_below_outstanding)
{
    DAT_SRQ_HANDLE srq = srq_of(&a, 10);
    struct pair pair = pair_on(srq);
    DAT_SRQ_PARAM before;

    fill(srq, 0, 7);
    SEND(pair, 8);
    SEND(pair, 8);
    COUNTS(srq, 5, 7);
    before = look(srq);
    CHECK(DAT_GET_TYPE(dat_srq_resize(srq, 6)) == DAT_INVALID_STATE);
    CHECK(DAT_GET_TYPE(dat_srq_resize(srq, 1)) == DAT_INVALID_STATE);
    CHECK(look(srq).max_recv_dtos == before.max_recv_dtos);
    COUNTS(srq, 5, 7);
    OK(dat_srq_resize(srq, 7));
    TAKEN(a.recv, pair.server, 8);
    OK(dat_srq_resize(srq, 6));
    COUNTS(srq, 5, 6);
}

/* (R101): below it is refused, at it is not. */
TEST(r100_srq_resize_below_low_watermark)
{
    DAT_SRQ_HANDLE srq = srq_of(&a, 10);

    fill(srq, 0, 6);
    OK(dat_srq_set_lw(srq, 6));
    OK(dat_srq_resize(srq, 6));
    CHECK(DAT_GET_TYPE(dat_srq_resize(srq, 5)) == DAT_INVALID_STATE);
    CHECK(look(srq).low_watermark == 6);
}

TEST(r102_srq_resize_bad_value)
{
    DAT_SRQ_HANDLE srq = srq_of(&a, 10);

    EXPECT(ARG(2), dat_srq_resize(srq, 0));
    EXPECT(ARG(2), dat_srq_resize(srq, -1));
    EXPECT(ARG(2), dat_srq_resize(srq, INT32_MIN));
    EXPECT(ARG(2), dat_srq_resize(srq, a.attr.max_recv_per_srq + 1));
    EXPECT(ARG(2), dat_srq_resize(srq, INT32_MAX));
    CHECK(look(srq).max_recv_dtos >= 10);
}

/* Neither armed, disarmed nor fired (R107 to R109, R111, R120, R121). */
TEST(r105_srq_resize_leaves_watermark_armed)
{
    DAT_SRQ_HANDLE srq = srq_of(&a, 10);
    struct pair pair = pair_on(srq);

    fill(srq, 0, 5);
    OK(dat_srq_set_lw(srq, 4));
    OK(dat_srq_resize(srq, 16));
    CHECK(look(srq).low_watermark == 4);
    SEND(pair, 8);
    TAKEN(a.recv, pair.server, 8);
    SILENT(a.async);
    SEND(pair, 8);
    TAKEN(a.recv, pair.server, 8);
    LOW(srq);
    OK(dat_srq_resize(srq, 10));
    SILENT(a.async);
}

/* With fewer than the mark left one event, and no second (R107, R108, R112, R123). */
TEST(r108_srq_lw_fires_below)
{
    DAT_SRQ_HANDLE srq = srq_of(&a, 10);
    struct pair pair = pair_on(srq);

    fill(srq, 0, 4);
    OK(dat_srq_set_lw(srq, 3));
    CHECK(look(srq).low_watermark == 3);
    SEND(pair, 8);
    SILENT(a.async);
    SEND(pair, 8);
    LOW(srq);
    SEND(pair, 8);
    fill(srq, 4, 5);
    for (int i = 0; i < 5; i++)
        SEND(pair, 8);
    SILENT(a.async);
    CHECK(connected(pair.server) && look(srq).low_watermark == 3);
}

/* With too few already there; again at each call (R113). */
TEST(r110_srq_lw_fires_during_call)
{
    DAT_SRQ_HANDLE srq = srq_of(&a, 10);

    OK(dat_srq_set_lw(srq, 1));
    LOW(srq);
    OK(dat_srq_set_lw(srq, 1));
    LOW(srq);
    fill(srq, 0, 3);
    OK(dat_srq_set_lw(srq, 4));
    LOW(srq);
    OK(dat_srq_set_lw(srq, 3));
    SILENT(a.async);
}

/* The earlier value never fires, the new one does. */
TEST(r114_srq_lw_replace_before_fire)
{
    DAT_SRQ_HANDLE srq = srq_of(&a, 10);
    struct pair pair = pair_on(srq);

    fill(srq, 0, 6);
    OK(dat_srq_set_lw(srq, 5));
    OK(dat_srq_set_lw(srq, 3));
    CHECK(look(srq).low_watermark == 3);
    SEND(pair, 8);
    SEND(pair, 8);
    SILENT(a.async);
    SEND(pair, 8);
    SEND(pair, 8);
    LOW(srq);
    EMPTIED(a.async);
}

/* (R116): off, and at the depth. */
TEST(r115_srq_lw_zero_never_fires)
{
    DAT_SRQ_HANDLE srq = srq_of(&a, 2);
    struct pair pair = pair_on(srq);
    int depth = look(srq).max_recv_dtos;

    fill(srq, 0, 2);
    OK(dat_srq_set_lw(srq, 0));
    SEND(pair, 8);
    SEND(pair, 8);
    SILENT(a.async);
    OK(dat_srq_set_lw(srq, depth));
    LOW(srq);
}

/* A refused call leaves value and event as they were (R118, R119). */
TEST(r117_srq_lw_above_depth)
{
    DAT_SRQ_HANDLE srq = srq_of(&a, 4);
    struct pair pair = pair_on(srq);
    int depth = look(srq).max_recv_dtos;

    fill(srq, 0, 2);
    OK(dat_srq_set_lw(srq, 2));
    EXPECT(ARG(2), dat_srq_set_lw(srq, depth + 1));
    EXPECT(ARG(2), dat_srq_set_lw(srq, INT32_MAX));
    EXPECT(ARG(2), dat_srq_set_lw(srq, -1));
    EXPECT(ARG(2), dat_srq_set_lw(srq, INT32_MIN));
    CHECK(look(srq).low_watermark == 2);
    EMPTIED(a.async);
    SEND(pair, 8);
    LOW(srq);
}

/* (R124): neither posting nor reaping fires it. */
TEST(r122_srq_lw_post_does_not_fire)
{
    DAT_SRQ_HANDLE srq = srq_of(&a, 10);
    struct pair pair = pair_on(srq);

    fill(srq, 0, 5);
    SEND(pair, 8);
    SEND(pair, 8);
    OK(dat_srq_set_lw(srq, 3));
    fill(srq, 5, 1);
    TAKEN(a.recv, pair.server, 8);
    TAKEN(a.recv, pair.server, 8);
    fill(srq, 6, 2);
    SILENT(a.async);
}

/* (R125, R227, R260): all three kinds of watermark are said to be there. */
TEST(r125_srq_lw_model_not_supported_never)
{
    DAT_PROVIDER_ATTR attr;

    OK(dat_ia_query(a.ia, NULL, 0, NULL, DAT_PROVIDER_FIELD_ALL, &attr));
    CHECK(attr.srq_watermarks_supported == 0x111);
    OK(dat_srq_set_lw(srq_of(&a, 4), 0));
    OK(dat_ep_set_watermark(plain_ep(&a), 1, 1));
}

int main(int argc, char **argv)
{
    return run_tests(argc, argv);
}
