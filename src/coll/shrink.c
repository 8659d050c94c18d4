/* SPDX-License-Identifier: Apache-2.0 */
/*
 * shrink.c - a group of the living members: they open it together (opening.h), and the member with the lowest rank that
 * lives says who they are. The store decides which members live. If one of them dies meanwhile, all try again without
 * it.
 */
#include "coll/group.h"

#include "base/error.h"

static weft_status shrink_checked(weft_group *group, int64_t timeout_ms, weft_group **out, weft_error **error)
{
    weft_agent *agent = group->agent;
    weft_group *made;
    if (timeout_ms < WEFT_FOREVER) {
        static const char format[] = "weft_group_shrink (\"%s\"): timeout_ms is %lld: 0, more, or WEFT_FOREVER";
        if (error)
            return wfi_error_fail(error, WEFT_ERR_INVALID, format, group->name, (long long)timeout_ms);
        wfi_agent_log(agent, WEFT_LOG_WARN, 0, format, group->name, (long long)timeout_ms);
        return WEFT_ERR_INVALID;
    }
    weft_status status = wfi_group_of_living(group, timeout_ms, &made, error);
    if (status)
        return status;
    status = wfi_group_take_rules(made, group);
    if (status)
        weft_group_close(made);
    else
        *out = made;
    return status;
}

weft_status weft_group_shrink(weft_group *group, int64_t timeout_ms, weft_group **out, weft_error **error)
{
    WFI_CHECK_HANDLE(group);
    if (!group || !out)
        return wfi_refuse_null_to(error, "weft_group_shrink", group ? "out" : "group");
    weft_error *why = NULL;
    weft_status status = shrink_checked(group, timeout_ms, out, error ? &why : NULL);
    if (status && error)
        *error =
            why ? why
                : weft_error_create(status, "weft_group_shrink (\"%s\"): %s", group->name, weft_status_text(status));
    return status;
}
