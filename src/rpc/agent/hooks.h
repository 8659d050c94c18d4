/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hooks.h - functions of a component (component.h) that are called at each stage of a call, for metrics and traces.
 *
 * A call of this worker is started, sent, replied to and settled. A served call, of another worker or of this one, arrives, runs, is answered and ends. Hooks marked [agent lock] are called with the agent's lock held.
 */
#ifndef WFI_CALL_HOOKS_H
#define WFI_CALL_HOOKS_H

#include <weft/base.h>

struct wfi_request;
struct weft_call;

/* The times of a call's (or of a backward pass's) stages, and its place in a trace. Times are of the agent's clock; 0:
 * not yet. "Sent" is a call of this worker. */
typedef struct wfi_span {
    uint64_t trace, id, parent; /* 0: not traced. A call without a parent begins a trace */
    uint64_t begun_ns;          /* sent: started; served: first message arrived; pass: this worker's part began */
    uint64_t ready_ns;          /* sent: message passed to net; served: all arguments arrived */
    uint64_t run_ns;            /* sent: the reply came; served: the handler began; pass: its step began */
    uint64_t done_ns;           /* served: finished; pass: its step ended */
    uint64_t left_ns;           /* when the caller sent it. Sent: in the hosts' common time; served: by this clock */
    uint32_t track;             /* its track in the displayed trace; 0: none */
} wfi_span;

/* A hook may be NULL. */
typedef struct wfi_call_hooks {
    /* ---- Calls of this worker. [agent lock] ---- */
    /* Called before its header, with its trace, id and left_ns, is written. */
    void (*started)(struct wfi_request *call);
    void (*sent)(struct wfi_request *call);
    void (*replied)(struct wfi_request *call);                     /* results may still have to be pulled */
    void (*settled)(struct wfi_request *call, weft_status status); /* its future completes */

    /* ---- Calls served here. [agent lock], except `running` ---- */
    /* Its header was read: trace, parent and left_ns (of the caller's clock) are in its span. */
    void (*arrived)(struct weft_call *call);
    void (*running)(struct weft_call *call); /* not locked: by the thread that runs the handler */
    void (*answered)(struct weft_call *call);
    void (*ended)(struct weft_call *call); /* its reply was sent, or never will be */
} wfi_call_hooks;

/* WFI_TELL_HOOKS(slot, arguments): calls this hook in each component that has it. */
#define WFI_TELL_HOOKS(slot, ...)                                                                                      \
    do {                                                                                                               \
        for (const wfi_component **at_ = wfi_components; *at_; at_++)                                                  \
            if ((*at_)->hooks && (*at_)->hooks->slot)                                                                  \
                (*at_)->hooks->slot(__VA_ARGS__);                                                                      \
    } while (0)

#endif
