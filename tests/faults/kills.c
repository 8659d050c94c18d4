/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kills.c - workers die, one after the other, in the middle of everything that can be under way with them.
 *
 * usage: kills [--count N] [--seed S] [--elastic] [--bound MS]
 *        kills --pulls N [--stops N [--stop-ms MS]] [--quota MS] [--seed S] [--bound MS]
 *
 * Each round begins calls with arguments and results under way, calls that are held, parts that stream, references
 * lent and borrowed; then the worker is killed (every 100th: stopped for longer than the bound). All of it must end,
 * well or with WEFT_ERR_PEER_DEAD; what the dead one held, and was held for it, is let go; the survivors' calls are
 * right; and another one takes the seat.
 *
 * PULLS. With --pulls nobody dies. Until so many calls with large tensors have ended (kills_pulls.c), and all stops
 * have been made, one process after the other is stopped for 0.2 to 0.8 of the bound, or for --stop-ms; with --quota
 * each may run for so many milliseconds of a second. Nobody may be harmed by it, and every byte must be right.
 *
 * GROWTH. Both survivors are weighed every 100 deaths. From the first time on nothing may grow. What malloc gave to
 * the caches of threads counts as in use, and would hide a few bytes a death: the program runs without them.
 */
#include "faults/kills.h"
#include "net/net_measure.h"
#include "rpc/world.h"
#include "prng.h"

#include <signal.h>
#include <string.h>
#include <unistd.h>

/* Bytes of malloc that a survivor may have more at the end, whatever the number of deaths: histograms, spare frames,
 * lanes. */
#define GROWTH_A_DEATH 8
#define GROWTH_ONCE ((64 + 464) << 10) /* 453 KiB: libfabric's pool grows when more is under way at once than before */
#define WEIGH_EVERY 100
#define LANES_IDLE_MS 6000                   /* then lanes for large transfers have gone */
#define GROWTH_DIRTY_KB 4096                 /* heaps of several threads */
#define GROWTH_DESCRIPTORS (2 * (SEATS - 1)) /* lanes for large transfers come and go */

typedef struct job {
    weft_agent *agent;
    kill_options options;
    int count, stops;
    uint64_t chance;
    child workers[SEATS];     /* workers[0] is this process */
    double faults_ms[2];      /* until all had ended: killed, stopped */
    kill_footprint before[2]; /* at the first weighing, after so many deaths: */
    int weighed_at;
    int64_t right; /* the bystander's calls so far */
    int pulls;     /* 0: workers die */
    kill_stops short_stops;
    kill_quota quota;
} job;

static uint64_t chance_below(job *j, uint64_t below)
{
    return prng_below(&j->chance, below);
}

static void start_worker(job *j, int rank)
{
    char rank_text[16], port_text[16], bound_text[16];
    snprintf(rank_text, sizeof(rank_text), "%d", rank);
    snprintf(port_text, sizeof(port_text), "%d", j->options.port);
    snprintf(bound_text, sizeof(bound_text), "%d", j->options.bound_ms);
    j->workers[rank] = child_exec("worker", (const char *const[]){"kills", "--serve", rank_text, port_text, bound_text,
                                                                  j->options.elastic ? "1" : "0", NULL});
}

static void await_member(job *j, int rank, uint32_t not_this)
{
    double until = kill_now_ms() + END_MS;
    while (!weft_agent_alive(j->agent, rank) || weft_agent_worker(j->agent, rank).incarnation == not_this) {
        MUST(kill_now_ms() < until);
        usleep(500);
    }
}

typedef struct report { /* the bystander's kill_counters */
    int64_t right, objects, held;
} report;

static report ask_bystander(const job *j)
{
    weft_values *values = NULL;
    report r;
    MUST_OK(weft_rpc_sync(j->agent, weft_to_rank(1), "report", WEFT_NO_VALUES, NULL, &values));
    MUST_OK(weft_values_get_i64(values, 0, &r.right));
    MUST_OK(weft_values_get_i64(values, 1, &r.objects));
    MUST_OK(weft_values_get_i64(values, 2, &r.held));
    weft_values_unref(values);
    return r;
}

/* What each of them has under way. */
static void dump_all(job *j)
{
    const weft_rpc_options soon = {.timeout_ms = 5000};
    (void)!weft_debug_dump(j->agent, stderr);
    for (int rank = 1; rank < SEATS; rank++)
        (void)!weft_rpc_sync(j->agent, weft_to_rank(rank), "dump", WEFT_NO_VALUES, &soon, NULL);
}

/* Both survivors have let go of what the dead one held, and go on. `alive`: victims whose calls are held. */
static void must_be_clean(job *j, int alive)
{
    double until = kill_now_ms() + END_MS;
    for (;; usleep(1000)) {
        report r = ask_bystander(j);
        int objects = atomic_load(&counters.objects), held = atomic_load(&counters.held);
        if (!objects && !r.objects && r.right > j->right && r.held <= 2 * alive && held <= 2 * alive) {
            j->right = r.right;
            return;
        }
        if (kill_now_ms() > until) {
            fprintf(stderr, "objects left: %d and %d; calls held: %d and %d; right: %lld after %lld\n", objects,
                    (int)r.objects, held, (int)r.held, (long long)r.right, (long long)j->right);
            dump_all(j);
            abort();
        }
    }
}

/* On a busy machine others may have been taken for dead besides, and come again. */
static void await_news_of_death(int dead_before)
{
    double until = kill_now_ms() + END_MS;
    while (atomic_load(&counters.dead) <= dead_before) {
        MUST(kill_now_ms() < until);
        usleep(500);
    }
}

static void one_round(job *j, int round)
{
    int victim = FIRST_VICTIM + (int)chance_below(j, SEATS - FIRST_VICTIM);
    bool stops = round % 100 == 7;
    if (stops) /* not while it opens its agent */
        MUST(kill_await(&counters.held, 2 * (SEATS - FIRST_VICTIM)));
    uint32_t incarnation = weft_agent_worker(j->agent, victim).incarnation;
    int dead = atomic_load(&counters.dead);
    kill_mess *mess = kill_mess_begin(j->agent, victim, (unsigned)chance_below(j, 32));
    usleep((useconds_t)chance_below(j, 3) * (useconds_t)chance_below(j, 5000));
    child_signal(&j->workers[victim], stops ? SIGSTOP : SIGKILL);
    double took = kill_mess_end(mess);
    if (took > j->faults_ms[stops])
        j->faults_ms[stops] = took;
    await_news_of_death(dead);
    if (stops) {
        j->stops++;
        child_signal(&j->workers[victim], SIGCONT);
    } else {
        child_kill(&j->workers[victim]);
        start_worker(j, victim);
    }
    must_be_clean(j, SEATS - FIRST_VICTIM);
    await_member(j, victim, incarnation);
}

/* All victims are here, and have begun what they always hold. */
static void must_be_whole(job *j)
{
    double until = kill_now_ms() + END_MS;
    int whole = 2 * (SEATS - FIRST_VICTIM), here, there;
    while ((here = atomic_load(&counters.held)) != whole || (there = (int)ask_bystander(j).held) != whole) {
        if (kill_now_ms() > until) {
            fprintf(stderr, "calls held: %d here, %d at rank 1, of %d\n", here, (int)ask_bystander(j).held, whole);
            dump_all(j);
            abort();
        }
        usleep(1000);
    }
}

static void weigh(job *j, kill_footprint out[2])
{
    weft_values *values = NULL;
    const void *bytes;
    size_t size;
    must_be_whole(j);
    if (j->count > WEIGH_EVERY)
        usleep(LANES_IDLE_MS * 1000);
    out[0] = kill_footprint_of(j->agent);
    MUST_OK(weft_rpc_sync(j->agent, weft_to_rank(1), "weigh", WEFT_NO_VALUES, NULL, &values));
    MUST(weft_values_get_bytes(values, 0, &bytes, &size) == WEFT_OK && size == sizeof(out[1]));
    memcpy(&out[1], bytes, size);
    weft_values_unref(values);
    for (int i = 0; i < 2; i++)
        printf(
            "  rank %d: %.1f KiB of malloc, %zu KiB private dirty, %zu descriptors, %zu threads, dump of %zu bytes\n",
            i, (double)out[i].in_use / 1024, out[i].private_dirty_kb, out[i].descriptors, out[i].threads,
            out[i].dump_bytes);
    fflush(stdout);
}

static void must_not_have_grown(job *j, int deaths)
{
    kill_footprint now[2];
    weigh(j, now);
    for (int i = 0; i < 2; i++) {
        const kill_footprint *was = &j->before[i];
        MUST(now[i].dump_bytes <= was->dump_bytes + 600); /* its numbers have more digits; a call of the bystander */
        MUST(now[i].descriptors <= was->descriptors + GROWTH_DESCRIPTORS);
        MUST(now[i].threads <= was->threads);
        MUST(MEASURE_INSTRUMENTED || now[i].in_use <= was->in_use + GROWTH_ONCE + (size_t)deaths * GROWTH_A_DEATH);
        MUST(MEASURE_INSTRUMENTED || now[i].private_dirty_kb <= was->private_dirty_kb + GROWTH_DIRTY_KB);
    }
}

static void end_job(job *j)
{
    for (int rank = SEATS - 1; rank > 0; rank--) {
        weft_status status = weft_rpc_sync(j->agent, weft_to_rank(rank), "quit", WEFT_NO_VALUES, NULL, NULL);
        MUST(status == WEFT_OK || (status == WEFT_ERR_PEER_LEFT && rank >= FIRST_VICTIM)); /* these stop at once */
    }
    child_must_end_well(j->workers + FIRST_VICTIM, SEATS - FIRST_VICTIM);
    MUST(kill_await(&counters.held, 0));
    MUST_OK(weft_agent_close(j->agent, WEFT_FOREVER));
    child_must_end_well(&j->workers[1], 1);
}

/* In an elastic job the victims come last: they call both survivors at once. */
static void begin_job(job *j)
{
    j->options.port = world_free_port();
    j->workers[0].pid = getpid();
    start_worker(j, 1);
    for (int rank = FIRST_VICTIM; !j->options.elastic && rank < SEATS; rank++)
        start_worker(j, rank);
    j->agent = kill_open(0, &j->options);
    await_member(j, 1, 0);
    for (int rank = FIRST_VICTIM; rank < SEATS; rank++) {
        if (j->options.elastic)
            start_worker(j, rank);
        await_member(j, rank, 0);
    }
}

static void run_job(job *j)
{
    double began = kill_now_ms();
    begin_job(j);
    int every = j->count > WEIGH_EVERY ? WEIGH_EVERY : j->count / 2;
    for (int deaths = 1; deaths <= j->count; deaths++) {
        one_round(j, deaths - 1);
        if (every == 0 || (deaths % every && deaths < j->count))
            continue;
        printf("%d deaths in %.0f s\n", deaths, (kill_now_ms() - began) / 1e3);
        if (j->weighed_at)
            must_not_have_grown(j, deaths - j->weighed_at);
        else
            weigh(j, j->before);
        j->weighed_at = j->weighed_at ? j->weighed_at : deaths;
    }
    end_job(j);
    printf("%d deaths (%d by a stop) in %.1f s; all that was under way had ended after %.0f ms at most, after a stop "
           "%.0f ms\n",
           j->count, j->stops, (kill_now_ms() - began) / 1e3, j->faults_ms[0], j->faults_ms[1]);
}

/* ---- Nobody dies ------------------------------------------------------------------------------------------------- */

static void await_pulls(job *j, kill_pulls *pulls, child *stopper)
{
    int status, ended = 0;
    double until = kill_now_ms() + END_MS;
    bool stops = stopper->pid;
    while (stops || ended < j->pulls) {
        int now = kill_pulls_ended(pulls);
        if (now > ended)
            until = kill_now_ms() + END_MS;
        if (kill_now_ms() > until) {
            fprintf(stderr, "no call has ended for %d ms\n", END_MS);
            dump_all(j);
            abort();
        }
        ended = now;
        if (stops && child_has_ended(stopper, &status)) {
            MUST(status == 0);
            stops = false;
        }
        usleep(10000);
    }
}

static void run_pulls(job *j)
{
    double began = kill_now_ms();
    begin_job(j);
    must_be_whole(j);
    kill_pulls *pulls = kill_pulls_begin(j->agent, j->chance);
    const char *means = j->quota.ms_a_second ? kill_quota_begin(&j->quota, j->workers) : "none";
    child stopper = j->short_stops.count ? kill_stops_begin(&j->short_stops, j->workers) : (child){0};
    await_pulls(j, pulls, &stopper);
    if (j->quota.ms_a_second)
        kill_quota_end(&j->quota, j->workers);
    kill_pulls_end(pulls);
    must_be_clean(j, SEATS - FIRST_VICTIM);
    printf("%d stops of %d to %d ms; quota of %d ms a second (%s); %d declared dead; %.1f s\n", j->short_stops.count,
           j->short_stops.low_ms, j->short_stops.high_ms, j->quota.ms_a_second, means, atomic_load(&counters.dead),
           (kill_now_ms() - began) / 1e3);
    end_job(j);
}

/* ---- The program ------------------------------------------------------------------------------------------------- */

/* And so do all that it starts. */
static void run_without_caches(char **argv)
{
    if (getenv("GLIBC_TUNABLES"))
        return;
    MUST(setenv("GLIBC_TUNABLES", "glibc.malloc.tcache_count=0", 1) == 0);
    (void)execv("/proc/self/exe", argv);
    perror("/proc/self/exe");
    abort();
}

static int usage(void)
{
    fprintf(stderr, "usage: kills [--count N] [--seed S] [--elastic] [--bound MS]\n"
                    "       kills --pulls N [--stops N [--stop-ms MS]] [--quota MS] [--seed S] [--bound MS]\n");
    return 2;
}

static bool take_number(job *j, const char *name, const char *text)
{
    int number = atoi(text);
    if (strcmp(name, "--count") == 0)
        j->count = number;
    else if (strcmp(name, "--seed") == 0)
        j->chance = strtoull(text, NULL, 10);
    else if (strcmp(name, "--bound") == 0)
        j->options.bound_ms = number;
    else if (strcmp(name, "--pulls") == 0)
        j->pulls = number;
    else if (strcmp(name, "--stops") == 0)
        j->short_stops.count = number;
    else if (strcmp(name, "--stop-ms") == 0)
        j->short_stops.low_ms = j->short_stops.high_ms = number;
    else if (strcmp(name, "--quota") == 0)
        j->quota.ms_a_second = number;
    else
        return false;
    return true;
}

int main(int argc, char **argv)
{
    job j = {.count = 30, .chance = 1, .options.bound_ms = 3000};
    if (argc == 6 && strcmp(argv[1], "--serve") == 0) {
        const kill_options options = {.port = atoi(argv[3]), .bound_ms = atoi(argv[4]), .elastic = atoi(argv[5]) != 0};
        return kill_serve(atoi(argv[2]), &options);
    }
    run_without_caches(argv);
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--elastic") == 0)
            j.options.elastic = true;
        else if (i + 1 >= argc || !take_number(&j, argv[i], argv[i + 1]))
            return usage();
        else
            i++;
    }
    if (!j.pulls && (j.short_stops.count || j.quota.ms_a_second))
        return usage();
    if (!j.short_stops.low_ms) {
        j.short_stops.low_ms = j.options.bound_ms / 5;
        j.short_stops.high_ms = j.options.bound_ms * 4 / 5;
    }
    j.short_stops.seed = j.chance;
    if (j.pulls)
        run_pulls(&j);
    else
        run_job(&j);
    return 0;
}
