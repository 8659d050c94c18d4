/* SPDX-License-Identifier: Apache-2.0 */
/* world.c - the world: creating and ending it, its programs, and the loop that moves time. */
#include "sim/world.h"

#include "base/alloc.h"
#include "base/text/sized.h"
#include "mem/cuda.h"

#include <stdlib.h>

enum { STACK_BYTES = 256 * 1024 };

static uint64_t clock_now(const wfi_clock *clock)
{
    return wfi_container_of(clock, const weft_sim, clock)->now_ns;
}

/* ---- Life ------------------------------------------------------------------------------------------------------ */

static weft_sim_options with_defaults(const weft_sim_options *options)
{
    weft_sim_options all = *options;
    if (!all.latency_min_ns)
        all.latency_min_ns = 2000;
    if (all.ranks_per_host < 1)
        all.ranks_per_host = 1;
    if (!all.latency_max_ns)
        all.latency_max_ns = 20000;
    if (all.latency_max_ns < all.latency_min_ns)
        all.latency_max_ns = all.latency_min_ns;
    if (!all.bytes_per_second)
        all.bytes_per_second = 10000000000u;
    if (!all.stack_bytes)
        all.stack_bytes = STACK_BYTES;
    return all;
}

static weft_sim *open_world(const weft_sim_options *options)
{
    weft_sim *sim = wfi_calloc(1, sizeof(*sim));
    if (!sim)
        return NULL;
    WFI_HANDLE_INIT(sim);
    sim->options = with_defaults(options);
    sim->clock.now_ns = clock_now;
    (void)wfi_cuda_count(); /* starts the driver, for which the stack of a fiber may be too small */
    wfi_sim_random_seed(&sim->random, sim->options.seed);
    sim->fibers = wfi_fibers_create(&sim->clock, sim->options.stack_bytes);
    if (!sim->fibers) {
        free(sim);
        return NULL;
    }
    wfi_map_init(&sim->cuts);
    wfi_map_init(&sim->fabric_cuts);
    wfi_map_init(&sim->walls);
    wfi_list *lists[] = {&sim->programs, &sim->pairs, &sim->channels, &sim->fabrics, &sim->ready};
    for (size_t i = 0; i < sizeof(lists) / sizeof(*lists); i++)
        wfi_list_init(lists[i]);
    if (wfi_sim_stock_init(sim)) {
        weft_sim_close(sim);
        return NULL;
    }
    return sim;
}

weft_status weft_sim_open_sized(const weft_sim_options *options, size_t size, weft_sim **out, weft_error **error)
{
    weft_sim_options own;
    options = WFI_SIZED(options, size, &own);
    if (!options)
        return wfi_refuse_newer(error, "weft_sim_open", "weft_sim_options");
    weft_sim *sim = open_world(options);
    return WFI_GIVE("weft_sim_open", sim, NULL, weft_sim_close, out, error);
}

static void programs_free(weft_sim *sim)
{
    wfi_list *node;
    while ((node = wfi_list_pop_front(&sim->programs)))
        free(wfi_container_of(node, sim_program, link));
}

void weft_sim_close(weft_sim *sim)
{
    WFI_CHECK_HANDLE(sim);
    if (!sim)
        return;
    const wfi_fiber *fiber = wfi_fiber_current();
    if (fiber && fiber->clock == &sim->clock) {
        (void)wfi_refuse(WEFT_ERR_STATE,
                         "weft_sim_close: a program of this world calls it: call it after weft_sim_run");
        return;
    }
    while (!wfi_list_empty(&sim->fabrics))
        wfi_sim_fabric_abandon(wfi_container_of(sim->fabrics.next, sim_fabric, link));
    for (size_t i = 0; i < sim->rank_capacity; i++)
        if (sim->ranks[i])
            wfi_sim_channels_kill(sim->ranks[i]);
    wfi_sim_let_all_go(sim);
    wfi_sim_drop_events(sim);
    wfi_fibers_destroy(sim->fibers);
    programs_free(sim);
    wfi_sim_ranks_free(sim);
    wfi_map_fini(&sim->cuts);
    wfi_map_fini(&sim->fabric_cuts);
    wfi_map_fini(&sim->walls);
    free(sim->heap);
    wfi_sim_stock_fini(sim);
    wfi_handle_free(sim);
}

/* ---- Programs -------------------------------------------------------------------------------------------------- */

static void program_main(void *arg)
{
    sim_program *program = arg;
    program->run(program->sim, program->rank, program->arg);
    wfi_sim_trace(program->sim, SIM_END, program->rank, -1, 0);
    wfi_list_remove(&program->link);
    free(program);
}

weft_status weft_sim_spawn(weft_sim *sim, int rank, weft_sim_program run, void *arg)
{
    WFI_CHECK_HANDLE(sim);
    if (!sim || !run)
        return wfi_refuse_null("weft_sim_spawn", sim ? "run" : "the simulation");
    if (rank < 0 || rank >= SIM_RANK_MAX)
        return wfi_refuse(WEFT_ERR_INVALID, "weft_sim_spawn: rank is %d: 0 to %d", rank, SIM_RANK_MAX - 1);
    sim_program *program = wfi_sim_rank(sim, rank) ? malloc(sizeof(*program)) : NULL;
    if (!program)
        return WEFT_ERR_MEMORY;
    *program = (sim_program){.sim = sim, .rank = rank, .run = run, .arg = arg};
    weft_status status = wfi_fiber_spawn(sim->fibers, rank, program_main, program);
    if (status != WEFT_OK) {
        free(program);
        return status;
    }
    wfi_list_push_back(&sim->programs, &program->link);
    wfi_sim_trace(sim, SIM_SPAWN, rank, -1, 0);
    return WEFT_OK;
}

/* ---- The loop -------------------------------------------------------------------------------------------------- */

/* Calls `ready` for fabrics with something to poll; for a paused worker after the resume. */
static bool call_ready(weft_sim *sim)
{
    wfi_list now, later;
    wfi_list *node;
    bool called = false;
    wfi_list_init(&now);
    wfi_list_init(&later);
    wfi_list_splice(&now, &sim->ready);
    while ((node = wfi_list_pop_front(&now))) {
        sim_fabric *fabric = wfi_container_of(node, sim_fabric, ready_link);
        if (fabric->rank->paused) {
            wfi_list_push_back(&later, node);
            continue;
        }
        called = true;
        fabric->ready(fabric->ready_arg);
    }
    wfi_list_splice(&sim->ready, &later);
    return called;
}

/* Runs everything that is ready at this time. */
static void drain(weft_sim *sim)
{
    bool busy;
    do {
        busy = call_ready(sim);
        size_t turns = wfi_fibers_run(sim->fibers);
        if (turns)
            wfi_sim_trace(sim, SIM_TURNS, -1, -1, turns);
        busy |= turns > 0;
    } while (busy);
}

/* Moves time to the next event. */
static weft_status step(weft_sim *sim, uint64_t limit_ns)
{
    uint64_t next = wfi_sim_next_event(sim), deadline = wfi_fibers_next_deadline(sim->fibers);
    if (deadline < next)
        next = deadline;
    if (next == WFI_NEVER)
        return WEFT_ERR_DEADLOCK;
    if (next > limit_ns) {
        sim->now_ns = limit_ns > sim->now_ns ? limit_ns : sim->now_ns;
        return WEFT_ERR_TIMEOUT;
    }
    if (next > sim->now_ns)
        sim->now_ns = next;
    wfi_fibers_expire(sim->fibers);
    wfi_sim_fire_due(sim);
    return sim->broken;
}

weft_status weft_sim_run(weft_sim *sim, int64_t limit_ms)
{
    WFI_CHECK_HANDLE(sim);
    if (!sim)
        return wfi_refuse_null("weft_sim_run", "the simulation");
    if (limit_ms < WEFT_FOREVER)
        return wfi_refuse(WEFT_ERR_INVALID, "weft_sim_run: limit_ms is %lld: 0, more, or WEFT_FOREVER",
                          (long long)limit_ms);
    if (sim->running || wfi_fiber_current())
        return wfi_refuse(WEFT_ERR_STATE,
                          "weft_sim_run: a program of a simulation called it: let the main program run it");
    uint64_t limit_ns = wfi_deadline_after(0, limit_ms);
    weft_status status = sim->broken;
    sim->running = true;
    drain(sim);
    while (status == WEFT_OK && !wfi_list_empty(&sim->programs)) {
        status = step(sim, limit_ns);
        drain(sim);
    }
    sim->running = false;
    return status;
}

/* ---- For programs and for weft's layers ------------------------------------------------------------------------ */

uint64_t weft_sim_now(const weft_sim *sim)
{
    WFI_CHECK_HANDLE(sim);
    return sim ? sim->now_ns : 0;
}

void weft_sim_sleep(weft_sim *sim, uint64_t ns)
{
    WFI_CHECK_HANDLE(sim);
    wfi_fiber *fiber = wfi_fiber_current();
    if (!fiber || !sim || fiber->clock != &sim->clock)
        return; /* not a program of this world */
    uint64_t deadline = ns < WFI_NEVER - sim->now_ns ? sim->now_ns + ns : WFI_NEVER;
    do {
        wfi_fiber_wait(fiber, deadline);
    } while (sim->now_ns < deadline);
}

uint64_t weft_sim_trace_hash(const weft_sim *sim)
{
    WFI_CHECK_HANDLE(sim);
    return sim ? sim->trace : 0;
}

wfi_fibers *wfi_sim_fibers(weft_sim *sim)
{
    return sim->fibers;
}

const wfi_clock *wfi_sim_clock(weft_sim *sim)
{
    return &sim->clock;
}

uint64_t wfi_sim_machine(const weft_sim *sim, int rank)
{
    return 1 + (uint64_t)(rank / sim->options.ranks_per_host);
}
