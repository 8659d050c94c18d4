/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ddp_rpc_hybrid.c - a model in two parts, trained by N trainers: its embedding lives on a parameter server, its dense part on each trainer.
 *
 *   ddp_rpc_hybrid --trainers 2                              starts server and trainers as processes of this machine
 *   RANK=... WORLD_SIZE=... MASTER_ADDR=... MASTER_PORT=... ddp_rpc_hybrid
 *                                                            is one worker: rank 0 the master, 1 the server, the others trainers
 *
 * The master makes the embedding bag on the server as a remote module, and calls on each trainer to train with it. In each iteration a
 * trainer looks its batch up there, runs its linear layer, and goes back through both under one context: gradients of the linear layer are averaged
 * over the trainers by their group meanwhile, so that its replicas stay alike; each trainer's gradient of the embedding steps the server's by itself. With
 * --synchronous a barrier after the step keeps the trainers together, and the losses are those of one process (--check). Such an iteration is
 * examples/ddp_rpc_hybrid/hybrid_trainer.c, train_step.
 *
 * After PyTorch's tutorial "Combining Distributed DataParallel with Distributed RPC Framework". --help lists the options.
 */
#include <weft/weft.h>

#include "common/worker.h"                  /* messages, exit codes, signals */
#include "ddp_rpc_hybrid/hybrid.h"          /* the model, in one process */
#include "ddp_rpc_hybrid/hybrid_settings.h" /* the command line; who is who */
#include "ddp_rpc_hybrid/hybrid_trainer.h"  /* a trainer's work */
#include "common/report.h"                  /* the report */

#include <math.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#define LARGEST_DIFFERENCE 1e-5 /* relative, of a loss to that of one process */
#define DISMISS_MS 300          /* limit of telling the other workers that the job ends early */
#define LOOK_MS 50              /* between two looks at signals and news */

/* Those who serve have registered what they can make. */
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

/* ---- The server, and what it shares with trainers --------------------------------------------------------------- */

/* (seed) */
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

/* Serves until the master lets it go: the embedding, or a call to train. */
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
         .run = hybrid_train,
         .user = set},
    };
    weft_agent_options options = worker_agent_options(&set->job);
    sem_init(&over, 0, 0);
    options.functions = functions;
    options.function_count = set->job.rank == HYBRID_SERVER ? 2 : 3;
    options.on_membership = on_event;
    options.call_timeout_ms = WEFT_FOREVER; /* who is slow is no more than that: deaths end calls all the same */
    weft_status st = weft_agent_open(&options, &agent, &error);
    if (st)
        return worker_error(st, error);
    worker_outlive_parent();
    if (set->job.rank == HYBRID_SERVER)
        st = weft_agent_register_module(agent, "embedding", make_embedding, NULL);
    if (!st)
        st = meet(agent);
    while (!st && sem_wait(&over))
        ; /* a signal */
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
    weft_future *trained[HYBRID_MOST_TRAINERS + 1]; /* of the calls to train; NULL behind the last */
    double *losses;                                 /* [trainers, epochs] */
    double seconds;                                 /* that the slowest trainer took */
    double difference;                              /* the largest to the losses of one process; < 0: not looked for */
    weft_error *error;
    pthread_mutex_t lock; /* for what follows */
    tally tally;
    bool over;                           /* deaths and departures are no news any more */
    char failure[sizeof(hybrid_reason)]; /* why the job ends early; "" */
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

/* Iterations of an epoch: how many, their mean loss, bags, seconds of computing and in calls. */
static weft_status hear(weft_call *call, void *arg)
{
    master *m = arg;
    pthread_mutex_lock(&m->lock);
    tally_steps(&m->tally, weft_call_i64(call, 0), weft_call_f64(call, 1), weft_call_i64(call, 2),
                weft_call_f64(call, 3), weft_call_f64(call, 4));
    pthread_mutex_unlock(&m->lock);
    return WEFT_OK;
}

/* A trainer cannot go on. */
static weft_status hear_of_failure(weft_call *call, void *arg)
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
        (void)!weft_agent_watch(m->agent, rank); /* if it is gone by now on_news hears of it */
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

/* What trainers gave. Their dense parts have the same bits, or the averages were none. */
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

/* Trains in this process alone, and compares. */
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

/* ---- What comes of it ------------------------------------------------------------------------------------------- */

/* Of each trainer. */
static double iterations_per_s(const master *m)
{
    return m->seconds > 0 ? (double)(m->set->epochs * m->set->batches) / m->seconds : 0;
}

/* The mean of all trainers'. */
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

/* Lets the others go, and shows what came of it. */
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
 * Ends the job early: tells the server and each trainer why, also while it computes, and leaves. A worker ends when it is told, without an answer.
 * A worker of this machine that was declared dead may be stopped, so it is killed.
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
    m->over = true; /* *m->failure stays as it is */
    pthread_mutex_unlock(&m->lock);
    dismiss(m->agent, job, m->failure);
    return worker_fail("%s", m->failure);
}

static int run(master *m, weft_job *job)
{
    const weft_function functions[] = {
        {.name = "hear",
         .takes = {WEFT_TYPE_I64, WEFT_TYPE_F64, WEFT_TYPE_I64, WEFT_TYPE_F64, WEFT_TYPE_F64},
         .run = hear,
         .user = m},
        {.name = "give_up", .takes = {WEFT_TYPE_STRING}, .run = hear_of_failure, .user = m},
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
        code = worker_fail("a worker did not end well");
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
