/* SPDX-License-Identifier: Apache-2.0 */
/*
 * batch_parameter_server.c - one server and N trainers train a model together.
 *
 *   batch_parameter_server --trainers 2                  starts the trainers as processes of this machine
 *   RANK=... WORLD_SIZE=... MASTER_ADDR=... MASTER_PORT=... batch_parameter_server        is one worker; rank 0 serves
 *
 * A trainer sends its gradients with one call, update_and_fetch. The result is the updated model, which lands
 * in the tensors that the trainer computes with. The server adds the gradients and keeps the call open. When
 * the last trainer's call of a round has come, it steps the optimizer and answers all calls: no thread waits.
 *
 * common/workload.h says what is trained; --help lists the options. Running statistics of batch norm are not
 * parameters: each trainer keeps its own, and a saved model has those of the server, which never runs the model
 * in train mode.
 */
#include <weft/weft.h>

#include "common/crew.h"      /* the trainers, as the server sees them */
#include "common/dismissal.h" /* early ends */
#include "common/ending.h"    /* messages, exit codes, signals */
#include "common/settings.h"  /* the command line */
#include "common/workload.h"  /* model, batches, loss, accuracy */

#include <stdlib.h>

/* ---- The server ----------------------------------------------------------------------------------------------- */

typedef struct server {
    crew crew; /* its lock covers everything below, and the model */
    workload *work;
    weft_module *model;
    weft_optimizer *sgd;
    weft_call **waiting; /* by rank: its call, while it has no answer */
    int arrived;         /* calls that wait */
} server;

static void answer_all(server *s, weft_status status, const char *why)
{
    weft_args model = WEFT_VALUES(weft_of_tensors(weft_module_parameters(s->model)));
    for (int rank = 0; rank < s->crew.set->job.world_size; rank++) {
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

static void refuse_all(crew *c)
{
    answer_all((server *)c, WEFT_ERR_CANCELLED, c->failure);
}

/* With --deterministic the calls' gradients were kept until now, so that they are added in the order of the
 * ranks. */
static weft_status update(server *s)
{
    const settings *set = s->crew.set;
    weft_status st = weft_optimizer_set_lr(s->sgd, settings_lr(set, s->crew.tally.updates, s->crew.updates));
    for (int rank = 1; rank < set->job.world_size && set->deterministic && !st; rank++)
        if (s->waiting[rank])
            st = weft_optimizer_accumulate(s->sgd, weft_call_tensors(s->waiting[rank], 0));
    return st ? st : weft_optimizer_step(s->sgd);
}

static void update_if_complete(server *s)
{
    int64_t size = s->crew.set->batch_update_size;
    int wanted = size < s->crew.training ? (int)size : s->crew.training;
    if (s->arrived == 0 || s->arrived < wanted)
        return;
    weft_status st = update(s);
    if (st) {
        crew_fail(&s->crew, "the model cannot be updated: %s", weft_status_text(st));
        return;
    }
    tally_update(&s->crew.tally);
    answer_all(s, WEFT_OK, NULL);
}

/* Perhaps its gradients were the last ones missing. */
static void go_on_without(crew *c, int rank)
{
    server *s = (server *)c;
    weft_call *call = s->waiting[rank];
    if (call) {
        s->waiting[rank] = NULL;
        s->arrived--;
        weft_call_finish(call, WEFT_ERR_PEER_DEAD);
    }
    update_if_complete(s);
}

/* Gradients, and for the tally: the loss, images, seconds of computing, seconds in the call before. */
static weft_status update_and_fetch(weft_call *call, void *arg)
{
    server *s = arg;
    crew *c = &s->crew;
    int rank = weft_call_from(call);
    weft_tensors gradients = weft_call_tensors(call, 0);
    weft_error *unfit = NULL;
    pthread_mutex_lock(&c->lock);
    weft_status st = weft_optimizer_check(s->sgd, gradients, &unfit);
    if (st)
        weft_call_fail(call, st, "%s", weft_error_message(unfit));
    else if (*c->failure || c->gone[rank] || s->waiting[rank])
        weft_call_fail(call, st = WEFT_ERR_STATE, "%s", *c->failure ? c->failure : "this trainer takes no part now");
    else if (!c->set->deterministic)
        st = weft_optimizer_accumulate(s->sgd, gradients);
    if (!st) {
        tally_gradient(&c->tally, weft_call_f64(call, 1), weft_call_i64(call, 2), weft_call_f64(call, 3),
                       weft_call_f64(call, 4));
        s->waiting[rank] = c->set->deterministic ? weft_call_defer_keeping(call) : weft_call_defer(call);
        s->arrived++;
        update_if_complete(s);
    }
    pthread_mutex_unlock(&c->lock);
    weft_error_unref(unfit);
    return st ? st : WEFT_DEFERRED;
}

static weft_status fetch(weft_call *call, void *arg)
{
    server *s = arg;
    pthread_mutex_lock(&s->crew.lock);
    tally_begin(&s->crew.tally);
    weft_call_give(call, WEFT_VALUES(weft_of_tensors(weft_module_parameters(s->model))));
    pthread_mutex_unlock(&s->crew.lock);
    return WEFT_OK;
}

/* A trainer has done its work: seconds in its last call, bytes that it sent, bytes that weft copied for it. */
static weft_status leave(weft_call *call, void *arg)
{
    server *s = arg;
    pthread_mutex_lock(&s->crew.lock);
    s->crew.tally.in_calls += weft_call_f64(call, 0);
    crew_leave(&s->crew, weft_call_from(call), weft_call_i64(call, 1), weft_call_i64(call, 2));
    pthread_mutex_unlock(&s->crew.lock);
    return WEFT_OK;
}

static weft_status accuracy(crew *c, double *out, weft_error **error)
{
    server *s = (server *)c;
    return workload_accuracy(s->work, s->model, out, error);
}

static int serve(const settings *set, workload *work, weft_module *model)
{
    const weft_sgd_options how = {.lr = set->lr, .momentum = set->momentum, .average = true};
    server s = {.work = work, .model = model};
    const weft_function functions[] = {
        {.name = "fetch", .gives = {WEFT_TYPE_TENSORS}, .run = fetch, .user = &s},
        {.name = "update_and_fetch",
         .takes = {WEFT_TYPE_TENSORS, WEFT_TYPE_F64, WEFT_TYPE_I64, WEFT_TYPE_F64, WEFT_TYPE_F64},
         .gives = {WEFT_TYPE_TENSORS},
         .run = update_and_fetch,
         .user = &s},
        {.name = "leave", .takes = {WEFT_TYPE_F64, WEFT_TYPE_I64, WEFT_TYPE_I64}, .run = leave, .user = &s},
        {.name = "give_up", .takes = {WEFT_TYPE_STRING}, .run = crew_give_up, .user = &s.crew},
    };
    weft_status st = crew_init(&s.crew, set, workload_iterations(work) * set->trainers / set->batch_update_size);
    s.crew.on_gone = go_on_without;
    s.crew.on_failure = refuse_all;
    s.sgd = weft_sgd_create(weft_module_parameters(model), &how);
    s.waiting = calloc((size_t)set->job.world_size, sizeof *s.waiting);
    int code = !st && s.sgd && s.waiting
                   ? crew_serve(&s.crew, functions, sizeof functions / sizeof *functions, model, accuracy)
                   : ending_error(WEFT_ERR_MEMORY, NULL);
    free(s.waiting);
    weft_optimizer_unref(s.sgd);
    crew_fini(&s.crew);
    return code;
}

/* ---- A trainer ------------------------------------------------------------------------------------------------ */

typedef struct trainer {
    const settings *set;
    workload *work;
    weft_module *model;
    weft_agent *agent;
    double in_call; /* seconds in the last update_and_fetch */
    weft_error *error;
} trainer;

/* Calls the server. If it returns a model, that lands in the parameters of this trainer's model. */
static weft_status ask(trainer *me, const char *function, weft_args arguments, weft_tensors land)
{
    weft_rpc_options how = {.land = land, .timeout_ms = WEFT_FOREVER, .error = &me->error};
    return weft_rpc_sync(me->agent, weft_to_rank(0), function, arguments, &how, NULL);
}

static weft_status train_step(trainer *me, int64_t iteration)
{
    weft_tensors parameters = weft_module_parameters(me->model);
    double began = clock_seconds();
    weft_tape *t = weft_tape_open(&(weft_tape_options){.record = true, .seed = workload_seed(me->work, iteration)});
    weft_tensor *loss = workload_loss(me->work, t, me->model, iteration);
    weft_backward(t, loss);
    weft_tensors gradients = weft_tape_grads(t, parameters);
    weft_status st = weft_tape_status(t);
    if (st) {
        me->error = weft_error_ref(weft_tape_error(t));
    } else {
        double computed = clock_seconds();
        st = ask(me, "update_and_fetch",
                 WEFT_VALUES(weft_of_tensors(gradients), weft_of_f64(weft_tensor_get_f64(loss, 0)),
                             weft_of_i64(me->set->batch_size), weft_of_f64(computed - began), weft_of_f64(me->in_call)),
                 parameters);
        me->in_call = clock_seconds() - computed;
    }
    weft_tape_close(t);
    return st;
}

/* Losses are not numbers any more, and others train the same model: all are to hear of it, whatever --on-death says. */
static void give_up(trainer *me)
{
    (void)!weft_rpc_sync(me->agent, weft_to_rank(0), "give_up",
                         WEFT_VALUES(weft_of_string(weft_error_message(me->error))), NULL, NULL);
}

static weft_status train_all(trainer *me)
{
    weft_stats stats;
    weft_status st = ask(me, "fetch", WEFT_NO_VALUES, weft_module_parameters(me->model));
    for (int64_t i = 0; i < workload_iterations(me->work) && !st; i++)
        st = train_step(me, i);
    if (st && workload_diverged(me->work))
        give_up(me);
    if (st)
        return st;
    weft_agent_stats(me->agent, &stats);
    weft_args work_done = WEFT_VALUES(weft_of_f64(me->in_call), weft_of_i64((int64_t)stats.bytes_sent),
                                      weft_of_i64((int64_t)stats.bytes_copied));
    return ask(me, "leave", work_done, (weft_tensors){0});
}

static int train(const settings *set, workload *work, weft_module *model)
{
    trainer me = {.set = set, .work = work, .model = model};
    weft_agent_options options = launch_agent(&set->job);
    options.functions = &dismissal_function;
    options.function_count = 1;
    options.on_membership = dismissal_on_news;
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
    int code = settings_parse(SETTINGS_BATCH, argc, argv, &set);
    if (code >= 0)
        return code;
    ending_begin("batch_parameter_server", "server", "trainer", (int)set.job.rank);
    workload *work = NULL;
    weft_error *error = NULL;
    weft_status st = workload_open(&set, &work, &error);
    weft_module *model = st ? NULL : workload_model(work);
    if (!model)
        code = ending_error(st ? st : WEFT_ERR_MEMORY, error);
    else
        code = set.job.rank == 0 ? serve(&set, work, model) : train(&set, work, model);
    weft_module_unref(model);
    workload_close(work);
    return ending_flush(code);
}
