/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_data_parallel.c - averaged gradients are those of one process over all data: with buckets of several sizes,
 * over several steps, with parameters that are not used, passes that reduce nothing, members that run out of data,
 * compression, under a distributed context; and what happens when a member fails or dies.
 */
#include "data_parallel/member.h"
#include "make.h"
#include "tensors.h"

#include <math.h>

enum { IN = 6, HIDDEN = 5, OUT = 3, BATCH = 4, STEPS = 4 };

typedef struct scene {
    world w;
    weft_data_parallel_options options;
    int victim;
} scene;

/* Three layers; the third is used by those passes alone that are told to. */
typedef struct model {
    weft_module *all, *first, *second, *third;
} model;

static model make_model(uint64_t seed)
{
    model m = {.first = linear_create(IN, HIDDEN, false, seed, NULL),
               .second = linear_create(HIDDEN, OUT, false, seed + 1, NULL),
               .third = linear_create(HIDDEN, OUT, false, seed + 2, NULL)};
    m.all = sequential_create((weft_module *[]){m.first, m.second, m.third}, 3, NULL);
    MUST(m.all && !weft_module_to(m.all, WEFT_DTYPE_FLOAT64));
    return m;
}

static void end_model(model *m)
{
    weft_module_unref(m->all); /* the layers are its own */
}

static weft_tensor *data_of(int member, int step, int64_t columns, uint64_t what)
{
    weft_tensor *x = tensor_empty(WEFT_SHAPE(BATCH, columns), WEFT_DTYPE_FLOAT64);
    MUST_OK(weft_tensor_fill_normal(x, (uint64_t)(member * 1000 + step * 10) + what, 0, 1));
    return x;
}

/* mean((second(tanh(first(x))) [+ third(...)] - y)^2), and its backward pass. */
static void backward(weft_tape *t, const model *m, int member, int step, bool uses_third)
{
    weft_tensor *x = data_of(member, step, IN, 1), *y = data_of(member, step, OUT, 2);
    weft_tensor *h = weft_tanh(t, weft_module_forward(t, m->first, x));
    weft_tensor *z = weft_module_forward(t, m->second, h);
    if (uses_third)
        z = weft_add(t, z, weft_module_forward(t, m->third, h));
    weft_backward(t, weft_mse_loss(t, z, y));
    weft_tensor_unref(x);
    weft_tensor_unref(y);
}

static weft_tape *open_tape(void)
{
    weft_tape *t = weft_tape_open(&(weft_tape_options){.record = true, .seed = 3});
    MUST(t);
    return t;
}

/* What one process finds: the sums over the given members, divided. */
static void add_reference(const model *m, int member, int step, bool uses_third, double by, weft_tensor **sums)
{
    weft_tensors parameters = weft_module_parameters(m->all);
    weft_tape *t = open_tape();
    backward(t, m, member, step, uses_third);
    MUST_OK(weft_tape_status(t));
    weft_tensors grads = weft_tape_grads(t, parameters);
    for (size_t i = 0; i < parameters.count; i++) {
        if (!sums[i])
            sums[i] = tensor_zeros(weft_tensor_shape(grads.items[i]), WEFT_DTYPE_FLOAT64);
        double *to = weft_tensor_data(sums[i]);
        const double *from = weft_tensor_data(grads.items[i]);
        for (int64_t k = 0; k < weft_tensor_numel(sums[i]); k++)
            to[k] += from[k] / by;
    }
    weft_tape_close(t);
}

static void check_gradients(const weft_gradients got, weft_tensor *const *wanted, double room)
{
    for (size_t i = 0; i < got.count; i++) {
        MUST(got.items[i].values);
        const double *is = weft_tensor_data(got.items[i].values), *was = weft_tensor_data(wanted[i]);
        for (int64_t k = 0; k < weft_tensor_numel(wanted[i]); k++)
            if (fabs(is[k] - was[k]) > room * (0.1 + fabs(was[k]))) {
                fprintf(stderr, "gradient %zu, element %lld: %g, not %g\n", i, (long long)k, is[k], was[k]);
                abort();
            }
    }
}

static void drop(weft_tensor **sums, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        weft_tensor_unref(sums[i]);
        sums[i] = NULL;
    }
}

static weft_data_parallel *make_parallel(weft_group *group, const model *m, const scene *s)
{
    weft_data_parallel *parallel = NULL;
    weft_error *error = NULL;
    weft_status status = weft_data_parallel_create(group, m->all, &s->options, &parallel, &error);
    if (status)
        weft_error_print(error, stderr);
    MUST_OK(status);
    return parallel;
}

/* Also to look at: the same bits on all members. */
static void same_everywhere(weft_group *group, const weft_module *module)
{
    weft_tensors parameters = weft_module_parameters(module);
    for (size_t i = 0; i < parameters.count; i++) {
        weft_tensor *mine = tensor_clone(parameters.items[i]), *first = tensor_clone(mine);
        MUST_OK(weft_group_broadcast(group, first, 0, 20000));
        MUST(memcmp(weft_tensor_data(mine), weft_tensor_data(first), weft_tensor_nbytes(mine)) == 0);
        weft_tensor_unref(mine);
        weft_tensor_unref(first);
    }
}

/* ---- All goes well ----------------------------------------------------------------------------------------------- */

/* Steps of SGD with averaged gradients, beside those of one process; the group is used for nothing else meanwhile. */
static void train(weft_agent *agent, void *arg)
{
    const scene *s = arg;
    int me = weft_agent_rank(agent), size = weft_agent_world_size(agent);
    weft_group *group = make_group(agent);
    model m = make_model((uint64_t)me * 100 + 7), whole = make_model(7); /* member 0's is what all get */
    weft_data_parallel *parallel = make_parallel(group, &m, s);
    weft_tensors parameters = weft_module_parameters(m.all), of_whole = weft_module_parameters(whole.all);
    weft_optimizer *sgd = optimizer_create(parameters, &(weft_optimizer_spec){.type = &weft_sgd_type, .lr = 0.1}, NULL);
    weft_optimizer *sgd_whole =
        optimizer_create(of_whole, &(weft_optimizer_spec){.type = &weft_sgd_type, .lr = 0.1}, NULL);
    weft_tensor *sums[6] = {0};
    double room = s->options.reduce ? 0.05 : 1e-9;
    MUST(parameters.count == 6);
    for (int step = 0; step < STEPS; step++) {
        for (int member = 0; member < size; member++)
            add_reference(&whole, member, step, true, size, sums);
        weft_tape *t = open_tape();
        weft_tape_set_hooks(t, weft_data_parallel_hooks(parallel));
        backward(t, &m, me, step, true);
        MUST_OK(weft_tape_status(t));
        weft_gradients gradients = weft_tape_gradients(t, parameters);
        check_gradients(gradients, sums, room);
        check_gradients(weft_data_parallel_gradients(parallel), sums, room);
        /* Views of the bucket, not copies: what the object has and what the tape has lie at the same place. */
        MUST(weft_tensor_data(gradients.items[0].values) ==
             weft_tensor_data(weft_data_parallel_gradients(parallel).items[0].values));
        MUST_OK(weft_optimizer_apply(sgd, gradients));
        weft_gradient exact[6];
        for (size_t i = 0; i < 6; i++)
            exact[i] = (weft_gradient){.values = s->options.reduce ? gradients.items[i].values : sums[i]};
        MUST_OK(weft_optimizer_apply(sgd_whole, (weft_gradients){exact, 6}));
        weft_tape_close(t);
        drop(sums, 6);
    }
    weft_data_parallel_unref(weft_data_parallel_ref(parallel));
    MUST(weft_data_parallel_hooks(parallel)); /* a second reference held it */
    weft_data_parallel_unref(parallel);
    same_everywhere(group, m.all);
    weft_optimizer_unref(sgd);
    weft_optimizer_unref(sgd_whole);
    end_model(&m);
    end_model(&whole);
    weft_group_close(group);
}

static void run(world_fabric fabric, int size, void (*program)(weft_agent *, void *),
                weft_data_parallel_options options)
{
    scene s = {.w = {.fabric = fabric, .size = size, .seed = 5, .program = program}, .options = options};
    s.w.arg = &s;
    world_run(&s.w);
}

static void test_train(void **state)
{
    for (int size = 1; size <= 4; size++) {
        run(WORLD_SIM, size, train, (weft_data_parallel_options){0});
        run(WORLD_SIM, size, train, (weft_data_parallel_options){.first_bucket_bytes = 1, .bucket_bytes = 1});
        run(WORLD_SIM, size, train, (weft_data_parallel_options){.first_bucket_bytes = 100, .bucket_bytes = 200});
    }
    run(WORLD_TCP, 3, train, (weft_data_parallel_options){.first_bucket_bytes = 1, .bucket_bytes = 150});
}

static void test_bfloat16(void **state)
{
    run(WORLD_SIM, 3, train, (weft_data_parallel_options){.reduce = weft_bucket_bfloat16});
}

/* Two passes that reduce nothing, and one that reduces all three. */
static void accumulate(weft_agent *agent, void *arg)
{
    const scene *s = arg;
    int me = weft_agent_rank(agent), size = weft_agent_world_size(agent);
    weft_group *group = make_group(agent);
    model m = make_model(7);
    weft_data_parallel *parallel = make_parallel(group, &m, s);
    weft_tensor *sums[6] = {0};
    for (int round = 0; round < 2; round++) {
        for (int step = 0; step < 3; step++) {
            for (int member = 0; member < size; member++)
                add_reference(&m, member, step, true, size, sums);
            weft_data_parallel_set_sync(parallel, step == 2);
            weft_tape *t = open_tape();
            weft_tape_set_hooks(t, weft_data_parallel_hooks(parallel));
            backward(t, &m, me, step, true);
            MUST_OK(weft_tape_status(t));
            if (step == 2)
                check_gradients(weft_tape_gradients(t, weft_module_parameters(m.all)), sums, 1e-9);
            weft_tape_close(t);
        }
        drop(sums, 6);
    }
    weft_data_parallel_unref(parallel);
    end_model(&m);
    weft_group_close(group);
}

static void test_accumulate(void **state)
{
    run(WORLD_SIM, 3, accumulate, (weft_data_parallel_options){0});
}

/* The third layer is used by member 1 in step 1, by nobody in step 0, by all in step 2. */
static void leave_out(weft_agent *agent, void *arg)
{
    const scene *s = arg;
    int me = weft_agent_rank(agent), size = weft_agent_world_size(agent);
    weft_group *group = make_group(agent);
    model m = make_model(7);
    weft_data_parallel *parallel = make_parallel(group, &m, s);
    weft_tensor *sums[6] = {0};
    for (int step = 0; step < 3; step++) {
        for (int member = 0; member < size; member++)
            add_reference(&m, member, step, step == 2 || (step == 1 && member == 1), size, sums);
        weft_tape *t = open_tape();
        weft_tape_set_hooks(t, weft_data_parallel_hooks(parallel));
        backward(t, &m, me, step, step == 2 || (step == 1 && me == 1));
        MUST_OK(weft_tape_status(t));
        weft_gradients got = weft_data_parallel_gradients(parallel);
        MUST((got.items[4].values != NULL) == (step > 0) && (got.items[5].values != NULL) == (step > 0));
        check_gradients((weft_gradients){got.items, step ? 6 : 4}, sums, 1e-9);
        weft_gradients on_tape = weft_tape_gradients(t, weft_module_parameters(m.all)); /* also what only others used */
        check_gradients((weft_gradients){on_tape.items, step ? 6 : 4}, sums, 1e-9);
        MUST(step > 0 || (!on_tape.items[4].values && !on_tape.items[5].values));
        weft_tape_close(t);
        drop(sums, 6);
    }
    weft_data_parallel_unref(parallel);
    end_model(&m);
    weft_group_close(group);
}

static void test_leave_out(void **state)
{
    run(WORLD_SIM, 3, leave_out, (weft_data_parallel_options){.find_unused = true, .first_bucket_bytes = 1});
    run(WORLD_TCP, 2, leave_out, (weft_data_parallel_options){.find_unused = true});
}

/* Member i has data for i + 1 steps. */
static void run_out(weft_agent *agent, void *arg)
{
    const scene *s = arg;
    int me = weft_agent_rank(agent), size = weft_agent_world_size(agent);
    weft_group *group = make_group(agent);
    model m = make_model(7);
    weft_data_parallel *parallel = make_parallel(group, &m, s);
    weft_tensor *sums[6] = {0};
    for (int step = 0; step <= me; step++) {
        for (int member = step; member < size; member++)
            add_reference(&m, member, step, true, s->options.divide_by_all ? size : size - step, sums);
        weft_tape *t = open_tape();
        weft_tape_set_hooks(t, weft_data_parallel_hooks(parallel));
        backward(t, &m, me, step, true);
        MUST_OK(weft_tape_status(t));
        check_gradients(weft_tape_gradients(t, weft_module_parameters(m.all)), sums, 1e-9);
        weft_tape_close(t);
        drop(sums, 6);
    }
    MUST_OK(weft_data_parallel_join(parallel));
    MUST_OK(weft_group_barrier(group, 20000)); /* and all are at one place again */
    weft_data_parallel_unref(parallel);
    end_model(&m);
    weft_group_close(group);
}

static void test_run_out(void **state)
{
    run(WORLD_SIM, 4, run_out, (weft_data_parallel_options){.uneven = true});
    run(WORLD_SIM, 3, run_out,
        (weft_data_parallel_options){.uneven = true, .divide_by_all = true, .first_bucket_bytes = 1});
    run(WORLD_TCP, 3, run_out, (weft_data_parallel_options){.uneven = true, .find_unused = true});
}

/* Under a distributed context, whose gradients are the averaged ones then, also of the third layer, which member 0
 * alone uses. */
static void in_context(weft_agent *agent, void *arg)
{
    const scene *s = arg;
    int me = weft_agent_rank(agent), size = weft_agent_world_size(agent);
    weft_group *group = make_group(agent);
    model m = make_model(7);
    weft_data_parallel *parallel = make_parallel(group, &m, s);
    weft_tensors parameters = weft_module_parameters(m.all);
    weft_tensor *sums[6] = {0};
    for (int step = 0; step < 3; step++) {
        weft_context *context;
        for (int member = 0; member < size; member++)
            add_reference(&m, member, step, !s->options.find_unused || member == 0, size, sums);
        MUST_OK(weft_context_open(agent, &context, NULL));
        weft_context_set_hooks(context, weft_data_parallel_hooks(parallel));
        weft_tape *t = weft_context_tape(context, &(weft_tape_options){.record = true, .seed = 3});
        weft_tensor *x = data_of(me, step, IN, 1), *y = data_of(me, step, OUT, 2);
        weft_tensor *h = weft_tanh(t, weft_module_forward(t, m.first, x));
        weft_tensor *z = weft_module_forward(t, m.second, h);
        if (!s->options.find_unused || me == 0)
            z = weft_add(t, z, weft_module_forward(t, m.third, h));
        weft_dist_backward(t, weft_mse_loss(t, z, y), NULL);
        MUST_OK(weft_tape_status(t));
        weft_gradient got[6];
        for (size_t i = 0; i < 6; i++)
            got[i] = (weft_gradient){.values = weft_context_ref_grad(context, parameters.items[i])};
        check_gradients((weft_gradients){got, 6}, sums, 1e-9);
        for (size_t i = 0; i < 6; i++)
            weft_tensor_unref(got[i].values);
        weft_tape_close(t);
        weft_context_close(context, NULL);
        weft_tensor_unref(x);
        weft_tensor_unref(y);
        drop(sums, 6);
    }
    weft_data_parallel_unref(parallel);
    end_model(&m);
    weft_group_close(group);
}

static void test_in_context(void **state)
{
    run(WORLD_SIM, 3, in_context, (weft_data_parallel_options){0});
    run(WORLD_SIM, 3, in_context, (weft_data_parallel_options){.find_unused = true, .first_bucket_bytes = 1});
    run(WORLD_TCP, 2, in_context, (weft_data_parallel_options){.first_bucket_bytes = 1, .bucket_bytes = 1});
}

/* ---- Mistakes and deaths ----------------------------------------------------------------------------------------- */

static void must_speak(const weft_error *error, const char *text)
{
    if (!error || !strstr(weft_error_message(error), text)) {
        fprintf(stderr, "\"%s\" does not speak of \"%s\"\n", error ? weft_error_message(error) : "", text);
        abort();
    }
}

static void mistakes(weft_agent *agent, void *arg)
{
    int me = weft_agent_rank(agent);
    weft_group *group = make_group(agent);
    weft_data_parallel *none = NULL;
    weft_error *error = NULL;
    /* Other shapes on member 1. */
    weft_module *odd = linear_create(IN, me == 1 ? 9 : 8, false, 1, NULL), *even = linear_create(IN, 4, false, 1, NULL);
    MUST_BE(weft_data_parallel_create(group, odd, NULL, &none, &error), WEFT_ERR_INVALID);
    must_speak(error, "member 1 has weight float32 [9, 6] where member 0 has weight float32 [8, 6]");
    weft_error_unref(error);
    error = NULL;
    MUST_BE(weft_data_parallel_create(group, NULL, NULL, &none, &error), WEFT_ERR_INVALID);
    weft_error_unref(error);
    MUST_BE(weft_data_parallel_create(NULL, even, NULL, &none, NULL), WEFT_ERR_INVALID);
    /* A parameter that the loss does not reach, without find_unused: an error with its name, on all, and nobody
     * hangs. */
    model m = make_model(7);
    scene plain = {0};
    weft_data_parallel *parallel = make_parallel(group, &m, &plain);
    weft_tape *t = open_tape();
    weft_tape_set_hooks(t, weft_data_parallel_hooks(parallel));
    backward(t, &m, me, 0, false);
    MUST_BE(weft_tape_status(t), WEFT_ERR_STATE);
    must_speak(weft_tape_error(t), "2.weight");
    weft_tape_close(t);
    MUST_BE(weft_data_parallel_join(parallel), WEFT_ERR_STATE);
    weft_data_parallel_unref(parallel);
    end_model(&m);
    weft_module_unref(odd);
    weft_module_unref(even);
    MUST(!none);
    weft_group_close(group);
}

static void test_mistakes(void **state)
{
    run(WORLD_SIM, 3, mistakes, (weft_data_parallel_options){0});
}

/* One dies, or its pass fails: the others' passes fail with its name. */
static void one_fails(weft_agent *agent, void *arg)
{
    scene *s = arg;
    int me = weft_agent_rank(agent);
    weft_group *group = make_group(agent);
    model m = make_model(7);
    weft_data_parallel *parallel = make_parallel(group, &m, s);
    weft_status status = WEFT_OK;
    for (int step = 0; !status && step < 6; step++) {
        if (me == s->victim && step == 3 && s->options.timeout_ms == 0)
            weft_sim_kill(s->w.sim, me);
        weft_tape *t = open_tape();
        weft_tape_set_hooks(t, weft_data_parallel_hooks(parallel));
        if (me == s->victim && step == 3) { /* a pass that fails in the middle: what it needs was changed */
            weft_tensor *x = data_of(me, step, IN, 1), *y = data_of(me, step, OUT, 2);
            weft_tensor *h = weft_tanh(t, weft_module_forward(t, m.first, x));
            weft_tensor *z = weft_add(t, weft_module_forward(t, m.second, h), weft_module_forward(t, m.third, h));
            weft_tensor *loss = weft_mse_loss(t, z, y);
            weft_tensor_fill(x, 1);
            weft_tensor_wrote(x);
            weft_backward(t, loss);
            weft_tensor_unref(x);
            weft_tensor_unref(y);
        } else {
            backward(t, &m, me, step, true);
        }
        status = weft_tape_status(t);
        if (status && me != s->victim)
            must_speak(weft_tape_error(t), s->options.timeout_ms ? "rank 1 ended it" : "rank 1 is dead");
        weft_tape_close(t);
    }
    MUST(status != WEFT_OK);
    weft_data_parallel_unref(parallel);
    end_model(&m);
    weft_group_close(group);
}

static void test_one_fails(void **state)
{
    for (int fails = 0; fails < 2; fails++) {
        scene s = {.w = {.fabric = WORLD_SIM, .size = 3, .seed = 6, .program = one_fails, .close_may_fail = true},
                   .options = {.first_bucket_bytes = 1, .timeout_ms = fails ? 30000 : 0},
                   .victim = 1};
        s.w.arg = &s;
        world_run(&s.w);
    }
}

UNIT_MAIN(test_train, test_bfloat16, test_accumulate, test_leave_out, test_run_out, test_in_context, test_mistakes,
          test_one_fails)
