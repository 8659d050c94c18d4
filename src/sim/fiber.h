/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fiber.h - fibers for the simulation: cooperative flows of control with their own stacks.
 *
 * A scheduler belongs to one thread. wfi_fibers_run runs each runnable fiber until it parks or ends, in the order in
 * which they became runnable; it never waits. Deadlines are of the scheduler's clock.
 */
#ifndef WFI_SIM_FIBER_H
#define WFI_SIM_FIBER_H

#include "base/simulation.h"

wfi_fibers *wfi_fibers_create(const wfi_clock *clock, size_t stack_bytes);
void wfi_fibers_destroy(wfi_fibers *fibers); /* fibers that have not ended are dropped without running further */

/* A new runnable fiber of group `group` (the simulation's rank). WEFT_ERR_MEMORY. */
weft_status wfi_fiber_spawn(wfi_fibers *fibers, int group, void (*run)(void *arg), void *arg);

size_t wfi_fibers_run(wfi_fibers *fibers);                   /* returns how often a fiber was run */
uint64_t wfi_fibers_next_deadline(wfi_fibers *fibers);       /* the earliest of parked fibers; or WFI_NEVER */
void wfi_fibers_expire(wfi_fibers *fibers);                  /* makes fibers runnable whose deadline has passed */
size_t wfi_fibers_live(const wfi_fibers *fibers, int group); /* number of those not ended; group -1: of all groups */
/* The group does not run until it is thawed. WEFT_ERR_MEMORY: it still runs. */
weft_status wfi_fibers_freeze(wfi_fibers *fibers, int group);
void wfi_fibers_thaw(wfi_fibers *fibers, int group);
void wfi_fibers_abandon(wfi_fibers *fibers, int group); /* they never run again; destroy frees their stacks */

wfi_fiber *wfi_fiber_running(void);                          /* NULL on a plain thread */
bool wfi_fiber_wait(wfi_fiber *fiber, uint64_t deadline_ns); /* the running fiber yields; true if it was woken */
void wfi_fiber_wake(wfi_fiber *fiber);

#endif
