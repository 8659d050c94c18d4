/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rpc_parameter_server.c - one model on a server, trained by N trainers that do not wait for each other.
 *
 *   rpc_parameter_server --trainers 3                  starts the trainers as processes of this machine
 *   RANK=... WORLD_SIZE=... MASTER_ADDR=... MASTER_PORT=... rpc_parameter_server        is one worker; rank 0 serves
 *
 * The trainers have the data and compute the loss; the server has the model, PyTorch's MNIST ConvNet. In each iteration
 * a trainer opens a distributed context and runs the model there with weft_remote_forward. One backward pass then goes
 * from the loss through the model, and steps the trainer's optimizer, which updates the parameters on the server. An
 * iteration takes four messages; neither parameters nor their gradients are sent. If a trainer dies, the others go on.
 * At the end the server measures the accuracy of the model on held-out images.
 *
 * With --device cuda:N or auto the server runs the model on a GPU, where its parameters, gradients and optimizers are.
 * Device maps of the trainers bring inputs there, and results back. For trainers that a launcher starts, set
 * WEFT_DEVICE_MAPS="worker0/cpu=cuda:N": without maps the server copies, and waits for each result.
 *
 * After PyTorch's tutorial "Implementing a Parameter Server using Distributed RPC Framework". --help lists the options.
 */
#include <weft/weft.h>

#include "common/report.h"             /* progress, the final table */
#include "common/worker.h"             /* the job, messages */
#include "parameter_server/workload.h" /* options, model, batches, loss, accuracy */

#include <pthread.h>
#include <stdlib.h>

#define REPORT_SECONDS 0.25 /* between two reports of a trainer */

/* ---- The server ------------------------------------------------------------------------------------------------- */

typedef struct server {
    workload *work;
    weft_module *model;

    pthread_mutex_t lock; /* protects the fields below */
    int64_t *steps;       /* by rank: of this trainer */
    int64_t lost;         /* trainers that died, or left early */
    progress progress;
} server;

static void on_trainer_event(weft_agent *agent, weft_member_event event, int rank, const char *why, void *arg)
{
    server *s = arg;
    (void)agent;
    if (event != WEFT_MEMBER_DEAD && event != WEFT_MEMBER_LEFT)
        return;
    pthread_mutex_lock(&s->lock);
    if (s->steps[rank] < s->work->iterations)
        worker_note("trainer %d is dead: %s; going on with %d", rank, why, (int)(s->work->trainers - ++s->lost));
    pthread_mutex_unlock(&s->lock);
}

static weft_status give_model(weft_call *call, void *arg)
{
    server *s = arg;
    weft_call_give_object(call, &weft_module_object, weft_module_ref(s->model));
    pthread_mutex_lock(&s->lock);
    progress_begin(&s->progress);
    pthread_mutex_unlock(&s->lock);
    return WEFT_OK;
}

/* A trainer's steps since its last report: how many, and their mean loss. */
static weft_status report_steps(weft_call *call, void *arg)
{
    server *s = arg;
    int64_t steps = weft_call_i64(call, 0);
    pthread_mutex_lock(&s->lock);
    s->steps[weft_call_from(call)] += steps;
    progress_add(&s->progress, steps, weft_call_f64(call, 1), steps * s->work->batch_size);
    progress_update(&s->progress, steps);
    pthread_mutex_unlock(&s->lock);
    return WEFT_OK;
}

static int serve(workload *work)
{
    server s = {.work = work,
                .steps = calloc((size_t)work->trainers + 1, sizeof(int64_t)),
                .lock = PTHREAD_MUTEX_INITIALIZER,
                .progress = {.total = work->iterations * work->trainers, .unit = "images", .quiet = work->quiet}};
    const weft_function functions[] = {
        {.name = "model", .run = give_model, .user = &s},
        {.name = "report_steps", .takes = {WEFT_TYPE_I64, WEFT_TYPE_F64}, .run = report_steps, .user = &s},
    };
    weft_agent *agent = NULL;
    weft_error *error = NULL;
    weft_status status = s.steps ? workload_model(work, &s.model, &error) : WEFT_ERR_MEMORY;
    if (!status)
        status = weft_module_to_device(s.model, work->device);
    worker_serve_on(work->device);
    if (!status)
        status = worker_open(
            (weft_agent_options){
                .functions = functions, .function_count = 2, .on_membership = on_trainer_event, .membership_arg = &s},
            &agent);
    if (!status)
        status = weft_agent_serve(agent, WEFT_FOREVER); /* until all trainers close */
    if (!status && s.lost == work->trainers) {
        error = weft_error_create(WEFT_ERR_PEER_DEAD, "no trainer is left");
        status = WEFT_ERR_PEER_DEAD;
    }
    if (!status)
        status = workload_deliver(work, s.model, &s.progress, s.lost, -1, agent, &error);
    int code = worker_end(agent, status, error);
    weft_module_unref(s.model);
    free(s.steps);
    return code;
}

/* ---- A trainer -------------------------------------------------------------------------------------------------- */

typedef struct trainer {
    workload *work;
    weft_agent *agent;
    weft_rref *remote;
    weft_module *model; /* a local module whose forward calls the remote one */
    weft_dist_optimizer *sgd;
    uint64_t seed; /* of dropout, in this iteration */
    weft_error *error;
    /* Steps that this trainer has not reported yet. */
    int64_t steps;
    double losses;   /* their sum */
    double reported; /* clock_seconds of the last report */
} trainer;

/* Runs the model on the server. */
static weft_tensor *forward_there(weft_tape *t, weft_module *self, weft_tensor *x)
{
    trainer *me = weft_module_state(self);
    const weft_forward_options how = {.mode = WEFT_MODE_TRAIN, .has_seed = true, .seed = me->seed};
    return weft_remote_forward(t, me->remote, x, &how);
}

static const weft_module_type remote_type = {.name = "Remote", .forward = forward_there};

/* Gets a handle to the server's model, and creates this trainer's optimizer over its parameters. */
static weft_status find_model(trainer *me)
{
    const weft_optimizer_spec spec = {.type = &weft_sgd_type, .lr = me->work->lr};
    weft_status status = weft_rpc_remote(me->agent, weft_to_rank(0), "model", WEFT_NO_VALUES,
                                         &(weft_rpc_options){.error = &me->error}, &me->remote);
    if (!status)
        status =
            weft_dist_optimizer_create(me->agent, WEFT_VALUES(weft_of_rref(me->remote)), &spec, &me->sgd, &me->error);
    return status ? status : weft_module_create(&remote_type, me, &me->model, &me->error);
}

/* Reports to the server, without waiting for an answer. */
static weft_status report_news(trainer *me)
{
    weft_status status =
        weft_rpc_async(me->agent, weft_to_rank(0), "report_steps",
                       WEFT_VALUES(weft_of_i64(me->steps), weft_of_f64(me->losses / (double)me->steps)),
                       &(weft_rpc_options){.error = &me->error}, NULL);
    me->steps = 0;
    me->losses = 0;
    me->reported = clock_seconds();
    return status;
}

static weft_status train_step(trainer *me, int64_t iteration)
{
    me->seed = workload_seed(me->work, iteration);
    weft_tape *t = weft_dist_tape_open(me->agent, NULL);
    weft_tensor *loss = workload_loss(me->work, t, me->model, iteration, (weft_device){0});
    weft_dist_backward(t, loss, &(weft_pass_options){.step = me->sgd});
    weft_status status = weft_tape_status(t);
    if (status) {
        me->error = weft_error_ref(weft_tape_error(t));
    } else {
        me->steps++;
        me->losses += weft_tensor_get_f64(loss, 0);
    }
    weft_tape_close(t);
    return status;
}

static int train(workload *work)
{
    trainer me = {.work = work};
    weft_agent_options options = {.call_timeout_ms = WEFT_FOREVER}; /* a slow server is no failure; its death is */
    weft_status status = worker_open(options, &me.agent);
    if (!status)
        status = find_model(&me);
    for (int64_t i = 0; i < work->iterations && !status; i++) {
        status = train_step(&me, i);
        if (!status && (i + 1 == work->iterations || clock_seconds() - me.reported >= REPORT_SECONDS))
            status = report_news(&me);
    }
    weft_dist_optimizer_unref(me.sgd);
    weft_module_unref(me.model);
    weft_rref_unref(me.remote);
    return worker_end(me.agent, status, me.error);
}

int main(int argc, char **argv)
{
    const cli program = {.program = "rpc_parameter_server",
                         .purpose = "trains a model that is on a server, from N trainers that run it by remote calls",
                         .example = "rpc_parameter_server --trainers 3 --epochs 5"};
    workload work;
    int code = workload_open(&work, program, false, argc, argv);
    if (code >= 0)
        return code;
    code = work.rank == 0 ? serve(&work) : train(&work);
    workload_close(&work);
    return code;
}
