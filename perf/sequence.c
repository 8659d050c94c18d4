/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sequence.c - time of an LSTM and of an embedding bag, forward and backward, without any network.
 *
 * With --serve it reads numbers of passes, one a line, and answers each with the seconds that they took: so that perf/run can
 * let it and peers/torch_sequence.py work in turn.
 */
#include "common/measure.h"

#include <weft/weft.h>

#include "cli.h"

#include <stdlib.h>

/* The word language model of PyTorch's examples; a table of a recommender. peers/torch_sequence.py has the same numbers. */
enum { STEPS = 35, BATCH = 20, WIDTH = 200, LAYERS = 2 };
enum { ROWS = 100000, COLUMNS = 64, BAGS = 512, LENGTH = 20 };

typedef enum model_kind { MODEL_LSTM, MODEL_BAG, MODEL_SPARSE_BAG, MODEL_EMBEDDING } model_kind;

typedef struct bench {
    model_kind kind;
    weft_tensor *x, *gradient; /* of the result */
    weft_tensor *weights[4 * LAYERS];
    size_t count; /* weights */
} bench;

static weft_tensor *uniform(weft_shape shape, bool wanted)
{
    weft_tensor *x = weft_tensor_empty(shape, WEFT_DTYPE_FLOAT32);
    float *data = x ? weft_tensor_data(x) : NULL;
    for (int64_t i = 0; x && i < weft_tensor_numel(x); i++)
        data[i] = ((float)rand() / (float)RAND_MAX - 0.5f) * 0.1f;
    weft_tensor_set_requires_grad(x, wanted);
    return x;
}

static weft_tensor *numbers(weft_shape shape, int64_t end)
{
    weft_tensor *x = weft_tensor_empty(shape, WEFT_DTYPE_INT64);
    int64_t *data = x ? weft_tensor_data(x) : NULL;
    for (int64_t i = 0; x && i < weft_tensor_numel(x); i++)
        data[i] = rand() % end;
    return x;
}

static bool bench_open(bench *b, model_kind kind)
{
    *b = (bench){.kind = kind};
    srand(1);
    if (kind == MODEL_LSTM) {
        b->x = uniform(WEFT_SHAPE(STEPS, BATCH, WIDTH), true);
        b->gradient = uniform(WEFT_SHAPE(STEPS, BATCH, WIDTH), false);
        for (b->count = 0; b->count < 4 * LAYERS; b->count++)
            b->weights[b->count] =
                uniform(b->count % 4 < 2 ? WEFT_SHAPE(4 * WIDTH, WIDTH) : WEFT_SHAPE(4 * WIDTH), true);
    } else {
        b->x = numbers(WEFT_SHAPE(BAGS, LENGTH), ROWS);
        b->gradient =
            uniform(kind == MODEL_EMBEDDING ? WEFT_SHAPE(BAGS, LENGTH, COLUMNS) : WEFT_SHAPE(BAGS, COLUMNS), false);
        b->weights[b->count++] = uniform(WEFT_SHAPE(ROWS, COLUMNS), true);
    }
    bool made = b->x != NULL && b->gradient != NULL;
    for (size_t i = 0; i < b->count; i++)
        made = made && b->weights[i] != NULL;
    if (!made)
        fprintf(stderr, "sequence: could not make the tensors\n");
    return made;
}

static void bench_close(bench *b)
{
    weft_tensor_unref(b->x);
    weft_tensor_unref(b->gradient);
    for (size_t i = 0; i < b->count; i++)
        weft_tensor_unref(b->weights[i]);
}

static weft_tensor *forward(weft_tape *tape, bench *b)
{
    weft_tensors weights = {b->weights, b->count};
    if (b->kind == MODEL_LSTM)
        return weft_lstm(tape, b->x, NULL, NULL, weights, NULL, NULL, NULL);
    if (b->kind == MODEL_EMBEDDING)
        return weft_embedding(tape, b->weights[0], b->x, NULL);
    weft_embedding_bag_options how = {.mode = WEFT_BAG_SUM, .sparse = b->kind == MODEL_SPARSE_BAG};
    return weft_embedding_bag(tape, b->weights[0], b->x, NULL, NULL, &how);
}

static bool pass(bench *b)
{
    weft_tape *tape = weft_tape_open(&(weft_tape_options){.record = true});
    weft_tensor *y = forward(tape, b);
    weft_backward_with(tape, (weft_tensors){&y, 1}, (weft_tensors){&b->gradient, 1}, NULL);
    weft_status status = weft_tape_status(tape);
    if (status != WEFT_OK)
        weft_error_print(weft_tape_error(tape), stderr);
    weft_tape_close(tape);
    return status == WEFT_OK;
}

static bool passes(bench *b, long count, double *seconds)
{
    double start = measure_now_us();
    for (long i = 0; i < count; i++) {
        if (!pass(b))
            return false;
    }
    *seconds = (measure_now_us() - start) / 1e6;
    return true;
}

static bool serve(bench *b)
{
    char line[32];
    while (fgets(line, sizeof line, stdin)) {
        double seconds;
        if (!passes(b, strtol(line, NULL, 10), &seconds))
            return false;
        printf("%.6f\n", seconds);
        fflush(stdout);
    }
    return true;
}

static bool show(bench *b, int64_t count)
{
    double seconds;
    if (!passes(b, 2, &seconds) || !passes(b, (long)count, &seconds))
        return false;
    printf("%.3f ms a pass\n", 1e3 * seconds / (double)count);
    return true;
}

int main(int argc, char **argv)
{
    static const char *const models[] = {"lstm", "bag", "sparse_bag", "embedding", NULL};
    int kind = MODEL_LSTM;
    int64_t count = 20;
    bool serves = false;
    const cli_option options[] = {
        {"model", CLI_CHOICE, &kind, 0, 0, models, NULL, "what runs", "lstm"},
        {"passes", CLI_INT, &count, 1, 100000, NULL, "N", "passes that are timed", "20"},
        {"serve", CLI_FLAG, &serves, 0, 0, NULL, NULL, "read counts of passes, answer with seconds", NULL},
    };
    const cli program = {
        .program = "sequence",
        .purpose = "time of an LSTM and an embedding bag, forward and backward, on this machine's processor",
        .example = "OMP_NUM_THREADS=1 sequence --model bag",
        .options = options,
        .count = sizeof options / sizeof *options,
    };
    int end = cli_parse(&program, argc, argv);
    if (end >= 0)
        return end;
    bench b;
    bool ok = bench_open(&b, (model_kind)kind) && (serves ? serve(&b) : show(&b, count));
    bench_close(&b);
    return ok ? 0 : 1;
}
