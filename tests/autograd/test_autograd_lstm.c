/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_autograd_lstm.c - lstm against PyTorch (tests/data/sequence_cases.txt, which tests/oracle/sequence_oracle.py
 * made), by finite differences, with several threads, in parts, and what it refuses.
 */
#include "autograd/gradcheck.h"
#include "oracle/cases.h"

#include "tensor/cpu/lstm_cell.h"
#include "tensor/parallel.h"
#include "tensors.h"

#define S(...) WEFT_SHAPE(__VA_ARGS__)
#define WEIGHTS_MAX 12

/* ---- A call ---- */

typedef struct call {
    weft_tensor *x, *h0, *c0, *weights[WEIGHTS_MAX];
    size_t count; /* weights */
    weft_lstm_options how;
} call;

static weft_tensor *leaf(weft_shape shape, weft_dtype dtype, uint64_t key, double factor)
{
    weft_tensor *tensor = tensor_empty(shape, dtype);
    assert_non_null(tensor);
    formula_fill(tensor, key, factor, 0);
    weft_tensor_set_requires_grad(tensor, true);
    return tensor;
}

/* Weights of a layer, in PyTorch's order. */
static void add_weights(call *c, int64_t input, int64_t hidden, weft_dtype dtype)
{
    const weft_shape shapes[] = {S(4 * hidden, input), S(4 * hidden, hidden), S(4 * hidden), S(4 * hidden)};
    for (int i = 0; i < (c->how.no_bias ? 2 : 4); i++) {
        assert_true(c->count < WEIGHTS_MAX);
        c->weights[c->count] = leaf(shapes[i], dtype, 10 + c->count, 0.5);
        c->count++;
    }
}

static void drop(call *c)
{
    weft_tensor_unref(c->x);
    weft_tensor_unref(c->h0);
    weft_tensor_unref(c->c0);
    for (size_t i = 0; i < c->count; i++)
        weft_tensor_unref(c->weights[i]);
}

static weft_tensor *run(weft_tape *t, call *c, weft_tensor **h_n, weft_tensor **c_n)
{
    return weft_lstm(t, c->x, c->h0, c->c0, (weft_tensors){c->weights, c->count}, &c->how, h_n, c_n);
}

/* ---- Against PyTorch ---- */

static call call_of(const cases *c, weft_dtype dtype)
{
    weft_shape x = cases_shape(c, "x");
    int64_t hidden = cases_int(c, "hidden", 0), layers = cases_int(c, "layers", 0);
    call made = {.x = leaf(x, dtype, 1, 1),
                 .how = {.batch_first = cases_int(c, "batch_first", 0), .no_bias = !cases_int(c, "bias", 0)}};
    weft_shape state = S(layers, x.dims[made.how.batch_first ? 0 : 1], hidden);
    if (cases_int(c, "state", 0)) {
        made.h0 = leaf(state, dtype, 2, 1);
        made.c0 = leaf(state, dtype, 3, 1);
    }
    for (int64_t layer = 0; layer < layers; layer++)
        add_weights(&made, layer == 0 ? x.dims[2] : hidden, hidden, dtype);
    return made;
}

/* From those of y, h_n and c_n that the case uses. */
static void go_back(weft_tape *t, const cases *c, weft_dtype dtype, weft_tensor *const results[3])
{
    weft_tensor *outputs[3], *weights[3];
    size_t count = 0;
    for (int i = 0; i < 3; i++) {
        if (!(cases_int(c, "uses", 0) >> i & 1))
            continue;
        outputs[count] = results[i];
        weights[count++] = weft_tape_take(t, formula_tensor(weft_tensor_shape(results[i]), dtype, 77 + (uint64_t)i));
    }
    weft_backward_with(t, (weft_tensors){outputs, count}, (weft_tensors){weights, count}, NULL);
}

static void run_case(const cases *c, weft_dtype dtype)
{
    double tolerance = dtype == WEFT_DTYPE_FLOAT64 ? 1e-12 : 2e-5;
    call made = call_of(c, dtype);
    weft_tape *t = weft_tape_open(&(weft_tape_options){.record = true});
    weft_tensor *results[3];
    char name[32];
    results[0] = run(t, &made, &results[1], &results[2]);
    if (!results[0])
        fail_msg("case %d: %s", c->number, weft_error_message(weft_tape_error(t)));
    go_back(t, c, dtype, results);
    assert_int_equal(weft_tape_status(t), WEFT_OK);
    cases_assert_near(c, "y", results[0], tolerance);
    cases_assert_near(c, "h_n", results[1], tolerance);
    cases_assert_near(c, "c_n", results[2], tolerance);
    cases_assert_near(c, "dx", weft_tape_grad(t, made.x), tolerance);
    if (made.h0) {
        cases_assert_near(c, "dh0", weft_tape_grad(t, made.h0), tolerance);
        cases_assert_near(c, "dc0", weft_tape_grad(t, made.c0), tolerance);
    }
    for (size_t i = 0; i < made.count; i++) {
        snprintf(name, sizeof(name), "dw%zu", i);
        cases_assert_near(c, name, weft_tape_grad(t, made.weights[i]), tolerance);
    }
    weft_tape_close(t);
    drop(&made);
}

static void values_and_gradients_are_those_of_pytorch(void **state)
{
    (void)state;
    cases c = {.file = fopen(WEFT_TEST_DATA "/sequence_cases.txt", "r")};
    int count = 0;
    assert_non_null(c.file);
    while (cases_next(&c)) {
        if (strcmp(c.kind, "lstm") != 0)
            continue;
        run_case(&c, WEFT_DTYPE_FLOAT64);
        run_case(&c, WEFT_DTYPE_FLOAT32);
        count++;
    }
    fclose(c.file);
    assert_int_equal(count, 11);
}

/* ---- Finite differences ---- */

/* in: x, h0, c0, weight_ih, weight_hh. All three results count. */
static weft_tensor *one_layer(weft_tape *t, weft_tensor *const *in, const void *arg)
{
    weft_tensor *h, *c;
    weft_tensor *y = weft_lstm(t, in[0], in[1], in[2], (weft_tensors){in + 3, 2}, arg, &h, &c);
    weft_tensor *all[] = {weft_flatten(t, y, 0), weft_flatten(t, h, 0), weft_flatten(t, c, 0)};
    return !y ? NULL : weft_concat(t, (weft_tensors){all, 3}, 0);
}

/* in: x, and both biases of two layers. */
static weft_tensor *two_layers(weft_tape *t, weft_tensor *const *in, const void *arg)
{
    weft_tensor *ih[2], *hh[2];
    for (uint64_t i = 0; i < 2; i++) {
        ih[i] = weft_tape_take(t, formula_tensor(S(8, i == 0 ? 3 : 2), WEFT_DTYPE_FLOAT64, 40 + i));
        hh[i] = weft_tape_take(t, formula_tensor(S(8, 2), WEFT_DTYPE_FLOAT64, 50 + i));
    }
    weft_tensor *weights[] = {ih[0], hh[0], in[1], in[2], ih[1], hh[1], in[3], in[4]};
    return weft_lstm(t, in[0], NULL, NULL, (weft_tensors){weights, 8}, arg, NULL, NULL);
}

static void gradients_agree_with_finite_differences(void **state)
{
    (void)state;
    const weft_shape one[] = {S(3, 2, 3), S(1, 2, 2), S(1, 2, 2), S(8, 3), S(8, 2)};
    const weft_shape two[] = {S(2, 3, 3), S(8), S(8), S(8), S(8)};
    gradcheck_shapes(one_layer, one, 5, 0, &(weft_lstm_options){.no_bias = true});
    gradcheck_shapes(two_layers, two, 5, 0, &(weft_lstm_options){.batch_first = true});
    gradcheck_shapes(two_layers, two, 5, 0, &(weft_lstm_options){.dropout = 0.4, .train = true});
}

/* ---- What else must hold ---- */

static call call_with(int64_t steps, int64_t batch, int64_t input, int64_t hidden)
{
    call c = {.x = leaf(S(steps, batch, input), WEFT_DTYPE_FLOAT32, 1, 1)};
    add_weights(&c, input, hidden, WEFT_DTYPE_FLOAT32);
    add_weights(&c, hidden, hidden, WEFT_DTYPE_FLOAT32);
    return c;
}

static void assert_same(const weft_tensor *a, const weft_tensor *b, double tolerance)
{
    assert_int_equal(weft_tensor_numel(a), weft_tensor_numel(b));
    for (int64_t i = 0; i < weft_tensor_numel(a); i++)
        assert_true(fabs(weft_tensor_get_f64(a, i) - weft_tensor_get_f64(b, i)) <= tolerance);
}

/* Two calls, the second from the states of the first, are one call over both parts. */
static void a_sequence_may_be_run_in_parts(void **state)
{
    (void)state;
    call whole = call_with(7, 3, 4, 5), part = whole;
    weft_tape *t = weft_tape_open(NULL);
    weft_tensor *h, *c, *h_whole, *c_whole, *y = run(t, &whole, &h_whole, &c_whole);
    part.x = weft_narrow(t, whole.x, 0, 0, 3);
    weft_tensor *first = run(t, &part, &h, &c);
    part.x = weft_narrow(t, whole.x, 0, 3, 4);
    part.h0 = h;
    part.c0 = c;
    weft_tensor *second = run(t, &part, &h, &c), *both[] = {first, second};
    assert_int_equal(weft_tape_status(t), WEFT_OK);
    assert_same(y, weft_concat(t, (weft_tensors){both, 2}, 0), 1e-6);
    assert_same(h, h_whole, 1e-6);
    assert_same(c, c_whole, 1e-6);
    weft_tape_close(t);
    drop(&whole);
}

/* One layer has no dropout, nor has evaluation; between two there is. */
static void dropout_is_between_layers_in_training(void **state)
{
    (void)state;
    call two = call_with(4, 3, 6, 5), one = two;
    one.count = 4;
    for (int layers = 1; layers <= 2; layers++) {
        call *c = layers == 1 ? &one : &two;
        weft_tape *t = weft_tape_open(&(weft_tape_options){.seed = 3});
        weft_tensor *plain = run(t, c, NULL, NULL), *dropped[2];
        c->how.dropout = 0.5;
        for (int train = 0; train < 2; train++) {
            c->how.train = train;
            dropped[train] = run(t, c, NULL, NULL);
        }
        assert_int_equal(weft_tape_status(t), WEFT_OK);
        assert_same(plain, dropped[0], 0);
        double apart = 0;
        for (int64_t i = 0; i < weft_tensor_numel(plain); i++)
            apart += fabs(weft_tensor_get_f64(plain, i) - weft_tensor_get_f64(dropped[1], i));
        assert_true((apart > 0.01) == (layers == 2));
        weft_tape_close(t);
    }
    drop(&two);
}

static void operands_may_have_gaps(void **state)
{
    (void)state;
    call packed = call_with(4, 3, 6, 5), loose = packed;
    weft_tape *t = weft_tape_open(&(weft_tape_options){.record = true});
    weft_tensor *y = run(t, &packed, NULL, NULL);
    loose.x = weft_transpose(t, weft_clone(t, weft_transpose(t, packed.x, 0, 2)), 0, 2);
    loose.weights[1] = weft_transpose(t, weft_clone(t, weft_transpose(t, packed.weights[1], 0, 1)), 0, 1);
    weft_tensor *z = run(t, &loose, NULL, NULL);
    weft_backward(t, weft_sum(t, weft_mul(t, y, y)));
    assert_int_equal(weft_tape_status(t), WEFT_OK);
    weft_tensor *dx = weft_clone(t, weft_tape_grad(t, packed.x)),
                *dw = weft_clone(t, weft_tape_grad(t, packed.weights[1]));
    weft_tape *u = weft_tape_open(&(weft_tape_options){.record = true});
    loose.x = weft_transpose(u, weft_clone(u, weft_transpose(u, packed.x, 0, 2)), 0, 2);
    loose.weights[1] = weft_transpose(u, weft_clone(u, weft_transpose(u, packed.weights[1], 0, 1)), 0, 1);
    weft_tensor *v = run(u, &loose, NULL, NULL);
    weft_backward(u, weft_sum(u, weft_mul(u, v, v)));
    assert_int_equal(weft_tape_status(u), WEFT_OK);
    assert_same(y, z, 0);
    assert_same(dx, weft_tape_grad(u, packed.x), 0);
    assert_same(dw, weft_tape_grad(u, packed.weights[1]), 0);
    weft_tape_close(u);
    weft_tape_close(t);
    drop(&packed);
}

/* Values, and gradients of all, one behind the other. */
static weft_tensor *all_bits(int threads)
{
    wfi_cpu_threads_set(threads);
    call c = call_with(5, 67, 33, 129);
    weft_tape *t = weft_tape_open(&(weft_tape_options){.record = true});
    weft_tensor *h, *cell, *y = run(t, &c, &h, &cell),
                           *weights = weft_tape_take(t, formula_tensor(weft_tensor_shape(y), WEFT_DTYPE_FLOAT32, 77));
    weft_backward_with(t, (weft_tensors){&y, 1}, (weft_tensors){&weights, 1}, NULL);
    assert_int_equal(weft_tape_status(t), WEFT_OK);
    weft_tensor *flat[WEIGHTS_MAX + 4] = {weft_flatten(t, y, 0), weft_flatten(t, h, 0), weft_flatten(t, cell, 0),
                                          weft_flatten(t, weft_tape_grad(t, c.x), 0)};
    for (size_t i = 0; i < c.count; i++)
        flat[4 + i] = weft_flatten(t, weft_tape_grad(t, c.weights[i]), 0);
    weft_tensor *all = weft_tensor_ref(weft_concat(t, (weft_tensors){flat, 4 + c.count}, 0));
    assert_non_null(all);
    weft_tape_close(t);
    drop(&c);
    return all;
}

/* Products are the libraries', whose sums depend on how many threads share them; all else is bound to the bit. */
static void any_number_of_threads_gives_nearly_the_same(void **state)
{
    (void)state;
    int before = wfi_cpu_threads();
    weft_tensor *one = all_bits(1);
    for (int threads = 2; threads <= 5; threads++) {
        weft_tensor *several = all_bits(threads);
        for (int64_t i = 0; i < weft_tensor_numel(one); i++) {
            double wanted = weft_tensor_get_f64(one, i);
            assert_true(fabs(weft_tensor_get_f64(several, i) - wanted) <= 1e-4 * (1 + fabs(wanted)));
        }
        weft_tensor_unref(several);
    }
    weft_tensor_unref(one);
    wfi_cpu_threads_set(before);
}

enum { GATES, BIAS, BEFORE, CELL, OUT, DY, DH, DC, DGATES, PARTS };

/* One step forward and backward, all that it reads and writes. */
static void step(int threads, weft_tensor *parts[PARTS])
{
    const int64_t batch = 97, hidden = 131;
    for (int i = 0; i < PARTS; i++) {
        weft_shape shape = i == BIAS ? S(4 * hidden) : S(batch, i == GATES || i == DGATES ? 4 * hidden : hidden);
        parts[i] = formula_tensor(shape, WEFT_DTYPE_FLOAT32, 90 + (uint64_t)i);
        assert_non_null(parts[i]);
    }
    wfi_lstm_cell cell = {.batch = batch,
                          .hidden = hidden,
                          .gates = weft_tensor_data(parts[GATES]),
                          .bias = weft_tensor_data(parts[BIAS]),
                          .c_before = weft_tensor_data(parts[BEFORE]),
                          .c = weft_tensor_data(parts[CELL]),
                          .h = weft_tensor_data(parts[OUT]),
                          .dy = weft_tensor_data(parts[DY]),
                          .dh = weft_tensor_data(parts[DH]),
                          .dc = weft_tensor_data(parts[DC]),
                          .dgates = weft_tensor_data(parts[DGATES])};
    wfi_cpu_threads_set(threads);
    (void)wfi_lstm_cell_forward((weft_device){0}, WEFT_DTYPE_FLOAT32, &cell);
    (void)wfi_lstm_cell_backward((weft_device){0}, WEFT_DTYPE_FLOAT32, &cell);
}

static void cells_have_the_same_bits_with_any_number_of_threads(void **state)
{
    (void)state;
    int before = wfi_cpu_threads();
    weft_tensor *one[PARTS], *several[PARTS];
    step(1, one);
    for (int threads = 2; threads <= 5; threads++) {
        step(threads, several);
        for (int i = 0; i < PARTS; i++) {
            assert_memory_equal(weft_tensor_data(one[i]), weft_tensor_data(several[i]), weft_tensor_nbytes(one[i]));
            weft_tensor_unref(several[i]);
        }
    }
    for (int i = 0; i < PARTS; i++)
        weft_tensor_unref(one[i]);
    wfi_cpu_threads_set(before);
}

/* Gates far from 0 saturate; nothing becomes NaN or infinite. NaN stays NaN. */
static void large_values_saturate(void **state)
{
    (void)state;
    for (int dtype = 0; dtype < 2; dtype++) {
        weft_dtype type = dtype == 0 ? WEFT_DTYPE_FLOAT32 : WEFT_DTYPE_FLOAT64;
        weft_tensor *ih = tensor_full(S(4, 1), type, 1), *hh = tensor_zeros(S(4, 1), type);
        weft_tensor *x = tensor_empty(S(1, 7, 1), type), *weights[] = {ih, hh};
        const double values[] = {1e30, -1e30, 300, -300, 20, -20, NAN};
        weft_tape *t = weft_tape_open(NULL);
        for (int i = 0; i < 7; i++)
            weft_tensor_fill(weft_tape_take(t, tensor_select(weft_tape_take(t, tensor_select(x, 0, 0)), 0, i)),
                             values[i]);
        weft_tensor *y =
            weft_lstm(t, x, NULL, NULL, (weft_tensors){weights, 2}, &(weft_lstm_options){.no_bias = true}, NULL, NULL);
        assert_int_equal(weft_tape_status(t), WEFT_OK);
        for (int i = 0; i < 6; i++) {
            double gate = 1 / (1 + exp(-values[i])), wanted = gate * tanh(gate * tanh(values[i]));
            assert_true(fabs(weft_tensor_get_f64(y, i) - wanted) < 1e-6);
        }
        assert_true(isnan(weft_tensor_get_f64(y, 6)));
        weft_tape_close(t);
        weft_tensor_unref(x);
        weft_tensor_unref(ih);
        weft_tensor_unref(hh);
    }
}

static void assert_refused(call c, weft_status status, const char *says)
{
    weft_tape *t = weft_tape_open(&(weft_tape_options){.record = true});
    weft_tensor *h = c.x, *cell = c.x;
    assert_null(run(t, &c, &h, &cell));
    assert_null(h);
    assert_null(cell);
    const char *message = weft_error_message(weft_tape_error(t));
    if (weft_tape_status(t) != status || !strstr(message, says))
        fail_msg("wanted \"%s\", got: %s", says, message);
    weft_tape_close(t);
}

static void what_does_not_fit_is_named(void **state)
{
    (void)state;
    call good = call_with(4, 3, 6, 5);
    weft_tensor *matrix = tensor_zeros(S(3, 6), WEFT_DTYPE_FLOAT32),
                *none = tensor_zeros(S(0, 3, 6), WEFT_DTYPE_FLOAT32);
    weft_tensor *one = tensor_zeros(S(1, 3, 5), WEFT_DTYPE_FLOAT32),
                *wide = tensor_zeros(S(2, 3, 6), WEFT_DTYPE_FLOAT32);
    weft_tensor *ints = tensor_zeros(S(4, 3, 6), WEFT_DTYPE_INT64),
                *twice = tensor_zeros(S(4, 3, 6), WEFT_DTYPE_FLOAT64);
    call c = good;
#define REFUSED(change, status, says)                                                                                  \
    do {                                                                                                               \
        c = good;                                                                                                      \
        change;                                                                                                        \
        assert_refused(c, status, says);                                                                               \
    } while (0)
    REFUSED(c.x = NULL, WEFT_ERR_INVALID, "x is NULL");
    REFUSED(c.x = matrix, WEFT_ERR_SHAPE, "x [3, 6] must be [T, N, I]");
    REFUSED(c.x = none, WEFT_ERR_SHAPE, "at least one step");
    REFUSED(c.x = ints, WEFT_ERR_TYPE, "another dtype");
    REFUSED(c.x = twice, WEFT_ERR_TYPE, "another dtype");
    REFUSED(c.count = 7, WEFT_ERR_INVALID, "7 weights are not 4");
    REFUSED(c.count = 0, WEFT_ERR_INVALID, "0 weights are not 4");
    REFUSED(c.weights[6] = NULL, WEFT_ERR_INVALID, "weight 6 is NULL");
    REFUSED(c.weights[0] = c.weights[1], WEFT_ERR_SHAPE, "weight_ih must be [20, 6]");
    REFUSED(c.weights[5] = c.weights[0], WEFT_ERR_SHAPE, "weight_ih must be [24, 5]");
    REFUSED(c.weights[5] = c.weights[2], WEFT_ERR_SHAPE, "weight_hh must be [4 H, H]");
    REFUSED(c.weights[3] = c.weights[0], WEFT_ERR_SHAPE, "bias_hh must be [20]");
    REFUSED(c.h0 = one, WEFT_ERR_SHAPE, "h0 [1, 3, 5] must be [2, N, H]");
    REFUSED(c.c0 = wide, WEFT_ERR_SHAPE, "c0 must be [3, 5]");
    REFUSED(c.how.dropout = 1, WEFT_ERR_INVALID, "dropout of 1 is not in [0, 1)");
    REFUSED(c.how.dropout = NAN, WEFT_ERR_INVALID, "not in [0, 1)");
    weft_tensor *all[] = {matrix, none, one, wide, ints, twice};
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        weft_tensor_unref(all[i]);
    drop(&good);
}

static void a_batch_may_be_empty(void **state)
{
    (void)state;
    call c = call_with(4, 0, 6, 5);
    weft_tape *t = weft_tape_open(&(weft_tape_options){.record = true});
    weft_tensor *h, *cell, *y = run(t, &c, &h, &cell);
    weft_backward(t, weft_sum(t, y));
    assert_int_equal(weft_tape_status(t), WEFT_OK);
    assert_int_equal(weft_tensor_size(h, 1), 0);
    for (size_t i = 0; i < c.count; i++)
        for (int64_t k = 0; k < weft_tensor_numel(c.weights[i]); k++)
            assert_true(weft_tensor_get_f64(weft_tape_grad(t, c.weights[i]), k) == 0);
    weft_tape_close(t);
    drop(&c);
}

UNIT_MAIN(values_and_gradients_are_those_of_pytorch, gradients_agree_with_finite_differences,
          a_sequence_may_be_run_in_parts, dropout_is_between_layers_in_training, operands_may_have_gaps,
          any_number_of_threads_gives_nearly_the_same, cells_have_the_same_bits_with_any_number_of_threads,
          large_values_saturate, what_does_not_fit_is_named, a_batch_may_be_empty)
