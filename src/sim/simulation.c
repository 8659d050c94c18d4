/* SPDX-License-Identifier: Apache-2.0 */
/* simulation.c - the simulation, as the rest of the library finds it. Only libweft_sim has it. */
#include "sim/fiber.h"
#include "sim/sim.h"

static const wfi_fabric_ops *const fabrics[] = {&wfi_fabric_sim, &wfi_fabric_sim_verbs, &wfi_fabric_sim_reads,
                                                &wfi_fabric_sim_rdm, NULL};

static const wfi_simulation_ops ops = {.fiber_current = wfi_fiber_running,
                                       .fiber_wait = wfi_fiber_wait,
                                       .fiber_wake = wfi_fiber_wake,
                                       .clock = wfi_sim_clock,
                                       .fibers = wfi_sim_fibers,
                                       .random_bytes = wfi_sim_random_bytes,
                                       .machine = wfi_sim_machine,
                                       .worker_start = wfi_sim_worker_start,
                                       .workers_join = wfi_sim_workers_join,
                                       .poller_start = wfi_sim_poller_start,
                                       .poller_stop = wfi_sim_poller_stop,
                                       .link_open = wfi_sim_link_open,
                                       .fabrics = fabrics};

const wfi_simulation_ops *const wfi_simulation = &ops;
