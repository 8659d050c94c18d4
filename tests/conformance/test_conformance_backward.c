/* SPDX-License-Identifier: Apache-2.0 */
/* test_conformance_backward.c - items 66 to 70, 75, 76 and 78: passes that end well, and what their gradients are. */
#include "conformance/contexts.h"
#include "tensors.h"

#include <weft/ops.h>
#include <weft/operator.h>

#include <pthread.h>

/* (rref a, rref b) -> a b, of what the handles name, fetched under the call's tape */
static weft_status serve_mul_fetched(weft_call *call, void *user);
/* (x) -> a list of tensors: x, 2 x and 3 x */
static weft_status serve_multiples(weft_call *call, void *user);
/* (the parameter of rank 0): a step with it, in a context of this worker's */
static weft_status serve_train(weft_call *call, void *user);

static const weft_function functions[] = {
    CONTEXT_FUNCTIONS,
    {.name = "mul fetched",
     .takes = {WEFT_TYPE_RREF, WEFT_TYPE_RREF},
     .gives = {WEFT_TYPE_TENSOR},
     .run = serve_mul_fetched},
    {.name = "multiples", .takes = {WEFT_TYPE_TENSOR}, .gives = {WEFT_TYPE_TENSORS}, .run = serve_multiples},
    {.name = "train", .takes = {WEFT_TYPE_RREF}, .run = serve_train},
};

/* ---- 66 ---------------------------------------------------------------------------------------------------------- */

static weft_tensor *fetch_under(weft_call *call, weft_rref *rref, weft_future **keep)
{
    weft_tensor *tensor = NULL;
    MUST_OK(weft_rref_fetch(rref, &(weft_rpc_options){.tape = weft_call_tape(call), .parent = call}, keep));
    MUST_OK(weft_future_wait(*keep, WEFT_FOREVER));
    MUST_OK(weft_values_get_tensor(weft_future_values(*keep), 0, &tensor));
    return tensor;
}

static weft_status serve_mul_fetched(weft_call *call, void *user)
{
    weft_future *first = NULL, *second = NULL;
    weft_tensor *a = fetch_under(call, weft_call_rref(call, 0), &first);
    weft_tensor *b = fetch_under(call, weft_call_rref(call, 1), &second);
    weft_call_give(call, WEFT_VALUES(weft_of_tensor(weft_mul(weft_call_tape(call), a, b))));
    weft_future_unref(first);
    weft_future_unref(second);
    return WEFT_OK;
}

/* How x y is computed: here; by a call; by a call to oneself; elsewhere and fetched; from two values that were made
 * elsewhere; on a third worker from handles to two values that are here. */
typedef enum way { HERE, CALL, SELF, FETCHED, TWO_FETCHED, HANDLES, WAYS } way;

static weft_tensor *product(step *s, way how, weft_tensor *x, weft_tensor *y)
{
    int me = weft_agent_rank(s->agent), next = next_rank(s->agent);
    weft_args both = WEFT_VALUES(weft_of_tensor(x), weft_of_tensor(y));
    weft_rref *a = NULL, *b = NULL;
    weft_tensor *made = NULL, *ones = NULL;
    switch (how) {
    case HERE:
        return weft_mul(s->tape, x, y);
    case CALL:
        return step_call(s, next, "mul", both);
    case SELF:
        return step_call(s, me, "mul", both);
    case FETCHED:
        a = step_remote(s, next, "mul", both);
        made = step_fetch(s, a);
        break;
    case TWO_FETCHED:
        ones = tensor_full(weft_tensor_shape(x), weft_tensor_dtype(x), 1);
        a = step_remote(s, next, "mul", WEFT_VALUES(weft_of_tensor(x), weft_of_tensor(ones)));
        b = step_remote(s, (next + 1) % WORKERS, "mul", WEFT_VALUES(weft_of_tensor(ones), weft_of_tensor(y)));
        made = weft_mul(s->tape, step_fetch(s, a), step_fetch(s, b));
        weft_tensor_unref(ones);
        break;
    default:
        MUST_OK(weft_rref_create(s->agent, weft_of_tensor(x), &a, NULL));
        MUST_OK(weft_rref_create(s->agent, weft_of_tensor(y), &b, NULL));
        made = step_call(s, next, "mul fetched", WEFT_VALUES(weft_of_rref(a), weft_of_rref(b)));
        break;
    }
    weft_rref_unref(a);
    weft_rref_unref(b);
    return made;
}

static void as_on_one_tape(weft_agent *agent, void *arg)
{
    uint64_t seed = 10 * (uint64_t)weft_agent_rank(agent);
    weft_tensor *x = leaf_drawn(WEFT_SHAPE(3, 3), WEFT_DTYPE_FLOAT32, seed + 1);
    weft_tensor *y = leaf_drawn(WEFT_SHAPE(3, 3), WEFT_DTYPE_FLOAT32, seed + 2);
    weft_tape *t = weft_tape_open(&(weft_tape_options){.record = true});
    weft_backward(t, weft_sum(t, weft_exp(t, weft_mul(t, x, y))));
    MUST_OK(weft_tape_status(t));
    for (int how = HERE; how < WAYS; how++) {
        step s;
        step_open(&s, agent);
        step_backward(&s, weft_sum(s.tape, weft_exp(s.tape, product(&s, (way)how, x, y))), NULL);
        weft_tensor *dx = weft_context_ref_grad(s.context, x), *dy = weft_context_ref_grad(s.context, y);
        must_be_equal(dx, weft_tape_grad(t, x));
        must_be_equal(dy, weft_tape_grad(t, y));
        weft_tensor_unref(dx);
        weft_tensor_unref(dy);
        step_close(&s);
    }
    weft_tape_close(t);
    weft_tensor_unref(x);
    weft_tensor_unref(y);
    nothing_is_left(agent);
}

CONTEXT_ITEM(item_66_gradients_as_on_one_tape, .program = as_on_one_tape, ITEM_FUNCTIONS(functions))

/* ---- 67 ---------------------------------------------------------------------------------------------------------- */

static void train_once(weft_agent *agent, weft_rref *parameter)
{
    float me = (float)weft_agent_rank(agent);
    step s;
    step_open(&s, agent);
    weft_tensor *p = step_fetch(&s, parameter);
    step_backward(&s, weft_sum(s.tape, weft_scale(s.tape, weft_mul(s.tape, p, p), (double)me)), NULL);
    must_have_there(&s, 0, 2 * me * parameter_at(0, 0), 2 * me * parameter_at(0, 1));
    step_close(&s);
}

static weft_status serve_train(weft_call *call, void *user)
{
    train_once(weft_call_agent(call), weft_call_rref(call, 0));
    return WEFT_OK;
}

/* Rank 0 holds the parameter; trainers, each with a context of its own, find their own gradients there. */
static void trainers_and_server(weft_agent *agent, void *arg)
{
    if (weft_agent_rank(agent) == 0) {
        weft_future *futures[2 * WORKERS];
        weft_rref *parameter = NULL;
        int count = 0;
        MUST_OK(weft_rref_create(agent, weft_of_tensor(parameters[0]), &parameter, NULL));
        for (int round = 0; round < 2; round++)
            for (int rank = 0; rank < WORKERS; rank++)
                futures[count++] = start(agent, weft_to_rank(rank), "train", WEFT_VALUES(weft_of_rref(parameter)));
        for (int i = 0; i < count; i++) {
            MUST_OK(weft_future_wait(futures[i], WEFT_FOREVER));
            weft_future_unref(futures[i]);
        }
        weft_rref_unref(parameter);
    }
    nothing_is_left(agent);
}

CONTEXT_ITEM(item_67_two_contexts_one_parameter, .program = trainers_and_server, ITEM_FUNCTIONS(functions))

/* ---- 68 ---------------------------------------------------------------------------------------------------------- */

static weft_status serve_multiples(weft_call *call, void *user)
{
    weft_tape *t = weft_call_tape(call);
    weft_tensor *x = weft_call_tensor(call, 0);
    weft_tensor *all[] = {weft_scale(t, x, 1), weft_scale(t, x, 2), weft_scale(t, x, 3)};
    weft_call_give(call, WEFT_VALUES(weft_of_tensors((weft_tensors){all, 3})));
    return WEFT_OK;
}

static void round_trips(weft_agent *agent, weft_tensor *x)
{
    step s;
    step_open(&s, agent);
    weft_tensor *y = x;
    float p = 1, q = 1;
    for (int trip = 0, to = next_rank(agent); trip < 5; trip++, to = (to + 1) % WORKERS) {
        y = step_call(&s, to, "times", WEFT_VALUES(weft_of_tensor(y)));
        p *= parameter_at(to, 0);
        q *= parameter_at(to, 1);
    }
    step_backward(&s, weft_sum(s.tape, y), NULL);
    must_have(&s, x, p, q);
    step_close(&s);
}

/* Three roots at once, of which two share what they depend on, and one has a gradient that was given. */
static void several_roots(weft_agent *agent, weft_tensor *x)
{
    int next = next_rank(agent);
    int after = (next + 1) % WORKERS;
    weft_future *pass = NULL;
    step s;
    step_open(&s, agent);
    weft_tensor *y = step_call(&s, next, "times", WEFT_VALUES(weft_of_tensor(x)));
    weft_tensor *z = step_call(&s, after, "times", WEFT_VALUES(weft_of_tensor(y)));
    weft_tensor *given[] = {NULL, tensor_full(WEFT_SHAPE(2), WEFT_DTYPE_FLOAT32, 2), NULL};
    weft_tensor *roots[] = {weft_sum(s.tape, y), z, weft_sum(s.tape, weft_scale(s.tape, x, 10))};
    must_have_none(&s, next); /* a call that names the tape: what it recorded is visible now */
    const weft_pass_options how = {.gradients = {given, 3}};
    MUST_OK(weft_context_backward(s.context, (weft_tensors){roots, 3}, &how, &pass));
    MUST_OK(weft_future_wait(pass, WEFT_FOREVER));
    weft_future_unref(pass);
    float p = parameter_at(next, 0), q = parameter_at(next, 1);
    float u = 1 + 2 * parameter_at(after, 0), v = 1 + 2 * parameter_at(after, 1);
    must_have(&s, x, p * u + 10, q * v + 10);
    must_have_there(&s, next, 3 * u, 4 * v);
    must_have_there(&s, after, 2 * 3 * p, 2 * 4 * q);
    step_close(&s);
    weft_tensor_unref(given[1]);
}

/* Several tensors in one result, of which all are used, or one. */
static void several_results(weft_agent *agent, weft_tensor *x)
{
    for (int used = 0; used < 2; used++) {
        step s;
        weft_values *results = NULL;
        weft_tensors all = {0};
        step_open(&s, agent);
        MUST_OK(weft_rpc_sync(agent, weft_to_rank(next_rank(agent)), "multiples", WEFT_VALUES(weft_of_tensor(x)),
                              &(weft_rpc_options){.tape = s.tape}, &results));
        MUST_OK(weft_values_get_tensors(results, 0, &all));
        MUST(all.count == 3);
        weft_tensor *sum = used ? weft_add(s.tape, weft_add(s.tape, all.items[0], all.items[1]), all.items[2])
                                : weft_scale(s.tape, all.items[1], 1);
        step_backward(&s, weft_sum(s.tape, sum), NULL);
        must_have(&s, x, used ? 6 : 2, used ? 6 : 2);
        step_close(&s);
        weft_values_unref(results);
    }
}

/* Tensors that want gradients go there and come to nothing. */
static void tensors_without_use(weft_agent *agent, weft_tensor *x)
{
    int next = next_rank(agent);
    step s;
    weft_tensor *idle = leaf_of(1, 1);
    step_open(&s, agent);
    weft_tensor *sum = step_call_nth(&s, next, "three", WEFT_VALUES(weft_of_tensor(x)), 0);
    (void)step_call(&s, next, "three", WEFT_VALUES(weft_of_tensor(idle)));
    step_backward(&s, weft_sum(s.tape, sum), NULL);
    must_have(&s, x, 1, 1);
    MUST(!weft_context_ref_grad(s.context, idle));
    must_have_there(&s, next, 1, 1);
    step_close(&s);
    weft_tensor_unref(idle);
}

static void round_trips_and_roots(weft_agent *agent, void *arg)
{
    weft_tensor *x = leaf_of(3, 4);
    round_trips(agent, x);
    several_roots(agent, x);
    several_results(agent, x);
    tensors_without_use(agent, x);
    weft_tensor_unref(x);
    nothing_is_left(agent);
}

CONTEXT_ITEM(item_68_round_trips_roots_and_results, .program = round_trips_and_roots, ITEM_FUNCTIONS(functions))

/* ---- 69 ---------------------------------------------------------------------------------------------------------- */

/* A product of shapes that broadcast, of one dtype; either, or both, want a gradient. Compared with one tape. */
static void product_of(weft_agent *agent, weft_shape a_shape, weft_shape b_shape, weft_dtype dtype, int wants)
{
    weft_tensor *a = leaf_drawn(a_shape, dtype, 1), *b = leaf_drawn(b_shape, dtype, 2);
    weft_tensor_set_requires_grad(a, wants & 1);
    weft_tensor_set_requires_grad(b, wants & 2);
    weft_tape *t = weft_tape_open(&(weft_tape_options){.record = true});
    weft_backward(t, weft_sum(t, weft_exp(t, weft_mul(t, a, b))));
    MUST_OK(weft_tape_status(t));
    step s;
    step_open(&s, agent);
    weft_tensor *y = step_call(&s, next_rank(agent), "mul", WEFT_VALUES(weft_of_tensor(a), weft_of_tensor(b)));
    step_backward(&s, weft_sum(s.tape, weft_exp(s.tape, y)), NULL);
    for (int i = 0; i < 2; i++) {
        weft_tensor *leaf = i ? b : a, *gradient = weft_context_ref_grad(s.context, leaf);
        if (wants & (1 << i))
            must_be_equal(gradient, weft_tape_grad(t, leaf));
        else
            MUST(!gradient);
        weft_tensor_unref(gradient);
    }
    step_close(&s);
    weft_tape_close(t);
    weft_tensor_unref(a);
    weft_tensor_unref(b);
}

static void dtypes_and_shapes(weft_agent *agent, void *arg)
{
    for (int wants = 1; wants < 4; wants++) {
        product_of(agent, WEFT_SHAPE(4, 6), WEFT_SHAPE(4, 6), WEFT_DTYPE_FLOAT32, wants);
        product_of(agent, WEFT_SHAPE(4, 6), WEFT_SHAPE(4, 6), WEFT_DTYPE_FLOAT64, wants);
        product_of(agent, WEFT_SHAPE(4, 6), WEFT_SHAPE(6), WEFT_DTYPE_FLOAT32, wants);
        product_of(agent, WEFT_SCALAR, WEFT_SHAPE(2, 1, 3), WEFT_DTYPE_FLOAT64, wants);
        product_of(agent, WEFT_SHAPE(0, 5), WEFT_SHAPE(1, 5), WEFT_DTYPE_FLOAT32, wants);
        product_of(agent, WEFT_SHAPE(300, 400), WEFT_SHAPE(400), WEFT_DTYPE_FLOAT32,
                   wants); /* larger than one message */
    }
    /* Operators do not mix dtypes: the callee says so. */
    weft_tensor *a = leaf_drawn(WEFT_SHAPE(2), WEFT_DTYPE_FLOAT32, 1),
                *b = leaf_drawn(WEFT_SHAPE(2), WEFT_DTYPE_FLOAT64, 2);
    weft_error *error = NULL;
    step s;
    step_open(&s, agent);
    MUST_BE(weft_rpc_sync(agent, weft_to_rank(next_rank(agent)), "mul",
                          WEFT_VALUES(weft_of_tensor(a), weft_of_tensor(b)),
                          &(weft_rpc_options){.tape = s.tape, .error = &error}, NULL),
            WEFT_ERR_REMOTE);
    MUST_BE(weft_error_handler_code(error), WEFT_ERR_TYPE);
    MUST(says(error, "mul"));
    weft_error_unref(error);
    step_close(&s);
    weft_tensor_unref(a);
    weft_tensor_unref(b);
    nothing_is_left(agent);
}

CONTEXT_ITEM(item_69_dtypes_shapes_and_mixed_gradients, .program = dtypes_and_shapes, ITEM_FUNCTIONS(functions))

/* ---- 70 ---------------------------------------------------------------------------------------------------------- */

/* A result that the loss does not use, of a call that called on; and one that came after the loss. */
static void results_without_use(weft_agent *agent, void *arg)
{
    int me = weft_agent_rank(agent), next = next_rank(agent), after = (next + 1) % WORKERS;
    weft_tensor *x = leaf_of(3, 4);
    step s;
    step_open(&s, agent);
    weft_tensor *used = step_call(&s, next, "times", WEFT_VALUES(weft_of_tensor(x)));
    (void)step_call(&s, next, "times", WEFT_VALUES(weft_of_tensor(used)));
    (void)step_call(&s, after, "relay",
                    WEFT_VALUES(weft_of_tensor(x), weft_of_i64((after + 1) % WORKERS), weft_of_i64(WORKERS)));
    weft_rref *there = step_remote(&s, after, "times", WEFT_VALUES(weft_of_tensor(used)));
    weft_tensor *loss = weft_sum(s.tape, used);
    (void)step_call(&s, next, "times", WEFT_VALUES(weft_of_tensor(loss)));
    step_backward(&s, loss, NULL);
    must_have(&s, x, parameter_at(next, 0), parameter_at(next, 1));
    must_have_there(&s, next, 3, 4);
    must_have_none(&s, after);
    must_have_none(&s, me);
    weft_rref_unref(there);
    step_close(&s);
    weft_tensor_unref(x);
    nothing_is_left(agent);
}

CONTEXT_ITEM(item_70_results_that_are_not_used, .program = results_without_use, ITEM_FUNCTIONS(functions))

/* ---- 75 ---------------------------------------------------------------------------------------------------------- */

enum { HAMMERS = 20 };
static atomic_int hammered[WORKERS];

typedef struct hammer {
    weft_agent *agent;
    int number;
} hammer;

/* One step over rank 0, that calls on: to the hammering worker and back. */
static void hammer_once(const hammer *h)
{
    int me = weft_agent_rank(h->agent);
    weft_tensor *x = leaf_of((float)h->number + 1, 1);
    step s;
    step_open(&s, h->agent);
    weft_tensor *y = step_call(&s, 0, "relay", WEFT_VALUES(weft_of_tensor(x), weft_of_i64(me), weft_of_i64(1)));
    step_backward(&s, weft_sum(s.tape, weft_mul(s.tape, x, y)), NULL);
    float p = parameter_at(0, 0) * parameter_at(me, 0), q = parameter_at(0, 1) * parameter_at(me, 1);
    must_have(&s, x, 2 * p * ((float)h->number + 1), 2 * q);
    step_close(&s);
    weft_tensor_unref(x);
    atomic_fetch_add(&hammered[me], 1);
}

static void *hammer_thread(void *arg)
{
    hammer_once(arg);
    return NULL;
}

static void hammer_fiber(weft_sim *sim, int rank, void *arg)
{
    hammer_once(arg);
}

static void twenty_threads(weft_agent *agent, void *arg)
{
    int me = weft_agent_rank(agent);
    hammer all[HAMMERS];
    pthread_t threads[HAMMERS];
    atomic_store(&hammered[me], 0);
    for (int i = 0; me && i < HAMMERS; i++) {
        all[i] = (hammer){agent, i};
        if (item_sim())
            MUST_OK(weft_sim_spawn(item_sim(), me, hammer_fiber, &all[i]));
        else
            MUST(!pthread_create(&threads[i], NULL, hammer_thread, &all[i]));
    }
    if (me)
        item_await(&hammered[me], HAMMERS);
    for (int i = 0; me && !item_sim() && i < HAMMERS; i++)
        pthread_join(threads[i], NULL);
    nothing_is_left(agent);
}

CONTEXT_ITEM(item_75_twenty_threads_of_three_workers, .program = twenty_threads, ITEM_FUNCTIONS(functions))

/* ---- 76 ---------------------------------------------------------------------------------------------------------- */

/* Passes over different losses add up; so do a thousand over one, whose records are retained; and one that failed
 * adds nothing. */
static void passes_that_add_up(weft_agent *agent)
{
    enum { PASSES = 1000 };
    const weft_pass_options retain = {.retain = true};
    int next = next_rank(agent);
    float p = parameter_at(next, 0), q = parameter_at(next, 1);
    weft_tensor *x = leaf_of(3, 4);
    step s;
    step_open(&s, agent);
    weft_tensor *y = step_call(&s, next, "times", WEFT_VALUES(weft_of_tensor(x)));
    weft_tensor *loss = weft_sum(s.tape, y), *other = weft_sum(s.tape, weft_scale(s.tape, y, 2));
    step_backward(&s, loss, &retain);
    must_have(&s, x, p, q);
    weft_tensor *before = weft_context_ref_grad(s.context, x);
    step_backward(&s, other, &retain);
    must_have(&s, x, 3 * p, 3 * q);
    must_have_there(&s, next, 9, 12);
    must_be(before, p, q); /* what was asked for does not change */
    weft_tensor_unref(before);
    for (int i = 3; i < PASSES; i++)
        step_backward(&s, loss, &retain);
    must_have(&s, x, PASSES * p, PASSES * q);
    step_backward(&s, loss, NULL);
    weft_error *error = step_backward_fails(&s, loss, NULL, WEFT_ERR_STATE);
    weft_error_unref(error);
    must_have(&s, x, (PASSES + 1) * p, (PASSES + 1) * q);
    must_have_there(&s, next, 3 * (PASSES + 1), 4 * (PASSES + 1));
    step_close(&s);
    weft_tensor_unref(x);
    nothing_is_left(agent);
}

/* A pass that fails on one worker leaves nothing on any; the records are as they were. */
static void passes_after_failures(weft_agent *agent)
{
    const weft_pass_options retain = {.retain = true};
    if (weft_agent_rank(agent) == 0) {
        weft_tensor *x = leaf_of(3, 4);
        step s;
        step_open(&s, agent);
        weft_tensor *y = step_call(&s, 1, "times", WEFT_VALUES(weft_of_tensor(x)));
        weft_tensor *z = step_call(&s, 2, "broken", WEFT_VALUES(weft_of_tensor(y)));
        weft_tensor *loss = weft_sum(s.tape, step_call(&s, 3, "times", WEFT_VALUES(weft_of_tensor(z))));
        for (int round = 0; round < 10; round++) {
            atomic_store(&broken, true);
            weft_error_unref(step_backward_fails(&s, loss, &retain, WEFT_ERR_SYSTEM));
            if (!round)
                MUST(!weft_context_ref_grad(s.context, x));
            atomic_store(&broken, false);
            step_backward(&s, loss, &retain);
            float n = (float)round + 1, p = parameter_at(1, 0), q = parameter_at(1, 1);
            must_have(&s, x, n * p * parameter_at(3, 0), n * q * parameter_at(3, 1));
            must_have_there(&s, 1, n * 3 * parameter_at(3, 0), n * 4 * parameter_at(3, 1));
            await_there(&s, 3, n * 3 * p, n * 4 * q); /* it may have done its part before the failure */
        }
        step_close(&s);
        weft_tensor_unref(x);
    }
    nothing_is_left(agent);
}

static void several_passes(weft_agent *agent, void *arg)
{
    passes_that_add_up(agent);
    passes_after_failures(agent);
}

CONTEXT_ITEM(item_76_several_passes_also_after_errors, .program = several_passes, ITEM_FUNCTIONS(functions))

/* ---- 78 ---------------------------------------------------------------------------------------------------------- */

/* A function of two inputs that gives both one gradient, and remembers it. */
typedef struct given_gradient {
    const void *data;
} given_gradient;

static weft_status both_backward(void *state, weft_tensors saved, weft_tensors dy, const bool *wanted, weft_tensor **dx)
{
    given_gradient *given = state;
    weft_tensor *gradient = tensor_clone(dy.items[0]);
    given->data = weft_tensor_data(gradient);
    for (int i = 0; i < 2; i++)
        if (wanted[i])
            dx[i] = weft_tensor_ref(gradient);
    weft_tensor_unref(gradient);
    return WEFT_OK;
}

static weft_tensor *both(weft_tape *t, weft_tensor *a, weft_tensor *b, given_gradient *given)
{
    static const weft_operator op = {.name = "both", .backward = both_backward};
    weft_tensor *sum = tensor_clone(a), *out = NULL;
    weft_tape_record(t, &op, (weft_tensors){(weft_tensor *[]){a, b}, 2}, (weft_tensors){0}, given,
                     (weft_tensors){&sum, 1}, &out);
    weft_tensor_unref(sum);
    return out;
}

/* The gradient of a leaf lies where the operator put it: it is not copied. Where two leaves have one, what is added
 * to one is not to the other. */
static void gradients_are_not_copied(weft_agent *agent)
{
    const weft_pass_options retain = {.retain = true};
    int next = next_rank(agent);
    given_gradient given = {0};
    weft_tensor *a = leaf_of(1, 2), *b = leaf_of(3, 4);
    step s;
    step_open(&s, agent);
    weft_tensor *there = step_call(&s, next, "times", WEFT_VALUES(weft_of_tensor(both(s.tape, a, b, &given))));
    weft_tensor *more = step_call(&s, next, "times", WEFT_VALUES(weft_of_tensor(b)));
    weft_tensor *loss = weft_sum(s.tape, there), *of_b = weft_sum(s.tape, more);
    step_backward(&s, loss, &retain);
    weft_tensor *da = weft_context_ref_grad(s.context, a), *db = weft_context_ref_grad(s.context, b);
    MUST(given.data && weft_tensor_data(da) == given.data && weft_tensor_data(db) == given.data);
    step_backward(&s, of_b, NULL);
    float p = parameter_at(next, 0), q = parameter_at(next, 1);
    must_have(&s, a, p, q);
    must_have(&s, b, 2 * p, 2 * q);
    must_be(da, p, q);
    must_be(db, p, q);
    weft_tensor_unref(da);
    weft_tensor_unref(db);
    step_close(&s);
    weft_tensor_unref(a);
    weft_tensor_unref(b);
}

/* Of an embedding's rows alone, and asked for twice the same memory. */
static void sparse_gradients_are_not_copied(weft_agent *agent)
{
    int next = next_rank(agent);
    weft_tensor *weight = leaf_drawn(WEFT_SHAPE(100, 2), WEFT_DTYPE_FLOAT32, 1),
                *index = tensor_arange(1, WEFT_DTYPE_INT64);
    weft_gradient first, second;
    step s;
    step_open(&s, agent);
    weft_tensor *rows = weft_embedding(s.tape, weight, index, &(weft_embedding_options){.sparse = true});
    weft_tensor *y = step_call(&s, next, "times", WEFT_VALUES(weft_of_tensor(rows)));
    step_backward(&s, weft_sum(s.tape, y), NULL);
    MUST_OK(weft_context_ref_gradients(s.context, (weft_tensors){&weight, 1}, &first));
    MUST_OK(weft_context_ref_gradients(s.context, (weft_tensors){&weight, 1}, &second));
    MUST(first.rows && weft_tensor_numel(first.rows) == 1 && weft_tensor_get_i64(first.rows, 0) == 0);
    must_be(first.values, parameter_at(next, 0), parameter_at(next, 1));
    MUST(weft_tensor_data(first.values) == weft_tensor_data(second.values));
    MUST(weft_tensor_data(first.rows) == weft_tensor_data(second.rows));
    weft_context_drop_gradients(&first, 1);
    weft_context_drop_gradients(&second, 1);
    step_close(&s);
    weft_tensor_unref(weight);
    weft_tensor_unref(index);
}

static void no_copies(weft_agent *agent, void *arg)
{
    gradients_are_not_copied(agent);
    sparse_gradients_are_not_copied(agent);
    nothing_is_left(agent);
}

CONTEXT_ITEM(item_78_gradients_are_not_copied, .program = no_copies, ITEM_FUNCTIONS(functions))

UNIT_MAIN(item_66_gradients_as_on_one_tape, item_67_two_contexts_one_parameter, item_68_round_trips_roots_and_results,
          item_69_dtypes_shapes_and_mixed_gradients, item_70_results_that_are_not_used,
          item_75_twenty_threads_of_three_workers, item_76_several_passes_also_after_errors,
          item_78_gradients_are_not_copied)
