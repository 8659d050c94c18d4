/* SPDX-License-Identifier: Apache-2.0 */
/*
 * checks.h - faults in the data of operators: an index outside, a wrong offset, a row that is no distribution, an
 * integer divided by 0.
 *
 * On the CPU the operator finds the fault and fails. On a GPU a kernel writes the first fault into the tape's report
 * (tensor/tasks.h), and what follows computes with harmless values, 0 for an index. After the next wait for the tape's
 * stream the fault becomes the tape's error, in the words that it has on the CPU. No operator waits.
 *
 * LOCKING. As a tape. When a tape closes before a wait, its parent takes over the checks. Without a parent a list of
 * the process does, under a lock of its own, and a fault is then only logged.
 */
#ifndef WFI_CHECKS_H
#define WFI_CHECKS_H

#include "mem/stream.h"
#include "tensor/tensor.h"

typedef struct wfi_op wfi_op;
typedef struct wfi_checks wfi_checks;

typedef enum wfi_check_kind {
    WFI_CHECK_INDEX,
    WFI_CHECK_TARGET,
    WFI_CHECK_OFFSETS,
    WFI_CHECK_ROWS,    /* classes drawn from distributions; -1: the row is none */
    WFI_CHECK_DIVISOR, /* elements of a divisor */
} wfi_check_kind;

/*
 * The elements of `index` (int64, contiguous, on the tape's device), which must be in [0, size); of offsets, in a bag
 * of `size` elements. Returns the tensor to compute with: `index`, or on a GPU a safe copy that the tape owns. NULL:
 * the operator has failed.
 */
weft_tensor *wfi_op_checked(wfi_op *op, wfi_check_kind kind, weft_tensor *index, int64_t size);
/* The integer tensor `divisor`, of any strides, for division on a GPU: a copy in which 1 replaces 0. */
weft_tensor *wfi_op_divisor(wfi_op *op, weft_tensor *divisor);

/* Makes the faults of checks that are done the tape's error. Does not wait. */
void wfi_tape_look(weft_tape *tape);
/* When the tape closes. */
void wfi_tape_leave_checks(weft_tape *tape);
/* Logs the faults of closed tapes whose checks are done. */
void wfi_checks_settle(void);

#endif
