/* SPDX-License-Identifier: Apache-2.0 */
/* task.c - see task.h. A record is one write to a pipe, small enough to arrive whole. */
#include "perf/task.h"

#include "perf/stop.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { RESULT, NOTE, FAILURE };

typedef struct record {
    int kind;
    union {
        result result;
        char text[1024];
    };
} record;
_Static_assert(sizeof(record) <= PIPE_BUF, "a record arrives whole");

struct task_end {
    int fd;
    bool has_failed;
};

/* ---- In the process of the task --------------------------------------------------------------------------------- */

/* A failure is ignored: without a reader, this process is killed soon. */
static void put(task_end *to, const record *r)
{
    ssize_t done;
    do
        done = write(to->fd, r, sizeof(*r));
    while (done < 0 && errno == EINTR);
}

void task_put(task_end *to, const result *r)
{
    record out = {.kind = RESULT};
    out.result = *r;
    put(to, &out);
}

static void put_text(task_end *to, int kind, const char *format, va_list args)
{
    record out = {.kind = kind};
    vsnprintf(out.text, sizeof(out.text), format, args);
    put(to, &out);
}

void task_note(task_end *to, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    put_text(to, NOTE, format, args);
    va_end(args);
}

bool task_fail(task_end *to, const char *format, ...)
{
    va_list args;
    if (to->has_failed)
        return false;
    to->has_failed = true;
    va_start(args, format);
    put_text(to, FAILURE, format, args);
    va_end(args);
    return false;
}

bool task_fail_status(task_end *to, const char *what, weft_status status, weft_error *error)
{
    (void)task_fail(to, "%s: %s (%s)", what, error ? weft_error_message(error) : weft_status_text(status),
                    weft_status_name(status));
    weft_error_unref(error);
    return false;
}

static void be_task(task_fn fn, void *arg, int fd, pid_t parent)
{
    task_end end = {.fd = fd};
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    stop_leave_to_parent();
    if (getppid() != parent)
        _exit(1);
    bool ok = fn(&end, arg);
    exit(ok ? 0 : 1);
}

/* ---- In this process -------------------------------------------------------------------------------------------- */

/* Reads records until the end of the pipe. False: nothing came for too long, or a signal came. */
static bool hear(int fd, double silence_s, const task_hears *hears, char *why, size_t room)
{
    record in;
    for (;;) {
        struct pollfd ready[] = {{.fd = fd, .events = POLLIN}, {.fd = stop_fd(), .events = POLLIN}};
        int got = poll(ready, 2, (int)(silence_s * 1000));
        if (stop_signal())
            return false;
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return false;
        ssize_t size = read(fd, &in, sizeof(in));
        if (size < 0 && errno == EINTR)
            continue;
        if (size != (ssize_t)sizeof(in))
            return true;
        if (in.kind == RESULT && hears->result)
            hears->result(&in.result, hears->arg);
        else if (in.kind == NOTE && hears->note)
            hears->note(in.text, hears->arg);
        else if (in.kind == FAILURE)
            text_copy(why, room, in.text);
    }
}

bool task_run(task_fn fn, void *arg, double silence_s, const task_hears *hears, char *why, size_t room)
{
    int fds[2], status = 0;
    pid_t parent = getpid();
    *why = '\0';
    if (pipe2(fds, O_CLOEXEC) != 0) { /* the workers that the task starts must not keep it open */
        snprintf(why, room, "pipe: %s", strerror(errno));
        return false;
    }
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        close(fds[0]);
        be_task(fn, arg, fds[1], parent);
    }
    close(fds[1]);
    if (child < 0) {
        snprintf(why, room, "fork: %s", strerror(errno));
        close(fds[0]);
        return false;
    }
    bool heard = hear(fds[0], silence_s, hears, why, room);
    if (!heard)
        (void)kill(child, SIGKILL);
    close(fds[0]);
    while (waitpid(child, &status, 0) < 0 && errno == EINTR)
        ;
    stop_end_children();
    if (stop_signal())
        snprintf(why, room, "ended by SIG%s: the rest is not measured", sigabbrev_np(stop_signal()));
    else if (!heard)
        snprintf(why, room, "nothing was measured for %.0f s: the measuring process was ended", silence_s);
    else if (WIFSIGNALED(status) && !*why)
        snprintf(why, room, "the measuring process was killed (%s)", strsignal(WTERMSIG(status)));
    else if (status && !*why)
        snprintf(why, room, "the measuring process failed with exit code %d", WEXITSTATUS(status));
    return heard && status == 0 && !*why && !stop_signal();
}
