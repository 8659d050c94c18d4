/* SPDX-License-Identifier: Apache-2.0 */
/*
 * link.c - the link to the store inside the simulation, over its channels.
 *
 * Frames arrive, and most upcalls are made, in the simulation's loop. Heartbeats, and the detection of a silent
 * store, run on a fiber of this rank's group, so that a paused rank is silent. All of that is one thread.
 * wfi_rendezvous_close waits, so it must be called on a fiber. Elsewhere (for a rank that was killed, or after the
 * simulation has ended) it only frees.
 */
#include "base/alloc.h"
#include "base/list.h"
#include "base/parker.h"
#include "job/link/link.h"
#include "sim/fiber.h"
#include "sim/sim.h"
#include "sim/store.h"

#include <stdlib.h>
#include <string.h>

#define NS_PER_MS 1000000ull
#define RETRY_FIRST_NS (1 * NS_PER_MS)
#define RETRY_LAST_NS (100 * NS_PER_MS)
#define FAREWELL_MS 1000     /* for the store to process the goodbye */
#define ANSWER_GRACE_MS 2000 /* added to the timeout: the store's answer names the missing ranks, this worker cannot */

typedef struct sim_wire {
    struct sim_link *link;
    wfi_which which;
    wfi_sim_channel *channel; /* NULL: none */
} sim_wire;

typedef struct sim_link {
    wfi_rendezvous base;
    weft_sim *sim;
    int group; /* the world's rank whose fiber opened the link; the rank in the job may differ */
    sim_wire wires[2];
    wfi_sim_store *store; /* rank 0 */
    wfi_parker *opener;   /* where open waits for the answer */
    wfi_parker *ticker;
    wfi_parker *closer; /* where close waits for the end of the ticker and of the channel */
    bool ticks, stopping, out_of_memory;
} sim_link;

static sim_link *sim_of(wfi_rendezvous *link)
{
    return wfi_container_of(link, sim_link, base);
}

static void unpark(wfi_parker *parker)
{
    if (parker)
        wfi_unpark(parker);
}

/* Wakes the opener while it joins, later the ticker. */
static void sim_wake(wfi_rendezvous *base)
{
    unpark(sim_of(base)->opener);
    unpark(sim_of(base)->ticker);
    unpark(sim_of(base)->closer);
}

/* ---- The channels ---------------------------------------------------------------------------------------------- */

static void hang_up_wire(sim_wire *wire)
{
    if (wire->channel)
        wfi_sim_channel_close(wire->channel);
    wire->channel = NULL;
}

static void sim_hang_up(wfi_rendezvous *base, wfi_which which)
{
    hang_up_wire(&sim_of(base)->wires[which]);
}

static void wire_message(void *arg, wfi_sim_channel *channel, const uint8_t *data, size_t size)
{
    sim_wire *wire = arg;
    sim_link *link = wire->link;
    (void)channel;
    wfi_link_received(&link->base, wire->which, data, size);
    sim_wake(&link->base);
}

static void wire_closed(void *arg, wfi_sim_channel *channel)
{
    sim_wire *wire = arg;
    sim_link *link = wire->link;
    (void)channel;
    hang_up_wire(wire);
    wfi_link_wire_lost(&link->base, wire->which, false, "the store closed the connection");
    sim_wake(&link->base);
    unpark(link->closer);
}

static void listen_to(sim_wire *wire)
{
    wfi_sim_channel_events events = {.message = wire_message, .closed = wire_closed, .arg = wire};
    wfi_sim_channel_on(wire->channel, &events);
}

static void sim_dial(wfi_rendezvous *base)
{
    sim_link *link = sim_of(base);
    sim_wire *next = &link->wires[WFI_NEXT];
    weft_status status = wfi_sim_dial(link->sim, link->group, 0, &next->channel);
    if (status) {
        wfi_link_wire_lost(base, WFI_NEXT, status == WEFT_ERR_UNREACHABLE, "the store is gone");
        return;
    }
    listen_to(next);
    wfi_link_dialled(base);
}

static void sim_adopt(wfi_rendezvous *base)
{
    sim_wire *wires = sim_of(base)->wires;
    hang_up_wire(&wires[WFI_CURRENT]);
    wires[WFI_CURRENT].channel = wires[WFI_NEXT].channel;
    wires[WFI_NEXT].channel = NULL;
    if (!sim_of(base)->opener) {
        listen_to(&wires[WFI_CURRENT]);
        return;
    }
    wfi_sim_channel_events none = {0}; /* messages that come before open has returned wait in the channel */
    wfi_sim_channel_on(wires[WFI_CURRENT].channel, &none);
}

static void sim_send(wfi_rendezvous *base, wfi_which which, const uint8_t *frame, size_t size)
{
    sim_link *link = sim_of(base);
    wfi_sim_channel *channel = link->wires[which].channel;
    weft_status status = channel ? wfi_sim_channel_send(channel, frame, size) : WEFT_OK;
    if (!status || status == WEFT_ERR_UNREACHABLE) /* if the channel is gone, wire_closed tells */
        return;
    link->out_of_memory = true;
    sim_wake(base);
}

static void sim_random(wfi_rendezvous *base, void *out, size_t size)
{
    wfi_sim_random_bytes(sim_of(base)->sim, out, size);
}

/* ---- The ticker ------------------------------------------------------------------------------------------------ */

static void run_link_ticker(void *arg)
{
    sim_link *link = arg;
    wfi_parker parker;
    wfi_parker_init(&parker);
    link->ticker = &parker;
    while (!link->stopping && !wfi_link_is_out(&link->base)) {
        uint64_t due_ns = wfi_link_tick(&link->base);
        if (link->out_of_memory)
            wfi_link_lost(&link->base, "out of memory for a message to the store");
        else if (!wfi_link_is_out(&link->base))
            (void)wfi_park(&parker, due_ns);
    }
    link->ticker = NULL;
    link->ticks = false;
    unpark(link->closer);
}

static int sim_pump(wfi_rendezvous *base, uint64_t *due_ns)
{
    (void)base; /* the world's loop does all the work */
    *due_ns = WFI_NEVER;
    return -1;
}

/* ---- The end --------------------------------------------------------------------------------------------------- */

static void sim_free(sim_link *link)
{
    wfi_link_fini(&link->base);
    free(link);
}

static void sim_close(wfi_rendezvous *base)
{
    sim_link *link = sim_of(base);
    if (!wfi_fiber_current()) {
        wfi_sim_store_abandon(link->store);
        sim_free(link);
        return;
    }
    wfi_parker parker;
    wfi_parker_init(&parker);
    link->closer = &parker;
    /*
     * A goodbye sent while the link changes its wire would be lost with the old one, and the store would see a death.
     */
    uint64_t deadline_ns = wfi_deadline(base->clock, FAREWELL_MS);
    while (!wfi_link_is_out(base) && !wfi_link_is_steady(base) && wfi_now(base->clock) < deadline_ns)
        (void)wfi_park(&parker, deadline_ns);
    bool was_member = wfi_link_send_goodbye(base);
    deadline_ns = wfi_deadline(base->clock, FAREWELL_MS);
    link->stopping = true;
    unpark(link->ticker);
    while (link->ticks)
        (void)wfi_park(&parker, WFI_NEVER);
    /* The store closes the channel after the goodbye. Then the slot is free for the next open. */
    while (was_member && link->wires[WFI_CURRENT].channel && wfi_now(base->clock) < deadline_ns)
        (void)wfi_park(&parker, deadline_ns);
    hang_up_wire(&link->wires[WFI_NEXT]);
    hang_up_wire(&link->wires[WFI_CURRENT]);
    wfi_sim_store_end(link->store, wfi_link_grace_ms(base));
    sim_free(link);
}

static void sim_count(const wfi_rendezvous *base, wfi_store_counts *out)
{
    wfi_sim_store_count(wfi_container_of(base, const sim_link, base)->store, out);
}

static const wfi_link_shell sim_shell = {.send = sim_send,
                                         .dial = sim_dial,
                                         .hang_up = sim_hang_up,
                                         .adopt = sim_adopt,
                                         .wake = sim_wake,
                                         .random = sim_random,
                                         .close = sim_close,
                                         .pump = sim_pump,
                                         .count = sim_count};

/* ---- Joining --------------------------------------------------------------------------------------------------- */

/* False: no store listens, it went away, or it does not answer. */
static bool sim_attempt(sim_link *link)
{
    uint64_t deadline_ns;
    wfi_wire *next = &link->base.wires[WFI_NEXT];
    sim_dial(&link->base);
    while (!link->base.answered && next->stage != WFI_WIRE_NONE &&
           wfi_now(link->base.clock) < (deadline_ns = wfi_link_answer_by_ns(&link->base, ANSWER_GRACE_MS))) {
        uint64_t due_ns = wfi_link_tick(&link->base);
        if (!link->base.answered && next->stage != WFI_WIRE_NONE)
            (void)wfi_park(link->opener, due_ns < deadline_ns ? due_ns : deadline_ns);
    }
    if (!link->base.answered)
        hang_up_wire(&link->wires[WFI_NEXT]);
    return link->base.answered;
}

static weft_status sim_join(sim_link *link, const wfi_rendezvous_options *options, weft_error **error)
{
    uint64_t deadline_ns = link->base.patience_ns, pause_ns = RETRY_FIRST_NS;
    while (!sim_attempt(link)) {
        uint64_t now_ns = wfi_now(link->base.clock);
        if (now_ns >= deadline_ns)
            return wfi_error_fail(error, WEFT_ERR_RENDEZVOUS, "rank 0's store did not answer within %lld ms",
                                  (long long)options->join_timeout_ms);
        uint64_t until_ns = now_ns + pause_ns < deadline_ns ? now_ns + pause_ns : deadline_ns;
        (void)wfi_park(link->opener, until_ns);
        pause_ns = pause_ns * 2 > RETRY_LAST_NS ? RETRY_LAST_NS : pause_ns * 2;
    }
    return link->base.refusal ? wfi_link_refused(&link->base, error) : WEFT_OK;
}

static weft_status give_status(weft_status status, weft_error **error)
{
    return wfi_error_fail(error, status, "cannot join in the simulation: %s", weft_status_text(status));
}

static weft_status sim_start_store(sim_link *link, const wfi_rendezvous_options *options)
{
    wfi_store_options how = {.world_size = options->world_size,
                             .elastic = options->elastic,
                             .secret = options->secret,
                             .secret_size = options->secret_size,
                             .death_timeout_ms = options->death_timeout_ms};
    return wfi_sim_store_start(link->sim, &how, &link->store);
}

weft_status wfi_sim_link_open(const wfi_rendezvous_options *given, wfi_rendezvous **out, weft_error **error)
{
    wfi_parker parker;
    wfi_rendezvous_options options = *given;
    options.clock = wfi_sim_clock(options.sim);
    if (!wfi_fiber_current() || wfi_fiber_current()->clock != options.clock)
        return wfi_error_fail(error, WEFT_ERR_STATE,
                              "only a program of this simulated world (weft_sim_spawn) can join");
    sim_link *link = wfi_calloc(1, sizeof(*link));
    weft_status status = link ? wfi_link_init(&link->base, &options, &sim_shell) : WEFT_ERR_MEMORY;
    if (status) {
        free(link);
        return give_status(status, error);
    }
    link->sim = options.sim;
    link->group = wfi_fiber_current()->group;
    for (wfi_which which = WFI_CURRENT; which <= WFI_NEXT; which++)
        link->wires[which] = (sim_wire){.link = link, .which = which};
    wfi_parker_init(&parker);
    link->opener = &parker;
    if (options.rank == 0)
        status = sim_start_store(link, &options);
    if (status) {
        give_status(status, error);
        goto free_link;
    }
    status = sim_join(link, &options, error);
    if (status)
        goto hang_up;
    link->ticks = true;
    status = wfi_fiber_spawn(wfi_sim_fibers(link->sim), link->group, run_link_ticker, link);
    if (status) {
        give_status(status, error);
        goto hang_up;
    }
    link->opener = NULL;
    listen_to(&link->wires[WFI_CURRENT]);
    *out = &link->base;
    return WEFT_OK;

hang_up:
    hang_up_wire(&link->wires[WFI_NEXT]);
    hang_up_wire(&link->wires[WFI_CURRENT]);
    wfi_sim_store_end(link->store, 0);
free_link:
    sim_free(link);
    return status;
}
