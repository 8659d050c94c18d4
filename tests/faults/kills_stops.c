/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kills_stops.c - processes that stand still for a while: stopped by signals, or under a processor quota. See kills.h.
 *
 * Rank 0 is stopped as well, and oftener than the others: so a process of its own does it.
 */
#include "faults/kills.h"
#include "prng.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define GAP_PART 3     /* of a long stop: the time between two stops, at most. The one that was stopped catches up */
#define PERIOD_MS 1000 /* of a quota: who has used it up stands still for the rest */
#define CGROUPS "/sys/fs/cgroup"

/* ---- Stops ------------------------------------------------------------------------------------------------------- */

static void stop_one(pid_t pid, int ms)
{
    (void)kill(pid, SIGSTOP);
    usleep((useconds_t)ms * 1000);
    (void)kill(pid, SIGCONT);
}

/* A child without our descriptors: a socket that it had too would stay open when we close it. */
static child fork_helper(void)
{
    child helper = child_fork("stops others");
    if (!helper.pid)
        (void)close_range(STDERR_FILENO + 1, ~0U, 0);
    return helper;
}

child kill_stops_begin(const kill_stops *stops, const child workers[SEATS])
{
    child helper = fork_helper();
    if (helper.pid)
        return helper;
    uint64_t state = (uint64_t)stops->seed;
    for (int i = 0; i < stops->count; i++) {
        int rank = prng_below(&state, 2) ? 0 : (int)prng_below(&state, SEATS);
        stop_one(workers[rank].pid,
                 stops->low_ms + (int)prng_below(&state, (uint64_t)(stops->high_ms - stops->low_ms + 1)));
        usleep((useconds_t)prng_below(&state, (uint64_t)(stops->high_ms / GAP_PART + 1)) * 1000);
    }
    _exit(0);
}

/* ---- A quota ----------------------------------------------------------------------------------------------------- */

static bool write_file(const char *folder, const char *name, const char *text)
{
    char path[300];
    snprintf(path, sizeof(path), "%s/%s", folder, name);
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    bool written = fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text);
    if (fd >= 0)
        close(fd);
    return written;
}

static bool put_into(const char *folder, pid_t pid)
{
    char text[16];
    snprintf(text, sizeof(text), "%d", (int)pid);
    return write_file(folder, "cgroup.procs", text);
}

static bool limit(const char *folder, bool second, int quota_us)
{
    char text[64];
    snprintf(text, sizeof(text), "%d %d", quota_us, PERIOD_MS * 1000);
    if (second)
        return write_file(folder, "cpu.max", text);
    snprintf(text, sizeof(text), "%d", PERIOD_MS * 1000);
    if (!write_file(folder, "cpu.cfs_period_us", text))
        return false;
    snprintf(text, sizeof(text), "%d", quota_us);
    return write_file(folder, "cpu.cfs_quota_us", text);
}

/* A group of its own below `root` for each process. */
static bool limit_in(kill_quota *quota, const char *root, bool second, const child workers[SEATS])
{
    snprintf(quota->root, sizeof(quota->root), "%s", root);
    for (int rank = 0; rank < SEATS; rank++) {
        char *folder = quota->folders[rank];
        snprintf(folder, sizeof(quota->folders[rank]), "%s/weft-kills-%d", root, (int)workers[rank].pid);
        if (mkdir(folder, 0755) != 0)
            return false;
        quota->made = rank + 1;
        if (!limit(folder, second, quota->ms_a_second * 1000) || !put_into(folder, workers[rank].pid))
            return false;
    }
    return true;
}

static void leave_groups(kill_quota *quota)
{
    for (int rank = 0; rank < quota->made; rank++) {
        if (rank == 0)
            (void)put_into(quota->root, getpid()); /* the others have ended */
        for (int tries = 0; rmdir(quota->folders[rank]) != 0 && errno == EBUSY && tries < 1000; tries++)
            usleep(1000);
    }
    quota->made = 0;
}

/* All run for so much of each period, and stand still for the rest of it. */
static void imitate(kill_quota *quota, const child workers[SEATS])
{
    int run_ms = quota->ms_a_second;
    quota->imitator = fork_helper();
    while (!quota->imitator.pid) {
        for (int rank = 0; rank < SEATS; rank++)
            (void)kill(workers[rank].pid, SIGSTOP);
        usleep((useconds_t)(PERIOD_MS - run_ms) * 1000);
        for (int rank = 0; rank < SEATS; rank++)
            (void)kill(workers[rank].pid, SIGCONT);
        usleep((useconds_t)run_ms * 1000);
    }
}

const char *kill_quota_begin(kill_quota *quota, const child workers[SEATS])
{
    static const char *const firsts[] = {CGROUPS "/cpu", CGROUPS "/cpu,cpuacct"};
    for (size_t i = 0; i < sizeof(firsts) / sizeof(*firsts); i++) {
        if (limit_in(quota, firsts[i], false, workers))
            return "cgroup v1";
        leave_groups(quota);
    }
    (void)write_file(CGROUPS, "cgroup.subtree_control", "+cpu");
    if (limit_in(quota, CGROUPS, true, workers))
        return "cgroup v2";
    leave_groups(quota);
    imitate(quota, workers);
    return "no cgroup can be made: stopped and continued";
}

void kill_quota_end(kill_quota *quota, const child workers[SEATS])
{
    for (int rank = 0; rank < quota->made; rank++) /* what follows is not measured */
        (void)put_into(quota->root, workers[rank].pid);
    leave_groups(quota);
    if (!quota->imitator.pid)
        return;
    child_kill(&quota->imitator);
    for (int rank = 0; rank < SEATS; rank++)
        (void)kill(workers[rank].pid, SIGCONT);
}
