/* SPDX-License-Identifier: Apache-2.0 */
/* over.c - a group is over: the members hear of it, and what is under way fails. */
#include "coll/group.h"

static void let_go(wfi_task *task)
{
    wfi_group_unref(wfi_container_of(task, weft_group, let_go));
}

void wfi_group_ended(wfi_done *done)
{
    weft_group *group = wfi_container_of(done, weft_group, ended);
    wfi_log_agent(group->agent, WEFT_LOG_INFO, 0, "%s", weft_error_message(group->over));
    for (size_t i = 0; group->tells && i < group->size; i++)
        wfi_say_over(group, i);
    wfi_early_forget(group);
    WFI_FOR_LIST_TAKING (wfi_operation, operation, next, &group->operations, link)
        wfi_run_fail(operation); /* it leaves the list, now or later */
    group->let_go.run = let_go;
    wfi_net_defer(group->agent->net, &group->let_go, WFI_DEFER_RELEASE);
}
