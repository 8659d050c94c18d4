/* SPDX-License-Identifier: Apache-2.0 */
/*
 * observe.h - where calls report what happens to them: histograms (weft/metrics.h), traces, log lines with rank and call id.
 *
 * Each hook costs next to nothing where nobody asked for traces; the clock is read once a call, when a handler's answer goes
 * (all else happens in a round of net's, whose time is known). All [agent lock] unless stated.
 */
#ifndef WFI_OBSERVE_H
#define WFI_OBSERVE_H

#include <weft/log.h>
#include <weft/metrics.h>

struct wfi_outcall;
struct weft_call;
typedef struct wfi_call_observer wfi_call_observer;

/* What a call carries for it. Times are of the agent's clock; 0: not yet. */
typedef struct wfi_span {
    uint64_t trace, id, parent; /* 0: not traced. A trace is made by the first call that is not within another */
    uint64_t begun_ns;          /* ours: started; served: its first message came */
    uint64_t ready_ns;          /* ours: its message was handed to net; served: the arguments are whole */
    uint64_t run_ns;            /* ours: the reply came; served: the handler began */
    uint64_t done_ns;           /* served: finished */
    uint64_t left_ns;           /* served: when the caller sent it, by our clock */
    uint32_t lane;              /* in the trace's picture; 0: none */
} wfi_span;

/*
 * Opens before net, so that a port in use or a file that cannot be written keeps the agent from joining; begins when this worker
 * has its rank. NULL or 0 in the options mean off. WEFT_ERR_INVALID, WEFT_ERR_MEMORY, WEFT_ERR_IO (trace file),
 * WEFT_ERR_EXISTS (port taken), WEFT_ERR_SYSTEM.
 */
extern const struct wfi_component wfi_observe_component;

/* ---- Calls of ours to others ------------------------------------------------------------------------------------- */

/* Before its header is written: gives it trace and span id. */
void wfi_observe_started(struct wfi_outcall *call, uint64_t now_ns);
void wfi_observe_sent(struct wfi_outcall *call);
void wfi_observe_answered(struct wfi_outcall *call); /* its reply came; results may have to be pulled */
void wfi_observe_completed(struct wfi_outcall *call, weft_status status);

/* ---- Calls served here, for others and for ourselves (then `peer` is NULL) ---------------------------------------- */

void wfi_observe_arrived(struct weft_call *call); /* header read; trace, parent and left_ns stand in call->span */
void wfi_observe_ready(struct weft_call *call);   /* the arguments are whole, or never will be */
void wfi_observe_running(struct weft_call *call); /* not locked: by the thread that runs the handler */
void wfi_observe_finished(struct weft_call *call);
void wfi_observe_replied(struct weft_call *call); /* the last that is heard of one that another worker made */
/* A call to ourselves: its future completes, perhaps before the handler finishes. Ends the caller's span. */
void wfi_observe_settled(struct weft_call *call, weft_status status);

/* ---- What the trace's fields of a CALL message say ----------------------------------------------------------------- */

/* Our clock's time as one that other hosts understand (CLOCK_REALTIME; the simulation: the same), and back. */
uint64_t wfi_observe_shared_ns(const weft_agent *agent, uint64_t own_ns);
uint64_t wfi_observe_own_ns(const weft_agent *agent, uint64_t shared_ns);

#endif
