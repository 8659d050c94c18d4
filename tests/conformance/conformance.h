/* SPDX-License-Identifier: Apache-2.0 */
/*
 * conformance.h - one item of the reference's checklist (docs/conformance.md) as one named test: a program that runs on
 * four workers, as the reference's harness has, on every fabric; references left at the end fail it.
 */
#ifndef TESTS_CONFORMANCE_H
#define TESTS_CONFORMANCE_H

#include "rpc/must.h"
#include "rpc/world.h"

#include <stdatomic.h>
#include <string.h>

#define WORKERS 4
#ifdef __SANITIZE_THREAD__
#define SEEDS 1 /* the simulation has one thread: there is nothing to find */
#elif defined(__SANITIZE_ADDRESS__)
#define SEEDS 2 /* memory goes wrong by the kind of step more than by the order of events */
#else
#define SEEDS 5 /* of the simulation, for every item */
#endif

typedef void (*item_program)(weft_agent *agent, void *arg);

/* How an item is run; a zeroed one takes the defaults. */
typedef struct item {
    item_program program;   /* on every worker, its agent open; it is closed afterwards */
    void (*body)(int rank); /* instead of `program`: opens agents itself, with item_open */
    void (*after)(void);    /* once all workers have ended, before the world goes */
    void (*adjust)(weft_agent_options *options);
    int size; /* workers; 0: WORKERS */
    const weft_function *functions;
    size_t function_count;
    bool leaks; /* references may be left over */
    bool close_may_fail;
    bool only_tcp; /* it needs real threads, or several jobs in a process */
    bool only_sim; /* it needs faults that only the simulation has */
} item;

#define ITEM_FUNCTIONS(table) .functions = (table), .function_count = sizeof(table) / sizeof(*(table))

/* Runs it on every fabric. From cmocka's thread. */
void item_run(const item *what);
/* Runs it once. */
void item_run_on(const item *what, world_fabric fabric, uint64_t seed);

/* What runs now. */
world_fabric item_fabric(void);
weft_sim *item_sim(void); /* NULL unless simulated */
void item_sleep_ms(int ms);
/* Everything has to happen within this time, the machine being as busy as it may be. */
#define ITEM_PATIENCE_MS 20000
/* Waits until `*flag` is at least `least`, in the fabric's time. */
void item_await(const atomic_int *flag, int least);

/* For bodies: opens this rank's agent of the item's world. */
weft_status item_open(int rank, const char *name, weft_agent **out, weft_error **error);
void item_options(int rank, weft_agent_options *out);

/* cmocka's test function of an item: ITEM(item_14_nested_rpc, .program = nested, ...). */
#define ITEM(name, ...)                                                                                                \
    static void name(void **state)                                                                                     \
    {                                                                                                                  \
        (void)state;                                                                                                   \
        item_run(&(item){__VA_ARGS__});                                                                                \
    }

/* ---- Functions that several items call ------------------------------------------------------------------------- */

weft_status serve_nothing(weft_call *call, void *user); /* () -> () */
weft_status serve_echo(weft_call *call, void *user);    /* list -> the same list */
weft_status serve_add(weft_call *call, void *user);     /* i64, i64 -> i64 */
weft_status serve_rank(weft_call *call, void *user);    /* () -> i64, its rank */
weft_status serve_sum(weft_call *call, void *user);     /* tensor, tensor -> tensor, float32 of one shape */
weft_status serve_hold(weft_call *call, void *user);    /* () -> i64, finished by release_held */

#define COMMON_FUNCTIONS                                                                                               \
    {.name = "nothing", .run = serve_nothing},                                                                         \
        {.name = "echo", .takes = {WEFT_TYPE_LIST}, .gives = {WEFT_TYPE_LIST}, .run = serve_echo},                     \
        {.name = "add", .takes = {WEFT_TYPE_I64, WEFT_TYPE_I64}, .gives = {WEFT_TYPE_I64}, .run = serve_add},          \
        {.name = "rank", .gives = {WEFT_TYPE_I64}, .run = serve_rank},                                                 \
        {.name = "sum", .takes = {WEFT_TYPE_TENSOR, WEFT_TYPE_TENSOR}, .gives = {WEFT_TYPE_TENSOR}, .run = serve_sum}, \
    {                                                                                                                  \
        .name = "hold", .gives = {WEFT_TYPE_I64}, .run = serve_hold                                                    \
    }

/* How many calls of "hold" wait now, in all workers; release_held answers each with `value` and returns how many. */
extern atomic_int held_count;
int release_held(int64_t value);
void answer_held_until(weft_future *done, int64_t value); /* whatever is held, until this one is complete */
void forget_held(void); /* those of a worker that is dead or has left: nobody may touch them */

/* ---- Calling --------------------------------------------------------------------------------------------------- */

static inline int next_rank(const weft_agent *agent)
{
    return (weft_agent_rank(agent) + 1) % weft_agent_world_size(agent);
}

/* Calls that must succeed. */
int64_t ask(weft_agent *agent, weft_target to, const char *function, weft_args arguments); /* result 0, an i64 */
void tell(weft_agent *agent, weft_target to, const char *function, weft_args arguments);
weft_future *start(weft_agent *agent, weft_target to, const char *function, weft_args arguments);
weft_future *start_for(weft_agent *agent, weft_target to, const char *function, weft_args arguments,
                       int64_t timeout_ms);
weft_rref *make(weft_agent *agent, weft_target to, const char *function, weft_args arguments); /* rpc_remote */
int64_t read_i64(weft_rref *rref);                                                             /* to_here */
int64_t future_i64(weft_future *done); /* result 0; waits; drops the future */
/* A call that must fail so; the error is yours. */
weft_error *fail_of(weft_agent *agent, weft_target to, const char *function, weft_args arguments, weft_status status);
/* The future must end so, within ITEM_PATIENCE_MS; drops it. */
void must_end(weft_future *future, weft_status status);
bool says(const weft_error *error, const char *text); /* its message has it; prints it if not */

#endif
