/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_optim_own.c - types of optimizers of a program's own: with weft's formulas they give the bits of weft's, in all
 * ways to step. Errors name what is wrong with a type or its options.
 */
#include <weft/weft.h>

#include "oracle/formula.h"
#include "make.h"
#include "tensors.h"
#include "unit.h"

#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PARAMETERS 3
static const weft_shape shapes[PARAMETERS] = {
    {2, {70, 1000}}, {1, {5}}, {0, {0}}}; /* the first is stepped by several threads */

/* ---- SGD and Adam, once more ------------------------------------------------------------------------------------- */

enum { MOMENTUM, DAMPENING, SGD_DECAY, NESTEROV };

#define OWN_SGD(name, T)                                                                                               \
    static void name(const weft_optimizer_update *u, const weft_optimizer_span *s)                                     \
    {                                                                                                                  \
        const T *p = s->from, *g = s->gradient;                                                                        \
        T *to = s->to, *v = s->slots[0], factor = (T)u->factor, lr = (T)u->lr, decay = (T)u->options[SGD_DECAY];       \
        T momentum = (T)u->options[MOMENTUM], fresh = (T)(1 - u->options[DAMPENING]);                                  \
        T ahead = (T)(u->options[NESTEROV] != 0 ? u->options[MOMENTUM] : 1), direct = (T)u->options[NESTEROV];         \
        for (int64_t i = 0; i < s->count; i++) {                                                                       \
            T d = factor * g[i] + decay * p[i];                                                                        \
            if (!v) {                                                                                                  \
                to[i] = p[i] - lr * d;                                                                                 \
                continue;                                                                                              \
            }                                                                                                          \
            v[i] = u->step == 1 ? d : momentum * v[i] + fresh * d;                                                     \
            to[i] = p[i] - lr * (direct * d + ahead * v[i]);                                                           \
        }                                                                                                              \
    }
OWN_SGD(sgd_f32, float)
OWN_SGD(sgd_f64, double)

static void sgd_span(const void *arg, const weft_optimizer_span *s)
{
    s->dtype == WEFT_DTYPE_FLOAT32 ? sgd_f32(arg, s) : sgd_f64(arg, s);
}

static weft_status sgd_step(const weft_optimizer_update *u)
{
    return weft_optimizer_update_run(u, sgd_span, u);
}

static const weft_optimizer_type own_sgd = {
    .name = "OwnSGD",
    .options = {[MOMENTUM] = {"momentum", .max = INFINITY, .dense_only = true},
                [DAMPENING] = {"dampening"},
                [SGD_DECAY] = {"weight_decay", .max = INFINITY, .dense_only = true},
                [NESTEROV] = {"nesterov", .flag = true}},
    .slots = {{"momentum_buffer", .needs = "momentum"}},
    .uncounted = true,
    .sparse = true,
    .step = sgd_step,
};

enum { BETA1, BETA2, EPS };

static void adam_span(const void *arg, const weft_optimizer_span *s)
{
    const weft_optimizer_update *u = arg;
    double steps = (double)u->step, scale = sqrt(1 - pow(u->options[BETA2], steps));
    double rate = u->lr * scale / (1 - pow(u->options[BETA1], steps)), fresh1 = 1 - u->options[BETA1];
    double fresh2 = 1 - u->options[BETA2], eps = u->gradient ? u->options[EPS] * scale : u->options[EPS];
    for (int64_t i = 0; i < s->count; i++) {
        if (s->dtype == WEFT_DTYPE_FLOAT32) {
            float *m = s->slots[0], *v = s->slots[1], d = (float)u->factor * ((const float *)s->gradient)[i];
            m[i] = m[i] + (float)fresh1 * (d - m[i]);
            v[i] = (float)u->options[BETA2] * v[i] + (float)fresh2 * d * d;
            ((float *)s->to)[i] = ((const float *)s->from)[i] - (float)rate * m[i] / (sqrtf(v[i]) + (float)eps);
        } else {
            double *m = s->slots[0], *v = s->slots[1], d = u->factor * ((const double *)s->gradient)[i];
            m[i] = m[i] + fresh1 * (d - m[i]);
            v[i] = u->options[BETA2] * v[i] + fresh2 * d * d;
            ((double *)s->to)[i] = ((const double *)s->from)[i] - rate * m[i] / (sqrt(v[i]) + eps);
        }
    }
}

static weft_status adam_step(const weft_optimizer_update *u)
{
    return weft_optimizer_update_run(u, adam_span, u);
}

static const weft_optimizer_type own_adam = {
    .name = "OwnAdam",
    .lr = 1e-3,
    .options = {[BETA1] = {"beta1", 0.9, .max = 1, .open = true},
                [BETA2] = {"beta2", 0.999, .max = 1, .open = true},
                [EPS] = {"eps", 1e-8, .max = INFINITY}},
    .slots = {{"exp_avg"}, {"exp_avg_sq"}},
    .sparse = true,
    .step = adam_step,
};

/* ---- The same bits ----------------------------------------------------------------------------------------------- */

static const struct {
    weft_optimizer_spec own, of_weft;
    bool takes_rows;
} pairs[] = {
    {{.type = &own_sgd, .lr = 0.1}, {.type = &weft_sgd_type, .lr = 0.1}, true},
    {{.type = &own_sgd, .lr = 0.1, .own = {[MOMENTUM] = 0.9, [SGD_DECAY] = 0.01, [NESTEROV] = 1}},
     {.type = &weft_sgd_type, .lr = 0.1, .sgd = {.momentum = 0.9, .weight_decay = 0.01, .nesterov = true}},
     false},
    {{.type = &own_sgd, .lr = 0.1, .max_norm = 0.5, .maximize = true, .own = {[MOMENTUM] = 0.9, [DAMPENING] = 0.3}},
     {.type = &weft_sgd_type, .lr = 0.1, .max_norm = 0.5, .maximize = true, .sgd = {.momentum = 0.9, .dampening = 0.3}},
     false},
    {{.type = &own_adam}, {.type = &weft_adam_type}, true},
    {{.type = &own_adam, .lr = 0.01, .average = true, .own = {[BETA1] = 0.8, [EPS] = 1e-4}},
     {.type = &weft_adam_type, .lr = 0.01, .average = true, .adam = {.beta1 = 0.8, .eps = 1e-4}},
     true},
};
#define PAIRS (sizeof(pairs) / sizeof(pairs[0]))

typedef struct model {
    weft_module *module;
    weft_tensor *plain[PARAMETERS];
    weft_tensors parameters;
    weft_optimizer *optimizer;
} model;

static void model_open(model *m, const weft_optimizer_spec *spec, bool is_module, weft_dtype dtype)
{
    *m = (model){.module = is_module ? linear_create(3, 4, false, 7, NULL) : NULL};
    for (int k = 0; k < PARAMETERS; k++)
        m->plain[k] = formula_tensor(shapes[k], dtype, 1 + (uint64_t)k);
    m->parameters = (weft_tensors){m->plain, PARAMETERS};
    if (is_module) {
        assert_int_equal(weft_module_to(m->module, dtype), WEFT_OK);
        m->parameters = weft_module_parameters(m->module);
    }
    weft_error *error = NULL;
    m->optimizer = optimizer_create(m->parameters, spec, &error);
    if (!m->optimizer)
        fail_msg("%s", weft_error_message(error));
}

static void model_close(model *m)
{
    weft_optimizer_unref(m->optimizer);
    weft_module_unref(m->module);
    for (int k = 0; k < PARAMETERS; k++)
        weft_tensor_unref(m->plain[k]);
}

static void assert_same(const model *a, const model *b)
{
    for (size_t k = 0; k < a->parameters.count; k++) {
        weft_tensor *x = tensor_contiguous(a->parameters.items[k]), *y = tensor_contiguous(b->parameters.items[k]);
        assert_memory_equal(weft_tensor_data(x), weft_tensor_data(y), weft_tensor_nbytes(x));
        weft_tensor_unref(x);
        weft_tensor_unref(y);
    }
    assert_int_equal(weft_optimizer_state_count(a->optimizer), weft_optimizer_state_count(b->optimizer));
    for (size_t i = 0; i < weft_optimizer_state_count(a->optimizer); i++) {
        weft_optimizer_state x, y;
        assert_int_equal(weft_optimizer_ref_state(a->optimizer, i, &x), WEFT_OK);
        assert_int_equal(weft_optimizer_ref_state(b->optimizer, i, &y), WEFT_OK);
        assert_string_equal(x.name, y.name);
        assert_memory_equal(weft_tensor_data(x.tensor), weft_tensor_data(y.tensor), weft_tensor_nbytes(x.tensor));
        weft_tensor_unref(x.tensor);
        weft_tensor_unref(y.tensor);
    }
}

/* By accumulation or lent, dense or, if `rows`, the first parameter's by rows. */
static void step_both(const model *both, uint64_t seed, bool rows)
{
    weft_gradient g[PARAMETERS] = {{0}};
    weft_tensor *dense[PARAMETERS];
    size_t count = both->parameters.count;
    weft_dtype dtype = weft_tensor_dtype(both->parameters.items[0]);
    const int64_t ids[] = {2, 0, 2};
    for (size_t k = 0; k < count; k++) {
        weft_shape shape = weft_tensor_shape(both->parameters.items[k]);
        if (rows && k == 0) {
            shape.dims[0] = 3;
            g[k].rows = tensor_copy_of(WEFT_SHAPE(3), WEFT_DTYPE_INT64, ids);
        }
        dense[k] = g[k].values = formula_tensor(shape, dtype, 100 * seed + k);
    }
    for (int i = 0; i < 2; i++) {
        if (rows || seed % 2) {
            assert_int_equal(weft_optimizer_apply(both[i].optimizer, (weft_gradients){g, count}), WEFT_OK);
            continue;
        }
        assert_int_equal(weft_optimizer_accumulate(both[i].optimizer, (weft_tensors){dense, count}), WEFT_OK);
        assert_int_equal(weft_optimizer_accumulate(both[i].optimizer, (weft_tensors){dense, count}), WEFT_OK);
        assert_int_equal(weft_optimizer_step(both[i].optimizer), WEFT_OK);
    }
    for (size_t k = 0; k < count; k++) {
        weft_tensor_unref(g[k].values);
        weft_tensor_unref(g[k].rows);
    }
}

static void own_types_give_the_bits_of_wefts(void **state)
{
    for (size_t i = 0; i < PAIRS; i++)
        for (int how = 0; how < 8; how++) {
            bool is_module = how & 1, rows = (how & 4) && pairs[i].takes_rows;
            weft_dtype dtype = how & 2 ? WEFT_DTYPE_FLOAT64 : WEFT_DTYPE_FLOAT32;
            model both[2];
            model_open(&both[0], &pairs[i].own, is_module, dtype);
            model_open(&both[1], &pairs[i].of_weft, is_module, dtype);
            for (uint64_t step = 1; step <= 6; step++) {
                step_both(both, step, rows);
                assert_same(&both[0], &both[1]);
            }
            model_close(&both[0]);
            model_close(&both[1]);
        }
}

/* Two groups of an own type, whose specs can be read and made again; and the rate. */
static void own_types_have_groups_and_specs(void **state)
{
    weft_tensor *p[PARAMETERS];
    weft_optimizer_spec spec = {.type = &own_adam, .own = {[EPS] = 0.5}}, found;
    for (int k = 0; k < PARAMETERS; k++)
        p[k] = formula_tensor(shapes[k], WEFT_DTYPE_FLOAT32, 1);
    weft_optimizer *adam = optimizer_create((weft_tensors){p, 2}, &spec, NULL);
    assert_non_null(adam);
    spec.lr = 0.25;
    assert_int_equal(weft_optimizer_add_group(adam, (weft_tensors){p + 2, 1}, &spec, NULL), WEFT_OK);
    assert_int_equal(weft_optimizer_get_spec(adam, 0, &found), WEFT_OK);
    assert_ptr_equal(found.type, &own_adam);
    assert_true(found.lr == 1e-3 && found.own[BETA1] == 0.9 && found.own[EPS] == 0.5 && found.own[EPS + 1] == 0);
    assert_true(weft_optimizer_group_lr(adam, 1) == 0.25);
    weft_error *error = NULL;
    assert_int_equal(weft_optimizer_add_group(adam, (weft_tensors){p + 2, 1}, &pairs[0].own, &error), WEFT_ERR_INVALID);
    assert_string_equal(weft_error_message(error), "a group of OwnSGD in an optimizer of type OwnAdam");
    weft_error_unref(error);
    weft_optimizer_unref(adam);
    for (int k = 0; k < PARAMETERS; k++)
        weft_tensor_unref(p[k]);
}

/* The state goes through a file, which names the type, and the optimizer goes on with the same bits. */
static void own_state_goes_through_a_file(void **state)
{
    char path[] = "weft-test-optim-own-XXXXXX";
    int file = mkstemp(path);
    assert_true(file >= 0);
    close(file);
    model both[2], other;
    weft_error *error = NULL;
    model_open(&both[0], &pairs[3].own, false, WEFT_DTYPE_FLOAT32);
    model_open(&both[1], &pairs[3].own, false, WEFT_DTYPE_FLOAT32);
    model_open(&other, &pairs[1].own, false, WEFT_DTYPE_FLOAT32);
    step_both((model[]){both[0], both[0]}, 1, false);
    assert_int_equal(weft_optimizer_save(both[0].optimizer, path, NULL), WEFT_OK);
    assert_int_equal(weft_optimizer_load(both[1].optimizer, path, NULL), WEFT_OK);
    assert_int_equal(weft_optimizer_load(other.optimizer, path, &error), WEFT_ERR_TYPE);
    assert_non_null(strstr(weft_error_message(error), "is the state of OwnAdam, the optimizer is OwnSGD"));
    for (int k = 0; k < PARAMETERS; k++)
        assert_int_equal(weft_tensor_assign(both[1].plain[k], both[0].plain[k]), WEFT_OK);
    step_both(both, 2, false);
    assert_same(&both[0], &both[1]);
    weft_error_unref(error);
    model_close(&both[0]);
    model_close(&both[1]);
    model_close(&other);
    unlink(path);
}

/* ---- What is wrong ----------------------------------------------------------------------------------------------- */

static weft_status fails;
static atomic_int step_calls;

static weft_status failing_step(const weft_optimizer_update *u)
{
    if (u->step == 2 && weft_tensor_numel(u->from) == 5 && fails)
        return fails;
    step_calls++;
    for (int64_t i = 0; i < weft_tensor_numel(u->from); i++)
        ((float *)weft_tensor_data(u->to))[i] = ((const float *)weft_tensor_data(u->from))[i] - 1;
    return WEFT_OK;
}

static const weft_optimizer_type failing = {.name = "Failing", .lr = 1, .step = failing_step};

/* The status comes back; the parameters before were stepped, the one whose step failed and its count stay. */
static void a_step_that_fails_ends_with_its_status(void **state)
{
    for (int is_module = 0; is_module < 2; is_module++) {
        weft_tensor *p[2] = {tensor_zeros(WEFT_SHAPE(4), WEFT_DTYPE_FLOAT32),
                             tensor_zeros(WEFT_SHAPE(5), WEFT_DTYPE_FLOAT32)};
        weft_module *module = linear_create(1, 1, false, 1, NULL);
        for (int k = 0; k < 2 && is_module; k++)
            weft_module_add_parameter(module, k ? "b" : "a", weft_tensor_ref(p[k]));
        weft_optimizer *own = optimizer_create((weft_tensors){p, 2}, &(weft_optimizer_spec){.type = &failing}, NULL);
        weft_tensor *g[2] = {tensor_zeros(WEFT_SHAPE(4), WEFT_DTYPE_FLOAT32),
                             tensor_zeros(WEFT_SHAPE(5), WEFT_DTYPE_FLOAT32)};
        const weft_gradients lent = {(weft_gradient[]){{g[0], NULL}, {g[1], NULL}}, 2};
        assert_int_equal(weft_optimizer_apply(own, lent), WEFT_OK);
        fails = WEFT_ERR_SYSTEM;
        assert_int_equal(weft_optimizer_apply(own, lent), WEFT_ERR_SYSTEM);
        assert_true(weft_tensor_get_f64(p[0], 3) == -2 && weft_tensor_get_f64(p[1], 4) == -1);
        fails = (weft_status)5; /* no status */
        assert_int_equal(weft_optimizer_apply(own, lent), WEFT_ERR_INVALID);
        fails = WEFT_OK;
        assert_int_equal(weft_optimizer_apply(own, lent), WEFT_OK);
        assert_true(weft_tensor_get_f64(p[0], 3) == -4 && weft_tensor_get_f64(p[1], 4) == -2);
        weft_optimizer_state item;
        assert_int_equal(weft_optimizer_ref_state(own, 1, &item), WEFT_OK); /* it has nothing but the steps */
        assert_true(item.parameter == 1 && weft_tensor_get_f64(item.tensor, 0) == 2);
        weft_tensor_unref(item.tensor);
        weft_optimizer_unref(own);
        weft_module_unref(module);
        for (int k = 0; k < 2; k++) {
            weft_tensor_unref(p[k]);
            weft_tensor_unref(g[k]);
        }
    }
}

static void rows_are_refused_by_name(void **state)
{
    weft_tensor *p = tensor_zeros(WEFT_SHAPE(3), WEFT_DTYPE_FLOAT32),
                *values = tensor_zeros(WEFT_SHAPE(1), WEFT_DTYPE_FLOAT32),
                *rows = tensor_zeros(WEFT_SHAPE(1), WEFT_DTYPE_INT64);
    const struct {
        weft_optimizer_spec spec;
        const char *text;
    } cases[] = {{{.type = &failing}, "gradient 0 is sparse, and Failing takes dense ones only"},
                 {{.type = &own_sgd, .lr = 1, .own = {[MOMENTUM] = 0.5}},
                  "gradient 0 is sparse: OwnSGD takes these only without momentum"}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        weft_error *error = NULL;
        weft_optimizer *own = optimizer_create((weft_tensors){&p, 1}, &cases[i].spec, NULL);
        const weft_gradients lent = {&(weft_gradient){values, rows}, 1};
        assert_int_equal(weft_optimizer_check_gradients(own, lent, &error), WEFT_ERR_UNSUPPORTED);
        assert_string_equal(weft_error_message(error), cases[i].text);
        assert_int_equal(weft_optimizer_apply(own, lent), WEFT_ERR_UNSUPPORTED);
        weft_error_unref(error);
        weft_optimizer_unref(own);
    }
    weft_tensor_unref(p);
    weft_tensor_unref(values);
    weft_tensor_unref(rows);
}

static weft_error *check_a(double lr, const double *options)
{
    return options[0] > lr ? weft_error_create(WEFT_ERR_INVALID, "Checked: a is %g, above lr", options[0]) : NULL;
}

static void wrong_types_and_options_are_named(void **state)
{
    const struct {
        weft_optimizer_type type;
        double own[2];
        const char *text; /* NULL: nothing is wrong */
    } cases[] = {
        {{0}, {0}, "an optimizer type has no name"},
        {{.name = "no spaces", .step = failing_step},
         {0},
         "optimizer type no spaces: the name \"no spaces\" of the type: use 1 to 32 letters, digits, '_', '-' or '.'"},
        {{.name = "Stepless"}, {0}, "optimizer type Stepless has no step function"},
        {{.name = "T", .step = failing_step, .lr = -1},
         {0},
         "T: the default lr is -1, it must be finite and not negative"},
        {{.name = "T", .step = failing_step, .options = {{"lr"}}},
         {0},
         "optimizer type T: an option is called lr, which every optimizer has"},
        {{.name = "T", .step = failing_step, .options = {{"a"}, {"a"}}},
         {0},
         "optimizer type T: two options are called a"},
        {{.name = "T", .step = failing_step, .options = {{""}}},
         {0},
         "optimizer type T: the name \"\" of an option: use 1 to 32 letters, digits, '_', '-' or '.'"},
        {{.name = "T", .step = failing_step, .options = {{"a", .min = 2, .max = 1}}},
         {0},
         "optimizer type T: option a has the bounds 2 and 1"},
        {{.name = "T", .step = failing_step, .options = {{"a", 3, .max = 1}}},
         {0},
         "T: a is 3, it must be from 0 to 1"},
        {{.name = "T", .step = failing_step, .slots = {{"step"}}},
         {0},
         "optimizer type T: a slot is called step, which is the number of steps"},
        {{.name = "T", .step = failing_step, .slots = {{"m"}, {"m"}}}, {0}, "optimizer type T: two slots are called m"},
        {{.name = "T", .step = failing_step, .slots = {{"m", .initial = NAN}}},
         {0},
         "optimizer type T: slot m begins with NaN"},
        {{.name = "T", .step = failing_step, .slots = {{"m", .needs = "b"}}},
         {0},
         "optimizer type T: slot m depends on b, which is no option"},
        {{.name = "T", .step = failing_step, .slots = {{"m", .initial_of = "c"}}},
         {0},
         "optimizer type T: slot m depends on c, which is no option"},
        {{.name = "T", .step = failing_step}, {1}, "T: own[0] is 1, but the type has 0 options of its own"},
        {{.name = "T", .step = failing_step, .options = {{"a"}}},
         {1, 2},
         "T: own[1] is 2, but the type has 1 options of its own"},
        {{.name = "T", .step = failing_step, .options = {{"a", .min = 1, .max = 2}}},
         {3},
         "T: a is 3, it must be from 1 to 2"},
        {{.name = "T", .step = failing_step, .options = {{"a", .min = 1, .max = 2}}}, {2}, NULL},
        {{.name = "T", .step = failing_step, .options = {{"a", .min = 1, .max = 2, .open = true}}},
         {2},
         "T: a is 2, it must be between 1 and 2"},
        {{.name = "T", .step = failing_step, .options = {{"a", .min = -INFINITY, .max = 2}}},
         {2.5},
         "T: a is 2.5, it must be finite and at most 2"},
        {{.name = "T", .step = failing_step, .options = {{"a"}}}, {NAN}, "T: a is nan, it must be finite"},
        {{.name = "T", .step = failing_step, .options = {{"a"}}}, {-1e300}, NULL},
        {{.name = "T", .step = failing_step, .options = {{"a", .flag = true}}}, {2}, "T: a is 2, it must be 0 or 1"},
        {{.name = "T", .step = failing_step, .options = {{"a"}}, .check = check_a}, {2}, "Checked: a is 2, above lr"},
        {{.name = "T", .step = failing_step, .options = {{"a"}}, .check = check_a}, {0.5}, NULL},
    };
    weft_tensor *p = tensor_zeros(WEFT_SHAPE(2), WEFT_DTYPE_FLOAT32);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        weft_error *error = NULL;
        weft_optimizer_spec spec = {.type = &cases[i].type, .lr = 1};
        memcpy(spec.own, cases[i].own, sizeof(cases[i].own));
        weft_optimizer *made = optimizer_create((weft_tensors){&p, 1}, &spec, &error);
        if (cases[i].text)
            assert_int_equal(weft_error_code(error), WEFT_ERR_INVALID);
        assert_string_equal(error ? weft_error_message(error) : "", cases[i].text ? cases[i].text : "");
        assert_true((!made) == (cases[i].text != NULL));
        weft_optimizer_unref(made);
        weft_error_unref(error);
    }
    weft_error *error = NULL;
    weft_optimizer_spec rateless = {.type = &(weft_optimizer_type){.name = "T", .step = failing_step}};
    assert_null(optimizer_create((weft_tensors){&p, 1}, &rateless, &error));
    assert_string_equal(weft_error_message(error),
                        "T: lr is 0, it must be set: the type has no default (has_lr allows 0)");
    weft_error_unref(error);
    rateless.has_lr = true;
    weft_optimizer *made = optimizer_create((weft_tensors){&p, 1}, &rateless, NULL);
    assert_non_null(made);
    weft_optimizer_unref(made);
    assert_int_equal(weft_optimizer_update_run(NULL, sgd_span, NULL), WEFT_ERR_INVALID);
    const weft_optimizer_update nothing = {.from = p};
    assert_int_equal(weft_optimizer_update_run(&nothing, sgd_span, NULL), WEFT_ERR_INVALID);
    weft_tensor_unref(p);
}

/* The first values of slots: a number, an option, the rate. */
static weft_status seeing_step(const weft_optimizer_update *u)
{
    for (int k = 0; k < WEFT_OPTIMIZER_SLOTS; k++)
        ((double *)weft_tensor_data(u->to))[k] = u->slots[k] ? weft_tensor_get_f64(u->slots[k], 0) : -1;
    return WEFT_OK;
}

static const weft_optimizer_type seeing = {
    .name = "Seeing",
    .options = {{"a"}, {"b"}},
    .slots = {{"x", .initial = 3}, {"y", .initial_of = "a"}, {"z", .needs = "b"}, {"w", .initial_of = "lr"}},
    .step = seeing_step};

static void slots_begin_with_their_first_values(void **state)
{
    const double with_b[] = {3, 7, 0, 0.5}, without_b[] = {3, 7, -1, 0.5};
    for (int b = 0; b < 2; b++) {
        weft_tensor *p = tensor_zeros(WEFT_SHAPE(4), WEFT_DTYPE_FLOAT64);
        weft_optimizer_spec spec = {.type = &seeing, .lr = 0.5, .own = {7, b}};
        weft_optimizer *own = optimizer_create((weft_tensors){&p, 1}, &spec, NULL);
        weft_tensor *g = tensor_zeros(WEFT_SHAPE(4), WEFT_DTYPE_FLOAT64);
        assert_int_equal(weft_optimizer_apply(own, (weft_gradients){&(weft_gradient){g, NULL}, 1}), WEFT_OK);
        assert_memory_equal(weft_tensor_data(p), b ? with_b : without_b, sizeof(with_b));
        assert_int_equal(weft_optimizer_state_count(own), b ? 5 : 4);
        weft_optimizer_state last;
        assert_int_equal(weft_optimizer_ref_state(own, b ? 4 : 3, &last), WEFT_OK);
        assert_string_equal(last.name, "w");
        weft_tensor_unref(last.tensor);
        weft_optimizer_unref(own);
        weft_tensor_unref(p);
        weft_tensor_unref(g);
    }
}

/* By default, parameters of modules are stepped beside if their values are held, and plain tensors in place. */
static void parameters_of_modules_are_stepped_beside(void **state)
{
    const struct {
        weft_update update;
        bool module_moves, plain_moves;
    } cases[] = {{WEFT_UPDATE_DEFAULT, true, false}, {WEFT_UPDATE_IN_PLACE, false, false}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        weft_module *module = linear_create(2, 2, false, 1, NULL);
        weft_tensor *plain = tensor_zeros(WEFT_SHAPE(2, 2), WEFT_DTYPE_FLOAT32),
                    *weight = weft_module_parameters(module).items[0];
        weft_tensor *both[] = {weight, plain}, *g = tensor_full(WEFT_SHAPE(2, 2), WEFT_DTYPE_FLOAT32, 1);
        weft_error *error = NULL;
        weft_optimizer_spec spec = {.type = &weft_sgd_type, .lr = 1, .update = cases[i].update};
        weft_optimizer *sgd = optimizer_create((weft_tensors){both, 2}, &spec, &error);
        assert_non_null(sgd);
        weft_tensor *seen = tensor_contiguous(weight);
        const void *at = weft_tensor_data(plain);
        double before = weft_tensor_get_f64(seen, 0);
        assert_int_equal(weft_optimizer_apply(sgd, (weft_gradients){(weft_gradient[]){{g, NULL}, {g, NULL}}, 2}),
                         WEFT_OK);
        assert_true((weft_tensor_get_f64(seen, 0) == before) == cases[i].module_moves);
        assert_true(weft_tensor_get_f64(weight, 0) == before - 1 ||
                    fabs(weft_tensor_get_f64(weight, 0) - before + 1) < 1e-6);
        assert_true((weft_tensor_data(plain) != at) == cases[i].plain_moves && weft_tensor_get_f64(plain, 0) == -1);
        weft_tensor_unref(seen);
        at = weft_tensor_data(weight); /* nobody holds it: it is stepped where it is */
        assert_int_equal(weft_optimizer_apply(sgd, (weft_gradients){(weft_gradient[]){{g, NULL}, {g, NULL}}, 2}),
                         WEFT_OK);
        assert_ptr_equal(weft_tensor_data(weight), at);
        weft_optimizer_unref(sgd);
        spec.update = WEFT_UPDATE_BESIDE;
        assert_null(optimizer_create((weft_tensors){both, 2}, &spec, &error));
        assert_int_equal(weft_error_code(error), WEFT_ERR_UNSUPPORTED);
        assert_non_null(strstr(weft_error_message(error), "parameter 1 is a plain tensor"));
        weft_error_unref(error);
        weft_tensor_unref(plain);
        weft_tensor_unref(g);
        weft_module_unref(module);
    }
}

/* Why an optimizer was not made, for each type. */
static void constructors_say_why(void **state)
{
    const weft_optimizer_type *const all[] = {&weft_sgd_type,      &weft_adam_type,    &weft_adamw_type,
                                              &weft_adagrad_type,  &weft_rmsprop_type, &weft_rprop_type,
                                              &weft_adadelta_type, &weft_adamax_type};
    weft_tensor *p = tensor_zeros(WEFT_SHAPE(2), WEFT_DTYPE_FLOAT32);
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
        char wanted[96];
        weft_error *error = NULL;
        weft_optimizer_spec spec = {.type = all[i], .lr = -1}, found;
        assert_null(optimizer_create((weft_tensors){&p, 1}, &spec, &error));
        snprintf(wanted, sizeof(wanted), "%s: lr is -1, it must be finite and not negative", all[i]->name);
        assert_string_equal(weft_error_message(error), wanted);
        weft_error_unref(error);
        spec.lr = 1;
        weft_optimizer *made = optimizer_create((weft_tensors){&p, 1}, &spec, &error);
        assert_non_null(made);
        assert_int_equal(weft_optimizer_get_spec(made, 0, &found), WEFT_OK);
        assert_ptr_equal(found.type, all[i]);
        weft_optimizer_unref(made);
    }
    weft_error *error = NULL;
    assert_null(optimizer_create((weft_tensors){&p, 1}, NULL, &error));
    assert_string_equal(weft_error_message(error), "spec is NULL: pass one with a type, such as &weft_sgd_type");
    weft_error_unref(error);
    weft_tensor_unref(p);
}

UNIT_MAIN(own_types_give_the_bits_of_wefts, own_types_have_groups_and_specs, own_state_goes_through_a_file,
          a_step_that_fails_ends_with_its_status, rows_are_refused_by_name, wrong_types_and_options_are_named,
          slots_begin_with_their_first_values, parameters_of_modules_are_stepped_beside, constructors_say_why)
