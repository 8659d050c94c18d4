/* SPDX-License-Identifier: Apache-2.0 */
/*
 * component.h - the parts of an agent: the caller's side, the callee's side, references, groups, batches, observation.
 *
 * Each part is a component: a table of functions that are called when something happens to the agent.
 * src/rpc/components.c lists the tables, and the functions are called in the order of that list. A NULL entry is
 * skipped. Functions marked [agent lock] are called with the agent's lock held, all others without it.
 */
#ifndef WFI_COMPONENT_H
#define WFI_COMPONENT_H

#include "net/net.h"
#include "value/wire.h"

#include <weft/agent.h>
#include <weft/rpc.h>

#include <stdio.h>

#define WFI_TAKES(type) (UINT64_C(1) << (type))

/* Serves the calls of one function in batches; rpc/server/server.h has wfi_runner_ops. The component's struct embeds
 * it. */
typedef struct wfi_runner {
    const struct wfi_runner_ops *ops;
} wfi_runner;

/* Indices of the components' data in agent->state. */
enum { WFI_STATE_REFS, WFI_STATE_GROUPS, WFI_STATE_CONTEXTS, WFI_STATE_OPTIMIZERS, WFI_STATES };

struct wfi_json; /* base/text/json_writer.h */

/* A log line under construction: the things that weft_agent_close waits for. */
typedef struct wfi_awaits {
    char text[640];
    size_t used;
    size_t kinds; /* the number of kinds in it */
    uint64_t now_ns;
} wfi_awaits;

/* Appends one kind of thing to the line; text that does not fit is cut off. */
void wfi_awaits_add(wfi_awaits *out, const char *format, ...) WEFT_PRINTF(2, 3);

typedef struct wfi_component {
    uint64_t messages; /* WFI_TAKES of each type of message that `message` takes */

    /* ---- Opening ---- */
    /* Called before net is open; registers weft's own functions. */
    weft_status (*open)(weft_agent *agent, weft_error **error);
    /* Called when this worker has its rank; others may already send calls. */
    weft_status (*begin)(weft_agent *agent, weft_error **error);

    /* ---- Registering functions ---- */
    /* Checks a function and its batch options; *error names the faulty field and its value. */
    weft_status (*check)(const weft_agent *agent, const weft_function *function, weft_error **error);
    /* Makes a runner for the function. Does not set *out if the component does not serve it. */
    weft_status (*runner)(weft_agent *agent, const weft_function *function, wfi_runner **out);
    void (*registered)(wfi_runner *runner);  /* from now on the function can be called */
    void (*free_runner)(wfi_runner *runner); /* registering failed, or the agent is freed */

    /* ---- While it is open. [agent lock] ---- */
    void (*message)(weft_agent *agent, wfi_peer *from, uint8_t type, wfi_reader *reader);
    void (*peer_gone)(weft_agent *agent, wfi_peer *peer, weft_status why, const char *text);
    void (*peer_joined)(weft_agent *agent, wfi_peer *peer);
    /* The peer has passed a descriptor (wfi_peer_pass), which is closed when all components have been called. */
    void (*passed)(weft_agent *agent, wfi_peer *from, int fd, const uint8_t *data, size_t size);
    void (*peer_ending)(weft_agent *agent); /* wfi_peer_is_ending of a peer has changed */
    void (*synced)(weft_agent *agent);      /* a sync with the store was answered (wfi_net_sync) */
    void (*unreachable)(weft_agent *agent, wfi_peer *peer, const char *text); /* alive, but cannot be reached */
    void (*self_gone)(weft_agent *agent, weft_status why, const char *text);  /* this worker is out of the job */
    /* All threads of the executor wait: refuses the queued calls, and returns their number. */
    size_t (*refuse_queued)(weft_agent *agent);

    void (*dump)(weft_agent *agent, struct wfi_json *j); /* for weft_debug_dump: adds items to the object */
    /* Writes Prometheus text; `who` holds the labels of every line. Not locked. WEFT_ERR_MEMORY. */
    weft_status (*metrics)(weft_agent *agent, FILE *to, const char *who);

    /* ---- The graceful end ---- */
    /* weft_agent_close or weft_agent_serve has begun. [agent lock] */
    void (*closing)(weft_agent *agent);
    bool (*busy)(weft_agent *agent); /* whether something is outstanding, here or at others. [agent lock] */
    /* Describes the things that `busy` and `serves` find: one wfi_awaits_add for each kind. [agent lock] */
    void (*awaits)(weft_agent *agent, wfi_awaits *out);
    bool (*serves)(weft_agent *agent);  /* whether other workers still need this one in the job. [agent lock] */
    size_t (*leaks)(weft_agent *agent); /* logs objects that the user has not released; returns their number */

    /* ---- Any end, in this order ---- */
    void (*flush)(weft_agent *agent); /* weft_agent_stop: waits a short time until replies have reached others */
    void (*hide)(weft_agent *agent);  /* ends the thread that writes the metrics, and removes its files */
    void (*end)(weft_agent *agent);   /* fails the component's operations. [agent lock] */
    void (*fail)(weft_agent *agent, weft_status why, const char *text); /* fails all outstanding calls. [agent lock] */
    void (*drain)(weft_agent *agent); /* net has stopped, the executor has not: waits for the component's tasks */
    void (*close)(weft_agent *agent); /* net and executor are gone, or opening failed: frees the component's data */
    void (*free)(weft_agent *agent);  /* the last reference to the agent is gone */
} wfi_component;

extern const wfi_component *wfi_components[]; /* ends with NULL: src/rpc/components.c */
/* Appends a component of a layer above rpc. Constructors call it, before any agent is opened. Their priorities give the
 * order of the components, which otherwise depends on the linker. */
void wfi_component_add(const wfi_component *component);
enum { WFI_JOIN_GROUPS = 201, WFI_JOIN_CONTEXTS, WFI_JOIN_REMOTE };

/* Each component that has this function, in the order of the list. */
#define WFI_FOR_COMPONENTS(component, slot)                                                                            \
    for (const wfi_component **at_ = wfi_components, *component; (component = *at_); at_++)                            \
        if (component->slot)

#endif
