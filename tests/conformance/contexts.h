/* SPDX-License-Identifier: Apache-2.0 */
/*
 * contexts.h - what the items of distributed autograd (59 to 83) share: a parameter on each worker, functions that
 * compute with it, and a step: a context with a tape, and what was called on it.
 */
#ifndef TESTS_CONFORMANCE_CONTEXTS_H
#define TESTS_CONFORMANCE_CONTEXTS_H

#include "conformance/conformance.h"

/* float32 [2], and wants a gradient; one reference. */
weft_tensor *leaf_of(float a, float b);
/* Of any shape, with numbers that depend on the seed; one reference. */
weft_tensor *leaf_drawn(weft_shape shape, weft_dtype dtype, uint64_t seed);

/* A parameter of each worker's, [2]: rank + 2 and rank - 5, none of them 0. All agents of a world live in this
 * process. */
extern weft_tensor *parameters[WORKERS];
float parameter_at(int rank, int index);

/* Functions on the call's tape; p is the parameter of the worker that serves. */
weft_status serve_times(weft_call *call, void *user);     /* x -> p x */
weft_status serve_mul(weft_call *call, void *user);       /* a, b -> a b */
weft_status serve_parameter(weft_call *call, void *user); /* () -> p */
weft_status serve_three(weft_call *call, void *user);     /* x -> p + x, p x, a constant */
weft_status serve_relay(weft_call *call,
                        void *user); /* x, to, hops -> p x, sent on to worker `to` and on, hops times */
weft_status serve_gradient(weft_call *call, void *user); /* () -> the gradient of p in the call's context, or null */
weft_status serve_broken(weft_call *call, void *user);   /* x -> x, whose gradient fails as long as `broken` */
weft_status serve_held(weft_call *call, void *user);     /* x -> x, whose gradient waits until hold_open */
weft_status serve_graph(weft_call *call, void *user);    /* () -> string: graph_text */
weft_status serve_here(weft_call *call, void *user);     /* () -> contexts here, passes here */

extern atomic_bool broken, hold_open;
extern atomic_int holding; /* how many gradients have come to serve_held's */

#define CONTEXT_FUNCTIONS                                                                                              \
    {.name = "times", .takes = {WEFT_TYPE_TENSOR}, .gives = {WEFT_TYPE_TENSOR}, .run = serve_times},                   \
        {.name = "mul", .takes = {WEFT_TYPE_TENSOR, WEFT_TYPE_TENSOR}, .gives = {WEFT_TYPE_TENSOR}, .run = serve_mul}, \
        {.name = "parameter", .gives = {WEFT_TYPE_TENSOR}, .run = serve_parameter},                                    \
        {.name = "three",                                                                                              \
         .takes = {WEFT_TYPE_TENSOR},                                                                                  \
         .gives = {WEFT_TYPE_TENSOR, WEFT_TYPE_TENSOR, WEFT_TYPE_TENSOR},                                              \
         .run = serve_three},                                                                                          \
        {.name = "relay",                                                                                              \
         .takes = {WEFT_TYPE_TENSOR, WEFT_TYPE_I64, WEFT_TYPE_I64},                                                    \
         .gives = {WEFT_TYPE_TENSOR},                                                                                  \
         .run = serve_relay},                                                                                          \
        {.name = "gradient", .gives = {WEFT_TYPE_ANY}, .run = serve_gradient},                                         \
        {.name = "broken", .takes = {WEFT_TYPE_TENSOR}, .gives = {WEFT_TYPE_TENSOR}, .run = serve_broken},             \
        {.name = "held", .takes = {WEFT_TYPE_TENSOR}, .gives = {WEFT_TYPE_TENSOR}, .run = serve_held},                 \
        {.name = "graph", .gives = {WEFT_TYPE_STRING}, .run = serve_graph},                                            \
    {                                                                                                                  \
        .name = "here", .gives = {WEFT_TYPE_I64, WEFT_TYPE_I64}, .run = serve_here                                     \
    }

/* As ITEM, with the parameters made before and dropped after. */
void context_item_run(const item *what);
#define CONTEXT_ITEM(name, ...)                                                                                        \
    static void name(void **state)                                                                                     \
    {                                                                                                                  \
        (void)state;                                                                                                   \
        context_item_run(&(item){__VA_ARGS__});                                                                        \
    }

/* ---- Steps ------------------------------------------------------------------------------------------------------- */

#define STEP_CALLS 128
typedef struct step {
    weft_agent *agent;
    weft_context *context;
    weft_tape *tape;
    weft_values *kept[STEP_CALLS]; /* the results of its calls, until it is closed */
    size_t count;
} step;

void step_open(step *s, weft_agent *agent);
/* A call on the step's tape that must succeed: result `index`, a tensor. */
weft_tensor *step_call_nth(step *s, int rank, const char *function, weft_args args, size_t index);
weft_tensor *step_call(step *s, int rank, const char *function, weft_args args);
/* A call for what stays at `rank`; you release it. */
weft_rref *step_remote(step *s, int rank, const char *function, weft_args args);
weft_tensor *step_fetch(step *s, weft_rref *rref);
/* Goes back from the loss; must succeed. */
void step_backward(step *s, weft_tensor *loss, const weft_pass_options *options);
/* Goes back and must fail with this status; the error is yours. The tape may be used on. */
weft_error *step_backward_fails(step *s, weft_tensor *loss, const weft_pass_options *options, weft_status status);
/* Closes it, and waits until all workers have let go. */
void step_close(step *s);

void must_be(const weft_tensor *tensor, float a, float b);
void must_be_equal(const weft_tensor *a, const weft_tensor *b); /* dtype, shape and bits */
/* The gradient of a leaf here; of the parameter of `rank`, which is asked, or that it has none. */
void must_have(const step *s, const weft_tensor *leaf, float a, float b);
void must_have_there(step *s, int rank, float a, float b);
void must_have_none(step *s, int rank);
/* The same, in time: the news that a pass failed reaches a worker which had done its part by itself. 0 and 0: none. */
void await_there(step *s, int rank, float a, float b);

/* All workers come here, each with its steps closed: nothing of a context is left on any. */
void nothing_is_left(weft_agent *agent);

/* What a worker has of a context's graph, in one line: for each tensor that it sent `-> worker: record`, in order. A
 * record is the name of the operator with its inputs, `leaf`, or `worker/number` for a tensor that came: which one
 * of those that worker sent. In contexts_inside.c. */
void graph_text(weft_context *context, char *out, size_t room);
void record_text(weft_context *context, const weft_tensor *made, char *out, size_t room);

#endif
