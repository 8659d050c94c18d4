/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_nn_sequence.c - the modules Embedding, EmbeddingBag and LSTM: names and initial values as PyTorch's, what
 * they compute, what they refuse, and 20 steps of a small language model beside PyTorch's losses
 * (tests/oracle/sequence_oracle.py).
 */
#include <weft/weft.h>

#include "nn/moments.h"
#include "oracle/cases.h"
#include "oracle/formula.h"
#include "make.h"
#include "tensors.h"

#define S(...) WEFT_SHAPE(__VA_ARGS__)

static void assert_parameter(const weft_module *module, size_t i, const char *name, weft_shape shape)
{
    const char *is = weft_module_parameter_name(module, i);
    weft_tensors all = weft_module_parameters(module);
    assert_true(i < all.count);
    assert_string_equal(is, name);
    assert_int_equal(weft_tensor_ndim(all.items[i]), shape.ndim);
    for (int d = 0; d < shape.ndim; d++)
        assert_int_equal(weft_tensor_size(all.items[i], d), shape.dims[d]);
    assert_true(weft_tensor_requires_grad(all.items[i]));
}

static void lstm_has_pytorchs_names_and_initial_values(void **state)
{
    (void)state;
    weft_module *net =
        lstm_create(&(weft_lstm_layer){.in_features = 20, .hidden_features = 30, .layers = 2, .seed = 4}, NULL);
    weft_tensors all = weft_module_parameters(net);
    assert_string_equal(weft_module_type_name(net), "LSTM");
    assert_int_equal(all.count, 8);
    assert_parameter(net, 0, "weight_ih_l0", S(120, 20));
    assert_parameter(net, 1, "weight_hh_l0", S(120, 30));
    assert_parameter(net, 2, "bias_ih_l0", S(120));
    assert_parameter(net, 3, "bias_hh_l0", S(120));
    assert_parameter(net, 4, "weight_ih_l1", S(120, 30));
    assert_parameter(net, 7, "bias_hh_l1", S(120));
    for (size_t i = 0; i < all.count; i++)
        assert_uniform(all.items[i], 1 / sqrt(30.0));
    weft_module_unref(net);
    net = lstm_create(&(weft_lstm_layer){.in_features = 2, .hidden_features = 3, .no_bias = true}, NULL);
    assert_int_equal(weft_module_parameters(net).count, 2);
    weft_module_unref(net);
}

static void embeddings_begin_normal_and_padding_is_zero(void **state)
{
    (void)state;
    weft_module *plain = embedding_create(&(weft_embedding_layer){.rows = 200, .width = 30, .seed = 3}, NULL);
    assert_parameter(plain, 0, "weight", S(200, 30));
    assert_normal(weft_module_find(plain, "weight"), 1);
    weft_module *bag = embedding_bag_create(
        &(weft_embedding_bag_layer){.rows = 200, .width = 30, .how = {.padding = true, .padding_row = -1}, .seed = 3},
        NULL);
    const float *a = weft_tensor_data(weft_module_find(plain, "weight")),
                *b = weft_tensor_data(weft_module_find(bag, "weight"));
    for (int i = 0; i < 200 * 30; i++)
        assert_true(b[i] == (i < 199 * 30 ? a[i] : 0));
    assert_string_equal(weft_module_type_name(plain), "Embedding");
    assert_string_equal(weft_module_type_name(bag), "EmbeddingBag");
    weft_module_unref(plain);
    weft_module_unref(bag);
}

static void modules_compute_what_the_operators_do(void **state)
{
    (void)state;
    weft_module *table = embedding_create(&(weft_embedding_layer){.rows = 9, .width = 4, .seed = 1}, NULL);
    weft_module *bag = embedding_bag_create(
        &(weft_embedding_bag_layer){.rows = 9, .width = 4, .how = {.mode = WEFT_BAG_SUM}, .seed = 1}, NULL);
    weft_module *lstm = lstm_create(
        &(weft_lstm_layer){
            .in_features = 4, .hidden_features = 5, .layers = 3, .batch_first = true, .dropout = 0.5, .seed = 2},
        NULL);
    weft_tensor *index = tensor_empty(S(6, 7), WEFT_DTYPE_INT64);
    formula_fill_below(index, 3, 9);
    weft_tape *t = weft_tape_open(&(weft_tape_options){.seed = 5}),
              *u = weft_tape_open(&(weft_tape_options){.seed = 5});
    weft_tensor *x = weft_module_forward(t, table, index), *sums = weft_module_forward(t, bag, index);
    weft_tensor *wanted = weft_sum_dim(t, x, 1, false), *y = weft_module_forward(t, lstm, x);
    weft_lstm_options how = {.batch_first = true, .dropout = 0.5, .train = true};
    weft_tensor *z = weft_lstm(u, x, NULL, NULL, weft_module_parameters(lstm), &how, NULL, NULL);
    assert_int_equal(weft_tape_status(t), WEFT_OK);
    for (int64_t i = 0; i < weft_tensor_numel(sums); i++)
        assert_true(fabs(weft_tensor_get_f64(sums, i) - weft_tensor_get_f64(wanted, i)) < 1e-5);
    assert_int_equal(weft_tensor_size(y, 2), 5);
    for (int64_t i = 0; i < weft_tensor_numel(y); i++)
        assert_true(weft_tensor_get_f64(y, i) == weft_tensor_get_f64(z, i));
    weft_module_train(lstm, false);
    weft_tensor *v = weft_module_forward(t, lstm, x), *w = weft_module_forward(t, lstm, x);
    assert_true(weft_tensor_get_f64(v, 34) == weft_tensor_get_f64(w, 34));
    assert_true(weft_tensor_get_f64(v, 34) != weft_tensor_get_f64(y, 34));
    weft_tape_close(t);
    weft_tape_close(u);
    weft_tensor_unref(index);
    weft_module_unref(table);
    weft_module_unref(bag);
    weft_module_unref(lstm);
}

static void bad_sizes_make_no_module(void **state)
{
    (void)state;
    assert_null(embedding_create(NULL, NULL));
    assert_null(embedding_create(&(weft_embedding_layer){.rows = 0, .width = 1}, NULL));
    assert_null(embedding_create(&(weft_embedding_layer){.rows = 3, .width = -1}, NULL));
    assert_null(embedding_create(&(weft_embedding_layer){.rows = INT64_MAX, .width = 3}, NULL));
    assert_null(embedding_create(
        &(weft_embedding_layer){.rows = 3, .width = 1, .how = {.padding = true, .padding_row = 3}}, NULL));
    assert_null(embedding_bag_create(NULL, NULL));
    assert_null(embedding_bag_create(&(weft_embedding_bag_layer){.rows = 3}, NULL));
    assert_null(embedding_bag_create(
        &(weft_embedding_bag_layer){.rows = 3, .width = 1, .how = {.mode = (weft_bag_mode)7}}, NULL));
    assert_null(embedding_bag_create(
        &(weft_embedding_bag_layer){.rows = 3, .width = 1, .how = {.mode = WEFT_BAG_MAX, .sparse = true}}, NULL));
    assert_null(embedding_bag_create(
        &(weft_embedding_bag_layer){.rows = 3, .width = 1, .how = {.padding = true, .padding_row = -4}}, NULL));
    assert_null(lstm_create(NULL, NULL));
    assert_null(lstm_create(&(weft_lstm_layer){.in_features = 3}, NULL));
    assert_null(lstm_create(&(weft_lstm_layer){.in_features = 3, .hidden_features = 2, .layers = -1}, NULL));
    assert_null(lstm_create(&(weft_lstm_layer){.in_features = 3, .hidden_features = 2, .dropout = 1}, NULL));
    assert_null(lstm_create(&(weft_lstm_layer){.in_features = 3, .hidden_features = INT64_MAX / 2}, NULL));
}

/* States of one call begin the next; gradients go back through them. */
static void lstm_takes_and_gives_states(void **state)
{
    (void)state;
    weft_module *net =
        lstm_create(&(weft_lstm_layer){.in_features = 3, .hidden_features = 4, .layers = 2, .seed = 2}, NULL);
    weft_tensor *x = formula_tensor(S(6, 2, 3), WEFT_DTYPE_FLOAT32, 1), *w = weft_module_find(net, "weight_hh_l0");
    double gradients[2];
    weft_tensor *last[2];
    weft_tape *tapes[2];
    for (int parts = 1; parts <= 2; parts++) {
        weft_tape *t = tapes[parts - 1] = weft_tape_open(&(weft_tape_options){.record = true});
        weft_args out = weft_module_call(t, net, WEFT_VALUES(weft_of_tensor(weft_narrow(t, x, 0, 0, 6 / parts))));
        assert_int_equal(out.count, 3);
        if (parts == 2)
            out = weft_module_call(t, net,
                                   WEFT_VALUES(weft_of_tensor(weft_narrow(t, x, 0, 3, 3)), out.items[1], out.items[2]));
        last[parts - 1] = weft_args_tensor(out, 2);
        weft_backward(t, weft_sum(t, last[parts - 1]));
        assert_int_equal(weft_tape_status(t), WEFT_OK);
        gradients[parts - 1] = weft_tensor_get_f64(weft_tape_grad(t, w), 5);
    }
    assert_int_equal(weft_tensor_size(last[0], 0), 2);
    for (int64_t i = 0; i < weft_tensor_numel(last[0]); i++)
        assert_true(fabs(weft_tensor_get_f64(last[0], i) - weft_tensor_get_f64(last[1], i)) < 1e-6);
    assert_true(gradients[0] != 0 && fabs(gradients[0] - gradients[1]) < 1e-6);
    weft_tape_close(tapes[0]);
    weft_tape_close(tapes[1]);
    weft_tensor_unref(x);
    weft_module_unref(net);
}

static void embedding_bag_takes_offsets_and_weights(void **state)
{
    (void)state;
    weft_module *bag = embedding_bag_create(
        &(weft_embedding_bag_layer){.rows = 9, .width = 4, .how = {.mode = WEFT_BAG_SUM}, .seed = 1}, NULL);
    weft_tensor *index = tensor_empty(S(6), WEFT_DTYPE_INT64), *twice = tensor_full(S(6), WEFT_DTYPE_FLOAT32, 2);
    weft_tensor *offsets = tensor_copy_of(S(2), WEFT_DTYPE_INT64, (int64_t[]){0, 3});
    formula_fill_below(index, 3, 9);
    weft_tape *t = weft_tape_open(NULL);
    weft_tensor *square = weft_reshape(t, index, S(2, 3)), *weights = weft_reshape(t, twice, S(2, 3));
    weft_value i = weft_of_tensor(index), o = weft_of_tensor(offsets);
    weft_tensor *wanted = weft_module_forward(t, bag, square);
    weft_tensor *a = weft_args_tensor(weft_module_call(t, bag, WEFT_VALUES(i, o)), 0);
    weft_tensor *b = weft_args_tensor(weft_module_call(t, bag, WEFT_VALUES(i, o, weft_of_tensor(twice))), 0);
    weft_args last =
        weft_module_call(t, bag, WEFT_VALUES(weft_of_tensor(square), weft_of_null(), weft_of_tensor(weights)));
    assert_int_equal(weft_tape_status(t), WEFT_OK);
    for (int64_t k = 0; k < 8; k++) {
        double sum = weft_tensor_get_f64(wanted, k);
        assert_true(weft_tensor_get_f64(a, k) == sum && weft_tensor_get_f64(b, k) == 2 * sum);
        assert_true(weft_tensor_get_f64(weft_args_tensor(last, 0), k) == 2 * sum);
    }
    weft_tape_close(t);
    weft_tensor_unref(index);
    weft_tensor_unref(twice);
    weft_tensor_unref(offsets);
    weft_module_unref(bag);
}

static void assert_call_refused(weft_module *module, weft_args inputs, const char *says)
{
    weft_tape *t = weft_tape_open(NULL);
    assert_int_equal(weft_module_call(t, module, inputs).count, 0);
    assert_int_equal(weft_tape_status(t), WEFT_ERR_INVALID);
    assert_non_null(strstr(weft_error_message(weft_tape_error(t)), says));
    weft_tape_close(t);
}

static void calls_with_other_values_are_refused(void **state)
{
    (void)state;
    weft_module *lstm = lstm_create(&(weft_lstm_layer){.in_features = 3, .hidden_features = 4}, NULL);
    weft_module *bag = embedding_bag_create(&(weft_embedding_bag_layer){.rows = 9, .width = 4}, NULL);
    weft_tensor *x = formula_tensor(S(6, 2, 3), WEFT_DTYPE_FLOAT32, 1);
    weft_value v = weft_of_tensor(x), number = weft_of_i64(3);
    assert_call_refused(lstm, WEFT_NO_VALUES, "takes a tensor x, or three");
    assert_call_refused(lstm, WEFT_VALUES(v, v), "these 2 values");
    assert_call_refused(lstm, WEFT_VALUES(v, v, number), "these 3 values");
    assert_call_refused(bag, WEFT_VALUES(number), "takes tensors index");
    assert_call_refused(bag, WEFT_VALUES(v, number), "these 2 values");
    assert_call_refused(bag, WEFT_VALUES(v, v, v, v), "these 4 values");
    weft_tensor_unref(x);
    weft_module_unref(lstm);
    weft_module_unref(bag);
}

/* ---- A small language model ---- */

typedef struct model {
    weft_module *embedding, *lstm, *linear;
    weft_tensor *parameters[16];
    size_t count;
} model;

static void take_parameters(model *m, weft_module *module)
{
    assert_non_null(module);
    assert_int_equal(weft_module_to(module, WEFT_DTYPE_FLOAT64), WEFT_OK);
    weft_tensors all = weft_module_parameters(module);
    for (size_t i = 0; i < all.count; i++, m->count++) {
        m->parameters[m->count] = all.items[i];
        formula_fill(all.items[i], 30 + m->count, 0.5, 0);
    }
}

static model model_of(const cases *c, bool sparse)
{
    int64_t rows = cases_int(c, "sizes", 0), width = cases_int(c, "sizes", 1), hidden = cases_int(c, "sizes", 2);
    model m = {.count = 0};
    m.embedding = embedding_create(&(weft_embedding_layer){rows, width, {.padding = true, .sparse = sparse}, 0}, NULL);
    m.lstm = lstm_create(
        &(weft_lstm_layer){.in_features = width, .hidden_features = hidden, .layers = cases_int(c, "sizes", 3)}, NULL);
    m.linear = linear_create(hidden, rows, false, 0, NULL);
    take_parameters(&m, m.embedding);
    take_parameters(&m, m.lstm);
    take_parameters(&m, m.linear);
    memset(weft_tensor_data(m.parameters[0]), 0, (size_t)width * sizeof(double));
    return m;
}

static double train_step(const model *m, weft_optimizer *sgd, weft_tensor *text, int64_t rows)
{
    int64_t steps = weft_tensor_size(text, 0) - 1;
    weft_tape *t = weft_tape_open(&(weft_tape_options){.record = true});
    weft_tensor *x = weft_module_forward(t, m->embedding, weft_narrow(t, text, 0, 0, steps));
    weft_tensor *scores = weft_module_forward(t, m->linear, weft_module_forward(t, m->lstm, x));
    weft_tensor *loss = weft_cross_entropy(t, weft_reshape(t, scores, S(-1, rows)),
                                           weft_reshape(t, weft_narrow(t, text, 0, 1, steps), S(-1)));
    weft_backward(t, loss);
    weft_error_print(weft_tape_error(t), stderr);
    assert_int_equal(weft_tape_status(t), WEFT_OK);
    double value = weft_tensor_get_f64(loss, 0);
    weft_tensors parameters = {(weft_tensor **)m->parameters, m->count};
    assert_int_equal(weft_optimizer_apply(sgd, weft_tape_gradients(t, parameters)), WEFT_OK);
    weft_tape_close(t);
    return value;
}

static void follow(const cases *c, bool sparse)
{
    model m = model_of(c, sparse);
    const cases_field *losses = cases_get(c, "losses");
    int64_t rows = cases_int(c, "sizes", 0);
    weft_optimizer *sgd = optimizer_create((weft_tensors){m.parameters, m.count},
                                           &(weft_optimizer_spec){.type = &weft_sgd_type, .lr = 0.5}, NULL);
    assert_int_equal(losses->count, 20);
    for (size_t step = 0; step < losses->count; step++) {
        weft_tensor *text = tensor_empty(S(cases_int(c, "sizes", 4) + 1, cases_int(c, "sizes", 5)), WEFT_DTYPE_INT64);
        formula_fill_below(text, 60 + step % 4, rows);
        double loss = train_step(&m, sgd, text, rows), wanted = losses->values[step];
        if (!(fabs(loss - wanted) <= 1e-9 * wanted))
            fail_msg("step %zu: a loss of %.12g, wanted %.12g", step, loss, wanted);
        weft_tensor_unref(text);
    }
    weft_optimizer_unref(sgd);
    weft_module_unref(m.embedding);
    weft_module_unref(m.lstm);
    weft_module_unref(m.linear);
}

static void twenty_steps_follow_pytorchs_losses(void **state)
{
    (void)state;
    cases c = {.file = fopen(WEFT_TEST_DATA "/sequence_cases.txt", "r")};
    int count = 0;
    assert_non_null(c.file);
    while (cases_next(&c)) {
        if (strcmp(c.kind, "train") != 0)
            continue;
        follow(&c, false);
        follow(&c, true);
        count++;
    }
    fclose(c.file);
    assert_int_equal(count, 1);
}

UNIT_MAIN(lstm_has_pytorchs_names_and_initial_values, embeddings_begin_normal_and_padding_is_zero,
          modules_compute_what_the_operators_do, lstm_takes_and_gives_states, embedding_bag_takes_offsets_and_weights,
          calls_with_other_values_are_refused, bad_sizes_make_no_module, twenty_steps_follow_pytorchs_losses)
