/* SPDX-License-Identifier: Apache-2.0 */
/*
 * explain.h - which value of a list cannot be sent, and why, in words. Looked for only after something failed. Not locked, the agent
 * entered.
 */
#ifndef WFI_EXPLAIN_H
#define WFI_EXPLAIN_H

#include "rpc/agent/agent.h"

/* What was found to be at fault. */
typedef struct wfi_finding {
    char text[200]; /* empty: nothing */
    int worker;     /* where the fault lies; -1: here */
} wfi_finding;

/* Says what is wrong, unless something was found before: the first fault counts. */
void wfi_find(wfi_finding *out, const char *format, ...) WEFT_PRINTF(2, 3);
/* `path` names the list. */
void wfi_find_in_tensors(weft_tensors tensors, const char *path, wfi_finding *out);
/* The same for tensors in the memory of a device; none may be NULL, unless something was found before. */
void wfi_find_on_device(weft_tensors tensors, const char *path, wfi_finding *out);
/* Each value, and then all of them together; `what` names one of them ("argument"). */
void wfi_find_in_values(const weft_agent *agent, weft_args values, const char *what, wfi_finding *out);

/* What is wrong with the results of a call that cannot go (`why`), in words. Empty: it cannot be seen. */
void wfi_results_fault(const weft_agent *agent, weft_args results, weft_status why, char *text, size_t room);
/* Of values that are not a call's arguments: which of them is why, in words. */
weft_error *wfi_values_explain(const weft_agent *agent, weft_args values, weft_status why);

#endif
