/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_autograd_embedding.c - embedding and embedding_bag against PyTorch (tests/data/sequence_cases.txt, which
 * tests/oracle/sequence_oracle.py made), by finite differences, with any number of threads, and what they refuse.
 */
#include "autograd/gradcheck.h"
#include "oracle/cases.h"

#include "tensor/parallel.h"
#include "tensors.h"

#define S(...) WEFT_SHAPE(__VA_ARGS__)
#define TABLE_KEY 1
#define SCALE_KEY 2
#define WEIGHTS_KEY 77

static double tolerance(weft_dtype dtype)
{
    return dtype == WEFT_DTYPE_FLOAT64 ? 1e-12 : 1e-5;
}

/* Every second element of a larger tensor; drops `packed`. */
static weft_tensor *with_gaps(weft_tensor *packed)
{
    weft_shape wide = weft_tensor_shape(packed);
    wide.dims[wide.ndim++] = 2;
    weft_tensor *storage = tensor_full(wide, weft_tensor_dtype(packed), 1000);
    weft_tensor *view = tensor_select(storage, -1, 1);
    assert_int_equal(weft_tensor_assign(view, packed), WEFT_OK);
    weft_tensor_unref(storage);
    weft_tensor_unref(packed);
    return view;
}

/* ---- Against PyTorch ---- */

typedef struct inputs {
    weft_tensor *weight, *index, *offsets, *scale;
} inputs;

static inputs inputs_of(const cases *c, weft_dtype dtype, bool gaps)
{
    weft_shape shape = cases_shape(c, "shape");
    const cases_field *scale_grad = cases_find(c, "scale_grad");
    inputs in = {.weight = formula_tensor(cases_shape(c, "table"), dtype, TABLE_KEY),
                 .index = cases_ints(c, "index", &shape),
                 .offsets = cases_find(c, "offsets") ? cases_ints(c, "offsets", NULL) : NULL,
                 .scale = scale_grad ? formula_tensor(shape, dtype, SCALE_KEY) : NULL};
    if (gaps) {
        in.weight = with_gaps(in.weight);
        in.index = with_gaps(in.index);
        if (in.offsets)
            in.offsets = with_gaps(in.offsets);
        if (in.scale)
            in.scale = with_gaps(in.scale);
    }
    weft_tensor_set_requires_grad(in.weight, true);
    if (in.scale)
        weft_tensor_set_requires_grad(in.scale, scale_grad->count > 0);
    return in;
}

static void drop(inputs *in)
{
    weft_tensor_unref(in->weight);
    weft_tensor_unref(in->index);
    weft_tensor_unref(in->offsets);
    weft_tensor_unref(in->scale);
}

static weft_tensor *run(weft_tape *t, const cases *c, const inputs *in, bool sparse)
{
    const cases_field *padding = cases_get(c, "padding");
    bool padded = padding->count > 0;
    int64_t row = padded ? (int64_t)padding->values[0] : 0;
    if (strcmp(c->kind, "embedding") == 0)
        return weft_embedding(t, in->weight, in->index,
                              &(weft_embedding_options){.padding = padded, .padding_row = row, .sparse = sparse});
    static const weft_bag_mode modes[] = {WEFT_BAG_MEAN, WEFT_BAG_SUM, WEFT_BAG_MAX};
    weft_embedding_bag_options how = {
        .mode = modes[cases_int(c, "mode", 0)], .padding = padded, .padding_row = row, .sparse = sparse};
    return weft_embedding_bag(t, in->weight, in->index, in->offsets, in->scale, &how);
}

static void run_case(const cases *c, weft_dtype dtype, bool gaps)
{
    inputs in = inputs_of(c, dtype, gaps);
    weft_tape *t = weft_tape_open(&(weft_tape_options){.record = true});
    weft_tensor *y = run(t, c, &in, false);
    if (!y)
        fail_msg("case %d: %s", c->number, weft_error_message(weft_tape_error(t)));
    weft_tensor *weights = weft_tape_take(t, formula_tensor(weft_tensor_shape(y), dtype, WEIGHTS_KEY));
    weft_backward_with(t, (weft_tensors){&y, 1}, (weft_tensors){&weights, 1}, NULL);
    assert_int_equal(weft_tape_status(t), WEFT_OK);
    cases_assert_near(c, "out", y, tolerance(dtype));
    cases_assert_near(c, "grad", weft_tape_grad(t, in.weight), tolerance(dtype));
    if (in.scale && cases_get(c, "scale_grad")->count > 0)
        cases_assert_near(c, "scale_grad", weft_tape_grad(t, in.scale), tolerance(dtype));
    else if (in.scale)
        assert_null(weft_tape_grad(t, in.scale));
    weft_tape_close(t);
    drop(&in);
}

static void run_all(weft_dtype dtype, bool gaps)
{
    cases c = {.file = fopen(WEFT_TEST_DATA "/sequence_cases.txt", "r")};
    int count = 0;
    assert_non_null(c.file);
    while (cases_next(&c)) {
        if (strcmp(c.kind, "embedding") != 0 && strcmp(c.kind, "bag") != 0)
            continue;
        run_case(&c, dtype, gaps);
        count++;
    }
    fclose(c.file);
    assert_int_equal(count, 33);
}

static void values_and_gradients_are_those_of_pytorch(void **state)
{
    (void)state;
    run_all(WEFT_DTYPE_FLOAT64, false);
    run_all(WEFT_DTYPE_FLOAT32, false);
}

static void operands_may_have_gaps(void **state)
{
    (void)state;
    run_all(WEFT_DTYPE_FLOAT64, true);
    run_all(WEFT_DTYPE_FLOAT32, true);
}

/* ---- By rows ---- */

/* Rows added up where they belong; drop it. */
static weft_tensor *dense_of(const weft_gradient *gradient, const weft_tensor *weight)
{
    weft_tensor *dense = tensor_zeros(weft_tensor_shape(weight), WEFT_DTYPE_FLOAT64);
    int64_t width = weft_tensor_size(weight, 1), n = weft_tensor_numel(gradient->rows);
    assert_int_equal(weft_tensor_numel(gradient->values), n * width);
    for (int64_t i = 0; i < n * width; i++) {
        int64_t row = weft_tensor_get_i64(gradient->rows, i / width);
        ((double *)weft_tensor_data(dense))[row * width + i % width] += weft_tensor_get_f64(gradient->values, i);
    }
    return dense;
}

static void run_sparse(const cases *c, weft_dtype dtype)
{
    inputs in = inputs_of(c, dtype, false);
    bool scale_wanted = in.scale && weft_tensor_requires_grad(in.scale);
    weft_tape *t = weft_tape_open(&(weft_tape_options){.record = true});
    weft_tensor *y = run(t, c, &in, true);
    weft_tensor *weights = weft_tape_take(t, formula_tensor(weft_tensor_shape(y), dtype, WEIGHTS_KEY));
    weft_backward_with(t, (weft_tensors){&y, 1}, (weft_tensors){&weights, 1}, NULL);
    weft_gradients gradients = weft_tape_gradients(t, (weft_tensors){&in.weight, 1});
    assert_int_equal(weft_tape_status(t), WEFT_OK);
    assert_int_equal(gradients.count, 1);
    assert_true((!gradients.items[0].rows) == scale_wanted);
    weft_tensor *dense =
        scale_wanted ? weft_tensor_ref(gradients.items[0].values) : dense_of(gradients.items, in.weight);
    weft_tensor_fill(in.index, 0); /* the rows are not the index */
    cases_assert_near(c, "grad", dense, tolerance(dtype));
    cases_assert_near(c, "grad", weft_tape_grad(t, in.weight), tolerance(dtype));
    weft_tensor_unref(dense);
    weft_tape_close(t);
    drop(&in);
}

static void gradients_by_rows_are_the_dense_ones(void **state)
{
    (void)state;
    cases c = {.file = fopen(WEFT_TEST_DATA "/sequence_cases.txt", "r")};
    int count = 0;
    assert_non_null(c.file);
    while (cases_next(&c)) {
        bool maximum = strcmp(c.kind, "bag") == 0 && cases_int(&c, "mode", 0) == 2;
        if ((strcmp(c.kind, "embedding") != 0 && strcmp(c.kind, "bag") != 0) || maximum)
            continue;
        run_sparse(&c, WEFT_DTYPE_FLOAT64);
        run_sparse(&c, WEFT_DTYPE_FLOAT32);
        count++;
    }
    fclose(c.file);
    assert_int_equal(count, 26);
}

/* Two uses of a leaf are rows behind rows; what is no leaf gets a dense gradient. */
static void rows_of_several_uses_follow_each_other(void **state)
{
    (void)state;
    const int64_t numbers[] = {3, 0, 3};
    weft_tensor *weight = formula_tensor(S(5, 2), WEFT_DTYPE_FLOAT64, TABLE_KEY), *leaf = tensor_clone(weight);
    weft_tensor *index = tensor_copy_of(S(3), WEFT_DTYPE_INT64, numbers);
    weft_embedding_options how = {.sparse = true};
    weft_tensor_set_requires_grad(weight, true);
    weft_tensor_set_requires_grad(leaf, true);
    weft_tape *t = weft_tape_open(&(weft_tape_options){.record = true});
    weft_tensor *twice = weft_add(t, weft_embedding(t, weight, index, &how), weft_embedding(t, weight, index, &how));
    weft_tensor *doubled = weft_embedding(t, weft_scale(t, leaf, 2), index, &how);
    weft_backward(t, weft_sum(t, weft_add(t, twice, doubled)));
    assert_int_equal(weft_tape_status(t), WEFT_OK);
    weft_gradients by = weft_tape_gradients(t, (weft_tensors){(weft_tensor *[]){weight, leaf}, 2});
    assert_int_equal(weft_tensor_numel(by.items[0].rows), 6);
    assert_null(by.items[1].rows);
    weft_tensor *dense = dense_of(&by.items[0], weight);
    for (int64_t i = 0; i < 10; i++) {
        double wanted = i / 2 == 3 ? 4 : i / 2 == 0 ? 2 : 0;
        assert_true(weft_tensor_get_f64(dense, i) == wanted && weft_tensor_get_f64(by.items[1].values, i) == wanted);
    }
    weft_tape_close(t);
    weft_tensor *all[] = {weight, leaf, index, dense};
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        weft_tensor_unref(all[i]);
}

/* ---- Finite differences ---- */

typedef struct bag_of {
    weft_tensor *index, *offsets;
    weft_embedding_bag_options how;
} bag_of;

static weft_tensor *look_up(weft_tape *t, weft_tensor *const *in, const void *arg)
{
    return weft_embedding(t, weft_mul(t, in[0], in[0]), (weft_tensor *)arg, NULL);
}

static weft_tensor *bag(weft_tape *t, weft_tensor *const *in, const void *arg)
{
    const bag_of *b = arg;
    return weft_embedding_bag(t, weft_mul(t, in[0], in[0]), b->index, b->offsets, NULL, &b->how);
}

static weft_tensor *scaled_bag(weft_tape *t, weft_tensor *const *in, const void *arg)
{
    const bag_of *b = arg;
    return weft_embedding_bag(t, in[0], b->index, b->offsets, in[1], &b->how);
}

static void gradients_agree_with_finite_differences(void **state)
{
    (void)state;
    const int64_t numbers[] = {3, 0, 3, 4, 1, 3}, starts[] = {0, 2, 2, 5};
    weft_tensor *index = tensor_copy_of(S(6), WEFT_DTYPE_INT64, numbers);
    weft_tensor *offsets = tensor_copy_of(S(4), WEFT_DTYPE_INT64, starts);
    gradcheck_shapes(look_up, &S(5, 3), 1, 0, index);
    for (int mode = WEFT_BAG_MEAN; mode <= WEFT_BAG_MAX; mode++) {
        bag_of b = {index, offsets, {.mode = (weft_bag_mode)mode}};
        gradcheck_shapes(bag, &S(5, 3), 1, 0, &b);
        b.how.padding = true;
        b.how.padding_row = 3;
        gradcheck_shapes(bag, &S(5, 3), 1, 0, &b);
    }
    bag_of sums = {index, offsets, {.mode = WEFT_BAG_SUM}};
    gradcheck_shapes(scaled_bag, (const weft_shape[]){S(5, 3), S(6)}, 2, 0, &sums);
    weft_tensor_unref(index);
    weft_tensor_unref(offsets);
}

/* Rows 3 and 1 are equal in the first column; the second is larger in row 1. */
static void the_first_of_equal_elements_gets_the_gradient(void **state)
{
    (void)state;
    const float rows[] = {0, 0, 5, 7, 0, 0, 5, 6};
    weft_tensor *weight = tensor_copy_of(S(4, 2), WEFT_DTYPE_FLOAT32, rows);
    weft_tensor *index = tensor_copy_of(S(1, 3), WEFT_DTYPE_INT64, (int64_t[]){3, 1, 0});
    weft_tensor_set_requires_grad(weight, true);
    weft_tape *t = weft_tape_open(&(weft_tape_options){.record = true});
    weft_backward(t, weft_sum(t, weft_embedding_bag(t, weight, index, NULL, NULL,
                                                    &(weft_embedding_bag_options){.mode = WEFT_BAG_MAX})));
    assert_int_equal(weft_tape_status(t), WEFT_OK);
    for (int64_t i = 0; i < 8; i++)
        assert_true(weft_tensor_get_f64(weft_tape_grad(t, weight), i) == (i == 6 || i == 3));
    weft_tape_close(t);
    weft_tensor_unref(weight);
    weft_tensor_unref(index);
}

/* ---- Threads ---- */

#define ROWS 997
#define WIDTH 65
#define BAGS 600
#define LENGTH 17

/* Values and gradients, one behind the other. */
static weft_tensor *all_bits(int threads, int mode)
{
    wfi_cpu_threads_set(threads);
    weft_tensor *weight = formula_tensor(S(ROWS, WIDTH), WEFT_DTYPE_FLOAT32, TABLE_KEY);
    weft_tensor *index = tensor_empty(S(BAGS, LENGTH), WEFT_DTYPE_INT64);
    formula_fill_below(index, 9, ROWS);
    weft_tensor_set_requires_grad(weight, true);
    weft_tape *t = weft_tape_open(&(weft_tape_options){.record = true});
    weft_tensor *y = mode > WEFT_BAG_MAX
                         ? weft_embedding(t, weight, index, NULL)
                         : weft_embedding_bag(t, weight, index, NULL, NULL,
                                              &(weft_embedding_bag_options){.mode = (weft_bag_mode)mode});
    weft_tensor *weights = weft_tape_take(t, formula_tensor(weft_tensor_shape(y), WEFT_DTYPE_FLOAT32, WEIGHTS_KEY));
    weft_backward_with(t, (weft_tensors){&y, 1}, (weft_tensors){&weights, 1}, NULL);
    assert_int_equal(weft_tape_status(t), WEFT_OK);
    weft_tensor *gradient = weft_tape_grad(t, weight);
    weft_tensor *flat[] = {weft_flatten(t, y, 0), weft_flatten(t, gradient, 0)};
    weft_tensor *both = weft_tensor_ref(weft_concat(t, (weft_tensors){flat, 2}, 0));
    assert_non_null(both);
    weft_tape_close(t);
    weft_tensor_unref(weight);
    weft_tensor_unref(index);
    return both;
}

static void any_number_of_threads_gives_the_same_bits(void **state)
{
    (void)state;
    int before = wfi_cpu_threads();
    for (int mode = WEFT_BAG_MEAN; mode <= WEFT_BAG_MAX + 1; mode++) {
        weft_tensor *one = all_bits(1, mode);
        for (int threads = 2; threads <= 5; threads++) {
            weft_tensor *several = all_bits(threads, mode);
            assert_memory_equal(weft_tensor_data(one), weft_tensor_data(several), weft_tensor_nbytes(one));
            weft_tensor_unref(several);
        }
        weft_tensor_unref(one);
    }
    wfi_cpu_threads_set(before);
}

/* ---- Edges ---- */

static void nothing_to_pick_gives_zeros(void **state)
{
    (void)state;
    weft_tensor *weight = formula_tensor(S(4, 3), WEFT_DTYPE_FLOAT32, TABLE_KEY),
                *none = tensor_zeros(S(0), WEFT_DTYPE_INT64);
    weft_tensor *two = tensor_zeros(S(2), WEFT_DTYPE_INT64), *flat = tensor_zeros(S(5, 0), WEFT_DTYPE_INT64);
    weft_tensor *no_rows = tensor_zeros(S(0, 3), WEFT_DTYPE_FLOAT32);
    weft_tensor_set_requires_grad(weight, true);
    for (int mode = WEFT_BAG_MEAN; mode <= WEFT_BAG_MAX; mode++) {
        weft_embedding_bag_options how = {.mode = (weft_bag_mode)mode};
        weft_tape *t = weft_tape_open(&(weft_tape_options){.record = true});
        weft_tensor *y = weft_embedding_bag(t, weight, none, two, NULL, &how);
        weft_tensor *z = weft_embedding_bag(t, weight, flat, NULL, NULL, &how);
        weft_tensor *picked = weft_embedding(t, weight, none, NULL);
        weft_tensor *nowhere = weft_embedding_bag(t, no_rows, none, two, NULL, &how);
        weft_tensor *no_bags = weft_embedding_bag(t, weight, none, none, NULL, &how);
        weft_backward(t, weft_add(t, weft_add(t, weft_sum(t, y), weft_sum(t, z)), weft_sum(t, picked)));
        assert_int_equal(weft_tape_status(t), WEFT_OK);
        assert_int_equal(weft_tensor_size(y, 0), 2);
        assert_int_equal(weft_tensor_size(z, 0), 5);
        assert_int_equal(weft_tensor_size(picked, 0), 0);
        assert_int_equal(weft_tensor_size(nowhere, 0), 2);
        assert_int_equal(weft_tensor_size(no_bags, 0), 0);
        for (int64_t i = 0; i < weft_tensor_numel(z); i++)
            assert_true(weft_tensor_get_f64(z, i) == 0 && weft_tensor_get_f64(y, i % 6) == 0);
        for (int64_t i = 0; i < 12; i++)
            assert_true(weft_tensor_get_f64(weft_tape_grad(t, weight), i) == 0);
        weft_tape_close(t);
    }
    weft_tensor *all[] = {weight, none, two, flat, no_rows};
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        weft_tensor_unref(all[i]);
}

static weft_tensor *ints(weft_shape shape, const int64_t *values)
{
    weft_tensor *tensor = tensor_copy_of(shape, WEFT_DTYPE_INT64, values);
    assert_non_null(tensor);
    return tensor;
}

#define INTS(...) ints(S(sizeof((int64_t[]){__VA_ARGS__}) / 8), (int64_t[]){__VA_ARGS__})

typedef struct refusal {
    weft_tensor *weight, *index, *offsets, *scale;
    weft_embedding_bag_options how;
    weft_status status;
    const char *says;
    bool single; /* embedding, not embedding_bag */
} refusal;

static void assert_refused(refusal r)
{
    weft_tape *t = weft_tape_open(NULL);
    weft_embedding_options plain = {.padding = r.how.padding, .padding_row = r.how.padding_row};
    weft_tensor *y = r.single ? weft_embedding(t, r.weight, r.index, &plain)
                              : weft_embedding_bag(t, r.weight, r.index, r.offsets, r.scale, &r.how);
    assert_null(y);
    const char *message = weft_error_message(weft_tape_error(t));
    if (weft_tape_status(t) != r.status || !strstr(message, r.says))
        fail_msg("wanted \"%s\", got: %s", r.says, message);
    weft_tape_close(t);
    weft_tensor_unref(r.index);
    weft_tensor_unref(r.offsets);
    weft_tensor_unref(r.scale);
}

/* clang-format off */
static void embedding_names_what_does_not_fit(void **state)
{
    (void)state;
    weft_tensor *w = formula_tensor(S(4, 3), WEFT_DTYPE_FLOAT32, 1), *v = formula_tensor(S(3), WEFT_DTYPE_FLOAT32, 1);
#define refused(code, text, ...) assert_refused((refusal){.single = true, .status = code, .says = text, __VA_ARGS__})
    refused(WEFT_ERR_INVALID, "element 1 of the index is 4, not in [0, 4)", .weight = w, .index = INTS(1, 4));
    refused(WEFT_ERR_INVALID, "element 0 of the index is -1, not in [0, 4)", .weight = w, .index = INTS(-1));
    refused(WEFT_ERR_INVALID, "weight is NULL", .weight = NULL, .index = INTS(0));
    refused(WEFT_ERR_INVALID, "index is NULL", .weight = w);
    refused(WEFT_ERR_SHAPE, "[V, D]", .weight = v, .index = INTS(0));
    refused(WEFT_ERR_TYPE, "must be int64, not float32", .weight = w, .index = weft_tensor_ref(w));
    refused(WEFT_ERR_SHAPE, "8 dimensions, one too many", .weight = w, .index = tensor_zeros(S(1, 1, 1, 1, 1, 1, 1, 1), WEFT_DTYPE_INT64));
    refused(WEFT_ERR_INVALID, "row -5 is not in [-4, 4)", .weight = w, .index = INTS(0), .how = {.padding = true, .padding_row = -5});
#undef refused
    weft_tensor_unref(w);
    weft_tensor_unref(v);
}

static void embedding_bag_names_what_does_not_fit(void **state)
{
    (void)state;
    weft_tensor *w = formula_tensor(S(4, 3), WEFT_DTYPE_FLOAT32, 1), *v = formula_tensor(S(3), WEFT_DTYPE_FLOAT32, 1);
#define refused(code, text, ...) assert_refused((refusal){.status = code, .says = text, __VA_ARGS__})
    refused(WEFT_ERR_INVALID, "element 1 of the index is 9, not in [0, 4)", .weight = w, .index = INTS(0, 9), .offsets = INTS(0));
    refused(WEFT_ERR_SHAPE, "[B, L]", .weight = w, .index = INTS(0, 1));
    refused(WEFT_ERR_SHAPE, "1 and 2 dimensions", .weight = w, .index = ints(S(1, 2), (int64_t[]){0, 1}), .offsets = INTS(0));
    refused(WEFT_ERR_INVALID, "offset 0 is 1, not 0", .weight = w, .index = INTS(0, 1), .offsets = INTS(1));
    refused(WEFT_ERR_INVALID, "offset 2 is 1, not in [2, 2]", .weight = w, .index = INTS(0, 1), .offsets = INTS(0, 2, 1));
    refused(WEFT_ERR_INVALID, "offset 1 is 3, not in [0, 2]", .weight = w, .index = INTS(0, 1), .offsets = INTS(0, 3));
    refused(WEFT_ERR_INVALID, "2 indices, but no bag", .weight = w, .index = INTS(0, 1), .offsets = tensor_zeros(S(0), WEFT_DTYPE_INT64));
    refused(WEFT_ERR_TYPE, "offsets must be int64", .weight = w, .index = INTS(0, 1), .offsets = weft_tensor_ref(v));
    refused(WEFT_ERR_SHAPE, "the index's shape", .weight = w, .index = INTS(0, 1), .offsets = INTS(0), .scale = weft_tensor_ref(v), .how = {.mode = WEFT_BAG_SUM});
    refused(WEFT_ERR_INVALID, "for sums alone", .weight = w, .index = INTS(0, 1, 2), .offsets = INTS(0), .scale = weft_tensor_ref(v));
    refused(WEFT_ERR_TYPE, "dtype", .weight = w, .index = INTS(0, 1, 2), .offsets = INTS(0), .scale = tensor_zeros(S(3), WEFT_DTYPE_FLOAT64));
    refused(WEFT_ERR_INVALID, "no sparse with WEFT_BAG_MAX", .weight = w, .index = INTS(0), .offsets = INTS(0), .how = {.mode = WEFT_BAG_MAX, .sparse = true});
    refused(WEFT_ERR_INVALID, "no mode 3", .weight = w, .index = INTS(0), .offsets = INTS(0), .how = {.mode = (weft_bag_mode)3});
#undef refused
    weft_tensor_unref(w);
    weft_tensor_unref(v);
}
/* clang-format on */

UNIT_MAIN(values_and_gradients_are_those_of_pytorch, gradients_by_rows_are_the_dense_ones,
          rows_of_several_uses_follow_each_other, operands_may_have_gaps, gradients_agree_with_finite_differences,
          the_first_of_equal_elements_gets_the_gradient, any_number_of_threads_gives_the_same_bits,
          nothing_to_pick_gives_zeros, embedding_names_what_does_not_fit, embedding_bag_names_what_does_not_fit)
