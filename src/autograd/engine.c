/* SPDX-License-Identifier: Apache-2.0 */
/* engine.c - the backward pass. */
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
typedef struct wfi_pass_entry {
    weft_gradient sum;
    uint32_t awaited; /* consumers that have not answered */
    bool seen;
    bool root;
} entry;

void wfi_pass_fail(wfi_pass *pass, weft_status code, const char *format, ...)
{
    if (pass->error != NULL)
        return;
    wfi_error_detail detail = {.code = code, .function = "backward", .worker = -1};
    va_list args;
    va_start(args, format);
    pass->error = wfi_error_create_v(&detail, format, args);
    va_end(args);
}

static void fail_memory(wfi_pass *pass)
{
    wfi_pass_fail(pass, WEFT_ERR_MEMORY, "backward: out of memory");
}

/* ---- Entries, in pages by slot ---- */

static entry *entry_at(const wfi_pass *pass, uint64_t slot)
{
    return &pass->pages[slot >> PAGE_BITS][slot & (PAGE_ENTRIES - 1)];
}

static bool make_page(wfi_pass *pass, size_t page)
{
    if (page >= pass->page_count) {
        size_t count = page + 1 > 2 * pass->page_count ? page + 1 : 2 * pass->page_count;
        entry **pages = realloc(pass->pages, count * sizeof(*pages));
        if (pages == NULL)
            return false;
        memset(pages + pass->page_count, 0, (count - pass->page_count) * sizeof(*pages));
        pass->pages = pages;
        pass->page_count = count;
    }
    if (pass->pages[page] == NULL)
        pass->pages[page] = wfi_calloc(PAGE_ENTRIES, sizeof(entry));
    return pass->pages[page] != NULL;
}

/* ---- Counting ---- */

/* The entry of a node's first result; makes the entries of all its results if necessary. NULL: the pass failed. */
static entry *meet(wfi_pass *pass, wfi_node *node)
{
    size_t first = (size_t)(node->slot >> PAGE_BITS);
    size_t last = (size_t)((node->slot + node->result_count - 1) >> PAGE_BITS);
    for (size_t page = first; page <= last; page++) {
        if ((page >= pass->page_count || pass->pages[page] == NULL) && !make_page(pass, page)) {
            fail_memory(pass);
            return NULL;
        }
    }
    entry *e = entry_at(pass, node->slot);
    if (e->seen)
        return e;
    e->seen = true;
    if (wfi_pointers_push(&pass->todo, node))
        return e;
    fail_memory(pass);
    return NULL;
}

static void count_consumers(wfi_pass *pass)
{
    while (pass->todo.count > 0 && pass->error == NULL) {
        const wfi_node *node = pass->todo.items[--pass->todo.count];
        for (uint32_t i = 0; i < node->input_count && pass->error == NULL; i++) {
            entry *e = node->inputs[i].node == NULL ? NULL : meet(pass, node->inputs[i].node);
            if (e != NULL)
                e->awaited++;
        }
    }
}

/* ---- The heap of those that are ready, by slot: the one recorded last first ---- */

static uint64_t slot_at(const wfi_pass *pass, size_t i)
{
    return ((wfi_node *)pass->ready.items[i])->slot;
}

static void swap(wfi_pass *pass, size_t i, size_t j)
{
    void *item = pass->ready.items[i];
    pass->ready.items[i] = pass->ready.items[j];
    pass->ready.items[j] = item;
}

static void push_ready(wfi_pass *pass, wfi_node *node)
{
    if (!wfi_pointers_push(&pass->ready, node)) {
        fail_memory(pass);
        return;
    }
    for (size_t i = pass->ready.count - 1; i > 0 && slot_at(pass, (i - 1) / 2) < slot_at(pass, i); i = (i - 1) / 2)
        swap(pass, i, (i - 1) / 2);
}

static wfi_node *pop_ready(wfi_pass *pass)
{
    if (pass->ready.count == 0)
        return NULL;
    wfi_node *top = pass->ready.items[0];
    pass->ready.items[0] = pass->ready.items[--pass->ready.count];
    for (size_t i = 0;;) {
        size_t child = 2 * i + 1;
        if (child + 1 < pass->ready.count && slot_at(pass, child + 1) > slot_at(pass, child))
            child++;
        if (child >= pass->ready.count || slot_at(pass, child) < slot_at(pass, i))
            break;
        swap(pass, i, child);
        i = child;
    }
    return top;
}

/* ---- Shares ---- */

static void check(wfi_pass *pass, const wfi_node *node, weft_status status)
{
    char *misfit = wfi_node_misfit();
    if (status == WEFT_ERR_SHAPE && *misfit)
        wfi_pass_fail(pass, status, "backward: %s: %s", node->type->name, misfit);
    else if (status != WEFT_OK)
        wfi_pass_fail(pass, status, "backward: %s: %s", node->type->name, weft_status_text(status));
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
    if (order == 0 && a->from != NULL && a->from != b->from) {
        order = wfi_tape_path_compare(b->from->path, b->from->after, a->from->path, a->from->after);
        if (order == 0)
            order = a->from->slot < b->from->slot ? 1 : -1;
    }
    return order != 0 ? order : a->number < b->number ? -1 : 1;
}

/* Whether shares for a node are collected before they are added: it has several consumers. */
static bool is_held(const wfi_pass *pass, const wfi_node *node, uint64_t slot)
{
    return pass->ordered && (entry_at(pass, node->slot)->awaited > 1 || wfi_map_get(&pass->held, slot + 1) != NULL);
}

/* Takes over the share. */
static void hold_share(wfi_pass *pass, uint64_t slot, const wfi_node *from, weft_gradient share)
{
    held_shares *held = wfi_map_get(&pass->held, slot + 1);
    if (held == NULL) {
        held = wfi_calloc(1, sizeof(*held));
        if (held != NULL && wfi_map_put(&pass->held, slot + 1, held) != WEFT_OK) {
            free(held);
            held = NULL;
        }
    }
    held_share *items = held == NULL ? NULL : wfi_grow(held->items, held->count, &held->capacity, sizeof(*items));
    if (items == NULL) {
        wfi_gradient_clear(&share);
        fail_memory(pass);
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
static void sum_held(wfi_pass *pass, const wfi_node *node, uint64_t slot)
{
    held_shares *held = pass->ordered ? wfi_map_take(&pass->held, slot + 1) : NULL;
    if (held == NULL)
        return;
    weft_gradient *sum = &entry_at(pass, slot)->sum;
    qsort(held->items, held->count, sizeof(*held->items), compare_shares);
    for (size_t i = 0; i < held->count; i++)
        check(pass, node, wfi_gradient_join(sum, &held->items[i].gradient));
    drop_held(held);
}

/* Takes over the reference to `share`. `from`: the consumer, NULL if it is outside. */
static void add_share(wfi_pass *pass, const wfi_node *node, uint32_t result, const wfi_node *from, weft_tensor *share)
{
    if (node->leaf != 0 && pass->hooks != NULL)
        share = wfi_hooks_pre(pass->hooks, node->leaf, share);
    weft_gradient *sum = &entry_at(pass, node->slot + result)->sum;
    if (share == NULL)
        wfi_pass_fail(pass, WEFT_ERR_INVALID,
                      "backward: a hook gave NULL, or not a gradient of its leaf's shape and dtype");
    else if (is_held(pass, node, node->slot + result))
        hold_share(pass, node->slot + result, from, (weft_gradient){.values = share});
    else if (sum->values == NULL)
        sum->values = share;
    else
        check(pass, node, wfi_gradient_add(sum, share));
}

static void answered(wfi_pass *pass, wfi_node *node)
{
    entry *e = entry_at(pass, node->slot);
    if (--e->awaited != 0)
        return;
    for (uint32_t i = 0; i < node->result_count; i++)
        sum_held(pass, node, node->slot + i);
    push_ready(pass, node);
}

/* Answers all inputs of a node: with dx[i], whose reference it takes over, or with none. */
static void answer_inputs(wfi_pass *pass, const wfi_node *node, weft_tensor **dx)
{
    for (uint32_t i = 0; i < node->input_count; i++) {
        wfi_node *input = node->inputs[i].node;
        weft_tensor *share = dx == NULL ? NULL : dx[i];
        if (input == NULL || pass->error != NULL) {
            weft_tensor_unref(share);
            continue;
        }
        if (share != NULL)
            add_share(pass, input, node->inputs[i].result, node, share);
        answered(pass, input);
    }
}

/* ---- Running nodes ---- */

static void run_leaf(wfi_pass *pass, const wfi_node *leaf, entry *e)
{
    weft_gradient sum = e->sum;
    e->sum = (weft_gradient){0};
    if (pass->hooks != NULL)
        check(pass, leaf, wfi_hooks_post(pass->hooks, leaf->leaf, &sum, &pass->waits));
    if (pass->hooks != NULL && pass->error == NULL)
        check(pass, leaf, wfi_map_put(&pass->hooked, leaf->leaf, pass));
    if (pass->error == NULL)
        check(pass, leaf, pass->give(pass->arg, leaf->leaf, &sum));
    else
        wfi_gradient_clear(&sum);
}

static bool enter(wfi_pass *pass, wfi_node *node)
{
    const char *name = node->type->name;
    if (!wfi_node_enter(node, !pass->retain)) {
        wfi_pass_fail(
            pass, WEFT_ERR_STATE,
            "backward: the records of %s are gone: to go back through them a second time, the first pass must "
            "retain them",
            name);
        return false;
    }
    int changed = wfi_node_changed(node);
    if (changed < 0)
        return true;
    wfi_pass_fail(pass, WEFT_ERR_STATE,
                  "backward: tensor %d that %s kept for its gradient was changed in place afterwards", changed, name);
    wfi_node_leave(node, !pass->retain);
    return false;
}

/* Whether input 0 got its gradient by rows; then nothing else of the node must run. */
static bool gave_rows(wfi_pass *pass, const wfi_node *node, weft_tensor *dy)
{
    wfi_node *leaf = node->type->backward_rows == NULL ? NULL : node->inputs[0].node;
    if (leaf == NULL || leaf->leaf == 0 || (pass->hooks != NULL && wfi_hooks_has(pass->hooks, leaf->leaf)))
        return false;
    weft_tensor *rows = NULL, *values = NULL;
    check(pass, node, node->type->backward_rows(node, dy, &rows, &values));
    if (rows != NULL && is_held(pass, leaf, leaf->slot))
        hold_share(pass, leaf->slot, node, (weft_gradient){.values = values, .rows = rows});
    else if (rows != NULL)
        check(pass, node, wfi_gradient_add_rows(&entry_at(pass, leaf->slot)->sum, rows, values));
    return rows != NULL || pass->error != NULL;
}

/* The gradients of a node's results, taken from their entries; false: there are none. */
static bool take_gradients(wfi_pass *pass, const wfi_node *node, weft_tensor **dy)
{
    bool any = false;
    for (uint32_t i = 0; i < node->result_count; i++) {
        weft_gradient *sum = &entry_at(pass, node->slot + i)->sum;
        dy[i] = sum->values;
        sum->values = NULL;
        any = any || dy[i] != NULL;
    }
    return any;
}

static void drop_all(weft_tensor **tensors, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        weft_tensor_unref(tensors[i]);
}

/* Tensors of GPUs that the node reads may be from other streams. */
static bool order_inputs(wfi_pass *pass, const wfi_node *node, weft_tensor **dy)
{
    for (uint32_t i = 0; i < node->saved_count && pass->error == NULL; i++)
        if (node->saved[i] != NULL)
            check(pass, node, wfi_tensor_use(node->saved[i], false));
    for (uint32_t i = 0; i < node->result_count && pass->error == NULL; i++)
        if (dy[i] != NULL)
            check(pass, node, wfi_tensor_use(dy[i], false));
    return pass->error == NULL;
}

static void run_backward(wfi_pass *pass, wfi_node *node, weft_tensor **dy, weft_tensor **dx)
{
    if (!take_gradients(pass, node, dy)) {
        answer_inputs(pass, node, NULL);
        return;
    }
    if (enter(pass, node) && order_inputs(pass, node, dy)) {
        if (!gave_rows(pass, node, dy[0]))
            check(pass, node,
                  node->type->backward_all != NULL ? node->type->backward_all(node, dy, dx)
                                                   : node->type->backward(node, dy[0], dx));
        wfi_node_leave(node, pass->error != NULL && !pass->retain);
    }
    /* before the shares are added: a tensor without other references is added to in place */
    drop_all(dy, node->result_count);
    answer_inputs(pass, node, dx);
}

static void run_operator(wfi_pass *pass, wfi_node *node)
{
    weft_tensor *few[FEW] = {NULL};
    uint32_t results = node->result_count, count = results + node->input_count;
    weft_tensor **gradients = count <= FEW ? few : wfi_calloc(count, sizeof(*gradients));
    if (gradients == NULL) {
        fail_memory(pass);
        return;
    }
    weft_stream *before = wfi_stream_set(pass->stream);
    run_backward(pass, node, gradients, gradients + results);
    (void)wfi_stream_set(before);
    if (gradients != few)
        free(gradients);
}

static void run_node(wfi_pass *pass, wfi_node *node)
{
    entry *e = entry_at(pass, node->slot);
    if (node->type->is_end) {
        weft_tensor *gradient = e->sum.values;
        e->sum.values = NULL;
        pass->end(pass->arg, node, gradient);
    } else if (node->leaf == 0)
        run_operator(pass, node);
    else if (e->sum.values != NULL)
        run_leaf(pass, node, e);
}

/* ---- The pass ---- */

void wfi_pass_root(wfi_pass *pass, wfi_node *node, uint32_t result, weft_tensor *gradient)
{
    entry *e = pass->error == NULL ? meet(pass, node) : NULL;
    if (e == NULL) {
        weft_tensor_unref(gradient);
        return;
    }
    add_share(pass, node, result, NULL, gradient);
    if (pass->error == NULL && !e->root && !wfi_pointers_push(&pass->roots, node))
        fail_memory(pass);
    e->root = true;
}

void wfi_pass_end_hooks(wfi_pass *pass)
{
    if (pass->hooks == NULL || pass->hooks_ended)
        return;
    pass->hooks_ended = true;
    weft_status status = wfi_hooks_end(pass->hooks, pass->error, &pass->waits);
    if (status != WEFT_OK)
        wfi_pass_fail(pass, status, "backward: the function of weft_hooks_set_end failed: %s",
                      weft_status_text(status));
}

/* With the worker that the hook's own failure names. */
static void fail_for_hook(wfi_pass *pass, weft_status status, const weft_error *why)
{
    wfi_error_detail detail = {.code = status, .function = "backward", .worker = why ? weft_error_worker(why) : -1};
    if (pass->error == NULL)
        pass->error = wfi_error_create(&detail, "backward: what a hook had begun failed: %s",
                                       why ? weft_error_message(why) : weft_status_text(status));
}

/* The pass is not over until the hooks have finished with the sums. */
void wfi_pass_await_hooks(wfi_pass *pass)
{
    for (size_t i = 0; i < pass->waits.count; i++) {
        weft_future *wait = pass->waits.items[i];
        weft_status status = wfi_future_wait(wait, WEFT_FOREVER);
        if (status != WEFT_OK)
            fail_for_hook(pass, status, weft_future_error(wait));
        weft_future_unref(wait);
    }
    free(pass->waits.items);
    pass->waits = (wfi_pointers){0};
}

void wfi_pass_decline(weft_hooks *hooks, const weft_error *why)
{
    wfi_pass pass = {.hooks = hooks, .error = weft_error_ref(why)};
    wfi_pass_end_hooks(&pass);
    wfi_pass_await_hooks(&pass);
    weft_error_unref(pass.error);
}

void wfi_pass_give_absent(wfi_pass *pass)
{
    if (pass->hooks == NULL || pass->absent_given || pass->error != NULL)
        return;
    pass->absent_given = true;
    weft_status status = wfi_hooks_give_absent(pass->hooks, &pass->hooked, pass->give, pass->arg);
    if (status != WEFT_OK)
        wfi_pass_fail(pass, status, "backward: the gradient of a leaf that got none: %s", weft_status_text(status));
}

void wfi_pass_await(wfi_pass *pass, wfi_node *node)
{
    entry *e = pass->error == NULL ? meet(pass, node) : NULL;
    if (e != NULL)
        e->awaited++;
}

bool wfi_pass_meets(const wfi_pass *pass, const wfi_node *node)
{
    size_t page = (size_t)(node->slot >> PAGE_BITS);
    return page < pass->page_count && pass->pages[page] != NULL && entry_at(pass, node->slot)->seen;
}

void wfi_pass_answer(wfi_pass *pass, wfi_node *node, weft_tensor *gradient)
{
    if (pass->error != NULL) {
        weft_tensor_unref(gradient);
        return;
    }
    if (gradient != NULL)
        add_share(pass, node, 0, NULL, gradient);
    answered(pass, node);
}

void wfi_pass_begin(wfi_pass *pass)
{
    count_consumers(pass);
    for (size_t i = 0; i < pass->roots.count && pass->error == NULL; i++) {
        wfi_node *root = pass->roots.items[i];
        if (entry_at(pass, root->slot)->awaited == 0)
            push_ready(pass, root);
    }
}

/* A page, and the heap entries that its nodes may need. */
static size_t bytes_of_pages(size_t count)
{
    return count * PAGE_ENTRIES * (sizeof(entry) + 2 * sizeof(void *));
}

size_t wfi_pass_most_bytes(uint64_t slots)
{
    size_t pages = (size_t)(slots >> PAGE_BITS) + 1;
    size_t list = pages * 2 * sizeof(void *), todo = (size_t)slots * 2 * sizeof(void *);
    return bytes_of_pages(pages) + list + todo;
}

size_t wfi_pass_bytes(const wfi_pass *pass)
{
    size_t pages = 0;
    for (size_t page = 0; page < pass->page_count; page++)
        pages += pass->pages[page] != NULL;
    return bytes_of_pages(pages) + (pass->page_count + pass->todo.capacity) * sizeof(void *);
}

void wfi_pass_work(wfi_pass *pass)
{
    wfi_node *node;
    while (pass->error == NULL && (node = pop_ready(pass)) != NULL) {
        if (node->leaf == 0 && !node->type->is_end)
            pass->last_operator = node->type->name;
        run_node(pass, node);
    }
}

void wfi_pass_run(wfi_pass *pass)
{
    wfi_pass_begin(pass);
    wfi_pass_work(pass);
    wfi_pass_end_hooks(pass);
    wfi_pass_await_hooks(pass);
    wfi_pass_give_absent(pass);
}

void wfi_pass_end(wfi_pass *pass)
{
    for (size_t page = 0; page < pass->page_count; page++) {
        for (size_t i = 0; i < PAGE_ENTRIES && pass->error != NULL && pass->pages[page] != NULL; i++)
            wfi_gradient_clear(&pass->pages[page][i].sum);
        free(pass->pages[page]);
    }
    held_shares *held;
    for (size_t cursor = 0; (held = wfi_map_next(&pass->held, &cursor, NULL)) != NULL;)
        drop_held(held);
    wfi_map_fini(&pass->held);
    wfi_map_fini(&pass->hooked);
    free(pass->pages);
    free(pass->todo.items);
    free(pass->roots.items);
    free(pass->ready.items);
    weft_error_unref(pass->error);
}
