/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_cartpole_crowd.c - 64 observers and an agent whose executor has one worker: one evaluation of the policy a
 * step for all of them, and no thread waits while calls do.
 */
#include <weft/weft.h>

#include "rpc/world.h"
#include "tensors.h"

#include <learner.h>
#include <observer.h>
#include <pole.h>

#define OBSERVERS 64
#define WORLD (OBSERVERS + 1)
#define STEPS 12
#define LAST OBSERVERS /* the rank that comes when the others wait */

static const cart_settings set = {
    .world_size = WORLD, .steps = STEPS, .envs = 2, .hidden = 16, .seed = 5, .dropout = 0.6, .lr = 0.01, .gamma = 1};
static cart_learner *learner;
static world *now;
static int ranks[OBSERVERS];
static double lengths[2][WORLD]; /* of first trajectories, by form and rank */
static int form;                 /* 0: batched, 1: plain */

/* ---- The agent's functions --------------------------------------------------------------------------------------- */

static weft_status select_actions(weft_batch *batch, void *user)
{
    int from[OBSERVERS] = {0};
    size_t count = weft_batch_count(batch);
    MUST(count <= OBSERVERS);
    for (size_t i = 0; i < count; i++) {
        weft_call *call = weft_batch_call(batch, i);
        if (!cart_learner_admit(learner, call))
            from[i] = weft_call_from(call);
    }
    weft_tensor *states = weft_batch_tensor(batch, 1);
    weft_batch_give(batch, 0, cart_learner_decide(learner, weft_batch_tape(batch), from, (int64_t)count, states));
    return WEFT_OK;
}

static weft_status select_action(weft_call *call, void *user)
{
    const int from = weft_call_from(call);
    weft_tape *t = weft_call_tape(call);
    weft_status status = cart_learner_admit(learner, call);
    if (status)
        return status;
    weft_tensor *actions = cart_learner_decide(learner, t, &from, 1, weft_call_tensor(call, 1));
    weft_call_give(call, WEFT_VALUES(weft_of_tensor(weft_select(t, actions, 0, 0))));
    return weft_tape_status(t);
}

/* Runs on the one worker that there is. */
static weft_status count_waiting(weft_call *call, void *user)
{
    weft_batch_stats stats;
    weft_status status = weft_batch_stats_read(weft_call_agent(call), CART_SELECT_ACTION, &stats);
    weft_call_give(call, WEFT_VALUES(weft_of_i64((int64_t)stats.waiting)));
    return status;
}

static weft_function functions[3];

static void choose_form(int chosen)
{
    form = chosen;
    functions[0] = cart_run_episode;
    functions[1] = (weft_function){.name = "count_waiting", .gives = {WEFT_TYPE_I64}, .run = count_waiting};
    functions[2] = (weft_function){
        .name = CART_SELECT_ACTION, .takes = {WEFT_TYPE_I64, WEFT_TYPE_TENSOR}, .gives = {WEFT_TYPE_TENSOR}};
    if (form == 0) {
        functions[2].run_batch = select_actions;
        functions[2].batch = (weft_batch_options){
            .size = OBSERVERS, .wait_us = WEFT_FOREVER, .callers = ranks, .caller_count = OBSERVERS};
    } else {
        functions[2].run = select_action;
    }
}

static void one_worker(weft_agent_options *options, void *arg)
{
    options->threads = 1;
    options->death_timeout_ms = 30000;
}

static void run_world(world_fabric fabric, int chosen, void (*program)(weft_agent *, void *))
{
    choose_form(chosen);
    world w = {.fabric = fabric,
               .size = WORLD,
               .seed = 1,
               WORLD_FUNCTIONS(functions),
               .program = program,
               .adjust = one_worker};
    now = &w;
    learner = cart_learner_create(&set);
    MUST(learner);
    cart_learner_begin(learner, 0);
    world_run(&w);
    cart_learner_free(learner);
}

/* ---- An episode of all ------------------------------------------------------------------------------------------- */

static void expect_full_batches(weft_agent *agent)
{
    weft_batch_stats stats;
    MUST_OK(weft_batch_stats_read(agent, CART_SELECT_ACTION, &stats));
    MUST(stats.batches == STEPS);
    MUST(stats.calls == STEPS * OBSERVERS);
    MUST(stats.size_max == OBSERVERS);
    MUST(stats.left_out == 0 && stats.refused == 0 && stats.waiting == 0);
}

static void play(weft_agent *agent, void *arg)
{
    weft_future *episodes[WORLD];
    weft_args about = WEFT_VALUES(weft_of_i64(0), weft_of_i64(set.envs), weft_of_i64(STEPS), weft_of_f64(set.gamma),
                                  weft_of_i64(set.seed));
    const weft_rpc_options how = {.timeout_ms = WEFT_FOREVER};
    if (weft_agent_rank(agent) != 0)
        return; /* its episode runs while it closes */
    for (int rank = 1; rank < WORLD; rank++)
        MUST_OK(weft_rpc_async(agent, weft_to_rank(rank), "run_episode", about, &how, &episodes[rank]));
    for (int rank = 1; rank < WORLD; rank++) {
        MUST_OK(weft_future_wait(episodes[rank], WEFT_FOREVER));
        MUST_OK(weft_values_get_f64(weft_future_values(episodes[rank]), 1, &lengths[form][rank]));
        weft_future_unref(episodes[rank]);
    }
    MUST(cart_learner_evaluations(learner) == (form == 0 ? STEPS : STEPS * OBSERVERS));
    if (form == 0)
        expect_full_batches(agent);
}

static void one_evaluation_a_step_for_all(world_fabric fabric)
{
    memset(lengths, 0, sizeof(lengths));
    run_world(fabric, 0, play);
    run_world(fabric, 1, play);
    for (int rank = 1; rank < WORLD; rank++) {
        assert_true(lengths[0][rank] > 0);
        assert_true(lengths[0][rank] == lengths[1][rank]);
    }
}

static void one_evaluation_a_step_on_sim(void **state)
{
    one_evaluation_a_step_for_all(WORLD_SIM);
}

static void one_evaluation_a_step_on_tcp(void **state)
{
    one_evaluation_a_step_for_all(WORLD_TCP);
}

/* ---- No thread waits --------------------------------------------------------------------------------------------- */

/* While all the others' calls wait, the agent's only worker serves this one's. */
static void await_others(weft_agent *agent)
{
    int64_t waiting = -1;
    for (int i = 0; i < 20000 && waiting != OBSERVERS - 1; i++) {
        weft_values *values;
        MUST_OK(weft_rpc_sync(agent, weft_to_rank(0), "count_waiting", WEFT_NO_VALUES, NULL, &values));
        MUST_OK(weft_values_get_i64(values, 0, &waiting));
        weft_values_unref(values);
        if (waiting != OBSERVERS - 1)
            world_sleep_ms(now, 1);
    }
    MUST(waiting == OBSERVERS - 1);
}

/* An agent that closes waits for nobody's call to fill a batch. */
static void stay_until_all_came(weft_agent *agent)
{
    weft_batch_stats stats = {0};
    for (int i = 0; i < 60000 && stats.calls < STEPS * OBSERVERS; i++) {
        world_sleep_ms(now, 1);
        MUST_OK(weft_batch_stats_read(agent, CART_SELECT_ACTION, &stats));
    }
    expect_full_batches(agent);
    MUST(stats.by_callers + stats.by_size == STEPS);
}

static void call_for_steps(weft_agent *agent, void *arg)
{
    const weft_rpc_options how = {.timeout_ms = WEFT_FOREVER};
    int rank = weft_agent_rank(agent);
    if (rank == 0) {
        stay_until_all_came(agent);
        return;
    }
    weft_tensor *states = tensor_zeros(WEFT_SHAPE(set.envs, CARTPOLE_STATE), WEFT_DTYPE_FLOAT32);
    for (int64_t step = 0; step < STEPS; step++) {
        weft_values *values;
        weft_tensor *actions;
        if (rank == LAST)
            await_others(agent);
        MUST_OK(weft_rpc_sync(agent, weft_to_rank(0), CART_SELECT_ACTION,
                              WEFT_VALUES(weft_of_i64(step), weft_of_tensor(states)), &how, &values));
        MUST_OK(weft_values_get_tensor(values, 0, &actions));
        MUST(weft_tensor_numel(actions) == set.envs);
        weft_values_unref(values);
    }
    weft_tensor_unref(states);
}

static void no_thread_waits_on_sim(void **state)
{
    run_world(WORLD_SIM, 0, call_for_steps);
}

static void no_thread_waits_on_tcp(void **state)
{
    run_world(WORLD_TCP, 0, call_for_steps);
}

/* ---- What does not fit ------------------------------------------------------------------------------------------- */

static void expect_refusal(weft_agent *agent, int64_t step, weft_shape shape, weft_status inner)
{
    weft_error *error = NULL;
    weft_tensor *states = tensor_zeros(shape, WEFT_DTYPE_FLOAT32);
    MUST(weft_rpc_sync(agent, weft_to_rank(0), CART_SELECT_ACTION,
                       WEFT_VALUES(weft_of_i64(step), weft_of_tensor(states)), &(weft_rpc_options){.error = &error},
                       NULL) == WEFT_ERR_REMOTE);
    MUST(weft_error_handler_code(error) == inner);
    weft_error_unref(error);
    weft_tensor_unref(states);
}

static void call_wrongly(weft_agent *agent, void *arg)
{
    if (weft_agent_rank(agent) != 1)
        return;
    expect_refusal(agent, 0, WEFT_SHAPE(set.envs, 3), WEFT_ERR_SHAPE);
    expect_refusal(agent, 0, WEFT_SHAPE(set.envs + 1, CARTPOLE_STATE), WEFT_ERR_SHAPE);
    expect_refusal(agent, 1, WEFT_SHAPE(set.envs, CARTPOLE_STATE), WEFT_ERR_STATE);
    expect_refusal(agent, -1, WEFT_SHAPE(set.envs, CARTPOLE_STATE), WEFT_ERR_STATE);
    MUST(cart_learner_evaluations(learner) == 0);
}

static void wrong_calls_are_refused(void **state)
{
    run_world(WORLD_SIM, 1, call_wrongly);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_evaluation_a_step_on_sim), cmocka_unit_test(one_evaluation_a_step_on_tcp),
        cmocka_unit_test(no_thread_waits_on_sim),       cmocka_unit_test(no_thread_waits_on_tcp),
        cmocka_unit_test(wrong_calls_are_refused),
    };
    for (int i = 0; i < OBSERVERS; i++)
        ranks[i] = i + 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
