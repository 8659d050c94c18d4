/* SPDX-License-Identifier: Apache-2.0 */
/*
 * data_parallel.h - the internals of a weft_data_parallel.
 *
 * A pass: the hook of each parameter copies the parameter's gradient into its bucket (reducer.c). A full bucket is
 * reduced, after those before it (buckets.c). At the end of the pass missing gradients are zero, and the pass waits for
 * the last bucket.
 *
 * LOCKING. `lock` guards all fields not marked (constant), which the hooks change. It is not held during calls of the
 * group that wait. The user reads `gradients` without it, when no pass is in progress.
 * LIFETIME. `users` counts the user's references: with the last one the object releases the hooks, which tapes may
 * still hold. `refs` counts one for all users, and one for each hook and callback; the last of these frees the
 * memory.
 */
#ifndef WFI_DATA_PARALLEL_H
#define WFI_DATA_PARALLEL_H

#include "base/handle.h"
#include "base/mutex.h"

#include <weft/data_parallel.h>

#include <stdatomic.h>

typedef struct wfi_bucket {
    size_t *parameters; /* their positions in the module, `count` of them */
    size_t count, arrived;
    int64_t elements;
    weft_dtype dtype;
    weft_tensor *flat; /* of the current pass, or the last */
    weft_future *done; /* of the current pass: completes when the bucket is reduced; NULL: that has not begun */
} wfi_bucket;

typedef struct wfi_parallel_parameter {
    weft_tensor *tensor; /* borrowed from the module, as `name` is */
    const char *name;
    size_t place; /* position among all parameters of the module */
    size_t bucket;
    int64_t offset;           /* elements */
    bool arrived;             /* in the current pass */
    weft_tensor *accumulated; /* gradients of passes that reduced nothing; NULL: none */
} wfi_parallel_parameter;

struct weft_data_parallel {
    wfi_handle handle;
    atomic_int users, refs;
    weft_group *group;                  /* (constant) referenced; its user may close it meanwhile */
    weft_module *module;                /* (constant) */
    weft_data_parallel_options options; /* (constant) with defaults in place of 0, except the time limit */
    weft_hooks *hooks;                  /* (constant) */
    wfi_mutex lock;
    size_t count; /* (constant) */
    /* the module's parameters that required a gradient when this was made, by position */
    wfi_parallel_parameter *parameters;
    wfi_bucket *buckets;
    size_t bucket_count, begun; /* begun: number of buckets being reduced in the current pass */
    size_t *order;              /* order of arrival, in each pass until `ordered`; then the order of the buckets */
    size_t order_count;
    bool ordered; /* the buckets are in member 0's order */
    bool syncs;   /* set by the user */
    bool in_pass, pass_syncs;
    bool ending;                      /* all gradients have arrived, and the exchange is in progress */
    size_t active;                    /* in the current pass: number of members that train, if uneven */
    weft_error *error;                /* why the current pass fails */
    weft_tensor *used, *shared_order; /* other data that the current pass exchanges; or NULL */
    weft_gradient *gradients;         /* of the last pass */
};

/* ---- verify.c ---------------------------------------------------------------------------------------------------- */

/*
 * Whether all members have the same kind of module and options; waits for them. On failure *error may say why, and
 * *known is set if all members come to the same result and none waits for another.
 */
weft_status wfi_data_parallel_compare(weft_data_parallel *parallel, bool *known, weft_error **error);
/* All members get the parameters and buffers of member `root`; waits. */
weft_status wfi_data_parallel_broadcast(weft_data_parallel *parallel, size_t root);

/* ---- buckets.c --------------------------------------------------------------------------------------------------- */

/* Puts the parameters into buckets, in that order. WEFT_ERR_MEMORY. */
weft_status wfi_buckets_make(weft_data_parallel *parallel, const size_t *order);
void wfi_buckets_free(weft_data_parallel *parallel);
weft_status wfi_buckets_open(weft_data_parallel *parallel); /* each gets memory for a pass, without other references */
/* Starts to reduce full buckets in order. [lock] */
weft_status wfi_buckets_advance(weft_data_parallel *parallel);
/* A view of the parameter's part; a reference. NULL: no memory. */
weft_tensor *wfi_bucket_view(const weft_data_parallel *parallel, size_t parameter);
/* its part of the bucket has its sum. [lock] */
void wfi_parameter_arrives(weft_data_parallel *parallel, size_t parameter);

/* ---- reducer.c --------------------------------------------------------------------------------------------------- */

void wfi_data_parallel_ref(weft_data_parallel *parallel);
void wfi_data_parallel_unref(void *parallel);
weft_status wfi_data_parallel_add_hooks(weft_data_parallel *parallel);
/*
 * Opens the buckets; if uneven, finds out how many members train, which waits. Do not call it if the group is over:
 * the buckets may be incomplete then.
 */
weft_status wfi_data_parallel_begin(weft_data_parallel *parallel, bool trains, size_t *active);
/* Ends the failed pass. Returns its error, if it is known (the caller unrefs it), or NULL. */
weft_error *wfi_data_parallel_take_error(weft_data_parallel *parallel);
/* Combines all members' numbers into one, the same on all; waits. */
weft_status wfi_data_parallel_agree(weft_data_parallel *parallel, int64_t mine, weft_op how, int64_t *out);
/* All sums are in their buckets: *out completes when all are exchanged. [lock] */
weft_status wfi_data_parallel_finish(weft_data_parallel *parallel, weft_future **out);

#endif
