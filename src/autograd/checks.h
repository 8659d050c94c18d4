/* SPDX-License-Identifier: Apache-2.0 */
/*
 * checks.h - faults in the data of operators: an index outside, a wrong offset, a row that is no distribution, an
 * integer divided by 0. And in the rows of gradients that optimizers get.
 *
 * On the CPU the operator finds the fault and fails. On a GPU a kernel writes the first fault into the tape's report
 * (tensor/tasks.h), and what follows computes with harmless values, 0 for an index. After the next wait for the tape's
 * stream the fault becomes the tape's error, in the words that it has on the CPU. No operator waits. An optimizer has
 * such a list of checks too.
 *
 * LOCKING. As a tape, or an optimizer. When a tape closes before a wait, its parent takes over the checks. Without a
 * parent a list of the process does, under a lock of its own, and a fault is then only logged.
 */
#ifndef WFI_CHECKS_H
#define WFI_CHECKS_H

#include "tensor/print.h"
#include "mem/stream.h"
#include "tensor/tasks.h"
#include "tensor/tensor.h"

#define WFI_OP_INPUTS 3 /* of every operator except those on a list */

typedef enum wfi_check_kind {
    WFI_CHECK_INDEX,
    WFI_CHECK_TARGET,
    WFI_CHECK_OFFSETS,
    WFI_CHECK_ROWS,    /* classes drawn from rows of weights; -1: the row is no distribution */
    WFI_CHECK_DIVISOR, /* elements of a divisor */
} wfi_check_kind;

/* An operand as it was when the check was queued, for the message. */
typedef struct wfi_operand {
    bool is_there;
    weft_dtype dtype;
    weft_shape shape;
} wfi_operand;

typedef struct wfi_check {
    wfi_check_kind kind;
    const char *name; /* of the operator */
    int64_t size;
    int operands;
    wfi_operand given[WFI_OP_INPUTS];
    /* Not of an operator: the error. `gradient` is the number of the gradient. Otherwise NULL. */
    weft_error *(*error)(int64_t gradient, int64_t size, const wfi_report_slot *found);
    int64_t gradient;
} wfi_check;

/* The checks of a tape or an optimizer on one stream. */
typedef struct wfi_checks {
    struct wfi_checks *next;
    struct wfi_page *page;
    wfi_report *report; /* in `page` */
    wfi_stream_mark mark;
    wfi_check *items; /* number i + 1 is items[i] */
    size_t count, room;
} wfi_checks;

/* Adds a check to those of the list on this stream. NULL: out of memory. The caller queues the kernel that writes to
 * `report` under the number `count`, and then sets the mark. */
wfi_checks *wfi_checks_add(wfi_checks **list, weft_stream *stream, const wfi_check *check);
/* The same for a check that is repeated in each step: it is in the list once, so a loop that never waits does not make
 * the list longer. The kernel writes *number. `round` counts the steps: of two faults the older one is found. */
wfi_checks *wfi_checks_repeat(wfi_checks **list, weft_stream *stream, const wfi_check *check, uint32_t round,
                              int64_t *number);
/* Removes the checks that are known to be done. An error with the first fault of each stream, or NULL. Does not wait.
 */
weft_error *wfi_checks_collect(wfi_checks **list);
/* One error that has the texts of both, and the code of the first. Takes over both; either may be NULL. */
weft_error *wfi_checks_join(weft_error *first, weft_error *later);
/* Takes over the checks, whose owner ends: their faults are logged when they are done. */
void wfi_checks_orphan(wfi_checks **list);

#define WFI_FAULT_TEXT 160
void wfi_fault_text(wfi_check_kind kind, int64_t size, const wfi_report_slot *found, char text[WFI_FAULT_TEXT]);

/* Reads the reports of checks that are done. A fault becomes the tape's error, or is added to its text. Does not
 * wait. */
void wfi_tape_collect_checks(weft_tape *tape);
/* The same while the tape closes: logs what nobody can ask for any longer. */
void wfi_tape_collect_last_checks(weft_tape *tape);
/* The tape closes: gives its checks to its parent, or to the list of the process. */
void wfi_tape_release_checks(weft_tape *tape);
/* Logs the faults of closed tapes whose checks are done. */
void wfi_checks_log_done(void);

#endif
