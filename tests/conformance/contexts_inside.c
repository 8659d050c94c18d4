/* SPDX-License-Identifier: Apache-2.0 */
/* contexts_inside.c - the graph of a context as text: the public interface shows none. */
#include "conformance/contexts.h"
#include "dist/context.h"

static void add(char *out, size_t room, const char *text)
{
    size_t used = strlen(out);
    snprintf(out + used, room - used, "%s", text);
}

static void add_record(const weft_context *context, const wfi_node *node, char *out, size_t room)
{
    char text[64];
    if (!node) {
        add(out, room, "constant");
        return;
    }
    if (node->leaf) {
        add(out, room, "leaf");
        return;
    }
    for (size_t i = 0; i < context->recv_count; i++) {
        if (context->recvs[i].node != node)
            continue;
        snprintf(text, sizeof(text), "%d/%d", context->recvs[i].from, (int)context->recvs[i].number);
        add(out, room, text);
        return;
    }
    add(out, room, node->type->name);
    for (uint32_t i = 0; i < node->input_count; i++) {
        add(out, room, i ? ", " : "(");
        add_record(context, node->inputs[i].node, out, room);
    }
    add(out, room, ")");
}

void graph_text(weft_context *context, char *out, size_t room)
{
    char text[64];
    out[0] = 0;
    wfi_mutex_lock(&context->lock);
    for (size_t i = 0; i < context->send_count; i++) {
        snprintf(text, sizeof(text), "%s-> %d: ", i ? "; " : "", context->sends[i].to);
        add(out, room, text);
        add_record(context, context->sends[i].node->inputs[0].node, out, room);
    }
    wfi_mutex_unlock(&context->lock);
}

void record_text(weft_context *context, const weft_tensor *made, char *out, size_t room)
{
    out[0] = 0;
    wfi_mutex_lock(&context->lock);
    add_record(context, wfi_graph_made(context->graph, made) ? made->grad_node : NULL, out, room);
    wfi_mutex_unlock(&context->lock);
}
