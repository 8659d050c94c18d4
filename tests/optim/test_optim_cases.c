/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_optim_cases.c - values and states against those of PyTorch's optimizers, of all kinds, dense and sparse:
 * tests/data/optim_cases.txt, see tests/oracle/optim_oracle.py.
 */
#include <weft/weft.h>

#include "oracle/formula.h"
#include "make.h"
#include "tensors.h"
#include "unit.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define STEPS 20
#define PARAMETERS 2
#define SPARSE_ROWS 11
#define LINE_MAX_BYTES 65536

typedef struct optim_case {
    char title[LINE_MAX_BYTES]; /* its first line */
    weft_optimizer_spec spec;
    int kind;
    bool sparse;
    weft_dtype dtype;
    double tolerance;
} optim_case;

enum { SGD, ADAM, ADAMW, ADAGRAD, RMSPROP, RPROP, ADADELTA, ADAMAX, KINDS };
static const struct {
    const char *name;
    const weft_optimizer_type *type;
} kinds[KINDS] = {{"sgd", &weft_sgd_type},           {"adam", &weft_adam_type},       {"adamw", &weft_adamw_type},
                  {"adagrad", &weft_adagrad_type},   {"rmsprop", &weft_rmsprop_type}, {"rprop", &weft_rprop_type},
                  {"adadelta", &weft_adadelta_type}, {"adamax", &weft_adamax_type}};

static const struct {
    const char *name;
    size_t offset[KINDS]; /* where each kind's options have it; 0: nowhere, as `type` stands there */
} options[] = {
#define AT(kind, field) offsetof(weft_optimizer_spec, kind.field)
    {"weight_decay",
     {AT(sgd, weight_decay), AT(adam, weight_decay), AT(adam, weight_decay), AT(adagrad, weight_decay),
      AT(rmsprop, weight_decay), 0, AT(adadelta, weight_decay), AT(adamax, weight_decay)}},
    {"momentum", {[SGD] = AT(sgd, momentum), [RMSPROP] = AT(rmsprop, momentum)}},
    {"dampening", {[SGD] = AT(sgd, dampening)}},
    {"nesterov", {[SGD] = AT(sgd, nesterov)}},
    {"beta1", {0, AT(adam, beta1), AT(adam, beta1), [ADAMAX] = AT(adamax, beta1)}},
    {"beta2", {0, AT(adam, beta2), AT(adam, beta2), [ADAMAX] = AT(adamax, beta2)}},
    {"eps",
     {0, AT(adam, eps), AT(adam, eps), AT(adagrad, eps), AT(rmsprop, eps), 0, AT(adadelta, eps), AT(adamax, eps)}},
    {"amsgrad", {0, AT(adam, amsgrad), AT(adam, amsgrad)}},
    {"lr_decay", {[ADAGRAD] = AT(adagrad, lr_decay)}},
    {"initial_accumulator_value", {[ADAGRAD] = AT(adagrad, initial_accumulator_value)}},
    {"alpha", {[RMSPROP] = AT(rmsprop, alpha)}},
    {"centered", {[RMSPROP] = AT(rmsprop, centered)}},
    {"eta_minus", {[RPROP] = AT(rprop, eta_minus)}},
    {"eta_plus", {[RPROP] = AT(rprop, eta_plus)}},
    {"step_min", {[RPROP] = AT(rprop, step_min)}},
    {"step_max", {[RPROP] = AT(rprop, step_max)}},
    {"rho", {[ADADELTA] = AT(adadelta, rho)}},
};

/* Every option of a type is a field of weft_optimizer_spec, at the same place of the order. */
static void options_of_types_are_fields(void **state)
{
    for (int kind = 0; kind < KINDS; kind++) {
        size_t first = SIZE_MAX;
        int count = 0;
        for (size_t i = 0; i < sizeof(options) / sizeof(options[0]); i++)
            if (options[i].offset[kind] != 0)
                first = options[i].offset[kind] < first ? options[i].offset[kind] : first;
        for (; count < WEFT_OPTIMIZER_OPTIONS && kinds[kind].type->options[count].name; count++) {
            size_t found = 0;
            for (size_t i = 0; i < sizeof(options) / sizeof(options[0]); i++)
                if (strcmp(options[i].name, kinds[kind].type->options[count].name) == 0)
                    found = options[i].offset[kind];
            assert_int_equal(found, first + (size_t)count * sizeof(double));
        }
        assert_true(count > 0);
    }
}

static void set_option(optim_case *c, const char *name, double value)
{
    if (strcmp(name, "lr") == 0)
        c->spec.lr = value;
    else if (strcmp(name, "max_norm") == 0)
        c->spec.max_norm = value;
    else if (strcmp(name, "maximize") == 0)
        c->spec.maximize = value != 0;
    else
        for (size_t i = 0; i <= sizeof(options) / sizeof(options[0]); i++) {
            if (i == sizeof(options) / sizeof(options[0]))
                fail_msg("option %s", name);
            if (strcmp(options[i].name, name) != 0)
                continue;
            assert_true(options[i].offset[c->kind] != 0);
            char *place = (char *)&c->spec + options[i].offset[c->kind];
            if (strcmp(name, "nesterov") == 0 || strcmp(name, "amsgrad") == 0 || strcmp(name, "centered") == 0)
                *(bool *)place = value != 0;
            else
                *(double *)(void *)place = value;
            break;
        }
}

static bool read_case(FILE *file, optim_case *c)
{
    char line[LINE_MAX_BYTES], *rest, *value;
    if (!fgets(c->title, sizeof(c->title), file))
        return false;
    memcpy(line, c->title, sizeof(line));
    const char *word = strtok_r(line, " \n", &rest);
    memset(&c->spec, 0, sizeof(c->spec));
    for (int i = 0; i < KINDS; i++)
        if (strcmp(kinds[i].name, word) == 0) {
            c->kind = i;
            c->spec.type = kinds[i].type;
        }
    for (char *name = strtok_r(NULL, " \n", &rest); name != NULL; name = strtok_r(NULL, " \n", &rest)) {
        value = strchr(name, '=');
        assert_non_null(value);
        *value++ = '\0';
        if (strcmp(name, "sparse") == 0)
            c->sparse = atoi(value) != 0;
        else
            set_option(c, name, strtod(value, NULL));
    }
    return true;
}

static double next_number(FILE *file)
{
    char word[64];
    assert_int_equal(fscanf(file, "%63s", word), 1);
    return strtod(word, NULL);
}

static void assert_numbers(FILE *file, const optim_case *c, const weft_tensor *tensor, const char *what)
{
    for (int64_t i = 0; i < weft_tensor_numel(tensor); i++) {
        double wanted = next_number(file), got = weft_tensor_get_f64(tensor, i);
        if (!(fabs(got - wanted) <= c->tolerance * (1 + fabs(wanted))))
            fail_msg("%s[%d]: %.17g, wanted %.17g; %s", what, (int)i, got, wanted, c->title);
    }
}

/* The third line: every tensor of the state, whatever the order, and no other. */
static void assert_state(FILE *file, const optim_case *c, const weft_optimizer *optimizer)
{
    size_t count = weft_optimizer_state_count(optimizer), seen = 0;
    unsigned k;
    char name[32];
    while (fscanf(file, "%*[ ]") != EOF) {
        int next = fgetc(file);
        if (next == '\n')
            break;
        ungetc(next, file);
        int64_t elements;
        assert_int_equal(fscanf(file, "%u %31s", &k, name), 2);
        elements = (int64_t)next_number(file);
        for (size_t i = 0; i < count; i++) {
            weft_optimizer_state state;
            assert_int_equal(weft_optimizer_ref_state(optimizer, i, &state), WEFT_OK);
            if (state.parameter == k && strcmp(state.name, name) == 0) {
                assert_int_equal(weft_tensor_numel(state.tensor), elements);
                assert_numbers(file, c, state.tensor, name);
                seen++;
            }
            weft_tensor_unref(state.tensor);
        }
    }
    if (seen != count)
        fail_msg("%zu of %zu tensors of the state are PyTorch's; %s", seen, count, c->title);
}

static weft_gradient make_gradient(const optim_case *c, const weft_tensor *p, int step, int k)
{
    weft_gradient g = {0};
    if ((step + k) % 5 == 3)
        return g;
    weft_shape shape = weft_tensor_shape(p);
    if (c->sparse) {
        g.rows = tensor_empty(WEFT_SHAPE(SPARSE_ROWS), WEFT_DTYPE_INT64);
        formula_fill_below(g.rows, (uint64_t)(1000 + 2 * step + k), shape.dims[0]);
        shape.dims[0] = SPARSE_ROWS;
    }
    g.values = tensor_empty(shape, c->dtype);
    formula_fill(g.values, (uint64_t)(100 + 2 * step + k), step > 4 ? 0.1 : 1, 0);
    return g;
}

static void step_once(const optim_case *c, weft_optimizer *optimizer, weft_tensor *const *p, int step)
{
    weft_gradient g[PARAMETERS];
    for (int k = 0; k < PARAMETERS; k++)
        g[k] = make_gradient(c, p[k], step, k);
    assert_int_equal(weft_optimizer_apply(optimizer, (weft_gradients){g, PARAMETERS}), WEFT_OK);
    for (int k = 0; k < PARAMETERS; k++) {
        weft_tensor_unref(g[k].values);
        weft_tensor_unref(g[k].rows);
    }
}

static void run_case(FILE *file, const optim_case *c)
{
    const weft_shape shapes[2][PARAMETERS] = {{WEFT_SHAPE(7), WEFT_SHAPE(2, 3)}, {WEFT_SHAPE(9, 4), WEFT_SHAPE(6)}};
    weft_tensor *p[PARAMETERS];
    weft_error *error = NULL;
    for (int k = 0; k < PARAMETERS; k++)
        p[k] = formula_tensor(shapes[c->sparse][k], c->dtype, 1 + (uint64_t)k);
    weft_optimizer *optimizer = optimizer_create((weft_tensors){p, PARAMETERS}, &c->spec, &error);
    if (!optimizer)
        fail_msg("%s: %s", weft_error_message(error), c->title);
    double lr = weft_optimizer_lr(optimizer);
    for (int step = 0; step < STEPS; step++) {
        step_once(c, optimizer, p, step);
        if (step == 10)
            assert_int_equal(weft_optimizer_set_lr(optimizer, lr / 2), WEFT_OK);
        for (int k = 0; k < PARAMETERS && (step < 2 || step == STEPS - 1); k++)
            assert_numbers(file, c, p[k], "parameter");
    }
    assert_int_equal(fgetc(file), '\n');
    assert_state(file, c, optimizer);
    for (int k = 0; k < PARAMETERS; k++)
        weft_tensor_unref(p[k]);
    weft_optimizer_unref(optimizer);
}

static void run_all(weft_dtype dtype, double tolerance)
{
    static optim_case c;
    int count = 0;
    FILE *file = fopen(WEFT_TEST_DATA "/optim_cases.txt", "r");
    assert_non_null(file);
    c.dtype = dtype;
    c.tolerance = tolerance;
    for (; read_case(file, &c); count++)
        run_case(file, &c);
    fclose(file);
    assert_int_equal(count, 63);
}

static void optimizers_match_pytorch_in_float64(void **state)
{
    run_all(WEFT_DTYPE_FLOAT64, 1e-13);
}

static void optimizers_match_pytorch_in_float32(void **state)
{
    run_all(WEFT_DTYPE_FLOAT32, 4e-6);
}

UNIT_MAIN(options_of_types_are_fields, optimizers_match_pytorch_in_float64, optimizers_match_pytorch_in_float32)
