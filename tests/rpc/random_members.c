/* SPDX-License-Identifier: Apache-2.0 */
/*
 * random_members.c - what a worker is told of the others, its group, its watches, what can be read of it at any
 * moment, and what must be left when all is done: nothing.
 */
#include "rpc/random.h"

#include <cjson/cJSON.h>

/* ---- Membership ----------------------------------------------------------------------------------------------- */

/* Who is not answered within the bound asks again; a store that stood still then finds both requests, and takes in
 * the second when it has declared the first one's sender dead. */
int times_asked_again(const life *l)
{
    bool opening = !l->agent && !l->over;
    return l->asked_again + (opening ? (int)((now_ns() - l->tried_ns) / ((uint64_t)DEATH_MS * NS_PER_MS)) : 0);
}

/* Lives of that rank that may have come to such an end, those included that ended before their opening did. */
static int ends_of(int rank, weft_member_event event)
{
    int count = 0;
    for (int i = 0; i < now_playing->life_count; i++) {
        const life *l = now_playing->lives[i];
        count += event == WEFT_MEMBER_DEAD ? times_asked_again(l) : 0; /* at whichever rank */
        bool here = l->rank == rank || l->rank < 0;
        count += here && (event == WEFT_MEMBER_DEAD ? l->suspect || now_playing->store_at_risk : l->leaving);
    }
    return count;
}

static void show_event(const life *l, weft_member_event event, int rank, const char *why)
{
    tell_where();
    fprintf(stderr, "life %d (actor %d, rank %d) is told event %d of rank %d: %s\n", l->number, l->actor, l->rank,
            (int)event, rank, why);
}

#define MUST_OF_EVENT(condition)                                                                                       \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            show_event(l, event, rank, why);                                                                           \
            MUST(condition);                                                                                           \
        }                                                                                                              \
    } while (0)

void on_membership(weft_agent *agent, weft_member_event event, int rank, const char *why, void *arg)
{
    life *l = arg;
    const job *j = now_playing;
    MUST_OF_EVENT(!l->over && !l->killed);
    if (event == WEFT_MEMBER_SELF_EVICTED || event == WEFT_MEMBER_STORE_LOST) {
        MUST_OF_EVENT(l->told_self == 0); /* once */
        MUST_OF_EVENT(event == WEFT_MEMBER_STORE_LOST ? j->store_at_risk || l->suspect
                                                      : l->suspect || j->store_at_risk);
        l->told_self = event;
        return;
    }
    MUST_OF_EVENT(rank >= 0 && rank < j->actors && (l->rank < 0 || rank != l->rank));
    if (event == WEFT_MEMBER_JOINED) {
        MUST_OF_EVENT(l->there[rank] != THERE);
        l->there[rank] = THERE;
        l->there_ns[rank] = now_ns();
        return;
    }
    MUST_OF_EVENT(l->there[rank] != GONE);
    if (event == WEFT_MEMBER_LEAVING) {
        MUST_OF_EVENT(ends_of(rank, WEFT_MEMBER_LEFT) > 0);
        return;
    }
    l->there[rank] = GONE;
    l->ends_told[rank]++;
    MUST_OF_EVENT(ends_of(rank, event) > 0);
    MUST_OF_EVENT(l->ends_told[rank] <= ends_of(rank, WEFT_MEMBER_DEAD) + ends_of(rank, WEFT_MEMBER_LEFT));
}

void step_watch(life *l)
{
    int rank = below(&l->state, now_playing->actors);
    if (rank == l->rank)
        return;
    uint32_t incarnation = weft_agent_worker(l->agent, rank).incarnation;
    if (l->watches[rank] && once_in(&l->state, 2)) {
        weft_status status = weft_agent_unwatch(l->agent, rank);
        MUST_IN_JOB(status == WEFT_OK || l->watched[rank] != incarnation || is_excused(l) ||
                    !weft_agent_alive(l->agent, rank));
        l->watches[rank]--;
        return;
    }
    weft_status status = weft_agent_watch(l->agent, rank);
    if (status)
        MUST_IN_JOB(is_excused(l) || !weft_agent_alive(l->agent, rank));
    if (status)
        return;
    l->watches[rank] = l->watched[rank] == incarnation ? l->watches[rank] + 1 : 1;
    l->watched[rank] = incarnation;
}

/* ---- News that must come -------------------------------------------------------------------------------------- */

#define NEWS_LATE_MS (2 * DEATH_MS)

typedef struct expected { /* of one death */
    int rank;
    int told[LIVES_MAX]; /* ends that each had been told, or -1: it need not be told of this one */
} expected;

static void check_news(weft_sim *sim, int rank, void *arg)
{
    expected *wanted = arg;
    sleep_us(NEWS_LATE_MS * 1000);
    for (int i = 0; i < now_playing->life_count; i++) {
        life *l = now_playing->lives[i];
        if (wanted->told[i] < 0 || is_excused(l) || l->ends_told[wanted->rank] > wanted->told[i])
            continue;
        tell_where();
        fprintf(stderr, "life %d (actor %d) was not told of the death of rank %d\n", i, l->actor, wanted->rank);
        abort();
    }
    free(wanted);
}

void expect_news_of(const life *dead)
{
    job *j = now_playing;
    if (j->store_at_risk)
        return;
    expected *wanted = malloc(sizeof(*wanted));
    MUST_IN_JOB(wanted);
    wanted->rank = dead->rank;
    for (int i = 0; i < LIVES_MAX; i++) {
        const life *l = i < j->life_count ? j->lives[i] : NULL;
        bool knew =
            l && l->agent && (l->there[dead->rank] == THERE || (!j->elastic && l->there[dead->rank] == NOT_TOLD));
        wanted->told[i] = knew && l != dead && !is_excused(l) ? l->ends_told[dead->rank] : -1;
    }
    MUST_OK(weft_sim_spawn(j->sim, DIRECTOR, check_news, wanted));
}

/* ---- The group ------------------------------------------------------------------------------------------------ */

/* Some member of the group may be taken for dead, or goes. */
static bool some_excused(size_t members)
{
    const job *j = now_playing;
    for (int i = 0; i < j->life_count; i++)
        if (j->lives[i]->actor < (int)members && is_excused(j->lives[i]))
            return true;
    return j->store_at_risk;
}

/* Of the first life of each actor of a static job. */
void begin_meetings(life *l)
{
    static const int ranks[ACTORS_MAX] = {0, 1, 2, 3, 4, 5};
    const job *j = now_playing;
    if (j->elastic || j->cast[l->actor].programs > 1)
        return;
    weft_status status = weft_group_open(l->agent, "all", ranks, (size_t)j->actors, 0, &l->groups[0], NULL);
    MUST_IN_JOB(!status || some_excused((size_t)j->actors));
    if (l->rank >= j->few)
        return;
    status = weft_group_open(l->agent, "few", ranks, (size_t)j->few, 0, &l->groups[1], NULL);
    MUST_IN_JOB(!status || some_excused((size_t)j->few));
}

void step_meeting(life *l)
{
    int number = l->meeting_count;
    if (number >= now_playing->meetings)
        return;
    meeting *m = &l->meetings[l->meeting_count++];
    weft_args mine = WEFT_VALUES(weft_of_i64(number), weft_of_i64(l->rank));
    weft_status status;
    *m = (meeting){.number = number, .group = l->groups[number / 2 % 2]};
    if (!m->group)
        return;
    now_playing->came[number]++;
    if (number % 2)
        status = weft_group_barrier_async(m->group, 2 * PATIENT_MS, &m->future);
    else
        status = weft_group_allgather_values_async(m->group, mine, 2 * PATIENT_MS, &m->future);
    if (status)
        MUST_IN_JOB(some_excused(weft_group_size(m->group)));
}

static void check_gathered(const meeting *m)
{
    const weft_values *values = weft_future_values(m->future);
    size_t members = weft_group_size(m->group);
    MUST_IN_JOB(weft_values_count(values) == members);
    for (size_t i = 0; i < members; i++) {
        weft_args list;
        MUST_OK(weft_values_get_list(values, i, &list));
        MUST_IN_JOB(list.count == 2 && list.items[0].as.i64 == m->number);
        MUST_IN_JOB(list.items[1].as.i64 == weft_group_member(m->group, i));
    }
}

static void await_meeting(meeting *m)
{
    if (!m->future)
        return;
    weft_status status = weft_future_wait(m->future, WEFT_FOREVER);
    if (!status)
        MUST_IN_JOB(now_playing->came[m->number] == (int)weft_group_size(m->group)); /* nobody goes before all came */
    else
        MUST_IN_JOB(some_excused(weft_group_size(m->group)));
    if (!status && m->number % 2 == 0)
        check_gathered(m);
    weft_future_unref(m->future);
    m->future = NULL;
}

void await_meetings(life *l)
{
    for (int i = 0; i < l->meeting_count; i++)
        await_meeting(&l->meetings[i]);
    for (int i = 0; i < 2; i++) {
        weft_group_close(l->groups[i]);
        l->groups[i] = NULL;
    }
}

/* ---- Looking -------------------------------------------------------------------------------------------------- */

static cJSON *read_dump(const life *l)
{
    char *text = NULL;
    size_t size = 0;
    FILE *to = open_memstream(&text, &size);
    MUST_OK(weft_debug_dump(l->agent, to));
    fclose(to);
    cJSON *dump = cJSON_Parse(text);
    MUST_IN_JOB(dump);
    free(text);
    return dump;
}

static int number_in(const cJSON *dump, const char *key)
{
    const cJSON *item = cJSON_GetObjectItem(dump, key);
    MUST_IN_JOB(cJSON_IsNumber(item));
    return item->valueint;
}

static void look_at_metrics(const life *l)
{
    weft_call_metrics all, one;
    char *text = NULL;
    size_t size = 0;
    FILE *to = open_memstream(&text, &size);
    MUST_OK(weft_metrics_write(l->agent, to));
    fclose(to);
    MUST_IN_JOB(size > 100 && text[size - 1] == '\n');
    free(text);
    MUST_OK(weft_metrics_read(l->agent, WEFT_METRIC_CALLS, -1, NULL, &all));
    MUST_OK(weft_metrics_read(l->agent, WEFT_METRIC_CALLS, 0, "plain", &one));
    MUST_IN_JOB(all.failed <= all.count && one.count <= all.count && one.failed <= one.count);
    MUST_IN_JOB(all.min_ns <= all.p50_ns && all.p50_ns <= all.p99_ns && all.p99_ns <= all.max_ns);
}

void step_look(life *l)
{
    weft_stats stats;
    weft_agent_stats(l->agent, &stats);
    MUST_IN_JOB(stats.calls_finished <= stats.calls_started && stats.calls_failed <= stats.calls_finished);
    if (once_in(&l->state, 4)) {
        cJSON *dump = read_dump(l);
        MUST_IN_JOB(number_in(dump, "call_count") == cJSON_GetArraySize(cJSON_GetObjectItem(dump, "calls")));
        cJSON_Delete(dump);
    } else if (once_in(&l->state, 4)) {
        look_at_metrics(l);
    }
}

/* ---- The end -------------------------------------------------------------------------------------------------- */

void check_quiet(life *l)
{
    static const char *const nothing[] = {"value_count",       "handle_count",          "fork_count", "reference_count",
                                          "unconfirmed_count", "awaiting_confirmation", "call_count", "serving_count",
                                          "held_bytes",        "notifications"};
    cJSON *dump = read_dump(l);
    weft_stats stats;
    for (size_t i = 0; i < sizeof(nothing) / sizeof(*nothing); i++) {
        if (!number_in(dump, nothing[i]))
            continue;
        char *text = cJSON_Print(dump);
        tell_where();
        fprintf(stderr, "life %d (actor %d) still has %s:\n%s\n", l->number, l->actor, nothing[i], text);
        show_running();
        abort();
    }
    cJSON_Delete(dump);
    weft_agent_stats(l->agent, &stats);
    MUST_IN_JOB(!stats.bytes_held && stats.calls_finished == stats.calls_started);
    MUST_IN_JOB(l->total);
    const int32_t *total = weft_tensor_data(l->total);
    for (int64_t i = 0; i < PLACE_COUNT; i++)
        MUST_IN_JOB(total[i] == l->added); /* each call's, once, and whole */
}
