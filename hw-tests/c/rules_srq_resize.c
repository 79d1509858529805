/* SRQs through libdat2: resizing and the low watermark (sections H and I). */
#include "rig.h"

/* Posted buffers stay posted, and as many buffers fit as the new depth says, and no more (R44,
 * R105). */
TEST(r94_srq_resize_grow)
{
    DAT_SRQ_HANDLE srq = srq_of(&a, 4);
    struct pair pair = pair_on(srq);
    int iov = look(srq).max_recv_iov, depth;

    fill(srq, 0, 4);
    OK(dat_srq_resize(srq, 20));
    depth = look(srq).max_recv_dtos;
    CHECK(depth >= 20 && depth <= 100 && look(srq).max_recv_iov == iov);
    COUNTS(srq, 4, 4);
    fill(srq, 4, depth - 4);
    EXPECT(FULL_SRQ, post(srq, 0, 8));
    for (int i = 0; i < depth; i++) {
        SEND(pair, 30 + i);
        TAKEN(a.recv, pair.server, 30 + i);
    }
    COUNTS(srq, 0, 0);
}

/* The new depth is between the one that was asked for and the old one (R96). */
TEST(r95_srq_resize_shrink)
{
    DAT_SRQ_HANDLE srq = srq_of(&a, 20);
    int before = look(srq).max_recv_dtos, now;

    fill(srq, 0, 4);
    OK(dat_srq_resize(srq, 8));
    now = look(srq).max_recv_dtos;
    CHECK(now >= 8 && now <= before);
    COUNTS(srq, 4, 4);
    fill(srq, 4, now - 4);
    EXPECT(FULL_SRQ, post(srq, 0, 8));
}

/* Posted buffers and completions that were not reaped count alike (R98, R99). */
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

/* A depth below the low watermark, armed or fired, is refused, a depth equal to it is not (R101). */
TEST(r100_srq_resize_below_low_watermark)
{
    DAT_SRQ_HANDLE srq = srq_of(&a, 10);

    fill(srq, 0, 6);
    OK(dat_srq_set_lw(srq, 8));
    LOW(srq);
    CHECK(DAT_GET_TYPE(dat_srq_resize(srq, 7)) == DAT_INVALID_STATE);
    OK(dat_srq_set_lw(srq, 6));
    OK(dat_srq_resize(srq, 6));
    CHECK(DAT_GET_TYPE(dat_srq_resize(srq, 5)) == DAT_INVALID_STATE);
    CHECK(look(srq).low_watermark == 6);
}

/* Whatever else forbids the depth. */
TEST(r102_srq_resize_bad_value)
{
    DAT_SRQ_HANDLE srq = srq_of(&a, 10);

    fill(srq, 0, 10);
    OK(dat_srq_set_lw(srq, 10));
    EXPECT(ARG(2), dat_srq_resize(srq, 0));
    EXPECT(ARG(2), dat_srq_resize(srq, -1));
    EXPECT(ARG(2), dat_srq_resize(srq, INT32_MIN));
    EXPECT(ARG(2), dat_srq_resize(srq, a.attr.max_recv_per_srq + 1));
    EXPECT(ARG(2), dat_srq_resize(srq, INT32_MAX));
    CHECK(look(srq).max_recv_dtos >= 10);
}

/* A resize does not arm, disarm or fire the low watermark (R107 to R109, R111, R120, R121). */
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
    /* The same value, set again, fires again. */
    fill(srq, 5, 2);
    OK(dat_srq_set_lw(srq, 4));
    SEND(pair, 8);
    TAKEN(a.recv, pair.server, 8);
    SILENT(a.async);
    SEND(pair, 8);
    LOW(srq);
}

/* One event comes when fewer buffers than the watermark are left, and no second one (R107, R108,
 * R112, R123). */
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

/* With too few buffers available already, each call causes an event (R113). */
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

/* The replaced value never fires; the new value does. */
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

/* 0 switches the watermark off, and the depth is a legal value (R116). */
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

/* A refused call changes neither the value nor what is armed (R118, R119). */
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
    OK(dat_srq_resize(srq, depth + 4));
    OK(dat_srq_set_lw(srq, depth + 1));
    LOW(srq);
}

/* Neither a post nor a reap fires the watermark (R124). */
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

/* The provider advertises all three kinds of watermark (R125, R227, R260). */
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
