/* SPDX-License-Identifier: Apache-2.0 */
/* tape.c - opening and closing tapes, what they own, and their first error. */
#include "autograd/tape.h"

#include "base/alloc.h"
#include "base/error.h"

#include <stdlib.h>

#define CHILD_STREAMS_SHIFT 32 /* random streams that a tape, or each of its children, has for itself */

bool wfi_pointers_push(wfi_pointers *list, void *item)
{
    if (list->count == list->capacity) {
        size_t capacity = list->capacity == 0 ? 16 : 2 * list->capacity;
        void **items = realloc(list->items, capacity * sizeof(*items));
        if (items == NULL)
            return false;
        list->items = items;
        list->capacity = capacity;
    }
    list->items[list->count++] = item;
    return true;
}

/* Counted at the root: no two descendants, of whatever depth, share a stream. */
static wfi_random child_random(weft_tape *parent)
{
    weft_tape *root = parent;
    while (root->parent != NULL)
        root = root->parent;
    return (wfi_random){root->random.seed, ++root->children << CHILD_STREAMS_SHIFT};
}

weft_tape *weft_tape_open(const weft_tape_options *options)
{
    weft_tape *tape = wfi_calloc(1, sizeof(*tape));
    if (tape == NULL)
        return NULL;
    tape->id = wfi_sequence_next();
    wfi_map_init(&tape->leaves);
    wfi_map_init(&tape->gradients);
    if (options == NULL)
        return tape;
    tape->record = options->record;
    tape->random.seed = options->seed;
    tape->parent = options->parent;
    if (tape->parent != NULL)
        tape->random = child_random(tape->parent);
    return tape;
}

void weft_tape_set_seed(weft_tape *tape, uint64_t seed)
{
    if (tape != NULL)
        tape->random = (wfi_random){.seed = seed};
}

static void drop_temporaries(weft_tape *tape)
{
    while (tape->temporaries.count > 0)
        weft_tensor_unref(tape->temporaries.items[--tape->temporaries.count]);
    free(tape->temporaries.items);
}

/* All are cleared before any is let go: so no node's end ends another, and the depth of the graph does not matter. */
static void drop_nodes(weft_tape *tape)
{
    for (size_t i = 0; i < tape->nodes.count; i++)
        wfi_node_clear(tape->nodes.items[i]);
    for (size_t i = 0; i < tape->nodes.count; i++)
        wfi_node_unref(tape->nodes.items[i]);
    free(tape->nodes.items);
}

static void drop_gradients(weft_tape *tape)
{
    size_t cursor = 0;
    weft_tensor *gradient;
    while ((gradient = wfi_map_next(&tape->gradients, &cursor, NULL)) != NULL)
        weft_tensor_unref(gradient);
    wfi_map_fini(&tape->gradients);
    for (size_t i = 0; i < tape->lists.count; i++)
        free(tape->lists.items[i]);
    free(tape->lists.items);
}

/* The child's nodes become the parent's. If there is no memory for that, they end here and the parent fails. */
static void move_nodes(weft_tape *child, weft_tape *parent)
{
    size_t kept = 0;
    for (size_t i = 0; i < child->nodes.count; i++) {
        wfi_node *node = child->nodes.items[i];
        if (!wfi_pointers_push(&parent->nodes, node)) {
            wfi_tape_fail_memory(parent, "tape_close");
            child->nodes.items[kept++] = node;
            continue;
        }
        atomic_store_explicit(&node->tape_id, parent->id, memory_order_relaxed);
    }
    child->nodes.count = kept;
}

void weft_tape_close(weft_tape *tape)
{
    if (tape == NULL)
        return;
    if (tape->parent != NULL && tape->error == NULL && tape->parent->error == NULL)
        move_nodes(tape, tape->parent);
    drop_nodes(tape);
    drop_temporaries(tape);
    drop_gradients(tape);
    wfi_map_fini(&tape->leaves);
    weft_error_unref(tape->error);
    free(tape);
}

weft_status weft_tape_status(const weft_tape *tape)
{
    return tape == NULL ? WEFT_ERR_MEMORY : weft_error_code(tape->error);
}

const weft_error *weft_tape_error(const weft_tape *tape)
{
    return tape == NULL ? NULL : tape->error;
}

bool weft_tape_records(const weft_tape *tape)
{
    return tape != NULL && tape->record;
}

bool wfi_tape_ready(const weft_tape *tape)
{
    return tape != NULL && tape->error == NULL;
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
    va_list args;
    va_start(args, format);
    wfi_tape_fail_v(tape, code, NULL, format, args);
    va_end(args);
}

void wfi_tape_pass_error(const weft_tape *child, weft_tape *parent)
{
    if (child == NULL)
        wfi_tape_fail_memory(parent, "tape_open");
    else if (wfi_tape_ready(parent) && child->error != NULL)
        parent->error = weft_error_ref(child->error);
}

void wfi_tape_fail_memory(weft_tape *tape, const char *what)
{
    wfi_tape_fail(tape, WEFT_ERR_MEMORY, what, "%s: out of memory", what);
}

weft_tensor *weft_tape_take(weft_tape *tape, weft_tensor *tensor)
{
    if (tensor == NULL)
        return NULL;
    if (wfi_tape_ready(tape)) {
        if (wfi_pointers_push(&tape->temporaries, tensor))
            return tensor;
        wfi_tape_fail_memory(tape, "tape_take");
    }
    weft_tensor_unref(tensor);
    return NULL;
}

wfi_random wfi_tape_random(weft_tape *tape)
{
    wfi_random random = tape->random;
    tape->random.stream++;
    return random;
}
