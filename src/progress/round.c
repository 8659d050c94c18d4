/* SPDX-License-Identifier: Apache-2.0 */
/* round.c - one round: completions, timers, posts that were refused; and rounds for agents without threads. */
#include "net/net_internal.h"

#define EVENTS_BATCH 8
#define RARE_NS UINT64_C(5000000) /* without threads: connection events have no descriptor to sleep on */

static void dispatch(const wfi_completion *completion)
{
    wfi_flight *flight = wfi_container_of(completion->op, wfi_flight, op);
    wfi_conn *conn = flight->conn;
    switch (flight->kind) {
    case WFI_FLIGHT_RECEIVE:
        wfi_frame_received(wfi_container_of(flight, wfi_rx, flight), completion);
        break;
    case WFI_FLIGHT_FRAME:
        wfi_frame_sent(wfi_container_of(flight, wfi_tx, flight), completion->status);
        break;
    case WFI_FLIGHT_CHUNK:
        wfi_chunk_reported(wfi_container_of(flight, wfi_chunk, flight), completion);
        break;
    }
    wfi_conn_reported(conn);
}

/* Some post found no room; completions since then may have made some. */
static void post_again(wfi_net *net)
{
    atomic_store(&net->stuck, false);
    for (int rank = 0; rank < net->world_size; rank++) {
        if (net->peers[rank]) {
            wfi_peer_flush(net->peers[rank]);
            wfi_works_pump(net->peers[rank]);
        }
    }
}

#define STARVED_TRIES 200
#define STARVED_NS UINT64_C(5000000)

void wfi_net_starve(wfi_net *net)
{
    net->starving = true;
    if (!net->starved_timer.heap_index && !net->closing)
        (void)wfi_net_timer_set(net, &net->starved_timer, wfi_now(net->clock) + STARVED_NS);
}

/* Tries again what there was no memory for. After a second of that, what has not begun ends with that error. */
void wfi_starved_due(wfi_timer *timer)
{
    wfi_net *net = wfi_container_of(timer, wfi_net, starved_timer);
    net->starving = false;
    post_again(net);
    net->starved = net->starving ? net->starved + 1 : 0;
    if (net->starved < STARVED_TRIES)
        return;
    net->starved = 0;
    for (int rank = 0; rank < net->world_size; rank++) {
        if (net->peers[rank]) {
            wfi_peer_fail_queued(net->peers[rank], WEFT_ERR_MEMORY);
            wfi_works_fail(net->peers[rank], WEFT_ERR_MEMORY);
        }
    }
}

size_t wfi_round(wfi_net *net, wfi_role role, wfi_task **mine)
{
    wfi_completion completions[WFI_BATCH];
    size_t count = net->ops->poll(net->fabric, completions, WFI_BATCH);
    uint64_t now = wfi_now(net->clock);
    if (!count && atomic_load_explicit(&net->next_deadline_ns, memory_order_relaxed) > now)
        return 0;
    wfi_mutex_lock(&net->lock);
    net->now_ns = now;
    net->in_round = true;
    if (role == WFI_MANUAL)
        net->sleep_until_ns =
            0; /* we are up: timers set now need wake nobody; one robbed by us sleeps for RARE_NS at most */
    for (size_t i = 0; i < count; i++)
        dispatch(&completions[i]);
    size_t fired = wfi_timers_fire(net);
    if (atomic_load(&net->stuck))
        post_again(net);
    wfi_task *task = wfi_net_unlock_as(net, role);
    if (mine)
        *mine = task;
    return count + fired;
}

size_t wfi_round_events(wfi_net *net, int timeout_ms, int wake_fd)
{
    wfi_event events[EVENTS_BATCH];
    size_t count = net->ops->poll_events(net->fabric, events, EVENTS_BATCH, timeout_ms, wake_fd);
    if (!count)
        return 0;
    wfi_mutex_lock(&net->lock);
    net->now_ns = wfi_now(net->clock);
    net->in_round = true;
    for (size_t i = 0; i < count; i++)
        wfi_net_event(net, &events[i]);
    wfi_net_unlock(net);
    return count;
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
