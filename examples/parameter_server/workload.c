/* SPDX-License-Identifier: Apache-2.0 */
/* workload.c - the training of the parameter servers: options, model, batches, loss, accuracy. */
#include "workload.h"

#include "common/random_stream.h"
#include "common/temporary.h"

#include <weft/job.h>
#include <weft/ops.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#define PIXEL_MEAN 0.1307f /* of MNIST */
#define PIXEL_DEVIATION 0.3081f
#define TEST_BATCH 200

enum { CONVNET, RESNET50 };
enum { FOR_WEIGHTS = 1, FOR_DRAWING, FOR_ORDER, FOR_IMAGES, FOR_TARGETS, FOR_DROPOUT }; /* streams of random numbers */

static uint64_t stream_of(const workload *w, uint64_t use)
{
    return random_key((uint64_t)w->seed, use);
}

/* ---- Options ---------------------------------------------------------------------------------------------------- */

static const char *const models[] = {"convnet", "resnet50", NULL};

static size_t list_options(workload *w, cli_option *out)
{
    const cli_option options[] = {
        {"trainers", CLI_INT, &w->trainers, 1, 65535, NULL, "N",
         "without a launcher: start N trainers as processes of this machine", "2"},
        {"data", CLI_TEXT, &w->data, 0, 0, NULL, "DIR", "folder of IDX files in MNIST's format, plain or .gz",
         "generated digits"},
        {"digits", CLI_INT, &w->digits, 1, 10000000, NULL, "N", "number of generated digits for training", "6000"},
        {"held-out", CLI_INT, &w->held_out, 1, 10000000, NULL, "N", "number of generated digits for the final test",
         "2000"},
        {"batch-size", CLI_INT, &w->batch_size, 1, 65536, NULL, "N", "images per batch of a trainer",
         w->shared ? "32; resnet50: 20" : "32"},
        {"epochs", CLI_INT, &w->epochs, 1, 1000000, NULL, "N", "passes over the data", w->shared ? "8" : "5"},
        {"iterations", CLI_INT, &w->iterations, 1, 1000000000, NULL, "N", "batches per trainer, instead of --epochs",
         NULL},
        {"device", CLI_TEXT, &w->device_text, 0, 0, NULL, "DEVICE",
         w->shared ? "where trainers compute gradients: cpu, cuda:N, or auto, the nearest GPU"
                   : "where the server runs the model: cpu, cuda:N, or auto, the nearest GPU",
         "cpu"},
        {"lr", CLI_NUMBER, &w->lr, 1e-9, 1e3, NULL, "X", "learning rate", w->shared ? "0.03; resnet50: 0.001" : "0.03"},
        {"seed", CLI_INT, &w->seed, 0, 9007199254740992.0, NULL, "N",
         "seed of weights, generated digits, order and dropout", "1"},
        {"save", CLI_TEXT, &w->save, 0, 0, NULL, "FILE", "write the trained model to FILE", NULL},
        {"quiet", CLI_FLAG, &w->quiet, 0, 0, NULL, NULL, "print no progress", NULL},
        /* Of batch_parameter_server alone: */
        {"model", CLI_CHOICE, &w->model, 0, 0, models, NULL, "the model to train; resnet50: on random images",
         "convnet"},
        {"image-size", CLI_INT, &w->image_size, 32, 1024, NULL, "N", "resnet50: height and width of an image", "64"},
        {"classes", CLI_INT, &w->classes, 2, 100000, NULL, "N", "resnet50: number of classes", "30"},
    };
    memcpy(out, options, sizeof(options));
    return sizeof(options) / sizeof(*options) - (w->shared ? 0 : 3);
}

/* ---- Digits ----------------------------------------------------------------------------------------------------- */

static int64_t parts_of(const workload *w)
{
    return w->shared ? w->trainers : 1;
}

static int64_t per_epoch(const workload *w)
{
    return (int64_t)w->images.count / (w->batch_size * parts_of(w));
}

/* The server reads both parts of files, so that a bad file is reported once, before training begins. */
static weft_status load(workload *w, dataset_part part, weft_error **error)
{
    dataset_fini(&w->images);
    if (w->data)
        return dataset_read(w->data, part, &w->images, error);
    return dataset_draw(stream_of(w, FOR_DRAWING), part, (size_t)(part == DATASET_TRAIN ? w->digits : w->held_out),
                        &w->images, error);
}

static weft_status open_digits(workload *w, weft_error **error)
{
    weft_status status = WEFT_OK;
    w->images.count = (size_t)w->digits;
    if (w->data || w->rank > 0)
        status = load(w, DATASET_TRAIN, error);
    if (!status && per_epoch(w) == 0) {
        *error = weft_error_create(WEFT_ERR_INVALID,
                                   "%zu images do not make a batch of %lld for %lld trainers: a "
                                   "smaller --batch-size, please",
                                   w->images.count, (long long)w->batch_size, (long long)parts_of(w));
        return WEFT_ERR_INVALID;
    }
    if (!status && !w->iterations)
        w->iterations = per_epoch(w) * w->epochs;
    if (!status && w->rank == 0)
        return load(w, DATASET_HELD_OUT, error);
    w->order = status ? NULL : malloc(w->images.count * sizeof(*w->order));
    return status || w->order ? status : WEFT_ERR_MEMORY;
}

/* Fisher and Yates's shuffle, in Durstenfeld's form (CACM 1964). */
static void shuffle(workload *w, int64_t epoch)
{
    uint64_t seed = stream_of(w, FOR_ORDER);
    random_stream random = {random_key(w->shared ? seed : random_key(seed, (uint64_t)w->rank), (uint64_t)epoch)};
    for (size_t i = 0; i < w->images.count; i++)
        w->order[i] = (uint32_t)i;
    for (size_t i = w->images.count - 1; i > 0; i--) {
        size_t j = random_below(&random, (uint32_t)(i + 1));
        uint32_t swap = w->order[i];
        w->order[i] = w->order[j];
        w->order[j] = swap;
    }
    w->epoch = epoch;
}

/*
 * If trainers share an epoch, all shuffle in the same way, and each takes its own part of a joint batch, so no image is
 * used twice. The rest at the end of an epoch, less than a joint batch, is skipped.
 */
const uint32_t *workload_batch(workload *w, int64_t iteration)
{
    int64_t part = w->shared ? w->rank - 1 : 0;
    if (iteration / per_epoch(w) != w->epoch)
        shuffle(w, iteration / per_epoch(w));
    return w->order + (iteration % per_epoch(w) * parts_of(w) + part) * w->batch_size;
}

/*
 * Makes a batch of `count` images, those in `indices` or those from `first` on: x [count, 1, 28, 28], labels [count],
 * on the CPU.
 */
static weft_tensor *digits_batch(const dataset *data, weft_tape *t, const uint32_t *indices, size_t first, size_t count,
                                 weft_tensor **labels)
{
    weft_tensor *x = temporary_empty(t, WEFT_SHAPE((int64_t)count, 1, DATASET_SIDE, DATASET_SIDE), WEFT_DTYPE_FLOAT32);
    *labels = temporary_empty(t, WEFT_SHAPE((int64_t)count), WEFT_DTYPE_INT64);
    if (!x || !*labels)
        return NULL;
    float *pixels = weft_tensor_data(x);
    int64_t *label = weft_tensor_data(*labels);
    for (size_t i = 0; i < count; i++) {
        size_t index = indices ? indices[i] : first + i;
        const uint8_t *image = data->images + index * DATASET_PIXELS;
        for (int p = 0; p < DATASET_PIXELS; p++)
            *pixels++ = ((float)image[p] / 255.0f - PIXEL_MEAN) / PIXEL_DEVIATION;
        label[i] = data->labels[index];
    }
    return x;
}

/* ---- Random images ---------------------------------------------------------------------------------------------- */

/* x [batch_size, 3, image_size, image_size], and one-hot targets [batch_size, classes]. */
static weft_tensor *random_batch(const workload *w, weft_tape *t, int64_t iteration, weft_tensor **target)
{
    weft_shape shape = WEFT_SHAPE(w->batch_size, 3, w->image_size, w->image_size);
    weft_tensor *x = temporary_empty(t, shape, WEFT_DTYPE_FLOAT32);
    *target = temporary_empty(t, WEFT_SHAPE(w->batch_size, w->classes), WEFT_DTYPE_FLOAT32);
    if (!x || !*target)
        return NULL;
    weft_tensor_fill(*target, 0);
    uint64_t seed = random_key(stream_of(w, FOR_IMAGES), (uint64_t)w->rank);
    random_stream classes = {random_key(stream_of(w, FOR_TARGETS), (uint64_t)w->rank)};
    float *rows = weft_tensor_data(*target);
    if (weft_tensor_fill_normal(x, random_key(seed, (uint64_t)iteration), 0, 1))
        weft_tape_fail(t, WEFT_ERR_MEMORY, "images cannot be drawn");
    for (int64_t i = 0; i < w->batch_size; i++)
        rows[i * w->classes + random_below(&classes, (uint32_t)w->classes)] = 1;
    return x;
}

/* ---- Both ------------------------------------------------------------------------------------------------------- */

int workload_open(workload *w, cli program, bool shared, int argc, char **argv)
{
    cli_option options[24];
    weft_error *error = NULL;
    *w = (workload){.shared = shared,
                    .trainers = 2,
                    .digits = 6000,
                    .held_out = 2000,
                    .epochs = shared ? 8 : 5,
                    .seed = 1,
                    .epoch = -1};
    program.options = options;
    program.count = list_options(w, options);
    int code = cli_parse(&program, argc, argv);
    if (code < 0 && w->model == CONVNET && (w->image_size || w->classes))
        return cli_error(&program, "--image-size and --classes are options of --model resnet50");
    if (code < 0 && w->model == RESNET50 && w->data)
        return cli_error(&program, "--data is '%s': resnet50 is trained on random images", w->data);
    int64_t size = 1 + w->trainers;
    if (code < 0)
        code = worker_begin(&program, "server", "trainer", 2, &w->rank, &size);
    bool computes = (w->rank == 0) != shared; /* if not, a process that starts trainers still checks the option */
    weft_device device = {0};
    if (code < 0 && (computes || !weft_job_is_launched(NULL, NULL)))
        code = worker_choose_device(&program, w->device_text, &device);
    if (code >= 0)
        return code;
    if (computes)
        w->device = device;
    w->trainers = size - 1;
    w->image_size = w->image_size ? w->image_size : 64;
    w->classes = w->classes ? w->classes : 30;
    w->lr = w->lr > 0 ? w->lr : w->model == CONVNET ? 0.03 : 0.001;
    w->batch_size = w->batch_size ? w->batch_size : w->model == CONVNET ? 32 : 20;
    if (w->model == RESNET50 && !w->iterations)
        w->iterations = 6;
    weft_status status = w->model == CONVNET ? open_digits(w, &error) : WEFT_OK;
    if (!status)
        return -1;
    workload_close(w);
    return worker_end(NULL, status, error);
}

void workload_close(workload *w)
{
    free(w->order);
    dataset_fini(&w->images);
}

uint64_t workload_seed(const workload *w, int64_t iteration)
{
    return random_key(random_key(stream_of(w, FOR_DROPOUT), (uint64_t)w->rank), (uint64_t)iteration);
}

weft_status workload_model(const workload *w, weft_module **out, weft_error **error)
{
    uint64_t seed = stream_of(w, FOR_WEIGHTS);
    return w->model == CONVNET ? weft_mnist_convnet_create(seed, out, error)
                               : weft_resnet50_create(w->classes, seed, out, error);
}

weft_tensor *workload_loss(workload *w, weft_tape *t, weft_module *model, int64_t iteration, weft_device device)
{
    weft_tensor *target, *x, *loss;
    if (w->model == CONVNET)
        x = digits_batch(&w->images, t, workload_batch(w, iteration), 0, (size_t)w->batch_size, &target);
    else
        x = random_batch(w, t, iteration, &target);
    weft_tensor *scores = weft_module_forward(t, model, temporary_move(t, x, device));
    target = temporary_move(t, target, device);
    loss = w->model == CONVNET ? weft_nll_loss(t, scores, target) : weft_mse_loss(t, scores, target);
    double value = weft_tape_status(t) || device.kind != WEFT_DEVICE_CPU ? 0 : weft_tensor_get_f64(loss, 0);
    if (!isfinite(value))
        weft_tape_fail(t, WEFT_ERR_STATE,
                       "the loss of trainer %d is %s in iteration %lld of %lld, with --lr %g: a smaller one, please",
                       w->rank, isnan(value) ? "nan" : "infinite", (long long)iteration + 1, (long long)w->iterations,
                       w->lr);
    return weft_tape_status(t) ? NULL : loss;
}

/* Fails the tape if scores are not finite: the last steps may have ruined the model, which no loss has shown. */
static void check_scores(const workload *w, weft_tape *t, const weft_tensor *scores)
{
    for (int64_t i = 0; i < weft_tensor_numel(scores); i++)
        if (!isfinite(weft_tensor_get_f64(scores, i)))
            weft_tape_fail(
                t, WEFT_ERR_STATE,
                "the trained model's scores of held-out images are not finite, with --lr %g: a smaller one, please",
                w->lr);
}

static weft_status count_right(const workload *w, weft_module *model, size_t first, size_t count, size_t *right,
                               weft_error **error)
{
    const weft_device cpu = {WEFT_DEVICE_CPU, 0};
    weft_tape *t = weft_tape_open(&(weft_tape_options){.device = w->device});
    weft_tensor *labels;
    weft_tensor *x = digits_batch(&w->images, t, NULL, first, count, &labels);
    weft_tensor *scores = weft_module_forward(t, model, temporary_move(t, x, w->device));
    weft_tensor *guess = temporary_move(t, weft_argmax(t, scores, 1), cpu);
    scores = temporary_move(t, scores, cpu);
    if (!weft_tape_status(t))
        check_scores(w, t, scores);
    weft_status status = weft_tape_status(t);
    for (size_t i = 0; i < count && !status; i++)
        *right += weft_tensor_get_i64(guess, (int64_t)i) == weft_tensor_get_i64(labels, (int64_t)i);
    if (status)
        *error = weft_error_ref(weft_tape_error(t));
    weft_tape_close(t);
    return status;
}

/* Without held-out images, *out is not changed. */
static weft_status measure_accuracy(const workload *w, weft_module *model, double *out, weft_error **error)
{
    size_t right = 0, all = w->images.count;
    weft_status status = WEFT_OK;
    weft_module_train(model, false);
    for (size_t at = 0; at < all && !status; at += TEST_BATCH)
        status = count_right(w, model, at, all - at < TEST_BATCH ? all - at : TEST_BATCH, &right, error);
    if (!status && all)
        *out = (double)right / (double)all;
    return status;
}

weft_status workload_deliver(workload *w, weft_module *model, const progress *p, int64_t lost, double share_of_calls,
                             const weft_agent *agent, weft_error **error)
{
    weft_stats stats;
    struct rusage usage = {0};
    double accuracy = -1;
    weft_agent_stats(agent, &stats);
    getrusage(RUSAGE_SELF, &usage);
    weft_status status = measure_accuracy(w, model, &accuracy, error);
    if (!status && w->save)
        status = weft_module_save(model, w->save, error);
    if (status)
        return status;
    putchar('\n');
    report_line("model", "%s", models[w->model]);
    report_line("device", "%s", w->device_text ? w->device_text : "cpu");
    report_line("trainers", "%lld", (long long)w->trainers);
    if (lost)
        report_line("trainers that died", "%lld", (long long)lost);
    report_line("iterations", "%lld", (long long)p->updates);
    report_line("seconds", "%.2f", progress_seconds(p));
    report_line("images/s", "%.1f", (double)p->items / progress_seconds(p));
    report_line("loss", "%.4f", p->loss);
    report_line("loss at first", "%.4f", p->first_loss);
    if (accuracy >= 0)
        report_line("held-out accuracy", "%.4f", accuracy);
    if (share_of_calls >= 0)
        report_line("share of calls", "%.3f", share_of_calls);
    report_line("server sent", "%.3f MB", (double)stats.bytes_sent / 1e6);
    report_line("server received", "%.3f MB", (double)stats.bytes_received / 1e6);
    report_line("copied by weft", "%.3f MB", (double)stats.bytes_copied / 1e6);
    report_line("server's peak memory", "%.3f MB", (double)(uint64_t)usage.ru_maxrss * 1024 / 1e6);
    return WEFT_OK;
}
