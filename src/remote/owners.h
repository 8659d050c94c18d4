/* SPDX-License-Identifier: Apache-2.0 */
/* owners.h - a distributed optimizer, and calls to all its owners; for optimizer.c and state.c. */
#ifndef WFI_REMOTE_OWNERS_H
#define WFI_REMOTE_OWNERS_H

#include "base/handle.h"
#include "rpc/agent/agent.h"

#include <weft/dist_optim.h>

#include <stdatomic.h>

struct weft_dist_optimizer {
    wfi_handle handle;
    atomic_int refs;
    weft_agent *agent;               /* referenced */
    const weft_optimizer_type *type; /* the user's, or weft's own */
    _Atomic double lr;               /* the last rate that all owners took */
    _Atomic uint64_t sets;           /* number of states that were sent to owners */
    weft_rref **parts;               /* handles of the owners' optimizers */
    size_t count;
};

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
