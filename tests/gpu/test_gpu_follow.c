/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_gpu_follow.c - 20 steps of training of small forms of the reference models follow PyTorch's losses
 * (tests/data/follow.txt, made by tests/oracle/follow.py) from the same weights and inputs, on the CPU and on a device.
 *
 * In float32 the losses agree to 1e-4, in float64 to 1e-8. The ResNet gets four images and not two: of two images of
 * 32 x 32 its last stage normalizes two numbers, and then PyTorch in float32 differs by 0.1 from PyTorch in float64.
 * Its kernels wait at many barriers, which the emulated GPU runs slowly. So it runs in float32 alone.
 */
#include "oracle/follow.h"

#include "cartpole/policy.h"
#include "gpu/gpu.h"
#include "mem/mem.h"
#include "make.h"
#include "tensors.h"

static const weft_device gpu = {WEFT_DEVICE_CUDA, 0}, cpu = {WEFT_DEVICE_CPU, 0};

/* What a step computes with. */
typedef struct place {
    weft_tape *tape;
    weft_device device;
    weft_dtype dtype;
} place;

/* ---- Inputs: of step s they have the keys 100 + 10 s and those after it, as in follow.py. ---- */

static weft_tensor *move(const place *at, weft_tensor *x)
{
    weft_tensor *there = tensor_to_device(x, at->device);
    weft_tensor_unref(x);
    return weft_tape_take(at->tape, there);
}

static weft_tensor *numbers(const place *at, weft_shape shape, uint64_t key, double factor, double offset)
{
    weft_tensor *x = tensor_empty(shape, at->dtype);
    formula_fill(x, key, factor, offset);
    return move(at, x);
}

static weft_tensor *below(const place *at, weft_shape shape, uint64_t key, int64_t end)
{
    weft_tensor *x = tensor_empty(shape, WEFT_DTYPE_INT64);
    formula_fill_below(x, key, end);
    return move(at, x);
}

/* ---- The models: each makes its module, and its loss in a step ---- */

static weft_module *make_convnet(void)
{
    weft_module *parts[] = {
        conv2d_create(&(weft_conv2d_layer){.in_channels = 1, .out_channels = 8, .kernel = {3, 3}}, NULL),
        relu_create(),
        conv2d_create(&(weft_conv2d_layer){.in_channels = 8, .out_channels = 16, .kernel = {3, 3}}, NULL),
        max_pool2d_create(&(weft_max_pool2d_options){.kernel = {2, 2}}, NULL),
        flatten_create(1),
        linear_create(2304, 32, false, 1, NULL),
        relu_create(),
        linear_create(32, 10, false, 1, NULL),
        log_softmax_create(1)};
    return sequential_create(parts, sizeof(parts) / sizeof(parts[0]), NULL);
}

static weft_tensor *convnet_loss(const place *at, weft_module *net, int step)
{
    (void)step;
    weft_tensor *y = weft_module_forward(at->tape, net, numbers(at, WEFT_SHAPE(4, 1, 28, 28), 1, 1, 0));
    return weft_nll_loss(at->tape, y, below(at, WEFT_SHAPE(4), 2, 10));
}

/* A block for each of the four stages. */
static weft_module *make_resnet(void)
{
    const weft_conv2d_layer stem = {.in_channels = 3,
                                    .out_channels = 8,
                                    .kernel = {7, 7},
                                    .how = {.stride = {2, 2}, .padding = {3, 3}},
                                    .no_bias = true};
    weft_module *parts[] = {
        conv2d_create(&stem, NULL),
        batch_norm2d_create(8, 0, 0, NULL),
        relu_create(),
        max_pool2d_create(&(weft_max_pool2d_options){.kernel = {3, 3}, .stride = {2, 2}, .padding = {1, 1}}, NULL),
        bottleneck_create(8, 2, 1, 1, NULL),
        bottleneck_create(8, 4, 2, 1, NULL),
        bottleneck_create(16, 8, 2, 1, NULL),
        bottleneck_create(32, 16, 2, 1, NULL),
        adaptive_avg_pool2d_create(1, 1, NULL),
        flatten_create(1),
        linear_create(64, 10, false, 1, NULL)};
    return sequential_create(parts, sizeof(parts) / sizeof(parts[0]), NULL);
}

static weft_tensor *resnet_loss(const place *at, weft_module *net, int step)
{
    (void)step;
    weft_tensor *y = weft_module_forward(at->tape, net, numbers(at, WEFT_SHAPE(4, 3, 32, 32), 1, 1, 0));
    return weft_cross_entropy(at->tape, y, below(at, WEFT_SHAPE(4), 2, 10));
}

/* The language model of examples/rnn_model_parallel.c. */
static weft_module *make_rnn(void)
{
    weft_module *parts[] = {embedding_create(&(weft_embedding_layer){.rows = 30, .width = 8}, NULL),
                            lstm_create(&(weft_lstm_layer){.in_features = 8, .hidden_features = 12, .layers = 2}, NULL),
                            linear_create(12, 30, false, 1, NULL)};
    return sequential_create(parts, sizeof(parts) / sizeof(parts[0]), NULL);
}

static weft_tensor *rnn_loss(const place *at, weft_module *net, int step)
{
    uint64_t key = 100 + 10 * (uint64_t)step;
    weft_tensor *scores = weft_module_forward(at->tape, net, below(at, WEFT_SHAPE(6, 5), key, 30));
    return weft_cross_entropy(at->tape, weft_reshape(at->tape, scores, WEFT_SHAPE(30, 30)),
                              below(at, WEFT_SHAPE(30), key + 1, 30));
}

/* The model of examples/ddp_rpc_hybrid.c: the gradient of the table has rows. */
static weft_module *make_hybrid(void)
{
    weft_module *parts[] = {
        embedding_bag_create(
            &(weft_embedding_bag_layer){.rows = 100, .width = 16, .how = {.mode = WEFT_BAG_SUM, .sparse = true}}, NULL),
        linear_create(16, 8, false, 1, NULL)};
    return sequential_create(parts, sizeof(parts) / sizeof(parts[0]), NULL);
}

static weft_tensor *hybrid_loss(const place *at, weft_module *net, int step)
{
    static const int64_t offsets[] = {0, 4, 5, 11, 18, 18, 25};
    uint64_t key = 100 + 10 * (uint64_t)step;
    weft_tensor *index = below(at, WEFT_SHAPE(30), key, 100);
    weft_tensor *begins = move(at, tensor_copy_of(WEFT_SHAPE(7), WEFT_DTYPE_INT64, offsets));
    weft_args_in bags = WEFT_VALUES(weft_of_tensor(index), weft_of_tensor(begins));
    weft_tensor *sums = weft_args_tensor(weft_module_call(at->tape, weft_module_child(net, 0), bags), 0);
    weft_tensor *scores = weft_module_forward(at->tape, weft_module_child(net, 1), sums);
    return weft_cross_entropy(at->tape, scores, below(at, WEFT_SHAPE(7), key + 1, 8));
}

/* REINFORCE on 40 decisions. The units that are dropped are given. */
enum { DECISIONS = 40, HIDDEN = 128 };
static weft_module *make_policy(void)
{
    weft_module *made = NULL;
    return policy_create(HIDDEN, 0.6, 1, &made) ? NULL : made;
}

static weft_tensor *policy_step_loss(const place *at, weft_module *net, int step)
{
    uint64_t key = 100 + 10 * (uint64_t)step;
    weft_tensor *mask = tensor_empty(WEFT_SHAPE(DECISIONS, HIDDEN), WEFT_DTYPE_FLOAT64);
    for (int64_t i = 0; i < weft_tensor_numel(mask); i++)
        ((double *)weft_tensor_data(mask))[i] = formula_u64(key + 3, (uint64_t)i) % 10 >= 6 ? 2.5 : 0;
    weft_tensor *units = tensor_to(mask, at->dtype);
    weft_tensor_unref(mask);
    return policy_loss(at->tape, net, numbers(at, WEFT_SHAPE(DECISIONS, 4), key, 1, 0), move(at, units),
                       below(at, WEFT_SHAPE(DECISIONS), key + 1, 2),
                       numbers(at, WEFT_SHAPE(DECISIONS), key + 2, 0.5, 1));
}

typedef struct model {
    const char *name;
    weft_module *(*make)(void);
    weft_tensor *(*loss)(const place *at, weft_module *net, int step);
    weft_optimizer_spec how;
    double tolerance32, tolerance64; /* relative; 0: not run with that dtype */
} model;

static const model convnet = {.name = "small_convnet",
                              .make = make_convnet,
                              .loss = convnet_loss,
                              .how = {.type = &weft_sgd_type, .lr = 0.02, .sgd.momentum = 0.9},
                              .tolerance32 = 1e-4,
                              .tolerance64 = 1e-8};
static const model resnet = {.name = "small_resnet",
                             .make = make_resnet,
                             .loss = resnet_loss,
                             .how = {.type = &weft_sgd_type, .lr = 0.0005, .sgd.momentum = 0.9},
                             .tolerance32 = 1e-4};
static const model rnn = {.name = "rnn",
                          .make = make_rnn,
                          .loss = rnn_loss,
                          .how = {.type = &weft_sgd_type, .lr = 0.5},
                          .tolerance32 = 1e-4,
                          .tolerance64 = 1e-8};
static const model hybrid = {.name = "hybrid",
                             .make = make_hybrid,
                             .loss = hybrid_loss,
                             .how = {.type = &weft_sgd_type, .lr = 0.05},
                             .tolerance32 = 1e-4,
                             .tolerance64 = 1e-8};
static const model policy = {.name = "policy",
                             .make = make_policy,
                             .loss = policy_step_loss,
                             .how = {.type = &weft_adam_type, .lr = 0.01},
                             .tolerance32 = 1e-4,
                             .tolerance64 = 1e-8};

/* ---- Training ---- */

static double train_step(const model *m, weft_module *net, weft_optimizer *optimizer, int step, place at)
{
    at.tape = weft_tape_open(&(weft_tape_options){.record = true, .mode = WEFT_MODE_TRAIN, .device = at.device});
    weft_tensor *loss = m->loss(&at, net, step);
    weft_backward(at.tape, loss);
    weft_error_print(weft_tape_error(at.tape), stderr);
    assert_int_equal(weft_tape_status(at.tape), WEFT_OK);
    weft_gradients gradients = weft_tape_gradients(at.tape, weft_optimizer_parameters(optimizer));
    assert_int_equal(weft_optimizer_apply(optimizer, gradients), WEFT_OK);
    weft_tensor *here = tensor_to_device(loss, cpu);
    double value = weft_tensor_get_f64(here, 0);
    weft_tensor_unref(here);
    weft_tape_close(at.tape);
    return value;
}

static void train(const model *m, weft_dtype dtype, weft_device device)
{
    double wanted[FOLLOW_STEPS], tolerance = dtype == WEFT_DTYPE_FLOAT32 ? m->tolerance32 : m->tolerance64, worst = 0;
    if (tolerance == 0)
        return;
    follow_losses(m->name, wanted);
    weft_module *net = m->make();
    assert_non_null(net);
    assert_int_equal(weft_module_to(net, dtype), WEFT_OK);
    assert_int_equal(weft_module_to_device(net, device), WEFT_OK);
    follow_fill(net);
    weft_optimizer *optimizer = optimizer_create(weft_module_parameters(net), &m->how, NULL);
    assert_non_null(optimizer);
    for (int step = 0; step < FOLLOW_STEPS; step++) {
        double got = train_step(m, net, optimizer, step, (place){.device = device, .dtype = dtype});
        fingerprint_near(got, wanted[step], tolerance * fabs(wanted[step]), m->name);
        worst = fmax(worst, fabs(got - wanted[step]) / fabs(wanted[step]));
    }
    printf("%-14s %s %s: loss %.5f to %.5f, largest relative error %.1e\n", m->name, weft_dtype_name(dtype),
           device.kind == WEFT_DEVICE_CPU ? "CPU" : "GPU", wanted[0], wanted[FOLLOW_STEPS - 1], worst);
    weft_optimizer_unref(optimizer);
    weft_module_unref(net);
}

static void follow(const model *m)
{
    static const weft_dtype dtypes[] = {WEFT_DTYPE_FLOAT32, WEFT_DTYPE_FLOAT64};
    for (int i = 0; i < 2; i++) {
        train(m, dtypes[i], cpu);
        train(m, dtypes[i], gpu);
    }
    wfi_slab_trim(0);
}

static void convnet_follows_pytorch(void **state)
{
    follow(&convnet);
}
static void resnet_follows_pytorch(void **state)
{
    follow(&resnet);
}
static void rnn_follows_pytorch(void **state)
{
    follow(&rnn);
}
static void hybrid_follows_pytorch(void **state)
{
    follow(&hybrid);
}
static void policy_follows_pytorch(void **state)
{
    follow(&policy);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(convnet_follows_pytorch), cmocka_unit_test(resnet_follows_pytorch),
        cmocka_unit_test(rnn_follows_pytorch),     cmocka_unit_test(hybrid_follows_pytorch),
        cmocka_unit_test(policy_follows_pytorch),
    };
    if (!gpu_is_here())
        return GPU_SKIPPED;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
