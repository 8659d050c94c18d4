/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_rpc_random.c - random programs in simulated jobs with random deaths, pauses, cuts and resets, checked against what
 * must hold whatever happens: nothing hangs, each future completes once and with a result that is right or an error that
 * fits, each object is dropped once, each death is told once, and a seed replays exactly.
 *
 * usage: test_rpc_random [--seeds N] [--first S]
 */
#include "rpc/must.h"

#include <weft/weft.h>

#include <stdatomic.h>
#include <string.h>

#define WORKERS 4
#define STEPS 40
#define FUTURES_MAX (STEPS + 1)
#define HELD_MAX 512
#define DIRECTOR 1000

typedef struct asked { /* one call that was started */
    weft_future *future;
    weft_tensor *sent, *land;
    int64_t expect; /* in result 0, if that is a number */
    int done_calls;
} asked;

typedef struct worker {
    int rank;
    bool ended;
    asked list[FUTURES_MAX];
    int count;
    weft_call *held[HELD_MAX]; /* taken by "hold", finished by "release" or at the end */
    int held_first, held_end;
    weft_rref *kept[8];
    int told[WORKERS]; /* deaths and departures */
    int told_self;
    int objects, drops;
    struct worker *next_grave;
} worker;

static struct job {
    uint64_t seed;
    weft_sim *sim;
    bool disturbed[WORKERS]; /* killed, paused, or cut off */
    bool store_at_risk;
    worker *workers;
} job;

/* What killed workers held stays as it was: kept where leak checkers see it. */
static worker *graveyard;

/* ---- Chance ---------------------------------------------------------------------------------------------------- */

static uint64_t next_random(uint64_t *state) /* splitmix64 (S. Vigna, public domain) */
{
    uint64_t z = *state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

static int below(uint64_t *state, int limit)
{
    return (int)(next_random(state) % (uint64_t)limit);
}

static void sleep_us(uint64_t us)
{
    weft_sim_sleep(job.sim, us * 1000);
}

/* ---- Functions ------------------------------------------------------------------------------------------------- */

static worker *self_of(const weft_call *call)
{
    return &job.workers[weft_agent_rank(weft_call_agent(call))];
}

static weft_status run_add(weft_call *call, void *user)
{
    (void)user;
    weft_call_give(call, WEFT_VALUES(weft_of_i64(weft_call_i64(call, 0) + 1)));
    return WEFT_OK;
}

static weft_status run_echo(weft_call *call, void *user)
{
    (void)user;
    sleep_us((uint64_t)weft_call_i64(call, 1));
    weft_call_give(call, WEFT_VALUES(weft_of_tensor(weft_call_tensor(call, 0))));
    return WEFT_OK;
}

static weft_status run_hold(weft_call *call, void *user)
{
    worker *w = self_of(call);
    (void)user;
    MUST(w->held_end < HELD_MAX);
    weft_call_give(call, WEFT_VALUES(weft_of_i64(weft_call_i64(call, 0) + 1)));
    w->held[w->held_end++] = weft_call_defer(call);
    return WEFT_DEFERRED;
}

static void release_one(worker *w)
{
    if (w->held_first < w->held_end)
        weft_call_finish(w->held[w->held_first++], WEFT_OK);
}

static weft_status run_release(weft_call *call, void *user)
{
    (void)user;
    release_one(self_of(call));
    weft_call_give(call, WEFT_VALUES(weft_of_i64(weft_call_i64(call, 0) + 1)));
    return WEFT_OK;
}

/* Adds one on each worker that it passes on its way. */
static weft_status run_hop(weft_call *call, void *user)
{
    int64_t value = weft_call_i64(call, 0), left = weft_call_i64(call, 1);
    weft_values *got;
    (void)user;
    if (left > 0) {
        weft_agent *agent = weft_call_agent(call);
        int to = (int)((value + left) % WORKERS);
        weft_status st = weft_rpc_sync(agent, weft_to_rank(to), "hop",
                                       WEFT_VALUES(weft_of_i64(value + 1), weft_of_i64(left - 1)), NULL, &got);
        if (st)
            return st;
        MUST_OK(weft_values_get_i64(got, 0, &value));
        weft_values_unref(got);
    } else {
        value++;
    }
    weft_call_give(call, WEFT_VALUES(weft_of_i64(value)));
    return WEFT_OK;
}

static weft_status run_keep(weft_call *call, void *user)
{
    worker *w = self_of(call);
    int64_t at = weft_call_i64(call, 0);
    (void)user;
    weft_rref *before = w->kept[at % 8];
    w->kept[at % 8] = weft_rref_ref(weft_call_rref(call, 1));
    weft_rref_unref(before);
    weft_call_give(call, WEFT_VALUES(weft_of_i64(at + 1)));
    return WEFT_OK;
}

static weft_status run_read(weft_call *call, void *user)
{
    weft_values *got;
    int64_t value;
    (void)user;
    weft_status st = weft_rref_to_here(weft_call_rref(call, 0), 800, &got);
    if (st)
        return st;
    MUST_OK(weft_values_get_i64(got, 0, &value));
    weft_values_unref(got);
    weft_call_give(call, WEFT_VALUES(weft_of_i64(value)));
    return WEFT_OK;
}

static const weft_function functions[] = {
    {.name = "add", .takes = {WEFT_I64}, .gives = {WEFT_I64}, .run = run_add},
    {.name = "inline", .takes = {WEFT_I64}, .gives = {WEFT_I64}, .run = run_add, .flags = WEFT_INLINE},
    {.name = "echo", .takes = {WEFT_TENSOR, WEFT_I64}, .gives = {WEFT_TENSOR}, .run = run_echo},
    {.name = "hold", .takes = {WEFT_I64}, .gives = {WEFT_I64}, .run = run_hold},
    {.name = "release", .takes = {WEFT_I64}, .gives = {WEFT_I64}, .run = run_release},
    {.name = "hop", .takes = {WEFT_I64, WEFT_I64}, .gives = {WEFT_I64}, .run = run_hop},
    {.name = "keep", .takes = {WEFT_I64, WEFT_RREF}, .gives = {WEFT_I64}, .run = run_keep},
    {.name = "read", .takes = {WEFT_RREF}, .gives = {WEFT_I64}, .run = run_read},
};

/* ---- One worker's program -------------------------------------------------------------------------------------- */

/* What a call may fail with while all this goes on. */
static bool may_happen(weft_status st)
{
    return st == WEFT_ERR_TIMEOUT || st == WEFT_ERR_PEER_DEAD || st == WEFT_ERR_PEER_LEFT || st == WEFT_ERR_EVICTED ||
           st == WEFT_ERR_STORE_LOST || st == WEFT_ERR_CLOSED || st == WEFT_ERR_REMOTE || st == WEFT_ERR_NOT_FOUND ||
           st == WEFT_ERR_CANCELLED;
}

static void must_fit(weft_status st, const char *what)
{
    if (!st || may_happen(st))
        return;
    fprintf(stderr, "seed %llu: %s: %s\n", (unsigned long long)job.seed, what, weft_status_name(st));
    abort();
}

static void count_done(weft_future *future, void *arg)
{
    asked *one = arg;
    MUST(weft_future_done(future) && one->done_calls == 0);
    one->done_calls++;
}

static void start(weft_agent *agent, worker *w, int to, const char *function, weft_args args, weft_rpc_options *options,
                  asked how)
{
    asked *one = &w->list[w->count];
    *one = how;
    weft_status st = weft_rpc_async(agent, weft_to_rank(to), function, args, options, &one->future);
    must_fit(st, function);
    if (!st) {
        MUST_OK(weft_future_add_done_callback(one->future, count_done, one, NULL));
        w->count++;
        return;
    }
    weft_tensor_unref(one->sent);
    weft_tensor_unref(one->land);
}

static void start_tensor(weft_agent *agent, worker *w, int to, weft_rpc_options *options, uint64_t *state)
{
    static const int64_t counts[] = {1, 100, 600, 5000, 300000};
    int64_t count = counts[below(state, 5)];
    asked how = {.sent = weft_tensor_full(WEFT_SHAPE(count), WEFT_INT32, below(state, 1000))};
    if (below(state, 2)) {
        how.land = weft_tensor_zeros(WEFT_SHAPE(count), WEFT_INT32);
        options->land = (weft_tensors){&how.land, 1};
    }
    start(agent, w, to, "echo", WEFT_VALUES(weft_of_tensor(how.sent), weft_of_i64(below(state, 3000))), options, how);
}

static void drop_object(void *arg)
{
    worker *w = arg;
    w->drops++;
}

static void use_rrefs(weft_agent *agent, worker *w, int to, weft_rpc_options *options, uint64_t *state)
{
    weft_rref *rref;
    weft_values *got;
    int64_t n, at = below(state, 100);
    weft_status st;
    if (below(state, 2)) {
        MUST_OK(weft_rref_create_object(agent, w, drop_object, &rref));
        w->objects++;
        start(agent, w, to, "keep", WEFT_VALUES(weft_of_i64(at), weft_of_rref(rref)), options,
              (asked){.expect = at + 1});
        weft_rref_unref(rref);
        return;
    }
    const char *function = below(state, 2) ? "add" : "hold";
    st = weft_rpc_remote(agent, weft_to_rank(to), function, WEFT_VALUES(weft_of_i64(at)), options, &rref);
    must_fit(st, "remote");
    if (st)
        return;
    if (below(state, 2)) {
        start(agent, w, below(state, WORKERS), "read", WEFT_VALUES(weft_of_rref(rref)), options,
              (asked){.expect = at + 1});
    } else {
        st = weft_rref_to_here(rref, 300, &got);
        must_fit(st, "to_here");
        if (!st) {
            MUST(!weft_values_get_i64(got, 0, &n) && n == at + 1);
            weft_values_unref(got);
        }
    }
    weft_rref_unref(rref);
}

static void step(weft_agent *agent, worker *w, uint64_t *state)
{
    static const char *const plain[] = {"add", "inline", "hold", "release"};
    static const int64_t limits[] = {0, 5, 100, 1000, 1000, 1000};
    int to = below(state, WORKERS), what = below(state, 9);
    int64_t n = below(state, 1000), hops = below(state, 5);
    weft_rpc_options options = {.timeout_ms = limits[below(state, 6)], .wait_for_room = true};
    if (what < 4)
        start(agent, w, to, plain[what], WEFT_VALUES(weft_of_i64(n)), &options, (asked){.expect = n + 1});
    else if (what == 4)
        start(agent, w, to, "hop", WEFT_VALUES(weft_of_i64(n), weft_of_i64(hops)), &options,
              (asked){.expect = n + hops + 1});
    else if (what < 7)
        start_tensor(agent, w, to, &options, state);
    else if (what == 7)
        use_rrefs(agent, w, to, &options, state);
    else
        sleep_us((uint64_t)below(state, 20000));
}

static void check_one(asked *one)
{
    const weft_values *values = weft_future_values(one->future);
    weft_tensor *tensor;
    int64_t n;
    if (!one->sent) {
        MUST(!weft_values_get_i64(values, 0, &n) && n == one->expect);
        return;
    }
    MUST_OK(weft_values_get_tensor(values, 0, &tensor));
    MUST(!one->land || one->land == tensor);
    MUST(memcmp(weft_tensor_data(one->sent), weft_tensor_data(tensor), weft_tensor_nbytes(one->sent)) == 0);
}

static void await_all(worker *w)
{
    for (int i = 0; i < w->count; i++) {
        asked *one = &w->list[i];
        weft_status st = weft_future_wait(one->future, WEFT_FOREVER);
        must_fit(st, "a call");
        if (!st)
            check_one(one);
    }
}

static void on_membership(weft_agent *agent, weft_member_event event, int rank, const char *why, void *arg)
{
    worker *w = arg;
    (void)agent;
    (void)why;
    if (event == WEFT_SELF_EVICTED || event == WEFT_STORE_LOST) {
        MUST(w->told_self++ == 0);
        MUST(event == WEFT_STORE_LOST ? job.store_at_risk : job.disturbed[w->rank]);
        return;
    }
    MUST(rank != w->rank && w->told[rank]++ == 0); /* once */
    MUST(event == WEFT_MEMBER_LEFT || job.disturbed[rank]);
}

static void after_close(worker *w, weft_status closed)
{
    while (w->held_first < w->held_end)
        release_one(w);
    for (int i = 0; i < 8; i++)
        weft_rref_unref(w->kept[i]);
    for (int i = 0; i < w->count; i++) {
        MUST(w->list[i].done_calls == 1);
        weft_future_unref(w->list[i].future);
        weft_tensor_unref(w->list[i].sent);
        weft_tensor_unref(w->list[i].land);
    }
    MUST(closed == WEFT_OK || (closed == WEFT_ERR_EVICTED && job.disturbed[w->rank]) ||
         (closed == WEFT_ERR_STORE_LOST && job.store_at_risk));
    MUST(w->drops == w->objects);
    w->ended = true;
}

static void run_worker(weft_sim *sim, int rank, void *arg)
{
    uint64_t state = job.seed * 1000 + (uint64_t)rank;
    worker *w = arg;
    weft_agent *agent;
    weft_error *error = NULL;
    weft_agent_options options = {.functions = functions,
                                  .function_count = sizeof functions / sizeof *functions,
                                  .has_rank = true,
                                  .rank = rank,
                                  .world_size = WORKERS,
                                  .fabric = "sim",
                                  .sim = sim,
                                  .workers = 1 + below(&state, 3),
                                  .call_timeout_ms = 1500,
                                  .death_timeout_ms = 500,
                                  .on_membership = on_membership,
                                  .membership_arg = w,
                                  .error = &error};
    w->rank = rank;
    weft_status st = weft_agent_open(&options, &agent);
    weft_error_print(error, stderr);
    MUST_OK(st);
    for (int i = 0; i < STEPS; i++) {
        step(agent, w, &state);
        if (below(&state, 3) == 0)
            sleep_us((uint64_t)below(&state, 5000));
    }
    await_all(w);
    weft_stats stats;
    weft_agent_stats(agent, &stats);
    MUST(stats.bytes_copied == 0 || stats.calls_started > 0);
    after_close(w, weft_agent_close(agent));
}

/* ---- Fate ------------------------------------------------------------------------------------------------------ */

static void cut_for_a_while(int a, int b, uint64_t us)
{
    job.disturbed[a] = job.disturbed[b] = true; /* longer than the bound, either may be declared dead */
    weft_sim_cut(job.sim, a, b);
    sleep_us(us);
    weft_sim_heal(job.sim, a, b);
}

static void pause_for_a_while(int rank, uint64_t us)
{
    job.disturbed[rank] = true;
    job.store_at_risk |= rank == 0;
    weft_sim_pause(job.sim, rank);
    sleep_us(us);
    weft_sim_resume(job.sim, rank);
}

static void kill_one(int rank)
{
    job.disturbed[rank] = true;
    job.store_at_risk |= rank == 0;
    weft_sim_kill(job.sim, rank);
}

static void run_fate(weft_sim *sim, int rank, void *arg)
{
    uint64_t state = job.seed ^ UINT64_C(0xfa7e);
    (void)rank;
    (void)arg;
    for (int i = below(&state, 4); i > 0; i--) {
        int a = below(&state, WORKERS), b = (a + 1 + below(&state, WORKERS - 1)) % WORKERS;
        sleep_us((uint64_t)below(&state, 60000) + 2000);
        switch (below(&state, 5)) {
        case 0:
            kill_one(below(&state, 8) ? 1 + below(&state, WORKERS - 1) : 0);
            break;
        case 1:
            pause_for_a_while(1 + below(&state, WORKERS - 1), (uint64_t)below(&state, 1500000));
            break;
        case 2:
            cut_for_a_while(a, b, (uint64_t)below(&state, 300000));
            break;
        default:
            weft_sim_reset_link(sim, a, b);
        }
    }
}

static uint64_t run_seed(uint64_t seed)
{
    memset(&job, 0, sizeof job);
    job.seed = seed;
    job.workers = calloc(WORKERS, sizeof *job.workers);
    job.sim = weft_sim_create(&(weft_sim_options){.seed = seed});
    MUST(job.sim != NULL && job.workers != NULL);
    for (int rank = 0; rank < WORKERS; rank++)
        MUST_OK(weft_sim_spawn(job.sim, rank, run_worker, &job.workers[rank]));
    MUST_OK(weft_sim_spawn(job.sim, DIRECTOR, run_fate, NULL));
    weft_status st = weft_sim_run(job.sim, 600 * 1000);
    if (st)
        fprintf(stderr, "seed %llu: the world ended with %s\n", (unsigned long long)seed, weft_status_name(st));
    MUST_OK(st);
    bool all_ended = true;
    for (int rank = 0; rank < WORKERS; rank++) {
        MUST(job.workers[rank].ended || job.disturbed[rank]);
        all_ended &= job.workers[rank].ended;
    }
    uint64_t hash = weft_sim_trace_hash(job.sim);
    weft_sim_destroy(job.sim);
    if (all_ended) {
        free(job.workers);
    } else {
        job.workers->next_grave = graveyard;
        graveyard = job.workers;
    }
    return hash;
}

static uint64_t number_after(int argc, char **argv, const char *option, uint64_t fallback)
{
    for (int i = 1; i + 1 < argc; i++)
        if (strcmp(argv[i], option) == 0)
            return strtoull(argv[i + 1], NULL, 10);
    return fallback;
}

int main(int argc, char **argv)
{
    uint64_t seeds = number_after(argc, argv, "--seeds", 200), first = number_after(argc, argv, "--first", 1);
    for (uint64_t seed = first; seed < first + seeds; seed++) {
        uint64_t hash = run_seed(seed);
        if (seed % 10 == 0 && run_seed(seed) != hash) {
            fprintf(stderr, "seed %llu does not replay\n", (unsigned long long)seed);
            return 1;
        }
    }
    printf("%llu seeds from %llu on: all as it must be\n", (unsigned long long)seeds, (unsigned long long)first);
    return 0;
}
