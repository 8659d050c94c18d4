/* SPDX-License-Identifier: Apache-2.0 */
/* failure.c - see failure.h. */
#include "run/failure.h"

#include "run/node.h"
#include "run/worker.h"

#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static void describe_signal(int number, char *out, size_t room)
{
    const char *name = sigabbrev_np(number);
    if (name)
        snprintf(out, room, "SIG%s", name);
    else
        snprintf(out, room, "signal %d", number);
}

void failure_describe_status(int status, char *out, size_t room)
{
    char name[32];
    describe_signal(WTERMSIG(status), name, sizeof name);
    if (WIFSIGNALED(status))
        snprintf(out, room, "was killed by %s", name);
    else
        snprintf(out, room, "exited with code %d", WEXITSTATUS(status));
}

void failure_describe(const failure *of, const link_state *link, const char *program, char *out, size_t room)
{
    const char *name = link->to->name;
    int rank = of->rank, kind = of->kind, code = of->code;
    char how[512];
    if (kind == ENDED_EXIT) {
        snprintf(out, room, "rank %d on %s exited with code %d", rank, name, code);
    } else if (kind == ENDED_SIGNAL) {
        describe_signal(code, how, sizeof how);
        snprintf(out, room, "rank %d on %s was killed by %s", rank, name, how);
    } else if (kind == ENDED_KILLED) { /* weft-run has not asked for it, so somebody has sent a signal to the node */
        snprintf(out, room, "rank %d on %s was killed, because weft-run's process there got a signal", rank, name);
    } else if (kind == ENDED_NOT_STARTED) {
        worker_describe_trouble(program, code, how, sizeof how);
        snprintf(out, room, "rank %d on %s could not be started: %s", rank, name, how);
    } else if (kind == ENDED_NO_FOLDER) {
        char folder[PATH_MAX] = "the folder in which weft-run was started";
        (void)!getcwd(folder, sizeof folder);
        snprintf(out, room, "rank %d on %s could not be started: %.300s: %s", rank, name, folder, strerror(code));
    } else if (link->to->method == HOST_HERE) {
        failure_describe_status(link->status, how, sizeof how);
        snprintf(out, room, "rank %d is lost: the process that watched it %s", rank, how);
    } else {
        failure_describe_status(link->status, how, sizeof how);
        snprintf(out, room, "rank %d on %s is lost: the connection ended (%s %s)", rank, name, link_command(link), how);
    }
}

int failure_code(const failure *of)
{
    int code = of->code;
    switch (of->kind) {
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
