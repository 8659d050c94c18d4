/* SPDX-License-Identifier: Apache-2.0 */
/* node.c - see node.h. */
#include "run/node.h"

#include "base/quiet.h"
#include "run/buffer.h"
#include "run/clock.h"
#include "run/secret.h"
#include "run/worker.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define GRACE_MS 5000  /* until weft-run says another */
#define FIXED_FDS 3    /* in the list for poll, before those of the workers */
#define LINGER_MS 1000 /* for output of processes that a worker started, after its end */

extern char **environ;

typedef struct node {
    int in, out, signals, secret_fd;
    bool is_cut;                  /* nobody is at the other end */
    bool is_silent;               /* because nothing came from weft-run */
    int64_t heard_ms, silence_ms; /* when something came; how long nothing may come, 0: no limit */
    size_t unpaid;                /* bytes of output that were sent and have no credit yet */
    size_t turn;                  /* the pipe that is read first: another one each time */
    int64_t grace_ms;
    int folder_trouble; /* errno of chdir */
    char **argv;
    char **given; /* variables from weft-run */
    char **envp;  /* for a worker; the first two are RANK and LOCAL_RANK. The strings belong to others */
    char secret_variable[40];
    buffer inbox, outbox;
    worker *workers;
    size_t count;
    struct pollfd *fds;
} node;

/* ---- The port of the store -------------------------------------------------------------------------------------- */

/*
 * Reserves a port without listening on it. SO_REUSEADDR is set after bind: then the store, which has it too, may listen
 * on the port, while no other program gets it as "any free port". The socket stays open.
 */
static int reserve_port(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_ANY)};
    socklen_t size = sizeof address;
    int one = 1, fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || bind(fd, (struct sockaddr *)&address, sizeof address) != 0 ||
        getsockname(fd, (struct sockaddr *)&address, &size) != 0 ||
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) != 0)
        return 0;
    return ntohs(address.sin_port);
}

/* ---- Reports ---------------------------------------------------------------------------------------------------- */

static void put_ended(node *n, int rank, int kind, int code)
{
    size_t begun = frame_begin(&n->outbox, FROM_NODE_ENDED);
    frame_number(&n->outbox, rank);
    frame_number(&n->outbox, kind);
    frame_number(&n->outbox, code);
    frame_end(&n->outbox, begun);
}

static void put_alive(node *n)
{
    size_t begun = frame_begin(&n->outbox, FROM_NODE_ALIVE);
    frame_number(&n->outbox, 0);
    frame_end(&n->outbox, begun);
}

/* Returns the bytes; 0 if there is nothing to read now, or the pipe is closed. */
static size_t pass_output(node *n, worker *from, int which)
{
    buffer got = {0};
    if (from->pipes[which] < 0)
        return 0;
    buffer_end end = buffer_read(&got, from->pipes[which]);
    size_t size = got.used;
    if (size > 0 && !n->is_cut) {
        size_t begun = frame_begin(&n->outbox, FROM_NODE_OUTPUT);
        frame_number(&n->outbox, from->rank);
        frame_number(&n->outbox, which);
        frame_bytes(&n->outbox, got.data, size);
        frame_end(&n->outbox, begun);
        n->unpaid += size;
    }
    buffer_fini(&got);
    if (end != BUFFER_OPEN) {
        close(from->pipes[which]);
        from->pipes[which] = -1;
    }
    return size;
}

/* Passes only what the pipe holds now, because a process that outlives the worker may fill it forever. */
static void drain(node *n, worker *ended, int which)
{
    int left = 0;
    if (ended->pipes[which] < 0 || ioctl(ended->pipes[which], FIONREAD, &left) != 0)
        left = 0;
    while (left > 0) {
        size_t size = pass_output(n, ended, which);
        left = size > 0 ? left - (int)size : 0;
    }
    if (ended->pipes[which] >= 0)
        close(ended->pipes[which]);
    ended->pipes[which] = -1;
}

static void worker_ended(node *n, worker *ended)
{
    int status = worker_reap(ended);
    for (int which = 0; which < 2; which++)
        drain(n, ended, which);
    if (!WIFSIGNALED(status))
        put_ended(n, ended->rank, ENDED_EXIT, WEXITSTATUS(status));
    else if (ended->is_killed && WTERMSIG(status) == SIGKILL)
        put_ended(n, ended->rank, ENDED_KILLED, SIGKILL);
    else
        put_ended(n, ended->rank, ENDED_SIGNAL, WTERMSIG(status));
}

static bool is_over(const node *n, const worker *lingering)
{
    int64_t now_ms = clock_ms();
    bool is_open = lingering->pipes[0] >= 0 || lingering->pipes[1] >= 0;
    return !is_open || n->is_cut || now_ms >= lingering->lingers_to_ms ||
           (lingering->kill_at_ms && now_ms >= lingering->kill_at_ms);
}

static void end_lingering(node *n)
{
    for (size_t i = 0; i < n->count; i++) {
        worker *one = &n->workers[i];
        if (!one->lingers_to_ms || !is_over(n, one))
            continue;
        one->lingers_to_ms = 0;
        worker_ended(n, one);
    }
}

static bool is_worker(const node *n, pid_t pid)
{
    for (size_t i = 0; i < n->count; i++)
        if (n->workers[i].pid == pid)
            return true;
    return false;
}

/* This process inherits the orphans of its workers, so a child need not be a worker. */
static void reap(node *n)
{
    siginfo_t about;
    for (size_t i = 0; i < n->count; i++) {
        worker *one = &n->workers[i];
        about.si_pid = 0;
        if (one->pid > 0 && !one->lingers_to_ms &&
            waitid(P_PID, (id_t)one->pid, &about, WEXITED | WNOHANG | WNOWAIT) == 0 && about.si_pid)
            one->lingers_to_ms = clock_ms() + LINGER_MS;
    }
    end_lingering(n);
    for (;;) {
        about.si_pid = 0;
        if (waitid(P_ALL, 0, &about, WEXITED | WNOHANG | WNOWAIT) != 0 || about.si_pid == 0)
            return;
        if (is_worker(n, about.si_pid)) /* orphans that ended after it wait until it is reaped */
            return;
        (void)waitpid(about.si_pid, NULL, WNOHANG);
    }
}

/* ---- Orders ----------------------------------------------------------------------------------------------------- */

static void signal_all(const node *n, int number)
{
    for (size_t i = 0; i < n->count; i++)
        worker_signal(&n->workers[i], number);
}

static void end_all(node *n, int number, int64_t grace_ms)
{
    int64_t kill_at_ms = clock_ms() + grace_ms;
    for (size_t i = 0; i < n->count; i++) {
        worker *each = &n->workers[i];
        if (each->kill_at_ms && each->kill_at_ms <= kill_at_ms)
            continue;
        each->kill_at_ms = kill_at_ms;
        worker_signal(each, number);
        worker_signal(each, SIGCONT); /* a stopped one could not obey */
    }
}

/* Returns when the next worker is to be killed; 0: none. */
static int64_t kill_late(node *n)
{
    int64_t next_ms = 0, now_ms = clock_ms();
    for (size_t i = 0; i < n->count; i++) {
        worker *each = &n->workers[i];
        if (each->pid <= 0 || !each->kill_at_ms)
            continue;
        if (each->kill_at_ms <= now_ms) {
            each->is_killed = !each->lingers_to_ms;
            worker_signal(each, SIGKILL);
        } else if (!next_ms || each->kill_at_ms < next_ms) {
            next_ms = each->kill_at_ms;
        }
    }
    return next_ms;
}

static bool has_prefix(const char *text, const char *prefix)
{
    return strncmp(text, prefix, strlen(prefix)) == 0;
}

/* Variables that a launcher sets, or that name a secret: they belong to another job. */
static bool is_replaced(const char *variable, char *const *given, size_t count)
{
    static const char *const names[] = {
        "RANK=",        "LOCAL_RANK=",  "WORLD_SIZE=",     "LOCAL_WORLD_SIZE=", "MASTER_ADDR=",
        "MASTER_PORT=", "WEFT_SECRET=", "WEFT_SECRET_FD=", "WEFT_SPAWNED=",     "WEFT_SECRET_FILE="};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (has_prefix(variable, names[i]))
            return true;
    size_t length = strcspn(variable, "=") + 1;
    for (size_t i = 0; i < count; i++)
        if (strncmp(variable, given[i], length) == 0)
            return true;
    return false;
}

static char **read_list(frame *from, size_t *count)
{
    size_t wanted = (uint32_t)frame_read_number(from);
    char **list = NULL;
    if (from->is_bad || wanted > (size_t)(from->end - from->at) / 4 || !(list = calloc(wanted + 1, sizeof *list)))
        from->is_bad = true;
    for (size_t i = 0; list && i < wanted; i++)
        list[i] = frame_read_text(from);
    *count = list ? wanted : 0;
    return list;
}

/* The environment of a worker: room for RANK and LOCAL_RANK, then what weft-run sends, then the node's own. */
static bool build_environment(node *n, size_t count)
{
    size_t own = 0, at = 2 + count;
    (void)setenv("IPATH_NO_BACKTRACE", "1", 0); /* else libinfinipath turns a worker's signals into exit code 1 */
    while (environ && environ[own])
        own++;
    n->envp = calloc(own + count + 4, sizeof *n->envp);
    if (!n->envp)
        return false;
    for (size_t i = 0; i < count; i++)
        n->envp[2 + i] = n->given[i];
    snprintf(n->secret_variable, sizeof n->secret_variable, "WEFT_SECRET_FD=%d", n->secret_fd);
    n->envp[at++] = n->secret_variable;
    for (size_t i = 0; i < own; i++)
        if (!is_replaced(environ[i], n->given, count))
            n->envp[at++] = environ[i];
    return true;
}

static bool set_up(node *n, frame *from)
{
    size_t secret_size, variables, words;
    n->grace_ms = frame_read_number(from);
    char *folder = frame_read_text(from);
    const char *bytes = frame_read_bytes(from, &secret_size);
    n->secret_fd = secret_memory_file(bytes, secret_size);
    if (n->secret_fd < 0)
        fprintf(stderr, "weft-run: a file in memory for the job's secret, %zu bytes: %s\n", secret_size,
                wfi_quiet_trouble(errno));
    explicit_bzero((char *)(uintptr_t)bytes, secret_size); /* in this process's own buffer */
    n->given = read_list(from, &variables);
    n->argv = read_list(from, &words);
    if (*folder && chdir(folder) != 0)
        n->folder_trouble = errno;
    free(folder);
    return n->secret_fd >= 0 && !from->is_bad && words > 0 && build_environment(n, variables);
}

static void start_worker(node *n, int rank, int local_rank)
{
    char rank_variable[24], local_rank_variable[32];
    worker *slot = NULL;
    for (size_t i = 0; i < n->count && !slot; i++)
        slot = n->workers[i].rank == rank ? &n->workers[i] : NULL;
    if (!slot) {
        worker *larger = realloc(n->workers, (n->count + 1) * sizeof *larger);
        n->workers = larger ? larger : n->workers;
        struct pollfd *fds = realloc(n->fds, (FIXED_FDS + 2 * (n->count + 1)) * sizeof *fds);
        n->fds = fds ? fds : n->fds;
        if (!larger || !fds) {
            put_ended(n, rank, ENDED_NOT_STARTED, ENOMEM);
            return;
        }
        slot = &n->workers[n->count++];
        *slot = (worker){.rank = rank, .pipes = {-1, -1}};
    }
    snprintf(rank_variable, sizeof rank_variable, "RANK=%d", rank);
    snprintf(local_rank_variable, sizeof local_rank_variable, "LOCAL_RANK=%d", local_rank);
    n->envp[0] = rank_variable;
    n->envp[1] = local_rank_variable;
    const worker_recipe how = {.argv = n->argv, .envp = n->envp, .secret_fd = n->secret_fd};
    int trouble = n->folder_trouble ? n->folder_trouble : worker_start(slot, rank, &how);
    if (!trouble)
        return;
    put_ended(n, rank, n->folder_trouble ? ENDED_NO_FOLDER : ENDED_NOT_STARTED, trouble);
    if (slot->pipes[0] < 0 && slot->pipes[1] < 0)
        *slot = n->workers[--n->count]; /* poll takes no more entries than this process may have descriptors */
}

static bool obey(node *n, frame *order)
{
    int number = order->type == TO_NODE_SETUP ? 0 : frame_read_number(order);
    switch (order->type) {
    case TO_NODE_SETUP:
        return !n->envp && set_up(n, order);
    case TO_NODE_START:
        if (n->envp)
            start_worker(n, number, frame_read_number(order));
        return n->envp;
    case TO_NODE_SIGNAL:
        signal_all(n, number);
        return !order->is_bad;
    case TO_NODE_END:
        end_all(n, number, frame_read_number(order));
        return !order->is_bad;
    case TO_NODE_CREDIT:
        n->unpaid -= n->unpaid < (uint32_t)number ? n->unpaid : (uint32_t)number;
        return !order->is_bad;
    case TO_NODE_ALIVE:
        n->silence_ms = number > 0 ? number : 0;
        put_alive(n);
        return !order->is_bad;
    default:
        return false;
    }
}

static void cut(node *n)
{
    n->is_cut = true;
    buffer_drop(&n->outbox, n->outbox.used);
    end_all(n, SIGTERM, n->grace_ms);
}

static void take_orders(node *n)
{
    frame order;
    int found = 0;
    bool is_closed = buffer_read(&n->inbox, n->in) != BUFFER_OPEN, ok = true;
    n->heard_ms = clock_ms();
    while (ok && (found = frame_first(&n->inbox, &order)) > 0) {
        ok = obey(n, &order);
        buffer_drop(&n->inbox, order.size);
    }
    if (is_closed || !ok || found < 0)
        cut(n);
}

/* The network is cut, or weft-run is stopped. In the latter case ssh prints the line. */
static void notice_silence(node *n)
{
    char name[256] = "";
    struct pollfd more = {.fd = n->in, .events = POLLIN};
    if (!n->silence_ms || n->is_cut || clock_ms() - n->heard_ms < n->silence_ms)
        return;
    if (poll(&more, 1, 0) != 0) /* it came while this process was stopped */
        return;
    (void)gethostname(name, sizeof name - 1);
    dprintf(2, "weft-run on %s: nothing came for %.3g s from the weft-run that started it: ending the workers\n", name,
            (double)n->silence_ms / 1000);
    n->is_silent = true;
    cut(n);
}

/* ---- The loop --------------------------------------------------------------------------------------------------- */

static void take_signals(node *n)
{
    struct signalfd_siginfo one;
    while (read(n->signals, &one, sizeof one) == (ssize_t)sizeof one)
        if (one.ssi_signo != SIGCHLD) /* from Slurm, or by hand: the job is to end */
            end_all(n, SIGTERM, n->grace_ms);
    reap(n);
}

static bool has_running(const node *n)
{
    for (size_t i = 0; i < n->count; i++)
        if (n->workers[i].pid > 0)
            return true;
    return false;
}

/* poll ignores entries below 0. */
static void watch(node *n)
{
    bool has_room = n->unpaid < NODE_WINDOW || n->is_cut;
    n->fds[0] = (struct pollfd){.fd = n->is_cut ? -1 : n->in, .events = POLLIN};
    n->fds[1] = (struct pollfd){.fd = n->signals, .events = POLLIN};
    n->fds[2] = (struct pollfd){.fd = n->outbox.used > 0 ? n->out : -1, .events = POLLOUT};
    for (size_t i = 0; i < n->count; i++)
        for (size_t which = 0; which < 2; which++)
            n->fds[FIXED_FDS + 2 * i + which] =
                (struct pollfd){.fd = has_room ? n->workers[i].pipes[which] : -1, .events = POLLIN};
}

/* Milliseconds, for poll; -1: no limit. */
static int time_left(node *n)
{
    int64_t next_ms = kill_late(n);
    for (size_t i = 0; i < n->count; i++)
        if (n->workers[i].lingers_to_ms && (!next_ms || n->workers[i].lingers_to_ms < next_ms))
            next_ms = n->workers[i].lingers_to_ms;
    int64_t silent_ms = n->silence_ms && !n->is_cut ? n->heard_ms + n->silence_ms : 0;
    if (silent_ms && (!next_ms || silent_ms < next_ms))
        next_ms = silent_ms;
    int64_t left_ms = next_ms - clock_ms() + 1;
    return !next_ms ? -1 : left_ms < 0 ? 0 : (int)left_ms;
}

/* In turn, so that one worker that writes much does not take the whole window. */
static void pass_outputs(node *n, size_t pipes)
{
    size_t first = n->turn++;
    for (size_t i = 0; i < pipes; i++) {
        size_t at = (first + i) % pipes;
        if (n->fds[FIXED_FDS + at].revents && (n->unpaid < NODE_WINDOW || n->is_cut))
            (void)pass_output(n, &n->workers[at / 2], (int)(at % 2));
    }
}

static void loop(node *n)
{
    while (!n->is_cut || has_running(n)) {
        int left_ms = time_left(n);
        size_t pipes = 2 * n->count; /* an order may add workers */
        watch(n);
        if (poll(n->fds, FIXED_FDS + pipes, left_ms) < 0) {
            if (errno == EINTR)
                continue;
            signal_all(n, SIGKILL);
            break;
        }
        pass_outputs(n, pipes);
        short in = n->fds[0].revents, signals = n->fds[1].revents, out = n->fds[2].revents;
        if (out && buffer_write(&n->outbox, n->out) == BUFFER_FAILED)
            cut(n);
        if (signals)
            take_signals(n);
        end_lingering(n);
        if (in && !n->is_cut)
            take_orders(n);
        notice_silence(n);
    }
}

/* Processes that left their worker's group, and whose parent has ended. */
static void kill_orphans(void)
{
    pid_t ended;
    do {
        int pid;
        FILE *list = fopen("/proc/thread-self/children", "re");
        if (!list)
            return;
        while (fscanf(list, "%d", &pid) == 1)
            (void)kill(pid, SIGKILL);
        fclose(list);
        ended = waitpid(-1, NULL, 0);
    } while (ended > 0 || (ended < 0 && errno == EINTR));
}

static void free_list(char **list)
{
    for (size_t i = 0; list && list[i]; i++)
        free(list[i]);
    free(list);
}

static void fini(node *n)
{
    free_list(n->argv);
    free_list(n->given);
    free(n->envp);
    free(n->workers);
    free(n->fds);
    buffer_fini(&n->inbox);
    buffer_fini(&n->outbox);
}

int node_run(int in, int out)
{
    sigset_t caught;
    node n = {.in = in, .out = out, .secret_fd = -1, .grace_ms = GRACE_MS, .fds = calloc(FIXED_FDS, sizeof *n.fds)};
    sigemptyset(&caught);
    for (const int *each = (const int[]){SIGCHLD, SIGTERM, SIGINT, SIGHUP, SIGQUIT, 0}; *each; each++)
        sigaddset(&caught, *each);
    (void)sigprocmask(SIG_BLOCK, &caught, NULL);
    (void)signal(SIGCHLD, SIG_DFL); /* if it was ignored, the kernel would reap the workers */
    (void)signal(SIGPIPE, SIG_IGN);
    (void)prctl(PR_SET_CHILD_SUBREAPER, 1);
    (void)fcntl(out, F_SETFL, O_NONBLOCK);
    n.signals = signalfd(-1, &caught, SFD_CLOEXEC | SFD_NONBLOCK);
    if (n.signals < 0 || !n.fds)
        return 1;
    buffer_add(&n.outbox, NODE_GREETING, strlen(NODE_GREETING));
    size_t begun = frame_begin(&n.outbox, FROM_NODE_PORT);
    frame_number(&n.outbox, reserve_port());
    frame_end(&n.outbox, begun);
    loop(&n);
    kill_orphans();
    fini(&n);
    return n.is_silent ? 1 : 0;
}
