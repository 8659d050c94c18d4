/* SPDX-License-Identifier: Apache-2.0 */
/*
 * batch_parameter_server.c - one server and N trainers train a model together.
 *
 *   batch_parameter_server --trainers 2                  starts the trainers as processes of this machine
 *   RANK=... WORLD_SIZE=... MASTER_ADDR=... MASTER_PORT=... batch_parameter_server        is one worker; rank 0 serves
 *
 * A trainer sends its gradients with one call, update_and_fetch. Its result is the updated model, which lands in the
 * tensors that the trainer computes with. The server adds the gradients and keeps the call open. When the calls of all
 * trainers have arrived, the server steps the optimizer and answers all of these calls. No thread waits meanwhile. If a
 * trainer dies, the others go on. It defers its calls itself; sharded_server.c lets weft form batches (weft/batch.h).
 *
 * With --device cuda:N or auto the trainers compute on GPUs. A device map sends their gradients to the server's CPU,
 * which adds and steps. The model lands in the parameters on the trainer's GPU.
 *
 * parameter_server/workload.h defines the model and its data; --help lists the options. Running statistics of batch
 * norm are not parameters: each trainer keeps its own. A saved model has the statistics of the server, which never runs
 * the model in train mode.
 */
#include <weft/weft.h>

#include "common/report.h"             /* progress, the final table */
#include "common/worker.h"             /* the job, messages */
#include "parameter_server/workload.h" /* options, model, batches, loss, accuracy */

#include <pthread.h>
#include <stdlib.h>

/* ---- The server ------------------------------------------------------------------------------------------------- */

typedef struct server {
    workload *work;
    weft_module *model;
    weft_optimizer *sgd;

    pthread_mutex_t lock;       /* protects the fields below, and the model */
    bool *gone;                 /* by rank: this trainer has died, or left early */
    int training;               /* trainers that are not gone */
    weft_call **waiting;        /* by rank: its unanswered call, or NULL */
    int arrived;                /* unanswered calls */
    double computing, in_calls; /* seconds of all trainers; waiting for other trainers counts as in calls */
    progress progress;
} server;

/* Answers all calls, with the model or a failure. The caller holds the lock. */
static void answer_all(server *s, weft_status status)
{
    weft_args model = WEFT_VALUES(weft_of_tensors(weft_module_parameters(s->model)));
    for (int64_t rank = 1; rank <= s->work->trainers; rank++) {
        weft_call *call = s->waiting[rank];
        s->waiting[rank] = NULL;
        if (!call)
            continue;
        weft_call_give(call, model);
        weft_call_finish(call, status);
    }
    s->arrived = 0;
}

/* The learning rate decreases linearly. The caller holds the lock. */
static void update_if_complete(server *s)
{
    double left = 1 - (double)s->progress.updates / (double)s->progress.total;
    if (s->arrived == 0 || s->arrived < s->training)
        return;
    weft_status status = weft_optimizer_set_lr(s->sgd, s->work->lr * left);
    if (!status)
        status = weft_optimizer_step(s->sgd);
    answer_all(s, status);
    if (!status)
        progress_update(&s->progress, 1);
}

/* A trainer is gone before the end. If only its gradients were missing, updates the model. */
static void on_trainer_event(weft_agent *agent, weft_member_event event, int rank, const char *why, void *arg)
{
    server *s = arg;
    (void)agent;
    if (event != WEFT_MEMBER_DEAD && event != WEFT_MEMBER_LEFT)
        return;
    pthread_mutex_lock(&s->lock);
    if (!s->gone[rank] && s->progress.updates < s->progress.total) {
        worker_note("trainer %d is dead: %s; going on with %d", rank, why, --s->training);
        s->gone[rank] = true;
        if (s->waiting[rank]) {
            weft_call_finish(s->waiting[rank], WEFT_ERR_PEER_DEAD);
            s->waiting[rank] = NULL;
            s->arrived--;
        }
        update_if_complete(s);
    }
    pthread_mutex_unlock(&s->lock);
}

static weft_status fetch(weft_call *call, void *arg)
{
    server *s = arg;
    pthread_mutex_lock(&s->lock);
    progress_begin(&s->progress);
    weft_call_give(call, WEFT_VALUES(weft_of_tensors(weft_module_parameters(s->model))));
    pthread_mutex_unlock(&s->lock);
    return WEFT_OK;
}

/* Arguments: the gradients; the loss; seconds of computing, seconds in the previous call. */
static weft_status update_and_fetch(weft_call *call, void *arg)
{
    server *s = arg;
    int rank = weft_call_from(call);
    weft_tensors gradients = weft_call_tensors(call, 0);
    weft_error *unfit = NULL;
    pthread_mutex_lock(&s->lock);
    weft_status status = weft_optimizer_check(s->sgd, gradients, &unfit);
    if (status)
        weft_call_fail(call, status, "%s", weft_error_message(unfit));
    else if (s->gone[rank] || s->waiting[rank])
        weft_call_fail(call, status = WEFT_ERR_STATE, "this trainer was declared dead, or already has an open call");
    else
        status = weft_optimizer_accumulate(s->sgd, gradients);
    if (!status) {
        progress_add(&s->progress, 1, weft_tensor_get_f64(weft_call_tensor(call, 1), 0), s->work->batch_size);
        s->computing += weft_call_f64(call, 2);
        s->in_calls += weft_call_f64(call, 3);
        s->waiting[rank] = weft_call_defer(call);
        s->arrived++;
        update_if_complete(s);
    }
    pthread_mutex_unlock(&s->lock);
    weft_error_unref(unfit);
    return status ? status : WEFT_DEFERRED;
}

static int serve(workload *work, weft_module *model)
{
    const weft_optimizer_spec how = {.type = &weft_sgd_type, .lr = work->lr, .average = true, .sgd.momentum = 0.9};
    server s = {.work = work,
                .model = model,
                .lock = PTHREAD_MUTEX_INITIALIZER,
                .training = (int)work->trainers,
                .progress = {.total = work->iterations, .unit = "images", .quiet = work->quiet}};
    const weft_function functions[] = {
        {.name = "fetch", .gives = {WEFT_TYPE_TENSORS}, .run = fetch, .user = &s},
        {.name = "update_and_fetch",
         .takes = {WEFT_TYPE_TENSORS, WEFT_TYPE_TENSOR, WEFT_TYPE_F64, WEFT_TYPE_F64},
         .gives = {WEFT_TYPE_TENSORS},
         .run = update_and_fetch,
         .user = &s},
    };
    weft_agent *agent = NULL;
    weft_error *error = NULL;
    s.gone = calloc((size_t)work->trainers + 1, sizeof(*s.gone));
    s.waiting = calloc((size_t)work->trainers + 1, sizeof(weft_call *));
    weft_status status = s.gone && s.waiting ? WEFT_OK : WEFT_ERR_MEMORY;
    if (!status)
        status = weft_optimizer_create(weft_module_parameters(model), &how, &s.sgd, &error);
    if (!status)
        status = worker_open(
            (weft_agent_options){
                .functions = functions, .function_count = 2, .on_membership = on_trainer_event, .membership_arg = &s},
            &agent);
    if (!status)
        status = weft_agent_serve(agent, WEFT_FOREVER); /* until all trainers close */
    if (!status && s.training == 0) {
        error = weft_error_create(WEFT_ERR_PEER_DEAD, "no trainer is left");
        status = WEFT_ERR_PEER_DEAD;
    }
    if (!status)
        status = workload_deliver(work, model, &s.progress, work->trainers - s.training,
                                  s.in_calls / (s.computing + s.in_calls), agent, &error);
    int code = worker_end(agent, status, error);
    free(s.waiting);
    free(s.gone);
    weft_optimizer_unref(s.sgd);
    return code;
}

/* ---- A trainer -------------------------------------------------------------------------------------------------- */

typedef struct trainer {
    workload *work;
    weft_module *model;
    weft_agent *agent;
    double in_call; /* seconds in the last update_and_fetch */
    weft_error *error;
} trainer;

/* Calls the server. Its model lands in the parameters of this trainer's model. */
static weft_status ask(trainer *me, const char *function, weft_args arguments)
{
    weft_rpc_options how = {.land = weft_module_parameters(me->model), .timeout_ms = WEFT_FOREVER, .error = &me->error};
    return weft_rpc_sync(me->agent, weft_to_rank(0), function, arguments, &how, NULL);
}

static weft_status train_step(trainer *me, int64_t iteration)
{
    double began = clock_seconds();
    weft_tape *t = weft_tape_open(
        &(weft_tape_options){.record = true, .seed = workload_seed(me->work, iteration), .device = me->work->device});
    weft_tensor *loss = workload_loss(me->work, t, me->model, iteration, me->work->device);
    weft_backward(t, loss);
    weft_tensors gradients = weft_tape_grads(t, weft_module_parameters(me->model));
    weft_status status = weft_tape_status(t);
    if (status) {
        me->error = weft_error_ref(weft_tape_error(t));
    } else {
        double computed = clock_seconds();
        status = ask(me, "update_and_fetch",
                     WEFT_VALUES(weft_of_tensors(gradients), weft_of_tensor(loss), weft_of_f64(computed - began),
                                 weft_of_f64(me->in_call)));
        me->in_call = clock_seconds() - computed;
    }
    weft_tape_close(t);
    return status;
}

static int train(workload *work, weft_module *model)
{
    trainer me = {.work = work, .model = model};
    const weft_device_map map = {.here = work->device}; /* there: the CPU */
    weft_status status = weft_module_to_device(model, work->device);
    if (!status)
        status = worker_open((weft_agent_options){.device_maps = &map, .device_map_count = 1}, &me.agent);
    if (!status)
        status = ask(&me, "fetch", WEFT_NO_VALUES);
    for (int64_t i = 0; i < work->iterations && !status; i++)
        status = train_step(&me, i);
    return worker_end(me.agent, status, me.error);
}

int main(int argc, char **argv)
{
    const cli program = {.program = "batch_parameter_server",
                         .purpose = "trains a model with one server and N trainers; each update has a gradient of each",
                         .example = "batch_parameter_server --trainers 4 --epochs 20"};
    workload work;
    int code = workload_open(&work, program, true, argc, argv);
    if (code >= 0)
        return code;
    weft_module *model = NULL;
    weft_error *error = NULL;
    weft_status status = workload_model(&work, &model, &error);
    if (status)
        code = worker_end(NULL, status, error);
    else
        code = work.rank == 0 ? serve(&work, model) : train(&work, model);
    weft_module_unref(model);
    workload_close(&work);
    return code;
}
