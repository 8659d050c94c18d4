/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_data_parallel_frozen.c - parameters that are frozen or thawed after weft_data_parallel_create. A thawed one
 * fails the pass, on one member or on all, also while a member dies, stops or is cut off.
 *
 * The module is a linear layer with a weight and a bias, the input is 1, and the loss is scaled by the member's number,
 * from 1 on. So each element of each gradient is that number, and its average is known.
 */
#include "data_parallel/member.h"
#include "make.h"
#include "tensors.h"

enum { WIDTH = 3, SIZE = 3, ODD = 1 };

typedef struct member {
    weft_group *group, *meet; /* meet: for what the test itself exchanges */
    weft_module *module;
    weft_tensor *weight, *bias; /* borrowed */
    weft_data_parallel *parallel;
    int index, size;
} member;

static void make_parallel(member *me, weft_data_parallel_options options)
{
    if (!options.timeout_ms)
        options.timeout_ms = WEFT_FOREVER; /* who waits in vain waits until the test's time is up */
    me->parallel = NULL;
    MUST_OK(weft_data_parallel_create(me->group, me->module, &options, &me->parallel, NULL));
}

/* The weight is frozen when the object is made. */
static member open_member(weft_agent *agent, weft_data_parallel_options options)
{
    member me = {.group = make_group(agent), .module = linear_create(WIDTH, WIDTH, false, 1, NULL)};
    MUST_OK(weft_group_open(agent, "meet", NULL, 0, 0, &me.meet, NULL));
    me.index = weft_agent_rank(agent);
    me.size = weft_agent_world_size(agent);
    me.weight = weft_module_find(me.module, "weight");
    me.bias = weft_module_find(me.module, "bias");
    weft_tensor_set_requires_grad(me.weight, false);
    make_parallel(&me, options);
    return me;
}

static void close_member(member *me)
{
    weft_data_parallel_unref(me->parallel);
    weft_group_close(me->group);
    weft_group_close(me->meet);
    weft_module_unref(me->module);
}

static void meet(const member *me)
{
    MUST_OK(weft_group_barrier(me->meet, WEFT_FOREVER));
}

/* The tape is yours; the pass may have failed. */
static weft_tape *run_pass(const member *me)
{
    weft_tape *t = weft_tape_open(&(weft_tape_options){.record = true});
    weft_tape_set_hooks(t, weft_data_parallel_hooks(me->parallel));
    weft_tensor *x = weft_tape_take(t, tensor_full(WEFT_SHAPE(1, WIDTH), WEFT_DTYPE_FLOAT32, 1));
    weft_backward(t, weft_scale(t, weft_sum(t, weft_module_forward(t, me->module, x)), me->index + 1));
    return t;
}

/* Each element of the gradient is `wanted`; 0: there is none. */
static void must_be(weft_tape *t, weft_tensor *parameter, double wanted)
{
    const weft_tensor *found = weft_tape_grad(t, parameter);
    MUST((found != NULL) == (wanted != 0));
    for (int64_t i = 0; found && i < weft_tensor_numel(found); i++)
        MUST(weft_tensor_get_f64(found, i) == (float)wanted);
}

static void pass_averages(const member *me, double weight, double bias)
{
    weft_tape *t = run_pass(me);
    MUST_OK(weft_tape_status(t));
    must_be(t, me->weight, weight);
    must_be(t, me->bias, bias);
    weft_tape_close(t);
}

static void pass_fails(const member *me, const char *words)
{
    weft_tape *t = run_pass(me);
    MUST_BE(weft_tape_status(t), WEFT_ERR_STATE);
    must_say(weft_tape_error(t), words);
    weft_tape_close(t);
}

#define THAWED "parameter weight was thawed after weft_data_parallel_create"

/* ---- Thawed ------------------------------------------------------------------------------------------------------ */

typedef struct way {
    weft_data_parallel_options options;
    bool on_one;       /* member ODD alone thaws */
    bool only;         /* the other parameter is frozen, so that nothing else gets a gradient */
    bool without_sync; /* in a pass that reduces nothing */
} way;

static const way ways[] = {
    {{0}, false, false, false},
    {{.find_unused = true}, false, false, false},
    {{.uneven = true}, false, false, false},
    {{0}, true, false, false},
    {{.find_unused = true}, true, false, false},
    {{.uneven = true}, true, false, false},
    {{0}, false, true, false},
    {{.find_unused = true}, true, true, false},
    {{0}, false, false, true},
    {{.reduce = weft_bucket_bfloat16}, true, false, false},
};

/* The pass fails on all members, with the parameter's name. */
static void thawed(weft_agent *agent, void *arg)
{
    for (size_t i = 0; i < sizeof(ways) / sizeof(*ways); i++) {
        const way *w = &ways[i];
        member me = open_member(agent, w->options);
        double mean = (double)(me.size + 1) / 2;
        pass_averages(&me, 0, mean);
        meet(&me); /* all have that pass before one fails the next */
        if (!w->on_one || me.index == ODD)
            weft_tensor_set_requires_grad(me.weight, true);
        if (w->only)
            weft_tensor_set_requires_grad(me.bias, false);
        weft_data_parallel_set_sync(me.parallel, !w->without_sync);
        bool takes_part = !w->only || !w->on_one || me.index == ODD; /* else its loss needs no gradient at all */
        if (takes_part)
            pass_fails(&me, THAWED);
        meet(&me);
        MUST(weft_error_code(weft_group_error(me.group)) == WEFT_ERR_STATE);
        must_say(weft_group_error(me.group), THAWED);
        MUST(!w->on_one || weft_error_worker(weft_group_error(me.group)) == ODD);
        meet(&me);
        close_member(&me);
    }
}

/* A member that has joined thaws it while the others still train. */
static void thawed_by_who_joins(weft_agent *agent, void *arg)
{
    member me = open_member(agent, (weft_data_parallel_options){.uneven = true});
    pass_averages(&me, 0, (double)(me.size + 1) / 2);
    meet(&me);
    if (me.index == ODD) {
        weft_tensor_set_requires_grad(me.weight, true);
        MUST_BE(weft_data_parallel_join(me.parallel), WEFT_ERR_STATE);
    } else {
        pass_fails(&me, THAWED);
    }
    must_say(weft_group_error(me.group), THAWED);
    meet(&me);
    close_member(&me);
}

/* The way to go: another object over the same group at each stage. If members disagree, the call fails with the
 * parameter's name, and the group lives. The optimizer goes on. */
static void thawed_in_stages(weft_agent *agent, void *arg)
{
    member me = open_member(agent, (weft_data_parallel_options){0});
    double mean = (double)(me.size + 1) / 2;
    weft_optimizer *sgd =
        optimizer_create(weft_module_parameters(me.module),
                         &(weft_optimizer_spec){.type = &weft_sgd_type, .lr = 0.5, .sgd.momentum = 0.5}, NULL);
    for (int stage = 0; stage < 4; stage++) {
        for (int pass = 0; pass < 3; pass++) {
            weft_tape *t = run_pass(&me);
            MUST_OK(weft_tape_status(t));
            must_be(t, me.weight, stage % 2 ? mean : 0);
            must_be(t, me.bias, mean);
            MUST_OK(weft_optimizer_apply(sgd, weft_tape_gradients(t, weft_module_parameters(me.module))));
            weft_tape_close(t);
        }
        weft_data_parallel_unref(me.parallel);
        me.parallel = NULL;
        weft_error *error = NULL;
        weft_tensor_set_requires_grad(me.weight, (stage % 2 == 0) != (me.index == ODD));
        MUST_BE(weft_data_parallel_create(me.group, me.module, NULL, &me.parallel, &error), WEFT_ERR_INVALID);
        must_say(error, "has weight float32 [3, 3]");
        weft_error_unref(error);
        MUST(!weft_group_error(me.group));
        weft_tensor_set_requires_grad(me.weight, stage % 2 == 0);
        make_parallel(&me, (weft_data_parallel_options){0});
    }
    weft_optimizer_unref(sgd);
    close_member(&me);
}

/* ---- Frozen ------------------------------------------------------------------------------------------------------ */

/* What is frozen after the object was made keeps its place, and may be thawed again. */
static void frozen_later(weft_agent *agent, void *arg)
{
    member me = open_member(agent, (weft_data_parallel_options){.find_unused = true});
    double mean = (double)(me.size + 1) / 2;
    weft_data_parallel_unref(me.parallel);
    weft_tensor_set_requires_grad(me.weight, true);
    make_parallel(&me, (weft_data_parallel_options){.find_unused = true});
    pass_averages(&me, mean, mean);
    weft_tensor_set_requires_grad(me.weight, false);
    pass_averages(&me, 0, mean);
    weft_tensor_set_requires_grad(me.weight, me.index != ODD); /* frozen on one: all have what the others brought */
    pass_averages(&me, mean - (double)(ODD + 1) / me.size, mean);
    weft_tensor_set_requires_grad(me.weight, true);
    pass_averages(&me, mean, mean);
    close_member(&me);
}

/* Without find_unused that is a mistake, and named. */
static void frozen_later_and_missing(weft_agent *agent, void *arg)
{
    member me = open_member(agent, (weft_data_parallel_options){0});
    weft_data_parallel_unref(me.parallel);
    weft_tensor_set_requires_grad(me.weight, true);
    make_parallel(&me, (weft_data_parallel_options){0});
    pass_averages(&me, (double)(me.size + 1) / 2, (double)(me.size + 1) / 2);
    meet(&me);
    weft_tensor_set_requires_grad(me.weight, false);
    pass_fails(&me, "got no gradient in this pass (weight)");
    meet(&me);
    close_member(&me);
}

/* ---- Faults ------------------------------------------------------------------------------------------------------ */

typedef enum fault { KILL_FIRST, KILL_OTHER, PAUSE, CUT, FAULTS } fault;

typedef struct scene {
    world w;
    fault fault;
    uint64_t delay_ns; /* from when the first member has its object */
    int named, ended,
        done; /* members whose pass failed with the parameter's name, or by the fault; passes that went well */
} scene;

enum { VICTIM = 2, PASSES = 3, HELD_MS = 20000, LIMIT_MS = 60000 };

static void adjust(weft_agent_options *options, void *arg)
{
    options->death_timeout_ms = 2000;
}

static void strike(weft_sim *sim, int rank, void *arg)
{
    const scene *s = arg;
    weft_sim_sleep(sim, s->delay_ns);
    if (s->fault == KILL_FIRST || s->fault == KILL_OTHER) {
        weft_sim_kill(sim, s->fault == KILL_FIRST ? 0 : VICTIM);
        return;
    }
    if (s->fault == PAUSE)
        weft_sim_pause(sim, VICTIM);
    else
        weft_sim_cut(sim, ODD, VICTIM);
    weft_sim_sleep(sim, (uint64_t)HELD_MS * 1000000u);
    if (s->fault == PAUSE)
        weft_sim_resume(sim, VICTIM);
    else
        weft_sim_heal(sim, ODD, VICTIM);
}

/* In the last pass the weight is thawed on one member. Each pass either has the average or fails, with the parameter's
 * name or because of the fault. No member waits for longer than the fault holds. */
static void with_fault(weft_agent *agent, void *arg)
{
    scene *s = arg;
    member me = {.group = make_group(agent), .module = linear_create(WIDTH, WIDTH, false, 1, NULL)};
    weft_data_parallel_options options = {.timeout_ms = LIMIT_MS};
    weft_error *error = NULL;
    me.index = weft_agent_rank(agent);
    me.size = weft_agent_world_size(agent);
    me.weight = weft_module_find(me.module, "weight");
    me.bias = weft_module_find(me.module, "bias");
    weft_tensor_set_requires_grad(me.weight, false);
    weft_status status = weft_data_parallel_create(me.group, me.module, &options, &me.parallel, &error);
    weft_error_unref(error);
    if (me.index == 1) /* not at a rank that goes */
        MUST_OK(weft_sim_spawn(s->w.sim, 1, strike, s));
    for (int pass = 0; !status; pass++) {
        if (pass == PASSES && me.index == ODD)
            weft_tensor_set_requires_grad(me.weight, true);
        weft_tape *t = run_pass(&me);
        status = weft_tape_status(t);
        if (!status)
            must_be(t, me.bias, (double)(me.size + 1) / 2);
        if (status == WEFT_ERR_STATE)
            must_say(weft_tape_error(t), THAWED);
        s->done += !status;
        s->named += status == WEFT_ERR_STATE;
        MUST(pass <= PASSES);
        weft_tape_close(t);
    }
    s->ended += status != WEFT_ERR_STATE;
    weft_data_parallel_unref(me.parallel);
    weft_group_close(me.group);
    weft_module_unref(me.module);
}

static void test_faults(void **state)
{
    uint64_t rounds = world_seeds(24), span_ns = 160000; /* in which all passes are over */
    for (int kind = 0; kind < FAULTS; kind++) {
        int named = 0, ended = 0, done = 0;
        for (uint64_t round = 0; round <= rounds; round++) {
            scene s = {.w = {.fabric = WORLD_SIM,
                             .size = SIZE,
                             .seed = round + 1,
                             .program = with_fault,
                             .adjust = adjust,
                             .close_may_fail = true,
                             .stop = true},
                       .fault = (fault)kind,
                       .delay_ns = round * span_ns / rounds};
            s.w.arg = &s;
            world_run(&s.w);
            named += s.named;
            ended += s.ended;
            done += s.done;
        }
        fprintf(stderr, "fault %d: %d named, %d ended, %d passes\n", kind, named, ended, done);
        assert_true(named > 0 && ended > 0 && done > 0);
    }
}

#define SCENE .size = SIZE, .adjust = adjust
WORLD_TEST(thawed, 3, 1, SCENE)
WORLD_TEST(thawed_by_who_joins, 5, 1, SCENE)
WORLD_TEST(thawed_in_stages, 2, 1, SCENE)
WORLD_TEST(frozen_later, 3, 1, SCENE)
WORLD_TEST(frozen_later_and_missing, 2, 1, SCENE)
UNIT_MAIN(test_thawed, test_thawed_by_who_joins, test_thawed_in_stages, test_frozen_later,
          test_frozen_later_and_missing, test_faults)
