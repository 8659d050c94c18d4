/* SPDX-License-Identifier: Apache-2.0 */
/* job.c - see job.h. */
#include "run/job.h"

#include "run/clock.h"
#include "run/lines.h"
#include "run/link.h"
#include "run/node.h"
#include "run/printer.h"
#include "run/setup.h"
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

#define LATE_MS 5000 /* a node may need this long after the grace time */
#define REAP_MS 3000 /* for ssh and srun to exit after their connection has ended */
#define LAST_MS 1000 /* for the reader of stdout after a signal has ended the job */
#define FIXED_FDS 3  /* in the list for poll, before those of the links */

enum { LINK_LOST = 16 }; /* beside the kinds of node.h */

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
    bool is_hurried;  /* a second one came */
    int code;         /* the exit code; 0: no failure so far */
    int64_t late_ms;  /* when nodes that have not ended their workers are given up; 0: not ending */
    printer printed;
    struct pollfd *fds;
} job;

/* ---- What is printed -------------------------------------------------------------------------------------------- */

static const char *host_of(const job *j, int rank)
{
    return j->links[j->members[rank].link].to->name;
}

static void describe_signal(int number, char *out, size_t room)
{
    const char *name = sigabbrev_np(number);
    if (name)
        snprintf(out, room, "SIG%s", name);
    else
        snprintf(out, room, "signal %d", number);
}

static void describe_status(int status, char *out, size_t room)
{
    char name[32];
    describe_signal(WTERMSIG(status), name, sizeof name);
    if (WIFSIGNALED(status))
        snprintf(out, room, "was killed by %s", name);
    else
        snprintf(out, room, "exited with code %d", WEXITSTATUS(status));
}

/* "rank 2 on node1 exited with code 7" */
static void describe(const job *j, int rank, int kind, int code, char *out, size_t room)
{
    const char *name = host_of(j, rank);
    const link_state *link = &j->links[j->members[rank].link];
    char how[512];
    if (kind == ENDED_EXIT) {
        snprintf(out, room, "rank %d on %s exited with code %d", rank, name, code);
    } else if (kind == ENDED_SIGNAL) {
        describe_signal(code, how, sizeof how);
        snprintf(out, room, "rank %d on %s was killed by %s", rank, name, how);
    } else if (kind == ENDED_KILLED) { /* weft-run has not asked for it, so somebody has sent a signal to the node */
        snprintf(out, room, "rank %d on %s was killed, because weft-run's process there got a signal", rank, name);
    } else if (kind == ENDED_NOT_STARTED) {
        worker_describe_trouble(j->o->argv[0], code, how, sizeof how);
        snprintf(out, room, "rank %d on %s could not be started: %s", rank, name, how);
    } else if (kind == ENDED_NO_FOLDER) {
        snprintf(out, room, "rank %d on %s could not be started: the folder of weft-run is not there: %s", rank, name,
                 strerror(code));
    } else if (link->to->method == HOST_HERE) {
        describe_status(link->status, how, sizeof how);
        snprintf(out, room, "rank %d is lost: the process that watched it %s", rank, how);
    } else {
        describe_status(link->status, how, sizeof how);
        snprintf(out, room, "rank %d on %s is lost: the connection ended (%s %s)", rank, name,
                 link->to->method == HOST_SRUN ? "srun" : "ssh", how);
    }
}

/* ---- Orders to the nodes ---------------------------------------------------------------------------------------- */

static void pass_signal(job *j, int number)
{
    for (size_t i = 0; i < j->link_count; i++) {
        size_t begun = frame_begin(&j->links[i].outbox, TO_NODE_SIGNAL);
        frame_number(&j->links[i].outbox, number);
        frame_end(&j->links[i].outbox, begun);
    }
}

static void end_workers(job *j, int number, int64_t grace_ms)
{
    for (size_t i = 0; i < j->link_count; i++) {
        size_t begun = frame_begin(&j->links[i].outbox, TO_NODE_END);
        frame_number(&j->links[i].outbox, number);
        frame_number(&j->links[i].outbox, grace_ms);
        frame_end(&j->links[i].outbox, begun);
    }
    j->late_ms = clock_ms() + grace_ms + LATE_MS;
}

static void start_worker(job *j, int rank)
{
    member *one = &j->members[rank];
    buffer *to = &j->links[one->link].outbox;
    size_t begun = frame_begin(to, TO_NODE_START);
    frame_number(to, rank);
    frame_number(to, one->local_rank);
    frame_end(to, begun);
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

/* A failure never becomes 0, whatever another host reports. */
static int code_of(int kind, int code)
{
    switch (kind) {
    case ENDED_EXIT:
        return code > 0 && code < 256 ? code : 1;
    case ENDED_SIGNAL:
    case ENDED_KILLED:
        return code > 0 && code < 128 ? 128 + code : 1;
    case ENDED_NOT_STARTED:
        return code == ENOENT ? 127 : 126;
    case ENDED_NO_FOLDER:
        return 126;
    default:
        return 1;
    }
}

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
            fail(j, 1, "a host is lost, so the workers cannot be restarted");
            return;
        }
    }
    for (int rank = 0; rank < j->count; rank++)
        start_worker(j, rank);
}

static void take_failure(job *j, int rank, int kind, int code)
{
    char what[600];
    bool may_run = kind == ENDED_EXIT || kind == ENDED_SIGNAL || kind == ENDED_KILLED,
         is_left = j->restarts < j->o->restarts;
    bool is_alone = j->o->least && rank > 0; /* the others can go on without it */
    describe(j, rank, kind, code, what, sizeof what);
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
        fail(j, code_of(kind, code), what);
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
        take_failure(j, rank, kind, code);
    else if (j->phase == ENDING && kind == ENDED_KILLED)
        j->killed++;
    if (j->phase == RESTARTING && j->running == 0)
        start_all(j);
}

/* ---- What comes from a node ------------------------------------------------------------------------------------- */

static void take_frame(job *j, size_t link, frame *from)
{
    int number = frame_read_number(from), second = from->type == FROM_NODE_PORT ? 0 : frame_read_number(from);
    bool is_rank = number >= 0 && number < j->count && j->members[number].link == link;
    if (from->type == FROM_NODE_PORT) {
        j->links[link].is_ready = true;
        j->links[link].port = number > 0 && number <= 65535 ? number : 0;
    } else if (from->type == FROM_NODE_OUTPUT && is_rank && j->members[number].is_running) {
        size_t size, which = second == 1;
        const char *bytes = frame_read_bytes(from, &size);
        lines_take(&j->members[number].out[which], bytes, size, &j->printed.out[which]);
    } else if (from->type == FROM_NODE_ENDED && is_rank) {
        worker_ended(j, number, second, frame_read_number(from));
    }
}

static void lose_link(job *j, size_t link)
{
    link_state *lost = &j->links[link];
    char how[64], what[600];
    bool is_opening = j->phase == OPENING;
    link_close(lost);
    link_reap(lost, REAP_MS);
    link_fini(lost);
    describe_status(lost->status, how, sizeof how);
    if (is_opening) {
        bool lacks = WIFEXITED(lost->status) && WEXITSTATUS(lost->status) == 127;
        snprintf(what, sizeof what, "%s cannot be reached: %s %s%s", lost->to->name,
                 lost->to->method == HOST_SRUN  ? "srun"
                 : lost->to->method == HOST_SSH ? "ssh"
                                                : "the process that watches the workers",
                 how, lacks ? " (is weft-run installed there? --node-program)" : "");
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
    if (!is_open || found < 0)
        lose_link(j, link);
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

/* ---- Signals ---------------------------------------------------------------------------------------------------- */

/* The orders that wait are sent first: a stopped process sends nothing. */
static void stop_here(job *j)
{
    for (size_t i = 0; i < j->link_count; i++)
        while (j->links[i].in >= 0 && j->links[i].outbox.used > 0 && link_write(&j->links[i])) {
            struct pollfd room = {.fd = j->links[i].in, .events = POLLOUT};
            (void)poll(&room, 1, 1000);
        }
    (void)raise(SIGSTOP);
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
        j->stop = j->stop ? j->stop : j->code ? 0 : number;
        j->is_hurried = true;
        end_workers(j, number, 0);
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

/* If stdout cannot be written any more, the job ends. Without stderr it goes on. */
static void print(job *j)
{
    char what[200];
    printer_write(&j->printed, 0);
    if (!j->printed.is_shut[0] || j->phase == ENDING)
        return;
    snprintf(what, sizeof what, "standard output cannot be written: %s", strerror(j->printed.trouble[0]));
    fail(j, 1, what);
}

static void watch(job *j)
{
    bool has_room = printer_has_room(&j->printed);
    j->fds[0] = (struct pollfd){.fd = j->signals, .events = POLLIN};
    for (int which = 0; which < 2; which++)
        j->fds[1 + which] = (struct pollfd){.fd = j->printed.out[which].used > 0 ? which + 1 : -1, .events = POLLOUT};
    for (size_t i = 0; i < j->link_count; i++) {
        struct pollfd *fds = &j->fds[FIXED_FDS + 2 * i];
        fds[0] = (struct pollfd){.fd = has_room ? j->links[i].out : -1, .events = POLLIN};
        fds[1] = (struct pollfd){.fd = j->links[i].outbox.used > 0 ? j->links[i].in : -1, .events = POLLOUT};
    }
}

/* In time, because a link may not answer: its host is gone, or its connection hangs. */
static int time_left(const job *j)
{
    int64_t left_ms = j->late_ms - clock_ms();
    return !j->late_ms ? -1 : left_ms < 0 ? 0 : (int)left_ms;
}

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
        (void)kill(j->links[i].pid, SIGKILL);
        lose_link(j, i);
    }
    j->late_ms = 0;
}

static void take_signals(job *j)
{
    struct signalfd_siginfo one;
    while (read(j->signals, &one, sizeof one) == (ssize_t)sizeof one)
        take_signal(j, (int)one.ssi_signo);
}

static void loop(job *j)
{
    while (j->phase == OPENING || j->running > 0) {
        watch(j);
        if (poll(j->fds, FIXED_FDS + 2 * j->link_count, time_left(j)) < 0) {
            if (errno != EINTR) {
                printer_say(&j->printed, "poll of %zu hosts: %s", j->link_count, strerror(errno));
                give_up(j);
            }
            continue;
        }
        if (j->fds[0].revents)
            take_signals(j);
        print(j);
        for (size_t i = 0; i < j->link_count; i++) {
            if (j->fds[FIXED_FDS + 2 * i + 1].revents && j->links[i].in >= 0)
                (void)link_write(&j->links[i]); /* if that fails, its output ends too */
            if (j->fds[FIXED_FDS + 2 * i].revents && j->links[i].out >= 0)
                take_link(j, i);
        }
        begin_if_open(j);
        if (j->late_ms && time_left(j) == 0)
            give_up(j);
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
        j->links[i] = (link_state){.to = &hosts->items[i], .in = -1, .out = -1};
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

static void close_all(job *j)
{
    for (size_t i = 0; i < j->link_count; i++)
        link_close(&j->links[i]);
    for (size_t i = 0; i < j->link_count; i++) {
        link_reap(&j->links[i], REAP_MS);
        link_fini(&j->links[i]);
    }
    if (j->killed > 0 && !j->is_hurried)
        printer_say(&j->printed, "%d of them did not end within %.3g s, and %s killed", j->killed,
                    (double)j->o->grace_ms / 1000, j->killed > 1 ? "were" : "was");
    if (!j->stop) /* a signal now ends this process at once, even if nobody reads its output */
        (void)sigprocmask(SIG_SETMASK, &(sigset_t){0}, NULL);
    printer_write(&j->printed, j->stop ? LAST_MS : -1);
    printer_fini(&j->printed);
    close(j->signals);
    free(j->members);
    free(j->links);
    free(j->fds);
}

int job_run(const settings *o, const host_list *hosts, const secret *job_secret)
{
    job j = {.o = o, .job_secret = job_secret, .count = (int)o->workers};
    if (!place(&j, hosts) || !catch_signals(&j) || !open_links(&j)) {
        fprintf(stderr, "weft-run: the job cannot be started: %s\n", strerror(errno));
        return 1;
    }
    loop(&j);
    close_all(&j);
    return j.stop ? 128 + j.stop : j.code;
}
