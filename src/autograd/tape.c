/* SPDX-License-Identifier: Apache-2.0 */
/* tape.c - opens and closes tapes; their temporaries and gradients, and their first error. */
#include "autograd/tape.h"
#include "autograd/checks.h"

#include "base/alloc.h"
#include "base/error.h"
#include "base/text/sized.h"

#include <stdlib.h>

#define CHILD_STREAMS_SHIFT 32 /* random streams reserved for a tape, and for each of its children */

/* Counted at the root: no two descendants, at any depth, share a stream. */
static wfi_random child_random(weft_tape *parent)
{
    weft_tape *root = parent;
    while (root->parent)
        root = root->parent;
    return (wfi_random){root->random.seed, (atomic_fetch_add_explicit(&root->children, 1, memory_order_relaxed) + 1)
                                               << CHILD_STREAMS_SHIFT};
}

/* A missing device fails the tape, so that its first operator fails. */
static void check_device(weft_tape *tape)
{
    weft_error *error = NULL;
    weft_status status = weft_device_check(tape->device, &error);
    if (status != WEFT_OK)
        wfi_tape_fail(tape, status, NULL, "the tape's device: %s",
                      error ? weft_error_message(error) : weft_status_text(status));
    weft_error_unref(error);
}

static void set_stream(weft_tape *tape, const weft_tape_options *how)
{
    weft_stream *parents = tape->parent ? tape->parent->stream : NULL;
    bool takes_parents = !how->stream && parents && parents->device == tape->device.index;
    weft_stream *stream = takes_parents ? parents : how->stream;
    char text[WFI_DEVICE_TEXT];
    WFI_CHECK_HANDLE(stream);
    if (stream && (tape->device.kind != WEFT_DEVICE_CUDA || tape->device.index != stream->device))
        wfi_tape_fail(tape, WEFT_ERR_INVALID, NULL, "the tape's stream is on cuda:%d, and the tape computes on %s",
                      stream->device, wfi_device_text(tape->device, text));
    else
        tape->stream = weft_stream_ref(stream);
}

weft_tape *wfi_tape_newer(weft_tape *tape)
{
    wfi_tape_fail(tape, WEFT_ERR_INVALID, "tape", "tape: " WFI_NEWER, "weft_tape_options");
    return tape;
}

weft_tape *weft_tape_open_sized(const weft_tape_options *options, size_t size)
{
    weft_tape_options own;
    const weft_tape_options *how = WFI_SIZED(options, size, &own);
    if (!how)
        return wfi_tape_newer(weft_tape_open(NULL));
    wfi_graph *graph = how->parent ? wfi_graph_ref(how->parent->graph) : wfi_graph_create();
    weft_tape *tape = !graph ? NULL : wfi_tape_open_in(graph, how);
    wfi_graph_unref(graph);
    return tape;
}

static bool check_mode(weft_tape *tape, weft_mode mode)
{
    bool known = mode == WEFT_MODE_MODULE || mode == WEFT_MODE_TRAIN || mode == WEFT_MODE_EVAL;
    if (!known)
        wfi_tape_fail(tape, WEFT_ERR_INVALID, "tape", "the tape's mode is %d, which is none", (int)mode);
    return known;
}

weft_tape *wfi_tape_open_in(wfi_graph *graph, const weft_tape_options *how)
{
    weft_tape *tape = wfi_calloc(1, sizeof(*tape));
    if (!tape)
        return NULL;
    WFI_HANDLE_INIT(tape);
    tape->graph = wfi_graph_ref(graph);
    wfi_map_init(&tape->leaves);
    wfi_map_init(&tape->gradients);
    tape->record = how->record;
    tape->mode = how->mode == WEFT_MODE_MODULE && how->parent ? how->parent->mode : how->mode;
    tape->random.seed = how->seed;
    tape->parent = how->parent;
    if (tape->parent) {
        tape->random = child_random(tape->parent);
        if (tape->parent->path) {
            tape->path = wfi_tape_path_begin(tape->parent->path);
            if (!tape->path)
                wfi_tape_fail_memory(tape, "tape_open");
        }
    }
    tape->device = tape->parent && how->device.kind == WEFT_DEVICE_CPU ? tape->parent->device : how->device;
    check_device(tape);
    set_stream(tape, how);
    check_mode(tape, how->mode);
    return tape;
}

void *wfi_tape_owner(const weft_tape *tape)
{
    while (tape->parent) {
        tape = tape->parent;
        wfi_handle_check(tape, "the parent of a tape");
    }
    return tape->owner;
}

void weft_tape_set_seed(weft_tape *tape, uint64_t seed)
{
    WFI_CHECK_HANDLE(tape);
    if (tape)
        tape->random = (wfi_random){.seed = seed};
}

void weft_tape_set_mode(weft_tape *tape, weft_mode mode)
{
    WFI_CHECK_HANDLE(tape);
    if (tape && check_mode(tape, mode))
        tape->mode = mode;
}

static void drop_temporaries(weft_tape *tape)
{
    while (tape->values.count > 0)
        weft_values_unref(tape->values.items[--tape->values.count]);
    free(tape->values.items);
    while (tape->temporaries.count > 0)
        weft_tensor_unref(tape->temporaries.items[--tape->temporaries.count]);
    free(tape->temporaries.items);
}

static void drop_gradients(weft_tape *tape)
{
    size_t cursor = 0;
    weft_gradient *kept;
    while ((kept = wfi_map_next(&tape->gradients, &cursor, NULL))) {
        wfi_gradient_clear(kept);
        free(kept);
    }
    wfi_map_fini(&tape->gradients);
}

void wfi_tape_commit(weft_tape *tape)
{
    bool keep = !tape->error && (!tape->parent || !tape->parent->error);
    wfi_graph_commit(tape->graph, &tape->nodes, keep);
}

void weft_tape_close(weft_tape *tape)
{
    WFI_CHECK_HANDLE(tape);
    if (!tape)
        return;
    WFI_HANDLE_END(tape); /* of two threads that close it, one aborts */
    wfi_handle_check(tape->parent, "the parent of a tape");
    wfi_tape_collect_last_checks(tape);
    wfi_tape_commit(tape);
    wfi_graph_unref(tape->graph);
    drop_temporaries(tape);
    drop_gradients(tape);
    for (size_t i = 0; i < tape->lists.count; i++)
        free(tape->lists.items[i]);
    free(tape->lists.items);
    wfi_map_fini(&tape->leaves);
    weft_hooks_unref(tape->hooks);
    wfi_tape_release_checks(tape);
    weft_stream_unref(tape->stream);
    weft_error_unref(tape->error);
    while (tape->old_errors.count > 0)
        weft_error_unref(tape->old_errors.items[--tape->old_errors.count]);
    free(tape->old_errors.items);
    wfi_tape_path_unref(tape->path);
    if (tape->owner_drop)
        tape->owner_drop(tape->owner);
    wfi_handle_free(tape);
}

void weft_tape_set_hooks(weft_tape *tape, weft_hooks *hooks)
{
    WFI_CHECK_HANDLE(tape, hooks);
    if (!tape)
        return;
    weft_hooks *before = tape->hooks;
    tape->hooks = weft_hooks_ref(hooks);
    weft_hooks_unref(before);
}

weft_status weft_tape_status(const weft_tape *tape)
{
    WFI_CHECK_HANDLE(tape);
    return !tape ? WEFT_ERR_MEMORY : weft_error_code(weft_tape_error(tape));
}

const weft_error *weft_tape_error(const weft_tape *tape)
{
    WFI_CHECK_HANDLE(tape);
    if (!tape)
        return NULL;
    if (tape->checks)
        wfi_tape_collect_checks((weft_tape *)tape); /* what a wait has shown is the tape's error from now on */
    return tape->error;
}

weft_status weft_tape_wait(weft_tape *tape)
{
    WFI_CHECK_HANDLE(tape);
    if (tape && tape->device.kind == WEFT_DEVICE_CUDA && weft_device_check(tape->device, NULL) == WEFT_OK) {
        weft_status status = wfi_stream_wait(tape->stream ? tape->stream : wfi_stream_common(tape->device.index));
        if (status != WEFT_OK)
            wfi_tape_fail(tape, status, NULL, "waiting for the tape's stream: %s", weft_status_text(status));
        wfi_checks_log_done();
    }
    return weft_tape_status(tape);
}

bool weft_tape_records(const weft_tape *tape)
{
    WFI_CHECK_HANDLE(tape);
    return tape && tape->record;
}

bool wfi_tape_ready(const weft_tape *tape)
{
    return tape && !tape->error;
}

void wfi_tape_fail_v(weft_tape *tape, weft_status code, const char *what, const char *format, va_list args)
{
    if (!wfi_tape_ready(tape))
        return;
    wfi_error_detail detail = {.code = code, .function = what, .worker = -1};
    tape->error = wfi_error_create_v(&detail, format, args);
}

void wfi_tape_fail(weft_tape *tape, weft_status code, const char *what, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    wfi_tape_fail_v(tape, code, what, format, args);
    va_end(args);
}

void weft_tape_fail(weft_tape *tape, weft_status code, const char *format, ...)
{
    WFI_CHECK_HANDLE(tape);
    va_list args;
    va_start(args, format);
    wfi_tape_fail_v(tape, code, NULL, format, args);
    va_end(args);
}

void wfi_tape_copy_error(const weft_tape *child, weft_tape *parent)
{
    if (!child)
        wfi_tape_fail_memory(parent, "tape_open");
    else if (wfi_tape_ready(parent) && child->error)
        parent->error = weft_error_ref(child->error);
}

void wfi_tape_fail_memory(weft_tape *tape, const char *what)
{
    wfi_tape_fail(tape, WEFT_ERR_MEMORY, what, "%s: out of memory", what);
}

weft_tensor *weft_tape_take(weft_tape *tape, weft_tensor *tensor)
{
    WFI_CHECK_HANDLE(tape, tensor);
    if (!tensor)
        return NULL;
    if (wfi_tape_ready(tape)) {
        if (wfi_pointers_push(&tape->temporaries, tensor))
            return tensor;
        wfi_tape_fail_memory(tape, "tape_take");
    }
    weft_tensor_unref(tensor);
    return NULL;
}

bool wfi_tape_may_overwrite(const weft_tape *tape, const weft_tensor *x)
{
    const wfi_pointers *all = &tape->temporaries;
    return all->count != 0 && all->items[all->count - 1] == x && wfi_tensor_is_alone(x) && weft_tensor_is_contiguous(x);
}

weft_args wfi_tape_take_values(weft_tape *tape, weft_values *values)
{
    if (wfi_tape_ready(tape) && wfi_pointers_push(&tape->values, values))
        return weft_values_args(values);
    wfi_tape_fail_memory(tape, "tape_take_values");
    weft_values_unref(values);
    return WEFT_NO_VALUES;
}

wfi_random wfi_tape_random(weft_tape *tape)
{
    wfi_random random = tape->random;
    tape->random.stream++;
    return random;
}

/* ---- What it records ---- */

static wfi_node *leaf_of(weft_tape *tape, const weft_tensor *x)
{
    wfi_node *leaf = wfi_map_get(&tape->leaves, x->id);
    if (leaf)
        return leaf;
    leaf = wfi_graph_leaf(tape->graph, x);
    if (!leaf || wfi_map_put(&tape->leaves, x->id, leaf) != WEFT_OK)
        wfi_tape_fail_memory(tape, "leaf");
    return leaf;
}

wfi_node *wfi_tape_node_of(weft_tape *tape, const weft_tensor *x)
{
    if (wfi_graph_made(tape->graph, x))
        return x->grad_node;
    if (!weft_tensor_requires_grad(x) || !wfi_dtype_is_float(x->dtype))
        return NULL;
    return leaf_of(tape, x);
}

wfi_node *wfi_tape_add_node(weft_tape *tape, const wfi_node_type *type, wfi_node_counts counts, weft_tensors inputs)
{
    bool wanted = false;
    if (!tape->record)
        return NULL;
    for (size_t i = 0; i < inputs.count; i++) /* all of them: the nodes of leaves are made here, before this one's */
        wanted = (inputs.items[i] && wfi_tape_node_of(tape, inputs.items[i])) || wanted;
    if (!wanted || tape->error)
        return NULL;
    wfi_node *node = wfi_graph_new_node(tape->graph, &tape->nodes, type, counts);
    if (!node) {
        wfi_tape_fail_memory(tape, type->name);
        return NULL;
    }
    wfi_node_set_path(node, tape->path);
    for (size_t i = 0; i < inputs.count; i++) {
        wfi_node *input = !inputs.items[i] ? NULL : wfi_tape_node_of(tape, inputs.items[i]);
        if (input)
            node->inputs[i] = (wfi_edge){wfi_node_ref(input), input->leaf != 0 ? 0 : inputs.items[i]->grad_result};
    }
    return node;
}
