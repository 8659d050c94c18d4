/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_nn_resnet.c - ResNet-50 against torchvision's, with the same weights: names, loss, logits, every gradient.
 * Both in float64. The float32 network's values agree with that, too; its gradients less well, PyTorch's float32 no
 * better, because single ReLUs and maxima tip over.
 *
 * tests/data/resnet50.txt was made by tests/oracle/resnet50.py; both fill the parameters by the same formulas.
 */
#include "nn/fingerprint.h"

#include "oracle/formula.h"
#include "make.h"
#include "tensors.h"

/* Of forward values, gradients' norms and gradients' elements. */
typedef struct tolerances {
    double forward, norm, element;
} tolerances;

static const tolerances float64 = {1e-6, 1e-6, 1e-5}, float32 = {1e-4, 5e-3, 5e-2};

static double init_factor(const weft_tensor *p, const char *name, double *offset)
{
    *offset = 0;
    if (weft_tensor_ndim(p) == 4)
        return sqrt(6.0 / (double)(weft_tensor_size(p, 0) * weft_tensor_size(p, 2) * weft_tensor_size(p, 3)));
    if (weft_tensor_ndim(p) == 2)
        return 1 / sqrt((double)weft_tensor_size(p, 1));
    size_t length = strlen(name);
    if (length >= 4 && strcmp(name + length - 4, "bias") == 0)
        return 0.1;
    bool ends_branch = length >= 10 && strcmp(name + length - 10, "bn3.weight") == 0;
    *offset = ends_branch ? 0.2 : 1;
    return ends_branch ? 0.05 : 0.25;
}

static void fill(weft_module *net)
{
    weft_tensors parameters = weft_module_parameters(net);
    for (size_t i = 0; i < parameters.count; i++) {
        double offset, factor = init_factor(parameters.items[i], weft_module_parameter_name(net, i), &offset);
        formula_fill(parameters.items[i], 1000 + i, factor, offset);
    }
}

typedef struct run {
    weft_module *net;
    weft_tape *tape;
    tolerances near;
    weft_tensor *x, *target, *logits, *loss;
} run;

static int start(void **state, weft_dtype dtype)
{
    run *r = calloc(1, sizeof(*r));
    *state = r;
    r->near = dtype == WEFT_DTYPE_FLOAT32 ? float32 : float64;
    r->net = resnet50_create(30, 1, NULL);
    if (weft_module_to(r->net, dtype) != WEFT_OK)
        return 1;
    fill(r->net);
    r->x = formula_tensor(WEFT_SHAPE(8, 3, 64, 64), dtype, 1);
    r->target = tensor_empty(WEFT_SHAPE(8), WEFT_DTYPE_INT64);
    formula_fill_below(r->target, 2, 30);
    r->tape = weft_tape_open(&(weft_tape_options){.record = true});
    r->logits = weft_module_forward(r->tape, r->net, r->x);
    r->loss = weft_cross_entropy(r->tape, r->logits, r->target);
    weft_backward(r->tape, r->loss);
    weft_error_print(weft_tape_error(r->tape), stderr);
    return (int)weft_tape_status(r->tape);
}

static int start_f64(void **state)
{
    return start(state, WEFT_DTYPE_FLOAT64);
}

static int start_f32(void **state)
{
    return start(state, WEFT_DTYPE_FLOAT32);
}

static int stop(void **state)
{
    run *r = *state;
    weft_tape_close(r->tape);
    weft_tensor_unref(r->x);
    weft_tensor_unref(r->target);
    weft_module_unref(r->net);
    free(r);
    return 0;
}

static FILE *open_expected(void)
{
    FILE *file = fopen(WEFT_TEST_DATA "/resnet50.txt", "r");
    assert_non_null(file);
    return file;
}

static void weft_resnet_has_torchvisions_parameter_count(void **state)
{
    run *r = *state;
    assert_int_equal(weft_module_numel(r->net), 23569502);
    assert_int_equal(weft_module_parameters(r->net).count, 161);
    assert_int_equal(weft_module_buffers(r->net).count, 159);
}

static void weft_resnet_has_torchvisions_names_in_order(void **state)
{
    run *r = *state;
    char line[4096], *words[8];
    size_t parameters = 0, buffers = 0;
    FILE *file = open_expected();
    while (fingerprint_line(file, "name", line, sizeof(line), words, 8) == 3) {
        bool is_buffer = words[1][0] == 'b';
        const char *name =
            is_buffer ? weft_module_buffer_name(r->net, buffers) : weft_module_parameter_name(r->net, parameters);
        assert_string_equal(name, words[2]);
        *(is_buffer ? &buffers : &parameters) += 1;
    }
    fclose(file);
    assert_int_equal(parameters, 161);
    assert_int_equal(buffers, 159);
}

static void weft_resnet_loss_and_logits_match(void **state)
{
    run *r = *state;
    FILE *file = open_expected();
    fingerprint_values(file, "loss", r->loss, r->near.forward);
    fingerprint_values(file, "logits", r->logits, r->near.forward);
    fclose(file);
}

static void weft_resnet_gradients_match(void **state)
{
    run *r = *state;
    FILE *file = open_expected();
    weft_tensors parameters = weft_module_parameters(r->net);
    for (size_t i = 0; i < parameters.count; i++)
        fingerprint_gradient(file, weft_tape_grad(r->tape, parameters.items[i]), r->near.norm, r->near.element);
    fclose(file);
}

static void weft_resnet_running_statistics_match(void **state)
{
    run *r = *state;
    char line[4096], *words[16];
    FILE *file = open_expected();
    weft_tensors buffers = weft_module_buffers(r->net);
    for (size_t i = 0; i < buffers.count; i++) {
        assert_int_equal(fingerprint_line(file, "buffer", line, sizeof(line), words, 16), 3);
        fingerprint_near(fingerprint_norm(buffers.items[i]), atof(words[2]), r->near.forward * atof(words[2]),
                         words[1]);
    }
    fclose(file);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(weft_resnet_has_torchvisions_parameter_count),
        cmocka_unit_test(weft_resnet_has_torchvisions_names_in_order),
        cmocka_unit_test(weft_resnet_loss_and_logits_match),
        cmocka_unit_test(weft_resnet_gradients_match),
        cmocka_unit_test(weft_resnet_running_statistics_match),
    };
    int failed = cmocka_run_group_tests_name("float64", tests, start_f64, stop);
    return failed + cmocka_run_group_tests_name("float32", tests, start_f32, stop);
}
