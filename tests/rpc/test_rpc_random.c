/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_rpc_random.c - random programs in simulated jobs, static and elastic, with connections that break, silences,
 * cuts, deaths, new lives and the loss of the store, checked against what must hold whatever happens: nothing hangs,
 * each call ends once, with a right result or a failure that fits what was done, and runs at most once; each object
 * is dropped once, not while it is held; everybody is told of everybody's end once; when all is settled nothing is
 * left; and a seed replays exactly.
 *
 * usage: test_rpc_random [--fabrics] [--seeds N] [--first S] [--replay-each N] [--digests] [--verbose]
 * --fabrics: workers open several fabrics, and faults are done to all but one of them (spoiler.h). Without --first,
 * seeds that once failed are played too.
 * Says the seed when something is wrong: --first SEED --seeds 1 plays it again. Afterwards each Nth is played once
 * more, in the opposite order, and must give the same digest: nothing may depend on addresses, on the machine's
 * clock or on what was played before. --digests prints them, for comparing processes.
 */
#include "rpc/random.h"

#include "sim/fiber.h"
#include "sim/sim.h"
#include "make.h"

#include <signal.h>
#include <time.h>
#include <unistd.h>

#define WORLD_LIMIT_MS (300 * 1000)

/* What killed workers held stays as it was: kept where leak checkers see it. */
static job *graveyard;
static bool has_fabrics;

/* ---- One seed ------------------------------------------------------------------------------------------------- */

static weft_sim *make_world(uint64_t seed, uint64_t *state)
{
    static const uint64_t latencies[] = {20000, 20000, 200000, 2000000};
    weft_sim_options options = {.seed = seed, .latency_max_ns = latencies[below(state, 4)]};
    options.bytes_per_second = once_in(state, 3) ? 300000000u : 0;
    return sim_open(&options);
}

static job *make_job(uint64_t seed)
{
    uint64_t state = seed * UINT64_C(7919);
    static const mood moods[] = {CALM, CALM, CALM, SHAKEN, SHAKEN, SHAKEN, BROKEN, BROKEN, BROKEN, BROKEN, LOST};
    job *j = calloc(1, sizeof(*j));
    MUST(j);
    now_playing = j;
    j->seed = seed;
    j->mood = moods[below(&state, 11)];
    j->elastic = once_in(&state, 3);
    j->actors = 2 + below(&state, 4);
    j->steps = 15 + below(&state, 25);
    j->meetings = j->elastic ? 0 : below(&state, MEETINGS_MAX + 1);
    j->few = 1 + below(&state, j->actors);
    j->budget = once_in(&state, 4) ? (size_t)2 << 20 : 0;
    j->queue_limit = once_in(&state, 4) ? 8192 : 0;
    j->sim = make_world(seed, &state);
    MUST(j->sim);
    j->has_fabrics = j->shaken = has_fabrics;
    spoiler_init(&j->spoiler, seed, j->actors);
    return j;
}

static void free_job(job *j)
{
    for (int64_t i = 0; i < j->entry_count; i++)
        free(j->entries[i]);
    free(j->entries);
    for (thing *t = j->things, *next; t; t = next) {
        next = t->next;
        free(t);
    }
    for (int i = 0; i < j->life_count; i++)
        free(j->lives[i]);
    free(j);
}

static void end_job(job *j)
{
    weft_sim_close(j->sim);
    j->sim = NULL;
    if (j->kills) {
        j->next_grave = graveyard;
        graveyard = j;
    } else {
        free_job(j);
    }
}

static void show_lives(const job *j)
{
    static const char *const moods[MOODS] = {"calm", "shaken", "broken", "lost"};
    fprintf(stderr, "seed %llu: %s, %s, %d actors, %d steps, %lld calls, %lld things, %.3f s\n",
            (unsigned long long)j->seed, moods[j->mood], j->elastic ? "elastic" : "static", j->actors, j->steps,
            (long long)j->entry_count, (long long)j->thing_count, (double)now_ns() / 1e9);
    for (int i = 0; i < j->life_count; i++) {
        const life *l = j->lives[i];
        fprintf(stderr, "  life %d: actor %d, rank %d%s%s%s%s\n", i, l->actor, l->rank, l->suspect ? ", suspect" : "",
                l->killed ? ", killed" : "", l->leaving ? ", leaving" : "", l->over ? ", over" : "");
    }
}

static uint64_t play(uint64_t seed, bool verbose)
{
    job *j = make_job(seed);
    for (int i = 0; i < j->actors; i++) {
        j->cast[i].state = ACTOR_BUSY;
        MUST_OK(weft_sim_spawn(j->sim, i, run_actor, NULL));
    }
    MUST_OK(weft_sim_spawn(j->sim, DIRECTOR, run_director, NULL));
    weft_status status = weft_sim_run(j->sim, WORLD_LIMIT_MS);
    if (verbose || status)
        show_lives(j);
    MUST_OK(status);
    check_book();
    if (!j->kills)
        MUST_IN_JOB(wfi_fibers_live(wfi_sim_fibers(j->sim), -1) == 0);
    uint64_t digest = digest_book();
    end_job(j);
    return digest;
}

/* ---- All of them ---------------------------------------------------------------------------------------------- */

static const char *option_after(int argc, char **argv, const char *option)
{
    for (int i = 1; i < argc; i++)
        if (strcmp(argv[i], option) == 0)
            return i + 1 < argc ? argv[i + 1] : "";
    return NULL;
}

static uint64_t number_after(int argc, char **argv, const char *option, uint64_t fallback)
{
    const char *text = option_after(argc, argv, option);
    return text ? strtoull(text, NULL, 10) : fallback;
}

/* Seeds of --fabrics that once failed. */
static const uint64_t failed_once[] = {8460, 11072, 21129};
static uint64_t current;

static void on_abort(int signal_number)
{
    char text[96];
    signal(signal_number, SIG_DFL);
    int size = snprintf(text, sizeof(text), "to replay: test_rpc_random %s--first %llu --seeds 1\n",
                        has_fabrics ? "--fabrics " : "", (unsigned long long)current);
    show_lives(now_playing); /* no other thread can be in the middle of anything */
    (void)!write(2, text, (size_t)size);
}

static void say_nothing(weft_log_level level, const char *line, void *arg) {}

static void play_all(uint64_t first, uint64_t seeds, uint64_t replay_each, bool verbose, bool tell)
{
    uint64_t *digests = calloc(seeds + 1, sizeof(*digests));
    MUST(digests);
    for (current = first; current < first + seeds; current++) {
        digests[current - first] = play(current, verbose);
        if (tell)
            printf("%llu %016llx\n", (unsigned long long)current, (unsigned long long)digests[current - first]);
    }
    for (current = first + seeds; replay_each && current-- > first;) {
        if (current % replay_each || play(current, verbose) == digests[current - first])
            continue;
        fprintf(stderr, "seed %llu does not replay\n", (unsigned long long)current);
        exit(1);
    }
    free(digests);
}

int main(int argc, char **argv)
{
    uint64_t seeds = number_after(argc, argv, "--seeds", 500), first = number_after(argc, argv, "--first", 1);
    uint64_t replay_each = number_after(argc, argv, "--replay-each", 10);
    bool verbose = option_after(argc, argv, "--verbose") != NULL;
    has_fabrics = option_after(argc, argv, "--fabrics") != NULL;
    struct timespec begun, ended;
    if (!verbose)
        weft_logging_set_sink(say_nothing, NULL);
    signal(SIGABRT, on_abort);
    signal(SIGSEGV, on_abort);
    clock_gettime(CLOCK_MONOTONIC, &begun);
    if (has_fabrics && !option_after(argc, argv, "--first"))
        for (size_t i = 0; i < sizeof(failed_once) / sizeof(*failed_once); i++)
            (void)play(current = failed_once[i], verbose);
    play_all(first, seeds, replay_each, verbose, option_after(argc, argv, "--digests") != NULL);
    clock_gettime(CLOCK_MONOTONIC, &ended);
    double seconds = (double)(ended.tv_sec - begun.tv_sec) + (double)(ended.tv_nsec - begun.tv_nsec) * 1e-9;
    printf("%llu seeds from %llu on: all as it must be; %.1f seeds/s\n", (unsigned long long)seeds,
           (unsigned long long)first, (double)seeds / seconds);
    return 0;
}
