/* SPDX-License-Identifier: Apache-2.0 */
/*
 * leaks.c - finds references that are left when a job ends normally: handles of this worker that were never released,
 * and values that others still hold. By then nothing is outstanding anywhere. Only threads that still release the last
 * call may need a moment.
 */
#include "rpc/refs/internal.h"

#include <stdio.h>

#define NAMES_MAX 5     /* references named in the log; the others are only counted */
#define MOMENT_TRIES 50 /* of a millisecond each */

typedef struct leak_count {
    size_t references, values, handles, forks;
    char names[NAMES_MAX][96];
    size_t named;
} leak_count;

static char *next_line(leak_count *count)
{
    return count->named < NAMES_MAX ? count->names[count->named++] : NULL;
}

static void count_value(leak_count *count, const wfi_owned *owned)
{
    size_t forks = 0;
    int holder = -1;
    WFI_FOR_LIST (const wfi_fork, fork, &owned->forks, of_value) {
        holder = wfi_peer_rank(fork->peer);
        forks++;
    }
    if (!forks && !owned->handles)
        return; /* held only by the call that makes it */
    count->values++;
    count->handles += owned->handles;
    count->forks += forks;
    char *line = next_line(count);
    if (line && forks)
        snprintf(line, sizeof(count->names[0]),
                 "value %u:%llu of this worker: %zu handles here, %zu elsewhere (rank %d)", owned->name.creator,
                 (unsigned long long)owned->name.number, owned->handles, forks, holder);
    else if (line)
        snprintf(line, sizeof(count->names[0]), "value %u:%llu of this worker: %zu handles here", owned->name.creator,
                 (unsigned long long)owned->name.number, owned->handles);
}

static size_t count_left(weft_agent *agent, leak_count *count)
{
    size_t cursor = 0;
    *count = (leak_count){0};
    wfi_net_lock(agent->net);
    for (wfi_owned *owned; (owned = wfi_map_next(&wfi_refs_of(agent)->owned, &cursor, NULL));)
        for (; owned; owned = owned->next)
            count_value(count, owned);
    WFI_FOR_LIST (const weft_rref, rref, &wfi_refs_of(agent)->references, link) {
        char *line = next_line(count);
        count->references++;
        if (line)
            snprintf(line, sizeof(count->names[0]), "a handle to value %u:%llu of rank %u", rref->name.creator,
                     (unsigned long long)rref->name.number, rref->name.owner);
    }
    wfi_net_unlock(agent->net);
    return count->references + count->values;
}

static void let_others_go_on(weft_agent *agent)
{
    if (agent->options.values.no_threads) {
        wfi_agent_progress(agent, 1);
        return;
    }
    weft_future *never = wfi_agent_future(agent);
    weft_status status = never ? wfi_future_wait(never, 1) : WEFT_OK;
    (void)status; /* it times out */
    weft_future_unref(never);
}

size_t wfi_rrefs_report_leaks(weft_agent *agent)
{
    leak_count count;
    if (weft_agent_status(agent))
        return 0; /* out of the job: other workers ended without dropping their references */
    for (int i = 0; count_left(agent, &count) && i < MOMENT_TRIES; i++)
        let_others_go_on(agent);
    wfi_net_lock(agent->net);
    size_t left = wfi_refs_of(agent)->leaked_forks;
    wfi_net_unlock(agent->net);
    size_t total = count.references + count.values + left;
    if (!total)
        return 0;
    wfi_agent_log(
        agent, WEFT_LOG_WARN, 0,
        "remote references were left at the end: %zu handles to values of others; %zu values here, with %zu handles "
        "here and %zu elsewhere; %zu handles of workers that left before",
        count.references, count.values, count.handles, count.forks, left);
    for (size_t i = 0; i < count.named; i++)
        wfi_agent_log(agent, WEFT_LOG_WARN, 0, "left: %s", count.names[i]);
    return total;
}
