/* SPDX-License-Identifier: Apache-2.0 */
/*
 * task_farm.c - 500 tasks, computed by workers that may join, leave, stop and die at any time.
 *
 *   task_farm --workers 4                                           starts four workers as processes of this machine
 *   RANK=0 WORLD_SIZE=9 MASTER_ADDR=... MASTER_PORT=... task_farm   is the farmer of a job of at most eight workers
 *   RANK=-1 WORLD_SIZE=9 MASTER_ADDR=... MASTER_PORT=... task_farm  is a worker; start and stop workers as you like
 *
 * A task counts the primes of one range. The farmer, rank 0, keeps two calls in flight to each worker. If a call fails,
 * its task waits for another attempt. If one task fails ten times, the farm fails; a failure does not count if its
 * worker left the job. The result of a task is added when its call succeeds, so exactly once, even if the task was
 * computed twice.
 *
 * SIGINT and SIGTERM: the farmer ends the job and prints how many tasks are done. A worker finishes the tasks that it
 * has, and leaves. The same signal a second time kills the process.
 * Exit codes: 0 done, or a worker that left; 1 failed; 2 wrong options; 130 the farmer was interrupted.
 * docs/task-farm.md explains the program.
 */
#include <weft/rpc.h>
#include <weft/job.h>

#include "common/cli.h" /* options */

#include <semaphore.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MOST_TASKS = 100000, MOST_RANKS = 65536, IN_FLIGHT = 2, MOST_ATTEMPTS = 10, LOOK_MS = 50 };

static int64_t task_count = 500, numbers = 20000, worker_count = 4; /* options */

static volatile sig_atomic_t interrupted;
static sem_t leave; /* a worker waits for this, and then leaves */

static void on_signal(int number)
{
    (void)number;
    interrupted = 1;
    sem_post(&leave);
}

static void catch_signals(void)
{
    const struct sigaction once = {.sa_handler = on_signal, .sa_flags = SA_RESETHAND}; /* a second signal kills */
    sem_init(&leave, 0, 0);
    sigaction(SIGTERM, &once, NULL);
    sigaction(SIGINT, &once, NULL);
    if (getenv("WEFT_SPAWNED")) /* Ctrl-C reaches all processes: the farmer ends the job of its children */
        signal(SIGINT, SIG_IGN);
}

/* ---- A worker --------------------------------------------------------------------------------------------------- */

static weft_status count_primes(weft_call *call, void *user) /* (first, count) -> primes */
{
    int64_t first = weft_call_i64(call, 0), end = first + weft_call_i64(call, 1), primes = 0;
    (void)user;
    for (int64_t n = first; n < end; n++) {
        bool prime = n == 2 || (n > 2 && n % 2);
        for (int64_t d = 3; prime && d * d <= n; d += 2)
            prime = n % d != 0;
        primes += prime;
        if (n % 4096 == 0 && weft_call_cancelled(call))
            return WEFT_ERR_CANCELLED;
    }
    weft_call_give(call, WEFT_VALUES(weft_of_i64(primes)));
    return WEFT_OK;
}

static void on_own_event(weft_agent *agent, weft_member_event event, int rank, const char *why, void *user)
{
    (void)agent, (void)rank, (void)user;
    if (event == WEFT_MEMBER_SELF_EVICTED || event == WEFT_MEMBER_STORE_LOST)
        fprintf(stderr, "task_farm: this worker is out of the job: %s\n", why);
    if (event == WEFT_MEMBER_SELF_EVICTED || event == WEFT_MEMBER_STORE_LOST || event == WEFT_MEMBER_JOB_ENDED)
        sem_post(&leave);
}

static int work(void)
{
    const weft_function function = {
        .name = "count_primes", .takes = {WEFT_TYPE_I64, WEFT_TYPE_I64}, .gives = {WEFT_TYPE_I64}, .run = count_primes};
    const weft_agent_options options = {.elastic = true,
                                        .functions = &function,
                                        .function_count = 1,
                                        .threads = 1, /* one thread runs handlers: one task at a time */
                                        .on_membership = on_own_event};
    weft_agent *agent;
    weft_status status = weft_agent_open(&options, &agent, NULL);
    if (status)
        return status == WEFT_ERR_JOB_ENDED ? 0 : weft_report(status); /* this worker came after the end */
    while (sem_wait(&leave))
        ; /* interrupted by a signal */
    return weft_report(weft_agent_close(agent, WEFT_FOREVER));
}

/* ---- The farmer: tasks and workers ------------------------------------------------------------------------------ */

/* The farmer has one thread: callbacks run inside weft_agent_progress and weft_agent_close. */

typedef struct task {
    int attempts;       /* failed attempts; those on workers that left do not count */
    weft_worker worker; /* the worker that computes the task now */
} task;

typedef struct slot {
    weft_worker worker; /* incarnation 0: no worker */
    int calls;          /* calls in flight to `worker` */
} slot;

static weft_agent *agent;
static task tasks[MOST_TASKS], *waiting[MOST_TASKS]; /* waiting: a stack of the tasks that wait for a worker */
static slot slots[MOST_RANKS];                       /* by rank */
static int64_t waits, done, retries, primes_found;   /* waits: the number of tasks in `waiting` */
static int workers;
static bool over;         /* no further task is started */
static char failure[320]; /* why the farm failed; "" if it did not */

static void remove_worker(weft_worker worker)
{
    slot *s = &slots[worker.rank];
    if (!worker.incarnation || s->worker.incarnation != worker.incarnation)
        return; /* removed already; another worker may have the rank */
    *s = (slot){.calls = 0};
    workers--;
}

static void on_result(weft_future *future, void *arg)
{
    task *t = arg;
    slot *s = &slots[t->worker.rank];
    const weft_error *error = weft_future_error(future);
    int64_t primes = 0;
    weft_status status = error ? weft_error_code(error) : weft_values_get_i64(weft_future_values(future), 0, &primes);
    s->calls -= s->worker.incarnation == t->worker.incarnation;
    if (!status) {
        done++;
        primes_found += primes;
    } else {
        waiting[waits++] = t;
        retries += !over;
        if (status == WEFT_ERR_PEER_LEFT || status == WEFT_ERR_PEER_DEAD)
            remove_worker(t->worker);
        if (status != WEFT_ERR_PEER_LEFT && !over && ++t->attempts == MOST_ATTEMPTS) {
            over = true;
            snprintf(failure, sizeof(failure), "task %td failed %d times: %s", t - tasks, MOST_ATTEMPTS,
                     error ? weft_error_message(error) : weft_status_text(status));
        }
    }
    weft_future_unref(future);
}

/* Gives tasks to every worker until it has IN_FLIGHT calls. Workers with the fewest calls get tasks first. */
static void start_tasks(void)
{
    for (int calls = 0; calls < IN_FLIGHT; calls++) {
        for (int rank = 1; rank < weft_agent_world_size(agent) && !over && waits; rank++) {
            slot *s = &slots[rank];
            task *t = waiting[waits - 1];
            if (!s->worker.incarnation || s->calls != calls)
                continue;
            weft_args range = WEFT_VALUES(weft_of_i64((t - tasks) * numbers), weft_of_i64(numbers));
            const weft_rpc_options how = {.timeout_ms = WEFT_FOREVER}; /* the death of the worker ends the call */
            weft_future *future;
            weft_status status = weft_rpc_async(agent, weft_to_worker(s->worker), "count_primes", range, &how, &future);
            if (status && status != WEFT_ERR_AGAIN)
                remove_worker(s->worker); /* it is leaving, or gone */
            if (status)
                continue;
            waits--;
            s->calls++;
            t->worker = s->worker;
            if (weft_future_add_done_callback(future, on_result, t, NULL)) {
                over = true;
                snprintf(failure, sizeof(failure), "out of memory");
            }
        }
    }
}

static void add_worker(weft_worker worker)
{
    slot *s = &slots[worker.rank];
    /* The death of a watched worker is detected even if no call is in flight to it. */
    if (s->worker.incarnation == worker.incarnation || weft_agent_watch(agent, worker.rank))
        return; /* added already, or gone */
    workers += !s->worker.incarnation;
    *s = (slot){.worker = worker};
}

static void on_worker_event(weft_agent *a, weft_member_event event, int rank, const char *why, void *user)
{
    (void)user;
    if (event == WEFT_MEMBER_JOINED)
        add_worker(weft_agent_worker(a, rank));
    if (event == WEFT_MEMBER_DEAD)
        fprintf(stderr, "task_farm: worker %d is dead: %s\n", rank, why);
    if (event == WEFT_MEMBER_DEAD || event == WEFT_MEMBER_LEAVING)
        remove_worker(slots[rank].worker); /* calls that it does not answer fail: on_result puts their tasks back */
}

/* ---- The farmer: the job ---------------------------------------------------------------------------------------- */

/* A line that is overwritten on a terminal; elsewhere one line for every tenth of the tasks. */
static void show_progress(void)
{
    static int64_t shown;
    bool live = isatty(STDOUT_FILENO);
    int64_t tenth = 10 * done / task_count;
    if (!live && tenth == shown)
        return;
    printf("%s[%-10.*s] %lld of %lld tasks, %d workers, %lld retries%s", live ? "\r" : "", (int)tenth, "##########",
           (long long)done, (long long)task_count, workers, (long long)retries, live ? "\033[K" : "\n");
    fflush(stdout);
    shown = tenth;
}

/* Whether a child of this process still runs. */
static bool has_children(const weft_job *job)
{
    for (int rank = 1; weft_job_pid(job, rank) > 0; rank++) {
        siginfo_t ended = {.si_pid = 0};
        if (!waitid(P_PID, (id_t)weft_job_pid(job, rank), &ended, WEXITED | WNOHANG | WNOWAIT) && !ended.si_pid)
            return true;
    }
    return false;
}

static void run_tasks(const weft_job *job)
{
    static weft_worker early[MOST_RANKS]; /* joined before the farmer itself; on_worker_event reports only later ones */
    size_t count = weft_agent_workers(agent, early, MOST_RANKS);
    for (size_t i = 0; i < count; i++)
        if (early[i].rank > 0)
            add_worker(early[i]);
    for (waits = 0; waits < task_count; waits++)
        waiting[waits] = &tasks[waits];
    while (done < task_count && !over) {
        start_tasks();
        weft_agent_progress(agent, LOOK_MS);
        show_progress();
        over = over || interrupted;
        if (job && !workers && !has_children(job)) { /* without `job`, other workers may still join */
            over = true;
            snprintf(failure, sizeof(failure), "no worker is left");
        }
    }
    over = true;
    (void)!weft_agent_end_job(agent, "no task is left"); /* ends all calls; each worker gets WEFT_MEMBER_JOB_ENDED */
}

static int farm(weft_job *job)
{
    const weft_agent_options options = {
        .elastic = true, .no_threads = true, .job = job, .on_membership = on_worker_event};
    weft_status status = weft_agent_open(&options, &agent, NULL);
    if (status)
        return weft_report(status);
    run_tasks(job);
    status = weft_agent_close(agent, WEFT_FOREVER); /* waits for the workers, at most 2 seconds */
    printf("%s%lld of %lld tasks, %lld retries: ", isatty(STDOUT_FILENO) ? "\n" : "", (long long)done,
           (long long)task_count, (long long)retries);
    if (done == task_count)
        printf("%lld primes below %lld\n", (long long)primes_found, (long long)(task_count * numbers));
    else
        printf("%s\n", *failure ? failure : "interrupted");
    return status ? weft_report(status) : done == task_count ? 0 : *failure ? 1 : 130;
}

int main(int argc, char **argv)
{
    const cli_option options[] = {
        {"tasks", CLI_INT, &task_count, 1, MOST_TASKS, NULL, "N", "number of tasks", "500"},
        {"numbers", CLI_INT, &numbers, 1, 10000000, NULL, "N", "numbers of each task", "20000"},
        {"workers", CLI_INT, &worker_count, 1, 1024, NULL, "N", "workers to start, without a launcher", "4"},
    };
    const cli program = {.program = "task_farm",
                         .purpose = "counts primes in many tasks, on workers that may join, leave and die",
                         .example = "task_farm --workers 8 --tasks 2000",
                         .options = options,
                         .count = sizeof(options) / sizeof(*options)};
    int rank;
    weft_job *job = NULL;
    int code = cli_parse(&program, argc, argv);
    if (code >= 0)
        return code;
    bool launched = weft_job_is_launched(&rank, NULL);
    catch_signals();
    if (launched && rank != 0)
        return work();
    weft_status status =
        launched ? WEFT_OK : weft_job_open(&(weft_job_options){.count = (int)worker_count}, &job, NULL);
    code = status ? weft_report(status) : farm(job);
    status = weft_job_close(job, 5000, NULL); /* also fails if a worker died, which is not a failure here */
    return code;
}
