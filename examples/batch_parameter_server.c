/* SPDX-License-Identifier: Apache-2.0 */
/*
 * batch_parameter_server.c - one server and N trainers train a model together.
 *
 *   batch_parameter_server --trainers 2                  starts the trainers as processes of this machine
 *   RANK=... WORLD_SIZE=... MASTER_ADDR=... MASTER_PORT=... batch_parameter_server        is one worker; rank 0 serves
 *
 * A trainer sends its gradients with one call, update_and_fetch. Its result is the updated model, which lands in the
 * tensors that the trainer computes with. The server adds the gradients and keeps the call open. When the calls of all
 * trainers have arrived, the server steps the optimizer and answers all of these calls. No thread waits meanwhile.
 *
 * With --device cuda:N or auto the trainers compute on GPUs; parameters and gradients are staged in page-locked memory
 * for the calls (parameter_server/staging.h). The server adds and steps on the CPU, where calls leave the gradients.
 *
 * parameter_server/workload.h defines the model and its data; --help lists the options. Running statistics of batch
 * norm are not parameters: each trainer keeps its own. A saved model has the statistics of the server, which never runs
 * the model in train mode.
 */
#include <weft/weft.h>

#include "common/worker.h"             /* messages, exit codes, signals */
#include "parameter_server/settings.h" /* the command line */
#include "parameter_server/staging.h"  /* a model on a GPU */
#include "parameter_server/summary.h"  /* the final table */
#include "parameter_server/workload.h" /* model, batches, loss, accuracy */

#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <time.h>

#define LOOK_MS 50     /* between two checks for signals and for the end of training */
#define DISMISS_MS 300 /* timeout of the call that tells the trainers that the job ends early */

/* ---- The server: trainers --------------------------------------------------------------------------------------- */

typedef struct server {
    const settings *set;
    workload *work;
    weft_module *model;
    weft_optimizer *sgd;
    int64_t updates; /* expected in total */

    pthread_mutex_t lock; /* protects the fields below, and the model */
    bool *gone;           /* by rank: this trainer has finished or died */
    int training;         /* trainers that are not gone */
    int lost;             /* trainers that died or left early */
    int finished;         /* trainers that finished their work */
    weft_call **waiting;  /* by rank: its unanswered call, or NULL */
    int arrived;          /* unanswered calls */
    tally tally;
    char failure[256]; /* why the job ends early; "" if it does not */
} server;

/* Answers all calls: with the model, or with an error. The caller holds the lock. */
static void answer_all(server *s, weft_status status, const char *why)
{
    weft_args model = WEFT_VALUES(weft_of_tensors(weft_module_parameters(s->model)));
    for (int rank = 0; rank < s->set->job.world_size; rank++) {
        weft_call *call = s->waiting[rank];
        if (!call)
            continue;
        s->waiting[rank] = NULL;
        if (status)
            weft_call_fail(call, status, "%s", why);
        else
            weft_call_give(call, model);
        weft_call_finish(call, status);
    }
    s->arrived = 0;
}

/* Ends the job early. Only the first reason counts. The caller holds the lock. */
static void fail(server *s, const char *format, ...) WEFT_PRINTF(2, 3);
static void fail(server *s, const char *format, ...)
{
    va_list args;
    if (*s->failure)
        return;
    va_start(args, format);
    vsnprintf(s->failure, sizeof s->failure, format, args);
    va_end(args);
    answer_all(s, WEFT_ERR_CANCELLED, s->failure);
}

/* Steps the model. With --deterministic the gradients of the open calls are added here, in the order of ranks. */
static weft_status update(server *s)
{
    weft_status st = weft_optimizer_set_lr(s->sgd, settings_lr(s->set, s->tally.updates, s->updates));
    for (int rank = 1; rank < s->set->job.world_size && s->set->deterministic && !st; rank++)
        if (s->waiting[rank])
            st = weft_optimizer_accumulate(s->sgd, weft_call_tensors(s->waiting[rank], 0));
    return st ? st : weft_optimizer_step(s->sgd);
}

static void update_if_complete(server *s)
{
    int64_t size = s->set->batch_update_size;
    int wanted = size < s->training ? (int)size : s->training;
    if (s->arrived == 0 || s->arrived < wanted)
        return;
    weft_status st = update(s);
    if (st) {
        fail(s, "the model cannot be updated: %s", weft_status_text(st));
        return;
    }
    tally_update(&s->tally);
    answer_all(s, WEFT_OK, NULL);
}

/* A trainer has finished or died. If only its gradients were missing, updates the model. The caller holds the lock. */
static void remove_trainer(server *s, int rank)
{
    weft_call *call = s->waiting[rank];
    s->gone[rank] = true;
    s->training--;
    if (call) {
        s->waiting[rank] = NULL;
        s->arrived--;
        weft_call_finish(call, WEFT_ERR_PEER_DEAD);
    }
    update_if_complete(s);
}

static void on_trainer_event(weft_agent *agent, weft_member_event event, int rank, const char *why, void *arg)
{
    server *s = arg;
    (void)agent;
    pthread_mutex_lock(&s->lock);
    if ((event == WEFT_MEMBER_DEAD || event == WEFT_MEMBER_LEFT) && !s->gone[rank] && !*s->failure) {
        const char *what = event == WEFT_MEMBER_DEAD ? "is dead" : "left before its work was done";
        if (s->set->job.on_death == ON_DEATH_STOP)
            fail(s, "trainer %d %s: %s", rank, what, why);
        else
            worker_note("trainer %d %s: %s; going on with %d", rank, what, why, s->training - 1);
        s->lost++;
        remove_trainer(s, rank);
        if (s->training == 0 && s->finished == 0)
            fail(s, "no trainer is left");
    }
    pthread_mutex_unlock(&s->lock);
}

/* ---- The server: functions that trainers call ------------------------------------------------------------------- */

static weft_status fetch(weft_call *call, void *arg)
{
    server *s = arg;
    pthread_mutex_lock(&s->lock);
    tally_begin(&s->tally);
    weft_call_give(call, WEFT_VALUES(weft_of_tensors(weft_module_parameters(s->model))));
    pthread_mutex_unlock(&s->lock);
    return WEFT_OK;
}

/* Arguments: the gradients; for the tally the loss, images, seconds of computing, seconds in the previous call. */
static weft_status update_and_fetch(weft_call *call, void *arg)
{
    server *s = arg;
    int rank = weft_call_from(call);
    weft_tensors gradients = weft_call_tensors(call, 0);
    weft_error *unfit = NULL;
    pthread_mutex_lock(&s->lock);
    weft_status st = weft_optimizer_check(s->sgd, gradients, &unfit);
    if (st)
        weft_call_fail(call, st, "%s", weft_error_message(unfit));
    else if (*s->failure || s->gone[rank] || s->waiting[rank])
        weft_call_fail(call, st = WEFT_ERR_STATE, "%s",
                       *s->failure ? s->failure
                                   : "this trainer has left, was declared dead, or already has an open call");
    else if (!s->set->deterministic)
        st = weft_optimizer_accumulate(s->sgd, gradients);
    if (!st) {
        tally_gradient(&s->tally, weft_call_f64(call, 1), weft_call_i64(call, 2), weft_call_f64(call, 3),
                       weft_call_f64(call, 4));
        s->waiting[rank] = s->set->deterministic ? weft_call_defer_keeping(call) : weft_call_defer(call);
        s->arrived++;
        update_if_complete(s);
    }
    pthread_mutex_unlock(&s->lock);
    weft_error_unref(unfit);
    return st ? st : WEFT_DEFERRED;
}

/*
 * A trainer has done its work. Arguments: seconds in its last call, bytes that it sent, bytes that weft copied for it.
 */
static weft_status leave(weft_call *call, void *arg)
{
    server *s = arg;
    int rank = weft_call_from(call);
    pthread_mutex_lock(&s->lock);
    s->tally.in_calls += weft_call_f64(call, 0);
    s->tally.bytes_sent += (uint64_t)weft_call_i64(call, 1);
    s->tally.bytes_copied += (uint64_t)weft_call_i64(call, 2);
    s->finished++;
    if (!s->gone[rank])
        remove_trainer(s, rank);
    pthread_mutex_unlock(&s->lock);
    return WEFT_OK;
}

/* A trainer reports why no trainer can continue. */
static weft_status give_up(weft_call *call, void *arg)
{
    server *s = arg;
    pthread_mutex_lock(&s->lock);
    fail(s, "%s", weft_call_string(call, 0));
    pthread_mutex_unlock(&s->lock);
    return WEFT_OK;
}

/* ---- The server: the job ---------------------------------------------------------------------------------------- */

/* Shows progress until training is complete, or there is a reason to end early. */
static void watch(server *s, weft_agent *agent)
{
    progress line;
    weft_stats stats;
    for (int rank = 1; rank < s->set->job.world_size;
         rank++)                              /* otherwise the death of a trainer without an open call goes unnoticed */
        (void)!weft_agent_watch(agent, rank); /* fails if it is gone: on_trainer_event reports that */
    progress_init(&line, s->set->quiet ? NULL : stdout, s->updates, "images");
    for (bool over = false; !over;) {
        nanosleep(&(struct timespec){.tv_nsec = LOOK_MS * 1000000}, NULL);
        weft_agent_stats(agent, &stats);
        pthread_mutex_lock(&s->lock);
        if (worker_interrupted())
            fail(s, "interrupted");
        over = s->training == 0 || *s->failure;
        progress_show(&line, &s->tally, stats.bytes_sent + stats.bytes_received, over);
        pthread_mutex_unlock(&s->lock);
    }
}

/* Prints the results. Meanwhile the trainers wait in weft_agent_close. */
static int conclude(server *s, weft_agent *agent)
{
    weft_error *error = NULL;
    weft_stats stats;
    weft_agent_stats(agent, &stats);
    summary table = summary_of(s->set, &s->tally, &stats);
    table.lost = s->lost;
    weft_status st = workload_accuracy(s->work, s->model, &table.held_out_accuracy, &error);
    if (!st)
        st = summary_deliver(&table, s->set, s->model, &error);
    if (!st)
        st = weft_agent_close(agent);
    else
        weft_agent_stop(agent);
    return st ? worker_error(st, error) : 0;
}

/*
 * Ends the job early: tells all trainers why, including those that are computing, and leaves. A trainer exits as soon
 * as it is told, without answering. A local trainer that was declared dead may only be stopped (SIGSTOP), so it is
 * killed.
 */
static int dismiss(server *s, weft_agent *agent, const weft_job *job)
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
    if (count &&
        !weft_rpc_multicast(agent, alive, count, "dismiss", WEFT_VALUES(weft_of_string(s->failure)), &how, &told))
        (void)!weft_future_wait(told, WEFT_FOREVER);
    weft_future_unref(told);
    free(alive);
    weft_agent_stop(agent);
    return worker_fail("%s", s->failure);
}

static int run_job(server *s, weft_job *job)
{
    const weft_function functions[] = {
        {.name = "fetch", .gives = {WEFT_TYPE_TENSORS}, .run = fetch, .user = s},
        {.name = "update_and_fetch",
         .takes = {WEFT_TYPE_TENSORS, WEFT_TYPE_F64, WEFT_TYPE_I64, WEFT_TYPE_F64, WEFT_TYPE_F64},
         .gives = {WEFT_TYPE_TENSORS},
         .run = update_and_fetch,
         .user = s},
        {.name = "leave", .takes = {WEFT_TYPE_F64, WEFT_TYPE_I64, WEFT_TYPE_I64}, .run = leave, .user = s},
        {.name = "give_up", .takes = {WEFT_TYPE_STRING}, .run = give_up, .user = s},
    };
    weft_agent *agent;
    weft_error *error = NULL;
    weft_agent_options options = worker_agent_options(&s->set->job);
    options.job = job;
    options.functions = functions;
    options.function_count = sizeof functions / sizeof *functions;
    options.on_membership = on_trainer_event;
    options.membership_arg = s;
    weft_status st = weft_agent_open(&options, &agent, &error);
    worker_watch_children(false, NULL); /* from now on weft reports deaths */
    if (st)
        return worker_error(st, error);
    worker_catch_signals();
    watch(s, agent);
    return *s->failure ? dismiss(s, agent, job) : conclude(s, agent);
}

/* Starts the trainers, if no launcher has, and runs the job. */
static int start_and_run(server *s)
{
    const worker_options *how = &s->set->job;
    weft_job *job = NULL;
    weft_error *error = NULL;
    weft_status st = WEFT_OK;
    worker_watch_children(how->spawn, NULL);
    if (how->spawn)
        st = weft_job_open(&(weft_job_options){.count = (int)s->set->trainers}, &job, &error);
    worker_watch_children(how->spawn, job);
    int code = st ? worker_error(st, error) : run_job(s, job);
    if (weft_job_close(job, code ? 500 : 5000, NULL) && code == 0 && how->on_death == ON_DEATH_STOP)
        code = worker_fail("a trainer exited with an error");
    return worker_interrupted() ? 130 : code;
}

static int serve(const settings *set, workload *work, weft_module *model)
{
    const weft_optimizer_spec how = {.lr = set->lr, .average = true, .sgd.momentum = set->momentum};
    server s = {.set = set,
                .work = work,
                .model = model,
                .updates = workload_iterations(work) * set->trainers / set->batch_update_size,
                .lock = PTHREAD_MUTEX_INITIALIZER,
                .training = (int)set->trainers};
    s.sgd = weft_sgd_create(weft_module_parameters(model), &how, NULL);
    s.gone = calloc((size_t)set->job.world_size, sizeof *s.gone);
    s.waiting = calloc((size_t)set->job.world_size, sizeof(weft_call *));
    int code = s.sgd && s.gone && s.waiting ? start_and_run(&s) : worker_error(WEFT_ERR_MEMORY, NULL);
    free(s.waiting);
    free(s.gone);
    weft_optimizer_unref(s.sgd);
    return code;
}

/* ---- A trainer -------------------------------------------------------------------------------------------------- */

typedef struct trainer {
    const settings *set;
    workload *work;
    weft_module *model;
    staging staging; /* of the model */
    weft_agent *agent;
    double in_call; /* seconds in the last update_and_fetch */
    weft_error *error;
} trainer;

/* Calls the server. If it returns a model, the model lands in `land`, the parameters of this trainer's model. */
static weft_status ask(trainer *me, const char *function, weft_args arguments, weft_tensors land)
{
    weft_rpc_options how = {.land = land, .timeout_ms = WEFT_FOREVER, .error = &me->error};
    weft_status st = weft_rpc_sync(me->agent, weft_to_rank(0), function, arguments, &how, NULL);
    return st || !land.count ? st : staging_load(&me->staging);
}

static weft_status train_step(trainer *me, int64_t iteration)
{
    double began = clock_seconds();
    weft_tape *t = weft_tape_open(
        &(weft_tape_options){.record = true, .seed = workload_seed(me->work, iteration), .device = me->set->device});
    weft_tensor *loss = workload_loss(me->work, t, me->model, iteration, me->set->device);
    weft_tensors gradients;
    weft_backward(t, loss);
    weft_status st = staging_gradients(&me->staging, t, &gradients);
    if (weft_tape_status(t))
        me->error = weft_error_ref(weft_tape_error(t));
    if (!st) {
        double computed = clock_seconds();
        st = ask(me, "update_and_fetch",
                 WEFT_VALUES(weft_of_tensors(gradients), weft_of_f64(weft_tensor_get_f64(loss, 0)),
                             weft_of_i64(me->set->batch_size), weft_of_f64(computed - began), weft_of_f64(me->in_call)),
                 me->staging.parameters);
        me->in_call = clock_seconds() - computed;
    }
    weft_tape_close(t);
    return st;
}

static weft_status train_all(trainer *me)
{
    weft_stats stats;
    weft_status st = ask(me, "fetch", WEFT_NO_VALUES, me->staging.parameters);
    for (int64_t i = 0; i < workload_iterations(me->work) && !st; i++)
        st = train_step(me, i);
    if (st && workload_diverged(me->work)) /* the common model is lost: all must end, whatever --on-death says */
        (void)!weft_rpc_sync(me->agent, weft_to_rank(0), "give_up",
                             WEFT_VALUES(weft_of_string(weft_error_message(me->error))), NULL, NULL);
    if (st)
        return st;
    weft_agent_stats(me->agent, &stats);
    weft_args work_done = WEFT_VALUES(weft_of_f64(me->in_call), weft_of_i64((int64_t)stats.bytes_sent),
                                      weft_of_i64((int64_t)stats.bytes_copied));
    return ask(me, "leave", work_done, (weft_tensors){0});
}

/* The server calls this when it ends the job early. */
static weft_status dismissed(weft_call *call, void *arg)
{
    (void)arg;
    worker_exit("the server ended the job: %s", weft_call_string(call, 0));
}

static void on_event(weft_agent *agent, weft_member_event event, int rank, const char *why, void *arg)
{
    (void)agent, (void)rank, (void)arg;
    if (event == WEFT_MEMBER_SELF_EVICTED)
        worker_exit("this trainer was declared dead, and is out of the job: %s", why);
    if (event == WEFT_MEMBER_STORE_LOST)
        worker_exit("the server is gone: %s", why);
}

static int train(const settings *set, workload *work, weft_module *model)
{
    trainer me = {.set = set, .work = work, .model = model};
    const weft_function dismiss_function = {.name = "dismiss", .takes = {WEFT_TYPE_STRING}, .run = dismissed};
    weft_agent_options options = worker_agent_options(&set->job);
    options.functions = &dismiss_function;
    options.function_count = 1;
    options.on_membership = on_event;
    weft_status st = staging_open(&me.staging, model, set->device);
    if (!st)
        st = weft_agent_open(&options, &me.agent, &me.error);
    if (st) {
        staging_close(&me.staging);
        return worker_error(st, me.error);
    }
    worker_outlive_parent();
    st = train_all(&me);
    if (!st)
        st = weft_agent_close(me.agent);
    else
        weft_agent_stop(me.agent);
    staging_close(&me.staging); /* all calls have ended */
    return st ? worker_error(st, me.error) : 0;
}

int main(int argc, char **argv)
{
    settings set;
    int code = settings_parse(SETTINGS_BATCH, argc, argv, &set);
    if (code >= 0)
        return code;
    worker_begin("batch_parameter_server", "server", "trainer", (int)set.job.rank);
    workload *work = NULL;
    weft_error *error = NULL;
    weft_status st = workload_open(&set, &work, &error);
    weft_module *model = st ? NULL : workload_model(work);
    if (!model)
        code = worker_error(st ? st : WEFT_ERR_MEMORY, error);
    else
        code = set.job.rank == 0 ? serve(&set, work, model) : train(&set, work, model);
    weft_module_unref(model);
    workload_close(work);
    return worker_flush(code);
}
