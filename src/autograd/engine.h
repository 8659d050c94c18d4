/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine.h - one backward pass over a graph.
 *
 *     wfi_pass pass = {.retain = false, .give = keep_gradient, .arg = tape};
 *     wfi_pass_root(&pass, node, 0, gradient);      any number; takes over the reference
 *     wfi_pass_run(&pass);
 *     ... pass.error, or NULL
 *     wfi_pass_end(&pass);
 *
 * It first counts, from the roots downward, the consumers that each node hears from; then runs the nodes all of whose consumers have
 * answered, the one recorded last first, so that the order, and with it every bit of a sum, depends on the recording alone. A consumer
 * answers each of its inputs once: by a gradient or by none. What got no gradient at all does not run and passes none on.
 *
 * THREADS. A pass is one thread's. Counts and sums are the pass's own, so any number of passes may go over one graph at once, on
 * threads of their own; those that do not retain use up the nodes that they run. No lock is held while a node or a hook runs.
 */
#ifndef WFI_ENGINE_H
#define WFI_ENGINE_H

#include "autograd/gradient.h"
#include "autograd/graph.h"
#include "autograd/hooks.h"

#include <weft/future.h>

/* Receives what came for a leaf, once a pass: `sum` is the callee's. */
typedef weft_status (*wfi_give_fn)(void *arg, const wfi_node *leaf, weft_gradient *sum);

typedef struct wfi_pass {
    bool retain;       /* keep what the nodes saved */
    weft_hooks *hooks; /* or NULL; borrowed */
    wfi_give_fn give;
    void *arg;
    weft_error *error; /* the first; referenced */

    /* Below: the engine's. */
    struct wfi_pass_entry **pages; /* by slot */
    size_t page_count;
    wfi_pointers roots;
    wfi_pointers todo;  /* while counting: nodes whose inputs are still to be counted */
    wfi_pointers ready; /* a heap; the greatest slot first */
    wfi_pointers waits; /* weft_future of hooks, referenced */
} wfi_pass;

/* Adds `gradient` (contiguous, of the result's shape and dtype) to what the pass begins with; takes over its reference. */
void wfi_pass_root(wfi_pass *pass, wfi_node *node, uint32_t result, weft_tensor *gradient);
void wfi_pass_run(wfi_pass *pass); /* to the end, or the first failure */
void wfi_pass_end(wfi_pass *pass); /* drops all, the error too */
/* Keeps a failure unless there is one. */
void wfi_pass_fail(wfi_pass *pass, weft_status code, const char *format, ...) WEFT_PRINTF(3, 4);

#endif
