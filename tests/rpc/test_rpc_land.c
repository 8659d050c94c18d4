/* SPDX-License-Identifier: Apache-2.0 */
/* test_rpc_land.c - functions that say where arriving tensors are to land; and what the counters say of payloads. */
#include "rpc/world.h"
#include "make.h"
#include "tensors.h"

#include <weft/optim.h>

static struct shared {
    weft_tensor *place;   /* what `land` hands out, if it fits or not */
    weft_tensor *arrived; /* what the handler saw, not referenced: to be compared only */
    atomic_int asked;
    bool no_place;
    int from;
} shared;

static weft_tensor *land_there(int from_rank, size_t index, weft_dtype dtype, weft_shape shape, void *user)
{
    MUST(from_rank == shared.from && index == 0 && user == &shared);
    atomic_fetch_add(&shared.asked, 1);
    return shared.no_place ? NULL : weft_tensor_ref(shared.place);
}

static weft_status run_take(weft_call *call, void *user)
{
    weft_tensor *tensor = weft_call_tensor(call, 0);
    shared.arrived = tensor;
    weft_call_give(call, WEFT_VALUES(weft_of_f64(weft_tensor_get_f64(tensor, weft_tensor_numel(tensor) - 1))));
    return WEFT_OK;
}

static const weft_function functions[] = {
    {.name = "take",
     .takes = {WEFT_TYPE_TENSOR},
     .gives = {WEFT_TYPE_F64},
     .run = run_take,
     .land = land_there,
     .user = &shared},
    {.name = "echo", .takes = {WEFT_TYPE_TENSOR}, .gives = {WEFT_TYPE_TENSOR}, .run = world_run_echo},
};

static weft_status send_there(weft_agent *agent, weft_tensor *x)
{
    weft_values *got;
    double last;
    weft_status status = weft_rpc_sync(agent, weft_to_rank(0), "take", WEFT_VALUES(weft_of_tensor(x)), NULL, &got);
    if (status)
        return status;
    MUST(!weft_values_get_f64(got, 0, &last) && last == (double)(weft_tensor_numel(x) - 1));
    weft_values_unref(got);
    return WEFT_OK;
}

static void land_requests(weft_agent *agent, void *arg)
{
    static const int64_t counts[] = {1, 10, 400, 1000, 300000, 3000000}; /* in meta, in the frame, pulled */
    const int from = shared.from, before = atomic_load(&shared.asked);
    for (size_t i = 0; weft_agent_rank(agent) == from && i < sizeof(counts) / sizeof(*counts); i++) {
        weft_tensor *x = tensor_arange(counts[i], WEFT_DTYPE_FLOAT32);
        shared.place = tensor_zeros(WEFT_SHAPE(counts[i]), WEFT_DTYPE_FLOAT32);
        shared.no_place = false;
        MUST_OK(send_there(agent, x));
        MUST(shared.arrived == shared.place); /* straight into it */
        MUST(memcmp(weft_tensor_data(x), weft_tensor_data(shared.place), weft_tensor_nbytes(x)) == 0);
        shared.no_place = true;
        MUST_OK(send_there(agent, x));
        MUST(shared.arrived != shared.place && (from == 1 || shared.arrived == x));
        shared.no_place = false;
        weft_tensor_unref(shared.place);
        shared.place = tensor_zeros(WEFT_SHAPE(counts[i] + 1), WEFT_DTYPE_FLOAT32);
        MUST_BE(send_there(agent, x), WEFT_ERR_SHAPE);
        weft_tensor_unref(shared.place);
        shared.place = tensor_zeros(WEFT_SHAPE(counts[i]), WEFT_DTYPE_INT32);
        MUST_BE(send_there(agent, x), WEFT_ERR_SHAPE);
        weft_tensor_unref(shared.place);
        shared.no_place = true;
        MUST_OK(send_there(agent, x)); /* and all goes on */
        MUST(atomic_load(&shared.asked) == before + 5 * ((int)i + 1));
        weft_tensor_unref(x);
    }
}

static uint64_t sent, received; /* by the caller */

static void count_bytes(weft_agent *agent, void *arg)
{
    enum { CALLS = 5, COUNT = 1000000 };
    const uint64_t payload = UINT64_C(4) * CALLS * COUNT;
    if (weft_agent_rank(agent) != 1)
        return;
    weft_tensor *x = tensor_arange(COUNT, WEFT_DTYPE_FLOAT32),
                *land = tensor_zeros(WEFT_SHAPE(COUNT), WEFT_DTYPE_FLOAT32);
    for (int with_land = 0; with_land < 2; with_land++) {
        weft_stats before = world_stats(agent);
        for (int i = 0; i < CALLS; i++) {
            weft_rpc_options options = {.land = {&land, with_land}};
            MUST_OK(weft_rpc_sync(agent, weft_to_rank(0), "echo", WEFT_VALUES(weft_of_tensor(x)), &options, NULL));
        }
        weft_stats after = world_stats(agent);
        sent = after.bytes_sent - before.bytes_sent;
        received = after.bytes_received - before.bytes_received;
        if (sent < payload || sent > payload + 10000)
            fprintf(stderr, "sent %llu of %llu, received %llu\n", (unsigned long long)sent, (unsigned long long)payload,
                    (unsigned long long)received);
        MUST(sent >= payload && sent < payload + 10000);
        MUST(received >= payload && received < payload + 10000);
        MUST(after.bytes_copied == 0 && after.bytes_packed == 0);
        MUST(after.calls_started - before.calls_started == CALLS && after.calls_failed == 0);
        MUST(after.calls_started == after.calls_finished);
    }
    weft_tensor *wide = tensor_reshape(x, WEFT_SHAPE(1000, 1000)), *turned = tensor_transpose(wide, 0, 1);
    MUST_OK(weft_rpc_sync(agent, weft_to_rank(0), "echo", WEFT_VALUES(weft_of_tensor(turned)), NULL, NULL));
    MUST(world_stats(agent).bytes_packed == 4 * COUNT && world_stats(agent).bytes_copied == 0);
    weft_tensor_unref(turned);
    weft_tensor_unref(wide);
    weft_tensor_unref(land);
    weft_tensor_unref(x);
}

/* At the callee, once the caller has told it that it is done. */
static void count_at_both(weft_agent *agent, void *arg)
{
    world *w = arg;
    count_bytes(agent, NULL);
    if (weft_agent_rank(agent) != 0)
        return;
    const uint64_t payload = UINT64_C(11) * 4000000;
    for (int i = 0; i < 5000 && world_stats(agent).bytes_sent < payload; i++)
        world_sleep_ms(w, 1);
    weft_stats stats = world_stats(agent);
    MUST(stats.bytes_sent >= payload && stats.bytes_sent < payload + 20000);
    MUST(stats.bytes_received >= payload && stats.bytes_received < payload + 20000);
    MUST(stats.bytes_copied == 0 && stats.calls_served == 11);
}

static void begin(world *w)
{
    shared = (struct shared){.from = shared.from};
}

static void run_both(void (*program)(weft_agent *, void *), int from)
{
    shared.from = from;
    world_play(&(world){.size = 2, WORLD_FUNCTIONS(functions), .program = program, .begin = begin}, 1, 1);
}

static void test_requests_land(void **s)
{
    run_both(land_requests, 1);
    run_both(land_requests, 0); /* to itself */
}

static void test_counters(void **s)
{
    run_both(count_at_both, 1);
}

/* ---- A fabric that cannot write: results are pulled into their places ----------------------------------------- */

static void reads_only(weft_agent_options *options, void *arg)
{
    options->fabric = "sim-reads";
}

static void land_results(weft_agent *agent, void *arg)
{
    static const int64_t counts[] = {0, 1, 10, 64, 65, 400, 1000, 300000, 3000000};
    for (size_t i = 0; weft_agent_rank(agent) == 1 && i < sizeof(counts) / sizeof(*counts); i++) {
        weft_tensor *x = tensor_arange(counts[i], WEFT_DTYPE_FLOAT32);
        weft_tensor *place = tensor_full(WEFT_SHAPE(counts[i]), WEFT_DTYPE_FLOAT32, -1);
        weft_rpc_options options = {.land = {&place, 1}};
        weft_values *got;
        weft_tensor *landed;
        MUST_OK(weft_rpc_sync(agent, weft_to_rank(0), "echo", WEFT_VALUES(weft_of_tensor(x)), &options, &got));
        MUST_OK(weft_values_get_tensor(got, 0, &landed));
        MUST(landed == place);
        MUST(memcmp(weft_tensor_data(x), weft_tensor_data(place), weft_tensor_nbytes(x)) == 0);
        weft_values_unref(got);
        weft_tensor_unref(place);
        place = tensor_zeros(WEFT_SHAPE(counts[i] + 1), WEFT_DTYPE_FLOAT32);
        MUST_BE(weft_rpc_sync(agent, weft_to_rank(0), "echo", WEFT_VALUES(weft_of_tensor(x)), &options, NULL),
                WEFT_ERR_SHAPE);
        weft_tensor_unref(place);
        weft_tensor_unref(x);
    }
}

static void play_reads_only(void (*program)(weft_agent *, void *), uint64_t seeds)
{
    shared.from = 1;
    world_play(
        &(world){.size = 2, WORLD_FUNCTIONS(functions), .program = program, .begin = begin, .adjust = reads_only},
        seeds, 0);
}

static void test_results_are_pulled(void **s)
{
    play_reads_only(land_results, 20);
    play_reads_only(count_at_both, 5);
}

/* ---- Places that are added to ------------------------------------------------------------------------------------ */

enum { ADDERS = 4, TIMES = 6 };

static struct sums {
    world *w;
    weft_tensor *large, *small; /* the places */
    atomic_int added;           /* calls whose handlers ran */
    atomic_int finished;
    int64_t count;
    bool misfit;
} sums;

/* The first tensor is added to `large`, the second to `small`, a third stays alone. */
static weft_tensor *land_in_sums(int from_rank, size_t index, weft_dtype dtype, weft_shape shape, void *user)
{
    MUST(user == &sums);
    if (index == 1 && sums.misfit)
        return tensor_zeros(WEFT_SHAPE(7, 2), WEFT_DTYPE_FLOAT32);
    return index > 1 ? NULL : weft_tensor_ref(index ? sums.small : sums.large);
}

static weft_status run_add(weft_call *call, void *user)
{
    MUST(weft_call_tensor(call, 0) == sums.large && weft_call_tensors(call, 1).items[0] == sums.small);
    MUST(weft_tensor_get_f64(weft_call_tensors(call, 1).items[1], 0) == 5); /* as it came */
    atomic_fetch_add(&sums.added, 1);
    return WEFT_OK;
}

static weft_status run_wait(weft_call *call, void *user)
{
    while (!atomic_load(&sums.finished))
        world_sleep_ms(sums.w, 1);
    return WEFT_OK;
}

static const weft_function adding[] = {
    {.name = "add",
     .takes = {WEFT_TYPE_TENSOR, WEFT_TYPE_TENSORS},
     .run = run_add,
     .land = land_in_sums,
     .flags = WEFT_FUNCTION_LAND_ADD,
     .user = &sums},
    {.name = "wait", .run = run_wait},
    {.name = "heard", .run = world_run_nothing, .flags = WEFT_FUNCTION_INLINE},
};

/* What one call brings: 1 for every element of the first, 2 and 5 for those of the others. */
typedef struct load {
    weft_tensor *ones, *two[2];
} load;

static load make_load(void)
{
    load l = {.ones = tensor_full(WEFT_SHAPE(sums.count), WEFT_DTYPE_FLOAT32, 1)};
    l.two[0] = tensor_full(WEFT_SHAPE(3), WEFT_DTYPE_INT32, 2);
    l.two[1] = tensor_full(WEFT_SHAPE(2), WEFT_DTYPE_FLOAT64, 5);
    return l;
}

static void drop_load(load *l)
{
    weft_tensor_unref(l->ones);
    weft_tensor_unref(l->two[0]);
    weft_tensor_unref(l->two[1]);
}

static weft_status send_load(weft_agent *agent, const load *l, char *text, size_t room)
{
    weft_error *error = NULL;
    weft_args args = WEFT_VALUES(weft_of_tensor(l->ones), weft_of_tensors((weft_tensors){(weft_tensor **)l->two, 2}));
    weft_status status = weft_rpc_sync(agent, weft_to_rank(0), "add", args, &(weft_rpc_options){.error = &error}, NULL);
    if (text)
        snprintf(text, room, "%s", weft_error_message(error));
    weft_error_unref(error);
    return status;
}

static void assert_sums(int calls)
{
    for (int64_t i = 0; i < sums.count; i++)
        if (weft_tensor_get_f64(sums.large, i) != calls)
            MUST(!"every element was added to once for every call");
    for (int64_t i = 0; i < 3; i++)
        MUST(weft_tensor_get_f64(sums.small, i) == 2 * calls);
}

/* All ranks add to rank 0's places at once, itself too. */
static void add_at_once(weft_agent *agent, void *arg)
{
    load l = make_load();
    for (int i = 0; i < TIMES; i++)
        MUST_OK(send_load(agent, &l, NULL, 0));
    drop_load(&l);
    atomic_fetch_add(&sums.finished, 1);
    while (weft_agent_rank(agent) == 0 && atomic_load(&sums.finished) < ADDERS + 1)
        world_sleep_ms(sums.w, 1);
    if (weft_agent_rank(agent) == 0)
        assert_sums(atomic_load(&sums.added));
}

/* The lanes break while the payload comes: what was missing comes again, and nothing is added twice. */
static void add_over_breaks(weft_agent *agent, void *arg)
{
    load l = make_load();
    if (weft_agent_rank(agent) == 1)
        for (int i = 0; i < TIMES; i++)
            MUST_OK(send_load(agent, &l, NULL, 0));
    drop_load(&l);
    for (int i = 0; weft_agent_rank(agent) == 0 && atomic_load(&sums.added) < TIMES; i++) {
        weft_sim_sleep(sums.w->sim, 700000 + sums.w->seed * 37000);
        if (i < 12)
            weft_sim_reset_link(sums.w->sim, 0, 1);
    }
}

/* Nothing is added of what does not fit, nor of what nobody waited for when its turn came. */
static void add_nothing(weft_agent *agent, void *arg)
{
    char text[512];
    weft_future *blocker, *future;
    load l = make_load();
    if (weft_agent_rank(agent) == 1) {
        sums.misfit = true;
        MUST_BE(send_load(agent, &l, text, sizeof(text)), WEFT_ERR_SHAPE);
        MUST(strstr(text, "tensor 1 is int32 [3]") && strstr(text, "float32 [7, 2]"));
        sums.misfit = false;
        MUST_OK(weft_rpc_async(agent, weft_to_rank(0), "wait", WEFT_NO_VALUES, NULL, &blocker));
        MUST_OK(weft_rpc_async(agent, weft_to_rank(0), "add",
                               WEFT_VALUES(weft_of_tensor(l.ones), weft_of_tensors((weft_tensors){l.two, 2})),
                               &(weft_rpc_options){.timeout_ms = 200}, &future));
        MUST_BE(weft_future_wait(future, 20000), WEFT_ERR_TIMEOUT);
        weft_future_unref(future);
        MUST_OK(
            weft_rpc_sync(agent, weft_to_rank(0), "heard", WEFT_NO_VALUES, NULL, NULL)); /* that nobody waits for it */
        atomic_store(&sums.finished, 1);
        MUST_OK(weft_future_wait(blocker, 20000));
        weft_future_unref(blocker);
        MUST_OK(send_load(agent, &l, NULL, 0)); /* and all goes on */
        MUST(atomic_load(&sums.added) == 1);
    }
    drop_load(&l);
}

static void run_adding(world_fabric fabric, uint64_t seed, int size, int64_t count,
                       void (*program)(weft_agent *, void *), int calls)
{
    world w = {.fabric = fabric, .size = size, .seed = seed, WORLD_FUNCTIONS(adding), .program = program};
    if (program == add_nothing)
        w.adjust = world_one_worker;
    sums = (struct sums){.w = &w, .count = count};
    sums.large = tensor_zeros(WEFT_SHAPE(count), WEFT_DTYPE_FLOAT32);
    sums.small = tensor_zeros(WEFT_SHAPE(3), WEFT_DTYPE_INT32);
    world_run(&w);
    assert_sums(calls);
    MUST(atomic_load(&sums.added) == calls);
    weft_tensor_unref(sums.large);
    weft_tensor_unref(sums.small);
}

static void test_adding(void **s)
{
    static const int64_t counts[] = {1, 500, 300000}; /* in meta, in the frame, pulled */
    for (int i = 0; i < 3; i++) {
        for (uint64_t seed = 1; seed <= world_seeds(10); seed++)
            run_adding(WORLD_SIM, seed, ADDERS + 1, counts[i], add_at_once, (ADDERS + 1) * TIMES);
        run_adding(WORLD_TCP, 0, ADDERS + 1, counts[i], add_at_once, (ADDERS + 1) * TIMES);
    }
    run_adding(WORLD_TCP, 0, ADDERS + 1, 3000000, add_at_once, (ADDERS + 1) * TIMES);
}

static void test_adding_over_breaks(void **s)
{
    for (uint64_t seed = 1; seed <= world_seeds(10); seed++)
        run_adding(WORLD_SIM, seed, 2, 1000000, add_over_breaks, TIMES);
}

static void test_adding_nothing(void **s)
{
    for (uint64_t seed = 1; seed <= world_seeds(10); seed++)
        run_adding(WORLD_SIM, seed, 2, 100000, add_nothing, 1);
    run_adding(WORLD_TCP, 0, 2, 100000, add_nothing, 1);
}

/* ---- Tapes, and optimizers ------------------------------------------------------------------------------------ */

/* The tape kept `place` before it changed: going back would use what is not there any more. */
static void tape_must_miss(weft_tape *t, weft_tensor *loss)
{
    weft_backward(t, loss);
    MUST_BE(weft_tape_status(t), WEFT_ERR_STATE);
    weft_tape_close(t);
}

static weft_tape *tape_keeping(weft_tensor *place, weft_tensor **loss)
{
    weft_tape *t = weft_tape_open(&(weft_tape_options){.record = true});
    weft_tensor_set_requires_grad(place, true);
    *loss = weft_sum(t, weft_mul(t, place, place));
    MUST_OK(weft_tape_status(t));
    return t;
}

/* Arguments that land where the callee says, and results where the caller does: whichever way their bytes take. */
static void land_under_tapes(weft_agent *agent, void *arg)
{
    static const int64_t counts[] = {1, 10, 400, 300000}; /* in meta, in the frame, pulled or pushed */
    for (size_t i = 0; weft_agent_rank(agent) == shared.from && i < sizeof(counts) / sizeof(*counts); i++) {
        weft_tensor *x = tensor_arange(counts[i], WEFT_DTYPE_FLOAT32), *loss;
        shared.place = tensor_zeros(WEFT_SHAPE(counts[i]), WEFT_DTYPE_FLOAT32);
        weft_tape *t = tape_keeping(shared.place, &loss);
        MUST_OK(send_there(agent, x));
        tape_must_miss(t, loss);
        t = tape_keeping(shared.place, &loss);
        MUST_OK(weft_rpc_sync(agent, weft_to_rank(0), "echo", WEFT_VALUES(weft_of_tensor(x)),
                              &(weft_rpc_options){.land = {&shared.place, 1}}, NULL));
        tape_must_miss(t, loss);
        weft_tensor_unref(shared.place);
        weft_tensor_unref(x);
    }
}

static void test_tapes_notice_landing(void **s)
{
    play_reads_only(land_under_tapes, 5);
    run_both(land_under_tapes, 1);
    run_both(land_under_tapes, 0);
}

static void add_under_a_tape(weft_agent *agent, void *arg)
{
    load l = make_load();
    weft_tensor *loss;
    if (weft_agent_rank(agent) == 1) {
        weft_tape *t = tape_keeping(sums.large, &loss);
        MUST_OK(send_load(agent, &l, NULL, 0));
        tape_must_miss(t, loss);
    }
    drop_load(&l);
}

static void test_tapes_notice_adding(void **s)
{
    run_adding(WORLD_SIM, 1, 2, 500, add_under_a_tape, 1);
}

/* A call that ends while its results land has changed the place as well. */
static void cancel_while_it_lands(weft_agent *agent, void *arg)
{
    enum { COUNT = 3000000 };
    const world *w = arg;
    weft_future *future;
    weft_tensor *loss;
    if (weft_agent_rank(agent) != 1)
        return;
    weft_tensor *x = tensor_full(WEFT_SHAPE(COUNT), WEFT_DTYPE_FLOAT32, 1),
                *place = tensor_zeros(WEFT_SHAPE(COUNT), WEFT_DTYPE_FLOAT32);
    weft_tape *t = tape_keeping(place, &loss);
    MUST_OK(weft_rpc_async(agent, weft_to_rank(0), "echo", WEFT_VALUES(weft_of_tensor(x)),
                           &(weft_rpc_options){.land = {&place, 1}}, &future));
    while (weft_tensor_get_f64(place, 0) == 0)
        weft_sim_sleep(w->sim, 10000);
    MUST_OK(weft_future_cancel(future));
    MUST_BE(weft_future_wait(future, WEFT_FOREVER), WEFT_ERR_CANCELLED);
    tape_must_miss(t, loss);
    weft_future_unref(future);
    weft_tensor_unref(place);
    weft_tensor_unref(x);
}

WORLD_TEST(cancel_while_it_lands, 1, 0, .size = 2, WORLD_FUNCTIONS(functions))

static void test_cancel_while_it_is_pulled(void **s)
{
    play_reads_only(cancel_while_it_lands, 5);
}

static weft_tensor *weights; /* of whoever steps */

/* A step in place, which waits until nobody reads: at once, or not at all. */
static weft_status step_at_once(void)
{
    weft_optimizer *sgd =
        optimizer_create((weft_tensors){&weights, 1},
                         &(weft_optimizer_spec){.type = &weft_sgd_type, .lr = 1, .pin_timeout_ms = 1}, NULL);
    weft_status status = weft_optimizer_accumulate(sgd, (weft_tensors){&weights, 1});
    status = status ? status : weft_optimizer_step(sgd);
    weft_optimizer_unref(sgd);
    return status;
}

static weft_status run_step(weft_call *call, void *user)
{
    return step_at_once();
}

static weft_status run_weights(weft_call *call, void *user)
{
    weft_call_give(call, WEFT_VALUES(weft_of_tensor(weights)));
    return WEFT_OK;
}

static const weft_function stepping[] = {
    {.name = "weights", .gives = {WEFT_TYPE_TENSOR}, .run = run_weights},
    {.name = "step", .run = run_step},
    {.name = "echo", .takes = {WEFT_TYPE_TENSOR}, .gives = {WEFT_TYPE_TENSOR}, .run = world_run_echo},
};

/* What a call reads is pinned until it has been read, and not longer. A later call of the same caller comes behind
 * what it says of the former ones: so no step has to wait. */
static void step_after_reading(weft_agent *agent, void *arg)
{
    if (weft_agent_rank(agent) != 1)
        return;
    weft_tensor *place = tensor_zeros(weft_tensor_shape(weights), WEFT_DTYPE_FLOAT32);
    const weft_rpc_options ways[] = {{0}, {.land = {&place, 1}}};
    for (int i = 0; i < 2; i++) {
        MUST_OK(weft_rpc_sync(agent, weft_to_rank(0), "weights", WEFT_NO_VALUES, &ways[i], NULL));
        MUST_OK(weft_rpc_sync(agent, weft_to_rank(0), "step", WEFT_NO_VALUES, NULL, NULL));
    }
    MUST_OK(weft_rpc_sync(agent, weft_to_rank(0), "echo", WEFT_VALUES(weft_of_tensor(weights)), NULL, NULL));
    MUST_OK(step_at_once());
    weft_tensor_unref(place);
}

static void test_nothing_stays_pinned(void **s)
{
    weights = tensor_full(WEFT_SHAPE(300000), WEFT_DTYPE_FLOAT32, 1);
    world w = {.fabric = WORLD_TCP, .size = 2, WORLD_FUNCTIONS(stepping), .program = step_after_reading};
    world_run(&w);
    weft_tensor_unref(weights);
}

/* ---- What an error says --------------------------------------------------------------------------------------- */

static void say_what_does_not_fit(weft_agent *agent, void *arg)
{
    weft_error *error = NULL;
    if (weft_agent_rank(agent) != 1)
        return;
    weft_tensor *x = tensor_zeros(WEFT_SHAPE(2, 300), WEFT_DTYPE_FLOAT32);
    shared = (struct shared){.from = 1, .place = tensor_zeros(WEFT_SHAPE(5), WEFT_DTYPE_INT64)};
    MUST_BE(weft_rpc_sync(agent, weft_to_rank(0), "take", WEFT_VALUES(weft_of_tensor(x)),
                          &(weft_rpc_options){.error = &error}, NULL),
            WEFT_ERR_SHAPE);
    MUST(strstr(weft_error_message(error), "tensor 0 is float32 [2, 300], its landing place is int64 [5]"));
    weft_error_unref(error);
    for (int rank = 0; rank < 2; rank++) { /* the caller's place, for a result of another worker, of its own */
        error = NULL;
        weft_rpc_options options = {.error = &error, .land = {&shared.place, 1}};
        MUST_BE(weft_rpc_sync(agent, weft_to_rank(rank), "echo", WEFT_VALUES(weft_of_tensor(x)), &options, NULL),
                WEFT_ERR_SHAPE);
        MUST(strstr(weft_error_message(error),
                    "tensor 0 of the results is float32 [2, 300], its landing place is int64 [5]"));
        weft_error_unref(error);
    }
    weft_tensor_unref(shared.place);
    weft_tensor_unref(x);
}

WORLD_TEST(say_what_does_not_fit, 1, 0, .size = 2, WORLD_FUNCTIONS(functions))

UNIT_MAIN(test_adding, test_adding_over_breaks, test_adding_nothing, test_say_what_does_not_fit, test_requests_land,
          test_results_are_pulled, test_cancel_while_it_is_pulled, test_counters, test_tapes_notice_landing,
          test_tapes_notice_adding, test_cancel_while_it_lands, test_nothing_stays_pinned)
