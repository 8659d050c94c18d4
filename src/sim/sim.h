/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sim.h - the simulated world, for the other layers of weft. Programs use weft/sim.h.
 *
 * One loop, weft_sim_run, does everything. It runs all fibers that can run; then it sets virtual time forward to the
 * next event (a delivery, or the deadline of a waiting fiber) and delivers it; and so on. A fiber that waits for
 * something in the world parks, and is woken by a delivery, by wfi_fabric_options.ready, or by a channel's callback.
 *
 * LOCKING. None: one thread at a time uses a world and all objects in it. LIFETIME. All objects end with the world
 * (weft_sim_close).
 */
#ifndef WFI_SIM_H
#define WFI_SIM_H

#include "base/simulation.h"
#include "fabric.h"

#include <weft/sim.h>

wfi_fibers *wfi_sim_fibers(weft_sim *sim);
const wfi_clock *wfi_sim_clock(weft_sim *sim);
uint64_t wfi_sim_random(weft_sim *sim); /* from the seed */
void wfi_sim_random_bytes(weft_sim *sim, void *out, size_t size);
uint64_t wfi_sim_machine(const weft_sim *sim, int rank); /* the worker's host, as wfi_machine (topo/machine.h) */

/* simulation.h has what these do: threads.c, link.c, fabric.c. */
bool wfi_sim_worker_start(struct wfi_executor *executor);
void wfi_sim_workers_join(struct wfi_executor *executor);
weft_status wfi_sim_poller_start(struct wfi_progress *progress);
void wfi_sim_poller_stop(struct wfi_progress *progress);
weft_status wfi_sim_link_open(const struct wfi_rendezvous_options *options, struct wfi_rendezvous **out,
                              weft_error **error);
extern const wfi_fabric_ops wfi_fabric_sim, wfi_fabric_sim_verbs, wfi_fabric_sim_reads, wfi_fabric_sim_rdm;

/*
 * Starts or ends a firewall: connection requests of all fabrics from `from` to `to` are dropped. Open connections
 * continue, and `to` can still connect to `from`.
 */
void wfi_sim_wall(weft_sim *sim, int from, int to, bool up);

/*
 * Message channels beside the fabric, for the store: reliable and ordered, with the world's delays, cuts (held until
 * healed), pauses (delivered after the resume) and deaths (the other end is closed). Callbacks come from the loop,
 * outside any fiber.
 */
typedef struct wfi_sim_channel wfi_sim_channel;
typedef struct wfi_sim_channel_events {
    void (*message)(void *arg, wfi_sim_channel *channel, const uint8_t *data, size_t size);
    /* the other end closed it or died; then this end must be closed too */
    void (*closed)(void *arg, wfi_sim_channel *channel);
    void *arg;
} wfi_sim_channel_events;

/* `rank` accepts channels; WEFT_ERR_EXISTS if it does already. `accepted` sets the events of the new end. */
weft_status wfi_sim_listen(weft_sim *sim, int rank, void (*accepted)(void *arg, wfi_sim_channel *channel), void *arg);
void wfi_sim_unlisten(weft_sim *sim, int rank);
/* From `from` to the listener `to`; WEFT_ERR_UNREACHABLE if `to` does not listen yet. */
weft_status wfi_sim_dial(weft_sim *sim, int from, int to, wfi_sim_channel **out);
void wfi_sim_channel_on(wfi_sim_channel *channel, const wfi_sim_channel_events *events);
weft_status wfi_sim_channel_send(wfi_sim_channel *channel, const void *data, size_t size);
uint64_t wfi_sim_channel_messages(const weft_sim *sim); /* sent so far, by all ends */
void wfi_sim_channel_close(wfi_sim_channel *channel);   /* no callback after it returns */

#endif
