/* SPDX-License-Identifier: Apache-2.0 */
/* future.c - functions of weft/future.h that need agents or values, which src/future does not know. */
#include "rpc/agent/agent.h"
#include "value/value.h"

weft_future *wfi_agent_future(weft_agent *agent)
{
    weft_future *future = weft_future_create(agent);
    if (future)
        wfi_future_own(future);
    return future;
}

weft_future *wfi_failed_future(weft_agent *agent, const weft_error *error)
{
    weft_future *future = wfi_agent_future(agent);
    if (future)
        wfi_complete_future(future, NULL, error);
    return future;
}

void wfi_complete_future(weft_future *future, const weft_values *values, const weft_error *error)
{
    if (error)
        (void)!wfi_future_fail(future, error);
    else
        (void)!wfi_future_complete(future, weft_values_ref((weft_values *)values), wfi_values_drop);
}

weft_future *weft_future_create(weft_agent *agent)
{
    WFI_CHECK_HANDLE(agent);
    return agent ? wfi_future_create(agent->executor, wfi_net_driver(agent->net)) : wfi_future_create(NULL, NULL);
}

const weft_values *weft_future_values(const weft_future *future)
{
    WFI_CHECK_HANDLE(future);
    if (wfi_future_payload_kind(future) != wfi_values_drop)
        return NULL;
    return weft_future_payload(future);
}

weft_tensor *weft_future_tensor(const weft_future *future, size_t index)
{
    WFI_CHECK_HANDLE(future);
    weft_tensor *tensor = NULL;
    weft_status status = wfi_values_get(weft_future_values(future), index, WEFT_TYPE_TENSOR, &tensor, sizeof(tensor));
    return status ? NULL : tensor;
}
