/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_data_parallel_ends.c - members that die in a pass, that cannot make their module, that do something else
 * meanwhile; hooks that fail after the exchange, an order of parameters that is none, no memory for buckets in that
 * order; forward passes that fail; a group that is destroyed before its module.
 *
 * The module is a linear layer, its input a member's number, so the gradient of its weights is that number: the mean
 * over the members is known.
 */
#include "data_parallel/data_parallel.h"
#include "data_parallel/member.h"
#include "data_parallel/refusal.h"
#include "make.h"
#include "tensors.h"

enum { SIZE = 4, WIDTH = 3, PASSES = 4 };

typedef struct scene {
    world w;
    int victim;
    uint64_t delay_ns; /* from when the first member has made its group */
    int cut_short;     /* members whose passes failed */
} scene;

static void adjust(weft_agent_options *options, void *arg)
{
    options->death_timeout_ms = 2000;
}

/* One pass. On success all weights have the mean of 1 .. size as gradient. */
static weft_status pass(weft_data_parallel *parallel, weft_module *module, size_t me, size_t size, int *worker)
{
    weft_tape *t = weft_tape_open(&(weft_tape_options){.record = true});
    weft_tape_set_hooks(t, weft_data_parallel_hooks(parallel));
    weft_tensor *x = weft_tape_take(t, tensor_full(WEFT_SHAPE(1, WIDTH), WEFT_DTYPE_FLOAT32, (double)me + 1));
    weft_backward(t, weft_sum(t, weft_module_forward(t, module, x)));
    weft_status status = weft_tape_status(t);
    const weft_tensor *found = status ? NULL : weft_tape_grad(t, weft_module_find(module, "weight"));
    for (int64_t i = 0; !status && i < weft_tensor_numel(found); i++)
        MUST(weft_tensor_get_f64(found, i) == ((double)size + 1) / 2);
    if (status && worker)
        *worker = weft_error_worker(weft_tape_error(t));
    weft_tape_close(t);
    return status;
}

static void killer(weft_sim *sim, int rank, void *arg)
{
    const scene *s = arg;
    weft_sim_sleep(sim, s->delay_ns);
    weft_sim_kill(sim, s->victim);
}

/* Passes until somebody dies; then those who live go on. */
static void with_death(weft_agent *agent, void *arg)
{
    scene *s = arg;
    int me = weft_agent_rank(agent), worker = -1;
    weft_group *group = make_group(agent), *left = NULL;
    weft_module *module = linear_create(WIDTH, WIDTH, true, 1, NULL);
    weft_data_parallel *parallel = NULL, *again = NULL;
    if (me == 0)
        MUST_OK(weft_sim_spawn(s->w.sim, 0, killer, s));
    weft_status status = weft_data_parallel_create(group, module, NULL, &parallel, NULL);
    while (!status)
        status = pass(parallel, module, (size_t)me, SIZE, &worker);
    MUST_BE(status, WEFT_ERR_PEER_DEAD);
    MUST(weft_error_worker(weft_group_error(group)) == s->victim && (worker == -1 || worker == s->victim));
    s->cut_short += worker >= 0;
    weft_data_parallel_unref(parallel);
    MUST_OK(weft_group_shrink(group, WEFT_FOREVER, &left, NULL));
    weft_group_close(group);
    MUST_OK(weft_data_parallel_create(left, module, NULL, &again, NULL));
    for (int i = 0; i < PASSES; i++)
        MUST_OK(pass(again, module, (size_t)weft_group_index(left), SIZE - 1, NULL));
    weft_data_parallel_unref(again);
    weft_group_close(left);
    weft_module_unref(module);
}

static void test_deaths(void **state)
{
    int cut_short = 0;
    for (uint64_t round = 1; round <= world_seeds(40); round++) {
        scene s = {.w = {.fabric = WORLD_SIM,
                         .size = SIZE,
                         .seed = round,
                         .program = with_death,
                         .adjust = adjust,
                         .close_may_fail = true},
                   .victim = 1 + (int)(round % (SIZE - 1)),
                   .delay_ns = round * 37000};
        s.w.arg = &s;
        world_run(&s.w);
        cut_short += s.cut_short;
    }
    assert_true(cut_short > 0);
}

/* One member's module has nothing to train: the others do not wait for it. */
static void refused_alone(weft_agent *agent, void *arg)
{
    bool is_odd = weft_agent_rank(agent) == 1;
    weft_group *group = make_group(agent);
    weft_module *module = linear_create(WIDTH, WIDTH, true, 1, NULL);
    weft_data_parallel *none = NULL;
    weft_error *error = NULL;
    for (size_t i = 0; is_odd && i < weft_module_parameters(module).count; i++)
        weft_tensor_set_requires_grad(weft_module_parameters(module).items[i], false);
    MUST_BE(weft_data_parallel_create(group, module, NULL, &none, &error), WEFT_ERR_INVALID);
    must_say(error, "no parameter of the module wants a gradient");
    MUST(is_odd || weft_error_worker(error) == 1);
    weft_error_unref(error);
    weft_group_close(group);
    weft_module_unref(module);
}

/* One member gathers values where the others make a module: what it gives is no hash. */
static void something_else(weft_agent *agent, void *arg)
{
    weft_group *group = make_group(agent);
    weft_module *module = linear_create(WIDTH, WIDTH, true, 1, NULL);
    weft_data_parallel *none = NULL;
    weft_values *all = NULL;
    weft_error *error = NULL;
    if (weft_agent_rank(agent) == 1) {
        MUST_OK(weft_group_allgather_values(group, WEFT_NO_VALUES, 20000, &all));
    } else {
        MUST_BE(weft_data_parallel_create(group, module, NULL, &none, &error), WEFT_ERR_STATE);
        must_say(error, "member 1 (rank 1) called something else meanwhile");
    }
    weft_error_unref(error);
    weft_values_unref(all);
    MUST_OK(weft_group_barrier(group, 20000)); /* it is no failure of the group */
    weft_group_close(group);
    weft_module_unref(module);
}

/* The module refers to its group: a pass fails, and no more. */
static void group_goes_first(weft_agent *agent, void *arg)
{
    weft_group *group = make_group(agent), *meet;
    weft_module *module = linear_create(WIDTH, WIDTH, true, 1, NULL);
    weft_data_parallel *parallel = NULL;
    MUST_OK(weft_group_open(agent, "meet", NULL, 0, 0, &meet, NULL));
    MUST_OK(weft_data_parallel_create(group, module, NULL, &parallel, NULL));
    MUST_OK(pass(parallel, module, (size_t)weft_group_index(group), weft_group_size(group), NULL));
    MUST_OK(weft_group_barrier(meet, WEFT_FOREVER));
    weft_group_close(group);
    MUST_BE(pass(parallel, module, 0, 1, NULL), WEFT_ERR_CANCELLED);
    weft_data_parallel_unref(parallel);
    MUST_OK(weft_group_barrier(meet, WEFT_FOREVER));
    weft_group_close(meet);
    weft_module_unref(module);
}

static weft_status spoil(weft_future *reduced, weft_future *whole, void *arg)
{
    (void)reduced, (void)whole, (void)arg;
    return WEFT_ERR_FORMAT;
}

/* The bucket is reduced on all members; at one of them what comes behind that fails. */
static weft_status reduce_and_spoil(weft_group *group, weft_tensor *bucket, size_t index, int64_t timeout_ms,
                                    weft_future **out, void *arg)
{
    weft_future *reduced;
    (void)index;
    weft_status status = weft_group_allreduce_async(group, bucket, WEFT_OP_AVG, timeout_ms, arg ? &reduced : out);
    if (status || !arg)
        return status;
    *out = weft_future_then(reduced, spoil, NULL, NULL);
    weft_future_unref(reduced);
    return *out ? WEFT_OK : WEFT_ERR_MEMORY;
}

/* The others have averages that this member lacks: its group is over at once, and theirs by its word. */
static void spoiled_alone(weft_agent *agent, void *arg)
{
    int me = weft_agent_rank(agent);
    weft_group *group = make_group(agent), *meet;
    weft_module *module = linear_create(WIDTH, WIDTH, true, 1, NULL);
    weft_data_parallel *parallel = NULL;
    weft_data_parallel_options options = {.reduce = reduce_and_spoil, .reduce_arg = me == 1 ? &options : NULL};
    MUST_OK(weft_group_open(agent, "meet", NULL, 0, 0, &meet, NULL));
    MUST_OK(weft_data_parallel_create(group, module, &options, &parallel, NULL));
    weft_status status = pass(parallel, module, (size_t)me, weft_group_size(group), NULL);
    MUST(me == 1 ? status == WEFT_ERR_FORMAT && weft_group_error(group) : !status || status == WEFT_ERR_FORMAT);
    MUST_OK(weft_group_barrier(meet, WEFT_FOREVER));
    MUST_BE(pass(parallel, module, (size_t)me, weft_group_size(group), NULL), WEFT_ERR_FORMAT);
    MUST(weft_error_worker(weft_group_error(group)) == 1);
    weft_data_parallel_unref(parallel);
    MUST_OK(weft_group_barrier(meet, WEFT_FOREVER));
    weft_group_close(meet);
    weft_group_close(group);
    weft_module_unref(module);
}

/* Member 0 lies about the order in which its gradients came, between the last of them and the end of the pass. */
static weft_status reduce_and_lie(weft_group *group, weft_tensor *bucket, size_t index, int64_t timeout_ms,
                                  weft_future **out, void *arg)
{
    weft_data_parallel **parallel = arg;
    if (parallel && *parallel && (*parallel)->order_count == (*parallel)->count)
        (*parallel)->order[0] = 1000000;
    (void)index;
    return weft_group_allreduce_async(group, bucket, WEFT_OP_AVG, timeout_ms, out);
}

static void lies_about_order(weft_agent *agent, void *arg)
{
    int me = weft_agent_rank(agent);
    weft_group *group = make_group(agent);
    weft_module *module = linear_create(WIDTH, WIDTH, true, 1, NULL);
    weft_data_parallel *parallel = NULL;
    weft_data_parallel_options options = {.reduce = reduce_and_lie, .reduce_arg = me == 0 ? &parallel : NULL};
    MUST_OK(weft_data_parallel_create(group, module, &options, &parallel, NULL));
    MUST_BE(pass(parallel, module, (size_t)me, weft_group_size(group), NULL), WEFT_ERR_PROTOCOL);
    weft_data_parallel_unref(parallel);
    weft_group_close(group);
    weft_module_unref(module);
}

/* A pass on a tape, or in a context. Its forward pass fails if the target is no class of the module's. */
static weft_error *classify(weft_agent *agent, weft_data_parallel *parallel, weft_module *module, bool in_context,
                            int target)
{
    weft_context *context = NULL;
    if (in_context)
        MUST_OK(weft_context_open(agent, &context, NULL));
    weft_tape *t = in_context ? weft_context_tape(context, NULL) : weft_tape_open(&(weft_tape_options){.record = true});
    if (in_context)
        weft_context_set_hooks(context, weft_data_parallel_hooks(parallel));
    else
        weft_tape_set_hooks(t, weft_data_parallel_hooks(parallel));
    weft_tensor *x = weft_tape_take(t, tensor_full(WEFT_SHAPE(1, WIDTH), WEFT_DTYPE_FLOAT32, 1));
    weft_tensor *y = weft_tape_take(t, tensor_full(WEFT_SHAPE(1), WEFT_DTYPE_INT64, target));
    weft_tensor *loss = weft_cross_entropy(t, weft_module_forward(t, module, x), y);
    if (in_context)
        weft_dist_backward(t, loss, NULL);
    else
        weft_backward(t, loss);
    weft_error *error = weft_tape_error(t) ? weft_error_ref(weft_tape_error(t)) : NULL;
    weft_tape_close(t);
    weft_context_close(context, NULL);
    return error;
}

/* One member's tape has failed when it calls for the backward pass: the others hear of it, and do not wait until
 * their time is up. */
static void forward_fails(weft_agent *agent, void *arg)
{
    for (int in_context = 0; in_context < 2; in_context++) {
        bool is_odd = weft_agent_rank(agent) == 1;
        weft_group *group = make_group(agent), *meet;
        weft_module *module = linear_create(WIDTH, WIDTH, true, 1, NULL);
        weft_data_parallel *parallel = NULL;
        MUST_OK(weft_group_open(agent, "meet", NULL, 0, 0, &meet, NULL));
        MUST_OK(weft_data_parallel_create(group, module, &(weft_data_parallel_options){.timeout_ms = WEFT_FOREVER},
                                          &parallel, NULL));
        MUST(!classify(agent, parallel, module, in_context, 0));
        MUST_OK(weft_group_barrier(meet, WEFT_FOREVER)); /* all have it before one fails the next */
        weft_error *error = classify(agent, parallel, module, in_context, is_odd ? 77 : 0);
        MUST_BE(weft_error_code(error), WEFT_ERR_INVALID);
        must_say(error, is_odd ? "77" : "rank 1 ended it");
        MUST(weft_error_worker(weft_group_error(group)) == 1);
        weft_error_unref(error);
        MUST_OK(weft_group_barrier(meet, WEFT_FOREVER));
        weft_data_parallel_unref(parallel);
        weft_group_close(meet);
        weft_group_close(group);
        weft_module_unref(module);
    }
}

static weft_status layered_pass(weft_data_parallel *parallel, weft_module *module, const char *words)
{
    weft_tape *t = weft_tape_open(&(weft_tape_options){.record = true});
    weft_tape_set_hooks(t, weft_data_parallel_hooks(parallel));
    weft_tensor *x = weft_tape_take(t, tensor_full(WEFT_SHAPE(1, WIDTH), WEFT_DTYPE_FLOAT32, 1));
    weft_backward(t, weft_sum(t, weft_module_forward(t, module, x)));
    weft_status status = weft_tape_status(t);
    if (words)
        must_say(weft_tape_error(t), words);
    weft_tape_close(t);
    return status;
}

/* After the first pass one member has no memory for the buckets in member 0's order: it has none of them, or a half.
 * Its group is over, and no later pass touches what there is. */
static void no_buckets(weft_agent *agent, void *arg)
{
    for (int half = 0; half < 2; half++) {
        weft_group *group = make_group(agent), *meet;
        weft_module *module = sequential_create((weft_module *[]){linear_create(WIDTH, WIDTH, false, 1, NULL),
                                                                  linear_create(WIDTH, WIDTH, false, 2, NULL),
                                                                  linear_create(WIDTH, WIDTH, false, 3, NULL)},
                                                3, NULL);
        size_t count = weft_module_parameters(module).count;
        weft_data_parallel *parallel = NULL;
        weft_data_parallel_options options = {.first_bucket_bytes = 1, .bucket_bytes = 1};
        MUST_OK(weft_group_open(agent, "meet", NULL, 0, 0, &meet, NULL));
        MUST_OK(weft_data_parallel_create(group, module, &options, &parallel, NULL));
        MUST_OK(weft_group_barrier(meet, WEFT_FOREVER));
        if (weft_agent_rank(agent) == 0)
            refuse_next(half ? count - 1 : count, half ? sizeof(size_t) : sizeof(wfi_bucket));
        MUST_OK(weft_group_barrier(meet, WEFT_FOREVER));
        weft_status status = layered_pass(parallel, module, NULL);
        MUST(!status || status == WEFT_ERR_MEMORY);
        MUST_OK(weft_group_barrier(meet, WEFT_FOREVER));
        MUST(was_refused());
        MUST_BE(layered_pass(parallel, module, "the group is over"), WEFT_ERR_MEMORY);
        weft_data_parallel_set_sync(parallel, false);
        MUST_BE(layered_pass(parallel, module, "the group is over"), WEFT_ERR_MEMORY);
        MUST_OK(weft_group_barrier(meet, WEFT_FOREVER));
        weft_data_parallel_unref(parallel);
        weft_group_close(meet);
        weft_group_close(group);
        weft_module_unref(module);
    }
}

#define SCENE .size = 3, .adjust = adjust
WORLD_TEST(refused_alone, 2, 1, SCENE)
WORLD_TEST(something_else, 2, 1, SCENE)
WORLD_TEST(group_goes_first, 2, 1, SCENE)
WORLD_TEST(spoiled_alone, 2, 1, SCENE)
WORLD_TEST(lies_about_order, 2, 1, SCENE)
WORLD_TEST(forward_fails, 2, 1, SCENE)
WORLD_TEST(no_buckets, 4, 1, SCENE)
UNIT_MAIN(test_deaths, test_refused_alone, test_something_else, test_group_goes_first, test_spoiled_alone,
          test_lies_about_order, test_forward_fails, test_no_buckets)
