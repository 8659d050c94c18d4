/* SPDX-License-Identifier: Apache-2.0 */
/* carrier.c - operations that functions of the program run: their queue, and the call of each. */
#include "coll/carrier.h"

#include "base/alloc.h"
#include "base/simulation.h"
#include "base/text/sized.h"

#include <pthread.h>
#include <stdlib.h>

struct wfi_carrier {
    weft_group_carrier table;
    void *arg;
    weft_drop_fn drop;
    wfi_list queue;    /* wfi_task.link */
    wfi_task *current; /* the task that the executor has; NULL: none */
    bool entered;      /* a function runs, on `thread` and `fiber` */
    pthread_t thread;
    const wfi_fiber *fiber; /* NULL: a plain thread */
};

void wfi_carrier_free(wfi_carrier *carrier)
{
    if (carrier && carrier->drop)
        carrier->drop(carrier->arg);
    free(carrier);
}

/* Takes over the carrier, even on failure. */
static weft_status exchange(weft_group *group, wfi_carrier *carrier)
{
    weft_status status = WEFT_OK;
    if (!wfi_agent_enter_locked(group->agent)) {
        wfi_carrier_free(carrier);
        return WEFT_ERR_CLOSED;
    }
    wfi_carrier *unused = carrier;
    if (group->used) {
        status = WEFT_ERR_STATE;
        wfi_agent_log(group->agent, WEFT_LOG_WARN, 0, "weft_group_set_carrier: group \"%s\" has had operations already",
                      group->name);
    } else {
        unused = group->carrier;
        group->carrier = carrier;
    }
    wfi_agent_leave_locked(group->agent);
    wfi_carrier_free(unused);
    return status;
}

weft_status weft_group_set_carrier_sized(weft_group *group, const weft_group_carrier *given, size_t size, void *arg,
                                         weft_drop_fn drop)
{
    WFI_CHECK_HANDLE(group);
    weft_group_carrier own;
    const weft_group_carrier *table = given ? WFI_SIZED(given, size, &own) : NULL;
    wfi_carrier *carrier = group && table ? wfi_calloc(1, sizeof(*carrier)) : NULL;
    if (!carrier) {
        if (drop)
            drop(arg);
        if (given && !table)
            return wfi_refuse_newer(NULL, "weft_group_set_carrier", "weft_group_carrier");
        return group && table ? WEFT_ERR_MEMORY
                              : wfi_refuse_null("weft_group_set_carrier", group ? "carrier" : "group");
    }
    *carrier = (wfi_carrier){.table = *table, .arg = arg, .drop = drop};
    wfi_list_init(&carrier->queue);
    return exchange(group, carrier);
}

bool wfi_carrier_has(const wfi_carrier *carrier, wfi_operation_kind kind, bool sends)
{
    if (!carrier)
        return false;
    const weft_group_carrier *t = &carrier->table;
    const bool has[WFI_OPERATION_KINDS] = {
        [WFI_BARRIER] = t->barrier != NULL,       [WFI_ALLREDUCE] = t->allreduce != NULL,
        [WFI_REDUCE] = t->reduce != NULL,         [WFI_BROADCAST] = t->broadcast != NULL,
        [WFI_ALLGATHER] = t->allgather != NULL,   [WFI_REDUCE_SCATTER] = t->reduce_scatter != NULL,
        [WFI_GATHER] = t->gather != NULL,         [WFI_SCATTER] = t->scatter != NULL,
        [WFI_ALL_TO_ALL] = t->all_to_all != NULL, [WFI_SENDRECV] = sends ? t->send != NULL : t->recv != NULL};
    return has[kind];
}

static void submit(weft_agent *agent, wfi_task *task)
{
    wfi_net_defer(agent->net, task, WFI_DEFER_WORKER);
}

void wfi_carrier_queue(wfi_carrier *carrier, weft_agent *agent, wfi_task *task)
{
    if (carrier->current) {
        wfi_list_push_back(&carrier->queue, &task->link);
        return;
    }
    carrier->current = task;
    submit(agent, task);
}

bool wfi_carrier_withdraw(wfi_carrier *carrier, wfi_task *task)
{
    if (task == carrier->current)
        return false;
    wfi_list_remove(&task->link);
    return true;
}

void wfi_carrier_enter(wfi_carrier *carrier)
{
    carrier->entered = true;
    carrier->thread = pthread_self();
    carrier->fiber = wfi_fiber_current();
}

bool wfi_carrier_is_caller(const wfi_carrier *carrier)
{
    return carrier && carrier->entered && pthread_equal(carrier->thread, pthread_self()) &&
           carrier->fiber == wfi_fiber_current();
}

void wfi_carrier_next(wfi_carrier *carrier, weft_agent *agent)
{
    wfi_list *next = wfi_list_pop_front(&carrier->queue);
    carrier->entered = false;
    carrier->current = next ? wfi_container_of(next, wfi_task, link) : NULL;
    if (next)
        submit(agent, carrier->current);
}

weft_status wfi_carrier_run(wfi_carrier *carrier, const wfi_operation *operation)
{
    const weft_group_carrier *t = &carrier->table;
    const wfi_collective *collective = &operation->collective;
    const void *in = operation->memory[WFI_INPUT].data;
    void *arg = carrier->arg, *out = operation->memory[WFI_OUTPUT].data;
    size_t count = collective->count, root = collective->root;
    weft_dtype dtype = operation->dtype;
    switch (collective->kind) {
    case WFI_BARRIER:
        return t->barrier(arg);
    case WFI_ALLREDUCE:
        return t->allreduce(arg, out, count, dtype, operation->how);
    case WFI_REDUCE:
        return t->reduce(arg, operation->memory[WFI_INPUT].data, count, dtype, operation->how, root);
    case WFI_BROADCAST:
        return t->broadcast(arg, out, count, dtype, root);
    case WFI_ALLGATHER:
        return t->allgather(arg, in, out, count, dtype);
    case WFI_REDUCE_SCATTER:
        return t->reduce_scatter(arg, in, out, count, dtype, operation->how);
    case WFI_GATHER:
        return t->gather(arg, in, out, count, dtype, root);
    case WFI_SCATTER:
        return t->scatter(arg, in, out, count, dtype, root);
    case WFI_ALL_TO_ALL:
        return t->all_to_all(arg, in, out, count, dtype);
    default:
        return operation->sends ? t->send(arg, in, count, dtype, operation->peer)
                                : t->recv(arg, out, count, dtype, operation->peer);
    }
}
