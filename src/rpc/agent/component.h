/* SPDX-License-Identifier: Apache-2.0 */
/*
 * component.h - the parts of an agent: the caller's side, the callee's side, references, groups, batches, observation.
 *
 * Each part is a component: a table of functions that are called when something happens to the agent. The agent knows
 * none of them by name; src/rpc/components.c lists the tables, and they are called in the order of that list. A slot
 * that is NULL is skipped. [agent lock]: called with the agent's lock held; all others are called without it.
 */
#ifndef WFI_COMPONENT_H
#define WFI_COMPONENT_H

#include "net/net.h"
#include "rpc/agent/hooks.h"
#include "value/wire.h"

#include <weft/agent.h>
#include <weft/rpc.h>

#include <stdio.h>

#define WFI_TAKES(type) (UINT64_C(1) << (type))

/* What serves calls of one function otherwise than one by one; rpc/server/server.h has wfi_runner_ops. It embeds
 * this. */
typedef struct wfi_runner {
    const struct wfi_runner_ops *ops;
} wfi_runner;

/* Where components keep their own in agent->state. */
enum { WFI_STATE_REFS, WFI_STATE_GROUPS, WFI_STATE_CONTEXTS, WFI_STATE_MODULES, WFI_STATE_OPTIMIZERS, WFI_STATES };

struct wfi_json; /* base/text/json_writer.h */

/* A line for the log: things that weft_agent_close waits for. */
typedef struct wfi_awaits {
    char text[640];
    size_t used;
    size_t kinds; /* the number of kinds in it */
    uint64_t now_ns;
} wfi_awaits;

/* One more kind of thing, of which `format` tells; what does not fit is cut off. */
void wfi_awaits_add(wfi_awaits *out, const char *format, ...) WEFT_PRINTF(2, 3);

typedef struct wfi_component {
    uint64_t messages; /* WFI_TAKES of each type of message that `message` takes */

    /* ---- Opening ---- */
    /* Nobody is heard yet; registers weft's own functions. */
    weft_status (*open)(weft_agent *agent, weft_error **error);
    /* This worker has its rank, and others may call already. */
    weft_status (*begin)(weft_agent *agent, weft_error **error);

    /* ---- Functions that are registered ---- */
    /* Whether it, or its batch options, are at fault; *error says which field, and what it has. */
    weft_status (*check)(const weft_agent *agent, const weft_function *function, weft_error **error);
    /* *out: what serves calls of the function; not set if it does not. */
    weft_status (*runner)(weft_agent *agent, const weft_function *function, wfi_runner **out);
    void (*registered)(wfi_runner *runner);  /* the function can be called from here on */
    void (*free_runner)(wfi_runner *runner); /* it was not registered after all, or the agent goes */

    /* ---- While it is open. [agent lock] ---- */
    void (*message)(weft_agent *agent, wfi_peer *from, uint8_t type, wfi_reader *reader);
    void (*peer_gone)(weft_agent *agent, wfi_peer *peer, weft_status why, const char *text);
    void (*peer_joined)(weft_agent *agent, wfi_peer *peer);
    void (*synced)(weft_agent *agent); /* a sync with the store was answered (wfi_net_sync) */
    void (*unreachable)(weft_agent *agent, wfi_peer *peer, const char *text); /* it lives, but nothing gets there */
    void (*self_gone)(weft_agent *agent, weft_status why, const char *text);  /* this worker is out of the job */
    /* All threads of handlers wait: refuses the calls in their queue, and returns how many. */
    size_t (*turn_away)(weft_agent *agent);

    void (*dump)(weft_agent *agent, struct wfi_json *j); /* for weft_debug_dump: items of the one object */
    /* Prometheus text; `who` are the labels of every line. Not locked. WEFT_ERR_MEMORY. */
    weft_status (*metrics)(weft_agent *agent, FILE *to, const char *who);

    /* ---- The graceful end ---- */
    /* weft_agent_close has begun: what waits for more to come (an open batch) goes on without. [agent lock] */
    void (*closing)(weft_agent *agent);
    bool (*busy)(weft_agent *agent); /* something is outstanding, here or at others. [agent lock] */
    /* Describes the things that `busy` and `serves` find: one wfi_awaits_add for each kind. [agent lock] */
    void (*awaits)(weft_agent *agent, wfi_awaits *out);
    bool (*serves)(weft_agent *agent);  /* others would miss this worker if it left the job now. [agent lock] */
    size_t (*leaks)(weft_agent *agent); /* how many things of the user's were left; says so in the log */

    /* ---- Any end, in this order ---- */
    void (*flush)(weft_agent *agent); /* weft_agent_stop: waits a moment until what is owed to others has arrived */
    void (*hide)(weft_agent *agent);  /* closes what can be asked from outside the job: the server of metrics */
    void (*end)(weft_agent *agent);   /* its own operations fail. [agent lock] */
    void (*fail)(weft_agent *agent, weft_status why, const char *text); /* all outstanding calls fail. [agent lock] */
    void (*drain)(weft_agent *agent); /* net has stopped, the executor has not: waits for its own tasks */
    void (*close)(weft_agent *agent); /* net and executor are gone, or opening failed: frees what it has */
    void (*free)(weft_agent *agent);  /* the last reference to the agent is gone */

    const wfi_call_hooks *hooks; /* NULL: it does not look at calls */
} wfi_component;

extern const wfi_component *wfi_components[]; /* ends with NULL: src/rpc/components.c */
/* One more, behind the others: of a library above rpc, before any agent is opened. */
void wfi_component_add(const wfi_component *component);

/* Each component that has this slot, in their order. */
#define WFI_FOR_COMPONENTS(component, slot)                                                                            \
    for (const wfi_component **at_ = wfi_components, *component; (component = *at_); at_++)                            \
        if (component->slot)

#endif
