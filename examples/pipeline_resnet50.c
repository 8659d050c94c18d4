/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pipeline_resnet50.c - ResNet-50 in two stages on two workers, which compute different micro-batches at the same time.
 *
 *   pipeline_resnet50                                    starts the stages as processes of this machine
 *   RANK=0|1|2 WORLD_SIZE=3 MASTER_ADDR=... MASTER_PORT=... pipeline_resnet50
 *                                                        is one worker: rank 0 the master, 1 and 2 the stages
 *
 * The master splits each batch into micro-batches. For each of them it calls the first stage, keeps a handle to the
 * result, and passes the handle to the second stage. That stage fetches the activations from the first one directly, so
 * they do not go through the master. When scores arrive, the master starts a backward pass for their micro-batch. All
 * passes add their gradients in one context, and an optimizer then steps both stages once. While the second stage
 * computes the backward pass of one micro-batch, the first stage computes that of the previous one.
 *
 * With --device cuda:N or auto the stages compute on the GPU of that number of their machine, and a device map of the
 * master brings the scores to its CPU. Activations and gradients travel between the GPUs. No thread waits for a GPU.
 *
 * Small micro-batches keep both stages busy, large ones are computed more efficiently: compare --micro-batch 4, 30 and
 * 120.
 *
 * After PyTorch's tutorial "Distributed Pipeline Parallelism Using RPC". --help lists the options.
 */
#include <weft/weft.h>

#include "common/random_stream.h" /* images, seeds */
#include "common/report.h"        /* progress, the final table */
#include "common/temporary.h"     /* tensors of a tape */
#include "common/worker.h"        /* the job, messages */

#include <math.h>
#include <stdlib.h>

enum { STAGES = 2, CLASSES = 1000 };

typedef struct settings {
    int64_t batch, piece, batches, image_size, seed; /* piece: images of a micro-batch */
    double lr;
    const char *device_text;
    weft_device device; /* of the stages */
    bool quiet;
} settings;

/* ---- A stage ---------------------------------------------------------------------------------------------------- */

/* (number, seed, number of the GPU or -1) -> stage 0 or 1, cut behind layer2 as in the tutorial: a remote module. */
static weft_status make_stage(weft_call *call, void *arg)
{
    (void)arg;
    bool first = weft_call_i64(call, 0) == 0;
    int64_t gpu = weft_call_i64(call, 2);
    weft_module *stage = NULL;
    weft_status status = weft_resnet50_stage_create(first ? WEFT_RESNET_STEM : WEFT_RESNET_LAYER3,
                                                    first ? WEFT_RESNET_LAYER3 : WEFT_RESNET_PARTS, CLASSES,
                                                    (uint64_t)weft_call_i64(call, 1), &stage, NULL);
    if (status)
        return status;
    weft_call_give_object(call, &weft_module_object, stage);
    return gpu < 0 ? WEFT_OK : weft_module_to_device(stage, (weft_device){WEFT_DEVICE_CUDA, (int)gpu});
}

/* The stage that argument 0 refers to; NULL: the call has failed. */
static weft_module *stage_of(weft_call *call)
{
    void *module = NULL;
    weft_status status = weft_rref_local_typed(weft_call_rref(call, 0), &weft_module_object, WEFT_FOREVER, &module);
    if (status)
        weft_call_fail(call, status, "the first argument is no stage that is here");
    return module;
}

/* Continues forward when the input has arrived: images of the master on the CPU, activations on the GPU. */
static void compute(weft_future *fetched, void *arg)
{
    weft_call *call = arg;
    weft_module *stage = stage_of(call);
    const weft_error *error = weft_future_error(fetched);
    if (error)
        weft_call_fail_with(call, error);
    else if (stage) {
        weft_device device = weft_tensor_device(weft_module_parameters(stage).items[0]);
        weft_tape *t =
            weft_tape_open(&(weft_tape_options){.record = true, .parent = weft_call_tape(call), .device = device});
        weft_tensor *x = temporary_move(t, weft_future_tensor(fetched, 0), device);
        weft_call_give(call, WEFT_VALUES(weft_of_tensor(weft_module_forward(t, stage, x))));
        weft_call_fail_with(call, weft_tape_error(t));
        weft_tape_close(t);
    }
    weft_call_finish(call, WEFT_OK);
}

/* Fetches the input from the worker that has it. No thread waits: the stage computes other micro-batches meanwhile. */
static weft_status forward(weft_call *call, void *arg)
{
    weft_future *fetched = NULL;
    (void)arg;
    if (!stage_of(call))
        return WEFT_OK;
    const weft_rpc_options how = {.tape = weft_call_tape(call), .parent = call};
    weft_status status = weft_rref_fetch(weft_call_rref(call, 1), &how, &fetched);
    if (status)
        return status;
    weft_call *kept = weft_call_defer_keeping(call);
    status = weft_future_add_done_callback(fetched, compute, kept, NULL);
    weft_future_unref(fetched);
    if (status)
        weft_call_finish(kept, status);
    return WEFT_DEFERRED;
}

static int serve(void)
{
    const weft_function functions[] = {
        {.name = "make_stage", .takes = {WEFT_TYPE_I64, WEFT_TYPE_I64, WEFT_TYPE_I64}, .run = make_stage},
        {.name = "forward", .takes = {WEFT_TYPE_RREF, WEFT_TYPE_RREF}, .gives = {WEFT_TYPE_TENSOR}, .run = forward},
    };
    weft_agent *agent = NULL;
    weft_agent_options options = {.functions = functions,
                                  .function_count = sizeof(functions) / sizeof(*functions),
                                  .call_timeout_ms = WEFT_FOREVER, /* a slow worker is no failure; its death is */
                                  .threads = 1}; /* so micro-batches are computed one after the other, in order */
    weft_status status = worker_open(options, &agent);
    if (!status)
        status = weft_agent_serve(agent, WEFT_FOREVER); /* until the master closes */
    return worker_end(agent, status, NULL);
}

/* ---- The master: images ------------------------------------------------------------------------------------------ */

static int64_t count_pieces(const settings *s)
{
    return (s->batch + s->piece - 1) / s->piece;
}

/* The number of images in micro-batch k; the last one may be smaller. */
static int64_t piece_size(const settings *s, int64_t k)
{
    int64_t left = s->batch - k * s->piece;
    return left < s->piece ? left : s->piece;
}

/*
 * The micro-batch's share of the loss of the batch: the mean of (scores - target)^2. The target is 1 for the image's
 * class, which is drawn too, and 0 elsewhere.
 */
static weft_tensor *loss_of(const settings *s, uint64_t seed, int64_t k, weft_tape *tape, weft_tensor *scores)
{
    int64_t count = piece_size(s, k);
    weft_tensor *target = temporary_empty(tape, WEFT_SHAPE(count, CLASSES), WEFT_DTYPE_FLOAT32);
    weft_tensor_fill(target, 0);
    for (int64_t i = 0; target && i < count; i++) {
        random_stream random = {random_key(seed + 1, (uint64_t)(k * s->piece + i))};
        ((float *)weft_tensor_data(target))[i * CLASSES + random_below(&random, CLASSES)] = 1;
    }
    return weft_scale(tape, weft_mse_loss(tape, scores, target), (double)count / (double)s->batch);
}

/* ---- The master: training ---------------------------------------------------------------------------------------- */

typedef struct master {
    const settings *set;
    weft_agent *agent;
    weft_rref *stages[STAGES];
    weft_dist_optimizer *sgd;
    double first_loss, loss; /* of the first batch, of the last */
    progress progress;       /* of micro-batches */
    weft_error *error;
} master;

/* One micro-batch in flight. */
typedef struct piece {
    weft_tape *tape;
    weft_rref *x, *y;    /* the images, on the master; the activations, on the first stage */
    weft_future *scores; /* of the call to the second stage */
    weft_future *pass;
    double loss; /* its share of the loss of the batch */
} piece;

static weft_status await(master *m, weft_future *future)
{
    weft_status status = weft_future_wait(future, WEFT_FOREVER);
    if (status)
        m->error = weft_error_ref(weft_future_error(future));
    return status;
}

/* Starts the forward computation of a micro-batch on both stages. */
static weft_status send_forward(master *m, weft_context *context, uint64_t seed, int64_t k, piece *p)
{
    const settings *s = m->set;
    const weft_shape shape = WEFT_SHAPE(piece_size(s, k), 3, s->image_size, s->image_size);
    p->tape = weft_context_tape(context, &(weft_tape_options){.seed = random_key(seed, (uint64_t)k)});
    weft_tensor *images = weft_uniform(p->tape, shape, WEFT_DTYPE_FLOAT32, -sqrt(3), sqrt(3)); /* variance 1 */
    const weft_rpc_options how = {.tape = p->tape, .error = &m->error};
    weft_status status = weft_tape_status(p->tape);
    if (!status)
        status = weft_rref_create(m->agent, weft_of_tensor(images), &p->x, &m->error);
    if (!status)
        status = weft_rref_rpc_remote(m->stages[0], "forward", WEFT_VALUES(weft_of_rref(p->x)), &how, &p->y);
    if (!status)
        status = weft_rref_rpc_async(m->stages[1], "forward", WEFT_VALUES(weft_of_rref(p->y)), &how, &p->scores);
    return status;
}

/* Waits for the scores, and starts the backward pass from their loss. */
static weft_status send_backward(master *m, weft_context *context, uint64_t seed, int64_t k, piece *p)
{
    weft_status status = await(m, p->scores);
    if (status)
        return status;
    weft_tensor *loss = weft_tensor_ref(loss_of(m->set, seed, k, p->tape, weft_future_tensor(p->scores, 0)));
    status = weft_tape_status(p->tape);
    if (status)
        m->error = weft_error_ref(weft_tape_error(p->tape));
    weft_tape_close(p->tape); /* a pass uses only the records of closed tapes */
    p->tape = NULL;
    if (!status) {
        p->loss = weft_tensor_get_f64(loss, 0);
        const weft_pass_options how = {.timeout_ms = WEFT_FOREVER};
        status = weft_context_backward(context, (weft_tensors){&loss, 1}, &how, &p->pass);
    }
    weft_tensor_unref(loss);
    return status;
}

static void drop_pieces(piece *pieces, int64_t count)
{
    for (int64_t k = 0; pieces && k < count; k++) {
        weft_tape_close(pieces[k].tape);
        weft_future_unref(pieces[k].pass);
        weft_future_unref(pieces[k].scores);
        weft_rref_unref(pieces[k].y);
        weft_rref_unref(pieces[k].x);
    }
    free(pieces);
}

/* Computes the gradients of the batch, which the context then has. */
static weft_status go_through(master *m, weft_context *context, uint64_t seed)
{
    int64_t count = count_pieces(m->set);
    piece *pieces = calloc((size_t)count, sizeof(*pieces));
    weft_status status = pieces ? WEFT_OK : WEFT_ERR_MEMORY;
    for (int64_t k = 0; k < count && !status; k++)
        status = send_forward(m, context, seed, k, &pieces[k]);
    for (int64_t k = 0; k < count && !status; k++)
        status = send_backward(m, context, seed, k, &pieces[k]);
    m->loss = 0;
    for (int64_t k = 0; k < count && !status; k++) {
        int64_t images = piece_size(m->set, k);
        status = await(m, pieces[k].pass);
        if (status)
            break;
        m->loss += pieces[k].loss;
        progress_add(&m->progress, 1, pieces[k].loss * (double)m->set->batch / (double)images, images);
        progress_update(&m->progress, 1);
    }
    drop_pieces(pieces, count);
    return status;
}

static weft_status train_batch(master *m, int64_t number)
{
    weft_context *context;
    weft_status status = weft_context_open(m->agent, &context, &m->error);
    if (status)
        return status;
    status = go_through(m, context, random_key((uint64_t)m->set->seed, (uint64_t)number));
    if (number == 0)
        m->first_loss = m->loss;
    if (!status && !isfinite(m->loss)) {
        m->error = weft_error_create(WEFT_ERR_STATE, "the loss is %s with --lr %g: a smaller one, please",
                                     isnan(m->loss) ? "nan" : "infinite", m->set->lr);
        status = WEFT_ERR_STATE;
    }
    if (!status)
        status = weft_dist_optimizer_step(m->sgd, &context, 1,
                                          &(weft_dist_step_options){.timeout_ms = WEFT_FOREVER, .error = &m->error});
    weft_context_close(context, NULL);
    return status;
}

static weft_status make_model(master *m)
{
    weft_status status = WEFT_OK;
    const weft_rpc_options how = {.error = &m->error};
    const weft_optimizer_spec spec = {.type = &weft_sgd_type, .lr = m->set->lr};
    int64_t gpu = m->set->device.kind == WEFT_DEVICE_CUDA ? m->set->device.index : -1;
    for (int s = 0; s < STAGES && !status; s++)
        status = weft_rpc_remote(m->agent, weft_to_rank(1 + s), "make_stage",
                                 WEFT_VALUES(weft_of_i64(s), weft_of_i64(m->set->seed), weft_of_i64(gpu)), &how,
                                 &m->stages[s]);
    const weft_args all = WEFT_VALUES(weft_of_rref(m->stages[0]), weft_of_rref(m->stages[1]));
    return status ? status : weft_dist_optimizer_create(m->agent, all, &spec, &m->sgd, &m->error);
}

static void deliver(const master *m)
{
    const settings *s = m->set;
    const progress *p = &m->progress;
    weft_stats stats;
    weft_agent_stats(m->agent, &stats);
    putchar('\n');
    report_line("model", "%s", "ResNet-50 in two stages");
    report_line("batches", "%lld", (long long)s->batches);
    report_line("images of a batch", "%lld", (long long)s->batch);
    report_line("of a micro-batch", "%lld", (long long)s->piece);
    report_line("seconds", "%.2f", progress_seconds(p));
    report_line("images/s", "%.1f", (double)p->items / progress_seconds(p));
    report_line("loss", "%.4f", m->loss);
    report_line("loss at first", "%.4f", m->first_loss);
    report_line("master sent", "%.3f MB", (double)stats.bytes_sent / 1e6);
    report_line("master received", "%.3f MB", (double)stats.bytes_received / 1e6);
}

static int lead(const settings *s)
{
    master m = {.set = s, .progress = {.total = s->batches * count_pieces(s), .unit = "images", .quiet = s->quiet}};
    const weft_device_map map = {.there = s->device}; /* here: the CPU */
    weft_status status = worker_open(
        (weft_agent_options){.call_timeout_ms = WEFT_FOREVER, .device_maps = &map, .device_map_count = 1}, &m.agent);
    if (!status)
        status = make_model(&m);
    progress_begin(&m.progress);
    for (int64_t i = 0; i < s->batches && !status; i++)
        status = train_batch(&m, i);
    if (!status)
        deliver(&m);
    weft_dist_optimizer_unref(m.sgd);
    for (int i = 0; i < STAGES; i++)
        weft_rref_unref(m.stages[i]);
    return worker_end(m.agent, status, m.error);
}

int main(int argc, char **argv)
{
    settings s = {.batch = 120, .piece = 30, .batches = 3, .image_size = 128, .lr = 0.05, .seed = 1};
    const cli_option options[] = {
        {"batch-size", CLI_INT, &s.batch, 1, 65536, NULL, "N", "images per batch", "120"},
        {"micro-batch", CLI_INT, &s.piece, 1, 65536, NULL, "N", "images per micro-batch", "30"},
        {"batches", CLI_INT, &s.batches, 1, 1000000, NULL, "N", "number of batches", "3"},
        {"image-size", CLI_INT, &s.image_size, 64, 1024, NULL, "N", "height and width of an image, in pixels", "128"},
        {"lr", CLI_NUMBER, &s.lr, 1e-9, 1e30, NULL, "X", "learning rate of SGD", "0.05"},
        {"device", CLI_TEXT, &s.device_text, 0, 0, NULL, "DEVICE",
         "where the stages compute: cpu, cuda:N, or auto, the nearest GPU of the master", "cpu"},
        {"seed", CLI_INT, &s.seed, 0, 9007199254740992.0, NULL, "N", "seed of weights and images", "1"},
        {"quiet", CLI_FLAG, &s.quiet, 0, 0, NULL, NULL, "print no progress", NULL},
    };
    const cli program = {.program = "pipeline_resnet50",
                         .purpose = "trains ResNet-50 in two stages on two workers, by micro-batches",
                         .example = "pipeline_resnet50 --batch-size 24 --image-size 64 --micro-batch 4",
                         .options = options,
                         .count = sizeof(options) / sizeof(*options)};
    int rank, code = cli_parse(&program, argc, argv);
    int64_t size = 1 + STAGES;
    if (code < 0)
        code = worker_begin(&program, "master", "stage", 1 + STAGES, &rank, &size);
    if (code < 0 && rank == 0)
        code = worker_choose_device(&program, s.device_text, &s.device);
    if (code >= 0)
        return code;
    if (s.piece > s.batch)
        s.piece = s.batch;
    return rank == 0 ? lead(&s) : serve();
}
