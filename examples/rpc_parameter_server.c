/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rpc_parameter_server.c - a model that lives on one server, trained by N trainers, each when it likes.
 *
 *   rpc_parameter_server --trainers 3                  starts the trainers as processes of this machine
 *   RANK=... WORLD_SIZE=... MASTER_ADDR=... MASTER_PORT=... rpc_parameter_server        is one worker; rank 0 serves
 *
 * A trainer has the data and the loss, the server has PyTorch's MNIST ConvNet. In each iteration the trainer runs the model there, by
 * weft_remote_forward under a distributed context, and one backward pass goes from its loss through the model; the pass takes the
 * trainer's optimizer along, so that the parameters are stepped where they are. Four messages go to and fro, and no parameter or gradient of
 * one. Nobody waits for another trainer: steps are made beside what others' passes still read. At the end each trainer
 * measures the accuracy of the model on what was held out, in eval mode.
 *
 * After PyTorch's tutorial "Implementing a Parameter Server using Distributed RPC Framework". --help lists the options.
 */
#include <weft/weft.h>

#include "common/crew.h"      /* the trainers, as the server sees them */
#include "common/dismissal.h" /* early ends */
#include "common/ending.h"    /* messages, exit codes, signals */
#include "common/settings.h"  /* the command line */
#include "common/workload.h"  /* model, batches, loss, accuracy */

#include <stdlib.h>

#define TELL_SECONDS 0.25 /* between news to the server */

/* ---- The server ----------------------------------------------------------------------------------------------- */

typedef struct server {
    crew crew;
    weft_module *model;
} server;

static weft_status give_model(weft_call *call, void *arg)
{
    server *s = arg;
    weft_rref *handle;
    weft_status st = weft_module_to_rref(weft_call_agent(call), s->model, &handle);
    if (st)
        return st;
    weft_call_give(call, WEFT_VALUES(weft_of_rref(handle)));
    weft_rref_unref(handle);
    pthread_mutex_lock(&s->crew.lock);
    tally_begin(&s->crew.tally);
    pthread_mutex_unlock(&s->crew.lock);
    return WEFT_OK;
}

/* Steps made since a trainer told before: how many, their mean loss, images, seconds of computing and in calls. */
static weft_status hear(weft_call *call, void *arg)
{
    server *s = arg;
    pthread_mutex_lock(&s->crew.lock);
    tally_steps(&s->crew.tally, weft_call_i64(call, 0), weft_call_f64(call, 1), weft_call_i64(call, 2),
                weft_call_f64(call, 3), weft_call_f64(call, 4));
    pthread_mutex_unlock(&s->crew.lock);
    return WEFT_OK;
}

/* A trainer has done its work: the accuracy that it measured, bytes that it sent, bytes that weft copied for it. */
static weft_status leave(weft_call *call, void *arg)
{
    server *s = arg;
    pthread_mutex_lock(&s->crew.lock);
    crew_measured(&s->crew, weft_call_f64(call, 0));
    crew_leave(&s->crew, weft_call_from(call), weft_call_i64(call, 1), weft_call_i64(call, 2));
    pthread_mutex_unlock(&s->crew.lock);
    return WEFT_OK;
}

static int serve(const settings *set, workload *work)
{
    server s = {.model = workload_model(work)};
    const weft_function functions[] = {
        {.name = "model", .gives = {WEFT_TYPE_RREF}, .run = give_model, .user = &s},
        {.name = "hear",
         .takes = {WEFT_TYPE_I64, WEFT_TYPE_F64, WEFT_TYPE_I64, WEFT_TYPE_F64, WEFT_TYPE_F64},
         .run = hear,
         .user = &s},
        {.name = "leave", .takes = {WEFT_TYPE_F64, WEFT_TYPE_I64, WEFT_TYPE_I64}, .run = leave, .user = &s},
        {.name = "give_up", .takes = {WEFT_TYPE_STRING}, .run = crew_give_up, .user = &s.crew},
    };
    weft_status st = crew_init(&s.crew, set, workload_iterations(work) * set->trainers);
    int code = !st && s.model ? crew_serve(&s.crew, functions, sizeof functions / sizeof *functions, s.model, NULL)
                              : ending_error(WEFT_ERR_MEMORY, NULL);
    weft_module_unref(s.model);
    crew_fini(&s.crew);
    return code;
}

/* ---- A trainer ------------------------------------------------------------------------------------------------ */

/* What the server has not heard of yet. */
typedef struct news {
    int64_t steps;
    double losses, computing, in_calls;
    double told; /* when */
} news;

typedef struct trainer {
    const settings *set;
    workload *work;
    weft_agent *agent;
    weft_remote_module *remote;
    weft_module *model; /* stands for it here: its forward is the remote one's */
    weft_dist_optimizer *sgd;
    news news;
    uint64_t seed; /* of dropout, in this iteration */
    weft_error *error;
} trainer;

/* In this module's mode, train or eval, which so holds on the server. */
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

/* Losses are not numbers any more, and others train the same model: all are to hear of it, whatever --on-death says. */
static void give_up(trainer *me)
{
    (void)!weft_rpc_sync(me->agent, weft_to_rank(0), "give_up",
                         WEFT_VALUES(weft_of_string(weft_error_message(me->error))), NULL, NULL);
}

/* Finds the server's model, and makes an optimizer of this trainer's over it. */
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
    const weft_optimizer_spec spec = {.kind = WEFT_OPTIMIZER_SGD,
                                      .sgd = {.lr = me->set->lr, .momentum = me->set->momentum}};
    if (!st)
        st = weft_dist_optimizer_create(me->agent, parameters, count, &spec, &me->sgd, &me->error);
    free(parameters);
    weft_values_unref(list);
    weft_values_unref(results);
    me->model = weft_module_create(&remote_type, me, NULL);
    return st || me->model ? st : WEFT_ERR_MEMORY;
}

/* Tells the server how it goes. The answer is not waited for. */
static weft_status tell(trainer *me)
{
    news *n = &me->news;
    if (!n->steps)
        return WEFT_OK;
    weft_status st = weft_rpc_async(me->agent, weft_to_rank(0), "hear",
                                    WEFT_VALUES(weft_of_i64(n->steps), weft_of_f64(n->losses / (double)n->steps),
                                                weft_of_i64(n->steps * me->set->batch_size), weft_of_f64(n->computing),
                                                weft_of_f64(n->in_calls)),
                                    &(weft_rpc_options){.error = &me->error}, NULL);
    *n = (news){.told = clock_seconds()};
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
    weft_tensor *loss = workload_loss(me->work, t, me->model, iteration);
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
        if (!st && clock_seconds() - me->news.told >= TELL_SECONDS)
            st = tell(me);
    }
    if (!st)
        st = tell(me);
    if (!st)
        st = workload_accuracy(me->work, me->model, &accuracy, &me->error);
    weft_agent_stats(me->agent, &stats);
    if (!st)
        st = ask(me, "leave",
                 WEFT_VALUES(weft_of_f64(accuracy), weft_of_i64((int64_t)stats.bytes_sent),
                             weft_of_i64((int64_t)stats.bytes_copied)),
                 NULL);
    else if (workload_diverged(me->work))
        give_up(me);
    weft_dist_optimizer_unref(me->sgd);
    weft_module_unref(me->model);
    weft_remote_module_unref(me->remote);
    return st;
}

static int train(const settings *set, workload *work)
{
    trainer me = {.set = set, .work = work};
    weft_agent_options options = launch_agent(&set->job);
    options.functions = &dismissal_function;
    options.function_count = 1;
    options.on_membership = dismissal_on_news;
    options.call_timeout_ms = WEFT_FOREVER; /* a busy server is slow, and nothing more: deaths end calls all the same */
    weft_status st = weft_agent_open(&options, &me.agent, &me.error);
    if (st)
        return ending_error(st, me.error);
    ending_outlive_parent();
    st = train_all(&me);
    if (!st)
        st = weft_agent_close(me.agent);
    else
        weft_agent_stop(me.agent);
    return st ? ending_error(st, me.error) : 0;
}

int main(int argc, char **argv)
{
    settings set;
    int code = settings_parse(SETTINGS_RPC, argc, argv, &set);
    if (code >= 0)
        return code;
    ending_begin("rpc_parameter_server", "server", "trainer", (int)set.job.rank);
    workload *work = NULL;
    weft_error *error = NULL;
    weft_status st = workload_open(&set, &work, &error);
    if (st)
        code = ending_error(st, error);
    else
        code = set.job.rank == 0 ? serve(&set, work) : train(&set, work);
    workload_close(work);
    return ending_flush(code);
}
