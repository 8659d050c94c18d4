/* SPDX-License-Identifier: Apache-2.0 */
/*
 * drive.c - a thread that waits for a future makes the progress itself, for a while; see token.c. Without threads whoever waits, or
 * calls wfi_net_progress, does all of it.
 */
#include "net/net_internal.h"

#define LOOK_MS 5
#define LIE_NS UINT64_C(5000000)
#define BESIDE_NS UINT64_C(50000)
#define RARE_NS UINT64_C(5000000) /* without threads: connection events have no descriptor to sleep on */

static void progress_for(wfi_net *net, wfi_parker *parker, uint64_t deadline_ns)
{
    uint64_t now = wfi_now(net->clock);
    wfi_spinning spinning;
    wfi_spin_begin(&spinning, now);
    while (!wfi_parker_is_unparked(parker) && now < deadline_ns &&
           !atomic_load_explicit(&net->stop, memory_order_relaxed)) {
        uint64_t before = now;
        size_t count = wfi_round(net, WFI_WAITER, NULL);
        now = wfi_now(net->clock);
        if (wfi_spin_was_busy(net, count, now - before)) {
            wfi_spin_came(net, WFI_WAITER, &spinning, now);
        } else if (!wfi_spin_goes_on(net, WFI_WAITER, &spinning, &now)) {
            return;
        }
    }
}

/* What another sleeper, robbed of the token, knows of timers: it may go on sleeping when the token is given back to it. */
static uint64_t sleepers_know(wfi_net *net)
{
    wfi_mutex_lock(&net->lock);
    uint64_t until_ns = net->sleep_until_ns;
    wfi_mutex_unlock(&net->lock);
    return until_ns;
}

/* What was set meanwhile, and only the waiting thread knew of, is told. Whoever robbed it may have let another sleeper lie down, who
 * knows of more: what is said to be known is never less than what some sleeper does. */
static void tell_sleepers(wfi_net *net, uint64_t known_ns)
{
    wfi_mutex_lock(&net->lock);
    if (net->sleep_until_ns < known_ns)
        net->sleep_until_ns = known_ns;
    bool earlier = atomic_load_explicit(&net->next_deadline_ns, memory_order_relaxed) < net->sleep_until_ns;
    wfi_mutex_unlock(&net->lock);
    if (earlier)
        wfi_watcher_call(net);
}

/*
 * Sleeps with the token, on what may come and on being unparked, for a while: what it waits for then wakes one thread. False if it
 * was robbed of it.
 */
static bool lie_down(wfi_net *net, wfi_parker *parker, uint64_t until_ns)
{
    bool ours = true;
    if (atomic_exchange(&net->token.bed_taken, true))
        return true; /* another waiting thread lies there, robbed */
    if (wfi_park_on_begin(parker, net->token.unpark_fd)) {
        uint64_t now = wfi_now(net->clock), known_ns = sleepers_know(net);
        while (ours && now < until_ns && !wfi_parker_is_unparked(parker) && !atomic_load(&net->stop) &&
               !atomic_load(&net->token.wanted)) {
            ours = wfi_token_sleep(net, WFI_BED_WAITER, net->token.unpark_fd, until_ns);
            now = wfi_now(net->clock);
            if (ours && wfi_round(net, WFI_WAITER, NULL))
                wfi_spin_caught(net, WFI_WAITER, now);
        }
        tell_sleepers(net, known_ns);
        wfi_park_on_end(parker);
    }
    atomic_store(&net->token.bed_taken, false);
    return ours;
}

/* With the token: makes the progress itself, awake and then asleep. True if somebody watches when it has given the token up. */
static bool see_to_it(wfi_net *net, wfi_parker *parker, uint64_t deadline_ns)
{
    uint64_t lie_until = wfi_now(net->clock) + LIE_NS;
    progress_for(net, parker, deadline_ns);
    uint64_t until = lie_until < deadline_ns ? lie_until : deadline_ns;
    if (!wfi_parker_is_unparked(parker) && !lie_down(net, parker, until))
        return false;
    return wfi_token_release(net, WFI_WAITER);
}

/* ---- Without threads ------------------------------------------------------------------------------------------- */

/* Connections and the store are rare news, and looking for them takes more calls of the system than a message does: it is done where a
 * sleep was ended by something else than messages, and otherwise now and then. */
static size_t manual_round(wfi_net *net, bool slept)
{
    size_t done = wfi_round(net, WFI_MANUAL, NULL);
    uint64_t now = wfi_now(net->clock);
    if ((done || !slept) && now < net->token.look_ns)
        return done;
    uint64_t due_ns = now + RARE_NS, store_due_ns = WFI_NEVER;
    done += wfi_round_events(net, 0, -1);
    net->token.store_fd = net->stopped ? -1 : wfi_rendezvous_pump(net->rendezvous, &store_due_ns);
    net->token.look_ns = due_ns < store_due_ns ? due_ns : store_due_ns;
    return done;
}

size_t wfi_net_progress(wfi_net *net, int64_t timeout_ms)
{
    uint64_t until = wfi_deadline(net->clock, timeout_ms);
    bool slept = false;
    size_t done = 0;
    if (net->fibers || net->forked || !wfi_token_take(net, WFI_MANUAL))
        return 0;
    for (int offers = timeout_ms && net->token.came ? WFI_OFFERS : 0;; offers--) {
        bool offered = offers > 0 && wfi_spin_offer(net);
        done = manual_round(net, slept);
        if (done || wfi_now(net->clock) >= until)
            break;
        if (offered && offers > 1)
            continue;
        slept = true;
        uint64_t nap = net->token.look_ns < until ? net->token.look_ns : until;
        if (!wfi_token_sleep(net, WFI_BED_POLLER, net->token.store_fd, nap))
            return 0;
    }
    if (done || timeout_ms)
        net->token.came = done > 0;
    (void)wfi_token_release(net, WFI_MANUAL);
    return done;
}

/* Nobody else progresses, nor runs what has come: without threads, whoever waits does both. */
static void drive_alone(wfi_net *net, wfi_parker *parker, uint64_t deadline_ns)
{
    while (!wfi_parker_is_unparked(parker)) {
        uint64_t now = wfi_now(net->clock);
        if (now >= deadline_ns)
            return;
        uint64_t left_ms = deadline_ns == WFI_NEVER ? LOOK_MS : (deadline_ns - now + 999999) / 1000000;
        int64_t nap_ms = left_ms < LOOK_MS ? (int64_t)left_ms : LOOK_MS;
        size_t ran = wfi_executor_run_some(net->executor, net->clock, now + WFI_HANDLERS_NS);
        if (wfi_parker_is_unparked(parker) || wfi_net_progress(net, ran ? 0 : nap_ms) || ran)
            continue;
        /* At once: another thread is progressing. And what a timer completes counts as no event: a park that finds it takes it. */
        uint64_t until = now + BESIDE_NS;
        if (wfi_now(net->clock) < until && wfi_park(parker, until))
            return;
    }
}

/* ---- The driver ------------------------------------------------------------------------------------------------ */

bool wfi_drive(wfi_driver *driver, wfi_parker *parker, uint64_t deadline_ns)
{
    wfi_net *net = wfi_container_of(driver, wfi_net, driver);
    if (wfi_net_is_inline(net) || net->forked)
        return false;
    if (net->fibers || (atomic_load(&net->stop) && !net->no_threads)) {
        (void)wfi_park(parker, deadline_ns); /* stopped: nothing of net's is outstanding that progress could end */
        return true;
    }
    if (net->no_threads) {
        drive_alone(net, parker, deadline_ns);
        return true;
    }
    bool watched = false;
    if (wfi_token_ask(net, WFI_WAITER))
        watched = see_to_it(net, parker, deadline_ns);
    if (wfi_parker_is_unparked(parker) || wfi_now(net->clock) >= deadline_ns)
        return true;
    atomic_fetch_add(&net->token.parked, 1);
    if (!watched)
        wfi_watcher_call(net);
    (void)wfi_park(parker, deadline_ns);
    atomic_fetch_sub(&net->token.parked, 1);
    wfi_spin_caught(net, WFI_WAITER, wfi_now(net->clock));
    return true;
}
