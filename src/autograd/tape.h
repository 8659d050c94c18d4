/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tape.h - the internals of a tape: temporaries, nodes that it has not committed to its graph yet, and gradients of
 * leaves.
 *
 * LOCKING. None: one thread at a time uses a tape. Threads share the graph (graph.h).
 * LIFETIME. The tape holds one reference to each temporary, node and gradient, until it is closed, and one to its
 * graph.
 */
#ifndef WFI_TAPE_H
#define WFI_TAPE_H

#include "autograd/gradient.h"
#include "autograd/graph.h"
#include "autograd/pointers.h"
#include "autograd/tape_path.h"
#include "base/handle.h"
#include "base/map.h"
#include "mem/stream.h"
#include "tensor/random.h"

#include <weft/hooks.h>
#include <weft/tape.h>
#include <weft/value.h>

#include <stdarg.h>

struct weft_tape {
    wfi_handle handle;
    bool record;
    weft_mode mode;
    weft_device device;        /* the device of its operators */
    weft_stream *stream;       /* referenced; NULL: the common stream of the device */
    struct wfi_checks *checks; /* that are not known to be done (checks.h) */
    weft_error *error;         /* the first one, with what a GPU reported later */
    wfi_pointers old_errors;   /* weft_error, one reference each: `error` replaced them, and programs may hold them */
    weft_tape *parent;
    wfi_tape_path *path; /* referenced; NULL: its graph is not of a distributed context */
    void *owner; /* the distributed context that has the graph; NULL: the graph is the tape's own, or its parent's */
    void (*owner_drop)(void *owner); /* when the tape closes */
    _Atomic uint64_t children;       /* of a tape without parent: number of tapes opened by it and its descendants */
    wfi_random random;               /* the next stream */

    wfi_graph *graph;         /* its own, or its parent's */
    wfi_node_list nodes;      /* not committed yet */
    wfi_map leaves;           /* tensor id -> wfi_node of the graph, borrowed: those that this tape used */
    weft_hooks *hooks;        /* referenced; or NULL */
    wfi_pointers temporaries; /* weft_tensor, one reference each */
    wfi_pointers values;      /* weft_values, one reference each */
    wfi_pointers lists;       /* arrays lent by weft_tape_grads */
    wfi_map gradients;        /* tensor id -> weft_gradient */
};

/* Makes the tape fail: the options of its opening are of a newer weft (base/text/sized.h). Returns the tape. */
weft_tape *wfi_tape_newer(weft_tape *tape);
/* A tape that records into `graph`, to which it takes a reference; options->parent is NULL. NULL: no memory. */
weft_tape *wfi_tape_open_in(wfi_graph *graph, const weft_tape_options *options);

void *wfi_tape_owner(const weft_tape *tape); /* of the tape, or of its nearest parent that has one */

/* True if the tape exists and has not failed: operators run only then. */
bool wfi_tape_ready(const weft_tape *tape);
/* Records a failure unless there is one. `what`: the operator, or NULL. */
void wfi_tape_fail(weft_tape *tape, weft_status code, const char *what, const char *format, ...) WEFT_PRINTF(4, 5);
void wfi_tape_fail_v(weft_tape *tape, weft_status code, const char *what, const char *format, va_list args)
    WEFT_PRINTF(4, 0);
/* Makes a child's failure the parent's; out of memory if the child could not be made. */
void wfi_tape_copy_error(const weft_tape *child, weft_tape *parent);
void wfi_tape_fail_memory(weft_tape *tape, const char *what);

/* Whether `x` is the newest temporary, and only the tape refers to it: then no operator has kept its elements. */
bool wfi_tape_may_overwrite(const weft_tape *tape, const weft_tensor *x);

/*
 * Gives `values` (its reference) to the tape, which lends the contents until it closes. Returns none if the tape has
 * failed.
 */
weft_args wfi_tape_take_values(weft_tape *tape, weft_values *values);

/* A random stream that no other operator of this tape uses. */
wfi_random wfi_tape_random(weft_tape *tape);

/*
 * The node that made `x` in the tape's graph; for a leaf that requires a gradient its node, made at its first use;
 * NULL for a constant. Borrowed. Without memory the tape fails.
 */
wfi_node *wfi_tape_node_of(weft_tape *tape, const weft_tensor *x);
/*
 * Makes a node, in the tape's list, for an operator on `inputs` (NULLs among them are skipped), which it sets; it
 * also sets counts.inputs. Borrowed. NULL: nothing has to be recorded, or the tape failed.
 */
wfi_node *wfi_tape_add_node(weft_tape *tape, const wfi_node_type *type, wfi_node_counts counts, weft_tensors inputs);
/* Gives the tape's nodes to its graph: before a pass, and before another thread uses its tensors. */
void wfi_tape_commit(weft_tape *tape);

/* Adds `sum`, which it empties, to a leaf's gradient. */
weft_status wfi_tape_add_gradient(weft_tape *tape, uint64_t leaf, weft_gradient *sum);

#endif
