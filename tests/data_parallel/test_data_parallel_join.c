/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_data_parallel_join.c - members that run out of data: all go on with the model of the first of those who
 * trained to the end, over several epochs, also with an optimizer that has a state of its own; sums that would be
 * lost; deaths meanwhile.
 *
 * The loss of a member is c / 2 times the sum of squares of all parameters v, with c its number from 1 on, so its
 * gradient is c v: the average is known if all have the same v, and shows it if they have not.
 */
#include "rpc/world.h"
#include "make.h"
#include "tensors.h"

#include <math.h>

enum { MOST = 4, VECTORS = 3, EPOCHS = 2, MEET_MS = 20000 };

typedef struct scene {
    world w;
    weft_data_parallel_options options;
    int passes[EPOCHS][MOST]; /* by member */
    int last[EPOCHS];         /* whose model all have then */
    uint64_t delay_ns;        /* of the victim's death */
    bool has_momentum;
} scene;

enum { VICTIM = 1 };

typedef struct member {
    int index;
    weft_group *group, *meet; /* meet: for what the test itself exchanges */
    weft_module *module;
    weft_tensor *buffer; /* borrowed */
    weft_data_parallel *parallel;
} member;

static weft_tensor *forward(weft_tape *tape, weft_module *self, weft_tensor *x)
{
    return x;
}

static const weft_module_type vectors_type = {.name = "Vectors", .forward = forward};

static member open_member(weft_agent *agent, const scene *s)
{
    member me = {.index = weft_agent_rank(agent), .module = module_create(&vectors_type, NULL, NULL)};
    for (int i = 0; i < VECTORS; i++) {
        char name[24];
        snprintf(name, sizeof(name), "v%d", i);
        weft_module_add_parameter(me.module, name, tensor_full(WEFT_SHAPE(3 + i), WEFT_DTYPE_FLOAT64, 1 + 0.3 * i));
    }
    me.buffer = tensor_full(WEFT_SHAPE(2), WEFT_DTYPE_INT64, 0);
    weft_module_add_buffer(me.module, "count", me.buffer);
    MUST_OK(weft_module_status(me.module));
    weft_data_parallel_options options = s->options;
    options.uneven = true;
    MUST_OK(weft_group_open(agent, "all", NULL, 0, 0, &me.group, NULL));
    MUST_OK(weft_group_open(agent, "meet", NULL, 0, 0, &me.meet, NULL));
    MUST_OK(weft_data_parallel_create(me.group, me.module, &options, &me.parallel, NULL));
    return me;
}

static void close_member(member *me)
{
    weft_data_parallel_unref(me->parallel);
    weft_module_unref(me->module);
    weft_group_close(me->meet);
    weft_group_close(me->group);
}

/* The tape is yours. */
static weft_tape *run_pass(const member *me, double scale)
{
    weft_tape *t = weft_tape_open(&(weft_tape_options){.record = true});
    weft_tensors parameters = weft_module_parameters(me->module);
    weft_tape_set_hooks(t, weft_data_parallel_hooks(me->parallel));
    weft_tensor *loss = NULL;
    for (size_t i = 0; i < parameters.count; i++) {
        weft_tensor *squares = weft_sum(t, weft_mul(t, parameters.items[i], parameters.items[i]));
        loss = loss ? weft_add(t, loss, squares) : squares;
    }
    weft_backward(t, weft_scale(t, loss, scale * (me->index + 1) / 2));
    return t;
}

/* Each parameter's gradient is `factor` times the parameter. */
static void must_be_times(const member *me, weft_tape *t, double factor)
{
    weft_tensors parameters = weft_module_parameters(me->module);
    MUST_OK(weft_tape_status(t));
    for (size_t i = 0; i < parameters.count; i++)
        for (int64_t k = 0; k < weft_tensor_numel(parameters.items[i]); k++) {
            double wanted = factor * weft_tensor_get_f64(parameters.items[i], k);
            MUST(fabs(weft_tensor_get_f64(weft_tape_grad(t, parameters.items[i]), k) - wanted) < 1e-12);
        }
}

/* The average of the numbers of those who still train. */
static double average_of(const scene *s, const weft_group *group, int epoch, int step)
{
    double sum = 0, count = 0;
    for (int i = 0; i < (int)weft_group_size(group); i++)
        if (s->passes[epoch][i] > step) {
            sum += i + 1;
            count++;
        }
    return sum / (s->options.divide_by_all ? (double)weft_group_size(group) : count);
}

/* ---- One model --------------------------------------------------------------------------------------------------- */

/* Bit for bit what that member has in `copies`, of parameters and then buffers. */
static void must_be_of(const member *me, int root, weft_tensor *const *copies)
{
    weft_tensors parameters = weft_module_parameters(me->module);
    for (size_t i = 0; i <= parameters.count; i++) {
        weft_tensor *wanted = tensor_clone(copies[i]);
        weft_tensor *found = tensor_clone(i < parameters.count ? parameters.items[i] : me->buffer);
        MUST_OK(weft_group_broadcast(me->meet, wanted, (size_t)root, MEET_MS));
        MUST(memcmp(weft_tensor_data(found), weft_tensor_data(wanted), weft_tensor_nbytes(wanted)) == 0);
        weft_tensor_unref(wanted);
        weft_tensor_unref(found);
    }
}

/* The state of the member that has trained most, the first of several, on all: what docs/data-parallel.md says. */
static void share_state(const member *me, weft_optimizer *optimizer, int steps)
{
    weft_optimizer_state state[2 * VECTORS];
    weft_value items[3 * 2 * VECTORS];
    weft_values *counts, *all;
    size_t count = weft_optimizer_state_count(optimizer), root = 0;
    MUST_OK(weft_group_allgather_values(me->meet, WEFT_VALUES(weft_of_i64(steps)), MEET_MS, &counts));
    for (size_t i = 1; i < weft_group_size(me->meet); i++)
        if (weft_values_args(counts).items[i].as.list.items[0].as.i64 >
            weft_values_args(counts).items[root].as.list.items[0].as.i64)
            root = i;
    for (size_t i = 0; i < count; i++) {
        MUST_OK(weft_optimizer_ref_state(optimizer, i, &state[i]));
        items[3 * i] = weft_of_i64((int64_t)state[i].parameter);
        items[3 * i + 1] = weft_of_string(state[i].name);
        items[3 * i + 2] = weft_of_tensor(state[i].tensor);
    }
    size_t gives = root == (size_t)me->index ? 3 * count : 0;
    MUST_OK(weft_group_allgather_values(me->meet, (weft_args){items, gives}, MEET_MS, &all));
    for (size_t i = 0; i < count; i++)
        weft_tensor_unref(state[i].tensor);
    weft_args given = weft_values_args(all).items[root].as.list;
    for (size_t i = 0; i < given.count / 3; i++)
        state[i] = (weft_optimizer_state){(size_t)given.items[3 * i].as.i64, "momentum_buffer",
                                          given.items[3 * i + 2].as.tensor};
    MUST_OK(weft_optimizer_set_state(optimizer, state, given.count / 3, NULL));
    weft_values_unref(counts);
    weft_values_unref(all);
}

static void epochs(weft_agent *agent, void *arg)
{
    const scene *s = arg;
    member me = open_member(agent, s);
    weft_tensors parameters = weft_module_parameters(me.module);
    weft_optimizer *sgd = optimizer_create(
        parameters,
        &(weft_optimizer_spec){.type = &weft_sgd_type, .lr = 0.01, .sgd.momentum = s->has_momentum ? 0.9 : 0}, NULL);
    for (int epoch = 0; epoch < EPOCHS; epoch++) {
        weft_tensor *mine[VECTORS + 1];
        for (int step = 0; step < s->passes[epoch][me.index]; step++) {
            weft_tape *t = run_pass(&me, 1);
            must_be_times(&me, t, average_of(s, me.group, epoch, step));
            MUST_OK(weft_optimizer_apply(sgd, weft_tape_gradients(t, parameters)));
            weft_tape_close(t);
        }
        weft_tensor_fill(me.buffer, 10 * epoch + me.index);
        for (size_t i = 0; i <= VECTORS; i++)
            mine[i] = tensor_clone(i < VECTORS ? parameters.items[i] : me.buffer);
        MUST_OK(weft_data_parallel_join(me.parallel));
        must_be_of(&me, s->last[epoch], mine);
        for (size_t i = 0; i <= VECTORS; i++)
            weft_tensor_unref(mine[i]);
        if (s->has_momentum)
            share_state(&me, sgd, s->passes[epoch][me.index]);
    }
    weft_optimizer_unref(sgd);
    close_member(&me);
}

static void run_epochs(int size, scene s)
{
    for (int on_tcp = 0; on_tcp < 2; on_tcp++) {
        scene one = s;
        one.w =
            (world){.fabric = on_tcp ? WORLD_TCP : WORLD_SIM, .size = size, .seed = 7, .program = epochs, .arg = &one};
        world_run(&one.w);
    }
}

static void test_epochs(void **state)
{
    run_epochs(3, (scene){.passes = {{1, 2, 3}, {3, 1, 2}}, .last = {2, 0}});
    run_epochs(4, (scene){.passes = {{1, 3, 3, 2}, {0, 0, 2, 2}}, .last = {1, 2}, .options.divide_by_all = true});
    /* All at once, after passes or without any: member 0's. */
    run_epochs(3, (scene){.passes = {{2, 2, 2}, {0, 0, 0}}, .last = {0, 0}});
    run_epochs(3, (scene){.passes = {{0, 0, 3}, {0, 1, 0}}, .last = {2, 1}, .options.first_bucket_bytes = 1});
    run_epochs(2, (scene){.passes = {{0, 2}, {2, 0}}, .last = {1, 0}, .options.find_unused = true});
    run_epochs(1, (scene){.passes = {{2}, {0}}, .last = {0, 0}});
}

/* In the second epoch all train as often, and without a join they still have the same: momentum is alike. */
static void test_state(void **state)
{
    run_epochs(3, (scene){.passes = {{0, 3, 1}, {2, 2, 2}}, .last = {1, 0}, .has_momentum = true});
    run_epochs(3, (scene){.passes = {{0, 1, 4}, {2, 3, 2}}, .last = {2, 1}, .has_momentum = true});
}

/* ---- Sums of passes that reduced nothing ---------------------------------------------------------------------- */

static void sums_are_left(weft_agent *agent, void *arg)
{
    const scene s = {0};
    member me = open_member(agent, &s);
    double average = (double)(weft_group_size(me.group) + 1) / 2;
    weft_data_parallel_set_sync(me.parallel, false);
    weft_tape_close(run_pass(&me, 1));
    weft_data_parallel_set_sync(me.parallel, true);
    MUST_BE(weft_data_parallel_join(me.parallel), WEFT_ERR_STATE);
    MUST(!weft_group_error(me.group));
    weft_tape *t = run_pass(&me, 0); /* no data is left: the sums alone */
    must_be_times(&me, t, average);
    weft_tape_close(t);
    MUST_OK(weft_data_parallel_join(me.parallel));
    close_member(&me);
}

/* ---- Deaths ------------------------------------------------------------------------------------------------------ */

static void killer(weft_sim *sim, int rank, void *arg)
{
    const scene *s = arg;
    weft_sim_sleep(sim, s->delay_ns);
    weft_sim_kill(sim, VICTIM);
}

/* The number that all elements of parameters and buffers are; there is one. */
static double number_of(const member *me)
{
    weft_tensors parameters = weft_module_parameters(me->module);
    double number = weft_tensor_get_f64(parameters.items[0], 0);
    for (size_t i = 0; i < parameters.count; i++)
        for (int64_t k = 0; k < weft_tensor_numel(parameters.items[i]); k++)
            MUST(weft_tensor_get_f64(parameters.items[i], k) == number);
    MUST(weft_tensor_get_f64(me->buffer, 0) == number && weft_tensor_get_f64(me->buffer, 1) == number);
    return number;
}

static int joined, cut_short; /* members, over all rounds */

/* The last member trains on while the others have joined; one of those dies. A module is its member's or the last
 * one's, whole. */
static void with_death(weft_agent *agent, void *arg)
{
    const scene *s = arg;
    member me = open_member(agent, s);
    int last = (int)weft_group_size(me.group) - 1;
    weft_tensors parameters = weft_module_parameters(me.module);
    for (size_t i = 0; i < parameters.count; i++)
        weft_tensor_fill(parameters.items[i], me.index);
    weft_tensor_fill(me.buffer, me.index);
    MUST_OK(weft_group_barrier(me.meet, MEET_MS));
    if (me.index == 0)
        MUST_OK(weft_sim_spawn(s->w.sim, 0, killer, arg));
    weft_status status = WEFT_OK;
    for (int i = 0; i < 2 && !status && me.index == last; i++) {
        weft_tape *t = run_pass(&me, 1);
        status = weft_tape_status(t);
        weft_tape_close(t);
    }
    if (!status)
        status = weft_data_parallel_join(me.parallel);
    MUST(!status || status == WEFT_ERR_PEER_DEAD);
    MUST(number_of(&me) == (status ? me.index : last));
    joined += !status;
    cut_short += status != WEFT_OK;
    world_sleep_ms((world *)&s->w, 10000); /* until all have heard of it */
    MUST_BE(weft_data_parallel_join(me.parallel), WEFT_ERR_PEER_DEAD);
    MUST(weft_error_worker(weft_group_error(me.group)) == VICTIM);
    close_member(&me);
}

static void adjust(weft_agent_options *options, void *arg)
{
    options->death_timeout_ms = 2000;
}

static void test_deaths(void **state)
{
    joined = cut_short = 0;
    uint64_t rounds = world_seeds(60), span_ns = 180000; /* within which all have joined */
    for (uint64_t round = 0; round <= rounds; round++) {
        scene s = {.w = {.fabric = WORLD_SIM,
                         .size = 4,
                         .seed = round,
                         .program = with_death,
                         .adjust = adjust,
                         .close_may_fail = true},
                   .delay_ns = round * span_ns / rounds};
        s.w.arg = &s;
        world_run(&s.w);
    }
    assert_true(joined > 0 && cut_short > 0);
}

WORLD_TEST(sums_are_left, 2, 1, .size = 3)
UNIT_MAIN(test_epochs, test_state, test_sums_are_left, test_deaths)
