/* SPDX-License-Identifier: Apache-2.0 */
/* job.c - see job.h. */
#include "run/job.h"

#include "base/quiet.h"
#include "base/threads.h"
#include "run/clock.h"
#include "run/failure.h"
#include "run/lines.h"
#include "run/link.h"
#include "run/node.h"
#include "run/orders.h"
#include "run/printer.h"
#include "run/setup.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#define LATE_MS 5000        /* a node may need this long after the grace time */
#define REAP_MS 3000        /* for nodes, ssh and srun to exit after their connection has ended */
#define HURRIED_MS 500      /* the same after a second signal */
#define LAST_MS 1000        /* for the reader of stdout after a signal has ended the job */
#define ALIVE_MS 10000      /* between two signs of life for the nodes of other hosts */
#define SILENCE_MS 60000    /* without one for so long, a node ends its workers; without an answer, weft-run the job */
#define TELL_FIRST_MS 10000 /* when the hosts that do not answer are named */
#define TELL_NEXT_MS 30000  /* and again */
#define FIXED_FDS 3         /* in the list for poll, before those of the links */

typedef enum phase {
    OPENING,    /* not all nodes have answered */
    RUNNING,    /* the workers run */
    RESTARTING, /* one has failed; all are ended, and then restarted */
    ENDING,     /* the job is over; the workers are ended */
} phase;

typedef struct member { /* one worker */
    size_t link;
    int local_rank;
    bool is_running, is_done; /* is_done: it has exited with 0 */
    lines out[2];
} member;

typedef struct job {
    const settings *o;
    const secret *job_secret;
    phase phase;
    link_state *links;
    size_t link_count;
    member *members;
    int count, running;
    int64_t restarts; /* done so far */
    int killed;       /* workers that ignored SIGTERM */
    int signals;      /* signalfd */
    int stop;         /* the signal that ends the job; 0: none */
    bool is_hurried;  /* a second signal that ends the job has arrived */
    bool is_closing;  /* all workers have ended, and the connections are closed */
    int code;         /* the exit code; 0: no failure so far */
    int64_t late_ms;  /* when nodes that have not ended their workers are given up; 0: not ending */
    int64_t heard_ms; /* OPENING: when the last host answered */
    int64_t tell_ms;  /* OPENING: when the hosts that have not answered are named */
    int64_t alive_ms; /* when the next sign of life is due; 0: all nodes are on this machine */
    printer printed;
    struct pollfd *fds;
} job;

/* ---- Orders to the nodes ---------------------------------------------------------------------------------------- */

static void pass_signal(job *j, int number)
{
    for (size_t i = 0; i < j->link_count; i++)
        order_signal(&j->links[i], number);
}

static void end_workers(job *j, int number, int64_t grace_ms)
{
    for (size_t i = 0; i < j->link_count; i++)
        order_end(&j->links[i], number, grace_ms);
    j->late_ms = clock_ms() + grace_ms + LATE_MS;
}

/* ssh notices a cut network, but srun does not. */
static void give_up_silent(job *j)
{
    for (size_t i = 0; i < j->link_count; i++) {
        if (j->links[i].unanswered < SILENCE_MS / ALIVE_MS || j->links[i].until_ms || j->links[i].pid <= 0)
            continue;
        printer_say(&j->printed, "nothing came from %s for %d s: its workers may still run", j->links[i].to->name,
                    SILENCE_MS / 1000);
        link_end(&j->links[i], clock_ms());
    }
}

static void send_alive(job *j, int limit_ms)
{
    for (size_t i = 0; i < j->link_count; i++)
        order_alive(&j->links[i], limit_ms);
}

static void send_credit(job *j)
{
    for (size_t i = 0; i < j->link_count && printer_has_room(&j->printed); i++)
        order_credit(&j->links[i]);
}

static void start_worker(job *j, int rank)
{
    member *one = &j->members[rank];
    order_start(&j->links[one->link], rank, one->local_rank);
    one->is_running = true;
    one->is_done = false;
    for (int which = 0; which < 2; which++)
        lines_init(&one->out[which], rank, !j->o->no_prefix);
    j->running++;
}

static void set_up_link(job *j, size_t link)
{
    int here = 0;
    for (int rank = 0; rank < j->count; rank++)
        here += j->members[rank].link == link;
    const setup given = {
        .o = j->o,
        .job_secret = j->job_secret,
        .world_size = j->o->least ? j->o->most : j->count,
        /* in an elastic job on one host, a worker that joins later is here too */
        .local_world_size = j->o->least && j->link_count == 1 ? j->o->most : here,
        .first = j->links[0].to,
        .is_alone = j->link_count == 1,
        .master_port = j->o->master_port ? j->o->master_port : j->links[0].port,
    };
    setup_send(&given, j->links[link].to, &j->links[link].outbox);
}

/* ---- What follows from an end ----------------------------------------------------------------------------------- */

/* The workers that run or have done their work. */
static int healthy(const job *j)
{
    int count = 0;
    for (int rank = 0; rank < j->count; rank++)
        count += j->members[rank].is_running || j->members[rank].is_done;
    return count;
}

static void fail(job *j, int code, const char *what)
{
    j->phase = ENDING;
    j->code = j->code ? j->code : code;
    if (j->running > 1)
        printer_say(&j->printed, "%s: ending the other %d workers", what, j->running);
    else
        printer_say(&j->printed, "%s%s", what, j->running ? ": ending the other worker" : "");
    end_workers(j, SIGTERM, j->o->grace_ms);
}

static void start_all(job *j)
{
    j->phase = RUNNING;
    j->late_ms = 0;
    for (size_t i = 0; i < j->link_count; i++) {
        if (j->links[i].out < 0) {
            fail(j, 1, "a host is lost, so the workers cannot be started");
            return;
        }
    }
    for (int rank = 0; rank < j->count; rank++)
        start_worker(j, rank);
}

static void take_failure(job *j, const failure *what_failed)
{
    char what[600];
    int rank = what_failed->rank, kind = what_failed->kind;
    bool may_run = kind == ENDED_EXIT || kind == ENDED_SIGNAL || kind == ENDED_KILLED,
         is_left = j->restarts < j->o->restarts;
    bool is_alone = j->o->least && rank > 0; /* the others can go on without it */
    failure_describe(what_failed, &j->links[j->members[rank].link], j->o->argv[0], what, sizeof what);
    if (is_alone && may_run && is_left && !j->members[0].is_done) {
        printer_say(&j->printed, "%s: restarting it (%lld of %lld)", what, (long long)++j->restarts,
                    (long long)j->o->restarts);
        start_worker(j, rank);
    } else if (is_alone && (may_run || kind == LINK_LOST) && healthy(j) >= j->o->least) {
        printer_say(&j->printed, "%s: the job continues with %d workers", what, healthy(j));
    } else if (!is_alone && may_run && is_left) {
        printer_say(&j->printed, "%s: restarting all workers (%lld of %lld)", what, (long long)++j->restarts,
                    (long long)j->o->restarts);
        j->phase = RESTARTING;
        end_workers(j, SIGTERM, j->o->grace_ms);
    } else {
        fail(j, failure_code(what_failed), what);
    }
}

static void worker_ended(job *j, int rank, int kind, int code)
{
    member *one = &j->members[rank];
    if (!one->is_running)
        return;
    for (int which = 0; which < 2; which++)
        lines_end(&one->out[which], &j->printed.out[which]);
    one->is_running = false;
    one->is_done = kind == ENDED_EXIT && code == 0;
    j->running--;
    if (j->phase == RUNNING && !one->is_done)
        take_failure(j, &(failure){rank, kind, code});
    else if (j->phase == ENDING && kind == ENDED_KILLED)
        j->killed++;
    if (j->phase == RESTARTING && j->running == 0)
        start_all(j);
}

/* ---- What comes from a node ------------------------------------------------------------------------------------- */

static void take_frame(job *j, size_t link, frame *from)
{
    int number = frame_read_number(from), second = from->type == FROM_NODE_PORT ? 0 : frame_read_number(from);
    size_t size = 0;
    const char *bytes = from->type == FROM_NODE_OUTPUT ? frame_read_bytes(from, &size) : NULL;
    bool is_rank = number >= 0 && number < j->count && j->members[number].link == link;
    j->links[link].unpaid += size;
    if (from->type == FROM_NODE_PORT) {
        j->links[link].is_ready = true;
        j->heard_ms = clock_ms();
        order_alive(&j->links[link], SILENCE_MS);
        j->links[link].port = number > 0 && number <= 65535 ? number : 0;
    } else if (from->type == FROM_NODE_OUTPUT && is_rank && j->members[number].is_running) {
        size_t which = second == 1;
        lines_take(&j->members[number].out[which], bytes, size, &j->printed.out[which]);
    } else if (from->type == FROM_NODE_ENDED && is_rank) {
        worker_ended(j, number, second, frame_read_number(from));
    }
}

/* The connection to a host has ended, and its process was reaped. */
static void lose_link(job *j, size_t link)
{
    link_state *lost = &j->links[link];
    char how[64], what[600];
    bool is_opening = j->phase == OPENING;
    link_fini(lost);
    failure_describe_status(lost->status, how, sizeof how);
    if (is_opening && lost->is_other) {
        snprintf(what, sizeof what, "%s has a weft-run of another version: --node-program names the right one",
                 lost->to->name);
        fail(j, 1, what);
    } else if (is_opening) {
        bool exited = WIFEXITED(lost->status), lacks = exited && WEXITSTATUS(lost->status) == 127;
        bool was_other = exited && WEXITSTATUS(lost->status) == 0;
        snprintf(what, sizeof what, "%s cannot be reached: %s %s%s", lost->to->name, link_command(lost), how,
                 lacks       ? " (is it installed here, and weft-run there? --ssh, --node-program)"
                 : was_other ? ", but weft-run has not started there (--node-program)"
                             : "");
        fail(j, 1, what);
    }
    for (int rank = 0; rank < j->count; rank++)
        if (j->members[rank].link == link)
            worker_ended(j, rank, LINK_LOST, 0);
}

static void take_link(job *j, size_t link)
{
    link_state *from = &j->links[link];
    frame one;
    int found = 0;
    bool is_open = link_read(from);
    while (from->is_greeted && (found = frame_first(&from->inbox, &one)) > 0) {
        take_frame(j, link, &one);
        buffer_drop(&from->inbox, one.size);
    }
    if (!is_open || found < 0 || from->is_other)
        link_end(from, clock_ms() + REAP_MS);
}

static void begin_if_open(job *j)
{
    if (j->phase != OPENING)
        return;
    for (size_t i = 0; i < j->link_count; i++)
        if (!j->links[i].is_ready)
            return;
    if (!j->links[0].port && !j->o->master_port) {
        fail(j, 1, "the host of rank 0 has no free port");
        return;
    }
    for (size_t i = 0; i < j->link_count; i++)
        set_up_link(j, i);
    start_all(j);
}

/* "node3, node7 and 14 others" */
static void name_awaited(const job *j, char *out, size_t room)
{
    size_t used = 0, named = 0, others = 0;
    for (size_t i = 0; i < j->link_count; i++) {
        if (j->links[i].is_ready)
            continue;
        if (named == 5)
            others++;
        else
            used += (size_t)snprintf(out + used, room - used, "%s%.60s", named++ ? ", " : "", j->links[i].to->name);
    }
    if (others)
        snprintf(out + used, room - used, " and %zu other%s", others, others > 1 ? "s" : "");
}

/* A login script that waits for something is no error of ssh's. */
static void look_at_awaited(job *j)
{
    char names[400], what[600];
    int64_t now_ms = clock_ms();
    if (j->phase != OPENING)
        return;
    name_awaited(j, names, sizeof names);
    if (now_ms >= j->heard_ms + j->o->connect_ms) {
        snprintf(what, sizeof what, "no answer from %s within %.3g s (--connect-timeout)", names,
                 (double)j->o->connect_ms / 1000);
        fail(j, 1, what);
    } else if (now_ms >= j->tell_ms) {
        j->tell_ms = now_ms + TELL_NEXT_MS;
        printer_say(&j->printed, "still waiting for %s", names);
    }
}

/* ---- Signals ---------------------------------------------------------------------------------------------------- */

/*
 * The orders that wait are sent first, because a stopped process sends nothing. The nodes then wait for it without
 * limit. Times in which it was stopped do not count.
 */
static void stop_here(job *j)
{
    int64_t until_ms = clock_ms() + LAST_MS, left_ms;
    send_alive(j, 0);
    for (size_t i = 0; i < j->link_count; i++)
        while (j->links[i].in >= 0 && j->links[i].outbox.used > 0 && link_write(&j->links[i]) &&
               (left_ms = until_ms - clock_ms()) > 0) {
            struct pollfd room = {.fd = j->links[i].in, .events = POLLOUT};
            (void)poll(&room, 1, (int)left_ms);
        }
    (void)raise(SIGSTOP);
    j->heard_ms = clock_ms();
    j->alive_ms = j->alive_ms ? j->heard_ms : 0;
    if (j->late_ms && j->late_ms < j->heard_ms + LATE_MS)
        j->late_ms = j->heard_ms + LATE_MS;
}

/* A signal has come while the job ends. */
static void hurry(job *j, int number)
{
    int64_t until_ms = clock_ms() + (j->is_hurried ? 0 : HURRIED_MS);
    j->is_hurried = true;
    if (!j->stop && !j->code)
        j->stop = number;
    end_workers(j, number, 0);
    for (size_t i = 0; i < j->link_count && j->is_closing; i++)
        link_end(&j->links[i], until_ms);
}

static void take_signal(job *j, int number)
{
    bool ends = number == SIGINT || number == SIGTERM || number == SIGHUP || number == SIGQUIT;
    if (!ends) {
        pass_signal(j, number);
        if (number == SIGTSTP)
            stop_here(j);
        return;
    }
    if (j->phase == ENDING) {
        hurry(j, number);
        return;
    }
    j->phase = ENDING;
    j->stop = number;
    printer_say(&j->printed, "SIG%s ends the job", sigabbrev_np(number));
    end_workers(j, number, j->o->grace_ms);
}

/* A signal that the caller ignores (nohup) stays ignored. */
static bool catch_signals(job *j)
{
    static const int numbers[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGTSTP, SIGCONT};
    sigset_t caught;
    sigemptyset(&caught);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        struct sigaction now;
        if (sigaction(numbers[i], NULL, &now) == 0 && now.sa_handler != SIG_IGN)
            sigaddset(&caught, numbers[i]);
    }
    (void)signal(SIGCHLD, SIG_DFL);
    (void)signal(SIGPIPE, SIG_IGN);
    (void)sigprocmask(SIG_BLOCK, &caught, NULL);
    j->signals = signalfd(-1, &caught, SFD_CLOEXEC | SFD_NONBLOCK);
    return j->signals >= 0;
}

/* ---- The loop --------------------------------------------------------------------------------------------------- */

/* If stdout cannot be written, the job ends: without a word if the reader has gone, as in "| head -1". Without stderr
 * the job continues. */
static void print(job *j)
{
    char what[200];
    printer_write(&j->printed);
    if (!j->printed.is_shut[0] || j->phase == ENDING)
        return;
    if (j->printed.trouble[0] == EPIPE) {
        j->phase = ENDING;
        j->code = 128 + SIGPIPE;
        end_workers(j, SIGTERM, j->o->grace_ms);
        return;
    }
    snprintf(what, sizeof what, "standard output cannot be written: %s", wfi_quiet_trouble(j->printed.trouble[0]));
    fail(j, 1, what);
}

/* The links are always read: credit (node.h) bounds what comes. */
static void watch(job *j)
{
    j->fds[0] = (struct pollfd){.fd = j->signals, .events = POLLIN};
    for (int which = 0; which < 2; which++)
        j->fds[1 + which] =
            (struct pollfd){.fd = j->printed.out[which].used > 0 ? j->printed.fds[which] : -1, .events = POLLOUT};
    for (size_t i = 0; i < j->link_count; i++) {
        struct pollfd *fds = &j->fds[FIXED_FDS + 2 * i];
        const link_state *of = &j->links[i];
        fds[0] = (struct pollfd){.fd = of->until_ms ? of->process : of->out, .events = POLLIN};
        fds[1] = (struct pollfd){.fd = of->outbox.used > 0 ? of->in : -1, .events = POLLOUT};
    }
}

static void sooner(int64_t *next_ms, int64_t other_ms)
{
    if (other_ms && (!*next_ms || other_ms < *next_ms))
        *next_ms = other_ms;
}

/* Milliseconds until something is due, for poll; -1: no limit. */
static int time_left(const job *j)
{
    int64_t next_ms = j->late_ms;
    sooner(&next_ms, j->alive_ms);
    if (j->phase == OPENING) {
        sooner(&next_ms, j->tell_ms);
        sooner(&next_ms, j->heard_ms + j->o->connect_ms);
    }
    for (size_t i = 0; i < j->link_count; i++)
        sooner(&next_ms, j->links[i].pid > 0 ? j->links[i].until_ms : 0);
    int64_t left_ms = next_ms - clock_ms();
    return !next_ms ? -1 : left_ms < 0 ? 0 : (int)left_ms;
}

/* Nodes do not answer: their hosts are gone, or their connections hang. */
static void give_up(job *j)
{
    if (j->phase == RESTARTING)
        j->code = 1;
    j->phase = ENDING;
    for (size_t i = 0; i < j->link_count; i++) {
        bool has_worker = false;
        for (int rank = 0; rank < j->count; rank++)
            has_worker = has_worker || (j->members[rank].link == i && j->members[rank].is_running);
        if (!has_worker || j->links[i].pid <= 0)
            continue;
        printer_say(&j->printed, "%s does not answer: its workers may still run", j->links[i].to->name);
        link_end(&j->links[i], clock_ms());
    }
    j->late_ms = 0;
}

/* All workers have ended, so the nodes exit. One deadline for all of them. */
static void close_links(job *j)
{
    int64_t until_ms = clock_ms() + (j->is_hurried ? HURRIED_MS : REAP_MS);
    j->is_closing = true;
    j->phase = ENDING;
    j->late_ms = j->alive_ms = 0;
    for (size_t i = 0; i < j->link_count; i++) {
        link_stop_connecting(&j->links[i]);
        link_end(&j->links[i], until_ms);
    }
}

static bool is_over(const job *j)
{
    for (size_t i = 0; i < j->link_count; i++)
        if (j->links[i].pid > 0)
            return false;
    return j->is_closing;
}

static void take_signals(job *j)
{
    struct signalfd_siginfo one;
    while (read(j->signals, &one, sizeof one) == (ssize_t)sizeof one)
        take_signal(j, (int)one.ssi_signo);
}

static void serve_link(job *j, size_t link)
{
    link_state *one = &j->links[link];
    const struct pollfd *fds = &j->fds[FIXED_FDS + 2 * link];
    if (fds[1].revents && one->in >= 0)
        if (!link_write(one))
            link_end(one, clock_ms() + REAP_MS);
    if (fds[0].revents && one->out >= 0)
        take_link(j, link);
    if (one->until_ms && one->pid > 0 && link_reap(one))
        lose_link(j, link);
}

static void loop(job *j)
{
    while (!is_over(j)) {
        watch(j);
        if (poll(j->fds, FIXED_FDS + 2 * j->link_count, time_left(j)) < 0 && errno != EINTR) {
            printer_say(&j->printed, "poll of %zu hosts: %s", j->link_count, strerror(errno));
            j->code = j->code ? j->code : 1;
            give_up(j);
        }
        if (j->fds[0].revents)
            take_signals(j);
        for (size_t i = 0; i < j->link_count; i++)
            serve_link(j, i);
        print(j);
        send_credit(j);
        begin_if_open(j);
        look_at_awaited(j);
        if (j->late_ms && clock_ms() >= j->late_ms)
            give_up(j);
        if (j->alive_ms && clock_ms() >= j->alive_ms) {
            j->alive_ms = clock_ms() + ALIVE_MS;
            give_up_silent(j);
            send_alive(j, SILENCE_MS);
        }
        if (!j->is_closing && j->phase != OPENING && j->running == 0)
            close_links(j);
    }
}

/* ---- The whole -------------------------------------------------------------------------------------------------- */

/* By slots: the first host is filled first. */
static bool place(job *j, const host_list *hosts)
{
    int rank = 0;
    j->members = calloc((size_t)j->count, sizeof *j->members);
    j->links = calloc(hosts->count, sizeof *j->links);
    j->fds = calloc(FIXED_FDS + 2 * hosts->count, sizeof *j->fds);
    if (!j->members || !j->links || !j->fds)
        return false;
    for (size_t i = 0; i < hosts->count && rank < j->count; i++) {
        j->links[i] = (link_state){.to = &hosts->items[i], .in = -1, .out = -1, .process = -1};
        j->alive_ms = hosts->items[i].method == HOST_HERE ? j->alive_ms : clock_ms();
        j->link_count++;
        for (int local = 0; local < hosts->items[i].slots && rank < j->count; local++)
            j->members[rank++] = (member){.link = i, .local_rank = local};
    }
    return true;
}

static bool open_links(job *j)
{
    for (int turn = 0; turn < 2; turn++) /* this machine first: link.h says why */
        for (size_t i = 0; i < j->link_count; i++)
            if ((j->links[i].to->method == HOST_HERE) == (turn == 0) && !link_open(&j->links[i], j->links[i].to, j->o))
                return false;
    return true;
}

static void finish(job *j)
{
    for (size_t i = 0; i < j->link_count; i++)
        link_fini(&j->links[i]);
    if (j->killed > 0 && !j->is_hurried)
        printer_say(&j->printed, "%d of them did not end within %.3g s, and %s killed", j->killed,
                    (double)j->o->grace_ms / 1000, j->killed > 1 ? "were" : "was");
    if (!j->stop) /* a signal now ends this process at once, even if nobody reads its output */
        (void)sigprocmask(SIG_SETMASK, &(sigset_t){0}, NULL);
    printer_finish(&j->printed, j->stop ? LAST_MS : -1);
    close(j->signals);
    free(j->members);
    free(j->links);
    free(j->fds);
}

int job_run(const settings *o, const host_list *hosts, const secret *job_secret)
{
    job j = {.o = o, .job_secret = job_secret, .count = (int)o->workers};
    if (!place(&j, hosts) || !catch_signals(&j) || !open_links(&j)) {
        char why[WFI_THREADS_TEXT];
        fprintf(stderr, "weft-run: the job cannot be started: %s\n",
                errno == EAGAIN ? wfi_threads_text(errno, why) : strerror(errno));
        return 1;
    }
    j.heard_ms = clock_ms();
    j.tell_ms = j.heard_ms + TELL_FIRST_MS;
    printer_init(&j.printed);
    loop(&j);
    finish(&j);
    return j.stop ? 128 + j.stop : j.code;
}
