/* SPDX-License-Identifier: Apache-2.0 */
/*
 * simulation.h - what a simulated job (weft/sim.h) has in place of the operating system: virtual time, fibers for
 * threads, its own fabrics, its own link to the store.
 *
 * libweft has no simulation: wfi_simulation is NULL there (no_simulation.c), and no weft_sim exists. libweft_sim also
 * has the files of src/sim; simulation.c has the table.
 */
#ifndef WFI_SIMULATION_H
#define WFI_SIMULATION_H

#include "base/clock.h"

#include <weft/base.h>
#include <weft/status.h>

/* The part of a fiber that code outside src/sim uses. */
typedef struct wfi_fiber {
    const wfi_clock *clock; /* of its scheduler */
    int group;              /* the world's rank */
    void *slot;             /* one pointer for each fiber, like a thread-local variable; initially NULL */
} wfi_fiber;

typedef struct wfi_fibers wfi_fibers; /* a scheduler */

struct wfi_executor;
struct wfi_fabric_ops;
struct wfi_progress;
struct wfi_rendezvous;
struct wfi_rendezvous_options;

/* Call a function only for an object of a simulated job: then wfi_simulation is not NULL. */
typedef struct wfi_simulation_ops {
    wfi_fiber *(*fiber_current)(void);
    bool (*fiber_wait)(wfi_fiber *fiber, uint64_t deadline_ns); /* the running fiber yields; true if it was woken */
    void (*fiber_wake)(wfi_fiber *fiber);

    const wfi_clock *(*clock)(weft_sim *sim);
    wfi_fibers *(*fibers)(weft_sim *sim);
    void (*random_bytes)(weft_sim *sim, void *out, size_t size); /* from the seed */
    uint64_t (*machine)(const weft_sim *sim, int rank); /* the worker's host, as wfi_machine (topo/machine.h) */

    bool (*worker_start)(struct wfi_executor *executor); /* [its lock] false: no memory */
    void (*workers_join)(struct wfi_executor *executor);
    weft_status (*poller_start)(struct wfi_progress *progress);
    void (*poller_stop)(struct wfi_progress *progress);
    weft_status (*link_open)(const struct wfi_rendezvous_options *options, struct wfi_rendezvous **out,
                             weft_error **error);
    const struct wfi_fabric_ops *const *fabrics; /* ends with NULL */
} wfi_simulation_ops;

extern const wfi_simulation_ops *const wfi_simulation; /* NULL: there is none */

/* NULL on a plain thread. */
static inline wfi_fiber *wfi_fiber_current(void)
{
    return wfi_simulation ? wfi_simulation->fiber_current() : NULL;
}

/* The clock of a world; `sim` NULL: the machine's. */
static inline const wfi_clock *wfi_clock_of(weft_sim *sim)
{
    return sim ? wfi_simulation->clock(sim) : &wfi_clock_real;
}

#endif
