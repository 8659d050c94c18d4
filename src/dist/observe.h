/* SPDX-License-Identifier: Apache-2.0 */
/*
 * observe.h - counts of contexts and passes (docs/metrics.md), and the spans of passes in a trace.
 *
 * The counts are always kept; the clock is read once at each end of a pass. The functions take the counts' own lock,
 * which may be taken with or without the agent's lock held; functions that write spans are not locked.
 */
#ifndef WFI_DIST_OBSERVE_H
#define WFI_DIST_OBSERVE_H

#include "base/histogram.h"
#include "base/mutex.h"

#include <weft/rpc.h>

#include <stdio.h>

struct wfi_pass;

enum { WFI_PASS_AT_ROOT, WFI_PASS_AT_OTHER, WFI_PASS_PLACES };
enum { WFI_PASS_SENT, WFI_PASS_RECEIVED, WFI_PASS_WAYS };

typedef struct wfi_dist_numbers {
    /* by the place of this worker in the pass */
    uint64_t started[WFI_PASS_PLACES], well[WFI_PASS_PLACES], failed[WFI_PASS_PLACES];
    uint64_t undone, steps;
    uint64_t messages[WFI_PASS_WAYS], gradients[WFI_PASS_WAYS], bytes[WFI_PASS_WAYS];
} wfi_dist_numbers;

typedef struct wfi_dist_counts {
    wfi_mutex lock;
    wfi_dist_numbers numbers;
    wfi_histogram seconds[WFI_PASS_PLACES]; /* of all passes that have ended here */
} wfi_dist_counts;

void wfi_dist_counts_init(wfi_dist_counts *counts);
void wfi_dist_counts_fini(wfi_dist_counts *counts);

/* The call in which the pass begins here: the pass's span is below the call's. */
void wfi_pass_observe_within(struct wfi_pass *pass, const weft_call *call);
void wfi_pass_observe_begin(struct wfi_pass *pass);
void wfi_pass_observe_end(struct wfi_pass *pass, weft_status status); /* no-op if it never began here */
/* A message of the pass, with or without gradients, was sent or has arrived; `way`: WFI_PASS_SENT, _RECEIVED. */
void wfi_pass_observe_message(struct wfi_pass *pass, int way, weft_tensors gradients);
/* `count` optimizers have stepped here with the pass, from `began_ns` until now. */
void wfi_pass_observe_steps(struct wfi_pass *pass, size_t count, uint64_t began_ns);
uint64_t wfi_pass_observe_now(const struct wfi_pass *pass); /* by the agent's clock */
/* It had ended well here, and has failed elsewhere. */
void wfi_pass_observe_undone(const struct wfi_pass *pass);

weft_status wfi_contexts_write_metrics(weft_agent *agent, FILE *to, const char *who); /* for the component */

#endif
