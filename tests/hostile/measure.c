/* SPDX-License-Identifier: Apache-2.0 */
/*
 * measure.c - the job under attack, started and ended; how long its calls take in windows with and without the
 * attack; what its processes hold.
 *
 * Both kinds of window follow each other closely, and what is compared are the medians of the windows' maxima: a busy
 * machine delays both alike, and one unlucky window decides nothing.
 */
#include "arena.h"

#include "base/clock.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define BOUND_MS 20.0 /* what one stranger may cost */
#define TRIES 6
#define ROUNDS_MAX 32
#define GROWTH_KB 4096 /* of one attack: what allocators keep */
#define SETTLE_MS 15000
#define SETTLED_CALLS 60 /* after so many every lane has been opened */
#define LANES_MOVING 2   /* descriptors: a lane may be opened before the old one's is closed */

static void sleep_ms(int ms)
{
    nanosleep(&(struct timespec){.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000L}, NULL);
}

static void print_log(const arena *a)
{
    size_t size;
    char *log = arena_log(a, &size);
    print_message("%s\n", size > 4000 ? log + size - 4000 : log);
    free(log);
}

static void await(arena *a, atomic_int *what)
{
    uint64_t deadline = wfi_deadline(&wfi_clock_real, 60000);
    int status = 0;
    while (!atomic_load(what)) {
        if (wfi_now(&wfi_clock_real) > deadline || child_has_ended(&a->job, &status)) {
            print_log(a);
            fail_msg("the job does not begin (%#x)", (unsigned)status);
        }
        sleep_ms(5);
    }
}

/* ---- The job -------------------------------------------------------------------------------------------------- */

static void start_job(arena *a, const char *log_level, const char *trace_file, const char *metrics_file)
{
    a->log_fd = memfd_create("hostile-log", MFD_CLOEXEC);
    assert_true(a->log_fd >= 0);
    a->job = child_fork("job");
    if (a->job.pid)
        return;
    dup2(a->log_fd, 2);
    (void)fcntl(2, F_SETFL, O_APPEND);
    setenv("WEFT_LOG", log_level, 1);
    if (trace_file)
        setenv("WEFT_TRACE", trace_file, 1);
    if (metrics_file)
        setenv("WEFT_METRICS", metrics_file, 1);
    unsetenv("RANK");
    child_become((const char *const[]){"hostile", "victim", NULL});
}

void arena_begin(arena *a, const char *log_level, const char *trace_file, const char *metrics_file)
{
    memset(a, 0, sizeof(*a));
    a->at = child_memory(sizeof(*a->at));
    memset(a->at, 0, sizeof(*a->at)); /* shared from the start: what the workers write there is nobody's growth */
    start_job(a, log_level, trace_file, metrics_file);
    for (int rank = 0; rank < VICTIMS; rank++)
        await(a, &a->at->victims[rank].ready);
    await(a, &a->at->recorded_size);
    for (int rank = 0; rank < VICTIMS; rank++)
        for (int i = 0; i < 6000 && atomic_load(&a->at->victims[rank].calls) < SETTLED_CALLS; i++)
            sleep_ms(5);
}

void arena_end(arena *a)
{
    arena_drop_connections(a);
    atomic_store(&a->at->stop, 1);
    int status = child_end(&a->job);
    arena_check_calls(a);
    if (status)
        print_log(a);
    assert_int_equal(status, 0);
    close(a->log_fd);
    munmap(a->at, sizeof(*a->at));
}

char *arena_log(const arena *a, size_t *size)
{
    *size = (size_t)lseek(a->log_fd, 0, SEEK_END);
    char *text = calloc(1, *size + 1);
    assert_non_null(text);
    assert_int_equal(pread(a->log_fd, text, *size, 0), *size);
    return text;
}

void arena_drop_connections(arena *a)
{
    while (a->fd_count > 0)
        close(a->fds[--a->fd_count]);
}

/* ---- What its processes hold ---------------------------------------------------------------------------------- */

static int count_entries(pid_t pid, const char *what)
{
    char path[64];
    int count = 0;
    snprintf(path, sizeof(path), "/proc/%d/%s", (int)pid, what);
    DIR *folder = opendir(path);
    if (!folder)
        return -1;
    while (readdir(folder))
        count++;
    closedir(folder);
    return count - 2;
}

static long anonymous_kb(pid_t pid)
{
    char path[64], line[200];
    long kb = -1;
    snprintf(path, sizeof(path), "/proc/%d/smaps_rollup", (int)pid);
    FILE *from = fopen(path, "re");
    if (!from)
        return -1;
    while (kb < 0 && fgets(line, sizeof(line), from))
        (void)sscanf(line, "Anonymous: %ld kB", &kb);
    fclose(from);
    return kb;
}

footprint arena_footprint(const arena *a, int rank)
{
    pid_t pid = atomic_load(&a->at->victims[rank].ready);
    if (anonymous_kb(pid) < 0) {
        print_log(a);
        fail_msg("rank %d is gone", rank);
    }
    return (footprint){.anonymous_kb = anonymous_kb(pid),
                       .descriptors = count_entries(pid, "fd"),
                       .threads = count_entries(pid, "task")};
}

/* Descriptors and threads go back to what they were once the strangers are gone; lanes come and go meanwhile. */
static void check_footprint(const arena *a, int rank, const footprint *before, const char *name)
{
    uint64_t deadline = wfi_deadline(&wfi_clock_real, SETTLE_MS);
    footprint now = arena_footprint(a, rank);
    while (now.descriptors > before->descriptors + LANES_MOVING && wfi_now(&wfi_clock_real) < deadline) {
        sleep_ms(20);
        now = arena_footprint(a, rank);
    }
    if (now.descriptors > before->descriptors + LANES_MOVING || now.threads > before->threads ||
        now.anonymous_kb > before->anonymous_kb + GROWTH_KB)
        fail_msg("%s: rank %d has %d descriptors, %d threads, %ld kB; before %d, %d, %ld", name, rank, now.descriptors,
                 now.threads, now.anonymous_kb, before->descriptors, before->threads, before->anonymous_kb);
}

uint64_t arena_refused(const arena *a)
{
    uint64_t sum = 0;
    for (int rank = 0; rank < VICTIMS; rank++)
        sum += atomic_load(&a->at->victims[rank].refused);
    return sum;
}

void arena_check_calls(const arena *a)
{
    for (int rank = 0; rank < VICTIMS; rank++) {
        const victim *v = &a->at->victims[rank];
        if (atomic_load(&v->wrong))
            fail_msg("%llu wrong answers; the first: %s", atomic_load(&v->wrong), v->trouble);
    }
}

double arena_join_ms(arena *a)
{
    wfi_rendezvous_events nothing = {0};
    wfi_rendezvous *link = NULL;
    weft_error *error = NULL;
    wfi_rendezvous_options options = {.rank = -1,
                                      .world_size = SEATS,
                                      .elastic = true,
                                      .secret = a->at->secret.bytes,
                                      .secret_size = a->at->secret.size,
                                      .name = "",
                                      .addresses = (const uint8_t *)"visitor",
                                      .addresses_size = 7,
                                      .master_addr = "127.0.0.1",
                                      .master_port = a->at->port,
                                      .store_fd = -1,
                                      .join_timeout_ms = 20000,
                                      .death_timeout_ms = 30000,
                                      .no_threads = true,
                                      .clock = &wfi_clock_real,
                                      .events = &nothing};
    uint64_t began = wfi_now(&wfi_clock_real);
    weft_status status = wfi_rendezvous_open(&options, &link, &error);
    double took = (double)(wfi_now(&wfi_clock_real) - began) / 1e6;
    if (status)
        fail_msg("a visitor with the secret could not join: %s", weft_error_message(error));
    wfi_rendezvous_close(link);
    return took;
}

/* ---- Windows -------------------------------------------------------------------------------------------------- */

enum { JOIN = SAMPLE_KINDS, KINDS };

static const char *const kind_names[KINDS] = {"call", "reach", "join"};

typedef struct tally {
    double most[KINDS][ROUNDS_MAX]; /* of each window, in ms */
    double all[KINDS][ROUNDS_MAX * VICTIMS * SAMPLES];
    size_t count[KINDS];
} tally;

static int by_size(const void *a, const void *b)
{
    double left = *(const double *)a, right = *(const double *)b;
    return (left > right) - (left < right);
}

static double quantile(double *values, size_t count, double which)
{
    if (!count)
        return 0;
    qsort(values, count, sizeof(*values), by_size);
    return values[(size_t)((double)(count - 1) * which)];
}

/* Until every call that began in this window has ended. */
static void await_next(arena *a, unsigned before)
{
    for (int rank = 0; rank < VICTIMS; rank++) {
        uint64_t deadline = wfi_deadline(&wfi_clock_real, 60000);
        while (atomic_load(&a->at->victims[rank].seen) == before) {
            assert_true(wfi_now(&wfi_clock_real) < deadline);
            sleep_ms(1);
        }
    }
}

static void add(tally *to, int kind, int round, double ms)
{
    to->all[kind][to->count[kind]++] = ms;
    if (ms > to->most[kind][round])
        to->most[kind][round] = ms;
}

static void collect(const arena *a, unsigned at, int round, tally *to)
{
    for (int rank = 0; rank < VICTIMS; rank++) {
        for (int kind = 0; kind < SAMPLE_KINDS; kind++) {
            const window *win = &a->at->victims[rank].windows[at % WINDOWS][kind];
            unsigned count = atomic_load(&win->count);
            for (unsigned i = 0; i < count && i < SAMPLES; i++)
                add(to, kind, round, win->us[i] / 1e3);
        }
    }
}

static void clear_window(arena *a, unsigned at)
{
    for (int rank = 0; rank < VICTIMS; rank++)
        for (int kind = 0; kind < SAMPLE_KINDS; kind++)
            atomic_store(&a->at->victims[rank].windows[at % WINDOWS][kind].count, 0);
}

static void run_window(arena *a, const attack *what, int ms, int round, tally *to)
{
    unsigned at = ++a->window;
    clear_window(a, at);
    atomic_store(&a->at->now, at);
    uint64_t end = wfi_deadline(&wfi_clock_real, ms), half = wfi_deadline(&wfi_clock_real, ms / 2);
    bool joined = false;
    while (wfi_now(&wfi_clock_real) < end) {
        if (what)
            what->stroke(a, a->strokes++);
        sleep_ms(what ? what->pause_ms : 10);
        if (!joined && wfi_now(&wfi_clock_real) > half) {
            add(to, JOIN, round, arena_join_ms(a));
            joined = true;
        }
    }
    clear_window(a, ++a->window);
    atomic_store(&a->at->now, a->window);
    await_next(a, at);
    collect(a, at, round, to);
    arena_drop_connections(a);
}

static void print_tally(const char *name, tally *alone, int quiet, tally *attacked, int rounds)
{
    for (int kind = 0; kind < KINDS; kind++)
        print_message("%-34s %-5s p50 %6.2f -> %6.2f  p99 %6.2f -> %6.2f  median of maxima %6.2f -> %6.2f ms\n",
                      kind ? "" : name, kind_names[kind], quantile(alone->all[kind], alone->count[kind], .5),
                      quantile(attacked->all[kind], attacked->count[kind], .5),
                      quantile(alone->all[kind], alone->count[kind], .99),
                      quantile(attacked->all[kind], attacked->count[kind], .99),
                      quantile(alone->most[kind], (size_t)quiet, .5),
                      quantile(attacked->most[kind], (size_t)rounds, .5));
}

/* Whether nobody was delayed by more than the bound. */
static bool compare(arena *a, const attack *what, int rounds, int window_ms)
{
    tally *alone = calloc(1, sizeof(*alone)), *attacked = calloc(1, sizeof(*attacked));
    bool good = true;
    assert_non_null(alone);
    assert_non_null(attacked);
    int quiet = 0;
    for (int round = 0; round < rounds; round++) {
        if (round % 2 == 0) /* as near to it in time as every round's own */
            run_window(a, NULL, window_ms, quiet++, alone);
        run_window(a, what, window_ms, round, attacked);
    }
    print_tally(what->name, alone, quiet, attacked, rounds);
    for (int kind = 0; kind < KINDS; kind++)
        good &= quantile(attacked->most[kind], (size_t)rounds, .5) <=
                quantile(alone->most[kind], (size_t)quiet, .5) + BOUND_MS;
    free(alone);
    free(attacked);
    return good;
}

/* The workers tell their counts now and then: whether it comes to that. */
static bool refusals_reach(const arena *a, uint64_t wanted)
{
    for (int i = 0; i < 400 && arena_refused(a) < wanted; i++)
        sleep_ms(5);
    return arena_refused(a) >= wanted;
}

/* What was refused before has been told, too. */
static uint64_t settled_refusals(const arena *a)
{
    uint64_t now = arena_refused(a), before;
    do {
        before = now;
        sleep_ms(30);
        now = arena_refused(a);
    } while (now != before);
    return now;
}

void arena_suffer(arena *a, const attack *what, int rounds, int window_ms)
{
    footprint before[VICTIMS];
    uint64_t refused = what->refused ? settled_refusals(a) : 0;
    unsigned strokes = a->strokes;
    int tries = 1;
    assert_true(rounds <= ROUNDS_MAX);
    for (int rank = 0; rank < VICTIMS; rank++)
        before[rank] = arena_footprint(a, rank);
    while (!compare(a, what, rounds, window_ms) && !what->by_member)
        if (++tries > TRIES)
            fail_msg("%s: it delays others by more than %.0f ms", what->name, BOUND_MS);
    arena_check_calls(a);
    strokes = a->strokes - strokes;
    if (what->refused && !refusals_reach(a, refused + strokes / 2)) /* some may have found the doorbell full */
        fail_msg("%s: %u strokes, of which %d were counted", what->name, strokes, (int)(arena_refused(a) - refused));
    for (int rank = 0; rank < VICTIMS; rank++)
        check_footprint(a, rank, &before[rank], what->name);
}
