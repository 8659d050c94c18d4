/* SPDX-License-Identifier: Apache-2.0 */
/*
 * carrier.h - group operations that functions of the program run (weft_group_carrier): one at a time, in order, on
 * the executor.
 *
 * LOCKING. [agent lock] for the queue. wfi_carrier_has and wfi_carrier_run need no lock: they read fields that do not
 * change once the group is used. wfi_carrier_free is called without it, because it calls the user's `drop`.
 * LIFETIME. The group owns it; an operation that it runs keeps the group.
 */
#ifndef WFI_CARRIER_H
#define WFI_CARRIER_H

#include "coll/group.h"

typedef struct wfi_carrier wfi_carrier;

void wfi_carrier_free(wfi_carrier *carrier); /* NULL is a no-op */
bool wfi_carrier_has(const wfi_carrier *carrier, wfi_operation_kind kind, bool sends);
/* Runs `task` after the tasks before it. */
void wfi_carrier_queue(wfi_carrier *carrier, weft_agent *agent, wfi_task *task);
/* Takes a task out of the queue. Returns false if the task runs, or was given to the executor to run. */
bool wfi_carrier_withdraw(wfi_carrier *carrier, wfi_task *task);
/* The calling thread (or fiber) is about to call a function of the carrier, until wfi_carrier_next. */
void wfi_carrier_enter(wfi_carrier *carrier);
/* Whether the calling thread (or fiber) is in a function of the carrier. NULL: no. */
bool wfi_carrier_is_caller(const wfi_carrier *carrier);
void wfi_carrier_next(wfi_carrier *carrier, weft_agent *agent); /* the task before it has ended */
/* Does the whole operation. Not [locked]: it calls the user's functions. */
weft_status wfi_carrier_run(wfi_carrier *carrier, const wfi_operation *operation);

#endif
