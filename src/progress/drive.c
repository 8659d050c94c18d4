/* SPDX-License-Identifier: Apache-2.0 */
/*
 * drive.c - progress on the user's threads: a thread that waits for a future polls for a while (token.c has the rules).
 * In an agent without threads only threads that wait, or that call wfi_progress_run, poll.
 */
#include "progress/progress.h"

#include <errno.h>
#include <unistd.h>

#define EVENTS_MS 5 /* without threads: the longest time between two reads of the rarer events */
#define SLEEP_NS UINT64_C(5000000)
#define BESIDE_NS UINT64_C(50000)

static void progress_for(wfi_progress *progress, wfi_parker *parker, uint64_t deadline_ns)
{
    uint64_t now = deadline_ns == WFI_NEVER ? 0 : wfi_now(progress->clock);
    wfi_spinning spinning;
    wfi_spin_begin(&spinning);
    if (parker->has_spun)
        spinning.yields = 0; /* one round */
    while (!wfi_parker_is_unparked(parker) && now < deadline_ns &&
           !atomic_load_explicit(&progress->stop, memory_order_relaxed)) {
        size_t count = wfi_progress_round(progress, WFI_WAITER, NULL);
        now = progress->token.round_ns;
        if (wfi_spin_was_busy(progress, &spinning, count))
            wfi_spin_restart(progress, WFI_WAITER, &spinning, now);
        else if (!wfi_spin_goes_on(progress, WFI_WAITER, &spinning, now))
            return;
    }
}

/* After a sleep of this thread: another sleeper may sleep until `others_ns`. Wakes the watcher if a timer is set for
 * an earlier time, which only this thread knew of. */
static void restore_sleep_until(wfi_progress *progress, uint64_t others_ns)
{
    wfi_mutex_lock(&progress->lock);
    if (progress->sleep_until_ns < others_ns)
        progress->sleep_until_ns = others_ns;
    bool earlier = atomic_load_explicit(&progress->next_deadline_ns, memory_order_relaxed) < progress->sleep_until_ns;
    wfi_mutex_unlock(&progress->lock);
    if (earlier)
        wfi_watcher_wake(progress);
}

/*
 * Sleeps until an event of the network, until this thread is unparked, or until_ns. It keeps the token, so that an
 * event wakes only this thread. False if another thread took the token.
 */
static bool sleep_with_token(wfi_progress *progress, wfi_parker *parker, uint64_t until_ns)
{
    bool ours = true;
    if (atomic_exchange(&progress->token.sleeper_taken, true))
        return true; /* a thread that has lost the token still leaves the sleeper: the caller polls, and tries again */
    if (wfi_park_on_begin(parker, progress->token.unpark_fd)) {
        uint64_t now = wfi_now(progress->clock);
        /* When another thread that sleeps will wake: wfi_token_sleep replaces it by this thread's time, and the other
         * thread may have the token again before that. */
        wfi_mutex_lock(&progress->lock);
        uint64_t others_ns = progress->sleep_until_ns;
        wfi_mutex_unlock(&progress->lock);
        while (ours && now < until_ns && !wfi_parker_is_unparked(parker) && !atomic_load(&progress->stop) &&
               !atomic_load(&progress->token.wanted)) {
            ours = wfi_token_sleep(progress, WFI_SLEEPER_WAITER, progress->token.unpark_fd, until_ns);
            now = wfi_now(progress->clock);
            if (ours && wfi_progress_round(progress, WFI_WAITER, NULL))
                wfi_spin_found_work(progress, WFI_WAITER, now);
        }
        restore_sleep_until(progress, others_ns);
        wfi_park_on_end(parker);
    }
    atomic_store(&progress->token.sleeper_taken, false);
    return ours;
}

/* Makes progress with the token, first awake and then asleep, and gives the token up. True if another thread, from
 * which it was taken, polls on. */
static bool drive_with_token(wfi_progress *progress, wfi_parker *parker, uint64_t deadline_ns)
{
    progress_for(progress, parker, deadline_ns);
    if (!wfi_parker_is_unparked(parker)) {
        uint64_t until = wfi_now(progress->clock) + SLEEP_NS;
        if (!sleep_with_token(progress, parker, until < deadline_ns ? until : deadline_ns))
            return false;
    }
    return wfi_token_release(progress, WFI_WAITER);
}

/* ---- Without threads ------------------------------------------------------------------------------------------- */

/* Events of connections and the store are rare, and reading them takes more system calls than a message. So it is done
 * if a sleep, which their descriptors end too, ended without messages, and otherwise only at intervals. */
static size_t manual_round(wfi_progress *progress, bool slept)
{
    size_t done = wfi_progress_round(progress, WFI_MANUAL, NULL);
    uint64_t now = wfi_now(progress->clock);
    if ((done || !slept) && now < progress->token.events_ns)
        return done;
    done += wfi_events_read(progress);
    progress->token.events_ns = wfi_events_arm(progress, now + EVENTS_MS * UINT64_C(1000000));
    return done;
}

void wfi_progress_pass_call(wfi_progress *progress)
{
    if (atomic_exchange(&progress->calls, false))
        wfi_executor_wake_visitors(progress->executor);
}

void wfi_progress_call_program(wfi_progress *progress)
{
    uint64_t one = 1;
    int error = errno;
    atomic_store(&progress->driver.woken, true);
    atomic_store(&progress->calls, true);
    if (progress->fibers) {
        wfi_progress_pass_call(progress);
        return;
    }
    ssize_t written = write(progress->events_fd, &one, sizeof(one)); /* the event thread passes it on */
    (void)written;                                                   /* a full eventfd also wakes */
    wfi_sleeper_wake(progress, WFI_SLEEPER_POLLER);                  /* without threads: the thread that polls */
    errno = error;
}

size_t wfi_progress_run(wfi_progress *progress, int64_t timeout_ms)
{
    return wfi_progress_run_for(progress, timeout_ms, false);
}

size_t wfi_progress_run_for(wfi_progress *progress, int64_t timeout_ms, bool of_program)
{
    uint64_t until = wfi_deadline(progress->clock, timeout_ms);
    bool slept = false;
    size_t done = 0;
    if (progress->fibers || progress->forked || !wfi_token_take(progress, WFI_MANUAL))
        return 0;
    for (int yields = timeout_ms && progress->token.came ? WFI_YIELDS : 0;; yields--) {
        bool yielded = yields > 0 && wfi_spin_yield(progress);
        done = manual_round(progress, slept);
        if (done || wfi_now(progress->clock) >= until || (of_program && atomic_load(&progress->driver.woken)))
            break;
        if (yielded && yields > 1)
            continue;
        uint64_t pause = progress->token.events_ns < until ? progress->token.events_ns : until;
        if (!wfi_token_sleep(progress, WFI_SLEEPER_POLLER, -1, pause))
            return 0;
        slept = !progress->token.napped;
    }
    if (done || timeout_ms)
        progress->token.came = done > 0;
    (void)wfi_token_release(progress, WFI_MANUAL);
    return done;
}

/* Without threads the waiting thread itself polls and runs the handlers, once at least. */
static void drive_alone(wfi_progress *progress, wfi_parker *parker, uint64_t deadline_ns)
{
    for (bool is_last = false; !is_last && !wfi_parker_is_unparked(parker);) {
        wfi_progress_pass_call(progress);
        uint64_t now = wfi_now(progress->clock);
        is_last = now >= deadline_ns;
        uint64_t left_ms = is_last ? 0 : deadline_ns == WFI_NEVER ? EVENTS_MS : (deadline_ns - now + 999999) / 1000000;
        int64_t nap_ms = left_ms < EVENTS_MS ? (int64_t)left_ms : EVENTS_MS;
        size_t ran = wfi_executor_run_some(progress->executor, progress->clock, now + WFI_HANDLERS_NS);
        if (wfi_parker_is_unparked(parker) || wfi_progress_run(progress, ran ? 0 : nap_ms) || ran || is_last)
            continue;
        /* If wfi_progress_run returned at once, another thread polls: parks for a short time. The park also notices
         * completions by timers, which do not count as events. */
        uint64_t until = now + BESIDE_NS;
        if (wfi_now(progress->clock) < until && wfi_park(parker, until))
            return;
    }
}

/* ---- Without the token ----------------------------------------------------------------------------------------- */

/* A worker of the executor must tell the executor that it blocks, and an agent without threads would be polled by none.
 */
bool wfi_aside_may_begin(const wfi_progress *progress)
{
    return !progress->no_threads && !progress->fibers && !wfi_executor_current();
}

void wfi_aside_begin(wfi_progress *progress)
{
    atomic_fetch_add(&progress->token.parked, 1);
    if (atomic_load(&progress->token.state) == WFI_TOKEN_FREE)
        wfi_watcher_wake(progress);
}

void wfi_aside_end(wfi_progress *progress)
{
    atomic_fetch_sub(&progress->token.parked, 1);
    wfi_spin_found_work(progress, WFI_OTHER, wfi_now(progress->clock));
}

/* ---- The driver ------------------------------------------------------------------------------------------------ */

bool wfi_drive(wfi_driver *driver, wfi_parker *parker, uint64_t deadline_ns)
{
    wfi_progress *progress = wfi_container_of(driver, wfi_progress, driver);
    if (wfi_progress_is_inline(progress) || progress->forked)
        return false;
    if (deadline_ns == 0)
        return true;
    if (progress->fibers || (atomic_load(&progress->stop) && !progress->no_threads)) {
        (void)wfi_park(parker, deadline_ns); /* stopped: progress could complete nothing */
        return true;
    }
    if (progress->no_threads) {
        drive_alone(progress, parker, deadline_ns);
        return true;
    }
    bool is_polled = false; /* another thread polls while this one is parked */
    if (wfi_token_ask(progress, WFI_WAITER))
        is_polled = drive_with_token(progress, parker, deadline_ns);
    if (wfi_parker_is_unparked(parker) || wfi_now(progress->clock) >= deadline_ns)
        return true;
    atomic_fetch_add(&progress->token.parked, 1);
    if (!is_polled)
        wfi_watcher_wake(progress);
    (void)wfi_park(parker, deadline_ns);
    atomic_fetch_sub(&progress->token.parked, 1);
    wfi_spin_found_work(progress, WFI_WAITER, wfi_now(progress->clock));
    return true;
}
