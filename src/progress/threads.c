/* SPDX-License-Identifier: Apache-2.0 */
/*
 * threads.c - who sees to the net: the poller and the event thread, the leader in the executor's idle hook.
 * token.c has the rules.
 */
#include "net/net_internal.h"

#include <errno.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <unistd.h>

#define NAP_NS 200000
#define NAP_DOUBLINGS 3 /* while others use the token: watchers of many processes would take a core */
#define EVENTS_WAIT_MS 60000
#define DRAIN_NS UINT64_C(2000000000)

static const int no_fds[2] = {-1, -1};

/* ---- Watching -------------------------------------------------------------------------------------------------- */

/* The leader stays: until it leaves there is nothing to do. */
static void poller_block(wfi_net *net)
{
    atomic_store(&net->token.poller_blocked, true);
    if (atomic_load(&net->token.leader_in) && !atomic_load(&net->stop))
        (void)wfi_bed_sleep(net, WFI_BED_POLLER, no_fds, WFI_NEVER);
    atomic_store(&net->token.poller_blocked, false);
}

static uint64_t nap_ns(unsigned naps)
{
    return (uint64_t)NAP_NS << (naps < NAP_DOUBLINGS ? naps : NAP_DOUBLINGS);
}

/* One nap, after so many; true if the token is ours then. */
static bool poller_rest(wfi_net *net, unsigned naps)
{
    uint32_t uses = atomic_load(&net->token.uses), departures = atomic_load(&net->token.departures);
    bool called = wfi_bed_sleep(net, WFI_BED_POLLER, no_fds, nap_ns(naps));
    bool leader = atomic_load(&net->token.leader_in);
    if (leader && departures == atomic_load(&net->token.departures))
        poller_block(net);
    else if (!leader && (called || uses == atomic_load(&net->token.uses)))
        return wfi_token_take(net, WFI_POLLER);
    return false;
}

static void *poller_main(void *arg)
{
    wfi_net *net = arg;
    pthread_setname_np(pthread_self(), "weft-poll");
    (void)wfi_topo_bind_thread(net->cores, 2);             /* the poller, and a leader or a waiter */
    (void)prctl(PR_SET_TIMERSLACK, 1000UL, 0UL, 0UL, 0UL); /* naps of 200 us would else take 250 */
    bool ours = wfi_token_take(net, WFI_POLLER);
    unsigned naps = 0;
    while (!atomic_load(&net->stop)) {
        if (ours)
            (void)wfi_token_hold(net, WFI_POLLER);
        naps = ours ? 0 : naps + 1;
        ours = poller_rest(net, naps);
    }
    if (ours)
        (void)wfi_token_release(net, WFI_POLLER);
    return NULL;
}

wfi_task *wfi_idle_lead(void *arg)
{
    wfi_net *net = arg;
    wfi_task *task = NULL;
    bool try = true;
    unsigned naps = 0;
    atomic_store(&net->token.leader_in, true);
    while (!task && !atomic_load(&net->token.nudged)) {
        bool over = atomic_load(&net->stop);
        if (try && !over && wfi_token_ask(net, WFI_LEADER))
            task = wfi_token_hold(net, WFI_LEADER);
        if (task || atomic_load(&net->token.nudged))
            break;
        uint32_t uses = atomic_load(&net->token.uses);
        bool called = wfi_bed_sleep(net, WFI_BED_LEADER, no_fds, over ? WFI_NEVER : nap_ns(naps));
        try = called || uses == atomic_load(&net->token.uses);
        naps = try ? 0 : naps + 1;
    }
    atomic_store(&net->token.nudged, false);
    atomic_fetch_add(&net->token.departures, 1);
    atomic_store(&net->token.leader_in, false);
    if (atomic_load(&net->token.poller_blocked))
        wfi_bed_call(net, WFI_BED_POLLER);
    return task;
}

void wfi_idle_nudge(void *arg)
{
    wfi_net *net = arg;
    atomic_store(&net->token.nudged, true);
    wfi_bed_call(net, WFI_BED_LEADER);
}

static void *events_main(void *arg)
{
    wfi_net *net = arg;
    pthread_setname_np(pthread_self(), "weft-cm");
    while (!atomic_load(&net->stop))
        (void)wfi_round_events(net, EVENTS_WAIT_MS, net->events_fd);
    return NULL;
}

/* ---- Starting and stopping ------------------------------------------------------------------------------------- */

static weft_status start(pthread_t *thread, void *(*run)(void *), wfi_net *net)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before); /* signals are the application's */
    int rc = pthread_create(thread, NULL, run, net);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return rc ? WEFT_ERR_SYSTEM : WEFT_OK;
}

weft_status wfi_threads_start(wfi_net *net)
{
    if (net->fibers)
        return wfi_fiber_start(net);
    if (net->no_threads)
        return WEFT_OK;
    weft_status status = start(&net->events, events_main, net);
    if (status)
        return status;
    net->events_started = true;
    status = start(&net->poller, poller_main, net);
    if (status)
        return status;
    net->poller_started = true;
    return WEFT_OK;
}

/* What closed lanes had under way is reported still, and only then freed. */
static void drain(wfi_net *net)
{
    uint64_t until = wfi_now(net->clock) + DRAIN_NS;
    size_t left = 1;
    while (left && wfi_now(net->clock) < until) {
        if (wfi_token_take(net, WFI_WAITER)) {
            (void)wfi_round(net, WFI_WAITER, NULL);
            (void)wfi_token_release(net, WFI_WAITER);
        }
        wfi_mutex_lock(&net->lock);
        left = net->zombies;
        wfi_net_unlock(net);
    }
    if (left)
        wfi_log_net(net, WEFT_LOG_ERROR, "%zu closed connections were never reported empty", left);
}

void wfi_threads_stop(wfi_net *net)
{
    uint64_t one = 1;
    atomic_store(&net->stop, true);
    if (net->fibers) {
        wfi_fiber_stop(net);
        return;
    }
    wfi_net_wake(net);
    ssize_t written = write(net->events_fd, &one, sizeof(one));
    (void)written;
    if (net->poller_started)
        pthread_join(net->poller, NULL);
    if (net->events_started)
        pthread_join(net->events, NULL);
    net->poller_started = net->events_started = false;
    drain(net);
}
