/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_gpu_table.c - every operator of weft/ops.h on a device, forward and backward, in float32 and float64: values and
 * gradients are those of the CPU, and lie on the device. Prints the table. Fails on a gap: an operator that is missing
 * in the table, and a row that does not work.
 */
#include <weft/weft.h>

#include "gpu/gpu.h"
#include "tensors.h"
#include "unit.h"

#include <math.h>
#include <string.h>

static const weft_device gpu = {WEFT_DEVICE_CUDA, 0}, cpu = {WEFT_DEVICE_CPU, 0};

enum { INPUTS_MOST = 10, RESULTS_MOST = 12 };

/* ---- Inputs ---- */

typedef struct input {
    weft_shape shape;
    int64_t below; /* > 0: integers in [0, below), as an index */
    double lowest; /* > 0: numbers are at least this */
    bool sorted;   /* of integers: 0, then rising, as offsets */
    bool no_gradient;
} input;

#define FLOATS(...)                                                                                                    \
    {                                                                                                                  \
        .shape = WEFT_SHAPE(__VA_ARGS__)                                                                               \
    }
#define POSITIVE(...)                                                                                                  \
    {                                                                                                                  \
        .shape = WEFT_SHAPE(__VA_ARGS__), .lowest = 0.5                                                                \
    }
#define CONSTANT(...)                                                                                                  \
    {                                                                                                                  \
        .shape = WEFT_SHAPE(__VA_ARGS__), .lowest = 0.5, .no_gradient = true                                           \
    }
#define INDEX(end, ...)                                                                                                \
    {                                                                                                                  \
        .shape = WEFT_SHAPE(__VA_ARGS__), .below = (end)                                                               \
    }
#define OFFSETS(...)                                                                                                   \
    {                                                                                                                  \
        .shape = WEFT_SHAPE(__VA_ARGS__), .below = 2, .sorted = true                                                   \
    }

/* Of both signs, some equal. */
static weft_tensor *make(const input *how, int which, weft_dtype dtype)
{
    weft_tensor *x = tensor_empty(how->shape, how->below > 0 ? WEFT_DTYPE_INT64 : WEFT_DTYPE_FLOAT64);
    for (int64_t i = 0; i < weft_tensor_numel(x); i++) {
        double number = round(sin((double)i * 1.7 + which) * 64) / 64;
        if (how->below > 0)
            ((int64_t *)weft_tensor_data(x))[i] = how->sorted ? i * how->below : (i * 5 + 1) % how->below;
        else
            ((double *)weft_tensor_data(x))[i] = how->lowest > 0 ? fabs(number) + how->lowest : number;
    }
    if (how->below > 0)
        return x;
    weft_tensor *converted = tensor_to(x, dtype);
    weft_tensor_unref(x);
    return converted;
}

/* ---- The table ---- */

/* A row runs on tape `t`; x: its inputs. */
typedef weft_tensor *(*row_fn)(weft_tape *t, weft_tensor **x, weft_dtype dtype);
typedef struct row {
    const char *function, *variant;
    row_fn run;
    input inputs[INPUTS_MOST];
} row;

#define RUN(name, expression)                                                                                          \
    static weft_tensor *name(weft_tape *t, weft_tensor **x, weft_dtype dtype)                                          \
    {                                                                                                                  \
        return expression;                                                                                             \
    }
RUN(run_add, weft_add(t, x[0], x[1]))
RUN(run_sub, weft_sub(t, x[0], x[1]))
RUN(run_mul, weft_mul(t, x[0], x[1]))
RUN(run_div, weft_div(t, x[0], x[1]))
RUN(run_neg, weft_neg(t, x[0]))
RUN(run_scale, weft_scale(t, x[0], 3))
RUN(run_add_scalar, weft_add_scalar(t, x[0], 3))
RUN(run_exp, weft_exp(t, x[0]))
RUN(run_log, weft_log(t, x[0]))
RUN(run_relu, weft_relu(t, x[0]))
RUN(run_relu_in_place, weft_relu_in_place(t, weft_scale(t, x[0], 2)))
RUN(run_sigmoid, weft_sigmoid(t, x[0]))
RUN(run_tanh, weft_tanh(t, x[0]))
RUN(run_matmul, weft_matmul(t, x[0], x[1]))
RUN(run_linear, weft_linear(t, x[0], x[1], NULL))
RUN(run_linear_bias, weft_linear(t, x[0], x[1], x[2]))
RUN(run_conv2d, weft_conv2d(t, x[0], x[1], x[2], NULL))
RUN(run_conv2d_strided,
    weft_conv2d(t, x[0], x[1], NULL,
                &(weft_conv2d_options){.stride = {2, 1}, .padding = {1, 2}, .dilation = {2, 2}, .groups = 2}))
RUN(run_norm_train, weft_batch_norm2d(t, x[0], x[1], x[2], NULL, NULL, &(weft_batch_norm_options){.train = true}))
/* The result, and what the running statistics are afterwards. */
static weft_tensor *run_norm_moving(weft_tape *t, weft_tensor **x, weft_dtype dtype)
{
    weft_batch_norm_options how = {.train = true};
    weft_tensor *y = weft_batch_norm2d(t, x[0], x[1], x[2], x[3], x[4], &how);
    weft_tensor *moved = weft_add(t, x[3], weft_scale(t, x[4], 3));
    return weft_add(t, y, weft_reshape(t, moved, WEFT_SHAPE(1, -1, 1, 1)));
}
RUN(run_norm_eval, weft_batch_norm2d(t, x[0], x[1], x[2], x[3], x[4], NULL))
RUN(run_max_pool, weft_max_pool2d(t, x[0], &(weft_max_pool2d_options){.kernel = {2, 2}}))
RUN(run_max_pool_overlapping,
    weft_max_pool2d(t, x[0], &(weft_max_pool2d_options){.kernel = {3, 3}, .stride = {2, 2}, .padding = {1, 1}}))
RUN(run_average_pool, weft_adaptive_avg_pool2d(t, x[0], 1, 1))
RUN(run_average_pool_overlapping, weft_adaptive_avg_pool2d(t, x[0], 4, 5))
RUN(run_dropout, weft_dropout(t, x[0], 0.5, true))
RUN(run_dropout2d, weft_dropout2d(t, x[0], 0.5, true))
RUN(run_categorical, weft_categorical(t, x[0]))
RUN(run_uniform, weft_uniform(t, WEFT_SHAPE(30, 31), dtype, -1, 2))
RUN(run_normal, weft_normal(t, WEFT_SHAPE(30, 31), dtype, 1, 2))
RUN(run_flatten, weft_flatten(t, x[0], 1))
RUN(run_reshape, weft_reshape(t, x[0], WEFT_SHAPE(5, -1)))
RUN(run_transpose, weft_transpose(t, x[0], 0, 1))
RUN(run_narrow, weft_narrow(t, x[0], 1, 1, 2))
RUN(run_select, weft_select(t, x[0], 1, 2))
RUN(run_gather, weft_take_along_dim(t, x[0], 0, x[1]))
RUN(run_gather_last, weft_take_along_dim(t, x[0], 1, x[1]))
RUN(run_index_select, weft_index_select(t, x[0], 0, x[1]))
RUN(run_index_select_middle, weft_index_select(t, x[0], 1, x[1]))
RUN(run_scatter_add, weft_scatter_add(t, x[0], 0, x[1], x[2]))
RUN(run_scatter_add_last, weft_scatter_add(t, x[0], 1, x[1], x[2]))
RUN(run_stack, weft_stack(t, (weft_tensors){x, 2}, 1))
RUN(run_concat, weft_concat(t, (weft_tensors){x, 2}, 1))
RUN(run_clone, weft_clone(t, x[0]))
RUN(run_detach, weft_detach(t, x[0]))
RUN(run_embedding, weft_embedding(t, x[0], x[1], NULL))
RUN(run_embedding_padded, weft_embedding(t, x[0], x[1], &(weft_embedding_options){.padding = true, .padding_row = 1}))
RUN(run_embedding_sparse, weft_embedding(t, x[0], x[1], &(weft_embedding_options){.sparse = true}))
RUN(run_embedding_sparse_padded,
    weft_embedding(t, x[0], x[1], &(weft_embedding_options){.sparse = true, .padding = true, .padding_row = 1}))
RUN(run_bag_mean, weft_embedding_bag(t, x[0], x[1], NULL, NULL, NULL))
RUN(run_bag_offsets,
    weft_embedding_bag(t, x[0], x[1], x[2], NULL, &(weft_embedding_bag_options){.padding = true, .padding_row = 1}))
RUN(run_bag_scaled, weft_embedding_bag(t, x[0], x[1], NULL, x[2], &(weft_embedding_bag_options){.mode = WEFT_BAG_SUM}))
RUN(run_bag_max, weft_embedding_bag(t, x[0], x[1], NULL, NULL, &(weft_embedding_bag_options){.mode = WEFT_BAG_MAX}))
RUN(run_bag_max_padded,
    weft_embedding_bag(t, x[0], x[1], NULL, NULL,
                       &(weft_embedding_bag_options){.mode = WEFT_BAG_MAX, .padding = true, .padding_row = 1}))
RUN(run_bag_sparse,
    weft_embedding_bag(t, x[0], x[1], x[2], NULL,
                       &(weft_embedding_bag_options){.sparse = true, .padding = true, .padding_row = 1}))
RUN(run_lstm, weft_lstm(t, x[0], NULL, NULL, (weft_tensors){x + 1, 4}, NULL, NULL, NULL))
RUN(run_lstm_states,
    weft_lstm(t, x[0], x[3], x[4], (weft_tensors){x + 1, 2}, &(weft_lstm_options){.no_bias = true}, NULL, NULL))
RUN(run_sum, weft_sum(t, x[0]))
RUN(run_mean, weft_mean(t, x[0]))
RUN(run_sum_rows, weft_sum_dim(t, x[0], 1, false))
RUN(run_sum_columns, weft_sum_dim(t, x[0], 0, true))
RUN(run_mean_dim, weft_mean_dim(t, x[0], 1, true))
RUN(run_argmax, weft_argmax(t, x[0], 1))
RUN(run_softmax, weft_softmax(t, x[0], 1))
RUN(run_softmax_middle, weft_softmax(t, x[0], 1))
RUN(run_log_softmax, weft_log_softmax(t, x[0], 1))
RUN(run_nll, weft_nll_loss(t, x[0], x[1]))
RUN(run_cross_entropy, weft_cross_entropy(t, x[0], x[1]))
RUN(run_mse, weft_mse_loss(t, x[0], x[1]))
RUN(run_nll_none, weft_nll_loss_reduced(t, x[0], x[1], WEFT_REDUCTION_NONE))
RUN(run_cross_entropy_sum, weft_cross_entropy_reduced(t, x[0], x[1], WEFT_REDUCTION_SUM))
RUN(run_mse_none, weft_mse_loss_reduced(t, x[0], x[1], WEFT_REDUCTION_NONE))

#define IMAGE FLOATS(2, 4, 6, 6)
#define CHANNELS POSITIVE(4)
#define RUNNING CONSTANT(4)
static const row rows[] = {
    {"add", "", run_add, {FLOATS(4, 5), FLOATS(4, 5)}},
    {"add", "broadcast", run_add, {FLOATS(3, 4, 5), FLOATS(4, 1)}},
    {"sub", "", run_sub, {FLOATS(4, 5), FLOATS(5)}},
    {"mul", "", run_mul, {FLOATS(4, 5), FLOATS(5)}},
    {"div", "", run_div, {FLOATS(4, 5), POSITIVE(4, 1)}},
    {"neg", "", run_neg, {FLOATS(4, 5)}},
    {"scale", "", run_scale, {FLOATS(4, 5)}},
    {"add_scalar", "", run_add_scalar, {FLOATS(4, 5)}},
    {"exp", "", run_exp, {FLOATS(4, 5)}},
    {"log", "", run_log, {POSITIVE(4, 5)}},
    {"relu", "", run_relu, {FLOATS(4, 5)}},
    {"relu_in_place", "", run_relu_in_place, {FLOATS(4, 5)}},
    {"sigmoid", "", run_sigmoid, {FLOATS(4, 5)}},
    {"tanh", "", run_tanh, {FLOATS(4, 5)}},
    {"matmul", "", run_matmul, {FLOATS(4, 7), FLOATS(7, 5)}},
    {"linear", "", run_linear, {FLOATS(3, 2, 5), FLOATS(8, 5)}},
    {"linear", "bias", run_linear_bias, {FLOATS(4, 5), FLOATS(8, 5), FLOATS(8)}},
    {"conv2d", "bias", run_conv2d, {IMAGE, FLOATS(8, 4, 3, 3), FLOATS(8)}},
    {"conv2d", "strided, groups", run_conv2d_strided, {IMAGE, FLOATS(6, 2, 3, 2)}},
    {"batch_norm2d", "train", run_norm_train, {IMAGE, CHANNELS, FLOATS(4)}},
    {"batch_norm2d", "train, moving", run_norm_moving, {IMAGE, CHANNELS, FLOATS(4), RUNNING, RUNNING}},
    {"batch_norm2d", "eval", run_norm_eval, {IMAGE, CHANNELS, FLOATS(4), RUNNING, RUNNING}},
    {"max_pool2d", "", run_max_pool, {IMAGE}},
    {"max_pool2d", "overlapping", run_max_pool_overlapping, {FLOATS(2, 3, 7, 6)}},
    {"adaptive_avg_pool2d", "", run_average_pool, {IMAGE}},
    {"adaptive_avg_pool2d", "overlapping", run_average_pool_overlapping, {FLOATS(2, 3, 7, 3)}},
    {"dropout", "", run_dropout, {FLOATS(40, 50)}},
    {"dropout2d", "", run_dropout2d, {IMAGE}},
    {"categorical", "", run_categorical, {CONSTANT(40, 5)}},
    {"uniform", "", run_uniform, {{.below = 0}}},
    {"normal", "", run_normal, {{.below = 0}}},
    {"flatten", "", run_flatten, {IMAGE}},
    {"reshape", "", run_reshape, {FLOATS(4, 5)}},
    {"transpose", "", run_transpose, {FLOATS(4, 5)}},
    {"narrow", "", run_narrow, {FLOATS(4, 5)}},
    {"select", "", run_select, {FLOATS(4, 5)}},
    {"take_along_dim", "", run_gather, {FLOATS(4, 5), INDEX(4, 6, 5)}},
    {"take_along_dim", "last", run_gather_last, {FLOATS(4, 5), INDEX(5, 3, 8)}},
    {"index_select", "", run_index_select, {FLOATS(4, 5), INDEX(4, 7)}},
    {"index_select", "middle", run_index_select_middle, {FLOATS(3, 4, 5), INDEX(4, 7)}},
    {"scatter_add", "", run_scatter_add, {FLOATS(4, 5), INDEX(4, 6, 4), FLOATS(6, 4)}},
    {"scatter_add", "last", run_scatter_add_last, {FLOATS(4, 5), INDEX(5, 3, 8), FLOATS(3, 8)}},
    {"stack", "", run_stack, {FLOATS(4, 5), FLOATS(4, 5)}},
    {"concat", "", run_concat, {FLOATS(4, 5), FLOATS(4, 3)}},
    {"clone", "", run_clone, {FLOATS(4, 5)}},
    {"detach", "", run_detach, {FLOATS(4, 5)}},
    {"embedding", "", run_embedding, {FLOATS(4, 5), INDEX(4, 2, 9)}},
    {"embedding", "padded", run_embedding_padded, {FLOATS(4, 5), INDEX(4, 2, 9)}},
    {"embedding", "sparse", run_embedding_sparse, {FLOATS(4, 5), INDEX(4, 2, 9)}},
    {"embedding", "sparse, padded", run_embedding_sparse_padded, {FLOATS(4, 5), INDEX(4, 2, 9)}},
    {"embedding_bag", "mean", run_bag_mean, {FLOATS(4, 5), INDEX(4, 3, 6)}},
    {"embedding_bag", "offsets, padded", run_bag_offsets, {FLOATS(4, 5), INDEX(4, 9), OFFSETS(4)}},
    {"embedding_bag", "sum, scaled", run_bag_scaled, {FLOATS(4, 5), INDEX(4, 3, 6), FLOATS(3, 6)}},
    {"embedding_bag", "max", run_bag_max, {FLOATS(4, 5), INDEX(4, 3, 6)}},
    {"embedding_bag", "max, empty", run_bag_max_padded, {FLOATS(4, 5), INDEX(4, 3, 1)}},
    {"embedding_bag", "sparse, padded", run_bag_sparse, {FLOATS(4, 5), INDEX(4, 9), OFFSETS(4)}},
    {"lstm", "biases", run_lstm, {FLOATS(3, 2, 5), FLOATS(16, 5), FLOATS(16, 4), FLOATS(16), FLOATS(16)}},
    {"lstm",
     "states",
     run_lstm_states,
     {FLOATS(3, 2, 5), FLOATS(16, 5), FLOATS(16, 4), FLOATS(1, 2, 4), FLOATS(1, 2, 4)}},
    {"sum", "", run_sum, {FLOATS(4, 5)}},
    {"sum", "large", run_sum, {FLOATS(300, 200)}},
    {"mean", "", run_mean, {FLOATS(4, 5)}},
    {"sum_dim", "rows", run_sum_rows, {FLOATS(4, 300)}},
    {"sum_dim", "columns", run_sum_columns, {FLOATS(70, 45)}},
    {"sum_dim", "middle", run_sum_rows, {FLOATS(3, 70, 4)}},
    {"mean_dim", "", run_mean_dim, {FLOATS(4, 5)}},
    {"argmax", "", run_argmax, {FLOATS(40, 5)}},
    {"softmax", "", run_softmax, {FLOATS(4, 50)}},
    {"softmax", "middle", run_softmax_middle, {FLOATS(3, 5, 4)}},
    {"log_softmax", "", run_log_softmax, {FLOATS(4, 5)}},
    {"nll_loss", "", run_nll, {FLOATS(4, 5), INDEX(5, 4)}},
    {"nll_loss_reduced", "none, planes", run_nll_none, {FLOATS(2, 5, 3), INDEX(5, 2, 3)}},
    {"cross_entropy", "", run_cross_entropy, {FLOATS(4, 5), INDEX(5, 4)}},
    {"cross_entropy_reduced", "sum", run_cross_entropy_sum, {FLOATS(4, 5), INDEX(5, 4)}},
    {"mse_loss", "", run_mse, {FLOATS(40, 250), FLOATS(40, 250)}},
    {"mse_loss_reduced", "none", run_mse_none, {FLOATS(4, 5), FLOATS(4, 5)}},
};
enum { ROWS = sizeof(rows) / sizeof(rows[0]) };

/* ---- One row on one device ---- */

typedef struct outcome {
    bool forward, backward, has_gradient, elsewhere; /* elsewhere: a result or gradient is on another device */
    weft_tensor *results[RESULTS_MOST];              /* the value, then the gradients, on the CPU; NULL: none */
    int count;
    char why[256];
} outcome;

static void keep(outcome *to, weft_tensor *tensor, weft_device device)
{
    if (tensor && weft_tensor_device(tensor).kind != device.kind)
        to->elsewhere = true;
    to->results[to->count++] = !tensor ? NULL : tensor_to_device(tensor, cpu);
}

static void pass_back(weft_tape *t, weft_tensor *y, weft_tensor **in, int inputs, weft_device device, outcome *out)
{
    weft_tensor *here = make(&(input){.shape = weft_tensor_shape(y)}, 20, weft_tensor_dtype(y));
    weft_tensor *start = tensor_to_device(here, device);
    weft_backward_with(t, (weft_tensors){&y, 1}, (weft_tensors){&start, 1}, NULL);
    out->backward = weft_tape_status(t) == WEFT_OK;
    for (int i = 0; i < inputs && out->backward; i++)
        if (weft_tensor_requires_grad(in[i]))
            keep(out, weft_tape_grad(t, in[i]), device);
    weft_tensor_unref(here);
    weft_tensor_unref(start);
}

static outcome run_row(const row *r, weft_dtype dtype, weft_device device)
{
    outcome out = {0};
    weft_tensor *in[INPUTS_MOST] = {NULL};
    int inputs = 0;
    bool wants_gradient = false;
    weft_tape *t = weft_tape_open(&(weft_tape_options){.record = true, .seed = 9, .device = device});
    for (; inputs < INPUTS_MOST && r->inputs[inputs].shape.ndim > 0; inputs++) {
        const input *how = &r->inputs[inputs];
        weft_tensor *here = make(how, inputs, dtype);
        in[inputs] = tensor_to_device(here, device);
        if (how->below == 0 && !how->no_gradient)
            weft_tensor_set_requires_grad(in[inputs], true);
        wants_gradient = wants_gradient || weft_tensor_requires_grad(in[inputs]);
        weft_tensor_unref(here);
    }
    weft_tensor *y = r->run(t, in, dtype);
    out.forward = y && weft_tape_status(t) == WEFT_OK;
    if (out.forward)
        keep(&out, y, device);
    bool is_float = out.forward && weft_tensor_dtype(y) == dtype;
    out.has_gradient = is_float && wants_gradient && strcmp(r->function, "detach") != 0;
    if (out.has_gradient)
        pass_back(t, y, in, inputs, device, &out);
    if (weft_tape_status(t) != WEFT_OK)
        snprintf(out.why, sizeof(out.why), "%s", weft_error_message(weft_tape_error(t)));
    weft_tape_close(t);
    for (int i = 0; i < inputs; i++)
        weft_tensor_unref(in[i]);
    return out;
}

static void drop(outcome *out)
{
    for (int i = 0; i < out->count; i++)
        weft_tensor_unref(out->results[i]);
}

/* The largest difference, relative to 1 + the size of the number; infinite if the shapes or a NaN differ. */
static double distance(const outcome *a, const outcome *b)
{
    double worst = a->count == b->count ? 0 : INFINITY;
    for (int i = 0; i < a->count && i < b->count; i++) {
        const weft_tensor *x = a->results[i], *y = b->results[i];
        if (!x && !y)
            continue;
        if (!x || !y || !weft_tensor_same_shape(x, y))
            return INFINITY;
        for (int64_t k = 0; k < weft_tensor_numel(x); k++) {
            double u = weft_tensor_get_f64(x, k), v = weft_tensor_get_f64(y, k);
            double error = fabs(u - v) / (1 + fabs(u));
            worst = fmax(worst, isnan(u) != isnan(v) ? INFINITY : error > 0 ? error : 0);
        }
    }
    return worst;
}

/* Prints the row; whether it works. */
static bool check_row(const row *r, weft_dtype dtype)
{
    double most = dtype == WEFT_DTYPE_FLOAT64 ? 1e-12 : 5e-6;
    outcome want = run_row(r, dtype, cpu), got = run_row(r, dtype, gpu);
    double error = distance(&want, &got);
    bool fits = want.forward && got.forward && want.has_gradient == got.has_gradient && want.backward == got.backward &&
                want.backward == want.has_gradient && !got.elsewhere && error <= most;
    printf("%-22s %-16s %-8s forward %-3s backward %-4s error %.1e%s%s%s\n", r->function, r->variant,
           weft_dtype_name(dtype), got.forward ? "yes" : "NO",
           !want.has_gradient ? "none"
           : got.backward     ? "yes"
                              : "NO",
           error, got.elsewhere ? " ON ANOTHER DEVICE" : "", fits ? "" : "  <- does not work: ", fits ? "" : got.why);
    drop(&want);
    drop(&got);
    return fits;
}

static void every_row_works(void **state)
{
    int gaps = 0;
    for (int i = 0; i < ROWS; i++) {
        gaps += !check_row(&rows[i], WEFT_DTYPE_FLOAT32);
        gaps += !check_row(&rows[i], WEFT_DTYPE_FLOAT64);
    }
    assert_int_equal(gaps, 0);
}

/* The names of the functions that weft/ops.h declares, each in the table. */
static void every_operator_has_a_row(void **state)
{
    static const char before[] = "WEFT_API weft_tensor *weft_";
    char line[512];
    int functions = 0, missing = 0;
    FILE *header = fopen(OPS_HEADER, "r");
    assert_non_null(header);
    while (fgets(line, sizeof(line), header)) {
        char *name = strstr(line, before), *end = !name ? NULL : strchr(name, '(');
        if (!end)
            continue;
        name += sizeof(before) - 1;
        *end = '\0';
        char *sized = strstr(name, "_sized"); /* the inline function calls it */
        if (sized)
            *sized = '\0';
        int i = 0;
        while (i < ROWS && strcmp(rows[i].function, name) != 0)
            i++;
        if (i == ROWS)
            printf("weft_%s has no row in the table\n", name);
        missing += i == ROWS;
        functions++;
    }
    fclose(header);
    assert_true(functions >= 40);
    assert_int_equal(missing, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_operator_has_a_row),
        cmocka_unit_test(every_row_works),
    };
    if (!gpu_is_here())
        return GPU_SKIPPED;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
