/* What the programs for DAT 1.2 share. Compiled with -I.../include -ldat only. */
#ifndef CHECK12_H
#define CHECK12_H

#include <dat/udat.h>

#define VA_TYPE
#include "../c/common.h"

/* All other objects are freed already. */
static void side_close(struct side *s)
{
    OK(dat_lmr_free(s->lmr));
    free(s->memory);
    OK(dat_evd_free(s->cr));
    OK(dat_evd_free(s->conn));
    OK(dat_evd_free(s->recv));
    OK(dat_evd_free(s->req));
    OK(dat_pz_free(s->pz));
    OK(dat_ia_close(s->ia, DAT_CLOSE_GRACEFUL_FLAG));
}

static DAT_EP_ATTR ep_attr(void)
{
    DAT_EP_ATTR attr;

    memset(&attr, 0, sizeof attr);
    attr.service_type = DAT_SERVICE_TYPE_RC;
    attr.max_message_size = attr.max_rdma_size = MEMORY;
    attr.max_recv_dtos = attr.max_request_dtos = 8;
    attr.max_recv_iov = attr.max_request_iov = 2;
    attr.max_rdma_read_in = attr.max_rdma_read_out = 1;
    attr.max_rdma_read_iov = attr.max_rdma_write_iov = 1;
    attr.srq_soft_hw = DAT_HW_DEFAULT;
    return attr;
}

#endif
