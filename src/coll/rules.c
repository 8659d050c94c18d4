/* SPDX-License-Identifier: Apache-2.0 */
/* rules.c - a group's own rules for the choice of algorithms (algorithm/selection.c). */
#include "coll/group.h"

#include "base/env.h"
#include "base/error.h"
#include "base/nosignal.h"

/* The fault goes to *error, or to the log if `error` is NULL. */
static weft_status read_rules(const weft_agent *agent, const char *where, const char *text, wfi_rules *out,
                              weft_error **error)
{
    char problem[400] = "";
    weft_status status = wfi_rules_read(text, out, problem, sizeof(problem));
    if (status == WEFT_ERR_INVALID && error)
        return wfi_error_fail(error, status, "weft_group_open: %s: %s", where, problem);
    if (status == WEFT_ERR_INVALID)
        wfi_agent_log(agent, WEFT_LOG_ERROR, 0, "%s: %s", where, problem);
    if (status == WEFT_ERR_INVALID)
        wfi_status_logged(status);
    return status;
}

weft_status wfi_group_environment_rules(const weft_agent *agent, wfi_rules *out, weft_error **error)
{
    const char *text = wfi_env_string("WEFT_ALGORITHMS");
    return text ? read_rules(agent, "WEFT_ALGORITHMS", text, out, error) : WEFT_OK;
}

weft_status weft_group_set_algorithms(weft_group *group, const char *rules)
{
    WFI_CHECK_HANDLE(group);
    wfi_rules read = {0};
    if (!group || !rules)
        return wfi_refuse_null("weft_group_set_algorithms", group ? "rules" : "group");
    weft_status status = read_rules(group->agent, "weft_group_set_algorithms", rules, &read, NULL);
    if (status)
        return status;
    if (!wfi_agent_enter_locked(group->agent)) {
        wfi_rules_fini(&read);
        return WEFT_ERR_CLOSED;
    }
    wfi_rules former = group->rules;
    if (group->used) {
        former = read;
        status = WEFT_ERR_STATE;
        wfi_agent_log(group->agent, WEFT_LOG_WARN, 0,
                      "weft_group_set_algorithms: group \"%s\" has had operations already", group->name);
    } else {
        group->rules = read;
    }
    wfi_agent_leave_locked(group->agent);
    wfi_rules_fini(&former);
    return status;
}

/* Once the agent is closed the rules do not change, and its lock does not exist. */
static weft_status copy_rules(const weft_group *group, wfi_rules *out)
{
    bool is_open = wfi_agent_enter_locked(group->agent);
    weft_status status = wfi_rules_copy(&group->rules, out);
    if (is_open)
        wfi_agent_leave_locked(group->agent);
    return status;
}

weft_status wfi_group_take_rules(weft_group *group, const weft_group *from)
{
    wfi_rules rules;
    weft_status status = copy_rules(from, &rules);
    if (status)
        return status;
    wfi_net_lock(group->agent->net);
    wfi_rules former = group->rules;
    group->rules = rules;
    wfi_net_unlock(group->agent->net);
    wfi_rules_fini(&former);
    return WEFT_OK;
}

void weft_group_print_algorithms(const weft_group *group, FILE *to)
{
    WFI_CHECK_HANDLE(group);
    wfi_rules rules;
    wfi_nosignal saved;
    if (!group || !to || copy_rules(group, &rules))
        return;
    wfi_nosignal_begin(&saved);
    wfi_collective like = {
        .spans_hosts = group->spans_hosts, .has_levels = group->has_levels, .hosts_may_share = group->hosts_may_share};
    wfi_rules_print(&rules, &like, to);
    wfi_nosignal_end(&saved);
    wfi_rules_fini(&rules);
}
