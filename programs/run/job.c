/* SPDX-License-Identifier: Apache-2.0 */
/* job.c - see job.h. */
#include "run/job.h"

#include "base/nosignal.h"
#include "base/thread.h"
#include "run/clock.h"
#include "run/output.h"
#include "run/worker.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#define STARTING_MOST 32   /* processes that start at once */
#define STARTING_THERE 8   /* of these, to one other host: sshd refuses some from 10 on (MaxStartups) */
#define LATE_MS 5000       /* a worker's process may need this long after the grace time */
#define CONNECTING_MS 1000 /* the same, if no worker runs there yet */
#define LAST_MS 1000       /* for the reader of stdout after a signal has ended the job */
#define FIXED_FDS 3        /* in the list for poll, before those of the workers: three for each */

typedef enum phase {
    OPENING,    /* not all supervisors have answered */
    RUNNING,    /* the workers run */
    RESTARTING, /* one has failed; all are ended, and then restarted */
    ENDING,     /* the job is over; the workers are ended */
} phase;

typedef struct job {
    const settings *o;
    phase phase;
    worker *workers;
    int count;
    worker_setup setup;
    int64_t restarts; /* done so far */
    int killed;       /* workers that ignored SIGTERM */
    int signals;      /* signalfd */
    int stop;         /* the signal that ends the job; 0: none */
    bool is_hurried;  /* a second signal that ends the job has arrived */
    int code;         /* the exit code; 0: no failure so far */
    int64_t kill_ms;  /* when the grace time of the workers is over; 0: they are not told to end */
    int64_t heard_ms; /* when the last supervisor answered, or the first of them was started */
    int turn;         /* the worker that is read first: another one each time */
    output printed;
    struct pollfd *fds;
} job;

/* ---- Starts and ends of all workers ----------------------------------------------------------------------------- */

static int count_state(const job *j, worker_state state)
{
    int count = 0;
    for (int rank = 0; rank < j->count; rank++)
        count += j->workers[rank].state == state;
    return count;
}

/* The workers that run, are being started, or have done their work. */
static int healthy(const job *j)
{
    int count = 0;
    for (int rank = 0; rank < j->count; rank++)
        count += j->workers[rank].state != WORKER_ENDED || j->workers[rank].is_done;
    return count;
}

static void pass_signal(job *j, int number)
{
    for (int rank = 0; rank < j->count; rank++)
        worker_signal(&j->workers[rank], number);
}

static void end_workers(job *j, int number, int64_t grace_ms)
{
    for (int rank = 0; rank < j->count; rank++)
        worker_end(&j->workers[rank], number,
                   j->workers[rank].state == WORKER_RUNNING ? grace_ms + LATE_MS : CONNECTING_MS);
    j->kill_ms = clock_ms() + grace_ms;
}

static void fail(job *j, int code, const char *what)
{
    int running = count_state(j, WORKER_RUNNING);
    j->phase = ENDING;
    j->code = j->code ? j->code : code;
    if (running > 1)
        output_say(&j->printed, "%s: ending the other %d workers", what, running);
    else
        output_say(&j->printed, "%s%s", what, running ? ": ending the other worker" : "");
    end_workers(j, SIGTERM, j->o->grace_ms);
}

static void start_waiting(job *j)
{
    int starting = count_state(j, WORKER_STARTING), waiting = count_state(j, WORKER_WAITING);
    for (int rank = 0; rank < j->count && waiting > 0 && starting < STARTING_MOST; rank++) {
        worker *one = &j->workers[rank];
        if (one->state != WORKER_WAITING || (one->on->method != HOST_HERE && one->on->starting >= STARTING_THERE))
            continue;
        if (!worker_start(one, j->o)) {
            char what[300], why[WFI_THREAD_STRERROR];
            snprintf(what, sizeof(what), "rank %d cannot be started: %s", rank,
                     errno == EMFILE   ? "each takes three descriptors: raise the limit of open files (ulimit -n)"
                     : errno == EAGAIN ? wfi_thread_strerror(errno, why)
                                       : strerror(errno));
            fail(j, 1, what);
            return;
        }
        starting++;
        waiting--;
    }
}

static void open_all(job *j)
{
    j->phase = OPENING;
    j->kill_ms = 0;
    for (int rank = 0; rank < j->count; rank++)
        j->workers[rank].state = WORKER_WAITING;
    j->heard_ms = clock_ms();
}

static void set_up(job *j, worker *one)
{
    /* in an elastic job on one host, a worker that joins later is here too */
    worker_set_up(one, &j->setup, j->o->least && j->setup.is_alone ? j->setup.world_size : one->on->workers);
}

/* A supervisor has answered. */
static void take_answer(job *j, worker *one)
{
    char what[300];
    j->heard_ms = clock_ms();
    if (j->phase != OPENING && j->phase != RUNNING)
        return;
    if (one->is_other) {
        snprintf(what, sizeof(what), "%s has a weft-run of another version: --node-program names the right one",
                 one->on->name);
        fail(j, 1, what);
    } else if (one->rank == 0 && one->port <= 0 && !j->o->master_port) {
        fail(j, 1, "the host of rank 0 has no free port");
    } else if (j->phase == RUNNING) {
        set_up(j, one);
    } else if (count_state(j, WORKER_READY) == j->count) {
        j->phase = RUNNING;
        j->setup.port = j->o->master_port ? (int)j->o->master_port : j->workers[0].port;
        for (int rank = 0; rank < j->count; rank++)
            set_up(j, &j->workers[rank]);
    }
}

/* ---- What follows from an end ----------------------------------------------------------------------------------- */

/* "exited with code 7". The supervisor, shells and srun report a signal as 128 + its number. */
static void describe_status(int status, char *out, size_t room)
{
    int code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
    const char *name = code > 128 ? sigabbrev_np(code - 128) : NULL;
    if (name)
        snprintf(out, room, "was killed by SIG%s", name);
    else
        snprintf(out, room, "exited with code %d%s", code,
                 code == 127   ? " (not found)"
                 : code == 126 ? " (cannot be started)"
                               : "");
}

/* "rank 2 on node1 exited with code 7". `was` is its state before. */
static void describe_end(const worker *of, worker_state was, int status, char *out, size_t room)
{
    char how[64];
    const char *through = worker_command(of), *name = of->on->name;
    int code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    describe_status(status, how, sizeof(how));
    if (was == WORKER_STARTING)
        snprintf(out, room, "%s cannot be reached: %s %s%s", name, through, how,
                 code == 127 ? ": is it installed here, and weft-run there? (--ssh, --node-program)"
                 : code == 0 ? ", but weft-run has not started there (--node-program)"
                             : "");
    else if (was == WORKER_READY || code < 0)
        snprintf(out, room, "rank %d on %s is lost: the connection ended (%s %s)", of->rank, name, through, how);
    else
        snprintf(out, room, "rank %d on %s %s%s", of->rank, name, how,
                 code == 255 && of->on->method == HOST_SSH ? ", or ssh has lost the connection" : "");
}

static void take_failure(job *j, worker *failed, worker_state was, int status)
{
    char what[700];
    bool is_lost = was != WORKER_RUNNING || !WIFEXITED(status);
    int code = is_lost ? 1 : WEXITSTATUS(status);
    bool has_program = code != 126 && code != 127, is_left = j->restarts < j->o->restarts && has_program && !is_lost;
    bool is_alone = j->o->least && failed->rank > 0; /* the others can go on without it */
    describe_end(failed, was, status, what, sizeof(what));
    if (is_alone && is_left && !j->workers[0].is_done) {
        output_say(&j->printed, "%s: restarting it (%lld of %lld)", what, (long long)++j->restarts,
                   (long long)j->o->restarts);
        failed->state = WORKER_WAITING;
        j->heard_ms = clock_ms();
    } else if (is_alone && has_program && j->phase == RUNNING && healthy(j) >= j->o->least) {
        output_say(&j->printed, "%s: the job continues with %d workers", what, healthy(j));
    } else if (!is_alone && is_left) {
        output_say(&j->printed, "%s: restarting all workers (%lld of %lld)", what, (long long)++j->restarts,
                   (long long)j->o->restarts);
        j->phase = RESTARTING;
        end_workers(j, SIGTERM, j->o->grace_ms);
    } else {
        fail(j, code, what);
    }
}

static void take_end(job *j, worker *ended, int status)
{
    worker_state was = ended->state;
    bool is_killed = WIFEXITED(status) && WEXITSTATUS(status) == 128 + SIGKILL;
    worker_close(ended, &j->printed);
    if (was == WORKER_RUNNING && !ended->has_setup && status == 0)
        was = WORKER_READY; /* what answered there was no supervisor */
    ended->is_done = was == WORKER_RUNNING && WIFEXITED(status) && WEXITSTATUS(status) == 0;
    if ((j->phase == OPENING || j->phase == RUNNING) && !ended->is_done)
        take_failure(j, ended, was, status);
    else if (j->phase == ENDING && was == WORKER_RUNNING && is_killed && clock_left(j->kill_ms) == 0)
        j->killed++;
}

static void reap(job *j)
{
    int status;
    pid_t ended;
    while ((ended = waitpid(-1, &status, WNOHANG)) > 0)
        for (int rank = 0; rank < j->count; rank++)
            if (j->workers[rank].pid == ended)
                take_end(j, &j->workers[rank], status);
}

/* ---- What does not answer --------------------------------------------------------------------------------------- */

/* "node3, node7 and 14 others" */
static void name_awaited(const job *j, char *out, size_t room)
{
    size_t used = 0, named = 0, others = 0;
    const host *last = NULL;
    for (int rank = 0; rank < j->count; rank++) {
        const worker *one = &j->workers[rank];
        if (one->state != WORKER_STARTING || one->on == last)
            continue;
        last = one->on;
        if (named == 5)
            others++;
        else
            used += (size_t)snprintf(out + used, room - used, "%s%.60s", named++ ? ", " : "", last->name);
    }
    if (others)
        snprintf(out + used, room - used, " and %zu other%s", others, others > 1 ? "s" : "");
}

static bool is_awaiting(const job *j)
{
    return (j->phase == OPENING || j->phase == RUNNING) && count_state(j, WORKER_STARTING) > 0;
}

/* If other workers run, only those that do not answer are ended. */
static void look_at_awaited(job *j)
{
    char names[400], what[600];
    if (!is_awaiting(j) || clock_left(j->heard_ms + j->o->connect_ms) > 0)
        return;
    name_awaited(j, names, sizeof(names));
    snprintf(what, sizeof(what), "no answer from %s within %.3g s (--connect-timeout)", names,
             (double)j->o->connect_ms / 1000);
    if (j->phase == OPENING) {
        fail(j, 1, what);
        return;
    }
    output_say(&j->printed, "%s", what);
    for (int rank = 0; rank < j->count; rank++)
        if (j->workers[rank].state == WORKER_STARTING)
            worker_end(&j->workers[rank], SIGTERM, 0);
    j->heard_ms = clock_ms();
}

/* Processes that should have ended: their hosts are gone, or their connections hang. */
static void kill_late(job *j)
{
    for (int rank = 0; rank < j->count; rank++) {
        worker *one = &j->workers[rank];
        if (one->pid <= 0 || !one->until_ms || clock_left(one->until_ms) > 0)
            continue;
        one->until_ms = 0;
        (void)kill(-one->pid, SIGKILL); /* a script given as --ssh may have started ssh */
        if (one->state != WORKER_RUNNING)
            continue;
        output_say(&j->printed, "%s does not answer: rank %d %s", one->on->name, rank,
                   one->on->method == HOST_HERE ? "was killed" : "may still run there");
        if (j->phase == RESTARTING)
            j->code = 1;
        j->phase = ENDING;
    }
}

/* ---- Signals ---------------------------------------------------------------------------------------------------- */

static const int ending_signals[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT};

static void take_signal(job *j, int number)
{
    bool ends = false;
    for (size_t i = 0; i < sizeof(ending_signals) / sizeof(*ending_signals); i++)
        ends |= number == ending_signals[i];
    if (!ends) {
        pass_signal(j, number);
        if (number == SIGTSTP)
            (void)raise(SIGSTOP);
    } else if (j->phase != ENDING) {
        j->phase = ENDING;
        j->stop = number;
        output_say(&j->printed, "SIG%s ends the job", sigabbrev_np(number));
        end_workers(j, number, j->o->grace_ms);
    } else {
        for (int rank = 0; rank < j->count; rank++)
            worker_end(&j->workers[rank], SIGKILL, j->is_hurried ? 0 : LATE_MS);
        if (!j->stop && !j->code)
            j->stop = number;
        j->is_hurried = true;
    }
}

static void take_signals(job *j)
{
    struct signalfd_siginfo one;
    bool has_ended = false;
    while (read(j->signals, &one, sizeof(one)) == (ssize_t)sizeof(one)) {
        if (one.ssi_signo == SIGCHLD)
            has_ended = true;
        else
            take_signal(j, (int)one.ssi_signo);
    }
    if (has_ended)
        reap(j);
}

/* A signal that the caller ignores (nohup) stays ignored. */
static bool catch_signals(job *j)
{
    static const int numbers[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGTSTP, SIGCONT, SIGCHLD};
    sigset_t caught;
    (void)signal(SIGCHLD, SIG_DFL);
    (void)signal(SIGPIPE, SIG_IGN);
    sigemptyset(&caught);
    for (size_t i = 0; i < sizeof(numbers) / sizeof(*numbers); i++) {
        struct sigaction now;
        if (sigaction(numbers[i], NULL, &now) == 0 && now.sa_handler != SIG_IGN)
            sigaddset(&caught, numbers[i]);
    }
    (void)sigprocmask(SIG_BLOCK, &caught, NULL);
    j->signals = signalfd(-1, &caught, SFD_CLOEXEC | SFD_NONBLOCK);
    return j->signals >= 0;
}

/* ---- The loop --------------------------------------------------------------------------------------------------- */

/* If stdout cannot be written, the job ends: without a word if the reader has gone, as in "| head -1". Without stderr
 * the job continues. */
static void check_output(job *j)
{
    char what[200];
    int errnum = j->printed.errnum[0];
    if (!errnum || j->phase == ENDING)
        return;
    if (errnum == EPIPE) {
        j->phase = ENDING;
        j->code = 128 + SIGPIPE;
        end_workers(j, SIGTERM, j->o->grace_ms);
        return;
    }
    snprintf(what, sizeof(what), "standard output cannot be written: %s", wfi_nosignal_strerror(errnum));
    fail(j, 1, what);
}

/* While much waits to be printed, the workers' streams are not read; their ends are noticed nevertheless (reap). But a
 * supervisor's answer is awaited, and after the grace time no ssh may wait until its output is read. */
static bool may_read(const job *j, const worker *one, int which)
{
    bool is_over = j->kill_ms && clock_left(j->kill_ms) == 0;
    return output_has_room(&j->printed, which) || is_over || (which == 0 && one->state == WORKER_STARTING);
}

/* Returns the length of the list for poll. */
static size_t watch(job *j)
{
    size_t count = 0;
    j->fds[count++] = (struct pollfd){.fd = j->signals, .events = POLLIN};
    for (int which = 0; which < 2; which++)
        j->fds[count++] =
            (struct pollfd){.fd = j->printed.out[which].used > 0 ? j->printed.fds[which] : -1, .events = POLLOUT};
    for (int rank = 0; rank < j->count; rank++) {
        worker *one = &j->workers[rank];
        one->polled = one->pid > 0 ? count : 0;
        if (!one->polled)
            continue;
        for (int which = 0; which < 2; which++)
            j->fds[count++] =
                (struct pollfd){.fd = may_read(j, one, which) ? one->streams[which] : -1, .events = POLLIN};
        j->fds[count++] = (struct pollfd){.fd = one->outbox.used > 0 ? one->in : -1, .events = POLLOUT};
    }
    return count;
}

static void serve(job *j, worker *one)
{
    const struct pollfd *fds = &j->fds[one->polled];
    worker_state was = one->state;
    for (int which = 0; which < 2; which++)
        if (fds[which].revents && may_read(j, one, which))
            (void)worker_read(one, which, &j->printed.out[which]);
    if (fds[2].revents)
        worker_write(one);
    if (was == WORKER_STARTING && one->state == WORKER_READY)
        take_answer(j, one);
}

static void sooner(int64_t *next_ms, int64_t other_ms)
{
    if (other_ms && (!*next_ms || other_ms < *next_ms))
        *next_ms = other_ms;
}

/* Milliseconds until something is due, for poll; -1: no limit. */
static int time_left(const job *j)
{
    int64_t next_ms = 0;
    if (is_awaiting(j))
        next_ms = j->heard_ms + j->o->connect_ms;
    if (j->kill_ms && clock_left(j->kill_ms) > 0)
        sooner(&next_ms, j->kill_ms);
    for (int rank = 0; rank < j->count; rank++)
        sooner(&next_ms, j->workers[rank].until_ms);
    return next_ms ? clock_left(next_ms) : -1;
}

static void loop(job *j)
{
    while (count_state(j, WORKER_ENDED) < j->count) {
        start_waiting(j);
        if (poll(j->fds, watch(j), time_left(j)) < 0)
            continue; /* EINTR, or no memory now */
        for (int i = 0; i < j->count; i++)
            if (j->workers[(j->turn + i) % j->count].polled)
                serve(j, &j->workers[(j->turn + i) % j->count]);
        j->turn = (j->turn + 1) % j->count;
        if (j->fds[0].revents)
            take_signals(j);
        output_write(&j->printed, 0, 0);
        output_write(&j->printed, 1, 0);
        check_output(j);
        look_at_awaited(j);
        kill_late(j);
        if (j->phase == RESTARTING && count_state(j, WORKER_ENDED) == j->count)
            open_all(j);
    }
}

/* ---- The whole -------------------------------------------------------------------------------------------------- */

/* By slots: the first host is filled first. */
static bool place(job *j, host_list *hosts)
{
    int rank = 0;
    j->workers = calloc((size_t)j->count, sizeof(*j->workers));
    j->fds = calloc(FIXED_FDS + 3 * (size_t)j->count, sizeof(*j->fds));
    if (!j->workers || !j->fds)
        return false;
    for (size_t i = 0; i < hosts->count && rank < j->count; i++) {
        host *one = &hosts->items[i];
        for (; one->workers < one->slots && rank < j->count; rank++) {
            j->workers[rank] = (worker){.on = one, .rank = rank, .in = -1, .streams = {-1, -1}};
            j->workers[rank].local_rank = one->workers++;
        }
        j->setup.is_alone = i == 0;
    }
    return true;
}

static void finish(job *j)
{
    if (j->killed > 0 && !j->is_hurried)
        output_say(&j->printed, "%d worker%s did not end within %.3g s, and %s killed", j->killed,
                   j->killed > 1 ? "s" : "", (double)j->o->grace_ms / 1000, j->killed > 1 ? "were" : "was");
    if (!j->stop) { /* a signal that ends jobs ends this process at once, even if nobody reads its output */
        sigset_t ends;
        sigemptyset(&ends);
        for (size_t i = 0; i < sizeof(ending_signals) / sizeof(*ending_signals); i++)
            sigaddset(&ends, ending_signals[i]);
        (void)sigprocmask(SIG_UNBLOCK, &ends, NULL);
    }
    output_write(&j->printed, 0, j->stop ? LAST_MS : -1);
    check_output(j);
    if (j->printed.out[0].used > 0)
        output_say(&j->printed, "nobody read the last %zu bytes of the output: they are dropped",
                   j->printed.out[0].used);
    output_write(&j->printed, 1, j->stop ? LAST_MS : -1);
    output_fini(&j->printed);
    close(j->signals);
    free(j->workers);
    free(j->fds);
}

int job_run(const settings *o, host_list *hosts, const secret *job_secret)
{
    job j = {.o = o, .count = (int)o->workers};
    j.setup = (worker_setup){.o = o, .job_secret = job_secret, .first = &hosts->items[0]};
    j.setup.world_size = (int)(o->least ? o->most : o->workers);
    if (!place(&j, hosts) || !catch_signals(&j)) {
        fprintf(stderr, "weft-run: the job cannot be started: %s\n", strerror(errno));
        return 1;
    }
    output_init(&j.printed);
    open_all(&j);
    loop(&j);
    finish(&j);
    return j.stop ? 128 + j.stop : j.code;
}
