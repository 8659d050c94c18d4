/* SPDX-License-Identifier: Apache-2.0 */
/* owners.h - calls to all owners of a distributed optimizer (dist/pass.h); for optimizer.c and state.c. */
#ifndef WFI_REMOTE_OWNERS_H
#define WFI_REMOTE_OWNERS_H

#include "dist/pass.h"

/* A call to each owner; the handle of its part becomes the first argument. */
typedef struct wfi_owner_calls {
    const char *function;
    weft_args same;        /* the arguments for all */
    const weft_args *each; /* not NULL: the arguments for each; an owner without `items` is not called */
    int64_t timeout_ms;
} wfi_owner_calls;
/*
 * Waits until all have ended. `results`: NULL, or zeroed, one for each owner. Returns the first owner's failure, which
 * *error receives; the log has the others.
 */
weft_status wfi_owners_call(const weft_dist_optimizer *optimizer, const wfi_owner_calls *call, weft_values **results,
                            weft_error **error);
/* Frees the array too; NULL does nothing. */
void wfi_owners_drop(const weft_dist_optimizer *optimizer, weft_values **results);

/* Whether the calling thread may wait for owners, and `optimizer` is not NULL. `what`: the public function. */
weft_status wfi_owners_may_wait(const weft_dist_optimizer *optimizer, const char *what, weft_error **error);
/* Ends such a function: makes an error if there is none, and gives it to the user. Returns `status`. */
weft_status wfi_owners_end(weft_status status, const char *what, weft_error *why, weft_error **error);

#endif
