/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_net_token.c - who is told when the progress token is given up: whoever still waits for something must not
 * stay without anybody who looks. A net without threads of its own, so that nobody else takes the token or gets up.
 */
#include "net/net_host.h"
#include "rpc/must.h"

static bool watcher_was_called(wfi_progress *progress)
{
    return atomic_exchange(&progress->token.called[WFI_SLEEPER_POLLER], false);
}

/* Calls that follow each other wake nobody; with another thread that waits, somebody has to look from now on. */
static void releases(wfi_progress *progress)
{
    (void)watcher_was_called(progress);
    MUST(wfi_token_take(progress, WFI_WAITER));
    MUST(!wfi_token_release(progress, WFI_WAITER));
    MUST(!watcher_was_called(progress));
    atomic_store(&progress->token.parked, 1);
    MUST(wfi_token_take(progress, WFI_WAITER));
    MUST(!wfi_token_release(progress, WFI_WAITER));
    MUST(watcher_was_called(progress));
    atomic_store(&progress->token.parked, 0);
}

/* A sleeper whose token was taken looks again once it has the token back: nobody else needs to. */
static void gives_back(wfi_progress *progress)
{
    atomic_store(&progress->token.state, WFI_TOKEN_POLLER_ASLEEP);
    atomic_store(&progress->token.asleep[WFI_SLEEPER_POLLER], true);
    atomic_store(&progress->token.slept_with_token[WFI_SLEEPER_POLLER], true);
    atomic_store(&progress->token.parked, 1);
    MUST(wfi_token_take(progress, WFI_WAITER));
    MUST(wfi_token_release(progress, WFI_WAITER));
    MUST(progress->token.state == WFI_TOKEN_POLLER_ASLEEP);
    MUST(!watcher_was_called(progress));
    atomic_store(&progress->token.parked, 0);
    atomic_store(&progress->token.slept_with_token[WFI_SLEEPER_POLLER], false);
    atomic_store(&progress->token.asleep[WFI_SLEEPER_POLLER], false);
    atomic_store(&progress->token.state, WFI_TOKEN_FREE);
}

/*
 * One who looks in vain leaves that to the watcher before it sleeps; and so does one who does not even get the
 * token. On a busy machine its time may be over before it sleeps: then it gets more.
 */
static void waits_in_vain(wfi_progress *progress, int state)
{
    bool called = false;
    for (int64_t ms = 20; !called && ms < 20000; ms *= 5) {
        wfi_parker parker;
        wfi_parker_init(&parker);
        atomic_store(&progress->token.state, state);
        progress->no_threads = false; /* it need not run handlers itself */
        MUST(wfi_drive(&progress->driver, &parker, wfi_deadline(progress->clock, ms)));
        progress->no_threads = true;
        called = watcher_was_called(progress);
        MUST(progress->token.state == state);
        MUST(progress->token.parked == 0);
    }
    MUST(called);
    atomic_store(&progress->token.state, WFI_TOKEN_FREE);
}

static void body(net_host *host)
{
    releases(&host->net->progress);
    gives_back(&host->net->progress);
    waits_in_vain(&host->net->progress, WFI_TOKEN_FREE);
    waits_in_vain(&host->net->progress, WFI_TOKEN_AWAKE);
}

NET_TEST(nobody_who_waits_is_left_unwatched, body, 1, 0, true, .no_threads = true, .death_timeout_ms = 20000)

UNIT_MAIN(nobody_who_waits_is_left_unwatched)
