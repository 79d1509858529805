/* EVDs, their events, and CNOs. */
#include <string.h>

#include "shim.h"

/* The status for all values that 1.2 does not have. */
static DAT_DTO_COMPLETION_STATUS status_to_v1(DAT_UINT32 status)
{
    if (status <= DAT_RMR_OPERATION_FAILED)
        return (DAT_DTO_COMPLETION_STATUS)status;
    return status == V2_DTO_ERR_LOCAL_MM_ERROR ? DAT_DTO_ERR_LOCAL_PROTECTION : DAT_DTO_ERR_TRANSPORT;
}

static void dto_to_v1(const struct v2_event *from, DAT_DTO_COMPLETION_EVENT_DATA *to)
{
    to->ep_handle = from->data.dto.ep_handle;
    to->user_cookie = from->data.dto.user_cookie;
    to->status = status_to_v1(from->data.dto.status);
    to->transfered_length = from->data.dto.transfered_length;
}

/* An event that 1.2 does not define keeps its number and has no data; programs ignore events that
 * they do not know. */
static void event_to_v1(const struct v2_event *from, DAT_EVENT *to)
{
    memset(to, 0, sizeof *to);
    to->event_number = (DAT_EVENT_NUMBER)from->event_number;
    to->evd_handle = from->evd_handle;
    switch (from->event_number) {
    case DAT_DTO_COMPLETION_EVENT:
        dto_to_v1(from, &to->event_data.dto_completion_event_data);
        break;
    case V2_IB_DTO_EVENT:
        /* A write with immediate data has taken a buffer. The program gets the buffer back; no data
         * is in it. */
        to->event_number = DAT_DTO_COMPLETION_EVENT;
        dto_to_v1(from, &to->event_data.dto_completion_event_data);
        if (from->extension.type == V2_IB_WRITE_IMMED_DATA)
            to->event_data.dto_completion_event_data.transfered_length = 0;
        break;
    case DAT_RMR_BIND_COMPLETION_EVENT:
        to->event_data.rmr_completion_event_data.rmr_handle = from->data.rmr_bind.rmr_handle;
        to->event_data.rmr_completion_event_data.user_cookie = from->data.rmr_bind.user_cookie;
        to->event_data.rmr_completion_event_data.status = status_to_v1(from->data.rmr_bind.status);
        break;
    case DAT_CONNECTION_REQUEST_EVENT:
        to->event_data.cr_arrival_event_data.sp_handle = from->data.cr_arrival.sp_handle;
        to->event_data.cr_arrival_event_data.local_ia_address_ptr = from->data.cr_arrival.local_ia_address_ptr;
        to->event_data.cr_arrival_event_data.conn_qual = from->data.cr_arrival.conn_qual;
        to->event_data.cr_arrival_event_data.cr_handle = from->data.cr_arrival.cr_handle;
        break;
    case DAT_CONNECTION_EVENT_ESTABLISHED:
    case DAT_CONNECTION_EVENT_PEER_REJECTED:
    case DAT_CONNECTION_EVENT_NON_PEER_REJECTED:
    case DAT_CONNECTION_EVENT_ACCEPT_COMPLETION_ERROR:
    case DAT_CONNECTION_EVENT_DISCONNECTED:
    case DAT_CONNECTION_EVENT_BROKEN:
    case DAT_CONNECTION_EVENT_TIMED_OUT:
    case DAT_CONNECTION_EVENT_UNREACHABLE:
        to->event_data.connect_event_data = from->data.connect;
        break;
    case DAT_ASYNC_ERROR_EVD_OVERFLOW:
    case DAT_ASYNC_ERROR_IA_CATASTROPHIC:
    case DAT_ASYNC_ERROR_EP_BROKEN:
    case DAT_ASYNC_ERROR_TIMED_OUT:
    case DAT_ASYNC_ERROR_PROVIDER_INTERNAL_ERROR:
    case V2_HA_DOWN_TO_1:
    case V2_HA_UP_TO_MULTI_PATH:
        to->event_data.asynch_error_event_data = from->data.asynch_error;
        break;
    case DAT_SOFTWARE_EVENT:
        to->event_data.software_event_data = from->data.software;
        break;
    default:
        break;
    }
}

DAT_RETURN dat_evd_wait(DAT_EVD_HANDLE evd_handle, DAT_TIMEOUT timeout, DAT_COUNT threshold, DAT_EVENT *event,
                        DAT_COUNT *nmore)
{
    struct v2_event got;
    DAT_RETURN ret = CALL(dat_evd_wait, evd_handle, timeout, threshold, event == NULL ? NULL : &got, nmore);

    if (ret == DAT_SUCCESS && event != NULL)
        event_to_v1(&got, event);
    return ret;
}

DAT_RETURN dat_evd_dequeue(DAT_EVD_HANDLE evd_handle, DAT_EVENT *event)
{
    struct v2_event got;
    DAT_RETURN ret = CALL(dat_evd_dequeue, evd_handle, event == NULL ? NULL : &got);

    if (ret == DAT_SUCCESS && event != NULL)
        event_to_v1(&got, event);
    return ret;
}

/* Programs can post software events only. */
DAT_RETURN dat_evd_post_se(DAT_EVD_HANDLE evd_handle, const DAT_EVENT *event)
{
    struct v2_event posted = {0};

    if (event == NULL)
        return CALL(dat_evd_post_se, evd_handle, NULL);
    if (event->event_number != DAT_SOFTWARE_EVENT)
        return INVALID_ARG(2);
    posted.event_number = DAT_SOFTWARE_EVENT;
    posted.evd_handle = event->evd_handle;
    posted.data.software = event->event_data.software_event_data;
    return CALL(dat_evd_post_se, evd_handle, &posted);
}

DAT_RETURN dat_evd_create(DAT_IA_HANDLE ia_handle, DAT_COUNT evd_min_qlen, DAT_CNO_HANDLE cno_handle,
                          DAT_EVD_FLAGS evd_flags, DAT_EVD_HANDLE *evd_handle)
{
    if (OUTSIDE(evd_flags, DAT_EVD_SOFTWARE_FLAG | DAT_EVD_DEFAULT_FLAG))
        return INVALID_ARG(4);
    return CALL(dat_evd_create, ia_handle, evd_min_qlen, cno_handle, evd_flags, evd_handle);
}

DAT_RETURN dat_evd_query(DAT_EVD_HANDLE evd_handle, DAT_EVD_PARAM_MASK evd_param_mask, DAT_EVD_PARAM *evd_param)
{
    if (OUTSIDE(evd_param_mask, DAT_EVD_FIELD_ALL))
        return INVALID_ARG(2);
    return CALL(dat_evd_query, evd_handle, evd_param_mask, evd_param);
}

DAT_RETURN dat_evd_resize(DAT_EVD_HANDLE evd_handle, DAT_COUNT evd_min_qlen)
{
    return CALL(dat_evd_resize, evd_handle, evd_min_qlen);
}

DAT_RETURN dat_evd_modify_cno(DAT_EVD_HANDLE evd_handle, DAT_CNO_HANDLE cno_handle)
{
    return CALL(dat_evd_modify_cno, evd_handle, cno_handle);
}

DAT_RETURN dat_evd_enable(DAT_EVD_HANDLE evd_handle)
{
    return CALL(dat_evd_enable, evd_handle);
}

DAT_RETURN dat_evd_disable(DAT_EVD_HANDLE evd_handle)
{
    return CALL(dat_evd_disable, evd_handle);
}

DAT_RETURN dat_evd_set_unwaitable(DAT_EVD_HANDLE evd_handle)
{
    return CALL(dat_evd_set_unwaitable, evd_handle);
}

DAT_RETURN dat_evd_clear_unwaitable(DAT_EVD_HANDLE evd_handle)
{
    return CALL(dat_evd_clear_unwaitable, evd_handle);
}

DAT_RETURN dat_evd_free(DAT_EVD_HANDLE evd_handle)
{
    return CALL(dat_evd_free, evd_handle);
}

DAT_RETURN dat_cno_create(DAT_IA_HANDLE ia_handle, DAT_OS_WAIT_PROXY_AGENT agent, DAT_CNO_HANDLE *cno_handle)
{
    return CALL(dat_cno_create, ia_handle, agent, cno_handle);
}

DAT_RETURN dat_cno_modify_agent(DAT_CNO_HANDLE cno_handle, DAT_OS_WAIT_PROXY_AGENT agent)
{
    return CALL(dat_cno_modify_agent, cno_handle, agent);
}

/* The mask of 2.0 has consecutive numbers in place of bits, so the call asks for all fields. */
DAT_RETURN dat_cno_query(DAT_CNO_HANDLE cno_handle, DAT_CNO_PARAM_MASK cno_param_mask, DAT_CNO_PARAM *cno_param)
{
    struct v2_cno_param param = {0};
    DAT_RETURN ret;

    if (OUTSIDE(cno_param_mask, DAT_CNO_FIELD_ALL))
        return INVALID_ARG(2);
    ret = CALL(dat_cno_query, cno_handle, V2_CNO_FIELD_ALL, cno_param == NULL ? NULL : &param);
    if (ret != DAT_SUCCESS || cno_param == NULL)
        return ret;
    if ((cno_param_mask & DAT_CNO_FIELD_IA_HANDLE) != 0)
        cno_param->ia_handle = param.ia_handle;
    if ((cno_param_mask & DAT_CNO_FIELD_AGENT) != 0)
        cno_param->agent = param.proxy_type == V2_PROXY_AGENT ? param.proxy.agent : DAT_OS_WAIT_PROXY_AGENT_NULL;
    return DAT_SUCCESS;
}

DAT_RETURN dat_cno_free(DAT_CNO_HANDLE cno_handle)
{
    return CALL(dat_cno_free, cno_handle);
}

DAT_RETURN dat_cno_wait(DAT_CNO_HANDLE cno_handle, DAT_TIMEOUT timeout, DAT_EVD_HANDLE *evd_handle)
{
    return CALL(dat_cno_wait, cno_handle, timeout, evd_handle);
}
