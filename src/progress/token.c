/* SPDX-License-Identifier: Apache-2.0 */
/*
 * token.c - the progress token: who may poll the completion queue now.
 *
 *   FREE            nobody polls; whoever watches (below) will take it when it has been unused for a nap
 *   AWAKE           its holder polls, dispatches, or runs inline handlers
 *   ..._ASLEEP      its holder sleeps in poll(2) and touches nothing: it may be robbed of the token by one exchange, without
 *                   waking it. When it gets up it sees that, and goes to rest. A waiting thread is robbed by others of its
 *                   kind only.
 *
 * WHO TAKES IT. A waiting thread, from a sleeper at once, from a spinning poller or leader by asking (`wanted`); it gives it
 * back as soon as its future is done and wakes nobody: calls that follow each other find the token free, and no thread
 * switch stands in their way. One that has spun in vain lies down with it for some milliseconds, so that what it waits for wakes
 * nobody but itself; if it takes longer, it leaves the token to the watcher. The leader (a worker in the executor's idle hook), so
 * that it can run the handler of what it reads. The poller, when no worker is in the hook.
 *
 * WHO WATCHES. The leader if there is one, else the poller: it naps, and takes the token when a whole nap has passed without
 * anybody using it. Whoever gives the token up and still waits for something calls the watcher (wfi_watcher_call). When
 * all is idle the watcher holds the token asleep, and nothing wakes before the next event or timer.
 *
 * TIMERS. sleep_until_ns (under the lock) is what the sleepers know; a timer set earlier wakes them.
 */
#include "net/net_internal.h"

#include <sys/eventfd.h>
#include <unistd.h>

#define ASK_NS 20000 /* a spinning holder gives way within a round; a longer one runs inline handlers */

static const int asleep_state[WFI_BEDS] = {WFI_TOKEN_POLLER_ASLEEP, WFI_TOKEN_LEADER_ASLEEP, WFI_TOKEN_WAITER_ASLEEP};

static inline void relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ __volatile__("yield");
#endif
}

weft_status wfi_token_init(wfi_net *net)
{
    net->token.unpark_fd = eventfd(0, EFD_CLOEXEC);
    if (net->token.unpark_fd < 0)
        return WEFT_ERR_SYSTEM;
    for (int bed = 0; bed < WFI_BEDS; bed++) {
        net->token.bed_fds[bed] = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
        if (net->token.bed_fds[bed] < 0)
            return WEFT_ERR_SYSTEM;
    }
    wfi_spin_init(net);
    return WEFT_OK;
}

void wfi_token_fini(wfi_net *net)
{
    for (int bed = 0; bed < WFI_BEDS; bed++) {
        if (net->token.bed_fds[bed] >= 0)
            close(net->token.bed_fds[bed]);
    }
    if (net->token.unpark_fd >= 0)
        close(net->token.unpark_fd);
    wfi_spin_fini(net);
}

static bool take_from(wfi_net *net, int state, wfi_role role)
{
    if (!atomic_compare_exchange_strong(&net->token.state, &state, WFI_TOKEN_AWAKE))
        return false;
    if (role != WFI_POLLER)
        atomic_fetch_add_explicit(&net->token.uses, 1, memory_order_relaxed);
    return true;
}

/* Not where the token was given back to it just when it got up: then it is anybody's. */
static bool waiter_lies(const wfi_net *net)
{
    return atomic_load(&net->token.in_bed[WFI_BED_WAITER]);
}

/* Free, or from a sleeper. The poller does not rob the leader: it is the leader's substitute. One who asks cannot be asleep
 * itself: then the token was given back just when it got up. */
bool wfi_token_take(wfi_net *net, wfi_role role)
{
    switch (atomic_load_explicit(&net->token.state, memory_order_relaxed)) {
    case WFI_TOKEN_FREE:
        return take_from(net, WFI_TOKEN_FREE, role);
    case WFI_TOKEN_POLLER_ASLEEP:
        return take_from(net, WFI_TOKEN_POLLER_ASLEEP, role);
    case WFI_TOKEN_LEADER_ASLEEP:
        return role != WFI_POLLER && take_from(net, WFI_TOKEN_LEADER_ASLEEP, role);
    case WFI_TOKEN_WAITER_ASLEEP:
        return (role == WFI_WAITER || !waiter_lies(net)) && take_from(net, WFI_TOKEN_WAITER_ASLEEP, role);
    default:
        return false;
    }
}

bool wfi_token_ask(wfi_net *net, wfi_role role)
{
    if (wfi_token_take(net, role))
        return true;
    if (atomic_load_explicit(&net->token.state, memory_order_relaxed) == WFI_TOKEN_WAITER_ASLEEP && waiter_lies(net))
        return false; /* it sees to everything, and does not give way */
    bool waiter = role == WFI_WAITER, got;
    uint64_t until = wfi_now(net->clock) + ASK_NS;
    if (waiter)
        atomic_fetch_add(&net->token.wanted, 1);
    else
        atomic_store(&net->token.leader_wants, true);
    while (!(got = wfi_token_take(net, role)) && wfi_now(net->clock) < until)
        relax();
    if (waiter)
        atomic_fetch_sub(&net->token.wanted, 1);
    else
        atomic_store(&net->token.leader_wants, false);
    return got;
}

/* Back to the sleeper that was robbed, who has not noticed: it still sleeps over completions and timers. */
static bool give_back(wfi_net *net)
{
    for (int bed = 0; bed < WFI_BEDS; bed++) {
        if (atomic_load(&net->token.in_bed[bed]) && atomic_load(&net->token.robbed[bed])) {
            atomic_store(&net->token.state, asleep_state[bed]);
            return true;
        }
    }
    return false;
}

bool wfi_token_release(wfi_net *net, wfi_role role)
{
    if (role != WFI_POLLER)
        atomic_fetch_add_explicit(&net->token.uses, 1, memory_order_relaxed);
    if (role == WFI_WAITER && give_back(net))
        return true;
    atomic_store(&net->token.state, WFI_TOKEN_FREE);
    if (role == WFI_WAITER && atomic_load(&net->token.parked))
        wfi_watcher_call(net);
    return false;
}

/* Under the token, before sleeping: reasons not to. */
static bool should_stay_up(wfi_net *net, int bed)
{
    return atomic_load(&net->stop) || atomic_load(&net->token.wanted) ||
           atomic_exchange(&net->token.called[bed], false) ||
           (bed == WFI_BED_LEADER && atomic_load(&net->token.nudged)) ||
           (bed == WFI_BED_POLLER && atomic_load(&net->token.leader_wants));
}

static uint64_t announce_sleep(wfi_net *net, uint64_t until_ns)
{
    wfi_mutex_lock(&net->lock);
    uint64_t next = atomic_load_explicit(&net->next_deadline_ns, memory_order_relaxed);
    net->sleep_until_ns = next < until_ns ? next : until_ns;
    uint64_t until = net->sleep_until_ns;
    wfi_mutex_unlock(&net->lock);
    uint64_t now = wfi_now(net->clock);
    if (until == WFI_NEVER)
        return WFI_NEVER;
    return until > now ? until - now : 0;
}

bool wfi_token_sleep(wfi_net *net, int bed, int fd_extra, uint64_t until_ns)
{
    int fds[2] = {net->ops->wait_fd(net->fabric), fd_extra};
    int asleep = asleep_state[bed];
    uint64_t timeout_ns = announce_sleep(net, until_ns);
    if (!net->ops->may_sleep(net->fabric) || should_stay_up(net, bed))
        return true;
    atomic_store(&net->token.robbed[bed], true); /* for whoever robs us: it becomes true by that */
    atomic_store(&net->token.state, asleep);
    if (timeout_ns)
        (void)wfi_bed_sleep(net, bed, fds, timeout_ns);
    bool ours = atomic_compare_exchange_strong(&net->token.state, &asleep, WFI_TOKEN_AWAKE);
    atomic_store(&net->token.robbed[bed], false);
    return ours;
}

static bool should_give_way(wfi_net *net, wfi_role role)
{
    if (atomic_load_explicit(&net->stop, memory_order_relaxed) ||
        atomic_load_explicit(&net->token.wanted, memory_order_relaxed))
        return true;
    return role == WFI_LEADER ? atomic_load(&net->token.nudged) : atomic_load(&net->token.leader_wants);
}

wfi_task *wfi_token_hold(wfi_net *net, wfi_role role)
{
    int bed = role == WFI_LEADER ? WFI_BED_LEADER : WFI_BED_POLLER;
    uint64_t now = wfi_now(net->clock);
    wfi_spinning spinning;
    wfi_task *mine = NULL;
    wfi_spin_begin(&spinning, now);
    while (!should_give_way(net, role)) {
        uint64_t before = now;
        size_t count = wfi_round(net, role, &mine);
        now = wfi_now(net->clock);
        if (wfi_spin_was_busy(net, count, now - before))
            wfi_spin_came(net, role, &spinning, now);
        if (mine)
            break;
        if (wfi_spin_goes_on(net, role, &spinning, &now)) {
            relax();
            continue;
        }
        if (!wfi_token_sleep(net, bed, -1, WFI_NEVER))
            return NULL;
        uint64_t asleep = now;
        now = wfi_now(net->clock);
        wfi_spin_begin(&spinning, now);
        /* Something came at once: an event even if it has no completion here, as reads of our memory have none. */
        if (now - asleep < net->token.spin_max_ns)
            wfi_spin_caught(net, role, now);
    }
    (void)wfi_token_release(net, role);
    return mine;
}
