/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hooks.h - functions of a component (component.h) that are called at each station of a call, for metrics and traces.
 *
 * A call of ours to another worker is started, sent, replied to and settled. A call that is served here, for another
 * worker or for ourselves, arrives, runs, is answered and ends. [agent lock]: called with the agent's lock held.
 */
#ifndef WFI_CALL_HOOKS_H
#define WFI_CALL_HOOKS_H

#include <weft/base.h>

struct wfi_request;
struct weft_call;

/* When what happened to a call (or to a backward pass here), and where it belongs in a trace. Times are of the agent's clock; 0: not yet. */
typedef struct wfi_span {
    uint64_t trace, id, parent; /* 0: not traced. A trace is made by the first call that is not within another */
    uint64_t begun_ns;          /* ours: started; served: its first message came; pass: this worker's part began */
    uint64_t ready_ns;          /* ours: its message was handed to net; served: the arguments are whole */
    uint64_t run_ns;            /* ours: the reply came; served: the handler began; pass: its step began */
    uint64_t done_ns;           /* served: finished; pass: its step ended */
    uint64_t left_ns;           /* when the caller sent it. Ours: as other hosts understand it; served: by our clock */
    uint32_t track;             /* its line in the picture of the trace; 0: none */
} wfi_span;

/* A slot that is NULL has nothing to do. */
typedef struct wfi_call_hooks {
    /* ---- Calls of ours to others. [agent lock] ---- */
    /* Before its header is written, which carries its trace, id and left_ns. */
    void (*started)(struct wfi_request *call);
    void (*sent)(struct wfi_request *call);
    void (*replied)(struct wfi_request *call);                     /* results may have to be pulled yet */
    void (*settled)(struct wfi_request *call, weft_status status); /* its future completes */

    /* ---- Calls served here. [agent lock] but where stated ---- */
    /* Its header is read: trace, parent and left_ns (of the caller's clock) are in its span. */
    void (*arrived)(struct weft_call *call);
    void (*running)(struct weft_call *call); /* not locked: by the thread that runs the handler */
    void (*answered)(struct weft_call *call);
    void (*ended)(struct weft_call *call); /* a call of another worker: its reply was sent, or never will be */
    /* A call to ourselves: its future completes, perhaps before `answered`. */
    void (*settled_here)(struct weft_call *call, weft_status status);
} wfi_call_hooks;

/* WFI_TELL_HOOKS(slot, arguments): calls this hook of each component that has it. */
#define WFI_TELL_HOOKS(slot, ...)                                                                                      \
    do {                                                                                                               \
        for (const wfi_component **at_ = wfi_components; *at_; at_++)                                                  \
            if ((*at_)->hooks && (*at_)->hooks->slot)                                                                  \
                (*at_)->hooks->slot(__VA_ARGS__);                                                                      \
    } while (0)

#endif
