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
 * iteration takes four messages; neither parameters nor their gradients are sent. At the end each trainer measures the
 * accuracy of the model on held-out images, in eval mode.
 *
 * With --device cuda:N or auto the server runs the model on a GPU, where its parameters, gradients and optimizers are.
 * Calls carry CPU tensors, so weft_on_device_create copies inputs and results.
 *
 * After PyTorch's tutorial "Implementing a Parameter Server using Distributed RPC Framework". --help lists the options.
 */
#include <weft/weft.h>

#include "common/worker.h"             /* messages, exit codes, signals */
#include "parameter_server/settings.h" /* the command line */
#include "parameter_server/summary.h"  /* the final table */
#include "parameter_server/workload.h" /* model, batches, loss, accuracy */

#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <time.h>

#define LOOK_MS 50          /* between two checks for signals and for the end of training */
#define DISMISS_MS 300      /* timeout of the call that tells the trainers that the job ends early */
#define REPORT_SECONDS 0.25 /* between two reports of a trainer */

/* ---- The server: trainers --------------------------------------------------------------------------------------- */

typedef struct server {
    const settings *set;
    weft_module *model; /* as trainers call it */
    weft_module *plain; /* the same without the copies between devices: what is saved */
    int64_t updates;    /* expected in total */

    pthread_mutex_t lock; /* protects the fields below */
    bool *gone;           /* by rank: this trainer has finished or died */
    int training;         /* trainers that are not gone */
    int lost;             /* trainers that died or left early */
    int finished;         /* trainers that finished their work */
    tally tally;
    double accuracy;   /* measured by the last trainer, 0 to 1; < 0: not measured */
    char missing[256]; /* why the accuracy of the final model was not measured; "" if it was */
    char failure[256]; /* why the job ends early; "" if it does not */
} server;

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
}

static void on_trainer_event(weft_agent *agent, weft_member_event event, int rank, const char *why, void *arg)
{
    server *s = arg;
    bool died = event == WEFT_MEMBER_DEAD;
    (void)agent;
    pthread_mutex_lock(&s->lock);
    if ((died || event == WEFT_MEMBER_LEFT) && !s->gone[rank] && !*s->failure) {
        const char *what = died ? "is dead" : "left before its work was done";
        if (s->set->job.on_death == ON_DEATH_STOP)
            fail(s, "trainer %d %s: %s", rank, what, why);
        else
            worker_note("trainer %d %s: %s; going on with %d", rank, what, why, s->training - 1);
        /* The final model has steps of this trainer that no other trainer's measurement included. */
        s->accuracy = -1;
        snprintf(s->missing, sizeof s->missing, "not measured: trainer %d %s before it had", rank,
                 died ? "died" : "left");
        s->gone[rank] = true;
        s->training--;
        s->lost++;
        if (s->training == 0 && s->finished == 0)
            fail(s, "no trainer is left");
    }
    pthread_mutex_unlock(&s->lock);
}

/* ---- The server: functions that trainers call ------------------------------------------------------------------- */

static weft_status give_model(weft_call *call, void *arg)
{
    server *s = arg;
    weft_rref *handle;
    weft_status st = weft_module_to_rref(weft_call_agent(call), s->model, &handle);
    if (st)
        return st;
    weft_call_give(call, WEFT_VALUES(weft_of_rref(handle)));
    weft_rref_unref(handle);
    pthread_mutex_lock(&s->lock);
    tally_begin(&s->tally);
    pthread_mutex_unlock(&s->lock);
    return WEFT_OK;
}

/* A trainer's steps since its last report: how many, their mean loss, images, seconds of computing and in calls. */
static weft_status report_steps(weft_call *call, void *arg)
{
    server *s = arg;
    pthread_mutex_lock(&s->lock);
    tally_steps(&s->tally, weft_call_i64(call, 0), weft_call_f64(call, 1), weft_call_i64(call, 2),
                weft_call_f64(call, 3), weft_call_f64(call, 4));
    pthread_mutex_unlock(&s->lock);
    return WEFT_OK;
}

/* A trainer has done its work. Arguments: the accuracy that it measured, bytes that it sent, bytes that weft copied. */
static weft_status leave(weft_call *call, void *arg)
{
    server *s = arg;
    int rank = weft_call_from(call);
    pthread_mutex_lock(&s->lock);
    s->accuracy = weft_call_f64(call, 0);
    *s->missing = '\0';
    s->tally.bytes_sent += (uint64_t)weft_call_i64(call, 1);
    s->tally.bytes_copied += (uint64_t)weft_call_i64(call, 2);
    s->finished++;
    s->training -= !s->gone[rank];
    s->gone[rank] = true;
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
    table.held_out_accuracy = s->accuracy;
    table.accuracy_missing = s->missing;
    weft_status st = summary_deliver(&table, s->set, s->plain, &error);
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
        {.name = "model", .gives = {WEFT_TYPE_RREF}, .run = give_model, .user = s},
        {.name = "report_steps",
         .takes = {WEFT_TYPE_I64, WEFT_TYPE_F64, WEFT_TYPE_I64, WEFT_TYPE_F64, WEFT_TYPE_F64},
         .run = report_steps,
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

static int serve(const settings *set, workload *work)
{
    server s = {.set = set,
                .plain = workload_model(work),
                .updates = workload_iterations(work) * set->trainers,
                .lock = PTHREAD_MUTEX_INITIALIZER,
                .training = (int)set->trainers,
                .accuracy = -1};
    weft_error *error = NULL;
    s.gone = calloc((size_t)set->job.world_size, sizeof *s.gone);
    if (s.plain)
        s.model = set->device.kind == WEFT_DEVICE_CPU
                      ? weft_module_ref(s.plain)
                      : weft_on_device_create(weft_module_ref(s.plain), set->device, &error);
    int code = s.model && s.gone ? start_and_run(&s) : worker_error(WEFT_ERR_MEMORY, error);
    free(s.gone);
    weft_module_unref(s.model);
    weft_module_unref(s.plain);
    return code;
}

/* ---- A trainer -------------------------------------------------------------------------------------------------- */

/* Steps that this trainer has not reported yet. */
typedef struct unreported {
    int64_t steps;
    double losses, computing, in_calls; /* sums */
    double since;                       /* clock_seconds of the last report */
} unreported;

typedef struct trainer {
    const settings *set;
    workload *work;
    weft_agent *agent;
    weft_remote_module *remote;
    weft_module *model; /* a local module whose forward calls the remote one */
    weft_dist_optimizer *sgd;
    unreported news;
    uint64_t seed; /* of dropout, in this iteration */
    weft_error *error;
} trainer;

/* Runs the model on the server, in the mode (train or eval) of the local module. */
static weft_tensor *forward_there(weft_tape *t, weft_module *self, weft_tensor *x)
{
    trainer *me = weft_module_state(self);
    const weft_forward_options how = {
        .mode = weft_module_is_training(self) ? WEFT_MODE_TRAIN : WEFT_MODE_EVAL, .has_seed = true, .seed = me->seed};
    double began = clock_seconds();
    weft_tensor *y = weft_remote_forward(t, me->remote, WEFT_VALUES(weft_of_tensor(x)), &how);
    me->news.in_calls += clock_seconds() - began;
    return y;
}

static const weft_module_type remote_type = {.name = "Remote", .forward = forward_there};

static weft_status ask(trainer *me, const char *function, weft_args arguments, weft_values **out)
{
    weft_rpc_options how = {.error = &me->error};
    return weft_rpc_sync(me->agent, weft_to_rank(0), function, arguments, &how, out);
}

/* Gets a handle to the server's model, and creates this trainer's optimizer over its parameters. */
static weft_status find_model(trainer *me)
{
    weft_values *results = NULL, *list = NULL;
    weft_rref *handle;
    weft_status st = ask(me, "model", WEFT_NO_VALUES, &results);
    if (!st)
        st = weft_values_get_rref(results, 0, &handle);
    if (!st)
        st = weft_remote_module_from_rref(handle, &me->remote);
    if (!st)
        st = weft_remote_parameters(me->remote, &list);
    size_t count = st ? 0 : weft_values_count(list);
    weft_rref **parameters = calloc(count + 1, sizeof(weft_rref *));
    if (!parameters)
        st = WEFT_ERR_MEMORY;
    for (size_t i = 0; i < count && !st; i++)
        st = weft_values_get_rref(list, i, &parameters[i]);
    const weft_optimizer_spec spec = {.type = &weft_sgd_type, .lr = me->set->lr, .sgd.momentum = me->set->momentum};
    if (!st)
        st = weft_dist_optimizer_create(me->agent, parameters, count, &spec, &me->sgd, &me->error);
    free(parameters);
    weft_values_unref(list);
    weft_values_unref(results);
    me->model = weft_module_create(&remote_type, me, NULL);
    return st || me->model ? st : WEFT_ERR_MEMORY;
}

/* Reports to the server, without waiting for an answer. */
static weft_status report(trainer *me)
{
    unreported *n = &me->news;
    if (!n->steps)
        return WEFT_OK;
    weft_status st = weft_rpc_async(me->agent, weft_to_rank(0), "report_steps",
                                    WEFT_VALUES(weft_of_i64(n->steps), weft_of_f64(n->losses / (double)n->steps),
                                                weft_of_i64(n->steps * me->set->batch_size), weft_of_f64(n->computing),
                                                weft_of_f64(n->in_calls)),
                                    &(weft_rpc_options){.error = &me->error}, NULL);
    *n = (unreported){.since = clock_seconds()};
    return st;
}

static weft_status train_step(trainer *me, int64_t iteration)
{
    weft_context *context;
    weft_status st = weft_context_open(me->agent, &context);
    if (st)
        return st;
    double began = clock_seconds(), in_calls = me->news.in_calls;
    me->seed = workload_seed(me->work, iteration);
    weft_tape *t = weft_context_tape(context, NULL);
    weft_tensor *loss = workload_loss(me->work, t, me->model, iteration, (weft_device){0});
    double back = clock_seconds();
    weft_dist_backward(t, loss, &(weft_pass_options){.step = me->sgd});
    double over = clock_seconds();
    st = weft_tape_status(t);
    if (st) {
        me->error = weft_error_ref(weft_tape_error(t));
    } else {
        me->news.steps++;
        me->news.losses += weft_tensor_get_f64(loss, 0);
        me->news.in_calls += over - back;
        me->news.computing += over - began - (me->news.in_calls - in_calls);
    }
    weft_tape_close(t);
    weft_context_close(context, NULL);
    return st;
}

static weft_status train_all(trainer *me)
{
    double accuracy = -1;
    weft_stats stats;
    weft_status st = find_model(me);
    for (int64_t i = 0; i < workload_iterations(me->work) && !st; i++) {
        st = train_step(me, i);
        if (!st && clock_seconds() - me->news.since >= REPORT_SECONDS)
            st = report(me);
    }
    if (!st)
        st = report(me);
    if (!st)
        st = workload_accuracy(me->work, me->model, &accuracy, &me->error);
    weft_agent_stats(me->agent, &stats);
    if (!st)
        st = ask(me, "leave",
                 WEFT_VALUES(weft_of_f64(accuracy), weft_of_i64((int64_t)stats.bytes_sent),
                             weft_of_i64((int64_t)stats.bytes_copied)),
                 NULL);
    else if (workload_diverged(me->work)) /* the common model is lost: all must end, regardless of --on-death */
        (void)!weft_rpc_sync(me->agent, weft_to_rank(0), "give_up",
                             WEFT_VALUES(weft_of_string(weft_error_message(me->error))), NULL, NULL);
    weft_dist_optimizer_unref(me->sgd);
    weft_module_unref(me->model);
    weft_remote_module_unref(me->remote);
    return st;
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

static int train(const settings *set, workload *work)
{
    trainer me = {.set = set, .work = work};
    const weft_function dismiss_function = {.name = "dismiss", .takes = {WEFT_TYPE_STRING}, .run = dismissed};
    weft_agent_options options = worker_agent_options(&set->job);
    options.functions = &dismiss_function;
    options.function_count = 1;
    options.on_membership = on_event;
    options.call_timeout_ms = WEFT_FOREVER; /* a slow server is not a failure; its death ends the calls */
    weft_status st = weft_agent_open(&options, &me.agent, &me.error);
    if (st)
        return worker_error(st, me.error);
    worker_outlive_parent();
    st = train_all(&me);
    if (!st)
        st = weft_agent_close(me.agent);
    else
        weft_agent_stop(me.agent);
    return st ? worker_error(st, me.error) : 0;
}

int main(int argc, char **argv)
{
    settings set;
    int code = settings_parse(SETTINGS_RPC, argc, argv, &set);
    if (code >= 0)
        return code;
    worker_begin("rpc_parameter_server", "server", "trainer", (int)set.job.rank);
    workload *work = NULL;
    weft_error *error = NULL;
    weft_status st = workload_open(&set, &work, &error);
    if (st)
        code = worker_error(st, error);
    else
        code = set.job.rank == 0 ? serve(&set, work) : train(&set, work);
    workload_close(work);
    return worker_flush(code);
}
