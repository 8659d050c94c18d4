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
 * a barrier follows each step, and the losses are those of one process (--check).
 *
 * After PyTorch's tutorial "Combining Distributed DataParallel with Distributed RPC Framework". --help lists the
 * options.
 */
#include <weft/weft.h>

#include "common/worker.h"                  /* messages, exit codes, signals */
#include "ddp_rpc_hybrid/hybrid.h"          /* the model, in one process */
#include "ddp_rpc_hybrid/hybrid_settings.h" /* the command line; the ranks of server and trainers */
#include "common/report.h"                  /* the report */

#include <math.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#define LARGEST_DIFFERENCE 1e-5 /* relative difference of a loss from that of one process */
#define DISMISS_MS 300          /* timeout of the call that tells the other workers that the job ends early */
#define LOOK_MS 50              /* between two checks for signals and events */

/* Waits for all workers. Then the server has registered its module. */
static weft_status meet(weft_agent *agent)
{
    weft_group *all;
    weft_status st = weft_group_open(agent, "all", NULL, 0, &all, NULL);
    if (st)
        return st;
    st = weft_group_barrier(all, WEFT_FOREVER);
    weft_group_close(all);
    return st;
}

/* ---- A trainer -------------------------------------------------------------------------------------------------- */

typedef struct trainer {
    const hybrid_settings *set;
    int64_t index; /* among the trainers */
    weft_agent *agent;
    weft_remote_module *embedding;
    weft_module *dense;
    weft_group *gradients, *steps; /* the members are the trainers */
    weft_data_parallel *parallel;
    weft_dist_optimizer *sgd;
    double *losses; /* [epochs]: mean loss of each */
    tally tally, told;
    weft_error *error;
} trainer;

/* Makes the dense part a replica of trainer 0's. Backward passes then average its gradients over the trainers. */
static weft_status replicate(trainer *me)
{
    int ranks[HYBRID_MOST_TRAINERS];
    for (int i = 0; i < me->set->trainers; i++)
        ranks[i] = HYBRID_FIRST_TRAINER + i;
    size_t count = (size_t)me->set->trainers;
    weft_status st = weft_group_open(me->agent, "gradients", ranks, count, &me->gradients, NULL);
    if (!st)
        st = weft_group_open(me->agent, "steps", ranks, count, &me->steps, NULL);
    if (!st)
        st = weft_data_parallel_create(me->gradients, me->dense, NULL, &me->parallel, &me->error);
    return st;
}

/* Creates an optimizer over the embedding on the server and the dense part here. */
static weft_status make_optimizer(trainer *me)
{
    weft_values *remote = NULL;
    weft_rref *both[2] = {NULL};
    weft_status st = weft_remote_parameters(me->embedding, &remote);
    if (!st)
        st = weft_values_get_rref(remote, 0, &both[0]);
    if (!st)
        st = weft_rref_create(me->agent, weft_of_tensors(weft_module_parameters(me->dense)), &both[1]);
    const weft_optimizer_spec spec = {.type = &weft_sgd_type, .lr = me->set->lr};
    if (!st)
        st = weft_dist_optimizer_create(me->agent, both, 2, &spec, &me->sgd, &me->error);
    weft_rref_unref(both[1]);
    weft_values_unref(remote);
    return st;
}

static weft_tensor *loss_of(trainer *me, weft_tape *t, int64_t number)
{
    const hybrid_settings *s = me->set;
    hybrid_batch batch = hybrid_draw(t, (uint64_t)s->seed, me->index, number);
    weft_args in = WEFT_VALUES(weft_of_tensor(batch.index), weft_of_tensor(batch.offsets));
    double began = clock_seconds();
    weft_tensor *x = weft_remote_forward(t, me->embedding, in, NULL);
    me->tally.in_calls += clock_seconds() - began;
    me->tally.images += batch.bags;
    weft_tensor *loss = weft_cross_entropy(t, weft_module_forward(t, me->dense, x), batch.target);
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
    weft_status st = weft_dist_optimizer_step(me->sgd, &context, 1, &(weft_dist_step_options){.error = &me->error});
    return st ? st : weft_group_barrier(me->steps, WEFT_FOREVER);
}

static weft_status train_step(trainer *me, int64_t number)
{
    weft_context *context;
    weft_status st = weft_context_open(me->agent, &context);
    if (st)
        return st;
    double began = clock_seconds(), in_calls = me->tally.in_calls;
    weft_tape *t = weft_context_tape(context, NULL);
    weft_context_set_hooks(context, weft_data_parallel_hooks(me->parallel));
    weft_tensor *loss = loss_of(me, t, number);
    double back = clock_seconds();
    me->tally.computing += back - began - (me->tally.in_calls - in_calls);
    if (!weft_tape_status(t)) /* if the loss failed, give_up ends the groups */
        weft_dist_backward(t, loss, &(weft_pass_options){.step = me->set->synchronous ? NULL : me->sgd});
    st = weft_tape_status(t);
    if (st)
        me->error = weft_error_ref(weft_tape_error(t));
    else if (me->set->synchronous)
        st = step_together(me, context);
    me->tally.in_calls += clock_seconds() - back;
    if (!st)
        me->losses[number / me->set->batches] += weft_tensor_get_f64(loss, 0) / (double)me->set->batches;
    weft_tape_close(t);
    weft_context_close(context, NULL);
    return st;
}

/* Reports an epoch to the master. Only the last report waits for its answer: then the master has received all. */
static weft_status report_epoch(trainer *me, int64_t epoch)
{
    const tally *t = &me->tally, *before = &me->told;
    weft_future *heard = NULL;
    weft_status st = weft_rpc_async(
        me->agent, weft_to_rank(0), "report_epoch",
        WEFT_VALUES(weft_of_i64(me->set->batches), weft_of_f64(me->losses[epoch]),
                    weft_of_i64(t->images - before->images), weft_of_f64(t->computing - before->computing),
                    weft_of_f64(t->in_calls - before->in_calls)),
        &(weft_rpc_options){.error = &me->error}, epoch + 1 == me->set->epochs ? &heard : NULL);
    me->told = me->tally;
    if (heard)
        st = weft_future_wait(heard, WEFT_FOREVER);
    weft_future_unref(heard);
    return st;
}

static weft_status train_all(trainer *me)
{
    const hybrid_settings *s = me->set;
    me->losses = calloc((size_t)s->epochs, sizeof *me->losses);
    me->dense = hybrid_dense((uint64_t)s->seed, me->index);
    weft_status st = me->losses && me->dense ? replicate(me) : WEFT_ERR_MEMORY;
    if (!st)
        st = make_optimizer(me);
    tally_begin(&me->tally);
    for (int64_t i = 0; i < s->epochs * s->batches && !st; i++) {
        st = train_step(me, i);
        me->tally.ended = clock_seconds();
        if (!st && (i + 1) % s->batches == 0)
            st = report_epoch(me, i / s->batches);
    }
    return st;
}

/* Gives the master the losses, the seconds, and the parameters of the dense part. */
static void give_results(trainer *me, weft_call *call)
{
    weft_tensor *losses = weft_tensor_copy_of(WEFT_SHAPE(me->set->epochs), WEFT_DTYPE_FLOAT64, me->losses);
    weft_call_give(call, WEFT_VALUES(weft_of_tensor(losses), weft_of_f64(tally_seconds(&me->tally)),
                                     weft_of_tensors(weft_module_parameters(me->dense))));
    weft_tensor_unref(losses);
}

/* Reports a failure to the master, and only then ends the groups, so that the master learns this reason first. */
static weft_status give_up(trainer *me, weft_call *call, weft_status st)
{
    const weft_error *error = me->error                         ? me->error
                              : weft_group_error(me->gradients) ? weft_group_error(me->gradients)
                                                                : weft_group_error(me->steps);
    hybrid_reason why = hybrid_reason_of(me->agent, error ? weft_error_message(error) : weft_status_text(st));
    (void)!weft_rpc_sync(me->agent, weft_to_rank(0), "give_up", WEFT_VALUES(weft_of_string(why.text)), NULL, NULL);
    weft_group_abort(me->gradients, error);
    weft_group_abort(me->steps, error);
    weft_call_fail(call, st, "%s", why.text);
    return st;
}

static weft_status train(weft_call *call, void *set)
{
    trainer me = {.set = set, .agent = weft_call_agent(call)};
    me.index = weft_agent_rank(me.agent) - HYBRID_FIRST_TRAINER;
    weft_status st = weft_remote_module_from_rref(weft_call_rref(call, 0), &me.embedding);
    if (!st)
        st = train_all(&me);
    if (!st)
        give_results(&me, call);
    else
        st = give_up(&me, call, st);
    weft_dist_optimizer_unref(me.sgd);
    weft_data_parallel_unref(me.parallel);
    weft_group_close(me.steps);
    weft_group_close(me.gradients);
    weft_module_unref(me.dense);
    weft_remote_module_unref(me.embedding);
    weft_error_unref(me.error);
    free(me.losses);
    return st;
}

/* ---- Server and trainers: the worker ---------------------------------------------------------------------------- */

/* Arguments: (seed). */
static weft_module *make_embedding(weft_args args, void *user)
{
    (void)user;
    return hybrid_embedding((uint64_t)args.items[0].as.i64);
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
    (void)rank, (void)arg;
    if (event == WEFT_MEMBER_SELF_EVICTED)
        worker_exit("this %s was declared dead, and is out of the job: %s",
                    weft_agent_rank(agent) == HYBRID_SERVER ? "server" : "trainer", why);
    if (event == WEFT_MEMBER_STORE_LOST)
        worker_exit("the master is gone: %s", why);
}

/* Serves until the master calls leave: the embedding, or a call to train. */
static int serve(hybrid_settings *set)
{
    sem_t over;
    weft_error *error = NULL;
    weft_agent *agent;
    const weft_function functions[] = {
        {.name = "dismiss", .takes = {WEFT_TYPE_STRING}, .run = dismissed},
        {.name = "leave", .run = leave, .user = &over},
        {.name = "train",
         .takes = {WEFT_TYPE_RREF},
         .gives = {WEFT_TYPE_TENSOR, WEFT_TYPE_F64, WEFT_TYPE_TENSORS},
         .run = train,
         .user = set},
    };
    weft_agent_options options = worker_agent_options(&set->job);
    sem_init(&over, 0, 0);
    options.functions = functions;
    options.function_count = set->job.rank == HYBRID_SERVER ? 2 : 3;
    options.on_membership = on_event;
    options.call_timeout_ms = WEFT_FOREVER; /* a slow worker is not a failure; its death ends the calls */
    weft_status st = weft_agent_open(&options, &agent, &error);
    if (st)
        return worker_error(st, error);
    worker_outlive_parent();
    if (set->job.rank == HYBRID_SERVER)
        st = weft_agent_register_module(agent, "embedding", make_embedding, NULL);
    if (!st)
        st = meet(agent);
    while (!st && sem_wait(&over))
        ; /* interrupted by a signal */
    if (!st)
        st = weft_agent_close(agent);
    else
        weft_agent_stop(agent);
    sem_destroy(&over);
    return st ? worker_error(st, NULL) : 0;
}

/* ---- The master ------------------------------------------------------------------------------------------------- */

typedef struct master {
    const hybrid_settings *set;
    weft_agent *agent;
    weft_remote_module *embedding;
    weft_future *trained[HYBRID_MOST_TRAINERS + 1]; /* of the calls to train; NULL after the last */
    double *losses;                                 /* [trainers, epochs] */
    double seconds;                                 /* of the slowest trainer */
    double difference; /* the largest difference from the losses of one process; < 0: not compared */
    weft_error *error;
    pthread_mutex_t lock; /* protects the fields below */
    tally tally;
    bool over;                           /* workers may leave: that is no longer a failure */
    char failure[sizeof(hybrid_reason)]; /* why the job ends early; "" if it does not */
} master;

static void fail(master *m, const char *what, const char *why)
{
    pthread_mutex_lock(&m->lock);
    if (!m->over && !*m->failure)
        snprintf(m->failure, sizeof m->failure, "%s%s", what, why);
    pthread_mutex_unlock(&m->lock);
}

static void on_news(weft_agent *agent, weft_member_event event, int rank, const char *why, void *arg)
{
    char what[64];
    (void)agent;
    if (event != WEFT_MEMBER_DEAD && event != WEFT_MEMBER_LEFT)
        return;
    snprintf(what, sizeof what, "%s %d %s: ", rank == HYBRID_SERVER ? "server" : "trainer", rank,
             event == WEFT_MEMBER_DEAD ? "is dead" : "left before its work was done");
    fail(arg, what, why);
}

/* A trainer reports an epoch: its iterations, their mean loss, bags, seconds of computing and in calls. */
static weft_status take_report(weft_call *call, void *arg)
{
    master *m = arg;
    pthread_mutex_lock(&m->lock);
    tally_steps(&m->tally, weft_call_i64(call, 0), weft_call_f64(call, 1), weft_call_i64(call, 2),
                weft_call_f64(call, 3), weft_call_f64(call, 4));
    pthread_mutex_unlock(&m->lock);
    return WEFT_OK;
}

/* A trainer reports why it cannot continue. */
static weft_status take_failure(weft_call *call, void *arg)
{
    fail(arg, "", weft_call_string(call, 0));
    return WEFT_OK;
}

static weft_status begin(master *m)
{
    weft_status st = meet(m->agent);
    m->losses = calloc((size_t)(m->set->trainers * m->set->epochs), sizeof *m->losses);
    if (!st && !m->losses)
        st = WEFT_ERR_MEMORY;
    for (int rank = 1; rank < m->set->job.world_size && !st; rank++)
        (void)!weft_agent_watch(m->agent, rank); /* if it is gone, on_news reports that */
    if (!st)
        st = weft_remote_module_create(m->agent, weft_to_rank(HYBRID_SERVER), "embedding",
                                       WEFT_VALUES(weft_of_i64(m->set->seed)), &m->embedding);
    const weft_rpc_options how = {.timeout_ms = WEFT_FOREVER, .error = &m->error};
    for (int i = 0; i < m->set->trainers && !st; i++)
        st = weft_rpc_async(m->agent, weft_to_rank(HYBRID_FIRST_TRAINER + i), "train",
                            WEFT_VALUES(weft_of_rref(weft_remote_module_rref(m->embedding))), &how, &m->trained[i]);
    tally_begin(&m->tally);
    return st;
}

/* Shows progress until all trainers have trained, or one cannot. */
static weft_status watch(master *m)
{
    progress line;
    weft_stats stats;
    const hybrid_settings *s = m->set;
    weft_status st = WEFT_ERR_TIMEOUT;
    progress_init(&line, s->quiet ? NULL : stdout, s->trainers * s->epochs * s->batches, "bags");
    while (st == WEFT_ERR_TIMEOUT) {
        st = weft_future_wait_all(m->trained, (size_t)s->trainers, LOOK_MS);
        weft_agent_stats(m->agent, &stats);
        pthread_mutex_lock(&m->lock);
        if (worker_interrupted() || *m->failure)
            st = WEFT_ERR_CANCELLED;
        progress_show(&line, &m->tally, stats.bytes_sent + stats.bytes_received, st != WEFT_ERR_TIMEOUT);
        pthread_mutex_unlock(&m->lock);
    }
    for (int i = 0; i < s->trainers && st && !m->error; i++)
        m->error = weft_error_ref(weft_future_error(m->trained[i]));
    return st;
}

static bool alike(const weft_tensors a, const weft_tensors b)
{
    bool same = a.count == b.count;
    for (size_t i = 0; i < a.count && same; i++)
        same = weft_tensor_numel(a.items[i]) == weft_tensor_numel(b.items[i]) &&
               memcmp(weft_tensor_data(a.items[i]), weft_tensor_data(b.items[i]),
                      (size_t)weft_tensor_numel(a.items[i]) * sizeof(float)) == 0;
    return same;
}

/* Takes the results of the trainers. If averaging works, their dense parts have the same bits. */
static weft_status collect(master *m)
{
    weft_tensors first = {NULL, 0}, dense;
    weft_status st = WEFT_OK;
    for (int i = 0; i < m->set->trainers && !st; i++) {
        const weft_values *results = weft_future_values(m->trained[i]);
        double seconds = 0;
        memcpy(m->losses + i * m->set->epochs, weft_tensor_data(weft_future_tensor(m->trained[i], 0)),
               (size_t)m->set->epochs * sizeof(double));
        st = weft_values_get_f64(results, 1, &seconds);
        if (!st)
            st = weft_values_get_tensors(results, 2, i == 0 ? &first : &dense);
        m->seconds = seconds > m->seconds ? seconds : m->seconds;
        if (!st && i > 0 && !alike(first, dense)) {
            m->error = weft_error_create(WEFT_ERR_STATE, "the dense parts of trainers %d and %d differ",
                                         HYBRID_FIRST_TRAINER, HYBRID_FIRST_TRAINER + i);
            st = WEFT_ERR_STATE;
        }
    }
    return st;
}

/* Trains in this process alone, and compares the losses. */
static weft_status check(master *m)
{
    const hybrid_settings *s = m->set;
    const hybrid_run run = {
        .seed = (uint64_t)s->seed, .lr = s->lr, .trainers = s->trainers, .epochs = s->epochs, .batches = s->batches};
    int64_t count = s->trainers * s->epochs;
    double *alone = calloc((size_t)count, sizeof *alone);
    weft_status st = alone ? hybrid_alone(&run, alone, &m->error) : WEFT_ERR_MEMORY;
    m->difference = 0;
    for (int64_t i = 0; i < count && !st; i++) {
        double difference = fabs(m->losses[i] - alone[i]) / fabs(alone[i]);
        m->difference = difference > m->difference ? difference : m->difference;
        if (!(difference <= LARGEST_DIFFERENCE)) {
            m->error = weft_error_create(
                WEFT_ERR_STATE, "trainer %d had a loss of %.9g in epoch %d, and in one process %.9g",
                HYBRID_FIRST_TRAINER + (int)(i / s->epochs), m->losses[i], 1 + (int)(i % s->epochs), alone[i]);
            st = WEFT_ERR_STATE;
        }
    }
    free(alone);
    return st;
}

/* ---- Results ---------------------------------------------------------------------------------------------------- */

/* Iterations per second of each trainer. */
static double iterations_per_s(const master *m)
{
    return m->seconds > 0 ? (double)(m->set->epochs * m->set->batches) / m->seconds : 0;
}

/* The mean loss of all trainers. */
static double loss_in(const master *m, int64_t epoch)
{
    double sum = 0;
    for (int64_t i = 0; i < m->set->trainers; i++)
        sum += m->losses[i * m->set->epochs + epoch];
    return sum / (double)m->set->trainers;
}

static void print_table(const master *m)
{
    const hybrid_settings *s = m->set;
    printf(
        "\n  model                embedding bag %d x %d on the server, linear %d x %d on %lld trainer%s, seed %lld\n",
        HYBRID_ROWS, HYBRID_WIDTH, HYBRID_WIDTH, HYBRID_CLASSES, (long long)s->trainers, s->trainers == 1 ? "" : "s",
        (long long)s->seed);
    printf("  iterations           %lld in %.2f s, %.0f a second, of each trainer%s\n",
           (long long)s->epochs * (long long)s->batches, m->seconds, iterations_per_s(m),
           s->synchronous ? "; synchronous" : "");
    printf("  loss                 %.4f in the last epoch, %.4f in the first\n", loss_in(m, s->epochs - 1),
           loss_in(m, 0));
    printf("  in calls             %.1f %% of the time\n", 100 * tally_communication(&m->tally));
    if (m->difference >= 0)
        printf("  of one process       losses differ by %.1e at most\n", m->difference);
}

static cJSON *list_losses(const master *m)
{
    cJSON *list = cJSON_CreateArray();
    for (int64_t i = 0; i < m->set->trainers; i++)
        cJSON_AddItemToArray(list, cJSON_CreateDoubleArray(m->losses + i * m->set->epochs, (int)m->set->epochs));
    return list;
}

/* NULL if memory is out. */
static cJSON *to_json(const master *m)
{
    weft_stats stats;
    weft_agent_stats(m->agent, &stats);
    const struct {
        const char *key;
        double value;
    } numbers[] = {{"seed", (double)m->set->seed},
                   {"trainers", (double)m->set->trainers},
                   {"synchronous", m->set->synchronous},
                   {"iterations", (double)(m->set->epochs * m->set->batches)},
                   {"seconds", m->seconds},
                   {"iterations_per_s", iterations_per_s(m)},
                   {"loss", loss_in(m, m->set->epochs - 1)},
                   {"first_loss", loss_in(m, 0)},
                   {"bags", (double)m->tally.images},
                   {"communication_share", tally_communication(&m->tally)},
                   {"bytes_copied_by_weft", (double)stats.bytes_copied},
                   {"difference", m->difference}};
    cJSON *json = cJSON_CreateObject();
    bool whole = cJSON_AddStringToObject(json, "model", "hybrid");
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers && whole; i++)
        whole = numbers[i].value < 0 || cJSON_AddNumberToObject(json, numbers[i].key, numbers[i].value);
    if (whole && cJSON_AddItemToObject(json, "losses", list_losses(m)))
        return json;
    cJSON_Delete(json);
    return NULL;
}

/* Writes the results, and lets the other workers leave. */
static weft_status conclude(master *m)
{
    weft_status st = m->set->check ? check(m) : WEFT_OK;
    if (!st && m->set->report)
        st = json_file_write(m->set->report, to_json(m), &m->error);
    if (!st && !m->set->quiet)
        print_table(m);
    pthread_mutex_lock(&m->lock);
    m->over = true;
    pthread_mutex_unlock(&m->lock);
    for (int rank = 1; rank < m->set->job.world_size && !st; rank++)
        st = weft_rpc_sync(m->agent, weft_to_rank(rank), "leave", WEFT_NO_VALUES,
                           &(weft_rpc_options){.error = &m->error}, NULL);
    return st;
}

/* ---- The job ---------------------------------------------------------------------------------------------------- */

static weft_status lead(master *m)
{
    weft_status st = begin(m);
    if (!st)
        st = watch(m);
    if (!st)
        st = collect(m);
    for (int i = 0; m->trained[i]; i++)
        weft_future_unref(m->trained[i]);
    weft_remote_module_unref(m->embedding);
    return st ? st : conclude(m);
}

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
    hybrid_reason why = hybrid_reason_of(m->agent, m->error ? weft_error_message(m->error) : weft_status_text(st));
    fail(m, "", worker_interrupted() ? "interrupted" : why.text);
    weft_error_unref(m->error);
    pthread_mutex_lock(&m->lock);
    m->over = true; /* from now on m->failure does not change */
    pthread_mutex_unlock(&m->lock);
    dismiss(m->agent, job, m->failure);
    return worker_fail("%s", m->failure);
}

static int run(master *m, weft_job *job)
{
    const weft_function functions[] = {
        {.name = "report_epoch",
         .takes = {WEFT_TYPE_I64, WEFT_TYPE_F64, WEFT_TYPE_I64, WEFT_TYPE_F64, WEFT_TYPE_F64},
         .run = take_report,
         .user = m},
        {.name = "give_up", .takes = {WEFT_TYPE_STRING}, .run = take_failure, .user = m},
    };
    weft_agent_options options = worker_agent_options(&m->set->job);
    options.job = job;
    options.functions = functions;
    options.function_count = 2;
    options.on_membership = on_news;
    options.membership_arg = m;
    weft_status st = weft_agent_open(&options, &m->agent, &m->error);
    worker_watch_children(false, NULL);
    if (st)
        return worker_error(st, m->error);
    worker_catch_signals();
    st = lead(m);
    if (st)
        return end_early(m, job, st);
    st = weft_agent_close(m->agent);
    return st ? worker_error(st, NULL) : 0;
}

static int start(const hybrid_settings *set)
{
    master m = {.set = set, .difference = -1};
    weft_job *job = NULL;
    weft_status st = WEFT_OK;
    pthread_mutex_init(&m.lock, NULL);
    worker_watch_children(set->job.spawn, NULL);
    if (set->job.spawn)
        st = weft_job_open(&(weft_job_options){.count = (int)set->job.world_size - 1}, &job, &m.error);
    worker_watch_children(set->job.spawn, job);
    int code = st ? worker_error(st, m.error) : run(&m, job);
    if (weft_job_close(job, code ? 500 : 5000, NULL) && code == 0)
        code = worker_fail("a worker exited with an error");
    free(m.losses);
    pthread_mutex_destroy(&m.lock);
    return worker_interrupted() ? 130 : code;
}

int main(int argc, char **argv)
{
    hybrid_settings set;
    int code = hybrid_parse(argc, argv, &set);
    if (code >= 0)
        return code;
    worker_begin("ddp_rpc_hybrid", "master", set.job.rank == HYBRID_SERVER ? "server" : "trainer", (int)set.job.rank);
    return worker_flush(set.job.rank == 0 ? start(&set) : serve(&set));
}
