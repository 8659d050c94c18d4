/* SPDX-License-Identifier: Apache-2.0 */
/*
 * component.h - what an agent is made of: the caller's side, the callee's side, references, groups, batches, observation. The agent
 * knows none of them. Each gives a table of what it does when something happens to the agent, and src/rpc/components.c lists the tables.
 *
 * They hear of everything in the order of that list. A slot that is NULL has nothing to do. [lock]: called with the agent's lock
 * held; all others are called without it.
 */
#ifndef WFI_COMPONENT_H
#define WFI_COMPONENT_H

#include "net/net.h"
#include "rpc/agent/hooks.h"
#include "value/wire.h"

#include <weft/agent.h>
#include <weft/rpc.h>

#define WFI_TAKES(type) (UINT64_C(1) << (type))

/* What serves calls of one function otherwise than one by one; rpc/server/server.h has wfi_runner_ops. It embeds this. */
typedef struct wfi_runner {
    const struct wfi_runner_ops *ops;
} wfi_runner;

/* Where components keep their own in agent->state. */
enum { WFI_STATE_REFS, WFI_STATE_GROUPS, WFI_STATES };

typedef struct wfi_component {
    uint64_t messages; /* WFI_TAKES of each type of message that `message` takes */

    /* ---- Opening ---- */
    weft_status (*open)(weft_agent *agent,
                        weft_error **error); /* nobody is heard yet; registers weft's own functions */
    weft_status (*begin)(weft_agent *agent,
                         weft_error **error); /* this worker has its rank, and others may call already */

    /* ---- Functions that are registered ---- */
    const char *(*problem)(const weft_function *function); /* with its batch options, in words; NULL: none */
    /* *out: what serves calls of the function; not set if it does not. */
    weft_status (*runner)(weft_agent *agent, const weft_function *function, wfi_runner **out);
    void (*registered)(wfi_runner *runner);  /* the function can be called from here on */
    void (*free_runner)(wfi_runner *runner); /* it was not registered after all, or the agent goes */

    /* ---- While it is open. [lock] ---- */
    void (*message)(weft_agent *agent, wfi_peer *from, uint8_t type, wfi_reader *reader);
    void (*peer_gone)(weft_agent *agent, wfi_peer *peer, weft_status why, const char *text);
    void (*peer_joined)(weft_agent *agent, wfi_peer *peer);
    void (*unreachable)(weft_agent *agent, wfi_peer *peer, const char *text); /* it lives, but nothing gets there */
    void (*self_gone)(weft_agent *agent, weft_status why, const char *text);  /* this worker is out of the job */
    size_t (*turn_away)(weft_agent *agent); /* all threads of handlers wait: refuses calls in their queue; how many */

    /* ---- The graceful end ---- */
    void (*closing)(
        weft_agent *agent); /* [lock] weft_agent_close has begun: what waits for more to come goes on without */
    bool (*busy)(weft_agent *agent);    /* [lock] has something outstanding, here or at others */
    bool (*serves)(weft_agent *agent);  /* [lock] others would miss this worker if it left the job now */
    size_t (*leaks)(weft_agent *agent); /* how many things of the user's were left; says so in the log */

    /* ---- Any end, in this order ---- */
    void (*flush)(weft_agent *agent); /* weft_agent_stop: a last moment for what is owed */
    void (*hide)(weft_agent *agent);  /* nobody outside asks any more */
    void (*end)(weft_agent *agent);   /* [lock] its own operations fail */
    void (*fail)(weft_agent *agent, weft_status why, const char *text); /* [lock] everything outstanding fails */
    void (*drain)(weft_agent *agent);                                   /* net has stopped, the executor has not */
    void (*close)(weft_agent *agent); /* neither net nor executor is there. Also where opening failed */
    void (*free)(weft_agent *agent);  /* the last reference to the agent is gone */

    const wfi_call_hooks *hooks; /* NULL: it does not look at calls */
} wfi_component;

extern const wfi_component *const wfi_components[]; /* ends with NULL: src/rpc/components.c */

/* Each component that has this slot, in their order. */
#define WFI_FOR_COMPONENTS(component, slot)                                                                            \
    for (const wfi_component *const *at_ = wfi_components, *component; (component = *at_); at_++)                      \
        if (component->slot)

#endif
