/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_autograd_oracle.c - values and gradients of every operator against PyTorch's: tests/data/ops_cases.txt, which
 * tests/oracle/ops_oracle.py made and describes. Each case runs in float64, in float32, and on operands with gaps
 * between their elements.
 */
#include <weft/weft.h>

#include "oracle/formula.h"
#include "tensors.h"
#include "unit.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define INPUTS 5
#define OPTIONS 8
#define WEIGHTS_KEY 77
#define TOLERANCE_F32 1e-5
#define TOLERANCE_F64 1e-12
#define SMALLEST 1e-37 /* what float32 cannot tell from zero */

typedef struct values {
    double *items; /* NULL: the file names none */
    size_t count;
} values;

typedef struct input {
    char kind;
    weft_shape shape;
    uint64_t key;
    double factor, offset;
    values grad, after;
} input;

typedef struct op_case {
    char name[96], op[64];
    input in[INPUTS];
    int in_count, option_count;
    double option[OPTIONS];
    weft_shape out_shape;
    values out;
} op_case;

/* ---- Operators by name ------------------------------------------------------------------------------------------ */

typedef weft_tensor *(*run_fn)(weft_tape *t, weft_tensor *const *in, const op_case *c);

/* clang-format off */
#define RUN(name, expr)                                                                                                \
    static weft_tensor *run_##name(weft_tape *t, weft_tensor *const *in, const op_case *c)                             \
    {                                                                                                                  \
        const double *o = c->option;                                                                                   \
        (void)o;                                                                                                       \
        return expr;                                                                                                   \
    }
RUN(add, weft_add(t, in[0], in[1]))
RUN(sub, weft_sub(t, in[0], in[1]))
RUN(mul, weft_mul(t, in[0], in[1]))
RUN(div, weft_div(t, in[0], in[1]))
RUN(neg, weft_neg(t, in[0]))
RUN(scale, weft_scale(t, in[0], o[0]))
RUN(add_scalar, weft_add_scalar(t, in[0], o[0]))
RUN(exp, weft_exp(t, in[0]))
RUN(log, weft_log(t, in[0]))
RUN(relu, weft_relu(t, in[0]))
RUN(sigmoid, weft_sigmoid(t, in[0]))
RUN(tanh, weft_tanh(t, in[0]))
RUN(index_select, weft_index_select(t, in[0], (int)o[0], in[1]))
RUN(scatter_add, weft_scatter_add(t, in[0], (int)o[0], in[1], in[2]))
RUN(matmul, weft_matmul(t, in[0], in[1]))
RUN(linear, weft_linear(t, in[0], in[1], c->in_count > 2 ? in[2] : NULL))
RUN(adaptive_avg_pool2d, weft_adaptive_avg_pool2d(t, in[0], (int64_t)o[0], (int64_t)o[1]))
RUN(dropout, weft_dropout(t, in[0], o[0], o[1] != 0))
RUN(dropout2d, weft_dropout2d(t, in[0], o[0], o[1] != 0))
RUN(flatten, weft_flatten(t, in[0], (int)o[0]))
RUN(transpose, weft_transpose(t, in[0], (int)o[0], (int)o[1]))
RUN(narrow, weft_narrow(t, in[0], (int)o[0], (int64_t)o[1], (int64_t)o[2]))
RUN(select, weft_select(t, in[0], (int)o[0], (int64_t)o[1]))
RUN(clone, weft_clone(t, in[0]))
RUN(detach, weft_detach(t, in[0]))
RUN(sum, weft_sum(t, in[0]))
RUN(mean, weft_mean(t, in[0]))
RUN(sum_dim, weft_sum_dim(t, in[0], (int)o[0], o[1] != 0))
RUN(mean_dim, weft_mean_dim(t, in[0], (int)o[0], o[1] != 0))
RUN(argmax, weft_argmax(t, in[0], (int)o[0]))
RUN(softmax, weft_softmax(t, in[0], (int)o[0]))
RUN(log_softmax, weft_log_softmax(t, in[0], (int)o[0]))
RUN(nll_loss, weft_nll_loss_reduced(t, in[0], in[1], (weft_reduction)o[0]))
RUN(cross_entropy, weft_cross_entropy_reduced(t, in[0], in[1], (weft_reduction)o[0]))
RUN(mse_loss, weft_mse_loss_reduced(t, in[0], in[1], (weft_reduction)o[0]))
RUN(gather, weft_take_along_dim(t, in[0], (int)o[0], in[1]))
RUN(stack, weft_stack(t, (weft_tensors){in, (size_t)c->in_count}, (int)o[0]))
RUN(concat, weft_concat(t, (weft_tensors){in, (size_t)c->in_count}, (int)o[0]))
/* clang-format on */

static weft_tensor *run_reshape(weft_tape *t, weft_tensor *const *in, const op_case *c)
{
    weft_shape shape = {c->option_count, {0}};
    for (int i = 0; i < c->option_count; i++)
        shape.dims[i] = (int64_t)c->option[i];
    return weft_reshape(t, in[0], shape);
}

static weft_tensor *run_conv2d(weft_tape *t, weft_tensor *const *in, const op_case *c)
{
    weft_conv2d_options how = {.groups = (int64_t)c->option[6]};
    for (int i = 0; i < 2; i++) {
        how.stride[i] = (int64_t)c->option[i];
        how.padding[i] = (int64_t)c->option[2 + i];
        how.dilation[i] = (int64_t)c->option[4 + i];
    }
    return weft_conv2d(t, in[0], in[1], c->in_count > 2 ? in[2] : NULL, &how);
}

static weft_tensor *run_batch_norm2d(weft_tape *t, weft_tensor *const *in, const op_case *c)
{
    weft_batch_norm_options how = {c->option[0] != 0, c->option[1], c->option[2]};
    bool affine = c->option[3] != 0, running = c->option[4] != 0;
    weft_tensor *const *rest = in + (affine ? 3 : 1);
    return weft_batch_norm2d(t, in[0], affine ? in[1] : NULL, affine ? in[2] : NULL, running ? rest[0] : NULL,
                             running ? rest[1] : NULL, &how);
}

static weft_tensor *run_max_pool2d(weft_tape *t, weft_tensor *const *in, const op_case *c)
{
    weft_max_pool2d_options how;
    for (int i = 0; i < 2; i++) {
        how.kernel[i] = (int64_t)c->option[i];
        how.stride[i] = (int64_t)c->option[2 + i];
        how.padding[i] = (int64_t)c->option[4 + i];
    }
    return weft_max_pool2d(t, in[0], &how);
}

static run_fn find_operator(const char *name)
{
#define ENTRY(name)                                                                                                    \
    {                                                                                                                  \
#name, run_##name                                                                                              \
    }
    static const struct {
        const char *name;
        run_fn run;
    } all[] = {ENTRY(add),          ENTRY(sub),           ENTRY(mul),        ENTRY(div),
               ENTRY(neg),          ENTRY(scale),         ENTRY(add_scalar), ENTRY(exp),
               ENTRY(log),          ENTRY(relu),          ENTRY(matmul),     ENTRY(linear),
               ENTRY(conv2d),       ENTRY(batch_norm2d),  ENTRY(max_pool2d), ENTRY(adaptive_avg_pool2d),
               ENTRY(dropout),      ENTRY(dropout2d),     ENTRY(flatten),    ENTRY(reshape),
               ENTRY(transpose),    ENTRY(narrow),        ENTRY(select),     ENTRY(clone),
               ENTRY(detach),       ENTRY(sum),           ENTRY(mean),       ENTRY(sum_dim),
               ENTRY(mean_dim),     ENTRY(argmax),        ENTRY(softmax),    ENTRY(log_softmax),
               ENTRY(nll_loss),     ENTRY(cross_entropy), ENTRY(mse_loss),   ENTRY(gather),
               ENTRY(stack),        ENTRY(concat),        ENTRY(sigmoid),    ENTRY(tanh),
               ENTRY(index_select), ENTRY(scatter_add)};
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        if (strcmp(all[i].name, name) == 0)
            return all[i].run;
    fail_msg("there is no operator %s", name);
    return NULL;
}

/* ---- The file --------------------------------------------------------------------------------------------------- */

static double next_number(FILE *file)
{
    char word[64];
    assert_int_equal(fscanf(file, "%63s", word), 1);
    return strtod(word, NULL);
}

static weft_shape next_shape(FILE *file)
{
    char word[64], *at = word;
    weft_shape shape = {0, {0}};
    assert_int_equal(fscanf(file, "%63s", word), 1);
    if (strcmp(word, "-") == 0)
        return shape;
    for (; *at != '\0' && shape.ndim < WEFT_MAX_DIMS; at += *at == 'x')
        shape.dims[shape.ndim++] = strtoll(at, &at, 10);
    return shape;
}

static size_t elements(const weft_shape *shape)
{
    size_t count = 1;
    for (int i = 0; i < shape->ndim; i++)
        count *= (size_t)shape->dims[i];
    return count;
}

static values next_values(FILE *file, const weft_shape *shape)
{
    values v = {NULL, elements(shape)};
    v.items = calloc(v.count + 1, sizeof(double));
    assert_non_null(v.items);
    for (size_t i = 0; i < v.count; i++)
        v.items[i] = next_number(file);
    return v;
}

static void read_input(FILE *file, op_case *c)
{
    assert_true(c->in_count < INPUTS);
    input *in = &c->in[c->in_count++];
    assert_int_equal(fscanf(file, " %c", &in->kind), 1);
    in->shape = next_shape(file);
    in->key = (uint64_t)next_number(file);
    in->factor = next_number(file);
    in->offset = next_number(file);
}

static void read_values_of_input(FILE *file, op_case *c, bool grad)
{
    int which = (int)next_number(file);
    assert_in_range(which, 0, c->in_count - 1);
    *(grad ? &c->in[which].grad : &c->in[which].after) = next_values(file, &c->in[which].shape);
}

static void read_options(FILE *file, op_case *c)
{
    c->option_count = (int)next_number(file);
    assert_in_range(c->option_count, 0, OPTIONS);
    for (int i = 0; i < c->option_count; i++)
        c->option[i] = next_number(file);
}

/* False at the end of the file. */
static bool read_case(FILE *file, op_case *c)
{
    char word[64];
    memset(c, 0, sizeof(*c));
    if (fscanf(file, " case %95s %63s", c->name, c->op) != 2)
        return false;
    while (fscanf(file, "%63s", word) == 1 && strcmp(word, "end") != 0) {
        if (strcmp(word, "in") == 0)
            read_input(file, c);
        else if (strcmp(word, "opt") == 0)
            read_options(file, c);
        else if (strcmp(word, "out") == 0) {
            c->out_shape = next_shape(file);
            c->out = next_values(file, &c->out_shape);
        } else
            read_values_of_input(file, c, strcmp(word, "grad") == 0);
    }
    return true;
}

static void free_case(op_case *c)
{
    free(c->out.items);
    for (int i = 0; i < c->in_count; i++) {
        free(c->in[i].grad.items);
        free(c->in[i].after.items);
    }
}

/* ---- Running ---------------------------------------------------------------------------------------------------- */

typedef struct how {
    weft_dtype dtype;
    double tolerance;
    bool gaps; /* operands are every second element of a larger storage */
} how;

static weft_tensor *with_gaps(weft_tensor *packed)
{
    weft_shape wide = weft_tensor_shape(packed);
    wide.dims[wide.ndim++] = 2;
    weft_tensor *storage = tensor_full(wide, weft_tensor_dtype(packed), 9);
    weft_tensor *view = tensor_select(storage, -1, 1);
    assert_int_equal(weft_tensor_assign(view, packed), WEFT_OK);
    weft_tensor_unref(storage);
    weft_tensor_unref(packed);
    return view;
}

static weft_tensor *make_input(const input *in, const how *h, bool must_be_packed)
{
    weft_tensor *x;
    if (in->kind == 'i') {
        x = tensor_empty(in->shape, WEFT_DTYPE_INT64);
        formula_fill_below(x, in->key, (int64_t)in->factor);
        for (int64_t i = 0; i < weft_tensor_numel(x); i++)
            ((int64_t *)weft_tensor_data(x))[i] += (int64_t)in->offset;
    } else {
        x = tensor_empty(in->shape, h->dtype);
        formula_fill(x, in->key, in->factor, in->offset);
    }
    if (h->gaps && !must_be_packed)
        x = with_gaps(x);
    weft_tensor_set_requires_grad(x, in->kind == 'f');
    return x;
}

static void assert_values(const op_case *c, const how *h, const char *what, const weft_tensor *got,
                          const values *wanted)
{
    double squares = 0;
    for (size_t i = 0; i < wanted->count; i++)
        squares += wanted->items[i] * wanted->items[i];
    double rms = wanted->count == 0 ? 0 : sqrt(squares / (double)wanted->count);
    assert_int_equal(weft_tensor_numel(got), wanted->count);
    for (size_t i = 0; i < wanted->count; i++) {
        double is = weft_tensor_get_f64(got, (int64_t)i), should = wanted->items[i];
        double room = h->tolerance * (fabs(should) + rms) + SMALLEST;
        bool near = isnan(should) ? isnan(is) : fabs(is - should) <= room;
        if (!near)
            fail_msg("%s (%s%s): %s %zu is %.17g, wanted %.17g", c->name, weft_dtype_name(h->dtype),
                     h->gaps ? ", gaps" : "", what, i, is, should);
    }
}

static void assert_out_shape(const op_case *c, const weft_tensor *y)
{
    assert_int_equal(weft_tensor_ndim(y), c->out_shape.ndim);
    for (int i = 0; i < c->out_shape.ndim; i++)
        assert_int_equal(weft_tensor_size(y, i), c->out_shape.dims[i]);
}

static bool wants_gradients(const op_case *c)
{
    for (int i = 0; i < c->in_count; i++)
        if (c->in[i].grad.items)
            return true;
    return false;
}

static void go_back(weft_tape *t, const op_case *c, const how *h, weft_tensor *y)
{
    if (!wants_gradients(c))
        return;
    weft_tensor *weights = weft_tape_take(t, formula_tensor(c->out_shape, h->dtype, WEIGHTS_KEY));
    weft_backward_with(t, (weft_tensors){&y, 1}, (weft_tensors){&weights, 1}, NULL);
}

static void assert_input(const op_case *c, const how *h, int which, const weft_tensor *x, const weft_tensor *gradient)
{
    const input *in = &c->in[which];
    char what[32];
    snprintf(what, sizeof(what), "gradient %d,", which);
    if (in->kind != 'f')
        assert_null(gradient);
    if (in->grad.items && !gradient)
        fail_msg("%s: input %d got no gradient", c->name, which);
    if (in->grad.items)
        assert_values(c, h, what, gradient, &in->grad);
    if (in->after.items)
        assert_values(c, h, "afterwards", x, &in->after);
}

static void run_case(const op_case *c, const how *h)
{
    weft_tensor *in[INPUTS] = {NULL};
    weft_tape *t = weft_tape_open(&(weft_tape_options){.record = true});
    bool is_norm = strcmp(c->op, "batch_norm2d") == 0;
    for (int i = 0; i < c->in_count; i++)
        in[i] = make_input(&c->in[i], h, is_norm && c->in[i].kind == 'c'); /* running statistics */
    weft_tensor *y = find_operator(c->op)(t, in, c);
    if (y)
        go_back(t, c, h, y);
    if (weft_tape_status(t) != WEFT_OK)
        fail_msg("%s: %s", c->name, weft_error_message(weft_tape_error(t)));
    assert_out_shape(c, y);
    assert_values(c, h, "element", y, &c->out);
    for (int i = 0; i < c->in_count; i++)
        assert_input(c, h, i, in[i], weft_tape_grad(t, in[i]));
    weft_tape_close(t);
    for (int i = 0; i < c->in_count; i++)
        weft_tensor_unref(in[i]);
}

static void run_all(const how *h)
{
    op_case c;
    int count = 0;
    FILE *file = fopen(WEFT_TEST_DATA "/ops_cases.txt", "r");
    assert_non_null(file);
    while (read_case(file, &c)) {
        run_case(&c, h);
        free_case(&c);
        count++;
    }
    fclose(file);
    assert_true(count > 310);
}

static void operators_match_pytorch_in_float64(void **state)
{
    run_all(&(how){WEFT_DTYPE_FLOAT64, TOLERANCE_F64, false});
}

static void operators_match_pytorch_in_float32(void **state)
{
    run_all(&(how){WEFT_DTYPE_FLOAT32, TOLERANCE_F32, false});
}

static void operators_match_pytorch_on_operands_with_gaps(void **state)
{
    run_all(&(how){WEFT_DTYPE_FLOAT64, TOLERANCE_F64, true});
    run_all(&(how){WEFT_DTYPE_FLOAT32, TOLERANCE_F32, true});
}

UNIT_MAIN(operators_match_pytorch_in_float64, operators_match_pytorch_in_float32,
          operators_match_pytorch_on_operands_with_gaps)
