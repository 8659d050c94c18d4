/* SPDX-License-Identifier: Apache-2.0 */
/*
 * observe.h - where calls report what happens to them: histograms (weft/metrics.h), traces, log lines with rank and call id.
 *
 * Each hook costs next to nothing where nobody asked for traces. All [agent lock] unless stated.
 */
#ifndef WFI_OBSERVE_H
#define WFI_OBSERVE_H

#include <weft/metrics.h>

struct wfi_outcall;
struct weft_call;
typedef struct wfi_observer wfi_observer;

/* What a call carries for it. Times are of the agent's clock; 0: not yet. */
typedef struct wfi_span {
    uint64_t trace, id, parent; /* 0: not traced. A trace is made by the first call that is not within another */
    uint64_t begun_ns;          /* ours: started; served: its first message came */
    uint64_t ready_ns;          /* ours: its message was handed to net; served: the arguments are whole */
    uint64_t run_ns;            /* served: the handler began */
} wfi_span;

/* NULL options fields mean off. WEFT_ERR_MEMORY, WEFT_ERR_IO (trace file), WEFT_ERR_SYSTEM (port). Not locked; while opening, after net. */
weft_status wfi_observer_open(weft_agent *agent, weft_error **error);
void wfi_observer_close(weft_agent *agent); /* after the executor and net have ended. Not locked */

void wfi_observe_started(struct wfi_outcall *call); /* before its header is written: gives it trace and span id */
void wfi_observe_sent(struct wfi_outcall *call);
void wfi_observe_completed(struct wfi_outcall *call, weft_status status);
void wfi_observe_arrived(struct weft_call *call); /* header read, trace and parent span set in call->span */
void wfi_observe_ready(struct weft_call *call);   /* also for calls to ourselves */
void wfi_observe_running(struct weft_call *call); /* not locked: by the thread that runs the handler */
void wfi_observe_finished(struct weft_call *call, weft_status status);

#endif
