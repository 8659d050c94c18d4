/* SPDX-License-Identifier: Apache-2.0 */
/* command.c - see command.h. */
#include "perf/command.h"

#include "common/measure.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

bool command_exists(const char *program)
{
    char path[1024];
    const char *folders = getenv("PATH");
    for (const char *at = folders; at && *at;) {
        size_t length = strcspn(at, ":");
        snprintf(path, sizeof(path), "%.*s/%s", (int)length, at, program);
        if (length > 0 && access(path, X_OK) == 0)
            return true;
        at += length + (at[length] ? 1 : 0);
    }
    return false;
}

bool command_own_file(const char *relative, char *out, size_t room)
{
    char self[768];
    ssize_t length = readlink("/proc/self/exe", self, sizeof(self) - 1);
    self[length > 0 ? length : 0] = '\0';
    char *slash = strrchr(self, '/');
    if (!slash)
        return false;
    *slash = '\0';
    snprintf(out, room, "%s/%s", self, relative);
    return access(out, R_OK) == 0;
}

/* A group of its own, so that all that the command starts can be ended with it. `in`, `out` < 0: no input, no
 * output. */
static pid_t start(const char *const *argv, int in, int out)
{
    pid_t parent = getpid();
    fflush(NULL);
    pid_t child = fork();
    if (child != 0)
        return child > 0 ? child : 0;
    (void)setpgid(0, 0);
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    int nothing = open("/dev/null", O_RDWR | O_CLOEXEC);
    if (getppid() != parent || nothing < 0 || dup2(in < 0 ? nothing : in, 0) < 0 ||
        dup2(out < 0 ? nothing : out, 1) < 0 || dup2(nothing, 2) < 0)
        _exit(127);
    execvp(argv[0], (char *const *)(const void *)argv);
    _exit(127);
}

/* Reads until the end of the output. False: the time is over. */
static bool drain(int fd, double limit_s, char *out, size_t room)
{
    size_t used = 0;
    double end = measure_now_us() + limit_s * 1e6;
    char dropped[4096];
    for (;;) {
        struct pollfd ready = {.fd = fd, .events = POLLIN};
        double left_ms = (end - measure_now_us()) / 1000;
        int got = left_ms > 0 ? poll(&ready, 1, (int)left_ms + 1) : 0;
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return false;
        bool has_room = used + 1 < room;
        ssize_t size = read(fd, has_room ? out + used : dropped, has_room ? room - 1 - used : sizeof(dropped));
        if (size <= 0)
            break;
        used += has_room ? (size_t)size : 0;
    }
    out[used] = '\0';
    return true;
}

bool command_run(const char *const *argv, double limit_s, char *out, size_t room)
{
    int fds[2], status = -1;
    *out = '\0';
    if (pipe2(fds, O_CLOEXEC) != 0)
        return false;
    pid_t child = start(argv, -1, fds[1]);
    close(fds[1]);
    bool ended = child > 0 && drain(fds[0], limit_s, out, room);
    close(fds[0]);
    if (child > 0 && !ended)
        (void)kill(-child, SIGKILL);
    while (child > 0 && waitpid(child, &status, 0) < 0 && errno == EINTR)
        ;
    return ended && status == 0;
}

/* ---- Sessions --------------------------------------------------------------------------------------------------- */

/* Kills and reaps a program with all that it has started; 0 does nothing. */
static void end(pid_t pid)
{
    if (pid <= 0)
        return;
    (void)kill(-pid, SIGKILL);
    (void)kill(pid, SIGKILL); /* it may not have its group yet */
    while (waitpid(pid, NULL, 0) < 0 && errno == EINTR)
        ;
}

bool session_open(session *s, const char *const *argv)
{
    int in[2], out[2];
    if (pipe2(in, O_CLOEXEC) != 0)
        return false;
    if (pipe2(out, O_CLOEXEC) != 0) {
        close(in[0]);
        close(in[1]);
        return false;
    }
    *s = (session){.pid = start(argv, in[0], out[1]), .to = in[1], .from = out[0]};
    close(in[0]);
    close(out[1]);
    if (s->pid <= 0)
        session_close(s);
    return s->pid > 0;
}

/* Reads to the end of a line. False: the program has ended, or the time is over. */
static bool read_line(int fd, double limit_s, char *out, size_t room)
{
    double end = measure_now_us() + limit_s * 1e6;
    for (size_t used = 0; used + 1 < room; used++) {
        struct pollfd ready = {.fd = fd, .events = POLLIN};
        double left_ms = (end - measure_now_us()) / 1000;
        if (left_ms <= 0 || poll(&ready, 1, (int)left_ms + 1) <= 0 || read(fd, out + used, 1) != 1)
            return false;
        if (out[used] == '\n') {
            out[used] = '\0';
            return true;
        }
    }
    return false;
}

bool session_ask(session *s, const char *line, double limit_s, char *out, size_t room)
{
    size_t size = strlen(line);
    (void)kill(-s->pid, SIGCONT);
    bool ok = write(s->to, line, size) == (ssize_t)size && read_line(s->from, limit_s, out, room);
    (void)kill(-s->pid, SIGSTOP);
    if (!ok)
        session_close(s);
    return ok;
}

void session_close(session *s)
{
    if (s->to > 0) {
        close(s->to);
        close(s->from);
    }
    end(s->pid);
    *s = (session){0};
}
