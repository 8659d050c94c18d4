/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hooks.h - what calls go through, told to those components that want to know (component.h). A call of ours to another worker is
 * started, sent, replied to and settled; a call that is served here, for another worker or for ourselves, arrives, runs, is answered
 * and ends. A hook costs next to nothing where there is nothing to do. [lock]: with the agent's lock held.
 */
#ifndef WFI_HOOKS_H
#define WFI_HOOKS_H

#include <weft/base.h>

struct wfi_request;
struct weft_call;

/* When what happened to a call, and where it belongs in a trace. Times are of the agent's clock; 0: not yet. */
typedef struct wfi_span {
    uint64_t trace, id, parent; /* 0: not traced. A trace is made by the first call that is not within another */
    uint64_t begun_ns;          /* ours: started; served: its first message came */
    uint64_t ready_ns;          /* ours: its message was handed to net; served: the arguments are whole */
    uint64_t run_ns;            /* ours: the reply came; served: the handler began */
    uint64_t done_ns;           /* served: finished */
    uint64_t left_ns;           /* when the caller sent it. Ours: as other hosts understand it; served: by our clock */
    uint32_t lane;              /* in the trace's picture; 0: none */
} wfi_span;

/* A slot that is NULL has nothing to do. */
typedef struct wfi_call_hooks {
    /* ---- Calls of ours to others. [lock] ---- */
    void (*started)(
        struct wfi_request *call); /* before its header is written, which carries its trace, id and left_ns */
    void (*sent)(struct wfi_request *call);
    void (*replied)(struct wfi_request *call);                     /* results may have to be pulled yet */
    void (*settled)(struct wfi_request *call, weft_status status); /* its future completes */

    /* ---- Calls served here. [lock] but where stated ---- */
    void (*arrived)(
        struct weft_call
            *call); /* its header is read: trace, parent and left_ns (of the caller's clock) are in its span */
    void (*running)(struct weft_call *call); /* not locked: by the thread that runs the handler */
    void (*answered)(struct weft_call *call);
    void (*ended)(struct weft_call *call); /* the last that is heard of one of another worker's */
    void (*settled_here)(struct weft_call *call,
                         weft_status status); /* one to ourselves: its future completes, perhaps before that */
} wfi_call_hooks;

/* WFI_TELL_HOOKS(slot, the slot's arguments): whoever wants to know hears of it. */
#define WFI_TELL_HOOKS(slot, ...)                                                                                      \
    do {                                                                                                               \
        for (const wfi_component *const *at_ = wfi_components; *at_; at_++)                                            \
            if ((*at_)->hooks && (*at_)->hooks->slot)                                                                  \
                (*at_)->hooks->slot(__VA_ARGS__);                                                                      \
    } while (0)

#endif
