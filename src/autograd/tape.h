/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tape.h - the inside of a tape: temporaries, the nodes of the graph, leaves and their gradients.
 *
 * LOCKING. None: one thread at a time uses a tape. Other threads can meet only a node of it, through a tensor that was
 * kept; they touch the node's atomic count and its tape's id, and nothing else.
 * LIFETIME. The tape holds one reference to each temporary, node and gradient, until it is closed.
 */
#ifndef WFI_TAPE_H
#define WFI_TAPE_H

#include "autograd/node.h"
#include "base/map.h"
#include "tensor/random.h"

#include <weft/tape.h>

#include <stdarg.h>

/* A growing array of pointers. */
typedef struct wfi_pointers {
    void **items;
    size_t count, capacity;
} wfi_pointers;

struct weft_tape {
    uint64_t id;
    bool record;
    weft_error *error; /* the first */
    weft_tape *parent;
    uint64_t children; /* of a tape without parent: how many it and its descendants opened */
    wfi_random random; /* the next stream */

    wfi_pointers temporaries; /* weft_tensor, one reference each */
    wfi_pointers nodes;       /* wfi_node, one reference each, by ascending sequence (but for what children left) */
    wfi_pointers lists;       /* arrays lent by weft_tape_grads */
    wfi_map leaves;           /* tensor id -> wfi_node, borrowed from nodes */
    wfi_map gradients;        /* tensor id -> weft_tensor, one reference */
};

bool wfi_pointers_push(wfi_pointers *list, void *item); /* false: no memory */

/* True if the tape exists and has not failed: operators go on only then. */
bool wfi_tape_ready(const weft_tape *tape);
/* Keeps a failure unless there is one. `what`: the operator, or NULL. */
void wfi_tape_fail(weft_tape *tape, weft_status code, const char *what, const char *format, ...) WEFT_PRINTF(4, 5);
void wfi_tape_fail_v(weft_tape *tape, weft_status code, const char *what, const char *format, va_list args)
    WEFT_PRINTF(4, 0);
/* A child's failure becomes the parent's; out of memory if the child was not even made. */
void wfi_tape_pass_error(const weft_tape *child, weft_tape *parent);
void wfi_tape_fail_memory(weft_tape *tape, const char *what);

/* A random stream that no other operator of this tape uses. */
wfi_random wfi_tape_random(weft_tape *tape);

/*
 * The node that made `x` on this tape or an ancestor; for a leaf that wants a gradient its node, made at first sight; NULL
 * for a constant. Borrowed. Without memory the tape fails.
 */
wfi_node *wfi_tape_node_of(weft_tape *tape, weft_tensor *x);
/* A new node, in the tape's list; borrowed. NULL: the tape failed. */
wfi_node *wfi_tape_add_node(weft_tape *tape, const wfi_node_type *type, size_t input_count);

/* Adds `gradient` (borrowed) to a leaf's. `aliased`: others hold it, so it must be copied to be kept. */
weft_status wfi_tape_add_gradient(weft_tape *tape, uint64_t leaf, weft_tensor *gradient, bool aliased);

#endif
