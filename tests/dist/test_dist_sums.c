/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_dist_sums.c - many passes over one context: how many sets of gradients the workers hold, and the bits of the
 * sums. The passes go from rank 0 over rank 1 to rank 2, so rank 2 is told by rank 1 which passes are final.
 */
#include "dist/parameters.h"

#include "mem/mem.h"
#include "tensors.h"

#define ELEMENTS (64 << 10) /* a slab */
#define PASSES 24
#define SET (2 * ELEMENTS * sizeof(float)) /* of both workers with a parameter in use */

static double factor_of(int64_t number)
{
    return 1 / (0.1 * (double)number + 0.7);
}

static weft_tensor *weigh(weft_tape *t, weft_tensor *parameter, int64_t number)
{
    return weft_sum(t, weft_scale(t, parameter, factor_of(number)));
}

/* (x, number, hops) -> x + weigh(parameter), sent on to the next worker while hops are left */
static weft_status serve_weigh(weft_call *call, void *user)
{
    (void)user;
    weft_agent *agent = weft_call_agent(call);
    weft_tape *t = weft_call_tape(call);
    int64_t number = weft_call_i64(call, 1), hops = weft_call_i64(call, 2);
    weft_tensor *y = weft_add(t, weft_call_tensor(call, 0), weigh(t, parameter_here(call), number));
    if (!hops) {
        weft_call_give(call, WEFT_VALUES(weft_of_tensor(y)));
        return WEFT_OK;
    }
    weft_values *results;
    weft_status status = weft_rpc_sync(agent, weft_to_rank(weft_agent_rank(agent) + 1), "weigh",
                                       WEFT_VALUES(weft_of_tensor(y), weft_of_i64(number), weft_of_i64(hops - 1)),
                                       &(weft_rpc_options){.tape = t, .parent = call}, &results);
    if (!status) {
        weft_call_give(call, weft_values_args(results));
        weft_values_unref(results);
    }
    return status;
}

/* A pass whose loss is computed on `rank`, and on the next worker if `hops`. */
static weft_future *begin_pass(weft_context *c, weft_agent *agent, int rank, const char *broken, int64_t number,
                               int64_t hops, const weft_call *parent)
{
    weft_future *pass;
    weft_values *results, *more = NULL;
    weft_tape *t = weft_context_tape(c, NULL);
    weft_tensor *zero = tensor_zeros(WEFT_SCALAR, WEFT_DTYPE_FLOAT32);
    const weft_rpc_options how = {.tape = t, .parent = (weft_call *)parent};
    MUST_OK(weft_rpc_sync(agent, weft_to_rank(rank), "weigh",
                          WEFT_VALUES(weft_of_tensor(zero), weft_of_i64(number), weft_of_i64(hops)), &how, &results));
    weft_tensor *loss = result(results, 0);
    if (broken) {
        MUST_OK(weft_rpc_sync(agent, weft_to_rank(rank), broken, WEFT_VALUES(weft_of_tensor(loss)), &how, &more));
        loss = result(more, 0);
    }
    loss = weft_tensor_ref(weft_scale(t, loss, 1));
    weft_values_unref(results);
    weft_values_unref(more);
    MUST_OK(weft_tape_status(t));
    weft_tape_close(t);
    MUST_OK(weft_context_backward(c, (weft_tensors){&loss, 1}, NULL, &pass));
    weft_tensor_unref(loss);
    weft_tensor_unref(zero);
    return pass;
}

static void end_pass(weft_future *pass, weft_status wanted)
{
    MUST_BE(weft_future_wait(pass, WEFT_FOREVER), wanted);
    weft_future_unref(pass);
}

/* (count) -> nothing. Begins so many passes from here over rank 1, one after the other. */
static weft_status serve_lead(weft_call *call, void *user)
{
    (void)user;
    for (int64_t i = 0; i < weft_call_i64(call, 0); i++)
        end_pass(begin_pass(weft_tape_context(weft_call_tape(call)), weft_call_agent(call), 1, NULL, 100 + i, 0, call),
                 WEFT_OK);
    return WEFT_OK;
}

/* () -> how many calls of "weft:final" this worker has served */
static weft_status serve_finals(weft_call *call, void *user)
{
    (void)user;
    weft_call_metrics served;
    MUST_OK(weft_metrics_read(weft_call_agent(call), WEFT_METRIC_SERVED, -1, "weft:final", &served));
    weft_call_give(call, WEFT_VALUES(weft_of_i64((int64_t)served.count)));
    return WEFT_OK;
}

static const weft_function functions[] = {
    {.name = "finals", .gives = {WEFT_TYPE_I64}, .run = serve_finals},
    {.name = "weigh",
     .takes = {WEFT_TYPE_TENSOR, WEFT_TYPE_I64, WEFT_TYPE_I64},
     .gives = {WEFT_TYPE_TENSOR},
     .run = serve_weigh},
    {.name = "broken", .takes = {WEFT_TYPE_TENSOR}, .gives = {WEFT_TYPE_TENSOR}, .run = serve_broken},
    {.name = "lead", .takes = {WEFT_TYPE_I64}, .run = serve_lead},
    {.name = "gradient", .gives = {WEFT_TYPE_ANY}, .run = serve_gradient},
};

static void make_large_parameters(world *w)
{
    (void)w;
    for (int rank = 0; rank < WORKERS; rank++) {
        parameters[rank] = tensor_full(WEFT_SHAPE(ELEMENTS), WEFT_DTYPE_FLOAT32, rank);
        weft_tensor_set_requires_grad(parameters[rank], true);
    }
}

#define SUMS .size = WORKERS, WORLD_FUNCTIONS(functions), .begin = make_large_parameters, .end = drop_parameters

/* ---- What the sums must be --------------------------------------------------------------------------------------- */

static weft_tensor *sum_of(weft_tensor *a, weft_tensor *b)
{
    weft_tape *t = weft_tape_open(NULL);
    weft_tensor *sum = weft_tensor_ref(weft_add(t, a, b));
    weft_tape_close(t);
    MUST(sum);
    return sum;
}

/* Adds the gradient of pass `number`, as one tape computes it. *sum: NULL at first. */
static void add_wanted(weft_tensor **sum, int64_t number)
{
    weft_tape *t = weft_tape_open(&(weft_tape_options){.record = true});
    weft_backward(t, weigh(t, parameters[1], number));
    weft_tensor *gradient = weft_tape_grad(t, parameters[1]), *before = *sum;
    *sum = before ? sum_of(before, gradient) : weft_tensor_ref(gradient);
    weft_tensor_unref(before);
    weft_tape_close(t);
}

static weft_tensor *wanted_of(int64_t first, int64_t count, int64_t without)
{
    weft_tensor *sum = NULL;
    for (int64_t i = first; i < first + count; i++)
        if (i != without)
            add_wanted(&sum, i);
    return sum;
}

static void must_have_bits(weft_context *c, weft_agent *agent, int rank, weft_tensor *wanted)
{
    weft_tape *t = weft_context_tape(c, NULL);
    weft_values *results = call_on(t, agent, rank, "gradient", WEFT_NO_VALUES);
    weft_tensor *found = result(results, 0);
    MUST(!memcmp(weft_tensor_data(found), weft_tensor_data(wanted), ELEMENTS * sizeof(float)));
    weft_values_unref(results);
    weft_tape_close(t);
}

static size_t held(void)
{
    wfi_slab_stats stats;
    wfi_slab_stats_read(&stats);
    return stats.bytes_live;
}

/* ---- Passes ------------------------------------------------------------------------------------------------------ */

/* `beside`: so many passes run at once. */
static void run_passes(weft_agent *agent, int beside)
{
    weft_context *c;
    weft_future *passes[PASSES];
    size_t before = 0, most = 0;
    MUST_OK(weft_context_open(agent, &c, NULL));
    for (int i = 0; i < PASSES + beside; i++) {
        if (i == beside + 1)
            before = held();
        if (i >= beside)
            end_pass(passes[i - beside], WEFT_OK);
        if (i < PASSES)
            passes[i] = begin_pass(c, agent, 1, NULL, i, 1, NULL);
        most = held() > most ? held() : most;
    }
    if (most > before + 4 * SET)
        fprintf(stderr, "%d beside: %zu sets more than at first\n", beside, (most - before) / SET);
    MUST(most <= before + 4 * SET);
    weft_tensor *wanted = wanted_of(0, PASSES, -1);
    for (int rank = 1; rank < WORKERS; rank++)
        must_have_bits(c, agent, rank, wanted);
    weft_tensor_unref(wanted);
    close_and_look(c, agent);
}

static void passes_in_turn_hold_one_set(weft_agent *agent, void *arg)
{
    (void)arg;
    if (weft_agent_rank(agent) == 0)
        run_passes(agent, 1);
}
WORLD_TEST(passes_in_turn_hold_one_set, 5, 1, SUMS)

/* A worker that gets the next pass before the former one is final is told later. */
static void passes_at_once_hold_those_that_run(weft_agent *agent, void *arg)
{
    (void)arg;
    if (weft_agent_rank(agent) == 0)
        run_passes(agent, 3);
}
WORLD_TEST(passes_at_once_hold_those_that_run, 5, 1, SUMS)

/* It leaves nothing, and those before and after it count. */
static void a_pass_among_others_fails(weft_agent *agent, void *arg)
{
    enum { FAILS = 3, COUNT = 7 };
    weft_context *c;
    (void)arg;
    if (weft_agent_rank(agent) != 0)
        return;
    MUST_OK(weft_context_open(agent, &c, NULL));
    for (int i = 0; i < COUNT; i++)
        end_pass(begin_pass(c, agent, 1, i == FAILS ? "broken" : NULL, i, 1, NULL),
                 i == FAILS ? WEFT_ERR_SYSTEM : WEFT_OK);
    weft_tensor *wanted = wanted_of(0, COUNT, FAILS);
    for (int rank = 1; rank < WORKERS; rank++)
        must_have_bits(c, agent, rank, wanted);
    weft_tensor_unref(wanted);
    close_and_look(c, agent);
}
WORLD_TEST(a_pass_among_others_fails, 5, 1, SUMS)

typedef struct head {
    uint8_t bytes[3 * sizeof(uint32_t) + 2 * sizeof(uint64_t) + 1];
} head;

/* What names a pass to other workers (dist/pass_wire.c). */
static head head_of(weft_context_id id, uint32_t root, uint64_t number)
{
    const uint32_t ints[] = {id.rank, id.incarnation};
    head h = {{0}};
    memcpy(h.bytes, ints, sizeof(ints));
    memcpy(h.bytes + 8, &id.number, sizeof(id.number));
    memcpy(h.bytes + 16, &root, sizeof(root));
    memcpy(h.bytes + 20, &number, sizeof(number));
    return h;
}

static void say(weft_agent *agent, const char *function, weft_args args)
{
    weft_values *nothing;
    MUST_OK(weft_rpc_sync(agent, weft_to_rank(1), function, args, NULL, &nothing));
    weft_values_unref(nothing);
}

/* Tells rank 1 that pass `number` of rank 2 has failed. */
static void say_that_it_failed(weft_agent *agent, weft_context_id id, uint64_t number)
{
    head h = head_of(id, 2, number);
    say(agent, "weft:abort",
        WEFT_VALUES(weft_of_bytes(h.bytes, sizeof(h.bytes)), weft_of_i64(WEFT_ERR_PEER_DEAD), weft_of_i64(2),
                    weft_of_string("rank 2 is dead")));
}

/* The sums of each root are added up first. If a root that did not open the context dies, the sums of all its passes
 * are dropped, also of those that were added up. A worker may hear it from another one first. */
static void the_root_of_some_passes_dies(weft_agent *agent, void *arg)
{
    world *w = arg;
    weft_context *c;
    if (weft_agent_rank(agent) != 0)
        return;
    MUST_OK(weft_context_open(agent, &c, NULL));
    end_pass(begin_pass(c, agent, 1, NULL, 0, 0, NULL), WEFT_OK);
    weft_tape *t = weft_context_tape(c, NULL);
    weft_values_unref(call_on(t, agent, 2, "lead", WEFT_VALUES(weft_of_i64(5))));
    weft_tape_close(t);
    for (int i = 1; i < 4; i++)
        end_pass(begin_pass(c, agent, 1, NULL, i, 0, NULL), WEFT_OK);
    weft_tensor *ours = wanted_of(0, 4, -1), *theirs = wanted_of(100, 5, -1), *both = sum_of(ours, theirs);
    must_have_bits(c, agent, 1, both);
    if (w->sim && w->seed % 2) {
        weft_sim_kill(w->sim, 2);
        world_sleep_ms(w, 20000); /* until its death is known */
    } else {
        say_that_it_failed(agent, weft_context_get_id(c), 5); /* not known to be final there */
        say_that_it_failed(agent, weft_context_get_id(c), 3);
    }
    must_have_bits(c, agent, 1, ours);
    weft_tensor_unref(ours);
    weft_tensor_unref(theirs);
    weft_tensor_unref(both);
    weft_context_close(c, NULL);
}
WORLD_TEST(the_root_of_some_passes_dies, 5, 1, SUMS, .close_may_fail = true)

/* The only pass of a root ends, so nobody is told that it is final. Then rank 1 is told ten times, and tells rank 2
 * once: rank 1's later call to rank 2 comes after what it told. */
static void a_final_pass_is_told_on_once(weft_agent *agent, void *arg)
{
    weft_context *c;
    (void)arg;
    if (weft_agent_rank(agent) != 0)
        return;
    MUST_OK(weft_context_open(agent, &c, NULL));
    end_pass(begin_pass(c, agent, 1, NULL, 0, 1, NULL), WEFT_OK);
    head h = head_of(weft_context_get_id(c), 0, 1);
    for (int i = 0; i < 10; i++)
        say(agent, "weft:final", WEFT_VALUES(weft_of_bytes(h.bytes, sizeof(h.bytes))));
    end_pass(begin_pass(c, agent, 1, NULL, 1, 1, NULL), WEFT_OK);
    weft_tape *t = weft_context_tape(c, NULL);
    weft_values *results = call_on(t, agent, 2, "finals", WEFT_NO_VALUES);
    int64_t served = -1;
    MUST_OK(weft_values_get_i64(results, 0, &served));
    MUST(served == 1);
    weft_values_unref(results);
    weft_tape_close(t);
    close_and_look(c, agent);
}
WORLD_TEST(a_final_pass_is_told_on_once, 5, 1, SUMS)

UNIT_MAIN(test_a_final_pass_is_told_on_once, test_passes_in_turn_hold_one_set, test_passes_at_once_hold_those_that_run,
          test_a_pass_among_others_fails, test_the_root_of_some_passes_dies)
