/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine.c - the backward pass over a graph. It counts the consumers of each node (count_consumers), keeps the nodes
 * that are ready in a heap, and runs them (run_node). Each gives a share of a gradient to its inputs (add_share). In a
 * pass that continues at other workers the shares of one tensor wait for each other (hold_share, sum_held).
 */
#include "autograd/engine.h"

#include "base/alloc.h"
#include "base/error.h"
#include "future/future.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#define PAGE_BITS 7
#define PAGE_ENTRIES ((size_t)1 << PAGE_BITS)
#define FEW 8 /* gradients of one node that fit on the stack */

/*
 * The state of one result of a node in a pass. `awaited` and the marks belong to the node: its first result has them.
 */
typedef struct wfi_engine_entry {
    weft_gradient sum;
    uint32_t awaited; /* consumers that have not answered */
    bool seen;
    bool root;
} entry;

void wfi_engine_fail(wfi_engine *engine, weft_status code, const char *format, ...)
{
    if (engine->error)
        return;
    wfi_error_detail detail = {.code = code, .function = "backward", .worker = -1};
    va_list args;
    va_start(args, format);
    engine->error = wfi_error_create_v(&detail, format, args);
    va_end(args);
}

static void fail_memory(wfi_engine *engine)
{
    wfi_engine_fail(engine, WEFT_ERR_MEMORY, "backward: out of memory");
}

/* ---- Entries, in pages by slot ---- */

static entry *entry_at(const wfi_engine *engine, uint64_t slot)
{
    return &engine->pages[slot >> PAGE_BITS][slot & (PAGE_ENTRIES - 1)];
}

static bool make_page(wfi_engine *engine, size_t page)
{
    if (page >= engine->page_count) {
        size_t count = page + 1 > 2 * engine->page_count ? page + 1 : 2 * engine->page_count;
        entry **pages = realloc(engine->pages, count * sizeof(*pages));
        if (!pages)
            return false;
        memset(pages + engine->page_count, 0, (count - engine->page_count) * sizeof(*pages));
        engine->pages = pages;
        engine->page_count = count;
    }
    if (!engine->pages[page])
        engine->pages[page] = wfi_calloc(PAGE_ENTRIES, sizeof(entry));
    return engine->pages[page] != NULL;
}

/* ---- Counting ---- */

/* The entry of a node's first result; makes the entries of all its results if necessary. NULL: the pass failed. */
static entry *meet(wfi_engine *engine, wfi_node *node)
{
    size_t first = (size_t)(node->slot >> PAGE_BITS);
    size_t last = (size_t)((node->slot + node->result_count - 1) >> PAGE_BITS);
    for (size_t page = first; page <= last; page++) {
        if ((page >= engine->page_count || !engine->pages[page]) && !make_page(engine, page)) {
            fail_memory(engine);
            return NULL;
        }
    }
    entry *e = entry_at(engine, node->slot);
    if (e->seen)
        return e;
    e->seen = true;
    if (wfi_pointers_push(&engine->todo, node))
        return e;
    fail_memory(engine);
    return NULL;
}

static void count_consumers(wfi_engine *engine)
{
    while (engine->todo.count > 0 && !engine->error) {
        const wfi_node *node = engine->todo.items[--engine->todo.count];
        for (uint32_t i = 0; i < node->input_count && !engine->error; i++) {
            entry *e = !node->inputs[i].node ? NULL : meet(engine, node->inputs[i].node);
            if (e)
                e->awaited++;
        }
    }
}

/* ---- The heap of those that are ready, by slot: the one recorded last first ---- */

static uint64_t slot_at(const wfi_engine *engine, size_t i)
{
    return ((wfi_node *)engine->ready.items[i])->slot;
}

static void swap(wfi_engine *engine, size_t i, size_t j)
{
    void *item = engine->ready.items[i];
    engine->ready.items[i] = engine->ready.items[j];
    engine->ready.items[j] = item;
}

static void push_ready(wfi_engine *engine, wfi_node *node)
{
    if (!wfi_pointers_push(&engine->ready, node)) {
        fail_memory(engine);
        return;
    }
    for (size_t i = engine->ready.count - 1; i > 0 && slot_at(engine, (i - 1) / 2) < slot_at(engine, i);
         i = (i - 1) / 2)
        swap(engine, i, (i - 1) / 2);
}

static wfi_node *pop_ready(wfi_engine *engine)
{
    if (engine->ready.count == 0)
        return NULL;
    wfi_node *top = engine->ready.items[0];
    engine->ready.items[0] = engine->ready.items[--engine->ready.count];
    for (size_t i = 0;;) {
        size_t child = 2 * i + 1;
        if (child + 1 < engine->ready.count && slot_at(engine, child + 1) > slot_at(engine, child))
            child++;
        if (child >= engine->ready.count || slot_at(engine, child) < slot_at(engine, i))
            break;
        swap(engine, i, child);
        i = child;
    }
    return top;
}

/* ---- Shares ---- */

/* Keeps the failure of a node. */
static void check(wfi_engine *engine, const wfi_node *node, weft_status status)
{
    char *misfit = wfi_node_misfit();
    if (status == WEFT_ERR_SHAPE && *misfit)
        wfi_engine_fail(engine, status, "backward: %s: %s", node->type->name, misfit);
    else if (status != WEFT_OK)
        wfi_engine_fail(engine, status, "backward: %s: %s", node->type->name, weft_status_text(status));
    *misfit = '\0';
}

/* ---- Shares that wait for their turn ---- */

typedef struct held_share {
    const wfi_node *from; /* borrowed; NULL: from outside */
    size_t number;        /* order of arrival among the shares of its tensor */
    weft_gradient gradient;
} held_share;

typedef struct held_shares {
    size_t count, capacity;
    held_share *items;
} held_shares;

/*
 * Orders shares for the sum: the share of the node recorded last comes first. Shares from outside belong to no node
 * and come before all. Several shares of one node come in the order of its inputs.
 */
static int compare_shares(const void *left, const void *right)
{
    const held_share *a = left, *b = right;
    int order = (a->from != NULL) - (b->from != NULL);
    if (order == 0 && a->from && a->from != b->from) {
        order = wfi_tape_path_compare(b->from->path, b->from->after, a->from->path, a->from->after);
        if (order == 0)
            order = a->from->slot < b->from->slot ? 1 : -1;
    }
    return order != 0 ? order : a->number < b->number ? -1 : 1;
}

/* Whether shares for a node are collected before they are added: it has several consumers. */
static bool is_held(const wfi_engine *engine, const wfi_node *node, uint64_t slot)
{
    return engine->ordered && (entry_at(engine, node->slot)->awaited > 1 || wfi_map_get(&engine->held, slot + 1));
}

/* Takes over the share. */
static void hold_share(wfi_engine *engine, uint64_t slot, const wfi_node *from, weft_gradient share)
{
    held_shares *held = wfi_map_get(&engine->held, slot + 1);
    if (!held) {
        held = wfi_calloc(1, sizeof(*held));
        if (held && wfi_map_put(&engine->held, slot + 1, held) != WEFT_OK) {
            free(held);
            held = NULL;
        }
    }
    held_share *items = !held ? NULL : wfi_grow(held->items, held->count, &held->capacity, sizeof(*items));
    if (!items) {
        wfi_gradient_clear(&share);
        fail_memory(engine);
        return;
    }
    held->items = items;
    items[held->count] = (held_share){from, held->count, share};
    held->count++;
}

static void drop_held(held_shares *held)
{
    for (size_t i = 0; i < held->count; i++)
        wfi_gradient_clear(&held->items[i].gradient);
    free(held->items);
    free(held);
}

/* All consumers of a node have answered: adds its shares, that of the node recorded last first. */
static void sum_held(wfi_engine *engine, const wfi_node *node, uint64_t slot)
{
    held_shares *held = engine->ordered ? wfi_map_take(&engine->held, slot + 1) : NULL;
    if (!held)
        return;
    weft_gradient *sum = &entry_at(engine, slot)->sum;
    qsort(held->items, held->count, sizeof(*held->items), compare_shares);
    for (size_t i = 0; i < held->count; i++)
        check(engine, node, wfi_gradient_join(sum, &held->items[i].gradient));
    drop_held(held);
}

/* Takes over the reference to `share`. `from`: the consumer, NULL if it is outside. */
static void add_share(wfi_engine *engine, const wfi_node *node, uint32_t result, const wfi_node *from,
                      weft_tensor *share)
{
    if (node->leaf != 0 && engine->hooks)
        share = wfi_hooks_pre(engine->hooks, node->leaf, share);
    weft_gradient *sum = &entry_at(engine, node->slot + result)->sum;
    if (!share)
        wfi_engine_fail(engine, WEFT_ERR_INVALID,
                        "backward: a hook gave NULL, or not a gradient of its leaf's shape and dtype");
    else if (is_held(engine, node, node->slot + result))
        hold_share(engine, node->slot + result, from, (weft_gradient){.values = share});
    else if (!sum->values)
        sum->values = share;
    else
        check(engine, node, wfi_gradient_add(sum, share));
}

/* One consumer of the node has answered. The node is ready when all have. */
static void answered(wfi_engine *engine, wfi_node *node)
{
    entry *e = entry_at(engine, node->slot);
    if (--e->awaited != 0)
        return;
    for (uint32_t i = 0; i < node->result_count; i++)
        sum_held(engine, node, node->slot + i);
    push_ready(engine, node);
}

/* Answers all inputs of a node: with dx[i], whose reference it takes over, or with none. */
static void answer_inputs(wfi_engine *engine, const wfi_node *node, weft_tensor **dx)
{
    for (uint32_t i = 0; i < node->input_count; i++) {
        wfi_node *input = node->inputs[i].node;
        weft_tensor *share = !dx ? NULL : dx[i];
        if (!input || engine->error) {
            weft_tensor_unref(share);
            continue;
        }
        if (share)
            add_share(engine, input, node->inputs[i].result, node, share);
        answered(engine, input);
    }
}

/* ---- Running nodes ---- */

/* The gradient of a leaf is complete: calls its hooks, and gives it to the owner of the pass. */
static void run_leaf(wfi_engine *engine, const wfi_node *leaf, entry *e)
{
    weft_gradient sum = e->sum;
    e->sum = (weft_gradient){0};
    if (engine->hooks)
        check(engine, leaf, wfi_hooks_post(engine->hooks, leaf->leaf, &sum, &engine->waits));
    if (engine->hooks && !engine->error)
        check(engine, leaf, wfi_map_put(&engine->hooked, leaf->leaf, engine));
    if (!engine->error)
        check(engine, leaf, engine->give(engine->arg, leaf->leaf, &sum));
    else
        wfi_gradient_clear(&sum);
}

/* Begins to run a node: its saved tensors must exist, and be unchanged. */
static bool enter(wfi_engine *engine, wfi_node *node)
{
    const char *name = node->type->name;
    if (!wfi_node_enter(node, !engine->retain)) {
        wfi_engine_fail(
            engine, WEFT_ERR_STATE,
            "backward: the records of %s are gone: to go back through them a second time, the first pass must "
            "retain them",
            name);
        return false;
    }
    int changed = wfi_node_changed(node);
    if (changed < 0)
        return true;
    wfi_engine_fail(engine, WEFT_ERR_STATE,
                    "backward: tensor %d that %s kept for its gradient was changed in place afterwards", changed, name);
    wfi_node_leave(node, !engine->retain);
    return false;
}

/* Whether input 0 got its gradient by rows; then nothing else of the node must run. */
static bool gave_rows(wfi_engine *engine, const wfi_node *node, weft_tensor *dy)
{
    wfi_node *leaf = !node->type->backward_rows ? NULL : node->inputs[0].node;
    if (!leaf || leaf->leaf == 0 || (engine->hooks && wfi_hooks_has(engine->hooks, leaf->leaf)))
        return false;
    weft_tensor *rows = NULL, *values = NULL;
    check(engine, node, node->type->backward_rows(node, dy, &rows, &values));
    if (rows && is_held(engine, leaf, leaf->slot))
        hold_share(engine, leaf->slot, node, (weft_gradient){.values = values, .rows = rows});
    else if (rows)
        check(engine, node, wfi_gradient_add_rows(&entry_at(engine, leaf->slot)->sum, rows, values));
    return rows || engine->error;
}

/* The gradients of a node's results, taken from their entries; false: there are none. */
static bool take_gradients(wfi_engine *engine, const wfi_node *node, weft_tensor **dy)
{
    bool any = false;
    for (uint32_t i = 0; i < node->result_count; i++) {
        weft_gradient *sum = &entry_at(engine, node->slot + i)->sum;
        dy[i] = sum->values;
        sum->values = NULL;
        any = any || dy[i];
    }
    return any;
}

static void drop_all(weft_tensor **tensors, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        weft_tensor_unref(tensors[i]);
}

/* Tensors of GPUs that the node reads may be from other streams. */
static bool order_inputs(wfi_engine *engine, const wfi_node *node, weft_tensor **dy)
{
    for (uint32_t i = 0; i < node->saved_count && !engine->error; i++)
        if (node->saved[i])
            check(engine, node, wfi_tensor_use(node->saved[i], false));
    for (uint32_t i = 0; i < node->result_count && !engine->error; i++)
        if (dy[i])
            check(engine, node, wfi_tensor_use(dy[i], false));
    return !engine->error;
}

/* Runs the backward function of a node, and gives its results to the inputs. */
static void run_backward(wfi_engine *engine, wfi_node *node, weft_tensor **dy, weft_tensor **dx)
{
    if (!take_gradients(engine, node, dy)) {
        answer_inputs(engine, node, NULL);
        return;
    }
    if (enter(engine, node) && order_inputs(engine, node, dy)) {
        if (!gave_rows(engine, node, dy[0]))
            check(engine, node,
                  node->type->backward_all ? node->type->backward_all(node, dy, dx)
                                           : node->type->backward(node, dy[0], dx));
        wfi_node_leave(node, engine->error && !engine->retain);
    }
    /* before the shares are added: a tensor without other references is added to in place */
    drop_all(dy, node->result_count);
    answer_inputs(engine, node, dx);
}

static void run_operator(wfi_engine *engine, wfi_node *node)
{
    weft_tensor *few[FEW] = {NULL};
    uint32_t results = node->result_count, count = results + node->input_count;
    weft_tensor **gradients = count <= FEW ? few : wfi_calloc(count, sizeof(*gradients));
    if (!gradients) {
        fail_memory(engine);
        return;
    }
    weft_stream *before = wfi_stream_set(engine->stream);
    run_backward(engine, node, gradients, gradients + results);
    (void)wfi_stream_set(before);
    if (gradients != few)
        free(gradients);
}

static void run_node(wfi_engine *engine, wfi_node *node)
{
    entry *e = entry_at(engine, node->slot);
    if (node->type->is_boundary) {
        weft_tensor *gradient = e->sum.values;
        e->sum.values = NULL;
        engine->give_boundary(engine->arg, node, gradient);
    } else if (node->leaf == 0)
        run_operator(engine, node);
    else if (e->sum.values)
        run_leaf(engine, node, e);
}

/* ---- The pass ---- */

void wfi_engine_root(wfi_engine *engine, wfi_node *node, uint32_t result, weft_tensor *gradient)
{
    entry *e = !engine->error ? meet(engine, node) : NULL;
    if (!e) {
        weft_tensor_unref(gradient);
        return;
    }
    add_share(engine, node, result, NULL, gradient);
    if (!engine->error && !e->root && !wfi_pointers_push(&engine->roots, node))
        fail_memory(engine);
    e->root = true;
}

void wfi_engine_end_hooks(wfi_engine *engine)
{
    if (!engine->hooks || engine->hooks_ended)
        return;
    engine->hooks_ended = true;
    weft_status status = wfi_hooks_end(engine->hooks, engine->error, &engine->waits);
    if (status != WEFT_OK)
        wfi_engine_fail(engine, status, "backward: the function of weft_hooks_set_end failed: %s",
                        weft_status_text(status));
}

/* With the worker that the hook's own failure names. */
static void fail_for_hook(wfi_engine *engine, weft_status status, const weft_error *why)
{
    wfi_error_detail detail = {.code = status, .function = "backward", .worker = why ? weft_error_worker(why) : -1};
    if (!engine->error)
        engine->error = wfi_error_create(&detail, "backward: what a hook had begun failed: %s",
                                         why ? weft_error_message(why) : weft_status_text(status));
}

/* The pass is not over until the hooks have finished with the sums. */
void wfi_engine_await_hooks(wfi_engine *engine)
{
    for (size_t i = 0; i < engine->waits.count; i++) {
        weft_future *wait = engine->waits.items[i];
        weft_status status = wfi_future_wait(wait, WEFT_FOREVER);
        if (status != WEFT_OK)
            fail_for_hook(engine, status, weft_future_error(wait));
        weft_future_unref(wait);
    }
    free(engine->waits.items);
    engine->waits = (wfi_pointers){0};
}

void wfi_engine_decline(weft_hooks *hooks, const weft_error *why)
{
    wfi_engine engine = {.hooks = hooks, .error = weft_error_ref(why)};
    wfi_engine_end_hooks(&engine);
    wfi_engine_await_hooks(&engine);
    weft_error_unref(engine.error);
}

void wfi_engine_give_absent(wfi_engine *engine)
{
    if (!engine->hooks || engine->absent_given || engine->error)
        return;
    engine->absent_given = true;
    weft_status status = wfi_hooks_give_absent(engine->hooks, &engine->hooked, engine->give, engine->arg);
    if (status != WEFT_OK)
        wfi_engine_fail(engine, status, "backward: the gradient of a leaf that got none: %s", weft_status_text(status));
}

void wfi_engine_await(wfi_engine *engine, wfi_node *node)
{
    entry *e = !engine->error ? meet(engine, node) : NULL;
    if (e)
        e->awaited++;
}

bool wfi_engine_meets(const wfi_engine *engine, const wfi_node *node)
{
    size_t page = (size_t)(node->slot >> PAGE_BITS);
    return page < engine->page_count && engine->pages[page] && entry_at(engine, node->slot)->seen;
}

void wfi_engine_answer(wfi_engine *engine, wfi_node *node, weft_tensor *gradient)
{
    if (engine->error) {
        weft_tensor_unref(gradient);
        return;
    }
    if (gradient)
        add_share(engine, node, 0, NULL, gradient);
    answered(engine, node);
}

void wfi_engine_begin(wfi_engine *engine)
{
    count_consumers(engine);
    for (size_t i = 0; i < engine->roots.count && !engine->error; i++) {
        wfi_node *root = engine->roots.items[i];
        if (entry_at(engine, root->slot)->awaited == 0)
            push_ready(engine, root);
    }
}

/* A page, and the heap entries that its nodes may need. */
static size_t bytes_of_pages(size_t count)
{
    return count * PAGE_ENTRIES * (sizeof(entry) + 2 * sizeof(void *));
}

size_t wfi_engine_most_bytes(uint64_t slots)
{
    size_t pages = (size_t)(slots >> PAGE_BITS) + 1;
    size_t list = pages * 2 * sizeof(void *), todo = (size_t)slots * 2 * sizeof(void *);
    return bytes_of_pages(pages) + list + todo;
}

size_t wfi_engine_bytes(const wfi_engine *engine)
{
    size_t pages = 0;
    for (size_t page = 0; page < engine->page_count; page++)
        pages += engine->pages[page] != NULL;
    return bytes_of_pages(pages) + (engine->page_count + engine->todo.capacity) * sizeof(void *);
}

void wfi_engine_work(wfi_engine *engine)
{
    wfi_node *node;
    while (!engine->error && (node = pop_ready(engine))) {
        if (node->leaf == 0 && !node->type->is_boundary)
            engine->last_operator = node->type->name;
        run_node(engine, node);
    }
}

void wfi_engine_run(wfi_engine *engine)
{
    wfi_engine_begin(engine);
    wfi_engine_work(engine);
    wfi_engine_end_hooks(engine);
    wfi_engine_await_hooks(engine);
    wfi_engine_give_absent(engine);
}

void wfi_engine_end(wfi_engine *engine)
{
    for (size_t page = 0; page < engine->page_count; page++) {
        for (size_t i = 0; i < PAGE_ENTRIES && engine->error && engine->pages[page]; i++)
            wfi_gradient_clear(&engine->pages[page][i].sum);
        free(engine->pages[page]);
    }
    held_shares *held;
    for (size_t cursor = 0; (held = wfi_map_next(&engine->held, &cursor, NULL));)
        drop_held(held);
    wfi_map_fini(&engine->held);
    wfi_map_fini(&engine->hooked);
    free(engine->pages);
    free(engine->todo.items);
    free(engine->roots.items);
    free(engine->ready.items);
    weft_error_unref(engine->error);
}
