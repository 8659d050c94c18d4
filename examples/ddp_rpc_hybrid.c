/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ddp_rpc_hybrid.c - a model in two parts, trained by N trainers: the embedding is on a parameter server, the dense
 * part on each trainer.
 *
 *   ddp_rpc_hybrid --trainers 2                              starts server and trainers as processes of this machine
 *   RANK=... WORLD_SIZE=... MASTER_ADDR=... MASTER_PORT=... ddp_rpc_hybrid
 *                                                            is one worker: rank 0 the master, 1 the server
 *
 * The master creates the embedding bag on the server as a remote module, and calls "train" on each trainer. In each
 * iteration a trainer looks up its batch on the server and runs its linear layer. The backward pass goes through both,
 * under one context. During the pass a group averages the gradients of the linear layer over the trainers, so its
 * replicas stay identical. Each trainer's gradient of the embedding steps the embedding separately. With --synchronous
 * a barrier follows each step, and the losses are those of one process. All compute on the CPU: groups take no tensors
 * of GPUs.
 *
 * After PyTorch's tutorial "Combining Distributed DataParallel with Distributed RPC Framework". --help lists the
 * options.
 */
#include <weft/weft.h>

#include "common/random_stream.h" /* weights and batches */
#include "common/report.h"        /* progress, the final table */
#include "common/temporary.h"     /* tensors of a tape */
#include "common/worker.h"        /* the job, messages */

#include <math.h>
#include <pthread.h>

enum { SERVER = 1, FIRST_TRAINER = 2, MOST_TRAINERS = 1024 }; /* ranks. The master has rank 0. */
enum { ROWS = 100, WIDTH = 16, CLASSES = 8 };                 /* of the model */
enum { FOR_EMBEDDING, FOR_DENSE, FOR_BATCHES };               /* random streams of a seed */
enum { LEAST_LOOKUPS = 20, MOST_LOOKUPS = 50, MOST_IN_BAG = 10 };

typedef struct settings {
    int64_t trainers, epochs, batches, seed;
    double lr;
    bool synchronous, quiet;
} settings;

/* ---- The model and its batches: functions of the seed, which tests/oracle/hybrid_oracle.py computes too ---------- */

typedef double (*draw_fn)(random_stream *random);

static double draw_normal(random_stream *random)
{
    return random_normal(random);
}

static double draw_quarter(random_stream *random) /* 1 / sqrt(WIDTH) */
{
    return random_between(random, -0.25, 0.25);
}

/* Draws the parameters of a module in order. Takes the module and returns it; NULL: no memory. */
static weft_module *drawn(weft_module *module, uint64_t seed, draw_fn draw)
{
    random_stream random = {seed};
    weft_tensors all = weft_module_parameters(module);
    weft_status status = module && all.count ? weft_module_status(module) : WEFT_ERR_MEMORY;
    for (size_t i = 0; i < all.count && !status; i++) {
        float *values = weft_tensor_data(all.items[i]);
        for (int64_t k = 0; k < weft_tensor_numel(all.items[i]); k++)
            values[k] = (float)draw(&random);
    }
    if (!status)
        return module;
    weft_module_unref(module);
    return NULL;
}

/* On the server: (seed) -> a remote module, sums of rows of a table [100, 16], drawn from N(0, 1). */
static weft_status make_embedding(weft_call *call, void *user)
{
    (void)user;
    const weft_embedding_bag_layer layer = {.rows = ROWS, .width = WIDTH, .how.mode = WEFT_BAG_SUM};
    uint64_t own = random_key((uint64_t)weft_call_i64(call, 0), FOR_EMBEDDING);
    weft_module *table = NULL;
    weft_status status = weft_embedding_bag_create(&layer, &table, NULL);
    if (!status)
        weft_call_give_object(call, &weft_module_object, drawn(table, own, draw_normal));
    return status;
}

/* The linear layer [16] -> [8] of trainer 0, 1 ..., drawn from U(-1/4, 1/4), different for each trainer. */
static weft_module *make_dense(uint64_t seed, int64_t trainer)
{
    uint64_t own = random_key(random_key(seed, FOR_DENSE), (uint64_t)trainer);
    weft_module *layer = NULL;
    weft_status status = weft_linear_create(WIDTH, CLASSES, false, 0, &layer, NULL);
    return status ? NULL : drawn(layer, own, draw_quarter);
}

typedef struct batch {
    weft_tensor *index, *offsets, *target; /* owned by a tape */
    int64_t bags;
} batch;

static weft_tensor *whole_numbers(weft_tape *t, const int64_t *values, int64_t count)
{
    weft_tensor *made = NULL;
    weft_error *why = NULL;
    weft_status status = weft_tensor_copy_of(WEFT_SHAPE(count), WEFT_DTYPE_INT64, values, &made, &why);
    return temporary_keep(t, status, made, why);
}

/* Draws a batch as in the tutorial: 20 to 50 rows, in bags of 1 to 10. `number` counts iterations. */
static batch draw_batch(weft_tape *t, uint64_t seed, int64_t trainer, int64_t number)
{
    uint64_t own = random_key(random_key(seed, FOR_BATCHES), (uint64_t)trainer);
    random_stream random = {random_key(own, (uint64_t)number)};
    int64_t index[MOST_LOOKUPS], offsets[MOST_LOOKUPS], target[MOST_LOOKUPS];
    int64_t rows = LEAST_LOOKUPS + random_below(&random, MOST_LOOKUPS - LEAST_LOOKUPS + 1), bags = 0;
    for (int64_t i = 0; i < rows; i++)
        index[i] = random_below(&random, ROWS);
    for (int64_t at = 0; at < rows; at += 1 + random_below(&random, MOST_IN_BAG))
        offsets[bags++] = at;
    for (int64_t i = 0; i < bags; i++)
        target[i] = random_below(&random, CLASSES);
    return (batch){.index = whole_numbers(t, index, rows),
                   .offsets = whole_numbers(t, offsets, bags),
                   .target = whole_numbers(t, target, bags),
                   .bags = bags};
}

/* ---- A trainer -------------------------------------------------------------------------------------------------- */

typedef struct trainer {
    const settings *set;
    int64_t index; /* among the trainers */
    weft_agent *agent;
    weft_rref *embedding;
    weft_module *dense;
    weft_group *gradients, *steps; /* the members are the trainers */
    weft_data_parallel *parallel;
    weft_dist_optimizer *sgd;
    weft_tensor *losses; /* [epochs], float64: mean loss of each */
    int64_t bags;        /* of this epoch */
    weft_error *error;
} trainer;

/* Makes the dense part a replica of trainer 0's. Backward passes then average its gradients over the trainers. */
static weft_status replicate(trainer *me)
{
    int ranks[MOST_TRAINERS];
    size_t count = (size_t)me->set->trainers;
    for (size_t i = 0; i < count; i++)
        ranks[i] = FIRST_TRAINER + (int)i;
    weft_status status = weft_group_open(me->agent, "gradients", ranks, count, 0, &me->gradients, NULL);
    if (!status)
        status = weft_group_open(me->agent, "steps", ranks, count, 0, &me->steps, NULL);
    if (!status)
        status = weft_data_parallel_create(me->gradients, me->dense, NULL, &me->parallel, &me->error);
    return status;
}

static weft_tensor *loss_of(trainer *me, weft_tape *t, int64_t number)
{
    const settings *s = me->set;
    batch b = draw_batch(t, (uint64_t)s->seed, me->index, number);
    const weft_args inputs = WEFT_VALUES(weft_of_tensor(b.index), weft_of_tensor(b.offsets));
    weft_tensor *x = weft_args_tensor(weft_remote_call(t, me->embedding, inputs, NULL), 0);
    me->bags += b.bags;
    weft_tensor *loss = weft_cross_entropy(t, weft_module_forward(t, me->dense, x), b.target);
    double value = weft_tensor_get_f64(loss, 0);
    if (loss && !isfinite(value))
        weft_tape_fail(t, WEFT_ERR_STATE,
                       "the loss of trainer %d is %s in epoch %lld, batch %lld, with --lr %g: a smaller one, please",
                       weft_agent_rank(me->agent), isnan(value) ? "nan" : "infinite",
                       (long long)(number / s->batches) + 1, (long long)(number % s->batches) + 1, s->lr);
    return loss;
}

/*
 * Steps embedding and dense part, and waits for the other trainers. When the backward pass is complete, all trainers
 * have averaged, so all have looked up their rows of the embedding. When the barrier is complete, all have stepped it.
 */
static weft_status step_together(trainer *me, weft_context *context)
{
    weft_status status = weft_dist_optimizer_step(me->sgd, &context, 1, &(weft_dist_step_options){.error = &me->error});
    return status ? status : weft_group_barrier(me->steps, WEFT_FOREVER);
}

static weft_status train_step(trainer *me, int64_t number)
{
    weft_tape *t = weft_dist_tape_open(me->agent, NULL);
    weft_context *context = weft_tape_context(t);
    weft_context_set_hooks(context, weft_data_parallel_hooks(me->parallel));
    weft_tensor *loss = loss_of(me, t, number);
    if (!weft_tape_status(t)) /* if the loss failed, give_up ends the groups */
        weft_dist_backward(t, loss, &(weft_pass_options){.step = me->set->synchronous ? NULL : me->sgd});
    weft_status status = weft_tape_status(t);
    if (status)
        me->error = weft_error_ref(weft_tape_error(t));
    else if (me->set->synchronous)
        status = step_together(me, context);
    if (!status)
        ((double *)weft_tensor_data(me->losses))[number / me->set->batches] +=
            weft_tensor_get_f64(loss, 0) / (double)me->set->batches;
    weft_tape_close(t);
    return status;
}

static weft_status report_epoch(trainer *me, int64_t epoch)
{
    weft_status status =
        weft_rpc_sync(me->agent, weft_to_rank(0), "report_epoch",
                      WEFT_VALUES(weft_of_f64(weft_tensor_get_f64(me->losses, epoch)), weft_of_i64(me->bags)),
                      &(weft_rpc_options){.error = &me->error}, NULL);
    me->bags = 0;
    return status;
}

static weft_status train_all(trainer *me)
{
    const settings *s = me->set;
    weft_status status = weft_tensor_zeros(WEFT_SHAPE(s->epochs), WEFT_DTYPE_FLOAT64, &me->losses, &me->error);
    me->dense = make_dense((uint64_t)s->seed, me->index);
    if (!status)
        status = me->dense ? replicate(me) : WEFT_ERR_MEMORY;
    const weft_args both = WEFT_VALUES(weft_of_rref(me->embedding), weft_of_tensors(weft_module_parameters(me->dense)));
    const weft_optimizer_spec spec = {.type = &weft_sgd_type, .lr = s->lr};
    if (!status)
        status = weft_dist_optimizer_create(me->agent, both, &spec, &me->sgd, &me->error);
    for (int64_t i = 0; i < s->epochs * s->batches && !status; i++) {
        status = train_step(me, i);
        if (!status && (i + 1) % s->batches == 0)
            status = report_epoch(me, i / s->batches);
    }
    return status;
}

/* Makes the call fail with the reason, and ends the groups, so that the other trainers end too. */
static void give_up(trainer *me, weft_call *call, weft_status status)
{
    const weft_error *error = me->error                         ? me->error
                              : weft_group_error(me->gradients) ? weft_group_error(me->gradients)
                                                                : weft_group_error(me->steps);
    weft_call_fail(call, status, "%s", error ? weft_error_message(error) : weft_status_text(status));
    weft_group_abort(me->gradients, error);
    weft_group_abort(me->steps, error);
}

/* (embedding) -> mean losses of the epochs. */
static weft_status train(weft_call *call, void *set)
{
    trainer me = {.set = set, .agent = weft_call_agent(call), .embedding = weft_call_rref(call, 0)};
    me.index = weft_agent_rank(me.agent) - FIRST_TRAINER;
    weft_status status = train_all(&me);
    if (status)
        give_up(&me, call, status);
    else
        weft_call_give(call, WEFT_VALUES(weft_of_tensor(me.losses)));
    weft_dist_optimizer_unref(me.sgd);
    weft_data_parallel_unref(me.parallel);
    weft_group_close(me.steps);
    weft_group_close(me.gradients);
    weft_module_unref(me.dense);
    weft_error_unref(me.error);
    weft_tensor_unref(me.losses);
    return status;
}

/* ---- The master ------------------------------------------------------------------------------------------------- */

typedef struct master {
    const settings *set;
    weft_agent *agent;
    weft_rref *embedding;
    weft_future *trained[MOST_TRAINERS]; /* of the calls to train */
    weft_error *error;
    pthread_mutex_t lock; /* protects the field below */
    progress progress;
} master;

/* A trainer reports an epoch: its mean loss, and its bags. */
static weft_status take_report(weft_call *call, void *arg)
{
    master *m = arg;
    pthread_mutex_lock(&m->lock);
    progress_add(&m->progress, m->set->batches, weft_call_f64(call, 0), weft_call_i64(call, 1));
    progress_update(&m->progress, m->set->batches);
    pthread_mutex_unlock(&m->lock);
    return WEFT_OK;
}

/* Makes the embedding, and waits until all trainers have trained, or one cannot. */
static weft_status train_everywhere(master *m)
{
    const weft_rpc_options how = {.timeout_ms = WEFT_FOREVER, .error = &m->error};
    size_t count = (size_t)m->set->trainers, first = 0;
    weft_status status =
        weft_rpc_remote(m->agent, weft_to_rank(SERVER), "embedding", WEFT_VALUES(weft_of_i64(m->set->seed)),
                        &(weft_rpc_options){.error = &m->error}, &m->embedding);
    progress_begin(&m->progress);
    for (size_t i = 0; i < count && !status; i++)
        status = weft_rpc_async(m->agent, weft_to_rank(FIRST_TRAINER + (int)i), "train",
                                WEFT_VALUES(weft_of_rref(m->embedding)), &how, &m->trained[i]);
    if (!status)
        status = weft_future_wait_all(m->trained, count, WEFT_FOREVER);
    while (status && first < count && m->trained[first] && !weft_future_error(m->trained[first]))
        first++;
    if (status && !m->error && first < count && m->trained[first])
        m->error = weft_error_ref(weft_future_error(m->trained[first]));
    return status;
}

static void deliver(const master *m)
{
    const settings *s = m->set;
    const progress *p = &m->progress;
    double seconds = progress_seconds(p), iterations = (double)(s->epochs * s->batches);
    putchar('\n');
    report_line("embedding", "%s", "100 x 16 on the server");
    report_line("dense part", "%s", "16 x 8 on each trainer");
    report_line("trainers", "%lld", (long long)s->trainers);
    report_line("iterations", "%.0f", iterations);
    report_line("seconds", "%.2f", seconds);
    report_line("iterations/s", "%.0f", iterations / seconds);
    report_line("loss", "%.4f", p->loss);
    report_line("loss at first", "%.4f", p->first_loss);
    for (int64_t i = 0; i < s->epochs && s->synchronous; i++) {
        printf("losses of epoch %lld:", (long long)i);
        for (int64_t k = 0; k < s->trainers; k++)
            printf(" %.8g", weft_tensor_get_f64(weft_future_tensor(m->trained[k], 0), i));
        putchar('\n');
    }
}

/* ---- The job ---------------------------------------------------------------------------------------------------- */

/* The master. */
static int lead(const settings *set)
{
    master m = {.set = set,
                .lock = PTHREAD_MUTEX_INITIALIZER,
                .progress = {.total = set->trainers * set->epochs * set->batches, .unit = "bags", .quiet = set->quiet}};
    const weft_function function = {
        .name = "report_epoch", .takes = {WEFT_TYPE_F64, WEFT_TYPE_I64}, .run = take_report, .user = &m};
    weft_status status = worker_open((weft_agent_options){.functions = &function, .function_count = 1}, &m.agent);
    if (!status)
        status = train_everywhere(&m);
    if (!status)
        deliver(&m);
    for (int64_t i = 0; i < set->trainers; i++)
        weft_future_unref(m.trained[i]);
    weft_rref_unref(m.embedding);
    return worker_end(m.agent, status, m.error);
}

/* The server, which makes the embedding, or a trainer. */
static int serve(settings *set)
{
    const weft_function functions[] = {
        {.name = "embedding", .takes = {WEFT_TYPE_I64}, .run = make_embedding},
        {.name = "train", .takes = {WEFT_TYPE_RREF}, .gives = {WEFT_TYPE_TENSOR}, .run = train, .user = set}};
    weft_agent *agent = NULL;
    weft_agent_options options = {.functions = functions,
                                  .function_count = 2,
                                  .call_timeout_ms = WEFT_FOREVER}; /* a slow worker is no failure; its death is */
    weft_status status = worker_open(options, &agent);
    if (!status)
        status = weft_agent_serve(agent, WEFT_FOREVER); /* until the master closes */
    return worker_end(agent, status, NULL);
}

int main(int argc, char **argv)
{
    settings s = {.trainers = 2, .epochs = 100, .batches = 10, .lr = 0.05, .seed = 1};
    const cli_option options[] = {
        {"trainers", CLI_INT, &s.trainers, 1, MOST_TRAINERS, NULL, "N",
         "without a launcher: start N trainers and the server as processes of this machine", "2"},
        {"epochs", CLI_INT, &s.epochs, 1, 1000000, NULL, "N", "number of epochs; each has different batches", "100"},
        {"batches", CLI_INT, &s.batches, 1, 1000000, NULL, "N", "batches per epoch", "10"},
        {"lr", CLI_NUMBER, &s.lr, 1e-9, 1e30, NULL, "X", "learning rate of SGD", "0.05"},
        {"synchronous", CLI_FLAG, &s.synchronous, 0, 0, NULL, NULL,
         "trainers wait for each other after each step; all losses are printed", NULL},
        {"seed", CLI_INT, &s.seed, 0, 9007199254740992.0, NULL, "N", "seed of weights and batches", "1"},
        {"quiet", CLI_FLAG, &s.quiet, 0, 0, NULL, NULL, "print no progress", NULL},
    };
    const cli program = {.program = "ddp_rpc_hybrid",
                         .purpose = "trains a model with its embedding on a server and its dense part on each trainer",
                         .example = "ddp_rpc_hybrid --trainers 2 --synchronous",
                         .options = options,
                         .count = sizeof(options) / sizeof(*options)};
    int rank, code = cli_parse(&program, argc, argv);
    int64_t size = FIRST_TRAINER + s.trainers;
    if (code < 0)
        code = worker_begin(&program, "master", "worker", FIRST_TRAINER + 1, &rank, &size);
    if (code >= 0)
        return code;
    s.trainers = size - FIRST_TRAINER;
    return rank == 0 ? lead(&s) : serve(&s);
}
