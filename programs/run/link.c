/* SPDX-License-Identifier: Apache-2.0 */
/* link.c - see link.h. */
#include "run/link.h"

#include "run/clock.h"
#include "run/node.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define WORDS_MOST (SSH_WORDS_MOST + 16) /* of a command: --ssh, and what is added */

typedef struct command {
    const char *words[WORDS_MOST + 1];
    size_t count;
    char split[SSH_BYTES_MOST + 1]; /* of --ssh */
    char nodes[300], cpus[40];      /* options of srun */
    char self[PATH_MAX];            /* weft-run */
    char remote[2 * PATH_MAX + 64]; /* the line for the remote shell */
} command;

static void add_word(command *made, const char *word)
{
    if (made->count < WORDS_MOST)
        made->words[made->count++] = word;
}

/* A word for a shell. */
static void quote(const char *word, char *out, size_t room)
{
    size_t used = 0;
    out[used++] = '\'';
    for (; *word && used + 6 < room; word++) {
        if (*word == '\'')
            used += (size_t)snprintf(out + used, room - used, "'\\''");
        else
            out[used++] = *word;
    }
    out[used++] = '\'';
    out[used] = '\0';
}

static void find_self(command *made, const settings *o)
{
    ssize_t length = readlink("/proc/self/exe", made->self, sizeof made->self - 1);
    made->self[length > 0 ? length : 0] = '\0';
    if (o->node_program)
        snprintf(made->self, sizeof made->self, "%s", o->node_program);
}

/* BatchMode, because several ssh processes cannot share one terminal for passwords. ServerAliveInterval: ssh notices
 * within a minute that a host no longer answers. */
static void build_ssh(command *made, const host *to, const settings *o)
{
    static const char *const options[] = {
        "-x", "-T", "-o", "BatchMode=yes", "-o", "ConnectTimeout=20", "-o", "ServerAliveInterval=20"};
    char quoted[2 * PATH_MAX], *rest = NULL;
    find_self(made, o);
    quote(made->self, quoted, sizeof quoted);
    snprintf(made->remote, sizeof made->remote, "exec %s --node", quoted);
    snprintf(made->split, sizeof made->split, "%s", o->ssh);
    for (char *word = strtok_r(made->split, " ", &rest); word; word = strtok_r(NULL, " ", &rest))
        add_word(made, word);
    for (size_t i = 0; i < sizeof options / sizeof *options; i++)
        add_word(made, options[i]);
    add_word(made, to->name);
    add_word(made, made->remote);
}

/* One task, which has all cores that the allocation has on the node. The workers are its children. */
static void build_srun(command *made, const host *to, const settings *o)
{
    static const char *const options[] = {"srun",       "--nodes=1", "--ntasks=1",  "--overlap",
                                          "--mpi=none", "--quiet",   "--unbuffered"};
    find_self(made, o);
    for (size_t i = 0; i < sizeof options / sizeof *options; i++)
        add_word(made, options[i]);
    snprintf(made->nodes, sizeof made->nodes, "--nodelist=%s", to->name);
    snprintf(made->cpus, sizeof made->cpus, "--cpus-per-task=%d", to->cpus > 0 ? to->cpus : 1);
    add_word(made, made->nodes);
    add_word(made, made->cpus);
    add_word(made, made->self);
    add_word(made, "--node");
}

/* In the child. A process group of its own: a signal from the terminal goes to weft-run alone, which passes it on. */
static void become(const command *remote, int in, int out)
{
    sigset_t none;
    (void)setpgid(0, 0);
    if (dup2(in, 0) < 0 || dup2(out, 1) < 0)
        _exit(127);
    if (!remote->count) {
        (void)syscall(SYS_close_range, 3u, ~0u, 0u);
        _exit(node_run(0, 1));
    }
    sigemptyset(&none);
    (void)signal(SIGPIPE, SIG_DFL);
    (void)sigprocmask(SIG_SETMASK, &none, NULL);
    (void)prctl(PR_SET_PDEATHSIG, SIGTERM);
    execvp(remote->words[0], (char *const *)(const void *)remote->words);
    dprintf(2, "weft-run: %s: %s\n", remote->words[0], strerror(errno));
    _exit(127);
}

bool link_open(link_state *made, const host *to, const settings *o)
{
    int down[2], up[2];
    command remote = {0};
    *made = (link_state){.to = to, .in = -1, .out = -1, .process = -1};
    if (to->method == HOST_SSH)
        build_ssh(&remote, to, o);
    else if (to->method == HOST_SRUN)
        build_srun(&remote, to, o);
    if (pipe2(down, O_CLOEXEC) != 0)
        return false;
    if (pipe2(up, O_CLOEXEC) != 0) {
        close(down[0]);
        close(down[1]);
        return false;
    }
    made->pid = fork();
    if (made->pid == 0)
        become(&remote, down[0], up[1]);
    if (made->pid > 0)
        (void)setpgid(made->pid, made->pid); /* here as well, because either may run first */
    close(down[0]);
    close(up[1]);
    made->in = down[1];
    made->out = up[0];
    (void)fcntl(made->in, F_SETFL, O_NONBLOCK);
    (void)fcntl(made->out, F_SETFL, O_NONBLOCK);
    return made->pid > 0;
}

/* Drops what comes before the greeting, for example the output of a login shell. */
static void find_greeting(link_state *from)
{
    size_t size = strlen(NODE_GREETING), begin = strlen(NODE_GREETING_BEGIN);
    buffer *in = &from->inbox;
    const char *found = in->used ? memmem(in->data, in->used, NODE_GREETING_BEGIN, begin) : NULL;
    if (found)
        buffer_drop(in, (size_t)(found - in->data));
    else if (in->used > size)
        buffer_drop(in, in->used - size);
    if (!found || in->used < size)
        return;
    from->is_greeted = memcmp(in->data, NODE_GREETING, size) == 0;
    from->is_other = !from->is_greeted;
    buffer_drop(in, size);
}

bool link_read(link_state *from)
{
    size_t before = from->inbox.used;
    bool is_open = buffer_read(&from->inbox, from->out) == BUFFER_OPEN;
    from->unanswered = from->inbox.used > before ? 0 : from->unanswered;
    if (!from->is_greeted)
        find_greeting(from);
    return is_open;
}

bool link_write(link_state *to)
{
    return buffer_write(&to->outbox, to->in) != BUFFER_FAILED;
}

static void close_fd(int *fd)
{
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
}

void link_end(link_state *done, int64_t until_ms)
{
    close_fd(&done->in);
    close_fd(&done->out);
    if (done->pid > 0 && done->process < 0)
        done->process = (int)syscall(SYS_pidfd_open, done->pid, 0);
    if (!done->until_ms || until_ms < done->until_ms)
        done->until_ms = until_ms;
}

void link_stop_connecting(link_state *of)
{
    if (of->pid > 0 && !of->is_greeted && of->to->method != HOST_HERE)
        (void)kill(-of->pid, SIGTERM);
}

bool link_reap(link_state *done)
{
    if (done->pid <= 0)
        return true;
    bool is_late = clock_ms() >= done->until_ms;
    if (is_late)
        (void)kill(-done->pid, SIGKILL); /* a script given as --ssh may have started ssh */
    pid_t got;
    do
        got = waitpid(done->pid, &done->status, is_late ? 0 : WNOHANG);
    while (got < 0 && errno == EINTR);
    if (got == 0)
        return false;
    done->pid = 0;
    return true;
}

void link_fini(link_state *done)
{
    close_fd(&done->in);
    close_fd(&done->out);
    close_fd(&done->process);
    buffer_fini(&done->outbox);
    buffer_fini(&done->inbox);
    done->unpaid = 0;
}

const char *link_command(const link_state *of)
{
    return of->to->method == HOST_SRUN  ? "srun"
           : of->to->method == HOST_SSH ? "ssh"
                                        : "the process that watches the workers";
}
