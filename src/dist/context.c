/* SPDX-License-Identifier: Apache-2.0 */
/* context.c - a context: its graph, sends, recvs and gradients; and the agent's table of contexts. */
#include "dist/context.h"

#include "autograd/tape.h"
#include "base/alloc.h"
#include "base/text/sized.h"
#include "dist/contexts.h"
#include "dist/pass.h"
#include "rpc/agent/devices.h"

#include <stdlib.h>

#define GRADIENT_OVERHEAD 512 /* bytes: a tensor, its description, its number, its entry in a pending list */

/* ---- Life -------------------------------------------------------------------------------------------------------- */

weft_context *wfi_context_create(weft_agent *agent, weft_context_id id)
{
    weft_context *context = wfi_calloc(1, sizeof(*context));
    wfi_graph *graph = context ? wfi_graph_create() : NULL;
    size_t world = (size_t)agent->options.values.world_size;
    uint8_t *holders = graph ? wfi_calloc(world, 1) : NULL;
    bool *has_pairs = holders ? wfi_calloc(world, sizeof(*has_pairs)) : NULL;
    if (!has_pairs) {
        free(holders);
        wfi_graph_unref(graph);
        free(context);
        return NULL;
    }
    WFI_HANDLE_INIT(context);
    atomic_init(&context->refs, 1);
    context->agent = wfi_agent_ref(agent);
    context->id = id;
    context->incarnation = (int)id.rank == wfi_agent_rank(agent)
                               ? id.incarnation
                               : wfi_net_member(agent->net, wfi_agent_rank(agent))->incarnation;
    context->graph = graph;
    context->holders = holders;
    context->has_pairs = has_pairs;
    wfi_mutex_init(&context->sums);
    wfi_mutex_init(&context->lock);
    wfi_mutex_bar_devices(&context->lock); /* threads with the agent's lock wait for it */
    wfi_list_init(&context->passes);
    wfi_list_init(&context->link);
    return context;
}

weft_context *wfi_context_ref(weft_context *context)
{
    atomic_fetch_add_explicit(&context->refs, 1, memory_order_relaxed);
    return context;
}

void wfi_gradients_clear(wfi_map *gradients)
{
    size_t cursor = 0;
    weft_gradient *kept;
    while ((kept = wfi_map_next(gradients, &cursor, NULL))) {
        wfi_gradient_clear(kept);
        free(kept);
    }
    wfi_map_fini(gradients);
    wfi_map_init(gradients);
}

void wfi_context_unref(weft_context *context)
{
    if (!context || atomic_fetch_sub_explicit(&context->refs, 1, memory_order_acq_rel) != 1)
        return;
    wfi_graph_unref(context->graph); /* first, because it clears all nodes */
    for (size_t i = 0; i < context->send_count; i++)
        wfi_node_unref(context->sends[i].node);
    for (size_t i = 0; i < context->recv_count; i++)
        wfi_node_unref(context->recvs[i].node);
    free(context->sends);
    free(context->recvs);
    for (wfi_list *link; (link = wfi_list_pop_front(&context->passes));) {
        wfi_pass_result *pass = wfi_container_of(link, wfi_pass_result, link);
        pass->unref(pass);
    }
    weft_hooks_unref(context->hooks);
    weft_future_unref(context->ended);
    wfi_mutex_fini(&context->lock);
    wfi_mutex_fini(&context->sums);
    wfi_agent_unref(context->agent);
    free(context->holders);
    free(context->has_pairs);
    wfi_handle_free(context);
}

weft_context_id weft_context_get_id(const weft_context *context)
{
    WFI_CHECK_HANDLE(context);
    return context ? context->id : (weft_context_id){0};
}

bool wfi_context_is_of(const weft_context *context, const weft_context_id *id)
{
    return context->id.rank == id->rank && context->id.incarnation == id->incarnation &&
           context->id.number == id->number;
}

/* ---- Tapes ------------------------------------------------------------------------------------------------------- */

static void drop_owner(void *context)
{
    wfi_context_unref(context);
}

weft_tape *wfi_context_tape_at(weft_context *context, const weft_tape_options *options, wfi_tape_path *path)
{
    weft_tape_options how = options ? *options : (weft_tape_options){0};
    how.record = true;
    weft_tape *parent = how.parent;
    how.parent = NULL;
    weft_tape *tape = wfi_tape_open_in(context->graph, &how);
    if (!tape)
        return NULL;
    tape->path = wfi_tape_path_ref(path);
    tape->owner = wfi_context_ref(context);
    tape->owner_drop = drop_owner;
    if (parent)
        weft_tape_fail(tape, WEFT_ERR_INVALID, "weft_context_tape: a tape of a context has no parent");
    return tape;
}

weft_tape *weft_context_tape_sized(weft_context *context, const weft_tape_options *options, size_t size)
{
    WFI_CHECK_HANDLE(context);
    weft_tape_options own;
    options = WFI_SIZED(options, size, &own);
    if (!context)
        return NULL;
    if (!options)
        return wfi_tape_newer(weft_context_tape(context, NULL));
    wfi_mutex_lock(&context->lock);
    uint32_t number = ++context->tapes;
    wfi_mutex_unlock(&context->lock);
    wfi_tape_path *path = wfi_tape_path_root((uint32_t)wfi_agent_rank(context->agent), context->incarnation, number);
    weft_tape *tape = path ? wfi_context_tape_at(context, options, path) : NULL;
    wfi_tape_path_unref(path);
    return tape;
}

weft_context *weft_tape_context(const weft_tape *tape)
{
    WFI_CHECK_HANDLE(tape);
    return tape ? wfi_tape_owner(tape) : NULL;
}

void weft_context_set_hooks(weft_context *context, weft_hooks *hooks)
{
    WFI_CHECK_HANDLE(context, hooks);
    if (!context)
        return;
    wfi_mutex_lock(&context->lock);
    weft_hooks *before = context->hooks;
    context->hooks = weft_hooks_ref(hooks);
    wfi_mutex_unlock(&context->lock);
    weft_hooks_unref(before);
}

/* ---- Pairs ------------------------------------------------------------------------------------------------------- */

bool wfi_context_records(const weft_context *context, const weft_tensor *tensor)
{
    return wfi_graph_made(context->graph, tensor) ||
           (!tensor->grad_node && weft_tensor_requires_grad(tensor) && wfi_dtype_is_float(tensor->dtype));
}

/* A send node passes the gradient, which came from the recv of its pair, to the tensor that was sent. */
static weft_status send_backward(const wfi_node *node, weft_tensor *dy, weft_tensor **dx)
{
    (void)node;
    dx[0] = weft_tensor_ref(dy);
    return WEFT_OK;
}

static const wfi_node_type send_type = {.name = "send", .backward = send_backward};
static const wfi_node_type recv_type = {.name = "recv", .is_boundary = true};

/* The node of a send, with a reference. `path`: the place of its call in the order of sums. NULL: no memory. */
static wfi_node *make_send(weft_context *context, wfi_tape_path *path, weft_tensor *tensor)
{
    wfi_node_list made = {0};
    bool recorded = wfi_graph_made(context->graph, tensor);
    wfi_node *from = recorded ? tensor->grad_node : wfi_graph_leaf(context->graph, tensor);
    wfi_node *node = from ? wfi_graph_new_node(context->graph, &made, &send_type, (wfi_node_counts){1, 1, 0, 0}) : NULL;
    if (!node)
        return NULL;
    node->inputs[0] = (wfi_edge){wfi_node_ref(from), recorded ? tensor->grad_result : 0};
    node->results[0] = from->results[node->inputs[0].result];
    wfi_node_set_path(node, path);
    wfi_node_ref(node);
    wfi_graph_commit(context->graph, &made, true);
    return node;
}

/* Adds one send. With the lock. */
static weft_status add_send(weft_context *context, wfi_tape_path *path, int to, uint32_t incarnation,
                            weft_tensor *tensor)
{
    wfi_send *sends = wfi_grow(context->sends, context->send_count, &context->send_capacity, sizeof(*sends));
    if (!sends)
        return WEFT_ERR_MEMORY;
    context->sends = sends;
    wfi_node *node = make_send(context, path, tensor);
    if (!node)
        return WEFT_ERR_MEMORY;
    sends[context->send_count++] = (wfi_send){node, to, incarnation, wfi_device_code(weft_tensor_device(tensor))};
    context->has_pairs[to] = true;
    context->send_bytes += weft_tensor_nbytes(tensor) + GRADIENT_OVERHEAD;
    return WEFT_OK;
}

weft_status wfi_context_add_sends(weft_context *context, wfi_tape_path *path, int to, uint32_t incarnation,
                                  weft_tensor *const *tensors, size_t count, uint64_t *first)
{
    wfi_mutex_lock(&context->lock);
    weft_status status = context->over ? WEFT_ERR_STATE : WEFT_OK;
    *first = context->send_count + 1;
    for (size_t i = 0; i < count && !status; i++) /* sends made before a failure are never known to the other end */
        status = add_send(context, path, to, incarnation, tensors[i]);
    wfi_mutex_unlock(&context->lock);
    return status;
}

/* The recv is a node without inputs, whose result is the view. */
weft_tensor *wfi_context_add_recv(weft_context *context, const wfi_recv *pair, weft_tensor *tensor)
{
    weft_tensor *view = NULL;
    if (wfi_tensor_view(tensor, tensor->shape, tensor->strides, tensor->offset, &view))
        return NULL;
    wfi_mutex_lock(&context->lock);
    wfi_recv *recvs = wfi_grow(context->recvs, context->recv_count, &context->recv_capacity, sizeof(*recvs));
    wfi_node_list made = {0};
    wfi_node *node = NULL;
    if (recvs) {
        context->recvs = recvs;
        node = wfi_graph_new_node(context->graph, &made, &recv_type, (wfi_node_counts){0, 1, 0, 0});
    }
    if (node) {
        wfi_node_set_result(node, 0, view);
        wfi_node_ref(node);
        wfi_graph_commit(context->graph, &made, true);
        recvs[context->recv_count] = *pair;
        recvs[context->recv_count++].node = node;
        context->has_pairs[pair->from] = true;
    }
    wfi_mutex_unlock(&context->lock);
    if (!node) {
        weft_tensor_unref(view);
        return NULL;
    }
    return view;
}

/* ---- Gradients --------------------------------------------------------------------------------------------------- */

weft_status wfi_pass_add_gradient(const wfi_pass_result *pass, const weft_tensor *leaf, weft_gradient *sum)
{
    const weft_gradient *found = wfi_map_get(&pass->gradients, leaf->id);
    if (!found)
        return WEFT_OK;
    weft_gradient share = {weft_tensor_ref(found->values), weft_tensor_ref(found->rows)};
    return wfi_gradient_join(sum, &share);
}

void wfi_context_mark_final(weft_context *context, int root, uint64_t number)
{
    WFI_FOR_LIST (wfi_pass_result, pass, &context->passes, link)
        if (pass->root == root && pass->number <= number && pass->ended_well)
            pass->is_final = true;
}

void wfi_context_mark_own_final(weft_context *context)
{
    int me = wfi_agent_rank(context->agent);
    uint64_t number = 0;
    WFI_FOR_LIST (const wfi_pass_result, pass, &context->passes, link)
        if (pass->root == me && pass->number == number + 1 && pass->ended_well)
            number++;
    wfi_context_mark_final(context, me, number);
}

uint64_t wfi_context_last_final(const weft_context *context, int root)
{
    uint64_t number = 0;
    WFI_FOR_LIST (const wfi_pass_result, pass, (wfi_list *)&context->passes, link)
        if (pass->root == root && pass->is_final)
            number = pass->number;
    return number;
}

/*
 * Adds the gradients `from` to those of `into`. Those that were added stay in `from`, to be dropped. False: no memory;
 * then `from` has only those that were not added.
 */
static bool add_up(wfi_map *into, wfi_map *from)
{
    size_t cursor = 0, added = 0;
    uint64_t leaf;
    weft_gradient *more, *sum;
    weft_status status = WEFT_OK;
    while (!status && (more = wfi_map_next(from, &cursor, &leaf))) {
        sum = wfi_map_get(into, leaf);
        weft_gradient share = {weft_tensor_ref(more->values), weft_tensor_ref(more->rows)};
        status = sum ? wfi_gradient_join(sum, &share) : wfi_map_put(into, leaf, more);
        wfi_gradient_clear(&share);
        if (!status && !sum)
            wfi_map_take(from, leaf);
        added += !status && sum;
    }
    for (cursor = 0; status && added > 0; added--) {
        more = wfi_map_next(from, &cursor, &leaf);
        wfi_gradient_clear(more);
        free(wfi_map_take(from, leaf));
    }
    return !status;
}

static wfi_map move_gradients(wfi_map *gradients)
{
    wfi_map taken = *gradients;
    wfi_map_init(gradients);
    return taken;
}

/* Gives the gradients back to the pass, unless it was undone meanwhile. With the lock. */
static void put_back(wfi_pass_result *pass, wfi_map *gradients)
{
    if (!pass->is_final)
        return;
    pass->gradients = *gradients;
    wfi_map_init(gradients);
}

/*
 * Adds the gradients of one final pass to those of the first final pass of the same root. False: there is no such pass,
 * or no memory. With `sums`, but without the lock while it adds. `left`: gradients to drop.
 */
static bool sum_next(weft_context *context, wfi_map left[2])
{
    wfi_pass_result *first = NULL, *next = NULL;
    wfi_mutex_lock(&context->lock);
    WFI_FOR_LIST (wfi_pass_result, pass, &context->passes, link) {
        if (!pass->is_final || next)
            continue;
        if (!first || first->root != pass->root)
            first = pass;
        else if (pass->gradients.count)
            next = pass;
    }
    bool joined = next != NULL;
    if (next) {
        left[0] = move_gradients(&first->gradients);
        left[1] = move_gradients(&next->gradients);
        wfi_mutex_unlock(&context->lock);
        joined = add_up(&left[0], &left[1]);
        wfi_mutex_lock(&context->lock);
        put_back(first, &left[0]);
        if (!joined)
            put_back(next, &left[1]);
    }
    wfi_mutex_unlock(&context->lock);
    return joined;
}

/* Drops the gradients of passes that were undone. */
static void drop_undone(weft_context *context)
{
    wfi_map undone;
    bool more;
    do {
        wfi_map_init(&undone);
        wfi_mutex_lock(&context->lock);
        WFI_FOR_LIST (wfi_pass_result, pass, &context->passes, link)
            if (pass->undone.count && !undone.count)
                undone = move_gradients(&pass->undone);
        wfi_mutex_unlock(&context->lock);
        more = undone.count;
        wfi_gradients_clear(&undone);
    } while (more);
}

void wfi_context_sum_final(weft_context *context)
{
    wfi_map left[2]; /* dropped without a lock: that may run code of the user, or call the driver of a GPU */
    bool more = true;
    drop_undone(context);
    while (more) {
        wfi_map_init(&left[0]);
        wfi_map_init(&left[1]);
        if (!wfi_mutex_trylock(&context->sums))
            return; /* another thread adds them up, or reads gradients; the next pass tries again */
        more = sum_next(context, left);
        wfi_mutex_unlock(&context->sums);
        wfi_gradients_clear(&left[0]);
        wfi_gradients_clear(&left[1]);
    }
}

/* The gradient of a leaf in one pass. */
typedef struct share {
    int root;
    weft_gradient gradient; /* references */
} share;

/* The gradients of a leaf in all passes that ended well, in their order: a malloc'ed array. NULL: no memory. */
static share *shares_of(weft_context *context, const weft_tensor *leaf, size_t *count)
{
    size_t most = 0;
    *count = 0;
    wfi_mutex_lock(&context->sums);
    wfi_mutex_lock(&context->lock);
    WFI_FOR_LIST (const wfi_pass_result, pass, &context->passes, link)
        most += pass->ended_well;
    share *shares = wfi_calloc(most, sizeof(*shares));
    WFI_FOR_LIST (wfi_pass_result, pass, &context->passes, link) {
        const weft_gradient *found = shares && pass->ended_well ? wfi_map_get(&pass->gradients, leaf->id) : NULL;
        if (found)
            shares[(*count)++] = (share){pass->root, {weft_tensor_ref(found->values), weft_tensor_ref(found->rows)}};
    }
    wfi_mutex_unlock(&context->lock);
    wfi_mutex_unlock(&context->sums);
    return shares;
}

/*
 * The sum over all passes that ended well, with references: those of each root are added first, so the bits do not
 * depend on which passes wfi_context_sum_final has added. It is computed without a lock, because a GPU may do it.
 */
static weft_status gradient_of(weft_context *context, const weft_tensor *leaf, weft_gradient *out)
{
    size_t count;
    weft_gradient of_root = {0};
    share *shares = shares_of(context, leaf, &count);
    weft_status status = shares ? WEFT_OK : WEFT_ERR_MEMORY;
    for (size_t i = 0; i < count; i++) {
        if (!status && i > 0 && shares[i].root != shares[i - 1].root)
            status = wfi_gradient_join(out, &of_root);
        if (!status)
            status = wfi_gradient_join(&of_root, &shares[i].gradient);
        wfi_gradient_clear(&shares[i].gradient);
    }
    free(shares);
    if (!status)
        status = wfi_gradient_join(out, &of_root);
    if (status) {
        wfi_gradient_clear(&of_root);
        wfi_gradient_clear(out);
    }
    return status;
}

weft_tensor *weft_context_ref_grad(weft_context *context, const weft_tensor *leaf)
{
    WFI_CHECK_HANDLE(context, leaf);
    weft_gradient sum = {0};
    if (!context || !leaf || gradient_of(context, leaf, &sum))
        return NULL;
    if (wfi_gradient_make_dense(&sum, &leaf->shape)) {
        wfi_gradient_clear(&sum);
        return NULL;
    }
    return sum.values;
}

weft_status weft_context_ref_gradients(weft_context *context, weft_tensors parameters, weft_gradient *out)
{
    WFI_CHECK_HANDLE(context);
    if (!context || (parameters.count && (!parameters.items || !out)))
        return wfi_refuse_null("weft_context_ref_gradients", !context ? "the context" : "a list");
    weft_status status = WEFT_OK;
    for (size_t i = 0; i < parameters.count; i++)
        out[i] = (weft_gradient){0};
    for (size_t i = 0; i < parameters.count && !status; i++)
        status = parameters.items[i] ? gradient_of(context, parameters.items[i], &out[i])
                                     : wfi_refuse_null("weft_context_ref_gradients", "a parameter");
    if (status)
        weft_context_drop_gradients(out, parameters.count);
    return status;
}

void weft_context_drop_gradients(weft_gradient *gradients, size_t count)
{
    for (size_t i = 0; i < count && gradients; i++)
        wfi_gradient_clear(&gradients[i]);
}

/* ---- The agent's table ------------------------------------------------------------------------------------------- */

static uint64_t key_of(const weft_agent *agent, const weft_context_id *id)
{
    uint64_t words[] = {id->rank, id->incarnation, id->number};
    return wfi_hash_keyed(&agent->hash_key, words, sizeof(words));
}

weft_context *wfi_contexts_find(weft_agent *agent, const weft_context_id *id)
{
    weft_context *context = wfi_map_get(&wfi_contexts_of(agent)->table, key_of(agent, id));
    while (context && !wfi_context_is_of(context, id))
        context = context->next_same;
    return context;
}

weft_context *wfi_contexts_find_ref(weft_agent *agent, const weft_context_id *id)
{
    wfi_net_lock(agent->net);
    weft_context *context = wfi_contexts_find(agent, id);
    if (context)
        wfi_context_ref(context);
    wfi_net_unlock(agent->net);
    return context;
}

weft_status wfi_contexts_add(wfi_contexts *all, weft_context *context)
{
    uint64_t key = key_of(all->agent, &context->id);
    context->next_same = wfi_map_take(&all->table, key);
    if (wfi_map_put(&all->table, key, context)) {
        if (context->next_same && wfi_map_put(&all->table, key, context->next_same))
            return WEFT_ERR_MEMORY; /* impossible: its entry has just become free */
        return WEFT_ERR_MEMORY;
    }
    all->count++;
    return WEFT_OK;
}

typedef struct unref_task {
    wfi_task task;
    weft_context *context;
} unref_task;

static void run_unref(wfi_task *task)
{
    unref_task *later = wfi_container_of(task, unref_task, task);
    wfi_context_unref(later->context);
    free(later);
}

void wfi_context_unref_later(weft_context *context)
{
    unref_task *later = wfi_calloc(1, sizeof(*later));
    if (!later)
        return;
    *later = (unref_task){.task.run = run_unref, .context = context};
    wfi_net_defer(context->agent->net, &later->task, WFI_DEFER_RELEASE);
}

void wfi_contexts_remove(wfi_contexts *all, weft_context *context)
{
    uint64_t key = key_of(all->agent, &context->id);
    weft_context *first = wfi_map_take(&all->table, key), **at = &first;
    while (*at && *at != context)
        at = &(*at)->next_same;
    if (*at)
        *at = context->next_same;
    if (first && wfi_map_put(&all->table, key, first))
        first = NULL; /* impossible: its entry has just become free */
    all->count--;
}

bool wfi_contexts_was_closed(const weft_agent *agent, const weft_context_id *id)
{
    const wfi_opener *opener = &wfi_contexts_of(agent)->openers[id->rank];
    if ((int)id->rank == wfi_agent_rank(agent))
        return true; /* the table has all that are open */
    return opener->incarnation == id->incarnation &&
           (id->number < opener->oldest_open || wfi_map_get(&opener->closed, id->number));
}

weft_status wfi_contexts_find_or_create(weft_agent *agent, const weft_context_id *id, weft_context **out)
{
    wfi_contexts *all = wfi_contexts_of(agent);
    const wfi_opener *opener = &all->openers[id->rank];
    *out = wfi_contexts_find(agent, id);
    if (*out)
        return WEFT_OK;
    const wfi_member *member = wfi_net_member(agent->net, (int)id->rank);
    if (wfi_contexts_was_closed(agent, id) || opener->incarnation > id->incarnation ||
        !wfi_agent_knows_alive(agent, (int)id->rank) || member->incarnation > id->incarnation)
        return WEFT_ERR_STATE; /* it is over, or its opener has ended */
    weft_context *context = wfi_context_create(agent, *id);
    if (!context)
        return WEFT_ERR_MEMORY;
    if (wfi_contexts_add(all, context)) {
        wfi_context_unref_later(context);
        return WEFT_ERR_MEMORY;
    }
    *out = context;
    return WEFT_OK;
}

/* A program that uses contexts, or the tape of a call, links this file, so the component is present. */
__attribute__((constructor(WFI_JOIN_CONTEXTS))) static void join_agents(void)
{
    wfi_component_add(&wfi_dist_component);
    wfi_recording_ops_set(&wfi_dist_recording_ops);
}
