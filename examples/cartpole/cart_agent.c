/* SPDX-License-Identifier: Apache-2.0 */
/* cart_agent.c - the agent: makes observers, runs episodes on them, and learns after each. */
#include "cart_agent.h"

#include "cart_observer.h"
#include "cart_render.h"
#include "cart_report.h"
#include "cartpole.h"
#include "common/worker.h"
#include "common/report.h" /* clock_seconds */

#include <weft/rref.h>

#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>

#define DISMISS_MS 300 /* timeout of the call that tells the other workers that the job ends early */

typedef struct cart_agent {
    const cart_settings *set;
    cart_learner *learner;
    weft_agent *agent;
    cart_hooks hooks;
    weft_rref **observers;  /* by rank; NULL: this observer no longer takes part */
    weft_future **episodes; /* by rank */
    weft_future **pending;  /* the episodes that have not ended */
    int *pending_ranks;     /* their ranks */
    weft_tensor **returns;  /* by rank, of this episode, borrowed from its future; NULL: none */
    double *rewards;        /* by rank; set where `returns` is */
    int left;               /* observers that take part */
    cart_report report;
    char failure[320]; /* why the job ends early; "" if it does not */
} cart_agent;

static void end_early(cart_agent *a, const char *format, ...) WEFT_PRINTF(2, 3);
static void end_early(cart_agent *a, const char *format, ...)
{
    va_list args;
    if (*a->failure)
        return;
    va_start(args, format);
    vsnprintf(a->failure, sizeof a->failure, format, args);
    va_end(args);
    if (worker_interrupted()) /* the signal may have ended observers too, so their ends are not the reason */
        snprintf(a->failure, sizeof a->failure, "interrupted");
    if (a->hooks.end)
        a->hooks.end(a->hooks.arg, a->failure);
}

static void on_membership(weft_agent *agent, weft_member_event event, int rank, const char *why, void *arg)
{
    cart_agent *a = arg;
    (void)agent, (void)why;
    if ((event == WEFT_MEMBER_DEAD || event == WEFT_MEMBER_LEFT) && a->hooks.gone)
        a->hooks.gone(a->hooks.arg, rank);
}

/* ---- Observers -------------------------------------------------------------------------------------------------- */

static void lose(cart_agent *a, int rank, weft_status why, const weft_error *error)
{
    bool is_gone = why == WEFT_ERR_PEER_DEAD || why == WEFT_ERR_PEER_LEFT;
    const char *what = why == WEFT_ERR_PEER_DEAD ? "is dead" : is_gone ? "left" : "fails";
    const char *detail = error ? weft_error_message(error) : weft_status_text(why);
    if (!is_gone || a->set->job.on_death == ON_DEATH_STOP)
        end_early(a, "observer %d %s: %s", rank, what, detail);
    else
        worker_note("observer %d %s: %s; going on with %d", rank, what, detail, a->left - 1);
    weft_rref_unref(a->observers[rank]);
    a->observers[rank] = NULL;
    cart_report_lost(&a->report, rank);
    if (--a->left == 0)
        end_early(a, "no observer is left");
}

static void make_observers(cart_agent *a)
{
    const cart_settings *set = a->set;
    weft_args about =
        WEFT_VALUES(weft_of_i64(set->envs), weft_of_i64(set->steps), weft_of_f64(set->gamma), weft_of_i64(set->seed));
    for (int rank = 1; rank < set->job.world_size && !*a->failure; rank++) {
        weft_status st = weft_rpc_remote(a->agent, weft_to_rank(rank), cart_observer_functions[0].name, about, NULL,
                                         &a->observers[rank]);
        if (st)
            lose(a, rank, st, NULL);
    }
}

/* ---- An episode ------------------------------------------------------------------------------------------------- */

static void start(cart_agent *a, int64_t episode)
{
    const weft_rpc_options how = {.timeout_ms = WEFT_FOREVER};
    cart_learner_begin(a->learner, episode);
    for (int rank = 1; rank < a->set->job.world_size && !*a->failure; rank++) {
        if (!a->observers[rank])
            continue;
        weft_status st = weft_rref_rpc_async(a->observers[rank], cart_observer_functions[1].name,
                                             WEFT_VALUES(weft_of_i64(episode)), &how, &a->episodes[rank]);
        if (st)
            lose(a, rank, st, NULL);
    }
}

/* Takes the results of an observer's episode, and checks their shape. */
static weft_status take(cart_agent *a, int rank)
{
    const cart_settings *set = a->set;
    const weft_values *values = weft_future_values(a->episodes[rank]);
    weft_tensor *returns;
    weft_status st = weft_values_get_tensor(values, 0, &returns);
    if (!st)
        st = weft_values_get_f64(values, 1, &a->rewards[rank]);
    if (!st && (weft_tensor_dtype(returns) != WEFT_DTYPE_FLOAT64 || weft_tensor_ndim(returns) != 2 ||
                weft_tensor_size(returns, 0) != set->steps || weft_tensor_size(returns, 1) != set->envs ||
                !weft_tensor_is_contiguous(returns)))
        st = WEFT_ERR_SHAPE;
    if (!st)
        a->returns[rank] = returns;
    return st;
}

/* Waits for the next of `count` episodes to end; -1: interrupted, or no episode can end. */
static int next_ended(weft_future *const *episodes, size_t count)
{
    size_t index;
    weft_status st = WEFT_ERR_TIMEOUT;
    while (st == WEFT_ERR_TIMEOUT && !worker_interrupted())
        st = weft_future_wait_any(episodes, count, 50, &index);
    return st || worker_interrupted() ? -1 : (int)index;
}

/* Takes episodes in the order in which they end. If one observer has failed, the others may be waiting for it. */
static void await_all(cart_agent *a)
{
    int size = a->set->job.world_size, count = 0;
    for (int rank = 1; rank < size; rank++) {
        a->returns[rank] = NULL;
        a->pending[count] = a->episodes[rank];
        a->pending_ranks[count] = rank;
        count += a->episodes[rank] != NULL;
    }
    while (count > 0 && !*a->failure) {
        int i = next_ended(a->pending, (size_t)count);
        if (i < 0) {
            end_early(a, "interrupted");
            return;
        }
        int rank = a->pending_ranks[i];
        const weft_error *error = weft_future_error(a->pending[i]);
        weft_status st = error ? weft_error_code(error) : take(a, rank);
        if (st)
            lose(a, rank, st, error);
        a->pending[i] = a->pending[--count];
        a->pending_ranks[i] = a->pending_ranks[count];
    }
}

/* Returns the mean reward. The sum is in the order of ranks, so it does not depend on which episode ended first. */
static double collect(cart_agent *a)
{
    double sum = 0;
    await_all(a);
    for (int rank = 1; rank < a->set->job.world_size; rank++)
        sum += a->returns[rank] ? a->rewards[rank] : 0;
    return a->left ? sum / a->left : 0;
}

static void run_episode(cart_agent *a, int64_t episode)
{
    weft_error *error = NULL;
    start(a, episode);
    double reward = *a->failure ? 0 : collect(a);
    weft_status st = *a->failure ? WEFT_OK : cart_learner_learn(a->learner, a->returns, &error);
    if (st)
        end_early(a, "the policy cannot be updated: %s", error ? weft_error_message(error) : weft_status_text(st));
    weft_error_unref(error);
    for (int rank = 1; rank < a->set->job.world_size; rank++) {
        weft_future_unref(a->episodes[rank]);
        a->episodes[rank] = NULL;
    }
    if (!*a->failure)
        cart_report_episode(&a->report, reward);
}

/* ---- The job ---------------------------------------------------------------------------------------------------- */

static void run_episodes(cart_agent *a)
{
    make_observers(a);
    a->report.began = clock_seconds();
    for (int64_t i = 0; i < a->set->episodes && !*a->failure && !a->report.solved; i++)
        run_episode(a, i);
    a->report.ended = clock_seconds();
}

static void let_observers_go(cart_agent *a)
{
    for (int rank = 1; rank < a->set->job.world_size; rank++) {
        weft_rref_unref(a->observers[rank]);
        a->observers[rank] = NULL;
    }
}

/* Writes the results. Meanwhile the observers wait in weft_agent_close. */
static int conclude(cart_agent *a)
{
    weft_error *error = NULL;
    weft_status st = cart_report_deliver(&a->report, a->agent, a->learner, &error);
    if (!st)
        st = weft_agent_close(a->agent);
    else
        weft_agent_stop(a->agent);
    return st ? worker_error(st, error) : 0;
}

/* After an interruption: writes the results of the episodes so far. */
static void keep_what_there_is(cart_agent *a)
{
    weft_error *error = NULL;
    a->report.interrupted = true;
    weft_status st = a->report.episodes ? cart_report_deliver(&a->report, a->agent, a->learner, &error) : WEFT_OK;
    if (st)
        worker_note("%s", error ? weft_error_message(error) : weft_status_text(st));
    weft_error_unref(error);
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

static int run_job(cart_agent *a, const weft_function *select_action, weft_job *job)
{
    weft_error *error = NULL;
    weft_agent_options options = worker_agent_options(&a->set->job);
    options.job = job;
    options.functions = select_action;
    options.function_count = 1;
    options.on_membership = on_membership;
    options.no_threads = true; /* the main thread serves calls while it waits for episodes */
    options.membership_arg = a;
    weft_status st = weft_agent_open(&options, &a->agent, &error);
    worker_watch_children(false, NULL);
    if (st)
        return worker_error(st, error);
    worker_catch_signals();
    run_episodes(a);
    let_observers_go(a);
    if (!*a->failure)
        return conclude(a);
    if (worker_interrupted())
        keep_what_there_is(a);
    dismiss(a->agent, job, a->failure);
    return worker_fail("%s", a->failure);
}

static int start_and_run(cart_agent *a, const weft_function *select_action)
{
    const worker_options *how = &a->set->job;
    weft_job *job = NULL;
    weft_error *error = NULL;
    weft_status st = WEFT_OK;
    worker_watch_children(how->spawn, NULL);
    if (how->spawn)
        st = weft_job_open(&(weft_job_options){.count = (int)how->world_size - 1}, &job, &error);
    worker_watch_children(how->spawn, job);
    int code = st ? worker_error(st, error) : run_job(a, select_action, job);
    if (weft_job_close(job, code ? 500 : 5000, NULL) && code == 0 && how->on_death == ON_DEATH_STOP)
        code = worker_fail("an observer exited with an error");
    return worker_interrupted() ? 130 : code;
}

static int show_policy(const cart_agent *a)
{
    weft_error *error = NULL;
    weft_status st = cart_render(cart_learner_policy(a->learner), (uint64_t)a->set->seed, stdout, &error);
    if (st)
        return worker_error(st, error);
    if (!worker_interrupted())
        return 0;
    worker_fail("interrupted");
    return 130;
}

int cart_agent_run(const cart_settings *set, cart_learner *learner, const weft_function *select_action,
                   cart_hooks hooks)
{
    size_t count = (size_t)set->job.world_size;
    cart_agent a = {.set = set, .learner = learner, .hooks = hooks, .left = (int)count - 1};
    a.report.set = set;
    a.observers = calloc(count, sizeof(weft_rref *));
    a.episodes = calloc(count, sizeof(weft_future *));
    a.returns = calloc(count, sizeof(weft_tensor *));
    a.rewards = calloc(count, sizeof(double));
    a.pending = calloc(count, sizeof(weft_future *));
    a.pending_ranks = calloc(count, sizeof(int));
    weft_error *error = NULL;
    bool ready = a.observers && a.episodes && a.returns && a.rewards && a.pending && a.pending_ranks &&
                 cart_report_open(&a.report);
    weft_status st = ready ? WEFT_OK : WEFT_ERR_MEMORY;
    if (!st && set->load)
        st = weft_module_load(cart_learner_policy(learner), set->load, &error);
    int code = st ? worker_error(st, error) : start_and_run(&a, select_action);
    if (!code && set->render)
        code = show_policy(&a);
    if (!code && set->solve && !a.report.solved)
        code = worker_fail("not solved in %lld episodes", (long long)set->episodes);
    code = worker_flush(code);
    cart_report_close(&a.report);
    free(a.pending_ranks);
    free(a.pending);
    free(a.rewards);
    free(a.returns);
    free(a.episodes);
    free(a.observers);
    return code;
}
