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
 * The program measures several sizes of micro-batches. Small ones keep both stages busy, large ones are computed more
 * efficiently.
 *
 * After PyTorch's tutorial "Distributed Pipeline Parallelism Using RPC". --help lists the options.
 */
#include <weft/weft.h>

#include "common/worker.h"                       /* messages, exit codes, signals */
#include "common/report.h"                       /* the report */
#include "pipeline_resnet50/pipeline.h"          /* stages, images */
#include "pipeline_resnet50/pipeline_settings.h" /* the command line */
#include "common/random_stream.h"                /* seeds */

#include <math.h>
#include <semaphore.h>
#include <signal.h>
#include <stdlib.h>

#define LARGEST_DIFFERENCE 1e-5 /* relative difference of a gradient from that of one process */
#define LOOK_MS 50              /* between two checks for signals */
#define DISMISS_MS 300          /* timeout of the call that tells the other workers that the job ends early */
#define CHART_COLUMNS 40

/* ---- A stage ---------------------------------------------------------------------------------------------------- */

static void drop_stage(void *module)
{
    weft_module_unref(module);
}
static const weft_object_type stage_type = {"stage of ResNet-50", drop_stage};

static weft_status make_stage(weft_call *call, void *arg)
{
    (void)arg;
    weft_module *module = pipeline_stage(weft_call_i64(call, 0), (uint64_t)weft_call_i64(call, 1));
    weft_status st = module ? weft_module_status(module) : WEFT_ERR_MEMORY;
    if (st)
        weft_module_unref(module);
    else
        weft_call_give_object(call, &stage_type, module);
    return st;
}

/* The stage that argument 0 refers to; NULL: the call has failed. */
static weft_module *stage_of(weft_call *call)
{
    void *module = NULL;
    weft_status st = weft_rref_local_typed(weft_call_rref(call, 0), &stage_type, WEFT_FOREVER, &module);
    if (st)
        weft_call_fail(call, st, "the first argument is no stage that is here");
    return module;
}

static weft_status parameters(weft_call *call, void *arg)
{
    (void)arg;
    weft_module *stage = stage_of(call);
    if (stage)
        weft_call_give(call, WEFT_VALUES(weft_of_tensors(weft_module_parameters(stage))));
    return WEFT_OK;
}

static weft_status gradients(weft_call *call, void *arg)
{
    (void)arg;
    weft_module *stage = stage_of(call);
    if (!stage)
        return WEFT_OK;
    weft_tensors all = weft_module_parameters(stage);
    weft_tensor **found = calloc(all.count, sizeof *found);
    bool whole = found != NULL;
    for (size_t i = 0; i < all.count && whole; i++) {
        found[i] = weft_context_ref_grad(weft_call_context(call), all.items[i]);
        whole = found[i] != NULL;
    }
    if (whole)
        weft_call_give(call, WEFT_VALUES(weft_of_tensors((weft_tensors){found, all.count})));
    for (size_t i = 0; found && i < all.count; i++)
        weft_tensor_unref(found[i]);
    free(found);
    if (!whole)
        weft_call_fail(call, WEFT_ERR_STATE, "not all parameters of this stage have gradients");
    return WEFT_OK;
}

/* Continues forward when the input has arrived. */
static void compute(weft_future *fetched, void *arg)
{
    weft_call *call = arg;
    weft_module *stage = stage_of(call);
    const weft_error *error = weft_future_error(fetched);
    if (error)
        weft_call_fail_with(call, error);
    else if (stage) {
        weft_tensor *x = weft_future_tensor(fetched, 0);
        weft_call_give(call, WEFT_VALUES(weft_of_tensor(weft_module_forward(weft_call_tape(call), stage, x))));
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
    weft_status st = weft_rref_fetch(weft_call_rref(call, 1), &how, &fetched);
    if (st)
        return st;
    weft_call *kept = weft_call_defer_keeping(call);
    st = weft_future_add_done_callback(fetched, compute, kept, NULL);
    weft_future_unref(fetched);
    if (st)
        weft_call_finish(kept, st);
    return WEFT_DEFERRED;
}

static weft_status leave(weft_call *call, void *over)
{
    (void)call;
    sem_post(over);
    return WEFT_OK;
}

/* The master calls this when it ends the job early. */
static weft_status dismissed(weft_call *call, void *arg)
{
    (void)arg;
    worker_exit("the master ended the job: %s", weft_call_string(call, 0));
}

static void on_event(weft_agent *agent, weft_member_event event, int rank, const char *why, void *arg)
{
    (void)agent, (void)rank, (void)arg;
    if (event == WEFT_MEMBER_SELF_EVICTED)
        worker_exit("this stage was declared dead, and is out of the job: %s", why);
    if (event == WEFT_MEMBER_STORE_LOST)
        worker_exit("the master is gone: %s", why);
}

static int serve(const pipeline_settings *set)
{
    sem_t over;
    weft_error *error = NULL;
    weft_agent *agent;
    const weft_function functions[] = {
        /* The first argument of the others is the result of make_stage, a reference to the stage. */
        {.name = "make_stage", .takes = {WEFT_TYPE_I64, WEFT_TYPE_I64}, .run = make_stage},
        {.name = "parameters", .takes = {WEFT_TYPE_RREF}, .gives = {WEFT_TYPE_TENSORS}, .run = parameters},
        {.name = "forward", .takes = {WEFT_TYPE_RREF, WEFT_TYPE_RREF}, .gives = {WEFT_TYPE_TENSOR}, .run = forward},
        {.name = "gradients", .takes = {WEFT_TYPE_RREF}, .gives = {WEFT_TYPE_TENSORS}, .run = gradients},
        {.name = "leave", .run = leave, .user = &over},
        {.name = "dismiss", .takes = {WEFT_TYPE_STRING}, .run = dismissed},
    };
    weft_agent_options options = worker_agent_options(&set->job);
    sem_init(&over, 0, 0);
    options.functions = functions;
    options.function_count = sizeof functions / sizeof *functions;
    options.on_membership = on_event;
    options.call_timeout_ms = WEFT_FOREVER; /* a slow worker is not a failure; its death ends the calls */
    options.workers = 1;                    /* so micro-batches are computed one after the other, in order */
    weft_status st = weft_agent_open(&options, &agent, &error);
    if (st)
        return worker_error(st, error);
    worker_outlive_parent();
    while (sem_wait(&over))
        ; /* interrupted by a signal */
    st = weft_agent_close(agent);
    sem_destroy(&over);
    return st ? worker_error(st, NULL) : 0;
}

/* ---- The master ------------------------------------------------------------------------------------------------- */

/* The measurement of one size of micro-batches. */
typedef struct measure {
    double seconds;          /* of all batches */
    double first_loss, loss; /* of the first batch, of the last */
} measure;

typedef struct master {
    const pipeline_settings *set;
    weft_agent *agent;
    weft_rref *stages[PIPELINE_STAGES];
    weft_dist_optimizer *sgd;
    measure found[PIPELINE_MOST_SIZES]; /* one for each of set->sizes */
    double difference; /* the largest difference of a gradient from that of one process; < 0: not compared */
    tally tally;       /* of micro-batches */
    progress line;
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

/* Waits for the future, and shows progress. */
static weft_status await(master *m, weft_future *future)
{
    weft_stats stats;
    weft_status st = WEFT_ERR_TIMEOUT;
    double began = clock_seconds();
    while (st == WEFT_ERR_TIMEOUT && !weft_future_done(future) && !worker_interrupted()) {
        st = weft_future_wait(future, LOOK_MS);
        weft_agent_stats(m->agent, &stats);
        progress_show(&m->line, &m->tally, stats.bytes_sent + stats.bytes_received, false);
    }
    if (worker_interrupted())
        return WEFT_ERR_CANCELLED;
    m->tally.in_calls += clock_seconds() - began;
    st = weft_future_wait(future, 0);
    if (st && !m->error)
        m->error = weft_error_ref(weft_future_error(future));
    return st;
}

/* Starts the forward computation of a micro-batch on both stages. */
static weft_status send_forward(master *m, weft_context *context, const pipeline_batch *batch, int64_t k, piece *p)
{
    weft_tensor *images = pipeline_images(batch, k);
    p->tape = weft_context_tape(context, NULL);
    const weft_rpc_options how = {.tape = p->tape, .error = &m->error};
    weft_status st = images && p->tape ? weft_rref_create(m->agent, weft_of_tensor(images), &p->x) : WEFT_ERR_MEMORY;
    if (!st)
        st = weft_rref_rpc_remote(m->stages[0], "forward", WEFT_VALUES(weft_of_rref(p->x)), &how, &p->y);
    if (!st)
        st = weft_rref_rpc_async(m->stages[1], "forward", WEFT_VALUES(weft_of_rref(p->y)), &how, &p->scores);
    weft_tensor_unref(images);
    return st;
}

/* Waits for the scores, and starts the backward pass from their loss. */
static weft_status send_backward(master *m, weft_context *context, const pipeline_batch *batch, int64_t k, piece *p)
{
    weft_status st = await(m, p->scores);
    if (st)
        return st;
    double began = clock_seconds();
    weft_tensor *loss = weft_tensor_ref(pipeline_loss(p->tape, batch, k, weft_future_tensor(p->scores, 0)));
    st = weft_tape_status(p->tape);
    if (st)
        m->error = weft_error_ref(weft_tape_error(p->tape));
    weft_tape_close(p->tape); /* a pass uses only the records of closed tapes */
    p->tape = NULL;
    if (!st) {
        p->loss = weft_tensor_get_f64(loss, 0);
        const weft_pass_options how = {.timeout_ms = WEFT_FOREVER};
        st = weft_context_backward(context, (weft_tensors){&loss, 1}, &how, &p->pass);
    }
    weft_tensor_unref(loss);
    m->tally.computing += clock_seconds() - began;
    return st;
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
static weft_status go_through(master *m, weft_context *context, const pipeline_batch *batch, double *loss)
{
    int64_t count = pipeline_pieces(batch);
    piece *pieces = calloc((size_t)count, sizeof *pieces);
    weft_status st = pieces ? WEFT_OK : WEFT_ERR_MEMORY;
    for (int64_t k = 0; k < count && !st; k++)
        st = send_forward(m, context, batch, k, &pieces[k]);
    for (int64_t k = 0; k < count && !st; k++)
        st = send_backward(m, context, batch, k, &pieces[k]);
    *loss = 0;
    for (int64_t k = 0; k < count && !st; k++) {
        int64_t images = pipeline_piece(batch, k);
        st = await(m, pieces[k].pass);
        *loss += pieces[k].loss;
        tally_steps(&m->tally, 1, pieces[k].loss * (double)batch->count / (double)images, images, 0, 0);
    }
    drop_pieces(pieces, count);
    return st;
}

/* Compares the gradients of the context with those of one process. The model must not have been stepped. */
static weft_status check(master *m, weft_context *context, const pipeline_batch *batch)
{
    weft_values *results[PIPELINE_STAGES] = {NULL};
    weft_tensors found[PIPELINE_STAGES];
    double difference = 0;
    weft_status st = WEFT_OK;
    weft_tape *tape = weft_context_tape(context, NULL);
    const weft_rpc_options how = {.tape = tape, .error = &m->error};
    for (int s = 0; s < PIPELINE_STAGES && !st; s++) {
        st = weft_rref_rpc_sync(m->stages[s], "gradients", WEFT_NO_VALUES, &how, &results[s]);
        if (!st)
            st = weft_values_get_tensors(results[s], 0, &found[s]);
    }
    if (!st)
        st = pipeline_compare(batch, (uint64_t)m->set->seed, found, &difference, &m->error);
    m->difference = fmax(m->difference, difference);
    if (!st && !(difference <= LARGEST_DIFFERENCE)) {
        m->error = weft_error_create(
            WEFT_ERR_STATE, "in micro-batches of %lld, a parameter's gradient differs by %.1e from one process's",
            (long long)batch->piece, difference);
        st = WEFT_ERR_STATE;
    }
    for (int s = 0; s < PIPELINE_STAGES; s++)
        weft_values_unref(results[s]);
    weft_tape_close(tape);
    return st;
}

static weft_status train_batch(master *m, const pipeline_batch *batch, bool compare, measure *found)
{
    weft_context *context;
    double began = clock_seconds();
    weft_status st = weft_context_open(m->agent, &context);
    if (st)
        return st;
    st = go_through(m, context, batch, &found->loss);
    double checking = clock_seconds();
    if (!st && compare)
        st = check(m, context, batch);
    checking = clock_seconds() - checking;
    if (!st && !isfinite(found->loss)) {
        m->error = weft_error_create(WEFT_ERR_STATE, "the loss is %s with --lr %g: a smaller one, please",
                                     isnan(found->loss) ? "nan" : "infinite", m->set->lr);
        st = WEFT_ERR_STATE;
    }
    if (!st)
        st = weft_dist_optimizer_step(m->sgd, &context, 1,
                                      &(weft_dist_step_options){.timeout_ms = WEFT_FOREVER, .error = &m->error});
    weft_context_close(context, NULL);
    found->seconds += clock_seconds() - began - checking;
    return st;
}

static weft_status make_model(master *m)
{
    weft_status st = WEFT_OK;
    weft_rref *parameters[PIPELINE_STAGES] = {NULL};
    const weft_rpc_options how = {.error = &m->error};
    const weft_optimizer_spec spec = {.type = &weft_sgd_type, .lr = m->set->lr};
    for (int s = 0; s < PIPELINE_STAGES && !st; s++) {
        st = weft_rpc_remote(m->agent, weft_to_rank(1 + s), "make_stage",
                             WEFT_VALUES(weft_of_i64(s), weft_of_i64(m->set->seed)), &how, &m->stages[s]);
        if (!st)
            st = weft_rref_rpc_remote(m->stages[s], "parameters", WEFT_NO_VALUES, &how, &parameters[s]);
    }
    if (!st)
        st = weft_dist_optimizer_create(m->agent, parameters, PIPELINE_STAGES, &spec, &m->sgd, &m->error);
    for (int s = 0; s < PIPELINE_STAGES; s++)
        weft_rref_unref(parameters[s]);
    return st;
}

static void drop_model(master *m)
{
    weft_dist_optimizer_unref(m->sgd);
    m->sgd = NULL;
    for (int s = 0; s < PIPELINE_STAGES; s++) {
        weft_rref_unref(m->stages[s]);
        m->stages[s] = NULL;
    }
}

/* Trains a new model with one size of micro-batches. */
static weft_status measure_size(master *m, int64_t size, measure *found)
{
    const pipeline_settings *s = m->set;
    weft_status st = make_model(m);
    for (int64_t i = 0; i < s->batches && !st; i++) {
        const pipeline_batch batch = {.count = s->batch,
                                      .size = s->image_size,
                                      .piece = size,
                                      .seed = random_key((uint64_t)s->seed, (uint64_t)i)};
        st = train_batch(m, &batch, s->check && i == 0, found);
        if (i == 0)
            found->first_loss = found->loss;
    }
    drop_model(m);
    return st;
}

static weft_status measure_all(master *m)
{
    weft_stats stats;
    const pipeline_settings *s = m->set;
    weft_status st = WEFT_OK;
    int64_t pieces = 0;
    for (size_t i = 0; i < s->size_count; i++)
        pieces += s->batches * pipeline_pieces(&(pipeline_batch){.count = s->batch, .piece = s->sizes[i]});
    progress_init(&m->line, s->quiet ? NULL : stdout, pieces, "images");
    tally_begin(&m->tally);
    for (size_t i = 0; i < s->size_count && !st; i++)
        st = measure_size(m, s->sizes[i], &m->found[i]);
    weft_agent_stats(m->agent, &stats);
    progress_show(&m->line, &m->tally, stats.bytes_sent + stats.bytes_received, true);
    return st;
}

/* ---- Results ---------------------------------------------------------------------------------------------------- */

static double images_per_s(const master *m, size_t i)
{
    return m->found[i].seconds > 0 ? (double)(m->set->batches * m->set->batch) / m->found[i].seconds : 0;
}

static size_t best_size(const master *m)
{
    size_t best = 0;
    for (size_t i = 1; i < m->set->size_count; i++)
        if (m->found[i].seconds < m->found[best].seconds)
            best = i;
    return best;
}

/* The speedup of the best size over the complete batch in one piece; 0: that was not measured. */
static double speedup(const master *m)
{
    for (size_t i = 0; i < m->set->size_count; i++)
        if (m->set->sizes[i] == m->set->batch && m->found[best_size(m)].seconds > 0)
            return m->found[i].seconds / m->found[best_size(m)].seconds;
    return 0;
}

static void print_table(const master *m)
{
    const pipeline_settings *s = m->set;
    double fastest = images_per_s(m, best_size(m));
    printf("\n  ResNet-50 in %d stages, %lld batch%s of %lld images 3 x %lld x %lld, seed %lld\n\n", PIPELINE_STAGES,
           (long long)s->batches, s->batches == 1 ? "" : "es", (long long)s->batch, (long long)s->image_size,
           (long long)s->image_size, (long long)s->seed);
    printf("  micro-batch  pieces   seconds  images/s     loss\n");
    for (size_t i = 0; i < s->size_count; i++) {
        const pipeline_batch batch = {.count = s->batch, .piece = s->sizes[i]};
        int columns = fastest > 0 ? (int)(images_per_s(m, i) / fastest * CHART_COLUMNS + 0.5) : 0;
        printf("  %11lld  %6lld  %8.2f  %8.1f  %7.4f  ", (long long)s->sizes[i], (long long)pipeline_pieces(&batch),
               m->found[i].seconds, images_per_s(m, i), m->found[i].loss);
        for (int c = 0; c < columns; c++)
            putchar('#');
        putchar('\n');
    }
    if (speedup(m) > 0)
        printf("\n  best                 micro-batches of %lld, %.2f times as fast as the batch in one piece\n",
               (long long)s->sizes[best_size(m)], speedup(m));
    if (m->difference >= 0)
        printf("  of one process       gradients differ by %.1e at most\n", m->difference);
}

static cJSON *list_sizes(const master *m)
{
    cJSON *list = cJSON_CreateArray();
    for (size_t i = 0; i < m->set->size_count; i++) {
        cJSON *entry = cJSON_CreateObject();
        cJSON_AddNumberToObject(entry, "micro_batch", (double)m->set->sizes[i]);
        cJSON_AddNumberToObject(entry, "seconds", m->found[i].seconds);
        cJSON_AddNumberToObject(entry, "images_per_s", images_per_s(m, i));
        cJSON_AddNumberToObject(entry, "first_loss", m->found[i].first_loss);
        cJSON_AddNumberToObject(entry, "loss", m->found[i].loss);
        cJSON_AddItemToArray(list, entry);
    }
    return list;
}

/* NULL if memory is out. */
static cJSON *to_json(const master *m)
{
    weft_stats stats;
    weft_agent_stats(m->agent, &stats);
    const struct {
        const char *key;
        double value; /* < 0: omitted */
    } numbers[] = {{"seed", (double)m->set->seed},
                   {"batch_size", (double)m->set->batch},
                   {"image_size", (double)m->set->image_size},
                   {"iterations", (double)(m->set->batches * (int64_t)m->set->size_count)},
                   {"best_micro_batch", (double)m->set->sizes[best_size(m)]},
                   {"speedup", speedup(m)},
                   {"master_bytes_sent", (double)stats.bytes_sent},
                   {"master_bytes_received", (double)stats.bytes_received},
                   {"difference", m->difference}};
    cJSON *json = cJSON_CreateObject();
    bool whole = cJSON_AddStringToObject(json, "model", "pipeline");
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers && whole; i++)
        whole = numbers[i].value < 0 || cJSON_AddNumberToObject(json, numbers[i].key, numbers[i].value);
    if (whole && cJSON_AddItemToObject(json, "sizes", list_sizes(m)))
        return json;
    cJSON_Delete(json);
    return NULL;
}

/* Lets the stages leave, and writes the results. */
static weft_status conclude(master *m)
{
    weft_status st = WEFT_OK;
    for (int s = 0; s < PIPELINE_STAGES && !st; s++)
        st = weft_rpc_sync(m->agent, weft_to_rank(1 + s), "leave", WEFT_NO_VALUES,
                           &(weft_rpc_options){.error = &m->error}, NULL);
    if (!st && m->set->report)
        st = json_file_write(m->set->report, to_json(m), &m->error);
    if (!st && !m->set->quiet)
        print_table(m);
    return st;
}

/* ---- The job ---------------------------------------------------------------------------------------------------- */

/*
 * Tells the other workers why the job ends early, including those that are computing, and leaves. A worker exits as
 * soon as it is told, without answering. A local worker that was declared dead may only be stopped (SIGSTOP), so it is
 * killed.
 */
static void dismiss(weft_agent *agent, const weft_job *job, const char *why)
{
    int size = weft_agent_world_size(agent);
    const weft_rpc_options how = {.timeout_ms = DISMISS_MS};
    weft_target *alive = calloc((size_t)size, sizeof *alive);
    weft_future *told = NULL;
    size_t count = 0;
    for (int rank = 1; rank < size && alive; rank++) {
        if (weft_agent_alive(agent, rank))
            alive[count++] = weft_to_rank(rank);
        else if (job && weft_job_pid(job, rank) > 0)
            kill(weft_job_pid(job, rank), SIGKILL);
    }
    if (count && !weft_rpc_multicast(agent, alive, count, "dismiss", WEFT_VALUES(weft_of_string(why)), &how, &told))
        (void)!weft_future_wait(told, WEFT_FOREVER);
    weft_future_unref(told);
    free(alive);
    weft_agent_stop(agent);
}

static int end_early(master *m, const weft_job *job, weft_status st)
{
    char failure[1024];
    int gone = 1;
    while (gone <= PIPELINE_STAGES && weft_agent_alive(m->agent, gone))
        gone++;
    const char *why = m->error ? weft_error_message(m->error) : weft_status_text(st);
    if (worker_interrupted())
        snprintf(failure, sizeof failure, "interrupted");
    else if (gone <= PIPELINE_STAGES)
        snprintf(failure, sizeof failure, "stage %d is gone: %s", gone, why);
    else
        snprintf(failure, sizeof failure, "%s", why);
    weft_error_unref(m->error);
    dismiss(m->agent, job, failure);
    return worker_fail("%s", failure);
}

static int run(master *m, weft_job *job)
{
    weft_agent_options options = worker_agent_options(&m->set->job);
    options.job = job;
    options.call_timeout_ms = WEFT_FOREVER;
    weft_status st = weft_agent_open(&options, &m->agent, &m->error);
    worker_watch_children(false, NULL);
    if (st)
        return worker_error(st, m->error);
    worker_catch_signals();
    st = measure_all(m);
    if (!st)
        st = conclude(m);
    if (st)
        return end_early(m, job, st);
    st = weft_agent_close(m->agent);
    return st ? worker_error(st, NULL) : 0;
}

static int start(const pipeline_settings *set)
{
    master m = {.set = set, .difference = set->check ? 0 : -1};
    weft_job *job = NULL;
    weft_status st = WEFT_OK;
    worker_watch_children(set->job.spawn, NULL);
    if (set->job.spawn)
        st = weft_job_open(&(weft_job_options){.count = PIPELINE_STAGES}, &job, &m.error);
    worker_watch_children(set->job.spawn, job);
    int code = st ? worker_error(st, m.error) : run(&m, job);
    if (weft_job_close(job, code ? 500 : 5000, NULL) && code == 0)
        code = worker_fail("a stage exited with an error");
    return worker_interrupted() ? 130 : code;
}

int main(int argc, char **argv)
{
    pipeline_settings set;
    int code = pipeline_parse(argc, argv, &set);
    if (code >= 0)
        return code;
    worker_begin("pipeline_resnet50", "master", "stage", (int)set.job.rank);
    return worker_flush(set.job.rank == 0 ? start(&set) : serve(&set));
}
