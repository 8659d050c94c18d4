/* SPDX-License-Identifier: Apache-2.0 */
/* stage.c - an elastic job whose actors open and close agents as they like. */
#include "rpc/stage.h"
#include "make.h"

#include <pthread.h>
#include <time.h>

typedef struct seat {
    stage *s;
    int actor;
} seat;

static stage *now_playing;

void stage_sleep_ms(stage *s, int ms)
{
    if (s->sim)
        weft_sim_sleep(s->sim, (uint64_t)ms * 1000000u);
    else
        nanosleep(&(struct timespec){.tv_sec = ms / 1000, .tv_nsec = (long)(ms % 1000) * 1000000}, NULL);
}

void stage_await_flag(stage *s, int which, int wanted)
{
    while (atomic_load(&s->flags[which]) < wanted)
        stage_sleep_ms(s, 1);
}

static void note(weft_agent *agent, weft_member_event event, int rank, const char *why, void *arg)
{
    news *heard = arg;
    int at = atomic_load(&heard->count); /* one at a time: nobody else counts */
    MUST(why && at < STAGE_NEWS_MAX);
    heard->items[at].event = event;
    heard->items[at].rank = rank;
    atomic_store(&heard->count, at + 1);
}

static weft_status run_add(weft_call *call, void *user)
{
    weft_call_give(call, WEFT_VALUES(weft_of_i64(weft_call_i64(call, 0) + 1)));
    return WEFT_OK;
}

static weft_status run_hold(weft_call *call, void *user)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&lock);
    int at = atomic_load(&now_playing->held_count);
    now_playing->held[at] = weft_call_defer(call);
    atomic_store(&now_playing->held_count, at + 1); /* who sees the count sees the call */
    pthread_mutex_unlock(&lock);
    return WEFT_DEFERRED;
}

static const weft_function functions[] = {
    {.name = "add", .takes = {WEFT_TYPE_I64}, .gives = {WEFT_TYPE_I64}, .run = run_add},
    {.name = "hold", .run = run_hold},
};

weft_agent_options stage_options(stage *s, int actor, int rank, const char *name)
{
    return (weft_agent_options){.functions = functions,
                                .function_count = sizeof(functions) / sizeof(*functions),
                                .has_rank = true,
                                .rank = rank,
                                .world_size = STAGE_SEATS,
                                .name = name,
                                .elastic = true,
                                .master_port = s->port,
                                .sim = s->sim,
                                .threads = 2,
                                .no_binding = true,
                                .rendezvous_timeout_ms = 20000,
                                .death_timeout_ms = s->death_ms,
                                .on_membership = note,
                                .membership_arg = &s->heard[actor]};
}

weft_agent *stage_open(stage *s, int actor, int rank, const char *name)
{
    weft_error *error = NULL;
    weft_agent *agent = NULL;
    weft_agent_options options = stage_options(s, actor, rank, name);
    weft_status status = weft_agent_open(&options, &agent, &error);
    weft_error_print(error, stderr);
    MUST_OK(status);
    return agent;
}

weft_status stage_add_at(weft_agent *agent, weft_target to)
{
    weft_values *got;
    int64_t sum;
    weft_status status = weft_rpc_sync(agent, to, "add", WEFT_VALUES(weft_of_i64(4)), NULL, &got);
    if (status)
        return status;
    MUST_OK(weft_values_get_i64(got, 0, &sum));
    MUST(sum == 5);
    weft_values_unref(got);
    return WEFT_OK;
}

void stage_await_news(stage *s, int actor, weft_member_event event, int rank, int count)
{
    const news *heard = &s->heard[actor];
    for (;;) {
        int seen = 0, total = atomic_load(&heard->count);
        for (int i = 0; i < total; i++)
            seen += heard->items[i].event == event && (rank < 0 || heard->items[i].rank == rank);
        MUST(seen <= count);
        if (seen == count)
            return;
        stage_sleep_ms(s, 1);
    }
}

void stage_await_workers(stage *s, weft_agent *agent, size_t count)
{
    while (weft_agent_workers(agent, NULL, 0) < count)
        stage_sleep_ms(s, 1);
}

/* ---- The stage --------------------------------------------------------------------------------------------------- */

static void *act(void *arg)
{
    seat *one = arg;
    one->s->program(one->s, one->actor);
    return NULL;
}

static void act_on_fiber(weft_sim *sim, int rank, void *arg)
{
    ((stage *)arg)->program(arg, rank);
}

static void play_on_threads(stage *s)
{
    pthread_t threads[STAGE_ACTORS_MAX];
    seat seats[STAGE_ACTORS_MAX];
    s->port = world_free_port();
    for (int i = 0; i < s->actors; i++) {
        seats[i] = (seat){s, i};
        MUST(!pthread_create(&threads[i], NULL, act, &seats[i]));
    }
    for (int i = 0; i < s->actors; i++)
        pthread_join(threads[i], NULL);
}

static void play_on_sim(stage *s, uint64_t seed)
{
    s->sim = sim_open(&(weft_sim_options){.seed = seed});
    for (int i = 0; i < s->actors; i++)
        MUST_OK(weft_sim_spawn(s->sim, i, act_on_fiber, s));
    MUST_OK(weft_sim_run(s->sim, 600 * 1000));
    weft_sim_close(s->sim);
}

void stage_play(void (*program)(stage *s, int actor), int actors, int seeds, int tcp_times)
{
#ifdef __SANITIZE_ADDRESS__ /* memory goes wrong by the kind of step more than by the order of events */
    seeds = 1 + seeds / 4;
#endif
    for (int i = 0; i < seeds + tcp_times; i++) {
        stage s = {.program = program, .actors = actors, .death_ms = 2000};
        now_playing = &s;
        if (i < seeds)
            play_on_sim(&s, (uint64_t)i + 1);
        else
            play_on_threads(&s);
    }
}
