/* SPDX-License-Identifier: Apache-2.0 */
/*
 * data_parallel.h - the inside of a weft_data_parallel.
 *
 * A pass, seen from here: the hook of each parameter brings its sum, which is copied into its bucket (pass.c); a bucket
 * that is full is reduced, after those before it (buckets.c); at the end of the pass what is missing is zero, and all
 * wait for the last bucket.
 *
 * LOCKING. `lock` guards all that is not marked (constant), which the hooks change; it is not held while anything of the
 * group is called that waits. The user reads `gradients` without it, when no pass is under way.
 * LIFETIME. `users` counts the user's references: with the last one the object lets go of the hooks, which tapes may
 * still hold. `refs` counts one for all users, and one for each hook and callback; the memory goes with the last of
 * these.
 */
#ifndef WFI_DATA_PARALLEL_H
#define WFI_DATA_PARALLEL_H

#include "base/handle.h"
#include "base/mutex.h"

#include <weft/data_parallel.h>

#include <stdatomic.h>

typedef struct wfi_bucket {
    size_t *parameters; /* their places in the module, `count` of them */
    size_t count, arrived;
    int64_t elements;
    weft_dtype dtype;
    weft_tensor *flat;  /* of the present pass, or the last */
    weft_future *whole; /* of the present pass: completes when it is reduced; NULL: that has not begun */
} wfi_bucket;

typedef struct wfi_parallel_parameter {
    weft_tensor *tensor; /* borrowed from the module, as `name` is */
    const char *name;
    size_t place; /* among all parameters of the module */
    size_t bucket;
    int64_t offset;       /* elements */
    bool arrived;         /* in the present pass */
    weft_tensor *carried; /* sums of passes that reduced nothing; NULL: none */
} wfi_parallel_parameter;

struct weft_data_parallel {
    wfi_handle handle;
    atomic_int users, refs;
    weft_group *group;                  /* (constant) referenced; its user may destroy it meanwhile */
    weft_module *module;                /* (constant) */
    weft_data_parallel_options options; /* (constant) 0 is what it stands for, but for the time limit */
    weft_hooks *hooks;                  /* (constant) */
    wfi_mutex lock;
    size_t count;                       /* (constant) */
    wfi_parallel_parameter *parameters; /* those of the module that wanted a gradient when this was made, by place */
    wfi_bucket *buckets;
    size_t bucket_count, begun; /* in the present pass: so many are being reduced */
    size_t *order;              /* of arrival, in each pass until they are `ordered`; then theirs */
    size_t order_count;
    bool ordered; /* the buckets are in member 0's order */
    bool syncs;   /* as the user set it */
    bool in_pass, pass_syncs;
    bool concluding;                  /* its sums have come, and it waits for the others */
    size_t active;                    /* of the present pass: members that train, if uneven */
    weft_error *trouble;              /* why the present pass cannot succeed */
    weft_tensor *used, *shared_order; /* what else the present pass exchanges; or NULL */
    weft_gradient *gradients;         /* of the last pass */
};

/* ---- alike.c ----------------------------------------------------------------------------------------------------- */

/* Whether all members have a module and options like these; it waits for them. On failure *error may say why, and *known is set
 * where all members come to the same and none waits for another. */
weft_status wfi_parallel_compare(weft_data_parallel *parallel, bool *known, weft_error **error);
/* All get the parameters and buffers of member `root`; it waits. */
weft_status wfi_parallel_share(weft_data_parallel *parallel, size_t root);

/* ---- buckets.c --------------------------------------------------------------------------------------------------- */

/* Puts the parameters into buckets, in that order. WEFT_ERR_MEMORY. */
weft_status wfi_buckets_make(weft_data_parallel *parallel, const size_t *order);
void wfi_buckets_free(weft_data_parallel *parallel);
weft_status wfi_buckets_open(weft_data_parallel *parallel); /* each has memory for a pass, which nobody else holds */
/* Starts to reduce those that are full and not begun, in order. [lock] */
weft_status wfi_buckets_advance(weft_data_parallel *parallel);
/* A view of the parameter's part; a reference. NULL: no memory. */
weft_tensor *wfi_bucket_view(const weft_data_parallel *parallel, size_t parameter);
void wfi_parameter_arrives(weft_data_parallel *parallel, size_t parameter); /* its part has its sum. [lock] */

/* ---- pass.c ------------------------------------------------------------------------------------------------------ */

weft_status wfi_parallel_add_hooks(weft_data_parallel *parallel);
/* Opens the buckets; if uneven, finds out how many members train, of those who say that they do: that waits. Not if the
 * group is over: what there is of buckets may be half of it then. */
weft_status wfi_parallel_begin(weft_data_parallel *parallel, bool trains, size_t *active);
/* Ends the failed pass. Returns its error, if it is known (the caller unrefs it), or NULL. */
weft_error *wfi_parallel_take_trouble(weft_data_parallel *parallel);
/* One number of all members' numbers, the same on all; it waits. */
weft_status wfi_parallel_agree(weft_data_parallel *parallel, int64_t mine, weft_op how, int64_t *out);
/* Everything is in its bucket: *out completes when all is exchanged. [lock] */
weft_status wfi_parallel_finish(weft_data_parallel *parallel, weft_future **out);

/* ---- life.c ------------------------------------------------------------------------------------------------------ */

void wfi_parallel_ref(weft_data_parallel *parallel);
void wfi_parallel_unref(void *parallel);

#endif
