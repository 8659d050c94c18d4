/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nested.c - the children of a served call: calls that were started with the option `parent`.
 *
 * They end by the deadline of the served call, and are cancelled with it. Their errors are passed on with the chain of
 * workers (weft_error_hop). All [agent lock].
 */
#include "rpc/server/server.h"

void wfi_child_join(wfi_child *child, weft_call *parent)
{
    child->parent = parent;
    if (!parent)
        return;
    wfi_assert_held(wfi_net_mutex(parent->agent->net));
    wfi_list_push_back(&parent->children, &child->link);
}

void wfi_child_leave(wfi_child *child)
{
    if (child->parent)
        wfi_list_remove(&child->link);
    child->parent = NULL;
}

void wfi_parent_note(weft_call *parent, const weft_error *error)
{
    weft_error_unref(parent->inner);
    parent->inner = weft_error_ref(error);
}

void wfi_child_end(wfi_child *child, const weft_error *error)
{
    if (child->parent && error)
        wfi_parent_note(child->parent, error);
    wfi_child_leave(child);
}

/* Children get the timeout of their parent; any other reason becomes WEFT_ERR_CANCELLED. */
static weft_status reason_for_children(weft_status why)
{
    return why == WEFT_ERR_TIMEOUT ? WEFT_ERR_TIMEOUT : WEFT_ERR_CANCELLED;
}

weft_status wfi_parent_status(const weft_call *parent)
{
    bool ended = parent->cancel_reason || parent->cancelled;
    return ended ? reason_for_children(parent->cancel_reason) : WEFT_OK;
}

static void end_children(weft_call *call, weft_status why, const char *text)
{
    for (wfi_list *link; (link = wfi_list_pop_front(&call->children));) {
        wfi_child *child = wfi_container_of(link, wfi_child, link);
        child->parent = NULL;
        child->parent_ended(child, why, text);
    }
}

void wfi_children_forget(weft_call *call)
{
    end_children(call, WEFT_OK, NULL);
}

void wfi_children_cancel(weft_call *call, weft_status why, const char *text)
{
    end_children(call, reason_for_children(why), text);
}
