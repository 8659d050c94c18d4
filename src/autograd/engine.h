/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine.h - one backward pass over a graph.
 *
 *     wfi_engine engine = {.retain = false, .give = keep_gradient, .arg = tape};
 *     wfi_engine_root(&engine, node, 0, gradient);      any number; takes over the reference
 *     wfi_engine_run(&engine);
 *     ... engine.error, or NULL
 *     wfi_engine_end(&engine);
 *
 * The pass first counts, from the roots downward, the consumers that will answer each node. Then it runs the nodes
 * whose consumers have all answered, the one recorded last (with the highest slot) first. So the order, and with it
 * every bit of a sum, depends only on the recording; if several threads recorded at once, on how they interleaved. A
 * consumer answers each of its inputs once: with a gradient or with none. A node that got no gradient at all does not
 * run, and answers its inputs with none.
 *
 * A pass that continues at other workers (src/dist) is run in parts instead: wfi_engine_await for each node that is
 * also answered from outside, wfi_engine_begin, then wfi_engine_answer as these answers arrive, and wfi_engine_work
 * until no node is ready. In such a pass shares may arrive out of order; with `ordered` the shares of one tensor
 * wait for each other and are added in the order of their nodes' paths (tape_path.h).
 *
 * THREADS. One thread uses a pass. Counts and sums belong to the pass, so any number of passes may run over one graph
 * at once, each on its own thread; those without `retain` use up the nodes that they run. No lock is held while a
 * node or a hook runs.
 */
#ifndef WFI_ENGINE_H
#define WFI_ENGINE_H

#include "autograd/gradient.h"
#include "autograd/graph.h"
#include "autograd/hooks.h"
#include "base/map.h"
#include "mem/stream.h"

#include <weft/future.h>

typedef struct wfi_engine {
    bool retain;         /* keep the tensors that the nodes saved */
    weft_hooks *hooks;   /* or NULL; borrowed */
    weft_stream *stream; /* on which GPUs compute; borrowed; NULL: the common one */
    wfi_give_fn give;    /* called once per pass for each leaf */
    /* for nodes with is_boundary; takes over the reference; NULL: none */
    void (*give_boundary)(void *arg, wfi_node *node, weft_tensor *gradient);
    void *arg;
    bool ordered;
    weft_error *error;         /* the first one; referenced */
    const char *last_operator; /* the one that runs or ran last; NULL: none yet */

    /* The following fields belong to the engine. */
    struct wfi_engine_entry **pages; /* by slot */
    size_t page_count;
    wfi_pointers roots;
    wfi_pointers todo;  /* while counting: nodes whose inputs are not counted yet */
    wfi_pointers ready; /* a heap; the highest slot first */
    wfi_pointers waits; /* weft_future of hooks, referenced */
    bool hooks_ended;   /* wfi_engine_end_hooks was called */
    bool absent_given;  /* wfi_engine_give_absent was called */
    wfi_map hooked;     /* id of a leaf whose hooks have got its sum -> the pass */
    wfi_map held;       /* ordered: slot + 1 -> shares that wait for others of the same tensor */
} wfi_engine;

/*
 * Adds `gradient` (contiguous, of the result's shape and dtype) to the initial gradients of the pass; takes over its
 * reference.
 */
void wfi_engine_root(wfi_engine *engine, wfi_node *node, uint32_t result, weft_tensor *gradient);
void wfi_engine_run(wfi_engine *engine); /* runs to the end, or to the first failure */
void wfi_engine_end(wfi_engine *engine); /* frees everything, including the error */
/* Adds a consumer of `node`'s result 0, which answers by wfi_engine_answer. Before wfi_engine_begin. */
void wfi_engine_await(wfi_engine *engine, wfi_node *node);
void wfi_engine_begin(wfi_engine *engine);
/* The answer of such a consumer: a gradient as in wfi_engine_root, whose reference it takes over, or NULL. */
void wfi_engine_answer(wfi_engine *engine, wfi_node *node, weft_tensor *gradient);
/*
 * Size of the pass's own records, without gradients: the most over a graph of `slots` results; and of a pass that has
 * begun.
 */
size_t wfi_engine_most_bytes(uint64_t slots);
size_t wfi_engine_bytes(const wfi_engine *engine);
void wfi_engine_work(wfi_engine *engine); /* runs until no node is ready, or to the first failure */
/* All leaves here have had their hooks, or the pass has failed: tells the hooks, once. */
void wfi_engine_end_hooks(wfi_engine *engine);
/* Tells the hooks (or NULL) that a pass does not begin, because its tape has failed with `why`. */
void wfi_engine_decline(weft_hooks *hooks, const weft_error *why);
void wfi_engine_await_hooks(wfi_engine *engine); /* when all is answered: waits for the operations that hooks started */
/* After that, once: leaves that got no sum here get what their hooks give instead. */
void wfi_engine_give_absent(wfi_engine *engine);
/* whether the pass, which has begun, may bring it a gradient */
bool wfi_engine_meets(const wfi_engine *engine, const wfi_node *node);
/* Keeps a failure unless there is one. */
void wfi_engine_fail(wfi_engine *engine, weft_status code, const char *format, ...) WEFT_PRINTF(3, 4);

#endif
