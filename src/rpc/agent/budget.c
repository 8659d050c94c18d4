/* SPDX-License-Identifier: Apache-2.0 */
/* budget.c - limits the memory that other workers can make this one hold; see budget.h. */
#include "rpc/agent/budget.h"

#define SHORT_ERROR 512             /* bytes charged for the error that replaces an answer which is too large */
#define REFUSALS ((size_t)64 << 10) /* extra bytes, so that a small budget leaves memory for refusals with a text */

static uint64_t budget_of(const weft_agent *agent)
{
    size_t bytes = agent->options.values.memory_budget_bytes;
    return bytes ? bytes : UINT64_MAX / 2;
}

static void charge_bytes(wfi_charge *charge, uint64_t bytes)
{
    charge->whole += bytes;
    charge->agent->held_bytes += bytes;
}

void wfi_budget_charge(wfi_charge *charge, uint64_t bytes)
{
    charge->call += bytes;
    charge_bytes(charge, bytes);
}

static bool fits(uint64_t limit, uint64_t held, uint64_t bytes)
{
    return held <= limit && bytes <= limit - held;
}

static weft_status refuse(const wfi_charge *charge, uint64_t bytes, bool never, char *problem, size_t room)
{
    weft_agent *agent = charge->agent;
    uint64_t budget = budget_of(agent), held = agent->held_bytes;
    snprintf(problem, room, "%llu bytes %s: %llu of a memory budget of %llu are held (WEFT_MEMORY_BUDGET sets it)",
             (unsigned long long)bytes, never ? "will never fit" : "do not fit now", (unsigned long long)held,
             (unsigned long long)budget);
    agent->stats.calls_refused += !never;
    return never ? WEFT_ERR_TOO_LARGE : WEFT_ERR_BUSY;
}

weft_status wfi_budget_admit(wfi_charge *charge, uint64_t bytes, char *problem, size_t room)
{
    weft_agent *agent = charge->agent;
    uint64_t budget = budget_of(agent);
    uint64_t limit = bytes <= WFI_MESSAGE_MAX ? budget + budget / 8 : budget;
    wfi_assert_held(wfi_net_mutex(agent->net));
    if (!fits(limit, agent->held_bytes, bytes))
        return refuse(charge, bytes, bytes > limit || charge->whole > limit - bytes, problem, room);
    charge_bytes(charge, bytes);
    return WEFT_OK;
}

weft_status wfi_budget_admit_reserved(wfi_charge *charge, uint64_t bytes, uint64_t allowance, char *problem,
                                      size_t room)
{
    weft_agent *agent = charge->agent;
    uint64_t budget = budget_of(agent), most = allowance > budget ? allowance : budget;
    wfi_assert_held(wfi_net_mutex(agent->net));
    if (!fits(budget, agent->held_bytes, bytes) && !fits(most, agent->reserved_bytes, bytes))
        return refuse(charge, bytes, bytes > most, problem, room);
    charge_bytes(charge, bytes);
    charge->reserved += bytes;
    agent->reserved_bytes += bytes;
    return WEFT_OK;
}

bool wfi_budget_has_reserved_room(const weft_agent *agent, uint64_t bytes)
{
    return fits(budget_of(agent), agent->held_bytes, bytes) || fits(budget_of(agent), agent->reserved_bytes, bytes);
}

size_t wfi_budget_take_over(wfi_charge *charge, size_t bytes)
{
    size_t taken = bytes < charge->reserved ? bytes : charge->reserved;
    charge->whole -= taken;
    charge->reserved -= taken;
    return taken;
}

void wfi_budget_release_reserved(weft_agent *agent, size_t bytes)
{
    wfi_assert_held(wfi_net_mutex(agent->net));
    agent->held_bytes -= bytes;
    agent->reserved_bytes -= bytes;
}

weft_status wfi_budget_admit_work(weft_agent *agent, uint64_t bytes, bool always, char *problem, size_t room)
{
    uint64_t budget = budget_of(agent);
    wfi_assert_held(wfi_net_mutex(agent->net));
    if (!always && !fits(budget, agent->work_bytes, bytes)) {
        snprintf(problem, room,
                 "passes of other workers use %llu bytes of a memory budget of %llu, one more would use %llu "
                 "(WEFT_MEMORY_BUDGET sets it)",
                 (unsigned long long)agent->work_bytes, (unsigned long long)budget, (unsigned long long)bytes);
        return WEFT_ERR_BUSY;
    }
    agent->held_bytes += bytes;
    agent->work_bytes += bytes;
    return WEFT_OK;
}

void wfi_budget_release_work(weft_agent *agent, size_t bytes)
{
    wfi_assert_held(wfi_net_mutex(agent->net));
    agent->held_bytes -= bytes;
    agent->work_bytes -= bytes;
}

static void release_charge(wfi_charge *charge, size_t bytes)
{
    charge->whole -= bytes;
    charge->agent->held_bytes -= bytes;
}

static void release_reserved(wfi_charge *charge)
{
    wfi_budget_release_reserved(charge->agent, wfi_budget_take_over(charge, charge->reserved));
}

void wfi_budget_release_arguments(wfi_charge *charge)
{
    release_reserved(charge);
    release_charge(charge, charge->whole - charge->call);
}

bool wfi_budget_keep(wfi_charge *charge, uint64_t bytes)
{
    weft_agent *agent = charge->agent;
    wfi_rpc_peer *peer = &agent->peers[charge->from];
    bool too_much = peer->kept_count && peer->kept_bytes + bytes > budget_of(agent);
    charge->kept = too_much && bytes > SHORT_ERROR ? SHORT_ERROR : bytes;
    peer->kept_count++;
    peer->kept_bytes += charge->kept;
    agent->held_bytes += charge->kept;
    return !too_much;
}

bool wfi_budget_is_exhausted(const weft_agent *agent)
{
    /* The bytes of passes have their own limits. They must not cause the refusal of calls that complete a pass. */
    return wfi_budget_unreserved(agent) > budget_of(agent) / 4 * 5 + REFUSALS;
}

void wfi_budget_keep_item(weft_agent *agent, int64_t bytes)
{
    agent->held_bytes += (size_t)bytes;
}

void wfi_budget_release(wfi_charge *charge)
{
    weft_agent *agent = charge->agent;
    wfi_rpc_peer *peer = &agent->peers[charge->from];
    release_reserved(charge);
    release_charge(charge, charge->whole);
    charge->call = 0;
    if (!charge->kept)
        return;
    peer->kept_count--;
    peer->kept_bytes -= charge->kept;
    agent->held_bytes -= charge->kept;
    charge->kept = 0;
}
