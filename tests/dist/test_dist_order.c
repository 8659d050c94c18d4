/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_dist_order.c - the bits of gradients. Random programs of calls within calls, several of them under way at once,
 * from several threads and to oneself, on random float64. Each program runs under many seeds of the simulation, in
 * which calls arrive in different orders, and again on one tape without any call. All gradients must be those of that
 * tape, bit for bit.
 *
 * On the one tape an argument and a result of a call to another worker is a copy of what was sent
 * (docs/distributed-autograd.md, "The order of sums").
 */
#include "rpc/world.h"
#include "prng.h"
#include "tensors.h"

#define WORKERS 4
#define PROGRAMS 6
#define ELEMENTS 3
#define HAND 64
#define CALLS 4 /* of one computation, at most */

/* ---- One computation, on one tape or over the workers ------------------------------------------------------------ */

static weft_tensor *parameters[WORKERS]; /* all agents of a world live in this process */
static weft_tensor *inputs[2];           /* leaves of rank 0 */

typedef struct place {
    weft_agent *agent; /* NULL: everything runs on one tape */
    weft_tape *tape;
    const weft_call *parent;
    int rank;
} place;

/* What a computation has computed so far. */
typedef struct hand {
    weft_tensor *tensors[HAND];
    size_t count;
    uint64_t state; /* of its random numbers */
} hand;

typedef struct pending {
    weft_future *future;
    hand results; /* on one tape: they are there at once */
} pending;

static uint64_t draw(hand *h, uint64_t below)
{
    return prng_below(&h->state, below);
}

static double draw_real(hand *h)
{
    return (double)draw(h, UINT64_C(1) << 53) / (double)(UINT64_C(1) << 52) - 1;
}

static void take(hand *h, weft_tensor *tensor)
{
    if (tensor && h->count < HAND)
        h->tensors[h->count++] = tensor;
}

static weft_tensor *any(hand *h)
{
    return h->tensors[draw(h, h->count)];
}

static weft_status compute(const place *p, int depth, hand *h, weft_tensor *results[2]);

static weft_tensor *cross(const place *p, int to, weft_tensor *x)
{
    return to == p->rank ? x : weft_scale(p->tape, x, 1);
}

static weft_status begin_call(const place *p, int depth, hand *h, pending *out)
{
    int to = (int)draw(h, WORKERS);
    weft_tensor *arguments[] = {any(h), any(h)};
    size_t count = 1 + draw(h, 2);
    uint64_t key = draw(h, UINT64_MAX);
    if (p->agent)
        return weft_rpc_async(p->agent, weft_to_rank(to), "compute",
                              WEFT_VALUES(weft_of_tensors((weft_tensors){arguments, count}), weft_of_i64((int64_t)key),
                                          weft_of_i64(depth - 1)),
                              &(weft_rpc_options){.tape = p->tape, .parent = p->parent}, &out->future);
    hand there = {.state = key};
    weft_tensor *results[2];
    for (size_t i = 0; i < count; i++)
        take(&there, cross(p, to, arguments[i]));
    weft_status status = compute(&(place){.tape = p->tape, .rank = to}, depth - 1, &there, results);
    for (int i = 0; i < 2; i++)
        take(&out->results, cross(p, to, results[i]));
    return status;
}

static weft_status end_call(hand *h, pending *call)
{
    weft_status status = call->future ? weft_future_wait(call->future, WEFT_FOREVER) : WEFT_OK;
    weft_tensors came = {call->results.tensors, call->results.count};
    if (!status && call->future)
        MUST_OK(weft_values_get_tensors(weft_future_values(call->future), 0, &came));
    for (size_t i = 0; i < came.count && !status; i++)
        take(h, came.items[i]);
    return status;
}

static void operate(const place *p, hand *h)
{
    weft_tape *t = p->tape;
    weft_tensor *x = any(h), *y = any(h);
    double factor = draw_real(h);
    if (draw(h, 3) == 0)
        take(h, weft_mul(t, x, parameters[p->rank]));
    else
        take(h, weft_scale(t, weft_add(t, weft_mul(t, x, y), y), factor));
}

/* `h` has the inputs. Its calls are under way while it computes further; results come into the hand in the order of
 * the calls. */
static weft_status compute(const place *p, int depth, hand *h, weft_tensor *results[2])
{
    pending calls[CALLS] = {{0}};
    size_t count = 0, ended = 0;
    weft_status status = WEFT_OK;
    int steps = 3 + (int)draw(h, 6);
    for (int i = 0; i < steps && !status; i++) {
        uint64_t what = draw(h, 8);
        if (what < 3 && depth > 0 && count < CALLS)
            status = begin_call(p, depth, h, &calls[count++]);
        else if (what == 3 && ended < count)
            status = end_call(h, &calls[ended++]);
        else
            operate(p, h);
    }
    while (ended < count && !status)
        status = end_call(h, &calls[ended++]);
    for (int i = 0; i < 2 && !status; i++) {
        operate(p, h);
        results[i] = h->tensors[h->count - 1 - draw(h, h->count < 4 ? h->count : 4)];
    }
    /* Tensors in the hand belong to the futures. The tape keeps those that its operators use; these must outlive the
     * computation. */
    for (int i = 0; i < 2 && !status; i++)
        results[i] = weft_tape_take(p->tape, weft_tensor_ref(results[i]));
    for (size_t i = 0; i < count; i++)
        weft_future_unref(calls[i].future);
    return status ? status : weft_tape_status(p->tape);
}

/* ---- The arrivals ------------------------------------------------------------------------------------------------ */

static int program_now;
static uint64_t arrivals[PROGRAMS]
                        [WORKERS]; /* a hash of the keys of calls, in the order in which they came in this world */
static uint64_t first_arrivals[PROGRAMS][WORKERS];
static int different, programs_done;

static weft_status serve_compute(weft_call *call, void *user)
{
    (void)user;
    weft_agent *agent = weft_call_agent(call);
    hand h = {.state = (uint64_t)weft_call_i64(call, 1)};
    if (program_now < PROGRAMS) { /* else the call outlives a worker that has died */
        uint64_t *seen = &arrivals[program_now][weft_agent_rank(agent)];
        *seen = (*seen ^ h.state) * UINT64_C(0x100000001b3);
    }
    weft_tensors arguments = weft_call_tensors(call, 0);
    weft_tensor *results[2];
    for (size_t i = 0; i < arguments.count; i++)
        take(&h, arguments.items[i]);
    const place p = {agent, weft_call_tape(call), call, weft_agent_rank(agent)};
    weft_status status = compute(&p, (int)weft_call_i64(call, 2), &h, results);
    if (!status)
        weft_call_give(call, WEFT_VALUES(weft_of_tensors((weft_tensors){results, 2})));
    return status;
}

/* (inputs, key, how deep): goes on to the next worker, and computes at the last one. */
static weft_status serve_deep(weft_call *call, void *user)
{
    (void)user;
    weft_agent *agent = weft_call_agent(call);
    int64_t deep = weft_call_i64(call, 2);
    weft_values *results;
    weft_status status =
        weft_rpc_sync(agent, weft_to_rank((weft_agent_rank(agent) + 1) % WORKERS), deep ? "deep" : "compute",
                      WEFT_VALUES(weft_of_tensors(weft_call_tensors(call, 0)), weft_of_i64(weft_call_i64(call, 1)),
                                  weft_of_i64(deep ? deep - 1 : 2)),
                      &(weft_rpc_options){.tape = weft_call_tape(call), .parent = call}, &results);
    if (!status) {
        weft_call_give(call, weft_values_args(results));
        weft_values_unref(results);
    }
    return status;
}

static weft_status serve_gradient(weft_call *call, void *user)
{
    (void)user;
    weft_tensor *gradient = weft_context_ref_grad(weft_tape_context(weft_call_tape(call)),
                                                  parameters[weft_agent_rank(weft_call_agent(call))]);
    weft_call_give(call, WEFT_VALUES(gradient ? weft_of_tensor(gradient) : weft_of_null()));
    weft_tensor_unref(gradient);
    return WEFT_OK;
}

static const weft_function functions[] = {
    {.name = "deep",
     .takes = {WEFT_TYPE_TENSORS, WEFT_TYPE_I64, WEFT_TYPE_I64},
     .gives = {WEFT_TYPE_TENSORS},
     .run = serve_deep},
    {.name = "compute",
     .takes = {WEFT_TYPE_TENSORS, WEFT_TYPE_I64, WEFT_TYPE_I64},
     .gives = {WEFT_TYPE_TENSORS},
     .run = serve_compute},
    {.name = "gradient", .gives = {WEFT_TYPE_ANY}, .run = serve_gradient},
};

/* ---- A program: two threads of rank 0 compute, each with a tape; then there are losses, and a pass for each ------ */

#define LOSSES 3

typedef struct half {
    place p;
    int number, depth;
    weft_tensor *results[2];
    weft_status status;
    bool done;
} half;

static void run_half(half *it)
{
    hand h = {.state = (uint64_t)program_now * 2 + (uint64_t)it->number};
    take(&h, inputs[0]);
    take(&h, inputs[1]);
    it->status = compute(&it->p, it->depth, &h, it->results);
    it->done = true;
}

static void run_half_beside(weft_sim *sim, int rank, void *arg)
{
    (void)sim, (void)rank;
    run_half(arg);
}

static weft_tensor *loss_of(weft_tape *t, half halves[2], int number)
{
    weft_tensor *x = halves[0].results[number & 1], *y = halves[1].results[number >> 1];
    return weft_sum(t, weft_add(t, weft_mul(t, x, parameters[0]), weft_scale(t, y, 0.3 + number)));
}

static void must_have_bits(const weft_tensor *gradient, const weft_tensor *wanted, int seed, int rank)
{
    MUST(!gradient == !wanted);
    if (!wanted || !memcmp(weft_tensor_data((weft_tensor *)gradient), weft_tensor_data((weft_tensor *)wanted),
                           ELEMENTS * sizeof(double)))
        return;
    fprintf(stderr, "seed %d, program %d: the gradient of rank %d is not that of one tape\n", seed, program_now, rank);
    abort();
}

/* The gradients on one tape: of the parameters, and of the inputs. */
typedef struct reference {
    weft_tape *tape;
    weft_tensor *gradients[WORKERS + 2];
} reference;

static void compute_reference(reference *out)
{
    half halves[2];
    weft_tape *t = weft_tape_open(&(weft_tape_options){.record = true});
    for (int i = 0; i < 2; i++) {
        halves[i] = (half){.p = {.tape = t}, .number = i, .depth = 3};
        run_half(&halves[i]);
        MUST_OK(halves[i].status);
    }
    weft_tensor *losses[LOSSES];
    for (int i = 0; i < LOSSES; i++)
        losses[i] = loss_of(t, halves, i);
    for (int i = 0; i < LOSSES; i++)
        weft_backward_with(t, (weft_tensors){&losses[i], 1}, (weft_tensors){0},
                           &(weft_backward_options){.retain = true});
    MUST_OK(weft_tape_status(t));
    for (int i = 0; i < WORKERS + 2; i++)
        out->gradients[i] = weft_tape_grad(t, i < WORKERS ? parameters[i] : inputs[i - WORKERS]);
    out->tape = t;
}

/* A pass for each loss, all at once. Closes the tapes: what they recorded belongs to the context. */
static weft_status run_passes(weft_context *c, weft_tape *tapes[3], half halves[2])
{
    weft_tensor *losses[LOSSES];
    weft_future *passes[LOSSES];
    weft_status status = WEFT_OK;
    size_t count = 0;
    for (int i = 0; i < LOSSES; i++)
        losses[i] = weft_tensor_ref(loss_of(tapes[2], halves, i));
    MUST_OK(weft_tape_status(tapes[2]));
    for (int i = 0; i < 3; i++)
        weft_tape_close(tapes[i]);
    for (int i = 0; i < LOSSES && !status; i++) {
        status =
            weft_context_backward(c, (weft_tensors){&losses[i], 1}, &(weft_pass_options){.retain = true}, &passes[i]);
        count += !status;
    }
    for (size_t i = 0; i < count; i++) {
        weft_status one = weft_future_wait(passes[i], WEFT_FOREVER);
        status = status ? status : one;
        weft_future_unref(passes[i]);
    }
    for (int i = 0; i < LOSSES; i++)
        weft_tensor_unref(losses[i]);
    return status;
}

static void compare(weft_agent *agent, weft_context *c, const reference *wanted, const world *w)
{
    weft_tape *t = weft_context_tape(c, NULL);
    for (int i = 0; i < WORKERS + 2; i++) {
        bool away = i > 0 && i < WORKERS;
        weft_values *results = NULL;
        weft_tensor *gradient = NULL;
        if (away &&
            weft_rpc_sync(agent, weft_to_rank(i), "gradient", WEFT_NO_VALUES, &(weft_rpc_options){.tape = t}, &results))
            continue; /* it has died since */
        if (!away)
            gradient = weft_context_ref_grad(c, i == 0 ? parameters[0] : inputs[i - WORKERS]);
        else if (weft_values_type(results, 0) == WEFT_TYPE_TENSOR)
            MUST_OK(weft_values_get_tensor(results, 0, &gradient));
        must_have_bits(gradient, wanted->gradients[i], (int)w->seed, i);
        if (!away)
            weft_tensor_unref(gradient);
        weft_values_unref(results);
    }
    weft_tape_close(t);
}

static void one_program(weft_agent *agent, world *w)
{
    weft_context *c;
    weft_tape *tapes[3];
    half halves[2];
    reference wanted = {0};
    MUST_OK(weft_context_open(agent, &c, NULL));
    for (int i = 0; i < 3; i++)
        tapes[i] = weft_context_tape(c, NULL);
    for (int i = 0; i < 2; i++)
        halves[i] = (half){.p = {.agent = agent, .tape = tapes[i]}, .number = i, .depth = 3};
    if (w->sim)
        MUST_OK(weft_sim_spawn(w->sim, 0, run_half_beside, &halves[1]));
    run_half(&halves[0]);
    if (!w->sim)
        run_half(&halves[1]);
    while (!halves[1].done)
        world_sleep_ms(w, 1);
    weft_status status = halves[0].status ? halves[0].status : halves[1].status;
    MUST(!status || w->close_may_fail);
    if (status) {
        for (int i = 0; i < 3; i++)
            weft_tape_close(tapes[i]);
    } else {
        status = run_passes(c, tapes, halves);
        MUST(!status || w->close_may_fail);
    }
    if (!status) {
        compute_reference(&wanted);
        compare(agent, c, &wanted, w);
        weft_tape_close(wanted.tape);
        programs_done++;
    }
    weft_context_close(c, NULL);
}

/* ---- What goes wrong --------------------------------------------------------------------------------------------- */

static enum { NOTHING, LINKS_BREAK, LINKS_AND_PEERS_STOP, A_WORKER_DIES } trouble;
static bool is_over;

static void stop_a_while(weft_sim *sim, hand *h)
{
    int a = (int)draw(h, WORKERS), b = (a + 1 + (int)draw(h, WORKERS - 1)) % WORKERS;
    uint64_t ns = 10000 + draw(h, 500000);
    if (draw(h, 2) || a == 0) {
        weft_sim_cut(sim, a, b);
        weft_sim_sleep(sim, ns);
        weft_sim_heal(sim, a, b);
    } else {
        weft_sim_pause(sim, a);
        weft_sim_sleep(sim, ns);
        weft_sim_resume(sim, a);
    }
}

static void make_trouble(weft_sim *sim, int rank, void *arg)
{
    const world *w = arg;
    hand h = {.state = w->seed};
    (void)rank;
    if (trouble == A_WORKER_DIES) {
        weft_sim_sleep(sim, draw(&h, 20000000));
        if (!is_over)
            weft_sim_kill(sim, 1 + (int)draw(&h, WORKERS - 1));
        return;
    }
    while (!is_over) {
        int a = (int)draw(&h, WORKERS);
        weft_sim_sleep(sim, draw(&h, 300000));
        if (trouble == LINKS_BREAK)
            weft_sim_reset_link(sim, a, (a + 1) % WORKERS);
        else
            stop_a_while(sim, &h);
    }
}

/* ---- Worlds ------------------------------------------------------------------------------------------------------ */

static void order(weft_agent *agent, void *arg)
{
    world *w = arg;
    if (weft_agent_rank(agent))
        return; /* it serves */
    if (w->sim && trouble)
        MUST_OK(weft_sim_spawn(w->sim, 0, make_trouble, w));
    for (program_now = 0; program_now < PROGRAMS; program_now++)
        one_program(agent, w);
    is_over = true;
}

static weft_tensor *random_leaf(uint64_t state)
{
    hand h = {.state = state};
    weft_tensor *x = tensor_empty(WEFT_SHAPE(ELEMENTS), WEFT_DTYPE_FLOAT64);
    for (int i = 0; i < ELEMENTS; i++)
        ((double *)weft_tensor_data(x))[i] = draw_real(&h);
    weft_tensor_set_requires_grad(x, true);
    return x;
}

static void begin_world(world *w)
{
    (void)w;
    for (int rank = 0; rank < WORKERS; rank++)
        parameters[rank] = random_leaf((uint64_t)rank);
    for (int i = 0; i < 2; i++)
        inputs[i] = random_leaf((uint64_t)i + 10);
    memset(arrivals, 0, sizeof(arrivals));
    is_over = false;
}

static void end_world(world *w)
{
    if (w->seed == 1)
        memcpy(first_arrivals, arrivals, sizeof(arrivals));
    for (int i = 0; i < PROGRAMS; i++)
        different += memcmp(first_arrivals[i], arrivals[i], sizeof(arrivals[i])) != 0;
    for (int rank = 0; rank < WORKERS; rank++)
        weft_tensor_unref(parameters[rank]);
    for (int i = 0; i < 2; i++)
        weft_tensor_unref(inputs[i]);
}

static void play(int what, uint64_t seeds, int on_tcp, bool may_fail)
{
    trouble = what;
    different = programs_done = 0;
    world_play(&(world){.program = order,
                        .size = WORKERS,
                        WORLD_FUNCTIONS(functions),
                        .begin = begin_world,
                        .end = end_world,
                        .close_may_fail = may_fail},
               seeds, on_tcp);
    seeds = world_seeds(seeds);
    assert_true(may_fail ? programs_done > 0 : programs_done == ((int)seeds + on_tcp) * PROGRAMS);
    assert_true(seeds < 3 || different > (int)seeds); /* else the seeds show nothing */
}

static void test_the_order_of_arrival(void **state)
{
    (void)state;
    play(NOTHING, 40, 1, false);
}

static void test_links_that_break(void **state)
{
    (void)state;
    play(LINKS_BREAK, 20, 0, false);
}

static void test_links_and_peers_that_stop(void **state)
{
    (void)state;
    play(LINKS_AND_PEERS_STOP, 20, 0, false);
}

static void test_a_worker_that_dies(void **state)
{
    (void)state;
    play(A_WORKER_DIES, 40, 0, true);
}

/* ---- Calls so deep that their paths are folded: not the order of one tape, but the same in every run ------------- */

#define DEEP 100
#define DEEP_CALLS 3

static void deep(weft_agent *agent, void *arg)
{
    static double first[WORKERS][ELEMENTS];
    const world *w = arg;
    weft_future *calls[DEEP_CALLS];
    weft_context *c;
    program_now = 0;
    if (weft_agent_rank(agent))
        return;
    MUST_OK(weft_context_open(agent, &c, NULL));
    weft_tape *t = weft_context_tape(c, NULL);
    for (int i = 0; i < DEEP_CALLS; i++)
        MUST_OK(
            weft_rpc_async(agent, weft_to_rank(1), "deep",
                           WEFT_VALUES(weft_of_tensors((weft_tensors){inputs, 2}), weft_of_i64(i), weft_of_i64(DEEP)),
                           &(weft_rpc_options){.tape = t}, &calls[i]));
    weft_tensor *sum = inputs[0];
    for (int i = 0; i < DEEP_CALLS; i++) {
        weft_tensors came;
        MUST_OK(weft_future_wait(calls[i], WEFT_FOREVER));
        MUST_OK(weft_values_get_tensors(weft_future_values(calls[i]), 0, &came));
        sum = weft_add(t, sum, weft_add(t, came.items[0], came.items[1]));
    }
    weft_dist_backward(t, weft_sum(t, sum), NULL);
    MUST_OK(weft_tape_status(t));
    for (int rank = 1; rank < WORKERS; rank++) {
        weft_values *results;
        weft_tensor *gradient;
        MUST_OK(weft_rpc_sync(agent, weft_to_rank(rank), "gradient", WEFT_NO_VALUES, &(weft_rpc_options){.tape = t},
                              &results));
        if (weft_values_get_tensor(results, 0, &gradient) == WEFT_OK) { /* else nothing here was computed with */
            if (w->seed == 1)
                memcpy(first[rank], weft_tensor_data(gradient), sizeof(first[rank]));
            MUST(!memcmp(first[rank], weft_tensor_data(gradient), sizeof(first[rank])));
        }
        weft_values_unref(results);
    }
    for (int i = 0; i < DEEP_CALLS; i++)
        weft_future_unref(calls[i]);
    weft_tape_close(t);
    weft_context_close(c, NULL);
}

static void test_calls_that_are_deep(void **state)
{
    (void)state;
    different = 0;
    uint64_t seeds = 15;
    world_play(
        &(world){.program = deep, .size = WORKERS, WORLD_FUNCTIONS(functions), .begin = begin_world, .end = end_world},
        seeds, 0);
    seeds = world_seeds(seeds);
    assert_true(seeds < 3 || different > (int)seeds / 2);
}

UNIT_MAIN(test_calls_that_are_deep, test_the_order_of_arrival, test_links_that_break, test_links_and_peers_that_stop,
          test_a_worker_that_dies)
