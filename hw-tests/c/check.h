/* What the programs for DAT 2.0 share. */
#ifndef CHECK_H
#define CHECK_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include <netinet/in.h>

#define DAT_EXTENSIONS 1
#include <dat2/udat.h>
#include <dat2/dat_ib_extensions.h>
#include <dat2/dat_registry.h>

#define VA_TYPE DAT_VA_TYPE_VA,
#include "common.h"

/* The table of the provider, for entries that libdat2 has no function for. */
#define TABLE(handle) (*(const DAT_PROVIDER **)(handle))

static DAT_EP_ATTR ep_attr(void)
{
    DAT_EP_ATTR attr;

    memset(&attr, 0, sizeof attr);
    attr.max_recv_dtos = attr.max_request_dtos = 8;
    attr.max_recv_iov = attr.max_request_iov = 2;
    attr.srq_soft_hw = DAT_HW_DEFAULT;
    return attr;
}

#endif
