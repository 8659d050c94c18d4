/* SPDX-License-Identifier: Apache-2.0 */
/*
 * token.c - the progress token: the right to poll the sources. One thread at a time holds it; the others wait, or
 * sleep.
 *
 * STATE of the token:
 *   FREE            No thread polls. The watcher (below) takes it if it was not used for a watch interval.
 *   AWAKE           Its holder polls, handles completions, or runs inline handlers.
 *   ..._ASLEEP      Its holder sleeps in poll(2) and accesses nothing. Another thread may take the token from it with
 *                   one atomic exchange, without waking it (wfi_token.slept_with_token). When the holder wakes it
 *                   sees that, and waits as a watcher. From a waiting thread only another waiting thread takes it.
 *
 * TAKING IT.
 *   A waiting thread (one that waits for a future) takes it from a sleeper at once, and from a spinning poller or
 *   leader by asking (`wanted`). It returns the token as soon as its future is complete, and wakes no thread: so calls
 *   that follow each other find the token free, without a switch of threads. If it has spun without an event it sleeps
 *   with the token for some milliseconds, so that its event wakes no other thread. After that it leaves the token to
 *   the watcher.
 *   The leader (a thread of the executor, in its idle hook) takes it so that it can run the handler of a call it reads.
 *   The poller (progress's own thread) takes it when no thread is in the hook.
 *
 * WATCHING. The watcher is the leader or, if there is none, the poller. It sleeps for a watch interval, and takes the
 * token if no thread has used it meanwhile. A thread that gives the token up and still waits for something wakes the
 * watcher (wfi_watcher_wake). When the job is idle the watcher holds the token asleep, and nothing runs before the next
 * event or timer.
 *
 * NAPS. A source without a descriptor cannot end a sleep. While such a source expects something the sleep is a nap of
 * 20 us, doubling to 1 ms as long as polls find nothing. While it expects nothing, an event (a connection) comes first;
 * the thread that reads it wakes the sleepers.
 *
 * TIMERS. sleep_until_ns (under the lock) is when the sleepers will wake by themselves. Setting an earlier timer wakes
 * them.
 */
#include "progress/progress.h"

#define NAP_MIN_NS 20000
#define NAP_MAX_NS 1000000
#define ASK_NS 20000 /* a spinning holder gives way within a round; one that takes longer runs inline handlers */

static const int asleep_state[WFI_SLEEPERS] = {WFI_TOKEN_POLLER_ASLEEP, WFI_TOKEN_LEADER_ASLEEP,
                                               WFI_TOKEN_WAITER_ASLEEP};

static bool take_token_from(wfi_progress *progress, int state, wfi_role role)
{
    if (!atomic_compare_exchange_strong(&progress->token.state, &state, WFI_TOKEN_AWAKE))
        return false;
    if (role != WFI_POLLER)
        atomic_fetch_add_explicit(&progress->token.uses, 1, memory_order_relaxed);
    return true;
}

/* Whether a waiting thread sleeps with the token. False if the thread has just woken while another returned the token
 * to it: then any thread may take the token. */
static bool waiter_is_asleep(const wfi_progress *progress)
{
    return atomic_load(&progress->token.asleep[WFI_SLEEPER_WAITER]);
}

/* Takes the token if it is free, or from a sleeper. The poller does not take it from the leader, because it only polls
 * in the leader's place. If the state is the asking thread's own one, the token was returned to it just when it
 * woke. */
bool wfi_token_take(wfi_progress *progress, wfi_role role)
{
    switch (atomic_load_explicit(&progress->token.state, memory_order_relaxed)) {
    case WFI_TOKEN_FREE:
        return take_token_from(progress, WFI_TOKEN_FREE, role);
    case WFI_TOKEN_POLLER_ASLEEP:
        return take_token_from(progress, WFI_TOKEN_POLLER_ASLEEP, role);
    case WFI_TOKEN_LEADER_ASLEEP:
        return role != WFI_POLLER && take_token_from(progress, WFI_TOKEN_LEADER_ASLEEP, role);
    case WFI_TOKEN_WAITER_ASLEEP:
        return (role == WFI_WAITER || !waiter_is_asleep(progress)) &&
               take_token_from(progress, WFI_TOKEN_WAITER_ASLEEP, role);
    default:
        return false;
    }
}

bool wfi_token_ask(wfi_progress *progress, wfi_role role)
{
    if (wfi_token_take(progress, role))
        return true;
    if (atomic_load_explicit(&progress->token.state, memory_order_relaxed) == WFI_TOKEN_WAITER_ASLEEP &&
        waiter_is_asleep(progress))
        return false; /* that thread handles all events while it sleeps, and does not give way */
    bool waiter = role == WFI_WAITER, got;
    uint64_t until = wfi_now(progress->clock) + ASK_NS;
    if (waiter)
        atomic_fetch_add(&progress->token.wanted, 1);
    else
        atomic_store(&progress->token.leader_wants, true);
    while (!(got = wfi_token_take(progress, role)) && wfi_now(progress->clock) < until)
        wfi_relax();
    if (waiter)
        atomic_fetch_sub(&progress->token.wanted, 1);
    else
        atomic_store(&progress->token.leader_wants, false);
    return got;
}

/* Returns the token to the sleeper from which it was taken, and which still waits for events and timers. False: there
 * is no such sleeper. */
static bool return_to_sleeper(wfi_progress *progress)
{
    for (int sleeper = 0; sleeper < WFI_SLEEPERS; sleeper++) {
        if (atomic_load(&progress->token.asleep[sleeper]) && atomic_load(&progress->token.slept_with_token[sleeper])) {
            atomic_store(&progress->token.state, asleep_state[sleeper]);
            return true;
        }
    }
    return false;
}

bool wfi_token_release(wfi_progress *progress, wfi_role role)
{
    if (role != WFI_POLLER)
        atomic_fetch_add_explicit(&progress->token.uses, 1, memory_order_relaxed);
    if (role == WFI_WAITER && return_to_sleeper(progress))
        return true;
    atomic_store(&progress->token.state, WFI_TOKEN_FREE);
    if (role == WFI_WAITER && atomic_load(&progress->token.parked))
        wfi_watcher_wake(progress);
    return false;
}

/* Whether the holder, which is about to sleep, must not. */
static bool should_stay_up(wfi_progress *progress, int sleeper)
{
    return atomic_load(&progress->stop) || atomic_load(&progress->token.wanted) ||
           atomic_exchange(&progress->token.called[sleeper], false) ||
           (sleeper == WFI_SLEEPER_LEADER && atomic_load(&progress->token.leader_woken)) ||
           (sleeper == WFI_SLEEPER_POLLER && atomic_load(&progress->token.leader_wants));
}

/* A sleep with this source, which has no descriptor, lasts at most so long. */
static uint64_t nap_with(wfi_source *source)
{
    if (source->ops->expects(source) == WFI_EXPECTS_NOTHING)
        return WFI_NEVER;
    uint32_t longer = source->nap_ns ? 2 * source->nap_ns : NAP_MIN_NS;
    source->nap_ns = longer < NAP_MAX_NS ? longer : NAP_MAX_NS;
    return source->nap_ns;
}

bool wfi_token_sleep(wfi_progress *progress, int sleeper, int fd_extra, uint64_t until_ns)
{
    int asleep = asleep_state[sleeper];
    uint64_t until = wfi_timers_sleep_until(progress, until_ns), now = wfi_now(progress->clock);
    uint64_t timeout_ns = until == WFI_NEVER ? WFI_NEVER : until > now ? until - now : 0;
    int fds[WFI_SLEEPER_FDS] = {fd_extra};
    bool may_sleep = true;
    size_t fd_count = 1;
    progress->token.napped = false;
    for (size_t i = 0; i < progress->source_count; i++) {
        wfi_source *source = progress->sources[i];
        int fd = source->ops->wait_fd(source);
        uint64_t nap_ns = fd < 0 ? nap_with(source) : WFI_NEVER;
        if (nap_ns < timeout_ns) {
            timeout_ns = nap_ns;
            progress->token.napped = true;
        }
        fds[fd_count++] = fd;
        if (progress->no_threads) /* no other thread waits for events; they were armed when they were last read */
            fds[fd_count++] = source->ops->events_fd(source);
        source->is_due = true;
        may_sleep = may_sleep && source->ops->may_sleep(source);
    }
    if (!may_sleep || wfi_progress_hooks_poll(progress) || should_stay_up(progress, sleeper))
        return true;
    atomic_store(&progress->token.slept_with_token[sleeper], true); /* only read by a thread that has taken the token */
    atomic_store(&progress->token.state, asleep);
    if (timeout_ns)
        (void)wfi_sleeper_sleep(progress, sleeper, fds, fd_count, timeout_ns);
    bool ours = atomic_compare_exchange_strong(&progress->token.state, &asleep, WFI_TOKEN_AWAKE);
    atomic_store(&progress->token.slept_with_token[sleeper], false);
    return ours;
}

static bool should_give_way(wfi_progress *progress, wfi_role role)
{
    if (atomic_load_explicit(&progress->stop, memory_order_relaxed) ||
        atomic_load_explicit(&progress->token.wanted, memory_order_relaxed))
        return true;
    return role == WFI_LEADER ? atomic_load(&progress->token.leader_woken) : atomic_load(&progress->token.leader_wants);
}

wfi_task *wfi_token_hold(wfi_progress *progress, wfi_role role)
{
    int sleeper = role == WFI_LEADER ? WFI_SLEEPER_LEADER : WFI_SLEEPER_POLLER;
    wfi_spinning spinning;
    wfi_task *mine = NULL;
    wfi_spin_begin(&spinning);
    while (!should_give_way(progress, role)) {
        bool busy = wfi_spin_was_busy(progress, &spinning, wfi_progress_round(progress, role, &mine));
        if (busy)
            wfi_spin_restart(progress, role, &spinning, progress->token.round_ns);
        if (mine)
            break;
        if (busy || wfi_spin_goes_on(progress, role, &spinning, progress->token.round_ns)) {
            wfi_relax();
            continue;
        }
        uint64_t asleep = wfi_now(progress->clock);
        if (!wfi_token_sleep(progress, sleeper, -1, WFI_NEVER))
            return NULL;
        uint64_t now = wfi_now(progress->clock);
        wfi_spin_begin(&spinning);
        /* It woke at once, so there was an event, perhaps without a completion: a peer's reads of memory have none. */
        if (progress->token.napped)
            spinning.yields = 0; /* one round, and the next nap */
        else if (now - asleep < progress->token.spin_max_ns)
            wfi_spin_found_work(progress, role, now);
    }
    (void)wfi_token_release(progress, role);
    return mine;
}
