/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_remote_models.c - the models of the programs, split as these split them: over 20 steps losses and parameters
 * have the bits of the whole model's on one tape.
 */
#include "rpc/world.h"
#include "make.h"
#include "tensors.h"

#define STEPS 20
#define WORDS 7
#define LENGTH 6
#define BATCH 4

enum { CONVNET, EMBEDDING, DECODER };

/* (which) */
static weft_module *make(int64_t argument)
{
    const weft_embedding_layer table = {.rows = WORDS, .width = 5, .seed = 3};
    switch (argument) {
    case CONVNET:
        return mnist_convnet_create(1);
    case EMBEDDING:
        return sequential_create((weft_module *[]){embedding_create(&table, NULL), dropout_create(0.25, NULL)}, 2,
                                 NULL);
    default:
        return linear_create(8, WORDS, false, 4, NULL);
    }
}

static weft_module *make_here(int which)
{
    return make(which);
}

static weft_status barrier(weft_agent *agent)
{
    weft_group *all;
    MUST_OK(weft_group_open(agent, "all", NULL, 0, 0, &all, NULL));
    weft_status status = weft_group_barrier(all, WEFT_FOREVER);
    weft_group_close(all);
    return status;
}

/* A module that is here or there, run in the same way: the numbers of a new tape of that seed. */
typedef struct half {
    weft_module *here;
    weft_rref *there;
} half;

static weft_tensor *run(weft_tape *t, half h, weft_tensor *x, uint64_t seed)
{
    if (h.there)
        return weft_remote_forward(t, h.there, x, &(weft_forward_options){.has_seed = true, .seed = seed});
    weft_tape_set_seed(t, seed);
    return weft_module_forward(t, h.here, x);
}

typedef struct model {
    half halves[2];    /* the ConvNet alone; or embedding and decoder */
    weft_module *lstm; /* of the language model; NULL: the ConvNet */
} model;

static weft_tensor *numbers(weft_tape *t, weft_shape shape, int step, int64_t below)
{
    weft_tensor *x = weft_tape_take(t, tensor_empty(shape, WEFT_DTYPE_INT64));
    for (int64_t i = 0; i < weft_tensor_numel(x); i++)
        ((int64_t *)weft_tensor_data(x))[i] = (i * 5 + step * 3 + i * i % 7) % below;
    return x;
}

static weft_tensor *loss_of(weft_tape *t, const model *m, int step)
{
    uint64_t seed = (uint64_t)step * 2 + 50;
    if (!m->lstm) {
        weft_tensor *x = weft_tape_take(t, tensor_empty(WEFT_SHAPE(BATCH, 1, 28, 28), WEFT_DTYPE_FLOAT32));
        MUST_OK(weft_tensor_fill_uniform(x, seed, -1, 2));
        return weft_nll_loss(t, run(t, m->halves[0], x, seed), numbers(t, WEFT_SHAPE(BATCH), step, 10));
    }
    weft_tensor *x = run(t, m->halves[0], numbers(t, WEFT_SHAPE(LENGTH, BATCH), step, WORDS), seed);
    weft_tape_set_seed(t, seed + 1);
    weft_tensor *y = weft_dropout(t, weft_module_forward(t, m->lstm, x), 0.25, true);
    weft_tensor *scores = weft_reshape(t, run(t, m->halves[1], y, seed), WEFT_SHAPE((int64_t)LENGTH * BATCH, WORDS));
    return weft_cross_entropy(t, scores, numbers(t, WEFT_SHAPE((int64_t)LENGTH * BATCH), step + 1, WORDS));
}

static weft_module *make_lstm(void)
{
    return lstm_create(
        &(weft_lstm_layer){.in_features = 5, .hidden_features = 8, .layers = 2, .dropout = 0.5, .seed = 9}, NULL);
}

/* ---- The whole model, on one tape ----------------------------------------------------------------------------- */

static void train_whole(bool language, float losses[STEPS], model *m)
{
    *m = (model){.halves = {{.here = make_here(language ? EMBEDDING : CONVNET)}}};
    weft_tensor *parameters[32];
    size_t count = 0;
    if (language) {
        m->lstm = make_lstm();
        m->halves[1].here = make_here(DECODER);
    }
    weft_module *const parts[] = {m->halves[0].here, m->lstm, m->halves[1].here};
    for (size_t p = 0; p < 3; p++)
        for (size_t i = 0; parts[p] && i < weft_module_parameters(parts[p]).count; i++)
            parameters[count++] = weft_module_parameters(parts[p]).items[i];
    weft_optimizer *sgd =
        optimizer_create((weft_tensors){parameters, count},
                         &(weft_optimizer_spec){.type = &weft_sgd_type, .lr = 0.05, .sgd.momentum = 0.5}, NULL);
    for (int step = 0; step < STEPS; step++) {
        weft_tape *t = weft_tape_open(&(weft_tape_options){.record = true});
        weft_tensor *loss = loss_of(t, m, step);
        weft_backward(t, loss);
        MUST_OK(weft_tape_status(t));
        losses[step] = *(float *)weft_tensor_data(loss);
        MUST_OK(weft_optimizer_apply(sgd, weft_tape_gradients(t, (weft_tensors){parameters, count})));
        weft_tape_close(t);
    }
    weft_optimizer_unref(sgd);
}

static void drop_whole(model *m)
{
    weft_module_unref(m->halves[0].here);
    weft_module_unref(m->halves[1].here);
    weft_module_unref(m->lstm);
}

/* ---- The split one -------------------------------------------------------------------------------------------- */

typedef struct split {
    model model;
    weft_values *lists[2]; /* handles to the parameters of the halves */
    weft_dist_optimizer *sgd;
} split;

static void add_half(weft_agent *agent, split *s, int index, int which)
{
    weft_rref **there = &s->model.halves[index].there;
    MUST_OK(weft_rpc_remote(agent, weft_to_rank(1), "model", WEFT_VALUES(weft_of_i64(which)), NULL, there));
    MUST_OK(weft_remote_parameters(*there, &s->lists[index], NULL));
}

static void make_split(weft_agent *agent, split *s, bool language)
{
    *s = (split){.sgd = NULL};
    add_half(agent, s, 0, language ? EMBEDDING : CONVNET);
    if (language) {
        s->model.lstm = make_lstm();
        add_half(agent, s, 1, DECODER);
    }
    const weft_optimizer_spec spec = {.type = &weft_sgd_type, .lr = 0.05, .sgd.momentum = 0.5};
    const weft_value first = weft_of_rref(s->model.halves[0].there), last = weft_of_rref(s->model.halves[1].there);
    const weft_value own = weft_of_tensors(weft_module_parameters(s->model.lstm));
    MUST_OK(weft_dist_optimizer_create(agent, language ? WEFT_VALUES(first, own, last) : WEFT_VALUES(first), &spec,
                                       &s->sgd, NULL));
    MUST(weft_dist_optimizer_owners(s->sgd) == (language ? 2 : 1));
}

static float step_split(weft_agent *agent, const split *s, int step)
{
    weft_context *c;
    MUST_OK(weft_context_open(agent, &c, NULL));
    weft_tape *t = weft_context_tape(c, NULL);
    weft_tensor *loss = loss_of(t, &s->model, step);
    weft_dist_backward(t, loss, &(weft_pass_options){.step = s->sgd});
    MUST_OK(weft_tape_status(t));
    float value = *(float *)weft_tensor_data(loss);
    weft_tape_close(t);
    weft_context_close(c, NULL);
    return value;
}

static void drop_split(split *s)
{
    weft_dist_optimizer_unref(s->sgd);
    weft_module_unref(s->model.lstm);
    for (int i = 0; i < 2; i++) {
        weft_values_unref(s->lists[i]);
        weft_rref_unref(s->model.halves[i].there);
    }
}

static void must_be_equal(weft_rref *there, const weft_tensor *here)
{
    weft_values *fetched;
    weft_tensor *tensor;
    MUST_OK(weft_rref_to_here(there, 0, &fetched, NULL));
    MUST_OK(weft_values_get_tensor(fetched, 0, &tensor));
    MUST(memcmp(weft_tensor_data(tensor), weft_tensor_data((weft_tensor *)here), weft_tensor_nbytes(here)) == 0);
    weft_values_unref(fetched);
}

static void the_same_bits(weft_agent *agent, bool language)
{
    world_serve_module(agent, "model", make);
    MUST_OK(barrier(agent));
    if (weft_agent_rank(agent) == 0) {
        float losses[STEPS];
        model whole;
        split s;
        train_whole(language, losses, &whole);
        make_split(agent, &s, language);
        for (int step = 0; step < STEPS; step++)
            MUST(step_split(agent, &s, step) == losses[step]);
        for (int h = 0; h < 2; h++)
            for (size_t i = 0; s.lists[h] && i < weft_values_count(s.lists[h]); i++) {
                weft_rref *there;
                MUST_OK(weft_values_get_rref(s.lists[h], i, &there));
                must_be_equal(there, weft_module_parameters(whole.halves[h].here).items[i]);
            }
        drop_split(&s);
        drop_whole(&whole);
    }
    MUST_OK(barrier(agent));
}

static void the_convnet(weft_agent *agent, void *arg)
{
    (void)arg;
    the_same_bits(agent, false);
}
WORLD_TEST(the_convnet, 1, 1, .size = 2)

static void the_language_model(weft_agent *agent, void *arg)
{
    (void)arg;
    the_same_bits(agent, true);
}
WORLD_TEST(the_language_model, 2, 1, .size = 2)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_convnet),
        cmocka_unit_test(test_the_language_model),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
