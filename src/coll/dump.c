/* SPDX-License-Identifier: Apache-2.0 */
/* dump.c - an agent's groups, as JSON (weft_debug_dump). */
#include "base/text/json_writer.h"
#include "coll/group.h"

static void put_operation(wfi_json *j, const wfi_operation *operation)
{
    wfi_json_open(j, NULL, '{');
    wfi_json_put_text(j, "kind", wfi_operation_names[operation->collective.kind]);
    wfi_json_put_number(j, "number", operation->number);
    wfi_json_put_bool(j, "begun", operation->begun);
    wfi_json_put_number(j, "steps_left", operation->left);
    wfi_json_open(j, "waits_for_ranks", '[');
    for (size_t i = 0; operation->begun && i < operation->schedule.step_count; i++) {
        const wfi_step *step = &operation->schedule.steps[i];
        if (step->kind == WFI_STEP_RECV && step->begun && !step->done)
            wfi_json_put_number(j, NULL, (uint64_t)operation->group->members[step->peer].rank);
    }
    for (size_t i = 0; i < operation->group->size; i++)
        if (wfi_share_waits(operation, i))
            wfi_json_put_number(j, NULL, (uint64_t)operation->group->members[i].rank);
    wfi_json_close(j, ']');
    wfi_json_close(j, '}');
}

static void put_group(wfi_json *j, const weft_group *group)
{
    wfi_json_open(j, NULL, '{');
    wfi_json_put_text(j, "name", group->name);
    wfi_json_put_number(j, "size", group->size);
    wfi_json_put_number(j, "index", (uint64_t)group->index);
    if (group->over)
        wfi_json_put_text(j, "over", weft_error_message(group->over));
    wfi_json_open(j, "operations", '[');
    WFI_FOR_LIST (const wfi_operation, operation, &group->operations, link)
        put_operation(j, operation);
    wfi_json_close(j, ']');
    wfi_json_close(j, '}');
}

void wfi_groups_dump(weft_agent *agent, wfi_json *j)
{
    wfi_json_open(j, "groups", '[');
    WFI_FOR_LIST (const weft_group, group, &wfi_groups_of(agent)->all, link)
        put_group(j, group);
    wfi_json_close(j, ']');
}
