/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_dist_hostile.c - a member that breaks the rules of passes and contexts: forged numbers, sends of others,
 * gradients of wrong shapes, malformed lists. Each is refused with a status, and the pass that it meant goes on as
 * if nothing had been said.
 */
#include "rpc/world.h"
#include "tensors.h"

#include <malloc.h>

#define WORKERS 3

static weft_tensor *parameter; /* rank 1's */

static void make_parameter(world *w)
{
    (void)w;
    parameter = tensor_full(WEFT_SHAPE(2), WEFT_DTYPE_FLOAT32, 3);
    weft_tensor_set_requires_grad(parameter, true);
}

static void drop_parameter(world *w)
{
    (void)w;
    weft_tensor_unref(parameter);
}

static weft_status serve_times(weft_call *call, void *user)
{
    (void)user;
    weft_tensor *y = weft_mul(weft_call_tape(call), parameter, weft_call_tensor(call, 0));
    weft_call_give(call, WEFT_VALUES(weft_of_tensor(y)));
    return WEFT_OK;
}

static const weft_function functions[] = {
    {.name = "times", .takes = {WEFT_TYPE_TENSOR}, .gives = {WEFT_TYPE_TENSOR}, .run = serve_times}};

/* What the victim's context is called; rank 0 writes it before the barrier. */
static weft_context_id context_id;

static void barrier(weft_agent *agent, const char *name)
{
    weft_group *all;
    MUST_OK(weft_group_open(agent, name, NULL, 0, 0, &all, NULL));
    MUST_OK(weft_group_barrier(all, WEFT_FOREVER));
    weft_group_close(all);
}

/* The first bytes of a call of a pass. */
typedef struct head {
    uint8_t bytes[64];
    size_t size;
} head;

static void put(head *h, uint64_t value, size_t size)
{
    for (size_t i = 0; i < size; i++)
        h->bytes[h->size++] = (uint8_t)(value >> (8 * i));
}

static head head_of(weft_context_id id, uint32_t root, uint64_t number, uint8_t flags)
{
    head h = {.size = 0};
    put(&h, id.rank, 4);
    put(&h, id.incarnation, 4);
    put(&h, id.number, 8);
    put(&h, root, 4);
    put(&h, number, 8);
    put(&h, flags, 1);
    return h;
}

static weft_status say_final(weft_agent *agent, int to, head h)
{
    weft_values *results = NULL;
    weft_error *error = NULL;
    weft_status status =
        weft_rpc_sync(agent, weft_to_rank(to), "weft:final", WEFT_VALUES(weft_of_bytes(h.bytes, h.size)),
                      &(weft_rpc_options){.error = &error}, &results);
    if (status == WEFT_ERR_REMOTE)
        status = weft_error_handler_code(error);
    weft_error_unref(error);
    weft_values_unref(results);
    return status;
}

/* The status of a call of "weft:pass", the callee's own where it refused. */
static weft_status say_all(weft_agent *agent, int to, head h, weft_args lists)
{
    weft_error *error = NULL;
    weft_value all[6] = {weft_of_bytes(h.bytes, h.size)};
    for (int i = 0; i < 5; i++)
        all[i + 1] = lists.items[i];
    weft_status status = weft_rpc_sync(agent, weft_to_rank(to), "weft:pass", (weft_args){all, 6},
                                       &(weft_rpc_options){.error = &error, .timeout_ms = 5000}, NULL);
    if (status == WEFT_ERR_REMOTE)
        status = weft_error_handler_code(error);
    weft_error_unref(error);
    return status;
}

static weft_status say(weft_agent *agent, int to, head h, const uint64_t *numbers, size_t count, weft_tensors gradients,
                       size_t odd)
{
    weft_value none = weft_of_bytes("", 0);
    return say_all(agent, to, h,
                   WEFT_VALUES(weft_of_bytes(numbers, odd), none, weft_of_bytes(numbers, count * sizeof(*numbers)),
                               none, weft_of_tensors(gradients)));
}

/* Says to rank 1 that contexts of this member are over: all below `floor`, and `number`. */
static void close_there(weft_agent *agent, uint64_t floor, uint64_t number)
{
    uint64_t words[] = {floor, number};
    MUST_OK(weft_rpc_sync(agent, weft_to_rank(1), "weft:close", WEFT_VALUES(weft_of_bytes(words, sizeof(words))),
                          &(weft_rpc_options){.timeout_ms = 5000}, NULL));
}

/* Contexts whose numbers lie 2^61 apart: it takes no longer than for numbers that lie close together. */
static void close_far_numbers(weft_agent *agent, weft_tensor *gradient)
{
    const uint64_t step = UINT64_C(1) << 61, one = 1;
    weft_context *ours;
    MUST_OK(weft_context_open(agent, &ours, NULL));
    weft_context_id id = weft_context_get_id(ours);
    weft_context_close(ours, NULL);
    close_there(agent, step, step + 7);
    close_there(agent, step, 3 * step);
    close_there(agent, 2 * step, 5 * step);
    for (int i = 0; i < 7; i++) {
        id.number = (uint64_t)i * step + (i == 6);
        weft_status status = say(agent, 1, head_of(id, 2, 1, 2), &one, 1, (weft_tensors){&gradient, 1}, 0);
        MUST(status == (i == 0 || i == 1 || i == 3 || i == 5 ? WEFT_ERR_CANCELLED : WEFT_ERR_INVALID));
    }
}

static void forge(weft_agent *agent)
{
    static const uint64_t numbers[] = {1, 1, 99, UINT64_MAX, 0};
    weft_tensor *fits = tensor_full(WEFT_SHAPE(2), WEFT_DTYPE_FLOAT32, 1000);
    weft_tensor *items[] = {fits, fits};
    weft_tensors none = {NULL, 0};
    head good = head_of(context_id, 0, 1, 2), cut = good, nowhere = head_of(context_id, 999, 1, 0), longer = good;
    head final = head_of(context_id, 0, 1, 2 | 16); /* itself is final already */
    cut.size -= 3;
    put(&longer, 1, 1);
    put(&final, 1, 8);
    weft_context_id foreign = {.rank = 77, .incarnation = 1, .number = 1},
                    unknown = {.rank = 1, .incarnation = 9, .number = 5};
    for (int to = 0; to < 2; to++) {
        MUST(say(agent, to, cut, numbers, 0, none, 0) == WEFT_ERR_PROTOCOL);
        MUST(say(agent, to, longer, numbers, 0, none, 0) == WEFT_ERR_PROTOCOL);
        MUST(say(agent, to, final, numbers, 0, none, 0) == WEFT_ERR_PROTOCOL);
        MUST(say_final(agent, to, cut) == WEFT_ERR_PROTOCOL);
        MUST(say_final(agent, to, head_of(context_id, (uint32_t)to, 1, 0)) == WEFT_ERR_PROTOCOL); /* its own */
        MUST(say_final(agent, to, head_of(unknown, 2, 1, 0)) == WEFT_OK);                         /* nothing is there */
        MUST(say(agent, to, nowhere, numbers, 0, none, 0) == WEFT_ERR_PROTOCOL);
        MUST(say(agent, to, good, numbers, 0, none, 5) == WEFT_ERR_PROTOCOL);
        MUST(say(agent, to, good, numbers, 2, (weft_tensors){items, 1}, 0) == WEFT_ERR_PROTOCOL); /* two for one */
        MUST(say(agent, to, head_of(foreign, 0, 1, 2), numbers, 0, none, 0) == WEFT_ERR_PROTOCOL);
        weft_status status = say(agent, to, head_of(unknown, 0, 1, 2), numbers, 0, none, 0);
        MUST(status == WEFT_OK || status == WEFT_ERR_CANCELLED); /* nothing is there */
        /* Nothing crossed between this member and those: it has no gradients to give. */
        MUST(say(agent, to, good, numbers, 1, (weft_tensors){items, 1}, 0) != WEFT_OK);
        MUST(say(agent, to, good, numbers, 2, (weft_tensors){items, 2}, 0) != WEFT_OK);
        MUST(say(agent, to, good, numbers + 2, 1, (weft_tensors){items, 1}, 0) != WEFT_OK);
        MUST(say(agent, to, good, numbers + 3, 2, (weft_tensors){items, 2}, 0) != WEFT_OK);
    }
    const int64_t aborts[][2] = {{7, 1}, {WEFT_ERR_SYSTEM, 1000}, {WEFT_ERR_SYSTEM, -2}}; /* no failure; no workers */
    for (int i = 0; i < 3; i++)
        MUST(weft_rpc_sync(agent, weft_to_rank(1), "weft:abort",
                           WEFT_VALUES(weft_of_bytes(good.bytes, good.size), weft_of_i64(aborts[i][0]),
                                       weft_of_i64(aborts[i][1]), weft_of_string("x")),
                           NULL, NULL) == WEFT_ERR_REMOTE);
    MUST(weft_rpc_sync(agent, weft_to_rank(1), "weft:close", WEFT_VALUES(weft_of_bytes("abc", 3)), NULL, NULL) ==
         WEFT_ERR_REMOTE);
    static const uint64_t too_many[129];
    MUST(weft_rpc_sync(agent, weft_to_rank(1), "weft:close", WEFT_VALUES(weft_of_bytes(too_many, sizeof(too_many))),
                       NULL, NULL) == WEFT_ERR_REMOTE);
    MUST(weft_rpc_sync(agent, weft_to_rank(1), "weft:joined", WEFT_VALUES(weft_of_i64(1), weft_of_bytes("abc", 3)),
                       NULL, NULL) == WEFT_ERR_REMOTE);
    /* Of contexts that are another's only that one says that they are over. */
    uint64_t floor[] = {1000000, context_id.number};
    MUST_OK(weft_rpc_sync(agent, weft_to_rank(1), "weft:close", WEFT_VALUES(weft_of_bytes(floor, sizeof(floor))), NULL,
                          NULL));
    close_far_numbers(agent, fits);
    weft_tensor_unref(fits);
}

static void a_member_that_forges(weft_agent *agent, void *arg)
{
    (void)arg;
    int me = weft_agent_rank(agent);
    weft_context *c = NULL;
    weft_tape *t = NULL;
    weft_values *y = NULL;
    weft_tensor *x = tensor_full(WEFT_SHAPE(2), WEFT_DTYPE_FLOAT32, 5), *result;
    weft_tensor_set_requires_grad(x, true);
    if (me == 0) {
        MUST_OK(weft_context_open(agent, &c, NULL));
        context_id = weft_context_get_id(c);
        t = weft_context_tape(c, NULL);
        MUST_OK(weft_rpc_sync(agent, weft_to_rank(1), "times", WEFT_VALUES(weft_of_tensor(x)),
                              &(weft_rpc_options){.tape = t}, &y));
    }
    barrier(agent, "recorded");
    if (me == 2)
        forge(agent);
    barrier(agent, "forged");
    if (me == 0) {
        MUST_OK(weft_values_get_tensor(y, 0, &result));
        weft_dist_backward(t, weft_sum(t, result), NULL);
        weft_status status = weft_tape_status(t);
        if (status)
            fprintf(stderr, "%s\n", weft_error_message(weft_tape_error(t)));
        MUST_OK(status);
        weft_tensor *gradient = weft_context_ref_grad(c, x);
        MUST(gradient && ((float *)weft_tensor_data(gradient))[0] == 3);
        weft_tensor_unref(gradient);
        weft_values_unref(y);
        weft_tape_close(t);
        weft_future *gone;
        weft_context_close(c, &gone);
        MUST_OK(weft_future_wait(gone, WEFT_FOREVER));
        weft_future_unref(gone);
    }
    barrier(agent, "closed");
    size_t passes;
    MUST(weft_agent_contexts(agent, &passes) == 0);
    weft_tensor_unref(x);
}
WORLD_TEST(a_member_that_forges, 5, 2, .size = WORKERS, WORLD_FUNCTIONS(functions), .begin = make_parameter,
           .end = drop_parameter)

/* ---- One who takes part ------------------------------------------------------------------------------------------ */

static void abort_there(weft_agent *agent, int to, uint32_t root, uint64_t number)
{
    head h = head_of(context_id, root, number, 0);
    MUST_OK(weft_rpc_sync(agent, weft_to_rank(to), "weft:abort",
                          WEFT_VALUES(weft_of_bytes(h.bytes, h.size), weft_of_i64(WEFT_ERR_SYSTEM), weft_of_i64(1),
                                      weft_of_string("forged")),
                          NULL, NULL));
}

/* Tensors crossed between rank 2 and rank 0: number 2 of rank 0's went there, number 1 to rank 1. Nothing between it
 * and rank 1. */
static void forge_as_participant(weft_agent *agent)
{
    static const uint64_t anothers = 1, ours = 2, twice[] = {2, 2}, beyond[] = {3, 0, UINT64_MAX};
    weft_tensor *fits = tensor_full(WEFT_SHAPE(2), WEFT_DTYPE_FLOAT32, 1000),
                *longer = tensor_full(WEFT_SHAPE(3), WEFT_DTYPE_FLOAT32, 1000),
                *wider = tensor_full(WEFT_SHAPE(2), WEFT_DTYPE_FLOAT64, 1000);
    weft_tensor *items[] = {fits, fits};
    weft_tensors one = {items, 1}, none = {NULL, 0};
    head early = head_of(context_id, 0, 1, 2), own = head_of(context_id, 2, 1, 2);
    /* Of a pass whose root is the victim, and which it has not begun. */
    MUST(say(agent, 0, early, &ours, 1, one, 0) == WEFT_ERR_INVALID);
    abort_there(agent, 0, 0, 1);
    /* Among rank 1's passes this member has no say. */
    abort_there(agent, 1, 0, 1);
    MUST(say(agent, 1, early, &anothers, 1, one, 0) == WEFT_ERR_INVALID);
    /* In a pass of its own it gives what is another's to give, what does not fit, twice, or to nobody. */
    MUST(say(agent, 0, own, &anothers, 1, one, 0) == WEFT_ERR_INVALID);
    MUST(say(agent, 0, own, &ours, 1, (weft_tensors){&longer, 1}, 0) == WEFT_ERR_SHAPE);
    MUST(say(agent, 0, own, &ours, 1, (weft_tensors){&wider, 1}, 0) == WEFT_ERR_SHAPE);
    MUST(say(agent, 0, own, twice, 2, (weft_tensors){items, 2}, 0) == WEFT_ERR_INVALID);
    for (int i = 0; i < 3; i++)
        MUST(say(agent, 0, own, &beyond[i], 1, one, 0) == WEFT_ERR_INVALID);
    MUST(say(agent, 0, head_of(context_id, 2, 1, 255), &ours, 1, one, 0) == WEFT_ERR_PROTOCOL);
    /* Pending and absent numbers of others, and optimizers that nobody has: that pass ends, and does nothing. */
    weft_value names = weft_of_bytes("no name of a reference", 22), lists = weft_of_bytes(beyond, sizeof(beyond));
    weft_status status = say_all(agent, 0, head_of(context_id, 2, 2, 2),
                                 WEFT_VALUES(lists, weft_of_bytes(&anothers, sizeof(anothers)), weft_of_bytes("", 0),
                                             names, weft_of_tensors(none)));
    MUST(status != WEFT_ERR_TIMEOUT);
    abort_there(agent, 0, 2, 1);
    abort_there(agent, 0, 2, 2);
    weft_tensor_unref(fits);
    weft_tensor_unref(longer);
    weft_tensor_unref(wider);
}

/* Late words, and an abort, of a pass that ended well at both of the others. */
static void forge_late(weft_agent *agent)
{
    static const uint64_t ours = 2;
    weft_tensor *fits = tensor_full(WEFT_SHAPE(2), WEFT_DTYPE_FLOAT32, 1000);
    (void)say(agent, 0, head_of(context_id, 0, 1, 0), &ours, 1, (weft_tensors){&fits, 1}, 0);
    (void)say(agent, 0, head_of(context_id, 0, 1, 2), &ours, 1, (weft_tensors){&fits, 1}, 0);
    abort_there(agent, 1, 0, 1); /* it has no say there; at rank 0 it has */
    weft_tensor_unref(fits);
}

static void must_have(weft_context *c, const weft_tensor *leaf, float value)
{
    weft_tensor *gradient = weft_context_ref_grad(c, leaf);
    MUST(gradient && ((float *)weft_tensor_data(gradient))[0] == value &&
         ((float *)weft_tensor_data(gradient))[1] == value);
    weft_tensor_unref(gradient);
}

/* () -> the gradient of rank 1's parameter */
static weft_status serve_gradient(weft_call *call, void *user)
{
    (void)user;
    weft_tensor *gradient = weft_context_ref_grad(weft_tape_context(weft_call_tape(call)), parameter);
    weft_call_give(call, WEFT_VALUES(weft_of_tensor(gradient)));
    weft_tensor_unref(gradient);
    return WEFT_OK;
}

/* (x) -> 2 x, where there is no parameter */
static weft_status serve_twice(weft_call *call, void *user)
{
    (void)user;
    weft_call_give(call, WEFT_VALUES(weft_of_tensor(weft_scale(weft_call_tape(call), weft_call_tensor(call, 0), 2))));
    return WEFT_OK;
}

static const weft_function functions_of_participants[] = {
    {.name = "times", .takes = {WEFT_TYPE_TENSOR}, .gives = {WEFT_TYPE_TENSOR}, .run = serve_times},
    {.name = "twice", .takes = {WEFT_TYPE_TENSOR}, .gives = {WEFT_TYPE_TENSOR}, .run = serve_twice},
    {.name = "gradient", .gives = {WEFT_TYPE_TENSOR}, .run = serve_gradient},
};

typedef struct victim {
    weft_context *context;
    weft_tape *tape;
    weft_tensor *x, *y, *loss;
    weft_values *results[2];
} victim;

static void record(weft_agent *agent, victim *v)
{
    weft_tensor *parts[2];
    v->x = tensor_full(WEFT_SHAPE(2), WEFT_DTYPE_FLOAT32, 5);
    v->y = tensor_full(WEFT_SHAPE(2), WEFT_DTYPE_FLOAT32, 7);
    weft_tensor_set_requires_grad(v->x, true);
    weft_tensor_set_requires_grad(v->y, true);
    MUST_OK(weft_context_open(agent, &v->context, NULL));
    context_id = weft_context_get_id(v->context);
    v->tape = weft_context_tape(v->context, NULL);
    for (int i = 0; i < 2; i++) {
        MUST_OK(weft_rpc_sync(agent, weft_to_rank(i + 1), i ? "twice" : "times",
                              WEFT_VALUES(weft_of_tensor(i ? v->y : v->x)), &(weft_rpc_options){.tape = v->tape},
                              &v->results[i]));
        MUST_OK(weft_values_get_tensor(v->results[i], 0, &parts[i]));
    }
    v->loss = weft_sum(v->tape, weft_add(v->tape, parts[0], parts[1]));
}

static void look_and_close(weft_agent *agent, victim *v)
{
    weft_values *there;
    weft_tensor *gradient;
    must_have(v->context, v->x, 3);
    must_have(v->context, v->y, 2);
    MUST_OK(weft_rpc_sync(agent, weft_to_rank(1), "gradient", WEFT_NO_VALUES, &(weft_rpc_options){.tape = v->tape},
                          &there));
    MUST_OK(weft_values_get_tensor(there, 0, &gradient));
    MUST(((float *)weft_tensor_data(gradient))[0] == 5 && ((float *)weft_tensor_data(gradient))[1] == 5);
    weft_values_unref(there);
    weft_tape_close(v->tape);
    weft_future *gone;
    weft_context_close(v->context, &gone);
    MUST_OK(weft_future_wait(gone, WEFT_FOREVER));
    weft_future_unref(gone);
    for (int i = 0; i < 2; i++)
        weft_values_unref(v->results[i]);
    weft_tensor_unref(v->x);
    weft_tensor_unref(v->y);
}

static void a_participant_that_forges(weft_agent *agent, void *arg)
{
    (void)arg;
    int me = weft_agent_rank(agent);
    victim v;
    if (me == 0)
        record(agent, &v);
    barrier(agent, "recorded");
    if (me == 2)
        forge_as_participant(agent);
    barrier(agent, "forged");
    if (me == 0) {
        weft_dist_backward(v.tape, v.loss, NULL);
        weft_status status = weft_tape_status(v.tape);
        if (status)
            fprintf(stderr, "%s\n", weft_error_message(weft_tape_error(v.tape)));
        MUST_OK(status);
    }
    barrier(agent, "passed");
    if (me == 2)
        forge_late(agent);
    barrier(agent, "late");
    if (me == 0)
        look_and_close(agent, &v);
    barrier(agent, "closed");
    size_t passes;
    MUST(weft_agent_contexts(agent, &passes) == 0 && passes == 0);
}
WORLD_TEST(a_participant_that_forges, 10, 2, .size = WORKERS, WORLD_FUNCTIONS(functions_of_participants),
           .begin = make_parameter, .end = drop_parameter)

/* ---- The memory budget ------------------------------------------------------------------------------------------- */

#define BUDGET 65536 /* bytes, of the victim */
#define ELEMENTS 65536
#define LARGE (ELEMENTS * sizeof(float)) /* bytes of a gradient: more than the budget */
#define NAMES_BYTES (64 << 10)           /* of optimizers, which a pass takes */

static weft_agent *agents[WORKERS];

static void begin_with_budget(world *w)
{
    (void)w;
    memset(agents, 0, sizeof(agents));
}

static void small_budget(weft_agent_options *options, void *arg)
{
    (void)arg;
    options->death_timeout_ms = WEFT_FOREVER;
    if (options->rank == 0)
        options->memory_budget_bytes = BUDGET;
}

static void medium_budget(weft_agent_options *options, void *arg)
{
    (void)arg;
    options->death_timeout_ms = WEFT_FOREVER;
    if (options->rank == 0)
        options->memory_budget_bytes = 1 << 20;
}

static weft_tensor *large_tensor(int64_t elements)
{
    return tensor_full(WEFT_SHAPE(elements), WEFT_DTYPE_FLOAT32, 1);
}

static uint64_t held_by_victim(void)
{
    return world_stats(agents[0]).bytes_held;
}

static uint64_t held_in_pass;

static weft_tensor *look_at_budget(weft_tensor *gradient, void *arg)
{
    (void)arg;
    held_in_pass = held_by_victim();
    return weft_tensor_ref(gradient);
}

/* Two leaves of the victim, which ranks 1 and 2 double. */
static void record_large(weft_agent *agent, victim *v)
{
    weft_tensor *parts[2];
    *v = (victim){.x = large_tensor(ELEMENTS), .y = large_tensor(ELEMENTS)};
    weft_tensor_set_requires_grad(v->x, true);
    weft_tensor_set_requires_grad(v->y, true);
    MUST_OK(weft_context_open(agent, &v->context, NULL));
    context_id = weft_context_get_id(v->context);
    v->tape = weft_context_tape(v->context, NULL);
    for (int i = 0; i < 2; i++) {
        weft_tensor *seen = weft_on_gradient(v->tape, i ? v->y : v->x, look_at_budget, NULL, NULL);
        MUST_OK(weft_rpc_sync(agent, weft_to_rank(i + 1), "twice", WEFT_VALUES(weft_of_tensor(seen)),
                              &(weft_rpc_options){.tape = v->tape}, &v->results[i]));
        MUST_OK(weft_values_get_tensor(v->results[i], 0, &parts[i]));
    }
    v->loss = weft_sum(v->tape, weft_add(v->tape, parts[0], parts[1]));
}

/* A pass takes gradients that exceed the budget, and they count. Afterwards nothing does. */
static void must_pass_and_close(victim *v)
{
    weft_future *gone;
    held_in_pass = 0;
    weft_dist_backward(v->tape, v->loss, NULL);
    MUST_OK(weft_tape_status(v->tape));
    MUST(held_in_pass >= LARGE);
    must_have(v->context, v->x, 2);
    must_have(v->context, v->y, 2);
    weft_tape_close(v->tape);
    weft_context_close(v->context, &gone);
    MUST_OK(weft_future_wait(gone, WEFT_FOREVER));
    weft_future_unref(gone);
    for (int i = 0; i < 2; i++)
        weft_values_unref(v->results[i]);
    weft_tensor_unref(v->x);
    weft_tensor_unref(v->y);
}

/* Large gradients for a context that does not exist, for another worker's tensor, of a wrong shape, and twice. */
static void give_what_nobody_asked_for(weft_agent *agent)
{
    static const uint64_t anothers = 1, ours = 2, twice[] = {2, 2};
    weft_context_id unknown = {.rank = 2, .incarnation = context_id.incarnation, .number = 77};
    weft_tensor *fits = large_tensor(ELEMENTS), *longer = large_tensor(ELEMENTS + 1), *items[] = {fits, fits};
    weft_tensors one = {items, 1}, none = {NULL, 0};
    uint64_t *beyond = calloc(2 * ELEMENTS, sizeof(*beyond));
    head own = head_of(context_id, 2, 1, 2);
    uint64_t before = world_stats(agents[0]).bytes_received;
    MUST(say(agent, 0, head_of(unknown, 2, 1, 2), &ours, 1, one, 0) == WEFT_ERR_INVALID);
    MUST(say(agent, 0, own, &anothers, 1, one, 0) == WEFT_ERR_INVALID);
    MUST(say(agent, 0, own, &ours, 1, (weft_tensors){&longer, 1}, 0) == WEFT_ERR_SHAPE);
    MUST(say(agent, 0, own, twice, 2, (weft_tensors){items, 2}, 0) == WEFT_ERR_INVALID);
    MUST(say(agent, 0, own, &ours, 1, none, 0) == WEFT_ERR_PROTOCOL);
    MUST(world_stats(agents[0]).bytes_received - before < LARGE / 2); /* none was pulled */
    /* Lists that are longer than the budget, and than what was sent. */
    MUST(say(agent, 0, own, beyond, 0, none, 2 * ELEMENTS * sizeof(*beyond)) == WEFT_ERR_TOO_LARGE);
    MUST(say(agent, 0, own, beyond, 0, none, BUDGET / 4) == WEFT_ERR_INVALID);
    MUST(say(agent, 0, own, beyond, 0, none, 3 * sizeof(*beyond)) == WEFT_ERR_INVALID); /* two were sent */
    /* The same beside a gradient that is in order, and too many names of optimizers. */
    weft_value nothing = weft_of_bytes("", 0), three = weft_of_bytes(beyond, 3 * sizeof(*beyond));
    MUST(say_all(agent, 0, own,
                 WEFT_VALUES(three, nothing, weft_of_bytes(&ours, sizeof(ours)), nothing, weft_of_tensors(one))) ==
         WEFT_ERR_INVALID);
    MUST(say_all(agent, 0, own,
                 WEFT_VALUES(nothing, nothing, weft_of_bytes(&ours, sizeof(ours)),
                             weft_of_bytes(beyond, NAMES_BYTES + 1), weft_of_tensors(one))) == WEFT_ERR_INVALID);
    free(beyond);
    weft_tensor_unref(fits);
    weft_tensor_unref(longer);
}

static void gradients_that_nobody_asked_for(weft_agent *agent, void *arg)
{
    (void)arg;
    int me = weft_agent_rank(agent);
    victim v;
    agents[me] = agent;
    if (me == 0)
        record_large(agent, &v);
    barrier(agent, "recorded");
    if (me == 2)
        give_what_nobody_asked_for(agent);
    barrier(agent, "forged");
    if (me == 0)
        must_pass_and_close(&v);
    barrier(agent, "closed");
}
WORLD_TEST(gradients_that_nobody_asked_for, 10, 2, .size = WORKERS, WORLD_FUNCTIONS(functions_of_participants),
           .begin = begin_with_budget, .adjust = small_budget)

enum { PASSES = 6, LET_IN = 2 };

/*
 * Rank 1 stands still, so passes of rank 2 do not end at the victim. Each brings a gradient that fits. The victim lets
 * in no more of them than one pass over the context may bring.
 */
static void begin_many_passes(weft_agent *agent, world *w)
{
    static const uint64_t ours = 2;
    weft_future *calls[PASSES];
    weft_tensor *fits = large_tensor(ELEMENTS);
    int busy = 0;
    weft_sim_pause(w->sim, 1);
    for (int i = 0; i < PASSES; i++) {
        head h = head_of(context_id, 2, (uint64_t)i + 1, 6); /* it lists pending sends, and retains the records */
        MUST_OK(weft_rpc_async(agent, weft_to_rank(0), "weft:pass",
                               WEFT_VALUES(weft_of_bytes(h.bytes, h.size), weft_of_bytes("", 0), weft_of_bytes("", 0),
                                           weft_of_bytes(&ours, sizeof(ours)), weft_of_bytes("", 0),
                                           weft_of_tensors((weft_tensors){&fits, 1})),
                               &(weft_rpc_options){.timeout_ms = WEFT_FOREVER}, &calls[i]));
    }
    world_sleep_ms(w, 100);
    for (int i = 0; i < PASSES; i++)
        busy += weft_error_code(weft_future_error(calls[i])) == WEFT_ERR_BUSY;
    MUST(busy == PASSES - LET_IN);
    MUST(held_by_victim() >= LET_IN * LARGE && held_by_victim() < (LET_IN + 1) * LARGE);
    weft_sim_resume(w->sim, 1);
    for (int i = 0; i < PASSES; i++) {
        abort_there(agent, 0, 2, (uint64_t)i + 1);
        (void)!weft_future_wait(calls[i], WEFT_FOREVER);
        weft_future_unref(calls[i]);
    }
    MUST(held_by_victim() < LARGE);
    weft_tensor_unref(fits);
}

static void passes_that_do_not_end(weft_agent *agent, void *arg)
{
    world *w = arg;
    int me = weft_agent_rank(agent);
    victim v;
    agents[me] = agent;
    if (me == 0)
        record_large(agent, &v);
    barrier(agent, "recorded");
    if (me == 2)
        begin_many_passes(agent, w);
    barrier(agent, "forged");
    if (me == 0)
        must_pass_and_close(&v);
    barrier(agent, "closed");
    for (int ms = 0; me == 0 && held_by_victim(); ms++) {
        MUST(ms < 1000);
        world_sleep_ms(w, 1);
    }
}
WORLD_TEST(passes_that_do_not_end, 10, 0, .size = WORKERS, WORLD_FUNCTIONS(functions_of_participants),
           .begin = begin_with_budget, .adjust = small_budget)

/* ---- The memory budget, and passes that keep the rules ----------------------------------------------------------- */

enum { CONTEXTS = 2, PASSES_OF_EACH = 2 };

static void drop_victim(victim *v)
{
    weft_tape_close(v->tape);
    weft_context_close(v->context, NULL);
    for (int i = 0; i < 2; i++)
        weft_values_unref(v->results[i]);
    weft_tensor_unref(v->x);
    weft_tensor_unref(v->y);
}

/* Rank 2 stands still until the gradients of rank 1 are here. All these gradients are let in: 8 times 256 KiB, 64 KiB
 * of budget. */
static void passes_at_once(weft_agent *agent, void *arg)
{
    world *w = arg;
    victim v[CONTEXTS];
    weft_future *passes[CONTEXTS][PASSES_OF_EACH];
    agents[weft_agent_rank(agent)] = agent;
    if (weft_agent_rank(agent) != 0)
        return;
    for (int i = 0; i < CONTEXTS; i++)
        record_large(agent, &v[i]);
    weft_sim_pause(w->sim, 2);
    for (int i = 0; i < CONTEXTS; i++)
        for (int j = 0; j < PASSES_OF_EACH; j++)
            MUST_OK(weft_context_backward(v[i].context, (weft_tensors){&v[i].loss, 1},
                                          &(weft_pass_options){.retain = true}, &passes[i][j]));
    world_sleep_ms(w, 100);
    MUST(held_by_victim() >= CONTEXTS * PASSES_OF_EACH * LARGE);
    weft_sim_resume(w->sim, 2);
    for (int i = 0; i < CONTEXTS; i++)
        for (int j = 0; j < PASSES_OF_EACH; j++) {
            weft_status status = weft_future_wait(passes[i][j], WEFT_FOREVER);
            if (status)
                fprintf(stderr, "%s\n", weft_error_message(weft_future_error(passes[i][j])));
            MUST_OK(status);
            weft_future_unref(passes[i][j]);
        }
    MUST(held_by_victim() < LARGE);
    for (int i = 0; i < CONTEXTS; i++) {
        must_have(v[i].context, v[i].x, 2 * PASSES_OF_EACH);
        must_have(v[i].context, v[i].y, 2 * PASSES_OF_EACH);
        drop_victim(&v[i]);
    }
}
WORLD_TEST(passes_at_once, 10, 0, .size = WORKERS, WORLD_FUNCTIONS(functions_of_participants),
           .begin = begin_with_budget, .adjust = small_budget)

/* A gradient that fits a message counts until the pass is over, too. */
static void a_small_gradient(weft_agent *agent, void *arg)
{
    world *w = arg;
    victim v;
    weft_future *pass;
    agents[weft_agent_rank(agent)] = agent;
    if (weft_agent_rank(agent) != 0)
        return;
    record(agent, &v);
    weft_sim_pause(w->sim, 2);
    uint64_t before = held_by_victim();
    MUST_OK(weft_context_backward(v.context, (weft_tensors){&v.loss, 1}, NULL, &pass));
    world_sleep_ms(w, 100);
    MUST(held_by_victim() >= before + 2 * sizeof(float));
    weft_sim_resume(w->sim, 2);
    MUST_OK(weft_future_wait(pass, WEFT_FOREVER));
    weft_future_unref(pass);
    for (int ms = 0; held_by_victim() > before; ms++) {
        MUST(ms < 1000);
        world_sleep_ms(w, 1);
    }
    must_have(v.context, v.x, 3);
    drop_victim(&v);
}

static void begin_small(world *w)
{
    make_parameter(w);
    begin_with_budget(w);
}
WORLD_TEST(a_small_gradient, 10, 0, .size = WORKERS, WORLD_FUNCTIONS(functions_of_participants), .begin = begin_small,
           .end = drop_parameter, .adjust = small_budget)

/* Gradients of one message whose metadata are larger than the budget. */
static void many_gradients(weft_agent *agent, void *arg)
{
    (void)arg;
    enum { MANY = 8000 };
    agents[weft_agent_rank(agent)] = agent;
    if (weft_agent_rank(agent) != 0)
        return;
    static weft_tensor *leaves[MANY];
    weft_context *c;
    weft_values *results;
    weft_tensor *sum;
    for (int i = 0; i < MANY; i++) {
        leaves[i] = tensor_full(WEFT_SHAPE(2), WEFT_DTYPE_FLOAT32, 1);
        weft_tensor_set_requires_grad(leaves[i], true);
    }
    MUST_OK(weft_context_open(agent, &c, NULL));
    weft_tape *t = weft_context_tape(c, NULL);
    MUST_OK(weft_rpc_sync(agent, weft_to_rank(1), "add_all", WEFT_VALUES(weft_of_tensors((weft_tensors){leaves, MANY})),
                          &(weft_rpc_options){.tape = t}, &results));
    MUST_OK(weft_values_get_tensor(results, 0, &sum));
    weft_dist_backward(t, weft_sum(t, sum), NULL);
    if (weft_tape_status(t))
        fprintf(stderr, "%s\n", weft_error_message(weft_tape_error(t)));
    MUST_OK(weft_tape_status(t));
    for (int i = 0; i < MANY; i++) {
        must_have(c, leaves[i], 1);
        weft_tensor_unref(leaves[i]);
    }
    weft_values_unref(results);
    weft_tape_close(t);
    weft_context_close(c, NULL);
}

/* (tensors) -> their sum */
static weft_status serve_add_all(weft_call *call, void *user)
{
    (void)user;
    weft_tape *t = weft_call_tape(call);
    weft_tensors all = weft_call_tensors(call, 0);
    weft_tensor *sum = all.items[0];
    for (size_t i = 1; i < all.count; i++)
        sum = weft_add(t, sum, all.items[i]);
    weft_call_give(call, WEFT_VALUES(weft_of_tensor(sum)));
    return WEFT_OK;
}

static const weft_function functions_of_many[] = {
    {.name = "add_all", .takes = {WEFT_TYPE_TENSORS}, .gives = {WEFT_TYPE_TENSOR}, .run = serve_add_all}};
WORLD_TEST(many_gradients, 2, 1, .size = WORKERS, WORLD_FUNCTIONS(functions_of_many), .begin = begin_with_budget,
           .adjust = small_budget)

/* ---- Small messages that begin large passes ------------------------------------------------------------------- */

enum { FLOOD = 300, MANY_SENDS = 8000 };

static size_t allocated(void)
{
    struct mallinfo2 now = mallinfo2();
    return now.uordblks + now.hblkhd;
}

/* Many leaves of rank 0, which rank 2 adds up. */
static void record_many(weft_agent *agent, victim *v, weft_tensor **leaves)
{
    weft_tensor *sum;
    *v = (victim){0};
    for (int i = 0; i < MANY_SENDS; i++) {
        leaves[i] = tensor_full(WEFT_SHAPE(2), WEFT_DTYPE_FLOAT32, 1);
        weft_tensor_set_requires_grad(leaves[i], true);
    }
    MUST_OK(weft_context_open(agent, &v->context, NULL));
    context_id = weft_context_get_id(v->context);
    v->tape = weft_context_tape(v->context, NULL);
    MUST_OK(weft_rpc_sync(agent, weft_to_rank(2), "add_all",
                          WEFT_VALUES(weft_of_tensors((weft_tensors){leaves, MANY_SENDS})),
                          &(weft_rpc_options){.tape = v->tape}, &v->results[0]));
    MUST_OK(weft_values_get_tensor(v->results[0], 0, &sum));
    v->loss = weft_sum(v->tape, sum);
}

/* Begins passes, in each of which number 1 stays pending: so none of them ends. Returns how many are let in. */
static int flood(weft_agent *agent, world *w, weft_future **calls)
{
    static const uint64_t pending = 1;
    weft_value none = weft_of_bytes("", 0);
    int running = 0;
    for (int i = 0; i < FLOOD; i++) {
        head h = head_of(context_id, 2, (uint64_t)i + 1, 6); /* it lists pending sends, and retains the records */
        MUST_OK(weft_rpc_async(agent, weft_to_rank(0), "weft:pass",
                               WEFT_VALUES(weft_of_bytes(h.bytes, h.size), weft_of_bytes(&pending, sizeof(pending)),
                                           none, none, none, weft_of_tensors((weft_tensors){NULL, 0})),
                               &(weft_rpc_options){.timeout_ms = WEFT_FOREVER}, &calls[i]));
    }
    world_sleep_ms(w, 200);
    for (int i = 0; i < FLOOD; i++) {
        weft_status status = weft_error_code(weft_future_error(calls[i]));
        if (status == WEFT_ERR_REMOTE)
            status = weft_error_handler_code(weft_future_error(calls[i]));
        MUST(weft_future_done(calls[i]) ? status == WEFT_ERR_BUSY : !status);
        MUST(!status || strstr(weft_error_message(weft_future_error(calls[i])), "(WEFT_MEMORY_BUDGET sets it)"));
        running += !weft_future_done(calls[i]);
    }
    return running;
}

static void end_flood(weft_agent *agent, weft_future **calls)
{
    for (int i = 0; i < FLOOD; i++) {
        if (!weft_future_done(calls[i]))
            abort_there(agent, 0, 2, (uint64_t)i + 1);
        (void)!weft_future_wait(calls[i], WEFT_FOREVER);
        weft_future_unref(calls[i]);
    }
}

/* Another worker calls the victim under a context of its own, and begins a pass that goes through it. */
static void pass_through_victim(weft_agent *agent)
{
    weft_context *c;
    weft_values *results;
    weft_tensor *y, *x = tensor_full(WEFT_SHAPE(2), WEFT_DTYPE_FLOAT32, 1);
    weft_tensor_set_requires_grad(x, true);
    MUST_OK(weft_context_open(agent, &c, NULL));
    weft_tape *t = weft_context_tape(c, NULL);
    MUST_OK(weft_rpc_sync(agent, weft_to_rank(0), "twice", WEFT_VALUES(weft_of_tensor(x)),
                          &(weft_rpc_options){.tape = t}, &results));
    MUST_OK(weft_values_get_tensor(results, 0, &y));
    weft_dist_backward(t, weft_sum(t, y), NULL);
    MUST_OK(weft_tape_status(t));
    must_have(c, x, 2);
    weft_values_unref(results);
    weft_tape_close(t);
    weft_context_close(c, NULL);
    weft_tensor_unref(x);
}

/*
 * Each message has a hundred bytes and begins a pass that has to look at 8,000 tensors. What the victim allocates is
 * bounded by its budget and one such pass, and counts. Meanwhile passes over other contexts, and the victim's own,
 * work.
 */
static void small_messages_that_begin_passes(weft_agent *agent, void *arg)
{
    world *w = arg;
    int me = weft_agent_rank(agent);
    victim v;
    static weft_tensor *leaves[MANY_SENDS];
    static weft_future *calls[FLOOD];
    agents[me] = agent;
    if (me == 0)
        record_many(agent, &v, leaves);
    barrier(agent, "recorded");
    if (me == 2) {
        size_t before = allocated();
        uint64_t held = held_by_victim();
        int running = flood(agent, w, calls);
        MUST(running >= 1 && running <= 3);
        MUST(held_by_victim() > held + MANY_SENDS * sizeof(void *)); /* what the passes work with counts */
        MUST(allocated() < before + (8 << 20));                      /* with the 300 calls of this worker itself */
    }
    barrier(agent, "flooded");
    if (me == 1)
        pass_through_victim(agent);
    if (me == 0) {
        weft_dist_backward(v.tape, v.loss, NULL);
        MUST_OK(weft_tape_status(v.tape));
        must_have(v.context, leaves[MANY_SENDS - 1], 1);
    }
    barrier(agent, "passed");
    if (me == 2)
        end_flood(agent, calls);
    barrier(agent, "ended");
    if (me == 0) {
        drop_victim(&v);
        for (int i = 0; i < MANY_SENDS; i++)
            weft_tensor_unref(leaves[i]);
    }
    for (int ms = 0; me == 0 && held_by_victim(); ms++) {
        MUST(ms < 1000);
        world_sleep_ms(w, 1);
    }
}

static const weft_function functions_of_flood[] = {
    {.name = "twice", .takes = {WEFT_TYPE_TENSOR}, .gives = {WEFT_TYPE_TENSOR}, .run = serve_twice},
    {.name = "add_all", .takes = {WEFT_TYPE_TENSORS}, .gives = {WEFT_TYPE_TENSOR}, .run = serve_add_all}};
WORLD_TEST(small_messages_that_begin_passes, 3, 0, .size = WORKERS, WORLD_FUNCTIONS(functions_of_flood),
           .begin = begin_with_budget, .adjust = medium_budget)

UNIT_MAIN(test_a_participant_that_forges, test_a_member_that_forges, test_gradients_that_nobody_asked_for,
          test_passes_that_do_not_end, test_passes_at_once, test_a_small_gradient, test_many_gradients,
          test_small_messages_that_begin_passes)
