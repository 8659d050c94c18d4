/* SPDX-License-Identifier: Apache-2.0 */
/*
 * token.c - the progress token: the right to poll the sources. One thread at a time holds it; the others wait, or
 * sleep.
 *
 * STATE of the token:
 *   FREE            Nobody polls. The watcher (below) takes it when nobody has used it for a watch interval.
 *   AWAKE           Its holder polls, hands out what came, or runs inline handlers.
 *   ..._ASLEEP      Its holder sleeps in poll(2) and touches nothing. Another thread may take the token from it with
 *   one
 *                   atomic exchange, without waking it ("rob it"). When the holder wakes it sees that, and waits as a
 *                   watcher. A waiting thread is robbed only by another waiting thread.
 *
 * WHO TAKES IT.
 *   A waiting thread (one that waits for a future) takes it from a sleeper at once, and from a spinning poller or
 *   leader by asking (`wanted`). It gives the token back as soon as its future is complete, and wakes nobody: so calls
 *   that follow each other find the token free, without a switch of threads. If it has spun in vain it sleeps with the
 *   token for some milliseconds, so that its event wakes nobody else. After that it leaves the token to the watcher.
 *   The leader (a thread of the executor, in its idle hook) takes it so that it can run the handler of what it reads.
 *   The poller (progress's own thread) takes it when no thread is in the hook.
 *
 * WHO WATCHES. The leader if there is one, else the poller. The watcher sleeps for a watch interval, and takes the
 * token if nobody has used it meanwhile. A thread that gives the token up and still waits for something wakes the
 * watcher (wfi_watcher_wake). When the job is idle the watcher holds the token asleep, and nothing runs before the next
 * event or timer.
 *
 * TIMERS. sleep_until_ns (under the lock) is when the sleepers will wake by themselves. Whoever sets an earlier timer
 * wakes them.
 */
#include "progress/progress.h"

#define ASK_NS 20000 /* a spinning holder gives way within a round; a longer one runs inline handlers */

static const int asleep_state[WFI_SLEEPERS] = {WFI_TOKEN_POLLER_ASLEEP, WFI_TOKEN_LEADER_ASLEEP,
                                               WFI_TOKEN_WAITER_ASLEEP};

static inline void relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ __volatile__("yield");
#endif
}

static bool take_token_from(wfi_progress *progress, int state, wfi_role role)
{
    if (!atomic_compare_exchange_strong(&progress->token.state, &state, WFI_TOKEN_AWAKE))
        return false;
    if (role != WFI_POLLER)
        atomic_fetch_add_explicit(&progress->token.uses, 1, memory_order_relaxed);
    return true;
}

/* Whether a waiting thread sleeps with the token. False if the thread has just woken while another gave the token back
 * to it: then anybody may take the token. */
static bool waiter_lies(const wfi_progress *progress)
{
    return atomic_load(&progress->token.asleep[WFI_SLEEPER_WAITER]);
}

/* Takes the token if it is free, or robs a sleeper of it. The poller does not rob the leader, since it only stands in
 * for it. If the state names the asking thread's own role as asleep, the token was given back to it just when it
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
        return (role == WFI_WAITER || !waiter_lies(progress)) &&
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
        waiter_lies(progress))
        return false; /* that thread sees to everything while it sleeps, and does not give way */
    bool waiter = role == WFI_WAITER, got;
    uint64_t until = wfi_now(progress->clock) + ASK_NS;
    if (waiter)
        atomic_fetch_add(&progress->token.wanted, 1);
    else
        atomic_store(&progress->token.leader_wants, true);
    while (!(got = wfi_token_take(progress, role)) && wfi_now(progress->clock) < until)
        relax();
    if (waiter)
        atomic_fetch_sub(&progress->token.wanted, 1);
    else
        atomic_store(&progress->token.leader_wants, false);
    return got;
}

/* Gives the token back to the sleeper that was robbed of it, and that has not noticed: it still waits for events and
 * timers. False: no robbed thread sleeps. */
static bool give_back(wfi_progress *progress)
{
    for (int sleeper = 0; sleeper < WFI_SLEEPERS; sleeper++) {
        if (atomic_load(&progress->token.asleep[sleeper]) && atomic_load(&progress->token.robbed[sleeper])) {
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
    if (role == WFI_WAITER && give_back(progress))
        return true;
    atomic_store(&progress->token.state, WFI_TOKEN_FREE);
    if (role == WFI_WAITER && atomic_load(&progress->token.parked))
        wfi_watcher_wake(progress);
    return false;
}

/* Asked by the holder before it sleeps. */
static bool should_stay_up(wfi_progress *progress, int sleeper)
{
    return atomic_load(&progress->stop) || atomic_load(&progress->token.wanted) ||
           atomic_exchange(&progress->token.called[sleeper], false) ||
           (sleeper == WFI_SLEEPER_LEADER && atomic_load(&progress->token.nudged)) ||
           (sleeper == WFI_SLEEPER_POLLER && atomic_load(&progress->token.leader_wants));
}

bool wfi_token_sleep(wfi_progress *progress, int sleeper, int fd_extra, uint64_t until_ns)
{
    int asleep = asleep_state[sleeper];
    uint64_t until = wfi_timers_sleep_until(progress, until_ns), now = wfi_now(progress->clock);
    uint64_t timeout_ns = until == WFI_NEVER ? WFI_NEVER : until > now ? until - now : 0;
    int fds[WFI_SLEEPER_FDS] = {fd_extra};
    bool may_sleep = true;
    for (size_t i = 0; i < progress->source_count; i++) {
        wfi_source *source = progress->sources[i];
        fds[1 + i] = source->ops->wait_fd(source);
        may_sleep = may_sleep && source->ops->may_sleep(source);
    }
    if (!may_sleep || should_stay_up(progress, sleeper))
        return true;
    atomic_store(&progress->token.robbed[sleeper], true); /* only read if somebody robs us, and then it is so */
    atomic_store(&progress->token.state, asleep);
    if (timeout_ns)
        (void)wfi_sleeper_sleep(progress, sleeper, fds, 1 + progress->source_count, timeout_ns);
    bool ours = atomic_compare_exchange_strong(&progress->token.state, &asleep, WFI_TOKEN_AWAKE);
    atomic_store(&progress->token.robbed[sleeper], false);
    return ours;
}

static bool should_give_way(wfi_progress *progress, wfi_role role)
{
    if (atomic_load_explicit(&progress->stop, memory_order_relaxed) ||
        atomic_load_explicit(&progress->token.wanted, memory_order_relaxed))
        return true;
    return role == WFI_LEADER ? atomic_load(&progress->token.nudged) : atomic_load(&progress->token.leader_wants);
}

wfi_task *wfi_token_hold(wfi_progress *progress, wfi_role role)
{
    int sleeper = role == WFI_LEADER ? WFI_SLEEPER_LEADER : WFI_SLEEPER_POLLER;
    uint64_t now = wfi_now(progress->clock);
    wfi_spinning spinning;
    wfi_task *mine = NULL;
    wfi_spin_begin(&spinning, now);
    while (!should_give_way(progress, role)) {
        uint64_t before = now;
        size_t count = wfi_progress_round(progress, role, &mine);
        now = wfi_now(progress->clock);
        if (wfi_spin_was_busy(progress, count, now - before))
            wfi_spin_came(progress, role, &spinning, now);
        if (mine)
            break;
        if (wfi_spin_goes_on(progress, role, &spinning, &now)) {
            relax();
            continue;
        }
        if (!wfi_token_sleep(progress, sleeper, -1, WFI_NEVER))
            return NULL;
        uint64_t asleep = now;
        now = wfi_now(progress->clock);
        wfi_spin_begin(&spinning, now);
        /* Something came at once: an event even if it has no completion here, as reads of our memory have none. */
        if (now - asleep < progress->token.spin_max_ns)
            wfi_spin_caught(progress, role, now);
    }
    (void)wfi_token_release(progress, role);
    return mine;
}
