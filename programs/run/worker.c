/* SPDX-License-Identifier: Apache-2.0 */
/* worker.c - see worker.h. */
#include "run/worker.h"

#include "run/clock.h"
#include "run/supervisor.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#define READ_BYTES (64 << 10)

extern char **environ;

/* ---- The command that leads to another host --------------------------------------------------------------------- */

/* In the child: memory is not released. BatchMode, because several ssh processes cannot share one terminal for
 * passwords. ServerAliveInterval: ssh notices within a minute that a host no longer answers. */
static char **ssh_command(const host *to, const settings *o, const char *self)
{
    static const char *const options[] = {
        "-x", "-T", "-o", "BatchMode=yes", "-o", "ConnectTimeout=20", "-o", "ServerAliveInterval=20"};
    char *split = strdup(o->ssh), *remote = malloc(4 * strlen(self) + 32), *rest = NULL;
    const char **words = calloc(strlen(o->ssh) + 16, sizeof(*words));
    size_t count = 0;
    if (!split || !remote || !words)
        return NULL;
    for (char *word = strtok_r(split, " ", &rest); word; word = strtok_r(NULL, " ", &rest))
        words[count++] = word;
    for (size_t i = 0; i < sizeof(options) / sizeof(*options); i++)
        words[count++] = options[i];
    char *end = stpcpy(remote, "exec '");
    for (const char *at = self; *at; at++) /* for the remote shell */
        end += sprintf(end, *at == '\'' ? "'\\''" : "%c", *at);
    strcpy(end, "' --worker");
    words[count++] = to->name;
    words[count++] = remote;
    return (char **)(void *)words;
}

/* One task for each worker. The tasks share the cores that the allocation has on the node. */
static char **srun_command(const host *to, char *self)
{
    static char nodes[300], cpus[40];
    static char *words[] = {"srun",         "--nodes=1", "--ntasks=1", "--overlap", "--mpi=none", "--quiet",
                            "--unbuffered", nodes,       cpus,         NULL,        "--worker",   NULL};
    snprintf(nodes, sizeof(nodes), "--nodelist=%s", to->name);
    snprintf(cpus, sizeof(cpus), "--cpus-per-task=%d", to->cpus > 0 ? to->cpus : 1);
    words[9] = self;
    return words;
}

/* ---- The process ------------------------------------------------------------------------------------------------ */

/* Many workers need more descriptors than the usual limit of 1,024. Returns the limit from before, which the workers
 * get. */
static const struct rlimit *raise_limit(void)
{
    static struct rlimit before;
    if (before.rlim_max == 0 && getrlimit(RLIMIT_NOFILE, &before) == 0)
        (void)setrlimit(RLIMIT_NOFILE, &(struct rlimit){before.rlim_max, before.rlim_max});
    return &before;
}

/* In the child. A process group of its own: a signal from the terminal goes to weft-run alone, which passes it on. */
static _Noreturn void become(const worker *one, const settings *o, int ends[3])
{
    sigset_t none;
    char self[PATH_MAX] = "";
    sigemptyset(&none);
    (void)setpgid(0, 0);
    (void)setrlimit(RLIMIT_NOFILE, raise_limit());
    for (int i = 0; i < 3; i++)
        if (dup2(ends[i], i) < 0)
            _exit(127);
    (void)signal(SIGPIPE, SIG_DFL);
    (void)sigprocmask(SIG_SETMASK, &none, NULL);
    if (one->on->method == HOST_HERE)
        _exit(supervisor_run());
    (void)prctl(PR_SET_PDEATHSIG, SIGTERM);
    (void)!readlink("/proc/self/exe", self, sizeof(self) - 1);
    if (o->node_program)
        snprintf(self, sizeof(self), "%s", o->node_program);
    char **words = one->on->method == HOST_SSH ? ssh_command(one->on, o, self) : srun_command(one->on, self);
    if (words)
        execvp(words[0], words);
    dprintf(STDERR_FILENO, "weft-run: %s: %s\n", words ? words[0] : "ssh", strerror(errno));
    _exit(127);
}

static void close_all(int *fds, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (fds[i] >= 0)
            close(fds[i]);
        fds[i] = -1;
    }
}

bool worker_start(worker *one, const settings *o)
{
    int fds[6] = {-1, -1, -1, -1, -1, -1}; /* standard input, output and error, each to be read and to be written */
    (void)raise_limit();
    one->pid = -1;
    if (pipe2(fds, O_CLOEXEC) == 0 && pipe2(fds + 2, O_CLOEXEC) == 0 && pipe2(fds + 4, O_CLOEXEC) == 0)
        one->pid = fork();
    if (one->pid == 0)
        become(one, o, (int[]){fds[0], fds[3], fds[5]});
    if (one->pid < 0) {
        int errnum = errno;
        close_all(fds, 6);
        one->pid = 0;
        errno = errnum;
        return false;
    }
    (void)setpgid(one->pid, one->pid); /* here as well, because either may run first */
    close_all((int[]){fds[0], fds[3], fds[5]}, 3);
    one->in = fds[1];
    for (int which = 0; which < 2; which++) {
        one->streams[which] = fds[2 + 2 * which];
        one->out[which] = (lines){0};
        if (!o->no_prefix)
            snprintf(one->out[which].prefix, sizeof(one->out[which].prefix), "[%d] ", one->rank);
        (void)fcntl(one->streams[which], F_SETFL, O_NONBLOCK);
    }
    (void)fcntl(one->in, F_SETFL, O_NONBLOCK);
    one->state = WORKER_STARTING;
    one->is_done = one->has_setup = false;
    one->on->starting++;
    return true;
}

void worker_write(worker *to)
{
    if (to->in >= 0 && !buffer_write(&to->outbox, to->in))
        close_all(&to->in, 1);
}

void worker_signal(worker *to, int number)
{
    unsigned char byte = (unsigned char)number;
    if (to->state != WORKER_RUNNING)
        return;
    buffer_add(&to->outbox, &byte, 1);
    worker_write(to);
}

void worker_end(worker *one, int number, int64_t wait_ms)
{
    int64_t until_ms = clock_ms() + wait_ms;
    if (one->state == WORKER_WAITING)
        one->state = WORKER_ENDED;
    if (one->pid == 0)
        return;
    worker_signal(one, number);
    (void)kill(-one->pid, SIGCONT); /* a supervisor that is stopped could not obey */
    if (one->state == WORKER_STARTING && one->on->method != HOST_HERE)
        (void)kill(-one->pid, SIGTERM); /* no supervisor runs there yet, which would have to end the worker */
    if (one->state != WORKER_RUNNING)
        close_all(&one->in, 1);
    if (!one->until_ms || until_ms < one->until_ms)
        one->until_ms = until_ms;
}

/* ---- The setup -------------------------------------------------------------------------------------------------- */

/* Whether another host gets this variable of weft-run's. */
static bool is_exported(const settings *o, const char *variable)
{
    static const char *const usual[] = {"WEFT_", "FI_", "OMP_", "OPENBLAS_", "PATH=", "LD_LIBRARY_PATH="};
    if (strncmp(variable, "WEFT_SECRET", 11) == 0 || strncmp(variable, "WEFT_SPAWNED=", 13) == 0)
        return false; /* WEFT_SPAWNED is about this process alone */
    for (size_t i = 0; i < sizeof(usual) / sizeof(*usual); i++)
        if (strncmp(variable, usual[i], strlen(usual[i])) == 0)
            return true;
    size_t length = strcspn(variable, "=");
    for (const char *at = o->exported; at && *at;) {
        size_t size = strcspn(at, ",");
        if (size == length && strncmp(at, variable, size) == 0)
            return true;
        at += size + (at[size] ? 1 : 0);
    }
    return false;
}

__attribute__((format(printf, 2, 3))) static void add_text(buffer *to, const char *format, ...)
{
    char *text = NULL;
    va_list args;
    va_start(args, format);
    if (vasprintf(&text, format, args) >= 0)
        buffer_add(to, text, strlen(text) + 1);
    va_end(args);
    free(text);
}

/* The hosts file may call the first host localhost, which the others cannot reach: then it is this machine's name. */
static void add_address(buffer *to, const worker_setup *of)
{
    char own[300] = "127.0.0.1";
    if (!of->is_alone)
        (void)gethostname(own, sizeof(own) - 1);
    const char *address = of->first->method == HOST_HERE ? own : host_address(of->first);
    add_text(to, "MASTER_ADDR=%s", of->o->master_addr ? of->o->master_addr : address);
}

void worker_set_up(worker *one, const worker_setup *of, int local_world_size)
{
    buffer texts = {0};
    char line[128];
    size_t variables = of->o->least ? 7 : 6;
    char *folder = one->on->method == HOST_HERE ? NULL : getcwd(NULL, 0);
    add_text(&texts, "%s", folder ? folder : "");
    free(folder);
    for (char **each = environ; one->on->method == HOST_SSH && *each; each++) {
        if (!is_exported(of->o, *each))
            continue;
        add_text(&texts, "%s", *each);
        variables++;
    }
    add_text(&texts, "RANK=%d", one->rank); /* these count more than those before */
    add_text(&texts, "LOCAL_RANK=%d", one->local_rank);
    add_text(&texts, "WORLD_SIZE=%d", of->world_size);
    add_text(&texts, "LOCAL_WORLD_SIZE=%d", local_world_size);
    add_address(&texts, of);
    add_text(&texts, "MASTER_PORT=%d", of->port);
    if (of->o->least)
        add_text(&texts, "WEFT_ELASTIC=1");
    for (char **word = of->o->argv; *word; word++)
        add_text(&texts, "%s", *word);
    snprintf(line, sizeof(line), SUPERVISOR_SETUP, (long long)of->o->grace_ms, of->job_secret->size, variables,
             of->job_secret->size + texts.used);
    buffer_add(&one->outbox, line, strlen(line));
    buffer_add(&one->outbox, of->job_secret->bytes, of->job_secret->size);
    buffer_add(&one->outbox, texts.memory, texts.used);
    buffer_fini(&texts);
    one->state = WORKER_RUNNING;
    worker_write(one);
}

/* ---- Output ----------------------------------------------------------------------------------------------------- */

/* Keeps what may become the greeting, and drops the rest. Returns whether the greeting is there. */
static bool find_greeting(worker *from)
{
    buffer *in = &from->out[0].rest;
    size_t begin = strlen(SUPERVISOR_GREETING);
    const char *bytes = in->memory + in->begin, *found = memmem(bytes, in->used, SUPERVISOR_GREETING, begin);
    size_t before = found ? (size_t)(found - bytes) : in->used > begin ? in->used - begin : 0;
    buffer_drop(in, before);
    const char *end = found ? memchr(found + begin, '\n', in->used - begin) : NULL;
    char line[40];
    int version = 0;
    if (!end && (!found || in->used < begin + sizeof(line)))
        return false; /* a longer line is not the supervisor's */
    if (!end)
        end = in->memory + in->begin + in->used;
    snprintf(line, sizeof(line), "%.*s", (int)(end - found - (ptrdiff_t)begin), found + begin);
    from->is_other = sscanf(line, "%7d %7d", &version, &from->port) != 2 || version != SUPERVISOR_VERSION ||
                     from->port < 0 || from->port > UINT16_MAX;
    buffer_drop(in, in->used); /* the worker has not started, so no output follows */
    return true;
}

bool worker_read(worker *from, int which, buffer *to)
{
    char bytes[READ_BYTES];
    if (from->streams[which] < 0)
        return false;
    ssize_t got = read(from->streams[which], bytes, sizeof(bytes));
    if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR))
        close_all(&from->streams[which], 1);
    if (got <= 0)
        return false;
    if (which == 1 || from->state != WORKER_STARTING) {
        bool is_answer = which == 0 && !from->has_setup;
        from->has_setup |= is_answer;
        lines_take(&from->out[which], bytes + is_answer, (size_t)got - is_answer, to);
        return true;
    }
    buffer_add(&from->out[0].rest, bytes, (size_t)got);
    if (!find_greeting(from))
        return true;
    from->state = WORKER_READY;
    from->on->starting--;
    return true;
}

/* Passes only what the pipes hold now, because a process that outlives the worker may fill them forever. */
void worker_close(worker *ended, output *to)
{
    for (int which = 0; which < 2; which++) {
        int left = 0;
        (void)ioctl(ended->streams[which], FIONREAD, &left);
        for (int most = left / READ_BYTES; most >= 0 && left > 0 && worker_read(ended, which, &to->out[which]); most--)
            continue;
        if (which == 1 || ended->state >= WORKER_READY)
            lines_end(&ended->out[which], &to->out[which]);
        buffer_fini(&ended->out[which].rest);
    }
    if (ended->state == WORKER_STARTING)
        ended->on->starting--;
    close_all(&ended->in, 1);
    close_all(ended->streams, 2);
    buffer_fini(&ended->outbox);
    ended->state = WORKER_ENDED;
    ended->until_ms = 0;
    ended->pid = 0;
}

const char *worker_command(const worker *of)
{
    return of->on->method == HOST_SRUN ? "srun" : of->on->method == HOST_SSH ? "ssh" : "its supervisor";
}
