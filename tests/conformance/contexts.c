/* SPDX-License-Identifier: Apache-2.0 */
/* contexts.c - see contexts.h. */
#include "conformance/contexts.h"
#include "tensors.h"

#include <weft/context.h>
#include <weft/group.h>
#include <weft/operator.h>
#include <weft/ops.h>

/* ---- Parameters -------------------------------------------------------------------------------------------------- */

weft_tensor *parameters[WORKERS];
atomic_bool broken, hold_open;
atomic_int holding;

weft_tensor *leaf_of(float a, float b)
{
    weft_tensor *x = tensor_copy_of(WEFT_SHAPE(2), WEFT_DTYPE_FLOAT32, (float[]){a, b});
    weft_tensor_set_requires_grad(x, true);
    return x;
}

weft_tensor *leaf_drawn(weft_shape shape, weft_dtype dtype, uint64_t seed)
{
    weft_tensor *x = tensor_empty(shape, dtype);
    MUST_OK(weft_tensor_fill_uniform(x, seed, -2, 2));
    weft_tensor_set_requires_grad(x, true);
    return x;
}

float parameter_at(int rank, int index)
{
    return (float)(index ? rank - 5 : rank + 2);
}

void context_item_run(const item *what)
{
    for (int rank = 0; rank < WORKERS; rank++)
        parameters[rank] = leaf_of(parameter_at(rank, 0), parameter_at(rank, 1));
    item_run(what);
    for (int rank = 0; rank < WORKERS; rank++)
        weft_tensor_unref(parameters[rank]);
}

static weft_tensor *parameter_here(const weft_call *call)
{
    return parameters[weft_agent_rank(weft_call_agent(call))];
}

/* ---- Functions --------------------------------------------------------------------------------------------------- */

weft_status serve_times(weft_call *call, void *user)
{
    weft_tensor *y = weft_mul(weft_call_tape(call), parameter_here(call), weft_call_tensor(call, 0));
    weft_call_give(call, WEFT_VALUES(weft_of_tensor(y)));
    return WEFT_OK;
}

weft_status serve_mul(weft_call *call, void *user)
{
    weft_tensor *y = weft_mul(weft_call_tape(call), weft_call_tensor(call, 0), weft_call_tensor(call, 1));
    weft_call_give(call, WEFT_VALUES(weft_of_tensor(y)));
    return WEFT_OK;
}

weft_status serve_parameter(weft_call *call, void *user)
{
    weft_call_give(call, WEFT_VALUES(weft_of_tensor(parameter_here(call))));
    return WEFT_OK;
}

weft_status serve_three(weft_call *call, void *user)
{
    weft_tape *t = weft_call_tape(call);
    weft_tensor *x = weft_call_tensor(call, 0), *constant = tensor_zeros(WEFT_SHAPE(2), WEFT_DTYPE_FLOAT32);
    weft_call_give(call, WEFT_VALUES(weft_of_tensor(weft_add(t, parameter_here(call), x)),
                                     weft_of_tensor(weft_mul(t, parameter_here(call), x)), weft_of_tensor(constant)));
    weft_tensor_unref(constant);
    return WEFT_OK;
}

weft_status serve_relay(weft_call *call, void *user)
{
    weft_agent *agent = weft_call_agent(call);
    weft_tape *t = weft_call_tape(call);
    int64_t to = weft_call_i64(call, 1), hops = weft_call_i64(call, 2);
    weft_tensor *y = weft_mul(t, parameter_here(call), weft_call_tensor(call, 0));
    weft_values *results = NULL;
    if (!hops) {
        weft_call_give(call, WEFT_VALUES(weft_of_tensor(y)));
        return WEFT_OK;
    }
    weft_status status = weft_rpc_sync(
        agent, weft_to_rank((int)to), "relay",
        WEFT_VALUES(weft_of_tensor(y), weft_of_i64((to + 1) % weft_agent_world_size(agent)), weft_of_i64(hops - 1)),
        &(weft_rpc_options){.tape = t, .parent = call}, &results);
    if (!status) {
        weft_call_give(call, weft_values_args(results));
        weft_values_unref(results);
    }
    return status;
}

weft_status serve_gradient(weft_call *call, void *user)
{
    weft_tensor *gradient = weft_context_ref_grad(weft_tape_context(weft_call_tape(call)), parameter_here(call));
    weft_call_give(call, WEFT_VALUES(gradient ? weft_of_tensor(gradient) : weft_of_null()));
    weft_tensor_unref(gradient);
    return WEFT_OK;
}

static weft_status same_backward(void *state, weft_tensors saved, weft_tensors dy, const bool *wanted, weft_tensor **dx)
{
    (void)state, (void)saved;
    if (wanted[0])
        dx[0] = weft_tensor_ref(dy.items[0]);
    return WEFT_OK;
}

static weft_status broken_backward(void *state, weft_tensors saved, weft_tensors dy, const bool *wanted,
                                   weft_tensor **dx)
{
    return atomic_load(&broken) ? WEFT_ERR_SYSTEM : same_backward(state, saved, dy, wanted, dx);
}

static weft_status held_backward(void *state, weft_tensors saved, weft_tensors dy, const bool *wanted, weft_tensor **dx)
{
    atomic_fetch_add(&holding, 1);
    for (int ms = 0; ms < ITEM_PATIENCE_MS && !atomic_load(&hold_open); ms++)
        item_sleep_ms(1);
    atomic_fetch_sub(&holding, 1);
    return same_backward(state, saved, dy, wanted, dx);
}

/* x, as `op` gives it. */
static void give_through(weft_call *call, const weft_operator *op)
{
    weft_tensor *x = weft_call_tensor(call, 0), *y = tensor_clone(x), *out = NULL;
    weft_tape_record(weft_call_tape(call), op, (weft_tensors){&x, 1}, (weft_tensors){0}, NULL, (weft_tensors){&y, 1},
                     &out);
    weft_call_give(call, WEFT_VALUES(weft_of_tensor(out)));
    weft_tensor_unref(y);
}

weft_status serve_broken(weft_call *call, void *user)
{
    static const weft_operator op = {.name = "broken_pipe", .backward = broken_backward};
    give_through(call, &op);
    return WEFT_OK;
}

weft_status serve_held(weft_call *call, void *user)
{
    static const weft_operator op = {.name = "held", .backward = held_backward};
    give_through(call, &op);
    return WEFT_OK;
}

weft_status serve_graph(weft_call *call, void *user)
{
    char text[1024] = "";
    if (weft_tape_context(weft_call_tape(call)))
        graph_text(weft_tape_context(weft_call_tape(call)), text, sizeof(text));
    weft_call_give(call, WEFT_VALUES(weft_of_string(text)));
    return WEFT_OK;
}

weft_status serve_here(weft_call *call, void *user)
{
    size_t passes, contexts = weft_agent_contexts(weft_call_agent(call), &passes);
    weft_call_give(call, WEFT_VALUES(weft_of_i64((int64_t)contexts), weft_of_i64((int64_t)passes)));
    return WEFT_OK;
}

/* ---- Steps ------------------------------------------------------------------------------------------------------- */

void step_open(step *s, weft_agent *agent)
{
    *s = (step){.agent = agent};
    MUST_OK(weft_context_open(agent, &s->context, NULL));
    s->tape = weft_context_tape(s->context, NULL);
    MUST(s->tape);
}

static weft_tensor *keep(step *s, weft_values *results, size_t index)
{
    weft_tensor *tensor = NULL;
    MUST(s->count < STEP_CALLS);
    s->kept[s->count++] = results;
    MUST_OK(weft_values_get_tensor(results, index, &tensor));
    return tensor;
}

weft_tensor *step_call_nth(step *s, int rank, const char *function, weft_args args, size_t index)
{
    weft_values *results = NULL;
    weft_error *error = NULL;
    weft_status status = weft_rpc_sync(s->agent, weft_to_rank(rank), function, args,
                                       &(weft_rpc_options){.tape = s->tape, .error = &error}, &results);
    if (status)
        weft_error_print(error, stderr);
    MUST_OK(status);
    return keep(s, results, index);
}

weft_tensor *step_call(step *s, int rank, const char *function, weft_args args)
{
    return step_call_nth(s, rank, function, args, 0);
}

weft_rref *step_remote(step *s, int rank, const char *function, weft_args args)
{
    weft_rref *rref = NULL;
    MUST_OK(weft_rpc_remote(s->agent, weft_to_rank(rank), function, args, &(weft_rpc_options){.tape = s->tape}, &rref));
    return rref;
}

weft_tensor *step_fetch(step *s, weft_rref *rref)
{
    weft_future *fetched = NULL;
    MUST_OK(weft_rref_fetch(rref, &(weft_rpc_options){.tape = s->tape}, &fetched));
    MUST_OK(weft_future_wait(fetched, WEFT_FOREVER));
    weft_tensor *tensor = keep(s, weft_values_ref((weft_values *)weft_future_values(fetched)), 0);
    weft_future_unref(fetched);
    return tensor;
}

void step_backward(step *s, weft_tensor *loss, const weft_pass_options *options)
{
    weft_dist_backward(s->tape, loss, options);
    if (weft_tape_status(s->tape))
        weft_error_print(weft_tape_error(s->tape), stderr);
    MUST_OK(weft_tape_status(s->tape));
}

weft_error *step_backward_fails(step *s, weft_tensor *loss, const weft_pass_options *options, weft_status status)
{
    weft_tape *t = weft_context_tape(s->context, NULL);
    /* What the other tape has recorded becomes visible by a call that names it. */
    MUST_OK(weft_rpc_sync(s->agent, weft_to_rank(weft_agent_rank(s->agent)), "here", WEFT_NO_VALUES,
                          &(weft_rpc_options){.tape = s->tape}, NULL));
    weft_dist_backward(t, loss, options);
    MUST_BE(weft_tape_status(t), status);
    weft_error *error = weft_error_ref((weft_error *)weft_tape_error(t));
    weft_tape_close(t);
    return error;
}

void step_close(step *s)
{
    weft_future *gone = NULL;
    for (size_t i = 0; i < s->count; i++)
        weft_values_unref(s->kept[i]);
    weft_tape_close(s->tape);
    weft_context_close(s->context, &gone);
    MUST_OK(weft_future_wait(gone, WEFT_FOREVER));
    weft_future_unref(gone);
}

/* ---- Looking ----------------------------------------------------------------------------------------------------- */

void must_be(const weft_tensor *tensor, float a, float b)
{
    const float *values = tensor ? weft_tensor_data(tensor) : NULL;
    if (values && (values[0] != a || values[1] != b))
        fprintf(stderr, "%g %g, not %g %g\n", (double)values[0], (double)values[1], (double)a, (double)b);
    MUST(values && values[0] == a && values[1] == b);
}

void must_be_equal(const weft_tensor *a, const weft_tensor *b)
{
    MUST(a && b && weft_tensor_dtype(a) == weft_tensor_dtype(b) && weft_tensor_same_shape(a, b));
    MUST(!memcmp(weft_tensor_data(a), weft_tensor_data(b), weft_tensor_nbytes(a)));
}

void must_have(const step *s, const weft_tensor *leaf, float a, float b)
{
    weft_tensor *gradient = weft_context_ref_grad(s->context, leaf);
    must_be(gradient, a, b);
    weft_tensor_unref(gradient);
}

static weft_values *gradient_there(step *s, int rank)
{
    weft_values *results = NULL;
    MUST_OK(weft_rpc_sync(s->agent, weft_to_rank(rank), "gradient", WEFT_NO_VALUES,
                          &(weft_rpc_options){.tape = s->tape}, &results));
    return results;
}

void must_have_there(step *s, int rank, float a, float b)
{
    weft_values *results = gradient_there(s, rank);
    weft_tensor *gradient = NULL;
    MUST_OK(weft_values_get_tensor(results, 0, &gradient));
    must_be(gradient, a, b);
    weft_values_unref(results);
}

void must_have_none(step *s, int rank)
{
    weft_values *results = gradient_there(s, rank);
    MUST(weft_values_type(results, 0) == WEFT_TYPE_NULL);
    weft_values_unref(results);
}

static bool has_there(step *s, int rank, float a, float b)
{
    weft_values *results = gradient_there(s, rank);
    weft_tensor *gradient = NULL;
    bool none = weft_values_type(results, 0) == WEFT_TYPE_NULL;
    if (!none)
        MUST_OK(weft_values_get_tensor(results, 0, &gradient));
    bool is = none ? a == 0 && b == 0
                   : weft_tensor_get_f64(gradient, 0) == (double)a && weft_tensor_get_f64(gradient, 1) == (double)b;
    weft_values_unref(results);
    return is;
}

void await_there(step *s, int rank, float a, float b)
{
    bool is = has_there(s, rank, a, b);
    for (int ms = 0; ms < ITEM_PATIENCE_MS && !is; ms++) {
        item_sleep_ms(1);
        is = has_there(s, rank, a, b);
    }
    MUST(is);
}

void nothing_is_left(weft_agent *agent)
{
    weft_group *all = NULL;
    size_t passes = 1;
    MUST_OK(weft_group_open(agent, "nothing-is-left", NULL, 0, 0, &all, NULL));
    MUST_OK(weft_group_barrier(all, WEFT_FOREVER));
    size_t contexts = weft_agent_contexts(agent, &passes);
    if (contexts || passes)
        fprintf(stderr, "rank %d has %zu contexts, %zu passes\n", weft_agent_rank(agent), contexts, passes);
    MUST(contexts == 0 && passes == 0);
    MUST_OK(weft_group_barrier(all, WEFT_FOREVER)); /* nobody goes on before all have looked */
    weft_group_close(all);
}
