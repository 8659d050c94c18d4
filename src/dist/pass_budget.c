/* SPDX-License-Identifier: Apache-2.0 */
/* pass_budget.c - the memory of a pass in the agent's budget: the gradients that it received, and its own lists. */
#include "dist/pass_impl.h"
#include "rpc/refs/refs.h"

void wfi_pass_charge_gradients(wfi_pass *pass, weft_call *call, weft_tensors gradients)
{
    size_t bytes = 0;
    for (size_t i = 0; i < gradients.count; i++)
        bytes += sizeof(*gradients.items[i]) + weft_tensor_nbytes(gradients.items[i]);
    wfi_net_lock(pass->agent->net);
    pass->gradient_bytes += wfi_budget_take_over(&call->charge, bytes);
    wfi_net_unlock(pass->agent->net);
}

void wfi_pass_release_gradients(wfi_pass *pass)
{
    if (!wfi_agent_enter_locked(pass->agent))
        return;
    wfi_budget_release_reserved(pass->agent, pass->gradient_bytes);
    pass->gradient_bytes = 0;
    wfi_agent_leave_locked(pass->agent);
}

/* The snapshot of `sends` and `recvs` tensors. */
static size_t bytes_of_snapshot(size_t sends, size_t recvs)
{
    return (sends + 1) * sizeof(wfi_pass_send) + (recvs + 1) * sizeof(wfi_pass_recv) + wfi_map_most_bytes(recvs);
}

/* The most memory that a pass over the context allocates for itself. With the context's lock. */
static size_t bytes_of_work(const weft_context *context)
{
    return bytes_of_snapshot(context->send_count, context->recv_count) +
           wfi_engine_most_bytes(wfi_graph_slots(context->graph));
}

weft_status wfi_pass_check_budget(const weft_context *context, char *problem, size_t room)
{
    size_t bytes = bytes_of_work(context);
    weft_status status = wfi_budget_admit_work(context->agent, bytes, !context->working_passes, problem, room);
    if (!status)
        wfi_budget_release_work(context->agent, bytes);
    return status;
}

weft_status wfi_pass_charge_work(wfi_pass *pass, char *problem, size_t room)
{
    weft_context *context = pass->context;
    weft_status status = WEFT_OK;
    wfi_net_lock(pass->agent->net);
    wfi_mutex_lock(&context->lock);
    size_t bytes = bytes_of_work(context), before = pass->work_bytes;
    bool alone = context->working_passes == (before ? 1 : 0);
    if (bytes > before)
        status = wfi_budget_admit_work(pass->agent, bytes - before, alone, problem, room);
    if (!status && bytes > before) {
        context->working_passes += !before;
        pass->work_bytes = bytes;
    }
    wfi_mutex_unlock(&context->lock);
    wfi_net_unlock(pass->agent->net);
    return status;
}

bool wfi_pass_work_grew(const wfi_pass *pass)
{
    return bytes_of_work(pass->context) > pass->work_bytes;
}

void wfi_pass_trim_work(wfi_pass *pass)
{
    size_t bytes = bytes_of_snapshot(pass->send_count, pass->recv_count) + wfi_engine_bytes(&pass->engine);
    if (bytes >= pass->work_bytes)
        return;
    wfi_net_lock(pass->agent->net);
    wfi_budget_release_work(pass->agent, pass->work_bytes - bytes);
    pass->work_bytes = bytes;
    wfi_net_unlock(pass->agent->net);
}

void wfi_pass_release_work(wfi_pass *pass)
{
    if (!pass->work_bytes || !wfi_agent_enter_locked(pass->agent)) /* only the thread that runs the pass changes it */
        return;
    wfi_budget_release_work(pass->agent, pass->work_bytes);
    pass->context->working_passes--;
    pass->work_bytes = 0;
    wfi_agent_leave_locked(pass->agent);
}
