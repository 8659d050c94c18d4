/* SPDX-License-Identifier: Apache-2.0 */
/*
 * weather.c - kills, stops, processor quotas, cut links. Everything but a kill is a state of a process that ends by
 * itself (weather_turn), or is ended (weather_clear). Rows are many short stops, or cuts, one soon after the other.
 */
#include "faults/faults.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#define QUOTA_US 150000 /* of every second: once they are used up it stands still for the rest of it */

static faults_process *some_process(faults_weather *w, int from)
{
    int skip = (int)chance_below((uint64_t)board->size);
    for (int i = 0; i < board->size; i++) {
        int rank = (skip + i) % board->size;
        faults_process *p = &w->seats[rank];
        if (rank >= from && p->worker.pid && !p->killed && !p->stopped && !p->stops_left && !p->throttled && !p->cut)
            return p;
    }
    return NULL;
}

static int rank_of(const faults_weather *w, const faults_process *p)
{
    return (int)(p - w->seats);
}

/* Before it happens, so that a worker that sees the effect sees this, too. */
static void disturb(faults_process *p)
{
    p->disturbed = true;
    atomic_store(&board->lives[p->life].disturbed, true);
}

/* ---- Kills ------------------------------------------------------------------------------------------------------- */

void weather_kill_seat(faults_weather *w, int rank)
{
    faults_process *p = &w->seats[rank];
    if (!p->worker.pid || p->killed)
        return;
    p->killed = true;
    atomic_store(&board->lives[p->life].killed, true);
    child_signal(&p->worker, SIGKILL);
    w->kills++;
}

/* Kills a worker, whether it is disturbed already or not. */
bool weather_kill(faults_weather *w)
{
    int rank = 1 + (int)chance_below((uint64_t)board->size - 1);
    if (!w->seats[rank].worker.pid || w->seats[rank].killed)
        return false;
    weather_kill_seat(w, rank);
    return true;
}

/* Asks a worker to end before the job does. */
bool weather_leave(faults_weather *w)
{
    faults_process *p = some_process(w, 1);
    if (!p || p->leaving || atomic_load(&board->seats[rank_of(w, p)].stage) != STAGE_ON)
        return false;
    p->leaving = true;
    w->leaves++;
    atomic_store(&board->seats[rank_of(w, p)].leave, true);
    return true;
}

/* ---- Stops ------------------------------------------------------------------------------------------------------- */

static void stop(faults_process *p)
{
    disturb(p);
    p->stopped = kill(p->worker.pid, SIGSTOP) == 0;
    p->stop_until = now_ms() + p->stop_ms;
}

static void turn_stop(faults_process *p)
{
    if (now_ms() < p->stop_until)
        return;
    if (p->stopped) {
        if (p->worker.pid)
            child_signal(&p->worker, SIGCONT);
        p->stopped = false;
        p->stop_until = now_ms() + p->go_ms;
    } else if (p->stops_left > 0) {
        p->stops_left--;
        stop(p);
    }
}

static void begin_stops(faults_process *p, int count, unsigned stop_ms, unsigned go_ms)
{
    p->stops_left = count - 1;
    p->stop_ms = stop_ms;
    p->go_ms = go_ms;
    stop(p);
}

/*
 * Stops a worker for 0.2 to 3 bounds, short ones more often. One in three is a row of short stops, during which the
 * worker gives up large transfers: a stop is worst where something is being taken down.
 */
bool weather_stop(faults_weather *w)
{
    faults_process *p = some_process(w, 0);
    if (!p)
        return false;
    if (once_in(3)) {
        w->rows++;
        atomic_store(&board->seats[rank_of(w, p)].hauls, true);
        begin_stops(p, 4 + (int)chance_below(5), w->bound_ms / 5 + (unsigned)chance_below(w->bound_ms / 10),
                    20 + (unsigned)chance_below(200));
    } else {
        unsigned part = (unsigned)chance_below(1000);
        begin_stops(p, 1, w->bound_ms / 5 + w->bound_ms * part / 1000 * part * 28 / 10000, 0);
    }
    w->stops++;
    return true;
}

/* ---- Processor quotas -------------------------------------------------------------------------------------------- */

static bool write_to(const char *path, const char *text)
{
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    bool well = fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text);
    if (fd >= 0)
        close(fd);
    return well;
}

static bool write_group(const faults_weather *w, int rank, const char *file, const char *text)
{
    char path[128];
    snprintf(path, sizeof(path), "%s%d/%s", w->groups, rank, file);
    return write_to(path, text);
}

static bool set_quota(const faults_weather *w, int rank, bool on)
{
    char text[64];
    if (w->groups_are_v2)
        snprintf(text, sizeof(text), on ? "%d 1000000" : "max 1000000", QUOTA_US);
    else if (write_group(w, rank, "cpu.cfs_period_us", "1000000"))
        snprintf(text, sizeof(text), "%d", on ? QUOTA_US : -1);
    else
        return false;
    return write_group(w, rank, w->groups_are_v2 ? "cpu.max" : "cpu.cfs_quota_us", text);
}

static void remove_groups(const faults_weather *w)
{
    char path[128];
    for (int rank = 0; rank < board->size; rank++) {
        snprintf(path, sizeof(path), "%s%d", w->groups, rank);
        rmdir(path);
    }
}

static bool make_groups(faults_weather *w, const char *root, bool v2)
{
    char path[128];
    bool well = true;
    snprintf(w->groups, sizeof(w->groups), "%s/faults-%d-", root, (int)getpid());
    w->groups_are_v2 = v2;
    for (int rank = 0; rank < board->size && well; rank++) {
        snprintf(path, sizeof(path), "%s%d", w->groups, rank);
        well = mkdir(path, 0755) == 0 && set_quota(w, rank, false);
    }
    if (!well)
        remove_groups(w);
    return well;
}

void weather_begin(faults_weather *w)
{
    if (!make_groups(w, "/sys/fs/cgroup/cpu", false) && !make_groups(w, "/sys/fs/cgroup", true))
        w->groups[0] = 0;
}

void weather_end(faults_weather *w)
{
    if (w->groups[0])
        remove_groups(w);
}

/* Where there are no control groups: stops that leave it as much of the time. */
bool weather_quota(faults_weather *w)
{
    faults_process *p = some_process(w, 0);
    unsigned lasts_ms = 2000 + (unsigned)chance_below(3000);
    if (!p)
        return false;
    w->quotas++;
    disturb(p);
    atomic_store(&board->seats[rank_of(w, p)].hauls, true);
    if (!w->groups[0]) {
        begin_stops(p, (int)lasts_ms / 1000, 850, 150);
    } else if (set_quota(w, rank_of(w, p), true)) {
        p->throttled = true;
        p->throttled_until = now_ms() + lasts_ms;
    }
    return true;
}

static void turn_quota(faults_weather *w, faults_process *p)
{
    if (!p->throttled || now_ms() < p->throttled_until)
        return;
    if (!set_quota(w, rank_of(w, p), false))
        fault(FAULT_WRONG, "a quota cannot be taken back");
    p->throttled = false;
}

/* ---- Cuts -------------------------------------------------------------------------------------------------------- */

static void set_link(const faults_weather *w, int rank, bool on)
{
    char space[64], port[16];
    snprintf(space, sizeof(space), "%s0", w->hosts);
    snprintf(port, sizeof(port), "p%d", rank + 1);
    child bridge = child_fork("bridge");
    if (!bridge.pid) {
        execlp("bridge", "bridge", "-n", space, "link", "set", "dev", port, "state", on ? "forwarding" : "disabled",
               (char *)NULL);
        _exit(127);
    }
    if (child_end(&bridge))
        fault(FAULT_WRONG, "a link cannot be switched");
}

static void cut(faults_weather *w, faults_process *p)
{
    p->cut = true;
    disturb(p);
    p->cut_until = now_ms() + p->cut_ms;
    set_link(w, rank_of(w, p), false);
}

static void turn_cut(faults_weather *w, faults_process *p)
{
    if (now_ms() < p->cut_until)
        return;
    if (p->cut) {
        set_link(w, rank_of(w, p), true);
        p->cut = false;
        p->cut_until = now_ms() + p->whole_ms;
    } else if (p->cuts_left > 0) {
        p->cuts_left--;
        cut(w, p);
    }
}

/* For 0.1 to 3 bounds; one in three is a row of short ones: what is sent meanwhile is lost. */
bool weather_cut(faults_weather *w)
{
    faults_process *p = w->hosts ? some_process(w, 0) : NULL;
    if (!p)
        return false;
    bool loses = once_in(3);
    unsigned part = (unsigned)chance_below(1000);
    p->cuts_left = loses ? 8 + (int)chance_below(8) : 0;
    p->cut_ms =
        loses ? 20 + (unsigned)chance_below(40) : w->bound_ms / 10 + w->bound_ms * part / 1000 * part * 29 / 10000;
    p->whole_ms = 100;
    w->losses += loses;
    w->cuts += !loses;
    cut(w, p);
    return true;
}

/* ---- All of it --------------------------------------------------------------------------------------------------- */

/* The link and the control group are those of the seat: what was done to the process before has been ended. */
void weather_adopt(faults_weather *w, int rank, child worker, uint32_t life)
{
    char text[16];
    w->seats[rank] = (faults_process){.worker = worker, .life = life};
    snprintf(text, sizeof(text), "%d", (int)worker.pid);
    if (w->groups[0] && !write_group(w, rank, "cgroup.procs", text))
        fault(FAULT_WRONG, "a worker cannot be put into its control group");
}

static void end_all(faults_weather *w, faults_process *p)
{
    p->stops_left = p->cuts_left = 0;
    p->stop_until = p->cut_until = p->throttled_until = 0;
    if (p->stopped)
        turn_stop(p);
    if (p->cut)
        turn_cut(w, p);
    turn_quota(w, p);
}

void weather_turn(faults_weather *w)
{
    for (int rank = 0; rank < board->size; rank++) {
        faults_process *p = &w->seats[rank];
        if (p->killed || !p->worker.pid) {
            end_all(w, p);
            continue;
        }
        turn_stop(p);
        turn_cut(w, p);
        turn_quota(w, p);
    }
}

void weather_clear(faults_weather *w)
{
    for (int rank = 0; rank < board->size; rank++)
        end_all(w, &w->seats[rank]);
}

bool weather_is_calm(const faults_weather *w)
{
    for (int rank = 0; rank < board->size; rank++) {
        const faults_process *p = &w->seats[rank];
        if (p->stopped || p->stops_left || p->cut || p->cuts_left || p->throttled)
            return false;
    }
    return true;
}
