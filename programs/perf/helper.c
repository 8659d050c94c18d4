/* SPDX-License-Identifier: Apache-2.0 */
/* helper.c - see helper.h. An answer is a head, and then its samples. */
#include "perf/helper.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define OPEN_S 30

typedef struct head {
    size_t count;  /* of the samples that follow */
    char why[256]; /* "": all is well */
} head;

/* ---- In the helper's process ------------------------------------------------------------------------------------ */

static char said[sizeof((head *)NULL)->why];

bool helper_say(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(said, sizeof(said), format, args);
    va_end(args);
    return false;
}

static bool write_all(int fd, const void *from, size_t size)
{
    for (const char *at = from; size > 0;) {
        ssize_t put = send(fd, at, size, MSG_NOSIGNAL);
        if (put < 0 && errno == EINTR)
            continue;
        if (put <= 0)
            return false;
        at += put;
        size -= (size_t)put;
    }
    return true;
}

static bool answer(int fd, bool is_ok, const series *samples)
{
    head h = {.count = is_ok ? samples->count : 0};
    if (!is_ok)
        text_copy(h.why, sizeof(h.why), *said ? said : "it failed");
    return write_all(fd, &h, sizeof(h)) && write_all(fd, samples->values, h.count * sizeof(*samples->values));
}

int helper_serve(int fd, bool is_ready, helper_fn fn, void *state)
{
    order o;
    bool ok = answer(fd, is_ready, &(series){0}) && is_ready;
    while (ok && recv(fd, &o, sizeof(o), MSG_WAITALL) == sizeof(o)) {
        series samples = {0};
        *said = '\0';
        ok = answer(fd, fn(state, &o, &samples), &samples);
        series_fini(&samples);
    }
    return ok ? 0 : 1;
}

/* ---- In this process -------------------------------------------------------------------------------------------- */

void helper_close(helper *h)
{
    if (h->pid <= 0)
        return;
    (void)kill(h->pid, SIGKILL); /* its children die with it */
    while (waitpid(h->pid, NULL, 0) < 0 && errno == EINTR)
        ;
    close(h->fd);
    *h = (helper){0};
}

/* Reads until all is there. False: the process has ended, or the time `end` is over. */
static bool read_all(int fd, void *to, size_t size, double end)
{
    for (char *at = to; size > 0;) {
        struct pollfd ready = {.fd = fd, .events = POLLIN};
        double left_ms = (end - measure_now_us()) / 1000;
        int got = left_ms > 0 ? poll(&ready, 1, (int)left_ms + 1) : 0;
        if (got < 0 && errno == EINTR)
            continue;
        ssize_t count = got > 0 ? recv(fd, at, size, 0) : 0;
        if (count <= 0)
            return false;
        at += count;
        size -= (size_t)count;
    }
    return true;
}

static bool read_answer(helper *h, double limit_s, series *out, char *why, size_t room)
{
    head in;
    double value, end = measure_now_us() + limit_s * 1e6;
    bool ok = read_all(h->fd, &in, sizeof(in), end);
    for (size_t i = 0; ok && i < in.count; i++) {
        ok = read_all(h->fd, &value, sizeof(value), end);
        if (ok)
            series_add(out, value);
    }
    if (ok && !in.why[0])
        return true;
    if (ok)
        text_copy(why, room, in.why);
    else if (measure_now_us() >= end)
        snprintf(why, room, "no answer for %.0f s", limit_s);
    else
        snprintf(why, room, "its process ended");
    if (!ok)
        helper_close(h);
    return false;
}

bool helper_open(helper *h, helper_main run, void *arg, char *why, size_t room)
{
    int fds[2];
    pid_t parent = getpid();
    *h = (helper){0};
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) != 0) {
        snprintf(why, room, "socketpair: %s", strerror(errno));
        return false;
    }
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        close(fds[0]);
        _exit(getppid() == parent ? run(fds[1], arg) : 1);
    }
    close(fds[1]);
    *h = (helper){.fd = fds[0], .pid = child};
    series none = {0};
    if (child > 0 && read_answer(h, OPEN_S, &none, why, room))
        return true;
    if (child < 0)
        snprintf(why, room, "fork: %s", strerror(errno));
    if (child < 0)
        close(fds[0]);
    helper_close(h);
    return false;
}

bool helper_measure(helper *h, const order *o, double limit_s, series *out, char *why, size_t room)
{
    if (h->pid <= 0 || !write_all(h->fd, o, sizeof(*o))) {
        snprintf(why, room, "its process ended");
        helper_close(h);
        return false;
    }
    return read_answer(h, limit_s + o->us / 1e6, out, why, room);
}
