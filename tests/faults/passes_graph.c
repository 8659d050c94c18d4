/* SPDX-License-Identifier: Apache-2.0 */
/*
 * passes_graph.c - computations spread over workers. A node combines its input with parameters of its worker, and with
 * the results of nodes on other workers, which it calls one after the other or all at once. The seed decides
 * everything, so the same code makes the whole computation on one tape, where a call is a call in C.
 */
#include "faults/passes.h"

#include "rpc/must.h"
#include "prng.h"
#include "tensors.h"

#include <stdlib.h>

#define CHILDREN_MOST 3

static weft_tensor *own[2][PARAMETERS]; /* integers, fractions */

/* ---- Parameters -------------------------------------------------------------------------------------------------- */

weft_tensor *graph_parameter(int rank, int k, bool fractions)
{
    weft_tensor *p = tensor_empty(WEFT_SHAPE(COLUMNS), WEFT_DTYPE_FLOAT64);
    MUST(p);
    double *data = weft_tensor_data(p);
    for (int i = 0; i < COLUMNS; i++) {
        data[i] = 1 + (rank * 3 + k + i) % 3;
        if (fractions)
            data[i] /= 7 + rank + i;
    }
    weft_tensor_set_requires_grad(p, true);
    return p;
}

weft_tensor *graph_own(int k, bool fractions)
{
    return own[fractions][k];
}

void graph_begin(void)
{
    for (int k = 0; k < PARAMETERS; k++) {
        own[0][k] = graph_parameter(self.rank, k, false);
        own[1][k] = graph_parameter(self.rank, k, true);
    }
}

void graph_end(void)
{
    for (int k = 0; k < PARAMETERS; k++) {
        weft_tensor_unref(own[0][k]);
        weft_tensor_unref(own[1][k]);
    }
}

weft_tensor *graph_input(const graph *g)
{
    weft_tensor *x = tensor_empty(WEFT_SHAPE(g->rows, COLUMNS), WEFT_DTYPE_FLOAT64);
    MUST(x);
    double *data = weft_tensor_data(x);
    for (int64_t i = 0; i < g->rows * COLUMNS; i++)
        data[i] = (double)(i % 5 - 2) / (g->fractions ? (double)(3 + i % 11) : 1);
    return x;
}

/* ---- One node ---------------------------------------------------------------------------------------------------- */

/* Where a node runs. */
typedef struct place {
    const graph *g;
    weft_agent *agent;
    weft_tape *tape;
    int rank;
    const weft_call *parent;        /* of the call that runs the node here; NULL: the origin */
    weft_tensor *const *parameters; /* of all ranks, on one tape; NULL: by calls */
    weft_error **error;             /* receives the first failure of a call */
} place;

static weft_tensor *run_node(const place *p, uint64_t seed, int depth, weft_tensor *x);

static weft_tensor *parameter_of(const place *p, uint64_t chance)
{
    int k = (int)(chance % PARAMETERS);
    return p->parameters ? p->parameters[p->rank * PARAMETERS + k] : own[p->g->fractions][k];
}

static int choose_rank(const graph *g, uint64_t chance)
{
    MUST(g->ranks & ((1U << SEATS_MOST) - 1));
    int rank = (int)(chance % SEATS_MOST);
    while (!(g->ranks >> rank & 1))
        rank = (rank + 1) % SEATS_MOST;
    return rank;
}

/* How a branch of the graph gets its input, and where. */
typedef struct branch {
    uint64_t seed;
    int rank;
    bool transposed; /* the input goes as a tensor that is not contiguous */
    bool unused;     /* nobody uses the result */
} branch;

static branch choose_branch(const place *p, uint64_t seed, unsigned i)
{
    uint64_t chance = prng_mix(seed + 31 + i);
    return (branch){.seed = prng_mix(chance),
                    .rank = choose_rank(p->g, chance),
                    .transposed = chance >> 8 & 1,
                    .unused = (chance >> 9 & 15) == 0};
}

/* The same sum on both ways, so that both give the same bits. */
static weft_tensor *add_result(const place *p, const branch *c, weft_tensor *v, weft_tensor *result)
{
    return c->unused ? v : weft_add(p->tape, v, weft_scale(p->tape, result, 1 + (double)(c->seed % 2)));
}

static weft_tensor *run_branches_here(const place *p, uint64_t seed, int depth, unsigned count, weft_tensor *v)
{
    weft_tensor *results[CHILDREN_MOST];
    for (unsigned i = 0; i < count; i++) {
        branch c = choose_branch(p, seed, i);
        place there = *p;
        there.rank = c.rank;
        results[i] = run_node(&there, c.seed, depth + 1, v);
    }
    weft_tensor *sum = v;
    for (unsigned i = 0; i < count; i++) {
        branch c = choose_branch(p, seed, i);
        sum = add_result(p, &c, sum, results[i]);
    }
    return sum;
}

static void keep_first_error(const place *p, const weft_error *error)
{
    if (!*p->error)
        *p->error = weft_error_ref(error);
}

static weft_status call_branch(const place *p, const branch *c, int depth, weft_tensor *v, weft_future **out)
{
    weft_tensor *input = c->transposed ? weft_transpose(p->tape, v, 0, 1) : v;
    weft_error *error = NULL;
    weft_value arguments[] = {weft_of_i64((int64_t)c->seed),
                              weft_of_i64(depth + 1),
                              weft_of_i64(p->g->rows),
                              weft_of_bool(p->g->fractions),
                              weft_of_i64((p->g->depth << 16) | (int64_t)p->g->ranks),
                              weft_of_tensor(input)};
    weft_rpc_options options = {.tape = p->tape,
                                .parent = p->parent,
                                .wait_for_room = true,
                                .error = &error,
                                .retry.attempts = c->seed % 8 ? 0 : 2};
    if (!input)
        return WEFT_ERR_STATE;
    weft_status status = weft_rpc_async(p->agent, weft_to_rank(c->rank), c->transposed ? "node transposed" : "node",
                                        (weft_args){arguments, 6}, &options, out);
    if (status && error)
        keep_first_error(p, error);
    weft_error_unref(error);
    return status;
}

static weft_tensor *take_result(const place *p, weft_future *future)
{
    faults_wait *wait = wait_begins(DEFAULT_MS, "a node");
    weft_status status = weft_future_wait(future, WEFT_FOREVER);
    wait_ends(wait);
    if (status) {
        keep_first_error(p, weft_future_error(future));
        return NULL;
    }
    weft_tensor *result = weft_tensor_ref(weft_future_tensor(future, 0));
    return weft_tape_take(p->tape, result);
}

static weft_tensor *call_branches(const place *p, uint64_t seed, int depth, unsigned count, weft_tensor *v)
{
    weft_future *futures[CHILDREN_MOST] = {NULL};
    weft_tensor *results[CHILDREN_MOST] = {NULL}, *sum = v;
    bool at_once = prng_mix(seed + 41) % 2, well = true;
    for (unsigned i = 0; i < count && well; i++) {
        branch c = choose_branch(p, seed, i);
        well = !call_branch(p, &c, depth, v, &futures[i]);
        if (well && !at_once)
            well = (results[i] = take_result(p, futures[i])) != NULL;
    }
    for (unsigned i = 0; i < count; i++) {
        if (futures[i] && !results[i])
            well = (results[i] = take_result(p, futures[i])) && well;
        weft_future_unref(futures[i]);
    }
    for (unsigned i = 0; i < count && well; i++) {
        branch c = choose_branch(p, seed, i);
        sum = add_result(p, &c, sum, results[i]);
    }
    return well ? sum : NULL;
}

static weft_tensor *refuse_gradient(weft_tensor *gradient, void *arg)
{
    return NULL;
}

static weft_tensor *run_node(const place *p, uint64_t seed, int depth, weft_tensor *x)
{
    uint64_t chance = prng_mix(seed);
    weft_tape *t = p->tape;
    weft_tensor *w = parameter_of(p, chance >> 8), *v;
    if (chance % 4 == 0)
        v = weft_mul(t, x, w);
    else
        v = weft_add(t, weft_scale(t, x, 1 + (double)(chance >> 16 & 1)),
                     weft_scale(t, w, (double)(chance >> 20 & 3) - 1));
    if (p->g->ranks >> BREAKS & 1 && depth > 0 && chance >> 50 & 1)
        v = weft_on_gradient(t, v, refuse_gradient, NULL, NULL);
    unsigned count = depth < p->g->depth ? (unsigned)(chance >> 32) % (CHILDREN_MOST + 1) : 0;
    if (!depth && !count)
        count = 1;
    if (!v || !count)
        return v;
    return p->parameters ? run_branches_here(p, seed, depth, count, v) : call_branches(p, seed, depth, count, v);
}

/* ---- From the origin --------------------------------------------------------------------------------------------- */

static weft_tensor *run(const place *p)
{
    weft_tensor *x = weft_tape_take(p->tape, graph_input(p->g));
    weft_tensor *v = run_node(p, p->g->seed, 0, x);
    return v ? weft_sum(p->tape, v) : NULL;
}

weft_tensor *graph_run(const graph *g, weft_tape *tape, weft_error **error)
{
    return run(&(place){.g = g, .agent = self.agent, .tape = tape, .rank = self.rank, .error = error});
}

weft_tensor *graph_run_locally(const graph *g, int rank, weft_tape *tape, weft_tensor *const *parameters)
{
    return run(&(place){.g = g, .tape = tape, .rank = rank, .parameters = parameters});
}

/* ---- On the others ----------------------------------------------------------------------------------------------- */

static weft_status fail_call(weft_call *call, weft_error *error)
{
    weft_status status = weft_tape_status(weft_call_tape(call));
    if (error) {
        status = weft_error_code(error);
        weft_call_fail_with(call, error);
        weft_error_unref(error);
    }
    return status ? status : WEFT_ERR_CANCELLED;
}

/* (seed, depth, rows, fractions, ranks and the most depth, input) -> tensor */
static weft_status run_served(weft_call *call, bool transposed, bool loss)
{
    int64_t packed = weft_call_i64(call, 4);
    graph g = {.rows = weft_call_i64(call, 2),
               .fractions = weft_call_bool(call, 3),
               .ranks = (unsigned)(packed & 0xffff),
               .depth = (int)(packed >> 16)};
    weft_error *error = NULL;
    weft_tape *t = weft_call_tape(call);
    place p = {.g = &g, .agent = weft_call_agent(call), .tape = t, .rank = self.rank, .parent = call, .error = &error};
    weft_tensor *x = weft_call_tensor(call, 5);
    if (transposed)
        x = weft_transpose(t, x, 0, 1);
    weft_tensor *v = x ? run_node(&p, (uint64_t)weft_call_i64(call, 0), (int)weft_call_i64(call, 1), x) : NULL;
    if (v && loss)
        v = weft_sum(t, v);
    if (!v || error)
        return fail_call(call, error);
    weft_call_give(call, WEFT_VALUES(weft_of_tensor(v)));
    return WEFT_OK;
}

static weft_status serve_node(weft_call *call, void *user)
{
    return run_served(call, false, false);
}

static weft_status serve_transposed(weft_call *call, void *user)
{
    return run_served(call, true, false);
}

static weft_status serve_loss(weft_call *call, void *user)
{
    return run_served(call, false, true);
}

void graph_loss_arguments(const graph *g, weft_tensor *input, weft_value out[6])
{
    out[0] = weft_of_i64((int64_t)g->seed);
    out[1] = weft_of_i64(0);
    out[2] = weft_of_i64(g->rows);
    out[3] = weft_of_bool(g->fractions);
    out[4] = weft_of_i64((g->depth << 16) | (int64_t)g->ranks);
    out[5] = weft_of_tensor(input);
}

/* (parameter, fractions) -> its gradient in the call's context, or null */
static weft_status serve_gradient(weft_call *call, void *user)
{
    weft_tensor *leaf = own[weft_call_bool(call, 1)][weft_call_i64(call, 0) % PARAMETERS];
    weft_tensor *gradient = weft_context_ref_grad(weft_tape_context(weft_call_tape(call)), leaf);
    weft_call_give(call, WEFT_VALUES(gradient ? weft_of_tensor(gradient) : weft_of_null()));
    weft_tensor_unref(gradient);
    return WEFT_OK;
}

/* (rank of the opener, number) -> whether this worker still holds that context */
static weft_status serve_holds(weft_call *call, void *user)
{
    char *text = NULL;
    size_t size;
    bool holds = false;
    FILE *file = open_memstream(&text, &size);
    MUST(file);
    weft_status status = weft_debug_dump(weft_call_agent(call), file);
    fclose(file);
    for (const char *at = status ? NULL : strstr(text, "\"opener\""); at; at = strstr(at + 1, "\"opener\"")) {
        const char *number = strstr(at, "\"number\"");
        holds =
            holds || (number && strtoll(at + 8 + strcspn(at + 8, "0123456789"), NULL, 10) == weft_call_i64(call, 0) &&
                      strtoll(number + 8 + strcspn(number + 8, "0123456789"), NULL, 10) == weft_call_i64(call, 1));
    }
    free(text);
    weft_call_give(call, WEFT_VALUES(weft_of_bool(holds)));
    return status;
}

/* (seed) -> a parameter of the caller's own, that stays here */
static weft_status serve_make(weft_call *call, void *user)
{
    weft_tensor *p = graph_parameter((int)(weft_call_i64(call, 0) % 97), 0, false);
    weft_call_give(call, WEFT_VALUES(weft_of_tensor(p)));
    weft_tensor_unref(p);
    return WEFT_OK;
}

/* (handle to a parameter, input) -> input * parameter + input */
static weft_status serve_apply(weft_call *call, void *user)
{
    weft_value value;
    weft_tape *t = weft_call_tape(call);
    weft_status status = weft_rref_local_value(weft_call_rref(call, 0), DEFAULT_MS, &value);
    if (status)
        return status;
    weft_tensor *x = weft_call_tensor(call, 1);
    weft_tensor *y = weft_add(t, weft_mul(t, x, value.as.tensor), x);
    if (!y)
        return weft_tape_status(t);
    weft_call_give(call, WEFT_VALUES(weft_of_tensor(y)));
    return WEFT_OK;
}

/* An operator that fails. */
static weft_status serve_broken(weft_call *call, void *user)
{
    weft_tape_fail(weft_call_tape(call), WEFT_ERR_FORMAT, "a fault");
    return WEFT_OK;
}

#define NODE_TAKES                                                                                                     \
    {                                                                                                                  \
        WEFT_TYPE_I64, WEFT_TYPE_I64, WEFT_TYPE_I64, WEFT_TYPE_BOOL, WEFT_TYPE_I64, WEFT_TYPE_TENSOR                   \
    }
const weft_function passes_functions[] = {
    {.name = "node", .takes = NODE_TAKES, .gives = {WEFT_TYPE_TENSOR}, .run = serve_node},
    {.name = "node transposed", .takes = NODE_TAKES, .gives = {WEFT_TYPE_TENSOR}, .run = serve_transposed},
    {.name = "loss", .takes = NODE_TAKES, .gives = {WEFT_TYPE_TENSOR}, .run = serve_loss},
    {.name = "gradient", .takes = {WEFT_TYPE_I64, WEFT_TYPE_BOOL}, .gives = {WEFT_TYPE_ANY}, .run = serve_gradient},
    {.name = "holds", .takes = {WEFT_TYPE_I64, WEFT_TYPE_I64}, .gives = {WEFT_TYPE_BOOL}, .run = serve_holds},
    {.name = "make", .takes = {WEFT_TYPE_I64}, .gives = {WEFT_TYPE_TENSOR}, .run = serve_make},
    {.name = "apply", .takes = {WEFT_TYPE_RREF, WEFT_TYPE_TENSOR}, .gives = {WEFT_TYPE_TENSOR}, .run = serve_apply},
    {.name = "broken", .run = serve_broken},
};
const size_t passes_function_count = sizeof(passes_functions) / sizeof(*passes_functions);
