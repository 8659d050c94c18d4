/* SPDX-License-Identifier: Apache-2.0 */
/*
 * spin.c - how long to spin for the next event before going to sleep.
 *
 * Sleeping costs about 20 us when the event comes (the wake-up, and a cold core). Spinning occupies a core, which is
 * bad if another thread needs the core, perhaps the peer that this thread waits for. Two measures tell whether another
 * thread does.
 *
 * The outcome. On a busy machine the peer runs late, so its answer arrives after the spin has ended. A spin that ended
 * without an event halves the next one, down to a microsecond. A spin that ended with an event doubles the next one. If
 * an event comes so soon after a sleep began that a full spin would have caught it, the next spin is a full one.
 * Sleeping itself makes answers late. So every eighth miss is followed by a full spin: otherwise two fast sides would
 * keep each other slow.
 *
 * The load. The kernel (Linux, proc(5): loadavg) counts the runnable threads. A spin without an event for some
 * microseconds reads that number, and ends if it is larger than the number of cores. Reading takes a microsecond, in
 * which the thread has nothing else to do. On a machine with very many cores counting takes longer, and two threads
 * rarely need the same core: there it is not read.
 *
 * On one core no thread spins, because the peer needs that core.
 *
 * YIELDING. If several workers share a core, the peer is often one of the threads that would run on this core. Yielding
 * to them (sched_yield(2)) and polling again saves both sides a sleep and a wake-up. But a program that computes takes
 * the core for milliseconds, while a sleeper would be woken at once. So after a yield that took long there is none for
 * forty times as long: such yields cost at most a fortieth of the time.
 */
#include "progress/progress.h"

#include <fcntl.h>
#include <sched.h>
#include <string.h>
#include <unistd.h>

#define SPIN_MAX_NS 50000
#define SPIN_MIN_NS 1000
#define PROBE_EVERY 8
#define BUSY_ROUND_NS 1000 /* added to three times an empty round, which takes a few hundred ns */
#define BUSY_ROUND_MAX_NS 2000000
#define USUAL_SHIFT 12 /* of usual_round: the shortest recent round; it grows by 1/4096 a round */
#define CHECK_EVERY_NS 4000
#define LOOK_CORES_MAX 64
#define YIELD_LONG_NS 1000000 /* workers give the core back sooner; a program that computes does not */
#define YIELD_PAUSE 40

/*
 * Whether the round found work. A peer that reads or writes this worker's memory causes no completions here, but the
 * fabric's library moves the bytes in the rounds, so they take longer than an empty round (usual_round). If a round
 * took extremely long, this thread did not run. With several sources the time depends on which of them rest
 * (round.c), so it is not used. Each poll of a resting source would count as work, and the thread would never sleep.
 */
bool wfi_spin_was_busy(wfi_progress *progress, wfi_spinning *spinning, size_t count)
{
    uint64_t *usual = &progress->token.usual_round, bound = 3 * (*usual >> USUAL_SHIFT) + BUSY_ROUND_NS;
    uint64_t before = spinning->round_ns, round_ns = progress->token.round_ns - before;
    spinning->round_ns = count ? 0 : progress->token.round_ns; /* handling what came is no part of the next round */
    if (count || !before || round_ns >= BUSY_ROUND_MAX_NS || progress->source_count > 1)
        return count > 0;
    if (!*usual || round_ns << USUAL_SHIFT < *usual)
        *usual = round_ns << USUAL_SHIFT;
    else
        *usual += (*usual >> USUAL_SHIFT) + 1;
    return round_ns > bound;
}

void wfi_spin_init(wfi_progress *progress)
{
    cpu_set_t cores;
    bool several = sched_getaffinity(0, sizeof(cores), &cores) || CPU_COUNT(&cores) > 1;
    progress->token.spin_max_ns = several ? SPIN_MAX_NS : 0;
    progress->token.cores = sysconf(_SC_NPROCESSORS_ONLN);
    if (several && progress->token.cores <= LOOK_CORES_MAX)
        progress->token.load_fd =
            open("/proc/loadavg", O_RDONLY | O_CLOEXEC); /* if it fails, only the outcome counts */
    for (int role = 0; role < WFI_ROLES; role++)
        atomic_store(&progress->token.spin[role].limit_ns, progress->token.spin_max_ns);
}

/* Reads "0.20 0.18 0.12 3/80 11206": three threads are runnable. */
static bool is_crowded(const wfi_progress *progress)
{
    char text[64];
    ssize_t size = progress->token.load_fd >= 0 ? pread(progress->token.load_fd, text, sizeof(text) - 1, 0) : -1;
    if (size <= 0)
        return false;
    text[size] = '\0';
    const char *slash = strchr(text, '/');
    long running = 0;
    for (long unit = 1; slash && slash > text && slash[-1] >= '0' && slash[-1] <= '9'; unit *= 10)
        running += (*--slash - '0') * unit;
    return running > progress->token.cores;
}

void wfi_spin_begin(wfi_spinning *spinning)
{
    *spinning = (wfi_spinning){.yields = WFI_YIELDS};
}

static bool spins_yet(wfi_progress *progress, wfi_role role, wfi_spinning *spinning, uint64_t now_ns)
{
    if (!spinning->since_ns) {
        spinning->since_ns = now_ns;
        spinning->check_ns = now_ns + CHECK_EVERY_NS;
    }
    if (now_ns - spinning->since_ns >= atomic_load_explicit(&progress->token.spin[role].limit_ns, memory_order_relaxed))
        return false;
    if (now_ns < spinning->check_ns)
        return true;
    spinning->check_ns = now_ns + CHECK_EVERY_NS;
    spinning->round_ns = 0; /* the time of reading is no part of the next round */
    return !is_crowded(progress);
}

static void missed(wfi_progress *progress, wfi_role role, uint64_t now_ns)
{
    wfi_spin *spin = &progress->token.spin[role];
    uint64_t half = atomic_load_explicit(&spin->limit_ns, memory_order_relaxed) / 2;
    uint64_t floor = progress->token.spin_max_ns ? SPIN_MIN_NS : 0;
    bool probe = atomic_fetch_add_explicit(&spin->misses, 1, memory_order_relaxed) % PROBE_EVERY == PROBE_EVERY - 1;
    uint64_t limit = half > floor ? half : floor;
    atomic_store_explicit(&spin->limit_ns, probe ? progress->token.spin_max_ns : limit, memory_order_relaxed);
    atomic_store_explicit(&spin->slept_ns, now_ns, memory_order_relaxed);
}

bool wfi_spin_goes_on(wfi_progress *progress, wfi_role role, wfi_spinning *spinning, uint64_t now_ns)
{
    if (spinning->yields == WFI_YIELDS) {
        if (spins_yet(progress, role, spinning, now_ns))
            return true;
        missed(progress, role, now_ns);
    }
    spinning->round_ns = 0;
    return spinning->yields-- > 0 && wfi_spin_yield(progress);
}

void wfi_spin_found_work(wfi_progress *progress, wfi_role role, uint64_t now_ns)
{
    wfi_spin *spin = &progress->token.spin[role];
    uint64_t limit = atomic_load_explicit(&spin->limit_ns, memory_order_relaxed), max = progress->token.spin_max_ns;
    uint64_t slept = atomic_load_explicit(&spin->slept_ns, memory_order_relaxed);
    if (limit == max && !slept)
        return;
    if (!slept)
        limit = 2 * limit;
    else if (now_ns - slept < max)
        limit = max;
    atomic_store_explicit(&spin->limit_ns, limit < max ? limit : max, memory_order_relaxed);
    atomic_store_explicit(&spin->slept_ns, 0, memory_order_relaxed);
}

void wfi_spin_restart(wfi_progress *progress, wfi_role role, wfi_spinning *spinning, uint64_t now_ns)
{
    if (spinning->yields == WFI_YIELDS)
        wfi_spin_found_work(progress, role, now_ns);
    wfi_spin_begin(spinning);
}

bool wfi_spin_yield(wfi_progress *progress)
{
    uint64_t before = wfi_now(progress->clock);
    if (before < atomic_load_explicit(&progress->token.yield_ns, memory_order_relaxed))
        return false;
    sched_yield();
    uint64_t now = wfi_now(progress->clock);
    if (now - before > YIELD_LONG_NS)
        atomic_store_explicit(&progress->token.yield_ns, now + YIELD_PAUSE * (now - before), memory_order_relaxed);
    return true;
}
