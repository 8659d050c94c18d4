/* SPDX-License-Identifier: Apache-2.0 */
/* lanes.c - see lanes.h. */
#include "faults/lanes.h"

#include "rpc/must.h"
#include "prng.h"

#include <pthread.h>
#include <stdio.h>

/* ---- Who is in a lane -------------------------------------------------------------------------------------------- */

/* At least two of those who are there, in any order; the same on all. False: this worker is not one of them. */
static bool choose_members(faults_lane *lane)
{
    uint64_t chance = prng_mix(board->seed ^ prng_mix((uint64_t)lane->e.number * LANES_MOST + (uint64_t)lane->number));
    bool mine = false;
    lane->size = 2 + chance % (lane->e.count - 1);
    memcpy(lane->ranks, lane->e.ranks, sizeof(lane->ranks));
    for (size_t i = 0; i < lane->size; i++) {
        size_t from = i + prng_mix(chance + i) % (lane->e.count - i);
        int rank = lane->ranks[from];
        lane->ranks[from] = lane->ranks[i];
        lane->ranks[i] = rank;
        if (rank == self.rank) {
            lane->me = i;
            mine = true;
        }
    }
    return mine;
}

unsigned long lane_place(const faults_lane *lane, unsigned step)
{
    return (unsigned long)lane->e.number << 24 | (lane->generation << 4 | step);
}

bool lane_meet(const faults_lane *lane, unsigned step)
{
    unsigned long place = lane_place(lane, step);
    atomic_store(&board->at[lane->number][self.rank], place);
    for (size_t i = 0; i < lane->size; sleep_ms(1)) {
        if (!epoch_is_current(&lane->e))
            return false;
        while (i < lane->size && atomic_load(&board->at[lane->number][lane->ranks[i]]) >= place)
            i++;
    }
    return true;
}

/* ---- The end of an epoch ----------------------------------------------------------------------------------------- */

/*
 * The groups of this worker's lanes. A thread ends them with the epoch, so that nobody waits for members that do not
 * come any more.
 */
static struct {
    pthread_mutex_t lock;
    weft_group *groups[LANES_MOST];
    const faults_epoch *epochs[LANES_MOST];
} watched = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void *watch(void *arg)
{
    for (;; sleep_ms(2)) {
        pthread_mutex_lock(&watched.lock);
        for (int i = 0; i < LANES_MOST; i++)
            if (watched.groups[i] && !epoch_is_current(watched.epochs[i])) {
                weft_group_abort(watched.groups[i], NULL);
                watched.groups[i] = NULL;
            }
        pthread_mutex_unlock(&watched.lock);
    }
    return arg;
}

static void watch_group(const faults_lane *lane, weft_group *group)
{
    static bool started;
    pthread_t thread;
    pthread_mutex_lock(&watched.lock);
    watched.groups[lane->number] = group;
    watched.epochs[lane->number] = &lane->e;
    if (!started)
        MUST(pthread_create(&thread, NULL, watch, NULL) == 0 && pthread_detach(thread) == 0);
    started = true;
    pthread_mutex_unlock(&watched.lock);
}

static void play_epoch(faults_lane *lane, void (*play)(faults_lane *lane))
{
    for (lane->generation = 0; lane_meet(lane, 0); lane->generation++) {
        lane->seed = prng_mix(prng_mix(board->seed * 1000003 + lane->e.number) + (uint64_t)lane->number * 4096 +
                              lane->generation);
        lane->odd = prng_mix(lane->seed + 19) % lane->size;
        play(lane);
    }
}

void lane_run(int number, void (*play)(faults_lane *lane))
{
    for (unsigned last = 1; goes_on(); sleep_ms(3)) {
        faults_lane lane = {.number = number};
        if (!epoch_read(&lane.e) || !lane.e.ours || lane.e.number == last || lane.e.count < 2)
            continue;
        last = lane.e.number;
        if (choose_members(&lane))
            play_epoch(&lane, play);
    }
}

/* ---- Failures ---------------------------------------------------------------------------------------------------- */

bool lane_is_calm(const faults_lane *lane)
{
    return epoch_is_current(&lane->e) && epoch_is_undisturbed(&lane->e);
}

bool lane_excuses(const faults_lane *lane, weft_status status, const weft_error *why)
{
    switch (status) {
    case WEFT_OK: /* what was to fail did not come to it */
        return !epoch_is_current(&lane->e);
    case WEFT_ERR_EVICTED:
    case WEFT_ERR_STORE_LOST:
    case WEFT_ERR_CLOSED:
        return !goes_on();
    case WEFT_ERR_PEER_DEAD:
        if (why && weft_error_worker(why) >= 0)
            epoch_says_dead(&lane->e, weft_error_worker(why), lane->incarnations[weft_error_worker(why) % SEATS_MOST]);
        return true;
    case WEFT_ERR_PEER_LEFT:
    case WEFT_ERR_UNREACHABLE:
    case WEFT_ERR_TIMEOUT:
        return !lane_is_calm(lane);
    case WEFT_ERR_NOT_FOUND: /* a member joined, and the news of it comes later to some workers than to others */
        return !epoch_is_current(&lane->e);
    case WEFT_ERR_CANCELLED: /* a member that is declared dead ends its groups before the others hear of its death */
        return !epoch_is_current(&lane->e) || epoch_was_disturbed(&lane->e, weft_error_worker(why));
    case WEFT_ERR_BUSY:
        return board->small_budget;
    default:
        return false;
    }
}

bool lane_judge(const faults_lane *lane, weft_status status, weft_status wanted, const weft_error *why,
                const char *what)
{
    if (status == wanted)
        return true;
    if (!lane_excuses(lane, status, why))
        fault(FAULT_WRONG, "%s: %s ended with %s instead of %s: %s", lane->where, what, weft_status_name(status),
              weft_status_name(wanted), weft_error_message(why));
    return false;
}

void lane_judge_words(const faults_lane *lane, const weft_error *why, const char *words)
{
    if (!strstr(weft_error_message(why), words))
        fault(FAULT_WRONG, "%s: \"%s\" does not speak of \"%s\"", lane->where, weft_error_message(why), words);
}

/* ---- Groups ------------------------------------------------------------------------------------------------------ */

/*
 * Waits until this worker knows the present workers of ranks that others had before. A rank that nobody had before is
 * not waited for: weft_group_open does that.
 */
static void await_news(faults_lane *lane)
{
    for (size_t i = 0; i < lane->size; i++) {
        int rank = lane->ranks[i];
        uint32_t wanted = atomic_load(&board->lives[lane->e.lives[rank]].incarnation), known;
        while ((known = weft_agent_worker(self.agent, rank).incarnation) && known != wanted &&
               epoch_is_current(&lane->e))
            sleep_ms(1);
        lane->incarnations[rank] = wanted;
    }
}

weft_status lane_open(faults_lane *lane, const char *suffix, int64_t limit_ms, weft_error **why)
{
    char name[64];
    snprintf(name, sizeof(name), "lane%d-%u%s", lane->number, lane->e.number, suffix);
    lane->group = NULL;
    faults_wait *wait = wait_begins(limit_ms, "%s: weft_group_open", lane->where);
    weft_status status = weft_group_open(self.agent, name, lane->ranks, lane->size, limit_ms, &lane->group, why);
    wait_ends(wait);
    if (!status)
        watch_group(lane, lane->group);
    return status;
}

bool lane_make_group(faults_lane *lane, const char *suffix)
{
    enum { TRIES = 30, LIMIT_MS = 1000 };
    weft_error *why = NULL;
    await_news(lane);
    weft_status status = lane_open(lane, suffix, LIMIT_MS, &why);
    for (int i = 0; i < TRIES && status == WEFT_ERR_TIMEOUT && epoch_is_current(&lane->e); i++) {
        weft_error_unref(why);
        why = NULL;
        status = lane_open(lane, suffix, LIMIT_MS, &why);
    }
    bool is_end = status == WEFT_ERR_EVICTED || status == WEFT_ERR_STORE_LOST || status == WEFT_ERR_CLOSED;
    if (status && !is_end && !lane_excuses(lane, status, why))
        fault(FAULT_WRONG, "%s: weft_group_open of %zu members ended with %s: %s", lane->where, lane->size,
              weft_status_name(status), weft_error_message(why));
    weft_error_unref(why);
    return !status;
}

void lane_drop_group(faults_lane *lane)
{
    faults_wait *wait = wait_begins(DEFAULT_MS, "%s: weft_group_close", lane->where);
    watch_group(lane, NULL);
    weft_group_close(lane->group);
    wait_ends(wait);
    lane->group = NULL;
}
