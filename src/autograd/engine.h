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
 * answered, the one recorded last first, by slot, so that the order, and with it every bit of a sum, depends on the recording alone (where threads recorded at once: on how they
 * interleaved). A consumer
 * answers each of its inputs once: by a gradient or by none. What got no gradient at all does not run and passes none on.
 *
 * A pass that goes on at other workers (src/dist) is run in parts instead: wfi_pass_await for each node that is also to
 * be answered from outside, wfi_pass_begin, then wfi_pass_answer as these answers come, and wfi_pass_work until nothing
 * is ready. In such a pass shares may come out of order; with `ordered` those of one tensor wait for each other and are
 * added in the order of their nodes' paths (tape_path.h).
 *
 * THREADS. A pass is one thread's. Counts and sums are the pass's own, so any number of passes may go over one graph at once, on
 * threads of their own; those that do not retain use up the nodes that they run. No lock is held while a node or a hook runs.
 */
#ifndef WFI_ENGINE_H
#define WFI_ENGINE_H

#include "autograd/gradient.h"
#include "autograd/graph.h"
#include "autograd/hooks.h"
#include "base/map.h"

#include <weft/future.h>

typedef struct wfi_pass {
    bool retain;       /* keep what the nodes saved */
    weft_hooks *hooks; /* or NULL; borrowed */
    wfi_give_fn give;  /* once a pass for each leaf */
    void (*end)(void *arg, wfi_node *node,
                weft_tensor *gradient); /* of nodes that are ends; takes over the reference; NULL: none */
    void *arg;
    bool ordered;
    weft_error *error;         /* the first; referenced */
    const char *last_operator; /* that has run, or runs; NULL: none yet */

    /* Below: the engine's. */
    struct wfi_pass_entry **pages; /* by slot */
    size_t page_count;
    wfi_pointers roots;
    wfi_pointers todo;  /* while counting: nodes whose inputs are still to be counted */
    wfi_pointers ready; /* a heap; the greatest slot first */
    wfi_pointers waits; /* weft_future of hooks, referenced */
    bool hooks_ended;   /* wfi_pass_end_hooks was called */
    bool absent_given;  /* wfi_pass_give_absent was called */
    wfi_map hooked;     /* id of a leaf whose hooks have had its sum -> the pass */
    wfi_map held;       /* ordered: slot + 1 -> shares that wait for others of the same tensor */
} wfi_pass;

/* Adds `gradient` (contiguous, of the result's shape and dtype) to what the pass begins with; takes over its reference. */
void wfi_pass_root(wfi_pass *pass, wfi_node *node, uint32_t result, weft_tensor *gradient);
void wfi_pass_run(wfi_pass *pass); /* to the end, or the first failure */
void wfi_pass_end(wfi_pass *pass); /* drops all, the error too */
/* One more consumer of `node`'s result 0, which answers by wfi_pass_answer. Before wfi_pass_begin. */
void wfi_pass_await(wfi_pass *pass, wfi_node *node);
void wfi_pass_begin(wfi_pass *pass);
/* The answer of such a consumer: a gradient as for wfi_pass_root, whose reference it takes over, or NULL. */
void wfi_pass_answer(wfi_pass *pass, wfi_node *node, weft_tensor *gradient);
/* The bytes of the pass's own records, without gradients: at most, over a graph of `slots` results; and of a pass that
 * has begun. */
size_t wfi_pass_most_bytes(uint64_t slots);
size_t wfi_pass_bytes(const wfi_pass *pass);
void wfi_pass_work(wfi_pass *pass); /* until nothing is ready, or the first failure */
/* All leaves here have had their hooks, or the pass has failed: says so to the hooks, once. */
void wfi_pass_end_hooks(wfi_pass *pass);
/* A pass that does not even begin, for that reason, as its tape has failed: says so to the hooks (or NULL). */
void wfi_pass_decline(weft_hooks *hooks, const weft_error *why);
void wfi_pass_await_hooks(wfi_pass *pass); /* when all is answered: until what hooks began is complete */
/* When that is complete, once: leaves that got no sum here have what their hooks give in its place. */
void wfi_pass_give_absent(wfi_pass *pass);
bool wfi_pass_meets(const wfi_pass *pass, const wfi_node *node); /* whether the pass, begun, may bring it a gradient */
/* Keeps a failure unless there is one. */
void wfi_pass_fail(wfi_pass *pass, weft_status code, const char *format, ...) WEFT_PRINTF(3, 4);

#endif
