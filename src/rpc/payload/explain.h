/* SPDX-License-Identifier: Apache-2.0 */
/*
 * explain.h - finds the value of a list that cannot be sent, and says why.
 *
 * Called only after something failed, without the agent lock, with the agent entered.
 */
#ifndef WFI_EXPLAIN_H
#define WFI_EXPLAIN_H

#include "rpc/agent/agent.h"

/* The first fault that was found. */
typedef struct wfi_finding {
    char text[200]; /* empty: no fault */
    int worker;     /* the worker that caused the fault; -1: this one */
} wfi_finding;

/* Records a fault, unless `out` has one. */
void wfi_find(wfi_finding *out, const char *format, ...) WEFT_PRINTF(2, 3);
/* Looks for NULL tensors. `path` names the list. */
void wfi_find_in_tensors(weft_tensors tensors, const char *path, wfi_finding *out);
/* Looks for tensors whose memory cannot be read, or written. Unless `out` has a fault, no tensor may be NULL. */
void wfi_find_inaccessible(weft_tensors tensors, const char *path, bool for_writing, wfi_finding *out);
/* Checks each value, and then the size of all. `part` is the name of one of them ("argument"). */
void wfi_find_in_values(const weft_agent *agent, weft_args values, const char *part, wfi_finding *out);

/* Names the tensor that has these data, as in "value 1.2" or "value 3: tensor 0"; "" if there is none. With or without
 * the lock. */
#define WFI_FIND_DATA 100
void wfi_find_data(weft_args values, const void *data, char text[WFI_FIND_DATA]);

/* Writes why the results of a call cannot be sent (`why`). `text` is empty if no fault was found. */
void wfi_results_fault(const weft_agent *agent, weft_args results, weft_status why, char *text, size_t room);
/* For values that are not a call's arguments: an error with the code `why` that names the faulty value. */
weft_error *wfi_explain_values(const weft_agent *agent, weft_args values, weft_status why);

#endif
