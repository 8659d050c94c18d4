/* SPDX-License-Identifier: Apache-2.0 */
/* test_conformance_contexts.c - items 59 to 65: the names, graphs and ends of contexts. */
#include "conformance/contexts.h"
#include "tensors.h"

#include <weft/ops.h>

static weft_status serve_whose(weft_call *call, void *user);
static weft_status serve_whose_next(weft_call *call, void *user);
static weft_status serve_weighted(weft_call *call, void *user);
static weft_status serve_call_and_fail(weft_call *call, void *user);

static const weft_function functions[] = {
    CONTEXT_FUNCTIONS,
    {.name = "whose", .gives = {WEFT_TYPE_I64, WEFT_TYPE_I64}, .run = serve_whose},
    {.name = "whose next", .gives = {WEFT_TYPE_I64, WEFT_TYPE_I64}, .run = serve_whose_next},
    {.name = "weighted", .takes = {WEFT_TYPE_LIST}, .gives = {WEFT_TYPE_TENSOR}, .run = serve_weighted},
    {.name = "call and fail", .takes = {WEFT_TYPE_TENSOR, WEFT_TYPE_I64}, .run = serve_call_and_fail},
};

/* ---- 59 ---------------------------------------------------------------------------------------------------------- */

static void two_hundred_contexts(weft_agent *agent, void *arg)
{
    enum { MANY = 200 };
    weft_context *contexts[MANY];
    weft_context_id last = {0};
    for (int i = 0; i < MANY; i++) {
        MUST_OK(weft_context_open(agent, &contexts[i], NULL));
        weft_context_id id = weft_context_get_id(contexts[i]);
        MUST((int)id.rank == weft_agent_rank(agent) && id.incarnation && id.number > last.number);
        MUST(!last.number || id.incarnation == last.incarnation);
        last = id;
        MUST(weft_agent_contexts(agent, NULL) == (size_t)i + 1);
    }
    for (int i = 0; i < MANY; i++)
        weft_context_close(contexts[i], NULL);
    nothing_is_left(agent);
}

CONTEXT_ITEM(item_59_two_hundred_contexts, .program = two_hundred_contexts, ITEM_FUNCTIONS(functions))

/* ---- 60 ---------------------------------------------------------------------------------------------------------- */

/* () -> rank and number of the context that the call is under; rank -1: none */
static weft_status serve_whose(weft_call *call, void *user)
{
    weft_context *context = weft_tape_context(weft_call_tape(call));
    weft_context_id id = weft_context_get_id(context);
    weft_call_give(call, WEFT_VALUES(weft_of_i64(context ? (int64_t)id.rank : -1), weft_of_i64((int64_t)id.number)));
    return WEFT_OK;
}

/* () -> what "whose" of the next worker says, called without a tape: a context is passed on by its tape only */
static weft_status serve_whose_next(weft_call *call, void *user)
{
    weft_agent *agent = weft_call_agent(call);
    weft_values *results = NULL;
    weft_status status = weft_rpc_sync(agent, weft_to_rank(next_rank(agent)), "whose", WEFT_NO_VALUES,
                                       &(weft_rpc_options){.parent = call}, &results);
    if (!status)
        weft_call_give(call, weft_values_args(results));
    weft_values_unref(results);
    return status;
}

static void must_be_under(weft_agent *agent, const char *function, weft_tape *tape, int64_t rank, uint64_t number)
{
    weft_values *results = NULL;
    int64_t is[2] = {0};
    MUST_OK(weft_rpc_sync(agent, weft_to_rank(next_rank(agent)), function, WEFT_NO_VALUES,
                          &(weft_rpc_options){.tape = tape}, &results));
    for (size_t i = 0; i < 2; i++)
        MUST_OK(weft_values_get_i64(results, i, &is[i]));
    MUST(is[0] == rank && is[1] == (int64_t)number);
    weft_values_unref(results);
}

/* Two contexts at once on one thread: a call is under that of its tape, and a call without a tape is under none. */
static void contexts_in_contexts(weft_agent *agent, void *arg)
{
    int me = weft_agent_rank(agent), next = next_rank(agent);
    float p = parameter_at(next, 0), q = parameter_at(next, 1);
    step outer, inner;
    step_open(&outer, agent);
    step_open(&inner, agent);
    uint64_t first = weft_context_get_id(outer.context).number, second = weft_context_get_id(inner.context).number;
    MUST(first != second);
    must_be_under(agent, "whose", outer.tape, me, first);
    must_be_under(agent, "whose", inner.tape, me, second);
    must_be_under(agent, "whose", NULL, -1, 0);
    must_be_under(agent, "whose next", outer.tape, -1, 0);
    weft_tensor *x = leaf_of(3, 4);
    weft_tensor *y = step_call(&outer, next, "times", WEFT_VALUES(weft_of_tensor(x)));
    /* What was recorded under another context is a constant. */
    weft_tensor *z = step_call(&inner, next, "times", WEFT_VALUES(weft_of_tensor(y)));
    step_backward(&inner, weft_sum(inner.tape, z), NULL);
    MUST(!weft_context_ref_grad(inner.context, x) && !weft_context_ref_grad(outer.context, x));
    must_have_there(&inner, next, 3 * p, 4 * q);
    must_have_none(&outer, next);
    step_close(&inner);
    step_backward(&outer, weft_sum(outer.tape, y), NULL);
    must_have(&outer, x, p, q);
    must_have_there(&outer, next, 3, 4);
    step_close(&outer);
    weft_tensor_unref(x);
    nothing_is_left(agent);
}

CONTEXT_ITEM(item_60_contexts_belong_to_no_thread, .program = contexts_in_contexts, ITEM_FUNCTIONS(functions))

/* ---- 61 ---------------------------------------------------------------------------------------------------------- */

static void must_read(const char *is, const char *wanted)
{
    if (strcmp(is, wanted) != 0)
        fprintf(stderr, "the graph is \"%s\", not \"%s\"\n", is, wanted);
    MUST(!strcmp(is, wanted));
}

static void graph_here_is(const step *s, const char *wanted)
{
    char text[1024];
    graph_text(s->context, text, sizeof(text));
    must_read(text, wanted);
}

static void graph_there_is(step *s, int rank, const char *wanted)
{
    weft_values *results = NULL;
    const char *text = NULL;
    MUST_OK(weft_rpc_sync(s->agent, weft_to_rank(rank), "graph", WEFT_NO_VALUES, &(weft_rpc_options){.tape = s->tape},
                          &results));
    MUST_OK(weft_values_get_string(results, 0, &text));
    must_read(text, wanted);
    weft_values_unref(results);
}

static void record_is(const step *s, const weft_tensor *made, const char *wanted)
{
    char text[1024];
    record_text(s->context, made, text, sizeof(text));
    must_read(text, wanted);
}

/* With a call, or with what stays there and is fetched. */
static void graph_of_one(weft_agent *agent, weft_tensor *x, bool remote)
{
    step s;
    step_open(&s, agent);
    weft_rref *there = remote ? step_remote(&s, 1, "times", WEFT_VALUES(weft_of_tensor(x))) : NULL;
    weft_tensor *y = there ? step_fetch(&s, there) : step_call(&s, 1, "times", WEFT_VALUES(weft_of_tensor(x)));
    weft_tensor *loss = weft_sum(s.tape, weft_scale(s.tape, y, 2));
    graph_here_is(&s, "-> 1: leaf");
    graph_there_is(&s, 1, "-> 0: mul(leaf, 0/1)");
    record_is(&s, loss, "sum(scale(1/1))");
    weft_rref_unref(there);
    step_close(&s);
}

/* 0 calls 1, which calls 2, or 0 again. */
static void graph_of_nested(weft_agent *agent, weft_tensor *x, int to, const char *here, const char *at_1,
                            const char *at_2)
{
    step s;
    step_open(&s, agent);
    weft_tensor *y = step_call(&s, 1, "relay", WEFT_VALUES(weft_of_tensor(x), weft_of_i64(to), weft_of_i64(1)));
    record_is(&s, y, "1/2"); /* the second that 1 sent: the first went on */
    graph_here_is(&s, here);
    graph_there_is(&s, 1, at_1);
    if (at_2)
        graph_there_is(&s, 2, at_2);
    step_close(&s);
}

/* 0 calls itself: one graph, and nothing is sent. */
static void graph_of_self(weft_agent *agent, weft_tensor *x)
{
    step s;
    step_open(&s, agent);
    weft_tensor *y = step_call(&s, 0, "times", WEFT_VALUES(weft_of_tensor(x)));
    record_is(&s, y, "mul(leaf, leaf)");
    graph_here_is(&s, "");
    step_close(&s);
}

static void graphs(weft_agent *agent, void *arg)
{
    if (weft_agent_rank(agent) == 0) {
        weft_tensor *x = leaf_of(3, 4);
        graph_of_one(agent, x, false);
        graph_of_one(agent, x, true);
        graph_of_nested(agent, x, 2, "-> 1: leaf", "-> 2: mul(leaf, 0/1); -> 0: 2/1", "-> 1: mul(leaf, 1/1)");
        graph_of_nested(agent, x, 0, "-> 1: leaf; -> 1: mul(leaf, 1/1)", "-> 0: mul(leaf, 0/1); -> 0: 0/2", NULL);
        graph_of_self(agent, x);
        weft_tensor_unref(x);
    }
    nothing_is_left(agent);
}

CONTEXT_ITEM(item_61_graphs_of_calls, .program = graphs, ITEM_FUNCTIONS(functions))

/* ---- 62 ---------------------------------------------------------------------------------------------------------- */

/* What wants no gradient is passed and not linked; a result that wants one is linked all the same. */
static void only_what_wants_gradients(weft_agent *agent, void *arg)
{
    int next = next_rank(agent);
    step s;
    step_open(&s, agent);
    weft_tensor *a = leaf_of(3, 4), *b = leaf_of(5, 6);
    weft_tensor_set_requires_grad(a, false);
    weft_tensor_set_requires_grad(b, false);
    weft_tensor *y = step_call(&s, next, "mul", WEFT_VALUES(weft_of_tensor(a), weft_of_tensor(b)));
    must_be(y, 15, 24);
    MUST(!weft_tensor_requires_grad(y));
    graph_here_is(&s, "");
    weft_error *error = step_backward_fails(&s, y, NULL, WEFT_ERR_INVALID);
    MUST(says(error, "depends on nothing that wants a gradient"));
    weft_error_unref(error);
    weft_tensor *p = step_call(&s, next, "parameter", WEFT_NO_VALUES);
    graph_here_is(&s, "");
    step_backward(&s, weft_sum(s.tape, weft_mul(s.tape, p, a)), NULL);
    must_have_there(&s, next, 3, 4);
    MUST(!weft_context_ref_grad(s.context, a));
    step_close(&s);
    weft_tensor_unref(a);
    weft_tensor_unref(b);
    nothing_is_left(agent);
}

CONTEXT_ITEM(item_62_no_graph_without_gradients, .program = only_what_wants_gradients, ITEM_FUNCTIONS(functions))

/* ---- 63 ---------------------------------------------------------------------------------------------------------- */

/* (list) -> the sum of its float32 tensors, which stand at any depth of two, each weighted by its place */
static weft_tensor *add_weighted(weft_tape *t, weft_args list, weft_tensor *sum, int *place)
{
    for (size_t i = 0; i < list.count; i++) {
        const weft_value *v = &list.items[i];
        if (v->type == WEFT_TYPE_LIST)
            sum = add_weighted(t, v->as.list, sum, place);
        for (size_t n = 0; v->type == WEFT_TYPE_TENSORS && n < v->as.tensors.count; n++) {
            weft_tensor *part = weft_scale(t, v->as.tensors.items[n], ++*place);
            sum = sum ? weft_add(t, sum, part) : part;
        }
        if (v->type == WEFT_TYPE_TENSOR && weft_tensor_dtype(v->as.tensor) == WEFT_DTYPE_FLOAT32) {
            weft_tensor *part = weft_scale(t, v->as.tensor, ++*place);
            sum = sum ? weft_add(t, sum, part) : part;
        }
    }
    return sum;
}

static weft_status serve_weighted(weft_call *call, void *user)
{
    int place = 0;
    weft_tensor *sum = add_weighted(weft_call_tape(call), weft_call_list(call, 0), NULL, &place);
    weft_call_give(call, WEFT_VALUES(weft_of_tensor(sum)));
    return WEFT_OK;
}

static void complex_arguments(weft_agent *agent, void *arg)
{
    int next = next_rank(agent), me = weft_agent_rank(agent);
    char wanted[96];
    step s;
    step_open(&s, agent);
    weft_tensor *leaves[6], *index = tensor_arange(2, WEFT_DTYPE_INT64);
    for (int i = 0; i < 6; i++) {
        leaves[i] = leaf_of((float)i, 1);
        weft_tensor_set_requires_grad(leaves[i], i % 2 == 0);
    }
    const weft_value inner[] = {weft_of_tensor(leaves[2]), weft_of_tensor(index), weft_of_string("x"),
                                weft_of_tensors((weft_tensors){leaves + 3, 2})};
    const weft_value outer[] = {weft_of_tensor(leaves[0]), weft_of_f64(7), weft_of_tensor(leaves[1]),
                                weft_of_list((weft_args){inner, 4}), weft_of_tensor(leaves[5])};
    weft_tensor *y = step_call(&s, next, "weighted", WEFT_VALUES(weft_of_list((weft_args){outer, 5})));
    must_be(y, 0 + 2 + 6 + 12 + 20 + 30, 21);
    snprintf(wanted, sizeof(wanted), "-> %d: leaf; -> %d: leaf; -> %d: leaf", next, next, next);
    graph_here_is(&s, wanted);
    MUST(next != me);
    step_backward(&s, weft_sum(s.tape, y), NULL);
    for (int i = 0; i < 6; i++) {
        if (i % 2)
            MUST(!weft_context_ref_grad(s.context, leaves[i]));
        else
            must_have(&s, leaves[i], (float)i + 1, (float)i + 1);
        weft_tensor_unref(leaves[i]);
    }
    step_close(&s);
    weft_tensor_unref(index);
    nothing_is_left(agent);
}

CONTEXT_ITEM(item_63_tensors_in_nested_arguments, .program = complex_arguments, ITEM_FUNCTIONS(functions))

/* ---- 64 ---------------------------------------------------------------------------------------------------------- */

static int64_t contexts_at(weft_agent *agent, int rank)
{
    weft_values *results = NULL;
    int64_t count = -1;
    MUST_OK(weft_rpc_sync(agent, weft_to_rank(rank), "here", WEFT_NO_VALUES, NULL, &results));
    MUST_OK(weft_values_get_i64(results, 0, &count));
    weft_values_unref(results);
    return count;
}

/* Those that a call under the context came to have something of it, whether or not a tensor was linked; all of them
 * let go. */
static void who_takes_part(weft_agent *agent, void *arg)
{
    if (weft_agent_rank(agent) == 0) {
        weft_tensor *x = leaf_of(3, 4);
        for (int linked = 0; linked < 2; linked++) {
            step s;
            step_open(&s, agent);
            weft_tensor_set_requires_grad(x, linked);
            (void)step_call(&s, 1, "mul", WEFT_VALUES(weft_of_tensor(x), weft_of_tensor(x)));
            MUST(contexts_at(agent, 1) == 1 && contexts_at(agent, 2) == 0 && contexts_at(agent, 3) == 0);
            (void)step_call(&s, 1, "relay", WEFT_VALUES(weft_of_tensor(x), weft_of_i64(2), weft_of_i64(1)));
            MUST(contexts_at(agent, 1) == 1 && contexts_at(agent, 2) == 1 && contexts_at(agent, 3) == 0);
            step_close(&s);
            for (int rank = 0; rank < WORKERS; rank++)
                MUST(contexts_at(agent, rank) == 0);
        }
        weft_tensor_unref(x);
    }
    nothing_is_left(agent);
}

CONTEXT_ITEM(item_64_who_takes_part_is_known, .program = who_takes_part, ITEM_FUNCTIONS(functions))

/* ---- 65 ---------------------------------------------------------------------------------------------------------- */

/* (x, to): calls "times" of `to` under the context, and fails. */
static weft_status serve_call_and_fail(weft_call *call, void *user)
{
    weft_status status = weft_rpc_sync(weft_call_agent(call), weft_to_rank((int)weft_call_i64(call, 1)), "times",
                                       WEFT_VALUES(weft_of_tensor(weft_call_tensor(call, 0))),
                                       &(weft_rpc_options){.tape = weft_call_tape(call), .parent = call}, NULL);
    if (status)
        return status;
    weft_call_fail(call, WEFT_ERR_FORMAT, "failed after a call");
    return WEFT_ERR_FORMAT;
}

/* A context ends on all workers: called directly, by others, by a call that failed, by one that was given up; and
 * over links that break. */
static void ends_of_contexts(weft_agent *agent, void *arg)
{
    if (weft_agent_rank(agent) == 0) {
        weft_tensor *x = leaf_of(3, 4);
        for (int round = 0; round < 4; round++) {
            weft_error *error = NULL;
            step s;
            step_open(&s, agent);
            weft_tensor *y =
                step_call(&s, 1, "relay", WEFT_VALUES(weft_of_tensor(x), weft_of_i64(2), weft_of_i64(WORKERS)));
            MUST_BE(weft_rpc_sync(agent, weft_to_rank(2), "call and fail",
                                  WEFT_VALUES(weft_of_tensor(x), weft_of_i64(3)),
                                  &(weft_rpc_options){.tape = s.tape, .error = &error}, NULL),
                    WEFT_ERR_REMOTE);
            MUST_BE(weft_error_handler_code(error), WEFT_ERR_FORMAT);
            weft_error_unref(error);
            if (round % 2)
                step_backward(&s, weft_sum(s.tape, y), NULL);
            for (int rank = 1; item_sim() && round >= 2 && rank < WORKERS; rank++)
                weft_sim_reset_link(item_sim(), 0, rank);
            for (int rank = 1; rank < WORKERS; rank++)
                MUST(contexts_at(agent, rank) == 1);
            for (int rank = 1; item_sim() && round >= 2 && rank < WORKERS; rank++)
                weft_sim_reset_link(item_sim(), 0, rank);
            step_close(&s);
            for (int rank = 0; rank < WORKERS; rank++)
                MUST(contexts_at(agent, rank) == 0);
        }
        weft_tensor_unref(x);
    }
    nothing_is_left(agent);
}

CONTEXT_ITEM(item_65_contexts_end_everywhere, .program = ends_of_contexts, ITEM_FUNCTIONS(functions))

UNIT_MAIN(item_59_two_hundred_contexts, item_60_contexts_belong_to_no_thread, item_61_graphs_of_calls,
          item_62_no_graph_without_gradients, item_63_tensors_in_nested_arguments, item_64_who_takes_part_is_known,
          item_65_contexts_end_everywhere)
