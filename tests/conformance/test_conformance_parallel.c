/* SPDX-License-Identifier: Apache-2.0 */
/* test_conformance_parallel.c - items 81 and 82: data-parallel modules beside parameters on other workers. */
#include "conformance/contexts.h"
#include "make.h"
#include "tensors.h"

#include <weft/data_parallel.h>
#include <weft/ops.h>

#include <math.h>

static const weft_function functions[] = {CONTEXT_FUNCTIONS};

/* A group of the first `size` workers, and a module that is alike on them once `parallel` is made. */
typedef struct member {
    weft_group *group;
    weft_module *module;
    weft_data_parallel *parallel;
} member;

/* Takes over the module. */
static member member_open(weft_agent *agent, const char *name, size_t size, weft_module *module, bool uneven)
{
    static const int ranks[WORKERS] = {0, 1, 2, 3};
    member m = {.module = module};
    MUST_OK(weft_group_open(agent, name, ranks, size, 0, &m.group, NULL));
    MUST_OK(
        weft_data_parallel_create(m.group, module, &(weft_data_parallel_options){.uneven = uneven}, &m.parallel, NULL));
    return m;
}

static void member_close(member *m)
{
    weft_data_parallel_unref(m->parallel);
    weft_group_close(m->group);
    weft_module_unref(m->module);
}

static void must_be_near(const weft_tensor *tensor, const double *wanted)
{
    for (int64_t i = 0; i < weft_tensor_numel(tensor); i++) {
        double is = weft_tensor_get_f64(tensor, i);
        if (!(fabs(is - wanted[i]) <= 1e-6 * (1 + fabs(wanted[i]))))
            fprintf(stderr, "element %lld is %.9g, not %.9g\n", (long long)i, is, wanted[i]);
        MUST(fabs(is - wanted[i]) <= 1e-6 * (1 + fabs(wanted[i])));
    }
}

static void context_must_be_near(const step *s, const weft_tensor *leaf, const double *wanted)
{
    weft_tensor *found = weft_context_ref_grad(s->context, leaf);
    must_be_near(found, wanted);
    weft_tensor_unref(found);
}

/* ---- 81 ---------------------------------------------------------------------------------------------------------- */

/* Two trainers, each with a layer before and one behind the parameter of a third worker, that of the reference's
 * tests. */
enum { TRAINERS = 2, SERVER = 2, WEIGHTS = 4 };
/* Which of the layers is data parallel: none, both, the one behind. */
typedef enum parallel_part { PART_NONE, PART_OUTSIDE, PART_INSIDE, PARTS } parallel_part;
/* What the trainers compute with: one sample and its opposite, so that averages are 0; samples that differ; and a
 * last one, which in uneven runs the second trainer alone has. */
enum { PASS_OPPOSITE, PASS_DIFFERENT, PASS_LAST, PASSES };
static const float samples[PASSES][TRAINERS][2] = {
    [PASS_OPPOSITE] = {{1.5f, -0.25f}, {-1.5f, 0.25f}},
    [PASS_DIFFERENT] = {{1, 2}, {0.5f, -3}},
    [PASS_LAST] = {{-1, 0.75f}, {2, 1.25f}},
};

/* On a step the product with p is the server's; without one it is made here. */
static weft_tensor *loss_of(weft_tape *t, weft_module *layers, step *s, const float sample[2])
{
    weft_tensor *x = weft_tape_take(t, tensor_copy_of(WEFT_SHAPE(1, 2), WEFT_DTYPE_FLOAT32, sample));
    weft_tensor *h = weft_module_forward(t, weft_module_child(layers, 0), x);
    weft_tensor *ph =
        s ? step_call(s, SERVER, "times", WEFT_VALUES(weft_of_tensor(h))) : weft_mul(t, parameters[SERVER], h);
    return weft_sum(t, weft_module_forward(t, weft_module_child(layers, 1), ph));
}

/* What one process finds for a trainer's sample: of both layers, and of p. */
typedef struct gradients {
    double layer[2][WEIGHTS];
    float p[2];
} gradients;

static gradients alone(weft_module *layers, const float sample[2])
{
    gradients found;
    weft_tape *t = weft_tape_open(&(weft_tape_options){.record = true});
    weft_backward(t, loss_of(t, layers, NULL, sample));
    MUST_OK(weft_tape_status(t));
    for (size_t layer = 0; layer < 2; layer++)
        for (int64_t i = 0; i < WEIGHTS; i++)
            found.layer[layer][i] =
                weft_tensor_get_f64(weft_tape_grad(t, weft_module_parameters(layers).items[layer]), i);
    for (int64_t i = 0; i < 2; i++)
        found.p[i] = (float)weft_tensor_get_f64(weft_tape_grad(t, parameters[SERVER]), i);
    weft_tape_close(t);
    return found;
}

/* Gradients of the layers that are parallel are the averages of those that train, the others the trainer's own; p's
 * gradient in a context is that of its one trainer. */
static void hybrid_pass(weft_agent *agent, weft_module *layers, const member *m, parallel_part part, int number,
                        bool only_last)
{
    int me = weft_agent_rank(agent), first = only_last ? TRAINERS - 1 : 0;
    gradients own = alone(layers, samples[number][me]), wanted = own;
    for (int layer = part == PART_INSIDE; layer < 2 && part != PART_NONE; layer++)
        for (int i = 0; i < WEIGHTS; i++) {
            wanted.layer[layer][i] = 0;
            for (int trainer = first; trainer < TRAINERS; trainer++)
                wanted.layer[layer][i] +=
                    alone(layers, samples[number][trainer]).layer[layer][i] / (double)(TRAINERS - first);
        }
    step s;
    step_open(&s, agent);
    if (m)
        weft_context_set_hooks(s.context, weft_data_parallel_hooks(m->parallel));
    step_backward(&s, loss_of(s.tape, layers, &s, samples[number][me]), NULL);
    for (size_t layer = 0; layer < 2; layer++)
        context_must_be_near(&s, weft_module_parameters(layers).items[layer], wanted.layer[layer]);
    if (number == PASS_OPPOSITE && part == PART_OUTSIDE)
        context_must_be_near(&s, weft_module_parameters(layers).items[0], (double[WEIGHTS]){0});
    must_have_there(&s, SERVER, own.p[0], own.p[1]);
    step_close(&s);
}

static void train_hybrid(weft_agent *agent, parallel_part part, bool uneven)
{
    int me = weft_agent_rank(agent);
    /* Without data parallelism nobody makes the trainers' layers alike. */
    uint64_t seed = part == PART_NONE ? 7 : 7 + 10 * (uint64_t)me;
    weft_module *first = linear_create(2, 2, true, part == PART_INSIDE ? 5 : seed, NULL);
    weft_module *second = linear_create(2, 2, true, seed + 1, NULL);
    weft_module *layers = sequential_create((weft_module *[]){first, second}, 2, NULL);
    char name[32];
    snprintf(name, sizeof(name), "trainers-%d-%d", (int)part, uneven);
    member m = {0};
    if (part != PART_NONE)
        m = member_open(agent, name, TRAINERS, weft_module_ref(part == PART_OUTSIDE ? layers : second),
                        uneven); /* the layers own `second` */
    const member *parallel = part == PART_NONE ? NULL : &m;
    hybrid_pass(agent, layers, parallel, part, PASS_OPPOSITE, false);
    hybrid_pass(agent, layers, parallel, part, PASS_DIFFERENT, false);
    if (!uneven || me == TRAINERS - 1)
        hybrid_pass(agent, layers, parallel, part, PASS_LAST, uneven);
    if (uneven && parallel)
        MUST_OK(weft_data_parallel_join(m.parallel));
    if (parallel)
        member_close(&m);
    weft_module_unref(layers);
}

static void hybrid(weft_agent *agent, void *arg)
{
    for (parallel_part part = 0; part < PARTS && weft_agent_rank(agent) < TRAINERS; part++) {
        train_hybrid(agent, part, false);
        if (part != PART_NONE)
            train_hybrid(agent, part, true);
    }
    nothing_is_left(agent);
}

CONTEXT_ITEM(item_81_data_parallel, .program = hybrid, ITEM_FUNCTIONS(functions))

/* ---- 82 ---------------------------------------------------------------------------------------------------------- */

/* A pass of a module on a tape or in a context, with the hooks of its member. */
typedef weft_tensor *(*forward_fn)(weft_tape *t, weft_module *module, int rank, step *s);

static weft_tape *local_pass(const member *m, forward_fn loss, int rank)
{
    weft_tape *t = weft_tape_open(&(weft_tape_options){.record = true});
    weft_tape_set_hooks(t, weft_data_parallel_hooks(m->parallel));
    weft_backward(t, loss(t, m->module, rank, NULL));
    MUST_OK(weft_tape_status(t));
    return t;
}

/* The context has, bit for bit, what the tape has. */
static void compare_passes(weft_agent *agent, const member *m, forward_fn loss)
{
    int rank = weft_agent_rank(agent);
    weft_tensors leaves = weft_module_parameters(m->module);
    weft_tape *local = local_pass(m, loss, rank);
    step s;
    step_open(&s, agent);
    weft_context_set_hooks(s.context, weft_data_parallel_hooks(m->parallel));
    step_backward(&s, loss(s.tape, m->module, rank, &s), NULL);
    for (size_t i = 0; i < leaves.count; i++) {
        weft_tensor *found = weft_context_ref_grad(s.context, leaves.items[i]);
        must_be_equal(found, weft_tape_grad(local, leaves.items[i]));
        weft_tensor_unref(found);
    }
    step_close(&s);
    weft_tape_close(local);
}

/* And both are the average over the first `size` workers of what each finds alone. */
static void compare_with_one(const member *m, forward_fn loss, int rank, int size)
{
    weft_tape *averaged = local_pass(m, loss, rank);
    weft_tensors leaves = weft_module_parameters(m->module);
    for (size_t i = 0; i < leaves.count; i++) {
        double wanted[64] = {0};
        int64_t count = weft_tensor_numel(leaves.items[i]);
        MUST(count <= 64);
        for (int other = 0; other < size; other++) {
            weft_tape *t = weft_tape_open(&(weft_tape_options){.record = true});
            weft_backward(t, loss(t, m->module, other, NULL));
            weft_tensor *found = weft_tape_grad(t, leaves.items[i]);
            for (int64_t k = 0; k < count; k++)
                wanted[k] += weft_tensor_get_f64(found, k) / size;
            weft_tape_close(t);
        }
        must_be_near(weft_tape_grad(averaged, leaves.items[i]), wanted);
    }
    weft_tape_close(averaged);
}

static weft_tensor *linear_loss(weft_tape *t, weft_module *module, int rank, step *s)
{
    weft_tensor *x = weft_tape_take(t, tensor_empty(WEFT_SHAPE(5, 4), WEFT_DTYPE_FLOAT32));
    MUST_OK(weft_tensor_fill_uniform(x, 50 + (uint64_t)rank, -1, 1));
    weft_tensor *y = weft_module_forward(t, module, x);
    return weft_sum(t, weft_mul(t, y, y));
}

static weft_tensor *bag_loss(weft_tape *t, weft_module *module, int rank, step *s)
{
    int64_t rows[] = {rank, 2, 7, rank, 9, 2 + rank};
    weft_tensor *index = weft_tape_take(t, tensor_copy_of(WEFT_SHAPE(2, 3), WEFT_DTYPE_INT64, rows));
    weft_tensor *y = weft_module_forward(t, module, index);
    return weft_sum(t, weft_mul(t, y, y));
}

/* The next worker's parameter is applied there, or in the local pass here. */
static weft_tensor *remote_loss(weft_tape *t, weft_module *module, int rank, step *s)
{
    int next = (rank + 1) % WORKERS;
    weft_tensor *x =
        weft_tape_take(t, tensor_copy_of(WEFT_SHAPE(1, 2), WEFT_DTYPE_FLOAT32, (float[]){(float)rank - 1.5f, 2}));
    weft_tensor *px =
        s ? step_call(s, next, "times", WEFT_VALUES(weft_of_tensor(x))) : weft_mul(t, parameters[next], x);
    weft_tensor *y = weft_module_forward(t, module, px);
    return weft_sum(t, weft_mul(t, y, y));
}

/* Each worker has one pass more than the one before. */
static void uneven_passes(weft_agent *agent)
{
    member m = member_open(agent, "uneven", WORKERS, linear_create(4, 3, false, 1, NULL), true);
    for (int i = 0; i <= weft_agent_rank(agent); i++)
        compare_passes(agent, &m, linear_loss);
    MUST_OK(weft_data_parallel_join(m.parallel));
    member_close(&m);
}

static void comparison(weft_agent *agent, void *arg)
{
    struct {
        const char *name;
        weft_module *module;
        forward_fn loss;
    } cases[] = {
        {"linear", linear_create(4, 3, false, 1, NULL), linear_loss},
        {"rows",
         embedding_bag_create(&(weft_embedding_bag_layer){.rows = 10, .width = 3, .how.sparse = true, .seed = 2}, NULL),
         bag_loss},
        {"local-and-remote", linear_create(2, 5, true, 3, NULL), remote_loss},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        member m = member_open(agent, cases[i].name, WORKERS, cases[i].module, false);
        compare_passes(agent, &m, cases[i].loss);
        compare_with_one(&m, cases[i].loss, weft_agent_rank(agent), WORKERS);
        member_close(&m);
    }
    uneven_passes(agent);
    nothing_is_left(agent);
}

CONTEXT_ITEM(item_82_data_parallel_gradients, .program = comparison, ITEM_FUNCTIONS(functions))

UNIT_MAIN(item_81_data_parallel, item_82_data_parallel_gradients)
